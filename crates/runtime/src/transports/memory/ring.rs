//! A stream of bytes from one process to another: one writer, one reader, bounded.
//!
//! ```text
//!            taken            written
//!              ▼                 ▼
//!   ░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░░░░     counted from the link's beginning, placed modulo
//!   reader: written, bytes, taken             the length
//!   writer: taken, bytes, written
//! ```

use super::{Mad, Memory, RingPlace, Word};
use bytes::BytesMut;
use std::{
    io::{self, Write},
    sync::atomic::Ordering::{Acquire, Release},
};

/// The end that writes. [`Write::write`] would block when the ring is full.
#[derive(Debug)]
pub(crate) struct RingWriter<M> {
    memory: M,
    place: RingPlace,
    written: u64,
    taken: u64,
}

impl<M: Memory> RingWriter<M> {
    /// The end of a ring that has no writes yet.
    pub const fn new(memory: M, place: RingPlace) -> Self {
        Self {
            memory,
            place,
            written: 0,
            taken: 0,
        }
    }

    /// How many bytes it takes now.
    ///
    /// # Errors
    /// When the reader says that it took what was not there.
    pub fn room(&self) -> Result<usize, Mad> {
        let taken = self.memory.word(self.place.tail).load(Acquire);
        if !(self.taken..=self.written).contains(&taken) {
            return Err(Mad("a reader took what was never written"));
        }
        Ok(self.place.bytes - (self.written - taken) as usize)
    }

    /// Hands over as many of these bytes as there is room for.
    ///
    /// # Errors
    /// As [`Self::room`].
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<usize, Mad> {
        let mut room = self.place.bytes - (self.written - self.taken) as usize;
        if room < bytes.len() {
            room = self.room()?;
            self.taken = self.written - (self.place.bytes - room) as u64;
        }
        let whole = bytes.len().min(room);
        bytes = &bytes[..whole];
        while !bytes.is_empty() {
            let at = (self.written % self.place.bytes as u64) as usize;
            let count = (bytes.len())
                .min(self.place.bytes - at)
                .min(self.place.piece);
            let (piece, rest) = bytes.split_at(count);
            self.memory.copy_in(self.place.bytes_at + at, piece);
            self.written += count as u64;
            self.memory
                .word(self.place.head)
                .store(self.written, Release);
            bytes = rest;
        }
        Ok(whole)
    }
}

impl<M: Memory> Write for RingWriter<M> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.push(bytes)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct RingReader<M> {
    memory: M,
    place: RingPlace,
    taken: u64,
}

impl<M: Memory> RingReader<M> {
    /// The end of a ring that has no reads yet.
    pub const fn new(memory: M, place: RingPlace) -> Self {
        Self {
            memory,
            place,
            taken: 0,
        }
    }

    /// How many bytes have been written that have not been taken.
    ///
    /// # Errors
    /// When the writer says what cannot be.
    pub fn ready(&self) -> Result<usize, Mad> {
        let written = self.memory.word(self.place.head).load(Acquire);
        match written.checked_sub(self.taken) {
            Some(ready) if ready <= self.place.bytes as u64 => Ok(ready as usize),
            _ => Err(Mad("a writer wrote more than the ring holds")),
        }
    }

    /// Takes up to `most` bytes, of which [`Self::ready`] has told, to the end of `buffer`: how
    /// many.
    pub fn pop(&mut self, most: usize, buffer: &mut BytesMut) -> usize {
        let at = (self.taken % self.place.bytes as u64) as usize;
        let count = most.min(self.place.bytes - at).min(self.place.piece);
        if count > 0 {
            self.memory
                .copy_out(self.place.bytes_at + at, count, buffer);
            self.taken += count as u64;
            self.memory.word(self.place.tail).store(self.taken, Release);
        }
        count
    }
}
