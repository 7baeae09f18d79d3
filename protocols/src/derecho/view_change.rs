//! The end of a view and the beginning of the next (§3.6, A.4, B.1, B.3, B.5).
//!
//! ```text
//!   suspicion ──► SUSPECTED spreads, rows freeze ──► all wedge: nothing is sent or taken any more
//!     ──► leader (lowest rank not suspected): ragged trim and next view, tagged with its rank,
//!         adopted from the highest earlier rank if there is one
//!     ──► logged and echoed by all not suspected, a majority of the view ──► next view
//! ```

use super::{
    Derecho,
    message::{Ballot, Member, Message, Proposal, View},
    plant::Plant,
    rdmc::Rdmc,
    replica::{Act, Phase, Stream, Timer},
    sst::{self, ON_ALL, ON_SUSPECTED, PERSISTED, WEDGED},
};
use alloc::vec::Vec;
use quintet_replica::{Context, Lane, ReplicaId, ReplicaSet, Slot, parts::RequestQueue};

/// How many past views are kept for the replica that has missed some.
const VIEWS_MAX: usize = 32;

/// Whether these members of a view may decide for it: a strict majority (D4, D5).
pub(super) fn has_quorum(view: &View, set: ReplicaSet) -> bool {
    ReplicaSet(view.set().0 & set.0).len() * 2 > view.members.len()
}

/// Whether nobody can decide anything for a view without one of these members.
pub(super) fn can_block(view: &View, set: ReplicaSet) -> bool {
    ReplicaSet(view.set().0 & set.0).len() * 2 >= view.members.len()
}

