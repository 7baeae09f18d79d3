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
    Chora, Message, Proposers, Value, ViewInit,
    message::Fitness,
    plant::Plant,
    replica::{Role, Timer},
};
use alloc::{boxed::Box, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Tally, Waiting},
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
        let members = ReplicaSet::all(self.members);
        init.live.0 & !members.0 == 0 && init.proposers.iter().all(|id| members.contains(*id))
    }

    fn random_duration(below: Duration, ctx: &mut Context<'_, Self>) -> Duration {
        let nanos = u64::try_from(below.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(ctx.random_below(nanos))
    }

    /// A message of this view came. True when the replica is in it; it follows a higher one.
    pub(super) fn in_view(
        &mut self,
        from: ReplicaId,
        view: u64,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if view < self.view {
            ctx.mark("ignored: lower view");
            return false;
        }
        if view > self.view {
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
        assert!(
            view > self.view || (self.voted_for.is_none() && self.init.is_none()),
            "one vote per view"
        );
        if view > self.view {
            self.view_since = ctx.now();
            self.coordination_tries = 0;
            // What was proposed and cannot be appended any more is lost; its owners keep it.
            self.buffer.clear();
            self.init = None;
            self.verified = self.committed;
            self.next_propose = None;
            self.latest = self.committed;
            self.outstanding.clear();
            self.queue = quintet_replica::parts::RequestQueue::default();
            self.requests.pass_on_nothing();
            self.reads.new_view();
            self.ack_sent = Slot(0);
            self.ack_looked = Slot(0);
            self.ack_wanted = false;
            self.noop_wanted = false;
            self.skip_demanded = Slot(0);
            self.own_used = Slot(0);
            self.nack_due = None;
            self.recover_due.clear();
            self.rounds.rest();
            if !self.planted(Plant::OldViewAckCounts) {
                for peer in &mut self.peers {
                    peer.acked = Slot(0);
                }
            }
        }
        self.view = view;
        self.voted_for = voted_for;
        self.role = Role::Follower;
        self.stand_at = None;
        self.stand_anyway = None;
        self.persist_promise(ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        match &self.role {
            Role::Candidate(_) => {
                if let Role::Candidate(votes) = &mut self.role {
                    votes.vote(self.id);
                }
                self.request_votes(ctx);
                self.maybe_elected(ctx);
            }
            Role::Follower => {
                if let Some(candidate) = self.voted_for.filter(|id| *id != self.id) {
                    self.send_vote(candidate, ctx);
                }
            }
            Role::Initiator => {}
        }
        if self.established() && self.next_propose.is_none() {
            self.on_established(ctx);
        }
        self.maybe_commit(ctx);
    }

    pub(super) fn become_candidate(&mut self, ctx: &mut Context<'_, Self>) {
        let known = self.peers.iter().map(|peer| peer.view).max().unwrap_or(0);
        let view = self.view.max(known) + 1;
        self.view_tries += 1;
        self.enter_view(view, Some(self.id), ctx);
        self.role = Role::Candidate(Tally::new());
    }

    /// Asks those who have not voted yet.
    pub(super) fn request_votes(&self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(votes) = &self.role else {
            return;
        };
        if !self.promise_durable() {
            return;
        }
        let message = Message::ViewRequest {
            view: self.view,
            incarnation: self.incarnation,
            last_slot: self.last_append(),
            last_view: self.last_view(),
        };
        let others = self
            .others
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
        if view < self.view {
            self.pulse_due = true;
            return ctx.mark("ignored: lower view");
        }
        if view == self.view && self.voted_for == Some(from) {
            return self.send_vote(from, ctx);
        }
        let free = view > self.view
            || (self.voted_for.is_none() && self.init.is_none() && self.role == Role::Follower);
        if !free {
            self.on_rival(from, (last_slot, last_view), ctx);
            return ctx.mark("ignored: voted in this view");
        }
        let newer = (self.last_view(), self.last_append()) > (last_view, last_slot);
        if self.recovery.is_some() {
            ctx.mark("no vote: recovering");
            if view > self.view {
                self.enter_view(view, None, ctx);
            }
        } else if newer && !self.planted(Plant::OldLogElected) {
            ctx.mark("candidate's log is older");
            if view > self.view {
                self.enter_view(view, None, ctx);
            }
            self.stand_anyway = Some("view change: a newer log");
            self.watch(ctx);
        } else {
            ctx.mark("vote given");
            self.enter_view(view, Some(from), ctx);
            if self.planted(Plant::VoteNotDurable) {
                let vote = Message::Vote {
                    view: self.view,
                    incarnation: self.incarnation,
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
        let is_candidate = matches!(self.role, Role::Candidate(_));
        let (own, its) = (
            (self.last_view(), self.last_append()),
            (last_view, last_slot),
        );
        let is_first = own > its || own == its && self.id < rival;
        if is_candidate && is_first && self.stand_at.is_none() {
            let half = self.config.suspect / 2;
            let delay = half + Self::random_duration(half, ctx);
            self.stand_anyway = Some("view change: votes were split");
            self.stand_at = Some(ctx.now() + delay);
            ctx.set_timer(Timer::Stand, delay);
        }
    }

    fn send_vote(&self, candidate: ReplicaId, ctx: &mut Context<'_, Self>) {
        if !self.promise_durable() || self.init.is_some() || self.recovery.is_some() {
            return;
        }
        let vote = Message::Vote {
            view: self.view,
            incarnation: self.incarnation,
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
        if view != self.view || incarnation != self.peers[from.index()].incarnation {
            return ctx.mark("ignored: vote for another view");
        }
        let Role::Candidate(votes) = &mut self.role else {
            return;
        };
        votes.vote(from);
        self.maybe_elected(ctx);
    }

    fn maybe_elected(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Candidate(votes) = &self.role else {
            return;
        };
        if votes.reached(self.majority) && self.promise_durable() {
            self.become_initiator(ctx);
        }
    }

    /// Everybody who is heard and near takes part in the new view; of those that fail again and
    /// again none that can be done without.
    fn become_initiator(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let fit = |id: &ReplicaId| self.takes_part(*id, now);
        let fit: ReplicaSet = self.others.iter().filter(fit).collect();
        let lasting = |id: &ReplicaId| !self.must_wait(*id, now);
        let live: ReplicaSet = fit.iter().filter(lasting).collect();
        let live = if self.leaving(now) && !live.is_empty() {
            live
        } else {
            live.with(self.id)
        };
        let first = if live.contains(self.id) {
            self.id
        } else {
            live.iter().next().unwrap_or(self.id)
        };
        let (among, wanted) = match self.config.proposers {
            Proposers::Count(count) => (live, count),
            Proposers::Loaded => match self.loaded(self.quick(live)) {
                ReplicaSet::EMPTY => (self.quick(live), 0),
                loaded => (loaded, 0),
            },
        };
        let proposers = Self::proposers_of(among, first, wanted, self.members);
        let init = ViewInit {
            view: self.view,
            initiator: self.id,
            base: self.log.end(),
            proposers,
            live,
        };
        ctx.mark("view began");
        self.role = Role::Initiator;
        self.stand_anyway = None;
        self.insert_init(init, ctx);
        self.send_init(ctx);
    }

    /// Whether another replica can be counted on in the rounds: not one that first needs a state,
    /// as this replica no longer keeps what it lacks.
    fn takes_part(&self, id: ReplicaId, now: Time) -> bool {
        let peer = &self.peers[id.index()];
        self.alive(id, now)
            && matches!(peer.fitness, Fitness::Fit | Fitness::Restarted)
            && peer.committed.0 + BEHIND_MAX >= self.committed.0
            && peer.committed.next() >= self.log.first()
    }

    /// Whether a replica has failed too often to come back already, and the others are a majority
    /// without it. A replica outside the rounds acknowledges and votes, too.
    fn must_wait(&self, id: ReplicaId, now: Time) -> bool {
        let pauses = |id: ReplicaId, others: usize| {
            let quorum = (others, self.majority);
            self.admission.pauses(id, now, quorum, Waiting::Votes)
        };
        let lasts = |id: &ReplicaId| self.takes_part(*id, now) && !pauses(*id, self.majority);
        let lasting = self.others.iter().filter(lasts).count();
        pauses(id, lasting + usize::from(!self.leaving(now)))
    }

    fn alive(&self, id: ReplicaId, now: Time) -> bool {
        let peer = &self.peers[id.index()];
        let down = peer
            .down_at
            .is_some_and(|at| now.since(at) >= self.config.heartbeat * 2);
        !down && now.since(peer.heard_at) < self.config.suspect
    }

    /// Where each view of the log begins, for followers to compare.
    fn runs(&self, below: Slot) -> Vec<(Slot, u64)> {
        let mut runs = alloc::vec![(self.log.first().previous(), self.anchor_view)];
        for (slot, held) in self.log.iter_from(self.log.first()) {
            if slot >= below {
                break;
            }
            if runs.last().is_none_or(|(_, view)| *view < held.view) {
                runs.push((slot, held.view));
            }
        }
        runs
    }

    /// To those who have not acknowledged it.
    pub(super) fn send_init(&self, ctx: &mut Context<'_, Self>) {
        let Some(init) = &self.init else { return };
        let lacks = |id: &ReplicaId| self.peers[id.index()].acked < init.base;
        let to: ReplicaSet = self.others.iter().filter(lacks).collect();
        if to.is_empty() {
            return;
        }
        let runs = self.runs(init.base);
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
        if view < self.view {
            return ctx.mark("ignored: lower view");
        }
        if view > self.view {
            self.enter_view(view, None, ctx);
        }
        if self.init.is_some() {
            self.pulse_due = true;
            return;
        }
        self.role = Role::Follower;
        self.stand_anyway = None;
        let follows = self.verify(runs, init.base);
        if follows && self.verified.next() == init.base {
            self.insert_init(init, ctx);
        } else if self.planted(Plant::InitBeforePrefix)
            && self.last_append() >= init.base.previous()
        {
            self.verified = init.base.previous();
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
        if self.verified >= base || theirs(self.verified) != self.view_of(self.verified) {
            return false;
        }
        let last = self.last_append().min(base.previous());
        while self.verified < last
            && theirs(self.verified.next()) == self.view_of(self.verified.next())
        {
            self.verified = self.verified.next();
        }
        true
    }

    /// The log up to the view's base is the initiator's: the view begins here.
    pub(super) fn insert_init(&mut self, init: ViewInit, ctx: &mut Context<'_, Self>) {
        let base = init.base;
        if self.log.end() > base {
            ctx.mark("suffix of an old view replaced");
            self.truncate(base);
        }
        assert!(self.log.end() == base, "behind a whole prefix");
        self.append(self.view, Value::Init(Box::new(init.clone())), ctx);
        self.verified = base;
        self.latest = self.latest.max(base);
        self.buffer.retain(|slot, _| init.owner(*slot).is_some());
        self.rounds.register(init.live.without(self.id));
        self.init = Some(init);
        self.pulse_due = true;
        self.drain(ctx);
        self.maybe_recovered(ctx);
        self.maybe_commit(ctx);
    }

    /// VIEW-INIT is committed here: its assignment of slots is in force.
    pub(super) fn on_established(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(init) = self.init.clone() else {
            return;
        };
        self.view_tries = 0;
        let (now, before) = (ctx.now(), self.live_before);
        self.rejoin_after = now + self.config.suspect * 2;
        let counts = |live: ReplicaSet| move |id| live.contains(id).then_some(0);
        self.admission
            .note(self.id, now, counts(before), counts(init.live));
        self.live_before = init.live;
        self.rounds.register(init.live.without(self.id));
        let members: Vec<(ReplicaId, Incarnation)> = init
            .live
            .iter()
            .map(|id| (id, self.peers[id.index()].incarnation))
            .collect();
        ctx.route_is(self.executed, &members);
        if self.mute != Some(self.view) && self.recovery.is_none() && self.promise_durable() {
            self.next_propose = init.next_slot(self.id, init.base.max(self.own_used));
        }
        self.take_requests();
        self.take_waiting(ctx);
        self.aim_reads();
    }

    pub(super) fn on_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        self.pulse_due = true;
        self.watch_drag(ctx.now());
        self.watch_load();
        self.watch_recovery(ctx);
        self.watch(ctx);
        self.take_waiting(ctx);
    }

    /// Decides whether the view should change, and when this replica is to see to it.
    pub(super) fn watch(&mut self, ctx: &mut Context<'_, Self>) {
        if self.recovery.is_some() {
            return;
        }
        let now = ctx.now();
        if self.stand_anyway.is_none() && self.reason(now).is_none() {
            self.stand_at = None;
            return;
        }
        if self.stand_at.is_some() {
            return;
        }
        let heartbeat = self.config.heartbeat;
        let rank = if self.init.is_some() {
            self.rank(now)
        } else {
            0
        };
        let wait = if self.stand_anyway.is_some() {
            Duration::ZERO
        } else {
            heartbeat * rank / 2
        };
        let delay = wait + Self::random_duration(heartbeat / 2, ctx);
        self.stand_at = Some(now + delay);
        ctx.set_timer(Timer::Stand, delay);
    }

    /// How many live replicas come before this one when somebody must stand.
    fn rank(&self, now: Time) -> u32 {
        let Some(init) = &self.init else { return 0 };
        if init.initiator == self.id {
            return 0;
        }
        let before =
            |id: &ReplicaId| (*id < self.id || *id == init.initiator) && self.alive(*id, now);
        init.live.without(self.id).iter().filter(before).count() as u32
    }

    /// Whether somebody fit has committed what this replica does not hold. A majority holds it, so
    /// that this one would not get a majority's votes, and its request would only end a view that
    /// works. Others see to what is wrong; it fetches the log or a state, however long that takes.
    pub(super) fn is_behind(&self, now: Time) -> bool {
        let last = self.last_append();
        self.others.iter().any(|id| {
            let peer = &self.peers[id.index()];
            let fit = matches!(peer.fitness, Fitness::Fit | Fitness::Restarted);
            fit && peer.committed > last && self.alive(id, now)
        })
    }

    /// Why the view should change, if it should.
    fn reason(&self, now: Time) -> Option<&'static str> {
        if self.is_behind(now) {
            return None;
        }
        let suspect = self.config.suspect;
        let Some(init) = self.init.as_ref().filter(|_| self.established()) else {
            // Who waits longer with each try leaves room for one of them to come through.
            let spread = u32::from(self.id.0) + 2 * self.view_tries.min(8);
            let patience = suspect + suspect * spread / 4;
            return (now.since(self.view_since) > patience)
                .then_some("view change: the view does not begin");
        };
        if !init.live.contains(self.id) {
            // Somebody who takes part will see to it, unless nobody does.
            let sees = |id: ReplicaId| {
                let fitness = self.peers[id.index()].fitness;
                self.alive(id, now) && matches!(fitness, Fitness::Fit | Fitness::Restarted)
            };
            let any = init.live.iter().any(sees);
            return (!any).then_some("view change: nobody of the view is heard");
        }
        let live = init.live.without(self.id);
        for id in live.iter() {
            if !self.alive(id, now) {
                return Some("view change: a replica is silent");
            }
            let peer = &self.peers[id.index()];
            match peer.fitness {
                Fitness::Fit => {}
                Fitness::Restarted if peer.view == self.view && init.proposers.contains(&id) => {
                    return Some("view change: a proposer was restarted");
                }
                Fitness::Restarted => {}
                Fitness::Forgot | Fitness::Recovering => {
                    return Some("view change: a replica has forgotten");
                }
                Fitness::Leaving => return Some("view change: a replica leaves"),
            }
        }
        if self.mute == Some(self.view) && init.proposers.contains(&self.id) {
            return Some("view change: a proposer was restarted");
        }
        if self.latest > self.committed && now.since(self.progress_at) > suspect * 4 {
            return Some("view change: nothing is committed");
        }
        // One of those who take part sees to the rest: the initiator, or the first that is there.
        let here = |id: ReplicaId| id == self.id || self.alive(id, now);
        let chief = Some(init.initiator)
            .filter(|id| init.live.contains(*id) && here(*id))
            .or(init.live.iter().find(|id| here(*id)));
        if chief != Some(self.id) || now < self.rejoin_after {
            return None;
        }
        let outside = |id: &ReplicaId| !init.live.contains(*id);
        let mut others = self.others.iter().filter(outside);
        let stuck = |id: &ReplicaId| {
            self.alive(*id, now) && self.peers[id.index()].fitness == Fitness::Forgot
        };
        if self.others.iter().any(|id| stuck(&id)) {
            return Some("view change: a replica has forgotten");
        }
        let returns = |id: ReplicaId| {
            self.takes_part(id, now)
                && self.peers[id.index()].acked >= init.base
                && !self.must_wait(id, now)
        };
        if others.any(returns) {
            return Some("view change: a replica comes back");
        }
        let fit = init.live.len();
        let wanted = match self.config.proposers {
            Proposers::Loaded => {
                let due = self.demand.is_due();
                return due.then_some("view change: the load comes from elsewhere");
            }
            Proposers::Count(0) => fit,
            Proposers::Count(most) => most.min(fit),
        };
        (wanted != init.proposers.len()).then_some("view change: another number of proposers")
    }

    pub(super) fn on_stand(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        if self.stand_at.take().is_none() || self.recovery.is_some() {
            return;
        }
        if self.is_behind(now) {
            return ctx.mark("no view change: its log is older");
        }
        let reason = self.reason(now);
        let Some(reason) = reason.or(self.stand_anyway.take()) else {
            return;
        };
        let heard = self.others.iter().filter(|id| self.alive(*id, now)).count();
        if heard + 1 < self.majority {
            return ctx.mark("no view change: it would not get a majority");
        }
        ctx.mark(reason);
        self.note_restarted(now);
        self.become_candidate(ctx);
    }

    /// Of those that take part, some were started again since the view began, and end it.
    fn note_restarted(&mut self, now: Time) {
        for id in self.live_before.without(self.id).iter() {
            let peer = &self.peers[id.index()];
            if peer.fitness == Fitness::Restarted && peer.view == self.view {
                self.admission.restarted(id, now);
            }
        }
    }
}
