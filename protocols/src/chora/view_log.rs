//! The log of one replica: appended, verified, durable, committed and executed.
//!
//! ```text
//!   buffered ──(no hole before it)──► appended, written ──(durable)──► acknowledged
//!
//!        first ≤ committed ≤ verified ≤ last
//! ```
//!
//! The log has no holes: what comes too early waits in the buffer, and what stands in the log
//! counts for being up to date. Slots and executions are counted apart: a slot may hold several
//! batches; one with none counts once.

use super::Value;
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use quintet_replica::{CommandTime, PersistId, Slot, parts::SlotLog};

/// The value of a slot, with the view that it was proposed in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub view: u64,
    pub value: Value,
}

impl Held {
    /// About what it takes in memory.
    fn bytes(&self) -> usize {
        self.value.bytes() + size_of::<Self>()
    }
}

/// Checkpoints in progress that are remembered.
const CHECKPOINTS_MAX: usize = 64;

/// See the module.
#[derive(Hash)]
pub(super) struct ViewLog {
    /// Without holes.
    slots: SlotLog<Held>,
    bytes: usize,
    /// The view of the slot before the log's first, and what was executed up to there.
    anchor: (u64, Slot),
    /// Up to here the log is that of the view's initiator.
    verified: Slot,
    durable: Slot,
    writes: VecDeque<(PersistId, Slot)>,
    /// Proposals of this view that cannot be appended yet.
    buffer: BTreeMap<Slot, Value>,
    committed: Slot,
    /// How many batches were handed over to be executed, and how many are.
    executed: Slot,
    executed_done: Slot,
    /// The last slot whose batches were handed over.
    executed_slot: Slot,
    time_seen: CommandTime,
    time_executed: CommandTime,
    /// The number of executed slots at each checkpoint, and the slot.
    checkpoints: VecDeque<(Slot, Slot)>,
}

impl Default for ViewLog {
    fn default() -> Self {
        Self {
            slots: SlotLog::default(),
            bytes: 0,
            anchor: (0, Slot(0)),
            verified: Slot(0),
            durable: Slot(0),
            writes: VecDeque::new(),
            buffer: BTreeMap::new(),
            committed: Slot(0),
            executed: Slot(0),
            executed_done: Slot(0),
            executed_slot: Slot(0),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
            checkpoints: VecDeque::new(),
        }
    }
}

/// Where it stands.
impl ViewLog {
    pub const fn first(&self) -> Slot {
        self.slots.first()
    }

    pub fn end(&self) -> Slot {
        self.slots.end()
    }

    /// The slot before the first empty one.
    pub fn last(&self) -> Slot {
        self.end().previous()
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn get(&self, slot: Slot) -> Option<&Held> {
        self.slots.get(slot)
    }

    pub fn iter_from(&self, from: Slot) -> impl Iterator<Item = (Slot, &Held)> {
        self.slots.iter_from(from)
    }

    /// The view attached to a slot that is held, or to the last one that was trimmed.
    pub fn view_of(&self, slot: Slot) -> Option<u64> {
        if slot.next() == self.first() {
            Some(self.anchor.0)
        } else {
            self.get(slot).map(|held| held.view)
        }
    }

    pub fn last_view(&self) -> u64 {
        self.view_of(self.last()).unwrap_or(0)
    }

    /// The number of executed slots up to the last slot that was trimmed.
    pub const fn anchor_executed(&self) -> Slot {
        self.anchor.1
    }

    /// Where each view of the log begins, for followers to compare.
    pub fn runs(&self, below: Slot) -> Vec<(Slot, u64)> {
        let mut runs = alloc::vec![(self.first().previous(), self.anchor.0)];
        for (slot, held) in self.iter_from(self.first()) {
            if slot >= below {
                break;
            }
            if runs.last().is_none_or(|(_, view)| *view < held.view) {
                runs.push((slot, held.view));
            }
        }
        runs
    }

    pub const fn verified(&self) -> Slot {
        self.verified
    }

    pub const fn durable(&self) -> Slot {
        self.durable
    }

    pub const fn committed(&self) -> Slot {
        self.committed
    }

    /// How many batches were handed over to be executed.
    pub const fn executed(&self) -> Slot {
        self.executed
    }

    pub const fn time_seen(&self) -> CommandTime {
        self.time_seen
    }

    pub const fn time_executed(&self) -> CommandTime {
        self.time_executed
    }
}

/// Appending, verifying and voting.
impl ViewLog {
    /// Appends an entry, which the caller writes.
    pub fn append(&mut self, held: Held) {
        if let Value::Commands { time, .. } = &held.value {
            self.time_seen = self.time_seen.max(*time);
        }
        self.put(held);
    }

