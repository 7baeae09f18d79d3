//! Members that are up and far slower than the others: the others do not wait for their slots.
//!
//! ```text
//!   r2 is slow:  r0, r1 ── revoke its slots ahead of their use, as if it were silent
//!                r2 ── Forward{its frontends' batches}, ReadAsk ──► one that is not slow
//!                r2 ◄── what is decided, ReadAt ──┘        and r2 answers its frontends
//! ```
//!
//! Everything is executed in the order of the slots, so one owner whose link or disk is slow makes
//! all as slow as itself. Which members are slow the node finds (`Control::SlowMembers`), each for
//! itself. They are bypassed while a majority is up and not slow, see [`bypassed`]. This is about
//! who decides slots and who suggests, and so about speed alone: a revocation is safe against an
//! owner that is up, and two copies of a batch are found by the sessions.
//!
//! The receiving member always takes a forwarded request, even if it is slow in its own eyes: two
//! members that each find themselves slow would otherwise send it in circles.

use super::Mencius;
use quintet_replica::{Context, ReplicaId, ReplicaSet, Time, parts::bypassed};

impl Mencius {
    /// The members for whose slots no other waits although they are up.
    pub(super) fn bypassed(&self, now: Time) -> ReplicaSet {
        let slow = self.peers.slow();
        if slow.is_empty() {
            return ReplicaSet::EMPTY;
        }
        let others = self.me.others();
        let up: ReplicaSet = others.iter().filter(|id| self.is_up(*id, now)).collect();
        bypassed(slow, up.with(self.me.id()), self.me.majority())
    }

    /// Other members are slow than before.
    pub(super) fn on_slow_members(&mut self, slow: ReplicaSet, ctx: &mut Context<'_, Self>) {
        self.peers.set_slow(slow);
        // Another owner's revocation may decide those slots now.
        self.revocations.look_again();
        self.look_for_slow(ctx);
        self.revoke_blocked(ctx);
    }

    /// At each heartbeat, lost link and word of who is slow: whether this replica is bypassed, and
    /// who orders what its frontends ask for.
    pub(super) fn look_for_slow(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, own, before) = (ctx.now(), self.me.id(), self.relay.to());
        let bypassed = self.bypassed(now);
        let takes = |id: &ReplicaId| !bypassed.contains(*id) && self.is_up(*id, now);
        let to = if !bypassed.contains(own) || self.recovery.is_some() {
            None
        } else if before.is_some_and(|to| takes(&to)) {
            before
        } else {
            // Not the same for all that are slow.
            let behind = self.me.others().iter().filter(|id| *id > own);
            let before = self.me.others().iter().filter(|id| *id < own);
            behind.chain(before).find(takes)
        };
        if to == before {
            return;
        }
        if let Some(to) = to {
            ctx.mark("slow member forwards its requests");
            self.relay.forward_to(to);
            self.reads.drop_marker();
            self.reads.ask_again();
        } else {
            ctx.mark("member that was slow orders its requests");
            self.relay.forward_nothing();
            self.aim_reads();
        }
    }
}
