//! The identities that stand in every message, record and position.
//!
//! Each is a type of its own, so that a slot cannot be taken for a position nor an epoch for a
//! view. Numbers are dense and small; all of them are written little-endian on the wire.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A replica: the index of its place among an epoch's members, from 0.
    ReplicaId(u16), "r"
);
number!(
    /// One incarnation of a replica as the protocol counts it: a restart that has lost its state
    /// acknowledged entries comes back under a higher incarnation, and what it said before no
    /// longer counts.
    Incarnation(u64), "i"
);
number!(
    /// One run of the replica's process. Tells links apart, has no meaning for quorums.
    Boot(u64), "boot"
);
number!(
    /// A replication group inside a cluster. A cluster without groups is the one group 0.
    GroupId(u32), "g"
);
number!(
    /// The place of a group among those of a process, from 0: no look-up is needed for it.
    GroupIndex(u16), "group "
);
number!(
    /// The number of an epoch: one protocol with one set of members.
    EpochNumber(u64), "e"
);
number!(
    /// A place in the executed order, dense from 1; 0 is "nothing executed". Assigned by the
    /// executor alone.
    Position(u64), "p"
);
number!(
    /// A protocol's own log index. Slots may be skipped or hold nothing to execute.
    Slot(u64), "s"
);
number!(
    /// The number of a write handed to the journal; completes in order.
    PersistId(u64), "w"
);
number!(
    /// The client's half of a protocol: the address a reply goes to. Unique per process run.
    FrontendId(u64), "f"
);
number!(
    /// A batch of requests as its frontend numbers it, ascending.
    BatchId(u64), "b"
);

/// A cluster's identity, drawn once when it is made. Stands in every file and every hello.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

impl Slot {
    /// The slot after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The slot before this one; slot 0 has none and stays.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl Position {
    /// The position after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl ReplicaId {
    /// As an index into a slice with one element per member.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl GroupIndex {
    /// The group of this place.
    ///
    /// # Panics
    /// When it is above the 65,536 groups that a process may have.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(u16::try_from(index).expect("a process has few groups"))
    }

    /// As an index into a slice with one element per group.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// A replica of this group.
    Replica(ReplicaId),
    /// A frontend: requests are messages of the protocol too.
    Frontend(FrontendId),
}

/// A set of replicas, at most 128 of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReplicaSet(pub u128);

impl ReplicaSet {
    /// The most members that a set, and so a group, can have.
    pub const MEMBERS_MAX: usize = 128;
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// All of `replicas` members.
    ///
    /// # Panics
    /// When `replicas` is above [`Self::MEMBERS_MAX`].
    #[must_use]
    pub const fn all(replicas: usize) -> Self {
        assert!(replicas <= Self::MEMBERS_MAX);
        if replicas == Self::MEMBERS_MAX {
            Self(u128::MAX)
        } else {
            Self((1 << replicas) - 1)
        }
    }

    /// The set with one more member. Adding a member twice changes nothing.
    #[must_use]
    pub const fn with(self, id: ReplicaId) -> Self {
        Self(self.0 | (1 << id.0))
    }

    /// The set without that member.
    #[must_use]
    pub const fn without(self, id: ReplicaId) -> Self {
        Self(self.0 & !(1 << id.0))
    }

    /// Adds a member; false when it was there already.
    pub const fn insert(&mut self, id: ReplicaId) -> bool {
        let new = !self.contains(id);
        self.0 |= 1 << id.0;
        new
    }

    /// Whether the member is in the set.
    #[must_use]
    pub const fn contains(self, id: ReplicaId) -> bool {
        (id.0 as usize) < Self::MEMBERS_MAX && self.0 & (1 << id.0) != 0
    }

    /// How many members the set has.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set has no member.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members in ascending order.
    pub fn iter(self) -> impl Iterator<Item = ReplicaId> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let id = rest.trailing_zeros();
            rest &= rest - 1;
            Some(ReplicaId(id as u16))
        })
    }
}

impl FromIterator<ReplicaId> for ReplicaSet {
    fn from_iter<I: IntoIterator<Item = ReplicaId>>(ids: I) -> Self {
        ids.into_iter().fold(Self::EMPTY, Self::with)
    }
}
