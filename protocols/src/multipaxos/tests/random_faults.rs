//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use crate::{
    multipaxos::{Config, MultiPaxos},
    random_runs::{Random, RandomRun, random_runs},
};
use quintet_replica::Durability;

impl RandomRun for MultiPaxos {
    fn draw(random: &mut Random, _: u64) -> Config {
        Config {
            batch_bytes_max: 256 << random.below(4),
            window: 1 + random.below(8) as usize,
            log_memory_bytes: 4096 << random.below(4),
            pre_vote: random.below(4) > 0,
            ..Config::default()
        }
    }
}

const RARE: [&str; 3] = [
    "election won",
    "proposals sent again",
    "leadership handed off",
];

#[test]
fn acknowledged_writes_survive_on_disk() {
    random_runs::<MultiPaxos>(0..150, Durability::Disk, &RARE);
}

#[test]
fn acknowledged_writes_survive_in_memory() {
    random_runs::<MultiPaxos>(1000..1150, Durability::Memory, &RARE);
}
