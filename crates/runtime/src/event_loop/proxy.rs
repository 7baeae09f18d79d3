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

use super::{
    MAIL_MAX, ROUNDS_MAX, STOP_MAX, TIMERS_MAX,
    reach::{Known, Reach},
    shell::{Pause, Shell, ShellParts},
};
use crate::{
    ExitReason,
    clock::Clock,
    mail::Mail,
    server::{ChangeReport, ChangeRequest, ClockReport, NodeView, StatusReport},
    terms,
    transports::Arrival,
};
use quintet_replica::{
    Bytes, ClientNode, ClockReading, Effect, EventError, Executed, GroupId, Lane, MemberRow,
    NodeStatus, Peer, Recipients, ReplicaId, SnapshotInfo, Status, Submission, Time, ViableIn,
    Voters, Wake, World,
};
use std::{cell::Cell, io};

/// The environment of a frontend without a replica.
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

/// The parts of a proxy.
pub(crate) struct ProxyParts {
    pub shell: ShellParts,
    pub client: ClientNode,
    pub world: ProxyWorld,
    /// The status with all that does not change.
    pub about: StatusReport,
    /// The members.
    pub rows: Vec<MemberRow>,
    pub viable: ViableIn,
}

/// See the module.
pub(crate) struct Proxy {
    shell: Shell,
    client: ClientNode,
    world: ProxyWorld,
    effects: Vec<Effect>,
    submissions: Vec<Submission>,
    about: StatusReport,
    rows: Vec<MemberRow>,
    malformed: u64,
    stop_at: Option<Time>,
}

