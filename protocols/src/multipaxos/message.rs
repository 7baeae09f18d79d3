//! What Multi-Paxos sends and what it writes to disk.
//!
//! ```text
//!   frontend ── Request ─────► replica ── Forward ─────► leader
//!   frontend ◄── Taken ─────── replica
//!   leader ──── Accept, Commit ────► followers ──── AcceptOk, Reject ────► leader
//!   leader ──── Trimmed, Stand ────► follower
//!   candidate ─ PreVote, Prepare ──► all ──── PreVoteOk, Promise, Reject ─► candidate
//!   replica ─── ReadIndex ─────────► leader ─── ReadIndexOk ──► replica
//!   replica ─── Sadl ──► replica: batches that go out before they are ordered
//!   forgetful ─ Recover ───────────► all ────── RecoverOk ────► forgetful
//! ```

use crate::sadl::{self, Head, Heads, Name, Range};
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, CommandTime, DecodeError, Incarnation, Level, Reader, Slot, Wire, Writer,
    parts::{Ballot, Decisions, Held, LogEntry, RequestKey, RequestMessage, Taken, request_key},
};

/// More than any message takes besides its batches.
pub(super) const MESSAGE_BYTES: usize = 128;

/// What a slot is to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A batch as its frontend encoded it; empty for a slot with nothing in it.
    Batch(Bytes),
    /// A batch that was disseminated before. Nothing, when it does not follow what was executed of
    /// its creator's chain in the slots before.
    Named(Name),
}

impl Value {
    /// What it takes, in memory and in messages.
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

    /// What it names.
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
    /// What the slot is to hold.
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

/// What an acceptor holds for one slot, as it tells a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Which slot.
    pub slot: Slot,
    /// The ballot that it was accepted under.
    pub ballot: Ballot,
    /// What was accepted.
    pub proposal: Proposal,
}

impl Accepted {
    pub(super) fn new(slot: Slot, held: Held<Proposal>) -> Self {
        Self {
            slot,
            ballot: held.ballot,
            proposal: held.entry,
        }
    }

    pub(super) fn into_held(self) -> (Slot, Held<Proposal>) {
        let held = Held {
            ballot: self.ballot,
            entry: self.proposal,
        };
        (self.slot, held)
    }
}

/// A replica's answer to one that has forgotten: what part it plays itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// It has forgotten too and is not yet back.
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
    /// The ballot is out of date.
    Reject {
        /// The ballot that the refused message was sent under.
        ballot: Ballot,
        /// What the sender has promised.
        promised: Ballot,
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
    /// Would you promise this ballot?
    PreVote {
        /// The ballot that the sender would stand with.
        ballot: Ballot,
        /// What it knows to be decided.
        committed: Slot,
    },
    /// The answer.
    PreVoteOk {
        /// The ballot that was asked about.
        ballot: Ballot,
        /// Whether it would be promised.
        granted: bool,
        /// What the sender has promised.
        promised: Ballot,
        /// The first slot that it still keeps.
        first: Slot,
        /// Which ballots decided how much; nothing when it would be promised.
        decisions: Decisions,
    },
    /// Phase 1: promise this ballot and tell what you accepted.
    Prepare {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The first slot that it wants to know of.
        from: Slot,
    },
    /// The promise, with one page of what was accepted.
    Promise {
        /// The ballot promised.
        ballot: Ballot,
        /// The acceptor's incarnation.
        incarnation: Incarnation,
        /// The first slot that the page covers, as asked for.
        from: Slot,
        /// The first slot that the page does not cover; `None` when there is nothing above.
        until: Option<Slot>,
        /// All slots up to here are decided.
        committed: Slot,
        /// The first slot that it still keeps. When it lies above `from`, the page is empty, and
        /// this acceptor's promise does not count for the candidate.
        first: Slot,
        /// Which ballots decided how much; nothing when the page is not empty for that reason.
        decisions: Decisions,
        /// What it accepted there, ascending.
        accepted: Vec<Accepted>,
    },
    /// The leader is about to stop: stand for election at once.
    Stand {
        /// The leader's ballot.
        ballot: Ballot,
    },
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
    /// I have forgotten what I acknowledged before this incarnation.
    Recover {
        /// The new incarnation.
        incarnation: Incarnation,
        /// Tells answers to this question from older ones.
        nonce: u64,
        /// What it has promised: only a leader of this ballot or a higher one can help.
        promised: Ballot,
    },
    /// The answer.
    RecoverOk {
        /// As asked.
        nonce: u64,
        /// What the sender has promised, durably.
        promised: Ballot,
        /// Its part.
        part: Part,
        /// Disseminated batches that it holds and has not executed.
        held: Vec<Range>,
    },
}

