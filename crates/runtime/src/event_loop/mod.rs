//! The one thread that does everything of a replica but waiting for the disk.
//!
//! ```text
//!   poll ─► mail ─► peers ─► clients ─► timers ─┐          one turn
//!                                               ▼
//!            ┌─► collect batches ─► Node ─► outputs ─┐     again while something finished
//!            └───────────────────────────────────────┘
//!            ─► one write per peer and client ─► publish ─► spin, or sleep
//! ```
//!
//! Everything that is there is taken before anything is sent, so that batches form by themselves
//! and nobody ever waits in order to batch.

mod clients;
mod proxy;
mod publish;
mod storage;
mod world;

pub(crate) use proxy::{Proxy, ProxyParts, ProxyWorld};
pub(crate) use publish::About;

use crate::{
    ExitReason, Metrics, Published,
    journal_thread::JournalThread,
    mail::{Mail, Mailbox},
    peer_clock::agree,
    port::{PORT_BATCHES, Port},
    server::{Gateway, SnapshotReport},
    snapshots::Kept,
    timers::Timers,
    transports::{Arrival, tcp::Tcp},
};
use clients::Clients;
use mio::{Events, Poll};
use quintet_replica::{
    BatchId, Control, EpochNumber, Executed, GroupId, Input, Lane, Link, Node, Outcome, Output,
    Peer, PersistId, Recipients, RecoveredBytes, ReplicaId, Slot, Submission, Time, Wake,
    put_frame,
};
use std::{
    io,
    sync::{Arc, mpsc},
    time::Duration,
};
use storage::DiskState;
pub(crate) use world::RuntimeWorld;

/// Tokens: mail, the clients' listener and the peers' listener have one each; connections of
/// peers and of clients count from these.
pub(crate) const TOKEN_MAIL: usize = 0;
pub(crate) const TOKEN_PEERS: usize = 2;
pub(crate) const TOKEN_CLIENTS: usize = 1 << 24;
const EVENTS_MAX: usize = 1024;
/// A turn with more requests than this is followed by sleep, not by spinning: batches grow.
const NEARLY_IDLE: usize = 8;
/// The most rounds of collecting and carrying out in one turn.
const ROUNDS_MAX: usize = 64;
const MAIL_MAX: usize = 4096;
const TIMERS_MAX: usize = 256;
/// What is due sooner is waited for by the nanosecond.
const PRECISE_MAX: Duration = Duration::from_millis(10);
/// So long before a precise deadline the loop stays awake, where it may spin.
const AWAKE_BEFORE: Duration = Duration::from_micros(40);
/// Longer than any deadline that is one.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Clients' sessions are dated by a clock that was read no longer ago than this.
const CLOCK_AGE_MAX: Duration = Duration::from_millis(1);
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// A graceful stop takes no longer.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A leader waits this long for another to take over.
const HAND_OFF_MAX: Duration = Duration::from_secs(1);

/// What an event loop is made from.
pub(crate) struct Parts {
    pub poll: Poll,
    pub mailbox: Mailbox,
    pub node: Node,
    pub recovered: RecoveredBytes,
    pub world: RuntimeWorld,
    pub tcp: Tcp,
    pub server: Option<(Gateway, std::net::TcpListener)>,
    pub port: Port,
    pub journal: JournalThread,
    pub journal_queue_max: usize,
    pub published: Arc<Published>,
    pub about: About,
    pub spin_max: Duration,
}

/// How to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// Not at all: look again at once.
    No,
    /// For so long, by the nanosecond. Costs a system call more.
    Exactly(Duration),
    /// In whole milliseconds, up to one longer; for ever when it never ends.
    About(Duration),
}

impl Sleep {
    /// What the poll waits for.
    fn milliseconds(self) -> Option<Duration> {
        match self {
            Self::No | Self::Exactly(_) => Some(Duration::ZERO),
            Self::About(wait) => (wait < FOREVER).then_some(wait),
        }
    }
}

struct Stopping {
    deadline: Time,
    hand_off_until: Time,
}

