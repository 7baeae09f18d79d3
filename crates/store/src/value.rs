//! The values of a key.

use crate::types::hash::Hash;
use crate::types::journal::{Allowance, Journal, Journaled, NotUndone, undo_all};
use crate::types::list::List;
use crate::types::set::Set;
use crate::types::sorted_set::SortedSet;
use crate::types::wire::{Malformed, Reader};
use smallvec::SmallVec;

/// Bytes that are stored in place while they are short.
pub type ShortBytes = SmallVec<[u8; 24]>;

/// Strings grow by at most this many bytes in one step.
const ZEROES: [u8; 4096] = [0; 4096];

/// A string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringValue {
    /// Its bytes.
    pub bytes: ShortBytes,
    /// Whether it was changed in place: what OBJECT ENCODING calls `raw` even when it is short.
    pub raw: bool,
}

impl StringValue {
    /// A string with these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            bytes: ShortBytes::from_slice(bytes),
            raw: false,
        }
    }

    /// Makes it so long, with zeroes at its end, unless it is longer.
    pub fn grow(&mut self, len: usize) {
        let before = self.bytes.len();
        if len >= 2 * before && len > self.bytes.capacity() {
            // The operating system's memory is zeroed already: it need not be touched.
            let mut bytes = vec![0; len];
            bytes[..before].copy_from_slice(&self.bytes);
            self.bytes = ShortBytes::from_vec(bytes);
            return;
        }
        self.bytes.reserve(len.saturating_sub(before));
        while self.bytes.len() < len {
            let more = (len - self.bytes.len()).min(ZEROES.len());
            self.bytes.extend_from_slice(&ZEROES[..more]);
        }
    }

    /// The estimated memory beyond the entry itself.
    #[must_use]
    pub fn memory(&self) -> usize {
        heap_of(&self.bytes)
    }

    /// How many bytes [`Value::serialize`] appends of it.
    pub(crate) fn serialized_len(&self) -> usize {
        1 + self.bytes.len()
    }

    /// Whether these are the bytes that [`Value::serialize`] appends of it.
    pub(crate) fn is_serialized(&self, bytes: &[u8]) -> bool {
        bytes.split_first() == Some((&self.tag(), &self.bytes[..]))
    }

    const fn tag(&self) -> u8 {
        if self.raw { TAG_STRING_RAW } else { TAG_STRING }
    }

    /// As [`Value::serialize`].
    pub(crate) fn serialize(&self, out: &mut Vec<u8>) {
        out.push(self.tag());
        out.extend_from_slice(&self.bytes);
    }
}

/// Heap memory for `bytes`, with an estimate of the allocator's overhead.
pub(crate) fn heap_of(bytes: &ShortBytes) -> usize {
    if bytes.spilled() {
        bytes.capacity() + 16
    } else {
        0
    }
}

/// The value of a key.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// No value: the place in the slab is free.
    #[default]
    Free,
    /// A string.
    String(StringValue),
    /// Fields with values.
    Hash(Box<Hash>),
    /// A list.
    List(Box<List>),
    /// A set.
    Set(Box<Set>),
    /// A set whose members have scores.
    SortedSet(Box<SortedSet>),
}

const TAG_STRING: u8 = 0;
const TAG_STRING_RAW: u8 = 1;
const TAG_HASH: u8 = 2;
const TAG_LIST: u8 = 3;
const TAG_SET: u8 = 4;
const TAG_SORTED_SET: u8 = 5;

impl Value {
    /// A string value with these bytes.
    #[must_use]
    pub fn string(bytes: &[u8]) -> Self {
        Self::String(StringValue::new(bytes))
    }

