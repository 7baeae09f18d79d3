//! A state with batches behind it cannot be given to a peer, so one that speculates saves its own.
//!
//! ```text
//!   file of 8, then 9 … 12 ── restart ── save 12 ── 13 ahead      a peer that needs 12 gets it
//! ```

use super::*;

/// One that speculates has fetched a state with batches behind it, and has saved no other.
fn followed_state() -> Place {
    let (mut place, mut donor) = fetched_again_by(Place::ahead(0), 12);
    while !exchange(&mut place, &mut donor) {
        place.fire_fetch_timer();
    }
    place.save();
    let (info, _) = place.world.saved.borrow().clone().expect("saved");
    assert!(
        info.id.slot < Slot(12),
        "its file is named for an earlier slot"
    );
    place
}

/// It saves its state although nothing of what it executes now becomes final, and a peer that
/// needs that state gets it.
fn gives_its_state(mut place: Place) {
    let (_, whole) = place.take();
    assert!(place.writing.is_some(), "it does not save its state");
    place.pull("execute", 13);
    match whole {
        true => place.save(),
        false => place.finish_snapshot(),
    }
    let mut fetcher = Place::new(0);
    fetcher.pull("fetch", 12);
    let whole = (0..3).any(|_| {
        let whole = exchange(&mut fetcher, &mut place);
        if !whole {
            fetcher.fire_fetch_timer();
        }
        whole
    });
    assert!(whole, "it waits for what never becomes final");
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(12));
}

#[test]
fn state_with_batches_behind_it_is_saved_at_once() {
    let mut place = followed_state();
    place.settle();
    assert_eq!(place.node.executed().slot, Slot(12));
    gives_its_state(place);
}

#[test]
fn restarted_replica_saves_a_state_with_batches_behind_it() {
    let world = followed_state().world;
    let mut again = Place {
        node: Place::node(0, Durability::Memory, &Entry::of::<Puppet<true>>(), ""),
        world,
        out: Vec::new(),
        writing: None,
        timer: false,
        answers: 0,
        halts: Vec::new(),
    };
    again
        .node
        .start(RecoveredBytes::default(), &again.world, &mut again.out)
        .expect("starts");
    assert_eq!(again.node.executed().slot, Slot(12));
    gives_its_state(again);
}
