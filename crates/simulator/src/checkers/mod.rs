//! The required properties, one file each.
//!
//! ```text
//!   executions of every replica ──► agreement, state_hash, exactly_once, digests
//!   status of every replica ──────► monotone, bounded
//!   the end of an epoch ──────────► past_seal
//!   disks, at every answer ───────► held
//!   views of several shards ──────► roles, lost
//!   what clients saw, at the end ─► linearizability, durable
//!   all of it, executed again ────► replayed
//!   the same seed, run again ─────► determinism
//!   a state machine by itself ────► commute
//! ```

pub mod agreement;
pub mod bounded;
pub mod cells;
pub mod commute;
pub mod determinism;
pub mod digests;
pub mod durable;
pub mod exactly_once;
pub mod held;
pub mod linearizability;
pub mod lost;
pub mod monotone;
pub mod past_seal;
pub mod replayed;
pub mod roles;
pub mod speculated;
pub mod state_hash;

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{property}: {what}")]
pub struct Violation {
    /// Which property.
    pub property: &'static str,
    /// The observation.
    pub what: String,
}

impl Violation {
    /// A violation of `property`.
    #[must_use]
    pub fn new(property: &'static str, what: impl Into<String>) -> Self {
        Self {
            property,
            what: what.into(),
        }
    }
}
