//! Looking at a journal without changing it, whatever state it is in.
//!
//! ```text
//!   segments, records ──► one by one, as far as they can be read
//!   promises, marks   ──► what each slot holds
//!   scan              ──► the verdict that a start would come to
//! ```

use super::{
    Disk, Identity, JournalError,
    chains::{Chain, Chains},
    format::{BLOCK, HeaderFound, Known, RECORD_HEADER, RecordView, SegmentHeader, read_record},
    mark::Marks,
    promise::{self, Promises},
    scan,
};
use crate::{EpochNumber, GroupId, Injected, Slot};
use alloc::vec::Vec;

/// A record as it stands in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordInfo {
    /// Its segment.
    pub segment: u64,
    /// Where in it.
    pub offset: u64,
    /// Counts records without a gap.
    pub sequence: u64,
    /// The last sequence that was durable when it was written.
    pub durable: u64,
    /// The protocol's slot.
    pub slot: Slot,
    /// The group that it belongs to.
    pub group: GroupId,
    /// The epoch that it belongs to.
    pub epoch: EpochNumber,
    /// It stands for all records of its group before it.
    pub is_log: bool,
    /// Bytes of the protocol's record.
    pub length: u64,
}

/// A segment and what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub number: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The sequence that its header begins with; none when the header cannot be read.
    pub first: Option<u64>,
    /// How many records follow one another from its beginning.
    pub records: u64,
    /// The last of their sequences.
    pub last: u64,
    /// The lowest and the highest of their slots.
    pub slots: Option<(Slot, Slot)>,
    /// Where they end.
    pub end: u64,
}

/// The contents of a journal.
#[derive(Debug)]
pub struct Inspection<E> {
    /// All segments, ascending.
    pub segments: Vec<SegmentInfo>,
    /// Both slots of the promises: number and length, none when it is empty or cannot be read.
    pub promises: [Option<(u64, u64)>; 2],
    /// The sequence up to which the marks say that all was durable.
    pub durable: Option<u64>,
    /// Whether nothing of group 0 was ever trimmed.
    pub complete: bool,
    /// Whether the last write was unfinished; that is no damage.
    pub torn: bool,
    /// The groups that have records, and whether some of them are missing.
    pub chains: Vec<(GroupId, Chain)>,
    /// Every record that is missing is one of these groups': none that has no record lacks any.
    pub all_told: bool,
    /// The error of a start: none when it would continue.
    pub verdict: Option<JournalError<E>>,
}

/// Reads everything, of all groups and epochs, and changes nothing. Every record that can be read is given to `record`.
///
/// # Errors
/// When the storage fails. Damage is no error here, it is in the verdict.
pub fn inspect<D: Disk>(
    disk: &mut D,
    identity: &Identity,
    mut record: impl FnMut(&RecordInfo),
) -> Result<Inspection<D::Error>, D::Error> {
    let mut segments = Vec::new();
    let mut chains = Chains::default();
    let marks = Marks::read(disk, identity);
    // Those before it are trimmed, whether their files are deleted yet or not.
    let (first, needed) = match &marks {
        Ok(Marks::Newest(mark)) => (mark.first, mark.durable > 0),
        _ => (0, false),
    };
    let mut begun = false;
    for number in disk.segments()? {
        let bytes = disk.read(number)?;
        let mut info = SegmentInfo {
            number,
            length: bytes.len() as u64,
            ..SegmentInfo::default()
        };
        let mut begins = None;
        if let HeaderFound::Valid(header) = SegmentHeader::read(&bytes) {
            info.first = Some(header.first);
            begins = Some(header.first).filter(|_| header.number == number);
        }
        if number >= first {
            let missing = begins.is_none() || needed && number > first;
            if !core::mem::replace(&mut begun, true) && missing {
                chains.lose_beginning();
            }
            begins.into_iter().for_each(|first| chains.reach(first));
        }
        let mut at = BLOCK;
        while let Some(found) = read_record(&bytes, number, at) {
            record(&RecordInfo {
                segment: number,
                offset: at as u64,
                sequence: found.sequence,
                durable: found.durable,
                slot: found.slot,
                group: found.of.group,
                epoch: found.of.epoch,
                is_log: found.is_log,
                length: found.payload.len() as u64,
            });
            if number >= first {
                add(&mut chains, &found);
            }
            at += found.length;
            info.records += 1;
            info.last = found.sequence;
            let (low, high) = info.slots.unwrap_or((found.slot, found.slot));
            info.slots = Some((low.min(found.slot), high.max(found.slot)));
        }
        info.end = at as u64;
        // Behind damage there may be more.
        while number >= first && at + RECORD_HEADER <= bytes.len() {
            match read_record(&bytes, number, at) {
                Some(found) => {
                    add(&mut chains, &found);
                    at += found.length;
                }
                None => at += 8,
            }
        }
        segments.push(info);
    }
    let promises = [promise::look(disk, 0)?, promise::look(disk, 1)?];
    let mut inspection = Inspection {
        segments,
        promises,
        durable: None,
        complete: false,
        torn: false,
        chains: Vec::new(),
        all_told: true,
        verdict: None,
    };
    match marks {
        Ok(Marks::Newest(mark)) => {
            inspection.durable = Some(mark.durable);
            chains.reach(mark.durable.saturating_add(1));
        }
        Ok(_) => {}
        Err(error) => inspection.verdict = Some(error),
    }
    let promises = Promises::open(disk, identity, None).map(drop);
    match promises.and_then(|()| scan::scan(disk, identity, Known::Any, Injected::default())) {
        Ok(scan) => (inspection.complete, inspection.torn) = (scan.complete, scan.torn),
        Err(JournalError::Disk(error)) => return Err(error),
        Err(error) => inspection.verdict = inspection.verdict.take().or(Some(error)),
    }
    (inspection.chains, inspection.all_told) = (chains.groups().collect(), chains.all_told());
    Ok(inspection)
}

/// Adds a record that follows those before it, or comes behind a hole.
fn add(chains: &mut Chains, record: &RecordView) {
    if chains.next().is_none_or(|next| record.sequence >= next) {
        chains.add(record);
    }
}
