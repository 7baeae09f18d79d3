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
//! after the question had arrived. With a majority of echoes, no other leader had decided anything
//! by then. So the leader's commit point covers all that was acknowledged before the question: it
//! already covers the decisions of earlier ballots, because questions wait for `ready_at`.

use super::{Message, MultiPaxos, bug::Bug, replica::Role};
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, ReplicaSet, Slot, Wake,
    parts::{RequestKey, reject_read},
};
use smallvec::SmallVec;

/// The nearest followers have at least this long to confirm reads before all are asked.
const CONFIRM_TIMEOUT_MIN: Duration = Duration::from_millis(5);

impl MultiPaxos {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self.reads.takes(batch.len(), self.config.queue_bytes) {
            return reject_read(key, ctx);
        }
        self.reads.push(key, batch, ctx.arrived());
        self.housekeeping.arm(ctx);
    }

    /// One question for all reads of the turn.
    pub(super) fn send_read_index(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(leader) = self.leader.other_than(self.me.id()) else {
            return;
        };
        if let Some(round) = self.reads.next_round() {
            ctx.send(leader, Lane::Control, &Message::ReadIndex { round });
        }
    }

    /// The question or its answer may be lost, or the leader is another: ask again.
    pub(super) fn repeat_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(round) = self.reads.newest() else {
            return;
        };
        if let Role::Leader(lead) = &mut self.role {
            lead.reads.replace(self.me.id(), Some(round));
            self.reads.sent(round);
        } else if let Some(leader) = self.leader.other_than(self.me.id()) {
            self.reads.sent(round);
            ctx.send(leader, Lane::Control, &Message::ReadIndex { round });
        }
    }

    pub(super) fn on_read_index(
        &mut self,
        from: ReplicaId,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        match &mut self.role {
            Role::Leader(lead) => lead.reads.ask(from, round),
            _ => ctx.mark("ignored: read index asked of a follower"),
        }
    }

    /// Starts a round of confirmation for all questions of the turn; the messages of this turn
    /// carry it.
    pub(super) fn begin_confirmation(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let own = self.reads.next_round();
        let early = self.injected(Bug::ReadsBeforeReady);
        let committed = self.log.committed();
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        if own.is_some() {
            lead.reads.replace(self.me.id(), own);
        }
        if !lead.reads.are_wanted() {
            return Wake::Sleep;
        }
        if committed < lead.ready_at() && !early {
            ctx.mark("read waits for the ballot's first commit");
            return Wake::Sleep;
        }
        let round_trip = lead.round_trip(self.me.majority());
        let gap = self.config.window_gap.max(round_trip / 32);
        lead.reads.begin(committed, gap, ctx.now())
    }

    /// The members to ask for confirmation: the nearest that make a majority, and everyone once
    /// these have not answered for a while. Waking one follower costs more than the message.
    pub(super) fn confirmers(&self, ctx: &mut Context<'_, Self>) -> (ReplicaSet, Wake) {
        let Role::Leader(lead) = &self.role else {
            return (ReplicaSet::EMPTY, Wake::Sleep);
        };
        let Some(oldest) = lead.reads.oldest() else {
            return (ReplicaSet::EMPTY, Wake::Sleep);
        };
        let up = |id: &ReplicaId| !lead.peers[id.index()].is_down();
        let asked = |id: &ReplicaId| lead.peers[id.index()].was_asked(lead.reads.number());
        let rest: ReplicaSet = self
            .me
            .others()
            .iter()
            .filter(up)
            .filter(|id| !asked(id))
            .collect();
        if rest.is_empty() {
            return (rest, Wake::Sleep);
        }
        let now = ctx.now();
        let everyone_at = oldest + CONFIRM_TIMEOUT_MIN.max(lead.round_trip(self.me.majority()) * 4);
        if now >= everyone_at {
            return (rest, Wake::Sleep);
        }
        let done = self.me.others().iter().filter(up).filter(asked).count();
        let mut nearest: SmallVec<[_; 8]> = rest
            .iter()
            .map(|id| {
                let peer = &lead.peers[id.index()];
                let silent = now.since(peer.received_at()) > self.config.heartbeat * 2;
                (silent, peer.round_trip(), id)
            })
            .collect();
        nearest.sort_unstable();
        let missing = (self.me.majority() - 1).saturating_sub(done);
        let chosen = nearest.iter().take(missing).map(|(.., id)| *id).collect();
        (chosen, Wake::At(everyone_at))
    }

    /// Answers the questions whose round a majority has confirmed.
    pub(super) fn finish_confirmations(&mut self, ctx: &mut Context<'_, Self>) {
        let (id, mut majority) = (self.me.id(), self.me.majority());
        if self.injected(Bug::ReadsUnconfirmed) {
            majority = 1;
        }
        if self.injected(Bug::ReadsByLease)
            && let Role::Leader(lead) = &self.role
        {
            let lease = Duration::from_secs(2);
            let heard =
                |id: &ReplicaId| ctx.now().since(lead.peers[id.index()].received_at()) < lease;
            if 1 + self.me.others().iter().filter(heard).count() >= majority {
                majority = 1;
            }
        }
        loop {
            let Role::Leader(lead) = &mut self.role else {
                return;
            };
            let (peers, others) = (&lead.peers, self.me.others());
            let is_confirmed = |number| {
                let echoed = |peer: &ReplicaId| peers[peer.index()].confirm() >= number;
                1 + others.iter().filter(echoed).count() >= majority
            };
            let Some((index, asked)) = lead.reads.finish(is_confirmed) else {
                return;
            };
            for (peer, _) in &asked {
                // It answers its reads when it knows that much to be decided.
                lead.peers[peer.index()].waits_for(index);
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
        if !self.reads.was_sent(round) {
            return ctx.mark("ignored: read index of another incarnation");
        }
        while let Some((key, batch)) = self.reads.pop_up_to(round) {
            ctx.query(batch, index, false, key.0, &());
        }
    }
}
