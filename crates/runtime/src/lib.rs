//! What surrounds a replica in a real process: sockets, files, threads and clocks.
//!
//! ```text
//!   clients ──RESP──► server::Gateway ─┐                        ┌─► journal thread ──► segments
//!   Handle::submit ──► port ───────────┤   event loop           ├─► snapshot thread ─► files
//!   peers ──frames──► transports::tcp ─┴──► Node (quintet-replica) ┴─► frames, replies
//!                                      one thread                      │
//!   admin HTTP (own thread) ◄── Published (a status report) ◄──────────┘
//! ```
//!
//! [`Replica::start`] makes all of it run for one [`Config`]; the [`Handle`] talks to it.

mod clock;
pub mod config;
pub mod metrics;
mod replica;
pub mod server;
pub mod status;

pub use config::{Config, JournalOptions, Limits, Member};
pub use metrics::Metrics;
pub use replica::{
    Addresses, ExitReason, Handle, Listeners, Replica, Running, StartError, SubmitError,
};
pub use status::{PeerReport, Published, Snapshot, SnapshotReport, StatusReport};
