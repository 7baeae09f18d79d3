//! One replica of a stage: its node, its disk and its timers.
//!
//! ```text
//!   frames, links, timers, submissions, syncs ──► Node ──► frames, journal writes, timers …
//!                                                  │
//!                              start ◄── disk ◄────┘ crash keeps what is durable, and as much of
//!                                                    the rest as the script says
//! ```

use super::{
    BESIDE, EPOCH, Event, KEYS, Stage, clients::Request, neighbour::process_of, wires::Wires,
};
use crate::clock::SECOND;
use crate::stored_epoch::{self, StoredEpoch};
use crate::{
    checkers::speculated::{Run, Speculated},
    machine::{Executed as Recorded, Record, Recorder, Registers},
};
use quintet_replica::{
    Boot, Bytes, ClientFrame, ClockLimit, ClockReading, Control, Deadline, Descriptor, Durability,
    Entry, Epoch, EpochNumber, Executed, ExecutorLimits, FrameError, FrontendId, Incarnation,
    Injected, Input, Link, Node, NodeSetup, Output, PersistId, Recipients, RecoveredBytes,
    ReplicaId, SealError, Slot, SnapshotInfo, Submission, Time, TimerKey, TimerOwner, Wake,
    World as Outside, Write, journal::JournalOrder, put_frame, read_client_frame,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::PoisonError,
    time::Duration,
};

/// Frontends embedded in replicas are numbered from here, each run with a new one.
const EMBEDDED: u64 = 1 << 30;

/// A write that is not durable yet.
#[derive(Debug)]
struct Pending {
    /// The number in the journal.
    number: PersistId,
    part: usize,
    write: Write,
}

/// A disk that does what it is told.
#[derive(Debug)]
pub(crate) struct Disk {
    promise: Option<Bytes>,
    pub records: Vec<(Slot, Bytes)>,
    /// Written and not yet durable, by all parts of the process.
    pending: VecDeque<Pending>,
    order: JournalOrder,
    /// A sync takes this long.
    pub latency: u64,
    /// Nothing becomes durable unless told to.
    pub held: bool,
    syncing: bool,
    is_damaged: bool,
    snapshots: Vec<(SnapshotInfo, Bytes)>,
    writing: Option<(Executed, bool, Vec<u8>)>,
    pub records_max: usize,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            promise: None,
            records: Vec::new(),
            pending: VecDeque::new(),
            order: JournalOrder::new(1),
            latency: 100_000,
            held: false,
            syncing: false,
            is_damaged: false,
            snapshots: Vec::new(),
            writing: None,
            records_max: 0,
        }
    }
}

impl Disk {
    fn keep(&mut self, write: Write) {
        match write {
            Write::Promise(promise) => self.promise = Some(promise),
            Write::Record { slot, record } => {
                self.records.push((slot, record));
                self.records_max = self.records_max.max(self.records.len());
            }
        }
    }

    pub fn snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Journal and snapshots cannot be read any more, as the next start finds.
    pub fn damage(&mut self) {
        self.records.clear();
        self.snapshots.clear();
        self.is_damaged = true;
    }
}

/// See the module.
pub(crate) struct Host {
    pub node: Option<Node>,
    pub boot: u32,
    pub incarnation: Incarnation,
    pub disk: Disk,
    /// It stands still: what comes waits.
    pub paused: bool,
    pub(super) held: Vec<Event>,
    /// How far its synchronised clock is off.
    pub clock: i64,
    /// How far what it is told is off: no further than a majority's clocks allow.
    pub told: i64,
    /// Why it refused to continue.
    pub halted: Option<String>,
    /// From which slot on who takes part.
    pub route: (Slot, Vec<usize>),
    pub(super) open: BTreeMap<u64, Vec<Request>>,
    pub(super) batches: u64,
    started: u64,
    timers: BTreeMap<TimerKey, Deadline>,
    idle_at: u64,
    touched: bool,
    record: Record,
    executed: Slot,
    pub(super) epoch_shown: EpochNumber,
    /// Executed and not final.
    speculated: Speculated,
    pub(super) epoch: StoredEpoch,
    /// Its directory was never started from.
    is_new: bool,
    /// The protocol of its epoch.
    pub(super) entry: Option<Entry>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            node: None,
            boot: 0,
            incarnation: Incarnation(1),
            disk: Disk::default(),
            paused: false,
            held: Vec::new(),
            clock: 0,
            told: 0,
            halted: None,
            route: (Slot(0), Vec::new()),
            open: BTreeMap::new(),
            batches: 0,
            started: 0,
            timers: BTreeMap::new(),
            idle_at: u64::MAX,
            touched: false,
            record: Record::default(),
            executed: Slot(0),
            epoch_shown: EpochNumber(1),
            speculated: Speculated::default(),
            epoch: None,
            is_new: true,
            entry: None,
        }
    }
}

