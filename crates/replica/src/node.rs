//! A node: one replica with its executor, whole but for sockets, files and clocks.
//!
//! ```text
//!   Input ──► frames, submissions, timers, durable writes, saved snapshots, links
//!               │
//!               ▼                       answers
//!            Driver<P> ──Effect──► Executor ──► embedded frontend, or a frame to its sender
//!               ▲                     │
//!               └── Executed, Checkpointed, Installed ◄── snapshots, state transfer
//!               │
//!   Output ◄────┘  frames, journal writes, timers, snapshot bytes, finished batches
//! ```
//!
//! The runtime and the simulator both drive this type and add nothing but the outside.

use crate::{
    Answer, BatchBuilder, BatchId, Boot, Bytes, ClusterId, CommandId, Control, Deadline,
    DecodeError, Durability, Effect, Entry, Epoch, EpochNumber, Event, EventError, Executed,
    Executor, ExecutorLimits, Frame, FrontendId, GroupId, Incarnation, Lane, Level, Link,
    OptionError, Outcome, Peer, PersistId, Reader, Recipients, RecoveredBytes, Replica, ReplicaId,
    ReplicaSet, RequestKind, RestoreError, Setup, Slot, SnapshotInfo, SnapshotProgress,
    StateMachine, Status, Submission, Time, TimerKey, TimerOwner, Wake, Wire, World, Write, Writer,
    transfer::{self, Fetch, TransferMessage},
};
use alloc::{boxed::Box, collections::VecDeque, format, string::String, vec::Vec};
use bytes::{BufMut, BytesMut};
use core::time::Duration;
use smallvec::SmallVec;

/// The version of the frame envelope.
pub const FRAME_VERSION: u8 = 1;
const ENVELOPE: usize = 16;
/// Snapshot bytes handed to the world but not yet written.
const SNAPSHOT_AHEAD_MAX: u64 = 4 << 20;
const SNAPSHOT_STEP: usize = 64 * 1024;
const TIMER_FETCH: u32 = 0;
const TIMER_TICK: u32 = 1;
/// Batches of the node's own are numbered from here, far above any server's.
const OWN_BATCHES: u64 = 1 << 63;
const TICK_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum FrameKind {
    Message = 0,
    Reply = 1,
    Transfer = 2,
    Put = 3,
}

/// What a node is made from.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Its place among the members.
    pub id: ReplicaId,
    /// Which of its lives this is.
    pub incarnation: Incarnation,
    /// Which run of the process.
    pub boot: Boot,
    /// The group that it serves.
    pub group: GroupId,
    /// The epoch.
    pub epoch: Epoch,
    /// What an acknowledgement promises.
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

