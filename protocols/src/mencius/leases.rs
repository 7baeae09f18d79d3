//! The promises of this replica: of each owner a ballot for its slots, and the own slots that it
//! may use.
//!
//! ```text
//!   raise, take, reserve ─► persist ─► written(id) ─► …fsync… ─► durable_up_to(id) ─► usable
//! ```

use super::{Promised, Range};
use alloc::{collections::VecDeque, vec, vec::Vec};
use quintet_replica::{PersistId, ReplicaId, Slot, parts::Ballot};

/// See the module.
#[derive(Debug, Hash)]
pub(super) struct Leases {
    promised: Promised,
    writes: VecDeque<(PersistId, Slot)>,
    reserved_durable: Slot,
    /// The highest ballot of each owner's slots that another member has promised.
    seen: Vec<Ballot>,
}

impl Leases {
    pub fn new(members: usize) -> Self {
        Self {
            promised: Promised {
                leases: vec![(Ballot::default(), Slot(0)); members],
                reserved: Slot(0),
            },
            writes: VecDeque::new(),
            reserved_durable: Slot(0),
            seen: vec![Ballot::default(); members],
        }
    }

    /// The journal has this.
    pub fn restore(&mut self, promised: Promised) {
        let leases = self.promised.leases.iter_mut().zip(promised.leases);
        leases.for_each(|(lease, known)| *lease = known);
        self.promised.reserved = promised.reserved;
        self.reserved_durable = promised.reserved;
    }

    pub const fn promised(&self) -> &Promised {
        &self.promised
    }

    /// The ballot of an owner's slots, and the last slot that it was promised for.
    pub fn of(&self, owner: ReplicaId) -> (Ballot, Slot) {
        self.promised.leases[owner.index()]
    }

    /// Whether the owner itself may not suggest in this slot any more.
    pub fn covers(&self, owner: ReplicaId, slot: Slot) -> bool {
        let (ballot, until) = self.of(owner);
        slot <= until && ballot.round > 0
    }

    /// Another member has promised this ballot.
    pub fn observe(&mut self, owner: ReplicaId, ballot: Ballot) {
        let seen = &mut self.seen[owner.index()];
        *seen = (*seen).max(ballot);
    }

    /// Promises a range of an owner's slots under a ballot of `own` above all that are known.
    pub fn raise(&mut self, owner: ReplicaId, own: ReplicaId, first: Slot, last: Slot) -> Range {
        let known = self.of(owner).0.max(self.seen[owner.index()]);
        let range = Range {
            owner,
            ballot: known.next(own),
            first,
            last,
        };
        self.take(range);
        range
    }

    /// Promises a range of an owner's slots under the ballot that it names.
    pub fn take(&mut self, range: Range) {
        let lease = &mut self.promised.leases[range.owner.index()];
        *lease = (range.ballot, lease.1.max(range.last));
    }

    pub const fn reserved(&self) -> Slot {
        self.promised.reserved
    }

    /// Own slots up to here are to be used.
    pub const fn reserve(&mut self, upto: Slot) {
        self.promised.reserved = upto;
    }

    /// Whether a restart would not use this own slot again.
    pub fn is_reserved(&self, own: Slot) -> bool {
        own <= self.reserved_durable
    }

    /// All of it is being written.
    pub fn written(&mut self, id: PersistId) {
        self.writes.push_back((id, self.promised.reserved));
    }

    /// All writes up to this one are durable.
    pub fn durable_up_to(&mut self, upto: PersistId) {
        while let Some((_, reserved)) = self.writes.front().filter(|(id, _)| *id <= upto) {
            self.reserved_durable = self.reserved_durable.max(*reserved);
            self.writes.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_ballot_is_above_all_known_ones() {
        let mut leases = Leases::new(3);
        let (owner, own) = (ReplicaId(1), ReplicaId(0));
        let high = Ballot::default().next(ReplicaId(2)).next(ReplicaId(2));
        leases.observe(owner, high);
        let range = leases.raise(owner, own, Slot(2), Slot(8));
        assert_eq!(range.ballot, high.next(own));
        assert!(leases.covers(owner, Slot(8)) && !leases.covers(owner, Slot(11)));
        assert!(!leases.covers(own, Slot(1)), "ballot 0 is the owner's");
    }

    #[test]
    fn own_slots_are_used_when_their_reservation_is_durable() {
        let mut leases = Leases::new(3);
        leases.reserve(Slot(30));
        leases.written(PersistId(4));
        leases.reserve(Slot(60));
        assert!(!leases.is_reserved(Slot(30)));
        leases.durable_up_to(PersistId(4));
        assert!(leases.is_reserved(Slot(30)) && !leases.is_reserved(Slot(31)));
    }
}
