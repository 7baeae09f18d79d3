//! What ChainPaxos sends.
//!
//! ```text
//!   frontend ── Request ────► replica ── Forward, Ask ───────► leader
//!   frontend ◄── Taken ────── replica
//!   leader ──── Accept ─────► next ── Accept ──► … ──► tail ── Ack ──► leader
//!   leader ──── Ping ───────► each ── Pong ──► leader
//!   replica ─── Missing ────► the replica that sent with a gap, who answers with Accept or Skip
//!   replica ─── Alive ──────► the one before it in the chain, and the leader
//!   replica ─── Suspect ────► leader
//!   candidate ─ PreVote, Prepare ──► all ── PreVoteOk, Promise, Reject ──► candidate
//! ```

use super::{
    chain::Chain,
    entry::{Accepted, Entry, get_entry, put_entry},
    votes::Votes,
};
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, DecodeError, Incarnation, Level, Reader, ReplicaId, ReplicaSet, Slot, Wire,
    Writer,
    parts::{Ballot, Decisions, RequestMessage, Taken},
};
use smallvec::SmallVec;

/// A round: what the leader sends in one turn, as it goes around the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Round {
    /// Its number, ascending within a ballot.
    pub number: u64,
    /// The last entry that the leader had proposed when it made the round.
    pub end: Slot,
    /// Who has passed it on, none of them having promised a higher ballot by then.
    pub path: ReplicaSet,
    /// The newest round that had come back to the leader when it made this one …
    pub looped: u64,
    /// … and who had passed that on.
    pub looped_by: ReplicaSet,
    /// Questions that the leader had been asked when it made this round: who, and the number.
    pub asked: SmallVec<[(ReplicaId, u64); 2]>,
}

/// What every message along the chain carries besides entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The leader's ballot.
    pub ballot: Ballot,
    /// All entries up to here are decided, as the sender knows.
    pub committed: Slot,
    /// All members of the epoch have accepted everything up to here.
    pub everywhere: Slot,
    /// How long a round takes, in microseconds, as the leader measured it.
    pub loop_micros: u32,
    /// Who answers the leader besides the tail, because what follows it is slow.
    pub turn: Option<ReplicaId>,
    /// The newest round that the sender has passed on.
    pub round: Round,
    /// The votes that the sender knows.
    pub votes: Votes,
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
    /// Consecutive entries on their way down the chain; without entries, news and heartbeat.
    Accept {
        /// See there.
        header: Header,
        /// The slot of the first entry, or of the entry that the sender would send next.
        first: Slot,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// The tail's answer to the leader.
    Ack {
        /// See there.
        header: Header,
        /// The last entry that the tail holds.
        held: Slot,
    },
    /// The sender no longer keeps what the receiver lacks: continue behind `base`, fetch the state.
    Skip {
        /// The leader's ballot.
        ballot: Ballot,
        /// All up to here is decided.
        base: Slot,
        /// The chain as decided there.
        chain: Chain,
        /// Which ballots decided how much.
        decisions: Decisions,
    },
    /// The receiver's messages left a gap, or it is not known whether they did.
    Missing {
        /// The ballot.
        ballot: Ballot,
        /// All entries up to here are held, or known to be decided.
        held: Slot,
    },
    /// A keep-alive.
    Alive {
        /// What the sender has promised.
        ballot: Ballot,
        /// Its life.
        life: Incarnation,
        /// Whether it votes; false in a life that has forgotten and was not yet re-admitted.
        whole: bool,
        /// Whether it could lead: it votes, and has the state up to its log.
        able: bool,
        /// What it holds under `ballot`.
        held: Slot,
        /// The newest round that it has seen under `ballot`.
        round: u64,
    },
    /// The sender's successor is silent.
    Suspect {
        /// The ballot.
        ballot: Ballot,
        /// Who.
        about: ReplicaId,
    },
    /// Reads wait: make a round, or an entry of the log.
    Ask {
        /// The asking replica's number for it, ascending.
        stamp: u64,
        /// With an entry.
        ordered: bool,
    },
    /// The ballot is out of date.
    Reject {
        /// The ballot that the refused message was sent under.
        ballot: Ballot,
        /// What the sender has promised.
        promised: Ballot,
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
        /// The first slot from which on it can tell what it accepted.
        first: Slot,
        /// Which ballots decided how much; nothing unless the candidate is behind what is kept.
        decisions: Decisions,
    },
    /// Phase 1: promise this ballot and tell what you accepted.
    Prepare {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The first slot that it wants to know of.
        from: Slot,
    },
    /// The promise (the paper's PREPARE_OK), with one page of what was accepted.
    Promise {
        /// The ballot promised.
        ballot: Ballot,
        /// The acceptor's life.
        life: Incarnation,
        /// The first slot that the page covers, as asked for.
        from: Slot,
        /// The first slot that the page does not cover; `None` when there is nothing above.
        until: Option<Slot>,
        /// All slots up to here are decided.
        committed: Slot,
        /// The first slot from which on it can tell what it accepted. When it lies above `from`,
        /// the page is empty and the candidate must fetch state.
        first: Slot,
        /// Which ballots decided how much; nothing unless the page begins behind `from`.
        decisions: Decisions,
        /// What it accepted there, ascending.
        accepted: Vec<Accepted>,
    },
    /// The leader is about to stop: stand for election at once.
    Stand {
        /// The leader's ballot.
        ballot: Ballot,
    },
    /// The leader measures how far away somebody is.
    Ping {
        /// Its time.
        stamp: u64,
    },
    /// The answer, at once.
    Pong {
        /// The same.
        stamp: u64,
    },
}

