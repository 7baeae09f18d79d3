//! A node when a state cannot be saved or restored, is damaged, or comes without an end.

use super::*;

#[test]
fn another_state_is_fetched_when_that_under_restore_fails() {
    continues_after_failure(broken_off());
}

#[test]
fn restore_waits_when_its_file_goes_before_it_is_told() {
    let mut fetcher = breaking_off();
    *fetcher.world.coming.get_mut() = None;
    fetcher.settle();
    fetcher.take();
    assert_eq!(fetcher.halts, [""; 0]);
    assert_eq!(fetcher.node.machine().entries(), 8, "nothing was read");
    continues_after_failure(fetcher);
}

#[test]
fn feed_ends_when_donor_continues_without_end() {
    let (mut fetcher, mut donor) = following(9);
    donor.pull("mute", 1);
    for slot in 10..1000 {
        donor.pull("execute", slot);
        fetcher.fire_fetch_timer();
        if exchange_once(&mut fetcher, &mut donor) {
            fetcher.save();
            fetcher.settle();
            assert_eq!(fetcher.node.executed().slot, Slot(8), "the state alone");
            return;
        }
        fetcher.written();
        fetcher.settle();
    }
    panic!("it follows on and on");
}

#[test]
fn snapshot_is_due_when_more_was_fed_than_the_state_has() {
    let entry = Entry::of::<Puppet<false>>();
    let fetcher = Place::of(0, Durability::Memory, &entry, "own snapshots");
    let (mut fetcher, mut donor) = fetched_again_with(fetcher, 200, 0);
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    fetcher.settle();
    fetcher.take();
    assert_eq!(fetcher.node.executed().slot, Slot(200));
    let own = fetcher.writing.as_ref().map(|(id, _)| id.slot);
    assert_eq!(own, Some(Slot(200)), "its own snapshot has begun");
}

#[test]
fn wrong_piece_changes_nothing_while_the_state_is_saved() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    fetcher.pull("fetch", 5);
    exchange_once(&mut fetcher, &mut donor);
    fetcher.fire_fetch_timer();
    let frame = answer(&mut fetcher, &mut donor);
    fetcher.hear(1, frame.clone());
    assert!(fetcher.take().1, "all of it is here");
    let mut wrong = frame.to_vec();
    wrong[16 + 1 + 24 + 8] += 1;
    fetcher.hear(1, wrong.into());
    fetcher.take();
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(5));
}

#[test]
fn state_is_asked_for_after_a_pause_when_it_was_not_saved() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    fetch(&mut fetcher, &mut donor, 5);
    let mut waited = Vec::new();
    for _ in 0..8 {
        fetcher.input(Input::SnapshotFailed);
        fetcher.take();
        let (mut tenths, mut asked) = (0, Vec::new());
        while asked.is_empty() {
            fetcher.world.now.set(fetcher.world.now.get() + 100_000_000);
            fetcher.input(Input::Timer(FETCH));
            (asked, _) = fetcher.take();
            tenths += 1;
            assert!(tenths < 1000, "it is asked for in the end");
        }
        waited.push(tenths);
        for frame in asked {
            donor.hear(0, frame);
        }
        for frame in donor.take().0 {
            fetcher.hear(1, frame);
        }
        assert!(fetcher.take().1, "it is here again");
    }
    assert_eq!(waited, [10, 20, 40, 40, 40, 40, 40, 40]);
}

#[test]
fn failure_of_abandoned_file_does_not_delay_next_fetch() {
    let mut fetcher = Place::new(0);
    fetcher.pull("fetch", 5);
    fetcher.take();
    fetcher.input(Input::SnapshotFailed);
    fetcher.world.now.set(300_000_000);
    fetcher.input(Input::Timer(FETCH));
    assert_eq!(fetcher.take().0.len(), 1, "it is asked for again at once");
}

#[test]
fn reads_beyond_the_limit_are_dropped_while_a_state_is_restored() {
    let entry = Entry::of::<Puppet<false>>();
    let fetcher = Place::of(0, Durability::Memory, &entry, "few reads");
    let (mut fetcher, _) = restoring_by(fetcher);
    for number in 1..=10 {
        fetcher.pull("query", number);
    }
    fetcher.settle();
    fetcher.take();
    assert_eq!(fetcher.answers, 2);
    for number in 1..=10 {
        fetcher.pull("query", number);
    }
    fetcher.take();
    assert_eq!(fetcher.answers, 12, "afterwards none waits");
}

#[test]
fn replica_says_nothing_more_when_a_state_cannot_be_restored() {
    let (mut fetcher, _) = restoring();
    if let Some((_, bytes)) = fetcher.world.saved.get_mut() {
        bytes.truncate(bytes.len() - 20);
    }
    fetcher.pull("query", 1);
    fetcher.settle();
    fetcher.take();
    assert_eq!(fetcher.halts.len(), 1);
    fetcher.pull("query", 2);
    fetcher.settle();
    assert_eq!(fetcher.out, [], "its state is in pieces");
    assert_eq!(fetcher.answers, 0);
}

#[test]
fn fetch_continues_after_failure_to_save_snapshot() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    fetch(&mut fetcher, &mut donor, 5);
    // Saving takes longer than a retry, and then fails.
    fetcher.fire_fetch_timer();
    fetcher.input(Input::SnapshotFailed);
    fetcher.take();
    fetcher.fire_fetch_timer();
    assert!(
        exchange(&mut fetcher, &mut donor),
        "it is asked for and given again"
    );
    fetcher.save();
    assert_eq!(fetcher.node.machine().entries(), 5);
}

#[test]
fn donor_is_left_when_its_pieces_are_none() {
    let (mut fetcher, mut donor) = of_many_pieces("");
    exchange_once(&mut fetcher, &mut donor);
    assert!(fetcher.writing.is_some());
    fetcher.fire_fetch_timer();
    let frame = answer(&mut fetcher, &mut donor);
    // Its offset, behind the envelope, a kind, a name and a length, is moved by a byte.
    let mut bytes = frame.to_vec();
    bytes[16 + 1 + 24 + 8] += 1;
    let receiving = |fetcher: &Place| {
        let transfer = fetcher.node.status(&fetcher.world).transfer;
        transfer.map(|transfer| transfer.phase) == Some(TransferPhase::Receiving)
    };
    assert!(receiving(&fetcher));
    fetcher.hear(1, bytes.into());
    assert!(!receiving(&fetcher), "nothing of it is kept");
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(5));
}

#[test]
fn donor_file_cut_between_chunks_is_not_installed() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    assert!(donor.take().1);
    donor.save();
    {
        let mut saved = donor.world.saved.borrow_mut();
        let (info, bytes) = saved.as_mut().expect("saved");
        // The end of a stream is a chunk of no bytes: a length and a checksum.
        bytes.truncate(bytes.len() - 8);
        info.length = bytes.len() as u64;
    }
    fetcher.pull("fetch", 5);
    assert!(!exchange_once(&mut fetcher, &mut donor), "nothing to save");
    assert_eq!(fetcher.node.executed().slot, Slot(0));
    // The file is replaced; the fetch has gone on asking.
    donor.world.saved.take();
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    assert_eq!(fetcher.node.machine().entries(), 5);
}

fn continues_after_failure(mut fetcher: Place) {
    fetcher.input(Input::SnapshotFailed);
    fetcher.take();
    fetcher.settle();
    let mut other = donor(11);
    while !exchange(&mut fetcher, &mut other) {
        fetcher.fire_fetch_timer();
    }
    fetcher.written();
    fetcher.settle();
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(11));
    assert_eq!(fetcher.node.state_digest(), other.node.state_digest());
}
