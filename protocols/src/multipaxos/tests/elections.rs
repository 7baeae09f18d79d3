//! Elections and what must not happen in them.

use super::group::{Group, MS, Packet, assert_converged};
use crate::multipaxos::{
    Config, Message, Proposal, Value,
    replica::{Role, Timer},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, CommandTime, Control, Durability, Event, Incarnation, Link, Peer, ReplicaId, Slot,
    parts::{Ballot, Decisions, ElectionMessage as Election, Held, PromisePage},
};

fn group(members: usize) -> Group {
    let mut group = Group::new(members, Durability::Disk, Config::default());
    group.run(MS * 20);
    group
}

fn send(group: &mut Group, from: u16, to: u16, message: &Message) {
    group.deliver(Packet::new(from, to, message));
}

fn sent(group: &Group) -> Vec<Message> {
    group.network.iter().map(Packet::message).collect()
}

const fn ballot(round: u64, owner: u16) -> Ballot {
    Ballot {
        round,
        owner: ReplicaId(owner),
    }
}

fn bytes_of(proposal: &Proposal) -> Vec<u8> {
    match &proposal.value {
        Value::Batch(batch) => batch.to_vec(),
        Value::Named(name) => panic!("nothing is disseminated, but {name:?}"),
    }
}

fn value(byte: u8) -> Proposal {
    Proposal {
        time: CommandTime(u64::from(byte)),
        value: Value::Batch(Bytes::copy_from_slice(&[byte])),
    }
}

pub fn accept(ballot: Ballot, first: u64, values: &[u8]) -> Message {
    Message::Accept {
        ballot,
        first: Slot(first),
        committed: Slot(0),
        confirm: 0,
        stamp: 1,
        everywhere: Slot(0),
        proposals: values.iter().map(|byte| value(*byte)).collect(),
    }
}

#[test]
fn crashed_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    for members in [3, 5, 7] {
        let mut group = group(members);
        for id in 0..members as u16 {
            group.write(id);
        }
        group.run(MS * 5);
        group.crash(0);
        let write = group.write(1);
        group.run(MS * 2000);
        assert_eq!(group.leaders().len(), 1);
        assert!(group.answered(1, write), "{members} members");
        group.start(0);
        group.run(MS * 500);
        assert_converged(&group, members as u64 + 1);
    }
}

#[test]
fn returning_replica_does_not_depose_a_good_leader() {
    let mut group = group(3);
    group.isolate(2);
    group.run(MS * 5000);
    let ballot = group.replica(0).ballots.promised();
    group.heal();
    group.run(MS * 3000);
    assert_eq!(group.leaders(), [0]);
    assert_eq!(
        group.replica(0).ballots.promised(),
        ballot,
        "no new ballot was needed"
    );
    assert_eq!(group.status(2).leader, Some(ReplicaId(0)));
}

#[test]
fn voter_with_a_leader_refuses_a_pre_vote() {
    let mut group = group(3);
    send(
        &mut group,
        2,
        1,
        &Message::Election(Election::PreVote {
            ballot: ballot(9, 2),
            committed: Slot(0),
        }),
    );
    assert!(sent(&group).iter().any(|m| matches!(
        m,
        Message::Election(Election::PreVoteOk { granted: false, .. })
    )));
    assert_eq!(
        group.replica(1).ballots.promised(),
        ballot(1, 0),
        "asking binds no replica"
    );
}

#[test]
fn isolated_leader_steps_down() {
    let mut group = group(3);
    group.isolate(0);
    group.run(MS * 3000);
    assert_ne!(group.status(0).role, "leader");
    assert_eq!(group.leaders().len(), 1);
    group.heal();
    group.run(MS * 500);
    assert_eq!(group.leaders().len(), 1);
}

#[test]
fn leadership_is_handed_off_at_once() {
    let mut group = group(3);
    group.write(0);
    group.settle();
    group.event(0, Event::Control(Control::HandOff));
    group.settle();
    assert_eq!(group.leaders().len(), 1, "without waiting for any timer");
    assert_ne!(group.leaders(), [0]);
    let write = group.write(0);
    group.run(MS * 20);
    assert!(group.answered(0, write));
}

