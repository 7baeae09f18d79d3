//! The requests of a state machine to the world, and the world's answers.
//!
//! Effects leave a handler in one first-in-first-out buffer; the world carries them out in that
//! order after the handler has returned. Nothing is called from inside a handler.

use crate::{
    BatchId, CommandTime, Deadline, Frame, FrontendId, GroupId, Incarnation, Level, Outcome, Peer,
    PersistId, ReplicaId, ReplicaSet, Slot, Time,
};
use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use smallvec::SmallVec;

/// A lane of a link. First-in-first-out within a lane; a large transfer on one does not delay the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lane {
    /// Small and urgent: votes, heartbeats, ordinary batches.
    Control = 0,
    /// Large: state transfer, big payloads.
    Bulk = 1,
}

/// The recipients of a frame. Never the sender itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients {
    /// These replicas.
    Replicas(ReplicaSet),
    /// One frontend that is not embedded in this replica.
    Frontend(FrontendId),
}

/// Which half of the protocol, or the node around it, a timer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerOwner {
    /// The replica's half.
    Replica,
    /// The embedded frontend.
    Frontend,
    /// The node: state transfer and housekeeping.
    Node,
}

/// Names a timer of a node. Setting a timer that is set moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerKey {
    /// Whose it is.
    pub owner: TimerOwner,
    /// Which of the owner's.
    pub timer: u32,
    /// Of which of the protocols that the node has run one after the other: one that fires after
    /// its protocol has ended is no other's.
    pub generation: u16,
}

/// A record for the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The replica's promises, whole; replaces the ones before. Fsynced in every durability.
    Promise(Bytes),
    /// A record of the log, for `slot`. Several for one slot are all kept, in order.
    Record {
        /// Records below the trimmed slot may be deleted.
        slot: Slot,
        /// The protocol's encoding.
        record: Bytes,
    },
}

impl Write {
    /// The length of what is written, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Promise(bytes) => bytes.len(),
            Self::Record { record, .. } => record.len(),
        }
    }
}

/// Where the reply to an executed batch goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplyRoute {
    /// The frontend that waits for it; a reply with no route is dropped and the retry recovers.
    pub to: FrontendId,
    /// The protocol's own header, bound when the batch was appended.
    pub header: Bytes,
    /// The write that must be durable before the reply leaves.
    pub after: Option<PersistId>,
}

/// The state of a group of a protocol that serves several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RoleState {
    /// It orders.
    Active,
    /// It has too few members that hold its log: nothing is ordered, and nothing linearizable is
    /// read.
    Lost,
}

/// The parts in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Role {
    /// The group.
    pub group: GroupId,
    /// Its state.
    pub state: RoleState,
    /// The replicas that execute its order.
    pub members: ReplicaSet,
    /// Those of them that take requests and order them; the others pass them on.
    pub senders: ReplicaSet,
}

