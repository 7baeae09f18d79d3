//! The entries of the log, and their encoding in messages and records.

use quintet_replica::{Bytes, CommandTime, Incarnation, ReplicaId, parts::LogEntry, wire};

/// The decision of an instance of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A batch as its frontend encoded it.
    Batch(Bytes),
    /// Nothing: a gap that a new leader found.
    Nothing,
    /// The paper's AddNode: a replica comes into the chain, behind another.
    Add {
        /// The replica.
        id: ReplicaId,
        /// In which of its incarnations.
        incarnation: Incarnation,
        /// Whose successor it becomes; at the end when that one is gone by then.
        after: ReplicaId,
    },
    /// The paper's RemoveNode.
    Remove {
        /// The replica.
        id: ReplicaId,
    },
    /// Reads of one replica, up to its number, may run when this has been executed there.
    Read {
        /// Whose reads.
        by: ReplicaId,
        /// Which.
        stamp: u64,
    },
}

impl Op {
    /// About what it takes besides its fixed fields.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.len(),
            _ => 0,
        }
    }

    /// Whether it changes the chain.
    pub(super) const fn is_membership(&self) -> bool {
        matches!(self, Self::Add { .. } | Self::Remove { .. })
    }
}

/// A value proposed for a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The time given to its commands.
    pub time: CommandTime,
    /// Its operation.
    pub op: Op,
}

impl LogEntry for Entry {
    fn time(&self) -> CommandTime {
        self.time
    }

    fn bytes(&self) -> usize {
        self.op.bytes()
    }
}

wire! {
    enum Op {
        0 = Batch(batch),
        1 = Nothing,
        2 = Add { id, incarnation, after },
        3 = Remove { id },
        4 = Read { by, stamp },
    }
}
wire! { struct Entry [9] { time, op } }
