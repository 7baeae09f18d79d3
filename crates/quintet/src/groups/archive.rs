//! Past values in files: a disk has room that memory has not.
//!
//! ```text
//!   shard's machine ──put──► a place in the open file, bytes held ──► thread: write ──► bytes let go
//!                  ◄─read── from memory until then, from the file afterwards
//!
//!   a file is full ──► the next one; its space is free again when the last value in it is over
//! ```
//!
//! Values end in the order in which they are put away, so files empty in their order. A file is
//! deleted as soon as it is open, and ends with the process. Values that cannot be written
//! stay in memory, where the shard's retention bounds them.

use super::Bytes;
use quintet_groups::archive::{Archive, Archived};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// Smaller values stay in memory: one that was put away needs about 150 bytes there.
const LENGTH_MIN: u64 = 1024;
/// Of each field, the newest.
const IN_MEMORY: u64 = 16 << 20;
const FILE_BYTES: u64 = 64 << 20;
/// Bytes that wait to be written, of all shards of a member.
const WAITING_MAX: u64 = 32 << 20;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes what the shards of a member put away, on a thread of its own.
#[derive(Debug)]
pub(super) struct Writer {
    directory: PathBuf,
    to: Sender<Arc<Entry>>,
    waiting: Arc<Waiting>,
}

/// Bytes that wait to be written; `None` once they cannot be.
#[derive(Debug)]
struct Waiting {
    bytes: Mutex<Option<u64>>,
    fewer: Condvar,
}

