//! A proxy: the client's half of a protocol with a server before it and no replica behind it.
//!
//! ```text
//!   clients ──RESP──► Gateway ──batches──► Frontend ──requests──► every replica
//!                        ▲                    ▲                        │
//!                        └────── results ─────┴──── replies, hashes ───┘
//! ```
//!
//! It is the server and the frontend that every replica has, in a process of their own. It keeps
//! nothing that another could not find out: any number may serve a cluster, and any may die. Its
//! clients then connect to another, as they would after the death of a replica.

use super::{CLOCK_AGE_MAX, EVENTS_MAX, MAIL_MAX, NEARLY_IDLE, PUBLISH_EVERY, ROUNDS_MAX};
use super::{STOP_MAX, TIMERS_MAX, clients::Clients};
use crate::{
    ExitReason, Metrics, Published,
    clock::Clock,
    mail::{Mail, Mailbox},
    peer_clock::agree,
    port::{PORT_BATCHES, Port},
    server::{ClockReport, Gateway, NodeView, PeerClockReport, PeerReport, StatusReport},
    status::Snapshot,
    timers::Timers,
    transports::{Arrival, tcp::Tcp},
};
use mio::{Events, Poll};
use quintet_replica::{
    Bytes, Client, ClientFrame, ClockReading, Effect, EpochNumber, EventError, Executed, GroupId,
    NodeStatus, Outcome, Peer, Recipients, ReplicaId, SnapshotInfo, Status, Submission, Time,
    World, client_frame, read_client_frame,
};
use std::{cell::Cell, io, sync::Arc, time::Duration};

/// What a frontend without a replica may look at.
pub(crate) struct ProxyWorld {
    pub clock: Clock,
    /// Per member: how many bytes may be queued for it.
    pub rooms: Vec<Cell<usize>>,
}

impl World for ProxyWorld {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn clock(&self) -> ClockReading {
        self.clock.reading()
    }

    fn room(&self, peer: ReplicaId) -> usize {
        self.rooms.get(peer.index()).map_or(0, Cell::get)
    }

    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }

    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

/// What a proxy is made from.
pub(crate) struct ProxyParts {
    pub poll: Poll,
    pub mailbox: Mailbox,
    pub client: Box<dyn Client>,
    pub world: ProxyWorld,
    pub tcp: Tcp,
    pub server: Option<(Gateway, std::net::TcpListener)>,
    pub port: Port,
    pub published: Arc<Published>,
    /// The status with all that does not change.
    pub about: StatusReport,
    pub spin_max: Duration,
}

/// See the module.
pub(crate) struct Proxy {
    poll: Poll,
    events: Option<Events>,
    mailbox: Mailbox,
    client: Box<dyn Client>,
    world: ProxyWorld,
    tcp: Tcp,
    clients: Option<Clients>,
    port: Port,
    timers: Timers,
    effects: Vec<Effect>,
    submissions: Vec<Submission>,
    published: Arc<Published>,
    about: StatusReport,
    metrics: Metrics,
    malformed: u64,
    publish_at: Time,
    changed: bool,
    spin_max: Duration,
    last_work: Time,
    last_count: usize,
    clock_read: (Time, u64),
    stop_at: Option<Time>,
}

impl Proxy {
    /// A proxy that has not looked at its sockets yet.
    ///
    /// # Errors
    /// When a socket cannot be watched.
    pub fn new(parts: ProxyParts) -> io::Result<Self> {
        let registry = parts.poll.registry().try_clone()?;
        let clients = parts
            .server
            .map(|(gateway, listener)| {
                Clients::new(gateway, listener, registry, super::TOKEN_CLIENTS)
            })
            .transpose()?;
        let clock = parts.world.clock().now;
        Ok(Self {
            poll: parts.poll,
            events: Some(Events::with_capacity(EVENTS_MAX)),
            mailbox: parts.mailbox,
            client: parts.client,
            world: parts.world,
            tcp: parts.tcp,
            clients,
            port: parts.port,
            timers: Timers::default(),
            effects: Vec::new(),
            submissions: Vec::new(),
            published: parts.published,
            about: parts.about,
            metrics: Metrics::default(),
            malformed: 0,
            publish_at: Time(0),
            changed: true,
            spin_max: parts.spin_max,
            last_work: Time(0),
            last_count: 0,
            clock_read: (Time(0), clock),
            stop_at: None,
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) -> ExitReason {
        crate::system::prefer_throughput();
        let mut now = self.world.now();
        loop {
            let count = self.turn(now);
            now = self.world.now();
            if self.stop_at.is_some_and(|at| self.idle() || now >= at) {
                self.tcp.flush(now);
                self.publish(now);
                return ExitReason::Stopped;
            }
            match self.wait(count, now) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return ExitReason::Halted(format!("cannot wait for events: {error}"));
                }
            }
            now = self.world.now();
        }
    }

    fn idle(&self) -> bool {
        let served = |clients: &Clients| clients.gateway.idle();
        self.port.idle() && self.clients.as_ref().is_none_or(served)
    }

