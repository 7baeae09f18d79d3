//! The simulator: a whole cluster with clients, networks, disks and clocks in one thread.
//!
//! ```text
//!            seed
//!             │
//!             ▼
//!   ┌───────────────────────── World ─────────────────────────┐
//!   │ clients ──► network ──► replica (Node) ──► disk, timers │
//!   │     ▲            │          │                           │
//!   │     └────────────┘          ▼ what it executes          │
//!   │  history                 checkers                       │
//!   └─────┬───────────────────────┬───────────────────────────┘
//!         ▼                       ▼
//!   linearizability         agreement, state hashes, exactly once, durable, monotone, bounded
//! ```
//!
//! One seed is one world, bit for bit: virtual time, one thread, one source of chance. Replicas
//! are driven through [`quintet_replica::Node`], the same type that the runtime drives, and
//! protocols are found by name in the registry. [`run`] checks many seeds, [`trace`] shows one.

#![forbid(unsafe_code)]

// The macros of services look for their items there.
extern crate quintet_groups as quintet;

mod bugs;
mod campaign;
pub mod checkers;
mod clock;
mod configuration;
pub mod conformance;
mod decisions;
mod disk;
mod drawing;
mod endings;
mod epoch_end;
mod event;
mod explore;
mod faults;
pub mod generate;
pub mod groups;
mod heal;
pub mod history;
mod holding;
mod injection;
pub mod machine;
pub mod model;
mod network;
mod orphan;
mod panics;
mod past;
pub mod performance;
mod picture;
mod process;
mod queue;
mod random;
pub mod recording;
mod remote;
mod rendering;
mod replacement;
mod replay;
mod routes;
mod service;
mod shrink;
mod sizes;
mod stage;
mod stored_epoch;
#[cfg(test)]
mod tests;
mod timers;
mod trace;
pub mod transcript;
mod workload;
mod world;

pub use bugs::bugs;
pub use campaign::{
    Campaign, CampaignError, CampaignReport, OPERATIONS_DEFAULT, Progress, SeedReport, Story, run,
    run_entry, trace,
};
pub use explore::{Bounds, Exploration, ExploreError, ExploreProgress, LEAP_MS, explore};
pub use faults::FaultSet;
pub use network::Transport;
pub use random::Random;
pub use replay::{ReplayError, Replayed, Script, Size};
pub use service::Service;
pub use shrink::{ShrinkProgress, Shrunk, shrink};
