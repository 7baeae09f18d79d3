//! The shared state table (§3.4, §3.5): one row per member, one writer per row, columns that only
//! rise; and what programs are made of over it: projectors, reducers, triggers.
//!
//! ```text
//!   area of odd views | area of even views                  each area of a row:
//!   HEAD | VIEW | HEARTBEAT | SUSPECTED | WEDGED | PERSISTED | BARRIER | RECEIVED[n] | ECHO[n]
//!        | BLOCKS[n] | PROPOSED | proposal … | ring of slots: (guard | meta | words) …
//!        | block of each subgroup: HELD | PERSISTED | END | RECEIVED[n] | BLOCKS[n] | ring
//!
//!   Shards of a subgroup are disjoint, so a row has one block for each subgroup: that of the shard
//!   which its replica is a member of.
//!
//!   own row ── put of what changed ──► the others' copies ── on_put ──► dirty columns ──► triggers
//! ```
//!
//! A row is read only when HEAD, written before anything of a view, and VIEW, written after the
//! first whole row, both name the reader's view. Views alternate between two areas, so a member
//! that is already in the next view does not disturb the frozen columns of this one.

use super::message::{Ballot, Member, Proposal, ShardView, View};
use alloc::{vec, vec::Vec};
use quintet_replica::{Context, Incarnation, Protocol, ReplicaId, ReplicaSet, Slot};

pub(super) const HEAD: u32 = 0;
pub(super) const VIEW: u32 = 1;
pub(super) const HEARTBEAT: u32 = 2;
pub(super) const SUSPECTED: u32 = 3;
pub(super) const WEDGED: u32 = 5;
pub(super) const PERSISTED: u32 = 6;
pub(super) const BARRIER: u32 = 7;
pub(super) const RECEIVED: u32 = 8;

/// Columns by kind, as a set: what a put has changed, and what a trigger looks at.
pub(super) type Columns = u16;
pub(super) const ON_VIEW: Columns = 1;
pub(super) const ON_SUSPECTED: Columns = 1 << 1;
pub(super) const ON_WEDGED: Columns = 1 << 2;
pub(super) const ON_PERSISTED: Columns = 1 << 3;
pub(super) const ON_BARRIER: Columns = 1 << 4;
pub(super) const ON_RECEIVED: Columns = 1 << 5;
pub(super) const ON_ECHO: Columns = 1 << 6;
pub(super) const ON_PROPOSED: Columns = 1 << 7;
pub(super) const ON_RING: Columns = 1 << 8;
/// Not a column: something of this replica alone has changed.
pub(super) const ON_SELF: Columns = 1 << 9;
pub(super) const ON_BLOCKS: Columns = 1 << 10;
/// Anything in a block of a subgroup.
pub(super) const ON_SHARD: Columns = 1 << 11;
pub(super) const ON_ALL: Columns = (1 << 12) - 1;

/// Where in a row the columns of an order of messages are: in the block of a subgroup, or where
/// those of the group itself are.
pub(super) type Block = Option<u32>;

/// Columns of a block: this member holds the shard's log up to the base; how many messages of the
/// order it holds durably, and the last slot of them.
const HELD: u32 = 0;
const SHARD_PERSISTED: u32 = 1;
const END: u32 = 2;
const SHARD_RECEIVED: u32 = 3;
/// Words of a proposal for each shard.
const SHARD_WORDS: u32 = 12;

/// A trigger: fires when its predicate holds, looked at when one of its columns has changed. Plain
/// functions, in a table that is there at compile time.
pub(super) struct Trigger<P: Protocol> {
    pub columns: Columns,
    /// Fires once per view; the others fire again and again.
    pub once: bool,
    pub when: fn(&P) -> bool,
    pub act: fn(&mut P, &mut Context<'_, P>),
}

/// Where things are in a row.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Layout {
    members: u32,
    pub window: u32,
    slot_words: u32,
    subgroups: u32,
    shards: u32,
    /// Words of a row for one view; every look at a column needs it.
    area_words: u32,
}

