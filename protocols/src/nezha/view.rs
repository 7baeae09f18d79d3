//! Changing views: suspicion, votes, the new leader's merge, and how followers join.
//!
//! ```text
//!   a majority says Suspect ──► ViewChange ──► all: promise on disk, then Vote ──► new leader
//!                                                                                    │ merge
//!   follower of the new view ◄── LogPage … ◄── GetLog ◄── heartbeat of the view ◄────┘
//! ```
//!
//! The merge (§6, mended): of the votes, those of the latest view in which anybody took part
//! count. The longest synced log is copied. Of what else is in their logs survives, in the order
//! of deadlines, what is in so many of them as any fast quorum shares with any majority, and what
//! no conflicting entry of the copied log bars: looked at by name and by conflict, because
//! batches that commute stand in the log in either order.

use super::{
    Message, Nezha, Part, Placed, Record, Vote,
    dom::{Name, Stamp},
    normal::{PART_BYTES, STAMPS_MAX},
    plant::Plant,
    quorum::{leader_of, survivor_quorum},
    replica::{Entry, Phase, Place, name_of},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};
use quintet_replica::{
    Bytes, Context, Lane, PersistId, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Taken, Tally},
};

/// Between two views.
#[derive(Hash)]
pub(super) struct Changing {
    since: Time,
    /// The promise of this view.
    promise: PersistId,
    /// Who is known to be in this view or a later one.
    joined: Tally,
    votes: Vec<Option<Vote>>,
    /// The new leader's commit point, as it told it; until then it is taken to be as far as this
    /// replica, so that no vote lists the log that happens to be kept.
    leader_commit: Option<Slot>,
    /// Batches that were fetched for the merge.
    pub(super) bodies: BTreeMap<Name, Bytes>,
    asked_at: Option<Time>,
}

/// On the way into a view whose leader has begun it.
#[derive(Hash)]
pub(super) struct Joining {
    /// It forgot, and comes from recovery.
    pub(super) forgot: bool,
    since: Time,
    pub(super) gathered: Vec<Placed>,
    /// The leader's last slot when it was first asked.
    end: Option<Slot>,
}

/// About how many bytes of entries go into one page.
const PAGE_BYTES: usize = 1 << 20;
/// The most batches that are asked for at once.
const NAMES_MAX: usize = 4096;

impl Nezha {
    // ---------------------------------------------------------------------------- suspicion

    pub(super) fn tick_follower(&mut self, ctx: &mut Context<'_, Self>) {
        let silence = ctx.now().since(self.heard_at);
        if silence > self.patience || (self.leader_down && silence > self.patience / 4) {
            self.suspects[self.id.index()] = Some(ctx.now());
            self.tell_others(Part::Suspect, ctx);
            self.count_suspects(ctx);
        }
        self.release(ctx);
    }

    pub(super) fn on_suspect(&mut self, from: ReplicaId, view: u64, ctx: &mut Context<'_, Self>) {
        if view > self.view && ctx.now().since(self.heard_at) > self.patience {
            // A view began without this replica, and its leader is gone already: without its
            // voice there may be no majority that suspects it.
            return self.on_view_change(from, view, Slot(0), ctx);
        }
        if view != self.view {
            return;
        }
        self.suspects[from.index()] = Some(ctx.now());
        match &mut self.phase {
            Phase::Leader(_) => {
                // It lives, and says so.
                let round = 0;
                let part = Part::LogModification {
                    first: self.sync.next(),
                    stamps: Vec::new(),
                    commit: self.commit,
                    round,
                };
                self.send(from, part, ctx);
            }
            Phase::Follower | Phase::Joining(Joining { forgot: false, .. }) => {
                self.count_suspects(ctx);
            }
            Phase::Changing(changing) => {
                // It took part in this view already, and its leader is gone again.
                changing.joined.vote(from);
            }
            _ => {}
        }
    }

    fn count_suspects(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        if self.suspects[self.id.index()].is_none() {
            return;
        }
        let recent = |at: &&Time| now.since(**at) < self.config.suspect_after * 2;
        let suspects = self.suspects.iter().flatten().filter(recent).count();
        if suspects >= self.majority() {
            ctx.mark("leader suspected");
            self.start_view_change(self.view + 1, ctx);
        }
    }

    // ------------------------------------------------------------------------------ leaving

