//! Hashing a replicated state: equal states give equal digests on every machine and in every build.
//!
//! ```text
//!   part ──► 128-bit hash ─┐
//!   part ──► 128-bit hash ─┼──► wrapping sum ──► digest
//!   part ──► 128-bit hash ─┘
//!
//!   part    a few fields, and bytes of any length: long ones by the hashes of their pieces
//! ```
//!
//! A sum does not depend on the order in which the parts are visited, so a table may be walked in
//! whatever order suits it, and an entry may be visited early because it is about to change. The
//! sum is there to find faults, not to withstand people who construct collisions.

use alloc::vec::Vec;
use xxhash_rust::xxh3::xxh3_128;

/// Longer bytes stand in a part by the hashes of pieces of this length, so that hashing them can
/// be interrupted between two pieces.
pub const PIECE: usize = 64 * 1024;
/// Up to this many bytes are copied into the part: dearer per byte, cheaper than another hash.
const INLINE_MAX: usize = 512;
/// The cost of visiting a part besides its bytes: memory that is not in the cache costs more than
/// hashing it.
const PART_COST: usize = 512;

/// 128 well-mixed bits of `bytes`: XXH3, the same on every machine and in every build.
#[must_use]
pub fn hash_wide(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

/// The digest of a state, under construction.
#[derive(Clone, Debug, Default)]
pub struct StateSum {
    sum: u128,
    parts: u64,
    part: Vec<u8>,
    work: usize,
}

impl StateSum {
    /// Begins a part: append to what is returned, with [`put_bytes`] where lengths vary, then call
    /// [`Self::end_part`].
    pub fn begin_part(&mut self) -> &mut Vec<u8> {
        self.part.clear();
        &mut self.part
    }

    /// Adds the part that was begun.
    pub fn end_part(&mut self) {
        self.sum = self.sum.wrapping_add(xxh3_128(&self.part));
        self.parts += 1;
        self.work += PART_COST + self.part.len();
        // One large part must not hold its memory for as long as a walk takes.
        self.part.truncate(PIECE);
        self.part.shrink_to(PIECE);
    }

    /// Counts work that no part shows: bytes hashed piece by piece, places that hold nothing.
    pub fn count_work(&mut self, bytes: usize) {
        self.work += bytes;
    }

    /// The work done so far, about the bytes hashed; a part counts for a few hundred more.
    #[must_use]
    pub const fn work(&self) -> usize {
        self.work
    }

    /// The digest of all parts so far.
    #[must_use]
    pub fn finish(&self) -> u128 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.sum.to_le_bytes());
        bytes[16..].copy_from_slice(&self.parts.to_le_bytes());
        xxh3_128(&bytes)
    }
}

/// Appends `bytes` to a part, so that it cannot be confused with what stands before and after; says
/// how much of it was hashed apart, for [`StateSum::count_work`].
pub fn put_bytes(part: &mut Vec<u8>, bytes: &[u8]) -> usize {
    if !is_long(bytes.len()) {
        part.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        part.extend_from_slice(bytes);
        return 0;
    }
    Pieces::default().put_bytes(part, bytes);
    bytes.len()
}

/// The hash of something long, piece by piece; where a piece ends must follow from the value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    offset: usize,
    chained: u128,
}

impl Pieces {
    /// Where the next piece begins.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Adds the piece that ends at `end`.
    pub fn add(&mut self, piece: &[u8], end: usize) {
        let mut both = [0; 32];
        both[..16].copy_from_slice(&self.chained.to_le_bytes());
        both[16..].copy_from_slice(&xxh3_128(piece).to_le_bytes());
        self.chained = xxh3_128(&both);
        self.offset = end;
    }

    /// Adds the next pieces of `bytes`, which are the same at every call, until about `budget`
    /// bytes have been hashed; true at the end.
    pub fn advance(&mut self, bytes: &[u8], budget: usize) -> bool {
        let stop = self.offset.saturating_add(budget);
        while self.offset < bytes.len() && self.offset < stop {
            let end = bytes.len().min(self.offset + PIECE);
            self.add(&bytes[self.offset..end], end);
        }
        self.offset >= bytes.len()
    }

    /// Appends the hash of all pieces to a part, and how long they are together.
    pub fn put(self, part: &mut Vec<u8>) {
        part.extend_from_slice(&(self.offset as u64).to_le_bytes());
        part.extend_from_slice(&self.chained.to_le_bytes());
    }

    /// Hashes what is left of `bytes` and appends to a part what [`put_bytes`] would.
    pub fn put_bytes(mut self, part: &mut Vec<u8>, bytes: &[u8]) {
        self.advance(bytes, usize::MAX);
        self.put(part);
    }
}

/// Whether bytes of this length stand in a part by the hashes of their pieces.
#[must_use]
pub const fn is_long(length: usize) -> bool {
    length > INLINE_MAX
}

/// The answer of a state machine when its state is to be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestBegun {
    /// This machine cannot: its state is not compared.
    Unsupported,
    /// It was done at once, for a state that is small.
    Done(u128),
    /// [`crate::StateMachine::digest_step`] continues with it.
    Steps,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(parts: &[&[u8]]) -> u128 {
        let mut sum = StateSum::default();
        for bytes in parts {
            put_bytes(sum.begin_part(), bytes);
            sum.end_part();
        }
        sum.finish()
    }

    #[test]
    fn digest_is_the_same_in_every_build() {
        let long = alloc::vec![7; 3 * PIECE + 1];
        assert_eq!(sum(&[]), 22_453_367_492_273_626_447_949_751_997_587_491_370);
        assert_eq!(
            sum(&[b"one", &long]),
            270_580_838_350_743_509_222_769_893_736_542_111_013
        );
    }

    #[test]
    fn digest_ignores_the_order_of_parts_and_nothing_else() {
        let long = alloc::vec![7; 3 * PIECE + 1];
        let whole = sum(&[b"one", b"two", &long]);
        assert_eq!(sum(&[&long, b"two", b"one"]), whole);
        for other in [
            &[&b"one"[..], b"two"][..],
            &[b"one", b"two", &long[1..]],
            &[b"one", b"two", &long, b""],
            &[b"onetwo", &long],
            &[b"one", b"two", &long, &long],
        ] {
            assert_ne!(sum(other), whole);
        }
        let mut changed = long.clone();
        for at in [0, PIECE - 1, PIECE, 3 * PIECE] {
            changed[at] ^= 1;
            assert_ne!(sum(&[b"one", b"two", &changed]), whole, "byte {at}");
            changed[at] ^= 1;
        }
    }

    #[test]
    fn pieces_give_the_same_hash_however_they_are_cut() {
        let long: Vec<u8> = (0..5 * PIECE + 3).map(|at| at as u8).collect();
        let (mut whole, mut cut) = (Vec::new(), Vec::new());
        put_bytes(&mut whole, &long);
        let mut pieces = Pieces::default();
        let mut steps = 1;
        while !pieces.advance(&long, 1) {
            steps += 1;
        }
        pieces.put_bytes(&mut cut, &long);
        assert_eq!((cut, steps), (whole, 6));
    }
}