/// See the module.
pub(crate) struct EventLoop {
    poll: Poll,
    events: Option<Events>,
    mailbox: Mailbox,
    node: Node,
    world: RuntimeWorld,
    tcp: Tcp,
    clients: Option<Clients>,
    port: Port,
    journal: JournalThread,
    journal_queue_max: usize,
    timers: Timers,
    outputs: Vec<Output>,
    submissions: Vec<Submission>,
    published: Arc<Published>,
    about: About,
    metrics: Metrics,
    journal_on_disk: u64,
    disk: DiskState,
    /// A leader without room for its journal asks others to lead, not before this.
    step_down_at: Time,
    /// The last write handed to the journal, and the last that is durable.
    written: PersistId,
    durable: PersistId,
    /// What was forgotten is here again once this write is durable.
    repaired_at: Option<PersistId>,
    /// What may be trimmed once another snapshot can stand in for the one named.
    trims: Vec<(Executed, Slot)>,
    leader: Option<ReplicaId>,
    route: Vec<u16>,
    snapshot_waiters: Vec<mpsc::Sender<Result<SnapshotReport, String>>>,
    publish_at: Time,
    /// Something has happened since the last report.
    changed: bool,
    spin_max: Duration,
    last_work: Time,
    last_count: usize,
    clock_read: (Time, u64),
    stopping: Option<Stopping>,
    exit: Option<ExitReason>,
}

impl EventLoop {
    /// An event loop whose node has been started.
    ///
    /// # Errors
    /// When a socket cannot be watched, or (as the inner error) when snapshot or journal make no
    /// sense.
    pub fn new(parts: Parts) -> io::Result<Result<Self, String>> {
        let registry = parts.poll.registry().try_clone()?;
        let clients = parts
            .server
            .map(|(gateway, listener)| Clients::new(gateway, listener, registry, TOKEN_CLIENTS))
            .transpose()?;
        let mut this = Self {
            poll: parts.poll,
            events: Some(Events::with_capacity(EVENTS_MAX)),
            mailbox: parts.mailbox,
            node: parts.node,
            world: parts.world,
            tcp: parts.tcp,
            clients,
            port: parts.port,
            journal: parts.journal,
            journal_queue_max: parts.journal_queue_max,
            timers: Timers::default(),
            outputs: Vec::new(),
            submissions: Vec::new(),
            published: parts.published,
            about: parts.about,
            metrics: Metrics::default(),
            journal_on_disk: 0,
            disk: DiskState::Ok,
            step_down_at: Time(0),
            written: PersistId(0),
            durable: PersistId(0),
            repaired_at: None,
            trims: Vec::new(),
            leader: None,
            route: Vec::new(),
            snapshot_waiters: Vec::new(),
            publish_at: Time(0),
            changed: true,
            spin_max: parts.spin_max,
            last_work: Time(0),
            last_count: 0,
            clock_read: (Time(0), 0),
            stopping: None,
            exit: None,
        };
        if let Err(error) = this
            .node
            .start(parts.recovered, &this.world, &mut this.outputs)
        {
            return Ok(Err(error.to_string()));
        }
        this.carry_out();
        this.publish(this.now());
        Ok(Ok(this))
    }

    fn now(&self) -> Time {
        use quintet_replica::World;
        self.world.now()
    }

    fn clock(&self) -> u64 {
        use quintet_replica::World;
        self.world.clock().now
    }

    /// Runs until the replica stops, for whatever reason.
    pub fn run(mut self) -> ExitReason {
        crate::system::prefer_throughput();
        let mut now = self.now();
        self.clock_read = (now, self.clock());
        loop {
            let (wake, count, ended) = self.turn(now);
            if let Some(reason) = self.maybe_exit() {
                self.finish(&reason);
                return reason;
            }
            match self.wait(wake, count, ended) {
                Ok(woken) => now = woken,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => now = self.now(),
                Err(error) => {
                    let reason = ExitReason::Halted(format!("cannot wait for events: {error}"));
                    self.finish(&reason);
                    return reason;
                }
            }
        }
    }

