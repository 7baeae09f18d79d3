//! The contents of the next `Said`, besides suggestions and skipped slots.

use super::Said;
use alloc::vec::Vec;
use quintet_replica::Slot;

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Outbox {
    due: bool,
    learnt: Vec<Slot>,
    votes: Vec<Slot>,
}

impl Outbox {
    /// All others are to receive the next one, whatever is in it.
    pub const fn want(&mut self) {
        self.due = true;
    }

    /// A majority accepted what was suggested in this own slot.
    pub fn learn(&mut self, slot: Slot) {
        self.learnt.push(slot);
    }

    /// The suggestion in this slot of another member is accepted, durably.
    pub fn vote(&mut self, slot: Slot) {
        self.votes.push(slot);
    }

    /// Moves all of it into this message. True when all others are to receive it; none when there
    /// is nothing to send.
    pub fn take(&mut self, said: &mut Said) -> Option<bool> {
        said.learnt = core::mem::take(&mut self.learnt);
        said.votes = core::mem::take(&mut self.votes);
        let due = core::mem::take(&mut self.due);
        (due || !said.is_empty()).then_some(due)
    }
}