/// What the world tells a node.
#[derive(Debug)]
pub enum Input {
    /// A frame from a peer, as its [`Output::Send`] had it.
    Frame {
        /// Who sent it.
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
    /// This many bytes of the snapshot under way have been written so far.
    SnapshotWritten(u64),
    /// The snapshot under way is durable and the world's newest.
    SnapshotSaved(SnapshotInfo),
    /// The snapshot under way could not be saved. The reason is for the log.
    SnapshotFailed,
    /// Something happened to a link.
    Link(Peer, Link),
    /// A peer changed words of its row, for worlds that carry puts themselves.
    Put {
        /// Whose row.
        from: ReplicaId,
        /// Index of the first word.
        offset: u32,
        /// The new values.
        words: SmallVec<[u64; 4]>,
    },
    /// An instruction.
    Control(Control),
}

/// What a node asks of the world, in order.
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
    /// Change words of this replica's row at peers; an unsent put to the same offset may be
    /// overwritten. [`put_frame`] makes a frame of it.
    Put {
        /// To whom.
        to: ReplicaSet,
        /// Index of the first word.
        offset: u32,
        /// The new values.
        words: SmallVec<[u64; 4]>,
    },
    /// Make this durable, in order; answer with [`Input::Persisted`].
    Journal {
        /// Its number.
        id: PersistId,
        /// What.
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
    SnapshotBegin(Executed),
    /// Append to it.
    SnapshotAppend(Bytes),
    /// It is whole: make it durable, then [`Input::SnapshotSaved`].
    SnapshotFinish,
    /// Delete the unfinished snapshot.
    SnapshotAbandon,
    /// A submitted batch is finished.
    Done {
        /// Which.
        batch: BatchId,
        /// How.
        outcome: Outcome,
    },
    /// Who takes part in the protocol, in its order.
    Route {
        /// From this slot on.
        slot: Slot,
        /// The participants.
        members: SmallVec<[(ReplicaId, Incarnation); 8]>,
    },
    /// A rare branch was taken.
    Mark(&'static str),
    /// The node must stop with this message.
    Halt(String),
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
    /// A record in the journal is not one of this protocol's.
    #[error("{0}")]
    Journal(#[from] EventError),
}

/// Where a snapshot under way comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// From this node's executor.
    Own { whole: bool },
    /// From a peer.
    Fetched { whole: bool },
}

struct UnderWay {
    kind: Under,
    id: Executed,
    appended: u64,
    written: u64,
}

/// What a node shows of itself.
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// The protocol's own part.
    pub protocol: Status,
    /// How far execution has come.
    pub executed: Executed,
    /// The log's clock there.
    pub time: u64,
    /// Entries of the state machine.
    pub entries: u64,
    /// Memory of the state machine in bytes, estimated.
    pub memory: u64,
    /// Open sessions.
    pub sessions: usize,
    /// Requests executed since the process began.
    pub commands: u64,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotInfo>,
    /// Whether a snapshot is being written.
    pub snapshot_under_way: bool,
    /// Whether a peer's state is being fetched.
    pub fetching: bool,
    /// Batches of the embedded frontend under way.
    pub open: usize,
    /// Frames dropped because they could not be read.
    pub frames_malformed: u64,
    /// Frames dropped because they were of another epoch or group.
    pub frames_foreign: u64,
}

/// See the module.
pub struct Node {
    id: ReplicaId,
    group: GroupId,
    epoch: EpochNumber,
    frontend: FrontendId,
    cluster: ClusterId,
    replica: Box<dyn Replica>,
    executor: Executor,
    envelopes: [Bytes; 4],
    scratch: BytesMut,
    effects: Vec<Effect>,
    events: VecDeque<Event>,
    executed_told: Slot,
    persisted: PersistId,
    persist_last: PersistId,
    /// Answers that wait for durability, ascending by what they wait for.
    held: VecDeque<Answer>,
    under_way: Option<UnderWay>,
    fetch: Option<Fetch>,
    snapshot_bytes_min: u64,
    snapshot_last: u64,
    checkpoint_asked: bool,
    tick_at: Option<u64>,
    tick_open: Option<BatchId>,
    batch_next: u64,
    batches: BatchBuilder,
    malformed: u64,
    foreign: u64,
    started: bool,
}

fn envelope(kind: FrameKind, group: GroupId, epoch: EpochNumber) -> Bytes {
    let mut bytes = BytesMut::with_capacity(ENVELOPE);
    bytes.put_u8(kind as u8);
    bytes.put_u8(FRAME_VERSION);
    bytes.put_u16_le(0);
    bytes.put_u32_le(group.0);
    bytes.put_u64_le(epoch.0);
    bytes.freeze()
}

impl Node {
    /// A node before its start.
    ///
    /// # Errors
    /// When the epoch's options are not the protocol's.
    pub fn new(
        setup: NodeSetup,
        protocol: &Entry,
        machine: Box<dyn StateMachine>,
    ) -> Result<Self, OptionError> {
        assert!(
            setup.frontend != FrontendId(0),
            "frontend 0 stands for none"
        );
        assert!(
            setup.id.index() < setup.epoch.members,
            "a member's id is below their number"
        );
        let (group, epoch, cluster) = (setup.group, setup.epoch.number, setup.epoch.cluster);
        let replica = (protocol.replica)(
            Setup {
                id: setup.id,
                incarnation: setup.incarnation,
                group,
                epoch: setup.epoch,
                durability: setup.durability,
                options: (),
                seed: setup.seed,
            },
            setup.frontend,
        )?;
        let kinds = [
            FrameKind::Message,
            FrameKind::Reply,
            FrameKind::Transfer,
            FrameKind::Put,
        ];
        Ok(Self {
            id: setup.id,
            group,
            epoch,
            cluster,
            frontend: setup.frontend,
            replica,
            executor: Executor::new(cluster, group, epoch, machine, setup.limits),
            envelopes: kinds.map(|kind| envelope(kind, group, epoch)),
            scratch: BytesMut::new(),
            effects: Vec::new(),
            events: VecDeque::new(),
            executed_told: Slot(0),
            persisted: PersistId(0),
            persist_last: PersistId(0),
            held: VecDeque::new(),
            under_way: None,
            fetch: None,
            snapshot_bytes_min: setup.snapshot_bytes_min,
            snapshot_last: 0,
            checkpoint_asked: false,
            tick_at: None,
            tick_open: None,
            batch_next: OWN_BATCHES,
            batches: BatchBuilder::new(),
            malformed: 0,
            foreign: 0,
            started: false,
        })
    }

