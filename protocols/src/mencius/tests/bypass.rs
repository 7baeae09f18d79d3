//! Members that are up and far slower than the others.

use super::groups::{Group, MS, assert_converged, group};
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Control, Durability, Event, Level, Outcome, ReplicaId, ReplicaSet, Slot,
};

fn set(ids: &[u16]) -> ReplicaSet {
    ids.iter().map(|id| ReplicaId(*id)).collect()
}

/// A member's node finds these slow.
fn finds_slow(group: &mut Group, at: u16, slow: &[u16]) {
    let control = Control::SlowMembers(set(slow));
    group.event(at, Event::Control(control));
}

fn all_find_slow(group: &mut Group, slow: &[u16]) {
    for at in 0..group.members.len() as u16 {
        finds_slow(group, at, slow);
    }
}

/// How many writes at these members are answered in a time, one after the other at each, while
/// every disk that is slow finishes what it has once in so long.
fn answered_in(group: &mut Group, time: u32, at: &[u16], disk: u32) -> u32 {
    let (mut answered, mut open) = (0, Vec::new());
    for step in 0..time {
        open.resize(at.len(), None);
        for (id, open) in at.iter().zip(&mut open) {
            if open.is_some_and(|batch| group.answered(*id, batch)) {
                answered += 1;
                *open = None;
            }
            open.get_or_insert_with(|| group.write(*id));
        }
        for id in 0..group.members.len() as u16 {
            if step % disk == 0 && group.members[usize::from(id)].slow_disk {
                group.sync(id);
            }
        }
        group.run(MS);
    }
    answered
}

/// Whether one is answered within a time.
fn is_answered_in(group: &mut Group, at: u16, batch: BatchId, time: u32) -> bool {
    for _ in 0..time {
        if group.answered(at, batch) {
            return true;
        }
        group.run(MS);
    }
    group.answered(at, batch)
}

#[test]
fn cluster_does_not_wait_for_member_behind_slow_link() {
    for members in [3, 5] {
        for slow in 0..members as u16 {
            let mut group = group(members, Durability::Disk);
            let quick: Vec<u16> = (0..members as u16).filter(|id| *id != slow).collect();
            let before = answered_in(&mut group, 1000, &quick, 1);
            group.far.insert(slow, MS * 20);
            all_find_slow(&mut group, &[slow]);
            group.run(MS * 200);
            let failing = answered_in(&mut group, 1000, &quick, 1);
            assert!(failing * 10 > before * 9, "{failing} of {before}");
            group.far.clear();
            all_find_slow(&mut group, &[]);
            group.run(MS * 200);
            let after = answered_in(&mut group, 1000, &quick, 1);
            assert!(after * 10 > before * 9, "{after} of {before}");
            group.run(MS * 1000);
            assert_converged(&group, 2000);
        }
    }
}

#[test]
fn cluster_does_not_wait_for_member_with_slow_disk() {
    let mut group = group(3, Durability::Disk);
    let before = answered_in(&mut group, 1000, &[0, 1], 1);
    group.members[2].slow_disk = true;
    all_find_slow(&mut group, &[2]);
    answered_in(&mut group, 500, &[0, 1], 200);
    let failing = answered_in(&mut group, 1000, &[0, 1], 200);
    assert!(failing * 10 > before * 9, "{failing} of {before}");
}

#[test]
fn clients_of_a_slow_member_are_answered_while_it_is_bypassed() {
    let mut group = group(3, Durability::Disk);
    group.far.insert(2, MS * 20);
    all_find_slow(&mut group, &[2]);
    group.run(MS * 200);
    for _ in 0..20 {
        answered_in(&mut group, 50, &[0, 1], 1);
        let write = group.write(2);
        assert!(is_answered_in(&mut group, 2, write, 45), "a round trip");
        let read = group.submit(2, Level::Linearizable);
        let executed = group.members[0].executed;
        assert!(is_answered_in(&mut group, 2, read, 45), "a round trip");
        let Some(Outcome::Results(results)) = group.done.get(&(2, read)) else {
            panic!("it is answered");
        };
        let results = results.first_chunk().expect("the slot that it stands at");
        assert!(Slot(u64::from_le_bytes(*results)) >= executed);
    }
    assert_eq!(group.marked("suggestion lost its slot"), 0);
    all_find_slow(&mut group, &[]);
    let write = group.write(2);
    assert!(is_answered_in(&mut group, 2, write, 1000));
    assert!(group.replica(2).relay.to().is_none());
}

