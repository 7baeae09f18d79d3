//! A few replicas of any protocol over a network and disks that the test holds in its hands.
//!
//! ```text
//!   events ──► Driver<P> ──► effects ──► network (a queue), disks (synced when told), timers
//! ```

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};
use core::{fmt::Debug, marker::PhantomData, time::Duration};
use quintet_replica::{
    BatchBuilder, BatchId, BatchView, Bytes, ClockReading, ClusterId, CommandId, Control, Deadline,
    Driver, Durability, Effect, Epoch, EpochNumber, Event, EventError, Executed, FrontendId,
    GroupId, Incarnation, Level, Link, Outcome, Peer, PersistId, Protocol, Recipients,
    RecoveredBytes, Replica, ReplicaId, ReplicaSet, RequestKind, SessionId, Setup, Slot,
    SnapshotInfo, Status, Submission, Surroundings, Time, TimerKey, TimerOwner, Wake, Wire, World,
    Write,
    parts::{CONTRADICTION, Receipt, Request, RequestMessage, Taken},
};

pub const MS: Duration = Duration::from_millis(1);

pub struct Clock {
    pub now: Time,
    pub room: usize,
}

impl World for Clock {
    fn now(&self) -> Time {
        self.now
    }
    fn clock(&self) -> ClockReading {
        let now = self.now.0 + 1;
        ClockReading {
            earliest: now,
            now,
            latest: now,
            deviation: 0,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        self.room
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

/// The state that survives a crash.
#[derive(Clone, Default)]
pub struct Disk {
    pub promise: Option<Bytes>,
    pub records: Vec<(Slot, Bytes)>,
    pub checkpoint: Option<(Slot, Bytes)>,
    pub used: bool,
    unsynced: VecDeque<(PersistId, Write)>,
}

pub struct Member<P: Protocol> {
    pub driver: Option<Driver<P>>,
    pub disk: Disk,
    pub slow_disk: bool,
    /// The state that it fetches does not come.
    pub slow_state: bool,
    pub incarnation: Incarnation,
    pub boots: u64,
    /// Its journal was damaged, and it does not hold again what it may have acknowledged.
    damaged: bool,
    /// It does once these writes are durable.
    repairs: Option<usize>,
    pub timers: BTreeMap<TimerKey, Time>,
    pub executed: Slot,
    pub state: Vec<Bytes>,
    queries: Vec<(Slot, BatchId)>,
    asked_state: Option<Slot>,
    wake: Option<Time>,
    pub halted: Option<String>,
    /// The members that take part, by its latest report.
    pub route: Vec<u16>,
    /// The members that may take part next, by its latest report.
    pub route_ahead: Vec<u16>,
    /// Its view, by its latest report.
    pub view: Option<(u64, ReplicaSet)>,
}

impl<P: Protocol> Member<P> {
    /// That number of its writes becomes durable.
    fn sync_repairs(&mut self, writes: usize) {
        self.repairs = self.repairs.map(|left| left.saturating_sub(writes));
        self.damaged &= self.repairs != Some(0);
    }
}

pub struct Packet<P> {
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub bytes: Bytes,
    /// Its bytes are ranges of words for the receiver's copy of the sender's row.
    pub put: bool,
    pub protocol: PhantomData<P>,
}

impl<P> Clone for Packet<P> {
    fn clone(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            ..*self
        }
    }
}

impl<P: Protocol> Packet<P> {
    pub fn new(from: u16, to: u16, message: &P::Message) -> Self {
        Self {
            from: ReplicaId(from),
            to: ReplicaId(to),
            bytes: message.encode_to_bytes(),
            put: false,
            protocol: PhantomData,
        }
    }

    pub fn message(&self) -> P::Message {
        P::Message::decode_all(self.bytes.clone()).expect("replicas send what they can read")
    }
}

pub struct Group<P: Protocol> {
    pub clock: Clock,
    pub members: Vec<Member<P>>,
    pub network: VecDeque<Packet<P>>,
    /// Links that lose everything.
    pub cut: BTreeSet<(u16, u16)>,
    /// Messages to or from these take so long.
    pub far: BTreeMap<u16, Duration>,
    late: Vec<(Time, Packet<P>)>,
    pub marks: BTreeMap<&'static str, u32>,
    /// The value decided in each slot, by the replica that executed it first.
    pub decided: BTreeMap<Slot, Bytes>,
    /// The members in each view that was told.
    views: BTreeMap<u64, ReplicaSet>,
    pub done: BTreeMap<(u16, BatchId), Outcome>,
    batch_next: u64,
    pub durability: Durability,
    config: P::Options,
    builder: BatchBuilder,
}

impl<P: Protocol> Group<P> {
    pub fn new(members: usize, durability: Durability, config: P::Options) -> Self {
        let mut group = Self::unstarted(members, durability, config);
        for id in 0..members as u16 {
            group.start(id);
        }
        group.settle();
        group
    }

    pub fn unstarted(members: usize, durability: Durability, config: P::Options) -> Self {
        let member = || Member {
            driver: None,
            disk: Disk::default(),
            slow_disk: false,
            slow_state: false,
            incarnation: Incarnation(1),
            boots: 0,
            damaged: false,
            repairs: None,
            timers: BTreeMap::new(),
            executed: Slot(0),
            state: Vec::new(),
            queries: Vec::new(),
            asked_state: None,
            wake: None,
            halted: None,
            route: Vec::new(),
            route_ahead: Vec::new(),
            view: None,
        };
        Self {
            clock: Clock {
                now: Time(1_000_000),
                room: 64 << 20,
            },
            members: (0..members).map(|_| member()).collect(),
            network: VecDeque::new(),
            cut: BTreeSet::new(),
            far: BTreeMap::new(),
            late: Vec::new(),
            marks: BTreeMap::new(),
            decided: BTreeMap::new(),
            views: BTreeMap::new(),
            done: BTreeMap::new(),
            batch_next: 1,
            durability,
            config,
            builder: BatchBuilder::new(),
        }
    }

    pub fn frontend(&self, id: u16) -> FrontendId {
        FrontendId(1000 * self.members[usize::from(id)].boots + u64::from(id) + 1)
    }

    /// The setup of a replica before its start.
    pub fn setup(&self, id: u16) -> Setup<P::Options> {
        let member = &self.members[usize::from(id)];
        Setup {
            id: ReplicaId(id),
            incarnation: member.incarnation,
            group: GroupId(0),
            epoch: Epoch {
                cluster: ClusterId(1),
                number: EpochNumber(1),
                members: self.members.len(),
                options: Vec::new(),
                secret: [0; 32],
                leader_first: ReplicaId(0),
            },
            durability: self.durability,
            options: self.config.clone(),
            seed: u64::from(id) * 77 + member.boots,
        }
    }

    pub fn start(&mut self, id: u16) {
        let member = &mut self.members[usize::from(id)];
        assert!(member.driver.is_none(), "stopped before it starts");
        member.boots += 1;
        let state_lost =
            member.damaged || self.durability == Durability::Memory && member.disk.used;
        if state_lost {
            member.incarnation = Incarnation(member.incarnation.0 + 1);
        }
        let setup = self.setup(id);
        let frontend = self.frontend(id);
        let member = &mut self.members[usize::from(id)];
        let checkpoint = member.disk.checkpoint.clone();
        member.executed = checkpoint.as_ref().map_or(Slot(0), |(slot, _)| *slot);
        member.state = self
            .decided
            .range(..=member.executed)
            .map(|(_, b)| b.clone())
            .collect();
        let recovered = RecoveredBytes {
            first_boot: !member.disk.used,
            state_lost,
            promise: member.disk.promise.clone(),
            checkpoint,
            records: member.disk.records.clone(),
        };
        member.disk.used = true;
        member.timers.clear();
        member.queries.clear();
        member.asked_state = None;
        member.view = None;
        member.driver = Some(Driver::new(setup, frontend));
        self.event(id, Event::Start(recovered));
    }

    /// A stopped replica's journal is damaged: at its next start it has lost its log.
    pub fn damage(&mut self, id: u16) {
        let member = &mut self.members[usize::from(id)];
        assert!(member.driver.is_none(), "only files at rest are damaged");
        member.disk.records.clear();
        member.disk.checkpoint = None;
        member.damaged = true;
    }

    pub fn crash(&mut self, id: u16) {
        let member = &mut self.members[usize::from(id)];
        member.driver = None;
        member.repairs = None;
        member.disk.unsynced.clear();
        member.timers.clear();
        member.wake = None;
    }

    /// All crash and start again, and none is given a state.
    pub fn restart_all_without_states(&mut self) {
        let ids = 0..self.members.len() as u16;
        ids.clone().for_each(|id| self.crash(id));
        for id in ids {
            self.start(id);
            self.members[usize::from(id)].slow_state = true;
        }
    }

    /// A member stands, by this timer and for two seconds, until there is a leader.
    pub fn elect(&mut self, stands: u16, timer: P::Timer)
    where
        P::Timer: Copy,
    {
        for _ in 0..200 {
            self.fire(stands, timer);
            self.run(MS * 10);
            if !self.leaders().is_empty() {
                break;
            }
        }
    }

    /// A member crashes again and again for half a minute, each time after it was `up` and takes
    /// part; it is `down` in between.
    pub fn crash_in_a_loop(
        &mut self,
        id: u16,
        (up, down): (Duration, Duration),
        takes_part: impl Fn(&Self) -> bool,
    ) {
        let end = self.clock.now + MS * 30_000;
        self.crash(id);
        while self.clock.now < end {
            self.run(down);
            self.start(id);
            self.run(up);
            while self.clock.now < end && !takes_part(self) {
                self.run(MS * 20);
            }
            self.crash(id);
        }
    }

    pub fn event(&mut self, id: u16, event: Event) {
        let mut effects = Vec::new();
        let Some(driver) = &mut self.members[usize::from(id)].driver else {
            return;
        };
        driver
            .on_event(event, Surroundings::of(&self.clock), &mut effects)
            .expect("the test sends well-formed bytes");
        self.carry_out(id, effects);
    }

    pub fn idle(&mut self, id: u16) {
        let mut effects = Vec::new();
        let member = &mut self.members[usize::from(id)];
        let Some(driver) = &mut member.driver else {
            return;
        };
        member.wake = match driver.on_idle(Surroundings::of(&self.clock), &mut effects) {
            Wake::Spin => Some(self.clock.now),
            Wake::At(time) => Some(time),
            Wake::Sleep => None,
        };
        driver.assert_invariants();
        self.carry_out(id, effects);
    }

    fn carry_out(&mut self, id: u16, effects: Vec<Effect>) {
        let me = usize::from(id);
        let executed_before = self.members[me].executed;
        for effect in effects {
            match effect {
                Effect::Send {
                    to: Recipients::Replicas(to),
                    frame,
                    ..
                } => {
                    let bytes = frame.into_bytes();
                    for to in to.iter() {
                        let packet = Packet {
                            from: ReplicaId(id),
                            to,
                            bytes: bytes.clone(),
                            put: false,
                            protocol: PhantomData,
                        };
                        if !self.cut.contains(&(id, to.0)) {
                            self.network.push_back(packet);
                        }
                    }
                }
                Effect::Put { to, ranges } => {
                    for to in to.iter().filter(|to| !self.cut.contains(&(id, to.0))) {
                        self.network.push_back(Packet {
                            from: ReplicaId(id),
                            to,
                            bytes: ranges.clone(),
                            put: true,
                            protocol: PhantomData,
                        });
                    }
                }
                Effect::Send {
                    to: Recipients::Frontend(_),
                    ..
                } => {}
                Effect::Persist {
                    id: write,
                    write: what,
                } => {
                    self.members[me].disk.unsynced.push_back((write, what));
                }
                Effect::Trim { below } => {
                    self.members[me]
                        .disk
                        .records
                        .retain(|(slot, _)| *slot >= below);
                }
                Effect::SetTimer {
                    key,
                    at: Deadline::At(at),
                } => {
                    self.members[me].timers.insert(key, at);
                }
                Effect::CancelTimer { key } => {
                    self.members[me].timers.remove(&key);
                }
                Effect::Execute {
                    slot, batch, reply, ..
                } => self.execute(id, slot, batch, reply),
                Effect::Unordered { batch, reply, .. } => {
                    self.members[me].state.push(batch.clone());
                    self.answer(id, &batch, reply);
                }
                Effect::Query {
                    batch, at_least, ..
                } => {
                    let key = BatchView::new(&batch).expect("a batch").id();
                    self.members[me].queries.push((at_least, key));
                }
                Effect::Checkpoint { slot, summary } => {
                    assert_eq!(
                        slot, self.members[me].executed,
                        "after the executions before it"
                    );
                    self.members[me].disk.checkpoint = Some((slot, summary));
                    self.event(id, Event::Checkpointed(slot));
                }
                Effect::FetchState { at_least, .. } => {
                    self.members[me].asked_state = Some(at_least);
                }
                Effect::Done { batch, outcome } => {
                    self.done.insert((id, batch), outcome);
                }
                Effect::Recovered => {
                    let member = &mut self.members[me];
                    member.repairs = Some(member.disk.unsynced.len());
                    member.sync_repairs(0);
                }
                Effect::Route {
                    members, agreed, ..
                } => {
                    let members = members.iter().map(|(id, _)| id.0).collect();
                    if agreed {
                        self.members[me].route = members;
                    } else {
                        self.members[me].route_ahead = members;
                    }
                }
                Effect::View { number, members } => {
                    let known = *self.views.entry(number).or_insert(members);
                    assert_eq!(known, members, "{id}: view {number} is one");
                    let before = self.members[me].view.replace((number, members));
                    let is_later = before.is_none_or(|(before, _)| before <= number);
                    assert!(is_later, "{id}: view {number} after {before:?}");
                }
                Effect::Mark(branch) => *self.marks.entry(branch).or_default() += 1,
                Effect::Halt(reason) => {
                    assert!(!reason.starts_with(CONTRADICTION), "{id}: {reason}");
                    self.members[me].halted = Some(reason);
                    self.crash(id);
                    return;
                }
                other => panic!("unexpected effect {other:?}"),
            }
        }
        if self.members[me].executed > executed_before {
            self.event(id, Event::Executed(self.members[me].executed));
        }
        self.answer_queries(id);
    }

    fn execute(
        &mut self,
        id: u16,
        slot: Slot,
        batch: Bytes,
        reply: Option<quintet_replica::ReplyRoute>,
    ) {
        let member = &mut self.members[usize::from(id)];
        assert_eq!(
            slot,
            member.executed.next(),
            "replica {id} executes every slot in order"
        );
        member.executed = slot;
        member.state.push(batch.clone());
        let first = self.decided.entry(slot).or_insert_with(|| batch.clone());
        assert_eq!(
            *first, batch,
            "replica {id} executes what was decided in {slot}"
        );
        self.answer(id, &batch, reply);
    }

    fn answer(&mut self, id: u16, batch: &[u8], reply: Option<quintet_replica::ReplyRoute>) {
        if let Some(route) = reply
            && route.to == self.frontend(id)
        {
            let batch = BatchView::new(batch)
                .expect("only batches are answered")
                .id();
            let reply = (Bytes::new(), Bytes::from_static(b"ok"));
            let (header, results) = reply;
            self.event(
                id,
                Event::Reply {
                    from: ReplicaId(id),
                    batch,
                    header,
                    results,
                },
            );
        }
    }

    fn answer_queries(&mut self, id: u16) {
        let executed = self.members[usize::from(id)].executed;
        let queries = core::mem::take(&mut self.members[usize::from(id)].queries);
        for (at_least, batch) in queries {
            if at_least <= executed {
                let results = Bytes::from(executed.0.to_le_bytes().to_vec());
                let header = Bytes::new();
                self.event(
                    id,
                    Event::Reply {
                        from: ReplicaId(id),
                        batch,
                        header,
                        results,
                    },
                );
            } else {
                self.members[usize::from(id)]
                    .queries
                    .push((at_least, batch));
            }
        }
    }

    /// Gives a replica that asked for state that of a peer, if one has it.
    pub fn transfer(&mut self, id: u16) {
        let Some(at_least) = self.members[usize::from(id)].asked_state else {
            return;
        };
        let have = |member: &Member<P>| member.driver.is_some() && member.executed >= at_least;
        let Some(donor) = self.members.iter().position(have) else {
            return;
        };
        self.event(donor as u16, Event::Control(Control::CheckpointDue));
        let (slot, summary) = self.members[donor]
            .disk
            .checkpoint
            .clone()
            .expect("just taken");
        self.members[usize::from(id)].asked_state = None;
        if slot <= self.members[usize::from(id)].executed {
            return;
        }
        let state = self.members[donor].state[..slot.0 as usize].to_vec();
        let member = &mut self.members[usize::from(id)];
        member.state = state;
        member.executed = slot;
        member.disk.checkpoint = Some((slot, summary.clone()));
        self.event(id, Event::Installed { slot, summary });
    }

    pub fn sync(&mut self, id: u16) {
        let member = &mut self.members[usize::from(id)];
        member.sync_repairs(member.disk.unsynced.len());
        let disk = &mut member.disk;
        let mut last = None;
        while let Some((write, what)) = disk.unsynced.pop_front() {
            match what {
                Write::Promise(promise) => disk.promise = Some(promise),
                Write::Record { slot, record } => disk.records.push((slot, record)),
            }
            last = Some(write);
        }
        if let Some(write) = last {
            self.event(id, Event::Persisted(write));
        }
    }

    pub fn submit(&mut self, id: u16, level: Level) -> BatchId {
        self.submit_long(id, level, 0)
    }

    /// The same with this many bytes more.
    pub fn submit_long(&mut self, id: u16, level: Level, more: usize) -> BatchId {
        let batch = BatchId(self.batch_next);
        self.batch_next += 1;
        let session = SessionId {
            owner: 1,
            number: u64::from(id) + 1,
        };
        let request = CommandId {
            session,
            sequence: batch.0,
        };
        let mut payload = batch.0.to_le_bytes().to_vec();
        payload.resize(payload.len() + more, 0);
        self.builder
            .push(request, RequestKind::Command, 0, &payload);
        let bytes = self.builder.finish(self.frontend(id), batch, level);
        let deadline = self.clock.now + MS * 60_000;
        self.event(
            id,
            Event::Submit(Submission {
                id: batch,
                level,
                batch: bytes,
                deadline,
            }),
        );
        batch
    }

    pub fn write(&mut self, id: u16) -> BatchId {
        self.submit(id, Level::Ordered)
    }

    pub fn deliver(&mut self, packet: Packet<P>) {
        let event = if packet.put {
            Event::Put {
                from: packet.from,
                ranges: packet.bytes,
            }
        } else {
            Event::Message {
                from: Peer::Replica(packet.from),
                arrived: self.clock.now,
                message: packet.bytes,
            }
        };
        self.event(packet.to.0, event);
    }

    /// Delivers what no correct replica sends; gives whether it was read.
    pub fn offer(&mut self, packet: &Packet<P>) -> Result<(), EventError> {
        let mut effects = Vec::new();
        let event = Event::Message {
            from: Peer::Replica(packet.from),
            arrived: self.clock.now,
            message: packet.bytes.clone(),
        };
        let driver = self.members[packet.to.index()].driver.as_mut();
        let driver = driver.expect("it runs");
        driver.on_event(event, Surroundings::of(&self.clock), &mut effects)?;
        self.carry_out(packet.to.0, effects);
        Ok(())
    }

    /// Delivers what contradicts something that its receiver knows for certain; gives why that one
    /// stops. It must have executed nothing of it.
    pub fn contradicts(&mut self, packet: &Packet<P>) -> String {
        let mut effects = Vec::new();
        let event = Event::Message {
            from: Peer::Replica(packet.from),
            arrived: self.clock.now,
            message: packet.bytes.clone(),
        };
        let driver = self.members[packet.to.index()].driver.as_mut();
        let driver = driver.expect("it runs");
        driver
            .on_event(event, Surroundings::of(&self.clock), &mut effects)
            .expect("the test sends well-formed bytes");
        driver.on_idle(Surroundings::of(&self.clock), &mut effects);
        let mut reason = None;
        for effect in effects {
            match effect {
                Effect::Halt(why) => reason = reason.or(Some(why)),
                Effect::Execute { .. } | Effect::Unordered { .. } => panic!("it was executed"),
                _ => {}
            }
        }
        let reason = reason.expect("the replica stops");
        assert!(reason.starts_with(CONTRADICTION), "{reason}");
        reason
    }

    fn live(&self) -> Vec<u16> {
        let up = |id: &u16| self.members[usize::from(*id)].driver.is_some();
        (0..self.members.len() as u16).filter(up).collect()
    }

    /// Delivers, syncs and idles until nothing moves. Time stands still.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            for id in self.live() {
                if !self.members[usize::from(id)].slow_disk {
                    self.sync(id);
                }
                if !self.members[usize::from(id)].slow_state {
                    self.transfer(id);
                }
                self.idle(id);
            }
            let writing =
                |member: &Member<P>| !member.slow_disk && !member.disk.unsynced.is_empty();
            if self.network.is_empty() && !self.members.iter().any(writing) {
                return;
            }
            for _ in 0..self.network.len() {
                let Some(packet) = self.network.pop_front() else {
                    break;
                };
                let ends = [packet.from.0, packet.to.0];
                match ends.iter().find_map(|id| self.far.get(id)) {
                    Some(time) => self.late.push((self.clock.now + *time, packet)),
                    None => self.deliver(packet),
                }
            }
        }
        panic!("the group does not come to rest");
    }

    /// Lets time pass, with all timers.
    pub fn run(&mut self, time: Duration) {
        let end = self.clock.now + time;
        loop {
            self.settle();
            let timers = self.members.iter().enumerate().flat_map(|(id, member)| {
                member
                    .timers
                    .iter()
                    .map(move |(key, at)| (*at, id as u16, *key))
            });
            let next = timers.min().filter(|(at, ..)| *at <= end);
            let wakes = self.members.iter().filter_map(|member| member.wake);
            let wake = wakes.min().filter(|at| *at <= end && *at > self.clock.now);
            let first = next.map(|(at, ..)| at).into_iter().chain(wake).min();
            let late = self.late.iter().map(|(at, _)| *at).min();
            if let Some(at) = late.filter(|at| *at <= first.unwrap_or(end)) {
                self.clock.now = self.clock.now.max(at);
                let (due, left) = core::mem::take(&mut self.late)
                    .into_iter()
                    .partition(|(of, _)| *of <= at);
                self.late = left;
                let due: Vec<(Time, Packet<P>)> = due;
                due.into_iter().for_each(|(_, packet)| self.deliver(packet));
                continue;
            }
            match (next, wake) {
                (timer, Some(wake)) if timer.is_none_or(|(at, ..)| wake < at) => {
                    self.clock.now = wake;
                }
                (Some((at, id, key)), _) => {
                    self.clock.now = self.clock.now.max(at);
                    self.members[usize::from(id)].timers.remove(&key);
                    self.event(id, Event::Timer(key));
                }
                _ => {
                    self.clock.now = end;
                    return;
                }
            }
        }
    }

    /// Fires one of the replica's own timers, set or not.
    pub fn fire(&mut self, id: u16, timer: P::Timer) {
        let key = TimerKey {
            owner: TimerOwner::Replica,
            timer: timer.into(),
            generation: 0,
        };
        self.members[usize::from(id)].timers.remove(&key);
        self.event(id, Event::Timer(key));
    }

    pub fn status(&self, id: u16) -> Status {
        self.members[usize::from(id)]
            .driver
            .as_ref()
            .expect("it runs")
            .status(GroupId(0))
    }

    pub fn replica(&self, id: u16) -> &P {
        self.members[usize::from(id)]
            .driver
            .as_ref()
            .expect("it runs")
            .replica()
    }

    pub fn leaders(&self) -> Vec<u16> {
        self.live()
            .into_iter()
            .filter(|id| self.status(*id).role == "leader")
            .collect()
    }

    /// The members, as these replicas know them alike.
    pub fn view(&self, ids: &[u16]) -> ReplicaSet {
        let views = ids.iter().map(|id| self.members[usize::from(*id)].view);
        let mut views: Vec<_> = views.map(|view| view.expect("told")).collect();
        views.dedup();
        assert_eq!(views.len(), 1, "{views:?}");
        views[0].1
    }

    pub fn answered(&self, id: u16, batch: BatchId) -> bool {
        matches!(self.done.get(&(id, batch)), Some(Outcome::Results(_)))
    }

    pub fn isolate(&mut self, id: u16) {
        for other in 0..self.members.len() as u16 {
            if other != id {
                self.cut.insert((id, other));
                self.cut.insert((other, id));
            }
        }
    }

    /// The connection between two breaks with all that is on it, and is made again.
    pub fn reset(&mut self, a: u16, b: u16) {
        let on_it = |packet: &Packet<P>| [(a, b), (b, a)].contains(&(packet.from.0, packet.to.0));
        self.network.retain(|packet| !on_it(packet));
        for (at, peer) in [(a, b), (b, a)] {
            let incarnation = self.members[usize::from(peer)].incarnation;
            for link in [Link::Reset, Link::Up { incarnation }] {
                self.event(at, Event::Link(Peer::Replica(ReplicaId(peer)), link));
            }
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// For so long nothing of this replica comes: all waits behind something long, whose parts
    /// come. Returns whether every replica's view of the leader is unchanged, and makes the links
    /// again.
    pub fn wait_behind_bulk(&mut self, from: u16, time: Duration) -> bool {
        let seen = |group: &Self| {
            let each = group.live().into_iter().map(|id| {
                let status = group.status(id);
                (status.role, status.leader, status.view)
            });
            each.collect::<Vec<_>>()
        };
        let before = seen(self);
        let others: Vec<u16> = self.live().into_iter().filter(|id| *id != from).collect();
        self.cut.extend(others.iter().map(|to| (from, *to)));
        let (step, peer) = (MS * 20, Peer::Replica(ReplicaId(from)));
        for _ in 0..time.as_millis() / step.as_millis() {
            for to in &others {
                self.event(*to, Event::Link(peer, Link::Arriving));
            }
            self.run(step);
        }
        let after = seen(self);
        self.heal();
        for to in others {
            self.reset(from, to);
        }
        before == after
    }

    /// The names of the executed batches of a replica.
    pub fn batches(&self, id: u16) -> Vec<BatchId> {
        let state = &self.members[usize::from(id)].state;
        state
            .iter()
            .filter_map(|batch| Some(BatchView::new(batch).ok()?.id()))
            .collect()
    }

    pub fn marked(&self, branch: &str) -> u32 {
        self.marks.get(branch).copied().unwrap_or(0)
    }
}

/// Fails unless all live replicas have executed the same, at least `slots` slots.
pub fn assert_converged<P: Protocol>(group: &Group<P>, slots: u64) {
    let live = group.live();
    for id in &live {
        let member = &group.members[usize::from(*id)];
        assert!(
            member.executed >= Slot(slots),
            "replica {id} is at {}",
            member.executed
        );
        assert_eq!(
            member.state,
            group.members[usize::from(live[0])].state,
            "replica {id}"
        );
    }
}

/// Encodings of what travels and of what is kept: each reads back as it was, and all of them
/// together have a hash that changes with any byte. Other versions read them, so none may.
#[derive(Default)]
pub struct Encodings(Vec<u8>);

impl Encodings {
    pub fn read_back<T: Wire + PartialEq + Debug>(&mut self, value: &T) -> Bytes {
        let bytes = value.encode_to_bytes();
        assert_eq!(T::decode_all(bytes.clone()).as_ref(), Ok(value));
        self.0.extend_from_slice(&bytes);
        bytes
    }

    /// The same, where no part of it means anything; changed bytes are refused or read.
    pub fn check<T: Wire + PartialEq + Debug>(&mut self, value: &T) {
        let bytes = self.read_back(value);
        for cut in 0..bytes.len() {
            let read = T::decode_all(bytes.slice(..cut));
            assert!(read.is_err(), "{value:?} at {cut}");
        }
        for at in 0..bytes.len() {
            for mask in [1, 0x80, 0xff] {
                let mut bad = bytes.to_vec();
                bad[at] ^= mask;
                let _ = T::decode_all(Bytes::from(bad));
            }
        }
    }

    /// The messages between frontends and replicas, which are the first of each protocol.
    pub fn check_client_messages<M>(&mut self, batch: &'static [u8], id: u64)
    where
        M: RequestMessage + Wire + PartialEq + Debug,
    {
        self.check(&M::request(Request {
            level: Level::Linearizable,
            batch: Bytes::from_static(batch),
        }));
        self.check(&M::receipt(Receipt {
            batch: BatchId(id),
            taken: Taken::Busy,
        }));
    }

    pub fn hash(&self) -> u128 {
        quintet_replica::digest::hash_wide(&self.0)
    }
}
