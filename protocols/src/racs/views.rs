//! From view to view: timeouts, the end of a view, new-views, and the loop that acts on all that
//! has been noted.
//!
//! ```text
//!             n-f timeouts                  n-f completions: coin
//!   synchronous ─────────► asynchronous ─────────────────────────► synchronous of the next view
//!        ▲                                  or a certificate             │ n-f new-views: open
//!        └── a later view's leader is heard, or its timeouts ◄───────────┘
//! ```
//!
//! A replica may enter a later view at any time, as long as it takes no part in earlier ones any
//! more and looks, when it leaves an asynchronous mode, at what it voted for there (R2).

use super::{
    BlockId, Certificate, Message, Racs, Why,
    asynchronous::Fallback,
    plant::Plant,
    replica::{Mode, Timer},
    sync::Lead,
};
use alloc::{collections::BTreeSet, vec::Vec};
use quintet_replica::{
    Context, Lane, ReplicaId, Time,
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
                moved |= self.go_on_asynchronously(ctx);
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
        if self.out {
            return self.ask_to_move_on(ctx);
        }
        if let Some(high) = self.stopped {
            let message = Message::Timeout {
                view: self.view,
                high,
                decided: self.tree.root().id,
                leaving: self.leaving,
                mark: self.reads.newest(self.id, self.life),
            };
            ctx.multicast(self.others, Lane::Control, &message);
            self.timeouts[self.id.index()] = Some((self.view, high, None));
        } else if !self.heard && self.lead.is_none() && self.may_say_new_view() {
            let message = Message::NewView {
                view: self.view,
                high: self.high,
                certificate: self.certificate.clone(),
            };
            ctx.send(self.leader_of(self.view), Lane::Control, &message);
            if !core::mem::replace(&mut self.introduced, true) {
                // It need not be heard first: two ways between sites less.
                self.requests.pass_on_all();
            }
        }
        if matches!(self.mode, Mode::Asynchronous(_)) {
            self.say_asynchronously(ctx);
        }
    }

    /// Only those say "new view" who can prove that the view before has ended: the replica that
    /// left it must be able to help those who did not (R2).
    fn may_say_new_view(&self) -> bool {
        self.view == 1
            || self
                .certificate
                .as_ref()
                .is_some_and(|proof| proof.view + 1 == self.view)
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
        if view < self.view {
            return self.send_exit(from, view, ctx);
        }
        if high.view > view {
            return ctx.mark("ignored: timeout with a block of a later view");
        }
        let said = &mut self.timeouts[from.index()];
        if said.is_none_or(|(before, ..)| before <= view) {
            *said = Some((view, high, mark.filter(|mark| mark.replica == from)));
        }
        let near = decided.round + self.config.window as u64 >= self.tree.root().id.round;
        if let Some(lead) = self.lead.as_mut().filter(|_| near && view == self.view) {
            lead.stopped = lead.stopped.with(from);
        }
        if leaving && view == self.view && self.leader_of(view) == from {
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
        if self.leader_of(view) != self.id || high.view >= view {
            return ctx.mark("ignored: new-view for another");
        }
        if view < self.view {
            return self.send_exit(from, view, ctx);
        }
        let said = &mut self.new_views[from.index()];
        if said.is_none_or(|(before, ..)| before <= view) {
            *said = Some((view, high, None));
        }
    }

    pub(super) fn on_certificate(&mut self, certificate: Certificate) {
        let known = self.exit.as_ref().map_or(0, |exit| exit.view);
        let enough = certificate.completed.len() >= self.quorum;
        let members = certificate
            .completed
            .iter()
            .all(|id| id.owner.index() < self.members);
        if enough && members && certificate.view >= self.view && certificate.view > known {
            self.exit = Some(certificate);
        }
    }

    /// Helps a replica that speaks of a view that this one has left.
    pub(super) fn send_exit(&mut self, to: ReplicaId, view: u64, ctx: &mut Context<'_, Self>) {
        if !self.settled() {
            return;
        }
        let by_high = self.planted(Plant::ExitByHigh);
        if let Some(certificate) = self.certificate.clone().filter(|proof| proof.view >= view) {
            let decided = if by_high {
                self.high
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
        if self.lead.as_ref().is_some_and(|lead| lead.open) && self.stopped.is_none() {
            let to = quintet_replica::ReplicaSet::EMPTY.with(to);
            self.send_propose(to, Vec::new(), true, ctx);
        }
    }

    /// What `said` of `view` can be counted: who, and the highest block among it. Blocks that are
    /// missing are asked for, and their senders do not count yet.
    fn count(
        &mut self,
        view: u64,
        of: impl Fn(&Self) -> &[super::replica::Said],
        ctx: &mut Context<'_, Self>,
    ) -> (usize, BlockId) {
        let said: Vec<(ReplicaId, BlockId)> = of(self)
            .iter()
            .enumerate()
            .filter_map(|(from, said)| {
                let (of, high, _) = (*said)?;
                (of == view).then_some((ReplicaId(from as u16), high))
            })
            .collect();
        let (mut count, mut best) = (0, BlockId::GENESIS);
        for (from, high) in said {
            if self.delivered(high) {
                count += 1;
                if self.rank(high) > self.rank(best) {
                    best = high;
                }
            } else {
                self.want(high, from, ctx);
            }
        }
        (count, best)
    }

    fn maybe_enter_asynchronous(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let mut views: Vec<u64> = self
            .timeouts
            .iter()
            .flatten()
            .map(|(view, ..)| *view)
            .filter(|view| *view >= self.view)
            .collect();
        views.sort_unstable();
        views.dedup();
        for view in views.into_iter().rev() {
            let here = view == self.view;
            if here && (self.out || matches!(self.mode, Mode::Asynchronous(_))) {
                continue;
            }
            let (count, best) = self.count(view, |racs| &racs.timeouts, ctx);
            if count >= self.quorum {
                self.enter_asynchronous(view, best, ctx);
                return true;
            }
        }
        false
    }

    fn enter_asynchronous(&mut self, view: u64, best: BlockId, ctx: &mut Context<'_, Self>) {
        ctx.mark("asynchronous mode");
        if view > self.view {
            ctx.mark("asynchronous mode for a later view");
            self.look_back(None, ctx);
            // What the quorum holds may be decided: the view prunes what the highest block does
            // not stand upon.
            self.adopt(best);
            self.begin_view(view, ctx);
        }
        self.adopt(best);
        self.stopped.get_or_insert(self.high);
        let queue = self.lead.take().map(|lead| lead.queue);
        let forwarded = queue.iter().flat_map(RequestQueue::waiting);
        self.repeats = 0;
        *self.fallbacks += 1;
        let mut fallback = Fallback::new(
            forwarded.map(|(_, batch)| batch.clone()).collect(),
            ctx.now(),
        );
        if self.planted(Plant::FallKept) {
            fallback.fall = self.fall_old.clone();
        }
        self.mode = Mode::Asynchronous(fallback);
        self.requests.pass_on_nothing();
        let high = self.high;
        self.write(high, Why::Held, None, ctx);
        self.promise(ctx);
        self.propose_level_1(ctx);
        self.arm_repeat(ctx);
    }

    /// The highest block of a quorum's timeouts.
    fn adopt(&mut self, best: BlockId) {
        let higher = self.rank(best) > self.rank(self.high);
        if (higher || self.planted(Plant::HighAsPrinted)) && self.tree.connected(best) {
            self.high = best;
        }
    }

    /// The view's asynchronous mode is over.
    fn maybe_leave(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        self.note_completions();
        self.exit.take_if(|exit| exit.view < self.view);
        let Some(exit) = self.exit.clone() else {
            return false;
        };
        let coin = self.coin.flip(exit.view);
        let elected = exit.completed.iter().copied().find(|id| id.owner == coin);
        if let Some(elected) = elected
            && elected.round > self.tree.root().id.round
            && !self.tree.connected(elected)
        {
            self.want(elected, coin, ctx);
            return false;
        }
        self.exit = None;
        self.leave(exit, elected, ctx);
        true
    }

    fn leave(&mut self, exit: Certificate, elected: Option<BlockId>, ctx: &mut Context<'_, Self>) {
        let here = if exit.view == self.view {
            elected
        } else {
            None
        };
        self.look_back(here, ctx);
        if let Some(elected) = elected {
            ctx.mark("coin elects a block");
            *self.elected += 1;
            self.raise_high(elected);
            if elected.round > self.decided.round {
                self.decided = elected;
            }
        } else {
            ctx.mark("coin elects nobody");
        }
        let next = exit.view + 1;
        self.certificate = Some(exit);
        // The elected block is decided before the tree is pruned around the highest one.
        self.maybe_commit(ctx);
        self.enter_view(next, ctx);
    }

    /// Before any step out of an asynchronous mode: what the coin elects may have been decided
    /// with this replica's vote, so it becomes the highest block.
    fn look_back(&mut self, elected: Option<BlockId>, ctx: &mut Context<'_, Self>) {
        let coin = self.coin.flip(self.view);
        let Mode::Asynchronous(fallback) = &self.mode else {
            return;
        };
        let fall = fallback.fall.get(&coin).copied();
        self.fall_old = fallback.fall.clone();
        if self.planted(Plant::FallForgotten) {
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
        let flat = self.planted(Plant::HighAsPrinted)
            || self.planted(Plant::KeepMaxOnly)
            || self.planted(Plant::KeepMaxAndStop);
        let higher = flat || self.rank(elected) > self.rank(self.high);
        if higher && self.tree.connected(elected) {
            self.high = elected;
        }
    }

    /// A planted bug: what others hold replaces the look at what was voted for here.
    pub(super) fn exit_by_high(&mut self, view: u64, high: BlockId, ctx: &mut Context<'_, Self>) {
        if view < self.view || matches!(self.mode, Mode::Recovering(_)) {
            return;
        }
        if !self.tree.connected(high) {
            let owner = high.owner;
            return self.want(high, owner, ctx);
        }
        self.high = high;
        self.mode = Mode::Synchronous;
        self.certificate = None;
        self.enter_view(view + 1, ctx);
    }

    /// A later view's synchronous mode continues already.
    pub(super) fn jump(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.look_back(None, ctx);
        self.enter_view(view, ctx);
    }

    /// The synchronous mode of a view, with all that this replica knows behind it.
    pub(super) fn enter_view(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.begin_view(view, ctx);
        let high = self.high;
        self.write(high, Why::Held, None, ctx);
        self.promise(ctx);
        let queue = core::mem::take(&mut self.ahead);
        self.lead = (self.leader_of(view) == self.id).then(|| Lead::new(self.members, queue));
        self.heard_at = ctx.now();
        ctx.set_timer(Timer::View, self.timeout());
        self.arm_repeat(ctx);
        if self.down.contains(self.leader_of(view)) {
            ctx.mark("view passed over: its leader is down");
            self.time_out(ctx);
        }
    }

    fn begin_view(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        // A timeout ends with its view and not before: no vote of that view may follow it.
        debug_assert!(view > self.view || self.planted(Plant::LeaderGoesOn));
        self.view = view;
        self.note_price(ctx.now());
        self.mode = Mode::Synchronous;
        self.stopped = None;
        self.leaving = false;
        self.lead = None;
        self.heard = false;
        self.introduced = false;
        self.tip = None;
        self.voted = None;
        self.answer_due = false;
        self.stamp_seen = 0;
        self.repeats = 0;
        self.failures = self.failures.saturating_add(1);
        self.wanted.clear();
        self.requests.pass_on_nothing();
        if !self.planted(Plant::FallKept) {
            self.tree.prune(view, self.high);
        }
        if self.out {
            self.out = false;
            ctx.mark("recovered");
            ctx.recovered();
        }
    }

    /// A quorum of new-views opens the view (R6).
    fn maybe_open(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let closed = self.lead.as_ref().is_some_and(|lead| !lead.open);
        if !closed || self.stopped.is_some() || self.out || !self.settled() {
            return false;
        }
        self.new_views[self.id.index()] = None;
        let view = self.view;
        let (mut count, best) = self.count(view, |racs| &racs.new_views, ctx);
        count += usize::from(self.may_say_new_view());
        if count < self.quorum && !self.planted(Plant::NoGate) {
            return false;
        }
        ctx.mark("view opened");
        if self.rank(best) > self.rank(self.high) && self.tree.connected(best) {
            self.high = best;
        }
        let keys: BTreeSet<_> = self
            .tree
            .path(self.high)
            .iter()
            .flat_map(|block| block.batches.iter())
            .filter_map(|batch| request_key(batch))
            .collect();
        let mut queue = RequestQueue::proposed(keys.into_iter());
        let direct = !self.disseminates();
        for (key, batch) in self.requests.iter().filter(|_| direct) {
            queue.push(key, batch.clone());
        }
        if let Some(lead) = &mut self.lead {
            lead.open = true;
            for (key, batch) in lead.queue.waiting() {
                queue.push(key, batch.clone());
            }
            lead.queue = queue;
        }
        self.heard_at = ctx.now();
        self.reads.repeat();
        self.send_propose(self.others, Vec::new(), true, ctx);
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        true
    }

    /// After something was decided.
    pub(super) fn on_progress(&mut self, decided: BlockId, now: Time) {
        if decided.level == 0 && decided.view == self.view {
            self.failures = 0;
            self.forget_price(now);
            if self.lead.is_some() {
                self.heard_at = now;
            }
        }
        let waits = !self.requests.is_empty() || !self.reads.is_empty();
        self.waiting_since = waits.then_some(now);
    }
}
