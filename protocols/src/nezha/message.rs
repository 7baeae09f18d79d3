//! The messages, and the records on disk.

use super::{
    conflict::{Marks, SetHash},
    dom::{Name, Stamp},
};
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, FirstSlot, Level, Number, PerMember, Slot, parts::Taken, wire,
};
use smallvec::SmallVec;

/// More than a page has besides its batches.
pub(super) const PART_BYTES: usize = 64 << 10;

/// The incarnations of all members that a replica knows: the paper's crash vector.
pub type Incarnations = SmallVec<[u64; 9]>;

/// The values that a fast quorum compares, besides the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogHash {
    /// A hash of the incarnations that the sender knows.
    pub incarnations: u64,
    /// Slots up to here are left out: committed, and so the same everywhere.
    pub base: Slot,
    /// Of the batch and of all above the base that it does not commute with; 0 with
    /// `known` false when the sender cannot tell.
    pub hash: u128,
    /// Whether `hash` means anything.
    pub known: bool,
}

impl LogHash {
    /// The reply of an entry with this base, hash and knowledge of it, with these incarnations.
    pub(super) const fn of((base, hash, known): (Slot, u128, bool), incarnations: u64) -> Self {
        Self {
            incarnations,
            base,
            hash,
            known,
        }
    }
}

wire! { struct LogHash [33] { incarnations, base, hash, known } }

/// The leader's addition to results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReplyHeader {
    /// The view in which the batch has its slot.
    pub view: u64,
    /// Its slot; 0 for reads, which are final as they come.
    pub slot: Slot,
    /// The log's hash when it was appended.
    pub hash: LogHash,
    /// The latency bound that this replica asks for, in nanoseconds; 0 when it knows none.
    pub bound: u64,
}

wire! { struct ReplyHeader { view as Number, slot, hash, bound } }

/// A batch with its place in the order of deadlines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Its deadline.
    pub deadline: u64,
    /// Its bytes, which hold its name.
    pub batch: Bytes,
}

wire! { struct Placed [12] { deadline, batch } }

/// A replica's log as it tells it to a new leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The last view in which it took part.
    pub view_normal: u64,
    /// All up to here is committed.
    pub commit: Slot,
    /// The first slot that it still keeps.
    pub kept: Slot,
    /// The slot of the first of `synced`.
    pub first: Slot,
    /// The entries of slots that agree with the leader's, without gaps.
    pub synced: Vec<Stamp>,
    /// The entries appended beyond them, in the order of deadlines.
    pub unsynced: Vec<Stamp>,
}

impl Vote {
    /// The last slot that agrees with the leader's.
    #[must_use]
    pub const fn sync(&self) -> Slot {
        Slot((self.first.0 + self.synced.len() as u64).saturating_sub(1))
    }
}

/// How a replica that is asked for recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It takes part in the view that it names.
    Normal,
    /// It is between views.
    Changing,
    /// It has lost its state, too.
    StateLost,
}

/// A message between replicas, without what all of them carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The leader's log, from slot `first` on; also its heartbeat.
    LogModification {
        /// The slot of the first stamp.
        first: Slot,
        /// The entries at that slot and behind it.
        stamps: Vec<Stamp>,
        /// All up to here is committed.
        commit: Slot,
        /// Echoed by followers: confirms that the sender still leads.
        round: u64,
    },
    /// A follower agrees with the leader durably up to `sync`.
    LogStatus {
        /// How far.
        sync: Slot,
        /// The newest round heard.
        round: u64,
    },
    /// The stamps of these slots did not come, those of later slots did.
    Lacks {
        /// The first slot.
        first: Slot,
        /// The last one.
        upto: Slot,
    },
    /// Which batches are missing here.
    Fetch(Vec<Name>),
    /// The requested batches.
    Bodies(Vec<Bytes>),
    /// The leader's log from this slot on, to join its view.
    GetLog(Slot),
    /// A page of it.
    LogPage {
        /// The slot of the first one.
        first: Slot,
        /// Consecutive slots.
        entries: Vec<Placed>,
        /// The log's last slot when it was sent.
        end: Slot,
    },
    /// Slots below this one are no longer kept here.
    Trimmed(Slot),
    /// The leader is not heard any more.
    Suspect,
    /// A new view begins; the sender's commit point.
    ViewChange(Slot),
    /// To the new leader.
    Vote(Vote),
    /// A replica that lost its state asks how things stand.
    Recover(u64),
    /// The answer to the question with this number.
    RecoverOk(u64, Standing),
    /// A follower's fast reply, where the leader checks quorums.
    Appended(Name, LogHash),
}

