//! Reads that wait for a barrier, and for what they must see.

use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{Bytes, Slot, Time, limits, parts::RequestKey};

/// A read that has waited for so long is dropped: its frontend asks again.
const WAITING_MAX: Duration = Duration::from_secs(5);

/// A read that waits.
#[derive(Hash)]
pub(super) struct Read {
    pub key: RequestKey,
    pub batch: Bytes,
    /// The slot that must be delivered.
    pub target: Slot,
    /// Which barrier it waits for; 0 while none was raised for it.
    barrier: u64,
    asked_at: Time,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct ReadQueue {
    waiting: VecDeque<Read>,
    bytes: usize,
}

impl ReadQueue {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A read waits until `target` is delivered, behind a barrier. False when too many bytes do.
    pub fn push(
        &mut self,
        key: RequestKey,
        batch: Bytes,
        target: Slot,
        bytes_max: usize,
        asked_at: Time,
    ) -> bool {
        let takes = limits::queue_takes(self.bytes, batch.len(), bytes_max);
        if takes {
            self.bytes += batch.len();
            self.waiting.push_back(Read {
                key,
                batch,
                target,
                barrier: 0,
                asked_at,
            });
        }
        takes
    }

    pub fn pop(&mut self) -> Option<Read> {
        let read = self.waiting.pop_front()?;
        self.bytes -= read.batch.len();
        Some(read)
    }

    /// Whether a read came for which no barrier was raised.
    pub fn wants_barrier(&self) -> bool {
        self.waiting.back().is_some_and(|read| read.barrier == 0)
    }

    /// This barrier was raised for all of them.
    pub fn raised(&mut self, barrier: u64) {
        let waiting = self.waiting.iter_mut();
        for read in waiting.filter(|read| read.barrier == 0) {
            read.barrier = barrier;
        }
    }

    /// The first read if all up to its target is delivered, with `sure`, and its barrier echoed.
    pub fn release(&mut self, sure: Slot, echoed: impl Fn(u64) -> bool) -> Option<Read> {
        let read = self.waiting.front()?;
        if read.barrier == 0 || read.target > sure || !echoed(read.barrier) {
            return None;
        }
        self.pop()
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
