//! Tests of the rig: what is right passes, every kind of wrong is caught, one seed is one world.

mod configuration;
#[cfg(feature = "bugs")]
mod found;
mod hung_disk;

use crate::{
    Campaign, CampaignReport, FaultSet, Service,
    bugs::APPLIED_TWICE,
    campaign::{OPERATIONS_DEFAULT, run_entry},
};
use quintet_outside_protocol::Toy;
use quintet_replica::{Durability, Entry};
use std::ops::Range;

fn toy(seeds: Range<u64>, faults: &str, bug: &str) -> Campaign {
    Campaign {
        protocol: String::from("toy"),
        replicas: 3,
        seeds,
        faults: faults.parse().unwrap(),
        durability: Some(Durability::Disk),
        options: vec![(String::from("bug"), bug.to_string())],
        operations: OPERATIONS_DEFAULT,
        machine: Some(Service::Registers),
        ..Campaign::default()
    }
}

fn verdict(campaign: &Campaign) -> CampaignReport {
    run_entry(campaign, Entry::of::<Toy>(), &mut |_| ())
}

/// Runs seeds until one fails; gives the story and how many seeds it took.
fn first_failure(faults: &str, bug: &str, seeds_max: u64) -> (u64, String) {
    for seed in 0..seeds_max {
        let report = verdict(&toy(seed..seed + 1, faults, bug));
        if let Some(story) = report.failures.first() {
            println!("{bug} found by seed {seed}: {}", story.what);
            return (seed, story.what.clone());
        }
    }
    panic!("{bug} was not found by {seeds_max} seeds");
}

fn is_found_by(faults: &str, bug: &str, properties: &[&str]) {
    let (_, what) = first_failure(faults, bug, 150);
    let expected = properties.iter().any(|property| what.starts_with(property));
    assert!(expected, "{bug} was found as {what}");
}

#[test]
fn bound_on_time_holds_unless_a_time_is_set() {
    let usual = |name: &str| {
        let mut setup = toy(0..1, "all", "none").setup(Entry::of::<Toy>(), 0, false);
        setup.options = vec![(name.to_string(), String::from("1"))];
        setup.has_usual_times()
    };
    assert!(usual("log_memory_bytes") && usual("proposers") && usual("bug"));
    assert!(!usual("suspect_timeout_ms") && !usual("round_us"));
}

#[test]
fn successor_crashes_without_leader() {
    let campaign = Campaign {
        protocol: String::from("mencius"),
        seeds: 0..12,
        faults: "crash".parse().unwrap(),
        ..Campaign::default()
    };
    let report = crate::run(&campaign, |_| ()).unwrap();
    assert!(report.is_clean(), "{:?}", report.failures);
    assert!(report.faults.contains_key("crash_new_leader"));
}

#[test]
fn sound_toy_passes_under_every_kind_of_fault() {
    for faults in ["none", "network", "crash", "disk", "clock", "all"] {
        let report = verdict(&toy(0..25, faults, "none"));
        assert!(report.is_clean(), "{faults}: {:?}", report.failures);
        // The toy neither votes nor changes its leader nor takes snapshots.
        let cannot = |reason: &str| {
            [
                "crash_voter",
                "crash_new_leader",
                "crash_in_",
                "rot_snapshot",
            ]
            .iter()
            .any(|kind| reason.starts_with(kind))
        };
        let rejected: u64 = (report.rejections.iter())
            .filter(|(reason, _)| !cannot(reason))
            .map(|(_, count)| count)
            .sum();
        let most = report.seeds.div_ceil(5);
        assert!(rejected <= most, "{faults}: {:?}", report.rejections);
        assert!(report.acknowledged > 100 * report.counted);
    }
}

#[test]
fn sound_toy_replicates_the_store() {
    let campaign = Campaign {
        machine: Some(Service::Store),
        ..toy(0..12, "all", "none")
    };
    let report = verdict(&campaign);
    assert!(report.is_clean(), "{:?}", report.failures);
    for branch in [
        "client: transaction",
        "client: transaction on watched keys",
        "client: transaction undone, watched key changed",
        "client: several keys at once",
        "client: deadline set",
        "client: deadline changed",
        "client: list changed",
        "client: hash changed",
        "client: wrong type",
        "client: ordered read",
        "client: read at a follower",
        "client: session renewed",
        "client: session ended",
        "client: pipeline",
    ] {
        assert!(report.branches.contains_key(branch), "{branch}");
    }
}

#[test]
fn two_runs_of_a_seed_are_one_world() {
    let one = verdict(&toy(5..15, "all", "none"));
    assert_eq!(one, verdict(&toy(5..15, "all", "none")));
    assert_ne!(
        one.trace_hash,
        verdict(&toy(6..16, "all", "none")).trace_hash
    );
}

#[test]
fn answering_before_anything_is_durable_is_found() {
    is_found_by(
        "crash",
        "early_answer",
        &[
            "held",
            "agreement",
            "durable",
            "linearizability",
            "monotone",
        ],
    );
}

#[test]
fn acknowledging_before_the_copy_is_durable_is_found() {
    is_found_by(
        "crash",
        "early_ack",
        &["held", "agreement", "durable", "linearizability", "panic"],
    );
}

