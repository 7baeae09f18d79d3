//! Time as a replica sees it: a monotonic clock for timers, a synchronised clock for agreement
//! on "when", and the [`World`] that reads both.

use crate::{Bytes, Executed, ReplicaId, SnapshotHeader};
use core::{
    fmt,
    ops::{Add, Sub},
    time::Duration,
};

/// Monotonic time of one replica: nanoseconds since an arbitrary start. Comparable only within
/// one process run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than every time that will be.
    pub const NEVER: Self = Self(u64::MAX);

    /// How long after `earlier` this is; zero when it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:06}s",
            self.0 / 1_000_000_000,
            self.0 / 1_000 % 1_000_000
        )
    }
}

/// A reading of the synchronised clock, in nanoseconds since the Unix epoch. The true time lies
/// between `earliest` and `latest` if the clock's own error bound holds; no protocol's safety may
/// depend on that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    /// Not before this.
    pub earliest: u64,
    /// The best estimate.
    pub now: u64,
    /// Not after this.
    pub latest: u64,
    /// Standard deviation of the offset estimate; `u64::MAX` when the clock is not synchronised.
    pub deviation: u64,
}

/// When a timer fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// At this monotonic time.
    At(Time),
    /// When the synchronised clock's `now` reaches this many nanoseconds since the Unix epoch;
    /// rechecked when the clock changes.
    Clock(u64),
}

/// A handler's inputs besides its event. Implemented by the runtime and the simulator.
pub trait World {
    /// The monotonic clock, fresh at every call.
    fn now(&self) -> Time;
    /// The synchronised clock, fresh at every call, within its [`ClockLimit`](crate::ClockLimit).
    fn clock(&self) -> ClockReading;
    /// How many bytes may still be queued for this peer before its link is declared down.
    fn room(&self, peer: ReplicaId) -> usize;
    /// Whether a message of this length may be queued for this peer: as far as there is room, and
    /// one of any length while there is much.
    fn takes(&self, peer: ReplicaId, bytes: usize) -> bool {
        crate::limits::link_takes(self.room(peer), bytes)
    }
    /// The newest durable snapshot that this node holds.
    fn snapshot_newest(&self) -> Option<SnapshotInfo>;
    /// Up to `length` bytes of the snapshot from `offset`; empty at its end. `None` when the
    /// snapshot is gone or cannot be read.
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes>;
    /// The beginning of a peer's snapshot that an earlier run of this node could not finish: its
    /// checksums are right. There is none any more once a snapshot has been begun.
    fn snapshot_left(&self) -> Option<SnapshotLeft> {
        None
    }
}

/// The beginning of a snapshot, up to the end of a chunk of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotLeft {
    /// Its header.
    pub header: SnapshotHeader,
    /// So much is here.
    pub length: u64,
}

/// A snapshot that is durable on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The position that it covers; also its name.
    pub id: Executed,
    /// Its length in bytes.
    pub length: u64,
}
