//! Commutativity: footprints, the watermarks of eligibility, and the incremental set hash.
//!
//! ```text
//!   batch ──► Footprint: keys read, keys written, or everything
//!                │
//!                ├──► Marks     may it still be put behind what has been released? (§7.2)
//!                └──► SetHash   do two logs hold the same of what conflicts with it? (§7.1)
//! ```
//!
//! Time is cut into quanta of [`QUANTUM`]. A batch is executed at the beginning of its deadline's
//! quantum, and the log never goes back to an earlier one: so batches that commute have the same
//! time in whichever order they are executed, and expiry cannot tell the two orders apart. It
//! also bounds the watermarks: those of an earlier quantum say nothing any more.

use super::dom::Stamp;
use quintet_replica::{
    Access, CommandTime, DecodeError, Field, FootprintVisitor, Reader, Slot, Wire, Writer,
    parts::Table,
};
use smallvec::SmallVec;

/// Nanoseconds in which batches may be put in either order if they commute.
pub const QUANTUM: u64 = 1_000_000;

/// The time at which a batch with this deadline is executed.
#[must_use]
pub const fn time_of(deadline: u64) -> CommandTime {
    CommandTime(deadline / QUANTUM * QUANTUM)
}

/// The keys and classes that a batch touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Footprint {
    everything: bool,
    /// Ascending, each key once; true when it may be changed.
    keys: SmallVec<[(u64, bool); 4]>,
}

impl Footprint {
    /// That of a batch which commutes with none.
    #[must_use]
    pub fn of_everything() -> Self {
        Self {
            everything: true,
            keys: SmallVec::new(),
        }
    }

    /// Whether the order of the two matters.
    #[must_use]
    pub fn conflicts(&self, other: &Self) -> bool {
        if self.everything || other.everything {
            return true;
        }
        self.keys.iter().any(|(key, writes)| {
            let at = other.keys.binary_search_by_key(key, |(key, _)| *key);
            at.is_ok_and(|at| *writes || other.keys[at].1)
        })
    }
}

impl FootprintVisitor for Footprint {
    fn key(&mut self, hash: u64, access: Access) {
        let writes = access == Access::Write;
        match self.keys.binary_search_by_key(&hash, |(key, _)| *key) {
            Ok(at) => self.keys[at].1 |= writes,
            Err(at) => self.keys.insert(at, (hash, writes)),
        }
    }

    fn everything(&mut self, _: Access) {
        self.everything = true;
    }
}

/// The last batches released, as far as they bar others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    /// The quantum of the last one.
    quantum: u64,
    /// Per key touched in this quantum: the last write and the last access.
    keys: Table<u64, (Stamp, Stamp)>,
    /// The last one that conflicts with everything.
    everything: Stamp,
    highest: Stamp,
}

impl Marks {
    /// Whether a batch may be put behind all that has been released.
    #[must_use]
    pub fn admit(&self, stamp: Stamp, footprint: &Footprint) -> bool {
        stamp.deadline / QUANTUM >= self.quantum && self.barrier(footprint) < stamp
    }

    /// The highest released stamp that conflicts.
    fn barrier(&self, footprint: &Footprint) -> Stamp {
        if footprint.everything {
            return self.highest;
        }
        let of_key = |(key, writes): &(u64, bool)| match self.keys.get(key) {
            Some((_, accessed)) if *writes => *accessed,
            Some((written, _)) => *written,
            None => Stamp::default(),
        };
        let keys = footprint.keys.iter().map(of_key).max();
        self.everything.max(keys.unwrap_or_default())
    }

    /// The lowest deadline with which a batch is admitted.
    #[must_use]
    pub fn deadline_min(&self, footprint: &Footprint) -> u64 {
        let behind = self.barrier(footprint).deadline.saturating_add(1);
        behind.max(self.quantum.saturating_mul(QUANTUM))
    }

