//! The databases: keys, values, when they expire, and what changed them last.
//!
//! ```text
//!   key ──hash──► Index ──slot──► Slab [ entry entry  ·  entry … ]
//!                                        │ expire_at
//!                                        ▼
//!                                 expiry (time, slot), sorted: what goes next
//!
//!   entry: key, value, expire_at, version (of the command that changed it last)
//! ```
//!
//! Slots are this replica's own affair. All that a client can see, the order of SCAN, KEYS and
//! RANDOMKEY included, follows from the keys and values alone: two commands that touch different
//! keys may be executed in either order.

use crate::digest::{Digest, DigestCursor};
use crate::expiries::Expiries;
use crate::graveyard::Graveyard;
use crate::index::{Index, Slot};
use crate::key_hash::hash_bytes;
use crate::snapshot::{Globals, Snapshot};
use crate::types::journal::Journal;
use crate::undo::{Marks, Retain, Undo};
use crate::value::{ShortBytes, Stored, Value, heap_of};
use quintet_prefetch::prefetch;
use smallvec::SmallVec;

/// The `expire_at` of a key that does not expire.
pub const NEVER: u64 = u64::MAX;

/// The `mark` of an entry that has expired and that the index knows no more: it waits in the slab to
/// be deleted.
pub(crate) const GONE: u32 = u32::MAX;

const CHUNK_LOG: u32 = 9;
pub(crate) const CHUNK_LEN: usize = 1 << CHUNK_LOG;

/// The estimated memory of an entry without what its key and value keep elsewhere.
const ENTRY_BYTES: usize = size_of::<Entry>() + Index::BYTES_PER_KEY;

/// A key with all that belongs to it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The key.
    pub(crate) key: ShortBytes,
    /// Its value; [`Value::Free`] while the place is free.
    pub(crate) value: Value,
    /// Milliseconds since the Unix epoch, or [`NEVER`].
    pub(crate) expire_at: u64,
    /// Of the command that changed the key last; never 0.
    pub(crate) version: u64,
    /// Of the key; of one that is gone the snapshot that has still to write it, or 0.
    hash: u32,
    /// The last snapshot that need not write this entry any more, or [`GONE`].
    pub(crate) mark: u32,
}

impl Entry {
    pub(crate) fn memory(&self) -> usize {
        ENTRY_BYTES + heap_of(&self.key) + self.value.memory()
    }

    /// The entry of a key at an earlier time.
    pub(crate) fn past(key: &[u8], value: Value, expire_at: u64) -> Self {
        Self {
            key: ShortBytes::from_slice(key),
            value,
            expire_at,
            version: 0,
            hash: 0,
            mark: 0,
        }
    }

    /// Whether this snapshot has to write the entry; from now on it has not. One that was gone
    /// when the snapshot began is none of its: the key may stand in the slab again.
    pub(crate) fn mark_for(&mut self, snapshot: u32) -> bool {
        if self.mark == GONE {
            let wanted = self.hash == snapshot;
            self.hash = 0;
            return wanted;
        }
        core::mem::replace(&mut self.mark, snapshot) != snapshot
    }
}

/// Entries in chunks that never move.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    chunks: Vec<Vec<Entry>>,
    free: Vec<Slot>,
}

impl Slab {
    fn into_chunks(self) -> Vec<Vec<Entry>> {
        self.chunks
    }

    /// One more than the highest slot that was ever used.
    fn end(&self) -> Slot {
        match self.chunks.last() {
            Some(last) => ((self.chunks.len() - 1) * CHUNK_LEN + last.len()) as Slot,
            None => 0,
        }
    }

    #[inline]
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.chunks[(slot >> CHUNK_LOG) as usize][slot as usize % CHUNK_LEN]
    }

    #[inline]
    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.chunks[(slot >> CHUNK_LOG) as usize][slot as usize % CHUNK_LEN]
    }

    /// The entry at `slot`, unless the place is free.
    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        let entry = self
            .chunks
            .get_mut((slot >> CHUNK_LOG) as usize)?
            .get_mut(slot as usize % CHUNK_LEN)?;
        (!matches!(entry.value, Value::Free)).then_some(entry)
    }

    fn put(&mut self, entry: Entry) -> Slot {
        if let Some(slot) = self.free.pop() {
            *self.entry_mut(slot) = entry;
            return slot;
        }
        let slot = self.end();
        if self
            .chunks
            .last()
            .is_none_or(|chunk| chunk.len() == CHUNK_LEN)
        {
            // The first chunk grows with what is in it: most databases stay empty or small.
            let capacity = if self.chunks.is_empty() { 0 } else { CHUNK_LEN };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(entry);
        }
        slot
    }

    fn take(&mut self, slot: Slot) -> Entry {
        let free = Entry {
            key: ShortBytes::new(),
            value: Value::Free,
            expire_at: NEVER,
            version: 0,
            hash: 0,
            mark: 0,
        };
        self.free.push(slot);
        core::mem::replace(self.entry_mut(slot), free)
    }
}

