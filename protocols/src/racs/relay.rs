//! Requests of this replica's frontends, and those that others forward.

use quintet_replica::{
    Time,
    parts::{KeptRequests, RequestQueue},
};

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Relay {
    pub kept: KeptRequests,
    /// Requests forwarded by members that are in a view that this replica is about to lead.
    pub ahead: RequestQueue,
    /// Since when something has waited while nothing was decided.
    waiting_since: Option<Time>,
}

impl Relay {
    /// Something of this replica's clients waits.
    pub fn waits(&mut self, now: Time) {
        self.waiting_since.get_or_insert(now);
    }

    /// Something is decided, or nothing waits any more.
    pub fn progressed(&mut self, waits: bool, now: Time) {
        self.waiting_since = waits.then_some(now);
    }

    /// Since when something has waited while nothing was decided.
    pub const fn waiting_since(&self) -> Option<Time> {
        self.waiting_since
    }
}
