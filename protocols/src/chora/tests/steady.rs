//! The normal case: proposals, acknowledgements, skipping, reads.

use super::group::{Group, MS, assert_converged, mode, proposers};
use crate::chora::{Config, Drive, Message, Proposers};
use quintet_replica::{Durability, Level};

const MODES: [Drive; 3] = [Drive::Auto, Drive::Pulsing, Drive::Responsive];

#[test]
fn every_replica_proposes_and_all_execute_the_same() {
    for drive in MODES {
        for members in [1, 2, 3, 5, 7] {
            for durability in [Durability::Disk, Durability::Memory] {
                let mut group = Group::new(members, durability, mode(drive));
                group.run(MS * 10);
                assert_eq!(proposers(&group), members);
                let mut written = alloc::vec::Vec::new();
                for turn in 0..30u16 {
                    let id = turn % members as u16;
                    written.push((id, group.write(id)));
                    group.run(MS);
                }
                group.run(MS * 50);
                for (id, batch) in written {
                    assert!(
                        group.answered(id, batch),
                        "{drive:?}, {members} members, {durability:?}: {batch} of {id}"
                    );
                }
                // Heartbeats acknowledge the slots that were skipped behind the last proposal.
                group.run(MS * 250);
                assert_converged(&group, 30);
                assert_eq!(group.marked("view began"), 0);
            }
        }
    }
}

#[test]
fn idle_group_sends_heartbeats_and_nothing_else() {
    for drive in MODES {
        let mut group = Group::new(3, Durability::Disk, mode(drive));
        group.write(0);
        group.run(MS * 200);
        let before = group.status(0).details;
        let round = |details: &[(&'static str, alloc::string::String)]| {
            let found = details.iter().find(|(name, _)| *name == "round");
            found.map(|(_, value)| value.clone())
        };
        group.run(MS * 2000);
        assert_eq!(
            round(&before),
            round(&group.status(0).details),
            "{drive:?}: no round without load"
        );
    }
}

#[test]
fn lone_busy_proposer_does_not_wait_for_the_idle_ones() {
    // After its first proposal the others have skipped a turn ahead: a proposal and its
    // acknowledgements are all that a commit takes.
    let mut group = Group::new(3, Durability::Memory, mode(Drive::Responsive));
    group.write(0);
    group.settle();
    group.run(MS * 20);
    let batch = group.write(0);
    group.idle(0);
    let step = |group: &mut Group| {
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            group.deliver(packet);
        }
        (0..3).for_each(|id| group.idle(id));
    };
    step(&mut group);
    assert!(!group.answered(0, batch));
    step(&mut group);
    assert!(group.answered(0, batch), "two message delays");
}

#[test]
fn one_proposer_is_a_single_leader_and_the_others_forward() {
    let config = Config {
        proposers: Proposers::Count(1),
        ..mode(Drive::Responsive)
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    assert_eq!(proposers(&group), 1);
    for id in 0..3 {
        let (write, read) = (group.write(id), group.submit(id, Level::Linearizable));
        group.run(MS * 50);
        assert!(group.answered(id, write) && group.answered(id, read));
    }
    assert_converged(&group, 3);
}

#[test]
fn read_waits_for_the_own_next_slot() {
    for drive in MODES {
        let mut group = Group::new(3, Durability::Disk, mode(drive));
        group.run(MS * 10);
        group.write(1);
        group.run(MS * 20);
        let read = group.submit(2, Level::Linearizable);
        group.isolate(2);
        group.idle(2);
        assert!(
            !group.answered(2, read),
            "no replica has acknowledged its slot"
        );
        group.heal();
        group.run(MS * 2000);
        assert!(group.answered(2, read));
    }
}

#[test]
fn lost_proposal_is_repeated_by_its_proposer_only() {
    let mut group = Group::new(3, Durability::Disk, mode(Drive::Responsive));
    group.run(MS * 10);
    group.write(0);
    group.idle(0);
    // Replica 2 does not get the proposal; it hears of it from replica 1.
    group.network.retain(|packet| packet.to.0 != 2);
    let mut repeated = alloc::collections::BTreeSet::new();
    for _ in 0..400 {
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            if let Message::Pulse(pulse) = packet.message()
                && !pulse.recover.is_empty()
            {
                repeated.insert(packet.from.0);
            }
            group.deliver(packet);
        }
        group.run(MS / 2);
    }
    group.run(MS * 500);
    assert_converged(&group, 1);
    assert!(repeated.iter().all(|id| *id == 0), "{repeated:?}");
}

#[test]
fn window_bounds_outstanding_batches() {
    let config = Config {
        window: 2,
        ..mode(Drive::Responsive)
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.isolate(0);
    for _ in 0..10 {
        group.write(0);
        group.idle(0);
    }
    assert_eq!(group.replica(0).proposer.outstanding().len(), 2);
    group.heal();
    group.run(MS * 3000);
    assert_converged(&group, 10);
}
