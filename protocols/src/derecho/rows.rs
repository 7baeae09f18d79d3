//! The shared state table as this member works on it: what has changed in it, what of that is to be
//! put, and to whom puts were lost.

use super::{
    message::Proposal,
    sst::{Columns, HEARTBEAT, Merged, ON_ALL, ON_SUSPECTED, SUSPECTED, Table, VIEW},
};
use alloc::{vec, vec::Vec};
use core::ops::Deref;
use quintet_replica::{Context, Protocol, ReplicaId, ReplicaSet, parts::Member};

/// See the module. It reads as its table.
#[derive(Hash)]
pub(super) struct Rows {
    own: ReplicaId,
    table: Table,
    /// Columns of any row that have changed since triggers were looked at, and triggers that have
    /// fired.
    dirty: Columns,
    fired: u32,
    /// The columns of the own row that are to be put.
    own_dirty: Vec<u32>,
    /// Those of them in blocks of subgroups, which members of shards alone look at.
    block_dirty: Vec<u32>,
    /// Something in the own row that others wait for has changed.
    news: bool,
    block_news: bool,
    /// The members to whom the whole row is to be put.
    lagging: ReplicaSet,
    /// Messages that each had taken at the last beat, and for how many beats no more.
    taken_before: Vec<(u64, u32)>,
}

