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
    DecodeError, Descriptor, Durability, Effect, Entry, Epoch, EpochNumber, Event, EventError,
    Executed, Executor, ExecutorLimits, Frame, FrontendId, GroupId, Incarnation, Lane, Level, Link,
    OptionError, Outcome, Peer, PersistId, Reader, Recipients, RecoveredBytes, Replica, ReplicaId,
    ReplicaSet, RequestKind, RestoreError, Setup, Slot, SnapshotHeader, SnapshotInfo,
    SnapshotProgress, StateMachine, Status, Submission, Surroundings, Time, TimerKey, TimerOwner,
    Voters, Wake, Wire, World, Write, Writer,
    bug::{Bug, Injected},
    limits,
    parts::{Pace, PaceMessage},
    refuse_seal,
    transfer::{self, Fetch, TransferMessage},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    format,
    string::String,
    vec::Vec,
};
use bytes::{BufMut, BytesMut};
use core::time::Duration;
use smallvec::SmallVec;

/// The version of the frame envelope.
pub const FRAME_VERSION: u8 = 1;
const ENVELOPE: usize = 16;
/// Snapshot bytes handed to the world but not yet written.
const SNAPSHOT_AHEAD_MAX: u64 = 4 << 20;
const SNAPSHOT_STEP: usize = 64 * 1024;
/// The timer of a node that asks again for a state.
pub const TIMER_FETCH: u32 = 0;
const TIMER_TICK: u32 = 1;
const TIMER_DIGEST_SLICE: u32 = 2;
const TIMER_DIGEST_ASK: u32 = 3;
const TIMER_DIGEST_GRACE: u32 = 4;
const TIMER_PACE: u32 = 5;
/// The timer of a node by which replicas tell each other of epochs.
pub const TIMER_EPOCH: u32 = 6;
/// Batches of the node's own are numbered from here, far above any server's.
const OWN_BATCHES: u64 = 1 << 63;
/// After this an empty batch counts as lost, and others than the leader step in.
const TICK_TIMEOUT: Duration = Duration::from_secs(2);
/// Between empty batches for one deadline that has come: commands come in between, and a state
/// whose deadline never goes away does not keep its replicas busy.
const TICK_PAUSE: Duration = Duration::from_millis(1);

mod answers;
mod between;
mod bridge;
mod deferred;
mod digests;
mod disk;
mod feed;
mod fetch;
mod fingerprint;
mod frames;
mod interface;
mod learning;
mod progress;
mod rebased;
mod seal;
mod sharing;
mod snapshots;
mod speculation;
mod start;
mod succession;
mod ticks;

use deferred::Deferred;
use digests::Digests;
pub use digests::{Difference, DigestStatus, Divergence};
pub use disk::DISK_HUNG_AFTER;
use disk::{DiskWatch, fall_silent};
pub(crate) use frames::read_guest_frame;
pub use frames::{
    ClientFrame, client_frame, frame_group, guest_frame, put_frame, read_client_frame,
};
use frames::{envelope, read_envelope};
pub use interface::*;
pub(crate) use rebased::{in_ranked_world, name_members};
pub use seal::SealError;
pub use sharing::next_foreign;
use snapshots::{Source, refused_state};
pub use speculation::NOT_UNDONE;
pub use succession::no_member;
use succession::{EpochWord, Succession};

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum FrameKind {
    Message = 0,
    Reply = 1,
    Transfer = 2,
    Put = 3,
    /// A message of the frontend embedded in the sender, whose id comes first.
    Request = 4,
    /// A message to the frontend embedded in the receiver, if its id is the one that comes first.
    ToFrontend = 5,
    /// A reply to it.
    ReplyTo = 6,
    /// Digests of the sender's state, by position.
    Digests = 7,
    /// How quick the sender is, and how far.
    Pace = 8,
    /// In which epoch the sender is; read in any.
    Epoch = 9,
    /// To frontends: whether the sender has lost its quorum.
    Quorum = 10,
    /// How far the sender is with its bridge.
    Bridge = 11,
}

const FRAME_KINDS: [FrameKind; 12] = [
    FrameKind::Message,
    FrameKind::Reply,
    FrameKind::Transfer,
    FrameKind::Put,
    FrameKind::Request,
    FrameKind::ToFrontend,
    FrameKind::ReplyTo,
    FrameKind::Digests,
    FrameKind::Pace,
    FrameKind::Epoch,
    FrameKind::Quorum,
    FrameKind::Bridge,
];

