//! A damaged journal of several groups is begun again with those that lack nothing.

use super::{
    tests::{Memory, SEGMENT, group, identity},
    *,
};
use crate::{GroupIndex, Injected, Slot, Write};
use alloc::{vec, vec::Vec};

const A: GroupIndex = GroupIndex(0);
const B: GroupIndex = GroupIndex(1);
const C: GroupIndex = GroupIndex(2);
const GROUPS: [GroupEpoch; 3] = [group(0, 1), group(7, 3), group(9, 1)];

/// A disk that is there after a journal on it has failed.
struct Lent<'a>(&'a mut Memory);

impl Disk for Lent<'_> {
    type Error = &'static str;

    fn segments(&mut self) -> Result<Vec<u64>, Self::Error> {
        self.0.segments()
    }
    fn read(&mut self, segment: u64) -> Result<Bytes, Self::Error> {
        self.0.read(segment)
    }
    fn create(&mut self, segment: u64, length: u64) -> Result<(), Self::Error> {
        self.0.create(segment, length)
    }
    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.0.write(segment, offset, bytes)
    }
    fn remove(&mut self, segment: u64) -> Result<(), Self::Error> {
        self.0.remove(segment)
    }
    fn discard(&mut self, segment: u64) -> Result<(), Self::Error> {
        self.0.discard(segment)
    }
    fn set_aside(&mut self, below: u64) -> Result<(), Self::Error> {
        self.0.set_aside(below)
    }
    fn is_full(error: &Self::Error) -> bool {
        Memory::is_full(error)
    }
    fn read_promise(&mut self, slot: usize) -> Result<Bytes, Self::Error> {
        self.0.read_promise(slot)
    }
    fn write_promise(&mut self, slot: usize, bytes: &[u8]) -> Result<(), Self::Error> {
        self.0.write_promise(slot, bytes)
    }
    fn read_mark(&mut self, slot: usize) -> Result<Option<Bytes>, Self::Error> {
        self.0.read_mark(slot)
    }
    fn write_mark(&mut self, slot: usize, bytes: &[u8], durable: bool) -> Result<(), Self::Error> {
        self.0.write_allowed()?;
        self.0.write_mark(slot, bytes, durable)
    }
}

fn open(disk: &mut Memory) -> Result<Opened<Lent<'_>>, JournalError<&'static str>> {
    Journal::open(Lent(disk), identity(), &GROUPS, SEGMENT)
}

fn fresh() -> Memory {
    Memory {
        marks: Some([vec![0; MARK_SLOT], vec![0; MARK_SLOT]]),
        ..Memory::default()
    }
}

fn record(slot: u64) -> Write {
    Write::Record {
        slot: Slot(slot),
        record: vec![slot as u8; 300].into(),
    }
}

/// Records of all groups in turn, of B twice as many, over several segments and starts, and a promise.
fn disk() -> Memory {
    let mut disk = fresh();
    for run in 0..3 {
        let mut journal = open(&mut disk).expect("opens").journal;
        for round in 0..10 {
            for (nth, group) in [A, B, C, B].into_iter().enumerate() {
                let slot = (run * 10 + round) * 4 + nth as u64;
                journal.append(group, &record(slot)).expect("room");
            }
            journal.commit().expect("room");
        }
        let promise = Write::Promise(Bytes::from_static(b"of b"));
        journal.append(B, &promise).expect("room");
        journal.commit().expect("room");
    }
    assert!(disk.segments.len() > 3);
    disk
}

fn all_records(disk: &Memory) -> Vec<RecordInfo> {
    let mut records = Vec::new();
    inspect(&mut disk.clone(), &identity(), |it| records.push(*it)).expect("reads");
    records
}

fn damage(disk: &mut Memory, record: &RecordInfo, byte: u64) {
    let file = disk.segments.get_mut(&record.segment).expect("there");
    file[(record.offset + byte) as usize] ^= 4;
}

fn slots(found: &Found) -> Vec<u64> {
    found.records.iter().map(|(slot, _)| slot.0).collect()
}

fn salvaged(disk: &mut Memory) -> [Option<Found>; 3] {
    let opened = open(disk).map(drop).expect_err("damaged");
    assert!(opened.is_damage(), "{opened}");
    let found = salvage(disk, &identity(), &GROUPS, Injected::default()).expect("reads");
    found.groups.try_into().expect("one for each group")
}

fn nothing_is_certain(disk: &mut Memory) -> bool {
    salvaged(disk).iter().all(Option::is_none)
}

fn begin(
    disk: &mut Memory,
    found: [Option<Found>; 3],
) -> Result<Opened<Lent<'_>>, JournalError<&'static str>> {
    let beginnings = found.map(|found| match found {
        Some(found) => Beginning::Kept(found),
        None => Beginning::Empty { complete: false },
    });
    Journal::begin_again(Lent(disk), identity(), &GROUPS, SEGMENT, beginnings.into())
}

