//! The messages of Mencius and its records on disk.
//!
//! ```text
//!   frontend ── Request ──► replica          frontend ◄── Taken ── replica
//!   replica ─── Said ─────► all, or an owner: SUGGEST, votes, LEARN, SKIP, heartbeat
//!   replica ─── Prepare, Accept, Learn ──► all ── Promise, Voted, Refused ──► it   (revocation)
//!   replica ─── Fetch ────► a peer ── Known, Trimmed ──► replica
//!   restarted ─ Recover ──► all ── RecoverOk ──► it
//!   slow ────── Forward, ReadAsk ──► one that is not ── ReadAt ──► it
//! ```

use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Codec, CommandTime, DecodeError, Each, Field, Incarnation, PerMember, Plain, Reader,
    ReplicaId, Slot, Wire, Writer,
    parts::{Ballot, Receipt, Request},
    request_message, wire,
};

/// More than a message takes besides its values, with this number of members.
pub(super) const fn overhead(members: usize) -> usize {
    256 + 8 * members + 16 * 1024
}

/// The value of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nothing.
    Noop,
    /// A batch of requests.
    Command {
        /// The time given to it.
        time: CommandTime,
        /// As its frontend encoded it.
        batch: Bytes,
    },
}

impl Value {
    /// Its approximate size in memory and on the wire.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Noop => 9,
            Self::Command { batch, .. } => 32 + batch.len(),
        }
    }
}

/// All that a replica has to say at the end of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Said {
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The incarnations that it knows of all members: a vote of an earlier incarnation counts no
    /// more.
    pub incarnations: Vec<Incarnation>,
    /// It has lost what it voted for, and does not take part.
    pub state_lost: bool,
    /// The highest slot that anybody is known to have suggested.
    pub latest: Slot,
    /// All slots up to here are decided.
    pub committed: Slot,
    /// Its own slots of this range, both ends included, hold nothing (SKIP).
    pub skip: Option<(Slot, Slot)>,
    /// Suggestions for its own slots (SUGGEST).
    pub entries: Vec<(Slot, Value)>,
    /// Slots of the receivers that it accepted, durably (ACCEPT's answer).
    pub votes: Vec<Slot>,
    /// Its own slots that a majority accepted (LEARN).
    pub learnt: Vec<Slot>,
}

impl Said {
    /// Whether it says nothing of any slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.votes.is_empty() && !self.concerns_all()
    }

    /// Whether it says something to others than the owners of the slots voted for.
    #[must_use]
    pub const fn concerns_all(&self) -> bool {
        self.skip.is_some() || !self.entries.is_empty() || !self.learnt.is_empty()
    }

    /// Takes away what is more than `most` suggestions, votes or decisions, for a message of its
    /// own.
    pub fn split_off(&mut self, most: usize) -> Option<Self> {
        let rest = Self {
            skip: None,
            entries: self.entries.split_off(most.min(self.entries.len())),
            votes: self.votes.split_off(most.min(self.votes.len())),
            learnt: self.learnt.split_off(most.min(self.learnt.len())),
            incarnations: self.incarnations.clone(),
            ..*self
        };
        (!rest.is_empty()).then_some(rest)
    }
}

/// Slots of one owner, both ends included, in a ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// Whose slots.
    pub owner: ReplicaId,
    /// The ballot.
    pub ballot: Ballot,
    /// From here …
    pub first: Slot,
    /// … to here.
    pub last: Slot,
}

/// Decided slots.
pub type Known = Vec<(Slot, Value)>;

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend's batch.
    Request(Request),
    /// A replica's word on a request that it could not take.
    Taken(Receipt),
    /// See [`Said`].
    Said(Said),
    /// Promise to accept nothing in lower ballots, and tell what you accepted (phase 1).
    Prepare(Range),
    /// The promise.
    Promise {
        /// The requested range.
        range: Range,
        /// The values accepted there, with their ballots; the highest of all for decided ones.
        accepted: Vec<(Slot, Ballot, Value)>,
    },
    /// Accept these values, and nothing in the range's other slots (phase 2).
    Accept {
        /// Which slots.
        range: Range,
        /// The values that are not "nothing".
        values: Known,
    },
    /// Accepted, durably.
    Voted {
        /// The range.
        range: Range,
        /// The voter's incarnation.
        incarnation: Incarnation,
        /// The incarnations that it knows.
        incarnations: Vec<Incarnation>,
    },
    /// These slots are decided: these values, and nothing in the others.
    Learn {
        /// Which slots.
        range: Range,
        /// The values that are not "nothing".
        values: Known,
    },
    /// A higher ballot was promised for slots of this owner.
    Refused {
        /// Whose slots.
        owner: ReplicaId,
        /// The ballot that was promised.
        ballot: Ballot,
        /// Up to this slot.
        until: Slot,
    },
    /// What is decided from this slot on, and what you suggested there?
    Fetch {
        /// The first slot.
        first: Slot,
    },
    /// The answer, as much as fits.
    Known {
        /// All slots up to here are decided.
        committed: Slot,
        /// Decided slots, ascending.
        values: Known,
    },
    /// The slots asked for are no longer kept.
    Trimmed {
        /// The first slot that is.
        first: Slot,
    },
    /// I have lost my state; how far have you come?
    Recover {
        /// The asker's new incarnation.
        incarnation: Incarnation,
        /// Its number for this question.
        nonce: u64,
    },
    /// The answer.
    RecoverOk {
        /// Which question.
        nonce: u64,
        /// The last slot in which the sender holds anything.
        last: Slot,
    },
    /// Order these batches of the sender's frontends in your slots.
    Forward {
        /// As the frontends encoded them.
        batches: Vec<Bytes>,
    },
    /// Up to which slot must be executed what is read now?
    ReadAsk {
        /// The asker's number for this question.
        round: u64,
    },
    /// The answer.
    ReadAt {
        /// Which question.
        round: u64,
        /// This slot.
        slot: Slot,
    },
}

