//! Reads that wait, and the rounds that they wait for; see `reads.rs`.

use super::Round;
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{Bytes, FrontendId, ReplicaId, Slot, Time, Wake, limits, parts::RequestKey};

/// Reads that have not been answered for this long are dropped: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);
/// An answer to a question takes no longer than this, or two ways around the chain, unless it is
/// lost.
const ANSWER_MIN: Duration = Duration::from_micros(200);
/// A loop of which a second question need not wait for the answer to the first.
const FAR: Duration = Duration::from_millis(5);
/// Rounds that reads wait for; more reads wait for a later round.
const BOUND_MAX: usize = 64;

/// A read that waits.
#[derive(Hash)]
pub(super) struct Read {
    stamp: u64,
    /// The last round seen when it came, under the promised ballot.
    seen: u64,
    /// The slot behind all that was seen when it came; only an injected bug looks at it.
    unseen: Slot,
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
}

impl Read {
    pub const fn frontend(&self) -> FrontendId {
        self.key.0
    }

    pub const fn batch(&self) -> &Bytes {
        &self.batch
    }
}

/// Reads up to this number may run when `round` was confirmed and `end` executed.
#[derive(Hash)]
pub(super) struct Bound {
    stamp: u64,
    round: u64,
    end: Slot,
}

impl Bound {
    /// The slot up to which everything must be executed.
    pub const fn end(&self) -> Slot {
        self.end
    }
}

/// A question to the leader: for which reads, and whether an entry is to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub stamp: u64,
    pub ordered: bool,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bound: VecDeque<Bound>,
    bytes: usize,
    /// The first number that this run of the process gave.
    first: u64,
    /// The number of reads that come in this turn.
    stamp: u64,
    /// Rounds from here on were forwarded by this run and not by an earlier one: the leader had its
    /// question when it made this one.
    own: Option<u64>,
    /// The last number that the leader was asked for.
    asked: u64,
    /// The one before that.
    asked_before: u64,
    /// When the last one was asked.
    asked_at: Time,
    /// The last number that a round answered.
    answered: u64,
    /// The last number that an entry was asked for.
    asked_ordered: u64,
    /// Reads up to this number may run at this slot: their entry was executed.
    ordered: Option<(u64, Slot)>,
}

