//! Blocks that are missing, and blocks that are decided.
//!
//! ```text
//!   a block is named that is not connected here ──► Fetch{missing, have} ──► its sender, then others
//!   ◄── Blocks, oldest first, page by page ── or Trimmed: a state is fetched instead
//!   decided and connected ──► execute, oldest first ──► the root moves up
//! ```
//!
//! A question names some blocks that are here, so the answer begins behind the newest of them that
//! leads to what is missing: nothing that a journal brought back is sent again. Of what is missing
//! on one branch one page is in progress at a time, and each tells how far it is decided, so that
//! it is executed before the next one comes. A replica that is far behind asks for what is decided
//! and for nothing else, and keeps little of what is newer: it would not carry the rest, too.

use super::{
    Block, BlockId, Message, Racs, Summary, Why,
    bug::Bug,
    message::MESSAGE_BYTES,
    replica::Timer,
    tree::{Chain, Place, Root},
};
use crate::sadl::{Dissemination, Name};
use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;
use quintet_replica::{Bytes, Context, Lane, ReplicaId, Slot, parts::request_key};

/// About how many bytes of blocks are sent at a time, at most.
const PAGE_BYTES: usize = 1 << 20;
/// No more blocks are fetched when that many wait for batches.
const AHEAD_MAX: u64 = 4096;

impl Racs {
    /// Takes up a block; not when its parent is missing and much waits already.
    pub(super) fn take(&mut self, block: Arc<Block>) -> bool {
        let bytes_max = self.config.window_bytes.saturating_mul(2);
        self.tree.insert(block, (self.config.window * 4, bytes_max))
    }

    /// Whether the decided chain is further away than a link's loss can explain.
    fn far_behind(&self) -> bool {
        let reached = self.tree.reached().round.max(self.tree.root().id.round);
        self.tree.decided().round > reached + self.config.window as u64 * 4
    }

    /// A block is decided, says a peer.
    pub(super) fn learn(&mut self, decided: BlockId, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        // The blocks that are here can be executed while a higher one is still on its way.
        if decided.round > self.tree.reached().round && self.tree.connected(decided) {
            self.tree.reach(decided);
        }
        let root = self.tree.root().id;
        if decided.round == root.round && decided != root {
            return ctx.contradicted(format_args!(
                "{decided} was decided, says {from}, and {root} of the same round here"
            ));
        }
        if !self.tree.learn(decided, from) {
            return;
        }
        // A quorum works in that view, or has left it.
        self.follow(Self::view_of(decided), ctx);
    }

