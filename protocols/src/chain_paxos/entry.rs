//! The entries of the log, and their encoding in messages and records.

use quintet_replica::{
    Bytes, CommandTime, DecodeError, Incarnation, Reader, ReplicaId, Slot, Writer,
    parts::{Ballot, Held, LogEntry},
};

/// What an instance of the log decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A batch as its frontend encoded it.
    Batch(Bytes),
    /// Nothing: a gap that a new leader found.
    Nothing,
    /// The paper's AddNode: a replica comes into the chain, behind another.
    Add {
        /// Who.
        id: ReplicaId,
        /// In which of its lives.
        life: Incarnation,
        /// Whose successor it becomes; at the end when that one is gone by then.
        after: ReplicaId,
    },
    /// The paper's RemoveNode.
    Remove {
        /// Who.
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
    /// What it does.
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

/// What an acceptor holds for one slot, as it tells a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// Which slot.
    pub slot: Slot,
    /// The ballot that it was accepted under.
    pub ballot: Ballot,
    /// What was accepted.
    pub entry: Entry,
}

impl Accepted {
    pub(super) fn new(slot: Slot, held: Held<Entry>) -> Self {
        Self {
            slot,
            ballot: held.ballot,
            entry: held.entry,
        }
    }

    pub(super) fn into_held(self) -> (Slot, Held<Entry>) {
        let held = Held {
            ballot: self.ballot,
            entry: self.entry,
        };
        (self.slot, held)
    }
}

pub(super) fn put_entry(writer: &mut Writer<'_>, entry: &Entry) {
    writer.u64(entry.time.0);
    match &entry.op {
        Op::Batch(batch) => {
            writer.u8(0);
            writer.blob(batch);
        }
        Op::Nothing => writer.u8(1),
        Op::Add { id, life, after } => {
            writer.u8(2);
            writer.u16(id.0);
            writer.u64(life.0);
            writer.u16(after.0);
        }
        Op::Remove { id } => {
            writer.u8(3);
            writer.u16(id.0);
        }
        Op::Read { by, stamp } => {
            writer.u8(4);
            writer.u16(by.0);
            writer.u64(*stamp);
        }
    }
}

pub(super) fn get_entry(reader: &mut Reader) -> Result<Entry, DecodeError> {
    let time = CommandTime(reader.u64("command time")?);
    let op = match reader.u8("kind of entry")? {
        0 => Op::Batch(reader.blob("batch")?),
        1 => Op::Nothing,
        2 => Op::Add {
            id: reader.replica("replica")?,
            life: Incarnation(reader.u64("life")?),
            after: reader.replica("replica")?,
        },
        3 => Op::Remove {
            id: reader.replica("replica")?,
        },
        4 => Op::Read {
            by: reader.replica("replica")?,
            stamp: reader.u64("stamp")?,
        },
        _ => return Err(DecodeError::Bad("kind of entry")),
    };
    Ok(Entry { time, op })
}
