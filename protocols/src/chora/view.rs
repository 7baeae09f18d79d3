//! View changes: who stands, who votes, and how a view begins (§6.5).
//!
//! ```text
//!   silence, restart, return ──► view + 1 on disk ──► ViewRequest ──► log at least as new? vote on disk
//!                                                                        │
//!   VIEW-INIT{base, proposers, live} ◄── initiator ◄── majority ◄── Vote ◄┘
//!      │
//!      └─► prefix verified against the initiator's log ──► inserted ──► acknowledged, committed
//! ```
//!
//! Every replica hears every other, so one that would not get a majority does not stand: too few
//! are heard, or one of them has committed what it does not hold.

use super::{
    Chora, Message, Proposers, Value, ViewInit, bug::Bug, message::Fitness, peers::PeerState,
    replica::Timer, view_state::Role,
};
use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Tally, random_duration},
};

/// A replica this far behind learns, and does not take part in the rounds.
const BEHIND_MAX: u64 = 1024;

impl Chora {
    /// The order in which the live ones propose: the first given, then by number.
    pub(super) fn proposers_of(
        live: ReplicaSet,
        first: ReplicaId,
        wanted: usize,
        members: usize,
    ) -> Vec<ReplicaId> {
        let ring = (0..members).map(|step| ReplicaId(((first.index() + step) % members) as u16));
        let most = if wanted == 0 { members } else { wanted };
        ring.filter(|id| live.contains(*id)).take(most).collect()
    }

    /// Whether it speaks of members only.
    pub(super) fn is_sane(&self, init: &ViewInit) -> bool {
        let members = ReplicaSet::all(self.me.members());
        init.live.0 & !members.0 == 0 && init.proposers.iter().all(|id| members.contains(*id))
    }

    /// A message of this view came. True when the replica is in it; it follows a higher one.
    pub(super) fn in_view(
        &mut self,
        from: ReplicaId,
        view: u64,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if view < self.view.number() {
            ctx.mark("ignored: lower view");
            return false;
        }
        if view > self.view.number() {
            ctx.mark("follows a higher view");
            self.enter_view(view, None, ctx);
            self.fetch_log(from, ctx);
        }
        true
    }

