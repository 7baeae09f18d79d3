//! The acceptor and learner: what every replica does with a leader's proposals.
//!
//! ```text
//!   Accept{ballot, first, ...} ──► old ballot? Reject
//!        │                         higher?     promise it, on disk before any answer
//!        ▼
//!   log + journal ──(durable)──► AcceptOk        held ≥ committed ≥ executed
//!        └──(committed by the leader's word)──► execute
//! ```

use super::{
    Message, MultiPaxos, Promised, Proposal, Record, Summary, Value,
    plant::Plant,
    replica::{Held, Role},
};
use crate::sadl::Dissemination;
use alloc::vec::Vec;
use quintet_replica::{
    Context, Lane, PersistId, Recovered, ReplicaId, Slot,
    parts::{Ballot, request_key},
};

impl MultiPaxos {
    /// Writes down a promise; what depends on it waits for `promise_durable`.
    pub(super) fn raise_promise(&mut self, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        assert!(ballot > self.promised, "promises only rise");
        self.promised = ballot;
        self.ballot_seen = self.ballot_seen.max(ballot);
        if self.planted(Plant::AcceptRaisesNothing) && ballot.owner != self.id {
            self.promise_durable = ballot;
        } else {
            self.write_promise(ctx);
        }
        if self.planted(Plant::LogLostOnStepDown) {
            self.log.truncate(self.committed.next());
            let left = self.log.iter_from(self.log.first());
            self.log_bytes = left.map(|(_, held)| held.bytes()).sum();
        }
        if !self.planted(Plant::HeldSurvivesBallot) {
            self.held = self.committed;
            self.durable = self.committed;
        }
        self.leader = None;
        self.leader_down = false;
        self.promise_owed = None;
        self.answer_due = false;
        self.confirm_seen = 0;
        self.stamp_seen = 0;
    }

    /// Puts a proposal into the log and the journal.
    pub(super) fn append(
        &mut self,
        slot: Slot,
        ballot: Ballot,
        proposal: Proposal,
        ctx: &mut Context<'_, Self>,
    ) -> PersistId {
        assert!(
            ballot == self.promised,
            "accepted under the ballot that is promised"
        );
        assert!(slot > self.committed, "a decided slot is not decided again");
        self.time_seen = self.time_seen.max(proposal.time);
        let record = Record::Accepted {
            ballot,
            committed: self.committed,
            proposal: proposal.clone(),
        };
        let id = ctx.persist(slot, &record);
        let held = Held { ballot, proposal };
        self.log_bytes += held.bytes();
        if let Some(old) = self.log.set(slot, held) {
            self.log_bytes -= old.bytes();
        }
        id
    }

    /// Everything up to `upto` becomes this replica's vote when that write is durable.
    pub(super) fn vote_after(&mut self, write: PersistId, upto: Slot) {
        if self.planted(Plant::VoteNotDurable) {
            self.durable = upto;
        }
        self.writes.push_back((write, self.promised, upto));
    }

