//! The readable part of a journal, damaged or not.
//!
//! ```text
//!   segment 4   header | 10 11 ✗ … 14 15 | zeros      behind a hole: where the bad record ends by its
//!   segment 5   ✗      | 16 17 | zeros                length, else at each multiple of 8
//!   segment 7   header says 2⁴⁰ records more          of a journal that was begun in place of this
//!                                                     one and is not in force: the end
//! ```
//!
//! Bytes behind a hole may be anything, also what a client made to look like a record, in the middle of
//! the record that cannot be read. So a record found there counts only if nothing contradicts it: it
//! has a higher number than the one that is missing, no lower one follows, and what comes later, or
//! a mark, says that there was one of its number. Otherwise nothing is certain of any group.
//!
//! So is it without a mark, or when one of its two copies cannot be read: then nothing tells whether
//! the journal ended where it seems to end. The same is true of an unfinished last write.

use super::{
    Disk, JournalError,
    chains::Chains,
    format::{
        BLOCK, Effort, HeaderFound, Identity, RECORD_HEADER, RecordView, SegmentHeader,
        read_record, record_length, sequence_at,
    },
    mark::Marks,
};
use crate::Bytes;
use alloc::vec::Vec;

/// No record that is missing, or was never finished, is further ahead of the next one. This many
/// records are 200 GiB.
pub(super) const AHEAD_MAX: u64 = 1 << 32;
/// How far ahead a journal begins that takes the place of a damaged one.
const LEAP: u64 = 1 << 40;

/// A part of a journal, as it is read.
pub(super) enum Part<'a> {
    /// A segment begins.
    Segment {
        number: u64,
        length: u64,
        header: &'a HeaderFound,
    },
    /// A record of it, at this offset.
    Record {
        offset: usize,
        record: RecordView,
        /// Nothing that cannot be read is before it in its segment.
        in_row: bool,
        /// Its segment is needed.
        needed: bool,
    },
}

/// See the module.
pub(super) struct Remains {
    pub chains: Chains,
    /// The number of the first record of a journal that takes the place of this one; none when there
    /// is none so high.
    pub first_replacing: Option<u64>,
    /// Segments of such journals that are not in force, or that were made and never begun.
    pub leftovers: Vec<u64>,
}

/// A reading in progress.
struct Reading {
    chains: Chains,
    /// The highest record that nothing outside its segment accounts for yet.
    unproven: u64,
    /// The last segment seems to end with an unfinished write.
    torn: bool,
}

