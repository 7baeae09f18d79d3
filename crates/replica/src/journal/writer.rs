//! Writing: everything handed over since the last commit goes out in one durable write.

use super::{
    Disk, GroupEpoch, Identity, JournalError,
    format::{self, BLOCK, Known, SegmentHeader, read_record},
    mark::{Mark, Marks},
    promise::Promises,
    remains,
    scan::{self, Kept, Share},
};
use crate::{Bytes, EpochNumber, GroupId, GroupIndex, Injected, Slot, Write, bug::Bug};
use alloc::{collections::VecDeque, vec, vec::Vec};
use smallvec::smallvec;

/// A group buffer that has grown beyond this is given back.
const BUFFER_KEPT_MAX: usize = 4 << 20;
/// A record of more bytes is not gathered with others: it is written in pieces of this many, so
/// that the buffers of a record of 64 MiB are no longer than that, here and in the storage below.
pub(super) const PIECE: usize = 4 << 20;

/// The most bytes of a group that [`Journal::bring_forward`] writes.
pub const FORWARD_MAX: u64 = 16 << 20;

/// Stands in marks where there are no groups.
const NO_GROUP: GroupEpoch = GroupEpoch {
    group: GroupId(0),
    epoch: EpochNumber(0),
};

/// A group of the journal.
#[derive(Clone, Copy, Debug)]
struct Group {
    of: GroupEpoch,
    /// Records below this slot are not needed.
    below: Slot,
    /// Its records go back to the replica's first start.
    complete: bool,
    /// It was left.
    left: bool,
    /// The number of its last record.
    count: u32,
}

/// The segments that a group needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of the segments from the oldest one that it needs on, without the one being written.
    pub bytes: u64,
    /// Bytes of its own records in them: about the length of the write of
    /// [`Journal::bring_forward`].
    pub own: u64,
}

/// A journal open for writing.
#[derive(Debug)]
pub struct Journal<D> {
    disk: D,
    identity: Identity,
    groups: Vec<Group>,
    injected: Injected,
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
}

/// The contents of a journal when it was opened.
#[derive(Debug)]
pub struct Opened<D> {
    /// The journal, ready to be written.
    pub journal: Journal<D>,
    /// The groups' parts, in the order in which they were named.
    pub groups: Vec<Found>,
    /// Whether an unfinished, never acknowledged write was cut off.
    pub torn: bool,
    /// Whether one of the two copies of the promises was damaged.
    pub promise_repaired: bool,
}

/// A group's part of a journal, of its present epoch.
#[derive(Debug)]
pub struct Found {
    /// The last promises.
    pub promise: Option<Bytes>,
    /// The records in the order in which they were written.
    pub records: Vec<(Slot, Bytes)>,
    /// Whether they go back to the replica's first start: no snapshot is needed then.
    pub complete: bool,
}

/// How a group begins in a journal that is begun again.
#[derive(Debug)]
pub enum Beginning {
    /// With all that was found of it.
    Kept(Found),
    /// Without a record.
    Empty {
        /// It continues from nothing, not from a snapshot: the new records are all that there is.
        complete: bool,
    },
}

fn found(promises: &Promises, groups: &[Group], records: Vec<Vec<(Slot, Bytes)>>) -> Vec<Found> {
    (promises.entries.iter().zip(groups).zip(records))
        .map(|((entry, group), records)| Found {
            promise: entry.promise.clone(),
            records,
            complete: group.complete,
        })
        .collect()
}

impl<D: Disk> Journal<D> {
    /// Reads the records and promises of these groups and gets ready to write behind them. The
    /// place of a group in the list is its name from then on. New segments have this length, or
    /// more when a record needs it.
    ///
    /// # Errors
    /// When the storage fails, or its content cannot be used: records and promises of other groups
    /// are rejected too. Nothing has been changed then.
    pub fn open(
        disk: D,
        identity: Identity,
        groups: &[GroupEpoch],
        segment_length: u64,
    ) -> Result<Opened<D>, JournalError<D::Error>> {
        Self::open_injected(disk, identity, groups, segment_length, Injected::default())
    }