    /// The node's place among the members.
    #[must_use]
    pub const fn id(&self) -> ReplicaId {
        self.id
    }

    /// The cluster that it belongs to.
    #[must_use]
    pub const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The id that submitted batches must carry in their header.
    #[must_use]
    pub const fn frontend(&self) -> FrontendId {
        self.frontend
    }

    /// Restores the world's newest snapshot, then starts the protocol with what the journal holds.
    /// `recovered.checkpoint` is ignored: it comes from the snapshot.
    ///
    /// # Errors
    /// When snapshot or journal make no sense; the node must not be used then.
    pub fn start(
        &mut self,
        mut recovered: RecoveredBytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), StartError> {
        assert!(!self.started, "a node starts once");
        self.started = true;
        recovered.checkpoint = None;
        if let Some(info) = world.snapshot_newest() {
            let header = self
                .executor
                .restore(|offset| world.snapshot_read(info.id, offset, transfer::PIECE))
                .map_err(|error| StartError::Snapshot(info.id.slot, error))?;
            self.executed_told = header.executed.slot;
            self.snapshot_last = info.length;
            recovered.checkpoint = Some((header.executed.slot, header.summary));
        }
        self.replica
            .on_event(Event::Start(recovered), world, &mut self.effects)?;
        self.carry_out(world, out);
        Ok(())
    }

    /// Handles one input; outputs are appended in order. A frame that makes no sense is dropped
    /// and counted, and the error says why.
    ///
    /// # Errors
    /// Only for [`Input::Frame`]; the node goes on.
    ///
    /// # Panics
    /// When an invariant does not hold: stop the process.
    pub fn on_input(
        &mut self,
        input: Input,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), FrameError> {
        let result = match input {
            Input::Frame {
                from,
                arrived,
                frame,
            } => self.on_frame(from, arrived, frame, world, out),
            other => {
                self.on_other(other, world, out);
                Ok(())
            }
        };
        match result {
            Err(FrameError::Malformed(_)) => self.malformed += 1,
            Err(_) => self.foreign += 1,
            Ok(()) => {}
        }
        self.carry_out(world, out);
        result
    }

    fn on_other(&mut self, input: Input, world: &dyn World, out: &mut Vec<Output>) {
        match input {
            Input::Frame { .. } => unreachable!("frames are handled apart"),
            Input::Submit(submission) => self.events.push_back(Event::Submit(submission)),
            Input::Timer(key) if key.owner == TimerOwner::Node => self.on_timer(key, world, out),
            Input::Timer(key) => self.events.push_back(Event::Timer(key)),
            Input::Persisted(upto) => {
                assert!(upto >= self.persisted, "durability does not go back");
                self.persisted = upto;
                self.events.push_back(Event::Persisted(upto));
                self.release_held(out);
            }
            Input::SnapshotWritten(bytes) => {
                if let Some(under_way) = &mut self.under_way {
                    under_way.written = bytes;
                }
            }
            Input::SnapshotSaved(info) => self.on_snapshot_saved(info, world, out),
            Input::SnapshotFailed => {
                self.under_way = None;
                self.checkpoint_asked = false;
                self.executor.abandon_snapshot();
                if let Some(fetch) = &mut self.fetch {
                    fetch.snapshot = None;
                    fetch.offset = 0;
                }
            }
            Input::Link(peer, link) => self.events.push_back(Event::Link(peer, link)),
            Input::Put {
                from,
                offset,
                words,
            } => {
                self.events.push_back(Event::Put {
                    from,
                    offset,
                    words,
                });
            }
            Input::Control(control) => self.events.push_back(Event::Control(control)),
        }
    }

