//! Requests on their way from the frontends of this replica to the leader.
//!
//! ```text
//!   Request ──► pending (until executed here) ──► outbox ── one Forward per turn ──► leader
//!                  │                                               (or its own queue)
//!                  └── a new leader is known: all of it goes out again
//! ```
//!
//! A replica keeps what its own frontends gave it and nothing else, so the leader's queue is
//! bounded by what all replicas may keep.

use super::{Message, MultiPaxos, replica::Role};
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

#[derive(Hash)]
struct Pending {
    batch: Bytes,
    asked_at: Time,
}

/// See the module.
#[derive(Default, Hash)]
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
        if let Some(old) = self.pending.insert(
            key,
            Pending {
                batch,
                asked_at: now,
            },
        ) {
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

/// The name of a batch; none for a slot with nothing in it.
pub(super) fn key_of(batch: &[u8]) -> Option<Key> {
    let view = BatchView::new(batch).ok()?;
    Some((view.frontend(), view.id()))
}

impl MultiPaxos {
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
        if matches!(self.role, Role::Recovering(_)) || self.leader.is_none() || self.leaving() {
            let taken = Message::Taken {
                batch: key.1,
                taken: Taken::Refused,
            };
            return ctx.send_frontend(from, taken);
        }
        match level {
            Level::Stale => ctx.query(batch, Slot(0), false, from, &()),
            Level::Linearizable => self.on_read(key, batch, ctx),
            Level::Ordered => self.on_write(key, batch, ctx),
        }
    }

    fn on_write(&mut self, key: Key, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let known = self.requests.pending.contains_key(&key);
        if !known && self.requests.pending_bytes + batch.len() > self.config.queue_bytes {
            ctx.mark("request refused: queue full");
            let taken = Message::Taken {
                batch: key.1,
                taken: Taken::Busy,
            };
            return ctx.send_frontend(key.0, taken);
        }
        self.requests.keep(key, batch.clone(), ctx.arrived());
        self.arm_housekeeping(ctx);
        match &mut self.role {
            Role::Leader(lead) => lead.enqueue(key, batch),
            _ => self.requests.outbox.push_back(batch),
        }
    }

    /// Batches that another replica took from its frontends.
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

    /// A leader is known: everything that has not been executed goes to it. What its predecessor
    /// ordered all the same is found by the sessions.
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
            if ctx.room(leader) < bytes + MESSAGE_BYTES {
                return ctx.mark("forward waits for room");
            }
            let batches = self.requests.outbox.drain(..count).collect();
            ctx.send(leader, Lane::Control, &Message::Forward { batches });
        }
    }
}

/// More than any message takes besides its batches.
pub(super) const MESSAGE_BYTES: usize = 128;
