//! The messages of ChainPaxos.
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

use super::{chain::Chain, entry::Entry, votes::Votes};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Incarnation, OrNone, ReplicaId, ReplicaSet, Short, Slot,
    parts::{Ballot, Decisions, ElectionMessage, Receipt, Request},
    request_message, wire,
};
use smallvec::SmallVec;

/// A round: what the leader sends in one turn, as it goes around the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Round {
    /// Its number, ascending within a ballot.
    pub number: u64,
    /// The last entry that the leader had proposed when it made the round.
    pub end: Slot,
    /// The replicas that forwarded it, none of them having promised a higher ballot by then.
    pub path: ReplicaSet,
    /// The newest round that had come back to the leader when it made this one …
    pub looped: u64,
    /// … and who had passed that on.
    pub looped_by: ReplicaSet,
    /// Questions that the leader had been asked when it made this round: who, and the number.
    pub asked: SmallVec<[(ReplicaId, u64); 2]>,
}

/// The header of every message along the chain.
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
    /// The replica that answers the leader besides the tail, because its successor is slow.
    pub turn: Option<ReplicaId>,
    /// The newest round that the sender has forwarded.
    pub round: Round,
    /// The votes that the sender knows.
    pub votes: Votes,
}

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend's batch.
    Request(Request),
    /// A replica's word on a request that it could not take.
    Taken(Receipt),
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
        /// The ballot that the sender has promised.
        ballot: Ballot,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether it votes; false in an incarnation that has lost its state and was not yet
        /// re-admitted.
        whole: bool,
        /// Whether it could lead: it votes, and has the state up to its log.
        able: bool,
        /// The slot up to which it holds everything under `ballot`.
        held: Slot,
        /// The newest round that it has seen under `ballot`.
        round: u64,
    },
    /// The sender's successor is silent.
    Suspect {
        /// The ballot.
        ballot: Ballot,
        /// The replica in question.
        about: ReplicaId,
    },
    /// Reads wait: make a round, or an entry of the log.
    Ask {
        /// The asking replica's number for it, ascending.
        stamp: u64,
        /// With an entry.
        ordered: bool,
    },
    /// Of an election.
    Election(ElectionMessage<Entry>),
    /// The leader measures how far away a replica is.
    Ping {
        /// Its time.
        stamp: u64,
    },
    /// The answer, at once.
    Pong {
        /// The same.
        stamp: u64,
    },
    /// Batches on their way to the leader.
    Forward {
        /// The batches, in the order in which they came.
        batches: Vec<Bytes>,
    },
}

request_message!(Message);

impl From<ElectionMessage<Entry>> for Message {
    fn from(message: ElectionMessage<Entry>) -> Self {
        Self::Election(message)
    }
}

wire! {
    struct Round { number, end, path, looped, looped_by, asked as Short }
}
wire! {
    struct Header {
        ballot, committed, everywhere, loop_micros, turn as OrNone, round, votes,
    }
}

wire! {
    enum Message {
        [10, 11, 12, 13, 14, 15] = Election(variants),
        0 = Request(request),
        1 = Taken(receipt),
        2 = Forward { batches },
        3 = Accept { header, first, entries },
        4 = Ack { header, held },
        5 = Skip { ballot, base, chain, decisions },
        6 = Missing { ballot, held },
        7 = Alive { ballot, incarnation, whole, able, held, round },
        8 = Suspect { ballot, about },
        9 = Ask { stamp, ordered },
        16 = Ping { stamp },
        17 = Pong { stamp },
    }
}
