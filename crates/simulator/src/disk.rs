//! One process's disk: the journal's bytes, written by the journal's own code, and the newest two
//! snapshots.
//!
//! ```text
//!   Journal{id, write}, Trim ──► waiting ──(sync: latency)──► Journal<Files> ──► sectors
//!                                   │ crash: of a sync in progress a drawn part has reached the
//!                                   │ disk, sector by sector; what waits behind it is lost
//!   SnapshotBegin, Append, Finish ──(latency)──► saved; of the saved ones two are kept
//! ```
//!
//! The files are bytes, so that damage is damage of bytes and recovery is the journal's own.
//! [`Files`] can lose power in the middle of a write, fail a sync, be full, and rot. Reads of
//! what was damaged meet the checksums of the product, nothing else.

mod epochs;
mod open;
mod snapshots;

use self::open::OpenFiles;
use crate::{random::Random, stored_epoch::StoredEpoch};
use quintet_replica::{
    Bytes, Descriptor, Durability, EpochNumber, Executed, GroupIndex, Injected, PersistId,
    RecoveredBytes, Slot, SnapshotChunk, SnapshotInfo, SnapshotLeft, SnapshotReader, SnapshotScan,
    Time, Write,
    journal::{
        BLOCK, Beginning, Disk as JournalDisk, Found as InJournal, GroupEpoch, Identity, Journal,
        JournalError, MARK_SLOT, RECORD_HEADER, RecordInfo,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    cell::{RefCell, RefMut},
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// The unit that a disk writes as a whole or not at all.
const SECTOR: usize = 512;
/// The one group of the process.
const ONLY: GroupIndex = GroupIndex(0);
/// Removed segments kept for reuse, as the runtime does.
const SPARES_MAX: usize = 2;

/// How a disk behaves in a seed. Times are nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DiskProfile {
    /// A sync takes from this …
    pub sync_min: u64,
    /// … to this long.
    pub sync_max: u64,
    /// The length of the journal's segments in bytes.
    pub segment_length: u64,
}

/// Why the simulated storage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiskError {
    /// The process died in the middle of it.
    #[error("the power went")]
    PowerLost,
    /// A sync failed; the written part is unknown.
    #[error("the sync failed")]
    SyncFailed,
    /// There is no room for a new file.
    #[error("the disk is full")]
    Full,
}

/// How the writes of an interrupted sync end.
#[derive(Debug)]
struct Fuse {
    /// This many operations still succeed; of the next one, a drawn part.
    left: u64,
    /// Of 1,000 sectors of that one, this many arrive.
    sectors: u64,
    error: DiskError,
    random: Random,
}

#[derive(Clone, Debug)]
struct Segment {
    bytes: Vec<u8>,
    /// The contents of the file when it became this segment.
    before: Vec<u8>,
    /// Nothing was written at or behind this.
    end: usize,
}

#[derive(Debug, Default)]
struct Contents {
    segments: BTreeMap<u64, Segment>,
    spares: Vec<Vec<u8>>,
    promises: [Vec<u8>; 2],
    /// The durable marks, and those written since.
    marks: [Vec<u8>; 2],
    marks_written: [Option<Vec<u8>>; 2],
    fuse: Option<Fuse>,
    full: bool,
    /// The segment written last, and where that write began: all before is known to be durable
    /// by what was written later.
    last: Option<(u64, usize)>,
    /// Writes of recovery prove nothing.
    opening: bool,
    /// An injected bug: a sync that fails is tried again, and then succeeds.
    retries_syncs: bool,
}

impl Contents {
    /// Blocks with records that later records prove durable.
    fn proven(&self) -> Vec<(u64, usize)> {
        let Some((last, offset)) = self.last else {
            return Vec::new();
        };
        let mut blocks = Vec::new();
        for (number, segment) in self.segments.range(..=last) {
            let end = if *number == last { offset } else { segment.end };
            blocks.extend((0..end).step_by(BLOCK).map(|at| (*number, at)));
        }
        blocks
    }

    fn block(&mut self, (segment, at): (u64, usize)) -> Option<(&mut [u8], &[u8])> {
        let segment = self.segments.get_mut(&segment)?;
        let before = segment.before.get(at..at + BLOCK)?;
        Some((segment.bytes.get_mut(at..at + BLOCK)?, before))
    }

    /// Lets an operation through that cannot be torn, or refuses it.
    fn burn(&mut self) -> Result<(), DiskError> {
        if let Some(fuse) = &mut self.fuse {
            fuse.left = fuse.left.checked_sub(1).ok_or(fuse.error)?;
        }
        Ok(())
    }

