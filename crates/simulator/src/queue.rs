//! The event queue: what happens next, ordered by time and then by the order of asking.
//!
//! ```text
//!   push(at, event) ──► heap on (at, sequence) ──► pop ──► (at, event)
//! ```
//!
//! The sequence number makes the order total, so two runs pop the same events in the same order.

use std::{cmp::Ordering, collections::BinaryHeap};

struct Entry<E> {
    at: u64,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    /// Reversed: the heap gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

/// Events by virtual time in nanoseconds.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::with_capacity(256),
            sequence: 0,
        }
    }

    /// Makes `event` happen at `at`, after everything asked for earlier at the same time.
    pub fn push(&mut self, at: u64, event: E) {
        self.sequence += 1;
        self.heap.push(Entry {
            at,
            sequence: self.sequence,
            event,
        });
    }

    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_order_of_asking() {
        let mut queue = Queue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.push(at, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, 'a'), (2, 'b'), (5, 'c'), (5, 'd')]);
    }
}
