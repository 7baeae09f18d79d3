//! Batches that go out before they are ordered, and slots that name them.

use super::group::{Group, MS, Packet, assert_converged, small};
use crate::{
    multipaxos::{Config, Message, MultiPaxos, Proposal, Value},
    random_runs::random_runs_with,
    sadl::{self, Name, Way},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, CommandTime, Control, Durability, Event, Level, Options, ReplicaId, Slot, parts::Ballot,
};

fn disseminating() -> Config {
    Config {
        dissemination: Way::Sadl,
        ..small()
    }
}

#[test]
fn every_replica_answers_writes_and_reads_of_its_own_clients() {
    for members in [1, 2, 3, 5] {
        for durability in [Durability::Disk, Durability::Memory] {
            let mut group = Group::new(members, durability, disseminating());
            group.run(MS * 20);
            let mut asked = Vec::new();
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
                assert!(group.answered(id, batch), "{members}: {batch} at {id}");
            }
            assert_converged(&group, 10 * members as u64);
        }
    }
}

#[test]
fn no_batch_goes_through_the_leader() {
    let mut group = Group::new(3, Durability::Disk, disseminating());
    group.run(MS * 20);
    let batch = group.write(1);
    for _ in 0..40 {
        for id in 0..3 {
            group.sync(id);
            group.idle(id);
        }
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            match packet.message() {
                Message::Forward { .. } => panic!("it is disseminated"),
                Message::Accept { proposals, .. } => {
                    let named = |of: &Proposal| matches!(of.value, Value::Named(_));
                    assert!(proposals.iter().all(named), "{proposals:?}");
                }
                _ => {}
            }
            group.deliver(packet);
        }
    }
    assert!(group.answered(1, batch));
    group.run(MS * 50);
    assert_converged(&group, 1);
}

fn name(round: u64) -> Name {
    Name {
        creator: ReplicaId(1),
        chain: 1,
        round,
    }
}

#[test]
fn name_out_of_order_is_empty_and_missing_one_is_fetched() {
    let mut group = Group::new(3, Durability::Disk, disseminating());
    group.run(MS * 20);
    let slots = |rounds: &[u64]| -> Vec<Proposal> {
        let named = |round: &u64| Proposal {
            time: CommandTime(1),
            value: Value::Named(name(*round)),
        };
        rounds.iter().map(named).collect()
    };
    // As several leaders may have left it: the second before the first, and both again.
    let accept = Message::Accept {
        ballot: Ballot {
            round: 1,
            owner: ReplicaId(0),
        },
        first: Slot(1),
        committed: Slot(5),
        confirm: 0,
        stamp: 1,
        everywhere: Slot(0),
        proposals: slots(&[2, 1, 1, 2, 1]),
    };
    group.deliver(Packet::new(0, 2, &accept));
    group.sync(2);
    group.idle(2);
    assert_eq!(group.members[2].executed, Slot(1), "the second is missing");
    let asked = |packet: &Packet| match packet.message() {
        Message::Sadl(sadl::Message::Fetch { range }) => Some((packet.to.0, range)),
        _ => None,
    };
    let asked: Vec<_> = group.network.iter().filter_map(asked).collect();
    let range = sadl::Range {
        first: name(1),
        last: 2,
    };
    assert_eq!(asked, [(0, range)], "the one that named both");
    let found = Message::Sadl(sadl::Message::Found {
        first: name(1),
        batches: alloc::vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
    });
    group.deliver(Packet::new(0, 2, &found));
    let state: Vec<&[u8]> = group.members[2]
        .state
        .iter()
        .map(|batch| &batch[..])
        .collect();
    assert_eq!(state, [&b""[..], b"one", b"", b"two", b""]);
}

#[test]
fn dissemination_continues_without_leader() {
    let mut group = Group::new(3, Durability::Disk, disseminating());
    group.run(MS * 20);
    group.crash(0);
    group.event(1, Event::Control(Control::ReportFailure(ReplicaId(0))));
    let batch = group.write(1);
    group.settle();
    assert!(!group.answered(1, batch));
    group.run(MS * 2000);
    assert!(group.answered(1, batch));
    group.start(0);
    group.run(MS * 500);
    assert_converged(&group, 1);
}

#[test]
fn way_can_be_changed_while_requests_wait() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    let mut asked = Vec::new();
    for way in ["sadl", "direct", "sadl"] {
        for id in 0..3 {
            asked.push((id, group.write(id)));
            let (name, value) = ("dissemination".into(), way.into());
            group.event(id, Event::Control(Control::Option { name, value }));
            asked.push((id, group.write(id)));
        }
        group.run(MS * 50);
    }
    for (id, batch) in asked {
        assert!(group.answered(id, batch), "{batch} at {id}");
    }
    assert_converged(&group, 18);
}

#[test]
fn replica_far_behind_continues_with_names_from_state() {
    let config = Config {
        log_memory_bytes: 2048,
        ..disseminating()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 20);
    group.isolate(2);
    for _ in 0..300 {
        group.write(1);
        group.settle();
    }
    group.heal();
    group.run(MS * 2000);
    assert!(group.marked("state installed") > 0);
    let batch = group.write(2);
    group.run(MS * 500);
    assert!(group.answered(2, batch));
    assert_converged(&group, 301);
}

const RARE: [&str; 4] = [
    "election won",
    "batches fetched",
    "batches shown again",
    "leadership handed off",
];

fn random_runs(seeds: core::ops::Range<u64>, durability: Durability) {
    random_runs_with::<MultiPaxos>(seeds, durability, &RARE, |seed, config| {
        config.set("dissemination", "sadl").expect("an option");
        config.sadl_window = 1 + seed % 7;
    });
}

#[test]
fn acknowledged_writes_survive_on_disk() {
    random_runs(2000..2100, Durability::Disk);
}

#[test]
fn acknowledged_writes_survive_in_memory() {
    random_runs(3000..3100, Durability::Memory);
}
