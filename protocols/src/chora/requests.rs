//! Requests between the frontends of this replica and the slots that it, or another, proposes in.
//!
//! ```text
//!   Request ──► kept until executed here ──► own queue, when this replica proposes
//!      │           │                     └──► one Forward per turn ──► a proposer
//!      │           └── another view: all of it goes out again
//!      └── no view, but soon: waits for it
//! ```

use super::{Chora, Message};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Protocol as _, ReplicaId, Time,
    parts::{Admitted, Asked, RequestKey, Taken, reject},
};

/// More than any message takes besides its batches.
const MESSAGE_BYTES: usize = 128;
/// So long after a view change began, requests still wait for its end; looked at with heartbeats.
const VIEW_TIMEOUT: Duration = Duration::from_millis(250);

impl Chora {
    pub(super) fn on_asked(&mut self, asked: Asked, ctx: &mut Context<'_, Self>) {
        if self.is_away(ctx.now()) {
            return reject(asked.key, Taken::Refused, ctx);
        }
        if !self.established() {
            return self.await_view(asked, ctx);
        }
        match asked.admit(ctx) {
            Some(Admitted::Read(key, batch)) => self.on_read(key, batch, ctx),
            Some(Admitted::Write(key, batch)) => self.on_write(key, batch, ctx),
            None => {}
        }
    }

    fn is_away(&self, now: Time) -> bool {
        self.catch_up.is_recovering() || self.election.is_leaving(now)
    }

    /// Whether no request is refused for now.
    pub(super) fn takes_all(&self, now: Time) -> bool {
        !self.is_away(now) && self.established()
    }

    fn on_write(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let bytes_max = self.config.queue_bytes;
        if !self.relay.kept.take(key, &batch, bytes_max, ctx) {
            return;
        }
        self.housekeeping.arm(ctx);
        if self.proposer.proposes() {
            self.proposer.queue.push(key, batch);
        } else {
            self.relay.kept.forward(batch);
        }
    }

    /// Whether a view is about to begin that changes in good order. While it does, requests wait
    /// for it: refused ones would be offered again later than it takes. One that comes to nothing
    /// must not keep them: a frontend that is refused at once can tell for certain that nothing was
    /// executed, and one that had to ask twice cannot. It asks again after 400 ms at the soonest.
    fn begins_soon(&self, now: Time) -> bool {
        let timeout = VIEW_TIMEOUT.min(self.config.suspect_timeout / 2);
        self.view.tries() <= 1 && now < self.view.since() + timeout
    }

    /// Keeps a request until the view begins, or refuses it.
    fn await_view(&mut self, asked: Asked, ctx: &mut Context<'_, Self>) {
        let (key, most) = (asked.key, self.config.queue_bytes);
        if !self.begins_soon(ctx.now()) || !self.relay.wait((key.0, asked.request), most) {
            return reject(key, Taken::Refused, ctx);
        }
        ctx.mark("request waits for the view");
    }

    /// Takes what has waited for the view when it has begun, and refuses it when that lasts.
    pub(super) fn take_waiting(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.relay.is_waiting() || !self.established() && self.begins_soon(ctx.now()) {
            return;
        }
        for (from, request) in self.relay.take_waiting() {
            self.on_request(from, Message::Request(request), ctx);
        }
    }

    /// Batches that a replica took from its frontends and may not propose itself.
    pub(super) fn on_forward(&mut self, batches: Vec<Bytes>, ctx: &mut Context<'_, Self>) {
        if !self.proposer.proposes() || self.election.is_leaving(ctx.now()) {
            return ctx.mark("ignored: forwarded to a replica that does not propose");
        }
        // One replica's frontends can wait for no more than its queue holds.
        let bytes_max = self.config.queue_bytes.saturating_mul(self.me.members());
        self.proposer.queue.take_in(batches, bytes_max, ctx);
    }

    /// The view has begun: everything that was not executed is proposed, or goes to a proposer. The
    /// sessions detect batches that were ordered all the same.
    pub(super) fn take_requests(&mut self) {
        if self.proposer.proposes() {
            self.relay.kept.queue_all(&mut self.proposer.queue);
        } else {
            self.relay.kept.forward_all();
        }
    }

    /// The proposer that orders for this replica.
    pub(super) fn proposer(&self) -> Option<ReplicaId> {
        let init = self.view.init().filter(|_| self.established())?;
        let up = |id: &ReplicaId| *id != self.me.id() && !self.peers[id.index()].contact.is_down();
        let count = init.proposers.len();
        (0..count)
            .map(|step| init.proposers[(self.me.id().index() + step) % count])
            .find(up)
    }

    pub(super) fn send_forward(&mut self, ctx: &mut Context<'_, Self>) {
        if self.proposer.proposes() {
            return;
        }
        let Some(proposer) = self.proposer() else {
            return;
        };
        let (bytes_max, overhead) = (self.config.batch_bytes_max, MESSAGE_BYTES);
        let message = |batches| Message::Forward { batches };
        self.relay
            .kept
            .send(proposer, bytes_max, overhead, ctx, message);
    }
}
