//! The normal case: suggestions, votes, SKIP and LEARN, and what happens when one is lost.
//!
//! ```text
//!   on_idle ──► suggest what waits ──► SKIP own slots before what others suggested ──► Said
//!   Said ──► accept its suggestions ──► durable ──► votes, with the next Said
//! ```

use super::{
    Known, Mencius, Message, Said, Value,
    bug::Bug,
    log::SLOTS_MAX,
    message::overhead,
    replica::{RESERVED_TURNS, Timer, USED_MAX},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Context, Durability, Lane, ReplicaId, ReplicaSet, Slot, parts::Ballot,
};

impl Mencius {
    /// Everything that this turn brought goes out.
    pub(super) fn flush(&mut self, ctx: &mut Context<'_, Self>) {
        let mut said = Said::default();
        self.pass_decided();
        self.send_forward(ctx);
        if self.recovery.is_none() {
            self.suggest(&mut said, ctx);
            said.skip = self.skip(ctx);
        }
        self.revoke_ahead(ctx);
        let Some(to_all) = self.outbox.take(&mut said) else {
            return;
        };
        let bytes: usize = said.entries.iter().map(|(_, value)| value.bytes()).sum();
        let overhead = overhead(self.me.members());
        let room = |id: &ReplicaId| ctx.takes(*id, bytes + overhead);
        let reached: ReplicaSet = self.me.others().iter().filter(room).collect();
        // Last, because suggesting, skipping and revoking change where this replica stands.
        let said = Said {
            skip: said.skip,
            entries: said.entries,
            votes: said.votes,
            learnt: said.learnt,
            ..self.standing()
        };
        let narrow = |id: &ReplicaId| !reached.contains(*id) && ctx.takes(*id, overhead);
        let narrow: ReplicaSet = self.me.others().iter().filter(narrow).collect();
        if !narrow.is_empty() {
            // Suggestions are repeated when there is room. Votes and decisions of other slots go
            // now: they are small, and no replica would repeat them before a timer asks for them.
            ctx.mark("suggestions wait for room");
            let small = Said {
                entries: Vec::new(),
                ..said.clone()
            };
            self.say(small, narrow, to_all, ctx);
        }
        self.say(said, reached, to_all, ctx);
        self.arm_coordination(ctx);
    }

    /// Sends all of this to those of `reached` whom it concerns, in as many messages as it takes.
    fn say(
        &self,
        mut said: Said,
        reached: ReplicaSet,
        mut to_all: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        loop {
            let rest = said.split_off(self.config.slots_max);
            to_all |= said.concerns_all();
            let owners = said.votes.iter().map(|slot| self.turns.owner(*slot));
            let to = owners.filter(|owner| reached.contains(*owner));
            let to = if to_all { reached } else { to.collect() };
            ctx.multicast(to, Lane::Control, &Message::Said(said));
            let Some(rest) = rest else { break };
            (said, to_all) = (rest, false);
        }
    }

    /// Where this replica stands, and nothing else.
    fn standing(&self) -> Said {
        Said {
            incarnation: self.me.incarnation(),
            incarnations: self.incarnations(),
            state_lost: self.recovery.is_some(),
            latest: self.own.latest(),
            committed: self.log.committed(),
            ..Said::default()
        }
    }

    fn suggest(&mut self, said: &mut Said, ctx: &mut Context<'_, Self>) {
        let mut bytes = 0;
        while bytes < self.config.batch_bytes_max
            && self.own.len() < self.config.window
            && self.may_use(self.own.next(), ctx)
        {
            // Nothing, for reads, is told apart from what others decide where an owner is silent.
            let nothing = self.reads.is_marker_wanted().then(Bytes::new);
            let Some(batch) = self.relay.pop().or(nothing) else {
                break;
            };
            let time = self.log.next_time(ctx.clock().now);
            let value = Value::Command { time, batch };
            self.reads.drop_marker();
            bytes += value.bytes();
            let slot = self.own.use_next(&self.log);
            self.own.suggest(slot, value.clone());
            self.accept(slot, Ballot::default(), value.clone(), ctx);
            said.entries.push((slot, value));
            if self.me.durability() == Durability::Memory {
                self.vote(self.me.id(), slot, ctx);
            }
        }
    }

