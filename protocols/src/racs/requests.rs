//! Requests between the frontends of this replica and the replica that orders them (R16).
//!
//! ```text
//!   Request ──► kept until executed here ──┬── synchronous: Forward to the view's leader
//!                                          ├── this replica leads: its queue
//!                                          └── asynchronous: into the own blocks
//!   a view begins: all of it goes out again, right behind the new-view; its leader keeps what
//!   comes before it leads, and what it could not propose goes into its block of level 1
//! ```

use super::{Mark, Message, Racs, message::MESSAGE_BYTES, replica::Mode};
use crate::sadl::Dissemination;
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, Lane, ReplicaId, parts::RequestKey};

impl Racs {
    pub(super) fn on_write(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let bytes_max = self.config.queue_bytes;
        if !self.relay.kept.take(key, &batch, bytes_max, ctx) {
            return;
        }
        self.relay.waits(ctx.now());
        self.housekeeping.arm(ctx);
        if self.disseminates() {
            self.sadl.replicate(key, batch);
        } else if let Some(lead) = &mut self.sync.lead {
            if lead.open {
                lead.queue.push(key, batch);
            }
        } else if self.sync.knows_leader() {
            self.relay.kept.forward(batch);
        }
    }

    pub(super) fn on_forward(
        &mut self,
        from: ReplicaId,
        mark: Option<Mark>,
        batches: Vec<Bytes>,
        ctx: &mut Context<'_, Self>,
    ) {
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.me.members());
        if self.peers.is_ahead(from, self.view.number()) {
            // The sender is in a view that this replica is about to lead.
            return self.relay.ahead.take_in(batches, bytes_max, ctx);
        }
        match &mut self.sync.lead {
            Some(lead) => {
                if let Some(mark) = mark.filter(|mark| mark.replica == from && lead.open) {
                    lead.marks.insert(from, mark);
                }
                lead.queue.take_in(batches, bytes_max, ctx);
            }
            None => ctx.mark("ignored: forwarded to a follower"),
        }
    }

    /// Requests of this turn go to the leader, or into its next block.
    pub(super) fn flush_requests(&mut self, ctx: &mut Context<'_, Self>) {
        // One that timed out alone has clients, too, and hears the leader again.
        if !matches!(self.mode, Mode::Synchronous) {
            return;
        }
        if let Some(lead) = &mut self.sync.lead {
            if lead.open
                && let Some(mark) = self.reads.unsaid()
            {
                lead.marks.insert(mark.replica, mark);
            }
            return;
        }
        if !self.sync.knows_leader() {
            return;
        }
        let leader = self.view.leader();
        if self.sync.is_heard()
            && let Some(mark) = self.reads.unsaid()
        {
            let message = Message::Forward {
                mark: Some(mark),
                batches: Vec::new(),
            };
            ctx.send(leader, Lane::Control, &message);
        }
        if self.disseminates() {
            return self.relay.kept.forward_nothing();
        }
        let bytes_max = self.config.batch_bytes_max;
        let message = |batches| Message::Forward {
            mark: None,
            batches,
        };
        self.relay
            .kept
            .send(leader, bytes_max, MESSAGE_BYTES, ctx, message);
    }

    /// Messages in flight may be lost.
    pub(super) fn on_link_renewed(&mut self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.arm_repeat(ctx);
        // The last word may have gone to a peer that could not hear it.
        self.outbox.want();
        self.sadl.renewed(peer);
        if let Mode::Asynchronous(fallback) = &mut self.mode {
            fallback.renewed(peer);
        }
        if self.view.leader() == peer && !self.sync.is_heard() {
            // The new-view may be lost, too: the requests go again behind the next one.
            self.sync.unintroduce();
            self.relay.kept.forward_nothing();
        }
        if self.sync.is_heard() && self.view.leader() == peer {
            self.relay.kept.forward_all();
            self.reads.repeat();
            self.sync.want_answer();
        }
    }
}
