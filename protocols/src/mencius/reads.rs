//! Linearizable reads (the paper has none).
//!
//! ```text
//!   read ──► this replica's next own slot, as of now ──(accepted by a majority in ballot 0)──► query
//! ```
//!
//! Whatever was acknowledged before a read came was executed, and so every slot before it was
//! decided. If that slot lay behind this replica's next own one, others had decided that one, by
//! revoking it: then no majority accepts it in ballot 0 any more, and the read waits for a later own
//! slot. So when a majority has accepted an own slot that was suggested after the read came, and
//! everything up to it is executed here, nothing acknowledged before is missing.

use super::{Mencius, Message, plant::Plant};
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, FrontendId, Level, Slot, Time, limits,
    parts::{RequestKey, Taken, own_request},
};

/// Reads that have not been answered for this long are forgotten: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);

#[derive(Hash)]
struct Read {
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
    /// The own slot that a majority must accept, or a later one.
    target: Slot,
}

/// Reads that wait.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bytes: usize,
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn expire(&mut self, now: Time) {
        while let Some(read) = self.waiting.front() {
            if now.since(read.asked_at) <= WAITING_MAX {
                break;
            }
            self.bytes -= read.batch.len();
            self.waiting.pop_front();
        }
    }
}

impl Mencius {
    pub(super) fn on_request(
        &mut self,
        from: FrontendId,
        level: Level,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        let Some(key) = own_request(from, &batch, ctx) else {
            return;
        };
        if self.recovery.is_some() || ctx.now() < self.leaving_until {
            return Self::answer(key, Taken::Refused, ctx);
        }
        match level {
            Level::Stale => ctx.query(batch, Slot(0), false, from, &()),
            Level::Linearizable => self.on_read(key, batch, ctx),
            Level::Ordered => {
                let (most, now) = (self.config.queue_bytes, ctx.arrived());
                match self.requests.keep(key, batch.clone(), most, now) {
                    Ok(()) => self.queue.push(key, batch),
                    Err(taken) => {
                        ctx.mark("request refused: queue full");
                        return Self::answer(key, taken, ctx);
                    }
                }
                self.arm_housekeeping(ctx);
            }
        }
    }

    fn answer(key: RequestKey, taken: Taken, ctx: &mut Context<'_, Self>) {
        let batch = key.1;
        ctx.send_frontend(key.0, Message::Taken { batch, taken });
    }

    fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !limits::queue_takes(self.reads.bytes, batch.len(), self.config.queue_bytes) {
            ctx.mark("read refused: queue full");
            return Self::answer(key, Taken::Busy, ctx);
        }
        if self.planted(Plant::ReadsUnordered) {
            return ctx.query(batch, self.committed, false, key.0, &());
        }
        self.reads.bytes += batch.len();
        self.noop_wanted = true;
        self.reads.waiting.push_back(Read {
            key,
            batch,
            asked_at: ctx.arrived(),
            target: self.next_own,
        });
        self.arm_housekeeping(ctx);
    }

    /// The own slots that reads waited for may be another's: the next one will do.
    pub(super) fn aim_reads(&mut self) {
        self.noop_wanted |= !self.reads.is_empty();
    }

    /// Something was confirmed, or executed.
    pub(super) fn answer_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let confirmed = self.own_confirmed;
        if self.reads.is_empty() || confirmed > self.committed {
            return;
        }
        let mut kept = VecDeque::new();
        for read in self.reads.waiting.drain(..) {
            if read.target <= confirmed {
                self.reads.bytes -= read.batch.len();
                ctx.query(read.batch, self.committed, false, read.key.0, &());
            } else {
                kept.push_back(read);
            }
        }
        self.reads.waiting = kept;
    }
}