    /// Nothing of a lower view counts from here on.
    pub(super) fn enter_view(
        &mut self,
        view: u64,
        voted_for: Option<ReplicaId>,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.view.enter(view, voted_for, ctx.now()) {
            self.coordination.reset();
            self.log.clear_buffer();
            self.log.unverify();
            self.proposer.enter_view(self.log.committed());
            self.relay.kept.forward_nothing();
            self.reads.new_view();
            self.pulse.enter_view();
            if !self.injected(Bug::OldViewAckCounts) {
                for peer in &mut self.peers {
                    peer.unacknowledge();
                }
            }
        }
        self.election.reset();
        self.persist_promise(ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        match self.view.role() {
            Role::Candidate(_) => {
                let own = self.me.id();
                if let Some(votes) = self.view.votes_mut() {
                    votes.vote(own);
                }
                self.request_votes(ctx);
                self.maybe_elected(ctx);
            }
            Role::Follower => {
                if let Some(candidate) = self.view.voted_for().filter(|id| *id != self.me.id()) {
                    self.send_vote(candidate, ctx);
                }
            }
            Role::Initiator => {}
        }
        if self.established() && !self.proposer.proposes() {
            self.on_established(ctx);
        }
        self.maybe_commit(ctx);
    }

    pub(super) fn become_candidate(&mut self, ctx: &mut Context<'_, Self>) {
        let known = self.peers.iter().map(PeerState::view).max().unwrap_or(0);
        let view = self.view.number().max(known) + 1;
        self.view.try_again();
        self.enter_view(view, Some(self.me.id()), ctx);
        self.view.set_role(Role::Candidate(Tally::new()));
    }

    /// Asks those who have not voted yet.
    pub(super) fn request_votes(&self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(votes) = self.view.role() else {
            return;
        };
        if !self.view.is_durable() {
            return;
        }
        let message = Message::ViewRequest {
            view: self.view.number(),
            incarnation: self.me.incarnation(),
            last_slot: self.log.last(),
            last_view: self.log.last_view(),
        };
        let others = self
            .me
            .others()
            .iter()
            .filter(|id| !votes.voters().contains(*id));
        ctx.multicast(others.collect(), Lane::Control, &message);
    }

    pub(super) fn on_view_request(
        &mut self,
        from: ReplicaId,
        view: u64,
        (last_slot, last_view): (Slot, u64),
        ctx: &mut Context<'_, Self>,
    ) {
        if view < self.view.number() {
            self.pulse.want();
            return ctx.mark("ignored: lower view");
        }
        if view == self.view.number() && self.view.voted_for() == Some(from) {
            return self.send_vote(from, ctx);
        }
        let free = view > self.view.number()
            || (self.view.voted_for().is_none()
                && self.view.init().is_none()
                && *self.view.role() == Role::Follower);
        if !free {
            self.on_rival(from, (last_slot, last_view), ctx);
            return ctx.mark("ignored: voted in this view");
        }
        let newer = (self.log.last_view(), self.log.last()) > (last_view, last_slot);
        if self.catch_up.is_recovering() {
            ctx.mark("no vote: recovering");
            if view > self.view.number() {
                self.enter_view(view, None, ctx);
            }
        } else if newer && !self.injected(Bug::OldLogElected) {
            ctx.mark("candidate's log is older");
            if view > self.view.number() {
                self.enter_view(view, None, ctx);
            }
            self.election.force("view change: a newer log");
            self.watch(ctx);
        } else {
            ctx.mark("vote given");
            self.enter_view(view, Some(from), ctx);
            if self.injected(Bug::VoteNotDurable) {
                let vote = Message::Vote {
                    view: self.view.number(),
                    incarnation: self.me.incarnation(),
                };
                ctx.send(from, Lane::Control, &vote);
            }
        }
    }

    /// Another one stands in this view, too: neither may get a majority. The one of them with the
    /// newer log, or else the lower number, stands again before this view is given up, else both
    /// would wait longer each time, and meet again. Not at once: the other may be elected just now,
    /// and its VIEW-INIT be on its way.
    fn on_rival(
        &mut self,
        rival: ReplicaId,
        (last_slot, last_view): (Slot, u64),
        ctx: &mut Context<'_, Self>,
    ) {
        let is_candidate = self.view.is_candidate();
        let (own, its) = (
            (self.log.last_view(), self.log.last()),
            (last_view, last_slot),
        );
        let is_first = own > its || own == its && self.me.id() < rival;
        if is_candidate && is_first && !self.election.is_set() {
            let half = self.config.suspect_timeout / 2;
            let delay = half + random_duration(half, ctx);
            self.election.force("view change: votes were split");
            self.election.set(ctx.now() + delay);
            ctx.set_timer(Timer::Stand, delay);
        }
    }

    fn send_vote(&self, candidate: ReplicaId, ctx: &mut Context<'_, Self>) {
        if !self.view.is_durable() || self.view.init().is_some() || self.catch_up.is_recovering() {
            return;
        }
        let vote = Message::Vote {
            view: self.view.number(),
            incarnation: self.me.incarnation(),
        };
        ctx.send(candidate, Lane::Control, &vote);
    }

    pub(super) fn on_vote(
        &mut self,
        from: ReplicaId,
        view: u64,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        if view != self.view.number() || incarnation != self.peers[from.index()].incarnation() {
            return ctx.mark("ignored: vote for another view");
        }
        let Some(votes) = self.view.votes_mut() else {
            return;
        };
        votes.vote(from);
        self.maybe_elected(ctx);
    }

    fn maybe_elected(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(votes) = self.view.role() else {
            return;
        };
        if votes.reached(self.me.majority()) && self.view.is_durable() {
            self.become_initiator(ctx);
        }
    }

    /// Everybody who is heard and near takes part in the new view; of those that fail again and
    /// again none that can be done without.
    fn become_initiator(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let fit = |id: &ReplicaId| self.takes_part(*id, now);
        let fit: ReplicaSet = self.me.others().iter().filter(fit).collect();
        let lasting = |id: &ReplicaId| !self.must_wait(*id, now);
        let live: ReplicaSet = fit.iter().filter(lasting).collect();
        let live = if self.election.is_leaving(now) && !live.is_empty() {
            live
        } else {
            live.with(self.me.id())
        };
        let first = if live.contains(self.me.id()) {
            self.me.id()
        } else {
            live.iter().next().unwrap_or(self.me.id())
        };
        let (among, wanted) = match self.config.proposers {
            Proposers::Count(count) => (live, count),
            Proposers::Loaded => match self.loaded(self.quick(live)) {
                ReplicaSet::EMPTY => (self.quick(live), 0),
                loaded => (loaded, 0),
            },
        };
        let proposers = Self::proposers_of(among, first, wanted, self.me.members());
        let init = ViewInit {
            view: self.view.number(),
            initiator: self.me.id(),
            base: self.log.end(),
            proposers,
            live,
        };
        ctx.mark("view began");
        self.view.set_role(Role::Initiator);
        self.election.take_forced();
        self.insert_init(init, ctx);
        self.send_init(ctx);
    }

    /// Whether another replica can be counted on in the rounds: not one that first needs a state,
    /// as this replica no longer keeps what it lacks.
    fn takes_part(&self, id: ReplicaId, now: Time) -> bool {
        let peer = &self.peers[id.index()];
        self.alive(id, now)
            && peer.is_fit()
            && peer.committed().0 + BEHIND_MAX >= self.log.committed().0
            && peer.committed().next() >= self.log.first()
    }

    /// Whether a replica has failed too often to come back already, and the others are a majority
    /// without it. A replica outside the rounds acknowledges and votes, too.
    fn must_wait(&self, id: ReplicaId, now: Time) -> bool {
        let pauses = |id: ReplicaId, others: usize| {
            let quorum = (others, self.me.majority());
            self.election.pauses(id, now, quorum)
        };
        let lasts = |id: &ReplicaId| self.takes_part(*id, now) && !pauses(*id, self.me.majority());
        let lasting = self.me.others().iter().filter(lasts).count();
        pauses(id, lasting + usize::from(!self.election.is_leaving(now)))
    }

    fn alive(&self, id: ReplicaId, now: Time) -> bool {
        let down = self.config.heartbeat * 2;
        self.peers[id.index()]
            .contact
            .is_alive(now, self.config.suspect_timeout, down)
    }

    /// To those who have not acknowledged it.
    pub(super) fn send_init(&self, ctx: &mut Context<'_, Self>) {
        let Some(init) = self.view.init() else { return };
        let lacks = |id: &ReplicaId| self.peers[id.index()].acked() < init.base;
        let to: ReplicaSet = self.me.others().iter().filter(lacks).collect();
        if to.is_empty() {
            return;
        }
        let runs = self.log.runs(init.base);
        let init = init.clone();
        ctx.multicast(to, Lane::Control, &Message::Init { init, runs });
    }

    pub(super) fn on_init(
        &mut self,
        from: ReplicaId,
        init: ViewInit,
        runs: &[(Slot, u64)],
        ctx: &mut Context<'_, Self>,
    ) {
        if init.initiator != from || !self.is_sane(&init) {
            return ctx.mark("ignored: another's VIEW-INIT");
        }
        let view = init.view;
        if view < self.view.number() {
            return ctx.mark("ignored: lower view");
        }
        if view > self.view.number() {
            self.enter_view(view, None, ctx);
        }
        if self.view.init().is_some() {
            self.pulse.want();
            return;
        }
        self.view.set_role(Role::Follower);
        self.election.take_forced();
        let follows = self.verify(runs, init.base);
        if follows && self.log.verified().next() == init.base {
            self.insert_init(init, ctx);
        } else if self.injected(Bug::InitBeforePrefix) && self.log.last() >= init.base.previous() {
            self.log.verify(init.base.previous());
            self.insert_init(init, ctx);
        } else {
            // Staged at the initiator: it comes again behind the slots that are not verified.
            self.fetch_log(from, ctx);
        }
    }

    /// Compares the own log with the views that the initiator's log holds: entries of the same slot
    /// and view are the same, and so is all before them.
    /// False when even what is committed here is not in it: a state may have come from a later view.
    fn verify(&mut self, runs: &[(Slot, u64)], base: Slot) -> bool {
        let theirs = |slot: Slot| {
            let run = runs.partition_point(|(first, _)| *first <= slot);
            runs.get(run.checked_sub(1)?).map(|(_, view)| *view)
        };
        if self.log.verified() >= base
            || theirs(self.log.verified()) != self.log.view_of(self.log.verified())
        {
            return false;
        }
        let last = self.log.last().min(base.previous());
        while self.log.verified() < last
            && theirs(self.log.verified().next()) == self.log.view_of(self.log.verified().next())
        {
            self.log.verify(self.log.verified().next());
        }
        true
    }

    /// The log up to the view's base is the initiator's: the view begins here.
    pub(super) fn insert_init(&mut self, init: ViewInit, ctx: &mut Context<'_, Self>) {
        let base = init.base;
        if self.log.end() > base {
            ctx.mark("suffix of an old view replaced");
            self.log.truncate(base);
        }
        assert!(self.log.end() == base, "behind a whole prefix");
        self.append(self.view.number(), Value::Init(Box::new(init.clone())), ctx);
        self.log.verify(base);
        self.proposer.learn_latest(base);
        self.log.retain_buffered(|slot| init.owner(slot).is_some());
        self.pulse.rounds.register(init.live.without(self.me.id()));
        self.view.begin(init);
        self.pulse.want();
        self.drain(ctx);
        self.maybe_recovered(ctx);
        self.maybe_commit(ctx);
    }

    /// VIEW-INIT is committed here: its assignment of slots is in force.
    pub(super) fn on_established(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(init) = self.view.init().cloned() else {
            return;
        };
        self.view.succeeded();
        let now = ctx.now();
        let rejoin_after = now + self.config.suspect_timeout * 2;
        self.election
            .on_established(self.me.id(), init.live, now, rejoin_after);
        self.pulse.rounds.register(init.live.without(self.me.id()));
        let members: Vec<(ReplicaId, Incarnation)> = init
            .live
            .iter()
            .map(|id| (id, self.peers[id.index()].incarnation()))
            .collect();
        ctx.route_is(self.log.executed(), &members);
        ctx.view_is(init.view, init.live);
        if !self.view.is_mute() && !self.catch_up.is_recovering() && self.view.is_durable() {
            self.proposer.begin(&init, self.me.id());
        }
        self.take_requests();
        self.take_waiting(ctx);
        self.aim_reads();
    }

    pub(super) fn on_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        self.pulse.want();
        self.watch_drag(ctx.now());
        self.watch_load();
        self.watch_recovery(ctx);
        self.watch(ctx);
        self.take_waiting(ctx);
    }

