//! Directories on disk.

use std::{fs::File, io, path::Path};

/// Makes the entries of a directory durable: what was made, renamed or removed in it.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
