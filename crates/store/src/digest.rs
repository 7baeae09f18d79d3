//! Hashing the whole state while commands keep changing it, without copying it.
//!
//! ```text
//!   slab    [ h h h h | · s · · · ]      h hashed, s hashed early or new since the beginning
//!                     ▲ cursor
//!   command changes an entry ahead of the cursor ──► it is hashed at once, as it was
//!   FLUSHALL ──► the old slab is detached and hashed from there
//! ```
//!
//! It is independent of a snapshot in progress: both may continue side by side. One bit per place
//! records what has been hashed early. Long strings and collections of many elements are hashed in
//! pieces, so that no step is long.

use crate::keyspace::{Database, Detached, Entry, Slab};
use crate::undo::Undo;
use crate::value::Value;
use quintet_replica::StateSum;
use quintet_replica::digest::{Pieces, is_long, put_bytes};
use std::ops::Range;

/// The cost of looking at a place that holds nothing to be hashed.
const PLACE_COST: usize = 32;

/// That many elements of a collection are a piece.
const PIECE_ELEMENTS: usize = 16;

/// How many elements a value has; none in a string.
fn elements(value: &Value) -> usize {
    match value {
        Value::Free | Value::String(_) => 0,
        Value::Hash(hash) => hash.len(),
        Value::List(list) => list.len(),
        Value::Set(set) => set.len(),
        Value::SortedSet(set) => set.len(),
    }
}

/// Appends the elements in these places; says how much of them was hashed apart.
fn put_elements(out: &mut Vec<u8>, value: &Value, range: Range<usize>) -> usize {
    match value {
        Value::Free | Value::String(_) => 0,
        Value::Hash(hash) => range
            .map(|at| {
                let (field, value) = hash.at(at);
                put_bytes(out, field) + put_bytes(out, value)
            })
            .sum(),
        Value::List(list) => (list.range(range))
            .map(|element| put_bytes(out, element))
            .sum(),
        Value::Set(set) => range.map(|at| put_bytes(out, set.at(at))).sum(),
        Value::SortedSet(set) => range
            .map(|at| {
                let (member, score) = set.at(at);
                out.extend_from_slice(&score.to_bits().to_le_bytes());
                put_bytes(out, member)
            })
            .sum(),
    }
}

/// Whether a value is hashed in pieces.
fn is_long_value(value: &Value) -> bool {
    match value {
        Value::String(string) => is_long(string.bytes.len()),
        _ => elements(value) > 0,
    }
}

/// The replicated properties of a value besides its bytes or elements.
fn kind(value: &Value) -> [u8; 2] {
    match value {
        Value::Free => [0, 0],
        Value::String(string) => [1, u8::from(string.raw)],
        Value::Hash(hash) => [2, u8::from(hash.is_large())],
        Value::List(_) => [3, 0],
        Value::Set(set) => [4, u8::from(set.is_of_integers())],
        Value::SortedSet(set) => [5, u8::from(set.is_large())],
    }
}

/// How far a digest has come in one database.
#[derive(Debug, Default)]
pub(crate) struct DigestCursor {
    /// The database's number when the digest began.
    origin: u8,
    /// The next place to be looked at.
    next: u32,
    /// The end of the slab when the digest began; 0 in one that is not part of it.
    end: u32,
    /// Places ahead that need not be looked at any more, a bit each.
    seen: Vec<u64>,
    /// The hashed part of a long value in the next place.
    partial: Option<Pieces>,
}

impl DigestCursor {
    /// At the beginning of a slab that ends there.
    pub(crate) fn new(origin: u8, end: u32) -> Self {
        Self {
            origin,
            next: 0,
            end,
            seen: vec![0; (end as usize).div_ceil(64)],
            partial: None,
        }
    }

    /// Whether all has been looked at.
    pub(crate) const fn is_done(&self) -> bool {
        self.next >= self.end
    }

    /// Marks a place; false when it had been looked at, or is none of the digest's.
    pub(crate) fn see(&mut self, slot: u32) -> bool {
        if slot < self.next || slot >= self.end {
            return false;
        }
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        let unseen = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        unseen
    }

    fn advance(&mut self) {
        self.next += 1;
        self.partial = None;
        if self.is_done() {
            self.seen = Vec::new();
        }
    }
}

/// A digest in progress.
#[derive(Debug)]
pub(crate) struct Digest {
    /// Milliseconds of the log's clock when it began: what had expired by then does not count,
    /// since replicas may remove it at different times.
    now: u64,
    sum: StateSum,
    piece: Vec<u8>,
}

