//! How slots are dealt out to the members in turn.

use quintet_replica::{ReplicaId, Slot};

/// See the module.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Turns {
    members: u64,
}

impl Turns {
    pub const fn new(members: usize) -> Self {
        let members = members as u64;
        Self { members }
    }

    /// The slot that lies this number of turns behind another.
    pub const fn ahead(self, slot: Slot, turns: u64) -> Slot {
        Slot(slot.0 + turns * self.members)
    }

    /// The member that a slot belongs to.
    pub fn owner(self, slot: Slot) -> ReplicaId {
        ReplicaId(((slot.0.max(1) - 1) % self.members) as u16)
    }

    /// The first slot of `owner` above `after`.
    pub fn slot_of(self, owner: ReplicaId, after: Slot) -> Slot {
        let first = 1 + u64::from(owner.0);
        let turns = (after.0 + 1).saturating_sub(first).div_ceil(self.members);
        self.ahead(Slot(first), turns)
    }

    /// The slots of `owner` from the first to the last one.
    pub fn slots(self, owner: ReplicaId, first: Slot, last: Slot) -> impl Iterator<Item = Slot> {
        let start = self.slot_of(owner, first.previous());
        let next = move |slot: &Slot| Some(self.ahead(*slot, 1));
        core::iter::successors(Some(start), next).take_while(move |slot| *slot <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn slots_are_dealt_out_in_turn() {
        let turns = Turns::new(3);
        let owners: Vec<u16> = (1..=6).map(|slot| turns.owner(Slot(slot)).0).collect();
        assert_eq!(owners, [0, 1, 2, 0, 1, 2]);
        assert_eq!(turns.slot_of(ReplicaId(1), Slot(0)), Slot(2));
        assert_eq!(turns.slot_of(ReplicaId(1), Slot(2)), Slot(5));
        let slots: Vec<Slot> = turns.slots(ReplicaId(2), Slot(3), Slot(9)).collect();
        assert_eq!(slots, [Slot(3), Slot(6), Slot(9)]);
    }
}