/// How far a snapshot has come in one database.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SnapshotCursor {
    /// The database's number when the snapshot began.
    pub(crate) origin: u8,
    /// The next slot to be written.
    pub(crate) next: Slot,
    /// The end of the slab when the snapshot began.
    pub(crate) end: Slot,
}

/// A slab that was emptied while a snapshot or a digest still had to see it.
#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) snapshot: SnapshotCursor,
    pub(crate) digest: DigestCursor,
    pub(crate) slab: Slab,
}

impl Detached {
    const fn is_done(&self) -> bool {
        self.snapshot.next >= self.snapshot.end && self.digest.is_done()
    }
}

/// As many keys are looked at side by side.
pub(crate) const WARM_KEYS: usize = 16;

/// One database.
#[derive(Debug, Default)]
pub(crate) struct Database {
    hash_seed: u64,
    index: Index,
    pub(crate) slab: Slab,
    expiry: Expiries,
    /// Entries that are [`GONE`].
    gone: usize,
    memory: usize,
    pub(crate) snapshot: SnapshotCursor,
    pub(crate) digest: DigestCursor,
}

impl Database {
    fn new(hash_seed: u64) -> Self {
        Self {
            hash_seed,
            ..Self::default()
        }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u32 {
        (hash_bytes(self.hash_seed, key) >> 32) as u32
    }

    /// How many keys exist at `now`.
    pub(crate) fn len(&self, now: u64) -> usize {
        self.index.len() + self.gone - self.expiry.passed(now)
    }

    #[inline]
    fn find(&self, hash: u32, key: &[u8]) -> Option<Slot> {
        self.index
            .find(hash, |slot| self.slab.entry(slot).key.as_slice() == key)
    }

    /// Asks for everything that commands on these keys will need, step by step for all of them: the
    /// memory accesses of one step do not depend on each other, so their latencies overlap.
    #[inline]
    pub(crate) fn warm(&self, keys: &[&[u8]]) {
        let hashes: SmallVec<[u32; WARM_KEYS]> = keys.iter().map(|key| self.hash(key)).collect();
        for hash in &hashes {
            self.index.prefetch(*hash);
        }
        let mut slots = SmallVec::<[Slot; WARM_KEYS]>::new();
        slots.extend(hashes.iter().filter_map(|hash| self.index.guess(*hash)));
        for slot in &slots {
            prefetch(self.slab.entry(*slot));
        }
        for slot in &slots {
            if let Value::String(string) = &self.slab.entry(*slot).value {
                prefetch(string.bytes.as_slice());
            }
        }
    }

    /// The entry of `key` if it exists at `now`.
    #[inline]
    pub(crate) fn get(&self, key: &[u8], now: u64) -> Option<&Entry> {
        let entry = self.slab.entry(self.find(self.hash(key), key)?);
        (entry.expire_at > now).then_some(entry)
    }

    /// The entry of `key`, expired or not.
    pub(crate) fn held(&self, key: &[u8]) -> Option<&Entry> {
        Some(self.slab.entry(self.find(self.hash(key), key)?))
    }

    /// The entries that exist at `now` and whose hash is `hash` or higher, in the order that all
    /// replicas share.
    pub(crate) fn entries(&self, hash: u32, now: u64) -> impl Iterator<Item = (u32, &Entry)> {
        self.index
            .from(hash)
            .map(|(hash, slot)| (hash, self.slab.entry(slot)))
            .filter(move |(_, entry)| entry.expire_at > now)
    }

    /// The same with expired ones, and with their slots.
    pub(crate) fn all_entries(&self, hash: u32) -> impl Iterator<Item = (u32, Slot, &Entry)> {
        self.index
            .from(hash)
            .map(|(hash, slot)| (hash, slot, self.slab.entry(slot)))
    }

    /// When the next key expires.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.expiry.first()
    }

    fn insert(&mut self, entry: Entry) -> Slot {
        self.memory += entry.memory();
        let (hash, expire_at) = (entry.hash, entry.expire_at);
        let slot = self.slab.put(entry);
        let slab = &self.slab;
        self.index.insert(hash, slot, |other| {
            slab.entry(slot).key < slab.entry(other).key
        });
        if expire_at != NEVER {
            self.expiry.insert(expire_at, (hash, slot));
        }
        slot
    }

