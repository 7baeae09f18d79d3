//! The slots of one replica: accepted, durable, decided and executed.
//!
//! ```text
//!   first ………… committed ……… decided or accepted, with holes ……… end ……… far
//!     │ kept for     └ decided without holes, and handed over       beyond it nothing is kept ┘
//!     └ those behind
//! ```

use super::{Known, Record, Value};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use quintet_replica::{
    CommandTime, PersistId, Slot,
    parts::{Ballot, SlotLog},
};

/// Slots further than this above the commit point are not kept.
pub(super) const SLOTS_MAX: u64 = 1 << 16;
/// The most decided slots in one message.
const PAGE_MAX: usize = 4096;

/// The entry of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub ballot: Ballot,
    pub value: Value,
    pub decided: bool,
    pub durable: bool,
}

impl Held {
    /// About what it takes in memory.
    const fn bytes(&self) -> usize {
        self.value.bytes() + size_of::<Self>()
    }
}

/// The state of a slot when it is decided.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decided {
    /// The same value, which is decided now.
    Same,
    /// Another value of this ballot, or none: the decision is to be written.
    Other(Ballot),
    /// Another decision.
    Contradiction,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Log {
    slots: SlotLog<Held>,
    bytes: usize,
    writes: VecDeque<(PersistId, Slot)>,
    /// Everything up to here is decided, and handed over to be executed.
    committed: Slot,
    executed_done: Slot,
    time_seen: CommandTime,
    time_executed: CommandTime,
}

/// Where it stands.
impl Log {
    pub const fn first(&self) -> Slot {
        self.slots.first()
    }

    pub fn end(&self) -> Slot {
        self.slots.end()
    }

    /// The last slot in which anything is held, or the last decided one.
    pub fn last(&self) -> Slot {
        self.end().previous().max(self.committed)
    }

    /// The last slot that may be kept.
    pub const fn far(&self) -> Slot {
        Slot(self.committed.0 + SLOTS_MAX)
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

    pub const fn committed(&self) -> Slot {
        self.committed
    }

    /// Whether a slot is near enough to be kept, and not decided and executed already.
    pub fn wants(&self, slot: Slot) -> bool {
        slot > self.committed && slot <= self.far()
    }

    pub fn is_decided(&self, slot: Slot) -> bool {
        slot <= self.committed || self.get(slot).is_some_and(|held| held.decided)
    }

    /// A time that is not below that of any command here.
    pub fn next_time(&self, clock: u64) -> CommandTime {
        CommandTime(clock).max(self.time_seen)
    }

    /// As many decided entries from this slot on as fit into a message, and its length.
    pub fn decided_from(&self, first: Slot, overhead: usize, bytes_max: usize) -> (Known, usize) {
        let (mut page, mut bytes) = (Known::new(), overhead);
        for (slot, held) in self.iter_from(first) {
            if held.decided {
                bytes += held.value.bytes() + 8;
                if bytes > bytes_max && !page.is_empty() {
                    break;
                }
                page.push((slot, held.value.clone()));
            }
            if page.len() >= PAGE_MAX {
                break;
            }
        }
        (page, bytes)
    }
}

/// Accepting, deciding and executing.
impl Log {
    /// Puts this into a slot. The caller writes it.
    pub fn put(&mut self, slot: Slot, held: Held) {
        let before = self.get(slot);
        assert!(
            held.decided
                || before.is_none_or(|before| !before.decided && before.ballot <= held.ballot),
            "nothing is accepted over a decision, or over a higher ballot, in {slot}"
        );
        self.keep(slot, held);
    }

    fn keep(&mut self, slot: Slot, held: Held) {
        if let Value::Command { time, .. } = &held.value {
            self.time_seen = self.time_seen.max(*time);
        }
        self.bytes += held.bytes();
        if let Some(before) = self.slots.set(slot, held) {
            self.bytes -= before.bytes();
        }
    }

    /// The slot is being written.
    pub fn written(&mut self, write: PersistId, slot: Slot) {
        self.writes.push_back((write, slot));
    }

    /// The next slot that is durable when all writes up to this one are; true when its owner's
    /// suggestion is held there.
    pub fn durable_up_to(&mut self, upto: PersistId) -> Option<(Slot, bool)> {
        let (_, slot) = *self.writes.front().filter(|(id, _)| *id <= upto)?;
        self.writes.pop_front();
        let suggested = self.slots.get_mut(slot).is_some_and(|held| {
            held.durable = true;
            held.ballot == Ballot::default()
        });
        Some((slot, suggested))
    }

    /// This value is decided in the slot.
    pub fn decide(&mut self, slot: Slot, value: &Value) -> Decided {
        match self.slots.get_mut(slot) {
            Some(held) if held.value == *value => {
                held.decided = true;
                Decided::Same
            }
            Some(held) if held.decided => Decided::Contradiction,
            Some(held) => Decided::Other(held.ballot),
            None => Decided::Other(Ballot::default()),
        }
    }

