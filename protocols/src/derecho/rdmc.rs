//! RDMC: large messages in blocks, which members pass on (§3.3).
//!
//! ```text
//!   own message ─► blocks ─┐                    ┌─► all there: the message, for its slot of the ring
//!   Block ─► to its place ─┴─► transfer ────────┤
//!                                  ▲            └─► Block ─► the replica that the schedule names
//!     BLOCKS ◄── put ── receivers ─┘ credit         (kept until BLOCKS says that it has come)
//! ```
//!
//! Everybody computes the schedule from what each block says of its message, so a receiver knows
//! where a block belongs, from whom it comes, and to whom it continues. Blocks are numbered on each
//! link; a receiver's column BLOCKS shows up to which number they have come, and a bounded number
//! beyond that may be in flight. What a broken connection lost is sent again by its sender. Nothing
//! goes to a member before its row shows the view: a member that drops a block acknowledges it with
//! a later one's number. A view that wedges takes and forwards no block any more: a message that is
//! incomplete then is no message, and its sender sends it again in the next view.

use super::{
    Derecho,
    message::{BLOCKS_MAX, Large, Message},
    plant::Plant,
    replica::Phase,
    schedule::{Hop, Schedule},
    sst::{ON_BLOCKS, ON_RING},
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};
use quintet_replica::{Bytes, Context, Frame, Lane, ReplicaId, ReplicaSet};

/// More than what a block's message takes besides its bytes.
const BLOCK_ROOM: usize = 4096;

/// A block to be sent.
#[derive(Debug, Hash)]
struct Outgoing {
    large: Large,
    block: u32,
    bytes: Bytes,
}

/// What was sent to one member in this view.
#[derive(Debug, Default, Hash)]
struct Link {
    /// The number of the last block.
    sent: u64,
    /// Up to which number they have come there.
    acknowledged: u64,
    under_way: VecDeque<(u64, Outgoing)>,
    /// What was lost with a connection.
    again: VecDeque<Outgoing>,
}

impl Link {
    fn acknowledge(&mut self, number: u64) {
        self.acknowledged = self.acknowledged.max(number);
        while (self.under_way.front()).is_some_and(|(sent, _)| *sent <= self.acknowledged) {
            self.under_way.pop_front();
        }
    }

    fn send_again(&mut self) {
        let lost = self.under_way.drain(..).map(|(_, outgoing)| outgoing);
        self.again = lost.chain(self.again.drain(..)).collect();
    }
}

/// A message of which blocks are missing here, or must be passed on.
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
pub(super) struct Rdmc {
    transfers: BTreeMap<Large, Transfer>,
    links: Vec<Link>,
    /// The schedule that was asked for last: messages of one length follow each other.
    schedule: Option<((Schedule, usize, usize), Vec<Hop>)>,
}

impl Rdmc {
    pub fn new(members: usize) -> Self {
        Self {
            links: (0..members).map(|_| Link::default()).collect(),
            ..Self::default()
        }
    }

    /// Bytes that wait here to be passed on or to become a message.
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
}

impl Derecho {
    /// What this member has to do with a message.
    fn transfer(&mut self, large: &Large) -> Option<Transfer> {
        let view = &self.promise.view;
        let (first, mine) = (view.rank(large.sender)?, view.rank(self.id)?);
        let count = view.members.len();
        let id = |place: usize| view.members[(first + place) % count].id;
        let mine = (mine + count - first) % count;
        let blocks = large.blocks();
        let mut transfer = Transfer {
            blocks: vec![None; blocks],
            missing: blocks,
            sources: vec![large.sender; blocks],
            sends: Vec::new(),
        };
        for hop in self.rdmc.hops(large.schedule, count, blocks) {
            if hop.to == mine {
                transfer.sources[hop.block] = id(hop.from);
            }
            if hop.from == mine {
                transfer.sends.push((id(hop.to), hop.block as u32));
            }
        }
        Some(transfer)
    }

    /// Cuts an own message into blocks of one size, the last a little shorter.
    pub(super) fn start_blocks(&mut self, index: u64, body: &Frame) {
        let blocks = body.len().div_ceil(self.config.rdmc_block_bytes);
        let blocks = blocks.clamp(1, BLOCKS_MAX);
        let size = body.len().div_ceil(blocks);
        let blocks = body.len().div_ceil(size);
        let members = self.promise.view.members.len();
        let schedule = self.config.rdmc_schedule;
        let large = Large {
            index,
            sender: self.id,
            length: body.len() as u32,
            size: size as u32,
            schedule: schedule.unwrap_or_else(|| Schedule::for_message(members, blocks)),
        };
        if let Some(mut transfer) = self.transfer(&large) {
            let slice = |block| body.slice(large.place(block));
            transfer.blocks = (0..blocks as u32).map(|block| Some(slice(block))).collect();
            transfer.missing = 0;
            self.rdmc.transfers.insert(large, transfer);
            self.dirty |= ON_BLOCKS;
        }
    }

