//! Revocation: deciding the slots of an owner that does not.
//!
//! ```text
//!   owner silent, without its state or too far behind, or undecided own slots of an earlier run
//!      │ ballot on disk
//!      ├─ Prepare{owner, ballot, first, last} ──► all ── Promise{what was accepted} ──┐ majority
//!      ├─ Accept: value of the highest ballot, else nothing ──► all ── Voted ──┐ ◄─────┘
//!      └─ Learn ──► all                                              majority ◄┘
//! ```

use super::{
    Known, Mencius, Message, Range, Value,
    bug::Bug,
    log::SLOTS_MAX,
    message::{DECIDED, overhead},
    replica::{REVOKED_AHEAD, USED_MAX},
    revocations::{Promise, Reply},
};
use alloc::vec::Vec;
use quintet_replica::{
    Context, Incarnation, Lane, PersistId, ReplicaId, ReplicaSet, Slot, Time, parts::Ballot,
};

impl Mencius {
    /// Whether another member must decide this owner's slots.
    fn is_dead(&self, owner: ReplicaId, ctx: &Context<'_, Self>) -> bool {
        let now = ctx.now();
        owner != self.me.id() && (!self.is_up(owner, now) || self.bypassed(now).contains(owner))
    }

    /// Whether a peer is heard, and uses or skips its slots. It may be alive and fetch a state for
    /// minutes: no other waits for that.
    pub(super) fn is_up(&self, id: ReplicaId, now: Time) -> bool {
        self.is_alive(id, now) && !self.peers.is_useless(id, self.own.latest(), USED_MAX)
    }

    fn is_alive(&self, id: ReplicaId, now: Time) -> bool {
        let down = self.config.heartbeat * 2;
        self.peers
            .is_alive(id, now, self.config.suspect_timeout, down)
    }

    /// Of those that are there, the first revokes; the others when it does not, and last one that is
    /// bypassed, whose word takes long.
    fn revokes(&self, ctx: &Context<'_, Self>) -> bool {
        let (now, own) = (ctx.now(), self.me.id());
        let last = self.bypassed(now).contains(own);
        let before = (self.me.others().iter())
            .filter(|id| (last || *id < own) && !self.is_dead(*id, ctx))
            .count() as u32;
        before == 0 || self.revocations.waited(now) > self.config.suspect_timeout * before
    }

    /// Everything up to here is decided, and this replica has it or waits for a state with it: it
    /// decides slots behind that also while it waits, because others may need them, its own above
    /// all. A peer no longer answers for slots that are in a state.
    fn settled(&self, now: Time) -> Slot {
        let committed = self.log.committed();
        if !self.fetching.in_progress() {
            return committed;
        }
        let alive = self.me.others().iter().filter(|id| self.is_alive(*id, now));
        let ahead = alive.map(|id| self.peers.committed(id)).max();
        ahead.map_or(committed, |ahead| ahead.max(committed))
    }

    /// The first undecided slot of an owner that nothing of this replica's is in progress in.
    fn undecided(&self, owner: ReplicaId, upto: Slot, now: Time) -> Option<Slot> {
        // A vote is for what is kept, and what lies farther ahead is not.
        let upto = upto.min(self.log.far());
        let mine = |slot: Slot| owner == self.me.id() && self.own.is_in_progress(slot);
        let mut slots = self.turns.slots(owner, self.settled(now).next(), upto);
        slots.find(|slot| !mine(*slot) && !self.log.is_decided(*slot))
    }

    /// Slots of the dead that are about to be needed, before they block.
    pub(super) fn revoke_ahead(&mut self, ctx: &mut Context<'_, Self>) {
        let latest = self.own.latest();
        let next = self.turns.ahead(latest, 1);
        if self.recovery.is_some() || !self.revocations.look_ahead(latest, next) {
            return;
        }
        let ahead = self.turns.ahead(latest, REVOKED_AHEAD / 2);
        for owner in ReplicaSet::all(self.me.members()).iter() {
            // At first only what blocks, later what is about to.
            let known = self.leases.of(owner).1 > self.log.committed();
            let upto = if known { ahead } else { latest };
            if self.is_dead(owner, ctx)
                && !self.revocations.has(owner)
                && self.revokes(ctx)
                && let Some(first) = self.undecided(owner, upto, ctx.now())
            {
                self.revoke(owner, first, ctx);
            }
        }
    }

    /// Slots that block now.
    pub(super) fn revoke_blocked(&mut self, ctx: &mut Context<'_, Self>) {
        if self.recovery.is_some() {
            return;
        }
        // The others revoke what a bypassed one has left behind, too.
        let aside = self.bypassed(ctx.now()).contains(self.me.id());
        for owner in ReplicaSet::all(self.me.members()).iter() {
            let mine = owner == self.me.id();
            if self.revocations.has(owner) || (!mine && !self.is_dead(owner, ctx)) {
                continue;
            }
            if (mine && !aside || self.revokes(ctx))
                && let Some(first) = self.undecided(owner, self.own.latest(), ctx.now())
            {
                self.revoke(owner, first, ctx);
            }
        }
    }

