//! Which majorities the group continues with, and which it waits for (Appendix C, D5, D18).

use super::*;
use quintet_replica::{Control, Event, Options, ReplicaId};

/// How many packets pass between two answers of a disk.
const DISKS: [usize; 3] = [1, 5, 23];

/// Plays a view change packet by packet until this many packets of `victim` have arrived; then it
/// dies with all that it has in progress. All disks but slow ones answer now and then, one after
/// the other.
fn dies_after(group: &mut Group<Derecho>, victim: u16, packets: usize, disks: usize) {
    let members = group.members.len() as u16;
    let (mut left, mut rests) = (packets, 0);
    for turn in 0..2000 {
        for id in 0..members {
            let answers = (turn + usize::from(id) * 3) % disks == 0;
            if answers && !group.members[usize::from(id)].slow_disk {
                group.sync(id);
            }
            group.idle(id);
        }
        let Some(packet) = group.network.pop_front() else {
            // Something may follow when a disk has answered.
            rests += 1;
            if rests > 2 * disks {
                break;
            }
            continue;
        };
        rests = 0;
        if packet.from == ReplicaId(victim) {
            if left == 0 {
                break;
            }
            left -= 1;
        }
        group.deliver(packet);
    }
    group.crash(victim);
    let of_it = ReplicaId(victim);
    group.network.retain(|packet| packet.from != of_it);
}

/// Of three members, 2 is suspected, `dies` dies permanently while the others vote on the next
/// view, and 2 comes back. Whether that view had come about at the replica that stays, whether it
/// was gone around, and whether the two that are left continue.
fn a_vote_is_out(dies: u16, packets: usize, restarts: bool, disks: usize) -> (bool, bool, bool) {
    let stays = 1 - dies;
    let mut group = group(3);
    group.write(0);
    group.settle();
    group.crash(2);
    let kept = (!restarts).then(|| group.write(stays));
    // Its writes are on its disk; it does not see their effects.
    group.members[usize::from(stays)].slow_disk = restarts;
    group.event(0, Event::Control(Control::ReportFailure(ReplicaId(2))));
    dies_after(&mut group, dies, packets, disks);
    group.sync(stays);
    if restarts {
        group.crash(stays);
        group.members[usize::from(stays)].slow_disk = false;
        group.start(stays);
    }
    group.settle();
    let agreed = group.replica(stays).membership.number() > 1;
    group.start(2);
    group.run(MS * 12_000);
    let batch = group.write(stays);
    group.run(MS * 1000);
    let continues = group.answered(stays, batch);
    let around = group.marked("restart around a view") > 0;
    if continues {
        let kept = kept.is_none_or(|batch| group.answered(stays, batch));
        assert!(kept, "what was asked for is kept");
        // It was not permanently, after all.
        group.start(dies);
        group.run(MS * 5000);
        assert!(group.status(dies).voting, "{:?}", group.status(dies));
        assert_converged(&group, 2);
    }
    (agreed, around, continues)
}

/// The vote leaves 2 out; without the crashed replica it cannot come about, and 2 and the other are
/// two of three members of the last view that did.
#[test]
fn majority_continues_after_crash_during_vote() {
    let mut gone_around = [0; 4];
    for (case, (dies, restarts)) in [(0, false), (0, true), (1, false), (1, true)]
        .into_iter()
        .enumerate()
    {
        for packets in 0..40 {
            for disks in DISKS {
                let (agreed, around, continues) = a_vote_is_out(dies, packets, restarts, disks);
                let what = alloc::format!(
                    "{dies} died after {packets} packets, restart {restarts}, disks {disks}"
                );
                assert!(agreed || continues, "{what}");
                gone_around[case] += u32::from(around);
            }
        }
    }
    assert!(gone_around[1] > 0, "the leader died: {gone_around:?}");
    assert!(gone_around[2] > 0 && gone_around[3] > 0, "{gone_around:?}");
}

