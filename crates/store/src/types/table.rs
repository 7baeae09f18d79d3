//! A map from byte strings with an order that is part of the state.
//!
//! ```text
//!   entries  [ b:2 | a:1 | d:4 | c:3 ]      dense; a new entry goes to the end,
//!               ▲               ▲           a removed one is replaced by the last
//!   index    { hash(b) → 0, … hash(c) → 3 } only when there are more than a few entries
//! ```
//!
//! The order of the entries follows from the commands alone, is what is serialised, and so is the
//! same on every replica and after every restore. Nothing ever iterates the index.

use core::hash::{BuildHasher, Hasher};
use core::ops::Range;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashTable;
use std::hash::RandomState;
use std::sync::LazyLock;

/// Up to this many entries comparing keys one by one is faster than hashing.
const SCAN_MAX: usize = 12;

/// Estimated bytes that one entry takes beyond its key and its value: the pointer and length of
/// the key, what the allocator adds to it, and its part of the index.
pub const ENTRY_OVERHEAD: usize = 40;

/// Drawn for each process from what the operating system gives, so that no client can choose keys
/// that collide.
static HASHER: LazyLock<SeedableRandomState> = LazyLock::new(|| {
    static SHARED: LazyLock<SharedSeed> =
        LazyLock::new(|| SharedSeed::from_u64(RandomState::new().hash_one(2)));
    SeedableRandomState::with_seed(RandomState::new().hash_one(1), &SHARED)
});

/// Hashes what clients choose, differently in each process: only for tables that nothing ever
/// iterates.
pub fn hasher() -> SeedableRandomState {
    HASHER.clone()
}

fn hash(key: &[u8]) -> u64 {
    let mut hasher = HASHER.build_hasher();
    hasher.write(key);
    hasher.finish()
}

#[derive(Clone, Debug)]
struct Entry<V> {
    key: Box<[u8]>,
    value: V,
}

/// The map; see the module.
#[derive(Clone, Debug)]
pub struct Table<V> {
    entries: Vec<Entry<V>>,
    index: Option<Box<HashTable<u32>>>,
    key_bytes: usize,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            index: None,
            key_bytes: 0,
        }
    }
}

impl<V> Table<V> {
    /// Memory for one entry, its part of the index included.
    pub const ENTRY_BYTES: usize = size_of::<Entry<V>>() + 8;

