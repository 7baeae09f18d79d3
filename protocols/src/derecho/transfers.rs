//! Large messages in blocks: which are here, which are due to whom, and which may be lost.

use super::{
    config::Config,
    message::{BLOCKS_MAX, Large, Message},
    schedule::{Hop, Schedule},
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};
use quintet_replica::{Bytes, Context, Frame, Lane, Protocol, ReplicaId};

/// More than what a block's message takes besides its bytes.
const BLOCK_ROOM: usize = 4096;

/// Bounds of the blocks that are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub window: usize,
    /// Of an injected bug: blocks take the next free place.
    pub by_arrival: bool,
}

/// How blocks are sent to a member in this turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub to: ReplicaId,
    pub view: u64,
    /// Send credit that blocks may take; the rest is for what must not wait behind them.
    pub room: usize,
    /// The most blocks that are not acknowledged.
    pub credits: usize,
}

/// A block to be sent.
#[derive(Debug, Hash)]
struct Outgoing {
    large: Large,
    block: u32,
    bytes: Bytes,
}

/// Blocks that were sent to one member in this view.
#[derive(Debug, Default, Hash)]
struct Link {
    /// The number of the last block.
    sent: u64,
    /// Up to which number they have come there.
    acknowledged: u64,
    in_progress: VecDeque<(u64, Outgoing)>,
    /// Those that were lost with a connection.
    again: VecDeque<Outgoing>,
}

impl Link {
    fn acknowledge(&mut self, number: u64) {
        self.acknowledged = self.acknowledged.max(number);
        while (self.in_progress.front()).is_some_and(|(sent, _)| *sent <= self.acknowledged) {
            self.in_progress.pop_front();
        }
    }

    /// Sends a block if there is credit and room for it; gives it back otherwise.
    fn send<P: Protocol<Message = Message>>(
        &mut self,
        way: &mut Way,
        outgoing: Outgoing,
        ctx: &mut Context<'_, P>,
    ) -> Result<(), Outgoing> {
        let bytes = outgoing.bytes.len() + BLOCK_ROOM;
        let idle = self.in_progress.is_empty() && way.room > 0 && bytes <= ctx.room(way.to);
        if self.in_progress.len() >= way.credits || way.room < bytes && !idle {
            return Err(outgoing);
        }
        way.room = way.room.saturating_sub(bytes);
        self.sent += 1;
        let message = Message::Block {
            view: way.view,
            number: self.sent,
            large: outgoing.large,
            block: outgoing.block,
            bytes: outgoing.bytes.clone(),
        };
        self.in_progress.push_back((self.sent, outgoing));
        ctx.send(way.to, Lane::Bulk, &message);
        Ok(())
    }

    fn send_again(&mut self) {
        let lost = self.in_progress.drain(..).map(|(_, outgoing)| outgoing);
        self.again = lost.chain(self.again.drain(..)).collect();
    }
}

/// A message of which blocks are missing here, or must be forwarded.
#[derive(Debug, Hash)]
struct Transfer {
    blocks: Vec<Option<Bytes>>,
    missing: usize,
    /// From whom each block comes.
    sources: Vec<ReplicaId>,
    /// To whom which blocks go from here, in the order of the schedule.
    sends: Vec<(ReplicaId, u32)>,
}

/// All messages in blocks of a view.
#[derive(Debug, Default, Hash)]
pub(super) struct Transfers {
    transfers: BTreeMap<Large, Transfer>,
    links: Vec<Link>,
    /// The schedule that was asked for last: messages of one length follow each other.
    schedule: Option<((Schedule, usize, usize), Vec<Hop>)>,
}

impl Transfers {
    pub fn new(members: usize) -> Self {
        Self {
            links: (0..members).map(|_| Link::default()).collect(),
            ..Self::default()
        }
    }

    /// Bytes that wait here to be forwarded or to become a message.
    pub fn bytes(&self) -> usize {
        let transfers = self.transfers.values();
        let blocks = transfers.flat_map(|transfer| transfer.blocks.iter().flatten());
        blocks.map(Bytes::len).sum()
    }

    fn hops(&mut self, kind: Schedule, members: usize, blocks: usize) -> &[Hop] {
        let key = (kind, members, blocks);
        if self.schedule.as_ref().is_none_or(|(of, _)| *of != key) {
            self.schedule = Some((key, kind.hops(members, blocks)));
        }
        self.schedule.as_ref().map_or(&[], |(_, hops)| hops)
    }

    /// The connection to a member was lost, with what was on it.
    pub fn on_link_up(&mut self, peer: ReplicaId) {
        if let Some(link) = self.links.get_mut(peer.index()) {
            link.send_again();
        }
    }

    /// The part of this member in spreading a message.
    fn transfer(
        &mut self,
        large: &Large,
        members: &[ReplicaId],
        own: ReplicaId,
    ) -> Option<Transfer> {
        let rank = |of: ReplicaId| members.iter().position(|id| *id == of);
        let (first, mine) = (rank(large.sender)?, rank(own)?);
        let count = members.len();
        let id = |place: usize| members[(first + place) % count];
        let mine = (mine + count - first) % count;
        let blocks = large.blocks();
        let mut transfer = Transfer {
            blocks: vec![None; blocks],
            missing: blocks,
            sources: vec![large.sender; blocks],
            sends: Vec::new(),
        };
        for hop in self.hops(large.schedule, count, blocks) {
            if hop.to == mine {
                transfer.sources[hop.block] = id(hop.from);
            }
            if hop.from == mine {
                transfer.sends.push((id(hop.to), hop.block as u32));
            }
        }
        Some(transfer)
    }

