//! Damage to a replica's files: corrupted bytes, a full disk, a busy disk.
//!
//! ```text
//!   journal/*.segment   ▮▮▮▮▮▮▮▯▯▯▯   a byte in the written part, with records behind it
//!   promises            [slot][slot]   a byte in one slot: the other has it, too
//!   snapshots/newest    ▮▮▮▮▮▮▮▮▮▮▮    a byte anywhere
//! ```

use quintet_simulator::Random;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// A slot of the promise file; see the journal's format.
const PROMISE_SLOT: u64 = quintet_replica::journal::PROMISE_SLOT as u64;

/// The damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A record in the middle of the journal.
    Journal,
    /// One of the two promise slots.
    Promise,
    /// The newest snapshot.
    Snapshot,
}

impl Target {
    /// As it stands in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Promise => "promise slot",
            Self::Snapshot => "snapshot",
        }
    }
}

/// A damaged byte, to be made good if the replica refuses to.
#[derive(Clone, Debug)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where.
    pub offset: u64,
    /// The original byte.
    byte: u8,
}

impl Damage {
    /// Puts the byte back.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn undo(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.write_all_at(&[self.byte], self.offset)?;
        file.sync_all()
    }
}

fn newest(directory: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            found.push(path);
        }
    }
    found.sort();
    found.reverse();
    Ok(found)
}

/// The end of what is not zero in a file.
fn written(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1)
}

/// Inverts a bit in the files of a replica that does not run. `None` when there is nothing that
/// could be damaged so.
///
/// # Errors
/// When the files cannot be read or written.
pub fn damage(data: &Path, target: Target, random: &mut Random) -> io::Result<Option<Damage>> {
    let (path, range) = match target {
        Target::Journal => {
            // Not the newest segment, unless it is the only one: damage to the last record of all
            // cannot be told from a write that was never finished.
            let segments = newest(&data.join("journal"), "segment")?;
            if segments.is_empty() {
                return Ok(None);
            }
            let mut found = None;
            for (index, path) in segments
                .iter()
                .enumerate()
                .skip(1)
                .chain([(0, &segments[0])])
            {
                let length = written(&fs::read(path)?);
                let end = if index == 0 { length / 4 } else { length };
                if end > 16 << 10 {
                    found = Some((path.clone(), 8 << 10..end));
                    break;
                }
            }
            match found {
                Some(found) => found,
                None => return Ok(None),
            }
        }
        Target::Promise => {
            let path = data.join("promises");
            let bytes = fs::read(&path)?;
            let slot = PROMISE_SLOT as usize;
            let lengths: Vec<_> = bytes.chunks(slot).map(written).collect();
            // Both must hold something, so that one of them survives.
            if lengths.len() < 2 || lengths.iter().any(|length| *length < 16) {
                return Ok(None);
            }
            let which = random.index(2);
            (path, which * slot..which * slot + lengths[which])
        }
        Target::Snapshot => match newest(&data.join("snapshots"), "snapshot")?.first() {
            Some(path) => {
                let length = fs::metadata(path)?.len() as usize;
                (path.clone(), 0..length)
            }
            None => return Ok(None),
        },
    };
    if range.is_empty() {
        return Ok(None);
    }
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    // A few tries: inverting a bit of unused zeros would damage nothing.
    for _ in 0..1000 {
        let offset = random.between(range.start as u64, range.end as u64 - 1);
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        if byte[0] == 0 {
            continue;
        }
        file.write_all_at(&[byte[0] ^ 1 << random.below(8)], offset)?;
        file.sync_all()?;
        return Ok(Some(Damage {
            path,
            offset,
            byte: byte[0],
        }));
    }
    Ok(None)
}

/// A file that takes all the room there is; gone when dropped.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
    file: File,
}

impl Filler {
    /// Begins to fill the file system of `directory`.
    ///
    /// # Errors
    /// When not even an empty file has room.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let path = directory.join("filler");
        let mut filler = Self {
            file: File::create(&path)?,
            path,
        };
        filler.more()?;
        Ok(filler)
    }

    /// Takes what has become free meanwhile.
    ///
    /// # Errors
    /// Any but that there is no more room.
    pub fn more(&mut self) -> io::Result<()> {
        for chunk in [64 << 10, 4 << 10] {
            let zeros = vec![0; chunk];
            loop {
                match self.file.write_all(&zeros) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // The file system vanishes with the sandbox at the latest.
        let _ = fs::remove_file(&self.path);
    }
}

/// Another writer to the same disk that syncs without pause; ends when dropped.
#[derive(Debug)]
pub struct Storm {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Storm {
    /// Begins in `directory`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(directory: &Path, writers: u32) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for number in 0..writers {
            let path = directory.join(format!("storm-{number}"));
            let stop = Arc::clone(&stop);
            let builder = std::thread::Builder::new().name("storm".to_owned());
            threads.push(builder.spawn(move || {
                let mut offset = 0;
                let bytes = vec![0x5a; 2 << 20];
                let Ok(file) = File::create(&path) else {
                    return;
                };
                while !stop.load(Ordering::Relaxed) {
                    // A full disk ends the storm's use, not the torture.
                    if file.write_all_at(&bytes, offset).is_err() || file.sync_all().is_err() {
                        break;
                    }
                    offset = (offset + bytes.len() as u64) % (32 << 20);
                }
                let _ = fs::remove_file(&path);
            })?);
        }
        Ok(Self { stop, threads })
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_done_to_written_bytes_and_can_be_undone() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("journal");
        fs::create_dir_all(&journal).unwrap();
        let path = journal.join("00000000000000000001.segment");
        let mut bytes = vec![7; 100 << 10];
        bytes.resize(1 << 20, 0);
        fs::write(&path, &bytes).unwrap();
        let mut random = Random::new(1);
        let damage = damage(directory.path(), Target::Journal, &mut random)
            .unwrap()
            .unwrap();
        let damaged = fs::read(&path).unwrap();
        let changed: Vec<_> = (0..bytes.len())
            .filter(|at| bytes[*at] != damaged[*at])
            .collect();
        assert_eq!(changed, [damage.offset as usize]);
        assert!(damage.offset < 25 << 10, "{damage:?}");
        damage.undo().unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn empty_journal_is_not_damaged() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir_all(directory.path().join("journal")).unwrap();
        fs::create_dir_all(directory.path().join("snapshots")).unwrap();
        let mut random = Random::new(1);
        for target in [Target::Journal, Target::Snapshot] {
            let found = damage(directory.path(), target, &mut random).unwrap();
            assert!(found.is_none(), "{found:?}");
        }
    }
}
