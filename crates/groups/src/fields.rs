//! The fields of a service: values and maps, with or without their past.
//!
//! ```text
//!   Persistent<T>         value ── changed by version 7 ──► past: (ends 7, the value before)
//!   PersistentMap<K, V>   key ──► now, since ── the same, per key
//!   Volatile…             the same state without a past
//!
//!   fork      shares all storage: a snapshot, a digest, or a state as of an earlier version
//!   rewind    a fork answers as of a version: the first past value that ends behind it, or the present
//! ```
//!
//! All fields are replicated and part of snapshots. Past values may be [put away](crate::archive), at
//! each member as its memory is. Storage is shared by forks and copied where it
//! is written, one path of a tree at a time, so a snapshot delays no command.

use crate::{
    Version,
    archive::Archive,
    encoding,
    look::{self, Form, Look, Looked},
    past::{Loaded, Past, Progress, Steps, drop_until},
};
use quintet_replica::{RestoreError, digest::hash_wide};
use rpds::RedBlackTreeMapSync;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    borrow::Borrow,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    fmt,
    ops::{Bound, Deref, DerefMut},
    sync::Arc,
};

/// The content of a field: plain data.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a value of a service's field",
    label = "not a plain value",
    note = "values are `Clone + Send + Sync + 'static`, serde's `Serialize` and `DeserializeOwned`: \
            derive them"
)]
pub trait Value: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static> Value for T {}

/// A key of a map: plain data with an order.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key of a service's map",
    label = "not a key",
    note = "keys are plain values (`Clone`, serde's `Serialize` and `DeserializeOwned`) and `Ord`"
)]
pub trait Key: Value + Ord {}
impl<T: Value + Ord> Key for T {}

/// A field of a service: [`Persistent`], [`PersistentMap`], [`Volatile`] or [`VolatileMap`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a service",
    label = "not replicated",
    note = "fields are `Persistent<T>`, `PersistentMap<K, V>`, `Volatile<T>` or `VolatileMap<K, V>`"
)]
pub trait Field: AnyField + Default + Sized + 'static {
    /// Whether it answers as of earlier versions.
    const VERSIONED: bool;
    /// The text of its keys and values.
    const FORM: Form;

    /// The same content, sharing storage.
    #[must_use]
    fn fork(&self) -> Self;
}

/// How far a field's records have been written.
#[derive(Debug, Default)]
pub struct FieldCursor {
    /// The key of the last record, encoded.
    key: Option<Vec<u8>>,
    /// Records of that key so far.
    records: usize,
    done: bool,
}

/// A past or present value, as a history tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The version that made it.
    pub since: u64,
    /// Its encoding; `None` where a map has no such key.
    pub value: Option<Vec<u8>>,
}

/// A history tells of no more values behind this many bytes, and of no more than this number: those
/// that were put away may be more than memory takes, and are read while others wait.
const HISTORY_BYTES: usize = 64 << 20;
const HISTORY_VALUES: usize = 10_000;

/// The first of these values, as many as a history tells.
fn told(values: impl Iterator<Item = Held>, limit: usize) -> Vec<Held> {
    let mut bytes = 0;
    // No command made the value that every field begins with.
    let made = values
        .filter(|held| held.since > 0)
        .take(limit.min(HISTORY_VALUES));
    let told = made.take_while(|held| {
        let has_room = bytes < HISTORY_BYTES;
        bytes += held.value.as_ref().map_or(0, Vec::len);
        has_room
    });
    told.collect()
}

impl Held {
    fn past<V: Value>(past: &Past<V>) -> Self {
        Self {
            since: past.since,
            value: past.encoding(),
        }
    }
}

