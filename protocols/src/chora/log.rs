//! The log: what is appended, verified, durable, committed, executed and forgotten.
//!
//! ```text
//!   proposal ──► buffer ──(no hole before it)──► log + journal ──(durable)──► acknowledged
//!                                                 │
//!        first ≤ committed ≤ verified ≤ last      └──(a majority's)──► committed, executed
//! ```
//!
//! The log has no holes: what comes too early waits in the buffer, and what stands in the log
//! counts for being up to date. Slots and executions are counted apart: a slot may hold several
//! batches; one with none counts once.

use super::{Chora, Promised, Record, Summary, Value, plant::Plant, replica::Held};
use quintet_replica::{Bytes, Context, Durability, Recovered, ReplicaId, Slot, parts::request_key};
use smallvec::SmallVec;

/// Proposals further than this above the commit point are not kept; they are asked for later.
pub(super) const SLOTS_MAX: u64 = 8192;

impl Chora {
    /// The slot before the first empty one.
    pub(super) fn last_append(&self) -> Slot {
        self.log.end().previous()
    }

    /// The view attached to a slot that is held, or to the last one that was trimmed.
    pub(super) fn view_of(&self, slot: Slot) -> Option<u64> {
        if slot.next() == self.log.first() {
            Some(self.anchor_view)
        } else {
            self.log.get(slot).map(|held| held.view)
        }
    }

    pub(super) fn last_view(&self) -> u64 {
        self.view_of(self.last_append()).unwrap_or(0)
    }

    /// Appends to log and journal.
    pub(super) fn append(&mut self, view: u64, value: Value, ctx: &mut Context<'_, Self>) {
        let (slot, before) = (self.log.end(), self.last_view());
        assert!(
            before <= view && view <= self.view,
            "views go up along the log"
        );
        if let Value::Commands { time, .. } = &value {
            self.time_seen = self.time_seen.max(*time);
        }
        let record = Record {
            view,
            before,
            committed: self.committed,
            value,
        };
        let write = ctx.persist(slot, &record);
        let held = Held {
            view,
            value: record.value,
        };
        self.log_bytes += held.value.bytes() + size_of::<Held>();
        self.log.set(slot, held);
        if self.durability == Durability::Memory || self.planted(Plant::AckNotDurable) {
            self.durable = slot;
        } else {
            self.writes.push_back((write, slot));
        }
    }

    /// Clears all from this slot on: it lost, or nobody can have committed it.
    pub(super) fn truncate(&mut self, from: Slot) {
        assert!(from > self.committed, "what is committed stays");
        let mut bytes = 0;
        for (_, held) in self.log.iter_from(from) {
            bytes += held.value.bytes() + size_of::<Held>();
        }
        self.log_bytes -= bytes;
        self.log.truncate(from);
        let last = from.previous();
        self.durable = self.durable.min(last);
        self.verified = self.verified.min(last);
        for (_, slot) in &mut self.writes {
            *slot = (*slot).min(last);
        }
    }

    /// A proposal of this view for a slot, from the replica that may propose there.
    pub(super) fn offer(&mut self, slot: Slot, value: Value, ctx: &mut Context<'_, Self>) {
        if slot <= self.committed || slot.0 > self.committed.0 + SLOTS_MAX {
            return;
        }
        if matches!(value, Value::Init(_)) {
            // It is told by itself, or as an entry of the log.
            return;
        }
        if let Some(init) = &self.init {
            if init.owner(slot).is_none() {
                return;
            }
            if let Some(held) = self.log.get(slot) {
                if held.view == self.view && held.value != value {
                    self.contradicted(slot, ctx);
                }
                return;
            }
        }
        if let Some(waits) = self.buffer.get(&slot) {
            if *waits != value {
                self.contradicted(slot, ctx);
            }
            return;
        }
        self.buffer_or_append(slot, value, ctx);
        self.watch_wait(slot, ctx);
    }

    fn contradicted(&self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let view = self.view;
        ctx.contradicted(format_args!("two values for slot {slot} in view {view}"));
    }

