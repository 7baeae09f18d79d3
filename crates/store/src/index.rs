//! Finding a key's place in the slab, in an order that does not depend on history.
//!
//! ```text
//!   hash, top 6 bits ──► shard ──► cells, sorted by hash, each at or behind its home:
//!
//!        home of 3x        home of 5x
//!          ▼                 ▼
//!     [ · 31→7 35→2 37→9 ·  52→4 · · · ]       hash → slot
//! ```
//!
//! Linear probing that keeps the cells of a run sorted by hash, and those of equal hash by key.
//! As a cell's home grows with its hash, walking the cells is walking the keys in hash order,
//! whatever was inserted and removed before and however large the table is: SCAN's cursor is a
//! hash, and the order of KEYS is the same on all replicas. Growing one of 64 shards at a time
//! keeps the pauses short.

use quintet_prefetch::prefetch;

/// A place in the slab.
pub(crate) type Slot = u32;

const EMPTY: Slot = Slot::MAX;
const SHARDS_LOG: u32 = 6;
const SHARD_LOG_MIN: u32 = 3;
const SHARD_LOG_MAX: u32 = 26;

#[derive(Clone, Copy, Debug)]
struct Cell {
    hash: u32,
    slot: Slot,
}

const VACANT: Cell = Cell {
    hash: 0,
    slot: EMPTY,
};

#[derive(Debug, Default)]
struct Shard {
    /// As many as two to the power of `log`, and behind them those that the last run needs.
    cells: Vec<Cell>,
    log: u32,
    len: usize,
}

impl Shard {
    fn home(&self, hash: u32) -> usize {
        ((hash << SHARDS_LOG) >> (32 - self.log)) as usize
    }

    fn resize(&mut self, log: u32) {
        let old = core::mem::take(&mut self.cells);
        self.log = log;
        self.cells = vec![VACANT; 1 << log];
        let mut next = 0;
        for cell in old.into_iter().filter(|cell| cell.slot != EMPTY) {
            let at = next.max(self.home(cell.hash));
            if at < self.cells.len() {
                self.cells[at] = cell;
            } else {
                self.cells.push(cell);
            }
            next = at + 1;
        }
    }

    /// Makes room for one more, so that a place found afterwards stays right.
    fn reserve(&mut self) {
        if self.cells.is_empty() {
            self.resize(SHARD_LOG_MIN);
        } else if self.len * 4 >= 3 << self.log && self.log < SHARD_LOG_MAX {
            self.resize(self.log + 1);
        }
    }

    fn insert(&mut self, mut cell: Cell, before: impl Fn(Slot) -> bool) {
        self.reserve();
        let mut at = self.home(cell.hash);
        while let Some(other) = self.cells.get(at) {
            if other.slot == EMPTY
                || other.hash > cell.hash
                || (other.hash == cell.hash && before(other.slot))
            {
                break;
            }
            at += 1;
        }
        self.len += 1;
        while at < self.cells.len() {
            if self.cells[at].slot == EMPTY {
                self.cells[at] = cell;
                return;
            }
            core::mem::swap(&mut cell, &mut self.cells[at]);
            at += 1;
        }
        self.cells.push(cell);
    }

    fn remove(&mut self, hash: u32, slot: Slot) -> bool {
        if self.cells.is_empty() {
            return false;
        }
        let mut at = self.home(hash);
        while self
            .cells
            .get(at)
            .is_some_and(|cell| cell.slot != slot && cell.slot != EMPTY)
        {
            at += 1;
        }
        if self.cells.get(at).is_none_or(|cell| cell.slot == EMPTY) {
            return false;
        }
        self.len -= 1;
        while let Some(next) = self.cells.get(at + 1).copied() {
            if next.slot == EMPTY || self.home(next.hash) > at {
                break;
            }
            self.cells[at] = next;
            at += 1;
        }
        self.cells[at] = VACANT;
        while self.cells.len() > 1 << self.log && self.cells.last().is_some_and(|c| c.slot == EMPTY)
        {
            self.cells.pop();
        }
        if self.log > SHARD_LOG_MIN && self.len * 16 < 1 << self.log {
            self.resize(self.log - 1);
        }
        true
    }
}

/// The index of one database.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
    len: usize,
}

impl Default for Index {
    fn default() -> Self {
        let mut shards = Vec::new();
        shards.resize_with(1 << SHARDS_LOG, Shard::default);
        Self { shards, len: 0 }
    }
}