fn expected(of: u64) -> Vec<u64> {
    (0..120).filter(|slot| (slot % 4).min(3) == of).collect()
}

#[test]
fn groups_that_lack_nothing_keep_their_records() {
    let whole = disk();
    let all = all_records(&whole);
    for nth in [9, 17, 41, 60] {
        for byte in [0, 2, 5, 9, 20, 30, 41, 46, 100, 347] {
            let mut disk = whole.clone();
            damage(&mut disk, &all[nth], byte);
            let found = salvaged(&mut disk);
            let lost = GROUPS.iter().position(|it| it.group == all[nth].group);
            let lost = lost.expect("known");
            for (at, found) in found.iter().enumerate() {
                assert_eq!(found.is_none(), at == lost, "record {nth}, byte {byte}");
            }
            let opened = begin(&mut disk, found).expect("begins");
            drop(opened);
            let mut opened = open(&mut disk).expect("opens");
            for (at, of) in [(0, vec![0]), (1, vec![1, 3]), (2, vec![2])] {
                let mut slots = slots(&opened.groups[at]);
                slots.sort_unstable();
                let all: Vec<u64> = (0..120).filter(|slot| of.contains(&(slot % 4))).collect();
                match at == lost {
                    true => assert_eq!(slots, [], "{at}"),
                    false => assert_eq!(slots, all, "{at}"),
                }
                assert_eq!(opened.groups[at].complete, at != lost);
            }
            assert_eq!(opened.groups[1].promise.as_deref(), Some(&b"of b"[..]));
            for slot in 200..230 {
                opened.journal.append(A, &record(slot)).expect("room");
                opened.journal.commit().expect("room");
            }
            drop(opened);
            let opened = open(&mut disk).expect("opens");
            let slots = slots(&opened.groups[0]);
            assert_eq!(slots.iter().filter(|slot| **slot >= 200).count(), 30);
        }
    }
}

