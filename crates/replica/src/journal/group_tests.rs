//! Several groups in one journal.

use super::{
    tests::{Memory, SEGMENT, group, identity},
    *,
};
use crate::{GroupIndex, PersistId, Slot, Write};
use alloc::{format, vec};
use proptest::prelude::*;

type Journals = Journal<Memory>;

const A: GroupIndex = GroupIndex(0);
const B: GroupIndex = GroupIndex(1);
const C: GroupIndex = GroupIndex(2);
const GROUPS: [GroupEpoch; 3] = [group(0, 1), group(7, 3), group(9, 1)];

fn marked() -> Memory {
    Memory {
        marks: Some([vec![0; MARK_SLOT], vec![0; MARK_SLOT]]),
        ..Memory::default()
    }
}

fn open(disk: Memory) -> Result<Opened<Memory>, JournalError<&'static str>> {
    Journal::open(disk, identity(), &GROUPS, SEGMENT)
}

fn fresh() -> Journals {
    open(marked()).expect("an empty disk opens").journal
}

/// Its bytes tell its group.
fn record(group: GroupIndex, slot: u64, length: usize) -> Write {
    let mut record = vec![group.0 as u8 + 100; length];
    record[..8].copy_from_slice(&slot.to_le_bytes());
    Write::Record {
        slot: Slot(slot),
        record: record.into(),
    }
}

fn promise(text: &'static str) -> Write {
    Write::Promise(Bytes::from_static(text.as_bytes()))
}

fn append(journal: &mut Journals, group: GroupIndex, slots: impl IntoIterator<Item = u64>) {
    for slot in slots {
        let record = record(group, slot, 700);
        journal.append(group, &record).expect("room");
        journal.commit().expect("room");
    }
}

fn slots(opened: &Opened<Memory>, group: GroupIndex) -> Vec<u64> {
    let records = &opened.groups[group.index()].records;
    for (slot, record) in records {
        assert_eq!(record[..8], slot.0.to_le_bytes());
        assert!(record[8..].iter().all(|byte| *byte == group.0 as u8 + 100));
    }
    records.iter().map(|(slot, _)| slot.0).collect()
}

fn told(opened: &Opened<Memory>, group: GroupIndex) -> Option<&str> {
    let promise = opened.groups[group.index()].promise.as_deref();
    promise.map(|promise| core::str::from_utf8(promise).expect("a text"))
}

#[test]
fn interleaved_groups_are_found_each_in_its_own_order() {
    let mut disk = marked();
    let mut expected = [Vec::new(), Vec::new(), Vec::new()];
    for run in 0..6u64 {
        let opened = open(disk).expect("opens");
        for group in [A, B, C] {
            assert_eq!(slots(&opened, group), expected[group.index()]);
            assert!(opened.groups[group.index()].complete);
        }
        let mut journal = opened.journal;
        for at in 0..12 {
            let group = [A, B, C, B][at % 4];
            let slot = run * 12 + at as u64;
            let write = record(group, slot, 300 + at * 50);
            journal.append(group, &write).expect("room");
            expected[group.index()].push(slot);
        }
        journal.append(B, &promise("of b")).expect("room");
        journal.commit().expect("room");
        disk = journal.into_disk();
    }
    assert!(disk.segments.len() > 2);
    let opened = open(disk).expect("opens");
    assert_eq!(
        [A, B, C].map(|group| told(&opened, group)),
        [None, Some("of b"), None]
    );
}

#[test]
fn promises_of_several_groups_are_one_write_of_each_copy() {
    let mut journal = fresh();
    journal.disk().promise_writes = 0;
    for (group, text) in [(A, "a"), (B, "b"), (C, "c"), (A, "a2")] {
        journal.append(group, &promise(text)).expect("room");
        journal.append(C, &record(C, 1, 100)).ok();
    }
    journal.commit().expect("room");
    // One more: a record of the third group follows its promise.
    assert_eq!(journal.disk().promise_writes, 2 * 2);
    let opened = open(journal.into_disk()).expect("opens");
    let all = [A, B, C].map(|group| told(&opened, group));
    assert_eq!(all, [Some("a2"), Some("b"), Some("c")]);
}