#[test]
fn self_declared_slow_members_order_forwarded_requests() {
    let mut group = group(3, Durability::Disk);
    for id in 0..3 {
        finds_slow(&mut group, id, &[id]);
    }
    for id in 0..3 {
        let to = group.replica(id).relay.to();
        assert_eq!(to, Some(ReplicaId((id + 1) % 3)), "in a circle");
        let write = group.write(id);
        let read = group.submit(id, Level::Linearizable);
        assert!(is_answered_in(&mut group, id, write, 10));
        assert!(is_answered_in(&mut group, id, read, 10));
    }
    assert_converged(&group, 3);
}

#[test]
fn members_that_each_find_the_other_slow_do_not_stop_the_group() {
    for slow in [[0, 1], [1, 2], [0, 2]] {
        let mut group = group(3, Durability::Disk);
        finds_slow(&mut group, slow[0], &[slow[1]]);
        finds_slow(&mut group, slow[1], &[slow[0]]);
        for turn in 0..100 {
            let (id, write) = (turn % 3, group.write(turn % 3));
            assert!(is_answered_in(&mut group, id, write, 100), "{slow:?}");
        }
        group.run(MS * 500);
        assert_converged(&group, 100);
    }
}

#[test]
fn no_member_is_bypassed_without_quick_majority() {
    let mut group = group(3, Durability::Disk);
    all_find_slow(&mut group, &[2]);
    let write = group.write(2);
    group.run(MS * 10);
    assert!(group.answered(2, write));
    assert_eq!(group.replica(2).relay.to(), Some(ReplicaId(0)));
    group.crash(1);
    group.run(MS * 3000);
    assert_eq!(group.replica(2).relay.to(), None);
    for id in [0, 2] {
        let write = group.write(id);
        assert!(is_answered_in(&mut group, id, write, 100), "{id}");
    }
    all_find_slow(&mut group, &[0, 2]);
    for id in [0, 2] {
        let write = group.write(id);
        assert!(is_answered_in(&mut group, id, write, 100), "{id}");
        assert_eq!(group.replica(id).relay.to(), None);
    }
}

#[test]
fn request_forwarded_to_crashed_member_is_forwarded_again() {
    let mut group = group(5, Durability::Disk);
    all_find_slow(&mut group, &[2]);
    group.run(MS * 10);
    assert_eq!(group.replica(2).relay.to(), Some(ReplicaId(3)));
    group.isolate(3);
    let (write, read) = (group.write(2), group.submit(2, Level::Linearizable));
    group.run(MS * 100);
    assert!(!group.answered(2, write) && !group.answered(2, read));
    // The frontend repeats them after 400 ms and after 1,200 ms: this is in between.
    let began = group.clock.now;
    while group.replica(2).relay.to() != Some(ReplicaId(4)) {
        group.run(MS);
    }
    assert!(is_answered_in(&mut group, 2, write, 20));
    assert!(is_answered_in(&mut group, 2, read, 20));
    assert!(group.clock.now.since(began) < MS * 1000);
}

#[test]
fn requests_lost_with_connection_are_forwarded_again() {
    let mut group = group(5, Durability::Disk);
    all_find_slow(&mut group, &[2]);
    group.run(MS * 10);
    let to = group.replica(2).relay.to().expect("it is bypassed").0;
    group.far.insert(2, MS * 20);
    let (write, read) = (group.write(2), group.submit(2, Level::Linearizable));
    group.run(MS * 5);
    group.reset(2, to);
    assert!(is_answered_in(&mut group, 2, write, 100));
    assert!(is_answered_in(&mut group, 2, read, 100));
}

#[test]
fn forwarded_request_is_suggested_again_when_its_slot_is_lost() {
    let mut group = group(3, Durability::Disk);
    all_find_slow(&mut group, &[2]);
    group.run(MS * 10);
    assert_eq!(group.replica(2).relay.to(), Some(ReplicaId(0)));
    // No member receives the suggestion, and another member revokes its slot.
    group.cut.extend([(0, 1), (0, 2)]);
    let write = group.write(2);
    group.run(MS * 5);
    assert!(!group.replica(0).own.is_empty());
    finds_slow(&mut group, 1, &[0]);
    let other = group.write(1);
    assert!(is_answered_in(&mut group, 1, other, 100));
    group.heal();
    assert!(is_answered_in(&mut group, 2, write, 200), "before a repeat");
    assert!(group.marked("suggestion lost its slot") > 0);
}

#[test]
fn bypassed_member_answers_reads() {
    let mut group = group(3, Durability::Disk);
    finds_slow(&mut group, 0, &[2]);
    for _ in 0..5 {
        let write = group.write(1);
        let read = group.submit(2, Level::Linearizable);
        assert!(is_answered_in(&mut group, 1, write, 10));
        assert!(is_answered_in(&mut group, 2, read, 10));
    }
    assert!(group.marked("slots revoked") > 0);
}