/// The operations of the machine around a service on a field of any type. For this crate.
pub trait AnyField: Send {
    /// The service has been made: its content is what every member begins with.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn settle(&mut self) -> Result<(), String>;
    /// Whether the command that has just been executed changed it, so that there is a new version.
    ///
    /// # Errors
    /// When its content cannot be kept.
    fn changed(&mut self) -> Result<bool, String>;
    /// That command is over. Its changes are of this version; where there is none, nothing changed
    /// that has versions.
    fn commit(&mut self, version: u64, archive: &dyn Archive);
    /// The command panicked: what it has changed is as it was, as far as earlier versions show it.
    fn undo(&mut self);
    /// Of a fork: answers as of this version from now on.
    fn rewind(&mut self, version: u64);
    /// Versions below this one are not asked for any more.
    fn trim(&mut self, horizon: u64, archive: &dyn Archive);
    /// Bytes that only past versions need.
    fn past_bytes(&self) -> u64;
    /// Bytes of all that is in memory, about.
    fn bytes(&self) -> u64;
    /// Appends the next record of its content; false when there is none.
    fn next_record(&self, cursor: &mut FieldCursor, out: &mut Vec<u8>) -> bool;
    /// Is as if nothing had been put into it: records follow.
    fn empty(&mut self);
    /// Takes a record.
    ///
    /// # Errors
    /// When it is malformed.
    fn read_record(&mut self, record: &[u8], archive: &dyn Archive) -> Result<(), RestoreError>;
    /// All records were taken.
    fn finish_read(&mut self);
    /// Up to `limit` values, the newest first, and no more behind `HISTORY_BYTES` of them: of a map
    /// the values of this key. `None` where the key cannot be one, or the field has no past.
    fn history(&self, key: Option<&[u8]>, limit: usize) -> Option<Vec<Held>>;
    /// A value, or keys, as it is or as of a version. `None` where the key cannot be one, or it is no
    /// map.
    fn look(&self, asked: &Look<'_>, as_of: Option<u64>) -> Option<Looked>;
}

fn broken() -> RestoreError {
    RestoreError("a field's record cannot be decoded".to_owned())
}

fn decoded<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RestoreError> {
    encoding::decode(bytes).ok_or_else(broken)
}

/// A value of which every version is kept, as long as the shard's [`Retention`](crate::Retention)
/// says. A command that leaves its encoding as it was makes no version.
pub struct Persistent<T> {
    value: Arc<T>,
    since: u64,
    /// As it was before the command, once that has taken hold of it.
    before: Option<Arc<T>>,
    past: Arc<VecDeque<Past<T>>>,
    progress: Progress,
    past_bytes: u64,
    /// Hash and length of the encoding: of the last version, and of the command's.
    known: (u128, u64),
    next: (u128, u64),
    /// A record has been read.
    is_read: bool,
}

impl<T: Value + Default> Default for Persistent<T> {
    fn default() -> Self {
        Self {
            value: Arc::default(),
            since: 0,
            before: None,
            past: Arc::default(),
            progress: Progress::default(),
            past_bytes: 0,
            known: (0, 0),
            next: (0, 0),
            is_read: false,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Persistent<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}

impl<T> Deref for Persistent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Value> DerefMut for Persistent<T> {
    fn deref_mut(&mut self) -> &mut T {
        if self.before.is_none() {
            self.before = Some(self.value.clone());
        }
        Arc::make_mut(&mut self.value)
    }
}

impl<T: Value + Default> Field for Persistent<T> {
    const VERSIONED: bool = true;
    const FORM: Form = Form::of_value::<T>();

    fn fork(&self) -> Self {
        Self {
            value: self.value.clone(),
            since: self.since,
            before: None,
            past: self.past.clone(),
            progress: self.progress,
            past_bytes: self.past_bytes,
            known: self.known,
            next: self.next,
            is_read: false,
        }
    }
}

/// Hash and length of the encoding of a value that can be kept.
fn known<T: Value>(value: &T) -> Result<(u128, u64), String> {
    let bytes = encoding::checked(value)?;
    Ok((hash_wide(&bytes), bytes.len() as u64))
}

impl<T: Value> AnyField for Persistent<T> {
    fn settle(&mut self) -> Result<(), String> {
        self.before = None;
        self.known = known(&*self.value)?;
        Ok(())
    }

    fn changed(&mut self) -> Result<bool, String> {
        if self.before.is_none() {
            return Ok(false);
        }
        self.next = known(&*self.value)?;
        let changed = self.next != self.known;
        if !changed {
            self.before = None;
        }
        Ok(changed)
    }

    fn commit(&mut self, version: u64, archive: &dyn Archive) {
        let Some(before) = self.before.take() else {
            return;
        };
        let past = Past::new(self.since, version, Some(before), self.known.1);
        self.past_bytes += past.bytes;
        self.progress.add(&past, archive);
        let all = Arc::make_mut(&mut self.past);
        all.push_back(past);
        let mut steps = Steps::behind(1);
        while let Some(next) = self.progress.next(all.len(), archive)
            && self.progress.put_away(&mut all[next], archive, &mut steps)
        {}
        self.since = version;
        self.known = self.next;
    }

    fn undo(&mut self) {
        if let Some(before) = self.before.take() {
            self.value = before;
        }
    }

    fn rewind(&mut self, version: u64) {
        if let Some(past) = past_at(&self.past, version)
            && let Some(value) = &past.value
        {
            (self.since, self.value) = (past.since, value.value());
        }
    }

    fn trim(&mut self, horizon: u64, archive: &dyn Archive) {
        if self.past.front().is_some_and(|past| past.ends <= horizon) {
            let (all, progress) = (Arc::make_mut(&mut self.past), &mut self.progress);
            self.past_bytes -= drop_until(all, horizon, |dropped| {
                progress.dropped(dropped, archive);
                progress.drop_first();
            });
        }
    }

    fn past_bytes(&self) -> u64 {
        self.past_bytes
    }

    fn bytes(&self) -> u64 {
        self.past_bytes - self.progress.away() + self.known.1
    }

    fn next_record(&self, cursor: &mut FieldCursor, out: &mut Vec<u8>) -> bool {
        let place = cursor.records;
        if place > self.past.len() {
            return false;
        }
        cursor.records += 1;
        match self.past.get(place) {
            Some(past) => {
                encoding::append(&past.since, out);
                past.append(out);
            }
            None => encoding::append(&(self.since, Some(&*self.value)), out),
        }
        true
    }

    fn empty(&mut self) {
        self.before = None;
        self.since = 0;
        self.past = Arc::default();
        self.progress = Progress::default();
        self.past_bytes = 0;
        self.is_read = false;
    }

    fn read_record(&mut self, record: &[u8], archive: &dyn Archive) -> Result<(), RestoreError> {
        let (since, value): (u64, Option<T>) = decoded(record)?;
        let value = Arc::new(value.ok_or_else(broken)?);
        let before = std::mem::replace(&mut self.value, value);
        // The first record replaces what a new field has.
        if std::mem::replace(&mut self.is_read, true) {
            if since <= self.since {
                return Err(broken());
            }
            let mut past = Past::new(self.since, since, Some(before), self.known.1);
            self.progress.restore(&mut past, archive);
            self.past_bytes += past.bytes;
            Arc::make_mut(&mut self.past).push_back(past);
        }
        self.since = since;
        self.known.1 = encoding::length(&*self.value);
        Ok(())
    }

    fn finish_read(&mut self) {
        self.progress.finish_restore(self.past.len());
        // It has just been read.
        self.known = known(&*self.value).unwrap_or_default();
    }

    fn history(&self, key: Option<&[u8]>, limit: usize) -> Option<Vec<Held>> {
        if key.is_some() {
            return None;
        }
        let now = std::iter::once(Held {
            since: self.since,
            value: Some(encoding::encode(&*self.value)),
        });
        let past = self.past.iter().rev().map(Held::past);
        Some(told(now.chain(past), limit))
    }

    fn look(&self, asked: &Look<'_>, as_of: Option<u64>) -> Option<Looked> {
        let is_it = *asked == Look::Value(None);
        let past = as_of.and_then(|version| past_at(&self.past, version));
        is_it.then(|| match past {
            Some(past) => look::past(past),
            None => look::value(Some(self.since), Some(&*self.value)),
        })
    }
}

/// The first that ends behind a version.
fn past_at<V>(past: &VecDeque<Past<V>>, version: u64) -> Option<&Past<V>> {
    let at = past.partition_point(|past| past.ends <= version);
    past.get(at)
}

/// The values under a key of a map.
#[derive(Clone, Debug)]
struct Slot<V> {
    now: Option<Arc<V>>,
    /// That of the encoding of the value that was committed last.
    length: u64,
    since: u64,
    past: VecDeque<Past<V>>,
}

impl<V: Value> Slot<V> {
    /// Since when which value is there, as of a version.
    fn at<'a>(&'a self, version: Option<u64>, loaded: &'a Loaded<V>) -> (u64, Option<&'a V>) {
        match self.past_at(version) {
            Some(past) => {
                let value = past.value.as_ref();
                (past.since, value.map(|kept| loaded.value(kept)))
            }
            None => (self.since, self.now.as_deref()),
        }
    }

    fn past_at(&self, version: Option<u64>) -> Option<&Past<V>> {
        past_at(&self.past, version?)
    }

    /// Whether a value is there, wherever it is kept.
    fn is_there(&self, version: Option<u64>) -> bool {
        match self.past_at(version) {
            Some(past) => past.value.is_some(),
            None => self.now.is_some(),
        }
    }
}

/// A key that the running command has changed.
struct Touched<V> {
    /// Its value before the command.
    before: Option<Arc<V>>,
    /// The length of the encoding of its value behind it.
    length: u64,
}

/// Bytes for a map's entry besides the encodings of its key and value.
const ENTRY_WEIGHT: u64 = 128;

/// The map behind [`PersistentMap`] (`PAST`) and [`VolatileMap`]: ordered by its keys.
///
/// Each insertion, removal of a key that is there, and [`get_mut`](Self::get_mut) is a change.
pub struct ServiceMap<K, V, const PAST: bool> {
    slots: RedBlackTreeMapSync<K, Slot<V>>,
    /// Keys with a present value.
    len: usize,
    touched: BTreeMap<K, Touched<V>>,
    as_of: Option<u64>,
    /// Which keys have past values, in the order in which these end.
    ends: VecDeque<(u64, K)>,
    progress: Progress,
    loaded: Loaded<V>,
    past_bytes: u64,
    bytes: u64,
}

/// A map of which every version is kept.
pub type PersistentMap<K, V> = ServiceMap<K, V, true>;
/// A map that has its present content only.
pub type VolatileMap<K, V> = ServiceMap<K, V, false>;

impl<K: Ord, V, const PAST: bool> Default for ServiceMap<K, V, PAST> {
    fn default() -> Self {
        Self {
            slots: RedBlackTreeMapSync::new_sync(),
            len: 0,
            touched: BTreeMap::new(),
            as_of: None,
            ends: VecDeque::new(),
            progress: Progress::default(),
            loaded: Loaded::default(),
            past_bytes: 0,
            bytes: 0,
        }
    }
}

impl<K: Ord + fmt::Debug, V: Value + fmt::Debug, const PAST: bool> fmt::Debug
    for ServiceMap<K, V, PAST>
{
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord, V: Value, const PAST: bool> ServiceMap<K, V, PAST> {
    fn entries<'a>(
        &'a self,
        slots: impl Iterator<Item = (&'a K, &'a Slot<V>)>,
    ) -> impl Iterator<Item = (&'a K, &'a V)> {
        slots.filter_map(|(key, slot)| Some((key, slot.at(self.as_of, &self.loaded).1?)))
    }

    /// The value under a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.slots.get(key)?.at(self.as_of, &self.loaded).1
    }

