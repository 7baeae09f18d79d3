//! One replica in the performance model: its node, what waits for it, its turns.
//!
//! ```text
//!   frames, links, timers, syncs, requests ──► inbox ──► turn: all of them, then batches, then idle
//!                                                          │
//!                  flush: journal, then frames, then replies, one after the other ◄── all work done
//!                                     Idle ─► Waiting ─► Running ─► Idle
//! ```
//!
//! Batches are made as the runtime's server makes them: one of a kind in progress on a fast
//! network, more over a long way.

use super::{
    cores::Task,
    journal::Journal,
    part::{self, Part},
    proxy::Program,
    service::{Done, Service, payload},
    world::{Event, World, kib},
};
use crate::timers::Popped;
use quintet_replica::{
    BatchBuilder, BatchId, Boot, Bytes, ClockReading, ClusterId, CommandId, Deadline, Durability,
    Epoch, EpochNumber, Executed, ExecutorLimits, FULL_BATCHES_MAX, FrontendId, FrontendSetup,
    GroupId, Incarnation, Input, Lane, Layout, Level, Link, Node, NodeSetup, Outcome, Output, Peer,
    PersistId, Recipients, ReplicaId, RequestKind, RequestStatus, Results, SNAPSHOT_BYTES_MIN,
    SessionId, SnapshotInfo, Submission, Time, TimerKey, World as Outside, Write, frame_group,
    put_frame,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// An input that waits, with its part.
#[derive(Debug)]
pub(super) enum Item {
    Frame(Peer, Time, Bytes),
    Link(Peer, Link),
    Timer(usize, TimerKey),
    Persisted(usize, PersistId),
    SnapshotWritten(usize, u64),
    SnapshotSaved(usize, SnapshotInfo),
    Request(Request),
}

/// A client's request as its replica sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub part: usize,
    pub client: usize,
    pub number: u64,
    pub read: bool,
    pub key: u64,
}

/// The effects at the end of a turn's work.
#[derive(Debug)]
enum Effect {
    Send(usize, Lane, Bytes),
    Journal(usize, PersistId, Write),
    Reply(usize, u64, bool),
}

/// The threads that were asleep and whose waking costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slept {
    pub replica: bool,
    pub journal: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Waiting,
    Running,
}

/// Requests of one kind, and how many batches of them are in flight.
#[derive(Debug, Default)]
pub(super) struct Pending {
    requests: Vec<Request>,
    in_flight: u64,
    shortest: Option<u64>,
}

#[derive(Debug)]
struct Open {
    part: usize,
    level: Level,
    /// `None` for what opens a session.
    requests: Vec<Option<Request>>,
    submitted: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct Replica {
    /// Its groups.
    pub parts: Vec<Part>,
    pub boot: u32,
    pub incarnation: u64,
    /// A synchronisation was asked for or is in progress.
    pub syncing: bool,
    pub sync_bytes: usize,
    pub idle_at: u64,
    /// That moment came in the middle of a turn.
    pub overslept: bool,
    pub paused: bool,
    /// It was asleep before the turn that comes, and so was its journal before it writes.
    pub slept: Slept,
    state: State,
    /// When it last had a core.
    worked_at: u64,
    inbox: VecDeque<Item>,
    turns: u64,
    effects: Vec<Effect>,
    open: BTreeMap<u64, Open>,
    batches: u64,
    owner: u64,
    started: u64,
    /// Of each client with a session here: the session's number and its next sequence number.
    sessions: BTreeMap<usize, (u64, u64)>,
    session_next: u64,
    done: Arc<Done>,
    charged: (u64, u64),
}

const BATCHES_MAX: u64 = 64;
const BATCH_INTERVAL: u64 = 250_000;
const TIMEOUT: Duration = Duration::from_secs(10);
const ROUNDS_MAX: usize = 8;
/// Virtual time 0 as nanoseconds since the Unix epoch.
const EPOCH: u64 = 1_700_000_000_000_000_000;
const SNAPSHOT_WRITE: u64 = 50_000;
const FRONTENDS: u64 = 1_000;

/// The environment of a handler of one replica.
pub(super) struct View<'a> {
    pub now: Time,
    pub clock: ClockReading,
    pub room: usize,
    pub journal: &'a Journal,
}

