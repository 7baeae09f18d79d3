//! Replicate a state machine: the same commands in the same order on every replica, whichever of
//! them fail.
//!
//! ```
//! use quintet::{Cluster, Error, SmallStateMachine};
//!
//! #[derive(Clone, Default)]
//! struct Counter(u64);
//!
//! impl SmallStateMachine for Counter {
//!     fn apply(&mut self, command: &[u8]) -> Vec<u8> {
//!         if command == b"increment" {
//!             self.0 += 1;
//!         }
//!         self.encode()
//!     }
//!     fn query(&self, _: &[u8]) -> Vec<u8> {
//!         self.encode()
//!     }
//!     fn encode(&self) -> Vec<u8> {
//!         self.0.to_le_bytes().to_vec()
//!     }
//!     fn decode(bytes: &[u8]) -> Option<Self> {
//!         Some(Self(u64::from_le_bytes(bytes.try_into().ok()?)))
//!     }
//! }
//!
//! fn main() -> Result<(), Error> {
//!     let mut cluster = Cluster::local(3)
//!         .protocol("multipaxos")
//!         .start(Counter::default())?;
//!     cluster.apply(b"increment")?;
//!     cluster.stop(0);
//!     cluster.apply(b"increment")?;
//!     println!(
//!         "{:?}",
//!         Counter::decode(&cluster.query(b"")?).map(|counter| counter.0)
//!     );
//!     Ok(())
//! }
//! ```
//!
//! ```text
//!   Cluster::apply ──► a replica ──► protocol ──► the same order everywhere ──► StateMachine::apply
//!   Cluster::query ──► a replica ──► "nothing newer was acknowledged" ────────► StateMachine::query
//! ```
//!
//! A state that fits into one buffer implements [`SmallStateMachine`]; a large one implements
//! [`StateMachine`], whose snapshots are written in parts while commands continue. [`Cluster`] runs
//! all replicas in this process, for tests and for a first look; [`runtime`] runs one replica per
//! process, on addresses and in a directory that its configuration names, and is what the
//! `quintet` program is made of. [`store`] is a state machine of its own: the data types and
//! commands of Redis.

// The macros of `groups` name the crate by its name, in its own tests too.
extern crate self as quintet;

mod cluster;
pub mod groups;
mod small;

pub use cluster::{Cluster, Error, Local};
pub use quintet_replica::{
    Access, At, CommandId, CommandTime, DigestBegun, Durability, FootprintVisitor, PastAnswer,
    RestoreError, SnapshotProgress, StateCheck, StateMachine, StateSum,
};
pub use quintet_runtime as runtime;
pub use quintet_store as store;
pub use small::{Replicated, Small, SmallStateMachine, kind};

/// The names of all replication protocols.
pub fn protocols() -> impl Iterator<Item = &'static str> {
    quintet_protocols::PROTOCOLS
        .iter()
        .map(|entry| entry.info.name)
}