    fn revoke(&mut self, owner: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        ctx.mark("revokes slots");
        let last = if owner == self.me.id() {
            Slot(self.own.next().0 - 1)
        } else {
            self.turns
                .ahead(self.own.latest().max(first), REVOKED_AHEAD)
        };
        let last = last.min(Slot(self.log.committed().0 + USED_MAX)).max(first);
        assert!(
            last <= self.log.far(),
            "this replica votes for no slot that it does not keep"
        );
        let range = self.leases.raise(owner, self.me.id(), first, last);
        self.revocations.begin(range, ctx.now());
        let write = self.persist_promise(ctx);
        self.revocations
            .reply_after(write, self.me.id(), range, false);
    }

    pub(super) fn repeat_revocations(&mut self, ctx: &mut Context<'_, Self>) {
        let settled = self.settled(ctx.now());
        for revocation in self.revocations.repeat(settled) {
            let voters = revocation.voters();
            if !voters.contains(self.me.id()) {
                continue;
            }
            let message = revocation.message();
            let bytes = match &message {
                Message::Accept { values, .. } => {
                    let each = values.iter().map(|(_, value)| value.bytes() + 8);
                    overhead(self.me.members()) + each.sum::<usize>()
                }
                _ => 0,
            };
            // Messages sent before may still be queued.
            let waits = |id: &ReplicaId| !voters.contains(*id) && ctx.takes(*id, bytes);
            let to = self.me.others().iter().filter(waits).collect();
            ctx.multicast(to, Lane::Control, &message);
        }
    }

    /// Promise or votes are durable.
    pub(super) fn reply(&mut self, reply: &Reply, ctx: &mut Context<'_, Self>) {
        let (to, range, own) = (reply.to, reply.range, self.me.id());
        if self.leases.of(range.owner).0 > range.ballot {
            return;
        }
        if !reply.is_vote && range.first < self.log.first() {
            // Decided, executed and trimmed while the promise was being written: the member that
            // asked would take what is no longer told for nothing.
            ctx.mark("promise came too late");
            return self.is_trimmed(to, range.owner, ctx);
        }
        let incarnation = self.me.incarnation();
        if reply.is_vote && to == own {
            self.on_voted(own, range, incarnation, ctx);
        } else if reply.is_vote {
            let incarnations = self.incarnations();
            let message = Message::Voted {
                range,
                incarnation,
                incarnations,
            };
            ctx.send(to, Lane::Control, &message);
        } else if to == own {
            let accepted = self.accepted(range);
            self.on_promise(own, range, accepted, ctx);
            if let Some(revocation) = self.revocations.get(range.owner) {
                ctx.multicast(self.me.others(), Lane::Control, &revocation.message());
            }
        } else {
            let accepted = self.accepted(range);
            let each = accepted.iter().map(|(_, _, value)| value.bytes() + 32);
            if !ctx.takes(to, overhead(self.me.members()) + each.sum::<usize>()) {
                // The member that asked asks again.
                return ctx.mark("a promise waits for room");
            }
            ctx.send(to, Lane::Control, &Message::Promise { range, accepted });
        }
    }

    fn accepted(&self, range: Range) -> Vec<(Slot, Ballot, Value)> {
        let held = self.log.iter_from(range.first);
        held.take_while(|(slot, _)| *slot <= range.last)
            .filter(|(slot, _)| self.turns.owner(*slot) == range.owner)
            .map(|(slot, held)| {
                let ballot = if held.decided { DECIDED } else { held.ballot };
                (slot, ballot, held.value.clone())
            })
            .collect()
    }

    pub(super) fn refuse(&self, to: ReplicaId, owner: ReplicaId, ctx: &mut Context<'_, Self>) {
        let (ballot, until) = self.leases.of(owner);
        let message = Message::Refused {
            owner,
            ballot,
            until,
        };
        ctx.send(to, Lane::Control, &message);
    }

    /// A higher ballot was promised: the owner continues behind its slots, who revokes tries again.
    pub(super) fn on_refused(
        &mut self,
        owner: ReplicaId,
        ballot: Ballot,
        until: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if owner.index() >= self.me.members() || ballot == DECIDED {
            return;
        }
        self.leases.observe(owner, ballot);
        if owner == self.me.id() {
            ctx.mark("own slots were revoked");
            self.pass_revoked(until);
        }
        if self.revocations.outbid(owner, ballot) {
            self.revocations.progressed(ctx.now());
        }
    }