    /// The reply of TYPE.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Free => "none",
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
        }
    }

    /// The estimated memory beyond the entry itself. Constant time.
    #[must_use]
    pub fn memory(&self) -> usize {
        match self {
            Self::Free => 0,
            Self::String(string) => string.memory(),
            Self::Hash(hash) => hash.memory(),
            Self::List(list) => list.memory(),
            Self::Set(set) => set.memory(),
            Self::SortedSet(set) => set.memory(),
        }
    }

    /// Appends a form of the value that [`Self::deserialize`] reads. Equal values that came about
    /// by the same commands give equal bytes.
    pub fn serialize(&self, out: &mut Vec<u8>) {
        match self {
            Self::Free => unreachable!("free places are never serialised"),
            Self::String(string) => string.serialize(out),
            Self::Hash(hash) => {
                out.push(TAG_HASH);
                hash.serialize(out);
            }
            Self::List(list) => {
                out.push(TAG_LIST);
                list.serialize(out);
            }
            Self::Set(set) => {
                out.push(TAG_SET);
                set.serialize(out);
            }
            Self::SortedSet(set) => {
                out.push(TAG_SORTED_SET);
                set.serialize(out);
            }
        }
    }

    /// At least as many bytes as [`Self::serialize`] appends.
    #[must_use]
    pub fn serialized_len_max(&self) -> usize {
        // A length, and the score of a sorted set.
        const HEAD: usize = 18;
        let elements: usize = match self {
            Self::Free => 0,
            Self::String(string) => string.bytes.len(),
            Self::Hash(hash) => (hash.iter())
                .map(|(field, value)| field.len() + value.len() + HEAD)
                .sum(),
            Self::List(list) => list.iter().map(|element| element.len() + HEAD).sum(),
            Self::Set(set) => set.iter().map(|member| member.len() + HEAD).sum(),
            Self::SortedSet(set) => (set.iter()).map(|(member, _)| member.len() + HEAD).sum(),
        };
        elements + HEAD
    }

    /// Where the journal of a collection is while it is on.
    pub(crate) fn journal(&mut self) -> Option<&mut Option<Box<Journal>>> {
        match self {
            Self::Free | Self::String(_) => None,
            Self::Hash(hash) => Some(hash.journal()),
            Self::List(list) => Some(list.journal()),
            Self::Set(set) => Some(set.journal()),
            Self::SortedSet(set) => Some(set.journal()),
        }
    }

    /// The state of a collection beside its elements: how OBJECT ENCODING calls it.
    pub(crate) const fn encoding_flag(&self) -> bool {
        match self {
            Self::Free | Self::String(_) | Self::List(_) => false,
            Self::Hash(hash) => hash.is_large(),
            Self::Set(set) => set.is_of_integers(),
            Self::SortedSet(set) => set.is_large(),
        }
    }

    /// Undoes steps of a collection, which takes `allowance.bytes` of memory at most; its flag was
    /// this.
    ///
    /// # Errors
    /// When they cannot have led to what it is, or more is not allowed.
    pub(crate) fn undo(
        &mut self,
        steps: &[u8],
        flag: bool,
        allowance: &mut Allowance,
    ) -> Result<(), NotUndone> {
        match self {
            Self::Free | Self::String(_) => return Err(NotUndone::Impossible),
            Self::Hash(hash) => {
                undo_all(&mut **hash, steps, allowance)?;
                hash.set_large(flag);
            }
            Self::List(list) => undo_all(&mut **list, steps, allowance)?,
            Self::Set(set) => {
                undo_all(&mut **set, steps, allowance)?;
                set.set_of_integers(flag);
            }
            Self::SortedSet(set) => {
                undo_all(&mut **set, steps, allowance)?;
                set.set_large(flag);
            }
        }
        Ok(())
    }

    /// How many elements there are; 0 of a string.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Self::Free | Self::String(_) => 0,
            Self::Hash(hash) => hash.len(),
            Self::List(list) => list.len(),
            Self::Set(set) => set.len(),
            Self::SortedSet(set) => set.len(),
        }
    }

    /// Frees up to `count` elements of a detached value.
    pub(crate) fn free_last(&mut self, count: usize) {
        match self {
            Self::Free | Self::String(_) => {}
            Self::Hash(hash) => hash.free_last(count),
            Self::List(list) => list.free_last(count),
            Self::Set(set) => set.free_last(count),
            Self::SortedSet(set) => set.free_last(count),
        }
    }

    /// The type of a serialized value, and its length: a string's bytes, a collection's elements.
    #[must_use]
    pub(crate) fn serialized_kind(bytes: &[u8]) -> (&'static str, u64) {
        let kind = match bytes.first() {
            Some(&TAG_HASH) => "hash",
            Some(&TAG_LIST) => "list",
            Some(&TAG_SET) => "set",
            Some(&TAG_SORTED_SET) => "zset",
            _ => return ("string", bytes.len().saturating_sub(1) as u64),
        };
        (kind, Self::elements_announced(bytes))
    }

    /// How many elements a serialized value says that it has; 0 of a string, and of what cannot be
    /// read. No more are ever read from it.
    #[must_use]
    pub fn elements_announced(bytes: &[u8]) -> u64 {
        let mut reader = Reader::new(bytes);
        let count = match reader.byte() {
            Ok(TAG_LIST) => reader.count(1),
            // The kind of the collection stands before it.
            Ok(TAG_HASH | TAG_SET | TAG_SORTED_SET) => reader.byte().and_then(|_| reader.count(1)),
            _ => return 0,
        };
        count.map_or(0, |count| count as u64)
    }

    /// About as much memory as a serialized value takes when it is read.
    pub(crate) fn memory_announced(bytes: &[u8]) -> usize {
        let element = match bytes.first() {
            Some(&TAG_HASH) => Hash::ELEMENT_MEMORY,
            Some(&TAG_LIST) => List::ELEMENT_MEMORY,
            Some(&TAG_SET) => Set::ELEMENT_MEMORY,
            Some(&TAG_SORTED_SET) => SortedSet::ELEMENT_MEMORY,
            _ => 0,
        };
        bytes.len() + Self::elements_announced(bytes) as usize * element
    }

    /// Reads a value that takes all of `bytes`.
    ///
    /// # Errors
    /// When the bytes are none that [`Self::serialize`] could have written.
    pub fn deserialize(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = match reader.byte()? {
            tag @ (TAG_STRING | TAG_STRING_RAW) => {
                let bytes = ShortBytes::from_slice(reader.rest());
                return Ok(Self::String(StringValue {
                    bytes,
                    raw: tag == TAG_STRING_RAW,
                }));
            }
            TAG_HASH => Self::Hash(Box::new(Hash::deserialize(&mut reader)?)),
            TAG_LIST => Self::List(Box::new(List::deserialize(&mut reader)?)),
            TAG_SET => Self::Set(Box::new(Set::deserialize(&mut reader)?)),
            TAG_SORTED_SET => Self::SortedSet(Box::new(SortedSet::deserialize(&mut reader)?)),
            _ => return Err(Malformed("unknown type")),
        };
        if !reader.rest().is_empty() {
            return Err(Malformed("bytes after the value"));
        }
        Ok(value)
    }
}