struct View<'a> {
    now: Time,
    clock: u64,
    disk: &'a Disk,
    wires: &'a Wires,
    place: usize,
}

impl Outside for View<'_> {
    fn now(&self) -> Time {
        self.now
    }
    fn clock(&self) -> ClockReading {
        let (now, error) = (self.clock, 1_000_000);
        ClockReading {
            earliest: now - error,
            now,
            latest: now + error,
            deviation: error / 3,
        }
    }
    fn room(&self, peer: ReplicaId) -> usize {
        self.wires.room(self.place, peer.index())
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.disk.snapshots.last().map(|(info, _)| *info)
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        if let Some((in_progress, true, written)) = &self.disk.writing
            && *in_progress == id
        {
            let from = usize::try_from(offset).ok()?.min(written.len());
            let end = written.len().min(from + length);
            return Some(Bytes::copy_from_slice(&written[from..end]));
        }
        let (_, bytes) = self.disk.snapshots.iter().find(|(info, _)| info.id == id)?;
        let from = usize::try_from(offset).ok()?.min(bytes.len());
        Some(bytes.slice(from..bytes.len().min(from + length)))
    }
}

impl Host {
    fn due(&self, deadline: Deadline) -> u64 {
        match deadline {
            Deadline::At(Time::NEVER) => u64::MAX,
            Deadline::At(at) => self.started.saturating_add(at.0),
            Deadline::Clock(at) => {
                let at = i128::from(at) - i128::from(EPOCH) - i128::from(self.told);
                u64::try_from(at).unwrap_or(0)
            }
        }
    }

    /// When its next timer fires.
    pub(super) fn timer_due(&self) -> Option<u64> {
        if self.paused || self.node.is_none() {
            return None;
        }
        let due = self.timers.values().map(|deadline| self.due(*deadline));
        due.min().filter(|at| *at < u64::MAX)
    }

    pub(super) fn next(&self) -> Option<u64> {
        if self.paused || self.node.is_none() {
            return None;
        }
        let idle = Some(self.idle_at).filter(|at| *at < u64::MAX);
        self.timer_due().into_iter().chain(idle).min()
    }

    pub(super) fn wants_idle(&self, now: u64) -> bool {
        self.node.is_some() && !self.paused && (self.touched || self.idle_at <= now)
    }

    /// Its own monotonic time.
    pub(super) const fn local(&self, now: u64) -> Time {
        Time(now - self.started)
    }

    /// How far execution has come.
    pub fn executed(&self) -> Executed {
        self.node
            .as_ref()
            .map_or(Executed::default(), Node::executed)
    }
}

impl Stage {
    /// Starts a replica, for the first time or again.
    pub fn start(&mut self, index: usize) {
        let parts = self.parts_of(index);
        let own = &mut self.hosts[index];
        let damaged = own.disk.is_damaged;
        let bug = Injected::of(&self.setting.options);
        own.disk.order = JournalOrder::new(parts.len()).with_injected(bug);
        for part in &parts {
            self.hosts[*part].boot += 1;
            self.hosts[*part].disk.is_damaged = damaged;
        }
        for part in parts {
            self.start_part(part);
        }
        for other in (0..self.places()).filter(|other| *other != index) {
            if self.hosts.get(other).is_none_or(|host| host.node.is_some()) {
                self.connect(index, other);
            }
        }
        if self.setting.neighbour.is_some() {
            self.ask_neighbour(index);
        }
    }

