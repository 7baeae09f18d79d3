//! Chains by hand: what is held, voted for, completed, ordered and given up.

use super::*;
use alloc::vec::Vec;

const CREATOR: ReplicaId = ReplicaId(0);
const VOTER: ReplicaId = ReplicaId(1);

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn key(id: u64) -> RequestKey {
    (quintet_replica::FrontendId(1), quintet_replica::BatchId(id))
}

fn name(chain: u64, round: u64) -> Name {
    Name {
        creator: CREATOR,
        chain,
        round,
    }
}

/// A creator of three with these batches in its chain, written and durable.
fn creator(batches: &[&'static str]) -> Chains {
    let mut sadl = Chains::new(CREATOR, 3, 2);
    sadl.begin(1);
    for (index, batch) in batches.iter().enumerate() {
        sadl.submit(key(index as u64), bytes(batch));
    }
    for name in sadl.extend(8, 1 << 20) {
        sadl.written(name, Slot(1));
        sadl.on_durable(name);
    }
    sadl.take_votes();
    sadl
}

fn take(sadl: &mut Chains, message: Message) -> Vec<Name> {
    let Message::New {
        first,
        batches,
        completed,
        ..
    } = message
    else {
        panic!("batches are shown");
    };
    sadl.on_new(first, batches, completed, 1 << 20)
}

fn voter() -> Chains {
    let mut sadl = Chains::new(VOTER, 3, 2);
    sadl.begin(1);
    sadl
}

#[test]
fn vote_waits_for_the_journal_and_for_what_stands_before() {
    let creator = creator(&["a", "b", "c"]);
    let mut voter = voter();
    let later = take(&mut voter, creator.show(1, u64::MAX, 1 << 20));
    assert_eq!(later, [name(1, 2), name(1, 3)]);
    for name in later {
        voter.written(name, Slot(1));
        voter.on_durable(name);
    }
    assert_eq!(
        voter.take_votes(),
        [(CREATOR, 1, 0)],
        "the first is missing"
    );
    let all = take(&mut voter, creator.show(0, u64::MAX, 1 << 20));
    assert_eq!(all, [name(1, 1)], "the others are here");
    assert_eq!(voter.take_votes(), [(CREATOR, 1, 0)], "not durable");
    voter.written(name(1, 1), Slot(1));
    voter.on_durable(name(1, 1));
    assert_eq!(voter.take_votes(), [(CREATOR, 1, 3)]);
    assert_eq!(voter.take_votes(), [], "said once");
    take(&mut voter, creator.show(0, u64::MAX, 1 << 20));
    assert_eq!(
        voter.take_votes(),
        [(CREATOR, 1, 3)],
        "and when asked again"
    );
}

#[test]
fn only_what_a_quorum_holds_is_ordered_and_everything_once() {
    let mut creator = creator(&["a", "b", "c"]);
    assert!(!creator.complete(), "only its own vote");
    assert_eq!(creator.ranges(&[Head::default(); 3], 100), []);
    creator.on_vote(VOTER, 1, 2);
    assert!(creator.complete() && creator.take_announcement());
    let ranges = creator.ranges(&[Head::default(); 3], 100);
    let first = name(1, 1);
    assert_eq!(ranges, [Range { first, last: 2 }]);
    let mut heads = [Head::default(); 3];
    heads[0] = ranges[0].head();
    assert_eq!(creator.ranges(&heads, 100), []);
    creator.on_vote(VOTER, 1, 3);
    creator.complete();
    let first = name(1, 3);
    assert_eq!(creator.ranges(&heads, 100), [Range { first, last: 3 }]);
    heads[0] = Head { chain: 2, round: 0 };
    assert_eq!(creator.ranges(&heads, 100), [], "that chain is over");
}

#[test]
fn voter_without_state_is_not_counted() {
    let mut creator = creator(&["a"]);
    creator.on_vote(VOTER, 1, 1);
    creator.forget(VOTER);
    assert!(!creator.complete());
    creator.on_vote(VOTER, 1, 1);
    assert!(creator.complete());
    creator.on_vote(VOTER, 2, 1);
    creator.assert_invariants();
}

#[test]
fn window_bounds_what_is_in_progress() {
    let mut sadl = creator(&[]);
    for id in 0..5 {
        sadl.submit(key(id), bytes("12345"));
        sadl.submit(key(id), bytes("12345"));
    }
    assert_eq!(sadl.extend(2, 1 << 20).len(), 2);
    assert_eq!(sadl.extend(2, 1 << 20).len(), 0);
    sadl.executed(name(1, 1), Slot(4));
    assert_eq!(sadl.extend(2, 1 << 20).len(), 1);
    sadl.executed(name(1, 2), Slot(5));
    sadl.executed(name(1, 3), Slot(6));
    assert_eq!(sadl.extend(9, 7).len(), 1, "too large together");
    assert!(sadl.unfinished());
    sadl.assert_invariants();
}

#[test]
fn batch_of_a_newer_chain_ends_the_older_ones() {
    let mut voter = voter();
    for chain in 1..=2 {
        let first = name(chain, 1);
        let names = voter.on_new(first, alloc::vec![bytes("x"), bytes("y")], 1, 1 << 20);
        assert_eq!(names.len(), 2);
    }
    assert!(
        voter
            .on_new(name(1, 3), alloc::vec![bytes("z")], 1, 1 << 20)
            .is_empty()
    );
    voter.executed(name(1, 1), Slot(3));
    assert!(voter.batch(name(1, 2)).is_some(), "it may be ordered yet");
    voter.executed(name(2, 1), Slot(4));
    assert!(voter.batch(name(1, 2)).is_none(), "never any more");
    assert!(voter.batch(name(1, 1)).is_some(), "kept for others");
    voter.trim_history(0);
    assert_eq!(voter.len(), 1);
    let range = Range {
        first: name(1, 1),
        last: 1,
    };
    assert_eq!(voter.find(range, 100), None, "executed, and given up");
    assert_eq!(voter.missing(range), None);
    voter.assert_invariants();
}

#[test]
fn journal_keeps_what_no_snapshot_has() {
    let mut voter = voter();
    let batches = alloc::vec![bytes("a"), bytes("b"), bytes("c")];
    for name in voter.on_new(name(1, 1), batches, 3, 1 << 20) {
        voter.written(name, Slot(5));
        voter.on_durable(name);
    }
    voter.executed(name(1, 1), Slot(7));
    voter.executed(name(1, 2), Slot(9));
    assert_eq!(voter.rewrite(Slot(8)), [name(1, 2), name(1, 3)]);
    assert_eq!(voter.trim_below(Slot(8)), Slot(9));
    // Executed behind the snapshot and not held any more: only the journal has it.
    voter.trim_history(0);
    assert_eq!(voter.rewrite(Slot(8)), [name(1, 3)]);
    assert_eq!(voter.trim_below(Slot(8)), Slot(5));
    assert_eq!(voter.rewrite(Slot(9)), [name(1, 3)]);
    assert_eq!(voter.trim_below(Slot(9)), Slot(10));
    let mut again = self::voter();
    again.restore(name(1, 3), bytes("c"), Slot(10));
    assert_eq!(again.inventory().len(), 1);
    again.install(&[
        Head { chain: 1, round: 3 },
        Head::default(),
        Head::default(),
    ]);
    assert!(again.is_empty() && again.inventory().is_empty());
}

#[test]
fn waiting_request_abandoned_by_frontend_is_dropped() {
    let mut chains = Chains::new(CREATOR, 3, 2);
    chains.begin(1);
    let builder = |id: u64| {
        let mut builder = quintet_replica::BatchBuilder::new();
        let frontend = quintet_replica::FrontendId(1);
        let level = quintet_replica::Level::Ordered;
        builder.finish(frontend, quintet_replica::BatchId(id), level)
    };
    for id in 0..3 {
        chains.submit(key(id), builder(id));
    }
    chains.drop_waiting(&|of| of == key(1));
    assert_eq!(chains.extend(8, 1 << 20).len(), 2);
    chains.submit(key(1), builder(1));
    assert_eq!(chains.extend(8, 1 << 20).len(), 1, "it may come again");
}
