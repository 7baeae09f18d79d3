//! The environment of the node: clocks, room in queues, snapshots.

use crate::{clock::Clock, snapshots::Snapshots};
use quintet_replica::{
    Bytes, ClockReading, Executed, ReplicaId, SnapshotInfo, SnapshotLeft, Time, World,
};
use std::cell::Cell;

/// See the module.
pub(crate) struct RuntimeWorld {
    pub clock: Clock,
    /// Per member: how many bytes may be queued for it.
    pub rooms: Vec<Cell<usize>>,
    pub snapshots: Snapshots,
}

impl World for RuntimeWorld {
    fn now(&self) -> Time {
        self.clock.now()
    }

    fn clock(&self) -> ClockReading {
        self.clock.reading()
    }

    fn room(&self, peer: ReplicaId) -> usize {
        self.rooms.get(peer.index()).map_or(0, Cell::get)
    }

    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.snapshots.newest()
    }

    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        self.snapshots.read(id, offset, length)
    }

    fn snapshot_left(&self) -> Option<SnapshotLeft> {
        self.snapshots.left()
    }
}
