//! Elections (Alg. 4): who stands, who promises, and what the winner must propose again.
//!
//! ```text
//!   leader silent ──► PreVote ──► majority would promise ──► own promise on disk ──► Prepare
//!                                                                                      │
//!   leader ◄── proposes the highest-ballot value of ◄── Promise, page by page, from ◄──┘
//!              every slot again, nothing in gaps        a majority of the epoch
//! ```

use super::{
    Accepted, Message,
    plant::Plant,
    replica::{ChainPaxos, Held, Role, Timer},
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, Slot, Time,
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
    /// All pages are here.
    done: bool,
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
    /// Who led before and went silent.
    deposed: Option<ReplicaId>,
}

impl Candidate {
    /// The first leader, before its promise is durable.
    pub fn first(members: usize) -> Self {
        Self::new(Stage::First, Ballot::default(), members, Slot(0))
    }

    fn new(stage: Stage, ballot: Ballot, members: usize, from: Slot) -> Self {
        let pages = Pages {
            next: from,
            done: false,
        };
        Self {
            stage,
            ballot,
            votes: Tally::new(),
            pages: vec![pages; members],
            gathered: BTreeMap::new(),
            progress_at: None,
            deposed: None,
        }
    }

    /// The peer forgot what it said.
    pub fn replaced(&mut self, peer: ReplicaId) {
        self.votes.forget(peer);
        self.pages[peer.index()].done = false;
    }
}

/// Slots further than this above the commit point are not believed: no leader proposes that far.
const DISTANCE_MAX: u64 = 1 << 24;
/// Who is not in the chain stands only when nobody has led for that many times the timeout; who has
/// gone ahead of a state that does not come waits as long for it.
const OUTSIDE_PATIENCE: u32 = 4;

impl ChainPaxos {
    /// How long a leader may be silent.
    pub(super) fn patience(&self) -> Duration {
        let timeout = self.config.election_timeout;
        timeout.max((self.loop_time * 5).min(timeout * 20))
    }

