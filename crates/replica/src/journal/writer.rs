//! Writing: everything handed over since the last commit goes out in one durable write.

use super::{
    Disk, Identity, JournalError,
    format::{self, BLOCK, SegmentHeader},
    mark::{Mark, Marks},
    promise::Promises,
    scan::{self, Kept},
};
use crate::{Bytes, EpochNumber, Planted, Slot, Write};
use alloc::{collections::VecDeque, vec, vec::Vec};

/// A group buffer that has grown beyond this is given back.
const BUFFER_KEPT_MAX: usize = 4 << 20;
/// A record of more bytes is not gathered with others: it is written in pieces of so many, so that
/// the buffers of a record of 64 MiB are no longer than that, here and in the storage below.
pub(super) const PIECE: usize = 4 << 20;

/// A journal open for writing.
#[derive(Debug)]
pub struct Journal<D> {
    disk: D,
    identity: Identity,
    promises: Promises,
    /// All segments but the one being written, oldest first.
    closed: VecDeque<Kept>,
    /// The one being written; none before the first record.
    current: Option<Kept>,
    number_next: u64,
    /// Where `buffer` begins in the current segment; a multiple of [`BLOCK`].
    buffer_at: u64,
    /// From the last block that holds durable records on: those, then what is not yet written.
    buffer: Vec<u8>,
    /// How much of `buffer` is durable.
    buffer_durable: usize,
    sequence_next: u64,
    /// Every sequence up to this one is durable.
    durable: u64,
    segment_length: u64,
    written: u64,
    /// The number of the last mark; none when the storage keeps no marks.
    mark: Option<u64>,
    /// A mark was written that is not known to be durable.
    mark_open: bool,
    /// Nothing was ever trimmed.
    complete: bool,
}

/// What a journal held when it was opened.
#[derive(Debug)]
pub struct Opened<D> {
    /// The journal, ready to be written.
    pub journal: Journal<D>,
    /// The last promises.
    pub promise: Option<Bytes>,
    /// The records of the identity's epoch in the order in which they were written.
    pub records: Vec<(Slot, Bytes)>,
    /// Whether an unfinished, never acknowledged write was cut off.
    pub torn: bool,
    /// Whether one of the two copies of the promises was damaged.
    pub promise_repaired: bool,
    /// Whether the records go back to the replica's first start: no snapshot is needed then.
    pub complete: bool,
}

impl<D: Disk> Journal<D> {
    /// Reads what `disk` holds and gets ready to write behind it. New segments have this length,
    /// or more when a record needs it.
    ///
    /// # Errors
    /// When the storage fails or what it holds cannot be used; nothing has been changed then.
    pub fn open(
        disk: D,
        identity: Identity,
        segment_length: u64,
    ) -> Result<Opened<D>, JournalError<D::Error>> {
        Self::open_planted(disk, identity, segment_length, Planted::default())
    }

