//! Bugs are switched on, and the random faults find them. Those that show only in what clients see
//! (stale reads) or that chance hardly reaches are the simulator's and the transcripts' to find.

use super::random_faults::life;
use crate::chora::{Config, Plant};
use quintet_replica::{Durability, Options};
use std::panic;

fn found(plant: Plant) -> Option<u64> {
    let durability = match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    (0..1500).find(|seed| {
        let planted = |config: &mut Config| {
            config.set("plant", plant.name()).expect("its own name");
        };
        panic::catch_unwind(|| life(*seed, durability, planted)).is_err()
    })
}

const FOUND_HERE: [Plant; 6] = [
    Plant::MinorityCommits,
    Plant::SlotReused,
    Plant::QuorumShrinks,
    Plant::AckNotDurable,
    Plant::SkipOverProposed,
    Plant::OldLogElected,
];

#[test]
fn planted_bugs_that_break_agreement_are_found() {
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let found: alloc::vec::Vec<_> = FOUND_HERE
        .iter()
        .map(|plant| (*plant, found(*plant)))
        .collect();
    panic::set_hook(quiet);
    std::println!("{found:?}");
    let missed = found.iter().filter(|(_, seed)| seed.is_none());
    assert_eq!(missed.count(), 0, "not found: {found:?}");
}
