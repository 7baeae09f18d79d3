//! The normal case: requests come in, are released at their deadlines, appended, and agreed.
//!
//! ```text
//!   Request ──► early buffer ──deadline──► append ──► leader: execute, results, LogModification
//!      │                                     │
//!      └─► late buffer ◄── not eligible      └─────► follower: FastReplies
//!               │                                        │
//!               └──────────── LogModification ──────────►│ same slots as the leader: SlowReply
//! ```

use super::{
    LogHash, Message, Nezha, Part, Placed, Record, ReplyHeader, Summary,
    checks::Checks,
    conflict::{Footprint, Marks, SetHash, time_of},
    dom::{Name, Stamp},
    plant::Plant,
    replica::{Entry, Follower, Lead, Phase, Place, Read, Timer, name_of},
};
use alloc::{collections::BTreeSet, collections::VecDeque, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    BatchView, Bytes, Context, Deadline, FrontendId, Level, PersistId, ReplicaId, Slot, Time, Wake,
    limits, parts::Taken,
};
use smallvec::SmallVec;

/// The most stamps in one message.
pub(super) const STAMPS_MAX: u64 = 1024;
/// How far beyond its sync-point a follower remembers what the leader placed.
const PENDING_MAX: u64 = 65_536;
/// Hashes leave out what is committed in steps of this many slots.
pub(super) const HASH_SPAN: u64 = 4096;
/// Of no more entries it is checked whether the hash is theirs.
const HASH_CHECKED_MAX: usize = 256;
/// The most keys that a leader watches before it begins the next quantum early.
const MARKS_MAX: usize = 65_536;
/// The most reads that wait for a confirmation.
const READS_MAX: usize = 65_536;
/// About how many bytes of batches go into one message.
const PAGE_BYTES: usize = 1 << 20;
/// More than a page has besides its batches.
pub(super) const PART_BYTES: usize = 64 << 10;
/// The most batches that are asked for at once.
const NAMES_MAX: usize = 4096;
/// The most fast replies in one message.
const FAST_REPLIES_MAX: usize = 1024;
/// So many times in a round trip to a majority a leader tells its log; what is on the fast path
/// does not wait for it, and what is not waits no longer than a part of what it takes anyway.
const GAPS: u32 = 8;
/// A round trip that took longer says nothing of the next one.
const TRIP_MAX: Duration = Duration::from_millis(8);

impl Nezha {
    pub(super) fn lead(&self) -> Lead {
        Lead {
            followers: vec![Follower::default(); self.members],
            told: self.sync,
            told_at: Time(0),
            gap: Duration::ZERO,
            timed: None,
            round: 0,
            round_due: true,
            reads: VecDeque::new(),
            checks: Checks::default(),
        }
    }

    // ----------------------------------------------------------------------------- requests

    pub(super) fn on_request(
        &mut self,
        frontend: FrontendId,
        (sent, bound, deviation): (u64, u64, u64),
        level: Level,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        let Some(name) = name_of(&batch).filter(|name| name.frontend == frontend) else {
            return ctx.mark("ignored: not a batch of its sender");
        };
        if !BatchView::new(&batch).is_ok_and(|view| ctx.may_order(&view)) {
            return;
        }
        match level {
            Level::Ordered => {}
            Level::Linearizable => return self.on_read(name, batch, ctx),
            Level::Stale => {
                let header = self.read_header(frontend, ctx);
                return ctx.query(batch, Slot(0), true, frontend, &header);
            }
        }
        let clock = self.read_clock(ctx);
        let since = u64::try_from(ctx.now().since(ctx.arrived()).as_nanos()).unwrap_or(0);
        let arrived = clock.saturating_sub(since);
        self.delays.measure(frontend, sent, arrived, deviation);
        if !self.is_ready() {
            if self.is_leader() || matches!(self.phase, Phase::Changing(_)) {
                // Its view begins soon. Followers on their way are not waited for.
                let (batch, taken, view) = (name.batch, Taken::Refused, self.view);
                let message = Message::Taken { batch, taken, view };
                ctx.send_frontend(frontend, message);
            }
            return;
        }
        let deadline = if self.config.multicast {
            sent.saturating_add(bound)
        } else if self.is_leader() {
            clock
        } else {
            let (batch, taken, view) = (name.batch, Taken::Refused, self.view);
            let message = Message::Taken { batch, taken, view };
            return ctx.send_frontend(frontend, message);
        };
        let stamp = Stamp { deadline, name };
        match self.known.get(&name).copied() {
            Some(Place::Slot(slot)) => return self.answer_again(name, slot, batch, ctx),
            Some(Place::Unsynced(stamp)) => return self.repeat_fast_reply(stamp, ctx),
            Some(Place::Early(_)) => return,
            // It comes again with another deadline, which may be in time.
            Some(Place::Late) => {
                self.late.remove(name);
                self.known.remove(&name);
            }
            None => {}
        }
        let hold = self.hold_max(bound);
        self.take_in(stamp, batch, (clock, hold), ctx);
        self.release_upto(clock, ctx);
    }

    /// Reading a clock is a good part of what a batch costs, so that it is read once for each.
    fn read_clock(&mut self, ctx: &Context<'_, Self>) -> u64 {
        let clock = ctx.clock();
        self.deviation = clock.deviation;
        clock.now
    }

