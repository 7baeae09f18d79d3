//! Shared by the loops of replicas and of proxies: all that is around the part that decides.
//!
//! ```text
//!             ┌────────────────── Shell ──────────────────┐
//!   mail ────►│                                           │
//!   peers ◄──►│ sockets, clients, timers, waiting, figures │◄──► Node (replica), Client (proxy)
//!   clients ◄►│                                           │
//!             └───────────────────────────────────────────┘
//! ```

use super::{
    clients::Clients,
    peers::{PeerFigures, Peers},
    reach::{Known, Reach},
    service::Service,
    stage::{FOREVER, NEARLY_IDLE, PRECISE_MAX, Setting},
};
use crate::{
    Config, Metrics, Published, Threads,
    clock::Clock,
    data::Data,
    mail::{Mailbox, Mailer, Waiter},
    peer_clock::agree,
    port::{PORT_BATCHES, Ports},
    rings::Wakeup,
    server::{
        ChangeReport, Gateway, MemberReport, NodeView, PeerClockReport, PeerReport, StatusReport,
    },
    status::{GroupView, Snapshot},
    timers::{GroupTimer, Timers},
    transports::tcp::Tcp,
};
use mio::{Events, Poll};
use quintet_replica::{
    BatchId, Descriptor, MemberRow, Outcome, ReplicaId, Submission, Time, ViableIn, Wake,
};
use std::{
    cell::Cell,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Tokens: mail, the clients' listener and the peers' listener have one each; connections of
/// peers and of clients count from these.
pub(crate) const TOKEN_MAIL: usize = 0;
pub(crate) const TOKEN_PEERS: usize = 2;
const TOKEN_CLIENTS: usize = 1 << 24;
const EVENTS_MAX: usize = 1024;
/// So long before a precise deadline the loop stays awake, where it may spin.
const AWAKE_BEFORE: Duration = Duration::from_micros(40);
/// Clients' sessions are dated by a clock that was read no longer ago than this.
const CLOCK_AGE_MAX: Duration = Duration::from_millis(1);
/// A turn that takes longer is one that peers and clients notice …
const LONG_TURN: Duration = Duration::from_millis(100);
/// … and the log tells of one at most this often.
const LONG_TURN_LOG_EVERY: Duration = Duration::from_secs(10);
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// Whether all is done is asked so often while stopping.
const STOP_LOOK: Duration = Duration::from_millis(5);

/// The parts of a shell.
pub(crate) struct ShellParts {
    pub poll: Poll,
    pub mailbox: Mailbox,
    /// Where clients' wishes for the replica itself go.
    pub mailer: Mailer,
    pub tcp: Tcp,
    pub server: Option<(Gateway, std::net::TcpListener)>,
    pub ports: Ports,
    pub published: Arc<Published>,
    pub spin_max: Duration,
    /// Peers and clients have threads of their own; nothing: one thread does everything.
    pub apart: Option<Apart>,
}

/// The means of threads beside the protocol's.
#[derive(Debug)]
pub(crate) struct Apart {
    /// The poll with which the peers' sockets are registered.
    pub peers: Poll,
    /// How many items a ring between two threads holds.
    pub ring_slots: usize,
}

impl Apart {
    /// As configured.
    ///
    /// # Errors
    /// When the operating system has no poll to give.
    pub fn of(config: &Config) -> io::Result<Option<Self>> {
        if config.threads == Threads::One {
            return Ok(None);
        }
        let peers = Poll::new()?;
        Ok(Some(Self {
            peers,
            ring_slots: config.ring_slots,
        }))
    }
}

/// How to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// Not at all: look again at once.
    No,
    /// For so long, by the nanosecond. Costs a system call more.
    Exactly(Duration),
    /// In whole milliseconds, up to one longer; forever when it never ends.
    About(Duration),
}

impl Sleep {
    /// The timeout of the poll.
    fn milliseconds(self) -> Option<Duration> {
        match self {
            Self::No | Self::Exactly(_) => Some(Duration::ZERO),
            Self::About(wait) => (wait < FOREVER).then_some(wait),
        }
    }
}

/// The node's or client's wishes before the shell waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    pub wake: Wake,
    /// Frames of peers are taken.
    pub hears_peers: bool,
    /// Requests of clients are taken.
    pub hears_clients: bool,
    /// Stops at the latest then.
    pub stops_at: Option<Time>,
}