    fn put(&mut self, held: Held) {
        self.bytes += held.bytes();
        self.slots.set(self.slots.end(), held);
    }

    /// The last entry is durable at once.
    pub fn vote_now(&mut self) {
        self.durable = self.last();
    }

    /// The last entry is durable with that write.
    pub fn vote_after(&mut self, write: PersistId) {
        self.writes.push_back((write, self.last()));
    }

    /// All writes up to this one are durable. True when more slots are than before.
    pub fn durable_up_to(&mut self, upto: PersistId) -> bool {
        let mut voted = false;
        while let Some((id, slot)) = self.writes.front().copied() {
            if id > upto {
                break;
            }
            self.writes.pop_front();
            if slot > self.durable {
                self.durable = slot;
                voted = true;
            }
        }
        voted
    }

    /// Clears all from this slot on: it lost, or it cannot be committed anywhere.
    pub fn truncate(&mut self, from: Slot) {
        assert!(from > self.committed, "what is committed stays");
        let cleared = self.slots.iter_from(from);
        self.bytes -= cleared.map(|(_, held)| held.bytes()).sum::<usize>();
        self.slots.truncate(from);
        let last = from.previous();
        self.durable = self.durable.min(last);
        self.verified = self.verified.min(last);
        self.limit_writes(last);
    }

    fn limit_writes(&mut self, last: Slot) {
        for (_, slot) in &mut self.writes {
            *slot = (*slot).min(last);
        }
    }

    /// All up to this slot is the view's log.
    pub const fn verify(&mut self, upto: Slot) {
        self.verified = upto;
    }

    /// Another view: only what is committed is known to be in its log.
    pub const fn unverify(&mut self) {
        self.verified = self.committed;
    }

    /// A proposal waits until it follows on the log's end.
    pub fn buffer(&mut self, slot: Slot, value: Value) {
        self.buffer.insert(slot, value);
    }

    pub fn buffered(&self, slot: Slot) -> Option<&Value> {
        self.buffer.get(&slot)
    }

    pub fn buffered_len(&self) -> usize {
        self.buffer.len()
    }

    pub fn last_buffered(&self) -> Option<Slot> {
        self.buffer.keys().next_back().copied()
    }

    /// The proposal that follows on the log's end, if it waits; drops those before.
    pub fn pop_buffered(&mut self) -> Option<Value> {
        while let Some(entry) = self.buffer.first_entry() {
            let end = self.slots.end();
            if *entry.key() > end {
                break;
            }
            let (slot, value) = entry.remove_entry();
            if slot == end {
                return Some(value);
            }
        }
        None
    }

    pub fn clear_buffer(&mut self) {
        self.buffer.clear();
    }

    /// Drops proposals for slots that are not of the view.
    pub fn retain_buffered(&mut self, is_slot: impl Fn(Slot) -> bool) {
        self.buffer.retain(|slot, _| is_slot(*slot));
    }
}

/// Committing, executing and trimming.
impl ViewLog {
    /// All up to here is committed in the view's log; here as far as it is verified. True when that
    /// is new.
    pub fn commit(&mut self, upto: Slot) -> bool {
        let upto = upto.min(self.verified);
        let new = upto > self.committed;
        if new {
            self.committed = upto;
        }
        new
    }

    /// The next committed entry that is not handed over to be executed.
    pub fn next_committed(&self) -> Option<&Held> {
        let slot = self.executed_slot.next();
        let held = (slot <= self.committed).then(|| self.get(slot));
        held.map(|held| held.expect("what is not executed is kept"))
    }

    /// The entry is handed over: `count` executions at this time.
    pub fn executing(&mut self, time: Option<CommandTime>, count: u64) {
        self.executed_slot = self.executed_slot.next();
        self.executed.0 += count;
        self.time_executed = self.time_executed.max(time.unwrap_or_default());
    }

