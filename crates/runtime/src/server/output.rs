//! The bytes to write to one client.
//!
//! ```text
//!   short replies ──► copied behind each other ──┐
//!   a long reply ───► stays in the results ──────┴──► write, a piece at a time
//! ```
//!
//! A copy of a reply of 64 MiB takes as long as making it, and everybody waits meanwhile.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;

/// Shorter replies are copied.
const SHARED_MIN: usize = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Output {
    parts: VecDeque<Bytes>,
    /// Behind them.
    tail: BytesMut,
    bytes: usize,
}

impl Output {
    /// How many bytes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Appends a copy of these bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    /// Appends a part of `results`. One that is long, and most of them, is not copied: a small part
    /// would keep all of the others.
    pub fn push_part(&mut self, results: &Bytes, part: &[u8]) {
        if part.len() < SHARED_MIN || part.len() < results.len() / 2 {
            return self.push(part);
        }
        if !self.tail.is_empty() {
            self.parts.push_back(self.tail.split().freeze());
        }
        self.parts.push_back(results.slice_ref(part));
        self.bytes += part.len();
    }

    /// The bytes to write first; empty when there are none.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        match self.parts.front() {
            Some(part) => part,
            None => &self.tail,
        }
    }

    /// This many bytes of [`Self::first`] were written.
    pub fn advance(&mut self, count: usize) {
        self.bytes -= count;
        match self.parts.front_mut() {
            Some(part) => {
                part.advance(count);
                if part.is_empty() {
                    self.parts.pop_front();
                }
            }
            None => self.tail.advance(count),
        }
    }

    /// Forgets all of it, and the memory that it took.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes all of it.
    #[cfg(test)]
    pub fn take(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while !self.is_empty() {
            let first = self.first();
            all.extend_from_slice(first);
            self.advance(first.len());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_part_is_shared_and_everything_keeps_its_order() {
        let results = Bytes::from(vec![b'r'; SHARED_MIN + 100]);
        let mut output = Output::default();
        output.push(b"first");
        output.push_part(&results, &results[10..]);
        output.push_part(&results, &results[..5]);
        output.push(b"last");
        let rest = &results[10..];
        assert_eq!(output.len(), 5 + rest.len() + 5 + 4);
        assert_eq!(output.first(), b"first");
        output.advance(5);
        assert_eq!(output.first().as_ptr(), rest.as_ptr(), "no copy");
        output.advance(rest.len());
        assert_eq!(output.take(), b"rrrrrlast");
        assert!(output.is_empty() && output.first().is_empty());
    }

    #[test]
    fn small_part_of_large_results_does_not_keep_them() {
        let results = Bytes::from(vec![b'r'; 4 * SHARED_MIN]);
        let mut output = Output::default();
        output.push_part(&results, &results[..SHARED_MIN]);
        assert!(results.is_unique());
    }
}
