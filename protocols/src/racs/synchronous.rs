//! The synchronous mode: one leader proposes, votes return to it.
//!
//! ```text
//!   queue, marks ──(window)──► block ──► journal ──► own vote ─┐
//!                                └─ Propose ──► followers      ├─► quorum: decided
//!                                                 └── Vote ────┘
//! ```
//!
//! A vote for a block is a vote for all before it, so it is given only when all of them are here
//! and durable (R14). Batches are what came while the window was full, or while a block waited
//! for the newest to be a part of a round trip old.

use super::{
    Block, BlockId, Message, Racs, Why,
    bug::Bug,
    leader_state::LeaderState,
    message::MESSAGE_BYTES,
    outbox::Due,
    replica::{Mode, Timer},
};
use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;
use quintet_replica::{CommandTime, Context, Lane, ReplicaId, ReplicaSet, Time, Wake, parts::May};

impl Racs {
    /// The time given to a block: the clock's, never before its parent's.
    pub(super) fn time_after(parent: CommandTime, ctx: &Context<'_, Self>) -> CommandTime {
        CommandTime(ctx.clock().now).max(parent)
    }

    /// How long the view may show no progress.
    pub(super) fn timeout(&self) -> Duration {
        self.timing.timeout(&self.config)
    }

    /// Proposes what waits, as far as the window allows.
    pub(super) fn flush_leader(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let (blocks, wake) = self.make_blocks(ctx);
        let decided = self.tree.root().id;
        let Some(lead) = &self.sync.lead else {
            return wake;
        };
        if !blocks.is_empty() || lead.is_news(decided) {
            self.send_propose(self.me.others(), blocks, false, ctx);
        }
        wake
    }

    /// Whether the leader may make a block now.
    fn may_propose(&self) -> bool {
        self.may_vote()
            && self.outbox.is_settled()
            && self.view.is_above(self.tree.high())
            && self.sync.leads()
    }

    fn make_blocks(&mut self, ctx: &mut Context<'_, Self>) -> (Vec<Arc<Block>>, Wake) {
        let mut blocks = Vec::new();
        let mut wake = Wake::Sleep;
        let now = ctx.now();
        while self.may_propose() {
            let root = self.tree.root();
            let Some((end, time)) = self.tree.end_of(self.tree.high()) else {
                break;
            };
            let time = Self::time_after(time, ctx);
            let ranges = self.ranges_above(self.tree.high());
            let Some(lead) = &self.sync.lead else { break };
            // A block of its own, if need be an empty one, decides what a view inherited undecided.
            let inherited =
                self.tree.high() != root.id && self.tree.high().view < self.view.number();
            let wanted = inherited || lead.switch.is_some();
            if lead.queue.is_empty() && lead.marks.is_empty() && ranges.is_empty() && !wanted {
                break;
            }
            // Requests that did not fit into the block before follow at once.
            let gap = match blocks.is_empty() {
                true => lead.gap(&self.config, self.timing.round_trip()),
                false => Duration::ZERO,
            };
            let (blocks_max, bytes_max) = (self.config.window, self.config.window_bytes);
            match lead.window.may(now, gap, blocks_max, bytes_max) {
                May::Now => {}
                May::At(time) => {
                    wake = Wake::At(time);
                    break;
                }
                May::Wait => break,
            }
            let Some(lead) = &mut self.sync.lead else {
                break;
            };
            let batches = lead.take_batches(self.config.batch_bytes_max);
            let marks = core::mem::take(&mut lead.marks).into_values().collect();
            let id = BlockId {
                view: self.view.number(),
                level: 0,
                round: self.tree.high().round + 1,
                owner: self.me.id(),
            };
            let parent = self.tree.high();
            let block = Arc::new(Block {
                id,
                parent,
                first: end.next(),
                time,
                marks,
                batches,
                ranges,
                switch: lead.switch.take(),
            });
            lead.window.sent(id.round, block.bytes(), now);
            self.take(block.clone());
            self.tree.set_high(id);
            self.write(id, Why::High, Some(Due::Vote(id)), ctx);
            blocks.push(block);
        }
        (blocks, wake)
    }

