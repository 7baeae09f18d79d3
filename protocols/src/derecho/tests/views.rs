//! Ends of views: who takes over, what is adopted, who halts.

use super::*;
use crate::derecho::Message;
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{Control, Event, Options, ReplicaId};

#[test]
fn minority_halts_and_majority_continues() {
    let mut group = group(5);
    group.write(0);
    group.settle();
    for inside in [0, 1] {
        for outside in [2, 3, 4] {
            group.cut.insert((inside, outside));
            group.cut.insert((outside, inside));
        }
    }
    let lost = group.write(0);
    let kept = group.write(3);
    group.run(MS * 1500);
    assert!(group.answered(3, kept));
    assert!(!group.answered(0, lost), "two of five decide nothing");
    assert_eq!(group.status(0).role, "out");
    group.heal();
    group.run(MS * 4000);
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch), "{:?}", group.status(1));
    assert_converged(&group, 3);
}

/// Members that have written, with more behind them than their logs hold: one that loses its log
/// needs the whole state.
fn group_with_states(members: u16) -> Group<Derecho> {
    let mut group = group(usize::from(members));
    for id in 0..members {
        group.write(id);
    }
    group.settle();
    for id in 0..members {
        group.event(id, Event::Control(Control::CheckpointDue));
    }
    (0..members).for_each(|id| group.crash(id));
    group
}

#[test]
fn restart_continues_without_member_that_lost_its_log() {
    let mut group = group_with_states(3);
    group.damage(2);
    group.members[2].slow_state = true;
    (0..3).for_each(|id| group.start(id));
    for _ in 0..200 {
        group.run(MS * 20);
        if group.status(0).role == "member" {
            break;
        }
    }
    let batch = group.write(0);
    group.run(MS * 100);
    assert!(group.answered(0, batch), "{:?}", group.status(0));
    assert_eq!(group.marked("member left out on its way"), 0);
    group.members[2].slow_state = false;
    group.run(MS * 4000);
    let batch = group.write(2);
    group.run(MS * 500);
    assert!(group.answered(2, batch), "{:?}", group.status(2));
    assert_converged(&group, 5);
}

#[test]
fn member_that_does_not_begin_in_a_view_is_left_out() {
    let mut group = group_with_states(5);
    group.damage(2);
    group.damage(3);
    group.members[3].slow_state = true;
    // Two complete logs are no majority of five: others have to come along, and one is late.
    (0..4).for_each(|id| group.start(id));
    group.run(MS * 8000);
    let batch = group.write(0);
    group.run(MS * 100);
    assert!(group.answered(0, batch), "{:?}", group.status(0));
    group.members[3].slow_state = false;
    group.run(MS * 6000);
    assert_eq!(group.status(3).role, "member", "{:?}", group.status(3));
    let batch = group.write(3);
    group.run(MS * 500);
    assert!(group.answered(3, batch), "{:?}", group.status(3));
}

#[test]
fn member_that_crashes_in_a_loop_is_let_in_more_rarely() {
    // If the others are a bare majority, it waits for at most a second.
    for (members, most) in [(3, 50), (5, 24)] {
        let mut group = group(members);
        group.write(0);
        group.settle();
        let before = group.status(0).view;
        let member = |group: &Group<Derecho>| group.status(2).role == "member";
        group.crash_in_a_loop(2, (Duration::ZERO, MS * 400), member);
        let changes = group.status(0).view - before;
        assert!(changes <= most, "{changes} views of {members} in 30 s");
        group.start(2);
        group.run(MS * 40_000);
        assert_eq!(group.status(2).role, "member", "{:?}", group.status(2));
        assert_converged(&group, 1);
    }
}

#[test]
fn member_waits_at_most_a_second_in_a_group_of_three() {
    for (durability, longest) in [(Durability::Disk, 1500), (Durability::Memory, 500)] {
        let mut group = Group::<Derecho>::new(3, durability, Config::default());
        group.write(0);
        group.settle();
        let member = |group: &Group<Derecho>| group.status(2).role == "member";
        group.crash_in_a_loop(2, (Duration::ZERO, MS * 400), member);
        group.run(MS * 400);
        group.start(2);
        group.run(MS * longest);
        group.crash(1);
        group.run(MS * 2000);
        let batch = group.write(0);
        group.run(MS * 500);
        assert!(group.answered(0, batch), "{durability:?}");
    }
}

#[test]
fn even_split_halts_both_halves_and_heals() {
    let mut group = group(4);
    for inside in [0, 1] {
        for outside in [2, 3] {
            group.cut.insert((inside, outside));
            group.cut.insert((outside, inside));
        }
    }
    let batches = [group.write(0), group.write(3)];
    group.run(MS * 3000);
    assert!(!group.answered(0, batches[0]) && !group.answered(3, batches[1]));
    group.heal();
    group.run(MS * 6000);
    let batch = group.write(2);
    group.run(MS * 1000);
    assert!(group.answered(2, batch), "{:?}", group.status(2));
    assert_converged(&group, 1);
}

