//! Requests on their way from a replica's own frontends to the replica that orders them.
//!
//! ```text
//!   Request ─► own_request ─► KeptRequests (until executed here)
//!                               │  ├── forward ─► outbox ── send: some messages a turn ──► leader
//!                               │  └── iter: this replica leads, so into its RequestQueue
//!                               └── forward_all: a new leader is known, all of it goes again
//!
//!   leader:  own batches, others' messages ─► RequestQueue ─► peek, pop ─► slots ─► finished
//! ```
//!
//! A replica keeps what its own frontends gave it and nothing else, so a leader's queue is bounded
//! by what all replicas may keep. A request that is forwarded again may be ordered twice; sessions
//! detect it.
//!
//! How a protocol uses them (see Multi-Paxos and ChainPaxos):
//!
//! - On a frontend's request, [`own_request`] says whose it is or drops it. When no leader is known
//!   the protocol answers [`Taken::Refused`]; otherwise [`KeptRequests::keep`] takes the bytes, or
//!   says [`Taken::Busy`], which is the answer to send. Then either [`KeptRequests::forward`] or,
//!   at the leader itself, [`RequestQueue::push`].
//! - At the end of a turn, [`KeptRequests::send`] empties the outbox into messages of the
//!   protocol's own, as far as the connection has room.
//! - The leader gives what arrives to [`RequestQueue::take_in`], takes batches out with
//!   [`RequestQueue::pop`] and calls [`RequestQueue::finished`] when one is executed; a new leader
//!   starts with [`RequestQueue::proposed`], the batches that stand in its log already.
//! - Everywhere, [`KeptRequests::executed`] when a batch is executed: true says that a frontend of
//!   this replica waits for the results.
//! - When another leader is known, or the connection to it broke, [`KeptRequests::forward_all`];
//!   when this replica became the leader, everything of [`KeptRequests::iter`] into its queue.
//! - From time to time [`KeptRequests::expire`], and again as long as it is not empty.
//!
//! Protocols in which each replica orders what it was given use [`KeptRequests`] without a queue:
//! they keep, propose, and propose again what [`KeptRequests::iter`] still holds.

