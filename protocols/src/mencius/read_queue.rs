//! Reads that wait, of frontends and of bypassed members; see `reads.rs`.

use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{Bytes, ReplicaId, Slot, Time, limits, parts::RequestKey};

/// More questions of other members are not kept.
const QUESTIONS_MAX: usize = 4096;

/// Reads that have not been answered for this long are dropped: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);

#[derive(Hash)]
struct Read {
    of: Asker,
    asked_at: Time,
    /// The own slot that must be decided to what is suggested there, or a later one.
    target: Slot,
    /// One that is.
    confirmed: Option<Slot>,
}

/// The origin of a read.
#[derive(Hash)]
pub(super) enum Asker {
    /// A frontend. The answer to the question of this round, or a later one, will do, too.
    Frontend {
        key: RequestKey,
        batch: Bytes,
        round: u64,
    },
    /// A bypassed member, which asks up to where it must have executed.
    Member { id: ReplicaId, round: u64 },
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct ReadQueue {
    waiting: VecDeque<Read>,
    bytes: usize,
    /// Questions of other members among them.
    questions: usize,
    /// The rounds of this run up to the one that is asked next, of which these are sent.
    first: u64,
    round: u64,
    /// This turn has reads for the next question.
    due: bool,
    /// Reads wait for the next own slot, with or without something in it.
    marker_wanted: bool,
}

impl ReadQueue {
    /// Rounds start at random, so that an answer to an earlier run of this process fits none.
    pub const fn start(&mut self, random: u64) {
        self.first = random >> 2;
        self.round = self.first;
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a read of this length may be queued.
    pub fn takes(&self, bytes: usize, bytes_max: usize) -> bool {
        limits::queue_takes(self.bytes, bytes, bytes_max)
    }

    /// A frontend reads. `asks` says that another member is asked where.
    pub fn push(&mut self, key: RequestKey, batch: Bytes, target: Slot, asks: bool, now: Time) {
        self.bytes += batch.len();
        let round = self.round;
        self.push_back(Asker::Frontend { key, batch, round }, target, now);
        if asks {
            self.due = true;
        } else {
            self.marker_wanted = true;
        }
    }

    /// A bypassed member reads. False when too many questions wait.
    pub fn push_question(&mut self, id: ReplicaId, round: u64, target: Slot, now: Time) -> bool {
        let takes = self.questions < QUESTIONS_MAX;
        if takes {
            self.questions += 1;
            self.push_back(Asker::Member { id, round }, target, now);
            self.marker_wanted = true;
        }
        takes
    }

    fn push_back(&mut self, of: Asker, target: Slot, asked_at: Time) {
        self.waiting.push_back(Read {
            of,
            asked_at,
            target,
            confirmed: None,
        });
    }

    pub fn expire(&mut self, now: Time) {
        let old = |read: &Read| now.since(read.asked_at) > WAITING_MAX;
        while self.waiting.front().is_some_and(old) {
            self.pop();
        }
    }

    fn pop(&mut self) -> Option<Read> {
        let read = self.waiting.pop_front()?;
        self.uncount(&read);
        Some(read)
    }

    /// It waits no more.
    fn uncount(&mut self, read: &Read) {
        match &read.of {
            Asker::Frontend { batch, .. } => self.bytes -= batch.len(),
            Asker::Member { .. } => self.questions -= 1,
        }
    }

    /// Whether an own slot is to be used although there is nothing to suggest.
    pub const fn is_marker_wanted(&self) -> bool {
        self.marker_wanted
    }

    /// An own slot is used; or none is for reads.
    pub const fn drop_marker(&mut self) {
        self.marker_wanted = false;
    }

    /// Own slots that reads waited for may be another's: the next one will do. `asks` says that
    /// another member is asked about the reads of frontends.
    pub fn aim(&mut self, asks: bool) {
        let wants = |read: &Read| {
            let is_asked = asks && matches!(read.of, Asker::Frontend { .. });
            read.confirmed.is_none() && !is_asked
        };
        self.marker_wanted |= self.waiting.iter().rev().any(wants);
    }

    /// All reads wait for the answer to the next question.
    pub fn ask_again(&mut self) {
        self.due = !self.is_empty();
    }

    /// The question for all reads of the turn, if there are any.
    pub fn next_question(&mut self) -> Option<u64> {
        let due = core::mem::take(&mut self.due);
        let round = self.round;
        self.round += u64::from(due);
        due.then_some(round)
    }

    /// Whether the question was sent by this run of the process.
    pub fn was_sent(&self, round: u64) -> bool {
        (self.first..self.round).contains(&round)
    }

    /// The reads of frontends that the answer to this question lets run.
    pub fn take_answered(&mut self, answered: u64) -> VecDeque<(RequestKey, Bytes)> {
        let mut taken = VecDeque::new();
        for read in core::mem::take(&mut self.waiting) {
            match read.of {
                Asker::Frontend { key, batch, round } if round <= answered => {
                    self.bytes -= batch.len();
                    taken.push_back((key, batch));
                }
                _ => self.waiting.push_back(read),
            }
        }
        taken
    }

    /// An own slot is decided to what was suggested there.
    pub fn confirm(&mut self, slot: Slot) {
        // Targets ascend: those that are confirmed stand before those that are not, in the order
        // of the slots that they wait for.
        let open = self.waiting.iter_mut().rev();
        let open = open.take_while(|read| read.confirmed.is_none());
        for read in open.filter(|read| read.target <= slot) {
            read.confirmed = Some(slot);
        }
    }

    /// The first one, if the slot that it waits for is executed.
    pub fn pop_confirmed(&mut self, executed: Slot) -> Option<Asker> {
        let read = self.waiting.front()?;
        read.confirmed.filter(|slot| *slot <= executed)?;
        self.pop().map(|read| read.of)
    }
}
