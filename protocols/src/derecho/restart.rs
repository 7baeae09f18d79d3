//! Outside the view: joining it, catching up, and restarting the group from its logs when nobody
//! is active any more (§2.4, B.1, B.4, B.5).
//!
//! ```text
//!   Join ──► all: I am here, and hold up to …      Views ◄── whoever knows a newer view
//!   Fetch ─► donor ── Tail ──► … until little is missing ──► the leader lets it in
//!
//!   nobody active: lowest of a majority of the last view inspects the logs:
//!     Prepare ─► members ── Promise{end of log, accepted trim} ─► adopt, or the longest log
//!     Accept ──► members fetch what they lack, log it ── Accepted ─► a majority: Views ─► all
//! ```
//!
//! The agreement on the end of a view is one, whether members reach it through the table or an
//! inspector through messages: the same logged trims, inspectors above all ranks. A member that
//! answers an inspector has left the view: it never echoes a trim of the table again.
//!
//! A vote for a next view may be all that is left of it: who led dies for good, and those that the
//! vote leaves out are back. The view may have been agreed, so it is taken over; but when those who
//! answer are half of its members, nobody can have done anything in it, or ever will, without one of
//! them. Then the inspector proposes the view and, with the same vote, that those who answer follow
//! it at once; whoever accepts that never acts in the view between.

use super::{
    Derecho,
    message::{Ballot, Entry, Join, Member, Message, Proposal, View},
    plant::Plant,
    replica::{Act, Phase, Writing},
    view_change::{can_block, has_quorum},
};
use alloc::{collections::BTreeMap, format, vec::Vec};
use core::cmp::Reverse;
use quintet_replica::{
    Context, Durability, Lane, ReplicaId, ReplicaSet, Slot, Time, parts::Waiting,
};

/// How many views one answer carries.
const VIEWS_SENT_MAX: usize = 16;

/// What one member answered to an inspector.
#[derive(Clone, Debug, Hash)]
struct Answer {
    member: Member,
    complete: bool,
    end: Slot,
    accepted: Option<Proposal>,
}

/// An inspector's work.
#[derive(Debug, Hash)]
pub(super) struct Inspection {
    ballot: Ballot,
    since: Time,
    answers: BTreeMap<ReplicaId, Answer>,
    proposal: Option<(Proposal, ReplicaId)>,
    accepted: ReplicaSet,
}

impl Derecho {
    pub(super) fn send_join(&mut self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        if self.phase == Phase::Starting {
            return;
        }
        let join = Join {
            life: self.promise.life,
            incarnation: self.incarnation,
            view: self.promise.view.number,
            coming: self.belongs(),
            complete: self.promise.complete,
            forgot: self.forgot,
            sure: self.sure,
        };
        ctx.multicast(to, Lane::Control, &Message::Join(join));
    }

    pub(super) fn on_join(&mut self, from: ReplicaId, join: Join, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let number = self.promise.view.number;
        let (life, view, coming) = (join.life, join.view, join.coming);
        self.joins[from.index()] = Some((join, now));
        if view < number {
            self.send_views(from, view, ctx);
        } else if view > number {
            // It knows more: it answers this with what this replica has missed.
            self.send_join(ReplicaSet::EMPTY.with(from), ctx);
        } else if self.phase == Phase::Active || self.phase == Phase::Activating {
            // It compares: a number has one membership.
            let views = [self.promise.view.clone()].into();
            ctx.send(
                from,
                Lane::Control,
                &Message::Views {
                    views,
                    active: true,
                },
            );
        }
        if self.phase != Phase::Active {
            return;
        }
        let Some(member) = self.promise.view.life(from) else {
            self.dirty |= super::sst::ON_SELF;
            return;
        };
        // Its earlier life was a member, or it has left: the view goes on without it.
        if life > member || life == member && view == number && !coming {
            self.suspect(from, ctx);
        }
    }

