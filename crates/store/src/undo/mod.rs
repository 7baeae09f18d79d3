//! The past of the keys: what each of them held before it changed.
//!
//! ```text
//!   command changes k ──► what k held goes to the end of the log, with the command's time
//!
//!   log     k=1 │ m=– │ k=2 │ FLUSHALL … │ k=3             present: k=4
//!           t 10   11    20                 40
//!   k at t: the first record of k with a later time, else what it holds now
//!           9 → 1      10..19 → 2      40.. → 4
//!
//!   RETAIN  ──► records older than SECONDS, and the oldest beyond BYTES, are dropped at ordered
//!               ticks; `horizon` is the earliest time that can still be told
//! ```
//!
//! All of it is replicated state: the same records at every replica, in snapshots and in digests.
//! One command makes one version; a transaction is one command. Within a version each key has one
//! complete record, whatever was done to it. A collection with more than a few elements is not
//! copied at each change: its record tells the steps that undo the change (see [`patch`]). A value that
//! takes more bytes than there is room for is not kept: its record says so.

mod index;
mod log;
mod patch;
mod waste;

use crate::command::key_hash;
use crate::types::journal::{Allowance, Journal, NotUndone};
use crate::types::wire::{Malformed, Reader, put_bytes, put_number};
use crate::value::Value;
use core::cell::{Ref, RefCell};
use index::Index;
use log::{Log, eight};
pub(crate) use patch::{Lookback, NotTold, Patch};
use std::collections::VecDeque;
use waste::Waste;

/// A collection that takes less memory is copied when it changes.
const PATCHED_MIN: usize = 512;
/// One that takes more is never copied because it has changed often.
const COPIED_AGAIN_MAX: usize = 1 << 20;
/// The bytes that a record counts beside its payload: its place in the index.
const RECORD_BYTES: u64 = 32;
/// One tick drops this number of records, or this part of all: whichever is more.
const DROPS_MIN: u64 = 4096;
const DROPS_PART: u64 = 16;
/// Shorter values are copied without limit.
const SHORT: usize = 1024;
/// The bytes of longer values that are copied in one batch; what changes behind them is not kept.
const COPIED_MAX: usize = 64 << 20;
/// The bytes of records of one collection that are looked at to tell what it was.
const LOOKED_AT_MAX: usize = 16 << 20;
/// Looking at this number of them counts as one step.
const STEP_BYTES: u64 = 32;
/// A buffer for one record keeps up to this number of bytes.
const SCRATCH_MAX: usize = 64 << 10;
/// A batch with more changes ends the past before it.
const ADDED_MAX: u64 = 1 << 18;
/// With more exchanges of databases the past ends before the last one.
const SWAPS_MAX: usize = 64;
/// A database of more keys is not moved into the log when it is emptied.
const CLEARED_MAX: usize = 100_000;
/// Where a record's kind stands: behind its time and version.
const KIND_AT: usize = 17;

const ABSENT: u8 = 0;
const VALUE: u8 = 1;
const LARGE: u8 = 2;
const SWAP: u8 = 3;
const PATCH: u8 = 4;
const EMPTY: u8 = 5;

/// How much of the past is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retain {
    /// For so long, in seconds of the log's clock; 0 is as long as there is room.
    pub seconds: u64,
    /// The bytes for it.
    pub bytes: u64,
}

/// The numbers beside the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub retain: Retain,
    /// The earliest time that can be told, in nanoseconds of the log's clock.
    pub horizon: u64,
    /// Of the last command that changed something.
    pub version: u64,
    /// How many records were ever dropped.
    pub dropped: u64,
    /// The earliest version that can be told.
    pub version_min: u64,
}

impl Marks {
    pub const LENGTH: usize = 48;

    /// Whether it can be of any store: no counter is near its end.
    pub const fn is_possible(self) -> bool {
        self.version < 1 << 62 && self.dropped < 1 << 62 && self.version_min <= self.version
    }

    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let numbers = [
            self.retain.seconds,
            self.retain.bytes,
            self.horizon,
            self.version,
            self.dropped,
            self.version_min,
        ];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// # Panics
    /// When there are fewer bytes than [`Self::LENGTH`].
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            retain: Retain {
                seconds: eight(bytes, 0),
                bytes: eight(bytes, 8),
            },
            horizon: eight(bytes, 16),
            version: eight(bytes, 24),
            dropped: eight(bytes, 32),
            version_min: eight(bytes, 40),
        }
    }
}

