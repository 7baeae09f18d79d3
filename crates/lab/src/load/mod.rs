//! The load generator: one kind of client for every system that is measured.
//!
//! ```text
//!   Workload ──which key, read or write──► Worker ──Dialect──► bytes ──► sockets
//!                                            │                              │
//!                       latency histogram ◄──┴──────── whole answers ◄──────┘
//! ```
//!
//! The event loop, the clock and the bookkeeping are the same for each kind of server; only the
//! [`Dialect`] differs, which turns a request into bytes and finds the ends of answers. So no
//! system is measured with a better client than another.

mod alarm;
mod dialect;
pub mod etcd;
mod fill;
mod language;
pub mod resp;
mod run;
mod worker;
mod workload;
pub mod zookeeper;

pub use dialect::{Dialect, Ended, Kind, Request};
pub use fill::fill;
pub use language::Language;
pub use run::{Latency, Load, Summary, greeting, run};
pub use worker::{Measured, Orders, TIMELINE_STEP, Target, Worker};
pub use workload::{Distribution, Keys, Mix, Random, Workload, name_of};
