//! When the keys of one database expire, and how many have: those are deleted bit by bit.
//!
//! ```text
//!   (time, hash, slot), sorted:  10 12 12 17 │ 20 31 …
//!                                4 of them   └─ passed: the latest time that was asked about
//! ```
//!
//! The hash of the key comes before the slot, which is each replica's own affair: all replicas delete
//! in the same order.
//!
//! The queried time increases, so each key is counted once however often the caller asks.

use crate::index::Slot;
use core::cell::Cell;
use core::ops::Bound;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// A key by its hash, and where it stands.
pub(crate) type Due = (u32, Slot);

const LAST: Due = (u32::MAX, Slot::MAX);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Expiries {
    all: BTreeSet<(u64, Due)>,
    /// A time, and how many expire no later.
    passed: Cell<(u64, usize)>,
}

impl Expiries {
    pub(crate) fn insert(&mut self, time: u64, due: Due) {
        let (until, count) = self.passed.get();
        if self.all.insert((time, due)) && time <= until {
            self.passed.set((until, count + 1));
        }
    }

    pub(crate) fn remove(&mut self, time: u64, due: Due) {
        let (until, count) = self.passed.get();
        if self.all.remove(&(time, due)) && time <= until {
            self.passed.set((until, count - 1));
        }
    }

    /// When the first one expires.
    pub(crate) fn first(&self) -> Option<u64> {
        self.all.first().map(|(time, _)| *time)
    }

    /// The keys that expire first: one, or several whose hashes are the same.
    pub(crate) fn next(&self) -> SmallVec<[Slot; 1]> {
        let first = self.all.first().map(|(time, (hash, _))| (*time, *hash));
        let all = self.all.iter();
        all.take_while(|(time, (hash, _))| Some((*time, *hash)) == first)
            .map(|(_, (_, slot))| *slot)
            .collect()
    }

    /// How many expire at `now` or before.
    pub(crate) fn passed(&self, now: u64) -> usize {
        let (until, count) = self.passed.get();
        let between = |from: u64, to: u64| {
            let after = Bound::Excluded((from, LAST));
            self.all.range((after, Bound::Included((to, LAST)))).count()
        };
        if now < until {
            return count - between(now, until);
        }
        let count = match now == until {
            true => count,
            false => count + between(until, now),
        };
        self.passed.set((now, count));
        count
    }

    /// All of them.
    pub(crate) fn into_all(self) -> BTreeSet<(u64, Due)> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn count_is_what_counting_all_gives(
            steps in prop::collection::vec((0u64..20, 0u32..8, 0u8..4), 1..200),
        ) {
            let mut expiries = Expiries::default();
            for (time, slot, what) in steps {
                match what {
                    0 => expiries.insert(time, (slot / 3, slot)),
                    1 => expiries.remove(time, (slot / 3, slot)),
                    _ => {
                        let counted = expiries.all.iter().filter(|(at, _)| *at <= time).count();
                        prop_assert_eq!(expiries.passed(time), counted);
                    }
                }
            }
        }
    }
}
