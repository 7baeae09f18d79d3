//! Elections (Alg. 4): who stands, who promises, and what the winner must propose again.
//!
//! ```text
//!   leader silent ──► PreVote ──► majority would promise ──► own promise on disk ──► Prepare
//!                                                                                      │
//!   leader ◄── proposes the highest-ballot value of ◄── Promise, page by page, from ◄──┘
//!              every slot again, nothing in gaps        a majority of the epoch
//! ```

use super::{
    Accepted, Entry, Message,
    plant::Plant,
    replica::{ChainPaxos, Role, Timer},
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, Slot, Time,
    parts::{
        Ballot, Decisions, PhaseOne, Progress, PromisePage, Promised, election_timeout,
        random_duration, soon,
    },
};

/// Who is not in the chain stands only when nobody has led for that many times the timeout; who has
/// gone ahead of a state that does not come waits as long for it.
const OUTSIDE_TIMEOUTS: u32 = 4;

impl ChainPaxos {
    /// How long a leader may be silent.
    pub(super) fn leader_timeout(&self) -> Duration {
        election_timeout(self.config.election_timeout, self.leader.round_trip() * 5)
    }

    pub(super) fn arm_election(&self, ctx: &mut Context<'_, Self>) {
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

    /// Gives up leading or standing. The promise stays.
    pub(super) fn step_down(&mut self, ctx: &mut Context<'_, Self>) {
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
        let (now, timeout) = (ctx.now(), self.leader_timeout());
        if self.leader.is_alive(now, timeout) {
            let at = self.leader.received_at() + timeout + random_duration(timeout, ctx);
            return ctx.set_timer(Timer::Election, at.since(now));
        }
        // A replica that asks now is told at once that nobody can order anything.
        self.leader.lose();
        self.reroute(ctx);
        self.arm_election(ctx);
        if !self.catch_up.is_voting() || (self.hollow() && !self.may_go_back(now)) {
            return ctx.mark("does not stand without its state");
        }
        if let Role::Candidate(candidate, _) = &self.role {
            if candidate.waits_for_own() {
                // The disk is slow; a further promise would only queue behind.
                return;
            }
            if candidate.progressed(now, timeout) {
                return ctx.mark("candidate still receives promises");
            }
            if let Some(first) = candidate.behind_first() {
                // The others that it hoped for have not answered.
                self.step_down(ctx);
                return self.fetch_state(first.previous(), ctx);
            }
        }
        if self.config.pre_vote {
            self.ask_for_votes(ctx)
        } else {
            self.become_candidate(ctx)
        }
    }

    /// Whether to stand without the state that was gone ahead of: it has not come for long, perhaps
    /// because the replica that had it lost it, and the own log holds all that was accepted behind
    /// it. What a quorum decided, one of any quorum has accepted; each says from where on it keeps
    /// all that it ever accepted. So the values of highest ballot are the decided ones there, too.
    fn may_go_back(&self, now: Time) -> bool {
        let long = self.leader_timeout() * OUTSIDE_TIMEOUTS;
        self.catch_up
            .fetching()
            .since()
            .is_none_or(|since| now.since(since) > long)
            && self.catch_up.vouches_from(&self.log) <= self.log.executed().next()
    }

    /// The slot up to which nothing has to be asked for when this replica stands.
    fn stands_behind(&self) -> Slot {
        if self.hollow() {
            self.log.executed()
        } else {
            self.log.committed()
        }
    }

    /// Takes back that it went ahead of its state. What is decided stays so, and comes out of the
    /// election as it was.
    fn go_back(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("stands without the state that it waits for");
        self.catch_up.go_back(self.log.committed());
        self.log.return_to_executed();
        self.chain.go_back();
    }

    fn next_ballot(&self) -> Ballot {
        self.ballots.next(self.me.id())
    }

    fn ask_for_votes(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.next_ballot();
        let committed = self.stands_behind();
        let (members, own) = (self.me.members(), self.me.id());
        let candidate = PhaseOne::asking(ballot, members, committed.next(), own);
        self.role = Role::Candidate(candidate, None);
        let message = Message::PreVote { ballot, committed };
        ctx.multicast(self.me.others(), Lane::Control, &message);
        if self.me.majority() == 1 {
            self.become_candidate(ctx);
        }
    }

    pub(super) fn on_pre_vote(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        committed: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.catch_up.is_voting() {
            return ctx.mark("ignored: forgot");
        }
        let led = match &self.role {
            Role::Leader(lead) => !lead.is_transferring(),
            Role::Follower | Role::Candidate(..) => {
                self.leader.is_alive(ctx.now(), self.leader_timeout())
            }
        };
        let first = self.catch_up.vouches_from(&self.log);
        let behind = committed.next() < first;
        let granted = !led && ballot > self.ballots.promised() && !behind;
        if !granted {
            ctx.mark("pre-vote refused");
        }
        let promised = self.ballots.promised();
        let message = Message::PreVoteOk {
            ballot,
            granted,
            promised,
            first,
            decisions: self.decisions_if(behind),
        };
        ctx.send(from, Lane::Control, &message);
    }

    /// The commit points of ballots, for a candidate that is behind.
    fn decisions_if(&self, behind: bool) -> Decisions {
        match behind {
            true => self.log.decisions().clone(),
            false => Decisions::default(),
        }
    }

    pub(super) fn on_pre_vote_ok(
        &mut self,
        from: ReplicaId,
        (ballot, granted): (Ballot, bool),
        promised: Ballot,
        (first, decisions): (Slot, &Decisions),
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballots.observe(promised);
        let asks = |role: &Role| matches!(role, Role::Candidate(of, _) if of.asks(ballot));
        if !asks(&self.role) {
            return ctx.mark("ignored: vote for another ballot");
        }
        if !granted {
            if promised >= ballot {
                // Perhaps of a candidate that is dead; the next ballot is above it.
                self.arm_election_soon(ctx);
            }
            if first <= self.stands_behind().next() {
                return;
            }
            if self.count_decided(decisions, ctx) && first <= self.stands_behind().next() {
                return self.ask_for_votes(ctx);
            }
            return self.is_behind(from, first, ctx);
        }
        let Role::Candidate(candidate, _) = &mut self.role else {
            return;
        };
        candidate.vote(from);
        if candidate.has(self.me.majority()) {
            self.become_candidate(ctx);
        }
    }

    /// That acceptor no longer keeps decided slots which this candidate lacks: it never decides
    /// what it happens to hold itself (K6). That vote cannot count; those of the others may be
    /// enough, and they tell what was decided.
    fn is_behind(&mut self, from: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        ctx.mark("candidate is behind a trimmed log");
        let majority = self.me.majority();
        let Role::Candidate(candidate, _) = &mut self.role else {
            return;
        };
        if !candidate.is_behind(from, first, majority) {
            let first = candidate.behind_first().unwrap_or(first);
            self.step_down(ctx);
            self.fetch_state(first.previous(), ctx);
        }
    }

    /// Stands with a ballot that it has never used: the promise of it is on disk before anybody
    /// hears of it.
    pub(super) fn become_candidate(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let silent = |old: &ReplicaId| {
            *old != self.me.id() && self.peers.silence(*old, now) >= self.config.suspect_timeout
        };
        let deposed = Some(self.ballots.promised().owner).filter(silent);
        if self.hollow() {
            self.go_back(ctx);
        }
        let ballot = self.next_ballot();
        self.raise_promise(ballot, ctx);
        let from = self.log.committed().next();
        let candidate = PhaseOne::promising(ballot, self.me.members(), from);
        self.role = Role::Candidate(candidate, deposed);
        self.arm_election(ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some((to, from)) = self.ballots.take_owed() {
            self.send_promise(to, from, ctx);
        }
        let (id, ballot, majority) = (self.me.id(), self.ballots.promised(), self.me.majority());
        let Role::Candidate(candidate, _) = &mut self.role else {
            return;
        };
        match candidate.on_own_promise(id) {
            Promised::Ignored => {}
            Promised::First => {
                ctx.mark("first leader");
                self.become_leader(ctx);
            }
            Promised::Prepares => {
                if candidate.has(majority) {
                    return self.win(ctx);
                }
                // To all of the epoch, not only to the chain (Alg. 4, l. 3): the replica that was
                // removed and is intact is an acceptor still.
                let message = Message::Prepare {
                    ballot,
                    from: self.log.committed().next(),
                };
                ctx.multicast(self.me.others(), Lane::Control, &message);
            }
        }
    }

    /// By the beat: what was lost is asked for again.
    pub(super) fn ask_for_promises(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.ballots.promised();
        let Role::Candidate(candidate, _) = &self.role else {
            return;
        };
        if candidate.prepares() {
            for (id, from) in candidate.missing(self.me.others()) {
                ctx.send(id, Lane::Control, &Message::Prepare { ballot, from });
            }
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        candidate: ReplicaId,
        ballot: Ballot,
        from: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.catch_up.is_voting() {
            return ctx.mark("ignored: forgot");
        }
        if candidate != ballot.owner {
            return ctx.mark("ignored: ballot of another");
        }
        if ballot < self.ballots.promised() {
            ctx.mark("ignored: old ballot");
            let promised = self.ballots.promised();
            let message = Message::Reject { ballot, promised };
            return ctx.send(candidate, Lane::Control, &message);
        }
        if ballot > self.ballots.promised() {
            self.step_down(ctx);
            // Alg. 4, l. 6 names n_a; what is promised is n_p.
            self.raise_promise(ballot, ctx);
            self.arm_election(ctx);
        }
        let hasty = self.planted(Plant::PromiseNotDurable);
        if self.ballots.is_durable() || hasty {
            self.send_promise(candidate, from, ctx);
        } else {
            self.ballots.owe(candidate, from);
        }
    }

    /// One page of what was accepted from slot `from` on.
    fn send_promise(&self, to: ReplicaId, from: Slot, ctx: &mut Context<'_, Self>) {
        assert!(
            self.ballots.is_durable() || self.planted(Plant::PromiseNotDurable),
            "a promise is on disk before it is given"
        );
        let first = self.catch_up.vouches_from(&self.log);
        let (mut bytes, mut until) = (0, None);
        let mut accepted = Vec::new();
        if first <= from {
            let page = self.log.page(from, self.config.batch_bytes_max);
            if page.until.is_some() {
                ctx.mark("promise paged");
            }
            (bytes, until) = (page.bytes, page.until);
            let entries = page.entries.into_iter();
            accepted = entries
                .map(|(slot, held)| Accepted::new(slot, held))
                .collect();
        }
        if !ctx.takes(to, bytes + self.message_bytes()) {
            // The candidate asks again.
            return ctx.mark("promise waits for room");
        }
        let message = Message::Promise {
            ballot: self.ballots.promised(),
            life: self.me.incarnation(),
            from,
            until,
            committed: self.log.committed(),
            first,
            decisions: self.decisions_if(first > from),
            accepted,
        };
        ctx.send(to, Lane::Control, &message);
    }

    pub(super) fn on_promise(
        &mut self,
        from: ReplicaId,
        (ballot, life): (Ballot, Incarnation),
        (page, decisions): (PromisePage<Entry>, &Decisions),
        ctx: &mut Context<'_, Self>,
    ) {
        let lowest = self.planted(Plant::LowestBallotWins);
        let copies = self.planted(Plant::CandidateDecidesCopies);
        let first = page.first;
        let Role::Candidate(candidate, _) = &mut self.role else {
            return ctx.mark("ignored: promise without a candidate");
        };
        if !candidate.prepares_for(ballot) {
            return ctx.mark("ignored: promise of another ballot");
        }
        if life != self.peers.incarnations().of(from) {
            return ctx.mark("ignored: promise of an earlier life");
        }
        if copies && page.committed >= page.from && !candidate.is_complete(from) {
            return self.decide_copies(from, page.committed, ctx);
        }
        let here = (self.log.committed(), ctx.now());
        let better = |new: Ballot, before: Ballot| (before < new) != lowest;
        match candidate.on_page(from, ballot, page, here, better) {
            Progress::Ignored(why) => ctx.mark(why),
            Progress::Behind => {
                self.count_decided(decisions, ctx);
                let next = self.log.committed().next();
                let Role::Candidate(candidate, _) = &mut self.role else {
                    return;
                };
                if first > next {
                    return self.is_behind(from, first, ctx);
                }
                candidate.ask_from(from, next);
                let message = Message::Prepare { ballot, from: next };
                ctx.send(from, Lane::Control, &message);
            }
            Progress::More(next) => {
                let message = Message::Prepare { ballot, from: next };
                ctx.send(from, Lane::Control, &message);
            }
            Progress::Complete => {
                if candidate.has(self.me.majority()) {
                    self.win(ctx);
                }
            }
        }
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

    fn win(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(candidate, deposed) = &mut self.role else {
            return;
        };
        let (gathered, deposed) = (candidate.take_gathered(), *deposed);
        ctx.mark("election won");
        self.propose_again(gathered, ctx);
        self.become_leader(ctx);
        // The new leader removes the old one, and whom it cannot reach (§3.4).
        let gone = deposed.map_or(self.peers.down(), |old| self.peers.down().with(old));
        for id in gone.iter() {
            self.maybe_remove(id, ctx);
        }
    }

    pub(super) fn on_reject(
        &mut self,
        ballot: Ballot,
        promised: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballots.observe(promised);
        if ballot != self.ballots.promised() || promised <= ballot {
            return ctx.mark("ignored: refusal of another ballot");
        }
        match self.role {
            Role::Leader(_) => {
                self.step_down(ctx);
                self.arm_election_soon(ctx);
            }
            Role::Candidate(..) => self.step_down(ctx),
            Role::Follower => {}
        }
    }

    pub(super) fn on_stand(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let follows = matches!(self.role, Role::Follower) && self.leader.is(from);
        if !follows || ballot != self.ballots.promised() || !self.able() {
            return ctx.mark("ignored: hand-off");
        }
        ctx.mark("stands by hand-off");
        self.become_candidate(ctx);
    }
}
