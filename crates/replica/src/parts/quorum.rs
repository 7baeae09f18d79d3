//! Ballots and votes.

use crate::{Number, ReplicaId, ReplicaSet};

/// A ballot: a round and the replica that owns it, ordered by round first. Two replicas never own
/// the same ballot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// The round, from 1; 0 is "none yet".
    pub round: u64,
    /// Its owner.
    pub owner: ReplicaId,
}

impl Ballot {
    /// The smallest ballot of `owner` that is above this one.
    #[must_use]
    pub const fn next(self, owner: ReplicaId) -> Self {
        Self {
            round: self.round + 1,
            owner,
        }
    }
}

impl core::fmt::Display for Ballot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.round, self.owner.0)
    }
}

crate::wire! { struct Ballot [10] { round as Number, owner } }

/// Counts votes of distinct replicas towards a quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tally {
    votes: ReplicaSet,
}

impl Tally {
    /// No votes yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            votes: ReplicaSet::EMPTY,
        }
    }

    /// Counts a vote; a second one of the same replica counts nothing. True when it was new.
    pub const fn vote(&mut self, from: ReplicaId) -> bool {
        self.votes.insert(from)
    }

    /// Takes a vote back.
    pub const fn forget(&mut self, from: ReplicaId) {
        self.votes = self.votes.without(from);
    }

    /// Whether at least `quorum` replicas have voted.
    #[must_use]
    pub const fn reached(self, quorum: usize) -> bool {
        self.votes.len() >= quorum
    }

    /// The voters.
    #[must_use]
    pub const fn voters(self) -> ReplicaSet {
        self.votes
    }
}
