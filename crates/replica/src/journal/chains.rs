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

use super::format::{COUNT_MAX, GroupEpoch, RecordView};
use crate::{EpochNumber, GroupId};
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
    /// The readable records contradict each other.
    confused: bool,
    /// By epoch, too: a start counts the records of the present one alone.
    groups: BTreeMap<(GroupId, EpochNumber), Found>,
}

impl Chains {
    /// The sequence that the next record should have.
    pub const fn next(&self) -> Option<u64> {
        self.next
    }

    /// Any number of records may be gone before the next one, or behind the last one.
    pub const fn lose_some(&mut self) {
        self.gone = self.gone.saturating_add(1);
    }

    /// The readable records contradict each other, or too little is known of them: nothing is
    /// certain of any group.
    pub const fn confuse(&mut self) {
        self.confused = true;
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
        let of = (record.of.group, record.of.epoch);
        let before = self.groups.get(&of).copied().unwrap_or_default();
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
        self.groups.insert(of, found);
    }

    /// The groups that have records, with what is known of those of each epoch.
    pub fn groups(&self) -> impl Iterator<Item = (GroupEpoch, Chain)> + '_ {
        let (all_told, certain) = (self.all_told(), !self.confused);
        self.groups.iter().map(move |((group, epoch), found)| {
            let chain = match found.lacks {
                0 if all_told || certain && !found.unsure && found.gone == self.gone => {
                    Chain::Whole
                }
                0 => Chain::Unknown,
                lacks => Chain::Lacks(lacks),
            };
            let (group, epoch) = (*group, *epoch);
            (GroupEpoch { group, epoch }, chain)
        })
    }

    /// Whether every record that is gone is one of those groups'.
    pub const fn all_told(&self) -> bool {
        self.told == self.gone && !self.confused
    }

    /// Whether no record of this group's epoch is missing.
    pub fn is_whole(&self, group: GroupEpoch) -> bool {
        let mut known = self.groups().filter(|(of, _)| *of == group);
        let chain = known.next().map(|(_, chain)| chain);
        chain.map_or(self.all_told(), |chain| chain == Chain::Whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, Slot};
    use alloc::vec::Vec;

    fn record(sequence: u64, group: u32, count: u32) -> RecordView {
        RecordView {
            sequence,
            durable: 0,
            slot: Slot(1),
            of: GroupEpoch {
                group: GroupId(group),
                epoch: EpochNumber(1),
            },
            count,
            payload: Bytes::new(),
            is_log: false,
            length: 48,
        }
    }

    /// Records by sequence, group and count.
    fn chains(records: &[(u64, u32, u32)]) -> (Vec<Chain>, bool) {
        let mut chains = Chains::default();
        for (sequence, group, count) in records {
            chains.add(&record(*sequence, *group, *count));
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

    /// A start finds no record of a new epoch and counts from 1 again.
    #[test]
    fn numbers_of_an_earlier_epoch_tell_nothing() {
        let mut chains = Chains::default();
        for (sequence, epoch, count) in [(1, 1, 1), (3, 2, 2)] {
            let mut record = record(sequence, 0, count);
            record.of.epoch = EpochNumber(epoch);
            chains.add(&record);
        }
        let of = |epoch| GroupEpoch {
            group: GroupId(0),
            epoch: EpochNumber(epoch),
        };
        assert!(!chains.is_whole(of(2)) && !chains.is_whole(of(1)));
    }

    /// As only damage writes them.
    #[test]
    fn highest_sequences_overflow_nothing() {
        let last = [(1, 0, 1), (u64::MAX, 1, 1), (u64::MAX, 0, 2)];
        assert_eq!(chains(&last), (Vec::from([Chain::Unknown; 2]), false));
        let mut chains = Chains::default();
        chains.reach(0);
        chains.reach(u64::MAX);
        chains.lose_some();
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
