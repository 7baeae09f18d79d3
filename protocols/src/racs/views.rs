//! From view to view: timeouts, the end of a view, new-views, and the loop that acts on all that
//! has been noted.
//!
//! ```text
//!             n-f timeouts                  n-f completions: coin
//!   synchronous ─────────► asynchronous ─────────────────────────► synchronous of the next view
//!        ▲                                  or a certificate             │ n-f new-views: open
//!        └── a later view is heard of ◄──────────────────────────────────┘
//! ```
//!
//! A replica may enter a later view at any time, as long as it takes no part in earlier ones any
//! more and looks, when it leaves an asynchronous mode, at what it voted for there (R2).

use super::{
    BlockId, Certificate, Message, Racs, Why,
    bug::Bug,
    fallback::Fallback,
    leader_state::LeaderState,
    replica::{Mode, Timer},
};
use alloc::{boxed::Box, collections::BTreeSet, vec::Vec};
use quintet_replica::{
    Context, Lane, ReplicaId, ReplicaSet, Time,
    parts::{RequestQueue, request_key},
};

impl Racs {
    /// Acts on what has been noted, until nothing moves.
    pub(super) fn evaluate(&mut self, ctx: &mut Context<'_, Self>) {
        // Each step raises the view, what is decided, what is voted for, or opens a gate.
        loop {
            let mut moved = self.maybe_decide();
            moved |= self.maybe_commit(ctx);
            if matches!(self.mode, Mode::Recovering(_)) {
                moved |= self.maybe_recovered(ctx);
            } else {
                moved |= self.maybe_leave(ctx);
                moved |= self.maybe_enter_asynchronous(ctx);
                moved |= self.maybe_open(ctx);
                moved |= self.maybe_accept(ctx);
                moved |= self.continue_asynchronously(ctx);
            }
            if !moved {
                return;
            }
        }
    }

    /// Says what the others need to know of this replica's place in its view.
    pub(super) fn say(&mut self, ctx: &mut Context<'_, Self>) {
        if let Mode::Recovering(_) = &self.mode {
            return self.ask_to_recover(ctx);
        }
        if self.view.is_out() {
            return self.ask_to_move_on(ctx);
        }
        if let Some(high) = self.view.stopped() {
            let message = Message::Timeout {
                view: self.view.number(),
                high,
                decided: self.tree.root().id,
                leaving: self.view.is_leaving(),
                mark: self.reads.newest(),
            };
            ctx.multicast(self.me.others(), Lane::Control, &message);
            self.peers.stopped(self.me.id(), self.view.number(), high);
        } else if !self.sync.is_heard() && self.sync.lead.is_none() && self.view.has_proof() {
            let message = Message::NewView {
                view: self.view.number(),
                high: self.tree.high(),
                certificate: self.view.certificate().cloned(),
            };
            ctx.send(self.view.leader(), Lane::Control, &message);
            if self.sync.introduce() {
                // It need not be heard first: two ways between sites less.
                self.relay.kept.forward_all();
            }
        }
        if matches!(self.mode, Mode::Asynchronous(_)) {
            self.say_asynchronously(ctx);
        }
    }

    pub(super) fn on_timeout(
        &mut self,
        from: ReplicaId,
        view: u64,
        (high, decided): (BlockId, BlockId),
        leaving: bool,
        mark: Option<super::Mark>,
        ctx: &mut Context<'_, Self>,
    ) {
        if view < self.view.number() {
            return self.send_exit(from, view, ctx);
        }
        if high.view > view {
            return ctx.mark("ignored: timeout with a block of a later view");
        }
        self.peers.on_timeout(from, view, high, mark);
        self.follow(view, ctx);
        let near = decided.round + self.config.window as u64 >= self.tree.root().id.round;
        if let Some(lead) = self
            .sync
            .lead
            .as_mut()
            .filter(|_| near && view == self.view.number())
        {
            lead.on_stopped(from);
        }
        if leaving && view == self.view.number() && self.view.leader_of(view) == from {
            self.time_out(ctx);
        }
    }

    pub(super) fn on_new_view(
        &mut self,
        from: ReplicaId,
        view: u64,
        high: BlockId,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.view.leader_of(view) != self.me.id() || high.view >= view {
            return ctx.mark("ignored: new-view for another");
        }
        if view < self.view.number() {
            return self.send_exit(from, view, ctx);
        }
        self.peers.on_new_view(from, view, high);
    }

    pub(super) fn on_certificate(&mut self, certificate: Certificate) {
        self.view.on_certificate(certificate, self.me.majority());
    }

