//! The blocks that a replica holds: the decided chain and the branches above it.
//!
//! ```text
//!   history (decided, kept for those that lag) ── root ─┬─ b ── c ── high      connected
//!                                                       └─ x ── y              may lose
//!                                              ?  ── p ── q                    parent missing
//! ```
//!
//! The journal holds a block of level 2 by its quotes where it holds the quoted blocks as well.

use super::{Block, BlockId, Quote};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    vec::Vec,
};
use quintet_replica::{CommandTime, ReplicaId, Slot};

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// It and all between it and the root are here, or it is decided.
    Connected,
    /// This block on the way to the root is not here.
    Missing(BlockId),
    /// It lies on a branch that lost.
    Lost,
}

#[derive(Hash)]
struct Held {
    block: Arc<Block>,
    /// It was handed to the journal, and so was what leads to it.
    written: bool,
    /// The names that its last batches may be written as; once it is written, those that were used.
    quotes: Vec<Quote>,
}

/// A block for the journal.
#[derive(Debug)]
pub(super) struct Unwritten {
    pub block: Arc<Block>,
    /// The quotes that the journal holds of it already.
    pub quotes: Vec<Quote>,
}

/// The last decided block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Root {
    pub id: BlockId,
    /// The last slot that it takes.
    pub end: Slot,
    pub time: CommandTime,
}

/// The blocks that a replica can give to one that asks for those up to some tip.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Chain {
    /// These come next, oldest first; decided up to this one, if it is of any use to the asker.
    Blocks(Vec<Arc<Block>>, BlockId),
    /// Nothing that the asker lacks.
    Nothing,
    /// The next ones are no longer kept.
    Trimmed,
}

/// See the module.
#[derive(Hash)]
pub(super) struct Tree {
    root: Root,
    /// Connected ones.
    held: BTreeMap<BlockId, Held>,
    /// Those that something below is missing of.
    loose: BTreeMap<BlockId, Held>,
    loose_bytes: usize,
    /// Parent and child, for all that are held, connected or not.
    edges: BTreeSet<(BlockId, BlockId)>,
    history: VecDeque<Arc<Block>>,
    history_bytes: usize,
    /// The highest block (R1, R15): it is connected, and no block that this replica voted for and
    /// that may be decided lies outside of those that lead to it.
    high: BlockId,
    /// The highest block known to be decided, and from which member; it may not be here yet.
    decided: (BlockId, ReplicaId),
    /// The highest block that is known to be decided and here, with all before it.
    reached: BlockId,
    executed: Slot,
    /// Elected blocks have no higher rank: an injected bug.
    flat: bool,
}

impl Tree {
    pub fn new(own: ReplicaId, flat: bool) -> Self {
        let root = Root {
            id: BlockId::GENESIS,
            end: Slot(0),
            time: CommandTime(0),
        };
        Self {
            root,
            held: BTreeMap::new(),
            loose: BTreeMap::new(),
            loose_bytes: 0,
            edges: BTreeSet::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            high: BlockId::GENESIS,
            decided: (BlockId::GENESIS, own),
            reached: BlockId::GENESIS,
            executed: Slot(0),
            flat,
        }
    }

    /// How blocks are compared (R9, R15).
    pub const fn rank(&self, id: BlockId) -> (u64, bool, u64) {
        (id.view, id.level > 0 && !self.flat, id.round)
    }

    pub const fn is_flat(&self) -> bool {
        self.flat
    }

    pub const fn high(&self) -> BlockId {
        self.high
    }

    /// Whether a block ranks above the highest one.
    pub fn outranks(&self, id: BlockId) -> bool {
        self.rank(id) > self.rank(self.high)
    }

    pub const fn set_high(&mut self, id: BlockId) {
        self.high = id;
    }

    /// A connected block that ranks higher is the highest one.
    pub fn raise_high(&mut self, id: BlockId) {
        if self.outranks(id) && self.connected(id) {
            self.high = id;
        }
    }

