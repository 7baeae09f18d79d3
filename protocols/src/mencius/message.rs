//! What Mencius sends and what it writes to disk.
//!
//! ```text
//!   frontend ── Request ──► replica          frontend ◄── Taken ── replica
//!   replica ─── Said ─────► all, or an owner: SUGGEST, votes, LEARN, SKIP, heartbeat
//!   replica ─── Prepare, Accept, Learn ──► all ── Promise, Voted, Refused ──► it   (revocation)
//!   replica ─── Fetch ────► a peer ── Known, Trimmed ──► replica
//!   forgetful ─ Recover ──► all ── RecoverOk ──► it
//!   slow ────── Forward, ReadAsk ──► one that is not ── ReadAt ──► it
//! ```

use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, CommandTime, DecodeError, Incarnation, Level, Reader, ReplicaId, Slot, Wire,
    Writer,
    parts::{Ballot, RequestMessage, Taken},
};

/// More than a message takes besides its values, with this number of members.
pub(super) const fn overhead(members: usize) -> usize {
    256 + 8 * members + 16 * 1024
}

/// What stands in a slot.
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
    /// What it takes in memory and on the wire, about.
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
    /// The incarnations that it knows of all members: a vote of an earlier life counts no more.
    pub lives: Vec<Incarnation>,
    /// It has forgotten what it voted for, and does not take part.
    pub forgot: bool,
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
            lives: self.lives.clone(),
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
    Request {
        /// What its requests need.
        level: Level,
        /// The batch.
        batch: Bytes,
    },
    /// A replica's word on a request that it could not take.
    Taken {
        /// Which batch.
        batch: BatchId,
        /// Why.
        taken: Taken,
    },
    /// See [`Said`].
    Said(Said),
    /// Promise to accept nothing in lower ballots, and tell what you accepted (phase 1).
    Prepare(Range),
    /// The promise.
    Promise {
        /// What was asked.
        range: Range,
        /// What was accepted there, with its ballot; the highest of all for what is decided.
        accepted: Vec<(Slot, Ballot, Value)>,
    },
    /// Accept these values, and nothing in the range's other slots (phase 2).
    Accept {
        /// Which slots.
        range: Range,
        /// What is not nothing.
        values: Known,
    },
    /// Accepted, durably.
    Voted {
        /// What.
        range: Range,
        /// The voter's incarnation.
        incarnation: Incarnation,
        /// The incarnations that it knows.
        lives: Vec<Incarnation>,
    },
    /// These slots are decided: these values, and nothing in the others.
    Learn {
        /// Which slots.
        range: Range,
        /// What is not nothing.
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
    /// I have forgotten; how far have you come?
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

macro_rules! tags {
    ($($name:ident = $value:literal),* $(,)?) => { $(const $name: u8 = $value;)* };
}
tags! {
    REQUEST = 0, TAKEN = 1, SAID = 2, PREPARE = 3, PROMISE = 4, ACCEPT = 5, VOTED = 6, LEARN = 7,
    REFUSED = 8, FETCH = 9, KNOWN = 10, TRIMMED = 11, RECOVER = 12, RECOVER_OK = 13,
    FORWARD = 14, READ_ASK = 15, READ_AT = 16,
}

fn get_ballot(reader: &mut Reader) -> Result<Ballot, DecodeError> {
    let mut ahead = reader.clone();
    if ahead.u64("ballot round")? == DECIDED.round
        && ahead.replica("ballot owner")? == DECIDED.owner
    {
        *reader = ahead;
        return Ok(DECIDED);
    }
    Ballot::decode(reader)
}

/// Above all ballots: what is decided.
pub(super) const DECIDED: Ballot = Ballot {
    round: u64::MAX,
    owner: ReplicaId(0),
};

fn put_lives(lives: &[Incarnation], writer: &mut Writer<'_>) {
    writer.length(lives.len());
    lives.iter().for_each(|life| writer.u64(life.0));
}

fn get_lives(reader: &mut Reader) -> Result<Vec<Incarnation>, DecodeError> {
    let count = reader.length(8, "lives")?;
    reader.one_per_member(count, "lives")?;
    (0..count)
        .map(|_| Ok(Incarnation(reader.u64("life")?)))
        .collect()
}

fn put_slots(slots: &[Slot], writer: &mut Writer<'_>) {
    writer.length(slots.len());
    slots.iter().for_each(|slot| writer.u64(slot.0));
}

fn get_slots(reader: &mut Reader) -> Result<Vec<Slot>, DecodeError> {
    let count = reader.length(8, "slots")?;
    (0..count).map(|_| reader.slot("slot")).collect()
}

fn put_known(known: &[(Slot, Value)], writer: &mut Writer<'_>) {
    writer.length(known.len());
    for (slot, value) in known {
        writer.u64(slot.0);
        value.encode(writer);
    }
}

fn get_known(reader: &mut Reader) -> Result<Known, DecodeError> {
    let count = reader.length(9, "values")?;
    (0..count)
        .map(|_| Ok((reader.slot("slot")?, Value::decode(reader)?)))
        .collect()
}

impl Wire for Value {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Noop => writer.u8(0),
            Self::Command { time, batch } => {
                writer.u8(1);
                writer.u64(time.0);
                writer.blob(batch);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match reader.u8("value tag")? {
            0 => Ok(Self::Noop),
            1 => Ok(Self::Command {
                time: CommandTime(reader.u64("time")?),
                batch: reader.blob("batch")?,
            }),
            _ => Err(DecodeError::Bad("value tag")),
        }
    }
}

impl Wire for Range {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u16(self.owner.0);
        self.ballot.encode(writer);
        writer.u64(self.first.0);
        writer.u64(self.last.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let range = Self {
            owner: reader.replica("owner")?,
            ballot: get_ballot(reader)?,
            first: reader.slot("first slot")?,
            last: reader.slot("last slot")?,
        };
        if range.first.0 >= 1 && range.first <= range.last {
            Ok(range)
        } else {
            Err(DecodeError::Bad("range"))
        }
    }
}

impl Wire for Said {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.incarnation.0);
        put_lives(&self.lives, writer);
        writer.u8(u8::from(self.forgot) + 2 * u8::from(self.skip.is_some()));
        writer.u64(self.latest.0);
        writer.u64(self.committed.0);
        if let Some((first, last)) = self.skip {
            writer.u64(first.0);
            writer.u64(last.0);
        }
        put_known(&self.entries, writer);
        put_slots(&self.votes, writer);
        put_slots(&self.learnt, writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let incarnation = Incarnation(reader.u64("incarnation")?);
        let lives = get_lives(reader)?;
        let flags = reader.u8("flags")?;
        if flags > 3 {
            return Err(DecodeError::Bad("flags"));
        }
        let latest = reader.slot("latest slot")?;
        let committed = reader.slot("committed slot")?;
        let skip = if flags & 2 > 0 {
            Some((reader.slot("skip")?, reader.slot("skip")?))
        } else {
            None
        };
        Ok(Self {
            incarnation,
            lives,
            forgot: flags & 1 > 0,
            latest,
            committed,
            skip,
            entries: get_known(reader)?,
            votes: get_slots(reader)?,
            learnt: get_slots(reader)?,
        })
    }
}