    /// An empty table with room for `capacity` entries.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let index = (capacity > SCAN_MAX).then(|| Box::new(HashTable::with_capacity(capacity)));
        Self {
            entries: Vec::with_capacity(capacity),
            index,
            key_bytes: 0,
        }
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The estimated bytes of the table, without what the values hold elsewhere.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.key_bytes + self.entries.len() * (ENTRY_OVERHEAD + size_of::<V>())
    }

    /// The place of `key` in the order.
    #[must_use]
    pub fn position(&self, key: &[u8]) -> Option<usize> {
        match &self.index {
            None => self.entries.iter().position(|entry| *entry.key == *key),
            Some(index) => index
                .find(hash(key), |&at| *self.entries[at as usize].key == *key)
                .map(|&at| at as usize),
        }
    }

    /// Whether there is an entry for `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.position(key).is_some()
    }

    /// The value for `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&V> {
        self.position(key).map(|at| &self.entries[at].value)
    }

    /// The key and value at a place in the order.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    #[must_use]
    pub fn at(&self, at: usize) -> (&[u8], &V) {
        let entry = &self.entries[at];
        (&entry.key, &entry.value)
    }

    /// The key of the last entry.
    #[must_use]
    pub fn last(&self) -> Option<&[u8]> {
        self.entries.last().map(|entry| &*entry.key)
    }

    /// The value at a place in the order, to be changed.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    pub fn value_at_mut(&mut self, at: usize) -> &mut V {
        &mut self.entries[at].value
    }

    /// All entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &V)> + ExactSizeIterator {
        self.entries.iter().map(|entry| (&*entry.key, &entry.value))
    }

    /// The entries at the places `range` in order.
    ///
    /// # Panics
    /// When the range reaches beyond [`Self::len`].
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], &V)> + ExactSizeIterator {
        self.entries[range]
            .iter()
            .map(|entry| (&*entry.key, &entry.value))
    }

    /// Adds an entry at the end; returns its place.
    ///
    /// `key` must not be in the table: [`Self::position`] has just said so.
    ///
    /// # Panics
    /// At 2³² entries, which would take more than 200 GiB.
    pub fn push(&mut self, key: &[u8], value: V) -> usize {
        let at = self.entries.len();
        assert!(
            at < u32::MAX as usize,
            "a collection holds fewer than 2^32 entries"
        );
        self.entries.push(Entry {
            key: key.into(),
            value,
        });
        self.key_bytes += key.len();
        let entries = &self.entries;
        match &mut self.index {
            Some(index) => {
                index.insert_unique(hash(key), at as u32, |&at| hash(&entries[at as usize].key));
            }
            None if at >= SCAN_MAX => {
                let mut index = Box::new(HashTable::with_capacity(2 * at));
                for (at, entry) in entries.iter().enumerate() {
                    index.insert_unique(hash(&entry.key), at as u32, |&at| {
                        hash(&entries[at as usize].key)
                    });
                }
                self.index = Some(index);
            }
            None => {}
        }
        at
    }

    /// Takes out the entry at a place. The last entry, if it is another one, moves there.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    pub fn swap_remove(&mut self, at: usize) -> (Box<[u8]>, V) {
        let last = self.entries.len() - 1;
        if let Some(index) = &mut self.index {
            let key_hash = hash(&self.entries[at].key);
            if let Ok(found) = index.find_entry(key_hash, |&found| found as usize == at) {
                found.remove();
            }
            if at != last {
                let last_hash = hash(&self.entries[last].key);
                if let Some(found) = index.find_mut(last_hash, |&found| found as usize == last) {
                    *found = at as u32;
                }
            }
        }
        let entry = self.entries.swap_remove(at);
        self.key_bytes -= entry.key.len();
        if self.entries.len() * 8 < self.entries.capacity() && self.entries.capacity() > 64 {
            self.shrink();
        }
        (entry.key, entry.value)
    }

    /// Puts an entry at a place, where the last one is that [`Self::swap_remove`] moved there.
    ///
    /// `key` must not be in the table, and `at` not above [`Self::len`].
    pub fn swap_insert(&mut self, at: usize, key: &[u8], value: V) {
        let last = self.push(key, value);
        if at == last {
            return;
        }
        self.entries.swap(at, last);
        if let Some(index) = &mut self.index {
            // The index still says that the one is where the other stands now.
            let moved = hash(&self.entries[last].key);
            let put = hash(key);
            let found = index.find_mut(moved, |&found| found as usize == at);
            let found = found.map(|found| core::mem::replace(found, u32::MAX));
            if let Some(found) = index.find_mut(put, |&found| found as usize == last) {
                *found = at as u32;
            }
            if found.is_some()
                && let Some(found) = index.find_mut(moved, |&found| found == u32::MAX)
            {
                *found = last as u32;
            }
        }
    }

    /// Takes out the entry for `key`.
    pub fn remove(&mut self, key: &[u8]) -> Option<(Box<[u8]>, V)> {
        let at = self.position(key)?;
        Some(self.swap_remove(at))
    }

    /// Frees the last `count` entries of a detached table.
    pub(crate) fn free_last(&mut self, count: usize) {
        self.index = None;
        let left = self.entries.len().saturating_sub(count);
        self.entries.truncate(left);
    }

    fn shrink(&mut self) {
        let capacity = self.entries.len() * 2;
        self.entries.shrink_to(capacity);
        let entries = &self.entries;
        if let Some(index) = &mut self.index {
            index.shrink_to(capacity, |&at| hash(&entries[at as usize].key));
        }
    }
}

