//! Requests on their way from the frontends of this replica to the leader.
//!
//! ```text
//!   Request ──► pending (until executed here) ──► outbox ── one Forward per turn ──► leader
//!                  │                                               (or its own queue)
//!                  └── a new leader is known: all of it goes out again
//! ```
//!
//! The paper's `submitted` (Alg. 2, l. 1-3; Alg. 3, l. 18-19). A replica keeps what its own
//! frontends gave it and nothing else, so the leader's queue is bounded by what all may keep.
//! That a request is ordered twice when it is sent again is the sessions' to find.

use super::{ChainPaxos, Message, replica::Role};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    BatchId, BatchView, Bytes, Context, FrontendId, Lane, Level, Slot, Time, parts::Taken,
};

/// Names a batch in the whole cluster.
pub(super) type Key = (FrontendId, BatchId);

/// A request that its frontend has not repeated for this long is forgotten: the frontend gave up.
const PENDING_MAX: Duration = Duration::from_secs(20);

struct Pending {
    batch: Bytes,
    asked_at: Time,
}

/// See the module.
#[derive(Default)]
pub(super) struct Requests {
    pending: BTreeMap<Key, Pending>,
    pending_bytes: usize,
    outbox: VecDeque<Bytes>,
}

impl Requests {
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub const fn bytes(&self) -> usize {
        self.pending_bytes
    }

    /// True when the batch was waited for here.
    pub fn executed(&mut self, key: Key) -> bool {
        match self.pending.remove(&key) {
            Some(pending) => {
                self.pending_bytes -= pending.batch.len();
                true
            }
            None => false,
        }
    }

    fn keep(&mut self, key: Key, batch: Bytes, now: Time) {
        self.pending_bytes += batch.len();
        let asked_at = now;
        if let Some(old) = self.pending.insert(key, Pending { batch, asked_at }) {
            self.pending_bytes -= old.batch.len();
        }
    }

    /// Forgets what nobody asks for any more.
    pub fn expire(&mut self, now: Time) {
        let bytes = &mut self.pending_bytes;
        self.pending.retain(|_, pending| {
            let keep = now.since(pending.asked_at) < PENDING_MAX;
            if !keep {
                *bytes -= pending.batch.len();
            }
            keep
        });
    }
}

/// The name of a batch; none for bytes that are not one.
pub(super) fn key_of(batch: &[u8]) -> Option<Key> {
    let view = BatchView::new(batch).ok()?;
    Some((view.frontend(), view.id()))
}

impl ChainPaxos {
    pub(super) fn on_request(
        &mut self,
        from: FrontendId,
        level: Level,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        let view = if from == ctx.embedded() {
            BatchView::new(&batch)
        } else {
            BatchView::checked(&batch)
        };
        let Ok(view) = view else {
            return ctx.mark("ignored: malformed request");
        };
        if view.frontend() != from {
            return ctx.mark("ignored: request in another frontend's name");
        }
        let key = (from, view.id());
        if level == Level::Stale {
            return ctx.query(batch, Slot(0), false, from, &());
        }
        // Whoever is not in the chain sees no entry until it is back in it.
        if self.position.is_none() || self.leaving() {
            return Self::refuse(key, Taken::Refused, ctx);
        }
        match level {
            Level::Linearizable => self.on_read(key, batch, ctx),
            Level::Ordered | Level::Stale => self.on_write(key, batch, ctx),
        }
    }

    pub(super) fn refuse(key: Key, taken: Taken, ctx: &mut Context<'_, Self>) {
        let batch = key.1;
        ctx.send_frontend(key.0, Message::Taken { batch, taken });
    }

    fn on_write(&mut self, key: Key, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let known = self.requests.pending.contains_key(&key);
        if !known && self.requests.pending_bytes + batch.len() > self.config.queue_bytes {
            ctx.mark("request refused: queue full");
            return Self::refuse(key, Taken::Busy, ctx);
        }
        self.requests.keep(key, batch.clone(), ctx.arrived());
        self.arm_housekeeping(ctx);
        match &mut self.role {
            Role::Leader(lead) => lead.enqueue(key, batch),
            _ => self.requests.outbox.push_back(batch),
        }
    }

    /// Batches that another replica took from its frontends (the paper's REDIRECT_REQUEST).
    pub(super) fn on_forward(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.members);
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: forwarded to a follower");
        };
        if lead.leaving.is_some() {
            return ctx.mark("ignored: forwarded to a leader about to stop");
        }
        for batch in batches {
            let Some(key) = key_of(&batch) else {
                ctx.mark("ignored: malformed request");
                continue;
            };
            if lead.queue_bytes + batch.len() > bytes_max {
                return ctx.mark("ignored: forwarded beyond all queues");
            }
            lead.enqueue(key, batch);
        }
    }

    /// A leader is known: everything that has not been executed goes to it.
    pub(super) fn forward_all(&mut self) {
        self.requests.outbox.clear();
        if let Role::Leader(lead) = &mut self.role {
            for (key, pending) in &self.requests.pending {
                lead.enqueue(*key, pending.batch.clone());
            }
        } else if self.leader.is_some() {
            let batches = self
                .requests
                .pending
                .values()
                .map(|pending| pending.batch.clone());
            self.requests.outbox.extend(batches);
        }
    }

    pub(super) fn send_forward(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(leader) = self.leader.filter(|leader| *leader != self.id) else {
            return;
        };
        while !self.requests.outbox.is_empty() {
            let (mut bytes, mut count) = (0, 0);
            for batch in &self.requests.outbox {
                if count > 0 && bytes + batch.len() > self.config.batch_bytes_max {
                    break;
                }
                bytes += batch.len() + 4;
                count += 1;
            }
            if ctx.room(leader) < bytes + self.message_bytes() {
                return ctx.mark("forward waits for room");
            }
            let batches = self.requests.outbox.drain(..count).collect();
            ctx.send(leader, Lane::Control, &Message::Forward { batches });
        }
    }

    /// More than any message takes besides its batches.
    pub(super) const fn message_bytes(&self) -> usize {
        256 + 32 * self.members
    }
}