    /// Own slots up to here are not this replica's any more.
    fn pass_revoked(&mut self, until: Slot) {
        if until <= self.log.far() && self.own.pass_revoked(until) {
            self.aim_reads();
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        from: ReplicaId,
        range: Range,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_reach(range) || self.recovery.is_some() {
            return ctx.mark("ignored: revocation out of reach");
        }
        if range.first < self.log.first() {
            return self.is_trimmed(from, range.owner, ctx);
        }
        if self.leases.of(range.owner).0 > range.ballot {
            return self.refuse(from, range.owner, ctx);
        }
        let write = self.take_lease(range, ctx);
        self.revocations.reply_after(write, from, range, false);
    }

    /// A member that asks for slots that are not kept any more is told so, and asks for the state.
    fn is_trimmed(&mut self, to: ReplicaId, owner: ReplicaId, ctx: &mut Context<'_, Self>) {
        if to == self.me.id() {
            self.revocations.give_up(owner);
        } else {
            let first = self.log.first();
            ctx.send(to, Lane::Control, &Message::Trimmed { first });
        }
    }

    fn in_reach(&self, range: Range) -> bool {
        range.owner.index() < self.me.members()
            && range.ballot.round > 0
            && range.ballot != DECIDED
            && range.last <= self.log.far()
            && range.last.0 - range.first.0 <= SLOTS_MAX
    }

    fn take_lease(&mut self, range: Range, ctx: &mut Context<'_, Self>) -> PersistId {
        self.leases.take(range);
        self.revocations.outbid(range.owner, range.ballot);
        if range.owner == self.me.id() {
            self.pass_revoked(range.last);
        }
        self.persist_promise(ctx)
    }

    pub(super) fn on_promise(
        &mut self,
        from: ReplicaId,
        range: Range,
        mut accepted: Vec<(Slot, Ballot, Value)>,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.injected(Bug::RevokedToNothing) {
            accepted.clear();
        }
        let majority = self.me.majority();
        let values = match self.revocations.on_promise(from, range, accepted, majority) {
            Promise::Counted => return,
            Promise::Stale => return ctx.mark("ignored: promise of another revocation"),
            Promise::Majority(values) => values,
        };
        self.take_values(range, &values, ctx);
        let write = self.persist_promise(ctx);
        self.revocations
            .reply_after(write, self.me.id(), range, true);
        let message = Message::Accept { range, values };
        ctx.multicast(self.me.others(), Lane::Control, &message);
    }

    /// Accepts the values of a range, and nothing in its other slots.
    fn take_values(&mut self, range: Range, values: &Known, ctx: &mut Context<'_, Self>) {
        for (slot, value) in self.slots_of(range, values) {
            if self.log.wants(slot) && !self.log.is_decided(slot) {
                self.accept(slot, range.ballot, value, ctx);
            }
        }
    }

    /// The slots of a range, as far as they may be kept, with these values or nothing.
    fn slots_of<'a>(
        &self,
        range: Range,
        values: &'a Known,
    ) -> impl Iterator<Item = (Slot, Value)> + use<'a> {
        let mut values = values.iter().peekable();
        let last = range.last.min(self.log.far());
        self.turns
            .slots(range.owner, range.first, last)
            .map(move |slot| {
                while values.next_if(|(at, _)| *at < slot).is_some() {}
                let value = values.next_if(|(at, _)| *at == slot);
                (slot, value.map_or(Value::Noop, |(_, value)| value.clone()))
            })
    }

    pub(super) fn on_accept(
        &mut self,
        from: ReplicaId,
        range: Range,
        values: &Known,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_reach(range) || self.recovery.is_some() {
            return ctx.mark("ignored: revocation out of reach");
        }
        if self.leases.of(range.owner).0 > range.ballot {
            return self.refuse(from, range.owner, ctx);
        }
        self.take_values(range, values, ctx);
        let write = self.take_lease(range, ctx);
        self.revocations.reply_after(write, from, range, true);
    }

    pub(super) fn on_voted(
        &mut self,
        from: ReplicaId,
        range: Range,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        if from != self.me.id() && incarnation != self.peers.incarnation(from) {
            return ctx.mark("ignored: vote of an earlier incarnation");
        }
        let (majority, now) = (self.me.majority(), ctx.now());
        if let Some(values) = self.revocations.on_vote(from, range, majority, now) {
            ctx.mark("slots revoked");
            self.on_learn(range, &values, ctx);
            let message = Message::Learn { range, values };
            ctx.multicast(self.me.others(), Lane::Control, &message);
            self.revocations.look_again();
        }
    }

    pub(super) fn forget_votes(&mut self, of: ReplicaId) {
        if !self.injected(Bug::OldIncarnationCounts) {
            self.revocations.forget_votes(of);
            self.own.forget_votes(of);
        }
    }

    pub(super) fn on_learn(&mut self, range: Range, values: &Known, ctx: &mut Context<'_, Self>) {
        if range.owner.index() >= self.me.members() {
            return;
        }
        for (slot, value) in self.slots_of(range, values) {
            self.decide(slot, value, ctx);
        }
        if range.owner == self.me.id() {
            self.pass_revoked(range.last);
        }
    }
}
