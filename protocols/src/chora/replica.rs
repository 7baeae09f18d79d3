//! One replica: its state, and how events reach the parts.

use super::{
    Config, Frontend, Message, Promised, Proposers, Record, Summary, Value, ViewInit,
    config::Drive,
    demand::Demand,
    drag::Drag,
    message::{Fitness, Pulse},
    plant::Plant,
    pulse::Repair,
    reads::Reads,
    recovery::Recovery,
    rounds::Rounds,
    synchrony::Synchrony,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::ToString,
    vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    Bytes, CommandTime, Context, Control, Durability, FrontendId, Incarnation, Info, Level, Link,
    Options, Peer, PersistId, Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status,
    Time, Wake,
    parts::{Admission, KeptRequests, RequestQueue, SlotLog, StateFetch, Tally, Timing},
};

/// What stands in a slot, with the view that it was proposed in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub view: u64,
    pub value: Value,
}

/// What is known of another replica.
#[derive(Clone, Debug, Hash)]
pub(super) struct Member {
    pub heard_at: Time,
    pub down_at: Option<Time>,
    pub incarnation: Incarnation,
    /// What it acknowledged in this view.
    pub acked: Slot,
    pub committed: Slot,
    pub view: u64,
    pub fitness: Fitness,
    /// Its clients bring a part of the load.
    pub loaded: bool,
    /// Whom it calls slow.
    pub slow: ReplicaSet,
    /// How often it has been sent again what it lacks.
    pub repair: Repair,
}

/// A replica's part in its view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Follower,
    Candidate(Tally),
    Initiator,
}

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// It is heard, and looks after the others.
        Heartbeat,
        /// Nothing has moved for a while: what is lacking is asked for (§6.6).
        Coordination,
        /// It has decided to stand for election.
        Stand,
        /// Requests and reads under way are looked through.
        Housekeeping,
    }
}

/// How often requests and reads under way are looked through.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// One replica of Chora; see the module.
#[derive(Hash)]
pub struct Chora {
    pub(super) id: ReplicaId,
    pub(super) incarnation: Incarnation,
    pub(super) members: usize,
    pub(super) majority: usize,
    pub(super) others: ReplicaSet,
    pub(super) durability: Durability,
    pub(super) config: Config,

    pub(super) view: u64,
    pub(super) voted_for: Option<ReplicaId>,
    pub(super) promised_durable: Option<Promised>,
    pub(super) promises: VecDeque<(PersistId, Promised)>,
    pub(super) role: Role,
    /// The view's VIEW-INIT, once it stands in the log behind a verified prefix.
    pub(super) init: Option<ViewInit>,
    /// The last VIEW-INIT that is committed here.
    pub(super) init_committed: ViewInit,
    /// Before its restart this replica may have proposed in this view.
    pub(super) mute: Option<u64>,
    pub(super) recovery: Option<Recovery>,

    /// Without holes.
    pub(super) log: SlotLog<Held>,
    pub(super) log_bytes: usize,
    /// The view of the slot before the log's first, and what was executed up to there.
    pub(super) anchor_view: u64,
    pub(super) anchor_executed: Slot,
    /// Up to here the log is that of the view's initiator.
    pub(super) verified: Slot,
    pub(super) durable: Slot,
    pub(super) writes: VecDeque<(PersistId, Slot)>,
    /// Proposals of this view that cannot be appended yet.
    pub(super) buffer: BTreeMap<Slot, Value>,
    pub(super) committed: Slot,
    /// How many batches were handed over to be executed, and how many are.
    pub(super) executed: Slot,
    pub(super) executed_done: Slot,
    /// The last slot whose batches were handed over.
    pub(super) executed_log: Slot,
    pub(super) time_seen: CommandTime,
    pub(super) time_executed: CommandTime,
    pub(super) checkpoints: VecDeque<(Slot, Slot)>,
    /// Counts executions.
    pub(super) fetching: StateFetch,

    pub(super) peers: Vec<Member>,
    pub(super) next_propose: Option<Slot>,
    /// The last own slot that was used in this view: none is used twice.
    pub(super) own_used: Slot,
    pub(super) latest: Slot,
    /// Own slots with something in them that are not committed.
    pub(super) outstanding: VecDeque<Slot>,
    /// How many own slots with something in them were committed since the start.
    pub(super) proposals: Timing<u64>,
    pub(super) queue: RequestQueue,
    pub(super) requests: KeptRequests,
    /// Requests that came between two views, and how many bytes they are.
    pub(super) waiting: Vec<(FrontendId, Level, Bytes)>,
    pub(super) waiting_bytes: usize,
    pub(super) reads: Reads,
    pub(super) rounds: Rounds<Pulse>,
    /// What was measured only times things, but for the mode that it led to.
    pub(super) synchrony: Timing<Synchrony>,
    /// The mode where `mode` is `auto`.
    pub(super) auto_pulsing: bool,
    pub(super) demand: Demand,
    pub(super) drag: Drag,

