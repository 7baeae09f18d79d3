//! Catching up: with a new view's log, with what was missed, and after forgetting.
//!
//! ```text
//!   Fetch{view, from} ──► a replica that has the view's beginning
//!   ◄── Entries: same view here? verified : replaced and appended ──► Fetch the next piece
//!   ◄── Trimmed ──► state transfer ──► Fetch from there
//! ```
//!
//! **Forgetting.** A replica that has lost what it acknowledged (memory durability, a damaged
//! journal) knows its last view: that is on disk in every durability. It acknowledged slots in views
//! up to that one only. It neither acknowledges nor votes until it has appended the VIEW-INIT of a
//! later view, behind the whole log before it. Why that is enough: let a slot be committed in view
//! `v` with the help of its lost memory. The later view was elected by a majority without it, since
//! it did not vote. That majority shares a replica with the others that acknowledged the slot, so
//! the later view's log holds the slot (Appendix A, Claim 13), and now the restarted replica does.
//! It makes no difference when its old acknowledgements arrive.

use super::{Chora, Message, Summary, Value, ViewInit, message::Fitness, view_state::Role};
use alloc::vec::Vec;
use quintet_replica::{Context, Incarnation, Lane, ReplicaId, Slot};

/// More than a message takes besides its entries.
const MESSAGE_BYTES: usize = 128;