impl Proxy {
    /// A proxy that has not looked at its sockets yet.
    ///
    /// # Errors
    /// When a socket cannot be watched.
    pub fn new(parts: ProxyParts) -> io::Result<Self> {
        Ok(Self {
            shell: Shell::new(
                parts.shell,
                &parts.world.clock,
                Reach::new(None, Voters::dense(parts.about.members), parts.viable),
            )?,
            client: parts.client,
            world: parts.world,
            effects: Vec::new(),
            submissions: Vec::new(),
            about: parts.about,
            rows: parts.rows,
            malformed: 0,
            stop_at: None,
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) -> ExitReason {
        crate::system::prefer_throughput();
        let mut now = self.world.now();
        loop {
            let (count, ended) = self.turn(now);
            if (self.stop_at).is_some_and(|at| self.shell.idle() || ended >= at) {
                self.shell.flush(ended);
                self.publish(ended);
                return ExitReason::Stopped;
            }
            let pause = Pause {
                wake: Wake::Sleep,
                hears_peers: true,
                hears_clients: true,
                stops_at: self.stop_at,
            };
            match self.shell.wait(&self.world.clock, pause, count, ended) {
                Ok(woken) => now = woken,
                Err(error) => {
                    return ExitReason::Halted(format!("cannot wait for events: {error}"));
                }
            }
        }
    }

    /// One turn: how much there was to do, and when it ended.
    fn turn(&mut self, now: Time) -> (usize, Time) {
        self.shell.metrics.turns += 1;
        let mut count = self.take_mail(now);
        self.shell.peers.receive(true, now);
        count += self.take_arrivals(now);
        self.shell.follow_clocks(&self.world.clock, 0, now);
        count += self.shell.receive_clients(now);
        count += self.pass_time(now);
        let client = &self.client;
        let known = || Known {
            lost: client.without_quorum(now),
            ..Known::default()
        };
        self.shell.look_at_quorum(known, now);
        for _ in 0..ROUNDS_MAX {
            let now = self.world.now();
            let submitted = self.collect(now);
            if !submitted && self.take_arrivals(now) == 0 {
                break;
            }
        }
        let began = now;
        let now = self.world.now();
        if self.shell.note_turn(began, now) {
            let took_ms = now.since(began).as_millis() as u64;
            tracing::warn!(took_ms, "a turn of the event loop was long");
        }
        self.shell.flush(now);
        self.update_rooms();
        self.shell.changed |= count > 0;
        if self.shell.publish_due(now) {
            self.publish(now);
        }
        (count, now)
    }

    fn take_mail(&mut self, now: Time) -> usize {
        if !self.shell.mailbox.rung() {
            return 0;
        }
        self.shell.mailbox.listen();
        let mut count = 0;
        while count < MAIL_MAX
            && let Some(mail) = self.shell.mailbox.take()
        {
            count += 1;
            match mail {
                Mail::Submit(request) => self.shell.ports.push(GroupId(0), request, now),
                Mail::SnapshotNow(_, waiter) => {
                    // The waiting thread may have given up.
                    let _ = waiter.send(Err("a proxy holds no state; ask a replica".to_owned()));
                }
                Mail::Change(request, waiter) => {
                    let report = self.change(&request, now);
                    self.shell.answer_change(waiter, report);
                }
                Mail::Resolved { peer, address } => {
                    self.shell.peers.on_resolved(peer, address, now)
                }
                Mail::Stop => self.begin_stop(now),
                // Nothing here is a member, or writes to a disk.
                Mail::NoMember(_)
                | Mail::Persisted { .. }
                | Mail::DiskFull(_)
                | Mail::CheckpointDue(_)
                | Mail::StorageFailed(_)
                | Mail::SnapshotWritten { .. }
                | Mail::SnapshotSaved(_)
                | Mail::SnapshotFailed { .. } => {}
            }
        }
        if count == MAIL_MAX {
            self.shell.mailbox.ring();
        }
        count
    }

    /// How the cluster works; a proxy has no part in changing that.
    fn change(&self, request: &ChangeRequest, now: Time) -> Result<ChangeReport, String> {
        let members = self.shell.member_reports(&self.rows, now);
        if request.changes_nothing() {
            return Ok(ChangeReport {
                epoch: self.about.epoch,
                protocol: self.about.protocol.clone(),
                options: self.about.options.clone(),
                durability: self.about.durability.clone(),
                fingerprint: self.about.fingerprint.clone(),
                members,
                change: self.about.change.to_owned(),
            });
        }
        let known: Vec<_> = members.into_iter().filter_map(|it| it.redis).collect();
        Err(match known.as_slice() {
            [] => "a proxy changes nothing; ask a replica".to_owned(),
            known => format!(
                "a proxy changes nothing; ask a replica: {}",
                known.join(", ")
            ),
        })
    }

    fn begin_stop(&mut self, now: Time) {
        if self.stop_at.is_none() {
            tracing::info!("stopping");
            self.stop_at = Some(now + STOP_MAX);
            self.shell.begin_shutdown();
        }
    }

    fn take_arrivals(&mut self, now: Time) -> usize {
        let mut count = 0;
        while let Some((_, arrival)) = self.shell.peers.take_arrival(now) {
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
                // No peer shares memory with a proxy.
                Arrival::Put(..) => {}
                // A proxy has one group, whose incarnations come with its links.
                Arrival::Booted(..) => {}
                // A proxy does not listen.
                Arrival::Join(..) => {}
                // The text stands with the link; perhaps the replica is being replaced.
                Arrival::Refused(reason) => tracing::error!(reason, "refused by a replica"),
            }
            self.carry_out(now);
        }
        count
    }

    fn on_frame(&mut self, from: ReplicaId, frame: Bytes) -> Result<(), EventError> {
        let before = self.client.epoch().number;
        let (world, effects) = (&self.world, &mut self.effects);
        self.client.on_frame(from, frame, world, effects)?;
        let epoch = self.client.epoch().number;
        if epoch > before {
            tracing::info!(epoch = epoch.0, "the cluster is in another epoch");
            self.about.epoch = epoch.0;
            self.about.protocol = self.client.protocol().to_owned();
            if let Some(descriptor) = self.client.descriptor() {
                self.about.durability = descriptor.durability.name().to_owned();
                (self.about.options, self.about.limits) = terms::shown(descriptor);
                self.about.fingerprint = descriptor.fingerprint().to_string();
                self.about.members = descriptor.voters().len();
                self.rows.clone_from(&descriptor.members);
                let rows = descriptor.members.len();
                self.world.rooms.resize_with(rows, Cell::default);
                if let Ok(entry) = quintet_protocols::find(self.client.protocol()) {
                    let now = self.world.now();
                    self.shell.enter_epoch(descriptor, entry.viable_in, now);
                }
            }
        }
        Ok(())
    }

    fn pass_time(&mut self, now: Time) -> usize {
        let mut count = 0;
        while count < TIMERS_MAX
            && let Some((_, key)) = self.shell.take_timer(&self.world.clock, now)
        {
            count += 1;
            self.client.on_timer(key, &self.world, &mut self.effects);
            self.carry_out(now);
        }
        // A link that never comes up tells nothing but its error.
        self.shell.changed |= self.shell.on_time(now);
        count
    }

    fn collect(&mut self, now: Time) -> bool {
        let clock = &self.world.clock;
        self.shell.collect(clock, now, &mut self.submissions);
        if self.submissions.is_empty() {
            return false;
        }
        let mut submissions = std::mem::take(&mut self.submissions);
        for submission in submissions.drain(..) {
            let Some(submission) = self.shell.admit(submission, now) else {
                continue;
            };
            self.client
                .submit(submission, &self.world, &mut self.effects);
            self.carry_out(now);
        }
        self.submissions = submissions;
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
                    // Frontends have one connection to each replica.
                    let lane = Lane::Control;
                    let to = Recipients::Replicas(to);
                    self.shell.peers.send(to, lane, frame, now);
                }
                Effect::SetTimer { key, at } => self.shell.timers.set((GroupId(0), key), at),
                Effect::CancelTimer { key } => self.shell.timers.cancel((GroupId(0), key)),
                Effect::Done { batch, outcome } => self.shell.done(batch, outcome, now),
                Effect::Mark(branch) => self.shell.metrics.mark(branch, now),
                other => tracing::debug!(?other, "a frontend cannot ask for this"),
            }
        }
    }

    fn members(&self) -> impl Iterator<Item = ReplicaId> {
        let rows = (0..).map(ReplicaId).zip(&self.rows);
        rows.filter(|(_, row)| row.is_taken()).map(|(id, _)| id)
    }

    fn update_rooms(&self) {
        self.shell.update_rooms(&self.world.rooms);
    }

    fn publish(&mut self, now: Time) {
        self.shell.begin_report(now);
        let report = StatusReport {
            stopping: self.stop_at.is_some(),
            uptime_seconds: now.0 / 1_000_000_000,
            rows: self.shell.member_reports(&self.rows, now),
            open: self.client.open(),
            frames_malformed: self.malformed,
            paths: self.client.paths().into_iter().collect(),
            clock: ClockReport::from(self.world.clock.state()),
            peers: (self.shell).peer_reports(self.members(), now),
            ..self.about.clone()
        };
        let protocol = Status {
            role: "proxy",
            ..Status::default()
        };
        let (reachable, silent) = self.shell.reachable(now);
        let view = NodeView {
            node: NodeStatus {
                protocol,
                open: report.open,
                ..NodeStatus::default()
            },
            members: self.about.members,
            reachable,
            silent,
            epoch: self.about.epoch,
            protocol: self.about.protocol.clone(),
            durability: self.about.durability.parse().ok(),
            disk_state: "none",
            ..NodeView::default()
        };
        self.shell.publish(report, Vec::new(), view);
    }
}
