//! The ballots of an acceptor: the promised one, and the writes of it that are not durable yet.
//!
//! ```text
//!   raise(b) ─► persist ─► written(id) ─► …fsync… ─► durable_up_to(id) ─► replies that waited
//! ```

use super::Ballot;
use crate::{PersistId, ReplicaId, Slot};
use alloc::collections::VecDeque;

/// See the module.
#[derive(Debug, Hash)]
pub struct Ballots {
    first: Ballot,
    promised: Ballot,
    durable: Ballot,
    writes: VecDeque<(PersistId, Ballot)>,
    seen: Ballot,
    reply: Option<(ReplicaId, Slot)>,
}

impl Ballots {
    /// Nothing is promised. The first leader owns `first` without phase 1: no lower ballot exists.
    #[must_use]
    pub const fn new(first: Ballot) -> Self {
        let none = Ballot {
            round: 0,
            owner: ReplicaId(0),
        };
        Self {
            first,
            promised: none,
            durable: none,
            writes: VecDeque::new(),
            seen: first,
            reply: None,
        }
    }

    /// The ballot that the first leader owns without phase 1.
    #[must_use]
    pub const fn first(&self) -> Ballot {
        self.first
    }

    /// The highest ballot that is promised here.
    #[must_use]
    pub const fn promised(&self) -> Ballot {
        self.promised
    }

    /// The highest ballot whose promise is durable.
    #[must_use]
    pub const fn durable(&self) -> Ballot {
        self.durable
    }

    /// Whether the promise is on disk.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.durable == self.promised
    }

    /// The smallest ballot of `own` above all that are known.
    #[must_use]
    pub fn next(&self, own: ReplicaId) -> Ballot {
        self.seen.max(self.promised).next(own)
    }

    /// Another member has promised this ballot.
    pub fn observe(&mut self, ballot: Ballot) {
        self.seen = self.seen.max(ballot);
    }

    /// Promises a ballot. The caller writes it, and then calls [`Self::written`].
    ///
    /// # Panics
    /// When the ballot is not above the promised one.
    pub fn raise(&mut self, ballot: Ballot) {
        assert!(ballot > self.promised, "promises only rise");
        self.promised = ballot;
        self.observe(ballot);
        self.reply = None;
    }

    /// The promise is being written.
    pub fn written(&mut self, id: PersistId) {
        self.writes.push_back((id, self.promised));
    }

    /// Counts the promise as durable before it is; for injected bugs.
    pub const fn assume_durable(&mut self) {
        self.durable = self.promised;
    }

    /// The next write that is durable when all up to `upto` are; true when it is that of the
    /// promised ballot. None when there is no further one.
    pub fn durable_up_to(&mut self, upto: PersistId) -> Option<bool> {
        let (_, ballot) = *self.writes.front().filter(|(id, _)| *id <= upto)?;
        self.writes.pop_front();
        self.durable = ballot;
        Some(ballot == self.promised)
    }

    /// A candidate waits for the promise of all slots from this one on.
    pub const fn owe(&mut self, to: ReplicaId, from: Slot) {
        self.reply = Some((to, from));
    }

    /// The candidate that waits for the promise, if one does.
    pub const fn take_owed(&mut self) -> Option<(ReplicaId, Slot)> {
        self.reply.take()
    }

    /// A record in the journal shows that this ballot was promised.
    pub fn restore(&mut self, ballot: Ballot) {
        self.promised = self.promised.max(ballot);
    }

    /// The journal is read.
    pub fn restored(&mut self) {
        self.durable = self.promised;
        self.observe(self.promised);
    }

    /// Checks what always holds.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_invariants(&self) {
        assert!(self.durable <= self.promised, "promises only rise");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(round: u64, owner: u16) -> Ballot {
        Ballot {
            round,
            owner: ReplicaId(owner),
        }
    }

    #[test]
    fn promise_is_durable_with_its_own_write_only() {
        let mut ballots = Ballots::new(ballot(1, 0));
        ballots.raise(ballot(2, 1));
        ballots.written(PersistId(1));
        ballots.owe(ReplicaId(1), Slot(3));
        ballots.raise(ballot(4, 2));
        ballots.written(PersistId(2));
        assert_eq!(ballots.take_owed(), None, "the higher promise voids it");
        assert_eq!(ballots.durable_up_to(PersistId(1)), Some(false));
        assert!(!ballots.is_durable());
        assert_eq!(ballots.durable_up_to(PersistId(1)), None);
        assert_eq!(ballots.durable_up_to(PersistId(9)), Some(true));
        assert!(ballots.is_durable());
    }

    #[test]
    fn next_ballot_is_above_all_that_are_known() {
        let mut ballots = Ballots::new(ballot(1, 0));
        ballots.observe(ballot(7, 2));
        ballots.restore(ballot(3, 1));
        assert_eq!(ballots.next(ReplicaId(0)), ballot(8, 0));
    }
}
