//! The asynchronous mode of one view, as a replica keeps it. Made again for each (R4).

use super::{BlockId, Quote};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use quintet_replica::{
    Bytes, ReplicaId, ReplicaSet, Time,
    parts::{Tally, digest},
};

/// An own block that nothing was lost of is sent again when it has been spoken of so often.
const SAID_MIN: u32 = 4;

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Fallback {
    /// The own blocks of level 1 and 2, and whether they are durable and may be shown.
    own: [Option<BlockId>; 2],
    shown: [bool; 2],
    votes: [Tally; 2],
    /// Where the last batches of the own block of level 2 stand, too.
    quotes: Vec<Quote>,
    /// Batches that others had forwarded to this replica while it led the view, in no block yet.
    forwarded: Vec<Bytes>,
    /// When it began; unknown after a restart.
    began_at: Option<Time>,
    /// How often the newest own block has been spoken of, and who may not have been sent it: there
    /// was no room, or the connection broke.
    said: u32,
    owed: ReplicaSet,
    /// The blocks of level 2 that this replica voted for, by maker (B_fall).
    fall: BTreeMap<ReplicaId, BlockId>,
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

    /// After a restart within it: own blocks, some of which are still here, and blocks voted for.
    pub fn restored(
        own: [Option<BlockId>; 2],
        fall: &[BlockId],
        id: ReplicaId,
        is_here: impl Fn(BlockId) -> bool,
    ) -> Self {
        let mut fallback = Self {
            own,
            ..Self::default()
        };
        for (level, block) in own.iter().enumerate() {
            fallback.shown[level] = block.is_some_and(&is_here);
            if fallback.shown[level] {
                fallback.votes[level].vote(id);
            }
        }
        let second = own[1].filter(|_| fallback.shown[1]);
        for block in fall.iter().chain(second.iter()) {
            fallback.fall.insert(block.owner, *block);
            if block.owner != id {
                fallback.voted.insert(*block, true);
            }
        }
        fallback
    }

    pub const fn own(&self) -> &[Option<BlockId>; 2] {
        &self.own
    }

    pub fn quotes(&self) -> &[Quote] {
        &self.quotes
    }

    pub fn forwarded(&self) -> &[Bytes] {
        &self.forwarded
    }

    pub const fn began_at(&self) -> Option<Time> {
        self.began_at
    }

    pub const fn fall(&self) -> &BTreeMap<ReplicaId, BlockId> {
        &self.fall
    }

    /// For an injected bug.
    pub fn set_fall(&mut self, fall: BTreeMap<ReplicaId, BlockId>) {
        self.fall = fall;
    }

    /// An own block is made.
    pub fn propose(&mut self, id: BlockId, quotes: Vec<Quote>) {
        self.own[usize::from(id.level) - 1] = Some(id);
        if id.level == 2 {
            self.fall.insert(id.owner, id);
            self.quotes = quotes;
        }
    }

    /// An own block is durable, with the own vote for it.
    pub fn show(&mut self, id: BlockId) {
        let level = usize::from(id.level) - 1;
        self.shown[level] = true;
        self.votes[level].vote(id.owner);
        self.said = 0;
        self.owed = ReplicaSet::EMPTY;
    }

    /// These have not been sent the newest own block: there was no room.
    pub const fn owe(&mut self, to: ReplicaSet) {
        self.owed = to;
    }

    /// The newest own block, and which of the others are to be sent it again: those that have not
    /// voted and may not have it. Blocks are large: the others of those that have not voted are
    /// sent it only after a while, and then ever more rarely.
    pub fn repeat(&mut self, others: ReplicaSet) -> Option<(BlockId, ReplicaSet)> {
        self.said = self.said.saturating_add(1);
        let again = self.said >= SAID_MIN && self.said.is_power_of_two();
        let level = usize::from(self.shown[1]);
        let id = self.own[level].filter(|_| self.shown[level])?;
        let voters = self.votes[level].voters();
        let owed = |peer: &ReplicaId| again || self.owed.contains(*peer);
        let rest = others.iter().filter(|peer| !voters.contains(*peer));
        Some((id, rest.filter(owed).collect()))
    }

    /// The own block of level 2, if a quorum has voted for it.
    pub fn completed(&self) -> Option<BlockId> {
        self.own[1].filter(|_| self.completed)
    }

    /// The connection to this one broke.
    pub fn renewed(&mut self, peer: ReplicaId) {
        self.owed = self.owed.with(peer);
    }

    /// The peer was started again.
    pub const fn forget(&mut self, peer: ReplicaId) {
        self.votes[0].forget(peer);
        self.votes[1].forget(peer);
    }

    /// Another votes for an own block.
    pub fn on_vote(&mut self, from: ReplicaId, block: BlockId) {
        for (own, votes) in self.own.iter().zip(&mut self.votes) {
            if *own == Some(block) {
                votes.vote(from);
            }
        }
    }

    /// The own block of level 1, if a quorum has voted for it and there is none of level 2.
    pub fn next_parent(&self, quorum: usize) -> Option<BlockId> {
        let ready = self.own[1].is_none() && self.shown[0] && self.votes[0].reached(quorum);
        self.own[0].filter(|_| ready)
    }

    /// The own block of level 2, when a quorum has voted for it for the first time.
    pub fn complete(&mut self, quorum: usize) -> Option<BlockId> {
        let ready = !self.completed && self.shown[1] && self.votes[1].reached(quorum);
        let own = self.own[1].filter(|_| ready)?;
        self.completed = true;
        Some(own)
    }

    /// The blocks of level 1 that this replica voted for.
    pub fn level_1(&self) -> impl Iterator<Item = BlockId> {
        self.voted.keys().copied().filter(|id| id.level == 1)
    }

    /// Whether the vote for a block is durable; none when there is no vote yet.
    pub fn vote_of(&self, id: BlockId) -> Option<bool> {
        self.voted.get(&id).copied()
    }

    /// A block has come.
    pub fn wait_for(&mut self, id: BlockId) {
        if !self.voted.contains_key(&id) {
            self.waiting.insert(id);
        }
    }

    pub fn waiting(&self) -> Vec<BlockId> {
        self.waiting.iter().copied().collect()
    }

    /// It can never be voted for.
    pub fn drop_waiting(&mut self, id: BlockId) {
        self.waiting.remove(&id);
    }

    /// The vote for a block is being written. True when an own block of level 2 may stand beside
    /// it.
    pub fn vote(&mut self, id: BlockId) -> bool {
        self.waiting.remove(&id);
        self.voted.insert(id, false);
        if id.level == 2 {
            self.fall.insert(id.owner, id);
        }
        id.level == 2 && self.own[1].is_none()
    }

    /// The vote for a block may be told.
    pub fn voted(&mut self, id: BlockId) {
        self.voted.insert(id, true);
    }

    pub fn digest(&self) -> u64 {
        let levels = self.own.iter().flatten().count() as u64;
        let fall = self.fall.len() as u64;
        digest([levels, fall, u64::from(self.completed)])
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

#[cfg(test)]
mod tests {
    use super::*;

    fn block(level: u8, owner: u16) -> BlockId {
        BlockId {
            view: 3,
            level,
            round: 7 + u64::from(level),
            owner: ReplicaId(owner),
        }
    }

    #[test]
    fn own_block_is_completed_by_quorum_of_votes_once() {
        let mut mode = Fallback::new(Vec::new(), Time(0));
        mode.propose(block(1, 0), Vec::new());
        mode.on_vote(ReplicaId(1), block(1, 0));
        assert_eq!(mode.next_parent(2), None, "it is not durable");
        mode.show(block(1, 0));
        assert_eq!(mode.next_parent(2), Some(block(1, 0)));
        mode.propose(block(2, 0), Vec::new());
        assert_eq!(mode.next_parent(2), None, "there is a level 2");
        mode.show(block(2, 0));
        mode.on_vote(ReplicaId(2), block(2, 0));
        mode.forget(ReplicaId(2));
        assert_eq!(mode.complete(2), None, "it has lost its vote");
        mode.on_vote(ReplicaId(1), block(2, 0));
        assert_eq!(mode.complete(2), Some(block(2, 0)));
        assert_eq!(
            (mode.complete(2), mode.completed()),
            (None, Some(block(2, 0)))
        );
    }

    #[test]
    fn block_of_level_2_that_was_voted_for_is_remembered() {
        let mut mode = Fallback::default();
        mode.wait_for(block(2, 1));
        assert!(mode.vote(block(2, 1)), "there is no own one");
        assert!(mode.waiting().is_empty());
        mode.wait_for(block(2, 1));
        assert!(mode.waiting().is_empty(), "it was voted for");
        assert_eq!(mode.fall().get(&ReplicaId(1)), Some(&block(2, 1)));
        assert_eq!(mode.vote_of(block(2, 1)), Some(false));
        mode.voted(block(2, 1));
        assert_eq!(mode.vote_of(block(2, 1)), Some(true));
    }

    #[test]
    fn own_block_is_sent_again_at_once_only_where_it_is_owed() {
        let others: ReplicaSet = [ReplicaId(1), ReplicaId(2)].into_iter().collect();
        let mut mode = Fallback::default();
        mode.propose(block(1, 0), Vec::new());
        assert_eq!(mode.repeat(others), None, "it is not durable");
        mode.show(block(1, 0));
        mode.renewed(ReplicaId(2));
        let owed = ReplicaSet::EMPTY.with(ReplicaId(2));
        assert_eq!(mode.repeat(others), Some((block(1, 0), owed)));
        mode.owe(ReplicaSet::EMPTY);
        let sent: Vec<usize> = (0..7)
            .filter_map(|_| mode.repeat(others).map(|(_, to)| to.len()))
            .collect();
        assert_eq!(sent, [0, 0, 2, 0, 0, 0, 2]);
    }
}
