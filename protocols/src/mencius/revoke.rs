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
    message::DECIDED,
    normal::overhead,
    plant::Plant,
    replica::{REVOKED_AHEAD, SLOTS_MAX, USED_MAX},
};
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{
    Context, Incarnation, Lane, PersistId, ReplicaId, Slot, Time,
    parts::{Ballot, Tally},
};

/// A revocation under way.
#[derive(Clone, Debug, Hash)]
pub(super) struct Revocation {
    range: Range,
    tally: Tally,
    found: BTreeMap<Slot, (Ballot, Value)>,
    accepting: bool,
}

/// What is told once promise or votes of a range are durable.
#[derive(Clone, Debug, Hash)]
pub(super) struct Owed {
    pub write: PersistId,
    to: ReplicaId,
    range: Range,
    vote: bool,
}

impl Mencius {
    /// Whether somebody else must decide this owner's slots.
    fn is_dead(&self, owner: ReplicaId, ctx: &Context<'_, Self>) -> bool {
        let now = ctx.now();
        owner != self.id && (!self.is_up(owner, now) || self.bypassed(now).contains(owner))
    }

    /// Whether a peer is heard, and uses or skips its slots.
    pub(super) fn is_up(&self, id: ReplicaId, now: Time) -> bool {
        self.alive(id, now) && !self.peers[id.index()].forgot && !self.lags(id)
    }

    /// Whether an owner is so far behind that it can neither use nor skip the slots that are needed
    /// next. It may be alive and fetch a state for minutes: nobody waits for that.
    fn lags(&self, owner: ReplicaId) -> bool {
        let peer = &self.peers[owner.index()];
        peer.told && peer.committed.0 + USED_MAX < self.latest.0
    }

    /// Of those that are there, the first revokes; the others when it does not, and last one that is
    /// bypassed, whose word takes long.
    fn revokes(&self, ctx: &Context<'_, Self>) -> bool {
        let now = ctx.now();
        let last = self.bypassed(now).contains(self.id);
        let before = (self.others.iter())
            .filter(|id| (last || *id < self.id) && !self.is_dead(*id, ctx))
            .count() as u32;
        let waited = now.since(self.progress_at.max(self.revoked_at));
        before == 0 || waited > self.config.suspect * before
    }

    /// Everything up to here is decided, and this replica has it or waits for a state with it: it
    /// decides slots behind that also while it waits, because others may need them, its own above
    /// all. A peer no longer answers for slots that are in a state.
    fn settled(&self, now: Time) -> Slot {
        let ahead = self.others.iter().filter(|id| self.alive(*id, now));
        let ahead = ahead.map(|id| self.peers[id.index()].committed).max();
        ahead
            .filter(|_| self.fetching.under_way())
            .map_or(self.committed, |ahead| ahead.max(self.committed))
    }

    /// The first undecided slot of an owner that nothing of this replica's is under way in.
    fn undecided(&self, owner: ReplicaId, upto: Slot, now: Time) -> Option<Slot> {
        // A vote is for what is kept, and what lies farther ahead is not.
        let upto = upto.min(Slot(self.committed.0 + SLOTS_MAX));
        let mut slot = self.slot_of(owner, self.settled(now));
        while slot <= upto {
            let mine = owner == self.id && self.is_under_way(slot);
            if !mine && !self.is_decided(slot) {
                return Some(slot);
            }
            slot = self.slot_of(owner, slot);
        }
        None
    }

    /// Whether an own slot is not used yet, or a majority may still accept what was suggested there.
    /// Those who promised it to somebody never will, and who revoked it may have given up.
    fn is_under_way(&self, own: Slot) -> bool {
        own >= self.next_own || (own > self.revoked_until && self.outstanding.contains_key(&own))
    }