/// An effect of a replica or its embedded frontend.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a frame.
    Send {
        /// To whom.
        to: Recipients,
        /// On which lane.
        lane: Lane,
        /// Its bytes.
        frame: Frame,
    },
    /// Send a frame of the embedded frontend to other replicas: they see it as the frontend's, and
    /// what they send to the frontend comes back to this replica.
    Request {
        /// To whom.
        to: ReplicaSet,
        /// Its bytes.
        frame: Frame,
    },
    /// Write words into this replica's row of the peers' copies of the shared table: ranges in
    /// their order, so that a word that guards others follows them.
    Put {
        /// To whom.
        to: ReplicaSet,
        /// The ranges, see [`crate::put_ranges`].
        ranges: Bytes,
    },
    /// Make this durable; completes in order of ids.
    Persist {
        /// Its number.
        id: PersistId,
        /// The write.
        write: Write,
    },
    /// Records below this slot are no longer needed for recovery.
    Trim {
        /// The first slot still needed.
        below: Slot,
    },
    /// Fire a timer once.
    SetTimer {
        /// Which; a set one is moved.
        key: TimerKey,
        /// When.
        at: Deadline,
    },
    /// Forget a timer.
    CancelTimer {
        /// Which.
        key: TimerKey,
    },
    /// Execute a batch; slots ascend. An empty batch only moves the executor's slot on.
    Execute {
        /// The slot that it was decided in.
        slot: Slot,
        /// Its time.
        time: CommandTime,
        /// The batch's bytes; empty for a slot with nothing in it.
        batch: Bytes,
        /// The frontend to answer, if this replica is the one that answers.
        reply: Option<ReplyRoute>,
    },
    /// Execute a batch that has no place in the order: at once, here, whatever other replicas have
    /// executed. Only for options that say [`Options::unordered`](crate::Options::unordered).
    Unordered {
        /// Its time.
        time: CommandTime,
        /// The batch's bytes.
        batch: Bytes,
        /// The frontend to answer, if this replica is the one that answers.
        reply: Option<ReplyRoute>,
    },
    /// Run a batch of reads once the executor has come as far as `at_least`.
    Query {
        /// The batch's bytes.
        batch: Bytes,
        /// The slot that must have been executed.
        at_least: Slot,
        /// Also keep the answer until all that it saw is stable; dropped when it is rolled back.
        stable: bool,
        /// The frontend to answer.
        reply: ReplyRoute,
    },
    /// Answer a batch again that was ordered before, from its sessions, once the executor has
    /// come as far as `at_least`. Nothing is executed.
    Replay {
        /// The batch's bytes.
        batch: Bytes,
        /// The slot that it was ordered in, or a later one.
        at_least: Slot,
        /// The frontend to answer.
        reply: ReplyRoute,
    },
    /// Everything executed up to this slot will never be rolled back. Protocols that do not
    /// speculate need not say it.
    Stable {
        /// The last stable slot.
        slot: Slot,
    },
    /// Undo what was executed above this slot. Only for protocols that speculate.
    RollBack {
        /// The last slot that stays.
        slot: Slot,
    },
    /// Take a snapshot of the state as the executions before this effect leave it.
    Checkpoint {
        /// The last slot that it covers; all of them have been executed.
        slot: Slot,
        /// The protocol's state to continue from there.
        summary: Bytes,
    },
    /// Obtain a snapshot that covers `at_least` from one of these replicas.
    FetchState {
        /// The replicas that may have it, best first by the order of ids.
        from: ReplicaSet,
        /// The slot that it must cover.
        at_least: Slot,
    },
    /// The members that take part in the protocol now, for status and for redirects.
    Route {
        /// From this slot on.
        slot: Slot,
        /// The participants in the protocol's order (a chain from head to tail).
        members: SmallVec<[(ReplicaId, Incarnation); 8]>,
        /// Decided; otherwise it may be decided yet.
        agreed: bool,
    },
    /// The members of the group from this view on, for its users. Only of protocols that change
    /// their members.
    View {
        /// Its number: a later view has a higher one, and it is the same view at all replicas.
        number: u64,
        /// The members.
        members: ReplicaSet,
    },
    /// The parts in all groups from this view of the protocol on. Only of protocols that serve
    /// several groups, from the first of them.
    Roles {
        /// The view's number.
        view: u64,
        /// Every group but the first.
        roles: Vec<Role>,
    },
    /// A replica that had lost its state holds again all that it may have acknowledged, and votes.
    Recovered,
    /// A batch given to the embedded frontend is finished.
    Done {
        /// Which.
        batch: BatchId,
        /// How it ended.
        outcome: Outcome,
    },
    /// A rare branch was taken; campaigns report how often.
    Mark(&'static str),
    /// The replica cannot continue: stop it with this message.
    Halt(String),
    /// The contents of its memory count no more: its process starts again, with its disk.
    StartAgain(String),
}

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A new connection; frames of an older one came before this or never will.
    Up {
        /// The peer's incarnation as it told it.
        incarnation: Incarnation,
    },
    /// There is room again for this many bytes.
    Room(usize),
    /// A part of something long has come from the peer: it is there, though it may be long before
    /// anything of it can be read, or what was sent behind it comes. For a bounded time only, lest
    /// a link that takes forever count as one that works.
    Arriving,
    /// The connection broke and is being made again: frames may have been lost.
    Reset,
    /// The peer cannot be reached, or its queue overflowed.
    Down,
}

