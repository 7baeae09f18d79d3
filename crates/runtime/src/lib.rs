//! The environment of a replica in a real process: sockets, files, threads and clocks.
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

pub mod alarms;
mod announce;
mod clock;
pub mod config;
mod data;
pub mod descriptors;
mod directories;
mod event_loop;
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
mod join;
mod journal_files;
mod journal_thread;
mod kept;
mod later;
pub mod layout;
mod mail;
pub mod metrics;
mod past_reads;
pub mod pauses;
mod peer_clock;
mod port;
mod proxy;
mod replica;
pub mod resp_client;
mod rings;
pub mod server;
mod shards;
mod snapshots;
pub mod status;
mod survey;
mod system;
mod terms;
mod timers;
mod transports;

pub use config::{
    ClientLimits, Config, Emulation, JournalOptions, Limits, Member, Threads, TransferOptions,
    Transport,
};
pub use data::{has_joined, stored_epoch};
pub use directories::sync_directory;
pub use join::{Join, join};
pub use metrics::{DatagramMetrics, Metrics};
pub use proxy::Proxy;
pub use replica::{
    Addresses, ExitReason, Handle, Listeners, Replica, Running, StartError, SubmitError,
};
pub use server::resp;
pub use server::{
    ASK_ANOTHER, BranchReport, CHANGE_MAX, ChangeReport, ChangeRequest, ClockReport, DifferReport,
    DigestReport, GroupReport, MemberReport, PeerClockReport, PeerReport, SnapshotReport,
    StatusReport, TransferReport,
};
pub use status::{GroupView, Published, Snapshot};
pub use terms::begin_with_state;