    /// The first deadline that bars nothing: the next quantum's.
    #[must_use]
    pub const fn deadline_next(&self) -> u64 {
        (self.quantum + 1).saturating_mul(QUANTUM)
    }

    /// A request that may still be put behind all that has been released need not wait for this.
    #[must_use]
    pub const fn deadline_past(&self) -> u64 {
        self.highest.deadline.saturating_add(1)
    }

    /// How many keys are watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.keys.len()
    }

    /// A batch has been released.
    pub fn note(&mut self, stamp: Stamp, footprint: &Footprint) {
        let quantum = stamp.deadline / QUANTUM;
        if quantum > self.quantum {
            self.quantum = quantum;
            self.keys.clear();
        }
        self.highest = self.highest.max(stamp);
        if footprint.everything {
            self.everything = self.everything.max(stamp);
        }
        for (key, writes) in &footprint.keys {
            let (written, accessed) = self.keys.of(*key);
            *accessed = stamp.max(*accessed);
            if *writes {
                *written = stamp.max(*written);
            }
        }
    }
}

impl Wire for Marks {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.quantum);
        self.everything.encode(writer);
        self.highest.encode(writer);
        writer.length(self.keys.len());
        for (key, marks) in self.keys.sorted() {
            key.put(writer);
            marks.put(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut marks = Self {
            quantum: reader.u64("quantum")?,
            everything: Stamp::decode(reader)?,
            highest: Stamp::decode(reader)?,
            keys: Table::default(),
        };
        for _ in 0..reader.length(56, "watermarks")? {
            let key = reader.u64("watermark")?;
            marks.keys.insert(key, Field::get(reader, "watermark")?);
        }
        Ok(marks)
    }
}

const fn mixed(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 128 bits that depend on all of these.
#[must_use]
pub fn mixed_wide(numbers: &[u64]) -> u128 {
    let (mut a, mut b) = (0x243f_6a88_85a3_08d3_u64, 0x1319_8a2e_0370_7344_u64);
    for number in numbers {
        a = mixed(a ^ number);
        b = mixed(b.rotate_left(23) ^ number ^ a);
    }
    u128::from(a) << 64 | u128::from(b)
}

fn of_stamp(stamp: Stamp) -> u128 {
    mixed_wide(&[stamp.deadline, stamp.name.frontend.0, stamp.name.batch.0])
}

/// A batch's contribution to one key: another for each, so that a batch which writes two keys
/// does not cancel out of one that reads both.
fn of_key(key: u64, value: u128) -> u128 {
    mixed_wide(&[key, (value >> 64) as u64, value as u64])
}

/// The most keys whose hashes travel with a state: the first piece of a state holds them all.
const KEYS_TOLD_MAX: usize = 65_536;

/// Running hashes of the set of batches in a log, per key that they write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetHash {
    /// Batches in slots up to here are left out: they are committed, and the same everywhere.
    pub base: Slot,
    /// False while batches above the base are unknown here: hashes mean nothing then.
    pub known: bool,
    total: u128,
    everything: u128,
    keys: Table<u64, (u128, u32)>,
    /// Of an injected bug: a batch contributes the same to all of its keys.
    pub same_for_all_keys: bool,
}

impl SetHash {
    /// An empty set.
    #[must_use]
    pub fn above(base: Slot, same_for_all_keys: bool) -> Self {
        Self {
            base,
            known: true,
            same_for_all_keys,
            ..Self::default()
        }
    }

    fn share(&self, key: u64, value: u128) -> u128 {
        if self.same_for_all_keys {
            value
        } else {
            of_key(key, value)
        }
    }

    /// Whether both are hashes of the same batches.
    #[must_use]
    pub fn same_set(&self, other: &Self) -> bool {
        (self.base, self.total, self.everything) == (other.base, other.total, other.everything)
            && self.keys == other.keys
    }

    /// A batch is added.
    pub fn add(&mut self, stamp: Stamp, footprint: &Footprint) {
        self.change(stamp, footprint, true);
    }

