//! The normal case: suggestions, votes, SKIP and LEARN, and what happens when one is lost.
//!
//! ```text
//!   on_idle ──► suggest what waits ──► SKIP own slots before what others suggested ──► Said
//!   Said ──► accept its suggestions ──► durable ──► votes, with the next Said
//! ```

use super::{
    Known, Mencius, Message, Said, Value,
    plant::Plant,
    replica::{OwnSlot, RESERVED_TURNS, SLOTS_MAX, USED_MAX},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, CommandTime, Context, Durability, Incarnation, Lane, ReplicaId, ReplicaSet, Slot,
    parts::{Ballot, Tally},
};

/// More than a message takes besides its values, with so many members.
pub(super) const fn overhead(members: usize) -> usize {
    256 + 8 * members + 16 * 1024
}

impl Mencius {
    /// Everything that this turn brought goes out.
    pub(super) fn flush(&mut self, ctx: &mut Context<'_, Self>) {
        let mut said = Said::default();
        self.leave_decided();
        self.send_forward(ctx);
        if self.recovery.is_none() {
            self.suggest(&mut said, ctx);
            said.skip = self.skip(ctx);
        }
        self.revoke_ahead(ctx);
        said.learnt = core::mem::take(&mut self.learnt);
        said.votes = core::mem::take(&mut self.votes_due);
        if !self.said_due && said.is_empty() {
            return;
        }
        let to_all = core::mem::take(&mut self.said_due);
        let bytes: usize = said.entries.iter().map(|(_, value)| value.bytes()).sum();
        let overhead = overhead(self.members);
        let room = |id: &ReplicaId| ctx.takes(*id, bytes + overhead);
        let reached: ReplicaSet = self.others.iter().filter(room).collect();
        // Last, because suggesting, skipping and revoking change where this replica stands.
        let said = Said {
            skip: said.skip,
            entries: said.entries,
            votes: said.votes,
            learnt: said.learnt,
            ..self.standing()
        };
        let narrow = |id: &ReplicaId| !reached.contains(*id) && ctx.takes(*id, overhead);
        let narrow: ReplicaSet = self.others.iter().filter(narrow).collect();
        if !narrow.is_empty() {
            // Suggestions are repeated when there is room. Votes and decisions of other slots go
            // now: they are small, and nobody would repeat them before a timer asks for them.
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
            let owners = said.votes.iter().map(|slot| self.owner(*slot));
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
            incarnation: self.incarnation,
            lives: self.lives(),
            forgot: self.recovery.is_some(),
            latest: self.latest.max(self.wants_latest()),
            committed: self.committed,
            ..Said::default()
        }
    }

    fn suggest(&mut self, said: &mut Said, ctx: &mut Context<'_, Self>) {
        let mut bytes = 0;
        while bytes < self.config.batch_bytes_max
            && self.outstanding.len() < self.config.window
            && self.may_use(self.next_own, ctx)
        {
            // Nothing, for reads, is told apart from what others decide where an owner is silent.
            let nothing = self.marker_wanted.then(Bytes::new);
            let Some(batch) = self.queue.pop().or(nothing) else {
                break;
            };
            let time = CommandTime(ctx.clock().now).max(self.time_seen);
            let value = Value::Command { time, batch };
            self.marker_wanted = false;
            let slot = self.next_own;
            bytes += value.bytes();
            self.use_own();
            self.latest = self.latest.max(slot);
            let own = OwnSlot {
                tally: Tally::new(),
                value: value.clone(),
            };
            self.outstanding.insert(slot, own);
            self.accept(slot, Ballot::default(), value.clone(), ctx);
            said.entries.push((slot, value));
            if self.durability == Durability::Memory {
                self.vote(self.id, slot, ctx);
            }
        }
    }

    /// Whether an own slot may be used: it is near, and a restart would not use it again. Others see
    /// where this ends, and decide what lies beyond (`lags`).
    fn may_use(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) -> bool {
        let turn = self.members as u64;
        if slot.0 + turn * RESERVED_TURNS / 2 > self.promised.reserved.0 {
            self.promised.reserved = Slot(slot.0 + turn * RESERVED_TURNS);
            self.persist_promise(ctx);
        }
        slot <= self.reserved_durable && slot.0 <= self.committed.0 + USED_MAX
    }

