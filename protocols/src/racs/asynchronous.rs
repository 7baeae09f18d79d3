//! The asynchronous mode: everybody proposes two blocks, one above the other; then the coin says
//! whose counted.
//!
//! ```text
//!   level 1 ──ProposeAsync──► all ──VoteAsync──► n-f: level 2 ──ProposeAsync──► all
//!                                                                                │ VoteAsync
//!   coin elects one of those that completed ◄── n-f Complete ◄── Complete ◄── n-f┘
//! ```
//!
//! A replica that sees somebody's level 2 before its own level 1 has its votes puts its own level
//! 2 upon that one's level 1, which has them (R3).

use super::{
    Block, BlockId, Message, Racs, Record, Why,
    plant::Plant,
    quotes::{Quote, quote, shortened},
    replica::{Due, Mode},
    tree::Place,
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use quintet_replica::{
    Bytes, Context, Lane, ReplicaId, ReplicaSet, Time,
    parts::{RequestKey, Tally, request_key},
};

/// Others' requests are taken along as long as a block has less than this part of the bytes that it
/// may have: everybody copies them, and what each leaves out is in a block of its owner's.
const OTHERS_PART: usize = 2;
/// An own block that nothing was lost of is sent again when it has been spoken of so often.
const PATIENCE: u32 = 4;

/// What a replica keeps for the asynchronous mode of its view. Made again for each (R4).
#[derive(Debug, Default, Hash)]
pub(super) struct Fallback {
    /// The own blocks of level 1 and 2, and whether they are durable and may be shown.
    pub own: [Option<BlockId>; 2],
    /// What others had forwarded to this replica while it led the view, and what no block has.
    pub forwarded: Vec<Bytes>,
    /// When it began; unknown after a restart.
    pub began_at: Option<Time>,
    shown: [bool; 2],
    /// How often the newest own block has been spoken of, and who may not have been sent it: there
    /// was no room, or the connection broke.
    said: u32,
    owed: ReplicaSet,
    votes: [Tally; 2],
    /// The blocks of level 2 that this replica voted for, by maker (B_fall).
    pub fall: BTreeMap<ReplicaId, BlockId>,
    /// Blocks that came and have not been voted for: something before them is missing.
    waiting: BTreeSet<BlockId>,
    /// Blocks whose vote is being written, or may be repeated.
    voted: BTreeMap<BlockId, bool>,
    completed: bool,
}

impl Fallback {
    /// At the beginning of the mode, which is now; these requests had been forwarded.
    pub fn new(forwarded: Vec<Bytes>, now: Time) -> Self {
        Self {
            forwarded,
            began_at: Some(now),
            ..Self::default()
        }
    }

    /// The connection to this one broke.
    pub fn renewed(&mut self, peer: ReplicaId) {
        self.owed = self.owed.with(peer);
    }

    /// The peer started a new life.
    pub const fn forget(&mut self, peer: ReplicaId) {
        self.votes[0].forget(peer);
        self.votes[1].forget(peer);
    }

    pub fn digest(&self) -> u64 {
        let levels = self.own.iter().flatten().count() as u64;
        levels * 7 + self.fall.len() as u64 * 31 + u64::from(self.completed)
    }

    pub fn assert_invariants(&self, view: u64, id: ReplicaId) {
        for (level, own) in self.own.iter().enumerate() {
            let fits = |own: &BlockId| {
                own.view == view && own.owner == id && usize::from(own.level) == level + 1
            };
            assert!(own.as_ref().is_none_or(fits), "own blocks are of this view");
        }
        assert!(
            self.own[1].is_some() || !self.shown[1],
            "only what there is can be shown"
        );
    }
}

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
        let level_1 = fallback.voted.keys().filter(|id| id.level == 1);
        level_1
            .filter_map(|id| self.tree.get(*id).cloned())
            .collect()
    }

    /// What is waited for and what `parent` does not lead to: by this replica's clients first,
    /// then what was forwarded to it while it led, and what stands in the blocks `beside` it.
    /// Only one block of level 2 counts in a view, so each is to have the requests of all.
    /// With the places of those that stand beside it.
    fn batches_above(&self, parent: BlockId, beside: &[Arc<Block>]) -> (Vec<Bytes>, Vec<Quote>) {
        let path = self.tree.path(parent);
        let mut there: BTreeSet<_> = path
            .iter()
            .flat_map(|block| block.batches.iter())
            .filter_map(|batch| request_key(batch))
            .collect();
        let direct = !self.disseminates();
        type Candidate<'a> = (RequestKey, &'a Bytes, Option<(BlockId, u32)>);
        let own = self.requests.iter().filter(|_| direct);
        let own: Vec<Candidate<'_>> = own.map(|(key, batch)| (key, batch, None)).collect();
        // What others wait for stands upon what they asked for before: that must be there, too.
        let root = self.tree.root().id;
        let leads_to = |id: BlockId| id == root || path.iter().any(|block| block.id == id);
        let forwarded = match &self.mode {
            Mode::Asynchronous(fallback) if leads_to(self.high) => fallback.forwarded.as_slice(),
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
        if level == 1 && !self.below_view(parent) {
            // What this mode elected is known already: only its certificate is missing here.
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
        let view = self.view;
        let mut marks: BTreeMap<ReplicaId, super::Mark> = BTreeMap::new();
        for block in &beside {
            let own = |mark: &&super::Mark| mark.replica == block.id.owner;
            let mark = block.marks.iter().find(own);
            marks.extend(mark.map(|mark| (mark.replica, *mark)));
        }
        if level == 1 {
            let said = self
                .timeouts
                .iter()
                .flatten()
                .filter(|(of, ..)| *of == view);
            let told = said.filter_map(|(_, _, mark)| *mark);
            marks.extend(told.map(|mark| (mark.replica, mark)));
        }
        if let Some(mark) = self.reads.newest(self.id, self.life) {
            marks.insert(self.id, mark);
        }
        let round = parent.round + 1;
        let id = BlockId {
            view,
            level,
            round,
            owner: self.id,
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
        let own = self.id;
        if level == 2 {
            self.tree.set_quotes(id, quotes.clone());
            self.quotes = quotes;
        }
        if let Some(fallback) = self.fallback() {
            fallback.own[usize::from(level) - 1] = Some(id);
            if level == 2 {
                fallback.fall.insert(own, id);
            }
        }
        self.write(id, Why::Own, Some(Due::Own(id)), ctx);
    }

    pub(super) fn propose_level_1(&mut self, ctx: &mut Context<'_, Self>) {
        let high = self.high;
        self.propose_own(1, high, ctx);
    }

    /// An own block is durable, with the own vote for it.
    pub(super) fn on_own_durable(&mut self, id: BlockId, ctx: &mut Context<'_, Self>) {
        let (own, view) = (self.id, self.view);
        let Some(fallback) = self.fallback().filter(|_| id.view == view) else {
            return;
        };
        let level = usize::from(id.level) - 1;
        fallback.shown[level] = true;
        fallback.votes[level].vote(own);
        fallback.said = 0;
        fallback.owed = ReplicaSet::EMPTY;
        self.show(id, true, self.others, ctx);
    }

    /// Shows an own block, quoting or whole. Who has no room for it is owed the whole one.
    fn show(&mut self, id: BlockId, quoting: bool, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let Some(mut block) = self.tree.get(id).cloned() else {
            return;
        };
        let mut quotes = Vec::new();
        if quoting && id.level == 2 {
            quotes.clone_from(&self.quotes);
        }
        if !quotes.is_empty() {
            block = shortened(&block, &quotes);
        }
        let bytes = block.bytes() + quotes.len() * Quote::SIZE + super::sync::MESSAGE_BYTES;
        let room = |peer: &ReplicaId| ctx.takes(*peer, bytes);
        let (now, later): (Vec<ReplicaId>, Vec<ReplicaId>) = to.iter().partition(room);
        let now = now.into_iter().collect();
        let message = Message::ProposeAsync { block, quotes };
        ctx.multicast(now, Lane::Control, &message);
        if let Some(fallback) = self.fallback() {
            fallback.owed = later.into_iter().collect();
        }
    }

    /// The same again, to those that have not voted. Blocks are large: those that were sent one
    /// are sent it again only after a while, and then ever more rarely.
    pub(super) fn say_asynchronously(&mut self, ctx: &mut Context<'_, Self>) {
        let Mode::Asynchronous(fallback) = &mut self.mode else {
            return;
        };
        fallback.said = fallback.said.saturating_add(1);
        let again = fallback.said >= PATIENCE && fallback.said.is_power_of_two();
        let owed = fallback.owed;
        let level = usize::from(fallback.shown[1]);
        let shown = fallback.own[level].filter(|_| fallback.shown[level]);
        let voters = fallback.votes[level].voters();
        let completed = fallback.own[1].filter(|_| fallback.completed);
        if let Some(id) = shown {
            let rest = self
                .others
                .iter()
                .filter(|peer| !voters.contains(*peer) && (again || owed.contains(*peer)))
                .collect();
            self.show(id, false, rest, ctx);
        }
        if let Some(block) = completed {
            ctx.multicast(self.others, Lane::Control, &Message::Complete { block });
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
        if id.view < self.view {
            return self.send_exit(from, id.view, ctx);
        }
        let Some(complete) = self.complete(&block, &quotes) else {
            return self.keep_quoting(from, block, quotes);
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
        let (id, from) = (block.id, block.id.owner);
        let view = self.view;
        if let Some(fallback) = self.fallback().filter(|_| id.view == view) {
            match fallback.voted.get(&id) {
                Some(true) => self.send_vote_async(id, ctx),
                Some(false) => {}
                None => {
                    fallback.waiting.insert(id);
                    self.take(block);
                    self.tree.set_quotes(id, quotes);
                }
            }
            return;
        }
        let early = &mut self.early[from.index()][usize::from(id.level) - 1];
        if early
            .as_ref()
            .is_none_or(|before| before.id.view <= id.view)
        {
            *early = Some(block);
        }
    }

    pub(super) fn on_vote_async(&mut self, from: ReplicaId, block: BlockId) {
        let Some(fallback) = self.fallback() else {
            return;
        };
        for level in 0..2 {
            if fallback.own[level] == Some(block) {
                fallback.votes[level].vote(from);
            }
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
        if block.view < self.view {
            return self.send_exit(from, block.view, ctx);
        }
        let known = &mut self.completed[from.index()];
        if known.is_none_or(|known| known.view <= block.view) {
            *known = Some(block);
        }
    }

    /// A quorum of completions of this view ends it.
    pub(super) fn note_completions(&mut self) {
        if !matches!(self.mode, Mode::Asynchronous(_)) || self.exit.is_some() {
            return;
        }
        let here = |id: &BlockId| id.view == self.view;
        let completed: Vec<BlockId> = self
            .completed
            .iter()
            .flatten()
            .copied()
            .filter(here)
            .collect();
        if completed.len() >= self.quorum {
            let view = self.view;
            self.on_certificate(super::Certificate { view, completed });
        }
    }

    /// Votes for what has come, and continues to level 2 and to the end. True when something moved.
    pub(super) fn go_on_asynchronously(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        if !matches!(self.mode, Mode::Asynchronous(_)) {
            return false;
        }
        self.take_early();
        self.take_quoting(ctx);
        let mut moved = self.vote_for_waiting(ctx);
        let quorum = self.quorum - usize::from(self.planted(Plant::MinorityCommits));
        let own = self.id;
        let Some(fallback) = self.fallback() else {
            return moved;
        };
        if fallback.own[1].is_none()
            && fallback.shown[0]
            && fallback.votes[0].reached(quorum)
            && let Some(parent) = fallback.own[0]
        {
            self.propose_own(2, parent, ctx);
            // Nothing, when what was decided meanwhile stands beside the own level 1.
            moved |= self.fallback().is_some_and(|mode| mode.own[1].is_some());
        }
        let Some(fallback) = self.fallback() else {
            return moved;
        };
        if !fallback.completed
            && fallback.shown[1]
            && fallback.votes[1].reached(quorum)
            && let Some(block) = fallback.own[1]
        {
            fallback.completed = true;
            self.completed[own.index()] = Some(block);
            ctx.multicast(self.others, Lane::Control, &Message::Complete { block });
            moved = true;
        }
        moved
    }

    fn take_early(&mut self) {
        let view = self.view;
        let mut blocks = Vec::new();
        for early in self.early.iter_mut().flatten() {
            if let Some(block) = early.take_if(|block| block.id.view <= view)
                && block.id.view == view
            {
                blocks.push(block);
            }
        }
        for block in blocks {
            let id = block.id;
            self.take(block);
            if let Some(fallback) = self.fallback()
                && !fallback.voted.contains_key(&id)
            {
                fallback.waiting.insert(id);
            }
        }
    }

    fn vote_for_waiting(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let Some(fallback) = self.fallback() else {
            return false;
        };
        let waiting: Vec<BlockId> = fallback.waiting.iter().copied().collect();
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
                        fallback.waiting.remove(&id);
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
        fallback.waiting.remove(&id);
        fallback.voted.insert(id, false);
        let mut adopt = None;
        if id.level == 2 {
            fallback.fall.insert(id.owner, id);
            adopt = parent.filter(|_| fallback.own[1].is_none());
        }
        let why = if id.level == 2 { Why::Fall } else { Why::Held };
        self.write(id, why, Some(Due::VoteAsync(id)), ctx);
        if let Some(parent) = adopt {
            ctx.mark("another level 1 taken over");
            self.propose_own(2, parent, ctx);
        }
    }

    pub(super) fn send_vote_async(&mut self, id: BlockId, ctx: &mut Context<'_, Self>) {
        let view = self.view;
        let Some(fallback) = self.fallback().filter(|_| id.view == view) else {
            return;
        };
        fallback.voted.insert(id, true);
        let vote = Message::VoteAsync {
            block: id,
            lives: self.lives.clone(),
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
        for id in fallback.own.iter().flatten().copied() {
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

    /// What the journal holds of the asynchronous mode that a restart found itself in.
    pub(super) fn restore_fallback(&mut self, own: [Option<BlockId>; 2], fall: &[BlockId]) {
        let mut fallback = Fallback {
            own,
            ..Fallback::default()
        };
        for (level, block) in own.iter().enumerate() {
            fallback.shown[level] = block.is_some_and(|block| self.tree.connected(block));
            if fallback.shown[level] {
                fallback.votes[level].vote(self.id);
            }
        }
        let second = own[1].filter(|_| fallback.shown[1]);
        for id in fall.iter().chain(second.iter()) {
            fallback.fall.insert(id.owner, *id);
            if id.owner != self.id {
                fallback.voted.insert(*id, true);
            }
        }
        self.mode = Mode::Asynchronous(fallback);
    }
}