    fn start_part(&mut self, index: usize) {
        let kept = self.descriptor_of(index).durability;
        let seed = self.random.draw();
        self.frontend_next += 1;
        let frontend = FrontendId(EMBEDDED + self.frontend_next);
        let host = &mut self.hosts[index];
        assert!(host.node.is_none(), "stopped before it starts");
        let first_boot = std::mem::take(&mut host.is_new);
        let damaged = std::mem::take(&mut host.disk.is_damaged);
        let state_lost = damaged || kept == Durability::Memory && !first_boot;
        if state_lost {
            host.incarnation.0 += 1;
            host.disk.records.clear();
            host.disk.snapshots.clear();
        }
        let newest = host.disk.snapshots.last().map(|(_, bytes)| bytes);
        stored_epoch::find_newer(&mut host.epoch, newest);
        let (epoch, snapshots) = (&host.epoch, &mut host.disk.snapshots);
        snapshots.retain(|(info, bytes)| !stored_epoch::leads_away(epoch, info.id, bytes));
        let base = (host.epoch.as_ref()).map_or_else(Executed::default, |(_, base)| *base);
        (host.started, host.idle_at, host.touched) = (self.now, u64::MAX, true);
        (host.halted, host.paused) = (None, false);
        let descriptor = self.descriptor_of(index);
        let (epoch, entry) = self.epoch_of(&descriptor);
        let group = self.group_of(index);
        let host = &mut self.hosts[index];
        host.entry = Some(entry);
        let setup = NodeSetup {
            id: ReplicaId(process_of(index) as u16),
            incarnation: host.incarnation,
            boot: Boot(host.boot.into()),
            group,
            epoch,
            durability: descriptor.durability,
            seed,
            frontend,
            snapshot_bytes_min: self.setting.snapshot_bytes_min,
            limits: ExecutorLimits {
                session_lifetime: Duration::from_nanos(3600 * SECOND),
                disk_hung_after: Duration::ZERO,
                restore_step: self.setting.restore_step,
                bridge_bytes_min: self.setting.bridge_bytes_min,
                pace_beat: self.setting.pace_beat,
                ..ExecutorLimits::default()
            },
        };
        let machine = Registers::new(KEYS, self.setting.snapshot_padding, 4096);
        let machine = Box::new(Recorder::new(Box::new(machine), host.record.clone()));
        let recovered = RecoveredBytes {
            first_boot,
            state_lost,
            promise: host.disk.promise.clone(),
            checkpoint: None,
            records: host.disk.records.clone(),
        };
        let mut node = match Node::among(descriptor.voters(), setup, &entry, machine) {
            Ok(node) => node.with_descriptor(descriptor.encode()).with_base(base),
            Err(error) => return self.violate("options", error.to_string()),
        };
        let mut outputs = Vec::new();
        let started = node.start(recovered, &self.view(index), &mut outputs);
        if let Err(error) = started {
            return self.violate("recovery", format!("replica {index}: {error}"));
        }
        self.hosts[index].executed = node.executed().slot;
        let process = process_of(index);
        let monotone = &mut self.checked(index).monotone[process];
        let checked = monotone.restarted_node(process as u16, &node);
        self.demand(checked);
        self.hosts[index].node = Some(node);
        self.say(|| format!("{index}: starts"));
        self.after_input(index);
        self.carry_out(index, outputs);
    }

    /// Another replica starts in this one's place, whose disk is lost: with nothing but the epoch
    /// of a member that is in it.
    pub fn join(&mut self, index: usize, from: usize) {
        self.crash(index);
        self.say(|| format!("{index}: is another replica from now on"));
        let host = Host {
            boot: self.hosts[index].boot,
            clock: self.hosts[index].clock,
            told: self.hosts[index].told,
            epoch: self.hosts[from].epoch.clone(),
            ..Host::default()
        };
        self.hosts[index] = host;
        self.own.monotone[index] = crate::checkers::monotone::Monotone::default();
        self.start(index);
    }

    /// An epoch as a node is told of it, and its protocol.
    fn epoch_of(&self, descriptor: &Descriptor) -> (Epoch, Entry) {
        let epoch = stored_epoch::later(descriptor, &self.first_epoch());
        let first = match self.setting.neighbour {
            Some(entry) if entry.info.name == descriptor.protocol => entry,
            _ => self.setting.entry,
        };
        let entry = stored_epoch::protocol(descriptor, first);
        (epoch, entry)
    }

    /// The replica is in another epoch from now on, whatever happens.
    fn begin_epoch(&mut self, index: usize, descriptor: Bytes, base: Executed) {
        let Ok(descriptor) = Descriptor::decode(descriptor) else {
            return self.violate("epochs", format!("{index}: an epoch that cannot be read"));
        };
        let (epoch, entry) = self.epoch_of(&descriptor);
        self.say(|| {
            let (number, protocol) = (descriptor.number, &descriptor.protocol);
            format!("{index}: begins epoch {number}, {protocol}, from {base:?} on")
        });
        let promised = [self.descriptor_of(index).durability, descriptor.durability];
        let saved = self.view(index).snapshot_newest();
        let is_held = saved.is_some_and(|info| info.id.position >= base.position);
        if promised.contains(&Durability::Disk) && !is_held {
            let what = format!("{index} begins an epoch whose first state is in memory only");
            return self.violate("base held", what);
        }
        let seed = self.random.draw();
        let host = &mut self.hosts[index];
        if stored_epoch::number(&host.epoch) < descriptor.number {
            host.disk.promise = None;
            host.disk.records.clear();
        }
        host.disk.pending.retain(|pending| pending.part != index);
        host.epoch = Some((descriptor, base));
        host.entry = Some(entry);
        host.touched = true;
        let begun = self.call(index, |node, view, outputs| {
            node.begin_epoch(&entry, epoch, seed, view, outputs)
        });
        if let Some(Err(error)) = begun {
            self.violate("epochs", format!("{index}: {error}"));
        }
    }