    pub(super) ack_sent: Slot,
    /// Up to here it was looked whether somebody waits for the acknowledgement, and whether so.
    pub(super) ack_looked: Slot,
    pub(super) ack_wanted: bool,
    /// How long a round lasts, and how many rounds in a row had nothing to tell.
    pub(super) round_length: Timing<Duration>,
    pub(super) rounds_quiet: Timing<u32>,
    pub(super) noop_wanted: bool,
    pub(super) skip_demanded: Slot,
    pub(super) nack_due: Option<(Slot, Slot)>,
    /// What is sent again, and who lacks it.
    pub(super) recover_due: BTreeMap<Slot, ReplicaSet>,
    pub(super) pulse_due: bool,
    pub(super) leaving_until: Time,

    pub(super) coordination_armed: bool,
    pub(super) coordination_tries: u32,
    /// Where log and commit point stood when the coordination timer was set.
    pub(super) coordination_saw: (Slot, Slot),
    pub(super) fetch_next: Timing<u64>,
    pub(super) view_since: Time,
    pub(super) view_tries: u32,
    pub(super) progress_at: Time,
    pub(super) stand_at: Option<Time>,
    pub(super) stand_anyway: Option<&'static str>,
    pub(super) rejoin_after: Time,
    /// Who took part in the last view that began here, and when others may come back.
    pub(super) live_before: ReplicaSet,
    pub(super) admission: Admission,
    messages: Timing<u64>,
    housekeeping: bool,
    /// Between the first event of a turn and its `on_idle`.
    in_turn: bool,
}

impl Chora {
    pub(super) fn arm_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.housekeeping {
            self.housekeeping = true;
            ctx.set_timer(Timer::Housekeeping, HOUSEKEEPING);
        }
    }

    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping = false;
        self.requests.expire(ctx.now());
        self.reads.expire(ctx.now());
        self.repeat_reads(ctx);
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.arm_housekeeping(ctx);
        }
    }

    /// Whether view and vote are on disk.
    pub(super) fn promise_durable(&self) -> bool {
        self.promised_durable == Some(self.promised())
    }

    pub(super) const fn promised(&self) -> Promised {
        Promised {
            view: self.view,
            voted_for: self.voted_for,
        }
    }

    /// Writes view and vote down; what depends on them waits for `promise_durable`.
    pub(super) fn persist_promise(&mut self, ctx: &mut Context<'_, Self>) {
        let promised = self.promised();
        let id = ctx.persist_promise(&promised);
        self.promises.push_back((id, promised));
    }

    /// The view's VIEW-INIT is committed here.
    pub(super) fn established(&self) -> bool {
        self.init
            .as_ref()
            .is_some_and(|init| self.committed >= init.base)
    }

    /// Whether this replica may propose in its view.
    pub(super) fn may_propose(&self) -> bool {
        self.next_propose.is_some() && self.promise_durable()
    }

    /// Those who take part in the rounds.
    pub(super) fn live(&self) -> ReplicaSet {
        self.init
            .as_ref()
            .map_or(ReplicaSet::EMPTY, |init| init.live)
    }

    pub(super) fn pulsing(&self) -> bool {
        match self.config.mode {
            Drive::Auto => self.auto_pulsing,
            Drive::Pulsing => true,
            Drive::Responsive => false,
        }
    }

    pub(super) fn leaving(&self, now: Time) -> bool {
        now < self.leaving_until
    }

    fn role_name(&self) -> &'static str {
        if self.recovery.is_some() {
            return "recovering";
        }
        match self.role {
            Role::Candidate(_) => "candidate",
            Role::Initiator => "initiator",
            Role::Follower if self.next_propose.is_some() => "proposer",
            Role::Follower if self.live().contains(self.id) || self.init.is_none() => "follower",
            Role::Follower => "learner",
        }
    }
}