/// A way over the records that a snapshot or a digest takes, while others are added and dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    next: u64,
    end: u64,
}

impl Walk {
    const fn is_done(self) -> bool {
        self.next >= self.end
    }

    const fn needs(self) -> u64 {
        if self.is_done() { u64::MAX } else { self.next }
    }
}

/// A place in the log: all records before it are of times or versions that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    position: u64,
    /// The number of the record there.
    pub number: u64,
}

/// The value of a key at a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then<'a> {
    /// Nothing.
    Absent,
    /// This, until `expire_at`.
    Value { expire_at: u64, bytes: &'a [u8] },
    /// A collection too large to be kept: its type, and how many elements it had.
    Large { kind: u8, elements: u64 },
    /// A collection that was changed in steps: this is the first of its changes from there on.
    Patch(Patch<'a>),
    /// A collection of this type that was just emptied, by steps of the same version.
    Empty { kind: u8 },
    /// Its present value, in this database.
    Now { database: u8 },
}

impl Then<'_> {
    /// Its type as TYPE names it, and its length; none where there is no value, or it is the present
    /// one.
    pub fn kind_and_length(&self) -> Option<(&'static str, u64)> {
        Some(match self {
            Self::Absent | Self::Now { .. } => return None,
            Self::Value { bytes, .. } => Value::serialized_kind(bytes),
            Self::Large { kind, elements } => (kind_name(*kind), *elements),
            Self::Patch(patch) => (kind_name(patch.kind), patch.elements),
            Self::Empty { kind } => (kind_name(*kind), 0),
        })
    }
}

/// A record, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub time: u64,
    pub version: u64,
    pub database: u8,
    pub key: &'a [u8],
    /// The value of the key before; of a swap of databases nothing.
    pub before: Then<'a>,
    /// The databases were swapped: with this one.
    pub swapped: Option<u8>,
}

/// The key's length in few bytes, then it, then what it held.
fn read(payload: &[u8]) -> Result<Change<'_>, Malformed> {
    let mut reader = Reader::new(payload);
    let (time, version) = (reader.take(8)?, reader.take(8)?);
    let (database, kind) = (reader.byte()?, reader.byte()?);
    let key = reader.bytes()?;
    let mut swapped = None;
    let before = match kind {
        ABSENT => Then::Absent,
        VALUE => Then::Value {
            expire_at: eight(reader.take(8)?, 0),
            bytes: reader.rest(),
        },
        LARGE => Then::Large {
            kind: reader.byte()?,
            elements: reader.number()?,
        },
        SWAP => {
            swapped = Some(reader.byte()?);
            Then::Absent
        }
        PATCH => Then::Patch(Patch::read(&mut reader)?),
        EMPTY => Then::Empty {
            kind: reader.byte()?,
        },
        _ => return Err(Malformed("unknown change")),
    };
    if kind != VALUE && kind != PATCH && !reader.rest().is_empty() {
        return Err(Malformed("bytes after a change"));
    }
    Ok(Change {
        time: eight(time, 0),
        version: eight(version, 0),
        database,
        key,
        before,
        swapped,
    })
}

fn known(payload: &[u8]) -> Change<'_> {
    read(payload).expect("records were checked when they came")
}

/// The beginning of every record.
#[derive(Clone, Copy)]
struct Head<'a> {
    time: u64,
    version: u64,
    database: u8,
    key: &'a [u8],
}

impl Head<'_> {
    const fn length(&self) -> usize {
        KIND_AT + 1 + number_len(self.key.len() as u64) + self.key.len()
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>, kind: u8) {
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&[self.database, kind]);
        put_bytes(out, self.key);
    }
}

/// How many bytes [`put_number`] appends.
const fn number_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Undo {
    seed: u64,
    marks: Marks,
    /// Of the command in progress, in nanoseconds.
    time: u64,
    /// It has changed something.
    changed: bool,
    log: Log,
    /// Settled before it is read.
    index: RefCell<Index>,
    swaps: VecDeque<u64>,
    bytes: u64,
    /// Records that the batch in progress has added, and bytes of long values that it has copied.
    added: u64,
    copied: usize,
    snapshot: Walk,
    digest: Walk,
    /// Memory of records that are gone.
    waste: Waste,
    scratch: Vec<u8>,
    /// For the next collection that changes.
    journal: Option<Box<Journal>>,
    /// Records that a tick drops, by hash and position.
    gone: Vec<(u64, u64)>,
    /// Version and time of the last record that was restored.
    last: (u64, u64),
}