    /// Appends what follows on the log's end, and what waited for it; the rest waits.
    pub(super) fn buffer_or_append(
        &mut self,
        slot: Slot,
        value: Value,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.init.is_some() && slot == self.log.end() {
            // Mostly nothing waits, and nothing need pass through the buffer.
            self.append(self.view, value, ctx);
            self.verified = slot;
        } else {
            self.buffer.insert(slot, value);
        }
        self.drain(ctx);
    }

    /// Appends what waits and follows on the log's end.
    pub(super) fn drain(&mut self, ctx: &mut Context<'_, Self>) {
        if self.init.is_none() {
            return;
        }
        while let Some(entry) = self.buffer.first_entry() {
            let end = self.log.end();
            if *entry.key() > end {
                break;
            }
            let (slot, value) = entry.remove_entry();
            if slot == end {
                self.append(self.view, value, ctx);
                self.verified = slot;
            }
        }
    }

    /// What this replica acknowledges in its view; 0 before it has the view's beginning, and while
    /// what it acknowledged before is forgotten.
    pub(super) fn ack(&self) -> Slot {
        match &self.init {
            _ if self.recovery.is_some() => Slot(0),
            Some(init) if self.promise_durable() && self.durable >= init.base => self.durable,
            _ => Slot(0),
        }
    }

