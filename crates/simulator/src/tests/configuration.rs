//! One replica that is configured otherwise than the others.

use crate::{Campaign, CampaignReport, bugs::UNCOMPARED};
use quintet_protocols::PROTOCOLS;
use std::ops::Range;

fn mixed(protocol: &str, replicas: usize, seeds: Range<u64>, bug: Option<&str>) -> CampaignReport {
    let campaign = Campaign {
        protocol: protocol.to_owned(),
        replicas,
        seeds,
        faults: "all,configuration".parse().unwrap(),
        bug: bug.map(str::to_owned),
        ..Campaign::default()
    };
    crate::run(&campaign, |_| ()).unwrap()
}

/// Both ends of every link to it refuse, with the name and both values, which the world asserts;
/// the others continue.
#[test]
fn replica_with_another_configuration_is_refused() {
    for protocol in PROTOCOLS {
        let name = protocol.info.name;
        for (replicas, seeds) in [(3, 0..8), (5, 100..104)] {
            let report = mixed(name, replicas, seeds, None);
            assert!(report.is_clean(), "{name}: {:?}", report.failures);
            assert!(
                report.counted * 2 >= report.seeds,
                "{name}: {:?}",
                report.rejections
            );
            assert!(report.faults["configuration"] > report.seeds, "{name}");
        }
    }
}

/// Without the comparison replicas diverge, and the simulator sees it.
#[test]
fn divergence_is_found_when_nothing_is_compared() {
    for protocol in PROTOCOLS {
        let name = protocol.info.name;
        let found = (0..20).find_map(|seed| {
            let report = mixed(name, 3, seed..seed + 1, Some(UNCOMPARED));
            Some((seed, report.failures.first()?.what.clone()))
        });
        let (seed, what) = found.unwrap_or_else(|| panic!("{name}: no seed found it"));
        println!("{name}: seed {seed}: {what}");
    }
}