impl Undo {
    /// A past without records, at this time of the log's clock.
    pub fn new(seed: u64, marks: Marks, time: u64) -> Self {
        Self {
            seed,
            marks,
            time,
            changed: false,
            log: Log::new(marks.dropped),
            index: RefCell::default(),
            swaps: VecDeque::new(),
            bytes: 0,
            added: 0,
            copied: 0,
            snapshot: Walk::default(),
            digest: Walk::default(),
            waste: Waste::default(),
            scratch: Vec::new(),
            journal: None,
            gone: Vec::new(),
            last: (0, 0),
        }
    }

    pub fn marks(&self) -> Marks {
        Marks {
            dropped: self.log.dropped(),
            ..self.marks
        }
    }

    /// The limits are others from now on. Where nothing was kept, the past begins now.
    pub const fn retain(&mut self, retain: Retain) {
        if !self.is_kept() {
            self.marks.version_min = self.marks.version;
            self.marks.horizon = self.time;
        }
        self.marks.retain = retain;
    }

    /// Whether the past is kept. Where it is no more, a snapshot may still need what it was.
    pub const fn is_kept(&self) -> bool {
        self.marks.retain.bytes > 0
    }

    /// The past is not kept any more.
    pub fn stop(&mut self) {
        self.drop_all();
        self.marks.retain = Retain::default();
        self.marks.horizon = 0;
        // Changes from here on are not counted, and belong to no version before.
        self.marks.version += 1;
        self.changed = false;
    }

    /// Whether it is not kept any more, and nothing of it is left.
    pub fn is_over(&self) -> bool {
        let is_needed = !self.snapshot.is_done() || !self.digest.is_done();
        !self.is_kept() && !is_needed && self.waste.is_empty()
    }

    /// Frees a little of what is not needed any more.
    pub fn free_some(&mut self) {
        self.waste.free_some();
    }

    /// Bytes of all records, as they count.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many records there are.
    pub const fn records(&self) -> u64 {
        self.log.len()
    }

    /// An estimate of the memory that the log takes.
    pub fn memory(&self) -> usize {
        self.log.memory() + self.index.borrow().memory() + self.waste.memory()
    }

    /// A batch begins.
    pub const fn begin_batch(&mut self) {
        (self.added, self.copied) = (0, 0);
    }

    /// A command begins, or a tick, at this time of the log's clock.
    #[inline]
    pub fn begin(&mut self, time: u64) {
        self.time = time;
        self.index.get_mut().begin();
        self.changed = false;
    }

    fn count_version(&mut self) {
        if !core::mem::replace(&mut self.changed, true) {
            self.marks.version += 1;
        }
    }

    /// The command in progress changes this key, which holds this, if anything.
    pub fn keep(&mut self, database: u8, key: &[u8], held: Option<(&Value, u64)>) {
        let hash = key_hash(self.seed, database, key);
        if self.index.get_mut().is_first(hash) {
            self.keep_whole(hash, database, key, held);
        }
    }

    fn keep_whole(&mut self, hash: u64, database: u8, key: &[u8], held: Option<(&Value, u64)>) {
        let head = self.head(database, key);
        match held {
            None => self.push(hash, head.length(), |out| head.write(out, ABSENT)),
            Some((Value::String(string), expire_at)) if self.takes(string.bytes.len()) => {
                let length = head.length() + 8 + string.serialized_len();
                self.push(hash, length, |out| {
                    head.write(out, VALUE);
                    out.extend_from_slice(&expire_at.to_le_bytes());
                    string.serialize(out);
                });
            }
            Some((value, expire_at)) => {
                let mut rest = core::mem::take(&mut self.scratch);
                rest.clear();
                let mut kind = VALUE;
                if value.elements() > 0 && self.takes(value.memory()) {
                    rest.extend_from_slice(&expire_at.to_le_bytes());
                    value.serialize(&mut rest);
                } else {
                    rest.push(kind_of(value));
                    kind = EMPTY;
                    if length_of(value) > 0 {
                        kind = LARGE;
                        put_number(&mut rest, length_of(value));
                    }
                }
                self.push(hash, head.length() + rest.len(), |out| {
                    head.write(out, kind);
                    out.extend_from_slice(&rest);
                });
                rest.clear();
                rest.shrink_to(SCRATCH_MAX);
                self.scratch = rest;
            }
        }
        self.forget_if_many();
    }