    /// Lets an operation on `target` through, tears it, or refuses it.
    fn write(
        &mut self,
        write: impl FnOnce(&mut Self) -> &mut [u8],
        bytes: &[u8],
    ) -> Result<(), DiskError> {
        let Some(mut fuse) = self.fuse.take() else {
            write(self).copy_from_slice(bytes);
            return Ok(());
        };
        let error = fuse.error;
        if fuse.left == 0 {
            if self.retries_syncs && error == DiskError::SyncFailed {
                return Ok(());
            }
            self.fuse = Some(fuse);
            return Err(error);
        }
        fuse.left -= 1;
        if fuse.left > 0 {
            write(self).copy_from_slice(bytes);
            self.fuse = Some(fuse);
            return Ok(());
        }
        let target = write(self);
        // In order up to a point, or each sector by itself: controllers do both.
        let in_order = fuse.random.chance(500);
        let sectors = bytes.len().div_ceil(SECTOR) as u64;
        let point = fuse.random.below(sectors + 1);
        for (index, (into, from)) in target
            .chunks_mut(SECTOR)
            .zip(bytes.chunks(SECTOR))
            .enumerate()
        {
            let arrives = match in_order {
                true => (index as u64) < point,
                false => fuse.random.chance(fuse.sectors),
            };
            if arrives {
                into.copy_from_slice(from);
            }
        }
        if self.retries_syncs && error == DiskError::SyncFailed {
            return Ok(());
        }
        self.fuse = Some(fuse);
        Err(error)
    }
}

/// The files of one process; they outlive it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(Rc<RefCell<Contents>>);

impl Files {
    fn contents(&self) -> RefMut<'_, Contents> {
        self.0.borrow_mut()
    }

    /// From some operation on nothing reaches the disk any more.
    pub fn blow(&self, error: DiskError, random: &mut Random) {
        self.contents().fuse = Some(Fuse {
            left: random.between(0, 4),
            sectors: [0, 300, 900][random.index(3)],
            error,
            random: Random::new(random.draw()),
        });
    }

    /// The process has died: the disk works again, and marks that were not synced may be gone.
    pub fn died(&self, random: &mut Random) {
        let mut contents = self.contents();
        for slot in 0..2 {
            if let Some(mark) = contents.marks_written[slot].take()
                && random.chance(500)
            {
                contents.marks[slot] = mark;
            }
        }
        contents.fuse = None;
    }

    /// Recovery begins, whose writes prove nothing, or is done.
    pub fn recovers(&self, opening: bool) {
        self.contents().opening = opening;
    }

    /// Damages a block of the journal whose records are known to be durable, so that their loss
    /// can be told from an unfinished write. False when there is none.
    pub fn damage(&self, damage: Damage, random: &mut Random) -> bool {
        let mut contents = self.contents();
        let blocks = contents.proven();
        if blocks.is_empty() {
            return false;
        }
        let at = blocks[random.index(blocks.len())];
        if damage == Damage::Misdirected {
            let to = blocks[random.index(blocks.len())];
            let Some(written) = contents.block(at).map(|(block, _)| block.to_vec()) else {
                return false;
            };
            if let Some((block, _)) = contents.block(to).filter(|_| to != at) {
                block.copy_from_slice(&written);
            }
        }
        let Some((block, before)) = contents.block(at) else {
            return false;
        };
        if damage == Damage::Rot {
            rot(block, random);
        } else {
            block.copy_from_slice(before);
        }
        true
    }

    /// Inverts a bit of a record that is known to be durable, at this place of the journal. False when
    /// it is not known to be.
    pub fn damage_record(&self, record: &RecordInfo, random: &mut Random) -> bool {
        let mut contents = self.contents();
        let length = RECORD_HEADER + record.length as usize;
        let (begin, end) = (record.offset as usize, record.offset as usize + length);
        let Some((last, offset)) = contents.last else {
            return false;
        };
        if (record.segment, end) > (last, offset) {
            return false;
        }
        let Some(segment) = contents.segments.get_mut(&record.segment) else {
            return false;
        };
        segment.bytes[random.between(begin as u64, end as u64 - 1) as usize] ^=
            1 << random.below(8);
        true
    }

    /// Loses a segment that is known to have been durable. False when there is none.
    pub fn lose_segment(&self, random: &mut Random) -> bool {
        let mut contents = self.contents();
        let last = contents.last.map_or(0, |(last, _)| last);
        let numbers: Vec<u64> = contents.segments.range(..last).map(|(n, _)| *n).collect();
        if numbers.is_empty() {
            return false;
        }
        contents
            .segments
            .remove(&numbers[random.index(numbers.len())]);
        true
    }
}

impl JournalDisk for Files {
    type Error = DiskError;

