//! Linearizable reads from the local state, at every replica (§4), and reads through the chain.
//!
//! ```text
//!   read arrives ── here: rounds up to 7 were seen
//!        │
//!        ├─ a round that says "round 8 came back, passed on by you too" ─┐ both were made by the
//!        └─ or: Ask ──► leader ──► a round that says "I was asked"      ─┤ leader after the read
//!                                                                        ▼ had arrived
//!   that round, passed on by a quorum (on its way to here, or as a later round tells):
//!   by then nobody had promised a higher ballot, so all that was decided before the read lies
//!   at or below that round's `end` ──► executed up to there? answer
//! ```
//!
//! A round is a message of the leader on its way around the chain; under load each carries
//! entries, so that reads cost no message of their own. No clock is looked at but to decide
//! whether to ask. An earlier run of the process may have asked and passed on, too: questions are
//! told apart by their numbers, and rounds passed on count from the one on that answered a question
//! of this run, so that the first read under a ballot always asks.

use super::{
    Message,
    config::ReadsBy,
    message::Header,
    plant::Plant,
    replica::{ChainPaxos, Role},
};
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Lane, Slot, Time, Wake, limits,
    parts::{RequestKey, Taken},
};

/// Reads that have not been answered for this long are forgotten: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);
/// An answer to a question takes no longer than this, or two ways around the chain, unless it is
/// lost.
const ANSWER_MIN: Duration = Duration::from_micros(200);
/// A loop of which a second question need not wait for the answer to the first.
const FAR: Duration = Duration::from_millis(5);
/// Rounds that reads wait for; more reads wait for a later round.
const BOUND_MAX: usize = 64;

#[derive(Hash)]
struct Read {
    stamp: u64,
    /// The last round seen when it came, under the promised ballot.
    seen: u64,
    /// The slot behind all that was seen when it came; only the planted rule looks at it.
    unseen: Slot,
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
}

/// Reads up to this number may run when `round` was confirmed and `end` executed.
#[derive(Hash)]
struct Bound {
    stamp: u64,
    round: u64,
    end: Slot,
}

/// Reads that wait.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bound: VecDeque<Bound>,
    bytes: usize,
    /// The first number that this run of the process gave.
    first: u64,
    /// The number of reads that come in this turn.
    stamp: u64,
    /// Rounds from here on were passed on by this run and not by an earlier one: the leader had its
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

    fn pop(&mut self) -> Option<Read> {
        let read = self.waiting.pop_front()?;
        self.bytes -= read.batch.len();
        Some(read)
    }

    fn put_back(&mut self, read: Read) {
        self.bytes += read.batch.len();
        self.waiting.push_front(read);
    }

    fn pop_upto(&mut self, stamp: u64) -> Option<Read> {
        self.waiting.front().filter(|read| read.stamp <= stamp)?;
        self.pop()
    }
}

