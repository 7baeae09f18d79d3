//! One seed: what its processes, links and clients do, and what is checked.

use super::{
    GroupsSeed,
    process::{Host, Kept, Order, Process, View},
};
use crate::{
    checkers::{
        Violation,
        agreement::{Agreement, Applied},
        cells, durable,
        exactly_once::ExactlyOnce,
    },
    history::{Fate, History},
    machine::{self, Operation, Recorder, Registers, decode_reply, encode_command},
    queue::Queue,
    random::Random,
};
use quintet_protocols::PROTOCOLS;
use quintet_replica::{
    BatchBuilder, BatchId, Boot, Bytes, ClusterId, CommandId, Deadline, Durability, Entry, Epoch,
    EpochNumber, Executed, ExecutorLimits, FrontendId, GroupId, GroupIndex, HaltKind, Incarnation,
    Input, Level, Link, Node, NodeSetup, Outcome, Output, Peer, Planted, Recipients,
    RecoveredBytes, ReplicaId, ReplicaSet, RequestKind, RequestStatus, Results, SessionId,
    SnapshotInfo, Submission, Time, TimerKey, Voters, Wake, frame_group, journal::GroupEpoch,
    put_frame,
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const CLUSTER: ClusterId = ClusterId(9);
const EPOCH: EpochNumber = EpochNumber(1);
const KEYS: u32 = 6;
/// The end of the faults.
const FAULTS_END: u64 = 3 * SECOND;
/// From then on the groups have this long to answer, and then to become equal.
const TIMEOUT: u64 = 40 * SECOND;
/// A client asks again after this time.
const RETRY: u64 = 400 * MILLISECOND;
/// Operations of each client after the last fault.
const AFTERWARDS: u64 = 3;

/// A group of the world.
struct Group {
    id: GroupId,
    entry: &'static Entry,
    durability: Durability,
    members: Vec<usize>,
    history: History,
    agreement: Agreement,
    order: ExactlyOnce,
    clients: Vec<usize>,
}

/// A client: one operation at a time, in sessions.
struct Client {
    group: usize,
    session: u64,
    opened: bool,
    sequence: u64,
    /// The operation in progress.
    number: Option<usize>,
    level: Level,
    tries: u64,
    /// Operations answered since the last fault.
    afterwards: u64,
}

#[derive(Debug)]
enum Event {
    Deliver {
        from: usize,
        to: usize,
        link: u32,
        frame: Bytes,
    },
    Timer {
        at: usize,
        host: usize,
        boot: u64,
        key: TimerKey,
    },
    Idle {
        at: usize,
        host: usize,
        boot: u64,
    },
    Synced {
        at: usize,
        boot: u64,
    },
    Saved {
        at: usize,
        host: usize,
        boot: u64,
        info: SnapshotInfo,
    },
    Connect(usize, usize),
    Start(usize),
    Ask(usize),
    Retry(usize, u64),
    Fault,
    Heal(usize, usize),
    Quick(usize),
}

/// A connection of two processes, which all their groups share.
#[derive(Clone, Copy, Default)]
struct Line {
    up: bool,
    number: u32,
    blocked: u32,
    /// When the last frame of each direction arrives.
    last: [u64; 2],
}

pub(super) struct World {
    random: Random,
    bug: Planted,
    now: u64,
    queue: Queue<Event>,
    groups: Vec<Group>,
    ids: Vec<GroupId>,
    processes: Vec<Process>,
    lines: BTreeMap<(usize, usize), Line>,
    clients: Vec<Client>,
    outputs: Vec<Output>,
    later: VecDeque<(usize, usize, Input)>,
    violation: Option<Violation>,
    counts: BTreeMap<&'static str, u64>,
    lines_told: Option<Vec<String>>,
    calm: bool,
}

fn named(bug: Option<&str>) -> Planted {
    #[cfg(feature = "plant")]
    return bug.and_then(Planted::named).unwrap_or_default();
    #[cfg(not(feature = "plant"))]
    {
        assert!(bug.is_none(), "bugs are only in a build with the feature");
        Planted::default()
    }
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

const fn peer(process: usize) -> Peer {
    Peer::Replica(ReplicaId(process as u16))
}

impl World {
    pub fn new(seed: u64, bug: Option<&str>, tells: bool) -> Self {
        let mut random = Random::new(seed);
        let count = random.between(5, 9) as usize;
        let mut groups = Vec::new();
        let mut clients = Vec::new();
        for place in 0..random.between(2, 4) as usize {
            let size = [1, 2, 3, 3, 3, 5][random.index(6)];
            let mut members: Vec<usize> = (0..count).collect();
            random.shuffle(&mut members);
            members.truncate(size);
            members.sort_unstable();
            // A single member would lose all at its first crash.
            let durability = match size >= 3 && random.chance(350) {
                true => Durability::Memory,
                false => Durability::Disk,
            };
            let first = clients.len();
            clients.extend((0..2).map(|_| Client {
                group: place,
                session: 1,
                opened: false,
                sequence: 0,
                number: None,
                level: Level::Ordered,
                tries: 0,
                afterwards: 0,
            }));
            groups.push(Group {
                id: GroupId([0, 7, 3, 40][place]),
                entry: &PROTOCOLS[random.index(PROTOCOLS.len())],
                durability,
                members,
                history: History::default(),
                agreement: Agreement::default(),
                order: ExactlyOnce::default(),
                clients: (first..clients.len()).collect(),
            });
        }
        let processes: Vec<Process> = (0..count)
            .map(|at| {
                let here = groups.iter().enumerate();
                let here = here.filter(|(_, group)| group.members.contains(&at));
                Process::new(here.map(|(place, _)| Host::new(place)).collect())
            })
            .collect();
        let mut world = Self {
            bug: named(bug),
            now: SECOND,
            queue: Queue::new(),
            ids: groups.iter().map(|group| group.id).collect(),
            groups,
            processes,
            lines: BTreeMap::new(),
            clients,
            outputs: Vec::new(),
            later: VecDeque::new(),
            violation: None,
            counts: BTreeMap::new(),
            lines_told: tells.then(Vec::new),
            calm: false,
            random,
        };
        for a in 0..count {
            for b in a + 1..count {
                world.lines.insert((a, b), Line::default());
            }
            let at = world.now + world.random.below(5 * MILLISECOND);
            world.queue.push(at, Event::Start(a));
        }
        for client in 0..world.clients.len() {
            let at = world.now + world.random.below(100 * MILLISECOND);
            world.queue.push(at, Event::Ask(client));
        }
        world
            .queue
            .push(world.now + 200 * MILLISECOND, Event::Fault);
        world
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines_told {
            lines.push(format!("{:>12} {}", self.now / 1_000, what()));
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn demand(&mut self, checked: Result<(), Violation>) {
        if let Err(violation) = checked {
            self.violate(violation);
        }
    }

    // --- the course of a seed --------------------------------------------------------------

    pub fn run(mut self, found: &mut GroupsSeed) {
        let shape: Vec<String> = (self.groups.iter())
            .map(|group| {
                let (name, members) = (group.entry.info.name, &group.members);
                format!(
                    "{} {name} {} {members:?}",
                    group.id,
                    group.durability.name()
                )
            })
            .collect();
        self.say(|| shape.join("; "));
        let begin = self.now;
        self.run_until(begin + FAULTS_END, |_| false);
        self.heal();
        let healed = self.now;
        let busy = self.run_until(healed + TIMEOUT, |world| {
            let mut clients = world.clients.iter();
            clients.all(|client| client.afterwards >= AFTERWARDS)
        });
        let calm = self.now;
        let equal = busy && self.run_until(calm + TIMEOUT, Self::is_equal);
        if self.violation.is_none() && !equal {
            found.stall = Some(self.where_it_stands(busy));
        }
        if self.violation.is_none() && equal {
            self.check_groups();
        }
        found.acknowledged = self.groups.iter().map(|g| g.history.acknowledged).sum();
        found.violation = self.violation;
        found.counts = self.counts;
        found.lines = self.lines_told.unwrap_or_default();
    }

    fn run_until(&mut self, end: u64, done: impl Fn(&Self) -> bool) -> bool {
        while self.violation.is_none() {
            if done(self) {
                return true;
            }
            let Some((at, event)) = self.queue.pop() else {
                return false;
            };
            if at > end {
                self.queue.push(at, event);
                self.now = end;
                return false;
            }
            self.now = at;
            self.handle(event);
            self.carry_on();
        }
        false
    }

    fn heal(&mut self) {
        self.calm = true;
        self.say(|| "everything heals".to_owned());
        let pairs: Vec<(usize, usize)> = self.lines.keys().copied().collect();
        for (a, b) in pairs {
            if let Some(line) = self.lines.get_mut(&(a, b)) {
                line.blocked = 0;
            }
            self.queue.push(self.now, Event::Connect(a, b));
        }
        for process in &mut self.processes {
            process.slow = 1;
        }
    }

    fn is_equal(&self) -> bool {
        self.groups.iter().enumerate().all(|(place, group)| {
            let nodes = group.members.iter().map(|at| self.node(*at, place));
            let mut executed = nodes.map(|node| node.map(|node| node.executed().position));
            let first = executed.next().flatten();
            first.is_some() && executed.all(|other| other == first)
        })
    }

    fn node(&self, at: usize, place: usize) -> Option<&Node> {
        let mut hosts = self.processes[at].hosts.iter();
        hosts.find(|host| host.group == place)?.node.as_ref()
    }

    fn where_it_stands(&self, busy: bool) -> String {
        let groups = self.groups.iter().enumerate().map(|(place, group)| {
            let open: u64 = (group.clients.iter())
                .map(|client| AFTERWARDS.saturating_sub(self.clients[*client].afterwards))
                .sum();
            let executed: Vec<String> = (group.members.iter())
                .map(|at| match self.node(*at, place) {
                    Some(node) => format!("{at}:{}", node.executed().position),
                    None => format!("{at}:down"),
                })
                .collect();
            let (id, name) = (group.id, group.entry.info.name);
            let durability = group.durability.name();
            format!(
                "{id} {name} {durability} lacks {open}, {}",
                executed.join(" ")
            )
        });
        let what = if busy { "states" } else { "answers" };
        format!("{what}: {}", groups.collect::<Vec<_>>().join("; "))
    }

    fn check_groups(&mut self) {
        for place in 0..self.groups.len() {
            let members = self.groups[place].members.clone();
            let mut states = Vec::new();
            for at in members {
                let hosts = self.processes[at].hosts.iter_mut();
                for host in hosts.filter(|host| host.group == place) {
                    if let Some(node) = &mut host.node {
                        let position = node.executed().position.0;
                        states.push((at as u16, position, node.state_digest()));
                    }
                }
            }
            let group = &self.groups[place];
            let name = group.entry.info.name;
            let same = states.windows(2).all(|pair| pair[0].2 == pair[1].2);
            let history = group.history.operations();
            let mut checked = match group.entry.speculates {
                true => cells::check(history, |_| None),
                false => cells::check(history, |number| group.order.position(number)),
            };
            if !group.entry.speculates {
                let core: Vec<(u16, u64)> = states.iter().map(|s| (s.0, s.1)).collect();
                checked = checked.and_then(|()| durable::check(history, &group.order, &core));
            }
            if !same {
                let what = format!("group {place} of {name}: {states:?}");
                checked = Err(Violation::new("state_hash", what));
            }
            self.demand(checked);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver {
                from,
                to,
                link,
                frame,
            } => self.deliver(from, to, link, frame),
            Event::Timer {
                at,
                host,
                boot,
                key,
            } => {
                let process = &mut self.processes[at];
                let timers = &mut process.hosts[host].timers;
                let due = timers.get(&key).is_some_and(|due| *due <= self.now);
                if process.up && process.boot == boot && due {
                    timers.remove(&key);
                    self.input(at, host, Input::Timer(key));
                }
            }
            Event::Idle { at, host, boot } => {
                let process = &mut self.processes[at];
                let asked = process.hosts[host].idle_at == self.now;
                if process.up && process.boot == boot && asked {
                    process.hosts[host].idle_at = u64::MAX;
                    self.idle(at, host);
                }
            }
            Event::Synced { at, boot } => self.synced(at, boot),
            Event::Saved {
                at,
                host,
                boot,
                info,
            } => self.saved(at, host, boot, info),
            Event::Connect(a, b) => self.connect(a, b),
            Event::Start(at) => self.start(at),
            Event::Ask(client) => self.ask(client),
            Event::Retry(client, tries) => {
                if self.clients[client].tries == tries && self.clients[client].number.is_some() {
                    self.submit(client);
                }
            }
            Event::Fault => self.inject(),
            Event::Heal(a, b) => {
                if let Some(line) = self.lines.get_mut(&pair(a, b)) {
                    line.blocked = line.blocked.saturating_sub(1);
                }
                self.connect(a, b);
            }
            Event::Quick(at) => self.processes[at].slow = 1,
        }
    }

    // --- processes -------------------------------------------------------------------------

    fn start(&mut self, at: usize) {
        if self.processes[at].up {
            return;
        }
        let groups: Vec<GroupEpoch> = (self.processes[at].hosts.iter())
            .map(|host| GroupEpoch {
                group: self.ids[host.group],
                epoch: EPOCH,
            })
            .collect();
        let node = ReplicaId(at as u16);
        let found = match self.processes[at].open(CLUSTER, node, &groups, self.bug) {
            Ok(found) => found,
            Err(error) => {
                let what = format!("process {at}: {error}");
                return self.violate(Violation::new("recovery", what));
            }
        };
        self.say(|| format!("{at} starts"));
        for (host, found) in found.into_iter().enumerate() {
            self.start_node(at, host, found);
        }
        for other in (0..self.processes.len()).filter(|other| *other != at) {
            self.connect(at, other);
        }
    }

    fn start_node(&mut self, at: usize, place: usize, found: quintet_replica::journal::Found) {
        let seed = self.random.draw();
        let boot = self.processes[at].boot;
        let host = &mut self.processes[at].hosts[place];
        let group = &self.groups[host.group];
        let memory = group.durability == Durability::Memory;
        let first_boot = std::mem::take(&mut host.fresh);
        let lost = memory && !first_boot;
        if lost {
            (host.repairing, host.incarnation) = (true, host.incarnation + 1);
            host.snapshots.clear();
        }
        if !memory && !found.complete && host.snapshots.is_empty() {
            let what = format!("process {at}, group {}: the log has no beginning", group.id);
            return self.violate(Violation::new("recovery", what));
        }
        let numbers: ReplicaSet = group
            .members
            .iter()
            .map(|at| ReplicaId(*at as u16))
            .collect();
        let voters = Voters::of(numbers);
        let setup = NodeSetup {
            id: ReplicaId(at as u16),
            incarnation: Incarnation(host.incarnation),
            boot: Boot(boot),
            group: group.id,
            epoch: Epoch {
                cluster: CLUSTER,
                number: EPOCH,
                members: voters.len(),
                options: Vec::new(),
                secret: [7; 32],
                leader_first: ReplicaId(0),
            },
            durability: group.durability,
            seed,
            frontend: frontend(at, place, boot),
            snapshot_bytes_min: 2 << 10,
            limits: ExecutorLimits {
                session_lifetime: Duration::from_secs(3600),
                disk_hung_after: Duration::ZERO,
                ..ExecutorLimits::default()
            },
        };
        let machine = Box::new(Registers::new(KEYS, 5_000, 1024));
        let machine = Box::new(Recorder::new(machine, host.record.clone()));
        let mut node = match Node::among(voters, setup, group.entry, machine) {
            // Makes the protocol count the members by their ranks.
            Ok(node) => node.with_base(Executed::default()),
            Err(error) => return self.violate(Violation::new("options", error.to_string())),
        };
        let recovered = RecoveredBytes {
            first_boot,
            forgot: lost,
            promise: found.promise,
            checkpoint: None,
            records: if memory { Vec::new() } else { found.records },
        };
        let mut outputs = Vec::new();
        let view = View {
            now: self.now,
            snapshots: &host.snapshots,
        };
        let started = node.start(recovered, &view, &mut outputs);
        host.node = Some(node);
        if let Err(error) = started {
            let what = format!("process {at}: {error}");
            return self.violate(Violation::new("recovery", what));
        }
        self.carry_out(at, place, outputs);
        self.idle(at, place);
    }

    fn drive(
        &mut self,
        at: usize,
        place: usize,
        step: impl FnOnce(&mut Node, &View<'_>, &mut Vec<Output>),
    ) {
        let host = &mut self.processes[at].hosts[place];
        let Some(node) = &mut host.node else {
            return;
        };
        let mut outputs = std::mem::take(&mut self.outputs);
        let view = View {
            now: self.now,
            snapshots: &host.snapshots,
        };
        step(node, &view, &mut outputs);
        self.check_executed(at, place);
        self.carry_out(at, place, outputs);
    }

    /// The node gets it when all outputs so far have been carried out.
    fn input(&mut self, at: usize, place: usize, input: Input) {
        self.later.push_back((at, place, input));
    }

    fn carry_on(&mut self) {
        while let Some((at, place, input)) = self.later.pop_front() {
            self.input_now(at, place, input);
        }
    }

    fn input_now(&mut self, at: usize, place: usize, input: Input) {
        let mut refused = None;
        self.drive(at, place, |node, view, outputs| {
            refused = node.on_input(input, view, outputs).err();
        });
        if let Some(error) = refused {
            let what = format!("process {at}: {error}");
            return self.violate(Violation::new("frame", what));
        }
        self.idle(at, place);
    }

    fn idle(&mut self, at: usize, place: usize) {
        let mut wake = Wake::Sleep;
        self.drive(at, place, |node, view, outputs| {
            wake = node.on_idle(view, outputs);
        });
        let when = match wake {
            Wake::Spin => self.now + 10_000,
            Wake::At(when) => when.0.max(self.now + 1_000),
            Wake::Sleep => return,
        };
        let process = &mut self.processes[at];
        let (host, boot) = (&mut process.hosts[place], process.boot);
        if when < host.idle_at || host.idle_at <= self.now {
            host.idle_at = when;
            let host = place;
            self.queue.push(when, Event::Idle { at, host, boot });
        }
    }

    fn check_executed(&mut self, at: usize, place: usize) {
        let host = &self.processes[at].hosts[place];
        let group = &mut self.groups[host.group];
        let mut record = host.record.lock().expect("no holder panicked");
        if group.entry.speculates {
            // Executions that are undone would have to be told apart.
            return record.clear();
        }
        let record = std::mem::take(&mut *record);
        let mut rest = &record[..];
        while let Some((machine::Executed::Batch { position, time, .. }, tail)) = rest.split_first()
        {
            let commands = tail.iter().map_while(|executed| match executed {
                machine::Executed::Command { id, number, hash } => Some(Applied {
                    id: *id,
                    number: *number,
                    hash: *hash,
                }),
                machine::Executed::Batch { .. } => None,
            });
            let applied: Vec<Applied> = commands.collect();
            rest = &tail[applied.len()..];
            let by = at as u16;
            let first = group.agreement.executed(by, *position, *time, &applied);
            let checked = first.and_then(|first| match first {
                true => (applied.iter()).try_for_each(|one| group.order.executed(*position, one)),
                false => Ok(()),
            });
            if let Err(violation) = checked {
                self.violation.get_or_insert(violation);
            }
        }
    }

    fn carry_out(&mut self, at: usize, place: usize, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            if self.processes[at].up {
                self.carry_out_one(at, place, output);
            }
        }
        self.outputs = outputs;
    }

    fn hand(&mut self, at: usize, order: Order) {
        let process = &mut self.processes[at];
        let boot = process.boot;
        if let Some(latency) = process.hand(order, &mut self.random) {
            let after = self.now + latency;
            self.queue.push(after, Event::Synced { at, boot });
        }
    }

    fn carry_out_one(&mut self, at: usize, place: usize, output: Output) {
        let boot = self.processes[at].boot;
        let index = GroupIndex::new(place);
        let host = &mut self.processes[at].hosts[place];
        match output {
            Output::Send {
                to: Recipients::Replicas(set),
                frame,
                ..
            } => self.send(at, set, &frame.into_bytes()),
            Output::Send {
                to: Recipients::Frontend(frontend),
                frame,
                ..
            } => {
                let to = ReplicaId((frontend.0 >> 8 & 0xff) as u16);
                let to = ReplicaSet::EMPTY.with(to);
                self.send(at, to, &frame.into_bytes());
            }
            Output::Put { to, ranges } => {
                let frame = put_frame(self.ids[host.group], EPOCH, ranges);
                self.send(at, to, &frame.into_bytes());
            }
            Output::Journal { id, write } => self.hand(at, Order::Write(index, id, write)),
            Output::Trim { below } => match host.snapshots.last() {
                Some(newest) => {
                    let of = newest.info.id;
                    host.trims.push((of, below));
                }
                None => self.hand(at, Order::Trim(index, below)),
            },
            Output::SetTimer { key, at: deadline } => {
                let (Deadline::At(Time(due)) | Deadline::Clock(due)) = deadline;
                let due = due.max(self.now + 1_000);
                host.timers.insert(key, due);
                let host = place;
                let event = Event::Timer {
                    at,
                    host,
                    boot,
                    key,
                };
                if due < u64::MAX {
                    self.queue.push(due, event);
                }
            }
            Output::CancelTimer { key } => {
                host.timers.remove(&key);
            }
            Output::SnapshotBegin {
                id,
                fetched,
                durable,
                ..
            } => {
                host.written.clear();
                host.writing = Some(Kept {
                    info: SnapshotInfo { id, length: 0 },
                    bytes: Bytes::new(),
                    fetched,
                    durable,
                });
            }
            Output::SnapshotAppend(bytes) => {
                host.written.extend_from_slice(&bytes);
                let length = host.written.len() as u64;
                self.input(at, place, Input::SnapshotWritten(length));
            }
            Output::SnapshotTruncate(length) => host.written.truncate(length as usize),
            Output::SnapshotFinish => {
                if let Some(kept) = &mut host.writing {
                    kept.bytes = std::mem::take(&mut host.written).into();
                    kept.info.length = kept.bytes.len() as u64;
                    let (info, host) = (kept.info, place);
                    let after = self.now + self.random.between(100_000, 20 * MILLISECOND);
                    let event = Event::Saved {
                        at,
                        host,
                        boot,
                        info,
                    };
                    self.queue.push(after, event);
                }
            }
            Output::SnapshotAbandon => host.writing = None,
            Output::Recovered => host.repairing = false,
            Output::Done { batch, outcome } => self.done(at, place, batch, outcome),
            Output::Mark(mark) => self.count(mark),
            Output::BreakLinks => {
                for other in (0..self.processes.len()).filter(|other| *other != at) {
                    self.break_line(at, other);
                }
            }
            Output::Halt(kind, reason) => {
                self.say(|| format!("{at} halts: {reason}"));
                if kind == HaltKind::Refused {
                    let what = format!("process {at}: {reason}");
                    return self.violate(Violation::new("halt", what));
                }
                self.crash(at, 5 * MILLISECOND);
            }
            Output::Diverged(found) => {
                self.violate(Violation::new("digests", format!("process {at}: {found}")));
            }
            Output::SnapshotBridges { .. }
            | Output::Route { .. }
            | Output::EpochBegins { .. }
            | Output::Digest(_) => {}
        }
    }

    fn synced(&mut self, at: usize, boot: u64) {
        let process = &mut self.processes[at];
        if !process.up || process.boot != boot {
            return;
        }
        let synced = process.synced(&mut self.random);
        let released = synced.and_then(|synced| Ok((synced, process.release(4)?)));
        let ((told, again), released) = match released {
            Ok(released) => released,
            Err(error) => {
                let what = format!("process {at}: {error}");
                return self.violate(Violation::new("journal", what));
            }
        };
        if released > 0 {
            self.count("brought forward");
        }
        if let Some(latency) = again {
            let after = self.now + latency;
            self.queue.push(after, Event::Synced { at, boot });
        }
        if told.len() > 1 {
            self.count("one sync for several groups");
        }
        for (group, id) in told {
            if !self.processes[at].has_committed(group, id) {
                let what = format!("process {at} tells {group} of {id} before it is on the disk");
                return self.violate(Violation::new("persisted", what));
            }
            if self.processes[at].up {
                self.input(at, group.index(), Input::Persisted(id));
            }
        }
    }

    fn saved(&mut self, at: usize, place: usize, boot: u64, info: SnapshotInfo) {
        let process = &mut self.processes[at];
        if !process.up || process.boot != boot {
            return;
        }
        let host = &mut process.hosts[place];
        let Some(kept) = (host.writing).take_if(|writing| writing.info == info) else {
            return;
        };
        let (fetched, index) = (kept.fetched, GroupIndex::new(place));
        host.snapshots.retain(|other| other.info.id != info.id);
        host.snapshots.push(kept);
        host.snapshots.sort_by_key(|kept| kept.info.id);
        while host.snapshots.len() > 2 {
            host.snapshots.remove(0);
        }
        let trim = host.trim_due();
        if fetched {
            self.hand(at, Order::Skip(index));
        }
        if let Some(below) = trim {
            self.hand(at, Order::Trim(index, below));
        }
        self.count("snapshot saved");
        self.input(at, place, Input::SnapshotSaved(info));
    }

    // --- links -----------------------------------------------------------------------------

    fn send(&mut self, from: usize, to: ReplicaSet, frame: &Bytes) {
        for to in to.iter().map(ReplicaId::index).filter(|to| *to != from) {
            let latency = self.random.between(30_000, 2 * MILLISECOND);
            let Some(line) = self.lines.get_mut(&pair(from, to)).filter(|l| l.up) else {
                continue;
            };
            let last = &mut line.last[usize::from(from < to)];
            *last = (*last + 1).max(self.now + latency);
            let (at, link, frame) = (*last, line.number, frame.clone());
            let event = Event::Deliver {
                from,
                to,
                link,
                frame,
            };
            self.queue.push(at, event);
        }
    }

    fn deliver(&mut self, from: usize, to: usize, link: u32, frame: Bytes) {
        let line = self.lines[&pair(from, to)];
        if !line.up || line.number != link || !self.processes[to].up {
            return;
        }
        let group = frame_group(&frame);
        let place = group.and_then(|group| self.processes[to].place(&self.ids, group));
        let Some(place) = place else {
            let what = format!("process {to} got a frame of {group:?}");
            return self.violate(Violation::new("frame", what));
        };
        let input = Input::Frame {
            from: peer(from),
            arrived: Time(self.now),
            frame,
        };
        self.input(to, place, input);
    }

    /// The nodes of two processes that work together, by their places in both.
    fn shared(&self, a: usize, b: usize) -> Vec<(usize, usize)> {
        let hosts = self.processes[a].hosts.iter().enumerate();
        let shared = hosts.filter_map(|(here, host)| {
            let mut there = self.processes[b].hosts.iter();
            Some((here, there.position(|other| other.group == host.group)?))
        });
        shared.collect()
    }

    fn connect(&mut self, a: usize, b: usize) {
        let (a, b) = pair(a, b);
        let up = self.processes[a].up && self.processes[b].up;
        let Some(line) = self.lines.get_mut(&(a, b)) else {
            return;
        };
        if !up || line.up || line.blocked > 0 {
            return;
        }
        line.up = true;
        line.number += 1;
        for (here, there) in self.shared(a, b) {
            let incarnation =
                |at: usize, place: usize| Incarnation(self.processes[at].hosts[place].incarnation);
            let of = (incarnation(a, here), incarnation(b, there));
            let up = |incarnation| Link::Up { incarnation };
            self.input(a, here, Input::Link(peer(b), up(of.1)));
            self.input(b, there, Input::Link(peer(a), up(of.0)));
        }
    }

    fn break_line(&mut self, a: usize, b: usize) {
        let (a, b) = pair(a, b);
        let Some(line) = self.lines.get_mut(&(a, b)).filter(|line| line.up) else {
            return;
        };
        line.up = false;
        line.number += 1;
        for (here, there) in self.shared(a, b) {
            for (at, place, other) in [(a, here, b), (b, there, a)] {
                if self.processes[at].up {
                    self.input(at, place, Input::Link(peer(other), Link::Down));
                }
            }
        }
        let after = self.now + self.random.between(MILLISECOND, 30 * MILLISECOND);
        self.queue.push(after, Event::Connect(a, b));
    }

    fn crash(&mut self, at: usize, pause: u64) {
        if !self.processes[at].up {
            return;
        }
        self.say(|| format!("{at} crashes"));
        self.processes[at].crash(&mut self.random);
        for other in (0..self.processes.len()).filter(|other| *other != at) {
            self.break_line(at, other);
        }
        self.queue.push(self.now + pause, Event::Start(at));
    }

    /// Whether every group in memory outlives the crash of these processes.
    fn may_crash(&self, down: &[usize]) -> bool {
        self.groups.iter().enumerate().all(|(place, group)| {
            if group.durability == Durability::Disk {
                return true;
            }
            let lost = group.members.iter().filter(|at| {
                let mut hosts = self.processes[**at].hosts.iter();
                let repairing = hosts.any(|host| host.group == place && host.repairing);
                down.contains(at) || !self.processes[**at].up || repairing
            });
            lost.count() <= (group.members.len() - 1) / 2
        })
    }

    fn inject(&mut self) {
        if self.calm {
            return;
        }
        let after = self.random.between(10 * MILLISECOND, 250 * MILLISECOND);
        self.queue.push(self.now + after, Event::Fault);
        let count = self.processes.len();
        let at = self.random.index(count);
        let pause = self.random.between(2 * MILLISECOND, 200 * MILLISECOND);
        match self.random.index(8) {
            0..=2 if self.may_crash(&[at]) => {
                self.count("crash");
                self.crash(at, pause);
            }
            3 => {
                let all: Vec<usize> = (0..count).collect();
                if self.may_crash(&all) {
                    self.count("crash of all");
                    all.into_iter().for_each(|at| self.crash(at, pause));
                }
            }
            4 | 5 => {
                self.count("partition");
                let side: Vec<bool> = (0..count).map(|_| self.random.chance(400)).collect();
                for a in 0..count {
                    for b in (a + 1..count).filter(|b| side[a] != side[*b]) {
                        if let Some(line) = self.lines.get_mut(&(a, b)) {
                            line.blocked += 1;
                        }
                        self.break_line(a, b);
                        self.queue.push(self.now + 2 * pause, Event::Heal(a, b));
                    }
                }
            }
            6 => {
                self.count("slow disk");
                self.processes[at].slow = self.random.between(5, 50);
                self.queue.push(self.now + pause, Event::Quick(at));
            }
            _ => {
                self.count("reset");
                let other = (at + 1) % count;
                self.break_line(at, other);
            }
        }
    }

    // --- clients ---------------------------------------------------------------------------

    fn ask(&mut self, client: usize) {
        let home = &mut self.clients[client];
        if home.number.is_some() || (self.calm && home.afterwards >= AFTERWARDS) {
            return;
        }
        let key = self.random.below(KEYS.into()) as u32;
        let value = self.random.below(1_000);
        let operation = match key % 3 {
            _ if self.random.chance(300) => Operation::Read,
            0 => Operation::Write(value),
            1 => Operation::Append(value),
            _ => Operation::Add(value),
        };
        let level = match operation {
            Operation::Read if self.random.chance(500) => Level::Linearizable,
            _ => Level::Ordered,
        };
        home.sequence += u64::from(level == Level::Ordered);
        home.level = level;
        let group = &mut self.groups[home.group];
        let number = group.history.invoke(client as u16, key, operation);
        home.number = Some(number);
        self.submit(client);
    }

    /// Sends the operation of a client to some member, perhaps again.
    fn submit(&mut self, client: usize) {
        let home = &mut self.clients[client];
        home.tries += 1;
        self.queue
            .push(self.now + RETRY, Event::Retry(client, home.tries));
        let Some(number) = home.number else {
            return;
        };
        let place = home.group;
        let group = &mut self.groups[place];
        let at = group.members[self.random.index(group.members.len())];
        let session = SessionId {
            owner: 1_000 + client as u64,
            number: home.session,
        };
        let mut batch = BatchBuilder::of(group.id);
        let id = |sequence| CommandId { session, sequence };
        let recorded = *group.history.get(number);
        let payload = encode_command(number as u64, recorded.key, recorded.operation);
        if home.level == Level::Ordered {
            if !home.opened {
                batch.push(id(0), RequestKind::Open, 0, &self.now.to_le_bytes());
            }
            group.history.sent(number, id(home.sequence));
            batch.push(id(home.sequence), RequestKind::Command, 0, &payload);
        } else {
            let id = id(number as u64 + 1);
            batch.push(id, RequestKind::Command, 0, &payload);
        }
        let (level, tries) = (home.level, home.tries);
        let Some(here) = self.processes[at].place(&self.ids, self.ids[place]) else {
            return;
        };
        let boot = self.processes[at].boot;
        let host = &mut self.processes[at].hosts[here];
        if host.node.is_none() {
            return;
        }
        let id = host.batch_next;
        host.batch_next += 1;
        host.batches.insert(id, (client, tries));
        let submission = Submission {
            id: BatchId(id),
            level,
            batch: batch.finish(frontend(at, here, boot), BatchId(id), level),
            deadline: Time(self.now + RETRY * 3 / 4),
        };
        self.input(at, here, Input::Submit(submission));
    }

    fn done(&mut self, at: usize, place: usize, batch: BatchId, outcome: Outcome) {
        let host = &mut self.processes[at].hosts[place];
        let Some((client, tries)) = host.batches.remove(&batch.0) else {
            return;
        };
        let home = &mut self.clients[client];
        if home.tries != tries {
            return;
        }
        let Some(number) = home.number else {
            return;
        };
        let Outcome::Results(bytes) = outcome else {
            return;
        };
        for (status, reply) in Results::new(&bytes) {
            match (status, decode_reply(reply)) {
                (RequestStatus::Done, Some(reply)) => {
                    home.number = None;
                    home.afterwards += u64::from(self.calm);
                    self.groups[home.group].history.done(number, reply);
                }
                (RequestStatus::Done, None) => home.opened = true,
                (RequestStatus::OutOfOrder, _) => {}
                (status, _) => {
                    // A session that cannot be used any more.
                    home.number = None;
                    home.session += 1;
                    (home.opened, home.sequence) = (false, 0);
                    self.groups[home.group].history.end(number, Fate::Uncertain);
                    if status != RequestStatus::OpenRefused {
                        let what = format!("operation {number} was answered {status:?}");
                        self.violation
                            .get_or_insert(Violation::new("results", what));
                    }
                }
            }
        }
        let after = self.now + self.random.between(100_000, 10 * MILLISECOND);
        if self.clients[client].number.is_none() {
            self.queue.push(after, Event::Ask(client));
        }
    }
}

/// Unique per run of a process; names the process in its second byte.
fn frontend(at: usize, place: usize, boot: u64) -> FrontendId {
    FrontendId((boot << 16) | ((at as u64) << 8) | (place as u64 + 1))
}