    fn on_frame(
        &mut self,
        from: Peer,
        arrived: Time,
        frame: Bytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), FrameError> {
        let mut reader = Reader::new(frame);
        let kind = reader.u8("frame kind")?;
        if reader.u8("frame version")? != FRAME_VERSION {
            return Err(DecodeError::Bad("frame version").into());
        }
        reader.u16("frame flags")?;
        let group = GroupId(reader.u32("group")?);
        let epoch = EpochNumber(reader.u64("epoch")?);
        if group != self.group {
            return Err(FrameError::Group { theirs: group });
        }
        if epoch != self.epoch {
            return Err(FrameError::Epoch {
                theirs: epoch,
                ours: self.epoch,
            });
        }
        if kind == FrameKind::Message as u8 {
            let message = reader.rest();
            let event = Event::Message {
                from,
                arrived,
                message,
            };
            return match self.replica.on_event(event, world, &mut self.effects) {
                Ok(()) => Ok(()),
                Err(EventError::Decode(error) | EventError::Recovered(error)) => Err(error.into()),
            };
        }
        let Peer::Replica(from) = from else {
            return Err(DecodeError::Bad("frame kind").into());
        };
        if kind == FrameKind::Reply as u8 {
            let batch = BatchId(reader.u64("batch")?);
            let (header, results) = (reader.blob("header")?, reader.blob("results")?);
            self.events.push_back(Event::Reply {
                from,
                batch,
                header,
                results,
            });
        } else if kind == FrameKind::Transfer as u8 {
            let message = TransferMessage::decode_all(reader.rest())?;
            self.on_transfer(from, message, world, out);
        } else if kind == FrameKind::Put as u8 {
            let offset = reader.u32("put offset")?;
            let mut words = SmallVec::new();
            while reader.remaining() > 0 {
                words.push(reader.u64("put word")?);
            }
            self.events.push_back(Event::Put {
                from,
                offset,
                words,
            });
        } else {
            return Err(DecodeError::Bad("frame kind").into());
        }
        Ok(())
    }

    /// The inbox is empty: lets the protocol flush, moves a snapshot under way on, and says when
    /// to be called again.
    pub fn on_idle(&mut self, world: &dyn World, out: &mut Vec<Output>) -> Wake {
        let mut wake = self.replica.on_idle(world, &mut self.effects);
        self.carry_out(world, out);
        if self.step_snapshot(out) {
            wake = Wake::Spin;
        }
        self.maybe_ask_for_checkpoint(world, out);
        self.maybe_tick(world, out);
        wake
    }

    /// Tells the embedded frontend and the replica everything in the queue and carries out what
    /// they ask for, until nothing more comes.
    fn carry_out(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        loop {
            if !self.effects.is_empty() {
                let mut effects = core::mem::take(&mut self.effects);
                for effect in effects.drain(..) {
                    self.carry_out_effect(effect, world, out);
                }
                if self.effects.is_empty() {
                    self.effects = effects;
                }
                let clock = world.clock().now;
                let mut answers = SmallVec::<[Answer; 4]>::new();
                self.executor.released(clock, |answer| answers.push(answer));
                for answer in answers {
                    self.answer(answer, out);
                }
                continue;
            }
            if let Some(event) = self.events.pop_front() {
                // Only bytes from other processes can fail to decode here, and dropping them is
                // what a lost message would have done.
                if self
                    .replica
                    .on_event(event, world, &mut self.effects)
                    .is_err()
                {
                    self.malformed += 1;
                }
                continue;
            }
            let executed = self.executor.executed().slot;
            if executed == self.executed_told {
                return;
            }
            self.executed_told = executed;
            self.events.push_back(Event::Executed(executed));
        }
    }

    fn carry_out_effect(&mut self, effect: Effect, world: &dyn World, out: &mut Vec<Output>) {
        match effect {
            Effect::Send { to, lane, frame } => {
                out.push(Output::Send {
                    to,
                    lane,
                    frame: self.wrap(FrameKind::Message, frame),
                });
            }
            Effect::Put { to, offset, words } => out.push(Output::Put { to, offset, words }),
            Effect::Persist { id, write } => {
                self.persist_last = id;
                out.push(Output::Journal { id, write });
            }
            Effect::Trim { below } => out.push(Output::Trim { below }),
            Effect::SetTimer { key, at } => out.push(Output::SetTimer { key, at }),
            Effect::CancelTimer { key } => out.push(Output::CancelTimer { key }),
            Effect::Execute {
                slot,
                time,
                batch,
                reply,
            } => {
                if let Some(answer) = self.executor.execute(slot, time, &batch, reply) {
                    self.answer(answer, out);
                }
            }
            Effect::Query {
                batch,
                at_least,
                stable: _,
                reply,
            } => {
                let clock = world.clock().now;
                if let Some(answer) = self.executor.query(batch, at_least, reply, clock) {
                    self.answer(answer, out);
                }
            }
            // Execution is final as soon as it happens for protocols that do not speculate.
            Effect::Stable { .. } => {}
            Effect::RollBack { slot } => {
                assert!(
                    slot >= self.executor.executed().slot,
                    "only speculation is rolled back"
                );
            }
            Effect::Checkpoint { slot, summary } => self.begin_snapshot(slot, summary, out),
            Effect::FetchState { from, at_least } => self.begin_fetch(from, at_least, world, out),
            Effect::Route { slot, members } => out.push(Output::Route { slot, members }),
            Effect::Seal { .. } => out.push(Output::Mark("seal")),
            Effect::Done { batch, outcome } => self.done(batch, outcome, out),
            Effect::Mark(branch) => out.push(Output::Mark(branch)),
            Effect::Halt(reason) => out.push(Output::Halt(reason)),
        }
    }

