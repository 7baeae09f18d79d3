//! RDMC: large messages in blocks, which members forward (§3.3).
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
//! beyond that may be in flight. Blocks lost with a connection are sent again by their sender.
//! Nothing goes to a member before its row shows the view: a member that drops a block acknowledges
//! it with a later one's number. A view that wedges takes and forwards no block any more: a message
//! that is incomplete then is no message, and its sender sends it again in the next view.

use super::{
    Derecho,
    bug::Bug,
    message::Large,
    shards::{At, one_of},
    sst::{Columns, ON_BLOCKS, ON_RING, ON_SHARD},
    transfers::{Limits, Way},
};
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, Frame, ReplicaId};

/// The columns to look at when blocks came or are to go.
const fn blocks_of(at: At) -> Columns {
    match at {
        None => ON_BLOCKS,
        Some(_) => ON_SHARD,
    }
}

impl Derecho {
    /// Cuts an own message into blocks.
    pub(super) fn start_blocks(&mut self, at: At, index: u64, body: &Frame) {
        let own = self.me.id();
        let Self {
            stream,
            shards,
            config,
            ..
        } = self;
        let stream = one_of(stream, shards, at);
        let members = stream.members().to_vec();
        if stream.rdmc.start((own, index), body, config, &members) {
            self.sst.touch(blocks_of(at));
        }
    }

    pub(super) fn on_block(
        &mut self,
        at: At,
        from: ReplicaId,
        number: u64,
        large: Large,
        block: (u32, Bytes),
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.membership.is_active() || self.membership.wedging() {
            return;
        }
        let column = self.sst.layout.blocks(self.of(at).block, from);
        self.sst.set(column, number.max(self.sst.own(column)));
        if large.sender.index() >= self.me.members() {
            return;
        }
        if self.of(at).incoming.from(large.sender).has(large.index) {
            return ctx.mark("ignored: a block that came before");
        }
        let own = self.me.id();
        let limits = Limits {
            window: self.config.window,
            by_arrival: self.injected(Bug::BlocksByArrival),
        };
        let stream = self.of_mut(at);
        let members = stream.members().to_vec();
        let own = (own, &members[..]);
        match stream.rdmc.on_block(from, large, block, own, limits) {
            Err(why) => return ctx.mark(why),
            Ok(None) => {}
            Ok(Some(whole)) => {
                let sender = stream.incoming.sender(large.sender);
                sender.take_bulk(large.index, whole);
                stream.incoming.came(large.sender);
                self.sst.touch(ON_RING | ON_SHARD);
            }
        }
        self.sst.touch(blocks_of(at));
    }

    /// Sends what is here and due to others, as far as their credit goes.
    pub(super) fn send_blocks(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        let group = self.of(at).group;
        ctx.in_group(group, |ctx| self.send_blocks_in(at, ctx));
    }

    fn send_blocks_in(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        let (own, peers) = (self.me.id(), self.live_peers(at));
        let (view, credits) = (self.membership.number(), self.config.rdmc_credits);
        let busy = self.streams().filter(|stream| stream.rdmc.is_busy());
        let share = 2 * busy.count().max(1);
        let Self {
            stream,
            shards,
            sst,
            ..
        } = self;
        let stream = one_of(stream, shards, at);
        let block = stream.block;
        // A shard's member that does not hold its log does not take any yet.
        let begun = |id: ReplicaId| {
            sst.valid(id) && block.is_none_or(|block| sst.read(id, sst.layout.held(block)) > 0)
        };
        let all = (0..self.me.members()).map(|id| ReplicaId(id as u16));
        let way = |to| Way {
            to,
            view,
            // The other half is for what must not wait behind blocks, of all orders.
            room: if peers.contains(to) {
                ctx.room(to) / share
            } else {
                0
            },
            credits,
        };
        let mut ways: Vec<Way> = all.map(way).collect();
        let has = |id, large: &Large| {
            sst.read(id, sst.layout.received(block, large.sender)) > large.index
        };
        for peer in peers.iter().filter(|peer| begun(*peer)) {
            let acknowledged = sst.read(peer, sst.layout.blocks(block, own));
            stream.rdmc.acknowledge(peer, acknowledged);
            let way = &mut ways[peer.index()];
            stream.rdmc.send_lost(way, |large| has(peer, large), ctx);
        }
        let needs = |to, large: &Large| peers.contains(to) && !has(to, large);
        stream.rdmc.send(&mut ways, needs, begun, ctx);
    }
}