    /// Whether there is such a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let slot = self.slots.get(key);
        slot.is_some_and(|slot| slot.is_there(self.as_of))
    }

    /// The entries in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries(self.slots.iter())
    }

    /// The entries from this key on, in the order of the keys.
    pub fn from<'a, Q: Ord + ?Sized>(&'a self, key: &'a Q) -> impl Iterator<Item = (&'a K, &'a V)>
    where
        K: Borrow<Q>,
    {
        let range = (Bound::Included(key), Bound::Unbounded);
        self.entries(self.slots.range(range))
    }

    /// The keys that have a value, wherever that is kept.
    fn there(&self) -> impl Iterator<Item = &K> {
        let slots = self.slots.iter();
        slots.filter_map(|(key, slot)| slot.is_there(self.as_of).then_some(key))
    }

    /// Number of entries. Walks over them all where it is asked for an earlier version.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.as_of {
            Some(_) => self.there().count(),
            None => self.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self.as_of {
            Some(_) => self.there().next().is_none(),
            None => self.len == 0,
        }
    }
}

impl<K: Ord, V: Value> PersistentMap<K, V> {
    /// The value under a key and the version that set it; in a command that has set it itself, the
    /// version before.
    pub fn get_versioned<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(Version, &V)>
    where
        K: Borrow<Q>,
    {
        let (since, value) = self.slots.get(key)?.at(self.as_of, &self.loaded);
        value.map(|value| (Version(since), value))
    }
}

