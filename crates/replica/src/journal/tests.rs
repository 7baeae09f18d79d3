use super::{writer::PIECE, *};
use crate::{ClusterId, EpochNumber, GroupId, GroupIndex, ReplicaId, Slot, Write};
use alloc::{collections::BTreeMap, format, vec};
use proptest::prelude::*;

/// A disk in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    pub segments: BTreeMap<u64, Vec<u8>>,
    pub promises: [Vec<u8>; 2],
    pub promise_writes: usize,
    /// As written, and as a loss of power would leave them; none when it keeps no marks.
    pub marks: Option<[Vec<u8>; 2]>,
    /// Contents for the next segment that is made, as if its file had been used before.
    pub spare: Option<Vec<u8>>,
    /// Fail when this many more writes have been done.
    pub fail_after: Option<usize>,
    /// There is no room for new segments.
    pub full: bool,
    /// There is room for this many more.
    pub room: Option<usize>,
    /// Segments that were set aside.
    pub aside: Vec<u64>,
    /// The most bytes of one write.
    pub longest: usize,
}

impl Memory {
    pub fn write_allowed(&mut self) -> Result<(), &'static str> {
        match &mut self.fail_after {
            Some(0) => Err("the disk failed"),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Disk for Memory {
    type Error = &'static str;

    fn segments(&mut self) -> Result<Vec<u64>, &'static str> {
        Ok(self.segments.keys().copied().collect())
    }

    fn read(&mut self, segment: u64) -> Result<Bytes, &'static str> {
        let bytes = self.segments.get(&segment).ok_or("no such segment")?;
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn create(&mut self, segment: u64, length: u64) -> Result<(), &'static str> {
        self.write_allowed()?;
        if self.full || self.room == Some(0) {
            return Err(FULL);
        }
        self.room = self.room.map(|room| room - 1);
        let mut bytes = self.spare.take().unwrap_or_default();
        bytes.resize(length as usize, 0);
        self.segments.insert(segment, bytes);
        Ok(())
    }

    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), &'static str> {
        assert_eq!(
            (offset as usize % BLOCK, bytes.len() % BLOCK),
            (0, 0),
            "whole blocks"
        );
        self.write_allowed()?;
        self.longest = self.longest.max(bytes.len());
        let start = offset as usize;
        let file = self.segments.get_mut(&segment).ok_or("no such segment")?;
        file[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> Result<(), &'static str> {
        self.write_allowed()?;
        self.spare = self.segments.remove(&segment);
        Ok(())
    }

    fn discard(&mut self, segment: u64) -> Result<(), &'static str> {
        self.write_allowed()?;
        self.segments.remove(&segment);
        Ok(())
    }

    fn set_aside(&mut self, below: u64) -> Result<(), &'static str> {
        let old: Vec<u64> = self.segments.range(..below).map(|(of, _)| *of).collect();
        for segment in old {
            self.write_allowed()?;
            self.segments.remove(&segment);
            self.aside.push(segment);
        }
        Ok(())
    }

    fn read_promise(&mut self, slot: usize) -> Result<Bytes, &'static str> {
        Ok(Bytes::copy_from_slice(&self.promises[slot]))
    }

    fn write_promise(&mut self, slot: usize, bytes: &[u8]) -> Result<(), &'static str> {
        self.write_allowed()?;
        self.promise_writes += 1;
        self.promises[slot] = bytes.to_vec();
        Ok(())
    }

    fn read_mark(&mut self, slot: usize) -> Result<Option<Bytes>, &'static str> {
        let marks = self.marks.as_ref();
        Ok(marks.map(|marks| Bytes::copy_from_slice(&marks[slot])))
    }

    fn write_mark(&mut self, slot: usize, bytes: &[u8], _: bool) -> Result<(), &'static str> {
        let marks = self.marks.as_mut().ok_or("no marks are kept")?;
        marks[slot] = bytes.to_vec();
        Ok(())
    }

    fn is_full(error: &&'static str) -> bool {
        *error == FULL
    }
}

const FULL: &str = "no room";

pub(super) const SEGMENT: u64 = 4 * BLOCK as u64;

pub(super) fn identity() -> Identity {
    Identity {
        cluster: ClusterId(7),
        node: ReplicaId(1),
    }
}

