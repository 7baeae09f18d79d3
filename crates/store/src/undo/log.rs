//! Records one behind the other in memory: appended at the end, dropped at the front, found by
//! position.
//!
//! ```text
//!   slots   [ r r r · ] [ r r r r ] [ rrrrrrrrr ][ – ] [ r r        64 KiB each; a record stands in
//!             ▲ head                  long record        ▲ tail     one buffer, a long one in its own
//!
//!   record  length u32 │ payload
//! ```
//!
//! Positions are this replica's own affair.

use std::collections::VecDeque;

const SLOT_LOG: u32 = 16;
const SLOT: u64 = 1 << SLOT_LOG;
const HEAD: usize = 4;

/// Where a slot begins.
#[derive(Clone, Copy, Debug)]
struct Start {
    position: u64,
    /// How many records were ever added before the first of the slot.
    number: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Log {
    slots: VecDeque<Vec<u8>>,
    /// The number of the first of them.
    first_slot: u64,
    starts: VecDeque<Start>,
    head: u64,
    tail: u64,
    /// How many records were ever dropped, and added.
    dropped: u64,
    added: u64,
}

fn four(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

pub(super) fn eight(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

impl Log {
    /// An empty log before which this number of records was.
    pub fn new(dropped: u64) -> Self {
        Self {
            slots: VecDeque::new(),
            first_slot: 1,
            starts: VecDeque::new(),
            head: SLOT,
            tail: SLOT,
            dropped,
            added: dropped,
        }
    }

    /// The position of the first record.
    pub const fn head(&self) -> u64 {
        self.head
    }

    /// The position behind the last record.
    pub const fn tail(&self) -> u64 {
        self.tail
    }

    pub const fn is_empty(&self) -> bool {
        self.dropped == self.added
    }

    /// How many records were ever dropped: the number of the first one.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many records there are.
    pub const fn len(&self) -> u64 {
        self.added - self.dropped
    }

    /// The memory of the slots.
    pub fn memory(&self) -> usize {
        self.slots.iter().map(Vec::capacity).sum()
    }

    fn slot(&self, position: u64) -> Option<&Vec<u8>> {
        let index = (position >> SLOT_LOG).checked_sub(self.first_slot)?;
        self.slots.get(usize::try_from(index).ok()?)
    }

    /// The record at this position.
    ///
    /// # Panics
    /// When none begins there.
    pub fn record(&self, position: u64) -> &[u8] {
        let slot = self.slot(position).expect("the record is there");
        let bytes = &slot[(position % SLOT) as usize..];
        let length = four(bytes, 0) as usize;
        &bytes[HEAD..HEAD + length]
    }

    /// Where the record behind the one at `position` stands, or would.
    fn behind(&self, position: u64) -> u64 {
        let length = HEAD + self.record(position).len();
        self.settled(position + length as u64)
    }

    /// The end of a slot is the beginning of the next one, if there is one.
    fn settled(&self, position: u64) -> u64 {
        if position == self.tail {
            return position;
        }
        match self.slot(position) {
            Some(slot) if (position % SLOT) < slot.len() as u64 => position,
            _ => position.div_ceil(SLOT) * SLOT,
        }
    }

    /// The records from `from` up to `end`, with their positions.
    pub fn records(&self, from: u64, end: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let mut next = self.settled(from);
        core::iter::from_fn(move || {
            let position = next;
            (position < end && position < self.tail).then(|| {
                next = self.behind(position);
                (position, self.record(position))
            })
        })
    }

    /// The first record of which `passed` does not hold, with its number; the log's end if it holds
    /// of all. It must hold of all records before any of which it holds.
    pub fn first(&self, passed: impl Fn(u64, &[u8]) -> bool) -> (u64, u64) {
        let from = self.starts.partition_point(|start| {
            start.position <= self.head || passed(start.number, self.record(start.position))
        });
        let (position, mut number) = match from.checked_sub(1).map(|at| self.starts[at]) {
            Some(start) if start.position > self.head => (start.position, start.number),
            _ => (self.head, self.dropped),
        };
        for (position, record) in self.records(position, self.tail) {
            if !passed(number, record) {
                return (position, number);
            }
            number += 1;
        }
        (self.tail, self.added)
    }

    /// Adds a record of this number of bytes and gives its position.
    pub fn push(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let whole = HEAD + length;
        let at = self.tail % SLOT;
        // Behind a long record the tail is in a slot that it has taken, and that has no buffer.
        let last = self.first_slot + self.slots.len() as u64 - u64::from(!self.slots.is_empty());
        let in_last = !self.slots.is_empty() && self.tail >> SLOT_LOG == last;
        let fits = at > 0 && at + whole as u64 <= SLOT && in_last;
        if !fits {
            let slot = self.tail.div_ceil(SLOT);
            self.tail = slot * SLOT;
            // Before the first record, or behind a long one that takes several slots.
            if self.slots.is_empty() {
                self.first_slot = slot;
            }
            if self.is_empty() {
                self.head = self.tail;
            }
            let missing = slot - self.first_slot - self.slots.len() as u64;
            for _ in 0..missing {
                self.slots.push_back(Vec::new());
            }
            self.slots
                .push_back(Vec::with_capacity(whole.max(SLOT as usize)));
            self.starts.push_back(Start {
                position: self.tail,
                number: self.added,
            });
        }
        let position = self.tail;
        let slot = self.slots.back_mut().expect("a slot was made");
        slot.extend_from_slice(&(length as u32).to_le_bytes());
        let begun = slot.len();
        write(slot);
        assert!(slot.len() - begun == length, "as long as announced");
        self.tail += whole as u64;
        self.added += 1;
        position
    }

    /// The first record from a position on, and where it stands.
    pub fn settled_record(&self, position: u64) -> (&[u8], u64) {
        let at = self.settled(position);
        (self.record(at), at)
    }

    /// Drops the first record; what it held stays readable until [`Self::free`].
    pub fn drop_first(&mut self) {
        self.head = self.behind(self.settled(self.head));
        self.dropped += 1;
    }

    /// Drops all records.
    pub fn clear(&mut self) {
        self.head = self.tail;
        self.dropped = self.added;
    }

    /// Gives away the memory before the head, and before `held`.
    pub fn free(&mut self, held: u64, mut give: impl FnMut(Vec<u8>)) {
        let needed = held.min(self.head);
        while let Some(slot) = self.slots.front()
            && (self.first_slot << SLOT_LOG) + (slot.len() as u64).max(1) <= needed
        {
            self.slots.pop_front().map(&mut give);
            self.first_slot += 1;
        }
        while (self.starts.front())
            .is_some_and(|start| start.position >> SLOT_LOG < self.first_slot)
        {
            self.starts.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        DropFirst(usize),
        Clear,
        Free,
        Hold,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0usize..3000).prop_map(Step::Push),
            3 => (50_000usize..300_000).prop_map(Step::Push),
            1 => prop::sample::select(&[65_531usize, 65_532, 65_533, 131_068, 131_064][..])
                .prop_map(Step::Push),
            4 => (1usize..6).prop_map(Step::DropFirst),
            1 => Just(Step::Clear),
            3 => Just(Step::Free),
            1 => Just(Step::Hold),
        ]
    }

    proptest! {
        #[test]
        fn log_holds_what_was_added_and_not_dropped(
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let mut log = Log::new(7);
            let mut model: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
            let (mut dropped, mut next) = (7, 7u64);
            let mut held: Option<(u64, u64, Vec<Vec<u8>>)> = None;
            for step in steps {
                match step {
                    Step::Push(length) => {
                        let record = vec![next as u8; length + 8];
                        let mut record = record;
                        record[..8].copy_from_slice(&next.to_le_bytes());
                        let position =
                            log.push(record.len(), |out| out.extend_from_slice(&record));
                        model.push_back((position, record));
                        next += 1;
                    }
                    Step::DropFirst(count) => {
                        for _ in 0..count.min(model.len()) {
                            let (position, record) = model.pop_front().unwrap();
                            let (first, at) = log.settled_record(log.head());
                            prop_assert!(first == record && at == position);
                            log.drop_first();
                            dropped += 1;
                        }
                    }
                    Step::Clear => {
                        dropped += model.len() as u64;
                        model.clear();
                        log.clear();
                    }
                    Step::Free => {
                        held = None;
                        log.free(u64::MAX, drop);
                    }
                    Step::Hold => {
                        let records = model.iter().map(|(_, record)| record.clone());
                        held = Some((log.head(), log.tail(), records.collect()));
                    }
                }
                log.free(held.as_ref().map_or(u64::MAX, |(next, ..)| *next), drop);
                prop_assert_eq!((log.dropped(), log.len()), (dropped, model.len() as u64));
                let all: Vec<_> = log.records(log.head(), log.tail()).collect();
                prop_assert_eq!(all.len(), model.len());
                for ((at, found), (position, record)) in all.iter().zip(&model) {
                    prop_assert!(at == position && found == record);
                    prop_assert!(log.record(*position) == record);
                }
                if let Some((from, to, records)) = &held {
                    let found: Vec<_> = log.records(*from, *to).map(|(_, it)| it).collect();
                    prop_assert!(found == *records, "a snapshot still reads them");
                }
                for number in dropped..=next {
                    let place = log.first(|_, record| eight(record, 0) < number);
                    let expected = model.get((number - dropped) as usize);
                    let expected = expected.map_or(log.tail(), |(position, _)| *position);
                    prop_assert_eq!(place, (expected, number));
                }
            }
        }
    }
}