    /// Tells these replicas of new blocks, or only that the leader is there. One with no room for
    /// them learns that it misses some, and asks.
    pub(super) fn send_propose(
        &mut self,
        to: ReplicaSet,
        blocks: Vec<Arc<Block>>,
        answer: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let now = ctx.now();
        let decided = self.tree.root().id;
        let Some(lead) = &mut self.sync.lead else {
            return;
        };
        let stamp = lead.tell(decided, now);
        let bytes: usize = MESSAGE_BYTES + blocks.iter().map(|block| block.bytes()).sum::<usize>();
        let mut message = Message::Propose {
            view: self.view.number(),
            tip: self.tree.high(),
            decided,
            stamp,
            round_trip: u32::try_from(self.timing.round_trip().as_micros()).unwrap_or(u32::MAX),
            answer,
            blocks,
        };
        let room = |peer: &ReplicaId| ctx.takes(*peer, bytes);
        let full: ReplicaSet = to.iter().filter(room).collect();
        ctx.multicast(full, Lane::Control, &message);
        let rest: ReplicaSet = to.iter().filter(|peer| !full.contains(*peer)).collect();
        if !rest.is_empty() {
            ctx.mark("proposal waits for room");
            if let Message::Propose { blocks, .. } = &mut message {
                blocks.clear();
            }
            let room = |peer: &ReplicaId| ctx.takes(*peer, MESSAGE_BYTES);
            let heard: ReplicaSet = rest.iter().filter(room).collect();
            ctx.multicast(heard, Lane::Control, &message);
        }
    }

    pub(super) fn on_beat_timer(&mut self, ctx: &mut Context<'_, Self>) {
        if self.sync.lead.is_none() {
            return;
        }
        self.look_at_way(ctx);
        self.leave_if_short(ctx);
        if self.may_propose() {
            self.send_propose(self.me.others(), Vec::new(), true, ctx);
        }
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
    }

    pub(super) fn on_propose(
        &mut self,
        from: ReplicaId,
        view: u64,
        tip: BlockId,
        (stamp, round_trip, answer): (u64, u32, bool),
        blocks: Vec<Arc<Block>>,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.view.leader_of(view) != from || tip.view > view {
            return ctx.mark("ignored: proposal of another");
        }
        if view < self.view.number() {
            return self.send_exit(from, view, ctx);
        }
        let own = |block: &Arc<Block>| block.id.level == 0 && block.id.owner == from;
        for block in blocks.into_iter().filter(own) {
            self.take(block);
        }
        self.follow(view, ctx);
        if !matches!(self.mode, Mode::Synchronous) {
            return;
        }
        self.sync.on_propose(tip, stamp);
        self.timing
            .measured(from, Duration::from_micros(u64::from(round_trip)));
        let now = ctx.now();
        if !self.starving(now) {
            self.sync.progressed(now);
        }
        let introduced = self.sync.knows_leader();
        if self.sync.hear() {
            if !introduced {
                self.relay.kept.forward_all();
            }
            self.reads.repeat();
        }
        if answer && self.may_vote() {
            self.sync.want_answer();
        }
    }

    pub(super) fn may_vote(&self) -> bool {
        let stopped = self.view.is_stopped()
            && !self.injected(Bug::KeepMaxOnly)
            && !self.injected(Bug::KeepMaxAndRank)
            && !self.injected(Bug::HighAsPrinted);
        matches!(self.mode, Mode::Synchronous) && !stopped && !self.view.is_out()
    }

    /// Votes for the newest block of the view whose ancestors are all here. True when there was
    /// one.
    pub(super) fn maybe_accept(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let leader = self.view.leader();
        if leader == self.me.id() || !self.may_vote() {
            return false;
        }
        let Some(tip) = self.sync.tip() else {
            return false;
        };
        let mut best = self.tree.high();
        if tip.view == self.view.number() && self.tree.connected(tip) {
            best = tip;
        } else {
            self.want(tip, leader, ctx);
            loop {
                let next = BlockId {
                    view: self.view.number(),
                    level: 0,
                    round: best.round + 1,
                    owner: leader,
                };
                let extends = self
                    .tree
                    .get(next)
                    .is_some_and(|block| block.parent == best);
                if !extends || !self.tree.connected(next) {
                    break;
                }
                best = next;
            }
        }
        if best.view != self.view.number()
            || best.level != 0
            || self.tree.rank(best) <= self.tree.rank(self.tree.high())
        {
            return false;
        }
        self.tree.set_high(best);
        self.write(best, Why::High, Some(Due::Vote(best)), ctx);
        true
    }

    pub(super) fn on_vote_durable(&mut self, id: BlockId) {
        if id.view != self.view.number()
            || !matches!(self.mode, Mode::Synchronous)
            || self.view.is_out()
        {
            return;
        }
        self.sync.vote(id);
        match &mut self.sync.lead {
            Some(lead) => lead.on_vote(self.me.id(), id.round),
            None => self.sync.want_answer(),
        }
    }

    pub(super) fn send_vote(&mut self, ctx: &mut Context<'_, Self>) {
        let leader = self.view.leader();
        if leader == self.me.id() || !self.may_vote() || !self.outbox.is_settled() {
            return;
        }
        let vote = Message::Vote {
            view: self.view.number(),
            tip: self.sync.voted().unwrap_or_default(),
            stamp: self.sync.stamp_seen(),
            incarnations: self.peers.incarnations(),
            median: self.hybrid.tell(ctx.now()),
        };
        ctx.send(leader, Lane::Control, &vote);
    }

