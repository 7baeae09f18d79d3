//! The journal: what a replica must find again after a crash, without knowing how files work.
//!
//! ```text
//!   Write::Record ──► group buffer ──► one durable write per commit ──► segment, segment, …
//!   Write::Promise ─► table of the groups' promises, by commit ──► both slots, one after the other
//!
//!   durable up to ─► a mark beside them, without waiting for the disk
//!
//!   segment = header block | record record … | zeros          a record never crosses segments
//!   record  = length u32 | crc32c u32 | sequence u64 | durable u64 | slot u64 | epoch u64
//!           | group u32 | kind u8 | count u24 | payload | zeros up to a multiple of 8
//! ```
//!
//! All groups of a process share one journal, so that a commit is one durable write for all. Order
//! is kept within a group: its promise is durable after its records before it and before its
//! records behind it. A segment is deleted when it is the oldest and no group needs it. The records
//! of an idle group can be brought forward: a record of kind 2 contains all needed records of its
//! group and replaces all before it. With group 0 alone the format is that of a journal without
//! groups.
//!
//! Records and promises of a group that was not named at opening are rejected: the files that name
//! the groups may be an older copy, and the group's promises would be broken.
//!
//! `sequence` counts records without a gap across segments. `durable` is the last sequence that was
//! durable when the record was written: that tells a torn tail from damage. `count` counts the
//! records of each group, so that damage tells whose records are gone; 0 where there is one group, and
//! in journals of earlier versions. A bad record is the
//! torn end of an unacknowledged write unless a later, valid one, or a mark, says that it was
//! durable. Then it is damage, nothing is changed, and there are two ways on: a replica that cannot
//! do without the record refuses to start, and a replica with enough peers begins its journal again
//! ([`Journal::begin_again`]): with the records of the groups that lack none ([`salvage`]), and as one
//! that has lost the state of all others.
//!
//! Checksums are seeded with the segment's number, so that what a reused file held before can
//! never be taken for a record.
//!
//! A promise is written to both slots, one after the other, before it counts as durable. A crash
//! tears at most one slot, and when one rots the other holds the same.

mod chains;
mod format;
mod inspect;
mod mark;
mod order;
mod promise;
mod remains;
mod salvage;
mod scan;
mod writer;

pub use chains::Chain;
pub use format::{BLOCK, GroupEpoch, Identity, RECORD_HEADER};
pub use inspect::{Inspection, RecordInfo, SegmentInfo, inspect};
pub use mark::MARK_SLOT;
pub use order::JournalOrder;
pub use promise::{PROMISE_MAX, PROMISE_SLOT};
pub use salvage::{Salvaged, salvage};
pub use writer::{Beginning, FORWARD_MAX, Found, Held, Journal, Opened};

use crate::{EpochNumber, GroupId};
use alloc::{string::String, vec::Vec};
use bytes::Bytes;

/// Where a journal keeps its bytes. Everything that it writes is durable when the call returns.
pub trait Disk {
    /// Why the storage failed.
    type Error;

    /// The numbers of all segments, ascending.
    ///
    /// # Errors
    /// When the storage fails.
    fn segments(&mut self) -> Result<Vec<u64>, Self::Error>;

    /// All bytes of a segment.
    ///
    /// # Errors
    /// When the storage fails.
    fn read(&mut self, segment: u64) -> Result<Bytes, Self::Error>;

    /// Makes a segment of this length, a multiple of [`BLOCK`], with all its space reserved. It
    /// may hold zeros, or what another segment held before.
    ///
    /// # Errors
    /// When the storage fails; also when it is full.
    fn create(&mut self, segment: u64, length: u64) -> Result<(), Self::Error>;

    /// Writes whole blocks of a segment; offset and length are multiples of [`BLOCK`].
    ///
    /// # Errors
    /// When the storage fails. Nothing is known of the bytes then; the journal must not be used
    /// any further.
    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Deletes a segment, or keeps its file for [`Self::create`].
    ///
    /// # Errors
    /// When the storage fails.
    fn remove(&mut self, segment: u64) -> Result<(), Self::Error>;

    /// Deletes a segment whose number may be given again: its bytes must not come back with
    /// [`Self::create`].
    ///
    /// # Errors
    /// When the storage fails.
    fn discard(&mut self, segment: u64) -> Result<(), Self::Error>;

    /// The contents of one of the two promise slots; empty when it was never written.
    ///
    /// # Errors
    /// When the storage fails.
    fn read_promise(&mut self, slot: usize) -> Result<Bytes, Self::Error>;

