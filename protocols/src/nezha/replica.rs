//! One replica: its state, and how events reach the parts.

use super::{
    Config, Frontend, Message, Part, Promised, Record, ReplyHeader, Standing, Summary, bug::Bug,
    changing::Changing, crash_vector::CrashVector, joining::Joining, leader_state::LeaderState,
    log::Log, placements::Placements, receiver::Receiver, replies::Replies, view_state::ViewState,
};
use alloc::{format, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Control, FrontendId, Incarnation, Info, Lane, Link, Options, PersistId, Protocol,
    Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{Member, StateFetch, StateLoss, Timing, digest},
};

/// The role of a replica.
#[derive(Hash)]
pub(super) enum Phase {
    Follower,
    Leader(LeaderState),
    Changing(Changing),
    Joining(Joining),
    Recovering(StateLoss<(u64, Standing)>),
}

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// Heartbeats, suspicion, asking again.
        Tick,
        /// The first deadline in the early buffer has come.
        Release,
        /// A batch that the leader placed is still missing.
        Fetch,
    }
}

/// One replica of Nezha; see the module.
#[derive(Hash)]
pub struct Nezha {
    pub(super) me: Member,
    pub(super) config: Config,
    pub(super) incarnations: CrashVector,
    pub(super) view: ViewState,
    pub(super) phase: Phase,
    /// All writes up to here are durable.
    pub(super) persisted: PersistId,
    pub(super) log: Log,
    pub(super) receiver: Receiver,
    pub(super) placements: Placements,
    pub(super) replies: Replies,
    pub(super) fetching: StateFetch,
    /// How many batches went the fast way, and the slow one.
    pub(super) paths: Timing<(u64, u64)>,
}

impl Nezha {
    /// Whether this replica leads its view, when it begins.
    pub(super) fn leads(&self) -> bool {
        self.view.leader() == self.me.id()
    }

    pub(super) const fn is_normal(&self) -> bool {
        matches!(self.phase, Phase::Follower | Phase::Leader(_))
    }

    pub(super) const fn is_ready(&self) -> bool {
        self.is_normal() && self.view.is_ready(self.persisted)
    }

    pub(super) const fn is_leader(&self) -> bool {
        matches!(self.phase, Phase::Leader(_))
    }

    pub(super) fn between(&self, part: Part) -> Message {
        Message::Between {
            view: self.view.number(),
            incarnations: self.incarnations.known().clone(),
            part,
        }
    }

    pub(super) fn send(&self, to: ReplicaId, part: Part, ctx: &mut Context<'_, Self>) {
        let lane = match part {
            Part::Bodies(_) | Part::LogPage { .. } => Lane::Bulk,
            _ => Lane::Control,
        };
        ctx.send(to, lane, &self.between(part));
    }

    pub(super) fn tell_others(&self, part: Part, ctx: &mut Context<'_, Self>) {
        ctx.multicast(self.me.others(), Lane::Control, &self.between(part));
    }

    /// Writes view and crash vector; gives the write behind which everything so far lies.
    pub(super) fn promise(&self, ctx: &mut Context<'_, Self>) -> PersistId {
        ctx.persist_promise(&self.view.promised(self.incarnations.known()))
    }

    /// The leader of the view that begins, or may begin, has all its time again.
    pub(super) fn trust_leader(&mut self, ctx: &mut Context<'_, Self>) {
        self.view.trust(self.config.suspect_timeout, ctx);
    }

    /// Members are in other incarnations than they were known to be in.
    fn on_restarted(&mut self, newer: ReplicaSet, ctx: &mut Context<'_, Self>) {
        if newer.is_empty() || self.injected(Bug::IncarnationsIgnored) {
            return;
        }
        self.incarnations.rehash();
        let _ = self.promise(ctx);
        for id in newer.iter() {
            if let Phase::Leader(lead) = &mut self.phase {
                lead.restarted(id);
            }
            self.view.restarted(id);
        }
        self.drop_votes(ctx);
    }

    /// A link tells in which incarnation a member is before it says so itself: replies of senders
    /// that know of other ones do not make a quorum.
    fn meet(&mut self, peer: ReplicaId, incarnation: Incarnation, ctx: &mut Context<'_, Self>) {
        if self.incarnations.observe(peer, incarnation) {
            self.on_restarted(ReplicaSet::EMPTY.with(peer), ctx);
        }
    }

