//! Small pieces that protocols share.

mod attached;
mod quorum;
mod slot_log;

pub use attached::{AttachedFrontend, RequestMessage, Taken};
pub use quorum::{Ballot, Tally};
pub use slot_log::SlotLog;