/// Where a snapshot in progress comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// From this node's executor. One of a state that may still be undone is finished when it
    /// cannot be any more; and none before what was written until it began is durable, or the log
    /// would have a hole before it, should the process die in between and the snapshot be damaged
    /// later.
    Own {
        whole: bool,
        finished: bool,
        after: PersistId,
    },
    /// From a peer.
    Fetched { whole: bool },
    /// From this node's executor, ahead of a change of the epoch.
    Bridge,
}

/// A peer's state that is being restored, a part in each turn: peers must not take a replica with
/// much to restore for a dead one.
struct Installing {
    info: SnapshotInfo,
    /// Up to where it brings the state, with what was executed since at the donor.
    reach: Slot,
    source: Source,
    /// The protocol's requests for a state that is in pieces.
    deferred: Deferred,
    begun: Time,
}

/// Frames that a node sends also while its protocol does not run.
const NODES_OWN: [u8; 3] = [
    FrameKind::Transfer as u8,
    FrameKind::Bridge as u8,
    FrameKind::Pace as u8,
];

/// Once long commands and long results have taken this many steps, the replica does what else is
/// due before it executes or answers the next batch: some 20 to 50 ms, or 64 MiB of results.
const STEPS_PER_TURN: u64 = 1 << 20;

struct Unfinished {
    kind: Under,
    id: Executed,
    appended: u64,
    written: u64,
    /// Set of one ahead of a change.
    bridge: Option<Box<bridge::Bridge>>,
}

/// Whether an effect needs the state, or an order among those that do.
const fn concerns_state(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Execute { .. }
            | Effect::Unordered { .. }
            | Effect::Query { .. }
            | Effect::Replay { .. }
            | Effect::Stable { .. }
            | Effect::RollBack { .. }
            | Effect::Checkpoint { .. }
    )
}

/// See the module.
pub struct Node {
    id: ReplicaId,
    /// By their numbers, learners among them.
    members: ReplicaSet,
    voters: Voters,
    group: GroupId,
    epoch: EpochNumber,
    frontend: FrontendId,
    cluster: ClusterId,
    replica: Box<dyn Replica>,
    executor: Executor,
    envelopes: [Bytes; FRAME_KINDS.len()],
    /// The frontends embedded in other replicas that have been heard of, the newest of each.
    homes: BTreeMap<ReplicaId, FrontendId>,
    scratch: BytesMut,
    effects: Vec<Effect>,
    events: VecDeque<Event>,
    executed_told: Slot,
    persisted: PersistId,
    /// The last write that was handed over.
    written: PersistId,
    /// Answers that wait for durability, ascending by what they wait for.
    held: VecDeque<Answer>,
    unfinished: Option<Unfinished>,
    /// The effects that wait for a state that long commands have kept busy, in order.
    deferred: Deferred,
    /// The executor's work when the turn began.
    work_begun: u64,
    installing: Option<Installing>,
    restore_step: usize,
    feed_bytes_max: u64,
    transfer_rates: transfer::Rates,
    fetch: Option<Fetch>,
    /// The donor of the last one.
    donor_last: Option<ReplicaId>,
    state_bytes_received: u64,
    state_bytes_sent: u64,
    /// When a fetched state was installed last.
    fetched_at: Option<Time>,
    /// Its newest state continues behind what its file is named for, and cannot be given to a peer.
    /// While it speculates, a later one may never become final.
    owes_state: bool,
    /// The batches that are executed while a peer fetches from here.
    ring: Option<Box<feed::Ring>>,
    /// The protocol is asked for a checkpoint of which only the summary is used.
    summing_up: bool,
    /// Snapshots that were given lately, and their lengths.
    given: VecDeque<(transfer::SnapshotFile, u64)>,
    snapshot_bytes_min: u64,
    bridge_bytes_min: u64,
    /// The length of the last snapshot's state.
    snapshot_last: u64,
    checkpoint_asked: bool,
    tick_at: Option<u64>,
    tick_open: Option<BatchId>,
    /// Batches are delivered without an order, which nothing can end.
    unordered: bool,
    /// Which deadline the last empty batch was for, and when it was submitted.
    tick_last: Option<(u64, Time)>,
    batch_next: u64,
    batches: BatchBuilder,
    digests: Digests,
    disk: DiskWatch,
    pace: Pace,
    pace_beat: Duration,
    /// The next beat has its time.
    pace_armed: bool,
    /// Commands executed, and when: at the last beat.
    beat_last: (u64, Time),
    /// Clients had more than a few commands executed before the last beat.
    busy: bool,
    succession: Succession,
    incarnation: Incarnation,
    durability: Durability,
    malformed: u64,
    foreign: u64,
    started: bool,
    /// The replica stops, by its protocol's will or because its state is in pieces: it hears
    /// nothing more, and says nothing.
    halted: bool,
    injected: Injected,
    /// The number of the protocol's view and the members in it.
    view: Option<(u64, ReplicaSet)>,
    /// The number of its view and the parts in other groups, as a protocol that serves several last
    /// told them.
    roles: (u64, Vec<crate::Role>),
}

