//! Weaker rules, and the random faults that find them. Those that show only in what clients see
//! or after rarer accidents are the simulator's to find, with the option `plant`.

use crate::{
    life::convicting,
    racs::{Plant, Racs},
};
use quintet_replica::{Durability, Options};

/// Those that random groups find soon. The others are left to campaigns.
const FOUND_HERE: [Plant; 6] = [
    Plant::MinorityCommits,
    Plant::VoteNotDurable,
    Plant::PromiseForgotten,
    Plant::LeaderGoesOn,
    Plant::RecoverySkipped,
    Plant::CoinDiffers,
];

#[test]
fn weaker_rules_that_break_agreement_are_found() {
    let durability = |plant| match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    let found = convicting::<Racs, _>(&FOUND_HERE, 0..40, durability, |plant, config| {
        config.set("plant", plant.name()).expect("its own name");
    });
    std::println!("{found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
