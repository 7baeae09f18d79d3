//! Memory durability: replicas that come back having forgotten.

use super::group::{Group, MS, assert_converged, small};
use crate::multipaxos::{Config, replica::Role};
use quintet_replica::{Durability, Slot};

fn group(members: usize) -> Group {
    let mut group = Group::new(members, Durability::Memory, Config::default());
    group.run(MS * 20);
    group
}

#[test]
fn a_forgetful_follower_takes_the_leaders_log_over_before_it_votes() {
    for members in [3, 4, 5] {
        let mut group = group(members);
        for _ in 0..20 {
            group.write(1);
            group.run(MS);
        }
        group.crash(2);
        group.run(MS * 50);
        group.start(2);
        assert_eq!(group.status(2).role, "recovering");
        assert!(!group.status(2).voting);
        group.run(MS * 500);
        assert_eq!(group.status(2).role, "follower");
        assert_converged(&group, 20);
    }
}

#[test]
fn a_forgetful_leader_comes_back_as_a_follower() {
    let mut group = group(3);
    for _ in 0..20 {
        group.write(1);
        group.run(MS);
    }
    group.crash(0);
    group.start(0);
    group.run(MS * 3000);
    assert_eq!(group.leaders().len(), 1);
    assert_ne!(group.leaders(), [0]);
    assert_eq!(group.status(0).role, "follower");
    assert_converged(&group, 20);
}

#[test]
fn while_recovering_it_neither_promises_nor_votes() {
    let mut group = group(3);
    group.write(0);
    group.run(MS * 5);
    group.crash(2);
    group.start(2);
    group.isolate(2);
    // Only 1 and the forgetful 2 could elect; 0 is away.
    group.crash(0);
    group.heal();
    group.isolate(0);
    group.run(MS * 5000);
    assert!(group.leaders().is_empty(), "half of the memories are gone");
    assert_eq!(group.status(2).role, "recovering");
    assert!(group.marked("ignored: recovering") > 0);
}

#[test]
fn diskless_recovery_amnesia() {
    // A value is acknowledged by 0 and 2 alone. 2 forgets, comes back, and 0 dies: whatever 1 and
    // 2 then decide must contain the value.
    let mut group = group(3);
    group.isolate(1);
    let write = group.write(0);
    group.run(MS * 5);
    assert!(group.answered(0, write));
    group.crash(2);
    group.start(2);
    group.cut.clear();
    group.cut.extend([(0, 1), (1, 0)]);
    group.run(MS * 400);
    assert_eq!(
        group.status(2).role,
        "follower",
        "0 leads, and answered, and so did 1"
    );
    group.crash(0);
    group.heal();
    group.run(MS * 5000);
    assert_eq!(group.leaders().len(), 1);
    for id in [1, 2] {
        assert!(group.batches(id).contains(&write), "replica {id}");
    }
}

#[test]
fn a_forgetful_replica_behind_a_trimmed_log_fetches_state() {
    let mut group = Group::new(3, Durability::Memory, small());
    group.run(MS * 20);
    for _ in 0..1200 {
        group.write(0);
        group.run(MS);
    }
    group.crash(1);
    group.start(1);
    group.run(MS * 1000);
    assert!(group.marked("state transfer chosen") > 0);
    assert_eq!(group.status(1).role, "follower");
    assert_converged(&group, 1200);
}

#[test]
fn old_votes_of_a_forgetful_replica_no_longer_count() {
    let mut group = group(5);
    // 1 votes for a value that 2, 3 and 4 have not seen, and forgets it before it is decided.
    let vote = |group: &Group| match &group.replica(0).role {
        Role::Leader(lead) => lead.peers[1].durable,
        _ => panic!("0 leads"),
    };
    group.cut.extend([(0, 2), (0, 3), (0, 4)]);
    group.write(0);
    group.settle();
    assert_eq!(vote(&group), Slot(1));
    group.crash(1);
    group.cut.insert((0, 1));
    group.start(1);
    group.settle();
    assert_eq!(vote(&group), Slot(0), "the leader met the new life");
    assert_eq!(group.status(0).committed, Slot(0));
}

#[test]
fn a_majority_that_forgot_is_told_what_to_do() {
    let mut group = group(3);
    group.write(0);
    group.run(MS * 5);
    for id in 0..3 {
        group.crash(id);
    }
    for id in 0..3 {
        group.start(id);
    }
    group.run(MS * 20_000);
    for member in &group.members {
        assert!(
            member
                .halted
                .as_ref()
                .is_some_and(|why| why.contains("--bootstrap-again"))
        );
    }
    assert!(group.leaders().is_empty());
}

#[test]
fn one_memory_too_many_is_told_what_to_do_though_others_are_intact() {
    let mut group = group(5);
    group.write(0);
    group.run(MS * 5);
    for id in 2..5 {
        group.crash(id);
    }
    for id in 2..5 {
        group.start(id);
    }
    group.run(MS * 20_000);
    let halted = group.members.iter().map(|member| member.halted.is_some());
    let halted: alloc::vec::Vec<bool> = halted.collect();
    assert_eq!(halted, [false, false, true, true, true]);
}