    /// Stops taking part; a deposed leader undoes what is not committed.
    fn leave(&mut self, ctx: &mut Context<'_, Self>) {
        if self.executed > self.commit && !self.planted(Plant::NoRollBack) {
            ctx.mark("speculation undone");
            ctx.roll_back(self.commit);
            self.executed = self.commit;
        }
        self.pending.clear();
        self.fast_waiting.clear();
        self.fast_replies.clear();
        self.slow_waiting.clear();
        self.status_due = false;
        self.round_heard = 0;
        self.commit_heard = self.commit;
    }

    /// A leader leaves its view for the next one that one of these leads, if possible somebody who
    /// is heard and has most of the log: the others would wait for a silent leader until they
    /// suspect it, and for one that lags until it has caught up.
    pub(super) fn hand_off(&mut self, among: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Phase::Leader(lead) = &self.phase else {
            return;
        };
        let (first, members) = (self.leader_first, self.members);
        let recent = self.config.heartbeat * 3;
        let is_heard = |id: ReplicaId| {
            let known = &lead.followers[id.index()];
            known.heard && ctx.now().since(known.heard_at) < recent
        };
        let keeps_up = |id: ReplicaId| {
            let sync = lead.followers[id.index()].sync;
            is_heard(id) && sync.0 + STAMPS_MAX >= lead.told.0
        };
        let next = |fits: &dyn Fn(ReplicaId) -> bool| {
            let mut views = self.view + 1..self.view + members as u64;
            views.find(|view| {
                let id = leader_of(*view, first, members);
                among.contains(id) && fits(id)
            })
        };
        let view = next(&keeps_up).or_else(|| next(&is_heard));
        let view = view.or_else(|| next(&|_| true));
        ctx.mark("leadership handed off");
        self.start_view_change(view.unwrap_or(self.view + 1), ctx);
    }

    pub(super) fn start_view_change(&mut self, view: u64, ctx: &mut Context<'_, Self>) {
        self.leave(ctx);
        self.view = view;
        self.draw_patience(ctx);
        let promise = self.promise(ctx);
        let mut joined = Tally::new();
        joined.vote(self.id);
        self.phase = Phase::Changing(Changing {
            since: ctx.now(),
            promise,
            joined,
            votes: vec![None; self.members],
            leader_commit: None,
            bodies: BTreeMap::new(),
            asked_at: None,
        });
        self.tell_view_change(ctx);
    }

    fn tell_view_change(&mut self, ctx: &mut Context<'_, Self>) {
        self.tell_others(Part::ViewChange(self.commit), ctx);
    }

