//! Members that answer, but so slowly that everybody waits for them: removed at a view (D11, §3.6).
//!
//! ```text
//!   one message at a time:  known here ──► X has sent its part ──┐ ordered ──► X holds it
//!                           └─────────── lag of X, part one ─────┘ └─ part two ─┘
//!     ─► X lags twice as long as the slowest of the fastest majority, and long: X is slow
//!   each turn: what does delivery wait for? ─┬─ only for X, the rest is a majority ─► waited[X]
//!                                            └─ for this member, or for many       ─► common
//!   twice in a row: waited[X] most of the time, 8 times what is common, slow with most messages
//!   once: waited[X] as before, and the node finds X's links or disk far slower than a majority's
//!     ─► the lowest rank of the rest suspects X; lets it in again after a pause that doubles
//! ```
//!
//! Delivery waits for all members, so one with a bad link or a dying disk would slow the group to
//! its own pace and never be silent enough to be suspected. Members are compared with each other
//! and not with a clock: where all are far away, or all disks are busy, no member stands out. A
//! member that is only somewhat slower than the others stays, and so does a replica that stood
//! still once: a smaller view tolerates fewer failures.

use super::{
    Derecho,
    shards::{At, both, less, one_of},
    sst::WEDGED,
};
use alloc::vec::Vec;
use quintet_replica::{Context, ReplicaId, ReplicaSet, Time};

impl Derecho {
    /// The end of a turn: for whom delivery waits from now on, and which message is watched.
    pub(super) fn note_waiting(&mut self, now: Time) {
        self.note_waiting_in(None, now);
        for shard in self.parts() {
            self.note_waiting_in(Some(shard), now);
        }
    }

    fn note_waiting_in(&mut self, at: At, now: Time) {
        let (behind, live) = (self.behind(at), self.live_in(at));
        let (own, stood_still) = (self.me.id(), self.config.suspect_timeout);
        let Self {
            membership,
            stream,
            shards,
            sst,
            ..
        } = self;
        let stream = one_of(stream, shards, at);
        stream.waits.turn(own, behind, stood_still, now);
        let column = sst.layout.persisted(stream.block);
        if !stream.watch(live, |id| sst.read(id, column), now) {
            return;
        }
        let newest = stream.order.newest().filter(|_| !membership.wedging());
        let live = (live, stream.members().len());
        (stream.waits).watch_next(newest, live, self.config.slow_member, now);
    }

    /// The members of an order that are not suspected.
    fn live_in(&self, at: At) -> ReplicaSet {
        let live = self.membership.live();
        match at {
            None => live,
            Some(_) => both(live, self.of(at).set()),
        }
    }

    /// Whether the rest does without these members: in a shard, enough of it hold its log.
    fn does_without(&self, at: At, these: ReplicaSet) -> bool {
        let rest = less(self.membership.live(), these);
        let enough = at.is_none_or(|shard| {
            let members = both(rest, self.of(at).set()).iter();
            let holders = members.filter(|id| self.shows_log(*id, shard));
            holders.count() >= self.config.layout.subgroup(shard).min
        });
        enough && self.membership.view().has_quorum(rest)
    }

    /// Without whom the next message would be delivered. This member stands for all causes that are
    /// not a minority's slowness; the set is empty when nothing waits.
    fn behind(&self, at: At) -> ReplicaSet {
        let own = self.me.id();
        if self.membership.wedging() {
            return ReplicaSet::EMPTY;
        }
        let behind = self.waited_for(at);
        match behind.is_empty() || !behind.contains(own) && self.does_without(at, behind) {
            true => behind,
            false => ReplicaSet::EMPTY.with(own),
        }
    }

    /// Those that the next message waits for.
    fn waited_for(&self, at: At) -> ReplicaSet {
        let stream = self.of(at);
        let (order, live) = (&stream.order, self.live_in(at));
        if let Some(number) = order.awaited(stream.log.sure()) {
            let column = self.sst.layout.persisted(stream.block);
            let missing = |id: &ReplicaId| self.sst.read(*id, column) < number;
            live.iter().filter(missing).collect()
        } else if order.waits_for_more() {
            let senders = stream.senders();
            ReplicaSet::EMPTY.with(senders[order.next_rank(senders.len())])
        } else {
            ReplicaSet::EMPTY
        }
    }

    /// Removes members that everybody has waited for, for most of the time.
    pub(super) fn look_for_slow(&mut self, ctx: &mut Context<'_, Self>) {
        if self.config.slow_member.is_zero() {
            return;
        }
        self.look_for_slow_in(None, ctx);
        for shard in self.parts() {
            if self.membership.is_active() {
                self.look_for_slow_in(Some(shard), ctx);
            }
        }
    }

