//! Bugs that chance hardly reaches: the cases by hand beside this file end otherwise with them.

use super::groups;
use crate::mencius::{Config, bug::Bug};
use quintet_replica::Options;

fn with(bug: Bug) -> Config {
    let mut config = Config::default();
    config.set("bug", bug.name()).expect("its own name");
    config
}

#[test]
fn scripts_detect_bugs_that_random_runs_rarely_reach() {
    assert!(
        groups::counted_with_a_lost_vote(with(Bug::OldIncarnationCounts)),
        "decided by a vote that its giver knows nothing of"
    );
    let (before, after) = groups::suggested_before_and_after_a_restart(with(Bug::SlotReused));
    assert_eq!(before, after, "two suggestions for one slot");
}