    pub(super) fn on_promise_durable(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Changing(changing) = &self.phase
            && changing.promise <= self.persisted
        {
            if self.leader() == self.id {
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
        let late = ctx.now().since(changing.since) > self.patience * 2;
        if late && changing.joined.reached(self.majority()) {
            ctx.mark("view change given up");
            self.start_view_change(self.view + 1, ctx);
        }
    }

    pub(super) fn on_view_change(
        &mut self,
        from: ReplicaId,
        view: u64,
        commit: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if view > self.view {
            match self.phase {
                Phase::Recovering(_) | Phase::Joining(Joining { forgot: true, .. }) => return,
                _ => self.start_view_change(view, ctx),
            }
        }
        if view < self.view {
            return;
        }
        let leads = self.leader();
        let Phase::Changing(changing) = &mut self.phase else {
            if self.is_leader() {
                // The view has begun; the sender has not heard of it yet.
                self.on_suspect(from, view, ctx);
            } else {
                self.suspects[from.index()] = Some(ctx.now());
                self.count_suspects(ctx);
            }
            return;
        };
        changing.joined.vote(from);
        let news = changing.leader_commit.is_none_or(|known| known < commit);
        if from == leads && news {
            changing.leader_commit = Some(commit);
            self.on_promise_durable(ctx);
        }
    }

    // -------------------------------------------------------------------------------- votes

    fn vote(&self, leader_commit: Slot) -> Vote {
        let kept = self.log.first();
        let first = self.commit.min(leader_commit).next().max(kept);
        Vote {
            view_normal: self.view_normal,
            commit: self.commit,
            kept,
            first,
            synced: self
                .log
                .iter_from(first)
                .map(|(_, entry)| entry.stamp)
                .collect(),
            unsynced: self.unsynced.keys().copied().collect(),
        }
    }

    fn send_vote(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Changing(changing) = &self.phase {
            let vote = self.vote(changing.leader_commit.unwrap_or(self.commit));
            self.send(self.leader(), Part::Vote(vote), ctx);
        }
    }

    pub(super) fn on_vote(
        &mut self,
        from: ReplicaId,
        view: u64,
        vote: Vote,
        ctx: &mut Context<'_, Self>,
    ) {
        if view > self.view {
            self.on_view_change(from, view, Slot(0), ctx);
        }
        if view != self.view || vote.view_normal >= view {
            return;
        }
        if let Phase::Changing(changing) = &mut self.phase {
            changing.joined.vote(from);
            changing.votes[from.index()] = Some(vote);
            self.maybe_merge(ctx);
        }
    }

    /// After news of somebody's new life: votes of the old one no longer count.
    pub(super) fn filter_votes(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Changing(changing) = &mut self.phase {
            // Who is still in the life that voted, votes again at its next tick.
            if changing.votes.iter().any(Option::is_some) {
                ctx.mark("votes filtered");
                changing.votes.fill(None);
            }
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
        let rank = |(id, vote): &&(ReplicaId, Vote)| (vote.sync(), *id == self.id);
        let (_, best) = qualified().max_by_key(rank)?;
        if best.first > self.commit.next() {
            return None;
        }
        let skip = (self.commit.next().0 - best.first.0) as usize;
        let copied: Vec<Stamp> = best.synced.iter().skip(skip).copied().collect();
        let names: BTreeSet<Name> = copied.iter().map(|stamp| stamp.name).collect();
        let mut held: BTreeMap<Stamp, usize> = BTreeMap::new();
        for (id, vote) in qualified() {
            if *id == self.id && self.planted(Plant::OwnLogUncounted) {
                continue;
            }
            let theirs: BTreeSet<Stamp> = vote.unsynced.iter().copied().collect();
            for stamp in theirs {
                *held.entry(stamp).or_default() += 1;
            }
        }
        let enough = survivor_quorum(self.members);
        let committed = |name: &Name| match self.known.get(name) {
            Some(Place::Slot(slot)) => *slot <= self.commit,
            _ => false,
        };
        let survivors = held
            .into_iter()
            .filter(|(stamp, count)| {
                *count >= enough && !names.contains(&stamp.name) && !committed(&stamp.name)
            })
            .map(|(stamp, _)| stamp)
            .collect();
        Some((copied, survivors))
    }

    pub(super) fn maybe_merge(&mut self, ctx: &mut Context<'_, Self>) {
        if self.leader() != self.id {
            return;
        }
        let own = self.vote(self.commit);
        let Phase::Changing(changing) = &self.phase else {
            return;
        };
        if changing.promise > self.persisted {
            return;
        }
        let mut votes: Vec<(ReplicaId, Vote)> = vec![(self.id, own)];
        for (index, vote) in changing.votes.iter().enumerate() {
            let id = ReplicaId(index as u16);
            if let Some(vote) = vote
                && id != self.id
            {
                votes.push((id, vote.clone()));
            }
        }
        if votes.len() < self.majority() {
            return;
        }
        let Some((copied, survivors)) = self.plan(&votes) else {
            // Somebody knows more slots than it could tell: by its log, or by its state.
            let kept = votes.iter().map(|(_, vote)| vote.kept).max();
            if let Some(kept) = kept.filter(|kept| *kept > self.commit.next()) {
                self.fetch(kept.previous(), ctx);
            }
            return;
        };
        let body = |name: &Name| self.body(*name).or_else(|| changing.bodies.get(name));
        let missing: Vec<Name> = copied
            .iter()
            .chain(&survivors)
            .map(|stamp| stamp.name)
            .filter(|name| body(name).is_none())
            .take(NAMES_MAX)
            .collect();
        if !missing.is_empty() {
            let now = ctx.now();
            if changing
                .asked_at
                .is_some_and(|at| now.since(at) < self.config.fetch_after)
            {
                return;
            }
            let voters: ReplicaSet = votes.iter().map(|(id, _)| *id).collect();
            let message = self.between(Part::Fetch(missing));
            ctx.multicast(voters.without(self.id), Lane::Control, &message);
            if let Phase::Changing(changing) = &mut self.phase {
                changing.asked_at = Some(now);
            }
            return;
        }
        let entry = |stamp: &Stamp| {
            let batch = body(&stamp.name)?.clone();
            self.entry_of(stamp.deadline, batch, ctx)
        };
        let mut marks = self.marks_upto(self.commit);
        let mut entries: Vec<Entry> = copied.iter().filter_map(entry).collect();
        for entry in &entries {
            marks.note(entry.stamp, &entry.footprint);
        }
        let last = entries.last().map_or(0, |entry| entry.stamp.deadline);
        let candidates: Vec<Entry> = survivors.iter().filter_map(entry).collect();
        for survivor in candidates {
            let above =
                !self.planted(Plant::SurvivorsAboveSyncPoint) || survivor.stamp.deadline > last;
            if above && marks.admit(survivor.stamp, &survivor.footprint) {
                marks.note(survivor.stamp, &survivor.footprint);
                entries.push(survivor);
                ctx.mark("survivor of a view change");
            }
        }
        let commit = votes.iter().map(|(_, vote)| vote.commit).max();
        self.begin(entries, ctx);
        ctx.mark("view changed");
        self.phase = Phase::Leader(self.lead());
        while self.executed < self.sync {
            self.execute_next(ctx);
        }
        if let Some(commit) = commit {
            self.advance_commit(commit.min(self.sync), ctx);
        }
        let _ = self.flush(ctx);
    }

    /// Behind the commit point the log is this from now on, and the view begins.
    fn begin(&mut self, entries: Vec<Entry>, ctx: &mut Context<'_, Self>) {
        let keep = self.commit;
        let placed = |entry: &Entry| Placed {
            deadline: entry.stamp.deadline,
            batch: entry.batch.clone(),
        };
        let record = Record::Begin {
            view: self.view,
            keep,
            entries: entries.iter().map(placed).collect(),
        };
        self.view_normal = self.view;
        let journal = keep.next();
        let _ = ctx.persist(journal, &record);
        let written = self.promise(ctx);
        self.ready_after = written;
        self.replace_log(keep, entries, journal, written, ctx);
        self.sync_writes.push_back((written, self.sync));
        self.draw_patience(ctx);
    }

    /// Nothing of what this replica held behind `keep` counts any more.
    pub(super) fn replace_log(
        &mut self,
        keep: Slot,
        entries: Vec<Entry>,
        journal: Slot,
        written: PersistId,
        ctx: &mut Context<'_, Self>,
    ) {
        let dropped: BTreeSet<Name> = if self.leader() == self.id {
            let unsynced = self.unsynced.keys().map(|stamp| stamp.name);
            let early = self.early.stamps().map(|stamp| stamp.name);
            unsynced.chain(early).chain(self.late.names()).collect()
        } else {
            BTreeSet::new()
        };
        self.unsynced.clear();
        self.early.clear();
        self.late.clear();
        self.pending.clear();
        self.gap_asked = Slot(0);
        self.known.clear();
        self.marks = self.marks_upto(keep);
        self.log.truncate(keep.next());
        if self.log.end() < keep.next() {
            self.log.reset(keep.next());
            self.marks_trimmed = self.marks.clone();
        }
        self.sync = keep;
        self.sync_durable = self.sync_durable.min(keep);
        self.sync_writes.clear();
        self.count_hash();
        for (slot, entry) in self.log.iter_from(self.log.first()) {
            self.known.insert(entry.stamp.name, Place::Slot(slot));
        }
        for mut entry in entries {
            entry.journal = journal;
            entry.written = written;
            self.hash.add(entry.stamp, &entry.footprint);
            let hash = self.hash.reply(entry.stamp, &entry.footprint);
            entry.hash = (self.hash.base, hash, self.hash.known);
            self.put(self.sync.next(), entry, ctx);
        }
        // Their senders need not wait until they notice.
        for name in dropped {
            if !self.known.contains_key(&name) {
                ctx.mark("sender told that its batch was dropped");
                let (batch, taken, view) = (name.batch, Taken::Refused, self.view);
                let message = Message::Taken { batch, taken, view };
                ctx.send_frontend(name.frontend, message);
            }
        }
    }

    // ------------------------------------------------------------------------------ joining

    /// A message of a leader in its view. True when this replica follows it already.
    pub(super) fn heed_leader(
        &mut self,
        from: ReplicaId,
        view: u64,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        let owner = super::quorum::leader_of(view, self.leader_first, self.members);
        if from != owner {
            ctx.mark("ignored: not its leader");
            return false;
        }
        match &self.phase {
            Phase::Follower if view == self.view => return true,
            Phase::Leader(_) if view == self.view => return false,
            Phase::Recovering(_) => return false,
            Phase::Joining(joining) => {
                if joining.forgot && view > self.view {
                    ctx.mark("recovery starts over");
                    self.become_recovering(ctx);
                    return false;
                }
                if view == self.view {
                    self.heard_at = ctx.now();
                    return false;
                }
            }
            _ => {}
        }
        self.become_joining(view, false, ctx);
        false
    }

    pub(super) fn become_joining(&mut self, view: u64, forgot: bool, ctx: &mut Context<'_, Self>) {
        self.leave(ctx);
        if view > self.view {
            self.view = view;
            self.promise(ctx);
        }
        self.draw_patience(ctx);
        self.phase = Phase::Joining(Joining {
            forgot,
            since: ctx.now(),
            gathered: Vec::new(),
            end: None,
        });
        if self.planted(Plant::JoinsAtOnce) && !forgot {
            self.begin(Vec::new(), ctx);
            self.phase = Phase::Follower;
            return;
        }
        self.rejoin(ctx);
    }

    /// Asks the leader for its log, from where this one's is committed or what it gave so far.
    pub(super) fn rejoin(&mut self, ctx: &mut Context<'_, Self>) {
        let commit = self.commit;
        if let Phase::Joining(joining) = &mut self.phase {
            let next = Slot(commit.0 + 1 + joining.gathered.len() as u64);
            self.send(self.leader(), Part::GetLog(next), ctx);
        }
    }

    pub(super) fn tick_joining(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let Phase::Joining(joining) = &self.phase else {
            return;
        };
        let silence = now.since(self.heard_at);
        if joining.forgot && silence > self.patience * 2 {
            ctx.mark("recovery starts over");
            return self.become_recovering(ctx);
        }
        if !joining.forgot && silence > self.patience {
            self.suspects[self.id.index()] = Some(now);
            self.tell_others(Part::Suspect, ctx);
            self.count_suspects(ctx);
        }
        if let Phase::Joining(joining) = &self.phase
            && now.since(joining.since) >= self.config.heartbeat
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
        if view != self.view || !self.is_leader() {
            return;
        }
        if first < self.log.first() {
            return self.send(from, Part::Trimmed(self.log.first()), ctx);
        }
        let mut bytes = 0;
        let entries: Vec<Placed> = self
            .log
            .iter_from(first)
            .map(|(_, entry)| Placed {
                deadline: entry.stamp.deadline,
                batch: entry.batch.clone(),
            })
            .take_while(|placed| {
                bytes += placed.batch.len();
                bytes <= PAGE_BYTES || bytes == placed.batch.len()
            })
            .collect();
        // The page before may still be queued: whoever joins asks again.
        if !ctx.takes(from, bytes + PART_BYTES) {
            return ctx.mark("a page waits for room");
        }
        let part = Part::LogPage {
            first,
            entries,
            end: self.sync,
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
        let (commit, leads) = (self.commit, self.leader());
        let Phase::Joining(joining) = &mut self.phase else {
            return;
        };
        let next = Slot(commit.0 + 1 + joining.gathered.len() as u64);
        if view != self.view || from != leads || first != next {
            return;
        }
        if entries
            .iter()
            .any(|placed| name_of(&placed.batch).is_none())
        {
            return;
        }
        self.heard_at = ctx.now();
        let progress = !entries.is_empty();
        joining.gathered.extend(entries);
        let end = *joining.end.get_or_insert(end);
        if commit.0 + (joining.gathered.len() as u64) < end.0 {
            if progress {
                self.rejoin(ctx);
            }
            return;
        }
        let forgot = joining.forgot;
        let gathered = core::mem::take(&mut joining.gathered);
        let entries = gathered
            .into_iter()
            .filter_map(|placed| self.entry_of(placed.deadline, placed.batch, ctx))
            .collect();
        self.begin(entries, ctx);
        self.phase = Phase::Follower;
        self.status_due = true;
        ctx.mark("view joined");
        if forgot {
            ctx.mark("recovered");
            ctx.recovered();
        }
    }
}