impl Outside for View<'_> {
    fn now(&self) -> Time {
        self.now
    }
    fn clock(&self) -> ClockReading {
        self.clock
    }
    fn room(&self, _: ReplicaId) -> usize {
        self.room
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.journal.snapshot_newest()
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        self.journal.snapshot_read(id, offset, length)
    }
}

/// The reading of a clock that is so far off, with this error bound.
pub(super) const fn clock(now: u64, off: i64, error: u64) -> ClockReading {
    let now = (EPOCH + now).saturating_add_signed(off);
    ClockReading {
        earliest: now.saturating_sub(error),
        now,
        latest: now.saturating_add(error),
        // Of numbers spread evenly from minus to plus the error.
        deviation: error / 1_000 * 577,
    }
}

impl Pending {
    /// Whether a batch goes, of at most this many requests.
    fn may_go(&self, full: usize) -> bool {
        let window = BATCHES_MAX.min(1 + self.shortest.unwrap_or(0) / BATCH_INTERVAL);
        let is_full = self.requests.len() >= full && self.in_flight < FULL_BATCHES_MAX as u64;
        !self.requests.is_empty() && (is_full || self.in_flight < window)
    }
}

impl Replica {
    /// One that is not started, with these groups besides the first.
    pub fn new(layout: &Layout) -> Self {
        Self {
            parts: Part::all(layout),
            ..Self::default()
        }
    }

    /// Whether it is in the middle of a turn.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The program of its first group.
    pub fn program(&self) -> Option<&Program> {
        self.parts.first()?.program.as_ref()
    }

    /// Whether its process is there.
    pub fn is_up(&self) -> bool {
        self.program().is_some()
    }
}

impl World {
    /// The view that a replica leads by its own word.
    pub fn led_by(&self, index: usize) -> Option<u64> {
        let replica = &self.replicas[index];
        let view = self.view(index);
        let status = replica.program()?.node()?.status(&view).protocol;
        (status.leader == Some(ReplicaId(index as u16))).then_some(status.view)
    }