impl ChainPaxos {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        // Refused while joining: what it knows of the chain may be old (§4, property ii).
        if self.fetching.under_way() || !self.whole {
            ctx.mark("read refused: it joins");
            return Self::refuse(key, Taken::Refused, ctx);
        }
        if self.planted(Plant::ReadServedAtOnce) {
            return ctx.query(batch, Slot(0), false, key.0, &());
        }
        if !limits::queue_takes(self.reads.bytes, batch.len(), self.config.queue_bytes) {
            ctx.mark("read refused: queue full");
            return Self::refuse(key, Taken::Busy, ctx);
        }
        self.reads.bytes += batch.len();
        let read = Read {
            stamp: self.reads.stamp,
            seen: self.round.number,
            unseen: self.log.end(),
            key,
            batch,
            asked_at: ctx.arrived(),
        };
        self.reads.waiting.push_back(read);
        self.arm_housekeeping(ctx);
    }

    /// A new round is here: which reads came before it was made?
    pub(super) fn bind_reads(&mut self, header: &Header) {
        let round = &header.round;
        let asked = round.asked.iter().find(|(id, _)| *id == self.id);
        let asked = asked.map(|(_, stamp)| *stamp);
        // What an earlier run of this process asked or passed on is older than any read here.
        let asked = asked.filter(|stamp| self.reads.gave(*stamp)).unwrap_or(0);
        if asked > 0 {
            self.reads.answered = self.reads.answered.max(asked);
            self.reads.own.get_or_insert(round.number);
        }
        // This replica passed round `looped` on after it had seen fewer, and the leader made
        // `round` after that one had come back.
        let own = self.reads.own.is_some_and(|own| own <= round.looped);
        let looped = if own && round.looped_by.contains(self.id) {
            round.looped
        } else {
            0
        };
        let older = |read: &&Read| read.stamp <= asked || read.seen < looped;
        let last = self.reads.waiting.iter().rev().find(older);
        if let Some(stamp) = last.map(|read| read.stamp) {
            self.reads.bind(stamp, round.number, round.end);
        }
    }

    /// Runs the reads that may run: that many, and what this moment has room for besides; says when
    /// to continue.
    pub(super) fn release_reads(&mut self, least: u64, ctx: &mut Context<'_, Self>) -> Wake {
        if self.reads.is_empty() {
            return Wake::Sleep;
        }
        if let Some((stamp, slot)) = self.reads.ordered.take() {
            while let Some(Read { key, batch, .. }) = self.reads.pop_upto(stamp) {
                ctx.query(batch, slot, false, key.0, &());
            }
        }
        if self.planted(Plant::PaperReadRule) {
            let came_round = |read: &Read| read.unseen <= self.agreed;
            while self.reads.waiting.front().is_some_and(came_round) {
                if let Some(Read { key, batch, .. }) = self.reads.pop() {
                    ctx.query(batch, Slot(0), false, key.0, &());
                }
            }
            return Wake::Sleep;
        }
        let (confirmed, mut run) = (self.confirmed(), 0);
        while let Some(bound) = self.reads.bound.pop_front() {
            if bound.round > confirmed {
                self.reads.bound.push_front(bound);
                break;
            }
            while let Some(read) = self.reads.pop_upto(bound.stamp) {
                if run >= least && self.share.is_spent() {
                    self.reads.put_back(read);
                    self.reads.bound.push_front(bound);
                    return self.share.next();
                }
                run += 1;
                self.share.read(read.batch.len());
                ctx.query(read.batch, bound.end, false, read.key.0, &());
            }
        }
        Wake::Sleep
    }

    /// The end of a turn: asks the leader when reads wait, once for all, and again for later ones
    /// when it has answered. Under load the round that answers carries entries, and the question
    /// goes with what this replica has to say to the leader anyway; rounds that entries bring
    /// unasked come later, since they must have begun after an earlier one had come back.
    pub(super) fn ask_for_reads(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let Some(last) = self.reads.waiting.back().map(|read| read.stamp) else {
            return Wake::Sleep;
        };
        self.reads.stamp = self.reads.stamp.max(last + 1);
        let oldest = self
            .reads
            .waiting
            .front()
            .map_or(Time(0), |read| read.asked_at);
        let now = ctx.now();
        let limit = self.read_limit();
        let patient = now.since(oldest) < limit;
        // No rounds pass a replica that waits outside the chain: its reads go through the log.
        let local = self.config.reads == ReadsBy::Local
            && self.position.is_some()
            && self.decided.contains(self.id)
            && !self.planted(Plant::PaperReadRule);
        if !local || !patient {
            if self.reads.asked_ordered < last {
                self.reads.asked_ordered = last;
                self.ask(last, true, ctx);
            }
            return Wake::Sleep;
        }
        let patience = Wake::At(oldest + limit);
        let leads = matches!(self.role, Role::Leader(_));
        if leads || !self.reads.wants_round() || self.reads.asked >= last {
            return patience;
        }
        // One question at a time: what came since is asked together when its round is here, or
        // when it should have been. Where the way is long a second one goes half a loop later, so
        // that nobody waits for two loops.
        let open = self.reads.answered < self.reads.asked;
        let second = open && self.reads.answered < self.reads.asked_before;
        let far = self.loop_time >= FAR && !second;
        let until = if far {
            self.reads.asked_at + self.loop_time / 2
        } else {
            self.reads.asked_at + ANSWER_MIN.max(self.loop_time * 2)
        };
        if open && now < until {
            return Wake::At(until.min(oldest + limit));
        }
        self.reads.asked_before = self.reads.asked;
        (self.reads.asked, self.reads.asked_at) = (last, now);
        self.ask(last, false, ctx);
        patience
    }

    /// How long a read waits for its answer to come by rounds: four times around the chain where
    /// that takes longer than is configured.
    fn read_limit(&self) -> Duration {
        let loops = (self.loop_time * 4).min(WAITING_MAX / 4);
        self.config.read_patience.max(loops)
    }

    fn ask(&mut self, stamp: u64, ordered: bool, ctx: &mut Context<'_, Self>) {
        match self.leader {
            Some(leader) if leader == self.id => self.on_ask(leader, stamp, ordered, ctx),
            Some(leader) => {
                let message = Message::Ask { stamp, ordered };
                ctx.send(leader, Lane::Control, &message);
            }
            None => {}
        }
    }
}