macro_rules! tags {
    ($($name:ident = $value:literal),* $(,)?) => { $(const $name: u8 = $value;)* };
}
tags! {
    REQUEST = 0, TAKEN = 1, FORWARD = 2, ACCEPT = 3, ACK = 4, SKIP = 5, MISSING = 6, ALIVE = 7,
    SUSPECT = 8, ASK = 9, REJECT = 10, PRE_VOTE = 11, PRE_VOTE_OK = 12, PREPARE = 13,
    PROMISE = 14, STAND = 15, PING = 16, PONG = 17,
}

/// Stands for no replica.
const NOBODY: u16 = u16::MAX;
/// The least that an entry takes on the wire.
const ENTRY_BYTES: usize = 9;
const ACCEPTED_BYTES: usize = ENTRY_BYTES + 18;

impl Wire for Round {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.number);
        writer.u64(self.end.0);
        writer.u128(self.path.0);
        writer.u64(self.looped);
        writer.u128(self.looped_by.0);
        writer.u8(self.asked.len() as u8);
        for (id, stamp) in &self.asked {
            writer.u16(id.0);
            writer.u64(*stamp);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut round = Self {
            number: reader.u64("round")?,
            end: reader.slot("end of the round")?,
            path: reader.replicas("path")?,
            looped: reader.u64("looped round")?,
            looped_by: reader.replicas("looped path")?,
            asked: SmallVec::new(),
        };
        for _ in 0..reader.u8("questions")? {
            round
                .asked
                .push((reader.replica("replica")?, reader.u64("stamp")?));
        }
        Ok(round)
    }
}

