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
    Block, BlockId, Mark, Message, Racs, Why,
    block::BLOCK_BYTES,
    plant::Plant,
    replica::{Due, Mode, Timer},
};
use crate::sadl::Way;
use alloc::{collections::BTreeMap, sync::Arc, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    CommandTime, Context, Lane, ReplicaId, ReplicaSet, Time, Wake,
    parts::{May, RequestQueue, Window},
};
use smallvec::SmallVec;

/// The round trips that have been measured, the shortest first.
fn known(trips: &[Duration]) -> SmallVec<[Duration; 16]> {
    let mut known: SmallVec<_> = (trips.iter().copied())
        .filter(|trip| !trip.is_zero())
        .collect();
    known.sort_unstable();
    known
}

/// What only a view's leader keeps.
#[derive(Hash)]
pub(super) struct Lead {
    /// A quorum of new-views has come: it may propose (R6).
    pub open: bool,
    pub queue: RequestQueue,
    /// Reads that the next block is to mark.
    pub marks: BTreeMap<ReplicaId, Mark>,
    /// The highest round of this view that each member voted for.
    pub votes: Vec<Option<u64>>,
    /// Members that said that they timed out in this view, and have come as far as the others.
    pub stopped: ReplicaSet,
    /// Since when they have been missed.
    short_since: Option<Time>,
    /// Measured with each member.
    round_trips: Vec<Duration>,
    /// The blocks proposed and not yet decided, by round.
    pub window: Window<u64>,
    /// What the members were last told to be decided.
    told: BlockId,
    stamp: u64,
    /// The next block changes the way of the batches.
    pub switch: Option<Way>,
}

impl Lead {
    pub fn new(members: usize, queue: RequestQueue) -> Self {
        Self {
            open: false,
            queue,
            marks: BTreeMap::new(),
            votes: vec![None; members],
            stopped: ReplicaSet::EMPTY,
            short_since: None,
            round_trips: vec![Duration::ZERO; members],
            window: Window::default(),
            told: BlockId::GENESIS,
            stamp: 0,
            switch: None,
        }
    }

    /// The round that a quorum has voted for.
    fn quorum_round(&self, quorum: usize) -> Option<u64> {
        let mut rounds: Vec<u64> = self.votes.iter().flatten().copied().collect();
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        rounds.get(quorum.checked_sub(1)?).copied()
    }

    /// The round trip to the slowest member of the fastest quorum.
    fn round_trip(&self, quorum: usize) -> Duration {
        let trips = known(&self.round_trips);
        let wanted = quorum.saturating_sub(2).min(trips.len().saturating_sub(1));
        trips.get(wanted).copied().unwrap_or_default()
    }

    pub fn digest(&self) -> u64 {
        let votes = self.votes.iter().flatten().sum::<u64>();
        (self.queue.bytes() as u64) ^ (votes << 20) ^ u64::from(self.open)
    }

    pub fn assert_invariants(&self, members: usize, view: u64, high: BlockId) {
        assert!(self.votes.len() == members);
        // What the coin elected may have replaced the own blocks, when others told of it.
        let own = high.view == view && high.level == 0;
        assert!(
            !own || self
                .votes
                .iter()
                .flatten()
                .all(|round| *round <= high.round),
            "votes are for what was proposed"
        );
    }
}

impl Racs {
    /// The time given to a block: the clock's, never before its parent's.
    pub(super) fn time_after(parent: CommandTime, ctx: &Context<'_, Self>) -> CommandTime {
        CommandTime(ctx.clock().now).max(parent)
    }

    /// How long the view may show no progress.
    pub(super) fn timeout(&self) -> Duration {
        if !self.config.view_timeout.is_zero() {
            // Progress does not need it to be right: the asynchronous mode decides, too.
            return self.config.view_timeout;
        }
        let base = self
            .config
            .view_timeout_min
            .max(self.usual_round_trip() * 4);
        let grown = base * (1 << self.failures.saturating_sub(1).min(FAILURES_MAX));
        grown.max(self.price.min(base * PRICE_MAX))
    }

    /// The round trip that most leaders measured: one that is late, or a minority of them, does
    /// not make the others wait for longer.
    fn usual_round_trip(&self) -> Duration {
        let trips = known(&self.leaders_trips);
        let middle = trips.len().saturating_sub(1) / 2;
        trips.get(middle).copied().unwrap_or_default()
    }

    pub(super) fn measured(&mut self, leader: ReplicaId, round_trip: Duration) {
        self.round_trip = round_trip;
        self.leaders_trips[leader.index()] = round_trip;
    }

