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
//! the later view's log holds the slot (Appendix A, Claim 13), and now the forgetful replica does.
//! It makes no difference when its old acknowledgements arrive.

use super::{
    Chora, Message, Summary, Value, ViewInit,
    message::Fitness,
    replica::{Held, Role},
};
use alloc::vec::Vec;
use quintet_replica::{Context, Incarnation, Lane, ReplicaId, Slot, Time, parts::too_many_forgot};

/// A replica that has forgotten.
#[derive(Clone, Debug, Hash)]
pub(super) struct Recovery {
    /// The last view in which it may have acknowledged something.
    pub floor: u64,
    /// Since when too many others say that they have forgotten, too.
    lost_since: Option<Time>,
}

/// More than a message takes besides its entries.
const MESSAGE_BYTES: usize = 128;

impl Chora {
    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if self.members - 1 < self.majority {
            return self.halt_lost(ctx);
        }
        ctx.mark("recovers what it forgot");
        self.recovery = Some(Recovery {
            floor: self.view,
            lost_since: None,
        });
        self.init = None;
        self.execute_committed(ctx);
        self.pulse_due = true;
    }

    fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        ctx.halt(too_many_forgot(self.members, self.durability));
    }

    /// By heartbeat: are there enough others that have not forgotten?
    pub(super) fn watch_recovery(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let forgotten = 1 + self
            .others
            .iter()
            .filter(|id| {
                let fitness = self.peers[id.index()].fitness;
                matches!(fitness, Fitness::Forgot | Fitness::Recovering)
            })
            .count();
        let Some(recovery) = &mut self.recovery else {
            return;
        };
        if forgotten <= self.members - self.majority {
            recovery.lost_since = None;
            return;
        }
        let since = *recovery.lost_since.get_or_insert(now);
        if now.since(since) > self.config.suspect * 4 {
            self.halt_lost(ctx);
        }
    }

    /// The beginning of a later view stands in the log: this replica counts again.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(recovery) = &self.recovery else {
            return;
        };
        if self.init.is_some() && self.view > recovery.floor {
            ctx.mark("recovered");
            ctx.recovered();
            self.recovery = None;
            self.pulse_due = true;
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
        member.acked = Slot(0);
        // Its journal may know less than it said before.
        member.committed = Slot(0);
        if let Role::Candidate(votes) = &mut self.role {
            votes.forget(peer);
        }
    }

    /// Asks one peer for the view's log from where the own one is not known to be it.
    pub(super) fn fetch_log(&self, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let message = Message::Fetch {
            view: self.view,
            from: self.verified.next(),
        };
        ctx.send(from, Lane::Control, &message);
    }

    /// Asks the next of those that may have what is missing.
    pub(super) fn fetch_from_somebody(&mut self, ctx: &mut Context<'_, Self>) {
        let ahead = |id: &ReplicaId| {
            let peer = &self.peers[id.index()];
            let more = self.init.is_none()
                || peer.acked.max(peer.committed) > self.last_append()
                || peer.acked == Slot(0);
            peer.view == self.view && peer.down_at.is_none() && more
        };
        let mut candidates: Vec<ReplicaId> = self.others.iter().filter(ahead).collect();
        if candidates.is_empty() {
            candidates.extend(self.others.iter());
        }
        *self.fetch_next = self.fetch_next.wrapping_add(1);
        let index = *self.fetch_next % (candidates.len() as u64).max(1);
        if let Some(from) = candidates.get(index as usize) {
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
            self.pulse_due = true;
            return;
        }
        if self.init.is_none() {
            return ctx.mark("ignored: log asked for before the view began here");
        }
        if from < self.log.first() {
            let message = Message::Trimmed {
                view,
                first: self.log.first(),
                executed: self.anchor_executed,
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
        let init = self.init.clone().filter(|init| init.base < from);
        let Some(before) = self.view_of(from.previous()) else {
            return ctx.mark("ignored: log asked for beyond its end");
        };
        let message = Message::Entries {
            view,
            first: from,
            before,
            init,
            committed: self.committed,
            last: self.last_append(),
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
        if !self.in_view(from, view, ctx) || first > self.verified.next() {
            return;
        }
        // What is verified here must be the view's log, too: a snapshot may come from a later view
        // than the one that this replica knows.
        let at = (self.verified.next().0 - first.0) as usize;
        let theirs = match at.checked_sub(1) {
            None => Some(before),
            Some(at) => entries.get(at).map(|(view, _)| *view),
        };
        if theirs != self.view_of(self.verified) {
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
        let verified = self.verified;
        if let Some(init) = init.filter(|init| init.view == self.view) {
            self.adopt_init(init, ctx);
        }
        for (slot, (view, value)) in (first.0..).map(Slot).zip(entries) {
            if slot > self.verified {
                self.take_entry(slot, view, value, ctx);
            }
        }
        self.drain(ctx);
        self.maybe_commit(ctx);
        self.commit(committed, ctx);
        if self.verified > verified && self.verified < last {
            self.fetch_log(from, ctx);
        }
    }

    /// VIEW-INIT stands in the verified part of the log, or a snapshot covers it.
    fn adopt_init(&mut self, init: ViewInit, ctx: &mut Context<'_, Self>) {
        if self.init.is_some() || init.base > self.verified {
            return;
        }
        // What follows stays if it is of this view: then it follows on just this.
        let other = self
            .log
            .iter_from(self.verified.next())
            .find(|(_, held)| held.view != self.view)
            .map(|(slot, _)| slot);
        if let Some(slot) = other {
            self.truncate(slot);
        }
        self.verified = self.last_append();
        self.latest = self.latest.max(init.base);
        self.buffer.retain(|slot, _| init.owner(*slot).is_some());
        self.rounds.register(init.live.without(self.id));
        if let Role::Candidate(_) = self.role {
            self.role = Role::Follower;
        }
        self.init = Some(init);
        self.pulse_due = true;
        self.drain(ctx);
        self.maybe_recovered(ctx);
        if self.established() {
            self.on_established(ctx);
        }
    }

    /// The next slot of the view's log, as a replica has it that is in the view.
    fn take_entry(&mut self, slot: Slot, view: u64, value: Value, ctx: &mut Context<'_, Self>) {
        if self.init.is_some() {
            // Behind VIEW-INIT the log is the view's own.
            if slot == self.log.end() && view == self.view {
                self.append(view, value, ctx);
                self.verified = slot;
            }
            return;
        }
        if self.view_of(slot) == Some(view) {
            self.verified = slot;
            if let Value::Init(init) = value
                && view == self.view
            {
                // Restored from the journal, and now known to be the view's.
                self.adopt_init(*init, ctx);
            }
            return;
        }
        if slot < self.log.end() {
            ctx.mark("suffix of an old view replaced");
            self.truncate(slot);
        }
        match value {
            Value::Init(init) if view == self.view => self.insert_init(*init, ctx),
            value => {
                self.append(view, value, ctx);
                self.verified = slot;
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
        if !self.in_view(from, view, ctx) || first <= self.verified.next() {
            return;
        }
        self.fetching.ask(executed, self.executed, self.others, ctx);
    }

    /// A peer's state stands in for everything up to the summary's slot.
    pub(super) fn install(
        &mut self,
        executed: Slot,
        summary: Summary,
        ctx: &mut Context<'_, Self>,
    ) {
        ctx.mark("state installed");
        self.fetching.reached(executed);
        self.executed_done = self.executed_done.max(executed);
        if executed <= self.executed {
            return;
        }
        let slot = summary.slot;
        // What follows in the log stays if it follows on just this.
        let follows = self.view_of(slot) == Some(summary.view);
        let mut kept: Vec<Held> = Vec::new();
        if follows {
            kept.extend(
                self.log
                    .iter_from(slot.next())
                    .map(|(_, held)| held.clone()),
            );
        }
        let (verified, durable) = (self.verified, self.durable);
        let writes = core::mem::take(&mut self.writes);
        if summary.view > self.view {
            self.enter_view(summary.view, None, ctx);
        }
        let covered = (summary.view == self.view).then(|| summary.init.clone());
        self.restart_at(executed, summary);
        for held in kept {
            self.log_bytes += held.value.bytes() + size_of::<Held>();
            self.log.set(self.log.end(), held);
        }
        let last = self.last_append();
        self.durable = durable.clamp(slot, last);
        self.writes = writes;
        for (_, upto) in &mut self.writes {
            *upto = (*upto).min(last);
        }
        self.verified = verified.clamp(slot, last);
        if self.init.is_some() && !(follows && slot <= verified) && covered.is_none() {
            // The state may come from a later view than this one, whose log this view's is not:
            // nothing is acknowledged in this view before somebody's log shows that it is.
            ctx.mark("installed a state of another view");
            self.init = None;
            self.role = Role::Follower;
            self.next_propose = None;
            self.ack_sent = Slot(0);
            self.ack_looked = Slot(0);
            self.reads.new_view();
            self.verified = slot;
            self.view_since = ctx.now();
        }
        if let Some(init) = covered {
            // The snapshot's last slot is of this view, and so all before it is this view's log.
            self.init = None;
            self.verified = slot;
            self.adopt_init(init, ctx);
        }
        self.latest = self.latest.max(self.last_append());
        self.outstanding.retain(|own| *own > slot);
        self.buffer = self.buffer.split_off(&slot.next());
        self.drain(ctx);
        self.maybe_commit(ctx);
        ctx.trim(slot.next());
        self.pulse_due = true;
        self.answer_reads(ctx);
        self.fetch_from_somebody(ctx);
    }

    pub(super) fn on_replica_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        let peer = &mut self.peers[from.index()];
        peer.heard_at = ctx.arrived();
        peer.down_at = None;
        match message {
            Message::Pulse(pulse) => {
                self.meet(from, pulse.incarnation, ctx);
                self.on_pulse(from, pulse, ctx);
            }
            Message::ViewRequest {
                view,
                incarnation,
                last_slot,
                last_view,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_view_request(from, view, (last_slot, last_view), ctx);
            }
            Message::Vote { view, incarnation } => {
                self.meet(from, incarnation, ctx);
                self.on_vote(from, view, incarnation, ctx);
            }
            Message::Init { init, runs } => self.on_init(from, init, &runs, ctx),
            Message::Fetch { view, from: slot } => self.on_fetch(from, view, slot, ctx),
            Message::Entries {
                view,
                first,
                before,
                init,
                committed,
                last,
                entries,
            } => {
                let (at, upto) = ((view, first, before), (committed, last));
                self.on_entries(from, at, init, upto, entries, ctx);
            }
            Message::Trimmed {
                view,
                first,
                executed,
            } => self.on_trimmed(from, view, first, executed, ctx),
            Message::Forward { batches } => self.on_forward(batches, ctx),
            Message::ReadAsk { view, round } => self.on_read_ask(from, view, round, ctx),
            Message::ReadOk { round, executed } => self.on_read_ok(round, executed, ctx),
            Message::Request { .. } | Message::Taken { .. } => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }
}
