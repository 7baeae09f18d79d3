//! Shards that run a service: versions, times and hand-offs under faults.
//!
//! ```text
//!   callers ──► pay, content, content at a version, content of all shards at one time,
//!               gathers, queries that read a sibling shard, notices
//!   couriers ──► hand-offs from shard to shard            (what programs run, and several at once)
//!   heralds  ──► members of each shard                    (the same)
//!        ──► at once:    times and views ascend, a cut has a cause for each effect, nothing acknowledged
//!                        is missing
//!        ──► at the end: the agreed order, executed again by one machine, gives the same answers
//! ```
//!
//! The machine is the one of `quintet::groups`.

mod actors;
mod checks;
mod courier;
mod ledger;
mod notices;
mod places;
mod views;

pub(super) use actors::Actor;
pub(super) use checks::Answers;
pub(super) use ledger::machine;

use super::world::{Group, World};

/// The subgroup of the group at this place; it has one shard.
pub(super) fn subgroup(place: usize) -> String {
    format!("g{place}")
}

/// The shard's name.
pub(super) fn shard(place: usize) -> String {
    format!("{}/0", subgroup(place))
}

/// The place of the shard with this name.
pub(super) fn place_of(shard: &str) -> Option<usize> {
    shard.strip_prefix('g')?.strip_suffix("/0")?.parse().ok()
}

impl World {
    /// The places of the shards with a service.
    pub(super) fn service_places(&self) -> Vec<usize> {
        let groups = self.groups.iter().enumerate();
        groups
            .filter(|(_, group)| group.service)
            .map(|(place, _)| place)
            .collect()
    }

    /// Where a shard hands calls off to: those behind it, so that there is no cycle.
    pub(super) fn destinations_of(&self, place: usize) -> Vec<usize> {
        let behind = |other: &usize| *other > place;
        self.service_places().into_iter().filter(behind).collect()
    }
}

impl Group {
    /// Whether the order of execution anywhere is final.
    pub(super) fn is_final(&self) -> bool {
        !self.entry.speculates
    }
}
