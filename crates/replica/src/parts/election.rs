//! Elections of Paxos with one leader per ballot: who stands, who promises, and who wins.
//!
//! ```text
//!   silence ──► PreVote ──► majority would promise ──► own promise on disk ──► Prepare
//!                                                                                │
//!   leader ◄── proposes the highest-ballot value of ◄── Promise, page by page, ◄─┘
//!              every slot again, nothing in gaps         from a majority
//! ```
//!
//! A protocol says what its election rests on (the required methods of [`Election`]); the steps are
//! the provided ones. [`PhaseOne`] is the candidate's own state.

use super::{
    AcceptorLog, Ballot, Ballots, Decisions, Held, LeaderWatch, LogEntry, Member, PhaseOne,
    Progress, PromisePage, Promised, digest, random_duration,
};
use crate::{Context, Incarnation, Lane, PersistId, Protocol, ReplicaId, Slot, Time, wire};
use alloc::collections::BTreeMap;
use core::{mem, time::Duration};

/// The messages of an election over slots that hold `E`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElectionMessage<E> {
    /// The ballot is out of date.
    Reject {
        /// The ballot that the refused message was sent under.
        ballot: Ballot,
        /// The promised ballot of the sender.
        promised: Ballot,
    },
    /// Would you promise this ballot? The reply binds no replica.
    PreVote {
        /// The ballot that the sender would stand with.
        ballot: Ballot,
        /// All up to here is decided, as it knows.
        committed: Slot,
    },
    /// The reply to it.
    PreVoteOk {
        /// The ballot of the request.
        ballot: Ballot,
        /// Whether it would be promised.
        granted: bool,
        /// The promised ballot of the sender.
        promised: Ballot,
        /// The first slot from which on it can tell what it accepted.
        first: Slot,
        /// Which ballots decided how much; nothing unless the candidate is behind what is kept.
        decisions: Decisions,
    },
    /// Phase 1: promise this ballot and report what you accepted.
    Prepare {
        /// The candidate's ballot.
        ballot: Ballot,
        /// The first slot that it needs.
        from: Slot,
    },
    /// The promise, with one page of what was accepted.
    Promise {
        /// The ballot promised.
        ballot: Ballot,
        /// The acceptor's incarnation.
        incarnation: Incarnation,
        /// The page.
        page: PromisePage<E>,
    },
    /// The leader is about to stop: stand for election at once.
    Stand {
        /// The leader's ballot.
        ballot: Ballot,
    },
}

wire! {
    variants ElectionMessage<E> {
        0 = Reject { ballot, promised },
        1 = PreVote { ballot, committed },
        2 = PreVoteOk { ballot, granted, promised, first, decisions },
        3 = Prepare { ballot, from },
        4 = Promise { ballot, incarnation, page },
        5 = Stand { ballot },
    }
}

/// The parts of a replica that an [`Election`] rests on, by their usual names.
#[macro_export]
macro_rules! election_parts {
    ($entry:ty) => {
        type Entry = $entry;
        fn me(&self) -> &$crate::parts::Member {
            &self.me
        }
        fn ballots(&self) -> &$crate::parts::Ballots {
            &self.ballots
        }
        fn ballots_mut(&mut self) -> &mut $crate::parts::Ballots {
            &mut self.ballots
        }
        fn log(&self) -> &$crate::parts::AcceptorLog<$entry> {
            &self.log
        }
        fn leader(&self) -> &$crate::parts::LeaderWatch {
            &self.leader
        }
    };
}

fn send<P: Election>(to: ReplicaId, it: ElectionMessage<P::Entry>, ctx: &mut Context<'_, P>) {
    ctx.send(to, Lane::Control, &it.into());
}