    fn remove(&mut self, slot: Slot) -> Entry {
        let entry = self.slab.take(slot);
        let mut hash = entry.hash;
        if entry.mark == GONE {
            self.gone -= 1;
            hash = self.hash(&entry.key);
        } else {
            self.index.remove(hash, slot);
        }
        if entry.expire_at != NEVER {
            self.expiry.remove(entry.expire_at, (hash, slot));
        }
        self.memory -= entry.memory();
        entry
    }

    /// Takes an expired key out of the index: no walk comes by it again.
    fn lose(&mut self, hash: u32, slot: Slot, snapshot: u32) {
        if self.index.remove(hash, slot) {
            self.gone += 1;
            let entry = self.slab.entry_mut(slot);
            let written = core::mem::replace(&mut entry.mark, GONE);
            entry.hash = if written == snapshot { 0 } else { snapshot };
        }
    }

    fn set_expire_at(&mut self, slot: Slot, expire_at: u64) {
        let entry = self.slab.entry_mut(slot);
        let before = core::mem::replace(&mut entry.expire_at, expire_at);
        let due = (entry.hash, slot);
        if before != expire_at {
            if before != NEVER {
                self.expiry.remove(before, due);
            }
            if expire_at != NEVER {
                self.expiry.insert(expire_at, due);
            }
        }
    }
}

/// All databases.
#[derive(Debug)]
pub(crate) struct Keyspace {
    pub(crate) databases: Vec<Database>,
    snapshot: Option<Snapshot>,
    snapshot_last: u32,
    digest: Option<Digest>,
    detached: Vec<Detached>,
    graveyard: Graveyard,
    /// The past, where it is kept, or a snapshot still needs it.
    undo: Option<Box<Undo>>,
    /// How far a past was counted that is kept no more.
    past: Marks,
    /// The log's clock at the command in progress, in nanoseconds.
    time: u64,
}

impl Keyspace {
    pub(crate) fn new(databases: u8, hash_seed: u64) -> Self {
        let mut all = Vec::new();
        all.resize_with(usize::from(databases.max(1)), || Database::new(hash_seed));
        Self {
            databases: all,
            snapshot: None,
            snapshot_last: 0,
            digest: None,
            detached: Vec::new(),
            graveyard: Graveyard::default(),
            undo: None,
            past: Marks::default(),
            time: 0,
        }
    }

    /// The past, where it is kept.
    pub(crate) fn undo(&self) -> Option<&Undo> {
        self.undo.as_deref().filter(|undo| undo.is_kept())
    }

    /// The same, to add to it.
    fn undo_mut(&mut self) -> Option<&mut Undo> {
        self.undo.as_deref_mut().filter(|undo| undo.is_kept())
    }

    /// The numbers beside the records of the past.
    pub(crate) fn past(&self) -> Marks {
        self.undo.as_ref().map_or(self.past, |undo| undo.marks())
    }

    /// Takes over what a snapshot says of the past.
    pub(crate) fn restore_past(&mut self, undo: Option<Box<Undo>>, past: Marks) {
        self.undo = undo;
        self.past = past;
    }

    /// From now on keeps so much of the past; none when there is no room for any.
    pub(crate) fn retain(&mut self, retain: Retain) {
        let time = self.time;
        let kept = retain.bytes > 0;
        if self.undo.is_none() && kept {
            let seed = self.database(0).hash_seed;
            let undo = self.undo.insert(Box::new(Undo::new(seed, self.past, time)));
            undo.begin(time);
        }
        let Some(undo) = &mut self.undo else { return };
        // The remains of one that has stopped are this replica's own affair.
        if kept {
            undo.retain(retain);
        } else if undo.is_kept() {
            undo.stop();
        }
    }

    /// A command begins, or a tick, at this time of the log's clock.
    #[inline]
    pub(crate) fn begin_command(&mut self, time: u64) {
        self.time = time;
        if let Some(undo) = &mut self.undo {
            undo.begin(time);
        }
    }

    /// A batch begins.
    pub(crate) fn begin_batch(&mut self) {
        if let Some(undo) = &mut self.undo {
            undo.begin_batch();
        }
    }

    /// Drops what is not to be kept any more of the past.
    pub(crate) fn drop_old(&mut self, time: u64) {
        if let Some(undo) = &mut self.undo {
            undo.drop_old(time);
        }
    }

