//! A member outside the view: joining it, catching up, and restarting the group from its logs when
//! no member is active any more (§2.4, B.1, B.4, B.5).
//!
//! ```text
//!   Join ──► all: I am here, and hold up to …      Views ◄── any that knows a newer view
//!   Fetch ─► donor ── Tail ──► … until little is missing ──► the leader lets it in
//!
//!   no member active: lowest of a majority of the last view inspects the logs:
//!     Prepare ─► members ── Promise{end of log, accepted trim} ─► adopt, or the longest log
//!     Accept ──► members fetch what they lack, log it ── Accepted ─► a majority: Views ─► all
//! ```
//!
//! An inspector that asks with too low a ballot gets the promise of the higher one, and asks again
//! above it; unless that one's inspector is heard and has the lower number, so that two do not
//! interrupt each other without end.
//!
//! The agreement on the end of a view is one, whether members reach it through the table or an
//! inspector through messages: the same logged trims, inspectors above all ranks. A member that
//! answers an inspector has left the view: it never echoes a trim of the table again.
//!
//! A vote for a next view may be all that is left of it: who led dies permanently, and those that
//! the vote leaves out are back. The view may have been agreed, so it is taken over. But when those
//! that answer are half of its members, no member can have done anything in it, or ever will,
//! without one of them. Then the inspector proposes the view and, with the same vote, that those
//! that answer follow it at once; a member that accepts this never acts in the view between.

use super::{
    Derecho,
    bug::Bug,
    inspection::Answer,
    log::Log,
    membership::{Act, Phase},
    message::{Ballot, Entry, Join, Member, Message, Proposal, View},
    restart_state::Wanted,
    sst::ON_SELF,
};
use alloc::{format, vec::Vec};
use quintet_replica::{Context, Durability, Lane, ReplicaId, ReplicaSet, Slot, Time};

impl Derecho {
    pub(super) fn send_join(&self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let membership = &self.membership;
        if membership.phase() == Phase::Starting {
            return;
        }
        let Member {
            starts,
            incarnation,
            ..
        } = membership.member();
        let join = Join {
            starts,
            incarnation,
            view: membership.number(),
            coming: membership.belongs(),
            complete: membership.is_complete(),
            state_lost: membership.state_lost(),
            sure: self.stream.log.sure(),
        };
        ctx.multicast(to, Lane::Control, &Message::Join(join));
    }

    pub(super) fn on_join(&mut self, from: ReplicaId, join: Join, ctx: &mut Context<'_, Self>) {
        let number = self.membership.number();
        let (starts, view, coming) = (join.starts, join.view, join.coming);
        // A process that keeps its disk keeps its incarnation, and not what is in its memory.
        if self.joins.starts(from) != Some(starts) {
            self.holdings.forget(from);
        }
        self.joins.on_join(from, join, ctx.now());
        if view < number {
            self.send_views(from, view, ctx);
        } else if view > number {
            // It knows more: it answers this with what this replica has missed.
            self.send_join(ReplicaSet::EMPTY.with(from), ctx);
        } else if matches!(self.membership.phase(), Phase::Active | Phase::Activating) {
            // It compares: a number has one membership.
            let views = [self.membership.view().clone()].into();
            let message = Message::Views {
                views,
                active: true,
            };
            ctx.send(from, Lane::Control, &message);
        }
        if !self.membership.is_active() {
            return;
        }
        let Some(member) = self.membership.view().starts(from) else {
            return self.sst.touch(ON_SELF);
        };
        // Its earlier start was a member, or it has left: the view continues without it.
        if starts > member || starts == member && view == number && !coming {
            self.suspect(from, ctx);
        }
    }

    fn send_views(&self, to: ReplicaId, after: u64, ctx: &mut Context<'_, Self>) {
        let views = self.membership.views_after(after);
        let active = self.membership.is_active();
        ctx.send(to, Lane::Control, &Message::Views { views, active });
    }

