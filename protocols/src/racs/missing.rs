//! Missing blocks, batches and states that are asked for; see `fetch.rs`.

use super::{
    BlockId,
    tree::{Place, Tree},
};
use crate::sadl::Name;
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{ReplicaId, parts::StateFetch};

/// The most missing blocks that are asked for at a time, each on a branch of its own.
const WANTED_MAX: usize = 64;
/// The pause between questions is doubled at most so often.
const TRIES_MAX: u32 = 3;

/// A missing block that is asked for.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Asked {
    /// The member that was asked last.
    pub from: ReplicaId,
    /// The newest block on the way that has come.
    last: BlockId,
    /// Decided blocks stand upon it.
    pub decided: bool,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Missing {
    wanted: BTreeMap<BlockId, Asked>,
    armed: bool,
    /// How often questions have been repeated since something came.
    tries: u32,
    pub state: StateFetch,
    /// The batch that must come before anything more can be executed.
    pub stalled: Option<Name>,
}

impl Missing {
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    pub fn clear(&mut self) {
        self.wanted.clear();
    }

    pub fn get(&self, missing: BlockId) -> Option<Asked> {
        self.wanted.get(&missing).copied()
    }

    pub fn blocks(&self) -> Vec<BlockId> {
        self.wanted.keys().copied().collect()
    }

    /// Whether a block is asked for that decided ones stand upon.
    pub fn has_decided(&self) -> bool {
        self.wanted.values().any(|asked| asked.decided)
    }

    /// Whether a block may be asked for that is not: not when too many are.
    pub fn want(&mut self, missing: BlockId, decided: bool) -> bool {
        if let Some(asked) = self.wanted.get_mut(&missing) {
            asked.decided |= decided;
            return false;
        }
        self.wanted.len() < WANTED_MAX || decided
    }

    /// This member is asked for a block, now or again.
    pub fn ask(&mut self, missing: BlockId, from: ReplicaId, decided: bool) {
        let new = Asked {
            from,
            last: BlockId::GENESIS,
            decided,
        };
        let known = self.wanted.entry(missing).or_insert(new);
        known.from = from;
    }

    /// A page that leads to a block has come, up to this one.
    pub fn on_page(&mut self, tip: BlockId, last: Option<BlockId>) {
        if let Some(asked) = self.wanted.get_mut(&tip) {
            asked.last = last.unwrap_or(asked.last);
        }
    }

    /// The newest blocks that have come.
    pub fn pages(&self) -> impl Iterator<Item = BlockId> {
        self.wanted.values().map(|asked| asked.last)
    }

    pub fn drop_found(&mut self, tree: &Tree) {
        self.wanted
            .retain(|missing, _| tree.place(*missing) == Place::Missing(*missing));
    }

    /// The timer is to be set, after this many times the usual pause; none when it is set.
    pub fn arm(&mut self) -> Option<u32> {
        let longer = 1 << self.tries.min(TRIES_MAX);
        (!core::mem::replace(&mut self.armed, true)).then_some(longer)
    }

    /// The timer has fired.
    pub const fn fired(&mut self) {
        self.armed = false;
        self.tries = self.tries.saturating_add(1);
    }

    /// Something has come: the timer is to be set again.
    pub const fn moved(&mut self) {
        self.armed = false;
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_asked_for_once_and_again_of_another() {
        let (mut missing, block) = (Missing::default(), BlockId::GENESIS);
        assert!(missing.want(block, false));
        missing.ask(block, ReplicaId(1), false);
        assert!(!missing.want(block, true) && missing.has_decided());
        missing.ask(block, ReplicaId(2), false);
        let asked = missing.get(block).expect("it is asked for");
        assert!(asked.from == ReplicaId(2) && asked.decided);
        assert_eq!((missing.arm(), missing.arm()), (Some(1), None));
        missing.fired();
        assert_eq!(missing.arm(), Some(2));
        missing.moved();
        assert_eq!(missing.arm(), Some(1));
        missing.drop_found(&Tree::new(ReplicaId(0), false));
        assert!(missing.is_empty(), "the tree has it");
    }
}
