//! Elections: who stands, who promises, and what the winner must propose again.
//!
//! ```text
//!   silence ──► PreVote ──► majority would promise ──► own promise on disk ──► Prepare
//!                                                                                │
//!   leader ◄── proposes the highest-ballot value of ◄── Promise, page by page, ◄─┘
//!              every slot again, nothing in gaps         from a majority
//! ```

use super::{
    Accepted, Message, MultiPaxos, Proposal,
    message::MESSAGE_BYTES,
    plant::Plant,
    replica::{Role, Timer},
};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, Slot,
    parts::{
        Ballot, Decisions, PhaseOne, Progress, PromisePage, Promised, election_timeout,
        random_duration, soon,
    },
};

/// A replica that has no leader waits this many election timeouts for a peer's state before it
/// stands all the same.
const FETCH_TIMEOUTS: u32 = 6;

impl MultiPaxos {
    /// How long a leader may be silent.
    pub(super) fn leader_timeout(&self) -> Duration {
        let round_trip = match &self.role {
            Role::Leader(lead) => lead.round_trip(self.me.majority()),
            _ => self.leader.round_trip(),
        };
        election_timeout(self.config.election_timeout, round_trip * 10)
    }

    pub(super) fn arm_election(&self, ctx: &mut Context<'_, Self>) {
        let timeout = self.leader_timeout();
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
            }
            Role::Candidate(_) => {}
            Role::Follower | Role::Recovering(_) => return,
        }
        self.role = Role::Follower;
        ctx.cancel_timer(Timer::Heartbeat);
        self.arm_election(ctx);
    }

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
        match self.role {
            Role::Leader(_) | Role::Recovering(_) => return,
            Role::Follower | Role::Candidate(_) => {}
        }
        let (now, timeout) = (ctx.now(), self.leader_timeout());
        if self.leader.is_alive(now, timeout) {
            let at = self.leader.received_at() + timeout + random_duration(timeout, ctx);
            return ctx.set_timer(Timer::Election, at.since(now));
        }
        self.leader.lose();
        self.arm_election(ctx);
        if let Some(since) = self.fetching.since() {
            if now.since(since) < timeout * FETCH_TIMEOUTS {
                return ctx.mark("does not stand while it fetches state");
            }
            // A replica that had that state may be gone permanently, and the others hold the
            // entries between them. Should it come after all, it is installed all the same.
            ctx.mark("stands although it fetches state");
            self.fetching.give_up();
        }
        if let Role::Candidate(candidate) = &self.role {
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

    fn next_ballot(&self) -> Ballot {
        self.ballots.next(self.me.id())
    }

    fn ask_for_votes(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.next_ballot();
        let committed = self.log.committed();
        let candidate = PhaseOne::asking(ballot, self.me.members(), committed.next(), self.me.id());
        self.role = Role::Candidate(candidate);
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
        let led = match &self.role {
            Role::Recovering(_) => return ctx.mark("ignored: recovering"),
            Role::Leader(lead) => !lead.is_transferring(),
            Role::Follower | Role::Candidate(_) => {
                self.leader.is_alive(ctx.now(), self.leader_timeout())
            }
        };
        let first = self.log.first();
        let behind = committed.next() < first;
        let granted = !led && ballot > self.ballots.promised() && !behind;
        if !granted {
            ctx.mark("pre-vote refused");
        }
        let promised = self.ballots.promised();
        ctx.send(
            from,
            Lane::Control,
            &Message::PreVoteOk {
                ballot,
                granted,
                promised,
                first,
                decisions: self.decisions_if(behind),
            },
        );
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
        ballot: Ballot,
        granted: bool,
        promised: Ballot,
        (first, decisions): (Slot, &Decisions),
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballots.observe(promised);
        let asks = |role: &Role| matches!(role, Role::Candidate(of) if of.asks(ballot));
        if !asks(&self.role) {
            return ctx.mark("ignored: vote for another ballot");
        }
        if !granted {
            if promised >= ballot {
                // Perhaps of a candidate that is dead; the next ballot is above it.
                self.arm_election_soon(ctx);
            }
            if first <= self.log.committed().next() {
                return;
            }
            if self.count_decided(decisions, ctx) && first <= self.log.committed().next() {
                return self.ask_for_votes(ctx);
            }
            return self.is_behind(from, first, ctx);
        }
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        candidate.vote(from);
        if candidate.has(self.me.majority()) {
            self.become_candidate(ctx);
        }
    }

    /// That acceptor no longer keeps decided slots which this candidate lacks. Its vote cannot
    /// count; those of the others may be enough, and they tell what was decided.
    fn is_behind(&mut self, from: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        ctx.mark("candidate is behind a trimmed log");
        let majority = self.me.majority();
        let Role::Candidate(candidate) = &mut self.role else {
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
        let ballot = self.next_ballot();
        self.raise_promise(ballot, ctx);
        let from = self.log.committed().next();
        let candidate = PhaseOne::promising(ballot, self.me.members(), from);
        self.role = Role::Candidate(candidate);
        self.arm_election(ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some((to, from)) = self.ballots.take_owed() {
            self.send_promise(to, from, ctx);
        }
        let (id, ballot, majority) = (self.me.id(), self.ballots.promised(), self.me.majority());
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        match candidate.on_own_promise(id) {
            Promised::Ignored => {}
            Promised::First => {
                ctx.mark("first leader");
                self.become_leader(&[], ctx);
            }
            Promised::Prepares => {
                if candidate.has(majority) {
                    return self.win(ctx);
                }
                let message = Message::Prepare {
                    ballot,
                    from: self.log.committed().next(),
                };
                ctx.multicast(self.me.others(), Lane::Control, &message);
                ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
            }
        }
    }

    pub(super) fn on_heartbeat_timer(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.ballots.promised();
        match &self.role {
            Role::Leader(_) => self.on_leader_heartbeat(ctx),
            Role::Recovering(_) => self.ask_to_recover(ctx),
            Role::Candidate(candidate) if candidate.prepares() => {
                for (id, from) in candidate.missing(self.me.others()) {
                    ctx.send(id, Lane::Control, &Message::Prepare { ballot, from });
                }
                ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
            }
            Role::Follower | Role::Candidate(_) => {}
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        candidate: ReplicaId,
        ballot: Ballot,
        from: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if matches!(self.role, Role::Recovering(_)) {
            return ctx.mark("ignored: recovering");
        }
        if candidate != ballot.owner {
            return ctx.mark("ignored: ballot of another");
        }
        if ballot < self.ballots.promised() {
            ctx.mark("ignored: old ballot");
            let promised = self.ballots.promised();
            return ctx.send(
                candidate,
                Lane::Control,
                &Message::Reject { ballot, promised },
            );
        }
        if ballot > self.ballots.promised() {
            self.step_down(ctx);
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
        let first = self.log.first();
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
        if !ctx.takes(to, bytes + MESSAGE_BYTES) {
            // The candidate asks again.
            return ctx.mark("promise waits for room");
        }
        let message = Message::Promise {
            ballot: self.ballots.promised(),
            incarnation: self.me.incarnation(),
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
        (ballot, incarnation): (Ballot, Incarnation),
        (mut page, decisions): (PromisePage<Proposal>, &Decisions),
        ctx: &mut Context<'_, Self>,
    ) {
        let stale = self.planted(Plant::StalePromiseCounts);
        let double = self.planted(Plant::DuplicatePromiseCounts);
        let lowest = self.planted(Plant::LowestBallotWins);
        let first = page.first;
        if self.planted(Plant::LaggardLeads) {
            page.first = page.from;
        }
        let Role::Candidate(candidate) = &mut self.role else {
            return ctx.mark("ignored: promise without a candidate");
        };
        if !candidate.prepares() || (!candidate.prepares_for(ballot) && !stale) {
            return ctx.mark("ignored: promise of another ballot");
        }
        if incarnation != self.incarnations.of(from) {
            return ctx.mark("ignored: promise of an earlier life");
        }
        if candidate.is_complete(from) && double {
            let voters = candidate.voters();
            let more = self.me.others().iter().find(|id| !voters.contains(*id));
            more.into_iter().for_each(|id| candidate.vote(id));
            if candidate.has(self.me.majority()) {
                self.win(ctx);
            }
            return;
        }
        let here = (self.log.committed(), ctx.now());
        let better = |new: Ballot, before: Ballot| (before < new) != lowest;
        match candidate.on_page(from, ballot, page, here, better) {
            Progress::Ignored(why) => ctx.mark(why),
            Progress::Behind => {
                self.count_decided(decisions, ctx);
                let from_slot = self.log.committed().next();
                let Role::Candidate(candidate) = &mut self.role else {
                    return;
                };
                if first > from_slot {
                    return self.is_behind(from, first, ctx);
                }
                candidate.ask_from(from, from_slot);
                let message = Message::Prepare {
                    ballot,
                    from: from_slot,
                };
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

    fn win(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        let gathered = candidate.take_gathered();
        let next = candidate.commit_points();
        ctx.mark("election won");
        self.propose_again(gathered, ctx);
        self.become_leader(&next, ctx);
    }

    pub(super) fn on_reject(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        promised: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballots.observe(promised);
        if ballot != self.ballots.promised() || promised <= ballot {
            return ctx.mark("ignored: refusal of another ballot");
        }
        let majority = self.me.majority();
        if self.planted(Plant::RefusalCounts)
            && let Role::Candidate(candidate) = &mut self.role
            && candidate.prepares()
        {
            candidate.vote(from);
            if candidate.has(majority) {
                self.win(ctx);
            }
            return;
        }
        if self.planted(Plant::StaleAcceptCounts)
            && let Role::Leader(lead) = &mut self.role
        {
            let end = self.log.end().previous();
            lead.peers[from.index()].assume_durable(end);
            return self.maybe_commit(ctx);
        }
        match self.role {
            Role::Leader(_) => {
                self.step_down(ctx);
                self.arm_election_soon(ctx);
            }
            Role::Candidate(_) => self.step_down(ctx),
            Role::Follower | Role::Recovering(_) => {}
        }
    }

    pub(super) fn on_stand(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let follows = matches!(self.role, Role::Follower) && self.leader.is(from);
        if !follows || ballot != self.ballots.promised() || self.fetching.under_way() {
            return ctx.mark("ignored: hand-off");
        }
        ctx.mark("stands by hand-off");
        self.become_candidate(ctx);
    }
}