    fn view(&self, index: usize) -> View<'_> {
        View {
            now: Time(self.now),
            clock: self.clock(index),
            room: self.room(),
            journal: &self.replicas[index].parts[0].journal,
        }
    }

    /// The statistics of a replica.
    pub fn details_of(&self, index: usize) -> Vec<(String, String)> {
        let node = self.replicas[index].program().and_then(Program::node);
        let details = node.map(|node| node.status(&self.view(index)).protocol.details);
        let text = |(name, value): (&str, String)| (name.to_owned(), value);
        let overtaken = self.replicas[index].done.overtaken() * 100.0;
        let own = ("overtaken_percent", format!("{overtaken:.2}"));
        details
            .into_iter()
            .flatten()
            .chain([own])
            .map(text)
            .collect()
    }

    /// How what a machine's frontend submitted was committed.
    pub fn paths_of(&self, index: usize) -> Vec<(&'static str, u64)> {
        let program = self.replicas[index].program();
        program.map_or_else(Vec::new, |program| program.paths(&self.view(index)))
    }

    /// Now, for a machine's handlers.
    fn moment(&self, index: usize) -> (u64, ClockReading, usize) {
        (self.now, self.clock(index), self.room())
    }

    /// Starts a replica, for the first time or again.
    pub fn boot(&mut self, index: usize) {
        let seed = self.draw();
        let owner = self.draw() | 1;
        let durability = self.setup.durability;
        let started = self.clock(index).now;
        let epoch = Epoch {
            cluster: ClusterId(u128::from(self.setup.seed) + 1),
            number: EpochNumber(1),
            members: self.setup.replicas,
            options: self.setup.options.clone(),
            secret: [7; 32],
            leader_first: ReplicaId(0),
        };
        let replica = &mut self.replicas[index];
        let first_boot = replica.boot == 0;
        replica.boot += 1;
        if first_boot || durability == Durability::Memory {
            replica.incarnation += 1;
        }
        (replica.owner, replica.started) = (owner, started);
        replica.idle_at = u64::MAX;
        replica.overslept = false;
        replica.sessions.clear();
        replica.done = Arc::default();
        replica.charged = (0, 0);
        let frontend = FrontendId(FRONTENDS * u64::from(replica.boot) + index as u64 + 1);
        if index >= self.setup.replicas {
            let setup = FrontendSetup {
                id: frontend,
                embedded: None,
                epoch,
                durability,
                options: (),
            };
            match (self.setup.entry.client)(setup, seed) {
                Ok(client) => replica.parts[0].program = Some(Program::Proxy(frontend, client)),
                Err(error) => self.breaks(index, &error.to_string()),
            }
            return;
        }
        let setup = |group, durability| NodeSetup {
            id: ReplicaId(index as u16),
            incarnation: Incarnation(replica.incarnation),
            boot: Boot(replica.boot.into()),
            group,
            epoch: epoch.clone(),
            durability,
            seed,
            frontend,
            snapshot_bytes_min: SNAPSHOT_BYTES_MIN,
            limits: ExecutorLimits::default(),
        };
        let shards = self.layout.groups().into_iter();
        let groups = [(GroupId(0), durability)].into_iter().chain(shards);
        let mut nodes = Vec::with_capacity(replica.parts.len());
        for (group, durability) in groups {
            let machine = Box::new(Service::new(Arc::clone(&replica.done)));
            let setup = setup(group, durability);
            nodes.push(match group {
                GroupId(0) => Node::new(setup, self.setup.entry, machine),
                _ => Node::sharing(setup, self.setup.entry, machine),
            });
        }
        for (part, node) in nodes.into_iter().enumerate() {
            match node {
                Ok(node) => {
                    let program = Program::Replica(Box::new(node));
                    self.replicas[index].parts[part].program = Some(program);
                }
                Err(error) => return self.breaks(index, &error.to_string()),
            }
        }
        for part in 0..self.replicas[index].parts.len() {
            let durability = self.durability(part);
            let journal = &self.replicas[index].parts[part].journal;
            let recovered = journal.recovered(first_boot, durability);
            let start = |program: &mut Program, view: &dyn Outside, out: &mut Vec<Output>| {
                program.start(recovered, view, out)
            };
            if let Some(Err(error)) = self.call(index, part, start) {
                return self.breaks(index, &error);
            }
        }
        self.flush(index, self.replicas[index].boot);
        self.want(index);
    }

    /// The durability of a part's group.
    fn durability(&self, part: usize) -> Durability {
        match part.checked_sub(1) {
            None => self.setup.durability,
            Some(shard) => self.layout.subgroup(shard).durability,
        }
    }

    fn breaks(&mut self, index: usize, why: &str) {
        let why = format!("replica {index}: {why}");
        self.found.broken.get_or_insert(why);
    }

    /// The process dies.
    pub fn crash(&mut self, index: usize) {
        for part in 0..self.replicas[index].parts.len() {
            let durability = self.durability(part);
            self.replicas[index].parts[part].crash(durability);
        }
        let replica = &mut self.replicas[index];
        replica.syncing = false;
        replica.inbox.clear();
        replica.effects.clear();
        replica.open.clear();
    }

    /// Something waits for the replica.
    pub fn give(&mut self, index: usize, item: Item) {
        if self.replicas[index].is_up() {
            self.replicas[index].inbox.push_back(item);
            self.want(index);
        }
    }

    /// The replica wants a turn.
    pub fn want(&mut self, index: usize) {
        let task = Task::Replica(index);
        let crowded = self.is_crowded(task);
        let profile = &self.setup.profile;
        let (now, spin, wake) = (self.now, profile.spin, profile.wake);
        let replica = &mut self.replicas[index];
        if replica.state != State::Idle || replica.paused || !replica.is_up() {
            return;
        }
        replica.state = State::Waiting;
        if !crowded && now.saturating_sub(replica.worked_at) > spin {
            replica.slept.replica = true;
            self.queue.push(now + wake, Event::Enqueue(task));
        } else {
            self.ask(task);
        }
    }

    /// Handles all that waits and gives what it cost.
    pub fn turn(&mut self, index: usize) -> u64 {
        let costs = self.setup.profile.costs;
        self.replicas[index].state = State::Running;
        let slept = std::mem::take(&mut self.replicas[index].slept.replica);
        let mut cost = self.cost_of_sleep(slept);
        self.replicas[index].turns += 1;
        for _ in 0..self.replicas[index].inbox.len() {
            let Some(item) = self.replicas[index].inbox.pop_front() else {
                break;
            };
            cost += match &item {
                Item::Frame(_, _, frame) => costs.receive + kib(costs.receive_kib, frame.len()),
                Item::Request(request) => {
                    let bytes = if request.read {
                        0
                    } else {
                        self.setup.load.value_size
                    };
                    costs.request + kib(costs.client_kib, bytes)
                }
                _ => 0,
            };
            self.on_item(index, item);
        }
        for _ in 0..ROUNDS_MAX {
            let submitted = self.submit(index);
            let (turns, finished) = self.idle(index);
            cost += costs.turn * turns + costs.batch * (submitted + finished);
            if submitted == 0 && finished == 0 {
                break;
            }
        }
        self.sleep(index);
        cost += self.cost_of_execution(index);
        let work = self.slowed(index, cost);
        let flush = Event::Flush {
            replica: index,
            boot: self.replicas[index].boot,
        };
        self.queue.push(self.now + work, flush);
        let mut peers = 0;
        let effects = self.replicas[index].effects.iter();
        let flushed = effects.map(|effect| self.cost_of(effect, &mut peers)).sum();
        work + self.slowed(index, flushed)
    }

    /// Lets the nodes work that have work; gives how many of them for the first time in this turn, and
    /// the number of finished batches.
    fn idle(&mut self, index: usize) -> (u64, u64) {
        let (mut first, mut finished) = (0, 0);
        for part in 0..self.replicas[index].parts.len() {
            let (now, turns) = (self.now, self.replicas[index].turns);
            let of = &mut self.replicas[index].parts[part];
            if part > 0 && !of.is_due(now) {
                continue;
            }
            first += u64::from(std::mem::replace(&mut of.turn, turns) != turns);
            let moment = self.moment(index);
            let parts = &mut self.replicas[index].parts;
            if let Some((wake, outputs)) = part::call(parts, part, moment, Program::on_idle) {
                parts[part].sleeps(wake, now);
                finished += self.take_outputs(index, part, outputs);
                finished += self.carry_out_foreign(index);
            }
        }
        (first, finished)
    }

    /// The cost if the thread that begins now was asleep.
    pub fn cost_of_sleep(&mut self, slept: bool) -> u64 {
        if slept && self.is_measured() {
            self.found.sleeps += 1;
        }
        self.setup.profile.costs.sleep * u64::from(slept)
    }

    fn slowed(&self, index: usize, cost: u64) -> u64 {
        let slowed = &self.setup.slowed;
        match slowed.efficiency {
            1.. if slowed.replicas.contains(&(index as u16)) => cost * 100 / slowed.efficiency,
            _ => cost,
        }
    }

    /// The cost of executing this; `peers` are those that this turn has written to.
    fn cost_of(&self, effect: &Effect, peers: &mut u128) -> u64 {
        let costs = &self.setup.profile.costs;
        match effect {
            Effect::Send(to, _, frame) => {
                let peer = 1 << (to & 127);
                let call = if *peers & peer == 0 { costs.send } else { 0 };
                *peers |= peer;
                call + costs.send_frame + kib(costs.send_kib, frame.len())
            }
            Effect::Reply(..) => costs.reply,
            Effect::Journal(..) => 0,
        }
    }

    fn cost_of_execution(&mut self, index: usize) -> u64 {
        let costs = &self.setup.profile.costs;
        let replica = &mut self.replicas[index];
        let commands = replica.done.commands.load(Ordering::Relaxed);
        let bytes = replica.done.bytes.load(Ordering::Relaxed);
        let executed = costs.execute * (commands - replica.charged.0);
        let moved = kib(costs.execute_kib, (bytes - replica.charged.1) as usize);
        replica.charged = (commands, bytes);
        executed + moved
    }

    /// The turn is over.
    pub fn turn_ends(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        replica.state = State::Idle;
        replica.worked_at = self.now;
        let overslept = std::mem::take(&mut replica.overslept);
        if overslept || !replica.inbox.is_empty() {
            self.want(index);
        }
    }

    /// The turn's work is done: the journal gets what is to be written, peers their frames, clients
    /// their replies, each when what is before it has left.
    pub fn flush(&mut self, index: usize, boot: u32) {
        if self.replicas[index].boot != boot {
            return;
        }
        let mut effects = std::mem::take(&mut self.replicas[index].effects);
        // Replies last, in their order.
        effects.sort_by_key(|effect| matches!(effect, Effect::Reply(..)));
        let mut at = self.now;
        let mut peers = 0;
        for effect in effects.drain(..) {
            let cost = self.cost_of(&effect, &mut peers);
            at += self.slowed(index, cost);
            match effect {
                Effect::Send(to, lane, frame) => self.transmit(at, (index, to), lane, frame),
                Effect::Journal(part, id, write) => {
                    self.replicas[index].parts[part].journal.write(id, write);
                    if !std::mem::replace(&mut self.replicas[index].syncing, true) {
                        self.wake_journal(index);
                    }
                }
                Effect::Reply(client, number, good) => {
                    let reply = Event::Reply {
                        client,
                        number,
                        good,
                    };
                    let at = self.reaches_client(at, index, self.setup.load.value_size);
                    self.queue.push(at, reply);
                }
            }
        }
        self.replicas[index].effects = effects;
    }

    /// The journal's thread sleeps whenever there is nothing to write.
    fn wake_journal(&mut self, index: usize) {
        let task = Task::Journal(index);
        if self.is_crowded(task) {
            self.ask(task);
        } else {
            self.replicas[index].slept.journal = true;
            let at = self.now + self.setup.profile.wake;
            self.queue.push(at, Event::Enqueue(task));
        }
    }

    fn on_item(&mut self, index: usize, item: Item) {
        let (part, input) = match item {
            Item::Frame(from, arrived, frame) => {
                let group = frame_group(&frame);
                let parts = &self.replicas[index].parts;
                let part = parts.iter().position(|part| Some(part.group) == group);
                let input = Input::Frame {
                    from,
                    arrived,
                    frame,
                };
                (part.unwrap_or(0), input)
            }
            Item::Link(peer, link) => return self.on_link(index, peer, link),
            Item::Timer(part, key) => {
                if !self.replicas[index].parts[part].timers.take_fired(key) {
                    return;
                }
                (part, Input::Timer(key))
            }
            Item::Persisted(part, id) => (part, Input::Persisted(id)),
            Item::SnapshotWritten(part, bytes) => (part, Input::SnapshotWritten(bytes)),
            Item::SnapshotSaved(part, info) => (part, Input::SnapshotSaved(info)),
            Item::Request(request) => {
                let level = self.setup.load.level;
                let part = &mut self.replicas[index].parts[request.part];
                let pending = if request.read && level != Level::Ordered {
                    &mut part.reads
                } else {
                    &mut part.ordered
                };
                pending.requests.push(request);
                return;
            }
        };
        self.input(index, part, input);
    }

    /// A link has changed, for all groups that both may be members of.
    fn on_link(&mut self, index: usize, peer: Peer, link: Link) {
        for part in 0..self.replicas[index].parts.len() {
            let of = &self.replicas[index].parts[part];
            let concerned = match peer {
                Peer::Replica(id) => of.links(ReplicaId(index as u16), id),
                Peer::Frontend(_) => part == 0,
            };
            if part == 0 || concerned {
                self.input(index, part, Input::Link(peer, link));
            }
        }
    }

    fn input(&mut self, index: usize, part: usize, input: Input) {
        let give = |program: &mut Program, view: &dyn Outside, outputs: &mut Vec<Output>| {
            program.on_input(input, view, outputs)
        };
        if let Some(Err(error)) = self.call(index, part, give) {
            self.breaks(index, &error);
        }
    }

    /// Calls a part and carries out its effects, in its own group and in others.
    fn call<R>(
        &mut self,
        index: usize,
        part: usize,
        call: impl FnOnce(&mut Program, &dyn Outside, &mut Vec<Output>) -> R,
    ) -> Option<R> {
        let moment = self.moment(index);
        let parts = &mut self.replicas[index].parts;
        let (result, outputs) = part::call(parts, part, moment, call)?;
        parts[part].is_awake = true;
        let _ = self.take_outputs(index, part, outputs);
        let _ = self.carry_out_foreign(index);
        Some(result)
    }

    /// Carries out the last call's effects in other groups; gives the number of finished batches.
    fn carry_out_foreign(&mut self, index: usize) -> u64 {
        let (moment, mut finished) = (self.moment(index), 0);
        loop {
            let parts = &mut self.replicas[index].parts;
            let foreign = part::take_foreign(parts);
            if foreign.is_empty() {
                return finished;
            }
            for (part, effects) in foreign {
                let parts = &mut self.replicas[index].parts;
                parts[part].is_awake = true;
                let carried = part::call(parts, part, moment, |program, view, outputs| {
                    program.carry_out_foreign(effects, view, outputs);
                });
                if let Some(((), outputs)) = carried {
                    finished += self.take_outputs(index, part, outputs);
                }
            }
        }
    }

    /// Makes batches of what clients want; gives how many.
    fn submit(&mut self, index: usize) -> u64 {
        let mut submitted = 0;
        let reads = self.setup.load.level;
        for part in 0..self.replicas[index].parts.len() {
            for level in [Level::Ordered, reads] {
                while self.submit_one(index, part, level) {
                    submitted += 1;
                }
            }
        }
        submitted
    }

    /// Makes one batch of what clients want, if they want something that may go now.
    fn submit_one(&mut self, index: usize, part: usize, level: Level) -> bool {
        let (now, value_size) = (self.now, self.setup.load.value_size);
        let clock = self.clock(index).now;
        let together = self.setup.load.batch;
        // Reads carry no value.
        let value = if level == Level::Ordered {
            value_size
        } else {
            0
        };
        let by_bytes = (self.setup.load.batch_bytes / value.max(1)).max(1);
        let full = by_bytes.min(self.setup.load.batch_requests).max(1);
        let replica = &mut self.replicas[index];
        let Some(frontend) = replica.program().map(Program::frontend) else {
            return false;
        };
        let of = &mut replica.parts[part];
        let group = of.group;
        let pending = match level {
            Level::Ordered => &mut of.ordered,
            _ => &mut of.reads,
        };
        // Without batching nothing waits for company.
        let requests: Vec<_> = match together {
            0 if !pending.may_go(full) => return false,
            // Requests that gather while no more batches may be in progress go as one.
            0 if pending.in_flight + 1 == FULL_BATCHES_MAX as u64 => {
                std::mem::take(&mut pending.requests)
            }
            0 => pending
                .requests
                .drain(..full.min(pending.requests.len()))
                .collect(),
            _ if pending.requests.is_empty() => return false,
            most => pending
                .requests
                .drain(..most.min(pending.requests.len()))
                .collect(),
        };
        pending.in_flight += 1;
        replica.batches += 1;
        let mut batch = BatchBuilder::of(group);
        let mut entries = Vec::with_capacity(requests.len());
        for request in requests {
            let bytes = payload(request.read, request.key, value_size, clock);
            if request.read && level != Level::Ordered {
                batch.push(CommandId::default(), RequestKind::Command, 0, &bytes);
                entries.push(Some(request));
                continue;
            }
            let owner = replica.owner;
            let of = |number| SessionId { owner, number };
            let (number, sequence) = replica.sessions.entry(request.client).or_insert_with(|| {
                replica.session_next += 1;
                let id = CommandId {
                    session: of(replica.session_next),
                    sequence: 0,
                };
                let started = replica.started.to_le_bytes();
                batch.push(id, RequestKind::Open, 0, &started);
                entries.push(None);
                (replica.session_next, 1)
            });
            let id = CommandId {
                session: of(*number),
                sequence: *sequence,
            };
            *sequence += 1;
            batch.push(id, RequestKind::Command, 0, &bytes);
            entries.push(Some(request));
        }
        let id = BatchId(replica.batches);
        let open = Open {
            part,
            level,
            requests: entries,
            submitted: now,
        };
        replica.open.insert(id.0, open);
        let submission = Submission {
            id,
            level,
            batch: batch.finish(frontend, id, level),
            deadline: Time(now) + TIMEOUT,
        };
        self.input(index, part, Input::Submit(submission));
        true
    }

    /// Keeps what a node asked for until the turn ends; gives how many batches are finished.
    fn take_outputs(&mut self, index: usize, part: usize, outputs: Vec<Output>) -> u64 {
        let mut finished = 0;
        let group = self.replicas[index].parts[part].group;
        for output in outputs {
            match output {
                Output::Send {
                    to: Recipients::Replicas(set),
                    lane,
                    frame,
                } => {
                    let frame = frame.into_bytes();
                    let replica = &mut self.replicas[index];
                    for to in set.iter() {
                        let send = Effect::Send(to.index(), lane, frame.clone());
                        replica.effects.push(send);
                    }
                }
                Output::Send {
                    to: Recipients::Frontend(frontend),
                    lane,
                    frame,
                } => {
                    let to = (frontend.0 % FRONTENDS) as usize - 1;
                    // One of an earlier run of the process is gone.
                    let current = self.replicas[to].program().map(Program::frontend);
                    if to != index && current == Some(frontend) {
                        let send = Effect::Send(to, lane, frame.into_bytes());
                        self.replicas[index].effects.push(send);
                    }
                }
                Output::Put { to, ranges } => {
                    let frame = put_frame(group, EpochNumber(1), ranges).into_bytes();
                    for to in to.iter() {
                        let send = Effect::Send(to.index(), Lane::Control, frame.clone());
                        self.replicas[index].effects.push(send);
                    }
                }
                Output::Journal { id, write } => {
                    let effect = Effect::Journal(part, id, write);
                    self.replicas[index].effects.push(effect);
                }
                Output::Trim { below } => self.journal(index, part).trim(below),
                Output::SetTimer { key, at } => self.set_timer(index, part, key, at),
                Output::CancelTimer { key } => {
                    self.replicas[index].parts[part].timers.cancel(key);
                }
                Output::SnapshotBegin { id, fetched, .. } => {
                    self.journal(index, part).snapshot_begin(id, fetched);
                }
                Output::SnapshotAppend(bytes) => {
                    let written = Event::SnapshotWritten {
                        replica: index,
                        part,
                        boot: self.replicas[index].boot,
                        bytes: self.journal(index, part).snapshot_append(&bytes),
                    };
                    self.queue.push(self.now + SNAPSHOT_WRITE, written);
                }
                Output::SnapshotTruncate(length) => {
                    self.journal(index, part).snapshot_truncate(length);
                }
                Output::SnapshotFinish => {
                    let saved = Event::SnapshotSaved {
                        replica: index,
                        part,
                        boot: self.replicas[index].boot,
                    };
                    self.queue.push(self.now + SNAPSHOT_WRITE, saved);
                }
                Output::SnapshotAbandon => self.journal(index, part).snapshot_abandon(),
                Output::Done { batch, outcome } => {
                    finished += 1;
                    self.on_done(index, batch, outcome);
                }
                Output::Mark(branch) => self.note(branch),
                Output::Route { .. } | Output::Recovered | Output::Digest(_) => {}
                Output::Diverged(found) => self.breaks(index, &found.to_string()),
                Output::BreakLinks => self.renew_links(index),
                Output::EpochBegins { .. } | Output::SnapshotBridges { .. } => {
                    unreachable!("no member ends an epoch here")
                }
                Output::Halt(_, reason) => self.breaks(index, &reason),
            }
        }
        finished
    }

    fn journal(&mut self, index: usize, part: usize) -> &mut Journal {
        &mut self.replicas[index].parts[part].journal
    }

    fn on_done(&mut self, index: usize, batch: BatchId, outcome: Outcome) {
        let now = self.now;
        let replica = &mut self.replicas[index];
        let Some(open) = replica.open.remove(&batch.0) else {
            return;
        };
        let part = &mut replica.parts[open.part];
        let pending = match open.level {
            Level::Ordered => &mut part.ordered,
            _ => &mut part.reads,
        };
        pending.in_flight -= 1;
        let took = now - open.submitted;
        pending.shortest = Some(pending.shortest.map_or(took, |shortest| shortest.min(took)));
        let bytes = match outcome {
            Outcome::Results(bytes) => bytes,
            _ => Bytes::new(),
        };
        let mut results = Results::new(&bytes);
        for request in open.requests {
            let good = results
                .next()
                .is_some_and(|(status, _)| status == RequestStatus::Done);
            if let Some(request) = request {
                if !good {
                    // Its session may never have been opened: the next request opens another.
                    replica.sessions.remove(&request.client);
                }
                let reply = Effect::Reply(request.client, request.number, good);
                replica.effects.push(reply);
            }
        }
    }

    fn set_timer(&mut self, index: usize, part: usize, key: TimerKey, deadline: Deadline) {
        let due = match deadline {
            Deadline::At(at) if at == Time::NEVER => u64::MAX,
            Deadline::At(at) => at.0.max(self.now),
            Deadline::Clock(at) => {
                let (off, _) = self.clock_error(index);
                at.saturating_add_signed(-off)
                    .saturating_sub(EPOCH)
                    .max(self.now)
            }
        };
        let replica = &mut self.replicas[index];
        if let Some(at) = replica.parts[part].timers.set(key, deadline, due) {
            let timer = Event::Timer {
                replica: index,
                part,
                boot: replica.boot,
                key,
            };
            self.queue.push(at, timer);
        }
    }

    pub fn on_timer(&mut self, (index, part): (usize, usize), boot: u32, key: TimerKey) {
        let replica = &mut self.replicas[index];
        if replica.boot != boot || !replica.is_up() {
            return;
        }
        match replica.parts[part].timers.popped(key, self.now) {
            Popped::Fired => self.give(index, Item::Timer(part, key)),
            Popped::Later(at) => {
                let timer = Event::Timer {
                    replica: index,
                    part,
                    boot,
                    key,
                };
                self.queue.push(at, timer);
            }
            Popped::Nothing => {}
        }
    }

    /// Has the replica look again when the first of its nodes wants to.
    fn sleep(&mut self, index: usize) {
        let parts = self.replicas[index].parts.iter();
        let at = parts.map(|part| part.wake_at).min().unwrap_or(u64::MAX);
        let replica = &mut self.replicas[index];
        if at < replica.idle_at || replica.idle_at <= self.now {
            replica.idle_at = at;
            if at != u64::MAX {
                let idle = Event::Idle {
                    replica: index,
                    boot: replica.boot,
                    at,
                };
                self.queue.push(at, idle);
            }
        }
    }
}
