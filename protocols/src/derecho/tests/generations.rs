//! Shards in memory that are begun again with nothing, while processes with what was in them run on.

use super::{
    cluster::Cluster,
    shards::{answered, wait_until_whole},
};
use crate::group::MS;
use alloc::vec::Vec;
use quintet_replica::{GroupId, ReplicaId, Slot};

/// Two of which both are needed, in memory, and spares.
const MEMORY: &str = "store groups=1 nodes=0-4 members=2..2 durability=memory";
/// The same where one is enough.
const LONE: &str = "store groups=1 nodes=0-4 members=1..2 durability=memory";

fn written(bug: Option<&str>, layout: &str, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(5, layout, bug, seed);
    wait_until_whole(&mut cluster);
    for _ in 0..4 {
        let batches: Vec<_> = (0..5).map(|id| cluster.write(id, 1)).collect();
        answered(&mut cluster, &batches);
    }
    cluster
}

/// All but `old`, which is cut off and holds it, give up the content of the shard.
fn begin_again_without(cluster: &mut Cluster, old: &[u16]) {
    cluster.isolate(old);
    let others: Vec<u16> = (0..5).filter(|id| !old.contains(id)).collect();
    others.iter().for_each(|id| cluster.crash(*id));
    others.iter().for_each(|id| cluster.begin_again(*id));
}

/// Time passes; then these replicas write to these groups, and nothing is lost.
fn works_whole(cluster: &mut Cluster, writes: &[(u16, u32)]) {
    cluster.run(MS * 1000);
    wait_until_whole(cluster);
    let batches: Vec<_> = (writes.iter())
        .map(|(id, group)| cluster.write(*id, *group))
        .collect();
    answered(cluster, &batches);
    cluster.assert_kept();
}

/// An old process comes back when the shard has been begun again, and then takes the place of one
/// that dies.
fn old_process_comes_back_after(bug: Option<&str>, layout: &str, seed: u64) {
    let mut cluster = written(bug, layout, seed);
    begin_again_without(&mut cluster, &[1]);
    cluster.give_up(1);
    let batches = [0, 2, 3, 4].map(|id| cluster.write(id, 1));
    answered(&mut cluster, &batches);
    cluster.run(MS * (seed as u32 % 4 * 300));
    cluster.heal();
    cluster.run(MS * 1000);
    wait_until_whole(&mut cluster);
    cluster.assert_kept();
    let members = cluster.replica(3).membership.view().shards[0].members;
    let dies = members.iter().find(|id| id.0 != 1).expect("two members");
    cluster.crash(dies.0);
    works_whole(&mut cluster, &[((dies.0 + 1) % 5, 1)]);
    assert_eq!(cluster.replica(1).membership.view().shards[0].generation, 1);
    assert_eq!(cluster.marks.get("started again"), Some(&1));
}

#[test]
fn old_process_takes_what_was_begun_without_it() {
    for seed in 0..20 {
        old_process_comes_back_after(None, [MEMORY, LONE][seed as usize % 2], 500 + seed);
    }
}

#[cfg(feature = "bugs")]
#[test]
fn cluster_finds_that_the_generation_is_ignored() {
    let found = |seed| {
        let run = move || old_process_comes_back_after(Some("generation_ignored"), LONE, seed);
        let panic = std::panic::catch_unwind(run).err()?;
        let text = panic.downcast_ref::<alloc::string::String>()?;
        let checks = ["another batch in", "is lost at", "every slot in order"];
        checks
            .iter()
            .any(|check| text.contains(check))
            .then_some(())
    };
    assert!((500..520).find_map(found).is_some());
}

#[test]
fn old_process_that_comes_back_in_time_is_followed() {
    for seed in 0..20 {
        let mut cluster = written(None, MEMORY, 530 + seed);
        begin_again_without(&mut cluster, &[1]);
        cluster.run(MS * (50 * seed as u32));
        let view = &cluster.replica(3).membership.view().shards[0];
        if view.generation > 0 {
            assert!(seed > 10, "they begin it not before they are a view");
            continue;
        }
        cluster.heal();
        cluster.run(MS * 1000);
        wait_until_whole(&mut cluster);
        let batch = cluster.write(3, 1);
        answered(&mut cluster, &[batch]);
        if cluster.replica(3).membership.view().shards[0].generation == 0 {
            cluster.assert_kept();
        }
    }
}