    /// Whether a block can be counted upon: its ancestors are here, or all that it could add is.
    pub fn delivered(&self, id: BlockId) -> bool {
        !self.outranks(id) || self.connected(id)
    }

    pub const fn decided(&self) -> BlockId {
        self.decided.0
    }

    /// The member that told of the highest decided block.
    pub const fn decided_from(&self) -> ReplicaId {
        self.decided.1
    }

    /// This block is decided. True when no higher one was known.
    pub const fn decide(&mut self, id: BlockId) -> bool {
        let is_new = id.round > self.decided.0.round;
        if is_new {
            self.decided.0 = id;
        }
        is_new
    }

    /// The same, as this member tells.
    pub const fn learn(&mut self, id: BlockId, from: ReplicaId) -> bool {
        let is_new = self.decide(id);
        if is_new {
            self.decided.1 = from;
        }
        is_new
    }

    pub const fn reached(&self) -> BlockId {
        self.reached
    }

    /// This block and all before it are decided and here.
    pub const fn reach(&mut self, id: BlockId) {
        self.reached = id;
    }

    /// A state that covers `root` is here: all up to it is decided.
    pub fn install(&mut self, root: Root) {
        self.reset(root);
        self.decide(root.id);
        if self.reached.round < root.id.round {
            self.reached = root.id;
        }
    }

    pub fn on_executed(&mut self, slot: Slot) {
        self.executed = self.executed.max(slot);
    }

    pub const fn executed(&self) -> Slot {
        self.executed
    }

    pub const fn root(&self) -> Root {
        self.root
    }

    pub fn len(&self) -> usize {
        self.held.len() + self.loose.len()
    }

    pub fn history_bytes(&self) -> usize {
        self.history_bytes
    }

    /// The first slot of the oldest decided block that is kept.
    pub fn kept_from(&self) -> Option<Slot> {
        self.history.front().map(|block| block.first)
    }

    /// A block that is held, decided or not.
    pub fn get(&self, id: BlockId) -> Option<&Arc<Block>> {
        if let Some(held) = self.held.get(&id).or_else(|| self.loose.get(&id)) {
            return Some(&held.block);
        }
        let index = self.history_index(id)?;
        self.history.get(index)
    }

    /// Where a decided block stands in the history.
    fn history_index(&self, id: BlockId) -> Option<usize> {
        let first = self.history.front()?.id.round;
        let index = usize::try_from(id.round.checked_sub(first)?).ok()?;
        let found = self.history.get(index)?;
        (found.id == id).then_some(index)
    }

    /// Last slot and time of a connected block.
    pub fn end_of(&self, id: BlockId) -> Option<(Slot, CommandTime)> {
        if id == self.root.id {
            return Some((self.root.end, self.root.time));
        }
        let held = self.held.get(&id)?;
        Some((held.block.end(), held.block.time))
    }

    pub fn connected(&self, id: BlockId) -> bool {
        id == self.root.id || self.held.contains_key(&id)
    }

    pub fn place(&self, id: BlockId) -> Place {
        let mut at = id;
        loop {
            if self.connected(at) {
                return Place::Connected;
            }
            if at.round <= self.root.id.round {
                return Place::Lost;
            }
            match self.loose.get(&at) {
                Some(held) => at = held.block.parent,
                None => return Place::Missing(at),
            }
        }
    }

