//! Replicated services: a struct with tagged methods, the same at every member, with all its
//! versions in time.
//!
//! ```
//! use quintet::groups::{Group, Persistent, Service, service};
//!
//! #[derive(Default, Service)]
//! struct Counter {
//!     value: Persistent<u64>,
//! }
//!
//! #[service]
//! impl Counter {
//!     #[ordered]
//!     fn add(&mut self, by: u64) -> u64 {
//!         *self.value += by;
//!         *self.value
//!     }
//!     #[query]
//!     fn value(&self) -> u64 {
//!         *self.value
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let group = Group::local(3).one::<Counter>("counter").start()?;
//!     let counter = group.shard::<Counter>("counter", 0)?;
//!     let first = counter.ordered().add(5).done()?; // value 5, version 1, and its time
//!     counter.ordered().add(2).wait()?; // 7; `.await?` does the same
//!     group.stop_member(0);
//!     assert_eq!(counter.query().value().wait()?, 7); // linearizable, at any member
//!     assert_eq!(counter.at(first.version).value().wait()?, 5);
//!     assert_eq!(counter.at(first.time).value().wait()?, 5);
//!     for change in counter.history(Counter::VALUE, 10)? {
//!         println!("{} {} {}", change.version, change.time, change.value);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! ```text
//!   counter.ordered().add(5) ──► a member ──► protocol ──► the same order everywhere ──► add(&mut self, 5)
//!   counter.query().value()  ──► a member ──► "nothing newer was acknowledged" ────────► value(&self)
//!   counter.at(t).value()    ──► a member ──► closed up to t ──► the fields as of t ───► value(&self)
//! ```
//!
//! # Methods
//!
//! `#[ordered] fn (&mut self, …)` is executed at every member, at its place in the order; a
//! [`CallContext`] as first argument tells time, version and chance. `#[query] fn (&self, …)` is
//! executed at one member. Methods without a tag are the author's own. Arguments and answers are
//! plain data of serde; `&str` and `&[u8]` are read where the command lies.
//!
//! A handler must be deterministic: no clock, no randomness, no order of a hash map. It must not wait
//! for another call: that gives [`CallError::InsideHandler`]. One that panics does so at every
//! member, and the shard stops there.
//!
//! # Shards
//!
//! A layout divides a group into shards of several services ([`LocalGroup::layout`]); a handle names
//! its shard, or a key of it. Methods hand calls off to other shards with [`CallContext::then`].
//! [`Group::local`] runs all members in this process, [`Group::member`] one of them.
//!
//! `#[view] fn (&mut self, context, view: &ShardView)` is executed in order when the members of its shard
//! have changed.
//!
//! # Versions
//!
//! Each ordered call that changes a [`Persistent`] value or a [`PersistentMap`] makes a version: a
//! number without gaps, with a time that never goes back. [`Shard::at`] runs a query on the state of
//! a version or a time. [`Retention`] bounds the past. [`Volatile`] and [`VolatileMap`]
//! are replicated too, and have no past.

mod answering;
mod archive;
mod at_members;
mod calls;
mod client;
mod courier;
mod entry;
mod follow;
mod group;
mod herald;
mod json;
mod looking;
mod pending;
mod redis;
mod remote;
mod replies;
mod shard;
mod shards;
mod turns;

pub use client::Client;
pub use follow::{Followed, Follower, Notification};
pub use group::{Group, LocalGroup};
pub use pending::Pending;
pub use quintet_groups::{
    Bytes, CallContext, CallError, CallOf, Done, Field, FieldOf, HasHistory, JsonCall, Key, Method,
    MethodKind, Methods, NoTime, Persistent, PersistentMap, Place, Reply, Retention, Service,
    ServiceMap, ShardView, Time, Value, Version, Versioned, Volatile, VolatileMap, When, service,
};
use quintet_groups::{call, encoding, hand_off, look, machine, notices};
pub use redis::CallServer;
pub use replies::Replies;
pub use shard::{Change, Handles, Shard};
pub use shards::Shards;

/// Items for the code of the macros.
#[doc(hidden)]
pub mod macros {
    pub use crate::service_handles as handles;
    pub use quintet_groups::macros::*;
}

/// The handles that a service's macro writes.
#[doc(hidden)]
#[macro_export]
macro_rules! service_handles {
    ($($item:tt)*) => { $($item)* };
}
