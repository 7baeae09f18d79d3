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
    plant::Plant,
    replica::{Mode, Timer},
    tree::{Chain, Place, Root},
};
use crate::sadl::{Dissemination, Name};
use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;
use quintet_replica::{Bytes, Context, Lane, ReplicaId, Slot, parts::request_key};

/// The most missing blocks that are asked for at a time, each on a branch of its own.
const WANTED_MAX: usize = 64;
/// About how many bytes of blocks are sent at a time, at most.
const PAGE_BYTES: usize = 1 << 20;
/// No more blocks are fetched when that many wait for batches.
const AHEAD_MAX: u64 = 4096;
/// A question's patience is doubled at most so often.
const TRIES_MAX: u32 = 3;

/// A missing block that is asked for.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Asked {
    /// Whom last.
    from: ReplicaId,
    /// The newest block on the way that has come.
    last: BlockId,
    /// What is decided stands upon it.
    decided: bool,
}

impl Racs {
    /// Takes up a block; not when its parent is missing and much waits already.
    pub(super) fn take(&mut self, block: Arc<Block>) -> bool {
        let bytes_max = self.config.window_bytes.saturating_mul(2);
        self.tree.insert(block, (self.config.window * 4, bytes_max))
    }

    /// What is decided is further away than what a link's loss can explain.
    fn far_behind(&self) -> bool {
        let reached = self.reached.round.max(self.tree.root().id.round);
        self.decided.round > reached + self.config.window as u64 * 4
    }