impl<K: Key, V: Value, const PAST: bool> ServiceMap<K, V, PAST> {
    /// Puts a value under a key.
    pub fn insert(&mut self, key: K, value: V) {
        self.touch(&key);
        self.set(key, Some(Arc::new(value)));
    }

    /// Takes a key away and says whether it was there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let Some((key, slot)) = self.slots.get_key_value(key) else {
            return false;
        };
        if slot.now.is_none() {
            return false;
        }
        let key = key.clone();
        self.touch(&key);
        self.set(key, None);
        true
    }

    /// The value under a key, to be changed in place.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (key, slot) = self.slots.get_key_value(key)?;
        slot.now.as_ref()?;
        let key = key.clone();
        self.touch(&key);
        let slot = self.slots.get_mut::<K>(&key)?;
        slot.now.as_mut().map(Arc::make_mut)
    }

    /// Takes all entries away, in one step as all that a command does: of a large map rather the first
    /// ones in each of several commands, which other commands come between.
    pub fn clear(&mut self) {
        let keys: Vec<K> = self.iter().map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    fn touch(&mut self, key: &K) {
        if !self.touched.contains_key(key) {
            let before = self.slots.get(key).and_then(|slot| slot.now.clone());
            let touched = Touched { before, length: 0 };
            self.touched.insert(key.clone(), touched);
        }
    }

    fn set(&mut self, key: K, value: Option<Arc<V>>) {
        let is_there = value.is_some();
        let was_there = match self.slots.get_mut(&key) {
            Some(slot) => std::mem::replace(&mut slot.now, value).is_some(),
            None => {
                let slot = Slot {
                    now: value,
                    length: 0,
                    since: 0,
                    past: VecDeque::new(),
                };
                self.slots.insert_mut(key, slot);
                false
            }
        };
        self.len = self.len + usize::from(is_there) - usize::from(was_there);
    }
}

