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
//! and not with a clock: where all are far away, or all disks are busy, nobody stands out. Whoever
//! is only somewhat slower than the others stays, and the replica that stood still once: a smaller
//! view tolerates fewer failures.

use super::{Derecho, sst::PERSISTED};
use quintet_replica::{Context, ReplicaId, ReplicaSet, Time};

impl Derecho {
    /// The end of a turn: for whom delivery waits from now on, and which message is watched.
    pub(super) fn note_waiting(&mut self, now: Time) {
        let behind = self.behind();
        let (own, stood_still) = (self.me.id(), self.config.suspect_timeout);
        self.stream.waits.turn(own, behind, stood_still, now);
        let Self {
            membership,
            stream,
            sst,
            ..
        } = self;
        let (live, view) = (membership.live(), membership.view());
        let received = |id| stream.incoming.from(id).received();
        let persisted = |id| sst.read(id, PERSISTED);
        let ordered = stream.order.ordered();
        if !(stream.waits).watch((live, view), ordered, received, persisted, now) {
            return;
        }
        let newest = stream.order.newest().filter(|_| !membership.wedging());
        let live = (live, view.members.len());
        (stream.waits).watch_next(newest, live, self.config.slow_member, now);
    }

    /// Without whom the next message would be delivered. This member stands for all causes that
    /// are not a minority's slowness; nobody when nothing waits.
    fn behind(&self) -> ReplicaSet {
        let own = ReplicaSet::EMPTY.with(self.me.id());
        let (view, live) = (self.membership.view(), self.membership.live());
        let order = &self.stream.order;
        let behind = if self.membership.wedging() {
            return ReplicaSet::EMPTY;
        } else if let Some(number) = order.awaited(self.stream.log.sure()) {
            let missing = |id: &ReplicaId| self.sst.read(*id, PERSISTED) < number;
            live.iter().filter(missing).collect()
        } else if order.waits_for_more() {
            let rank = order.next_rank(view.members.len());
            ReplicaSet::EMPTY.with(view.members[rank].id)
        } else {
            return ReplicaSet::EMPTY;
        };
        let rest = ReplicaSet(live.0 & !behind.0);
        if rest.contains(self.me.id()) && view.has_quorum(rest) {
            behind
        } else {
            own
        }
    }

    /// Removes members that everybody has waited for, for most of the time.
    pub(super) fn look_for_sluggish(&mut self, ctx: &mut Context<'_, Self>) {
        if self.config.slow_member.is_zero() {
            return;
        }
        let (now, live) = (ctx.now(), self.membership.live());
        let (own, period) = (self.me.id(), self.config.suspect_timeout * 2);
        let slow = self.stream.waits.look(live, own, period, now);
        let rest = ReplicaSet(live.0 & !slow.0);
        // One judges: the lowest rank of the rest also decides when they come back.
        if !self.membership.view().has_quorum(rest) || rest.iter().next() != Some(own) {
            return;
        }
        for id in slow.iter() {
            ctx.mark("sluggish member removed");
            self.stream.waits.removed(id, now);
            self.suspect(id, ctx);
        }
    }
}