impl Node {
    /// A node before its start, in an epoch whose voters have numbers without a gap.
    ///
    /// # Errors
    /// When the epoch's options are not the protocol's.
    pub fn new(
        setup: NodeSetup,
        protocol: &Entry,
        machine: Box<dyn StateMachine>,
    ) -> Result<Self, OptionError> {
        let voters = Voters::dense(setup.epoch.members);
        Self::among(voters, setup, protocol, machine)
    }

    /// A node before its start, among these voters.
    ///
    /// # Errors
    /// When the epoch's options are not the protocol's.
    ///
    /// # Panics
    /// When the epoch has another number of voters.
    pub fn among(
        voters: Voters,
        setup: NodeSetup,
        protocol: &Entry,
        machine: Box<dyn StateMachine>,
    ) -> Result<Self, OptionError> {
        Self::made(voters, setup, protocol, machine, true)
    }

    /// `owns`: it makes a protocol of its own.
    fn made(
        voters: Voters,
        setup: NodeSetup,
        protocol: &Entry,
        machine: Box<dyn StateMachine>,
        owns: bool,
    ) -> Result<Self, OptionError> {
        assert_eq!(voters.len(), setup.epoch.members, "an epoch has its voters");
        assert!(
            setup.frontend != FrontendId(0),
            "frontend 0 stands for none"
        );
        let (group, epoch, cluster) = (setup.group, setup.epoch.number, setup.epoch.cluster);
        // Where replicas may execute in other orders, their states are not compared.
        let unordered = (protocol.unordered)(&setup.epoch.options);
        let digest_interval = match unordered {
            true => Duration::ZERO,
            false => setup.limits.digest_interval,
        };
        let injected = Injected::of(&setup.epoch.options);
        if unordered {
            if !machine.takes_unordered() {
                return Err(OptionError::Unordered(protocol.info.name));
            }
            if setup.durability == Durability::Disk {
                return Err(OptionError::UnorderedOnDisk(protocol.info.name));
            }
        }
        let (incarnation, durability) = (setup.incarnation, setup.durability);
        let rank = voters.rank(setup.id);
        let replica = match rank {
            Some(id) if owns => (protocol.replica)(
                Setup {
                    id,
                    incarnation,
                    group,
                    epoch: setup.epoch,
                    durability,
                    options: (),
                    seed: setup.seed,
                },
                setup.frontend,
            )?,
            _ => learning::without_protocol(Slot(0)),
        };
        let mut executor =
            Executor::new(cluster, group, epoch, machine, setup.limits).with_bug(injected);
        executor.number_snapshots(setup.seed);
        if protocol.speculates && rank.is_some() {
            executor.speculate();
        }
        if !unordered {
            executor.take_digests();
        }
        Ok(Self {
            id: setup.id,
            members: voters.set(),
            voters,
            group,
            epoch,
            cluster,
            frontend: setup.frontend,
            replica,
            executor,
            envelopes: FRAME_KINDS.map(|kind| envelope(kind, group, epoch)),
            homes: BTreeMap::new(),
            scratch: BytesMut::new(),
            effects: Vec::new(),
            events: VecDeque::new(),
            executed_told: Slot(0),
            persisted: PersistId(0),
            written: PersistId(0),
            held: VecDeque::new(),
            unfinished: None,
            deferred: Deferred::default(),
            work_begun: 0,
            installing: None,
            restore_step: setup.limits.restore_step.max(1),
            feed_bytes_max: setup.limits.feed_bytes_max,
            transfer_rates: transfer::Rates::of_limits(&setup.limits),
            fetch: None,
            donor_last: None,
            state_bytes_received: 0,
            state_bytes_sent: 0,
            fetched_at: None,
            owes_state: false,
            ring: None,
            summing_up: false,
            given: VecDeque::new(),
            snapshot_bytes_min: setup.snapshot_bytes_min,
            bridge_bytes_min: setup.limits.bridge_bytes_min,
            snapshot_last: 0,
            checkpoint_asked: false,
            tick_at: None,
            tick_open: None,
            unordered,
            tick_last: None,
            batch_next: OWN_BATCHES,
            batches: BatchBuilder::of(group),
            digests: Digests::new(digest_interval),
            disk: DiskWatch::new(setup.limits.disk_hung_after),
            pace: Pace::new(voters.len()),
            pace_beat: setup.limits.pace_beat,
            pace_armed: false,
            beat_last: (0, Time(0)),
            busy: false,
            succession: Succession::new(),
            incarnation,
            durability,
            malformed: 0,
            foreign: 0,
            started: false,
            halted: false,
            injected,
            view: first_view(protocol, voters).filter(|_| rank.is_some()),
            roles: <_>::default(),
        })
    }

