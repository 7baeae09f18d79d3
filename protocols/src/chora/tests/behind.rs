//! Replicas that are far behind, and links that are full.

use super::group::{Group, MS, Packet, assert_converged, mode};
use crate::chora::{Config, Drive, Message, Pulse};
use alloc::vec::Vec;
use quintet_replica::{Durability, ReplicaId};

/// Replica 2 needs a state that does not come, and the others continue.
#[test]
fn working_view_continues_when_a_replica_fetches_its_state() {
    for drive in [Drive::Responsive, Drive::Pulsing] {
        let config = Config {
            log_memory_bytes: 2048,
            ..mode(drive)
        };
        let mut group = Group::new(3, Durability::Disk, config);
        group.run(MS * 100);
        group.write(0);
        group.run(MS * 50);
        group.isolate(2);
        group.run(MS * 3000);
        let work = |group: &mut Group, times: u64| {
            for _ in 0..times {
                let batch = group.write(0);
                group.run(MS * 20);
                assert!(group.answered(0, batch));
            }
        };
        work(&mut group, 200);
        for id in 0..2 {
            let due = quintet_replica::Control::CheckpointDue;
            group.event(id, quintet_replica::Event::Control(due));
        }
        work(&mut group, 200);
        group.members[2].slow_state = true;
        group.heal();
        let view = group.status(0).view;
        work(&mut group, 500);
        assert_eq!(group.status(0).view, view, "{drive:?}");
        assert!(group.members[2].executed < group.members[0].executed);
        group.members[2].slow_state = false;
        group.run(MS * 6000);
        assert_converged(&group, 901);
    }
}

fn pulse(packet: &Packet) -> Option<Pulse> {
    match packet.message() {
        Message::Pulse(pulse) => Some(pulse),
        _ => None,
    }
}

fn pulses(group: &Group, from: u16) -> Vec<Pulse> {
    let sent = group.network.iter();
    let of = sent.filter(|packet| packet.from == ReplicaId(from));
    of.filter_map(pulse).collect()
}

#[test]
fn acknowledgement_goes_out_when_a_link_has_no_room_for_values() {
    let mut group = Group::new(3, Durability::Disk, mode(Drive::Responsive));
    group.run(MS * 100);
    group.write(0);
    group.idle(0);
    let packets: Vec<Packet> = group.network.drain(..).collect();
    for packet in packets {
        if packet.to == ReplicaId(1) {
            group.deliver(packet);
        }
    }
    group.sync(1);
    // Replica 1 has something to say of its own, and there is room for little.
    let batch = group.write(1);
    group.clock.room = 300;
    group.idle(1);
    let said = pulses(&group, 1);
    let acknowledged = said.iter().map(|pulse| pulse.ack).max();
    assert!(said.iter().all(|pulse| pulse.proposal.is_none()));
    assert!(acknowledged.is_some_and(|ack| ack >= group.replica(0).proposer.latest()));
    group.clock.room = 1 << 20;
    group.run(MS * 500);
    assert!(group.answered(1, batch));
    assert_converged(&group, 2);
}

#[test]
fn repair_goes_to_those_only_that_lack_something() {
    let mut group = Group::new(3, Durability::Disk, mode(Drive::Responsive));
    group.run(MS * 100);
    group.write(0);
    group.idle(0);
    group.network.retain(|packet| packet.to != ReplicaId(2));
    let mut repairs = Vec::new();
    for _ in 0..100 {
        group.clock.now = group.clock.now + MS;
        for id in 0..3 {
            group.sync(id);
            let due: Vec<_> = group.members[usize::from(id)]
                .timers
                .clone()
                .into_iter()
                .collect();
            for (key, at) in due {
                if at <= group.clock.now {
                    group.members[usize::from(id)].timers.remove(&key);
                    group.event(id, quintet_replica::Event::Timer(key));
                }
            }
            group.idle(id);
        }
        let packets: Vec<Packet> = group.network.drain(..).collect();
        for packet in packets {
            if pulse(&packet).is_some_and(|pulse| !pulse.recover.is_empty()) {
                repairs.push(packet.to);
            }
            group.deliver(packet);
        }
    }
    assert!(!repairs.is_empty());
    assert!(repairs.iter().all(|to| *to == ReplicaId(2)), "{repairs:?}");
    assert_converged(&group, 1);
}