impl Protocol for Chora {
    type Message = Message;
    type Promise = Promised;
    type Record = Record;
    type Summary = Summary;
    type ReplyHeader = ();
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const BRANCHES: &'static [&'static str] = &[
        "asks for missing proposals",
        "candidate's log is older",
        "follows a higher view",
        "no view change: it would not get a majority",
        "proposals sent again",
        "recovered",
        "skips to what was proposed",
        "state transfer chosen",
        "suffix of an old view replaced",
        "view began",
        "view change: a proposer was restarted",
        "view change: a replica comes back",
        "view change: a replica is silent",
        "vote given",
    ];

    const INFO: Info = Info {
        name: "chora",
        paper: "Wan et al., Building State Machine Replication Using Practical Network Synchrony",
        best_at: "throughput where delays hardly vary: every replica proposes, and one message \
                  per round proposes and acknowledges",
        tolerates: "crashes, loss and partitions of a minority",
        stable: false,
        replicas_min: 1,
    };
    #[cfg(feature = "plant")]
    const PLANTS: &'static [quintet_replica::PlantSpec] = Plant::SPECS;

    fn new(setup: Setup<Config>) -> Self {
        let Setup {
            id,
            incarnation,
            epoch,
            options,
            durability,
            ..
        } = setup;
        let members = epoch.members;
        let live = ReplicaSet::all(members);
        let proposers = match options.proposers {
            Proposers::Count(count) => count,
            // Nobody has brought anything yet.
            Proposers::Loaded => 0,
        };
        let proposers = Self::proposers_of(live, epoch.leader_first, proposers, members);
        // View 0 begins by itself, at slot 0: every replica would propose the same.
        let init_first = ViewInit {
            view: 0,
            initiator: epoch.leader_first,
            base: Slot(0),
            proposers,
            live,
        };
        let member = Member {
            heard_at: Time(0),
            down_at: None,
            incarnation: Incarnation(0),
            acked: Slot(0),
            committed: Slot(0),
            view: 0,
            fitness: Fitness::Fit,
            loaded: false,
            slow: ReplicaSet::EMPTY,
            repair: Repair::default(),
        };
        let round_length = Duration::from_millis(1);
        let mut rounds = Rounds::new(round_length);
        if options.planted.is(Plant::EarlyExitCountsMessages) {
            rounds.plant_counts_messages();
        }
        Self {
            id,
            incarnation,
            members,
            majority: epoch.majority(),
            others: epoch.others(id),
            durability,
            config: options,
            view: 0,
            voted_for: None,
            promised_durable: None,
            promises: VecDeque::new(),
            role: Role::Follower,
            init: None,
            init_committed: init_first,
            mute: None,
            recovery: None,
            log: SlotLog::default(),
            log_bytes: 0,
            anchor_view: 0,
            anchor_executed: Slot(0),
            verified: Slot(0),
            durable: Slot(0),
            writes: VecDeque::new(),
            buffer: BTreeMap::new(),
            committed: Slot(0),
            executed: Slot(0),
            executed_done: Slot(0),
            executed_log: Slot(0),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
            checkpoints: VecDeque::new(),
            fetching: StateFetch::default(),
            peers: vec![member; members],
            next_propose: None,
            own_used: Slot(0),
            latest: Slot(0),
            outstanding: VecDeque::new(),
            proposals: Timing(0),
            queue: RequestQueue::default(),
            requests: KeptRequests::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            reads: Reads::new(),
            rounds,
            synchrony: Timing(Synchrony::new(members, false)),
            auto_pulsing: false,
            demand: Demand::default(),
            drag: Drag::new(members),
            ack_sent: Slot(0),
            ack_looked: Slot(0),
            ack_wanted: false,
            round_length: Timing(round_length),
            rounds_quiet: Timing(0),
            noop_wanted: false,
            skip_demanded: Slot(0),
            nack_due: None,
            recover_due: BTreeMap::new(),
            pulse_due: false,
            leaving_until: Time(0),
            coordination_armed: false,
            coordination_tries: 0,
            coordination_saw: (Slot(0), Slot(0)),
            fetch_next: Timing(0),
            view_since: Time(0),
            view_tries: 0,
            progress_at: Time(0),
            stand_at: None,
            stand_anyway: None,
            rejoin_after: Time(0),
            live_before: ReplicaSet::all(members),
            admission: Admission::new(members),
            messages: Timing(0),
            housekeeping: false,
            in_turn: false,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.in_turn = true;
        let now = ctx.now();
        self.reads.start(ctx.random());
        *self.fetch_next = ctx.random();
        self.view_since = now;
        self.progress_at = now;
        // Whoever has not been heard since the start gets the whole patience first.
        for peer in &mut self.peers {
            peer.heard_at = now;
        }
        let Recovered {
            first_boot, forgot, ..
        } = recovered;
        if !self.restore(recovered) && !forgot {
            return ctx.halt(
                "the journal has records missing in its middle; restore this replica's data \
                 directory from a backup or replace it by a new member"
                    .to_string(),
            );
        }
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        if !first_boot && !self.planted(Plant::SlotReused) {
            // What it proposed before may have reached others and not its own disk.
            self.mute = Some(self.view);
        }
        if forgot && !self.planted(Plant::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        let known = [&self.init_committed]
            .into_iter()
            .chain(
                self.log
                    .iter_from(Slot(0))
                    .filter_map(|(_, held)| match &held.value {
                        Value::Init(init) => Some(&**init),
                        _ => None,
                    }),
            )
            .find(|init| init.view == self.view);
        self.init = known.cloned();
        if self.init.is_some() {
            self.verified = self.last_append();
        }
        self.execute_committed(ctx);
        if self.promised_durable.is_none() {
            // Even the first view is written down before anything is done in it: a later start
            // must know that it is not the first.
            self.persist_promise(ctx);
        }
        self.latest = self.last_append();
        self.pulse_due = true;
        if self.established() {
            self.on_established(ctx);
        }
    }

    fn on_message(&mut self, from: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        match from {
            Peer::Frontend(frontend) => match message {
                Message::Request { level, batch } => self.on_request(frontend, level, batch, ctx),
                _ => ctx.mark("ignored: not a frontend's message"),
            },
            Peer::Replica(from) if self.others.contains(from) => {
                *self.messages += 1;
                let began = self.messages.is_multiple_of(16).then(|| ctx.now());
                self.on_replica_message(from, message, ctx);
                if let Some(began) = began {
                    self.synchrony.processed(ctx.now().since(began));
                }
            }
            Peer::Replica(_) => ctx.mark("ignored: not a member"),
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        match timer {
            Timer::Heartbeat => self.on_heartbeat(ctx),
            Timer::Coordination => self.on_coordination(ctx),
            Timer::Stand => self.on_stand(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        let outside = !self.in_turn;
        while let Some((id, promised)) = self.promises.front().copied() {
            if id > upto {
                break;
            }
            self.promises.pop_front();
            self.promised_durable = Some(promised);
            if promised == self.promised() {
                self.on_promise_durable(ctx);
            }
        }
        let mut voted = false;
        while let Some((id, slot)) = self.writes.front().copied() {
            if id > upto {
                break;
            }
            self.writes.pop_front();
            if slot > self.durable {
                self.durable = slot;
                voted = true;
            }
        }
        if voted {
            self.maybe_commit(ctx);
        }
        if self.members == 1 && outside {
            // Durable at once, after this turn's `on_idle`: a lone member would otherwise wait for
            // an event that does not come.
            self.flush(ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        self.executed_done = self.executed_done.max(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        let mut covered = None;
        while let Some((executed, log)) = self.checkpoints.front().copied() {
            if executed > slot {
                break;
            }
            self.checkpoints.pop_front();
            covered = Some(log);
        }
        if let Some(log) = covered {
            ctx.trim(log.next());
        }
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: Peer, link: Link, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        let Peer::Replica(peer) = peer else { return };
        if !self.others.contains(peer) {
            return;
        }
        let now = ctx.now();
        let member = &mut self.peers[peer.index()];
        match link {
            Link::Up { incarnation } => {
                member.down_at = None;
                self.synchrony.forget(peer);
                self.meet(peer, incarnation, ctx);
                self.after_reset(ctx);
            }
            Link::Reset => self.after_reset(ctx),
            Link::Down => {
                member.down_at.get_or_insert(now);
            }
            Link::Arriving => member.heard_at = now,
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        match control {
            // Who is slow is found out by who waits for it.
            Control::Slow(_) | Control::SlowMembers(_) => {}
            Control::CheckpointDue => self.checkpoint(ctx),
            Control::HandOff => {
                // Whoever sees this in a pulse starts a view without this replica.
                self.leaving_until = ctx.now() + self.config.suspect * 4;
                self.pulse_due = true;
            }
            Control::ReportFailure(peer) => {
                if self.others.contains(peer) {
                    self.peers[peer.index()].heard_at = Time(0);
                    self.watch(ctx);
                }
            }
            Control::Option { name, value } => {
                let mut changed = self.config.clone();
                match changed.set(&name, &value).and_then(|()| changed.check()) {
                    Ok(()) => self.config = changed,
                    Err(_) => ctx.mark("ignored: option value"),
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let wake = self.flush(ctx);
        self.in_turn = false;
        wake
    }

    fn status(&self) -> Status {
        let held = self.log.iter_from(self.committed.next());
        let beyond: u64 = held.map(|(_, held)| held.value.executions()).sum();
        let mut details = vec![
            ("log_first", self.log.first().to_string()),
            ("log_last", self.last_append().to_string()),
            ("log_committed", self.committed.to_string()),
            ("log_bytes", self.log_bytes.to_string()),
            ("requests", self.requests.len().to_string()),
            ("live", self.live().len().to_string()),
            (
                "proposers",
                self.init
                    .as_ref()
                    .map_or(0, |init| init.proposers.len())
                    .to_string(),
            ),
            (
                "mode",
                if self.pulsing() {
                    "pulsing"
                } else {
                    "responsive"
                }
                .to_string(),
            ),
            ("round", self.rounds.round().to_string()),
            ("round_length", format!("{:?}", *self.round_length)),
            ("deviation_p90", format!("{:?}", self.synchrony.deviation())),
            (
                "synchrony_p90",
                format!("0.{:03}", self.synchrony.coefficient().min(999)),
            ),
            ("proposals", self.proposals.to_string()),
        ];
        details.extend(self.synchrony.details());
        Status {
            role: self.role_name(),
            leader: self
                .init
                .as_ref()
                .filter(|_| self.established())
                .map(|init| init.initiator),
            view: self.view,
            // Counted in executions, as everything that the executor knows is; the log's own slots
            // stand in the details.
            accepted: Slot(self.executed.0 + beyond),
            committed: self.executed,
            stable: self.executed,
            voting: self.recovery.is_none() && !self.fetching.under_way(),
            details,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let role = match &self.role {
            Role::Follower => 1,
            Role::Candidate(votes) => 2 + votes.voters().0 as u64,
            Role::Initiator => 3,
        };
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for word in [
            role,
            self.view,
            self.voted_for.map_or(99, |id| u64::from(id.0)),
            self.init.as_ref().map_or(0, |init| init.base.0),
            self.log.first().0,
            self.last_append().0,
            self.log_bytes as u64,
            self.verified.0,
            self.durable.0,
            self.committed.0,
            self.executed.0,
            self.next_propose.map_or(0, |slot| slot.0),
            self.latest.0,
            self.buffer.len() as u64,
            self.requests.len() as u64,
            self.rounds.round(),
        ] {
            hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }

    fn assert_invariants(&self) {
        let last = self.last_append();
        assert!(self.committed <= last, "what is committed is held");
        assert!(
            self.committed <= self.verified.max(last),
            "and it is the view's"
        );
        assert!(self.durable <= last, "only what is held can be durable");
        assert!(self.verified <= last, "only what is held can be verified");
        assert!(
            self.executed_done <= self.executed,
            "executions were asked for"
        );
        assert!(
            self.log.first() <= self.committed.next(),
            "what is not executed is kept"
        );
        if let Some(init) = &self.init {
            assert!(init.view == self.view, "the view's own beginning");
            assert!(self.verified == last, "behind it all is the view's");
            assert!(init.base <= last, "it stands in the log");
        }
        if let Some(next) = self.next_propose {
            let init = self.init.as_ref().expect("proposing is within a view");
            assert!(init.owner(next) == Some(self.id), "own slots only");
            assert!(
                self.mute != Some(self.view),
                "never in a view of an earlier run"
            );
        }
        // Appendix A as far as one log shows it: Claim 1 (nothing of a later view), Claims 6 and 7
        // (views go up along the log, so those of one view are consecutive), Claim 8 (a view's
        // first slot holds its VIEW-INIT) and with that Claim 3 (it holds one VIEW-INIT of a view).
        let recent = Slot(last.0.saturating_sub(16)).max(self.log.first());
        let mut before = self.view_of(recent.previous()).unwrap_or_default();
        for (slot, held) in self.log.iter_from(recent) {
            assert!(held.view <= self.view, "not beyond the own view, in {slot}");
            assert!(held.view >= before, "views go up along the log, in {slot}");
            match &held.value {
                Value::Init(init) => {
                    assert!(held.view > before, "one VIEW-INIT per view, in {slot}");
                    assert!(init.view == held.view, "of its own view, in {slot}");
                    assert!(init.base == slot, "where it says, in {slot}");
                }
                Value::Noop | Value::Commands { .. } => {
                    assert!(held.view == before, "behind VIEW-INIT only, in {slot}");
                }
            }
            before = held.view;
        }
    }
}
