//! The batches behind a snapshot that is being fetched: kept by the donor, followed by the fetcher.

use super::*;
use crate::{Fed, Feed, FeedEnd, framed, framed_feed, transfer::Following};

/// A donor keeps batches of as many bytes as its last snapshot had, and of a small one this many,
/// but never more than its limit.
const KEPT_MIN: u64 = 64 << 20;
/// Bytes that an entry takes besides its batch.
const ENTRY: u64 = 64;

/// Batches that have been executed, in the order of their slots, and how much memory they take.
#[derive(Default)]
pub(super) struct Batches {
    queue: VecDeque<Fed>,
    bytes: u64,
}

impl Batches {
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps one, unless nothing is in it.
    pub(super) fn push(&mut self, slot: Slot, time: crate::CommandTime, batch: &Bytes) {
        if !batch.is_empty() {
            let batch = batch.clone();
            self.bytes += batch.len() as u64 + ENTRY;
            self.queue.push_back(Fed { slot, time, batch });
        }
    }

    pub(super) fn pop(&mut self) -> Option<Fed> {
        let oldest = self.queue.pop_front()?;
        self.bytes -= oldest.batch.len() as u64 + ENTRY;
        Some(oldest)
    }

    pub(super) fn roll_back(&mut self, slot: Slot) {
        let undone = self.queue.partition_point(|fed| fed.slot <= slot);
        for fed in self.queue.drain(undone..) {
            self.bytes -= fed.batch.len() as u64 + ENTRY;
        }
    }

    /// The next part of those above a slot.
    pub(super) fn part(&self, after: Slot, upto: Slot) -> Feed {
        let first = self.queue.partition_point(|fed| fed.slot <= after);
        Feed::part(after, upto, self.queue.range(first..))
    }
}

/// The batches that a donor executes while a peer fetches from it.
pub(super) struct Ring {
    /// Everything executed after this slot is here.
    from: Slot,
    batches: Batches,
    bytes_max: u64,
    asked_at: Time,
    /// The protocol's latest state for continuing from a slot.
    summary: Option<FeedEnd>,
}

impl Ring {
    pub(super) fn roll_back(&mut self, slot: Slot) {
        self.batches.roll_back(slot);
        self.summary.take_if(|end| end.executed.slot > slot);
    }
}

impl Node {
    /// From now on executed batches are kept; gives the slot after which they are.
    pub(super) fn keep_feed(&mut self, world: &dyn World) -> Slot {
        let now = world.now();
        let executed = self.executor.progress();
        let bytes_max = self.snapshot_last.max(KEPT_MIN).min(self.feed_bytes_max);
        let ring = self.ring.get_or_insert_with(|| {
            Box::new(Ring {
                from: executed,
                batches: Batches::default(),
                bytes_max,
                asked_at: now,
                summary: None,
            })
        });
        ring.asked_at = now;
        ring.bytes_max = bytes_max;
        ring.from
    }

    /// Drops batches that no fetcher asks for any more.
    pub(super) fn drop_unused_feed(&mut self, world: &dyn World) {
        let now = world.now();
        let learner = self.learner();
        if learner.is_some_and(|learner| self.succession.is_linked(learner)) {
            // It would have to fetch the state again if its donor died.
            return;
        }
        self.ring
            .take_if(|ring| now >= ring.asked_at + transfer::FEED_KEPT);
    }

    /// A batch is being executed while a fetcher may want it later.
    pub(super) fn keep_for_followers(
        &mut self,
        slot: Slot,
        time: crate::CommandTime,
        batch: &Bytes,
        world: &dyn World,
    ) {
        self.drop_unused_feed(world);
        let Some(ring) = &mut self.ring else {
            return;
        };
        if self.injected.is(Bug::FeedSkipsABatch) && slot.0.is_multiple_of(16) {
            return;
        }
        ring.batches.push(slot, time, batch);
        let bytes_max = match self.injected.is(Bug::FeedIsNotKept) {
            true => 0,
            false => ring.bytes_max,
        };
        while ring.batches.bytes() > bytes_max
            && let Some(oldest) = ring.batches.pop()
        {
            ring.from = oldest.slot;
        }
    }

