//! Past values in files: a disk has room that memory has not.
//!
//! ```text
//!   shard's machine ──put──► a place in the open file, bytes held ──► thread: write ──► bytes let go
//!                  ◄─read── from memory until then, from the file afterwards
//!
//!   a file is full ──► the next one; its space is free again when the last value in it is over
//! ```
//!
//! A process may open a limited number of files. So the more are full, the longer the next ones become.
//!
//! Values end in the order in which they are put away, so files empty in their order. A file is
//! deleted as soon as it is open, and ends with the process. While a disk takes nothing, or has no more
//! room than journal and snapshots need, what waits for it is tried again, and further values stay in
//! memory, where the shard's retention bounds them.

use super::Bytes;
use quintet_groups::archive::{Archive, Archived, Encode, Put};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
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
/// Descriptors that a process keeps for them.
const FILES_KEPT: usize = 800;
/// Files become twice as long whenever that number more of this process are full: those of 4 TiB are fewer
/// than are kept, with one of each shard that is being filled.
const FILES_OF_A_LENGTH: usize = 64;
/// Of no use above the length of any disk.
const TIMES_LONGER_MAX: usize = 14;
/// Files of all shards in this process that are full.
static FULL: AtomicUsize = AtomicUsize::new(0);
/// Bytes that wait to be written, of all shards in this process; one larger value comes beside them.
const WAITING_MAX: u64 = 32 << 20;
/// A disk that has taken nothing is tried again after this.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// One that takes nothing for so long takes nothing.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// Free bytes of the disk that are left to journal and snapshots.
const RESERVE: u64 = 1 << 30;

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
    /// Counts this many more; false when there is no room, for so long at most, or the disk takes
    /// nothing.
    fn add(&self, length: u64, waits: Duration) -> bool {
        let full = |state: &mut State| {
            let is_large = length > WAITING_MAX && state.bytes <= WAITING_MAX;
            !state.fails && !is_large && state.bytes + length > WAITING_MAX
        };
        let state = locked(&self.state);
        let woken = self.changed.wait_timeout_while(state, waits, full);
        let (mut state, waited) = woken.unwrap_or_else(PoisonError::into_inner);
        // The next ones wait no more, until something is written.
        state.fails |= waited.timed_out() && !waits.is_zero();
        let takes = !state.fails && !waited.timed_out();
        if takes {
            state.bytes += length;
        }
        takes
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
        // When none can be opened all the same, values stay in memory.
        quintet_runtime::descriptors::keep(FILES_KEPT, "past values");
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

/// The length of a file where `full` others are full.
const fn file_bytes(full: usize) -> u64 {
    let times = full / FILES_OF_A_LENGTH;
    FILE_BYTES
        << match times < TIMES_LONGER_MAX {
            true => times,
            false => TIMES_LONGER_MAX,
        }
}

/// An open file of past values.
#[derive(Debug)]
struct PastFile {
    file: File,
    is_full: AtomicBool,
}

impl PastFile {
    fn new(file: File) -> Arc<Self> {
        Arc::new(Self {
            file,
            is_full: AtomicBool::new(false),
        })
    }

    fn is_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
        FULL.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for PastFile {
    fn drop(&mut self) {
        if *self.is_full.get_mut() {
            FULL.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The values of a shard.
#[derive(Debug)]
struct Files {
    writer: Arc<Writer>,
    /// The file that is being filled, and how far it is.
    open: Mutex<Option<(Arc<PastFile>, u64)>>,
}

impl Files {
    /// A place for that number of bytes.
    fn place(&self, length: u64) -> io::Result<(Arc<PastFile>, u64)> {
        let mut open = locked(&self.open);
        let most = file_bytes(FULL.load(Ordering::Relaxed));
        let (file, offset) = match open.take() {
            Some((file, filled)) if filled + length <= most => (file, filled),
            before => {
                if let Some((full, _)) = before {
                    full.is_full();
                }
                let file = tempfile::tempfile_in(&self.writer.directory)?;
                (PastFile::new(file), 0)
            }
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

    fn put(&self, length: u64, encode: Encode<'_>, waits: bool) -> Put {
        let Writer { waiting, to, .. } = &*self.writer;
        let waits = if waits { HANGS_AFTER } else { Duration::ZERO };
        if !waiting.add(length, waits) {
            return Put::NotNow;
        }
        let Ok((file, offset)) = self.place(length) else {
            waiting.change(|state| state.bytes -= length);
            return Put::NotNow;
        };
        let bytes = encode();
        if bytes.len() as u64 != length {
            // No place for another one.
            waiting.change(|state| state.bytes -= length);
            return Put::Never;
        }
        let entry = Arc::new(Entry {
            file,
            offset,
            length: bytes.len(),
            bytes: Mutex::new(Some(bytes.into())),
        });
        // Without the thread the bytes stay where they are.
        let _ = to.send(entry.clone());
        Put::Away(entry)
    }
}

#[derive(Debug)]
struct Entry {
    file: Arc<PastFile>,
    offset: u64,
    length: usize,
    /// Until they are in the file.
    bytes: Mutex<Option<Bytes>>,
}

impl Entry {
    fn write(&self) -> io::Result<()> {
        leaves_room(&self.file.file, self.length as u64 + RESERVE)?;
        let bytes = locked(&self.bytes).clone();
        let bytes = bytes.expect("written once");
        self.file.file.write_all_at(&bytes, self.offset)?;
        *locked(&self.bytes) = None;
        Ok(())
    }
}

/// # Errors
/// When the disk of this file has less room.
fn leaves_room(file: &File, bytes: u64) -> io::Result<()> {
    let disk = rustix::fs::fstatvfs(file)?;
    match disk.f_bavail.saturating_mul(disk.f_frsize) >= bytes {
        true => Ok(()),
        false => Err(io::ErrorKind::StorageFull.into()),
    }
}

impl Archived for Entry {
    fn read(&self) -> io::Result<Bytes> {
        if let Some(bytes) = &*locked(&self.bytes) {
            return Ok(bytes.clone());
        }
        let mut bytes = vec![0; self.length];
        self.file.file.read_exact_at(&mut bytes, self.offset)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn put(archive: &dyn Archive, bytes: Vec<u8>) -> Option<Arc<dyn Archived>> {
        match archive.put(bytes.len() as u64, &mut || bytes.clone(), true) {
            Put::Away(archived) => Some(archived),
            Put::NotNow | Put::Never => None,
        }
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
    fn files_become_longer_the_more_are_full() {
        let mut bytes = 0;
        let mut full = 0;
        while bytes < 4 << 40 {
            bytes += file_bytes(full);
            full += 1;
        }
        // The most shards of a layout.
        assert!(full + 128 <= FILES_KEPT, "{full}");
        assert_eq!(file_bytes(0), FILE_BYTES);
        assert_eq!(file_bytes(usize::MAX), file_bytes(64 * TIMES_LONGER_MAX));
    }

    #[test]
    fn full_file_counts_until_its_last_value_is_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = Writer::start(directory.path().to_owned()).expect("a thread");
        let files = Files {
            writer,
            open: Mutex::default(),
        };
        let place = |length| files.place(length).expect("a file");
        let (first, _) = place(FILE_BYTES - 1);
        assert!(!first.is_full.load(Ordering::Relaxed));
        // Longer than any file is.
        let (second, offset) = place(file_bytes(usize::MAX));
        assert_eq!(offset, 0);
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(first.is_full.load(Ordering::Relaxed) && FULL.load(Ordering::Relaxed) > 0);
        assert!(!second.is_full.load(Ordering::Relaxed));
    }

    #[test]
    fn full_queue_takes_no_more_and_says_so() {
        let waiting = Waiting::default();
        assert!(waiting.add(WAITING_MAX, NO_WAIT));
        assert!(!waiting.add(1, NO_WAIT));
        assert!(waiting.add(WAITING_MAX + 1, NO_WAIT), "a larger one beside");
        assert!(!waiting.add(WAITING_MAX + 1, NO_WAIT), "and no two");
        waiting.change(|state| state.bytes = 0);
        assert!(waiting.add(1, NO_WAIT));
        waiting.change(|state| state.fails = true);
        assert!(
            !waiting.add(1, HANGS_AFTER),
            "no value waits for a broken disk"
        );
    }

    #[test]
    fn disk_that_hangs_is_waited_for_once() {
        let waiting = Waiting::default();
        assert!(waiting.add(WAITING_MAX, NO_WAIT));
        assert!(!waiting.add(1, Duration::from_millis(1)));
        assert!(locked(&waiting.state).fails);
        assert!(!waiting.add(1, Duration::MAX), "not again");
        waiting.change(|state| (state.bytes, state.fails) = (0, false));
        assert!(waiting.add(1, NO_WAIT));
    }

    #[test]
    fn disk_keeps_room_for_journal_and_snapshots() {
        let file = tempfile::tempfile().expect("a file");
        assert!(leaves_room(&file, 1).is_ok());
        let error = leaves_room(&file, u64::MAX).expect_err("more than any disk has");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn value_of_another_length_is_not_asked_for_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let writer = Writer::start(directory.path().to_owned()).expect("a thread");
        let put = writer.archive().put(2000, &mut || vec![0; 1999], false);
        assert!(matches!(put, Put::Never));
        assert_eq!(locked(&writer.waiting.state).bytes, 0);
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
            assert!(waiting.add(7, HANGS_AFTER));
            let entry = Arc::new(Entry {
                file: PastFile::new(file),
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
        assert!(
            !waiting.add(1, HANGS_AFTER),
            "others stay in memory meanwhile"
        );
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
        assert!(matches!(none, Put::NotNow));
        assert_eq!(locked(&writer.waiting.state).bytes, 0);
        std::fs::create_dir(directory.path().join("none")).expect("made");
        assert!(put(&*archive, vec![0; 2000]).is_some());
    }
}
