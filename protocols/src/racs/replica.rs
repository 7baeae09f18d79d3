//! One replica: its state, and how events reach the parts.
//!
//! ```text
//!   messages, timers ──► on_* note what they say ──► on_idle: evaluate, until nothing moves
//!   on_persisted ──────► votes and blocks leave       decide · leave views · enter modes · vote
//! ```

use super::{
    BlockId, Config, Message, Promised, Record, Summary,
    bug::Bug,
    coin::Coin,
    fallback::Fallback,
    hybrid::Hybrid,
    leader_state::LeaderState,
    message::Answer,
    missing::Missing,
    outbox::{Due, Outbox},
    peers::Peers,
    read_queue::ReadQueue,
    relay::Relay,
    sync_state::SyncState,
    tree::{Tree, Unwritten},
    view_state::ViewState,
    view_timing::ViewTiming,
};
use crate::sadl::{Dissemination, Sadl};
use alloc::{boxed::Box, format, string::ToString, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Control, FrontendId, Incarnation, Info, Link, Options, PersistId, Protocol, Recovered,
    ReplicaId, Setup, Slot, Status, Time, Wake,
    parts::{Admitted, AttachedFrontend, Housekeeping, Member, Observed, StateLoss, admit, digest},
};

/// Replicas forward, propose and answer by themselves: the shared frontend is all that is needed.
pub type Frontend = AttachedFrontend<Racs>;

/// The role of a replica in its view.
#[derive(Hash)]
pub(super) enum Mode {
    /// The view's leader proposes.
    Synchronous,
    /// Everybody proposes, the coin elects.
    Asynchronous(Box<Fallback>),
    /// It has lost what it acknowledged, and asks.
    Recovering(StateLoss<Answer>),
}

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// Timeout with the view.
        View,
        /// A leader is heard although idle.
        Beat,
        /// The last message is sent again.
        Repeat,
        /// Missing blocks are asked for again.
        Fetch,
        /// Requests and reads in flight are looked through.
        Housekeeping,
        /// Batches are shown again.
        Show,
        /// Batches are asked for again.
        FetchBatches,
    }
}

/// One replica of RACS; see the module.
#[derive(Hash)]
pub struct Racs {
    pub(super) me: Member,
    pub(super) config: Config,
    pub(super) view: ViewState,
    pub(super) mode: Mode,
    pub(super) sync: SyncState,
    pub(super) tree: Tree,
    pub(super) peers: Peers,
    pub(super) outbox: Outbox,
    pub(super) timing: ViewTiming,
    pub(super) missing: Missing,
    pub(super) relay: Relay,
    pub(super) sadl: Sadl<Self>,
    pub(super) hybrid: Hybrid,
    pub(super) reads: ReadQueue,
    pub(super) housekeeping: Housekeeping<Timer>,
}

impl Racs {
    /// Whether any is: what it breaks is the checkers' to find, not an assertion's.
    fn weak(&self) -> bool {
        self.config.injected != super::bug::Injected::default()
    }

    pub(super) fn promise(&mut self, ctx: &mut Context<'_, Self>) {
        let promised = Promised {
            view: self.view.number(),
            stopped: self.view.stopped(),
            asynchronous: matches!(self.mode, Mode::Asynchronous(_)),
            high: self.tree.high(),
            certificate: self.view.certificate().cloned(),
            chain: self.sadl.chain(),
        };
        let write = ctx.persist_promise(&promised);
        self.sadl.numbered(write);
        self.outbox.promised(write);
    }