impl Layout {
    pub const fn new(members: usize, window: usize, slot_bytes: usize) -> Self {
        let layout = Self {
            members: members as u32,
            window: window as u32,
            slot_words: 2 + slot_bytes.div_ceil(8) as u32,
            subgroups: 0,
            shards: 0,
            area_words: 0,
        };
        layout.with_shards(0, 0)
    }

    /// The same with blocks.
    pub const fn with_shards(self, subgroups: usize, shards: usize) -> Self {
        let layout = Self {
            subgroups: subgroups as u32,
            shards: shards as u32,
            ..self
        };
        Self {
            area_words: layout.block(layout.subgroups),
            ..layout
        }
    }

    const fn block_ring(&self) -> u32 {
        SHARD_RECEIVED + 2 * self.members
    }
    const fn block_words(&self) -> u32 {
        self.block_ring() + self.window * self.slot_words
    }
    /// Where a block begins.
    const fn block(&self, block: u32) -> u32 {
        self.ring() + self.window * self.slot_words + block * self.block_words()
    }
    /// The columns of a block.
    pub const fn place_of(&self, block: u32) -> core::ops::Range<u32> {
        self.block(block)..self.block(block + 1)
    }
    pub const fn is_in_block(&self, column: u32) -> bool {
        column >= self.block(0)
    }
    pub const fn held(&self, block: u32) -> u32 {
        self.block(block) + HELD
    }
    pub const fn end(&self, block: u32) -> u32 {
        self.block(block) + END
    }
    pub const fn persisted(&self, block: Block) -> u32 {
        match block {
            None => PERSISTED,
            Some(block) => self.block(block) + SHARD_PERSISTED,
        }
    }

    pub const fn received(&self, block: Block, sender: ReplicaId) -> u32 {
        match block {
            None => RECEIVED + sender.0 as u32,
            Some(block) => self.block(block) + SHARD_RECEIVED + sender.0 as u32,
        }
    }
    pub const fn echo(&self, reader: ReplicaId) -> u32 {
        RECEIVED + self.members + reader.0 as u32
    }
    pub const fn blocks(&self, block: Block, from: ReplicaId) -> u32 {
        match block {
            None => RECEIVED + 2 * self.members + from.0 as u32,
            Some(block) => self.block(block) + SHARD_RECEIVED + self.members + from.0 as u32,
        }
    }
    pub const fn proposed(&self) -> u32 {
        RECEIVED + 3 * self.members
    }
    const fn proposal_words(&self) -> u32 {
        3 + 2 * self.members + SHARD_WORDS * self.shards
    }
    pub const fn ring(&self) -> u32 {
        self.proposed() + 1 + self.proposal_words()
    }
    /// Words of a row besides its rings.
    pub const fn control_words(&self) -> u32 {
        self.ring() + self.subgroups * self.block_ring()
    }
    pub const fn slot(&self, block: Block, number: u64) -> u32 {
        let ring = match block {
            None => self.ring(),
            Some(block) => self.block(block) + self.block_ring(),
        };
        ring + (number % self.window as u64) as u32 * self.slot_words
    }
    pub const fn area_words(&self) -> u32 {
        self.area_words
    }
    pub const fn area(&self, view: u64) -> u32 {
        (view % 2) as u32 * self.area_words()
    }
    pub const fn slot_bytes(&self) -> usize {
        (self.slot_words as usize - 2) * 8
    }

    /// The only reader of a column, if it is of that kind: the member that waits until its messages
    /// are taken, for echoes, or for acknowledged blocks.
    pub fn concerns(&self, column: u32) -> Option<ReplicaId> {
        let behind = column.checked_sub(RECEIVED)?;
        (column < self.proposed()).then(|| ReplicaId((behind % self.members) as u16))
    }

