//! Requests between the frontends of this replica and the leader.
//!
//! ```text
//!   Request ──► kept until executed here ──► one Forward per turn ──► leader
//!                  │                              (or its own queue)
//!                  └── a new leader is known: all of it goes out again
//! ```

use super::{Message, MultiPaxos, message::MESSAGE_BYTES, replica::Role};
use crate::sadl::Dissemination;
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, ReplicaId, parts::Election, parts::RequestKey};

impl MultiPaxos {
    pub(super) const fn is_recovering(&self) -> bool {
        matches!(self.role, Role::Recovering(_))
    }

    /// Whether a leader takes what is handed to it.
    pub(super) fn has_leader(&self) -> bool {
        self.leader.leader().is_some() && !self.is_transferring()
    }

    /// Whether nothing is refused for now.
    pub(super) fn takes_all(&self) -> bool {
        !self.is_recovering() && self.has_leader()
    }

    pub(super) fn on_write(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self
            .requests
            .take(key, &batch, self.config.queue_bytes, ctx)
        {
            return;
        }
        self.housekeeping.arm(ctx);
        if self.disseminates() {
            return self.sadl.replicate(key, batch);
        }
        match &mut self.role {
            Role::Leader(lead) => lead.queue.push(key, batch),
            _ => self.requests.forward(batch),
        }
    }

    /// Batches that another replica took from its frontends.
    pub(super) fn on_forward(
        &mut self,
        from: ReplicaId,
        batches: Vec<Bytes>,
        ctx: &mut Context<'_, Self>,
    ) {
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.me.members());
        match &mut self.role {
            Role::Leader(lead) if lead.is_transferring() => {
                ctx.mark("ignored: forwarded to a leader about to stop");
            }
            Role::Leader(lead) => {
                lead.peers[from.index()].forwarded();
                lead.queue.take_in(batches, bytes_max, ctx);
            }
            _ => ctx.mark("ignored: forwarded to a follower"),
        }
    }

    /// A leader is known: everything that has not been executed goes to it. The sessions detect
    /// batches that its predecessor ordered all the same.
    pub(super) fn forward_all(&mut self) {
        if self.disseminates() {
            self.requests.forward_nothing();
            for (key, batch) in self.requests.iter() {
                self.sadl.replicate(key, batch.clone());
            }
            return;
        }
        match &mut self.role {
            Role::Leader(lead) => self.requests.queue_all(&mut lead.queue),
            _ if self.leader.leader().is_some() => self.requests.forward_all(),
            _ => self.requests.forward_nothing(),
        }
    }

    pub(super) fn send_forward(&mut self, ctx: &mut Context<'_, Self>) {
        let Some(leader) = self.leader.other_than(self.me.id()) else {
            return;
        };
        let (bytes_max, overhead) = (self.config.batch_bytes_max, MESSAGE_BYTES);
        let message = |batches| Message::Forward { batches };
        self.requests
            .send(leader, bytes_max, overhead, ctx, message);
    }
}