    pub(super) fn on_block(
        &mut self,
        from: ReplicaId,
        number: u64,
        large: Large,
        (block, bytes): (u32, Bytes),
        ctx: &mut Context<'_, Self>,
    ) {
        if self.phase != Phase::Active || self.wedging {
            return;
        }
        let column = self.table.layout.blocks(from);
        self.set_own(column, number.max(self.table.get(self.id, column)));
        let Some(stream) = self.streams.get(large.sender.index()) else {
            return;
        };
        if large.index < stream.received || stream.bulk.contains_key(&large.index) {
            return ctx.mark("ignored: a block that came before");
        }
        if !self.rdmc.transfers.contains_key(&large) {
            let transfers = self.rdmc.transfers.keys();
            let same = transfers.filter(|other| other.sender == large.sender);
            // A sender has no more than a window of messages in progress; some of those that all
            // have may still stand here.
            if large.sender == self.id || same.count() >= 2 * self.config.window {
                return ctx.mark("ignored: more large messages than a window");
            }
            let Some(transfer) = self.transfer(&large) else {
                return ctx.mark("ignored: a block of no member");
            };
            self.rdmc.transfers.insert(large, transfer);
        }
        let by_arrival = self.planted(Plant::BlocksByArrival);
        let Some(transfer) = self.rdmc.transfers.get_mut(&large) else {
            return;
        };
        let mut block = block as usize;
        if transfer.sources[block] != from {
            return ctx.mark("ignored: a block from elsewhere");
        }
        if by_arrival {
            let free = transfer.blocks.iter().position(Option::is_none);
            block = free.unwrap_or(block);
        }
        if transfer.blocks[block].is_some() {
            return ctx.mark("ignored: a block that came before");
        }
        transfer.blocks[block] = Some(bytes);
        transfer.missing -= 1;
        self.dirty |= ON_BLOCKS;
        if transfer.missing == 0 {
            let body = match &transfer.blocks[..] {
                [Some(whole)] => whole.clone(),
                blocks => {
                    let mut body = Vec::with_capacity(large.length as usize);
                    let blocks = blocks.iter().flatten();
                    blocks.for_each(|block| body.extend_from_slice(block));
                    Bytes::from(body)
                }
            };
            let stream = &mut self.streams[large.sender.index()];
            stream.bulk.insert(large.index, body);
            self.fresh.insert(large.sender);
            self.dirty |= ON_RING;
        }
    }

    pub(super) fn has_blocks(&self) -> bool {
        let waits = |link: &Link| !link.under_way.is_empty() || !link.again.is_empty();
        !self.rdmc.transfers.is_empty() || self.rdmc.links.iter().any(waits)
    }

    /// Sends what is here and due to others, as far as their credit goes.
    pub(super) fn send_blocks(&mut self, ctx: &mut Context<'_, Self>) {
        let peers = ReplicaSet(self.live().0 & self.others.0);
        let mut rdmc = core::mem::take(&mut self.rdmc);
        let mut rooms = vec![0; self.members];
        for peer in peers.iter() {
            // The other half is for what must not wait behind blocks.
            rooms[peer.index()] = ctx.room(peer) / 2;
            if !self.table.valid(peer) {
                continue;
            }
            let link = &mut rdmc.links[peer.index()];
            link.acknowledge(self.table.read(peer, self.table.layout.blocks(self.id)));
            while let Some(outgoing) = link.again.pop_front() {
                if self.taken_by(peer, &outgoing.large) {
                    continue;
                }
                let room = &mut rooms[peer.index()];
                if let Err(outgoing) = self.send_block(peer, outgoing, link, room, ctx) {
                    link.again.push_front(outgoing);
                    break;
                }
            }
        }
        for (large, transfer) in &mut rdmc.transfers {
            let Transfer { blocks, sends, .. } = transfer;
            sends.retain(|(to, block)| {
                if !peers.contains(*to) || self.taken_by(*to, large) {
                    return false;
                }
                if !self.table.valid(*to) {
                    return true;
                }
                let (link, room) = (&mut rdmc.links[to.index()], &mut rooms[to.index()]);
                let Some(bytes) = &blocks[*block as usize] else {
                    return true;
                };
                let (large, block, bytes) = (*large, *block, bytes.clone());
                let outgoing = Outgoing {
                    large,
                    block,
                    bytes,
                };
                !link.again.is_empty() || self.send_block(*to, outgoing, link, room, ctx).is_err()
            });
        }
        let open =
            |_: &Large, transfer: &mut Transfer| transfer.missing > 0 || !transfer.sends.is_empty();
        rdmc.transfers.retain(open);
        self.rdmc = rdmc;
    }

    /// A member has all of this message.
    fn taken_by(&self, id: ReplicaId, large: &Large) -> bool {
        let column = self.table.layout.received(large.sender);
        self.table.read(id, column) > large.index
    }

    /// Sends a block if there is credit and room for it; gives it back otherwise.
    fn send_block(
        &self,
        to: ReplicaId,
        outgoing: Outgoing,
        link: &mut Link,
        room: &mut usize,
        ctx: &mut Context<'_, Self>,
    ) -> Result<(), Outgoing> {
        let bytes = outgoing.bytes.len() + BLOCK_ROOM;
        let idle = link.under_way.is_empty() && *room > 0 && bytes <= ctx.room(to);
        if link.under_way.len() >= self.config.rdmc_credits || *room < bytes && !idle {
            return Err(outgoing);
        }
        *room = room.saturating_sub(bytes);
        link.sent += 1;
        let message = Message::Block {
            view: self.promise.view.number,
            number: link.sent,
            large: outgoing.large,
            block: outgoing.block,
            bytes: outgoing.bytes.clone(),
        };
        link.under_way.push_back((link.sent, outgoing));
        ctx.send(to, Lane::Bulk, &message);
        Ok(())
    }
}