    pub(super) fn on_views(
        &mut self,
        from: ReplicaId,
        views: Vec<View>,
        active: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let before = self.membership.number();
        let members = self.me.members();
        let shards = self.shards.len();
        let outside = |view: &View| {
            let beyond = view.members.iter().any(|m| m.id.index() >= members);
            beyond || view.shards.len() != shards
        };
        if views.iter().any(outside) {
            return ctx.mark("ignored: a view of others");
        }
        let mine = self.membership.view();
        let other = |view: &View| {
            let same = view.members == mine.members && view.shards == mine.shards;
            view.number == mine.number && !same
        };
        if views.iter().any(other) {
            ctx.mark("impossible: two views of one number");
        }
        self.learn_all(views, ctx);
        let is_out = self.membership.is_out();
        if active {
            self.restart.active(ctx.now());
            if is_out && self.catch_up.donor().is_none() {
                self.catch_up.set_donor(Some(from));
                self.fetch(ctx);
            }
        }
        if self.membership.number() > before && is_out {
            self.catch_up.set_donor(active.then_some(from));
            self.fetch(ctx);
        }
    }

    pub(super) fn beat_out(&mut self, ctx: &mut Context<'_, Self>) {
        self.send_join(self.me.others(), ctx);
        let (end, own, members) = (self.stream.log.end(), self.me.id(), self.me.members());
        (self.catch_up).on_beat(end, own, members, self.membership.set());
        self.fetch(ctx);
        if let Some(wanted) = &self.restart.wanted {
            self.fetch_wanted(wanted.source, ctx);
        }
        self.inspect(ctx);
        self.look_for_lost_memories(ctx);
    }

    fn fetch(&mut self, ctx: &mut Context<'_, Self>) {
        let (own, end, view) = (self.me.id(), self.stream.log.end(), self.membership.view());
        let Some(donor) = self.catch_up.donor().filter(|donor| *donor != own) else {
            return (self.catch_up).next_donor(own, self.me.members(), view.set());
        };
        // If the log came first, no snapshot is installed any more.
        self.catch_up.reached(end);
        if self.membership.is_out() && !self.catch_up.is_fetching() {
            self.ask_for_log(donor, Slot(0), ctx);
        }
    }

    fn ask_for_log(&self, of: ReplicaId, upto: Slot, ctx: &mut Context<'_, Self>) {
        let message = Message::Fetch {
            view: self.membership.number(),
            have: self.stream.log.end(),
            upto,
        };
        ctx.send(of, Lane::Control, &message);
    }

    pub(super) fn on_fetch(
        &self,
        from: ReplicaId,
        view: u64,
        have: Slot,
        upto: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let (number, log) = (self.membership.number(), &self.stream.log);
        if view < number {
            return self.send_views(from, view, ctx);
        }
        let accepted = self.membership.accepted();
        let sure = log.sure();
        let last = if view != number {
            sure
        } else if self.membership.is_complete() {
            sure.max(upto.min(log.durable()))
        } else {
            // A replica that accepted a proposal holds everything up to its base, and may be the
            // only one that is asked for it.
            let base = accepted.map_or(sure, |proposal| proposal.view.base);
            sure.max(upto.min(base).min(log.durable()))
        };
        if have.next() < log.first() {
            let at_least = log.first().previous();
            return ctx.send(from, Lane::Control, &Message::Behind { at_least });
        }
        if have >= last {
            return;
        }
        self.send_tail(log, from, have, last, ctx);
    }

    /// Sends what follows `have` of a log, up to `last` or as much as one message takes.
    pub(super) fn send_tail(
        &self,
        log: &Log,
        to: ReplicaId,
        have: Slot,
        last: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let bytes_max = self.config.batch_bytes_max.min(ctx.room(to) / 2);
        let (mut bytes, mut entries) = (0, Vec::new());
        for (slot, entry) in log.iter_from(have.next()) {
            let with_it = bytes + entry.batch.len() + 32;
            if slot > last || !entries.is_empty() && with_it > bytes_max {
                break;
            }
            bytes = with_it;
            entries.push(entry.clone());
        }
        // The answer to the question before may still be queued: this one comes again.
        if !ctx.takes(to, bytes) {
            return ctx.mark("a tail waits for room");
        }
        let message = Message::Tail {
            view: self.membership.number(),
            first: have.next(),
            sure: log.sure(),
            entries,
        };
        ctx.send(to, Lane::Bulk, &message);
    }