#[test]
fn view_installed_by_one_member_is_not_reported_as_agreed() {
    let mut group = Group::<Derecho>::unstarted(3, Durability::Disk, Config::default());
    for id in 1..3 {
        group.cut.insert((id, 0));
        group.cut.insert((0, id));
    }
    (0..3).for_each(|id| group.start(id));
    group.run(MS * 10);
    assert_eq!(group.status(0).role, "leader", "at work");
    assert_eq!(group.members[0].route_ahead, [0, 1, 2]);
    assert!(
        group.members[0].route.is_empty(),
        "no other member is known"
    );
    assert_eq!(group.members[1].route, [0, 1, 2], "two of three");
}

/// The leader of the view change dies after every number of its packets; the others must agree
/// with whatever it may have agreed with one of them.
#[test]
fn leader_that_dies_at_any_step_of_the_trim_is_replaced() {
    for steps in 0..60 {
        let mut group = group(5);
        for id in 0..5 {
            group.write(id);
        }
        group.settle();
        group.crash(4);
        let batches: Vec<_> = (0..4).map(|id| (id, group.write(id))).collect();
        group.event(1, Event::Control(Control::ReportFailure(ReplicaId(4))));
        let mut left = steps;
        for _ in 0..200 {
            for id in 0..4 {
                group.sync(id);
                group.idle(id);
            }
            let Some(packet) = group.network.pop_front() else {
                break;
            };
            if packet.from == ReplicaId(0) {
                if left == 0 {
                    group.crash(0);
                    group.network.retain(|packet| packet.from != ReplicaId(0));
                    break;
                }
                left -= 1;
            }
            group.deliver(packet);
        }
        group.run(MS * 3000);
        for (id, batch) in batches {
            assert!(
                id == 0 || group.answered(id, batch),
                "after {steps} packets: {id}"
            );
        }
        assert_converged(&group, 5);
    }
}

#[test]
fn member_without_state_returns_as_new_incarnation() {
    let mut group = Group::<Derecho>::new(3, Durability::Memory, Config::default());
    let first = group.write(1);
    group.settle();
    assert!(group.answered(1, first));
    group.crash(1);
    group.start(1);
    group.run(MS * 3000);
    assert_eq!(group.status(1).role, "member", "{:?}", group.status(1));
    assert_converged(&group, 1);
    group.crash(0);
    group.run(MS * 2000);
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}

#[test]
fn cluster_without_any_state_does_not_serve() {
    let mut group = Group::<Derecho>::new(3, Durability::Memory, Config::default());
    group.write(1);
    group.settle();
    for id in 0..3 {
        group.crash(id);
    }
    for id in 0..3 {
        group.start(id);
    }
    group.run(MS * 20_000);
    for id in 0..3 {
        let halted = group.members[id].halted.as_deref();
        assert!(halted.is_some_and(|reason| reason.contains("--bootstrap-again")));
    }
}

#[test]
fn large_message_goes_beside_the_ring() {
    let config = Config {
        smc_bytes_max: 64,
        ..Config::default()
    };
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    let mut batches = Vec::new();
    for _ in 0..40 {
        batches.push(group.write(2));
        group.idle(2);
    }
    let bulk = |packet: &&crate::group::Packet<Derecho>| {
        !packet.put && matches!(packet.message(), Message::Bulk { .. })
    };
    assert!(group.network.iter().filter(bulk).count() > 0);
    group.settle();
    assert!(batches.into_iter().all(|batch| group.answered(2, batch)));
    assert_converged(&group, 40);
}

#[test]
fn views_shrink_one_by_one_below_a_majority_of_the_epoch() {
    let mut group = group(5);
    for gone in [4, 3, 2] {
        group.crash(gone);
        group.run(MS * 1500);
    }
    let batch = group.write(0);
    group.run(MS * 500);
    assert!(group.answered(0, batch), "two of the last three continue");
    group.crash(1);
    let batch = group.write(0);
    group.run(MS * 1500);
    assert!(!group.answered(0, batch), "one of two does not");
    // Three of five are up, and yet they must wait for the last view's majority (Appendix C).
    group.start(2);
    group.start(3);
    group.run(MS * 5000);
    assert!(!group.answered(0, batch));
    group.start(1);
    group.run(MS * 8000);
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch), "{:?}", group.status(1));
}

/// Two members and three that come back at once and die as soon as they are let in: the earlier
/// members must be able to continue.
#[test]
fn no_more_join_at_a_time_than_leave_the_others_a_majority() {
    let mut group = group(5);
    for gone in [4, 3, 2] {
        group.crash(gone);
        group.run(MS * 1500);
    }
    let size = |group: &Group<Derecho>| group.replica(0).membership.view().members.len();
    assert_eq!(size(&group), 2);
    for back in 2..5 {
        group.start(back);
    }
    let mut sizes = Vec::from([2]);
    for _ in 0..5000 {
        group.run(MS);
        if sizes.last() != Some(&size(&group)) {
            sizes.push(size(&group));
        }
    }
    assert_eq!(sizes.last(), Some(&5));
    let majority = |pair: &[usize]| pair[0] * 2 > pair[1];
    assert!(sizes.windows(2).all(majority), "{sizes:?}");
}