    /// The beginning of a record of the command in progress.
    fn head<'a>(&mut self, database: u8, key: &'a [u8]) -> Head<'a> {
        self.count_version();
        Head {
            time: self.time,
            version: self.marks.version,
            database,
            key,
        }
    }

    /// Whether a value of about this number of bytes can be copied; counts it.
    fn takes(&mut self, bytes: usize) -> bool {
        let kept = bytes <= SHORT || bytes <= self.room();
        self.copied += if bytes > SHORT && kept { bytes } else { 0 };
        kept
    }

    /// The bytes of a long value that can still be copied in this batch.
    fn room(&self) -> usize {
        let all = usize::try_from(self.marks.retain.bytes).unwrap_or(usize::MAX);
        (COPIED_MAX - self.copied).min(all)
    }

    /// The command in progress is about to change this collection in place. Where it is kept by
    /// steps, this is its journal for them, and [`Self::keep_steps`] must follow.
    pub fn keep_changing(
        &mut self,
        database: u8,
        key: &[u8],
        (value, expire_at): (&Value, u64),
    ) -> Option<Box<Journal>> {
        let hash = key_hash(self.seed, database, key);
        if self.index.get_mut().is_kept(hash) {
            return None;
        }
        let memory = value.memory();
        if matches!(value, Value::String(_)) || memory < PATCHED_MIN {
            self.keep(database, key, Some((value, expire_at)));
            return None;
        }
        let since = self.bytes_since(hash, database, key);
        // A copy now and then bounds the work of looking back, for about twice the bytes.
        let again = memory <= COPIED_AGAIN_MAX && since > memory as u64;
        if again && memory <= self.room().max(SHORT) {
            self.keep(database, key, Some((value, expire_at)));
            return None;
        }
        let mut journal = self.journal.take().unwrap_or_default();
        let patch = Patch {
            expire_at,
            kind: kind_of(value),
            flag: value.encoding_flag(),
            elements: value.elements() as u64,
            since,
            steps: &[],
        };
        journal.begin(self.room().max(SHORT), |out| patch.write(out));
        Some(journal)
    }

    /// The bytes of the records of this key since it was last copied.
    fn bytes_since(&self, hash: u64, database: u8, key: &[u8]) -> u64 {
        let index = self.index();
        let records = index.from(hash, 0).iter().rev();
        let last = records
            .map(|position| self.log.record(*position))
            .find(|payload| is_of(payload, database, key));
        let Some(payload) = last else { return 0 };
        match known(payload).before {
            Then::Patch(patch) => {
                let since = patch.since + payload.len() as u64 + RECORD_BYTES;
                since.min(patch::SINCE_MAX)
            }
            _ => 0,
        }
    }

    /// The collection was changed: these are its steps.
    pub fn keep_steps(&mut self, database: u8, key: &[u8], mut journal: Box<Journal>) {
        let hash = key_hash(self.seed, database, key);
        let head = self.head(database, key);
        if let Some(bytes) = journal.bytes() {
            self.copied += if bytes.len() > SHORT { bytes.len() } else { 0 };
            self.copied = self.copied.min(COPIED_MAX);
            self.push(hash, head.length() + bytes.len(), |out| {
                head.write(out, PATCH);
                out.extend_from_slice(bytes);
            });
        } else {
            // So that a batch does not copy the same amount for each of many collections.
            self.copied = COPIED_MAX.min(self.copied + self.room());
            let lost = Patch::read(&mut Reader::new(journal.head()));
            let Patch { kind, elements, .. } = lost.expect("it was written so");
            self.index.get_mut().is_first(hash);
            let length = head.length() + 1 + number_len(elements);
            self.push(hash, length, |out| {
                head.write(out, LARGE);
                out.push(kind);
                put_number(out, elements);
            });
        }
        journal.shrink(SCRATCH_MAX);
        self.journal = Some(journal);
        self.forget_if_many();
    }

    fn forget_if_many(&mut self) {
        if self.added > ADDED_MAX {
            self.forget();
        }
    }

    #[inline]
    fn push(&mut self, hash: u64, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let position = self.log.push(length, write);
        self.index.get_mut().push(hash, position);
        self.bytes += length as u64 + RECORD_BYTES;
        self.added += 1;
    }

    /// The command in progress exchanges these databases.
    pub fn swap(&mut self, one: u8, other: u8) {
        self.count_version();
        let head = Head {
            time: self.time,
            version: self.marks.version,
            database: one,
            key: &[],
        };
        self.push_swap(head.length() + 1, |out| {
            head.write(out, SWAP);
            out.push(other);
        });
        if self.swaps.len() > SWAPS_MAX {
            self.forget();
        }
        // From here on a name is another key's.
        self.index.get_mut().begin();
    }

    fn push_swap(&mut self, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.swaps.push_back(self.log.push(length, write));
        self.bytes += length as u64 + RECORD_BYTES;
        self.added += 1;
    }

    /// Whether a database of this number of keys can be moved into the log as it is emptied.
    pub const fn takes_cleared(&self, keys: usize) -> bool {
        keys <= CLEARED_MAX && self.bytes <= self.marks.retain.bytes.saturating_mul(2)
    }

    /// The command in progress changes more than can be kept: the past ends before it.
    pub fn forget(&mut self) {
        self.count_version();
        self.drop_all();
        self.marks.horizon = self.time;
        self.marks.version_min = self.marks.version;
        // The rest of the command counts from here.
        self.added = 0;
    }

    fn drop_all(&mut self) {
        self.log.clear();
        self.waste.add_index(self.index.take());
        self.swaps.clear();
        self.bytes = 0;
        self.free();
    }

    /// A tick at this time: drops what is not to be kept any more.
    pub fn drop_old(&mut self, time: u64) {
        let Retain { seconds, bytes } = self.marks.retain;
        let oldest = match seconds {
            0 => 0,
            _ => time.saturating_sub(seconds.saturating_mul(1_000_000_000)),
        };
        let mut left = DROPS_MIN.max(self.log.len() / DROPS_PART);
        let mut gone = core::mem::take(&mut self.gone);
        let dropped = self.log.dropped();
        while left > 0 && !self.log.is_empty() {
            let position = self.log.head();
            let (payload, at) = self.log.settled_record(position);
            let changed_at = eight(payload, 0);
            if changed_at > oldest && self.bytes <= bytes {
                break;
            }
            self.bytes -= payload.len() as u64 + RECORD_BYTES;
            self.marks.horizon = self.marks.horizon.max(changed_at);
            let change = known(payload);
            self.marks.version_min = change.version;
            if change.swapped.is_some() {
                self.swaps.pop_front();
            } else {
                let hash = key_hash(self.seed, change.database, change.key);
                gone.push((hash, at));
            }
            self.log.drop_first();
            left -= 1;
        }
        if dropped < self.log.dropped() {
            self.index.get_mut().drop_all(&gone);
            self.free();
        }
        gone.clear();
        self.gone = gone;
    }

    fn free(&mut self) {
        let held = self.snapshot.needs().min(self.digest.needs());
        let mut slots = Vec::new();
        self.log.free(held, |slot| slots.push(slot));
        self.waste.add_slots(slots);
    }

    // --- looking back ------------------------------------------------------------------------

    /// The place of this time, if the past reaches back to it.
    pub fn at_time(&self, time: u64) -> Option<Place> {
        let later = |_, payload: &[u8]| eight(payload, 0) <= time;
        (time >= self.marks.horizon).then(|| self.place(later))
    }

    /// The place behind this version, if it has been made and the past reaches back to it; with
    /// its time, or that of the last one before it that is known.
    pub fn at_version(&self, version: u64) -> Option<(Place, u64)> {
        let place = self.place(|_, payload| eight(payload, 8) <= version);
        let reaches = version >= self.marks.version_min;
        // The time of the change behind which it stands.
        let time = match place
            .number
            .checked_sub(1)
            .filter(|last| *last >= self.log.dropped())
        {
            Some(last) => {
                let (position, _) = self.log.first(|number, _| number < last);
                eight(self.log.record(position), 0)
            }
            None => self.marks.horizon,
        };
        reaches.then_some((place, time))
    }

    /// The place of the record with this number, if it is still kept or yet to come.
    pub fn at_number(&self, number: u64) -> Option<Place> {
        let before = |other, _: &[u8]| other < number;
        (number >= self.log.dropped()).then(|| self.place(before))
    }

    fn place(&self, passed: impl Fn(u64, &[u8]) -> bool) -> Place {
        let (position, number) = self.log.first(passed);
        Place { position, number }
    }

    /// The value of `key` at a place.
    pub fn then(&self, database: u8, key: &[u8], place: Place) -> Then<'_> {
        let mut then = None;
        let database = self.later(database, key, place, |change| {
            then = Some(change.before);
            false
        });
        then.unwrap_or(Then::Now { database })
    }

    /// The means to make the value of `key` at a place again.
    ///
    /// # Errors
    /// When more records would have to be looked at than is allowed.
    pub fn look_back(
        &self,
        database: u8,
        key: &[u8],
        place: Place,
        allowance: &mut Allowance,
    ) -> Result<Lookback<'_>, NotTold> {
        let (mut patches, mut base) = (Vec::new(), None);
        let mut bytes = 0;
        let database = self.later(database, key, place, |change| match change.before {
            Then::Patch(patch) => {
                bytes += patch.steps.len() + RECORD_BYTES as usize;
                patches.push(patch);
                bytes <= LOOKED_AT_MAX
            }
            before => {
                base = Some(before);
                false
            }
        });
        let base = base.unwrap_or(Then::Now { database });
        let back = Lookback { patches, base };
        let steps = back.patches.len() as u64 + (bytes as u64) / STEP_BYTES;
        match (allowance.take_steps(steps), bytes <= LOOKED_AT_MAX) {
            (Ok(()), true) => Ok(back),
            _ => Err(back.not_told(NotUndone::TooMuch)),
        }
    }

    /// The records of `key` from a place on, the oldest first, while `visit` wants another; gives
    /// the database that the key is in behind them.
    fn later<'a>(
        &'a self,
        mut database: u8,
        key: &[u8],
        place: Place,
        mut visit: impl FnMut(Change<'a>) -> bool,
    ) -> u8 {
        let index = self.index();
        let mut visit = |database: u8, from: u64, end: u64| {
            let later = index.from(key_hash(self.seed, database, key), from).iter();
            for position in later.take_while(|position| **position < end) {
                let payload = self.log.record(*position);
                if is_of(payload, database, key) && !visit(known(payload)) {
                    return false;
                }
            }
            true
        };
        let mut from = place.position;
        let swaps = self.swaps.partition_point(|at| *at < from);
        for swapped in self.swaps.range(swaps..) {
            if !visit(database, from, *swapped) {
                return database;
            }
            let swap = known(self.log.record(*swapped));
            let (one, other) = (swap.database, swap.swapped.unwrap_or(swap.database));
            database = match database {
                database if database == one => other,
                database if database == other => one,
                database => database,
            };
            from = *swapped;
        }
        visit(database, from, u64::MAX);
        database
    }

    fn oldest_from(&self, database: u8, key: &[u8], from: u64) -> Option<(u64, &[u8])> {
        let index = self.index();
        let later = index.from(key_hash(self.seed, database, key), from).iter();
        later
            .map(|position| (*position, self.log.record(*position)))
            .find(|(_, payload)| is_of(payload, database, key))
    }

    fn index(&self) -> Ref<'_, Index> {
        self.index.borrow_mut().settle();
        self.index.borrow()
    }

    /// The changes of a key under its name in this database since that was last exchanged, the newest
    /// first: `visit` says whether it wants another.
    pub fn changes<'a>(
        &'a self,
        database: u8,
        key: &[u8],
        mut visit: impl FnMut(Change<'a>) -> bool,
    ) {
        let index = self.index();
        let swapped = self.swaps.iter().rev().find(|at| {
            let swap = known(self.log.record(**at));
            swap.database == database || swap.swapped == Some(database)
        });
        let from = swapped.map_or(0, |at| at + 1);
        for position in index
            .from(key_hash(self.seed, database, key), from)
            .iter()
            .rev()
        {
            let payload = self.log.record(*position);
            if is_of(payload, database, key) && !visit(known(payload)) {
                return;
            }
        }
    }

    /// The changes from one place on up to another, with the numbers of their records.
    pub fn between(&self, from: Place, to: Place) -> impl Iterator<Item = (Place, Change<'_>)> {
        let mut number = from.number;
        self.log
            .records(from.position, to.position)
            .map(move |(position, payload)| {
                let place = Place { position, number };
                number += 1;
                (place, known(payload))
            })
    }

    /// Whether no record of `key` stands between the place and this change of it.
    pub fn is_first(&self, change: &Change<'_>, at: Place, from: Place) -> bool {
        let first = self.oldest_from(change.database, change.key, from.position);
        first.is_some_and(|(position, _)| position == at.position)
    }

    // --- snapshots and digests ---------------------------------------------------------------

    pub fn begin_snapshot(&mut self) {
        self.snapshot = self.whole();
    }

    pub fn begin_digest(&mut self) {
        self.digest = self.whole();
    }

    const fn whole(&self) -> Walk {
        Walk {
            next: self.log.head(),
            end: self.log.tail(),
        }
    }

    pub fn abandon_snapshot(&mut self) {
        self.snapshot = Walk::default();
        self.free();
    }

    pub fn abandon_digest(&mut self) {
        self.digest = Walk::default();
        self.free();
    }

    /// Gives records to a snapshot while it wants them.
    pub fn snapshot(&mut self, each: impl FnMut(&[u8]) -> bool) {
        let mut walk = self.snapshot;
        self.walk(&mut walk, each);
        self.snapshot = walk;
        self.free();
    }

    /// The same for a digest.
    pub fn digest(&mut self, each: impl FnMut(&[u8]) -> bool) {
        let mut walk = self.digest;
        self.walk(&mut walk, each);
        self.digest = walk;
        self.free();
    }

    fn walk(&self, walk: &mut Walk, mut each: impl FnMut(&[u8]) -> bool) {
        let Walk { next, end } = *walk;
        for (position, payload) in self.log.records(next, end) {
            if !each(payload) {
                walk.next = position;
                return;
            }
        }
        walk.next = end;
    }

    /// All records, for a digest that is made at once.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        let all = self.whole();
        self.log
            .records(all.next, all.end)
            .map(|(_, payload)| payload)
    }

    /// Takes over a record of a snapshot, if it can stand behind the last one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn restore(&mut self, payload: &[u8], databases: usize) -> Result<(), Malformed> {
        let change = check(payload, databases)?;
        let (version, time) = core::mem::replace(&mut self.last, (change.version, change.time));
        let ascends = (version..=self.marks.version).contains(&change.version)
            && (time..=self.time).contains(&change.time);
        if !ascends || change.version == 0 {
            return Err(Malformed("changes that do not ascend"));
        }
        let write = |out: &mut Vec<u8>| out.extend_from_slice(payload);
        if change.swapped.is_some() {
            self.push_swap(payload.len(), write);
        } else {
            let hash = key_hash(self.seed, change.database, change.key);
            self.push(hash, payload.len(), write);
        }
        self.added = 0;
        Ok(())
    }
}

