//! A hash table without iteration.
//!
//! ```text
//!   key ──hash──► value        found, replaced, removed, counted; listed only in the order of keys
//! ```
//!
//! A table that is searched for every command and never listed need not be kept in order. Without
//! iteration its order cannot get into anything that is sent, kept or traced.

use alloc::vec::Vec;
use core::{
    borrow::Borrow,
    hash::{Hash, Hasher},
};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// See the module.
#[derive(Clone, Debug)]
pub struct Table<K, V>(HashMap<K, V, FixedState>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Eq + Hash, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K: Eq + Hash, V: Eq> Eq for Table<K, V> {}

/// In the order of the keys; for the fingerprints of small states.
impl<K: Ord + Hash, V: Hash> Hash for Table<K, V> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.sorted().hash(hasher);
    }
}

impl<K: Eq + Hash, V> Table<K, V> {
    /// The value under a key.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// Whether anything is.
    pub fn contains_key(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Keeps a value under a key; gives the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// The value under a key, to change it; a new one when there was none.
    pub fn of(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.0.entry(key).or_default()
    }

    /// Forgets what is kept under a key, and gives it.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.0.remove(key)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Everything, in the order of the keys.
    #[must_use]
    pub fn sorted(&self) -> Vec<(&K, &V)>
    where
        K: Ord,
    {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_listed_in_key_order() {
        let mut table = Table::default();
        for key in [9u64, 3, 7] {
            assert_eq!(table.insert(key, key * 2), None);
        }
        *table.of(5) += 1;
        assert_eq!(table.insert(3, 1), Some(6));
        assert_eq!(table.remove(&7), Some(14));
        assert_eq!(table.sorted(), [(&3, &1), (&5, &1), (&9, &18)]);
        let other = table.clone();
        assert_eq!(table, other);
        table.clear();
        assert!(table.is_empty() && table != other && other.len() == 3);
        assert!(table.get(&3).is_none() && other.contains_key(&3));
    }
}