    /// How long a batch waits for its deadline at most. A leader knows that its clock and the
    /// sender's do not go together when the sender measured no delay in range, or when the batch
    /// was sent in its future: replicas would not agree in time then, and it need not wait. Only
    /// the leader can tell so, because the others follow it.
    fn hold_max(&self, bound: u64) -> u64 {
        let most = self.config.estimation.bound_max;
        match self.is_leader() && self.config.multicast {
            true if bound >= most => 0,
            true => bound.saturating_mul(2),
            false => most.saturating_mul(4),
        }
    }

    fn take_in(
        &mut self,
        mut stamp: Stamp,
        batch: Bytes,
        (clock, hold): (u64, u64),
        ctx: &mut Context<'_, Self>,
    ) {
        let footprint = self.footprint(&batch, ctx);
        let too_far = stamp.deadline > clock.saturating_add(hold);
        let bytes_max = self.config.buffer_bytes;
        let full = !limits::queue_takes(self.early.bytes(), batch.len(), bytes_max);
        if self.is_leader() {
            if full {
                let (batch, view) = (stamp.name.batch, self.view);
                let taken = Taken::Busy;
                let message = Message::Taken { batch, taken, view };
                return ctx.send_frontend(stamp.name.frontend, message);
            }
            if too_far {
                // Only the leader shortens: each on its own would come to another deadline.
                ctx.mark("a deadline lay too far ahead");
                stamp.deadline = clock;
            }
            if !self.marks.admit(stamp, &footprint) {
                ctx.mark("late at the leader");
                stamp.deadline = self.deadline_late(stamp, &footprint);
            }
        } else if too_far || full || !self.marks.admit(stamp, &footprint) {
            // Were it to shorten a deadline itself, all would stay right: its hash tells the
            // deadline, and what it appends must be in order. It would only disagree.
            ctx.mark("late at a follower");
            return self.keep_late(stamp.name, batch, ctx);
        }
        self.holds.add(stamp.deadline, clock);
        // What need not wait and has nobody before it does not go through the buffer.
        let next = self.early.next_deadline();
        if stamp.deadline <= self.due(clock)
            && next.is_none_or(|next| stamp.deadline < next)
            && !self.is_full()
        {
            return self.append_any(Entry::new(stamp, batch, footprint), ctx);
        }
        self.known.insert(stamp.name, Place::Early(stamp));
        self.early.insert(stamp, batch, footprint);
    }

    pub(super) fn keep_late(&mut self, name: Name, batch: Bytes, ctx: &mut Context<'_, Self>) {
        self.known.insert(name, Place::Late);
        let known = &mut self.known;
        let bytes_max = self.config.buffer_bytes;
        self.late.insert(name, batch, bytes_max, |forgotten| {
            known.remove(&forgotten);
        });
        // The leader may have placed it while it was on its way.
        if self.pending.contains_key(&self.sync.next()) {
            self.place_pending(ctx);
        }
    }

    /// Appends what is due, in the order of deadlines.
    pub(super) fn release(&mut self, ctx: &mut Context<'_, Self>) {
        if self.is_ready() && !self.early.is_empty() {
            let clock = self.read_clock(ctx);
            self.release_upto(clock, ctx);
        }
    }

    /// Up to which deadline batches are released: a clock that was set back must not keep the
    /// leader from what its log has passed.
    fn due(&self, clock: u64) -> u64 {
        match self.is_leader() {
            true => clock.max(self.marks.deadline_past()),
            false => clock,
        }
    }

    /// Whether a leader waits until more is committed.
    const fn is_full(&self) -> bool {
        self.is_leader() && self.sync.0 - self.commit.0 >= self.config.window
    }

    fn append_any(&mut self, entry: Entry, ctx: &mut Context<'_, Self>) {
        if self.is_leader() {
            self.append(entry, ctx);
        } else {
            self.append_unsynced(entry, ctx);
        }
    }

    fn release_upto(&mut self, clock: u64, ctx: &mut Context<'_, Self>) {
        if !self.is_ready() {
            return;
        }
        loop {
            if self.is_full() {
                return;
            }
            let Some((stamp, batch, footprint)) = self.early.release(self.due(clock)) else {
                break;
            };
            self.append_any(Entry::new(stamp, batch, footprint), ctx);
        }
        if let Some(deadline) = self.early.next_deadline()
            && self.release_at != deadline
        {
            self.release_at = deadline;
            ctx.set_timer_at(Timer::Release, Deadline::Clock(deadline));
        }
    }

    /// What the leader gives a late batch: the lowest deadline above all that conflicts with it.
    fn deadline_late(&self, stamp: Stamp, footprint: &Footprint) -> u64 {
        match self.planted(Plant::LateKeepsDeadline) {
            true => stamp.deadline,
            false => self.marks.deadline_min(footprint),
        }
    }

