//! Bugs are switched on, and the random faults find them. Those that show only in what clients see
//! (stale reads) or that chance hardly reaches are the simulator's and the transcripts' to find.

use super::{group::mode, views};
use crate::{
    chora::{Chora, Config, Drive, Ended, Plant, Rounds},
    life::convicting,
};
use core::time::Duration;
use quintet_replica::{Durability, Options, ReplicaId, ReplicaSet, Slot, Time};

fn with(plant: Plant) -> Config {
    let mut config = mode(Drive::Responsive);
    config.set("plant", plant.name()).expect("its own name");
    config
}

/// What chance hardly reaches: the scripts of the tests beside this one end otherwise with the bug.
#[test]
fn scripts_convict_what_chance_hardly_reaches() {
    let group = views::acknowledged_before_the_view_changed(with(Plant::OldViewAckCounts));
    assert_eq!(group.replica(0).peers[1].acked(), Slot(1));
    let group = views::slept_through_views(with(Plant::InitBeforePrefix));
    let newest = group.replica(0).log.last_view();
    assert_eq!(newest, 3, "a stale log that passes for the newest");
    let group = views::restarted_with_a_cleared_suffix(with(Plant::GhostEntries));
    assert_eq!(group.replica(0).log.last(), Slot(2), "a log of nobody");
    let group = views::asked_for_a_vote(with(Plant::VoteNotDurable));
    assert_eq!(views::votes(&group), 1, "given and not written down");
    let group = views::asked_again_after_a_restart(with(Plant::PromiseForgotten));
    assert_eq!(views::votes(&group), 1, "a second vote in a view");
    let group = views::forgetful_and_asked(with(Plant::RecoverySkipped));
    assert_eq!(views::votes(&group), 1, "with a log that was lost");
    assert!(
        views::cut_off_and_read(with(Plant::ReadsUnordered)),
        "stale"
    );
    let mut rounds: Rounds<()> = Rounds::new(Duration::from_millis(1));
    rounds.plant_counts_messages();
    rounds.register(ReplicaSet(0b110));
    rounds.begin(Time(0));
    rounds.arrived(ReplicaId(1), ());
    rounds.arrived(ReplicaId(1), ());
    assert_eq!(rounds.check(Time(1)), Some(Ended::Early));
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
    let durability = |plant| match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    let found = convicting::<Chora, _>(&FOUND_HERE, 0..120, durability, |plant, config| {
        config.set("plant", plant.name()).expect("its own name");
    });
    std::println!("{found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
