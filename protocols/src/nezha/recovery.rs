//! Coming back: from the disk, or without what was acknowledged.
//!
//! ```text
//!   Recover{nonce} ──► all                     the question names the new incarnation
//!   ◄── RecoverOk{view} from a majority of others that take part in a view
//!   GetLog ──► leader of the highest view ◄── its log up to its end ──► a follower again
//! ```
//!
//! Why this is enough. Every majority that changes the view meets the recovery quorum in a
//! replica that knows the new incarnation: it either answered before it voted, and then the new
//! leader learns from its vote that what the old incarnation said counts no more, or it voted
//! before it answered, and then the answer names that view or none. The leader of the highest view
//! learns of the new incarnation before it gives its log, so no fast reply of the old one can meet
//! its own later answers; and what it had committed with the old one's help stands in the log that
//! it gives.

use super::{Nezha, Part, Promised, Record, Standing, Summary, replica::Phase};
use alloc::vec::Vec;
use quintet_replica::{Context, Recovered, ReplicaId, Slot, parts::StateLoss};

impl Nezha {
    /// Takes back what the disk holds.
    pub(super) fn restore(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some(promise) = recovered.promise {
            self.view.restore(promise.view, promise.view_normal);
            self.incarnations.restore(&promise.incarnations);
        }
        for (_, record) in &recovered.records {
            if let Record::Begin { view, .. } = record {
                self.view.restore(*view, *view);
            }
        }
        let (checkpoint, records) = (recovered.checkpoint, recovered.records);
        self.log
            .restore(checkpoint, records, self.config.commutativity, ctx);
    }

    // ------------------------------------------------------------------------ a peer's state

    /// The leader no longer keeps the entries that this follower needs.
    pub(super) fn on_trimmed(
        &mut self,
        from: ReplicaId,
        view: u64,
        below: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let next = match self.phase {
            Phase::Follower => self.log.sync().next(),
            Phase::Joining(_) => self.log.commit().next(),
            _ => return,
        };
        if view != self.view.number() || from != self.view.leader() || below <= next {
            return;
        }
        self.fetch(below.previous(), ctx);
    }

    pub(super) fn fetch(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        let commit = self.log.commit();
        self.fetching.reached(commit);
        self.fetching.ask(at_least, commit, self.me.others(), ctx);
    }

    /// The executor holds a peer's state: all up to `slot` is committed.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.give_up();
        if !self.log.install(slot, summary) {
            return;
        }
        self.placements.drop_upto(self.log.sync());
        self.replies.drop_slow_upto(slot);
        self.placements.want_status();
        self.log.trim(ctx);
        match &mut self.phase {
            Phase::Changing(_) => self.maybe_merge(ctx),
            Phase::Joining(joining) => {
                joining.restart();
                self.rejoin(ctx);
            }
            _ => self.place_pending(ctx),
        }
    }

    // ----------------------------------------------------------------- without its state

    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.me.can_recover() {
            return self.me.halt_lost(ctx);
        }
        self.trust_leader(ctx);
        self.phase = Phase::Recovering(StateLoss::new(ctx.random(), self.me.members()));
        self.ask_to_recover(ctx);
    }

    /// By every tick.
    pub(super) fn ask_to_recover(&mut self, ctx: &mut Context<'_, Self>) {
        let Phase::Recovering(recovering) = &self.phase else {
            return;
        };
        if recovering.is_lost(ctx.now(), self.view.timeout() * 4) {
            return self.me.halt_lost(ctx);
        }
        self.tell_others(Part::Recover(recovering.nonce()), ctx);
    }

    pub(super) fn on_recover(
        &mut self,
        from: ReplicaId,
        view: u64,
        nonce: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let standing = match &self.phase {
            Phase::Follower | Phase::Leader(_) => Standing::Normal,
            Phase::Joining(joining) if joining.state_lost() => Standing::StateLost,
            Phase::Changing(_) | Phase::Joining(_) => Standing::Changing,
            Phase::Recovering(_) => Standing::StateLost,
        };
        self.send(from, Part::RecoverOk(nonce, standing), ctx);
        if self.is_leader() && view > self.view.number() {
            // It once promised a view that came to nothing, and may not go below it.
            ctx.mark("view raised for a recovering replica");
            let leads_next = self.view.leader_of(view) == from;
            self.start_view_change(view + u64::from(leads_next), ctx);
        } else if self.view.leader() == from && matches!(self.phase, Phase::Follower) {
            // The leader itself has lost its state: it cannot lead before the next view.
            self.view.set_leader_down(true);
        }
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        view: u64,
        nonce: u64,
        standing: Standing,
        ctx: &mut Context<'_, Self>,
    ) {
        let Phase::Recovering(recovering) = &mut self.phase else {
            return;
        };
        if nonce != recovering.nonce() {
            return ctx.mark("ignored: answer to another question");
        }
        let is = |standing| move |answer: &(u64, Standing)| answer.1 == standing;
        recovering.answered(from, (view, standing));
        recovering.count_lost(is(Standing::StateLost), &self.me, ctx.now());
        // The highest view in which any takes part, once a majority of them do.
        let answers = recovering.answers().map(|(_, answer)| answer);
        let normal = answers.filter(|answer| is(Standing::Normal)(answer));
        let views: Vec<u64> = normal.map(|(view, _)| *view).collect();
        let newest = views.iter().copied().max();
        let Some(best) = newest.filter(|_| views.len() >= self.me.majority()) else {
            return;
        };
        if best < self.view.number() || self.view.leader_of(best) == self.me.id() {
            return;
        }
        ctx.mark("recovery quorum");
        self.become_joining(best, true, ctx);
    }
}