/// Above all ballots: what is decided.
pub(super) const DECIDED: Ballot = Ballot {
    round: u64::MAX,
    owner: ReplicaId(0),
};

/// A ballot, or [`DECIDED`].
struct OrDecided;

impl Codec<Ballot> for OrDecided {
    const SIZE_MIN: usize = <Ballot as Wire>::SIZE_MIN;
    fn put(value: &Ballot, writer: &mut Writer<'_>) {
        value.encode(writer);
    }
    fn get(reader: &mut Reader, _: &'static str) -> Result<Ballot, DecodeError> {
        let mut ahead = reader.clone();
        if ahead.u64("ballot round")? == DECIDED.round
            && ahead.replica("ballot owner")? == DECIDED.owner
        {
            *reader = ahead;
            return Ok(DECIDED);
        }
        Ballot::decode(reader)
    }
}

wire! { enum Value { 0 = Noop, 1 = Command { time, batch } } }
wire! { struct Range { owner, ballot as OrDecided, first, last } where is_range }

fn is_range(range: &Range) -> bool {
    range.first.0 >= 1 && range.first <= range.last
}

impl Wire for Said {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.incarnation.put(writer);
        self.incarnations.put(writer);
        writer.u8(u8::from(self.state_lost) + 2 * u8::from(self.skip.is_some()));
        self.latest.put(writer);
        self.committed.put(writer);
        if let Some(skip) = &self.skip {
            skip.put(writer);
        }
        self.entries.put(writer);
        self.votes.put(writer);
        self.learnt.put(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let incarnation = Field::get(reader, "incarnation")?;
        let incarnations = <PerMember>::get(reader, "incarnations")?;
        let flags = reader.u8("flags")?;
        if flags > 3 {
            return Err(DecodeError::Bad("flags"));
        }
        Ok(Self {
            incarnation,
            incarnations,
            state_lost: flags & 1 > 0,
            latest: reader.slot("latest slot")?,
            committed: reader.slot("committed slot")?,
            skip: match flags & 2 {
                0 => None,
                _ => Some(Field::get(reader, "skip")?),
            },
            entries: Field::get(reader, "entries")?,
            votes: Field::get(reader, "votes")?,
            learnt: Field::get(reader, "learnt")?,
        })
    }
}

request_message!(Message);

wire! {
    enum Message {
        0 = Request(request),
        1 = Taken(receipt),
        2 = Said(said),
        3 = Prepare(range),
        4 = Promise { range, accepted as Each<(Plain, OrDecided, Plain)> },
        5 = Accept { range, values },
        6 = Voted { range, incarnation, incarnations as PerMember },
        7 = Learn { range, values },
        8 = Refused { owner, ballot as OrDecided, until },
        9 = Fetch { first },
        10 = Known { committed, values },
        11 = Trimmed { first },
        12 = Recover { incarnation, nonce },
        13 = RecoverOk { nonce, last },
        14 = Forward { batches },
        15 = ReadAsk { round },
        16 = ReadAt { round, slot },
    }
}

/// The journal's record of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The ballot in which it was accepted.
    pub ballot: Ballot,
    /// Whether it was decided when this was written.
    pub decided: bool,
    /// All slots up to here were decided when this was written.
    pub committed: Slot,
    /// The accepted value.
    pub value: Value,
}

wire! { struct Record { ballot as OrDecided, decided, committed, value } }

/// State that must survive a crash in every durability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// Of each owner: the ballot promised for its undecided slots up to a slot.
    pub leases: Vec<(Ballot, Slot)>,
    /// Own slots up to here may have been used.
    pub reserved: Slot,
}

wire! { struct Promised { leases as PerMember<(OrDecided, Plain)>, reserved } }

/// The protocol's part of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The time of the last command that it covers.
    pub time: CommandTime,
}

wire! { struct Summary { time } }
