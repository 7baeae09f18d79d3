//! Shards: single cases by hand, and whole runs by chance.

use super::cluster::Cluster;
use crate::group::MS;
use alloc::vec::Vec;
use quintet_replica::{BatchId, GroupId, Level};

/// Two shards of two, one spare.
const PAIRS: &str = "store groups=1-2 nodes=0-4 members=2..2";
/// The same without a spare that may become a member: 4 has no part.
const PINNED: &str = "store groups=1-2 pin=0,1|2,3 members=2..2";
/// Pairs of which one is enough.
const LONE: &str = "store groups=1-2 pin=0,1|2,3 members=1..2";

/// Pairs of two kinds, and shards of both; the first kind sends there.
const UNION: &str = "a groups=1-2 nodes=0-3 members=1..2;b groups=3-4 nodes=4-6 members=1..2;\
                     c groups=5-6 union=a,b senders_from=a";

pub(super) fn settled(processes: u16, layout: &str, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(processes, layout, None, seed);
    cluster.run(MS * 300);
    assert!(cluster.is_whole(), "{}", cluster.picture());
    cluster
}

pub(super) fn wait_until_whole(cluster: &mut Cluster) {
    for _ in 0..600 {
        cluster.run(MS * 50);
        if cluster.is_whole() {
            return;
        }
    }
    panic!("not whole: {}", cluster.picture());
}

pub(super) fn answered(cluster: &mut Cluster, batches: &[BatchId]) {
    for _ in 0..200 {
        if batches.iter().all(|batch| cluster.is_answered(*batch)) {
            return;
        }
        cluster.run(MS * 50);
    }
    panic!("not answered: {}", cluster.picture());
}

#[test]
fn every_process_writes_and_reads_in_every_shard() {
    let mut cluster = settled(5, PAIRS, 1);
    let mut batches = Vec::new();
    for round in 0..4 {
        for id in 0..5 {
            for group in 0..3 {
                batches.push(cluster.write(id, group));
                let more = if round == 2 { 200_000 } else { 3000 };
                batches.push(cluster.submit(id, group, Level::Ordered, more));
                batches.push(cluster.submit(id, group, Level::Linearizable, 0));
            }
        }
        cluster.run(MS * 5);
    }
    answered(&mut cluster, &batches);
    cluster.assert_kept();
    assert!(cluster.marks.contains_key("multicast by rdmc"));
}

#[test]
fn spare_takes_the_place_of_a_dead_member_with_its_log() {
    let mut cluster = settled(5, PAIRS, 2);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    let members = cluster.status(0, 1);
    assert_eq!(members.role, "member", "{members:?}");
    cluster.crash(0);
    wait_until_whole(&mut cluster);
    let batch = cluster.write(4, 1);
    answered(&mut cluster, &[batch]);
    cluster.assert_kept();
    assert!(cluster.marks.contains_key("log of a lost shard copied"));
}

#[test]
fn shard_of_dead_members_is_lost_alone_and_returns_with_either() {
    for first in [0, 1] {
        let mut cluster = settled(5, LONE, 3 + u64::from(first));
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
        cluster.crash(0);
        cluster.crash(1);
        let lost = cluster.write(4, 1);
        let kept = cluster.write(4, 2);
        answered(&mut cluster, &[kept]);
        cluster.run(MS * 2000);
        assert!(!cluster.is_answered(lost), "its log is away");
        assert_eq!(cluster.status(4, 1).role, "lost");
        cluster.start(first);
        answered(&mut cluster, &[lost]);
        cluster.assert_kept();
        cluster.start(1 - first);
        wait_until_whole(&mut cluster);
        let batch = cluster.write(4, 1);
        answered(&mut cluster, &[batch]);
        cluster.assert_kept();
    }
}

#[test]
fn lost_log_is_made_good_when_others_are_heard() {
    let mut cluster = settled(5, LONE, 12);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    (0..5).for_each(|id| cluster.crash(id));
    cluster.lose_groups(0, &[1]);
    cluster.start(0);
    cluster.run(MS * 1000);
    assert!(cluster.is_repairing(0, 1), "it is alone");
    (2..5).for_each(|id| cluster.start(id));
    cluster.run(MS * 3000);
    assert_eq!(cluster.status(0, 1).role, "lost");
    assert!(cluster.is_repairing(0, 1), "no other replica has the log");
    cluster.start(1);
    wait_until_whole(&mut cluster);
    assert!(!cluster.is_repairing(0, 1));
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    cluster.assert_kept();
}

