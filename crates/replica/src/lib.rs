//! The boundary between a replication protocol and the world.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
mod id;
mod session;
mod state_machine;
pub use id::*;
pub use session::*;
pub use state_machine::*;
