//! A follower agrees with its leader's log, and fetches the batches that it lacks.

use super::{
    Nezha, Part,
    dom::{Name, Stamp},
    entry::{name_of, page},
    message::PART_BYTES,
    replica::{Phase, Timer},
};
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, ReplicaId, Slot};

impl Nezha {
    pub(super) fn on_log_modification(
        &mut self,
        from: ReplicaId,
        view: u64,
        stamps: (Slot, Vec<Stamp>),
        (commit, round): (Slot, u64),
        ctx: &mut Context<'_, Self>,
    ) {
        if view < self.view.number() {
            return ctx.mark("ignored: log of an old view");
        }
        if !self.accept_leader(from, view, ctx) {
            return;
        }
        self.view.leader_leads(ctx.now());
        self.placements.told(stamps, commit, round, self.log.sync());
        self.place_pending(ctx);
        self.ask_for_gap(ctx);
    }

    /// Gives slots to what the leader placed, as long as the batches are here.
    pub(super) fn place_pending(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.phase, Phase::Follower) {
            return;
        }
        loop {
            let slot = self.log.sync().next();
            let Some(stamp) = self.placements.get(slot) else {
                break;
            };
            if !self.place(stamp, ctx) {
                self.arm_fetch(ctx);
                break;
            }
            // Placing it may have placed the next ones, too.
            self.placements.remove(slot);
        }
        let commit = self.placements.commit().min(self.log.sync());
        if commit > self.log.commit() {
            self.advance_commit(commit, ctx);
        }
    }

    /// The leader may have placed a batch while it was on its way.
    pub(super) fn place_if_told(&mut self, ctx: &mut Context<'_, Self>) {
        if self.placements.get(self.log.sync().next()).is_some() {
            self.place_pending(ctx);
        }
    }

    fn place(&mut self, stamp: Stamp, ctx: &mut Context<'_, Self>) -> bool {
        let Some(barred) = self.log.place(stamp, self.config.commutativity, ctx) else {
            return false;
        };
        self.replies
            .slow_after(self.log.sync(), stamp.name.frontend);
        for entry in barred {
            self.keep_late(entry.stamp.name, entry.batch, ctx);
        }
        true
    }

    /// Slots that are missing before one that came are asked for at once, and once: when that is
    /// lost, too, the leader's next tick repeats all.
    fn ask_for_gap(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.phase, Phase::Follower) {
            return;
        }
        if let Some((first, upto)) = self.placements.gap(self.log.sync().next()) {
            ctx.mark("gap in the leader's log asked for");
            self.send(self.view.leader(), Part::Lacks { first, upto }, ctx);
        }
    }

    /// Tells the leader and frontends how far its log is here.
    pub(super) fn flush_follower(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.placements.take_status() {
            return;
        }
        let (sync, round) = (self.log.durable(), self.placements.round());
        self.send(self.view.leader(), Part::LogStatus { sync, round }, ctx);
        for frontend in self.replies.take_slow(sync) {
            self.send_slow_reply(frontend, ctx);
        }
    }

    // --------------------------------------------------------------- batches that are lacking

    fn arm_fetch(&mut self, ctx: &mut Context<'_, Self>) {
        if self.placements.arm_fetch() {
            ctx.set_timer(Timer::Fetch, self.config.fetch_after);
        }
    }

    /// Asks for batches that the leader placed and that did not come.
    pub(super) fn fetch_missing(&mut self, ctx: &mut Context<'_, Self>) {
        self.placements.fetch_fired();
        if !matches!(self.phase, Phase::Follower) {
            return;
        }
        let missing = self.placements.missing(|name| self.log.knows(name));
        if missing.is_empty() {
            return self.place_pending(ctx);
        }
        let (leader, members) = (self.view.leader(), self.me.members());
        let to = self.placements.source(leader, members);
        if to != self.me.id() {
            self.send(to, Part::Fetch(missing), ctx);
        }
        self.arm_fetch(ctx);
    }

    pub(super) fn on_fetch(&self, from: ReplicaId, names: &[Name], ctx: &mut Context<'_, Self>) {
        let bodies = names.iter().filter_map(|name| self.log.body(*name));
        let (bodies, bytes) = page(bodies.cloned(), |body| body);
        if !bodies.is_empty() && ctx.takes(from, bytes + PART_BYTES) {
            self.send(from, Part::Bodies(bodies), ctx);
        }
    }

    pub(super) fn on_bodies(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        let wanted = self.placements.names();
        for batch in batches {
            let Some(name) = name_of(&batch) else {
                continue;
            };
            if let Phase::Changing(changing) = &mut self.phase {
                changing.keep(name, batch);
            } else if wanted.contains(&name) && !self.log.knows(&name) {
                ctx.mark("missing batch fetched");
                self.placements.fetched();
                self.keep_late(name, batch, ctx);
            } else if !self.config.multicast && !self.log.knows(&name) {
                // The leader sends it ahead of its place.
                self.keep_late(name, batch, ctx);
            }
        }
        if matches!(self.phase, Phase::Changing(_)) {
            self.maybe_merge(ctx);
        } else {
            self.place_pending(ctx);
        }
    }
}
