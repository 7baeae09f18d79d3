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
//! With `threads = "pipelined"` the sockets of peers and those of clients are two other threads'
//! (`peers.rs`, `service.rs`), and this one reads and writes rings instead.
//!
//! Everything that is there is taken before anything is sent, so that batches form by themselves
//! and the loop never waits in order to batch.

mod changes;
mod clients;
mod epochs;
mod evict;
mod peers;
mod proxy;
mod publish;
mod reach;
mod service;
mod shards;
mod shell;
mod stage;
mod storage;
mod world;

pub(crate) use epochs::{ASK_EVERY, Epochs};
use peers::DISK_HUNG;
pub(crate) use proxy::{Proxy, ProxyParts, ProxyWorld};
pub(crate) use publish::About;
pub(crate) use shards::{MemberParts, ShardAbout, ShardPart};
pub(crate) use shell::{Apart, ShellParts, TOKEN_MAIL, TOKEN_PEERS};

use crate::{
    ExitReason,
    journal_thread::JournalThread,
    kept::{Kept, Origin},
    mail::{Mail, SnapshotWaiter},
    server::SnapshotReport,
    snapshots::Snapshots,
    transports::Arrival,
};
use changes::Changes;
use evict::Evictions;
use quintet_replica::{
    CommandTime, Control, EpochNumber, GroupId, GroupIndex, HaltKind, Incarnation, Input, Link,
    Node, Output, Peer, PersistId, RecoveredBytes, ReplicaId, Slot, SnapshotInfo, Submission, Time,
    ViableIn, Wake, frame_group,
};
use reach::{Known, Reach};
use shards::{Shards, SnapshotNews, earlier};
use shell::{Pause, Shell};
use std::{
    io,
    time::{Duration, Instant},
};
use storage::{DiskState, Trims};
pub(crate) use world::RuntimeWorld;

/// Clients wait no longer after a restart for what the members' clocks show.
const CLOCKS_KNOWN: Time = Time(2_000_000_000);
/// The most rounds of collecting and carrying out in one turn.
const ROUNDS_MAX: usize = 64;
/// A turn that has taken this long takes up nothing new before everybody else had one.
const TURN_MAX: Duration = Duration::from_millis(10);
const MAIL_MAX: usize = 4096;
const TIMERS_MAX: usize = 256;
/// A graceful stop takes no longer.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A leader waits this long for another to take over.
const HAND_OFF_MAX: Duration = Duration::from_secs(1);

/// The parts of an event loop.
pub(crate) struct Parts {
    pub shell: ShellParts,
    pub node: Node,
    /// Of a layout, if keys are divided.
    pub shards: Vec<(ShardAbout, ShardPart)>,
    pub recovered: RecoveredBytes,
    pub world: RuntimeWorld,
    pub journal: JournalThread,
    pub journal_queue_max: usize,
    pub about: About,
    pub epochs: Epochs,
    /// A member that is gone for so long is removed; none is when zero.
    pub evict_after: Duration,
    pub viable: ViableIn,
}

struct Stopping {
    deadline: Time,
    hand_off_until: Time,
}

/// See the module.
pub(crate) struct EventLoop {
    shell: Shell,
    node: Node,
    shards: Shards,
    world: RuntimeWorld,
    journal: JournalThread,
    journal_queue_max: usize,
    outputs: Vec<Output>,
    submissions: Vec<Submission>,
    about: About,
    epochs: Epochs,
    evictions: Evictions,
    journal_on_disk: u64,
    disk: DiskState,
    /// A leader without room for its journal asks others to lead, not before this.
    step_down_at: Time,
    /// The last write handed to the journal, and the last that is durable.
    written: PersistId,
    durable: PersistId,
    /// Lost data is here again once this write is durable.
    repaired_at: Option<PersistId>,
    trims: Trims,
    leader: Option<ReplicaId>,
    /// The members that take part, as last agreed.
    route: Vec<(ReplicaId, Incarnation)>,
    changes: Changes,
    snapshot_waiters: Vec<SnapshotWaiter>,
    stopping: Option<Stopping>,
    exit: Option<ExitReason>,
}

