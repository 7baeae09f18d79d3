//! One replica: its state, and how events reach the parts.

use super::{
    Config, Message, Promised, Proposers, Record, Summary, Value, ViewInit,
    bug::Bug,
    catch_up::CatchUp,
    config::Drive,
    election::Election,
    load_state::Load,
    peers::PeerState,
    proposer::Proposer,
    pulse_state::PulseState,
    read_queue::ReadQueue,
    relay::Relay,
    view_log::ViewLog,
    view_state::{Role, ViewState},
};
use alloc::{format, string::ToString, vec, vec::Vec};
use quintet_replica::{
    Context, Control, FrontendId, Info, Link, Options, PersistId, Protocol, Recovered, ReplicaId,
    ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{Asked, AttachedFrontend, Coordination, Housekeeping, Member, digest},
};

/// Any replica takes requests and answers them, so the shared frontend is all that it needs.
pub type Frontend = AttachedFrontend<Chora>;

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// It is heard, and looks after the others.
        Heartbeat,
        /// Nothing has moved for a while: what is lacking is asked for (§6.6).
        Coordination,
        /// It has decided to stand for election.
        Stand,
        /// Requests and reads in flight are looked through.
        Housekeeping,
    }
}

/// One replica of Chora; see the module.
#[derive(Hash)]
pub struct Chora {
    pub(super) me: Member,
    pub(super) config: Config,
    pub(super) view: ViewState,
    pub(super) election: Election,
    pub(super) log: ViewLog,
    pub(super) proposer: Proposer,
    pub(super) pulse: PulseState,
    /// Watches where log and commit point stand.
    pub(super) coordination: Coordination<(Slot, Slot)>,
    pub(super) load: Load,
    pub(super) peers: Vec<PeerState>,
    pub(super) catch_up: CatchUp,
    pub(super) relay: Relay,
    pub(super) reads: ReadQueue,
    pub(super) housekeeping: Housekeeping<Timer>,
}

impl Chora {
    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping.fired();
        self.relay.kept.expire(ctx.now());
        self.reads.expire(ctx.now());
        self.repeat_reads(ctx);
        if !self.relay.kept.is_empty() || !self.reads.is_empty() {
            self.housekeeping.arm(ctx);
        }
    }

    /// Writes view and vote; what depends on them waits until they are durable.
    pub(super) fn persist_promise(&mut self, ctx: &mut Context<'_, Self>) {
        let id = ctx.persist_promise(&self.view.promised());
        self.view.written(id);
    }

    /// The view's VIEW-INIT is committed here.
    pub(super) fn established(&self) -> bool {
        self.view.is_established(self.log.committed())
    }

    /// Whether this replica may propose in its view.
    pub(super) fn may_propose(&self) -> bool {
        self.proposer.proposes() && self.view.is_durable()
    }

    pub(super) fn pulsing(&self) -> bool {
        match self.config.mode {
            Drive::Auto => self.pulse.is_auto_pulsing(),
            Drive::Pulsing => true,
            Drive::Responsive => false,
        }
    }

    fn role_name(&self) -> &'static str {
        if self.catch_up.is_recovering() {
            return "recovering";
        }
        match self.view.role() {
            Role::Candidate(_) => "candidate",
            Role::Initiator => "initiator",
            Role::Follower if self.proposer.proposes() => "proposer",
            Role::Follower
                if self.view.live().contains(self.me.id()) || self.view.init().is_none() =>
            {
                "follower"
            }
            Role::Follower => "learner",
        }
    }
}

