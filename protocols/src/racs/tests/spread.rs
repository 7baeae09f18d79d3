//! Batches that go to a quorum's worth of the members: those that answer soonest.

use super::group::{Group, MS, Packet, assert_converged, pump, small};
use crate::{
    racs::{Config, Dissemination, Message},
    sadl::{self, Spread, Way},
};
use alloc::{collections::BTreeSet, vec::Vec};
use quintet_replica::{Durability, ReplicaId};

fn to_majorities(members: usize) -> Group {
    let config = Config {
        dissemination: Dissemination::Fixed(Way::Sadl),
        sadl_spread: Spread::Majority,
        ..small()
    };
    let mut group = Group::new(members, Durability::Disk, config);
    group.run(MS * 100);
    group
}

/// Whom replica 0 shows batches that are on their way.
fn shown(group: &Group) -> BTreeSet<u16> {
    let batches = |packet: &&Packet| {
        let message = packet.message();
        packet.from == ReplicaId(0)
            && matches!(message, Message::Sadl(sadl::Message::New { batches, .. }) if !batches.is_empty())
    };
    group
        .network
        .iter()
        .filter(batches)
        .map(|packet| packet.to.0)
        .collect()
}

/// Has replica 0 make a batch; nothing is delivered.
fn begin(group: &mut Group) {
    group.write(0);
    pump(group, |_, _| false);
}

#[test]
fn others_are_sent_no_batch_and_fetch_what_is_ordered() {
    let mut group = to_majorities(5);
    begin(&mut group);
    assert_eq!(shown(&group), BTreeSet::from([1, 2]));
    group.run(MS * 400);
    assert!(group.marked("batches fetched") > 0);
    for id in 0..5 {
        let asked: Vec<_> = (0..3).map(|_| group.write(id)).collect();
        group.run(MS * 400);
        assert!(asked.iter().all(|batch| group.answered(id, *batch)), "{id}");
    }
    assert_converged(&group, 16);
}

#[test]
fn silent_member_loses_its_place_to_responsive_one() {
    let mut group = to_majorities(5);
    for _ in 0..4 {
        group.write(0);
        group.run(MS * 200);
    }
    group.isolate(1);
    let first = group.write(0);
    group.run(MS * 2000);
    assert!(
        group.answered(0, first),
        "nothing waits for the one that is gone"
    );
    assert!(group.marked("batches go to another quorum") > 0);
    begin(&mut group);
    let to = shown(&group);
    assert!(to.len() == 2 && !to.contains(&1), "{to:?}");
    group.heal();
    group.run(MS * 4000);
    assert_converged(&group, 6);
}

/// The creator's connection to one is attacked: what comes over it comes late. Another has what it
/// lacks.
#[test]
fn missing_batch_is_asked_of_another_holder_than_its_creator() {
    let config = Config {
        dissemination: Dissemination::Fixed(Way::Sadl),
        ..small()
    };
    let mut group = Group::new(5, Durability::Disk, config);
    group.run(MS * 100);
    assert_eq!(group.leaders(), [0]);
    let batch = group.write(1);
    let attacked = |packet: &Packet| packet.from == ReplicaId(1) && packet.to == ReplicaId(4);
    let mut asked = Vec::new();
    for _ in 0..300 {
        for id in 0..5 {
            group.sync(id);
            group.idle(id);
        }
        group.clock.now = group.clock.now + MS / 10;
        let packets: Vec<Packet> = group.network.drain(..).collect();
        for packet in packets.into_iter().filter(|packet| !attacked(packet)) {
            if let Message::Sadl(sadl::Message::Fetch { .. }) = packet.message() {
                asked.push((packet.from.0, packet.to.0));
            }
            group.deliver(packet);
        }
    }
    assert!(group.answered(1, batch));
    assert_eq!(asked, [(4, 0)], "the leader named it, and holds it");
    group.run(MS * 1000);
    assert_converged(&group, 1);
}