pub(super) const fn group(group: u32, epoch: u64) -> GroupEpoch {
    GroupEpoch {
        group: GroupId(group),
        epoch: EpochNumber(epoch),
    }
}

/// Group 0 alone, as a process without groups has it.
const ALONE: [GroupEpoch; 1] = [group(0, 1)];
const ZERO: GroupIndex = GroupIndex(0);

fn open(disk: Memory) -> Result<Opened<Memory>, JournalError<&'static str>> {
    Journal::open(disk, identity(), &ALONE, SEGMENT)
}

fn fresh() -> Journal<Memory> {
    open(Memory::default())
        .expect("an empty disk opens")
        .journal
}

fn record(slot: u64, length: usize) -> Write {
    Write::Record {
        slot: Slot(slot),
        record: vec![slot as u8 + 1; length].into(),
    }
}

fn slots(opened: &Opened<Memory>) -> Vec<u64> {
    opened.groups[0]
        .records
        .iter()
        .map(|(slot, _)| slot.0)
        .collect()
}

/// One record per commit.
fn written(records: u64, length: usize) -> Memory {
    let mut journal = fresh();
    for slot in 1..=records {
        journal.append(ZERO, &record(slot, length)).expect("room");
        journal.commit().expect("room");
    }
    journal.into_disk()
}

#[test]
fn committed_records_survive_segments_and_restarts() {
    let mut disk = Memory::default();
    let mut expected = Vec::new();
    for run in 0..5u64 {
        let opened = open(disk).expect("opens");
        assert_eq!(slots(&opened), expected);
        assert!(!opened.torn);
        let mut journal = opened.journal;
        for at in 0..20 {
            let slot = run * 20 + at;
            expected.push(slot);
            journal
                .append(ZERO, &record(slot, 300 + at as usize * 7))
                .expect("room");
            if at % 3 == 0 {
                journal.commit().expect("room");
            }
        }
        journal.commit().expect("room");
        disk = journal.into_disk();
    }
    assert!(disk.segments.len() > 1);
    let opened = open(disk).expect("opens");
    assert!(
        opened.groups[0]
            .records
            .iter()
            .all(|(slot, bytes)| bytes.iter().all(|b| *b == slot.0 as u8 + 1))
    );
}

#[test]
fn record_larger_than_segment_gets_its_own_segment() {
    let mut journal = fresh();
    for (slot, length) in [(1, 10), (2, 100_000), (3, 10)] {
        journal.append(ZERO, &record(slot, length)).expect("room");
    }
    journal.commit().expect("room");
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(slots(&opened), [1, 2, 3]);
    assert_eq!(opened.groups[0].records[1].1.len(), 100_000);
}

#[test]
fn long_record_without_last_piece_is_none() {
    let long = record(2, 3 * PIECE + 100);
    let mut before = written(1, 100);
    before.longest = 0;
    let write = |fail_after| {
        let mut disk = before.clone();
        disk.fail_after = fail_after;
        let mut journal = open(disk).expect("opens").journal;
        let written = journal.append(ZERO, &long).and_then(|()| journal.commit());
        let mut disk = journal.into_disk();
        disk.fail_after = None;
        (written.is_ok(), disk)
    };
    let (whole, disk) = write(None);
    assert!(
        whole && disk.longest <= PIECE + 2 * BLOCK,
        "{}",
        disk.longest
    );
    let found = open(disk).expect("opens");
    assert_eq!(slots(&found), [1, 2]);
    let Write::Record { record, .. } = &long else {
        unreachable!("it is a record")
    };
    assert_eq!(found.groups[0].records[1].1, record);
    for writes in 0.. {
        let (whole, disk) = write(Some(writes));
        let found = open(disk).expect("a torn write is no damage");
        if whole {
            assert!(writes > 4, "one of the segment, four of the record");
            break;
        }
        assert_eq!(slots(&found), [1], "after {writes} writes");
    }
}

