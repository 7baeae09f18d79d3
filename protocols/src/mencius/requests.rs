//! Requests of this replica's frontends, and those that bypassed members forward.
//!
//! ```text
//!   Request ──► kept until executed here ──► the queue, or one Forward per turn ──► another's queue
//! ```

use super::{Mencius, Message};
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, Lane, parts::RequestKey};

/// More than a message takes besides its batches.
const OVERHEAD: usize = 128;

impl Mencius {
    pub(super) fn on_write(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let bytes_max = self.config.queue_bytes;
        if self.relay.kept.take(key, &batch, bytes_max, ctx) {
            self.relay.order(key, batch);
            self.housekeeping.arm(ctx);
        }
    }

    /// All that this replica's frontends wait for goes to the member that orders it, for the first
    /// time or again.
    pub(super) fn forward_all(&mut self) {
        self.relay.kept.forward_all();
        self.reads.ask_again();
    }

    /// The requests of this turn go to the member that orders them.
    pub(super) fn send_forward(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(to) = self.relay.to() else {
            return;
        };
        let message = |batches| Message::Forward { batches };
        self.relay
            .kept
            .send(to, self.config.batch_bytes_max, OVERHEAD, ctx, message);
        if let Some(round) = self.reads.next_question() {
            ctx.send(to, Lane::Control, &Message::ReadAsk { round });
        }
    }

    pub(super) fn on_forward(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.me.members());
        self.relay.on_forward(batches, bytes_max, ctx);
    }
}
