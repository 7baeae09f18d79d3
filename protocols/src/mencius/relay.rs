//! Requests on their way into slots: those of this replica's frontends, and those that slow members
//! have forwarded.
//!
//! ```text
//!   Request ──► kept until executed here ──► queue ──► an own slot
//!                   │                          ▲
//!                   └─(this one is slow)──► outbox ── Forward ──► the queue of another
//! ```

use alloc::{collections::BTreeSet, vec::Vec};
use quintet_replica::{
    Bytes, Context, Protocol, ReplicaId, Time,
    parts::{KeptRequests, RequestKey, RequestQueue, request_key},
};

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Relay {
    /// Those of this replica's frontends.
    pub kept: KeptRequests,
    queue: RequestQueue,
    /// Batches of others that have not been executed: each is suggested until it is.
    forwarded: BTreeSet<RequestKey>,
    /// The member that orders what this replica's frontends ask for, if not this replica.
    to: Option<ReplicaId>,
    /// Requests are to go to others before this time.
    leaving_until: Time,
}

impl Relay {
    pub const fn to(&self) -> Option<ReplicaId> {
        self.to
    }

    pub const fn leave(&mut self, until: Time) {
        self.leaving_until = until;
    }

    pub fn is_leaving(&self, now: Time) -> bool {
        now < self.leaving_until
    }

    /// A frontend's request is to be ordered, here or by another.
    pub fn order(&mut self, key: RequestKey, batch: Bytes) {
        match self.to {
            Some(_) => self.kept.forward(batch),
            None => self.queue.push(key, batch),
        }
    }

    /// The next batch to suggest.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.queue.pop()
    }

    /// A suggestion has lost its slot.
    pub fn order_again(&mut self, batch: Bytes) {
        let Some(key) = request_key(&batch) else {
            return;
        };
        self.queue.finished(key);
        if self.forwarded.contains(&key) {
            // The member that forwarded it counts on this one: it is never forwarded again.
            self.queue.push(key, batch);
        } else if self.kept.contains(key) {
            self.order(key, batch);
        }
    }

    /// A batch is executed. True when a frontend of this replica waits for it.
    pub fn executed(&mut self, key: RequestKey) -> bool {
        self.queue.finished(key);
        self.forwarded.remove(&key);
        self.kept.executed(key)
    }

    /// Another member orders the requests of this replica's frontends from now on.
    pub fn forward_to(&mut self, to: ReplicaId) {
        self.to = Some(to);
        let kept = &self.kept;
        self.queue.retain(|key| !kept.contains(key));
        self.kept.forward_all();
    }

    /// This replica orders them itself again.
    pub fn forward_nothing(&mut self) {
        self.to = None;
        self.kept.queue_all(&mut self.queue);
    }

    /// Takes what a slow member has forwarded, as far as its length allows.
    pub fn on_forward<P: Protocol>(
        &mut self,
        batches: Vec<Bytes>,
        bytes_max: usize,
        ctx: &mut Context<'_, P>,
    ) {
        let keys = batches.iter().filter_map(|batch| request_key(batch));
        let keys: Vec<RequestKey> = keys.collect();
        self.queue.take_in(batches, bytes_max, ctx);
        let taken = keys.into_iter().filter(|key| self.queue.holds(*key));
        self.forwarded.extend(taken);
    }
}