    /// Takes a block up. False when it is held already, decided, or does not fit its parent; and
    /// when its parent is missing and more than this many blocks or bytes wait for theirs.
    pub fn insert(&mut self, block: Arc<Block>, (loose_max, bytes_max): (usize, usize)) -> bool {
        let id = block.id;
        let here = self.held.contains_key(&id) || self.loose.contains_key(&id);
        if id.round <= self.root.id.round || here {
            return false;
        }
        let (parent, bytes) = (block.parent, block.bytes());
        let connected = self.connected(parent);
        if connected && !self.fits(&block) {
            return false;
        }
        let full = self.loose.len() >= loose_max || self.loose_bytes + bytes > bytes_max;
        if !connected && full && !self.loose.is_empty() {
            return false;
        }
        self.edges.insert((parent, id));
        let held = Held {
            block,
            written: false,
            quotes: Vec::new(),
        };
        if connected {
            self.held.insert(id, held);
            self.connect_above(id);
        } else {
            self.loose_bytes += bytes;
            self.loose.insert(id, held);
        }
        true
    }

    fn fits(&self, block: &Block) -> bool {
        self.end_of(block.parent)
            .is_some_and(|(end, time)| block.first == end.next() && block.time >= time)
    }

    fn children(&self, parent: BlockId) -> Vec<BlockId> {
        let lowest = BlockId::GENESIS;
        self.edges
            .range((parent, lowest)..)
            .take_while(|(of, _)| *of == parent)
            .map(|(_, child)| *child)
            .collect()
    }

    /// Blocks that waited for this one are connected now, too.
    fn connect_above(&mut self, id: BlockId) {
        let mut next: Vec<BlockId> = alloc::vec![id];
        while let Some(parent) = next.pop() {
            if self.loose.is_empty() {
                return;
            }
            for child in self.children(parent) {
                let Some(held) = self.loose.remove(&child) else {
                    continue;
                };
                self.loose_bytes -= held.block.bytes();
                if self.fits(&held.block) {
                    self.held.insert(child, held);
                    next.push(child);
                } else {
                    self.edges.remove(&(parent, child));
                }
            }
        }
    }

    fn remove(&mut self, id: BlockId) -> Option<Held> {
        let held = match self.held.remove(&id) {
            Some(held) => held,
            None => {
                let held = self.loose.remove(&id)?;
                self.loose_bytes -= held.block.bytes();
                held
            }
        };
        self.edges.remove(&(held.block.parent, id));
        Some(held)
    }

    /// Forgets a block and all upon it.
    fn remove_from(&mut self, id: BlockId) {
        let mut next: Vec<BlockId> = alloc::vec![id];
        while let Some(id) = next.pop() {
            next.extend(self.children(id));
            self.remove(id);
        }
    }

    /// The blocks above the root up to a connected one, oldest first.
    pub fn path(&self, id: BlockId) -> Vec<Arc<Block>> {
        let mut path: Vec<_> = self.down(id).map(|held| held.block.clone()).collect();
        path.reverse();
        path
    }

    /// A connected block and what leads to it, down to the root.
    fn down(&self, id: BlockId) -> impl Iterator<Item = &Held> {
        let above = |id: BlockId| self.held.get(&id).filter(|_| id != self.root.id);
        core::iter::successors(above(id), move |held| above(held.block.parent))
    }

    /// Some of the connected blocks that lead to this one: it, and others in steps that double;
    /// the root is the last.
    pub fn steps(&self, id: BlockId) -> Vec<BlockId> {
        let mut steps = Vec::new();
        let mut next = 0_usize;
        for (index, held) in self.down(id).enumerate() {
            if index == next {
                steps.push(held.block.id);
                next = (next * 2).max(1);
            }
        }
        steps.push(self.root.id);
        steps
    }

    /// Those on the way to a connected block that the journal does not have yet, oldest first;
    /// from now on it has.
    pub fn take_unwritten(&mut self, id: BlockId) -> Vec<Unwritten> {
        let mut ids = Vec::new();
        let mut at = id;
        while at != self.root.id {
            let Some(held) = self.held.get_mut(&at).filter(|held| !held.written) else {
                break;
            };
            held.written = true;
            ids.push(at);
            at = held.block.parent;
        }
        let path = ids.into_iter().rev();
        path.filter_map(|id| self.unwritten(id)).collect()
    }

