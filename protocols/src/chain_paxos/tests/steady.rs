//! The normal case, and what goes over which link.

use super::{Group, MS, assert_converged, chain, group, small};
use crate::chain_paxos::{Config, Entry, Message, Op};
use crate::group::Packet;
use alloc::{vec, vec::Vec};
use quintet_replica::{CommandTime, Durability, Level, ReplicaId, Slot, parts::Decisions};

fn groups() -> impl Iterator<Item = (usize, Durability)> {
    [1, 2, 3, 4, 5, 7, 9]
        .into_iter()
        .flat_map(|members| [(members, Durability::Disk), (members, Durability::Memory)])
}

#[test]
fn head_serves_every_frontend() {
    for (members, durability) in groups() {
        let mut group = group(members, durability);
        for id in 0..members as u16 {
            let write = group.write(id);
            group.run(MS);
            assert!(
                group.answered(id, write),
                "{members} members, {durability:?}, at {id}"
            );
        }
        group.run(MS * 1000);
        assert_converged(&group, members as u64);
        assert_eq!(group.leaders(), [0], "no replica stood");
        let all: Vec<u16> = (0..members as u16).collect();
        assert_eq!(chain(&group, 0), all, "no member was removed");
    }
}

/// (from, to, entries) of the Accepts and Acks on the network.
fn on_the_wire(group: &Group) -> Vec<(u16, u16, usize)> {
    let kinds = group.network.iter().filter_map(|packet| {
        let entries = match packet.message() {
            Message::Accept { entries, .. } => entries.len(),
            Message::Ack { .. } => 0,
            _ => return None,
        };
        Some((packet.from.0, packet.to.0, entries))
    });
    kinds.collect()
}

#[test]
fn one_message_per_replica_and_turn() {
    // Figure 3 of the paper, with twenty requests in one turn.
    let mut group = group(5, Durability::Memory);
    for _ in 0..20 {
        group.write(0);
    }
    group.idle(0);
    for (from, to) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        assert_eq!(on_the_wire(&group), [(from, to, 20)]);
        let packet = group.network.pop_front().expect("one message");
        group.deliver(packet);
        group.idle(to);
        let decided = group.replica(to).log.executed() >= Slot(20);
        assert_eq!(
            decided,
            to >= 2,
            "from the middle on it is decided, at {to}"
        );
    }
    assert_eq!(
        on_the_wire(&group),
        [(4, 0, 0)],
        "the tail answers to the head"
    );
    let packet = group.network.pop_front().expect("one message");
    group.deliver(packet);
    group.idle(0);
    assert!(group.replica(0).log.executed() >= Slot(20));
    assert_eq!(
        on_the_wire(&group),
        [(0, 1, 0)],
        "and the one before the middle is told"
    );
    group.settle();
    assert_converged(&group, 20);
}

#[test]
fn with_three_replicas_three_messages_do() {
    let mut group = group(3, Durability::Memory);
    group.write(1);
    group.idle(1);
    let mut messages = 0;
    while let Some(packet) = group.network.pop_front() {
        messages += usize::from(!matches!(packet.message(), Message::Forward { .. }));
        let to = packet.to.0;
        group.deliver(packet);
        group.idle(to);
    }
    assert_eq!(messages, 3);
    assert_converged(&group, 1);
}

#[test]
fn entry_travels_on_while_disks_write_it() {
    let mut group = group(3, Durability::Disk);
    for id in 0..3 {
        group.members[id].slow_disk = true;
    }
    let write = group.write(0);
    group.settle();
    assert_eq!(group.replica(2).log.held(), Slot(1), "it is at the tail");
    assert_eq!(
        group.replica(2).agreement.votes().reached(1),
        Slot(0),
        "no replica has voted"
    );
    group.sync(2);
    group.settle();
    assert!(!group.answered(0, write), "one vote is none");
    assert_eq!(group.replica(0).agreement.votes().of(ReplicaId(2)), Slot(1));
    group.sync(0);
    group.settle();
    assert!(group.answered(0, write), "head and tail are a quorum");
    assert_eq!(
        group.replica(1).log.durable(),
        Slot(1),
        "the middle learnt the decision"
    );
}

