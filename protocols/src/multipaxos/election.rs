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
    plant::Plant,
    replica::{Held, Role, Timer},
    requests::MESSAGE_BYTES,
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Ballot, Tally},
};

/// How far a candidate has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Asks whether the others would promise.
    Asking,
    /// Waits until its own promise is durable.
    Promising,
    /// The first leader waits for the same; nobody need be asked.
    First,
    /// Collects promises.
    Preparing,
}

/// What one acceptor has told so far.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Pages {
    /// The slot that its next page must begin with.
    next: Slot,
    /// What it knew to be decided, once all pages are here.
    done: Option<Slot>,
}

/// A replica that stands for election.
#[derive(Hash)]
pub(super) struct Candidate {
    stage: Stage,
    ballot: Ballot,
    votes: Tally,
    pages: Vec<Pages>,
    gathered: BTreeMap<Slot, Held>,
    /// When the last page came.
    progress_at: Option<Time>,
}

impl Candidate {
    /// The first leader, before its promise is durable.
    pub fn first(members: usize) -> Self {
        Self::new(Stage::First, Ballot::default(), members, Slot(0))
    }

    fn new(stage: Stage, ballot: Ballot, members: usize, from: Slot) -> Self {
        let pages = vec![
            Pages {
                next: from,
                done: None
            };
            members
        ];
        Self {
            stage,
            ballot,
            votes: Tally::new(),
            pages,
            gathered: BTreeMap::new(),
            progress_at: None,
        }
    }

    /// The peer forgot what it said.
    pub fn replaced(&mut self, peer: ReplicaId) {
        self.votes.forget(peer);
        self.pages[peer.index()].done = None;
    }
}

/// Slots further than this above the commit point are not believed: no leader proposes that far.
const DISTANCE_MAX: u64 = 1 << 24;

/// A replica that has no leader waits this many election timeouts for a peer's state before it
/// stands all the same.
const FETCH_PATIENCE: u32 = 6;

impl MultiPaxos {
    /// How long a leader may be silent.
    pub(super) fn patience(&self) -> Duration {
        let round_trip = match &self.role {
            Role::Leader(lead) => lead.round_trip(self.majority),
            _ => self.round_trip,
        };
        self.config
            .election_timeout
            .max((round_trip * 10).min(self.config.election_timeout * 20))
    }