    /// Helps a replica that speaks of a view that this one has left.
    pub(super) fn send_exit(&mut self, to: ReplicaId, view: u64, ctx: &mut Context<'_, Self>) {
        if !self.outbox.is_settled() {
            return;
        }
        let by_high = self.injected(Bug::ExitByHigh);
        let proof = self.view.certificate().filter(|proof| proof.view >= view);
        if let Some(certificate) = proof.cloned() {
            let decided = if by_high {
                self.tree.high()
            } else {
                self.tree.root().id
            };
            ctx.send(
                to,
                Lane::Control,
                &Message::Exit {
                    certificate,
                    decided,
                },
            );
        }
        if self.sync.leads() && !self.view.is_stopped() {
            let to = ReplicaSet::EMPTY.with(to);
            self.send_propose(to, Vec::new(), true, ctx);
        }
    }

    /// The words that can be counted, and the highest block among them. Blocks that are missing are
    /// asked for, and their senders do not count yet.
    fn count(
        &mut self,
        said: Vec<(ReplicaId, BlockId)>,
        ctx: &mut Context<'_, Self>,
    ) -> (usize, BlockId) {
        let (mut count, mut best) = (0, BlockId::GENESIS);
        for (from, high) in said {
            if self.tree.delivered(high) {
                count += 1;
                if self.tree.rank(high) > self.tree.rank(best) {
                    best = high;
                }
            } else {
                self.want(high, from, ctx);
            }
        }
        (count, best)
    }

    fn maybe_enter_asynchronous(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        if self.view.is_out() || matches!(self.mode, Mode::Asynchronous(_)) {
            return false;
        }
        let said = self.peers.timeouts(self.view.number());
        let (count, best) = self.count(said, ctx);
        if count < self.me.majority() {
            return false;
        }
        self.enter_asynchronous(best, ctx);
        true
    }

    fn enter_asynchronous(&mut self, best: BlockId, ctx: &mut Context<'_, Self>) {
        ctx.mark("asynchronous mode");
        self.adopt(best);
        self.view.ensure_stopped(self.tree.high());
        let queue = self.sync.lead.take().map(|lead| lead.queue);
        let forwarded = queue.iter().flat_map(RequestQueue::waiting);
        self.outbox.renew();
        self.timing.fell_back();
        let mut fallback = Fallback::new(
            forwarded.map(|(_, batch)| batch.clone()).collect(),
            ctx.now(),
        );
        if self.injected(Bug::FallKept) {
            fallback.set_fall(self.view.fall_old().clone());
        }
        self.mode = Mode::Asynchronous(Box::new(fallback));
        self.relay.kept.forward_nothing();
        let high = self.tree.high();
        self.write(high, Why::Held, None, ctx);
        self.promise(ctx);
        self.propose_level_1(ctx);
        self.arm_repeat(ctx);
    }

    /// The highest block of a quorum's timeouts.
    fn adopt(&mut self, best: BlockId) {
        if self.injected(Bug::HighAsPrinted) && self.tree.connected(best) {
            self.tree.set_high(best);
        }
        self.tree.raise_high(best);
    }

    /// The view's asynchronous mode is over.
    fn maybe_leave(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        self.note_completions();
        let Some((view, elected)) = self.view.exit() else {
            return false;
        };
        if let Some(elected) = elected
            && elected.round > self.tree.root().id.round
            && !self.tree.connected(elected)
        {
            self.want(elected, elected.owner, ctx);
            return false;
        }
        self.leave(view, elected, ctx);
        true
    }

    fn leave(&mut self, view: u64, elected: Option<BlockId>, ctx: &mut Context<'_, Self>) {
        let here = elected.filter(|_| view == self.view.number());
        self.look_back(here, ctx);
        if let Some(elected) = elected {
            ctx.mark("coin elects a block");
            self.timing.has_elected();
            self.raise_high(elected);
            self.tree.decide(elected);
        } else {
            ctx.mark("coin elects no replica");
        }
        self.view.take_exit();
        // The elected block is decided before the tree is pruned around the highest one.
        self.maybe_commit(ctx);
        self.enter_view(view + 1, ctx);
    }

    /// Before any step out of an asynchronous mode: what the coin elects may have been decided
    /// with this replica's vote, so it becomes the highest block.
    fn look_back(&mut self, elected: Option<BlockId>, ctx: &mut Context<'_, Self>) {
        let coin = self.view.elected(self.view.number());
        let Mode::Asynchronous(fallback) = &self.mode else {
            return;
        };
        let fall = fallback.fall().get(&coin).copied();
        self.view.keep_fall(fallback.fall().clone());
        if self.injected(Bug::FallLost) {
            return;
        }
        if let Some(block) = fall.filter(|block| elected.is_none_or(|elected| elected == *block)) {
            if elected.is_none() {
                ctx.mark("block of level 2 voted for is elected");
            }
            self.raise_high(block);
        }
    }

    fn raise_high(&mut self, elected: BlockId) {
        if self.tree.is_flat() && self.tree.connected(elected) {
            self.tree.set_high(elected);
        }
        self.tree.raise_high(elected);
    }

