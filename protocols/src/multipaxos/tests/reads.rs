//! Linearizable reads.

use super::group::{Group, MS};
use crate::multipaxos::{Config, Message};
use quintet_replica::{Durability, Level, Outcome, Slot};

fn group() -> Group {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    group
}

/// The slot that the state read from had come to.
fn read_at(group: &Group, id: u16, batch: quintet_replica::BatchId) -> Option<Slot> {
    match group.done.get(&(id, batch)) {
        Some(Outcome::Results(bytes)) => {
            let bytes: [u8; 8] = bytes.as_ref().try_into().expect("a slot");
            Some(Slot(u64::from_le_bytes(bytes)))
        }
        _ => None,
    }
}

#[test]
fn read_sees_acknowledged_writes_and_writes_nothing() {
    for members in [1, 2, 3, 5] {
        let mut group = Group::new(members, Durability::Memory, Config::default());
        group.run(MS * 20);
        for id in 0..members as u16 {
            let write = group.write((id + 1) % members as u16);
            group.settle();
            let written = group.replica(0).log.committed();
            assert!(group.answered((id + 1) % members as u16, write));
            let read = group.submit(id, Level::Linearizable);
            group.settle();
            assert!(read_at(&group, id, read).expect("answered") >= written);
            assert_eq!(group.replica(0).log.end(), written.next(), "no log write");
        }
    }
}

#[test]
fn many_reads_share_one_round() {
    let mut group = group();
    let reads: alloc::vec::Vec<_> = (0..50)
        .map(|_| group.submit(1, Level::Linearizable))
        .collect();
    group.idle(1);
    assert_eq!(group.network.len(), 1, "one question for all");
    group.settle();
    assert!(reads.iter().all(|read| group.answered(1, *read)));
    assert_eq!(group.replica(0).log.end(), Slot(1));
}

#[test]
fn stale_read_paused_leader() {
    let mut group = group();
    // The old leader is cut off and does not know it.
    group.isolate(0);
    group.run(MS * 300);
    for id in [1, 2] {
        group.event(
            id,
            quintet_replica::Event::Control(quintet_replica::Control::ReportFailure(
                quintet_replica::ReplicaId(0),
            )),
        );
    }
    let read = group.submit(0, Level::Linearizable);
    group.run(MS * 250);
    let write = group.write(1);
    group.run(MS * 250);
    let write = if group.answered(1, write) {
        write
    } else {
        panic!("a new leader serves")
    };
    assert!(
        read_at(&group, 0, read).is_none(),
        "no majority confirmed the old leader"
    );
    group.heal();
    group.run(MS * 2000);
    let at = read_at(&group, 0, read).expect("answered by the new leader");
    assert!(at >= Slot(1), "it sees batch {write}");
}

#[test]
fn read_before_first_commit_of_term() {
    let mut group = group();
    // A write reaches replica 1 and is committed by 0, which tells no other and stops.
    group.cut.extend([(0, 2), (2, 0)]);
    let write = group.write(0);
    group.idle(0);
    while let Some(packet) = group.network.pop_front() {
        if matches!(packet.message(), Message::Commit { .. }) {
            continue;
        }
        group.deliver(packet);
        group.idle(0);
        group.idle(1);
    }
    assert!(group.answered(0, write), "acknowledged");
    assert_eq!(group.replica(1).log.committed(), Slot(0));
    group.crash(0);
    group.network.clear();
    // Replica 1 wins, but the answers to its re-proposal are held back.
    group.run(MS * 100);
    group.event(
        1,
        quintet_replica::Event::Control(quintet_replica::Control::ReportFailure(
            quintet_replica::ReplicaId(0),
        )),
    );
    group.event(
        2,
        quintet_replica::Event::Control(quintet_replica::Control::ReportFailure(
            quintet_replica::ReplicaId(0),
        )),
    );
    let mut read = None;
    for _ in 0..400 {
        group.clock.now = group.clock.now + MS * 5;
        for id in [1, 2] {
            if group.members[usize::from(id)]
                .timers
                .values()
                .any(|at| *at <= group.clock.now)
            {
                group.fire(id, crate::multipaxos::replica::Timer::Election);
            }
            group.sync(id);
            group.idle(id);
        }
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            let accept = matches!(packet.message(), Message::Accept { .. });
            if !accept {
                group.deliver(packet);
            }
        }
        if let [leader @ (1 | 2)] = group.leaders()[..] {
            read = read.or_else(|| Some((leader, group.submit(leader, Level::Linearizable))));
        }
    }
    let (leader, read) = read.expect("a replica leads");
    assert!(group.marked("read waits for the ballot's first commit") > 0);
    assert_eq!(
        read_at(&group, leader, read),
        None,
        "its commit point may be too old"
    );
    group.run(MS * 2000);
    assert!(read_at(&group, leader, read).expect("answered") >= Slot(1));
}

#[test]
fn lost_question_is_asked_again() {
    let mut group = group();
    group.cut.insert((1, 0));
    let read = group.submit(1, Level::Linearizable);
    group.settle();
    group.heal();
    group.run(MS * 600);
    assert!(group.answered(1, read));
}

#[test]
fn answer_to_another_run_of_the_process_fits_no_question() {
    let mut group = group();
    let read = group.submit(1, Level::Linearizable);
    group.isolate(1);
    group.settle();
    let stale = Message::ReadIndexOk {
        round: u64::MAX >> 1,
        index: Slot(0),
    };
    group.event(
        1,
        quintet_replica::Event::Message {
            from: quintet_replica::Peer::Replica(quintet_replica::ReplicaId(0)),
            arrived: group.clock.now,
            message: quintet_replica::Wire::encode_to_bytes(&stale),
        },
    );
    group.settle();
    assert!(!group.answered(1, read));
    assert_eq!(
        group.marked("ignored: read index of another incarnation"),
        1
    );
}

#[test]
fn reads_ask_no_more_followers_than_a_majority_needs() {
    let mut group = Group::new(5, Durability::Memory, Config::default());
    group.run(MS * 120);
    group.submit(0, Level::Linearizable);
    group.idle(0);
    assert_eq!(group.network.len(), 2, "two of four followers");
    group.network.clear();
    group.clock.now = group.clock.now + MS * 6;
    group.idle(0);
    assert_eq!(
        group.network.len(),
        2,
        "the others, too, once those are silent"
    );
    group.settle();
}

#[test]
fn reads_that_wait_for_a_round_go_in_the_turn_that_ends_it() {
    let mut group = group();
    let first = group.submit(0, Level::Linearizable);
    group.idle(0);
    let second = group.submit(0, Level::Linearizable);
    group.idle(0);
    // Time stands still: no timer and no wake-up can help.
    group.settle();
    assert!(group.answered(0, first) && group.answered(0, second));
}