    pub(super) fn on_tail(
        &mut self,
        from: ReplicaId,
        view: u64,
        (first, sure): (Slot, Slot),
        entries: Vec<Entry>,
        ctx: &mut Context<'_, Self>,
    ) {
        if !self.membership.is_out() || view != self.membership.number() {
            return;
        }
        let wanted = self.restart.wanted.as_ref();
        let upto = wanted.map_or(Slot(0), |wanted| wanted.proposal.view.base);
        let log = &mut self.stream.log;
        let before = log.end();
        for (slot, entry) in (first.0..).map(Slot).zip(entries) {
            if slot == log.end().next() && (slot <= sure || slot <= upto) {
                log.append_fetched(entry, ctx);
            }
        }
        log.deliver(sure.min(log.end()));
        let progress = log.end() > before;
        self.stream.execute(ctx);
        if progress {
            ctx.mark("entries fetched");
            self.catch_up.set_donor(Some(from));
            if self.restart.wanted.is_none() {
                self.fetch(ctx);
            } else {
                self.fetch_wanted(from, ctx);
            }
        }
        self.after_catching_up(ctx);
    }

    pub(super) fn on_behind(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        if self.membership.is_out() && at_least > self.stream.log.end() {
            self.catch_up.fetch(at_least, self.me.others(), ctx);
        }
    }

    /// More is held than before: perhaps everything up to the view's base.
    pub(super) fn after_catching_up(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.membership.is_out() {
            return;
        }
        if self.membership.completes(self.stream.log.sure()) && self.membership.belongs() {
            return self.become_active(ctx);
        }
        self.maybe_accept(ctx);
        if self.membership.is_complete() {
            self.send_join(self.me.others(), ctx);
        }
    }

    /// Whether a replica is on its way into a view: it says so, or has not begun in the present
    /// one.
    pub(super) fn has_joiners(&self) -> bool {
        let outsiders = self.me.others().0 & !self.membership.set().0;
        let heard = self
            .joins
            .heard(self.config.heartbeat * 4, self.failures.beat_at());
        let mut live = self.membership.live().iter();
        outsiders & heard.0 != 0 || live.any(|id| !self.sst.valid(id))
    }

    /// Those that may be let in: they know this view, are no members of it and lack little, all of
    /// which is in the log. (A view that waits for a member to fetch a state from elsewhere waits
    /// long.)
    pub(super) fn ready_joiners(&self) -> Vec<Member> {
        let (view, log, now) = (
            self.membership.view(),
            &self.stream.log,
            self.failures.beat_at(),
        );
        // A replica outside the view does not count for its majority.
        let quorum = (self.membership.live().len(), self.me.majority());
        let sure = self.stream.catch_up.lately.before(log.sure());
        let ready = |id, join: &Join| {
            let near =
                join.sure.0 + self.config.join_lag >= sure.0 && join.sure.next() >= log.first();
            view.starts(id).is_none()
                && join.view == view.number
                && !join.coming
                && join.complete
                && near
                && !self.stream.waits.pauses(id, now)
        };
        (self.joins).ready(self.config.heartbeat * 4, now, quorum, ready)
    }

    // ---- total restart ----

    /// Members of the last view that are heard and know that it is the last.
    fn present(&self, now: Time) -> ReplicaSet {
        let (number, own) = (self.membership.number(), self.me.id());
        let joins = self.joins.recent(self.config.heartbeat * 4, now);
        let here = joins.filter(|(_, join)| join.view == number);
        let here: ReplicaSet = here.map(|(id, _)| id).collect();
        ReplicaSet(self.membership.set().0 & here.with(own).0)
    }