#[test]
fn tail_cut_at_any_byte_loses_only_unfinished_write() {
    let before = written(3, 100);
    let mut journal = open(before.clone()).expect("opens").journal;
    for slot in 4..7 {
        journal.append(ZERO, &record(slot, 700)).expect("room");
    }
    journal.commit().expect("room");
    let after = journal.into_disk();
    let (number, whole) = after.segments.last_key_value().expect("there is one");
    let old = &before.segments[number];
    for cut in 0..whole.len() {
        let mut torn = whole[..cut].to_vec();
        torn.extend_from_slice(&old[cut..]);
        let mut disk = before.clone();
        disk.segments.insert(*number, torn);
        let opened = open(disk).expect("a torn tail is no damage");
        let found = slots(&opened);
        assert!(
            found.starts_with(&[1, 2, 3]) && found.len() <= 6,
            "cut at {cut}: {found:?}"
        );
        assert!((1..=6).take(found.len()).eq(found.iter().copied()));
        // The next record stands where the torn write was, and is all that is found there.
        let count = found.len();
        let mut journal = opened.journal;
        journal.append(ZERO, &record(9, 50)).expect("room");
        journal.commit().expect("room");
        let again = slots(&open(journal.into_disk()).expect("opens"));
        assert_eq!(
            (again.len(), again.last()),
            (count + 1, Some(&9)),
            "cut at {cut}"
        );
    }
}

#[test]
fn out_of_order_sectors_of_unfinished_write_are_no_damage() {
    let before = written(2, 100);
    let mut journal = open(before.clone()).expect("opens").journal;
    for slot in 3..8 {
        journal.append(ZERO, &record(slot, 600)).expect("room");
    }
    journal.commit().expect("room");
    let after = journal.into_disk();
    let (number, whole) = after.segments.last_key_value().expect("there is one");
    for lost in (BLOCK..whole.len()).step_by(512) {
        let mut torn = whole.clone();
        torn[lost..lost + 512].copy_from_slice(&before.segments[number][lost..lost + 512]);
        let mut disk = after.clone();
        disk.segments.insert(*number, torn);
        let opened = open(disk).expect("a torn tail is no damage");
        let count = slots(&opened).len();
        assert!((2..=7).contains(&count));
        let mut journal = opened.journal;
        journal.append(ZERO, &record(9, 600)).expect("room");
        journal.commit().expect("room");
        let again = slots(&open(journal.into_disk()).expect("opens"));
        assert_eq!(
            again.len(),
            count + 1,
            "sector {lost}: nothing of the torn write came back"
        );
    }
}

#[test]
fn corrupt_byte_before_later_commit_is_rejected_unchanged() {
    let disk = written(120, 200);
    assert!(disk.segments.len() > 2);
    let whole = slots(&open(disk.clone()).expect("opens"));
    let numbers: Vec<u64> = disk.segments.keys().copied().collect();
    let mut refused = 0;
    for number in numbers {
        for at in (0..SEGMENT as usize).step_by(13) {
            let mut damaged = disk.clone();
            let file = damaged.segments.get_mut(&number).expect("there");
            file[at] ^= 0x40;
            match open(damaged) {
                Err(JournalError::Damaged { segment, .. }) => {
                    assert_eq!(segment, number, "offset {at}");
                    refused += 1;
                }
                Err(JournalError::Newer { .. } | JournalError::Foreign { .. }) => refused += 1,
                Err(other) => panic!("segment {number} offset {at}: {other}"),
                Ok(opened) => {
                    // A byte that no record covers, or the last write, which nothing proves.
                    let found = slots(&opened);
                    assert!(
                        found == whole || found == whole[..whole.len() - 1],
                        "segment {number} offset {at}: {found:?}"
                    );
                }
            }
        }
    }
    assert!(refused > 500);
}

#[test]
fn missing_segment_is_named() {
    let mut disk = written(120, 200);
    let number = *disk
        .segments
        .keys()
        .nth(1)
        .expect("there are more than two");
    disk.segments.remove(&number);
    match open(disk) {
        Err(JournalError::Gap { segment, .. }) => assert_eq!(segment, number),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened"),
    }
}

