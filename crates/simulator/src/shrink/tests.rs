//! A shrunk script still fails, in the same property, and is much smaller.

use super::*;
use crate::Service;
use quintet_outside_protocol::Toy;
use quintet_replica::Durability;

fn shrunk(bug: &str, faults: &str) -> Shrunk {
    let entry = Entry::of::<Toy>();
    for seed in 0..150 {
        let campaign = Campaign {
            protocol: String::from("toy"),
            faults: faults.parse().unwrap(),
            options: vec![(String::from("bug"), bug.to_string())],
            durability: Some(Durability::Disk),
            machine: Some(Service::Registers),
            ..Campaign::default()
        };
        let budget = Duration::from_secs(40);
        let found = shrink_entry(&campaign, entry, seed, budget, &mut |_| ());
        if let Some(found) = found {
            return found;
        }
    }
    panic!("{bug} was not found");
}

/// Shrinks, reads the file back and runs it.
fn shrinks(bug: &str, faults: &str, operations_max: usize) {
    let shrunk = shrunk(bug, faults);
    let text = shrunk.script.to_text("quintet simulate --replay FILE");
    println!(
        "{bug}: {:?} to {:?} in {} runs\n{text}",
        shrunk.before, shrunk.after, shrunk.tries
    );
    assert!(shrunk.after.faults <= 3, "{text}");
    assert!(shrunk.after.operations <= operations_max, "{text}");
    assert!(shrunk.after.choices * 10 < shrunk.before.choices, "{text}");
    let read = Script::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let outcome = read.case.run(Entry::of::<Toy>(), false);
    assert_eq!(Expect::of(&outcome.report), read.expect, "{text}");
    assert_eq!(read.property(), shrunk.script.property());
    assert_eq!(read.to_text("quintet simulate --replay FILE"), text);
}

#[test]
fn batch_left_out_shrinks_to_the_batches_before_it() {
    shrinks("leaves_out", "none", 18);
}

#[test]
fn stale_read_shrinks_to_a_write_and_a_read() {
    shrinks("stale_read", "network", 6);
}

#[test]
fn early_acknowledgement_shrinks_to_a_crash() {
    shrinks("early_ack", "crash", 12);
}

#[test]
fn passing_script_is_not_shrunk() {
    let campaign = Campaign {
        protocol: String::from("toy"),
        options: vec![(String::from("bug"), String::from("none"))],
        ..Campaign::default()
    };
    let budget = Duration::from_secs(9);
    let entry = Entry::of::<Toy>();
    assert!(shrink_entry(&campaign, entry, 1, budget, &mut |_| ()).is_none());
}