    /// A batch is taken out.
    pub fn remove(&mut self, stamp: Stamp, footprint: &Footprint) {
        self.change(stamp, footprint, false);
    }

    /// A batch is added; gives the hash that goes with it, see [`Self::reply`].
    pub fn append(&mut self, stamp: Stamp, footprint: &Footprint) -> u128 {
        let value = of_stamp(stamp);
        self.change_by(value, footprint, true);
        self.reply_of(value, footprint)
    }

    fn change(&mut self, stamp: Stamp, footprint: &Footprint, add: bool) {
        self.change_by(of_stamp(stamp), footprint, add);
    }

    fn change_by(&mut self, value: u128, footprint: &Footprint, add: bool) {
        self.total ^= value;
        if footprint.everything {
            self.everything ^= value;
        }
        for (key, writes) in &footprint.keys {
            if !writes {
                continue;
            }
            let share = self.share(*key, value);
            let (hash, count) = self.keys.of(*key);
            *hash ^= share;
            if add {
                *count += 1;
            } else {
                *count = count.saturating_sub(1);
            }
            if *count == 0 {
                self.keys.remove(key);
            }
        }
    }

    /// The hash that goes with a batch which has been added: of itself and of all before it that
    /// it does not commute with.
    #[must_use]
    pub fn reply(&self, stamp: Stamp, footprint: &Footprint) -> u128 {
        self.reply_of(of_stamp(stamp), footprint)
    }

    fn reply_of(&self, value: u128, footprint: &Footprint) -> u128 {
        if footprint.everything {
            return of_key(1, self.total);
        }
        let own = value ^ of_key(2, self.everything);
        footprint.keys.iter().fold(own, |hash, (key, _)| {
            let (of, _) = self.keys.get(key).copied().unwrap_or_default();
            hash ^ if self.same_for_all_keys {
                of
            } else {
                of_key(*key, of)
            }
        })
    }
}

