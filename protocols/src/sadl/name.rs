//! What batches are called, and what SADL's replicas say to each other.

use alloc::vec::Vec;
use quintet_replica::{Bytes, DecodeError, Incarnation, Reader, ReplicaId, Slot, Wire, Writer};

/// No chain or round comes near this; what claims to is refused, so that nothing overflows.
const NUMBER_MAX: u64 = 1 << 60;
/// No range is longer than this.
pub(super) const RANGE_MAX: u64 = 1 << 16;

fn number(reader: &mut Reader, what: &'static str) -> Result<u64, DecodeError> {
    match reader.u64(what)? {
        number if number <= NUMBER_MAX => Ok(number),
        _ => Err(DecodeError::Bad(what)),
    }
}

/// Names a batch, forever: a creator begins a chain of a higher number with every start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Who made it.
    pub creator: ReplicaId,
    /// In which of its chains.
    pub chain: u64,
    /// Its place there, from 1 on.
    pub round: u64,
}

impl Name {
    /// How many bytes it takes.
    pub const SIZE: usize = 2 + 8 + 8;
}

impl Wire for Name {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u16(self.creator.0);
        writer.u64(self.chain);
        writer.u64(self.round);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let name = Self {
            creator: reader.replica("batch creator")?,
            chain: reader.u64("batch chain")?,
            round: reader.u64("batch round")?,
        };
        if name.chain > NUMBER_MAX || name.round == 0 || name.round > NUMBER_MAX {
            return Err(DecodeError::Bad("batch name"));
        }
        Ok(name)
    }
}

/// How far a creator has come: all of this chain up to this round, and whatever was ordered of
/// its chains before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Head {
    /// The chain.
    pub chain: u64,
    /// The round; 0: none of it.
    pub round: u64,
}

impl Head {
    /// Whether this name is the next one: in this chain, or the first of a newer one.
    #[must_use]
    pub const fn leads_to(self, name: Name) -> bool {
        (name.chain == self.chain && name.round == self.round + 1)
            || (name.chain > self.chain && name.round == 1)
    }
}

/// A vector of heads, one per member: what the paper's getClientCommands gives.
pub type Heads = Vec<Head>;

/// Writes a vector of heads.
pub fn encode_heads(heads: &[Head], writer: &mut Writer<'_>) {
    writer.length(heads.len());
    for head in heads {
        writer.u64(head.chain);
        writer.u64(head.round);
    }
}

/// Reads what [`encode_heads`] wrote.
///
/// # Errors
/// When it is cut or longer than a cluster can be.
pub fn decode_heads(reader: &mut Reader) -> Result<Heads, DecodeError> {
    let members = reader.length(16, "heads")?;
    (0..reader.one_per_member(members, "heads")?)
        .map(|_| {
            Ok(Head {
                chain: number(reader, "head chain")?,
                round: number(reader, "head round")?,
            })
        })
        .collect()
}

/// Consecutive batches of one chain: what the ordering protocol orders instead of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The oldest of them.
    pub first: Name,
    /// The newest one's round.
    pub last: u64,
}

impl Range {
    /// How many bytes it takes.
    pub const SIZE: usize = Name::SIZE + 8;

    /// How many batches it names.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.last - self.first.round + 1
    }

    /// Their names, oldest first.
    pub fn names(self) -> impl Iterator<Item = Name> {
        (self.first.round..=self.last).map(move |round| Name {
            round,
            ..self.first
        })
    }

    /// Where the chain is behind them.
    #[must_use]
    pub const fn head(&self) -> Head {
        Head {
            chain: self.first.chain,
            round: self.last,
        }
    }
}

impl From<Name> for Range {
    fn from(first: Name) -> Self {
        let last = first.round;
        Self { first, last }
    }
}

impl Wire for Range {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.first.encode(writer);
        writer.u64(self.last);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let range = Self {
            first: Name::decode(reader)?,
            last: reader.u64("batch range")?,
        };
        if range.last < range.first.round || range.last - range.first.round >= RANGE_MAX {
            return Err(DecodeError::Bad("batch range"));
        }
        Ok(range)
    }
}

/// Writes a list of ranges.
pub fn encode_ranges(ranges: &[Range], writer: &mut Writer<'_>) {
    writer.length(ranges.len());
    for range in ranges {
        range.encode(writer);
    }
}

/// Reads what [`encode_ranges`] wrote.
///
/// # Errors
/// When it is cut, or names what cannot be.
pub fn decode_ranges(reader: &mut Reader) -> Result<Vec<Range>, DecodeError> {
    (0..reader.length(Range::SIZE, "batch ranges")?)
        .map(|_| Range::decode(reader))
        .collect()
}

/// What SADL's replicas say to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// My next batches, and how much of my chain is held by a quorum; without batches only that.
    New {
        /// The first of the batches; its creator is the sender.
        first: Name,
        /// The batches.
        batches: Vec<Bytes>,
        /// The last round that n-f hold.
        completed: u64,
        /// The creator's clock, to come back with a vote; 0: it does not look at that.
        stamp: u64,
    },
    /// I hold your chain up to this round, durably.
    Vote {
        /// The chain.
        chain: u64,
        /// The round.
        round: u64,
        /// The lives that the voter knows of, its own among them.
        lives: Vec<Incarnation>,
        /// The newest stamp of the creator's that the voter has seen.
        stamp: u64,
    },
    /// Do you have these?
    Fetch {
        /// Which.
        range: Range,
    },
    /// The first of those asked for.
    Found {
        /// The first one.
        first: Name,
        /// The batches.
        batches: Vec<Bytes>,
    },
    /// Those were executed here and are no longer kept: a state is needed.
    Trimmed {
        /// What was asked for.
        range: Range,
        /// The sender has executed everything up to here.
        slot: Slot,
    },
}

