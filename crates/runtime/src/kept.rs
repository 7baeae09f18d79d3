//! What is known of a snapshot on disk.

use quintet_replica::SnapshotInfo;

/// A snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub info: SnapshotInfo,
    /// It came from a peer.
    pub fetched: bool,
}
