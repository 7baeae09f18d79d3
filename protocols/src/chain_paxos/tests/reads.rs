//! Local linearizable reads.

use super::{Group, MS, group, write_within};
use crate::chain_paxos::{Config, Message, ReadsBy, Round};
use crate::group::Packet;
use alloc::vec::Vec;
use quintet_replica::{BatchId, Durability, Level, Outcome, ReplicaId, ReplicaSet, Slot};
use smallvec::smallvec;

fn value(group: &Group, id: u16, read: quintet_replica::BatchId) -> Option<u64> {
    match group.done.get(&(id, read)) {
        Some(Outcome::Results(bytes)) => Some(u64::from_le_bytes(bytes[..8].try_into().ok()?)),
        _ => None,
    }
}

#[test]
fn every_replica_answers_reads_without_an_entry() {
    for members in [1, 2, 3, 5, 7] {
        let mut group = group(members, Durability::Disk);
        assert!(write_within(&mut group, 0, MS * 10));
        let before = group.replica(0).log.held();
        for id in 0..members as u16 {
            let read = group.submit(id, Level::Linearizable);
            group.run(MS * 2);
            assert_eq!(value(&group, id, read), Some(1), "at {id} of {members}");
        }
        assert_eq!(
            group.replica(0).log.held(),
            before,
            "nothing was written for them"
        );
    }
}

#[test]
fn many_reads_hold_no_round_up() {
    let mut group = group(3, Durability::Memory);
    let reads: Vec<_> = (0..400)
        .map(|_| group.submit(1, Level::Linearizable))
        .collect();
    let answered = |group: &Group| reads.iter().filter(|id| group.answered(1, **id)).count();
    // Long enough for it to ask; then time stands still, and what is answered is a share.
    group.clock.now = group.clock.now + MS;
    group.settle();
    let at_once = answered(&group);
    assert!((1..100).contains(&at_once), "{at_once}");
    group.run(MS * 20);
    assert_eq!(answered(&group), 400);
}

#[test]
fn read_asks_at_once_and_those_that_come_meanwhile_ask_together() {
    let mut group = group(3, Durability::Memory);
    assert!(write_within(&mut group, 0, MS * 10));
    let questions = |group: &Group| {
        let asks = |packet: &&Packet<_>| matches!(packet.message(), Message::Ask { .. });
        group.network.iter().filter(asks).count()
    };
    // Entries have just passed, and no time passes from here on.
    let first = group.submit(1, Level::Linearizable);
    group.idle(1);
    assert_eq!(questions(&group), 1, "asked in the turn in which it came");
    let later: Vec<_> = (0..5)
        .map(|_| {
            let read = group.submit(1, Level::Linearizable);
            group.idle(1);
            read
        })
        .collect();
    assert_eq!(questions(&group), 1, "the question is open");
    while questions(&group) > 0 {
        let packet = group.network.pop_front().expect("a question");
        group.deliver(packet);
    }
    group.idle(0);
    assert!(value(&group, 1, first).is_none());
    group.run(MS);
    for read in core::iter::once(first).chain(later) {
        assert!(value(&group, 1, read).is_some());
    }
}

/// Replicas of three sites so far from each other that a loop takes longer than reads may wait.
fn far_group() -> Group {
    let config = Config {
        read_timeout: MS * 20,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Memory, config);
    group.run(MS * 20);
    for id in 0..3 {
        group.far.insert(id, MS * 10);
    }
    for _ in 0..20 {
        assert!(write_within(&mut group, 0, MS * 200));
    }
    group.run(MS * 200);
    group
}

#[test]
fn local_reads_stay_local_when_a_loop_takes_long() {
    let mut group = far_group();
    let before = group.replica(0).log.held();
    let reads: Vec<_> = (0..10)
        .map(|_| {
            let read = group.submit(1, Level::Linearizable);
            group.run(MS * 7);
            read
        })
        .collect();
    group.run(MS * 200);
    for read in reads {
        assert!(value(&group, 1, read).is_some());
    }
    assert_eq!(
        group.replica(0).log.held(),
        before,
        "nothing was ordered for them"
    );
}