    fn protocol(
        &self,
        protocol: &Entry,
        epoch: Epoch,
        seed: u64,
    ) -> Result<Box<dyn Replica>, OptionError> {
        let rank = self.voters.rank(self.id);
        assert_eq!(self.voters.len(), epoch.members, "an epoch has its voters");
        let setup = Setup {
            id: rank.expect("a replica with a protocol votes"),
            incarnation: self.incarnation,
            group: self.group,
            epoch,
            durability: self.durability,
            options: (),
            seed,
        };
        (protocol.replica)(setup, self.frontend)
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

    /// Handles one input; outputs are appended in order. A frame that is malformed is dropped
    /// and counted, and the error says why.
    ///
    /// # Errors
    /// Only for [`Input::Frame`]; the node continues.
    ///
    /// # Panics
    /// When an invariant does not hold: stop the process.
    pub fn on_input(
        &mut self,
        mut input: Input,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), FrameError> {
        if self.halted || self.is_deaf_to(&input) {
            return Ok(());
        }
        if self.disk.is_hung() {
            match self.refuse_while_hung(input, world, out) {
                Some(rest) => input = rest,
                None => return Ok(()),
            }
        }
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
        if self.disk.is_hung() {
            fall_silent(out);
        }
        result
    }

    fn on_other(&mut self, input: Input, world: &dyn World, out: &mut Vec<Output>) {
        match input {
            Input::Frame { .. } => unreachable!("frames are handled apart"),
            // A server sees to that; a batch that no frame takes could never be sent.
            Input::Submit(submission) if submission.batch.len() > limits::BATCH_BYTES_LIMIT => {
                out.push(Output::Done {
                    batch: submission.id,
                    outcome: Outcome::NoQuorum,
                });
            }
            Input::Submit(submission) => match refuse_seal(&submission) {
                Some(outcome) => out.push(Output::Done {
                    batch: submission.id,
                    outcome,
                }),
                None => self.events.push_back(Event::Submit(submission)),
            },
            Input::Timer(key) if key.owner == TimerOwner::Node => self.on_timer(key, world, out),
            Input::Timer(key) => self.events.push_back(Event::Timer(key)),
            Input::Persisted(upto) => {
                assert!(upto >= self.persisted, "durability does not go back");
                self.persisted = upto;
                self.on_disk_answered(upto, world, out);
                self.pace.synced(upto.0, || world.now());
                self.events.push_back(Event::Persisted(upto));
                self.release_held(out);
                self.maybe_finish_snapshot(out);
            }
            Input::SnapshotWritten(bytes) => {
                if let Some(unfinished) = &mut self.unfinished {
                    // Reports of an abandoned snapshot may still come.
                    unfinished.written = bytes.min(unfinished.appended);
                    if unfinished.kind == (Under::Fetched { whole: false }) {
                        self.ask_donor(world, out);
                    }
                }
            }
            Input::SnapshotSaved(info) => self.on_snapshot_saved(info, world, out),
            // Reports of an abandoned snapshot are ignored.
            Input::SnapshotFailed if self.unfinished.is_none() => {}
            Input::SnapshotFailed => {
                self.note_failed_bridge(world.now());
                self.unfinished = None;
                self.lose_source();
                self.checkpoint_asked = false;
                self.first_state_failed(world.now());
                self.executor.abandon_snapshot();
                if let Some(fetch) = &mut self.fetch {
                    fetch.on_failed(world.now());
                }
            }
            Input::Link(peer, link) => {
                if self.on_link(peer, link, out) {
                    self.events.push_back(Event::Link(peer, link));
                }
            }
            // Of another epoch's table, or from one that has just come into this epoch: what it has
            // written is told again over a new link.
            Input::Put { from, .. } if !self.succession.is_present(from) => {
                if !self.is_between_epochs() {
                    out.push(Output::BreakLinks);
                }
            }
            Input::Put { from, .. } if !self.votes(from) => self.malformed += 1,
            Input::Put { from, ranges } => {
                // It overtakes frames, and with them the word that its protocol has begun.
                self.note_running(from, world, out);
                self.events.push_back(Event::Put { from, ranges });
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
        let (kind, group, epoch) = read_envelope(&mut reader)?;
        if group != self.group {
            return Err(FrameError::Group { theirs: group });
        }
        if let Peer::Replica(from) = from {
            self.note_sender(from, kind, epoch, world, out)?;
            if kind == FrameKind::Epoch as u8 {
                let word = EpochWord::decode_all(reader.rest())?;
                self.on_epoch_word(from, word, world, out);
                return Ok(());
            }
        }
        if let Peer::Frontend(frontend) = from
            && epoch < self.epoch
        {
            self.tell_frontend(frontend, out);
        }
        if epoch != self.epoch && !self.injected.is(Bug::VotesOfAnotherEpoch) {
            return Err(FrameError::Epoch {
                theirs: epoch,
                ours: self.epoch,
            });
        }
        // Messages of a member's own frontend come as the member's.
        let from_outside = matches!(from, Peer::Frontend(_));
        let mut from = from;
        if kind == FrameKind::Request as u8
            && let Peer::Replica(home) = from
        {
            let frontend = FrontendId(reader.u64("frontend")?);
            self.homes.insert(home, frontend);
            from = Peer::Frontend(frontend);
        }
        if kind == FrameKind::Message as u8 || kind == FrameKind::Request as u8 {
            let message = reader.rest();
            let event = Event::Message {
                from,
                arrived,
                message,
            };
            let around = Surroundings {
                world,
                group: self.group,
                machine: Some(self.executor.machine()),
                from_outside,
            };
            return match self.replica.on_event(event, around, &mut self.effects) {
                Ok(()) => Ok(()),
                Err(EventError::Decode(error) | EventError::Recovered(error)) => Err(error.into()),
            };
        }
        let Peer::Replica(from) = from else {
            return Err(DecodeError::Bad("frame kind").into());
        };
        let to_frontend = kind == FrameKind::ToFrontend as u8;
        let reply_to = kind == FrameKind::ReplyTo as u8;
        if (to_frontend || reply_to) && FrontendId(reader.u64("frontend")?) != self.frontend {
            // It was for an earlier run of this process, whose batches had the same numbers.
            return Ok(());
        }
        if to_frontend {
            let message = reader.rest();
            self.events.push_back(Event::ToFrontend { from, message });
        } else if kind == FrameKind::Reply as u8 || reply_to {
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
        } else if kind == FrameKind::Bridge as u8 {
            let word = bridge::BridgeWord::decode_all(reader.rest())?;
            self.on_bridge_word(from, word, world, out);
        } else if kind == FrameKind::Digests as u8 {
            let theirs = digests::Kept::decode_all(reader.rest())?;
            self.on_digests(from, theirs, world, out);
        } else if kind == FrameKind::Pace as u8 {
            let message = PaceMessage::decode_all(reader.rest())?;
            if let Some(rank) = self.voters.rank(from)
                && let Some(answer) = self.pace.heard(rank, message, arrived)
            {
                self.send_pace(ReplicaSet::EMPTY.with(from), answer, out);
            }
        } else if kind == FrameKind::Put as u8 {
            let ranges = reader.rest();
            self.events.push_back(Event::Put { from, ranges });
        } else {
            return Err(DecodeError::Bad("frame kind").into());
        }
        Ok(())
    }

    /// The inbox is empty: lets the protocol flush, moves a snapshot in progress on, and says when
    /// to be called again.
    pub fn on_idle(&mut self, world: &dyn World, out: &mut Vec<Output>) -> Wake {
        if self.halted {
            return Wake::Sleep;
        }
        self.look_at_disk(world, out);
        if self.disk.is_hung() {
            return Wake::Sleep;
        }
        let installing = self.step_install(world, out);
        self.carry_out_deferred(world, out);
        if self.halted {
            return Wake::Sleep;
        }
        let around = Surroundings {
            world,
            group: self.group,
            machine: Some(self.executor.machine()),
            from_outside: false,
        };
        let mut wake = self.replica.on_idle(around, &mut self.effects);
        self.carry_out(world, out);
        let saving = self.step_snapshot(out) || self.step_bridge(world, out);
        if saving || installing || self.undoes() || self.has_work_left() {
            wake = Wake::Spin;
        }
        let between = self.is_between_epochs();
        if self.installing.is_none() && self.deferred.is_empty() && !between {
            self.save_bridged_state(world, out);
            self.maybe_ask_for_checkpoint(world, out);
            self.maybe_tick(world, out);
            self.step_digests(world, out);
        }
        if self.is_learner() {
            self.begin_slices(world, out);
        }
        if self.ring.is_some() {
            self.drop_unused_feed(world);
        }
        wake
    }

    /// Tells the embedded frontend and the replica everything in the queue and carries out what
    /// they ask for, until nothing more comes.
    fn carry_out(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        loop {
            if self.halted {
                self.effects.clear();
                self.events.clear();
                return;
            }
            if !self.effects.is_empty() {
                let mut effects = core::mem::take(&mut self.effects);
                for effect in effects.drain(..) {
                    self.carry_out_effect(effect, world, out);
                    if self.halted {
                        break;
                    }
                }
                if self.effects.is_empty() {
                    self.effects = effects;
                }
                self.release_reads(world, out);
                continue;
            }
            if let Some(event) = self.events.pop_front() {
                // Only bytes from other processes can fail to decode here, and dropping them is
                // what a lost message would have done.
                let around = Surroundings {
                    world,
                    group: self.group,
                    machine: Some(self.executor.machine()),
                    from_outside: false,
                };
                let installed = match &event {
                    Event::Installed { slot, .. } => Some(*slot),
                    _ => None,
                };
                if let Err(error) = self.replica.on_event(event, around, &mut self.effects) {
                    self.malformed += 1;
                    if let Some(slot) = installed {
                        self.halt(refused_state(slot, &error), out);
                    }
                }
                continue;
            }
            let executed = self.executor.progress();
            // A state that is being restored is not the protocol's doing.
            if executed == self.executed_told || self.installing.is_some() {
                if self.executor.has_seal() {
                    self.look_at_succession(world, out);
                }
                if self.events.is_empty() {
                    return;
                }
                continue;
            }
            self.executed_told = executed;
            self.events.push_back(Event::Executed(executed));
        }
    }

    /// Executes what had to wait because long commands or results had taken this turn's time.
    fn carry_out_deferred(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        self.work_begun = self.executor.work();
        while !self.halted
            && !self.has_worked_enough()
            && let Some(effect) = self.deferred.pop()
        {
            self.carry_out_in_order(effect, true, world, out);
        }
        self.release_reads(world, out);
        self.carry_out(world, out);
    }

    /// Answers reads whose slot has been executed.
    fn release_reads(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let in_pieces = self.installing.is_some() || self.halted;
        if in_pieces || !self.executor.has_released() || self.has_worked_enough() {
            return;
        }
        let clock = world.clock().now;
        let work_max = self.work_begun + STEPS_PER_TURN;
        let mut answers = SmallVec::<[Answer; 4]>::new();
        let answer = |answer| answers.push(answer);
        self.executor.released(clock, work_max, answer);
        for answer in answers {
            self.answer(answer, out);
        }
    }

    /// Whether this turn has left something for the next.
    fn has_work_left(&self) -> bool {
        !self.deferred.is_empty() || self.executor.has_released() && self.has_worked_enough()
    }

    fn has_worked_enough(&self) -> bool {
        self.executor.work() - self.work_begun >= STEPS_PER_TURN
    }

    fn carry_out_effect(&mut self, effect: Effect, world: &dyn World, out: &mut Vec<Output>) {
        self.carry_out_in_order(effect, false, world, out);
    }

    /// `is_next`: nothing comes before this effect, which has waited.
    fn carry_out_in_order(
        &mut self,
        effect: Effect,
        is_next: bool,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if concerns_state(&effect) {
            let waits = !self.deferred.is_empty() || self.has_worked_enough();
            if !is_next && waits {
                return self.defer(effect);
            }
            if let Some(installing) = &mut self.installing {
                let reads_max = self.executor.queries_max();
                installing.deferred.push(effect, reads_max);
                return;
            }
        }
        match effect {
            Effect::Send {
                to: Recipients::Frontend(frontend),
                lane,
                frame,
            } if self.home_of(frontend).is_some() => {
                self.send_home(FrameKind::ToFrontend, frontend, lane, frame, out);
            }
            Effect::Request { to, frame } => {
                let frame = frame.prefixed(self.addressed(FrameKind::Request, self.frontend));
                out.push(Output::Send {
                    to: Recipients::Replicas(self.succession.running(to)),
                    lane: Lane::Control,
                    frame,
                });
            }
            Effect::Send { to, lane, frame } => {
                let to = match to {
                    Recipients::Replicas(to) => Recipients::Replicas(self.succession.running(to)),
                    frontend @ Recipients::Frontend(_) => frontend,
                };
                out.push(Output::Send {
                    to,
                    lane,
                    frame: self.wrap(FrameKind::Message, frame),
                });
            }
            Effect::Put { to, ranges } => {
                let to = self.succession.running(to);
                out.push(Output::Put { to, ranges });
            }
            Effect::Persist { id, write } => {
                self.written = id;
                let now = world.now();
                self.disk.asked(write.bytes(), now);
                self.pace.wrote(id.0, now);
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
                if self.ring.is_some() && !self.executor.has_seal() {
                    self.keep_for_followers(slot, time, &batch, world);
                }
                if let Some(file) = &mut self.unfinished
                    && let Some(bridge) = &mut file.bridge
                    && !self.executor.has_seal()
                {
                    bridge.batches.push(slot, time, &batch);
                }
                if let Some(answer) = self.executor.execute(slot, time, &batch, reply) {
                    self.answer(answer, out);
                }
            }
            Effect::Unordered { time, batch, reply } => {
                if let Some(answer) = self.executor.execute_unordered(time, &batch, reply) {
                    self.answer(answer, out);
                }
            }
            Effect::Query {
                batch,
                at_least,
                stable,
                reply,
            } => {
                let clock = world.clock().now;
                let answer = (self.executor).query(batch, at_least, stable, reply, clock);
                if let Some(answer) = answer {
                    self.answer(answer, out);
                }
            }
            Effect::Replay {
                batch,
                at_least,
                reply,
            } => {
                if let Some(answer) = self.executor.replay(batch, at_least, reply) {
                    self.answer(answer, out);
                }
            }
            Effect::Stable { slot } => self.became_stable(slot, world, out),
            Effect::RollBack { slot } => self.roll_back(slot, world, out),
            Effect::Checkpoint { slot, summary } => {
                if !self.sum_up(slot, &summary) {
                    self.begin_snapshot(slot, summary, out);
                }
            }
            Effect::FetchState { from, at_least } => self.begin_fetch(from, at_least, world, out),
            Effect::Route {
                slot,
                members,
                agreed,
            } => out.push(Output::Route {
                slot,
                members,
                agreed,
            }),
            Effect::View { number, members } => self.view = Some((number, members)),
            Effect::Roles { view, roles } => self.roles = (view, roles),
            Effect::Recovered => out.push(Output::Recovered),
            Effect::Done { batch, outcome } => self.done(batch, outcome, out),
            Effect::Mark(branch) => out.push(Output::Mark(branch)),
            Effect::Halt(reason) => self.halt(reason, out),
            Effect::StartAgain(reason) => self.halt_as(HaltKind::StartAgain, reason, out),
        }
    }

    fn halt(&mut self, reason: String, out: &mut Vec<Output>) {
        self.halt_as(HaltKind::Refused, reason, out);
    }

    fn halt_as(&mut self, kind: HaltKind, reason: String, out: &mut Vec<Output>) {
        self.halted = true;
        out.push(Output::Halt(kind, reason));
    }

    /// The replica that embeds this frontend, if one is known to.
    fn home_of(&self, frontend: FrontendId) -> Option<ReplicaId> {
        let home = self.homes.iter().find(|(_, known)| **known == frontend)?;
        Some(*home.0)
    }

    /// An envelope with a frontend's id behind it.
    fn addressed(&self, kind: FrameKind, frontend: FrontendId) -> Bytes {
        let mut bytes = BytesMut::with_capacity(ENVELOPE + 8);
        bytes.put_slice(&self.envelopes[kind as usize]);
        bytes.put_u64_le(frontend.0);
        bytes.freeze()
    }

    fn send_home(
        &self,
        kind: FrameKind,
        frontend: FrontendId,
        lane: Lane,
        frame: Frame,
        out: &mut Vec<Output>,
    ) {
        if let Some(home) = self.home_of(frontend) {
            let to = Recipients::Replicas(ReplicaSet::EMPTY.with(home));
            let frame = frame.prefixed(self.addressed(kind, frontend));
            out.push(Output::Send { to, lane, frame });
        }
    }

    fn wrap(&self, kind: FrameKind, frame: Frame) -> Frame {
        frame.prefixed(self.envelopes[kind as usize].clone())
    }

    /// The state of the node, for users.
    #[must_use]
    pub fn status(&self, world: &dyn World) -> NodeStatus {
        let mut protocol = self.replica.status(self.group);
        protocol.stable = protocol.stable.min(self.executor.stable());
        NodeStatus {
            protocol,
            executed: self.executor.executed(),
            progress: self.executor.progress(),
            time: self.executor.time().0,
            entries: self.executor.machine().entries(),
            memory: self.executor.memory(),
            refuses_writes: self.executor.machine().refuses_writes(),
            sessions: self.executor.sessions(),
            commands: self.executor.commands(),
            snapshot: world.snapshot_newest(),
            snapshot_in_progress: self.unfinished.is_some(),
            fetching: self.fetch.is_some() || self.installing.is_some() && !self.undoes(),
            transfer: self.transfer_status(world),
            state_bytes_received: self.state_bytes_received,
            state_bytes_sent: self.state_bytes_sent,
            disk_hung: self.disk.is_hung(),
            sealed: self.executor.sealed().cloned(),
            open: self.replica.open(self.group),
            frames_malformed: self.malformed,
            frames_foreign: self.foreign,
            digests: self.digests.status(),
        }
    }

    /// The protocol's own status, without the rest: cheap.
    #[must_use]
    pub fn protocol_status(&self) -> Status {
        self.replica.status(self.group)
    }

    /// The last slot whose execution here is final. The protocol's report counts, unless its
    /// effects wait: then one of them may undo executed batches.
    #[must_use]
    pub fn stable(&self) -> Slot {
        let stable = self.replica.status(self.group).stable;
        match self.has_effects_waiting() {
            true => stable.min(self.executor.stable()),
            false => stable,
        }
    }

    /// Whether the protocol has asked for more than has been made of the state.
    #[must_use]
    pub fn has_effects_waiting(&self) -> bool {
        self.installing.is_some() || !self.deferred.is_empty()
    }

    /// The peers that say of late that they hear a majority of the members.
    #[must_use]
    pub fn quorate_peers(&self, now: Time) -> ReplicaSet {
        self.voters.numbers(self.pace.quorate(now))
    }

    /// How far execution has come.
    #[must_use]
    pub const fn executed(&self) -> Executed {
        self.executor.executed()
    }

    /// Whether batches are executed before their order is final, in this epoch.
    #[must_use]
    pub const fn speculates(&self) -> bool {
        self.executor.speculates()
    }

    /// The log's time: that of the last batch executed.
    #[must_use]
    pub const fn log_time(&self) -> crate::CommandTime {
        self.executor.time()
    }

    /// Whether a state is being fetched or restored.
    #[must_use]
    pub const fn is_fetching(&self) -> bool {
        self.fetch.is_some() || self.installing.is_some()
    }

    /// The state machine, to look at.
    #[must_use]
    pub fn machine(&self) -> &dyn StateMachine {
        self.executor.machine()
    }

    /// The name and the steps of the longest command since this was last asked.
    #[must_use]
    pub fn take_longest(&self) -> Option<(&'static str, u64)> {
        self.executor.machine().take_longest()
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
        let status = self.replica.status(self.group);
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

/// The view of a protocol that tells none.
fn first_view(protocol: &Entry, voters: Voters) -> Option<(u64, ReplicaSet)> {
    (!protocol.changes_members).then(|| (0, voters.set()))
}

const fn node_timer(timer: u32) -> TimerKey {
    TimerKey {
        owner: TimerOwner::Node,
        timer,
        generation: 0,
    }
}
