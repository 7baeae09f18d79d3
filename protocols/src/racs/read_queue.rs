//! Reads of a replica's own frontends that wait for their marker; see `reads.rs`.

use super::Mark;
use alloc::collections::{BTreeSet, VecDeque};
use core::time::Duration;
use quintet_replica::{Bytes, ReplicaId, Time, limits, parts::RequestKey};

/// Reads that have not been answered for this long are dropped: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);

#[derive(Hash)]
struct Read {
    sequence: u64,
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
}

/// See the module.
#[derive(Hash)]
pub(super) struct ReadQueue {
    own: ReplicaId,
    /// Tells the reads of this run from those of earlier ones.
    run: u64,
    waiting: VecDeque<Read>,
    keys: BTreeSet<RequestKey>,
    bytes: usize,
    /// The last round of reads whose marker is on its way.
    said: u64,
}

impl ReadQueue {
    pub const fn new(own: ReplicaId) -> Self {
        Self {
            own,
            run: 0,
            waiting: VecDeque::new(),
            keys: BTreeSet::new(),
            bytes: 0,
            said: 0,
        }
    }

    /// A number that no earlier run of this process has had.
    pub const fn start(&mut self, random: u64) {
        self.run = random;
    }

    /// Whether the marker is of this run of the process.
    pub fn owns(&self, mark: &Mark) -> bool {
        mark.replica == self.own && mark.run == self.run
    }

    /// Whether a read waits already.
    pub fn contains(&self, key: RequestKey) -> bool {
        self.keys.contains(&key)
    }

    /// Whether a read of this length may be queued.
    pub fn takes(&self, bytes: usize, bytes_max: usize) -> bool {
        limits::queue_takes(self.bytes, bytes, bytes_max)
    }

    /// A read waits for the next marker.
    pub fn push(&mut self, key: RequestKey, batch: Bytes, asked_at: Time) {
        self.bytes += batch.len();
        self.keys.insert(key);
        self.waiting.push_back(Read {
            sequence: self.said + 1,
            key,
            batch,
            asked_at,
        });
    }

    fn pop(&mut self) -> Option<(RequestKey, Bytes)> {
        let read = self.waiting.pop_front()?;
        self.bytes -= read.batch.len();
        self.keys.remove(&read.key);
        Some((read.key, read.batch))
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The marker of the newest reads, if any wait.
    pub fn newest(&mut self) -> Option<Mark> {
        let sequence = self.waiting.back()?.sequence;
        self.said = self.said.max(sequence);
        Some(Mark {
            replica: self.own,
            run: self.run,
            sequence,
        })
    }

    /// The same if it is not on its way yet; what comes from now on needs another one.
    pub fn unsaid(&mut self) -> Option<Mark> {
        let newest = self.waiting.back()?.sequence;
        if newest <= self.said {
            None
        } else {
            self.newest()
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

    /// The next read of this marker or of an earlier one.
    pub fn pop_up_to(&mut self, sequence: u64) -> Option<(RequestKey, Bytes)> {
        let read = self.waiting.front();
        read.filter(|read| read.sequence <= sequence)?;
        self.pop()
    }

    pub fn expire(&mut self, now: Time) {
        let old = |read: &Read| now.since(read.asked_at) > WAITING_MAX;
        while self.waiting.front().is_some_and(old) {
            self.pop();
        }
    }
}
