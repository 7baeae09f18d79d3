//! The blocks that a replica holds: the decided chain and the branches above it.
//!
//! ```text
//!   history (decided, kept for those that lag) ── root ─┬─ b ── c ── high      connected
//!                                                       └─ x ── y              may lose
//!                                              ?  ── p ── q                    parent missing
//! ```

use super::{Block, BlockId};
use alloc::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    vec::Vec,
};
use quintet_replica::{CommandTime, Slot};

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    connected: bool,
    /// It was handed to the journal.
    written: bool,
}

/// The last decided block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Root {
    pub id: BlockId,
    /// The last slot that it takes.
    pub end: Slot,
    pub time: CommandTime,
}

/// See the module.
#[derive(Hash)]
pub(super) struct Tree {
    root: Root,
    held: BTreeMap<BlockId, Held>,
    /// How many of them are not connected.
    loose: usize,
    history: VecDeque<Arc<Block>>,
    history_bytes: usize,
}

impl Default for Tree {
    fn default() -> Self {
        let root = Root {
            id: BlockId::GENESIS,
            end: Slot(0),
            time: CommandTime(0),
        };
        Self {
            root,
            held: BTreeMap::new(),
            loose: 0,
            history: VecDeque::new(),
            history_bytes: 0,
        }
    }
}

impl Tree {
    pub const fn root(&self) -> Root {
        self.root
    }

    pub fn len(&self) -> usize {
        self.held.len()
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
        if let Some(held) = self.held.get(&id) {
            return Some(&held.block);
        }
        let first = self.history.front()?.id.round;
        let index = usize::try_from(id.round.checked_sub(first)?).ok()?;
        self.history.get(index).filter(|block| block.id == id)
    }

    /// Last slot and time of a connected block.
    pub fn end_of(&self, id: BlockId) -> Option<(Slot, CommandTime)> {
        if id == self.root.id {
            return Some((self.root.end, self.root.time));
        }
        let held = self.held.get(&id).filter(|held| held.connected)?;
        Some((held.block.end(), held.block.time))
    }

