//! Large messages in blocks, and runs of nulls.

use super::*;
use crate::{
    derecho::{Message, Schedule, sst},
    group::Packet,
};
use alloc::vec::Vec;
use quintet_replica::{BatchId, Event, Options, ReplicaId};

/// Small enough that a few batches make a message of several blocks.
pub fn in_blocks(schedule: &str) -> Config {
    let mut config = Config::default();
    for (name, value) in [
        ("smc_bytes_max", "64"),
        ("rdmc_bytes_min", "64"),
        ("rdmc_block_bytes", "64"),
        ("rdmc_credits", "3"),
        ("rdmc_schedule", schedule),
    ] {
        config.set(name, value).expect("in its range");
    }
    config
}

/// Several batches, which go in one message of several blocks.
pub fn write_large(group: &mut Group<Derecho>, id: u16) -> Vec<(u16, BatchId)> {
    let batches = (0..6).map(|_| (id, group.write(id))).collect();
    group.idle(id);
    batches
}

fn is_block(packet: &Packet<Derecho>) -> bool {
    !packet.put && matches!(packet.message(), Message::Block { .. })
}

/// Delivers that many packets, one after the other; disks work, and every turn ends.
fn deliver(group: &mut Group<Derecho>, packets: usize) {
    for _ in 0..packets {
        let Some(packet) = group.network.pop_front() else {
            return;
        };
        let to = packet.to.0;
        group.deliver(packet);
        group.sync(to);
        group.idle(to);
    }
}

#[test]
fn by_each_schedule_a_large_message_comes_whole_to_all() {
    for schedule in Schedule::ALL {
        for members in 2..=6 {
            let mut group = Group::new(members, Durability::Disk, in_blocks(schedule.name()));
            let mut batches = Vec::new();
            for id in 0..members as u16 {
                batches.extend(write_large(&mut group, id));
                batches.extend(write_large(&mut group, id));
            }
            let relayed = group.network.iter().filter(|packet| is_block(packet));
            assert!(relayed.count() > 0);
            group.settle();
            for (id, batch) in &batches {
                assert!(group.answered(*id, *batch), "{schedule:?} of {members}");
            }
            assert_converged(&group, batches.len() as u64);
            assert!(group.marked("multicast by rdmc") >= 2 * members as u32);
            for id in 0..members as u16 {
                assert_eq!(group.replica(id).stream.rdmc.bytes(), 0, "nothing is kept");
                let paths = group.status(id).paths;
                assert!(paths.contains(&("rdmc", 2)), "{paths:?}");
            }
        }
    }
}

#[test]
fn no_more_blocks_are_in_progress_than_there_is_credit() {
    let mut group = Group::new(4, Durability::Disk, in_blocks("sequential"));
    let mut most = 0;
    for _ in 0..3 {
        write_large(&mut group, 1);
    }
    while !group.network.is_empty() {
        for to in [0, 2, 3] {
            let on_it = |packet: &&Packet<Derecho>| {
                is_block(packet) && (packet.from.0, packet.to.0) == (1, to)
            };
            most = most.max(group.network.iter().filter(on_it).count());
        }
        deliver(&mut group, 1);
    }
    assert_eq!(most, 3, "all the credit is used, and no more");
}

/// A connection breaks after every number of packets, with all that is on it.
#[test]
fn blocks_that_a_broken_connection_lost_come_again() {
    for (a, b) in [(0, 1), (1, 2), (2, 3), (0, 3)] {
        for packets in (0..80).step_by(3) {
            let mut group = Group::new(4, Durability::Disk, in_blocks("binomial"));
            let mut batches = write_large(&mut group, 0);
            batches.extend(write_large(&mut group, 2));
            deliver(&mut group, packets);
            group.reset(a, b);
            group.settle();
            for (id, batch) in &batches {
                let answered = group.answered(*id, *batch);
                assert!(answered, "{a}-{b} broke after {packets} packets");
            }
            assert_eq!(group.status(0).view, 1, "that is no failure");
            assert_converged(&group, batches.len() as u64);
        }
    }
}

