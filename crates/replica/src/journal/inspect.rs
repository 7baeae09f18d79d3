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
    format::{BLOCK, HeaderFound, Known},
    mark::Marks,
    promise::{self, Promises},
    remains::{self, Part},
    scan,
};
use crate::{EpochNumber, GroupId, Injected, Slot};
use alloc::{collections::BTreeMap, vec::Vec};

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
    /// Neither mark can be read: records at the end, or at the beginning, may be missing unnoticed.
    pub marks_lost: bool,
    /// Whether nothing of group 0 was ever trimmed.
    pub complete: bool,
    /// The same of the other groups.
    pub groups: Vec<(GroupId, bool)>,
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
    let mut segments: Vec<SegmentInfo> = Vec::new();
    let (marks, mut verdict) = match Marks::read_both(disk, identity) {
        Ok(marks) => (marks, None),
        Err(error) => ((Marks::None, false), Some(error)),
    };
    let read = remains::read(disk, marks, |part| {
        match part {
            Part::Segment {
                number,
                length,
                header,
            } => segments.push(SegmentInfo {
                number,
                length,
                first: match header {
                    HeaderFound::Valid(header) => Some(header.first),
                    _ => None,
                },
                end: BLOCK as u64,
                ..SegmentInfo::default()
            }),
            Part::Record {
                offset,
                record: found,
                in_row: true,
                ..
            } => {
                let info = segments.last_mut().expect("a record is in a segment");
                record(&RecordInfo {
                    segment: info.number,
                    offset: offset as u64,
                    sequence: found.sequence,
                    durable: found.durable,
                    slot: found.slot,
                    group: found.of.group,
                    epoch: found.of.epoch,
                    is_log: found.is_log,
                    length: found.payload.len() as u64,
                });
                info.records += 1;
                info.last = found.sequence;
                let (low, high) = info.slots.unwrap_or((found.slot, found.slot));
                info.slots = Some((low.min(found.slot), high.max(found.slot)));
                info.end = (offset + found.length) as u64;
            }
            Part::Record { .. } => {}
        }
        Ok(())
    });
    let chains = match read {
        Ok(remains) => remains.chains,
        Err(JournalError::Disk(error)) => return Err(error),
        Err(error) => {
            verdict = verdict.or(Some(error));
            Chains::default()
        }
    };
    let promises = [promise::look(disk, 0)?, promise::look(disk, 1)?];
    let mut inspection = Inspection {
        segments,
        promises,
        durable: match marks.0 {
            Marks::Newest(mark) => Some(mark.durable),
            _ => None,
        },
        marks_lost: marks.0 == Marks::Lost,
        complete: false,
        groups: Vec::new(),
        torn: false,
        chains: Vec::new(),
        all_told: true,
        verdict,
    };
    let others = promise::groups(disk)?.into_iter();
    let others = others.filter(|(group, _)| *group != GroupId(0));
    let marked = !inspection.marks_lost;
    inspection.groups = others
        .map(|(of, complete)| (of, complete && marked))
        .collect();
    let promises = Promises::open(disk, identity, None).map(drop);
    match promises.and_then(|()| scan::scan(disk, identity, Known::Any, Injected::default())) {
        Ok(scan) => (inspection.complete, inspection.torn) = (scan.complete, scan.torn),
        Err(JournalError::Disk(error)) => return Err(error),
        Err(error) => inspection.verdict = inspection.verdict.take().or(Some(error)),
    }
    // A start that would continue takes all groups for whole.
    let is_sound = inspection.verdict.is_none() && !inspection.marks_lost;
    // Of each group the last epoch counts.
    let newest: BTreeMap<_, _> = chains.groups().map(|(of, it)| (of.group, it)).collect();
    let known = |(group, chain)| (group, if is_sound { Chain::Whole } else { chain });
    inspection.chains = newest.into_iter().map(known).collect();
    inspection.all_told = is_sound || chains.all_told();
    Ok(inspection)
}
