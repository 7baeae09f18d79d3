//! The lab watches real clusters from outside and checks or measures them.
//!
//! ```text
//!   scenario ──► real processes / simulator ──► histories, figures ──► verdict, report
//! ```
//!
//! Nothing that serves clients depends on this crate: it starts `quintet`, as a person would.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cluster;
pub mod compare;
pub mod figures;
pub mod fit;
pub mod gray;
pub mod hybrid;
mod kept;
pub mod load;
pub mod profile;
pub mod reconfigure;
pub mod reordering;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod synchrony;
pub mod torture;
pub mod variant;
