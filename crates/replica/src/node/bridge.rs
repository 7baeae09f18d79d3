//! A bridge: a snapshot made ahead of a change, so that the next epoch need not wait for its first
//! state to be written.
//!
//! ```text
//!   a change is wanted ──► │ head │ state … state │ batch … batch      a file that stays unfinished
//!                                 as it was then    executed since
//!   the epoch ends     ──►                          … the last ones, an end │ ──► durable
//! ```
//!
//! The file is of the epoch that has ended, and leads to where the next one begins: it is named for
//! that. A replica that finds only this file restores it and executes the batches behind it as it did
//! in the earlier epoch. No peer gets it; once the next epoch runs, its first state is saved as usual.
//!
//! The member at which a change is asked for asks all members again and again until they are ready.
//! A member need not be: one without a bridge writes its whole state when the epoch has ended.

use super::feed::Batches;
use super::*;
use crate::{Feed, FeedEnd, framed, framed_feed};

/// A member that is not asked any more for so long gives its file up.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// An epoch's first state that could not be saved is written again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Once a majority is ready, the others are waited for so long.
const OTHERS_WAIT: Duration = Duration::from_secs(10);
/// A word counts for so long.
const WORD_COUNTS: Duration = Duration::from_secs(1);
/// One that has made no progress for so long is not waited for.
const STALLED_AFTER: Duration = Duration::from_secs(5);
/// A part of the batches that goes into the file has at least this number of bytes.
const PART_MIN: u64 = 256 << 10;
/// No more of them wait in memory, unless the last snapshot was longer.
const WAITING_MAX: u64 = 64 << 20;
/// They are no more than this, or than the state: a restart would take too long.
const BATCHES_MAX: u64 = 256 << 20;

/// A bridge until its end is handed over.
pub(super) struct Bridge {
    /// All of the state has been handed over.
    whole: bool,
    /// Batches up to this slot have been handed over.
    after: Slot,
    /// Those executed since.
    pub(super) batches: Batches,
    /// The length of the state, and of the batches handed over.
    state: u64,
    following: u64,
    /// Bytes of batches that no snapshot covers if it is given up.
    uncovered: u64,
    given_up_at: Time,
}

impl Bridge {
    fn is_too_long(&self, waiting_max: u64) -> bool {
        self.batches.bytes() > waiting_max || self.following > BATCHES_MAX.max(self.state)
    }

    /// The next part of the batches up to a slot.
    fn take_part(&mut self, upto: Slot) -> Feed {
        let part = self.batches.part(self.after, upto);
        for _ in &part.batches {
            self.batches.pop();
        }
        self.after = part.upto;
        part
    }
}

/// A member's word on its bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BridgeWord {
    /// The receiver is to make one, and to say how far it is.
    asks: bool,
    /// The end of the epoch may come.
    ready: bool,
    /// How many bytes have been written.
    written: u64,
}

impl Wire for BridgeWord {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.bool(self.asks);
        writer.bool(self.ready);
        writer.u64(self.written);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            asks: reader.bool("asks")?,
            ready: reader.bool("ready")?,
            written: reader.u64("written")?,
        })
    }
}

/// The last word of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    ready: bool,
    /// When it came.
    heard_at: Time,
    /// The most that it had written.
    written: u64,
    /// When it had more than before.
    grown_at: Time,
}

impl Told {
    fn is_ready(&self, now: Time) -> bool {
        self.ready && now < self.heard_at + WORD_COUNTS
    }
}