    /// A replica's own clock, which begins with its process.
    pub fn local_time(&self, index: usize) -> Time {
        Time(self.now - self.hosts[index].started)
    }

    fn view(&self, index: usize) -> View<'_> {
        let host = &self.hosts[index];
        View {
            now: self.local_time(index),
            clock: (EPOCH + self.now).saturating_add_signed(host.told),
            disk: &host.disk,
            wires: &self.wires,
            place: process_of(index),
        }
    }

    /// The process dies. Of what was not durable, the first `kept` writes reach the disk.
    pub fn crash_keeping(&mut self, index: usize, kept: usize, quietly: bool) {
        if self.hosts[index].node.is_none() {
            return;
        }
        let pending = std::mem::take(&mut self.hosts[index].disk.pending);
        let lost = pending.len().saturating_sub(kept);
        for Pending { part, write, .. } in pending.into_iter().take(kept) {
            self.hosts[part].disk.keep(write);
        }
        let open = self.kill(index);
        if self.setting.neighbour.is_some() {
            self.kill(index + BESIDE);
            self.neighbour_done(index, None);
        }
        self.say(|| format!("{index}: crashes, {lost} writes lost"));
        self.lose_links(index, quietly);
        for requests in open.into_values() {
            self.left_uncertain(&requests);
        }
    }

    /// A part of a process is gone; gives what it has not answered.
    fn kill(&mut self, index: usize) -> BTreeMap<u64, Vec<Request>> {
        let host = &mut self.hosts[index];
        host.node = None;
        (host.disk.syncing, host.disk.writing) = (false, None);
        host.timers.clear();
        host.held.clear();
        host.speculated.clear();
        (host.idle_at, host.paused) = (u64::MAX, false);
        host.record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        std::mem::take(&mut host.open)
    }

    /// The process dies with all that was not durable.
    pub fn crash(&mut self, index: usize) {
        self.crash_keeping(index, 0, false);
    }

    /// Inputs for this replica wait until it continues.
    pub fn pause(&mut self, index: usize) {
        for part in self.parts_of(index) {
            self.hosts[part].paused = true;
        }
    }

    /// It continues: first with what it was about to do, then with what has come meanwhile.
    pub fn resume(&mut self, index: usize) {
        for part in self.parts_of(index) {
            self.hosts[part].paused = false;
            if self.hosts[part].touched {
                self.idle(part);
            }
            for event in std::mem::take(&mut self.hosts[part].held) {
                self.at(self.now, event);
            }
        }
    }

    /// The node offers this as the next epoch.
    pub(super) fn offer(&mut self, index: usize, next: &Bytes) -> Result<(), SealError> {
        self.hosts[index].touched = true;
        let offered = self.call(index, |node, view, outputs| {
            node.offer_seal(next, view, outputs)
        });
        offered.unwrap_or(Ok(()))
    }

    /// A change is wanted: whether all members that run have saved their state ahead.
    pub fn prepare(&mut self, index: usize) -> bool {
        let next = self.descriptor_of(index).durability;
        self.hosts[index].touched = true;
        let prepared = self.call(index, |node, view, outputs| {
            node.prepare_change(next, view, outputs)
        });
        prepared.unwrap_or(false)
    }

    /// The snapshot that is being written cannot be; false when there is none.
    pub fn fail_snapshot(&mut self, index: usize) -> bool {
        let fails = self.hosts[index].disk.writing.take().is_some();
        if fails {
            self.input(index, Input::SnapshotFailed);
        }
        fails
    }

    /// An instruction to the protocol.
    pub fn control(&mut self, index: usize, control: Control) {
        self.input(index, Input::Control(control));
    }

    /// How far the log's time is ahead of a clock that is right, in nanoseconds.
    pub fn log_ahead(&self) -> i64 {
        let right = (EPOCH + self.now) as i64;
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let ahead = nodes.map(|node| node.log_time().0 as i64 - right);
        ahead.max().unwrap_or(i64::MIN)
    }

    /// The synchronised clock of a replica is off by so much from now on.
    pub fn set_clock(&mut self, index: usize, offset: i64) {
        self.hosts[index].clock = offset;
        let mut clocks: Vec<u64> = (self.hosts.iter())
            .map(|host| EPOCH.saturating_add_signed(host.clock))
            .collect();
        let mut limit = ClockLimit::default();
        limit.note(Time(0), &mut clocks, self.hosts.len());
        for index in 0..self.hosts.len() {
            let clock = EPOCH.saturating_add_signed(self.hosts[index].clock);
            let told = clock.min(limit.at(Time(0))) as i64 - EPOCH as i64;
            for part in self.parts_of(index) {
                self.hosts[part].told = told;
            }
        }
    }

    pub(super) fn give_frame(&mut self, to: usize, from: usize, frame: Bytes) {
        if self.hosts[to].node.is_none() {
            return;
        }
        let peer = self.peer(from);
        if self.log.is_some() {
            let text = self.describe_frame(&frame);
            self.say(|| format!("{to}: gets {text} from {from}"));
        }
        let arrived = Time(self.now - self.hosts[to].started);
        self.input(
            to,
            Input::Frame {
                from: peer,
                arrived,
                frame,
            },
        );
    }

    pub(super) fn give_link(&mut self, to: usize, peer: usize, link: Link) {
        let peer = self.peer(peer);
        self.input(to, Input::Link(peer, link));
    }

    pub(super) fn submit(&mut self, to: usize, submission: Submission) {
        self.input(to, Input::Submit(submission));
    }

    /// The timers that are set, by when they fire.
    pub fn timers(&self, index: usize) -> Vec<(u64, TimerKey)> {
        let host = &self.hosts[index];
        let mut timers: Vec<_> = (host.timers.iter())
            .map(|(key, deadline)| (host.due(*deadline), *key))
            .collect();
        timers.sort_unstable();
        timers
    }

    pub(super) fn fire_due(&mut self, index: usize) {
        if let Some((_, key)) = self.timers(index).first().copied() {
            self.fire(index, key);
        }
    }

    /// Fires a timer, whether it is set or not.
    pub fn fire(&mut self, index: usize, key: TimerKey) {
        self.hosts[index].timers.remove(&key);
        self.input(index, Input::Timer(key));
    }

    fn input(&mut self, index: usize, input: Input) {
        let frame = matches!(input, Input::Frame { .. });
        self.hosts[index].touched = true;
        let refused = self.call(index, |node, view, outputs| {
            node.on_input(input, view, outputs)
        });
        // Of another epoch: that is told, and no more is made of it.
        if let Some(Err(error)) = refused
            && frame
            && !matches!(error, FrameError::Epoch { .. })
        {
            self.violate(
                "codec",
                format!("replica {index} refused a peer's frame: {error}"),
            );
        }
    }

    pub(super) fn idle(&mut self, index: usize) {
        self.hosts[index].touched = false;
        self.hosts[index].idle_at = u64::MAX;
        let Some(wake) = self.call(index, Node::on_idle) else {
            return;
        };
        let host = &mut self.hosts[index];
        host.idle_at = match wake {
            Wake::Spin => self.now + 10_000,
            Wake::At(at) => host.due(Deadline::At(at)).max(self.now + 1_000),
            Wake::Sleep => u64::MAX,
        };
    }

    fn call<R>(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut Node, &dyn Outside, &mut Vec<Output>) -> R,
    ) -> Option<R> {
        let mut node = self.hosts[index].node.take()?;
        let mut outputs = Vec::new();
        let result = call(&mut node, &self.view(index), &mut outputs);
        self.hosts[index].node = Some(node);
        self.after_input(index);
        self.carry_out(index, outputs);
        Some(result)
    }

    fn after_input(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let Some(node) = &mut host.node else { return };
        node.assert_invariants();
        let executed = node.executed().slot;
        let entered = host.epoch_shown != node.epoch();
        let moved = executed != host.executed || entered;
        host.executed = executed;
        host.epoch_shown = node.epoch();
        let stable = match node.speculates() {
            true => node.stable(),
            false => executed,
        };
        // The state of a replica that follows is none.
        let follows = node.is_between_epochs() && !entered;
        let digest = (moved && !follows).then(|| node.state_digest());
        let by = process_of(index) as u16;
        let group = match index < BESIDE {
            true => &mut self.own,
            false => &mut self.beside,
        };
        let shown = group.monotone[usize::from(by)].shows_node(by, node);
        let shown = shown.and_then(|()| group.past_seal.shows(by, node));
        let shown = shown.and_then(|()| group.past_seal.shows_state(by, node));
        let speculates = node.speculates();
        self.demand(shown);
        if speculates || !self.hosts[index].speculated.is_empty() {
            self.check_speculated(index, executed, stable, digest);
            if speculates {
                return;
            }
        }
        if moved
            || self.hosts[index]
                .node
                .as_ref()
                .is_some_and(|node| !node.is_fetching())
        {
            // Every execution is checked, though the node should not report that it happened.
            self.check_executed(index);
        }
        if let Some(digest) = digest {
            let epoch = self.hosts[index].epoch_shown;
            let states = &mut self.checked(index).states;
            let checked = states.after(by, epoch, executed.0, digest);
            self.demand(checked);
        }
    }

    fn check_executed(&mut self, index: usize) {
        let recorded = self.take_recorded(index);
        self.check_record(index, &recorded);
    }

    fn take_recorded(&self, index: usize) -> Vec<Recorded> {
        let record = &self.hosts[index].record;
        std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Executions that are not final yet are compared when they are.
    fn check_speculated(&mut self, index: usize, slot: Slot, stable: Slot, digest: Option<u128>) {
        let record = self.take_recorded(index);
        let Some(node) = &mut self.hosts[index].node else {
            return;
        };
        if digest.is_some() || !record.is_empty() {
            let state = digest.unwrap_or_else(|| node.state_digest());
            let run = Run {
                epoch: node.epoch(),
                slot,
                record,
                state: Some(state),
                queries: Vec::new(),
            };
            self.hosts[index].speculated.executed(run);
        }
        while let Some(run) = self.hosts[index].speculated.ready(stable) {
            self.check_record(index, &run.record);
            if let Some(state) = run.state {
                let states = &mut self.checked(index).states;
                let by = process_of(index) as u16;
                let checked = states.after(by, run.epoch, run.slot.0, state);
                self.demand(checked);
            }
        }
    }

    fn carry_out(&mut self, index: usize, outputs: Vec<Output>) {
        for output in outputs {
            self.carry_out_one(index, output);
        }
    }

    fn carry_out_one(&mut self, index: usize, output: Output) {
        match output {
            Output::Send {
                to: Recipients::Replicas(to),
                lane,
                frame,
            } => {
                let frame = frame.into_bytes();
                if self.log.is_some() {
                    let names: Vec<String> = to.iter().map(|to| to.0.to_string()).collect();
                    let text = self.describe_frame(&frame);
                    self.say(|| format!("{index}: sends {text} to {}", names.join(",")));
                }
                for to in to.iter() {
                    self.transmit(process_of(index), to.index(), lane, frame.clone());
                }
            }
            Output::Send {
                to: Recipients::Frontend(frontend),
                lane,
                frame,
            } => {
                let from = process_of(index);
                if let Some(to) = self.place_of(frontend).filter(|to| *to != from) {
                    self.transmit(from, to, lane, frame.into_bytes());
                }
            }
            Output::Put { to, ranges } => {
                self.say(|| format!("{index}: puts {} bytes", ranges.len()));
                let (group, epoch) = (self.group_of(index), self.hosts[index].epoch_shown);
                let frame = put_frame(group, epoch, ranges).into_bytes();
                for to in to.iter() {
                    let lane = quintet_replica::Lane::Control;
                    self.transmit(process_of(index), to.index(), lane, frame.clone());
                }
            }
            Output::Journal { id, write } => self.journal(index, id, write),
            Output::Trim { below } => {
                self.say(|| format!("{index}: trims below {below}"));
                self.mark("log trimmed");
                self.hosts[index]
                    .disk
                    .records
                    .retain(|(slot, _)| *slot >= below);
            }
            Output::SetTimer { key, at } => {
                self.hosts[index].timers.insert(key, at);
            }
            Output::CancelTimer { key } => {
                self.hosts[index].timers.remove(&key);
            }
            Output::SnapshotBegin { id, fetched, .. } => {
                self.hosts[index].disk.writing = Some((id, fetched, Vec::new()));
            }
            Output::SnapshotAppend(bytes) => {
                let host = &mut self.hosts[index];
                if let Some((.., written)) = &mut host.disk.writing {
                    written.extend_from_slice(&bytes);
                    let (boot, bytes) = (host.boot, written.len() as u64);
                    self.at(
                        self.now,
                        Event::SnapshotWritten {
                            host: index,
                            boot,
                            bytes,
                        },
                    );
                }
            }
            Output::SnapshotTruncate(length) => {
                if let Some((.., written)) = &mut self.hosts[index].disk.writing {
                    written.truncate(length as usize);
                }
            }
            Output::SnapshotBridges { base } => {
                if let Some((id, ..)) = &mut self.hosts[index].disk.writing {
                    *id = base;
                }
            }
            Output::SnapshotFinish => {
                let host = &self.hosts[index];
                if let Some((id, ..)) = &host.disk.writing {
                    let (boot, id, at) = (host.boot, *id, self.now + host.disk.latency);
                    self.at(
                        at,
                        Event::SnapshotSaved {
                            host: index,
                            boot,
                            id,
                        },
                    );
                }
            }
            Output::SnapshotAbandon => self.hosts[index].disk.writing = None,
            Output::Done { batch, outcome } => {
                if let Some(requests) = self.hosts[index].open.remove(&batch.0) {
                    if index >= BESIDE {
                        return self.neighbour_done(index, Some(&outcome));
                    }
                    self.finish(&requests, outcome);
                }
            }
            Output::EpochBegins {
                descriptor, base, ..
            } => self.begin_epoch(index, descriptor, base),
            Output::Recovered | Output::Digest(_) => {}
            Output::Diverged(found) => self.violate("digests", format!("{index}: {found}")),
            Output::Route { agreed: false, .. } => {}
            Output::Route { slot, members, .. } => {
                let members: Vec<usize> = members.iter().map(|(id, _)| id.index()).collect();
                self.say(|| format!("{index}: route from {slot} on is {members:?}"));
                self.hosts[index].route = (slot, members);
            }
            Output::Mark(branch) => {
                self.say(|| format!("{index}: {branch}"));
                self.mark(branch);
            }
            // No disk hangs here.
            Output::BreakLinks => {}
            Output::Halt(_, reason) if index >= BESIDE => {
                let what = format!("the neighbour at {index} halts: {reason}");
                self.violate("neighbour", what);
            }
            Output::Halt(_, reason) => {
                self.say(|| format!("{index}: HALTS: {reason}"));
                self.hosts[index].halted = Some(reason);
                self.crash(index);
            }
        }
    }

    fn journal(&mut self, index: usize, id: PersistId, write: Write) {
        let what = match &write {
            Write::Promise(_) => String::from("a promise"),
            Write::Record { slot, .. } => format!("a record for {slot}"),
        };
        self.say(|| format!("{index}: writes {what}"));
        let host = &mut self.hosts[index];
        if matches!(write, Write::Promise(_)) {
            let view = host
                .node
                .as_ref()
                .map_or(0, |node| node.protocol_status().view);
            let (now, process) = (self.now, process_of(index));
            self.checked(index).monotone[process].promises(id, now, view);
        }
        let (process, group) = (process_of(index), self.index_of(index));
        let disk = &mut self.hosts[process].disk;
        let number = disk.order.assign(group, id);
        disk.pending.push_back(Pending {
            number,
            part: index,
            write,
        });
        self.begin_sync(process);
    }

    fn begin_sync(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if host.disk.syncing || host.disk.held {
            return;
        }
        let Some(Pending { number: upto, .. }) = host.disk.pending.back() else {
            return;
        };
        let (upto, boot) = (*upto, host.boot);
        let latency = if self.setting.by_hand {
            0
        } else {
            host.disk.latency
        };
        host.disk.syncing = true;
        self.at(
            self.now + latency,
            Event::Synced {
                host: index,
                boot,
                upto,
            },
        );
    }

    /// The disk continues by itself, or waits for [`Self::sync`].
    pub fn hold_disk(&mut self, index: usize, held: bool) {
        self.hosts[index].disk.held = held;
        if !held {
            self.begin_sync(index);
        }
    }

    /// By hand: the first `count` writes become durable now.
    pub fn sync(&mut self, index: usize, count: usize) {
        let host = &self.hosts[index];
        let last = count.min(host.disk.pending.len()).checked_sub(1);
        if let Some(pending) = last.and_then(|last| host.disk.pending.get(last)) {
            let (boot, upto) = (host.boot, pending.number);
            self.on_synced(index, boot, upto);
        }
    }

    pub(super) fn on_synced(&mut self, index: usize, boot: u32, upto: PersistId) {
        let host = &mut self.hosts[index];
        if host.boot != boot || host.node.is_none() {
            return;
        }
        host.disk.syncing = false;
        let durable = |pending: &Pending| pending.number <= upto;
        while self.hosts[index].disk.pending.front().is_some_and(durable) {
            if let Some(Pending { part, write, .. }) = self.hosts[index].disk.pending.pop_front() {
                self.hosts[part].disk.keep(write);
            }
        }
        let told = self.hosts[index].disk.order.durable(upto);
        for (group, upto) in told {
            let mut parts = self.parts_of(index).into_iter();
            if let Some(part) = parts.find(|part| self.index_of(*part) == group) {
                self.checked(part).monotone[index].durable(upto);
                self.on_persisted(part, boot, upto);
            }
        }
        self.begin_sync(index);
    }

    pub(super) fn on_persisted(&mut self, index: usize, boot: u32, upto: PersistId) {
        let host = &mut self.hosts[index];
        if host.boot != boot || host.node.is_none() {
            return;
        }
        if host.paused {
            // Durable, and not yet told.
            let event = Event::Persisted {
                host: index,
                boot,
                upto,
            };
            host.held.push(event);
            return;
        }
        self.input(index, Input::Persisted(upto));
        self.begin_sync(process_of(index));
    }

    pub(super) fn on_snapshot_written(&mut self, index: usize, boot: u32, bytes: u64) {
        let host = &mut self.hosts[index];
        if host.boot == boot && host.node.is_some() {
            if host.paused {
                let event = Event::SnapshotWritten {
                    host: index,
                    boot,
                    bytes,
                };
                return host.held.push(event);
            }
            self.input(index, Input::SnapshotWritten(bytes));
        }
    }

    pub(super) fn on_snapshot_saved(&mut self, index: usize, boot: u32, id: Executed) {
        let host = &mut self.hosts[index];
        if host.boot != boot || host.node.is_none() {
            return;
        }
        if host.paused {
            return host.held.push(Event::SnapshotSaved {
                host: index,
                boot,
                id,
            });
        }
        let ours = |(in_progress, ..): &mut (Executed, bool, Vec<u8>)| *in_progress == id;
        let Some((.., bytes)) = host.disk.writing.take_if(ours) else {
            return;
        };
        let info = SnapshotInfo {
            id,
            length: bytes.len() as u64,
        };
        host.disk.snapshots.retain(|(kept, _)| kept.id != id);
        host.disk.snapshots.push((info, bytes.into()));
        if host.disk.snapshots.len() > 2 {
            host.disk.snapshots.remove(0);
        }
        self.mark("snapshot saved");
        self.say(|| format!("{index}: snapshot of {} is durable", id.slot));
        self.input(index, Input::SnapshotSaved(info));
    }

    /// The place of a frontend.
    fn place_of(&self, frontend: FrontendId) -> Option<usize> {
        let embedded = |host: &Host| {
            host.node
                .as_ref()
                .is_some_and(|node| node.frontend() == frontend)
        };
        if let Some(host) = self.hosts.iter().position(embedded) {
            return Some(host);
        }
        if let Some(host) = self.hosts.beside().iter().position(embedded) {
            return Some(host);
        }
        let place = usize::try_from(frontend.0.checked_sub(super::wires::REMOTE)?).ok()?;
        (place < self.places()).then_some(place)
    }

    /// A frame as a person reads it: the protocol's own words.
    pub fn describe_frame(&self, frame: &Bytes) -> String {
        match read_client_frame(frame.clone()).map(|(_, frame)| frame) {
            Ok(ClientFrame::Message(message)) => (self.setting.entry.describe)(message),
            Ok(ClientFrame::Reply(..)) => String::from("Reply"),
            Ok(ClientFrame::Epoch(_)) => String::from("Epoch"),
            Ok(ClientFrame::Quorum { .. }) => String::from("Quorum"),
            Err(_) => String::from("State"),
        }
    }

    /// One line on a replica.
    pub fn describe_host(&self, index: usize) -> String {
        let host = &self.hosts[index];
        let Some(node) = &host.node else {
            return match &host.halted {
                Some(reason) => format!("{index}: halted: {reason}"),
                None => format!("{index}: down"),
            };
        };
        let status = node.protocol_status();
        let leader = status
            .leader
            .map_or(String::from("none"), |leader| leader.0.to_string());
        format!(
            "{index}: {} in {}, follows {leader}, accepted {} committed {} executed {}{}{}",
            status.role,
            status.view,
            status.accepted,
            status.committed,
            node.executed().slot,
            if status.voting { "" } else { ", does not vote" },
            if host.paused { ", paused" } else { "" },
        )
    }

    /// The name of a timer.
    pub fn timer_name(&self, key: TimerKey) -> String {
        match key.owner {
            TimerOwner::Replica => {
                (self.entry().timer_name)(key.timer).unwrap_or_else(|| key.timer.to_string())
            }
            TimerOwner::Frontend => format!("Frontend{}", key.timer),
            TimerOwner::Node => format!("Node{}", key.timer),
        }
    }
}