    /// Whether an own slot may be used: it is near, and a restart would not use it again. Others see
    /// where this ends, and decide what lies beyond (`is_up`).
    fn may_use(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) -> bool {
        if self.turns.ahead(slot, RESERVED_TURNS / 2) > self.leases.reserved() {
            self.leases.reserve(self.turns.ahead(slot, RESERVED_TURNS));
            self.persist_promise(ctx);
        }
        self.leases.is_reserved(slot) && slot.0 <= self.log.committed().0 + USED_MAX
    }

    /// Own slots before what was suggested hold nothing.
    fn skip(&mut self, ctx: &mut Context<'_, Self>) -> Option<(Slot, Slot)> {
        let (first, latest) = (self.own.next(), self.own.latest());
        let mut last = None;
        while self.own.next() < latest && self.may_use(self.own.next(), ctx) {
            let slot = self.own.use_next(&self.log);
            self.decide(slot, Value::Noop, ctx);
            last = Some(slot);
        }
        if last.is_some() {
            ctx.mark("skips own slots");
        }
        let first = match self.own.lowest() {
            Some(lowest) if self.injected(Bug::SkipOverSuggested) => lowest,
            _ => first,
        };
        last.map(|last| (first, last))
    }

    /// A vote for an own slot in ballot 0.
    pub(super) fn vote(&mut self, from: ReplicaId, slot: Slot, ctx: &mut Context<'_, Self>) {
        let majority = self.me.majority() - usize::from(self.injected(Bug::MinorityDecides));
        let value = self.own.vote(from, slot, majority);
        if let Some(value) = value.filter(|_| !self.log.is_decided(slot)) {
            self.outbox.learn(slot);
            self.reads.confirm(slot);
            self.decide(slot, value, ctx);
            self.answer_reads(ctx);
        }
    }

    /// Tells the owner of a slot that its suggestion is accepted here.
    pub(super) fn vote_is_due(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let owner = self.turns.owner(slot);
        if owner == self.me.id() {
            self.vote(owner, slot, ctx);
        } else {
            self.outbox.vote(slot);
        }
    }

    pub(super) fn on_said(&mut self, from: ReplicaId, said: Said, ctx: &mut Context<'_, Self>) {
        self.meet(from, said.incarnation, ctx);
        self.meet_all(&said.incarnations, ctx);
        if said.incarnation != self.peers.incarnation(from) {
            return ctx.mark("ignored: said in an earlier incarnation");
        }
        let is_first = self.peers.on_report(from, &said);
        if is_first && self.peers.committed(from) > self.log.committed() {
            // Decisions from before there was a link come no other way.
            self.fetch(from, ctx);
        }
        let far = self.log.far();
        self.own.learn_latest(said.latest.min(far));
        let mut refused = false;
        for (slot, value) in said.entries {
            self.own.learn_latest(slot.min(far));
            refused |= self.on_suggestion(from, slot, value, ctx);
        }
        if refused {
            self.refuse(from, from, ctx);
        }
        if let Some((first, last)) = said.skip {
            let first = first.max(self.log.committed().next());
            for slot in self.turns.slots(from, first, last.min(far)) {
                self.decide(slot, Value::Noop, ctx);
            }
        }
        for slot in said.learnt {
            if self.turns.owner(slot) == from
                && let Some(held) = self.log.get(slot).filter(|_| self.log.wants(slot))
            {
                // The ballot of the acceptance here does not matter: every higher ballot proposes
                // what a majority accepted in ballot 0, unless this one lost to it.
                if held.ballot == Ballot::default() {
                    let value = held.value.clone();
                    self.decide(slot, value, ctx);
                }
            }
        }
        if self.recovery.is_none() {
            for slot in said.votes {
                self.vote(from, slot, ctx);
            }
        }
    }

    /// A suggestion of a slot's owner. True when it is refused.
    fn on_suggestion(
        &mut self,
        from: ReplicaId,
        slot: Slot,
        value: Value,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if self.turns.owner(slot) != from || !self.log.wants(slot) || self.recovery.is_some() {
            return false;
        }
        let promised = self.leases.covers(from, slot) && !self.injected(Bug::PromiseIgnored);
        if let Some(held) = self.log.get(slot) {
            if held.ballot != Ballot::default() || held.value != value {
                return promised;
            }
            if held.durable {
                self.vote_is_due(slot, ctx);
            }
            return false;
        }
        if promised {
            return true;
        }
        self.accept(slot, Ballot::default(), value, ctx);
        if self.me.durability() == Durability::Memory || self.injected(Bug::VoteNotDurable) {
            self.vote_is_due(slot, ctx);
        }
        false
    }

