//! Weaker rules, and the random faults that find them. Those that show only in what clients see
//! or after rarer accidents are the simulator's to find, with the option `plant`.

use super::random_faults::life;
use crate::racs::{Config, Plant};
use quintet_replica::{Durability, Options};
use std::panic;

/// Those that random groups find soon, and about where. The others are left to campaigns.
const FOUND: &[(Plant, Durability, u64)] = &[
    (Plant::MinorityCommits, Durability::Disk, 0),
    (Plant::VoteNotDurable, Durability::Disk, 0),
    (Plant::PromiseForgotten, Durability::Disk, 0),
    (Plant::LeaderGoesOn, Durability::Disk, 0),
    (Plant::RecoverySkipped, Durability::Memory, 0),
    (Plant::CoinDiffers, Durability::Disk, 0),
];

/// From where it was found on, so many groups are played.
const SEEDS: u64 = 40;

fn found(plant: Plant, durability: Durability, first: u64) -> Option<u64> {
    (first..first + SEEDS).find(|seed| {
        let planted = |config: &mut Config| {
            config.set("plant", plant.name()).expect("its own name");
        };
        panic::catch_unwind(|| life(*seed, durability, planted)).is_err()
    })
}

#[test]
fn weaker_rules_that_break_agreement_are_found() {
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let missed: alloc::vec::Vec<_> = FOUND
        .iter()
        .map(|(plant, durability, first)| (*plant, found(*plant, *durability, *first)))
        .inspect(|found| std::println!("{found:?}"))
        .filter(|(_, found)| found.is_none())
        .collect();
    panic::set_hook(quiet);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