#[test]
fn one_write_of_each_of_two_groups_costs_one_sync() {
    let mut journal = fresh();
    append(&mut journal, A, 1..=1);
    journal.disk().fail_after = Some(100);
    for group in [A, B] {
        journal.append(group, &record(group, 2, 700)).expect("room");
    }
    journal.commit().expect("room");
    assert_eq!(journal.disk().fail_after, Some(99));
}

/// Slots and promises of each group.
#[derive(Clone, Debug, Default)]
struct Durable {
    slots: [Vec<u64>; 3],
    promises: [Option<u64>; 3],
}

/// Runs the same steps on a disk that fails after this number of operations. Gives the durable
/// part at the last successful commit, and all that was handed over.
fn run(fail_after: usize) -> (bool, Memory, Durable, Durable) {
    let mut disk = marked();
    disk.fail_after = Some(fail_after);
    let mut journal = open(disk).expect("opens").journal;
    let (mut durable, mut handed) = (Durable::default(), Durable::default());
    let mut number = 0u64;
    let mut steps = || -> Result<(), JournalError<&'static str>> {
        for round in 0..14u64 {
            for group in [A, B, C] {
                number += 1;
                if (number + round).is_multiple_of(5) {
                    handed.promises[group.index()] = Some(number);
                    let promise = Bytes::copy_from_slice(&number.to_le_bytes());
                    journal.append(group, &Write::Promise(promise))?;
                } else {
                    handed.slots[group.index()].push(number);
                    journal.append(group, &record(group, number, 900))?;
                }
            }
            if round % 3 == 0 {
                journal.commit()?;
                durable = handed.clone();
            }
            if round == 9 {
                journal.trim(A, Slot(20))?;
                journal.trim(C, Slot(25))?;
            }
        }
        Ok(())
    };
    let whole = steps().is_ok();
    let mut disk = journal.into_disk();
    disk.fail_after = None;
    (whole, disk, durable, handed)
}

#[test]
fn crash_at_any_write_keeps_order_and_all_that_was_durable() {
    let mut failures = 0;
    loop {
        let (whole, disk, durable, handed) = run(failures);
        let opened = open(disk).expect("a crash is no damage");
        for group in [A, B, C] {
            let at = group.index();
            let found = slots(&opened, group);
            let last = durable.slots[at].last().copied().unwrap_or(0);
            // In order and without a gap.
            let first = found.first().copied().unwrap_or(0);
            let rest: Vec<u64> = (handed.slots[at].iter().copied())
                .filter(|slot| *slot >= first)
                .collect();
            assert!(
                rest.starts_with(&found),
                "{failures}: {found:?} of {rest:?}"
            );
            assert!(found.last().copied().unwrap_or(0) >= last, "{failures}");
            let trimmed = [20, 0, 25][at];
            let lacks = (durable.slots[at].iter()).find(|slot| !found.contains(*slot));
            assert!(
                lacks.is_none_or(|slot| *slot < trimmed),
                "{failures} {lacks:?}"
            );
            let promise = opened.groups[at].promise.as_ref();
            let promise = promise.map(|p| u64::from_le_bytes(p[..].try_into().expect("8 bytes")));
            assert!(promise >= durable.promises[at], "{failures}");
            // A record is never there without the promise that came before it.
            let newest = found.last().copied().unwrap_or(0);
            let before = handed.promises[at].filter(|number| *number < newest);
            assert!(promise >= before, "{failures}: {newest} without {before:?}");
        }
        failures += 1;
        if whole {
            break;
        }
    }
    assert!(failures > 25, "{failures}");
}

