//! Blocks that are missing, and blocks that are decided.
//!
//! ```text
//!   a block is named that is not connected here ──► Fetch{tip, above} ──► its sender, then others
//!   ◄── Blocks, oldest first, page by page ── or Trimmed: a state is fetched instead
//!   decided and connected ──► execute, oldest first ──► the root moves up
//! ```

use super::{
    Block, BlockId, Message, Racs, Summary, Why,
    replica::{Mode, Timer},
    tree::{Place, Root},
};
use crate::sadl::Name;
use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;
use quintet_replica::{Bytes, Context, Lane, ReplicaId, Slot, parts::request_key};

/// The most blocks that are asked for at a time: a few branches, each asked for at its tip.
const WANTED_MAX: usize = 64;
/// About how many bytes of blocks are sent at a time.
const PAGE_BYTES: usize = 1 << 20;

impl Racs {
    /// A block is decided, says a peer.
    pub(super) fn learn(&mut self, decided: BlockId, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        // What is here already can be executed while something higher is still on its way.
        let here = decided.round > self.tree.root().id.round
            && self.tree.connected(decided)
            && !self.tree.connected(self.decided);
        if decided.round <= self.decided.round && !here {
            return;
        }
        self.decided = decided;
        self.decided_from = from;
        let synchronous = decided.level == 0 && !matches!(self.mode, Mode::Recovering(_));
        if synchronous && decided.view > self.view && self.leader_of(decided.view) != self.id {
            // A quorum works in that view's synchronous mode.
            self.jump(decided.view, ctx);
        }
    }

