//! Linearizable reads (the paper has none).
//!
//! ```text
//!   at a proposer:  read ──► its own next slot, as of now ──(proposed, committed)──► query
//!   elsewhere:      reads of a turn ── ReadAsk ──► a proposer ── ReadOk{executed} ──► query
//! ```
//!
//! Nothing that was committed before a read came can lie behind the proposer's own next slot: slots
//! are committed without holes, and nobody else proposes there. That the slot is committed in the
//! same view shows that no later view had begun to commit before: a majority acknowledged the slot
//! after the read came. If nothing is to be proposed, nothing is proposed there, once for all reads
//! that wait. A change of the view aims all of them again.

use super::{Chora, Message, plant::Plant};
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, Slot, Time, limits,
    parts::{RequestKey, Taken},
};

/// Reads that have not been answered for this long are forgotten: their frontend gave up.
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

/// Reads that wait.
#[derive(Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bytes: usize,
    questions: VecDeque<Question>,
    /// The question of reads that came in this turn, and the last that was sent.
    round: u64,
    sent: u64,
}

impl Reads {
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

    /// What reads waited for may never come.
    pub fn new_view(&mut self) {
        self.questions.clear();
        for read in &mut self.waiting {
            read.target = None;
            read.round = self.round;
        }
    }
}

impl Chora {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !limits::queue_takes(self.reads.bytes, batch.len(), self.config.queue_bytes) {
            ctx.mark("read refused: queue full");
            return Self::refuse(key, Taken::Busy, ctx);
        }
        if self.planted(Plant::ReadsUnordered) {
            return ctx.query(batch, self.executed, false, key.0, &());
        }
        self.reads.bytes += batch.len();
        let target = self.next_propose;
        self.noop_wanted |= target.is_some();
        self.reads.waiting.push_back(Read {
            key,
            batch,
            asked_at: ctx.arrived(),
            target,
            round: self.reads.round,
        });
        self.arm_housekeeping(ctx);
    }

    /// The view has begun: what waits is aimed at it.
    pub(super) fn aim_reads(&mut self) {
        let target = self.next_propose;
        for read in &mut self.reads.waiting {
            if read.target.is_none() {
                read.target = target;
                read.round = self.reads.round;
            }
        }
        self.noop_wanted |= target.is_some() && !self.reads.waiting.is_empty();
    }

    /// One question for all reads of the turn.
    pub(super) fn send_read_asks(&mut self, ctx: &mut Context<'_, Self>) {
        let reads = &self.reads;
        let asks = |read: &Read| read.target.is_none() && read.round > reads.sent;
        if self.next_propose.is_some() || !reads.waiting.iter().any(asks) {
            return;
        }
        let Some(proposer) = self.proposer() else {
            return;
        };
        let round = self.reads.round;
        self.reads.sent = round;
        self.reads.round += 1;
        let view = self.view;
        ctx.send(proposer, Lane::Control, &Message::ReadAsk { view, round });
    }

    /// The question or its answer may be lost.
    pub(super) fn repeat_reads(&mut self, ctx: &mut Context<'_, Self>) {
        if self.next_propose.is_some() {
            return;
        }
        let round = self.reads.round;
        let mut any = false;
        for read in &mut self.reads.waiting {
            if read.target.is_none() && read.round <= self.reads.sent {
                read.round = round;
                any = true;
            }
        }
        if any {
            self.send_read_asks(ctx);
        }
    }

    pub(super) fn on_read_ask(
        &mut self,
        from: ReplicaId,
        view: u64,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.in_view(from, view, ctx) {
            return;
        }
        let Some(target) = self.next_propose else {
            return ctx.mark("ignored: read asked of a replica that does not propose");
        };
        let questions = &mut self.reads.questions;
        let same = questions
            .iter_mut()
            .find(|question| question.from == from && question.target == target);
        if let Some(question) = same {
            question.round = question.round.max(round);
        } else if questions.len() < QUESTIONS_MAX {
            questions.push_back(Question {
                from,
                round,
                target,
            });
        }
        self.noop_wanted = true;
    }

    pub(super) fn on_read_ok(&mut self, round: u64, executed: Slot, ctx: &mut Context<'_, Self>) {
        if round > self.reads.sent {
            return ctx.mark("ignored: answer to another question");
        }
        let mut kept = VecDeque::new();
        for read in self.reads.waiting.drain(..) {
            if read.target.is_none() && read.round <= round {
                self.reads.bytes -= read.batch.len();
                ctx.query(read.batch, executed, false, read.key.0, &());
            } else {
                kept.push_back(read);
            }
        }
        self.reads.waiting = kept;
    }

    /// The commit point moved.
    pub(super) fn answer_reads(&mut self, ctx: &mut Context<'_, Self>) {
        if self.reads.waiting.is_empty() && self.reads.questions.is_empty() {
            return;
        }
        let (committed, executed) = (self.committed, self.executed);
        let mut kept = VecDeque::new();
        for read in self.reads.waiting.drain(..) {
            if read.target.is_some_and(|target| target <= committed) {
                self.reads.bytes -= read.batch.len();
                ctx.query(read.batch, executed, false, read.key.0, &());
            } else {
                kept.push_back(read);
            }
        }
        self.reads.waiting = kept;
        while let Some(question) = self.reads.questions.front() {
            if question.target > committed {
                break;
            }
            let round = question.round;
            let message = Message::ReadOk { round, executed };
            ctx.send(question.from, Lane::Control, &message);
            self.reads.questions.pop_front();
        }
    }
}
