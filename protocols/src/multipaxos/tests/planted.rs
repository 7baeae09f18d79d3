//! Old bugs come back, and the random faults find them. Those that show only in what clients see
//! (stale reads) or after rarer accidents are the simulator's to find, with the option `plant`.

use crate::{
    life::convicting,
    multipaxos::{MultiPaxos, Plant},
};
use quintet_replica::{Durability, Options};

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
    let durability = |plant| match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    let found = convicting::<MultiPaxos, _>(&FOUND_HERE, 0..3000, durability, |plant, config| {
        config.set("plant", plant.name()).expect("its own name");
    });
    std::println!("{found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