    /// Whether to go on with a message of the leader of `ballot`. Takes a new leader for granted.
    pub(super) fn heed(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if from != ballot.owner {
            ctx.mark("ignored: ballot of another");
            return false;
        }
        if matches!(self.role, Role::Recovering(_)) && !self.heed_recovering(ballot, ctx) {
            return false;
        }
        if ballot < self.promised {
            ctx.mark("ignored: old ballot");
            let promised = self.promised;
            ctx.send(from, Lane::Control, &Message::Reject { ballot, promised });
            return false;
        }
        if ballot > self.promised {
            self.step_down(ctx);
            self.raise_promise(ballot, ctx);
        }
        self.heard_at = ctx.arrived();
        self.leader_down = false;
        if self.leader != Some(from) {
            self.become_follower_of(from, ctx);
        }
        true
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn on_accept(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        (first, proposals): (Slot, Vec<Proposal>),
        committed: Slot,
        confirm: u64,
        stamp: u64,
        everywhere: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.heed(from, ballot, ctx) {
            return;
        }
        self.answer(confirm, stamp);
        self.everywhere = self.everywhere.max(everywhere);
        if first > self.held.next() {
            ctx.mark("gap in accepted slots");
        } else {
            let mut write = None;
            for (slot, proposal) in (first.0..).map(Slot).zip(proposals) {
                if slot <= self.held {
                    if !self.is_same(slot, ballot, &proposal, ctx) {
                        return;
                    }
                } else {
                    write = Some(self.append(slot, ballot, proposal, ctx));
                    self.held = slot;
                }
            }
            if let Some(write) = write {
                self.vote_after(write, self.held);
            }
        }
        self.learn_committed(committed, ctx);
    }

    /// A slot is proposed once per ballot, and decided once: false, and the replica stops, where
    /// this is another value.
    fn is_same(
        &self,
        slot: Slot,
        ballot: Ballot,
        proposal: &Proposal,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        let Some(held) = self.log.get(slot) else {
            return true;
        };
        let from = ballot.owner;
        if held.ballot == ballot && held.proposal != *proposal {
            ctx.contradicted(format_args!(
                "two values for slot {slot} in ballot {ballot}, the second from {from}"
            ));
            false
        } else if held.ballot != ballot
            && slot <= self.committed
            && held.proposal.value != proposal.value
        {
            ctx.contradicted(format_args!(
                "two decisions for slot {slot}, the second from {from}"
            ));
            false
        } else {
            true
        }
    }

    pub(super) fn answer(&mut self, confirm: u64, stamp: u64) {
        self.answer_due = true;
        self.confirm_seen = self.confirm_seen.max(confirm);
        self.stamp_seen = self.stamp_seen.max(stamp);
    }

    /// The leader of `promised` says that all is decided up to `committed`; here that holds for
    /// what was accepted from it.
    pub(super) fn learn_committed(&mut self, committed: Slot, ctx: &mut Context<'_, Self>) {
        if self.planted(Plant::CommitUnmatched) {
            self.held = self.held.max(committed.min(self.log.end().previous()));
        }
        let committed = committed.min(self.held);
        if committed > self.committed {
            self.committed = committed;
            self.durable = self.durable.max(committed);
            self.execute(ctx);
        }
        self.maybe_recovered(ctx);
    }

    /// Executes what is decided and held.
    pub(super) fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        while self.executed < self.committed {
            let slot = self.executed.next();
            let Some(held) = self.log.get(slot) else {
                break;
            };
            let batch = match &held.proposal.value {
                Value::Batch(batch) => batch.clone(),
                Value::Named(name) => match self.named(*name) {
                    Some(batch) => batch,
                    None => {
                        self.want_batches(ctx);
                        break;
                    }
                },
            };
            // A slot re-proposed after its successor was first proposed may carry a later time;
            // every replica executes the same slots, so all of them smooth it the same way.
            let time = held.proposal.time.max(self.time_executed);
            if let Value::Named(name) = held.proposal.value
                && self.follows(name)
            {
                self.sadl.executed(name, slot);
            }
            let mut reply = None;
            if let Some(key) = request_key(&batch) {
                if let Role::Leader(lead) = &mut self.role {
                    lead.queue.finished(key);
                }
                if self.requests.executed(key) || key.0 == ctx.embedded() {
                    reply = Some((key.0, (), None));
                }
            }
            self.executed = slot;
            self.time_executed = time;
            ctx.execute(slot, time, batch, reply);
        }
        if self.fetching.reached(self.executed) {
            ctx.mark("log overtook the state transfer");
        }
        self.trim_log();
    }

    /// Forgets executed entries beyond what may be kept for those that lag.
    pub(super) fn trim_log(&mut self) {
        let most = self.config.log_memory_bytes;
        // What everyone has executed is kept for a little longer: a replica that restarts knows
        // the last few commits only from others.
        let least = most / 16;
        let (mut below, mut bytes) = (self.log.first(), self.log_bytes);
        while bytes > least && below <= self.executed {
            if bytes <= most && below > self.everywhere {
                break;
            }
            bytes -= self.log.get(below).map_or(0, Held::bytes);
            below = below.next();
        }
        self.log.trim(below, |_| {});
        self.log_bytes = bytes;
    }