/// See the module.
pub(super) struct Shell {
    poll: Poll,
    events: Option<Events>,
    pub mailbox: Mailbox,
    pub peers: Peers,
    service: Service,
    /// The data directory; a proxy has none.
    pub data: Option<Arc<Mutex<Data>>>,
    /// Wakes this thread when another has something for it.
    wakeup: Arc<Wakeup>,
    pub ports: Ports,
    pub timers: Timers,
    published: Arc<Published>,
    /// The links when a report last began.
    links: PeerFigures,
    reach: Reach,
    pub metrics: Metrics,
    publish_at: Time,
    /// Something has happened since the last report.
    pub changed: bool,
    spin_max: Duration,
    last_work: Time,
    last_count: usize,
    clock_read: (Time, u64),
    long_turn_log_at: Time,
    /// The clock shows more than is believed.
    clock_ahead: bool,
}

impl Shell {
    /// A shell that has not looked at its sockets yet.
    ///
    /// # Errors
    /// When a socket cannot be watched.
    pub fn new(parts: ShellParts, clock: &Clock, reach: Reach) -> io::Result<Self> {
        let wakeup = Arc::new(Wakeup::new(parts.mailbox.waker()));
        let data = parts.tcp.data();
        let mailer = parts.mailer;
        let server = parts.server;
        let server = server.map(|(gateway, listener)| ((gateway, mailer), listener));
        let (peers, service) = match parts.apart {
            None => {
                let registry = parts.poll.registry().try_clone()?;
                let serve =
                    |(gateway, listener)| Clients::new(gateway, listener, registry, TOKEN_CLIENTS);
                let clients = server.map(serve).transpose()?;
                let service = clients.map_or(Service::None, |it| Service::Here(Box::new(it)));
                (Peers::Here(Box::new(parts.tcp)), service)
            }
            Some(apart) => {
                let setting = |poll| Setting {
                    poll,
                    protocol: Arc::clone(&wakeup),
                    slots: apart.ring_slots,
                    clock: clock.ticker(),
                    spin_max: parts.spin_max,
                };
                let service = match server {
                    None => Service::None,
                    Some((gateway, listener)) => {
                        let poll = Poll::new()?;
                        let registry = poll.registry().try_clone()?;
                        let clients = Clients::new(gateway, listener, registry, TOKEN_CLIENTS)?;
                        Service::apart(clients, setting(poll), clock.reading().now)?
                    }
                };
                (Peers::apart(parts.tcp, setting(apart.peers))?, service)
            }
        };
        Ok(Self {
            poll: parts.poll,
            events: Some(Events::with_capacity(EVENTS_MAX)),
            mailbox: parts.mailbox,
            peers,
            service,
            data,
            wakeup,
            ports: parts.ports,
            timers: Timers::default(),
            published: parts.published,
            links: PeerFigures::default(),
            reach,
            metrics: Metrics::default(),
            publish_at: Time(0),
            changed: true,
            spin_max: parts.spin_max,
            last_work: Time(0),
            last_count: 0,
            clock_read: (Time(0), 0),
            long_turn_log_at: Time(0),
            clock_ahead: false,
        })
    }

    // --- what comes in ---------------------------------------------------------------------

    /// Corrects the synchronised clock by what exchanges with the peers have shown.
    /// This is one of `members`; a proxy is none, and believes its clock as it is.
    pub fn follow_clocks(&mut self, clock: &Clock, members: usize, now: Time) {
        if !self.peers.take_clock_news() {
            return;
        }
        let (disciplined, error) = clock.discipline();
        self.peers.tell_clock(disciplined, error);
        if clock.was_set() {
            tracing::warn!("the system's clock was set");
            self.peers.forget_clocks();
        }
        let standings = self.peers.standings(now);
        clock.follow(agree(disciplined, &standings));
        let ahead = clock.limit(&standings, members);
        if !ahead.is_zero() && !self.clock_ahead {
            tracing::warn!(
                "this machine's clock is {} ms further ahead of most members' than is believed: \
                 commands get a time that is no more than a second ahead of theirs. Set the clock",
                ahead.as_millis()
            );
        }
        self.clock_ahead = !ahead.is_zero();
        self.changed = true;
    }

