//! Requests come in, are released at their deadlines, appended and answered.
//!
//! ```text
//!   Request ──► early buffer ──deadline──► append ──► leader: execute, results, LogModification
//!      │                                     │
//!      └─► late buffer ◄── not eligible      └─────► follower: FastReplies
//!               │                                        │
//!               └──────────── LogModification ──────────►│ same slots as the leader: SlowReply
//! ```

use super::{
    LogHash, Message, Nezha, Part, ReplyHeader,
    conflict::time_of,
    dom::{Name, Stamp},
    entry::{Entry, Place, footprint, name_of},
    replica::{Phase, Timer},
};
use quintet_replica::{BatchView, Bytes, Context, Deadline, FrontendId, Level, Slot, parts::Taken};

impl Nezha {
    pub(super) fn on_batch(
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
        let clock = self.receiver.on_request(frontend, (sent, deviation), ctx);
        if !self.is_ready() {
            if self.is_leader() || matches!(self.phase, Phase::Changing(_)) {
                // Its view begins soon. Followers on their way are not waited for.
                self.refuse(name, Taken::Refused, ctx);
            }
            return;
        }
        let deadline = if self.config.multicast {
            sent.saturating_add(bound)
        } else if self.is_leader() {
            clock
        } else {
            return self.refuse(name, Taken::Refused, ctx);
        };
        match self.log.place_of(name) {
            Some(Place::Slot(slot)) => return self.answer_again(name, slot, batch, ctx),
            Some(Place::Unsynced(stamp)) => return self.fast_reply(stamp, ctx),
            Some(Place::Early(_)) => return,
            // It comes again with another deadline, which may be in time.
            Some(Place::Late) => self.log.drop_late(name),
            None => {}
        }
        let footprint = footprint(&batch, self.config.commutativity, ctx);
        let entry = Entry::new(Stamp { deadline, name }, batch, footprint);
        self.take_in(entry, clock, self.hold_max(bound), ctx);
        self.release_upto(clock, ctx);
    }

    /// Tells a batch's sender that it was not taken.
    pub(super) fn refuse(&self, name: Name, taken: Taken, ctx: &mut Context<'_, Self>) {
        let (batch, view) = (name.batch, self.view.number());
        let message = Message::Taken { batch, taken, view };
        ctx.send_frontend(name.frontend, message);
    }

    /// How long a batch waits for its deadline at most. A leader knows that its clock and the
    /// sender's do not go together when the sender measured no delay in range, or when the batch
    /// was sent in its future: replicas would not agree in time then, and it need not wait. Only
    /// the leader can tell so, because the others follow it.
    fn hold_max(&self, bound: u64) -> u64 {
        let most = self.config.estimation().bound_max;
        match self.is_leader() && self.config.multicast {
            true if bound >= most => 0,
            true => bound.saturating_mul(2),
            false => most.saturating_mul(4),
        }
    }

    fn take_in(&mut self, mut entry: Entry, clock: u64, hold: u64, ctx: &mut Context<'_, Self>) {
        let too_far = entry.stamp.deadline > clock.saturating_add(hold);
        let bytes_max = self.config.buffer_bytes;
        let full = !self.log.takes_early(entry.batch.len(), bytes_max);
        if self.is_leader() {
            if full {
                return self.refuse(entry.stamp.name, Taken::Busy, ctx);
            }
            if too_far {
                // Only the leader shortens: each on its own would come to another deadline.
                ctx.mark("a deadline lay too far ahead");
                entry.stamp.deadline = clock;
            }
            if !self.log.admits(&entry) {
                ctx.mark("late at the leader");
                self.log.set_late_deadline(&mut entry);
            }
        } else if too_far || full || !self.log.admits(&entry) {
            // Were it to shorten a deadline itself, all would stay right: its hash tells the
            // deadline, and what it appends must be in order. It would only disagree.
            ctx.mark("late at a follower");
            return self.keep_late(entry.stamp.name, entry.batch, ctx);
        }
        let deadline = entry.stamp.deadline;
        self.receiver.holds(deadline, clock);
        // A batch that need not wait and has no other before it does not go through the buffer.
        let next = self.log.next_deadline();
        if deadline <= self.due(clock) && next.is_none_or(|next| deadline < next) && !self.is_full()
        {
            return self.append_any(entry, ctx);
        }
        self.log.keep_early(entry);
    }

    pub(super) fn keep_late(&mut self, name: Name, batch: Bytes, ctx: &mut Context<'_, Self>) {
        self.log.keep_late(name, batch, self.config.buffer_bytes);
        self.place_if_told(ctx);
    }

    // ---------------------------------------------------------------------------- releasing

    /// Appends what is due, in the order of deadlines.
    pub(super) fn release(&mut self, ctx: &mut Context<'_, Self>) {
        if self.is_ready() && self.log.next_deadline().is_some() {
            let clock = self.receiver.read_clock(ctx);
            self.release_upto(clock, ctx);
        }
    }

    /// Up to which deadline batches are released: a clock that was set back must not keep the
    /// leader from what its log has passed.
    fn due(&self, clock: u64) -> u64 {
        match self.is_leader() {
            true => clock.max(self.log.deadline_past()),
            false => clock,
        }
    }