    pub fn kind(&self, column: u32) -> Columns {
        match column {
            HEAD | VIEW => ON_VIEW,
            HEARTBEAT => 0,
            SUSPECTED | 4 => ON_SUSPECTED,
            WEDGED => ON_WEDGED,
            PERSISTED => ON_PERSISTED,
            BARRIER => ON_BARRIER,
            _ if column < RECEIVED + self.members => ON_RECEIVED,
            _ if column < RECEIVED + 2 * self.members => ON_ECHO,
            _ if column < self.proposed() => ON_BLOCKS,
            _ if column < self.ring() => ON_PROPOSED,
            _ if column < self.block(0) => ON_RING,
            _ => ON_SHARD,
        }
    }

    /// Columns that may change in any way: the proposal and a slot's words, each behind a guard
    /// that only rises.
    fn guarded(&self, column: u32) -> bool {
        if column < self.ring() {
            return column > self.proposed();
        }
        if column < self.block(0) {
            return !(column - self.ring()).is_multiple_of(self.slot_words);
        }
        let within = (column - self.block(0)) % self.block_words();
        let slot = within.checked_sub(self.block_ring());
        slot.is_some_and(|word| !word.is_multiple_of(self.slot_words))
    }
}

/// All rows as this member sees them.
#[derive(Hash)]
pub(super) struct Table {
    pub layout: Layout,
    rows: Vec<Vec<u64>>,
    view: u64,
}

/// The effect of a put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Merged {
    pub dirty: Columns,
    /// Words outside the table, or below what the row already said: the writer is not a member
    /// that follows the protocol.
    pub refused: u32,
}

impl Table {
    pub fn new(members: usize, layout: Layout) -> Self {
        Self {
            layout,
            // One by one, so that no page of a row is touched before there is something in it.
            rows: (0..members)
                .map(|_| vec![0; 2 * layout.area_words() as usize])
                .collect(),
            view: 0,
        }
    }

    /// Begins a view: the own row of it starts at zero.
    pub fn begin(&mut self, me: ReplicaId, view: u64) {
        self.view = view;
        let area = self.layout.area(view) as usize;
        let words = self.layout.area_words() as usize;
        self.rows[me.index()][area..area + words].fill(0);
        for column in [HEAD, VIEW] {
            self.rows[me.index()][area + column as usize] = view;
        }
    }

    /// Takes over what a peer has put. Words never go back within a view.
    pub fn merge(&mut self, from: ReplicaId, offset: u32, words: &[u64]) -> Merged {
        let layout = self.layout;
        let row = &mut self.rows[from.index()];
        let mut merged = Merged::default();
        for (index, word) in (offset..=u32::MAX).zip(words) {
            let Some(old) = row.get(index as usize).copied() else {
                merged.refused += 1;
                break;
            };
            let area = layout.area_words();
            let (start, column) = (index / area * area, index % area);
            if column == HEAD && *word > old {
                row[start as usize..(start + area) as usize].fill(0);
                merged.dirty |= ON_VIEW;
            } else if *word < old && !layout.guarded(column) {
                merged.refused += 1;
                continue;
            }
            if *word != row[index as usize] {
                row[index as usize] = *word;
                if start == layout.area(self.view) {
                    merged.dirty |= layout.kind(column);
                }
            }
        }
        merged
    }

    /// Whether the row of a member is that of the current view.
    #[inline]
    pub fn valid(&self, of: ReplicaId) -> bool {
        self.get(of, HEAD) == self.view && self.get(of, VIEW) == self.view
    }

    /// Projects one column of a row of the current view.
    #[inline]
    pub fn get(&self, of: ReplicaId, column: u32) -> u64 {
        self.rows[of.index()][(self.layout.area(self.view) + column) as usize]
    }

