//! Reading a journal back: where it ends, and whether all that was durable is there.
//!
//! ```text
//!   segment 4 ──► records 10 11 12 | end? ──► segment 5 begins with 13 ──► records 13 14 ✗
//!                                                                              │
//!             a valid later record with durable ≥ 15? ── yes: damaged ─────────┤
//!                                                        no: torn tail ────────┘
//! ```

use super::{
    Disk, Identity, JournalError,
    format::{BLOCK, HeaderFound, RECORD_HEADER, SegmentHeader, read_record, sequence_at},
    mark::Marks,
};
use crate::{Bytes, Planted, Slot, plant::Plant};
use alloc::{format, vec::Vec};

/// A segment that holds records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub number: u64,
    pub length: u64,
    pub slot_max: Slot,
}

/// What a scan found.
pub(super) struct Scan {
    pub records: Vec<(Slot, Bytes)>,
    pub kept: Vec<Kept>,
    /// Segments after the end: they hold nothing that was acknowledged.
    pub void: Vec<u64>,
    /// The bytes of the last kept segment, and where its records end.
    pub last: Option<(Bytes, usize)>,
    /// The sequence number of the next record.
    pub next: u64,
    /// Whether bytes of an unfinished write were found at the end.
    pub torn: bool,
    /// Whether it goes back to the replica's first start.
    pub complete: bool,
    pub marks: Marks,
}

/// How far ahead of the expected sequence a record of the same, unfinished write may be.
const AHEAD_MAX: u64 = 1 << 32;

/// Whether some valid record from `from` on says that `sequence` was durable.
fn proves_durable(bytes: &Bytes, segment: u64, from: usize, sequence: u64) -> bool {
    let mut at = from.next_multiple_of(8);
    while at + RECORD_HEADER <= bytes.len() {
        let plausible = sequence_at(bytes, at)
            .is_some_and(|found| found > sequence && found - sequence < AHEAD_MAX);
        if plausible
            && let Some(record) = read_record(bytes, segment, at)
            && record.durable >= sequence
        {
            return true;
        }
        at += 8;
    }
    false
}

pub(super) fn scan<D: Disk>(
    disk: &mut D,
    identity: &Identity,
    planted: Planted,
) -> Result<Scan, JournalError<D::Error>> {
    let credulous = planted.is(Plant::JournalEndsAtDamage);
    let marks = match Marks::read(disk, identity)? {
        Marks::Newest(_) if credulous || planted.is(Plant::JournalTrustsItsEnd) => Marks::None,
        marks => marks,
    };
    let numbers = disk.segments().map_err(JournalError::Disk)?;
    let mut scan = Scan {
        records: Vec::new(),
        kept: Vec::new(),
        void: Vec::new(),
        last: None,
        next: 1,
        torn: false,
        complete: numbers.first().is_none_or(|first| *first == 1),
        marks,
    };
    let mut first_needed = 0;
    if let Marks::Newest(mark) = marks {
        (first_needed, scan.complete) = (mark.first, mark.complete);
    } else if marks == Marks::Lost {
        scan.complete = false;
    }
    // Where the records stopped, once they have: segment and offset of the missing record.
    let mut stopped: Option<(u64, u64)> = None;
    for number in numbers {
        if number < first_needed {
            // Trimmed already; a crash came before its file was deleted.
            scan.void.push(number);
            continue;
        }
        let bytes = disk.read(number).map_err(JournalError::Disk)?;
        let what = || format!("journal segment {number}");
        let first = match SegmentHeader::read(&bytes) {
            HeaderFound::Newer(theirs) => {
                let ours = SegmentHeader::version();
                return Err(JournalError::Newer {
                    what: what(),
                    theirs,
                    ours,
                });
            }
            HeaderFound::Valid(header) => {
                identity.check(what, header.cluster, header.node)?;
                // A lower number was left by what the file held before it was used again.
                (header.number == number).then_some(header.first)
            }
            HeaderFound::None => None,
        };
        let Some(first) = first else {
            if !credulous && proves_durable(&bytes, number, BLOCK, scan.next) {
                let (segment, offset) = (number, 0);
                return Err(JournalError::Damaged {
                    segment,
                    offset,
                    sequence: scan.next,
                });
            }
            stopped = Some((number, 0));
            scan.void.push(number);
            continue;
        };
        if let Some((segment, offset)) = stopped
            && first != scan.next
        {
            if credulous {
                scan.void.push(number);
                continue;
            }
            // Everything before `first` was durable when this segment was begun.
            return Err(if number > segment + 1 {
                let (segment, expected) = (segment + 1, scan.next);
                JournalError::Gap {
                    segment,
                    expected,
                    found: first,
                }
            } else {
                JournalError::Damaged {
                    segment,
                    offset,
                    sequence: scan.next,
                }
            });
        }
        if scan.kept.is_empty() {
            if let Marks::Newest(mark) = marks
                && mark.durable > 0
                && number > mark.first
            {
                return Err(JournalError::Gap {
                    segment: mark.first,
                    expected: first.saturating_sub(1),
                    found: first,
                });
            }
            scan.next = first;
        }
        let mut at = BLOCK;
        let mut slot_max = Slot(0);
        while let Some(record) = read_record(&bytes, number, at) {
            if record.sequence != scan.next {
                break;
            }
            at += record.length;
            scan.next += 1;
            if record.epoch > identity.epoch {
                return Err(identity.later_epoch(what(), record.epoch));
            }
            // Slots of another epoch are other slots.
            if record.epoch == identity.epoch {
                slot_max = slot_max.max(record.slot);
                scan.records.push((record.slot, record.payload));
            }
        }
        if !credulous && proves_durable(&bytes, number, at, scan.next) {
            let (segment, offset) = (number, at as u64);
            return Err(JournalError::Damaged {
                segment,
                offset,
                sequence: scan.next,
            });
        }
        stopped = Some((number, at as u64));
        scan.torn = sequence_at(&bytes, at) == Some(scan.next);
        let length = bytes.len() as u64;
        scan.kept.push(Kept {
            number,
            length,
            slot_max,
        });
        scan.last = Some((bytes, at));
    }
    let unproven = marks == Marks::Lost && scan.torn;
    if let Marks::Newest(mark) = marks
        && mark.durable >= scan.next
    {
        let (segment, offset) = stopped.unwrap_or((mark.first, 0));
        return Err(JournalError::Damaged {
            segment,
            offset,
            sequence: scan.next,
        });
    }
    match stopped {
        Some((segment, offset)) if unproven => Err(JournalError::Damaged {
            segment,
            offset,
            sequence: scan.next,
        }),
        _ => Ok(scan),
    }
}
