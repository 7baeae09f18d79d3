//! Old bugs come back, and the random faults find them. Those that show only in what clients see
//! (stale reads) or after rarer accidents are the simulator's to find, with the option `plant`.

use super::random_faults::life;
use crate::multipaxos::{Config, Plant};
use quintet_replica::{Durability, Options};
use std::panic;

fn found(plant: Plant) -> Option<u64> {
    let durability = match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    (0..3000).find(|seed| {
        let planted = |config: &mut Config| {
            config.set("plant", plant.name()).expect("its own name");
        };
        panic::catch_unwind(|| life(*seed, durability, planted)).is_err()
    })
}

const FOUND_HERE: [Plant; 6] = [
    Plant::MinorityCommits,
    Plant::LowestBallotWins,
    Plant::HeldSurvivesBallot,
    Plant::BallotReused,
    Plant::RecoverySkipped,
    Plant::VoteNotDurable,
];

#[test]
fn planted_bugs_that_break_agreement_are_found() {
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let missed: alloc::vec::Vec<_> = FOUND_HERE
        .iter()
        .filter(|plant| found(**plant).is_none())
        .collect();
    panic::set_hook(quiet);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
