//! The messages of Multi-Paxos and its records on disk.
//!
//! ```text
//!   frontend ── Request ─────► replica ── Forward ─────► leader
//!   frontend ◄── Taken ─────── replica
//!   leader ──── Accept, Commit ────► followers ──── AcceptOk, Reject ────► leader
//!   leader ──── Trimmed, Stand ────► follower
//!   candidate ─ PreVote, Prepare ──► all ──── PreVoteOk, Promise, Reject ─► candidate
//!   replica ─── ReadIndex ─────────► leader ─── ReadIndexOk ──► replica
//!   replica ─── Sadl ──► replica: batches that go out before they are ordered
//!   restarted ─ Recover ───────────► all ────── RecoverOk ────► restarted
//! ```

use crate::sadl::{self, Head, Heads, Name, Range};
use alloc::vec::Vec;
use quintet_replica::{
    Absent, Bytes, Codec, CommandTime, DecodeError, Field, Incarnation, PerMember, Reader, Slot,
    Wire, Writer,
    parts::{
        Ballot, Decisions, ElectionMessage, LogEntry, Receipt, Request, RequestKey, request_key,
    },
    request_message, wire,
};

/// More than any message takes besides its batches.
pub(super) const MESSAGE_BYTES: usize = 128;

/// The value of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A batch as its frontend encoded it; empty for a slot with nothing in it.
    Batch(Bytes),
    /// A batch that was disseminated before. Nothing, when it does not follow what was executed of
    /// its creator's chain in the slots before.
    Named(Name),
}

impl Value {
    /// Its size in memory and in messages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "bytes that it takes")]
    pub fn len(&self) -> usize {
        match self {
            Self::Batch(batch) => batch.len(),
            Self::Named(_) => Name::SIZE,
        }
    }

    /// The name of the request, when it is in the value itself.
    #[must_use]
    pub fn key(&self) -> Option<RequestKey> {
        match self {
            Self::Batch(batch) => request_key(batch),
            Self::Named(_) => None,
        }
    }

    /// The named batches.
    #[must_use]
    pub const fn name(&self) -> Option<Name> {
        match self {
            Self::Batch(_) => None,
            Self::Named(name) => Some(*name),
        }
    }
}

/// A value proposed for a slot; the message says which slot and under which ballot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// The time given to its commands.
    pub time: CommandTime,
    /// The value of the slot.
    pub value: Value,
}

impl LogEntry for Proposal {
    fn time(&self) -> CommandTime {
        self.time
    }

    fn bytes(&self) -> usize {
        self.value.len()
    }
}

/// A replica's answer to one that has lost its state: what part it plays itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// It has lost its state too and is not yet back.
    Recovering,
    /// It is intact, and leads no ballot.
    Intact,
    /// It leads the ballot that it names as promised; its log ends before this slot.
    Leader {
        /// The slot after the last one of its log.
        end: Slot,
    },
}

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend's batch.
    Request(Request),
    /// A replica's word on a request that it could not take.
    Taken(Receipt),
    /// Batches on their way to the leader.
    Forward {
        /// The batches, in the order in which they came.
        batches: Vec<Bytes>,
    },
    /// Phase 2: consecutive slots under one ballot. Also a heartbeat and a commit notice.
    Accept {
        /// The leader's ballot.
        ballot: Ballot,
        /// The slot of the first proposal.
        first: Slot,
        /// All slots up to here are decided.
        committed: Slot,
        /// The newest round of read confirmation.
        confirm: u64,
        /// The leader's own time, given back in the answer.
        stamp: u64,
        /// All members have executed everything up to here.
        everywhere: Slot,
        /// The values.
        proposals: Vec<Proposal>,
    },
    /// A heartbeat or commit notice without proposals.
    Commit {
        /// The leader's ballot.
        ballot: Ballot,
        /// All slots up to here are decided.
        committed: Slot,
        /// The newest round of read confirmation.
        confirm: u64,
        /// The leader's own time, given back in the answer.
        stamp: u64,
        /// All members have executed everything up to here.
        everywhere: Slot,
        /// The leader's measured round trip, in microseconds.
        round_trip: u32,
        /// Whether an answer is wanted.
        answer: bool,
    },
    /// An acceptor's answer to both.
    AcceptOk {
        /// The ballot that it answers.
        ballot: Ballot,
        /// The acceptor's incarnation.
        incarnation: Incarnation,
        /// It has all slots up to here from this ballot, or knows them to be decided.
        held: Slot,
        /// The same, and durable: its vote.
        durable: Slot,
        /// All slots up to here have been executed there.
        executed: Slot,
        /// The newest round of read confirmation that it saw under this ballot.
        confirm: u64,
        /// The stamp of the newest message that it answers.
        stamp: u64,
    },
    /// The receiver needs slots that the leader no longer keeps.
    Trimmed {
        /// The leader's ballot.
        ballot: Ballot,
        /// The first slot that it still keeps.
        first: Slot,
        /// Which ballots decided how much.
        decisions: Decisions,
    },
    /// Of an election.
    Election(ElectionMessage<Proposal>),
    /// How far must a state have come that is as new as all acknowledged so far?
    ReadIndex {
        /// The asking replica's number for it, ascending.
        round: u64,
    },
    /// The answer, for this round of the asking replica and all before it.
    ReadIndexOk {
        /// Which round.
        round: u64,
        /// The slot that must have been executed.
        index: Slot,
    },
    /// Of dissemination.
    Sadl(sadl::Message),
    /// I have lost what I acknowledged before this incarnation.
    Recover {
        /// The new incarnation.
        incarnation: Incarnation,
        /// Tells answers to this question from older ones.
        nonce: u64,
        /// The promised ballot: only a leader of this ballot or a higher one can help.
        promised: Ballot,
    },
    /// The answer.
    RecoverOk {
        /// As asked.
        nonce: u64,
        /// The ballot that the sender has promised, durably.
        promised: Ballot,
        /// Its part.
        part: Part,
        /// Disseminated batches that it holds and has not executed.
        held: Vec<Range>,
    },
}