/// Of one shard 3 and 4 are to hold what counts no more, and of another one all that there is.
const COPIES: &str = "a groups=1 pin=2,3,4 members=1..3 durability=memory;\
                      b groups=2 pin=3,4 members=1..2 durability=memory";

/// They come back as the only ones with the content of the second shard.
fn two_that_hold_copies_come_back(bug: Option<&str>, seed: u64) -> Cluster {
    let mut cluster = written(bug, COPIES, seed);
    let kept: Vec<_> = (0..5).map(|id| cluster.write(id, 2)).collect();
    answered(&mut cluster, &kept);
    // The beats of the others come at any time between those of 3 and 4.
    cluster.run(MS * (seed as u32 * 7 % 50));
    begin_again_without(&mut cluster, &[3, 4]);
    cluster.give_up(1);
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    cluster.heal();
    cluster
}

/// Both have started again, and what the second shard held is there.
fn both_started_again(cluster: &mut Cluster) {
    works_whole(cluster, &[(0, 1), (1, 2)]);
    assert_eq!(started_again(cluster), 2);
    let generations = (cluster.replica(0).membership.view().shards.iter())
        .map(|shard| shard.generation)
        .collect::<Vec<_>>();
    assert_eq!(generations, [1, 0]);
}

fn started_again(cluster: &Cluster) -> u32 {
    cluster.marks.get("started again").copied().unwrap_or(0)
}

/// Whether a process has an old log of the first shard, and a copy of the second, as another one has
/// that it knows of.
fn is_old_beside(cluster: &Cluster, id: u16, other: u16) -> bool {
    if !cluster.is_up(id) || !cluster.is_up(other) {
        return false;
    }
    let replica = cluster.replica(id);
    let old = replica.shards[0].catch_up.old.is_some();
    let live = replica.membership.live();
    let mut holders = replica.holders(1, live).into_iter();
    let holds = holders.any(|(id, _)| id == ReplicaId(other));
    let copy = replica.membership.is_held(1);
    old && copy && holds && replica.membership.is_active()
}

#[test]
fn old_processes_start_again_one_after_the_other() {
    for seed in 0..10 {
        let mut cluster = two_that_hold_copies_come_back(None, 560 + seed);
        both_started_again(&mut cluster);
    }
}

#[cfg(feature = "bugs")]
#[test]
fn cluster_finds_that_an_old_process_ends_unasked() {
    let found = |seed| {
        let run = move || {
            let bug = Some("old_process_ends_unasked");
            both_started_again(&mut two_that_hold_copies_come_back(bug, seed));
        };
        let panic = std::panic::catch_unwind(run).err()?;
        let text = panic.downcast_ref::<alloc::string::String>()?;
        text.contains("no replica here has its log").then_some(())
    };
    assert!((560..570).find_map(found).is_some());
}

/// Another member crashes when they have come back with nothing that is needed.
#[test]
fn old_processes_without_copies_leave_a_quorum() {
    for seed in 0..20 {
        let layout = "a groups=1 nodes=0-4 members=2..5 durability=memory";
        let mut cluster = written(None, layout, 740 + seed);
        begin_again_without(&mut cluster, &[3, 4]);
        cluster.give_up(1);
        let batch = cluster.write(0, 1);
        answered(&mut cluster, &[batch]);
        cluster.heal();
        cluster.run_until("a view of all", |cluster| {
            let old = |id: u16| {
                let replica = cluster.replica(id);
                replica.shards[0].catch_up.old.is_some() && replica.membership.is_active()
            };
            cluster.is_up(3) && old(3) && cluster.is_up(4) && old(4)
        });
        let halts = |cluster: &Cluster| cluster.marks.get("minority halts").copied();
        let before = halts(&cluster);
        if seed % 2 == 0 {
            cluster.crash(2);
        }
        cluster.run_until("a start", |cluster| started_again(cluster) > 0);
        let view = |cluster: &Cluster| cluster.replica(0).membership.number();
        let first = view(&cluster);
        cluster.run_until("another start", |cluster| started_again(cluster) > 1);
        assert!(view(&cluster) > first, "seed {seed}: both end in {first}");
        cluster.run(MS * 1000);
        assert_eq!(halts(&cluster), before, "seed {seed}");
        if seed % 2 == 0 {
            cluster.start(2);
        }
        works_whole(&mut cluster, &[(0, 1)]);
    }
}