    /// The leader gives a batch the next slot, executes it and answers.
    fn append(&mut self, mut entry: Entry, ctx: &mut Context<'_, Self>) {
        if !self.marks.admit(entry.stamp, &entry.footprint) {
            entry.stamp.deadline = self.deadline_late(entry.stamp, &entry.footprint);
        }
        if self.marks.watched() > MARKS_MAX {
            entry.stamp.deadline = entry.stamp.deadline.max(self.marks.deadline_next());
        }
        let slot = self.sync.next();
        let placed = Placed {
            deadline: entry.stamp.deadline,
            batch: entry.batch.clone(),
        };
        entry.journal = slot;
        entry.written = ctx.persist(slot, &Record::Entry(slot, placed));
        self.sync_writes.push_back((entry.written, slot));
        self.add_to_hash(&mut entry);
        self.put(slot, entry, ctx);
        self.execute_next(ctx);
    }

    fn add_to_hash(&mut self, entry: &mut Entry) {
        let hash = self.hash.append(entry.stamp, &entry.footprint);
        entry.hash = (self.hash.base, hash, self.hash.known);
    }

    /// An entry takes the next slot.
    pub(super) fn put(&mut self, slot: Slot, entry: Entry, _: &mut Context<'_, Self>) {
        assert_eq!(slot, self.sync.next(), "slots are filled in order");
        self.marks.note(entry.stamp, &entry.footprint);
        self.known.insert(entry.stamp.name, Place::Slot(slot));
        self.slow_waiting
            .push_back((slot, entry.stamp.name.frontend));
        self.log.set(slot, entry);
        self.sync = slot;
    }

    /// The leader executes the next slot before anybody else may have it.
    pub(super) fn execute_next(&mut self, ctx: &mut Context<'_, Self>) {
        let slot = self.executed.next();
        let Some(entry) = self.log.get(slot) else {
            return;
        };
        let frontend = entry.stamp.name.frontend;
        let header = self.header_of(slot, entry, ctx);
        let (time, batch) = (time_of(entry.stamp.deadline), entry.batch.clone());
        let after = entry.written.max(self.ready_after);
        // Where the leader checks quorums, it answers what it knows to be committed.
        let reply = (!self.leader_checks()).then_some((frontend, header, Some(after)));
        ctx.execute(slot, time, batch, reply);
        self.executed = slot;
        self.check_quorum(slot, ctx);
    }

    pub(super) fn header_of(
        &self,
        slot: Slot,
        entry: &Entry,
        ctx: &Context<'_, Self>,
    ) -> ReplyHeader {
        ReplyHeader {
            view: self.view,
            slot,
            hash: self.log_hash(entry),
            bound: self.bound_for(entry.stamp.name.frontend, ctx),
        }
    }

    pub(super) fn log_hash(&self, entry: &Entry) -> LogHash {
        let (base, hash, known) = entry.hash;
        LogHash {
            lives: self.lives_hash,
            base,
            hash,
            known,
        }
    }

    fn bound_for(&self, frontend: FrontendId, ctx: &Context<'_, Self>) -> u64 {
        if frontend == ctx.embedded() {
            // Nothing lies between the two, and a delay of nothing is not one that went wrong.
            return 0;
        }
        self.delays.estimate(frontend, self.deviation).unwrap_or(0)
    }

    /// A follower appends a batch beyond its sync-point and says so when it is durable.
    fn append_unsynced(&mut self, mut entry: Entry, ctx: &mut Context<'_, Self>) {
        let stamp = entry.stamp;
        let crowded = self.unsynced.len() as u64 >= self.config.window;
        if crowded || !self.marks.admit(stamp, &entry.footprint) {
            ctx.mark("late at a follower");
            return self.keep_late(stamp.name, entry.batch, ctx);
        }
        let placed = Placed {
            deadline: stamp.deadline,
            batch: entry.batch.clone(),
        };
        entry.journal = self.sync.next();
        entry.written = ctx.persist(entry.journal, &Record::Entry(Slot(0), placed));
        self.marks.note(stamp, &entry.footprint);
        self.add_to_hash(&mut entry);
        self.fast_waiting
            .push_back((entry.written, stamp.name.frontend, stamp.name.batch, stamp));
        self.known.insert(stamp.name, Place::Unsynced(stamp));
        self.unsynced.insert(stamp, entry);
        if self.pending.contains_key(&self.sync.next()) {
            self.place_pending(ctx);
        }
    }

    pub(super) fn send_fast_replies(&mut self, ctx: &mut Context<'_, Self>) {
        while let Some((id, _, _, stamp)) = self.fast_waiting.front().copied() {
            if id > self.persisted {
                return;
            }
            self.fast_waiting.pop_front();
            self.repeat_fast_reply(stamp, ctx);
        }
    }

    /// Says that a batch is in the log here, by the end of the turn together with others.
    fn repeat_fast_reply(&mut self, stamp: Stamp, ctx: &mut Context<'_, Self>) {
        let placed = match self.known.get(&stamp.name) {
            Some(Place::Slot(slot)) => self.log.get(*slot),
            Some(Place::Unsynced(stamp)) => self.unsynced.get(stamp),
            _ => None,
        };
        let Some(entry) = placed.filter(|entry| entry.written <= self.persisted) else {
            return;
        };
        if entry.stamp != stamp {
            return;
        }
        let hash = self.log_hash(entry);
        if self.leader_checks() {
            return self.send(self.leader(), Part::Appended(stamp.name, hash), ctx);
        }
        let replies = self.fast_replies.entry(stamp.name.frontend).or_default();
        replies.push((stamp.name.batch, hash));
        if replies.len() >= FAST_REPLIES_MAX {
            self.flush_fast_replies(ctx);
        }
    }