#[test]
fn rounds_pass_when_values_find_no_room() {
    let mut group = group(3, Durability::Disk);
    group.write(0);
    group.run(MS * 50);
    let (room, before) = (group.clock.room, group.replica(0).agreement.round().number);
    group.clock.room = group.replica(0).message_bytes();
    let batch = group.write(0);
    group.idle(0);
    assert!(group.marked("the next one waits for room") > 0);
    let rounds: Vec<u64> = (group.network.iter())
        .filter_map(|packet| match packet.message() {
            Message::Accept {
                header, entries, ..
            } if entries.is_empty() => Some(header.round.number),
            _ => None,
        })
        .collect();
    assert_eq!(rounds, [before + 1]);
    group.clock.room = room;
    group.run(MS * 500);
    assert!(group.answered(0, batch));
    assert_converged(&group, 2);
}

#[test]
fn gap_is_asked_for_and_filled() {
    let mut group = group(4, Durability::Memory);
    for round in 0..20 {
        group.write(round % 4);
        group.idle(0);
        if round % 3 == 0 {
            group.network.clear();
        }
        group.run(MS);
    }
    group.run(MS * 2000);
    assert!(group.marked("gap in the chain") > 0);
    assert_converged(&group, 10);
    assert_eq!(group.leaders(), [0]);
}

#[test]
fn reset_without_a_crash_loses_nothing_and_waits_for_no_timer() {
    for (a, b) in [(0, 1), (1, 2), (2, 0)] {
        let mut group = group(3, Durability::Memory);
        let write = group.write(1);
        // Everything that is in progress between two neighbours is lost, and they notice.
        for id in 0..3 {
            group.idle(id);
        }
        let leader_hop = group.network.pop_front().expect("the request");
        group.deliver(leader_hop);
        group.idle(0);
        if (a, b) != (0, 1) {
            let packet = group.network.pop_front().expect("the entry");
            group.deliver(packet);
            group.idle(1);
        }
        if (a, b) == (2, 0) {
            let packet = group.network.pop_front().expect("the entry");
            group.deliver(packet);
            group.idle(2);
        }
        assert_eq!(group.network.len(), 1);
        group.reset(a, b);
        assert!(group.network.is_empty());
        group.settle();
        assert!(group.answered(1, write), "between {a} and {b}");
        assert_converged(&group, 1);
        assert_eq!(
            group.replica(0).log.executed(),
            Slot(1),
            "the head heard of it"
        );
    }
}

#[test]
fn window_bounds_what_is_undecided() {
    let config = Config {
        window: 3,
        ..small()
    };
    let mut group = Group::new(3, Durability::Memory, config);
    group.run(MS * 20);
    group.cut.insert((0, 1));
    for _ in 0..10 {
        group.write(0);
        group.idle(0);
    }
    assert_eq!(
        group.replica(0).log.held(),
        Slot(3),
        "the fourth message waits"
    );
    group.heal();
    group.run(MS * 1000);
    assert_converged(&group, 10);
}

#[test]
fn replica_far_behind_takes_the_state_and_forwards_meanwhile() {
    for durability in [Durability::Disk, Durability::Memory] {
        let mut group = Group::new(3, durability, small());
        group.run(MS * 20);
        group.isolate(2);
        for _ in 0..1200 {
            group.write(0);
            group.run(MS * 2);
        }
        group.heal();
        group.run(MS * 3000);
        assert!(group.marked("state installed") > 0, "{durability:?}");
        assert_converged(&group, 1000);
        assert_eq!(chain(&group, 0).len(), 3);
        let read = group.submit(2, Level::Linearizable);
        group.run(MS * 300);
        assert!(group.answered(2, read));
    }
}

