//! A protocol outside of this repository has the conformance kit at hand, and the swarm of the
//! simulator, over an entry of its own.

use quintet_outside_protocol::Toy;
use quintet_replica::{Durability, Entry};
use quintet_simulator::{
    Campaign, Service,
    conformance::{Played, SCENARIOS},
    run_entry,
};

/// The scenarios whose name contains one of these: nothing that the toy is not
/// made for, as a change of its leader, or memory durability.
const PLAYED: [&str; 2] = ["duplicates", "linearizable_reads"];

#[test]
fn toy_passes_scenarios_of_the_kit() {
    let entry = Entry::of::<Toy>();
    let chosen = SCENARIOS.iter().filter(|scenario| {
        let mut played = PLAYED.iter();
        played.any(|name| scenario.name.contains(name))
    });
    let mut passed = 0;
    for scenario in chosen {
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
    assert!(passed > 0);
}

fn campaign(plant: &str) -> Campaign {
    Campaign {
        protocol: "toy".to_owned(),
        replicas: 3,
        seeds: 0..20,
        faults: "network,crash,clock".parse().expect("faults"),
        durability: Some(Durability::Disk),
        options: vec![("plant".to_owned(), plant.to_owned())],
        machine: Some(Service::Registers),
        ..Campaign::default()
    }
}

#[test]
fn toy_passes_the_swarm_and_broken_one_does_not() {
    let run = |plant| run_entry(&campaign(plant), Entry::of::<Toy>(), &mut |_| ());
    let report = run("none");
    assert_eq!(
        (report.violations, report.stalls),
        (0, 0),
        "{:?}",
        report.failures
    );
    assert!(report.counted > 0);
    assert!(run("early_answer").violations > 0);
}
