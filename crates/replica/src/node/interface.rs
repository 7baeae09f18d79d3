//! The inputs and outputs of a node.

use super::*;
use crate::StateDigest;

/// The parts of a node.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Its place among the members.
    pub id: ReplicaId,
    /// Which of its incarnations this is.
    pub incarnation: Incarnation,
    /// Which run of the process.
    pub boot: Boot,
    /// The group that it serves.
    pub group: GroupId,
    /// The epoch.
    pub epoch: Epoch,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// Seeds its random source; different on every replica and boot.
    pub seed: u64,
    /// The id of its embedded frontend, unique per process run; not 0.
    pub frontend: FrontendId,
    /// A snapshot is due after this many bytes of executed batches, or after as many as the last
    /// snapshot had, whichever is more.
    pub snapshot_bytes_min: u64,
    /// The executor's bounds.
    pub limits: ExecutorLimits,
}

/// The default number of bytes of batches executed between two snapshots: a snapshot's cost is then
/// small beside theirs, also when every value is written over at each, and a restart reads its part
/// of the log in a second or two.
pub const SNAPSHOT_BYTES_MIN: u64 = 256 << 20;

/// An input of a node.
#[derive(Debug)]
pub enum Input {
    /// A frame from a peer, as its [`Output::Send`] had it.
    Frame {
        /// The sender.
        from: Peer,
        /// When its bytes arrived.
        arrived: Time,
        /// The bytes, contiguous.
        frame: Bytes,
    },
    /// A batch of client requests, with the node's frontend id in its header.
    Submit(Submission),
    /// A timer fired.
    Timer(TimerKey),
    /// Journal writes up to this one are durable.
    Persisted(PersistId),
    /// This many bytes of the snapshot in progress have been written so far.
    SnapshotWritten(u64),
    /// The snapshot in progress is durable and the world's newest.
    SnapshotSaved(SnapshotInfo),
    /// The snapshot in progress could not be saved. The reason is for the log.
    SnapshotFailed,
    /// Something happened to a link.
    Link(Peer, Link),
    /// A peer changed words of its row, for worlds that carry puts themselves.
    Put {
        /// Whose row.
        from: ReplicaId,
        /// The written words, as [`Output::Put`] had them.
        ranges: Bytes,
    },
    /// An instruction.
    Control(Control),
}

/// An output of a node; the order counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a frame. Replicas not linked now: drop it, retransmission is the protocol's.
    Send {
        /// To whom; never to itself.
        to: Recipients,
        /// On which lane.
        lane: Lane,
        /// The bytes, envelope included.
        frame: Frame,
    },
    /// Change words of this replica's row at peers, range by range in their order. Puts and sends
    /// on the lane for control to one peer arrive in the order in which they were asked for, or the
    /// link says that it broke. [`put_frame`] makes a frame of it.
    Put {
        /// To whom.
        to: ReplicaSet,
        /// Which words and their new values, see [`crate::put_ranges`].
        ranges: Bytes,
    },
    /// Make this durable, in order; answer with [`Input::Persisted`].
    Journal {
        /// Its number.
        id: PersistId,
        /// The write.
        write: Write,
    },
    /// Journal records below this slot may be deleted.
    Trim {
        /// The first slot still needed.
        below: Slot,
    },
    /// Fire a timer once; moves one that is set.
    SetTimer {
        /// Which.
        key: TimerKey,
        /// When.
        at: Deadline,
    },
    /// Forget a timer.
    CancelTimer {
        /// Which.
        key: TimerKey,
    },
    /// Begin a snapshot file; an unfinished one is abandoned.
    SnapshotBegin {
        /// The position that it covers.
        id: Executed,
        /// It comes from a peer: the journal has a gap before it, so that no older snapshot can
        /// stand in for it.
        fetched: bool,
        /// This number of its bytes is here from an earlier run and stays, see
        /// [`World::snapshot_left`](crate::World::snapshot_left); what is appended comes behind them.
        kept: u64,
        /// It must outlive the process: once it is saved, it is durable.
        durable: bool,
    },
    /// Append to it.
    SnapshotAppend(Bytes),
    /// Cut it off here; what is appended next comes behind that.
    SnapshotTruncate(u64),
    /// It is a bridge from the epoch before to the beginning of this one: name it for that. A replica
    /// that starts in the epoch before has no use for it.
    SnapshotBridges {
        /// Where this epoch begins.
        base: Executed,
    },
    /// It is whole: make it durable, then [`Input::SnapshotSaved`].
    SnapshotFinish,
    /// Delete the unfinished snapshot.
    SnapshotAbandon,
    /// A replica that had lost its state votes again. Once every journal write asked for before
    /// this is durable, the world need no longer remember that it had lost its state.
    Recovered,
    /// A submitted batch is finished.
    Done {
        /// Which.
        batch: BatchId,
        /// How.
        outcome: Outcome,
    },
    /// The members that take part in the protocol, in its order.
    Route {
        /// From this slot on.
        slot: Slot,
        /// The participants.
        members: SmallVec<[(ReplicaId, Incarnation); 8]>,
        /// Decided; otherwise it may be decided yet.
        agreed: bool,
    },
    /// The state of another epoch is here, durably. Make durable, by file, that this replica is in
    /// that epoch, so that it never runs an earlier one again; delete what the journal has of
    /// earlier ones; then [`Node::begin_epoch`].
    EpochBegins {
        /// Its number.
        number: EpochNumber,
        /// Its descriptor, whole.
        descriptor: Bytes,
        /// Where it began.
        base: Executed,
    },
    /// A digest of this replica's state is finished and final.
    Digest(StateDigest),
    /// The replicas' states differ.
    Diverged(Divergence),
    /// A rare branch was taken.
    Mark(&'static str),
    /// Break the links to all replicas and make them again: frames were dropped.
    BreakLinks,
    /// The node must stop with this message.
    Halt(HaltKind, String),
}