    // --- one turn --------------------------------------------------------------------------

    /// One turn, which begins now: what comes next, how much there was to do, and when it ended.
    /// Reading a clock is a good part of an idle turn, so times are handed on.
    fn turn(&mut self, now: Time) -> (Wake, usize, Time) {
        self.metrics.turns += 1;
        let mut count = self.take_mail(now);
        if !self.choked() {
            self.tcp.receive(now);
        }
        count += self.take_arrivals(now);
        self.follow_clocks(now);
        if let Some(clients) = &mut self.clients {
            count += clients.receive(now);
        }
        count += self.pass_time(now);
        let (wake, now) = self.settle();
        self.tcp.flush(now);
        if let Some(clients) = &mut self.clients {
            clients.flush();
        }
        self.update_rooms();
        if count > 0 {
            self.changed = true;
        }
        if self.changed && now >= self.publish_at {
            self.publish(now);
        }
        (wake, count, now)
    }

    fn input(&mut self, input: Input) {
        if let Err(error) = self.node.on_input(input, &self.world, &mut self.outputs) {
            tracing::debug!(%error, "frame dropped");
        }
    }

    fn take_mail(&mut self, now: Time) -> usize {
        if !self.mailbox.rung() {
            return 0;
        }
        self.mailbox.listen();
        let mut count = 0;
        let mut persisted = None;
        while count < MAIL_MAX
            && let Some(mail) = self.mailbox.take()
        {
            count += 1;
            match mail {
                Mail::Persisted {
                    upto,
                    bytes,
                    syncs,
                    on_disk,
                    taken,
                } => {
                    self.journal.taken(taken);
                    self.metrics.journal_bytes = bytes;
                    self.metrics.journal_syncs = syncs;
                    self.journal_on_disk = on_disk;
                    persisted = Some(upto);
                }
                Mail::DiskFull(full) => self.on_disk_full(full, now),
                Mail::StorageFailed(reason) => {
                    tracing::error!(reason, "the storage failed");
                    self.disk = DiskState::Failed;
                    self.exit = Some(ExitReason::StorageFailed(reason));
                }
                Mail::SnapshotWritten(bytes) => self.input(Input::SnapshotWritten(bytes)),
                Mail::SnapshotSaved(info) => self.on_snapshot_saved(info),
                Mail::SnapshotFailed(reason) => {
                    tracing::warn!(reason, "no snapshot");
                    self.answer_snapshot_waiters(&Err(reason));
                    self.input(Input::SnapshotFailed);
                }
                Mail::Submit(request) => self.submit(request, now),
                Mail::SnapshotNow(waiter) => self.on_snapshot_now(waiter),
                Mail::Resolved { peer, address } => self.tcp.on_resolved(peer, address, now),
                Mail::Stop => self.begin_stop(now),
            }
            self.carry_out();
        }
        if count == MAIL_MAX {
            self.mailbox.ring();
        }
        if let Some(upto) = persisted {
            self.durable = upto;
            self.maybe_repaired();
            self.input(Input::Persisted(upto));
            self.carry_out();
        }
        count
    }

    fn take_arrivals(&mut self, now: Time) -> usize {
        let mut count = 0;
        while let Some(arrival) = self.tcp.take_arrival() {
            count += 1;
            match arrival {
                Arrival::Frame(from, frame) => {
                    self.input(Input::Frame {
                        from,
                        arrived: now,
                        frame,
                    });
                }
                Arrival::Link(peer, link) => {
                    if matches!((peer, link), (Peer::Replica(_), Link::Up { .. })) {
                        // The protocol may answer at once and asks how much it may send.
                        self.update_rooms();
                    }
                    self.input(Input::Link(peer, link));
                }
                Arrival::Refused(reason) => {
                    tracing::error!(reason, "refused by a peer");
                    self.exit = Some(ExitReason::DataRefused(reason));
                }
            }
            self.carry_out();
        }
        count
    }