impl Chora {
    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.me.can_recover() {
            return self.me.halt_lost(ctx);
        }
        ctx.mark("recovers what it lost");
        self.catch_up.begin(self.view.number());
        self.view.unbegin();
        self.execute_committed(ctx);
        self.pulse.want();
    }

    /// By heartbeat: are there enough others that have not lost their state?
    pub(super) fn watch_recovery(&mut self, ctx: &mut Context<'_, Self>) {
        let lost = |id: &ReplicaId| {
            let fitness = self.peers[id.index()].fitness();
            matches!(fitness, Fitness::StateLost | Fitness::Recovering)
        };
        let lost = 1 + self.me.others().iter().filter(lost).count();
        let since = self.catch_up.too_many_lost(lost, &self.me, ctx.now());
        if since > self.config.suspect_timeout * 4 {
            self.me.halt_lost(ctx);
        }
    }

    /// The beginning of a later view stands in the log: this replica counts again.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        if self.view.init().is_some() && self.catch_up.end(self.view.number()) {
            ctx.mark("recovered");
            ctx.recovered();
            self.pulse.want();
        }
    }

    /// A peer is in this incarnation of its, or in a later one.
    pub(super) fn meet(
        &mut self,
        peer: ReplicaId,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        let member = &mut self.peers[peer.index()];
        if incarnation <= member.incarnation() {
            return;
        }
        if member.incarnation() != Incarnation(0) {
            ctx.mark("peer came back in a new incarnation");
        }
        member.replace(incarnation);
        if let Some(votes) = self.view.votes_mut() {
            votes.forget(peer);
        }
    }

    /// Asks one peer for the view's log from where the own one is not known to be it.
    pub(super) fn fetch_log(&self, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let message = Message::Fetch {
            view: self.view.number(),
            from: self.log.verified().next(),
        };
        ctx.send(from, Lane::Control, &message);
    }

    /// Asks the next of those that may have what is missing.
    pub(super) fn fetch_from_any(&mut self, ctx: &mut Context<'_, Self>) {
        let ahead = |id: &ReplicaId| {
            let peer = &self.peers[id.index()];
            let more = self.view.init().is_none()
                || peer.acked().max(peer.committed()) > self.log.last()
                || peer.acked() == Slot(0);
            peer.view() == self.view.number() && !peer.contact.is_down() && more
        };
        let mut candidates: Vec<ReplicaId> = self.me.others().iter().filter(ahead).collect();
        if candidates.is_empty() {
            candidates.extend(self.me.others().iter());
        }
        let index = self.coordination.next_source(candidates.len());
        if let Some(from) = candidates.get(index) {
            self.fetch_log(*from, ctx);
        }
    }

    pub(super) fn on_fetch(
        &mut self,
        to: ReplicaId,
        view: u64,
        from: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_view(to, view, ctx) {
            self.pulse.want();
            return;
        }
        if self.view.init().is_none() {
            return ctx.mark("ignored: log asked for before the view began here");
        }
        if from < self.log.first() {
            let message = Message::Trimmed {
                view,
                first: self.log.first(),
                executed: self.log.anchor_executed(),
            };
            return ctx.send(to, Lane::Control, &message);
        }
        let (mut bytes, mut entries) = (MESSAGE_BYTES, Vec::new());
        for (_, held) in self.log.iter_from(from) {
            bytes += held.value.bytes() + 16;
            if !entries.is_empty() && bytes > self.config.batch_bytes_max {
                break;
            }
            entries.push((held.view, held.value.clone()));
        }
        if !ctx.takes(to, bytes) {
            return ctx.mark("entries wait for room");
        }
        let init = self.view.init().filter(|init| init.base < from).cloned();
        let Some(before) = self.log.view_of(from.previous()) else {
            return ctx.mark("ignored: log asked for beyond its end");
        };
        let message = Message::Entries {
            view,
            first: from,
            before,
            init,
            committed: self.log.committed(),
            last: self.log.last(),
            entries,
        };
        ctx.send(to, Lane::Control, &message);
    }

    pub(super) fn on_entries(
        &mut self,
        from: ReplicaId,
        (view, first, before): (u64, Slot, u64),
        init: Option<ViewInit>,
        (committed, last): (Slot, Slot),
        entries: Vec<(u64, Value)>,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_view(from, view, ctx) || first > self.log.verified().next() {
            return;
        }
        // Entries verified here must be the view's log, too: a snapshot may come from a later view
        // than the one that this replica knows.
        let at = (self.log.verified().next().0 - first.0) as usize;
        let theirs = match at.checked_sub(1) {
            None => Some(before),
            Some(at) => entries.get(at).map(|(view, _)| *view),
        };
        if theirs != self.log.view_of(self.log.verified()) {
            return ctx.mark("ignored: entries that do not follow on the own log");
        }
        if entries.iter().any(|(entry, _)| *entry > view) {
            return ctx.mark("ignored: entry of a later view");
        }
        let insane = |(_, value): &(u64, Value)| match value {
            Value::Init(init) => !self.is_sane(init),
            Value::Noop | Value::Commands { .. } => false,
        };
        if init.as_ref().is_some_and(|init| !self.is_sane(init)) || entries.iter().any(insane) {
            return ctx.mark("ignored: VIEW-INIT with strangers");
        }
        let verified = self.log.verified();
        if let Some(init) = init.filter(|init| init.view == self.view.number()) {
            self.adopt_init(init, ctx);
        }
        for (slot, (view, value)) in (first.0..).map(Slot).zip(entries) {
            if slot > self.log.verified() {
                self.take_entry(slot, view, value, ctx);
            }
        }
        self.drain(ctx);
        self.maybe_commit(ctx);
        self.commit(committed, ctx);
        if self.log.verified() > verified && self.log.verified() < last {
            self.fetch_log(from, ctx);
        }
    }

    /// VIEW-INIT stands in the verified part of the log, or a snapshot covers it.
    fn adopt_init(&mut self, init: ViewInit, ctx: &mut Context<'_, Self>) {
        if self.view.init().is_some() || init.base > self.log.verified() {
            return;
        }
        // The following entries stay if they are of this view: then they follow on just this one.
        let other = self
            .log
            .iter_from(self.log.verified().next())
            .find(|(_, held)| held.view != self.view.number())
            .map(|(slot, _)| slot);
        if let Some(slot) = other {
            self.log.truncate(slot);
        }
        self.log.verify(self.log.last());
        self.proposer.learn_latest(init.base);
        self.log.retain_buffered(|slot| init.owner(slot).is_some());
        self.pulse.rounds.register(init.live.without(self.me.id()));
        if self.view.is_candidate() {
            self.view.set_role(Role::Follower);
        }
        self.view.begin(init);
        self.pulse.want();
        self.drain(ctx);
        self.maybe_recovered(ctx);
        if self.established() {
            self.on_established(ctx);
        }
    }

    /// The next slot of the view's log, as a replica has it that is in the view.
    fn take_entry(&mut self, slot: Slot, view: u64, value: Value, ctx: &mut Context<'_, Self>) {
        if self.view.init().is_some() {
            // Behind VIEW-INIT the log is the view's own.
            if slot == self.log.end() && view == self.view.number() {
                self.append(view, value, ctx);
                self.log.verify(slot);
            }
            return;
        }
        if self.log.view_of(slot) == Some(view) {
            self.log.verify(slot);
            if let Value::Init(init) = value
                && view == self.view.number()
            {
                // Restored from the journal, and now known to be the view's.
                self.adopt_init(*init, ctx);
            }
            return;
        }
        if slot < self.log.end() {
            ctx.mark("suffix of an old view replaced");
            self.log.truncate(slot);
        }
        match value {
            Value::Init(init) if view == self.view.number() => self.insert_init(*init, ctx),
            value => {
                self.append(view, value, ctx);
                self.log.verify(slot);
            }
        }
    }

    pub(super) fn on_trimmed(
        &mut self,
        from: ReplicaId,
        view: u64,
        first: Slot,
        executed: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_view(from, view, ctx) || first <= self.log.verified().next() {
            return;
        }
        self.catch_up
            .fetching_mut()
            .ask(executed, self.log.executed(), self.me.others(), ctx);
    }

    /// A peer's state stands in for everything up to the summary's slot.
    pub(super) fn install(
        &mut self,
        executed: Slot,
        summary: Summary,
        ctx: &mut Context<'_, Self>,
    ) {
        ctx.mark("state installed");
        self.catch_up.fetching_mut().reached(executed);
        self.log.on_executed(executed);
        if executed <= self.log.executed() {
            return;
        }
        let slot = summary.slot;
        // The following entries of the log stay if they follow on just this one.
        let behind = self.log.entries_behind(slot, summary.view);
        let verified = self.log.verified();
        let follows = behind.is_some() && slot <= verified;
        if summary.view > self.view.number() {
            self.enter_view(summary.view, None, ctx);
        }
        let covered = (summary.view == self.view.number()).then(|| summary.init.clone());
        let at = (slot, summary.view);
        self.log
            .install(executed, at, summary.time, behind.unwrap_or_default());
        self.view.commit_init(summary.init);
        if self.view.init().is_some() && !follows && covered.is_none() {
            // The state may come from a later view than this one, whose log this view's is not:
            // nothing is acknowledged in this view before another log shows that it is.
            ctx.mark("installed a state of another view");
            self.view.unbegin();
            self.view.set_role(Role::Follower);
            self.proposer.stop();
            self.pulse.unacknowledge();
            self.reads.new_view();
            self.log.verify(slot);
            self.view.restart(ctx.now());
        }
        if let Some(init) = covered {
            // The snapshot's last slot is of this view, and so all before it is this view's log.
            self.view.unbegin();
            self.log.verify(slot);
            self.adopt_init(init, ctx);
        }
        self.proposer.learn_latest(self.log.last());
        self.proposer.on_installed(slot);
        self.log.drop_buffered(slot);
        self.drain(ctx);
        self.maybe_commit(ctx);
        ctx.trim(slot.next());
        self.pulse.want();
        self.answer_reads(ctx);
        self.fetch_from_any(ctx);
    }
}
