//! Injected bugs that ordinary seeds do not reach, each with the campaign that finds it: one of its
//! first seeds does, and is clean without it. Which one moves with every new draw.

use crate::{Campaign, run};
use std::ops::Range;

/// Asks seeds with the bug until one finds it, and that one without; gives what it finds.
fn found_by(protocol: &str, bug: &str, seeds: Range<u64>) -> String {
    let specs = crate::bugs(protocol).unwrap();
    let (_, spec) = specs.iter().find(|(_, spec)| spec.name == bug).unwrap();
    let mut campaign = Campaign {
        protocol: protocol.to_owned(),
        bug: Some(bug.to_owned()),
        ..Campaign::default()
    };
    let words: Vec<&str> = spec.campaign.split_whitespace().collect();
    for pair in words.chunks(2) {
        match *pair {
            ["--replicas", replicas] => campaign.replicas = replicas.parse().unwrap(),
            ["--faults", faults] => campaign.faults = faults.parse().unwrap(),
            ["--machine", name] => campaign.machine = Some(name.parse().unwrap()),
            ["--durability", name] => campaign.durability = Some(name.parse().unwrap()),
            ["--set", option] => {
                let (name, value) = option.split_once('=').unwrap();
                campaign.options.push((name.to_owned(), value.to_owned()));
            }
            _ => panic!("a campaign has {pair:?}"),
        }
    }
    let what = seeds.into_iter().find_map(|seed| {
        campaign.seeds = seed..seed + 1;
        let report = run(&campaign, |_| ()).unwrap();
        let story = report.failures.first()?;
        println!("{bug} found: {}", story.replay);
        Some(story.what.clone())
    });
    let what = what.expect("a seed finds the bug");
    campaign.bug = None;
    let sound = run(&campaign, |_| ()).unwrap();
    assert!(sound.is_clean(), "{:?}", sound.failures);
    what
}

/// Votes wait for their disks until a second leader stands, and are shown although they must not.
#[test]
fn vote_shown_after_suspicion_is_found_by_held_syncs() {
    let what = found_by("derecho", "echo_after_suspicion", 0..120);
    assert!(what.contains("two views of one number"), "{what}");
}

/// Views that follow each other all the time: one has two memberships.
#[test]
fn recomputed_trim_is_found_by_a_storm_of_view_changes() {
    let what = found_by("derecho", "trim_recomputed", 0..120);
    assert!(what.contains("two views of one number"), "{what}");
}

/// A leader answers a client at once, by deadlines that all hold, and crashes before any other
/// replica hears where it put that command: behind one with a higher deadline.
#[test]
fn orphaned_leaders_detect_survivor_dropped_for_deadline() {
    let what = found_by("nezha", "survivors_by_sync_point_deadline", 0..120);
    let lost = what.contains("nowhere executed") || what.contains("no order explains");
    assert!(lost, "{what}");
}

/// A command that was executed in one epoch runs again in the next when its client repeats it.
#[test]
fn end_of_sessions_with_their_epoch_is_found_by_epochs() {
    let what = found_by("multipaxos", "sessions_end_with_the_epoch", 0..120);
    assert!(what.contains("exactly_once"), "{what}");
}

/// The checker needs no crash to see it.
#[test]
fn epoch_that_begins_before_it_is_durable_is_found_by_epochs() {
    let what = found_by("multipaxos", "begins_before_it_is_durable", 200..260);
    assert!(what.starts_with("base held"), "{what}");
}

/// A protocol that starts again takes what it is allowed the first time only.
#[test]
fn first_boot_told_twice_is_found_by_epochs() {
    let what = found_by("racs", "first_boot_again", 0..120);
    assert!(!what.is_empty());
}

/// Bugs of changes of the cluster, each found by one of the first seeds in which it changes.
#[test]
fn bugs_of_epochs_and_members_are_found_by_epochs() {
    for bug in [
        "feed_skips_a_batch",
        "rows_of_the_old_epoch",
        "begins_without_the_state",
        "late_seal_counts",
        "requests_in_flight_are_dropped",
        "writes_count_from_zero",
    ] {
        let what = found_by("multipaxos", bug, 0..120);
        assert!(!what.is_empty(), "{bug}");
    }
}