/// Reads a record and what it holds.
///
/// # Errors
/// When it is malformed to a store of this number of databases.
pub(crate) fn check(payload: &[u8], databases: usize) -> Result<Change<'_>, Malformed> {
    let change = read(payload)?;
    let other = change.swapped.unwrap_or(change.database);
    if usize::from(change.database.max(other)) >= databases {
        return Err(Malformed("a change in a database that there is not"));
    }
    match change.before {
        Then::Value { bytes, .. } => drop(Value::deserialize(bytes)?),
        Then::Patch(patch) => patch.check()?,
        Then::Empty { kind } | Then::Large { kind, .. } if usize::from(kind) >= KINDS.len() => {
            return Err(Malformed("a type that there is not"));
        }
        _ => {}
    }
    Ok(change)
}

fn is_of(payload: &[u8], database: u8, key: &[u8]) -> bool {
    let change = known(payload);
    change.database == database && change.key == key && payload[KIND_AT] != SWAP
}

/// The length of a string in bytes, or of a collection in elements.
pub(crate) fn length_of(value: &Value) -> u64 {
    match value {
        Value::String(string) => string.bytes.len() as u64,
        value => value.elements() as u64,
    }
}

/// The types as TYPE names them.
pub(crate) const KINDS: [&str; 5] = ["string", "hash", "list", "set", "zset"];

fn kind_of(value: &Value) -> u8 {
    let name = value.type_name();
    KINDS.iter().position(|kind| *kind == name).unwrap_or(0) as u8
}

/// The type of a large collection as TYPE names it.
pub(crate) fn kind_name(kind: u8) -> &'static str {
    KINDS.get(usize::from(kind)).copied().unwrap_or("none")
}
