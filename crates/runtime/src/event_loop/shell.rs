//! What the loops of replicas and of proxies have in common: all that is around the part that
//! decides.
//!
//! ```text
//!             ┌────────────────── Shell ──────────────────┐
//!   mail ────►│                                           │
//!   peers ◄──►│ sockets, clients, timers, waiting, figures │◄──► Node (replica), Client (proxy)
//!   clients ◄►│                                           │
//!             └───────────────────────────────────────────┘
//! ```

use super::clients::Clients;
use crate::{
    Metrics, Published,
    clock::Clock,
    mail::Mailbox,
    peer_clock::agree,
    port::{PORT_BATCHES, Port},
    server::{Counters, Gateway, NodeView, PeerClockReport, PeerReport, StatusReport},
    status::Snapshot,
    timers::Timers,
    transports::tcp::Tcp,
};
use mio::{Events, Poll};
use quintet_replica::{BatchId, Outcome, ReplicaId, Submission, Time, TimerKey, Wake};
use std::{cell::Cell, io, sync::Arc, time::Duration};

/// Tokens: mail, the clients' listener and the peers' listener have one each; connections of
/// peers and of clients count from these.
pub(crate) const TOKEN_MAIL: usize = 0;
pub(crate) const TOKEN_PEERS: usize = 2;
const TOKEN_CLIENTS: usize = 1 << 24;
const EVENTS_MAX: usize = 1024;
/// A turn with more requests than this is followed by sleep, not by spinning: batches grow.
const NEARLY_IDLE: usize = 8;
/// What is due sooner is waited for by the nanosecond.
const PRECISE_MAX: Duration = Duration::from_millis(10);
/// So long before a precise deadline the loop stays awake, where it may spin.
const AWAKE_BEFORE: Duration = Duration::from_micros(40);
/// Longer than any deadline that is one.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Clients' sessions are dated by a clock that was read no longer ago than this.
const CLOCK_AGE_MAX: Duration = Duration::from_millis(1);
const PUBLISH_EVERY: Duration = Duration::from_millis(100);
/// Whether all is done is asked so often while stopping.
const STOP_LOOK: Duration = Duration::from_millis(5);

/// What a shell is made from.
pub(crate) struct ShellParts {
    pub poll: Poll,
    pub mailbox: Mailbox,
    pub tcp: Tcp,
    pub server: Option<(Gateway, std::net::TcpListener)>,
    pub port: Port,
    pub published: Arc<Published>,
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

/// What whoever decides says before the shell waits.
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
    pub tcp: Tcp,
    pub clients: Option<Clients>,
    pub port: Port,
    pub timers: Timers,
    published: Arc<Published>,
    pub metrics: Metrics,
    publish_at: Time,
    /// Something has happened since the last report.
    pub changed: bool,
    spin_max: Duration,
    last_work: Time,
    last_count: usize,
    clock_read: (Time, u64),
}

impl Shell {
    /// A shell that has not looked at its sockets yet.
    ///
    /// # Errors
    /// When a socket cannot be watched.
    pub fn new(parts: ShellParts) -> io::Result<Self> {
        let registry = parts.poll.registry().try_clone()?;
        let clients = parts
            .server
            .map(|(gateway, listener)| Clients::new(gateway, listener, registry, TOKEN_CLIENTS))
            .transpose()?;
        Ok(Self {
            poll: parts.poll,
            events: Some(Events::with_capacity(EVENTS_MAX)),
            mailbox: parts.mailbox,
            tcp: parts.tcp,
            clients,
            port: parts.port,
            timers: Timers::default(),
            published: parts.published,
            metrics: Metrics::default(),
            publish_at: Time(0),
            changed: true,
            spin_max: parts.spin_max,
            last_work: Time(0),
            last_count: 0,
            clock_read: (Time(0), 0),
        })
    }

    // --- what comes in ---------------------------------------------------------------------

    /// Corrects the synchronised clock by what exchanges with the peers have shown.
    pub fn follow_clocks(&mut self, clock: &Clock, now: Time) {
        if !self.tcp.take_clock_news() {
            return;
        }
        let (disciplined, error) = clock.discipline();
        self.tcp.tell_clock(disciplined, error);
        if clock.was_set() {
            tracing::warn!("the system's clock was set");
            self.tcp.forget_clocks();
        }
        clock.follow(agree(disciplined, &self.tcp.standings(now)));
        self.changed = true;
    }

    /// Reads what clients have sent; how many had something.
    pub fn receive_clients(&mut self, now: Time) -> usize {
        let clients = self.clients.as_mut();
        clients.map_or(0, |clients| clients.receive(now))
    }

    /// Takes a timer that is due.
    pub fn take_timer(&mut self, clock: &Clock, now: Time) -> Option<TimerKey> {
        self.timers.take_due(now, || clock.reading().now)
    }

