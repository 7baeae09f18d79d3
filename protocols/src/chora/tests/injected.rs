//! Bugs are switched on, and the random faults find them. Those that show only in what clients see
//! (stale reads) or that chance hardly reaches are the simulator's and the transcripts' to find.

use super::{group::mode, views};
use crate::{
    chora::{Bug, Chora, Config, Drive, Ended, Rounds},
    random_runs::detecting,
};
use core::time::Duration;
use quintet_replica::{Durability, Options, ReplicaId, ReplicaSet, Slot, Time};

fn with(bug: Bug) -> Config {
    let mut config = mode(Drive::Responsive);
    config.set("bug", bug.name()).expect("its own name");
    config
}

/// Bugs that random runs hardly reach: the scripts of the tests beside this one end otherwise with
/// the bug.
#[test]
fn scripts_detect_bugs_that_random_runs_rarely_reach() {
    let group = views::acknowledged_before_the_view_changed(with(Bug::OldViewAckCounts));
    assert_eq!(group.replica(0).peers[1].acked(), Slot(1));
    let group = views::slept_through_views(with(Bug::InitBeforePrefix));
    let newest = group.replica(0).log.last_view();
    assert_eq!(newest, 3, "a stale log that passes for the newest");
    let group = views::restarted_with_a_cleared_suffix(with(Bug::GhostEntries));
    assert_eq!(group.replica(0).log.last(), Slot(2), "an unused log");
    let group = views::asked_for_a_vote(with(Bug::VoteNotDurable));
    assert_eq!(views::votes(&group), 1, "given and not written down");
    let group = views::asked_again_after_a_restart(with(Bug::PromiseLost));
    assert_eq!(views::votes(&group), 1, "a second vote in a view");
    let group = views::asked_without_state(with(Bug::RecoverySkipped));
    assert_eq!(views::votes(&group), 1, "with a log that was lost");
    assert!(views::cut_off_and_read(with(Bug::ReadsUnordered)), "stale");
    let mut rounds: Rounds<()> = Rounds::new(Duration::from_millis(1));
    rounds.bug_counts_messages();
    rounds.register(ReplicaSet(0b110));
    rounds.begin(Time(0));
    rounds.arrived(ReplicaId(1), ());
    rounds.arrived(ReplicaId(1), ());
    assert_eq!(rounds.check(Time(1)), Some(Ended::Early));
}

const FOUND_HERE: [Bug; 6] = [
    Bug::MinorityCommits,
    Bug::SlotReused,
    Bug::QuorumShrinks,
    Bug::AckNotDurable,
    Bug::SkipOverProposed,
    Bug::OldLogElected,
];

#[test]
fn injected_bugs_that_break_agreement_are_found() {
    let durability = |bug| match bug {
        Bug::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    let found = detecting::<Chora, _>(&FOUND_HERE, 0..120, durability, |bug, config| {
        config.set("bug", bug.name()).expect("its own name");
    });
    std::println!("{found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}
