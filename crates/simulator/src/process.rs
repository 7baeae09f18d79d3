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
//! In memory durability a restart finds its promise and nothing else: `forgot` is set and it runs
//! under a new incarnation.

use crate::{
    checkers::Violation,
    clock::Clock,
    disk::{Disk, DiskProfile},
    machine::{Executed as Recorded, Record, Recorder, Registers},
    network::Network,
    timers::Timers,
    workload::{Request, Server},
    world::{Event, MILLISECOND, World},
};
use quintet_replica::{
    Boot, Bytes, ClockReading, ClusterId, Deadline, Durability, Epoch, EpochNumber, Executed,
    ExecutorLimits, FrontendId, GroupId, Incarnation, Input, Level, Link, Node, NodeSetup, Output,
    Peer, PersistId, Recipients, ReplicaId, Slot, SnapshotInfo, Time, TimerKey, Wake,
    World as Outside, Write, put_frame,
};
use std::{collections::VecDeque, sync::PoisonError, time::Duration};

/// What waits for a replica.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Peer, Time, Bytes),
    Link(Peer, Link),
    Timer(TimerKey),
    Persisted(PersistId),
    SnapshotWritten(u64),
    SnapshotSaved(SnapshotInfo),
    Requests(Level, Vec<Request>),
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
    record: Record,
    executed: Slot,
    handled: u64,
    /// The promise write under way and the view shown when it was asked for.
    promises: VecDeque<(PersistId, u64)>,
}

