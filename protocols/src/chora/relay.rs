//! Requests of this replica's frontends, until they are executed here.

use alloc::vec::Vec;
use quintet_replica::{
    FrontendId, limits,
    parts::{KeptRequests, Request},
};

/// A request that waits for a view.
type Waiting = (FrontendId, Request);

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Relay {
    pub kept: KeptRequests,
    /// Requests that came between two views, and how many bytes they are.
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
}

impl Relay {
    /// Keeps a request until the view begins; false when these are too many bytes.
    pub fn wait(&mut self, request: Waiting, bytes_max: usize) -> bool {
        let bytes = request.1.batch.len();
        let takes = limits::queue_takes(self.waiting_bytes, bytes, bytes_max);
        if takes {
            self.waiting_bytes += bytes;
            self.waiting.push(request);
        }
        takes
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    #[cfg(test)]
    pub const fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The view has begun, or will not for long.
    pub fn take_waiting(&mut self) -> Vec<Waiting> {
        self.waiting_bytes = 0;
        core::mem::take(&mut self.waiting)
    }
}