impl Waiting {
    /// Counts this many more; false when there is no room, or never will be.
    fn add(&self, length: u64, waits: bool) -> bool {
        let mut bytes = locked(&self.bytes);
        while let Some(waiting) = *bytes {
            if waiting == 0 || waiting + length <= WAITING_MAX {
                *bytes = Some(waiting + length);
                return true;
            }
            if !waits {
                return false;
            }
            let woken = self.fewer.wait(bytes);
            bytes = woken.unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    fn end(&self, written: io::Result<u64>) {
        let mut bytes = locked(&self.bytes);
        *bytes = match written {
            Ok(length) => bytes.map(|waiting| waiting - length),
            Err(_) => None,
        };
        drop(bytes);
        self.fewer.notify_all();
    }
}

impl Writer {
    /// For the shards of a member, in this directory, which need not be there before the first value.
    ///
    /// # Errors
    /// When there cannot be a thread.
    pub fn start(directory: PathBuf) -> io::Result<Arc<Self>> {
        let (to, from) = channel();
        let waiting = Arc::new(Waiting {
            bytes: Mutex::new(Some(0)),
            fewer: Condvar::new(),
        });
        let told = waiting.clone();
        thread::Builder::new()
            .name("quintet-past".to_owned())
            .spawn(move || write_all(&from, &told))?;
        Ok(Arc::new(Self {
            directory,
            to,
            waiting,
        }))
    }

    /// The archive of a shard.
    pub fn archive(self: &Arc<Self>) -> Arc<dyn Archive> {
        Arc::new(Files {
            writer: self.clone(),
            open: Mutex::default(),
        })
    }
}

fn write_all(from: &Receiver<Arc<Entry>>, waiting: &Waiting) {
    for entry in from {
        let written = entry.write();
        let failed = written.is_err();
        waiting.end(written);
        if failed {
            return;
        }
    }
}

/// The values of a shard.
#[derive(Debug)]
struct Files {
    writer: Arc<Writer>,
    /// The file that is being filled, and how far it is.
    open: Mutex<Option<(Arc<File>, u64)>>,
}

impl Files {
    /// A place for that number of bytes.
    fn place(&self, length: u64) -> io::Result<(Arc<File>, u64)> {
        let mut open = locked(&self.open);
        let (file, offset) = match open.take() {
            Some((file, filled)) if filled + length <= FILE_BYTES => (file, filled),
            _ => (Arc::new(tempfile::tempfile_in(&self.writer.directory)?), 0),
        };
        *open = Some((file.clone(), offset + length));
        Ok((file, offset))
    }
}

impl Archive for Files {
    fn in_memory(&self) -> u64 {
        IN_MEMORY
    }

    fn takes(&self, length: u64) -> bool {
        length >= LENGTH_MIN
    }

    fn put(&self, bytes: Vec<u8>, waits: bool) -> Option<Arc<dyn Archived>> {
        let length = bytes.len() as u64;
        if !self.writer.waiting.add(length, waits) {
            return None;
        }
        let placed = self.place(length).map(|(file, offset)| Entry {
            file,
            offset,
            length: bytes.len(),
            bytes: Mutex::new(Some(bytes.into())),
        });
        let Ok(entry) = placed.map(Arc::new) else {
            self.writer.waiting.end(Ok(length));
            return None;
        };
        // Its thread has ended where nothing can be written: the bytes stay where they are.
        let _ = self.writer.to.send(entry.clone());
        Some(entry)
    }
}

#[derive(Debug)]
struct Entry {
    file: Arc<File>,
    offset: u64,
    length: usize,
    /// Until they are in the file.
    bytes: Mutex<Option<Bytes>>,
}

impl Entry {
    fn write(&self) -> io::Result<u64> {
        let bytes = locked(&self.bytes).clone();
        let bytes = bytes.expect("written once");
        self.file.write_all_at(&bytes, self.offset)?;
        *locked(&self.bytes) = None;
        Ok(bytes.len() as u64)
    }
}

impl Archived for Entry {
    fn read(&self) -> io::Result<Bytes> {
        if let Some(bytes) = &*locked(&self.bytes) {
            return Ok(bytes.clone());
        }
        let mut bytes = vec![0; self.length];
        self.file.read_exact_at(&mut bytes, self.offset)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_before_and_after_they_are_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = Writer::start(directory.path().to_owned()).expect("a thread");
        let shards = [writer.archive(), writer.archive()];
        let value = |n: usize| vec![n as u8; 1 << (10 + n % 14)];
        let put = |n: usize| shards[n % 2].put(value(n), true).expect("room");
        let all: Vec<_> = (0..60).map(put).collect();
        for (n, archived) in all.iter().enumerate() {
            assert_eq!(archived.read().expect("there"), value(n));
        }
        // All are in the files when no byte waits.
        let mut bytes = locked(&writer.waiting.bytes);
        while *bytes != Some(0) {
            bytes = writer.waiting.fewer.wait(bytes).expect("no panic");
        }
        drop(bytes);
        for (n, archived) in all.iter().enumerate() {
            assert_eq!(archived.read().expect("there"), value(n));
        }
        let names = std::fs::read_dir(directory.path()).expect("there").count();
        assert_eq!(names, 0, "files without names");
    }

    #[test]
    fn full_queue_takes_no_more_and_says_so() {
        let waiting = Waiting {
            bytes: Mutex::new(Some(0)),
            fewer: Condvar::new(),
        };
        assert!(waiting.add(WAITING_MAX + 1, false), "one larger than all");
        assert!(!waiting.add(1, false));
        waiting.end(Ok(WAITING_MAX + 1));
        assert!(waiting.add(1, false));
        waiting.end(Err(io::ErrorKind::StorageFull.into()));
        assert!(!waiting.add(1, true), "no value waits for a broken disk");
    }

    #[test]
    fn directory_that_is_not_there_leaves_values_in_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = Writer::start(directory.path().join("none")).expect("a thread");
        let archive = writer.archive();
        assert!(archive.put(vec![0; 2000], false).is_none());
        assert_eq!(*locked(&writer.waiting.bytes), Some(0));
        std::fs::create_dir(directory.path().join("none")).expect("made");
        assert!(archive.put(vec![0; 2000], false).is_some());
    }
}
