//! Linearizable reads (the paper has none).
//!
//! ```text
//!   read ──► this replica's next own slot, as of now ──(decided to what it suggested)──► query
//! ```
//!
//! If a write was acknowledged before a read came, it was executed, and so every slot before it was
//! decided. If that slot lay behind this replica's next own one, others had decided that one, by
//! revoking it, to nothing: what this replica suggests there later is lost, and the read waits for
//! a later own slot. So when an own slot is decided to what was suggested after the read came, and
//! everything up to it is executed here, nothing acknowledged before is missing. Where a majority
//! accepted it in ballot 0, it is known before. A replica that has nothing to suggest suggests an
//! empty batch, which no revocation puts there by itself.
//!
//! A bypassed replica's slots are revoked before it can use them. It asks the member that orders its
//! requests, which finds the slot in the same way, from the question on, and reads when it has
//! executed as far itself.

use super::{Mencius, Message, bug::Bug, read_queue::Asker};
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, Slot,
    parts::{RequestKey, reject_read},
};

impl Mencius {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self.reads.takes(batch.len(), self.config.queue_bytes) {
            return reject_read(key, ctx);
        }
        if self.injected(Bug::ReadsUnordered) {
            return ctx.query(batch, self.log.committed(), false, key.0, &());
        }
        let (target, asks) = (self.own.next(), self.relay.to().is_some());
        self.reads.push(key, batch, target, asks, ctx.arrived());
        self.housekeeping.arm(ctx);
    }

    /// A bypassed peer reads: like a read of a frontend that comes now, but that the peer executes.
    pub(super) fn on_read_ask(&mut self, id: ReplicaId, round: u64, ctx: &mut Context<'_, Self>) {
        let (target, now) = (self.own.next(), ctx.arrived());
        if self.recovery.is_some() || !self.reads.push_question(id, round, target, now) {
            return ctx.mark("ignored: question of a read");
        }
        self.housekeeping.arm(ctx);
    }

    /// The answer: what came before the question was sent may be read there.
    pub(super) fn on_read_at(&mut self, round: u64, slot: Slot, ctx: &mut Context<'_, Self>) {
        if !self.reads.was_sent(round) {
            return ctx.mark("ignored: answer to another question");
        }
        for (key, batch) in self.reads.take_answered(round) {
            ctx.query(batch, slot, false, key.0, &());
        }
    }

    /// The own slots that reads waited for may be another's: the next one will do.
    pub(super) fn aim_reads(&mut self) {
        // Those of frontends are asked about while this replica is bypassed.
        self.reads.aim(self.relay.to().is_some());
    }

    /// Something was confirmed, or executed.
    pub(super) fn answer_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let slot = self.log.committed();
        while let Some(asker) = self.reads.pop_confirmed(slot) {
            match asker {
                Asker::Frontend { key, batch, .. } => ctx.query(batch, slot, false, key.0, &()),
                Asker::Member { id, round } => {
                    ctx.send(id, Lane::Control, &Message::ReadAt { round, slot });
                }
            }
        }
    }
}