#[test]
fn trimming_one_group_never_loses_records_of_another() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    append(&mut journal, A, 1..=60);
    let all = journal.disk().segments.len();
    journal.trim(A, Slot(61)).expect("removes");
    assert_eq!(
        journal.disk().segments.len(),
        all,
        "the first one is needed"
    );
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(slots(&opened, B), [1, 2, 3]);
    assert!(opened.groups[B.index()].complete && opened.groups[A.index()].complete);
    let mut journal = opened.journal;
    journal.trim(A, Slot(61)).expect("removes");
    journal.trim(B, Slot(3)).expect("removes");
    assert_eq!(journal.disk().segments.len(), all, "slot 3 is needed");
    journal.trim(B, Slot(4)).expect("removes");
    assert_eq!(journal.disk().segments.len(), 1);
    let opened = open(journal.into_disk()).expect("opens");
    assert!(slots(&opened, B).is_empty());
    let complete = [A, B, C].map(|group| opened.groups[group.index()].complete);
    assert_eq!(complete, [false, false, true]);
}

#[cfg(feature = "bugs")]
#[test]
fn injected_bug_trims_records_of_another_group() {
    let bug = crate::Injected::named("segment_trimmed_for_another_group").expect("there");
    let opened = Journal::open_injected(marked(), identity(), &GROUPS, SEGMENT, bug);
    let mut journal = opened.expect("opens").journal;
    append(&mut journal, B, 1..=3);
    append(&mut journal, A, 1..=60);
    journal.trim(A, Slot(61)).expect("removes");
    let opened = open(journal.into_disk()).expect("opens");
    assert!(slots(&opened, B).is_empty(), "this is the bug");
}

#[test]
fn idle_group_is_brought_forward_and_releases_segments() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    append(&mut journal, A, 1..=20);
    append(&mut journal, B, 4..=5);
    append(&mut journal, A, 21..=60);
    journal.trim(A, Slot(60)).expect("removes");
    journal.trim(B, Slot(2)).expect("removes");
    let held = journal.held(B);
    assert!(held.bytes > 3 * SEGMENT && held.own < 5 * 1000, "{held:?}");
    let before = journal.disk().clone();
    // A crash at any point leaves the old ones or the new one.
    for writes in 0.. {
        let mut disk = before.clone();
        disk.fail_after = Some(writes);
        let mut journal = open(disk).expect("opens").journal;
        journal.trim(A, Slot(60)).expect("removes");
        journal.trim(B, Slot(2)).expect("removes");
        let done = journal.bring_forward(B);
        let mut disk = journal.into_disk();
        disk.fail_after = None;
        let opened = open(disk).expect("a crash is no damage");
        let found = slots(&opened, B);
        assert!(
            found == [1, 2, 3, 4, 5] || found == [2, 3, 4, 5],
            "{found:?}"
        );
        assert!(found.len() == 5 || !opened.groups[B.index()].complete);
        assert_eq!(slots(&opened, A).last(), Some(&60));
        if done.is_ok() {
            assert!(writes > 5, "{writes}");
            break;
        }
    }
    assert_eq!(journal.bring_forward(B), Ok(true));
    assert_eq!(journal.held(B), Held::default());
    assert!(journal.bytes() <= 2 * SEGMENT, "{}", journal.bytes());
    append(&mut journal, B, 6..=7);
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(slots(&opened, B), [2, 3, 4, 5, 6, 7]);
    // And once more, from where it stands now.
    let mut journal = opened.journal;
    append(&mut journal, A, 61..=90);
    journal.trim(A, Slot(90)).expect("removes");
    journal.trim(B, Slot(4)).expect("removes");
    assert_eq!(journal.bring_forward(B), Ok(true));
    assert!(journal.bytes() <= 2 * SEGMENT, "{}", journal.bytes());
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(slots(&opened, B), [4, 5, 6, 7]);
}