/// One leader after the other dies, each after every number of its packets.
#[test]
fn two_leaders_in_a_row_die_at_any_steps_of_the_trim() {
    for disks in DISKS {
        for first in (0..42).step_by(6) {
            for second in (0..42).step_by(4) {
                two_leaders_die(first, second, disks);
            }
        }
    }
}

fn two_leaders_die(first: usize, second: usize, disks: usize) {
    let mut group = group(7);
    for id in 0..7 {
        group.write(id);
    }
    group.settle();
    group.crash(6);
    let batches: alloc::vec::Vec<_> = (2..6).map(|id| (id, group.write(id))).collect();
    let report = |of| Event::Control(Control::ReportFailure(ReplicaId(of)));
    group.event(1, report(6));
    dies_after(&mut group, 0, first, disks);
    for id in 1..6 {
        group.event(id, report(0));
    }
    dies_after(&mut group, 1, second, disks);
    group.run(MS * 3000);
    for (id, batch) in batches {
        let answered = group.answered(id, batch);
        assert!(
            answered,
            "{first} and {second} packets, disks {disks}: {id}"
        );
    }
    assert_converged(&group, 11);
}

/// Of 25 members 5 fail, then 9 of 20; 11 continue, where a majority of 25 would be missing. When
/// they have failed as well, any 6 of them are needed, and no 13 others will do.
#[test]
fn group_follows_majorities_of_its_views_and_not_that_of_epoch() {
    let mut group = group(25);
    group.write(0);
    group.settle();
    for (gone, left) in [(20..25, 20), (11..20, 11)] {
        for id in gone {
            group.crash(id);
        }
        let batch = group.write(0);
        group.run(MS * 1500);
        assert!(group.answered(0, batch), "{left} continue");
        assert_eq!(group.replica(0).membership.view().members.len(), left);
    }
    for id in 0..11 {
        group.crash(id);
    }
    for id in 11..24 {
        group.start(id);
    }
    group.run(MS * 4000);
    assert!(
        !group.status(11).voting,
        "13 of 25, and none of the last view"
    );
    for id in 0..5 {
        group.start(id);
    }
    group.run(MS * 4000);
    assert!(!group.status(0).voting, "5 of the last 11");
    group.start(5);
    group.run(MS * 8000);
    let batch = group.write(11);
    group.run(MS * 1000);
    assert!(group.answered(11, batch), "{:?}", group.status(11));
    assert_converged(&group, 4);
}

#[test]
fn long_tail_is_sent_once_when_there_is_room() {
    let mut group = group(3);
    group.crash(1);
    let batch = group.submit_long(0, Level::Ordered, 64 << 10);
    group.run(MS * 1000);
    assert!(group.answered(0, batch));
    // As if what answered an earlier question were still queued.
    let room = core::mem::replace(&mut group.clock.room, 32 << 10);
    group.start(1);
    group.run(MS * 1000);
    assert!(group.marked("a tail waits for room") > 1);
    assert_eq!(group.marked("entries fetched"), 0);
    group.clock.room = room;
    group.run(MS * 1000);
    assert_eq!(group.status(1).role, "member");
    assert_converged(&group, 1);
}

#[test]
fn member_gets_all_bodies_again_when_there_is_room_for_all() {
    let mut config = Config::default();
    config.set("smc_bytes_max", "64").expect("in its range");
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    group.run(MS * 100);
    group.cut.extend([(0, 1), (0, 2)]);
    let batch = group.submit_long(0, Level::Ordered, 60 << 10);
    group.idle(0);
    group.heal();
    let room = core::mem::replace(&mut group.clock.room, 56 << 10);
    group.reset(0, 1);
    group.reset(0, 2);
    group.run(MS * 60);
    assert!(!group.answered(0, batch));
    group.clock.room = room;
    group.run(MS * 100);
    assert!(group.answered(0, batch), "{:?}", group.status(0));
    assert_eq!(group.status(0).view, 1);
}
