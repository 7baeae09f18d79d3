//! Hashing the whole state while commands go on changing it, without copying it.
//!
//! ```text
//!   slab    [ h h h h | · s · · · ]      h hashed, s hashed early or new since the beginning
//!                     ▲ cursor
//!   command changes an entry ahead of the cursor ──► it is hashed at once, as it was
//!   FLUSHALL ──► the old slab is detached and hashed from there
//! ```
//!
//! It is independent of a snapshot in progress: both may go on side by side. What has been hashed
//! early is remembered in one bit per place.

use crate::keyspace::{Database, Detached, Entry, Slab};
use crate::value::Value;
use quintet_replica::StateSum;
use quintet_replica::digest::{Pieces, is_long, put_bytes};

/// What looking at a place counts for that holds nothing to be hashed.
const PLACE_COST: usize = 32;

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
    /// What has been hashed of a long string in the next place.
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
}

impl Digest {
    pub(crate) fn new(now: u64, globals: &[u8]) -> Self {
        let mut sum = StateSum::default();
        put_bytes(sum.begin_part(), globals);
        sum.end_part();
        Self { now, sum }
    }

    /// Adds an entry as it is now.
    pub(crate) fn add(&mut self, origin: u8, entry: &Entry, partial: Option<Pieces>) {
        if entry.expire_at <= self.now {
            return;
        }
        let part = self.sum.begin_part();
        part.push(origin);
        part.extend_from_slice(&entry.version.to_le_bytes());
        part.extend_from_slice(&entry.expire_at.to_le_bytes());
        let mut apart = put_bytes(part, &entry.key);
        match &entry.value {
            Value::String(string) => {
                part.push(u8::from(string.raw));
                match partial {
                    Some(pieces) => pieces.put_bytes(part, &string.bytes),
                    None => apart += put_bytes(part, &string.bytes),
                }
            }
            value => {
                part.push(2);
                value.serialize(part);
            }
        }
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
            if let Value::String(string) = &entry.value
                && is_long(string.bytes.len())
            {
                let left = stop - self.sum.work();
                let pieces = cursor.partial.get_or_insert_default();
                let whole = pieces.advance(&string.bytes, left);
                self.sum.count_work(left.min(string.bytes.len()));
                if !whole {
                    return;
                }
            }
            let partial = cursor.partial.take();
            self.add(cursor.origin, entry, partial);
            cursor.advance();
        }
    }

    /// Goes on for about `budget` bytes; gives the digest at the end.
    pub(crate) fn step(
        &mut self,
        databases: &mut [Database],
        detached: &mut [Detached],
        budget: usize,
    ) -> Option<u128> {
        let stop = self.sum.work().saturating_add(budget.max(1));
        for database in databases {
            self.walk(&mut database.digest, &database.slab, stop);
        }
        for detached in detached {
            self.walk(&mut detached.digest, &detached.slab, stop);
        }
        // It ends in a step that has found nothing left to do, or not all of its budget's worth.
        (self.sum.work() < stop).then(|| self.finish())
    }
}
