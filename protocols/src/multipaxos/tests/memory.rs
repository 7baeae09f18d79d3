//! Memory durability: replicas that come back having lost their state.

use super::group::{Group, MS, Packet, assert_converged, small};
use crate::multipaxos::{Config, Message, Part, replica::Role};
use alloc::vec::Vec;
use quintet_replica::{Durability, Event, Incarnation, Link, Peer, ReplicaId, Slot, parts::Ballot};

fn group(members: usize) -> Group {
    let mut group = Group::new(members, Durability::Memory, Config::default());
    group.run(MS * 20);
    group
}

#[test]
fn follower_without_state_takes_leaders_log_before_voting() {
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
fn leader_without_state_comes_back_as_follower() {
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
    // Only 1 and the restarted 2 could elect; 0 is away.
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
fn replica_without_state_behind_trimmed_log_fetches_state() {
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
fn old_votes_of_replica_without_state_do_not_count() {
    let mut group = group(5);
    // 1 votes for a value that 2, 3 and 4 have not seen, and forgets it before it is decided.
    let vote = |group: &Group| match &group.replica(0).role {
        Role::Leader(lead) => lead.peers[1].durable(),
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
    assert_eq!(vote(&group), Slot(0), "the leader met the new incarnation");
    assert_eq!(group.status(0).committed, Slot(0));
}

#[test]
fn majority_without_state_gets_a_remedy() {
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
fn lost_majority_gets_remedy_though_others_are_intact() {
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
    let halted: Vec<bool> = halted.collect();
    assert_eq!(halted, [false, false, true, true, true]);
}

/// Starts a restarted replica 2 again and answers its question; what others send is lost.
fn answered(members: usize, answers: impl Fn(Ballot) -> Vec<(u16, Ballot, Part)>) -> Group {
    let mut group = group(members);
    group.crash(2);
    group.network.clear();
    group.start(2);
    let asked = group
        .network
        .iter()
        .find_map(|packet| match packet.message() {
            Message::Recover { nonce, .. } => Some(nonce),
            _ => None,
        });
    let nonce = asked.expect("it asks as it starts");
    group.network.clear();
    for (from, promised, part) in answers(group.replica(0).ballots.promised()) {
        let answer = Message::RecoverOk {
            nonce,
            promised,
            part,
            held: Vec::new(),
        };
        group.deliver(Packet::new(from, 2, &answer));
    }
    group
}

/// Replica 2 of three has come back, and was answered by leader 0, whose log goes up to slot 3.
fn answered_by_the_leader() -> Group {
    let leads = Part::Leader { end: Slot(4) };
    let group = answered(3, |ballot| {
        [(0, ballot, leads), (1, ballot, Part::Intact)].to_vec()
    });
    assert_eq!(group.marked("recovery quorum"), 1);
    group
}

#[test]
fn promise_to_replica_that_never_led_does_not_block() {
    let leads = Part::Leader { end: Slot(1) };
    let above = |ballot: Ballot| ballot.next(ReplicaId(4));
    let group = answered(5, |ballot| {
        let higher = (4, above(ballot), Part::Intact);
        let intact = |id| (id, ballot, Part::Intact);
        [higher, (0, ballot, leads), intact(1)].to_vec()
    });
    assert_eq!(group.marked("recovery quorum"), 0, "two of four");
    let group = answered(5, |ballot| {
        let higher = (4, above(ballot), Part::Intact);
        let intact = |id| (id, ballot, Part::Intact);
        [higher, (0, ballot, leads), intact(1), intact(3)].to_vec()
    });
    assert_eq!(group.marked("recovery quorum"), 1);
    assert_eq!(group.status(2).role, "follower");
}

fn accept(ballot: Ballot, slots: u8) -> Message {
    let values: Vec<u8> = (1..=slots).collect();
    super::elections::accept(ballot, 1, &values)
}

#[test]
fn it_votes_when_it_has_all_that_the_leader_had_and_not_before() {
    let mut group = answered_by_the_leader();
    let ballot = group.replica(0).ballots.promised();
    assert_eq!(group.status(2).role, "recovering");
    for (slots, role) in [(2, "recovering"), (3, "follower")] {
        group.deliver(Packet::new(0, 2, &accept(ballot, slots)));
        group.idle(2);
        group.sync(2);
        assert_eq!(group.status(2).role, role, "with {slots} slots of three");
    }
}

#[test]
fn newer_leader_makes_a_recovering_replica_ask_again() {
    let mut group = answered_by_the_leader();
    let newer = group.replica(0).ballots.promised().next(ReplicaId(1));
    group.deliver(Packet::new(1, 2, &accept(newer, 1)));
    assert_eq!(group.marked("recovery starts over"), 1);
    let asks = |packet: &Packet| matches!(packet.message(), Message::Recover { .. });
    assert!(group.network.iter().any(asks));
    assert_eq!(group.status(2).role, "recovering");
}

#[test]
fn question_of_an_earlier_incarnation_is_not_answered() {
    let mut group = group(3);
    let incarnation = Incarnation(3);
    let up = Link::Up { incarnation };
    group.event(0, Event::Link(Peer::Replica(ReplicaId(2)), up));
    group.network.clear();
    let question = |incarnation| Message::Recover {
        incarnation: Incarnation(incarnation),
        nonce: incarnation,
        promised: Ballot::default(),
    };
    let mut answers = |incarnation| {
        group.deliver(Packet::new(2, 0, &question(incarnation)));
        let to_it = |packet: &Packet| match packet.message() {
            Message::RecoverOk { nonce, .. } => nonce == incarnation,
            _ => false,
        };
        group.network.iter().filter(|packet| to_it(packet)).count()
    };
    assert_eq!([answers(2), answers(3)], [0, 1]);
    assert_eq!(
        group.marked("ignored: question of an earlier incarnation"),
        1
    );
}