/// As it travels with a state. Hashes of more keys than are told are not known to the receiver.
impl Wire for SetHash {
    fn encode(&self, writer: &mut Writer<'_>) {
        let known = self.known && self.keys.len() <= KEYS_TOLD_MAX;
        writer.u64(self.base.0);
        writer.bool(known);
        if !known {
            return;
        }
        writer.u128(self.total);
        writer.u128(self.everything);
        writer.length(self.keys.len());
        for (key, of) in self.keys.sorted() {
            key.put(writer);
            of.put(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let base = reader.slot("hash base")?;
        if !reader.bool("hash known")? {
            return Ok(Self {
                base,
                ..Self::default()
            });
        }
        let mut hash = Self {
            base,
            known: true,
            total: reader.u128("hash")?,
            everything: reader.u128("hash")?,
            ..Self::default()
        };
        for _ in 0..reader.length(28, "hashes of keys")? {
            let key = reader.u64("key of a hash")?;
            hash.keys.insert(key, Field::get(reader, "hash of a key")?);
        }
        Ok(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nezha::dom::Name;
    use quintet_replica::{BatchId, FrontendId};

    fn stamp(deadline: u64, batch: u64) -> Stamp {
        let name = Name {
            frontend: FrontendId(1),
            batch: BatchId(batch),
        };
        Stamp { deadline, name }
    }

    fn touching(keys: &[(u64, Access)]) -> Footprint {
        let mut footprint = Footprint::default();
        for (key, access) in keys {
            footprint.key(*key, *access);
        }
        footprint
    }

    const R: Access = Access::Read;
    const W: Access = Access::Write;

    #[test]
    fn reads_commute_and_writes_of_one_key_do_not() {
        let (read, write, other) = (
            touching(&[(1, R)]),
            touching(&[(1, W)]),
            touching(&[(2, W)]),
        );
        assert!(!read.conflicts(&read));
        assert!(read.conflicts(&write) && write.conflicts(&read) && write.conflicts(&write));
        assert!(!write.conflicts(&other));
        assert!(other.conflicts(&Footprint::of_everything()));
    }

    #[test]
    fn watermarks_bar_exactly_what_conflicts() {
        let mut marks = Marks::default();
        marks.note(stamp(10, 1), &touching(&[(1, W), (2, R)]));
        let admits = |marks: &Marks, deadline, footprint: &Footprint| {
            marks.admit(stamp(deadline, 9), footprint)
        };
        assert!(
            !admits(&marks, 9, &touching(&[(1, R)])),
            "a write was released"
        );
        assert!(admits(&marks, 11, &touching(&[(1, R)])));
        assert!(admits(&marks, 9, &touching(&[(2, R)])), "only read so far");
        assert!(!admits(&marks, 9, &touching(&[(2, W)])));
        assert!(admits(&marks, 9, &touching(&[(3, W)])));
        assert!(!admits(&marks, 9, &Footprint::of_everything()));
        assert_eq!(marks.deadline_min(&touching(&[(2, W)])), 11);
        marks.note(stamp(12, 2), &Footprint::of_everything());
        assert!(!admits(&marks, 11, &touching(&[(3, W)])));
        let next = marks.deadline_next();
        marks.note(stamp(next, 3), &touching(&[(4, W)]));
        assert_eq!(
            marks.watched(),
            1,
            "an earlier quantum says nothing any more"
        );
        assert!(
            !admits(&marks, next - 1, &touching(&[(9, W)])),
            "it is over"
        );
        assert!(admits(&marks, next, &touching(&[(9, W)])));
        assert_eq!(Marks::decode_all(marks.encode_to_bytes()), Ok(marks));
    }

    #[test]
    fn hash_depends_on_the_set_and_not_on_how_it_came_about() {
        let (a, b, c) = (
            touching(&[(1, W)]),
            touching(&[(1, W)]),
            touching(&[(1, R)]),
        );
        let mut left = SetHash::above(Slot(0), false);
        left.add(stamp(1, 1), &a);
        left.add(stamp(2, 2), &b);
        let mut right = SetHash::above(Slot(0), false);
        right.add(stamp(2, 2), &b);
        right.add(stamp(7, 1), &a);
        let ask = |set: &SetHash| set.reply(stamp(9, 9), &c);
        assert_ne!(ask(&left), ask(&right), "another deadline is another batch");
        right.remove(stamp(7, 1), &a);
        assert_ne!(ask(&left), ask(&right), "one is missing");
        right.add(stamp(1, 1), &a);
        assert_eq!(ask(&left), ask(&right));
        let elsewhere = touching(&[(5, W)]);
        right.add(stamp(3, 3), &elsewhere);
        assert_eq!(ask(&left), ask(&right), "what commutes does not matter");
    }

    #[test]
    fn hashes_travel_with_a_state_unless_they_are_of_too_many_keys() {
        let mut hash = SetHash::above(Slot(4096), false);
        for key in 0..KEYS_TOLD_MAX as u64 {
            hash.add(stamp(key, key), &touching(&[(key, W)]));
        }
        hash.add(stamp(7, 7), &Footprint::of_everything());
        let told = SetHash::decode_all(hash.encode_to_bytes()).expect("its own words");
        assert!(told.known && told == hash);
        hash.add(stamp(1, 1), &touching(&[(u64::MAX, W)]));
        let told = SetHash::decode_all(hash.encode_to_bytes()).expect("its own words");
        assert!(!told.known && told.base == hash.base);
    }

    #[test]
    fn write_of_two_keys_does_not_cancel_out_of_a_read_of_both() {
        let (write, read) = (touching(&[(1, W), (2, W)]), touching(&[(1, R), (2, R)]));
        for same_for_all_keys in [false, true] {
            let without = SetHash::above(Slot(0), same_for_all_keys);
            let mut with = without.clone();
            with.add(stamp(1, 1), &write);
            let differ = without.reply(stamp(2, 2), &read) != with.reply(stamp(2, 2), &read);
            assert_eq!(differ, !same_for_all_keys);
        }
    }
}
