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
    Config, Message, MultiPaxos, Promised, Proposal, Record, Summary, Value,
    acknowledgement::Acknowledgement, bug::Bug, replica::Role,
};
use crate::sadl::Dissemination;
use alloc::vec::Vec;
use quintet_replica::{
    Context, Lane, PersistId, Recovered, ReplicaId, Slot,
    parts::{Ballot, Ballots, Decisions, Election, Held, request_key},
};

impl MultiPaxos {
    /// Writes down a promise; what depends on it waits for `promise_durable`.
    pub(super) fn raise_promise(&mut self, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        self.ballots.raise(ballot);
        if self.injected(Bug::AcceptRaisesNothing) && ballot.owner != self.me.id() {
            self.ballots.assume_durable();
        } else {
            self.write_promise(ctx);
        }
        if self.injected(Bug::LogLostOnStepDown) {
            self.log.drop_undecided();
        }
        if !self.injected(Bug::HeldSurvivesBallot) {
            self.log.withdraw();
        }
        self.leader.reset();
        self.acknowledgement = Acknowledgement::default();
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
            ballot == self.ballots.promised(),
            "accepted under the ballot that is promised"
        );
        let record = Record::Accepted {
            ballot,
            committed: self.log.committed(),
            proposal: proposal.clone(),
        };
        let id = ctx.persist(slot, &record);
        self.log.accept(slot, ballot, proposal);
        id
    }

    /// Everything held becomes this replica's vote when that write is durable.
    pub(super) fn vote_after(&mut self, write: PersistId) {
        if self.injected(Bug::VoteNotDurable) {
            self.log.vote_now();
        }
        self.log.vote_after(write, self.ballots.promised());
    }

    /// Whether to continue with a message of the leader of `ballot`. Takes a new leader for
    /// granted.
    pub(super) fn accept_leader(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if from != ballot.owner {
            ctx.mark("ignored: ballot of another");
            return false;
        }
        if matches!(self.role, Role::Recovering(_))
            && !self.accept_leader_while_recovering(ballot, ctx)
        {
            return false;
        }
        if ballot < self.ballots.promised() {
            ctx.mark("ignored: old ballot");
            self.send_reject(from, ballot, ctx);
            return false;
        }
        if ballot > self.ballots.promised() {
            self.step_down(ctx);
            self.raise_promise(ballot, ctx);
        }
        self.leader.received(ctx.arrived());
        if !self.leader.is(from) {
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
        if !self.accept_leader(from, ballot, ctx) {
            return;
        }
        self.acknowledgement.request(confirm, stamp);
        self.log.learn_needed_after(everywhere);
        if first > self.log.held().next() {
            ctx.mark("gap in accepted slots");
        } else {
            let mut write = None;
            for (slot, proposal) in (first.0..).map(Slot).zip(proposals) {
                if slot <= self.log.held() {
                    if !self.is_same(slot, ballot, &proposal, ctx) {
                        return;
                    }
                } else {
                    write = Some(self.append(slot, ballot, proposal, ctx));
                }
            }
            if let Some(write) = write {
                self.vote_after(write);
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
        if held.ballot == ballot && held.entry != *proposal {
            ctx.contradicted(format_args!(
                "two values for slot {slot} in ballot {ballot}, the second from {from}"
            ));
            false
        } else if held.ballot != ballot
            && slot <= self.log.committed()
            && held.entry.value != proposal.value
        {
            ctx.contradicted(format_args!(
                "two decisions for slot {slot}, the second from {from}"
            ));
            false
        } else {
            true
        }
    }

    /// The leader of `promised` says that all is decided up to `committed`; here that holds for
    /// what was accepted from it.
    pub(super) fn learn_committed(&mut self, committed: Slot, ctx: &mut Context<'_, Self>) {
        if self.injected(Bug::CommitUnmatched) {
            let end = self.log.end().previous();
            self.log.assume_held(committed.min(end));
        }
        self.log.learn_decided(self.ballots.promised(), committed);
        if self.log.commit(committed) {
            self.execute(ctx);
        }
        self.maybe_recovered(ctx);
    }

    /// Another replica tells which ballots decided how much: what was accepted under these, behind
    /// the commit point, is decided, whatever is promised now. True when that is new.
    pub(super) fn learn_decisions(
        &mut self,
        told: &Decisions,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        self.log.merge_decisions(told);
        let upto = self.log.known_decided();
        if upto <= self.log.committed() {
            return false;
        }
        ctx.mark("decided as accepted under an earlier ballot");
        self.log.hold_decided(upto);
        self.log.commit(upto);
        self.extend_held();
        self.execute(ctx);
        true
    }

    /// Executes what is decided and held.
    pub(super) fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        while self.log.executed() < self.log.committed() {
            let slot = self.log.executed().next();
            let Some(held) = self.log.get(slot) else {
                break;
            };
            let batch = match &held.entry.value {
                Value::Batch(batch) => batch.clone(),
                Value::Named(name) => match self.named(*name) {
                    Some(batch) => batch,
                    None => {
                        self.want_batches(ctx);
                        break;
                    }
                },
            };
            let time = self.log.time_of(&held.entry);
            if let Value::Named(name) = held.entry.value
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
            self.log.executing(slot, time);
            ctx.execute(slot, time, batch, reply);
        }
        if self.fetching.reached(self.log.executed()) {
            ctx.mark("log overtook the state transfer");
        }
        self.log.trim(self.config.log_memory_bytes);
    }

    /// Something long comes from the leader, and what asks for answers waits behind it: the leader
    /// is told that this replica is there, too, and nothing that it could measure.
    pub(super) fn on_leader_arriving(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        if now.since(self.leader.received_at()) >= self.config.heartbeat {
            self.leader.arriving(now);
            if let Some((leader, message)) = self.accept_ok(0) {
                ctx.send(leader, Lane::Control, &message);
            }
        }
    }

    pub(super) fn send_accept_ok(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some((leader, message)) = self.accept_ok(self.acknowledgement.stamp()) {
            self.acknowledgement.sent();
            ctx.send(leader, Lane::Control, &message);
        }
    }

    fn accept_ok(&self, stamp: u64) -> Option<(ReplicaId, Message)> {
        let leader = self.leader.leader();
        let leader = leader.filter(|_| self.ballots.is_durable())?;
        let message = Message::AcceptOk {
            ballot: self.ballots.promised(),
            incarnation: self.me.incarnation(),
            held: self.log.held(),
            durable: self.log.vote(),
            executed: self.log.executed_done(),
            confirm: self.acknowledgement.confirm(),
            stamp,
        };
        Some((leader, message))
    }

    /// Restores log and pointers from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(Promised { ballot, chain }) = recovered.promise
            && !self.injected(Bug::PromiseLost)
        {
            self.ballots.restore(ballot);
            self.sadl.begin(chain);
        }
        if let Some((slot, summary)) = recovered.checkpoint {
            self.restart_at(slot, summary);
            self.log.on_executed(slot);
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
            if !self.injected(Bug::AcceptRaisesNothing) {
                self.ballots.restore(ballot);
            }
            self.log.restore_committed(committed);
            if self.injected(Bug::GhostEntries) && self.log.get(slot).is_some() {
                continue;
            }
            self.log.restore(slot, ballot, proposal);
        }
        if self.log.committed() >= self.log.end() {
            return false;
        }
        if self.me.majority() == 1 {
            // Alone, what is durable is decided. Proposed again it would be written again, and a
            // disk that has just filled up has no room for that.
            self.log.restore_committed(self.log.end().previous());
        }
        self.log.restore_committed(self.log.known_decided());
        self.ballots.restored();
        self.log.restored(Self::counts(&self.ballots, &self.config));
        true
    }

    /// Whether an entry counts as accepted under the promised ballot.
    fn counts(ballots: &Ballots, config: &Config) -> impl Fn(&Held<Proposal>) -> bool + use<> {
        let (promised, all) = (ballots.promised(), config.injected.is(Bug::TailKept));
        move |held| held.ballot == promised || all
    }

    /// Entries above `held` that were accepted under the promised ballot count again.
    pub(super) fn extend_held(&mut self) {
        self.log
            .extend_held(Self::counts(&self.ballots, &self.config));
    }

    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub(super) fn restart_at(&mut self, slot: Slot, summary: Summary) {
        self.log.install(slot, summary.time);
        self.log.restore_committed(slot);
        self.log.merge_decisions(&summary.decisions);
        self.sadl.install(&summary.heads);
    }

    /// Fetches a state that covers `at_least`.
    pub(super) fn fetch_state(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        self.fetching
            .ask(at_least, self.log.executed(), self.me.others(), ctx);
    }

    pub(super) fn on_trimmed(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        (first, decisions): (Slot, &Decisions),
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.accept_leader(from, ballot, ctx) || first <= self.log.held().next() {
            return;
        }
        if self.learn_decisions(decisions, ctx) {
            // The leader sends again what follows.
            self.acknowledgement.want();
            self.maybe_recovered(ctx);
        }
        if first > self.log.held().next() {
            self.fetch_state(first.previous(), ctx);
        }
    }
}
