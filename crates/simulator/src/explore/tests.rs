//! Small scopes, whole: what holds holds in all of them, what is broken is found in a few steps.

use super::*;
use quintet_outside_protocol::Toy;
use quintet_protocols::find;

fn toy(bug: &str, bounds: Bounds) -> Exploration {
    let campaign = Campaign {
        protocol: String::from("toy"),
        options: vec![("bug".to_string(), bug.to_string())],
        ..Campaign::default()
    };
    let found = explore_entry(&campaign, Entry::of::<Toy>(), bounds, &mut |_| ());
    println!("{bug}: {found:?}");
    found
}

/// One command and a crash, of a protocol that does not show its state.
fn one_crash() -> Bounds {
    Bounds {
        commands: 1,
        timers: 0,
        ..Bounds::default()
    }
}

#[test]
fn protocol_without_fingerprint_is_searched_by_history() {
    let found = toy("none", one_crash());
    assert_eq!(found.violation, None, "{}", found.lines.join("\n"));
    assert!(found.complete && found.answered[1] > 0);
    assert_eq!(found.told_apart_by, "history");
}

#[test]
fn answer_before_anything_is_durable_is_found_in_fewest_steps() {
    let found = toy("early_answer", one_crash());
    let violation = found.violation.unwrap();
    assert!(violation.starts_with("durable"), "{violation}");
    // The command is invoked, and answered at once.
    let steps = found.lines.iter().filter(|line| !line.starts_with("    "));
    assert_eq!(steps.count(), 1, "{}", found.lines.join("\n"));
    assert!(found.page.contains("class=\"broken\"") && found.page.contains("<svg"));
}

#[test]
fn copy_acknowledged_before_it_is_durable_is_found() {
    let found = toy("early_ack", one_crash());
    let violation = found.violation.unwrap();
    assert!(violation.starts_with("durable"), "{violation}");
}

#[test]
fn stale_read_is_found() {
    let bounds = Bounds {
        commands: 2,
        reads: 1,
        crashes: 0,
        timers: 0,
        ..Bounds::default()
    };
    let violation = toy("stale_read", bounds).violation.unwrap();
    assert!(violation.starts_with("linearizability"), "{violation}");
    assert_eq!(toy("none", bounds).violation, None);
}

fn multipaxos(bug: Option<&str>) -> Campaign {
    Campaign {
        options: vec![("pre_vote".to_string(), "false".to_string())],
        bug: bug.map(ToString::to_string),
        ..Campaign::default()
    }
}

fn search(bug: Option<&str>, bounds: Bounds) -> Exploration {
    let entry = *find("multipaxos").unwrap();
    let found = explore_entry(&multipaxos(bug), entry, bounds, &mut |_| ());
    println!("{found:?}");
    found
}

#[test]
fn multipaxos_holds_in_every_world_of_a_small_scope() {
    let bounds = Bounds {
        commands: 1,
        crashes: 0,
        timers: 1,
        from_boot: true,
        ..Bounds::default()
    };
    let found = search(None, bounds);
    assert_eq!(found.violation, None, "{}", found.lines.join("\n"));
    assert!(found.complete && found.states > 1000, "{}", found.states);
    assert!(found.answered[1] > 0 && found.branches.contains_key("election won"));
}

/// Two replicas, so that the scope is whole in seconds: one command and one crash, while the epoch
/// ends.
fn one_end(timers: usize) -> Bounds {
    Bounds {
        replicas: 2,
        commands: 1,
        timers,
        seals: 1,
        at_once: true,
        ..Bounds::default()
    }
}

#[test]
fn epoch_ends_in_every_world_of_a_small_scope_without_harm() {
    for entry in quintet_protocols::PROTOCOLS {
        let name = entry.info.name;
        let campaign = Campaign {
            protocol: name.to_string(),
            ..Campaign::default()
        };
        let found = explore_entry(&campaign, *entry, one_end(0), &mut |_| ());
        println!("{found:?}");
        assert_eq!(found.violation, None, "{name}: {}", found.lines.join("\n"));
        assert!(found.complete && found.told_apart_by == "state", "{name}");
        // Nezha orders nothing while clocks stand still.
        let begun = found.branches.contains_key("epoch begun");
        assert!(begun || name == "nezha", "{name}: {:?}", found.branches);
    }
}

#[cfg(feature = "bugs")]
#[test]
fn epoch_that_begins_before_it_is_durable_is_found_by_a_search() {
    // With one crash the other replica still has the state, and by a timer they find that none has.
    let bounds = Bounds {
        crashes: 2,
        ..one_end(1)
    };
    let violation = search(Some("begins_before_it_is_durable"), bounds).violation;
    let violation = violation.unwrap();
    assert!(violation.starts_with("halt"), "{violation}");
    assert_eq!(search(None, bounds).violation, None);
}

