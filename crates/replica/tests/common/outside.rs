//! The environment of a node in a test that needs no more of it than the time.

use bytes::Bytes;
use quintet_replica::{ClockReading, Executed, ReplicaId, SnapshotInfo, Time, World};
use std::cell::Cell;

/// Its time, in nanoseconds. It has no snapshot, and room for every frame.
#[derive(Default)]
pub struct Outside(pub Cell<u64>);

impl World for Outside {
    fn now(&self) -> Time {
        Time(self.0.get())
    }
    fn clock(&self) -> ClockReading {
        ClockReading::default()
    }
    fn room(&self, _: ReplicaId) -> usize {
        usize::MAX
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}
