//! A replica's process: its node, inbox, disk, clock, timers and the server of its clients.
//!
//! ```text
//!   frames, links, timers, syncs, requests ──► inbox ──► Step: one input ──► outputs
//!                                                │         │ a drawn crash carries out
//!                                                │         ▼ only a prefix of them
//!                                     inbox empty, or drawn: on_idle
//!
//!   boot ──► recovers from the disk ──► runs ──► crash ──► (restart) ──► boot
//! ```
//!
//! In memory durability a restart finds its promise and nothing else: `state_lost` is set and it
//! runs under a new incarnation.

mod epochs;
mod starts;

use crate::{
    bugs::{APPLIED_TWICE, UNCOMPARED},
    checkers::{
        Violation,
        speculated::{Run, Speculated},
    },
    clock::Clock,
    clock::MILLISECOND,
    disk::{Disk, DiskError, DiskProfile},
    event::Event,
    faults::Kind,
    machine::{Executed as Recorded, Queried, Queries, Record, Recorder},
    network::Network,
    stored_epoch,
    timers::Timers,
    workload::{Request, Server},
    world::World,
};
use quintet_replica::{
    Boot, Bytes, ClockReading, ClusterId, CommandTime, Control, Deadline, Descriptor, Durability,
    Epoch, EpochNumber, Executed, FrameError, FrontendId, GroupId, HaltKind, Incarnation, Injected,
    Input, Level, Link, NOT_UNDONE, Node, NodeSetup, Output, Peer, PersistId, Recipients,
    ReplicaId, ReplicaSet, Slot, SnapshotInfo, SnapshotLeft, Time, TimerKey, Wake,
    World as Outside, Write, journal::JournalError, put_frame,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::PoisonError,
};

/// The inputs that wait for a replica.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Peer, Time, Bytes),
    Link(Peer, Link),
    Timer(TimerKey),
    Persisted(PersistId),
    SnapshotWritten(u64),
    SnapshotSaved(SnapshotInfo),
    SnapshotFailed,
    Requests(Level, Vec<Request>),
}

/// The possible effects of damage to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// The disk can repair it by itself.
    None,
    /// The replica comes back as one that has lost its state.
    Forgets,
    /// The replica never comes back.
    Permanent,
}

/// A crash that waits for its moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    /// In the middle of the next step that has several effects.
    MidStep,
    /// When a sync is done, before the replica is told.
    BeforePersisted,
    /// As soon as a write was handed over.
    AfterWrite,
    /// At the end of a step that handed a promise over.
    Voted,
    /// When a client is answered.
    Answered,
    /// While a snapshot is written.
    InSnapshot(Moment),
}

/// A point in the making of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Its first bytes are handed over.
    Begin,
    /// Some of its bytes are written.
    Written,
    /// It is whole and not durable yet, if it ever will be.
    Finish,
    /// It is durable and the replica has not been told.
    Saved,
}

/// See the module.
pub(crate) struct Process {
    pub node: Option<Node>,
    pub boot: u32,
    pub incarnation: Incarnation,
    pub inbox: VecDeque<Item>,
    step_queued: bool,
    busy_until: u64,
    pub paused_until: u64,
    /// Its processor takes this many times longer.
    pub slow: u64,
    pub idle_at: u64,
    pub disk: Disk,
    pub clock: Clock,
    pub timers: Timers,
    pub server: Server,
    pub armed: Option<(Armed, u64)>,
    /// It was asked to stop and will.
    pub stopping: bool,
    /// After this many turns that send something its connections break.
    pub resets: u8,
    /// It crashes soon after its next start and stays down for so long.
    pub crash_at_boot: Option<u64>,
    /// It crashes when it next fetches a peer's state and stays down for so long.
    pub crash_in_transfer: Option<u64>,
    /// The damage of its disk, unnoticed so far.
    pub damaged: Option<(Kind, Harm)>,
    /// It lost something durable, and what it may have acknowledged is not all here again.
    repairing: bool,
    /// When it died, the state that its epoch began with was missing, or in memory only, or it is no
    /// member yet.
    pub lacks: bool,
    /// It is repaired once this write is durable.
    repaired_at: Option<PersistId>,
    /// The last write handed over, and the last one that is durable.
    written: PersistId,
    durable: PersistId,
    /// It will never start again.
    pub gone: bool,
    /// Its configuration, as shown to peers.
    pub descriptor: Bytes,
    /// It is configured otherwise than the others, who refuse it.
    pub refused: bool,
    /// Drawn when its data directory was made.
    pub directory: u64,
    /// The epoch in which another replica has its row.
    pub replaced_in: Option<(Descriptor, Executed)>,
    /// Its view of its peers' directories.
    peers: BTreeMap<usize, u64>,
    /// Nothing was ever written to its disk.
    fresh: bool,
    record: Record,
    queries: Queries,
    executed: Slot,
    /// The epoch that it was in then.
    epoch: EpochNumber,
    /// The newest epoch that it was ever in, also before it lost its disk.
    pub met: EpochNumber,
    /// Executed and not final.
    speculated: Speculated,
    handled: u64,
}