#[test]
fn vote_lost_on_restart() {
    let mut group = group(3);
    group.members[1].slow_disk = true;
    send(
        &mut group,
        2,
        1,
        &Message::Election(Election::Prepare {
            ballot: ballot(5, 2),
            from: Slot(1),
        }),
    );
    group.idle(1);
    let promises = |m: &Message| matches!(m, Message::Election(Election::Promise { .. }));
    assert!(!sent(&group).iter().any(promises), "not on disk yet");
    group.sync(1);
    assert!(sent(&group).iter().any(promises));
    group.crash(1);
    group.start(1);
    assert_eq!(group.replica(1).ballots.promised(), ballot(5, 2));
    send(
        &mut group,
        0,
        1,
        &Message::Election(Election::Prepare {
            ballot: ballot(4, 0),
            from: Slot(1),
        }),
    );
    assert!(
        sent(&group)
            .iter()
            .any(|m| matches!(m, Message::Election(Election::Reject { .. })))
    );
}

/// The group's replica ends the test when it halts for that.
#[test]
#[should_panic(expected = "two values for slot s1 in ballot")]
fn replica_halts_when_ballot_has_two_values_for_one_slot() {
    let mut group = group(3);
    send(&mut group, 2, 1, &accept(ballot(7, 2), 1, &[1]));
    send(&mut group, 2, 1, &accept(ballot(7, 2), 1, &[2]));
}

#[test]
#[should_panic(expected = "two decisions for slot s1, the second from")]
fn replica_halts_when_decided_slot_has_another_value() {
    let mut group = group(3);
    let mut decided = accept(ballot(7, 2), 1, &[1]);
    if let Message::Accept { committed, .. } = &mut decided {
        *committed = Slot(1);
    }
    send(&mut group, 2, 1, &decided);
    send(&mut group, 0, 1, &accept(ballot(8, 0), 1, &[2]));
}

#[test]
fn accept_must_raise_promise() {
    let mut group = group(3);
    send(&mut group, 2, 1, &accept(ballot(7, 2), 1, &[1]));
    assert_eq!(group.replica(1).ballots.promised(), ballot(7, 2));
    group.network.clear();
    send(
        &mut group,
        0,
        1,
        &Message::Election(Election::Prepare {
            ballot: ballot(6, 0),
            from: Slot(1),
        }),
    );
    send(&mut group, 0, 1, &accept(ballot(1, 0), 1, &[2]));
    group.sync(1);
    group.idle(1);
    let refusals = sent(&group)
        .iter()
        .filter(|m| matches!(m, Message::Election(Election::Reject { .. })))
        .count();
    assert_eq!(refusals, 2);
    assert_eq!(
        group.replica(1).log.get(Slot(1)).map(|held| held.ballot),
        Some(ballot(7, 2))
    );
}

/// Makes replica 1 of five a candidate that waits for promises; gives its ballot.
fn candidate(group: &mut Group) -> Ballot {
    group.crash(0);
    group.network.clear();
    group.isolate(1);
    group.run(MS * 1500);
    group.heal();
    let ask = group.replica(1).ballots.promised().next(ReplicaId(1));
    let ask = Ballot {
        round: ask.round.max(2),
        ..ask
    };
    for voter in [2, 3] {
        let vote = Message::Election(Election::PreVoteOk {
            ballot: ask,
            granted: true,
            promised: ballot(1, 0),
            first: Slot(1),
            decisions: Decisions::default(),
        });
        send(group, voter, 1, &vote);
    }
    group.sync(1);
    assert_eq!(
        (group.replica(1).ballots.promised(), group.status(1).role),
        (ask, "candidate")
    );
    group.network.clear();
    ask
}

fn promise(ballot: Ballot, accepted: &[(u64, Ballot, u8)]) -> Message {
    let held = |&(slot, ballot, byte): &(u64, Ballot, u8)| {
        let entry = value(byte);
        (Slot(slot), Held { ballot, entry })
    };
    let page = PromisePage {
        from: Slot(1),
        until: None,
        committed: Slot(0),
        first: Slot(1),
        decisions: Decisions::default(),
        accepted: accepted.iter().map(held).collect(),
    };
    Message::Election(Election::Promise {
        ballot,
        incarnation: Incarnation(1),
        page,
    })
}

#[test]
fn duplicate_vote_counted() {
    let mut group = group(5);
    let ask = candidate(&mut group);
    for _ in 0..3 {
        send(&mut group, 2, 1, &promise(ask, &[]));
    }
    assert_eq!(
        group.status(1).role,
        "candidate",
        "one voter of four others"
    );
    assert!(group.marked("ignored: promise counted before") > 0);
    send(&mut group, 3, 1, &promise(ask, &[]));
    assert_eq!(group.status(1).role, "leader");
}