    pub fn connected(&self, id: BlockId) -> bool {
        id == self.root.id || self.held.get(&id).is_some_and(|held| held.connected)
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
            match self.held.get(&at) {
                Some(held) => at = held.block.parent,
                None => return Place::Missing(at),
            }
        }
    }

    /// Takes a block up. False when it is held already, decided, or does not fit its parent.
    pub fn insert(&mut self, block: Arc<Block>) -> bool {
        let id = block.id;
        if id.round <= self.root.id.round || self.held.contains_key(&id) {
            return false;
        }
        let connected = self.connected(block.parent);
        if connected && !self.fits(&block) {
            return false;
        }
        self.held.insert(
            id,
            Held {
                block,
                connected,
                written: false,
            },
        );
        if connected {
            self.connect_above(id);
        } else {
            self.loose += 1;
        }
        true
    }

    fn fits(&self, block: &Block) -> bool {
        self.end_of(block.parent)
            .is_some_and(|(end, time)| block.first == end.next() && block.time >= time)
    }

    /// Blocks that waited for this one are connected now, too.
    fn connect_above(&mut self, id: BlockId) {
        let mut next: Vec<BlockId> = alloc::vec![id];
        while let Some(parent) = next.pop() {
            if self.loose == 0 {
                return;
            }
            // Children stand one round above, and those of a view stand together in the map.
            let children: Vec<BlockId> = self
                .held
                .values()
                .filter(|held| !held.connected && held.block.parent == parent)
                .map(|held| held.block.id)
                .collect();
            for child in children {
                let fits = self
                    .held
                    .get(&child)
                    .is_some_and(|held| self.fits(&held.block));
                self.loose -= 1;
                if !fits {
                    self.held.remove(&child);
                } else if let Some(held) = self.held.get_mut(&child) {
                    held.connected = true;
                    next.push(child);
                }
            }
        }
    }

    /// The blocks above the root up to a connected one, oldest first.
    pub fn path(&self, id: BlockId) -> Vec<Arc<Block>> {
        let mut path = Vec::new();
        let mut at = id;
        while at != self.root.id {
            let Some(held) = self.held.get(&at) else {
                break;
            };
            path.push(held.block.clone());
            at = held.block.parent;
        }
        path.reverse();
        path
    }

    /// Those on the way to a connected block that the journal does not have yet, oldest first;
    /// from now on it has.
    pub fn take_unwritten(&mut self, id: BlockId) -> Vec<Arc<Block>> {
        let mut path = Vec::new();
        let mut at = id;
        while at != self.root.id {
            let Some(held) = self.held.get_mut(&at) else {
                break;
            };
            if !held.written {
                held.written = true;
                path.push(held.block.clone());
            }
            at = held.block.parent;
        }
        path.reverse();
        path
    }

    /// It came from the journal.
    pub fn set_written(&mut self, id: BlockId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.written = true;
        }
    }

    /// Decides a connected block; gives it and its undecided ancestors, oldest first.
    pub fn commit(&mut self, id: BlockId) -> Vec<Arc<Block>> {
        let path = self.path(id);
        for block in &path {
            self.held.remove(&block.id);
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
    pub fn reset(&mut self, root: Root) {
        self.root = root;
        self.history.clear();
        self.history_bytes = 0;
        self.held.retain(|id, _| id.round > root.id.round);
        self.connect_again();
    }

    /// Forgets what stands beside the decided chain.
    fn drop_lost(&mut self) {
        let round = self.root.id.round;
        let before = self.held.len();
        self.held.retain(|id, _| id.round > round);
        if self.held.len() == before {
            return;
        }
        self.connect_again();
        let lost: Vec<BlockId> = self
            .held
            .keys()
            .copied()
            .filter(|id| self.place(*id) == Place::Lost)
            .collect();
        for id in lost {
            self.held.remove(&id);
        }
        self.count_loose();
    }

    fn connect_again(&mut self) {
        for held in self.held.values_mut() {
            held.connected = false;
        }
        self.loose = self.held.len();
        self.connect_above(self.root.id);
    }

    fn count_loose(&mut self) {
        self.loose = self.held.values().filter(|held| !held.connected).count();
    }

    /// Forgets undecided blocks of views below `view` that `tip` does not extend.
    pub fn prune(&mut self, view: u64, tip: BlockId) {
        let keep: alloc::collections::BTreeSet<BlockId> =
            self.path(tip).iter().map(|block| block.id).collect();
        let before = self.held.len();
        self.held
            .retain(|id, _| id.view >= view || keep.contains(id));
        if self.held.len() < before {
            // Blocks of later views may have stood upon what is gone.
            self.connect_again();
        }
    }

    /// Forgets the blocks that are not connected and stand in views up to `view`.
    pub fn drop_unconnected(&mut self, view: u64) {
        self.held
            .retain(|id, held| held.connected || id.view > view);
        self.count_loose();
    }

    /// Keeps at most so many bytes of decided blocks.
    pub fn trim_history(&mut self, bytes_max: usize) {
        while self.history_bytes > bytes_max {
            let Some(block) = self.history.pop_front() else {
                break;
            };
            self.history_bytes -= block.bytes();
        }
    }

    /// The blocks between round `above` and `tip`, oldest first, about `bytes_max` of them; none
    /// when the oldest of them are no longer kept.
    pub fn chain(&self, tip: BlockId, above: u64, bytes_max: usize) -> Option<Vec<Arc<Block>>> {
        let mut upper = Vec::new();
        let mut at = tip;
        while at.round > self.root.id.round.max(above) {
            let Some(held) = self.held.get(&at) else {
                break;
            };
            upper.push(held.block.clone());
            at = held.block.parent;
        }
        let mut chain = Vec::new();
        let mut bytes = 0;
        if above < self.root.id.round && at.round <= self.root.id.round {
            let first = self
                .history
                .front()
                .map_or(u64::MAX, |block| block.id.round);
            if first > above + 1 {
                return None;
            }
            let skip = usize::try_from(above + 1 - first).unwrap_or(usize::MAX);
            for block in self.history.iter().skip(skip) {
                if bytes > bytes_max {
                    return Some(chain);
                }
                bytes += block.bytes();
                chain.push(block.clone());
            }
        }
        for block in upper.into_iter().rev() {
            if bytes > bytes_max {
                break;
            }
            bytes += block.bytes();
            chain.push(block);
        }
        Some(chain)
    }

    pub fn assert_invariants(&self) {
        assert!(
            self.held.keys().all(|id| id.round > self.root.id.round),
            "what is undecided stands above what is decided"
        );
        let reaches = |held: &Held| self.connected(held.block.parent);
        assert!(
            self.held
                .values()
                .all(|held| !held.connected || reaches(held)),
            "what is connected stands upon what is"
        );
        if let Some(last) = self.history.back() {
            assert!(last.id == self.root.id, "the history ends at the root");
        }
    }
}