/// The table shows each what the other one holds, and none hears that the other is old, too.
#[test]
fn old_processes_that_hear_nothing_keep_their_copies() {
    let mut both = 0;
    for seed in 0..60 {
        let mut cluster = two_that_hold_copies_come_back(None, 640 + seed);
        let ends = |cluster: &Cluster| started_again(cluster) > 0;
        cluster.run_until("the view of both", |cluster| {
            let wedges = |id| cluster.is_up(id) && cluster.replica(id).membership.wedging();
            ends(cluster) || is_old_beside(cluster, 3, 4) && wedges(3) && wedges(4)
        });
        cluster.muted.extend([(3, GroupId(0)), (4, GroupId(0))]);
        cluster.run(MS * 200);
        if !ends(&cluster) {
            both += u32::from(is_old_beside(&cluster, 3, 4) && is_old_beside(&cluster, 4, 3));
        }
        assert!(
            started_again(&cluster) < 2,
            "both have given up: {}",
            cluster.picture()
        );
        cluster.muted.clear();
        both_started_again(&mut cluster);
    }
    assert!(both > 2, "{both}");
}

#[test]
fn old_process_relies_on_no_copy_that_has_just_ended() {
    let mut seen = 0;
    for seed in 0..20 {
        let mut cluster = two_that_hold_copies_come_back(None, 660 + seed);
        cluster.run_until("a copy beside it", |cluster| {
            started_again(cluster) > 0 || is_old_beside(cluster, 3, 4)
        });
        if started_again(&cluster) > 0 {
            continue;
        }
        seen += 1;
        cluster.crash(4);
        cluster.run(MS * 1000);
        assert_eq!(started_again(&cluster), 0, "{}", cluster.picture());
        cluster.start(4);
        works_whole(&mut cluster, &[(0, 1), (1, 2)]);
        assert_eq!(started_again(&cluster), 1);
    }
    assert!(seen > 5, "{seen}");
}

/// 1 has the only copy of the second shard, and cannot give it up.
#[test]
fn old_process_that_must_stay_takes_no_place_in_a_shard() {
    for seed in 0..10 {
        let layout = "a groups=1 nodes=0-3 members=2..2 durability=memory;\
                      b groups=2 pin=1 members=1..1 durability=memory";
        let mut cluster = written(None, layout, 680 + seed);
        let kept: Vec<_> = (0..5).map(|id| cluster.write(id, 2)).collect();
        answered(&mut cluster, &kept);
        begin_again_without(&mut cluster, &[1]);
        cluster.give_up(1);
        let batch = cluster.write(4, 1);
        answered(&mut cluster, &[batch]);
        let members = cluster.replica(4).membership.view().shards[0].members;
        let dies = if seed % 2 == 0 { 0 } else { 2 };
        assert!(members.contains(ReplicaId(dies)), "{members:?}");
        cluster.heal();
        if seed < 5 {
            cluster.run(MS * 1000);
            wait_until_whole(&mut cluster);
        }
        cluster.crash(dies);
        works_whole(&mut cluster, &[(4, 1), (3, 2)]);
        let members = cluster.replica(4).membership.view().shards[0].members;
        assert!(members.contains(ReplicaId(3)), "{members:?}");
        assert_eq!(
            started_again(&cluster),
            0,
            "it holds what no other one does"
        );
    }
}

