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
    format::{
        BLOCK, Effort, HeaderFound, Known, Place, RECORD_HEADER, RecordView, SegmentHeader, Spent,
        read_record, sequence_at, unpack,
    },
    mark::Marks,
    remains::AHEAD_MAX,
};
use crate::{Bytes, Injected, Slot, bug::Bug};
use alloc::{format, vec, vec::Vec};
use smallvec::{SmallVec, smallvec};

/// The records of a group in a segment, of its present epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Above all slots of its records; 0 when it has none.
    pub end: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Share {
    pub fn add(&mut self, slot: Slot, length: u64) {
        self.end = self.end.max(slot.0.saturating_add(1));
        self.bytes += length;
    }
}

/// A segment that holds records.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub number: u64,
    pub length: u64,
    /// See [`SegmentHeader::plain`].
    pub plain: bool,
    /// By group; later groups may be missing.
    pub shares: SmallVec<[Share; 1]>,
}

impl Kept {
    pub fn share(&self, at: usize) -> Share {
        self.shares.get(at).copied().unwrap_or_default()
    }

    /// The records of a group count no more.
    pub fn release(&mut self, at: usize) {
        if let Some(share) = self.shares.get_mut(at) {
            *share = Share::default();
        }
    }
}

/// The result of a scan.
pub(super) struct Scan {
    /// By group.
    pub records: Vec<Vec<(Slot, Bytes)>>,
    /// By group: the number of its last record, 0 where it is not known.
    pub counts: Vec<u32>,
    /// There are records of groups that the replica has left.
    pub has_left: bool,
    pub kept: Vec<Kept>,
    /// Segments after the end: they hold nothing that was acknowledged.
    pub void: Vec<u64>,
    /// The bytes of the last kept segment, and where its records end.
    pub last: Option<(Bytes, usize)>,
    /// The sequence number of the next record.
    pub next: u64,
    /// Whether bytes of an unfinished write were found at the end.
    pub torn: bool,
    /// Whether the records of group 0 go back to the replica's first start.
    pub complete: bool,
    pub marks: Marks,
    /// The journal that is in force begins here, in the place of one of which there are segments.
    pub replaces: Option<u64>,
}

impl Scan {
    /// Takes a record of the group at `at` in, which stands in the segment of these shares.
    /// False when it cannot be read.
    fn take(&mut self, at: usize, record: RecordView, shares: &mut [Share]) -> bool {
        if !record.is_log {
            shares[at].add(record.slot, record.length as u64);
            self.records[at].push((record.slot, record.payload));
            return true;
        }
        let Some(records) = unpack(record.payload) else {
            return false;
        };
        // It stands for all before it.
        self.kept.iter_mut().for_each(|kept| kept.release(at));
        shares[at] = Share::default();
        shares[at].add(record.slot, record.length as u64);
        self.records[at] = records;
        true
    }
}

/// Whether some valid record from `from` on says that `sequence` was durable, or there is too much
/// that looks like records to tell.
fn proves_durable(bytes: &Bytes, segment: u64, from: usize, sequence: u64) -> bool {
    let mut at = from.next_multiple_of(8);
    let mut effort = Effort::in_segment(bytes);
    while at + RECORD_HEADER <= bytes.len() {
        let plausible = sequence_at(bytes, at)
            .is_some_and(|found| found > sequence && found - sequence < AHEAD_MAX);
        match plausible.then(|| effort.read(bytes, segment, at)) {
            Some(Ok(Some(record))) if record.durable >= sequence => return true,
            Some(Err(Spent)) => return true,
            _ => {}
        }
        at += 8;
    }
    false
}

pub(super) fn scan<D: Disk>(
    disk: &mut D,
    identity: &Identity,
    known: Known<'_>,
    bug: Injected,
) -> Result<Scan, JournalError<D::Error>> {
    let credulous = bug.is(Bug::JournalEndsAtDamage);
    let looks_away = credulous || bug.is(Bug::JournalTrustsItsEnd);
    let marks = match Marks::read(disk, identity)? {
        Marks::Newest(_) if looks_away => Marks::None,
        marks => marks,
    };
    // None was ever durable; not so where an injected bug looks away.
    let is_unmarked = marks == Marks::None && !looks_away;
    let numbers = disk.segments().map_err(JournalError::Disk)?;
    let groups = match known {
        Known::These { groups, .. } => groups.len(),
        Known::Any => 0,
    };
    let mut scan = Scan {
        records: vec![Vec::new(); groups],
        counts: vec![0; groups],
        has_left: false,
        kept: Vec::new(),
        void: Vec::new(),
        last: None,
        next: 1,
        torn: false,
        complete: numbers.first().is_none_or(|first| *first == 1),
        marks,
        replaces: None,
    };
    let mut first_needed = 0;
    // The first record of the last segment that is not needed.
    let (mut before, mut begins) = (None, None);
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
            let bytes = disk.read(number).map_err(JournalError::Disk)?;
            if let HeaderFound::Valid(header) = SegmentHeader::read(&bytes)
                && header.number == number
            {
                before = Some(header.first);
            }
            scan.void.push(number);
            continue;
        }
        let bytes = disk.read(number).map_err(JournalError::Disk)?;
        let what = || format!("journal segment {number}");
        let mut plain = false;
        let header = SegmentHeader::read(&bytes);
        JournalError::check_header(number, &header, identity)?;
        let first = match header {
            HeaderFound::Valid(header) => {
                plain = header.plain;
                // A lower number was left by what the file held before it was used again.
                (header.number == number).then_some(header.first)
            }
            _ => None,
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
                && mark.misses_before(number, Some(first))
            {
                return Err(JournalError::Gap {
                    segment: mark.first,
                    expected: first.saturating_sub(1),
                    found: first,
                });
            }
            // Nothing is trimmed before a mark is durable: without one the journal begins with its
            // first record.
            if is_unmarked && first > 1 {
                return Err(JournalError::Gap {
                    segment: 1,
                    expected: 1,
                    found: first,
                });
            }
            scan.next = first;
            begins = Some(first);
        }
        let mut at = BLOCK;
        let mut shares: SmallVec<[Share; 1]> = smallvec![Share::default(); groups];
        while let Some(record) = read_record(&bytes, number, at) {
            if record.sequence != scan.next {
                break;
            }
            let (offset, sequence) = (at as u64, scan.next);
            at += record.length;
            scan.next += 1;
            let count = record.count;
            match known.place(what, record.of)? {
                Place::At(group) if !scan.take(group, record, &mut shares) => {
                    return Err(JournalError::Damaged {
                        segment: number,
                        offset,
                        sequence,
                    });
                }
                Place::At(group) => scan.counts[group] = count,
                Place::Left => scan.has_left = true,
                Place::Earlier => {}
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
            plain,
            shares,
        });
        scan.last = Some((bytes, at));
    }
    let first = begins.unwrap_or(scan.next);
    let follows = |before: u64| before < first && first - before < AHEAD_MAX;
    if let Marks::Newest(mark) = marks
        && before.is_some_and(|before| !follows(before))
    {
        scan.replaces = Some(mark.first);
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