/// Reads all segments and gives their parts to `each`. Records are given in ascending order.
///
/// # Errors
/// When the storage fails, and those of `each`.
pub(super) fn read<D: Disk>(
    disk: &mut D,
    (marks, one_is_bad): (Marks, bool),
    mut each: impl FnMut(Part<'_>) -> Result<(), JournalError<D::Error>>,
) -> Result<Remains, JournalError<D::Error>> {
    let (first_needed, durable) = match marks {
        Marks::Newest(mark) => (mark.first, mark.durable),
        Marks::NotKept | Marks::None | Marks::Lost => (0, 0),
    };
    let is_marked = matches!(marks, Marks::Newest(_));
    let mut reading = Reading {
        chains: Chains::default(),
        unproven: 0,
        torn: false,
    };
    let mut begun = false;
    let mut leftovers = Vec::new();
    let numbers = disk.segments().map_err(JournalError::Disk)?;
    for (at, number) in numbers.iter().copied().enumerate() {
        let bytes = disk.read(number).map_err(JournalError::Disk)?;
        let header = SegmentHeader::read(&bytes);
        let first = match &header {
            HeaderFound::Valid(header) if header.number == number => Some(header.first),
            _ => None,
        };
        let needed = number >= first_needed;
        if needed && !core::mem::replace(&mut begun, true) {
            reading.begin(first.is_some());
            let gap = match marks {
                Marks::Newest(mark) => mark.misses_before(number, first),
                Marks::NotKept | Marks::None | Marks::Lost => number > 1,
            };
            if gap {
                reading.chains.lose_some();
            }
        } else if needed && reading.is_other(first) {
            leftovers.extend(&numbers[at..]);
            break;
        }
        if needed {
            first.into_iter().for_each(|first| reading.reach(first));
        }
        let length = bytes.len() as u64;
        each(Part::Segment {
            number,
            length,
            header: &header,
        })?;
        match needed {
            true => {
                let (before, torn) = (reading.chains.next(), reading.torn);
                reading.read_segment(number, &bytes, &mut each)?;
                if first.is_some() || reading.chains.next() > before {
                    leftovers.clear();
                } else {
                    leftovers.push(number);
                    reading.torn |= torn;
                }
            }
            false => {
                let mut offset = BLOCK;
                while let Some(record) = read_record(&bytes, number, offset) {
                    let next = offset + record.length;
                    let (in_row, needed) = (true, false);
                    each(Part::Record {
                        offset,
                        record,
                        in_row,
                        needed,
                    })?;
                    offset = next;
                }
            }
        }
    }
    let Reading {
        mut chains,
        unproven,
        torn,
    } = reading;
    chains.reach(durable.saturating_add(1));
    if unproven > durable || !begun && durable > 0 {
        chains.confuse();
    }
    if torn || one_is_bad || !is_marked {
        chains.lose_some();
    }
    let next = chains.next().unwrap_or(1);
    let first_replacing = next
        .checked_add(LEAP)
        .filter(|_| next < crate::wire::NUMBER_END / 2);
    Ok(Remains {
        chains,
        first_replacing,
        leftovers,
    })
}

impl Reading {
    /// The first segment that is needed, with a header that can be read or not.
    const fn begin(&mut self, headed: bool) {
        if !headed {
            self.chains.confuse();
        }
    }

    /// Whether a segment that begins with this record is not of this journal.
    fn is_other(&self, first: Option<u64>) -> bool {
        let next = self.chains.next();
        first
            .zip(next)
            .is_some_and(|(first, next)| first >= next.saturating_add(AHEAD_MAX))
    }

    /// All records below this one were durable.
    fn reach(&mut self, first: u64) {
        if self.chains.next().is_some_and(|next| first < next) {
            self.chains.confuse();
        }
        if first > self.unproven {
            self.unproven = 0;
        }
        self.chains.reach(first);
    }

    fn read_segment<E>(
        &mut self,
        number: u64,
        bytes: &Bytes,
        each: &mut impl FnMut(Part<'_>) -> Result<(), JournalError<E>>,
    ) -> Result<(), JournalError<E>> {
        let mut at = BLOCK;
        let mut give = |chains: &mut Chains, offset, record: RecordView, in_row| {
            chains.add(&record);
            each(Part::Record {
                offset,
                record,
                in_row,
                needed: true,
            })
        };
        let follows = |next: Option<u64>, record: &RecordView| {
            next.is_none_or(|next| record.sequence == next)
        };
        while let Some(record) = read_record(bytes, number, at)
            && follows(self.chains.next(), &record)
        {
            let offset = at;
            at += record.length;
            give(&mut self.chains, offset, record, true)?;
        }
        let mut end = at;
        // Behind damage there may be more.
        let missing = self.chains.next().unwrap_or(0);
        if let Some(behind) = behind_bad(bytes, number, at, missing) {
            at = behind;
        }
        let mut effort = Effort::in_segment(bytes);
        while at + RECORD_HEADER <= bytes.len() {
            let ahead = sequence_at(bytes, at).and_then(|found| found.checked_sub(missing));
            if !ahead.is_some_and(|ahead| ahead > 0 && ahead < AHEAD_MAX) {
                at += 8;
                continue;
            }
            let Ok(found) = effort.read(bytes, number, at) else {
                self.chains.confuse();
                break;
            };
            let Some(record) = found else {
                at += 8;
                continue;
            };
            let (offset, length) = (at, record.length);
            at += length;
            if self
                .chains
                .next()
                .is_some_and(|next| record.sequence < next)
            {
                self.chains.confuse();
                continue;
            }
            self.unproven = record.sequence;
            end = at;
            give(&mut self.chains, offset, record, false)?;
        }
        self.torn = sequence_at(bytes, end).is_some_and(|found| self.chains.next() == Some(found));
        Ok(())
    }
}

/// Where the record behind the one at `at` begins, which is missing and cannot be read, if its length
/// can and leads there.
fn behind_bad(bytes: &Bytes, segment: u64, at: usize, missing: u64) -> Option<usize> {
    let length = u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?) as usize;
    let behind = at.checked_add(record_length(length))?;
    let record = read_record(bytes, segment, behind)?;
    (Some(record.sequence) == missing.checked_add(1)).then_some(behind)
}

impl<E> JournalError<E> {
    /// Checks whose segment this is, and whether this program knows its format.
    pub(super) fn check_header(
        number: u64,
        header: &HeaderFound,
        identity: &Identity,
    ) -> Result<(), Self> {
        let what = || alloc::format!("journal segment {number}");
        match header {
            HeaderFound::Newer(theirs) => Err(Self::Newer {
                what: what(),
                theirs: *theirs,
                ours: SegmentHeader::version(),
            }),
            HeaderFound::Valid(header) => identity.check(what, header.owner),
            HeaderFound::None => Ok(()),
        }
    }
}