    /// Commits what a majority has acknowledged in this view, and everything before it.
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(init) = &self.init else { return };
        let mut acked: SmallVec<[Slot; 9]> = self.peers.iter().map(|peer| peer.acked).collect();
        acked[self.id.index()] = self.ack();
        acked.sort_unstable_by(|a, b| b.cmp(a));
        let mut majority = self.majority;
        if self.planted(Plant::MinorityCommits) {
            majority -= 1;
        }
        if self.planted(Plant::QuorumShrinks) {
            majority = majority.min(init.live.len() / 2 + 1);
        }
        let quorum = acked[majority.max(1) - 1];
        if quorum >= init.base {
            self.commit(quorum, ctx);
        }
    }

    /// All up to this slot is committed in this view's log; here as far as it is verified.
    pub(super) fn commit(&mut self, upto: Slot, ctx: &mut Context<'_, Self>) {
        if upto.min(self.verified) <= self.committed {
            return;
        }
        let before = self.established();
        self.committed = upto.min(self.verified);
        self.progress_at = ctx.arrived();
        self.execute_committed(ctx);
        while self
            .outstanding
            .front()
            .is_some_and(|slot| *slot <= self.committed)
        {
            self.outstanding.pop_front();
            *self.proposals += 1;
        }
        if !before && self.established() {
            self.on_established(ctx);
        }
        self.answer_reads(ctx);
        self.trim_log();
    }

    /// Executes what is committed.
    pub(super) fn execute_committed(&mut self, ctx: &mut Context<'_, Self>) {
        let mut slot = self.executed_slot();
        while slot < self.committed {
            slot = slot.next();
            let held = self.log.get(slot).expect("what is not executed is kept");
            // A slot with nothing in it is executed, too, so that a snapshot at any later slot
            // covers more.
            let mut nothing = || {
                self.executed = self.executed.next();
                ctx.execute(self.executed, self.time_executed, Bytes::new(), None);
            };
            match &held.value {
                Value::Noop => nothing(),
                Value::Init(init) => {
                    self.init_committed = (**init).clone();
                    nothing();
                }
                Value::Commands { time, batches } => {
                    self.time_executed = self.time_executed.max(*time);
                    for batch in batches {
                        self.executed = self.executed.next();
                        let mut reply = None;
                        if let Some(key) = request_key(batch) {
                            self.queue.finished(key);
                            if self.requests.executed(key) || key.0 == ctx.embedded() {
                                reply = Some((key.0, (), None));
                            }
                        }
                        self.demand.executed(reply.is_some());
                        ctx.execute(self.executed, self.time_executed, batch.clone(), reply);
                    }
                }
            }
            self.executed_log = slot;
        }
        if self.fetching.reached(self.executed) {
            ctx.mark("log overtook the state transfer");
        }
    }

    const fn executed_slot(&self) -> Slot {
        self.executed_log
    }

    pub(super) fn checkpoint(&mut self, ctx: &mut Context<'_, Self>) {
        if self.executed == Slot(0) {
            return;
        }
        let slot = self.committed;
        let summary = Summary {
            slot,
            view: self
                .view_of(slot)
                .expect("the last committed slot is known"),
            time: self.time_executed,
            init: self.init_committed.clone(),
        };
        if self.checkpoints.len() >= 64 {
            self.checkpoints.pop_front();
        }
        self.checkpoints.push_back((self.executed, slot));
        ctx.checkpoint(self.executed, &summary);
    }

    /// Forgets executed entries beyond what may be kept for those that lag.
    pub(super) fn trim_log(&mut self) {
        let most = self.config.log_memory_bytes;
        // What everyone has is kept for a little longer: a replica that restarts knows the last
        // few commits only from others. Not for much longer: what is forgotten while it is still in
        // the processor's cache costs less.
        let least = most / 128;
        if self.log_bytes <= least {
            return;
        }
        let known = |peer: ReplicaId| self.peers[peer.index()].committed;
        let everywhere = self
            .others
            .iter()
            .map(known)
            .min()
            .unwrap_or(self.committed);
        let (mut below, mut bytes) = (self.log.first(), self.log_bytes);
        while bytes > least && below <= self.committed {
            if bytes <= most && below > everywhere {
                break;
            }
            let Some(held) = self.log.get(below) else {
                break;
            };
            bytes -= held.value.bytes() + size_of::<Held>();
            self.anchor_view = held.view;
            self.anchor_executed.0 += held.value.executions();
            below = below.next();
        }
        self.log.trim(below, |_| {});
        self.log_bytes = bytes;
    }

    /// Restores log and pointers from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(promised) = recovered.promise
            && !self.planted(Plant::PromiseForgotten)
        {
            self.view = promised.view;
            self.voted_for = promised.voted_for;
            self.promised_durable = Some(promised);
        }
        if let Some((executed, summary)) = recovered.checkpoint {
            self.restart_at(executed, summary);
            self.executed_done = executed;
        }
        let start = self.log.first();
        let mut newest: alloc::collections::BTreeMap<Slot, Record> =
            alloc::collections::BTreeMap::new();
        let mut committed = self.committed;
        for (slot, record) in recovered.records {
            committed = committed.max(record.committed);
            if slot < start {
                continue;
            }
            newest.insert(slot, record);
        }
        for (slot, record) in newest {
            if slot != self.log.end() {
                break;
            }
            // What was cleared and not written over still stands in the journal. An entry belongs
            // to the log only behind what it was written behind.
            if record.before != self.last_view() && !self.planted(Plant::GhostEntries) {
                break;
            }
            if let Value::Commands { time, .. } = &record.value {
                self.time_seen = self.time_seen.max(*time);
            }
            let held = Held {
                view: record.view,
                value: record.value,
            };
            self.log_bytes += held.value.bytes() + size_of::<Held>();
            self.log.set(slot, held);
        }
        if self.last_view() > self.view {
            // The log was faster on its way to the disk than the view's own promise, on which
            // nothing that was sent can rest, then.
            self.view = self.last_view();
            self.voted_for = None;
        }
        let whole = committed <= self.last_append();
        self.committed = committed.min(self.last_append());
        self.verified = self.committed;
        self.durable = self.last_append();
        whole
    }

    /// The state machine stands at `summary.slot`; nothing at or below it is kept.
    pub(super) fn restart_at(&mut self, executed: Slot, summary: Summary) {
        self.log.reset(summary.slot.next());
        self.log_bytes = 0;
        self.anchor_view = summary.view;
        self.anchor_executed = executed;
        self.writes.clear();
        self.executed = executed;
        self.executed_log = summary.slot;
        self.committed = summary.slot;
        self.verified = summary.slot;
        self.durable = summary.slot;
        self.time_executed = self.time_executed.max(summary.time);
        self.time_seen = self.time_seen.max(summary.time);
        self.init_committed = summary.init;
    }
}