    /// The same, with one of the injected bugs where the build has them.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_injected(
        mut disk: D,
        identity: Identity,
        groups: &[GroupEpoch],
        segment_length: u64,
        bug: Injected,
    ) -> Result<Opened<D>, JournalError<D::Error>> {
        let (mut promises, promise_repaired) = Promises::open(&mut disk, &identity, Some(groups))?;
        let left = &promises.left[..];
        let known = Known::These { groups, left };
        let scan = scan::scan(&mut disk, &identity, known, bug)?;
        if !scan.has_left {
            promises.left.clear();
        }
        let complete = |at: usize| match groups[at].group {
            GroupId(0) => scan.complete,
            _ => promises.entries[at].complete && scan.marks != Marks::Lost,
        };
        let groups: Vec<Group> = (groups.iter().enumerate())
            .map(|(at, of)| Group {
                of: *of,
                below: Slot(0),
                complete: complete(at),
                left: false,
                count: scan.counts[at],
            })
            .collect();
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
            groups,
            injected: bug,
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
        };
        if scan.marks == Marks::Lost {
            // Both slots get one that can be read.
            journal.write_mark(true)?;
            journal.write_mark(true)?;
        } else if unmarked {
            journal.write_mark(true)?;
        }
        if let Some(first) = scan.replaces {
            // A crash came between the mark and this.
            journal.disk.set_aside(first).map_err(JournalError::Disk)?;
        }
        for number in scan.void {
            if scan.replaces.is_none_or(|first| number >= first) {
                journal.disk.remove(number).map_err(JournalError::Disk)?;
            }
        }
        journal.written += journal.promises.repair(&mut journal.disk)?;
        Ok(Opened {
            groups: found(&journal.promises, &journal.groups, scan.records),
            journal,
            torn: scan.torn,
            promise_repaired,
        })
    }

    /// Begins a journal again, in the place of one that is damaged or of which a group cannot use what
    /// there is: with the records of the groups that keep theirs, and none of the others. The
    /// segments of before are set aside, and the promises stay in force. Only for a replica whose
    /// other groups will come back as ones that have lost their state, and that has made sure it
    /// will know so after any crash from here on. A crash in the middle leaves the journal of before.
    ///
    /// # Errors
    /// When the storage fails, or the promises cannot be used either.
    ///
    /// # Panics
    /// When there is not one beginning for each group.
    pub fn begin_again(
        mut disk: D,
        identity: Identity,
        groups: &[GroupEpoch],
        segment_length: u64,
        beginnings: Vec<Beginning>,
    ) -> Result<Opened<D>, JournalError<D::Error>> {
        assert_eq!(groups.len(), beginnings.len(), "one for each group");
        let (mut promises, promise_repaired) = Promises::open(&mut disk, &identity, Some(groups))?;
        let groups: Vec<Group> = (groups.iter().zip(&beginnings))
            .map(|(of, beginning)| Group {
                of: *of,
                below: Slot(0),
                complete: match beginning {
                    Beginning::Kept(found) => found.complete,
                    Beginning::Empty { complete } => *complete,
                },
                left: false,
                count: 0,
            })
            .collect();
        // After a crash the table may stand beside either journal: before the mark it says of no group
        // that its records go back further than they do in one of them.
        let mut flags_fall = false;
        for (entry, group) in promises.entries.iter_mut().zip(&groups) {
            if group.of.group != GroupId(0) && entry.complete && !group.complete {
                (entry.complete, flags_fall) = (false, true);
            }
        }
        let numbers = disk.segments().map_err(JournalError::Disk)?;
        let marks = Marks::read_both(&mut disk, &identity)?;
        let first = match marks.0 {
            Marks::Newest(mark) => mark.first,
            Marks::NotKept | Marks::None | Marks::Lost => 0,
        };
        let number_first = numbers.last().copied().unwrap_or(0).max(first) + 1;
        let records = beginnings.into_iter().map(|beginning| match beginning {
            Beginning::Kept(found) => found.records,
            Beginning::Empty { .. } => Vec::new(),
        });
        let records: Vec<Vec<(Slot, Bytes)>> = records.collect();
        let keeps = records.iter().any(|records| !records.is_empty());
        let sequence_first = if keeps {
            // Until the mark says otherwise, the segments of before are the journal.
            assert!(marks.0 != Marks::NotKept, "this needs marks");
            let remains = remains::read(&mut disk, marks, |_| Ok(()))?;
            for number in remains.leftovers {
                disk.discard(number).map_err(JournalError::Disk)?;
            }
            remains
                .first_replacing
                .unwrap_or(crate::wire::NUMBER_END / 2)
        } else {
            1
        };
        let mut journal = Self {
            disk,
            identity,
            groups,
            injected: Injected::default(),
            promises,
            closed: VecDeque::new(),
            current: None,
            number_next: number_first,
            buffer_at: 0,
            buffer: Vec::new(),
            buffer_durable: 0,
            sequence_next: sequence_first,
            durable: sequence_first - 1,
            segment_length: segment_length.next_multiple_of(BLOCK as u64),
            written: 0,
            mark: None,
            mark_open: false,
        };
        if let Err(error) = journal.append_all(&records) {
            // They are of no use, and perhaps there is no room.
            for number in number_first..journal.number_next {
                let _ = journal.disk.discard(number);
            }
            return Err(error);
        }
        if flags_fall {
            journal.write_promises()?;
        }
        journal.mark = (marks.0 != Marks::NotKept).then_some(marks.0.number());
        // From the first mark on the new segments are the journal.
        journal.write_mark(true)?;
        journal.write_mark(true)?;
        (journal.disk.set_aside(number_first)).map_err(JournalError::Disk)?;
        // Records of groups that were left are gone, too.
        let mut table_changes = !journal.promises.left.is_empty();
        journal.promises.left.clear();
        for (entry, group) in journal.promises.entries.iter_mut().zip(&journal.groups) {
            if group.of.group != GroupId(0) && group.complete && !entry.complete {
                (entry.complete, table_changes) = (true, true);
            }
        }
        if table_changes {
            journal.write_promises()?;
        }
        journal.written += journal.promises.repair(&mut journal.disk)?;
        Ok(Opened {
            groups: found(&journal.promises, &journal.groups, records),
            journal,
            torn: false,
            promise_repaired,
        })
    }

    /// Writes the records of each group.
    fn append_all(&mut self, records: &[Vec<(Slot, Bytes)>]) -> Result<(), JournalError<D::Error>> {
        for (at, records) in records.iter().enumerate() {
            for (slot, record) in records {
                self.append_record(at, (*slot, false), record)?;
                if self.buffer.len() >= PIECE {
                    self.commit_records()?;
                }
            }
        }
        self.commit_records()
    }

    /// Tells how far all is durable, where damage of the journal does not reach.
    fn write_mark(&mut self, durable: bool) -> Result<(), JournalError<D::Error>> {
        let Some(number) = &mut self.mark else {
            return Ok(());
        };
        *number += 1;
        let oldest = self.closed.front().or(self.current.as_ref());
        let first = self.groups.iter().find(|of| of.of.group == GroupId(0));
        let mark = Mark {
            number: *number,
            durable: self.durable,
            first: oldest.map_or(self.number_next, |kept| kept.number),
            complete: first.is_none_or(|first| first.complete),
            group: self.groups.first().map_or(NO_GROUP, |first| first.of),
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

    /// Takes a write of a group over: it is durable after the next [`Self::commit`]. A promise
    /// becomes durable after the records of its group that came before it, and before those that
    /// come after it.
    ///
    /// # Errors
    /// [`JournalError::Full`] when there is no room for the record: the records before it are
    /// durable, the promises with the next commit, and the same write may be tried again. Else the
    /// storage has failed, and the journal must not be used any further.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn append(
        &mut self,
        group: GroupIndex,
        write: &Write,
    ) -> Result<(), JournalError<D::Error>> {
        let at = group.index();
        debug_assert!(!self.groups[at].left, "it is still in the group");
        match write {
            Write::Record { slot, record } => {
                if self.promises.waits(at) {
                    // Records after a promise may rely on it.
                    self.commit()?;
                }
                self.append_record(at, (*slot, false), record)
            }
            Write::Promise(promise) => self.promises.set(at, promise),
        }
    }

    fn append_record(
        &mut self,
        at: usize,
        (slot, is_log): (Slot, bool),
        record: &Bytes,
    ) -> Result<(), JournalError<D::Error>> {
        let length = format::record_length(record.len()) as u64;
        let end = self.buffer_at + self.buffer.len() as u64 + length;
        let of = self.groups[at].of;
        let plain = of.group == GroupId(0) && !is_log;
        let fits = |current: &Kept| end <= current.length && (plain || !current.plain);
        if !self.current.as_ref().is_some_and(fits) {
            let alone = self.groups.len() == 1;
            self.begin_segment(length, plain && alone)?;
        }
        let Some(current) = &mut self.current else {
            unreachable!("a segment was begun")
        };
        let number = current.number;
        let count = match current.plain {
            true => 0,
            false => format::next_count(self.groups[at].count),
        };
        if let Some(share) = current.shares.get_mut(at) {
            share.add(slot, length);
        } else {
            current.shares.resize(at + 1, Share::default());
            current.shares[at].add(slot, length);
        }
        let counts = (self.sequence_next, self.durable, count);
        self.groups[at].count = count;
        let buffer = &mut self.buffer;
        format::append_record_header(buffer, (number, of), counts, (slot, is_log), record);
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

    /// With the room of a record at least.
    fn begin_segment(&mut self, record: u64, plain: bool) -> Result<(), JournalError<D::Error>> {
        self.commit_records()?;
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
            plain,
            shares: smallvec![Share::default(); self.groups.len()],
        });
        self.buffer.clear();
        self.buffer_at = 0;
        self.buffer_durable = 0;
        let header = SegmentHeader {
            owner: self.identity,
            number,
            first: self.sequence_next,
            plain,
        };
        header.append_to(&mut self.buffer);
        Ok(())
    }

    /// Makes everything taken over so far durable: the records in one write, then the promises, in
    /// one write of each copy.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    pub fn commit(&mut self) -> Result<(), JournalError<D::Error>> {
        self.commit_records()?;
        self.written += self.promises.commit(&mut self.disk, &self.identity)?;
        Ok(())
    }

    fn commit_records(&mut self) -> Result<(), JournalError<D::Error>> {
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

    /// Records of a group below `below` are no longer needed: deletes the segments that hold none
    /// that any group needs.
    ///
    /// # Errors
    /// When the storage fails.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn trim(&mut self, group: GroupIndex, below: Slot) -> Result<(), JournalError<D::Error>> {
        let known = &mut self.groups[group.index()];
        known.below = known.below.max(below);
        if self.injected.is(Bug::SegmentTrimmedForAnotherGroup) {
            self.groups.iter_mut().for_each(|of| of.below = below);
        }
        self.sweep()
    }

    fn is_needed(&self, kept: &Kept) -> bool {
        let mut needs = self.groups.iter().zip(&kept.shares);
        needs.any(|(group, share)| share.end > group.below.0)
    }

    /// Deletes the oldest segments that no group needs.
    fn sweep(&mut self) -> Result<(), JournalError<D::Error>> {
        let mut removed = Vec::new();
        let mut flags_change = false;
        while let Some(kept) = self.closed.pop_front() {
            if self.is_needed(&kept) {
                self.closed.push_front(kept);
                break;
            }
            removed.push(kept.number);
            for (at, group) in self.groups.iter_mut().enumerate() {
                if group.complete && kept.share(at).end > 0 {
                    group.complete = false;
                    self.promises.entries[at].complete = false;
                    flags_change |= group.of.group != GroupId(0);
                }
            }
        }
        if removed.is_empty() {
            return Ok(());
        }
        // First: segments that are missing without this are damage.
        if flags_change {
            self.write_promises()?;
        }
        self.write_mark(true)?;
        for number in removed {
            self.disk.remove(number).map_err(JournalError::Disk)?;
        }
        Ok(())
    }

    /// From now on a group is in a later epoch, which begins with a state that is durable
    /// elsewhere. Records of its earlier epochs are not needed any more: segments without records
    /// of other groups are deleted, except the one being written.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    ///
    /// # Panics
    /// When the epoch is not a later one, or there is no such group.
    pub fn enter(
        &mut self,
        group: GroupIndex,
        epoch: EpochNumber,
    ) -> Result<(), JournalError<D::Error>> {
        let at = group.index();
        assert!(epoch > self.groups[at].of.epoch, "epochs ascend");
        self.commit()?;
        self.groups[at].of.epoch = epoch;
        // Slots begin again.
        self.groups[at].below = Slot(0);
        self.release(at);
        let entry = &mut self.promises.entries[at];
        (entry.of.epoch, entry.promise) = (epoch, None);
        self.skip(group)?;
        self.sweep()
    }

    /// The records of a group count no more.
    fn release(&mut self, at: usize) {
        for kept in self.closed.iter_mut().chain(&mut self.current) {
            kept.release(at);
        }
    }

    /// The records of a group no longer reach back to the beginning: a snapshot came from elsewhere,
    /// and nothing that it covers was written here.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn skip(&mut self, group: GroupIndex) -> Result<(), JournalError<D::Error>> {
        let at = group.index();
        if !core::mem::replace(&mut self.groups[at].complete, false) {
            return Ok(());
        }
        if self.groups[at].of.group == GroupId(0) {
            return self.write_mark(true);
        }
        self.promises.entries[at].complete = false;
        self.write_promises()
    }

    /// Makes the table of promises durable, whatever has changed in it.
    fn write_promises(&mut self) -> Result<(), JournalError<D::Error>> {
        // Promises that wait may rely on records that are not durable yet.
        self.commit_records()?;
        self.written += self.promises.write(&mut self.disk, &self.identity)?;
        Ok(())
    }

    /// The replica joins another group. If it was in that group before, this is a later epoch.
    ///
    /// # Panics
    /// When it is in the group, or the epoch is not a later one.
    pub fn join(&mut self, of: GroupEpoch) -> GroupIndex {
        let mut same = self
            .groups
            .iter()
            .filter(|known| known.of.group == of.group);
        assert!(same.all(|known| known.left), "it is in the group already");
        self.promises.join(of);
        self.groups.push(Group {
            of,
            below: Slot(0),
            complete: true,
            left: false,
            count: 0,
        });
        GroupIndex::new(self.groups.len() - 1)
    }

    /// The replica leaves a group: nothing of it is needed any more. Its place stays vacant.
    ///
    /// # Errors
    /// When the storage fails; the journal must not be used any further then.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn leave(&mut self, group: GroupIndex) -> Result<(), JournalError<D::Error>> {
        let at = group.index();
        self.groups[at].left = true;
        self.release(at);
        self.promises.entries[at].left = true;
        self.write_promises()?;
        self.sweep()
    }

    /// The groups that it keeps.
    pub fn groups(&self) -> impl Iterator<Item = GroupIndex> + use<D> {
        (0..self.groups.len()).map(GroupIndex::new)
    }

    /// The segments that a group needs. A group that needs far more than its own records is idle:
    /// it has to take a snapshot, or its records have to be brought forward.
    ///
    /// # Panics
    /// When there is no such group.
    #[must_use]
    pub fn held(&self, group: GroupIndex) -> Held {
        let at = group.index();
        let below = self.groups[at].below.0;
        let mut held = Held::default();
        for kept in &self.closed {
            let share = kept.share(at);
            if share.end > below {
                held.own += share.bytes;
            }
            if held.own > 0 {
                held.bytes += kept.length;
            }
        }
        held
    }

    /// Writes the needed records of a group again, as one record, and releases the segments in which
    /// they were: for a group that cannot take a snapshot. False, and nothing is done, when they
    /// are longer than [`FORWARD_MAX`].
    ///
    /// # Errors
    /// As [`Self::append`]; also when a durable record cannot be read any more.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn bring_forward(&mut self, group: GroupIndex) -> Result<bool, JournalError<D::Error>> {
        let at = group.index();
        let Group { of, below, .. } = self.groups[at];
        // Only durable records can be read.
        self.commit()?;
        let segments = self.closed.iter().chain(&self.current);
        let needed: Vec<(u64, Share)> = segments
            .map(|kept| (kept.number, kept.share(at)))
            .filter(|(_, share)| share.end > below.0)
            .collect();
        let bytes: u64 = needed.iter().map(|(_, share)| share.bytes).sum();
        if bytes > FORWARD_MAX {
            return Ok(false);
        }
        let mut records = Vec::new();
        for (number, share) in needed {
            self.read_share(number, of, share, &mut records)?;
        }
        records.retain(|(slot, _)| *slot >= below);
        let Some(last) = records.iter().map(|(slot, _)| *slot).max() else {
            return Ok(true);
        };
        if below > Slot(0) {
            // Records below are left behind.
            self.skip(group)?;
        }
        let log = format::pack(&records);
        self.append_record(at, (last, true), &log)?;
        self.commit()?;
        // It is durable: the old ones count no more.
        self.release(at);
        if let Some(current) = &mut self.current {
            current.shares[at].add(last, format::record_length(log.len()) as u64);
        }
        self.sweep()?;
        Ok(true)
    }

    /// The records of a group in a segment, which must be those of its share.
    fn read_share(
        &mut self,
        segment: u64,
        of: GroupEpoch,
        share: Share,
        records: &mut Vec<(Slot, Bytes)>,
    ) -> Result<(), JournalError<D::Error>> {
        let bytes = self.disk.read(segment).map_err(JournalError::Disk)?;
        let (mut at, mut next, mut found) = (BLOCK, 0, 0);
        while let Some(record) = read_record(&bytes, segment, at) {
            if next > 0 && next != record.sequence {
                break;
            }
            at += record.length;
            next = record.sequence + 1;
            if record.of != of {
                continue;
            }
            found += record.length as u64;
            if !record.is_log {
                records.push((record.slot, record.payload));
            } else if let Some(log) = format::unpack(record.payload) {
                (*records, found) = (log, record.length as u64);
            }
        }
        if found == share.bytes {
            return Ok(());
        }
        Err(JournalError::Damaged {
            segment,
            offset: at as u64,
            sequence: next,
        })
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