impl Digest {
    pub(crate) fn new(now: u64, globals: &[u8]) -> Self {
        let mut sum = StateSum::default();
        put_bytes(sum.begin_part(), globals);
        sum.end_part();
        let piece = Vec::new();
        Self { now, sum, piece }
    }

    /// Continues with a long value until so much work has been done; true at its end.
    fn advance(&mut self, pieces: &mut Pieces, value: &Value, stop: usize) -> bool {
        if let Value::String(string) = value {
            let before = pieces.offset();
            let left = stop.saturating_sub(self.sum.work());
            let whole = pieces.advance(&string.bytes, left);
            self.sum.count_work(pieces.offset() - before);
            return whole;
        }
        let count = elements(value);
        while pieces.offset() < count && self.sum.work() < stop {
            let end = count.min(pieces.offset() + PIECE_ELEMENTS);
            self.piece.clear();
            let apart = put_elements(&mut self.piece, value, pieces.offset()..end);
            pieces.add(&self.piece, end);
            // Each element is somewhere else in memory.
            let visits = (end - pieces.offset() + PIECE_ELEMENTS) * PLACE_COST;
            self.sum.count_work(self.piece.len() + apart + visits);
        }
        pieces.offset() >= count
    }

    /// Adds an entry as it is now.
    pub(crate) fn add(&mut self, origin: u8, entry: &Entry, partial: Option<Pieces>) {
        if entry.expire_at <= self.now {
            return;
        }
        let mut pieces = partial.unwrap_or_default();
        let long = is_long_value(&entry.value);
        if long {
            self.advance(&mut pieces, &entry.value, usize::MAX);
        }
        let part = self.sum.begin_part();
        part.push(origin);
        part.extend_from_slice(&entry.version.to_le_bytes());
        part.extend_from_slice(&entry.expire_at.to_le_bytes());
        let apart = put_bytes(part, &entry.key);
        part.extend_from_slice(&kind(&entry.value));
        match &entry.value {
            Value::String(string) if !long => {
                put_bytes(part, &string.bytes);
            }
            _ => pieces.put(part),
        }
        self.sum.count_work(apart);
        self.sum.end_part();
    }

    /// Adds a record of the past.
    pub(crate) fn add_past(&mut self, payload: &[u8]) {
        let apart = put_bytes(self.sum.begin_part(), payload);
        self.sum.count_work(apart);
        self.sum.end_part();
    }

    /// The digest of what has been added.
    pub(crate) fn finish(&self) -> u128 {
        self.sum.finish()
    }

    /// Must be called before the entry at this place changes.
    pub(crate) fn before_change(&mut self, cursor: &mut DigestCursor, slot: u32, slab: &Slab) {
        if cursor.see(slot) {
            let partial = cursor.partial.take_if(|_| cursor.next == slot);
            self.add(cursor.origin, slab.entry(slot), partial);
        }
    }

    /// Adds entries from the cursor on until so much work has been done.
    fn walk(&mut self, cursor: &mut DigestCursor, slab: &Slab, stop: usize) {
        while !cursor.is_done() && self.sum.work() < stop {
            let slot = cursor.next;
            let seen = cursor.seen[slot as usize / 64] & (1 << (slot % 64)) != 0;
            let entry = slab.entry(slot);
            if seen || matches!(entry.value, Value::Free) {
                self.sum.count_work(PLACE_COST);
                cursor.advance();
                continue;
            }
            if is_long_value(&entry.value) && entry.expire_at > self.now {
                let mut pieces = cursor.partial.unwrap_or_default();
                let whole = self.advance(&mut pieces, &entry.value, stop);
                cursor.partial = Some(pieces);
                if !whole {
                    return;
                }
            }
            let partial = cursor.partial.take();
            self.add(cursor.origin, entry, partial);
            cursor.advance();
        }
    }

    /// Continues for about `budget` bytes; gives the digest at the end.
    pub(crate) fn step(
        &mut self,
        databases: &mut [Database],
        detached: &mut [Detached],
        undo: Option<&mut Undo>,
        budget: usize,
    ) -> Option<u128> {
        let stop = self.sum.work().saturating_add(budget.max(1));
        for database in databases {
            self.walk(&mut database.digest, &database.slab, stop);
        }
        for detached in detached {
            self.walk(&mut detached.digest, &detached.slab, stop);
        }
        if let Some(undo) = undo {
            undo.digest(|payload| {
                let continues = self.sum.work() < stop;
                if continues {
                    self.add_past(payload);
                }
                continues
            });
        }
        // It ends in a step that has found nothing left to do, or not all of its budget's worth.
        (self.sum.work() < stop).then(|| self.finish())
    }
}
