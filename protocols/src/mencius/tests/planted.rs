//! Bugs that chance hardly reaches: the cases by hand beside this file end otherwise with them.

use super::groups;
use crate::mencius::{Config, plant::Plant};
use quintet_replica::Options;

fn with(plant: Plant) -> Config {
    let mut config = Config::default();
    config.set("plant", plant.name()).expect("its own name");
    config
}

#[test]
fn scripts_convict_what_chance_hardly_reaches() {
    assert!(
        groups::counted_with_a_lost_vote(with(Plant::OldLifeCounts)),
        "decided by a vote that its giver knows nothing of"
    );
    let (before, after) = groups::suggested_before_and_after_a_restart(with(Plant::SlotReused));
    assert_eq!(before, after, "two suggestions for one slot");
}