#[test]
fn second_question_is_open_when_a_loop_takes_long() {
    let mut group = far_group();
    // Of the tail a question and its answer take a whole loop, 30 ms.
    let first = group.submit(2, Level::Linearizable);
    group.run(MS);
    let later = group.submit(2, Level::Linearizable);
    let at = group.clock.now;
    while value(&group, 2, later).is_none() {
        group.run(MS);
    }
    assert!(value(&group, 2, first).is_some());
    let took = group.clock.now.since(at);
    assert!(took < MS * 50, "asked half a loop later: {took:?}");
}

#[test]
fn lost_question_is_asked_again_with_the_next_read() {
    let mut group = group(3, Durability::Memory);
    assert!(write_within(&mut group, 0, MS * 10));
    group.cut.insert((1, 0));
    let lost = group.submit(1, Level::Linearizable);
    group.run(MS);
    group.cut.remove(&(1, 0));
    let next = group.submit(1, Level::Linearizable);
    group.run(MS * 2);
    for read in [lost, next] {
        assert!(value(&group, 1, read).is_some());
    }
}

#[test]
fn reads_through_the_chain_take_one_entry_per_turn() {
    let config = Config {
        reads: ReadsBy::Chain,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 20);
    let before = group.replica(0).log.held();
    let reads: alloc::vec::Vec<_> = (0..5)
        .map(|_| group.submit(2, Level::Linearizable))
        .collect();
    group.run(MS * 5);
    for read in reads {
        assert!(value(&group, 2, read).is_some());
    }
    assert_eq!(group.replica(0).log.held(), before.next());
}

#[test]
fn local_read_that_has_waited_for_long_is_ordered_instead() {
    // The tail hears everything, and what it says is lost: neither its question nor a round that
    // it forwarded comes to the head.
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 0, MS * 10));
    let before = group.replica(0).log.held();
    group.cut.insert((2, 0));
    let read = group.submit(2, Level::Linearizable);
    group.run(MS * 240);
    assert_eq!(
        (value(&group, 2, read), group.replica(0).log.held()),
        (None, before)
    );
    // The next question is for an entry.
    group.run(MS * 20);
    group.heal();
    group.run(MS * 600);
    assert_eq!(value(&group, 2, read), Some(before.next().0));
    assert_eq!(group.replica(0).log.held(), before.next(), "one entry");
}

#[test]
fn read_waits_for_a_round_made_after_it_came() {
    // A round is on its way to replica 1 when the read arrives; it does not do.
    let mut group = group(3, Durability::Memory);
    assert!(write_within(&mut group, 0, MS * 10));
    group.write(0);
    group.idle(0);
    let old = group.network.pop_front().expect("an Accept");
    assert!(matches!(old.message(), Message::Accept { .. }));
    let read = group.submit(1, Level::Linearizable);
    group.cut.extend([(1, 0)]);
    group.deliver(old);
    group.idle(1);
    group.settle();
    assert_eq!(value(&group, 1, read), None);
    group.heal();
    group.run(MS * 600);
    assert!(value(&group, 1, read).is_some());
}

#[test]
fn replica_that_is_cut_off_answers_no_read() {
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 0, MS * 10));
    for id in [0, 1, 2] {
        group.isolate(id);
        let read = group.submit(id, Level::Linearizable);
        group.run(MS * 2000);
        assert_eq!(value(&group, id, read), None, "at {id}");
        group.heal();
        group.run(MS * 4000);
        assert!(value(&group, id, read).is_some(), "healed, at {id}");
    }
}

