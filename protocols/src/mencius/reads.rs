//! Linearizable reads (the paper has none).
//!
//! ```text
//!   read ──► this replica's next own slot, as of now ──(decided to what it suggested)──► query
//! ```
//!
//! Whatever was acknowledged before a read came was executed, and so every slot before it was
//! decided. If that slot lay behind this replica's next own one, others had decided that one, by
//! revoking it, to nothing: what this replica suggests there later is lost, and the read waits for a
//! later own slot. So when an own slot is decided to what was suggested after the read came, and
//! everything up to it is executed here, nothing acknowledged before is missing. Where a majority
//! accepted it in ballot 0, it is known before. A replica that has nothing to suggest suggests an
//! empty batch, which no revocation puts there by itself.
//!
//! A bypassed replica's slots are revoked before it can use them. It asks the member that orders its
//! requests, which finds the slot in the same way, from the question on, and reads when it has
//! executed as far itself.

use super::{Mencius, Message, plant::Plant};
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, FrontendId, Lane, Level, Protocol as _, ReplicaId, Slot, Time, limits,
    parts::{RequestKey, Taken, own_request},
};

/// More questions of peers are not kept.
const QUESTIONS_MAX: usize = 4096;

/// Reads that have not been answered for this long are forgotten: their frontend gave up.
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

#[derive(Hash)]
enum Asker {
    /// A frontend. The answer to the peer's question of this round, or a later one, will do, too.
    Frontend {
        key: RequestKey,
        batch: Bytes,
        round: u64,
    },
    /// A bypassed peer, which asks up to where it must have executed.
    Peer { id: ReplicaId, round: u64 },
}

/// Reads that wait.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bytes: usize,
    /// Questions of peers among them.
    questions: usize,
    /// The rounds of this run up to the one that is asked next, of which these are sent.
    first: u64,
    round: u64,
    /// This turn has reads for the next question.
    due: bool,
}

impl Reads {
    /// Rounds start at random, so that an answer to an earlier run of this process fits none.
    pub const fn start(&mut self, random: u64) {
        self.first = random >> 2;
        self.round = self.first;
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn expire(&mut self, now: Time) {
        while let Some(read) = self.waiting.front() {
            if now.since(read.asked_at) <= WAITING_MAX {
                break;
            }
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
            Asker::Peer { .. } => self.questions -= 1,
        }
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
    fn pop_confirmed(&mut self, executed: Slot) -> Option<Read> {
        let read = self.waiting.front()?;
        read.confirmed.filter(|slot| *slot <= executed)?;
        self.pop()
    }

    /// Takes out those that `ready` says are, in their order.
    fn take(&mut self, ready: impl Fn(&Read) -> bool) -> VecDeque<Read> {
        let (taken, kept): (VecDeque<Read>, _) = core::mem::take(&mut self.waiting)
            .into_iter()
            .partition(ready);
        self.waiting = kept;
        taken.iter().for_each(|read| self.uncount(read));
        taken
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
        if !self.takes_requests(ctx.now()) {
            return Self::answer(key, Taken::Refused, ctx);
        }
        match level {
            Level::Stale => ctx.query(batch, Slot(0), false, from, &()),
            Level::Linearizable => self.on_read(key, batch, ctx),
            Level::Ordered => {
                let (most, now) = (self.config.queue_bytes, ctx.arrived());
                match self.requests.keep(key, batch.clone(), most, now) {
                    Ok(()) if self.forward_to.is_some() => self.requests.pass_on(batch),
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
        let round = self.reads.round;
        self.reads.waiting.push_back(Read {
            of: Asker::Frontend { key, batch, round },
            asked_at: ctx.arrived(),
            target: self.next_own,
            confirmed: None,
        });
        match self.forward_to {
            Some(_) => self.reads.due = true,
            None => self.marker_wanted = true,
        }
        self.arm_housekeeping(ctx);
    }

    /// All reads wait for the answer to the next question.
    pub(super) fn ask_reads(&mut self) {
        self.reads.due = !self.reads.is_empty();
    }

    /// One question for all reads of the turn.
    pub(super) fn send_read_ask(&mut self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        if core::mem::take(&mut self.reads.due) {
            let round = self.reads.round;
            self.reads.round += 1;
            ctx.send(to, Lane::Control, &Message::ReadAsk { round });
        }
    }

    /// A bypassed peer reads: like a read of a frontend that comes now, but that the peer executes.
    pub(super) fn on_read_ask(&mut self, id: ReplicaId, round: u64, ctx: &mut Context<'_, Self>) {
        if self.recovery.is_some() || self.reads.questions >= QUESTIONS_MAX {
            return ctx.mark("ignored: question of a read");
        }
        self.reads.questions += 1;
        self.reads.waiting.push_back(Read {
            of: Asker::Peer { id, round },
            asked_at: ctx.arrived(),
            target: self.next_own,
            confirmed: None,
        });
        self.marker_wanted = true;
        self.arm_housekeeping(ctx);
    }

    /// The answer: what came before the question was sent may be read there.
    pub(super) fn on_read_at(&mut self, answered: u64, slot: Slot, ctx: &mut Context<'_, Self>) {
        if !(self.reads.first..self.reads.round).contains(&answered) {
            return ctx.mark("ignored: answer to another question");
        }
        let is_ready = |read: &Read| match read.of {
            Asker::Frontend { round, .. } => round <= answered,
            Asker::Peer { .. } => false,
        };
        for read in self.reads.take(is_ready) {
            if let Asker::Frontend { key, batch, .. } = read.of {
                ctx.query(batch, slot, false, key.0, &());
            }
        }
    }

    /// The own slots that reads waited for may be another's: the next one will do.
    pub(super) fn aim_reads(&mut self) {
        // Those of frontends are asked about while this replica is bypassed.
        let asks = self.forward_to.is_some();
        let wants = |read: &Read| {
            let is_asked = asks && matches!(read.of, Asker::Frontend { .. });
            read.confirmed.is_none() && !is_asked
        };
        self.marker_wanted |= self.reads.waiting.iter().rev().any(wants);
    }

    /// Something was confirmed, or executed.
    pub(super) fn answer_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let slot = self.committed;
        while let Some(read) = self.reads.pop_confirmed(slot) {
            match read.of {
                Asker::Frontend { key, batch, .. } => ctx.query(batch, slot, false, key.0, &()),
                Asker::Peer { id, round } => {
                    ctx.send(id, Lane::Control, &Message::ReadAt { round, slot });
                }
            }
        }
    }
}
