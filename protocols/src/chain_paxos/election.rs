//! Elections (Alg. 4): who stands, who promises, and what the winner must propose again. The steps
//! are those of [`Election`]; here is what they rest on in ChainPaxos, and when a replica stands.

use super::{
    Entry,
    bug::Bug,
    replica::{ChainPaxos, Role, Timer},
};
use alloc::collections::BTreeMap;
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, ReplicaId, Slot, Time, election_parts,
    parts::{
        Ballot, Decisions, Election, Held, PhaseOne, PromisePage, election_timeout,
        random_duration, soon,
    },
};

/// A replica outside the chain stands only when no leader was heard for that many times the
/// timeout; a replica ahead of a state that does not come waits as long for it.
const OUTSIDE_TIMEOUTS: u32 = 4;

impl Election for ChainPaxos {
    election_parts!(Entry);

    fn candidate(&mut self) -> Option<&mut PhaseOne<Entry>> {
        match &mut self.role {
            Role::Candidate(candidate, _) => Some(candidate),
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
        matches!(self.role, Role::Follower) && self.able()
    }

    fn abstains(&self) -> Option<&'static str> {
        (!self.catch_up.is_voting()).then_some("ignored: state lost")
    }

    fn leader_timeout(&self) -> Duration {
        election_timeout(self.config.election_timeout, self.leader.round_trip() * 5)
    }

    fn message_limits(&self) -> (usize, usize) {
        (self.config.batch_bytes_max, self.message_bytes())
    }

    fn has_pre_vote(&self) -> bool {
        self.config.pre_vote
    }

    fn stands_behind(&self) -> Slot {
        if self.hollow() {
            self.log.executed()
        } else {
            self.log.committed()
        }
    }

    fn vouches_from(&self) -> Slot {
        self.catch_up.vouches_from(&self.log)
    }

    fn arm_election(&self, ctx: &mut Context<'_, Self>) {
        let mut timeout = self.leader_timeout();
        if !self.chain.decided().contains(self.me.id()) {
            timeout *= OUTSIDE_TIMEOUTS;
        }
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
                self.downstream.unlink();
                self.reroute(ctx);
            }
            Role::Candidate(..) => {}
            Role::Follower => return,
        }
        self.role = Role::Follower;
        self.arm_election(ctx);
    }

    fn stand(&mut self, candidate: PhaseOne<Entry>) {
        self.role = Role::Candidate(candidate, None);
    }

    fn become_candidate(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let silent = |old: &ReplicaId| {
            *old != self.me.id() && self.peers.silence(*old, now) >= self.config.suspect_timeout
        };
        let deposed = Some(self.ballots.promised().owner).filter(silent);
        if self.hollow() {
            self.go_back(ctx);
        }
        let ballot = self.ballots.next(self.me.id());
        self.raise_promise(ballot, ctx);
        let from = self.log.committed().next();
        let candidate = PhaseOne::promising(ballot, self.me.members(), from);
        self.role = Role::Candidate(candidate, deposed);
        self.arm_election(ctx);
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
        self.peers.incarnations().of(peer)
    }

    fn propose_again(
        &mut self,
        gathered: BTreeMap<Slot, Held<Entry>>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.propose_again(gathered, ctx);
    }

    fn on_first_leader(&mut self, ctx: &mut Context<'_, Self>) {
        self.become_leader(ctx);
    }

    fn on_elected(&mut self, _: &[Option<Slot>], ctx: &mut Context<'_, Self>) {
        let deposed = match self.role {
            Role::Candidate(_, deposed) => deposed,
            _ => None,
        };
        self.become_leader(ctx);
        // The new leader removes the old one, and whom it cannot reach (§3.4).
        let gone = deposed.map_or(self.peers.down(), |old| self.peers.down().with(old));
        for id in gone.iter() {
            self.maybe_remove(id, ctx);
        }
    }

    fn promises_hastily(&self) -> bool {
        self.injected(Bug::PromiseNotDurable)
    }

    fn prefers_lowest(&self) -> bool {
        self.injected(Bug::LowestBallotWins)
    }

    fn on_page_injected(
        &mut self,
        from: ReplicaId,
        page: &mut PromisePage<Entry>,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        let copies = self.injected(Bug::CandidateDecidesCopies);
        let Role::Candidate(candidate, _) = &mut self.role else {
            return false;
        };
        let decides = copies && page.committed >= page.from && !candidate.is_complete(from);
        if decides {
            self.decide_copies(from, page.committed, ctx);
        }
        decides
    }
}

impl ChainPaxos {
    /// `leader` leads the promised ballot.
    pub(super) fn become_follower_of(&mut self, leader: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.step_down(ctx);
        self.leader.follow(leader);
        self.catch_up.progressed();
        self.leader.received(ctx.arrived());
        self.downstream.unlink();
        self.reroute(ctx);
        self.forward_all();
        self.reads.ask_again();
    }

    /// The leader is suspected from here. Whether others think so too, they are asked.
    pub(super) fn on_leader_down(&mut self, ctx: &mut Context<'_, Self>) {
        if self.leader.link_down() {
            self.arm_election_soon(ctx);
        }
    }

    pub(super) fn on_election_timer(&mut self, ctx: &mut Context<'_, Self>) {
        if matches!(self.role, Role::Leader(_)) {
            return;
        }
        let now = ctx.now();
        if self.leader_is_alive(now, ctx) {
            return;
        }
        // A replica that asks now is told at once that no replica can order anything.
        self.leader.lose();
        self.reroute(ctx);
        self.arm_election(ctx);
        if !self.catch_up.is_voting() || (self.hollow() && !self.may_go_back(now)) {
            return ctx.mark("does not stand without its state");
        }
        self.maybe_stand(ctx);
    }

    /// Whether to stand without the state that was gone ahead of: it has not come for long, perhaps
    /// because the replica that had it lost it, and the own log holds all that was accepted behind
    /// it. If a quorum decided a value, one of any quorum has accepted it; each says from where on
    /// it keeps all that it ever accepted. So the values of highest ballot are the decided ones
    /// there, too.
    fn may_go_back(&self, now: Time) -> bool {
        let long = self.leader_timeout() * OUTSIDE_TIMEOUTS;
        self.catch_up
            .fetching()
            .since()
            .is_none_or(|since| now.since(since) > long)
            && self.catch_up.vouches_from(&self.log) <= self.log.executed().next()
    }

    /// Takes back that it went ahead of its state. Decided entries stay decided, and come out of
    /// the election as they were.
    fn go_back(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("stands without the state that it waits for");
        self.catch_up.go_back(self.log.committed());
        self.log.return_to_executed();
        self.chain.go_back();
    }

    /// An injected bug: what another knows to be decided is taken to be what is held here.
    fn decide_copies(&mut self, from: ReplicaId, known: Slot, ctx: &mut Context<'_, Self>) {
        let known = known.min(self.log.end().previous());
        let mut upto = self.log.committed();
        while upto < known && self.log.get(upto.next()).is_some() {
            upto = upto.next();
        }
        self.log.restore_committed(upto);
        self.log.assume_held(upto);
        let Role::Candidate(candidate, _) = &mut self.role else {
            return;
        };
        candidate.assume_complete(from);
        if candidate.has(self.me.majority()) {
            self.propose_again(BTreeMap::new(), ctx);
            self.become_leader(ctx);
        }
    }
}