request_message!(Message);

impl From<ElectionMessage<Proposal>> for Message {
    fn from(message: ElectionMessage<Proposal>) -> Self {
        Self::Election(message)
    }
}

/// The size of a proposal besides its batch.
pub const PROPOSAL_BYTES: usize = 12;

/// Stands in a proposal's time when a name follows instead of a batch: no clock comes that far.
const NAMED: u64 = 1 << 63;

impl Wire for Proposal {
    const SIZE_MIN: usize = PROPOSAL_BYTES;
    fn encode(&self, writer: &mut Writer<'_>) {
        let time = self.time.0 & !NAMED;
        match &self.value {
            Value::Batch(batch) => {
                writer.u64(time);
                writer.blob(batch);
            }
            Value::Named(name) => {
                writer.u64(time | NAMED);
                name.encode(writer);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let time = reader.u64("command time")?;
        Ok(Self {
            time: CommandTime(time & !NAMED),
            value: if time & NAMED == 0 {
                Value::Batch(reader.blob("batch")?)
            } else {
                Value::Named(Name::decode(reader)?)
            },
        })
    }
}

/// A byte for the part, and a slot that means something for a leader only.
impl Wire for Part {
    fn encode(&self, writer: &mut Writer<'_>) {
        let (part, end) = match self {
            Self::Recovering => (0, 0),
            Self::Intact => (1, 0),
            Self::Leader { end } => (2, end.0),
        };
        writer.u8(part);
        writer.u64(end);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (part, end) = (reader.u8("part")?, reader.slot("end slot")?);
        Ok(match part {
            0 => Self::Recovering,
            1 => Self::Intact,
            2 => Self::Leader { end },
            _ => return Err(DecodeError::Bad("part")),
        })
    }
}

wire! {
    enum Message {
        [6, 8, 9, 10, 11, 12] = Election(variants),
        0 = Request(request),
        1 = Taken(receipt),
        2 = Forward { batches },
        3 = Accept { ballot, first, committed, confirm, stamp, everywhere, proposals },
        4 = Commit { ballot, committed, confirm, stamp, everywhere, round_trip, answer },
        5 = AcceptOk { ballot, incarnation, held, durable, executed, confirm, stamp },
        7 = Trimmed { ballot, first, decisions },
        13 = ReadIndex { round },
        14 = ReadIndexOk { round, index },
        15 = Recover { incarnation, nonce, promised },
        16 = RecoverOk { nonce, promised, part, held as Absent } if held.is_empty(),
        17 = Sadl(message),
        18 = RecoverOk { nonce, promised, part, held },
    }
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Per accepted slot.
    Accepted {
        /// The ballot that it was accepted under.
        ballot: Ballot,
        /// All slots up to here were known to be decided when this was written.
        committed: Slot,
        /// The accepted proposal.
        proposal: Proposal,
    },
    /// A disseminated batch.
    Batch {
        /// Its name.
        name: Name,
        /// The batch.
        batch: Bytes,
    },
}

/// Stands where a record has the round of its ballot when it keeps a batch: no ballot has it.
const BATCH_RECORD: u64 = u64::MAX;

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Accepted {
                ballot,
                committed,
                proposal,
            } => {
                ballot.encode(writer);
                writer.u64(committed.0);
                proposal.encode(writer);
            }
            Self::Batch { name, batch } => {
                writer.u64(BATCH_RECORD);
                name.encode(writer);
                writer.blob(batch);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut ahead = reader.clone();
        if ahead.u64("ballot round")? == BATCH_RECORD {
            *reader = ahead;
            return Ok(Self::Batch {
                name: Name::decode(reader)?,
                batch: reader.blob("batch")?,
            });
        }
        Ok(Self::Accepted {
            ballot: Ballot::decode(reader)?,
            committed: reader.slot("committed slot")?,
            proposal: Proposal::decode(reader)?,
        })
    }
}

/// State that must survive a crash in every durability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    /// The highest ballot promised.
    pub ballot: Ballot,
    /// The number of the chain of disseminated batches that was begun last; 0 for none ever.
    pub chain: u64,
}

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.ballot.encode(writer);
        if self.chain > 0 {
            writer.u64(self.chain);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            ballot: Ballot::decode(reader)?,
            chain: match reader.remaining() {
                0 => 0,
                _ => reader.number("chain")?,
            },
        })
    }
}

/// The protocol's part of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The time of the last command that the snapshot covers.
    pub time: CommandTime,
    /// How much of each member's disseminated batches it covers; empty when there never were any.
    pub heads: Heads,
    /// Which ballots decided how much; earlier versions say nothing of it.
    pub decisions: Decisions,
}

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.time.0);
        let heads = self.heads.iter().any(|head| *head > Head::default());
        if heads {
            self.heads.put(writer);
        } else if !self.decisions.is_empty() {
            Heads::new().put(writer);
        }
        if !self.decisions.is_empty() {
            self.decisions.encode(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            time: CommandTime(reader.u64("summary time")?),
            heads: match reader.remaining() {
                0 => Heads::new(),
                _ => <PerMember>::get(reader, "heads")?,
            },
            decisions: match reader.remaining() {
                0 => Decisions::default(),
                _ => Decisions::decode(reader)?,
            },
        })
    }
}