#[test]
fn stale_read_is_found() {
    is_found_by("network", "stale_read", &["linearizability"]);
}

#[test]
fn batch_left_out_is_found() {
    is_found_by("none", "leaves_out", &["agreement", "state_hash"]);
}

#[test]
fn time_of_ones_own_is_found() {
    is_found_by("none", "own_time", &["agreement"]);
}

#[test]
fn executed_busy_reply_is_detected() {
    // Some seeds end before that, as a stall: followers call the last reads busy, too.
    let found = (0..150).any(|seed| {
        let report = verdict(&toy(seed..seed + 1, "network", "busy_yet_forwards"));
        let detects = |property: &str| {
            let mut stories = report.failures.iter();
            stories.any(|story| story.what.starts_with(property))
        };
        detects("exactly_once") || detects("linearizability")
    });
    assert!(found);
}

#[test]
fn promise_not_read_back_is_found() {
    is_found_by("crash", "forgets_promise", &["monotone"]);
}

#[test]
fn cluster_that_stops_is_a_stall() {
    let (_, what) = first_failure("none", "stalls", 1);
    assert!(
        what.contains("acknowledged no new command in 5s") && what.contains("committed s100"),
        "{what}"
    );
}

#[test]
fn panic_is_a_violation_with_the_command_that_replays_it() {
    let report = verdict(&toy(3..5, "none", "panics"));
    assert_eq!((report.violations, report.counted), (2, 0));
    let story = report.first_violation.unwrap();
    assert!(
        story.what.contains("the fiftieth slot is too much"),
        "{}",
        story.what
    );
    assert_eq!(
        story.replay,
        "quintet simulate --protocol toy --replicas 3 --seeds 3..4 --faults none \
         --durability disk --machine registers --set bug=panics"
    );
}

#[test]
fn retry_under_a_new_session_is_found_to_execute_twice() {
    let found = (0..150).any(|seed| {
        let campaign = Campaign {
            bug: Some(String::from("retry_under_new_session")),
            ..toy(seed..seed + 1, "network,crash", "none")
        };
        verdict(&campaign)
            .failures
            .iter()
            .any(|story| story.what.starts_with("exactly_once"))
    });
    assert!(found);
}

/// One replica's state differs, and only the digests that replicas compare can show it.
#[test]
fn digests_find_a_state_that_differs_in_silence() {
    for protocol in quintet_protocols::PROTOCOLS {
        let name = protocol.info.name;
        let found = (0..20).find_map(|seed| {
            let campaign = Campaign {
                protocol: name.to_owned(),
                bug: Some(APPLIED_TWICE.to_owned()),
                seeds: seed..seed + 1,
                ..Campaign::default()
            };
            let report = crate::run(&campaign, |_| ()).unwrap();
            // When that replica leads, clients may see the difference before digests are compared.
            let found = report.failures.iter();
            let mut found = found.filter(|story| story.what.starts_with("digests"));
            Some((seed, found.next()?.what.clone()))
        });
        let (seed, what) = found.unwrap_or_else(|| panic!("{name}: no seed found it"));
        println!("{name}: seed {seed}: {what}");
    }
}

#[test]
fn canary_dies_in_every_seed() {
    let campaign = Campaign {
        bug: Some(String::from("canary")),
        ..toy(0..5, "all", "none")
    };
    assert_eq!(verdict(&campaign).violations, 5);
}

#[test]
fn names_and_numbers_are_checked_before_anything_runs() {
    let wrong = Campaign {
        protocol: String::from("multipaxoss"),
        ..Campaign::default()
    };
    assert!(
        wrong
            .check()
            .unwrap_err()
            .to_string()
            .contains("'multipaxos'")
    );
    let none = Campaign {
        replicas: 0,
        ..Campaign::default()
    };
    assert!(none.check().is_err());
    let option = Campaign {
        options: vec![(String::from("no_such"), String::from("1"))],
        ..Campaign::default()
    };
    assert!(option.check().unwrap_err().to_string().contains("no_such"));
}

#[test]
fn multipaxos_survives_a_few_seeds_of_everything() {
    for (replicas, durability) in [(3, Durability::Disk), (5, Durability::Memory)] {
        let campaign = Campaign {
            replicas,
            seeds: 0..15,
            faults: FaultSet::ALL,
            durability: Some(durability),
            ..Campaign::default()
        };
        let report = crate::run(&campaign, |_| ()).unwrap();
        assert!(report.is_clean(), "{:?}", report.failures);
    }
}

