//! A fetch continues from what has come, across a restart of the fetcher and at another donor that
//! has the same file, and only there.

use super::*;

fn wide(id: u16) -> Place {
    Place::of(id, Durability::Disk, &Entry::of::<Puppet<false>>(), "wide")
}

fn wide_donor(id: u16, slots: u64) -> Place {
    let mut donor = wide(id);
    for slot in 1..=slots {
        donor.pull("execute", slot);
    }
    save_snapshot(&mut donor);
    donor
}

fn save_snapshot(donor: &mut Place) {
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    donor.finish_snapshot();
}

/// One that has a part of the donor's state.
fn partly(donor: &mut Place) -> Place {
    let mut fetcher = wide(0);
    // The second time with what is executed meanwhile.
    fetcher.pull("fetch", 4);
    fetcher.pull("fetch", 5);
    fetcher.take();
    fetcher.fire_fetch_timer();
    for _ in 0..2 {
        let (whole, _) = one_round(&mut fetcher, donor);
        assert!(!whole, "not all of it has come");
    }
    fetcher.take();
    assert!(received(&fetcher) > 1 << 20);
    fetcher
}

fn received(fetcher: &Place) -> u64 {
    let status = fetcher.node.status(&fetcher.world);
    status.state_bytes_received
}

/// The part that the next run finds when it starts with the file of this one, cut off somewhere.
fn again(fetcher: Place) -> (Place, u64) {
    let (_, mut bytes) = fetcher.writing.expect("a part has come");
    bytes.truncate(bytes.len() - 7);
    let mut scan = SnapshotScan::default();
    assert!(scan.feed(&bytes), "nothing is wrong with it");
    let left = scan.left().expect("a part of the state is here");
    let length = left.length;
    assert!(length > 1 << 20 && length < bytes.len() as u64);
    let fetcher = wide(0);
    *fetcher.world.left.borrow_mut() = Some((left, bytes.into()));
    (fetcher, length)
}

fn finish(fetcher: &mut Place, donor: &mut Place) {
    let mut rounds = 0;
    while !exchange(fetcher, donor) {
        fetcher.fire_fetch_timer();
        rounds += 1;
        assert!(rounds < 100, "it comes to an end");
    }
    fetcher.written();
    fetcher.settle();
    if fetcher.writing.is_some() {
        fetcher.save();
    }
    fetcher.settle();
}

fn total(donor: &Place) -> u64 {
    donor.world.snapshot_newest().expect("it has one").length
}

#[test]
fn fetch_continues_after_restart_of_fetcher() {
    let mut donor = wide_donor(1, 5);
    let (mut fetcher, length) = again(partly(&mut donor));
    fetcher.pull("fetch", 5);
    finish(&mut fetcher, &mut donor);
    assert_eq!(received(&fetcher), total(&donor) - length);
    assert_eq!(fetcher.node.machine().entries(), 5);
    assert_eq!(fetcher.halts, [""; 0]);
}

#[test]
fn other_file_of_the_same_slot_is_fetched_from_its_beginning() {
    let mut donor = wide_donor(1, 5);
    let (mut fetcher, _) = again(partly(&mut donor));
    let mut other = wide_donor(2, 5);
    fetcher.pull("fetch", 5);
    // They are told apart by who asks and answers here, which is all the same to them.
    finish(&mut fetcher, &mut other);
    assert_eq!(received(&fetcher), total(&other));
    assert_eq!(fetcher.node.machine().entries(), 5);
}

#[test]
fn older_beginning_continues_when_rest_is_available() {
    let mut donor = wide_donor(1, 5);
    let (mut fetcher, length) = again(partly(&mut donor));
    donor.pull("execute", 6);
    fetcher.pull("fetch", 6);
    finish(&mut fetcher, &mut donor);
    assert_eq!(fetcher.node.executed().slot, Slot(6));
    assert_eq!(received(&fetcher), total(&donor) - length);
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn beginning_of_state_that_log_has_overtaken_is_left_alone() {
    let mut donor = wide_donor(1, 5);
    let (mut fetcher, _) = again(partly(&mut donor));
    for slot in 1..=5 {
        fetcher.pull("execute", slot);
    }
    donor.pull("execute", 6);
    save_snapshot(&mut donor);
    fetcher.pull("fetch", 6);
    finish(&mut fetcher, &mut donor);
    assert_eq!(received(&fetcher), total(&donor));
    assert_eq!(fetcher.node.executed().slot, Slot(6));
}

#[test]
fn fetch_continues_at_other_donor_with_same_file() {
    let mut donor = wide_donor(1, 5);
    let mut fetcher = partly(&mut donor);
    let before = received(&fetcher);
    fetcher.pull("fetch_also", 2);
    // A copy of the first one's file, as one that has fetched it has it.
    let mut other = wide(2);
    *other.world.saved.borrow_mut() = donor.world.saved.borrow().clone();
    let donor_now = |fetcher: &Place| {
        let status = fetcher.node.status(&fetcher.world);
        status.transfer.expect("it continues").donor
    };
    while donor_now(&fetcher) != ReplicaId(2) {
        fetcher.fire_fetch_timer();
    }
    assert_eq!(received(&fetcher), before);
    while !fetcher.whole_but_for_its_end() {
        for frame in fetcher.take().0 {
            other.hear(0, frame);
        }
        for frame in other.take().0 {
            fetcher.hear(2, frame);
        }
    }
    assert_eq!(received(&fetcher), total(&donor), "no byte came twice");
    silent_until_given_up(&mut fetcher);
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.machine().entries(), 5);
}

