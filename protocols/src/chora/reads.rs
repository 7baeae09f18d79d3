//! Linearizable reads (the paper has none).
//!
//! ```text
//!   at a proposer:  read ──► its own next slot, as of now ──(proposed, committed)──► query
//!   elsewhere:      reads of a turn ── ReadAsk ──► a proposer ── ReadOk{executed} ──► query
//! ```
//!
//! Nothing committed before a read came can lie behind the proposer's own next slot: slots are
//! committed without holes, and no other replica proposes there. That the slot is committed in the
//! same view shows that no later view had begun to commit before: a majority acknowledged the slot
//! after the read came. If nothing is to be proposed, nothing is proposed there, once for all reads
//! that wait. A change of the view aims all of them again.

use super::{Chora, Message, bug::Bug};
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, Slot,
    parts::{RequestKey, reject_read},
};

impl Chora {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self.reads.takes(batch.len(), self.config.queue_bytes) {
            return reject_read(key, ctx);
        }
        if self.injected(Bug::ReadsUnordered) {
            return ctx.query(batch, self.log.executed(), false, key.0, &());
        }
        let target = self.proposer.next();
        if target.is_some() {
            self.proposer.want_noop();
        }
        self.reads.push(key, batch, target, ctx.arrived());
        self.housekeeping.arm(ctx);
    }

    /// The view has begun: what waits is aimed at it.
    pub(super) fn aim_reads(&mut self) {
        let target = self.proposer.next();
        self.reads.aim(target);
        if target.is_some() && !self.reads.is_empty() {
            self.proposer.want_noop();
        }
    }

    /// One question for all reads of the turn.
    pub(super) fn send_read_asks(&mut self, ctx: &mut Context<'_, Self>) {
        if self.proposer.proposes() || !self.reads.is_question_due() {
            return;
        }
        let Some(proposer) = self.proposer() else {
            return;
        };
        let round = self.reads.next_question();
        let view = self.view.number();
        ctx.send(proposer, Lane::Control, &Message::ReadAsk { view, round });
    }

    /// The question or its answer may be lost.
    pub(super) fn repeat_reads(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.proposer.proposes() && self.reads.repeat() {
            self.send_read_asks(ctx);
        }
    }

    pub(super) fn on_read_ask(
        &mut self,
        from: ReplicaId,
        view: u64,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_view(from, view, ctx) {
            return;
        }
        let Some(target) = self.proposer.next() else {
            return ctx.mark("ignored: read asked of a replica that does not propose");
        };
        self.reads.ask(from, round, target);
        self.proposer.want_noop();
    }

    pub(super) fn on_read_ok(&mut self, round: u64, executed: Slot, ctx: &mut Context<'_, Self>) {
        if !self.reads.was_sent(round) {
            return ctx.mark("ignored: answer to another question");
        }
        for (key, batch) in self.reads.take_answered(round) {
            ctx.query(batch, executed, false, key.0, &());
        }
    }

    /// The commit point moved.
    pub(super) fn answer_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let (committed, executed) = (self.log.committed(), self.log.executed());
        for (key, batch) in self.reads.take_committed(committed) {
            ctx.query(batch, executed, false, key.0, &());
        }
        while let Some((from, round)) = self.reads.pop_question(committed) {
            let message = Message::ReadOk { round, executed };
            ctx.send(from, Lane::Control, &message);
        }
    }
}
