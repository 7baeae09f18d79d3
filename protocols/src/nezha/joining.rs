//! A replica on its way into a view whose leader has begun it.

use super::Placed;
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{Slot, Time};

/// See the module.
#[derive(Hash)]
pub(super) struct Joining {
    /// It comes from recovery.
    state_lost: bool,
    since: Time,
    gathered: Vec<Placed>,
    /// The leader's last slot when it was first asked.
    end: Option<Slot>,
}

impl Joining {
    pub const fn new(state_lost: bool, now: Time) -> Self {
        Self {
            state_lost,
            since: now,
            gathered: Vec::new(),
            end: None,
        }
    }

    /// Whether it has lost its state, and takes no part before it has the leader's log.
    pub const fn state_lost(&self) -> bool {
        self.state_lost
    }

    /// Whether it may have to ask again.
    pub fn asks_again(&self, every: Duration, now: Time) -> bool {
        now.since(self.since) >= every
    }

    /// The next slot that is lacking, where all up to `commit` is here.
    pub const fn next(&self, commit: Slot) -> Slot {
        Slot(commit.0 + 1 + self.gathered.len() as u64)
    }

    /// A state came that covers another commit point than what was gathered followed.
    pub fn restart(&mut self) {
        self.gathered.clear();
    }

    /// A page of the leader's log, which goes up to `end`. True when all is here.
    pub fn on_page(&mut self, entries: Vec<Placed>, end: Slot, commit: Slot) -> bool {
        self.gathered.extend(entries);
        let end = *self.end.get_or_insert(end);
        self.next(commit) > end
    }

    pub fn take_gathered(&mut self) -> Vec<Placed> {
        core::mem::take(&mut self.gathered)
    }
}