#[test]
fn files_of_another_owner_or_a_newer_format_are_refused() {
    let disk = written(3, 10);
    let other = Identity {
        node: ReplicaId(2),
        ..identity()
    };
    let opened = Journal::open(disk.clone(), other, &ALONE, SEGMENT);
    assert!(matches!(opened, Err(JournalError::Foreign { .. })));
    let mut newer = disk;
    let file = newer.segments.values_mut().next().expect("there");
    file[8] = 9;
    // A version that only rotted is damage, not a newer format.
    assert!(!matches!(
        open(newer.clone()),
        Err(JournalError::Newer { .. })
    ));
    let file = newer.segments.values_mut().next().expect("there");
    let fields = 8 + 4 + 16 + 2 + 8 + 8;
    let checksum = crate::checksum(&file[..fields]).to_le_bytes();
    file[fields..fields + 4].copy_from_slice(&checksum);
    assert!(matches!(
        open(newer),
        Err(JournalError::Newer { theirs: 9, .. })
    ));
}

#[test]
fn bit_error_in_one_copy_of_promises_is_repaired() {
    let mut journal = fresh();
    let promise = Bytes::from("mine");
    journal
        .append(ZERO, &Write::Promise(promise.clone()))
        .expect("writes");
    journal.commit().expect("writes");
    let disk = journal.into_disk();
    for slot in 0..2 {
        for bit in 0..disk.promises[slot].len() * 8 {
            let mut disk = disk.clone();
            disk.promises[slot][bit / 8] ^= 1 << (bit % 8);
            let opened = open(disk).unwrap_or_else(|error| panic!("bit {bit}: {error}"));
            assert_eq!(opened.groups[0].promise, Some(promise.clone()), "bit {bit}");
        }
    }
}

#[test]
fn trimming_removes_unneeded_segments_and_reuses_files() {
    let mut journal = fresh();
    for slot in 1..=100u64 {
        journal.append(ZERO, &record(slot, 200)).expect("room");
        journal.commit().expect("room");
        if slot % 20 == 0 {
            journal.trim(ZERO, Slot(slot - 5)).expect("removes");
        }
    }
    let opened = open(journal.into_disk()).expect("what a reused file held before is no record");
    let found = slots(&opened);
    assert_eq!(found.last(), Some(&100));
    assert!(found[0] <= 95 && found[0] > 40, "{found:?}");
    assert!(!opened.torn);
}

#[test]
fn last_promise_is_found_and_one_damaged_copy_is_repaired() {
    let mut journal = fresh();
    for text in ["one", "two", "three"] {
        journal
            .append(ZERO, &Write::Promise(Bytes::from(text)))
            .expect("writes");
        journal.commit().expect("writes");
    }
    let disk = journal.into_disk();
    for slot in 0..2 {
        for at in 0..disk.promises[slot].len() {
            let mut damaged = disk.clone();
            damaged.promises[slot][at] ^= 1;
            match open(damaged) {
                Ok(opened) => {
                    assert_eq!(opened.groups[0].promise.as_deref(), Some(&b"three"[..]));
                    assert!(opened.promise_repaired);
                    assert_eq!(
                        open(opened.journal.into_disk()).map(|o| o.promise_repaired),
                        Ok(false)
                    );
                }
                Err(JournalError::Newer { .. }) => {}
                Err(other) => panic!("slot {slot} byte {at}: {other}"),
            }
        }
    }
    let mut lost = disk;
    lost.promises.iter_mut().for_each(|slot| slot[30] ^= 1);
    assert!(matches!(open(lost), Err(JournalError::PromisesLost)));
}

#[test]
fn crash_between_both_copies_leaves_old_or_new_promise() {
    let mut journal = fresh();
    journal
        .append(ZERO, &Write::Promise(Bytes::from("old")))
        .expect("writes");
    journal.commit().expect("writes");
    let before = journal.into_disk();
    for writes in 0..=2 {
        let mut disk = before.clone();
        disk.fail_after = Some(writes);
        let mut journal = open(disk).expect("opens").journal;
        let new = Write::Promise(Bytes::from("new"));
        let result = journal.append(ZERO, &new).and_then(|()| journal.commit());
        assert_eq!(result.is_ok(), writes == 2);
        let mut disk = journal.into_disk();
        disk.fail_after = None;
        let promise = open(disk).expect("opens").groups.remove(0).promise;
        let expected: &[u8] = if writes == 0 { b"old" } else { b"new" };
        assert_eq!(promise.as_deref(), Some(expected));
    }
}

