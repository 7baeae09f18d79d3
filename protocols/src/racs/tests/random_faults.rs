//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use crate::{
    life::{Lives, Random, lives},
    racs::{Config, Racs},
};
use quintet_replica::Durability;

impl Lives for Racs {
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
    "coin elects nobody",
    "exit by another's certificate",
    "leadership handed off",
    "missing block asked for",
];

#[test]
fn nothing_acknowledged_is_lost_on_disk() {
    lives::<Racs>(100..260, Durability::Disk, &RARE);
}

#[test]
fn nothing_acknowledged_is_lost_in_memory() {
    lives::<Racs>(1000..1150, Durability::Memory, &RARE);
}
