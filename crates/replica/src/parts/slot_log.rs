//! A log indexed by slot, trimmed at the front.

use crate::Slot;
use alloc::collections::VecDeque;

/// Entries by slot, contiguous storage from the first slot that has not been trimmed; a slot may
/// be empty.
#[derive(Clone, Debug, Hash)]
pub struct SlotLog<T> {
    first: Slot,
    entries: VecDeque<Option<T>>,
}

impl<T> Default for SlotLog<T> {
    fn default() -> Self {
        Self::new(Slot(1))
    }
}

impl<T> SlotLog<T> {
    /// An empty log whose first slot is `first`.
    #[must_use]
    pub const fn new(first: Slot) -> Self {
        Self {
            first,
            entries: VecDeque::new(),
        }
    }

    /// The first slot that has not been trimmed.
    #[must_use]
    pub const fn first(&self) -> Slot {
        self.first
    }

    /// The slot after the last one that was ever set.
    #[must_use]
    pub fn end(&self) -> Slot {
        Slot(self.first.0 + self.entries.len() as u64)
    }

    fn index(&self, slot: Slot) -> Option<usize> {
        usize::try_from(slot.0.checked_sub(self.first.0)?).ok()
    }

    /// The entry of a slot; none when it is empty, trimmed or beyond the end.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.entries.get(self.index(slot)?)?.as_ref()
    }

    /// The entry of a slot, to change it.
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let index = self.index(slot)?;
        self.entries.get_mut(index)?.as_mut()
    }

    /// Sets a slot's entry and gives the one before. The caller bounds how far beyond the end a
    /// slot may lie: the space between is allocated.
    ///
    /// # Panics
    /// When the slot has been trimmed.
    pub fn set(&mut self, slot: Slot, entry: T) -> Option<T> {
        let index = self.index(slot).expect("a trimmed slot is never set again");
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index].replace(entry)
    }

    /// Forgets all slots below `below`; gives what they held to `dropped`.
    pub fn trim(&mut self, below: Slot, mut dropped: impl FnMut(T)) {
        while self.first < below {
            match self.entries.pop_front() {
                Some(entry) => entry.into_iter().for_each(&mut dropped),
                None => {
                    self.first = below;
                    return;
                }
            }
            self.first = self.first.next();
        }
    }

    /// Forgets all slots from `from` on.
    pub fn truncate(&mut self, from: Slot) {
        let keep = self.index(from).unwrap_or(0);
        self.entries.truncate(keep);
    }

    /// Empties the log; its first slot is now `first`.
    pub fn reset(&mut self, first: Slot) {
        self.entries.clear();
        self.first = first;
    }

    /// The entries that are set, from `from` on, ascending.
    pub fn iter_from(&self, from: Slot) -> impl Iterator<Item = (Slot, &T)> {
        let from = from.clamp(self.first, self.end());
        let skip = (from.0 - self.first.0) as usize;
        let slots = (from.0..).map(Slot);
        let entries = slots.zip(self.entries.range(skip..));
        entries.filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }
}
