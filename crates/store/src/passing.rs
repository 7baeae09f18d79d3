//! How a walk over all keys treats expired keys.
//!
//! ```text
//!   a walk ──► key exists ──► shown
//!         └──► key has expired, is not deleted yet
//!                 ├── ordered: noted, and out of the index after the command
//!                 └── read of this replica alone: one step each
//! ```
//!
//! How many there are is each replica's own affair, so what is ordered must not depend on it; but
//! no key is passed twice by what is ordered.

use crate::command::CommandSpec;
use crate::error::CommandResult;
use crate::index::Slot;
use crate::steps::Meter;
use core::cell::RefCell;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passing<'a> {
    /// No walk passes them afterwards: their hashes and slots.
    Noted(&'a RefCell<Vec<(u32, Slot)>>),
    /// They cost steps.
    Counted(&'a Meter, &'static CommandSpec),
}

impl Passing<'_> {
    /// # Errors
    /// When no more steps are left.
    pub(crate) fn pass(self, hash: u32, slot: Slot) -> CommandResult {
        match self {
            Self::Noted(slots) => {
                slots.borrow_mut().push((hash, slot));
                Ok(())
            }
            Self::Counted(meter, spec) => meter.take(spec, 1),
        }
    }
}
