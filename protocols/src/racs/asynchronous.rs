//! The asynchronous mode: everybody proposes two blocks, one above the other; then the coin says
//! whose counted.
//!
//! ```text
//!   level 1 ──ProposeAsync──► all ──VoteAsync──► n-f: level 2 ──ProposeAsync──► all
//!                                                                                │ VoteAsync
//!   coin elects one of those that completed ◄── n-f Complete ◄── Complete ◄── n-f┘
//! ```
//!
//! A replica that sees another's level 2 before its own level 1 has its votes puts its own level 2
//! upon that one's level 1, which has them (R3).

use super::{
    Block, BlockId, Certificate, Message, Racs, Record, Why,
    bug::Bug,
    fallback::Fallback,
    message::MESSAGE_BYTES,
    outbox::Due,
    quotes::{Quote, completed, quote, shortened},
    replica::Mode,
    tree::Place,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, ReplicaSet,
    parts::{RequestKey, request_key},
};

/// Others' requests are taken along as long as a block has less than this part of the bytes that it
/// may have: everybody copies them, and what each leaves out is in a block of its owner's.
const OTHERS_PART: usize = 2;

impl Racs {
    fn fallback(&mut self) -> Option<&mut Fallback> {
        match &mut self.mode {
            Mode::Asynchronous(fallback) => Some(fallback),
            _ => None,
        }
    }

    /// The others' blocks of level 1 that this replica voted for, by maker.
    fn others_level_1(&self) -> Vec<Arc<Block>> {
        let Mode::Asynchronous(fallback) = &self.mode else {
            return Vec::new();
        };
        let held = |id| self.tree.get(id).cloned();
        fallback.level_1().filter_map(held).collect()
    }

