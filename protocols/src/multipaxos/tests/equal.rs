//! Comparisons whose two sides are equal: neither more nor less.

use super::group::{Group, MS, Packet};
use crate::multipaxos::{Config, Message};
use quintet_replica::{
    Control, Durability, Event, Incarnation, Link, Peer, ReplicaId, Slot,
    parts::{Ballot, Decisions, ElectionMessage as Election},
};

const FIRST: Ballot = Ballot {
    round: 1,
    owner: ReplicaId(0),
};

fn group() -> Group {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 20);
    assert_eq!(group.replica(0).ballots.promised(), FIRST);
    group
}

fn send(group: &mut Group, from: u16, to: u16, message: &Message) {
    group.deliver(Packet::new(from, to, message));
}

#[test]
fn answer_for_the_slot_behind_the_last_one_answers_nothing() {
    let mut group = group();
    group.write(0);
    group.settle();
    let end = group.replica(0).log.end();
    for from in [1, 2] {
        let answer = Message::AcceptOk {
            ballot: FIRST,
            incarnation: Incarnation(1),
            held: end,
            durable: end,
            executed: Slot(0),
            confirm: 0,
            stamp: 0,
        };
        send(&mut group, from, 0, &answer);
    }
    assert_eq!(group.status(0).committed, end.previous());
    let ignored = group.marked("ignored: answer to nothing that was asked");
    assert_eq!(ignored, 2);
}

#[test]
fn ballot_that_is_promised_is_not_offered_again() {
    let mut group = group();
    let leader = Peer::Replica(ReplicaId(0));
    group.event(1, Event::Link(leader, Link::Down));
    let answer = |group: &mut Group, ballot| {
        group.network.clear();
        let committed = group.status(1).committed;
        send(
            group,
            2,
            1,
            &Message::Election(Election::PreVote { ballot, committed }),
        );
        let granted = |packet: &Packet| match packet.message() {
            Message::Election(Election::PreVoteOk { granted, .. }) => Some(granted),
            _ => None,
        };
        group.network.iter().find_map(granted)
    };
    assert_eq!(answer(&mut group, FIRST), Some(false));
    let higher = Ballot {
        round: 2,
        owner: ReplicaId(2),
    };
    assert_eq!(answer(&mut group, higher), Some(true));
}

#[test]
fn leader_that_keeps_next_slot_causes_no_state_transfer() {
    let mut group = group();
    group.members[1].slow_disk = true;
    group.members[2].slow_disk = true;
    group.write(0);
    group.settle();
    let (held, executed) = (group.replica(1).log.held(), group.replica(1).log.executed());
    assert!(held > executed, "one is held that is not decided");
    let news = |first| Message::Trimmed {
        ballot: FIRST,
        first,
        decisions: Decisions::default(),
    };
    send(&mut group, 0, 1, &news(held.next()));
    assert_eq!(group.marked("state transfer chosen"), 0);
    send(&mut group, 0, 1, &news(held.next().next()));
    assert_eq!(group.marked("state transfer chosen"), 1);
}

#[test]
fn state_that_is_no_newer_leaves_the_log_alone() {
    let mut group = group();
    for _ in 0..3 {
        group.write(1);
        group.run(MS);
    }
    group.run(MS * 200);
    group.event(1, Event::Control(Control::CheckpointDue));
    group.settle();
    let (slot, summary) = group.members[1].disk.checkpoint.clone().unwrap();
    assert_eq!(slot, group.replica(1).log.executed());
    let first = group.replica(1).log.first();
    assert!(first <= slot, "some of what was executed is kept");
    group.event(1, Event::Installed { slot, summary });
    assert_eq!(group.replica(1).log.first(), first);
}

#[test]
fn refusal_in_favour_of_leader_s_own_ballot_does_not_depose_it() {
    let mut group = group();
    let refusal = |promised| {
        Message::Election(Election::Reject {
            ballot: FIRST,
            promised,
        })
    };
    send(&mut group, 1, 0, &refusal(FIRST));
    assert_eq!(group.leaders(), [0]);
    let higher = Ballot {
        round: 2,
        owner: ReplicaId(1),
    };
    send(&mut group, 1, 0, &refusal(higher));
    assert!(group.leaders().is_empty());
}
