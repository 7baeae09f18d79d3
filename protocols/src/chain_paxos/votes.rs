//! Votes: how far each acceptor has come under one ballot.
//!
//! ```text
//!   Accept ──► r0: 9   r1: 9   r2: 7   r3: 5   r4: 0       each: all entries up to here
//!                       └───────┴─ with a quorum of 3, all up to 7 is decided
//! ```
//!
//! The paper counts acceptors per instance (`n_accepts`). Counting per acceptor instead says the
//! same, because a replica accepts a ballot's entries without gaps; it merges by taking the larger
//! number, however often and by whichever way a message comes; and a vote may follow its entry, so
//! that an entry travels on while the disk is still writing it. Nothing here forgets *whose* vote
//! it was, so the same replica is never counted twice.

use quintet_replica::{
    Codec, DecodeError, Incarnation, PerMember, Reader, ReplicaId, Slot, Wire, Writer, wire,
};
use smallvec::SmallVec;

/// One acceptor's vote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The incarnation in which it voted.
    pub incarnation: Incarnation,
    /// It has accepted all entries up to here under the ballot, or knows them to be decided.
    pub upto: Slot,
}

/// The votes of all members of the epoch, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Votes(pub SmallVec<[Vote; 8]>);

impl Votes {
    pub(super) fn new(members: usize) -> Self {
        Self(SmallVec::from_elem(Vote::default(), members))
    }

    pub(super) fn of(&self, id: ReplicaId) -> Slot {
        self.0[id.index()].upto
    }

    /// Takes a vote into account. A vote of an earlier incarnation counts nothing (a later
    /// incarnation has lost it); a vote of a later incarnation replaces the earlier one.
    pub(super) fn raise(&mut self, id: ReplicaId, vote: Vote) -> bool {
        let known = &mut self.0[id.index()];
        let newer = vote.incarnation > known.incarnation
            || (vote.incarnation == known.incarnation && vote.upto > known.upto);
        if newer {
            *known = vote;
        }
        newer
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (id, vote) in other.0.iter().enumerate() {
            self.raise(ReplicaId(id as u16), *vote);
        }
    }

    /// The slot up to which at least `quorum` acceptors have voted.
    pub(super) fn reached(&self, quorum: usize) -> Slot {
        let mut slots: SmallVec<[Slot; 8]> = self.0.iter().map(|vote| vote.upto).collect();
        slots.sort_unstable_by(|a, b| b.cmp(a));
        slots
            .get(quorum.wrapping_sub(1))
            .copied()
            .unwrap_or_default()
    }
}

wire! { struct Vote { incarnation, upto } }

impl Wire for Votes {
    fn encode(&self, writer: &mut Writer<'_>) {
        <PerMember>::put(&self.0, writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        <PerMember>::get(reader, "votes").map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(incarnation: u64, upto: u64) -> Vote {
        Vote {
            incarnation: Incarnation(incarnation),
            upto: Slot(upto),
        }
    }

    #[test]
    fn quorum_is_counted_by_distinct_acceptors() {
        let mut votes = Votes::new(5);
        assert_eq!(votes.reached(3), Slot(0));
        for (id, upto) in [(0, 9), (1, 9), (2, 7), (1, 9), (0, 8)] {
            votes.raise(ReplicaId(id), vote(1, upto));
        }
        assert_eq!((votes.reached(1), votes.reached(3)), (Slot(9), Slot(7)));
        assert_eq!(votes.reached(4), Slot(0));
    }

    #[test]
    fn later_incarnation_takes_back_what_an_earlier_one_said() {
        let mut votes = Votes::new(3);
        votes.raise(ReplicaId(1), vote(1, 9));
        assert!(votes.raise(ReplicaId(1), vote(2, 4)));
        assert!(!votes.raise(ReplicaId(1), vote(1, 12)));
        assert_eq!(votes.of(ReplicaId(1)), Slot(4));
    }
}