    pub(crate) fn database(&self, database: u8) -> &Database {
        &self.databases[usize::from(database)]
    }

    fn database_mut(&mut self, database: u8) -> &mut Database {
        &mut self.databases[usize::from(database)]
    }

    /// The estimated memory of everything, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let databases = self.databases.iter().map(|database| database.memory);
        databases.sum::<usize>() + self.undo.as_ref().map_or(0, |undo| undo.memory())
    }

    /// When the next key expires.
    pub(crate) fn next_expiry(&self) -> Option<u64> {
        self.databases
            .iter()
            .filter_map(Database::next_expiry)
            .min()
    }

    /// Deletes what has expired at `now`, up to `count_max` keys.
    pub(crate) fn expire(&mut self, now: u64, count_max: usize) {
        let mut left = count_max;
        for database in 0..self.databases.len() as u8 {
            while left > 0
                && let Some(time) = self.database(database).expiry.first()
                && time <= now
            {
                let mut slots = self.database(database).expiry.next();
                if slots.len() > 1 {
                    // Where keys stand differs between replicas, the order of what is kept must not.
                    let slab = &self.database(database).slab;
                    slots.sort_by(|one, other| slab.entry(*one).key.cmp(&slab.entry(*other).key));
                }
                // A replica that was restored has none of those that are gone, and all must keep the
                // others at the same time.
                let slab = &self.database(database).slab;
                let kept = self.undo().is_some();
                let counts = |slot: &&Slot| !kept || slab.entry(**slot).mark != GONE;
                left = left.saturating_sub(slots.iter().filter(counts).count());
                for slot in slots {
                    self.delete_slot(database, slot);
                }
            }
        }
    }

    /// Takes these keys, which have expired, out of the index; each has its hash and its slot. There
    /// may be millions of them, so the rest of them is left to ticks: that costs many times more.
    pub(crate) fn lose_expired(&mut self, database: u8, keys: &[(u32, Slot)]) {
        let snapshot = self.mark();
        for (hash, slot) in keys {
            self.keep(database, *slot);
            self.database_mut(database).lose(*hash, *slot, snapshot);
        }
    }

    /// Frees a little of what emptied databases and deleted values have left.
    pub(crate) fn free_some(&mut self) {
        self.graveyard.free_some();
        if let Some(undo) = &mut self.undo {
            undo.free_some();
            if undo.is_over() {
                self.past = undo.marks();
                self.undo = None;
            }
        }
    }

    /// The mark of entries that the snapshot in progress need not write.
    fn mark(&self) -> u32 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.id)
    }

    /// Keeps what an entry holds, for the past.
    #[inline]
    fn keep(&mut self, database: u8, slot: Slot) {
        if let Some(undo) = self.undo.as_deref_mut().filter(|undo| undo.is_kept()) {
            let entry = self.databases[usize::from(database)].slab.entry(slot);
            // One that is gone was kept when it went, and the key may be another's by now.
            if entry.mark != GONE {
                undo.keep(database, &entry.key, Some((&entry.value, entry.expire_at)));
            }
        }
    }

    /// Must be called before an entry is replaced or goes.
    #[inline]
    fn before_change(&mut self, database: u8, slot: Slot) {
        self.keep(database, slot);
        self.save(database, slot);
    }

    /// Must be called before what an entry holds changes in place; with the journal of a collection,
    /// which [`Self::end_change`] takes back.
    #[inline]
    fn begin_change(&mut self, database: u8, slot: Slot) -> Option<Box<Journal>> {
        let mut journal = None;
        if let Some(undo) = self.undo.as_deref_mut().filter(|undo| undo.is_kept()) {
            let entry = self.databases[usize::from(database)].slab.entry(slot);
            journal = undo.keep_changing(database, &entry.key, (&entry.value, entry.expire_at));
        }
        self.save(database, slot);
        journal
    }

    fn end_change(&mut self, database: u8, slot: Slot, journal: Box<Journal>) {
        if let Some(undo) = &mut self.undo {
            let entry = self.databases[usize::from(database)].slab.entry(slot);
            undo.keep_steps(database, &entry.key, journal);
        }
    }

    /// Keeps what an entry holds for the snapshot and the digest in progress.
    #[inline]
    fn save(&mut self, database: u8, slot: Slot) {
        if let Some(snapshot) = &mut self.snapshot {
            let database = &mut self.databases[usize::from(database)];
            snapshot.save(database.snapshot.origin, database.slab.entry_mut(slot));
        }
        if let Some(digest) = &mut self.digest {
            let database = &mut self.databases[usize::from(database)];
            digest.before_change(&mut database.digest, slot, &database.slab);
        }
    }

    fn remove_slot(&mut self, database: u8, slot: Slot) -> Entry {
        self.before_change(database, slot);
        self.database_mut(database).remove(slot)
    }

    fn delete_slot(&mut self, database: u8, slot: Slot) {
        let entry = self.remove_slot(database, slot);
        self.graveyard.bury_value(entry.value);
    }

    /// Adds an entry for a key that is not there.
    pub(crate) fn insert(
        &mut self,
        database: u8,
        key: &[u8],
        value: Value,
        expire_at: u64,
        version: u64,
    ) -> Slot {
        let entry = Entry {
            key: ShortBytes::from_slice(key),
            value,
            expire_at,
            version,
            hash: self.database(database).hash(key),
            mark: self.mark(),
        };
        if let Some(undo) = self.undo_mut() {
            undo.keep(database, key, None);
        }
        let digesting = self.digest.is_some();
        let database = self.database_mut(database);
        let slot = database.insert(entry);
        if digesting {
            database.digest.see(slot);
        }
        slot
    }

    /// Whether `key` is in the slab, expired or not.
    pub(crate) fn holds(&self, database: u8, key: &[u8]) -> bool {
        let database = self.database(database);
        database.find(database.hash(key), key).is_some()
    }

    fn keep_all(&mut self, database: u8) {
        let Some(undo) = self.undo.as_deref_mut().filter(|undo| undo.is_kept()) else {
            return;
        };
        let database_number = database;
        let database = &self.databases[usize::from(database)];
        for (_, _, entry) in database.all_entries(0) {
            if !undo.takes_cleared(database.index.len()) {
                return undo.forget();
            }
            undo.keep(
                database_number,
                &entry.key,
                Some((&entry.value, entry.expire_at)),
            );
        }
    }

    fn clear(&mut self, database: u8) {
        self.keep_all(database);
        let empty = Database::new(self.database(database).hash_seed);
        let Database {
            slab,
            expiry,
            snapshot,
            digest,
            ..
        } = core::mem::replace(self.database_mut(database), empty);
        self.graveyard.bury_expiry(expiry.into_all());
        let mut detached = Detached {
            snapshot,
            digest,
            slab,
        };
        if self.snapshot.is_none() {
            detached.snapshot = SnapshotCursor::default();
        }
        if self.digest.is_none() {
            detached.digest = DigestCursor::default();
        }
        self.detached.push(detached);
        self.bury_detached();
    }

    /// Frees the slabs that no value uses any more.
    fn bury_detached(&mut self) {
        for detached in self.detached.extract_if(.., |detached| detached.is_done()) {
            self.graveyard.bury(detached.slab.into_chunks());
        }
    }

    /// Starts a snapshot; one in progress is dropped.
    pub(crate) fn begin_snapshot(&mut self, globals: Globals) {
        // Marks of older snapshots are only compared for equality, so a wrap-around is harmless
        // as long as 0, which free and restored entries carry, and GONE are left out.
        self.snapshot_last = (self.snapshot_last + 1) % GONE;
        self.snapshot_last = self.snapshot_last.max(1);
        for (number, database) in self.databases.iter_mut().enumerate() {
            database.snapshot = SnapshotCursor {
                origin: number as u8,
                next: 0,
                end: database.slab.end(),
            };
        }
        self.abandon_snapshot();
        if let Some(undo) = &mut self.undo {
            undo.begin_snapshot();
        }
        self.snapshot = Some(Snapshot::new(self.snapshot_last, globals));
    }

    /// Hands out the next part of the snapshot; true at its end, or when there is none.
    pub(crate) fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> bool {
        let Some(snapshot) = &mut self.snapshot else {
            return true;
        };
        let undo = self.undo.as_deref_mut();
        let done = snapshot.chunk(&mut self.databases, &mut self.detached, undo, out, budget);
        if done {
            self.snapshot = None;
        }
        self.bury_detached();
        done
    }

    /// Forgets the snapshot in progress.
    pub(crate) fn abandon_snapshot(&mut self) {
        self.snapshot = None;
        if let Some(undo) = &mut self.undo {
            undo.abandon_snapshot();
        }
        for detached in &mut self.detached {
            detached.snapshot = SnapshotCursor::default();
        }
        self.bury_detached();
    }

    /// Starts a digest as of `now`; one in progress is dropped.
    pub(crate) fn begin_digest(&mut self, now: u64, globals: &[u8]) {
        self.abandon_digest();
        for (number, database) in self.databases.iter_mut().enumerate() {
            database.digest = DigestCursor::new(number as u8, database.slab.end());
        }
        if let Some(undo) = &mut self.undo {
            undo.begin_digest();
        }
        self.digest = Some(Digest::new(now, globals));
    }

    /// Continues with the digest for about `budget` bytes; gives it at the end.
    pub(crate) fn digest_step(&mut self, budget: usize) -> Option<u128> {
        let digest = self.digest.as_mut()?;
        let undo = self.undo.as_deref_mut();
        let done = digest.step(&mut self.databases, &mut self.detached, undo, budget);
        if done.is_some() {
            self.abandon_digest();
        } else {
            self.bury_detached();
        }
        done
    }

    /// Forgets the digest in progress.
    pub(crate) fn abandon_digest(&mut self) {
        if self.digest.take().is_none() {
            return;
        }
        if let Some(undo) = &mut self.undo {
            undo.abandon_digest();
        }
        let databases = self
            .databases
            .iter_mut()
            .map(|database| &mut database.digest);
        let detached = self
            .detached
            .iter_mut()
            .map(|detached| &mut detached.digest);
        for cursor in databases.chain(detached) {
            *cursor = DigestCursor::default();
        }
        self.bury_detached();
    }

    /// A hash of all entries that exist at `now`, whatever their order.
    pub(crate) fn digest(&self, now: u64, globals: &[u8]) -> u128 {
        let mut digest = Digest::new(now, globals);
        for (number, database) in self.databases.iter().enumerate() {
            for (_, entry) in database.entries(0, now) {
                digest.add(number as u8, entry, None);
            }
        }
        for payload in self.undo.iter().flat_map(|undo| undo.payloads()) {
            digest.add_past(payload);
        }
        digest.finish()
    }
}

