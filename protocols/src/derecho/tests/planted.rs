//! Bugs that chance hardly reaches: scripts that end well, and otherwise with the bug.

use super::*;
use crate::derecho::{Plant, View};
use alloc::vec::Vec;
use quintet_replica::{Control, Event, Options, ReplicaId, Slot};

fn with(plant: Plant) -> Config {
    let mut config = Config::default();
    config.set("plant", plant.name()).expect("its own name");
    config
}

/// Plays what is under way until replica 0 is in the second view; the disks of `synced` work.
fn until_the_first_learns(group: &mut Group<Derecho>, synced: &[u16]) {
    for _ in 0..300 {
        for id in 0..4 {
            if synced.contains(&id) {
                group.sync(id);
            }
            group.idle(id);
        }
        if group.replica(0).promise.view.number > 1 {
            return;
        }
        // Nothing may be under way while a disk has yet to answer.
        if let Some(packet) = group.network.pop_front() {
            group.deliver(packet);
        }
    }
}

fn five_of_which_one_fails(config: Config) -> Group<Derecho> {
    let mut group = Group::new(5, Durability::Disk, config);
    for id in 0..5 {
        group.write(id);
    }
    group.settle();
    group.crash(4);
    group.event(0, Event::Control(Control::ReportFailure(ReplicaId(4))));
    group
}

fn members(view: &View) -> Vec<u16> {
    view.members.iter().map(|member| member.id.0).collect()
}

/// Replica 0 alone hears all echoes, turns to the next view and dies. Gives that view as it had it,
/// and as those had it that went on.
fn first_learns_alone(config: Config) -> (Vec<u16>, Vec<u16>) {
    let mut group = five_of_which_one_fails(config);
    for from in 1..4 {
        for to in (1..4).filter(|to| *to != from) {
            group.cut.insert((from, to));
        }
    }
    until_the_first_learns(&mut group, &[0, 1, 2, 3]);
    let first = group.replica(0).promise.view.clone();
    assert_eq!(first.number, 2, "it learns");
    group.crash(0);
    group.network.clear();
    group.heal();
    group.run(MS * 3000);
    let mut views = group.replica(1).views.iter();
    let second = views.find(|view| view.number == 2).expect("they go on");
    (members(&first), members(second))
}

#[test]
fn a_trim_that_is_computed_anew_gives_one_view_two_memberships() {
    let (first, second) = first_learns_alone(Config::default());
    assert_eq!(first, [0, 1, 2, 3]);
    assert_eq!(first, second, "what may have been agreed is adopted");
    let (first, second) = first_learns_alone(with(Plant::TrimRecomputed));
    assert_ne!(first, second, "the bug shows");
}

#[test]
fn an_echo_waits_for_the_disk() {
    let mut group = five_of_which_one_fails(Config::default());
    until_the_first_learns(&mut group, &[0]);
    assert_eq!(
        group.replica(0).promise.view.number,
        1,
        "no disk but its own"
    );
    assert_eq!(
        group.members[1].route_ahead,
        [0, 1, 2, 3],
        "from the first vote on both views' majorities are needed"
    );
    let mut group = five_of_which_one_fails(with(Plant::EchoNotDurable));
    until_the_first_learns(&mut group, &[0]);
    assert_eq!(group.replica(0).promise.view.number, 2, "the bug shows");
}

/// Whether a member that missed a view answers a read.
fn missed_a_view(config: Config) -> bool {
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.isolate(0);
    for id in [1, 2] {
        let failed = Control::ReportFailure(ReplicaId(0));
        group.event(id, Event::Control(failed));
    }
    group.settle();
    let batch = group.write(1);
    group.settle();
    assert!(group.answered(1, batch), "no time has passed");
    let read = group.submit(0, Level::Linearizable);
    group.settle();
    group.answered(0, read)
}

#[test]
fn a_read_waits_for_the_barrier() {
    assert!(!missed_a_view(Config::default()));
    assert!(missed_a_view(with(Plant::ReadsLocal)), "the bug shows");
}

/// Messages of replica 1 reach replica 0 in the turn in which it has one of its own, and all is
/// delivered packet by packet. Whether all replicas have the same order.
fn same_order(config: Config) -> bool {
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    for _ in 0..3 {
        group.write(1);
        group.idle(1);
    }
    for _ in 0..group.network.len() {
        if let Some(packet) = group.network.pop_front() {
            group.deliver(packet);
        }
    }
    group.write(0);
    group.idle(0);
    while let Some(packet) = group.network.pop_front() {
        let to = packet.to.0;
        group.deliver(packet);
        group.idle(to);
    }
    let orders = [0, 1, 2].map(|id| {
        let entries = group.replica(id).log.iter_from(Slot(1));
        entries
            .map(|(_, entry)| entry.batch.clone())
            .collect::<Vec<_>>()
    });
    let longest = orders.iter().max_by_key(|order| order.len());
    longest.is_some_and(|longest| {
        assert!(longest.len() >= 3, "they have ordered something");
        orders.iter().all(|order| longest.starts_with(order))
    })
}

#[test]
fn a_place_once_given_holds_the_message_and_a_guard_follows_its_words() {
    assert!(same_order(Config::default()));
    assert!(!same_order(with(Plant::NullInside)), "the bug shows");
    assert!(!same_order(with(Plant::PutTorn)), "the bug shows");
}