/// A replica's steps in an election; see the module. The roles are the protocol's own.
pub trait Election: Protocol<Message: From<ElectionMessage<<Self as Election>::Entry>>> {
    /// The type of an entry in the log; [`crate::election_parts!`] gives this and the next five.
    type Entry: LogEntry;
    /// This member.
    fn me(&self) -> &Member;
    /// The ballots that it has promised.
    fn ballots(&self) -> &Ballots;
    /// The same.
    fn ballots_mut(&mut self) -> &mut Ballots;
    /// The log of accepted entries.
    fn log(&self) -> &AcceptorLog<Self::Entry>;
    /// The leader as this replica knows it.
    fn leader(&self) -> &LeaderWatch;

    /// Its phase 1, while it is a candidate.
    fn candidate(&mut self) -> Option<&mut PhaseOne<Self::Entry>>;
    /// Whether it leads the promised ballot.
    fn leads(&self) -> bool;
    /// Whether it leads and is about to stop.
    fn is_transferring(&self) -> bool;
    /// Whether it follows the leader and could lead.
    fn may_succeed(&self) -> bool;
    /// Why it takes no part in elections now, for a mark; none when it does.
    fn abstains(&self) -> Option<&'static str>;

    /// How long a leader may be silent.
    fn leader_timeout(&self) -> Duration;
    /// The most bytes of entries in one message, unless a single one is larger, and the most that a
    /// message takes besides them.
    fn message_limits(&self) -> (usize, usize);
    /// Whether to ask a majority before standing.
    fn has_pre_vote(&self) -> bool;

    /// The slot up to which it needs nothing when it stands.
    fn stands_behind(&self) -> Slot {
        self.log().committed()
    }
    /// The first slot from which on it can tell what it accepted.
    fn vouches_from(&self) -> Slot {
        self.log().first()
    }