    fn segments(&mut self) -> Result<Vec<u64>, DiskError> {
        Ok(self.contents().segments.keys().copied().collect())
    }

    fn read(&mut self, segment: u64) -> Result<Bytes, DiskError> {
        let contents = self.contents();
        let bytes = contents.segments.get(&segment).map(|s| &s.bytes[..]);
        Ok(Bytes::copy_from_slice(bytes.unwrap_or_default()))
    }

    fn create(&mut self, segment: u64, length: u64) -> Result<(), DiskError> {
        let mut contents = self.contents();
        let length = length as usize;
        if contents.full {
            return Err(DiskError::Full);
        }
        contents.burn()?;
        let spare = contents
            .spares
            .iter()
            .position(|spare| spare.len() == length);
        let bytes = match spare {
            Some(at) => contents.spares.remove(at),
            None => vec![0; length],
        };
        let before = bytes.clone();
        let made = Segment {
            bytes,
            before,
            end: 0,
        };
        contents.segments.insert(segment, made);
        Ok(())
    }

    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut contents = self.contents();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        let Some(known) = contents.segments.get_mut(&segment) else {
            return Err(DiskError::SyncFailed);
        };
        known.end = known.end.max(end);
        contents.write(
            |contents| match contents.segments.get_mut(&segment) {
                Some(segment) => &mut segment.bytes[start..end],
                None => &mut [],
            },
            bytes,
        )?;
        if !contents.opening {
            contents.last = Some((segment, start));
        }
        Ok(())
    }

    fn remove(&mut self, segment: u64) -> Result<(), DiskError> {
        let mut contents = self.contents();
        contents.burn()?;
        if let Some(removed) = contents.segments.remove(&segment)
            && contents.spares.len() < SPARES_MAX
        {
            contents.spares.push(removed.bytes);
        }
        Ok(())
    }

    fn discard(&mut self, segment: u64) -> Result<(), DiskError> {
        let mut contents = self.contents();
        contents.burn()?;
        contents.segments.remove(&segment);
        Ok(())
    }

    fn read_promise(&mut self, slot: usize) -> Result<Bytes, DiskError> {
        Ok(Bytes::copy_from_slice(&self.contents().promises[slot]))
    }

    fn write_promise(&mut self, slot: usize, bytes: &[u8]) -> Result<(), DiskError> {
        let mut contents = self.contents();
        let length = contents.promises[slot].len().max(bytes.len());
        contents.promises[slot].resize(length, 0);
        contents.write(
            |contents| &mut contents.promises[slot][..bytes.len()],
            bytes,
        )
    }

    fn read_mark(&mut self, slot: usize) -> Result<Option<Bytes>, DiskError> {
        let contents = self.contents();
        let mark = contents.marks_written[slot].as_ref();
        let mut mark = mark.unwrap_or(&contents.marks[slot]).clone();
        mark.resize(MARK_SLOT, 0);
        Ok(Some(mark.into()))
    }

    fn write_mark(&mut self, slot: usize, bytes: &[u8], durable: bool) -> Result<(), DiskError> {
        let mut contents = self.contents();
        if !durable {
            contents.marks_written[slot] = Some(bytes.to_vec());
            return Ok(());
        }
        // A sync of the file takes the other slot along.
        for slot in 0..2 {
            if let Some(mark) = contents.marks_written[slot].take() {
                contents.marks[slot] = mark;
            }
        }
        contents.marks[slot].resize(MARK_SLOT, 0);
        contents.write(|contents| &mut contents.marks[slot], bytes)
    }

    fn set_aside(&mut self, below: u64) -> Result<(), DiskError> {
        let mut contents = self.contents();
        contents.segments.retain(|number, _| *number >= below);
        contents.last.take_if(|(number, _)| *number < below);
        Ok(())
    }

    fn is_full(error: &DiskError) -> bool {
        *error == DiskError::Full
    }
}

/// How bytes at rest go bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Bits change, or a sector becomes unreadable.
    Rot,
    /// A write that was confirmed never happened: the block holds what it held before.
    Lost,
    /// A write went to another block, which holds it now.
    Misdirected,
}

#[derive(Debug)]
enum Order {
    Write(PersistId, Write),
    Trim(Slot),
    /// A snapshot came from a peer: what it covers was never written here.
    Skip,
    /// Another epoch begins.
    Enter(EpochNumber),
}

/// A snapshot on the disk.
#[derive(Clone, Debug)]
struct Kept {
    info: SnapshotInfo,
    bytes: Bytes,
    /// It came from a peer.
    fetched: bool,
    /// It was begun in the epoch before, and leads to where this one begins.
    bridges: bool,
    /// It is on the disk, not only in the system's memory.
    durable: bool,
}

