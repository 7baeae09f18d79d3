//! The round-robin order of a view: index 0 of rank 0, 1, 2 …, index 1 of rank 0, …

use alloc::collections::VecDeque;
use quintet_replica::Slot;

/// Messages in the order of the view: received with all before them, durable, delivered.
#[derive(Debug, Default, Hash)]
pub(super) struct Order {
    ordered: u64,
    persisted: u64,
    delivered: u64,
    /// The last slot after each message that is ordered and not delivered.
    marks: VecDeque<Slot>,
    /// The number of the last message that is known and no null.
    newest: u64,
}

impl Order {
    pub const fn ordered(&self) -> u64 {
        self.ordered
    }

    pub const fn persisted(&self) -> u64 {
        self.persisted
    }

    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// The message that everybody may wait for, if one is not delivered.
    pub fn newest(&self) -> Option<u64> {
        (self.newest > self.delivered).then_some(self.newest)
    }

    /// A message with this number is known, and is no null.
    pub fn know(&mut self, number: u64) {
        self.newest = self.newest.max(number);
    }

    /// The rank of the sender that comes next, of this many.
    pub const fn next_rank(&self, senders: usize) -> usize {
        (self.ordered % senders as u64) as usize
    }

    /// The next message is in the log, which ends at `slot` with it.
    pub fn push(&mut self, slot: Slot) -> u64 {
        self.ordered += 1;
        self.marks.push_back(slot);
        self.ordered
    }

    /// Messages up to this number are durable here.
    pub fn persist(&mut self, number: u64) {
        self.persisted = self.persisted.max(number);
    }

    /// All that is ordered counts as durable.
    pub const fn persist_all(&mut self) {
        self.persisted = self.ordered;
    }

    /// The last slot after that many messages; of no more than are delivered it is `sure`.
    pub fn last_slot(&self, ordered: u64, sure: Slot) -> Slot {
        let undelivered = ordered.saturating_sub(self.delivered) as usize;
        let last = undelivered.checked_sub(1);
        let mark = last.and_then(|last| self.marks.get(last).copied());
        mark.unwrap_or(sure)
    }

    /// Delivers messages up to this number; gives the last slot.
    pub fn deliver(&mut self, stable: u64) -> Option<Slot> {
        let mut last = None;
        while self.delivered < stable {
            let Some(slot) = self.marks.pop_front() else {
                break;
            };
            self.delivered += 1;
            last = last.max(Some(slot));
        }
        last
    }

    /// The first message that is ordered, not delivered, and no null. Nulls before it count with
    /// it; no member waits for those behind it.
    pub fn awaited(&self, sure: Slot) -> Option<u64> {
        (self.last_slot(self.ordered, sure) > sure).then(|| {
            let before = self.marks.partition_point(|slot| *slot <= sure);
            self.delivered + before as u64 + 1
        })
    }

    /// Whether a message is known that is not ordered.
    pub const fn waits_for_more(&self) -> bool {
        self.newest > self.ordered
    }

    pub fn assert_invariants(&self, delivers_early: bool) {
        assert!(
            self.delivered <= self.persisted || delivers_early,
            "delivered by all means persisted here"
        );
        assert!(self.persisted <= self.ordered, "persisted in order");
        assert_eq!(
            self.marks.len() as u64,
            self.ordered - self.delivered,
            "every ordered message has its last slot"
        );
    }
}