impl EventLoop {
    /// An event loop whose node has been started.
    ///
    /// # Errors
    /// When a socket cannot be watched, or (as the inner error) when snapshot or journal are
    /// invalid.
    pub fn new(parts: Parts) -> io::Result<Result<Self, String>> {
        let voters = parts.epochs.descriptor.voters();
        let changes = Changes::new(voters);
        let reach = Reach::new(Some(parts.node.id()), voters, parts.viable);
        let mut this = Self {
            shell: Shell::new(parts.shell, &parts.world.clock, reach)?,
            node: parts.node,
            shards: Shards::default(),
            world: parts.world,
            journal: parts.journal,
            journal_queue_max: parts.journal_queue_max,
            outputs: Vec::new(),
            submissions: Vec::new(),
            about: parts.about,
            epochs: parts.epochs,
            evictions: Evictions::new(parts.evict_after),
            journal_on_disk: 0,
            disk: DiskState::Ok,
            step_down_at: Time(0),
            written: PersistId(0),
            durable: PersistId(0),
            repaired_at: None,
            trims: Trims::default(),
            leader: None,
            route: Vec::new(),
            changes,
            snapshot_waiters: Vec::new(),
            stopping: None,
            exit: None,
        };
        // On the first start, too: one clock that is hours ahead would move the log's time there
        // before the others' are known. Clients' requests wait for those.
        let members = this.about.members;
        this.world.clock.begin_log(CommandTime(0), members);
        if let Err(error) = this
            .node
            .start(parts.recovered, &this.world, &mut this.outputs)
        {
            return Ok(Err(error.to_string()));
        }
        this.world.clock.begin_log(this.node.log_time(), members);
        let mut started = Vec::new();
        match Shards::start(parts.shards, &mut this.node, &this.world, &mut started) {
            Ok(shards) => this.shards = shards,
            Err(error) => return Ok(Err(error)),
        }
        if !this.shards.is_empty() {
            let log = this.shards.log_time().max(this.node.log_time());
            this.world.clock.begin_log(log, members);
        }
        this.carry_out();
        this.carry_out_started(started);
        this.publish(this.now());
        Ok(Ok(this))
    }

    fn now(&self) -> Time {
        use quintet_replica::World;
        self.world.now()
    }