    /// Reads what clients have sent; how many had something.
    pub fn receive_clients(&mut self, now: Time) -> usize {
        self.service.receive(now)
    }

    /// Takes a timer that is due.
    pub fn take_timer(&mut self, clock: &Clock, now: Time) -> Option<GroupTimer> {
        self.timers.take_due(now, || clock.reading().now)
    }

    /// Does what is due at the sockets and in the queues of requests; whether anything was due at
    /// the sockets of peers.
    pub fn on_time(&mut self, now: Time) -> bool {
        let peers = self.peers.next_deadline() <= now;
        if peers {
            self.peers.on_time(now);
        }
        if self.ports.next_deadline() <= now {
            self.ports.on_time(now);
        }
        self.service.on_time(now);
        peers
    }

    /// The synchronised clock, read once in a while and counted on from there in between.
    fn clock_near(&mut self, clock: &Clock, now: Time) -> u64 {
        if now.since(self.clock_read.0) > CLOCK_AGE_MAX || self.clock_read.1 == 0 {
            self.clock_read = (now, clock.reading().now);
        }
        let since = u64::try_from(now.since(self.clock_read.0).as_nanos()).unwrap_or(0);
        self.clock_read.1.saturating_add(since)
    }

    /// Collects batches of what clients want.
    pub fn collect(&mut self, clock: &Clock, now: Time, submissions: &mut Vec<Submission>) {
        let clock = self.clock_near(clock, now);
        self.service.collect(now, clock, submissions);
        self.ports.collect(now, submissions);
        self.metrics.batches += submissions.len() as u64;
    }

    /// The replica continues in another epoch.
    pub fn enter_epoch(&mut self, descriptor: &Descriptor, viable: ViableIn, now: Time) {
        self.peers.enter_epoch(descriptor, now);
        self.reach.enter_epoch(descriptor.voters(), viable);
    }

