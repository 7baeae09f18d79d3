//! Rare orders of events around shards, each brought about exactly.
//!
//! ```text
//!   A dies, B dies ──► A returns, B returns     either way, with one or both needed
//!   proposal, one echo ──► proposer dies        the next one adopts it, with the bases of all shards
//!   lost shard, first entries copied ──► mover dies
//!   all die ──► one shard returns with its log, one without
//!   union of two: one part dies, and returns
//! ```

use super::{
    cluster::Cluster,
    shards::{answered, settled, wait_until_whole},
};
use crate::group::MS;
use alloc::{format, vec::Vec};
use quintet_replica::{ReplicaId, ReplicaSet};

fn set(ids: &[u16]) -> ReplicaSet {
    ids.iter().copied().map(ReplicaId).collect()
}

fn write_at(cluster: &mut Cluster, ids: &[u16], group: u32) {
    let batches: Vec<_> = ids.iter().map(|id| cluster.write(*id, group)).collect();
    answered(cluster, &batches);
}

fn members(cluster: &Cluster, by: u16, shard: usize) -> ReplicaSet {
    cluster.replica(by).membership.view().shards[shard].members
}

#[test]
fn both_members_die_and_return_in_any_order() {
    for (min, first_dies, first_returns) in [
        (1, 0, 0),
        (1, 0, 1),
        (1, 1, 0),
        (2, 0, 0),
        (2, 0, 1),
        (2, 1, 1),
    ] {
        let layout = format!("store groups=1-2 pin=0,1|2,3 members={min}..2");
        let mut cluster = settled(5, &layout, 600 + first_dies);
        let (dies, returns) = (first_dies as u16, first_returns as u16);
        write_at(&mut cluster, &[0, 1, 2, 3, 4], 1);
        cluster.crash(dies);
        let alone = cluster.write(4, 1);
        match min {
            1 => answered(&mut cluster, &[alone]),
            _ => cluster.run(MS * 1500),
        }
        assert_eq!(cluster.is_answered(alone), min == 1);
        cluster.crash(1 - dies);
        write_at(&mut cluster, &[2, 3, 4], 2);
        cluster.run_until("loss", |cluster| cluster.status(4, 1).role == "lost");
        let waits = cluster.write(4, 1);
        cluster.start(returns);
        cluster.run(MS * 3000);
        // Its log is the last one, and it is enough; or both must be there.
        let serves = min == 1 && returns != dies;
        assert_eq!(cluster.is_answered(waits), serves, "{}", cluster.picture());
        cluster.start(1 - returns);
        answered(&mut cluster, &[alone, waits]);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn proposal_that_one_has_echoed_is_adopted_with_its_bases() {
    for seed in 0..20 {
        let mut cluster = settled(5, "store groups=1-2 pin=0,1|2,3 members=1..2", 610 + seed);
        let mut batches = Vec::new();
        for id in 0..5 {
            let written = [1, 2].map(|group| cluster.write(id, group));
            // Clients of those that die hear nothing more.
            if (1..4).contains(&id) {
                batches.extend(written);
            }
        }
        cluster.run(MS);
        cluster.crash(4);
        // 0 leads, and proposes; one of the others has echoed that, and none has gone on.
        let echoed = |cluster: &Cluster, id: u16| {
            let replica = cluster.replica(id);
            replica.sst.proposed(ReplicaId(id)) == 1 && replica.membership.number() == 1
        };
        cluster.run_until("an echo", |cluster| (1..4).any(|id| echoed(cluster, id)));
        let one = (1..4).find(|id| echoed(&cluster, *id)).expect("one");
        let proposal = cluster.replica(one).sst.proposal(ReplicaId(one));
        let proposed = proposal.expect("a proposal").view;
        cluster.crash(0);
        cluster.run_until("the next view", |cluster| {
            (1..4).all(|id| cluster.replica(id).membership.number() >= 2)
        });
        let second = {
            let mut known = cluster.replica(one).membership.views();
            known.find(|view| view.number == 2).cloned()
        };
        assert_eq!(second.as_ref(), Some(&proposed));
        cluster.start(0);
        cluster.start(4);
        answered(&mut cluster, &batches);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn mover_dies_with_half_of_the_log() {
    for back in [0, 4] {
        // One entry per message: many are needed.
        let layout = "a groups=1 nodes=0,1,4 members=2..2;b groups=2 pin=2,3 members=2..2";
        let mut cluster = Cluster::new(5, layout, None, 640);
        cluster.set("batch_bytes_max", "4096");
        cluster.restart();
        wait_until_whole(&mut cluster);
        assert_eq!(members(&cluster, 0, 0), set(&[0, 1]));
        for _ in 0..8 {
            let batches: Vec<_> = (0..5)
                .map(|id| cluster.submit(id, 1, quintet_replica::Level::Ordered, 1000))
                .collect();
            answered(&mut cluster, &batches);
        }
        cluster.crash(0);
        let log = |cluster: &Cluster, id: u16| cluster.replica(id).shards[0].log.end();
        cluster.run_until("half of the log", |cluster| {
            let (end, all) = (log(cluster, 4), log(cluster, 1));
            end.0 > 0 && end < all
        });
        cluster.crash(4);
        let waits = cluster.write(2, 1);
        cluster.run(MS * 2000);
        assert!(!cluster.is_answered(waits), "one of two has the log");
        cluster.start(back);
        answered(&mut cluster, &[waits]);
        cluster.assert_kept();
        cluster.start(4 - back);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn restart_with_one_shard_complete_and_one_lost() {
    for seed in 0..10 {
        let mut cluster = settled(5, "store groups=1-2 pin=0,1|2,3 members=1..2", 650 + seed);
        for group in [1, 2] {
            write_at(&mut cluster, &[0, 1, 2, 3, 4], group);
        }
        (0..5).for_each(|id| cluster.crash(id));
        // The log of the second shard is at 3 alone, whose process is missing.
        cluster.lose_disk(2);
        [0, 1, 2, 4].into_iter().for_each(|id| cluster.start(id));
        let (kept, waits) = (cluster.write(4, 1), cluster.write(4, 2));
        answered(&mut cluster, &[kept]);
        cluster.run(MS * 3000);
        assert!(!cluster.is_answered(waits), "a lost disk is no log");
        assert_eq!(cluster.status(4, 2).role, "lost");
        cluster.start(3);
        answered(&mut cluster, &[waits]);
        wait_until_whole(&mut cluster);
        cluster.assert_kept();
    }
}

#[test]
fn union_continues_while_a_part_of_it_is_lost() {
    let layout = "a groups=1 pin=0,1 members=1..2;b groups=2 pin=2,3 members=1..2;\
                  c groups=3 union=a,b senders_from=a";
    for first in [0, 1] {
        let mut cluster = settled(6, layout, 660 + u64::from(first));
        for group in [1, 2, 3] {
            write_at(&mut cluster, &[0, 1, 2, 3, 4, 5], group);
        }
        assert_eq!(members(&cluster, 5, 2), set(&[0, 1, 2, 3]));
        cluster.crash(0);
        cluster.crash(1);
        let waits = cluster.write(5, 1);
        write_at(&mut cluster, &[2, 3, 4, 5], 2);
        // Those of the other part hold all that the union has.
        write_at(&mut cluster, &[2, 3, 4, 5], 3);
        assert_eq!(members(&cluster, 5, 2), set(&[2, 3]));
        assert!(!cluster.is_answered(waits));
        cluster.start(first);
        answered(&mut cluster, &[waits]);
        cluster.start(1 - first);
        wait_until_whole(&mut cluster);
        assert_eq!(members(&cluster, 5, 2), set(&[0, 1, 2, 3]));
        write_at(&mut cluster, &[0, 1, 2, 3, 4, 5], 3);
        cluster.assert_kept();
    }
}
