//! Groups with nothing wrong, and with one thing wrong.

use super::group::{Group, MS, assert_converged, pump, small};
use crate::racs::{Config, Dissemination, Message, Timer};
use crate::sadl::{self, Way};
use quintet_replica::{Control, Durability, Event, Level, ReplicaId};

#[test]
fn every_replica_answers_writes_and_reads_of_its_own_clients() {
    answers_all(&small());
}

#[test]
fn state_is_the_same_with_dissemination() {
    answers_all(&disseminating());
}

fn disseminating() -> Config {
    Config {
        dissemination: Dissemination::Fixed(Way::Sadl),
        ..small()
    }
}

fn answers_all(config: &Config) {
    for members in [1, 2, 3, 5, 7] {
        for durability in [Durability::Disk, Durability::Memory] {
            let mut group = Group::new(members, durability, config.clone());
            group.run(MS * 100);
            let mut asked = alloc::vec::Vec::new();
            for round in 0..10 {
                for id in 0..members as u16 {
                    asked.push((id, group.write(id)));
                    if round % 3 == 0 {
                        asked.push((id, group.submit(id, Level::Linearizable)));
                    }
                }
                group.settle();
            }
            group.run(MS * 200);
            for (id, batch) in asked {
                assert!(
                    group.answered(id, batch),
                    "{members} members, {batch} at {id}"
                );
            }
            assert_converged(&group, 10);
            assert_eq!(group.marked("asynchronous mode"), 0);
        }
    }
}

#[test]
fn blocks_beyond_half_of_window_are_spread_over_round_trip() {
    let config = Config {
        window: 8,
        ..small()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    group.write(0);
    pump(&mut group, |_, message| {
        matches!(message, Message::Propose { .. })
    });
    group.clock.now = group.clock.now + MS * 80;
    group.settle();
    assert_eq!(group.replica(0).timing.round_trip(), MS * 80);
    let open = |group: &Group| {
        let lead = group.replica(0).sync.lead.as_ref().expect("it leads");
        (lead.window.len(), lead.queue.is_empty())
    };
    assert_eq!(open(&group), (0, true));
    group.isolate(0);
    for _ in 0..8 {
        group.write(0);
        group.settle();
    }
    assert_eq!(open(&group), (4, false), "the others wait for company");
    group.run(MS * 19);
    assert_eq!(open(&group), (4, false));
    group.run(MS);
    assert_eq!(open(&group), (5, true), "and travel together");
}

#[test]
fn isolated_leader_is_replaced_through_asynchronous_mode() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 100);
    let leader = group.leaders()[0];
    group.isolate(leader);
    let other = (leader + 1) % 3;
    let batch = group.write(other);
    group.run(MS * 3000);
    assert!(group.answered(other, batch));
    assert!(group.marked("asynchronous mode") > 0);
    group.heal();
    group.run(MS * 3000);
    assert_converged(&group, 1);
    assert_eq!(group.leaders().len(), 1);
}

#[test]
fn missing_batch_is_fetched_before_execution() {
    let mut group = Group::new(3, Durability::Disk, disseminating());
    group.run(MS * 100);
    let batch = group.write(1);
    for _ in 0..40 {
        for id in 0..3 {
            group.sync(id);
            group.idle(id);
        }
        // Replica 2 hears of the order, and not of what is ordered.
        let shown = |message: &Message| matches!(message, Message::Sadl(sadl::Message::New { batches, .. }) if !batches.is_empty());
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            if !(packet.to == ReplicaId(2) && shown(&packet.message())) {
                group.deliver(packet);
            }
        }
    }
    assert!(group.answered(1, batch), "two of three hold it");
    assert!(group.marked("batches fetched") > 0);
    assert!(group.batches(2).contains(&batch));
    assert_converged(&group, 1);
}

#[test]
fn restarted_replica_gives_its_batches_new_names() {
    for durability in [Durability::Disk, Durability::Memory] {
        let mut group = Group::new(3, durability, disseminating());
        group.run(MS * 100);
        let before: alloc::vec::Vec<_> = (0..4).map(|_| group.write(1)).collect();
        group.run(MS * 200);
        group.crash(1);
        group.run(MS * 2000);
        group.start(1);
        group.run(MS * 6000);
        let after = group.write(1);
        group.run(MS * 1000);
        assert!(group.answered(1, after));
        let held = group.batches(2);
        assert!(
            before
                .iter()
                .chain([&after])
                .all(|batch| held.contains(batch))
        );
        assert_converged(&group, 5);
    }
}

#[test]
fn decided_block_without_batches_is_written_before_promise() {
    let mut group = Group::new(3, Durability::Disk, disseminating());
    group.run(MS * 100);
    let batch = group.write(1);
    for _ in 0..60 {
        for id in 0..3 {
            group.sync(id);
            group.idle(id);
        }
        // Replica 2 hears that a block is decided, asks for it, and gets nothing that it names.
        let held_back = |message: &Message| match message {
            Message::Sadl(sadl::Message::New { batches, .. }) => !batches.is_empty(),
            Message::Sadl(sadl::Message::Found { .. }) => true,
            Message::Propose { blocks, .. } => !blocks.is_empty(),
            _ => false,
        };
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            if !(packet.to == ReplicaId(2) && held_back(&packet.message())) {
                group.deliver(packet);
            }
        }
    }
    assert!(group.answered(1, batch) && !group.batches(2).contains(&batch));
    let control = Control::ReportFailure(ReplicaId(0));
    group.event(2, Event::Control(control));
    group.idle(2);
    group.sync(2);
    group.crash(2);
    group.start(2);
    group.run(MS * 4000);
    assert!(group.batches(2).contains(&batch));
    assert_converged(&group, 1);
}

/// How many batches of replica 1 are on their way to replica 2 after its timer has fired so often.
fn batches_shown(group: &mut Group, times: u32) -> usize {
    group.network.clear();
    for _ in 0..times {
        group.fire(1, Timer::Show);
        group.idle(1);
    }
    let to_2 = group
        .network
        .iter()
        .filter(|packet| (packet.from, packet.to) == (ReplicaId(1), ReplicaId(2)));
    let batches = to_2.map(|packet| match packet.message() {
        Message::Sadl(sadl::Message::New { batches, .. }) => batches.len(),
        _ => 0,
    });
    batches.sum()
}

#[test]
fn batches_in_flight_are_repeated_only_when_maybe_lost() {
    let mut group = Group::new(3, Durability::Disk, disseminating());
    group.run(MS * 100);
    let batch = group.write(1);
    for _ in 0..4 {
        group.sync(1);
        group.idle(1);
    }
    assert_eq!(batches_shown(&mut group, 3), 0, "votes are on their way");
    group.reset(1, 2);
    assert_eq!(batches_shown(&mut group, 1), 1, "it may be lost");
    let often = batches_shown(&mut group, 60);
    assert!((2..8).contains(&often), "{often}");
    group.run(MS * 6000);
    assert!(group.answered(1, batch));
    assert_converged(&group, 1);
}

#[test]
fn leader_stays_while_something_long_comes_from_it() {
    let mut group = Group::new(3, Durability::Disk, Config::default());
    group.run(MS * 100);
    assert!(group.wait_behind_bulk(0, MS * 5000));
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}