    /// Slots of the dead that are about to be needed, before they block.
    pub(super) fn revoke_ahead(&mut self, ctx: &mut Context<'_, Self>) {
        if self.recovery.is_some() || self.latest <= self.ahead_looked {
            return;
        }
        self.ahead_looked = Slot(self.latest.0 + self.members as u64);
        let ahead = Slot(self.latest.0 + self.members as u64 * REVOKED_AHEAD / 2);
        for index in 0..self.members {
            let owner = ReplicaId(index as u16);
            // At first only what blocks, later what is about to.
            let known = self.promised.leases[index].1 > self.committed;
            let upto = if known { ahead } else { self.latest };
            if self.is_dead(owner, ctx)
                && !self.revoking.contains_key(&owner)
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
        let aside = self.bypassed(ctx.now()).contains(self.id);
        for index in 0..self.members {
            let owner = ReplicaId(index as u16);
            let mine = owner == self.id;
            if self.revoking.contains_key(&owner) || (!mine && !self.is_dead(owner, ctx)) {
                continue;
            }
            if (mine && !aside || self.revokes(ctx))
                && let Some(first) = self.undecided(owner, self.latest, ctx.now())
            {
                self.revoke(owner, first, ctx);
            }
        }
    }

    fn revoke(&mut self, owner: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        ctx.mark("revokes slots");
        let turns = self.members as u64 * REVOKED_AHEAD;
        let last = if owner == self.id {
            Slot(self.next_own.0 - 1)
        } else {
            Slot(self.latest.0.max(first.0) + turns)
        };
        let last = last.min(Slot(self.committed.0 + USED_MAX)).max(first);
        assert!(
            last.0 <= self.committed.0 + SLOTS_MAX,
            "this replica votes for no slot that it does not keep"
        );
        let lease = &mut self.promised.leases[owner.index()];
        let ballot = lease.0.max(self.ballots_seen[owner.index()]).next(self.id);
        *lease = (ballot, lease.1.max(last));
        let range = Range {
            owner,
            ballot,
            first,
            last,
        };
        let revocation = Revocation {
            range,
            tally: Tally::new(),
            found: BTreeMap::new(),
            accepting: false,
        };
        self.revoked_at = ctx.now();
        self.revoking.insert(owner, revocation);
        let write = self.persist_promise(ctx);
        self.owe(write, self.id, range, false);
    }

    pub(super) fn repeat_revocations(&mut self, ctx: &mut Context<'_, Self>) {
        let settled = self.settled(ctx.now());
        // What was decided meanwhile may be trimmed where this replica asks: it asks anew, for less.
        self.revoking
            .retain(|_, revocation| revocation.range.first > settled);
        for revocation in self.revoking.values() {
            let voters = revocation.tally.voters();
            if !voters.contains(self.id) {
                continue;
            }
            let message = Self::question(revocation);
            let bytes = match &message {
                Message::Accept { values, .. } => {
                    let each = values.iter().map(|(_, value)| value.bytes() + 8);
                    overhead(self.members) + each.sum::<usize>()
                }
                _ => 0,
            };
            // What was sent before may still be queued.
            let waits = |id: &ReplicaId| !voters.contains(*id) && ctx.takes(*id, bytes);
            let to = self.others.iter().filter(waits).collect();
            ctx.multicast(to, Lane::Control, &message);
        }
    }

    fn question(revocation: &Revocation) -> Message {
        let range = revocation.range;
        if !revocation.accepting {
            return Message::Prepare(range);
        }
        let values = Self::values(revocation);
        Message::Accept { range, values }
    }

    fn values(revocation: &Revocation) -> Known {
        let found = revocation.found.iter();
        let some = found.filter(|(_, (_, value))| *value != Value::Noop);
        some.map(|(slot, (_, value))| (*slot, value.clone()))
            .collect()
    }

    fn owe(&mut self, write: PersistId, to: ReplicaId, range: Range, vote: bool) {
        let owed = Owed {
            write,
            to,
            range,
            vote,
        };
        self.owed.push_back(owed);
    }

    /// Promise or votes are durable.
    pub(super) fn pay(&mut self, owed: &Owed, ctx: &mut Context<'_, Self>) {
        let range = owed.range;
        let lease = self.promised.leases[range.owner.index()].0;
        if lease > range.ballot {
            return;
        }
        if !owed.vote && range.first < self.log.first() {
            // Decided, executed and forgotten while the promise was being written: whoever asked
            // would take what is no longer told for nothing.
            ctx.mark("promise came too late");
            return self.is_trimmed(owed.to, range.owner, ctx);
        }
        match (owed.to == self.id, owed.vote) {
            (true, false) => {
                let mine = self.accepted(range);
                self.on_promise(self.id, range, mine, ctx);
                if let Some(revocation) = self.revoking.get(&range.owner) {
                    let message = Self::question(revocation);
                    ctx.multicast(self.others, Lane::Control, &message);
                }
            }
            (true, true) => self.on_voted(self.id, range, self.incarnation, ctx),
            (false, false) => {
                let accepted = self.accepted(range);
                let each = accepted.iter().map(|(_, _, value)| value.bytes() + 32);
                if !ctx.takes(owed.to, overhead(self.members) + each.sum::<usize>()) {
                    // Whoever asked asks again.
                    return ctx.mark("a promise waits for room");
                }
                let message = Message::Promise { range, accepted };
                ctx.send(owed.to, Lane::Control, &message);
            }
            (false, true) => {
                let message = Message::Voted {
                    range,
                    incarnation: self.incarnation,
                    lives: self.lives(),
                };
                ctx.send(owed.to, Lane::Control, &message);
            }
        }
    }

    fn accepted(&self, range: Range) -> Vec<(Slot, Ballot, Value)> {
        let held = self.log.iter_from(range.first);
        held.take_while(|(slot, _)| *slot <= range.last)
            .filter(|(slot, _)| self.owner(*slot) == range.owner)
            .map(|(slot, held)| {
                let ballot = if held.decided { DECIDED } else { held.ballot };
                (slot, ballot, held.value.clone())
            })
            .collect()
    }

    pub(super) fn refuse(&self, to: ReplicaId, owner: ReplicaId, ctx: &mut Context<'_, Self>) {
        let (ballot, until) = self.promised.leases[owner.index()];
        let message = Message::Refused {
            owner,
            ballot,
            until,
        };
        ctx.send(to, Lane::Control, &message);
    }

    /// A higher ballot was promised: the owner goes on behind its slots, who revokes tries again.
    pub(super) fn on_refused(
        &mut self,
        owner: ReplicaId,
        ballot: Ballot,
        until: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if owner.index() >= self.members || ballot == DECIDED {
            return;
        }
        let seen = &mut self.ballots_seen[owner.index()];
        *seen = (*seen).max(ballot);
        if owner == self.id {
            ctx.mark("own slots were revoked");
            self.leave_revoked(until);
        }
        if let Some(revocation) = self.revoking.get(&owner)
            && revocation.range.ballot < ballot
        {
            self.revoking.remove(&owner);
            self.revoked_at = ctx.now();
        }
    }

    /// Own slots up to here are not this replica's any more.
    fn leave_revoked(&mut self, until: Slot) {
        if until.0 > self.committed.0 + SLOTS_MAX {
            return;
        }
        self.revoked_until = self.revoked_until.max(until);
        if until >= self.next_own {
            self.next_own = self.slot_of(self.id, until);
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
        let lease = self.promised.leases[range.owner.index()];
        if lease.0 > range.ballot {
            return self.refuse(from, range.owner, ctx);
        }
        let write = self.take_lease(range, ctx);
        self.owe(write, from, range, false);
    }

    /// Whoever asks for slots that are not kept any more is told so, and asks for the state.
    fn is_trimmed(&mut self, to: ReplicaId, owner: ReplicaId, ctx: &mut Context<'_, Self>) {
        if to == self.id {
            self.revoking.remove(&owner);
        } else {
            let first = self.log.first();
            ctx.send(to, Lane::Control, &Message::Trimmed { first });
        }
    }

    fn in_reach(&self, range: Range) -> bool {
        range.owner.index() < self.members
            && range.ballot.round > 0
            && range.ballot != DECIDED
            && range.last.0 <= self.committed.0 + SLOTS_MAX
            && range.last.0 - range.first.0 <= SLOTS_MAX
    }

    fn take_lease(&mut self, range: Range, ctx: &mut Context<'_, Self>) -> PersistId {
        let lease = &mut self.promised.leases[range.owner.index()];
        *lease = (range.ballot, lease.1.max(range.last));
        let mine = self.revoking.get(&range.owner);
        if mine.is_some_and(|mine| mine.range.ballot < range.ballot) {
            self.revoking.remove(&range.owner);
        }
        if range.owner == self.id {
            self.leave_revoked(range.last);
        }
        self.persist_promise(ctx)
    }

    pub(super) fn on_promise(
        &mut self,
        from: ReplicaId,
        range: Range,
        accepted: Vec<(Slot, Ballot, Value)>,
        ctx: &mut Context<'_, Self>,
    ) {
        let majority = self.majority;
        let Some(revocation) = self.revoking.get_mut(&range.owner) else {
            return;
        };
        if revocation.range != range || revocation.accepting {
            return ctx.mark("ignored: promise of another revocation");
        }
        let nothing = self.config.planted.is(Plant::RevokedToNothing);
        for (slot, ballot, value) in accepted.into_iter().filter(|_| !nothing) {
            let known = revocation.found.get(&slot);
            if known.is_none_or(|(known, _)| *known < ballot) {
                revocation.found.insert(slot, (ballot, value));
            }
        }
        revocation.tally.vote(from);
        if !revocation.tally.reached(majority) {
            return;
        }
        revocation.accepting = true;
        revocation.tally = Tally::new();
        let values = Self::values(revocation);
        self.take_values(range, &values, ctx);
        let write = self.persist_promise(ctx);
        self.owe(write, self.id, range, true);
        ctx.multicast(
            self.others,
            Lane::Control,
            &Message::Accept { range, values },
        );
    }

    /// Accepts the values of a range, and nothing in its other slots.
    fn take_values(&mut self, range: Range, values: &Known, ctx: &mut Context<'_, Self>) {
        let mut values = values.iter().peekable();
        let mut slot = self.slot_of(range.owner, range.first.previous());
        while slot <= range.last {
            while values.peek().is_some_and(|(at, _)| *at < slot) {
                values.next();
            }
            let value = match values.peek() {
                Some((at, value)) if *at == slot => value.clone(),
                _ => Value::Noop,
            };
            if self.wanted(slot) && !self.is_decided(slot) {
                self.accept(slot, range.ballot, value, ctx);
            }
            slot = self.slot_of(range.owner, slot);
        }
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
        let lease = self.promised.leases[range.owner.index()];
        if lease.0 > range.ballot {
            return self.refuse(from, range.owner, ctx);
        }
        self.take_values(range, values, ctx);
        let write = self.take_lease(range, ctx);
        self.owe(write, from, range, true);
    }

    pub(super) fn on_voted(
        &mut self,
        from: ReplicaId,
        range: Range,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        if from != self.id && incarnation != self.peers[from.index()].incarnation {
            return ctx.mark("ignored: vote of an earlier life");
        }
        let majority = self.majority;
        let Some(revocation) = self.revoking.get_mut(&range.owner) else {
            return;
        };
        if revocation.range != range || !revocation.accepting {
            return;
        }
        revocation.tally.vote(from);
        if revocation.tally.reached(majority) {
            let values = Self::values(revocation);
            self.revoking.remove(&range.owner);
            self.revoked_at = ctx.now();
            ctx.mark("slots revoked");
            self.on_learn(range, &values, ctx);
            ctx.multicast(
                self.others,
                Lane::Control,
                &Message::Learn { range, values },
            );
            self.ahead_looked = Slot(0);
        }
    }

    pub(super) fn forget_votes(&mut self, of: ReplicaId) {
        if self.planted(Plant::OldLifeCounts) {
            return;
        }
        for revocation in self.revoking.values_mut() {
            if revocation.accepting {
                revocation.tally.forget(of);
            }
        }
        for own in self.outstanding.values_mut() {
            own.tally.forget(of);
        }
    }

    pub(super) fn on_learn(&mut self, range: Range, values: &Known, ctx: &mut Context<'_, Self>) {
        if range.owner.index() >= self.members {
            return;
        }
        let far = Slot(self.committed.0 + SLOTS_MAX);
        let mut values = values.iter().peekable();
        let mut slot = self.slot_of(range.owner, range.first.previous());
        while slot <= range.last.min(far) {
            while values.peek().is_some_and(|(at, _)| *at < slot) {
                values.next();
            }
            let value = match values.peek() {
                Some((at, value)) if *at == slot => value.clone(),
                _ => Value::Noop,
            };
            self.decide(slot, value, ctx);
            slot = self.slot_of(range.owner, slot);
        }
        if range.owner == self.id {
            self.leave_revoked(range.last);
        }
    }
}