    /// Whether something is outstanding that will not come by itself when a message was lost.
    fn wants_coordination(&self) -> bool {
        let committed = self.log.committed();
        committed < self.own.latest()
            || !self.own.is_empty()
            || !self.revocations.is_empty()
            || self.peers.are_ahead(committed)
    }

    pub(super) fn arm_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.coordination.is_armed() && self.wants_coordination() {
            let longer = self.coordination.arm(self.log.committed());
            let delay = self.config.coordination.saturating_mul(longer);
            ctx.set_timer(Timer::Coordination, delay.min(self.config.suspect_timeout));
        }
    }

    /// Nothing moved for a while: what is missing is asked for, own suggestions are repeated.
    pub(super) fn on_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        self.coordination.fired();
        if self.coordination.moved(self.log.committed()) {
            self.coordination.reset();
        } else {
            self.coordination.try_again();
            self.repeat(ctx);
        }
        self.arm_coordination(ctx);
    }

    fn repeat(&mut self, ctx: &mut Context<'_, Self>) {
        let committed = self.log.committed();
        let others = self.me.others();
        for id in others.iter().filter(|id| self.own.lacks_vote_of(*id)) {
            self.send_own(id, committed.next(), ctx);
        }
        if committed < self.own.latest() || self.peers.are_ahead(committed) {
            let owner = self.turns.owner(committed.next());
            if owner != self.me.id() {
                self.fetch(owner, ctx);
            }
            let further = |id: &ReplicaId| *id != owner && self.peers.committed(*id) > committed;
            let donors: Vec<ReplicaId> = others.iter().filter(further).collect();
            let index = self.coordination.next_source(donors.len());
            if let Some(donor) = donors.get(index) {
                self.fetch(*donor, ctx);
            }
        }
        self.repeat_revocations(ctx);
        self.revoke_blocked(ctx);
        self.outbox.want();
    }

    /// Asks what is decided behind the commit point.
    fn fetch(&self, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let first = self.log.committed().next();
        ctx.send(from, Lane::Control, &Message::Fetch { first });
    }

    /// Own suggestions that are not decided, again, and where this replica stands.
    fn send_own(&self, to: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        let (overhead, bytes_max) = (overhead(self.me.members()), self.config.batch_bytes_max);
        let (entries, bytes) = self.own.suggested_from(first, overhead, bytes_max);
        if !ctx.takes(to, bytes) {
            return ctx.mark("suggestions wait for room");
        }
        if !entries.is_empty() {
            ctx.mark("suggestions sent again");
        }
        let said = Said {
            entries,
            ..self.standing()
        };
        ctx.send(to, Lane::Control, &Message::Said(said));
    }

    pub(super) fn on_fetch(&mut self, to: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        if first < self.log.first() {
            let first = self.log.first();
            return ctx.send(to, Lane::Control, &Message::Trimmed { first });
        }
        // The member that asks waits for unused own slots: they are skipped.
        let committed = self.log.committed();
        if first.0 <= committed.0 + SLOTS_MAX / 4 {
            self.own.learn_latest(first);
        }
        let (overhead, bytes_max) = (overhead(self.me.members()), self.config.batch_bytes_max);
        let (values, bytes) = self.log.decided_from(first, overhead, bytes_max);
        if !ctx.takes(to, bytes) {
            return ctx.mark("entries wait for room");
        }
        if !values.is_empty() {
            ctx.send(to, Lane::Control, &Message::Known { committed, values });
        }
        if self.recovery.is_none() && self.own.highest().is_some_and(|slot| slot >= first) {
            self.send_own(to, first, ctx);
        }
    }

    pub(super) fn on_known(
        &mut self,
        from: ReplicaId,
        committed: Slot,
        values: Known,
        ctx: &mut Context<'_, Self>,
    ) {
        let before = self.log.committed();
        for (slot, value) in values {
            self.decide(slot, value, ctx);
        }
        // The sender may have lost its state since: only `Said`, which has the incarnation, reports
        // its commit point.
        if self.log.committed() > before && self.log.committed() < committed {
            self.fetch(from, ctx);
        }
    }
}
