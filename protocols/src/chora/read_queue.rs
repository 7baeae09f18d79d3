//! Reads that wait, and questions of other replicas; see `reads.rs`.

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;
use quintet_replica::{Bytes, ReplicaId, Slot, Time, limits, parts::RequestKey};

/// Reads that have not been answered for this long are dropped: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);
/// Questions of others that are kept; they ask again.
const QUESTIONS_MAX: usize = 1024;

#[derive(Hash)]
struct Read {
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
    /// The own slot that must be committed, at a proposer.
    target: Option<Slot>,
    /// The question that it is part of, elsewhere.
    round: u64,
}

#[derive(Hash)]
struct Question {
    from: ReplicaId,
    round: u64,
    target: Slot,
}

/// See the module.
#[derive(Hash)]
pub(super) struct ReadQueue {
    waiting: VecDeque<Read>,
    bytes: usize,
    questions: VecDeque<Question>,
    /// The question of reads that came in this turn, and the last that was sent.
    round: u64,
    sent: u64,
}

impl ReadQueue {
    pub const fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            questions: VecDeque::new(),
            round: 1,
            sent: 0,
        }
    }

    /// Questions start at random, so that an answer to an earlier run of this process fits none.
    pub const fn start(&mut self, random: u64) {
        self.sent = random >> 2;
        self.round = self.sent + 1;
    }

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

    /// Slots that reads waited for may never come.
    pub fn new_view(&mut self) {
        self.questions.clear();
        for read in &mut self.waiting {
            read.target = None;
            read.round = self.round;
        }
    }

    /// Whether a read of this length may be queued.
    pub fn takes(&self, bytes: usize, bytes_max: usize) -> bool {
        limits::queue_takes(self.bytes, bytes, bytes_max)
    }

    /// A read waits for an own slot, or for the answer to a question.
    pub fn push(&mut self, key: RequestKey, batch: Bytes, target: Option<Slot>, now: Time) {
        self.bytes += batch.len();
        self.waiting.push_back(Read {
            key,
            batch,
            asked_at: now,
            target,
            round: self.round,
        });
    }

    /// The view has begun: reads that wait for no slot wait for this one, or ask again.
    pub fn aim(&mut self, target: Option<Slot>) {
        for read in &mut self.waiting {
            if read.target.is_none() {
                read.target = target;
                read.round = self.round;
            }
        }
    }

    /// Whether reads of this turn are to be asked for.
    pub fn is_question_due(&self) -> bool {
        let asks = |read: &Read| read.target.is_none() && read.round > self.sent;
        self.waiting.iter().any(asks)
    }

    /// The number of the question that is sent now.
    pub const fn next_question(&mut self) -> u64 {
        self.sent = self.round;
        self.round += 1;
        self.sent
    }

    /// Questions that were sent, or their answers, may be lost. True when any is asked again.
    pub fn repeat(&mut self) -> bool {
        let mut any = false;
        for read in &mut self.waiting {
            if read.target.is_none() && read.round <= self.sent {
                read.round = self.round;
                any = true;
            }
        }
        any
    }

    /// Another replica asks.
    pub fn ask(&mut self, from: ReplicaId, round: u64, target: Slot) {
        let same = |question: &&mut Question| question.from == from && question.target == target;
        if let Some(question) = self.questions.iter_mut().find(same) {
            question.round = question.round.max(round);
        } else if self.questions.len() < QUESTIONS_MAX {
            self.questions.push_back(Question {
                from,
                round,
                target,
            });
        }
    }

    /// Whether the question was sent by this run of the process.
    pub const fn was_sent(&self, round: u64) -> bool {
        round <= self.sent
    }

    /// The reads that an answer to this question lets run.
    pub fn take_answered(&mut self, round: u64) -> Vec<(RequestKey, Bytes)> {
        self.take(|read| read.target.is_none() && read.round <= round)
    }

    /// The reads whose own slot is committed.
    pub fn take_committed(&mut self, committed: Slot) -> Vec<(RequestKey, Bytes)> {
        self.take(|read| read.target.is_some_and(|target| target <= committed))
    }

    fn take(&mut self, runs: impl Fn(&Read) -> bool) -> Vec<(RequestKey, Bytes)> {
        let (mut taken, mut kept) = (Vec::new(), VecDeque::new());
        for read in self.waiting.drain(..) {
            if runs(&read) {
                self.bytes -= read.batch.len();
                taken.push((read.key, read.batch));
            } else {
                kept.push_back(read);
            }
        }
        self.waiting = kept;
        taken
    }

    /// The next question whose slot is committed: from which replica, and its number.
    pub fn pop_question(&mut self, committed: Slot) -> Option<(ReplicaId, u64)> {
        let question = self.questions.front();
        question.filter(|question| question.target <= committed)?;
        let Question { from, round, .. } = self.questions.pop_front()?;
        Some((from, round))
    }
}
