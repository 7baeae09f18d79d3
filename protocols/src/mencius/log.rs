//! The log: what is accepted, decided, executed and forgotten, slot by slot.
//!
//! ```text
//!   accepted in a ballot ──► journal ──► a vote        decided ──► no hole before it ──► executed
//! ```
//!
//! Slots may be decided in any order; they are executed in theirs.

use super::{
    Mencius, Record, Summary, Value,
    replica::{Held, SLOTS_MAX},
};
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{
    Bytes, Context, Durability, Recovered, ReplicaId, ReplicaSet, Slot,
    parts::{Ballot, request_key},
};

impl Mencius {
    /// Whose slot it is.
    pub(super) fn owner(&self, slot: Slot) -> ReplicaId {
        ReplicaId(((slot.0.max(1) - 1) % self.members as u64) as u16)
    }

    /// The first slot of `owner` above `after`.
    pub(super) fn slot_of(&self, owner: ReplicaId, after: Slot) -> Slot {
        let members = self.members as u64;
        let first = 1 + u64::from(owner.0);
        let turns = (after.0 + 1).saturating_sub(first).div_ceil(members);
        Slot(first + turns * members)
    }

    /// Whether a slot is near enough to be kept, and not decided and executed already.
    pub(super) fn wanted(&self, slot: Slot) -> bool {
        slot > self.committed && slot.0 <= self.committed.0 + SLOTS_MAX
    }

    pub(super) fn is_decided(&self, slot: Slot) -> bool {
        slot <= self.committed || self.log.get(slot).is_some_and(|held| held.decided)
    }

    fn keep(&mut self, slot: Slot, held: Held) {
        if let Value::Command { time, .. } = &held.value {
            self.time_seen = self.time_seen.max(*time);
        }
        self.log_bytes += held.value.bytes() + size_of::<Held>();
        if let Some(before) = self.log.set(slot, held) {
            self.log_bytes -= before.value.bytes() + size_of::<Held>();
        }
    }

    /// Accepts a value, and writes it down.
    pub(super) fn accept(
        &mut self,
        slot: Slot,
        ballot: Ballot,
        value: Value,
        ctx: &mut Context<'_, Self>,
    ) {
        self.write(slot, ballot, value, false, ctx);
    }

    fn write(
        &mut self,
        slot: Slot,
        ballot: Ballot,
        value: Value,
        decided: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let record = Record {
            ballot,
            decided,
            committed: self.committed,
            value,
        };
        let write = ctx.persist(slot, &record);
        let durable = self.durability == Durability::Memory;
        if !durable {
            self.writes.push_back((write, slot));
        }
        let held = Held {
            ballot,
            value: record.value,
            decided,
            durable,
        };
        let before = self.log.get(slot);
        assert!(
            decided || before.is_none_or(|before| !before.decided && before.ballot <= ballot),
            "nothing is accepted over a decision, or over a higher ballot, in {slot}"
        );
        self.keep(slot, held);
    }

    /// A slot is decided. What was accepted there and lost is written over, so that a restart never
    /// takes it for what was decided.
    pub(super) fn decide(&mut self, slot: Slot, value: Value, ctx: &mut Context<'_, Self>) {
        if !self.wanted(slot) {
            return;
        }
        match self.log.get_mut(slot) {
            Some(held) if held.value == value => held.decided = true,
            Some(held) => {
                if held.decided {
                    return ctx.contradicted(format_args!("two decisions for slot {slot}"));
                }
                let ballot = held.ballot;
                self.write(slot, ballot, value, true, ctx);
            }
            None => self.write(slot, Ballot::default(), value, true, ctx),
        }
        if slot == self.committed.next() {
            self.advance(ctx);
        }
    }

    /// Executes what is decided, without holes.
    pub(super) fn advance(&mut self, ctx: &mut Context<'_, Self>) {
        let before = self.committed;
        while let Some(held) = self.log.get(self.committed.next()) {
            if !held.decided {
                break;
            }
            let value = held.value.clone();
            self.committed = self.committed.next();
            self.execute(value, ctx);
        }
        if self.committed == before {
            return;
        }
        self.progress_at = ctx.now();
        self.latest = self.latest.max(self.committed);
        self.leave_decided();
        if self.fetching.reached(self.committed) {
            ctx.mark("log overtook the state transfer");
        }
        self.answer_reads(ctx);
        self.maybe_recovered(ctx);
        self.trim_log();
    }

    fn execute(&mut self, value: Value, ctx: &mut Context<'_, Self>) {
        let slot = self.committed;
        if let Some(own) = self.outstanding.remove(&slot)
            && let Value::Command { batch, .. } = &own.value
        {
            if own.value == value {
                // By whatever ballot.
                self.reads.confirm(slot);
            } else {
                // Somebody took this replica for dead: its own goes into another slot.
                ctx.mark("suggestion lost its slot");
                self.suggest_again(batch.clone());
                self.aim_reads();
            }
        }
        match value {
            Value::Noop => ctx.execute(slot, self.time_executed, Bytes::new(), None),
            Value::Command { time, batch } => {
                self.time_executed = self.time_executed.max(time);
                let mut reply = None;
                if let Some(key) = request_key(&batch) {
                    self.queue.finished(key);
                    self.forwarded.remove(&key);
                    if self.requests.executed(key) || key.0 == ctx.embedded() {
                        reply = Some((key.0, (), None));
                    }
                }
                ctx.execute(slot, self.time_executed, batch, reply);
            }
        }
    }