macro_rules! tags {
    ($($name:ident = $value:literal),* $(,)?) => { $(const $name: u8 = $value;)* };
}
tags! {
    REQUEST = 0, TAKEN = 1, FORWARD = 2, ACCEPT = 3, COMMIT = 4, ACCEPT_OK = 5, REJECT = 6,
    TRIMMED = 7, PRE_VOTE = 8, PRE_VOTE_OK = 9, PREPARE = 10, PROMISE = 11, STAND = 12,
    READ_INDEX = 13, READ_INDEX_OK = 14, RECOVER = 15, RECOVER_OK = 16,
    SADL = 17, RECOVER_HELD = 18,
}

/// What a proposal takes besides its batch.
pub const PROPOSAL_BYTES: usize = 12;
const ACCEPTED_BYTES: usize = 30;

/// Stands in a proposal's time when a name follows instead of a batch: no clock comes that far.
const NAMED: u64 = 1 << 63;

fn put_proposal(writer: &mut Writer<'_>, proposal: &Proposal) {
    let time = proposal.time.0 & !NAMED;
    match &proposal.value {
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

fn get_proposal(reader: &mut Reader) -> Result<Proposal, DecodeError> {
    let time = reader.u64("command time")?;
    Ok(Proposal {
        time: CommandTime(time & !NAMED),
        value: if time & NAMED == 0 {
            Value::Batch(reader.blob("batch")?)
        } else {
            Value::Named(Name::decode(reader)?)
        },
    })
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
            Self::Forward { batches } => {
                writer.u8(FORWARD);
                writer.length(batches.len());
                batches.iter().for_each(|batch| writer.blob(batch));
            }
            Self::Accept {
                ballot,
                first,
                committed,
                confirm,
                stamp,
                everywhere,
                proposals,
            } => {
                writer.u8(ACCEPT);
                ballot.encode(writer);
                writer.u64(first.0);
                writer.u64(committed.0);
                writer.u64(*confirm);
                writer.u64(*stamp);
                writer.u64(everywhere.0);
                writer.length(proposals.len());
                proposals
                    .iter()
                    .for_each(|proposal| put_proposal(writer, proposal));
            }
            Self::Commit {
                ballot,
                committed,
                confirm,
                stamp,
                everywhere,
                round_trip,
                answer,
            } => {
                writer.u8(COMMIT);
                ballot.encode(writer);
                writer.u64(committed.0);
                writer.u64(*confirm);
                writer.u64(*stamp);
                writer.u64(everywhere.0);
                writer.u32(*round_trip);
                writer.bool(*answer);
            }
            Self::AcceptOk {
                ballot,
                incarnation,
                held,
                durable,
                executed,
                confirm,
                stamp,
            } => {
                writer.u8(ACCEPT_OK);
                ballot.encode(writer);
                writer.u64(incarnation.0);
                writer.u64(held.0);
                writer.u64(durable.0);
                writer.u64(executed.0);
                writer.u64(*confirm);
                writer.u64(*stamp);
            }
            Self::Reject { ballot, promised } => {
                writer.u8(REJECT);
                ballot.encode(writer);
                promised.encode(writer);
            }
            Self::Trimmed {
                ballot,
                first,
                decisions,
            } => {
                writer.u8(TRIMMED);
                ballot.encode(writer);
                writer.u64(first.0);
                decisions.encode(writer);
            }
            Self::PreVote { ballot, committed } => {
                writer.u8(PRE_VOTE);
                ballot.encode(writer);
                writer.u64(committed.0);
            }
            Self::PreVoteOk {
                ballot,
                granted,
                promised,
                first,
                decisions,
            } => {
                writer.u8(PRE_VOTE_OK);
                ballot.encode(writer);
                writer.bool(*granted);
                promised.encode(writer);
                writer.u64(first.0);
                decisions.encode(writer);
            }
            Self::Prepare { ballot, from } => {
                writer.u8(PREPARE);
                ballot.encode(writer);
                writer.u64(from.0);
            }
            Self::Promise {
                ballot,
                incarnation,
                from,
                until,
                committed,
                first,
                decisions,
                accepted,
            } => {
                writer.u8(PROMISE);
                ballot.encode(writer);
                writer.u64(incarnation.0);
                writer.u64(from.0);
                writer.u64(until.map_or(0, |slot| slot.0));
                writer.u64(committed.0);
                writer.u64(first.0);
                decisions.encode(writer);
                writer.length(accepted.len());
                for Accepted {
                    slot,
                    ballot,
                    proposal,
                } in accepted
                {
                    writer.u64(slot.0);
                    ballot.encode(writer);
                    put_proposal(writer, proposal);
                }
            }
            Self::Stand { ballot } => {
                writer.u8(STAND);
                ballot.encode(writer);
            }
            Self::ReadIndex { round } => {
                writer.u8(READ_INDEX);
                writer.u64(*round);
            }
            Self::ReadIndexOk { round, index } => {
                writer.u8(READ_INDEX_OK);
                writer.u64(*round);
                writer.u64(index.0);
            }
            Self::Recover {
                incarnation,
                nonce,
                promised,
            } => {
                writer.u8(RECOVER);
                writer.u64(incarnation.0);
                writer.u64(*nonce);
                promised.encode(writer);
            }
            Self::Sadl(message) => {
                writer.u8(SADL);
                message.encode(writer);
            }
            Self::RecoverOk {
                nonce,
                promised,
                part,
                held,
            } => {
                writer.u8(if held.is_empty() {
                    RECOVER_OK
                } else {
                    RECOVER_HELD
                });
                writer.u64(*nonce);
                promised.encode(writer);
                let (part, end) = match part {
                    Part::Recovering => (0, 0),
                    Part::Intact => (1, 0),
                    Part::Leader { end } => (2, end.0),
                };
                writer.u8(part);
                writer.u64(end);
                if !held.is_empty() {
                    sadl::encode_ranges(held, writer);
                }
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
                batch: BatchId(reader.u64("batch id")?),
                taken: match reader.u8("taken")? {
                    0 => Taken::Accepted,
                    1 => Taken::Refused,
                    2 => Taken::Busy,
                    _ => return Err(DecodeError::Bad("taken")),
                },
            },
            FORWARD => {
                let count = reader.length(4, "forwarded batches")?;
                let mut batches = Vec::with_capacity(count);
                for _ in 0..count {
                    batches.push(reader.blob("batch")?);
                }
                Self::Forward { batches }
            }
            ACCEPT => {
                let ballot = Ballot::decode(reader)?;
                let first = reader.slot("first slot")?;
                let committed = reader.slot("committed slot")?;
                let confirm = reader.u64("confirm")?;
                let stamp = reader.u64("stamp")?;
                let everywhere = reader.slot("everywhere slot")?;
                let count = reader.length(PROPOSAL_BYTES, "proposals")?;
                let mut proposals = Vec::with_capacity(count);
                for _ in 0..count {
                    proposals.push(get_proposal(reader)?);
                }
                Self::Accept {
                    ballot,
                    first,
                    committed,
                    confirm,
                    stamp,
                    everywhere,
                    proposals,
                }
            }
            COMMIT => Self::Commit {
                ballot: Ballot::decode(reader)?,
                committed: reader.slot("committed slot")?,
                confirm: reader.u64("confirm")?,
                stamp: reader.u64("stamp")?,
                everywhere: reader.slot("everywhere slot")?,
                round_trip: reader.u32("round trip")?,
                answer: reader.bool("answer")?,
            },
            ACCEPT_OK => Self::AcceptOk {
                ballot: Ballot::decode(reader)?,
                incarnation: Incarnation(reader.u64("incarnation")?),
                held: reader.slot("held slot")?,
                durable: reader.slot("durable slot")?,
                executed: reader.slot("executed slot")?,
                confirm: reader.u64("confirm")?,
                stamp: reader.u64("stamp")?,
            },
            REJECT => Self::Reject {
                ballot: Ballot::decode(reader)?,
                promised: Ballot::decode(reader)?,
            },
            TRIMMED => Self::Trimmed {
                ballot: Ballot::decode(reader)?,
                first: reader.slot("first slot")?,
                decisions: Decisions::decode(reader)?,
            },
            PRE_VOTE => Self::PreVote {
                ballot: Ballot::decode(reader)?,
                committed: reader.slot("committed slot")?,
            },
            PRE_VOTE_OK => Self::PreVoteOk {
                ballot: Ballot::decode(reader)?,
                granted: reader.bool("granted")?,
                promised: Ballot::decode(reader)?,
                first: reader.slot("first slot")?,
                decisions: Decisions::decode(reader)?,
            },
            PREPARE => Self::Prepare {
                ballot: Ballot::decode(reader)?,
                from: reader.slot("from slot")?,
            },
            PROMISE => Self::decode_promise(reader)?,
            STAND => Self::Stand {
                ballot: Ballot::decode(reader)?,
            },
            READ_INDEX => Self::ReadIndex {
                round: reader.u64("read round")?,
            },
            READ_INDEX_OK => Self::ReadIndexOk {
                round: reader.u64("read round")?,
                index: reader.slot("read index")?,
            },
            RECOVER => Self::Recover {
                incarnation: Incarnation(reader.u64("incarnation")?),
                nonce: reader.u64("nonce")?,
                promised: Ballot::decode(reader)?,
            },
            tag @ (RECOVER_OK | RECOVER_HELD) => {
                let nonce = reader.u64("nonce")?;
                let promised = Ballot::decode(reader)?;
                let part = reader.u8("part")?;
                let end = reader.slot("end slot")?;
                let part = match part {
                    0 => Part::Recovering,
                    1 => Part::Intact,
                    2 => Part::Leader { end },
                    _ => return Err(DecodeError::Bad("part")),
                };
                let held = match tag {
                    RECOVER_OK => Vec::new(),
                    _ => sadl::decode_ranges(reader)?,
                };
                Self::RecoverOk {
                    nonce,
                    promised,
                    part,
                    held,
                }
            }
            SADL => Self::Sadl(sadl::Message::decode(reader)?),
            _ => return Err(DecodeError::Bad("message tag")),
        })
    }
}