#[test]
fn stale_promise_reply_counted() {
    let mut group = group(5);
    let ask = candidate(&mut group);
    let old = Ballot {
        round: ask.round - 1,
        owner: ReplicaId(1),
    };
    send(&mut group, 2, 1, &promise(old, &[]));
    send(&mut group, 3, 1, &promise(old, &[]));
    assert_eq!(group.status(1).role, "candidate");
    assert_eq!(group.marked("ignored: promise of another ballot"), 2);
}

#[test]
fn value_of_the_highest_ballot_wins_and_gaps_hold_nothing() {
    let mut group = group(5);
    let ask = candidate(&mut group);
    let (low, high) = (ballot(1, 0), ballot(1, 4));
    send(
        &mut group,
        2,
        1,
        &promise(ask, &[(1, low, 1), (3, high, 33)]),
    );
    send(
        &mut group,
        3,
        1,
        &promise(ask, &[(1, high, 11), (3, low, 3)]),
    );
    assert_eq!(group.status(1).role, "leader");
    let log = &group.replica(1).log;
    let at = |slot| {
        log.get(Slot(slot))
            .map(|held| (held.ballot, bytes_of(&held.entry)))
    };
    assert_eq!(at(1), Some((ask, [11].to_vec())));
    assert_eq!(
        at(2),
        Some((ask, Vec::new())),
        "none of the majority accepted anything"
    );
    assert_eq!(at(3), Some((ask, [33].to_vec())));
    assert_eq!(
        group.replica(1).log.committed(),
        Slot(0),
        "proposed again, not taken for decided"
    );
    assert_eq!(group.marked("gap filled with nothing"), 1);
}

#[test]
fn promise_of_an_earlier_incarnation_does_not_count() {
    let mut group = group(5);
    let ask = candidate(&mut group);
    let up = Link::Up {
        incarnation: Incarnation(2),
    };
    send(&mut group, 2, 1, &promise(ask, &[]));
    group.event(1, Event::Link(Peer::Replica(ReplicaId(2)), up));
    send(&mut group, 3, 1, &promise(ask, &[]));
    assert_eq!(
        group.status(1).role,
        "candidate",
        "replica 2 lost what it promised"
    );
    send(&mut group, 2, 1, &promise(ask, &[]));
    assert_eq!(
        group.marked("ignored: promise of an earlier incarnation"),
        1
    );
}

#[test]
fn long_promise_comes_in_pages() {
    let config = Config {
        batch_bytes_max: 4096,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 20);
    // Replica 2 lacks what the others decided; it must win with their help alone.
    group.cut.extend([(0, 2), (2, 0)]);
    for _ in 0..100 {
        group.write(0);
        group.run(MS);
    }
    group.crash(0);
    group.heal();
    group.members[1].timers.clear();
    group.run(MS * 3000);
    assert_eq!(group.leaders(), [2]);
    assert!(group.marked("promise paged") > 0);
    assert_converged(&group, 100);
}

#[test]
fn candidate_behind_trimmed_log_fetches_state() {
    let config = Config {
        log_memory_bytes: 1 << 16,
        pre_vote: false,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 20);
    group.isolate(2);
    for _ in 0..1000 {
        group.write(0);
        group.run(MS);
    }
    group.crash(0);
    group.heal();
    group.members[1].timers.clear();
    group.fire(2, Timer::Election);
    group.run(MS * 5000);
    assert!(group.marked("candidate is behind a trimmed log") > 0);
    assert_converged(&group, 1000);
}

#[test]
fn candidate_fetches_state_when_too_many_refuse_its_pre_vote() {
    let asks = |group: &mut Group| {
        group.isolate(1);
        group.run(MS * 1500);
        assert_eq!(group.status(1).role, "candidate");
        group.replica(1).ballots.promised().next(ReplicaId(1))
    };
    let vote = |ask, first| {
        Message::Election(Election::PreVoteOk {
            ballot: ask,
            granted: first == 0,
            promised: ballot(1, 0),
            first: Slot(first),
            decisions: Decisions::default(),
        })
    };
    let mut three = group(3);
    let ask = asks(&mut three);
    send(&mut three, 2, 1, &vote(ask, 1));
    send(&mut three, 2, 1, &vote(ask, 50));
    assert_eq!(three.status(1).role, "candidate", "0 may vote for it");
    assert_eq!(three.marked("state transfer chosen"), 0);
    send(&mut three, 0, 1, &vote(ask, 40));
    assert_eq!(three.status(1).role, "follower");
    assert_eq!(three.marked("state transfer chosen"), 1);
    assert_eq!(three.replica(1).fetching.asked(), Some(Slot(39)));
    // Nor does one wait for those that say nothing.
    let mut three = group(3);
    let ask = asks(&mut three);
    send(&mut three, 2, 1, &vote(ask, 50));
    three.run(MS * 1500);
    assert_eq!(three.marked("state transfer chosen"), 1);
    let mut five = group(5);
    let ask = asks(&mut five);
    for (from, first) in [(2, 50), (3, 0), (4, 0)] {
        send(&mut five, from, 1, &vote(ask, first));
    }
    five.sync(1);
    assert_eq!(five.replica(1).ballots.promised(), ask, "three of five");
    assert_eq!(five.marked("state transfer chosen"), 0);
}