impl RequestMessage for Message {
    fn request(level: Level, batch: Bytes) -> Self {
        Self::Request { level, batch }
    }

    fn taken(&self) -> Option<(BatchId, Taken)> {
        match self {
            Self::Taken { batch, taken } => Some((*batch, *taken)),
            _ => None,
        }
    }
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Request { level, batch } => {
                writer.u8(REQUEST);
                writer.u8(*level as u8);
                writer.blob(batch);
            }
            Self::Taken { batch, taken } => {
                writer.u8(TAKEN);
                writer.u64(batch.0);
                writer.u8(match taken {
                    Taken::Accepted => 0,
                    Taken::Refused => 1,
                    Taken::Busy => 2,
                });
            }
            Self::Said(said) => {
                writer.u8(SAID);
                said.encode(writer);
            }
            Self::Prepare(range) => {
                writer.u8(PREPARE);
                range.encode(writer);
            }
            Self::Promise { range, accepted } => {
                writer.u8(PROMISE);
                range.encode(writer);
                writer.length(accepted.len());
                for (slot, ballot, value) in accepted {
                    writer.u64(slot.0);
                    ballot.encode(writer);
                    value.encode(writer);
                }
            }
            Self::Accept { range, values } => {
                writer.u8(ACCEPT);
                range.encode(writer);
                put_known(values, writer);
            }
            Self::Voted {
                range,
                incarnation,
                lives,
            } => {
                writer.u8(VOTED);
                range.encode(writer);
                writer.u64(incarnation.0);
                put_lives(lives, writer);
            }
            Self::Learn { range, values } => {
                writer.u8(LEARN);
                range.encode(writer);
                put_known(values, writer);
            }
            Self::Refused {
                owner,
                ballot,
                until,
            } => {
                writer.u8(REFUSED);
                writer.u16(owner.0);
                ballot.encode(writer);
                writer.u64(until.0);
            }
            Self::Fetch { first } => {
                writer.u8(FETCH);
                writer.u64(first.0);
            }
            Self::Known { committed, values } => {
                writer.u8(KNOWN);
                writer.u64(committed.0);
                put_known(values, writer);
            }
            Self::Trimmed { first } => {
                writer.u8(TRIMMED);
                writer.u64(first.0);
            }
            Self::Recover { incarnation, nonce } => {
                writer.u8(RECOVER);
                writer.u64(incarnation.0);
                writer.u64(*nonce);
            }
            Self::RecoverOk { nonce, last } => {
                writer.u8(RECOVER_OK);
                writer.u64(*nonce);
                writer.u64(last.0);
            }
            Self::Forward { batches } => {
                writer.u8(FORWARD);
                writer.length(batches.len());
                batches.iter().for_each(|batch| writer.blob(batch));
            }
            Self::ReadAsk { round } => {
                writer.u8(READ_ASK);
                writer.u64(*round);
            }
            Self::ReadAt { round, slot } => {
                writer.u8(READ_AT);
                writer.u64(*round);
                writer.u64(slot.0);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("message tag")? {
            REQUEST => Self::Request {
                level: Level::from_byte(reader.u8("level")?).ok_or(DecodeError::Bad("level"))?,
                batch: reader.blob("batch")?,
            },
            TAKEN => Self::Taken {
                batch: BatchId(reader.u64("batch")?),
                taken: match reader.u8("taken")? {
                    0 => Taken::Accepted,
                    1 => Taken::Refused,
                    2 => Taken::Busy,
                    _ => return Err(DecodeError::Bad("taken")),
                },
            },
            SAID => Self::Said(Said::decode(reader)?),
            PREPARE => Self::Prepare(Range::decode(reader)?),
            PROMISE => {
                let range = Range::decode(reader)?;
                let count = reader.length(19, "accepted")?;
                let mut accepted = Vec::with_capacity(count);
                for _ in 0..count {
                    let slot = reader.slot("slot")?;
                    accepted.push((slot, get_ballot(reader)?, Value::decode(reader)?));
                }
                Self::Promise { range, accepted }
            }
            ACCEPT => Self::Accept {
                range: Range::decode(reader)?,
                values: get_known(reader)?,
            },
            VOTED => Self::Voted {
                range: Range::decode(reader)?,
                incarnation: Incarnation(reader.u64("incarnation")?),
                lives: get_lives(reader)?,
            },
            LEARN => Self::Learn {
                range: Range::decode(reader)?,
                values: get_known(reader)?,
            },
            REFUSED => Self::Refused {
                owner: reader.replica("owner")?,
                ballot: get_ballot(reader)?,
                until: reader.slot("slot")?,
            },
            FETCH => Self::Fetch {
                first: reader.slot("first slot")?,
            },
            KNOWN => Self::Known {
                committed: reader.slot("committed slot")?,
                values: get_known(reader)?,
            },
            TRIMMED => Self::Trimmed {
                first: reader.slot("first slot")?,
            },
            RECOVER => Self::Recover {
                incarnation: Incarnation(reader.u64("incarnation")?),
                nonce: reader.u64("nonce")?,
            },
            RECOVER_OK => Self::RecoverOk {
                nonce: reader.u64("nonce")?,
                last: reader.slot("last slot")?,
            },
            FORWARD => {
                let count = reader.length(4, "batches")?;
                let batches = (0..count).map(|_| reader.blob("batch"));
                Self::Forward {
                    batches: batches.collect::<Result<_, _>>()?,
                }
            }
            READ_ASK => Self::ReadAsk {
                round: reader.u64("round")?,
            },
            READ_AT => Self::ReadAt {
                round: reader.u64("round")?,
                slot: reader.slot("slot")?,
            },
            _ => return Err(DecodeError::Bad("message tag")),
        })
    }
}

