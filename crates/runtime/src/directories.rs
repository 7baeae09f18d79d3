//! Directories on disk.

use crate::descriptors::retried;
use std::{fs::File, io, path::Path};

/// Makes the entries of a directory durable: what was made, renamed or removed in it.
///
/// # Errors
/// When the operating system refuses.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    // A path without a directory in its name stands in the current one.
    let path = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    retried(|| File::open(path))?.sync_all()
}