    fn random_duration(below: Duration, ctx: &mut Context<'_, Self>) -> Duration {
        let nanos = u64::try_from(below.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(ctx.random_below(nanos))
    }

    pub(super) fn arm_election(&self, ctx: &mut Context<'_, Self>) {
        let mut patience = self.patience();
        if !self.decided.contains(self.id) {
            patience *= OUTSIDE_PATIENCE;
        }
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
                self.unlink();
                self.reroute(ctx);
            }
            Role::Candidate(_) => {}
            Role::Follower => return,
        }
        self.role = Role::Follower;
        self.arm_election(ctx);
    }

    /// `leader` leads the promised ballot.
    pub(super) fn become_follower_of(&mut self, leader: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.step_down(ctx);
        self.leader = Some(leader);
        self.progressed = true;
        self.heard_at = ctx.arrived();
        self.leader_down = false;
        self.unlink();
        self.reroute(ctx);
        self.forward_all();
        self.reads.ask_again();
    }

    /// The leader is suspected from here. Whether others think so too, they are asked.
    pub(super) fn on_leader_down(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.leader_down {
            self.leader_down = true;
            self.arm_election_soon(ctx);
        }
    }

    pub(super) fn on_election_timer(&mut self, ctx: &mut Context<'_, Self>) {
        if matches!(self.role, Role::Leader(_)) {
            return;
        }
        let (now, patience) = (ctx.now(), self.patience());
        if self.leader.is_some() && !self.leader_down && now.since(self.heard_at) < patience {
            let at = self.heard_at + patience + Self::random_duration(patience, ctx);
            return ctx.set_timer(Timer::Election, at.since(now));
        }
        // A replica that asks now is told at once that nobody can order anything.
        self.leader = None;
        self.reroute(ctx);
        self.arm_election(ctx);
        if !self.whole || (self.hollow() && !self.may_go_back(now)) {
            return ctx.mark("does not stand without its state");
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

    /// Whether to stand without the state that was gone ahead of: it has not come for long, perhaps
    /// because the replica that had it lost it, and the own log holds all that was accepted behind
    /// it. What a quorum decided, one of any quorum has accepted; each says from where on it keeps
    /// all that it ever accepted. So the values of highest ballot are the decided ones there, too.
    fn may_go_back(&self, now: Time) -> bool {
        let long = self.patience() * OUTSIDE_PATIENCE;
        self.fetching
            .since()
            .is_none_or(|since| now.since(since) > long)
            && self.vouches_from() <= self.executed.next()
    }

    /// The slot up to which nothing has to be asked for when this replica stands.
    fn stands_behind(&self) -> Slot {
        if self.hollow() {
            self.executed
        } else {
            self.committed
        }
    }

    /// Takes back that it went ahead of its state. What is decided stays so, and comes out of the
    /// election as it was.
    fn go_back(&mut self, ctx: &mut Context<'_, Self>) {
        assert!(
            self.log.first() <= self.executed.next(),
            "all that was accepted behind the state is kept"
        );
        ctx.mark("stands without the state that it waits for");
        self.gap = None;
        self.known = self.known.max(self.committed);
        self.committed = self.executed;
        self.decided = self.done.clone();
        self.fetching.give_up();
    }

    fn next_ballot(&self) -> Ballot {
        self.ballot_seen.max(self.promised).next(self.id)
    }

    fn ask_for_votes(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.next_ballot();
        let committed = self.stands_behind();
        let mut candidate = Candidate::new(Stage::Asking, ballot, self.members, committed.next());
        candidate.votes.vote(self.id);
        self.role = Role::Candidate(candidate);
        let message = Message::PreVote { ballot, committed };
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
        if !self.whole {
            return ctx.mark("ignored: forgot");
        }
        let led = match &self.role {
            Role::Leader(lead) => lead.leaving.is_none(),
            Role::Follower | Role::Candidate(_) => {
                self.leader.is_some()
                    && !self.leader_down
                    && ctx.now().since(self.heard_at) < self.patience()
            }
        };
        let first = self.vouches_from();
        let granted = !led && ballot > self.promised && committed.next() >= first;
        if !granted {
            ctx.mark("pre-vote refused");
        }
        let promised = self.promised;
        let message = Message::PreVoteOk {
            ballot,
            granted,
            promised,
            first,
        };
        ctx.send(from, Lane::Control, &message);
    }

    pub(super) fn on_pre_vote_ok(
        &mut self,
        from: ReplicaId,
        (ballot, granted): (Ballot, bool),
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
            if first > self.stands_behind().next() {
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
        let now = ctx.now();
        let silent = |old: &ReplicaId| {
            let heard = self.heard.get(old.index()).copied().unwrap_or_default();
            *old != self.id && now.since(heard) >= self.config.suspect_timeout
        };
        let deposed = Some(self.promised.owner).filter(silent);
        if self.hollow() {
            self.go_back(ctx);
        }
        let ballot = self.next_ballot();
        self.raise_promise(ballot, ctx);
        let mut candidate = Candidate::new(
            Stage::Promising,
            ballot,
            self.members,
            self.committed.next(),
        );
        candidate.deposed = deposed;
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
                self.become_leader(ctx);
            }
            Stage::Promising => {
                candidate.stage = Stage::Preparing;
                candidate.votes.vote(id);
                if candidate.votes.reached(majority) {
                    return self.win(ctx);
                }
                // To all of the epoch, not only to the chain (Alg. 4, l. 3): the replica that was
                // removed and is intact is an acceptor still.
                let message = Message::Prepare {
                    ballot,
                    from: self.committed.next(),
                };
                ctx.multicast(self.others, Lane::Control, &message);
            }
        }
    }

    /// By the beat: what was lost is asked for again.
    pub(super) fn ask_for_promises(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.promised;
        let Role::Candidate(candidate) = &self.role else {
            return;
        };
        if candidate.stage != Stage::Preparing {
            return;
        }
        for id in self.others.iter() {
            let Pages { next, done } = candidate.pages[id.index()];
            if !done {
                let message = Message::Prepare { ballot, from: next };
                ctx.send(id, Lane::Control, &message);
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
        if !self.whole {
            return ctx.mark("ignored: forgot");
        }
        if candidate != ballot.owner {
            return ctx.mark("ignored: ballot of another");
        }
        if ballot < self.promised {
            ctx.mark("ignored: old ballot");
            let promised = self.promised;
            let message = Message::Reject { ballot, promised };
            return ctx.send(candidate, Lane::Control, &message);
        }
        if ballot > self.promised {
            self.step_down(ctx);
            // Alg. 4, l. 6 names n_a; what is promised is n_p.
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
        let first = self.vouches_from();
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
                accepted.push(Accepted {
                    slot,
                    ballot: held.ballot,
                    entry: held.entry.clone(),
                });
            }
        }
        if !ctx.takes(to, bytes + self.message_bytes()) {
            // The candidate asks again.
            return ctx.mark("promise waits for room");
        }
        let message = Message::Promise {
            ballot: self.promised,
            life: self.life,
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
        (ballot, life): (Ballot, Incarnation),
        (page, until, accepted): (Slot, Option<Slot>, Vec<Accepted>),
        (committed, first): (Slot, Slot),
        ctx: &mut Context<'_, Self>,
    ) {
        let limit = self.committed.0 + DISTANCE_MAX;
        let lowest = self.planted(Plant::LowestBallotWins);
        let copies = self.planted(Plant::CandidateDecidesCopies);
        let Role::Candidate(candidate) = &mut self.role else {
            return ctx.mark("ignored: promise without a candidate");
        };
        if candidate.stage != Stage::Preparing || ballot != candidate.ballot {
            return ctx.mark("ignored: promise of another ballot");
        }
        if life != self.lives[from.index()] {
            return ctx.mark("ignored: promise of an earlier life");
        }
        let pages = &mut candidate.pages[from.index()];
        if pages.done || page != pages.next || until.is_some_and(|until| until <= page) {
            return ctx.mark("ignored: promise counted before");
        }
        if copies && committed >= page {
            // What another knows to be decided is taken to be what is held here.
            let known = committed.min(self.log.end().previous());
            let mut candidate = core::mem::replace(&mut self.role, Role::Follower);
            while self.committed < known && self.log.get(self.committed.next()).is_some() {
                self.committed = self.committed.next();
            }
            self.held = self.held.max(self.committed);
            if let Role::Candidate(candidate) = &mut candidate {
                candidate.votes.vote(from);
                candidate.pages[from.index()].done = true;
                if candidate.votes.reached(self.majority) {
                    self.role = Role::Candidate(Candidate::first(self.members));
                    self.propose_again(BTreeMap::new(), ctx);
                    return self.become_leader(ctx);
                }
            }
            self.role = candidate;
            return;
        }
        if first > page {
            // What that acceptor no longer keeps is decided, and this replica lacks it: it takes
            // the state instead of leading, and never what it happens to hold itself (K6).
            ctx.mark("candidate is behind a trimmed log");
            self.step_down(ctx);
            return self.fetch_state(first.previous(), ctx);
        }
        let impossible = |it: &Accepted| it.ballot >= ballot || it.slot.0 > limit;
        if accepted.iter().any(impossible) {
            return ctx.mark("ignored: impossible promise");
        }
        candidate.progress_at = Some(ctx.now());
        for Accepted {
            slot,
            ballot,
            entry,
        } in accepted
        {
            let better = |held: &Held| (held.ballot < ballot) != lowest;
            if candidate.gathered.get(&slot).is_none_or(better) {
                candidate.gathered.insert(slot, Held { ballot, entry });
            }
        }
        if let Some(until) = until {
            pages.next = until;
            let from_slot = Message::Prepare {
                ballot,
                from: until,
            };
            return ctx.send(from, Lane::Control, &from_slot);
        }
        pages.done = true;
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
        let deposed = candidate.deposed;
        ctx.mark("election won");
        self.propose_again(gathered, ctx);
        self.become_leader(ctx);
        // The new leader removes the old one, and whom it cannot reach (§3.4).
        let gone = deposed.map_or(self.down, |old| self.down.with(old));
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
        self.ballot_seen = self.ballot_seen.max(promised);
        if ballot != self.promised || promised <= ballot {
            return ctx.mark("ignored: refusal of another ballot");
        }
        match self.role {
            Role::Leader(_) => {
                self.step_down(ctx);
                self.arm_election_soon(ctx);
            }
            Role::Candidate(_) => self.step_down(ctx),
            Role::Follower => {}
        }
    }

    pub(super) fn on_stand(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let follows = matches!(self.role, Role::Follower) && self.leader == Some(from);
        if !follows || ballot != self.promised || !self.able() {
            return ctx.mark("ignored: hand-off");
        }
        ctx.mark("stands by hand-off");
        self.become_candidate(ctx);
    }
}