impl Kept {
    /// Whether it can be read to its end.
    fn is_whole(&self) -> bool {
        let mut reader = SnapshotReader::default();
        reader.feed(&self.bytes);
        loop {
            match reader.next_chunk() {
                Ok(Some(SnapshotChunk::Header(header))) => {
                    if header.executed != self.info.id && !self.bridges {
                        return false;
                    }
                }
                Ok(Some(
                    SnapshotChunk::Sessions(_) | SnapshotChunk::State(_) | SnapshotChunk::Feed(_),
                )) => {}
                Ok(Some(SnapshotChunk::End)) => return true,
                Ok(None) | Err(_) => return false,
            }
        }
    }
}

/// The outcome of a sync.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    /// Up to which write all is durable.
    pub upto: Option<PersistId>,
    /// How long the next sync takes, if more was written meanwhile.
    pub again: Option<u64>,
    /// A write found no room; it is tried again.
    pub stuck: bool,
}

/// The effect of a crash or a failed sync on the writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    /// Writes handed over and not durable.
    pub writes: usize,
    /// A sync was in progress.
    pub in_sync: bool,
}

/// The data that a process finds on its disk.
pub(crate) struct Found {
    pub recovered: RecoveredBytes,
    /// An unfinished write was cut off.
    pub torn: bool,
    /// One copy of the promises was bad.
    pub promise_repaired: bool,
    /// Something that was durable is gone: it was set aside.
    pub lost: bool,
    /// A damaged snapshot was set aside.
    pub snapshot_bad: bool,
}

/// How long a write that found no room waits.
const RETRY: u64 = 200_000_000;

/// See the module.
pub(crate) struct Disk {
    profile: DiskProfile,
    /// Syncs take this many times longer.
    pub slow: u64,
    /// Of 1,000 syncs this many take longer, by up to this many nanoseconds more.
    pub late: (u64, u64),
    /// The late syncs since the last query.
    lates: u64,
    /// Syncs do not end.
    pub held: bool,
    /// One would have.
    pub sync_waits: bool,
    bug: Injected,
    files: Files,
    /// Open while the process runs.
    journal: Option<Journal<Files>>,
    waiting: VecDeque<Order>,
    /// How many of `waiting` the sync in progress covers.
    syncing: Option<usize>,
    /// The next sync fails.
    fails: bool,
    /// Oldest first.
    snapshots: Vec<Kept>,
    open: OpenFiles,
    writing: Option<(Executed, bool, Vec<u8>)>,
    /// It is to outlive the process.
    durable: bool,
    /// The part that an earlier run left of a peer's.
    left: Option<(SnapshotLeft, Vec<u8>)>,
    /// The part that may be trimmed once another snapshot can stand in for the named one.
    trims: Vec<(Executed, Slot)>,
    stuck: bool,
    /// The snapshot in progress is whole and being made durable.
    finishing: bool,
    /// It leads into the next epoch.
    bridging: bool,
    pub epoch: StoredEpoch,
    /// The slots of the records that are still needed.
    needed: VecDeque<Slot>,
    /// Most records ever needed at once.
    pub records_max: usize,
}

impl Disk {
    pub fn new(profile: DiskProfile) -> Self {
        Self {
            profile,
            slow: 1,
            late: (0, 0),
            lates: 0,
            held: false,
            sync_waits: false,
            bug: Injected::default(),
            files: Files::default(),
            journal: None,
            waiting: VecDeque::new(),
            syncing: None,
            fails: false,
            snapshots: Vec::new(),
            open: OpenFiles::default(),
            writing: None,
            durable: true,
            left: None,
            trims: Vec::new(),
            stuck: false,
            finishing: false,
            bridging: false,
            epoch: None,
            needed: VecDeque::new(),
            records_max: 0,
        }
    }

    fn latency(&mut self, random: &mut Random) -> u64 {
        let latency = random.between(self.profile.sync_min, self.profile.sync_max) * self.slow;
        let (share, longest) = self.late;
        if share == 0 || !random.chance(share) {
            return latency;
        }
        self.lates += 1;
        latency + random.below(longest)
    }

    /// How many syncs have taken long since the last call.
    pub const fn take_lates(&mut self) -> u64 {
        std::mem::replace(&mut self.lates, 0)
    }

    // --- journal ---------------------------------------------------------------------------

    /// Switches an injected bug on.
    pub fn bug(&mut self, bug: Injected, retries_syncs: bool) {
        self.bug = bug;
        self.files.contents().retries_syncs = retries_syncs;
    }

