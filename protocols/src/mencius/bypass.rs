//! Members that are up and far slower than the others: nobody waits for their slots.
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
//! What is forwarded is always taken by the member that receives it, be it slow in its own eyes:
//! two members that each find themselves slow would otherwise send it in circles.

use super::{Mencius, Message};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Context, ReplicaId, ReplicaSet, Time,
    parts::{RequestKey, bypassed, request_key},
};

/// More than a message takes besides its batches.
const OVERHEAD: usize = 128;

impl Mencius {
    /// Those for whose slots nobody waits although they are up.
    pub(super) fn bypassed(&self, now: Time) -> ReplicaSet {
        if self.slow.is_empty() {
            return ReplicaSet::EMPTY;
        }
        let up: ReplicaSet = self
            .others
            .iter()
            .filter(|id| self.is_up(*id, now))
            .collect();
        bypassed(self.slow, up.with(self.id), self.majority)
    }

    /// Other members are slow than before.
    pub(super) fn on_slow_members(&mut self, slow: ReplicaSet, ctx: &mut Context<'_, Self>) {
        self.slow = slow;
        // What was looked at may be another's to decide now.
        self.ahead_looked = quintet_replica::Slot(0);
        self.look_for_slow(ctx);
        self.revoke_blocked(ctx);
    }

    /// At each heartbeat, lost link and word of who is slow: whether this replica is bypassed, and
    /// who orders what its frontends ask for.
    pub(super) fn look_for_slow(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let bypassed = self.bypassed(now);
        let takes = |id: &ReplicaId| !bypassed.contains(*id) && self.is_up(*id, now);
        let to = if !bypassed.contains(self.id) || self.recovery.is_some() {
            None
        } else if self.forward_to.is_some_and(|to| takes(&to)) {
            self.forward_to
        } else {
            // Not the same for all that are slow.
            let behind = self.others.iter().filter(|id| *id > self.id);
            let before = self.others.iter().filter(|id| *id < self.id);
            behind.chain(before).find(takes)
        };
        if to == self.forward_to {
            return;
        }
        self.forward_to = to;
        if to.is_some() {
            ctx.mark("slow member forwards its requests");
            let requests = &self.requests;
            self.queue.retain(|key| !requests.contains(key));
            self.marker_wanted = false;
            self.forward_all();
        } else {
            ctx.mark("member that was slow orders its requests");
            self.requests.pass_on_nothing();
            for (key, batch) in self.requests.iter() {
                self.queue.push(key, batch.clone());
            }
            self.aim_reads();
        }
    }

    /// All that this replica's frontends wait for goes to the member that orders it, for the first
    /// time or again.
    pub(super) fn forward_all(&mut self) {
        self.requests.pass_on_all();
        self.ask_reads();
    }

    /// What this turn brought goes to the member that orders it.
    pub(super) fn send_forward(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(to) = self.forward_to else {
            return;
        };
        let bytes_max = self.config.batch_bytes_max;
        let message = |batches| Message::Forward { batches };
        self.requests.send(to, bytes_max, OVERHEAD, ctx, message);
        self.send_read_ask(to, ctx);
    }

    pub(super) fn on_forward(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.members);
        let keys: Vec<RequestKey> = batches
            .iter()
            .filter_map(|batch| request_key(batch))
            .collect();
        self.queue.take_in(batches, bytes_max, ctx);
        let taken = keys.into_iter().filter(|key| self.queue.holds(*key));
        self.forwarded.extend(taken);
    }
}