impl Node {
    /// A change to an epoch of this durability is wanted: all members save their state ahead. To be
    /// called again and again; true once all that are linked are ready, or cannot become so.
    pub fn prepare_change(
        &mut self,
        next: Durability,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> bool {
        // Into memory, people may need a whole state, which a bridge is not.
        if next == Durability::Memory || self.halted || self.disk.is_hung() {
            return true;
        }
        self.begin_bridge(world, out);
        let now = world.now();
        let ours = self.bridge_word(false);
        self.note_bridge_word(self.id, ours, now);
        let peers = ReplicaSet(self.holders().0 & self.linked().0);
        let all = peers.with(self.id);
        let (mut ready, mut awaited) = (ReplicaSet::EMPTY, ReplicaSet::EMPTY);
        for member in all.iter() {
            let first = Told {
                grown_at: now,
                ..Told::default()
            };
            let told = self.succession.told.entry(member).or_insert(first);
            if told.is_ready(now) {
                ready.insert(member);
            } else if now < told.grown_at + STALLED_AFTER {
                awaited.insert(member);
            }
        }
        self.send_bridge_word(peers, true, out);
        // The next epoch can begin with a majority, and the others come after.
        let enough = self.voters.is_majority(ready);
        let since = &mut self.succession.enough_since;
        *since = enough.then(|| since.unwrap_or(now));
        awaited.is_empty() || since.is_some_and(|since| now >= since + OTHERS_WAIT)
    }

    /// Another change is wanted: words on an earlier one do not count.
    pub fn forget_preparations(&mut self) {
        self.succession.told.clear();
        self.succession.enough_since = None;
    }

    fn note_bridge_word(&mut self, member: ReplicaId, word: BridgeWord, now: Time) {
        let told = self.succession.told.entry(member).or_default();
        if told.heard_at == Time(0) || word.written > told.written {
            (told.written, told.grown_at) = (word.written, now);
        }
        (told.ready, told.heard_at) = (word.ready, now);
    }

    /// How many bytes of its state this member has saved ahead of a change, and whether that is all.
    #[must_use]
    pub fn saved_ahead(&self) -> (u64, bool) {
        let word = self.bridge_word(false);
        (word.written, word.ready)
    }

    fn bridge_word(&self, asks: bool) -> BridgeWord {
        let unfinished = self.unfinished.as_ref();
        let bridge = unfinished.and_then(|it| Some((it.written, it.bridge.as_ref()?)));
        BridgeWord {
            asks,
            ready: match bridge {
                Some((written, bridge)) => bridge.whole && written >= bridge.state,
                None => self.is_saved_soon(),
            },
            written: unfinished.map_or(0, |it| it.written),
        }
    }

    /// Whether the whole state is written in no time.
    fn is_saved_soon(&self) -> bool {
        // Not all machines tell how much they take.
        self.executor.memory().max(self.snapshot_last) < self.bridge_bytes_min
    }

    fn send_bridge_word(&mut self, to: ReplicaSet, asks: bool, out: &mut Vec<Output>) {
        if to.is_empty() {
            return;
        }
        let word = self.bridge_word(asks);
        let mut writer = Writer::new(&mut self.scratch);
        word.encode(&mut writer);
        let frame = writer.finish();
        out.push(Output::Send {
            to: Recipients::Replicas(to),
            lane: Lane::Control,
            frame: self.wrap(FrameKind::Bridge, frame),
        });
    }

    pub(super) fn on_bridge_word(
        &mut self,
        from: ReplicaId,
        word: BridgeWord,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        self.note_bridge_word(from, word, world.now());
        if word.asks {
            self.begin_bridge(world, out);
            self.send_bridge_word(ReplicaSet::EMPTY.with(from), false, out);
        }
    }

    /// Begins to save the state ahead of a change, unless something else is being saved.
    fn begin_bridge(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let given_up_at = world.now() + KEPT_FOR;
        if let Some(unfinished) = &mut self.unfinished {
            if let Some(bridge) = &mut unfinished.bridge {
                bridge.given_up_at = given_up_at;
            }
            return;
        }
        let is_busy = self.fetch.is_some() || self.installing.is_some();
        let serves = !self.is_between_epochs() || self.succession.is_learning();
        let is_of_use = !self.is_saved_soon();
        let is_open = !self.executor.has_seal() && !self.unordered;
        let has_failed = world.now() < self.succession.bridges_from;
        if is_busy || !serves || !is_of_use || !is_open || has_failed {
            return;
        }
        let uncovered = self.executor.bytes_since_snapshot();
        let slot = self.executor.progress();
        out.push(Output::Mark("state saved ahead of a change"));
        let file = self.open_file(Under::Bridge, slot, Bytes::new(), out);
        file.bridge = Some(Box::new(Bridge {
            whole: false,
            after: slot,
            batches: Batches::default(),
            state: file.appended,
            following: 0,
            uncovered,
            given_up_at,
        }));
        // As for any snapshot, a small state must be copied before the next command.
        self.append_bridged_state(out);
    }

    fn append_bridged_state(&mut self, out: &mut Vec<Output>) -> bool {
        let Some(unfinished) = &mut self.unfinished else {
            return false;
        };
        let Some(bridge) = &mut unfinished.bridge else {
            return false;
        };
        let (mut chunk, progress) = self.executor.snapshot_chunk(SNAPSHOT_STEP);
        if progress == SnapshotProgress::Done {
            bridge.whole = true;
            // Its end comes behind the batches.
            chunk.truncate(chunk.len() - crate::FRAME_HEAD);
        }
        unfinished.appended += chunk.len() as u64;
        bridge.state = unfinished.appended;
        out.push(Output::SnapshotAppend(chunk));
        !bridge.whole
    }

    /// Hands on what can be; true when more could follow at once.
    pub(super) fn step_bridge(&mut self, world: &dyn World, out: &mut Vec<Output>) -> bool {
        let Some(unfinished) = &mut self.unfinished else {
            return false;
        };
        let Some(bridge) = &mut unfinished.bridge else {
            return false;
        };
        let has_ended = self.executor.has_seal();
        let now = world.now();
        let waiting_max = self.snapshot_last.max(WAITING_MAX).min(self.feed_bytes_max);
        let is_too_long = bridge.is_too_long(waiting_max);
        if !has_ended && (now >= bridge.given_up_at || is_too_long) {
            out.push(Output::Mark("state saved ahead of a change given up"));
            if is_too_long {
                self.succession.bridges_from = now + KEPT_FOR;
            }
            self.give_up_bridge(out);
            return false;
        }
        let is_slow = unfinished.appended - unfinished.written > SNAPSHOT_AHEAD_MAX;
        if is_slow {
            return false;
        }
        if !bridge.whole {
            return self.append_bridged_state(out);
        }
        // Nothing behind the end of the epoch goes in, and nothing yet that can be undone.
        let stable = self.executor.stable();
        if has_ended || bridge.batches.bytes() < PART_MIN || bridge.after >= stable {
            return false;
        }
        let part = framed_feed(&bridge.take_part(stable));
        bridge.following += part.len() as u64;
        unfinished.appended += part.len() as u64;
        out.push(Output::SnapshotAppend(part));
        false
    }

    pub(super) fn note_failed_bridge(&mut self, now: Time) {
        let bridge = self.unfinished.as_ref().and_then(|it| it.bridge.as_ref());
        if let Some(bridge) = bridge {
            self.executor.count_uncovered(bridge.uncovered);
            self.succession.bridges_from = now + KEPT_FOR;
        }
        if self.succession.bridged {
            self.succession.bridges_from = now + AGAIN_AFTER;
        }
    }

    /// All above a slot is undone.
    pub(super) fn roll_back_bridge(
        &mut self,
        slot: Slot,
        keeps_state: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(file) = &mut self.unfinished else {
            return;
        };
        let Some(bridge) = &mut file.bridge else {
            return;
        };
        bridge.batches.roll_back(slot);
        if file.id.slot > slot || !(bridge.whole || keeps_state) {
            self.give_up_bridge(out);
        }
    }

    /// The bridge is not wanted any more.
    pub(super) fn give_up_bridge(&mut self, out: &mut Vec<Output>) {
        let given_up = self.unfinished.take_if(|it| it.bridge.is_some());
        let Some(bridge) = given_up.and_then(|it| it.bridge) else {
            return;
        };
        if !bridge.whole {
            self.executor.abandon_snapshot();
        }
        self.executor.count_uncovered(bridge.uncovered);
        out.push(Output::SnapshotAbandon);
    }

    /// Whether the file that is being saved is a bridge to there.
    pub(super) fn bridges_to(&self, base: Executed) -> bool {
        let file = self.unfinished.as_ref();
        file.is_some_and(|it| it.id == base && it.kind == Under::Bridge)
    }

    /// Takes the bridge if it leads to the end of this epoch.
    pub(super) fn take_bridge(&mut self) -> Option<Unfinished> {
        let end = self.sealed()?.base.slot;
        let leads = |it: &mut Unfinished| {
            let bridge = it.bridge.as_ref();
            it.id.slot <= end && bridge.is_some_and(|bridge| bridge.whole && bridge.after <= end)
        };
        self.unfinished.take_if(leads)
    }

    /// The epoch has begun to whose beginning this file leads, with the last batches of the one
    /// before.
    pub(super) fn finish_bridge(
        &mut self,
        mut file: Unfinished,
        end: FeedEnd,
        out: &mut Vec<Output>,
    ) {
        let Some(bridge) = &mut file.bridge else {
            return;
        };
        loop {
            let mut part = bridge.take_part(end.executed.slot);
            let is_last = part.upto == end.executed.slot;
            part.end = is_last.then(|| end.clone());
            let part = framed_feed(&part);
            file.appended += part.len() as u64;
            out.push(Output::SnapshotAppend(part));
            if is_last {
                break;
            }
        }
        file.bridge = None;
        let last = framed(&[]);
        file.appended += last.len() as u64;
        file.id = self.executor.base();
        out.push(Output::SnapshotAppend(last));
        out.push(Output::SnapshotBridges { base: file.id });
        out.push(Output::SnapshotFinish);
        out.push(Output::Mark("epoch begins with a state saved ahead"));
        self.unfinished = Some(file);
    }

    /// Such a file leads to the first state of this epoch, which is saved as any other as long as
    /// nothing has been executed since. Later the protocol is asked for a checkpoint.
    pub(super) fn save_bridged_state(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let is_due = self.succession.bridged && world.now() >= self.succession.bridges_from;
        let is_first = self.executor.progress() == self.executor.base().slot;
        if is_due && is_first && !self.is_learner() && self.unfinished.is_none() {
            self.begin_snapshot(self.executor.base().slot, Bytes::new(), out);
        }
    }
}