    /// Writes a connected block and what leads to it; `due` happens when all of it is durable.
    pub(super) fn write(
        &mut self,
        id: BlockId,
        why: super::Why,
        due: Option<Due>,
        ctx: &mut Context<'_, Self>,
    ) {
        let mut last = None;
        let mut said = false;
        for Unwritten { block, quotes } in self.tree.take_unwritten(id) {
            let why = if block.id == id {
                why
            } else {
                super::Why::Held
            };
            said |= block.id == id;
            let record = Record::Block {
                why,
                id: block.id,
                block: Some(block.clone()),
                quotes,
            };
            last = Some(ctx.persist(block.first, &record));
        }
        if !said && due.is_some() {
            let slot = self
                .tree
                .get(id)
                .map_or(self.tree.root().end, |block| block.first);
            let record = Record::Block {
                why,
                id,
                block: None,
                quotes: Vec::new(),
            };
            last = Some(ctx.persist(slot, &record));
        }
        if let (Some(write), Some(due)) = (last, due) {
            if self.injected(Bug::VoteNotDurable) {
                return self.on_due(due, ctx);
            }
            self.outbox.say_after(write, due);
        }
    }

    fn on_due(&mut self, due: Due, ctx: &mut Context<'_, Self>) {
        match due {
            Due::Vote(id) => self.on_vote_durable(id),
            Due::VoteAsync(id) => self.send_vote_async(id, ctx),
            Due::Own(id) => self.on_own_durable(id, ctx),
        }
    }

    /// A peer, or this replica, is in this incarnation of its, or in a later one: what it
    /// acknowledged before no longer counts.
    pub(super) fn meet(
        &mut self,
        peer: ReplicaId,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        let observed = self.peers.observe(peer, incarnation);
        if observed == Observed::Known {
            return;
        }
        if observed == Observed::Restarted {
            ctx.mark("peer came back in a new incarnation");
        }
        self.sadl.meet(peer, incarnation);
        if let Some(lead) = &mut self.sync.lead {
            lead.forget(peer);
        }
        if let Mode::Asynchronous(fallback) = &mut self.mode {
            fallback.forget(peer);
        }
    }

    /// The incarnations that a voter knows. False when the voter is in an older one itself.
    pub(super) fn meet_all(
        &mut self,
        from: ReplicaId,
        incarnations: &[Incarnation],
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if incarnations.len() != self.me.members() {
            return false;
        }
        for (peer, incarnation) in incarnations.iter().enumerate() {
            self.meet(ReplicaId(peer as u16), *incarnation, ctx);
        }
        incarnations[from.index()] >= self.peers.incarnation(from)
    }

    pub(super) fn arm_repeat(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some(longer) = self.outbox.arm() {
            let pause = Duration::from_millis(60).max(self.timing.round_trip() * 2);
            ctx.set_timer(Timer::Repeat, pause * longer);
        }
    }

    fn on_repeat(&mut self, ctx: &mut Context<'_, Self>) {
        self.outbox.fired();
        let steady = matches!(self.mode, Mode::Synchronous)
            && !self.view.is_stopped()
            && !self.view.is_out()
            && (self.sync.is_heard() || self.sync.leads());
        if !steady {
            self.outbox.repeat();
            self.want_quoting(ctx);
            self.arm_repeat(ctx);
        }
    }

    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping.fired();
        self.relay.kept.expire(ctx.now());
        self.sadl
            .drop_waiting(&|key| !self.relay.kept.contains(key));
        self.reads.expire(ctx.now());
        self.reads.repeat();
        if self.relay.kept.is_empty() && self.reads.is_empty() {
            self.relay.progressed(false, ctx.now());
        } else {
            self.housekeeping.arm(ctx);
        }
    }

    fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.evaluate(ctx);
        if self.outbox.take_wanted() {
            self.say(ctx);
        }
        self.flush_requests(ctx);
        self.flush_batches(ctx);
        let wake = self.flush_leader(ctx);
        if self.sync.take_answer_due() {
            self.send_vote(ctx);
        }
        // The own vote may be all that was missing.
        self.evaluate(ctx);
        wake
    }
}

impl Protocol for Racs {
    quintet_replica::usual_items!();
    type Record = Record;
    type ReplyHeader = ();