impl Wire for Header {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.ballot.encode(writer);
        writer.u64(self.committed.0);
        writer.u64(self.everywhere.0);
        writer.u32(self.loop_micros);
        writer.u16(self.turn.map_or(NOBODY, |id| id.0));
        self.round.encode(writer);
        self.votes.encode(writer);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            ballot: Ballot::decode(reader)?,
            committed: reader.slot("committed slot")?,
            everywhere: reader.slot("everywhere slot")?,
            loop_micros: reader.u32("time of a loop")?,
            turn: reader.replica_or(NOBODY, "who turns")?,
            round: Round::decode(reader)?,
            votes: Votes::decode(reader)?,
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
            Self::Forward { batches } => {
                writer.u8(FORWARD);
                writer.length(batches.len());
                batches.iter().for_each(|batch| writer.blob(batch));
            }
            Self::Accept {
                header,
                first,
                entries,
            } => {
                writer.u8(ACCEPT);
                header.encode(writer);
                writer.u64(first.0);
                writer.length(entries.len());
                entries.iter().for_each(|entry| put_entry(writer, entry));
            }
            Self::Ack { header, held } => {
                writer.u8(ACK);
                header.encode(writer);
                writer.u64(held.0);
            }
            Self::Skip {
                ballot,
                base,
                chain,
                decisions,
            } => {
                writer.u8(SKIP);
                ballot.encode(writer);
                writer.u64(base.0);
                chain.encode(writer);
                decisions.encode(writer);
            }
            Self::Missing { ballot, held } => {
                writer.u8(MISSING);
                ballot.encode(writer);
                writer.u64(held.0);
            }
            Self::Alive {
                ballot,
                life,
                whole,
                able,
                held,
                round,
            } => {
                writer.u8(ALIVE);
                ballot.encode(writer);
                writer.u64(life.0);
                writer.bool(*whole);
                writer.bool(*able);
                writer.u64(held.0);
                writer.u64(*round);
            }
            Self::Suspect { ballot, about } => {
                writer.u8(SUSPECT);
                ballot.encode(writer);
                writer.u16(about.0);
            }
            Self::Ask { stamp, ordered } => {
                writer.u8(ASK);
                writer.u64(*stamp);
                writer.bool(*ordered);
            }
            Self::Reject { ballot, promised } => {
                writer.u8(REJECT);
                ballot.encode(writer);
                promised.encode(writer);
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
                life,
                from,
                until,
                committed,
                first,
                decisions,
                accepted,
            } => {
                writer.u8(PROMISE);
                ballot.encode(writer);
                writer.u64(life.0);
                writer.u64(from.0);
                writer.u64(until.map_or(0, |slot| slot.0));
                writer.u64(committed.0);
                writer.u64(first.0);
                decisions.encode(writer);
                writer.length(accepted.len());
                for Accepted {
                    slot,
                    ballot,
                    entry,
                } in accepted
                {
                    writer.u64(slot.0);
                    ballot.encode(writer);
                    put_entry(writer, entry);
                }
            }
            Self::Ping { stamp } => {
                writer.u8(PING);
                writer.u64(*stamp);
            }
            Self::Pong { stamp } => {
                writer.u8(PONG);
                writer.u64(*stamp);
            }
            Self::Stand { ballot } => {
                writer.u8(STAND);
                ballot.encode(writer);
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
                let header = Header::decode(reader)?;
                let first = reader.slot("first slot")?;
                let count = reader.length(ENTRY_BYTES, "entries")?;
                let mut entries = Vec::with_capacity(count);
                for _ in 0..count {
                    entries.push(get_entry(reader)?);
                }
                Self::Accept {
                    header,
                    first,
                    entries,
                }
            }
            ACK => Self::Ack {
                header: Header::decode(reader)?,
                held: reader.slot("held slot")?,
            },
            SKIP => Self::Skip {
                ballot: Ballot::decode(reader)?,
                base: reader.slot("base slot")?,
                chain: Chain::decode(reader)?,
                decisions: Decisions::decode(reader)?,
            },
            MISSING => Self::Missing {
                ballot: Ballot::decode(reader)?,
                held: reader.slot("held slot")?,
            },
            ALIVE => Self::Alive {
                ballot: Ballot::decode(reader)?,
                life: Incarnation(reader.u64("life")?),
                whole: reader.bool("whole")?,
                able: reader.bool("able")?,
                held: reader.slot("held slot")?,
                round: reader.u64("round seen")?,
            },
            SUSPECT => Self::Suspect {
                ballot: Ballot::decode(reader)?,
                about: reader.replica("replica")?,
            },
            ASK => Self::Ask {
                stamp: reader.u64("stamp")?,
                ordered: reader.bool("ordered")?,
            },
            REJECT => Self::Reject {
                ballot: Ballot::decode(reader)?,
                promised: Ballot::decode(reader)?,
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
            PING => Self::Ping {
                stamp: reader.u64("time of a ping")?,
            },
            PONG => Self::Pong {
                stamp: reader.u64("time of a ping")?,
            },
            STAND => Self::Stand {
                ballot: Ballot::decode(reader)?,
            },
            _ => return Err(DecodeError::Bad("message tag")),
        })
    }
}

impl Message {
    fn decode_promise(reader: &mut Reader) -> Result<Self, DecodeError> {
        let ballot = Ballot::decode(reader)?;
        let life = Incarnation(reader.u64("life")?);
        let from = reader.slot("from slot")?;
        let until = Some(reader.slot("until slot")?).filter(|slot| slot.0 > 0);
        let committed = reader.slot("committed slot")?;
        let first = reader.slot("first slot")?;
        let decisions = Decisions::decode(reader)?;
        let count = reader.length(ACCEPTED_BYTES, "accepted")?;
        let mut accepted: Vec<Accepted> = Vec::with_capacity(count);
        for _ in 0..count {
            let it = Accepted {
                slot: reader.slot("slot")?,
                ballot: Ballot::decode(reader)?,
                entry: get_entry(reader)?,
            };
            let ascending = accepted.last().is_none_or(|last| last.slot < it.slot);
            if !ascending || it.slot < from || until.is_some_and(|until| it.slot >= until) {
                return Err(DecodeError::Bad("slot"));
            }
            accepted.push(it);
        }
        Ok(Self::Promise {
            ballot,
            life,
            from,
            until,
            committed,
            first,
            decisions,
            accepted,
        })
    }
}