/// How a key's expiry changes when its value is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It does not expire.
    Never,
    /// It stays as it was.
    Keep,
    /// It expires at this time, in milliseconds since the Unix epoch.
    At(u64),
}

/// The keys as one command that may change them sees them: in one database, at one time.
///
/// A changed value gets the command's version, is written to a snapshot in progress before, and is
/// accounted for afterwards. A key that has expired is deleted as soon as it is touched.
#[derive(Debug)]
pub struct Keys<'a> {
    pub(crate) keyspace: &'a mut Keyspace,
    /// The database that the methods work on.
    pub database: u8,
    /// The command's time in milliseconds since the Unix epoch.
    pub now: u64,
    /// The version that changed keys get.
    pub version: u64,
}

impl Keys<'_> {
    #[inline]
    fn find(&mut self, key: &[u8]) -> Option<Slot> {
        let database = self.keyspace.database(self.database);
        let slot = database.find(database.hash(key), key)?;
        if database.slab.entry(slot).expire_at <= self.now {
            self.keyspace.delete_slot(self.database, slot);
            return None;
        }
        Some(slot)
    }

    #[inline]
    fn entry(&self, slot: Slot) -> &Entry {
        self.keyspace.database(self.database).slab.entry(slot)
    }

    /// Whether the key exists.
    pub fn exists(&mut self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// The key's value, whatever its type.
    pub fn value(&mut self, key: &[u8]) -> Option<&Value> {
        self.find(key).map(|slot| &self.entry(slot).value)
    }

    /// The key's value, whatever its type; an expired one is left where it is.
    #[must_use]
    pub fn peek(&self, key: &[u8]) -> Option<&Value> {
        let database = self.keyspace.database(self.database);
        database.get(key, self.now).map(|entry| &entry.value)
    }

    /// The key's value, if it exists, for looking only.
    ///
    /// # Errors
    /// When the value is of another type.
    pub fn read<T: Stored>(&mut self, key: &[u8]) -> Result<Option<&T>, crate::CommandError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => T::of(value).map(Some).ok_or(crate::CommandError::WrongType),
        }
    }

    /// The key's value, if it exists, to be looked at and perhaps changed.
    ///
    /// # Errors
    /// When the value is of another type.
    pub fn open<T: Stored>(
        &mut self,
        key: &[u8],
    ) -> Result<Option<Held<'_, T>>, crate::CommandError> {
        let Some(slot) = self.find(key) else {
            return Ok(None);
        };
        if T::of(&self.entry(slot).value).is_none() {
            return Err(crate::CommandError::WrongType);
        }
        Ok(Some(self.hold(slot)))
    }

    /// The key's value, an empty one if the key does not exist. A collection that is still empty
    /// when it is let go leaves no trace.
    ///
    /// # Errors
    /// When the value is of another type.
    pub fn open_or_create<T: Stored>(
        &mut self,
        key: &[u8],
    ) -> Result<Held<'_, T>, crate::CommandError> {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => {
                let empty = T::default().into_value();
                self.keyspace
                    .insert(self.database, key, empty, NEVER, self.version)
            }
        };
        if T::of(&self.entry(slot).value).is_none() {
            return Err(crate::CommandError::WrongType);
        }
        Ok(self.hold(slot))
    }

    fn hold<T: Stored>(&mut self, slot: Slot) -> Held<'_, T> {
        Held {
            keyspace: self.keyspace,
            database: self.database,
            slot,
            version: self.version,
            memory_before: None,
            kind: core::marker::PhantomData,
        }
    }

    /// Gives the key a value, replacing what it holds.
    pub fn set(&mut self, key: &[u8], value: Value, expiry: Expiry) {
        let Some(slot) = self.find(key) else {
            let expire_at = match expiry {
                Expiry::At(time) => time,
                Expiry::Never | Expiry::Keep => NEVER,
            };
            self.keyspace
                .insert(self.database, key, value, expire_at, self.version);
            return;
        };
        self.keyspace.before_change(self.database, slot);
        let version = self.version;
        let database = self.keyspace.database_mut(self.database);
        let entry = database.slab.entry_mut(slot);
        let before = entry.value.memory();
        entry.version = version;
        let replaced = core::mem::replace(&mut entry.value, value);
        database.memory = database.memory - before + entry.value.memory();
        self.keyspace.graveyard.bury_value(replaced);
        self.settle_expiry(slot, expiry);
    }

    /// Gives the key a string, in the place of the one it holds if that is possible.
    #[inline]
    pub fn set_string(&mut self, key: &[u8], bytes: &[u8], expiry: Expiry) {
        let Some(slot) = self.find(key) else {
            return self.set(key, Value::string(bytes), expiry);
        };
        self.keyspace.before_change(self.database, slot);
        let version = self.version;
        let database = self.keyspace.database_mut(self.database);
        let entry = database.slab.entry_mut(slot);
        entry.version = version;
        let before = entry.value.memory();
        match &mut entry.value {
            // A buffer far too large for what is in it now is given back.
            Value::String(string)
                if string.bytes.capacity() >= bytes.len()
                    && (bytes.len() >= string.bytes.capacity() / 2 || !string.bytes.spilled()) =>
            {
                string.bytes.clear();
                string.bytes.extend_from_slice(bytes);
                string.raw = false;
            }
            value => {
                let replaced = core::mem::replace(value, Value::string(bytes));
                let after = value.memory();
                database.memory = database.memory - before + after;
                self.keyspace.graveyard.bury_value(replaced);
                return self.settle_expiry(slot, expiry);
            }
        }
        database.memory = database.memory - before + entry.value.memory();
        self.settle_expiry(slot, expiry);
    }

    #[inline]
    fn settle_expiry(&mut self, slot: Slot, expiry: Expiry) {
        let expire_at = match expiry {
            Expiry::Keep => return,
            Expiry::Never => NEVER,
            Expiry::At(time) => time,
        };
        self.keyspace
            .database_mut(self.database)
            .set_expire_at(slot, expire_at);
    }

    /// When the key expires ([`NEVER`] if it does not), or `None` if it does not exist.
    pub fn expire_at(&mut self, key: &[u8]) -> Option<u64> {
        self.find(key).map(|slot| self.entry(slot).expire_at)
    }

    /// Changes when the key expires; false if it does not exist. A time that is not after the
    /// command's own deletes it.
    pub fn set_expire_at(&mut self, key: &[u8], expire_at: u64) -> bool {
        let Some(slot) = self.find(key) else {
            return false;
        };
        if expire_at <= self.now {
            self.keyspace.delete_slot(self.database, slot);
            return true;
        }
        if let Some(journal) = self.keyspace.begin_change(self.database, slot) {
            self.keyspace.end_change(self.database, slot, journal);
        }
        let version = self.version;
        let database = self.keyspace.database_mut(self.database);
        database.slab.entry_mut(slot).version = version;
        database.set_expire_at(slot, expire_at);
        true
    }

    /// Deletes the key; whether it existed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let slot = self.find(key);
        if let Some(slot) = slot {
            self.keyspace.delete_slot(self.database, slot);
        }
        slot.is_some()
    }

    /// Takes the key's value and the time at which it would have expired out of the database.
    pub fn take(&mut self, key: &[u8]) -> Option<(Value, u64)> {
        let slot = self.find(key)?;
        let entry = self.keyspace.remove_slot(self.database, slot);
        Some((entry.value, entry.expire_at))
    }

    /// The version of the command that changed the key last; 0 if it does not exist.
    pub fn version_of(&mut self, key: &[u8]) -> u64 {
        self.find(key).map_or(0, |slot| self.entry(slot).version)
    }

    /// Empties a database.
    pub fn clear(&mut self, database: u8) {
        self.keyspace.clear(database);
    }

    /// Exchanges the contents of two databases.
    pub fn swap(&mut self, one: u8, other: u8) {
        if let Some(undo) = self.keyspace.undo_mut()
            && one != other
        {
            undo.swap(one, other);
        }
        self.keyspace
            .databases
            .swap(usize::from(one), usize::from(other));
    }

    /// How many databases there are.
    #[must_use]
    pub fn databases(&self) -> u8 {
        self.keyspace.databases.len() as u8
    }
}