    const RESUMES_WITHIN: Duration = Duration::from_secs(5);
    const BRANCHES: &'static [&'static str] = &[
        "another level 1 taken over",
        "asynchronous mode",
        "later view followed",
        "block of level 2 voted for is elected",
        "coin elects no replica",
        "coin elects a block",
        "exit by another's certificate",
        "dissemination changed",
        "leadership handed off",
        "missing block asked for",
        "needs trimmed blocks",
        "recovered",
        "recovery quorum",
        "view opened",
        "batches fetched",
        "batches shown again",
        "quoting block written complete",
    ];

    const INFO: Info = Info {
        name: "racs",
        paper: "Tennage, Desjardins, Kokoris-Kogias, RACS and SADL, 2024",
        best_at: "one round trip while delays are known, and continues when they are not",
        tolerates: "crashes of a minority; delays without bound",
        stable: true,
        replicas_min: 1,
    };

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let (id, members) = (me.id(), me.members());
        let Setup { epoch, options, .. } = setup;
        let mut coin = Coin::new(&epoch);
        if options.injected.is(Bug::CoinDiffers) {
            coin.corrupt(id);
        }
        let flat = [Bug::HighAsPrinted, Bug::KeepMaxOnly, Bug::KeepMaxAndStop];
        let flat = flat.into_iter().any(|bug| options.injected.is(bug));
        let limits = Self::limits(&options);
        let sadl = Sadl::new(id, me.incarnation(), members, me.majority(), limits);
        Self {
            peers: Peers::new(&me),
            me,
            config: options,
            view: ViewState::new(&epoch, coin),
            mode: Mode::Synchronous,
            sync: SyncState::default(),
            tree: Tree::new(id, flat),
            outbox: Outbox::default(),
            timing: ViewTiming::new(members),
            missing: Missing::default(),
            relay: Relay::default(),
            sadl,
            hybrid: Hybrid::new(members),
            reads: ReadQueue::new(id),
            housekeeping: Housekeeping::new(Timer::Housekeeping),
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.reads.start(ctx.random());
        let (first_boot, state_lost) = (recovered.first_boot, recovered.state_lost);
        let Some(found) = self.restore(recovered) else {
            return ctx.halt_damaged();
        };
        if state_lost && !self.injected(Bug::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        self.start(first_boot, found, ctx);
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        let takes = self.takes_requests(ctx.now());
        match admit(from, message, |_| !takes, ctx) {
            Some(Admitted::Read(key, batch)) => self.on_read(key, batch, ctx),
            Some(Admitted::Write(key, batch)) => self.on_write(key, batch, ctx),
            None => {}
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        self.peers.link_up(from);
        match message {
            Message::Forward { mark, batches } => self.on_forward(from, mark, batches, ctx),
            Message::Propose {
                view,
                tip,
                decided,
                stamp,
                round_trip,
                answer,
                blocks,
            } => {
                self.learn(decided, from, ctx);
                let told = (stamp, round_trip, answer);
                self.on_propose(from, view, tip, told, blocks, ctx);
            }
            Message::Vote {
                view,
                tip,
                stamp,
                incarnations,
                median,
            } => {
                if self.meet_all(from, &incarnations, ctx) {
                    self.hybrid.on_told(from, median);
                    self.on_vote(from, view, tip, stamp, ctx);
                } else {
                    ctx.mark("ignored: vote of an earlier incarnation");
                }
            }
            Message::Timeout {
                view,
                high,
                decided,
                leaving,
                mark,
            } => {
                self.learn(decided, from, ctx);
                self.on_timeout(from, view, (high, decided), leaving, mark, ctx);
            }
            Message::ProposeAsync { block, quotes } => {
                self.on_propose_async(from, block, quotes, ctx);
            }
            Message::VoteAsync {
                block,
                incarnations,
            } => {
                if self.meet_all(from, &incarnations, ctx) {
                    self.on_vote_async(from, block);
                } else {
                    ctx.mark("ignored: vote of an earlier incarnation");
                }
            }
            Message::Complete { block } => self.on_complete(from, block, ctx),
            Message::NewView {
                view,
                high,
                certificate,
            } => {
                if let Some(certificate) = certificate {
                    self.on_certificate(certificate);
                }
                self.on_new_view(from, view, high, ctx);
            }
            Message::Exit {
                certificate,
                decided,
            } => {
                if self.injected(Bug::ExitByHigh) {
                    return self.exit_by_high(certificate.view, decided, ctx);
                }
                if certificate.view >= self.view.number() {
                    ctx.mark("exit by another's certificate");
                }
                // Before what is decided: that may end the view, and the proof of it is to be kept.
                self.on_certificate(certificate);
                self.learn(decided, from, ctx);
            }
            Message::Fetch { tip, have } => self.on_fetch(from, tip, &have, ctx),
            Message::Blocks {
                tip,
                blocks,
                decided,
            } => self.on_blocks(from, tip, blocks, decided, ctx),
            Message::Sadl(message) => self.on_sadl(from, message, ctx),
            Message::Trimmed { slot } => self.on_trimmed(slot, ctx),
            Message::Recover {
                incarnation,
                nonce,
                above,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_recover(from, incarnation, nonce, above, ctx);
            }
            Message::RecoverOk { nonce, answer } => self.on_recover_ok(from, nonce, answer, ctx),
            Message::Request(_) | Message::Taken(_) => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::View => self.on_view_timer(ctx),
            Timer::Beat => self.on_beat_timer(ctx),
            Timer::Repeat => self.on_repeat(ctx),
            Timer::Fetch => self.on_fetch_timer(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
            Timer::Show => self.sadl.on_show_timer(ctx),
            Timer::FetchBatches => self.sadl.on_fetch_timer(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.sadl.on_persisted(upto, ctx);
        self.outbox.durable_up_to(upto);
        while let Some(due) = self.outbox.pop_due(upto) {
            self.on_due(due, ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.tree.on_executed(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.sadl.trim(slot, ctx);
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.tree.on_executed(slot);
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        match link {
            Link::Up { incarnation } => {
                self.peers.link_up(peer);
                self.meet(peer, incarnation, ctx);
                self.on_link_renewed(peer, ctx);
            }
            Link::Reset => self.on_link_renewed(peer, ctx),
            Link::Down => {
                self.peers.link_down(peer);
                if self.view.leader() == peer {
                    self.on_leader_lost(ctx);
                }
            }
            Link::Arriving => {
                let now = ctx.now();
                if self.view.leader() == peer && !self.starving(now) {
                    self.sync.progressed(now);
                }
            }
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue => {
                let root = self.tree.root();
                if root.end > Slot(0) {
                    let summary = Summary {
                        decided: root.id,
                        time: root.time,
                        heads: self.sadl.heads().to_vec(),
                        course: self.hybrid.course(),
                    };
                    self.keep_undecided(ctx);
                    ctx.checkpoint(root.end, &summary);
                }
            }
            Control::HandOff => self.hand_off(ctx),
            Control::Slow(quick) | Control::Farther(quick) => self.leave_if_slow(quick, ctx),
            // No replica waits for more than a quorum of the others.
            Control::SlowMembers(_) | Control::EpochEnded => {}
            Control::ReportFailure(peer) => {
                if self.view.leader() == peer {
                    self.on_leader_lost(ctx);
                }
            }
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed) => {
                    let before = self.way();
                    self.sadl.limit(Self::limits(&changed));
                    self.config = changed;
                    if self.way() != before {
                        self.on_dissemination(ctx);
                    }
                }
                None => ctx.mark("ignored: option value"),
            },
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx)
    }

    fn takes_requests(&self, _now: Time) -> bool {
        !matches!(self.mode, Mode::Recovering(_))
    }

    fn status(&self) -> Status {
        let leads = self.sync.leads();
        let role = match &self.mode {
            Mode::Recovering(_) => "recovering",
            Mode::Asynchronous(_) => "asynchronous",
            Mode::Synchronous if self.view.is_out() => "rejoining",
            Mode::Synchronous if self.view.is_stopped() => "timed out",
            Mode::Synchronous if leads => "leader",
            Mode::Synchronous => "follower",
        };
        let known = matches!(self.mode, Mode::Synchronous)
            && !self.view.is_stopped()
            && (self.sync.is_heard() || leads);
        let accepted = self
            .tree
            .end_of(self.tree.high())
            .map_or(self.tree.root().end, |(end, _)| end);
        Status {
            role,
            leader: known.then(|| self.view.leader()),
            view: self.view.number(),
            accepted: accepted.max(self.tree.root().end),
            committed: self.tree.root().end,
            stable: self.tree.executed(),
            voting: !self.view.is_out() && !matches!(self.mode, Mode::Recovering(_)),
            details: vec![
                ("round", self.tree.root().id.round.to_string()),
                ("high", self.tree.high().to_string()),
                ("asynchronous_modes", self.timing.fallbacks().to_string()),
                ("elected_blocks", self.timing.elected().to_string()),
                ("view_timeout_ms", self.timeout().as_millis().to_string()),
                (
                    "asynchronous_mode_ms",
                    self.timing.price().as_millis().to_string(),
                ),
                (
                    "round_trip_us",
                    self.timing.round_trip().as_micros().to_string(),
                ),
                ("blocks_held", self.tree.len().to_string()),
                ("history_bytes", self.tree.history_bytes().to_string()),
                ("dissemination", self.way().to_string()),
                ("dissemination_chosen", self.config.is_hybrid().to_string()),
                (
                    "dissemination_switches",
                    self.hybrid.course().changes.to_string(),
                ),
                ("request_median_us", self.hybrid.median().to_string()),
                ("commands_per_second", self.hybrid.throughput().to_string()),
                ("batches_held", self.sadl.held().0.to_string()),
                ("batches_bytes", self.sadl.held().1.to_string()),
                ("requests", self.relay.kept.len().to_string()),
                ("requests_bytes", self.relay.kept.bytes().to_string()),
                ("reads_waiting", self.reads.len().to_string()),
                ("incarnation", format!("{}", self.me.incarnation().0)),
            ],
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let mode = match &self.mode {
            Mode::Synchronous => 1,
            Mode::Asynchronous(fallback) => fallback.digest(),
            Mode::Recovering(_) => 3,
        };
        let root = self.tree.root();
        let words = [
            self.view.number(),
            mode,
            self.tree.high().round,
            self.tree.high().view,
            root.id.round,
            root.end.0,
            u64::from(self.view.is_stopped()),
            u64::from(self.view.is_out()),
            self.tree.len() as u64,
            self.relay.kept.len() as u64,
            self.sync.lead.as_ref().map_or(0, LeaderState::digest),
        ];
        digest(words)
    }

    fn assert_invariants(&self) {
        self.tree.assert_invariants();
        self.sadl.assert_invariants();
        let weak = self.weak();
        if !matches!(self.mode, Mode::Recovering(_)) && !weak {
            assert!(
                self.tree.high().view <= self.view.number(),
                "the highest block {} is of this view, {}, or before",
                self.tree.high(),
                self.view.number()
            );
            assert!(
                self.tree.connected(self.tree.high()),
                "the highest block {} extends what is decided, {}",
                self.tree.high(),
                self.tree.root().id
            );
            assert!(
                self.tree.rank(self.tree.high()) >= self.tree.rank(self.tree.root().id),
                "nothing decided ranks above the highest block"
            );
            assert!(
                Self::view_of(self.tree.root().id) <= self.view.number(),
                "a view that elected {} has ended, and this one, {}, is later",
                self.tree.root().id,
                self.view.number()
            );
        }
        if let Some(lead) = &self.sync.lead {
            assert!(
                self.view.leader() == self.me.id(),
                "a leader leads its own view"
            );
            assert!(
                matches!(self.mode, Mode::Synchronous),
                "the asynchronous mode has no leader"
            );
            lead.assert_invariants(self.me.members(), self.view.number(), self.tree.high());
        }
        if let Mode::Asynchronous(fallback) = &self.mode {
            assert!(
                self.view.is_stopped(),
                "no synchronous vote in the asynchronous mode"
            );
            fallback.assert_invariants(self.view.number(), self.me.id());
        }
        if let Some(certificate) = self.view.certificate() {
            assert!(
                certificate.view < self.view.number(),
                "certificates are of views that ended"
            );
        }
    }
}