#[test]
fn candidate_soon_asks_again_above_the_promise_that_refuses_it() {
    let mut group = group(3);
    group.isolate(1);
    group.run(MS * 1500);
    group.fire(1, Timer::Election);
    let asks = |group: &Group, ballot| match &group.replica(1).role {
        Role::Candidate(candidate) => candidate.asks(ballot),
        _ => false,
    };
    let ask = group.replica(1).ballots.promised().next(ReplicaId(1));
    assert!(asks(&group, ask));
    let refused = Message::Election(Election::PreVoteOk {
        ballot: ask,
        granted: false,
        promised: ballot(9, 2),
        first: Slot(1),
        decisions: Decisions::default(),
    });
    send(&mut group, 2, 1, &refused);
    group.run(Config::default().heartbeat * 3);
    assert!(asks(&group, ballot(10, 1)));
}

#[test]
fn restart_of_all_needs_no_state_for_what_all_journals_have() {
    for (members, ahead, stands) in [(3, 0, 0), (3, 1, 2), (5, 4, 4)] {
        let mut group = group(members);
        // Under two ballots, and what the last one decided is known to be decided at one only.
        for leader in [0, 1] {
            for _ in 0..10 {
                group.write(leader);
                group.run(MS);
            }
            group.crash(0);
            group.run(MS * 2000);
            group.start(0);
            group.run(MS * 500);
        }
        group.event(ahead, Event::Control(Control::CheckpointDue));
        group.settle();
        group.restart_all_without_states();
        group.elect(stands, Timer::Election);
        group.run(MS * 3000);
        assert_eq!(group.marked("state transfer chosen"), 0);
        // Another candidate may win by the votes of the others.
        let counted = group.marked("decided as accepted under an earlier ballot") > 0;
        assert!(counted || ahead != stands, "{members} {ahead} {stands}");
        group.write(0);
        group.run(MS * 100);
        assert_converged(&group, 21);
    }
}

#[test]
fn leader_that_others_went_past_steps_down() {
    let config = Config {
        pre_vote: false,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 20);
    group.isolate(0);
    let leader = Peer::Replica(ReplicaId(0));
    group.event(1, Event::Link(leader, Link::Down));
    group.fire(1, Timer::Election);
    group.settle();
    group.write(1);
    group.settle();
    assert_eq!(group.leaders(), [0, 1], "0 does not know yet");
    group.event(1, Event::Control(Control::CheckpointDue));
    let checkpoint = group.members[1].disk.checkpoint.clone();
    let (slot, summary) = checkpoint.expect("just taken");
    assert!(slot > group.status(0).committed);
    let state = group.members[1].state.clone();
    let member = &mut group.members[0];
    (member.state, member.executed) = (state, slot);
    member.disk.checkpoint = Some((slot, summary.clone()));
    group.event(0, Event::Installed { slot, summary });
    assert_eq!(group.leaders(), [1]);
}

#[test]
fn ballot_reuse_after_restart() {
    let mut group = Group::unstarted(3, Durability::Disk, Config::default());
    group.members[0].slow_disk = true;
    for id in 0..3 {
        group.start(id);
    }
    group.settle();
    assert!(
        group.leaders().is_empty(),
        "the first ballot is not used before it is on disk"
    );
    group.sync(0);
    assert_eq!(group.leaders(), [0]);
    group.crash(0);
    group.start(0);
    group.settle();
    assert_ne!(
        group.status(0).role,
        "leader",
        "the same ballot is not used again"
    );
}

#[test]
fn partial_connectivity_livelock() {
    // 1 and 2 do not see each other; both see 0, the leader.
    let mut group = group(3);
    group.cut.extend([(1, 2), (2, 1)]);
    group.run(MS * 10_000);
    assert_eq!(group.leaders(), [0]);
    assert_eq!(group.replica(0).ballots.promised(), ballot(1, 0));
}

#[test]
fn leader_stays_while_something_long_comes_from_it() {
    let mut group = group(3);
    group.run(MS * 100);
    assert!(group.wait_behind_bulk(0, MS * 5000));
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}
