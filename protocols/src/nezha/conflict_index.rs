//! Conflicts in a log: its watermarks and its hashes, and those of what it no longer holds.

use super::{
    Summary,
    conflict::{Footprint, Marks, SetHash, time_of},
    dom::Stamp,
    entry::Entry,
};
use alloc::collections::BTreeMap;
use quintet_replica::{Slot, parts::SlotLog};

/// Hashes leave out what is committed in steps of this many slots.
const HASH_SPAN: u64 = 4096;
/// Of no more entries it is checked whether the hash is theirs.
const HASH_CHECKED_MAX: usize = 256;
/// The most keys that a leader watches before it begins the next quantum early.
const MARKS_MAX: usize = 65_536;

type Slots = SlotLog<Entry>;
type Unsynced = BTreeMap<Stamp, Entry>;

/// See the module.
#[derive(Hash)]
pub(super) struct ConflictIndex {
    /// Of all that is in the log.
    marks: Marks,
    /// Of what the log no longer holds.
    marks_trimmed: Marks,
    hash: SetHash,
    /// Of the slots above the hashes' base that the log no longer holds.
    hash_trimmed: SetHash,
    /// Of an injected bug.
    same_for_all_keys: bool,
}

/// The last slot up to which hashes leave out what is committed.
const fn base_of(slot: Slot) -> Slot {
    Slot(slot.0 / HASH_SPAN * HASH_SPAN)
}

fn all<'a>(
    slots: &'a Slots,
    unsynced: &'a Unsynced,
    from: Slot,
) -> impl Iterator<Item = &'a Entry> {
    let slots = slots.iter_from(from).map(|(_, entry)| entry);
    slots.chain(unsynced.values())
}

impl ConflictIndex {
    pub fn new(same_for_all_keys: bool) -> Self {
        let hash = SetHash::above(Slot(0), same_for_all_keys);
        Self {
            marks: Marks::default(),
            marks_trimmed: Marks::default(),
            hash: hash.clone(),
            hash_trimmed: hash,
            same_for_all_keys,
        }
    }

    // --------------------------------------------------------------------------- watermarks

    /// Whether a batch may be put behind all that is in the log.
    pub fn admits(&self, stamp: Stamp, footprint: &Footprint) -> bool {
        self.marks.admit(stamp, footprint)
    }

    /// The lowest deadline above all that conflicts.
    pub fn deadline_min(&self, footprint: &Footprint) -> u64 {
        self.marks.deadline_min(footprint)
    }

    /// The lowest deadline above all that is in the log.
    pub const fn deadline_past(&self) -> u64 {
        self.marks.deadline_past()
    }

    /// The deadline that ends this quantum, when too many keys are watched in it.
    pub fn deadline_crowded(&self) -> u64 {
        match self.marks.watched() > MARKS_MAX {
            true => self.marks.deadline_next(),
            false => 0,
        }
    }

    /// An entry is in the log.
    pub fn note(&mut self, entry: &Entry) {
        self.marks.note(entry.stamp, &entry.footprint);
    }

    /// The watermarks of the log up to `slot`: those of its quantum, which is the last one.
    pub fn marks_upto(&self, slots: &Slots, slot: Slot) -> Marks {
        let mut marks = self.marks_trimmed.clone();
        let time = |slot| (slots.get(slot)).map(|entry| time_of(entry.stamp.deadline));
        let mut first = slot;
        while first > slots.first() && time(first.previous()) == time(slot) {
            first = first.previous();
        }
        for (_, entry) in (slots.iter_from(first)).take_while(|(at, _)| *at <= slot) {
            marks.note(entry.stamp, &entry.footprint);
        }
        marks
    }

    /// Only what is in slots up to `slot` counts; nothing is in others, when `trimmed`.
    pub fn cut(&mut self, slots: &Slots, slot: Slot, trimmed: bool) {
        self.marks = self.marks_upto(slots, slot);
        if trimmed {
            self.marks_trimmed = self.marks.clone();
        }
    }

    /// The log no longer holds what is up to `slot`.
    pub fn trim(&mut self, slots: &Slots, slot: Slot) {
        self.marks_trimmed = self.marks_upto(slots, slot);
    }

    // ------------------------------------------------------------------------------- hashes

    /// An entry is appended; it tells the hash from now on.
    pub fn append(&mut self, entry: &mut Entry) {
        let hash = self.hash.append(entry.stamp, &entry.footprint);
        entry.hash = (self.hash.base, hash, self.hash.known);
    }