    fn wrap(&self, kind: FrameKind, frame: Frame) -> Frame {
        frame.prefixed(self.envelopes[kind as usize].clone())
    }

    fn done(&mut self, batch: BatchId, outcome: Outcome, out: &mut Vec<Output>) {
        if self.tick_open == Some(batch) {
            self.tick_open = None;
            self.tick_at = None;
        } else if batch.0 < OWN_BATCHES {
            out.push(Output::Done { batch, outcome });
        }
    }

    fn answer(&mut self, answer: Answer, out: &mut Vec<Output>) {
        match answer.route.after {
            Some(after) if after > self.persisted => self.held.push_back(answer),
            _ => self.send_answer(answer, out),
        }
    }

    fn release_held(&mut self, out: &mut Vec<Output>) {
        while self
            .held
            .front()
            .is_some_and(|a| a.route.after <= Some(self.persisted))
        {
            if let Some(answer) = self.held.pop_front() {
                self.send_answer(answer, out);
            }
        }
    }

    fn send_answer(&mut self, answer: Answer, out: &mut Vec<Output>) {
        let Answer {
            route,
            batch,
            results,
        } = answer;
        if route.to == self.frontend {
            let (from, header) = (self.id, route.header);
            self.events.push_back(Event::Reply {
                from,
                batch,
                header,
                results,
            });
        } else if route.to != FrontendId(0) {
            let mut writer = Writer::new(&mut self.scratch);
            writer.u64(batch.0);
            writer.blob(&route.header);
            writer.blob(&results);
            let frame = writer.finish();
            let frame = self.wrap(FrameKind::Reply, frame);
            let to = Recipients::Frontend(route.to);
            out.push(Output::Send {
                to,
                lane: Lane::Control,
                frame,
            });
        }
    }

    // --- snapshots -------------------------------------------------------------------------

    fn begin_snapshot(&mut self, slot: Slot, summary: Bytes, out: &mut Vec<Output>) {
        self.checkpoint_asked = false;
        if matches!(
            self.under_way,
            Some(UnderWay {
                kind: Under::Fetched { .. },
                ..
            })
        ) {
            return;
        }
        let (id, first) = self.executor.begin_snapshot(slot, summary);
        out.push(Output::SnapshotBegin(id));
        let appended = first.len() as u64;
        out.push(Output::SnapshotAppend(first));
        self.under_way = Some(UnderWay {
            kind: Under::Own { whole: false },
            id,
            appended,
            written: 0,
        });
        // A small state must be copied before the next command, see
        // `StateMachine::snapshot_chunk`.
        self.step_snapshot(out);
    }

    /// Hands the next part of the snapshot to the world; true when more could follow at once.
    fn step_snapshot(&mut self, out: &mut Vec<Output>) -> bool {
        let Some(under_way) = &mut self.under_way else {
            return false;
        };
        let Under::Own { whole: false } = under_way.kind else {
            return false;
        };
        if under_way.appended - under_way.written > SNAPSHOT_AHEAD_MAX {
            return false;
        }
        let (chunk, progress) = self.executor.snapshot_chunk(SNAPSHOT_STEP);
        under_way.appended += chunk.len() as u64;
        out.push(Output::SnapshotAppend(chunk));
        if progress == SnapshotProgress::Done {
            under_way.kind = Under::Own { whole: true };
            out.push(Output::SnapshotFinish);
            return false;
        }
        true
    }