    /// Runs until the replica stops, for whatever reason.
    pub fn run(mut self) -> ExitReason {
        crate::system::prefer_throughput();
        let mut now = self.now();
        loop {
            let (wake, count, ended) = self.turn(now);
            if let Some(reason) = self.maybe_exit() {
                self.finish(&reason);
                return reason;
            }
            let pause = self.pause(wake);
            match self.shell.wait(&self.world.clock, pause, count, ended) {
                Ok(woken) => now = woken,
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
        self.shell.metrics.turns += 1;
        let mut count = self.take_mail(now);
        let hears_peers = !self.choked();
        self.shell.peers.receive(hears_peers, now);
        count += self.take_arrivals(now);
        let members = self.about.members;
        self.shell.follow_clocks(&self.world.clock, members, now);
        count += self.shell.receive_clients(now);
        count += self.pass_time(now);
        if hears_peers {
            let known = || Known {
                route: &self.route,
                quorate: self.node.quorate_peers(now),
                committed: self.node.protocol_status().committed,
                ..Known::default()
            };
            self.shell.look_at_quorum(known, now);
            self.look_at_shards(now);
            if let Some(lost) = self.shell.quorum_word(now) {
                self.node.tell_quorum(lost, &mut self.outputs);
                self.carry_out();
            }
        }
        let began = now;
        let (wake, now) = self.settle(began);
        if self.shell.note_turn(began, now) {
            self.tell_long_turn(now.since(began));
        }
        self.shell.flush(now);
        self.update_rooms();
        self.shell.changed |= count > 0;
        if self.shell.publish_due(now) {
            self.publish(now);
            self.world.snapshots.close_unused(Instant::now());
            self.shards.close_unused(Instant::now());
        }
        (wake, count, now)
    }

    fn input(&mut self, input: Input) {
        if let Err(error) = self.node.on_input(input, &self.world, &mut self.outputs) {
            tracing::debug!(%error, "frame dropped");
        }
    }

    fn take_mail(&mut self, now: Time) -> usize {
        if !self.shell.mailbox.rung() {
            return 0;
        }
        self.shell.mailbox.listen();
        let mut count = 0;
        let mut persisted = None;
        while count < MAIL_MAX
            && let Some((group, mail)) = self.shell.mailbox.take_of_group()
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
                    self.shell.metrics.journal_bytes = bytes;
                    self.shell.metrics.journal_syncs = syncs;
                    self.journal_on_disk = on_disk;
                    persisted = Some(upto);
                }
                Mail::DiskFull(full) => self.on_disk_full(full, now),
                Mail::CheckpointDue(group) => self.checkpoint_of(group),
                Mail::StorageFailed(reason) => {
                    tracing::error!(reason, "the storage failed");
                    self.disk = DiskState::Failed;
                    self.exit = Some(ExitReason::StorageFailed(reason));
                }
                Mail::SnapshotWritten { file, bytes } if group != GroupId(0) => {
                    self.on_shard_snapshot(group, SnapshotNews::Written(file, bytes));
                }
                Mail::SnapshotSaved(kept) if group != GroupId(0) => {
                    self.on_shard_snapshot(group, SnapshotNews::Saved(kept));
                }
                Mail::SnapshotFailed { file, reason } if group != GroupId(0) => {
                    tracing::error!(group = group.0, reason, "no snapshot of a shard was saved");
                    self.on_shard_snapshot(group, SnapshotNews::Failed(file));
                }
                Mail::SnapshotWritten { file, bytes } => {
                    if self.world.snapshots.is_current(file) {
                        self.input(Input::SnapshotWritten(bytes));
                    }
                }
                Mail::SnapshotSaved(info) => self.on_snapshot_saved(info),
                Mail::SnapshotFailed { file, reason } => {
                    self.shell.metrics.snapshots_failed += 1;
                    tracing::error!(reason, "no snapshot was saved, so the log is kept");
                    // The one that has taken its place meanwhile may yet be saved.
                    if self.world.snapshots.is_current(file) {
                        self.answer_snapshot_waiters(&Err(reason));
                        self.world.snapshots.failed();
                        self.input(Input::SnapshotFailed);
                    }
                }
                Mail::Submit(request) => self.submit(group, request, now),
                Mail::SnapshotNow(shard, waiter) => self.on_snapshot_now(&shard, waiter),
                Mail::Change(request, waiter) => self.on_change(&request, waiter, now),
                Mail::NoMember(reason) => {
                    tracing::error!(reason, "this replica is no member any more");
                    self.exit = Some(ExitReason::DataRefused(reason));
                }
                Mail::Resolved { peer, address } => {
                    self.shell.peers.on_resolved(peer, address, now)
                }
                Mail::Stop => self.begin_stop(now),
            }
            self.carry_out();
        }
        if count == MAIL_MAX {
            self.shell.mailbox.ring();
        }
        if let Some(upto) = persisted {
            self.durable = upto;
            self.maybe_repaired();
            self.tell_durable(upto);
            self.carry_out();
        }
        count
    }

    fn take_arrivals(&mut self, now: Time) -> usize {
        let mut count = 0;
        while let Some((arrived, arrival)) = self.shell.peers.take_arrival(now) {
            count += 1;
            match arrival {
                Arrival::Frame(from, frame)
                    if let Some(group) = frame_group(&frame)
                        && group != GroupId(0) =>
                {
                    self.on_shard_frame(
                        group,
                        Input::Frame {
                            from,
                            arrived,
                            frame,
                        },
                    );
                }
                Arrival::Frame(from, frame) => {
                    self.input(Input::Frame {
                        from,
                        arrived,
                        frame,
                    });
                }
                Arrival::Put(from, ranges) => self.input(Input::Put { from, ranges }),
                Arrival::Link(peer, link) => {
                    if matches!((peer, link), (Peer::Replica(_), Link::Up { .. })) {
                        // The protocol may answer at once and asks how much it may send.
                        self.update_rooms();
                    }
                    self.input(Input::Link(peer, link));
                    if let Peer::Replica(id) = peer
                        && !self.shards.is_empty()
                    {
                        self.tell_shards_of_link(id, link);
                    }
                }
                Arrival::Booted(id, boot) => self.shards.booted(id, boot),
                Arrival::Refused(reason) => {
                    tracing::error!(reason, "refused by a peer");
                    self.exit = Some(ExitReason::DataRefused(reason));
                }
                Arrival::Join(connection, request) => self.on_join(connection, request, now),
            }
            self.carry_out();
        }
        count
    }

    fn pass_time(&mut self, now: Time) -> usize {
        let mut count = 0;
        // One at a time: each may cancel the next. A timer that is set for now fires next turn.
        while count < TIMERS_MAX
            && let Some((group, key)) = self.shell.take_timer(&self.world.clock, now)
        {
            count += 1;
            match group {
                GroupId(0) => self.input(Input::Timer(key)),
                group => self.on_shard_timer(group, key),
            }
            self.carry_out();
        }
        self.shell.on_time(now);
        self.ask_membership(now);
        self.evict(now);
        if self.epochs.changing.is_some() {
            self.step_change(now);
            self.carry_out();
        }
        count
    }

    /// Submits what clients want and lets the node work until neither brings anything new: what
    /// finishes in this turn may make room for what waits.
    fn settle(&mut self, began: Time) -> (Wake, Time) {
        let mut now = self.now();
        for _ in 0..ROUNDS_MAX {
            let submitted = self.collect(now);
            let mut wake = self.node.on_idle(&self.world, &mut self.outputs);
            let mut finished = self.carry_out();
            if !self.shards.is_empty() {
                let shards = self.idle_shards(now);
                wake = earlier(wake, shards.0);
                finished |= shards.1;
            }
            now = self.now();
            let arrived = self.take_arrivals(now);
            if !submitted && !finished && arrived == 0 {
                return (wake, now);
            }
            if now.since(began) > TURN_MAX {
                break;
            }
        }
        (Wake::Spin, now)
    }

    /// Says why clients and peers had to wait.
    #[cold]
    fn tell_long_turn(&self, took: Duration) {
        let took_ms = took.as_millis() as u64;
        let longest = self
            .node
            .take_longest()
            .or_else(|| self.shards.take_longest());
        match longest {
            Some((command, steps)) => tracing::warn!(
                took_ms,
                command,
                steps,
                "a turn of the event loop was long; the longest command since the last such line"
            ),
            None => tracing::warn!(
                took_ms,
                "a turn of the event loop was long; no command took many steps"
            ),
        }
    }

    /// Whether nothing here tells the time but clocks that are not known yet, though a shard may have
    /// its majority without the cluster's having one. Nor has any member refused this replica's
    /// directory by then.
    fn is_timeless(&self) -> bool {
        let log = self.shards.log_time().max(self.node.log_time());
        !self.shards.is_empty() && log == CommandTime(0)
    }

    fn collect(&mut self, now: Time) -> bool {
        if !self.hears_clients() {
            return false;
        }
        // Until the clocks are known the log's time stands where it stood before the restart, which
        // may be hours ago, or at the beginning of all time: a session that is opened then has ended
        // as soon as they are, and so has what is to expire.
        if self.world.clock.waits_for_peers() && (now < CLOCKS_KNOWN || self.is_timeless()) {
            return false;
        }
        let clock = &self.world.clock;
        self.shell.collect(clock, now, &mut self.submissions);
        if self.submissions.is_empty() {
            return false;
        }
        let mut submissions = std::mem::take(&mut self.submissions);
        for submission in submissions.drain(..) {
            let Some(submission) = self.submit_to_shard(submission) else {
                continue;
            };
            if let Some(submission) = self.shell.admit(submission, now) {
                self.input(Input::Submit(submission));
            }
        }
        self.submissions = submissions;
        self.carry_out();
        true
    }

    // --- what the node wants ---------------------------------------------------------------

    /// Carries out what the node asked for; true when a batch has finished.
    fn carry_out(&mut self) -> bool {
        self.carry_out_own() | self.carry_out_foreign()
    }

    fn carry_out_own(&mut self) -> bool {
        if self.outputs.is_empty() {
            return false;
        }
        let now = self.now();
        let mut finished = false;
        let mut sent = false;
        let mut begins = None;
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send { to, lane, frame } => {
                    self.shell.peers.send(to, lane, frame, now);
                    sent = true;
                }
                Output::Put { to, ranges } => {
                    sent = true;
                    let epoch = EpochNumber(self.about.epoch);
                    self.shell.peers.put(to, epoch, ranges, now);
                }
                Output::Journal { id, write } => {
                    self.shell.metrics.journal_writes += 1;
                    let id = self.numbered(id);
                    self.written = id;
                    self.journal.write(GroupIndex(0), id, write);
                }
                Output::Trim { below } => self.trim_later(below),
                Output::SetTimer { key, at } => self.shell.timers.set((GroupId(0), key), at),
                Output::CancelTimer { key } => self.shell.timers.cancel((GroupId(0), key)),
                output @ (Output::SnapshotBegin { .. }
                | Output::SnapshotAppend(_)
                | Output::SnapshotTruncate(_)
                | Output::SnapshotBridges { .. }
                | Output::SnapshotFinish
                | Output::SnapshotAbandon) => drop(self.world.snapshots.carry_out(output)),
                Output::Done { batch, outcome } => {
                    self.shell.done(batch, outcome, now);
                    finished = true;
                }
                Output::Route {
                    members, agreed, ..
                } => {
                    if agreed {
                        self.route = members.to_vec();
                    }
                }
                Output::Recovered => {
                    self.repaired_at = Some(self.written);
                    self.maybe_repaired();
                }
                Output::EpochBegins {
                    number,
                    descriptor,
                    base,
                } => begins = Some((number, descriptor, base)),
                Output::Digest(digest) => {
                    let position = digest.executed.position.0;
                    let digest = format!("{:032x}", digest.digest);
                    tracing::debug!(position, digest, "the state's digest");
                }
                Output::Diverged(found) => self.on_diverged(&found, ""),
                Output::Mark(branch) => self.shell.metrics.mark(branch, now),
                Output::BreakLinks => self.shell.peers.break_links(DISK_HUNG, now),
                Output::Halt(kind, reason) => {
                    tracing::error!(reason, "the replica cannot continue");
                    self.exit = Some(match kind {
                        HaltKind::StartAgain => ExitReason::StartAgain(reason),
                        HaltKind::Refused | HaltKind::NoMember => ExitReason::DataRefused(reason),
                    });
                }
            }
        }
        self.outputs = outputs;
        if sent {
            self.update_rooms();
        }
        if let Some((number, descriptor, base)) = begins {
            self.begin_epoch(number, descriptor, base);
            finished |= self.carry_out_own();
        }
        finished
    }

    fn update_rooms(&self) {
        self.shell.update_rooms(&self.world.rooms);
    }

    // --- snapshots on demand ---------------------------------------------------------------

    fn on_snapshot_saved(&mut self, kept: Kept) {
        let info = kept.info;
        self.shell.metrics.snapshots += 1;
        self.world.snapshots.saved(kept);
        if kept.is_fetched() {
            self.journal.skip(GroupIndex(0));
        }
        self.trim_due();
        if kept.origin != Origin::Bridge {
            self.answer_snapshot_waiters(&Ok(snapshot_report(&self.world.snapshots, info)));
        }
        self.input(Input::SnapshotSaved(info));
    }

    fn answer_snapshot_waiters(&mut self, answer: &SnapshotAnswer) {
        answer_waiters(&mut self.snapshot_waiters, answer);
    }

    fn on_snapshot_now(&mut self, shard: &str, waiter: SnapshotWaiter) {
        if !self.shards.is_empty() || !shard.is_empty() {
            return self.on_shard_snapshot_now(shard, waiter);
        }
        let known = known_snapshot(self.node.executed().slot, &self.world.snapshots);
        if let Some(answer) = known {
            // The waiting thread may have given up.
            let _ = waiter.send(answer);
            return;
        }
        self.snapshot_waiters.push(waiter);
        self.node.ask_for_checkpoint(&self.world, &mut self.outputs);
    }

    // --- waiting ---------------------------------------------------------------------------

    fn pause(&self, wake: Wake) -> Pause {
        Pause {
            wake,
            hears_peers: !self.choked(),
            hears_clients: self.hears_clients(),
            stops_at: (self.stopping.as_ref().map(|stopping| stopping.deadline))
                .into_iter()
                .chain(self.change_due())
                .min(),
        }
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
        self.shell.begin_shutdown();
        self.input(Input::Control(Control::HandOff));
        self.tell_shards(&Control::HandOff);
    }

    fn maybe_exit(&mut self) -> Option<ExitReason> {
        if self.exit.is_some() {
            return self.exit.take();
        }
        let stopping = self.stopping.as_ref()?;
        let now = self.now();
        let leads = now < stopping.hand_off_until
            && self.shell.peers.links_up() > 0
            && (self.node.protocol_status().leader == Some(self.node.id()) || self.shards.leads());
        ((self.shell.idle() && !leads) || now >= stopping.deadline).then_some(ExitReason::Stopped)
    }

    fn finish(&mut self, reason: &ExitReason) {
        let now = self.now();
        self.shell.peers.flush(now);
        self.answer_snapshot_waiters(&Err("the replica has stopped".to_owned()));
        self.publish(now);
        if *reason == ExitReason::Stopped {
            self.journal.finish();
        }
        self.world.snapshots.finish();
        self.shards.finish_snapshots();
        // It has been logged; the next start makes the copies equal.
        let _ = self.epochs.second_copy.finish();
        tracing::info!(%reason, "the replica has ended");
    }
}

type SnapshotAnswer = Result<SnapshotReport, String>;

/// The newest snapshot, as the one who asked for it is told.
fn snapshot_report(snapshots: &Snapshots, info: SnapshotInfo) -> SnapshotReport {
    SnapshotReport {
        slot: info.id.slot.0,
        bytes: info.length,
        path: snapshots.newest_path(),
    }
}

/// The answer to who wants a snapshot of all that is executed, if it needs no new one.
fn known_snapshot(executed: Slot, snapshots: &Snapshots) -> Option<SnapshotAnswer> {
    let newest = snapshots.newest_kept();
    let newest = newest.filter(|kept| kept.origin != Origin::Bridge);
    match newest
        .map(|kept| kept.info)
        .filter(|info| info.id.slot >= executed)
    {
        Some(info) => Some(Ok(snapshot_report(snapshots, info))),
        None if executed == Slot(0) => Some(Err(
            "nothing has been written yet, so there is nothing to save".to_owned(),
        )),
        None => None,
    }
}

fn answer_waiters(waiters: &mut Vec<SnapshotWaiter>, answer: &SnapshotAnswer) {
    for waiter in waiters.drain(..) {
        // The caller may have given up.
        let _ = waiter.send(answer.clone());
    }
}