use super::{RequestMessage, Taken, reject, table::Table};
use crate::{
    BatchId, BatchView, Bytes, Context, FrontendId, Lane, Protocol, ReplicaId, Time, limits,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::time::Duration;

/// Names a batch in the whole cluster.
pub type RequestKey = (FrontendId, BatchId);

/// The name of a batch; none for bytes that are not one, such as a slot with nothing in it.
#[must_use]
pub fn request_key(batch: &[u8]) -> Option<RequestKey> {
    let view = BatchView::new(batch).ok()?;
    Some((view.frontend(), view.id()))
}

/// The name of a batch that a frontend handed in. Bytes from outside are checked whole; a batch
/// that is malformed or in another frontend's name is dropped, with a mark.
pub fn own_request<P: Protocol>(
    from: FrontendId,
    batch: &[u8],
    ctx: &mut Context<'_, P>,
) -> Option<RequestKey> {
    let view = if from == ctx.embedded() {
        BatchView::new(batch)
    } else {
        BatchView::checked(batch)
    };
    let Ok(view) = view else {
        ctx.mark("ignored: malformed request");
        return None;
    };
    if batch.len() > limits::BATCH_BYTES_LIMIT {
        ctx.mark("ignored: request longer than any");
        return None;
    }
    if view.frontend() != from {
        ctx.mark("ignored: request in another frontend's name");
        return None;
    }
    if !ctx.may_order(&view) {
        return None;
    }
    Some((from, view.id()))
}

/// A request that its frontend has not repeated for this long is dropped: the frontend gave up.
const KEPT_MAX: Duration = Duration::from_secs(20);

#[derive(Hash)]
struct Kept {
    batch: Bytes,
    /// As [`limits::queue_share`] counts it.
    share: usize,
    asked_at: Time,
}

/// The requests that this replica's own frontends wait for; see the module.
#[derive(Default, Hash)]
pub struct KeptRequests {
    kept: BTreeMap<RequestKey, Kept>,
    bytes: usize,
    shares: usize,
    outbox: VecDeque<Bytes>,
}

impl KeptRequests {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many batches are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// True when no batch is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Their bytes together.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The kept requests, by name.
    pub fn iter(&self) -> impl Iterator<Item = (RequestKey, &Bytes)> {
        self.kept.iter().map(|(key, kept)| (*key, &kept.batch))
    }

    /// True when a batch of this name is kept.
    #[must_use]
    pub fn contains(&self, key: RequestKey) -> bool {
        self.kept.contains_key(&key)
    }

    /// When the frontend asked last for what is kept under this name.
    #[must_use]
    pub fn asked_at(&self, key: RequestKey) -> Option<Time> {
        self.kept.get(&key).map(|kept| kept.asked_at)
    }

    /// Keeps a batch until it is executed; a batch that is known already is only kept for longer.
    ///
    /// # Errors
    ///
    /// The answer for its frontend when that would be more than `bytes_max`, but for a batch that
    /// is longer than half of that and comes when little is kept; it is not kept. Such a batch
    /// counts for half, so that one client's does not keep all others out.
    pub fn keep(
        &mut self,
        key: RequestKey,
        batch: Bytes,
        bytes_max: usize,
        now: Time,
    ) -> Result<(), Taken> {
        if !self.kept.contains_key(&key)
            && !limits::queue_takes(self.shares, batch.len(), bytes_max)
        {
            return Err(Taken::Busy);
        }
        let share = limits::queue_share(batch.len(), bytes_max);
        self.bytes += batch.len();
        self.shares += share;
        let asked_at = now;
        let kept = Kept {
            batch,
            share,
            asked_at,
        };
        if let Some(before) = self.kept.insert(key, kept) {
            self.bytes -= before.batch.len();
            self.shares -= before.share;
        }
        Ok(())
    }

    /// Keeps a batch of a frontend until it is executed, or answers it that the queue is full. True
    /// when it is kept.
    pub fn take<P: Protocol<Message: RequestMessage>>(
        &mut self,
        key: RequestKey,
        batch: &Bytes,
        bytes_max: usize,
        ctx: &mut Context<'_, P>,
    ) -> bool {
        let kept = self.keep(key, batch.clone(), bytes_max, ctx.arrived());
        if let Err(taken) = kept {
            ctx.mark("request refused: queue full");
            reject(key, taken, ctx);
        }
        kept.is_ok()
    }

    /// Everything kept is to be ordered by this replica itself, and nothing sent.
    pub fn queue_all(&mut self, queue: &mut RequestQueue) {
        self.forward_nothing();
        for (key, batch) in self.iter() {
            queue.push(key, batch.clone());
        }
    }

    /// A batch was executed. True when it was waited for here.
    pub fn executed(&mut self, key: RequestKey) -> bool {
        let Some(kept) = self.kept.remove(&key) else {
            return false;
        };
        self.bytes -= kept.batch.len();
        self.shares -= kept.share;
        true
    }

    /// Drops requests that no frontend repeats any more.
    pub fn expire(&mut self, now: Time) {
        let (bytes, shares) = (&mut self.bytes, &mut self.shares);
        self.kept.retain(|_, kept| {
            let keep = now.since(kept.asked_at) < KEPT_MAX;
            if !keep {
                *bytes -= kept.batch.len();
                *shares -= kept.share;
            }
            keep
        });
    }

    /// A batch is to be sent to the leader.
    pub fn forward(&mut self, batch: Bytes) {
        self.outbox.push_back(batch);
    }

    /// Everything kept is to be sent to the leader, for the first time or again.
    pub fn forward_all(&mut self) {
        self.outbox.clear();
        self.outbox
            .extend(self.kept.values().map(|kept| kept.batch.clone()));
    }

    /// Nothing is to be sent: no leader is known, or it is this replica.
    pub fn forward_nothing(&mut self) {
        self.outbox.clear();
    }

    /// Sends the outbox in messages with at most `bytes_max` of batches each (or one batch), as far
    /// as there is room. `overhead` is more than a message takes besides its batches.
    pub fn send<P: Protocol>(
        &mut self,
        to: ReplicaId,
        bytes_max: usize,
        overhead: usize,
        ctx: &mut Context<'_, P>,
        message: impl Fn(Vec<Bytes>) -> P::Message,
    ) {
        // Messages of this turn are not in the queue yet.
        let mut sent = 0;
        while !self.outbox.is_empty() {
            let (mut bytes, mut count) = (0, 0);
            for batch in &self.outbox {
                if count > 0 && bytes + batch.len() > bytes_max {
                    break;
                }
                bytes += batch.len() + 4;
                count += 1;
            }
            let takes = match sent {
                0 => ctx.takes(to, bytes + overhead),
                _ => ctx.room(to) >= sent + bytes + overhead,
            };
            if !takes {
                return ctx.mark("forward waits for room");
            }
            sent += bytes + overhead;
            let batches = self.outbox.drain(..count).collect();
            ctx.send(to, Lane::Control, &message(batches));
        }
    }
}

/// The batches that a leader has still to order, each once; see the module.
#[derive(Default, Hash)]
pub struct RequestQueue {
    queue: VecDeque<(RequestKey, Bytes)>,
    bytes: usize,
    /// Queued, or ordered and not yet executed here.
    in_flight: Table<RequestKey, ()>,
}

impl RequestQueue {
    /// An empty queue of a leader whose log holds these batches, not yet executed.
    #[must_use]
    pub fn proposed(in_flight: impl Iterator<Item = RequestKey>) -> Self {
        let mut proposed = Self::default();
        for key in in_flight {
            proposed.in_flight.insert(key, ());
        }
        proposed
    }

    /// True when nothing waits to be ordered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The bytes that wait.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Queues a batch, unless it is queued or on its way already.
    pub fn push(&mut self, key: RequestKey, batch: Bytes) {
        if self.in_flight.insert(key, ()).is_none() {
            self.bytes += batch.len();
            self.queue.push_back((key, batch));
        }
    }

    /// Queues what another replica forwarded. `bytes_max` is what all replicas together may keep;
    /// what goes beyond it is dropped, and what is no batch, each with a mark.
    pub fn take_in<P: Protocol>(
        &mut self,
        batches: Vec<Bytes>,
        bytes_max: usize,
        ctx: &mut Context<'_, P>,
    ) {
        // Long ones count for less than they have where they are kept.
        let bytes_max = limits::queued_bytes_max(bytes_max);
        for batch in batches {
            let Some(key) = request_key(&batch) else {
                ctx.mark("ignored: malformed request");
                continue;
            };
            if !limits::queue_takes(self.bytes, batch.len(), bytes_max) {
                return ctx.mark("ignored: forwarded beyond all queues");
            }
            self.push(key, batch);
        }
    }

    /// The batches that wait to be ordered, in their order.
    pub fn waiting(&self) -> impl Iterator<Item = (RequestKey, &Bytes)> {
        self.queue.iter().map(|(key, batch)| (*key, batch))
    }

    /// The next batch to order, without taking it.
    #[must_use]
    pub fn peek(&self) -> Option<&Bytes> {
        self.queue.front().map(|(_, batch)| batch)
    }

    /// Takes the next batch to order it.
    pub fn pop(&mut self) -> Option<Bytes> {
        let (_, batch) = self.queue.pop_front()?;
        self.bytes -= batch.len();
        Some(batch)
    }

    /// A batch was executed here: the same name may come again.
    pub fn finished(&mut self, key: RequestKey) {
        self.in_flight.remove(&key);
    }

    /// Whether a batch waits, or is ordered and not yet executed here.
    #[must_use]
    pub fn holds(&self, key: RequestKey) -> bool {
        self.in_flight.contains_key(&key)
    }

    /// Drops of what waits all but what `keep` says.
    pub fn retain(&mut self, keep: impl Fn(RequestKey) -> bool) {
        let (bytes, in_flight) = (&mut self.bytes, &mut self.in_flight);
        self.queue.retain(|(key, batch)| {
            let keep = keep(*key);
            if !keep {
                *bytes -= batch.len();
                in_flight.remove(key);
            }
            keep
        });
    }

    /// Drops what waits: the owners keep it and send it to the next leader.
    pub fn drop_waiting(&mut self) {
        for (key, _) in self.queue.drain(..) {
            self.in_flight.remove(&key);
        }
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u64) -> RequestKey {
        (FrontendId(7), BatchId(id))
    }

    fn bytes(len: usize) -> Bytes {
        Bytes::from(alloc::vec![1; len])
    }

    #[test]
    fn kept_requests_are_bounded_and_duplicates_are_free() {
        let mut kept = KeptRequests::new();
        assert_eq!(kept.keep(key(1), bytes(60), 100, Time(0)), Ok(()));
        assert_eq!(
            kept.keep(key(2), bytes(60), 100, Time(0)),
            Err(Taken::Busy),
            "beyond the bound"
        );
        assert_eq!(kept.keep(key(1), bytes(60), 100, Time(0)), Ok(()));
        assert_eq!((kept.len(), kept.bytes()), (1, 60));
        assert!(kept.executed(key(1)), "a client waits for it");
        assert!(!kept.executed(key(1)), "once");
        assert_eq!((kept.len(), kept.bytes()), (0, 0));
    }

    #[test]
    fn small_batches_are_kept_beside_one_longer_than_the_queue() {
        let mut kept = KeptRequests::new();
        assert_eq!(kept.keep(key(1), bytes(300), 100, Time(0)), Ok(()));
        assert_eq!(kept.keep(key(2), bytes(30), 100, Time(0)), Ok(()));
        assert_eq!(kept.keep(key(3), bytes(60), 100, Time(0)), Err(Taken::Busy));
        assert_eq!(kept.keep(key(4), bytes(20), 100, Time(0)), Ok(()));
        assert_eq!(kept.keep(key(5), bytes(1), 100, Time(0)), Err(Taken::Busy));
        assert!(kept.bytes() <= limits::queued_bytes_max(100));
        assert!(kept.executed(key(1)));
        kept.expire(Time(0) + KEPT_MAX);
        assert_eq!((kept.len(), kept.bytes(), kept.shares), (0, 0, 0));
    }

    #[test]
    fn request_not_repeated_by_frontend_is_dropped() {
        let mut kept = KeptRequests::new();
        let later = Time(0) + KEPT_MAX / 2;
        kept.keep(key(1), bytes(5), 100, Time(0)).unwrap();
        kept.keep(key(2), bytes(5), 100, Time(0)).unwrap();
        kept.keep(key(2), bytes(5), 100, later).unwrap();
        kept.expire(Time(0) + KEPT_MAX);
        assert!(!kept.contains(key(1)) && kept.contains(key(2)));
        assert_eq!(kept.bytes(), 5);
    }

    #[test]
    fn batch_is_queued_once_until_it_is_executed() {
        let mut queue = RequestQueue::proposed(core::iter::once(key(1)));
        queue.push(key(1), bytes(5));
        assert!(queue.is_empty(), "it stands in the log");
        queue.push(key(2), bytes(5));
        queue.push(key(2), bytes(5));
        assert_eq!(queue.bytes(), 5);
        assert_eq!(queue.pop().map(|batch| batch.len()), Some(5));
        queue.push(key(2), bytes(5));
        assert!(queue.is_empty(), "on its way");
        queue.finished(key(2));
        queue.push(key(2), bytes(5));
        assert_eq!(queue.bytes(), 5);
        assert_eq!(
            queue.waiting().map(|(key, _)| key).collect::<Vec<_>>(),
            [key(2)]
        );
        queue.drop_waiting();
        assert!(queue.is_empty() && queue.bytes() == 0);
        queue.push(key(2), bytes(5));
        assert!(!queue.is_empty(), "dropped, so not in flight");
        queue.push(key(3), bytes(6));
        queue.retain(|it| it == key(2));
        assert_eq!(queue.bytes(), 5);
        queue.push(key(3), bytes(7));
        assert_eq!(queue.bytes(), 12, "dropped, so not in flight");
    }
}
