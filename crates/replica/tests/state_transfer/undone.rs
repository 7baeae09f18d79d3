//! Executions ahead of their commit are undone in turns where the state is large, and later effects
//! wait for that.
//!
//! ```text
//!   snapshot 5 ── 6 stable ── 7 8 9 ahead      roll back to 6: restore 5, execute 6 again
//! ```

use super::*;

fn wide(id: u16) -> Place {
    let entry = Entry::of::<Puppet<true>>();
    Place::of(id, Durability::Memory, &entry, "wide")
}

fn execute(place: &mut Place, slots: std::ops::RangeInclusive<u64>) {
    for slot in slots {
        place.pull("execute", slot);
    }
}

/// One whose executions up to 6 are stable, and up to 9 are not; it has a snapshot of 5.
fn ahead_of(mut place: Place) -> Place {
    execute(&mut place, 1..=5);
    place.pull("stable", 5);
    place.input(Input::Control(Control::CheckpointDue));
    place.finish_snapshot();
    execute(&mut place, 6..=9);
    place.pull("stable", 6);
    place.settle();
    place.take();
    place
}

/// It has begun to undo what is not stable, and has more of that to do.
fn undoing() -> Place {
    let mut place = ahead_of(wide(0));
    place.pull("roll back", 6);
    assert_eq!(place.node.executed().slot, Slot(9), "not in one go");
    place
}

/// The state of one that has only ever executed what is there in the end.
fn digest_of(slots: u64) -> u128 {
    let mut place = wide(1);
    execute(&mut place, 1..=slots);
    place.node.state_digest()
}

#[test]
fn large_state_goes_back_in_turns() {
    let mut place = undoing();
    assert!(place.settle() > 3);
    assert_eq!(place.node.executed().slot, Slot(6));
    assert_eq!(place.node.state_digest(), digest_of(6));
    assert!(!place.node.is_fetching());
    // The next time, too.
    execute(&mut place, 7..=8);
    place.pull("roll back", 7);
    assert!(place.settle() > 3);
    assert_eq!(place.node.state_digest(), digest_of(7));
}

#[test]
fn small_state_goes_back_at_once() {
    let mut place = ahead_of(Place::ahead(0));
    place.pull("roll back", 6);
    assert_eq!(place.node.executed().slot, Slot(6));
    assert_eq!(place.node.state_digest(), digest_of(6));
}

#[test]
fn state_before_any_snapshot_comes_back() {
    let mut place = wide(0);
    execute(&mut place, 1..=3);
    place.pull("stable", 2);
    place.pull("roll back", 2);
    place.settle();
    assert_eq!(place.node.executed().slot, Slot(2));
    assert_eq!(place.node.state_digest(), digest_of(2));
}

#[test]
fn effects_asked_for_while_undoing_come_behind_it() {
    let mut place = undoing();
    place.pull("query", 1);
    execute(&mut place, 7..=8);
    place.pull("stable", 7);
    place.pull("roll back", 7);
    execute(&mut place, 8..=9);
    place.take();
    assert_eq!(
        place.answers, 0,
        "it is not answered from a state in pieces"
    );
    assert_eq!(place.node.executed().slot, Slot(9));
    place.settle();
    place.take();
    assert_eq!(place.answers, 1);
    assert_eq!(place.node.executed().slot, Slot(9));
    assert_eq!(place.node.state_digest(), digest_of(9));
    assert_eq!(place.node.protocol_digest(), 9);
}

#[test]
fn undoing_continues_from_a_newer_snapshot() {
    let mut place = wide(0);
    execute(&mut place, 1..=5);
    place.pull("stable", 5);
    place.input(Input::Control(Control::CheckpointDue));
    place.finish_snapshot();
    execute(&mut place, 6..=6);
    place.pull("stable", 6);
    place.input(Input::Control(Control::CheckpointDue));
    while !place.take().1 {
        place.written();
        place.node.on_idle(&place.world, &mut place.out);
    }
    execute(&mut place, 7..=9);
    place.pull("roll back", 6);
    assert_eq!(place.node.executed().slot, Slot(9));
    place.save();
    assert!(place.settle() > 3);
    place.take();
    assert!(place.halts.is_empty(), "{:?}", place.halts);
    assert_eq!(place.node.executed().slot, Slot(6));
    assert_eq!(place.node.state_digest(), digest_of(6));
}

#[test]
fn undoing_begins_again_when_a_file_of_the_same_name_is_saved() {
    let mut place = wide(0);
    execute(&mut place, 1..=5);
    place.pull("stable", 5);
    place.input(Input::Control(Control::CheckpointDue));
    place.finish_snapshot();
    place.pull("summary", 100);
    place.input(Input::Control(Control::CheckpointDue));
    while !place.take().1 {
        place.written();
        place.node.on_idle(&place.world, &mut place.out);
    }
    execute(&mut place, 6..=9);
    place.pull("roll back", 6);
    let earlier = place.node.executed();
    place.node.on_idle(&place.world, &mut place.out);
    place.save();
    place.settle();
    place.take();
    assert!(place.halts.is_empty(), "{:?}", place.halts);
    assert_eq!(
        (earlier.slot, place.node.executed().slot),
        (Slot(9), Slot(6))
    );
    assert_eq!(place.node.state_digest(), digest_of(6));
}

#[test]
fn replica_halts_when_the_snapshot_is_gone_while_undoing() {
    let mut place = undoing();
    *place.world.saved.borrow_mut() = None;
    place.settle();
    place.take();
    assert!(place.halts[0].contains(NOT_UNDONE), "{:?}", place.halts);
}

#[test]
fn fetched_state_is_installed_after_undoing() {
    let mut place = ahead_of(wide(0));
    let mut donor = wide(1);
    execute(&mut donor, 1..=8);
    donor.pull("stable", 8);
    donor.input(Input::Control(Control::CheckpointDue));
    donor.finish_snapshot();
    place.pull("roll back", 6);
    fetch(&mut place, &mut donor, 8);
    assert_eq!(
        place.node.executed().slot,
        Slot(9),
        "it is still being undone"
    );
    // The one that is being restored has been replaced, and can still be read.
    let earlier = place.world.saved.take();
    place.take();
    let (id, bytes) = place.writing.take().expect("it is whole");
    let length = bytes.len() as u64;
    let info = SnapshotInfo { id, length };
    *place.world.saved.borrow_mut() = Some((info, bytes.into()));
    *place.world.coming.borrow_mut() = earlier.map(|(info, bytes)| (info.id, bytes));
    place.input(Input::SnapshotSaved(info));
    place.settle();
    assert_eq!(place.node.executed().slot, Slot(8));
    assert_eq!(place.node.state_digest(), digest_of(8));
    assert_eq!(place.node.protocol_digest(), 8);
}
