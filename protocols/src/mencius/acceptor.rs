//! Accepting, deciding and executing, slot by slot.
//!
//! ```text
//!   accepted in a ballot ──► journal ──► a vote        decided ──► no hole before it ──► executed
//! ```
//!
//! Slots may be decided in any order; they are executed in theirs.

use super::{
    Mencius, Promised, Record, Summary, Value,
    log::{Decided, Held},
};
use quintet_replica::{
    Bytes, Context, Durability, Recovered, ReplicaId, ReplicaSet, Slot,
    parts::{Ballot, request_key},
};

impl Mencius {
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
            committed: self.log.committed(),
            value,
        };
        let write = ctx.persist(slot, &record);
        let durable = self.me.durability() == Durability::Memory;
        if !durable {
            self.log.written(write, slot);
        }
        let held = Held {
            ballot,
            value: record.value,
            decided,
            durable,
        };
        self.log.put(slot, held);
    }

    /// A slot is decided. A value that was accepted there and lost is written over: a restart never
    /// takes it for the decided one.
    pub(super) fn decide(&mut self, slot: Slot, value: Value, ctx: &mut Context<'_, Self>) {
        if !self.log.wants(slot) {
            return;
        }
        match self.log.decide(slot, &value) {
            Decided::Same => {}
            Decided::Other(ballot) => self.write(slot, ballot, value, true, ctx),
            Decided::Contradiction => {
                return ctx.contradicted(format_args!("two decisions for slot {slot}"));
            }
        }
        if slot == self.log.committed().next() {
            self.advance(ctx);
        }
    }

    /// Executes what is decided, without holes.
    pub(super) fn advance(&mut self, ctx: &mut Context<'_, Self>) {
        let before = self.log.committed();
        while let Some(value) = self.log.pop_decided() {
            self.execute(value, ctx);
        }
        let committed = self.log.committed();
        if committed == before {
            return;
        }
        self.revocations.progressed(ctx.now());
        self.own.learn_latest(committed);
        self.pass_decided();
        if self.fetching.reached(committed) {
            ctx.mark("log overtook the state transfer");
        }
        self.answer_reads(ctx);
        self.maybe_recovered(ctx);
        let (peers, others) = (&self.peers, self.me.others());
        let needed_after = |committed| peers.committed_by_all(others).unwrap_or(committed);
        self.log.trim(self.config.log_memory_bytes, needed_after);
    }

    fn execute(&mut self, value: Value, ctx: &mut Context<'_, Self>) {
        let slot = self.log.committed();
        if let Some(own) = self.own.executed(slot) {
            if own == value {
                // By whatever ballot.
                self.reads.confirm(slot);
            } else if let Value::Command { batch, .. } = own {
                // Another member took this replica for dead: its own suggestion goes into another
                // slot.
                ctx.mark("suggestion lost its slot");
                self.relay.order_again(batch);
                self.aim_reads();
            }
        }
        let time = self.log.execution_time(&value);
        let (batch, reply) = match value {
            Value::Noop => (Bytes::new(), None),
            Value::Command { batch, .. } => {
                let key = request_key(&batch);
                let waits = key.filter(|key| self.relay.executed(*key) || key.0 == ctx.embedded());
                (batch, waits.map(|key| (key.0, (), None)))
            }
        };
        ctx.execute(slot, time, batch, reply);
    }

    /// Own slots that others decided, or are about to, are not suggested in.
    pub(super) fn pass_decided(&mut self) {
        if self.own.pass_decided(&self.log) {
            self.aim_reads();
        }
    }

    pub(super) fn checkpoint(&self, ctx: &mut Context<'_, Self>) {
        if self.log.committed() > Slot(0) {
            let time = self.log.time_executed();
            ctx.checkpoint(self.log.committed(), &Summary { time });
        }
    }

    /// Restores log and promise from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(promised) = recovered.promise {
            self.leases.restore(promised);
        }
        if let Some((slot, summary)) = recovered.checkpoint {
            self.log.install(slot, summary.time);
        }
        self.log.restore(recovered.records, recovered.state_lost)
    }

    /// This peer no longer keeps the log up to a slot: a state must do, of it or of a replica that
    /// has come as far. To ask those who are known not to have would only cost time.
    pub(super) fn on_trimmed(&mut self, from: ReplicaId, upto: Slot, ctx: &mut Context<'_, Self>) {
        let timeout = self.config.suspect_timeout * 4;
        if (self.fetching.since()).is_some_and(|since| ctx.now().since(since) > timeout) {
            self.fetching.give_up();
        }
        let has = |id: &ReplicaId| *id == from || self.peers.committed(*id) >= upto;
        let donors: ReplicaSet = self.me.others().iter().filter(has).collect();
        self.fetching.ask(upto, self.log.committed(), donors, ctx);
    }

    /// A peer's state stands in for everything up to this slot.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.reached(slot);
        if slot <= self.log.committed() {
            return;
        }
        self.log.install(slot, summary.time);
        self.own.learn_latest(slot);
        for value in self.own.covered(slot) {
            // Whether it is in the state is for the sessions to find out.
            if let Value::Command { batch, .. } = value {
                self.relay.order_again(batch);
            }
        }
        ctx.trim(slot.next());
        self.pass_decided();
        self.advance(ctx);
        self.answer_reads(ctx);
        self.maybe_recovered(ctx);
        self.outbox.want();
    }
}
