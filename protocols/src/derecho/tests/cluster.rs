//! Several processes with a log and an executor for each group, over a network, disks and crashes
//! that come from one number.
//!
//! ```text
//!   group 0, 1, 2 … of a process ──► one driver ──► effects by group ──► packets, syncs, timers
//!                                                                          by time, from one seed
//! ```

use crate::{derecho::Derecho, group::MS, random_runs::Random};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    BatchBuilder, BatchId, BatchView, Bytes, ClockReading, ClusterId, CommandId, Control, Deadline,
    Driver, Durability, Effect, Epoch, EpochNumber, Event, Executed, FrontendId, GroupId,
    Incarnation, Level, Link, Options, Outcome, Peer, PersistId, Protocol, Recipients,
    RecoveredBytes, Replica, ReplicaId, ReplyRoute, RequestKind, SessionId, Setup, Slot,
    SnapshotInfo, Status, Submission, Surroundings, Time, TimerKey, World, Write,
};

type Config = <Derecho as Protocol>::Options;

/// The time, and how many bytes a link takes at once.
struct Clock(Time, usize);

impl World for Clock {
    fn now(&self) -> Time {
        self.0
    }
    fn clock(&self) -> ClockReading {
        let now = self.0.0 + 1;
        ClockReading {
            earliest: now,
            now,
            latest: now,
            deviation: 0,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        self.1
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

/// The disk of one group of a process.
#[derive(Clone, Default)]
struct Disk {
    promise: Option<Bytes>,
    records: Vec<(Slot, Bytes)>,
    checkpoint: Option<(Slot, Bytes, Vec<BatchId>)>,
    unsynced: VecDeque<(PersistId, Write)>,
    used: bool,
}

impl Disk {
    /// The last slot without a gap before it.
    fn end(&self) -> Slot {
        let mut end = self.checkpoint.as_ref().map_or(Slot(0), |(slot, ..)| *slot);
        for (slot, _) in &self.records {
            if *slot <= end.next() {
                end = *slot;
            }
        }
        end
    }
}

#[derive(Default)]
struct Executor {
    executed: Slot,
    state: Vec<BatchId>,
    queries: Vec<(Slot, ReplyRoute, BatchId)>,
    asked_state: Option<Slot>,
}

#[derive(Default)]
struct Process {
    driver: Option<Driver<Derecho>>,
    boots: u64,
    /// How often its disk was lost, and the groups that have not recovered since.
    losses: u64,
    repairing: BTreeSet<GroupId>,
    disks: BTreeMap<GroupId, Disk>,
    executors: BTreeMap<GroupId, Executor>,
    timers: BTreeMap<(GroupId, TimerKey), Time>,
}

impl Process {
    /// It is kept with the disk.
    const fn incarnation(&self) -> Incarnation {
        Incarnation(1 + self.losses)
    }
}

enum What {
    Packet {
        from: u16,
        to: u16,
        group: GroupId,
        connection: u64,
        event: Event,
    },
    Sync(u16, GroupId, u64, PersistId),
    Timer(u16, GroupId, TimerKey),
    State(u16, GroupId, u64),
    Start(u16),
}

struct Asked {
    group: GroupId,
    level: Level,
    /// The last slot that was acknowledged in the group when it was asked.
    acknowledged: Slot,
}

pub struct Cluster {
    clock: Clock,
    config: Config,
    pub random: Random,
    processes: Vec<Process>,
    queue: BTreeMap<(Time, u64), What>,
    number: u64,
    /// Links that lose everything; how often each was made, and when its last packet arrives.
    cut: BTreeSet<(u16, u16)>,
    connections: BTreeMap<(u16, u16), u64>,
    arrivals: BTreeMap<(u16, u16), Time>,
    /// Disks that stand still, and messages that are lost, by process and group.
    pub stalled: BTreeSet<(u16, GroupId)>,
    pub muted: BTreeSet<(u16, GroupId)>,
    sent_in_turn: BTreeMap<ReplicaId, usize>,
    groups: Vec<(GroupId, Durability)>,
    builder: BatchBuilder,
    asked: BTreeMap<BatchId, Asked>,
    /// The batch in each slot of each group, by the replica that executed it first.
    decided: BTreeMap<(GroupId, Slot), BatchId>,
    acknowledged: BTreeMap<GroupId, BTreeMap<BatchId, Slot>>,
    /// Every view that was installed, by its number.
    views: BTreeMap<u64, crate::derecho::View>,
    pub marks: BTreeMap<&'static str, u32>,
    pub answers: u64,
}

const HOME: GroupId = GroupId(0);

impl Cluster {
    pub fn new(processes: u16, layout: &str, bug: Option<&str>, seed: u64) -> Self {
        let mut config = Config::default();
        config.set("layout", layout).expect("a layout");
        if let Some(bug) = bug {
            config.set("bug", bug).expect("an injected bug");
        }
        let layout = config.layout().expect("a layout");
        assert_eq!(layout.check(usize::from(processes)), Ok(()));
        let home = [(HOME, Durability::Disk)];
        let groups = home.into_iter().chain(layout.groups()).collect();
        let mut cluster = Self {
            clock: Clock(Time(1), 1 << 30),
            config,
            random: Random::new(seed),
            processes: (0..processes).map(|_| Process::default()).collect(),
            queue: BTreeMap::new(),
            number: 0,
            cut: BTreeSet::new(),
            connections: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            stalled: BTreeSet::new(),
            muted: BTreeSet::new(),
            sent_in_turn: BTreeMap::new(),
            groups,
            builder: BatchBuilder::new(),
            asked: BTreeMap::new(),
            decided: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            views: BTreeMap::new(),
            marks: BTreeMap::new(),
            answers: 0,
        };
        (0..processes).for_each(|id| cluster.start(id));
        cluster
    }

    fn later(&mut self, least: u64, most: u64) -> Time {
        let micros = least + self.random.below(most - least + 1);
        self.clock.0 + Duration::from_micros(micros)
    }

    fn push(&mut self, at: Time, what: What) {
        self.number += 1;
        self.queue.insert((at, self.number), what);
    }

    // ------------------------------------------------------------------------------ processes

    pub fn start(&mut self, id: u16) {
        self.start_as(id, false);
    }

    /// The operator gives up what it had in memory and lost.
    pub fn begin_again(&mut self, id: u16) {
        self.start_as(id, true);
    }

    fn start_as(&mut self, id: u16, begins_again: bool) {
        let (groups, epoch) = (self.groups.clone(), self.epoch());
        let process = &mut self.processes[usize::from(id)];
        assert!(process.driver.is_none(), "it runs");
        process.boots += 1;
        let boots = process.boots;
        let setup = Setup {
            id: ReplicaId(id),
            incarnation: process.incarnation(),
            group: HOME,
            epoch,
            durability: Durability::Disk,
            options: self.config.clone(),
            seed: u64::from(id) << 32 | boots,
        };
        process.driver = Some(Driver::new(setup, FrontendId(u64::from(id) + 1)));
        process.timers.clear();
        for (group, durability) in groups {
            let process = &mut self.processes[usize::from(id)];
            let repairing = process.repairing.contains(&group);
            let disk = process.disks.entry(group).or_default();
            disk.unsynced.clear();
            let first_boot = !core::mem::replace(&mut disk.used, true);
            let in_memory = durability == Durability::Memory && !first_boot;
            let state_lost = in_memory && !begins_again || repairing;
            if in_memory {
                (disk.records, disk.checkpoint) = (Vec::new(), None);
            }
            let executor = process.executors.entry(group).or_default();
            *executor = Executor::default();
            if let Some((slot, _, state)) = &disk.checkpoint {
                executor.executed = *slot;
                executor.state = state.clone();
            }
            let checkpoint = disk.checkpoint.as_ref();
            let recovered = RecoveredBytes {
                first_boot,
                state_lost,
                promise: disk.promise.clone(),
                checkpoint: checkpoint.map(|(slot, summary, _)| (*slot, summary.clone())),
                records: disk.records.clone(),
            };
            self.event(id, group, Event::Start(recovered));
        }
        for other in 0..self.processes.len() as u16 {
            if other != id && self.is_up(other) && !self.cut.contains(&(id, other)) {
                self.connect(id, other);
            }
        }
    }

    fn epoch(&self) -> Epoch {
        Epoch {
            cluster: ClusterId(7),
            number: EpochNumber(1),
            members: self.processes.len(),
            options: Vec::new(),
            secret: [0; 32],
            leader_first: ReplicaId(0),
        }
    }

    pub fn is_up(&self, id: u16) -> bool {
        self.processes[usize::from(id)].driver.is_some()
    }

    pub fn crash(&mut self, id: u16) {
        self.processes[usize::from(id)].driver = None;
        for other in 0..self.processes.len() as u16 {
            if other != id {
                self.disconnect(id, other);
            }
        }
    }

    /// The disk of a process that is down is lost, but for its promises.
    pub fn lose_disk(&mut self, id: u16) {
        let groups: Vec<u32> = self.groups.iter().map(|(group, _)| group.0).collect();
        self.lose_groups(id, &groups);
    }

    /// The same of these groups alone.
    pub fn lose_groups(&mut self, id: u16, groups: &[u32]) {
        let process = &mut self.processes[usize::from(id)];
        assert!(process.driver.is_none(), "it runs");
        for group in groups {
            let disk = process.disks.entry(GroupId(*group)).or_default();
            (disk.records, disk.checkpoint) = (Vec::new(), None);
            process.repairing.insert(GroupId(*group));
        }
        process.losses += 1;
    }

    /// The promise on the disk of a process.
    pub fn promise(&self, id: u16) -> Bytes {
        let promise = &self.processes[usize::from(id)].disks[&HOME].promise;
        promise.clone().expect("it has promised something")
    }

    /// Whether a group's disk was lost and is not made good.
    pub fn is_repairing(&self, id: u16, group: u32) -> bool {
        self.processes[usize::from(id)]
            .repairing
            .contains(&GroupId(group))
    }

    /// A link is gone, with all that was on it.
    fn disconnect(&mut self, a: u16, b: u16) {
        for (from, to) in [(a, b), (b, a)] {
            *self.connections.entry((from, to)).or_default() += 1;
        }
        for (at, peer) in [(a, b), (b, a)] {
            self.event(
                at,
                HOME,
                Event::Link(Peer::Replica(ReplicaId(peer)), Link::Down),
            );
        }
    }

    fn connect(&mut self, a: u16, b: u16) {
        for (at, peer) in [(a, b), (b, a)] {
            let incarnation = self.processes[usize::from(peer)].incarnation();
            let event = Event::Link(Peer::Replica(ReplicaId(peer)), Link::Up { incarnation });
            self.event(at, HOME, event);
        }
    }

    /// Nothing passes between these and the others.
    pub fn isolate(&mut self, inside: &[u16]) {
        for a in inside {
            for b in 0..self.processes.len() as u16 {
                if !inside.contains(&b) {
                    self.cut.extend([(*a, b), (b, *a)]);
                    self.disconnect(*a, b);
                }
            }
        }
    }

    pub fn heal(&mut self) {
        for (a, b) in core::mem::take(&mut self.cut) {
            if a < b && self.is_up(a) && self.is_up(b) {
                self.connect(a, b);
            }
        }
    }

    // --------------------------------------------------------------------------------- events

    fn event(&mut self, id: u16, group: GroupId, event: Event) {
        self.sent_in_turn.clear();
        let mut events = VecDeque::from([(group, event)]);
        let mut todo = VecDeque::new();
        let (mut effects, mut foreign) = (Vec::new(), Vec::new());
        while let Some((group, event)) = events.pop_front() {
            let Some(driver) = &mut self.processes[usize::from(id)].driver else {
                return;
            };
            let around = Surroundings {
                group,
                ..Surroundings::of(&self.clock)
            };
            driver
                .on_event(event, around, &mut effects)
                .expect("replicas send what they can read");
            driver.on_idle(around, &mut effects);
            driver.assert_invariants();
            todo.extend(effects.drain(..).map(|effect| (group, effect)));
            driver.take_foreign(&mut foreign);
            todo.extend(foreign.drain(..));
            while let Some((group, effect)) = todo.pop_front() {
                self.carry_out(id, group, effect, &mut events);
            }
        }
        self.check_views();
    }

    fn send(&mut self, from: u16, to: u16, group: GroupId, event: Event) {
        if self.cut.contains(&(from, to)) || !self.is_up(to) {
            return;
        }
        let connection = self.connections.get(&(from, to)).copied().unwrap_or(0);
        let before = self.arrivals.get(&(from, to)).copied().unwrap_or(Time(0));
        let at = self.later(50, 400).max(before);
        self.arrivals.insert((from, to), at);
        let packet = What::Packet {
            from,
            to,
            group,
            connection,
            event,
        };
        self.push(at, packet);
    }

    fn carry_out(
        &mut self,
        id: u16,
        group: GroupId,
        effect: Effect,
        events: &mut VecDeque<(GroupId, Event)>,
    ) {
        let me = usize::from(id);
        match effect {
            Effect::Send {
                to: Recipients::Replicas(to),
                frame,
                ..
            } => {
                let message = frame.into_bytes();
                let muted = self.muted.contains(&(id, group));
                for to in to.iter().filter(|_| !muted) {
                    let sent = self.sent_in_turn.entry(to).or_default();
                    *sent += message.len();
                    assert!(*sent <= self.clock.1, "more than a link takes");
                    let event = Event::Message {
                        from: Peer::Replica(ReplicaId(id)),
                        arrived: self.clock.0,
                        message: message.clone(),
                    };
                    self.send(id, to.0, group, event);
                }
            }
            Effect::Request { to, frame } => {
                let message = frame.into_bytes();
                for to in to.iter() {
                    let event = Event::Message {
                        from: Peer::Frontend(FrontendId(u64::from(id) + 1)),
                        arrived: self.clock.0,
                        message: message.clone(),
                    };
                    self.send(id, to.0, group, event);
                }
            }
            Effect::Send {
                to: Recipients::Frontend(to),
                frame,
                ..
            } => {
                let event = Event::ToFrontend {
                    from: ReplicaId(id),
                    message: frame.into_bytes(),
                };
                self.send(id, to.0 as u16 - 1, group, event);
            }
            Effect::Put { to, ranges } => {
                assert_eq!(group, HOME, "the table is the first group's");
                for to in to.iter() {
                    let (from, ranges) = (ReplicaId(id), ranges.clone());
                    self.send(id, to.0, group, Event::Put { from, ranges });
                }
            }
            Effect::Persist {
                id: write,
                write: what,
            } => {
                let promise = matches!(what, Write::Promise(_));
                assert!(!promise || group == HOME, "promises are the first group's");
                let process = &mut self.processes[me];
                let disk = process.disks.get_mut(&group).expect("a group");
                disk.unsynced.push_back((write, what));
                let (at, boots) = (self.later(50, 1500), self.processes[me].boots);
                self.push(at, What::Sync(id, group, boots, write));
            }
            Effect::Trim { below } => {
                let disk = self.processes[me].disks.get_mut(&group).expect("a group");
                disk.records.retain(|(slot, _)| *slot >= below);
            }
            Effect::SetTimer {
                key,
                at: Deadline::At(at),
            } => {
                self.processes[me].timers.insert((group, key), at);
                self.push(at, What::Timer(id, group, key));
            }
            Effect::CancelTimer { key } => {
                self.processes[me].timers.remove(&(group, key));
            }
            Effect::Execute {
                slot, batch, reply, ..
            } => {
                let batch = BatchView::new(&batch).expect("a batch").id();
                let executor = self.processes[me]
                    .executors
                    .get_mut(&group)
                    .expect("a group");
                assert_eq!(
                    slot,
                    executor.executed.next(),
                    "{id} in {group}: every slot in order"
                );
                executor.executed = slot;
                executor.state.push(batch);
                let first = *self.decided.entry((group, slot)).or_insert(batch);
                assert_eq!(first, batch, "{id} in {group}: another batch in {slot}");
                events.push_back((group, Event::Executed(slot)));
                if let Some(reply) = reply {
                    self.answer(id, group, batch, slot, reply);
                }
                self.answer_queries(id, group);
            }
            Effect::Query {
                at_least,
                reply,
                batch,
                ..
            } => {
                let batch = BatchView::new(&batch).expect("a batch").id();
                let executor = self.processes[me]
                    .executors
                    .get_mut(&group)
                    .expect("a group");
                executor.queries.push((at_least, reply, batch));
                self.answer_queries(id, group);
            }
            Effect::Checkpoint { slot, summary } => {
                let process = &mut self.processes[me];
                let executor = &process.executors[&group];
                let state = executor.state[..slot.0 as usize].to_vec();
                let disk = process.disks.get_mut(&group).expect("a group");
                disk.checkpoint = Some((slot, summary, state));
                events.push_back((group, Event::Checkpointed(slot)));
            }
            Effect::FetchState { at_least, .. } => {
                let process = &mut self.processes[me];
                let executor = process.executors.get_mut(&group).expect("a group");
                executor.asked_state = Some(at_least);
                let (at, boots) = (self.later(500, 5000), self.processes[me].boots);
                self.push(at, What::State(id, group, boots));
            }
            Effect::Done { batch, outcome } => self.done(batch, outcome),
            Effect::Mark(branch) => {
                assert!(!branch.starts_with("impossible"), "{branch}");
                *self.marks.entry(branch).or_default() += 1;
            }
            Effect::Halt(reason) => panic!("{id} halts: {reason}"),
            Effect::StartAgain(_) => {
                *self.marks.entry("started again").or_default() += 1;
                self.crash(id);
                let at = self.later(1000, 20_000);
                self.push(at, What::Start(id));
            }
            Effect::Recovered => {
                self.processes[me].repairing.remove(&group);
            }
            Effect::Route { .. } | Effect::View { .. } | Effect::Roles { .. } => {}
            other => panic!("unexpected effect {other:?}"),
        }
    }

    fn answer(&mut self, id: u16, group: GroupId, batch: BatchId, slot: Slot, reply: ReplyRoute) {
        let event = Event::Reply {
            from: ReplicaId(id),
            batch,
            header: reply.header,
            results: Bytes::copy_from_slice(&slot.0.to_le_bytes()),
        };
        let to = reply.to.0 as u16 - 1;
        if to == id {
            let at = self.clock.0;
            let connection = self.connections.get(&(id, id)).copied().unwrap_or(0);
            let packet = What::Packet {
                from: id,
                to,
                group,
                connection,
                event,
            };
            self.push(at, packet);
        } else {
            self.send(id, to, group, event);
        }
    }

    fn answer_queries(&mut self, id: u16, group: GroupId) {
        let executors = &mut self.processes[usize::from(id)].executors;
        let executor = executors.get_mut(&group).expect("a group");
        let executed = executor.executed;
        let queries = core::mem::take(&mut executor.queries);
        let (due, left) = queries.into_iter().partition(|(at, ..)| *at <= executed);
        executor.queries = left;
        let due: Vec<_> = due;
        for (_, reply, batch) in due {
            self.answer(id, group, batch, executed, reply);
        }
    }

    fn done(&mut self, batch: BatchId, outcome: Outcome) {
        let Outcome::Results(results) = outcome else {
            return;
        };
        let bytes: [u8; 8] = results[..].try_into().expect("a slot");
        let slot = Slot(u64::from_le_bytes(bytes));
        let Some(asked) = self.asked.remove(&batch) else {
            return;
        };
        self.answers += 1;
        if asked.level == Level::Linearizable {
            let (group, before) = (asked.group, asked.acknowledged);
            assert!(
                slot >= before,
                "a read in {group} sees {slot}, before it was {before}"
            );
        } else {
            let all = self.acknowledged.entry(asked.group).or_default();
            all.insert(batch, slot);
        }
    }

    // -------------------------------------------------------------------------------- clients

    pub fn submit(&mut self, id: u16, group: u32, level: Level, more: usize) -> BatchId {
        let (group, batch) = (GroupId(group), BatchId(self.number + 1));
        self.number += 1;
        let request = CommandId {
            session: SessionId {
                owner: 1,
                number: u64::from(id) + 1,
            },
            sequence: batch.0,
        };
        let mut payload = batch.0.to_le_bytes().to_vec();
        payload.resize(8 + more, 0);
        (self.builder).push(request, RequestKind::Command, 0, &payload);
        let frontend = FrontendId(u64::from(id) + 1);
        let submission = Submission {
            id: batch,
            level,
            batch: self.builder.finish(frontend, batch, level),
            deadline: self.clock.0 + MS * 60_000,
        };
        let all = self.acknowledged.get(&group);
        let last = all.and_then(|all| all.values().max().copied());
        let asked = Asked {
            group,
            level,
            acknowledged: last.unwrap_or_default(),
        };
        self.asked.insert(batch, asked);
        self.event(id, group, Event::Submit(submission));
        batch
    }

    pub fn write(&mut self, id: u16, group: u32) -> BatchId {
        self.submit(id, group, Level::Ordered, 0)
    }

    pub fn is_answered(&self, batch: BatchId) -> bool {
        !self.asked.contains_key(&batch)
    }

    pub fn checkpoint(&mut self, id: u16, group: u32) {
        self.event(id, GroupId(group), Event::Control(Control::CheckpointDue));
    }

    pub fn control(&mut self, id: u16, control: Control) {
        self.event(id, HOME, Event::Control(control));
    }

    /// Links take this number of bytes in a turn from here on, and no turn may send more.
    pub const fn set_room(&mut self, bytes: usize) {
        self.clock.1 = bytes;
    }

    /// Sets an option of the processes that are started from here on.
    pub fn set(&mut self, option: &str, value: &str) {
        self.config.set(option, value).expect("an option");
    }

    /// Starts all of them again, with the options as they are.
    pub fn restart(&mut self) {
        let all = 0..self.processes.len() as u16;
        all.clone().for_each(|id| self.crash(id));
        all.for_each(|id| self.start(id));
    }

    /// Gives up the acknowledged writes of a group.
    pub fn give_up(&mut self, group: u32) {
        let group = GroupId(group);
        self.acknowledged.remove(&group);
        self.decided.retain(|(of, _), _| *of != group);
    }

    /// The groups, the one of all processes first.
    pub const fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Whether every group in memory outlives the crash of these: all others are in one view, and one
    /// of them holds it.
    pub fn outlives(&self, crashed: &[u16]) -> bool {
        let rest = (0..self.processes.len() as u16).filter(|id| self.is_up(*id));
        let rest: Vec<u16> = rest.filter(|id| !crashed.contains(id)).collect();
        let membership = |id: &u16| &self.replica(*id).membership;
        let newest = self.views.keys().next_back();
        let at_work = |id: &u16| {
            let of = membership(id);
            of.is_active() && !of.wedging() && Some(&of.number()) == newest
        };
        let mut groups = self.groups[1..].iter().enumerate();
        let lasts = |(shard, (_, durability)): (usize, &(GroupId, Durability))| {
            *durability == Durability::Disk || rest.iter().any(|id| membership(id).is_held(shard))
        };
        let disks = (self.groups.iter()).all(|(_, durability)| *durability == Durability::Disk);
        disks || rest.iter().all(at_work) && groups.all(lasts)
    }

    // ----------------------------------------------------------------------------------- time

    /// Runs in small steps until something holds.
    pub fn run_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if holds(self) {
                return;
            }
            self.run(Duration::from_micros(100));
        }
        panic!("{what} does not come about: {}", self.picture());
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.clock.0 + time;
        while let Some(((at, _), what)) = self
            .queue
            .first_key_value()
            .map(|(k, _)| (*k, ()))
            .filter(|((at, _), ())| *at <= end)
            .and_then(|(key, ())| Some((key, self.queue.remove(&key)?)))
        {
            self.clock.0 = self.clock.0.max(at);
            self.happen(at, what);
        }
        self.clock.0 = end;
    }

    fn happen(&mut self, at: Time, what: What) {
        match what {
            What::Packet {
                from,
                to,
                group,
                connection,
                mut event,
            } => {
                if self.connections.get(&(from, to)).copied().unwrap_or(0) != connection {
                    return;
                }
                if let Event::Message { arrived, .. } = &mut event {
                    *arrived = at;
                }
                self.event(to, group, event);
            }
            What::Sync(id, group, boots, upto) => {
                let process = &self.processes[usize::from(id)];
                if process.boots != boots || process.driver.is_none() {
                    return;
                }
                if self.stalled.contains(&(id, group)) {
                    let at = self.later(5000, 10_000);
                    return self.push(at, What::Sync(id, group, boots, upto));
                }
                let process = &mut self.processes[usize::from(id)];
                let disk = process.disks.get_mut(&group).expect("a group");
                while disk
                    .unsynced
                    .front()
                    .is_some_and(|(write, _)| *write <= upto)
                {
                    match disk.unsynced.pop_front() {
                        Some((_, Write::Promise(promise))) => disk.promise = Some(promise),
                        Some((_, Write::Record { slot, record })) => {
                            disk.records.push((slot, record));
                        }
                        None => {}
                    }
                }
                self.event(id, group, Event::Persisted(upto));
            }
            What::Timer(id, group, key) => {
                let timers = &mut self.processes[usize::from(id)].timers;
                if timers.get(&(group, key)) == Some(&at) {
                    timers.remove(&(group, key));
                    self.event(id, group, Event::Timer(key));
                }
            }
            What::State(id, group, boots) => self.transfer(id, group, boots),
            What::Start(id) => self.start(id),
        }
    }

    /// Gives a process that asked for a state that of another, if one has it.
    fn transfer(&mut self, id: u16, group: GroupId, boots: u64) {
        let process = &self.processes[usize::from(id)];
        let asked = process.executors[&group].asked_state;
        let Some(at_least) = asked.filter(|_| process.driver.is_some() && process.boots == boots)
        else {
            return;
        };
        let have = |other: &u16| {
            let process = &self.processes[usize::from(*other)];
            let executed = process.executors.get(&group).map(|it| it.executed);
            *other != id && process.driver.is_some() && executed >= Some(at_least)
        };
        let donor = (0..self.processes.len() as u16).find(have);
        let Some(donor) = donor else {
            let at = self.later(500, 5000);
            return self.push(at, What::State(id, group, boots));
        };
        self.checkpoint(donor, group.0);
        let disk = &self.processes[usize::from(donor)].disks[&group];
        let Some((slot, summary, state)) = disk.checkpoint.clone() else {
            return;
        };
        let process = &mut self.processes[usize::from(id)];
        let executor = process.executors.get_mut(&group).expect("a group");
        executor.asked_state = None;
        if slot <= executor.executed {
            return;
        }
        executor.executed = slot;
        executor.state = state.clone();
        let disk = process.disks.get_mut(&group).expect("a group");
        disk.checkpoint = Some((slot, summary.clone(), state));
        self.event(id, group, Event::Installed { slot, summary });
    }

    // --------------------------------------------------------------------------------- checks

    pub fn replica(&self, id: u16) -> &Derecho {
        let driver = self.processes[usize::from(id)].driver.as_ref();
        driver.expect("it runs").replica()
    }

    pub fn status(&self, id: u16, group: u32) -> Status {
        self.replica(id).status_in(GroupId(group))
    }

    /// One view per number; disjoint members; a shard is active only with enough disks that hold
    /// its log up to the base.
    fn check_views(&mut self) {
        for id in 0..self.processes.len() as u16 {
            if !self.is_up(id) || !self.replica(id).membership.is_active() {
                continue;
            }
            let view = self.replica(id).membership.view().clone();
            if let Some(known) = self.views.get(&view.number) {
                assert_eq!(*known, view, "one view of each number");
                continue;
            }
            let layout = &self.config.layout;
            for (shard, of) in view.shards.iter().enumerate() {
                for (other, with) in view.shards.iter().enumerate() {
                    let same = layout.shards()[shard].subgroup == layout.shards()[other].subgroup;
                    let both = view.is_active(shard) && view.is_active(other);
                    let shared = of.members.0 & with.members.0 != 0;
                    assert!(
                        shard == other || !same || !both || !shared,
                        "shared in {view:?}"
                    );
                }
                let group = layout.shards()[shard].group;
                let min = layout.subgroup(shard).min;
                if !view.is_active(shard) || layout.subgroup(shard).durability == Durability::Memory
                {
                    continue;
                }
                let holds = |id: &ReplicaId| {
                    let disk = self.processes[id.index()].disks.get(&group);
                    disk.is_some_and(|disk| disk.end() >= of.base)
                };
                let holders = of.members.iter().filter(holds).count();
                assert!(
                    holders >= min,
                    "{group} is active with {holders} holders: {view:?}"
                );
            }
            self.views.insert(view.number, view);
        }
    }

    /// Nothing that was acknowledged is lost, and members of a shard hold the same.
    pub fn assert_kept(&self) {
        for (group, all) in &self.acknowledged {
            for batch in all.keys() {
                let slot = self
                    .decided
                    .iter()
                    .find(|((of, _), what)| of == group && *what == batch);
                let ((_, slot), _) = slot.expect("an acknowledged batch was executed");
                let mut states = 0;
                for id in 0..self.processes.len() as u16 {
                    if !self.is_up(id) || self.status(id, group.0).role != "member" {
                        continue;
                    }
                    states += 1;
                    let state = &self.processes[usize::from(id)].executors[group].state;
                    let there = state.get(slot.0 as usize - 1) == Some(batch);
                    assert!(there, "{batch} of {group} is lost at {id}");
                }
                assert!(states > 0 || *group == HOME, "{group} has no member");
            }
        }
    }

    /// Whether every shard works, and all its members and targets are one set.
    pub fn is_whole(&self) -> bool {
        let whole = |id: &u16| {
            let membership = &self.replica(*id).membership;
            let view = membership.view();
            let mut shards = view.shards.iter().enumerate();
            membership.is_active()
                && shards.all(|(shard, of)| view.is_active(shard) && of.members == of.targets)
        };
        let mut up = (0..self.processes.len() as u16).filter(|id| self.is_up(*id));
        up.all(|id| whole(&id))
    }

    pub fn picture(&self) -> String {
        let mut picture = String::new();
        for id in (0..self.processes.len() as u16).filter(|id| self.is_up(*id)) {
            let (replica, status) = (self.replica(id), self.status(id, 0));
            picture += &alloc::format!("{id}: {} view {}\n", status.role, status.view);
            for (group, _) in &self.groups[1..] {
                let status = replica.status_in(*group);
                let end = status.accepted;
                picture +=
                    &alloc::format!("   {group} {} {end} {:?}\n", status.role, status.details);
            }
        }
        picture
    }
}