    fn on_tick(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Tick, self.config.heartbeat);
        match self.phase {
            Phase::Leader(_) => self.tick_leader(ctx),
            Phase::Follower => self.tick_follower(ctx),
            Phase::Changing(_) => self.tick_changing(ctx),
            Phase::Joining(_) => self.tick_joining(ctx),
            Phase::Recovering(_) => self.ask_to_recover(ctx),
        }
    }
}

impl Protocol for Nezha {
    quintet_replica::usual_items!();
    type Record = Record;
    type ReplyHeader = ReplyHeader;

    const SPECULATES: bool = true;

    const INFO: Info = Info {
        name: "nezha",
        paper: "Geng, Sivaraman, Prabhakar, Rosenblum, Nezha, VLDB 2023",
        best_at: "one round trip from clients to all replicas where clocks are synchronised",
        tolerates: "crashes, loss and partitions of a minority; clocks may be wrong",
        stable: true,
        replicas_min: 1,
    };

    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "a deadline lay too far ahead",
        "an entry with another deadline was taken over",
        "ignored: message of an earlier incarnation",
        "late at a follower",
        "late at the leader",
        "missing batch fetched",
        "placed from the late buffer",
        "recovered",
        "recovery quorum",
        "speculation undone",
        "survivor of a view change",
        "view changed",
        "view joined",
    ];

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let (config, leader_first) = (setup.options, setup.epoch.leader_first);
        Self {
            incarnations: CrashVector::new(&me),
            view: ViewState::new(&me, leader_first),
            me,
            phase: Phase::Follower,
            persisted: PersistId(0),
            log: Log::new(config.injected),
            receiver: Receiver::new(config.estimation()),
            config,
            placements: Placements::default(),
            replies: Replies::default(),
            fetching: StateFetch::default(),
            paths: Timing((0, 0)),
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.trust_leader(ctx);
        ctx.set_timer(Timer::Tick, self.config.heartbeat);
        let (first_boot, state_lost) = (recovered.first_boot, recovered.state_lost);
        self.restore(recovered, ctx);
        let view = self.view.number();
        if state_lost {
            self.become_recovering(ctx);
        } else if first_boot {
            if self.leads() {
                // Durable before anything is ordered, so that no later start is a first one.
                let written = self.promise(ctx);
                self.view.wait_for(written);
                self.phase = Phase::Leader(LeaderState::new(&self.me, self.log.sync()));
            }
        } else if self.leads() {
            // Messages that it sent under this view may not be on its disk: never the same view
            // twice.
            self.start_view_change(view + 1, ctx);
        } else if self.view.number_normal() < view {
            self.start_view_change(view, ctx);
        }
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        match message {
            Message::Request {
                sent,
                bound,
                deviation,
                level,
                batch,
            } => self.on_batch(from, (sent, bound, deviation), level, batch, ctx),
            Message::Paths { fast, slow } if from == ctx.embedded() => *self.paths = (fast, slow),
            _ => ctx.mark("ignored: not for a replica"),
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        match message {
            Message::Between {
                view,
                incarnations,
                part,
            } if incarnations.len() == self.me.members() => {
                if self.incarnations.is_outdated(from, &incarnations)
                    && !self.injected(Bug::IncarnationsIgnored)
                {
                    return ctx.mark("ignored: message of an earlier incarnation");
                }
                let newer = self.incarnations.merge(&incarnations);
                self.on_restarted(newer, ctx);
                self.on_part(from, view, part, ctx);
            }
            _ => ctx.mark("ignored: not for a replica"),
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Tick => self.on_tick(ctx),
            Timer::Release => {
                self.receiver.release_fired();
                self.release(ctx);
            }
            Timer::Fetch => self.fetch_missing(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.persisted = self.persisted.max(upto);
        if self.log.on_persisted(upto) {
            self.placements.want_status();
        }
        self.send_fast_replies(ctx);
        if self.is_leader() {
            self.count_syncs(ctx);
        }
        self.on_promise_durable(ctx);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.log.on_checkpointed(slot);
        self.log.trim(ctx);
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        if let Link::Up { incarnation } = link {
            self.meet(peer, incarnation, ctx);
        }
        if peer == self.view.leader() {
            match link {
                Link::Down => self.view.set_leader_down(true),
                Link::Up { .. } => self.view.set_leader_down(false),
                Link::Arriving => self.view.heard(ctx.now()),
                Link::Room(_) | Link::Reset => {}
            }
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue => {
                if let Some(summary) = self.log.summary(self.is_leader()) {
                    ctx.checkpoint(self.log.executed(), &summary);
                }
            }
            Control::HandOff => {
                if self.me.members() > 1 {
                    self.hand_off(self.me.others(), ctx);
                }
            }
            Control::Slow(quick) | Control::Farther(quick) => self.hand_off(quick, ctx),
            // No replica waits for more than a quorum of the others.
            Control::SlowMembers(_) => {}
            Control::EpochEnded => self.begin_round(ctx),
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed) => {
                    self.config = changed;
                    self.receiver.retune(self.config.estimation());
                }
                None => ctx.mark("ignored: option value"),
            },
            Control::ReportFailure(id) => {
                if id == self.view.leader() {
                    self.view.set_leader_down(true);
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx)
    }

    fn takes_requests(&self, _now: Time) -> bool {
        self.is_ready() && (self.config.multicast || self.is_leader())
    }

    fn status(&self) -> Status {
        let role = match self.phase {
            Phase::Follower => "follower",
            Phase::Leader(_) => "leader",
            Phase::Changing(_) => "changing view",
            Phase::Joining(_) => "joining",
            Phase::Recovering(_) => "recovering",
        };
        let (fast, slow) = *self.paths;
        let (early, late) = self.log.buffered();
        let mut details = vec![
            ("sync_point", format!("{}", self.log.durable().0)),
            ("early_buffer", format!("{early}")),
            ("late_buffer", format!("{late}")),
        ];
        if let Some(share) = (fast * 100).checked_div(fast + slow) {
            details.push(("fast_percent", format!("{share}")));
        }
        if let Some(hold) = self.receiver.hold() {
            details.push(("hold_us", format!("{}", hold / 1000)));
        }
        Status {
            multicasts: Vec::new(),
            role,
            leader: self.is_normal().then(|| self.view.leader()),
            view: self.view.number(),
            accepted: self.log.sync().max(self.log.executed()),
            committed: self.log.commit(),
            stable: self.log.commit().min(self.log.executed()),
            voting: self.is_normal(),
            paths: vec![("fast", fast), ("slow", slow)],
            details,
        }
    }

    fn digest(&self) -> u64 {
        let phase = match self.phase {
            Phase::Follower => 0,
            Phase::Leader(_) => 1,
            Phase::Changing(_) => 2,
            Phase::Joining(_) => 3,
            Phase::Recovering(_) => 4,
        };
        let (early, late) = self.log.buffered();
        digest([
            self.view.number(),
            self.view.number_normal(),
            phase,
            self.log.sync().0,
            self.log.durable().0,
            self.log.commit().0,
            self.log.executed().0,
            self.log.unsynced_len() as u64,
            early as u64,
            late as u64,
            self.incarnations.hash(),
            self.log.known_len() as u64,
        ])
    }

    fn assert_invariants(&self) {
        self.log.assert_invariants(self.is_leader());
        self.view.assert_invariants(self.is_normal());
        if self.is_normal() {
            self.log.assert_hash();
        }
    }
}

impl Nezha {
    fn on_part(&mut self, from: ReplicaId, view: u64, part: Part, ctx: &mut Context<'_, Self>) {
        match part {
            Part::LogModification {
                first,
                stamps,
                commit,
                round,
            } => self.on_log_modification(from, view, (first, stamps), (commit, round), ctx),
            Part::LogStatus { sync, round } => self.on_log_status(from, view, sync, round, ctx),
            Part::Lacks { first, upto } => self.on_lacks(from, view, (first, upto), ctx),
            Part::Fetch(names) => self.on_fetch(from, &names, ctx),
            Part::Bodies(batches) => self.on_bodies(batches, ctx),
            Part::GetLog(first) => self.on_get_log(from, view, first, ctx),
            Part::LogPage {
                first,
                entries,
                end,
            } => self.on_log_page(from, view, (first, entries), end, ctx),
            Part::Trimmed(below) => self.on_trimmed(from, view, below, ctx),
            Part::Suspect => self.on_suspect(from, view, ctx),
            Part::ViewChange(commit) => self.on_view_change(from, view, commit, ctx),
            Part::Vote(vote) => self.on_vote(from, view, vote, ctx),
            Part::Recover(nonce) => self.on_recover(from, view, nonce, ctx),
            Part::RecoverOk(nonce, standing) => {
                self.on_recover_ok(from, view, nonce, standing, ctx);
            }
            Part::Appended(name, hash) => self.on_appended(from, view, name, hash, ctx),
        }
    }
}
