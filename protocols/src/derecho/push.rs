//! Puts: what has changed in the own row, and the new slots of the ring (§3.4).

use super::{
    Derecho,
    message::Message,
    outgoing::{Path, Sent},
    shards::{At, Bug, less},
    sst,
};
use alloc::{vec, vec::Vec};
use quintet_replica::{Context, Lane, ReplicaId, ReplicaSet};

impl Derecho {
    /// Pushes what has changed in the own row, and the new slots of the ring; everything to members
    /// to which puts were lost or that had no room.
    pub(super) fn push(&mut self, ctx: &mut Context<'_, Self>) {
        let live = self.membership.live_peers();
        let mut whole = ReplicaSet::EMPTY;
        for peer in self.sst.lagging(live).iter() {
            let bytes = self.row_bytes() + self.bodies_missing(peer);
            if ctx.takes(peer, bytes) && !self.failures.is_down(peer) {
                self.sst.repaired(peer);
                self.push_all(peer, ctx);
                whole.insert(peer);
            }
        }
        let in_shards =
            self.sst.take_block_news() || self.shards.iter().any(|shard| !shard.outgoing.is_put());
        if !self.sst.take_news() && self.stream.outgoing.is_put() && !in_shards {
            // Changes that no member waits for go with the next put, with a heartbeat at the
            // latest.
            return;
        }
        let mut to = ReplicaSet(live.0 & !self.sst.lagging(live).0);
        let bytes = self.row_bytes();
        for peer in to.iter() {
            if ctx.room(peer) < bytes {
                self.sst.lost(peer);
                to = to.without(peer);
            }
        }
        // The blocks, and whole messages of shards, are a part of the whole row.
        self.push_shards(less(to, whole), ctx);
        let slots = self.slots(None, self.stream.outgoing.unput(), to, ctx);
        let head = [self.membership.number()];
        let wedged = self.sst.own(sst::WEDGED) > 0;
        let blocks = match wedged && !self.injected(Bug::WedgedBeforeBlocksArePut) {
            true => self.block_ranges(),
            false => Vec::new(),
        };
        let mut ranges = self.ring_ranges(None, &head, &slots);
        // WEDGED, which follows, makes them final.
        ranges.extend(blocks.iter().map(|(at, words)| (*at, &words[..])));
        if self.injected(Bug::PutTorn) {
            let single = ranges.iter().filter(|range| range.1.len() == 1);
            ctx.put(to, &single.copied().collect::<Vec<_>>());
        }
        self.sst.put_changes(to, &ranges, !slots.is_empty(), ctx);
        self.stream.outgoing.put();
    }

    /// The whole row, and what the peer has not taken of the ring.
    fn push_all(&self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        let missing = self.stream.outgoing.missing(self.taken_by(None, peer));
        let slots = self.slots(None, missing, ReplicaSet::EMPTY.with(peer), ctx);
        let head = [self.membership.number()];
        let of_shards = self.slots_of_shards(peer, ctx);
        let mut ranges = self.ring_ranges(None, &head, &slots);
        for (at, slots) in &of_shards {
            ranges.extend_from_slice(&self.ring_ranges(*at, &head, slots));
        }
        let blocks = self.block_ranges();
        ranges.extend(blocks.iter().map(|(at, words)| (*at, &words[..])));
        self.sst.put_all(peer, &ranges, ctx);
    }

    /// The words of these slots; messages that go as a whole are sent to these members.
    pub(super) fn slots<'a>(
        &self,
        at: At,
        slots: impl Iterator<Item = &'a Sent>,
        to: ReplicaSet,
        ctx: &mut Context<'_, Self>,
    ) -> Vec<(u64, Vec<u64>)> {
        let words = slots.map(|sent| {
            if sent.path == Path::Whole {
                let (view, index) = (self.membership.number(), sent.first);
                let body = sent.body.clone();
                let message = Message::Bulk { view, index, body };
                ctx.in_group(self.of(at).group, |ctx| {
                    ctx.multicast(to, Lane::Bulk, &message);
                });
            }
            (sent.slot, sent.words())
        });
        words.collect()
    }

    /// HEAD, then each slot's words and its guard behind them.
    pub(super) fn ring_ranges<'a>(
        &self,
        at: At,
        head: &'a [u64],
        slots: &'a [(u64, Vec<u64>)],
    ) -> Vec<(u32, &'a [u64])> {
        let layout = &self.sst.layout;
        let area = layout.area(self.membership.number());
        let mut ranges = vec![(area + sst::HEAD, head)];
        for (slot, words) in slots {
            let place = area + layout.slot(self.of(at).block, *slot);
            ranges.push((place + 1, &words[1..]));
            ranges.push((place, &words[..1]));
        }
        ranges
    }

    /// How many of the own messages a peer has said that it has received.
    fn taken_by(&self, at: At, peer: ReplicaId) -> u64 {
        let column = self.sst.layout.received(self.of(at).block, self.me.id());
        self.sst.read(peer, column)
    }

    /// The bytes of whole messages that a peer lacks, of all orders that it is in, too.
    fn bodies_missing(&self, peer: ReplicaId) -> usize {
        let parts = self.parts().map(Some).chain([None]);
        let with = parts.filter(|at| self.peers(*at).contains(peer));
        let missing = |at| self.of(at).outgoing.bodies_missing(self.taken_by(at, peer));
        with.map(missing).sum()
    }

    /// More than a push of the row, its blocks and the rings takes.
    fn row_bytes(&self) -> usize {
        let ring: usize = self.streams().map(|stream| stream.outgoing.bytes().0).sum();
        self.sst.layout.control_words() as usize * 8 + ring + 4096
    }
}