#[test]
fn complete_log_is_complete_when_brought_forward() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    append(&mut journal, A, 1..=60);
    journal.trim(A, Slot(60)).expect("removes");
    assert_eq!(journal.bring_forward(B), Ok(true));
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(slots(&opened, B), [1, 2, 3]);
    assert!(opened.groups[B.index()].complete);
    assert!(!opened.groups[A.index()].complete);
}

#[test]
fn bringing_forward_refuses_a_rotten_record() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    append(&mut journal, A, 1..=60);
    let first = *journal.disk().segments.keys().next().expect("there");
    let file = journal.disk().segments.get_mut(&first).expect("there");
    file[BLOCK + RECORD_HEADER + 800] ^= 1;
    let before = journal.disk().segments.clone();
    let refused = journal.bring_forward(B).expect_err("damaged");
    assert!(refused.is_damage(), "{refused}");
    assert_eq!(journal.disk().segments, before);
}

#[test]
fn torn_table_of_promises_is_the_old_one_or_the_new_one() {
    let mut journal = fresh();
    for (group, text) in [(A, "old a"), (B, "old b")] {
        journal.append(group, &promise(text)).expect("room");
    }
    journal.commit().expect("room");
    let old = journal.disk().clone();
    for (group, text) in [(A, "new a, longer"), (C, "new c")] {
        journal.append(group, &promise(text)).expect("room");
    }
    journal.commit().expect("room");
    let new = journal.into_disk();
    for torn in 0..2 {
        let (length, was) = (new.promises[torn].len(), &old.promises[torn]);
        for cut in 0..=length {
            let mut disk = new.clone();
            let mut bytes = new.promises[torn][..cut].to_vec();
            bytes.extend(was.get(cut..).unwrap_or_default());
            disk.promises[torn] = bytes;
            if torn == 0 {
                // The second copy is written after the first.
                disk.promises[1] = old.promises[1].clone();
            }
            let opened = open(disk).unwrap_or_else(|error| panic!("{torn} {cut}: {error}"));
            let all = [A, B, C].map(|group| told(&opened, group));
            let is_new = all == [Some("new a, longer"), Some("old b"), Some("new c")];
            let is_old = all == [Some("old a"), Some("old b"), None];
            assert!(is_new || (is_old && torn == 0), "{torn} {cut}: {all:?}");
        }
    }
}

#[test]
fn records_and_promises_of_a_group_not_named_are_rejected() {
    let refused = |disk: &Memory, groups: &[GroupEpoch]| {
        let opened = Journal::open(disk.clone(), identity(), groups, SEGMENT);
        match opened.map(drop) {
            Err(JournalError::UnknownGroup { group, .. }) => Some(group.0),
            Err(other) => panic!("{other}"),
            Ok(()) => None,
        }
    };
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    let disk = journal.into_disk();
    assert_eq!(refused(&disk, &GROUPS[..1]), Some(7));
    assert_eq!(refused(&disk, &GROUPS[1..2]), None);
    let mut journal = fresh();
    journal.append(C, &promise("of c")).expect("room");
    journal.commit().expect("room");
    let disk = journal.into_disk();
    // The table names all groups, also those without a promise.
    assert_eq!(refused(&disk, &GROUPS[..1]), Some(7));
    assert_eq!(refused(&disk, &GROUPS[2..]), Some(0));
    // An inspection takes any group.
    let found = inspect(&mut disk.clone(), &identity(), |_| {}).expect("reads");
    assert!(found.verdict.is_none());
}

