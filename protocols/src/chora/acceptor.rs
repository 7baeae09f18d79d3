//! The work of every replica on the view's log: appending, acknowledging, committing and executing.
//!
//! ```text
//!   proposal ──► buffer ──(no hole before it)──► log + journal ──(durable)──► acknowledged
//!                                                 └──(a majority's)──► committed, executed
//! ```

use super::{Chora, Promised, Record, Summary, Value, bug::Bug, peers::PeerState, view_log::Held};
use alloc::collections::BTreeMap;
use quintet_replica::{Bytes, Context, Durability, Recovered, ReplicaId, Slot, parts::request_key};
use smallvec::SmallVec;

/// Proposals further than this above the commit point are not kept; they are asked for later.
pub(super) const SLOTS_MAX: u64 = 8192;

impl Chora {
    /// Appends to log and journal.
    pub(super) fn append(&mut self, view: u64, value: Value, ctx: &mut Context<'_, Self>) {
        let (slot, before) = (self.log.end(), self.log.last_view());
        assert!(
            before <= view && view <= self.view.number(),
            "views go up along the log"
        );
        let record = Record {
            view,
            before,
            committed: self.log.committed(),
            value,
        };
        let write = ctx.persist(slot, &record);
        let value = record.value;
        self.log.append(Held { view, value });
        if self.me.durability() == Durability::Memory || self.injected(Bug::AckNotDurable) {
            self.log.vote_now();
        } else {
            self.log.vote_after(write);
        }
    }

    /// A proposal of this view for a slot, from the replica that may propose there.
    pub(super) fn offer(&mut self, slot: Slot, value: Value, ctx: &mut Context<'_, Self>) {
        if slot <= self.log.committed() || slot.0 > self.log.committed().0 + SLOTS_MAX {
            return;
        }
        if matches!(value, Value::Init(_)) {
            // It is told by itself, or as an entry of the log.
            return;
        }
        if let Some(init) = self.view.init() {
            if init.owner(slot).is_none() {
                return;
            }
            if let Some(held) = self.log.get(slot) {
                if held.view == self.view.number() && held.value != value {
                    self.contradicted(slot, ctx);
                }
                return;
            }
        }
        if let Some(waits) = self.log.buffered(slot) {
            if *waits != value {
                self.contradicted(slot, ctx);
            }
            return;
        }
        self.buffer_or_append(slot, value, ctx);
        self.watch_wait(slot, ctx);
    }

    fn contradicted(&self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let view = self.view.number();
        ctx.contradicted(format_args!("two values for slot {slot} in view {view}"));
    }

    /// Appends what follows on the log's end, and what waited for it; the rest waits.
    pub(super) fn buffer_or_append(
        &mut self,
        slot: Slot,
        value: Value,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.view.init().is_some() && slot == self.log.end() {
            // Mostly nothing waits, and nothing need pass through the buffer.
            self.append(self.view.number(), value, ctx);
            self.log.verify(slot);
        } else {
            self.log.buffer(slot, value);
        }
        self.drain(ctx);
    }

    /// Appends what waits and follows on the log's end.
    pub(super) fn drain(&mut self, ctx: &mut Context<'_, Self>) {
        if self.view.init().is_none() {
            return;
        }
        while let Some(value) = self.log.pop_buffered() {
            self.append(self.view.number(), value, ctx);
            self.log.verify(self.log.last());
        }
    }

    /// The slot up to which this replica acknowledges in its view; 0 before it has the view's
    /// beginning, and while its earlier acknowledgements are dropped.
    pub(super) fn ack(&self) -> Slot {
        match self.view.init() {
            _ if self.catch_up.is_recovering() => Slot(0),
            Some(init) if self.view.is_durable() && self.log.durable() >= init.base => {
                self.log.durable()
            }
            _ => Slot(0),
        }
    }