impl Message {
    fn decode_promise(reader: &mut Reader) -> Result<Self, DecodeError> {
        let ballot = Ballot::decode(reader)?;
        let incarnation = Incarnation(reader.u64("incarnation")?);
        let from = reader.slot("from slot")?;
        let until = Some(reader.slot("until slot")?).filter(|slot| slot.0 > 0);
        let committed = reader.slot("committed slot")?;
        let first = reader.slot("first slot")?;
        let decisions = Decisions::decode(reader)?;
        let count = reader.length(ACCEPTED_BYTES, "accepted")?;
        let mut accepted: Vec<Accepted> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = Accepted {
                slot: reader.slot("slot")?,
                ballot: Ballot::decode(reader)?,
                proposal: get_proposal(reader)?,
            };
            let ascending = accepted.last().is_none_or(|last| last.slot < entry.slot);
            if !ascending || entry.slot < from || until.is_some_and(|until| entry.slot >= until) {
                return Err(DecodeError::Bad("slot"));
            }
            accepted.push(entry);
        }
        Ok(Self::Promise {
            ballot,
            incarnation,
            from,
            until,
            committed,
            first,
            decisions,
            accepted,
        })
    }
}

/// What the journal keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Per accepted slot.
    Accepted {
        /// The ballot that it was accepted under.
        ballot: Ballot,
        /// All slots up to here were known to be decided when this was written.
        committed: Slot,
        /// What was accepted.
        proposal: Proposal,
    },
    /// A disseminated batch.
    Batch {
        /// What it is called.
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
                put_proposal(writer, proposal);
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
            proposal: get_proposal(reader)?,
        })
    }
}

