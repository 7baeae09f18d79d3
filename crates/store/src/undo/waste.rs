//! The memory of a past that ended: freed bit by bit, as it may take gigabytes.

use super::index::{Index, Left};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waste {
    slots: Vec<Vec<u8>>,
    tables: Vec<Left>,
}

impl Waste {
    /// In one go this number of slots and keys are freed, or this part of all: what comes faster is
    /// freed faster.
    const SLOTS_AT_ONCE: usize = 16;
    const KEYS_AT_ONCE: usize = 4096;
    const PART: usize = 16;

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.tables.is_empty()
    }

    pub fn add_slot(&mut self, slot: Vec<u8>) {
        self.slots.push(slot);
    }

    pub fn add_index(&mut self, index: Index) {
        let left = index.into_left();
        if left.len() > 0 {
            self.tables.push(left);
        }
    }

    pub fn free_some(&mut self) {
        let count = Self::SLOTS_AT_ONCE.max(self.slots.len() / Self::PART);
        self.slots.truncate(self.slots.len().saturating_sub(count));
        if let Some(table) = self.tables.last_mut() {
            let count = Self::KEYS_AT_ONCE.max(table.len() / Self::PART);
            if table.by_ref().take(count).count() < count {
                self.tables.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_is_freed_bit_by_bit() {
        let mut waste = Waste::default();
        let mut index = Index::default();
        for key in 0..100_000 {
            index.push(key, key);
        }
        waste.add_index(index);
        waste.add_index(Index::default());
        for _ in 0..2000 {
            waste.add_slot(vec![0; 10]);
        }
        let mut turns = 0;
        while !waste.is_empty() {
            let (slots, keys) = (waste.slots.len(), waste.tables.iter().map(Left::len).sum());
            waste.free_some();
            let keys: usize = keys;
            let left: usize = waste.tables.iter().map(Left::len).sum();
            assert!(slots - waste.slots.len() <= (slots / 16).max(16));
            assert!(keys - left <= (keys / 16).max(4096));
            turns += 1;
        }
        assert!((10..200).contains(&turns), "{turns}");
    }
}