    /// Decides whether the view should change, and when this replica is to see to it.
    pub(super) fn watch(&mut self, ctx: &mut Context<'_, Self>) {
        if self.catch_up.is_recovering() {
            return;
        }
        let now = ctx.now();
        if self.election.anyway().is_none() && self.reason(now).is_none() {
            self.election.unset();
            return;
        }
        if self.election.is_set() {
            return;
        }
        let heartbeat = self.config.heartbeat;
        let rank = if self.view.init().is_some() {
            self.rank(now)
        } else {
            0
        };
        let wait = if self.election.anyway().is_some() {
            Duration::ZERO
        } else {
            heartbeat * rank / 2
        };
        let delay = wait + random_duration(heartbeat / 2, ctx);
        self.election.set(now + delay);
        ctx.set_timer(Timer::Stand, delay);
    }

    /// How many live replicas come before this one when one must stand.
    fn rank(&self, now: Time) -> u32 {
        let Some(init) = self.view.init() else {
            return 0;
        };
        if init.initiator == self.me.id() {
            return 0;
        }
        let before =
            |id: &ReplicaId| (*id < self.me.id() || *id == init.initiator) && self.alive(*id, now);
        init.live
            .without(self.me.id())
            .iter()
            .filter(before)
            .count() as u32
    }

