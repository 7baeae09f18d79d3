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
//!
//! In a shard the echoes of all its members do as well: a later view in which it is active needs one
//! of them that had wedged, or left, before (see `shards.rs`).

use super::{
    Derecho,
    bug::Bug,
    read_queue::Read,
    shards::At,
    sst::{self, BARRIER},
    stream::Stream,
};
use quintet_replica::{
    Bytes, Context, ReplicaId, Slot,
    parts::{RequestKey, Taken, reject, reject_read},
};

/// Refuses the reads that wait for this order.
pub(super) fn refuse_all(stream: &mut Stream, ctx: &mut Context<'_, Derecho>) {
    ctx.in_group(stream.group, |ctx| {
        while let Some(read) = stream.reads.pop() {
            reject(read.key, Taken::Refused, ctx);
        }
    });
}

impl Derecho {
    pub(super) fn on_read(
        &mut self,
        at: At,
        key: RequestKey,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.injected(Bug::ReadsLocal) {
            return ctx.query(batch, Slot(0), false, key.0, &());
        }
        let bytes_max = self.queue_bytes_max(at, |stream| stream.reads.bytes());
        let target = self.of(at).log.end();
        if !(self.of_mut(at).reads).push(key, batch, target, bytes_max, ctx.arrived()) {
            return reject_read(key, ctx);
        }
        self.arm_housekeeping(ctx);
    }

    /// The end of a turn: one barrier for all reads that came.
    pub(super) fn raise_barrier(&mut self) {
        let wants = |stream: &Stream| stream.reads.wants_barrier();
        let any = wants(&self.stream) || self.shards.iter().any(wants);
        if self.membership.wedging() || !any {
            return;
        }
        let barrier = self.sst.own(BARRIER) + 1;
        self.sst.set(BARRIER, barrier);
        let column = self.sst.layout.echo(self.me.id());
        self.sst.set(column, barrier);
        self.stream.reads.raised(barrier);
        for shard in &mut self.shards {
            shard.reads.raised(barrier);
        }
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

    pub(super) fn release_reads(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        if self.membership.wedging() {
            return ctx.mark("read waits for the next view");
        }
        let column = self.sst.layout.echo(self.me.id());
        let (live, majority) = (
            self.membership.live(),
            self.membership.view().members.len() / 2 + 1,
        );
        let Self {
            sst,
            stream,
            shards,
            ..
        } = self;
        let (stream, in_shard) = match at {
            None => (stream, false),
            Some(shard) => (&mut shards[shard], true),
        };
        let members = stream.set();
        let echoed = |barrier| {
            let has = |id: ReplicaId| sst.read(id, column) >= barrier;
            sst::count(live, has) >= majority || in_shard && sst::all(members, has)
        };
        let sure = stream.log.sure();
        ctx.in_group(stream.group, |ctx| {
            while let Some(read) = stream.reads.release(sure, echoed) {
                let Read {
                    key, batch, target, ..
                } = read;
                ctx.query(batch, target, false, key.0, &());
            }
        });
    }

    /// Refuses all reads that wait, in all groups.
    pub(super) fn refuse_reads(&mut self, ctx: &mut Context<'_, Self>) {
        refuse_all(&mut self.stream, ctx);
        for shard in &mut self.shards {
            refuse_all(shard, ctx);
        }
    }
}