impl Deref for Rows {
    type Target = Table;
    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Rows {
    pub fn new(me: &Member, table: Table) -> Self {
        Self {
            own: me.id(),
            table,
            dirty: 0,
            fired: 0,
            own_dirty: Vec::new(),
            block_dirty: Vec::new(),
            news: false,
            block_news: false,
            lagging: ReplicaSet::EMPTY,
            taken_before: vec![(0, 0); me.members()],
        }
    }

    /// Begins a view: nothing of it was put to anybody.
    pub fn begin(&mut self, view: u64, peers: ReplicaSet) {
        self.table.begin(self.own, view);
        self.dirty = ON_ALL;
        self.fired = 0;
        self.own_dirty.clear();
        self.block_dirty.clear();
        self.news = false;
        self.block_news = false;
        self.lagging = peers;
        self.taken_before.fill((0, 0));
    }

    /// Takes over what a peer has put.
    pub fn merge(&mut self, from: ReplicaId, offset: u32, words: &[u64]) -> Merged {
        let merged = self.table.merge(from, offset, words);
        self.dirty |= merged.dirty;
        merged
    }

    // ------------------------------------------------------------------------------ triggers

    /// Something has changed: these columns, or what stands for this replica itself.
    pub const fn touch(&mut self, columns: Columns) {
        self.dirty |= columns;
    }

    pub const fn is_dirty(&self) -> bool {
        self.dirty != 0
    }

    pub const fn take_dirty(&mut self) -> Columns {
        core::mem::replace(&mut self.dirty, 0)
    }

    /// Whether a trigger is to be looked at, after these changes and those since.
    pub const fn concerned(&self, columns: Columns, dirty: Columns) -> bool {
        columns & (dirty | self.dirty) != 0
    }

    pub const fn has_fired(&self, trigger: usize) -> bool {
        self.fired & 1 << trigger != 0
    }

    pub const fn fired(&mut self, trigger: usize) {
        self.fired |= 1 << trigger;
    }

    /// The view has ended.
    pub const fn end(&mut self) {
        self.fired = 0;
    }

    // --------------------------------------------------------------------------- the own row

    pub fn own(&self, column: u32) -> u64 {
        self.table.get(self.own, column)
    }

    pub fn set(&mut self, column: u32, word: u64) {
        let new = self.set_quietly(column, word);
        match self.table.layout.is_in_block(column) {
            false => self.news |= new,
            true => self.block_news |= new,
        }
    }

    /// For a value that no member waits for: it goes with the next put. Gives whether it was new.
    pub fn set_quietly(&mut self, column: u32, word: u64) -> bool {
        let new = self.table.set(self.own, column, word);
        if new {
            match self.table.layout.is_in_block(column) {
                false => self.own_dirty.push(column),
                true => self.block_dirty.push(column),
            }
            self.dirty |= self.table.layout.kind(column);
        }
        new
    }

    pub fn set_suspected(&mut self, suspected: ReplicaSet) {
        self.table.set_suspected(self.own, suspected);
        self.own_dirty.push(SUSPECTED);
        self.news = true;
        self.dirty |= ON_SUSPECTED;
    }

    pub fn set_proposal(&mut self, proposal: &Proposal) {
        self.table.set_proposal(self.own, proposal);
        self.own_dirty.push(self.table.layout.proposed());
        self.news = true;
        self.dirty |= ON_ALL;
    }

    pub fn beat(&mut self, number: u64) {
        self.set(HEARTBEAT, number);
    }

    // ---------------------------------------------------------------------------------- puts

    /// Puts to a member may be lost: it gets the whole row.
    pub const fn lost(&mut self, peer: ReplicaId) {
        self.lagging.insert(peer);
    }

    /// Puts that were lost unseen are repaired by the next whole row.
    pub const fn lost_by_all(&mut self, peers: ReplicaSet) {
        self.lagging = peers;
    }

    /// Another connection to a member is made.
    pub fn link_up(&mut self, peer: ReplicaId) {
        self.lost(peer);
        self.taken_before[peer.index()].1 = 0;
    }

    /// A member that takes nothing for several beats, and has not taken all that was sent, may have
    /// lost what was put.
    pub fn watch_taken(&mut self, peer: ReplicaId, sent: u64) {
        let taken = self.read(peer, self.layout.received(None, self.own));
        let (before, beats) = self.taken_before[peer.index()];
        let stuck = taken == before && taken < sent || !self.valid(peer);
        let beats = if stuck { beats + 1 } else { 0 };
        self.taken_before[peer.index()] = (taken, beats);
        if beats > 0 && beats.is_multiple_of(3) {
            self.lost(peer);
        }
    }

    /// The members of `live` that get the whole row.
    pub const fn lagging(&mut self, live: ReplicaSet) -> ReplicaSet {
        self.lagging = ReplicaSet(self.lagging.0 & live.0);
        self.lagging
    }

    /// The whole row is put to a member now.
    pub const fn repaired(&mut self, peer: ReplicaId) {
        self.lagging = self.lagging.without(peer);
    }

    /// Whether others wait for what has changed; else it goes with the next put.
    pub fn take_news(&mut self) -> bool {
        if !self.news && self.own_dirty.len() > 8 * self.taken_before.len() {
            self.own_dirty.sort_unstable();
            self.own_dirty.dedup();
        }
        core::mem::replace(&mut self.news, false)
    }

    /// The same of blocks.
    pub fn take_block_news(&mut self) -> bool {
        self.block_dirty.sort_unstable();
        self.block_dirty.dedup();
        core::mem::replace(&mut self.block_news, false)
    }

    /// The columns of a block that have changed, and are put now.
    pub fn take_changes(&mut self, block: u32) -> Vec<u32> {
        let place = self.table.layout.place_of(block);
        let changed = (self.block_dirty.iter().copied()).filter(|column| place.contains(column));
        let changed = changed.collect();
        self.block_dirty.retain(|column| !place.contains(column));
        changed
    }

    /// Puts what has changed, behind these ranges of the ring. A column that one member alone looks
    /// at goes to that one alone.
    pub fn put_changes<P: Protocol>(
        &mut self,
        to: ReplicaSet,
        ring: &[(u32, &[u64])],
        has_slots: bool,
        ctx: &mut Context<'_, P>,
    ) {
        let layout = self.table.layout;
        let mut dirty = core::mem::take(&mut self.own_dirty);
        dirty.sort_unstable_by_key(|column| (layout.concerns(*column), *column));
        dirty.dedup();
        let common = dirty.partition_point(|column| layout.concerns(*column).is_none());
        let (common, single) = dirty.split_at(common);
        let changed = self.table.dirty_ranges(self.own, common);
        let mut rest = to;
        for of_it in single.chunk_by(|a, b| layout.concerns(*a) == layout.concerns(*b)) {
            let peer = of_it.first().and_then(|column| layout.concerns(*column));
            let Some(peer) = peer.filter(|peer| to.contains(*peer)) else {
                continue;
            };
            let own = self.table.dirty_ranges(self.own, of_it);
            ctx.put(
                ReplicaSet::EMPTY.with(peer),
                &[ring, &own, &changed].concat(),
            );
            rest = rest.without(peer);
        }
        if (has_slots || !changed.is_empty()) && !rest.is_empty() {
            ctx.put(rest, &[ring, &changed].concat());
        }
        dirty.clear();
        self.own_dirty = dirty;
    }

    /// Puts the whole row, behind these ranges of the ring.
    pub fn put_all<P: Protocol>(
        &self,
        to: ReplicaId,
        ring: &[(u32, &[u64])],
        ctx: &mut Context<'_, P>,
    ) {
        let own = self.table.own_ranges(self.own);
        let view = [self.table.own_range(self.own, VIEW)];
        ctx.put(ReplicaSet::EMPTY.with(to), &[ring, &own, &view].concat());
    }

    #[cfg(test)]
    pub const fn has_put_all(&self) -> bool {
        self.own_dirty.is_empty()
    }
}