    /// The next value that is decided without a hole before it, which is handed over now.
    pub fn pop_decided(&mut self) -> Option<Value> {
        let next = self.committed.next();
        let value = self.get(next).filter(|held| held.decided)?.value.clone();
        self.committed = next;
        Some(value)
    }

    /// The time at which a value is executed after those before it.
    pub fn execution_time(&mut self, value: &Value) -> CommandTime {
        if let Value::Command { time, .. } = value {
            self.time_executed = self.time_executed.max(*time);
        }
        self.time_executed
    }

    pub const fn time_executed(&self) -> CommandTime {
        self.time_executed
    }

    pub fn on_executed(&mut self, slot: Slot) {
        self.executed_done = self.executed_done.max(slot);
    }

    /// Drops executed entries beyond `bytes_max`, and all but a part of those that no member needs.
    pub fn trim(&mut self, bytes_max: usize, needed_after: impl FnOnce(Slot) -> Slot) {
        let least = bytes_max / 16;
        if self.bytes <= least {
            return;
        }
        let needed_after = needed_after(self.committed);
        let (mut below, mut bytes) = (self.first(), self.bytes);
        while bytes > least && below <= self.committed {
            if bytes <= bytes_max && below > needed_after {
                break;
            }
            bytes -= self.get(below).map_or(0, Held::bytes);
            below = below.next();
        }
        self.slots.trim(below, |_| {});
        self.bytes = bytes;
    }
}

/// Restoring, from the journal and from states of others.
impl Log {
    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub fn install(&mut self, slot: Slot, time: CommandTime) {
        let mut bytes = self.bytes;
        self.slots.trim(slot.next(), |held| bytes -= held.bytes());
        self.bytes = bytes;
        self.committed = slot;
        self.time_executed = self.time_executed.max(time);
        self.time_seen = self.time_seen.max(time);
    }

    /// The journal has these. False when it contradicts itself; `damaged` says that some of it may
    /// be missing.
    pub fn restore(&mut self, records: Vec<(Slot, Record)>, damaged: bool) -> bool {
        let mut newest: BTreeMap<Slot, Record> = BTreeMap::new();
        let mut committed = self.committed;
        for (slot, record) in records {
            committed = committed.max(record.committed);
            if slot > self.committed {
                newest.insert(slot, record);
            }
        }
        for (slot, record) in newest {
            if slot.0 > self.committed.0 + (SLOTS_MAX << 16) {
                return false;
            }
            let held = Held {
                ballot: record.ballot,
                value: record.value,
                // Of a damaged journal the record that wrote a lost value over may be missing.
                decided: record.decided || (!damaged && slot <= committed),
                durable: true,
            };
            self.keep(slot, held);
        }
        true
    }

    pub fn assert_invariants(&self) {
        let next = self.committed.next();
        assert!(self.first() <= next, "what is not executed is kept");
        assert!(
            self.executed_done <= self.committed,
            "executions were asked for"
        );
        assert!(
            !self.get(next).is_some_and(|held| held.decided),
            "what can be executed is"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(round: u64, decided: bool) -> Held {
        let ballot = Ballot {
            round,
            ..Ballot::default()
        };
        Held {
            ballot,
            value: Value::Noop,
            decided,
            durable: true,
        }
    }

    #[test]
    fn decided_slots_are_executed_without_holes() {
        let mut log = Log::default();
        log.put(Slot(2), held(0, true));
        assert_eq!(log.pop_decided(), None);
        log.put(Slot(1), held(3, false));
        assert_eq!(log.decide(Slot(1), &Value::Noop), Decided::Same);
        assert_eq!(log.pop_decided(), Some(Value::Noop));
        assert_eq!(log.pop_decided(), Some(Value::Noop));
        assert_eq!((log.pop_decided(), log.committed()), (None, Slot(2)));
        let (time, batch) = (CommandTime(9), quintet_replica::Bytes::new());
        let other = Value::Command { time, batch };
        assert_eq!(log.decide(Slot(2), &other), Decided::Contradiction);
        assert_eq!(
            log.decide(Slot(3), &other),
            Decided::Other(Ballot::default())
        );
        let bytes = log.bytes();
        log.trim(bytes, |_| Slot(1));
        assert_eq!((log.first(), log.bytes()), (Slot(2), bytes / 2));
    }

    #[test]
    #[should_panic(expected = "nothing is accepted over a decision")]
    fn lower_ballot_is_not_accepted() {
        let mut log = Log::default();
        log.put(Slot(1), held(3, false));
        log.put(Slot(1), held(2, false));
    }
}
