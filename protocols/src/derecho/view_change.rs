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
    bug::Bug,
    membership::{Act, Phase},
    message::{Ballot, Member, Message, Proposal, View},
    replica::Timer,
    sst::{self, ON_SELF, PERSISTED, WEDGED},
    stream::Stream,
    transfers::Transfers,
};
use alloc::vec::Vec;
use quintet_replica::{Context, Lane, Protocol as _, ReplicaId, ReplicaSet, Slot};

impl Derecho {
    pub(super) fn on_beat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        (self.failures).on_beat(self.config.suspect_timeout, ctx.now());
        match self.membership.phase() {
            Phase::Starting | Phase::Activating => {}
            Phase::Out => {
                self.beat_out(ctx);
                self.send_holds(ctx);
            }
            Phase::Active => self.beat_active(ctx),
        }
    }

    fn beat_active(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        self.restart.active(now);
        let (timeout, heartbeat) = (self.config.suspect_timeout, self.config.heartbeat);
        for peer in self.membership.live_peers().iter() {
            if self.failures.is_silent(peer, timeout, heartbeat, now) {
                self.suspect(peer, ctx);
            }
            if !self.membership.is_active() {
                return;
            }
            self.sst.watch_taken(peer, self.stream.outgoing.sent());
        }
        self.leave_out_late(ctx);
        if self.membership.is_active() {
            self.look_for_slow(ctx);
            self.look_for_stalled(ctx);
            self.leave_out_unwedged(ctx);
        }
        if !self.membership.is_active() {
            return;
        }
        let sure = self.stream.log.sure();
        self.stream.catch_up.lately.on_beat(Some(sure));
        self.beat_shards(ctx);
        let beat = self.failures.next_beat();
        self.sst.beat(beat);
        if self.membership.wedging() && beat.is_multiple_of(4) {
            // Perhaps the others are in the next view already; then they say so.
            self.send_join(self.me.others(), ctx);
        }
        if beat.is_multiple_of(8) {
            self.sst.lost_by_all(self.membership.peers());
        }
    }

    /// Members that have not begun in the view in time are left out of the next one, where the rest
    /// is a majority: delivery waits for all, and they can fetch what they lack outside.
    fn leave_out_late(&mut self, ctx: &mut Context<'_, Self>) {
        if !(self.failures).is_late(self.config.restart_timeout, ctx.now()) {
            return;
        }
        let live = self.membership.live();
        let begun = self.begun(live);
        let late = ReplicaSet(live.0 & !begun.0);
        if late.is_empty() || !self.membership.view().has_quorum(begun) {
            return;
        }
        ctx.mark("member left out on its way");
        for id in late.iter() {
            self.suspect(id, ctx);
        }
    }

    /// The members of these that have begun in the view.
    fn begun(&self, of: ReplicaSet) -> ReplicaSet {
        let begun = |id: &ReplicaId| *id == self.me.id() || self.sst.valid(*id);
        of.iter().filter(begun).collect()
    }

    /// Suspects a member: its row freezes here, and the suspicion spreads.
    pub(super) fn suspect(&mut self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        if self.membership.suspect(peer) {
            ctx.mark("member suspected");
            self.show_suspected(ctx);
        }
    }

    /// Suspicions spread, while those that remain are a majority.
    fn show_suspected(&mut self, ctx: &mut Context<'_, Self>) {
        self.sst.set_suspected(self.membership.suspected());
        if !self.membership.has_quorum() && !self.injected(Bug::MinorityContinues) {
            ctx.mark("minority halts");
            self.leave(ctx);
        }
    }

    /// Takes over the suspicions of members that are not suspected themselves, in order of rank.
    pub(super) fn learn_suspicions(&mut self, ctx: &mut Context<'_, Self>) {
        let own = self.me.id();
        for peer in self.membership.peers().iter() {
            if self.membership.suspected().contains(peer) || !self.sst.valid(peer) {
                continue;
            }
            let theirs = self.sst.suspected(peer);
            if theirs.contains(own) && !self.membership.suspected().contains(own) {
                ctx.mark("suspected by another");
                return self.leave(ctx);
            }
            if self.membership.suspect_all(theirs) {
                self.show_suspected(ctx);
                if !self.membership.is_active() {
                    return;
                }
            }
        }
    }

    /// Stops taking part in this view permanently; the way back is a new one.
    fn leave(&mut self, ctx: &mut Context<'_, Self>) {
        self.membership.leave();
        self.stream.rdmc = Transfers::default();
        self.shards.iter_mut().for_each(Stream::end);
        self.restart.out(ctx.now());
        self.joins.clear();
        self.refuse_reads(ctx);
    }

    /// About to stop: the others need not wait for a timeout.
    pub(super) fn hand_off(&mut self, _ctx: &mut Context<'_, Self>) {
        let rest = self.membership.live_peers();
        if self.membership.is_active() && self.membership.view().has_quorum(rest) {
            self.membership.suspect(self.me.id());
            self.sst.set_suspected(self.membership.suspected());
        }
    }

    pub(super) fn must_wedge(&self) -> bool {
        let (membership, wedged) = (&self.membership, |id| self.sst.read(id, WEDGED) > 0);
        let suspected = ReplicaSet(membership.suspected().0 & membership.set().0);
        !membership.wedging()
            && (!suspected.is_empty()
                || sst::any(membership.live(), wedged)
                || membership.leads()
                    && (self.coming.is_some() || !self.ready_joiners().is_empty()))
    }

    /// No message is sent or taken from here on; what was taken before is still written.
    pub(super) fn wedge(&mut self, ctx: &mut Context<'_, Self>) {
        self.receive(None, ctx);
        for shard in 0..self.shards.len() {
            if self.takes_part(Some(shard)) {
                self.receive(Some(shard), ctx);
            }
        }
        self.membership.wedge();
        self.failures.ends(ctx.now());
        self.sst.touch(ON_SELF);
    }

    pub(super) fn all_is_written(&self) -> bool {
        let (order, view) = (&self.stream.order, self.membership.number());
        order.persisted() == order.ordered()
            && !self.stream.log.is_writing(view)
            && self.shards_are_written()
    }

    /// The row is final now.
    pub(super) fn set_wedged(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("view wedged");
        self.set_blocks_final();
        self.sst.set(PERSISTED, self.stream.order.persisted());
        self.sst.set(WEDGED, 1);
    }

    /// All that are not suspected have wedged and suspect the members that this one suspects: their
    /// rows are final, and none follows an earlier leader any more.
    fn all_wedged(&self) -> bool {
        let suspected = self.membership.suspected().0;
        let agrees =
            |id| self.sst.read(id, WEDGED) > 0 && suspected & !self.sst.suspected(id).0 == 0;
        sst::all(self.membership.live(), agrees)
    }

    pub(super) fn may_propose(&self) -> bool {
        let membership = &self.membership;
        membership.wedging()
            && membership.leads()
            && membership.proposing() < membership.proposer(self.me.id())
            && self.all_wedged()
    }

    pub(super) fn propose(&mut self, ctx: &mut Context<'_, Self>) {
        let rows = self.membership.set();
        let valid = rows.iter().filter(|id| self.sst.valid(*id));
        let highest = valid.max_by_key(|id| self.sst.proposed(*id));
        let adopted = highest.and_then(|id| self.sst.proposal(id));
        let adopted = adopted.filter(|_| !self.injected(Bug::TrimRecomputed));
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
            proposer: self.membership.proposer(self.me.id()),
        };
        let then = None;
        self.accept_in_view(Proposal { ballot, view, then }, ctx);
    }

    /// The log that all that are not suspected have persisted, up to the first gap in the
    /// round-robin order: rows count ordered messages, so their smallest count is just that.
    fn ragged_trim(&self) -> View {
        let (live, view) = (self.membership.live(), self.membership.view());
        let trim = sst::min(live, |id| self.sst.read(id, PERSISTED));
        let base = self.stream.last_slot(trim);
        let old = view.members.iter();
        let mut members: Vec<Member> = old
            .filter(|member| live.contains(member.id))
            .copied()
            .collect();
        // The remaining members are a majority of the next view, even if all that join are gone by
        // then: they were heard a while ago, and no replica is suspected before it is a member.
        let joiners_max = members.len().saturating_sub(1).max(1);
        members.extend(self.ready_joiners().into_iter().take(joiners_max));
        members.sort_unstable_by_key(|member| member.id);
        View {
            number: view.number + 1,
            shards: self.next_shards(&members),
            members,
            base,
        }
    }

    /// Logs a proposal; it is echoed when it is durable.
    fn accept_in_view(&mut self, proposal: Proposal, ctx: &mut Context<'_, Self>) {
        self.membership.accept_in_view(proposal.clone());
        self.tell_route_ahead(&proposal.view, ctx);
        if self.injected(Bug::EchoNotDurable) {
            self.on_echo_durable(&proposal, ctx);
        }
        self.save(Act::Echo(proposal), ctx);
    }

    pub(super) fn may_echo(&self) -> bool {
        let membership = &self.membership;
        let Some(leader) = membership.leader() else {
            return false;
        };
        let number = membership.proposer(leader);
        membership.wedging()
            && leader != self.me.id()
            && self.sst.valid(leader)
            && self.sst.proposed(leader) == number
            && membership.proposing() < number
            && self.sst.own(WEDGED) > 0
    }

    pub(super) fn echo(&mut self, ctx: &mut Context<'_, Self>) {
        let leader = self.membership.leader();
        let Some(proposal) = leader.and_then(|leader| self.sst.proposal(leader)) else {
            return ctx.mark("ignored: an invalid proposal");
        };
        let (base, log) = (proposal.view.base, &self.stream.log);
        if base > log.end() || base < log.sure() || !self.shards_fit(&proposal.view) {
            return ctx.mark("ignored: a trim that does not fit");
        }
        self.accept_in_view(proposal, ctx);
    }

    /// A vote is on disk. It is shown only while its proposer is not suspected here: who suspects
    /// it has said to a later leader, by a row with no vote for it, that there will be none.
    pub(super) fn on_echo_durable(&mut self, proposal: &Proposal, ctx: &mut Context<'_, Self>) {
        let (membership, proposer) = (&self.membership, proposal.ballot.proposer);
        let same = membership.number() + 1 == proposal.view.number;
        if !membership.is_active() || !same || membership.proposing() != proposer {
            return;
        }
        if !membership.trusts(proposer) && !self.injected(Bug::EchoAfterSuspicion) {
            return ctx.mark("vote came too late");
        }
        self.sst.set_proposal(proposal);
    }

    /// All that are not suspected, a majority, have logged and echoed the same proposal, of a
    /// leader that is not suspected: what an earlier one proposed, the next one adopts and proposes
    /// again.
    pub(super) fn is_agreed(&self) -> bool {
        let mine = self.sst.proposed(self.me.id());
        let echoed = |id| self.sst.valid(id) && self.sst.proposed(id) == mine;
        mine > 0
            && (self.membership.trusts(mine) || self.injected(Bug::EchoAfterSuspicion))
            && sst::all(self.membership.live(), echoed)
            && (self.membership.has_quorum() || self.injected(Bug::MinorityContinues))
    }

    pub(super) fn end_view(&mut self, ctx: &mut Context<'_, Self>) {
        // The proposal that was counted. A later vote may already be on its way to the disk.
        let Some(proposal) = self.sst.proposal(self.me.id()) else {
            return ctx.mark("ignored: a proposal that cannot be read");
        };
        // The last echo goes out before this member turns to the next view.
        self.push(ctx);
        if self.membership.leads() {
            let members = ReplicaSet(self.membership.set().0 | proposal.view.set().0);
            let (to, views) = (
                members.without(self.me.id()),
                [proposal.view.clone()].into(),
            );
            let message = Message::Views {
                views,
                active: true,
            };
            ctx.multicast(to, Lane::Control, &message);
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
        let old = self.membership.view();
        if view.number <= old.number {
            return;
        }
        let was_active = self.membership.is_active();
        let (now, log) = (ctx.now(), &mut self.stream.log);
        let next = view.number == old.number + 1;
        let complete = next && self.membership.holds(&view) && log.end() >= view.base;
        if complete {
            log.deliver(view.base);
            log.cut(log.sure());
        } else if next && self.membership.is_complete() {
            // All that is held lies below the trim.
            log.deliver_all();
        } else {
            log.cut(log.sure());
        }
        self.learn_shards(&view, ctx);
        let old = self.membership.view();
        (self.joins).on_view(self.me.id(), now, |id| old.starts(id), |id| view.starts(id));
        self.membership.enter(view, complete);
        self.membership.completes(self.stream.log.sure());
        self.stream.end();
        self.coming = None;
        self.restart.clear();
        self.sst.end();
        self.stream.execute(ctx);
        self.stream.reads.rebind(self.membership.view().base);
        if last {
            self.tell_roles(ctx);
        }
        if last && self.membership.is_complete() && self.membership.belongs() {
            self.become_active(ctx);
        } else {
            if was_active {
                self.refuse_reads(ctx);
                self.restart.out(now);
            }
            if last {
                self.send_join(self.me.others(), ctx);
            }
        }
    }

    /// Complete in the view: a member at work as soon as that is on disk (B.4).
    pub(super) fn become_active(&mut self, ctx: &mut Context<'_, Self>) {
        self.membership.activate();
        self.save(Act::Activate(self.membership.number()), ctx);
    }

    pub(super) fn activated(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        if !self.membership.activated(view) {
            return;
        }
        ctx.mark("view installed");
        let (now, peers, own) = (ctx.now(), self.membership.peers(), self.me.id());
        self.sst.begin(view, peers);
        let members = self.membership.set();
        let early = self.stream.begin(view, (members, members), own, now);
        self.catch_up.begin();
        self.failures.begin(now);
        self.begin_shards(ctx);
        for (from, message) in early {
            self.on_message(from, message, ctx);
        }
        if !self.membership.suspected().is_empty() {
            self.show_suspected(ctx);
        }
        if self.membership.recovered() {
            ctx.recovered();
        }
        self.stream.relay.send_again();
        self.tell_route_ahead(self.membership.view(), ctx);
        self.tell_route(ctx);
    }

    /// Tells the view's members once a majority of them has installed it. One that fewer have may
    /// be lost with them, and then the majority of the view before is what is needed.
    pub(super) fn tell_route(&mut self, ctx: &mut Context<'_, Self>) {
        let view = self.membership.view();
        if self.membership.is_active() && view.has_quorum(self.begun(view.set())) {
            self.route_settled(ctx);
        }
    }

    /// Tells the present view's members: a majority of them has the view on disk.
    pub(super) fn route_settled(&mut self, ctx: &mut Context<'_, Self>) {
        if self.membership.tells_route() {
            let view = self.membership.view();
            // Views may follow each other without a command between: their number is what orders
            // them.
            ctx.route_is(Slot(view.number), &view.route());
            ctx.view_is(view.number, view.set());
        }
    }

    /// From the first vote for a next view on, the replica that restarts the group must assume that
    /// it was agreed: its majority is needed as well as that of the present one.
    pub(super) fn tell_route_ahead(&self, view: &View, ctx: &mut Context<'_, Self>) {
        ctx.route_may_become(Slot(view.number), &view.route());
    }
}