    /// An injected bug: what others hold replaces the look at what was voted for here.
    pub(super) fn exit_by_high(&mut self, view: u64, high: BlockId, ctx: &mut Context<'_, Self>) {
        if view < self.view.number() || matches!(self.mode, Mode::Recovering(_)) {
            return;
        }
        if !self.tree.connected(high) {
            let owner = high.owner;
            return self.want(high, owner, ctx);
        }
        self.tree.set_high(high);
        self.mode = Mode::Synchronous;
        self.view.drop_certificate();
        self.enter_view(view + 1, ctx);
    }

    /// Another is in this view: if it is a later one, n-f have left those before it, and may need
    /// this replica there. Its own view does not show that: an idle leader alone in it hears of no
    /// reason to leave.
    pub(super) fn follow(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        if view > self.view.number() && !matches!(self.mode, Mode::Recovering(_)) {
            ctx.mark("later view followed");
            self.jump(view, ctx);
        }
    }

    /// Another needs this replica to time out in this view, which is not an earlier one.
    pub(super) fn time_out_in(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.follow(view, ctx);
        if view == self.view.number() {
            self.time_out(ctx);
        }
    }

    /// The first view that a decided block allows: one that the coin elected ended its view.
    pub(super) const fn view_of(decided: BlockId) -> u64 {
        decided.view + (decided.level > 0) as u64
    }

    /// A later view has begun already.
    pub(super) fn jump(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.look_back(None, ctx);
        self.maybe_commit(ctx);
        self.enter_view(view, ctx);
    }

    /// The synchronous mode of a view, with all that this replica knows behind it.
    pub(super) fn enter_view(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.begin_view(view, ctx);
        let high = self.tree.high();
        self.write(high, Why::Held, None, ctx);
        self.promise(ctx);
        if self.view.rejoin() {
            ctx.mark("recovered");
            // After the promise: the one before it does not tell of what was said in earlier views.
            ctx.recovered();
        }
        let queue = core::mem::take(&mut self.relay.ahead);
        self.sync.lead = (self.view.leader_of(view) == self.me.id())
            .then(|| LeaderState::new(self.me.members(), queue));
        self.sync.progressed(ctx.now());
        ctx.set_timer(Timer::View, self.timeout());
        self.arm_repeat(ctx);
        if self.peers.is_down(self.view.leader_of(view)) {
            ctx.mark("view passed over: its leader is down");
            self.time_out(ctx);
        }
    }

    fn begin_view(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        // A timeout ends with its view and not before: no vote of that view may follow it.
        debug_assert!(view > self.view.number() || self.injected(Bug::LeaderContinues));
        self.view.begin(view);
        if let Mode::Asynchronous(fallback) = &self.mode
            && let Some(began_at) = fallback.began_at()
        {
            self.timing.priced(began_at, ctx.now());
        }
        self.mode = Mode::Synchronous;
        self.sync.begin_view();
        self.outbox.renew();
        self.timing.view_begins();
        self.missing.clear();
        self.relay.kept.forward_nothing();
        if !self.injected(Bug::FallKept) {
            self.tree.prune(view, self.tree.high());
        }
    }

    /// A quorum of new-views opens the view (R6).
    fn maybe_open(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let closed = self.sync.lead.as_ref().is_some_and(|lead| !lead.open);
        if !closed || self.view.is_stopped() || self.view.is_out() || !self.outbox.is_settled() {
            return false;
        }
        let said = self.peers.new_views(self.view.number());
        let (mut count, best) = self.count(said, ctx);
        count += usize::from(self.view.has_proof());
        if count < self.me.majority() && !self.injected(Bug::NoGate) {
            return false;
        }
        ctx.mark("view opened");
        self.tree.raise_high(best);
        let keys: BTreeSet<_> = self
            .tree
            .path(self.tree.high())
            .iter()
            .flat_map(|block| block.batches.iter())
            .filter_map(|batch| request_key(batch))
            .collect();
        let mut queue = RequestQueue::proposed(keys.into_iter());
        let direct = !self.disseminates();
        for (key, batch) in self.relay.kept.iter().filter(|_| direct) {
            queue.push(key, batch.clone());
        }
        if let Some(lead) = &mut self.sync.lead {
            lead.open(queue);
        }
        self.sync.progressed(ctx.now());
        self.reads.repeat();
        self.send_propose(self.me.others(), Vec::new(), true, ctx);
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        true
    }

    /// After something was decided.
    pub(super) fn on_progress(&mut self, decided: BlockId, now: Time) {
        if decided.level == 0 && decided.view == self.view.number() {
            self.timing.progressed(now);
            if self.sync.lead.is_some() {
                self.sync.progressed(now);
            }
        }
        let waits = !self.relay.kept.is_empty() || !self.reads.is_empty();
        self.relay.progressed(waits, now);
    }
}