#[test]
fn voted_batches_stay_held_when_chain_outruns_transfer() {
    let mut group = Group::new(3, Durability::Memory, small());
    group.run(MS * 20);
    let ballot = group.replica(0).ballots.promised();
    let chain = group.replica(0).chain.decided().clone();
    let base = Slot(100);
    let skip = Message::Skip {
        ballot,
        base,
        chain,
        decisions: Decisions::default(),
    };
    group.deliver(Packet::new(0, 2, &skip));
    group.idle(2);
    // Undecided entries, and more of them than may be kept while the state is on its way.
    for number in 1..=6 {
        let time = CommandTime(number);
        let op = Op::Batch(vec![0_u8; 64 << 10].into());
        let message = Message::Accept {
            header: group.replica(0).header(),
            first: Slot(base.0 + number),
            entries: vec![Entry { time, op }],
        };
        group.deliver(Packet::new(0, 2, &message));
        group.idle(2);
    }
    assert!(group.marked("votes wait for the state") > 0);
    assert_eq!(group.marked("state transfer overtaken"), 0);
    let replica = group.replica(2);
    let voted = replica.agreement.votes().of(ReplicaId(2));
    assert!(voted > base && voted < Slot(106), "no more than is kept");
    assert_eq!(replica.log.held(), Slot(106), "is for something held");
    // Others decide them: only what it voted for is kept.
    let mut header = group.replica(0).header();
    header.committed = Slot(106);
    let message = Message::Accept {
        header,
        first: Slot(107),
        entries: Vec::new(),
    };
    group.deliver(Packet::new(0, 2, &message));
    group.idle(2);
    assert!(group.marked("state transfer overtaken") > 0);
    let replica = group.replica(2);
    for slot in (base.0 + 1..=106).map(Slot) {
        assert_eq!(replica.log.get(slot).is_some(), slot <= voted, "{slot}");
    }
    assert_eq!(replica.agreement.votes().of(ReplicaId(2)), voted);
}

#[test]
fn readmitted_replica_keeps_entries_of_earlier_votes() {
    let mut group = Group::new(3, Durability::Memory, small());
    group.run(MS * 20);
    let header = group.replica(0).header();
    let chain = group.replica(0).chain.decided().clone();
    group.crash(2);
    group.start(2);
    let incarnation = group.replica(2).me.incarnation();
    let base = Slot(100);
    let skip = Message::Skip {
        ballot: header.ballot,
        base,
        chain,
        decisions: Decisions::default(),
    };
    group.deliver(Packet::new(0, 2, &skip));
    group.idle(2);
    let add = Op::Add {
        id: ReplicaId(2),
        incarnation,
        after: ReplicaId(1),
    };
    let long = || Op::Batch(vec![0_u8; 64 << 10].into());
    // It holds more than it would vote for when it is let in, and more comes then.
    let mut accept = |number: u64, op, committed| {
        let time = CommandTime(number);
        let mut header = header.clone();
        header.committed = committed;
        let message = Message::Accept {
            header,
            first: Slot(base.0 + number),
            entries: vec![Entry { time, op }],
        };
        group.deliver(Packet::new(0, 2, &message));
        group.idle(2);
        group.replica(2).log.has_stopped_votes()
    };
    for number in 1..=3 {
        accept(number, long(), base);
    }
    assert!(accept(4, add, base));
    for number in 5..=6 {
        accept(number, long(), base);
    }
    accept(7, long(), Slot(107));
    assert_eq!(group.marked("re-admitted"), 1);
    assert!(group.marked("state transfer overtaken") > 0);
    let replica = group.replica(2);
    let vouched = replica.catch_up.vouches_from(&replica.log);
    assert_eq!(vouched, base.next());
    for slot in (vouched.0..104).map(Slot) {
        assert!(replica.log.get(slot).is_some(), "{slot} is vouched for");
    }
    assert!(replica.log.get(Slot(105)).is_none(), "others decided it");
}
