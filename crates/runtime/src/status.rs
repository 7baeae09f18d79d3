//! A replica's state for other threads.
//!
//! ```text
//!   event loop ── about ten times a second ──► Published ──► admin HTTP, Handle
//! ```

use crate::{
    Metrics,
    server::{Counters, StatusReport},
};
use quintet_replica::{GroupId, ReplicaSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The members of a group that orders, as one of them knows them.
///
/// All that know the same number know the same members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The group.
    pub group: GroupId,
    /// The epoch, and the number in it: 0 where the protocol does not change the members.
    pub number: (u64, u64),
    /// The members.
    pub members: ReplicaSet,
}

/// The event loop's report as of one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The replica's state.
    pub report: StatusReport,
    /// The views of the groups of which this replica is a member.
    pub views: Vec<GroupView>,
    /// The counters of the event loop.
    pub metrics: Metrics,
    /// The counters of the gateway; zeros when no server runs.
    pub counters: Counters,
}

/// The newest state of a replica, shared between threads.
#[derive(Debug, Default)]
pub struct Published {
    snapshot: Mutex<Arc<Snapshot>>,
}

impl Published {
    /// The newest state; at most about a tenth of a second old while anything happens.
    #[must_use]
    pub fn newest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}