    /// Whether a healthy member has committed entries that this replica does not hold. A majority
    /// holds it, so that this one would not get a majority's votes, and its request would only end
    /// a view that works. Others see to what is wrong; it fetches the log or a state, however long
    /// that takes.
    pub(super) fn is_behind(&self, now: Time) -> bool {
        let last = self.log.last();
        self.me.others().iter().any(|id| {
            let peer = &self.peers[id.index()];
            peer.is_fit() && peer.committed() > last && self.alive(id, now)
        })
    }

    /// Why the view should change, if it should.
    fn reason(&self, now: Time) -> Option<&'static str> {
        if self.is_behind(now) {
            return None;
        }
        let suspect = self.config.suspect_timeout;
        let Some(init) = self.view.init().filter(|_| self.established()) else {
            // A candidate that waits longer with each try leaves room for another to come through.
            let spread = u32::from(self.me.id().0) + 2 * self.view.tries().min(8);
            let timeout = suspect + suspect * spread / 4;
            return (now.since(self.view.since()) > timeout)
                .then_some("view change: the view does not begin");
        };
        if !init.live.contains(self.me.id()) {
            // A member that takes part will start a view, unless none does.
            let sees = |id: ReplicaId| {
                let fitness = self.peers[id.index()].fitness();
                self.alive(id, now) && matches!(fitness, Fitness::Fit | Fitness::Restarted)
            };
            let any = init.live.iter().any(sees);
            return (!any).then_some("view change: no member of the view is heard");
        }
        let live = init.live.without(self.me.id());
        for id in live.iter() {
            if !self.alive(id, now) {
                return Some("view change: a replica is silent");
            }
            let peer = &self.peers[id.index()];
            match peer.fitness() {
                Fitness::Fit => {}
                Fitness::Restarted
                    if peer.view() == self.view.number() && init.proposers.contains(&id) =>
                {
                    return Some("view change: a proposer was restarted");
                }
                Fitness::Restarted => {}
                Fitness::StateLost | Fitness::Recovering => {
                    return Some("view change: a replica lost its state");
                }
                Fitness::Leaving => return Some("view change: a replica leaves"),
            }
        }
        if self.view.is_mute() && init.proposers.contains(&self.me.id()) {
            return Some("view change: a proposer was restarted");
        }
        if self.proposer.latest() > self.log.committed()
            && now.since(self.election.progress_at()) > suspect * 4
        {
            return Some("view change: nothing is committed");
        }
        // One of those who take part sees to the rest: the initiator, or the first that is there.
        let here = |id: ReplicaId| id == self.me.id() || self.alive(id, now);
        let chief = Some(init.initiator)
            .filter(|id| init.live.contains(*id) && here(*id))
            .or(init.live.iter().find(|id| here(*id)));
        if chief != Some(self.me.id()) || !self.election.may_rejoin(now) {
            return None;
        }
        let outside = |id: &ReplicaId| !init.live.contains(*id);
        let mut others = self.me.others().iter().filter(outside);
        let stuck = |id: &ReplicaId| {
            self.alive(*id, now) && self.peers[id.index()].fitness() == Fitness::StateLost
        };
        if self.me.others().iter().any(|id| stuck(&id)) {
            return Some("view change: a replica lost its state");
        }
        let returns = |id: ReplicaId| {
            self.takes_part(id, now)
                && self.peers[id.index()].acked() >= init.base
                && !self.must_wait(id, now)
        };
        if others.any(returns) {
            return Some("view change: a replica comes back");
        }
        let fit = init.live.len();
        let wanted = match self.config.proposers {
            Proposers::Loaded => {
                let due = self.load.demand.is_due();
                return due.then_some("view change: the load comes from elsewhere");
            }
            Proposers::Count(0) => fit,
            Proposers::Count(most) => most.min(fit),
        };
        (wanted != init.proposers.len()).then_some("view change: another number of proposers")
    }

    pub(super) fn on_stand(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        if !self.election.unset() || self.catch_up.is_recovering() {
            return;
        }
        if self.is_behind(now) {
            return ctx.mark("no view change: its log is older");
        }
        let reason = self.reason(now);
        let Some(reason) = reason.or(self.election.take_forced()) else {
            return;
        };
        let heard = self
            .me
            .others()
            .iter()
            .filter(|id| self.alive(*id, now))
            .count();
        if heard + 1 < self.me.majority() {
            return ctx.mark("no view change: it would not get a majority");
        }
        ctx.mark(reason);
        self.note_restarted(now);
        self.become_candidate(ctx);
    }

    /// Of those that take part, some were started again since the view began, and end it.
    fn note_restarted(&mut self, now: Time) {
        for id in self.election.live_before().without(self.me.id()).iter() {
            let peer = &self.peers[id.index()];
            if peer.fitness() == Fitness::Restarted && peer.view() == self.view.number() {
                self.election.restarted(id, now);
            }
        }
    }
}
