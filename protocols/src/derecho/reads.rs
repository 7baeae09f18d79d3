//! Linearizable reads from the local state.
//!
//! ```text
//!   reads of a turn ── BARRIER + 1 ──► members that have not wedged ── ECHO ──► a majority
//!     ─► what was in the order when the read came is delivered ─► query
//! ```
//!
//! A command that was acknowledged before the read came was persisted by every member of its view.
//! If that is this view, it is in this replica's order. If it were a later one, a majority of this
//! view had wedged before, and no majority could echo without having wedged (D17).

use super::{
    Derecho,
    plant::Plant,
    sst::{self, BARRIER},
};
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Slot, Time, limits,
    parts::{RequestKey, Taken},
};

/// A read that has waited for so long is forgotten: its frontend asks again.
const WAITING_MAX: Duration = Duration::from_secs(5);

#[derive(Hash)]
struct Read {
    key: RequestKey,
    batch: Bytes,
    /// What must be delivered.
    target: Slot,
    /// Which barrier it waits for; 0 while none was raised for it.
    barrier: u64,
    asked_at: Time,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bytes: usize,
}

impl Reads {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn pop(&mut self) -> Option<Read> {
        let read = self.waiting.pop_front()?;
        self.bytes -= read.batch.len();
        Some(read)
    }

    pub fn expire(&mut self, now: Time) {
        let late = |read: &Read| now.since(read.asked_at) > WAITING_MAX;
        while self.waiting.front().is_some_and(late) {
            self.pop();
        }
    }

    /// A new view: what was not delivered by its beginning never was, and the barrier of the old
    /// one says nothing.
    pub fn rebind(&mut self, base: Slot) {
        for read in &mut self.waiting {
            read.target = read.target.min(base);
            read.barrier = 0;
        }
    }
}

impl Derecho {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if self.planted(Plant::ReadsLocal) {
            return ctx.query(batch, Slot(0), false, key.0, &());
        }
        if !limits::queue_takes(self.reads.bytes, batch.len(), self.config.queue_bytes) {
            ctx.mark("read refused: queue full");
            return Self::refuse(key, Taken::Busy, ctx);
        }
        self.reads.bytes += batch.len();
        self.reads.waiting.push_back(Read {
            key,
            batch,
            target: self.end(),
            barrier: 0,
            asked_at: ctx.arrived(),
        });
        self.arm_housekeeping(ctx);
    }

    /// The end of a turn: one barrier for all reads that came.
    pub(super) fn raise_barrier(&mut self) {
        let waits = |read: &Read| read.barrier == 0;
        if self.wedging || !self.reads.waiting.back().is_some_and(waits) {
            return;
        }
        let barrier = self.table.get(self.id, BARRIER) + 1;
        self.set_own(BARRIER, barrier);
        let column = self.table.layout.echo(self.id);
        self.set_own(column, barrier);
        for read in self.reads.waiting.iter_mut().filter(|read| waits(read)) {
            read.barrier = barrier;
        }
    }

    pub(super) fn echo_barriers(&mut self) {
        for reader in self.live().without(self.id).iter() {
            let barrier = self.table.read(reader, BARRIER);
            let column = self.table.layout.echo(reader);
            if barrier > self.table.get(self.id, column) {
                self.set_own(column, barrier);
            }
        }
    }

    pub(super) fn release_reads(&mut self, ctx: &mut Context<'_, Self>) {
        if self.wedging {
            return ctx.mark("read waits for the next view");
        }
        let column = self.table.layout.echo(self.id);
        let majority = self.promise.view.members.len() / 2 + 1;
        while let Some(read) = self.reads.waiting.front() {
            let echoed = |id| self.table.read(id, column) >= read.barrier;
            if read.barrier == 0
                || read.target > self.sure
                || sst::count(self.live(), echoed) < majority
            {
                return;
            }
            if let Some(Read {
                key, batch, target, ..
            }) = self.reads.pop()
            {
                ctx.query(batch, target, false, key.0, &());
            }
        }
    }

    pub(super) fn refuse_reads(&mut self, ctx: &mut Context<'_, Self>) {
        while let Some(read) = self.reads.pop() {
            Self::refuse(read.key, Taken::Refused, ctx);
        }
    }
}
