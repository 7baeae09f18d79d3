//! Requests of this replica's frontends, until they are executed here.

use quintet_replica::{
    FrontendId,
    parts::{KeptRequests, RequestQueue, request_key},
};

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Relay {
    pub kept: KeptRequests,
    /// Those that are not sent in this view.
    pub queue: RequestQueue,
}

impl Relay {
    /// A batch is being executed: it needs sending no more. Gives its frontend, if it is one of
    /// this replica that waits for it.
    pub fn done(&mut self, batch: &[u8]) -> Option<FrontendId> {
        let key = request_key(batch)?;
        self.queue.finished(key);
        self.kept.executed(key).then_some(key.0)
    }

    /// A view begins: what is waited for and the trim left out is sent again.
    pub fn send_again(&mut self) {
        self.queue = RequestQueue::default();
        self.kept.queue_all(&mut self.queue);
    }
}