    /// An asynchronous mode is over. What it took is the price of not waiting for a leader; to
    /// wait as long for one that may only be late costs at most twice what the best foresight
    /// would have cost.
    pub(super) fn note_price(&mut self, now: Time) {
        let Mode::Asynchronous(fallback) = &self.mode else {
            return;
        };
        let Some(began_at) = fallback.began_at else {
            return;
        };
        let took = now.since(began_at);
        self.price = match self.price.is_zero() {
            true => took,
            false => (self.price + took) / 2,
        };
        self.priced_at = now;
    }

    /// What asynchronous modes took long ago says nothing of now.
    pub(super) fn forget_price(&mut self, now: Time) {
        if now.since(self.priced_at) > self.price * PRICE_HOLDS {
            self.price = Duration::ZERO;
        }
    }

    /// Proposes what waits, as far as the window allows.
    pub(super) fn flush_leader(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let (blocks, wake) = self.make_blocks(ctx);
        let decided = self.tree.root().id;
        let Some(lead) = &mut self.lead else {
            return wake;
        };
        if !blocks.is_empty() || (lead.open && lead.told != decided) {
            self.send_propose(self.others, blocks, false, ctx);
        }
        wake
    }

    /// How long a block that is not full waits behind the newest one. Half of those that may be
    /// under way go at once; the others are spread over a round trip, because with all of them
    /// under way what comes next waits for an answer.
    fn gap(&self, lead: &Lead) -> Duration {
        let half = self.config.window / 2;
        if lead.window.len() < half || lead.queue.bytes() >= self.config.batch_bytes_max {
            return Duration::ZERO;
        }
        self.round_trip / u32::try_from(half).unwrap_or(u32::MAX).max(1)
    }

    /// Whether a first block of this view may extend this one: it is of an earlier view, or a
    /// synchronous one.
    pub(super) const fn below_view(&self, id: BlockId) -> bool {
        id.view < self.view || (id.view == self.view && id.level == 0)
    }

    /// Whether the leader may make a block now.
    fn may_propose(&self) -> bool {
        self.may_vote()
            && self.settled()
            && self.below_view(self.high)
            && self.lead.as_ref().is_some_and(|lead| lead.open)
    }