    /// Does what is due at the sockets and in the queues of requests; whether anything was due at
    /// the sockets of peers.
    pub fn on_time(&mut self, now: Time) -> bool {
        let peers = self.tcp.next_deadline() <= now;
        if peers {
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
        if let Some(clients) = &mut self.clients {
            clients.gateway.collect(now, clock, submissions);
        }
        self.port.collect(now, submissions);
        self.metrics.batches += submissions.len() as u64;
    }

    // --- what goes out ---------------------------------------------------------------------

    /// Hands the outcome of a batch to whoever asked for it.
    pub fn done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
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

    /// Writes what has gathered, once per peer and client.
    pub fn flush(&mut self, now: Time) {
        self.tcp.flush(now);
        if let Some(clients) = &mut self.clients {
            clients.flush();
        }
    }

    /// Sets how many bytes may be queued for each member.
    pub fn update_rooms(&self, rooms: &[Cell<usize>]) {
        for (index, room) in rooms.iter().enumerate() {
            room.set(self.tcp.room(ReplicaId(index as u16)));
        }
    }

    // --- what is shown ---------------------------------------------------------------------

    /// Whether it is time for a report.
    pub fn publish_due(&self, now: Time) -> bool {
        self.changed && now >= self.publish_at
    }

    /// A report begins: the figures that the sockets count are brought up to date.
    pub fn begin_report(&mut self, now: Time) {
        self.changed = false;
        self.publish_at = now + PUBLISH_EVERY;
        let tcp = self.tcp.counters();
        let metrics = &mut self.metrics;
        metrics.frames_in = tcp.frames_in;
        metrics.frames_out = tcp.frames_out;
        metrics.peer_bytes_in = tcp.bytes_in;
        metrics.peer_bytes_out = tcp.bytes_out;
        metrics.frames_bad = tcp.frames_bad;
        metrics.hellos_refused = tcp.hellos_refused;
        metrics.queues_full = tcp.queues_full;
        metrics.links_up = tcp.links_up;
        metrics.datagrams = self.tcp.datagram_counters();
        metrics.memory = self.tcp.memory_counters();
        if let Some(clients) = &self.clients {
            metrics.client_bytes_in = clients.bytes_in;
            metrics.client_bytes_out = clients.bytes_out;
            metrics.clients_accepted = clients.accepted;
            metrics.clients_refused = clients.refused;
            metrics.clients = clients.open;
        }
    }

    /// The links to these members.
    pub fn peers(&self, ids: impl Iterator<Item = ReplicaId>, now: Time) -> Vec<PeerReport> {
        let report = |id: ReplicaId| {
            let link = self.tcp.report(id, now);
            PeerReport {
                id: id.0,
                address: link.name,
                connected: link.up,
                incarnation: link.incarnation.0,
                queued_bytes: link.queued as u64,
                error: link.error,
                clock: link.clock.map(PeerClockReport::from),
                memory: link.memory,
                datagrams: link.datagrams,
                datagrams_lost: link.datagrams_lost,
            }
        };
        ids.map(report).collect()
    }

    /// Shows a report to the other threads, and `view` to the gateway.
    pub fn publish(&mut self, report: StatusReport, view: NodeView) {
        let mut counters = Counters::default();
        if let Some(clients) = &mut self.clients {
            let peers = report.peers.iter();
            clients.gateway.set_view(NodeView {
                peers: peers
                    .map(|peer| (ReplicaId(peer.id), peer.address.clone(), peer.connected))
                    .collect(),
                memory_resident: memory_resident(),
                ..view
            });
            counters = clients.gateway.counters();
        }
        self.published.publish(Snapshot {
            report,
            metrics: self.metrics.clone(),
            counters,
        });
    }

    // --- sleeping --------------------------------------------------------------------------

    /// Waits for something to happen, no longer than may be, after a turn that found `count`
    /// things to do and ended `now`; gives the time afterwards.
    ///
    /// # Errors
    /// When the operating system lets nobody wait; an interruption is none.
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
        if timeout != Sleep::No && pause.hears_peers && !self.tcp.doze() {
            timeout = Sleep::No;
        }
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
        self.tcp.awake();
        let now = clock.now();
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
    fn timeout(&self, clock: &Clock, pause: Pause, now: Time) -> Sleep {
        let clients_busy = self.clients.as_ref().is_some_and(Clients::busy);
        let peers_busy = self.tcp.busy() && pause.hears_peers;
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
        precise = precise.min(self.tcp.next_deadline());
        let mut coarse = self.port.next_deadline();
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
        if let Some(clients) = &self.clients {
            coarse = coarse.min(clients.next_deadline());
            if pause.hears_clients {
                precise = precise.min(clients.gateway.next_deadline());
            }
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
        self.port.begin_shutdown();
        if let Some(clients) = &mut self.clients {
            clients.begin_shutdown();
        }
    }

    /// Nobody waits for anything.
    pub fn idle(&self) -> bool {
        let served = |clients: &Clients| clients.gateway.idle();
        self.port.idle() && self.clients.as_ref().is_none_or(served)
    }
}

/// Resident memory of the process in bytes; 0 where the system does not tell.
fn memory_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
}
