//! Messages already sent to the next replica in the chain, and to the leader.

use super::{Agreement, Entry, chain::Next, votes::Votes};
use alloc::vec::Vec;
use quintet_replica::{ReplicaId, Slot};

#[derive(Default, Hash)]
struct Acked {
    held: Slot,
    votes: Votes,
    round: u64,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Downstream {
    to: Option<Next>,
    /// The next entry to send; for the tail, the one after what it last acknowledged.
    next: Slot,
    /// The votes sent to the next one.
    votes: Votes,
    agreed: Slot,
    round: u64,
    /// The acknowledgements sent to the leader.
    acked: Acked,
    /// Reused from message to message.
    scratch: Vec<Entry>,
}

impl Downstream {
    pub const fn to(&self) -> Option<Next> {
        self.to
    }

    pub const fn next(&self) -> Slot {
        self.next
    }

    /// Entries from this one on are sent.
    pub const fn continue_at(&mut self, slot: Slot) {
        self.next = slot;
    }

    /// Another replica is next, which is known to have nothing from `next` on.
    pub fn link(&mut self, to: Option<Next>, next: Slot, members: usize) {
        self.to = to;
        self.next = next;
        self.forget_sent(members);
    }

    /// A new ballot, or a new link: it is not known what the next one has been sent.
    pub const fn unlink(&mut self) {
        self.to = None;
    }

    /// Messages besides entries may be lost.
    pub fn forget_sent(&mut self, members: usize) {
        self.votes = Votes::new(members);
        self.agreed = Slot(0);
        self.round = 0;
        self.acked = Acked {
            held: Slot(0),
            votes: Votes::new(members),
            round: 0,
        };
    }

    /// The votes that the next replica can already count for itself.
    fn known_there(&self, next: ReplicaId, here: &Agreement, majority: usize) -> Slot {
        let mut votes = self.votes.clone();
        votes.raise(next, here.votes().0[next.index()]);
        votes.reached(majority)
    }

    /// Whether there is anything that the next replica should receive now although no entry goes to
    /// it: a round, votes from before it, or a decision that it cannot count for itself.
    pub fn has_news(
        &self,
        next: ReplicaId,
        here: &Agreement,
        upstream: &[ReplicaId],
        majority: usize,
    ) -> bool {
        let news = |id: &ReplicaId| here.votes().of(*id) > self.votes.of(*id);
        here.round().number > self.round
            || upstream.iter().any(news)
            || here.agreed() > self.agreed && here.agreed() > self.known_there(next, here, majority)
    }

    /// The next replica has been sent all of this.
    pub fn sent(&mut self, here: &Agreement) {
        self.votes.merge(here.votes());
        self.agreed = here.agreed();
        self.round = here.round().number;
    }

    /// Whether there is anything that the leader has not been sent. It knows its own votes.
    pub fn has_news_for(&self, leader: ReplicaId, here: &Agreement, held: Slot) -> bool {
        let sent = here.votes().0.iter().zip(&self.acked.votes.0).enumerate();
        let mut others = sent.filter(|(id, _)| *id != leader.index());
        here.round().number > self.acked.round
            || others.any(|(_, (now, sent))| now != sent)
            || held > self.acked.held
    }

    /// The leader has been sent all of this.
    pub fn acked(&mut self, here: &Agreement, held: Slot) {
        self.acked = Acked {
            held,
            votes: here.votes().clone(),
            round: here.round().number,
        };
    }

    /// An empty list that was used before.
    pub fn take_scratch(&mut self) -> Vec<Entry> {
        core::mem::take(&mut self.scratch)
    }

    /// Keeps a list for the next message.
    pub fn give_scratch(&mut self, mut entries: Vec<Entry>) {
        entries.clear();
        self.scratch = entries;
    }
}