#[test]
fn reads_as_printed_would_be_stale_after_a_change_of_the_leader() {
    // Chain 0,1,2,3,4: entries 1..=10 are decided by 0, 1, 2; replica 3 has seen five of them when
    // a read comes; 0 dies; 1 leads and proposes all again.
    let mut group = group(5, Durability::Memory);
    for _ in 0..5 {
        group.write(0);
        group.settle();
    }
    group.cut.extend([(2, 3)]);
    let mut last = None;
    for _ in 0..5 {
        last = Some(group.write(2));
        group.settle();
    }
    assert!(
        group.answered(2, last.expect("written")),
        "decided at the middle"
    );
    assert_eq!(group.replica(3).log.held(), Slot(5));
    let read = group.submit(3, Level::Linearizable);
    group.crash(0);
    group.heal();
    group.run(MS * 6000);
    assert!(value(&group, 3, read).is_some_and(|seen| seen >= 10));
}

#[test]
fn replica_out_of_the_chain_refuses_reads() {
    let mut group = group(5, Durability::Disk);
    group.isolate(4);
    assert!(write_within(&mut group, 0, MS * 3000));
    group.run(MS * 500);
    // It is told that it is out, and hears nothing else.
    group.heal();
    group.cut.extend([(4, 0), (4, 1), (4, 2), (4, 3)]);
    group.run(MS * 500);
    let read = group.submit(4, Level::Linearizable);
    group.run(MS * 500);
    assert_eq!(value(&group, 4, read), None);
    group.heal();
    group.run(MS * 3000);
    assert!(value(&group, 4, read).is_some());
}

/// Replica 1 of three has just started again, hears round 10 from 0, and a read comes. Then round
/// 12 comes; whether it was made before or after the read is what `round` says.
fn read_before_a_round(round: impl FnOnce(&Group, Round) -> Round) -> (Group, BatchId) {
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 0, MS * 10));
    group.isolate(1);
    group.crash(1);
    group.start(1);
    let header = group.replica(0).header();
    let first = group.replica(0).log.held().next();
    let accept = |round| {
        let header = crate::chain_paxos::Header {
            round,
            ..header.clone()
        };
        let entries = Vec::new();
        Packet::new(
            0,
            1,
            &Message::Accept {
                header,
                first,
                entries,
            },
        )
    };
    let plain = |number| Round {
        number,
        end: group.replica(0).log.held(),
        path: ReplicaSet::EMPTY.with(ReplicaId(0)),
        ..Round::default()
    };
    let (before, after) = (plain(10), plain(12));
    group.deliver(accept(before));
    group.idle(1);
    let read = group.submit(1, Level::Linearizable);
    group.idle(1);
    let after = round(&group, after);
    group.deliver(accept(after));
    group.idle(1);
    (group, read)
}

#[test]
fn round_forwarded_by_earlier_run_proves_no_read() {
    let forwarded = |_: &Group, round| Round {
        looped: 11,
        looped_by: ReplicaSet::EMPTY.with(ReplicaId(0)).with(ReplicaId(1)),
        ..round
    };
    let (group, read) = read_before_a_round(forwarded);
    assert_eq!(
        value(&group, 1, read),
        None,
        "it may be older than the read"
    );
}

#[test]
fn answer_to_an_earlier_run_is_no_proof_for_a_read() {
    // Runs number their questions from anywhere.
    let other_run = |_: &Group, round| Round {
        asked: smallvec![(ReplicaId(1), u64::MAX >> 1)],
        ..round
    };
    let (group, read) = read_before_a_round(other_run);
    assert_eq!(
        value(&group, 1, read),
        None,
        "it may be older than the read"
    );
}

#[test]
fn answer_to_this_run_is_proof_for_a_read() {
    let answer = |group: &Group, round| Round {
        asked: smallvec![(ReplicaId(1), group.replica(1).reads.newest())],
        ..round
    };
    let (group, read) = read_before_a_round(answer);
    assert!(value(&group, 1, read).is_some());
}
