//! Which records are of which key: positions by the hash of the key's name and database.
//!
//! ```text
//!   keep ──► pending: (hash, position) …  64 ──► table      many at once, so that the waits for
//!                                                           memory overlap
//! ```
//!
//! Two keys may have the same hash: a reader compares the record's key.

use core::hint::black_box;
use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet, hash_map};
use smallvec::SmallVec;

/// The additions that wait for the table.
const PENDING_MAX: usize = 64;
/// A command with more changes has its keys in a set.
const LISTED_MAX: usize = 16;

/// Where the records of a key stand, ascending.
#[derive(Debug, Default)]
pub(super) struct Positions {
    all: SmallVec<[u64; 2]>,
    /// The number of them that were dropped; taken out when they are the greater part.
    dropped: usize,
}

impl Positions {
    fn push(&mut self, position: u64) {
        self.all.push(position);
    }

    fn kept(&self) -> &[u64] {
        &self.all[self.dropped..]
    }

    /// Those from a position on.
    fn from(&self, position: u64) -> &[u64] {
        let kept = self.kept();
        &kept[kept.partition_point(|at| *at < position)..]
    }

    /// Drops those up to a position; whether none is left.
    fn drop_to(&mut self, position: u64) -> bool {
        while self.kept().first().is_some_and(|at| *at <= position) {
            self.dropped += 1;
        }
        if self.dropped > self.all.len() / 2 {
            self.all.drain(..self.dropped);
            self.dropped = 0;
            if self.all.spilled() && self.all.len() < self.all.capacity() / 4 {
                self.all.shrink_to_fit();
            }
        }
        self.all.is_empty()
    }

    fn spilled(&self) -> usize {
        if self.all.spilled() {
            self.all.capacity()
        } else {
            0
        }
    }
}

/// The rest of a table.
pub(super) type Left = hash_map::IntoValues<u64, Positions>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Index {
    table: HashMap<u64, Positions, FixedState>,
    pending: Vec<(u64, u64)>,
    /// Keys that the command in progress has changed.
    changed: SmallVec<[u64; LISTED_MAX]>,
    /// The same when there are more.
    changed_more: HashSet<u64, FixedState>,
    /// Positions that stand outside of the table.
    spilled: usize,
}

impl Index {
    /// The bytes of an entry of the table.
    const ENTRY_BYTES: usize = size_of::<(u64, Positions)>() + 1;

    /// An estimate of its memory.
    pub fn memory(&self) -> usize {
        self.table.capacity() * Self::ENTRY_BYTES + self.spilled * 8
    }

    /// The part of it that is freed bit by bit.
    pub fn into_left(mut self) -> Left {
        self.settle();
        self.table.into_values()
    }

    /// A command begins, or names are others' from here on.
    #[inline]
    pub fn begin(&mut self) {
        self.changed.clear();
        if !self.changed_more.is_empty() {
            self.changed_more = HashSet::default();
        }
    }

    /// Whether the command in progress has not changed this key before.
    pub fn is_first(&mut self, hash: u64) -> bool {
        if self.changed.contains(&hash) {
            return false;
        }
        if self.changed.len() < LISTED_MAX {
            self.changed.push(hash);
            return true;
        }
        self.changed_more.insert(hash)
    }

    /// Whether the command in progress has changed this key before.
    pub fn is_kept(&self, hash: u64) -> bool {
        self.changed.contains(&hash) || self.changed_more.contains(&hash)
    }

    /// Adds a position, which is behind all others.
    pub fn push(&mut self, hash: u64, position: u64) {
        self.pending.push((hash, position));
        if self.pending.len() >= PENDING_MAX {
            self.settle();
        }
    }

    /// Brings what is pending into the table.
    pub fn settle(&mut self) {
        self.touch(self.pending.iter().map(|(hash, _)| *hash));
        for (hash, position) in self.pending.drain(..) {
            let positions = self.table.entry(hash).or_default();
            self.spilled -= positions.spilled();
            positions.push(position);
            self.spilled += positions.spilled();
        }
    }

    /// Looks at the table in all these places: they do not depend on each other.
    fn touch(&self, hashes: impl Iterator<Item = u64>) {
        let ends = hashes.filter_map(|hash| self.table.get(&hash)?.all.last().copied());
        black_box(ends.fold(0, |sum, end| sum ^ end));
    }

    /// Drops these records, all of them before any that stay.
    pub fn drop_all(&mut self, dropped: &[(u64, u64)]) {
        self.settle();
        for dropped in dropped.chunks(PENDING_MAX) {
            self.touch(dropped.iter().map(|(hash, _)| *hash));
            for (hash, position) in dropped {
                if let hash_map::Entry::Occupied(mut positions) = self.table.entry(*hash) {
                    self.spilled -= positions.get().spilled();
                    if positions.get_mut().drop_to(*position) {
                        positions.remove();
                    } else {
                        self.spilled += positions.get().spilled();
                    }
                }
            }
        }
    }

    /// The positions under a hash from one on, ascending; what is pending must have been settled.
    pub fn from(&self, hash: u64, position: u64) -> &[u64] {
        match self.table.get(&hash) {
            Some(positions) => positions.from(position),
            None => &[],
        }
    }
}
