//! The other replicas, as this one knows them.

use super::Said;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Incarnation, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Contact, Incarnations, Observed},
};

/// The state of one of them.
#[derive(Clone, Debug, Default, Hash)]
struct Peer {
    contact: Contact,
    committed: Slot,
    /// It has reported how far it has come since this replica started.
    has_reported: bool,
    lost_state: bool,
}

/// See the module.
#[derive(Hash)]
pub(super) struct Peers {
    peers: Vec<Peer>,
    incarnations: Incarnations,
    /// Those that are far slower than a majority, as the node finds.
    slow: ReplicaSet,
}

impl Peers {
    pub fn new(members: usize) -> Self {
        Self {
            peers: vec![Peer::default(); members],
            incarnations: Incarnations::new(members),
            slow: ReplicaSet::EMPTY,
        }
    }

    /// None counts as silent before now.
    pub fn start(&mut self, now: Time) {
        for peer in &mut self.peers {
            peer.contact.arriving(now);
        }
    }

    pub fn contact(&mut self, id: ReplicaId) -> &mut Contact {
        &mut self.peers[id.index()].contact
    }

    /// Whether it has neither been silent nor unreachable for as long as this.
    pub fn is_alive(&self, id: ReplicaId, now: Time, silence: Duration, down: Duration) -> bool {
        self.peers[id.index()].contact.is_alive(now, silence, down)
    }

    /// Whether it reports to be without its state, or further than this behind a slot: then it
    /// neither uses nor skips the slots that are needed next.
    pub fn is_useless(&self, id: ReplicaId, latest: Slot, behind_max: u64) -> bool {
        let peer = &self.peers[id.index()];
        peer.lost_state || peer.has_reported && peer.committed.0 + behind_max < latest.0
    }

    /// How many report that they have lost their state.
    pub fn lost(&self) -> usize {
        self.peers.iter().filter(|peer| peer.lost_state).count()
    }

    /// How far it has come, by its own reports.
    pub fn committed(&self, id: ReplicaId) -> Slot {
        self.peers[id.index()].committed
    }

    /// How far the one that is furthest behind has come.
    pub fn committed_by_all(&self, others: ReplicaSet) -> Option<Slot> {
        others.iter().map(|id| self.committed(id)).min()
    }

    /// Whether one has come further than this.
    pub fn are_ahead(&self, of: Slot) -> bool {
        self.peers.iter().any(|peer| peer.committed > of)
    }

    /// It reports on itself, in its newest incarnation. True when nothing came over its link before.
    pub fn on_report(&mut self, from: ReplicaId, said: &Said) -> bool {
        let peer = &mut self.peers[from.index()];
        peer.has_reported = true;
        peer.lost_state = said.state_lost;
        peer.committed = peer.committed.max(said.committed);
        peer.contact.is_first_word()
    }

    /// A message or a link shows this incarnation. One that was restarted has what it reports from
    /// now on.
    pub fn observe(&mut self, id: ReplicaId, incarnation: Incarnation) -> Observed {
        let observed = self.incarnations.observe(id, incarnation);
        if observed != Observed::Known {
            let peer = &mut self.peers[id.index()];
            peer.has_reported = false;
            peer.committed = Slot(0);
        }
        observed
    }

    pub fn incarnation(&self, id: ReplicaId) -> Incarnation {
        self.incarnations.of(id)
    }

    /// Those of all members, with that of this replica.
    pub fn incarnations(&self, own: ReplicaId, incarnation: Incarnation) -> Vec<Incarnation> {
        let of = |(id, known)| if id == own { incarnation } else { known };
        self.incarnations.iter().map(of).collect()
    }

    pub const fn slow(&self) -> ReplicaSet {
        self.slow
    }

    pub const fn set_slow(&mut self, slow: ReplicaSet) {
        self.slow = slow;
    }
}
