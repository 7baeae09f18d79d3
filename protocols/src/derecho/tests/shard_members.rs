//! Shards of which a member holds the others up, and who comes into a shard.

use super::{
    cluster::Cluster,
    shards::{answered, settled, wait_until_whole},
};
use crate::group::MS;
use alloc::vec::Vec;
use quintet_replica::{Control, GroupId, Level, ReplicaId};

const ONE: GroupId = GroupId(1);
const ONE_ID: ReplicaId = ReplicaId(1);
/// A shard of two, and others that may take a place in it.
const SPARE: &str = "store groups=1 nodes=0-4 members=1..2";
/// Two of which one is enough, and no others.
const LONE: &str = "store groups=1 pin=0,1 members=1..2;log groups=2 nodes=2-4 members=2..3";

#[test]
fn shard_continues_without_member_whose_disk_stands_still() {
    for layout in [SPARE, LONE] {
        let mut cluster = settled(5, layout, 21);
        let batch = cluster.write(4, 1);
        answered(&mut cluster, &[batch]);
        cluster.stalled.insert((1, ONE));
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
        assert!(cluster.marks.contains_key("stalled member removed"));
        cluster.stalled.clear();
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn view_ends_without_member_whose_disk_stands_still() {
    let mut cluster = settled(5, LONE, 22);
    cluster.stalled.insert((1, ONE));
    cluster.write(0, 1);
    cluster.run(MS * 5);
    // The view is to end while 1 has written what it took.
    cluster.crash(4);
    cluster.run(MS * 400);
    let batch = cluster.write(2, 2);
    answered(&mut cluster, &[batch]);
    assert!((cluster.marks).contains_key("member left out at the end of a view"));
    cluster.stalled.clear();
    cluster.start(4);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

#[test]
fn shard_continues_without_member_that_never_holds_it() {
    let mut cluster = settled(5, SPARE, 23);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    // The others tell how far they hold it, and send none of it.
    cluster.muted.extend((0..5).map(|id| (id, ONE)));
    cluster.crash(1);
    for _ in 0..100 {
        if cluster.status(2, 1).role == "joining" {
            break;
        }
        cluster.run(MS * 20);
    }
    assert_eq!(cluster.status(2, 1).role, "joining", "it came near");
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    assert!(cluster.marks.contains_key("stalled member removed"));
    cluster.muted.clear();
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

#[test]
fn target_whose_disk_stands_still_does_not_come_into_a_shard() {
    let mut cluster = settled(5, SPARE, 24);
    for _ in 0..60 {
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
    }
    cluster.stalled.insert((2, ONE));
    cluster.crash(1);
    cluster.run(MS * 3000);
    assert_eq!(cluster.status(2, 1).role, "out", "{}", cluster.picture());
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    cluster.stalled.clear();
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

/// The promise is written by the group of all, a shard's log by itself.
#[test]
fn log_is_durable_before_the_promise_that_it_is_held() {
    let mut cluster = settled(5, SPARE, 25);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    cluster.stalled.insert((2, ONE));
    cluster.crash(1);
    while cluster.status(2, 1).role != "joining" {
        cluster.run(MS);
    }
    cluster.run(MS * 300);
    cluster.crash(2);
    cluster.stalled.clear();
    cluster.run(MS * 500);
    cluster.start(2);
    cluster.start(1);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

#[test]
fn entries_stay_for_a_target_that_is_on_its_way() {
    let mut cluster = Cluster::new(5, SPARE, None, 26);
    // Half of it is for the group of all.
    cluster.set("log_memory_bytes", "8192");
    cluster.restart();
    wait_until_whole(&mut cluster);
    let fill = |cluster: &mut Cluster| {
        for _ in 0..20 {
            let batch = cluster.submit(0, 1, Level::Ordered, 500);
            answered(cluster, &[batch]);
        }
        let stream = &cluster.replica(0).shards[0];
        assert_eq!(stream.log.executed(), stream.log.sure());
        stream.log.bytes()
    };
    assert!(fill(&mut cluster) <= 4096);
    // The one that is to take the place gets no answer.
    cluster.muted.extend([(0, ONE), (1, ONE)]);
    cluster.crash(1);
    cluster.run(MS * 1000);
    let kept = fill(&mut cluster);
    assert!((4096..=8192).contains(&kept), "{kept}");
    cluster.muted.clear();
    wait_until_whole(&mut cluster);
    assert!(fill(&mut cluster) <= 4096);
}

#[test]
fn target_that_is_near_now_and_then_changes_the_view_once() {
    for seed in 0..12 {
        let mut cluster = Cluster::new(5, SPARE, None, 270 + seed);
        // It tells how far it is every 50 ms, in which others get as many messages.
        cluster.set("join_lag", &alloc::format!("{}", 46 + seed));
        cluster.restart();
        wait_until_whole(&mut cluster);
        let before = cluster.status(0, 0).view;
        for round in 0..3000 {
            if round == 500 {
                cluster.crash(1);
            }
            cluster.write(0, 1);
            cluster.run(MS);
        }
        wait_until_whole(&mut cluster);
        let changes = cluster.status(0, 0).view - before;
        assert_eq!(changes, 2, "one without 1, one with another in its place");
    }
}

#[test]
fn target_comes_into_a_shard_however_much_that_orders() {
    for seed in 0..12 {
        let mut cluster = Cluster::new(5, SPARE, None, 290 + seed);
        // Between two beats there are ten times as many.
        cluster.set("join_lag", "5");
        cluster.restart();
        wait_until_whole(&mut cluster);
        cluster.crash(1);
        for _ in 0..3000 {
            cluster.write(0, 1);
            cluster.run(MS);
        }
        assert!(cluster.is_whole(), "{}", cluster.picture());
        cluster.run(MS * 500);
        cluster.assert_kept();
    }
}

#[test]
fn orders_of_one_turn_share_the_room_of_a_link() {
    let layout = "a groups=1 pin=0,1;b groups=2 pin=0,1;c groups=3 pin=0,1;d groups=4 pin=0,1";
    let mut cluster = settled(3, layout, 28);
    // Requests that come at the end of a view go in the first turn of the next one.
    cluster.set_room(256 << 10);
    let view = cluster.status(0, 0).view;
    cluster.crash(2);
    let mut batches = Vec::new();
    for _ in 0..400 {
        cluster.run(MS);
        if cluster.replica(0).membership.wedging() {
            batches = [1, 2, 3, 4]
                .map(|group| cluster.submit(0, group, Level::Ordered, 60_000))
                .to_vec();
            break;
        }
    }
    assert!(!batches.is_empty(), "the view ended unseen");
    answered(&mut cluster, &batches);
    assert!(cluster.status(0, 0).view > view);
    cluster.assert_kept();
}

#[test]
fn layout_does_not_change_while_a_replica_runs() {
    let mut cluster = settled(5, SPARE, 29);
    for value in ["", "store groups=1-2 nodes=0-4 members=1..2"] {
        let (name, value) = ("layout".into(), value.into());
        cluster.control(0, Control::Option { name, value });
    }
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    assert_eq!(cluster.marks["ignored: option value"], 2);
}

/// Two of which both are needed, in memory.
const MEMORY: &str = "store groups=1 pin=0,1 members=2..2 durability=memory";

#[test]
fn shard_in_memory_outlives_crash_of_one_member() {
    let mut cluster = settled(5, MEMORY, 30);
    for id in [0, 1, 0] {
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
        cluster.crash(id);
        cluster.run(MS * 1000);
        assert_eq!(cluster.status(4, 1).role, "lost");
        cluster.start(id);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn shard_in_memory_lost_by_all_waits_until_it_is_begun_again() {
    let mut cluster = settled(5, MEMORY, 31);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    cluster.restart();
    cluster.run(MS * 4000);
    assert_eq!(cluster.status(0, 1).role, "lost");
    (0..5).for_each(|id| cluster.crash(id));
    cluster.give_up(1);
    (0..5).for_each(|id| cluster.begin_again(id));
    wait_until_whole(&mut cluster);
    let batch = cluster.write(3, 1);
    answered(&mut cluster, &[batch]);
    // That is another log, which is kept as any other.
    cluster.crash(0);
    cluster.run(MS * 1000);
    cluster.start(0);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

#[test]
fn replica_begun_again_alone_takes_the_log_of_others() {
    let mut cluster = settled(5, MEMORY, 32);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    cluster.crash(1);
    cluster.run(MS * 1000);
    cluster.begin_again(1);
    wait_until_whole(&mut cluster);
    let batch = cluster.write(3, 1);
    answered(&mut cluster, &[batch]);
    cluster.assert_kept();
}

#[test]
fn replica_begun_again_alone_stands_for_no_log_of_others() {
    for seed in 0..20 {
        let layout = "store groups=1 nodes=0-4 members=2..2 durability=memory";
        let mut cluster = settled(5, layout, 330 + seed);
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
        cluster.crash(2);
        cluster.run(MS * 1000);
        cluster.begin_again(2);
        cluster.run(MS * (700 + 20 * seed as u32));
        // Those that hold it are only cut off.
        cluster.isolate(&[0, 1]);
        cluster.run(MS * 3000);
        assert_eq!(cluster.status(4, 1).role, "lost");
        cluster.heal();
        wait_until_whole(&mut cluster);
        let batch = cluster.write(3, 1);
        answered(&mut cluster, &[batch]);
        cluster.assert_kept();
    }
}

/// A process that keeps its disk keeps its incarnation, but not what it had in memory.
#[test]
fn word_of_a_process_on_its_logs_ends_with_its_start() {
    let mut cluster = settled(5, "store groups=1 pin=1,2 members=2..2", 34);
    cluster.crash(2);
    let said = |cluster: &Cluster, view| cluster.replica(0).holdings.of(ONE_ID, view, 0).is_some();
    cluster.run_until("its word", |cluster| {
        let view = cluster.replica(0).membership.number();
        view > 1 && said(cluster, view)
    });
    let view = cluster.replica(0).membership.number();
    let starts = cluster.replica(1).membership.member().starts;
    cluster.crash(1);
    cluster.start(1);
    cluster.run_until("its next start", |cluster| {
        cluster.replica(0).joins.starts(ONE_ID) == Some(starts + 1)
    });
    assert!(!said(&cluster, view));
    cluster.start(2);
    wait_until_whole(&mut cluster);
}