    /// The block as the journal needs it: by its quotes if it holds all that they name.
    fn unwritten(&mut self, id: BlockId) -> Option<Unwritten> {
        let quotes = core::mem::take(&mut self.held.get_mut(&id)?.quotes);
        let has = |id: BlockId| self.held.get(&id).is_some_and(|held| held.written);
        let quotes = match quotes.iter().all(|quote| has(quote.of)) {
            true => quotes,
            false => Vec::new(),
        };
        let held = self.held.get_mut(&id)?;
        held.quotes.clone_from(&quotes);
        let block = held.block.clone();
        Some(Unwritten { block, quotes })
    }

    fn held_mut(&mut self, id: BlockId) -> Option<&mut Held> {
        match self.held.get_mut(&id) {
            Some(held) => Some(held),
            None => self.loose.get_mut(&id),
        }
    }

    /// It came from the journal, which holds it by these quotes, if any.
    pub fn set_written(&mut self, id: BlockId, quotes: Vec<Quote>) {
        if let Some(held) = self.held_mut(id) {
            held.written = true;
            held.quotes = quotes;
        }
    }

    /// Sets the names that the last batches of a block may be written as.
    pub fn set_quotes(&mut self, id: BlockId, quotes: Vec<Quote>) {
        if let Some(held) = self.held_mut(id).filter(|held| !held.written) {
            held.quotes = quotes;
        }
    }

    /// The blocks that the journal holds by their quotes, which it is about to trim; from now on it
    /// holds them complete.
    pub fn take_quoting(&mut self) -> Vec<Arc<Block>> {
        let held = self.held.values_mut().chain(self.loose.values_mut());
        let quoting = held.filter(|held| held.written && !held.quotes.is_empty());
        quoting
            .map(|held| {
                held.quotes = Vec::new();
                held.block.clone()
            })
            .collect()
    }

    /// Decides a connected block; gives it and its undecided ancestors, oldest first. Blocks beside
    /// them are dropped.
    pub fn commit(&mut self, id: BlockId) -> Vec<Arc<Block>> {
        let path = self.path(id);
        for block in &path {
            for beside in self.children(block.parent) {
                if beside != block.id {
                    self.remove_from(beside);
                }
            }
            self.remove(block.id);
            self.history_bytes += block.bytes();
            self.history.push_back(block.clone());
        }
        if let Some(last) = path.last() {
            self.root = Root {
                id,
                end: last.end(),
                time: last.time,
            };
        }
        self.drop_lost();
        path
    }

    /// A state that covers `root` was installed: nothing below it is held any more.
    fn reset(&mut self, root: Root) {
        self.root = root;
        self.history.clear();
        self.history_bytes = 0;
        let held = self.held.keys().chain(self.loose.keys()).copied();
        let below: Vec<BlockId> = held.filter(|held| held.round <= root.id.round).collect();
        for id in below {
            self.remove(id);
        }
        self.connect_again();
        self.drop_lost();
    }

    /// Forgets unconnected blocks that cannot be connected any more.
    fn drop_lost(&mut self) {
        let lost: Vec<BlockId> = self
            .loose
            .values()
            .filter(|held| held.block.parent.round <= self.root.id.round)
            .map(|held| held.block.id)
            .collect();
        for id in lost {
            self.remove_from(id);
        }
    }

    /// Works out again what is connected.
    fn connect_again(&mut self) {
        for (id, held) in core::mem::take(&mut self.held) {
            self.loose_bytes += held.block.bytes();
            self.loose.insert(id, held);
        }
        self.connect_above(self.root.id);
    }