    /// A block is decided, says a peer.
    pub(super) fn learn(&mut self, decided: BlockId, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        // What is here already can be executed while something higher is still on its way.
        if decided.round > self.reached.round && self.tree.connected(decided) {
            self.reached = decided;
        }
        let root = self.tree.root().id;
        if decided.round == root.round && decided != root {
            return ctx.contradicted(format_args!(
                "{decided} was decided, says {from}, and {root} of the same round here"
            ));
        }
        if decided.round <= self.decided.round {
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
        let (decided, root) = (self.decided, self.tree.root().id);
        if decided.round <= root.round {
            return false;
        }
        if self.tree.connected(decided) {
            self.reached = decided;
        } else {
            self.want_decided(ctx);
        }
        let reached = self.reached;
        if reached.round <= root.round || !self.tree.connected(reached) {
            self.reached = root;
            return false;
        }
        if self.rank(reached) > self.rank(self.high) {
            // Also while what it names is still on its way: views prune what the highest
            // block does not stand upon. A promise that names it may be next.
            self.high = reached;
            self.write(reached, Why::Held, None, ctx);
        }
        let Some(ready) = self.ready(reached, ctx) else {
            return false;
        };
        self.commit(ready, ctx);
        true
    }

    fn want_decided(&mut self, ctx: &mut Context<'_, Self>) {
        if self.wanted.values().any(|asked| asked.decided) {
            return;
        }
        if self.tree.place(self.decided) == Place::Lost {
            let (decided, from, root) = (self.decided, self.decided_from, self.tree.root().id);
            return ctx.contradicted(format_args!(
                "{decided} was decided, says {from}, and does not stand upon {root}, which is \
                 decided here"
            ));
        }
        self.want(self.decided, self.decided_from, ctx);
    }

    fn commit(&mut self, decided: BlockId, ctx: &mut Context<'_, Self>) {
        self.write(decided, Why::Held, None, ctx);
        for block in self.tree.commit(decided) {
            self.execute(&block, ctx);
        }
        self.stand_upon(decided, ctx);
        self.tree.trim_history(self.config.log_memory_bytes);
        let end = self.tree.root().end;
        if self.fetching.reached(end) {
            ctx.mark("blocks overtook the state transfer");
        }
        if let Some(lead) = &mut self.lead {
            lead.window.answered(decided.round);
        }
        self.on_progress(decided, ctx.now());
    }

    /// The highest block after something was decided: that, or one that extends it.
    fn stand_upon(&mut self, decided: BlockId, ctx: &mut Context<'_, Self>) {
        if self.rank(decided) > self.rank(self.high) {
            self.high = decided;
        } else if !self.tree.connected(self.high) {
            // It is decided with a block that stands upon it and has not come yet, and that one
            // outranks what was voted for here, which lost. The view's synchronous mode is over:
            // a leader that continued from lower would use a round of its view once more.
            ctx.mark("highest block lost");
            self.high = decided;
            if self.stopped.is_some() {
                // Others could never count a timeout with what lost.
                self.stopped = Some(decided);
                self.promise(ctx);
                self.say_due = true;
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
                if let Some(lead) = &mut self.lead {
                    lead.queue.finished(key);
                }
                if self.config.hybrid {
                    let asked = self.requests.asked_at(key);
                    self.watch.executed(&batch, asked, ctx.now());
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
        if let Some(way) = block.switch {
            self.on_switch(way, block.time, ctx);
        }
    }

    /// A block, or something that leads to it, is missing.
    pub(super) fn want(&mut self, tip: BlockId, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let decided = tip == self.decided;
        if self.others.is_empty() || !decided && self.far_behind() {
            return;
        }
        // What is here and not decided yet is not missing, whichever replica names it.
        let Place::Missing(missing) = self.tree.place(tip) else {
            return;
        };
        if let Some(asked) = self.wanted.get_mut(&missing) {
            asked.decided |= decided;
            return;
        }
        if self.wanted.len() >= WANTED_MAX && !decided {
            return;
        }
        ctx.mark("missing block asked for");
        let asked = Asked {
            from: if self.others.contains(from) {
                from
            } else {
                self.next_peer(self.id)
            },
            last: BlockId::GENESIS,
            decided,
        };
        self.wanted.insert(missing, asked);
        self.ask(missing, ctx);
    }

    fn ask(&mut self, missing: BlockId, ctx: &mut Context<'_, Self>) {
        self.arm_fetch(ctx);
        let Some(asked) = self.wanted.get(&missing).copied() else {
            return;
        };
        let ahead = self.reached.round.saturating_sub(self.tree.root().id.round);
        if ahead > AHEAD_MAX || !asked.decided && self.far_behind() {
            return;
        }
        let mut have = self.tree.steps(self.high);
        let here = |id: &BlockId| self.tree.connected(*id);
        // What came for another question may lead to this one, too.
        let last = self.wanted.values().map(|asked| asked.last);
        have.extend(last.chain([self.reached]).filter(here));
        have.sort_unstable_by_key(|id| core::cmp::Reverse((id.round, *id)));
        have.dedup();
        let question = Message::Fetch { tip: missing, have };
        ctx.send(asked.from, Lane::Control, &question);
    }

    pub(super) fn arm_fetch(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.fetch_armed {
            self.fetch_armed = true;
            let patience = Duration::from_millis(40).max(self.round_trip * 2);
            ctx.set_timer(
                Timer::Fetch,
                patience * (1 << self.fetch_tries.min(TRIES_MAX)),
            );
        }
    }

    /// Something that was asked for has come: what is left is waited for again.
    pub(super) fn fetch_moves(&mut self, ctx: &mut Context<'_, Self>) {
        self.fetch_tries = 0;
        self.fetch_armed = false;
        if !self.wanted.is_empty() {
            self.arm_fetch(ctx);
        }
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
            .retain(|missing, _| tree.place(*missing) == Place::Missing(*missing));
    }

    pub(super) fn on_fetch_timer(&mut self, ctx: &mut Context<'_, Self>) {
        self.fetch_armed = false;
        self.fetch_tries = self.fetch_tries.saturating_add(1);
        self.drop_found();
        let missing: Vec<BlockId> = self.wanted.keys().copied().collect();
        for missing in missing {
            if let Some(from) = self.wanted.get(&missing).map(|asked| asked.from) {
                let next = self.next_peer(from);
                self.wanted
                    .entry(missing)
                    .and_modify(|asked| asked.from = next);
                self.ask(missing, ctx);
            }
        }
        if self.wanted.is_empty() {
            self.fetch_tries = 0;
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
        let room = ctx.room(from).saturating_sub(super::sync::MESSAGE_BYTES);
        match self.tree.chain(tip, have, self.page_bytes().min(room / 2)) {
            Chain::Nothing => {}
            Chain::Blocks(blocks, decided) => {
                let bytes: usize = blocks.iter().map(|block| block.bytes()).sum();
                if ctx.takes(from, bytes + super::sync::MESSAGE_BYTES) {
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
        let reached = self.reached;
        let mut new = false;
        for block in blocks {
            new |= self.take(block);
        }
        self.learn(decided, from, ctx);
        self.drop_found();
        let connected = last.filter(|last| self.tree.connected(*last));
        if let Some(asked) = self.wanted.get_mut(&tip) {
            // A page that is here already, and that nothing voted for leads to, leads on all the
            // same: the next question begins behind it, in its time.
            asked.last = connected.unwrap_or(asked.last);
        }
        if !new && self.reached == reached {
            return;
        }
        self.fetch_moves(ctx);
        // More of the same: the next page.
        if let Some(asked) = self.wanted.get_mut(&tip) {
            asked.from = from;
            self.ask(tip, ctx);
        }
    }

    pub(super) fn on_trimmed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        // Any newer state helps. Only so much is asked for, not what that peer has trimmed: it may
        // be gone, or come back from a restart with less, and nobody else have as much.
        let end = self.tree.root().end;
        if slot > end {
            ctx.mark("needs trimmed blocks");
            self.fetching.ask(end.next(), end, self.others, ctx);
        }
    }

    /// A peer's state is here: everything up to its last block is decided and executed.
    pub(super) fn install(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.reached(slot);
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
        if self.reached.round < root.id.round {
            self.reached = root.id;
        }
        self.stand_upon(root.id, ctx);
        self.keep_undecided(ctx);
        if let Some(lead) = &mut self.lead {
            lead.window.answered(root.id.round);
        }
        self.sadl.install(&summary.heads);
        self.sadl.trim(slot, ctx);
        let before = self.way();
        if !self.planted(Plant::SwitchUnsaved) {
            self.course = summary.course;
        }
        if self.way() != before {
            self.on_dissemination(ctx);
        }
        self.drop_found();
        self.reads.repeat();
        if self.heard {
            self.requests.pass_on_all();
        }
        self.on_progress(root.id, ctx.now());
    }
}
