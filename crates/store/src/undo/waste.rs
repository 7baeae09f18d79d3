//! The memory of a past that ended: freed bit by bit, as it may be gigabytes.

use super::index::{Index, Left};
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waste {
    slots: Vec<Vec<u8>>,
    /// The memory of them.
    slot_bytes: usize,
    /// The oldest first, with its memory, which it gives back when it is empty.
    tables: VecDeque<(Left, usize)>,
    /// The keys in them, and their memory.
    keys: usize,
    table_bytes: usize,
}

impl Waste {
    /// This is freed in one go, or this part of all: what comes faster is freed faster. Less
    /// than that is freed at once when it comes, so that it cannot become much.
    const BYTES_AT_ONCE: usize = 1 << 20;
    const KEYS_AT_ONCE: usize = 4096;
    const PART: usize = 4;

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.tables.is_empty()
    }

    /// An estimate of the memory.
    pub fn memory(&self) -> usize {
        self.slot_bytes + self.table_bytes
    }

    pub fn add_slots(&mut self, slots: Vec<Vec<u8>>) {
        let bytes: usize = slots.iter().map(Vec::capacity).sum();
        if bytes > Self::BYTES_AT_ONCE {
            self.slot_bytes += bytes;
            self.slots.extend(slots);
        }
    }

    pub fn add_index(&mut self, index: Index) {
        let bytes = index.memory();
        let left = index.into_left();
        if left.len() > Self::KEYS_AT_ONCE {
            self.keys += left.len();
            self.table_bytes += bytes;
            self.tables.push_back((left, bytes));
        }
    }

    pub fn free_some(&mut self) {
        let mut bytes = Self::BYTES_AT_ONCE.max(self.slot_bytes / Self::PART);
        while bytes > 0
            && let Some(slot) = self.slots.pop()
        {
            self.slot_bytes -= slot.capacity();
            bytes = bytes.saturating_sub(slot.capacity());
        }
        let mut keys = Self::KEYS_AT_ONCE.max(self.keys / Self::PART);
        while keys > 0
            && let Some((table, bytes)) = self.tables.front_mut()
        {
            let freed = table.by_ref().take(keys).count();
            self.keys -= freed;
            keys -= freed;
            if table.len() == 0 {
                self.table_bytes -= *bytes;
                self.tables.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(waste: &mut Waste, keys: u64, slots: usize) {
        let mut index = Index::default();
        for key in 0..keys {
            index.push(key, key);
        }
        waste.add_index(index);
        waste.add_slots((0..slots).map(|_| vec![0; 1 << 16]).collect());
    }

    #[test]
    fn waste_is_freed_bit_by_bit_however_much_there_is() {
        let mut waste = Waste::default();
        add(&mut waste, 100, 10);
        assert!(waste.is_empty(), "little goes at once");
        for _ in 0..20 {
            add(&mut waste, 20_000, 100);
        }
        let mut turns = 0;
        while !waste.is_empty() {
            let (bytes, keys) = (waste.slot_bytes, waste.keys);
            waste.free_some();
            assert!(bytes - waste.slot_bytes <= (bytes / 4).max(1 << 20) + (1 << 16));
            assert!(keys - waste.keys <= (keys / 4).max(4096));
            turns += 1;
        }
        assert!((10..100).contains(&turns), "{turns}");
        assert_eq!((waste.memory(), waste.tables.len()), (0, 0));
        // As fast as it comes.
        for _ in 0..200 {
            for _ in 0..3 {
                add(&mut waste, 20_000, 20);
            }
            waste.free_some();
        }
        assert!(waste.tables.len() < 100, "{}", waste.tables.len());
    }
}