    pub(super) fn on_vote(
        &mut self,
        from: ReplicaId,
        view: u64,
        tip: BlockId,
        stamp: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let (now, high, quorum) = (ctx.now(), self.tree.high(), self.me.majority());
        if view != self.view.number() {
            return ctx.mark("ignored: vote of another view");
        }
        let Some(lead) = &mut self.sync.lead else {
            return ctx.mark("ignored: vote for another");
        };
        if tip.view == view
            && tip.level == 0
            && tip.owner == self.me.id()
            && tip.round <= high.round
        {
            lead.on_vote(from, tip.round);
        }
        if let Some(round_trip) = lead.on_echo(from, stamp, quorum, now) {
            self.timing.measured(self.me.id(), round_trip);
        }
    }

    /// A quorum has voted: the leader decides. True when something new was.
    pub(super) fn maybe_decide(&mut self) -> bool {
        let minority = usize::from(self.injected(Bug::MinorityCommits));
        let Some(lead) = &self.sync.lead else {
            return false;
        };
        let Some(round) = lead.quorum_round(self.me.majority() - minority) else {
            return false;
        };
        let id = BlockId {
            view: self.view.number(),
            level: 0,
            round,
            owner: self.me.id(),
        };
        self.tree.connected(id) && self.tree.decide(id)
    }

    /// Something of this replica's clients has waited for long, and nothing is decided: the
    /// leader is heard, but does not hear.
    pub(super) fn starving(&self, now: Time) -> bool {
        self.relay
            .waiting_since()
            .is_some_and(|since| now.since(since) > self.timeout() * 2)
    }

    pub(super) fn on_view_timer(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.mode, Mode::Synchronous) || self.view.is_stopped() || self.view.is_out() {
            return;
        }
        let now = ctx.now();
        let idle = self.tree.high() == self.tree.root().id;
        if idle && (self.sync.lead.as_ref()).is_some_and(LeaderState::is_idle) {
            self.sync.progressed(now);
        }
        let timeout = self.timeout();
        let waited = now.since(self.sync.heard_at());
        if waited >= timeout {
            ctx.mark("view timed out");
            self.time_out(ctx);
        } else {
            ctx.set_timer(Timer::View, timeout - waited);
        }
    }

    /// No synchronous vote or proposal in this view any more (R1b).
    pub(super) fn time_out(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.mode, Mode::Synchronous) || self.view.is_stopped() || self.view.is_out() {
            return;
        }
        self.view.stop(self.tree.high());
        self.sync.stop();
        self.outbox.renew();
        self.relay.kept.forward_nothing();
        self.promise(ctx);
        self.arm_repeat(ctx);
    }

    /// The leader cannot be reached from here: there is nothing to wait for.
    pub(super) fn on_leader_lost(&mut self, ctx: &mut Context<'_, Self>) {
        if self.sync.is_heard() {
            ctx.mark("leader lost");
            self.time_out(ctx);
        }
    }

    /// A member that timed out alone votes no more in the view, and one more that fails or is slow
    /// stops everybody. Its promise cannot be taken back: its timeout may lie anywhere, and n-f of
    /// them lead to the asynchronous mode, whose blocks extend no higher block than those that they
    /// carry (Theorem C.8). It binds in its view only, and the leader may time out at any time. So
    /// a view that needs those members is left for the next one, where all vote, once for each time
    /// that is twice as long as the one before: no member is to end views as often as its link
    /// fails.
    fn leave_if_short(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, timeout) = (ctx.now(), self.timeout());
        let (quorum, rounds) = (self.me.majority(), self.config.window);
        let Some(lead) = &mut self.sync.lead else {
            return;
        };
        if let Some(since) = lead.short_since(quorum, rounds, now)
            && now.since(since) >= self.timing.renewal_pause(timeout, now)
        {
            ctx.mark("view left for those that timed out");
            self.timing.renewed(now);
            self.hand_off(ctx);
        }
    }

    /// Leaves an open view for the next one, if that one's leader is far quicker.
    pub(super) fn leave_if_slow(&mut self, quick: ReplicaSet, ctx: &mut Context<'_, Self>) {
        if self.sync.leads() && quick.contains(self.view.leader_of(self.view.number() + 1)) {
            self.timing.renewed(ctx.now());
            self.hand_off(ctx);
        }
    }

    pub(super) fn hand_off(&mut self, ctx: &mut Context<'_, Self>) {
        if self.sync.lead.is_some() && !self.view.is_stopped() {
            ctx.mark("leadership handed off");
            self.view.leave();
            self.time_out(ctx);
        }
    }
}
