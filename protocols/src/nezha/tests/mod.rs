//! Tests without a whole cluster: when a frontend calls a batch committed, the contents of logs,
//! and what a new leader keeps. Clusters are the simulator's.

mod alone;
mod clocks;
#[cfg(feature = "bugs")]
mod injected;
mod logs;
mod merge;
mod quorums;
mod repair;
mod wire;

use alloc::vec::Vec;
use quintet_replica::{ClusterId, Epoch, EpochNumber, ReplicaId};

/// An epoch of this many replicas, the first of which leads.
pub(in crate::nezha) fn epoch(members: usize) -> Epoch {
    Epoch {
        cluster: ClusterId(1),
        number: EpochNumber(1),
        members,
        options: Vec::new(),
        secret: [0; 32],
        leader_first: ReplicaId(0),
    }
}