    /// Writes a promise slot, [`PROMISE_SLOT`] bytes at most.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_promise(&mut self, slot: usize, bytes: &[u8]) -> Result<(), Self::Error>;

    /// The contents of one of the two mark slots, zeros when it was never written; `None` from a
    /// storage that keeps no marks.
    ///
    /// # Errors
    /// When the storage fails.
    fn read_mark(&mut self, slot: usize) -> Result<Option<Bytes>, Self::Error> {
        let _ = slot;
        Ok(None)
    }

    /// Writes a mark slot, [`MARK_SLOT`] bytes. Unless it must be `durable` on return, a crash may
    /// lose it, whole.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_mark(&mut self, slot: usize, bytes: &[u8], durable: bool) -> Result<(), Self::Error> {
        let _ = (slot, bytes, durable);
        Ok(())
    }

    /// Takes the segments below this number out of the way, so that [`Self::segments`] does not
    /// find them. They may be kept where people can look at them, and must not become new segments.
    ///
    /// # Errors
    /// When the storage fails.
    fn set_aside(&mut self, below: u64) -> Result<(), Self::Error> {
        let segments = self.segments()?.into_iter();
        for segment in segments.filter(|segment| *segment < below) {
            self.remove(segment)?;
        }
        Ok(())
    }

    /// Whether an error of [`Self::create`] says that there is no room, and nothing else is wrong.
    fn is_full(error: &Self::Error) -> bool {
        let _ = error;
        false
    }
}

/// Why a journal cannot be opened or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError<E> {
    /// The storage failed.
    #[error("{0}")]
    Disk(E),
    /// There is no room for a new segment. Nothing was changed: the same call may be made again.
    #[error("{0}")]
    Full(E),
    /// A file is of another cluster or replica.
    #[error("{what} belongs to {theirs}, this is {ours}: it was put into the wrong directory")]
    Foreign {
        /// Which file.
        what: String,
        /// The value found.
        theirs: String,
        /// The expected value.
        ours: String,
    },
    /// A file is of a format that this program does not know yet.
    #[error("{what} is of format {theirs}, this program knows up to {ours}: start a newer version")]
    Newer {
        /// Which file.
        what: String,
        /// Its format.
        theirs: u32,
        /// The newest known one.
        ours: u32,
    },
    /// A file is of a later epoch than the one that this replica is said to be in.
    #[error(
        "{what} is of epoch {theirs}, and the files 'epoch' and 'epoch-2' say that this replica is \
         in epoch {ours}: they are an older copy. Restore them as they were when it last ran"
    )]
    LaterEpoch {
        /// Which file.
        what: String,
        /// Its epoch.
        theirs: EpochNumber,
        /// The largest expected value.
        ours: EpochNumber,
    },
    /// A file has records or promises of a group that was not named.
    #[error(
        "{what} has something of group {}, and this replica is not said to be in that group: the \
         files that name its groups are an older copy. Restore them as they were when it last ran",
        .group.0
    )]
    UnknownGroup {
        /// Which file.
        what: String,
        /// The group.
        group: GroupId,
    },
    /// A record that was durable can no longer be read.
    #[error(
        "journal segment {segment} is damaged at offset {offset}: record {sequence} was durable \
         and cannot be read"
    )]
    Damaged {
        /// The segment.
        segment: u64,
        /// Where in it.
        offset: u64,
        /// The sequence number that should be there.
        sequence: u64,
    },
    /// A segment is missing in the middle.
    #[error(
        "journal segment {segment} is missing: what is there begins with record {found}, and \
         record {expected} should be there"
    )]
    Gap {
        /// The first missing segment.
        segment: u64,
        /// The sequence number that should come.
        expected: u64,
        /// The one that comes.
        found: u64,
    },
    /// Neither copy of the promises can be read.
    #[error(
        "neither copy of this replica's promises (the file 'promises') can be read, so it could \
         break them. Restore the data directory from a backup made after it last ran, or remove \
         this replica from the cluster and add a new member"
    )]
    PromisesLost,
    /// A promise is longer than a slot.
    #[error("a promise of {0} bytes is too long")]
    PromiseTooLong(usize),
}

impl<E> JournalError<E> {
    /// Whether something that was durable is gone, so that a replica with enough peers can continue
    /// as one that has lost its state; see [`Journal::begin_again`].
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Gap { .. })
    }
}

#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod salvage_tests;
#[cfg(test)]
mod tests;