    /// Own slots before what was suggested hold nothing.
    fn skip(&mut self, ctx: &mut Context<'_, Self>) -> Option<(Slot, Slot)> {
        let (first, latest) = (self.next_own, self.latest);
        let mut last = None;
        while self.next_own < latest && self.may_use(self.next_own, ctx) {
            let slot = self.next_own;
            self.use_own();
            self.decide(slot, Value::Noop, ctx);
            last = Some(slot);
        }
        if last.is_some() {
            ctx.mark("skips own slots");
        }
        let lowest = self.outstanding.keys().next().copied();
        let first = match lowest {
            Some(lowest) if self.planted(Plant::SkipOverSuggested) => lowest,
            _ => first,
        };
        last.map(|last| (first, last))
    }

    pub(super) fn lives(&self) -> Vec<Incarnation> {
        let mut lives: Vec<Incarnation> = self.peers.iter().map(|it| it.incarnation).collect();
        lives[self.id.index()] = self.incarnation;
        lives
    }

    /// What another knows of everybody's lives counts here, too: see `recovery.rs`.
    pub(super) fn meet_all(&mut self, lives: &[Incarnation], ctx: &mut Context<'_, Self>) {
        for (index, life) in lives.iter().enumerate().take(self.members) {
            let id = ReplicaId(index as u16);
            if id != self.id {
                self.meet(id, *life, ctx);
            }
        }
    }

    /// A vote for an own slot in ballot 0.
    pub(super) fn vote(&mut self, from: ReplicaId, slot: Slot, ctx: &mut Context<'_, Self>) {
        let majority = self.majority - usize::from(self.planted(Plant::MinorityDecides));
        let Some(own) = self.outstanding.get_mut(&slot) else {
            return;
        };
        own.tally.vote(from);
        let value = own.tally.reached(majority).then(|| own.value.clone());
        if let Some(value) = value.filter(|_| !self.is_decided(slot)) {
            self.learnt.push(slot);
            self.reads.confirm(slot);
            self.decide(slot, value, ctx);
            self.answer_reads(ctx);
        }
    }

    /// Tells the owner of a slot that its suggestion is accepted here.
    pub(super) fn vote_is_due(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let owner = self.owner(slot);
        if owner == self.id {
            self.vote(owner, slot, ctx);
        } else {
            self.votes_due.push(slot);
        }
    }

    pub(super) fn on_said(&mut self, from: ReplicaId, said: Said, ctx: &mut Context<'_, Self>) {
        self.meet(from, said.incarnation, ctx);
        self.meet_all(&said.lives, ctx);
        let peer = &mut self.peers[from.index()];
        if said.incarnation != peer.incarnation {
            return ctx.mark("ignored: said in an earlier life");
        }
        peer.told = true;
        peer.forgot = said.forgot;
        peer.committed = peer.committed.max(said.committed);
        let is_new = core::mem::take(&mut peer.is_new);
        if is_new && peer.committed > self.committed {
            // Decisions from before there was a link come no other way.
            let first = self.committed.next();
            ctx.send(from, Lane::Control, &Message::Fetch { first });
        }
        let far = Slot(self.committed.0 + SLOTS_MAX);
        self.latest = self.latest.max(said.latest.min(far));
        let mut refused = false;
        for (slot, value) in said.entries {
            self.latest = self.latest.max(slot.min(far));
            refused |= self.on_suggestion(from, slot, value, ctx);
        }
        if refused {
            self.refuse(from, from, ctx);
        }
        if let Some((first, last)) = said.skip {
            let after = Slot(first.0.saturating_sub(1)).max(self.committed);
            let mut slot = self.slot_of(from, after);
            while slot <= last.min(far) {
                self.decide(slot, Value::Noop, ctx);
                slot = self.slot_of(from, slot);
            }
        }
        for slot in said.learnt {
            if self.owner(slot) == from
                && let Some(held) = self.log.get(slot).filter(|_| self.wanted(slot))
            {
                // Whatever ballot it was accepted in here: what a majority accepted in ballot 0 is
                // what every higher ballot proposes, unless this one lost to it.
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
        if self.owner(slot) != from || !self.wanted(slot) || self.recovery.is_some() {
            return false;
        }
        let (ballot, mut until) = self.promised.leases[from.index()];
        if self.planted(Plant::PromiseIgnored) {
            until = Slot(0);
        }
        if let Some(held) = self.log.get(slot) {
            if held.ballot == Ballot::default() && held.value == value {
                if held.durable {
                    self.vote_is_due(slot, ctx);
                }
                return false;
            }
            return slot <= until && ballot.round > 0;
        }
        if slot <= until && ballot.round > 0 {
            return true;
        }
        self.accept(slot, Ballot::default(), value, ctx);
        if self.durability == Durability::Memory || self.planted(Plant::VoteNotDurable) {
            self.vote_is_due(slot, ctx);
        }
        false
    }

    fn blocked(&self) -> bool {
        self.committed < self.latest || !self.outstanding.is_empty() || !self.revoking.is_empty()
    }

    pub(super) fn arm_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        let lacks = self
            .peers
            .iter()
            .any(|peer| peer.committed > self.committed);
        if !self.coordination_armed && (self.blocked() || lacks) {
            self.coordination_armed = true;
            self.coordination_saw = self.committed;
            let tries = self.coordination_tries.min(4);
            let delay = self.config.coordination.saturating_mul(1 << tries);
            ctx.set_timer(super::Timer::Coordination, delay.min(self.config.suspect));
        }
    }

    /// Nothing moved for a while: what is missing is asked for, own suggestions are repeated.
    pub(super) fn on_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        self.coordination_armed = false;
        if self.committed != self.coordination_saw {
            self.coordination_tries = 0;
        } else {
            self.coordination_tries += 1;
            self.repeat(ctx);
        }
        self.arm_coordination(ctx);
    }