    fn send_views(&mut self, to: ReplicaId, after: u64, ctx: &mut Context<'_, Self>) {
        let newer = self.views.iter().filter(|view| view.number > after);
        let skip = newer.clone().count().saturating_sub(VIEWS_SENT_MAX);
        let newer: Vec<View> = if newer
            .clone()
            .next()
            .is_some_and(|view| view.number == after + 1)
        {
            newer.take(VIEWS_SENT_MAX).cloned().collect()
        } else {
            newer.skip(skip).cloned().collect()
        };
        let active = self.phase == Phase::Active;
        ctx.send(
            to,
            Lane::Control,
            &Message::Views {
                views: newer,
                active,
            },
        );
    }

    pub(super) fn on_views(
        &mut self,
        from: ReplicaId,
        views: Vec<View>,
        active: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let before = self.promise.view.number;
        let outside = |view: &View| view.members.iter().any(|m| m.id.index() >= self.members);
        if views.iter().any(outside) {
            return ctx.mark("ignored: a view of others");
        }
        let mine = &self.promise.view;
        let other = |view: &View| view.number == mine.number && view.members != mine.members;
        if views.iter().any(other) {
            ctx.mark("impossible: two views of one number");
        }
        self.learn_all(views, ctx);
        if active {
            self.active_at = ctx.now();
            if self.phase == Phase::Out && self.donor.is_none() {
                self.donor = Some(from);
                self.fetch(ctx);
            }
        }
        if self.promise.view.number > before && self.phase == Phase::Out {
            self.donor = active.then_some(from);
            self.fetch(ctx);
        }
    }

    pub(super) fn beat_out(&mut self, ctx: &mut Context<'_, Self>) {
        self.send_join(self.others, ctx);
        if self.end() <= self.donor_sure && self.donor.is_some() {
            // No progress with this one since the last beat: another.
            self.donor = self.next_donor();
        }
        self.donor_sure = self.end();
        self.fetch(ctx);
        if let Some((_, _, source)) = &self.wanted {
            let source = *source;
            self.fetch_wanted(source, ctx);
        }
        self.inspect(ctx);
        self.look_for_lost_memories(ctx);
    }

    fn next_donor(&self) -> Option<ReplicaId> {
        let after = self.donor.map_or(0, |donor| donor.index() + 1);
        let all = (after..self.members).chain(0..after);
        let all = all.map(|id| ReplicaId(id as u16));
        let mut all = all.filter(|id| *id != self.id && self.view_set().contains(*id));
        all.next()
    }

    fn fetch(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(donor) = self.donor.filter(|donor| *donor != self.id) else {
            self.donor = self.next_donor();
            return;
        };
        if self.fetching.is_some_and(|at_least| self.end() >= at_least) {
            // The log came first: no snapshot is installed any more.
            self.fetching = None;
        }
        if self.phase != Phase::Out || self.fetching.is_some() {
            return;
        }
        let message = Message::Fetch {
            view: self.promise.view.number,
            have: self.end(),
            upto: Slot(0),
        };
        ctx.send(donor, Lane::Control, &message);
    }

    pub(super) fn on_fetch(
        &mut self,
        from: ReplicaId,
        view: u64,
        have: Slot,
        upto: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let number = self.promise.view.number;
        if view < number {
            return self.send_views(from, view, ctx);
        }
        let accepted = self.promise.accepted.as_ref();
        let last = if view != number {
            self.sure
        } else if self.promise.complete {
            self.sure.max(upto.min(self.durable))
        } else {
            // Whoever accepted a proposal holds everything up to its base, and may be the only one
            // who is asked for it.
            let base = accepted.map_or(self.sure, |proposal| proposal.view.base);
            self.sure.max(upto.min(base).min(self.durable))
        };
        if have.next() < self.log.first() {
            let at_least = self.log.first().previous();
            return ctx.send(from, Lane::Control, &Message::Behind { at_least });
        }
        if have >= last {
            return;
        }
        let bytes_max = self.config.batch_bytes_max.min(ctx.room(from) / 2);
        let (mut bytes, mut entries) = (0, Vec::new());
        for (slot, entry) in self.log.iter_from(have.next()) {
            let with_it = bytes + entry.batch.len() + 32;
            if slot > last || !entries.is_empty() && with_it > bytes_max {
                break;
            }
            bytes = with_it;
            entries.push(entry.clone());
        }
        // What answers the question before may still be queued: this one comes again.
        if !ctx.takes(from, bytes) {
            return ctx.mark("a tail waits for room");
        }
        let message = Message::Tail {
            view: number,
            first: have.next(),
            sure: self.sure,
            entries,
        };
        ctx.send(from, Lane::Bulk, &message);
    }