/// A member dies after every number of packets while large messages pass through it: the view
/// wedges, the trim says what of them is delivered, and the rest is sent in the next view.
#[test]
fn relay_crash_leaves_no_message_half_delivered() {
    for dies in [0, 1, 2] {
        for packets in (0..120).step_by(5) {
            let mut group = Group::new(4, Durability::Disk, in_blocks("binomial"));
            let mut batches = write_large(&mut group, 0);
            batches.extend(write_large(&mut group, 3));
            deliver(&mut group, packets);
            group.crash(dies);
            group
                .network
                .retain(|packet| packet.from != ReplicaId(dies));
            group.run(MS * 1500);
            let mut executed = group.batches(3);
            for (id, batch) in batches.iter().filter(|(id, _)| *id != dies) {
                let answered = group.answered(*id, *batch);
                assert!(answered, "{dies} died after {packets} packets");
            }
            assert!(group.status(3).view > 1);
            assert_converged(&group, 6);
            executed.sort_unstable();
            let all = executed.len();
            executed.dedup();
            assert_eq!(executed.len(), all, "each once");
        }
    }
}

#[test]
fn member_that_joins_gets_blocks_that_came_before_its_view() {
    let mut group = Group::new(3, Durability::Disk, in_blocks("chain"));
    group.crash(2);
    group.run(MS * 1000);
    write_large(&mut group, 0);
    group.start(2);
    let mut batches = Vec::new();
    for _ in 0..80 {
        group.run(MS * 25);
        batches.extend(write_large(&mut group, 0));
    }
    group.run(MS * 1000);
    assert_eq!(group.status(2).role, "member", "{:?}", group.status(2));
    assert!(
        batches
            .iter()
            .all(|(id, batch)| group.answered(*id, *batch))
    );
    assert_converged(&group, batches.len() as u64);
}

#[test]
fn member_still_starting_gets_all_blocks_when_it_is_in_view() {
    let mut group = Group::unstarted(3, Durability::Disk, in_blocks("chain"));
    group.members[0].slow_disk = true;
    for id in 0..3 {
        group.start(id);
    }
    group.settle();
    let mut batches = write_large(&mut group, 1);
    group.settle();
    group.members[0].slow_disk = false;
    group.sync(0);
    group.idle(0);
    batches.extend(write_large(&mut group, 1));
    group.settle();
    for (id, batch) in &batches {
        assert!(group.answered(*id, *batch));
    }
    assert_eq!(group.status(0).view, 1);
    assert_converged(&group, batches.len() as u64);
}

/// Receivers bound the run of nulls that a slot states, whichever replica wrote it.
#[test]
fn slot_with_huge_run_of_nulls_is_bounded() {
    let mut group = group(3);
    let layout = group.replica(1).sst.layout;
    let slot = layout.area(1) + layout.slot(None, 0);
    let head = layout.area(1) + sst::HEAD;
    let huge = 1 << 48 | 3_000_000;
    let ranges = quintet_replica::put_ranges(&[(head, &[1]), (slot + 1, &[huge]), (slot, &[1])]);
    for to in [0, 2] {
        let from = ReplicaId(1);
        let ranges = ranges.clone();
        group.event(to, Event::Put { from, ranges });
    }
    group.idle(0);
    group.idle(2);
    group.settle();
    for id in [0, 2] {
        assert!(
            group.replica(id).stream.order.ordered() < 100_000,
            "replica {id}"
        );
    }
}

#[test]
fn owner_far_behind_fills_its_slots_in_several_runs() {
    let mut group = group(3);
    let layout = group.replica(1).sst.layout;
    let head = layout.area(1) + sst::HEAD;
    let at = |slot: u64| layout.area(1) + layout.slot(None, slot);
    let run: &[u64] = &[1 << 48 | 4096];
    let ranges = quintet_replica::put_ranges(&[
        (head, &[1]),
        (at(0) + 1, run),
        (at(0), &[1]),
        (at(1) + 1, run),
        (at(1), &[2]),
    ]);
    for to in [0, 2] {
        let from = ReplicaId(1);
        let ranges = ranges.clone();
        group.event(to, Event::Put { from, ranges });
    }
    group.idle(0);
    group.idle(2);
    assert_eq!(
        group.replica(0).stream.outgoing.len(),
        2,
        "a slot for each run"
    );
    assert_eq!(group.replica(0).stream.outgoing.sent(), 2 * 4096);
    let batch = group.write(2);
    group.settle();
    assert!(group.answered(2, batch));
}