    /// Whether a leader waits until more is committed.
    const fn is_full(&self) -> bool {
        self.is_leader() && self.log.sync().0 - self.log.commit().0 >= self.config.window
    }

    fn release_upto(&mut self, clock: u64, ctx: &mut Context<'_, Self>) {
        if !self.is_ready() {
            return;
        }
        loop {
            if self.is_full() {
                return;
            }
            let Some(entry) = self.log.release(self.due(clock)) else {
                break;
            };
            self.append_any(entry, ctx);
        }
        if let Some(deadline) = self.log.next_deadline()
            && self.receiver.arm_release(deadline)
        {
            ctx.set_timer_at(Timer::Release, Deadline::Clock(deadline));
        }
    }

    fn append_any(&mut self, entry: Entry, ctx: &mut Context<'_, Self>) {
        if self.is_leader() {
            self.log.append(entry, ctx);
            self.execute_next(ctx);
        } else {
            self.append_unsynced(entry, ctx);
        }
    }

    // --------------------------------------------------------------------------- the leader

    /// The leader executes the next slot before anybody else may have it.
    pub(super) fn execute_next(&mut self, ctx: &mut Context<'_, Self>) {
        let Some((slot, entry)) = self.log.next_to_execute() else {
            return;
        };
        let frontend = entry.stamp.name.frontend;
        let header = self.header_of(slot, entry, ctx);
        let (time, batch) = (time_of(entry.stamp.deadline), entry.batch.clone());
        let after = entry.written.max(self.view.ready_after());
        // Where the leader checks quorums, it answers what it knows to be committed.
        let reply = (!self.leader_checks()).then_some((frontend, header, Some(after)));
        ctx.execute(slot, time, batch, reply);
        self.log.executing(slot);
        self.check_quorum(slot, ctx);
    }

    fn header_of(&self, slot: Slot, entry: &Entry, ctx: &Context<'_, Self>) -> ReplyHeader {
        ReplyHeader {
            view: self.view.number(),
            slot,
            hash: LogHash::of(entry.hash, self.incarnations.hash()),
            bound: self.receiver.bound_for(entry.stamp.name.frontend, ctx),
        }
    }

    /// A batch that has its slot comes again.
    fn answer_again(&self, name: Name, slot: Slot, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self.is_leader() {
            return self.send_slow_reply(name.frontend, ctx);
        }
        if self.leader_checks() && slot > self.log.commit() {
            // It is answered when it is committed.
            return;
        }
        if let Some(entry) = self.log.get(slot) {
            ctx.mark("a known batch was answered again");
            self.answer(slot, entry, batch, ctx);
        }
    }

    /// Answers a batch that is executed.
    pub(super) fn answer(
        &self,
        slot: Slot,
        entry: &Entry,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        let header = self.header_of(slot, entry, ctx);
        let after = entry.written.max(self.view.ready_after());
        ctx.replay(batch, slot, entry.stamp.name.frontend, &header, Some(after));
    }

    // ---------------------------------------------------------------------------- followers

    /// A follower appends a batch beyond its sync-point and says so when it is durable.
    fn append_unsynced(&mut self, entry: Entry, ctx: &mut Context<'_, Self>) {
        let stamp = entry.stamp;
        let crowded = self.log.unsynced_len() as u64 >= self.config.window;
        if crowded || !self.log.admits(&entry) {
            ctx.mark("late at a follower");
            return self.keep_late(stamp.name, entry.batch, ctx);
        }
        let written = self.log.append_unsynced(entry, ctx);
        self.replies.fast_after(written, stamp);
        self.place_if_told(ctx);
    }

    pub(super) fn send_fast_replies(&mut self, ctx: &mut Context<'_, Self>) {
        while let Some(stamp) = self.replies.next_durable(self.persisted) {
            self.fast_reply(stamp, ctx);
        }
    }

    /// Says that a batch is in the log here, by the end of the turn together with others.
    fn fast_reply(&mut self, stamp: Stamp, ctx: &mut Context<'_, Self>) {
        let Some(entry) = self.log.find(stamp) else {
            return;
        };
        if entry.written > self.persisted {
            return;
        }
        let hash = LogHash::of(entry.hash, self.incarnations.hash());
        if self.leader_checks() {
            return self.send(self.view.leader(), Part::Appended(stamp.name, hash), ctx);
        }
        if self.replies.fast(stamp, hash) {
            self.flush_fast_replies(ctx);
        }
    }

    /// Replies of batches appended in this turn are sent now, in one message to each frontend.
    pub(super) fn flush_fast_replies(&mut self, ctx: &mut Context<'_, Self>) {
        for (frontend, appended) in self.replies.take_fast() {
            let message = Message::FastReplies {
                view: self.view.number(),
                bound: self.receiver.bound_for(frontend, ctx),
                appended,
            };
            ctx.send_frontend(frontend, message);
        }
    }

    pub(super) fn send_slow_reply(&self, frontend: FrontendId, ctx: &mut Context<'_, Self>) {
        if self.leader_checks() {
            return;
        }
        let message = Message::SlowReply {
            view: self.view.number(),
            incarnations: self.incarnations.hash(),
            sync: self.log.durable(),
            bound: self.receiver.bound_for(frontend, ctx),
        };
        ctx.send_frontend(frontend, message);
    }
}
