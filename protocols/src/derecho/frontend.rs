//! The client's half.
//!
//! ```text
//!   submit ──► Request ──► any member (it multicasts what it was given) ──► results ──► done
//! ```

use super::Derecho;
use quintet_replica::parts::AttachedFrontend;

/// Any member takes requests and answers them, so the shared frontend is all it needs.
pub type Frontend = AttachedFrontend<Derecho>;