    fn make_blocks(&mut self, ctx: &mut Context<'_, Self>) -> (Vec<Arc<Block>>, Wake) {
        let mut blocks = Vec::new();
        let mut wake = Wake::Sleep;
        let now = ctx.now();
        while self.may_propose() {
            let root = self.tree.root();
            let Some((end, time)) = self.tree.end_of(self.high) else {
                break;
            };
            let time = Self::time_after(time, ctx);
            let ranges = self.ranges_above(self.high);
            let Some(lead) = &self.lead else { break };
            // What a view inherited undecided is decided by a block of its own, if need be an
            // empty one.
            let inherited = self.high != root.id && self.high.view < self.view;
            let wanted = inherited || lead.switch.is_some();
            if lead.queue.is_empty() && lead.marks.is_empty() && ranges.is_empty() && !wanted {
                break;
            }
            // What did not fit into the block before follows at once.
            let gap = match blocks.is_empty() {
                true => self.gap(lead),
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
            let Some(lead) = &mut self.lead else { break };
            let mut batches = Vec::new();
            let mut bytes = 0;
            while let Some(batch) = lead.queue.peek() {
                bytes += batch.len() + 4;
                if !batches.is_empty() && bytes > self.config.batch_bytes_max {
                    break;
                }
                let Some(batch) = lead.queue.pop() else { break };
                batches.push(batch);
            }
            let marks = core::mem::take(&mut lead.marks).into_values().collect();
            let id = BlockId {
                view: self.view,
                level: 0,
                round: self.high.round + 1,
                owner: self.id,
            };
            let parent = self.high;
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
            self.high = id;
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
        let Some(lead) = &mut self.lead else { return };
        lead.told = decided;
        lead.stamp = now.0.max(lead.stamp + 1);
        let bytes: usize = MESSAGE_BYTES + blocks.iter().map(|block| block.bytes()).sum::<usize>();
        let mut message = Message::Propose {
            view: self.view,
            tip: self.high,
            decided,
            stamp: lead.stamp,
            round_trip: u32::try_from(self.round_trip.as_micros()).unwrap_or(u32::MAX),
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
        if self.lead.is_none() {
            return;
        }
        self.look_at_way(ctx);
        self.leave_if_short(ctx);
        if self.may_propose() {
            self.send_propose(self.others, Vec::new(), true, ctx);
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
        if self.leader_of(view) != from || tip.view > view {
            return ctx.mark("ignored: proposal of another");
        }
        if view < self.view {
            return self.send_exit(from, view, ctx);
        }
        let own = |block: &Arc<Block>| block.id.level == 0 && block.id.owner == from;
        for block in blocks.into_iter().filter(own) {
            self.take(block);
        }
        if matches!(self.mode, Mode::Recovering(_)) {
            return;
        }
        if view > self.view {
            ctx.mark("view entered by a proposal");
            self.jump(view, ctx);
        }
        if !matches!(self.mode, Mode::Synchronous) {
            return;
        }
        self.tip = self.tip.max(Some(tip));
        self.stamp_seen = self.stamp_seen.max(stamp);
        self.measured(from, Duration::from_micros(u64::from(round_trip)));
        let now = ctx.now();
        if !self.starving(now) {
            self.heard_at = now;
        }
        if !self.heard {
            self.heard = true;
            if !self.introduced {
                self.requests.pass_on_all();
            }
            self.reads.repeat();
        }
        self.answer_due |= answer && self.may_vote();
    }

    pub(super) fn may_vote(&self) -> bool {
        let stopped = self.stopped.is_some()
            && !self.planted(Plant::KeepMaxOnly)
            && !self.planted(Plant::KeepMaxAndRank)
            && !self.planted(Plant::HighAsPrinted);
        matches!(self.mode, Mode::Synchronous) && !stopped && !self.out
    }

    /// Votes for the newest block of the view whose ancestors are all here. True when there was
    /// one.
    pub(super) fn maybe_accept(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let leader = self.leader_of(self.view);
        if leader == self.id || !self.may_vote() {
            return false;
        }
        let Some(tip) = self.tip else { return false };
        let mut best = self.high;
        if tip.view == self.view && self.tree.connected(tip) {
            best = tip;
        } else {
            self.want(tip, leader, ctx);
            loop {
                let next = BlockId {
                    view: self.view,
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
        if best.view != self.view || best.level != 0 || self.rank(best) <= self.rank(self.high) {
            return false;
        }
        self.high = best;
        self.write(best, Why::High, Some(Due::Vote(best)), ctx);
        true
    }

    pub(super) fn on_vote_durable(&mut self, id: BlockId) {
        if id.view != self.view || !matches!(self.mode, Mode::Synchronous) || self.out {
            return;
        }
        self.voted = self.voted.max(Some(id));
        match &mut self.lead {
            Some(lead) => lead.votes[self.id.index()] = Some(id.round),
            None => self.answer_due = true,
        }
    }

    pub(super) fn send_vote(&mut self, ctx: &mut Context<'_, Self>) {
        self.answer_due = false;
        let leader = self.leader_of(self.view);
        if leader == self.id || !self.may_vote() || !self.settled() {
            return;
        }
        let vote = Message::Vote {
            view: self.view,
            tip: self.voted.unwrap_or_default(),
            stamp: self.stamp_seen,
            lives: self.lives.clone(),
            median: self.watch.tell(ctx.now()),
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
        let (now, high, quorum) = (ctx.now(), self.high, self.quorum);
        if view != self.view {
            return ctx.mark("ignored: vote of another view");
        }
        let Some(lead) = &mut self.lead else {
            return ctx.mark("ignored: vote for another");
        };
        if tip.view == view && tip.level == 0 && tip.owner == self.id && tip.round <= high.round {
            let vote = &mut lead.votes[from.index()];
            *vote = (*vote).max(Some(tip.round));
        }
        if stamp != 0 && stamp <= lead.stamp {
            let trip = now.since(Time(stamp));
            let known = &mut lead.round_trips[from.index()];
            *known = if known.is_zero() {
                trip
            } else {
                (*known * 7 + trip) / 8
            };
            let round_trip = lead.round_trip(quorum);
            self.measured(self.id, round_trip);
        }
    }

    /// A quorum has voted: the leader decides. True when something new was.
    pub(super) fn maybe_decide(&mut self) -> bool {
        let minority = usize::from(self.planted(Plant::MinorityCommits));
        let Some(lead) = &self.lead else { return false };
        let Some(round) = lead.quorum_round(self.quorum - minority) else {
            return false;
        };
        let id = BlockId {
            view: self.view,
            level: 0,
            round,
            owner: self.id,
        };
        if round <= self.decided.round || !self.tree.connected(id) {
            return false;
        }
        self.decided = id;
        true
    }

    /// Something of this replica's clients has waited for long, and nothing is decided: the
    /// leader is heard, but does not hear.
    pub(super) fn starving(&self, now: Time) -> bool {
        self.waiting_since
            .is_some_and(|since| now.since(since) > self.timeout() * 2)
    }

    pub(super) fn on_view_timer(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.mode, Mode::Synchronous) || self.stopped.is_some() || self.out {
            return;
        }
        let now = ctx.now();
        let idle = self.high == self.tree.root().id;
        if idle
            && self
                .lead
                .as_ref()
                .is_some_and(|lead| lead.open && lead.queue.is_empty())
        {
            self.heard_at = now;
        }
        let timeout = self.timeout();
        let waited = now.since(self.heard_at);
        if waited >= timeout {
            ctx.mark("view timed out");
            self.time_out(ctx);
        } else {
            ctx.set_timer(Timer::View, timeout - waited);
        }
    }

    /// No synchronous vote or proposal in this view any more (R1b).
    pub(super) fn time_out(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.mode, Mode::Synchronous) || self.stopped.is_some() || self.out {
            return;
        }
        self.stopped = Some(self.high);
        self.heard = false;
        self.introduced = false;
        self.repeats = 0;
        self.requests.pass_on_nothing();
        self.promise(ctx);
        self.arm_repeat(ctx);
    }

    /// The leader cannot be reached from here: there is nothing to wait for.
    pub(super) fn on_leader_lost(&mut self, ctx: &mut Context<'_, Self>) {
        if self.heard {
            ctx.mark("leader lost");
            self.time_out(ctx);
        }
    }

    /// Whether no more members than a quorum vote, and others would if the view were another one.
    fn is_short(&self) -> bool {
        let Some(lead) = self.lead.as_ref().filter(|lead| lead.open) else {
            return false;
        };
        let highest = lead.votes.iter().flatten().max().copied().unwrap_or(0);
        let keeps_up = |vote: &&u64| **vote + self.config.window as u64 >= highest;
        let voting = lead.votes.iter().flatten().filter(keeps_up).count();
        !lead.stopped.is_empty() && highest > 0 && voting <= self.quorum
    }

    /// A member that timed out alone votes no more in the view, and one more that fails or is slow
    /// stops everybody. Its promise cannot be taken back: its timeout may lie anywhere, and n-f of
    /// them lead to the asynchronous mode, whose blocks extend no higher block than those that
    /// they carry (Theorem C.8). It binds in its view only, and the leader may time out at any
    /// time. So a view that needs those who have timed out is left for the next one, where all
    /// vote, once for each time that is twice as long as the one before: nobody is to end views
    /// as often as its link fails.
    fn leave_if_short(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, timeout, short) = (ctx.now(), self.timeout(), self.is_short());
        let Some(lead) = &mut self.lead else { return };
        if !short {
            lead.short_since = None;
            return;
        }
        let since = *lead.short_since.get_or_insert(now);
        if now.since(since) >= self.renewals.pause(timeout, now) {
            ctx.mark("view left for those that timed out");
            self.renewals.note(now);
            self.hand_off(ctx);
        }
    }

    /// Leaves an open view for the next one, if that one's leader is far quicker.
    pub(super) fn leave_if_slow(&mut self, quick: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let leads = self.lead.as_ref().is_some_and(|lead| lead.open);
        if leads && quick.contains(self.leader_of(self.view + 1)) {
            self.renewals.note(ctx.now());
            self.hand_off(ctx);
        }
    }

    pub(super) fn hand_off(&mut self, ctx: &mut Context<'_, Self>) {
        if self.lead.is_some() && self.stopped.is_none() {
            ctx.mark("leadership handed off");
            self.leaving = true;
            self.time_out(ctx);
        }
    }
}

/// How often a leader has left its view for those that had timed out, and when last.
#[derive(Default, Hash)]
pub(super) struct Renewals {
    count: u32,
    last: Time,
}

impl Renewals {
    /// How long members must have been missed.
    fn pause(&self, timeout: Duration, now: Time) -> Duration {
        let pause = timeout * RENEWAL * (1 << self.count.min(RENEWALS_MAX));
        if now.since(self.last) > pause * RENEWAL {
            return timeout * RENEWAL;
        }
        pause
    }

    fn note(&mut self, now: Time) {
        self.count = (self.count + 1).min(RENEWALS_MAX);
        self.last = now;
    }
}

/// Members that timed out are missed for so many timeouts before their view is left.
const RENEWAL: u32 = 4;

/// The time between two such ends is doubled at most so often.
const RENEWALS_MAX: u32 = 6;

/// The price of the asynchronous mode counts up to so many timeouts: it may have been long for
/// want of a quorum.
const PRICE_MAX: u32 = 4;

/// The price of the asynchronous mode is forgotten after so many times its length without one.
const PRICE_HOLDS: u32 = 64;

/// A view's timeout is doubled at most so often.
const FAILURES_MAX: u32 = 3;

/// More than any message takes besides blocks and batches.
pub(super) const MESSAGE_BYTES: usize = 256 + BLOCK_BYTES;