    /// The process starts: recovers what is there, as the runtime does. Durable data that cannot be
    /// read is set aside when others can bring it back. `state_lost`: it has lost its state anyway.
    pub fn open(
        &mut self,
        (identity, group): (Identity, GroupEpoch),
        first_boot: bool,
        state_lost: bool,
        (durability, others_suffice): (Durability, bool),
    ) -> Result<Found, JournalError<DiskError>> {
        let bad_from = (self.snapshots.iter().rposition(Kept::is_whole)).map_or(0, |good| good + 1);
        let bad = self.snapshots.split_off(bad_from);
        // In memory durability there is nothing that the journal must go back to.
        let good = !self.snapshots.is_empty() || durability == Durability::Memory;
        self.files.contents().opening = true;
        let length = self.profile.segment_length;
        let (files, bug) = (self.files.clone(), self.bug);
        let opened = Journal::open_injected(files, identity, &[group], length, bug);
        let gap = bad.iter().any(|kept| kept.fetched);
        let (mut opened, lost) = match opened {
            Ok(opened) if !gap && (good || opened.groups[0].complete) => (opened, false),
            Err(error) if !error.is_damage() || !others_suffice => return Err(error),
            Ok(_) if !others_suffice => {
                // As good as any other word for a journal that does not go back far enough.
                let (segment, expected, found) = (0, 1, 0);
                return Err(JournalError::Gap {
                    segment,
                    expected,
                    found,
                });
            }
            _ => {
                // The log that led from an older snapshot to the newest good one goes away.
                let older = self.snapshots.len().saturating_sub(1);
                self.snapshots.drain(..older);
                let files = self.files.clone();
                let empty = vec![Beginning::Empty { complete: !good }];
                (
                    Journal::begin_again(files, identity, &[group], length, empty)?,
                    true,
                )
            }
        };
        self.files.contents().opening = false;
        self.journal = Some(opened.journal);
        let InJournal {
            promise, records, ..
        } = opened.groups.remove(0);
        self.needed = records.iter().map(|(slot, _)| *slot).collect();
        Ok(Found {
            recovered: RecoveredBytes {
                first_boot,
                state_lost: state_lost || lost,
                promise,
                checkpoint: None,
                records,
            },
            torn: opened.torn,
            promise_repaired: opened.promise_repaired,
            lost,
            snapshot_bad: !bad.is_empty(),
        })
    }

    /// Hands a write over. When no sync is in progress one begins; gives how long it takes.
    pub fn append(&mut self, id: PersistId, write: Write, random: &mut Random) -> Option<u64> {
        self.waiting.push_back(Order::Write(id, write));
        self.begin_sync(random)
    }

    fn begin_sync(&mut self, random: &mut Random) -> Option<u64> {
        if self.syncing.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.syncing = Some(self.waiting.len());
        Some(self.latency(random))
    }

    /// Nothing below `below` is needed, given the newest snapshot. Should that be damaged, the one
    /// before it needs more: it goes when another can stand in.
    pub fn trim(&mut self, below: Slot, random: &mut Random) -> Option<u64> {
        match self.snapshot_newest() {
            Some(newest) => self.trims.push((newest.id, below)),
            None => self.waiting.push_back(Order::Trim(below)),
        }
        self.trim_due(random)
    }

    fn trim_due(&mut self, random: &mut Random) -> Option<u64> {
        // Until its epoch has begun, a bridge stands in for nothing.
        if let Some(newest) = self.snapshots.last().filter(|kept| !kept.bridges) {
            let (id, fetched) = (newest.info.id, newest.fetched);
            let due = (self.trims.iter())
                .filter(|(of, _)| fetched || id > *of)
                .map(|(_, below)| *below)
                .max();
            self.trims.retain(|(of, _)| !fetched && id <= *of);
            self.waiting.extend(due.map(Order::Trim));
        }
        self.begin_sync(random)
    }

    /// The sync in progress is done.
    ///
    /// # Errors
    /// When the storage failed: the process must stop.
    pub fn synced(&mut self, random: &mut Random) -> Result<Synced, JournalError<DiskError>> {
        let count = self.syncing.take().unwrap_or(0);
        if self.fails {
            self.fails = false;
            self.files.blow(DiskError::SyncFailed, random);
        }
        let upto = self.carry_out(count)?;
        if self.waiting.is_empty()
            && random.chance(200)
            && let Some(journal) = &mut self.journal
        {
            journal.settle()?;
        }
        let again = match self.stuck {
            true => {
                self.syncing = Some(self.waiting.len());
                Some(RETRY)
            }
            false => self.begin_sync(random),
        };
        let stuck = self.stuck;
        Ok(Synced { upto, again, stuck })
    }