    /// Commits what a majority has acknowledged in this view, and everything before it.
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(init) = self.view.init() else { return };
        let mut acked: SmallVec<[Slot; 9]> = self.peers.iter().map(PeerState::acked).collect();
        acked[self.me.id().index()] = self.ack();
        acked.sort_unstable_by(|a, b| b.cmp(a));
        let mut majority = self.me.majority();
        if self.injected(Bug::MinorityCommits) {
            majority -= 1;
        }
        if self.injected(Bug::QuorumShrinks) {
            majority = majority.min(init.live.len() / 2 + 1);
        }
        let quorum = acked[majority.max(1) - 1];
        if quorum >= init.base {
            self.commit(quorum, ctx);
        }
    }

    /// All up to this slot is committed in this view's log; here as far as it is verified.
    pub(super) fn commit(&mut self, upto: Slot, ctx: &mut Context<'_, Self>) {
        let before = self.established();
        if !self.log.commit(upto) {
            return;
        }
        self.election.progressed(ctx.arrived());
        self.execute_committed(ctx);
        self.proposer.on_committed(self.log.committed());
        if !before && self.established() {
            self.on_established(ctx);
        }
        self.answer_reads(ctx);
        self.trim_log();
    }

    /// Executes what is committed.
    pub(super) fn execute_committed(&mut self, ctx: &mut Context<'_, Self>) {
        while let Some(held) = self.log.next_committed() {
            match &held.value {
                // A slot with nothing in it is executed, too, so that a snapshot at any later slot
                // covers more.
                Value::Noop | Value::Init(_) => {
                    if let Value::Init(init) = &held.value {
                        self.view.commit_init((**init).clone());
                    }
                    self.log.executing(None, 1);
                    let (executed, time) = (self.log.executed(), self.log.time_executed());
                    ctx.execute(executed, time, Bytes::new(), None);
                }
                Value::Commands { time, batches } => {
                    let (time, count) = (*time, batches.len() as u64);
                    let executed_at = self.log.time_executed().max(time);
                    let mut executed = self.log.executed();
                    for batch in batches {
                        executed = executed.next();
                        let mut reply = None;
                        if let Some(key) = request_key(batch) {
                            self.proposer.queue.finished(key);
                            if self.relay.kept.executed(key) || key.0 == ctx.embedded() {
                                reply = Some((key.0, (), None));
                            }
                        }
                        self.load.demand.executed(reply.is_some());
                        ctx.execute(executed, executed_at, batch.clone(), reply);
                    }
                    self.log.executing(Some(time), count);
                }
            }
        }
        if self.catch_up.fetching_mut().reached(self.log.executed()) {
            ctx.mark("log overtook the state transfer");
        }
    }

    pub(super) fn checkpoint(&mut self, ctx: &mut Context<'_, Self>) {
        if self.log.executed() == Slot(0) {
            return;
        }
        let slot = self.log.committed();
        let summary = Summary {
            slot,
            view: self
                .log
                .view_of(slot)
                .expect("the last committed slot is known"),
            time: self.log.time_executed(),
            init: self.view.init_committed().clone(),
        };
        self.log.begin_checkpoint();
        ctx.checkpoint(self.log.executed(), &summary);
    }

    /// Drops executed entries beyond what may be kept for those that lag.
    fn trim_log(&mut self) {
        let (peers, others) = (&self.peers, self.me.others());
        let known = |peer: ReplicaId| peers[peer.index()].committed();
        let least = |own| others.iter().map(known).min().unwrap_or(own);
        self.log.trim(self.config.log_memory_bytes, least);
    }

    /// Restores log and pointers from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(promised) = recovered.promise
            && !self.injected(Bug::PromiseLost)
        {
            self.view.restore(promised);
        }
        if let Some((executed, summary)) = recovered.checkpoint {
            self.restart_at(executed, summary);
            self.log.on_executed(executed);
        }
        let start = self.log.first();
        let mut newest: BTreeMap<Slot, Record> = BTreeMap::new();
        let mut committed = self.log.committed();
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
            // Entries that were cleared and not overwritten still stand in the journal. An entry
            // belongs to the log only behind what it was written behind.
            if record.before != self.log.last_view() && !self.injected(Bug::GhostEntries) {
                break;
            }
            let Record { view, value, .. } = record;
            self.log.append(Held { view, value });
        }
        self.view.restore_from_log(self.log.last_view());
        let complete = committed <= self.log.last();
        self.log.restored(committed);
        complete
    }

    /// The state machine stands at `summary.slot`; nothing at or below it is kept.
    fn restart_at(&mut self, executed: Slot, summary: Summary) {
        let at = (summary.slot, summary.view);
        self.log.restart(executed, at, summary.time);
        self.view.commit_init(summary.init);
    }
}
