//! Coming back without what was accepted: memory durability, or a damaged journal.
//!
//! ```text
//!   Recover{incarnation} ──► all
//!   ◄── RecoverOk{last slot held} from a majority of others that have not forgotten
//!   everything up to the highest of these is decided and executed here ──► it votes again
//! ```
//!
//! Why this is enough. Promises and reserved slots are on disk in every durability; only accepted
//! values are lost. Let a slot be decided with the help of a lost vote. The others whose votes
//! decided it and the replicas that answered share one (a majority of all members, and all but one
//! of another). If that one accepted the slot before it answered, the slot lies below what it told,
//! and so is decided here before this replica votes again. If it accepted afterwards, its vote told
//! the replica that counts of the new life, and a vote of the earlier life counts no more. So no
//! lost vote helps to decide anything that this replica does not hold.

use super::{Mencius, Message};
use alloc::{vec, vec::Vec};
use quintet_replica::{Context, Incarnation, Lane, ReplicaId, Slot, Time, parts::too_many_forgot};

/// A replica that has forgotten.
#[derive(Hash)]
pub(super) struct Recovery {
    nonce: u64,
    answers: Vec<Option<Slot>>,
    upto: Option<Slot>,
    lost_since: Option<Time>,
}

impl Mencius {
    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if self.members - 1 < self.majority {
            return self.halt_lost(ctx);
        }
        ctx.mark("recovers what it forgot");
        self.recovery = Some(Recovery {
            nonce: ctx.random(),
            answers: vec![None; self.members],
            upto: None,
            lost_since: None,
        });
        self.ask_to_recover(ctx);
    }

    fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        ctx.halt(too_many_forgot(self.members, self.durability));
    }

    pub(super) fn ask_to_recover(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        let unanswered = |id: &ReplicaId| recovery.answers[id.index()].is_none();
        let to = self.others.iter().filter(unanswered).collect();
        let (incarnation, nonce) = (self.incarnation, recovery.nonce);
        ctx.multicast(to, Lane::Control, &Message::Recover { incarnation, nonce });
    }

    /// By heartbeat: are there enough others that have not forgotten?
    pub(super) fn watch_recovery(&mut self, ctx: &mut Context<'_, Self>) {
        self.ask_to_recover(ctx);
        let now = ctx.now();
        let forgotten = 1 + self.peers.iter().filter(|peer| peer.forgot).count();
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if recovery.upto.is_some() || forgotten <= self.members - self.majority {
            recovery.lost_since = None;
            return;
        }
        let since = *recovery.lost_since.get_or_insert(now);
        if now.since(since) > self.config.suspect * 4 {
            self.halt_lost(ctx);
        }
    }

    pub(super) fn on_recover(
        &mut self,
        from: ReplicaId,
        incarnation: Incarnation,
        nonce: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        self.meet(from, incarnation, ctx);
        if self.recovery.is_some() || self.peers[from.index()].incarnation != incarnation {
            return ctx.mark("ignored: recovering");
        }
        let last = self.log.end().previous().max(self.committed);
        ctx.send(from, Lane::Control, &Message::RecoverOk { nonce, last });
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        nonce: u64,
        last: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let majority = self.majority;
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if recovery.nonce != nonce {
            return ctx.mark("ignored: answer to another question");
        }
        recovery.answers[from.index()] = Some(last);
        let told = || recovery.answers.iter().flatten();
        if told().count() >= majority && recovery.upto.is_none() {
            ctx.mark("recovery quorum");
            recovery.upto = told().max().copied();
        }
        self.maybe_recovered(ctx);
        self.said_due = true;
    }

    /// Up to here the others are to decide, since this replica waits for it.
    pub(super) fn wants_latest(&self) -> Slot {
        let recovery = self.recovery.as_ref();
        recovery.and_then(|it| it.upto).unwrap_or_default()
    }

    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        let upto = self.recovery.as_ref().and_then(|it| it.upto);
        if upto.is_some_and(|upto| upto <= self.committed) {
            ctx.mark("recovered");
            ctx.recovered();
            self.recovery = None;
            self.said_due = true;
        } else if let Some(upto) = upto {
            self.latest = self.latest.max(upto);
        }
    }

    /// A peer is in this life of its, or in a later one.
    pub(super) fn meet(
        &mut self,
        peer: ReplicaId,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        let member = &mut self.peers[peer.index()];
        if incarnation <= member.incarnation {
            return;
        }
        if member.incarnation != Incarnation(0) {
            ctx.mark("peer came back in a new life");
        }
        member.incarnation = incarnation;
        // What it has is what it says from now on.
        member.told = false;
        member.committed = Slot(0);
        self.forget_votes(peer);
    }
}