    /// The protocol has said how it would continue from here; true when only followers wanted to
    /// know.
    pub(super) fn sum_up(&mut self, slot: Slot, summary: &Bytes) -> bool {
        if !self.summing_up {
            return false;
        }
        let executed = Executed {
            slot: self.executor.progress(),
            ..self.executor.executed()
        };
        if let Some(ring) = &mut self.ring
            && executed.slot == slot
        {
            ring.summary = Some(FeedEnd {
                executed,
                time: self.executor.time(),
                summary: summary.clone(),
            });
        }
        true
    }

    pub(super) fn give_feed(
        &mut self,
        to: ReplicaId,
        after: Slot,
        end: bool,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let kept_from = self.keep_feed(world);
        let wrong = self.digests.status().is_minority();
        if after < kept_from || self.installing.is_some() || wrong {
            return self.send_transfer(to, Lane::Control, &TransferMessage::Gone, out);
        }
        // As much as the link takes beside what else it carries.
        let room = (world.room(to) / 4).min(transfer::WINDOW_MAX as usize);
        let (mut after, mut given) = (after, 0);
        loop {
            let stable = self.executor.stable();
            let Some(mut feed) = self.feed_part(after, stable) else {
                return self.send_transfer(to, Lane::Control, &TransferMessage::Gone, out);
            };
            let last = feed.upto >= stable;
            if last && end {
                feed = self.feed_end(feed, world, out);
            }
            if given == 0 && !world.takes(to, feed.bytes()) {
                // The answer to the question before may still be queued: this one comes again.
                return;
            }
            given += feed.bytes();
            let more = !last && given < room;
            after = feed.upto;
            self.send_transfer(
                to,
                Lane::Bulk,
                &TransferMessage::Batches { feed, more },
                out,
            );
            if !more {
                return;
            }
        }
    }

    /// The last part of a feed, with its end if that can be had: the protocol is asked how it would
    /// continue from here, unless it was asked at a slot that has only now become final.
    fn feed_end(&mut self, feed: Feed, world: &dyn World, out: &mut Vec<Output>) -> Feed {
        let (after, upto) = (feed.after, feed.upto);
        let known = |ring: &Ring| {
            let end = ring.summary.as_ref();
            end.is_some_and(|end| end.executed.slot > after || end.executed.slot == upto)
        };
        if !self.ring.as_deref().is_some_and(known) {
            self.summing_up = true;
            let due = Event::Control(Control::CheckpointDue);
            self.events.push_back(due);
            self.carry_out(world, out);
            self.summing_up = false;
        }
        let stable = self.executor.stable();
        let end = self.ring.as_ref().and_then(|ring| ring.summary.clone());
        let covered = |end: &FeedEnd| (after..=stable).contains(&end.executed.slot);
        let Some(end) = end.filter(covered) else {
            return feed;
        };
        match self.feed_part(after, end.executed.slot) {
            Some(mut last) if last.upto == end.executed.slot => {
                last.end = Some(end);
                last
            }
            Some(part) => part,
            None => feed,
        }
    }

    /// The next part of what was executed after a slot; none when it is no longer kept.
    fn feed_part(&self, after: Slot, upto: Slot) -> Option<Feed> {
        let ring = self.ring.as_ref().filter(|ring| ring.from <= after)?;
        Some(ring.batches.part(after, upto.max(after)))
    }

    /// Whether batches behind a snapshot are being asked for.
    pub(super) fn follows(&self) -> bool {
        let fetch = self.fetch.as_ref();
        fetch.is_some_and(|fetch| fetch.following.is_some())
    }