    /// Words of a row of the current view.
    pub fn words(&self, of: ReplicaId, column: u32, count: usize) -> &[u64] {
        let start = (self.layout.area(self.view) + column) as usize;
        &self.rows[of.index()][start..start + count]
    }

    /// Raises a column of the own row.
    ///
    /// # Panics
    /// When it would fall.
    pub fn set(&mut self, me: ReplicaId, column: u32, word: u64) -> bool {
        let index = (self.layout.area(self.view) + column) as usize;
        let cell = &mut self.rows[me.index()][index];
        assert!(
            *cell <= word,
            "a column only rises: {column} from {cell} to {word}"
        );
        core::mem::replace(cell, word) != word
    }

    pub fn suspected(&self, of: ReplicaId) -> ReplicaSet {
        let (low, high) = (self.get(of, SUSPECTED), self.get(of, SUSPECTED + 1));
        ReplicaSet(u128::from(low) | u128::from(high) << 64)
    }

    pub fn set_suspected(&mut self, me: ReplicaId, set: ReplicaSet) {
        let old = self.suspected(me);
        assert!(old.0 & !set.0 == 0, "a suspicion is never taken back");
        let index = (self.layout.area(self.view) + SUSPECTED) as usize;
        let row = &mut self.rows[me.index()];
        (row[index], row[index + 1]) = (set.0 as u64, (set.0 >> 64) as u64);
    }

    /// The rank whose proposal this row carries, as one above it; 0 for none.
    pub fn proposed(&self, of: ReplicaId) -> u64 {
        self.get(of, self.layout.proposed())
    }

    pub fn set_proposal(&mut self, me: ReplicaId, proposal: &Proposal) {
        let layout = self.layout;
        let start = (layout.area(self.view) + layout.proposed() + 1) as usize;
        let row = &mut self.rows[me.index()];
        let set = proposal.view.set();
        row[start..start + layout.proposal_words() as usize].fill(0);
        row[start] = proposal.view.base.0;
        (row[start + 1], row[start + 2]) = (set.0 as u64, (set.0 >> 64) as u64);
        for member in &proposal.view.members {
            let at = start + 3 + 2 * member.id.index();
            (row[at], row[at + 1]) = (member.starts, member.incarnation.0);
        }
        let mut at = start + 3 + 2 * layout.members as usize;
        for shard in &proposal.view.shards {
            let sets = [shard.members, shard.senders, shard.targets];
            for (word, set) in row[at..].chunks_exact_mut(2).zip(sets) {
                (word[0], word[1]) = (set.0 as u64, (set.0 >> 64) as u64);
            }
            row[at + 6] = shard.active_in;
            row[at + 7] = shard.before;
            row[at + 8] = shard.base.0;
            row[at + 9] = shard.generation;
            let among = shard.among.0;
            (row[at + 10], row[at + 11]) = (among as u64, (among >> 64) as u64);
            at += SHARD_WORDS as usize;
        }
        self.set(me, layout.proposed(), proposal.ballot.proposer);
    }

    /// The proposal that a row carries, if it makes sense.
    pub fn proposal(&self, of: ReplicaId) -> Option<Proposal> {
        let layout = self.layout;
        let proposer = self.proposed(of);
        let words = self.words(of, layout.proposed() + 1, layout.proposal_words() as usize);
        let set = ReplicaSet(u128::from(words[1]) | u128::from(words[2]) << 64);
        if proposer == 0
            || set.is_empty()
            || set.0 & !ReplicaSet::all(layout.members as usize).0 != 0
        {
            return None;
        }
        let members = set.iter().map(|id| Member {
            id,
            starts: words[3 + 2 * id.index()],
            incarnation: Incarnation(words[4 + 2 * id.index()]),
        });
        let all = ReplicaSet::all(layout.members as usize);
        let shards = &words[3 + 2 * layout.members as usize..];
        let shards = shards.chunks_exact(SHARD_WORDS as usize).map(|words| {
            let set = |at: usize| {
                let set = u128::from(words[at]) | u128::from(words[at + 1]) << 64;
                ReplicaSet(set & all.0)
            };
            ShardView {
                members: set(0),
                senders: set(2),
                targets: set(4),
                active_in: words[6],
                before: words[7],
                base: Slot(words[8]),
                generation: words[9],
                among: set(10),
            }
        });
        let view = View {
            number: self.view + 1,
            members: members.collect(),
            base: Slot(words[0]),
            shards: shards.collect(),
        };
        Some(Proposal {
            ballot: Ballot { round: 0, proposer },
            view,
            then: None,
        })
    }