#[test]
fn group_that_was_left_may_come_back_in_a_later_epoch() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    journal.append(B, &promise("of b")).expect("room");
    append(&mut journal, A, 1..=40);
    let all = journal.disk().segments.len();
    journal.trim(A, Slot(30)).expect("removes");
    assert_eq!(journal.disk().segments.len(), all);
    journal.leave(B).expect("removes");
    assert!(journal.disk().segments.len() < all);
    append(&mut journal, C, 1..=2);
    let disk = journal.into_disk();
    let without = [GROUPS[0], GROUPS[2]];
    let opened = Journal::open(disk.clone(), identity(), &without, SEGMENT).expect("opens");
    assert_eq!(opened.groups[1].records.len(), 2);
    // In the same epoch it would break its promises.
    let refused = open(disk.clone()).map(drop);
    assert!(
        matches!(refused, Err(JournalError::LaterEpoch { .. })),
        "{refused:?}"
    );
    let mut journal = opened.journal;
    let back = journal.join(group(7, 4));
    journal.append(back, &record(B, 9, 700)).expect("room");
    journal.commit().expect("room");
    let later = [group(0, 1), group(7, 4), group(9, 1)];
    let opened = Journal::open(journal.into_disk(), identity(), &later, SEGMENT).expect("opens");
    assert_eq!((slots(&opened, B), told(&opened, B)), (vec![9], None));
}

#[test]
fn records_of_a_group_that_was_left_are_ignored() {
    let mut journal = fresh();
    append(&mut journal, A, 1..=2);
    append(&mut journal, B, 1..=2);
    journal.leave(B).expect("writes");
    let without = [GROUPS[0], GROUPS[2]];
    let mut disk = journal.into_disk();
    for _ in 0..2 {
        let opened = Journal::open(disk, identity(), &without, SEGMENT).expect("opens");
        let mut journal = opened.journal;
        journal
            .append(GroupIndex(1), &promise("of c"))
            .expect("room");
        journal.commit().expect("room");
        disk = journal.into_disk();
    }
}

#[test]
fn group_enters_an_epoch_by_itself() {
    let mut journal = fresh();
    append(&mut journal, A, 1..=30);
    append(&mut journal, B, 1..=30);
    for group in [A, B] {
        journal.append(group, &promise("old")).expect("room");
    }
    journal.enter(B, crate::EpochNumber(4)).expect("writes");
    append(&mut journal, B, 1..=2);
    let later = [GROUPS[0], group(7, 4), GROUPS[2]];
    let disk = journal.into_disk();
    let opened = Journal::open(disk.clone(), identity(), &later, SEGMENT).expect("opens");
    assert_eq!((slots(&opened, B), told(&opened, B)), (vec![1, 2], None));
    let first: Vec<u64> = (1..=30).collect();
    assert_eq!((slots(&opened, A), told(&opened, A)), (first, Some("old")));
    let complete = [A, B, C].map(|group| opened.groups[group.index()].complete);
    assert_eq!(complete, [true, false, true]);
    let refused = open(disk).map(drop);
    assert!(
        matches!(refused, Err(JournalError::LaterEpoch { .. })),
        "{refused:?}"
    );
}

#[test]
fn group_0_alone_has_the_format_of_a_journal_without_groups() {
    let alone = [group(0, 1)];
    let opened = Journal::open(marked(), identity(), &alone, SEGMENT).expect("opens");
    let mut journal = opened.journal;
    append(&mut journal, A, 1..=40);
    journal.append(A, &promise("mine")).expect("room");
    journal.commit().expect("room");
    journal.trim(A, Slot(20)).expect("removes");
    let disk = journal.into_disk();
    let all: Vec<u8> = (disk.segments.values().chain(&disk.promises))
        .chain(disk.marks.as_ref().expect("kept"))
        .flatten()
        .copied()
        .collect();
    // As the program wrote them before it knew groups.
    assert_eq!(
        (disk.segments.len(), crate::checksum(&all)),
        (2, 3_096_301_706)
    );
    let opened = Journal::open(disk, identity(), &alone, SEGMENT).expect("opens");
    assert_eq!(told(&opened, A), Some("mine"));
}