    fn inspect(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, own) = (ctx.now(), self.me.id());
        let present = self.present(now);
        let (quiet, timeout) = (self.restart.quiet(now), self.config.restart_timeout);
        if !present.contains(own) || !self.membership.view().has_quorum(present) || quiet < timeout
        {
            return;
        }
        // Another one is at it.
        let inspector = self
            .inspector()
            .filter(|of| *of != own && present.contains(*of));
        if inspector.is_some() && self.restart.is_promised(timeout * 2, now) {
            return;
        }
        // The lowest of those present; another one when that does not come about.
        let rank = present.iter().position(|id| id == own).unwrap_or(0) as u32;
        if quiet < timeout * (1 + 2 * rank) {
            return;
        }
        self.restart.saw(self.membership.promised());
        if self.restart.is_due(timeout * 3, now) {
            ctx.mark("restart inspected");
            self.restart.inspect(own, now);
        }
        self.ask_members(present, ctx);
    }

    /// Whose ballot is promised here, for the end of the view.
    fn inspector(&self) -> Option<ReplicaId> {
        let index = self.membership.promised().proposer.checked_sub(1)?;
        u16::try_from(index).ok().map(ReplicaId)
    }

    /// Tells an inspector of the higher ballot that is promised here, unless it is to wait for that
    /// one's inspector.
    fn refuse(&mut self, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let first = |of: &ReplicaId| *of < from && self.present(ctx.now()).contains(*of);
        if self.inspector().filter(first).is_none() {
            ctx.mark("inspector refused");
            self.send_promise(from, self.membership.promised(), ctx);
        }
    }

    fn ask_members(&mut self, present: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Some(inspection) = &self.restart.inspection else {
            return;
        };
        let (own, view) = (self.me.id(), self.membership.number());
        let missing = inspection.missing(self.membership.set());
        if let Some((proposal, source)) = inspection.proposal().cloned() {
            let message = Message::Accept {
                view,
                proposal: proposal.clone(),
                source,
            };
            ctx.multicast(missing.without(own), Lane::Control, &message);
            if missing.contains(own) {
                self.on_accept(own, view, proposal, source, ctx);
            }
        } else {
            let ballot = inspection.ballot();
            if missing.contains(own) {
                self.on_prepare(own, view, ballot, ctx);
            }
            let message = Message::Prepare { view, ballot };
            ctx.multicast(missing.without(own), Lane::Control, &message);
            self.maybe_choose(present, ctx);
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        from: ReplicaId,
        view: u64,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let number = self.membership.number();
        if view < number || view == number && !self.membership.is_out() {
            return self.send_views(from, view, ctx);
        }
        self.restart.saw(ballot);
        let promised = self.membership.promised();
        if view > number || ballot.round == 0 {
            return;
        }
        if ballot < promised {
            return self.refuse(from, ctx);
        }
        if from != self.me.id() && ballot > promised {
            self.restart.promised(ctx.now());
        }
        self.membership.promise(ballot);
        self.save(Act::Promise { to: from, ballot }, ctx);
    }

    pub(super) fn send_promise(
        &mut self,
        to: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.membership.promised() != ballot {
            return;
        }
        let view = self.membership.number();
        let answer = Answer {
            member: self.membership.member(),
            complete: self.membership.is_complete(),
            end: self.stream.log.end(),
            accepted: self.membership.accepted().cloned(),
        };
        if to == self.me.id() {
            return self.on_promise((view, ballot), answer, ctx);
        }
        let Answer {
            member,
            complete,
            end,
            accepted,
        } = answer;
        let message = Message::Promise {
            view,
            ballot,
            member,
            complete,
            end,
            accepted,
        };
        ctx.send(to, Lane::Control, &message);
    }

    pub(super) fn on_promise(
        &mut self,
        (view, ballot): (u64, Ballot),
        answer: Answer,
        ctx: &mut Context<'_, Self>,
    ) {
        let present = self.present(ctx.now());
        if view != self.membership.number() {
            return;
        }
        self.restart.saw(ballot);
        let Some(inspection) = &mut self.restart.inspection else {
            return;
        };
        if ballot != inspection.ballot() {
            return;
        }
        inspection.on_answer(answer);
        self.maybe_choose(present, ctx);
    }

    fn maybe_choose(&mut self, present: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let (view, wait_max) = (self.membership.view(), self.config.suspect_timeout);
        let inspection = self.restart.inspection.as_mut();
        let for_all = self.config.injected.is(Bug::RestartWaitsForAll);
        let layout = &self.config.layout;
        let how = (wait_max, for_all, layout);
        if inspection.is_some_and(|asks| asks.choose(view, present, how, ctx)) {
            self.ask_members(present, ctx);
        }
    }

    pub(super) fn on_accept(
        &mut self,
        from: ReplicaId,
        view: u64,
        proposal: Proposal,
        source: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) {
        let (number, members) = (self.membership.number(), self.me.members());
        if view < number || view == number && !self.membership.is_out() {
            return self.send_views(from, view, ctx);
        }
        let ballot = proposal.ballot;
        let mut all = (proposal.view.members.iter())
            .chain(proposal.then.iter().flat_map(|then| &then.members));
        let outside = all.any(|member| member.id.index() >= members);
        let shards = self.shards.len();
        let mut views = core::iter::once(&proposal.view).chain(&proposal.then);
        let other = views.any(|view| view.shards.len() != shards);
        let impossible = outside || other || ballot.round == 0 || proposal.view.number != view + 1;
        if view > number || impossible {
            return;
        }
        if ballot < self.membership.promised() {
            return self.refuse(from, ctx);
        }
        self.membership.set_left();
        self.restart.wanted = Some(Wanted {
            inspector: from,
            proposal,
            source,
        });
        self.maybe_accept(ctx);
        self.fetch_wanted(source, ctx);
    }

    /// Fetches what an inspector's proposal needs, while it waits for that.
    fn fetch_wanted(&self, source: ReplicaId, ctx: &mut Context<'_, Self>) {
        let Some(Wanted { proposal, .. }) = &self.restart.wanted else {
            return;
        };
        let base = proposal.view.base;
        if source != self.me.id() && self.stream.log.end() < base {
            self.ask_for_log(source, base, ctx);
        }
    }

    /// Accepts what an inspector wants as soon as everything up to its base is here, and durable:
    /// so a majority holds a trim before it is agreed.
    pub(super) fn maybe_accept(&mut self, ctx: &mut Context<'_, Self>) {
        let promised = self.membership.promised();
        let durable = self.stream.log.durable();
        let due = |wanted: &mut Wanted| {
            promised > wanted.proposal.ballot || durable >= wanted.proposal.view.base
        };
        let Some(wanted) = self.restart.wanted.take_if(due) else {
            return;
        };
        let (to, proposal) = (wanted.inspector, wanted.proposal);
        let ballot = proposal.ballot;
        if promised > ballot {
            return;
        }
        self.tell_route_ahead(&proposal.view, ctx);
        if let Some(then) = &proposal.then {
            self.tell_route_ahead(then, ctx);
        }
        self.membership.accept(proposal);
        self.save(Act::Accepted { to, ballot }, ctx);
    }

    pub(super) fn send_accepted(
        &mut self,
        to: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let current = self.membership.accepted();
        if current.is_none_or(|proposal| proposal.ballot != ballot) {
            return;
        }
        let view = self.membership.number();
        if to == self.me.id() {
            self.on_accepted(to, view, ballot, ctx);
        } else {
            ctx.send(to, Lane::Control, &Message::Accepted { view, ballot });
        }
    }

    pub(super) fn on_accepted(
        &mut self,
        from: ReplicaId,
        view: u64,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let Some(inspection) = &mut self.restart.inspection else {
            return;
        };
        if view != self.membership.number() || ballot != inspection.ballot() {
            return;
        }
        let Some(proposal) = inspection.on_accepted(from, self.membership.view()) else {
            return;
        };
        ctx.mark("restart agreed");
        // A majority of the present view has this on disk together with the view itself, however
        // few ever were at work in it.
        self.route_settled(ctx);
        let views: Vec<View> = [proposal.view].into_iter().chain(proposal.then).collect();
        let message = Message::Views {
            views: views.clone(),
            active: false,
        };
        ctx.multicast(self.me.others(), Lane::Control, &message);
        self.learn_all(views, ctx);
    }

    /// Everybody who could hold what was acknowledged has lost it: only the operator can say
    /// that this is accepted.
    fn look_for_lost_memories(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, timeout) = (ctx.now(), self.config.restart_timeout);
        let (view, own) = (self.membership.view(), self.me.id());
        let lacks = self.membership.lacks_state() && view.set().contains(own);
        let mut lost = usize::from(lacks);
        // A replica that knows a newer view may have it from members of that which have their
        // state.
        let mut held = self.membership.is_complete();
        let joins = self.joins.recent(self.config.heartbeat * 4, now);
        for (id, join) in joins.filter(|(id, _)| *id != own) {
            held |= join.view > view.number;
            if view.set().contains(id) {
                lost += usize::from(join.state_lost && !join.complete);
                held |= join.complete;
            }
        }
        let lacks = !held && lost * 2 > view.members.len();
        if (self.restart).is_lost(lacks, timeout, timeout * 3, now) {
            self.halt_lost(ctx);
        }
    }

    pub(super) fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        let members = self.membership.view().members.len();
        ctx.halt(match self.me.durability() {
            Durability::Memory => format!(
                "too many of the {members} members of the last view have lost their memory: what \
                 they acknowledged cannot be recovered. To start again without it, start every \
                 replica once with --bootstrap-again"
            ),
            Durability::Disk => format!(
                "the journals of too many of the {members} members of the last view are damaged: \
                 what they acknowledged cannot be recovered from the others. Restore a backup, or \
                 what an undamaged replica still holds (quintet snapshot save), into a new cluster"
            ),
        });
    }
}