impl<V: Value> Slot<V> {
    /// Bytes of the entry as it was committed last; `key` are those of its key.
    fn bytes(&self, key: u64) -> u64 {
        self.now
            .as_ref()
            .map_or(0, |_| ENTRY_WEIGHT + key + self.length)
    }

    /// Another value from this version on; gives the one before.
    fn follow(&mut self, value: Option<Arc<V>>, length: u64, since: u64) -> Past<V> {
        let before = std::mem::replace(&mut self.now, value);
        let past = Past::new(self.since, since, before, self.length);
        (self.length, self.since) = (length, since);
        past
    }
}

impl<K: Key, V: Value, const PAST: bool> Field for ServiceMap<K, V, PAST> {
    const VERSIONED: bool = PAST;
    const FORM: Form = Form::of_map::<K, V>();

    fn fork(&self) -> Self {
        Self {
            slots: self.slots.clone(),
            len: self.len,
            touched: BTreeMap::new(),
            as_of: self.as_of,
            // A fork is not written to.
            ends: VecDeque::new(),
            progress: Progress::default(),
            loaded: Loaded::default(),
            past_bytes: self.past_bytes,
            bytes: self.bytes,
        }
    }
}

impl<K: Key, V: Value, const PAST: bool> AnyField for ServiceMap<K, V, PAST> {
    fn settle(&mut self) -> Result<(), String> {
        self.touched.clear();
        self.bytes = 0;
        let keys: Vec<K> = self.slots.keys().cloned().collect();
        for key in keys {
            let length = encoding::checked(&key)?.len() as u64;
            if let Some(slot) = self.slots.get_mut(&key) {
                let value = slot.now.as_deref().map(encoding::checked).transpose()?;
                slot.length = value.map_or(0, |bytes| bytes.len() as u64);
                self.bytes += slot.bytes(length);
            }
        }
        Ok(())
    }

    fn changed(&mut self) -> Result<bool, String> {
        // A key that came and went within the command has not changed.
        let slots = &mut self.slots;
        self.touched.retain(|key, touched| {
            let Some(slot) = slots.get(key) else {
                return false;
            };
            let has_changed = touched.before.is_some() || slot.now.is_some();
            if !has_changed && slot.past.is_empty() {
                slots.remove_mut(key);
            }
            has_changed
        });
        for (key, touched) in &mut self.touched {
            let now = self.slots.get(key).and_then(|slot| slot.now.as_deref());
            if let Some(value) = now {
                encoding::checked(key)?;
                touched.length = encoding::checked(value)?.len() as u64;
            }
        }
        Ok(PAST && !self.touched.is_empty())
    }