#[test]
fn journal_of_group_0_alone_takes_other_groups_in() {
    let alone = &GROUPS[..1];
    let open_alone = |disk| Journal::open(disk, identity(), alone, SEGMENT);
    let mut journal = open_alone(marked()).expect("opens").journal;
    append(&mut journal, A, 1..=3);
    journal.append(A, &promise("of a")).expect("room");
    journal.commit().expect("room");
    let opened = open(journal.into_disk()).expect("opens");
    assert_eq!(
        (slots(&opened, A), told(&opened, A)),
        (vec![1, 2, 3], Some("of a"))
    );
    let mut journal = opened.journal;
    append(&mut journal, A, 4..=4);
    let segments = journal.disk().segments.len();
    append(&mut journal, B, 1..=1);
    assert_eq!(
        journal.disk().segments.len(),
        segments + 1,
        "one of a newer format"
    );
    let disk = journal.into_disk();
    let versions: Vec<u8> = disk.segments.values().map(|bytes| bytes[8]).collect();
    assert!(
        versions.starts_with(&[1]) && versions.ends_with(&[2]),
        "{versions:?}"
    );
    let opened = open(disk).expect("opens");
    assert_eq!(
        (slots(&opened, A), slots(&opened, B)),
        (vec![1, 2, 3, 4], vec![1])
    );
}

#[test]
fn journal_begun_again_knows_which_groups_are_complete() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    journal.append(C, &promise("of c")).expect("room");
    append(&mut journal, A, 1..=20);
    let again = [false, false, true];
    let mut disk = journal.into_disk();
    disk.promises[0][50] ^= 1;
    let empty = again.map(|complete| Beginning::Empty { complete });
    let begun = Journal::begin_again(disk, identity(), &GROUPS, SEGMENT, empty.into());
    let opened = begun.expect("begins");
    let complete = |opened: &Opened<Memory>| {
        let groups = opened.groups.iter();
        groups.map(|found| found.complete).collect::<Vec<_>>()
    };
    assert_eq!(complete(&opened), again);
    let opened = open(opened.journal.into_disk()).expect("opens");
    assert_eq!(complete(&opened), again);
    assert_eq!(told(&opened, C), Some("of c"));
    assert!(opened.groups.iter().all(|found| found.records.is_empty()));
}

#[test]
fn promises_of_all_groups_together_have_a_bound() {
    let mut journal = fresh();
    let long = Write::Promise(vec![1; PROMISE_MAX / 2].into());
    journal.append(A, &long).expect("room");
    let refused = journal.append(B, &long);
    assert!(matches!(refused, Err(JournalError::PromiseTooLong(_))));
    assert!(format!("{}", JournalError::<&str>::PromiseTooLong(3)).contains('3'));
}

fn durable(order: &mut JournalOrder, upto: u64) -> Vec<(u16, u64)> {
    let told = order.durable(PersistId(upto));
    told.iter().map(|(group, id)| (group.0, id.0)).collect()
}

#[test]
fn numbers_of_one_group_are_kept_until_another_joins() {
    let mut order = JournalOrder::new(1);
    for id in 1..=5 {
        assert_eq!(order.assign(A, PersistId(id)), PersistId(id));
    }
    assert_eq!(durable(&mut order, 3), [(0, 3)]);
    order.join();
    assert_eq!(order.assign(B, PersistId(1)), PersistId(6));
    assert_eq!(order.assign(A, PersistId(6)), PersistId(7));
    assert_eq!(durable(&mut order, 6), [(0, 5), (1, 1)]);
    assert!(!order.is_empty());
    assert_eq!(durable(&mut order, 7), [(0, 6)]);
    assert!(order.is_empty() && durable(&mut order, 7).is_empty());
}

#[cfg(feature = "bugs")]
#[test]
fn injected_bug_tells_a_group_of_writes_of_another() {
    let bug = crate::Injected::named("persisted_of_another_driver").expect("there");
    let mut order = JournalOrder::new(2).with_injected(bug);
    order.assign(A, PersistId(1));
    order.assign(B, PersistId(1));
    assert_eq!(durable(&mut order, 1), [(0, 1), (1, 1)]);
}