    pub(super) fn on_tail(
        &mut self,
        from: ReplicaId,
        view: u64,
        (first, sure): (Slot, Slot),
        entries: Vec<Entry>,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.phase != Phase::Out || view != self.promise.view.number {
            return;
        }
        let upto = self
            .wanted
            .as_ref()
            .map_or(Slot(0), |(_, proposal, _)| proposal.view.base);
        let mut slot = first;
        let before = self.end();
        for entry in entries {
            if slot == self.log.end() && (slot <= sure || slot <= upto) {
                let id = self.append(entry, ctx);
                let (view, slot) = (0, self.end());
                self.writes.push_back(Writing {
                    id,
                    view,
                    ordered: 0,
                    slot,
                });
            }
            slot = slot.next();
        }
        self.sure = self.sure.max(sure.min(self.end()));
        self.execute(ctx);
        if self.end() > before {
            ctx.mark("entries fetched");
            self.donor = Some(from);
            if self.wanted.is_none() {
                self.fetch(ctx);
            } else {
                self.fetch_wanted(from, ctx);
            }
        }
        self.after_catching_up(ctx);
    }

    pub(super) fn on_behind(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        if self.phase != Phase::Out || at_least <= self.end() {
            return;
        }
        if self.fetching.is_none_or(|fetching| fetching < at_least) {
            self.fetching = Some(at_least);
            ctx.fetch_state(self.others, at_least);
        }
    }

    /// More is held than before: perhaps everything up to the view's base.
    pub(super) fn after_catching_up(&mut self, ctx: &mut Context<'_, Self>) {
        if self.phase != Phase::Out {
            return;
        }
        if self.became_complete() {
            self.promise.complete = true;
            if self.belongs() {
                return self.become_active(ctx);
            }
        }
        self.maybe_accept(ctx);
        if self.promise.complete {
            self.send_join(self.others, ctx);
        }
    }

    /// Everything up to the base is here now. A replica that forgot may have acknowledged more in
    /// the view that it forgot in: it counts from the next one on.
    pub(super) fn became_complete(&self) -> bool {
        let view = &self.promise.view;
        !self.promise.complete && self.sure >= view.base && view.number > self.forgot_in
    }

    /// Whether somebody is on its way into a view: it says so, or has not begun in the present one.
    pub(super) fn has_joiners(&self) -> bool {
        let recent = self.config.heartbeat * 4;
        let comes = |id: ReplicaId| match &self.joins[id.index()] {
            Some((_, at)) => self.beat_at.since(*at) < recent,
            None => false,
        };
        let view = self.view_set();
        let outsiders = ReplicaSet(self.others.0 & !view.0);
        outsiders.iter().any(comes) || self.live().iter().any(|id| !self.table.valid(id))
    }

    /// Who may be let in: they know this view, are no members of it and lack little, all of which is
    /// in the log. (A view that waits for a member to fetch a state from elsewhere waits long.)
    pub(super) fn ready_joiners(&self) -> Vec<Member> {
        let recent = self.config.heartbeat * 4;
        let number = self.promise.view.number;
        // A replica outside the view does not count for its majority.
        let quorum = (self.live().len(), self.members / 2 + 1);
        let mut ready = Vec::new();
        for (index, join) in self.joins.iter().enumerate() {
            let id = ReplicaId(index as u16);
            let Some((join, at)) = join else { continue };
            let near = join.sure.0 + self.config.join_lag >= self.sure.0
                && join.sure.next() >= self.log.first();
            let waiting = if join.forgot {
                Waiting::Lost
            } else {
                Waiting::Keeps
            };
            if self.promise.view.life(id).is_none()
                && self.beat_at.since(*at) < recent
                && join.view == number
                && !join.coming
                && join.complete
                && near
                && !self.waits.pauses(id, self.beat_at)
                && !self.admission.pauses(id, self.beat_at, quorum, waiting)
            {
                ready.push(Member {
                    id,
                    life: join.life,
                    incarnation: join.incarnation,
                });
            }
        }
        ready
    }