    /// An entry leaves the log.
    pub fn remove(&mut self, entry: &Entry) {
        self.hash.remove(entry.stamp, &entry.footprint);
    }

    /// An entry has another deadline than before.
    pub fn moved(&mut self, before: Stamp, entry: &Entry) {
        self.hash.remove(before, &entry.footprint);
        self.hash.add(entry.stamp, &entry.footprint);
    }

    /// A slot is trimmed.
    pub fn trimmed(&mut self, slot: Slot, entry: &Entry) {
        if slot > self.hash_trimmed.base {
            self.hash_trimmed.add(entry.stamp, &entry.footprint);
        }
    }

    /// Leaves what is committed out of the hashes.
    pub fn raise_base(&mut self, slots: &Slots, unsynced: &Unsynced, commit: Slot) {
        let base = base_of(commit);
        if base > self.hash.base {
            self.hash_above(slots, unsynced, base, slots.first() <= base.next());
        }
    }

    /// Begins the hashes again above `base`, which no trimmed slot lies behind, or they are not
    /// `known`.
    fn hash_above(&mut self, slots: &Slots, unsynced: &Unsynced, base: Slot, known: bool) {
        self.hash_trimmed = SetHash::above(base, self.same_for_all_keys);
        self.hash_trimmed.known = known;
        self.count(slots, unsynced);
    }

    /// The hashes of the log up to `slot`, above the base that is common there.
    fn hash_upto(&self, slots: &Slots, slot: Slot) -> SetHash {
        let base = base_of(slot);
        let mut hash = self.hash_trimmed.clone();
        if base > hash.base {
            hash = SetHash::above(base, self.same_for_all_keys);
            hash.known = slots.first() <= base.next();
        }
        let entries = slots.iter_from(hash.base.next());
        for (_, entry) in entries.take_while(|(at, _)| *at <= slot) {
            hash.add(entry.stamp, &entry.footprint);
        }
        hash
    }

    /// The hashes of all that is held above their base.
    pub fn count(&mut self, slots: &Slots, unsynced: &Unsynced) {
        self.hash = self.hash_trimmed.clone();
        for entry in all(slots, unsynced, self.hash.base.next()) {
            self.hash.add(entry.stamp, &entry.footprint);
        }
    }

    // --------------------------------------------------------------------------- both of them

    /// The part of a state about the log up to `slot`, which is `whole` when nothing is behind it.
    pub fn summary(&self, slots: &Slots, slot: Slot, whole: bool) -> Summary {
        let marks = match whole {
            true => self.marks.clone(),
            false => self.marks_upto(slots, slot),
        };
        let hash = self.hash_upto(slots, slot);
        Summary { marks, hash }
    }

    /// Continues from what a state tells up to `slot`, behind which the log begins.
    pub fn restart(&mut self, slots: &Slots, unsynced: &Unsynced, told: Summary, slot: Slot) {
        self.marks = told.marks.clone();
        self.marks_trimmed = told.marks;
        for entry in all(slots, unsynced, slots.first()) {
            self.marks.note(entry.stamp, &entry.footprint);
        }
        if !told.hash.known || told.hash.base > slot {
            // Of what the state covers only where it ends is known: at a common base that is
            // enough.
            let known = slot == base_of(slot);
            return self.hash_above(slots, unsynced, slot, known);
        }
        self.hash_trimmed = told.hash;
        self.hash_trimmed.same_for_all_keys = self.same_for_all_keys;
        self.count(slots, unsynced);
    }

    /// Looks now and then whether adding and removing one by one has led to the hash of all that is
    /// held.
    pub fn assert_hash(&self, slots: &Slots, unsynced: &Unsynced) {
        let end = slots.end();
        let first = self.hash.base.next().max(slots.first());
        let count = end.0.saturating_sub(first.0) as usize + unsynced.len();
        let due = end.previous().0.is_multiple_of(16) && count <= HASH_CHECKED_MAX;
        if !self.hash.known || !due {
            return;
        }
        let mut counted = self.hash_trimmed.clone();
        counted.same_for_all_keys = false;
        for entry in all(slots, unsynced, first) {
            counted.add(entry.stamp, &entry.footprint);
        }
        assert!(self.hash.same_set(&counted), "the hash is of what is held");
    }
}