    /// Looks, once in a while, whether there is a quorum, with what the node knows; what waits
    /// for one that is lost ends.
    pub fn look_at_quorum<'a>(&mut self, known: impl FnOnce() -> Known<'a>, now: Time) {
        if !self.reach.must_look(now) {
            return;
        }
        let figures = self.peers.figures(now);
        self.reach.observe(&figures, known(), now);
        for batch in self.reach.take_hopeless(now) {
            self.hand_on(batch, Outcome::Uncertain, now);
            self.changed = true;
        }
    }

    /// The word on this replica's quorum for proxies, when it is due.
    pub fn quorum_word(&mut self, now: Time) -> Option<bool> {
        self.reach.word(now)
    }

    /// Gives a submission back, or answers it at once when it certainly finds no quorum: clients
    /// hear of a loss that is known before their own timeout ends.
    pub fn admit(&mut self, submission: Submission, now: Time) -> Option<Submission> {
        if self.reach.takes(submission.id, submission.level, now) {
            return Some(submission);
        }
        self.hand_on(submission.id, Outcome::NoQuorum, now);
        None
    }

    /// How many voters answered at the last report, this one included, and which did not.
    pub fn reachable(&self, now: Time) -> (usize, Vec<(ReplicaId, Option<Duration>)>) {
        let silent = self.reach.silent(&self.links, now);
        (
            self.reach.voters().len().saturating_sub(silent.len()),
            silent,
        )
    }

    // --- what goes out ---------------------------------------------------------------------

    /// A batch is finished.
    pub fn done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        let results = matches!(outcome, Outcome::Results(_));
        // A batch that ended when the quorum was lost has no waiting client.
        if self.reach.finished(batch, results, now) {
            self.hand_on(batch, outcome, now);
        }
    }

    /// A batch of a shard is finished: its quorum is not the one that is watched here.
    pub fn done_by_shard(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        self.hand_on(batch, outcome, now);
    }

    /// Hands the outcome of a batch to the one that asked for it.
    fn hand_on(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        match outcome {
            Outcome::Results(_) => self.metrics.batches_done += 1,
            _ => self.metrics.batches_failed += 1,
        }
        if batch.0 >= PORT_BATCHES {
            self.ports.on_done(batch, outcome, now);
        } else {
            self.service.done(batch, outcome, now);
        }
    }

    /// Tells how a change has ended.
    pub fn answer_change(&mut self, waiter: Waiter, report: Result<ChangeReport, String>) {
        match waiter {
            // The caller may have given up.
            Waiter::Caller(sender) => drop(sender.send(report)),
            Waiter::Client(number) => self.service.changed(number, report),
        }
    }

    /// Writes what has gathered, once per peer and client.
    pub fn flush(&mut self, now: Time) {
        self.peers.flush(now);
        self.service.flush();
    }

    /// Sets how many bytes may be queued for each member.
    pub fn update_rooms(&self, rooms: &[Cell<usize>]) {
        for (index, room) in rooms.iter().enumerate() {
            room.set(self.peers.room(ReplicaId(index as u16)));
        }
    }

    // --- what is shown ---------------------------------------------------------------------

    /// Whether it is time for a report.
    pub fn publish_due(&mut self, now: Time) -> bool {
        self.changed |= self.peers.take_changed() | self.service.take_changed();
        self.changed && now >= self.publish_at
    }

    /// A report begins: the figures that the sockets count are brought up to date.
    pub fn begin_report(&mut self, now: Time) {
        self.changed = false;
        self.publish_at = now + PUBLISH_EVERY;
        self.links = self.peers.figures(now);
        let (tcp, metrics) = (self.links.tcp, &mut self.metrics);
        metrics.frames_in = tcp.frames_in;
        metrics.frames_out = tcp.frames_out;
        metrics.peer_bytes_in = tcp.bytes_in;
        metrics.peer_bytes_out = tcp.bytes_out;
        metrics.frames_bad = tcp.frames_bad;
        metrics.handshakes = tcp.handshakes;
        metrics.queues_full = tcp.queues_full;
        metrics.links_up = tcp.links_up;
        metrics.datagrams = self.links.datagrams;
        metrics.memory = self.links.memory;
        let clients = self.service.figures();
        metrics.client_bytes_in = clients.bytes_in;
        metrics.client_bytes_out = clients.bytes_out;
        metrics.clients_accepted = clients.accepted;
        metrics.clients_refused = clients.refused;
        metrics.clients = clients.open;
    }

    /// The links to these members, as of when the report began.
    pub fn peer_reports(&self, ids: impl Iterator<Item = ReplicaId>, now: Time) -> Vec<PeerReport> {
        let report = |id: ReplicaId| {
            let link = self.links.links.get(id.index())?.clone();
            let heard = self.reach.heard(&link);
            Some(PeerReport {
                id: id.0,
                address: link.name,
                connected: link.up,
                silent_ms: heard.map(|at| now.since(at).as_millis() as u64),
                incarnation: link.incarnation.0,
                redis: link.redis,
                queued_bytes: link.queued as u64,
                error: link.error,
                clock: link.clock.map(PeerClockReport::from),
                memory: link.memory,
                datagrams: link.datagrams,
                datagrams_lost: link.datagrams_lost,
            })
        };
        ids.filter_map(report).collect()
    }

    /// These members, with what their links tell.
    pub fn member_reports(&self, rows: &[MemberRow], now: Time) -> Vec<MemberReport> {
        let links = self.peers.figures(now).links;
        let report = |(id, row): (usize, &MemberRow)| {
            // Another thread may not know of a new member's link yet.
            let link = links.get(id);
            MemberReport {
                id: id as u16,
                node: format!("{:016x}", row.node),
                role: row.role.name().to_owned(),
                peer: link.map_or(&row.peer, |link| &link.name).clone(),
                redis: link.and_then(|link| link.redis.clone()),
                has_state: None,
            }
        };
        let rows = rows.iter().enumerate();
        rows.filter(|(_, row)| row.is_taken()).map(report).collect()
    }

    /// Shows a report to the other threads, and `view` to the gateway.
    pub fn publish(&mut self, report: StatusReport, views: Vec<GroupView>, view: NodeView) {
        let counters = self.service.figures().gateway;
        if self.service.serves() {
            let peers = report.peers.iter();
            self.service.set_view(NodeView {
                peers: peers
                    .map(|peer| {
                        let redis = peer.redis.clone().unwrap_or_default();
                        (ReplicaId(peer.id), redis, peer.connected)
                    })
                    .collect(),
                memory_resident: memory_resident(),
                ..view
            });
        }
        self.published.publish(Snapshot {
            report,
            views,
            metrics: self.metrics.clone(),
            counters,
        });
    }

    /// A turn has ended. True when it was so long that the log is to tell of it now.
    pub fn note_turn(&mut self, began: Time, ended: Time) -> bool {
        let took = ended.since(began);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.metrics.turn_longest = self.metrics.turn_longest.max(nanoseconds);
        if took < LONG_TURN {
            return false;
        }
        self.metrics.turns_long += 1;
        let due = ended >= self.long_turn_log_at;
        if due {
            self.long_turn_log_at = ended + LONG_TURN_LOG_EVERY;
        }
        due
    }

    // --- sleeping --------------------------------------------------------------------------

    /// Waits for something to happen, no longer than may be, after a turn that found `count`
    /// things to do and ended `now`; gives the time afterwards.
    ///
    /// # Errors
    /// When the operating system fails to wait; an interruption is none.
    pub fn wait(
        &mut self,
        clock: &Clock,
        pause: Pause,
        count: usize,
        now: Time,
    ) -> io::Result<Time> {
        match self.sleep(clock, pause, count, now) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(clock.now()),
            waited => waited,
        }
    }

    fn sleep(&mut self, clock: &Clock, pause: Pause, count: usize, now: Time) -> io::Result<Time> {
        if count > 0 {
            self.last_work = now;
            self.last_count = count;
        }
        let mut timeout = self.timeout(clock, pause, now);
        if timeout != Sleep::No {
            self.wakeup.park();
            let peers = pause.hears_peers && !self.peers.park();
            if peers || self.service.busy(pause.hears_clients) {
                timeout = Sleep::No;
            }
        }
        if timeout == Sleep::No {
            if count == 0 {
                // Threads that could bring work must get the processor.
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
        self.peers.awake();
        self.wakeup.awake();
        let now = clock.now();
        for event in &events {
            let token = event.token().0;
            if token >= TOKEN_CLIENTS - 1 {
                self.service.on_event(event);
            } else if token != TOKEN_MAIL {
                self.peers.on_event(event, now);
            }
        }
        self.events = Some(events);
        if self.peers.ended() || self.service.ended() {
            return Err(io::Error::other("a thread beside the protocol's has ended"));
        }
        result.map(|()| now)
    }

    /// How long to sleep.
    fn timeout(&self, clock: &Clock, pause: Pause, now: Time) -> Sleep {
        let clients_busy = self.service.busy(pause.hears_clients);
        let peers_busy = self.peers.busy() && pause.hears_peers;
        if pause.wake == Wake::Spin || clients_busy || peers_busy || self.mailbox.rung() {
            return Sleep::No;
        }
        let nearly_idle = self.last_count <= NEARLY_IDLE;
        if nearly_idle && now.since(self.last_work) < self.spin_max {
            return Sleep::No;
        }
        let mut precise = match pause.wake {
            Wake::At(at) => at,
            Wake::Spin | Wake::Sleep => Time::NEVER,
        };
        precise = precise.min(self.peers.next_deadline());
        let mut coarse = self.ports.next_deadline();
        // Heartbeats and time-outs may be a millisecond late; rounds and deadlines may not.
        let timer = self.timers.next(now, || clock.reading().now);
        if timer.since(now) < PRECISE_MAX {
            precise = precise.min(timer);
        } else {
            coarse = coarse.min(timer);
        }
        if self.changed {
            coarse = coarse.min(self.publish_at);
        }
        let (sockets, gateway) = self.service.next_deadlines();
        coarse = coarse.min(sockets);
        if pause.hears_clients {
            precise = precise.min(gateway);
        }
        if let Some(at) = pause.stops_at {
            coarse = coarse.min(at).min(now + STOP_LOOK);
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

    /// Takes no more requests.
    pub fn begin_shutdown(&mut self) {
        self.ports.begin_shutdown();
        self.service.begin_shutdown();
    }

    /// Whether no task is pending.
    pub fn idle(&self) -> bool {
        self.ports.idle() && self.service.idle()
    }
}

/// Resident memory of the process in bytes; 0 where the system does not tell.
fn memory_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
}
