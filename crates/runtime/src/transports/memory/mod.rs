//! Memory that two processes of one host share: one segment for each direction of a link.
//!
//! ```text
//!   writer                            segment                             reader
//!   frames ──► Outgoing ──► ring control ▒▒▒▒▒▒░░░░░░ ──► Incoming ──► frames
//!   frames ──► Outgoing ──► ring bulk    ▒▒░░░░░░░░░░ ──► Incoming ──► frames
//!   large  ──► told where they are, and read there: one copy
//!   put    ──► words of its row, then the log of what was written ──► one put, whole
//!          ◄── wakers: a side that sleeps or waits for room is woken over TCP
//! ```
//!
//! A segment has one writer and one reader, in processes that trust each other's intentions but not
//! each other's memory: whatever stands in it is read as bytes from outside are. Places are bounded
//! before they are used, and a count that cannot be makes the link useless ([`Mad`]). The code here
//! is generic over [`Memory`], so that the very same code runs in all orders that the memory model
//! allows (`loom_tests.rs`).

mod lent;
mod ring;
mod segment;
mod table;
mod waker;

#[cfg(test)]
mod loom_tests;
#[cfg(test)]
use waker::SharedWaker;

pub(crate) use lent::{LENT_MIN, Lender, Lending, Loan, describe, reads, will_read, withdraw};
pub(crate) use ring::{RingReader, RingWriter};
pub(crate) use segment::{Segment, Token};
pub(crate) use table::{Poll, Put, TableReader, TableWriter};
pub(crate) use waker::{ASLEEP, WAITS};

use bytes::BytesMut;
use quintet_replica::Lane;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

/// The other side left malformed content in the memory; the link is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shared memory: {0}")]
pub(crate) struct Mad(pub &'static str);

impl From<Mad> for std::io::Error {
    fn from(mad: Mad) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, mad)
    }
}

/// A word that two processes see.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// A piece of shared memory: words, and bytes between them. Places beyond its end panic, so a
/// caller that has a place from outside checks it first.
pub(crate) trait Memory: Clone {
    type Word: Word;
    /// The word with this number, counted from the beginning.
    fn word(&self, index: usize) -> &Self::Word;
    /// Writes bytes `at` this many from the beginning.
    fn copy_in(&self, at: usize, bytes: &[u8]);
    /// Appends `length` bytes from there to `buffer`.
    fn copy_out(&self, at: usize, length: usize, buffer: &mut BytesMut);
    fn fence(&self, order: Ordering);
}

impl Memory for Arc<Segment> {
    type Word = AtomicU64;

    fn word(&self, index: usize) -> &AtomicU64 {
        Segment::word(self, index)
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        Segment::copy_in(self, at, bytes);
    }

    fn copy_out(&self, at: usize, length: usize, buffer: &mut BytesMut) {
        Segment::copy_out(self, at, length, buffer);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

// Words that different sides write stand in lines of the cache of their own, two lines apart
// because lines are fetched in pairs.
const LINE: usize = 16;
pub(super) const MAGIC_AT: usize = 0;
pub(super) const TOKEN_AT: usize = 1;
/// Where the writer has the segment in its own memory, if that may be read.
pub(super) const HOME_AT: usize = 2;
/// Lent parts must not be read any more.
pub(super) const WITHDRAWN_AT: usize = 3;
pub(crate) const ASLEEP_AT: usize = LINE;
pub(crate) const WAITS_AT: usize = 2 * LINE;
const CONTROL_AT: usize = 3 * LINE;
const BULK_AT: usize = 5 * LINE;
pub(crate) const TABLE_AT: usize = 7 * LINE;
/// Of the reader: it reads the writer's memory. Then, by lane, how many payloads it has read.
const READS_AT: usize = 9 * LINE;
const LENT_TAKEN_AT: usize = READS_AT + 1;
const LOG_AT: usize = 16 * LINE;
/// Ranges of words that have been put and not yet been taken: the most.
const LOG_ENTRIES: usize = 1 << 16;
const WORDS_AT: usize = LOG_AT + LOG_ENTRIES;
/// The longest row. Memory that is never written is never there.
const ROW_WORDS: usize = 1 << 20;
const RINGS_AT: usize = 8 * (WORDS_AT + ROW_WORDS);
/// Rings are small, so that what goes through them stays in the cache.
const CONTROL_BYTES: usize = 256 << 10;
const BULK_BYTES: usize = 512 << 10;
/// The length of a segment in bytes.
pub(super) const SEGMENT_BYTES: usize = RINGS_AT + CONTROL_BYTES + BULK_BYTES;

/// The same in words.
#[cfg(test)]
pub(crate) const SEGMENT_WORDS: usize = SEGMENT_BYTES / 8;

/// Where a ring is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingPlace {
    /// The word that counts the bytes written; only the writer writes it.
    pub head: usize,
    /// The word that counts the bytes taken; only the reader writes it.
    pub tail: usize,
    /// Where its bytes begin.
    pub bytes_at: usize,
    /// How many there are.
    pub bytes: usize,
    /// The most that is handed over at once: the other side works while this one does.
    pub piece: usize,
}

impl RingPlace {
    /// Where a segment has the ring of a lane.
    pub const fn of(lane: Lane) -> Self {
        let (at, bytes_at, bytes) = match lane {
            Lane::Control => (CONTROL_AT, RINGS_AT, CONTROL_BYTES),
            Lane::Bulk => (BULK_AT, RINGS_AT + CONTROL_BYTES, BULK_BYTES),
        };
        Self {
            head: at,
            tail: at + LINE,
            bytes_at,
            bytes,
            piece: 64 << 10,
        }
    }
}

/// Where a table is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePlace {
    /// The guard in front: how many ranges the newest put that has begun makes. The writer's.
    pub begun: usize,
    /// The guard behind: how many ranges have been put. The writer's.
    pub done: usize,
    /// How many have been taken. The reader's.
    pub taken: usize,
    /// Where the log of ranges begins, and how many it holds.
    pub log: (usize, usize),
    /// Where the row begins, and how many words it has.
    pub row: (usize, usize),
}

impl TablePlace {
    /// Where a segment has it.
    pub const SEGMENT: Self = Self {
        begun: TABLE_AT,
        done: TABLE_AT + 1,
        taken: TABLE_AT + LINE,
        log: (LOG_AT, LOG_ENTRIES),
        row: (WORDS_AT, ROW_WORDS),
    };
}