/// A type that a [`Value`] can be of.
pub trait Stored: Default {
    /// The value as this type, if it is of it.
    fn of(value: &Value) -> Option<&Self>;
    /// The value as this type to be changed, if it is of it.
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    /// The value that is this.
    fn into_value(self) -> Value;
    /// Whether a key with this value must not exist.
    fn is_void(&self) -> bool;
}

impl Stored for StringValue {
    fn of(value: &Value) -> Option<&Self> {
        if let Value::String(string) = value {
            Some(string)
        } else {
            None
        }
    }
    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::String(string) = value {
            Some(string)
        } else {
            None
        }
    }
    fn into_value(self) -> Value {
        Value::String(self)
    }
    fn is_void(&self) -> bool {
        false
    }
}

macro_rules! stored {
    ($($name:ident),*) => {
        $(impl Stored for $name {
            fn of(value: &Value) -> Option<&Self> {
                if let Value::$name(inner) = value { Some(inner) } else { None }
            }
            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$name(inner) = value { Some(inner) } else { None }
            }
            fn into_value(self) -> Value {
                Value::$name(Box::new(self))
            }
            fn is_void(&self) -> bool {
                self.is_empty()
            }
        })*
    };
}

stored!(Hash, List, Set, SortedSet);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_grows_by_zeroes_and_keeps_what_it_had() {
        let mut value = StringValue::new(b"begin");
        let mut model = b"begin".to_vec();
        for len in [3, 5, 6, 24, 25, 100, 150, 10_000, 15_001, 300_000, 300_001] {
            value.grow(len);
            model.resize(model.len().max(len), 0);
            assert_eq!(value.bytes[..], model, "to {len}");
            *value.bytes.last_mut().unwrap() = 1;
            *model.last_mut().unwrap() = 1;
        }
    }
}
