//! The gateway with a store behind it, but no sockets and no protocol.

mod admission;
mod behaviour;
mod conversations;
mod failures;
mod holding;
mod limits;
mod operator;
mod past;
mod rig;
mod shards;