    /// The same, with one of the planted bugs where the build has them.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_planted(
        mut disk: D,
        identity: Identity,
        segment_length: u64,
        planted: Planted,
    ) -> Result<Opened<D>, JournalError<D::Error>> {
        let (promises, promise, promise_repaired) = Promises::open(&mut disk, &identity)?;
        let scan = scan::scan(&mut disk, &identity, planted)?;
        let number_last = scan
            .kept
            .iter()
            .map(|kept| kept.number)
            .chain(scan.void.iter().copied());
        // A mark may name a segment that is not there yet; one below it would be taken for trimmed.
        let first = match scan.marks {
            Marks::Newest(mark) => mark.first,
            Marks::NotKept | Marks::None | Marks::Lost => 0,
        };
        let number_next = (number_last.max().unwrap_or(0) + 1).max(first);
        let mut closed: VecDeque<Kept> = scan.kept.into();
        let current = closed.pop_back();
        let (mut buffer, mut buffer_at) = (Vec::new(), 0);
        if let (Some(kept), Some((bytes, end))) = (&current, &scan.last) {
            let block = end / BLOCK * BLOCK;
            buffer_at = block as u64;
            buffer.extend_from_slice(&bytes[block..*end]);
            erase_behind(&mut disk, kept.number, bytes, *end)?;
        }
        // Without a mark only the number of the first segment tells that nothing came before it:
        // it must not be lost with a segment that was begun and never got a record.
        let unmarked = scan.marks == Marks::None && current.is_none() && !scan.void.is_empty();
        let mut journal = Self {
            disk,
            identity,
            promises,
            closed,
            current,
            number_next,
            buffer_at,
            buffer_durable: buffer.len(),
            buffer,
            sequence_next: scan.next,
            durable: scan.next - 1,
            segment_length: segment_length.next_multiple_of(BLOCK as u64),
            written: 0,
            mark: (scan.marks != Marks::NotKept).then_some(scan.marks.number()),
            mark_open: false,
            complete: scan.complete,
        };
        if scan.marks == Marks::Lost {
            // Both slots get one that can be read.
            journal.write_mark(true)?;
            journal.write_mark(true)?;
        } else if unmarked {
            journal.write_mark(true)?;
        }
        for number in scan.void {
            journal.disk.remove(number).map_err(JournalError::Disk)?;
        }
        journal.written += journal.promises.repair(&mut journal.disk)?;
        let (records, torn) = (scan.records, scan.torn);
        Ok(Opened {
            journal,
            promise,
            records,
            torn,
            promise_repaired,
            complete: scan.complete,
        })
    }

    /// Sets damaged segments aside and begins a journal without records behind them; the promises
    /// stay in force. Only for a replica that will come back as one that has forgotten, and that
    /// has made sure it will know so after any crash from here on. `complete`: it goes on from
    /// nothing, not from a snapshot, so that the new records are all that there is.
    ///
    /// # Errors
    /// When the storage fails, or the promises cannot be used either.
    pub fn begin_again(
        mut disk: D,
        identity: Identity,
        segment_length: u64,
        complete: bool,
    ) -> Result<Opened<D>, JournalError<D::Error>> {
        let (promises, promise, promise_repaired) = Promises::open(&mut disk, &identity)?;
        let numbers = disk.segments().map_err(JournalError::Disk)?;
        let marks = Marks::read(&mut disk, &identity)?;
        let first = match marks {
            Marks::Newest(mark) => mark.first,
            Marks::NotKept | Marks::None | Marks::Lost => 0,
        };
        let number_next = numbers.last().copied().unwrap_or(0).max(first) + 1;
        disk.set_aside().map_err(JournalError::Disk)?;
        let mut journal = Self {
            disk,
            identity,
            promises,
            closed: VecDeque::new(),
            current: None,
            number_next,
            buffer_at: 0,
            buffer: Vec::new(),
            buffer_durable: 0,
            sequence_next: 1,
            durable: 0,
            segment_length: segment_length.next_multiple_of(BLOCK as u64),
            written: 0,
            mark: (marks != Marks::NotKept).then_some(marks.number()),
            mark_open: false,
            complete,
        };
        journal.write_mark(true)?;
        journal.write_mark(true)?;
        journal.written += journal.promises.repair(&mut journal.disk)?;
        Ok(Opened {
            journal,
            promise,
            records: Vec::new(),
            torn: false,
            promise_repaired,
            complete,
        })
    }

    /// Tells how far all is durable, where damage of the journal does not reach.
    fn write_mark(&mut self, durable: bool) -> Result<(), JournalError<D::Error>> {
        let Some(number) = &mut self.mark else {
            return Ok(());
        };
        *number += 1;
        let oldest = self.closed.front().or(self.current.as_ref());
        let mark = Mark {
            number: *number,
            durable: self.durable,
            first: oldest.map_or(self.number_next, |kept| kept.number),
            complete: self.complete,
        };
        self.mark_open = !durable;
        mark.write(&mut self.disk, &self.identity, durable)
    }

    /// Makes sure that the last record can never be taken for an unfinished write, even after the
    /// machine has lost power. To be called when nothing else is to be done.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    pub fn settle(&mut self) -> Result<(), JournalError<D::Error>> {
        if self.mark_open {
            self.write_mark(true)?;
        }
        Ok(())
    }

    /// Whether [`Self::settle`] has something to do.
    #[must_use]
    pub const fn unsettled(&self) -> bool {
        self.mark_open
    }

    /// Takes a write over. A record is durable after the next [`Self::commit`]; a promise is
    /// durable on return, and so is everything before it.
    ///
    /// # Errors
    /// [`JournalError::Full`] when there is no room for the record: everything before it is durable,
    /// and the same write may be tried again. Else the storage has failed, and the journal must not
    /// be used any further.
    pub fn append(&mut self, write: &Write) -> Result<(), JournalError<D::Error>> {
        match write {
            Write::Record { slot, record } => self.append_record(*slot, record),
            Write::Promise(promise) => {
                // What comes after a promise may rely on it, and the promise on what came before.
                self.commit()?;
                self.written += self
                    .promises
                    .write(&mut self.disk, &self.identity, promise)?;
                Ok(())
            }
        }
    }

    fn append_record(&mut self, slot: Slot, record: &Bytes) -> Result<(), JournalError<D::Error>> {
        let length = format::record_length(record.len()) as u64;
        let end = self.buffer_at + self.buffer.len() as u64 + length;
        if self.current.is_none_or(|current| end > current.length) {
            self.begin_segment(length)?;
        }
        let Some(current) = &mut self.current else {
            unreachable!("a segment was begun")
        };
        current.slot_max = current.slot_max.max(slot);
        let counts = (self.sequence_next, self.durable);
        let number = current.number;
        format::append_record_header(
            &mut self.buffer,
            number,
            &self.identity,
            counts,
            slot,
            record,
        );
        let mut left = &record[..];
        while left.len() > PIECE {
            let (piece, rest) = left.split_at(PIECE);
            self.buffer.extend_from_slice(piece);
            self.write_blocks(number)?;
            left = rest;
        }
        self.buffer.extend_from_slice(left);
        let padding = length as usize - format::RECORD_HEADER - record.len();
        self.buffer.resize(self.buffer.len() + padding, 0);
        self.sequence_next += 1;
        Ok(())
    }

    /// Writes the whole blocks in the buffer, of a record whose end is yet to come: without it the
    /// record is none, so nothing of it counts as durable.
    fn write_blocks(&mut self, segment: u64) -> Result<(), JournalError<D::Error>> {
        let whole = self.buffer.len() / BLOCK * BLOCK;
        self.disk
            .write(segment, self.buffer_at, &self.buffer[..whole])
            .map_err(JournalError::Disk)?;
        self.written += whole as u64;
        self.buffer.drain(..whole);
        self.buffer_at += whole as u64;
        self.buffer_durable = 0;
        Ok(())
    }

    fn begin_segment(&mut self, record: u64) -> Result<(), JournalError<D::Error>> {
        self.commit()?;
        let number = self.number_next;
        let needed = (BLOCK as u64 + record).next_multiple_of(BLOCK as u64);
        let length = self.segment_length.max(needed);
        self.disk.create(number, length).map_err(|error| {
            if D::is_full(&error) {
                JournalError::Full(error)
            } else {
                JournalError::Disk(error)
            }
        })?;
        self.number_next += 1;
        self.closed.extend(self.current.take());
        self.current = Some(Kept {
            number,
            length,
            slot_max: Slot(0),
        });
        self.buffer.clear();
        self.buffer_at = 0;
        self.buffer_durable = 0;
        let (cluster, node) = (self.identity.cluster, self.identity.node);
        let header = SegmentHeader {
            cluster,
            node,
            number,
            first: self.sequence_next,
        };
        header.append_to(&mut self.buffer);
        Ok(())
    }

    /// Makes everything taken over so far durable.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    pub fn commit(&mut self) -> Result<(), JournalError<D::Error>> {
        let Some(current) = &self.current else {
            return Ok(());
        };
        if self.buffer_durable == self.buffer.len() {
            return Ok(());
        }
        let length = self.buffer.len();
        self.buffer.resize(length.next_multiple_of(BLOCK), 0);
        self.disk
            .write(current.number, self.buffer_at, &self.buffer)
            .map_err(JournalError::Disk)?;
        self.written += self.buffer.len() as u64;
        self.durable = self.sequence_next - 1;
        self.write_mark(false)?;
        // The last block is not full: it is written again with what comes next, with the same
        // bytes in front.
        let block = length / BLOCK * BLOCK;
        self.buffer.truncate(length);
        self.buffer.drain(..block);
        if self.buffer.capacity() > BUFFER_KEPT_MAX {
            self.buffer.shrink_to(BLOCK);
        }
        self.buffer_at += block as u64;
        self.buffer_durable = self.buffer.len();
        Ok(())
    }

    /// Records below `below` are no longer needed: deletes the segments that hold no others.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn trim(&mut self, below: Slot) -> Result<(), JournalError<D::Error>> {
        let mut removed = Vec::new();
        while let Some(kept) = self.closed.front().filter(|kept| kept.slot_max < below) {
            removed.push(kept.number);
            self.closed.pop_front();
        }
        if removed.is_empty() {
            return Ok(());
        }
        // First: segments that are missing without this are damage.
        self.complete = false;
        self.write_mark(true)?;
        for number in removed {
            self.disk.remove(number).map_err(JournalError::Disk)?;
        }
        Ok(())
    }

    /// From now on this is the journal of a later epoch, which begins with a state that is durable
    /// elsewhere: what it holds of earlier ones is not needed any more, and deleted but for the
    /// segment that is being written.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    ///
    /// # Panics
    /// When the epoch is not a later one.
    pub fn enter(&mut self, epoch: EpochNumber) -> Result<(), JournalError<D::Error>> {
        assert!(epoch > self.identity.epoch, "epochs ascend");
        self.commit()?;
        self.identity.epoch = epoch;
        for kept in self.closed.iter_mut().chain(&mut self.current) {
            // Slots begin again.
            kept.slot_max = Slot(0);
        }
        self.skip()?;
        self.trim(Slot(1))
    }

    /// The records no longer go back to the beginning: a snapshot came from elsewhere, and what it
    /// covers was never written here.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    pub fn skip(&mut self) -> Result<(), JournalError<D::Error>> {
        if self.complete {
            self.complete = false;
            self.write_mark(true)?;
        }
        Ok(())
    }

    /// The usual length of a segment in bytes.
    #[must_use]
    pub const fn segment_length(&self) -> u64 {
        self.segment_length
    }

    /// Bytes written since it was opened, padding and repeated blocks included.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Bytes of all its segments.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.closed
            .iter()
            .chain(&self.current)
            .map(|kept| kept.length)
            .sum()
    }

    /// The storage below.
    pub const fn disk(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Gives the storage back.
    #[must_use]
    pub fn into_disk(self) -> D {
        self.disk
    }
}

/// Zeroes what stands behind the last record, so that nothing of an unfinished write can ever be
/// taken for the record after the next one.
fn erase_behind<D: Disk>(
    disk: &mut D,
    segment: u64,
    bytes: &Bytes,
    end: usize,
) -> Result<(), JournalError<D::Error>> {
    const STEP: usize = 256 * BLOCK;
    let Some(last) = bytes[end..].iter().rposition(|byte| *byte != 0) else {
        return Ok(());
    };
    let last = end + last;
    let mut at = end / BLOCK * BLOCK;
    while at <= last {
        let length = STEP.min((last + 1 - at).next_multiple_of(BLOCK));
        let mut block = vec![0; length];
        if at < end {
            let keep = (end - at).min(length);
            block[..keep].copy_from_slice(&bytes[at..at + keep]);
        }
        disk.write(segment, at as u64, &block)
            .map_err(JournalError::Disk)?;
        at += length;
    }
    Ok(())
}
