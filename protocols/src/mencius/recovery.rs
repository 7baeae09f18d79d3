//! Coming back without what was accepted: memory durability, or a damaged journal.
//!
//! ```text
//!   Recover{incarnation} ──► all
//!   ◄── RecoverOk{last slot held} from a majority of others that have not lost their state
//!   everything up to the highest of these is decided and executed here ──► it votes again
//! ```
//!
//! Why this is enough. Promises and reserved slots are on disk in every durability; only accepted
//! values are lost. Let a slot be decided with the help of a lost vote. The others whose votes
//! decided it and the replicas that answered share one (a majority of all members, and all but one
//! of another). If that one accepted the slot before it answered, the slot lies below what it told,
//! and so is decided here before this replica votes again. If it accepted afterwards, its vote told
//! the replica that counts of the new incarnation, and a vote of the earlier incarnation counts no
//! more. So no lost vote helps to decide anything that this replica does not hold.

use super::{Mencius, Message, catch_up::CatchUp};
use quintet_replica::{Context, Incarnation, Lane, ReplicaId, Slot, parts::Observed};

impl Mencius {
    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.me.can_recover() {
            return self.me.halt_lost(ctx);
        }
        ctx.mark("recovers what it lost");
        self.recovery = Some(CatchUp::new(ctx.random(), self.me.members()));
        self.ask_to_recover(ctx);
    }

    fn ask_to_recover(&self, ctx: &mut Context<'_, Self>) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        let to = recovery.loss().unanswered(self.me.others());
        let (incarnation, nonce) = (self.me.incarnation(), recovery.loss().nonce());
        ctx.multicast(to, Lane::Control, &Message::Recover { incarnation, nonce });
    }

    /// By heartbeat: are there enough others that have not lost their state?
    pub(super) fn watch_recovery(&mut self, ctx: &mut Context<'_, Self>) {
        self.ask_to_recover(ctx);
        let lost = 1 + self.peers.lost();
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        recovery.are_lost(lost, &self.me, ctx.now());
        if (recovery.loss()).is_lost(ctx.now(), self.config.suspect_timeout * 4) {
            self.me.halt_lost(ctx);
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
        if self.recovery.is_some() || self.peers.incarnation(from) != incarnation {
            return ctx.mark("ignored: recovering");
        }
        let last = self.log.last();
        ctx.send(from, Lane::Control, &Message::RecoverOk { nonce, last });
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        nonce: u64,
        last: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if recovery.loss().nonce() != nonce {
            return ctx.mark("ignored: answer to another question");
        }
        if recovery.on_answer(from, last, self.me.majority()) {
            ctx.mark("recovery quorum");
        }
        self.maybe_recovered(ctx);
        self.outbox.want();
    }

    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(upto) = self.recovery.as_ref().and_then(CatchUp::upto) else {
            return;
        };
        if upto <= self.log.committed() {
            ctx.mark("recovered");
            ctx.recovered();
            self.recovery = None;
            self.outbox.want();
        } else {
            // The others are to decide up to here, since this replica waits for it.
            self.own.learn_latest(upto);
        }
    }

    /// A peer is in this incarnation of its, or in a later one.
    pub(super) fn meet(
        &mut self,
        peer: ReplicaId,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        let observed = self.peers.observe(peer, incarnation);
        if observed == Observed::Restarted {
            ctx.mark("peer came back in a new incarnation");
        }
        if observed != Observed::Known {
            self.forget_votes(peer);
        }
    }

    /// Another member's knowledge of the incarnations of all members counts here, too: see above.
    pub(super) fn meet_all(&mut self, incarnations: &[Incarnation], ctx: &mut Context<'_, Self>) {
        for (index, incarnation) in incarnations.iter().enumerate().take(self.me.members()) {
            let id = ReplicaId(index as u16);
            if id != self.me.id() {
                self.meet(id, *incarnation, ctx);
            }
        }
    }

    pub(super) fn incarnations(&self) -> alloc::vec::Vec<Incarnation> {
        self.peers.incarnations(self.me.id(), self.me.incarnation())
    }
}
