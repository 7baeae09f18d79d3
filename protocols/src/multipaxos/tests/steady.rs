//! The normal case, flow control and catching up.

use super::group::{Group, MS, Packet, assert_converged, small};
use crate::multipaxos::{Config, Message, Proposal, Record};
use quintet_replica::{
    Durability, Event, Incarnation, Level, Link, Outcome, Peer, ReplicaId, Slot, TimerKey,
    TimerOwner, Wire, parts::Decisions,
};

fn groups() -> impl Iterator<Item = (usize, Durability)> {
    [1, 2, 3, 4, 5, 9]
        .into_iter()
        .flat_map(|members| [(members, Durability::Disk), (members, Durability::Memory)])
}

#[test]
fn first_leader_serves_every_frontend() {
    for (members, durability) in groups() {
        let mut group = Group::new(members, durability, Config::default());
        group.run(MS * 20);
        assert_eq!(group.leaders(), [0]);
        for id in 0..members as u16 {
            let write = group.write(id);
            group.run(MS);
            assert!(
                group.answered(id, write),
                "{members} members, {durability:?}, at {id}"
            );
        }
        group.run(MS * 200);
        assert_converged(&group, members as u64);
        assert_eq!(group.leaders(), [0], "no replica stood");
    }
}

#[test]
fn all_requests_of_a_turn_travel_in_one_accept() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    for _ in 0..20 {
        group.write(0);
    }
    group.idle(0);
    let accepts: alloc::vec::Vec<_> = group
        .network
        .iter()
        .filter_map(|packet| match packet.message() {
            Message::Accept { proposals, .. } => Some(proposals),
            _ => None,
        })
        .collect();
    assert_eq!(accepts.len(), 2, "one message to each follower");
    for proposals in accepts {
        assert_eq!(proposals.len(), 20);
        let later = |pair: &[Proposal]| pair[0].time < pair[1].time;
        assert!(proposals.windows(2).all(later), "no two at the same time");
    }
}

#[test]
fn leader_does_not_count_its_own_vote_before_it_is_durable() {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 20);
    group.members[0].slow_disk = true;
    group.members[1].slow_disk = true;
    let write = group.write(0);
    group.settle();
    assert_eq!(
        group.status(0).committed,
        Slot(0),
        "one durable vote of three"
    );
    group.sync(0);
    group.settle();
    assert!(group.answered(0, write));
}

#[test]
fn waiting_requests_are_proposed_when_window_reopens() {
    let config = Config {
        window: 1,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Memory, config);
    group.run(MS * 20);
    let first = group.write(0);
    group.idle(0);
    let second = group.write(0);
    group.idle(0);
    // No timer fires here: only the answer to the first can let the second go.
    group.settle();
    assert!(group.answered(0, first) && group.answered(0, second));
}

#[test]
fn over_a_long_round_trip_several_accepts_are_in_progress() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    group.isolate(0);
    for _ in 0..5 {
        group.write(0);
        group.idle(0);
        group.clock.now = group.clock.now + MS;
    }
    assert_eq!(
        group.replica(0).log.end(),
        Slot(6),
        "nothing waited for an answer"
    );
}

#[test]
fn lost_accepts_are_sent_again() {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 20);
    group.cut.extend([(0, 1), (0, 2)]);
    let write = group.write(0);
    group.settle();
    group.heal();
    assert!(!group.answered(0, write));
    group.run(MS * 250);
    assert!(group.answered(0, write));
    assert_eq!(group.marked("proposals sent again"), 2);
    assert_eq!(group.leaders(), [0]);
}

#[test]
fn reordered_and_duplicated_messages_change_nothing() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    for _ in 0..6 {
        group.write(0);
        group.idle(0);
        group.clock.now = group.clock.now + MS;
    }
    let packets: alloc::vec::Vec<_> = group.network.drain(..).collect();
    for packet in packets.iter().rev().chain(&packets) {
        group.network.push_back(packet.clone());
    }
    group.run(MS * 300);
    assert_converged(&group, 6);
    assert_eq!(group.batches(2).len(), 6);
}

/// Replica 2 is cut off while another one's clients write, and comes back.
fn leave_behind(group: &mut Group, writer: u16, writes: usize) {
    group.isolate(2);
    for _ in 0..writes {
        group.write(writer);
        group.run(MS);
    }
    group.heal();
}

