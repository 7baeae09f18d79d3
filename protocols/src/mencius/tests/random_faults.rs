//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use crate::{
    mencius::{Config, Mencius},
    random_runs::{Random, RandomRun, random_runs},
};
use alloc::{format, string::String};
use quintet_replica::Durability;

impl RandomRun for Mencius {
    const BYPASSES_SLOW: bool = true;

    fn draw(random: &mut Random, _members: u64) -> Config {
        Config {
            window: 1 + random.below(8) as usize,
            batch_bytes_max: 256 << random.below(4),
            log_memory_bytes: 4096 << random.below(4),
            ..Config::default()
        }
    }

    fn describe(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} fetching {:?} recovering {}",
            self.log,
            self.own,
            self.leases,
            self.revocations,
            self.fetching.asked(),
            self.recovery.is_some(),
        )
    }
}

#[test]
fn acknowledged_writes_survive_on_disk() {
    // In seed 59 a member behind a cut whose slots are revoked suggested slot after slot for a read.
    let rare = [
        "own slots were revoked",
        "slots revoked",
        "slow member forwards its requests",
        "suggestions sent again",
    ];
    random_runs::<Mencius>(0..100, Durability::Disk, &rare);
}

#[test]
fn acknowledged_writes_survive_in_memory() {
    random_runs::<Mencius>(1000..1100, Durability::Memory, &["recovered"]);
}
