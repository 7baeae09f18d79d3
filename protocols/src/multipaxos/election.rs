//! Elections: who stands, who promises, and what the winner must propose again. The steps are those
//! of [`Election`]; here is what they rest on in Multi-Paxos, and when a replica stands.

use super::{
    MultiPaxos, Proposal,
    bug::Bug,
    message::MESSAGE_BYTES,
    replica::{Role, Timer},
};
use alloc::collections::BTreeMap;
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, ReplicaId, Slot, election_parts,
    parts::{
        Ballot, Decisions, Election, Held, PhaseOne, PromisePage, election_timeout,
        random_duration, soon,
    },
};

/// A replica that has no leader waits this many election timeouts for a peer's state before it
/// stands all the same.
const FETCH_TIMEOUTS: u32 = 6;

impl Election for MultiPaxos {
    election_parts!(Proposal);

    fn candidate(&mut self) -> Option<&mut PhaseOne<Proposal>> {
        match &mut self.role {
            Role::Candidate(candidate) => Some(candidate),
            _ => None,
        }
    }

    fn leads(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    fn is_transferring(&self) -> bool {
        matches!(&self.role, Role::Leader(lead) if lead.is_transferring())
    }

    fn may_succeed(&self) -> bool {
        matches!(self.role, Role::Follower) && !self.fetching.in_progress()
    }

    fn abstains(&self) -> Option<&'static str> {
        matches!(self.role, Role::Recovering(_)).then_some("ignored: recovering")
    }

    fn leader_timeout(&self) -> Duration {
        let round_trip = match &self.role {
            Role::Leader(lead) => lead.round_trip(self.me.majority()),
            _ => self.leader.round_trip(),
        };
        election_timeout(self.config.election_timeout, round_trip * 10)
    }

    fn message_limits(&self) -> (usize, usize) {
        (self.config.batch_bytes_max, MESSAGE_BYTES)
    }

    fn has_pre_vote(&self) -> bool {
        self.config.pre_vote
    }

    fn arm_election(&self, ctx: &mut Context<'_, Self>) {
        let timeout = self.leader_timeout();
        let delay = timeout + random_duration(timeout, ctx);
        ctx.set_timer(Timer::Election, delay);
    }

    fn arm_election_soon(&self, ctx: &mut Context<'_, Self>) {
        let delay = soon(self.config.heartbeat, ctx);
        ctx.set_timer(Timer::Election, delay);
    }

    fn arm_election_in(&self, delay: Duration, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Election, delay);
    }

    fn step_down(&mut self, ctx: &mut Context<'_, Self>) {
        match self.role {
            Role::Leader(_) => {
                ctx.mark("leader stepped down");
                self.leader.lose();
            }
            Role::Candidate(_) => {}
            Role::Follower | Role::Recovering(_) => return,
        }
        self.role = Role::Follower;
        ctx.cancel_timer(Timer::Heartbeat);
        self.arm_election(ctx);
    }

    fn stand(&mut self, candidate: PhaseOne<Proposal>) {
        self.role = Role::Candidate(candidate);
    }

    fn raise_promise(&mut self, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        self.raise_promise(ballot, ctx);
    }

    fn learn_decisions(&mut self, told: &Decisions, ctx: &mut Context<'_, Self>) -> bool {
        self.learn_decisions(told, ctx)
    }

    fn fetch_state(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        self.fetch_state(at_least, ctx);
    }

    fn observe(&mut self, peer: ReplicaId, incarnation: Incarnation, ctx: &mut Context<'_, Self>) {
        self.meet(peer, incarnation, ctx);
    }

    fn incarnation_of(&self, peer: ReplicaId) -> Incarnation {
        self.incarnations.of(peer)
    }

    fn on_prepared(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
    }

    fn propose_again(
        &mut self,
        gathered: BTreeMap<Slot, Held<Proposal>>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.propose_again(gathered, ctx);
    }

    fn on_first_leader(&mut self, ctx: &mut Context<'_, Self>) {
        self.become_leader(&[], ctx);
    }

    fn on_elected(&mut self, commit_points: &[Option<Slot>], ctx: &mut Context<'_, Self>) {
        self.become_leader(commit_points, ctx);
    }

    fn promises_hastily(&self) -> bool {
        self.injected(Bug::PromiseNotDurable)
    }

    fn prefers_lowest(&self) -> bool {
        self.injected(Bug::LowestBallotWins)
    }

    fn counts_stale(&self) -> bool {
        self.injected(Bug::StalePromiseCounts)
    }

    fn on_page_injected(
        &mut self,
        from: ReplicaId,
        page: &mut PromisePage<Proposal>,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if self.injected(Bug::LaggardLeads) {
            page.first = page.from;
        }
        let double = self.injected(Bug::DuplicatePromiseCounts);
        let Role::Candidate(candidate) = &mut self.role else {
            return false;
        };
        if !candidate.is_complete(from) || !double {
            return false;
        }
        let voters = candidate.voters();
        let more = self.me.others().iter().find(|id| !voters.contains(*id));
        more.into_iter().for_each(|id| candidate.vote(id));
        self.maybe_win(ctx);
        true
    }

    fn on_reject_injected(&mut self, from: ReplicaId, ctx: &mut Context<'_, Self>) -> bool {
        if self.injected(Bug::RefusalCounts)
            && let Role::Candidate(candidate) = &mut self.role
            && candidate.prepares()
        {
            candidate.vote(from);
            self.maybe_win(ctx);
            return true;
        }
        if self.injected(Bug::StaleAcceptCounts)
            && let Role::Leader(lead) = &mut self.role
        {
            let end = self.log.end().previous();
            lead.peers[from.index()].assume_durable(end);
            self.maybe_commit(ctx);
            return true;
        }
        false
    }
}

impl MultiPaxos {
    /// `leader` leads the promised ballot.
    pub(super) fn become_follower_of(&mut self, leader: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.step_down(ctx);
        self.leader.follow(leader);
        self.forward_all();
        self.repeat_reads(ctx);
    }

    pub(super) fn on_leader_down(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.role, Role::Recovering(_)) {
            self.leader.link_down();
            self.arm_election_soon(ctx);
        }
    }

    pub(super) fn on_election_timer(&mut self, ctx: &mut Context<'_, Self>) {
        if matches!(self.role, Role::Leader(_) | Role::Recovering(_)) {
            return;
        }
        let now = ctx.now();
        if self.leader_is_alive(now, ctx) {
            return;
        }
        self.leader.lose();
        self.arm_election(ctx);
        if let Some(since) = self.fetching.since() {
            if now.since(since) < self.leader_timeout() * FETCH_TIMEOUTS {
                return ctx.mark("does not stand while it fetches state");
            }
            // A replica that had that state may be gone permanently, and the others hold the
            // entries between them. Should it come after all, it is installed all the same.
            ctx.mark("stands although it fetches state");
            self.fetching.give_up();
        }
        self.maybe_stand(ctx);
    }

    pub(super) fn on_heartbeat_timer(&mut self, ctx: &mut Context<'_, Self>) {
        match &self.role {
            Role::Leader(_) => self.on_leader_heartbeat(ctx),
            Role::Recovering(_) => self.ask_to_recover(ctx),
            Role::Candidate(candidate) if candidate.prepares() => {
                self.request_promises(ctx);
                ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
            }
            Role::Follower | Role::Candidate(_) => {}
        }
    }
}