/// What the journal keeps per slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The ballot in which it was accepted.
    pub ballot: Ballot,
    /// Whether it was decided when this was written.
    pub decided: bool,
    /// All slots up to here were decided when this was written.
    pub committed: Slot,
    /// What was accepted.
    pub value: Value,
}

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.ballot.encode(writer);
        writer.u8(u8::from(self.decided));
        writer.u64(self.committed.0);
        self.value.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            ballot: get_ballot(reader)?,
            decided: match reader.u8("decided")? {
                0 => false,
                1 => true,
                _ => return Err(DecodeError::Bad("decided")),
            },
            committed: reader.slot("committed slot")?,
            value: Value::decode(reader)?,
        })
    }
}

/// What must survive a crash in every durability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// Of each owner: the ballot promised for its undecided slots up to a slot.
    pub leases: Vec<(Ballot, Slot)>,
    /// Own slots up to here may have been used.
    pub reserved: Slot,
}

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.length(self.leases.len());
        for (ballot, until) in &self.leases {
            ballot.encode(writer);
            writer.u64(until.0);
        }
        writer.u64(self.reserved.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = reader.length(18, "leases")?;
        reader.one_per_member(count, "leases")?;
        let mut leases = Vec::with_capacity(count);
        for _ in 0..count {
            leases.push((get_ballot(reader)?, reader.slot("slot")?));
        }
        let reserved = reader.slot("reserved slot")?;
        Ok(Self { leases, reserved })
    }
}