    /// Wakes it when the leader has been silent, a random time after this.
    fn arm_election(&self, ctx: &mut Context<'_, Self>);
    /// The same, without waiting for a timeout.
    fn arm_election_soon(&self, ctx: &mut Context<'_, Self>);
    /// Wakes it after this.
    fn arm_election_in(&self, delay: Duration, ctx: &mut Context<'_, Self>);

    /// Gives up leading or standing. The promise stays.
    fn step_down(&mut self, ctx: &mut Context<'_, Self>);
    /// Begins phase 1.
    fn stand(&mut self, candidate: PhaseOne<Self::Entry>);
    /// Writes down a promise; what depends on it waits until it is durable.
    fn raise_promise(&mut self, ballot: Ballot, ctx: &mut Context<'_, Self>);
    /// Another replica reports which ballots decided how much: what was accepted under these is
    /// decided. True when that is new.
    fn learn_decisions(&mut self, told: &Decisions, ctx: &mut Context<'_, Self>) -> bool;
    /// A state as new as this slot is needed.
    fn fetch_state(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>);
    /// A peer is in this incarnation, or in a later one.
    fn observe(&mut self, peer: ReplicaId, incarnation: Incarnation, ctx: &mut Context<'_, Self>);
    /// The newest known incarnation of a peer.
    fn incarnation_of(&self, peer: ReplicaId) -> Incarnation;
    /// It has asked for promises.
    fn on_prepared(&mut self, _ctx: &mut Context<'_, Self>) {}
    /// Proposes again what may be decided: per slot the entry of the highest ballot.
    fn propose_again(
        &mut self,
        gathered: BTreeMap<Slot, Held<Self::Entry>>,
        ctx: &mut Context<'_, Self>,
    );
    /// It leads the first ballot of all.
    fn on_first_leader(&mut self, ctx: &mut Context<'_, Self>);
    /// It has won, and has proposed again; with the commit points of the acceptors.
    fn on_elected(&mut self, commit_points: &[Option<Slot>], ctx: &mut Context<'_, Self>);

    /// An injected bug: a promise leaves before it is durable.
    fn promises_hastily(&self) -> bool {
        false
    }
    /// An injected bug: the entry of the lowest ballot is proposed again.
    fn prefers_lowest(&self) -> bool {
        false
    }
    /// An injected bug: a promise of another ballot counts.
    fn counts_stale(&self) -> bool {
        false
    }
    /// Injected bugs of a page. True when it is dealt with.
    fn on_page_injected(
        &mut self,
        _from: ReplicaId,
        _page: &mut PromisePage<Self::Entry>,
        _ctx: &mut Context<'_, Self>,
    ) -> bool {
        false
    }
    /// Injected bugs of a rejection. True when it is dealt with.
    fn on_reject_injected(&mut self, _from: ReplicaId, _ctx: &mut Context<'_, Self>) -> bool {
        false
    }

    /// The replica has started: on the first boot of all, the owner of the lowest ballot leads it.
    fn begin_elections(&mut self, first_boot: bool, ctx: &mut Context<'_, Self>) {
        let first = self.ballots().first();
        if first_boot && self.me().id() == first.owner && self.ballots().promised() < first {
            // Phase 1 of the lowest ballot is empty. The promise is durable before anything is
            // proposed under it, so no later start can take this branch.
            self.raise_promise(first, ctx);
            self.stand(PhaseOne::first(self.me().members()));
        } else {
            self.arm_election(ctx);
        }
    }

    /// Writes up to this one are durable, perhaps of promises.
    fn on_promises_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        while let Some(promised) = self.ballots_mut().durable_up_to(upto) {
            if promised {
                self.on_promise_durable(ctx);
            }
        }
    }

    /// Checks what always holds of ballots, leader and log.
    ///
    /// # Panics
    /// When it does not.
    fn assert_leadership(&self) {
        let promised = self.ballots().promised();
        self.ballots().assert_invariants();
        self.log().assert_invariants(promised);
        if self.leads() {
            let own = promised.owner == self.me().id();
            assert!(own, "a leader leads its own ballot");
            assert!(self.ballots().is_durable(), "and has it on disk");
            let whole = self.log().held().next() == self.log().end();
            assert!(whole, "a leader's log has no holes");
        }
        let owns = |leader| leader == promised.owner;
        let known = self.leader().leader();
        assert!(
            known.is_none_or(owns),
            "the leader owns the promised ballot"
        );
    }

    /// A digest of role, ballots, log and leader, and of words of the protocol's own.
    fn election_digest(&self, role: u64, own: &[u64]) -> u64 {
        let (ballots, log, leader) = (self.ballots(), self.log(), self.leader());
        let words = [
            role,
            ballots.promised().round,
            u64::from(ballots.promised().owner.0),
            ballots.durable().round,
            log.first().0,
            log.end().0,
            log.bytes() as u64,
            log.held().0,
            log.durable().0,
            log.committed().0,
            log.executed().0,
            log.executed_done().0,
            log.time_seen().0,
            leader.received_at().0,
            leader.leader().map_or(0, |leader| u64::from(leader.0) + 1),
        ];
        digest(words.into_iter().chain(own.iter().copied()))
    }

    /// When the election timer fires: whether the leader is alive. The timer is set again.
    fn leader_is_alive(&self, now: Time, ctx: &mut Context<'_, Self>) -> bool {
        let timeout = self.leader_timeout();
        let alive = self.leader().is_alive(now, timeout);
        if alive {
            let at = self.leader().received_at() + timeout + random_duration(timeout, ctx);
            self.arm_election_in(at.since(now), ctx);
        }
        alive
    }

    /// There is no leader: it stands, unless it does so already and gets on.
    fn maybe_stand(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, timeout) = (ctx.now(), self.leader_timeout());
        if let Some(candidate) = self.candidate() {
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
        if self.has_pre_vote() {
            self.request_votes(ctx);
        } else {
            self.become_candidate(ctx);
        }
    }

    /// Asks whether the others would promise its next ballot.
    fn request_votes(&mut self, ctx: &mut Context<'_, Self>) {
        let (members, own) = (self.me().members(), self.me().id());
        let ballot = self.ballots().next(own);
        let committed = self.stands_behind();
        self.stand(PhaseOne::asking(ballot, members, committed.next(), own));
        let message = ElectionMessage::PreVote { ballot, committed };
        ctx.multicast(self.me().others(), Lane::Control, &message.into());
        if self.me().majority() == 1 {
            self.become_candidate(ctx);
        }
    }

    /// Stands with a ballot that it has never used: the promise of it is on disk before anybody
    /// hears of it.
    fn become_candidate(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.ballots().next(self.me().id());
        self.raise_promise(ballot, ctx);
        let (members, from) = (self.me().members(), self.log().committed().next());
        self.stand(PhaseOne::promising(ballot, members, from));
        self.arm_election(ctx);
    }

    /// Requests the pages again that have not come.
    fn request_promises(&mut self, ctx: &mut Context<'_, Self>) {
        let (ballot, others) = (self.ballots().promised(), self.me().others());
        if let Some(candidate) = self.candidate()
            && candidate.prepares()
        {
            for (id, from) in candidate.missing(others) {
                send(id, ElectionMessage::Prepare { ballot, from }, ctx);
            }
        }
    }

    /// A message of an election has come.
    fn on_election(
        &mut self,
        from: ReplicaId,
        message: ElectionMessage<Self::Entry>,
        ctx: &mut Context<'_, Self>,
    ) {
        match message {
            ElectionMessage::Reject { ballot, promised } => {
                self.on_reject(from, ballot, promised, ctx);
            }
            ElectionMessage::PreVote { ballot, committed } => {
                self.on_pre_vote(from, ballot, committed, ctx);
            }
            ElectionMessage::PreVoteOk {
                ballot,
                granted,
                promised,
                first,
                decisions,
            } => {
                self.ballots_mut().observe(promised);
                let rejected = (!granted).then_some((promised, first, &decisions));
                self.on_pre_vote_ok(from, ballot, rejected, ctx);
            }
            ElectionMessage::Prepare { ballot, from: slot } => {
                self.on_prepare(from, ballot, slot, ctx);
            }
            ElectionMessage::Promise {
                ballot,
                incarnation,
                page,
            } => {
                self.observe(from, incarnation, ctx);
                self.on_promise(from, (ballot, incarnation), page, ctx);
            }
            ElectionMessage::Stand { ballot } => self.on_stand(from, ballot, ctx),
        }
    }

    /// A candidate asks whether this replica would promise.
    fn on_pre_vote(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        committed: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some(why) = self.abstains() {
            return ctx.mark(why);
        }
        let led = match self.leads() {
            true => !self.is_transferring(),
            false => self.leader().is_alive(ctx.now(), self.leader_timeout()),
        };
        let first = self.vouches_from();
        let behind = committed.next() < first;
        let promised = self.ballots().promised();
        let granted = !led && ballot > promised && !behind;
        if !granted {
            ctx.mark("pre-vote refused");
        }
        let message = ElectionMessage::PreVoteOk {
            ballot,
            granted,
            promised,
            first,
            decisions: self.decisions_if(behind),
        };
        send(from, message, ctx);
    }

    /// The commit points of ballots, for a candidate that is behind.
    fn decisions_if(&self, behind: bool) -> Decisions {
        match behind {
            true => self.log().decisions().clone(),
            false => Decisions::default(),
        }
    }

    /// Another replica would promise, or rejects and reports the ballot that it has promised, from
    /// which slot on it keeps what it accepted, and what is decided.
    fn on_pre_vote_ok(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        rejected: Option<(Ballot, Slot, &Decisions)>,
        ctx: &mut Context<'_, Self>,
    ) {
        let majority = self.me().majority();
        let Some(candidate) = self.candidate().filter(|it| it.asks(ballot)) else {
            return ctx.mark("ignored: vote for another ballot");
        };
        let Some((promised, first, decisions)) = rejected else {
            candidate.vote(from);
            if candidate.has(majority) {
                self.become_candidate(ctx);
            }
            return;
        };
        if promised >= ballot {
            // Perhaps of a candidate that is dead; the next ballot is above it.
            self.arm_election_soon(ctx);
        }
        if first <= self.stands_behind().next() {
            return;
        }
        if self.learn_decisions(decisions, ctx) && first <= self.stands_behind().next() {
            return self.request_votes(ctx);
        }
        self.is_behind(from, first, ctx);
    }

    /// That acceptor no longer keeps decided slots which this candidate lacks: it never decides
    /// what it happens to hold itself. That vote cannot count; those of the others may be enough,
    /// and they report what was decided.
    fn is_behind(&mut self, from: ReplicaId, first: Slot, ctx: &mut Context<'_, Self>) {
        ctx.mark("candidate is behind a trimmed log");
        let majority = self.me().majority();
        let Some(candidate) = self.candidate() else {
            return;
        };
        if !candidate.is_behind(from, first, majority) {
            let first = candidate.behind_first().unwrap_or(first);
            self.step_down(ctx);
            self.fetch_state(first.previous(), ctx);
        }
    }

    /// The promised ballot is durable.
    fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some((to, from)) = self.ballots_mut().take_owed() {
            self.send_promise(to, from, ctx);
        }
        let (own, others, majority) = (self.me().id(), self.me().others(), self.me().majority());
        let Some(candidate) = self.candidate() else {
            return;
        };
        match candidate.on_own_promise(own) {
            Promised::Ignored => {}
            Promised::First => {
                ctx.mark("first leader");
                self.on_first_leader(ctx);
            }
            Promised::Prepares => {
                if candidate.has(majority) {
                    return self.win(ctx);
                }
                // To all members: also one that takes no part now is an acceptor still.
                let message = ElectionMessage::Prepare {
                    ballot: self.ballots().promised(),
                    from: self.log().committed().next(),
                };
                ctx.multicast(others, Lane::Control, &message.into());
                self.on_prepared(ctx);
            }
        }
    }

    /// A candidate asks for the promise of its ballot and for what is accepted from a slot on.
    fn on_prepare(
        &mut self,
        candidate: ReplicaId,
        ballot: Ballot,
        from: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some(why) = self.abstains() {
            return ctx.mark(why);
        }
        if candidate != ballot.owner {
            return ctx.mark("ignored: ballot of another");
        }
        let promised = self.ballots().promised();
        if ballot < promised {
            ctx.mark("ignored: old ballot");
            return self.send_reject(candidate, ballot, ctx);
        }
        if ballot > promised {
            self.step_down(ctx);
            self.raise_promise(ballot, ctx);
            self.arm_election(ctx);
        }
        if self.ballots().is_durable() || self.promises_hastily() {
            self.send_promise(candidate, from, ctx);
        } else {
            self.ballots_mut().owe(candidate, from);
        }
    }

    /// One page of what was accepted from slot `from` on.
    fn send_promise(&self, to: ReplicaId, from: Slot, ctx: &mut Context<'_, Self>) {
        assert!(
            self.ballots().is_durable() || self.promises_hastily(),
            "a promise is on disk before it is given"
        );
        let (bytes_max, overhead) = self.message_limits();
        let mut page = PromisePage {
            from,
            until: None,
            committed: self.log().committed(),
            first: self.vouches_from(),
            decisions: Decisions::default(),
            accepted: alloc::vec::Vec::new(),
        };
        let behind = page.first > from;
        page.decisions = self.decisions_if(behind);
        let mut bytes = 0;
        if !behind {
            let entries = self.log().page(from, bytes_max);
            if entries.until.is_some() {
                ctx.mark("promise paged");
            }
            bytes = entries.bytes;
            (page.until, page.accepted) = (entries.until, entries.entries);
        }
        if !ctx.takes(to, bytes + overhead) {
            // The candidate asks again.
            return ctx.mark("promise waits for room");
        }
        let message = ElectionMessage::Promise {
            ballot: self.ballots().promised(),
            incarnation: self.me().incarnation(),
            page,
        };
        send(to, message, ctx);
    }

    /// A page of an acceptor's promise has come.
    fn on_promise(
        &mut self,
        from: ReplicaId,
        (ballot, incarnation): (Ballot, Incarnation),
        mut page: PromisePage<Self::Entry>,
        ctx: &mut Context<'_, Self>,
    ) {
        let (stale, lowest, first) = (self.counts_stale(), self.prefers_lowest(), page.first);
        let Some(candidate) = self.candidate() else {
            return ctx.mark("ignored: promise without a candidate");
        };
        if !candidate.prepares() || (!candidate.prepares_for(ballot) && !stale) {
            return ctx.mark("ignored: promise of another ballot");
        }
        if incarnation != self.incarnation_of(from) {
            return ctx.mark("ignored: promise of an earlier incarnation");
        }
        if self.on_page_injected(from, &mut page, ctx) {
            return;
        }
        let here = (self.log().committed(), ctx.now());
        let decisions = mem::take(&mut page.decisions);
        let better = |new: Ballot, before: Ballot| (before < new) != lowest;
        let Some(candidate) = self.candidate() else {
            return;
        };
        match candidate.on_page(from, ballot, page, here, better) {
            Progress::Ignored(why) => ctx.mark(why),
            Progress::Behind => {
                self.learn_decisions(&decisions, ctx);
                let next = self.log().committed().next();
                let Some(candidate) = self.candidate() else {
                    return;
                };
                if first > next {
                    return self.is_behind(from, first, ctx);
                }
                candidate.ask_from(from, next);
                send(from, ElectionMessage::Prepare { ballot, from: next }, ctx);
            }
            Progress::More(next) => {
                send(from, ElectionMessage::Prepare { ballot, from: next }, ctx);
            }
            Progress::Complete => self.maybe_win(ctx),
        }
    }

    /// Wins when a majority has promised.
    fn maybe_win(&mut self, ctx: &mut Context<'_, Self>) {
        let majority = self.me().majority();
        if self.candidate().is_some_and(|it| it.has(majority)) {
            self.win(ctx);
        }
    }

    /// A majority has promised.
    fn win(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(candidate) = self.candidate() else {
            return;
        };
        let gathered = candidate.take_gathered();
        let commit_points = candidate.commit_points();
        ctx.mark("election won");
        self.propose_again(gathered, ctx);
        self.on_elected(&commit_points, ctx);
    }

    /// A message was sent under a ballot below the promised one.
    fn send_reject(&self, to: ReplicaId, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        let promised = self.ballots().promised();
        send(to, ElectionMessage::Reject { ballot, promised }, ctx);
    }

    /// Another replica has promised a higher ballot than that of a message from here.
    fn on_reject(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        promised: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballots_mut().observe(promised);
        if ballot != self.ballots().promised() || promised <= ballot {
            return ctx.mark("ignored: refusal of another ballot");
        }
        if self.on_reject_injected(from, ctx) {
            return;
        }
        let led = self.leads();
        self.step_down(ctx);
        if led {
            self.arm_election_soon(ctx);
        }
    }

    /// It leads and is about to stop: this replica is to stand.
    fn send_stand(&self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        let ballot = self.ballots().promised();
        send(to, ElectionMessage::Stand { ballot }, ctx);
    }

    /// The leader asks this replica to stand.
    fn on_stand(&mut self, from: ReplicaId, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        let follows = self.may_succeed() && self.leader().is(from);
        if !follows || ballot != self.ballots().promised() {
            return ctx.mark("ignored: hand-off");
        }
        ctx.mark("stands by hand-off");
        self.become_candidate(ctx);
    }
}