    fn turn(&mut self, now: Time) -> usize {
        self.metrics.turns += 1;
        let mut count = self.take_mail(now);
        self.tcp.receive(now);
        count += self.take_arrivals(now);
        self.follow_clocks(now);
        if let Some(clients) = &mut self.clients {
            count += clients.receive(now);
        }
        count += self.pass_time(now);
        for _ in 0..ROUNDS_MAX {
            let now = self.world.now();
            let submitted = self.collect(now);
            if !submitted && self.take_arrivals(now) == 0 {
                break;
            }
        }
        let now = self.world.now();
        self.tcp.flush(now);
        if let Some(clients) = &mut self.clients {
            clients.flush();
        }
        self.update_rooms();
        self.changed |= count > 0;
        if self.changed && now >= self.publish_at {
            self.publish(now);
        }
        count
    }

    fn take_mail(&mut self, now: Time) -> usize {
        if !self.mailbox.rung() {
            return 0;
        }
        self.mailbox.listen();
        let mut count = 0;
        while count < MAIL_MAX
            && let Some(mail) = self.mailbox.take()
        {
            count += 1;
            match mail {
                Mail::Submit(request) => self.port.push(request, now),
                Mail::SnapshotNow(waiter) => {
                    // Who waited may have given up.
                    let _ = waiter.send(Err("a proxy holds no state; ask a replica".to_owned()));
                }
                Mail::Resolved { peer, address } => self.tcp.on_resolved(peer, address, now),
                Mail::Stop => self.begin_stop(now),
                // Nothing here writes to a disk.
                Mail::Persisted { .. }
                | Mail::DiskFull(_)
                | Mail::StorageFailed(_)
                | Mail::SnapshotWritten(_)
                | Mail::SnapshotSaved(_)
                | Mail::SnapshotFailed(_) => {}
            }
        }
        if count == MAIL_MAX {
            self.mailbox.ring();
        }
        count
    }

    fn begin_stop(&mut self, now: Time) {
        if self.stop_at.is_none() {
            tracing::info!("stopping");
            self.stop_at = Some(now + STOP_MAX);
            self.port.begin_shutdown();
            if let Some(clients) = &mut self.clients {
                clients.begin_shutdown();
            }
        }
    }

    fn take_arrivals(&mut self, now: Time) -> usize {
        let mut count = 0;
        while let Some(arrival) = self.tcp.take_arrival() {
            count += 1;
            match arrival {
                Arrival::Frame(Peer::Replica(from), frame) => {
                    if let Err(error) = self.on_frame(from, frame) {
                        self.malformed += 1;
                        tracing::debug!(%error, "frame dropped");
                    }
                }
                Arrival::Link(Peer::Replica(from), link) => {
                    self.update_rooms();
                    self.client
                        .on_link(from, link, &self.world, &mut self.effects);
                }
                Arrival::Frame(Peer::Frontend(_), _) | Arrival::Link(Peer::Frontend(_), _) => {}
                // The text stands with the link; perhaps the replica is being replaced.
                Arrival::Refused(reason) => tracing::error!(reason, "refused by a replica"),
            }
            self.carry_out(now);
        }
        count
    }

    fn on_frame(&mut self, from: ReplicaId, frame: Bytes) -> Result<(), EventError> {
        let (world, effects) = (&self.world, &mut self.effects);
        match read_client_frame(frame)? {
            ClientFrame::Message(message) => self.client.on_message(from, message, world, effects),
            ClientFrame::Reply(batch, header, results) => {
                let reply = (header, results);
                self.client.on_reply(from, batch, reply, world, effects)
            }
        }
    }

    fn follow_clocks(&mut self, now: Time) {
        if !self.tcp.take_clock_news() {
            return;
        }
        let clock = &self.world.clock;
        let (disciplined, _) = clock.discipline();
        if clock.was_set() {
            tracing::warn!("the system's clock was set");
            self.tcp.forget_clocks();
        }
        clock.follow(agree(disciplined, &self.tcp.standings(now)));
        self.changed = true;
    }

    fn pass_time(&mut self, now: Time) -> usize {
        let mut count = 0;
        while count < TIMERS_MAX {
            let world = &self.world;
            let Some(key) = self.timers.take_due(now, || world.clock().now) else {
                break;
            };
            count += 1;
            self.client
                .on_timer(key.timer, &self.world, &mut self.effects);
            self.carry_out(now);
        }
        if self.tcp.next_deadline() <= now {
            self.tcp.on_time(now);
            // A link that never comes up tells nothing but its error.
            self.changed = true;
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

    fn collect(&mut self, now: Time) -> bool {
        if now.since(self.clock_read.0) > CLOCK_AGE_MAX {
            self.clock_read = (now, self.world.clock().now);
        }
        if let Some(clients) = &mut self.clients {
            let clock = self.clock_read.1;
            clients.gateway.collect(now, clock, &mut self.submissions);
        }
        self.port.collect(now, &mut self.submissions);
        if self.submissions.is_empty() {
            return false;
        }
        for submission in std::mem::take(&mut self.submissions) {
            self.metrics.batches += 1;
            self.client
                .submit(submission, &self.world, &mut self.effects);
            self.carry_out(now);
        }
        true
    }

    fn carry_out(&mut self, now: Time) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Send {
                    to: Recipients::Replicas(to),
                    lane: _,
                    frame,
                } => {
                    let epoch = EpochNumber(self.about.epoch);
                    let frame = client_frame(GroupId(0), epoch, frame);
                    // Frontends have one connection to each replica.
                    let lane = quintet_replica::Lane::Control;
                    self.tcp.send(Recipients::Replicas(to), lane, &frame, now);
                }
                Effect::SetTimer { key, at } => self.timers.set(key, at),
                Effect::CancelTimer { key } => self.timers.cancel(key),
                Effect::Done { batch, outcome } => {
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
                Effect::Mark(branch) => self.metrics.mark(branch),
                other => tracing::debug!(?other, "a frontend cannot ask for this"),
            }
        }
    }

