//! A hash: fields with values.
//!
//! ```text
//!   name → Ada | born → 1815 | died → 1852        a Table of boxed values, in dense order
//! ```

use super::journal::{IMPOSSIBLE, Journal, Journaled, Step};
use super::table::{ENTRY_OVERHEAD, Table, Walk};
use super::wire::{Malformed, Reader, put_bytes, put_number};

/// Beyond this many fields, or with anything longer than [`COMPACT_BYTES_MAX`], Redis with its
/// default settings stops calling a hash a `listpack`.
const COMPACT_FIELDS_MAX: usize = 512;
const COMPACT_BYTES_MAX: usize = 64;

/// An estimate of the bytes that a value takes beside its own.
const VALUE_OVERHEAD: usize = 16;

/// The value of a hash key.
#[derive(Clone, Debug, Default)]
pub struct Hash {
    table: Table<Box<[u8]>>,
    value_bytes: usize,
    /// Once large, a hash stays so, as in Redis.
    large: bool,
    journal: Option<Box<Journal>>,
}

impl Hash {
    /// How many fields there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none. A hash that became empty must be deleted by its holder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The value of a field.
    #[must_use]
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.table.get(field).map(|value| &**value)
    }

    /// Whether the field exists.
    #[must_use]
    pub fn contains(&self, field: &[u8]) -> bool {
        self.table.contains(field)
    }

    /// The field and value at a place in the order.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    #[must_use]
    pub fn at(&self, at: usize) -> (&[u8], &[u8]) {
        let (field, value) = self.table.at(at);
        (field, value)
    }

    /// Whether Redis would keep it no longer compact.
    pub(crate) const fn is_large(&self) -> bool {
        self.large
    }

    /// Makes it again what it was.
    pub(crate) const fn set_large(&mut self, large: bool) {
        self.large = large;
    }

    /// All fields with their values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> + ExactSizeIterator {
        self.table.iter().map(|(field, value)| (field, &**value))
    }

    /// A part of the fields, and the cursor of the next part (0 at the end). A collection that
    /// Redis keeps compact is returned whole.
    pub fn walk(
        &self,
        walk: Walk,
    ) -> (
        impl DoubleEndedIterator<Item = (&[u8], &[u8])> + ExactSizeIterator,
        u64,
    ) {
        let (range, next) = if self.large {
            walk.piece(self.len())
        } else {
            (0..self.len(), 0)
        };
        (
            self.table
                .range(range)
                .map(|(field, value)| (field, &**value)),
            next,
        )
    }

    /// Sets a field; says whether it is new.
    pub fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        let new = match self.table.position(field) {
            Some(at) => {
                let place = self.table.value_at_mut(at);
                self.value_bytes -= place.len();
                if let Some(journal) = &mut self.journal {
                    journal.changed(field, place);
                }
                *place = value.into();
                false
            }
            None => {
                self.table.push(field, value.into());
                if let Some(journal) = &mut self.journal {
                    journal.added(field);
                }
                true
            }
        };
        self.value_bytes += value.len();
        self.large = self.large
            || self.table.len() > COMPACT_FIELDS_MAX
            || field.len().max(value.len()) > COMPACT_BYTES_MAX;
        new
    }

    /// Removes a field; says whether it was there.
    pub fn remove(&mut self, field: &[u8]) -> bool {
        let Some(at) = self.table.position(field) else {
            return false;
        };
        let (_, value) = self.table.swap_remove(at);
        self.value_bytes -= value.len();
        if let Some(journal) = &mut self.journal {
            journal.removed(at, field, &value);
        }
        true
    }

    /// The name that OBJECT ENCODING gives to a hash like this.
    #[must_use]
    pub const fn encoding(&self) -> &'static str {
        if self.large { "hashtable" } else { "listpack" }
    }

    /// Estimated bytes. It follows from the content alone, so all replicas agree.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.table.memory() + self.value_bytes + VALUE_OVERHEAD * self.table.len()
    }

    /// Frees up to `count` elements of a detached value.
    pub(crate) fn free_last(&mut self, count: usize) {
        self.table.free_last(count);
    }

    /// Appends everything, order included, to `out`.
    pub fn serialize(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.large));
        put_number(out, self.len() as u64);
        for (field, value) in self.iter() {
            put_bytes(out, field);
            put_bytes(out, value);
        }
    }

    /// Reads what [`Self::serialize`] wrote.
    ///
    /// # Errors
    /// When the bytes cannot be what it wrote.
    pub fn deserialize(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let large = match reader.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("unknown kind of hash")),
        };
        let count = reader.count(2)?;
        let mut hash = Self {
            table: Table::with_capacity(reader.room_for(count, Table::<Box<[u8]>>::ENTRY_BYTES)),
            value_bytes: 0,
            large,
            journal: None,
        };
        for _ in 0..count {
            let field = reader.bytes()?;
            let value = reader.bytes()?;
            if !hash.set(field, value) {
                return Err(Malformed("a field stands twice in a hash"));
            }
        }
        if hash.large == large {
            Ok(hash)
        } else {
            Err(Malformed("a large hash is called small"))
        }
    }
}