#[test]
fn old_process_that_must_stay_keeps_no_other_from_its_start() {
    for seed in 0..10 {
        let layout = "a groups=1 nodes=0-4 members=2..3 durability=memory;\
                      b groups=2 pin=1 members=1..1 durability=memory";
        let mut cluster = written(None, layout, 690 + seed);
        let kept: Vec<_> = (0..5).map(|id| cluster.write(id, 2)).collect();
        answered(&mut cluster, &kept);
        begin_again_without(&mut cluster, &[1, 2]);
        cluster.give_up(1);
        let batch = cluster.write(4, 1);
        answered(&mut cluster, &[batch]);
        cluster.heal();
        cluster.run_until("a start", |cluster| started_again(cluster) > 0);
        assert!(cluster.is_up(1) && !cluster.is_up(2));
        works_whole(&mut cluster, &[(4, 1), (3, 2)]);
        assert_eq!(started_again(&cluster), 1);
    }
}

#[test]
fn majority_of_the_last_view_begins_a_shard_again() {
    let layout = "store groups=1 nodes=0-2 members=1..2 durability=memory";
    let mut cluster = written(None, layout, 580);
    for id in [3, 4] {
        cluster.crash(id);
        cluster.run(MS * 1000);
    }
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    (0..3).for_each(|id| cluster.crash(id));
    cluster.give_up(1);
    cluster.begin_again(0);
    // Another one is there, and has given up nothing.
    cluster.start(1);
    cluster.run(MS * 3000);
    assert_eq!(cluster.status(0, 1).role, "lost", "one of three");
    cluster.crash(1);
    cluster.begin_again(1);
    let batch = cluster.write(0, 1);
    answered(&mut cluster, &[batch]);
    cluster.assert_kept();
}

/// All four are needed as members, and one of them begins nothing again.
#[test]
fn process_with_nothing_counts_where_a_shard_is_begun_again() {
    for seed in 0..8 {
        let layout = "a groups=1-2 nodes=0-3 members=2..2 durability=memory";
        let mut cluster = written(None, layout, 700 + seed);
        (0..5).for_each(|id| cluster.crash(id));
        (1..=2).for_each(|group| cluster.give_up(group));
        for id in 0..5 {
            match u64::from(id) == seed % 4 {
                true => cluster.start(id),
                false => cluster.begin_again(id),
            }
        }
        works_whole(&mut cluster, &[(4, 1), (4, 2)]);
        assert_eq!(started_again(&cluster), 0);
    }
}

/// It was being copied when all that had the whole log ended.
#[test]
fn process_with_a_useless_part_of_a_log_starts_again() {
    for seed in 0..10 {
        let layout = "a groups=1 nodes=2-3 members=2..2 durability=memory";
        let mut cluster = written(None, layout, 720 + seed);
        cluster.crash(3);
        cluster.run(MS * 1000);
        cluster.start(3);
        cluster.run_until("a part of the log", |cluster| {
            let replica = cluster.replica(3);
            replica.shards[0].log.end() > Slot(0) && !replica.membership.is_held(0)
        });
        begin_again_without(&mut cluster, &[3]);
        cluster.give_up(1);
        cluster.run(MS * 1000);
        cluster.heal();
        works_whole(&mut cluster, &[(4, 1)]);
        assert_eq!(started_again(&cluster), 1, "seed {seed}");
    }
}

/// The last one that holds it is let in by a view that could begin the shard again.
#[test]
fn joiner_has_its_word_before_a_shard_is_begun_again() {
    let mut begun = 0;
    for seed in 0..60 {
        let mut cluster = written(None, LONE, 600 + seed);
        begin_again_without(&mut cluster, &[1]);
        cluster.give_up(1);
        cluster.run(MS * (1000 + 15 * seed as u32));
        cluster.heal();
        cluster.run(MS * 1000);
        wait_until_whole(&mut cluster);
        let mut views = cluster.replica(3).membership.views();
        let Some(view) = views.find(|view| view.shards[0].generation > 0) else {
            continue;
        };
        begun += 1;
        let joins = view.set().contains(ReplicaId(1));
        assert!(!joins, "seed {seed}: the old log is there in {view:?}");
    }
    assert!(begun > 5, "{begun}");
}
