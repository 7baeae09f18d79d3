//! The records on disk.
//!
//! ```text
//!   journal: Record, Record, Record …      promise file: Promised      snapshot: Summary
//! ```

use super::{chain::Chain, entry::Entry};
use quintet_replica::{
    CommandTime, DecodeError, Reader, Slot, Trailing, Wire, Writer,
    parts::{Ballot, Decisions},
    wire,
};

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry was accepted for the record's slot.
    Entry {
        /// The ballot that it was accepted under.
        ballot: Ballot,
        /// All slots up to here were known to be decided when this was written.
        committed: Slot,
        /// The accepted entry.
        entry: Entry,
    },
    /// Everything behind `from` up to the record's slot is decided, but not here: a state must be
    /// fetched. Entries accepted there before no longer count.
    Skip {
        /// The last slot that is here.
        from: Slot,
        /// The chain as decided at the record's slot.
        chain: Chain,
    },
}

wire! {
    enum Record {
        0 = Entry { ballot, committed, entry },
        1 = Skip { from, chain },
    }
}

/// State that must survive a crash in every durability: the highest ballot promised.
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

/// The protocol's part of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The time of the last command that the snapshot covers.
    pub time: CommandTime,
    /// The chain as executed there.
    pub chain: Chain,
    /// Which ballots decided how much; earlier versions say nothing of it.
    pub decisions: Decisions,
}

wire! { struct Summary { time, chain, decisions as Trailing } }