/// An instruction from the operator or the node to the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Enough has been executed since the last snapshot: emit a `Checkpoint`.
    CheckpointDue,
    /// The replica is about to stop: hand leadership to another if there is one.
    HandOff,
    /// This replica is far slower than each of these: one of them had better lead in its place.
    /// Said only to the leader, at most once in ten seconds.
    Slow(ReplicaSet),
    /// One peer of this replica is far farther than any peer of each of these, by one slow link: who
    /// leads had better be none of its ends. Said as [`Self::Slow`] is, and not beside it.
    Farther(ReplicaSet),
    /// A majority is far quicker than each of these, this replica perhaps among them. Said when it
    /// changes, to every member; they may differ for a while in what they find.
    SlowMembers(ReplicaSet),
    /// The end of the epoch is decided: what else is, is to be told at once, as perhaps nothing
    /// follows that would tell it.
    EpochEnded,
    /// An operator knows that this replica has failed.
    ReportFailure(ReplicaId),
    /// Change an option while running.
    Option {
        /// Its name.
        name: String,
        /// The new value, checked already.
        value: String,
    },
}

/// The state that a replica finds when it starts. First boot and restart are one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Recovered<P, R, S> {
    /// Nothing was ever written under this identity.
    pub first_boot: bool,
    /// Acknowledged entries may have been lost (memory durability and not the first boot, or
    /// a damaged journal): do not vote or acknowledge before a recovery quorum has answered, then
    /// say [`crate::Context::recovered`]. The incarnation is a new one. Checkpoint and records are
    /// true as far as they go, but records may be missing at the end; promises are all there.
    pub state_lost: bool,
    /// The last promise made durable.
    pub promise: Option<P>,
    /// The snapshot that the executor was restored from: its slot and the protocol's summary.
    pub checkpoint: Option<(Slot, S)>,
    /// The journal's records, in the order in which they were written.
    pub records: Vec<(Slot, R)>,
}

/// The same, as bytes.
pub type RecoveredBytes = Recovered<Bytes, Bytes, Bytes>;

/// An event of a driver.
#[derive(Clone, Debug)]
pub enum Event {
    /// The first event, once.
    Start(RecoveredBytes),
    /// A protocol message.
    Message {
        /// The sender.
        from: Peer,
        /// When its bytes arrived.
        arrived: Time,
        /// Its encoding.
        message: Bytes,
    },
    /// A message of another replica to the embedded frontend.
    ToFrontend {
        /// The sender.
        from: ReplicaId,
        /// Its encoding.
        message: Bytes,
    },
    /// A reply of a replica to the embedded frontend.
    Reply {
        /// The replica that executed it.
        from: ReplicaId,
        /// Which batch.
        batch: BatchId,
        /// The protocol's header.
        header: Bytes,
        /// The results, see [`crate::Results`].
        results: Bytes,
    },
    /// A batch of requests for the embedded frontend.
    Submit(Submission),
    /// A timer fired.
    Timer(TimerKey),
    /// All writes up to this one are durable.
    Persisted(PersistId),
    /// All batches up to this slot have been executed.
    Executed(Slot),
    /// The execution above this slot has been undone.
    RolledBack(Slot),
    /// The snapshot that covers this slot is durable.
    Checkpointed(Slot),
    /// The executor now holds a state received from a peer.
    Installed {
        /// The slot that it covers.
        slot: Slot,
        /// The protocol's summary in it.
        summary: Bytes,
    },
    /// Something happened to a link.
    Link(Peer, Link),
    /// A peer changed words of its row.
    Put {
        /// Whose row.
        from: ReplicaId,
        /// The ranges, see [`crate::put_ranges`].
        ranges: Bytes,
    },
    /// An instruction.
    Control(Control),
    /// The inbox is empty.
    Idle,
}

/// The wish of a replica after its inbox ran empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// Call me again at once if you can afford to spin.
    Spin,
    /// Call me at this time if nothing happens before.
    At(Time),
    /// Only when something happens.
    Sleep,
}

/// A batch of requests on its way through a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Submission {
    /// The frontend's number for it, ascending.
    pub id: BatchId,
    /// The consistency that its requests need.
    pub level: Level,
    /// Its bytes, with this frontend's id and `id` in the header.
    pub batch: Bytes,
    /// When to give up.
    pub deadline: Time,
}