/// A donor says that it no longer keeps what was asked for, and what another one sent covers that
/// before any snapshot comes: none is installed then, and the rest must still be asked for.
#[test]
fn snapshot_that_the_log_overtook_is_waited_for_no_more() {
    let config = Config {
        batch_bytes_max: 4096,
        ..Config::default()
    };
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.crash(2);
    group.run(MS * 1000);
    for _ in 0..200 {
        group.write(0);
    }
    group.settle();
    group.start(2);
    group.sync(2);
    let mut behind = false;
    while let Some(packet) = group.network.pop_front() {
        let to = packet.to.0;
        let fetches =
            packet.from.0 == 2 && !packet.put && matches!(packet.message(), Message::Fetch { .. });
        group.deliver(packet);
        if fetches && !behind {
            behind = true;
            let at_least = quintet_replica::Slot(3);
            let message = Message::Behind { at_least };
            group.deliver(crate::group::Packet::new(1, 2, &message));
        }
        group.sync(to);
        group.sync(2);
        group.idle(to);
        if group.replica(2).stream.log.end() >= quintet_replica::Slot(3) {
            break;
        }
    }
    assert!(behind && group.replica(2).stream.log.executed() < quintet_replica::Slot(200));
    group.run(MS * 3000);
    assert_eq!(group.status(2).role, "member", "{:?}", group.status(2));
    assert_converged(&group, 200);
}

#[test]
fn member_that_missed_a_view_answers_no_read() {
    let mut group = group(3);
    group.write(0);
    group.settle();
    group.isolate(0);
    for id in [1, 2] {
        let failed = Control::ReportFailure(ReplicaId(0));
        group.event(id, Event::Control(failed));
    }
    group.settle();
    let batch = group.write(1);
    group.settle();
    assert!(group.answered(1, batch), "no time has passed");
    assert_eq!(group.status(0).role, "leader", "it knows of nothing");
    let read = group.submit(0, Level::Linearizable);
    group.settle();
    assert!(!group.answered(0, read), "its state is old");
}

/// One memory of three holds what was acknowledged: the group restarts from it and from no other.
#[test]
fn member_without_state_is_incomplete_in_that_view() {
    let mut group = Group::<Derecho>::new(3, Durability::Memory, Config::default());
    group.write(1);
    group.settle();
    for id in [0, 1] {
        group.crash(id);
        group.start(id);
    }
    group.run(MS * 200);
    for id in [0, 1] {
        assert!(!group.replica(id).membership.is_complete(), "replica {id}");
    }
    group.run(MS * 8000);
    assert_converged(&group, 1);
    let batch = group.write(0);
    group.run(MS * 500);
    assert!(group.answered(0, batch), "{:?}", group.status(0));
}

/// The rest of the log is not enough for it, however little it lacks: the others continue until it
/// has fetched a state.
#[test]
fn replica_behind_trimmed_log_is_admitted_with_state_only() {
    let mut config = Config::default();
    config
        .set("log_memory_bytes", "1024")
        .expect("in its range");
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.crash(2);
    group.run(MS * 1000);
    for _ in 0..100 {
        group.write(0);
        group.settle();
    }
    group.members[2].slow_state = true;
    group.start(2);
    group.run(MS * 1000);
    assert!(group.replica(2).stream.log.sure().next() < group.replica(0).stream.log.first());
    let batch = group.write(0);
    group.run(MS * 200);
    assert!(group.answered(0, batch), "{:?}", group.status(0));
    group.members[2].slow_state = false;
    group.run(MS * 2000);
    assert_eq!(group.status(2).role, "member", "{:?}", group.status(2));
    assert_converged(&group, 101);
}

/// Entries delivered while a member fetches a state stay in the log, up to twice the bound.
#[test]
fn log_keeps_more_while_a_peer_catches_up() {
    let mut config = Config::default();
    config
        .set("log_memory_bytes", "4096")
        .expect("in its range");
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.crash(2);
    group.run(MS * 1000);
    let mut bytes = [0; 2];
    for kept in &mut bytes {
        for _ in 0..200 {
            group.write(0);
            group.settle();
        }
        *kept = group.replica(0).stream.log.bytes();
        group.members[2].slow_state = true;
        if group.members[2].driver.is_none() {
            group.start(2);
            group.run(MS * 300);
        }
    }
    assert!(
        bytes[0] <= 4096 && bytes[1] > 4096 && bytes[1] <= 8192,
        "{bytes:?}"
    );
}

#[test]
fn member_from_which_something_long_comes_stays_in_the_view() {
    let mut group = group(3);
    group.run(MS * 100);
    assert!(group.wait_behind_bulk(0, MS * 5000));
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}
