//! The remains of emptied databases and of large values. Freeing millions of keys or elements
//! takes longer than a command may take, so it is done bit by bit.

use crate::expiries::Due;
use crate::keyspace::{CHUNK_LEN, Entry};
use crate::value::Value;
use std::collections::BTreeSet;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Graveyard {
    values: Vec<Value>,
    /// How many elements they have.
    elements: usize,
    chunks: Vec<Vec<Vec<Entry>>>,
    expiries: Vec<BTreeSet<(u64, Due)>>,
}

impl Graveyard {
    const CHUNKS_AT_ONCE: usize = 2;
    /// Values of more elements than this are not freed at once.
    const ELEMENTS_AT_ONCE: usize = 4096;
    /// Of what is left, this part and no less than that is freed in one go: what is buried faster
    /// is freed faster.
    const ELEMENTS_PART: usize = 16;

    /// Takes the entries of a slab that is not needed any more.
    pub fn bury(&mut self, chunks: Vec<Vec<Entry>>) {
        self.chunks.push(chunks);
        self.free_some();
    }

    /// Takes a value that is not needed any more.
    #[inline]
    pub fn bury_value(&mut self, value: Value) {
        let elements = value.elements();
        if elements > Self::ELEMENTS_AT_ONCE {
            self.elements += elements;
            self.values.push(value);
        }
    }

    /// How many elements of large values are left.
    #[cfg(test)]
    pub const fn elements(&self) -> usize {
        self.elements
    }

    fn free_elements(&mut self) {
        let mut count = Self::ELEMENTS_AT_ONCE.max(self.elements / Self::ELEMENTS_PART);
        while count > 0
            && let Some(value) = self.values.last_mut()
        {
            let freed = value.elements().min(count);
            value.free_last(freed);
            self.elements -= freed;
            count -= freed;
            if value.elements() == 0 {
                self.values.pop();
            }
        }
    }

    /// Takes a list of times that is not needed any more.
    pub fn bury_expiry(&mut self, expiry: BTreeSet<(u64, Due)>) {
        // Small ones go at once, so that they cannot become many.
        if expiry.len() > Self::CHUNKS_AT_ONCE * CHUNK_LEN {
            self.expiries.push(expiry);
        }
    }

    /// Frees a little.
    pub fn free_some(&mut self) {
        self.free_elements();
        if let Some(chunks) = self.chunks.last_mut() {
            chunks.truncate(chunks.len().saturating_sub(Self::CHUNKS_AT_ONCE));
            if chunks.is_empty() {
                self.chunks.pop();
            }
        }
        if let Some(expiry) = self.expiries.last_mut() {
            for _ in 0..Self::CHUNKS_AT_ONCE * CHUNK_LEN {
                if expiry.pop_first().is_none() {
                    break;
                }
            }
            if expiry.is_empty() {
                self.expiries.pop();
            }
        }
    }
}
