//! The leader chooses the way of the batches (§5.5).
//!
//! ```text
//!   requests that take long ──► Switch{sadl} ordered ──► all ──► few commands ──► Switch{direct}
//! ```

use super::group::{Group, MS, assert_converged, small};
#[cfg(feature = "bugs")]
use crate::racs::Bug;
use crate::racs::{Config, Dissemination};
use crate::sadl::Way;
use alloc::vec::Vec;
use core::time::Duration;
#[cfg(feature = "bugs")]
use quintet_replica::Options;
use quintet_replica::{BatchId, Durability};

const HOLD: Duration = Duration::from_secs(2);

/// Any latency is too much; and any throughput is too little when `returns`, or none.
fn chosen(returns: bool) -> Config {
    Config {
        dissemination: Dissemination::Hybrid,
        hybrid_latency: Duration::from_nanos(1),
        hybrid_throughput: if returns { u64::MAX } else { 0 },
        hybrid_hold: HOLD,
        ..small()
    }
}

/// One member writes every 100 ms for so long, each in turn.
fn load(group: &mut Group, steps: u64, asked: &mut Vec<(u16, BatchId)>) {
    let members = group.members.len() as u64;
    for step in 0..steps {
        let id = (step % members) as u16;
        if group.members[usize::from(id)].driver.is_some() {
            asked.push((id, group.write(id)));
        }
        group.run(MS * 100);
    }
}

fn changes(group: &Group, id: u16) -> u64 {
    group.replica(id).hybrid.course().changes
}

#[test]
fn leader_changes_the_way_of_all_by_an_ordered_command_and_back() {
    for members in [1, 3, 5] {
        let mut group = Group::new(members, Durability::Disk, chosen(true));
        group.run(MS * 100);
        let mut asked = Vec::new();
        load(&mut group, 60, &mut asked);
        let first = group.replica(0).hybrid.course();
        assert_eq!((first.way, first.changes), (Way::Sadl, 1), "{members}");
        load(&mut group, 300, &mut asked);
        group.run(MS * 1000);
        for id in 0..members as u16 {
            assert_eq!(
                group.replica(id).hybrid.course(),
                group.replica(0).hybrid.course()
            );
            assert!(changes(&group, id) >= 2, "{members}: it came back");
        }
        for (id, batch) in asked {
            assert!(group.answered(id, batch), "{members}: {batch} at {id}");
        }
        assert_converged(&group, 300);
    }
}

#[test]
fn way_that_is_left_soon_is_kept_longer_the_next_time() {
    let mut group = Group::new(3, Durability::Disk, chosen(true));
    group.run(MS * 100);
    let mut asked = Vec::new();
    load(&mut group, 1200, &mut asked);
    // Without hysteresis one every three seconds: 40.
    let count = changes(&group, 0);
    assert!((3..=9).contains(&count), "{count}");
    assert!(group.replica(0).hybrid.course().soon >= 2);
}

#[test]
fn calm_clients_leave_the_way_as_it_is() {
    let mut config = chosen(true);
    config.hybrid_latency = Duration::from_secs(1);
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    load(&mut group, 100, &mut Vec::new());
    assert_eq!(
        (changes(&group, 0), group.replica(0).hybrid.course().way),
        (0, Way::Direct)
    );
}

#[test]
fn restarted_replica_and_next_leader_know_mode() {
    let mut group = Group::new(3, Durability::Disk, chosen(false));
    group.run(MS * 100);
    let mut asked = Vec::new();
    load(&mut group, 60, &mut asked);
    let course = group.replica(0).hybrid.course();
    assert_eq!(course.way, Way::Sadl);
    for id in 0..3 {
        group.crash(id);
    }
    for id in 0..3 {
        group.start(id);
    }
    group.run(MS * 3000);
    let last = group.write(0);
    group.run(MS * 1000);
    assert!(group.answered(0, last));
    let leader = group.leaders()[0];
    group.isolate(leader);
    let other = (leader + 1) % 3;
    let last = group.write(other);
    group.run(MS * 6000);
    group.heal();
    group.run(MS * 3000);
    assert!(group.answered(other, last));
    for id in 0..3 {
        assert_eq!(group.replica(id).hybrid.course(), course);
        assert_eq!(group.replica(id).way(), Way::Sadl);
    }
    assert_converged(&group, 1);
}

/// One is away while the way changes and so much is written that it can only fetch a state.
fn comes_by_a_state(config: Config) -> (Way, Way) {
    let config = Config {
        log_memory_bytes: 1024,
        ..config
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    group.crash(2);
    let mut asked = Vec::new();
    load(&mut group, 120, &mut asked);
    group.start(2);
    group.run(MS * 10_000);
    assert!(group.marked("state installed") > 0, "a state was fetched");
    (group.replica(0).way(), group.replica(2).way())
}

#[test]
fn fetched_state_includes_mode() {
    assert_eq!(comes_by_a_state(chosen(false)), (Way::Sadl, Way::Sadl));
}

#[cfg(feature = "bugs")]
fn injected(bug: Bug, mut config: Config) -> Config {
    config.set("bug", bug.name()).expect("its own name");
    config
}

#[cfg(feature = "bugs")]
#[test]
fn promise_without_report_of_state_is_not_kept() {
    let config = injected(Bug::SwitchUnsaved, chosen(false));
    assert_eq!(comes_by_a_state(config), (Way::Sadl, Way::Direct));
}

/// Requests that a follower forwards to the leader are lost; then the mode changes. Whether it is
/// answered.
fn waits_while_the_way_changes(config: Config) -> bool {
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    group.cut.insert((1, 0));
    let batch = group.write(1);
    for _ in 0..60 {
        group.write(0);
        group.run(MS * 100);
    }
    assert_eq!(group.replica(1).hybrid.course().way, Way::Sadl);
    // No replica notices that the link works again: nothing is forwarded a second time.
    group.cut.clear();
    group.run(MS * 5_000);
    group.answered(1, batch)
}

#[test]
fn waiting_requests_use_new_mode() {
    assert!(waits_while_the_way_changes(chosen(false)));
}