    fn carry_out(&mut self, count: usize) -> Result<Option<PersistId>, JournalError<DiskError>> {
        let Some(journal) = &mut self.journal else {
            return Ok(None);
        };
        let mut upto = None;
        let mut trim = None;
        self.stuck = false;
        for _ in 0..count {
            let Some(order) = self.waiting.pop_front() else {
                break;
            };
            match &order {
                Order::Write(id, write) => {
                    match journal.append(ONLY, write) {
                        Ok(()) => {}
                        Err(JournalError::Full(_)) => {
                            self.waiting.push_front(order);
                            self.stuck = true;
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                    if let Write::Record { slot, .. } = write {
                        self.needed.push_back(*slot);
                    }
                    upto = Some(*id);
                }
                Order::Trim(below) => trim = Some(*below),
                Order::Skip => journal.skip(ONLY)?,
                Order::Enter(epoch) => {
                    journal.enter(ONLY, *epoch)?;
                    self.needed.clear();
                    trim = None;
                }
            }
        }
        journal.commit()?;
        self.records_max = self.records_max.max(self.needed.len());
        if let Some(below) = trim {
            journal.trim(ONLY, below)?;
            while self.needed.front().is_some_and(|slot| *slot < below) {
                self.needed.pop_front();
            }
        }
        Ok(upto)
    }

    /// The process died. Synced writes stay; of a sync in progress a drawn part reached the disk.
    pub fn crash(&mut self, random: &mut Random) -> Loss {
        (self.held, self.sync_waits) = (false, false);
        let is_write = |order: &&Order| matches!(order, Order::Write(..));
        let loss = Loss {
            writes: self.waiting.iter().filter(is_write).count(),
            in_sync: self.syncing.is_some(),
        };
        if let Some(count) = self.syncing.take() {
            self.files.blow(DiskError::PowerLost, random);
            // The next start sees the effect.
            let _ = self.carry_out(count);
        }
        self.files.died(random);
        self.close();
        // The rename may have been made durable before anybody was told.
        if self.finishing
            && random.chance(500)
            && let Some((id, ..)) = &self.writing
        {
            let id = *id;
            self.keep_snapshot(id);
        }
        self.snapshots.retain(|kept| kept.durable);
        if let Some((_, true, bytes)) = self.writing.take() {
            self.left = left_of(bytes);
        }
        self.finishing = false;
        loss
    }

    fn close(&mut self) {
        self.files.contents().fuse = None;
        self.trims.clear();
        self.stuck = false;
        self.journal = None;
        self.waiting.clear();
        self.syncing = None;
        self.fails = false;
        self.open = OpenFiles::default();
    }

    /// Everything but the promise is gone: a restart in memory durability.
    pub fn forget(&mut self) {
        self.snapshots.clear();
    }

    /// Everything is gone.
    pub fn wipe(&mut self) {
        self.files = Files::default();
        self.snapshots.clear();
        self.left = None;
        self.epoch = None;
    }

    // --- faults ----------------------------------------------------------------------------

    /// The next sync fails.
    pub const fn fail_next(&mut self) {
        self.fails = true;
    }

    /// Whether a failure waits for the next sync.
    pub fn is_failing(&self) -> bool {
        self.fails || self.files.contents().fuse.is_some()
    }

    /// There is no room for new files, or there is again.
    pub fn set_full(&mut self, full: bool) {
        self.files.contents().full = full;
    }

    pub fn is_full(&self) -> bool {
        self.files.contents().full
    }

    /// As [`Files::damage`].
    pub fn damage_journal(&mut self, damage: Damage, random: &mut Random) -> bool {
        self.files.damage(damage, random)
    }

    /// Damages one copy of the promises, or both. False when there are none.
    pub fn damage_promise(&mut self, both: bool, random: &mut Random) -> bool {
        let mut contents = self.files.contents();
        if contents.promises.iter().any(Vec::is_empty) {
            return false;
        }
        let first = random.index(2);
        for slot in 0..2 {
            if both || slot == first {
                rot(&mut contents.promises[slot], random);
            }
        }
        true
    }

    /// Damages the newest snapshot. False when there is none.
    pub fn damage_snapshot(&mut self, random: &mut Random) -> bool {
        let Some(kept) = self.snapshots.last_mut() else {
            return false;
        };
        let mut copy = kept.bytes.to_vec();
        rot(&mut copy, random);
        kept.bytes = copy.into();
        true
    }
}

/// The usable part of a snapshot whose last bytes did not reach the disk.
fn left_of(mut bytes: Vec<u8>) -> Option<(SnapshotLeft, Vec<u8>)> {
    bytes.truncate(bytes.len() - bytes.len() % 97);
    let mut scan = SnapshotScan::default();
    scan.feed(&bytes);
    Some((scan.left()?, bytes))
}

/// Inverts bits, or fills a sector with something else.
fn rot(bytes: &mut [u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    if random.chance(700) {
        for _ in 0..random.between(1, 3) {
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        return;
    }
    let at = random.index(bytes.len()) / SECTOR * SECTOR;
    let end = bytes.len().min(at + SECTOR);
    let fill = random.draw() as u8;
    for byte in &mut bytes[at..end] {
        *byte = byte.wrapping_add(fill | 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{ClusterId, EpochNumber, GroupId, ReplicaId};

    fn identity() -> (Identity, GroupEpoch) {
        let identity = Identity {
            cluster: ClusterId(1),
            node: ReplicaId(0),
        };
        let group = GroupEpoch {
            group: GroupId(0),
            epoch: EpochNumber(1),
        };
        (identity, group)
    }

    fn opened(disk: &mut Disk) -> Result<Found, JournalError<DiskError>> {
        disk.open(identity(), false, false, (Durability::Disk, false))
    }

    fn disk() -> Disk {
        let mut disk = Disk::new(DiskProfile {
            sync_min: 10,
            sync_max: 10,
            segment_length: 16 << 10,
        });
        assert!(opened(&mut disk).is_ok());
        disk
    }

    fn record(slot: u64) -> Write {
        Write::Record {
            slot: Slot(slot),
            record: Bytes::from(vec![slot as u8; 700]),
        }
    }

    fn slots(found: &Found) -> Vec<u64> {
        let records = found.recovered.records.iter();
        records.map(|(slot, _)| slot.0).collect()
    }

    #[test]
    fn sync_covers_what_was_written_before_it_began() {
        let (mut disk, mut random) = (disk(), Random::new(1));
        assert_eq!(disk.append(PersistId(1), record(1), &mut random), Some(10));
        assert_eq!(disk.append(PersistId(2), record(2), &mut random), None);
        let synced = |upto, again| {
            Ok(Synced {
                upto: Some(PersistId(upto)),
                again,
                stuck: false,
            })
        };
        assert_eq!(disk.synced(&mut random), synced(1, Some(10)));
        assert_eq!(disk.synced(&mut random), synced(2, None));
    }

    #[test]
    fn crash_keeps_synced_writes_and_part_of_sync_in_progress() {
        let (mut kept, mut torn) = ([false; 6], false);
        for seed in 0..300 {
            let (mut disk, mut random) = (disk(), Random::new(seed));
            disk.append(PersistId(1), record(1), &mut random);
            assert!(disk.synced(&mut random).is_ok());
            disk.append(PersistId(2), record(2), &mut random);
            for slot in 3..=5 {
                disk.append(PersistId(slot), record(slot), &mut random);
            }
            if seed % 2 == 0 {
                assert!(disk.synced(&mut random).is_ok());
            }
            let loss = disk.crash(&mut random);
            assert!(loss.in_sync);
            let found = opened(&mut disk).expect("no damage");
            let slots = slots(&found);
            assert_eq!(slots, (1..=slots.len() as u64).collect::<Vec<_>>());
            kept[slots.len()] = true;
            torn |= found.torn;
        }
        assert!(!kept[0]);
        assert!(kept[1..].iter().all(|seen| *seen), "{kept:?}");
        assert!(torn);
    }

    #[test]
    fn every_damage_before_the_last_sync_is_told_from_a_torn_tail() {
        for damage in [Damage::Rot, Damage::Lost, Damage::Misdirected] {
            let mut noticed = 0;
            for seed in 0..100 {
                let (mut disk, mut random) = (disk(), Random::new(seed));
                for slot in 1..=40 {
                    disk.append(PersistId(slot), record(slot), &mut random);
                    assert!(disk.synced(&mut random).is_ok());
                }
                assert!(disk.damage_journal(damage, &mut random));
                disk.append(PersistId(41), record(41), &mut random);
                disk.crash(&mut random);
                match opened(&mut disk) {
                    Ok(found) => assert!(slots(&found).len() >= 40, "seed {seed} {damage:?}"),
                    Err(JournalError::Damaged { .. } | JournalError::Gap { .. }) => noticed += 1,
                    Err(error) => panic!("seed {seed} {damage:?}: {error}"),
                }
            }
            assert!(noticed > 60, "{damage:?}: {noticed}");
        }
    }

    #[test]
    fn failed_sync_stops_the_process_and_loses_nothing_synced() {
        for seed in 0..50 {
            let (mut disk, mut random) = (disk(), Random::new(seed));
            disk.append(PersistId(1), record(1), &mut random);
            assert!(disk.synced(&mut random).is_ok());
            disk.fail_next();
            let mut failed = None;
            for slot in 2..60 {
                disk.append(PersistId(slot), record(slot), &mut random);
                if let Err(error) = disk.synced(&mut random) {
                    failed = Some((slot, error));
                    break;
                }
            }
            let (slot, error) = failed.expect("it fails");
            assert_eq!(error, JournalError::Disk(DiskError::SyncFailed));
            disk.crash(&mut random);
            let found = opened(&mut disk).expect("opens");
            assert!(slots(&found).len() as u64 >= slot - 1);
        }
    }

    #[test]
    fn item_without_room_waits() {
        let (mut disk, mut random) = (disk(), Random::new(1));
        disk.append(PersistId(1), record(1), &mut random);
        assert!(disk.synced(&mut random).is_ok());
        disk.set_full(true);
        let mut upto = 1;
        for slot in 2..60 {
            if disk
                .append(PersistId(slot), record(slot), &mut random)
                .is_some()
            {
                let synced = disk.synced(&mut random).expect("no failure");
                upto = synced.upto.map_or(upto, |id| id.0);
            }
        }
        assert!(disk.stuck && upto < 59);
        disk.set_full(false);
        let mut upto = None;
        loop {
            let synced = disk.synced(&mut random).expect("no failure");
            assert!(!synced.stuck);
            upto = upto.max(synced.upto);
            if synced.again.is_none() {
                break;
            }
        }
        assert_eq!(upto, Some(PersistId(59)));
    }

    #[test]
    fn one_bad_copy_of_the_promises_is_repaired_and_two_are_refused() {
        for both in [false, true] {
            let (mut disk, mut random) = (disk(), Random::new(1));
            assert!(!disk.damage_promise(both, &mut random));
            disk.append(
                PersistId(1),
                Write::Promise(Bytes::from("mine")),
                &mut random,
            );
            assert!(disk.synced(&mut random).is_ok());
            disk.crash(&mut random);
            assert!(disk.damage_promise(both, &mut random));
            match opened(&mut disk) {
                Ok(found) => {
                    assert!(!both && found.promise_repaired);
                    assert_eq!(found.recovered.promise.as_deref(), Some(&b"mine"[..]));
                }
                Err(error) => assert!(both && error == JournalError::PromisesLost),
            }
        }
    }

    #[test]
    fn trimming_deletes_whole_segments_below_the_slot() {
        let (mut disk, mut random) = (disk(), Random::new(1));
        for slot in 1..=60 {
            disk.append(PersistId(slot), record(slot), &mut random);
            assert!(disk.synced(&mut random).is_ok());
        }
        disk.trim(Slot(50), &mut random);
        assert!(disk.synced(&mut random).is_ok());
        disk.crash(&mut random);
        let slots = slots(
            &disk
                .open(identity(), false, false, (Durability::Memory, false))
                .expect("opens"),
        );
        assert!(
            slots[0] > 20 && slots[0] <= 50 && slots.ends_with(&[60]),
            "{slots:?}"
        );
    }

    #[test]
    fn newest_two_snapshots_are_kept_and_may_survive_crash() {
        let id = |slot| Executed {
            slot: Slot(slot),
            ..Executed::default()
        };
        let mut survived = [false; 2];
        for seed in 0..20 {
            let (mut disk, mut random) = (disk(), Random::new(seed));
            for slot in 1..=3 {
                disk.snapshot_begin(id(slot), (false, true), 0);
                disk.snapshot_append(b"abc");
                assert_eq!(disk.snapshot_saved(id(slot), &mut random), None);
                disk.snapshot_finish(&mut random);
                assert!(disk.snapshot_saved(id(slot), &mut random).is_some());
            }
            assert_eq!(disk.snapshot_read(id(1), 0, 9, Time(0)), None);
            assert_eq!(
                disk.snapshot_read(id(2), 1, 9, Time(0)),
                Some(Bytes::from_static(b"bc"))
            );
            disk.snapshot_begin(id(4), (false, true), 0);
            disk.snapshot_append(b"abc");
            let unfinished = seed % 2 == 0;
            if !unfinished {
                disk.snapshot_finish(&mut random);
            }
            disk.crash(&mut random);
            let newest = disk.snapshot_newest().map(|info| info.id);
            assert!(newest == Some(id(3)) || (newest == Some(id(4)) && !unfinished));
            survived[usize::from(newest == Some(id(4)))] = true;
            assert_eq!(disk.snapshot_saved(id(4), &mut random), None);
        }
        assert_eq!(survived, [true; 2]);
    }
}
