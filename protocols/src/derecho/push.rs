//! Puts: what has changed in the own row, and the new slots of the ring (§3.4).

use super::{
    Derecho,
    message::Message,
    outgoing::{Path, Sent},
    plant::Plant,
    sst,
};
use alloc::{vec, vec::Vec};
use quintet_replica::{Context, Lane, ReplicaId, ReplicaSet};

impl Derecho {
    /// Pushes what has changed in the own row, and the new slots of the ring; everything to members
    /// to which puts were lost or that had no room.
    pub(super) fn push(&mut self, ctx: &mut Context<'_, Self>) {
        let live = self.membership.live_peers();
        for peer in self.sst.lagging(live).iter() {
            let bytes = self.row_bytes() + self.stream.outgoing.bodies_missing(self.taken_by(peer));
            if ctx.takes(peer, bytes) && !self.failures.is_down(peer) {
                self.sst.repaired(peer);
                self.push_all(peer, ctx);
            }
        }
        if !self.sst.take_news() && self.stream.outgoing.is_put() {
            // Changes that no member waits for go with the next put, with a heartbeat at the
            // latest.
            return;
        }
        let mut to = ReplicaSet(live.0 & !self.sst.lagging(live).0);
        for peer in to.iter() {
            if ctx.room(peer) < self.row_bytes() {
                self.sst.lost(peer);
                to = to.without(peer);
            }
        }
        let slots = self.slots(self.stream.outgoing.unput(), to, ctx);
        let head = [self.membership.number()];
        let ranges = self.ring_ranges(&head, &slots);
        if self.planted(Plant::PutTorn) {
            let single = ranges.iter().filter(|range| range.1.len() == 1);
            ctx.put(to, &single.copied().collect::<Vec<_>>());
        }
        self.sst.put_changes(to, &ranges, !slots.is_empty(), ctx);
        self.stream.outgoing.put();
    }

    /// The whole row, and what the peer has not taken of the ring.
    fn push_all(&self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        let missing = self.stream.outgoing.missing(self.taken_by(peer));
        let slots = self.slots(missing, ReplicaSet::EMPTY.with(peer), ctx);
        let head = [self.membership.number()];
        self.sst
            .put_all(peer, &self.ring_ranges(&head, &slots), ctx);
    }

    /// The words of these slots; messages that go as a whole are sent to these members.
    fn slots<'a>(
        &self,
        slots: impl Iterator<Item = &'a Sent>,
        to: ReplicaSet,
        ctx: &mut Context<'_, Self>,
    ) -> Vec<(u64, Vec<u64>)> {
        let words = slots.map(|sent| {
            if sent.path == Path::Whole {
                let (view, index) = (self.membership.number(), sent.first);
                let body = sent.body.clone();
                ctx.multicast(to, Lane::Bulk, &Message::Bulk { view, index, body });
            }
            (sent.slot, sent.words())
        });
        words.collect()
    }

    /// HEAD, then each slot's words and its guard behind them.
    fn ring_ranges<'a>(
        &self,
        head: &'a [u64],
        slots: &'a [(u64, Vec<u64>)],
    ) -> Vec<(u32, &'a [u64])> {
        let layout = &self.sst.layout;
        let area = layout.area(self.membership.number());
        let mut ranges = vec![(area + sst::HEAD, head)];
        for (slot, words) in slots {
            let at = area + layout.slot(*slot);
            ranges.push((at + 1, &words[1..]));
            ranges.push((at, &words[..1]));
        }
        ranges
    }

    /// How many of the own messages a peer has said that it has received.
    fn taken_by(&self, peer: ReplicaId) -> u64 {
        self.sst.read(peer, self.sst.layout.received(self.me.id()))
    }

    /// More than a push of the row and the ring takes.
    fn row_bytes(&self) -> usize {
        let (ring, _) = self.stream.outgoing.bytes();
        self.sst.layout.ring() as usize * 8 + ring + 4096
    }
}