    fn commit(&mut self, version: u64, archive: &dyn Archive) {
        let mut steps = Steps::behind(self.touched.len());
        for (key, Touched { before, length }) in std::mem::take(&mut self.touched) {
            let Some(slot) = self.slots.get_mut(&key) else {
                continue;
            };
            let key_length = encoding::length(&key);
            let now = std::mem::replace(&mut slot.now, before);
            let bytes = slot.bytes(key_length);
            let past = slot.follow(now, length, version);
            self.bytes = (self.bytes + slot.bytes(key_length)).saturating_sub(bytes);
            if PAST {
                self.past_bytes += past.bytes;
                self.progress.add(&past, archive);
                slot.past.push_back(past);
                self.ends.push_back((version, key));
            } else if slot.now.is_none() {
                self.slots.remove_mut(&key);
            }
        }
        while let Some(next) = self.progress.next(self.ends.len(), archive) {
            let (ends, key) = &self.ends[next];
            let slot = self.slots.get_mut(key).expect("a key that has a past");
            let at = slot.past.partition_point(|past| past.ends < *ends);
            let past = &mut slot.past[at];
            if !self.progress.put_away(past, archive, &mut steps) {
                break;
            }
        }
    }

    fn undo(&mut self) {
        for (key, touched) in std::mem::take(&mut self.touched) {
            self.set(key, touched.before);
        }
    }

    fn rewind(&mut self, version: u64) {
        self.as_of = Some(version);
    }

    fn trim(&mut self, horizon: u64, archive: &dyn Archive) {
        while self.ends.front().is_some_and(|(ends, _)| *ends <= horizon) {
            let Some((_, key)) = self.ends.pop_front() else {
                break;
            };
            let progress = &mut self.progress;
            progress.drop_first();
            let Some(slot) = self.slots.get_mut(&key) else {
                continue;
            };
            self.past_bytes -= drop_until(&mut slot.past, horizon, |dropped| {
                progress.dropped(dropped, archive);
            });
            if slot.now.is_none() && slot.past.is_empty() {
                self.slots.remove_mut(&key);
            }
        }
    }

    fn past_bytes(&self) -> u64 {
        self.past_bytes
    }

    fn bytes(&self) -> u64 {
        self.past_bytes - self.progress.away() + self.bytes
    }

    fn next_record(&self, cursor: &mut FieldCursor, out: &mut Vec<u8>) -> bool {
        if cursor.done {
            return false;
        }
        let last: Option<K> = cursor.key.as_deref().and_then(encoding::decode);
        let mut slots = match &last {
            Some(key) => self.slots.range((Bound::Included(key), Bound::Unbounded)),
            None => self.slots.range((Bound::<&K>::Unbounded, Bound::Unbounded)),
        };
        let mut found = slots.next();
        if let (Some((_, slot)), Some(_)) = (found, &last)
            && cursor.records > slot.past.len()
        {
            found = slots.next();
            cursor.records = 0;
        }
        let Some((key, slot)) = found else {
            cursor.done = true;
            return false;
        };
        match slot.past.get(cursor.records) {
            Some(past) => {
                encoding::append(&(key, past.since), out);
                past.append(out);
            }
            None => encoding::append(&(key, slot.since, slot.now.as_deref()), out),
        }
        cursor.records += 1;
        cursor.key = Some(encoding::encode(key));
        true
    }

    fn empty(&mut self) {
        *self = Self::default();
    }

    fn read_record(&mut self, record: &[u8], archive: &dyn Archive) -> Result<(), RestoreError> {
        let (key, since, value): (K, u64, Option<V>) = decoded(record)?;
        let (key_length, length) = (
            encoding::length(&key),
            value.as_ref().map_or(0, encoding::length),
        );
        let value = value.map(Arc::new);
        self.len += usize::from(value.is_some());
        let Some(slot) = self.slots.get_mut(&key) else {
            let slot = Slot {
                now: value,
                length,
                since,
                past: VecDeque::new(),
            };
            self.bytes += slot.bytes(key_length);
            self.slots.insert_mut(key, slot);
            return Ok(());
        };
        if since <= slot.since && slot.since > 0 {
            return Err(broken());
        }
        self.len -= usize::from(slot.now.is_some());
        let bytes = slot.bytes(key_length);
        let mut past = slot.follow(value, length, since);
        self.progress.restore(&mut past, archive);
        self.bytes = (self.bytes + slot.bytes(key_length)).saturating_sub(bytes);
        self.past_bytes += past.bytes;
        slot.past.push_back(past);
        Ok(())
    }

