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
//! deleted as soon as it is open, and ends with the process. While a disk takes nothing, what
//! waits for it is tried again, and further values stay in memory, where the shard's retention bounds
//! them.

use super::Bytes;
use quintet_groups::archive::{Archive, Archived, Encode};
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
    time::Duration,
};

/// Smaller values stay in memory: one that was put away needs about 150 bytes there.
const LENGTH_MIN: u64 = 1024;
/// Of each field, the newest.
const IN_MEMORY: u64 = 16 << 20;
const FILE_BYTES: u64 = 64 << 20;
/// Bytes that wait to be written, of all shards in this process.
const WAITING_MAX: u64 = 32 << 20;
/// A disk that has taken nothing is tried again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

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

/// Values that wait to be written.
#[derive(Debug, Default)]
struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// The disk took nothing when it was last tried.
    fails: bool,
}

impl Waiting {
    /// Counts this many more; false when there is no room, or the disk takes nothing.
    fn add(&self, length: u64, waits: bool) -> bool {
        let mut state = locked(&self.state);
        while !state.fails {
            if state.bytes == 0 || state.bytes + length <= WAITING_MAX {
                state.bytes += length;
                return true;
            }
            if !waits {
                return false;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut locked(&self.state));
        self.changed.notify_all();
    }
}

impl Writer {
    /// For the shards of a member, in this directory, which need not be there before the first value.
    ///
    /// # Errors
    /// When there cannot be a thread.
    pub fn start(directory: PathBuf) -> io::Result<Arc<Self>> {
        let (to, from) = channel();
        let waiting = Arc::new(Waiting::default());
        let told = waiting.clone();
        thread::Builder::new()
            .name("quintet-past".to_owned())
            .spawn(move || write_all(&from, &told, AGAIN_AFTER))?;
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

fn write_all(from: &Receiver<Arc<Entry>>, waiting: &Waiting, again_after: Duration) {
    for entry in from {
        // One that no shard has any more need not be written.
        while entry.write().is_err() && Arc::strong_count(&entry) > 1 {
            waiting.change(|state| state.fails = true);
            thread::sleep(again_after);
        }
        waiting.change(|state| {
            state.bytes -= entry.length as u64;
            state.fails = false;
        });
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

    fn put(&self, length: u64, encode: Encode<'_>, waits: bool) -> Option<Arc<dyn Archived>> {
        let Writer { waiting, to, .. } = &*self.writer;
        if !waiting.add(length, waits) {
            return None;
        }
        let Ok((file, offset)) = self.place(length) else {
            waiting.change(|state| state.bytes -= length);
            return None;
        };
        let bytes = encode();
        if bytes.len() as u64 != length {
            // No place for another one.
            waiting.change(|state| state.bytes -= length);
            return None;
        }
        let entry = Arc::new(Entry {
            file,
            offset,
            length: bytes.len(),
            bytes: Mutex::new(Some(bytes.into())),
        });
        // Without the thread the bytes stay where they are.
        let _ = to.send(entry.clone());
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
    fn write(&self) -> io::Result<()> {
        let bytes = locked(&self.bytes).clone();
        let bytes = bytes.expect("written once");
        self.file.write_all_at(&bytes, self.offset)?;
        *locked(&self.bytes) = None;
        Ok(())
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

    fn put(archive: &dyn Archive, bytes: Vec<u8>) -> Option<Arc<dyn Archived>> {
        archive.put(bytes.len() as u64, &mut || bytes.clone(), true)
    }

    #[test]
    fn values_are_read_back_before_and_after_they_are_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = Writer::start(directory.path().to_owned()).expect("a thread");
        let shards = [writer.archive(), writer.archive()];
        let value = |n: usize| vec![n as u8; 1 << (10 + n % 14)];
        let put = |n: usize| put(&*shards[n % 2], value(n)).expect("room");
        let all: Vec<_> = (0..60).map(put).collect();
        for (n, archived) in all.iter().enumerate() {
            assert_eq!(archived.read().expect("there"), value(n));
        }
        // All are in the files when no byte waits.
        let mut state = locked(&writer.waiting.state);
        while state.bytes > 0 {
            state = writer.waiting.changed.wait(state).expect("no panic");
        }
        drop(state);
        for (n, archived) in all.iter().enumerate() {
            assert_eq!(archived.read().expect("there"), value(n));
        }
        let names = std::fs::read_dir(directory.path()).expect("there").count();
        assert_eq!(names, 0, "files without names");
    }

    #[test]
    fn full_queue_takes_no_more_and_says_so() {
        let waiting = Waiting::default();
        assert!(waiting.add(WAITING_MAX + 1, false), "one larger than all");
        assert!(!waiting.add(1, false));
        waiting.change(|state| state.bytes = 0);
        assert!(waiting.add(1, false));
        waiting.change(|state| state.fails = true);
        assert!(!waiting.add(1, true), "no value waits for a broken disk");
    }

    #[test]
    fn disk_that_took_nothing_is_tried_again() {
        // A file that cannot be written until it is another one.
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "").expect("made");
        let (told, waiting) = (channel(), Arc::new(Waiting::default()));
        let ((to, from), theirs) = (told, waiting.clone());
        let entry = |file: File| {
            assert!(waiting.add(7, true));
            let entry = Arc::new(Entry {
                file: Arc::new(file),
                offset: 0,
                length: 7,
                bytes: Mutex::new(Some(Bytes::from_static(b"a value"))),
            });
            to.send(entry.clone()).expect("it listens");
            entry
        };
        let until = |met: fn(&State) -> bool| {
            let mut state = locked(&waiting.state);
            while !met(&state) {
                state = waiting.changed.wait(state).expect("no panic");
            }
        };
        let writer = thread::spawn(move || write_all(&from, &theirs, Duration::ZERO));
        let refused = entry(File::open(&path).expect("to be read only"));
        until(|state| state.fails);
        assert!(!waiting.add(1, true), "others stay in memory meanwhile");
        assert_eq!(refused.read().expect("in memory"), "a value");
        drop(refused);
        until(|state| !state.fails && state.bytes == 0);
        let file = File::options().read(true).write(true).open(&path);
        let written = entry(file.expect("open"));
        until(|state| state.bytes == 0);
        assert!(locked(&written.bytes).is_none());
        assert_eq!(written.read().expect("in the file"), "a value");
        drop(to);
        writer.join().expect("it ends");
    }

    #[test]
    fn directory_that_is_not_there_leaves_values_in_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = Writer::start(directory.path().join("none")).expect("a thread");
        let archive = writer.archive();
        let none = archive.put(2000, &mut || unreachable!("not encoded for nothing"), false);
        assert!(none.is_none());
        assert_eq!(locked(&writer.waiting.state).bytes, 0);
        std::fs::create_dir(directory.path().join("none")).expect("made");
        assert!(put(&*archive, vec![0; 2000]).is_some());
    }
}
