//! Linearizable reads: an ordered marker per replica and turn (R17).
//!
//! ```text
//!   reads of a turn ── Mark{sequence} ──► the next block of the leader, or of everybody's
//!   query(at_least = the block's last slot) ◄── the block is decided
//! ```
//!
//! The block was made after the reads came. What was acknowledged before they came was decided
//! before the block was made, so it stands before it in the one decided chain: the state behind
//! the block shows it, whichever replica leads now.

use super::{Mark, Racs, plant::Plant};
use alloc::collections::{BTreeSet, VecDeque};
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, ReplicaId, Slot, Time, limits,
    parts::{RequestKey, Taken},
};

/// Reads that have not been answered for this long are forgotten: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);

#[derive(Hash)]
struct Read {
    sequence: u64,
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
}

/// Reads that wait for their marker.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    keys: BTreeSet<RequestKey>,
    bytes: usize,
    /// The last round of reads whose marker is on its way.
    said: u64,
}

impl Reads {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The marker of the newest reads, if any wait.
    pub fn newest(&mut self, replica: ReplicaId, life: u64) -> Option<Mark> {
        let sequence = self.waiting.back()?.sequence;
        self.said = self.said.max(sequence);
        Some(Mark {
            replica,
            life,
            sequence,
        })
    }

    /// The same if it is not on its way yet; what comes from now on needs another one.
    pub fn unsaid(&mut self, replica: ReplicaId, life: u64) -> Option<Mark> {
        let newest = self.waiting.back()?.sequence;
        if newest <= self.said {
            None
        } else {
            self.newest(replica, life)
        }
    }

    /// The marker may be lost: the newest reads ask again, in a round of their own.
    pub fn repeat(&mut self) {
        if let Some(read) = self.waiting.back_mut()
            && read.sequence <= self.said
        {
            read.sequence = self.said + 1;
        }
    }

    /// The state behind `slot` is new enough for the reads up to `sequence`.
    pub fn release(&mut self, sequence: u64, slot: Slot, ctx: &mut Context<'_, Racs>) {
        while self
            .waiting
            .front()
            .is_some_and(|read| read.sequence <= sequence)
        {
            if let Some(Read { key, batch, .. }) = self.waiting.pop_front() {
                self.bytes -= batch.len();
                self.keys.remove(&key);
                ctx.query(batch, slot, false, key.0, &());
            }
        }
    }

    pub fn expire(&mut self, now: Time) {
        let old = |read: &Read| now.since(read.asked_at) > WAITING_MAX;
        while self.waiting.front().is_some_and(old) {
            if let Some(read) = self.waiting.pop_front() {
                self.bytes -= read.batch.len();
                self.keys.remove(&read.key);
            }
        }
    }
}

impl Racs {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if self.planted(Plant::ReadsUnmarked) {
            return ctx.query(batch, self.tree.root().end, false, key.0, &());
        }
        if self.reads.keys.contains(&key) {
            // Its frontend asks again: once is enough, and the marker is asked for again, too.
            return;
        }
        if !limits::queue_takes(self.reads.bytes, batch.len(), self.config.queue_bytes) {
            ctx.mark("read refused: queue full");
            return Self::refuse(key, Taken::Busy, ctx);
        }
        self.reads.bytes += batch.len();
        self.reads.keys.insert(key);
        let sequence = self.reads.said + 1;
        let asked_at = ctx.arrived();
        self.reads.waiting.push_back(Read {
            sequence,
            key,
            batch,
            asked_at,
        });
        self.waiting_since.get_or_insert(ctx.now());
        self.arm_housekeeping(ctx);
    }
}