impl Index {
    /// How many keys there are.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The slot of the key with this hash for which `is` says yes.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let shard = &self.shards[(hash >> (32 - SHARDS_LOG)) as usize];
        if shard.len == 0 {
            return None;
        }
        for cell in &shard.cells[shard.home(hash)..] {
            if cell.slot == EMPTY || cell.hash > hash {
                return None;
            }
            if cell.hash == hash && is(cell.slot) {
                return Some(cell.slot);
            }
        }
        None
    }

    /// Asks for the cells where [`Self::find`] will begin.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        let shard = &self.shards[(hash >> (32 - SHARDS_LOG)) as usize];
        if shard.len > 0
            && let Some(home) = shard.cells.get(shard.home(hash))
        {
            prefetch(home);
        }
    }

    /// The slot of some key with this hash: a guess at what [`Self::find`] will look at.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<Slot> {
        self.find(hash, |_| true)
    }

    /// Adds a key that is not there. `before` says whether the new key stands before that of a
    /// slot with the same hash.
    pub(crate) fn insert(&mut self, hash: u32, slot: Slot, before: impl Fn(Slot) -> bool) {
        self.len += 1;
        self.shards[(hash >> (32 - SHARDS_LOG)) as usize].insert(Cell { hash, slot }, before);
    }

    /// Removes a key; whether it was there.
    pub(crate) fn remove(&mut self, hash: u32, slot: Slot) -> bool {
        let shard = &mut self.shards[(hash >> (32 - SHARDS_LOG)) as usize];
        let removed = shard.remove(hash, slot);
        self.len -= usize::from(removed);
        removed
    }

    /// All keys with this hash or a higher one, in order.
    pub(crate) fn from(&self, hash: u32) -> impl Iterator<Item = (u32, Slot)> {
        let first = (hash >> (32 - SHARDS_LOG)) as usize;
        self.shards[first..]
            .iter()
            .enumerate()
            .flat_map(move |(place, shard)| {
                let begin = if place == 0 && !shard.cells.is_empty() {
                    shard.home(hash)
                } else {
                    0
                };
                &shard.cells[begin..]
            })
            .filter(move |cell| cell.slot != EMPTY && cell.hash >= hash)
            .map(|cell| (cell.hash, cell.slot))
    }

    /// The estimated memory of one key's part in the index.
    pub(crate) const BYTES_PER_KEY: usize = 14;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a sorted map, with hashes drawn from few values so that runs are long. The key
        /// is the slot itself, so the order among equal hashes is that of the slots.
        #[test]
        fn agrees_with_a_sorted_map(
            steps in prop::collection::vec((any::<bool>(), 0u32..40, 0u32..200), 1..600),
            spread in 0u32..31,
        ) {
            let mut index = Index::default();
            let mut model = BTreeMap::new();
            for (add, hash, slot) in steps {
                let hash = (hash.wrapping_mul(0x9e37_79b9) >> spread).rotate_left(slot % 3);
                let found = index.find(hash, |other| other == slot);
                prop_assert_eq!(found.is_some(), model.contains_key(&(hash, slot)));
                if add && !model.values().any(|other| *other == slot) {
                    index.insert(hash, slot, |other| slot < other);
                    model.insert((hash, slot), slot);
                } else if !add && found.is_some() {
                    index.remove(hash, slot);
                    model.remove(&(hash, slot));
                }
                prop_assert_eq!(index.len(), model.len());
            }
            let all: Vec<_> = index.from(0).collect();
            prop_assert_eq!(&all, &model.keys().copied().collect::<Vec<_>>());
            for (hash, _) in all {
                let rest: Vec<_> = index.from(hash).collect();
                prop_assert_eq!(rest, model.range((hash, 0)..).map(|(key, _)| *key).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn grows_and_shrinks() {
        let mut index = Index::default();
        for slot in 0..50_000u32 {
            index.insert(slot.wrapping_mul(0x9e37_79b9), slot, |_| false);
        }
        assert!((0..50_000u32).all(|s| {
            index
                .find(s.wrapping_mul(0x9e37_79b9), |o| o == s)
                .is_some()
        }));
        for slot in 0..50_000u32 {
            index.remove(slot.wrapping_mul(0x9e37_79b9), slot);
        }
        assert_eq!(index.from(0).count(), 0);
        assert!(index.shards.iter().all(|shard| shard.cells.len() <= 16));
    }
}
