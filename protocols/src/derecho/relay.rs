//! Requests of this replica's frontends, until they are executed here.

use quintet_replica::{
    Bytes, Context, FrontendId, Protocol, Time,
    parts::{KeptRequests, RequestKey, RequestMessage, RequestQueue, request_key},
};

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Relay {
    kept: KeptRequests,
    /// Those that are not sent in this view.
    queue: RequestQueue,
}

impl Relay {
    /// Keeps a request, and sends it in its turn, unless too many wait. True when it is kept.
    pub fn take<P: Protocol<Message: RequestMessage>>(
        &mut self,
        key: RequestKey,
        batch: Bytes,
        bytes_max: usize,
        ctx: &mut Context<'_, P>,
    ) -> bool {
        let taken = self.kept.take(key, &batch, bytes_max, ctx);
        if taken {
            self.queue.push(key, batch);
        }
        taken
    }

    /// The next one to be sent.
    pub fn peek(&self) -> Option<&Bytes> {
        self.queue.peek()
    }

    pub fn pop(&mut self) -> Option<Bytes> {
        self.queue.pop()
    }

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

    pub fn expire(&mut self, now: Time) {
        self.kept.expire(now);
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub const fn bytes(&self) -> usize {
        self.kept.bytes()
    }
}
