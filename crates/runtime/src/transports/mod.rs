//! How frames travel between replicas, and between replicas and remote frontends.
//!
//! ```text
//!   Transport::queue(peer, lane, frame) ──► … ──► Arrival::Frame at the other side
//!                                           Arrival::Link: up, room, reset, down
//! ```
//!
//! Connections promise that frames of one lane and link arrive whole, in order, at most once. A
//! lost frame takes the link with it, so that nothing is lost silently. Frames of an older link
//! never arrive after the newer one is up. Datagrams promise only the last: frames arrive whole, or
//! not at all, or twice, in any order. They are for protocols that do not need streams
//! ([`quintet_replica::Protocol::NEEDS_STREAMS`]). Shared memory promises what connections do, and
//! that what was put before a frame was queued has arrived when the frame does.

#[cfg(feature = "af-xdp")]
pub(crate) mod af_xdp;
#[cfg(not(feature = "af-xdp"))]
#[path = "af_xdp/absent.rs"]
pub(crate) mod af_xdp;
pub(crate) mod datagrams;
pub(crate) mod emulator;
pub(crate) mod fuzz_memory;
pub(crate) mod handshake;
mod memory;
mod queue;
pub(crate) mod tcp;

use handshake::JoinRequest;
use quintet_replica::{Boot, Bytes, Link, Peer, ReplicaId};

/// An event of a transport for the event loop, in order.
#[derive(Debug)]
pub(crate) enum Arrival {
    Frame(Peer, Bytes),
    /// Words of a peer's row, see [`quintet_replica::put_ranges`].
    Put(ReplicaId, Bytes),
    /// The run that a member's process is in; before its link is up.
    Booted(ReplicaId, Boot),
    Link(Peer, Link),
    /// This replica must not take part; the reason is for the operator.
    Refused(String),
    /// One that has proved itself on this connection wants to become a member.
    Join(u64, JoinRequest),
}