impl Protocol for Chora {
    quintet_replica::usual_items!();
    type Record = Record;
    type ReplyHeader = ();

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
        stable: true,
        replicas_min: 1,
    };
    const CHANGES_MEMBERS: bool = true;

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let (config, epoch) = (setup.options, setup.epoch);
        let members = me.members();
        let live = ReplicaSet::all(members);
        let proposers = match config.proposers {
            Proposers::Count(count) => count,
            // No replica has brought anything yet.
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
        let mut pulse = PulseState::new(members);
        if config.injected.is(Bug::EarlyExitCountsMessages) {
            pulse.rounds.bug_counts_messages();
        }
        Self {
            me,
            config,
            view: ViewState::new(init_first),
            election: Election::new(members),
            log: ViewLog::default(),
            proposer: Proposer::default(),
            pulse,
            coordination: Coordination::default(),
            load: Load::new(members),
            peers: vec![PeerState::default(); members],
            catch_up: CatchUp::default(),
            relay: Relay::default(),
            reads: ReadQueue::new(),
            housekeeping: Housekeeping::new(Timer::Housekeeping),
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        let now = ctx.now();
        self.reads.start(ctx.random());
        self.coordination.start(ctx.random());
        self.view.restart(now);
        self.election.progressed(now);
        // A peer that was not heard since the start gets the whole timeout first.
        for peer in &mut self.peers {
            peer.contact.arriving(now);
        }
        let Recovered {
            first_boot,
            state_lost,
            ..
        } = recovered;
        if !self.restore(recovered) && !state_lost {
            return ctx.halt_damaged();
        }
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        if !first_boot && !self.injected(Bug::SlotReused) {
            // Its earlier proposals may have reached others and not its own disk.
            self.view.mute();
        }
        if state_lost && !self.injected(Bug::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        let inits = self.log.iter_from(Slot(0));
        let inits = inits.filter_map(|(_, held)| match &held.value {
            Value::Init(init) => Some(&**init),
            Value::Noop | Value::Commands { .. } => None,
        });
        let known = [self.view.init_committed()]
            .into_iter()
            .chain(inits)
            .find(|init| init.view == self.view.number())
            .cloned();
        if let Some(init) = known {
            self.view.begin(init);
        }
        if self.view.init().is_some() {
            self.log.verify(self.log.last());
        }
        self.execute_committed(ctx);
        if !self.view.was_written() {
            // Even the first view is written down before anything is done in it: a later start
            // must know that it is not the first.
            self.persist_promise(ctx);
        }
        self.proposer.learn_latest(self.log.last());
        self.pulse.want();
        if self.established() {
            self.on_established(ctx);
        }
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        if let Some(asked) = Asked::of(from, message, ctx) {
            self.on_asked(asked, ctx);
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        let began = self.pulse.is_timed().then(|| ctx.now());
        self.peers[from.index()].contact.received(ctx.arrived());
        match message {
            Message::Pulse(pulse) => {
                self.meet(from, pulse.incarnation, ctx);
                self.on_pulse(from, pulse, ctx);
            }
            Message::ViewRequest {
                view,
                incarnation,
                last_slot,
                last_view,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_view_request(from, view, (last_slot, last_view), ctx);
            }
            Message::Vote { view, incarnation } => {
                self.meet(from, incarnation, ctx);
                self.on_vote(from, view, incarnation, ctx);
            }
            Message::Init { init, runs } => self.on_init(from, init, &runs, ctx),
            Message::Fetch { view, from: slot } => self.on_fetch(from, view, slot, ctx),
            Message::Entries {
                view,
                first,
                before,
                init,
                committed,
                last,
                entries,
            } => {
                let (at, upto) = ((view, first, before), (committed, last));
                self.on_entries(from, at, init, upto, entries, ctx);
            }
            Message::Trimmed {
                view,
                first,
                executed,
            } => self.on_trimmed(from, view, first, executed, ctx),
            Message::Forward { batches } => self.on_forward(batches, ctx),
            Message::ReadAsk { view, round } => self.on_read_ask(from, view, round, ctx),
            Message::ReadOk { round, executed } => self.on_read_ok(round, executed, ctx),
            Message::Request(_) | Message::Taken(_) => {
                ctx.mark("ignored: not a replica's message");
            }
        }
        if let Some(began) = began {
            self.pulse.synchrony.processed(ctx.now().since(began));
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Heartbeat => self.on_heartbeat(ctx),
            Timer::Coordination => self.on_coordination(ctx),
            Timer::Stand => self.on_stand(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        while let Some(promised) = self.view.durable_up_to(upto) {
            if promised {
                self.on_promise_durable(ctx);
            }
        }
        let voted = self.log.durable_up_to(upto);
        if voted {
            self.maybe_commit(ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.log.on_executed(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if let Some(log) = self.log.end_checkpoint(slot) {
            ctx.trim(log.next());
        }
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let member = &mut self.peers[peer.index()];
        match link {
            Link::Up { incarnation } => {
                member.link_up();
                self.pulse.synchrony.forget(peer);
                self.meet(peer, incarnation, ctx);
                self.after_reset(ctx);
            }
            Link::Reset => self.after_reset(ctx),
            Link::Down => member.contact.link_down(now),
            Link::Arriving => member.contact.arriving(now),
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            // The replicas that wait for a slow one detect it.
            Control::Slow(_)
            | Control::Farther(_)
            | Control::SlowMembers(_)
            | Control::EpochEnded => {}
            Control::CheckpointDue => self.checkpoint(ctx),
            Control::HandOff => {
                // A replica that sees this in a pulse starts a view without this replica.
                let until = ctx.now() + self.config.suspect_timeout * 4;
                self.election.leave(until);
                self.pulse.want();
            }
            Control::ReportFailure(peer) => {
                if self.me.others().contains(peer) {
                    self.peers[peer.index()].contact.arriving(Time(0));
                    self.watch(ctx);
                }
            }
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed) => self.config = changed,
                None => ctx.mark("ignored: option value"),
            },
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx)
    }

    fn takes_requests(&self, now: Time) -> bool {
        self.takes_all(now)
    }

    fn status(&self) -> Status {
        let held = self.log.iter_from(self.log.committed().next());
        let beyond: u64 = held.map(|(_, held)| held.value.executions()).sum();
        let mut details = vec![
            ("log_first", self.log.first().to_string()),
            ("log_last", self.log.last().to_string()),
            ("log_committed", self.log.committed().to_string()),
            ("log_bytes", self.log.bytes().to_string()),
            ("requests", self.relay.kept.len().to_string()),
            ("live", self.view.live().len().to_string()),
            (
                "proposers",
                self.view
                    .init()
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
            ("round", self.pulse.rounds.round().to_string()),
            ("round_length", format!("{:?}", self.pulse.round_length())),
            (
                "deviation_p90",
                format!("{:?}", self.pulse.synchrony.deviation()),
            ),
            (
                "synchrony_p90",
                format!("0.{:03}", self.pulse.synchrony.coefficient().min(999)),
            ),
            ("proposals", self.proposer.committed().to_string()),
        ];
        details.extend(self.pulse.synchrony.details());
        Status {
            role: self.role_name(),
            leader: self
                .view
                .init()
                .filter(|_| self.established())
                .map(|init| init.initiator),
            view: self.view.number(),
            // Counted in executions, as everything that the executor knows is; the log's own slots
            // stand in the details.
            accepted: Slot(self.log.executed().0 + beyond),
            committed: self.log.executed(),
            stable: self.log.executed(),
            voting: !self.catch_up.is_recovering() && !self.catch_up.fetching().in_progress(),
            details,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let role = match self.view.role() {
            Role::Follower => 1,
            Role::Candidate(votes) => 2 + votes.voters().0 as u64,
            Role::Initiator => 3,
        };
        let words = [
            role,
            self.view.number(),
            self.view.voted_for().map_or(99, |id| u64::from(id.0)),
            self.view.init().map_or(0, |init| init.base.0),
            self.log.first().0,
            self.log.last().0,
            self.log.bytes() as u64,
            self.log.verified().0,
            self.log.durable().0,
            self.log.committed().0,
            self.log.executed().0,
            self.proposer.next().map_or(0, |slot| slot.0),
            self.proposer.latest().0,
            self.log.buffered_len() as u64,
            self.relay.kept.len() as u64,
            self.pulse.rounds.round(),
        ];
        digest(words)
    }

    fn assert_invariants(&self) {
        let last = self.log.last();
        self.log.assert_invariants();
        if let Some(init) = self.view.init() {
            assert!(init.view == self.view.number(), "the view's own beginning");
            assert!(self.log.verified() == last, "behind it all is the view's");
            assert!(init.base <= last, "it stands in the log");
        }
        if let Some(next) = self.proposer.next() {
            let init = self.view.init().expect("proposing is within a view");
            assert!(init.owner(next) == Some(self.me.id()), "own slots only");
            assert!(!self.view.is_mute(), "never in a view of an earlier run");
        }
        // Appendix A as far as one log shows it: Claim 1 (nothing of a later view), Claims 6 and 7
        // (views go up along the log, so those of one view are consecutive), Claim 8 (a view's
        // first slot holds its VIEW-INIT) and with that Claim 3 (it holds one VIEW-INIT of a view).
        let recent = Slot(last.0.saturating_sub(16)).max(self.log.first());
        let mut before = self.log.view_of(recent.previous()).unwrap_or_default();
        for (slot, held) in self.log.iter_from(recent) {
            assert!(
                held.view <= self.view.number(),
                "not beyond the own view, in {slot}"
            );
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