    fn random_duration(below: Duration, ctx: &mut Context<'_, Self>) -> Duration {
        let nanos = u64::try_from(below.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(ctx.random_below(nanos))
    }

    pub(super) fn arm_election(&self, ctx: &mut Context<'_, Self>) {
        let patience = self.patience();
        let delay = patience + Self::random_duration(patience, ctx);
        ctx.set_timer(Timer::Election, delay);
    }

    /// Somebody should stand soon, but not all at once.
    fn arm_election_soon(&self, ctx: &mut Context<'_, Self>) {
        let most = self.config.heartbeat * 2;
        let delay = self.config.heartbeat / 10 + Self::random_duration(most, ctx);
        ctx.set_timer(Timer::Election, delay);
    }

    /// Gives up leading or standing. The promise stays.
    pub(super) fn step_down(&mut self, ctx: &mut Context<'_, Self>) {
        match self.role {
            Role::Leader(_) => {
                ctx.mark("leader stepped down");
                self.leader = None;
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
        self.leader = Some(leader);
        self.forward_all();
        self.repeat_reads(ctx);
    }

    pub(super) fn on_leader_down(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.role, Role::Recovering(_)) {
            self.leader_down = true;
            self.arm_election_soon(ctx);
        }
    }

    pub(super) fn on_election_timer(&mut self, ctx: &mut Context<'_, Self>) {
        match self.role {
            Role::Leader(_) | Role::Recovering(_) => return,
            Role::Follower | Role::Candidate(_) => {}
        }
        let (now, patience) = (ctx.now(), self.patience());
        if self.leader.is_some() && !self.leader_down && now.since(self.heard_at) < patience {
            let at = self.heard_at + patience + Self::random_duration(patience, ctx);
            return ctx.set_timer(Timer::Election, at.since(now));
        }
        self.leader = None;
        self.arm_election(ctx);
        if let Some(since) = self.fetching.since() {
            if now.since(since) < patience * FETCH_PATIENCE {
                return ctx.mark("does not stand while it fetches state");
            }
            // A replica that had that state may be gone permanently, and the others hold the
            // entries between them. Should it come after all, it is installed all the same.
            ctx.mark("stands although it fetches state");
            self.fetching.give_up();
        }
        if let Role::Candidate(Candidate {
            stage: Stage::First | Stage::Promising,
            ..
        }) = self.role
        {
            // The disk is slow; a further promise would only queue behind.
            return;
        }
        let recent = |at: Time| now.since(at) < patience;
        if matches!(&self.role, Role::Candidate(it) if it.progress_at.is_some_and(recent)) {
            return ctx.mark("candidate still receives promises");
        }
        if self.config.pre_vote {
            self.ask_for_votes(ctx)
        } else {
            self.become_candidate(ctx)
        }
    }

    fn next_ballot(&self) -> Ballot {
        self.ballot_seen.max(self.promised).next(self.id)
    }

    fn ask_for_votes(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.next_ballot();
        let mut candidate =
            Candidate::new(Stage::Asking, ballot, self.members, self.committed.next());
        candidate.votes.vote(self.id);
        self.role = Role::Candidate(candidate);
        let message = Message::PreVote {
            ballot,
            committed: self.committed,
        };
        ctx.multicast(self.others, Lane::Control, &message);
        if self.majority == 1 {
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
            Role::Leader(lead) => lead.leaving.is_none(),
            Role::Follower | Role::Candidate(_) => {
                self.leader.is_some()
                    && !self.leader_down
                    && ctx.now().since(self.heard_at) < self.patience()
            }
        };
        let first = self.log.first();
        let granted = !led && ballot > self.promised && committed.next() >= first;
        if !granted {
            ctx.mark("pre-vote refused");
        }
        let promised = self.promised;
        ctx.send(
            from,
            Lane::Control,
            &Message::PreVoteOk {
                ballot,
                granted,
                promised,
                first,
            },
        );
    }

    pub(super) fn on_pre_vote_ok(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        granted: bool,
        promised: Ballot,
        first: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballot_seen = self.ballot_seen.max(promised);
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        if candidate.stage != Stage::Asking || candidate.ballot != ballot {
            return ctx.mark("ignored: vote for another ballot");
        }
        if !granted {
            if first > self.committed.next() {
                self.step_down(ctx);
                self.fetch_state(first.previous(), ctx);
            }
            return;
        }
        candidate.votes.vote(from);
        if candidate.votes.reached(self.majority) {
            self.become_candidate(ctx);
        }
    }

    /// Stands with a ballot that it has never used: the promise of it is on disk before anybody
    /// hears of it.
    pub(super) fn become_candidate(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.next_ballot();
        self.raise_promise(ballot, ctx);
        let candidate = Candidate::new(
            Stage::Promising,
            ballot,
            self.members,
            self.committed.next(),
        );
        self.role = Role::Candidate(candidate);
        self.arm_election(ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some((to, from)) = self.promise_owed.take() {
            self.send_promise(to, from, ctx);
        }
        let (id, ballot, majority) = (self.id, self.promised, self.majority);
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        match candidate.stage {
            Stage::Asking | Stage::Preparing => {}
            Stage::First => {
                ctx.mark("first leader");
                self.become_leader(&[], ctx);
            }
            Stage::Promising => {
                candidate.stage = Stage::Preparing;
                candidate.votes.vote(id);
                if candidate.votes.reached(majority) {
                    return self.win(ctx);
                }
                let message = Message::Prepare {
                    ballot,
                    from: self.committed.next(),
                };
                ctx.multicast(self.others, Lane::Control, &message);
                ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
            }
        }
    }

    pub(super) fn on_heartbeat_timer(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.promised;
        match &self.role {
            Role::Leader(_) => self.on_leader_heartbeat(ctx),
            Role::Recovering(_) => self.ask_to_recover(ctx),
            Role::Candidate(candidate) if candidate.stage == Stage::Preparing => {
                for id in self.others.iter() {
                    let pages = &candidate.pages[id.index()];
                    if pages.done.is_none() {
                        let message = Message::Prepare {
                            ballot,
                            from: pages.next,
                        };
                        ctx.send(id, Lane::Control, &message);
                    }
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
        if ballot < self.promised {
            ctx.mark("ignored: old ballot");
            let promised = self.promised;
            return ctx.send(
                candidate,
                Lane::Control,
                &Message::Reject { ballot, promised },
            );
        }
        if ballot > self.promised {
            self.step_down(ctx);
            self.raise_promise(ballot, ctx);
            self.arm_election(ctx);
        }
        let hasty = self.planted(Plant::PromiseNotDurable);
        if self.promise_durable == self.promised || hasty {
            self.send_promise(candidate, from, ctx);
        } else {
            self.promise_owed = Some((candidate, from));
        }
    }

    /// One page of what was accepted from slot `from` on.
    fn send_promise(&self, to: ReplicaId, from: Slot, ctx: &mut Context<'_, Self>) {
        assert!(
            self.promise_durable == self.promised || self.planted(Plant::PromiseNotDurable),
            "a promise is on disk before it is given"
        );
        let first = self.log.first();
        let (mut bytes, mut until) = (0, None);
        let mut accepted = Vec::new();
        if first <= from {
            for (slot, held) in self.log.iter_from(from) {
                if bytes > 0 && bytes + held.bytes() > self.config.batch_bytes_max {
                    ctx.mark("promise paged");
                    until = Some(slot);
                    break;
                }
                bytes += held.bytes();
                let proposal: Proposal = held.proposal.clone();
                accepted.push(Accepted {
                    slot,
                    ballot: held.ballot,
                    proposal,
                });
            }
        }
        if !ctx.takes(to, bytes + MESSAGE_BYTES) {
            // The candidate asks again.
            return ctx.mark("promise waits for room");
        }
        let message = Message::Promise {
            ballot: self.promised,
            incarnation: self.incarnation,
            from,
            until,
            committed: self.committed,
            first,
            accepted,
        };
        ctx.send(to, Lane::Control, &message);
    }

    pub(super) fn on_promise(
        &mut self,
        from: ReplicaId,
        (ballot, incarnation): (Ballot, Incarnation),
        (page, until, accepted): (Slot, Option<Slot>, Vec<Accepted>),
        committed: Slot,
        first: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let limit = self.committed.0 + DISTANCE_MAX;
        let stale = self.planted(Plant::StalePromiseCounts);
        let double = self.planted(Plant::DuplicatePromiseCounts);
        let lowest = self.planted(Plant::LowestBallotWins);
        let laggard = self.planted(Plant::LaggardLeads);
        let Role::Candidate(candidate) = &mut self.role else {
            return ctx.mark("ignored: promise without a candidate");
        };
        if candidate.stage != Stage::Preparing || (ballot != candidate.ballot && !stale) {
            return ctx.mark("ignored: promise of another ballot");
        }
        if incarnation != self.incarnations[from.index()] {
            return ctx.mark("ignored: promise of an earlier life");
        }
        let pages = &mut candidate.pages[from.index()];
        if pages.done.is_some() && double {
            let more = self
                .others
                .iter()
                .find(|id| !candidate.votes.voters().contains(*id));
            more.map(|id| candidate.votes.vote(id));
            if candidate.votes.reached(self.majority) {
                self.win(ctx);
            }
            return;
        }
        if pages.done.is_some() || page != pages.next || until.is_some_and(|until| until <= page) {
            return ctx.mark("ignored: promise counted before");
        }
        if first > page && !laggard {
            // What that acceptor no longer keeps is decided, and this replica lacks it.
            ctx.mark("candidate is behind a trimmed log");
            self.step_down(ctx);
            return self.fetch_state(first.previous(), ctx);
        }
        if accepted
            .iter()
            .any(|entry| entry.ballot >= ballot || entry.slot.0 > limit)
        {
            return ctx.mark("ignored: impossible promise");
        }
        candidate.progress_at = Some(ctx.now());
        for Accepted {
            slot,
            ballot,
            proposal,
        } in accepted
        {
            let better = |held: &Held| (held.ballot < ballot) != lowest;
            if candidate.gathered.get(&slot).is_none_or(better) {
                candidate.gathered.insert(slot, Held { ballot, proposal });
            }
        }
        if let Some(until) = until {
            pages.next = until;
            return ctx.send(
                from,
                Lane::Control,
                &Message::Prepare {
                    ballot,
                    from: until,
                },
            );
        }
        pages.done = Some(committed);
        candidate.votes.vote(from);
        if candidate.votes.reached(self.majority) {
            self.win(ctx);
        }
    }

    fn win(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(candidate) = &mut self.role else {
            return;
        };
        let gathered = core::mem::take(&mut candidate.gathered);
        let next: Vec<Option<Slot>> = candidate.pages.iter().map(|pages| pages.done).collect();
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
        self.ballot_seen = self.ballot_seen.max(promised);
        if ballot != self.promised || promised <= ballot {
            return ctx.mark("ignored: refusal of another ballot");
        }
        let majority = self.majority;
        if self.planted(Plant::RefusalCounts)
            && let Role::Candidate(candidate) = &mut self.role
            && candidate.stage == Stage::Preparing
        {
            candidate.votes.vote(from);
            if candidate.votes.reached(majority) {
                self.win(ctx);
            }
            return;
        }
        if self.planted(Plant::StaleAcceptCounts)
            && let Role::Leader(lead) = &mut self.role
        {
            let end = self.log.end().previous();
            lead.peers[from.index()].durable = end;
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
        let follows = matches!(self.role, Role::Follower) && self.leader == Some(from);
        if !follows || ballot != self.promised || self.fetching.under_way() {
            return ctx.mark("ignored: hand-off");
        }
        ctx.mark("stands by hand-off");
        self.become_candidate(ctx);
    }

    /// Who else belongs to the group.
    pub(super) const fn peers(&self) -> ReplicaSet {
        self.others
    }
}
