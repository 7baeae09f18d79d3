//! Linearizable reads: an ordered marker per replica and turn (R17).
//!
//! ```text
//!   reads of a turn ── Mark{sequence} ──► the next block of the leader, or of everybody's
//!   query(at_least = the block's last slot) ◄── the block is decided
//! ```
//!
//! The block was made after the reads came. Writes acknowledged before they came were decided
//! before the block was made, so they stand before it in the one decided chain: the state behind
//! the block shows them, whichever replica leads now.

use super::{Racs, bug::Bug};
use quintet_replica::{
    Bytes, Context,
    parts::{RequestKey, reject_read},
};

impl Racs {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if self.injected(Bug::ReadsUnmarked) {
            return ctx.query(batch, self.tree.root().end, false, key.0, &());
        }
        if self.reads.contains(key) {
            // Its frontend asks again: once is enough, and the marker is asked for again, too.
            return;
        }
        if !self.reads.takes(batch.len(), self.config.queue_bytes) {
            return reject_read(key, ctx);
        }
        self.reads.push(key, batch, ctx.arrived());
        self.relay.waits(ctx.now());
        self.housekeeping.arm(ctx);
    }
}