    /// Executes what is decided and here. True when there was something.
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let decided = self.decided;
        if decided.round <= self.tree.root().id.round {
            return false;
        }
        match self.tree.place(decided) {
            Place::Connected => {
                if self.rank(decided) > self.rank(self.high) {
                    // Also while what it names is still on its way: views prune what the highest
                    // block does not stand upon. A promise that names it may be next.
                    self.high = decided;
                    self.write(decided, Why::Held, None, ctx);
                }
                let Some(ready) = self.ready(decided, ctx) else {
                    return false;
                };
                self.commit(ready, ctx);
                true
            }
            Place::Missing(_) => {
                let from = self.decided_from;
                self.want(decided, from, ctx);
                false
            }
            Place::Lost => {
                ctx.mark("ignored: decided beside what is decided here");
                self.decided = self.tree.root().id;
                false
            }
        }
    }

    /// The last block on the way to a connected one up to which all batches that blocks name are
    /// here; what is missing is asked for.
    fn ready(&mut self, decided: BlockId, ctx: &mut Context<'_, Self>) -> Option<BlockId> {
        let mut ready = None;
        for block in self.tree.path(decided) {
            let from = self.decided_from;
            if !self.have_batches(&block.ranges, from, ctx) {
                break;
            }
            ready = Some(block.id);
        }
        ready
    }

    fn commit(&mut self, decided: BlockId, ctx: &mut Context<'_, Self>) {
        self.write(decided, Why::Held, None, ctx);
        for block in self.tree.commit(decided) {
            self.execute(&block, ctx);
        }
        self.stand_upon(decided);
        self.tree.trim_history(self.config.log_memory_bytes);
        self.sadl.trim_history(self.config.log_memory_bytes);
        let end = self.tree.root().end;
        if self.fetching.take_if(|at_least| *at_least <= end).is_some() {
            ctx.mark("blocks overtook the state transfer");
        }
        if let Some(lead) = &mut self.lead {
            lead.decided(decided.round);
        }
        self.on_progress(decided, ctx.now());
    }

    /// The highest block after something was decided: that, or one that extends it.
    fn stand_upon(&mut self, decided: BlockId) {
        if self.rank(decided) > self.rank(self.high) {
            self.high = decided;
        } else if !self.tree.connected(self.high) {
            // Blocks that outrank a decided one extend it: what this replica voted for beside it
            // would be decided without it. Only who has forgotten, and says nothing before it has
            // asked, may hold something else: the highest block that its journal happens to have.
            assert!(
                matches!(self.mode, Mode::Recovering(_)) || self.weak(),
                "the highest block {} outranks the decided {decided} and does not extend it",
                self.high
            );
            self.high = decided;
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
                let batch = self.sadl.batch(name).cloned();
                (Some(name), batch.unwrap_or_default())
            })
            .collect();
        let direct = block.batches.iter().map(|batch| (None, batch.clone()));
        for (slot, (name, batch)) in (block.first.0..).map(Slot).zip(direct.chain(named)) {
            if let Some(name) = name {
                self.sadl.executed(name, slot);
                self.shown = 0;
            }
            let mut reply = None;
            if let Some(key) = request_key(&batch) {
                if let Some(lead) = &mut self.lead {
                    lead.queue.finished(key);
                }
                reply = self.requests.executed(key).then_some((key.0, (), None));
            }
            ctx.execute(slot, block.time, batch, reply);
        }
        for mark in &block.marks {
            if mark.replica == self.id && mark.life == self.life {
                self.reads.release(mark.sequence, block.end(), ctx);
            }
        }
    }

    /// A block, or something that leads to it, is missing.
    pub(super) fn want(&mut self, tip: BlockId, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        if self.wanted.contains_key(&tip) || self.wanted.len() >= WANTED_MAX {
            return;
        }
        // What is here and not decided yet is not missing, whoever names it.
        let here = tip.round <= self.tree.root().id.round || self.tree.connected(tip);
        if here || self.others.is_empty() {
            return;
        }
        ctx.mark("missing block asked for");
        let from = if self.others.contains(from) {
            from
        } else {
            self.next_peer(self.id)
        };
        let above = self.tree.root().id.round;
        self.wanted.insert(tip, (from, above));
        ctx.send(from, Lane::Control, &Message::Fetch { tip, above });
        if !self.fetch_armed {
            self.fetch_armed = true;
            ctx.set_timer(Timer::Fetch, self.fetch_patience());
        }
    }

    pub(super) fn fetch_patience(&self) -> Duration {
        Duration::from_millis(40).max(self.round_trip * 2)
    }

    pub(super) fn next_peer(&self, after: ReplicaId) -> ReplicaId {
        let members = self.members as u16;
        let next = ReplicaId((after.0 + 1) % members);
        if next == self.id {
            ReplicaId((next.0 + 1) % members)
        } else {
            next
        }
    }

    fn drop_found(&mut self) {
        let tree = &self.tree;
        self.wanted
            .retain(|tip, _| matches!(tree.place(*tip), Place::Missing(_)));
    }

    pub(super) fn on_fetch_timer(&mut self, ctx: &mut Context<'_, Self>) {
        self.fetch_armed = false;
        self.drop_found();
        let root = self.tree.root().id.round;
        let tips: Vec<BlockId> = self.wanted.keys().copied().collect();
        for tip in tips {
            let Some((from, _)) = self.wanted.get(&tip).copied() else {
                continue;
            };
            let next = self.next_peer(from);
            self.wanted.insert(tip, (next, root));
            ctx.send(next, Lane::Control, &Message::Fetch { tip, above: root });
        }
        self.fetch_batches_again(ctx);
        if !self.wanted.is_empty() || !self.wanted_batches.is_empty() {
            self.fetch_armed = true;
            ctx.set_timer(Timer::Fetch, self.fetch_patience());
        }
    }

    pub(super) fn on_fetch(
        &mut self,
        from: ReplicaId,
        tip: BlockId,
        above: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let room = ctx.room(from).saturating_sub(super::sync::MESSAGE_BYTES);
        match self.tree.chain(tip, above, PAGE_BYTES.min(room / 2)) {
            Some(blocks) if blocks.is_empty() => {}
            Some(blocks) => {
                let bytes: usize = blocks.iter().map(|block| block.bytes()).sum();
                if bytes < room {
                    ctx.send(from, Lane::Bulk, &Message::Blocks { blocks });
                }
            }
            None => {
                let slot = self
                    .tree
                    .kept_from()
                    .map_or(self.tree.root().end, Slot::previous);
                ctx.send(from, Lane::Control, &Message::Trimmed { slot });
            }
        }
    }

    pub(super) fn on_blocks(
        &mut self,
        from: ReplicaId,
        blocks: Vec<Arc<Block>>,
        ctx: &mut Context<'_, Self>,
    ) {
        let last = blocks.last().map(|block| block.id);
        let mut new = false;
        for block in blocks {
            new |= self.tree.insert(block);
        }
        self.drop_found();
        let Some(last) = last.filter(|last| new && self.tree.connected(*last)) else {
            return;
        };
        // More of the same: the next page.
        let more: Vec<BlockId> = self
            .wanted
            .iter()
            .filter(|(tip, (asked, above))| *asked == from && *above < last.round && **tip > last)
            .map(|(tip, _)| *tip)
            .collect();
        for tip in more {
            self.wanted.insert(tip, (from, last.round));
            ctx.send(
                from,
                Lane::Control,
                &Message::Fetch {
                    tip,
                    above: last.round,
                },
            );
            ctx.set_timer(Timer::Fetch, self.fetch_patience());
            self.fetch_armed = true;
        }
    }

    pub(super) fn on_trimmed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        // Any newer state helps. Only so much is asked for, not what that peer has trimmed: it may
        // be gone, or come back from a restart with less, and nobody else have as much.
        let at_least = self.tree.root().end.next();
        if slot < at_least || self.fetching.is_some() {
            return;
        }
        ctx.mark("needs trimmed blocks");
        self.fetching = Some(at_least);
        ctx.fetch_state(self.others, at_least);
    }

    /// A peer's state is here: everything up to its last block is decided and executed.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        if self.fetching.is_some_and(|at_least| slot >= at_least) {
            self.fetching = None;
        }
        if slot <= self.tree.root().end {
            return;
        }
        let root = Root {
            id: summary.decided,
            end: slot,
            time: summary.time,
        };
        self.tree.reset(root);
        if self.decided.round < root.id.round {
            self.decided = root.id;
        }
        self.stand_upon(root.id);
        if let Some(lead) = &mut self.lead {
            lead.decided(root.id.round);
        }
        self.sadl.install(&summary.heads);
        self.trim(slot, ctx);
        self.drop_found();
        self.reads.repeat();
        if self.heard {
            self.requests.pass_on_all();
        }
        self.on_progress(root.id, ctx.now());
    }
}