    // ---- total restart ----

    /// Members of the last view that are heard and know that it is the last.
    fn present(&self, now: Time) -> ReplicaSet {
        let recent = self.config.heartbeat * 4;
        let number = self.promise.view.number;
        let here = |id: &ReplicaId| {
            *id == self.id
                || self.joins[id.index()]
                    .as_ref()
                    .is_some_and(|(join, at)| join.view == number && now.since(*at) < recent)
        };
        self.view_set().iter().filter(here).collect()
    }

    fn inspect(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let present = self.present(now);
        let quiet = now.since(self.active_at.max(self.out_since));
        if !present.contains(self.id)
            || !has_quorum(&self.promise.view, present)
            || quiet < self.config.restart_timeout
        {
            return;
        }
        if now.since(self.promised_at) < self.config.restart_timeout * 2 {
            // Another one is at it.
            return;
        }
        // The lowest of those present; another one when that does not come about.
        let rank = present.iter().position(|id| id == self.id).unwrap_or(0) as u32;
        if quiet < self.config.restart_timeout * (1 + 2 * rank) {
            return;
        }
        let stale = self.inspection.as_ref().is_none_or(|inspection| {
            now.since(inspection.since) > self.config.restart_timeout * 3
                || inspection.ballot.round < self.promise.promised.round
        });
        if stale {
            let round = self.round_seen.max(self.promise.promised.round) + 1;
            self.round_seen = round;
            let ballot = Ballot {
                round,
                proposer: u64::from(self.id.0) + 1,
            };
            ctx.mark("restart inspected");
            self.inspection = Some(Inspection {
                ballot,
                since: now,
                answers: BTreeMap::new(),
                proposal: None,
                accepted: ReplicaSet::EMPTY,
            });
        }
        self.ask_members(present, ctx);
    }

    fn ask_members(&mut self, present: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Some(inspection) = &self.inspection else {
            return;
        };
        let view = self.promise.view.number;
        let ballot = inspection.ballot;
        match inspection.proposal.clone() {
            Some((proposal, source)) => {
                let missing = ReplicaSet(self.view_set().0 & !inspection.accepted.0);
                let message = Message::Accept {
                    view,
                    proposal: proposal.clone(),
                    source,
                };
                ctx.multicast(missing.without(self.id), Lane::Control, &message);
                if missing.contains(self.id) {
                    self.on_accept(self.id, view, proposal, source, ctx);
                }
            }
            None => {
                let asked = |id: &ReplicaId| !inspection.answers.contains_key(id);
                let missing: ReplicaSet = self.view_set().iter().filter(asked).collect();
                if missing.contains(self.id) {
                    self.on_prepare(self.id, view, ballot, ctx);
                }
                let message = Message::Prepare { view, ballot };
                ctx.multicast(missing.without(self.id), Lane::Control, &message);
                self.maybe_choose(present, ctx);
            }
        }
    }

    pub(super) fn on_prepare(
        &mut self,
        from: ReplicaId,
        view: u64,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let number = self.promise.view.number;
        if view < number || view == number && self.phase != Phase::Out {
            return self.send_views(from, view, ctx);
        }
        self.round_seen = self.round_seen.max(ballot.round);
        if view > number || ballot.round == 0 || ballot < self.promise.promised {
            return;
        }
        if from != self.id && ballot > self.promise.promised {
            self.promised_at = ctx.now();
        }
        self.promise.promised = ballot;
        self.left = true;
        self.save(Act::Promise { to: from, ballot }, ctx);
    }

    pub(super) fn send_promise(
        &mut self,
        to: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.promise.promised != ballot {
            return;
        }
        let view = self.promise.view.number;
        let member = self.member();
        let (complete, end) = (self.promise.complete, self.end());
        let accepted = self.promise.accepted.clone();
        if to == self.id {
            return self.on_promise((view, ballot), member, (complete, end), accepted, ctx);
        }
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
        member: Member,
        (complete, end): (bool, Slot),
        accepted: Option<Proposal>,
        ctx: &mut Context<'_, Self>,
    ) {
        let present = self.present(ctx.now());
        let Some(inspection) = &mut self.inspection else {
            return;
        };
        if view != self.promise.view.number || ballot != inspection.ballot {
            return;
        }
        let answer = Answer {
            member,
            complete,
            end,
            accepted,
        };
        inspection.answers.insert(member.id, answer);
        self.maybe_choose(present, ctx);
    }

