//! Writes of dissemination that are not durable yet, and what follows when they are.

use super::Name;
use alloc::collections::VecDeque;
use quintet_replica::{PersistId, Slot};

/// The work to do once a write is durable.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Due {
    /// The batch may be voted for.
    Batch(Name),
    /// Everything in the journal up to this slot stands in it again, or in a snapshot.
    Trim(Slot),
}

/// Whether the number of the own chain is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Number {
    #[default]
    Unwritten,
    Written(PersistId),
    Durable,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Journal {
    number: Number,
    due: VecDeque<(PersistId, Due)>,
}

impl Journal {
    /// Another own chain begins.
    pub const fn begin(&mut self) {
        self.number = Number::Unwritten;
    }

    /// The number of the own chain stands in this write.
    pub fn numbered(&mut self, write: PersistId) {
        if self.number == Number::Unwritten {
            self.number = Number::Written(write);
        }
    }

    /// Whether it is durable: before that, no batch is shown.
    pub fn is_numbered(&self) -> bool {
        self.number == Number::Durable
    }

    pub fn push(&mut self, write: PersistId, due: Due) {
        self.due.push_back((write, due));
    }

    /// Writes up to this one are durable. True when the number of the own chain is since now.
    pub fn on_persisted(&mut self, upto: PersistId) -> bool {
        let numbered = matches!(self.number, Number::Written(write) if write <= upto);
        if numbered {
            self.number = Number::Durable;
        }
        numbered
    }

    /// The next thing to do when writes up to this one are durable.
    pub fn next_due(&mut self, upto: PersistId) -> Option<Due> {
        let (_, due) = *self.due.front().filter(|(write, _)| *write <= upto)?;
        self.due.pop_front();
        Some(due)
    }
}