    /// Something long comes from the leader, and what asks for answers waits behind it: it is told
    /// that this replica is there, too, and nothing that it could measure.
    pub(super) fn on_leader_arriving(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, due) = (ctx.now(), self.answer_due);
        if now.since(self.heard_at) >= self.config.heartbeat {
            self.heard_at = now;
            let stamp = core::mem::take(&mut self.stamp_seen);
            self.send_accept_ok(ctx);
            (self.stamp_seen, self.answer_due) = (stamp, due);
        }
    }

    pub(super) fn send_accept_ok(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(leader) = self
            .leader
            .filter(|_| self.promise_durable == self.promised)
        else {
            return;
        };
        self.answer_due = false;
        let message = Message::AcceptOk {
            ballot: self.promised,
            incarnation: self.incarnation,
            held: self.held,
            durable: self.durable.min(self.held),
            executed: self.executed_done,
            confirm: self.confirm_seen,
            stamp: self.stamp_seen,
        };
        ctx.send(leader, Lane::Control, &message);
    }

    /// Restores log and pointers from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(Promised { ballot, chain }) = recovered.promise
            && !self.planted(Plant::PromiseForgotten)
        {
            self.promised = ballot;
            self.sadl.begin(chain);
        }
        if let Some((slot, summary)) = recovered.checkpoint {
            self.restart_at(slot, summary);
            self.executed_done = slot;
        }
        for (slot, record) in recovered.records {
            let (ballot, committed, proposal) = match record {
                Record::Accepted {
                    ballot,
                    committed,
                    proposal,
                } => (ballot, committed, proposal),
                Record::Batch { name, batch } => {
                    self.sadl.restore(name, batch, slot);
                    continue;
                }
            };
            if slot < self.log.first() {
                continue;
            }
            if slot > self.log.end() {
                return false;
            }
            if !self.planted(Plant::AcceptRaisesNothing) {
                self.promised = self.promised.max(ballot);
            }
            self.committed = self.committed.max(committed);
            self.time_seen = self.time_seen.max(proposal.time);
            let held = Held { ballot, proposal };
            if self.planted(Plant::GhostEntries) && self.log.get(slot).is_some() {
                continue;
            }
            self.log_bytes += held.bytes();
            if let Some(old) = self.log.set(slot, held) {
                self.log_bytes -= old.bytes();
            }
        }
        if self.committed >= self.log.end() {
            return false;
        }
        if self.majority == 1 {
            // Alone, what is durable is decided. Proposed again it would be written again, and a
            // disk that has just filled up has no room for that.
            self.committed = Slot(self.log.end().0 - 1);
        }
        self.promise_durable = self.promised;
        self.ballot_seen = self.ballot_seen.max(self.promised);
        self.held = self.committed;
        self.extend_held();
        self.durable = self.held;
        true
    }

    /// Entries above `held` that were accepted under the promised ballot count again.
    pub(super) fn extend_held(&mut self) {
        while self
            .log
            .get(self.held.next())
            .is_some_and(|held| held.ballot == self.promised || self.planted(Plant::TailKept))
        {
            self.held = self.held.next();
        }
    }

    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub(super) fn restart_at(&mut self, slot: Slot, summary: Summary) {
        let mut bytes = self.log_bytes;
        self.log.trim(slot.next(), |held| bytes -= held.bytes());
        self.log_bytes = bytes;
        self.executed = self.executed.max(slot);
        self.committed = self.committed.max(slot);
        self.held = self.held.max(slot);
        self.durable = self.durable.max(slot);
        self.time_executed = self.time_executed.max(summary.time);
        self.time_seen = self.time_seen.max(summary.time);
        self.sadl.install(&summary.heads);
    }

    /// Fetches a state that covers `at_least`.
    pub(super) fn fetch_state(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        self.fetching.ask(at_least, self.executed, self.others, ctx);
    }

    pub(super) fn on_trimmed(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        first: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.heed(from, ballot, ctx) && first > self.held.next() {
            self.fetch_state(first.previous(), ctx);
        }
    }
}