    /// Cuts an own message into blocks of one size, the last a little shorter. True when blocks are
    /// to be sent.
    pub fn start(
        &mut self,
        (sender, index): (ReplicaId, u64),
        body: &Frame,
        config: &Config,
        ranked: &[ReplicaId],
    ) -> bool {
        let blocks = body
            .len()
            .div_ceil(config.rdmc_block_bytes)
            .clamp(1, BLOCKS_MAX);
        let size = body.len().div_ceil(blocks);
        let blocks = body.len().div_ceil(size);
        let members = ranked.len();
        let large = Large {
            index,
            sender,
            length: body.len() as u32,
            size: size as u32,
            schedule: (config.rdmc_schedule)
                .unwrap_or_else(|| Schedule::for_message(members, blocks)),
        };
        let Some(mut transfer) = self.transfer(&large, ranked, sender) else {
            return false;
        };
        let slice = |block| body.slice(large.place(block));
        transfer.blocks = (0..blocks as u32).map(|block| Some(slice(block))).collect();
        transfer.missing = 0;
        self.transfers.insert(large, transfer);
        true
    }

    /// A block came. Gives the message when all of it is here.
    ///
    /// # Errors
    /// Why it is ignored.
    pub fn on_block(
        &mut self,
        from: ReplicaId,
        large: Large,
        (block, bytes): (u32, Bytes),
        (own, ranked): (ReplicaId, &[ReplicaId]),
        limits: Limits,
    ) -> Result<Option<Bytes>, &'static str> {
        if !self.transfers.contains_key(&large) {
            let transfers = self.transfers.keys();
            let same = transfers.filter(|other| other.sender == large.sender);
            // A sender has no more than a window of messages in progress; some of those that all
            // have may still stand here.
            if large.sender == own || same.count() >= 2 * limits.window {
                return Err("ignored: more large messages than a window");
            }
            let transfer = self.transfer(&large, ranked, own);
            let transfer = transfer.ok_or("ignored: a block of no member")?;
            self.transfers.insert(large, transfer);
        }
        let Some(transfer) = self.transfers.get_mut(&large) else {
            return Ok(None);
        };
        let mut block = block as usize;
        if transfer.sources[block] != from {
            return Err("ignored: a block from elsewhere");
        }
        if limits.by_arrival {
            let free = transfer.blocks.iter().position(Option::is_none);
            block = free.unwrap_or(block);
        }
        if transfer.blocks[block].is_some() {
            return Err("ignored: a block that came before");
        }
        transfer.blocks[block] = Some(bytes);
        transfer.missing -= 1;
        let whole = (transfer.missing == 0).then(|| match &transfer.blocks[..] {
            [Some(whole)] => whole.clone(),
            blocks => {
                let mut body = Vec::with_capacity(large.length as usize);
                let blocks = blocks.iter().flatten();
                blocks.for_each(|block| body.extend_from_slice(block));
                Bytes::from(body)
            }
        });
        Ok(whole)
    }

    /// Whether there is anything to send, or to wait for.
    pub fn is_busy(&self) -> bool {
        let waits = |link: &Link| !link.in_progress.is_empty() || !link.again.is_empty();
        !self.transfers.is_empty() || self.links.iter().any(waits)
    }

    /// Blocks that a member acknowledges up to this number need not be sent again.
    pub fn acknowledge(&mut self, peer: ReplicaId, number: u64) {
        self.links[peer.index()].acknowledge(number);
    }

    /// Sends what was lost with the connection to a member, but for messages that it has.
    pub fn send_lost<P: Protocol<Message = Message>>(
        &mut self,
        way: &mut Way,
        has: impl Fn(&Large) -> bool,
        ctx: &mut Context<'_, P>,
    ) {
        let link = &mut self.links[way.to.index()];
        while let Some(outgoing) = link.again.pop_front() {
            if has(&outgoing.large) {
                continue;
            }
            if let Err(outgoing) = link.send(way, outgoing, ctx) {
                link.again.push_front(outgoing);
                break;
            }
        }
    }

    /// Sends what is here and due to others. `way` gives how to send to a member that does not have
    /// a message: none when it needs it no more, or may not get it yet.
    pub fn send<P: Protocol<Message = Message>>(
        &mut self,
        ways: &mut [Way],
        needs: impl Fn(ReplicaId, &Large) -> bool,
        may: impl Fn(ReplicaId) -> bool,
        ctx: &mut Context<'_, P>,
    ) {
        for (large, transfer) in &mut self.transfers {
            let Transfer { blocks, sends, .. } = transfer;
            sends.retain(|(to, block)| {
                if !needs(*to, large) {
                    return false;
                }
                let link = &mut self.links[to.index()];
                let Some(bytes) = &blocks[*block as usize] else {
                    return true;
                };
                if !may(*to) || !link.again.is_empty() {
                    return true;
                }
                let (large, block, bytes) = (*large, *block, bytes.clone());
                let outgoing = Outgoing {
                    large,
                    block,
                    bytes,
                };
                link.send(&mut ways[to.index()], outgoing, ctx).is_err()
            });
        }
        let open =
            |_: &Large, transfer: &mut Transfer| transfer.missing > 0 || !transfer.sends.is_empty();
        self.transfers.retain(open);
    }
}