    fn on_snapshot_saved(&mut self, info: SnapshotInfo, world: &dyn World, out: &mut Vec<Output>) {
        let Some(under_way) = self.under_way.take_if(|under_way| under_way.id == info.id) else {
            return;
        };
        self.snapshot_last = info.length;
        match under_way.kind {
            Under::Own { .. } => self.events.push_back(Event::Checkpointed(info.id.slot)),
            Under::Fetched { .. } => self.install(info, world, out),
        }
    }

    fn install(&mut self, info: SnapshotInfo, world: &dyn World, out: &mut Vec<Output>) {
        self.fetch = None;
        out.push(Output::CancelTimer {
            key: node_timer(TIMER_FETCH),
        });
        if info.id.slot <= self.executor.executed().slot {
            out.push(Output::Mark("fetched snapshot overtaken by the log"));
            return;
        }
        let read = |offset| world.snapshot_read(info.id, offset, transfer::PIECE);
        match self.executor.restore(read) {
            Ok(header) => {
                let slot = header.executed.slot;
                self.executed_told = slot;
                out.push(Output::Mark("state installed"));
                self.events.push_back(Event::Installed {
                    slot,
                    summary: header.summary,
                });
            }
            Err(error) => out.push(Output::Halt(format!(
                "the state fetched from a peer (snapshot {}) cannot be restored: {error}. Start \
                 the replica again; it will fetch another",
                info.id.slot
            ))),
        }
    }

    fn maybe_ask_for_checkpoint(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let due =
            self.executor.bytes_since_snapshot() >= self.snapshot_bytes_min.max(self.snapshot_last);
        if due {
            self.ask_for_checkpoint(world, out);
        }
    }

    /// Asks the protocol for a checkpoint unless one is under way. For an operator's order, too.
    pub fn ask_for_checkpoint(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if self.checkpoint_asked || self.under_way.is_some() {
            return;
        }
        self.checkpoint_asked = true;
        self.events
            .push_back(Event::Control(Control::CheckpointDue));
        self.carry_out(world, out);
        // A protocol that cannot take one now is asked again on a later turn.
        self.checkpoint_asked = false;
    }

    // --- state transfer --------------------------------------------------------------------

    fn begin_fetch(
        &mut self,
        from: ReplicaSet,
        at_least: Slot,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self
            .fetch
            .as_ref()
            .is_some_and(|fetch| fetch.at_least >= at_least)
        {
            return;
        }
        out.push(Output::Mark("state transfer"));
        self.fetch = Fetch::new(from.without(self.id), at_least, world.now());
        self.ask_donor(world, out);
    }

    /// The log has brought what the snapshot was fetched for.
    fn end_fetch(&mut self, out: &mut Vec<Output>) {
        self.fetch = None;
        let fetched = |u: &mut UnderWay| matches!(u.kind, Under::Fetched { .. });
        if self.under_way.take_if(fetched).is_some() {
            out.push(Output::SnapshotAbandon);
        }
        out.push(Output::Mark("fetched snapshot overtaken by the log"));
    }

    fn ask_donor(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let Some(fetch) = &mut self.fetch else { return };
        let (donor, message) = fetch.ask(world.now());
        let at = Deadline::At(fetch.retry_at);
        self.send_transfer(donor, Lane::Control, &message, out);
        out.push(Output::SetTimer {
            key: node_timer(TIMER_FETCH),
            at,
        });
    }

    fn send_transfer(
        &mut self,
        to: ReplicaId,
        lane: Lane,
        message: &TransferMessage,
        out: &mut Vec<Output>,
    ) {
        let mut writer = Writer::new(&mut self.scratch);
        message.encode(&mut writer);
        let frame = writer.finish();
        let frame = self.wrap(FrameKind::Transfer, frame);
        let to = Recipients::Replicas(ReplicaSet::EMPTY.with(to));
        out.push(Output::Send { to, lane, frame });
    }

    fn on_transfer(
        &mut self,
        from: ReplicaId,
        message: TransferMessage,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        match message {
            TransferMessage::Ask {
                at_least,
                snapshot,
                offset,
            } => {
                self.donate(from, (at_least, snapshot, offset), world, out);
            }
            TransferMessage::NotYet => {
                if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.is_from(from)) {
                    fetch.on_answer();
                }
            }
            TransferMessage::Piece {
                snapshot,
                total,
                offset,
                bytes,
            } => {
                self.on_piece(from, (snapshot, total, offset), bytes, world, out);
            }
        }
    }

