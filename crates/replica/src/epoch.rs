//! An epoch: one protocol, one set of members. A cluster's history is a chain of epochs.

mod descriptor;
mod voters;

pub use descriptor::{
    Descriptor, DescriptorDifference, DescriptorError, FEATURE_LEVEL, Fingerprint, MemberRole,
    MemberRow, SEALS_LEVEL, SuccessorPrefix, Terms, VACANT_LEVEL, check_peer, list_differences,
    public_part,
};
pub use voters::Voters;

use crate::{ClusterId, EpochNumber, GroupId, Incarnation, ReplicaId, ReplicaSet};
use alloc::{string::String, vec::Vec};

/// The facts on which every member of an epoch agrees before it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Its number, from 1.
    pub number: EpochNumber,
    /// How many members vote; to its protocol they are `0..members`, see [`Voters`].
    pub members: usize,
    /// The protocol's options as `(name, value)`.
    pub options: Vec<(String, String)>,
    /// A secret that all members share; protocols derive common randomness from it.
    pub secret: [u8; 32],
    /// The first leader, in protocols that have a leader.
    pub leader_first: ReplicaId,
}

impl Epoch {
    /// All members.
    #[must_use]
    pub const fn all(&self) -> ReplicaSet {
        ReplicaSet::all(self.members)
    }

    /// All members but `id`.
    #[must_use]
    pub const fn others(&self, id: ReplicaId) -> ReplicaSet {
        self.all().without(id)
    }

    /// How many members make a majority.
    #[must_use]
    pub const fn majority(&self) -> usize {
        self.members / 2 + 1
    }

    /// A test build keeps the bugs that these options of an earlier epoch inject: a descriptor has
    /// every option but these.
    pub fn inject_bugs_of(&mut self, earlier: &[(String, String)]) {
        let bugs = earlier.iter().filter(|(name, _)| name == "bug");
        self.options.extend(bugs.cloned());
    }
}

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The entry is fsynced on a quorum.
    #[default]
    Disk,
    /// The entry is held in the memory of a quorum. Promises are fsynced all the same.
    Memory,
}

impl Durability {
    /// `disk` or `memory`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
        }
    }
}

impl core::str::FromStr for Durability {
    type Err = &'static str;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "disk" => Ok(Self::Disk),
            "memory" => Ok(Self::Memory),
            _ => Err("expected 'disk' or 'memory'"),
        }
    }
}

/// The setup of a replica.
#[derive(Clone, Debug)]
pub struct Setup<O> {
    /// Its rank among the voters.
    pub id: ReplicaId,
    /// Which of its incarnations this is.
    pub incarnation: Incarnation,
    /// The group that it serves.
    pub group: GroupId,
    /// The epoch that it serves in.
    pub epoch: Epoch,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// The protocol's options, checked.
    pub options: O,
    /// Seeds the replica's own random source; different on every replica and boot.
    pub seed: u64,
}