#[test]
fn follower_that_lags_catches_up_from_the_log() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    leave_behind(&mut group, 1, 200);
    group.run(MS * 300);
    assert_converged(&group, 200);
    assert_eq!(group.marked("state transfer chosen"), 0);
}

#[test]
fn follower_behind_a_trimmed_log_fetches_state() {
    for durability in [Durability::Disk, Durability::Memory] {
        let mut group = Group::new(3, durability, small());
        group.run(MS * 20);
        leave_behind(&mut group, 0, 1200);
        group.run(MS * 1000);
        assert_converged(&group, 1200);
        assert!(group.marked("state transfer chosen") > 0);
    }
}

#[test]
fn follower_waiting_for_lost_state_takes_available_one() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    leave_behind(&mut group, 0, 1200);
    // The message comes from a log that went further, and the replica that kept that log is gone.
    let trimmed = Message::Trimmed {
        ballot: group.replica(0).ballots.promised(),
        first: Slot(5000),
        decisions: Decisions::default(),
    };
    group.deliver(Packet::new(0, 2, &trimmed));
    group.run(MS * 1000);
    assert_converged(&group, 1200);
}

#[test]
fn everything_is_there_after_all_have_stopped() {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 20);
    for _ in 0..10 {
        group.write(1);
        group.run(MS);
    }
    for id in 0..3 {
        group.crash(id);
    }
    for id in 0..3 {
        group.start(id);
    }
    assert!(
        group.members[0].executed >= Slot(9),
        "the known commit point needs no other replica"
    );
    group.run(MS * 3000);
    assert_converged(&group, 10);
    assert_eq!(group.leaders().len(), 1);
    assert!(
        group.status(group.leaders()[0]).view > 1,
        "a ballot is never used twice"
    );
}

#[test]
fn one_that_is_alone_writes_nothing_a_second_time() {
    let mut group = Group::new(1, Durability::Disk, Config::default());
    group.run(MS * 20);
    for _ in 0..3 {
        group.write(0);
        group.run(MS);
    }
    let records = group.members[0].disk.records.len();
    group.crash(0);
    group.start(0);
    assert_eq!(group.members[0].executed, Slot(3));
    group.run(MS * 3000);
    assert_eq!(group.leaders(), [0]);
    assert_eq!(group.members[0].disk.records.len(), records);
    group.write(0);
    group.run(MS * 20);
    assert_converged(&group, 4);
}

#[test]
fn journal_that_holds_less_than_decided_is_rejected() {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 20);
    for _ in 0..3 {
        group.write(0);
        group.run(MS);
    }
    group.crash(1);
    let (slot, bytes) = group.members[1].disk.records.last_mut().expect("there");
    let mut record = Record::decode_all(bytes.clone()).expect("its own");
    if let Record::Accepted { committed, .. } = &mut record {
        *committed = slot.next();
    }
    *bytes = record.encode_to_bytes();
    group.start(1);
    let why = group.members[1]
        .halted
        .clone()
        .expect("it does not continue");
    assert!(why.contains("missing in its middle"), "{why}");
}

#[test]
fn checkpoint_trims_the_journal_and_a_restart_continues_from_it() {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 20);
    for _ in 0..10 {
        group.write(0);
        group.run(MS);
    }
    group.event(1, Event::Control(quintet_replica::Control::CheckpointDue));
    assert!(
        group.members[1].disk.records.len() <= 1,
        "covered by the checkpoint"
    );
    group.crash(1);
    group.write(0);
    group.run(MS * 50);
    group.start(1);
    group.run(MS * 300);
    assert_converged(&group, 11);
}

#[test]
fn full_queue_answers_busy_and_keeps_nothing() {
    let config = Config {
        queue_bytes: 64,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Memory, config);
    group.run(MS * 20);
    group.isolate(0);
    let first = group.write(0);
    let second = group.write(0);
    group.idle(0);
    assert_eq!(group.done.get(&(0, second)), Some(&Outcome::Busy));
    assert!(!group.answered(0, first));
}

#[test]
fn reset_link_loses_no_request() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    group.isolate(1);
    let write = group.write(1);
    group.settle();
    group.heal();
    let up = Link::Up {
        incarnation: Incarnation(1),
    };
    group.event(1, Event::Link(Peer::Replica(ReplicaId(0)), up));
    group.event(0, Event::Link(Peer::Replica(ReplicaId(1)), up));
    group.settle();
    assert!(
        group.answered(1, write),
        "sent again at once, without a timer"
    );
}