impl Message {
    /// Of batches that are shown: the last one's round and the bytes of all.
    #[must_use]
    pub fn extent(&self) -> (u64, usize) {
        match self {
            Self::New { first, batches, .. } | Self::Found { first, batches } => {
                let last = first.round + batches.len() as u64 - 1;
                (last, batches.iter().map(|batch| batch.len() + 4).sum())
            }
            Self::Vote { .. } | Self::Fetch { .. } | Self::Trimmed { .. } => (0, 0),
        }
    }
}

fn encode_batches(batches: &[Bytes], writer: &mut Writer<'_>) {
    writer.length(batches.len());
    for batch in batches {
        writer.blob(batch);
    }
}

fn decode_batches(reader: &mut Reader) -> Result<Vec<Bytes>, DecodeError> {
    (0..reader.length(4, "batches")?)
        .map(|_| reader.blob("batch"))
        .collect()
}

fn decode_lives(reader: &mut Reader) -> Result<Vec<Incarnation>, DecodeError> {
    let count = reader.length(8, "lives")?;
    (0..reader.one_per_member(count, "lives")?)
        .map(|_| reader.u64("life").map(Incarnation))
        .collect()
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::New {
                first,
                batches,
                completed,
                stamp,
            } => {
                writer.u8(0);
                first.encode(writer);
                encode_batches(batches, writer);
                writer.u64(*completed);
                writer.u64(*stamp);
            }
            Self::Vote {
                chain,
                round,
                lives,
                stamp,
            } => {
                writer.u8(1);
                writer.u64(*chain);
                writer.u64(*round);
                writer.length(lives.len());
                for life in lives {
                    writer.u64(life.0);
                }
                writer.u64(*stamp);
            }
            Self::Fetch { range } => {
                writer.u8(2);
                range.encode(writer);
            }
            Self::Found { first, batches } => {
                writer.u8(3);
                first.encode(writer);
                encode_batches(batches, writer);
            }
            Self::Trimmed { range, slot } => {
                writer.u8(4);
                range.encode(writer);
                writer.u64(slot.0);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("message kind")? {
            0 => Self::New {
                first: Name::decode(reader)?,
                batches: decode_batches(reader)?,
                completed: number(reader, "completed")?,
                stamp: reader.u64("stamp")?,
            },
            1 => Self::Vote {
                chain: number(reader, "chain")?,
                round: number(reader, "round")?,
                lives: decode_lives(reader)?,
                stamp: reader.u64("stamp")?,
            },
            2 => Self::Fetch {
                range: Range::decode(reader)?,
            },
            3 => Self::Found {
                first: Name::decode(reader)?,
                batches: decode_batches(reader)?,
            },
            4 => Self::Trimmed {
                range: Range::decode(reader)?,
                slot: Slot(number(reader, "slot")?),
            },
            _ => return Err(DecodeError::Bad("message kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn every_message_is_read_as_it_was_written_and_cut_one_is_refused() {
        let first = Name {
            creator: ReplicaId(2),
            chain: 3,
            round: 4,
        };
        let range = Range { first, last: 9 };
        let messages = [
            Message::New {
                first,
                batches: vec![Bytes::from_static(b"one"), Bytes::new()],
                completed: 3,
                stamp: 11,
            },
            Message::Vote {
                chain: 3,
                round: 5,
                lives: vec![Incarnation(1), Incarnation(4)],
                stamp: 12,
            },
            Message::Fetch { range },
            Message::Found {
                first,
                batches: vec![Bytes::from_static(b"two")],
            },
            Message::Trimmed {
                range,
                slot: Slot(6),
            },
        ];
        for message in messages {
            let bytes = message.encode_to_bytes();
            assert_eq!(Message::decode_all(bytes.clone()), Ok(message));
            for cut in 0..bytes.len() {
                assert!(Message::decode_all(bytes.slice(..cut)).is_err());
            }
        }
        let backwards = Range { first, last: 3 };
        assert!(Range::decode_all(backwards.encode_to_bytes()).is_err());
        assert_eq!(range.names().count() as u64, range.count());
    }

    #[test]
    fn next_batch_is_that_of_the_chain_or_the_first_of_a_newer_one() {
        let leads = |chain, round| {
            let creator = ReplicaId(2);
            let name = Name {
                creator,
                chain,
                round,
            };
            Head { chain: 3, round: 4 }.leads_to(name)
        };
        assert!(leads(3, 5) && leads(4, 1) && leads(6, 1));
        assert!(!leads(3, 4), "again");
        assert!(!leads(3, 6), "one between is missing");
        assert!(!leads(4, 2), "its first is missing");
        assert!(!leads(2, 5) && !leads(2, 1), "that chain is over");
    }
}