    fn update_rooms(&self) {
        for (index, room) in self.world.rooms.iter().enumerate() {
            room.set(self.tcp.room(ReplicaId(index as u16)));
        }
    }

    fn publish(&mut self, now: Time) {
        self.changed = false;
        self.publish_at = now + PUBLISH_EVERY;
        let reachable = self.tcp.links_up();
        let clock = self.world.clock.state();
        let peers = (0..self.about.members as u16).map(|id| {
            let link = self.tcp.report(ReplicaId(id), now);
            PeerReport {
                id,
                address: link.name,
                connected: link.up,
                incarnation: link.incarnation.0,
                queued_bytes: link.queued as u64,
                error: link.error,
                clock: link.clock.map(PeerClockReport::from),
            }
        });
        let report = StatusReport {
            stopping: self.stop_at.is_some(),
            uptime_seconds: now.0 / 1_000_000_000,
            open: self.client.open(),
            frames_malformed: self.malformed,
            paths: self.client.paths().into_iter().collect(),
            clock: ClockReport::from(clock),
            peers: peers.collect(),
            ..self.about.clone()
        };
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
        let mut counters = crate::server::Counters::default();
        if let Some(clients) = &mut self.clients {
            metrics.client_bytes_in = clients.bytes_in;
            metrics.client_bytes_out = clients.bytes_out;
            metrics.clients_accepted = clients.accepted;
            metrics.clients_refused = clients.refused;
            metrics.clients = clients.open;
            let peers = report.peers.iter();
            let protocol = Status {
                role: "proxy",
                ..Status::default()
            };
            clients.gateway.set_view(NodeView {
                node: NodeStatus {
                    protocol,
                    open: report.open,
                    ..NodeStatus::default()
                },
                reachable,
                peers: peers
                    .map(|peer| (ReplicaId(peer.id), peer.address.clone(), peer.connected))
                    .collect(),
                epoch: self.about.epoch,
                memory_resident: super::publish::memory_resident(),
                disk_state: "none",
                ..NodeView::default()
            });
            counters = clients.gateway.counters();
        }
        self.published.publish(Snapshot {
            report,
            metrics: self.metrics.clone(),
            counters,
        });
    }

    /// Waits for something to happen, no longer than may be.
    fn wait(&mut self, count: usize, now: Time) -> io::Result<()> {
        if count > 0 {
            self.last_work = now;
            self.last_count = count;
        }
        let timeout = self.timeout(now);
        if timeout != Some(Duration::ZERO) {
            self.metrics.sleeps += 1;
        } else if count == 0 {
            // Whoever could bring work must get the processor.
            rustix::thread::sched_yield();
        }
        let Some(mut events) = self.events.take() else {
            return Ok(());
        };
        let result = self.poll.poll(&mut events, timeout);
        let now = self.world.now();
        for event in &events {
            let token = event.token().0;
            if token >= super::TOKEN_CLIENTS - 1 {
                if let Some(clients) = &mut self.clients {
                    clients.on_event(event);
                }
            } else if token != super::TOKEN_MAIL {
                self.tcp.on_event(event, now);
            }
        }
        self.events = Some(events);
        result
    }

    /// How long to sleep; zero to look again at once, `None` for ever.
    fn timeout(&self, now: Time) -> Option<Duration> {
        let busy = self.clients.as_ref().is_some_and(Clients::busy) || self.tcp.busy();
        let nearly_idle = self.last_count <= NEARLY_IDLE;
        let spins = nearly_idle && now.since(self.last_work) < self.spin_max;
        if busy || spins || self.mailbox.rung() {
            return Some(Duration::ZERO);
        }
        let mut next = self.timers.next(now, || self.world.clock().now);
        next = next
            .min(self.tcp.next_deadline())
            .min(self.port.next_deadline());
        if self.changed {
            next = next.min(self.publish_at);
        }
        if let Some(clients) = &self.clients {
            next = next
                .min(clients.next_deadline())
                .min(clients.gateway.next_deadline());
        }
        if let Some(at) = self.stop_at {
            next = next.min(at).min(now + Duration::from_millis(5));
        }
        (next != Time::NEVER).then(|| next.since(now))
    }
}