    /// Corrects the synchronised clock by what exchanges with the peers have shown.
    fn follow_clocks(&mut self, now: Time) {
        if !self.tcp.take_clock_news() {
            return;
        }
        let clock = &self.world.clock;
        let (disciplined, error) = clock.discipline();
        self.tcp.tell_clock(disciplined, error);
        if clock.was_set() {
            tracing::warn!("the system's clock was set");
            self.tcp.forget_clocks();
        }
        clock.follow(agree(disciplined, &self.tcp.standings(now)));
        self.changed = true;
    }

    fn pass_time(&mut self, now: Time) -> usize {
        let mut count = 0;
        // One at a time: each may cancel the next. A timer that is set for now fires next turn.
        while count < TIMERS_MAX {
            let world = &self.world;
            let due = self
                .timers
                .take_due(now, || quintet_replica::World::clock(world).now);
            let Some(key) = due else { break };
            count += 1;
            self.input(Input::Timer(key));
            self.carry_out();
        }
        if self.tcp.next_deadline() <= now {
            self.tcp.on_time(now);
        }
        if self.port.next_deadline() <= now {
            self.port.on_time(now);
        }
        if let Some(clients) = &mut self.clients {
            if clients.next_deadline() <= now {
                clients.on_time(now);
            }
            if clients.gateway.next_deadline() <= now {
                clients.gateway.on_time(now);
            }
        }
        count
    }

    /// Submits what clients want and lets the node work until neither brings anything new: what
    /// finishes in this turn may make room for what waits.
    fn settle(&mut self) -> (Wake, Time) {
        let mut now = self.now();
        for _ in 0..ROUNDS_MAX {
            let submitted = self.collect(now);
            let wake = self.node.on_idle(&self.world, &mut self.outputs);
            let finished = self.carry_out();
            now = self.now();
            let arrived = self.take_arrivals(now);
            if !submitted && !finished && arrived == 0 {
                return (wake, now);
            }
        }
        (Wake::Spin, now)
    }

    /// The synchronised clock, read once in a while and counted on from there in between.
    fn clock_near(&mut self, now: Time) -> u64 {
        if now.since(self.clock_read.0) > CLOCK_AGE_MAX {
            self.clock_read = (now, self.clock());
        }
        let since = u64::try_from(now.since(self.clock_read.0).as_nanos()).unwrap_or(0);
        self.clock_read.1.saturating_add(since)
    }

    fn collect(&mut self, now: Time) -> bool {
        // A journal that cannot keep up holds clients back, not memory.
        if self.journal.queued() > self.journal_queue_max {
            return false;
        }
        let clock = self.clock_near(now);
        if let Some(clients) = &mut self.clients {
            clients.gateway.collect(now, clock, &mut self.submissions);
        }
        self.port.collect(now, &mut self.submissions);
        if self.submissions.is_empty() {
            return false;
        }
        let mut submissions = std::mem::take(&mut self.submissions);
        for submission in submissions.drain(..) {
            self.metrics.batches += 1;
            self.input(Input::Submit(submission));
        }
        self.submissions = submissions;
        self.carry_out();
        true
    }

    // --- what the node wants ---------------------------------------------------------------