#[test]
fn promise_makes_everything_before_it_durable() {
    let mut journal = fresh();
    journal.append(ZERO, &record(1, 10)).expect("room");
    journal
        .append(ZERO, &Write::Promise(Bytes::from("p")))
        .expect("writes");
    journal.append(ZERO, &record(2, 10)).expect("room");
    // No commit: the process dies here.
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(slots(&opened), [1]);
    assert_eq!(opened.groups[0].promise.as_deref(), Some(&b"p"[..]));
    let error = fresh().append(ZERO, &Write::Promise(vec![0; PROMISE_SLOT].into()));
    assert_eq!(error, Err(JournalError::PromiseTooLong(PROMISE_SLOT)));
    assert!(format!("{}", JournalError::<&str>::PromisesLost).contains("add a new member"));
}

/// Begun again without a record; `complete`: from nothing.
fn begun_again(disk: Memory, complete: bool) -> Opened<Memory> {
    let beginnings = vec![Beginning::Empty { complete }];
    Journal::begin_again(disk, identity(), &ALONE, SEGMENT, beginnings).expect("begins")
}

/// One record per commit, on a disk that keeps marks.
fn marked(records: u64, length: usize) -> Memory {
    let disk = Memory {
        marks: Some([vec![0; MARK_SLOT], vec![0; MARK_SLOT]]),
        ..Memory::default()
    };
    let mut journal = open(disk).expect("an empty disk opens").journal;
    for slot in 1..=records {
        journal.append(ZERO, &record(slot, length)).expect("room");
        journal.commit().expect("room");
    }
    journal.into_disk()
}