    /// The snapshot is here but for its end: what was executed since is asked for, and the state is
    /// restored meanwhile.
    pub(super) fn begin_following(&mut self, id: Executed, begin: u64, world: &dyn World) {
        let Some(fetch) = &mut self.fetch else { return };
        fetch.following = Some(Following::new(id.slot, begin));
        fetch.ask_again();
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.appended = begin;
            unfinished.written = unfinished.written.min(begin);
        }
        // Batches executed ahead of their commit are replaced in one go, when all are there.
        if !self.executor.speculates() {
            let info = SnapshotInfo { id, length: begin };
            self.begin_install(info, id.slot, Source::Arriving, world);
        }
    }

    /// Whether what has come will soon have been restored and executed.
    fn is_near_end(&self) -> bool {
        let arriving = |it: &Installing| it.source == Source::Arriving;
        if !self.installing.as_ref().is_some_and(arriving) {
            return true;
        }
        let appended = self.unfinished.as_ref().map_or(0, |file| file.appended);
        let left = appended.saturating_sub(self.executor.restored_bytes());
        left / transfer::END_NEAR <= self.restore_step as u64
    }

    pub(super) fn ask_for_feed(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let (near, now) = (self.is_near_end(), world.now());
        let Some((fetch, file)) = self.fetch.as_mut().zip(self.unfinished.as_ref()) else {
            return;
        };
        if let Some(message) = fetch.next_follow(file.written, near, now) {
            let donor = fetch.donor();
            self.send_transfer(donor, Lane::Control, &message, out);
        }
    }

    pub(super) fn on_follow_timer(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let Some(fetch) = &mut self.fetch else { return };
        if fetch.is_waiting() && world.now() >= fetch.retry_at {
            fetch.ask_on();
            if !fetch.waits_on() {
                self.end_following(None, out);
            }
        }
        // Looks after what is saved, and after what the protocol wants beyond it.
        self.ask_donor(world, out);
    }

    pub(super) fn on_feed(
        &mut self,
        from: ReplicaId,
        mut feed: Feed,
        more: bool,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.succession.is_learning() {
            return self.on_learned(from, feed, more, world, out);
        }
        let fetch = self.fetch.as_mut().filter(|fetch| fetch.is_from(from));
        let Some(fetch) = fetch else { return };
        let (Some(following), Some(unfinished)) = (&mut fetch.following, &mut self.unfinished)
        else {
            return;
        };
        if feed.after != following.after {
            // It comes twice, as the way there and back is longer than the timeout: proof that the
            // peer runs.
            fetch.on_answer();
            return;
        }
        let has_end = feed.end.is_some();
        if feed.upto < fetch.at_least {
            // The protocol wants more than that by now.
            feed.end = None;
        }
        let progress = feed.upto > feed.after;
        let is_last = !more || !progress;
        let waits = is_last && feed.end.is_none() && (following.end_asked || !progress);
        if waits {
            // A donor that is behind what is wanted here and comes nearer does what it can.
            following.pause(world.now(), !has_end || !progress);
        }
        if progress || feed.end.is_some() {
            let part = framed_feed(&feed);
            following.after = feed.upto;
            following.bytes += part.len() as u64;
            unfinished.appended += part.len() as u64;
            out.push(Output::SnapshotAppend(part));
        }
        // It is on disk, and may be much: as long as it comes, the state need not come again.
        let most = transfer::FEED_TIMES * self.feed_bytes_max.max(following.begin);
        let continues = following.bytes <= most && following.continues();
        fetch.on_answer();
        if is_last {
            fetch.ask_on();
        }
        if let Some(end) = feed.end {
            return self.end_following(Some(end), out);
        }
        if !continues {
            return self.end_following(None, out);
        }
        self.ask_donor(world, out);
    }

    pub(super) fn on_feed_gone(
        &mut self,
        from: ReplicaId,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.succession.is_learning() {
            return self.on_nothing_to_learn(from, world, out);
        }
        let fetch = self.fetch.as_ref().filter(|fetch| fetch.is_from(from));
        if fetch.is_some_and(|fetch| fetch.following.is_some()) {
            self.end_following(None, out);
        }
    }

    /// Ends the snapshot, with what followed it if that came to an end; else it stands alone.
    fn end_following(&mut self, end: Option<FeedEnd>, out: &mut Vec<Output>) {
        let Some(fetch) = &mut self.fetch else { return };
        let (Some(following), Some(unfinished)) = (fetch.following.take(), &mut self.unfinished)
        else {
            return;
        };
        if let Some(end) = end {
            fetch.fed_upto = end.executed.slot;
            if let Some(installing) = &mut self.installing {
                installing.reach = end.executed.slot;
            }
            out.push(Output::Mark("state followed by what was executed since"));
        } else {
            if following.bytes > 0 {
                // It is restored once more, from its file, without what has been executed.
                out.push(Output::SnapshotTruncate(following.begin));
                unfinished.appended = following.begin;
                unfinished.written = unfinished.written.min(following.begin);
                self.lose_source();
            }
            out.push(Output::Mark(
                "state fetched without what was executed since",
            ));
        }
        let Some(unfinished) = &mut self.unfinished else {
            return;
        };
        let last = framed(&[]);
        unfinished.appended += last.len() as u64;
        unfinished.kind = Under::Fetched { whole: true };
        out.push(Output::SnapshotAppend(last));
        out.push(Output::SnapshotFinish);
    }
}
