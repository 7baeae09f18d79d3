//! Weaker rules, and what finds them: random faults, or messages in the worst order.
//!
//! ```text
//!   runs ─── crashes, cuts, slow disks: bugs of durability and recovery
//!   storms ─ no faults, but every message waits as long as chance likes: bugs of the rules
//!   cases ── one that chance does not reach
//! ```

use super::group::{Group, MS, assert_converged, small};
use crate::{
    racs::{Bug, Config, Racs, Timer},
    random_runs::{Random, detecting},
};
use alloc::vec::Vec;
use core::ops::Range;
use quintet_replica::{Control, Durability, Event, Level, Options, ReplicaId};
use std::panic;

/// The bugs that random runs find, with the first seed that does.
const BY_INCARNATIONS: [(Bug, u64); 5] = [
    (Bug::MinorityCommits, 0),
    (Bug::VoteNotDurable, 14),
    (Bug::PromiseLost, 4),
    (Bug::RecoverySkipped, 124),
    (Bug::CoinDiffers, 0),
];

/// Those that storms find, with the first that does.
const BY_STORMS: [(Bug, u64); 4] = [
    (Bug::HighAsPrinted, 1551),
    (Bug::KeepMaxOnly, 1136),
    (Bug::NoGate, 133),
    (Bug::FallLost, 0),
];

fn inject(bug: Bug, config: &mut Config) {
    config.set("bug", bug.name()).expect("its own name");
}

fn durability(bug: Bug) -> Durability {
    match bug {
        Bug::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    }
}

#[test]
fn weaker_rules_that_break_agreement_are_found() {
    for (bug, seed) in BY_INCARNATIONS {
        let found = detecting::<Racs, _>(&[bug], seed..seed + 20, durability, inject);
        assert!(found[0].1.is_some(), "{bug:?}");
    }
}

#[test]
fn name_used_twice_is_rejected() {
    let disseminated = |bug, config: &mut Config| {
        config.set("dissemination", "sadl").expect("an option");
        inject(bug, config);
    };
    let found = detecting::<Racs, _>(&[Bug::ChainReused], 0..10, durability, disseminated);
    assert!(found[0].1.is_some());
}

/// Three replicas that give their view up again and again, while every message waits as long as
/// chance likes; then calm. Nothing crashes.
fn storm(seed: u64, bug: Option<Bug>) {
    let mut random = Random::new(seed);
    let mut config = small();
    if let Some(bug) = bug {
        inject(bug, &mut config);
    }
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    let mut held: Vec<(u16, u16)> = Vec::new();
    for step in 0..500 {
        if step % 40 == 0 {
            held = (0..random.below(4))
                .map(|_| (random.below(3) as u16, random.below(3) as u16))
                .collect();
        }
        let id = random.below(3) as u16;
        match random.below(100) {
            0..4 => {
                group.write(id);
            }
            4..8 => {
                if let Some(leader) = group.status(id).leader {
                    let gone = Control::ReportFailure(ReplicaId(leader.0));
                    group.event(id, Event::Control(gone));
                }
            }
            8..11 => {
                group.clock.now = group.clock.now + MS * 60;
                group.fire(id, Timer::Repeat);
            }
            11..13 => group.fire(id, Timer::Fetch),
            _ => {
                let waits = group.network.len() as u64;
                if waits == 0 {
                    continue;
                }
                let index = random.below(waits) as usize;
                let packet = group.network.remove(index).expect("below its length");
                let to = packet.to.0;
                if held.contains(&(packet.from.0, to)) {
                    group.network.push_back(packet);
                } else {
                    group.deliver(packet);
                    group.sync(to);
                    group.idle(to);
                }
                continue;
            }
        }
        group.sync(id);
        group.idle(id);
    }
    let last = group.write(0);
    group.run(MS * 6000);
    assert!(group.answered(0, last), "it continues");
    assert_converged(&group, 1);
}

/// The first of these storms that a bug does not survive.
fn first_storm(bug: Bug, mut seeds: Range<u64>) -> Option<u64> {
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let breaks = |seed: &u64| panic::catch_unwind(|| storm(*seed, Some(bug))).is_err();
    let found = seeds.find(breaks);
    panic::set_hook(quiet);
    found
}

#[test]
fn weaker_rules_do_not_survive_the_worst_order_of_messages() {
    for (bug, seed) in BY_STORMS {
        assert!(first_storm(bug, seed..seed + 100).is_some(), "{bug:?}");
    }
}

#[test]
fn unmodified_rules_pass() {
    for seed in 0..150 {
        storm(seed, None);
    }
}

/// A replica that is cut off is asked to read what was written meanwhile. Whether it answers.
fn answers_cut_off(config: Config) -> bool {
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    group.isolate(2);
    let batch = group.write(0);
    group.settle();
    assert!(group.answered(0, batch));
    let read = group.submit(2, Level::Linearizable);
    group.settle();
    group.answered(2, read)
}

#[test]
fn replica_cut_off_answers_no_reads_unless_they_need_no_marker() {
    assert!(!answers_cut_off(small()));
    let mut config = small();
    inject(Bug::ReadsUnmarked, &mut config);
    assert!(answers_cut_off(config));
}

/// A leader shows a block to one replica, dies before it is on its own disk, and comes back while
/// the third one has not heard of its view yet.
fn leader_comes_back(config: Config) {
    let mut group = Group::unstarted(3, Durability::Disk, config);
    group.cut.insert((0, 2));
    for id in 0..3 {
        group.start(id);
    }
    group.settle();
    assert_eq!(group.leaders(), [0]);
    group.members[0].slow_disk = true;
    group.write(0);
    group.settle();
    group.crash(0);
    group.members[0].slow_disk = false;
    group.heal();
    group.start(0);
    group.write(0);
    group.run(MS * 6000);
    assert_converged(&group, 1);
}

#[test]
fn leader_that_comes_back_makes_no_second_block_of_one_name() {
    leader_comes_back(small());
    let mut config = small();
    inject(Bug::LeaderContinues, &mut config);
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let breaks = panic::catch_unwind(|| leader_comes_back(config)).is_err();
    panic::set_hook(quiet);
    assert!(breaks);
}
