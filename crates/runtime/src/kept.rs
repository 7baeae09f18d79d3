//! The state of a snapshot on disk.

use quintet_replica::SnapshotInfo;

/// Where a snapshot file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// It was begun in the epoch before, and leads to where this one begins.
    Bridge,
    /// From this replica.
    Own,
    /// From a peer: the log before it has a gap.
    Fetched,
}

impl Origin {
    pub const ALL: [Self; 3] = [Self::Bridge, Self::Own, Self::Fetched];

    /// The end of its file's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Own => "snapshot",
            Self::Fetched => "fetched",
        }
    }
}

/// A snapshot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub info: SnapshotInfo,
    pub origin: Origin,
}

impl Kept {
    pub const fn is_fetched(&self) -> bool {
        matches!(self.origin, Origin::Fetched)
    }
}