    /// What was appended in this turn is told now, in one message to each frontend.
    fn flush_fast_replies(&mut self, ctx: &mut Context<'_, Self>) {
        for (frontend, appended) in core::mem::take(&mut self.fast_replies) {
            let message = Message::FastReplies {
                view: self.view,
                bound: self.bound_for(frontend, ctx),
                appended,
            };
            ctx.send_frontend(frontend, message);
        }
    }

    /// A batch that has its slot comes again.
    fn answer_again(&self, name: Name, slot: Slot, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self.is_leader() {
            return self.send_slow_reply(name.frontend, ctx);
        }
        if self.leader_checks() && slot > self.commit {
            // It is answered when it is committed.
            return;
        }
        if let Some(entry) = self.log.get(slot) {
            ctx.mark("a known batch was answered again");
            let header = self.header_of(slot, entry, ctx);
            let after = entry.written.max(self.ready_after);
            ctx.replay(batch, slot, name.frontend, &header, Some(after));
        }
    }

    fn send_slow_reply(&self, frontend: FrontendId, ctx: &mut Context<'_, Self>) {
        if self.leader_checks() {
            return;
        }
        let message = Message::SlowReply {
            view: self.view,
            lives: self.lives_hash,
            sync: self.sync_durable,
            bound: self.bound_for(frontend, ctx),
        };
        ctx.send_frontend(frontend, message);
    }

    // -------------------------------------------------------------------------------- reads

    fn read_header(&self, frontend: FrontendId, ctx: &Context<'_, Self>) -> ReplyHeader {
        ReplyHeader {
            view: self.view,
            bound: self.bound_for(frontend, ctx),
            ..ReplyHeader::default()
        }
    }

    fn on_read(&mut self, name: Name, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let (ready, slot, view) = (self.is_ready(), self.sync, self.view);
        let refuse = |taken| Message::Taken {
            batch: name.batch,
            taken,
            view,
        };
        let unconfirmed = self.planted(Plant::ReadsUnconfirmed);
        let Phase::Leader(lead) = &mut self.phase else {
            return ctx.send_frontend(name.frontend, refuse(Taken::Refused));
        };
        if !ready {
            return ctx.send_frontend(name.frontend, refuse(Taken::Refused));
        }
        if lead.reads.len() >= READS_MAX {
            return ctx.send_frontend(name.frontend, refuse(Taken::Busy));
        }
        if unconfirmed {
            let header = self.read_header(name.frontend, ctx);
            return ctx.query(batch, slot, false, name.frontend, &header);
        }
        lead.reads.push_back(Read {
            round: lead.round + 1,
            slot,
            frontend: name.frontend,
            batch,
        });
        lead.round_due = true;
        self.confirm_reads(ctx);
    }

    /// Tells followers how far the log is committed.
    pub(super) fn begin_round(&mut self, ctx: &mut Context<'_, Self>) {
        if let Phase::Leader(lead) = &mut self.phase {
            lead.round_due = true;
            let _ = self.flush(ctx);
        }
    }

