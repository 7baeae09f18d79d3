//! A protocol outside of this repository has the conformance kit at hand, and the swarm of the
//! simulator, over an entry of its own.

use quintet_outside_protocol::{Toy, sequencer::Sequencer};
use quintet_replica::{Durability, Entry};
use quintet_simulator::{
    Campaign, CampaignReport, Service,
    conformance::{Played, SCENARIOS},
    run_entry,
};

/// Plays the scenarios whose name contains one of these in disk durability, the only one that the
/// protocols of this crate are made for.
fn passes(entry: Entry, chosen: &[&str]) {
    for name in chosen {
        let mut passed = 0;
        for scenario in SCENARIOS.iter().filter(|it| it.name.contains(name)) {
            for performance in scenario.play(entry, &[], &[]) {
                println!(
                    "{}, {}: {:?}",
                    scenario.name, performance.setting, performance.played
                );
                if performance.setting.ends_with("disk") {
                    assert_eq!(performance.played, Played::Passed, "{}", scenario.name);
                    passed += 1;
                }
            }
        }
        assert!(passed > 0, "{name} was played");
    }
}

#[test]
fn toy_passes_scenarios_of_the_kit() {
    passes(Entry::of::<Toy>(), &["duplicates", "linearizable_reads"]);
}

#[test]
fn sequencer_passes_scenarios_of_the_kit() {
    passes(
        Entry::of::<Sequencer>(),
        &[
            "duplicates",
            "linearizable_reads",
            "lagging_replica_past_a_trimmed_log",
            "snapshot_under_load",
            "total_restart_from_disk",
        ],
    );
}

fn campaign(protocol: &str, (option, value): (&str, &str)) -> Campaign {
    Campaign {
        protocol: protocol.to_owned(),
        replicas: 3,
        seeds: 0..20,
        faults: "network,crash,clock".parse().expect("faults"),
        durability: Some(Durability::Disk),
        options: vec![(option.to_owned(), value.to_owned())],
        machine: Some(Service::Registers),
        ..Campaign::default()
    }
}

fn run(entry: Entry, option: (&str, &str)) -> CampaignReport {
    run_entry(&campaign(entry.info.name, option), entry, &mut |_| ())
}

fn is_clean(report: &CampaignReport) {
    let failures = &report.failures;
    assert_eq!((report.violations, report.stalls), (0, 0), "{failures:?}");
    assert!(report.counted > 0);
}

#[test]
fn toy_passes_the_swarm_and_broken_one_does_not() {
    let entry = Entry::of::<Toy>();
    is_clean(&run(entry, ("bug", "none")));
    assert!(run(entry, ("bug", "early_answer")).violations > 0);
}

#[test]
fn sequencer_passes_the_swarm_and_its_stale_reads_do_not() {
    let entry = Entry::of::<Sequencer>();
    let report = run(entry, ("stale_reads", "false"));
    is_clean(&report);
    assert!(
        report.branches.contains_key("state installed"),
        "{report:?}"
    );
    assert!(run(entry, ("stale_reads", "true")).violations > 0);
}