impl Derecho {
    pub(super) fn on_beat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        let now = ctx.now();
        if now.since(self.beat_at) > self.config.suspect_timeout {
            // This replica stood still: who spoke meanwhile is not known.
            self.heard.fill(now);
            self.installed_at = now;
        }
        self.beat_at = now;
        match self.phase {
            Phase::Starting | Phase::Activating => {}
            Phase::Out => self.beat_out(ctx),
            Phase::Active => self.beat_active(ctx),
        }
    }

    fn beat_active(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        self.active_at = now;
        for peer in ReplicaSet(self.live().0 & self.others.0).iter() {
            let silent = now.since(self.heard[peer.index()]);
            let broken = self.down.contains(peer) && silent > self.config.heartbeat * 3;
            if silent > self.config.suspect_timeout || broken {
                self.suspect(peer, ctx);
            }
            if self.phase != Phase::Active {
                return;
            }
            self.watch_acknowledgements(peer);
        }
        self.leave_out_late(ctx);
        if self.phase == Phase::Active {
            self.look_for_sluggish(ctx);
        }
        if self.phase != Phase::Active {
            return;
        }
        self.beat_heart();
        if self.wedging && self.beats.is_multiple_of(4) {
            // Perhaps the others are in the next view already; then they say so.
            self.send_join(self.others, ctx);
        }
        if self.beats.is_multiple_of(8) {
            // Whatever was lost unseen is repaired by the next whole row.
            self.lagging = self.peers();
        }
    }

    /// Members that have not begun in the view in time are left out of the next one, where the rest
    /// is a majority: delivery waits for all, and they can fetch what they lack outside.
    fn leave_out_late(&mut self, ctx: &mut Context<'_, Self>) {
        if ctx.now().since(self.installed_at) <= self.config.restart_timeout {
            return;
        }
        let begun = |id: &ReplicaId| *id == self.id || self.table.valid(*id);
        let begun: ReplicaSet = self.live().iter().filter(begun).collect();
        let late = ReplicaSet(self.live().0 & !begun.0);
        if late.is_empty() || !has_quorum(&self.promise.view, begun) {
            return;
        }
        ctx.mark("member left out on its way");
        for id in late.iter() {
            self.suspect(id, ctx);
        }
    }

    /// A peer that takes nothing for several beats may have lost what was put.
    fn watch_acknowledgements(&mut self, peer: ReplicaId) {
        let column = self.table.layout.received(self.id);
        let taken = self.table.read(peer, column);
        let (before, beats) = self.acked_before[peer.index()];
        let stuck = taken == before && taken < self.sent || !self.table.valid(peer);
        let beats = if stuck { beats + 1 } else { 0 };
        self.acked_before[peer.index()] = (taken, beats);
        if beats > 0 && beats.is_multiple_of(3) {
            self.lagging.insert(peer);
        }
    }

    /// Suspects a member: its row freezes here, and the suspicion spreads.
    pub(super) fn suspect(&mut self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        if self.suspected.insert(peer) {
            ctx.mark("member suspected");
            self.set_own_suspected();
            self.check_majority(ctx);
        }
    }

    fn check_majority(&mut self, ctx: &mut Context<'_, Self>) {
        if !has_quorum(&self.promise.view, self.live()) && !self.planted(Plant::MinorityContinues) {
            ctx.mark("minority halts");
            self.leave(ctx);
        }
    }

    /// Takes over the suspicions of members that are not suspected themselves, in order of rank.
    pub(super) fn learn_suspicions(&mut self, ctx: &mut Context<'_, Self>) {
        for peer in self.peers().iter() {
            if self.suspected.contains(peer) || !self.table.valid(peer) {
                continue;
            }
            let theirs = self.table.suspected(peer);
            if theirs.contains(self.id) && !self.suspected.contains(self.id) {
                ctx.mark("suspected by another");
                return self.leave(ctx);
            }
            let new = ReplicaSet(theirs.0 & self.view_set().0 & !self.suspected.0);
            if !new.is_empty() {
                self.suspected = ReplicaSet(self.suspected.0 | new.0);
                self.set_own_suspected();
                self.check_majority(ctx);
                if self.phase != Phase::Active {
                    return;
                }
            }
        }
    }

    /// Stops taking part in this view permanently; the way back is a new one.
    pub(super) fn leave(&mut self, ctx: &mut Context<'_, Self>) {
        self.phase = Phase::Out;
        self.left = true;
        self.rdmc = Rdmc::default();
        self.out_since = ctx.now();
        self.active_at = ctx.now();
        self.joins.fill(None);
        self.refuse_reads(ctx);
    }

    /// About to stop: the others need not wait for a timeout.
    pub(super) fn hand_off(&mut self, _ctx: &mut Context<'_, Self>) {
        let rest = self.live().without(self.id);
        if self.phase == Phase::Active && has_quorum(&self.promise.view, rest) {
            self.suspected.insert(self.id);
            self.set_own_suspected();
        }
    }

    fn leader(&self) -> Option<ReplicaId> {
        self.live().iter().next()
    }

    pub(super) fn must_wedge(&self) -> bool {
        let wedged = |id| self.table.read(id, WEDGED) > 0;
        !self.wedging
            && (ReplicaSet(self.suspected.0 & self.view_set().0) != ReplicaSet::EMPTY
                || sst::any(self.live(), wedged)
                || self.leader() == Some(self.id) && !self.ready_joiners().is_empty())
    }

    /// No message is sent or taken from here on; what was taken before is still written.
    pub(super) fn wedge(&mut self, ctx: &mut Context<'_, Self>) {
        self.receive(ctx);
        self.wedging = true;
        self.dirty |= sst::ON_SELF;
    }

    pub(super) fn all_is_written(&self) -> bool {
        let view = self.promise.view.number;
        self.persisted == self.ordered && !self.writes.iter().any(|write| write.view == view)
    }

    /// The row is final now.
    pub(super) fn set_wedged(&mut self) {
        self.set_own(PERSISTED, self.persisted);
        self.set_own(WEDGED, 1);
    }

    /// All that are not suspected have wedged and suspect whom this one suspects: their rows are
    /// final, and nobody follows an earlier leader any more.
    fn all_wedged(&self) -> bool {
        let agrees = |id| {
            self.table.read(id, WEDGED) > 0 && self.suspected.0 & !self.table.suspected(id).0 == 0
        };
        sst::all(self.live(), agrees)
    }

    fn own_ballot(&self) -> u64 {
        self.promise
            .view
            .rank(self.id)
            .map_or(0, |rank| rank as u64 + 1)
    }

    pub(super) fn may_propose(&self) -> bool {
        self.wedging
            && self.leader() == Some(self.id)
            && self.proposing < self.own_ballot()
            && self.all_wedged()
    }

    pub(super) fn propose(&mut self, ctx: &mut Context<'_, Self>) {
        let rows = self.view_set();
        let valid = rows.iter().filter(|id| self.table.valid(*id));
        let highest = valid.max_by_key(|id| self.table.proposed(*id));
        let adopted = highest.and_then(|id| self.table.proposal(id));
        let adopted = adopted.filter(|_| !self.planted(Plant::TrimRecomputed));
        let view = match adopted {
            Some(proposal) => {
                ctx.mark("ragged trim adopted");
                proposal.view
            }
            None => {
                ctx.mark("ragged trim computed");
                self.ragged_trim()
            }
        };
        let ballot = Ballot {
            round: 0,
            proposer: self.own_ballot(),
        };
        let then = None;
        self.accept_in_view(Proposal { ballot, view, then }, ctx);
    }

    /// What all that are not suspected have persisted, up to the first gap in the round-robin
    /// order: rows count ordered messages, so their smallest count is just that.
    fn ragged_trim(&self) -> View {
        let live = self.live();
        let trim = sst::min(live, |id| self.table.read(id, PERSISTED));
        let base = self.last_slot(trim);
        let old = self.promise.view.members.iter();
        let mut members: Vec<Member> = old
            .filter(|member| live.contains(member.id))
            .copied()
            .collect();
        // Those who remain are a majority of the next view, even if all who join are gone by then:
        // they were heard a while ago, and nobody is suspected before it is a member.
        let joiners_max = members.len().saturating_sub(1).max(1);
        members.extend(self.ready_joiners().into_iter().take(joiners_max));
        members.sort_unstable_by_key(|member| member.id);
        View {
            number: self.promise.view.number + 1,
            members,
            base,
        }
    }

    /// Logs a proposal; it is echoed when it is durable.
    fn accept_in_view(&mut self, proposal: Proposal, ctx: &mut Context<'_, Self>) {
        self.proposing = proposal.ballot.proposer;
        self.promise.accepted = Some(proposal.clone());
        self.tell_route_ahead(&proposal.view, ctx);
        if self.planted(Plant::EchoNotDurable) {
            self.on_echo_durable(&proposal, ctx);
        }
        self.save(Act::Echo(proposal), ctx);
    }

    pub(super) fn may_echo(&self) -> bool {
        let Some(leader) = self.leader() else {
            return false;
        };
        let rank = self
            .promise
            .view
            .rank(leader)
            .map_or(0, |rank| rank as u64 + 1);
        self.wedging
            && leader != self.id
            && self.table.valid(leader)
            && self.table.proposed(leader) == rank
            && self.proposing < rank
            && self.table.get(self.id, WEDGED) > 0
    }

    pub(super) fn echo(&mut self, ctx: &mut Context<'_, Self>) {
        let proposal = self.leader().and_then(|leader| self.table.proposal(leader));
        let Some(proposal) = proposal else {
            return ctx.mark("ignored: a proposal that makes no sense");
        };
        if proposal.view.base > self.end() || proposal.view.base < self.sure {
            return ctx.mark("ignored: a trim that does not fit");
        }
        self.accept_in_view(proposal, ctx);
    }

    /// A vote is on disk. It is shown only while its proposer is not suspected here: who suspects
    /// it has said to a later leader, by a row with no vote for it, that there will be none.
    pub(super) fn on_echo_durable(&mut self, proposal: &Proposal, ctx: &mut Context<'_, Self>) {
        let same = self.promise.view.number + 1 == proposal.view.number;
        if self.phase != Phase::Active || !same || self.proposing != proposal.ballot.proposer {
            return;
        }
        if !self.leads(proposal.ballot.proposer) && !self.planted(Plant::EchoAfterSuspicion) {
            return ctx.mark("vote came too late");
        }
        self.set_own_proposal(proposal);
    }

    /// Whether the rank one below this number is not suspected here.
    fn leads(&self, proposer: u64) -> bool {
        let rank = proposer.checked_sub(1).map(|rank| rank as usize);
        let member = rank.and_then(|rank| self.promise.view.members.get(rank));
        member.is_some_and(|member| !self.suspected.contains(member.id))
    }

    /// All that are not suspected, a majority, have logged and echoed the same proposal, of a
    /// leader that is not suspected: what an earlier one proposed, the next one adopts and proposes
    /// again.
    pub(super) fn is_agreed(&self) -> bool {
        let mine = self.table.proposed(self.id);
        let echoed = |id| self.table.valid(id) && self.table.proposed(id) == mine;
        mine > 0
            && (self.leads(mine) || self.planted(Plant::EchoAfterSuspicion))
            && sst::all(self.live(), echoed)
            && (has_quorum(&self.promise.view, self.live())
                || self.planted(Plant::MinorityContinues))
    }

    pub(super) fn end_view(&mut self, ctx: &mut Context<'_, Self>) {
        // What was counted. A later vote may already be on its way to the disk.
        let Some(proposal) = self.table.proposal(self.id) else {
            return ctx.mark("ignored: a proposal that cannot be read");
        };
        // The last echo goes out before this member turns to the next view.
        self.push(ctx);
        let members = ReplicaSet(self.view_set().0 | proposal.view.set().0).without(self.id);
        let message = Message::Views {
            views: [proposal.view.clone()].into(),
            active: true,
        };
        if self.leader() == Some(self.id) {
            ctx.multicast(
                ReplicaSet(members.0 & self.others.0),
                Lane::Control,
                &message,
            );
        }
        self.learn(proposal.view, true, ctx);
    }

    /// Views that were agreed, ascending. Nothing is done in those before the last.
    pub(super) fn learn_all(&mut self, views: Vec<View>, ctx: &mut Context<'_, Self>) {
        let newest = views.iter().map(|view| view.number).max();
        for view in views {
            let last = Some(view.number) == newest;
            self.learn(view, last, ctx);
        }
    }

    /// A view that was agreed: takes it over, and everything up to its base as delivered.
    fn learn(&mut self, view: View, last: bool, ctx: &mut Context<'_, Self>) {
        let old = &self.promise.view;
        if view.number <= old.number {
            return;
        }
        let was_active = self.phase == Phase::Active;
        let next = view.number == old.number + 1;
        let lives: Vec<(ReplicaId, u64)> = old
            .members
            .iter()
            .map(|member| (member.id, member.life))
            .collect();
        let accepted = self.promise.accepted.take();
        let accepted = accepted.filter(|proposal| proposal.view == view);
        let holds = self.promise.complete || accepted.is_some();
        // A vote for what follows the view goes over into it: a member that has given it never acts
        // there.
        let follows = accepted.and_then(|Proposal { ballot, then, .. }| {
            let (view, then) = (then?, None);
            Some(Proposal { ballot, view, then })
        });
        if next && holds && self.end() >= view.base {
            self.promise.complete = true;
            self.sure = self.sure.max(view.base);
            self.cut(self.sure);
        } else if next && self.promise.complete {
            // All that is held lies below the trim.
            self.sure = self.end();
            self.promise.complete = false;
        } else {
            self.cut(self.sure);
            self.promise.complete = false;
        }
        // Suspicions of this view go over to the next; who restarts the group trusts all again.
        let stays = |id: ReplicaId| {
            let same = |(old, life): &(ReplicaId, u64)| *old == id && view.life(id) == Some(*life);
            was_active && id != self.id && lives.iter().any(same)
        };
        self.suspected = self.suspected.iter().filter(|id| stays(*id)).collect();
        let old = &self.promise.view;
        self.admission
            .note(self.id, ctx.now(), |id| old.life(id), |id| view.life(id));
        self.views.push_back(view.clone());
        if self.views.len() > VIEWS_MAX {
            self.views.pop_front();
        }
        self.promise.view = view;
        if self.became_complete() {
            self.promise.complete = true;
        }
        self.promise.promised = follows
            .as_ref()
            .map_or_else(Ballot::default, |to| to.ballot);
        self.left = follows.is_some();
        self.promise.accepted = follows;
        self.phase = Phase::Out;
        self.rdmc = Rdmc::default();
        self.inspection = None;
        self.wanted = None;
        self.fired = 0;
        self.execute(ctx);
        self.reads.rebind(self.promise.view.base);
        if last && self.promise.complete && self.belongs() {
            self.become_active(ctx);
        } else {
            if was_active {
                self.refuse_reads(ctx);
                self.out_since = ctx.now();
                self.active_at = ctx.now();
            }
            if last {
                self.send_join(self.others, ctx);
            }
        }
    }

    /// Complete in the view: a member at work as soon as that is on disk (B.4).
    pub(super) fn become_active(&mut self, ctx: &mut Context<'_, Self>) {
        self.phase = Phase::Activating;
        let view = self.promise.view.number;
        self.save(Act::Activate(view), ctx);
    }

    pub(super) fn activated(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        if self.phase != Phase::Activating || self.promise.view.number != view {
            return;
        }
        ctx.mark("view installed");
        self.phase = Phase::Active;
        self.table.begin(self.id, view);
        self.streams = (0..self.members).map(|_| Stream::default()).collect();
        self.ordered = 0;
        self.persisted = 0;
        self.delivered = 0;
        self.marks.clear();
        self.sent = 0;
        self.slots_sent = 0;
        self.slots_put = 0;
        self.unacked.clear();
        self.acked_before.fill((0, 0));
        self.rdmc = Rdmc::new(self.members);
        self.own_dirty.clear();
        self.news = false;
        self.fresh = self.peers();
        self.newest = 0;
        self.fired = 0;
        self.wedging = false;
        self.proposing = 0;
        self.fetching = None;
        self.donor = None;
        self.heard.fill(ctx.now());
        self.installed_at = ctx.now();
        self.waits.begin(ctx.now());
        self.lagging = self.peers();
        self.dirty = ON_ALL;
        let early = core::mem::take(&mut self.early);
        for (from, of, message) in early {
            if of == view {
                self.on_replica_message(from, message, ctx);
            }
        }
        if !self.suspected.is_empty() {
            self.set_own_suspected();
            self.dirty |= ON_SUSPECTED;
            self.check_majority(ctx);
        }
        if self.forgot {
            self.forgot = false;
            ctx.recovered();
        }
        // What this replica's clients wait for and the trim left out is sent again.
        self.queue = RequestQueue::default();
        let kept: Vec<_> = self
            .requests
            .iter()
            .map(|(key, batch)| (key, batch.clone()))
            .collect();
        for (key, batch) in kept {
            self.queue.push(key, batch);
        }
        self.tell_route_ahead(&self.promise.view, ctx);
        self.tell_route(ctx);
    }

    /// Tells the view's members once a majority of them has installed it. One that fewer have may
    /// be forgotten with them, and then the majority of the view before is what is needed.
    pub(super) fn tell_route(&mut self, ctx: &mut Context<'_, Self>) {
        let view = &self.promise.view;
        if self.phase != Phase::Active {
            return;
        }
        let here = |id: &ReplicaId| *id == self.id || self.table.valid(*id);
        if view.set().iter().filter(here).count() > view.members.len() / 2 {
            self.route_settled(ctx);
        }
    }

    /// Tells the present view's members: a majority of them has the view on disk.
    pub(super) fn route_settled(&mut self, ctx: &mut Context<'_, Self>) {
        let view = &self.promise.view;
        if self.route_told < view.number {
            self.route_told = view.number;
            // Views may follow each other without a command between: their number is what orders
            // them.
            ctx.route_is(Slot(view.number), &view.route());
        }
    }

    /// From the first vote for a next view on, the replica that restarts the group must assume that
    /// it was agreed: its majority is needed as well as that of the present one.
    pub(super) fn tell_route_ahead(&self, view: &View, ctx: &mut Context<'_, Self>) {
        ctx.route_may_become(Slot(view.number), &view.route());
    }
}