/// Between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend multicasts a batch.
    Request {
        /// When, by its clock.
        sent: u64,
        /// The latency bound: its deadline is `sent + bound`.
        bound: u64,
        /// The deviation of its clock's offset.
        deviation: u64,
        /// The consistency that the batch needs.
        level: Level,
        /// Its bytes.
        batch: Bytes,
    },
    /// A follower appended batches: a fast reply to each, those of a turn together.
    FastReplies {
        /// In this view.
        view: u64,
        /// As in [`ReplyHeader`].
        bound: u64,
        /// Which, and with which log.
        appended: Vec<(BatchId, LogHash)>,
    },
    /// A follower agrees with its leader up to a slot: stands for a slow reply to each batch.
    SlowReply {
        /// In this view.
        view: u64,
        /// A hash of the incarnations that it knows.
        incarnations: u64,
        /// How far.
        sync: Slot,
        /// As in [`ReplyHeader`].
        bound: u64,
    },
    /// The outcome of a batch that was not appended.
    Taken {
        /// Which.
        batch: BatchId,
        /// Why.
        taken: Taken,
        /// The sender's view, so that its leader is found.
        view: u64,
    },
    /// Between replicas.
    Between {
        /// The sender's view.
        view: u64,
        /// The incarnations that it knows; its own among them.
        incarnations: Incarnations,
        /// Its contents.
        part: Part,
    },
    /// An embedded frontend tells its replica how many batches it committed so far, by path.
    Paths {
        /// By a fast quorum.
        fast: u64,
        /// By a slow one.
        slow: u64,
    },
}

wire! { enum Standing { 0 = Normal, 1 = Changing, 2 = StateLost } }
wire! {
    struct Vote {
        view_normal as Number, commit, kept as FirstSlot, first as FirstSlot, synced, unsynced,
    }
}
wire! {
    enum Part {
        0 = LogModification { first as FirstSlot, stamps, commit, round },
        1 = LogStatus { sync, round },
        2 = Fetch(names),
        3 = Bodies(batches),
        4 = GetLog(from as FirstSlot),
        5 = LogPage { first as FirstSlot, entries, end },
        6 = Trimmed(below as FirstSlot),
        7 = Suspect,
        8 = ViewChange(commit),
        9 = Vote(vote),
        10 = Recover(nonce),
        11 = RecoverOk(nonce, standing),
        12 = Appended(name, hash),
        13 = Lacks { first as FirstSlot, upto },
    }
}
wire! {
    enum Message {
        0 = Request { sent, bound, deviation, level, batch },
        1 = FastReplies { view as Number, bound, appended },
        2 = SlowReply { view as Number, incarnations, sync, bound },
        3 = Taken { batch, taken, view as Number },
        4 = Between { view as Number, incarnations as PerMember, part },
        5 = Paths { fast, slow },
    }
}

/// State that must survive a crash in every durability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// The highest view entered.
    pub view: u64,
    /// The last view in which it took part.
    pub view_normal: u64,
    /// The known incarnations.
    pub incarnations: Incarnations,
}

wire! { struct Promised { view as Number, view_normal as Number, incarnations as PerMember } }

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A batch was appended: in this slot, or (0) beyond what agrees with the leader.
    Entry(Slot, Placed),
    /// A batch that an earlier record holds stands in this slot, with this deadline.
    Moved(Slot, Stamp),
    /// A view began: behind slot `keep` the log is this, and nothing else.
    Begin {
        /// Which view.
        view: u64,
        /// The last slot that stays as it is.
        keep: Slot,
        /// The slots behind it.
        entries: Vec<Placed>,
    },
}

wire! {
    enum Record {
        0 = Entry(slot, placed),
        1 = Moved(slot, stamp),
        2 = Begin { view as Number, keep, entries },
    }
}

/// The protocol's part of a snapshot: what bars batches behind it, and what their fast replies must
/// tell of the log before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The watermarks of the log up to the snapshot.
    pub marks: Marks,
    /// The hashes of the log up to the snapshot.
    pub hash: SetHash,
}

wire! { struct Summary { marks, hash } }
