//! The Redis data model as a deterministic state machine.
//!
//! ```text
//!   server ── RequestBuilder ──► payload ──► (ordered by a protocol) ──► Store::apply ─┐
//!     ▲                             └──────► (a read) ─────────────────► Store::query ─┤
//!     └────────────── final RESP bytes, to be copied to the client ────────────────────┘
//!
//!   command   what commands there are            keyspace   keys, expiry, versions
//!   request   the payload's format               index      key ──► slot, in hash order
//!   reply     writing RESP2 and RESP3            snapshot   writing the state meanwhile
//!   commands  what each command does             types      hashes, lists, sets, sorted sets
//! ```
//!
//! Everything that a reply, a digest or a snapshot's meaning depends on is either in the request,
//! in [`quintet_replica::At`], or in the state: no clock, no randomness, no order of a hash map.

#![forbid(unsafe_code)]

pub mod command;
mod command_table;
mod commands;
mod context;
mod digest;
mod error;
mod expiries;
mod graveyard;
mod index;
mod key_hash;
mod keyspace;
pub mod numbers;
mod options;
mod passing;
mod random;
mod reply;
mod request;
mod snapshot;
mod steps;
mod store;
pub mod types;
mod undo;
mod value;
mod when;

pub use command::{
    COMMANDS_COUNT, CommandSpec, Flags, Footprint, Group, Kind, Op, key_hash, lookup,
};
pub use commands::{
    past::{asking, retained_bytes},
    sealed_dump,
};
pub use context::{ReadContext, WriteContext};
pub use error::{CommandError, CommandResult};
pub use keyspace::{Expiry, Held, Keys, NEVER};
pub use options::StoreOptions;
pub use random::Random;
pub use reply::Reply;
pub use request::{
    Args, ArgsBuffer, Commands, MalformedRequest, Mode, REQUEST_VERSION, RequestBuilder,
    RequestCommand, Watched,
};
pub use store::Store;
pub use value::{ShortBytes, Stored, StringValue, Value};
pub use when::When;
