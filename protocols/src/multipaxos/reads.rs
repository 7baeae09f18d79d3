//! Linearizable reads without a log write.
//!
//! ```text
//!   reads of a turn ── ReadIndex{round} ──► leader: index := commit point, confirm := confirm + 1
//!                                             │ Accept or Commit{confirm} ──► followers
//!                                             │ ◄── AcceptOk{confirm} from a majority
//!   query(at_least = index) ◄── ReadIndexOk ──┘
//! ```
//!
//! A follower that echoes `confirm` had promised no higher ballot when it received a message sent
//! after the question had arrived. With a majority of echoes, nobody else had decided anything by
//! then, so the leader's commit point covers all that was acknowledged before the question: it
//! already covers what earlier ballots decided, because questions wait for `ready_at`.

use super::{Message, MultiPaxos, leader::Confirmation, plant::Plant, replica::Role};
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, ReplicaSet, Slot, Time, Wake, limits,
    parts::{RequestKey, Taken},
};
use smallvec::SmallVec;

/// Reads that have not been answered for this long are forgotten: their frontend gave up.
const WAITING_MAX: Duration = Duration::from_secs(20);

/// The nearest followers have at least this long to confirm reads before all are asked.
const PATIENCE_MIN: Duration = Duration::from_millis(5);

#[derive(Hash)]
struct Read {
    round: u64,
    key: RequestKey,
    batch: Bytes,
    asked_at: Time,
}

/// Reads that wait for an index.
#[derive(Default, Hash)]
pub(super) struct Reads {
    waiting: VecDeque<Read>,
    bytes: usize,
    /// The round of reads that came in this turn.
    round: u64,
    /// The last round that was sent.
    sent: u64,
}

impl Reads {
    /// Rounds start at random, so that an answer to an earlier run of this process fits none.
    pub fn start(&mut self, random: u64) {
        self.round = random >> 2;
        self.sent = self.round;
        self.round += 1;
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn expire(&mut self, now: Time) {
        while self
            .waiting
            .front()
            .is_some_and(|read| now.since(read.asked_at) > WAITING_MAX)
        {
            if let Some(read) = self.waiting.pop_front() {
                self.bytes -= read.batch.len();
            }
        }
    }
}

impl MultiPaxos {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !limits::queue_takes(self.reads.bytes, batch.len(), self.config.queue_bytes) {
            ctx.mark("read refused: queue full");
            let taken = Message::Taken {
                batch: key.1,
                taken: Taken::Busy,
            };
            return ctx.send_frontend(key.0, taken);
        }
        self.reads.bytes += batch.len();
        let read = Read {
            round: self.reads.round,
            key,
            batch,
            asked_at: ctx.arrived(),
        };
        self.reads.waiting.push_back(read);
        self.arm_housekeeping(ctx);
    }

    /// One question for all reads of the turn.
    pub(super) fn send_read_index(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(leader) = self.leader.filter(|leader| *leader != self.id) else {
            return;
        };
        if let Some(round) = self.next_round() {
            ctx.send(leader, Lane::Control, &Message::ReadIndex { round });
        }
    }

    /// Closes the round of this turn if a read is in it.
    fn next_round(&mut self) -> Option<u64> {
        let round = self.reads.waiting.back()?.round;
        if round == self.reads.sent {
            return None;
        }
        self.reads.sent = round;
        self.reads.round = round + 1;
        Some(round)
    }

