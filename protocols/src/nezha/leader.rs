//! The leader tells its followers its log, and commits what a majority of them has synced.

use super::{Nezha, Part, leader_state::STAMPS_MAX, replica::Phase};
use quintet_replica::{Context, ReplicaId, Slot, Wake};

impl Nezha {
    pub(super) fn log_modification(&self, first: Slot, count: u64, round: u64) -> Part {
        let entries = self.log.iter_from(first).take(count as usize);
        Part::LogModification {
            first,
            stamps: entries.map(|(_, entry)| entry.stamp).collect(),
            commit: self.log.commit(),
            round,
        }
    }

    /// Tells what has not been told yet, by the end of every turn.
    pub(super) fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush_fast_replies(ctx);
        match self.phase {
            Phase::Leader(_) => return self.flush_leader(ctx),
            Phase::Follower => self.flush_follower(ctx),
            Phase::Changing(_) | Phase::Joining(_) | Phase::Recovering(_) => {}
        }
        Wake::Sleep
    }

    fn flush_leader(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let (sync, at_once) = (self.log.sync(), !self.config.multicast);
        let Phase::Leader(lead) = &mut self.phase else {
            return Wake::Sleep;
        };
        let mut first = match lead.tell(sync, at_once, ctx.now()) {
            Ok(first) => first,
            Err(wake) => return wake,
        };
        let round = lead.round();
        loop {
            if !self.config.multicast {
                self.forward(first, STAMPS_MAX, ctx);
            }
            let part = self.log_modification(first, STAMPS_MAX, round);
            self.tell_others(part, ctx);
            first = Slot(first.0 + STAMPS_MAX);
            if first > sync {
                break;
            }
        }
        if self.me.members() == 1 {
            self.confirm_reads(ctx);
        }
        Wake::Sleep
    }

    /// Tells followers how far the log is committed.
    pub(super) fn begin_round(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Leader(lead) = &mut self.phase {
            lead.want_round();
            let _ = self.flush(ctx);
        }
    }

    pub(super) fn tick_leader(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.is_ready() {
            return;
        }
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        lead.want_round();
        let (behind, round) = (lead.behind(self.me.others()), lead.round());
        for (id, first) in behind {
            if first <= self.log.sync() {
                self.tell_again(id, (first, STAMPS_MAX), round, ctx);
            }
        }
        let _ = self.flush(ctx);
        self.release(ctx);
    }

    /// Tells a follower again what stands from this slot on, or that it is no longer kept.
    fn tell_again(
        &self,
        to: ReplicaId,
        (first, count): (Slot, u64),
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let part = match self.log.first() {
            kept if first < kept => Part::Trimmed(kept),
            _ => self.log_modification(first, count, round),
        };
        self.send(to, part, ctx);
    }

    pub(super) fn on_log_status(
        &mut self,
        from: ReplicaId,
        view: u64,
        sync: Slot,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        if view != self.view.number() || sync > self.log.sync() {
            return ctx.mark("ignored: status of another view");
        }
        let (kept, at) = (self.log.first(), ctx.arrived());
        if let Some(first) = lead.on_status(from, (sync, round), kept, at) {
            let round = lead.round();
            self.send(from, self.log_modification(first, STAMPS_MAX, round), ctx);
        }
        self.count_syncs(ctx);
        self.confirm_reads(ctx);
    }

    /// A follower lacks what was said of these slots.
    pub(super) fn on_lacks(
        &self,
        from: ReplicaId,
        view: u64,
        (first, upto): (Slot, Slot),
        ctx: &mut Context<'_, Self>,
    ) {
        let Phase::Leader(lead) = &self.phase else {
            return;
        };
        if view != self.view.number() || first > upto || upto > lead.told() {
            return ctx.mark("ignored: a gap of another view");
        }
        let count = (upto.0 - first.0 + 1).min(STAMPS_MAX);
        self.tell_again(from, (first, count), lead.round(), ctx);
    }

    /// Commits the slots that a majority has synced.
    pub(super) fn count_syncs(&mut self, ctx: &mut Context<'_, Self>) {
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        let commit = lead.commit_point(self.log.durable());
        if commit > self.log.commit() {
            lead.committed(commit, ctx.now());
            self.advance_commit(commit, ctx);
            self.release(ctx);
        }
    }

    /// Committed entries are final; followers execute them now.
    pub(super) fn advance_commit(&mut self, commit: Slot, ctx: &mut Context<'_, Self>) {
        while self.log.commit() < commit {
            let slot = self.log.commit_next(ctx);
            self.answer_committed(slot, ctx);
        }
        ctx.stable(self.log.commit());
        self.log.raise_hash_base();
    }
}