impl Journaled for Hash {
    const ELEMENT_MEMORY: usize = ENTRY_OVERHEAD + size_of::<Box<[u8]>>() + VALUE_OVERHEAD;

    fn journal(&mut self) -> &mut Option<Box<Journal>> {
        &mut self.journal
    }

    fn extent(&self) -> (usize, usize) {
        (self.len(), self.memory())
    }

    fn undo(&mut self, step: Step<'_>) -> Result<(), Malformed> {
        match step {
            Step::Added { name } if self.table.last() == Some(name) => {
                self.remove(name);
            }
            Step::Changed { name, value } if self.contains(name) => {
                self.set(name, value);
            }
            Step::Removed { place, name, value } if place <= self.len() && !self.contains(name) => {
                self.value_bytes += value.len();
                self.table.swap_insert(place, name, value.into());
            }
            _ => return Err(IMPOSSIBLE),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn bytes_of(hash: &Hash) -> Vec<u8> {
        let mut out = Vec::new();
        hash.serialize(&mut out);
        out
    }

    proptest! {
        #[test]
        fn behaves_as_a_map_and_comes_back(
            operations in prop::collection::vec((0u8..4, 0u8..40, 0usize..80), 1..300),
        ) {
            let mut hash = Hash::default();
            let mut model = BTreeMap::new();
            for (kind, field, length) in operations {
                let field = vec![field; 1 + usize::from(field) / 8];
                let value = vec![b'v'; length];
                if kind < 3 {
                    let new = hash.set(&field, &value);
                    prop_assert_eq!(new, model.insert(field, value).is_none());
                } else {
                    prop_assert_eq!(hash.remove(&field), model.remove(&field).is_some());
                }
            }
            let seen: BTreeMap<Vec<u8>, Vec<u8>> =
                hash.iter().map(|(field, value)| (field.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(&seen, &model);
            let mut again = Hash::default();
            for (field, value) in hash.iter() {
                again.set(field, value);
            }
            prop_assert_eq!(hash.memory(), again.memory());
            if !hash.is_empty() {
                let bytes = bytes_of(&hash);
                let mut reader = Reader::new(&bytes);
                let restored = Hash::deserialize(&mut reader).unwrap();
                prop_assert!(reader.rest().is_empty());
                prop_assert_eq!(bytes_of(&restored), bytes);
                prop_assert_eq!(restored.memory(), hash.memory());
            }
        }

        #[test]
        fn bad_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Hash::deserialize(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn every_cut_is_refused() {
        let mut hash = Hash::default();
        for field in 0..20u8 {
            hash.set(&[field], b"value");
        }
        let bytes = bytes_of(&hash);
        for cut in 0..bytes.len() {
            assert!(Hash::deserialize(&mut Reader::new(&bytes[..cut])).is_err());
        }
    }

    #[test]
    fn encoding_is_that_of_redis_and_stays() {
        let mut hash = Hash::default();
        for field in 0..512u16 {
            hash.set(&field.to_be_bytes(), &[0; 64]);
        }
        assert_eq!(hash.encoding(), "listpack");
        hash.set(b"one more", b"");
        assert_eq!(hash.encoding(), "hashtable");
        hash.remove(b"one more");
        assert_eq!(hash.encoding(), "hashtable");
    }
}
