//! What is measured is kept at once, in a file that a later run continues.
//!
//! ```text
//!   run ──► DIR/rows.jsonl: what the rows belong to, then a row a line ──► the same run, later
//! ```

use crate::error::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

/// Rows as they are measured.
#[derive(Debug)]
pub(crate) struct Kept<Row> {
    path: Option<PathBuf>,
    pub rows: Vec<Row>,
}

/// Tells what is described from what is described otherwise.
pub(crate) fn identity(description: &str) -> String {
    // FNV-1a: nobody tries to deceive it.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in description.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{hash:016x}")
}

impl<Row: Serialize + DeserializeOwned> Kept<Row> {
    /// The rows in `directory` if they belong to `identity`, else none; without a directory they
    /// are kept in memory only.
    pub fn open(directory: Option<&Path>, identity: &str) -> Result<Self> {
        let Some(directory) = directory else {
            let (path, rows) = (None, Vec::new());
            return Ok(Self { path, rows });
        };
        fs::create_dir_all(directory)
            .map_err(|error| Error::failed(format!("{}: {error}", directory.display())))?;
        let path = directory.join("rows.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        let mut rows: Vec<Row> = Vec::new();
        if lines.next() == Some(identity) {
            // A line that was cut off by a crash is measured again.
            rows.extend(lines.map_while(|line| serde_json::from_str(line).ok()));
        }
        let mut text = format!("{identity}\n");
        for row in &rows {
            text.push_str(&serde_json::to_string(row).map_err(Error::failed)?);
            text.push('\n');
        }
        fs::write(&path, text)
            .map_err(|error| Error::failed(format!("{}: {error}", path.display())))?;
        let path = Some(path);
        Ok(Self { path, rows })
    }

    /// Forgets some.
    pub fn drop_where(&mut self, unwanted: impl Fn(&Row) -> bool) -> Result<()> {
        self.rows.retain(|row| !unwanted(row));
        let Some(path) = &self.path else {
            return Ok(());
        };
        let text = fs::read_to_string(path)?;
        let mut text = text.lines().next().unwrap_or_default().to_owned() + "\n";
        for row in &self.rows {
            text.push_str(&serde_json::to_string(row).map_err(Error::failed)?);
            text.push('\n');
        }
        fs::write(path, text)?;
        Ok(())
    }

    pub fn append(&mut self, row: Row) -> Result<()> {
        if let Some(path) = &self.path {
            let mut file = OpenOptions::new().append(true).open(path)?;
            let text = serde_json::to_string(&row).map_err(Error::failed)?;
            file.write_all(format!("{text}\n").as_bytes())?;
        }
        self.rows.push(row);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_same_run_are_found_again_and_a_torn_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = Some(directory.path());
        let mut kept = Kept::open(path, "one").unwrap();
        kept.append(1).unwrap();
        kept.append(2).unwrap();
        let file = directory.path().join("rows.jsonl");
        let whole = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{whole}\"torn")).unwrap();
        assert_eq!(Kept::<u64>::open(path, "one").unwrap().rows, [1, 2]);
        assert_eq!(fs::read_to_string(&file).unwrap(), whole);
        assert!(Kept::<u64>::open(path, "other").unwrap().rows.is_empty());
    }
}
