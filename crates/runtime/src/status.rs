//! A replica's state for other threads.
//!
//! ```text
//!   event loop ── about ten times a second ──► Published ──► admin HTTP, Handle
//! ```

use crate::{
    Metrics,
    server::{Counters, StatusReport},
};
use std::sync::{Arc, Mutex, PoisonError};

/// The event loop's report as of one time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The replica's state.
    pub report: StatusReport,
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