/// A value in the hands of a command. Reading it costs nothing; [`Self::change`] is what makes the
/// command one that changed the key. When it is let go, the memory is accounted for and a
/// collection that became empty is deleted.
#[derive(Debug)]
pub struct Held<'k, T: Stored> {
    keyspace: &'k mut Keyspace,
    database: u8,
    slot: Slot,
    version: u64,
    memory_before: Option<usize>,
    kind: core::marker::PhantomData<T>,
}

impl<T: Stored> Held<'_, T> {
    /// The value, to be changed.
    pub fn change(&mut self) -> &mut T {
        let mut journal = None;
        if self.memory_before.is_none() {
            journal = self.keyspace.begin_change(self.database, self.slot);
        }
        let entry = self.keyspace.databases[usize::from(self.database)]
            .slab
            .entry_mut(self.slot);
        if self.memory_before.is_none() {
            entry.version = self.version;
            self.memory_before = Some(entry.value.memory());
        }
        if journal.is_some()
            && let Some(its) = entry.value.journal()
        {
            *its = journal;
        }
        T::of_mut(&mut entry.value).expect("the type was checked when the value was opened")
    }

    /// When the key expires, or [`NEVER`].
    #[must_use]
    pub fn expire_at(&self) -> u64 {
        self.keyspace
            .database(self.database)
            .slab
            .entry(self.slot)
            .expire_at
    }
}