    pub fn on_executed(&mut self, slot: Slot) {
        self.executed_done = self.executed_done.max(slot);
    }

    /// A checkpoint of the last committed slot begins.
    pub fn begin_checkpoint(&mut self) {
        if self.checkpoints.len() >= CHECKPOINTS_MAX {
            self.checkpoints.pop_front();
        }
        self.checkpoints.push_back((self.executed, self.committed));
    }

    /// A checkpoint of this execution is durable; gives the slot that it covers.
    pub fn end_checkpoint(&mut self, executed: Slot) -> Option<Slot> {
        let mut covered = None;
        while let Some((at, slot)) = self.checkpoints.front().copied() {
            if at > executed {
                break;
            }
            self.checkpoints.pop_front();
            covered = Some(slot);
        }
        covered
    }

    /// Drops executed entries beyond `bytes_max`. Of those that no member needs a part is kept a
    /// little longer: a replica that restarts knows the last few commits from others only. Not for
    /// much longer: what is dropped while it is still in the processor's cache costs less.
    pub fn trim(&mut self, bytes_max: usize, needed_after: impl Fn(Slot) -> Slot) {
        let least = bytes_max / 128;
        if self.bytes <= least {
            return;
        }
        let needed_after = needed_after(self.committed);
        let (mut below, mut bytes) = (self.first(), self.bytes);
        while bytes > least && below <= self.committed {
            if bytes <= bytes_max && below > needed_after {
                break;
            }
            let Some(held) = self.slots.get(below) else {
                break;
            };
            bytes -= held.bytes();
            self.anchor.0 = held.view;
            self.anchor.1.0 += held.value.executions();
            below = below.next();
        }
        self.slots.trim(below, |_| {});
        self.bytes = bytes;
    }
}

/// Restoring, from the journal and from states of others.
impl ViewLog {
    /// The journal is read, and shows that all up to here is committed.
    pub fn restored(&mut self, committed: Slot) {
        self.committed = committed.min(self.last());
        self.verified = self.committed;
        self.durable = self.last();
    }

    /// The state machine stands at `slot`, after these executions; nothing at or below it is kept.
    pub fn restart(&mut self, executed: Slot, (slot, view): (Slot, u64), time: CommandTime) {
        self.slots.reset(slot.next());
        self.bytes = 0;
        self.anchor = (view, executed);
        self.writes.clear();
        self.executed = executed;
        self.executed_slot = slot;
        self.committed = slot;
        self.verified = slot;
        self.durable = slot;
        self.time_executed = self.time_executed.max(time);
        self.time_seen = self.time_seen.max(time);
    }

    /// The entries behind this one, if it is of that view: then they may follow on a state of it.
    pub fn entries_behind(&self, slot: Slot, view: u64) -> Option<Vec<Held>> {
        let follows = self.view_of(slot) == Some(view);
        let behind = || self.iter_from(slot.next()).map(|(_, held)| held.clone());
        follows.then(|| behind().collect())
    }

    /// The same as [`Self::restart`] in a running replica: these entries follow on the state.
    pub fn install(
        &mut self,
        executed: Slot,
        (slot, view): (Slot, u64),
        time: CommandTime,
        entries: Vec<Held>,
    ) {
        let (verified, durable) = (self.verified, self.durable);
        let writes = core::mem::take(&mut self.writes);
        self.restart(executed, (slot, view), time);
        for held in entries {
            self.put(held);
        }
        let last = self.last();
        self.durable = durable.clamp(slot, last);
        self.writes = writes;
        self.limit_writes(last);
        self.verified = verified.clamp(slot, last);
    }

    /// Drops proposals up to this slot.
    pub fn drop_buffered(&mut self, upto: Slot) {
        self.buffer = self.buffer.split_off(&upto.next());
    }

    pub fn assert_invariants(&self) {
        let last = self.last();
        assert!(self.committed <= last, "what is committed is held");
        assert!(
            self.committed <= self.verified.max(last),
            "and it is the view's"
        );
        assert!(self.durable <= last, "only what is held can be durable");
        assert!(self.verified <= last, "only what is held can be verified");
        assert!(
            self.executed_done <= self.executed,
            "executions were asked for"
        );
        assert!(
            self.first() <= self.committed.next(),
            "what is not executed is kept"
        );
    }
}