/// The environment of a handler of one replica.
struct View<'a> {
    now: Time,
    clock: ClockReading,
    disk: &'a Disk,
    network: &'a Network,
    place: usize,
}

impl Outside for View<'_> {
    fn now(&self) -> Time {
        self.now
    }
    fn clock(&self) -> ClockReading {
        self.clock
    }
    fn room(&self, peer: ReplicaId) -> usize {
        self.network.room(self.place, peer.index())
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.disk.snapshot_newest()
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        self.disk.snapshot_read(id, offset, length, self.now)
    }
    fn snapshot_left(&self) -> Option<SnapshotLeft> {
        self.disk.snapshot_left()
    }
}

impl Process {
    pub fn new(disk: DiskProfile) -> Self {
        Self {
            node: None,
            boot: 0,
            incarnation: Incarnation(1),
            inbox: VecDeque::new(),
            step_queued: false,
            busy_until: 0,
            paused_until: 0,
            slow: 1,
            idle_at: u64::MAX,
            disk: Disk::new(disk),
            clock: Clock::default(),
            timers: Timers::default(),
            server: Server::default(),
            armed: None,
            stopping: false,
            resets: 0,
            crash_at_boot: None,
            crash_in_transfer: None,
            damaged: None,
            repairing: false,
            lacks: false,
            repaired_at: None,
            written: PersistId(0),
            durable: PersistId(0),
            gone: false,
            descriptor: Bytes::new(),
            refused: false,
            directory: 0,
            replaced_in: None,
            peers: BTreeMap::new(),
            fresh: true,
            record: Record::default(),
            queries: Queries::default(),
            executed: Slot(0),
            epoch: EpochNumber(1),
            met: EpochNumber(0),
            speculated: Speculated::default(),
            handled: 0,
        }
    }

    /// Whether it will crash or stop of the fault injected into it.
    pub fn is_dying(&self) -> bool {
        let waits = self.armed.is_some() || self.crash_in_transfer.is_some();
        waits || self.stopping || self.disk.is_failing()
    }

    /// Whether it has lost its data permanently, or will find so at its next start; or no member
    /// works with it.
    pub const fn is_lost(&self) -> bool {
        self.gone || self.refused || matches!(self.damaged, Some((_, Harm::Permanent)))
    }

    /// Whether the others must bring back what its disk no longer holds.
    pub fn is_damaged(&self) -> bool {
        let lacks = self.node.as_ref().is_some_and(Node::lacks_state);
        self.repairing || self.lacks || lacks || matches!(self.damaged, Some((_, Harm::Forgets)))
    }

    /// An operator has emptied its data directory.
    pub fn wipe(&mut self) {
        self.disk.wipe();
        self.peers.clear();
        self.directory += 1;
        self.fresh = true;
        self.incarnation = Incarnation(1);
        self.damaged = Some((Kind::Wipe, Harm::Permanent));
        (self.repairing, self.repaired_at) = (false, None);
    }

    /// The epoch that it was last seen in.
    pub const fn epoch(&self) -> EpochNumber {
        self.epoch
    }

    /// Moves what the recorder wrote into `into`.
    pub fn take_record(&self, into: &mut Vec<Recorded>) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        into.append(&mut record);
    }
}

