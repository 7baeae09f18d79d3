//! The server: everything between a client's bytes and the replica's batches, but no sockets.
//!
//! ```text
//!   socket ──► input(id) ─► parser ─► pipeline ─┬─ answered here: PING, HELLO, CONFIG, errors …
//!                                               └─ reads, writes ─► collect ─► Submission
//!   socket ◄── output(id) ◄── replies, in the order of the commands ◄── on_done ◄── Outcome
//!
//!   admin HTTP (its own thread) ──► NodePort ──► status, probe, metrics, snapshot
//! ```
//!
//! [`Gateway`] is a state machine without I/O: the event loop moves bytes and tells the time.

mod active_groups;
mod admin;
mod admin_connections;
mod admission;
mod answers;
mod batches;
mod catalogue;
mod change;
mod config;
mod connection;
mod gateway;
mod group_queue;
mod groups;
mod guesses;
mod info;
mod key_shards;
mod local;
mod metrics;
mod operator;
mod outcomes;
mod output;
mod parts;
mod past;
mod pipeline;
pub mod resp;
mod sessions;
mod settings;
mod shares;

pub use admin::{
    Admin, BranchReport, ClockReport, DifferReport, DigestReport, NodePort, PeerClockReport,
    PeerReport, SnapshotReport, StatusReport, TransferReport,
};
pub use admin_connections::AdminOptions;
pub use change::{ASK_ANOTHER, CHANGE_MAX, ChangeReport, ChangeRequest, MemberReport};
pub use config::{GatewayConfig, NodeView, ShardLoad};
pub use gateway::{ConnectionId, Gateway};
pub use groups::GroupReport;
pub use key_shards::KeyShards;
pub use metrics::{Counters, Exposition, Family, MetricKind};
pub use output::Output;

#[cfg(test)]
mod tests;