    /// Own slots that others decided, or are about to, are not suggested in.
    pub(super) fn leave_decided(&mut self) {
        if self.next_own <= self.committed {
            self.next_own = self.slot_of(self.id, self.committed);
            self.aim_reads();
        }
        self.pass_held();
    }

    /// The own slot after the one just used.
    pub(super) fn use_own(&mut self) {
        self.next_own = self.slot_of(self.id, self.next_own);
        self.pass_held();
    }

    fn pass_held(&mut self) {
        while self.log.get(self.next_own).is_some() {
            self.revoked_until = self.revoked_until.max(self.next_own);
            self.next_own = self.slot_of(self.id, self.next_own);
        }
    }

    fn suggest_again(&mut self, batch: Bytes) {
        if let Some(key) = request_key(&batch) {
            self.queue.finished(key);
            if self.forwarded.contains(&key) {
                // The member that forwarded it counts on this one: it is never passed on.
                return self.queue.push(key, batch);
            }
            if !self.requests.contains(key) {
                return;
            }
            match self.forward_to {
                Some(_) => self.requests.pass_on(batch),
                None => self.queue.push(key, batch),
            }
        }
    }

    pub(super) fn checkpoint(&mut self, ctx: &mut Context<'_, Self>) {
        if self.committed > Slot(0) {
            let time = self.time_executed;
            ctx.checkpoint(self.committed, &Summary { time });
        }
    }

    /// Forgets executed entries beyond what may be kept for those that lag.
    pub(super) fn trim_log(&mut self) {
        let most = self.config.log_memory_bytes;
        let least = most / 16;
        if self.log_bytes <= least {
            return;
        }
        let known = |peer: ReplicaId| self.peers[peer.index()].committed;
        let everywhere = self.others.iter().map(known).min();
        let everywhere = everywhere.unwrap_or(self.committed);
        let (mut below, mut bytes) = (self.log.first(), self.log_bytes);
        while bytes > least && below <= self.committed && (bytes > most || below <= everywhere) {
            if let Some(held) = self.log.get(below) {
                bytes -= held.value.bytes() + size_of::<Held>();
            }
            below = below.next();
        }
        self.log.trim(below, |_| {});
        self.log_bytes = bytes;
    }

    /// Restores log and promise from the journal. False when it contradicts itself.
    pub(super) fn restore(
        &mut self,
        recovered: Recovered<super::Promised, Record, Summary>,
    ) -> bool {
        if let Some(promised) = recovered.promise {
            for (lease, known) in self.promised.leases.iter_mut().zip(promised.leases) {
                *lease = known;
            }
            self.promised.reserved = promised.reserved;
            self.reserved_durable = promised.reserved;
        }
        if let Some((slot, summary)) = recovered.checkpoint {
            self.restart_at(slot, summary);
        }
        let mut newest: BTreeMap<Slot, Record> = BTreeMap::new();
        let mut committed = self.committed;
        for (slot, record) in recovered.records {
            committed = committed.max(record.committed);
            if slot > self.committed {
                newest.insert(slot, record);
            }
        }
        for (slot, record) in newest {
            if slot.0 > self.committed.0 + (SLOTS_MAX << 16) {
                return false;
            }
            let held = Held {
                ballot: record.ballot,
                value: record.value,
                // Of a damaged journal the record that wrote a lost value over may be missing.
                decided: record.decided || (!recovered.forgot && slot <= committed),
                durable: true,
            };
            self.keep(slot, held);
        }
        true
    }

    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub(super) fn restart_at(&mut self, slot: Slot, summary: Summary) {
        let mut bytes = 0;
        self.log.trim(slot.next(), |held| {
            bytes += held.value.bytes() + size_of::<Held>();
        });
        self.log_bytes -= bytes;
        self.committed = slot;
        self.latest = self.latest.max(slot);
        self.time_executed = self.time_executed.max(summary.time);
        self.time_seen = self.time_seen.max(summary.time);
    }

    /// This peer has forgotten the log up to a slot: a state must do, of it or of the replica that
    /// has come as far. To ask those who are known not to have would only cost time.
    pub(super) fn on_trimmed(&mut self, from: ReplicaId, upto: Slot, ctx: &mut Context<'_, Self>) {
        let patience = self.config.suspect * 4;
        if (self.fetching.since()).is_some_and(|since| ctx.now().since(since) > patience) {
            self.fetching.give_up();
        }
        let has = |id: &ReplicaId| *id == from || self.peers[id.index()].committed >= upto;
        let donors: ReplicaSet = self.others.iter().filter(has).collect();
        self.fetching.ask(upto, self.committed, donors, ctx);
    }

    /// A peer's state stands in for everything up to this slot.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.reached(slot);
        if slot <= self.committed {
            return;
        }
        self.restart_at(slot, summary);
        let covered: Vec<Slot> = self.outstanding.range(..=slot).map(|it| *it.0).collect();
        for slot in covered {
            // Whether it is in the state is for the sessions to find out.
            if let Some(own) = self.outstanding.remove(&slot)
                && let Value::Command { batch, .. } = own.value
            {
                self.suggest_again(batch);
            }
        }
        ctx.trim(slot.next());
        self.leave_decided();
        self.advance(ctx);
        self.answer_reads(ctx);
        self.maybe_recovered(ctx);
        self.said_due = true;
    }
}