    fn finish_read(&mut self) {
        let mut ends = BinaryHeap::new();
        for (key, slot) in self.slots.iter() {
            ends.extend(slot.past.iter().map(|past| (past.ends, key.clone())));
        }
        self.ends = ends.into_sorted_vec().into();
        self.progress.finish_restore(self.ends.len());
    }

    fn history(&self, key: Option<&[u8]>, limit: usize) -> Option<Vec<Held>> {
        let key: K = encoding::decode(key?)?;
        if !PAST {
            return None;
        }
        let Some(slot) = self.slots.get(&key) else {
            return Some(Vec::new());
        };
        let now = std::iter::once(Held {
            since: slot.since,
            value: slot.now.as_deref().map(encoding::encode),
        });
        let past = slot.past.iter().rev().map(Held::past);
        Some(told(now.chain(past), limit))
    }

    fn look(&self, asked: &Look<'_>, as_of: Option<u64>) -> Option<Looked> {
        match *asked {
            Look::Value(Some(key)) => {
                let slot = self.slots.get(&encoding::decode::<K>(key)?);
                Some(
                    slot.map_or(Looked::Nothing, |slot| match slot.past_at(as_of) {
                        Some(past) => look::past(past),
                        None => look::value(PAST.then_some(slot.since), slot.now.as_deref()),
                    }),
                )
            }
            Look::Keys { from, count } => {
                let from: Option<K> = match from {
                    Some(from) => Some(encoding::decode(from)?),
                    None => None,
                };
                let from = from.as_ref().map_or(Bound::Unbounded, Bound::Included);
                let slots = self.slots.range((from, Bound::Unbounded));
                let keys = slots.map(|(key, slot)| (key, slot.is_there(as_of)));
                Some(look::keys(keys, count))
            }
            Look::Version | Look::Value(None) => None,
        }
    }
}

/// A value that has its present content only.
pub struct Volatile<T> {
    value: Arc<T>,
    is_dirty: bool,
    length: u64,
}

impl<T: Default> Default for Volatile<T> {
    fn default() -> Self {
        Self {
            value: Arc::default(),
            is_dirty: false,
            length: 0,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Volatile<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}

impl<T> Deref for Volatile<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Value> DerefMut for Volatile<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.is_dirty = true;
        Arc::make_mut(&mut self.value)
    }
}

impl<T: Value + Default> Field for Volatile<T> {
    const VERSIONED: bool = false;
    const FORM: Form = Form::of_value::<T>();

    fn fork(&self) -> Self {
        Self {
            value: self.value.clone(),
            is_dirty: false,
            length: self.length,
        }
    }
}

impl<T: Value> AnyField for Volatile<T> {
    fn settle(&mut self) -> Result<(), String> {
        self.is_dirty = true;
        self.changed().map(drop)
    }
    fn changed(&mut self) -> Result<bool, String> {
        if std::mem::take(&mut self.is_dirty) {
            self.length = known(&*self.value)?.1;
        }
        Ok(false)
    }
    fn commit(&mut self, _: u64, _: &dyn Archive) {}
    fn undo(&mut self) {}
    fn rewind(&mut self, _: u64) {}
    fn trim(&mut self, _: u64, _: &dyn Archive) {}
    fn past_bytes(&self) -> u64 {
        0
    }
    fn bytes(&self) -> u64 {
        self.length
    }
    fn next_record(&self, cursor: &mut FieldCursor, out: &mut Vec<u8>) -> bool {
        let is_first = !std::mem::replace(&mut cursor.done, true);
        if is_first {
            encoding::append(&*self.value, out);
        }
        is_first
    }
    fn empty(&mut self) {}
    fn read_record(&mut self, record: &[u8], _: &dyn Archive) -> Result<(), RestoreError> {
        self.value = Arc::new(decoded(record)?);
        self.length = record.len() as u64;
        Ok(())
    }
    fn finish_read(&mut self) {}
    fn history(&self, _: Option<&[u8]>, _: usize) -> Option<Vec<Held>> {
        None
    }
    fn look(&self, asked: &Look<'_>, _: Option<u64>) -> Option<Looked> {
        let is_it = *asked == Look::Value(None);
        is_it.then(|| look::value(None, Some(&*self.value)))
    }
}