#[test]
fn bounds_that_cannot_be_searched_are_refused() {
    let bounds = Bounds {
        commands: 99,
        ..Bounds::default()
    };
    let refused = explore(&multipaxos(None), bounds, |_| ()).unwrap_err();
    assert!(refused.to_string().contains("99 commands"), "{refused}");
}

/// States that were reached in two ways must have one future: what differs is not in the hash.
/// Gives how many steps were compared, and the first that differs.
fn compare_ways(campaign: &Campaign, entry: Entry, bounds: Bounds) -> (u64, Option<String>) {
    let mut ignored = |_: ExploreProgress| ();
    let mut search = Search::new(campaign, entry, bounds, &mut ignored);
    search.cast.remember_ways();
    let (depth, complete, failed) = search.run();
    let protocol = &campaign.protocol;
    assert!(failed.is_none(), "{protocol}: {failed:?}");
    assert!(search.cast.by_state, "{protocol} does not show its state");
    let (worlds, states) = (search.found.len(), search.cast.replica_states.len());
    let (compared, differs) = search.cast.compare_ways();
    println!(
        "{protocol}: {worlds} worlds, depth {depth}, complete {complete}, {states} states of \
         replicas, {compared} steps compared"
    );
    (compared, differs)
}

#[test]
fn equal_hashes_have_one_future_in_every_protocol() {
    for entry in quintet_protocols::PROTOCOLS {
        let campaign = Campaign {
            protocol: entry.info.name.to_string(),
            ..Campaign::default()
        };
        let bounds = Bounds {
            commands: 2,
            reads: 1,
            crashes: 1,
            timers: 1,
            states_max: 30_000,
            ..Bounds::default()
        };
        let (compared, differs) = compare_ways(&campaign, *entry, bounds);
        assert_eq!(differs, None, "{}", entry.info.name);
        assert!(compared > 1000, "{}: {compared}", entry.info.name);
    }
}

#[test]
fn hash_that_leaves_something_out_is_found() {
    let campaign = Campaign {
        protocol: String::from("toy"),
        options: vec![("bug".to_string(), "partial_hash".to_string())],
        ..Campaign::default()
    };
    // Of five replicas, one acknowledgement besides the leader's own commits nothing.
    let bounds = Bounds {
        replicas: 5,
        crashes: 0,
        ..one_crash()
    };
    let (_, differs) = compare_ways(&campaign, Entry::of::<Toy>(), bounds);
    assert!(differs.is_some_and(|what| what.contains("reached by")));
}

/// Two shards that overlap, one of which needs both of its members.
const SHARDS: &str = "a groups=1 pin=0,1 members=1..2; b groups=2 pin=1,2 members=2..2";
/// A shard that needs both of its members, and one that another replica may take over.
#[cfg(feature = "bugs")]
const MOVES: &str = "a groups=1 pin=1,2 members=2..2; b groups=2 nodes=0,1,2 members=1..1";

/// A replica dies, and comes back.
fn shards(layout: &str, commands: usize, bug: Option<&str>) -> Exploration {
    let campaign = Campaign {
        protocol: String::from("derecho"),
        options: vec![("layout".to_string(), layout.to_string())],
        bug: bug.map(ToString::to_string),
        ..Campaign::default()
    };
    let bounds = Bounds {
        commands,
        timers: 0,
        at_once: true,
        down: true,
        leap_ms: 200,
        ..Bounds::default()
    };
    let entry = *find("derecho").unwrap();
    let found = explore_entry(&campaign, entry, bounds, &mut |_| ());
    println!("{found:?}");
    found
}

#[test]
fn shards_hold_when_a_member_dies_and_returns_in_every_world() {
    let found = shards(SHARDS, 0, None);
    assert_eq!(found.violation, None, "{}", found.lines.join("\n"));
    assert!(found.complete && found.told_apart_by == "state");
    assert!(found.branches.contains_key("shard begun"), "{found:?}");
}

#[cfg(feature = "bugs")]
#[test]
fn injected_bugs_of_shards_are_found_by_a_search() {
    for (bug, layout, commands) in [
        ("base_of_one_shard_for_all", SHARDS, 1),
        ("lost_shard_begins_empty", MOVES, 1),
        ("active_below_minimum", SHARDS, 0),
    ] {
        let violation = shards(layout, commands, Some(bug)).violation;
        assert!(
            violation.is_some_and(|what| what.starts_with("roles")),
            "{bug}"
        );
    }
}

#[test]
fn epoch_of_shards_is_not_asked_to_end() {
    let campaign = Campaign {
        protocol: String::from("derecho"),
        options: vec![("layout".to_string(), SHARDS.to_string())],
        ..Campaign::default()
    };
    let bounds = Bounds {
        seals: 1,
        ..Bounds::default()
    };
    let refused = explore(&campaign, bounds, |_| ()).unwrap_err();
    assert!(refused.to_string().contains("does not end"), "{refused}");
}