/// The remaining abilities of a node that must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaltKind {
    /// Nothing by itself: the message says what the operator must do.
    Refused,
    /// It is no member any more.
    NoMember,
    /// It gave up what it had in memory; started again, it continues with its disk.
    StartAgain,
}

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It cannot be read.
    #[error("malformed frame: {0}")]
    Malformed(#[from] DecodeError),
    /// It is of another epoch.
    #[error("frame of epoch {theirs}, this is {ours}")]
    Epoch {
        /// The frame's.
        theirs: EpochNumber,
        /// This node's.
        ours: EpochNumber,
    },
    /// It is of another group.
    #[error("frame of group {theirs}")]
    Group {
        /// The frame's.
        theirs: GroupId,
    },
}

/// Why a node cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Its newest snapshot cannot be restored.
    #[error("snapshot {0}: {1}")]
    Snapshot(Slot, RestoreError),
    /// The options are not the protocol's.
    #[error("{0}")]
    Options(#[from] OptionError),
    /// A record in the journal is not one of this protocol's.
    #[error("{0}")]
    Journal(#[from] EventError),
}

/// Where the transfer of a peer's state to this replica stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferStatus {
    /// The present step.
    pub phase: TransferPhase,
    /// The donor.
    pub donor: ReplicaId,
    /// The slot that the protocol wants it to reach at least.
    pub wanted: Slot,
    /// The position that the snapshot covers, once the donor has named one.
    pub snapshot: Option<Executed>,
    /// The slot up to which batches executed since are here; the snapshot's while there are none.
    pub reached: Slot,
    /// This many bytes of the phase are done …
    pub bytes: u64,
    /// … of this many; 0 while that is unknown.
    pub total: u64,
    /// How long the phase has taken.
    pub elapsed: Duration,
    /// How long it takes yet if it continues as before; unknown at its beginning.
    pub left: Option<Duration>,
}

/// A part of the transfer of a state, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferPhase {
    /// The donor has been asked, and has or takes a snapshot.
    Asking,
    /// The snapshot comes in.
    Receiving,
    /// The batches executed after the snapshot come in.
    Following,
    /// It is being made durable.
    Saving,
    /// The state machine takes it over.
    Restoring,
}

impl TransferPhase {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Receiving => "receiving",
            Self::Following => "following",
            Self::Saving => "saving",
            Self::Restoring => "restoring",
        }
    }
}

/// The state of a node, for users.
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// The protocol's own part.
    pub protocol: Status,
    /// How far execution has come.
    pub executed: Executed,
    /// How far the protocol has come: further than that behind the end of an epoch.
    pub progress: Slot,
    /// The log's clock there.
    pub time: u64,
    /// Entries of the state machine.
    pub entries: u64,
    /// Memory of the state machine in bytes, estimated.
    pub memory: u64,
    /// The state machine refuses commands that need memory.
    pub refuses_writes: bool,
    /// Open sessions.
    pub sessions: usize,
    /// Requests executed since the process began.
    pub commands: u64,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotInfo>,
    /// Whether a snapshot is being written.
    pub snapshot_in_progress: bool,
    /// Whether a peer's state is being fetched.
    pub fetching: bool,
    /// Where that stands.
    pub transfer: Option<TransferStatus>,
    /// Bytes of peers' states received since the process began.
    pub state_bytes_received: u64,
    /// Bytes of this replica's state given to peers since the process began.
    pub state_bytes_sent: u64,
    /// Whether the disk hangs: the node hears and says nothing.
    pub disk_hung: bool,
    /// How the epoch has ended, if it has.
    pub sealed: Option<crate::Seal>,
    /// Batches of the embedded frontend in progress.
    pub open: usize,
    /// Frames dropped because they could not be read.
    pub frames_malformed: u64,
    /// Frames dropped because they were of another epoch or group.
    pub frames_foreign: u64,
    /// Digests of the state, and how they compare.
    pub digests: DigestStatus,
}
