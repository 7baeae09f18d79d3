//! Delays without bound, forever: no proposal of a leader ever comes in time, and everything else
//! in whatever order chance likes. Only the coin decides.
//!
//! ```text
//!   Propose ──► held until its view is over        everybody gives each view up, again and again
//!   all else ─► any order, any wait ──► timeouts, levels 1 and 2, completions, coin ──► decided
//! ```
//!
//! `QUINTET_ASYNCHRONY=2000 cargo test -p quintet-protocols asynchrony` runs that many seeds for
//! each number of replicas, 3, 5 and 7, and each way of the batches, instead of a few with 3 and 5.

use super::group::{Group, MS, assert_converged, small};
use crate::{
    racs::{Config, Dissemination, Message, Timer},
    random_runs::Random,
    sadl::Way,
};
use alloc::vec::Vec;
use quintet_replica::{BatchId, Durability};

/// That many batches must be decided …
const BATCHES: usize = 12;
/// … within that many steps for each replica. Chance needs a quarter of it, usually.
const STEPS: u64 = 60_000;

/// Seeds of an ordinary run.
const FEW: u64 = 4;

/// The result of one seed.
#[derive(Default)]
struct Count {
    views: u64,
    asynchronous: u64,
    elected: u64,
}

fn endless(members: u16, way: Way, seed: u64) -> Count {
    let mut random = Random::new(seed ^ u64::from(members) << 32);
    let mut group = Group::new(
        usize::from(members),
        Durability::Disk,
        Config {
            dissemination: Dissemination::Fixed(way),
            ..small()
        },
    );
    let mut asked: Vec<(u16, BatchId)> = Vec::new();
    let mut done = 0;
    for _ in 0..STEPS * u64::from(members) {
        while asked
            .get(done)
            .is_some_and(|(id, batch)| group.answered(*id, *batch))
        {
            done += 1;
        }
        if done == BATCHES {
            break;
        }
        let id = random.below(members.into()) as u16;
        let die = random.below(1000);
        if die < 20 && asked.len() < BATCHES {
            asked.push((id, group.write(id)));
        } else if die < 120 {
            let status = group.status(id);
            if status.role == "asynchronous" || status.role == "timed out" {
                group.clock.now = group.clock.now + MS * 10;
                for timer in [
                    Timer::Repeat,
                    Timer::Fetch,
                    Timer::Show,
                    Timer::FetchBatches,
                ] {
                    group.fire(id, timer);
                }
            } else {
                group.clock.now = group.clock.now + group.replica(id).timeout();
                group.fire(id, Timer::View);
            }
        } else {
            let waits = group.network.len() as u64;
            if waits == 0 {
                continue;
            }
            let index = random.below(waits) as usize;
            let packet = group.network.remove(index).expect("below its length");
            let to = packet.to.0;
            match packet.message() {
                Message::Propose { view, .. } if view >= group.status(to).view => {
                    group.network.push_back(packet);
                    continue;
                }
                _ => group.deliver(packet),
            }
            group.transfer(to);
            group.sync(to);
            group.idle(to);
            continue;
        }
        group.sync(id);
        group.idle(id);
    }
    assert_eq!(
        done, BATCHES,
        "{members} replicas, {way}, seed {seed}: it continues"
    );
    let count = Count {
        views: group.status(0).view,
        asynchronous: group.replica(0).timing.fallbacks(),
        elected: group.replica(0).timing.elected(),
    };
    group.network.clear();
    group.run(MS * 30_000);
    assert_converged(&group, BATCHES as u64);
    count
}

fn seeds() -> u64 {
    let asked = std::env::var("QUINTET_ASYNCHRONY").ok();
    asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(FEW)
}

#[test]
fn coin_alone_decides_all_that_is_asked_for() {
    let seeds = seeds();
    let (mut asynchronous, mut elected) = (0, 0);
    let most = if seeds > FEW { 7 } else { 5 };
    for members in (3..=most).step_by(2) {
        for way in [Way::Direct, Way::Sadl] {
            let mut all = Count::default();
            for seed in 0..seeds {
                let one = endless(members, way, seed);
                all.views += one.views;
                all.asynchronous += one.asynchronous;
                all.elected += one.elected;
            }
            std::println!(
                "{members} replicas, {way}: {seeds} seeds, {} views, {} asynchronous modes, {} \
                 elected a block at replica 0",
                all.views,
                all.asynchronous,
                all.elected
            );
            asynchronous += all.asynchronous;
            elected += all.elected;
        }
    }
    // Each elects with probability above one half; four seeds are few.
    assert!(
        elected * 5 > asynchronous * 2,
        "{elected} of {asynchronous}"
    );
}
