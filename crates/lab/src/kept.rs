//! Each measurement is stored at once, in a file that a later run continues.
//!
//! ```text
//!   run ──► DIR/rows.jsonl: what the rows belong to, then a row a line ──► the same run, later
//! ```

use quintet_cli::{Failure, Outcome};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
};

/// Rows as they are measured.
#[derive(Debug)]
pub(crate) struct Kept<Row> {
    path: Option<PathBuf>,
    pub rows: Vec<Row>,
    /// There were rows of something else, which are gone.
    pub replaced: bool,
}

/// Tells what is described, and done by this `program`, from everything else: figures of another
/// build are not this one's.
pub(crate) fn identity(description: &str, program: &Path) -> Outcome<String> {
    // FNV-1a suffices, because the input is trusted.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut take = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    take(description.as_bytes());
    let unreadable = |error| Failure::failed(format!("{}: {error}", program.display()));
    let mut file = File::open(program).map_err(unreadable)?;
    let mut piece = vec![0; 1 << 16];
    loop {
        match file.read(&mut piece).map_err(unreadable)? {
            0 => break,
            length => take(&piece[..length]),
        }
    }
    Ok(format!("{hash:016x}"))
}

impl<Row: Serialize + DeserializeOwned> Kept<Row> {
    /// The rows in `directory` if they belong to `identity`, else none; without a directory they
    /// are kept in memory only.
    pub fn open(directory: Option<&Path>, identity: &str) -> Outcome<Self> {
        let Some(directory) = directory else {
            return Ok(Self {
                path: None,
                rows: Vec::new(),
                replaced: false,
            });
        };
        fs::create_dir_all(directory)
            .map_err(|error| Failure::failed(format!("{}: {error}", directory.display())))?;
        let path = directory.join("rows.jsonl");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        let mut rows: Vec<Row> = Vec::new();
        let found = lines.next();
        let replaced = found != Some(identity) && lines.clone().next().is_some();
        if found == Some(identity) {
            // A line that was cut off by a crash is measured again.
            rows.extend(lines.map_while(|line| serde_json::from_str(line).ok()));
        }
        let mut text = format!("{identity}\n");
        for row in &rows {
            text.push_str(&serde_json::to_string(row).map_err(Failure::failed)?);
            text.push('\n');
        }
        fs::write(&path, text)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Self {
            path: Some(path),
            rows,
            replaced,
        })
    }

    /// Forgets some.
    pub fn drop_where(&mut self, unwanted: impl Fn(&Row) -> bool) -> Outcome<()> {
        self.rows.retain(|row| !unwanted(row));
        let Some(path) = &self.path else {
            return Ok(());
        };
        let text = fs::read_to_string(path)?;
        let mut text = text.lines().next().unwrap_or_default().to_owned() + "\n";
        for row in &self.rows {
            text.push_str(&serde_json::to_string(row).map_err(Failure::failed)?);
            text.push('\n');
        }
        fs::write(path, text)?;
        Ok(())
    }

    pub fn append(&mut self, row: Row) -> Outcome<()> {
        if let Some(path) = &self.path {
            let mut file = OpenOptions::new().append(true).open(path)?;
            let text = serde_json::to_string(&row).map_err(Failure::failed)?;
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
        let other = Kept::<u64>::open(path, "other").unwrap();
        assert!(other.rows.is_empty() && other.replaced);
        assert!(!Kept::<u64>::open(path, "other").unwrap().replaced);
    }

    #[test]
    fn measurements_of_other_program_are_not_reused() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        let build = |bytes: &[u8]| {
            fs::write(&program, bytes).unwrap();
            identity("the same", &program).unwrap()
        };
        let first = build(b"one");
        assert_eq!(build(b"one"), first);
        assert_ne!(build(b"two"), first);
        assert_ne!(identity("else", &program).unwrap(), build(b"two"));
    }
}
