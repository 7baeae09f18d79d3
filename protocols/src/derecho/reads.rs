//! Linearizable reads from the local state.
//!
//! ```text
//!   reads of a turn ── BARRIER + 1 ──► members that have not wedged ── ECHO ──► a majority
//!     ─► what was in the order when the read came is delivered ─► query
//! ```
//!
//! A command that was acknowledged before the read came was persisted by every member of its view.
//! If that is this view, it is in this replica's order. If it were a later one, a majority of this
//! view had wedged before, and no majority could echo without having wedged (D17).

use super::{
    Derecho,
    plant::Plant,
    read_queue::Read,
    sst::{self, BARRIER},
};
use quintet_replica::{
    Bytes, Context, Slot,
    parts::{RequestKey, Taken, reject, reject_read},
};

impl Derecho {
    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if self.planted(Plant::ReadsLocal) {
            return ctx.query(batch, Slot(0), false, key.0, &());
        }
        let (target, bytes_max) = (self.stream.log.end(), self.config.queue_bytes);
        if !(self.stream.reads).push(key, batch, target, bytes_max, ctx.arrived()) {
            return reject_read(key, ctx);
        }
        self.housekeeping.arm(ctx);
    }

    /// The end of a turn: one barrier for all reads that came.
    pub(super) fn raise_barrier(&mut self) {
        if self.membership.wedging() || !self.stream.reads.wants_barrier() {
            return;
        }
        let barrier = self.sst.own(BARRIER) + 1;
        self.sst.set(BARRIER, barrier);
        let column = self.sst.layout.echo(self.me.id());
        self.sst.set(column, barrier);
        self.stream.reads.raised(barrier);
    }

    pub(super) fn echo_barriers(&mut self) {
        for reader in self.membership.live_peers().iter() {
            let barrier = self.sst.read(reader, BARRIER);
            let column = self.sst.layout.echo(reader);
            if barrier > self.sst.own(column) {
                self.sst.set(column, barrier);
            }
        }
    }

    pub(super) fn release_reads(&mut self, ctx: &mut Context<'_, Self>) {
        if self.membership.wedging() {
            return ctx.mark("read waits for the next view");
        }
        let column = self.sst.layout.echo(self.me.id());
        let (live, majority) = (
            self.membership.live(),
            self.membership.view().members.len() / 2 + 1,
        );
        let Self { sst, stream, .. } = self;
        let echoed = |barrier| sst::count(live, |id| sst.read(id, column) >= barrier) >= majority;
        let sure = stream.log.sure();
        while let Some(read) = stream.reads.release(sure, echoed) {
            let Read {
                key, batch, target, ..
            } = read;
            ctx.query(batch, target, false, key.0, &());
        }
    }

    pub(super) fn refuse_reads(&mut self, ctx: &mut Context<'_, Self>) {
        while let Some(read) = self.stream.reads.pop() {
            reject(read.key, Taken::Refused, ctx);
        }
    }
}
