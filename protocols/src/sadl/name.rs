//! The names of batches, and the messages of SADL's replicas.

use alloc::vec::Vec;
use quintet_replica::{Bytes, Incarnation, PerMember, ReplicaId, Slot, UpTo, wire};

/// No chain or round comes near this; what claims to is refused, so that nothing overflows.
const NUMBER_MAX: u64 = 1 << 60;
/// No range is longer than this.
pub(super) const RANGE_MAX: u64 = 1 << 16;

/// A chain or round on the wire.
type Small = UpTo<NUMBER_MAX>;

/// Names a batch, forever: a creator begins a chain of a higher number with every start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Its creator.
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

wire! {
    struct Name [Self::SIZE] { creator, chain as Small, round as Small } where has_round
}

const fn has_round(name: &Name) -> bool {
    name.round > 0
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

wire! { struct Head [16] { chain as Small, round as Small } }

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

wire! { struct Range [Self::SIZE] { first, last } where is_range }

const fn is_range(range: &Range) -> bool {
    range.last >= range.first.round && range.last - range.first.round < RANGE_MAX
}

/// The messages between SADL's replicas.
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
        /// The incarnations that the voter knows, its own among them.
        incarnations: Vec<Incarnation>,
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
        /// The requested range.
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

wire! {
    enum Message {
        0 = New { first, batches, completed as Small, stamp },
        1 = Vote { chain as Small, round as Small, incarnations as PerMember, stamp },
        2 = Fetch { range },
        3 = Found { first, batches },
        4 = Trimmed { range, slot },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use quintet_replica::Wire;

    #[test]
    fn encodings_stay_as_they_are() {
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
                incarnations: vec![Incarnation(1), Incarnation(4)],
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
        let mut encodings = crate::group::Encodings::default();
        messages.iter().for_each(|message| encodings.check(message));
        assert_eq!(
            encodings.hash(),
            310_111_551_380_406_950_546_053_919_923_809_546_331
        );
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
