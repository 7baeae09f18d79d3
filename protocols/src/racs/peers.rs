//! The other members: their incarnations, and the newest words of each about its view.
//!
//! Of each member the newest timeout, new-view, completion and the newest blocks of level 1 and 2
//! are kept (R9). Those of later views wait here until this replica is there.

use super::{Block, BlockId, Mark, Quote};
use alloc::{sync::Arc, vec, vec::Vec};
use quintet_replica::{
    Incarnation, ReplicaId, ReplicaSet,
    parts::{Incarnations, Member, Observed},
};

/// The newest word of a member about a view: its number, the highest block, reads.
type Word = Option<(u64, BlockId, Option<Mark>)>;

/// See the module.
#[derive(Hash)]
pub(super) struct Peers {
    incarnations: Incarnations,
    /// The links to these are broken.
    down: ReplicaSet,
    timeouts: Vec<Word>,
    new_views: Vec<Word>,
    completed: Vec<Option<BlockId>>,
    /// Blocks of level 1 and 2 that came before this replica was in their view's asynchronous mode.
    early: Vec<[Option<Arc<Block>>; 2]>,
    /// Blocks of level 2 of which something that they quote is not here.
    quoting: Vec<Option<(Arc<Block>, Vec<Quote>)>>,
}

/// The members whose word is of this view, with their blocks.
fn of_view(words: &[Word], view: u64) -> Vec<(ReplicaId, BlockId)> {
    let word = |(from, word): (usize, &Word)| {
        let (of, high, _) = (*word)?;
        (of == view).then_some((ReplicaId(from as u16), high))
    };
    words.iter().enumerate().filter_map(word).collect()
}

/// A word replaces those of earlier views.
fn replace(known: &mut Word, (view, high, mark): (u64, BlockId, Option<Mark>)) {
    if known.is_none_or(|(before, ..)| before <= view) {
        *known = Some((view, high, mark));
    }
}

impl Peers {
    pub fn new(me: &Member) -> Self {
        let members = me.members();
        let mut incarnations = Incarnations::new(members);
        incarnations.observe(me.id(), me.incarnation());
        Self {
            incarnations,
            down: ReplicaSet::EMPTY,
            timeouts: vec![None; members],
            new_views: vec![None; members],
            completed: vec![None; members],
            early: vec![[None, None]; members],
            quoting: vec![None; members],
        }
    }

    pub fn observe(&mut self, id: ReplicaId, incarnation: Incarnation) -> Observed {
        self.incarnations.observe(id, incarnation)
    }

    pub fn incarnation(&self, id: ReplicaId) -> Incarnation {
        self.incarnations.of(id)
    }

    pub fn incarnations(&self) -> Vec<Incarnation> {
        self.incarnations.iter().map(|(_, known)| known).collect()
    }

    pub fn link_up(&mut self, id: ReplicaId) {
        self.down = self.down.without(id);
    }

    pub fn link_down(&mut self, id: ReplicaId) {
        self.down = self.down.with(id);
    }

    pub const fn is_down(&self, id: ReplicaId) -> bool {
        self.down.contains(id)
    }

    pub fn on_timeout(&mut self, from: ReplicaId, view: u64, high: BlockId, mark: Option<Mark>) {
        let mark = mark.filter(|mark| mark.replica == from);
        replace(&mut self.timeouts[from.index()], (view, high, mark));
    }

    /// The own timeout.
    pub fn stopped(&mut self, own: ReplicaId, view: u64, high: BlockId) {
        self.timeouts[own.index()] = Some((view, high, None));
    }

    pub fn timeouts(&self, view: u64) -> Vec<(ReplicaId, BlockId)> {
        of_view(&self.timeouts, view)
    }

    /// The reads that the timeouts of a view mark.
    pub fn marks(&self, view: u64) -> impl Iterator<Item = Mark> {
        let said = self.timeouts.iter().flatten();
        said.filter_map(move |(of, _, mark)| mark.filter(|_| *of == view))
    }

    pub fn on_new_view(&mut self, from: ReplicaId, view: u64, high: BlockId) {
        replace(&mut self.new_views[from.index()], (view, high, None));
    }

    pub fn new_views(&self, view: u64) -> Vec<(ReplicaId, BlockId)> {
        of_view(&self.new_views, view)
    }

    /// Whether its new-view is of a later view than this.
    pub fn is_ahead(&self, id: ReplicaId, of: u64) -> bool {
        self.new_views[id.index()].is_some_and(|(view, ..)| view > of)
    }

    pub fn on_complete(&mut self, from: ReplicaId, block: BlockId) {
        let known = &mut self.completed[from.index()];
        if known.is_none_or(|known| known.view <= block.view) {
            *known = Some(block);
        }
    }

    pub fn completed(&self, view: u64) -> Vec<BlockId> {
        let completed = self.completed.iter().flatten().copied();
        completed.filter(|id| id.view == view).collect()
    }

    pub fn keep_early(&mut self, block: Arc<Block>) {
        let early = &mut self.early[block.id.owner.index()][usize::from(block.id.level) - 1];
        if (early.as_ref()).is_none_or(|before| before.id.view <= block.id.view) {
            *early = Some(block);
        }
    }

    /// The blocks of this view that came early; drops those of views before.
    pub fn take_early(&mut self, view: u64) -> Vec<Arc<Block>> {
        let early = self.early.iter_mut().flatten();
        let due = early.filter_map(|early| early.take_if(|block| block.id.view <= view));
        due.filter(|block| block.id.view == view).collect()
    }

    /// Keeps a block until the blocks that it quotes are here; of each maker the newest.
    pub fn keep_quoting(&mut self, from: ReplicaId, block: Arc<Block>, quotes: Vec<Quote>) {
        let kept = &mut self.quoting[from.index()];
        if (kept.as_ref()).is_none_or(|(before, _)| before.id.view <= block.id.view) {
            *kept = Some((block, quotes));
        }
    }

    /// The kept block of a maker, if it is of this view; drops one of a view before.
    pub fn take_quoting(
        &mut self,
        maker: ReplicaId,
        view: u64,
    ) -> Option<(Arc<Block>, Vec<Quote>)> {
        let kept = &mut self.quoting[maker.index()];
        let kept = kept.take_if(|(block, _)| block.id.view <= view)?;
        (kept.0.id.view == view).then_some(kept)
    }

    /// The kept blocks of this view.
    pub fn quoting(&self, view: u64) -> Vec<BlockId> {
        let kept = self.quoting.iter().flatten().map(|(block, _)| block.id);
        kept.filter(|id| id.view == view).collect()
    }
}