/// Asked to walk a collection piece by piece: where to continue, and how many to return.
///
/// The walk goes from the end to the front: what a removal moves comes from behind the cursor or
/// stays before it, and what is added lies behind it. So an entry that is there from the first
/// call to the last is returned at least once. A cursor is the number of entries still to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// 0 starts; otherwise what the previous piece gave.
    pub cursor: u64,
    /// How many entries to visit.
    pub count: usize,
}

impl Walk {
    /// The places to visit in a collection of `len` entries, and the next cursor (0 at the end).
    #[must_use]
    pub fn piece(&self, len: usize) -> (Range<usize>, u64) {
        let end = match self.cursor {
            0 => len,
            cursor => usize::try_from(cursor).unwrap_or(usize::MAX).min(len),
        };
        let start = end.saturating_sub(self.count.max(1));
        (start..end, start as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_as_a_map(operations in prop::collection::vec((0u8..3, 0u16..60), 0..400)) {
            let mut table = Table::default();
            let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            for (step, (kind, key)) in operations.into_iter().enumerate() {
                let key = key.to_string().into_bytes();
                if kind < 2 {
                    match table.position(&key) {
                        Some(at) => *table.value_at_mut(at) = step as u32,
                        None => {
                            table.push(&key, step as u32);
                        }
                    }
                    model.insert(key, step as u32);
                } else {
                    let removed = table.remove(&key).map(|(_, value)| value);
                    prop_assert_eq!(removed, model.remove(&key));
                }
                prop_assert_eq!(table.len(), model.len());
            }
            let mut seen: Vec<(Vec<u8>, u32)> =
                table.iter().map(|(key, value)| (key.to_vec(), *value)).collect();
            seen.sort();
            prop_assert_eq!(seen, model.clone().into_iter().collect::<Vec<_>>());
            for (key, value) in &model {
                prop_assert_eq!(table.get(key), Some(value));
            }
            let key_bytes: usize = model.keys().map(Vec::len).sum();
            prop_assert_eq!(table.memory(), key_bytes + model.len() * (ENTRY_OVERHEAD + 4));
        }

        /// Entries that stay from the first piece to the last are all seen, whatever else
        /// continues.
        #[test]
        fn walk_misses_nothing_that_stays(
            changes in prop::collection::vec((any::<bool>(), 0u16..200), 0..200),
            count in 1usize..9,
        ) {
            let mut table = Table::default();
            for key in 0..100u16 {
                table.push(&key.to_be_bytes(), ());
            }
            let mut removed = [false; 200];
            let mut seen = [false; 200];
            let mut changes = changes.into_iter();
            let mut cursor = 0;
            loop {
                let (range, next) = Walk { cursor, count }.piece(table.len());
                for (key, ()) in table.range(range) {
                    seen[u16::from_be_bytes([key[0], key[1]]) as usize] = true;
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
                for (add, key) in changes.by_ref().take(5) {
                    if add {
                        if !table.contains(&key.to_be_bytes()) {
                            table.push(&key.to_be_bytes(), ());
                        }
                    } else if table.remove(&key.to_be_bytes()).is_some() {
                        removed[key as usize] = true;
                    }
                }
            }
            for key in 0..100 {
                prop_assert!(seen[key] || removed[key], "missed {key}");
            }
        }
    }

    #[test]
    fn shrinks_and_still_finds() {
        let mut table = Table::default();
        for key in 0..5000u32 {
            table.push(&key.to_be_bytes(), key);
        }
        for key in 0..4990u32 {
            assert!(table.remove(&key.to_be_bytes()).is_some());
        }
        for key in 4990..5000u32 {
            assert_eq!(table.get(&key.to_be_bytes()), Some(&key));
        }
    }
}
