//! What Multi-Paxos sends and what it writes to disk.
//!
//! ```text
//!   frontend ── Request ─────► replica ── Forward ─────► leader
//!   frontend ◄── Taken ─────── replica
//!   leader ──── Accept, Commit ────► followers ──── AcceptOk, Reject ────► leader
//!   leader ──── Trimmed, Stand ────► follower
//!   candidate ─ PreVote, Prepare ──► all ──── PreVoteOk, Promise, Reject ─► candidate
//!   replica ─── ReadIndex ─────────► leader ─── ReadIndexOk ──► replica
//!   forgetful ─ Recover ───────────► all ────── RecoverOk ────► forgetful
//! ```

use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, CommandTime, DecodeError, Incarnation, Level, Reader, Slot, Wire, Writer,
    parts::{Ballot, Taken},
};

/// A value proposed for a slot; the message says which slot and under which ballot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// The time given to its commands.
    pub time: CommandTime,
    /// A batch as its frontend encoded it; empty for a slot with nothing in it.
    pub batch: Bytes,
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
        /// The first slot that it still keeps. When it lies above `from`, the page is empty and
        /// the candidate must fetch state.
        first: Slot,
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
    },
}

macro_rules! tags {
    ($($name:ident = $value:literal),* $(,)?) => { $(const $name: u8 = $value;)* };
}
tags! {
    REQUEST = 0, TAKEN = 1, FORWARD = 2, ACCEPT = 3, COMMIT = 4, ACCEPT_OK = 5, REJECT = 6,
    TRIMMED = 7, PRE_VOTE = 8, PRE_VOTE_OK = 9, PREPARE = 10, PROMISE = 11, STAND = 12,
    READ_INDEX = 13, READ_INDEX_OK = 14, RECOVER = 15, RECOVER_OK = 16,
}

/// What a proposal takes besides its batch.
pub const PROPOSAL_BYTES: usize = 12;
const ACCEPTED_BYTES: usize = 30;

fn put_proposal(writer: &mut Writer<'_>, proposal: &Proposal) {
    writer.u64(proposal.time.0);
    writer.blob(&proposal.batch);
}

fn get_proposal(reader: &mut Reader) -> Result<Proposal, DecodeError> {
    Ok(Proposal {
        time: CommandTime(reader.u64("command time")?),
        batch: reader.blob("batch")?,
    })
}

fn get_slot(reader: &mut Reader, field: &'static str) -> Result<Slot, DecodeError> {
    // Slots count batches; anything near the end of the range comes from bad bytes, and refusing
    // it here keeps additions elsewhere from overflowing.
    match reader.u64(field)? {
        slot if slot < 1 << 62 => Ok(Slot(slot)),
        _ => Err(DecodeError::Bad(field)),
    }
}