/// Stopped at any step, it leaves the groups that lack nothing for the next start.
#[test]
fn crash_while_journal_is_begun_again_loses_no_group() {
    let mut damaged = disk();
    let all = all_records(&damaged);
    damage(&mut damaged, &all[17], 60);
    let before: Vec<u64> = damaged.segments.keys().copied().collect();
    let mut steps = 0;
    loop {
        let mut disk = damaged.clone();
        let found = salvaged(&mut disk);
        disk.fail_after = Some(steps);
        let done = begin(&mut disk, found).is_ok();
        disk.fail_after = None;
        if open(&mut disk).is_err() {
            let found = salvaged(&mut disk);
            begin(&mut disk, found).expect("begins");
        }
        let opened = open(&mut disk).expect("opens");
        let of = |at: usize| slots(&opened.groups[at]);
        assert_eq!(
            (of(0), of(1), of(2)),
            (expected(0), vec![], expected(2)),
            "step {steps}"
        );
        drop(opened);
        assert_eq!(disk.aside, before, "step {steps}");
        if done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
}

/// Until the new journal is in force the table says nothing of the one of before that is only true of
/// the new one.
#[test]
fn crash_leaves_no_promise_table_of_the_other_journal() {
    // Of a group whose records go back to the beginning, and no more will, and the other way round.
    for complete in [true, false] {
        let mut whole = disk();
        let mut journal = open(&mut whole).expect("opens").journal;
        if complete {
            journal.skip(B).expect("room");
        }
        journal.leave(C).expect("room");
        drop(journal);
        let mut steps = 0;
        while !begins_or_stops(whole.clone(), complete, steps) {
            steps += 1;
        }
        assert!(steps > 8, "{steps}");
    }
}

/// The second of two groups begins again without a record; a third one was left.
fn begins_or_stops(mut disk: Memory, complete: bool, steps: usize) -> bool {
    let groups = &GROUPS[..2];
    let open = |disk: &mut Memory| {
        let opened = Journal::open(Lent(disk), identity(), groups, SEGMENT);
        opened.map(|opened| opened.groups)
    };
    let a = open(&mut disk).expect("opens").swap_remove(0);
    let beginnings = vec![Beginning::Kept(a), Beginning::Empty { complete }];
    disk.fail_after = Some(steps);
    let begun = Journal::begin_again(Lent(&mut disk), identity(), groups, SEGMENT, beginnings);
    let done = begun.is_ok();
    disk.fail_after = None;
    let found: Vec<Found> = match open(&mut disk) {
        Err(error) => {
            assert!(error.is_damage(), "step {steps}: {error}");
            let salvaged = salvage(&mut disk, &identity(), groups, Injected::default());
            let found = salvaged.expect("reads").groups.into_iter();
            found.map(|of| of.expect("whole")).collect()
        }
        Ok(found) => found,
    };
    assert_eq!(slots(&found[0]), expected(0), "step {steps}");
    let (is_empty, is_complete) = (found[1].records.is_empty(), found[1].complete);
    // Which of them is in force tells whether all is there.
    let allowed = if is_empty { complete } else { !complete };
    assert!(!is_complete || allowed, "step {steps}");
    assert!(!done || (is_empty, is_complete) == (true, complete));
    done
}

#[test]
fn failed_attempts_leave_no_segments_behind() {
    let mut damaged = disk();
    let all = all_records(&damaged);
    damage(&mut damaged, &all[17], 60);
    let before: Vec<u64> = damaged.segments.keys().copied().collect();
    let mut full = damaged.clone();
    full.room = Some(1);
    let found = salvaged(&mut full);
    let error = begin(&mut full, found).map(drop).expect_err("no room");
    assert!(matches!(error, JournalError::Full(_)), "{error}");
    assert!(full.segments.keys().eq(&before));
    // A crash leaves those of one attempt, until the next.
    for steps in [3, 5, 3, 5, 3, 5, 3] {
        let found = salvaged(&mut damaged);
        damaged.fail_after = Some(steps);
        assert!(begin(&mut damaged, found).is_err());
        damaged.fail_after = None;
        let more = damaged.segments.len() - before.len();
        assert!((1..=2).contains(&more), "{more} segments");
    }
}

#[test]
fn segment_that_was_never_begun_hides_no_unfinished_write() {
    let mut torn = torn_disk();
    let next = torn.segments.keys().next_back().expect("there") + 1;
    torn.segments.insert(next, vec![0; SEGMENT as usize]);
    assert!(nothing_is_certain(&mut torn));
}

/// As clients can make them; the effort has a bound.
#[test]
fn end_with_countless_forged_records_counts_as_damaged() {
    let mut disk = fresh();
    let mut journal = open(&mut disk).expect("opens").journal;
    journal.append(A, &record(1)).expect("room");
    journal.commit().expect("room");
    drop(journal);
    let (number, file) = disk.segments.iter_mut().next_back().expect("there");
    let first = BLOCK + format::record_length(300);
    for at in (first..file.len() - RECORD_HEADER).step_by(RECORD_HEADER) {
        let mut header = Vec::new();
        let payload = vec![1; file.len() - at - RECORD_HEADER];
        let (of, kind) = ((*number, GROUPS[0]), (Slot(1), false));
        format::append_record_header(&mut header, of, (900, 0, 0), kind, &payload);
        file[at..at + RECORD_HEADER].copy_from_slice(&header);
    }
    let error = open(&mut disk).map(drop).expect_err("too many");
    assert!(error.is_damage(), "{error}");
}

/// A snapshot of a group may be lost, and the journal be whole.
#[test]
fn whole_journal_is_begun_again_without_a_group() {
    let whole = disk();
    let mut steps = 0;
    loop {
        let mut disk = whole.clone();
        let mut found = open(&mut disk).expect("opens").groups;
        let (c, _, a) = (found.pop(), found.pop(), found.pop());
        disk.fail_after = Some(steps);
        let done = begin(&mut disk, [a, None, c]).is_ok();
        disk.fail_after = None;
        if done {
            let opened = open(&mut disk).expect("opens");
            let of = |at: usize| slots(&opened.groups[at]);
            assert_eq!((of(0), of(1), of(2)), (expected(0), vec![], expected(2)));
            return;
        }
        // The journal of before is in force, and nothing of it is lost.
        match open(&mut disk).map(|opened| opened.groups) {
            Ok(groups) if !groups[1].records.is_empty() => assert_eq!(groups[1].records.len(), 60),
            Ok(groups) => assert_eq!(slots(&groups[0]), expected(0)),
            Err(_) => assert!(
                salvaged(&mut disk).iter().all(Option::is_some),
                "step {steps}"
            ),
        }
        steps += 1;
    }
}

#[test]
fn groups_are_uncertain_without_both_marks() {
    let mut damaged = disk();
    let all = all_records(&damaged);
    damage(&mut damaged, &all[17], 60);
    for slots in [&[0][..], &[1], &[0, 1]] {
        let mut disk = damaged.clone();
        for slot in slots {
            disk.marks.as_mut().expect("kept")[*slot][30] ^= 1;
        }
        assert!(nothing_is_certain(&mut disk), "{slots:?}");
    }
    for slot in 0..2 {
        let mut disk = damaged.clone();
        disk.marks.as_mut().expect("kept")[slot].fill(0);
        assert!(nothing_is_certain(&mut disk), "slot {slot} never written");
    }
    damaged.marks = None;
    assert!(nothing_is_certain(&mut damaged));
}

#[test]
fn groups_are_uncertain_without_beginning_or_end() {
    let whole = disk();
    let (first, last) = (
        *whole.segments.keys().next().expect("there"),
        *whole.segments.keys().next_back().expect("there"),
    );
    for gone in [first, last] {
        let mut disk = whole.clone();
        disk.segments.remove(&gone);
        assert!(nothing_is_certain(&mut disk), "segment {gone}");
    }
    let mut empty = whole.clone();
    empty.segments.clear();
    assert!(nothing_is_certain(&mut empty));
    let mut headless = whole.clone();
    headless.segments.get_mut(&first).expect("there")[9] ^= 1;
    damage(&mut headless, &all_records(&whole)[17], 60);
    assert!(nothing_is_certain(&mut headless));
    // The last record, of B: it might be anyone's.
    let mut end = whole.clone();
    damage(&mut end, all_records(&whole).last().expect("there"), 60);
    assert!(nothing_is_certain(&mut end));
}

/// A loss of power takes marks away that were not synced: the durable one is that of the beginning.
#[test]
fn first_segment_is_missed_whatever_the_mark_counts() {
    let found = [None, None, None];
    let mut disk = disk();
    drop(begin(&mut disk, found).expect("begins"));
    let marks = disk.marks.clone();
    let mut journal = open(&mut disk).expect("opens").journal;
    for slot in 1..60 {
        journal.append(A, &record(slot)).expect("room");
        journal.commit().expect("room");
    }
    drop(journal);
    disk.marks = marks;
    assert_eq!(slots(&open(&mut disk).expect("opens").groups[0]).len(), 59);
    let first = *disk.segments.keys().next().expect("there");
    disk.segments.remove(&first);
    assert!(nothing_is_certain(&mut disk));
}

/// Damaged, with an unfinished write at the end.
fn torn_disk() -> Memory {
    let mut torn = disk();
    let all = all_records(&torn);
    damage(&mut torn, &all[17], 60);
    let last = all.last().expect("there");
    let end = (last.offset + (RECORD_HEADER as u64 + last.length).next_multiple_of(8)) as usize;
    let next = last.sequence + 1;
    let file = torn.segments.get_mut(&last.segment).expect("there");
    file[end + 8..end + 16].copy_from_slice(&next.to_le_bytes());
    torn
}

#[test]
fn groups_are_uncertain_with_an_unfinished_write() {
    assert!(nothing_is_certain(&mut torn_disk()));
}

#[test]
fn records_without_numbers_tell_nothing_of_groups() {
    let mut disk = fresh();
    let alone = [GROUPS[0]];
    let opened = Journal::open(Lent(&mut disk), identity(), &alone, SEGMENT);
    let mut journal = opened.expect("opens").journal;
    for slot in 1..=30 {
        journal.append(A, &record(slot)).expect("room");
        journal.commit().expect("room");
    }
    drop(journal);
    let all = all_records(&disk);
    damage(&mut disk, &all[3], 60);
    assert!(nothing_is_certain(&mut disk));
}

/// A client may store anything, also what looks like a record that comes next.
#[test]
fn record_within_a_damaged_record_is_not_taken_for_one() {
    let forged = |segment: u64, sequence: u64| {
        let mut bytes = Vec::new();
        let of = (segment, GROUPS[2]);
        let payload = [7; 16];
        format::append_record_header(
            &mut bytes,
            of,
            (sequence, sequence - 1, 99),
            (Slot(999), false),
            &payload,
        );
        bytes.extend_from_slice(&payload);
        bytes
    };
    for behind in [0, 1, 5] {
        let mut disk = fresh();
        let mut journal = open(&mut disk).expect("opens").journal;
        for group in [A, B, C] {
            journal.append(group, &record(1)).expect("room");
        }
        let payload = forged(1, 5);
        let evil = Write::Record {
            slot: Slot(2),
            record: payload.into(),
        };
        journal.append(B, &evil).expect("room");
        for slot in 0..behind {
            journal.append(A, &record(2 + slot)).expect("room");
            journal.append(C, &record(2 + slot)).expect("room");
        }
        journal.commit().expect("room");
        drop(journal);
        let evil = all_records(&disk)[3];
        // Its length no longer leads behind it.
        damage(&mut disk, &evil, 0);
        let found = salvaged(&mut disk);
        assert!(
            found.iter().all(Option::is_none),
            "{behind} records behind it"
        );
    }
}

#[cfg(feature = "bugs")]
#[test]
fn injected_bug_takes_a_damaged_group_for_whole() {
    let mut disk = disk();
    let all = all_records(&disk);
    damage(&mut disk, &all[17], 60);
    let bug = Injected::named("damaged_group_continues").expect("there");
    let found = salvage(&mut disk, &identity(), &GROUPS, bug).expect("reads");
    assert!(found.groups.iter().all(Option::is_some));
}