    /// A column of a row, or 0 while the row is not one of this view.
    #[inline]
    pub fn read(&self, of: ReplicaId, column: u32) -> u64 {
        if self.valid(of) {
            self.get(of, column)
        } else {
            0
        }
    }

    /// The columns of the own row besides the ring, HEAD and VIEW, in the order in which they may
    /// become visible: a vector before its guard, counts before WEDGED, which makes them final.
    pub fn own_ranges(&self, me: ReplicaId) -> [(u32, &[u64]); 4] {
        let layout = self.layout;
        let area = layout.area(self.view);
        let proposed = layout.proposed();
        let range = |from: u32, to: u32| (area + from, self.words(me, from, (to - from) as usize));
        [
            range(proposed + 1, layout.ring()),
            range(proposed, proposed + 1),
            range(PERSISTED, proposed),
            range(HEARTBEAT, PERSISTED),
        ]
    }

    /// The columns of a block of the own row besides its ring.
    pub fn block_range(&self, me: ReplicaId, block: u32) -> (u32, &[u64]) {
        let layout = self.layout;
        let (area, from) = (layout.area(self.view), layout.block(block));
        let words = self.words(me, from, layout.block_ring() as usize);
        (area + from, words)
    }

    /// One column of the own row.
    pub fn own_range(&self, me: ReplicaId, column: u32) -> (u32, &[u64]) {
        let area = self.layout.area(self.view);
        (area + column, self.words(me, column, 1))
    }

    /// Some columns of the own row, in that order.
    pub fn dirty_ranges(&self, me: ReplicaId, dirty: &[u32]) -> Vec<(u32, &[u64])> {
        let layout = self.layout;
        let area = layout.area(self.view);
        let mut columns = dirty.to_vec();
        columns.sort_unstable_by(|a, b| b.cmp(a));
        columns.dedup();
        let mut ranges = Vec::with_capacity(columns.len() + 1);
        for column in columns {
            if column == layout.proposed() {
                let words = layout.proposal_words() as usize;
                ranges.push((area + column + 1, self.words(me, column + 1, words)));
            }
            let count = if column == SUSPECTED { 2 } else { 1 };
            ranges.push((area + column, self.words(me, column, count)));
        }
        ranges
    }

    /// The words that members agree by, row by row.
    pub fn control_words(&self) -> impl Iterator<Item = u64> + '_ {
        let area = self.layout.area(self.view) as usize;
        let control = area..area + self.layout.ring() as usize;
        let rows = self.rows.iter();
        rows.flat_map(move |row| row[control.clone()].iter().copied())
    }
}

/// Reducers: what a projector of each row comes to over some rows.
pub(super) fn min(rows: ReplicaSet, project: impl Fn(ReplicaId) -> u64) -> u64 {
    rows.iter().map(project).min().unwrap_or(0)
}

pub(super) fn count(rows: ReplicaSet, project: impl Fn(ReplicaId) -> bool) -> usize {
    rows.iter().filter(|id| project(*id)).count()
}

pub(super) fn all(rows: ReplicaSet, project: impl Fn(ReplicaId) -> bool) -> bool {
    rows.iter().all(project)
}

pub(super) fn any(rows: ReplicaSet, project: impl Fn(ReplicaId) -> bool) -> bool {
    rows.iter().any(project)
}