impl<T: Stored> core::ops::Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        let entry = self.keyspace.database(self.database).slab.entry(self.slot);
        T::of(&entry.value).expect("the type was checked when the value was opened")
    }
}

impl<T: Stored> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if let Some(before) = self.memory_before {
            let database = self.keyspace.database_mut(self.database);
            let entry = database.slab.entry_mut(self.slot);
            let after = entry.value.memory();
            let journal = entry.value.journal().and_then(Option::take);
            database.memory = database.memory - before + after;
            if let Some(journal) = journal {
                self.keyspace.end_change(self.database, self.slot, journal);
            }
        }
        if self.is_void() {
            self.keyspace.remove_slot(self.database, self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::list::{End, List};

    fn large() -> Value {
        let mut list = List::default();
        for _ in 0..100_000 {
            list.push(End::Right, b"e");
        }
        list.into_value()
    }

    #[test]
    fn large_values_are_freed_bit_by_bit_however_they_go() {
        let mut keyspace = Keyspace::new(1, 0);
        let mut keys = Keys {
            keyspace: &mut keyspace,
            database: 0,
            now: 1,
            version: 1,
        };
        for key in [b"a", b"b", b"c", b"d", b"e"] {
            keys.set(key, large(), Expiry::At(10));
        }
        keys.set(b"s", Value::string(&[b'x'; 100_000]), Expiry::Never);
        assert!(keys.remove(b"a"));
        keys.set(b"b", Value::string(b"v"), Expiry::Keep);
        keys.set_string(b"c", b"v", Expiry::Never);
        keys.set_string(b"s", b"v", Expiry::Never);
        keys.now = 10;
        assert!(!keys.exists(b"d"));
        keyspace.expire(10, 100);
        assert_eq!(keyspace.graveyard.elements(), 500_000);
        let mut turns = 0;
        while keyspace.graveyard.elements() > 0 {
            let before = keyspace.graveyard.elements();
            keyspace.free_some();
            let freed = before - keyspace.graveyard.elements();
            assert!((1..=before / 16 + 4096).contains(&freed));
            turns += 1;
        }
        assert!((10..100).contains(&turns), "{turns}");
        assert!(keyspace.memory() < 10_000);
    }
}
