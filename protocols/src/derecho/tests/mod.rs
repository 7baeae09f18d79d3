//! Single cases by hand.

mod cluster;
mod generations;
#[cfg(feature = "bugs")]
mod injected;
mod large;
mod progress;
mod raw;
mod shard_members;
mod shards;
mod slow;
mod table;
mod transcripts;
mod views;
mod votes;
mod wire;

use super::{Config, Derecho, sst};
use crate::group::{Group, MS, assert_converged};
use quintet_replica::{Durability, Level};

fn group(members: usize) -> Group<Derecho> {
    Group::new(members, Durability::Disk, Config::default())
}

#[test]
fn every_member_orders_what_its_clients_ask_for() {
    let mut group = group(3);
    let mut batches = alloc::vec::Vec::new();
    for round in 0..6 {
        for id in 0..3 {
            if (round + id) % 3 != 1 {
                batches.push((id, group.write(id)));
            }
        }
        if round % 2 == 0 {
            group.settle();
        }
    }
    group.settle();
    for (id, batch) in batches {
        assert!(group.answered(id, batch), "batch {batch} of replica {id}");
    }
    assert_converged(&group, 12);
    let read = group.submit(2, Level::Linearizable);
    group.settle();
    assert!(group.answered(2, read));
}

/// One turn for each packet, as in a process: what is left unsaid waits for whatever happens next.
#[test]
fn in_memory_a_turn_says_at_once_what_it_holds() {
    let mut group = Group::<Derecho>::new(3, Durability::Memory, Config::default());
    group.write(1);
    group.idle(1);
    let said = |group: &Group<Derecho>, id: u16| {
        let replica = group.replica(id);
        let own = replica.sst.own(sst::PERSISTED);
        own == replica.stream.order.ordered() && replica.sst.has_put_all()
    };
    while let Some(packet) = group.network.pop_front() {
        let to = packet.to.0;
        group.deliver(packet);
        group.idle(to);
        assert!(said(&group, to), "replica {to}");
    }
    assert_converged(&group, 1);
}

#[test]
fn message_costs_few_puts_per_pair_and_none_per_null() {
    let (members, messages) = (8, 4);
    let mut group = Group::<Derecho>::new(members, Durability::Memory, Config::default());
    let mut packets = 0;
    for _ in 0..messages {
        // The last rank: all others fill their places with nulls.
        group.write(members as u16 - 1);
        group.idle(members as u16 - 1);
        while let Some(packet) = group.network.pop_front() {
            let to = packet.to.0;
            group.deliver(packet);
            group.idle(to);
            packets += 1;
        }
    }
    let pairs = members * (members - 1);
    assert!(
        packets <= 3 * pairs * messages,
        "{packets} packets for {messages} messages among {members}"
    );
    assert_converged(&group, messages as u64);
}

#[test]
fn crashed_member_is_left_out_and_comes_back() {
    let mut group = group(3);
    group.write(0);
    group.settle();
    group.crash(1);
    let batch = group.write(0);
    group.run(MS * 1000);
    assert!(
        group.answered(0, batch),
        "the view continues without it: {:?}",
        (group.status(0), group.status(2))
    );
    assert_eq!(group.status(0).view, 2);
    group.start(1);
    group.run(MS * 2000);
    assert_eq!(group.status(1).role, "member", "{:?}", group.status(1));
    let batch = group.write(1);
    group.run(MS * 500);
    assert!(group.answered(1, batch));
    assert_converged(&group, 3);
}

#[test]
fn all_restart_from_their_disks() {
    let mut group = group(3);
    for id in 0..3 {
        group.write(id);
    }
    group.settle();
    for id in 0..3 {
        group.crash(id);
    }
    for id in 0..3 {
        group.start(id);
    }
    group.run(MS * 5000);
    let batch = group.write(2);
    group.run(MS * 500);
    assert!(group.answered(2, batch), "{:?}", group.status(2));
    assert_converged(&group, 4);
}