/// What a handler of one replica may look at.
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
        self.disk.snapshot_read(id, offset, length)
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
            record: Record::default(),
            executed: Slot(0),
            handled: 0,
            promises: VecDeque::new(),
        }
    }

    /// Whether it will crash or stop of the fault that struck it.
    pub const fn is_dying(&self) -> bool {
        self.armed.is_some() || self.stopping
    }

    /// Moves what the recorder wrote into `into`.
    pub fn take_record(&self, into: &mut Vec<Recorded>) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        into.append(&mut record);
    }
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
        let epoch = epoch(self);
        let durability = self.setup.durability;
        let seed = self.random.draw();
        let owner = self.random.draw() | 1;
        self.embedded_next += 1;
        let frontend = self.embedded_next;
        self.embedded.retain(|_, node| usize::from(*node) != index);
        self.embedded.insert(frontend, index as u16);
        let process = &mut self.processes[index];
        let first_boot = process.boot == 0;
        process.boot += 1;
        if durability == Durability::Memory && !first_boot {
            process.incarnation.0 += 1;
            process.disk.forget();
        }
        process.clock.boot(self.now);
        let machine = Registers::new(
            self.shape.keys,
            self.shape.snapshot_padding,
            self.shape.snapshot_chunk,
        );
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
            limits: ExecutorLimits {
                session_lifetime: Duration::from_nanos(self.shape.session_lifetime),
                ..ExecutorLimits::default()
            },
        };
        let machine = Box::new(Recorder::new(Box::new(machine), process.record.clone()));
        let recovered = process.disk.recovered(first_boot, durability);
        process.server = Server::new(owner, process.clock.reading(self.now).now);
        let (boot, incarnation) = (process.boot, process.incarnation);
        self.trace.say(self.now, || {
            format!(
                "r{index} boots (run {boot}, {incarnation}, forgot {}, {} records, promise {})",
                recovered.forgot,
                recovered.records.len(),
                recovered.promise.is_some()
            )
        });
        let mut node = match Node::new(setup, &self.setup.entry, machine) {
            Ok(node) => node,
            Err(error) => return self.violate(Violation::new("options", error.to_string())),
        };
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
            return self.violate(Violation::new(
                "recovery",
                format!("replica {index}: {error}"),
            ));
        }
        process.executed = node.executed().slot;
        process.node = Some(node);
        (process.busy_until, process.idle_at, process.step_queued) = (self.now, u64::MAX, false);
        process.promises.clear();
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
    }

    fn check_restarted(&mut self, index: usize) {
        let Some(node) = &self.processes[index].node else {
            return;
        };
        let view = node.protocol_status().view;
        if let Err(violation) = self.monotone[index].restarted(index as u16, view) {
            self.violate(violation);
        }
    }

    /// The process dies. Its disk keeps what was durable and a drawn prefix of the rest.
    pub fn crash(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.node.take().is_none() {
            return;
        }
        let lost = process.disk.crash(&mut self.random);
        process.inbox.clear();
        process.timers.clear();
        (process.armed, process.stopping) = (None, false);
        process.paused_until = 0;
        process.step_queued = false;
        process.idle_at = u64::MAX;
        process.take_record(&mut Vec::new());
        if lost > 0 {
            self.effective("writes_lost");
        }
        self.trace.say(self.now, || {
            format!("r{index} CRASHES, {lost} unsynced writes lost")
        });
        for other in 0..self.network.places() {
            if other != index {
                self.break_link(index, other, Link::Reset);
            }
        }
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
        if let Some(Err(error)) = result
            && frame
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

    fn call<R>(
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
        let executed = node.executed().slot;
        let moved = executed != process.executed;
        process.executed = executed;
        let state = moved.then(|| node.state_digest());
        if moved || process.handled.is_multiple_of(8) {
            let status = node.protocol_status();
            self.largest.batches_open = self.largest.batches_open.max(process.server.open.len());
            let speculates = self.setup.entry.speculates;
            let shown = self.monotone[index].shows(index as u16, &status, executed, speculates);
            if let Err(violation) = shown {
                self.violate(violation);
            }
        }
        if process_digest_due(self.processes[index].handled) {
            let digest = self.processes[index]
                .node
                .as_ref()
                .map_or(0, Node::protocol_digest);
            self.trace.feed(digest);
        }
        if let Some(state) = state {
            self.check_executed(index);
            self.check_state(index, executed.0, state);
        }
    }

    pub fn on_synced(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let (upto, again) = process.disk.synced(&mut self.random);
        let boot = process.boot;
        let Some(upto) = upto else { return };
        while process.promises.front().is_some_and(|(id, _)| *id <= upto) {
            if let Some((_, view)) = process.promises.pop_front() {
                self.monotone[index].promised(view);
            }
        }
        self.trace
            .say(self.now, || format!("r{index} durable up to {upto}"));
        if let Some((Armed::BeforePersisted, _)) = self.processes[index].armed {
            return self.crash_armed(index);
        }
        self.give(index, Item::Persisted(upto));
        if let Some(latency) = again {
            self.queue.push(
                self.now + latency,
                Event::Synced {
                    node: index as u16,
                    boot,
                },
            );
        }
    }

    pub fn on_snapshot_written(&mut self, index: usize, bytes: u64) {
        self.give(index, Item::SnapshotWritten(bytes));
    }

    pub fn on_snapshot_saved(&mut self, index: usize, id: Executed) {
        if let Some(info) = self.processes[index].disk.snapshot_saved(id) {
            *self.branches.entry("snapshot saved").or_default() += 1;
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
        for (at, output) in outputs.drain(..).enumerate() {
            if cut != Some(at) {
                self.carry_out_one(index, output, usize::MAX);
                continue;
            }
            if armed == Some(Armed::AfterWrite) {
                self.carry_out_one(index, output, usize::MAX);
            } else {
                // A multicast may have reached some of its recipients.
                let reached = self.random.index(self.setup.replicas);
                if matches!(output, Output::Send { .. }) {
                    self.carry_out_one(index, output, reached);
                }
            }
            self.crash_armed(index);
            break;
        }
        if voted {
            self.crash_armed(index);
        }
        outputs.clear();
        if self.outputs.capacity() < outputs.capacity() {
            self.outputs = outputs;
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
            Output::Put { to, offset, words } => {
                let frame = put_frame(GroupId(0), EpochNumber(1), offset, &words).into_bytes();
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
                self.processes[index].disk.trim(below);
            }
            Output::SetTimer { key, at } => self.set_timer(index, key, at),
            Output::CancelTimer { key } => self.processes[index].timers.cancel(key),
            Output::SnapshotBegin { id, .. } => self.processes[index].disk.snapshot_begin(id),
            Output::SnapshotAppend(bytes) => {
                let written = self.processes[index].disk.snapshot_append(&bytes);
                let (node, boot) = (index as u16, self.processes[index].boot);
                let at = self.now + 50_000;
                self.queue.push(
                    at,
                    Event::SnapshotWritten {
                        node,
                        boot,
                        bytes: written,
                    },
                );
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
            Output::Route { .. } | Output::Recovered => {}
            Output::Mark(branch) => {
                self.trace
                    .say(self.now, || format!("r{index} mark: {branch}"));
                *self.branches.entry(branch).or_default() += 1;
            }
            Output::Halt(reason) => {
                let what = format!("replica {index}: {reason}");
                self.violate(Violation::new("halt", what));
            }
        }
    }

    fn journal(&mut self, index: usize, id: PersistId, write: Write) {
        let process = &mut self.processes[index];
        if matches!(write, Write::Promise(_)) {
            let view = process
                .node
                .as_ref()
                .map_or(0, |node| node.protocol_status().view);
            process.promises.push_back((id, view));
        }
        if let Some(latency) = process.disk.append(id, write, &mut self.random) {
            let (node, boot) = (index as u16, process.boot);
            if process.disk.slow > 1 {
                *self.effects.entry("slow_disk").or_default() += 1;
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

/// Hashing a protocol's whole state is dear; every 32nd input is enough to see two runs part.
const fn process_digest_due(handled: u64) -> bool {
    handled.is_multiple_of(32)
}