impl Reads {
    /// Numbers start at random, so that an answer to an earlier run of this process fits none.
    pub fn start(&mut self, random: u64) {
        self.stamp = (random >> 2) + 1;
        self.first = self.stamp;
        self.asked = self.stamp - 1;
        self.asked_before = self.asked;
        self.answered = self.asked;
        self.asked_ordered = self.asked;
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of the newest read that waits.
    #[cfg(test)]
    pub fn newest(&self) -> u64 {
        self.waiting.back().map_or(0, |read| read.stamp)
    }

    /// Whether reads wait for a round that is not made yet.
    pub fn wants_round(&self) -> bool {
        let bound = self.bound.back().map_or(0, |bound| bound.stamp);
        self.waiting.back().is_some_and(|read| read.stamp > bound)
    }

    fn bind(&mut self, stamp: u64, round: u64, end: Slot) {
        if self.bound.back().is_none_or(|last| last.stamp < stamp) && self.bound.len() < BOUND_MAX {
            self.bound.push_back(Bound { stamp, round, end });
        }
    }

    /// At the leader: all reads that came so far wait for this round.
    pub fn bind_all(&mut self, round: u64, end: Slot) {
        if let Some(stamp) = self.waiting.back().map(|read| read.stamp) {
            self.bind(stamp, round, end);
            self.stamp = self.stamp.max(stamp + 1);
        }
    }

    /// Whether this is a number of this run.
    const fn gave(&self, stamp: u64) -> bool {
        self.first <= stamp && stamp < self.stamp
    }

    /// The entry for reads up to `stamp` has been executed in `slot`.
    pub fn ordered(&mut self, stamp: u64, slot: Slot) {
        if self.gave(stamp) {
            self.ordered = Some((stamp, slot));
        }
    }

    /// The ballot is another: rounds are counted again, and nothing seen before counts.
    pub fn forget_rounds(&mut self) {
        self.bound.clear();
        self.own = None;
        self.waiting.iter_mut().for_each(|read| read.seen = 0);
        self.ask_again();
    }

    /// The leader is another, or may not have heard.
    pub fn ask_again(&mut self) {
        let first = self.waiting.front().map_or(self.stamp, |read| read.stamp);
        self.asked = self.asked.min(first.saturating_sub(1));
        self.asked_before = self.asked;
        self.answered = self.asked;
        self.asked_ordered = self.asked_ordered.min(first.saturating_sub(1));
    }

    pub fn expire(&mut self, now: Time) {
        while self
            .waiting
            .front()
            .is_some_and(|read| now.since(read.asked_at) > WAITING_MAX)
        {
            self.pop();
        }
    }

    /// Whether a read of this length may be queued.
    pub fn takes(&self, bytes: usize, bytes_max: usize) -> bool {
        limits::queue_takes(self.bytes, bytes, bytes_max)
    }

    /// A read has come when `round` was the newest round, and `unseen` the end of the log.
    pub fn push(&mut self, key: RequestKey, batch: Bytes, round: u64, unseen: Slot, now: Time) {
        self.bytes += batch.len();
        self.waiting.push_back(Read {
            stamp: self.stamp,
            seen: round,
            unseen,
            key,
            batch,
            asked_at: now,
        });
    }

    /// A new round is here: which reads came before it was made?
    pub fn on_round(&mut self, round: &Round, own: ReplicaId) {
        let asked = round.asked.iter().find(|(id, _)| *id == own);
        let asked = asked.map(|(_, stamp)| *stamp);
        // A stamp that an earlier run of this process asked for or forwarded is older than any read
        // here.
        let asked = asked.filter(|stamp| self.gave(*stamp)).unwrap_or(0);
        if asked > 0 {
            self.answered = self.answered.max(asked);
            self.own.get_or_insert(round.number);
        }
        // This replica passed round `looped` on after it had seen fewer, and the leader made
        // `round` after that one had come back.
        let passed = self.own.is_some_and(|first| first <= round.looped);
        let looped = if passed && round.looped_by.contains(own) {
            round.looped
        } else {
            0
        };
        let older = |read: &&Read| read.stamp <= asked || read.seen < looped;
        let last = self.waiting.iter().rev().find(older);
        if let Some(stamp) = last.map(|read| read.stamp) {
            self.bind(stamp, round.number, round.end);
        }
    }

    /// Reads up to this number may run at this slot: their entry was executed.
    pub const fn take_ordered(&mut self) -> Option<(u64, Slot)> {
        self.ordered.take()
    }

    /// The oldest bound, if its round is confirmed.
    pub fn pop_bound(&mut self, confirmed: u64) -> Option<Bound> {
        self.bound
            .front()
            .filter(|bound| bound.round <= confirmed)?;
        self.bound.pop_front()
    }

    /// The next read under this bound.
    pub fn pop_under(&mut self, bound: &Bound) -> Option<Read> {
        self.pop_upto(bound.stamp)
    }

    /// A read and its bound wait for a later time.
    pub fn put_back(&mut self, read: Read, bound: Bound) {
        self.bytes += read.batch.len();
        self.waiting.push_front(read);
        self.bound.push_front(bound);
    }

    /// The next read that saw nothing behind this slot; for an injected bug.
    pub fn pop_seen(&mut self, agreed: Slot) -> Option<Read> {
        self.waiting.front().filter(|read| read.unseen <= agreed)?;
        self.pop()
    }

    /// The end of a turn: the question to the leader when reads wait, and when to look again. Reads
    /// go through the log when rounds do not reach this replica, or have not for `limit`.
    ///
    /// One question at a time: what came since is asked together when its round is here, or when it
    /// should have been. Where the way is long a second one goes half a loop later, so that no read
    /// waits for two loops.
    pub fn next_question(
        &mut self,
        local: bool,
        leads: bool,
        (limit, loop_time): (Duration, Duration),
        now: Time,
    ) -> (Option<Question>, Wake) {
        let (Some(newest), Some(oldest)) = (self.waiting.back(), self.waiting.front()) else {
            return (None, Wake::Sleep);
        };
        let (last, oldest) = (newest.stamp, oldest.asked_at);
        self.stamp = self.stamp.max(last + 1);
        let question = |ordered| {
            let stamp = last;
            Some(Question { stamp, ordered })
        };
        if !local || now.since(oldest) >= limit {
            if self.asked_ordered < last {
                self.asked_ordered = last;
                return (question(true), Wake::Sleep);
            }
            return (None, Wake::Sleep);
        }
        let by_log = Wake::At(oldest + limit);
        if leads || !self.wants_round() || self.asked >= last {
            return (None, by_log);
        }
        let open = self.answered < self.asked;
        let second = open && self.answered < self.asked_before;
        let far = loop_time >= FAR && !second;
        let until = if far {
            self.asked_at + loop_time / 2
        } else {
            self.asked_at + ANSWER_MIN.max(loop_time * 2)
        };
        if open && now < until {
            return (None, Wake::At(until.min(oldest + limit)));
        }
        self.asked_before = self.asked;
        (self.asked, self.asked_at) = (last, now);
        (question(false), by_log)
    }

    fn pop(&mut self) -> Option<Read> {
        let read = self.waiting.pop_front()?;
        self.bytes -= read.batch.len();
        Some(read)
    }

    /// The next read up to this number.
    pub fn pop_upto(&mut self, stamp: u64) -> Option<Read> {
        self.waiting.front().filter(|read| read.stamp <= stamp)?;
        self.pop()
    }
}