    fn look_for_slow_in(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        let (now, live) = (ctx.now(), self.live_in(at));
        let (own, period) = (self.me.id(), self.config.suspect_timeout * 2);
        let slow = self.of_mut(at).waits.look(live, own, period, now);
        self.remove_slow(at, slow, "slow member removed", ctx);
    }

    /// One assesses: the lowest rank of the rest. Where that is the view's, it also decides when
    /// they come back.
    fn remove_slow(
        &mut self,
        at: At,
        slow: ReplicaSet,
        mark: &'static str,
        ctx: &mut Context<'_, Self>,
    ) {
        let rest = less(self.live_in(at), slow);
        if !self.does_without(at, slow) || rest.iter().next() != Some(self.me.id()) {
            return;
        }
        for id in slow.iter() {
            ctx.mark(mark);
            self.stream.waits.removed(id, ctx.now());
            self.suspect(id, ctx);
        }
    }

    /// Members for which a shard stands still: they do not come to hold its log, or what they write
    /// of it does not become durable. A shard may have two members, too few to compare them: it
    /// takes a time in which nothing of such a member changes.
    pub(super) fn look_for_stalled(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let limits = (self.config.restart_timeout, self.config.suspect_timeout);
        for shard in self.parts() {
            let at = Some(shard);
            if !self.membership.is_active() || self.membership.wedging() {
                return;
            }
            let lacks = |id: &ReplicaId| !self.shows_log(*id, shard);
            let lacking: ReplicaSet = self.live_in(at).iter().filter(lacks).collect();
            let waited_for = match lacking.is_empty() {
                true => self.waited_for(at),
                false => lacking,
            };
            let done = waited_for.iter().map(|id| (id, self.done_in(shard, id)));
            let done: Vec<_> = done.collect();
            let stalled = self
                .of_mut(at)
                .waits
                .look_for_stalled(done.into_iter(), limits, now);
            if !stalled.is_empty() && !waited_for.contains(self.me.id()) {
                self.remove_slow(at, stalled, "stalled member removed", ctx);
            }
        }
    }

    /// A number that rises while a member does anything for a shard; parts of a long message count.
    fn done_in(&self, shard: usize, id: ReplicaId) -> u64 {
        let (stream, own, layout) = (&self.shards[shard], self.me.id(), &self.sst.layout);
        let block = stream.block;
        let of_each = stream.members().iter().map(|of| {
            let blocks = layout.blocks(block, *of);
            let theirs = self.sst.read(id, blocks) + self.sst.read(id, layout.received(block, *of));
            theirs + self.sst.read(own, blocks)
        });
        let told = self.holdings.of(id, self.membership.number(), shard);
        let told = told.map_or(0, |told| told.end.0.max(told.sure.0));
        let persisted = self.sst.read(id, layout.persisted(block));
        of_each.sum::<u64>() + persisted + stream.incoming.from(id).received() + told
    }

    /// The end of a view waits for all members, too: one whose disk stands still for a shard shows
    /// no final row, or no vote.
    pub(super) fn leave_out_unwedged(&mut self, ctx: &mut Context<'_, Self>) {
        let (own, live) = (self.me.id(), self.membership.live());
        let limit = self.config.restart_timeout;
        if self.shards.is_empty()
            || self.sst.own(WEDGED) == 0
            || !self.failures.is_late_at_end(limit, ctx.now())
        {
            return;
        }
        let unwedged = |id: &ReplicaId| self.sst.read(*id, WEDGED) == 0;
        let mut late: ReplicaSet = live.iter().filter(unwedged).collect();
        let leader = self.membership.leader().filter(|_| late.is_empty());
        if let Some(leader) = leader {
            let number = self.membership.proposer(leader);
            let lacks = |id: &ReplicaId| self.sst.proposed(*id) != number;
            late = match (lacks(&leader), lacks(&own)) {
                (true, _) => ReplicaSet::EMPTY.with(leader),
                (_, true) => ReplicaSet::EMPTY,
                _ => live.iter().filter(lacks).collect(),
            };
        }
        let late = late.without(own);
        if late.is_empty() || !self.membership.view().has_quorum(less(live, late)) {
            return;
        }
        self.failures.ends(ctx.now());
        for id in late.iter() {
            ctx.mark("member left out at the end of a view");
            self.suspect(id, ctx);
        }
    }
}
