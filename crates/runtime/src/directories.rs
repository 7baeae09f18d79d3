//! Directories on disk.

use crate::descriptors::retried;
use std::{fs::File, io, path::Path};

/// Makes the entries of a directory durable: what was made, renamed or removed in it.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    retried(|| File::open(path))?.sync_all()
}