    /// A majority has answered, and all that are there: the end of the view is what they may have
    /// agreed on already, else their longest log (B.4, B.6: any log of the view that is complete
    /// holds all that was delivered, because all members had to persist that).
    fn maybe_choose(&mut self, present: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Some(inspection) = &mut self.inspection else {
            return;
        };
        let view = &self.promise.view;
        let members: ReplicaSet = inspection.answers.keys().copied().collect();
        if inspection.proposal.is_some()
            || !has_quorum(view, members)
            || present.0 & !members.0 != 0
                && ctx.now().since(inspection.since) < self.config.suspect_timeout
        {
            return;
        }
        // A vote whose reason was forgotten binds nobody when a majority without it has not voted
        // so: it was not agreed, and cannot be any more. Nobody could ever follow it.
        let holds = |answer: &Answer| {
            let base = answer.accepted.as_ref().map(|accepted| accepted.view.base);
            base.is_none_or(|base| base <= answer.end)
        };
        let holding = (inspection.answers.values()).filter(|answer| holds(answer));
        let enough = has_quorum(view, holding.map(|answer| answer.member.id).collect());
        let answers = (inspection.answers.values()).filter(|answer| !enough || holds(answer));
        let ballot = |answer: &&Answer| answer.accepted.as_ref().map(|proposal| proposal.ballot);
        let accepted = answers.clone().filter(|answer| answer.accepted.is_some());
        let whole = answers.filter(|answer| answer.complete);
        let longest = whole.max_by_key(|answer| (answer.end, Reverse(answer.member.id)));
        // Whoever accepted a proposal holds everything up to its base.
        let complete: ReplicaSet = (inspection.answers.values())
            .filter(|answer| answer.complete)
            .map(|answer| answer.member.id)
            .collect();
        // Where they are a majority, complete logs go on by themselves: delivery waits for all
        // members, and one that lacks its log would make them wait for its whole state.
        let waits = self.config.planted.is(Plant::RestartWaitsForAll);
        let without = has_quorum(view, complete) && !waits;
        if without && complete != members {
            ctx.mark("restart without an incomplete log");
        }
        let answered: Vec<Member> = (inspection.answers.values())
            .filter(|answer| answer.complete || !without)
            .map(|answer| answer.member)
            .collect();
        let (next, then, source) = match (accepted.max_by_key(ballot), longest) {
            (
                Some(Answer {
                    accepted: Some(proposal),
                    member,
                    ..
                }),
                _,
            ) => {
                let next = &proposal.view;
                // None of those who answer has ever acted in it: they do not know that it is agreed.
                let around = !has_quorum(next, members) && can_block(next, members);
                let then = proposal.then.clone().or_else(|| {
                    around.then(|| View {
                        number: next.number + 1,
                        members: answered,
                        base: next.base,
                    })
                });
                if then.is_some() {
                    ctx.mark("restart around a view");
                }
                (next.clone(), then, member.id)
            }
            (_, Some(longest)) => {
                let next = View {
                    number: view.number + 1,
                    members: answered,
                    base: longest.end,
                };
                (next, None, longest.member.id)
            }
            _ => return ctx.mark("no complete log to restart from"),
        };
        let proposal = Proposal {
            ballot: inspection.ballot,
            view: next,
            then,
        };
        inspection.proposal = Some((proposal, source));
        self.ask_members(present, ctx);
    }

    pub(super) fn on_accept(
        &mut self,
        from: ReplicaId,
        view: u64,
        proposal: Proposal,
        source: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) {
        let number = self.promise.view.number;
        if view < number || view == number && self.phase != Phase::Out {
            return self.send_views(from, view, ctx);
        }
        let old = proposal.ballot < self.promise.promised || proposal.ballot.round == 0;
        let mut all = (proposal.view.members.iter())
            .chain(proposal.then.iter().flat_map(|then| &then.members));
        let outside = all.any(|member| member.id.index() >= self.members);
        if view > number || old || outside || proposal.view.number != view + 1 {
            return;
        }
        self.left = true;
        self.wanted = Some((from, proposal, source));
        self.maybe_accept(ctx);
        if self.wanted.is_some() {
            self.fetch_wanted(source, ctx);
        }
    }