/// What must survive a crash in every durability.
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

/// What a snapshot carries for the protocol.
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
        if heads || !self.decisions.is_empty() {
            sadl::encode_heads(if heads { &self.heads } else { &[] }, writer);
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
                _ => sadl::decode_heads(reader)?,
            },
            decisions: match reader.remaining() {
                0 => Decisions::default(),
                _ => Decisions::decode(reader)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::ReplicaId;

    fn every_kind() -> Vec<Message> {
        let ballot = Ballot {
            round: 7,
            owner: ReplicaId(2),
        };
        let (batch, slot) = (Bytes::from_static(b"a batch"), Slot(5));
        let mut decisions = Decisions::default();
        decisions.learn(ballot, Slot(4));
        let proposal = Proposal {
            time: CommandTime(9),
            value: Value::Batch(batch.clone()),
        };
        let first = Name {
            creator: ReplicaId(1),
            chain: 2,
            round: 3,
        };
        let range = Range { first, last: 4 };
        let named = Proposal {
            time: CommandTime(9),
            value: Value::Named(first),
        };
        let accepted = Accepted {
            slot,
            ballot,
            proposal: proposal.clone(),
        };
        let mut all = alloc::vec![
            Message::Request {
                level: Level::Linearizable,
                batch: batch.clone()
            },
            Message::Taken {
                batch: BatchId(3),
                taken: Taken::Busy
            },
            Message::Forward {
                batches: alloc::vec![batch.clone(), Bytes::new(), batch]
            },
            Message::Accept {
                ballot,
                first: slot,
                committed: Slot(4),
                confirm: 1,
                stamp: 2,
                everywhere: Slot(3),
                proposals: alloc::vec![proposal.clone(), named, proposal],
            },
            Message::Commit {
                ballot,
                committed: slot,
                confirm: 1,
                stamp: 2,
                everywhere: Slot(3),
                round_trip: 4,
                answer: true,
            },
            Message::AcceptOk {
                ballot,
                incarnation: Incarnation(1),
                held: slot,
                durable: Slot(4),
                executed: Slot(3),
                confirm: 2,
                stamp: 1,
            },
            Message::Reject {
                ballot,
                promised: ballot
            },
            Message::Trimmed {
                ballot,
                first: slot,
                decisions: decisions.clone()
            },
            Message::PreVote {
                ballot,
                committed: slot
            },
            Message::PreVoteOk {
                ballot,
                granted: true,
                promised: ballot,
                first: slot,
                decisions: decisions.clone()
            },
            Message::Prepare { ballot, from: slot },
            Message::Promise {
                ballot,
                incarnation: Incarnation(1),
                from: slot,
                until: Some(Slot(6)),
                committed: Slot(4),
                first: Slot(1),
                decisions: decisions.clone(),
                accepted: alloc::vec![accepted],
            },
            Message::Stand { ballot },
            Message::ReadIndex { round: 8 },
            Message::ReadIndexOk {
                round: 8,
                index: slot
            },
            Message::Recover {
                incarnation: Incarnation(2),
                nonce: 6,
                promised: ballot
            },
            Message::Sadl(sadl::Message::Fetch { range }),
            Message::RecoverOk {
                nonce: 6,
                promised: ballot,
                part: Part::Intact,
                held: alloc::vec![range],
            },
        ];
        for part in [Part::Recovering, Part::Intact, Part::Leader { end: slot }] {
            all.push(Message::RecoverOk {
                nonce: 6,
                promised: ballot,
                part,
                held: Vec::new(),
            });
        }
        all
    }

    #[test]
    fn every_message_reads_back_and_its_prefixes_are_refused() {
        for message in every_kind() {
            let bytes = message.encode_to_bytes();
            assert_eq!(Message::decode_all(bytes.clone()), Ok(message.clone()));
            for cut in 0..bytes.len() {
                assert!(
                    Message::decode_all(bytes.slice(..cut)).is_err(),
                    "{message:?} at {cut}"
                );
            }
        }
    }

    #[test]
    fn what_is_kept_reads_back_and_says_nothing_of_dissemination_where_there_is_none() {
        let ballot = Ballot {
            round: 7,
            owner: ReplicaId(2),
        };
        let name = Name {
            creator: ReplicaId(1),
            chain: 2,
            round: 3,
        };
        for chain in [0, 5] {
            let promised = Promised { ballot, chain };
            let bytes = promised.encode_to_bytes();
            assert_eq!(bytes.len() == ballot.encode_to_bytes().len(), chain == 0);
            assert_eq!(Promised::decode_all(bytes), Ok(promised));
        }
        let batch = Bytes::from_static(b"a batch");
        let records = [Value::Batch(batch.clone()), Value::Named(name)]
            .map(|value| Record::Accepted {
                ballot,
                committed: Slot(4),
                proposal: Proposal {
                    time: CommandTime(9),
                    value,
                },
            })
            .into_iter()
            .chain([Record::Batch { name, batch }]);
        for record in records {
            assert_eq!(Record::decode_all(record.encode_to_bytes()), Ok(record));
        }
        let time = CommandTime(9);
        let none = Summary {
            time,
            ..Summary::default()
        };
        assert_eq!(none.encode_to_bytes().len(), 8);
        let some = Summary {
            time,
            heads: alloc::vec![Head { chain: 1, round: 2 }, Head::default()],
            ..Summary::default()
        };
        let mut decided = [none.clone(), some.clone()];
        for summary in &mut decided {
            summary.decisions.learn(ballot, Slot(7));
        }
        for summary in [none, some].into_iter().chain(decided) {
            assert_eq!(Summary::decode_all(summary.encode_to_bytes()), Ok(summary));
        }
        assert_eq!(size_of::<Value>(), size_of::<Bytes>(), "names take no room");
    }

    #[test]
    fn flipped_bytes_are_refused_or_read_but_never_panic() {
        for message in every_kind() {
            let bytes = message.encode_to_bytes();
            for at in 0..bytes.len() {
                for flip in [1, 0x80, 0xff] {
                    let mut bad = bytes.to_vec();
                    bad[at] ^= flip;
                    let _ = Message::decode_all(Bytes::from(bad));
                }
            }
        }
    }

    #[test]
    fn promise_out_of_order_or_out_of_its_page_is_refused() {
        let ballot = Ballot {
            round: 7,
            owner: ReplicaId(2),
        };
        let page = |from, until: Option<u64>, slots: &[u64]| Message::Promise {
            ballot,
            incarnation: Incarnation(1),
            from: Slot(from),
            until: until.map(Slot),
            committed: Slot(0),
            first: Slot(1),
            decisions: Decisions::default(),
            accepted: slots
                .iter()
                .map(|slot| Accepted {
                    slot: Slot(*slot),
                    ballot,
                    proposal: Proposal {
                        time: CommandTime(1),
                        value: Value::Batch(Bytes::new()),
                    },
                })
                .collect(),
        };
        let read = |message: Message| Message::decode_all(message.encode_to_bytes());
        assert!(read(page(1, None, &[1, 3])).is_ok());
        assert!(read(page(1, None, &[3, 1])).is_err());
        assert!(read(page(1, None, &[2, 2])).is_err());
        assert!(read(page(2, None, &[1])).is_err());
        assert!(read(page(1, Some(2), &[2])).is_err());
    }
}
