//! Worlds in which each process takes part in several groups.
//!
//! ```text
//!   seed ──► 3 to 9 processes, 2 to 4 groups of 1 to 5 of them, each with a protocol and durability
//!              process = a node per group ──► one journal, one disk, one link to each other process
//!            clients of each group, crashes, partitions, resets, slow and torn syncs, damaged disks
//!        ──► agreement, exactly once, linearizability and equal states, for each group by itself
//! ```
//!
//! A world of its own, beside the one of a single group: it has fewer faults and no epochs. Nodes,
//! journal, disk, machine and checkers are the same.

mod clients;
mod draw;
mod faults;
mod gone;
mod links;
mod nodes;
mod process;
mod services;
mod views;
mod world;

pub use draw::Worlds;

use crate::{checkers::Violation, panics};
use std::{collections::BTreeMap, ops::Range};

/// The outcome of one seed.
#[derive(Clone, Debug)]
pub struct GroupsSeed {
    /// The seed.
    pub seed: u64,
    /// The first property that did not hold.
    pub violation: Option<Violation>,
    /// The groups that did not continue after the last fault.
    pub stall: Option<String>,
    /// Operations that were answered.
    pub acknowledged: u64,
    /// How often each fault and rare branch happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// All that happened, when it was asked for.
    pub lines: Vec<String>,
}

/// The outcome of many seeds.
#[derive(Clone, Debug, Default)]
pub struct GroupsReport {
    /// Seeds that ran.
    pub seeds: u64,
    /// Operations that were answered.
    pub acknowledged: u64,
    /// Seeds in which a property did not hold.
    pub violations: Vec<(u64, Violation)>,
    /// Seeds in which a group did not continue.
    pub stalls: Vec<(u64, String)>,
    /// How often each fault and rare branch happened.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A seed's world, and what is told of it.
#[derive(Clone, Copy, Debug)]
pub struct GroupsSetup<'a> {
    /// Which worlds.
    pub worlds: Worlds,
    /// How many processes, 3 to 9; 5 to 9 by the seed when there is none.
    pub processes: Option<usize>,
    /// An injected bug, where the build has them.
    pub bug: Option<&'a str>,
    /// Whether all that happens is told.
    pub tells: bool,
}

impl GroupsSetup<'_> {
    /// Worlds of this kind.
    #[must_use]
    pub const fn of(worlds: Worlds) -> Self {
        Self {
            worlds,
            processes: None,
            bug: None,
            tells: false,
        }
    }
}

/// Runs one seed.
#[must_use]
pub fn run_seed(setup: &GroupsSetup<'_>, seed: u64) -> GroupsSeed {
    let mut found = GroupsSeed {
        seed,
        violation: None,
        stall: None,
        acknowledged: 0,
        counts: BTreeMap::new(),
        lines: Vec::new(),
    };
    let ran = panics::catch(|| world::World::new(setup, seed).run(&mut found));
    if let Err(what) = ran {
        found.violation = Some(Violation::new("panic", what));
    }
    found
}

/// Runs many seeds, and stops at the first violation when one is `enough`.
#[must_use]
pub fn run(setup: &GroupsSetup<'_>, seeds: Range<u64>, enough: bool) -> GroupsReport {
    let mut report = GroupsReport::default();
    for seed in seeds {
        let found = run_seed(setup, seed);
        report.seeds += 1;
        report.acknowledged += found.acknowledged;
        for (name, count) in found.counts {
            *report.counts.entry(name).or_default() += count;
        }
        report.stalls.extend(found.stall.map(|stall| (seed, stall)));
        report
            .violations
            .extend(found.violation.map(|violation| (seed, violation)));
        if enough && !(report.violations.is_empty() && report.stalls.is_empty()) {
            break;
        }
    }
    report
}

#[cfg(test)]
mod tests;