    fn donate(
        &mut self,
        to: ReplicaId,
        (at_least, wanted, offset): (Slot, Option<Executed>, u64),
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let newest = world
            .snapshot_newest()
            .filter(|info| info.id.slot >= at_least);
        let piece = |id, at| world.snapshot_read(id, at, transfer::PIECE);
        // Go on with the snapshot that was begun while it exists, else start with the newest.
        if let Some(id) = wanted
            && let Some(bytes) = piece(id, offset).filter(|bytes| !bytes.is_empty())
        {
            let message = TransferMessage::Piece {
                snapshot: id,
                total: 0,
                offset,
                bytes,
            };
            return self.send_transfer(to, Lane::Bulk, &message, out);
        }
        if let Some(info) = newest
            && let Some(bytes) = piece(info.id, 0)
        {
            let (snapshot, total) = (info.id, info.length);
            let message = TransferMessage::Piece {
                snapshot,
                total,
                offset: 0,
                bytes,
            };
            return self.send_transfer(to, Lane::Bulk, &message, out);
        }
        self.send_transfer(to, Lane::Control, &TransferMessage::NotYet, out);
        if self.executor.executed().slot >= at_least {
            out.push(Output::Mark("snapshot taken for a peer"));
            self.ask_for_checkpoint(world, out);
        }
    }

    fn on_piece(
        &mut self,
        from: ReplicaId,
        (snapshot, total, offset): (Executed, u64, u64),
        bytes: Bytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.is_from(from)) else {
            return;
        };
        fetch.on_answer();
        if snapshot.slot < fetch.at_least || snapshot.slot <= self.executor.executed().slot {
            return;
        }
        if fetch.snapshot != Some(snapshot) {
            // A new snapshot starts at its beginning and tells its length there.
            if offset != 0 || total == 0 {
                return;
            }
            fetch.snapshot = Some(snapshot);
            fetch.offset = 0;
            self.executor.abandon_snapshot();
            out.push(Output::SnapshotBegin(snapshot));
            self.under_way = Some(UnderWay {
                kind: Under::Fetched { whole: false },
                id: snapshot,
                appended: total,
                written: 0,
            });
        }
        let Some(fetch) = &mut self.fetch else { return };
        let Some(under_way) = &mut self.under_way else {
            return;
        };
        if offset != fetch.offset || under_way.kind != (Under::Fetched { whole: false }) {
            return;
        }
        fetch.offset += bytes.len() as u64;
        let whole = fetch.offset >= under_way.appended;
        out.push(Output::SnapshotAppend(bytes));
        if whole {
            under_way.kind = Under::Fetched { whole: true };
            out.push(Output::SnapshotFinish);
        } else {
            self.ask_donor(world, out);
        }
    }

    fn on_timer(&mut self, key: TimerKey, world: &dyn World, out: &mut Vec<Output>) {
        match key.timer {
            TIMER_FETCH => {
                let saving = matches!(
                    self.under_way,
                    Some(UnderWay {
                        kind: Under::Fetched { whole: true },
                        ..
                    })
                );
                let executed = self.executor.executed().slot;
                if saving {
                } else if self.fetch.as_ref().is_some_and(|fetch| fetch.at_least <= executed) {
                    self.end_fetch(out);
                } else if let Some(fetch) = &mut self.fetch {
                    fetch.on_silence();
                    self.ask_donor(world, out);
                }
            }
            TIMER_TICK => {
                self.tick_at = None;
                self.maybe_tick(world, out);
            }
            _ => unreachable!("the node has two timers"),
        }
    }

    // --- time ------------------------------------------------------------------------------

    /// When the state changes by itself and no batch comes by, the leader orders an empty one, so
    /// that expiry happens at the same place on every replica.
    fn maybe_tick(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let Some(deadline) = self.executor.next_deadline() else {
            return;
        };
        if self.tick_at == Some(deadline.0) || self.tick_open.is_some() {
            return;
        }
        let leader = self.replica.status().leader;
        let patience = if leader.is_none_or(|leader| leader == self.id) {
            Duration::ZERO
        } else {
            // Others step in when the leader does not.
            TICK_PATIENCE
        };
        let due = deadline
            .0
            .saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let clock = world.clock().now;
        if clock < due {
            self.tick_at = Some(deadline.0);
            let at = Deadline::At(world.now() + Duration::from_nanos(due - clock));
            out.push(Output::SetTimer {
                key: node_timer(TIMER_TICK),
                at,
            });
            return;
        }
        let id = BatchId(self.batch_next);
        self.batch_next += 1;
        self.tick_open = Some(id);
        self.batches
            .push(CommandId::default(), RequestKind::Tick, 0, &[]);
        let batch = self.batches.finish(self.frontend, id, Level::Ordered);
        let deadline = world.now() + TICK_PATIENCE;
        self.events.push_back(Event::Submit(Submission {
            id,
            level: Level::Ordered,
            batch,
            deadline,
        }));
        self.carry_out(world, out);
    }

    // --- looking in ------------------------------------------------------------------------

    /// What the node shows of itself.
    #[must_use]
    pub fn status(&self, world: &dyn World) -> NodeStatus {
        let mut protocol = self.replica.status();
        protocol.stable = protocol.stable.min(self.executor.executed().slot);
        NodeStatus {
            protocol,
            executed: self.executor.executed(),
            time: self.executor.time().0,
            entries: self.executor.machine().entries(),
            memory: self.executor.machine().memory(),
            sessions: self.executor.sessions(),
            commands: self.executor.commands(),
            snapshot: world.snapshot_newest(),
            snapshot_under_way: self.under_way.is_some(),
            fetching: self.fetch.is_some(),
            open: self.replica.open(),
            frames_malformed: self.malformed,
            frames_foreign: self.foreign,
        }
    }

    /// The protocol's own status, without the rest: cheap.
    #[must_use]
    pub fn protocol_status(&self) -> Status {
        self.replica.status()
    }

    /// How far execution has come.
    #[must_use]
    pub const fn executed(&self) -> Executed {
        self.executor.executed()
    }

    /// The state machine, to look at.
    #[must_use]
    pub fn machine(&self) -> &dyn StateMachine {
        self.executor.machine()
    }

    /// A hash of the replicated state: equal on replicas that executed the same slots.
    #[must_use]
    pub fn state_digest(&mut self) -> u128 {
        self.executor.digest()
    }

    /// A hash of the protocol's own state, for traces.
    #[must_use]
    pub fn protocol_digest(&self) -> u64 {
        self.replica.digest()
    }

    /// Checks the protocol's invariants and the order of the pointers.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn assert_invariants(&self) {
        self.replica.assert_invariants();
        let status = self.replica.status();
        assert!(
            status.stable <= status.committed,
            "stable is at most committed"
        );
        assert!(
            status.committed <= status.accepted,
            "committed is at most accepted"
        );
    }
}