#[test]
fn promise_tells_which_logs_a_replica_keeps_alone() {
    use quintet_replica::{Protocol as _, ReplicaId, Wire as _};
    let mut cluster = settled(5, LONE, 13);
    let alone = |cluster: &Cluster, id: u16| {
        let promise = cluster.promise(id);
        let promise = crate::derecho::Promised::decode_all(promise).expect("reads");
        crate::derecho::Derecho::kept_alone(&promise, ReplicaId(id))
    };
    assert!((0..5).all(|id| alone(&cluster, id).is_empty()));
    cluster.crash(1);
    let batch = cluster.write(4, 1);
    answered(&mut cluster, &[batch]);
    let all: Vec<_> = [0, 2, 3, 4].map(|id| alone(&cluster, id)).into();
    assert_eq!(all, [[0].to_vec(), Vec::new(), Vec::new(), Vec::new()]);
}

#[test]
fn shard_of_a_union_has_the_members_of_its_parts() {
    let layout = "a groups=1 nodes=0-2 members=1..2;b groups=2 nodes=3-5 members=1..2;\
                  c groups=3 union=a,b senders_from=b";
    let mut cluster = settled(6, layout, 8);
    let is_union = |cluster: &Cluster| {
        let shards = &cluster.replica(5).membership.view().shards;
        assert_eq!(
            shards[2].members.0,
            shards[0].members.0 | shards[1].members.0
        );
        assert_eq!(shards[2].senders, shards[1].members);
        shards[1].members.iter().map(|id| id.0).collect::<Vec<_>>()
    };
    assert_eq!(is_union(&cluster), [3, 4]);
    let batches: Vec<_> = (0..6).map(|id| cluster.write(id, 3)).collect();
    answered(&mut cluster, &batches);
    // Another one comes into the second part, and so into the union, as a sender of it.
    cluster.crash(3);
    cluster.run(MS * 1000);
    wait_until_whole(&mut cluster);
    assert_eq!(is_union(&cluster), [4, 5]);
    let batches: Vec<_> = [0, 1, 2, 4, 5].map(|id| cluster.write(id, 3)).to_vec();
    answered(&mut cluster, &batches);
    cluster.assert_kept();
    // Without any sender all members send.
    cluster.crash(4);
    cluster.crash(5);
    cluster.run(MS * 1000);
    cluster.start(3);
    let batch = cluster.write(0, 3);
    answered(&mut cluster, &[batch]);
    cluster.start(4);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

#[test]
fn lost_shard_says_what_it_lacks() {
    let mut cluster = settled(5, PINNED, 11);
    let lacks = |cluster: &Cluster| {
        let details = cluster.status(4, 1).details;
        let mut found = details.into_iter().filter(|(name, _)| *name == "lacks");
        found.next().map(|(_, text)| text)
    };
    assert_eq!(lacks(&cluster), None);
    cluster.crash(1);
    cluster.run(MS * 1000);
    let one = "1 of at least 2 members have its log; of replicas 0, 1 too few are here";
    assert_eq!(lacks(&cluster).as_deref(), Some(one));
    cluster.crash(0);
    cluster.run(MS * 1000);
    let none = "no replica here has its log, which 0, 1 had in view 1; of replicas 0, 1 too few are \
                here";
    assert_eq!(lacks(&cluster).as_deref(), Some(none));
}

#[test]
fn shard_below_its_minimum_orders_nothing() {
    let mut cluster = settled(5, PINNED, 5);
    let batch = cluster.write(4, 1);
    answered(&mut cluster, &[batch]);
    cluster.crash(1);
    cluster.run(MS * 1000);
    assert_eq!(cluster.status(0, 1).role, "lost");
    let waits = [
        cluster.write(0, 1),
        cluster.submit(0, 1, Level::Linearizable, 0),
    ];
    cluster.run(MS * 3000);
    assert!(waits.iter().all(|batch| !cluster.is_answered(*batch)));
    cluster.start(1);
    answered(&mut cluster, &waits);
    cluster.assert_kept();
}

/// G1: one has persisted what the other has acknowledged, and is there again many views later.
#[test]
fn log_counts_by_the_view_in_which_its_shard_was_active() {
    let mut cluster = settled(5, LONE, 6);
    let first = cluster.write(0, 1);
    answered(&mut cluster, &[first]);
    // 0 delivers and answers; what 1 knows to be delivered is not on its disk.
    let last = cluster.write(0, 1);
    answered(&mut cluster, &[last]);
    cluster.crash(0);
    cluster.crash(1);
    for round in 0..3 {
        cluster.run(MS * 1000);
        match round {
            1 => cluster.start(4),
            _ => cluster.crash(4 - round / 2),
        }
    }
    cluster.run(MS * 1000);
    cluster.start(3);
    cluster.run(MS * 1000);
    cluster.start(1);
    cluster.run(MS * 3000);
    let batch = cluster.write(4, 1);
    answered(&mut cluster, &[batch]);
    cluster.assert_kept();
}

#[test]
fn total_restart_takes_up_every_shard_whose_log_is_there() {
    let mut cluster = settled(5, LONE, 7);
    let mut batches = Vec::new();
    for group in 0..3 {
        batches.extend((0..5).map(|id| cluster.write(id, group)));
    }
    answered(&mut cluster, &batches);
    (0..5).for_each(|id| cluster.crash(id));
    // The members of shard 2 are missing.
    [0, 1, 4].into_iter().for_each(|id| cluster.start(id));
    cluster.run(MS * 4000);
    let batch = cluster.write(4, 1);
    answered(&mut cluster, &[batch]);
    assert_eq!(cluster.status(0, 2).role, "lost");
    cluster.start(3);
    let batch = cluster.write(4, 2);
    answered(&mut cluster, &[batch]);
    cluster.start(2);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
}

#[test]
fn base_is_adopted_when_its_proposer_dies() {
    for seed in 0..30 {
        let mut cluster = settled(5, "store groups=1-2 nodes=0-4 members=1..2", 100 + seed);
        for id in 0..5 {
            cluster.write(id, 1);
            cluster.write(id, 2);
        }
        cluster.run(MS);
        cluster.crash(4);
        // The view changes about the time of suspicion, and its proposer dies in it.
        cluster.run(MS * 200 + core::time::Duration::from_micros(seed * 700));
        cluster.crash(0);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
        cluster.start(0);
        cluster.start(4);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn shard_gets_members_when_one_dies_on_its_way_into_it() {
    let mut on_its_way = 0;
    for seed in 0..24 {
        let mut cluster = settled(5, PAIRS, 200 + seed);
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
        cluster.crash(0);
        // 4 gets the log about the time of suspicion, and a place in the view that follows.
        cluster.run(MS * 250 + core::time::Duration::from_millis(seed * 5));
        let status = cluster.status(1, 1);
        let has = |detail: &str| {
            let mut details = status.details.iter();
            let value = details.find(|(name, _)| *name == detail);
            value.is_some_and(|(_, ids)| ids.split_whitespace().any(|id| id == "4"))
        };
        on_its_way += u32::from(has("targets") && !has("members"));
        cluster.crash(4);
        // Either one that had the log comes back, or the one that was on its way.
        let back = [0, 4][seed as usize % 2];
        cluster.start(back);
        let batch = cluster.write(3, 1);
        answered(&mut cluster, &[batch]);
        cluster.assert_kept();
        cluster.start(4 - back);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
    assert!(on_its_way > 2, "{on_its_way}");
}

#[test]
fn pair_that_is_cut_off_acknowledges_nothing_that_is_lost() {
    let mut cluster = settled(5, LONE, 9);
    let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
    answered(&mut cluster, &batches);
    cluster.isolate(&[0, 1]);
    for _ in 0..20 {
        cluster.write(0, 1);
        cluster.write(4, 1);
        cluster.run(MS * 20);
    }
    cluster.run(MS * 1000);
    assert_eq!(cluster.status(4, 1).role, "lost");
    cluster.heal();
    wait_until_whole(&mut cluster);
    let batch = cluster.write(4, 1);
    answered(&mut cluster, &[batch]);
    cluster.assert_kept();
}

#[test]
fn joiner_of_a_shard_fetches_its_state_when_the_log_is_trimmed() {
    let mut cluster = Cluster::new(5, PAIRS, None, 10);
    cluster.set("log_memory_bytes", "1024");
    cluster.restart();
    wait_until_whole(&mut cluster);
    for _ in 0..10 {
        let batches: Vec<_> = (0..5)
            .map(|id| cluster.submit(id, 1, Level::Ordered, 500))
            .collect();
        answered(&mut cluster, &batches);
    }
    for id in 0..5 {
        if cluster.status(id, 1).role == "member" {
            cluster.checkpoint(id, 1);
        }
    }
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    cluster.crash(0);
    cluster.run(MS * 1000);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
    assert!(cluster.marks.contains_key("state installed"));
}

// ------------------------------------------------------------------------------- whole runs

const LAYOUTS: [(u16, &str); 6] = [
    (5, PAIRS),
    (5, LONE),
    (
        6,
        "a groups=1-2 nodes=0-5 members=1..3;b groups=3 nodes=1-4 members=2..3 senders=1,2",
    ),
    (
        7,
        "a groups=1-3 nodes=0-6 members=2..2;b groups=4-5 nodes=0-6 members=2..3",
    ),
    (
        5,
        "a groups=1 nodes=0-4 members=1..2;b groups=2 nodes=0-4 members=1..3 durability=memory",
    ),
    (7, UNION),
];

/// Crashes, partitions and slow disks by chance; then all are back, and everything acknowledged is
/// there.
pub(super) fn random_run(processes: u16, layout: &str, bug: Option<&str>, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(processes, layout, bug, seed);
    cluster.run(MS * 200);
    let groups = cluster.groups() as u64;
    for _ in 0..30 {
        for _ in 0..cluster.random.below(6) {
            let id = cluster.random.below(u64::from(processes)) as u16;
            let group = cluster.random.below(groups) as u32;
            let level = match cluster.random.below(4) {
                0 => Level::Linearizable,
                _ => Level::Ordered,
            };
            let more = match cluster.random.below(12) {
                0 => 100_000,
                1 => 2000,
                _ => 0,
            };
            if cluster.is_up(id) {
                cluster.submit(id, group, level, more);
            }
        }
        let id = cluster.random.below(u64::from(processes)) as u16;
        // A process, or two of them: a shard, or most of it.
        let two = [id, (id + 2) % processes];
        match cluster.random.below(11) {
            0 | 1 => crash(&mut cluster, &two[..1]),
            2 | 3 if !cluster.is_up(id) => cluster.start(id),
            4 => cluster.isolate(&[id, (id + 1) % processes]),
            5 => cluster.heal(),
            6 if cluster.is_up(id) => {
                let group = cluster.random.below(groups) as u32;
                cluster.checkpoint(id, group);
            }
            7 => crash(&mut cluster, &two),
            8 => {
                let group = cluster.random.below(groups) as u32;
                cluster.stalled.insert((id, GroupId(group)));
            }
            9 => cluster.stalled.clear(),
            _ => {}
        }
        let pause = [2, 20, 150, 400][cluster.random.below(4) as usize];
        cluster.run(MS * pause as u32);
    }
    cluster.heal();
    cluster.stalled.clear();
    for id in 0..processes {
        if !cluster.is_up(id) {
            cluster.start(id);
        }
    }
    cluster
}

/// Crashes those of them that run, if what is in memory outlives that.
fn crash(cluster: &mut Cluster, ids: &[u16]) {
    let up = ids.iter().filter(|id| cluster.is_up(**id));
    let up: Vec<u16> = up.copied().collect();
    if cluster.outlives(&up) {
        up.into_iter().for_each(|id| cluster.crash(id));
    }
}

#[test]
fn acknowledged_batches_of_shards_are_kept() {
    let mut answers = 0;
    for (number, (processes, layout)) in LAYOUTS.into_iter().enumerate() {
        for seed in 0..20 {
            let mut cluster = random_run(processes, layout, None, seed * 10 + number as u64);
            wait_until_whole(&mut cluster);
            cluster.run(MS * 500);
            cluster.assert_kept();
            answers += cluster.answers;
        }
    }
    assert!(answers > 2000, "{answers} answers");
}

/// The checks that find bugs: another way of failing is none of these bugs.
#[cfg(feature = "bugs")]
const CHECKS: [&str; 5] = [
    "another batch in",
    "is lost at",
    "an acknowledged batch was executed",
    "before it was",
    "holders: View",
];

/// Every injected bug is found by one of these runs: a check fails that is about such bugs.
#[cfg(feature = "bugs")]
#[test]
fn random_runs_find_each_bug_injected_into_shards() {
    let found = |bug: &'static str, checks: &[&str]| {
        let tries =
            (0..40).flat_map(|seed| LAYOUTS.map(|(processes, layout)| (seed, processes, layout)));
        let mut tries = tries.enumerate();
        tries.any(|(number, (seed, processes, layout))| {
            let tried = std::panic::catch_unwind(move || {
                let seed = seed * 10 + number as u64 % 6;
                let mut cluster = random_run(processes, layout, Some(bug), seed);
                wait_until_whole(&mut cluster);
                cluster.run(MS * 500);
                cluster.assert_kept();
            });
            let Err(panic) = tried else {
                return false;
            };
            let text = match panic.downcast_ref::<alloc::string::String>() {
                Some(text) => text,
                None => *panic.downcast_ref::<&str>().unwrap_or(&""),
            };
            checks.iter().any(|check| text.contains(check))
        })
    };
    for bug in [
        "base_of_one_shard_for_all",
        "delivered_by_shard_majority",
        "lost_shard_begins_empty",
        "log_of_a_member_that_stayed",
        "wedged_before_blocks_are_put",
    ] {
        assert!(found(bug, &CHECKS), "{bug}");
    }
    assert!(found("active_below_minimum", &CHECKS[4..]));
}
