//! The entries of its voters that a new leader keeps.

use super::epoch;
use crate::nezha::{Config, Name, Nezha, Stamp, Vote};
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Durability, FrontendId, GroupId, Incarnation, Protocol, ReplicaId, Setup, Slot,
};

fn replica(id: u16, members: usize) -> Nezha {
    Nezha::new(Setup {
        id: ReplicaId(id),
        incarnation: Incarnation(1),
        group: GroupId(0),
        epoch: epoch(members),
        durability: Durability::Memory,
        options: Config::default(),
        seed: 1,
    })
}

fn stamp(deadline: u64, batch: u64) -> Stamp {
    let name = Name {
        frontend: FrontendId(1),
        batch: BatchId(batch),
    };
    Stamp { deadline, name }
}

fn vote(view_normal: u64, synced: &[Stamp], unsynced: &[Stamp]) -> Vote {
    Vote {
        view_normal,
        commit: Slot(0),
        kept: Slot(1),
        first: Slot(1),
        synced: synced.to_vec(),
        unsynced: unsynced.to_vec(),
    }
}

#[test]
fn survivor_of_three_must_be_in_both_logs_of_majority() {
    let new = replica(1, 3);
    let (a, b, c) = (stamp(1, 1), stamp(2, 2), stamp(3, 3));
    let votes = [
        (ReplicaId(1), vote(0, &[a], &[b, c])),
        (ReplicaId(2), vote(0, &[], &[a, c])),
    ];
    let plan = new.plan(&votes).expect("nothing is missing");
    assert_eq!(plan.0, [a], "the longest synced log");
    assert_eq!(plan.1, [c], "b may not have been committed");
}

#[test]
fn entry_with_deadline_below_sync_point_survives() {
    let new = replica(1, 3);
    let (early, synced) = (stamp(8, 2), stamp(10, 1));
    let votes = [
        (ReplicaId(1), vote(0, &[synced], &[early])),
        (ReplicaId(2), vote(0, &[synced], &[early])),
    ];
    let plan = new.plan(&votes).expect("nothing is missing");
    assert_eq!(plan, (Vec::from([synced]), Vec::from([early])));
}

#[test]
fn only_latest_view_with_participants_counts() {
    let new = replica(1, 5);
    let (old, fresh) = (stamp(1, 1), stamp(2, 2));
    let votes = [
        (ReplicaId(1), vote(3, &[old, old, old], &[old])),
        (ReplicaId(2), vote(3, &[old, old, old], &[old])),
        (ReplicaId(3), vote(4, &[fresh], &[])),
    ];
    let plan = new.plan(&votes).expect("nothing is missing");
    assert_eq!(plan, (Vec::from([fresh]), Vec::new()));
}

#[test]
fn batch_that_was_placed_under_another_deadline_survives_once() {
    let new = replica(1, 3);
    let (placed, own) = (stamp(20, 1), stamp(10, 1));
    let votes = [
        (ReplicaId(1), vote(0, &[placed], &[])),
        (ReplicaId(2), vote(0, &[], &[own])),
        (ReplicaId(0), vote(0, &[], &[own])),
    ];
    let plan = new.plan(&votes).expect("nothing is missing");
    assert_eq!(plan, (Vec::from([placed]), Vec::new()));
}

#[test]
fn slots_that_the_longest_log_could_not_tell_are_waited_for() {
    let new = replica(1, 3);
    let mut best = vote(0, &[stamp(1, 1)], &[]);
    (best.first, best.kept) = (Slot(5), Slot(5));
    let votes = [(ReplicaId(1), vote(0, &[], &[])), (ReplicaId(2), best)];
    assert_eq!(new.plan(&votes), None);
}
