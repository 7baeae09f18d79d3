//! Whose records a damaged journal lacks.
//!
//! ```text
//!   records that can be read   sequence  11  12  ✗  ✗  15  16     two are gone
//!                              group      A   B        B   A
//!                              count      7   3        4   9      one of them is A's, none B's
//! ```
//!
//! Each record has the number of its group's record. When the numbers account for all records that are
//! gone, every other group is whole. Otherwise a group without a later record may lack some, too: the
//! last of its records that was written is told by nothing else.

use super::format::{COUNT_MAX, RecordView};
use crate::GroupId;
use alloc::collections::BTreeMap;

/// The state of a group's records, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// None is missing.
    Whole,
    /// This number is missing, at least.
    Lacks(u64),
    /// Some may be missing.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The number of the last record; 0 when it was not counted.
    count: u32,
    lacks: u64,
    /// How many records of all groups were gone before the last record.
    gone: u64,
    /// Some before the last record may be missing, whatever its number says.
    unsure: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    next: Option<u64>,
    /// How many records are gone, and of how many the groups' numbers tell.
    gone: u64,
    told: u64,
    groups: BTreeMap<GroupId, Found>,
}

impl Chains {
    /// The sequence that the next record should have.
    pub const fn next(&self) -> Option<u64> {
        self.next
    }

    /// The number of records that are gone before the first one is not known.
    pub const fn lose_beginning(&mut self) {
        self.gone = self.gone.saturating_add(1);
    }

    /// All records below this one are gone that were not added.
    pub fn reach(&mut self, sequence: u64) {
        if let Some(next) = self.next {
            self.gone = self.gone.saturating_add(sequence.saturating_sub(next));
        }
        self.next = self.next.max(Some(sequence));
    }

    /// The next record that can be read.
    pub fn add(&mut self, record: &RecordView) {
        self.reach(record.sequence);
        self.next = Some(record.sequence.saturating_add(1));
        let known = self.groups.get(&record.of.group).copied();
        let before = known.unwrap_or_default();
        let gone = self.gone - before.gone;
        let counted = before.count > 0 && record.count > 0;
        let step = (record.count + COUNT_MAX - before.count) % COUNT_MAX;
        let missing = u64::from(if step == 0 { COUNT_MAX } else { step }) - 1;
        let mut found = Found {
            count: record.count,
            gone: self.gone,
            ..before
        };
        if gone > 0 && counted && missing <= gone && gone < u64::from(COUNT_MAX) {
            found.lacks += missing;
            self.told += missing;
        } else if gone > 0 {
            found.unsure = true;
        }
        if record.is_log {
            // It stands for all before it.
            (found.lacks, found.unsure) = (0, false);
        }
        self.groups.insert(record.of.group, found);
    }

    /// The groups that have records, with what is known of them.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, Chain)> + '_ {
        let all_told = self.told == self.gone;
        self.groups.iter().map(move |(group, found)| {
            let chain = match found.lacks {
                0 if all_told || !found.unsure && found.gone == self.gone => Chain::Whole,
                0 => Chain::Unknown,
                lacks => Chain::Lacks(lacks),
            };
            (*group, chain)
        })
    }

    /// Whether every record that is gone is one of those groups'.
    pub const fn all_told(&self) -> bool {
        self.told == self.gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, EpochNumber, Slot, journal::GroupEpoch};
    use alloc::vec::Vec;

    /// Records by sequence, group and count.
    fn chains(records: &[(u64, u32, u32)]) -> (Vec<Chain>, bool) {
        let mut chains = Chains::default();
        for (sequence, group, count) in records {
            chains.add(&RecordView {
                sequence: *sequence,
                durable: 0,
                slot: Slot(1),
                of: GroupEpoch {
                    group: GroupId(*group),
                    epoch: EpochNumber(1),
                },
                count: *count,
                payload: Bytes::new(),
                is_log: false,
                length: 48,
            });
        }
        let groups = chains.groups().map(|(_, chain)| chain).collect();
        (groups, chains.all_told())
    }

    #[test]
    fn numbers_begin_again_after_the_highest() {
        let whole = [(1, 0, COUNT_MAX), (2, 1, 4), (3, 0, 1), (4, 1, 5)];
        assert_eq!(chains(&whole), (Vec::from([Chain::Whole; 2]), true));
        let lacks = [(1, 0, COUNT_MAX), (2, 1, 4), (4, 0, 2), (5, 1, 5)];
        let expected = Vec::from([Chain::Lacks(1), Chain::Whole]);
        assert_eq!(chains(&lacks), (expected, true));
    }

    #[test]
    fn records_without_numbers_tell_nothing() {
        let old = [(1, 0, 0), (2, 1, 0), (4, 0, 0), (5, 1, 0)];
        assert_eq!(chains(&old), (Vec::from([Chain::Unknown; 2]), false));
        let whole = [(1, 0, 0), (2, 1, 0), (3, 0, 1), (4, 1, 0)];
        assert_eq!(chains(&whole), (Vec::from([Chain::Whole; 2]), true));
    }

    /// As only damage writes them.
    #[test]
    fn highest_sequences_overflow_nothing() {
        let last = [(1, 0, 1), (u64::MAX, 1, 1), (u64::MAX, 0, 2)];
        assert_eq!(chains(&last), (Vec::from([Chain::Unknown; 2]), false));
        let mut chains = Chains::default();
        chains.reach(0);
        chains.reach(u64::MAX);
        chains.lose_beginning();
        assert!(!chains.all_told());
    }

    #[test]
    fn group_that_was_never_seen_before_a_hole_may_lack_some() {
        let first = [(1, 0, 1), (3, 1, 9), (4, 0, 2)];
        assert_eq!(
            chains(&first),
            (Vec::from([Chain::Whole, Chain::Unknown]), false)
        );
    }
}
