//! A replica that has lost its state, and a state that it waits for; see `recovery.rs`.

use core::time::Duration;
use quintet_replica::{
    Time,
    parts::{Member, StateFetch},
};

/// A replica that has lost its state.
#[derive(Clone, Debug, Hash)]
struct Recovery {
    /// The last view in which it may have acknowledged something.
    floor: u64,
    /// Since when too many others report that they have lost theirs, too.
    lost_since: Option<Time>,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct CatchUp {
    recovery: Option<Recovery>,
    /// Counts executions.
    fetching: StateFetch,
}

impl CatchUp {
    /// It begins without its state; it may have acknowledged something up to this view.
    pub fn begin(&mut self, floor: u64) {
        self.recovery = Some(Recovery {
            floor,
            lost_since: None,
        });
    }

    pub const fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Whether it may have acknowledged something in this view that it has lost.
    pub fn is_lost_in(&self, view: u64) -> bool {
        self.recovery
            .as_ref()
            .is_some_and(|recovery| view <= recovery.floor)
    }

    /// The beginning of this view stands in its log. True when it counts again.
    pub fn end(&mut self, view: u64) -> bool {
        self.recovery
            .take_if(|recovery| view > recovery.floor)
            .is_some()
    }

    /// For how long this number of members has been too many to have lost their state.
    pub fn too_many_lost(&mut self, lost: usize, me: &Member, now: Time) -> Duration {
        let Some(recovery) = &mut self.recovery else {
            return Duration::ZERO;
        };
        if !me.are_too_many(lost) {
            recovery.lost_since = None;
            return Duration::ZERO;
        }
        now.since(*recovery.lost_since.get_or_insert(now))
    }

    pub const fn fetching(&self) -> &StateFetch {
        &self.fetching
    }

    pub const fn fetching_mut(&mut self) -> &mut StateFetch {
        &mut self.fetching
    }
}