    /// Forgets undecided blocks of views below `view` that `tip` does not extend.
    pub fn prune(&mut self, view: u64, tip: BlockId) {
        let keep: BTreeSet<BlockId> = self.down(tip).map(|held| held.block.id).collect();
        let held = self.held.keys().chain(self.loose.keys()).copied();
        let old: Vec<BlockId> = held
            .filter(|id| id.view < view && !keep.contains(id))
            .collect();
        if old.is_empty() {
            return;
        }
        for id in old {
            self.remove(id);
        }
        // Blocks of later views may have stood upon what is gone.
        self.connect_again();
    }

    /// Forgets the blocks that are not connected and stand in views up to `view`.
    pub fn drop_unconnected(&mut self, view: u64) {
        let old: Vec<BlockId> = self
            .loose
            .keys()
            .copied()
            .filter(|id| id.view <= view)
            .collect();
        for id in old {
            self.remove(id);
        }
    }

    /// Keeps at most that many bytes of decided blocks.
    pub fn trim_history(&mut self, bytes_max: usize) {
        while self.history_bytes > bytes_max {
            let Some(block) = self.history.pop_front() else {
                break;
            };
            self.history_bytes -= block.bytes();
        }
    }

    /// The blocks behind the first of `have`, newest first, that leads to `tip`, about `bytes_max`
    /// of them. If the tip is not here, the decided ones.
    pub fn chain(&self, tip: BlockId, have: &[BlockId], bytes_max: usize) -> Chain {
        let mut upper: Vec<&Arc<Block>> = Vec::new();
        let mut base = None;
        let tip = if self.connected(tip) {
            tip
        } else {
            self.root.id
        };
        for held in self.down(tip) {
            if have.contains(&held.block.id) {
                base = Some(held.block.id);
                break;
            }
            upper.push(&held.block);
        }
        let root = self.root.id;
        let mut skip = self.history.len();
        if base.is_none() {
            let oldest = self.history.front();
            let known = |id: &&BlockId| {
                **id == root
                    || self.history_index(**id).is_some()
                    || oldest.is_some_and(|block| block.parent == **id)
            };
            let Some(known) = have.iter().find(known) else {
                let kept = oldest.map_or(root, |block| block.parent);
                let trimmed = have.last().is_some_and(|id| id.round < kept.round);
                return if trimmed {
                    Chain::Trimmed
                } else {
                    Chain::Nothing
                };
            };
            base = Some(*known);
            if *known != root {
                skip = self.history_index(*known).map_or(0, |index| index + 1);
            }
        }
        let mut decided = base.filter(|id| id.round <= root.round);
        let mut blocks = Vec::new();
        let mut bytes = 0;
        let next = self.history.iter().skip(skip);
        for block in next.chain(upper.into_iter().rev()) {
            if bytes > 0 && bytes + block.bytes() > bytes_max {
                break;
            }
            bytes += block.bytes();
            blocks.push(block.clone());
            if block.id.round <= root.round {
                decided = Some(block.id);
            }
        }
        let news = decided.filter(|id| have.last().is_some_and(|last| last.round < id.round));
        if blocks.is_empty() && news.is_none() {
            return Chain::Nothing;
        }
        Chain::Blocks(blocks, news.unwrap_or_default())
    }

    pub fn assert_invariants(&self) {
        let mut all = self.held.keys().chain(self.loose.keys());
        assert!(
            all.all(|id| id.round > self.root.id.round),
            "what is undecided stands above what is decided"
        );
        assert!(
            self.held
                .values()
                .all(|held| self.connected(held.block.parent)),
            "what is connected stands upon what is"
        );
        assert!(
            self.loose
                .values()
                .all(|held| !self.connected(held.block.parent)),
            "and what is not does not"
        );
        let bytes: usize = self.loose.values().map(|held| held.block.bytes()).sum();
        assert!(bytes == self.loose_bytes, "what waits is counted");
        assert!(self.edges.len() == self.len(), "each block has its parent");
        if let Some(last) = self.history.back() {
            assert!(last.id == self.root.id, "the history ends at the root");
        }
        assert!(self.executed <= self.root.end, "executions were asked for");
    }
}