    fn repeat(&mut self, ctx: &mut Context<'_, Self>) {
        for id in self.others.iter() {
            let lacks = |own: &&OwnSlot| !own.tally.voters().contains(id);
            if self.outstanding.values().any(|own| lacks(&own)) {
                self.send_own(id, self.committed.next(), ctx);
            }
        }
        let blocked = self.committed.next();
        let lacks = self
            .peers
            .iter()
            .any(|peer| peer.committed > self.committed);
        if blocked <= self.latest || lacks {
            let owner = self.owner(blocked);
            let message = Message::Fetch { first: blocked };
            if owner != self.id {
                ctx.send(owner, Lane::Control, &message);
            }
            let further =
                |id: &ReplicaId| *id != owner && self.peers[id.index()].committed > self.committed;
            let donors: Vec<ReplicaId> = self.others.iter().filter(further).collect();
            *self.fetch_next = self.fetch_next.wrapping_add(1);
            if !donors.is_empty() {
                let donor = donors[(*self.fetch_next % donors.len() as u64) as usize];
                ctx.send(donor, Lane::Control, &message);
            }
        }
        self.repeat_revocations(ctx);
        self.revoke_blocked(ctx);
        self.said_due = true;
    }

    /// Own suggestions that are not decided, again, and where this replica stands.
    fn send_own(&self, to: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        let (mut entries, mut bytes) = (Vec::new(), overhead(self.members));
        for (slot, own) in self.outstanding.range(first..) {
            bytes += own.value.bytes();
            if bytes > self.config.batch_bytes_max && !entries.is_empty() {
                break;
            }
            entries.push((*slot, own.value.clone()));
        }
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
        // Whoever asks waits for own slots that nobody has used: they are skipped.
        let far = Slot(self.committed.0 + SLOTS_MAX / 4);
        if first <= far {
            self.latest = self.latest.max(first);
        }
        let (mut values, mut bytes): (Known, usize) = (Vec::new(), overhead(self.members));
        for (slot, held) in self.log.iter_from(first) {
            if held.decided {
                bytes += held.value.bytes() + 8;
                if bytes > self.config.batch_bytes_max && !values.is_empty() {
                    break;
                }
                values.push((slot, held.value.clone()));
            }
            if values.len() >= 4096 {
                break;
            }
        }
        if !ctx.takes(to, bytes) {
            return ctx.mark("entries wait for room");
        }
        if !values.is_empty() {
            let committed = self.committed;
            ctx.send(to, Lane::Control, &Message::Known { committed, values });
        }
        if self.recovery.is_none() && self.outstanding.range(first..).next().is_some() {
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
        let before = self.committed;
        for (slot, value) in values {
            self.decide(slot, value, ctx);
        }
        // The sender may have lost its state since: only `Said`, which has the incarnation, reports
        // its commit point.
        if self.committed > before && self.committed < committed {
            let first = self.committed.next();
            ctx.send(from, Lane::Control, &Message::Fetch { first });
        }
    }
}