    /// The waiting batches to which `parent` does not lead: of this replica's clients first, then
    /// those forwarded to it while it led, and those in the blocks `beside` it. Only one block of
    /// level 2 counts in a view, so each is to have the requests of all. With the places of those
    /// that stand beside it.
    fn batches_above(&self, parent: BlockId, beside: &[Arc<Block>]) -> (Vec<Bytes>, Vec<Quote>) {
        let path = self.tree.path(parent);
        let mut there: BTreeSet<_> = path
            .iter()
            .flat_map(|block| block.batches.iter())
            .filter_map(|batch| request_key(batch))
            .collect();
        let direct = !self.disseminates();
        type Candidate<'a> = (RequestKey, &'a Bytes, Option<(BlockId, u32)>);
        let own = self.relay.kept.iter().filter(|_| direct);
        let own: Vec<Candidate<'_>> = own.map(|(key, batch)| (key, batch, None)).collect();
        // Requests of others stand upon their earlier ones: those must be there, too.
        let root = self.tree.root().id;
        let leads_to = |id: BlockId| id == root || path.iter().any(|block| block.id == id);
        let forwarded = match &self.mode {
            Mode::Asynchronous(fallback) if leads_to(self.tree.high()) => fallback.forwarded(),
            _ => &[],
        };
        let beside = beside.iter().filter(|block| leads_to(block.parent));
        let others = beside.flat_map(|block| {
            let places = block.batches.iter().zip(0u32..);
            places.map(|(batch, place)| (batch, Some((block.id, place))))
        });
        let forwarded = forwarded.iter().map(|batch| (batch, None));
        let others = forwarded.chain(others);
        let others = others.filter_map(|(batch, place)| Some((request_key(batch)?, batch, place)));
        let others: Vec<Candidate<'_>> = others.collect();
        let bytes_max = self.config.batch_bytes_max;
        let mut bytes = 0;
        let (mut batches, mut quotes) = (Vec::new(), Vec::new());
        for (requests, bytes_max) in [(own, bytes_max), (others, bytes_max / OTHERS_PART)] {
            for (key, batch, place) in requests {
                if there.contains(&key) {
                    continue;
                }
                let more = bytes + batch.len() + 4;
                if !batches.is_empty() && more > bytes_max {
                    break;
                }
                bytes = more;
                there.insert(key);
                batches.push(batch.clone());
                if let Some((of, place)) = place {
                    quote(&mut quotes, of, place);
                }
            }
        }
        (batches, quotes)
    }

    fn propose_own(&mut self, level: u8, parent: BlockId, ctx: &mut Context<'_, Self>) {
        let Some((end, time)) = self.tree.end_of(parent) else {
            return;
        };
        if level == 1 && !self.view.is_above(parent) {
            // The block elected by this mode is known already: only its certificate is missing
            // here.
            return;
        }
        let time = Self::time_after(time, ctx);
        let beside = if level == 2 {
            self.others_level_1()
        } else {
            Vec::new()
        };
        let (batches, quotes) = self.batches_above(parent, &beside);
        let ranges = self.ranges_above(parent);
        let view = self.view.number();
        let mut marks: BTreeMap<ReplicaId, super::Mark> = BTreeMap::new();
        for block in &beside {
            let own = |mark: &&super::Mark| mark.replica == block.id.owner;
            let mark = block.marks.iter().find(own);
            marks.extend(mark.map(|mark| (mark.replica, *mark)));
        }
        if level == 1 {
            marks.extend(self.peers.marks(view).map(|mark| (mark.replica, mark)));
        }
        if let Some(mark) = self.reads.newest() {
            marks.insert(self.me.id(), mark);
        }
        let round = parent.round + 1;
        let id = BlockId {
            view,
            level,
            round,
            owner: self.me.id(),
        };
        let marks = marks.into_values().collect();
        let block = Arc::new(Block {
            id,
            parent,
            first: end.next(),
            time,
            marks,
            batches,
            ranges,
            switch: None,
        });
        self.take(block);
        self.tree.set_quotes(id, quotes.clone());
        if let Some(fallback) = self.fallback() {
            fallback.propose(id, quotes);
        }
        self.write(id, Why::Own, Some(Due::Own(id)), ctx);
    }

    pub(super) fn propose_level_1(&mut self, ctx: &mut Context<'_, Self>) {
        let high = self.tree.high();
        self.propose_own(1, high, ctx);
    }

    /// An own block is durable, with the own vote for it.
    pub(super) fn on_own_durable(&mut self, id: BlockId, ctx: &mut Context<'_, Self>) {
        let view = self.view.number();
        let Some(fallback) = self.fallback().filter(|_| id.view == view) else {
            return;
        };
        fallback.show(id);
        self.show(id, true, self.me.others(), ctx);
    }

    /// Shows an own block, quoting or whole. A replica without room for it is owed the whole block.
    fn show(&mut self, id: BlockId, quoting: bool, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Some(mut block) = self.tree.get(id).cloned() else {
            return;
        };
        let mut quotes = Vec::new();
        if let Some(fallback) = self.fallback().filter(|_| quoting && id.level == 2) {
            quotes = fallback.quotes().to_vec();
        }
        if !quotes.is_empty() {
            block = shortened(&block, &quotes);
        }
        let bytes = block.bytes() + quotes.len() * Quote::SIZE + MESSAGE_BYTES;
        let room = |peer: &ReplicaId| ctx.takes(*peer, bytes);
        let (now, later): (Vec<ReplicaId>, Vec<ReplicaId>) = to.iter().partition(room);
        let now = now.into_iter().collect();
        let message = Message::ProposeAsync { block, quotes };
        ctx.multicast(now, Lane::Control, &message);
        if let Some(fallback) = self.fallback() {
            fallback.owe(later.into_iter().collect());
        }
    }

    /// The same again, to those that have not voted.
    pub(super) fn say_asynchronously(&mut self, ctx: &mut Context<'_, Self>) {
        let others = self.me.others();
        let Some(fallback) = self.fallback() else {
            return;
        };
        let completed = fallback.completed();
        if let Some((id, rest)) = fallback.repeat(others) {
            self.show(id, false, rest, ctx);
        }
        if let Some(block) = completed {
            ctx.multicast(others, Lane::Control, &Message::Complete { block });
        }
    }

    pub(super) fn on_propose_async(
        &mut self,
        from: ReplicaId,
        block: Arc<Block>,
        quotes: Vec<Quote>,
        ctx: &mut Context<'_, Self>,
    ) {
        let id = block.id;
        if id.owner != from || id.level == 0 {
            return ctx.mark("ignored: block of another");
        }
        if id.view < self.view.number() {
            return self.send_exit(from, id.view, ctx);
        }
        // N-f have timed out in it: nothing more is decided in its synchronous mode, and this
        // replica may be one of the n-f that are left.
        self.time_out_in(id.view, ctx);
        let Some(complete) = self.complete(&block, &quotes) else {
            return self.peers.keep_quoting(from, block, quotes);
        };
        self.on_block(complete, quotes, ctx);
    }

    /// A peer's block of level 1 or 2 that is complete, and what it quoted.
    pub(super) fn on_block(
        &mut self,
        block: Arc<Block>,
        quotes: Vec<Quote>,
        ctx: &mut Context<'_, Self>,
    ) {
        let (id, view) = (block.id, self.view.number());
        let Some(fallback) = self.fallback().filter(|_| id.view == view) else {
            return self.peers.keep_early(block);
        };
        match fallback.vote_of(id) {
            Some(true) => self.send_vote_async(id, ctx),
            Some(false) => {}
            None => {
                fallback.wait_for(id);
                self.take(block);
                self.tree.set_quotes(id, quotes);
            }
        }
    }

    pub(super) fn on_vote_async(&mut self, from: ReplicaId, block: BlockId) {
        if let Some(fallback) = self.fallback() {
            fallback.on_vote(from, block);
        }
    }

    pub(super) fn on_complete(
        &mut self,
        from: ReplicaId,
        block: BlockId,
        ctx: &mut Context<'_, Self>,
    ) {
        if block.owner != from || block.level != 2 {
            return ctx.mark("ignored: completion of another");
        }
        if block.view < self.view.number() {
            return self.send_exit(from, block.view, ctx);
        }
        self.time_out_in(block.view, ctx);
        self.peers.on_complete(from, block);
    }

    /// A quorum of completions of this view ends it.
    pub(super) fn note_completions(&mut self) {
        if !matches!(self.mode, Mode::Asynchronous(_)) || self.view.has_exit() {
            return;
        }
        let view = self.view.number();
        let completed = self.peers.completed(view);
        if completed.len() >= self.me.majority() {
            self.on_certificate(Certificate { view, completed });
        }
    }

    /// Votes for what has come, and continues to level 2 and to the end. True when something moved.
    pub(super) fn continue_asynchronously(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        if !matches!(self.mode, Mode::Asynchronous(_)) {
            return false;
        }
        self.take_early();
        self.take_quoting(ctx);
        let mut moved = self.vote_for_waiting(ctx);
        let quorum = self.me.majority() - usize::from(self.injected(Bug::MinorityCommits));
        let Some(fallback) = self.fallback() else {
            return moved;
        };
        if let Some(parent) = fallback.next_parent(quorum) {
            self.propose_own(2, parent, ctx);
            // Nothing, when what was decided meanwhile stands beside the own level 1.
            moved |= self.fallback().is_some_and(|mode| mode.own()[1].is_some());
        }
        if let Some(block) = self.fallback().and_then(|mode| mode.complete(quorum)) {
            self.peers.on_complete(self.me.id(), block);
            ctx.multicast(
                self.me.others(),
                Lane::Control,
                &Message::Complete { block },
            );
            moved = true;
        }
        moved
    }

    fn take_early(&mut self) {
        for block in self.peers.take_early(self.view.number()) {
            let id = block.id;
            self.take(block);
            if let Some(fallback) = self.fallback() {
                fallback.wait_for(id);
            }
        }
    }

    fn vote_for_waiting(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let Some(fallback) = self.fallback() else {
            return false;
        };
        let waiting = fallback.waiting();
        let mut moved = false;
        for id in waiting {
            match self.tree.place(id) {
                Place::Connected => {
                    moved = true;
                    self.vote_async(id, ctx);
                }
                Place::Missing(_) => self.want(id, id.owner, ctx),
                Place::Lost => {
                    if let Some(fallback) = self.fallback() {
                        fallback.drop_waiting(id);
                    }
                }
            }
        }
        moved
    }

    fn vote_async(&mut self, id: BlockId, ctx: &mut Context<'_, Self>) {
        let parent = self.tree.get(id).map(|block| block.parent);
        let Some(fallback) = self.fallback() else {
            return;
        };
        let beside = fallback.vote(id);
        let adopt = parent.filter(|_| beside);
        let why = if id.level == 2 { Why::Fall } else { Why::Held };
        self.write(id, why, Some(Due::VoteAsync(id)), ctx);
        if let Some(parent) = adopt {
            ctx.mark("another level 1 taken over");
            self.propose_own(2, parent, ctx);
        }
    }

    pub(super) fn send_vote_async(&mut self, id: BlockId, ctx: &mut Context<'_, Self>) {
        let view = self.view.number();
        let Some(fallback) = self.fallback().filter(|_| id.view == view) else {
            return;
        };
        fallback.voted(id);
        let vote = Message::VoteAsync {
            block: id,
            incarnations: self.peers.incarnations(),
        };
        ctx.send(id.owner, Lane::Control, &vote);
    }

    /// Before a checkpoint, and after a state from elsewhere was installed, because the journal is
    /// trimmed then: see [`Self::write_quoting`] and [`Self::keep_own`].
    pub(super) fn keep_undecided(&mut self, ctx: &mut Context<'_, Self>) {
        self.write_quoting(ctx);
        self.keep_own(ctx);
    }

    /// Writes complete what the journal holds by quotes: a trim may take what is quoted.
    pub(super) fn write_quoting(&mut self, ctx: &mut Context<'_, Self>) {
        let above = self.tree.root().end.next();
        for block in self.tree.take_quoting() {
            ctx.mark("quoting block written complete");
            let record = Record::Block {
                why: Why::Held,
                id: block.id,
                block: Some(block.clone()),
                quotes: Vec::new(),
            };
            ctx.persist(block.first.max(above), &record);
        }
    }

    /// Writes own blocks that are decided or lost above the checkpoint by name, so that a restart
    /// makes no others in their places.
    pub(super) fn keep_own(&self, ctx: &mut Context<'_, Self>) {
        let Mode::Asynchronous(fallback) = &self.mode else {
            return;
        };
        let root = self.tree.root();
        let stays = |id: &BlockId| *id != root.id && self.tree.connected(*id);
        for id in fallback.own().iter().flatten().copied() {
            if !stays(&id) {
                let record = Record::Block {
                    why: Why::Own,
                    id,
                    block: None,
                    quotes: Vec::new(),
                };
                ctx.persist(root.end.next(), &record);
            }
        }
    }

    /// The block with what it quotes, if all of that is here.
    fn complete(&self, block: &Arc<Block>, quotes: &[Quote]) -> Option<Arc<Block>> {
        completed(block, quotes, |id| self.tree.get(id))
    }

    /// Takes up the blocks of this view that can be made whole by now.
    fn take_quoting(&mut self, ctx: &mut Context<'_, Self>) {
        for maker in self.me.others().iter() {
            let kept = self.peers.take_quoting(maker, self.view.number());
            let Some((block, quotes)) = kept else {
                continue;
            };
            if let Some(here) = self.tree.get(block.id).cloned() {
                self.on_block(here, Vec::new(), ctx);
            } else if let Some(complete) = self.complete(&block, &quotes) {
                self.on_block(complete, quotes, ctx);
            } else {
                self.peers.keep_quoting(maker, block, quotes);
            }
        }
    }

    /// Quoted blocks have not come for long: the complete ones are asked for.
    pub(super) fn want_quoting(&mut self, ctx: &mut Context<'_, Self>) {
        if !matches!(self.mode, Mode::Asynchronous(_)) {
            return;
        }
        for id in self.peers.quoting(self.view.number()) {
            ctx.mark("quoted block missing");
            self.want(id, id.owner, ctx);
        }
    }
}