    /// Carries out what the node asked for; true when a batch has finished.
    fn carry_out(&mut self) -> bool {
        if self.outputs.is_empty() {
            return false;
        }
        let now = self.now();
        let mut finished = false;
        let mut sent = false;
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send { to, lane, frame } => {
                    self.tcp.send(to, lane, &frame, now);
                    sent = true;
                }
                Output::Put { to, ranges } => {
                    let frame = put_frame(GroupId(0), EpochNumber(self.about.epoch), ranges);
                    self.tcp
                        .send(Recipients::Replicas(to), Lane::Control, &frame, now);
                    sent = true;
                }
                Output::Journal { id, write } => {
                    self.metrics.journal_writes += 1;
                    self.written = id;
                    self.journal.write(id, write);
                }
                Output::Trim { below } => self.trim_later(below),
                Output::SetTimer { key, at } => self.timers.set(key, at),
                Output::CancelTimer { key } => self.timers.cancel(key),
                Output::SnapshotBegin { id, fetched } => self.world.snapshots.begin(id, fetched),
                Output::SnapshotAppend(bytes) => self.world.snapshots.append(bytes),
                Output::SnapshotFinish => self.world.snapshots.finish_file(),
                Output::SnapshotAbandon => self.world.snapshots.abandon(),
                Output::Done { batch, outcome } => {
                    self.done(batch, outcome, now);
                    finished = true;
                }
                Output::Route {
                    members, agreed, ..
                } => {
                    if agreed {
                        self.route = members.iter().map(|(id, _)| id.0).collect();
                    }
                }
                Output::Recovered => {
                    self.repaired_at = Some(self.written);
                    self.maybe_repaired();
                }
                Output::Mark(branch) => self.metrics.mark(branch),
                Output::Halt(reason) => {
                    tracing::error!(reason, "the replica cannot go on");
                    self.exit = Some(ExitReason::DataRefused(reason));
                }
            }
        }
        self.outputs = outputs;
        if sent {
            self.update_rooms();
        }
        finished
    }

    fn update_rooms(&self) {
        for (index, room) in self.world.rooms.iter().enumerate() {
            room.set(self.tcp.room(ReplicaId(index as u16)));
        }
    }

    fn done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        match outcome {
            Outcome::Results(_) => self.metrics.batches_done += 1,
            _ => self.metrics.batches_failed += 1,
        }
        if batch.0 >= PORT_BATCHES {
            self.port.on_done(batch, outcome, now);
        } else if let Some(clients) = &mut self.clients {
            clients.gateway.on_done(batch, outcome, now);
        }
    }

    // --- snapshots on demand ---------------------------------------------------------------

    fn on_snapshot_saved(&mut self, kept: Kept) {
        let info = kept.info;
        self.metrics.snapshots += 1;
        self.world.snapshots.saved(kept);
        if kept.fetched {
            self.journal.skip();
        }
        self.trim_due();
        let report = SnapshotReport {
            slot: info.id.slot.0,
            bytes: info.length,
        };
        self.answer_snapshot_waiters(&Ok(report));
        self.input(Input::SnapshotSaved(info));
    }

    fn answer_snapshot_waiters(&mut self, answer: &Result<SnapshotReport, String>) {
        for waiter in self.snapshot_waiters.drain(..) {
            // Who waited may have given up.
            let _ = waiter.send(answer.clone());
        }
    }

    fn on_snapshot_now(&mut self, waiter: mpsc::Sender<Result<SnapshotReport, String>>) {
        let newest = self.world.snapshots.newest();
        if let Some(info) = newest.filter(|info| info.id.slot >= self.node.executed().slot) {
            let report = SnapshotReport {
                slot: info.id.slot.0,
                bytes: info.length,
            };
            // Who waited may have given up.
            let _ = waiter.send(Ok(report));
            return;
        }
        self.snapshot_waiters.push(waiter);
        self.node.ask_for_checkpoint(&self.world, &mut self.outputs);
    }

    // --- sleeping --------------------------------------------------------------------------

    /// Waits for something to happen, no longer than may be; gives the time afterwards.
    fn wait(&mut self, wake: Wake, count: usize, now: Time) -> io::Result<Time> {
        if count > 0 {
            self.last_work = now;
            self.last_count = count;
        }
        let mut timeout = self.timeout(wake, now);
        if timeout == Sleep::No {
            if count == 0 {
                // Whoever could bring work must get the processor.
                rustix::thread::sched_yield();
            }
        } else {
            self.metrics.sleeps += 1;
        }
        if let Sleep::Exactly(wait) = timeout {
            crate::system::wait(&self.poll, wait)?;
            timeout = Sleep::No;
        }
        let Some(mut events) = self.events.take() else {
            return Ok(now);
        };
        let result = self.poll.poll(&mut events, timeout.milliseconds());
        let now = self.now();
        for event in &events {
            let token = event.token().0;
            if token >= TOKEN_CLIENTS - 1 {
                if let Some(clients) = &mut self.clients {
                    clients.on_event(event);
                }
            } else if token != TOKEN_MAIL {
                self.tcp.on_event(event, now);
            }
        }
        self.events = Some(events);
        result.map(|()| now)
    }

    /// How long to sleep.
    fn timeout(&self, wake: Wake, now: Time) -> Sleep {
        let clients_busy = self.clients.as_ref().is_some_and(Clients::busy);
        let peers_busy = self.tcp.busy() && !self.choked();
        if wake == Wake::Spin || clients_busy || peers_busy || self.mailbox.rung() {
            return Sleep::No;
        }
        let nearly_idle = self.last_count <= NEARLY_IDLE;
        if nearly_idle && now.since(self.last_work) < self.spin_max {
            return Sleep::No;
        }
        let mut precise = match wake {
            Wake::At(at) => at,
            Wake::Spin | Wake::Sleep => Time::NEVER,
        };
        precise = precise.min(self.tcp.next_deadline());
        let mut coarse = self.port.next_deadline();
        // Heartbeats and time-outs may be a millisecond late; rounds and deadlines may not.
        let timer = self.timers.next(now, || self.clock());
        if timer.since(now) < PRECISE_MAX {
            precise = precise.min(timer);
        } else {
            coarse = coarse.min(timer);
        }
        if self.changed {
            coarse = coarse.min(self.publish_at);
        }
        if let Some(clients) = &self.clients {
            coarse = coarse.min(clients.next_deadline());
            if self.journal.queued() <= self.journal_queue_max {
                precise = precise.min(clients.gateway.next_deadline());
            }
        }
        if let Some(stopping) = &self.stopping {
            coarse = coarse
                .min(stopping.deadline)
                .min(now + Duration::from_millis(5));
        }
        // A sleeping core takes a while to begin: what is due very soon is waited for awake.
        let awake = AWAKE_BEFORE.min(self.spin_max);
        let wait = precise.since(now).saturating_sub(awake);
        if precise < coarse && wait < PRECISE_MAX {
            return if wait.is_zero() {
                Sleep::No
            } else {
                Sleep::Exactly(wait)
            };
        }
        // Up to a millisecond late, so a precise deadline is looked at again shortly before.
        let precise = precise.since(now).saturating_sub(PRECISE_MAX / 2);
        Sleep::About(precise.min(coarse.since(now)))
    }

    // --- stopping --------------------------------------------------------------------------

    fn begin_stop(&mut self, now: Time) {
        if self.stopping.is_some() {
            return;
        }
        tracing::info!("stopping");
        self.stopping = Some(Stopping {
            deadline: now + STOP_MAX,
            hand_off_until: now + HAND_OFF_MAX,
        });
        self.port.begin_shutdown();
        if let Some(clients) = &mut self.clients {
            clients.begin_shutdown();
        }
        self.input(Input::Control(Control::HandOff));
    }

    fn maybe_exit(&mut self) -> Option<ExitReason> {
        if self.exit.is_some() {
            return self.exit.take();
        }
        let stopping = self.stopping.as_ref()?;
        let now = self.now();
        let idle = self.port.idle()
            && self
                .clients
                .as_ref()
                .is_none_or(|clients| clients.gateway.idle());
        let leads = now < stopping.hand_off_until
            && self.tcp.links_up() > 0
            && self.node.protocol_status().leader == Some(self.node.id());
        ((idle && !leads) || now >= stopping.deadline).then_some(ExitReason::Stopped)
    }

    fn finish(&mut self, reason: &ExitReason) {
        let now = self.now();
        self.tcp.flush(now);
        self.answer_snapshot_waiters(&Err("the replica has stopped".to_owned()));
        self.publish(now);
        if *reason == ExitReason::Stopped {
            self.journal.finish();
        }
        self.world.snapshots.finish();
        tracing::info!(%reason, "the replica has ended");
    }
}
