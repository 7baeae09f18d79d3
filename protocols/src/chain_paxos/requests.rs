//! Requests between the frontends of this replica and the leader.
//!
//! ```text
//!   Request ──► kept until executed here ──► one Forward per turn ──► leader
//!                  │                              (or its own queue)
//!                  └── a new leader is known: all of it goes out again
//! ```
//!
//! The paper's `submitted` (Alg. 2, l. 1-3; Alg. 3, l. 18-19).

use super::{ChainPaxos, Message, replica::Role};
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, parts::Election, parts::RequestKey};

impl ChainPaxos {
    /// Whether no write is refused for now.
    pub(super) fn takes_all(&self) -> bool {
        // A replica that waits outside the chain gets the entries from the leader, and executes them
        // if it has its state.
        let outside = self.chain.is_outside() && !(self.leader.leader().is_some() && self.able());
        !outside && !self.is_transferring()
    }

    pub(super) fn on_write(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self
            .requests
            .take(key, &batch, self.config.queue_bytes, ctx)
        {
            return;
        }
        self.housekeeping.arm(ctx);
        match &mut self.role {
            Role::Leader(lead) => lead.queue.push(key, batch),
            _ => self.requests.forward(batch),
        }
    }

    /// Batches that another replica took from its frontends (the paper's REDIRECT_REQUEST).
    pub(super) fn on_forward(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.me.members());
        match &mut self.role {
            Role::Leader(lead) if lead.is_transferring() => {
                ctx.mark("ignored: forwarded to a leader about to stop");
            }
            Role::Leader(lead) => lead.queue.take_in(batches, bytes_max, ctx),
            _ => ctx.mark("ignored: forwarded to a follower"),
        }
    }

    /// A leader is known: everything that has not been executed goes to it.
    pub(super) fn forward_all(&mut self) {
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
        let (bytes_max, overhead) = (self.config.batch_bytes_max, self.message_bytes());
        let message = |batches| Message::Forward { batches };
        self.requests
            .send(leader, bytes_max, overhead, ctx, message);
    }

    /// More than any message takes besides its batches.
    pub(super) const fn message_bytes(&self) -> usize {
        256 + 32 * self.me.members()
    }
}
