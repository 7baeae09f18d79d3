//! A row of a shared table, written one-sidedly.
//!
//! ```text
//!   put:   begun = n │ fence │ words, and (offset, count) of each range in the log │ done = n
//!   poll:  n = done │ words of the ranges up to n │ fence │ begun = n?  yes: one put, whole
//!                                                            no: the ranges since then, too
//! ```
//!
//! Two counters guard the row, one in front and one behind (§3.5 of the Derecho paper). The newest
//! value wins and waits nowhere: words are overwritten in place, and only where something was
//! written is logged, in its order, because a word may mean something else after another one has
//! changed. A poll returns the row as of one time: words read while it changed are read again
//! before they are returned, as later writes stand in the log behind.

use super::{Mad, Memory, TablePlace, Word};
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The read part that is not whole yet; more is never kept.
const PENDING_MAX: usize = 64 << 20;
/// So often a poll reads what has changed meanwhile; the rest is the next one's.
const LOOKS_MAX: usize = 16;

/// How a put went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Done,
    /// The row is longer than the table; nothing was written.
    TooLong,
    /// The reader has not taken what was put before; nothing was written.
    Full,
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct TableWriter<M> {
    memory: M,
    place: TablePlace,
    done: u64,
    taken: u64,
}

/// The ranges of a put in [`quintet_replica::put_ranges`]' form: offset and words as bytes.
pub(super) fn ranges(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (head, behind) = rest.split_first_chunk::<8>()?;
        let [a, b, c, d, count @ ..] = *head;
        let words = 8 * u32::from_le_bytes(count) as usize;
        let (words, behind) = behind.split_at_checked(words)?;
        rest = behind;
        Some((u32::from_le_bytes([a, b, c, d]) as usize, words))
    })
}

impl<M: Memory> TableWriter<M> {
    /// The end of a table that has no writes yet.
    pub const fn new(memory: M, place: TablePlace) -> Self {
        Self {
            memory,
            place,
            done: 0,
            taken: 0,
        }
    }

    /// How many ranges the log takes.
    ///
    /// # Errors
    /// When the reader says that it took what was not there.
    fn room(&mut self) -> Result<usize, Mad> {
        let taken = self.memory.word(self.place.taken).load(Acquire);
        if !(self.taken..=self.done).contains(&taken) {
            return Err(Mad("a reader took puts that never were"));
        }
        self.taken = taken;
        Ok(self.place.log.1 - (self.done - taken) as usize)
    }

    /// Writes ranges of words in their order.
    ///
    /// # Errors
    /// As [`Self::room`].
    pub fn put(&mut self, put: &[u8]) -> Result<Put, Mad> {
        let (row_at, row_words) = self.place.row;
        let (log_at, log_entries) = self.place.log;
        let mut count = 0;
        for (offset, words) in ranges(put) {
            if offset + words.len() / 8 > row_words {
                return Ok(Put::TooLong);
            }
            count += 1;
        }
        let known = log_entries - (self.done - self.taken) as usize;
        if known < count && self.room()? < count {
            return Ok(Put::Full);
        }
        let memory = &self.memory;
        memory
            .word(self.place.begun)
            .store(self.done + count as u64, Relaxed);
        memory.fence(Release);
        for (offset, words) in ranges(put) {
            let entry = (offset as u64) << 32 | (words.len() / 8) as u64;
            let at = log_at + (self.done % log_entries as u64) as usize;
            memory.word(at).store(entry, Relaxed);
            for (index, word) in words.as_chunks::<8>().0.iter().enumerate() {
                let value = u64::from_le_bytes(*word);
                memory.word(row_at + offset + index).store(value, Relaxed);
            }
            self.done += 1;
        }
        memory.word(self.place.done).store(self.done, Release);
        Ok(Put::Done)
    }
}

/// The result of a poll.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Poll {
    Nothing,
    /// The row is being written; later.
    Changing,
    /// The words written since the last time, as [`quintet_replica::put_ranges`] has them.
    Put(Bytes),
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct TableReader<M> {
    memory: M,
    place: TablePlace,
    taken: u64,
    pending: BytesMut,
}

impl<M: Memory> TableReader<M> {
    /// The end of a table that has no reads yet.
    pub fn new(memory: M, place: TablePlace) -> Self {
        Self {
            memory,
            place,
            taken: 0,
            pending: BytesMut::new(),
        }
    }

    /// How many ranges have been put that have not been read.
    ///
    /// # Errors
    /// When the writer says what cannot be.
    pub fn ready(&self) -> Result<usize, Mad> {
        let done = self.memory.word(self.place.done).load(Acquire);
        match done.checked_sub(self.taken) {
            Some(ready) if ready <= self.place.log.1 as u64 => Ok(ready as usize),
            _ => Err(Mad("a writer put more than the log holds")),
        }
    }

    /// Takes what has been put.
    ///
    /// # Errors
    /// When the writer left what cannot be.
    pub fn poll(&mut self) -> Result<Poll, Mad> {
        let (row_at, row_words) = self.place.row;
        let (log_at, log_entries) = self.place.log;
        for _ in 0..LOOKS_MAX {
            let ready = self.ready()?;
            if ready == 0 && self.pending.is_empty() {
                return Ok(Poll::Nothing);
            }
            for _ in 0..ready {
                let at = log_at + (self.taken % log_entries as u64) as usize;
                let entry = self.memory.word(at).load(Relaxed);
                let (offset, count) = ((entry >> 32) as usize, entry as u32 as usize);
                if offset + count > row_words {
                    return Err(Mad("a writer put words behind the end of its row"));
                }
                if self.pending.len() + 8 * (count + 1) > PENDING_MAX {
                    return Err(Mad("more was put than is kept"));
                }
                self.pending.reserve(8 * (count + 1));
                self.pending.put_u32_le(offset as u32);
                self.pending.put_u32_le(count as u32);
                for index in row_at + offset..row_at + offset + count {
                    self.pending
                        .put_u64_le(self.memory.word(index).load(Relaxed));
                }
                self.taken += 1;
            }
            self.memory.fence(Acquire);
            let begun = self.memory.word(self.place.begun).load(Relaxed);
            if ready > 0 {
                self.memory
                    .word(self.place.taken)
                    .store(self.taken, Release);
            }
            if begun == self.taken {
                return Ok(Poll::Put(self.pending.split().freeze()));
            }
            std::hint::spin_loop();
        }
        Ok(Poll::Changing)
    }
}