    fn fetch_wanted(&mut self, source: ReplicaId, ctx: &mut Context<'_, Self>) {
        let Some((_, proposal, _)) = &self.wanted else {
            return;
        };
        if source == self.id || self.end() >= proposal.view.base {
            return;
        }
        let message = Message::Fetch {
            view: self.promise.view.number,
            have: self.end(),
            upto: proposal.view.base,
        };
        ctx.send(source, Lane::Control, &message);
    }

    /// Accepts what an inspector wants as soon as everything up to its base is here, and durable:
    /// so a majority holds a trim before it is agreed.
    pub(super) fn maybe_accept(&mut self, ctx: &mut Context<'_, Self>) {
        let Some((to, proposal, _)) = &self.wanted else {
            return;
        };
        let to = *to;
        let ballot = proposal.ballot;
        if self.promise.promised > ballot {
            self.wanted = None;
            return;
        }
        if self.durable < proposal.view.base {
            return;
        }
        self.promise.promised = ballot;
        self.promise.accepted = Some(proposal.clone());
        let proposal = proposal.clone();
        self.tell_route_ahead(&proposal.view, ctx);
        if let Some(then) = &proposal.then {
            self.tell_route_ahead(then, ctx);
        }
        self.wanted = None;
        self.save(Act::Accepted { to, ballot }, ctx);
    }

    pub(super) fn send_accepted(
        &mut self,
        to: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        let current = self.promise.accepted.as_ref();
        if current.is_none_or(|proposal| proposal.ballot != ballot) {
            return;
        }
        let view = self.promise.view.number;
        if to == self.id {
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
        let Some(inspection) = &mut self.inspection else {
            return;
        };
        if view != self.promise.view.number || ballot != inspection.ballot {
            return;
        }
        inspection.accepted.insert(from);
        let accepted = inspection.accepted;
        let Some((proposal, _)) = inspection.proposal.clone() else {
            return;
        };
        // Around a view: enough of its members have accepted never to act in it.
        let blocked = proposal.then.is_none() || can_block(&proposal.view, accepted);
        if !has_quorum(&self.promise.view, accepted) || !blocked {
            return;
        }
        ctx.mark("restart agreed");
        // A majority of the present view has this on disk together with the view itself, however
        // few ever were at work in it.
        self.route_settled(ctx);
        let views: Vec<View> = [proposal.view].into_iter().chain(proposal.then).collect();
        let message = Message::Views {
            views: views.clone(),
            active: false,
        };
        ctx.multicast(self.others, Lane::Control, &message);
        self.learn_all(views, ctx);
    }

    /// Everybody who could hold what was acknowledged has forgotten it: only the operator can say
    /// that this is accepted.
    fn look_for_lost_memories(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let recent = self.config.heartbeat * 4;
        let view = &self.promise.view;
        let mut lost =
            usize::from(self.forgot && !self.promise.complete && view.set().contains(self.id));
        // Who knows a newer view may have it from members of that who remember all.
        let mut held = self.promise.complete;
        for (index, join) in self.joins.iter().enumerate() {
            let Some((join, at)) = join else { continue };
            let member = view.set().contains(ReplicaId(index as u16));
            if now.since(*at) >= recent || index == self.id.index() {
                continue;
            }
            held |= join.view > view.number;
            if member {
                lost += usize::from(join.forgot && !join.complete);
                held |= join.complete;
            }
        }
        let alone = now.since(self.active_at) > self.config.restart_timeout;
        if held || !alone || lost * 2 <= view.members.len() {
            self.lost_since = None;
            return;
        }
        let since = *self.lost_since.get_or_insert(now);
        if now.since(since) > self.config.restart_timeout * 3 {
            self.halt_lost(ctx);
        }
    }

    pub(super) fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        let members = self.promise.view.members.len();
        ctx.halt(match self.durability {
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