/// Takes what was read since the last time.
fn take_queries(queries: &Queries) -> Vec<Queried> {
    std::mem::take(&mut queries.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) fn epoch(world: &World) -> Epoch {
    Epoch {
        cluster: ClusterId(u128::from(world.setup.seed) + 1),
        number: EpochNumber(1),
        members: world.setup.replicas,
        options: world.setup.options.clone(),
        secret: [7; 32],
        leader_first: ReplicaId(0),
    }
}

impl World {
    /// Starts a replica, for the first time or again.
    pub fn boot(&mut self, index: usize) {
        let mut configuration = self.configuration(Some(index));
        let (memory, kept) = self.find_epoch(index);
        let durability = self.durability_of(index);
        let later = self.processes[index].disk.epoch.clone();
        if let Some((descriptor, base)) = &later {
            configuration.limits.agree(&descriptor.limits);
            self.note_epoch(descriptor, *base);
        }
        let epoch = match &later {
            Some((descriptor, _)) => stored_epoch::later(descriptor, &epoch(self)),
            None => Epoch {
                options: configuration.options.clone(),
                ..epoch(self)
            },
        };
        let first = ReplicaSet::all(epoch.members);
        let members = (later.as_ref()).map_or(first, |(it, _)| it.all());
        if !members.contains(ReplicaId(index as u16)) {
            // It has lost its disk, and nothing says any more that it was ever a member.
            self.processes[index].gone = true;
            return self.effective(Kind::Wipe.name());
        }
        let seed = self.random.draw();
        let owner = self.random.draw() | 1;
        self.embedded_next += 1;
        let frontend = self.embedded_next;
        self.embedded.retain(|_, node| usize::from(*node) != index);
        self.embedded.insert(frontend, index as u16);
        let retries_syncs = self.bug_is("fsync_error_then_retry");
        let process = &mut self.processes[index];
        let injected = Injected::of(&epoch.options);
        process.disk.bug(injected, retries_syncs);
        process.lacks = false;
        let first_boot = std::mem::take(&mut process.fresh);
        process.boot += 1;
        let state_lost = memory || process.repairing;
        process.incarnation.0 += u64::from(state_lost);
        let members = epoch.members;
        let with = (kept, members - 1 > members / 2);
        let opened = process
            .disk
            .open(starts::owner(&epoch, index), first_boot, state_lost, with);
        let found = match opened {
            Ok(found) => found,
            Err(error) => return self.refuse(index, &error),
        };
        let twice = configuration.other_machine
            || (self.bug_is(APPLIED_TWICE) && index + 1 == self.setup.replicas);
        let process = &mut self.processes[index];
        if found.lost {
            process.incarnation.0 += u64::from(!state_lost);
            process.repairing = true;
        }
        process.repaired_at = None;
        (process.written, process.durable) = (PersistId(0), PersistId(0));
        process.clock.boot(self.now);
        let began = process.clock.now(self.now);
        (process.clock.limit).begin(began, CommandTime(0), members);
        let store = configuration.store.clone();
        let machine = self.mix.machine_with(&self.shape, store);
        let (descriptor, base) = later.unwrap_or_else(|| {
            let first = self.descriptor(&configuration, &*machine);
            (first, Executed::default())
        });
        let process = &mut self.processes[index];
        process.descriptor = descriptor.public();
        let setup = NodeSetup {
            id: ReplicaId(index as u16),
            incarnation: process.incarnation,
            boot: Boot(process.boot.into()),
            group: GroupId(0),
            epoch,
            durability,
            seed,
            frontend: FrontendId(frontend),
            snapshot_bytes_min: self.shape.snapshot_bytes_min,
            limits: configuration.limits,
        };
        let recorder = Recorder::new(machine, process.record.clone());
        let recorder = recorder.with(process.queries.clone(), self.shape.snapshot_chunk);
        let machine = Box::new(recorder.applying_twice(twice));
        let recovered = found.recovered;
        let records = recovered.records.iter();
        self.held
            .recovered(index, records.map(|(_, record)| &record[..]));
        process.server = Server::new(owner, process.clock.raw(self.now));
        let (boot, incarnation) = (process.boot, process.incarnation);
        self.trace.say(self.now, || {
            format!(
                "r{index} boots (run {boot}, {incarnation}, state lost {}, {} records, promise {})",
                recovered.state_lost,
                recovered.records.len(),
                recovered.promise.is_some()
            )
        });
        let entry = stored_epoch::protocol(&descriptor, self.setup.entry);
        let mut node = match Node::among(descriptor.voters(), setup, &entry, machine) {
            Ok(node) => node,
            Err(error) => return self.violate(Violation::new("options", error.to_string())),
        };
        if !self.bug_is(UNCOMPARED) {
            node = node.with_descriptor(descriptor.encode()).with_base(base);
        }
        let process = &mut self.processes[index];
        let view = View {
            now: process.clock.now(self.now),
            clock: process.clock.reading(self.now),
            disk: &process.disk,
            network: &self.network,
            place: index,
        };
        let mut outputs = std::mem::take(&mut self.outputs);
        if let Err(error) = node.start(recovered, &view, &mut outputs) {
            return self.refuse(index, &error);
        }
        if found.torn {
            self.effective("torn_tail");
        }
        self.forgive(
            index,
            found.promise_repaired,
            found.lost,
            found.snapshot_bad,
        );
        let process = &mut self.processes[index];
        (process.executed, process.epoch) = (node.executed().slot, node.epoch());
        process.met = process.met.max(process.epoch);
        let (now, log) = (process.clock.now(self.now), node.log_time());
        process.clock.limit.begin(now, log, members);
        process.node = Some(node);
        if boot == 1 {
            self.compare_clocks();
        }
        let process = &mut self.processes[index];
        (process.busy_until, process.idle_at, process.step_queued) = (self.now, u64::MAX, false);
        self.check_restarted(index);
        self.after_input(index);
        self.carry_out(index, outputs);
        self.wake(index);
        for other in 0..self.network.places() {
            if other != index {
                let at = self.now + self.random.between(20, 5000) * 1000;
                self.network.connect_at(index, other, at, &mut self.queue);
            }
        }
        if let Some(down) = self.processes[index].crash_at_boot.take() {
            let soon = [50_000, 2 * MILLISECOND, 30 * MILLISECOND][self.random.index(3)];
            let at = self.now + self.random.below(soon);
            self.crash_at(at, index, Kind::CrashInRecovery, down);
        }
    }

    fn check_restarted(&mut self, index: usize) {
        let Some(node) = &self.processes[index].node else {
            return;
        };
        if let Err(violation) = self.monotone[index].restarted_node(index as u16, node) {
            self.violate(violation);
        }
    }

    /// The process dies. Its disk keeps what was durable and a drawn prefix of the rest.
    pub fn crash(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let Some(node) = process.node.take() else {
            return;
        };
        process.lacks = node.lacks_state() || node.is_learner();
        let lost = process.disk.crash(&mut self.random).writes;
        process.inbox.clear();
        process.timers.clear();
        (process.armed, process.stopping, process.resets) = (None, false, 0);
        process.paused_until = 0;
        process.step_queued = false;
        process.idle_at = u64::MAX;
        process.take_record(&mut Vec::new());
        process.speculated.clear();
        if lost > 0 {
            self.effective("writes_lost");
        }
        self.trace.say(self.now, || {
            format!("r{index} CRASHES, {lost} unsynced writes lost")
        });
        self.break_links(index, self.network.places());
        self.disconnect_clients(index);
    }

    /// Makes sure that the replica looks at its inbox.
    pub fn wake(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.node.is_none() || process.step_queued {
            return;
        }
        process.step_queued = true;
        let at = self.now.max(process.busy_until).max(process.paused_until);
        self.queue.push(
            at,
            Event::Step {
                node: index as u16,
                boot: process.boot,
            },
        );
    }

    fn give(&mut self, index: usize, item: Item) {
        let process = &mut self.processes[index];
        if process.node.is_some() {
            process.inbox.push_back(item);
            self.wake(index);
        }
    }

    pub fn give_frame(&mut self, index: usize, from: Peer, frame: Bytes) {
        let arrived = self.processes[index].clock.now(self.now);
        self.give(index, Item::Frame(from, arrived, frame));
    }

    pub fn give_link(&mut self, index: usize, peer: Peer, link: Link) {
        self.give(index, Item::Link(peer, link));
    }

    pub fn give_timer(&mut self, index: usize, key: TimerKey) {
        self.give(index, Item::Timer(key));
    }

    pub fn give_requests(&mut self, index: usize, level: Level, requests: Vec<Request>) {
        self.give(index, Item::Requests(level, requests));
    }

    /// The replica handles one item, and idles when the inbox is empty or the seed says so.
    pub fn step(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.step_queued = false;
        if process.paused_until > self.now {
            return self.wake(index);
        }
        if let Some(item) = process.inbox.pop_front() {
            self.on_item(index, item);
        }
        if self.processes[index].node.is_none() {
            return;
        }
        let empty = self.processes[index].inbox.is_empty();
        if empty || self.random.chance(self.shape.idle_early) {
            self.flush_server(index);
            self.idle(index);
        }
        let cost = self
            .random
            .between(self.shape.cost_min, self.shape.cost_max);
        let process = &mut self.processes[index];
        process.busy_until = self.now + cost * process.slow;
        if process.slow > 1 {
            *self.effects.entry("slow_replica").or_default() += 1;
        }
        if !self.processes[index].inbox.is_empty() {
            self.wake(index);
        }
    }

    fn on_item(&mut self, index: usize, item: Item) {
        let input = match item {
            Item::Frame(from, arrived, frame) => {
                self.trace.say(self.now, || {
                    format!("r{index} ◄ {from:?} {}", self.setup.describe_frame(&frame))
                });
                Input::Frame {
                    from,
                    arrived,
                    frame,
                }
            }
            Item::Link(peer, link) => {
                self.trace
                    .say(self.now, || format!("r{index} link to {peer:?}: {link:?}"));
                Input::Link(peer, link)
            }
            Item::Timer(key) => {
                if !self.processes[index].timers.take_fired(key) {
                    return;
                }
                self.trace.say(self.now, || {
                    format!("r{index} timer {}", self.setup.describe_timer(key))
                });
                Input::Timer(key)
            }
            Item::Persisted(id) => Input::Persisted(id),
            Item::SnapshotWritten(bytes) => Input::SnapshotWritten(bytes),
            Item::SnapshotSaved(info) => {
                self.trace.say(self.now, || {
                    format!("r{index} snapshot {:?} saved", info.id)
                });
                Input::SnapshotSaved(info)
            }
            Item::SnapshotFailed => Input::SnapshotFailed,
            Item::Requests(level, requests) => {
                self.processes[index].server.take(level, requests);
                return;
            }
        };
        self.input(index, input);
    }

    /// Gives an input to the replica and carries out what it asks for.
    pub fn input(&mut self, index: usize, input: Input) {
        let frame = matches!(input, Input::Frame { .. });
        let result = self.call(index, |node, view, outputs| {
            node.on_input(input, view, outputs)
        });
        // Of another epoch: that is told, and no more is made of it.
        if let Some(Err(error)) = result
            && frame
            && !matches!(error, FrameError::Epoch { .. })
        {
            let what = format!("replica {index} refused a peer's frame: {error}");
            self.violate(Violation::new("codec", what));
        }
    }

    fn idle(&mut self, index: usize) {
        let Some(wake) = self.call(index, Node::on_idle) else {
            return;
        };
        let process = &self.processes[index];
        let at = match wake {
            Wake::Spin => self.now + 10_000,
            Wake::At(at) => process.clock.when(at, self.now + 1_000),
            Wake::Sleep => u64::MAX,
        };
        if at < process.idle_at || process.idle_at <= self.now {
            let boot = process.boot;
            self.processes[index].idle_at = at;
            if at != u64::MAX {
                self.queue.push(
                    at,
                    Event::IdleWake {
                        node: index as u16,
                        boot,
                        at,
                    },
                );
            }
        }
    }

    pub fn call<R>(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut Node, &dyn Outside, &mut Vec<Output>) -> R,
    ) -> Option<R> {
        let Process {
            node, clock, disk, ..
        } = &mut self.processes[index];
        let view = View {
            now: clock.now(self.now),
            clock: clock.reading(self.now),
            disk,
            network: &self.network,
            place: index,
        };
        let mut outputs = std::mem::take(&mut self.outputs);
        let result = call(node.as_mut()?, &view, &mut outputs);
        self.after_input(index);
        self.carry_out(index, outputs);
        Some(result)
    }

    /// Invariants and checkers, before the outputs take effect.
    fn after_input(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let Some(node) = &mut process.node else {
            return;
        };
        node.assert_invariants();
        process.handled += 1;
        let mut queries = take_queries(&process.queries);
        let speculates = node.speculates();
        if !speculates {
            let queries = queries.drain(..).map(|queried| (index as u16, queried));
            self.queries.extend(queries);
        }
        let (executed, epoch) = (node.executed().slot, node.epoch());
        let entered = epoch != process.epoch;
        let moved = executed != process.executed || entered;
        (process.executed, process.epoch) = (executed, epoch);
        process.met = process.met.max(epoch);
        // A replica's part that follows an epoch is no state.
        let follows = node.is_between_epochs() && node.is_fetching();
        let state = (moved && !follows).then(|| node.state_digest());
        let fetching = node.is_fetching();
        if speculates || !process.speculated.is_empty() {
            let stable = if speculates { node.stable() } else { executed };
            if node.undoes() {
                process.speculated.undone(stable);
            }
            let run = Run {
                epoch,
                slot: executed,
                record: Vec::new(),
                state,
                queries,
            };
            self.check_speculated(index, run, moved, stable);
        }
        let process = &mut self.processes[index];
        let Some(node) = &mut process.node else {
            return;
        };
        if moved || process.handled.is_multiple_of(8) {
            let status = node.protocol_status();
            self.led |= status.leader.is_some();
            self.largest.batches_open = self.largest.batches_open.max(process.server.open.len());
            let shown = self.monotone[index].shows_node(index as u16, node);
            if let Err(violation) = shown {
                self.violate(violation);
            }
        }
        self.check_seal(index);
        if self.hunted.is_some()
            && let Some(node) = &self.processes[index].node
        {
            let status = node.protocol_status();
            if status.leader.is_some_and(|leader| leader.index() == index) {
                self.found_leader(index, Some(status.view));
            }
        }
        // Hashing a protocol's whole state is dear; every 32nd input is enough to see two runs part.
        if self.processes[index].handled.is_multiple_of(32) {
            let digest = self.processes[index]
                .node
                .as_ref()
                .map_or(0, Node::protocol_digest);
            self.trace.feed(digest);
        }
        if !speculates {
            // Every execution is checked, though the node should not report that it happened.
            if moved || !fetching {
                self.check_executed(index);
                self.check_state(index, epoch, executed.0, state);
            }
        }
    }

    /// Executions that are not final yet are compared when they are.
    fn check_speculated(&mut self, index: usize, mut run: Run, moved: bool, stable: Slot) {
        let process = &mut self.processes[index];
        process.take_record(&mut run.record);
        let mut queries = std::mem::take(&mut run.queries);
        if moved || !run.record.is_empty() {
            process.speculated.executed(run);
        }
        if !queries.is_empty() {
            queries = process.speculated.read(queries);
        }
        while let Some(run) = self.processes[index].speculated.ready(stable) {
            self.check_record(index, &run.record);
            self.check_state(index, run.epoch, run.slot.0, run.state);
            queries.extend(run.queries);
        }
        let queries = queries.into_iter().map(|queried| (index as u16, queried));
        self.queries.extend(queries);
    }

    pub fn on_synced(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let synced = match process.disk.synced(&mut self.random) {
            Ok(synced) => synced,
            Err(error) => return self.storage_failed(index, &error),
        };
        let boot = process.boot;
        if process
            .repaired_at
            .is_some_and(|at| synced.upto >= Some(at))
        {
            self.repaired(index);
        }
        if synced.stuck {
            self.effective(Kind::DiskFull.name());
            // A leader that cannot make its own votes durable should not lead.
            let leads = (self.processes[index].node.as_ref())
                .is_some_and(|node| node.protocol_status().leader == Some(node.id()));
            if leads && self.random.chance(200) {
                self.input(index, Input::Control(Control::HandOff));
            }
        }
        if let Some(latency) = synced.again {
            let node = index as u16;
            self.queue
                .push(self.now + latency, Event::Synced { node, boot });
        }
        let Some(upto) = synced.upto else { return };
        let process = &mut self.processes[index];
        process.durable = upto;
        self.held.synced(index, upto);
        self.monotone[index].durable(upto);
        self.trace
            .say(self.now, || format!("r{index} durable up to {upto}"));
        if let Some((Armed::BeforePersisted, _)) = self.processes[index].armed {
            return self.crash_armed(index);
        }
        self.give(index, Item::Persisted(upto));
    }

    /// Lost data is here again, durably.
    fn repaired(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.repaired_at = None;
        if std::mem::take(&mut process.repairing) {
            self.trace.say(self.now, || format!("r{index} is repaired"));
            *self.branches.entry("journal repaired").or_default() += 1;
        }
    }

    pub fn on_snapshot_written(&mut self, index: usize, bytes: u64) {
        if self.is_armed(index, Moment::Written) {
            return self.crash_armed(index);
        }
        self.give(index, Item::SnapshotWritten(bytes));
    }

    fn is_armed(&self, index: usize, moment: Moment) -> bool {
        let armed = self.processes[index].armed;
        armed.is_some_and(|(armed, _)| armed == Armed::InSnapshot(moment))
    }

    pub fn on_snapshot_saved(&mut self, index: usize, id: Executed) {
        let process = &mut self.processes[index];
        let boot = process.boot;
        if let Some((info, sync)) = process.disk.snapshot_saved(id, &mut self.random) {
            if let Some(latency) = sync {
                let node = index as u16;
                self.queue
                    .push(self.now + latency, Event::Synced { node, boot });
            }
            *self.branches.entry("snapshot saved").or_default() += 1;
            if self.is_armed(index, Moment::Saved) {
                return self.crash_armed(index);
            }
            self.give(index, Item::SnapshotSaved(info));
        }
    }

    /// Carries out what a replica asked for, in order; a crash that waits for this moment carries
    /// out only a part.
    fn carry_out(&mut self, index: usize, mut outputs: Vec<Output>) {
        let armed = self.processes[index].armed.map(|(armed, _)| armed);
        let cut = match armed {
            Some(Armed::MidStep) if outputs.len() >= 2 => Some(self.random.index(outputs.len())),
            Some(Armed::AfterWrite) => outputs
                .iter()
                .position(|output| matches!(output, Output::Journal { .. })),
            _ => None,
        };
        let is_promise = |output: &Output| {
            matches!(
                output,
                Output::Journal {
                    write: Write::Promise(_),
                    ..
                }
            )
        };
        let voted = armed == Some(Armed::Voted) && outputs.iter().any(is_promise);
        let mid_snapshot = outputs.iter().any(|output| match output {
            Output::SnapshotBegin { .. } => self.is_armed(index, Moment::Begin),
            Output::SnapshotFinish => self.is_armed(index, Moment::Finish),
            _ => false,
        });
        let sent_to = match self.processes[index].resets {
            0 => ReplicaSet::EMPTY,
            _ => recipients(&outputs),
        };
        // A snapshot that the disk damaged is met when something must be undone.
        let stops = (outputs.iter())
            .position(|it| matches!(it, Output::Halt(_, reason) if reason.starts_with(NOT_UNDONE)))
            .filter(|_| matches!(self.processes[index].damaged, Some((Kind::RotSnapshot, _))));
        outputs.truncate(stops.unwrap_or(outputs.len()));
        for (at, output) in outputs.drain(..).enumerate() {
            if cut != Some(at) {
                self.carry_out_one(index, output, usize::MAX);
                continue;
            }
            if armed == Some(Armed::AfterWrite) {
                self.carry_out_one(index, output, usize::MAX);
            } else {
                // A multicast may have reached some of its recipients.
                let reached = self.random.index(self.members);
                if matches!(output, Output::Send { .. }) {
                    self.carry_out_one(index, output, reached);
                }
            }
            self.crash_armed(index);
            break;
        }
        if voted || mid_snapshot {
            self.crash_armed(index);
        }
        if stops.is_some() && self.processes[index].node.is_some() {
            let down = self.random.between(5, 800) * MILLISECOND;
            self.crash_for(index, down);
        }
        if !sent_to.is_empty() && self.processes[index].node.is_some() {
            self.reset_unsent(index, sent_to);
        }
        outputs.clear();
        if self.outputs.capacity() < outputs.capacity() {
            self.outputs = outputs;
        }
    }

    /// The replica's connections break before what it has just sent has left.
    fn reset_unsent(&mut self, index: usize, sent_to: ReplicaSet) {
        self.processes[index].resets -= 1;
        for to in sent_to.iter().map(ReplicaId::index) {
            if self.random.chance(600) && self.break_link(index, to, Link::Reset) {
                self.network.cut_now(index, to, self.now);
                self.effective(Kind::ResetUnsent.name());
            }
        }
    }

    fn carry_out_one(&mut self, index: usize, output: Output, recipients_max: usize) {
        match output {
            Output::Send {
                to: Recipients::Replicas(set),
                lane,
                frame,
            } => {
                let frame = frame.into_bytes();
                for to in set.iter().take(recipients_max) {
                    self.transmit(index, to.index(), lane, frame.clone());
                }
            }
            Output::Send {
                to: Recipients::Frontend(frontend),
                lane,
                frame,
            } => {
                let to = match self.embedded.get(&frontend.0) {
                    Some(node) => Some(usize::from(*node)),
                    None => self.remote_place(frontend),
                };
                if let Some(to) = to.filter(|to| *to != index) {
                    self.transmit(index, to, lane, frame.into_bytes());
                }
            }
            Output::Put { to, ranges } => {
                let frame = put_frame(GroupId(0), self.processes[index].epoch, ranges).into_bytes();
                for to in to.iter().take(recipients_max) {
                    self.transmit(
                        index,
                        to.index(),
                        quintet_replica::Lane::Control,
                        frame.clone(),
                    );
                }
            }
            Output::Journal { id, write } => self.journal(index, id, write),
            Output::Trim { below } => {
                self.trace
                    .say(self.now, || format!("r{index} trims below {below}"));
                *self.branches.entry("log trimmed").or_default() += 1;
                let process = &mut self.processes[index];
                if let Some(latency) = process.disk.trim(below, &mut self.random) {
                    let (node, boot) = (index as u16, process.boot);
                    self.queue
                        .push(self.now + latency, Event::Synced { node, boot });
                }
            }
            Output::SetTimer { key, at } => self.set_timer(index, key, at),
            Output::CancelTimer { key } => self.processes[index].timers.cancel(key),
            Output::SnapshotBegin {
                id,
                fetched,
                kept,
                durable,
            } => {
                let disk = &mut self.processes[index].disk;
                disk.snapshot_begin(id, (fetched, durable), kept);
            }
            Output::SnapshotAppend(_) if self.processes[index].disk.is_full() => {
                if self.processes[index].disk.snapshot_in_progress() {
                    self.processes[index].disk.snapshot_abandon();
                    self.effective(Kind::DiskFull.name());
                    self.give(index, Item::SnapshotFailed);
                }
            }
            Output::SnapshotAppend(bytes) => {
                let bytes = self.processes[index].disk.snapshot_append(&bytes);
                let (node, boot) = (index as u16, self.processes[index].boot);
                let written = Event::SnapshotWritten { node, boot, bytes };
                self.queue.push(self.now + 50_000, written);
            }
            Output::SnapshotTruncate(length) => {
                self.processes[index].disk.snapshot_truncate(length);
            }
            Output::SnapshotBridges { base } => {
                self.processes[index].disk.snapshot_bridges(base);
            }
            Output::SnapshotFinish => {
                let process = &mut self.processes[index];
                if let Some((id, latency)) = process.disk.snapshot_finish(&mut self.random) {
                    let (node, boot) = (index as u16, process.boot);
                    let at = self.now + latency;
                    self.queue.push(at, Event::SnapshotSaved { node, boot, id });
                }
            }
            Output::SnapshotAbandon => self.processes[index].disk.snapshot_abandon(),
            Output::Done { batch, outcome } => {
                if let Some(requests) = self.processes[index].server.open.remove(&batch.0) {
                    self.finish(requests, outcome);
                }
            }
            Output::Recovered => {
                let process = &mut self.processes[index];
                process.repaired_at = Some(process.written);
                if process.written <= process.durable {
                    self.repaired(index);
                }
            }
            Output::Route {
                slot,
                members,
                agreed,
            } => {
                let epoch = self.processes[index].epoch;
                self.routes.note(epoch, slot, members.to_vec(), agreed);
            }
            Output::EpochBegins {
                descriptor, base, ..
            } => self.begin_epoch(index, descriptor, base),
            Output::Digest(digest) => self.check_digest(index, digest),
            Output::Diverged(found) => {
                let what = format!("replica {index}: {found}");
                self.violate(Violation::new("digests", what));
            }
            Output::Mark(branch) => {
                if branch.starts_with("impossible") {
                    let what = format!("replica {index}: {branch}");
                    self.violate(Violation::new("impossible", what));
                }
                if branch == "state transfer" {
                    self.maybe_crash_in_transfer(index);
                }
                if branch == "epoch begins with a state saved ahead" {
                    self.maybe_crash_on_the_bridge(index);
                }
                self.trace
                    .say(self.now, || format!("r{index} mark: {branch}"));
                *self.branches.entry(branch).or_default() += 1;
            }
            Output::BreakLinks => self.break_links(index, self.replicas_max()),
            // Its supervisor does not start it again.
            Output::Halt(HaltKind::NoMember, reason) => {
                self.trace
                    .say(self.now, || format!("r{index} stops: {reason}"));
                *self
                    .branches
                    .entry("member told that it is replaced")
                    .or_default() += 1;
                self.crash(index);
            }
            Output::Halt(HaltKind::StartAgain, reason) => {
                self.trace
                    .say(self.now, || format!("r{index} stops: {reason}"));
                *self.branches.entry("epoch given up").or_default() += 1;
                self.crash_for(index, 5 * MILLISECOND);
            }
            Output::Halt(HaltKind::Refused, reason) => {
                let what = format!("replica {index}: {reason}");
                self.violate(Violation::new("halt", what));
            }
        }
    }

    fn journal(&mut self, index: usize, id: PersistId, write: Write) {
        let process = &mut self.processes[index];
        process.written = id;
        if let Write::Record { record, .. } = &write {
            self.held.written(index, id, record);
        }
        if matches!(write, Write::Promise(_)) {
            let view = process
                .node
                .as_ref()
                .map_or(0, |node| node.protocol_status().view);
            self.monotone[index].promises(id, self.now, view);
            self.has_voted(index);
        }
        let process = &mut self.processes[index];
        if let Some(latency) = process.disk.append(id, write, &mut self.random) {
            let (node, boot) = (index as u16, process.boot);
            if process.disk.slow > 1 {
                *self.effects.entry("slow_disk").or_default() += 1;
            }
            let lates = process.disk.take_lates();
            if lates > 0 {
                *self.effects.entry("late_sync").or_default() += lates;
            }
            self.queue
                .push(self.now + latency, Event::Synced { node, boot });
        }
    }

    pub fn set_timer(&mut self, index: usize, key: TimerKey, deadline: Deadline) {
        let process = &mut self.processes[index];
        let due = match deadline {
            Deadline::At(at) => process.clock.when(at, self.now),
            Deadline::Clock(at) => process.clock.when_clock(at, self.now),
        };
        if let Some(at) = process.timers.set(key, deadline, due) {
            let (place, boot) = (index as u16, process.boot);
            self.queue.push(at, Event::Timer { place, boot, key });
        }
    }

    /// Timers set in synchronised time are due at another moment now.
    pub fn recheck_clock_timers(&mut self, index: usize) {
        for (key, at) in self.processes[index].timers.by_clock() {
            self.set_timer(index, key, Deadline::Clock(at));
        }
    }

    fn maybe_crash_in_transfer(&mut self, index: usize) {
        let Some(down) = self.processes[index].crash_in_transfer.take() else {
            return;
        };
        self.crash_soon(index, Kind::CrashInTransfer, down);
    }

    /// A bridge is only read by a replica that dies before the epoch's first state is saved.
    fn maybe_crash_on_the_bridge(&mut self, index: usize) {
        if self.ending_random.chance(150) {
            let disk = &self.processes[index].disk;
            let after = disk.bridge_time(&mut self.ending_random);
            let down = self.ending_random.between(5, 100) * MILLISECOND;
            self.crash_at(self.now + after, index, Kind::Crash, down);
        }
    }

    /// A replica crashes at a moment drawn from the next 20 milliseconds, the near ones more often.
    pub fn crash_soon(&mut self, index: usize, kind: Kind, down: u64) {
        let soon = [100_000, 2 * MILLISECOND, 20 * MILLISECOND][self.random.index(3)];
        let at = self.now + self.random.below(soon);
        self.crash_at(at, index, kind, down);
    }

    /// A replica crashes at a moment, unless it has crashed before.
    pub fn crash_at(&mut self, at: u64, index: usize, kind: Kind, down: u64) {
        let crash = Event::CrashNow {
            node: index as u16,
            boot: self.processes[index].boot,
            kind,
            down,
        };
        self.queue.push(at, crash);
    }

    /// The crash that waited for this moment happens.
    fn crash_armed(&mut self, index: usize) {
        let Some((armed, down)) = self.processes[index].armed.take() else {
            return;
        };
        self.effective(match armed {
            Armed::MidStep => "crash_mid_step",
            Armed::BeforePersisted => "crash_before_persisted",
            Armed::AfterWrite => "crash_after_write",
            Armed::Voted => "crash_voter",
            Armed::Answered => "crash_at_answer",
            Armed::InSnapshot(_) => "crash_in_snapshot",
        });
        self.crash(index);
        if armed == Armed::Voted {
            self.after_vote(index);
        }
        self.queue.push(
            self.now + down.max(MILLISECOND),
            Event::Restart { node: index as u16 },
        );
    }
}

/// The replicas to which something is sent.
fn recipients(outputs: &[Output]) -> ReplicaSet {
    let mut set = ReplicaSet::EMPTY;
    for output in outputs {
        if let Output::Send {
            to: Recipients::Replicas(to),
            ..
        } = output
        {
            set = ReplicaSet(set.0 | to.0);
        }
    }
    set
}