#[test]
fn batch_in_flight_is_not_proposed_twice() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 299);
    group.isolate(0);
    group.write(0);
    // The frontend repeats it after 400 ms; the leader still waits for a majority.
    group.run(MS * 450);
    group.heal();
    group.run(MS * 300);
    assert_eq!(group.batches(0).len(), 1);
}

#[test]
fn without_room_nothing_is_sent_and_nothing_is_lost() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    group.clock.room = 0;
    let write = group.write(0);
    group.run(MS * 50);
    assert!(!group.answered(0, write));
    group.clock.room = 1 << 20;
    group.event(
        0,
        Event::Link(Peer::Replica(ReplicaId(1)), Link::Room(1 << 20)),
    );
    group.settle();
    assert!(group.answered(0, write));
}

#[test]
fn stale_reads_are_answered_at_once() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    group.isolate(1);
    let read = group.submit(1, Level::Stale);
    assert!(group.answered(1, read));
}

#[test]
fn slow_replica_isolated() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    // Its disk accepts nothing and its link loses what it says; the others continue, and what is
    // kept for it is bounded.
    group.members[2].slow_disk = true;
    group.cut.insert((2, 0));
    for _ in 0..2000 {
        let write = group.write(0);
        group.run(MS);
        assert!(group.answered(0, write));
        assert!(
            group.replica(0).log.bytes() < 80 << 10,
            "{}",
            group.replica(0).log.bytes()
        );
    }
}

#[test]
fn replica_with_fetched_state_stands_once_leader_is_gone() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    leave_behind(&mut group, 0, 1200);
    group.run(MS * 1000);
    assert!(group.marked("state transfer chosen") > 0);
    assert_eq!(group.marked("log overtook the state transfer"), 0);
    assert_converged(&group, 1200);
    group.crash(0);
    group.members[1].timers.clear();
    group.run(MS * 3000);
    assert_eq!(group.leaders(), [2]);
    assert_eq!(group.marked("does not stand while it fetches state"), 0);
}

#[test]
fn followers_with_waiting_clients_learn_decisions_first() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    let committed = |group: &Group| [0, 1, 2].map(|id| group.status(id).committed);
    let write = group.write(1);
    group.settle();
    assert!(group.answered(1, write));
    assert_eq!(committed(&group), [Slot(1), Slot(1), Slot(0)]);
    // The next proposal says it too.
    group.write(0);
    group.settle();
    assert_eq!(committed(&group), [Slot(2), Slot(1), Slot(1)]);
    group.run(MS * 3);
    assert_eq!(committed(&group), [Slot(2); 3]);
}

/// A write at replica 1 whose way to the leader takes half a second; how often it was sent.
fn write_from_far(group: &mut Group) -> usize {
    let write = group.write(1);
    group.idle(1);
    group.clock.now = group.clock.now + MS * 500;
    let now = group.clock.now;
    let due = |(key, at): (&TimerKey, &quintet_replica::Time)| {
        (*at <= now && key.owner == TimerOwner::Frontend).then_some(*key)
    };
    let due: alloc::vec::Vec<_> = group.members[1].timers.iter().filter_map(due).collect();
    for key in due {
        group.members[1].timers.remove(&key);
        group.event(1, Event::Timer(key));
    }
    group.idle(1);
    let forwarded = |packet: &&Packet| {
        matches!(packet.message(), Message::Forward { .. }) && packet.from == ReplicaId(1)
    };
    let sent = group.network.iter().filter(forwarded).count();
    group.settle();
    assert!(group.answered(1, write));
    sent
}

#[test]
fn frontend_adapts_retry_interval_to_response_times() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    assert_eq!(write_from_far(&mut group), 2, "nothing is known yet");
    for _ in 0..5 {
        assert_eq!(write_from_far(&mut group), 1);
    }
}

#[test]
fn commits_and_confirmations_pass_when_entries_find_no_room() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    let first = group.write(0);
    group.settle();
    assert!(group.answered(0, first));
    group.network.clear();
    group.write(0);
    // Room for messages without entries.
    group.clock.room = 1;
    let read = group.submit(0, Level::Linearizable);
    group.idle(0);
    let confirms = group
        .network
        .iter()
        .any(|packet| matches!(packet.message(), Message::Commit { confirm, .. } if confirm > 0));
    assert!(confirms && !group.answered(0, read));
    group.settle();
    assert!(group.answered(0, read));
}
