//! Bugs that chance hardly reaches: scripts that end well, and otherwise with the bug.

use super::{
    large::{in_blocks, write_large},
    votes::{five_and_four, seven},
    *,
};
use crate::derecho::{Bug, View};
use alloc::vec::Vec;
use quintet_replica::{Control, Event, Options, ReplicaId, Slot};

fn with(bug: Bug) -> Config {
    let mut config = Config::default();
    config.set("bug", bug.name()).expect("its own name");
    config
}

/// Plays what is in progress until replica 0 is in the second view; the disks of `synced` work.
fn until_the_first_learns(group: &mut Group<Derecho>, synced: &[u16]) {
    for _ in 0..300 {
        for id in 0..4 {
            if synced.contains(&id) {
                group.sync(id);
            }
            group.idle(id);
        }
        if group.replica(0).membership.number() > 1 {
            return;
        }
        // Nothing may be in progress while a disk has yet to answer.
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
/// and as those had it that continued.
fn first_learns_alone(config: Config) -> (Vec<u16>, Vec<u16>) {
    let mut group = five_of_which_one_fails(config);
    for from in 1..4 {
        for to in (1..4).filter(|to| *to != from) {
            group.cut.insert((from, to));
        }
    }
    until_the_first_learns(&mut group, &[0, 1, 2, 3]);
    let first = group.replica(0).membership.view().clone();
    assert_eq!(first.number, 2, "it learns");
    group.crash(0);
    group.network.clear();
    // Replica 1 takes over before the echoes of the two others have reached them all: they would
    // agree by themselves with what the first one learned.
    group.heal();
    group.cut.extend([(2, 3), (3, 2)]);
    for id in 1..4 {
        group.event(id, Event::Control(Control::ReportFailure(ReplicaId(0))));
    }
    group.reset(1, 2);
    group.reset(1, 3);
    group.settle();
    group.heal();
    group.run(MS * 3000);
    let mut views = group.replica(1).membership.views();
    let second = views.find(|view| view.number == 2).expect("they continue");
    (members(&first), members(second))
}

#[test]
fn trim_that_is_computed_again_gives_one_view_two_memberships() {
    let (first, second) = first_learns_alone(Config::default());
    assert_eq!(first, [0, 1, 2, 3]);
    assert_eq!(first, second, "what may have been agreed is adopted");
    let (first, second) = first_learns_alone(with(Bug::TrimRecomputed));
    assert_ne!(first, second, "the bug shows");
}

#[test]
fn echo_waits_for_the_disk() {
    let mut group = five_of_which_one_fails(Config::default());
    until_the_first_learns(&mut group, &[0]);
    assert_eq!(
        group.replica(0).membership.number(),
        1,
        "no disk but its own"
    );
    assert_eq!(
        group.members[1].route_ahead,
        [0, 1, 2, 3],
        "from the first vote on both views' majorities are needed"
    );
    // The invariant that an echo is on disk notices it at the replica.
    let shown = std::panic::catch_unwind(|| {
        let mut group = five_of_which_one_fails(with(Bug::EchoNotDurable));
        until_the_first_learns(&mut group, &[0]);
    });
    let panic = shown.expect_err("the bug is noticed");
    let noticed = panic.downcast_ref() == Some(&"a trim is echoed when it is on disk");
    assert!(noticed, "by the invariant about it");
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
fn read_waits_for_the_barrier() {
    assert!(!missed_a_view(Config::default()));
    assert!(missed_a_view(with(Bug::ReadsLocal)), "the bug shows");
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
        let entries = group.replica(id).stream.log.iter_from(Slot(1));
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
fn place_once_given_holds_message_and_guard_follows_its_words() {
    assert!(same_order(Config::default()));
    assert!(!same_order(with(Bug::NullInside)), "the bug shows");
    assert!(!same_order(with(Bug::PutTorn)), "the bug shows");
}

/// Whether a message is answered though one member has not received it, or not on its disk.
fn answered_without(config: Config, received: bool) -> bool {
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    if received {
        group.members[2].slow_disk = true;
    } else {
        group.isolate(2);
    }
    let batch = group.write(0);
    group.settle();
    group.answered(0, batch)
}

#[test]
fn message_is_delivered_when_all_have_received_and_persisted_it() {
    assert!(!answered_without(Config::default(), false));
    assert!(!answered_without(Config::default(), true));
    let early = answered_without(with(Bug::DeliverBeforeAll), false);
    assert!(early, "the bug shows");
    let early = answered_without(with(Bug::PersistedEarly), true);
    assert!(early, "the bug shows");
}

/// Whether one of three continues alone.
fn one_of_three_continues(config: Config) -> bool {
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.isolate(0);
    let batch = group.write(0);
    group.run(MS * 1500);
    group.answered(0, batch)
}

#[test]
fn member_that_suspects_majority_halts() {
    assert!(!one_of_three_continues(Config::default()));
    // It continues, or the group finds two views of one number.
    let alone = std::panic::catch_unwind(|| one_of_three_continues(with(Bug::MinorityContinues)));
    let alone = alone.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<alloc::string::String>();
        text.is_some_and(|text| text.contains("view 2 is one"))
    });
    assert!(alone, "the bug shows");
}

/// Whether a replica that restarted is a member at once, in the view that it was in.
fn restarts_as_member(config: Config) -> bool {
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.write(1);
    group.settle();
    group.crash(1);
    group.start(1);
    group.settle();
    group.status(1).role == "member" && group.status(1).view == 1
}

#[test]
fn restarted_member_takes_part_only_after_readmission() {
    assert!(!restarts_as_member(Config::default()));
    let member = restarts_as_member(with(Bug::RestartAsMember));
    assert!(member, "the bug shows");
}

/// Whether a message in blocks, which come in another order than they have in it, is the same at
/// all replicas.
fn comes_as_it_was(bug: Option<Bug>) -> bool {
    let mut config = in_blocks("binomial");
    if let Some(bug) = bug {
        config.set("bug", bug.name()).expect("its own name");
    }
    let mut group = Group::<Derecho>::new(4, Durability::Disk, config);
    write_large(&mut group, 0);
    while let Some(packet) = group.network.pop_front() {
        let to = packet.to.0;
        group.deliver(packet);
        group.idle(to);
    }
    let [first, others @ ..] = [0, 1, 2, 3].map(|id| {
        let entries = group.replica(id).stream.log.iter_from(Slot(1));
        entries
            .map(|(_, entry)| entry.batch.clone())
            .collect::<Vec<_>>()
    });
    assert!(!first.is_empty(), "the sender has ordered it");
    others.iter().all(|order| *order == first)
}

#[test]
fn block_takes_its_own_place() {
    assert!(comes_as_it_was(None));
    assert!(
        !comes_as_it_was(Some(Bug::BlocksByArrival)),
        "the bug shows"
    );
}

#[test]
fn vote_is_not_shown_when_its_proposer_is_suspected() {
    for views in [five_and_four, seven] {
        let views = views(with(Bug::EchoAfterSuspicion));
        let two = views.iter().any(|memberships| memberships.len() > 1);
        assert!(two, "the bug shows: {views:?}");
    }
}
