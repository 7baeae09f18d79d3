//! The part of a damaged journal that its groups can still use.
//!
//! ```text
//!   damaged journal ──► whole groups     records and promise ──► the journal that is begun again
//!                   ──► all others       promise alone ────────► come back as ones that lost their
//!                                                                state
//! ```
//!
//! A group is whole when the numbers of its records, and the marks, show that none is missing. Where
//! that cannot be told, see [`remains`], no group is.
//!
//! **Promises and votes.** Promises are not in the segments but in two slots of their own, which hold
//! the same. A damaged segment takes none away, and a promise is written to both slots before it
//! counts; so the newest readable one is the last that ever counted. If neither slot can be read
//! nothing is salvaged: the replica does not start. Votes are records. A group that may lack one
//! comes back under a new incarnation, as one that lost its state, and does not vote before its
//! protocol has made that good from the others.
//!
//! **Group 0** is like any other. Views, ballots, accepted proposals and the count of starts of a
//! protocol that serves several groups are the promise of group 0, not its records; its promise says,
//! for each group that it serves, whether the log here is complete, and it says so only after the
//! records are durable. So the records of group 0 can be lost without the other groups' being
//! worth less, and the other way round: a group that lost its records is restored as one whose log
//! is not complete, whatever the promise of group 0 says.

use super::{
    Disk, GroupEpoch, Identity, JournalError,
    format::{Known, Place, unpack},
    mark::Marks,
    promise::Promises,
    remains::{self, Part},
    writer::Found,
};
use crate::{Bytes, GroupId, Injected, Slot, bug::Bug};
use alloc::{format, vec, vec::Vec};

/// The part of a damaged journal that can be used.
#[derive(Debug)]
pub struct Salvaged {
    /// The promise of the first group.
    pub promise: Option<Bytes>,
    /// Each group's part; none where some of it may be missing.
    pub groups: Vec<Option<Found>>,
}

/// Reads the part of a damaged journal that can be used. Changes nothing.
///
/// # Errors
/// When the storage fails, or the journal is not one of this replica and these groups.
pub fn salvage<D: Disk>(
    disk: &mut D,
    identity: &Identity,
    groups: &[GroupEpoch],
    bug: Injected,
) -> Result<Salvaged, JournalError<D::Error>> {
    let (promises, _) = Promises::open(disk, identity, Some(groups))?;
    let marks = Marks::read_both(disk, identity)?;
    let left = &promises.left[..];
    let known = Known::These { groups, left };
    let mut segment = 0;
    let mut records: Vec<Vec<(Slot, Bytes)>> = vec![Vec::new(); groups.len()];
    // Groups whose log, as one record, cannot be unpacked.
    let mut bad = vec![false; groups.len()];
    let mut has_others = false;
    let remains = remains::read(disk, marks, |part| {
        let (record, in_row) = match part {
            Part::Segment { number, header, .. } => {
                segment = number;
                return JournalError::check_header(number, header, identity);
            }
            Part::Record { needed: false, .. } => return Ok(()),
            Part::Record { record, in_row, .. } => (record, in_row),
        };
        let what = || format!("journal segment {segment}");
        match known.place(what, record.of) {
            Ok(Place::At(at)) if record.is_log => {
                let log = unpack(record.payload);
                bad[at] = log.is_none();
                records[at] = log.unwrap_or_default();
            }
            Ok(Place::At(at)) => records[at].push((record.slot, record.payload)),
            Ok(Place::Earlier | Place::Left) => {}
            // Behind a hole it may be none.
            Err(_) if !in_row => has_others = true,
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    let complete = |at: usize| match (groups[at].group, marks.0) {
        (GroupId(0), Marks::Newest(mark)) => mark.complete,
        (GroupId(0), _) => false,
        _ => promises.entries[at].complete,
    };
    let can_begin = remains.first_replacing.is_some() && !has_others;
    let all = records.into_iter().enumerate().map(|(at, records)| {
        let is_whole = can_begin && !bad[at] && remains.chains.is_whole(groups[at]);
        (is_whole || bug.is(Bug::DamagedGroupContinues)).then(|| Found {
            promise: promises.entries[at].promise.clone(),
            records,
            complete: complete(at),
        })
    });
    Ok(Salvaged {
        groups: all.collect(),
        promise: promises.entries.first().and_then(|of| of.promise.clone()),
    })
}
