//! Weaker rules, and the random faults that find them. Those that show only in what clients see
//! or after rarer accidents are the simulator's to find, with the option `plant`.

use super::random_faults::life;
use crate::racs::{Config, Plant};
use quintet_replica::{Durability, Options};
use std::panic;

fn found(plant: Plant) -> Option<u64> {
    let durability = match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    (0..4000).find(|seed| {
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
    let missed: alloc::vec::Vec<_> = Plant::ALL
        .iter()
        .map(|plant| (*plant, found(*plant)))
        .inspect(|found| std::println!("{found:?}"))
        .filter(|(_, found)| found.is_none())
        .collect();
    panic::set_hook(quiet);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