    /// The question or its answer may be lost, or the leader is another: ask again.
    pub(super) fn repeat_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(round) = self.reads.waiting.back().map(|read| read.round) else {
            return;
        };
        let id = self.id;
        match (&mut self.role, self.leader) {
            (Role::Leader(lead), _) => {
                lead.questions[id.index()] = Some(round);
                self.reads.sent = round;
                self.reads.round = round + 1;
            }
            (_, Some(leader)) if leader != id => {
                self.reads.sent = round;
                self.reads.round = round + 1;
                ctx.send(leader, Lane::Control, &Message::ReadIndex { round });
            }
            _ => {}
        }
    }

    pub(super) fn on_read_index(
        &mut self,
        from: ReplicaId,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        match &mut self.role {
            Role::Leader(lead) => {
                let question = &mut lead.questions[from.index()];
                *question = Some(question.map_or(round, |before| before.max(round)));
            }
            _ => ctx.mark("ignored: read index asked of a follower"),
        }
    }

    /// Starts a round of confirmation for all questions of the turn; the messages of this turn
    /// carry it.
    pub(super) fn begin_confirmation(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let own = self.next_round();
        let early = self.planted(Plant::ReadsBeforeReady);
        let (id, majority, committed) = (self.id, self.majority, self.committed);
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        if own.is_some() {
            lead.questions[id.index()] = own;
        }
        if lead.questions.iter().all(Option::is_none) {
            return Wake::Sleep;
        }
        if committed < lead.ready_at && !early {
            ctx.mark("read waits for the ballot's first commit");
            return Wake::Sleep;
        }
        // One round at a time gathers more reads; over a long link the next need not wait.
        let now = ctx.now();
        let gap = self.config.window_gap.max(lead.round_trip(majority) / 32);
        if !lead.confirmations.is_empty() && now < lead.confirm_at + gap {
            return Wake::At(lead.confirm_at + gap);
        }
        if lead.confirmations.len() >= 32 {
            return Wake::Sleep;
        }
        lead.confirm += 1;
        lead.confirm_at = now;
        let mut asked = SmallVec::new();
        for (peer, question) in lead.questions.iter_mut().enumerate() {
            if let Some(round) = question.take() {
                asked.push((ReplicaId(peer as u16), round));
            }
        }
        let round = Confirmation {
            confirm: lead.confirm,
            began_at: now,
            index: committed,
            asked,
        };
        lead.confirmations.push_back(round);
        Wake::Sleep
    }

    /// Who must still be asked to confirm: the nearest that make a majority, and everyone once
    /// these have not answered for a while. Waking one follower costs more than the message.
    pub(super) fn confirmers(&self, ctx: &mut Context<'_, Self>) -> (ReplicaSet, Wake) {
        let Role::Leader(lead) = &self.role else {
            return (ReplicaSet::EMPTY, Wake::Sleep);
        };
        let Some(oldest) = lead.confirmations.front() else {
            return (ReplicaSet::EMPTY, Wake::Sleep);
        };
        let up = |id: &ReplicaId| !lead.peers[id.index()].down;
        let asked = |id: &ReplicaId| lead.peers[id.index()].confirm_sent >= lead.confirm;
        let rest: ReplicaSet = self
            .others
            .iter()
            .filter(up)
            .filter(|id| !asked(id))
            .collect();
        if rest.is_empty() {
            return (rest, Wake::Sleep);
        }
        let now = ctx.now();
        let everyone_at = oldest.began_at + PATIENCE_MIN.max(lead.round_trip(self.majority) * 4);
        if now >= everyone_at {
            return (rest, Wake::Sleep);
        }
        let done = self.others.iter().filter(up).filter(asked).count();
        let mut nearest: SmallVec<[_; 8]> = rest
            .iter()
            .map(|id| {
                let peer = &lead.peers[id.index()];
                let silent = now.since(peer.heard_at) > self.config.heartbeat * 2;
                (silent, peer.round_trip, id)
            })
            .collect();
        nearest.sort_unstable();
        let missing = (self.majority - 1).saturating_sub(done);
        let chosen = nearest.iter().take(missing).map(|(.., id)| *id).collect();
        (chosen, Wake::At(everyone_at))
    }

    /// Answers the questions whose round a majority has confirmed.
    pub(super) fn finish_confirmations(&mut self, ctx: &mut Context<'_, Self>) {
        let (id, mut majority) = (self.id, self.majority);
        if self.planted(Plant::ReadsUnconfirmed) {
            majority = 1;
        }
        if self.planted(Plant::ReadsByLease)
            && let Role::Leader(lead) = &self.role
        {
            let lease = Duration::from_secs(2);
            let heard = |id: &ReplicaId| ctx.now().since(lead.peers[id.index()].heard_at) < lease;
            if 1 + self.others.iter().filter(heard).count() >= majority {
                majority = 1;
            }
        }
        loop {
            let Role::Leader(lead) = &mut self.role else {
                return;
            };
            let Some(round) = lead.confirmations.front() else {
                return;
            };
            let echoed = |peer: &ReplicaId| lead.peers[peer.index()].confirm >= round.confirm;
            if 1 + self.others.iter().filter(echoed).count() < majority {
                return;
            }
            let Some(Confirmation { index, asked, .. }) = lead.confirmations.pop_front() else {
                return;
            };
            for (peer, _) in &asked {
                // It answers its reads when it knows that much to be decided.
                let waits = &mut lead.peers[peer.index()].waits;
                *waits = index.max(*waits);
            }
            for (peer, round) in asked {
                if peer == id {
                    self.on_read_index_ok(round, index, ctx);
                } else {
                    ctx.send(peer, Lane::Control, &Message::ReadIndexOk { round, index });
                }
            }
        }
    }

    /// Reads of this round and of earlier ones may run: the index is newer than all of them.
    pub(super) fn on_read_index_ok(
        &mut self,
        round: u64,
        index: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if round > self.reads.sent {
            return ctx.mark("ignored: read index of another life");
        }
        while self
            .reads
            .waiting
            .front()
            .is_some_and(|read| read.round <= round)
        {
            if let Some(Read { key, batch, .. }) = self.reads.waiting.pop_front() {
                self.reads.bytes -= batch.len();
                ctx.query(batch, index, false, key.0, &());
            }
        }
    }
}
