//! Changing views: suspicion, votes, the new leader's merge, and how followers join.
//!
//! ```text
//!   a majority says Suspect ──► ViewChange ──► all: promise on disk, then Vote ──► new leader
//!                                                                                    │ merge
//!   follower of the new view ◄── LogPage … ◄── GetLog ◄── heartbeat of the view ◄────┘
//! ```
//!
//! The merge (§6, repaired): of the votes, those of the latest view in which anybody took part
//! count. The longest synced log is copied. Of what else is in their logs survives, in the order
//! of deadlines, what is in this many of them as any fast quorum shares with any majority, and what
//! no conflicting entry of the copied log bars: looked at by name and by conflict, because
//! batches that commute stand in the log in either order.

use super::{
    Nezha, Part, Placed, Record, Vote,
    bug::Bug,
    changing::Changing,
    dom::{Name, Stamp},
    entry::{Entry, name_of, page},
    joining::Joining,
    leader_state::LeaderState,
    message::PART_BYTES,
    placements::NAMES_MAX,
    quorum::survivor_quorum,
    replica::Phase,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use quintet_replica::{Context, Lane, ReplicaId, ReplicaSet, Slot, parts::Taken};

impl Nezha {
    // ---------------------------------------------------------------------------- suspicion

    pub(super) fn tick_follower(&mut self, ctx: &mut Context<'_, Self>) {
        if self.view.is_suspect(ctx.now()) {
            self.suspect(ctx);
        }
        self.release(ctx);
    }

    fn suspect(&mut self, ctx: &mut Context<'_, Self>) {
        self.view.suspected_by(self.me.id(), ctx.now());
        self.tell_others(Part::Suspect, ctx);
        self.count_suspects(ctx);
    }

    pub(super) fn on_suspect(&mut self, from: ReplicaId, view: u64, ctx: &mut Context<'_, Self>) {
        if view > self.view.number() && self.view.is_silent(1, ctx.now()) {
            // A view began without this replica, and its leader is gone already: without its
            // voice there may be no majority that suspects it.
            return self.on_view_change(from, view, Slot(0), ctx);
        }
        if view != self.view.number() {
            return;
        }
        self.view.suspected_by(from, ctx.now());
        match &mut self.phase {
            Phase::Leader(_) => {
                // It reports that it runs.
                let part = self.log_modification(self.log.sync().next(), 0, 0);
                self.send(from, part, ctx);
            }
            Phase::Follower => self.count_suspects(ctx),
            Phase::Joining(joining) if !joining.state_lost() => self.count_suspects(ctx),
            // It took part in this view already, and its leader is gone again.
            Phase::Changing(changing) => changing.joined(from),
            Phase::Joining(_) | Phase::Recovering(_) => {}
        }
    }

    fn count_suspects(&mut self, ctx: &mut Context<'_, Self>) {
        let within = self.config.suspect_timeout * 2;
        if self.view.is_given_up(&self.me, within, ctx.now()) {
            ctx.mark("leader suspected");
            self.start_view_change(self.view.number() + 1, ctx);
        }
    }

    // ------------------------------------------------------------------------------ leaving

    /// Stops taking part; a deposed leader undoes what is not committed.
    fn leave(&mut self, ctx: &mut Context<'_, Self>) {
        self.log.roll_back(ctx);
        self.placements.leave(self.log.commit());
        self.replies.clear();
    }

    /// A leader leaves its view for the next one that one of these leads, if possible a member that
    /// is heard and has most of the log. Otherwise the others would wait for a silent leader until
    /// they suspect it, or for one that lags until it has caught up.
    pub(super) fn hand_off(&mut self, among: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Phase::Leader(lead) = &self.phase else {
            return;
        };
        let (view, members) = (self.view.number(), self.me.members());
        let (now, recent) = (ctx.now(), self.config.heartbeat * 3);
        let is_heard = |id: ReplicaId| lead.is_heard(id, recent, now);
        let keeps_up = |id: ReplicaId| is_heard(id) && lead.keeps_up(id);
        let next = |fits: &dyn Fn(ReplicaId) -> bool| {
            let mut views = view + 1..view + members as u64;
            views.find(|view| {
                let id = self.view.leader_of(*view);
                among.contains(id) && fits(id)
            })
        };
        let next = next(&keeps_up)
            .or_else(|| next(&is_heard))
            .or_else(|| next(&|_| true));
        ctx.mark("leadership handed off");
        self.start_view_change(next.unwrap_or(view + 1), ctx);
    }

    pub(super) fn start_view_change(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.leave(ctx);
        self.view.enter(view);
        self.trust_leader(ctx);
        let promise = self.promise(ctx);
        self.phase = Phase::Changing(Changing::new(&self.me, promise, ctx.now()));
        self.tell_view_change(ctx);
    }

    fn tell_view_change(&mut self, ctx: &mut Context<'_, Self>) {
        self.tell_others(Part::ViewChange(self.log.commit()), ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Changing(changing) = &self.phase
            && changing.is_promised(self.persisted)
        {
            if self.leads() {
                self.maybe_merge(ctx);
            } else {
                self.send_vote(ctx);
            }
        }
    }

    pub(super) fn tick_changing(&mut self, ctx: &mut Context<'_, Self>) {
        self.tell_view_change(ctx);
        self.on_promise_durable(ctx);
        let Phase::Changing(changing) = &self.phase else {
            return;
        };
        if changing.is_late(self.me.majority(), self.view.timeout() * 2, ctx.now()) {
            ctx.mark("view change given up");
            self.start_view_change(self.view.number() + 1, ctx);
        }
    }

    pub(super) fn on_view_change(
        &mut self,
        from: ReplicaId,
        view: u64,
        commit: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if view > self.view.number() {
            match &self.phase {
                Phase::Recovering(_) => return,
                Phase::Joining(joining) if joining.state_lost() => return,
                _ => self.start_view_change(view, ctx),
            }
        }
        if view < self.view.number() {
            return;
        }
        let leads = self.view.leader();
        let Phase::Changing(changing) = &mut self.phase else {
            if self.is_leader() {
                // The view has begun; the sender has not heard of it yet.
                self.on_suspect(from, view, ctx);
            } else {
                self.view.suspected_by(from, ctx.now());
                self.count_suspects(ctx);
            }
            return;
        };
        changing.joined(from);
        if from == leads && changing.leader_told(commit) {
            self.on_promise_durable(ctx);
        }
    }

    // -------------------------------------------------------------------------------- votes

    fn vote(&self, leader_commit: Slot) -> Vote {
        self.log.vote(self.view.number_normal(), leader_commit)
    }

    fn send_vote(&self, ctx: &mut Context<'_, Self>) {
        if let Phase::Changing(changing) = &self.phase {
            let vote = self.vote(changing.leader_commit().unwrap_or(self.log.commit()));
            self.send(self.view.leader(), Part::Vote(vote), ctx);
        }
    }

    pub(super) fn on_vote(
        &mut self,
        from: ReplicaId,
        view: u64,
        vote: Vote,
        ctx: &mut Context<'_, Self>,
    ) {
        if view > self.view.number() {
            self.on_view_change(from, view, Slot(0), ctx);
        }
        if view != self.view.number() || vote.view_normal >= view {
            return;
        }
        if let Phase::Changing(changing) = &mut self.phase {
            changing.vote(from, vote);
            self.maybe_merge(ctx);
        }
    }

    /// After news of a member's new incarnation: votes of the old one no longer count.
    pub(super) fn drop_votes(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Changing(changing) = &mut self.phase
            && changing.drop_votes()
        {
            ctx.mark("votes filtered");
        }
    }

    // -------------------------------------------------------------------------------- merge

    /// The new leader's log behind its own commit point: what is copied, then what survives.
    /// `None` while something is missing; `have` tells what it asked for.
    pub(super) fn plan(&self, votes: &[(ReplicaId, Vote)]) -> Option<(Vec<Stamp>, Vec<Stamp>)> {
        let latest = votes.iter().map(|(_, vote)| vote.view_normal).max()?;
        let qualified = || {
            votes
                .iter()
                .filter(move |(_, vote)| vote.view_normal == latest)
        };
        let (own, commit) = (self.me.id(), self.log.commit());
        let rank = |(id, vote): &&(ReplicaId, Vote)| (vote.sync(), *id == own);
        let (_, best) = qualified().max_by_key(rank)?;
        if best.first > commit.next() {
            return None;
        }
        let skip = (commit.next().0 - best.first.0) as usize;
        let copied: Vec<Stamp> = best.synced.iter().skip(skip).copied().collect();
        let names: BTreeSet<Name> = copied.iter().map(|stamp| stamp.name).collect();
        let mut held: BTreeMap<Stamp, usize> = BTreeMap::new();
        for (id, vote) in qualified() {
            if *id == own && self.injected(Bug::OwnLogUncounted) {
                continue;
            }
            let theirs: BTreeSet<Stamp> = vote.unsynced.iter().copied().collect();
            for stamp in theirs {
                *held.entry(stamp).or_default() += 1;
            }
        }
        let enough = survivor_quorum(self.me.members());
        let committed = |name: Name| {
            let slot = self.log.slot_of(name);
            slot.is_some_and(|slot| slot <= commit)
        };
        let survivors = held
            .into_iter()
            .filter(|(stamp, count)| {
                *count >= enough && !names.contains(&stamp.name) && !committed(stamp.name)
            })
            .map(|(stamp, _)| stamp)
            .collect();
        Some((copied, survivors))
    }

    pub(super) fn maybe_merge(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.leads() {
            return;
        }
        let commit = self.log.commit();
        let own = (self.me.id(), self.vote(commit));
        let Phase::Changing(changing) = &self.phase else {
            return;
        };
        if !changing.is_promised(self.persisted) {
            return;
        }
        let votes = changing.votes(own);
        if votes.len() < self.me.majority() {
            return;
        }
        let Some((copied, survivors)) = self.plan(&votes) else {
            // A voter knows more slots than its vote could hold: by its log, or by its state.
            let kept = votes.iter().map(|(_, vote)| vote.kept).max();
            if let Some(kept) = kept.filter(|kept| *kept > commit.next()) {
                self.fetch(kept.previous(), ctx);
            }
            return;
        };
        let body = |name: Name| self.log.body(name).or_else(|| changing.body(name));
        let missing: Vec<Name> = copied
            .iter()
            .chain(&survivors)
            .map(|stamp| stamp.name)
            .filter(|name| body(*name).is_none())
            .take(NAMES_MAX)
            .collect();
        if !missing.is_empty() {
            return self.fetch_for_merge(missing, votes.iter().map(|(id, _)| *id).collect(), ctx);
        }
        let entry = |stamp: &Stamp| {
            let batch = body(stamp.name)?.clone();
            Entry::read(stamp.deadline, batch, self.config.commutativity, ctx)
        };
        let mut marks = self.log.marks_committed();
        let mut entries: Vec<Entry> = copied.iter().filter_map(entry).collect();
        for entry in &entries {
            marks.note(entry.stamp, &entry.footprint);
        }
        let last = entries.last().map_or(0, |entry| entry.stamp.deadline);
        let candidates: Vec<Entry> = survivors.iter().filter_map(entry).collect();
        for survivor in candidates {
            let above =
                !self.injected(Bug::SurvivorsAboveSyncPoint) || survivor.stamp.deadline > last;
            if above && marks.admit(survivor.stamp, &survivor.footprint) {
                marks.note(survivor.stamp, &survivor.footprint);
                entries.push(survivor);
                ctx.mark("survivor of a view change");
            }
        }
        let commit = votes.iter().map(|(_, vote)| vote.commit).max();
        self.begin(entries, ctx);
        ctx.mark("view changed");
        self.phase = Phase::Leader(LeaderState::new(&self.me, self.log.sync()));
        while self.log.executed() < self.log.sync() {
            self.execute_next(ctx);
        }
        if let Some(commit) = commit {
            self.advance_commit(commit.min(self.log.sync()), ctx);
        }
        let _ = self.flush(ctx);
    }

    fn fetch_for_merge(
        &mut self,
        missing: Vec<Name>,
        voters: ReplicaSet,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Phase::Changing(changing) = &mut self.phase
            && changing.may_ask(self.config.fetch_after, ctx.now())
        {
            let message = self.between(Part::Fetch(missing));
            ctx.multicast(voters.without(self.me.id()), Lane::Control, &message);
        }
    }

    /// Behind the commit point the log is this from now on, and the view begins.
    fn begin(&mut self, entries: Vec<Entry>, ctx: &mut Context<'_, Self>) {
        let keep = self.log.commit();
        let record = Record::Begin {
            view: self.view.number(),
            keep,
            entries: entries.iter().map(Entry::placed).collect(),
        };
        self.view.begin();
        let _ = ctx.persist(keep.next(), &record);
        let written = self.promise(ctx);
        self.view.wait_for(written);
        let unplaced = self.log.unplaced();
        self.log.begin(entries, written);
        self.placements.begin();
        if self.leads() {
            self.tell_dropped(unplaced.into_iter().collect(), ctx);
        } else {
            for (slot, entry) in self.log.iter_from(keep.next()) {
                self.replies.slow_after(slot, entry.stamp.name.frontend);
            }
        }
        self.trust_leader(ctx);
    }

    /// Senders of what did not survive need not wait until they notice.
    fn tell_dropped(&self, unplaced: BTreeSet<Name>, ctx: &mut Context<'_, Self>) {
        for name in unplaced {
            if !self.log.knows(&name) {
                ctx.mark("sender told that its batch was dropped");
                self.refuse(name, Taken::Refused, ctx);
            }
        }
    }

    // ------------------------------------------------------------------------------ joining

    /// A message of a leader in its view. True when this replica follows it already.
    pub(super) fn accept_leader(
        &mut self,
        from: ReplicaId,
        view: u64,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if from != self.view.leader_of(view) {
            ctx.mark("ignored: not its leader");
            return false;
        }
        match &self.phase {
            Phase::Follower if view == self.view.number() => return true,
            Phase::Leader(_) if view == self.view.number() => return false,
            Phase::Recovering(_) => return false,
            Phase::Joining(joining) => {
                if joining.state_lost() && view > self.view.number() {
                    ctx.mark("recovery starts over");
                    self.become_recovering(ctx);
                    return false;
                }
                if view == self.view.number() {
                    self.view.heard(ctx.now());
                    return false;
                }
            }
            _ => {}
        }
        self.become_joining(view, false, ctx);
        false
    }

    pub(super) fn become_joining(
        &mut self,
        view: u64,
        state_lost: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        self.leave(ctx);
        if view > self.view.number() {
            self.view.enter(view);
            self.promise(ctx);
        }
        self.trust_leader(ctx);
        self.phase = Phase::Joining(Joining::new(state_lost, ctx.now()));
        if self.injected(Bug::JoinsAtOnce) && !state_lost {
            self.begin(Vec::new(), ctx);
            self.phase = Phase::Follower;
            return;
        }
        self.rejoin(ctx);
    }

    /// Asks the leader for its log, from where this one's is committed or what it gave so far.
    pub(super) fn rejoin(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Joining(joining) = &self.phase {
            let next = joining.next(self.log.commit());
            self.send(self.view.leader(), Part::GetLog(next), ctx);
        }
    }

    pub(super) fn tick_joining(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let Phase::Joining(joining) = &self.phase else {
            return;
        };
        let state_lost = joining.state_lost();
        if state_lost && self.view.is_silent(2, now) {
            ctx.mark("recovery starts over");
            return self.become_recovering(ctx);
        }
        if !state_lost && self.view.is_silent(1, now) {
            self.suspect(ctx);
        }
        if let Phase::Joining(joining) = &self.phase
            && joining.asks_again(self.config.heartbeat, now)
        {
            self.rejoin(ctx);
        }
    }

    pub(super) fn on_get_log(
        &mut self,
        from: ReplicaId,
        view: u64,
        first: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if view != self.view.number() || !self.is_leader() {
            return;
        }
        if first < self.log.first() {
            return self.send(from, Part::Trimmed(self.log.first()), ctx);
        }
        let placed = self.log.iter_from(first).map(|(_, entry)| entry.placed());
        let (entries, bytes) = page(placed, |placed| &placed.batch);
        // The page before may still be queued: a replica that joins asks again.
        if !ctx.takes(from, bytes + PART_BYTES) {
            return ctx.mark("a page waits for room");
        }
        let end = self.log.sync();
        let part = Part::LogPage {
            first,
            entries,
            end,
        };
        self.send(from, part, ctx);
    }

    pub(super) fn on_log_page(
        &mut self,
        from: ReplicaId,
        view: u64,
        (first, entries): (Slot, Vec<Placed>),
        end: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let (commit, leader) = (self.log.commit(), self.view.leader());
        let Phase::Joining(joining) = &mut self.phase else {
            return;
        };
        if view != self.view.number() || from != leader || first != joining.next(commit) {
            return;
        }
        if entries
            .iter()
            .any(|placed| name_of(&placed.batch).is_none())
        {
            return;
        }
        self.view.heard(ctx.now());
        let progress = !entries.is_empty();
        if !joining.on_page(entries, end, commit) {
            if progress {
                self.rejoin(ctx);
            }
            return;
        }
        let state_lost = joining.state_lost();
        let gathered = joining.take_gathered().into_iter();
        let read = |placed: Placed| {
            let commutativity = self.config.commutativity;
            Entry::read(placed.deadline, placed.batch, commutativity, ctx)
        };
        let entries = gathered.filter_map(read).collect();
        self.begin(entries, ctx);
        self.phase = Phase::Follower;
        self.placements.want_status();
        ctx.mark("view joined");
        if state_lost {
            ctx.mark("recovered");
            ctx.recovered();
        }
    }
}