proptest! {
    #[test]
    fn group_is_told_of_its_own_writes_alone(
        steps in proptest::collection::vec((0u16..3, 1u64..4, any::<bool>()), 1..200),
    ) {
        let mut order = JournalOrder::new(3);
        let (mut own, mut told) = ([0u64; 3], [0u64; 3]);
        // By the journal's number: whose it is, and which.
        let mut all: Vec<(u16, u64)> = Vec::new();
        for (group, count, synced) in steps {
            for _ in 0..count {
                let id = &mut own[usize::from(group)];
                *id += 1;
                let number = order.assign(GroupIndex(group), PersistId(*id));
                all.push((group, *id));
                prop_assert_eq!(number, PersistId(all.len() as u64));
            }
            if !synced {
                continue;
            }
            let upto = all.len().saturating_sub(count as usize / 2);
            for (group, newest) in durable(&mut order, upto as u64) {
                let mine = |(of, _): &&(u16, u64)| *of == group;
                let last = all[..upto].iter().rev().find(mine).map(|(_, id)| *id);
                prop_assert_eq!(Some(newest), last);
                prop_assert!(newest > told[usize::from(group)]);
                told[usize::from(group)] = newest;
            }
            for group in 0..3u16 {
                let last = all[..upto].iter().rev().find(|(of, _)| *of == group);
                prop_assert_eq!(told[usize::from(group)], last.map_or(0, |(_, id)| *id));
            }
        }
    }
}

// ------------------------------------------------------------------------ damage, by group

/// The groups of a damaged journal, with what is known of their records.
fn chains(disk: &mut Memory) -> ([Chain; 3], bool) {
    let opened = open(disk.clone()).expect_err("damaged");
    assert!(opened.is_damage(), "{opened}");
    let found = inspect(disk, &identity(), |_| {}).expect("reads");
    assert_eq!(found.verdict, Some(opened));
    let of = |group: GroupEpoch| {
        let mut chains = found.chains.iter().filter(|(id, _)| *id == group.group);
        chains.next().expect("it has records").1
    };
    (GROUPS.map(of), found.all_told)
}

/// Short records of all groups in turn, twice as many of the second, over several segments.
fn interleaved(rounds: u64) -> Memory {
    let mut disk = marked();
    for run in 0..3 {
        let mut journal = open(disk).expect("opens").journal;
        for round in 0..rounds {
            for (nth, group) in [A, B, C, B].into_iter().enumerate() {
                let slot = (run * rounds + round) * 4 + nth as u64;
                journal
                    .append(group, &record(group, slot, 40))
                    .expect("room");
            }
            journal.commit().expect("room");
        }
        disk = journal.into_disk();
    }
    disk
}

fn records(disk: &mut Memory) -> Vec<RecordInfo> {
    let mut records = Vec::new();
    inspect(disk, &identity(), |record| records.push(*record)).expect("reads");
    records
}

fn damage(disk: &mut Memory, record: &RecordInfo, byte: usize) {
    let file = disk.segments.get_mut(&record.segment).expect("there");
    file[record.offset as usize + byte] ^= 0x10;
}

#[test]
fn every_byte_of_a_record_is_damage_of_its_group_alone() {
    let disk = interleaved(40);
    let all = records(&mut disk.clone());
    assert!(disk.segments.len() > 1);
    // One in the middle of a segment, the last one of a segment, and the first of the next.
    let next = all.iter().position(|it| it.segment > all[0].segment);
    let next = next.expect("several segments");
    for damaged in [all[30], all[31], all[next - 1], all[next]] {
        for byte in 0..RECORD_HEADER + 40 {
            let mut disk = disk.clone();
            damage(&mut disk, &damaged, byte);
            let (chains, all_told) = chains(&mut disk);
            let expected = GROUPS.map(|group| match group.group == damaged.group {
                true => Chain::Lacks(1),
                false => Chain::Whole,
            });
            assert_eq!(
                (chains, all_told),
                (expected, true),
                "{damaged:?}, byte {byte}"
            );
        }
    }
}