    /// Runs the reads that came before a round which a majority has echoed by now. Their answers
    /// wait in the executor until all that they saw is committed.
    fn confirm_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let (own, majority) = (self.id, self.majority());
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        if lead.reads.is_empty() {
            return;
        }
        let mut rounds: Vec<u64> = lead.followers.iter().map(|known| known.round).collect();
        rounds[own.index()] = lead.round;
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        let confirmed = rounds[majority - 1];
        let ready = lead.reads.partition_point(|read| read.round <= confirmed);
        let reads: Vec<Read> = lead.reads.drain(..ready).collect();
        for read in reads {
            let header = self.read_header(read.frontend, ctx);
            ctx.query(read.batch, read.slot, true, read.frontend, &header);
        }
    }

    // ------------------------------------------------------------ the leader tells its log

    fn log_modification(&self, first: Slot, count: u64, round: u64) -> Part {
        let entries = self.log.iter_from(first).take(count as usize);
        Part::LogModification {
            first,
            stamps: entries.map(|(_, entry)| entry.stamp).collect(),
            commit: self.commit,
            round,
        }
    }

    /// Tells what has not been told yet, by the end of every turn; a leader's news wait a part of
    /// a round trip for company.
    pub(super) fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush_fast_replies(ctx);
        let sync = self.sync;
        if let Phase::Leader(lead) = &mut self.phase {
            if !lead.round_due && lead.told >= sync {
                return Wake::Sleep;
            }
            let (now, due) = (ctx.now(), lead.told_at + lead.gap);
            if lead.round_due {
                lead.round_due = false;
                lead.round += 1;
            } else if now < due && self.config.multicast {
                return Wake::At(due);
            }
            lead.told_at = now;
            if lead.told < sync && lead.timed.is_none() {
                lead.timed = Some((sync, now));
            }
            let round = lead.round;
            let mut first = lead.told.next();
            lead.told = sync;
            loop {
                if !self.config.multicast {
                    self.pass_on(first, STAMPS_MAX, ctx);
                }
                let part = self.log_modification(first, STAMPS_MAX, round);
                self.tell_others(part, ctx);
                first = Slot(first.0 + STAMPS_MAX);
                if first > sync {
                    break;
                }
            }
            self.slow_waiting.clear();
            if self.members == 1 {
                self.confirm_reads(ctx);
            }
        } else if matches!(self.phase, Phase::Follower) {
            self.flush_follower(ctx);
        }
        Wake::Sleep
    }

    fn flush_follower(&mut self, ctx: &mut Context<'_, Self>) {
        if !core::mem::take(&mut self.status_due) {
            return;
        }
        let (sync, round) = (self.sync_durable, self.round_heard);
        self.send(self.leader(), Part::LogStatus { sync, round }, ctx);
        let mut waiting = BTreeSet::new();
        while let Some((slot, frontend)) = self.slow_waiting.front().copied() {
            if slot > self.sync_durable {
                break;
            }
            self.slow_waiting.pop_front();
            waiting.insert(frontend);
        }
        for frontend in waiting {
            self.send_slow_reply(frontend, ctx);
        }
    }

    pub(super) fn tick_leader(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.is_ready() {
            return;
        }
        let sync = self.sync;
        let mut behind = Vec::new();
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        lead.round_due = true;
        for id in self.others.iter() {
            let follower = &mut lead.followers[id.index()];
            let stands = follower.sync == follower.sync_before;
            if follower.heard && follower.sync < lead.told && stands {
                follower.again = Slot(follower.sync.0 + STAMPS_MAX);
                behind.push((id, follower.sync.next()));
            }
            follower.sync_before = follower.sync;
        }
        let round = lead.round;
        for (id, first) in behind {
            if first < self.log.first() {
                self.send(id, Part::Trimmed(self.log.first()), ctx);
            } else if first <= sync {
                self.send(id, self.log_modification(first, STAMPS_MAX, round), ctx);
            }
        }
        let _ = self.flush(ctx);
        self.release(ctx);
    }

    pub(super) fn on_log_status(
        &mut self,
        from: ReplicaId,
        view: u64,
        sync: Slot,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let (ours, end) = (self.view, self.sync);
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        if view != ours || sync > end {
            return ctx.mark("ignored: status of another view");
        }
        let follower = &mut lead.followers[from.index()];
        follower.sync = follower.sync.max(sync);
        follower.round = follower.round.max(round.min(lead.round));
        follower.heard = true;
        follower.heard_at = ctx.arrived();
        let more = follower.again > Slot(0) && follower.sync >= follower.again;
        let first = follower.sync.next();
        if first > lead.told {
            follower.again = Slot(0);
        } else if more && first >= self.log.first() {
            // It went through a page of those that were sent again: the next one.
            follower.again = Slot(follower.sync.0 + STAMPS_MAX);
            let round = lead.round;
            self.send(from, self.log_modification(first, STAMPS_MAX, round), ctx);
        }
        self.count_syncs(ctx);
        self.confirm_reads(ctx);
    }

    /// What a majority has synced is committed.
    pub(super) fn count_syncs(&mut self, ctx: &mut Context<'_, Self>) {
        let majority = self.majority();
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        let mut syncs: SmallVec<[Slot; 9]> =
            lead.followers.iter().map(|known| known.sync).collect();
        syncs[self.id.index()] = self.sync_durable;
        syncs.sort_unstable_by(|a, b| b.cmp(a));
        let commit = syncs[majority - 1];
        if commit > self.commit {
            if let Some((_, at)) = lead.timed.take_if(|(slot, _)| *slot <= commit) {
                let trip = ctx.now().since(at).min(TRIP_MAX);
                lead.gap = (lead.gap * 3 + trip / GAPS) / 4;
            }
            self.advance_commit(commit, ctx);
            self.release(ctx);
        }
    }

    // ------------------------------------------------------------ the follower agrees with it

    pub(super) fn on_log_modification(
        &mut self,
        from: ReplicaId,
        view: u64,
        (first, stamps): (Slot, Vec<Stamp>),
        commit: Slot,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        if view < self.view {
            return ctx.mark("ignored: log of an old view");
        }
        if !self.heed_leader(from, view, ctx) {
            return;
        }
        self.heard_at = ctx.now();
        self.suspects.fill(None);
        for (slot, stamp) in (first.0..).map(Slot).zip(stamps) {
            if slot > self.sync && slot.0 <= self.sync.0 + PENDING_MAX {
                self.pending.insert(slot, stamp);
            }
        }
        self.round_heard = self.round_heard.max(round);
        self.commit_heard = self.commit_heard.max(commit);
        self.status_due = true;
        self.place_pending(ctx);
        self.ask_for_gap(ctx);
    }

    /// Slots that are missing before one that came are asked for at once, and once: when that is
    /// lost, too, the leader's next tick repeats all.
    fn ask_for_gap(&mut self, ctx: &mut Context<'_, Self>) {
        let next = self.sync.next();
        let Some(first) = self.pending.keys().next().copied() else {
            return;
        };
        if first <= next || self.gap_asked == next || !matches!(self.phase, Phase::Follower) {
            return;
        }
        self.gap_asked = next;
        ctx.mark("gap in the leader's log asked for");
        let (first, upto) = (next, first.previous());
        self.send(self.leader(), Part::Lacks { first, upto }, ctx);
    }

    /// A follower lacks what was said of these slots.
    pub(super) fn on_lacks(
        &self,
        from: ReplicaId,
        view: u64,
        (first, upto): (Slot, Slot),
        ctx: &mut Context<'_, Self>,
    ) {
        let Phase::Leader(lead) = &self.phase else {
            return;
        };
        if view != self.view || first > upto || upto > lead.told {
            return ctx.mark("ignored: a gap of another view");
        }
        if first < self.log.first() {
            return self.send(from, Part::Trimmed(self.log.first()), ctx);
        }
        let count = (upto.0 - first.0 + 1).min(STAMPS_MAX);
        self.send(from, self.log_modification(first, count, lead.round), ctx);
    }

    /// Gives slots to what the leader placed, as long as the batches are here.
    pub(super) fn place_pending(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.phase, Phase::Follower) {
            return;
        }
        while let Some(stamp) = self.pending.get(&self.sync.next()).copied() {
            if !self.place(stamp, ctx) {
                self.arm_fetch(ctx);
                break;
            }
            self.pending.remove(&self.sync);
        }
        let commit = self.commit_heard.min(self.sync);
        if commit > self.commit {
            self.advance_commit(commit, ctx);
        }
    }

    fn place(&mut self, stamp: Stamp, ctx: &mut Context<'_, Self>) -> bool {
        let slot = self.sync.next();
        let name = stamp.name;
        let mut moved = false;
        let mut entry = match self.known.get(&name).copied() {
            Some(Place::Unsynced(before)) => {
                moved = true;
                self.unsynced.remove(&before)
            }
            Some(Place::Early(before)) => {
                let waiting = self.early.remove(before);
                waiting.map(|(batch, footprint)| Entry::new(stamp, batch, footprint))
            }
            Some(Place::Late) => {
                ctx.mark("placed from the late buffer");
                let batch = self.late.remove(name);
                batch.and_then(|batch| self.entry_of(stamp.deadline, batch, ctx))
            }
            Some(Place::Slot(before)) => {
                // The leader had forgotten that it placed it before; sessions run it once.
                let batch = self.log.get(before).map(|entry| entry.batch.clone());
                batch.and_then(|batch| self.entry_of(stamp.deadline, batch, ctx))
            }
            None => None,
        };
        let Some(mut entry) = entry.take() else {
            return false;
        };
        if moved {
            if entry.stamp != stamp {
                ctx.mark("an entry with another deadline was taken over");
                if !self.planted(Plant::DeadlineNotInHash) {
                    self.hash.remove(entry.stamp, &entry.footprint);
                    self.hash.add(stamp, &entry.footprint);
                }
                entry.stamp = stamp;
            }
            entry.written = ctx.persist(slot, &Record::Moved(slot, stamp));
        } else {
            self.add_to_hash(&mut entry);
            let placed = Placed {
                deadline: stamp.deadline,
                batch: entry.batch.clone(),
            };
            entry.journal = slot;
            entry.written = ctx.persist(slot, &Record::Entry(slot, placed));
        }
        self.sync_writes.push_back((entry.written, slot));
        let footprint = entry.footprint.clone();
        self.put(slot, entry, ctx);
        for entry in self.take_barred(stamp, &footprint) {
            self.keep_late(entry.stamp.name, entry.batch, ctx);
        }
        true
    }

    /// What the leader can no longer put before the entry that it just placed leaves the log.
    pub(super) fn take_barred(
        &mut self,
        stamp: Stamp,
        footprint: &super::conflict::Footprint,
    ) -> Vec<Entry> {
        let time = time_of(stamp.deadline);
        let barred: Vec<Stamp> = self
            .unsynced
            .range(..stamp)
            .filter(|(known, entry)| {
                time_of(known.deadline) < time || entry.footprint.conflicts(footprint)
            })
            .map(|(known, _)| *known)
            .collect();
        let taken = barred.iter().filter_map(|stamp| {
            let entry = self.unsynced.remove(stamp)?;
            self.hash.remove(entry.stamp, &entry.footprint);
            self.known.remove(&stamp.name);
            Some(entry)
        });
        taken.collect()
    }

    fn arm_fetch(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.fetch_armed {
            self.fetch_armed = true;
            ctx.set_timer(Timer::Fetch, self.config.fetch_after);
        }
    }

    /// Asks for batches that the leader placed and that did not come.
    pub(super) fn fetch_missing(&mut self, ctx: &mut Context<'_, Self>) {
        self.fetch_armed = false;
        if !matches!(self.phase, Phase::Follower) {
            return;
        }
        let missing: Vec<Name> = self
            .pending
            .values()
            .filter(|stamp| !self.known.contains_key(&stamp.name))
            .map(|stamp| stamp.name)
            .take(NAMES_MAX)
            .collect();
        if missing.is_empty() {
            return self.place_pending(ctx);
        }
        // The leader has all of them; the others are asked in turn when it is silent.
        let turn = self.fetch_from % self.members as u16;
        let to = ReplicaId((self.leader().0 + turn) % self.members as u16);
        self.fetch_from = self.fetch_from.wrapping_add(1);
        if to != self.id {
            self.send(to, Part::Fetch(missing), ctx);
        }
        self.arm_fetch(ctx);
    }

    /// A batch that is held here, wherever.
    pub(super) fn body(&self, name: Name) -> Option<&Bytes> {
        match self.known.get(&name)? {
            Place::Slot(slot) => self.log.get(*slot).map(|entry| &entry.batch),
            Place::Unsynced(stamp) => self.unsynced.get(stamp).map(|entry| &entry.batch),
            Place::Early(stamp) => self.early.get(*stamp),
            Place::Late => self.late.get(name),
        }
    }

    pub(super) fn on_fetch(&self, from: ReplicaId, names: &[Name], ctx: &mut Context<'_, Self>) {
        let mut bytes = 0;
        let bodies: Vec<Bytes> = names
            .iter()
            .filter_map(|name| self.body(*name))
            .take_while(|body| {
                bytes += body.len();
                bytes <= PAGE_BYTES || bytes == body.len()
            })
            .cloned()
            .collect();
        let bytes: usize = bodies.iter().map(Bytes::len).sum();
        if !bodies.is_empty() && ctx.takes(from, bytes + PART_BYTES) {
            self.send(from, Part::Bodies(bodies), ctx);
        }
    }

    pub(super) fn on_bodies(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        let wanted: BTreeSet<Name> = self.pending.values().map(|stamp| stamp.name).collect();
        for batch in batches {
            let Some(name) = name_of(&batch) else {
                continue;
            };
            if let Phase::Changing(changing) = &mut self.phase {
                changing.bodies.insert(name, batch);
            } else if wanted.contains(&name) && !self.known.contains_key(&name) {
                ctx.mark("missing batch fetched");
                self.fetch_from = 0;
                self.keep_late(name, batch, ctx);
            } else if !self.config.multicast && !self.known.contains_key(&name) {
                // The leader sends it ahead of its place.
                self.keep_late(name, batch, ctx);
            }
        }
        if matches!(self.phase, Phase::Changing(_)) {
            self.maybe_merge(ctx);
        } else {
            self.place_pending(ctx);
        }
    }

    // ----------------------------------------------------------- what is committed is final

    pub(super) fn advance_commit(&mut self, commit: Slot, ctx: &mut Context<'_, Self>) {
        while self.commit < commit {
            let slot = self.commit.next();
            if self.executed < slot
                && let Some(entry) = self.log.get(slot)
            {
                let time = time_of(entry.stamp.deadline);
                ctx.execute(slot, time, entry.batch.clone(), None);
                self.executed = slot;
            }
            self.commit = slot;
            self.answer_committed(slot, ctx);
        }
        ctx.stable(self.commit);
        self.raise_base(Slot(self.commit.0 / HASH_SPAN * HASH_SPAN));
    }

    /// The watermarks of the log up to `slot`: those of its quantum, which is the last one.
    pub(super) fn marks_upto(&self, slot: Slot) -> Marks {
        let mut marks = self.marks_trimmed.clone();
        let time = |slot| (self.log.get(slot)).map(|entry| time_of(entry.stamp.deadline));
        let mut first = slot;
        while first > self.log.first() && time(first.previous()) == time(slot) {
            first = first.previous();
        }
        for (_, entry) in (self.log.iter_from(first)).take_while(|(at, _)| *at <= slot) {
            marks.note(entry.stamp, &entry.footprint);
        }
        marks
    }

    /// Leaves what is committed up to `base` out of the hashes.
    pub(super) fn raise_base(&mut self, base: Slot) {
        if base <= self.hash.base {
            return;
        }
        self.hash_above(base, self.log.first() <= base.next());
    }

    /// Begins the hashes anew above `base`, which no trimmed slot lies behind, or they are not
    /// `known`.
    pub(super) fn hash_above(&mut self, base: Slot, known: bool) {
        self.hash_trimmed = SetHash::above(base, self.planted(Plant::OneHashForAllKeys));
        self.hash_trimmed.known = known;
        self.count_hash();
    }

    /// The hashes of the log up to `slot`, above the base that is common there.
    fn hash_upto(&self, slot: Slot) -> SetHash {
        let base = Slot(slot.0 / HASH_SPAN * HASH_SPAN);
        let mut hash = self.hash_trimmed.clone();
        if base > hash.base {
            hash = SetHash::above(base, self.planted(Plant::OneHashForAllKeys));
            hash.known = self.log.first() <= base.next();
        }
        let entries = self.log.iter_from(hash.base.next());
        for (_, entry) in entries.take_while(|(at, _)| *at <= slot) {
            hash.add(entry.stamp, &entry.footprint);
        }
        hash
    }

    /// Goes on from the hashes that stand in a state up to `slot`, behind which the log begins.
    pub(super) fn hash_from(&mut self, told: SetHash, slot: Slot) {
        if !told.known || told.base > slot {
            // Of what the state covers only where it ends is known: at a common base that is
            // enough.
            return self.hash_above(slot, slot.0.is_multiple_of(HASH_SPAN));
        }
        self.hash_trimmed = told;
        self.hash_trimmed.same_for_all_keys = self.planted(Plant::OneHashForAllKeys);
        self.count_hash();
    }

    /// The hashes of all that is held here above their base.
    pub(super) fn count_hash(&mut self) {
        self.hash = self.hash_trimmed.clone();
        for (_, entry) in self.log.iter_from(self.hash.base.next()) {
            self.hash.add(entry.stamp, &entry.footprint);
        }
        for (stamp, entry) in &self.unsynced {
            self.hash.add(*stamp, &entry.footprint);
        }
    }

    /// What was added and removed one by one is the hash of what is held, looked at now and then.
    pub(super) fn assert_hash(&self) {
        let first = self.hash.base.next().max(self.log.first());
        let count = (self.sync.next().0 - first.0.min(self.sync.0)) as usize;
        let due = self.sync.0.is_multiple_of(16) && count + self.unsynced.len() <= HASH_CHECKED_MAX;
        if !self.hash.known || !due {
            return;
        }
        let mut counted = self.hash_trimmed.clone();
        counted.same_for_all_keys = false;
        for (_, entry) in self.log.iter_from(first) {
            counted.add(entry.stamp, &entry.footprint);
        }
        for (stamp, entry) in &self.unsynced {
            counted.add(*stamp, &entry.footprint);
        }
        assert!(self.hash.same_set(&counted), "the hash is of what is held");
    }

    // --------------------------------------------------------------- snapshots and trimming

    pub(super) fn checkpoint(&mut self, ctx: &mut Context<'_, Self>) {
        let marks = if self.is_leader() && self.executed == self.sync {
            self.marks.clone()
        } else if self.executed == self.commit {
            self.marks_upto(self.commit)
        } else {
            return;
        };
        let hash = self.hash_upto(self.executed);
        ctx.checkpoint(self.executed, &Summary { marks, hash });
    }

    /// Forgets what a durable snapshot covers; what hashes are still about stays in them.
    pub(super) fn trim(&mut self, ctx: &mut Context<'_, Self>) {
        let upto = self.checkpointed.min(self.commit);
        if upto >= self.log.first() {
            self.marks_trimmed = self.marks_upto(upto);
        }
        let (known, hash, first) = (&mut self.known, &mut self.hash_trimmed, self.log.first());
        let mut slot = first;
        self.log.trim(upto.next().max(first), |entry| {
            if slot > hash.base {
                hash.add(entry.stamp, &entry.footprint);
            }
            if known.get(&entry.stamp.name) == Some(&Place::Slot(slot)) {
                known.remove(&entry.stamp.name);
            }
            slot = slot.next();
        });
        let kept = self.log.iter_from(self.checkpointed.next());
        let journals = kept.map(|(_, entry)| entry.journal);
        let unsynced = self.unsynced.values().map(|entry| entry.journal);
        let oldest = journals.chain(unsynced).min();
        let below = self.checkpointed.next();
        ctx.trim(oldest.map_or(below, |oldest| oldest.min(below)));
    }

    /// The executor holds a peer's state: all up to `slot` is committed.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.give_up();
        if slot <= self.commit {
            return;
        }
        let ahead = self.sync > slot;
        let (known, first) = (&mut self.known, self.log.first());
        let mut at = first;
        self.log.trim(slot.next(), |entry| {
            if known.get(&entry.stamp.name) == Some(&Place::Slot(at)) {
                known.remove(&entry.stamp.name);
            }
            at = at.next();
        });
        if !ahead {
            self.log.reset(slot.next());
            self.sync = slot;
            self.sync_durable = slot;
        }
        self.sync_durable = self.sync_durable.max(slot);
        self.commit = slot;
        self.executed = slot;
        self.checkpointed = slot;
        self.marks_trimmed = summary.marks.clone();
        let mut marks = summary.marks;
        for (_, entry) in self.log.iter_from(slot.next()) {
            marks.note(entry.stamp, &entry.footprint);
        }
        for (stamp, entry) in &self.unsynced {
            marks.note(*stamp, &entry.footprint);
        }
        self.marks = marks;
        self.pending.retain(|at, _| *at > self.sync);
        self.slow_waiting.retain(|(at, _)| *at > slot);
        self.hash_from(summary.hash, slot);
        self.status_due = true;
        self.trim(ctx);
        match &mut self.phase {
            Phase::Changing(_) => self.maybe_merge(ctx),
            Phase::Joining(joining) => {
                // What was gathered followed the commit point that was.
                joining.gathered.clear();
                self.rejoin(ctx);
            }
            _ => self.place_pending(ctx),
        }
    }

    /// What this follower needs is no longer kept by its leader.
    pub(super) fn on_trimmed(
        &mut self,
        from: ReplicaId,
        view: u64,
        below: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let next = match self.phase {
            Phase::Follower => self.sync.next(),
            Phase::Joining(_) => self.commit.next(),
            _ => return,
        };
        if view != self.view || from != self.leader() || below <= next {
            return;
        }
        self.fetch(below.previous(), ctx);
    }

    pub(super) fn fetch(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        let (commit, others) = (self.commit, self.others);
        self.fetching.reached(commit);
        self.fetching.ask(at_least, commit, others, ctx);
    }

    /// The write behind which everything so far lies.
    pub(super) fn promise(&mut self, ctx: &mut Context<'_, Self>) -> PersistId {
        ctx.persist_promise(&self.promised())
    }
}