#[test]
fn mark_distinguishes_corrupt_record_from_unfinished_write() {
    let disk = marked(40, 700);
    assert!(disk.segments.len() > 2);
    let whole = slots(&open(disk.clone()).expect("opens"));
    let numbers: Vec<u64> = disk.segments.keys().copied().collect();
    let mut refused = 0;
    for number in numbers {
        for at in (0..SEGMENT as usize).step_by(11) {
            let mut damaged = disk.clone();
            damaged.segments.get_mut(&number).expect("there")[at] ^= 0x40;
            match open(damaged) {
                Ok(opened) => assert_eq!(slots(&opened), whole, "segment {number} offset {at}"),
                Err(JournalError::Damaged { segment, .. }) if segment == number => refused += 1,
                Err(JournalError::Newer { .. } | JournalError::Foreign { .. }) => refused += 1,
                Err(other) => panic!("segment {number} offset {at}: {other}"),
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn lost_or_misdirected_write_is_damage() {
    let mut before = marked(3, 100);
    let mut journal = open(before.clone()).expect("opens").journal;
    journal.append(ZERO, &record(4, 5000)).expect("room");
    journal.commit().expect("room");
    let after = journal.into_disk();
    // The disk said that it had written, and had not.
    before.marks.clone_from(&after.marks);
    let lost = open(before.clone()).expect_err("refused");
    let JournalError::Damaged {
        sequence: 4,
        offset,
        ..
    } = lost
    else {
        panic!("{lost}")
    };
    // It wrote the same blocks one block further on.
    let (number, whole) = after.segments.last_key_value().expect("there is one");
    let start = offset as usize / BLOCK * BLOCK;
    let length = 2 * BLOCK;
    let file = before.segments.get_mut(number).expect("there");
    file[start + BLOCK..start + BLOCK + length].copy_from_slice(&whole[start..start + length]);
    assert!(open(before).expect_err("refused").is_damage());
}

#[test]
fn segment_cut_at_any_length_is_damage_or_lost_nothing() {
    let disk = marked(20, 700);
    for number in disk.segments.keys() {
        for length in (0..SEGMENT as usize).step_by(97) {
            let mut cut = disk.clone();
            cut.segments
                .get_mut(number)
                .expect("there")
                .truncate(length);
            match open(cut) {
                Ok(opened) => assert_eq!(slots(&opened).len(), 20, "{number} cut at {length}"),
                Err(error) => assert!(error.is_damage(), "{number} cut at {length}: {error}"),
            }
        }
    }
}

#[test]
fn lost_segments_are_damage_wherever_they_stood() {
    let disk = marked(60, 700);
    let last = *disk.segments.keys().last().expect("there");
    for number in disk.segments.keys() {
        let mut lost = disk.clone();
        lost.segments.remove(number);
        let error = open(lost).expect_err("refused");
        assert!(error.is_damage(), "segment {number}: {error}");
        let named = format!("segment {number} ");
        assert!(
            *number == last || format!("{error}").contains(&named),
            "{error}"
        );
    }
    let none = Memory {
        segments: BTreeMap::new(),
        ..disk
    };
    assert!(open(none).expect_err("refused").is_damage());
}

/// Nothing is trimmed before a mark is durable, so a journal without marks begins with its first
/// record.
#[test]
fn first_segment_is_missed_before_any_mark() {
    let mut disk = marked(60, 700);
    disk.marks = Some([vec![0; MARK_SLOT], vec![0; MARK_SLOT]]);
    assert!(open(disk.clone()).is_ok());
    let first = *disk.segments.keys().next().expect("there");
    disk.segments.remove(&first);
    assert!(open(disk).is_err_and(|error| error.is_damage()));
}

#[test]
fn mark_with_numbers_at_end_of_range_is_damaged() {
    let mut disk = marked(5, 700);
    for number in [u64::MAX - 1, u64::MAX] {
        let mark = mark::Mark {
            number,
            durable: u64::MAX,
            first: u64::MAX,
            complete: true,
            group: ALONE[0],
        };
        mark.write(&mut disk, &identity(), true).expect("room");
    }
    let opened = open(disk.clone()).expect("a whole journal opens without marks");
    assert_eq!(slots(&opened), [1, 2, 3, 4, 5]);
    assert!(!opened.groups[0].complete);
    begun_again(disk, false);
}

#[test]
fn lost_mark_proves_less_and_two_damaged_ones_exclude_torn_tail() {
    let disk = marked(5, 700);
    let marks = disk.marks.clone().expect("kept");
    for (slot, mark) in marks.iter().enumerate() {
        for change in [vec![0; MARK_SLOT], vec![7; MARK_SLOT]] {
            let mut older = disk.clone();
            older.marks.as_mut().expect("kept")[slot] = change;
            assert_eq!(slots(&open(older).expect("opens")), [1, 2, 3, 4, 5]);
        }
        for at in 0..mark.len() {
            let mut inverted = disk.clone();
            inverted.marks.as_mut().expect("kept")[slot][at] ^= 0x20;
            match open(inverted) {
                Ok(opened) => assert_eq!(slots(&opened), [1, 2, 3, 4, 5], "byte {at}"),
                Err(JournalError::Newer { .. }) => {}
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
    let mut both = disk;
    both.marks = Some([vec![7; MARK_SLOT], vec![7; MARK_SLOT]]);
    let opened = open(both.clone()).expect("a whole journal opens without marks");
    assert!(!opened.groups[0].complete);
    // An unreadable record at the end may have been acknowledged.
    let (number, file) = both.segments.last_key_value().expect("there is one");
    let (number, mut torn) = (*number, file.clone());
    let end = torn.iter().rposition(|byte| *byte != 0).expect("there");
    torn[end] ^= 1;
    both.segments.insert(number, torn);
    assert!(open(both).expect_err("refused").is_damage());
    // Readable marks are there again.
    let again = open(opened.journal.into_disk()).expect("opens");
    assert_eq!(slots(&again), [1, 2, 3, 4, 5]);
}

#[test]
fn crash_during_trimming_is_no_damage() {
    let disk = marked(60, 700);
    let all = disk.segments.clone();
    let mut journal = open(disk).expect("opens").journal;
    journal.trim(ZERO, Slot(50)).expect("removes");
    let trimmed = journal.into_disk();
    let gone: Vec<u64> = all
        .keys()
        .copied()
        .filter(|number| !trimmed.segments.contains_key(number))
        .collect();
    assert!(gone.len() > 1);
    for kept in 0..=gone.len() {
        let mut disk = trimmed.clone();
        for number in &gone[kept..] {
            disk.segments.insert(*number, all[number].clone());
        }
        let opened = open(disk).expect("opens");
        assert!(!opened.groups[0].complete);
        assert_eq!(slots(&opened).last(), Some(&60));
        assert_eq!(opened.journal.into_disk().segments, trimmed.segments);
    }
}

#[test]
fn damaged_journal_begins_again_with_its_promises_only() {
    let mut journal = open(marked(10, 700)).expect("opens").journal;
    journal
        .append(ZERO, &Write::Promise(Bytes::from("kept")))
        .expect("writes");
    journal.commit().expect("writes");
    let mut disk = journal.into_disk();
    assert!(open(disk.clone()).expect("opens").groups[0].complete);
    let first = *disk.segments.keys().next().expect("there");
    disk.segments.get_mut(&first).expect("there")[BLOCK + 60] ^= 1;
    assert!(open(disk.clone()).expect_err("refused").is_damage());
    let opened = begun_again(disk, false);
    assert_eq!(opened.groups[0].promise.as_deref(), Some(&b"kept"[..]));
    assert!(opened.groups[0].records.is_empty());
    // Dying at once leaves a journal that opens.
    let opened = open(opened.journal.into_disk()).expect("opens");
    let mut journal = opened.journal;
    for slot in 30..40 {
        journal.append(ZERO, &record(slot, 700)).expect("room");
        journal.commit().expect("room");
    }
    let opened = open(journal.into_disk()).expect("what the old files held is no record");
    assert_eq!(slots(&opened), (30..40).collect::<Vec<_>>());
    assert!(!opened.groups[0].complete && !opened.torn);
}

#[test]
fn restart_before_first_write_survives_loss_of_marks() {
    let mut disk = marked(10, 700);
    let first = *disk.segments.keys().next().expect("there");
    disk.segments.get_mut(&first).expect("there")[BLOCK + 60] ^= 1;
    let begun = begun_again(disk, true);
    let mut journal = open(begun.journal.into_disk()).expect("opens").journal;
    let before = journal.disk().marks.clone();
    for slot in 1..=60 {
        journal.append(ZERO, &record(slot, 700)).expect("room");
        journal.commit().expect("room");
    }
    let mut disk = journal.into_disk();
    assert!(disk.segments.len() > 2);
    // Marks are not synced: power is lost, and the old ones are what there is.
    disk.marks = before;
    let opened = open(disk).expect("opens");
    assert_eq!(slots(&opened), (1..=60).collect::<Vec<_>>());
}

#[test]
fn empty_segments_do_not_hide_empty_beginning() {
    let mut disk = Memory {
        marks: Some(Default::default()),
        ..Memory::default()
    };
    for _ in 0..3 {
        let opened = open(disk).expect("opens");
        assert!(opened.groups[0].complete && opened.groups[0].records.is_empty());
        let mut journal = opened.journal;
        // The segment is made, and then the power goes before anything is written to it.
        journal.disk().fail_after = Some(1);
        journal.append(ZERO, &record(1, 700)).expect("room");
        journal.commit().expect_err("the disk failed");
        disk = journal.into_disk();
        disk.fail_after = None;
    }
    let opened = open(disk).expect("opens");
    let mut journal = opened.journal;
    journal.append(ZERO, &record(1, 700)).expect("room");
    journal.commit().expect("room");
    let opened = open(journal.into_disk()).expect("opens");
    assert!(opened.groups[0].complete);
    assert_eq!(slots(&opened), [1]);
}

#[test]
fn write_without_space_keeps_earlier_ones_and_retries() {
    let mut journal = open(marked(1, 700)).expect("opens").journal;
    let mut slot = 2;
    journal.disk().full = true;
    loop {
        match journal.append(ZERO, &record(slot, 700)) {
            Ok(()) => slot += 1,
            Err(JournalError::Full(FULL)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    let found = slots(&open(journal.disk().clone()).expect("opens"));
    assert_eq!(found, (1..slot).collect::<Vec<_>>());
    assert!(matches!(
        journal.append(ZERO, &record(slot, 700)),
        Err(JournalError::Full(_))
    ));
    journal.disk().full = false;
    journal
        .append(ZERO, &record(slot, 700))
        .expect("room again");
    journal.commit().expect("writes");
    let found = slots(&open(journal.into_disk()).expect("opens"));
    assert_eq!(found, (1..=slot).collect::<Vec<_>>());
}

#[test]
fn inspection_shows_every_record_and_verdict_of_start() {
    let mut disk = marked(20, 700);
    let mut seen = Vec::new();
    let found = inspect(&mut disk, &identity(), |record| seen.push(*record)).expect("reads");
    assert!(found.verdict.is_none() && found.complete && !found.torn);
    assert_eq!(found.durable, Some(20));
    assert_eq!(found.segments.iter().map(|s| s.records).sum::<u64>(), 20);
    assert!(seen.iter().map(|record| record.slot.0).eq(1..=20));
    let damage = seen[6];
    let at = damage.offset as usize + RECORD_HEADER + 3;
    disk.segments.get_mut(&damage.segment).expect("there")[at] ^= 1;
    let found = inspect(&mut disk, &identity(), |_| {}).expect("reads");
    assert!(matches!(
        found.verdict,
        Some(JournalError::Damaged { segment, offset, sequence: 7 })
            if (segment, offset) == (damage.segment, damage.offset)
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_at_all_make_it_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..3 * BLOCK),
        offset in 0..SEGMENT as usize,
        promise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut disk = written(20, 150);
        let file = disk.segments.values_mut().next().expect("there");
        for (at, byte) in noise.iter().enumerate() {
            if let Some(place) = file.get_mut(offset + at) {
                *place = *byte;
            }
        }
        disk.promises[1] = promise;
        let _ = open(disk);
        let mut short = Memory::default();
        short.segments.insert(1, noise);
        let _ = open(short);
    }
}

fn open_in(disk: Memory, epoch: u64) -> Result<Opened<Memory>, JournalError<&'static str>> {
    Journal::open(disk, identity(), &[group(0, epoch)], SEGMENT)
}

#[test]
fn later_epoch_finds_no_records_or_promises_of_earlier_ones() {
    for records in [0, 1, 40] {
        let marked = || Memory {
            marks: Some(Default::default()),
            ..Memory::default()
        };
        let fresh = || open(marked()).expect("opens").journal;
        let mut journal = fresh();
        journal
            .append(ZERO, &Write::Promise(Bytes::from_static(b"old")))
            .expect("room");
        for slot in 1..=records {
            journal.append(ZERO, &record(slot, 1000)).expect("room");
        }
        // A crash may come before the journal is told, or after.
        let mut crashed = fresh();
        crashed
            .append(ZERO, &Write::Promise(Bytes::from_static(b"old")))
            .expect("room");
        crashed.commit().expect("room");
        let crashed = open_in(crashed.into_disk(), 2).expect("opens");
        assert_eq!(
            (&crashed.groups[0].promise, slots(&crashed)),
            (&None, vec![])
        );

        journal.enter(ZERO, EpochNumber(2)).expect("room");
        let opened = open_in(journal.into_disk(), 2).expect("opens");
        assert_eq!((&opened.groups[0].promise, slots(&opened)), (&None, vec![]));
        assert!(!opened.groups[0].complete, "the beginning is in a snapshot");
        let mut journal = opened.journal;
        assert!(journal.bytes() <= SEGMENT, "{records} records were kept");
        journal.append(ZERO, &record(1, 10)).expect("room");
        journal
            .append(ZERO, &Write::Promise(Bytes::from_static(b"new")))
            .expect("room");
        journal.commit().expect("room");
        let opened = open_in(journal.into_disk(), 2).expect("opens");
        assert_eq!(opened.groups[0].promise.as_deref(), Some(&b"new"[..]));
        assert_eq!(slots(&opened), [1]);
        // Under an older copy of the files that name the epoch nothing is done.
        let refused = open_in(opened.journal.into_disk(), 1).map(drop);
        assert!(
            matches!(refused, Err(JournalError::LaterEpoch { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn damaged_copy_of_a_promise_of_an_earlier_epoch_is_repaired() {
    let mut journal = fresh();
    journal
        .append(ZERO, &Write::Promise(Bytes::from_static(b"old")))
        .expect("room");
    journal.commit().expect("room");
    let mut disk = journal.into_disk();
    disk.promises[0] = vec![7; 100];
    let opened = open_in(disk, 2).expect("opens");
    assert_eq!(
        (&opened.groups[0].promise, opened.promise_repaired),
        (&None, true)
    );
    let mut disk = opened.journal.into_disk();
    // Now the other one may be damaged.
    disk.promises[1] = vec![7; 100];
    assert!(open_in(disk, 2).is_ok());
}