/// Members are suspected so soon that views follow each other all the time, often sooner than they
/// are installed everywhere. Where links are slower than that, the protocol promises no progress.
#[test]
fn storm_of_view_changes_breaks_nothing() {
    let storm = |replicas, seeds| {
        let options = [
            ("heartbeat_ms", "8"),
            ("suspect_timeout_ms", "25"),
            ("restart_timeout_ms", "150"),
        ];
        let campaign = Campaign {
            protocol: "derecho".to_owned(),
            replicas,
            seeds,
            options: (options.map(|(name, value)| (name.to_owned(), value.to_owned()))).to_vec(),
            ..Campaign::default()
        };
        crate::run(&campaign, |_| ()).unwrap()
    };
    let report = storm(5, 0..30);
    assert_eq!(report.violations, 0, "{:?}", report.failures);
    assert!(report.branches["view installed"] > 1000);
    // A vote for an end that its voter alone held; then it lost what it held, and not the vote.
    let report = storm(3, 190_300_663..190_300_664);
    assert!(report.is_clean(), "{:?}", report.failures);
    // One that lost its state heard only others that had, and took what they had told it for the
    // last view although they knew a newer one.
    let report = storm(5, 230_501_352..230_501_353);
    assert!(report.is_clean(), "{:?}", report.failures);
}

#[test]
fn coin_continues_without_synchrony_and_leader_does_not() {
    let asynchronous = |protocol: &str, seeds, options: [(&str, &str); 2]| {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let campaign = Campaign {
            protocol: protocol.to_owned(),
            replicas: 5,
            seeds,
            faults: "asynchrony".parse().unwrap(),
            options: options.map(owned).to_vec(),
            ..Campaign::default()
        };
        crate::run(&campaign, |_| ()).unwrap()
    };
    let options = [("view_timeout_ms", "10"), ("heartbeat_ms", "3")];
    let coin = asynchronous("racs", 0..10, options);
    assert!(coin.is_clean(), "{:?}", coin.failures);
    // No round trip is shorter than the timeout: every view ends by the coin.
    assert!(coin.branches["coin elects a block"] > 1_000);
    let options = [("election_timeout_ms", "20"), ("heartbeat_ms", "5")];
    let leader = asynchronous("multipaxos", 2..3, options);
    assert_eq!((leader.stalls, leader.violations), (1, 0));
}

#[test]
fn seeds_that_showed_something_are_clean() {
    let multipaxos = [
        // A journal begun again, closed before its first write, lost what followed with its marks.
        (3, 2_000_102),
        // Two replicas waited for the state of a third that was gone, and neither stood.
        (3, 2_000_980),
        // The rig took a half-written snapshot for one of the same name that was finished before.
        (5, 2_100_727),
        // A journal begun again on a snapshot that was damaged later: an older one stood in for it,
        // and the log between the two was gone. Found four times.
        (3, 30_000_964),
        (3, 30_003_369),
        (3, 30_014_146),
        (5, 50_014_275),
        // Two crashes before the first record: the second segment was taken for what is left of a
        // journal whose beginning is lost.
        (3, 30_017_845),
        // A clock ran ahead of the leader's: one empty batch after the other, to no end.
        (5, 50_007_259),
        // The rig asked a replica that was down, which was never answered; and it injected faults
        // into a healed core.
        (3, 30_007_067),
        (5, 50_002_454),
        // A follower waited for a state that only lost replicas had, while the others waited for it.
        (5, 730),
        // One that lost its state waited for the leader of a ballot whose owner had died as a
        // candidate.
        (7, 75_002_832),
        // A snapshot was durable before the log was that led to it; the sync failed, the log
        // continued behind the snapshot, and that was damaged later.
        (5, 55_007_027),
        // The rig no longer knew that a snapshot was a peer's when it was taken again at the same
        // slot.
        (5, 55_005_485),
        // Dozens of large snapshots in pieces of 64 bytes used up the events of the seed.
        (7, 77_001_025),
        // A donor that died behind its state was asked for nine seconds what follows it.
        (5, 96_700_000_105),
        // The rig asked the first epoch's protocol who could continue without what a later one's
        // smaller view had acknowledged.
        (5, 96_679_836_152),
    ];
    // A view counted on a replica that needed a state, and on the next one again.
    let chora = [(3, 96_592_989_483)];
    let derecho = [
        // A view that one member had installed was told as agreed, and lost with it.
        (3, 162_300_917),
        // And one that a majority had accepted the next view in, but one alone was at work in.
        (5, 165_500_019),
        // One that had lost its state was asked for what it had accepted, and gave none of it.
        (7, 162_701_005),
    ];
    let ended = [
        // The first one in an epoch was lost, and another one that had the end waited for a majority.
        ("chora", (3, 19)),
        // One that had lost the state told a member that it was replaced, who alone had it.
        ("mencius", (3, 41)),
        // Those that took part in one epoch's protocol were taken for a view of another's.
        ("derecho", (5, 20)),
    ];
    let seeds = (multipaxos
        .map(|seed| ("multipaxos", "all", seed))
        .into_iter())
    .chain(chora.map(|seed| ("chora", "all", seed)))
    .chain(derecho.map(|seed| ("derecho", "all", seed)))
    .chain(ended.map(|(protocol, seed)| (protocol, "all,ended", seed)));
    for (protocol, faults, (replicas, seed)) in seeds {
        let campaign = Campaign {
            protocol: protocol.to_owned(),
            replicas,
            seeds: seed..seed + 1,
            faults: faults.parse().unwrap(),
            ..Campaign::default()
        };
        let report = crate::run(&campaign, |_| ()).unwrap();
        assert!(report.is_clean(), "{:?}", report.failures);
    }
}