const fn node_timer(timer: u32) -> TimerKey {
    TimerKey {
        owner: TimerOwner::Node,
        timer,
    }
}

/// A put as a frame, for transports that cannot write into a peer's table.
#[must_use]
pub fn put_frame(group: GroupId, epoch: EpochNumber, offset: u32, words: &[u64]) -> Frame {
    let mut bytes = BytesMut::from(&envelope(FrameKind::Put, group, epoch)[..]);
    bytes.put_u32_le(offset);
    for word in words {
        bytes.put_u64_le(*word);
    }
    Frame::from(bytes.freeze())
}

/// Reads a frame as a [`crate::Client`] gets it: the protocol's messages and replies.
///
/// # Errors
/// When the bytes make no sense or are of a kind that clients do not get.
pub fn read_client_frame(frame: Bytes) -> Result<ClientFrame, DecodeError> {
    let mut reader = Reader::new(frame);
    let kind = reader.u8("frame kind")?;
    if reader.u8("frame version")? != FRAME_VERSION {
        return Err(DecodeError::Bad("frame version"));
    }
    reader.u16("frame flags")?;
    reader.u32("group")?;
    reader.u64("epoch")?;
    if kind == FrameKind::Message as u8 {
        return Ok(ClientFrame::Message(reader.rest()));
    }
    if kind != FrameKind::Reply as u8 {
        return Err(DecodeError::Bad("frame kind"));
    }
    let batch = BatchId(reader.u64("batch")?);
    Ok(ClientFrame::Reply(
        batch,
        reader.blob("header")?,
        reader.blob("results")?,
    ))
}

/// A message of a [`crate::Client`] in the envelope that a node expects.
#[must_use]
pub fn client_frame(group: GroupId, epoch: EpochNumber, frame: Frame) -> Frame {
    frame.prefixed(envelope(FrameKind::Message, group, epoch))
}

/// See [`read_client_frame`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// A message of the protocol.
    Message(Bytes),
    /// A batch's header and results.
    Reply(BatchId, Bytes, Bytes),
}
