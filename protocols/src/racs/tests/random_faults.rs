//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use crate::{
    racs::{Config, Racs},
    random_runs::{Random, RandomRun, random_runs, random_runs_with},
};
use core::ops::Range;
use quintet_replica::{Durability, Options};

impl RandomRun for Racs {
    fn draw(random: &mut Random, _: u64) -> Config {
        Config {
            batch_bytes_max: 256 << random.below(4),
            window: 1 + random.below(8) as usize,
            log_memory_bytes: 4096 << random.below(4),
            ..Config::default()
        }
    }
}

const RARE: [&str; 6] = [
    "another level 1 taken over",
    "asynchronous mode",
    "coin elects no replica",
    "exit by another's certificate",
    "leadership handed off",
    "missing block asked for",
];

/// Batches go out before they are ordered, and blocks name them.
fn disseminated(seeds: Range<u64>, durability: Durability) {
    let mut rare = RARE.to_vec();
    rare.extend(["batches fetched", "batches go to another quorum"]);
    random_runs_with::<Racs>(seeds, durability, &rare, |seed, config| {
        config.set("dissemination", "sadl").expect("an option");
        config.sadl_window = 1 + seed % 7;
        let spread = if seed % 3 == 0 { "majority" } else { "all" };
        config.set("sadl_spread", spread).expect("an option");
    });
}

#[test]
fn acknowledged_writes_survive_on_disk() {
    random_runs::<Racs>(100..260, Durability::Disk, &RARE);
}

#[test]
fn acknowledged_writes_survive_in_memory() {
    random_runs::<Racs>(1000..1150, Durability::Memory, &RARE);
}

#[test]
fn acknowledged_writes_survive_on_disk_with_dissemination() {
    disseminated(2000..2100, Durability::Disk);
}

#[test]
fn acknowledged_writes_survive_in_memory_with_dissemination() {
    disseminated(3000..3100, Durability::Memory);
}