/// What a snapshot carries for the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The time of the last command that it covers.
    pub time: CommandTime,
}

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.time.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let time = CommandTime(reader.u64("summary time")?);
        Ok(Self { time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Message> {
        let batch = Bytes::from_static(b"a batch");
        let (time, id) = (CommandTime(9), BatchId(4));
        let command = Value::Command {
            time,
            batch: batch.clone(),
        };
        let ballot = Ballot::default().next(ReplicaId(2));
        let range = Range {
            owner: ReplicaId(1),
            ballot,
            first: Slot(2),
            last: Slot(8),
        };
        let values = alloc::vec![(Slot(2), command.clone()), (Slot(5), Value::Noop)];
        let lives = alloc::vec![Incarnation(1), Incarnation(3)];
        let said = Said {
            incarnation: Incarnation(3),
            lives: lives.clone(),
            forgot: true,
            latest: Slot(9),
            committed: Slot(4),
            skip: Some((Slot(5), Slot(8))),
            entries: values.clone(),
            votes: alloc::vec![Slot(6)],
            learnt: alloc::vec![Slot(2)],
        };
        let level = Level::Linearizable;
        let (taken, forwarded) = (Taken::Busy, batch.clone());
        let incarnation = Incarnation(3);
        alloc::vec![
            Message::Request { level, batch },
            Message::Taken { batch: id, taken },
            Message::Said(said),
            Message::Said(Said::default()),
            Message::Prepare(range),
            Message::Promise {
                range,
                accepted: alloc::vec![(Slot(2), DECIDED, command), (Slot(5), ballot, Value::Noop)],
            },
            Message::Accept {
                range,
                values: values.clone()
            },
            Message::Voted {
                range,
                incarnation,
                lives
            },
            Message::Learn {
                range,
                values: values.clone()
            },
            Message::Refused {
                owner: ReplicaId(1),
                ballot,
                until: Slot(8)
            },
            Message::Fetch { first: Slot(3) },
            Message::Known {
                committed: Slot(3),
                values
            },
            Message::Trimmed { first: Slot(3) },
            Message::Recover {
                incarnation,
                nonce: 5
            },
            Message::RecoverOk {
                nonce: 5,
                last: Slot(7)
            },
            Message::Forward {
                batches: alloc::vec![forwarded, Bytes::new()]
            },
            Message::ReadAsk { round: 6 },
            Message::ReadAt {
                round: 6,
                slot: Slot(7)
            },
        ]
    }

    #[test]
    fn every_message_reads_back_and_its_prefixes_are_refused() {
        for message in every_kind() {
            let bytes = message.encode_to_bytes();
            assert_eq!(Message::decode_all(bytes.clone()), Ok(message));
            for length in 0..bytes.len() {
                assert!(Message::decode_all(bytes.slice(..length)).is_err());
            }
        }
    }

    #[test]
    fn flipped_bytes_are_refused_or_read_but_never_panic() {
        for message in every_kind() {
            let bytes = message.encode_to_bytes();
            for at in 0..bytes.len() {
                for flip in [1, 0x80, 0xff] {
                    let mut changed = bytes.to_vec();
                    changed[at] ^= flip;
                    let _ = Message::decode_all(changed.into());
                }
            }
        }
    }

    #[test]
    fn records_and_promises_read_back() {
        let record = Record {
            ballot: Ballot::default().next(ReplicaId(1)),
            decided: true,
            committed: Slot(3),
            value: Value::Noop,
        };
        assert_eq!(Record::decode_all(record.encode_to_bytes()), Ok(record));
        let promised = Promised {
            leases: alloc::vec![(Ballot::default(), Slot(0)), (Ballot::default(), Slot(7))],
            reserved: Slot(90),
        };
        let read = Promised::decode_all(promised.encode_to_bytes());
        assert_eq!(read, Ok(promised));
        let summary = Summary {
            time: CommandTime(5),
        };
        assert_eq!(Summary::decode_all(summary.encode_to_bytes()), Ok(summary));
    }
}
