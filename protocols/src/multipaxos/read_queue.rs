//! Reads of a replica's own frontends that wait for an index.

use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{Bytes, Time, limits, parts::RequestKey};

/// Reads that have not been answered for this long are dropped: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);

#[derive(Hash)]
struct Read {
    round: u64,
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
}

/// Waiting reads, in rounds: one question for all reads of a turn.
#[derive(Default, Hash)]
pub(super) struct ReadQueue {
    waiting: VecDeque<Read>,
    bytes: usize,
    /// The round of reads that came in this turn.
    round: u64,
    /// The last round that was sent.
    sent: u64,
}

impl ReadQueue {
    /// Rounds start at random, so that an answer to an earlier run of this process fits none.
    pub const fn start(&mut self, random: u64) {
        self.sent = random >> 2;
        self.round = self.sent + 1;
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a read of this length may be queued.
    pub fn takes(&self, bytes: usize, bytes_max: usize) -> bool {
        limits::queue_takes(self.bytes, bytes, bytes_max)
    }

    pub fn push(&mut self, key: RequestKey, batch: Bytes, asked_at: Time) {
        self.bytes += batch.len();
        let round = self.round;
        self.waiting.push_back(Read {
            round,
            key,
            batch,
            asked_at,
        });
    }

    /// The round of the newest read, if any waits.
    pub fn newest(&self) -> Option<u64> {
        self.waiting.back().map(|read| read.round)
    }

    /// The round of this turn, if a read is in it that was not sent yet; closes it.
    pub fn next_round(&mut self) -> Option<u64> {
        let round = self.newest().filter(|round| *round != self.sent)?;
        self.sent(round);
        Some(round)
    }

    /// This round is sent, or sent again.
    pub const fn sent(&mut self, round: u64) {
        self.sent = round;
        self.round = round + 1;
    }

    /// Whether the round was sent by this run of the process.
    pub const fn was_sent(&self, round: u64) -> bool {
        round <= self.sent
    }

    /// The next read of this round or of an earlier one.
    pub fn pop_up_to(&mut self, round: u64) -> Option<(RequestKey, Bytes)> {
        self.waiting.front().filter(|read| read.round <= round)?;
        let Read { key, batch, .. } = self.pop()?;
        Some((key, batch))
    }

    fn pop(&mut self) -> Option<Read> {
        let read = self.waiting.pop_front()?;
        self.bytes -= read.batch.len();
        Some(read)
    }

    pub fn expire(&mut self, now: Time) {
        let old = |read: &Read| now.since(read.asked_at) > WAITING_MAX;
        while self.waiting.front().is_some_and(old) {
            self.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{BatchId, FrontendId};

    #[test]
    fn reads_of_one_turn_share_one_round() {
        let mut reads = ReadQueue::default();
        reads.start(40);
        let key = |id| (FrontendId::default(), BatchId(id));
        for id in 1..3 {
            reads.push(key(id), Bytes::from_static(b"read"), Time(0));
        }
        assert_eq!((reads.next_round(), reads.next_round()), (Some(11), None));
        reads.push(key(3), Bytes::new(), Time(5));
        assert!(reads.was_sent(11) && !reads.was_sent(12));
        let popped = core::iter::from_fn(|| reads.pop_up_to(11));
        assert_eq!(popped.count(), 2);
        assert!(reads.takes(8, 8) && reads.len() == 1);
        reads.expire(Time(5) + WAITING_MAX);
        assert_eq!(reads.next_round(), Some(12));
        reads.expire(Time(6) + WAITING_MAX);
        assert!(reads.is_empty());
    }
}