    /// Executes what is decided and here. True when there was something.
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let (decided, root) = (self.tree.decided(), self.tree.root().id);
        if decided.round <= root.round {
            return false;
        }
        if self.tree.connected(decided) {
            self.tree.reach(decided);
        } else {
            self.want_decided(ctx);
        }
        let reached = self.tree.reached();
        if reached.round <= root.round || !self.tree.connected(reached) {
            self.tree.reach(root);
            return false;
        }
        if self.tree.outranks(reached) {
            // Also while what it names is still on its way: views prune what the highest
            // block does not stand upon. A promise that names it may be next.
            self.tree.set_high(reached);
            self.write(reached, Why::Held, None, ctx);
        }
        let Some(ready) = self.ready(reached, ctx) else {
            return false;
        };
        self.commit(ready, ctx);
        true
    }

    fn want_decided(&mut self, ctx: &mut Context<'_, Self>) {
        if self.missing.has_decided() {
            return;
        }
        if self.tree.place(self.tree.decided()) == Place::Lost {
            let (decided, from, root) = (
                self.tree.decided(),
                self.tree.decided_from(),
                self.tree.root().id,
            );
            return ctx.contradicted(format_args!(
                "{decided} was decided, says {from}, and does not stand upon {root}, which is \
                 decided here"
            ));
        }
        self.want(self.tree.decided(), self.tree.decided_from(), ctx);
    }

    fn commit(&mut self, decided: BlockId, ctx: &mut Context<'_, Self>) {
        self.write(decided, Why::Held, None, ctx);
        for block in self.tree.commit(decided) {
            self.execute(&block, ctx);
        }
        self.stand_upon(decided, ctx);
        self.tree.trim_history(self.config.log_memory_bytes);
        let end = self.tree.root().end;
        if self.missing.state.reached(end) {
            ctx.mark("blocks overtook the state transfer");
        }
        if let Some(lead) = &mut self.sync.lead {
            lead.window.answered(decided.round);
        }
        self.on_progress(decided, ctx.now());
    }

    /// The highest block after something was decided: that, or one that extends it.
    fn stand_upon(&mut self, decided: BlockId, ctx: &mut Context<'_, Self>) {
        if self.tree.outranks(decided) {
            self.tree.set_high(decided);
        } else if !self.tree.connected(self.tree.high()) {
            // It is decided with a block that stands upon it and has not come yet, and that one
            // outranks what was voted for here, which lost. The view's synchronous mode is over:
            // a leader that continued from lower would use a round of its view once more.
            ctx.mark("highest block lost");
            self.tree.set_high(decided);
            if self.view.is_stopped() {
                // Others could never count a timeout with what lost.
                self.view.stop(decided);
                self.promise(ctx);
                self.outbox.want();
            } else {
                self.time_out(ctx);
            }
        }
    }

    fn execute(&mut self, block: &Block, ctx: &mut Context<'_, Self>) {
        if block.batches.is_empty() && block.ranges.is_empty() {
            ctx.execute(block.first, block.time, Bytes::new(), None);
        }
        let named: Vec<(Option<Name>, Bytes)> = block
            .ranges
            .iter()
            .flat_map(|range| range.names())
            .map(|name| {
                let batch = self.sadl.fetch(name).cloned();
                (Some(name), batch.unwrap_or_default())
            })
            .collect();
        let direct = block.batches.iter().map(|batch| (None, batch.clone()));
        for (slot, (name, batch)) in (block.first.0..).map(Slot).zip(direct.chain(named)) {
            if let Some(name) = name {
                self.sadl.executed(name, slot);
            }
            let mut reply = None;
            if let Some(key) = request_key(&batch) {
                if let Some(lead) = &mut self.sync.lead {
                    lead.queue.finished(key);
                }
                if self.config.is_hybrid() {
                    let asked = self.relay.kept.asked_at(key);
                    self.hybrid.executed(&batch, asked, ctx.now());
                }
                reply = self.relay.kept.executed(key).then_some((key.0, (), None));
            }
            ctx.execute(slot, block.time, batch, reply);
        }
        for mark in &block.marks {
            if !self.reads.owns(mark) {
                continue;
            }
            while let Some((key, batch)) = self.reads.pop_up_to(mark.sequence) {
                ctx.query(batch, block.end(), false, key.0, &());
            }
        }
        if let Some(way) = block.switch {
            self.on_switch(way, block.time, ctx);
        }
    }

    /// A block, or something that leads to it, is missing.
    pub(super) fn want(&mut self, tip: BlockId, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let decided = tip == self.tree.decided();
        if self.me.others().is_empty() || !decided && self.far_behind() {
            return;
        }
        // A block that is here and not decided yet is not missing, whichever replica names it.
        let Place::Missing(missing) = self.tree.place(tip) else {
            return;
        };
        if !self.missing.want(missing, decided) {
            return;
        }
        ctx.mark("missing block asked for");
        let from = if self.me.others().contains(from) {
            from
        } else {
            self.next_peer(self.me.id())
        };
        self.missing.ask(missing, from, decided);
        self.ask(missing, ctx);
    }

    fn ask(&mut self, missing: BlockId, ctx: &mut Context<'_, Self>) {
        self.arm_fetch(ctx);
        let Some(asked) = self.missing.get(missing) else {
            return;
        };
        let ahead = self
            .tree
            .reached()
            .round
            .saturating_sub(self.tree.root().id.round);
        if ahead > AHEAD_MAX || !asked.decided && self.far_behind() {
            return;
        }
        let mut have = self.tree.steps(self.tree.high());
        let here = |id: &BlockId| self.tree.connected(*id);
        // A page that came for another question may lead to this one, too.
        let pages = self.missing.pages();
        have.extend(pages.chain([self.tree.reached()]).filter(here));
        have.sort_unstable_by_key(|id| core::cmp::Reverse((id.round, *id)));
        have.dedup();
        let question = Message::Fetch { tip: missing, have };
        ctx.send(asked.from, Lane::Control, &question);
    }

    pub(super) fn arm_fetch(&mut self, ctx: &mut Context<'_, Self>) {
        if let Some(longer) = self.missing.arm() {
            let pause = Duration::from_millis(40).max(self.timing.round_trip() * 2);
            ctx.set_timer(Timer::Fetch, pause * longer);
        }
    }

    /// Something that was asked for has come: what is left is waited for again.
    pub(super) fn fetch_moves(&mut self, ctx: &mut Context<'_, Self>) {
        self.missing.moved();
        if !self.missing.is_empty() {
            self.arm_fetch(ctx);
        }
    }

    pub(super) fn next_peer(&self, after: ReplicaId) -> ReplicaId {
        let members = self.me.members() as u16;
        let next = ReplicaId((after.0 + 1) % members);
        if next == self.me.id() {
            ReplicaId((next.0 + 1) % members)
        } else {
            next
        }
    }

    pub(super) fn on_fetch_timer(&mut self, ctx: &mut Context<'_, Self>) {
        self.missing.fired();
        self.missing.drop_found(&self.tree);
        for missing in self.missing.blocks() {
            if let Some(asked) = self.missing.get(missing) {
                let next = self.next_peer(asked.from);
                self.missing.ask(missing, next, asked.decided);
                self.ask(missing, ctx);
            }
        }
        if self.missing.is_empty() {
            self.missing.moved();
        } else {
            self.arm_fetch(ctx);
        }
    }

    pub(super) fn on_fetch(
        &mut self,
        from: ReplicaId,
        tip: BlockId,
        have: &[BlockId],
        ctx: &mut Context<'_, Self>,
    ) {
        let room = ctx.room(from).saturating_sub(MESSAGE_BYTES);
        match self.tree.chain(tip, have, self.page_bytes().min(room / 2)) {
            Chain::Nothing => {}
            Chain::Blocks(blocks, decided) => {
                let bytes: usize = blocks.iter().map(|block| block.bytes()).sum();
                if ctx.takes(from, bytes + MESSAGE_BYTES) {
                    let page = Message::Blocks {
                        tip,
                        blocks,
                        decided,
                    };
                    ctx.send(from, Lane::Bulk, &page);
                }
            }
            Chain::Trimmed => {
                let slot = self
                    .tree
                    .kept_from()
                    .map_or(self.tree.root().end, Slot::previous);
                ctx.send(from, Lane::Control, &Message::Trimmed { slot });
            }
        }
    }

    pub(super) fn page_bytes(&self) -> usize {
        PAGE_BYTES.min(self.config.batch_bytes_max)
    }

    pub(super) fn on_blocks(
        &mut self,
        from: ReplicaId,
        tip: BlockId,
        blocks: Vec<Arc<Block>>,
        decided: BlockId,
        ctx: &mut Context<'_, Self>,
    ) {
        let last = blocks.last().map(|block| block.id);
        let reached = self.tree.reached();
        let mut new = false;
        for block in blocks {
            new |= self.take(block);
        }
        self.learn(decided, from, ctx);
        self.missing.drop_found(&self.tree);
        let connected = last.filter(|last| self.tree.connected(*last));
        // A page that is here already, and that nothing voted for leads to, leads on all the same:
        // the next question begins behind it, in its time.
        self.missing.on_page(tip, connected);
        if !new && self.tree.reached() == reached {
            return;
        }
        self.fetch_moves(ctx);
        // More of the same: the next page.
        if let Some(asked) = self.missing.get(tip) {
            self.missing.ask(tip, from, asked.decided);
            self.ask(tip, ctx);
        }
    }

    pub(super) fn on_trimmed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        // Any newer state helps. Only the state up to this end is requested, not what that peer has
        // trimmed: it may be gone, or come back from a restart with less, and no other replica have
        // as much.
        let end = self.tree.root().end;
        if slot > end {
            ctx.mark("needs trimmed blocks");
            self.missing
                .state
                .ask(end.next(), end, self.me.others(), ctx);
        }
    }

    /// A peer's state is here: everything up to its last block is decided and executed.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.missing.state.reached(slot);
        if slot <= self.tree.root().end {
            return;
        }
        let root = Root {
            id: summary.decided,
            end: slot,
            time: summary.time,
        };
        self.tree.install(root);
        self.stand_upon(root.id, ctx);
        self.keep_undecided(ctx);
        if let Some(lead) = &mut self.sync.lead {
            lead.window.answered(root.id.round);
        }
        self.sadl.install(&summary.heads);
        self.sadl.trim(slot, ctx);
        let before = self.way();
        if !self.injected(Bug::SwitchUnsaved) {
            self.hybrid.install(summary.course);
        }
        if self.way() != before {
            self.on_dissemination(ctx);
        }
        self.missing.drop_found(&self.tree);
        self.reads.repeat();
        if self.sync.is_heard() {
            self.relay.kept.forward_all();
        }
        self.on_progress(root.id, ctx.now());
        self.follow(Self::view_of(root.id), ctx);
    }
}
