//! A run, written down, is the same world again.

use super::*;
use quintet_outside_protocol::Toy;
use quintet_replica::Durability;

fn campaign(bug: &str) -> Campaign {
    Campaign {
        protocol: String::from("toy"),
        options: vec![(String::from("bug"), bug.to_string())],
        durability: Some(Durability::Disk),
        ..Campaign::default()
    }
}

#[test]
fn noted_run_and_its_file_are_the_seed_bit_for_bit() {
    let entry = Entry::of::<Toy>();
    for (seed, bug) in [
        (0, "none"),
        (1, "none"),
        (2, "early_ack"),
        (3, "stale_read"),
    ] {
        let campaign = campaign(bug);
        let plain = crate::campaign::run_seed(campaign.setup(entry, seed, false));
        let (case, noted) = Case::record(&campaign, entry, seed);
        assert_eq!(
            noted.report.trace_hash, plain.trace_hash,
            "noting changes nothing"
        );
        let text = case.write(&Expect::default(), "");
        let (read, _) = Case::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let again = read.run(entry, false);
        assert_eq!(again.report.trace_hash, plain.trace_hash, "seed {seed}");
        assert_eq!(again.report.violation.is_some(), plain.violation.is_some());
    }
}