#[test]
fn piece_that_comes_twice_after_change_of_donor_changes_nothing() {
    let mut donor = wide_donor(1, 5);
    let mut fetcher = wide(0);
    fetcher.pull("fetch", 4);
    fetcher.pull("fetch", 5);
    fetcher.pull("fetch_also", 2);
    fetcher.take();
    fetcher.fire_fetch_timer();
    let mut answers = Vec::new();
    for _ in 0..2 {
        for frame in fetcher.take().0 {
            donor.hear(0, frame);
        }
        let came = donor.take().0;
        for frame in came.iter().cloned() {
            fetcher.hear(1, frame);
        }
        answers.extend(came);
    }
    fetcher.take();
    assert!(received(&fetcher) > 1 << 20);
    for left in [2, 1] {
        let donor_now = |fetcher: &Place| {
            let status = fetcher.node.status(&fetcher.world);
            status.transfer.expect("it continues").donor
        };
        while donor_now(&fetcher) != ReplicaId(left) {
            fetcher.fire_fetch_timer();
            fetcher.take();
        }
    }
    for frame in answers {
        fetcher.hear(1, frame);
    }
    finish(&mut fetcher, &mut donor);
    assert_eq!(received(&fetcher), total(&donor), "no byte is kept twice");
    assert_eq!(fetcher.node.machine().entries(), 5);
}

/// One whose state of slot 5 is saved and has only begun to be restored.
fn restoring(donor: &mut Place) -> Place {
    let mut fetcher = wide(0);
    fetcher.pull("fetch", 5);
    while !exchange(&mut fetcher, donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(0), "there is more of it");
    fetcher
}

#[test]
fn state_that_is_being_restored_is_not_fetched_again() {
    let mut donor = wide_donor(1, 5);
    let mut fetcher = restoring(&mut donor);
    let before = received(&fetcher);
    // As a protocol does that hears once more that it is behind the log.
    fetcher.pull("fetch", 5);
    one_round(&mut fetcher, &mut donor);
    fetcher.take();
    fetcher.settle();
    fetcher.take();
    assert_eq!(fetcher.halts, [""; 0]);
    assert_eq!(fetcher.node.executed().slot, Slot(5));
    assert_eq!(fetcher.node.machine().entries(), 5);
    assert_eq!(received(&fetcher), before);
}

#[test]
fn newer_state_than_the_one_that_is_being_restored_is_fetched() {
    let mut donor = wide_donor(1, 5);
    let mut fetcher = restoring(&mut donor);
    fetcher.pull("fetch", 6);
    // The donor has nothing newer yet.
    one_round(&mut fetcher, &mut donor);
    fetcher.fire_fetch_timer();
    donor.pull("execute", 6);
    save_snapshot(&mut donor);
    finish(&mut fetcher, &mut donor);
    fetcher.take();
    assert_eq!(fetcher.halts, [""; 0]);
    assert_eq!(fetcher.node.executed().slot, Slot(6));
    assert_eq!(fetcher.node.machine().entries(), 6);
}

#[test]
fn fetch_of_more_ends_when_state_that_is_being_restored_will_do() {
    let mut donor = wide_donor(1, 5);
    let mut fetcher = restoring(&mut donor);
    fetcher.pull("fetch", 6);
    fetcher.pull("fetch", 5);
    fetcher.settle();
    fetcher.fire_fetch_timer();
    assert!(!fetcher.node.is_fetching());
    assert_eq!(fetcher.node.executed().slot, Slot(5));
}