fn get_ballot(reader: &mut Reader) -> Result<Ballot, DecodeError> {
    let ballot = Ballot::decode(reader)?;
    if ballot.round < 1 << 62 {
        Ok(ballot)
    } else {
        Err(DecodeError::Bad("ballot round"))
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
            Self::Trimmed { ballot, first } => {
                writer.u8(TRIMMED);
                ballot.encode(writer);
                writer.u64(first.0);
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
            } => {
                writer.u8(PRE_VOTE_OK);
                ballot.encode(writer);
                writer.bool(*granted);
                promised.encode(writer);
                writer.u64(first.0);
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
                accepted,
            } => {
                writer.u8(PROMISE);
                ballot.encode(writer);
                writer.u64(incarnation.0);
                writer.u64(from.0);
                writer.u64(until.map_or(0, |slot| slot.0));
                writer.u64(committed.0);
                writer.u64(first.0);
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
            Self::RecoverOk {
                nonce,
                promised,
                part,
            } => {
                writer.u8(RECOVER_OK);
                writer.u64(*nonce);
                promised.encode(writer);
                let (part, end) = match part {
                    Part::Recovering => (0, 0),
                    Part::Intact => (1, 0),
                    Part::Leader { end } => (2, end.0),
                };
                writer.u8(part);
                writer.u64(end);
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
                let ballot = get_ballot(reader)?;
                let first = get_slot(reader, "first slot")?;
                let committed = get_slot(reader, "committed slot")?;
                let confirm = reader.u64("confirm")?;
                let stamp = reader.u64("stamp")?;
                let everywhere = get_slot(reader, "everywhere slot")?;
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
                ballot: get_ballot(reader)?,
                committed: get_slot(reader, "committed slot")?,
                confirm: reader.u64("confirm")?,
                stamp: reader.u64("stamp")?,
                everywhere: get_slot(reader, "everywhere slot")?,
                round_trip: reader.u32("round trip")?,
                answer: reader.bool("answer")?,
            },
            ACCEPT_OK => Self::AcceptOk {
                ballot: get_ballot(reader)?,
                incarnation: Incarnation(reader.u64("incarnation")?),
                held: get_slot(reader, "held slot")?,
                durable: get_slot(reader, "durable slot")?,
                executed: get_slot(reader, "executed slot")?,
                confirm: reader.u64("confirm")?,
                stamp: reader.u64("stamp")?,
            },
            REJECT => Self::Reject {
                ballot: get_ballot(reader)?,
                promised: get_ballot(reader)?,
            },
            TRIMMED => Self::Trimmed {
                ballot: get_ballot(reader)?,
                first: get_slot(reader, "first slot")?,
            },
            PRE_VOTE => Self::PreVote {
                ballot: get_ballot(reader)?,
                committed: get_slot(reader, "committed slot")?,
            },
            PRE_VOTE_OK => Self::PreVoteOk {
                ballot: get_ballot(reader)?,
                granted: reader.bool("granted")?,
                promised: get_ballot(reader)?,
                first: get_slot(reader, "first slot")?,
            },
            PREPARE => Self::Prepare {
                ballot: get_ballot(reader)?,
                from: get_slot(reader, "from slot")?,
            },
            PROMISE => Self::decode_promise(reader)?,
            STAND => Self::Stand {
                ballot: get_ballot(reader)?,
            },
            READ_INDEX => Self::ReadIndex {
                round: reader.u64("read round")?,
            },
            READ_INDEX_OK => Self::ReadIndexOk {
                round: reader.u64("read round")?,
                index: get_slot(reader, "read index")?,
            },
            RECOVER => Self::Recover {
                incarnation: Incarnation(reader.u64("incarnation")?),
                nonce: reader.u64("nonce")?,
                promised: get_ballot(reader)?,
            },
            RECOVER_OK => {
                let nonce = reader.u64("nonce")?;
                let promised = get_ballot(reader)?;
                let part = reader.u8("part")?;
                let end = get_slot(reader, "end slot")?;
                let part = match part {
                    0 => Part::Recovering,
                    1 => Part::Intact,
                    2 => Part::Leader { end },
                    _ => return Err(DecodeError::Bad("part")),
                };
                Self::RecoverOk {
                    nonce,
                    promised,
                    part,
                }
            }
            _ => return Err(DecodeError::Bad("message tag")),
        })
    }
}

impl Message {
    fn decode_promise(reader: &mut Reader) -> Result<Self, DecodeError> {
        let ballot = get_ballot(reader)?;
        let incarnation = Incarnation(reader.u64("incarnation")?);
        let from = get_slot(reader, "from slot")?;
        let until = Some(get_slot(reader, "until slot")?).filter(|slot| slot.0 > 0);
        let committed = get_slot(reader, "committed slot")?;
        let first = get_slot(reader, "first slot")?;
        let count = reader.length(ACCEPTED_BYTES, "accepted")?;
        let mut accepted: Vec<Accepted> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = Accepted {
                slot: get_slot(reader, "slot")?,
                ballot: get_ballot(reader)?,
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
            accepted,
        })
    }
}

/// What the journal keeps per accepted slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The ballot that it was accepted under.
    pub ballot: Ballot,
    /// All slots up to here were known to be decided when this was written.
    pub committed: Slot,
    /// What was accepted.
    pub proposal: Proposal,
}

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.ballot.encode(writer);
        writer.u64(self.committed.0);
        put_proposal(writer, &self.proposal);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            ballot: get_ballot(reader)?,
            committed: get_slot(reader, "committed slot")?,
            proposal: get_proposal(reader)?,
        })
    }
}

/// What must survive a crash in every durability: the highest ballot promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised(pub Ballot);

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.0.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        get_ballot(reader).map(Self)
    }
}

/// What a snapshot carries for the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The time of the last command that the snapshot covers.
    pub time: CommandTime,
}

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.time.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            time: CommandTime(reader.u64("summary time")?),
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
        let proposal = Proposal {
            time: CommandTime(9),
            batch: batch.clone(),
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
                proposals: alloc::vec![proposal.clone(), proposal],
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
                first: slot
            },
            Message::PreVote {
                ballot,
                committed: slot
            },
            Message::PreVoteOk {
                ballot,
                granted: true,
                promised: ballot,
                first: slot
            },
            Message::Prepare { ballot, from: slot },
            Message::Promise {
                ballot,
                incarnation: Incarnation(1),
                from: slot,
                until: Some(Slot(6)),
                committed: Slot(4),
                first: Slot(1),
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
        ];
        for part in [Part::Recovering, Part::Intact, Part::Leader { end: slot }] {
            all.push(Message::RecoverOk {
                nonce: 6,
                promised: ballot,
                part,
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
    fn a_promise_out_of_order_or_out_of_its_page_is_refused() {
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
            accepted: slots
                .iter()
                .map(|slot| Accepted {
                    slot: Slot(*slot),
                    ballot,
                    proposal: Proposal {
                        time: CommandTime(1),
                        batch: Bytes::new(),
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