#[test]
fn group_without_a_later_record_may_lack_one() {
    let mut journal = fresh();
    append(&mut journal, A, 1..=3);
    append(&mut journal, C, 4..=4);
    append(&mut journal, B, 5..=9);
    let mut disk = journal.into_disk();
    let all = records(&mut disk);
    // The last one of C. It could as well be of A.
    damage(&mut disk, &all[3], RECORD_HEADER + 9);
    let found = inspect(&mut disk.clone(), &identity(), |_| {}).expect("reads");
    let known: Vec<_> = found
        .chains
        .iter()
        .map(|(group, chain)| (group.0, *chain))
        .collect();
    assert_eq!(known, [(0, Chain::Unknown), (7, Chain::Unknown)]);
    assert!(!found.all_told);
    // One of B besides it, with a later one.
    damage(&mut disk, &all[5], 3);
    let found = inspect(&mut disk, &identity(), |_| {}).expect("reads");
    let known: Vec<_> = found
        .chains
        .iter()
        .map(|(group, chain)| (group.0, *chain))
        .collect();
    assert_eq!(known, [(0, Chain::Unknown), (7, Chain::Lacks(1))]);
    assert!(!found.all_told);
}

#[test]
fn damage_at_the_tail_may_be_of_any_group() {
    let mut disk = interleaved(10);
    let last = *records(&mut disk).last().expect("there");
    damage(&mut disk, &last, RECORD_HEADER + 20);
    assert_eq!(chains(&mut disk), ([Chain::Unknown; 3], false));
}

#[test]
fn missing_segment_is_damage_of_those_who_had_records_there() {
    let mut journal = fresh();
    append(&mut journal, A, 1..=3);
    append(&mut journal, B, 1..=3);
    append(&mut journal, C, 1..=3);
    append(&mut journal, B, 4..=80);
    for group in [A, B, C] {
        append(&mut journal, group, 90..=91);
    }
    let mut disk = journal.into_disk();
    assert!(disk.segments.len() > 3);
    let second = *disk.segments.keys().nth(1).expect("there");
    disk.segments.remove(&second);
    let ([a, b, c], all_told) = chains(&mut disk);
    assert!(all_told && (a, c) == (Chain::Whole, Chain::Whole));
    assert!(matches!(b, Chain::Lacks(2..)), "{b:?}");
}

#[test]
fn records_at_the_beginning_that_are_gone_may_be_of_any_group() {
    let disk = interleaved(40);
    let first = *disk.segments.keys().next().expect("there");
    let mut missing = disk.clone();
    missing.segments.remove(&first);
    assert_eq!(chains(&mut missing), ([Chain::Unknown; 3], false));
    let mut headless = disk;
    let file = headless.segments.get_mut(&first).expect("there");
    file[9] ^= 1;
    file[BLOCK + 9] ^= 1;
    assert_eq!(chains(&mut headless), ([Chain::Unknown; 3], false));
}

#[test]
fn log_that_was_brought_forward_needs_nothing_before_it() {
    let mut journal = fresh();
    append(&mut journal, B, 1..=3);
    append(&mut journal, A, 1..=40);
    assert_eq!(journal.bring_forward(B), Ok(true));
    append(&mut journal, A, 41..=42);
    let mut disk = journal.into_disk();
    let all = records(&mut disk);
    damage(&mut disk, &all[1], RECORD_HEADER);
    let found = inspect(&mut disk, &identity(), |_| {}).expect("reads");
    assert_eq!(
        found.chains,
        [(GroupId(0), Chain::Whole), (GroupId(7), Chain::Whole)]
    );
}
