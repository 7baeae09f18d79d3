//! The boundary between a replication protocol and the world.
//!
//! ```text
//!   runtime / simulator                          one replica, no I/O
//!   ┌──────────────────┐   Input   ┌───────────────────────────────────────────┐
//!   │ sockets, journal,│ ────────► │ Node                                      │
//!   │ snapshot files,  │           │  ├─ Driver<P>: Frontend + Protocol        │
//!   │ clocks, timers   │ ◄──────── │  ├─ Executor: sessions + StateMachine     │
//!   └──────────────────┘  Output   │  └─ state transfer                        │
//!                                  └───────────────────────────────────────────┘
//! ```
//!
//! Authors of protocols read [`Protocol`], [`Frontend`] and [`Context`]; authors of services read
//! [`StateMachine`]; authors of worlds read [`Node`]. Everything here is `no_std` and free of
//! `unsafe`: the compiler itself keeps sockets, files, threads and clocks out.

#![no_std]
#![forbid(unsafe_code)]

/// For the macros.
#[doc(hidden)]
pub extern crate alloc;

mod batch;
mod bug;
mod carried;
mod client_node;
mod clock_limit;
mod context;
pub mod digest;
mod driver;
mod effect;
mod epoch;
mod executor;
mod id;
pub mod journal;
mod layout;
pub mod limits;
pub mod links;
mod node;
mod options;
pub mod parts;
pub mod past;
mod protocol;
mod session;
mod state_machine;
mod time;
mod transfer;
mod wire;

pub use batch::*;
pub use bug::{Bug, BugSpec, Injected};
pub use bytes::Bytes;
pub use client_node::{ClientNode, FindProtocol};
pub use clock_limit::{AHEAD_MAX, ClockLimit};
pub use context::{Context, FrontendContext, Surroundings};
pub use digest::{DigestBegun, StateSum};
pub use driver::*;
pub use effect::*;
pub use epoch::*;
pub use executor::*;
pub use id::*;
pub use layout::*;
pub use node::*;
pub use options::*;
pub use protocol::*;
pub use session::*;
pub use state_machine::*;
pub use time::*;
pub use transfer::{SNAPSHOT_OPEN_FOR, SNAPSHOTS_OPEN_MAX};
pub use wire::*;
