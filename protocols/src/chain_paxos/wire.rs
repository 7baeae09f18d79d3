//! What is written to disk.
//!
//! ```text
//!   journal: Record, Record, Record …      promise file: Promised      snapshot: Summary
//! ```

use super::{
    chain::Chain,
    entry::{Entry, get_entry, put_entry},
};
use quintet_replica::{
    CommandTime, DecodeError, Reader, Slot, Wire, Writer,
    parts::{Ballot, Decisions},
};

/// What the journal keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry was accepted for the record's slot.
    Entry {
        /// The ballot that it was accepted under.
        ballot: Ballot,
        /// All slots up to here were known to be decided when this was written.
        committed: Slot,
        /// What was accepted.
        entry: Entry,
    },
    /// Everything behind `from` up to the record's slot is decided, but not here: a state must be
    /// fetched. What was accepted there before no longer counts.
    Skip {
        /// The last slot that is here.
        from: Slot,
        /// The chain as decided at the record's slot.
        chain: Chain,
    },
}

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Entry {
                ballot,
                committed,
                entry,
            } => {
                writer.u8(0);
                ballot.encode(writer);
                writer.u64(committed.0);
                put_entry(writer, entry);
            }
            Self::Skip { from, chain } => {
                writer.u8(1);
                writer.u64(from.0);
                chain.encode(writer);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("kind of record")? {
            0 => Self::Entry {
                ballot: Ballot::decode(reader)?,
                committed: reader.slot("committed slot")?,
                entry: get_entry(reader)?,
            },
            1 => Self::Skip {
                from: reader.slot("from slot")?,
                chain: Chain::decode(reader)?,
            },
            _ => return Err(DecodeError::Bad("kind of record")),
        })
    }
}

/// What must survive a crash in every durability: the highest ballot promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised(pub Ballot);

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.0.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ballot::decode(reader).map(Self)
    }
}

/// What a snapshot carries for the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The time of the last command that the snapshot covers.
    pub time: CommandTime,
    /// The chain as executed there.
    pub chain: Chain,
    /// Which ballots decided how much; earlier versions say nothing of it.
    pub decisions: Decisions,
}

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.time.0);
        self.chain.encode(writer);
        if !self.decisions.is_empty() {
            self.decisions.encode(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            time: CommandTime(reader.u64("summary time")?),
            chain: Chain::decode(reader)?,
            decisions: match reader.remaining() {
                0 => Decisions::default(),
                _ => Decisions::decode(reader)?,
            },
        })
    }
}
