//! The journal's bytes in files: segments with all their space reserved, and the promise file.
//!
//! ```text
//!   journal/00000000000000000007.segment    written block by block, past the page cache if it can be
//!   journal/spare-N                         zero-filled or used before, for the next segment
//!   promises, marks                         two slots each; their space is reserved at the start
//! ```

use crate::{descriptors::retried, directories::sync_directory};
use quintet_replica::{
    Bytes,
    journal::{BLOCK, Disk, MARK_SLOT, PROMISE_SLOT},
};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread::JoinHandle,
};

/// Spare files kept for new segments.
const SPARES_MAX: usize = 2;
/// The contents for a file that should be there and is not: not zeros, which mean "never written".
const MISSING: &[u8] = b"missing";
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

/// An error with the file that it concerns.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}{hint}", path = .path.display(), hint = self.hint())]
pub(crate) struct FileError {
    pub path: PathBuf,
    pub error: io::Error,
}

impl FileError {
    fn hint(&self) -> &'static str {
        if is_full(&self.error) {
            " (make room on the disk, then start the replica again)"
        } else {
            ""
        }
    }
}

/// Whether an error says that there is no room, and nothing else is wrong.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Makes the files whose space must always be there, once per data directory.
pub(crate) fn reserve(root: &Path) -> io::Result<()> {
    let slots = [("promises", 2 * PROMISE_SLOT), ("marks", 2 * BLOCK)];
    for (name, length) in slots {
        make_zeros(&root.join(name), length as u64)?;
    }
    sync_directory(root)
}

/// Drops the promises, as a cluster begins again with nothing.
pub(crate) fn forget_promises(root: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new()
        .write(true)
        .open(root.join("promises"))?;
    file.write_all_at(&vec![0; 2 * PROMISE_SLOT], 0)?;
    file.sync_all()
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_path_buf();
    |error| FileError { path, error }
}

/// A buffer whose start is aligned for writing past the page cache.
#[derive(Debug, Default)]
struct Aligned {
    bytes: Vec<u8>,
}

impl Aligned {
    /// A copy of `bytes` at an aligned address.
    fn copy_of(&mut self, bytes: &[u8]) -> &[u8] {
        if self.bytes.len() < bytes.len() + BLOCK || self.bytes.len() > bytes.len() + (8 << 20) {
            self.bytes = vec![0; bytes.len() + BLOCK + (64 << 10)];
        }
        let skip = self.bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        let aligned = &mut self.bytes[skip..skip + bytes.len()];
        aligned.copy_from_slice(bytes);
        aligned
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FileDisk {
    root: PathBuf,
    directory: PathBuf,
    direct: bool,
    /// The segment written last.
    open: Option<(u64, File, bool)>,
    promises: Option<File>,
    marks: Option<File>,
    aligned: Aligned,
    /// The length of segments for which spare files are made; 0 before it is known.
    usual: u64,
    spare_next: u64,
    spare_maker: Option<JoinHandle<io::Result<()>>>,
    /// Where damaged segments are put.
    aside: PathBuf,
    /// There was no room for a spare file.
    full: bool,
}

impl FileDisk {
    /// Files below `root`, which has a directory `journal`. Damaged ones are moved to `aside`.
    pub fn new(root: &Path, direct: bool, aside: PathBuf) -> Self {
        Self {
            root: root.to_path_buf(),
            directory: root.join("journal"),
            direct,
            open: None,
            promises: None,
            marks: None,
            aligned: Aligned::default(),
            usual: 0,
            spare_next: 0,
            spare_maker: None,
            aside,
            full: false,
        }
    }

    /// Only a record that is longer than segments are has one of another length.
    const fn is_for_one_record(&self, length: u64) -> bool {
        self.usual != 0 && length > self.usual
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.directory.join(format!("{segment:020}.segment"))
    }

    fn spares(&self) -> io::Result<Vec<PathBuf>> {
        let mut spares = Vec::new();
        for entry in retried(|| fs::read_dir(&self.directory))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("spare-") {
                spares.push(entry.path());
            }
        }
        spares.sort();
        Ok(spares)
    }

    fn spare_name(&mut self) -> PathBuf {
        loop {
            self.spare_next += 1;
            let path = self.directory.join(format!("spare-{}", self.spare_next));
            if !path.exists() {
                return path;
            }
        }
    }

    /// A segment open for writing, and whether a write to it is durable by itself.
    fn segment(&mut self, segment: u64) -> Result<(&File, bool), FileError> {
        let path = self.path(segment);
        if self.open.as_ref().is_none_or(|(open, ..)| *open != segment) {
            self.open = Some(
                open_segment(&path, self.direct)
                    .map(|(f, d)| (segment, f, d))
                    .map_err(at(&path))?,
            );
        }
        match &self.open {
            Some((_, file, direct)) => Ok((file, *direct)),
            None => Err(at(&path)(io::Error::other("not open"))),
        }
    }

    /// Has a spare file made in the background, so that the next segment costs no wait and has
    /// its room before it is needed. True when there was no room for one when last tried.
    pub fn reserve(&mut self, length: u64) -> bool {
        self.usual = length;
        if let Some(maker) = self.spare_maker.take_if(|maker| maker.is_finished()) {
            match maker.join() {
                Ok(Err(error)) if is_full(&error) => self.full = true,
                // Without a spare the next segment is made while writers wait: no error.
                Ok(Err(error)) => tracing::debug!(%error, "no spare journal segment"),
                Ok(Ok(())) | Err(_) => {}
            }
        }
        if self.spare_maker.is_some() {
            return self.full;
        }
        // A spare of another length, left by another setting or by a crash, would never be used
        // and keep others from being made.
        let fits = |spare: &PathBuf| {
            let fits = fs::metadata(spare).is_ok_and(|metadata| metadata.len() == length);
            fits || fs::remove_file(spare).is_err()
        };
        if self.spares().map_or(true, |spares| spares.iter().any(fits)) {
            self.full = false;
            return false;
        }
        let path = self.spare_name();
        let directory = self.directory.clone();
        self.spare_maker = std::thread::Builder::new()
            .name("spare segment".to_owned())
            .spawn(move || make_file(&directory.join("spare.new"), &path, length, make_zeros))
            .ok();
        self.full
    }
}

/// Makes a file under another name first, so that it is there whole or not at all.
fn make_file(
    temporary: &Path,
    path: &Path,
    length: u64,
    make: impl FnOnce(&Path, u64) -> io::Result<()>,
) -> io::Result<()> {
    let made = make(temporary, length).and_then(|()| fs::rename(temporary, path));
    if made.is_err() {
        // On a full disk it must not keep what it got.
        let _ = fs::remove_file(temporary);
    }
    made.and_then(|()| sync_directory(path.parent().unwrap_or(path)))
}

/// Opens for writing past the page cache where the file system can.
fn open_segment(path: &Path, direct: bool) -> io::Result<(File, bool)> {
    if direct {
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(flags);
        match retried(|| options.open(path)) {
            Ok(file) => return Ok((file, true)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    let file = retried(|| OpenOptions::new().write(true).open(path))?;
    Ok((file, false))
}

/// Reserves space for what is written once and at once: zeros before it would only double the work.
fn make_room(path: &Path, length: u64) -> io::Result<()> {
    let file = retried(|| File::create(path))?;
    match fallocate(&file, FallocateFlags::empty(), 0, length) {
        Ok(()) => file.sync_all(),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => make_zeros(path, length),
        Err(error) => Err(error.into()),
    }
}

fn make_zeros(path: &Path, length: u64) -> io::Result<()> {
    let file = retried(|| File::create(path))?;
    let mut offset = 0;
    // Zeros that are written make every later sync cheaper than space that is only reserved.
    while offset < length {
        let step = (length - offset).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..step as usize], offset)?;
        offset += step;
    }
    file.sync_all()
}

impl Disk for FileDisk {
    type Error = FileError;

    fn segments(&mut self) -> Result<Vec<u64>, FileError> {
        let mut numbers = Vec::new();
        let entries = retried(|| fs::read_dir(&self.directory)).map_err(at(&self.directory))?;
        for entry in entries {
            let name = entry.map_err(at(&self.directory))?.file_name();
            let name = name.to_string_lossy();
            if let Some(number) = name.strip_suffix(".segment").and_then(|n| n.parse().ok()) {
                numbers.push(number);
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn read(&mut self, segment: u64) -> Result<Bytes, FileError> {
        let path = self.path(segment);
        retried(|| fs::read(&path))
            .map(Bytes::from)
            .map_err(at(&path))
    }

    fn create(&mut self, segment: u64, length: u64) -> Result<(), FileError> {
        let path = self.path(segment);
        if self.is_for_one_record(length) {
            let temporary = self.directory.join("segment.new");
            return make_file(&temporary, &path, length, make_room).map_err(at(&path));
        }
        if let Some(maker) = self.spare_maker.take() {
            // Its failure is tried again below, and reported.
            let _ = maker.join();
        }
        for spare in self.spares().map_err(at(&self.directory))? {
            let fits = fs::metadata(&spare).is_ok_and(|metadata| metadata.len() == length);
            if fits {
                fs::rename(&spare, &path).map_err(at(&path))?;
                sync_directory(&self.directory).map_err(at(&self.directory))?;
                self.reserve(length);
                return Ok(());
            }
        }
        let temporary = self.directory.join("segment.new");
        let made = make_file(&temporary, &path, length, make_zeros);
        self.full = made.as_ref().is_err_and(is_full);
        made.map_err(at(&path))?;
        self.reserve(length);
        Ok(())
    }

    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.path(segment);
        let mut aligned = std::mem::take(&mut self.aligned);
        let (file, direct) = self.segment(segment)?;
        let result = if direct {
            file.write_all_at(aligned.copy_of(bytes), offset)
        } else {
            file.write_all_at(bytes, offset)
                .and_then(|()| file.sync_data())
        };
        self.aligned = aligned;
        result.map_err(at(&path))
    }

    fn remove(&mut self, segment: u64) -> Result<(), FileError> {
        let path = self.path(segment);
        self.open.take_if(|(open, ..)| *open == segment);
        let spares = self.spares().map_err(at(&self.directory))?;
        let length = fs::metadata(&path).map_err(at(&path))?.len();
        if spares.len() < SPARES_MAX && !self.is_for_one_record(length) {
            let spare = self.spare_name();
            fs::rename(&path, spare).map_err(at(&path))?;
        } else {
            fs::remove_file(&path).map_err(at(&path))?;
        }
        sync_directory(&self.directory).map_err(at(&self.directory))
    }

    fn discard(&mut self, segment: u64) -> Result<(), FileError> {
        let path = self.path(segment);
        self.open.take_if(|(open, ..)| *open == segment);
        fs::remove_file(&path).map_err(at(&path))?;
        sync_directory(&self.directory).map_err(at(&self.directory))
    }

    fn read_promise(&mut self, slot: usize) -> Result<Bytes, FileError> {
        let path = self.root.join("promises");
        let file = match retried(|| File::open(&path)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Bytes::from_static(MISSING));
            }
            Err(error) => return Err(at(&path)(error)),
        };
        read_slot(&file, slot * PROMISE_SLOT, PROMISE_SLOT).map_err(at(&path))
    }

    fn write_promise(&mut self, slot: usize, bytes: &[u8]) -> Result<(), FileError> {
        let path = self.root.join("promises");
        let file = open_slots(&mut self.promises, &path).map_err(at(&path))?;
        file.write_all_at(bytes, (slot * PROMISE_SLOT) as u64)
            .and_then(|()| file.sync_data())
            .map_err(at(&path))
    }

    fn read_mark(&mut self, slot: usize) -> Result<Option<Bytes>, FileError> {
        let path = self.root.join("marks");
        let file = match retried(|| File::open(&path)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Some(Bytes::from_static(MISSING)));
            }
            Err(error) => return Err(at(&path)(error)),
        };
        let slot = read_slot(&file, slot * BLOCK, MARK_SLOT).map_err(at(&path))?;
        Ok(Some(slot))
    }

    fn write_mark(&mut self, slot: usize, bytes: &[u8], durable: bool) -> Result<(), FileError> {
        let path = self.root.join("marks");
        let file = open_slots(&mut self.marks, &path).map_err(at(&path))?;
        file.write_all_at(bytes, (slot * BLOCK) as u64)
            .and_then(|()| if durable { file.sync_data() } else { Ok(()) })
            .map_err(at(&path))
    }

    fn set_aside(&mut self, below: u64) -> Result<(), FileError> {
        let to = self.aside.join("journal");
        let old: Vec<_> = (self.segments()?.into_iter())
            .filter(|segment| *segment < below)
            .map(|segment| self.path(segment))
            .collect();
        self.open.take_if(|(open, ..)| *open < below);
        if old.is_empty() {
            return Ok(());
        }
        let move_all = || {
            fs::create_dir_all(&to)?;
            for path in &old {
                fs::rename(path, to.join(path.file_name().unwrap_or_default()))?;
            }
            sync_directory(&to)?;
            sync_directory(&self.aside)?;
            sync_directory(&self.directory)?;
            sync_directory(&self.root)
        };
        move_all().map_err(at(&self.directory))
    }

    fn is_full(error: &FileError) -> bool {
        is_full(&error.error)
    }
}

/// The file of two slots, opened for writing once; made when it has been lost.
fn open_slots<'a>(open: &'a mut Option<File>, path: &Path) -> io::Result<&'a File> {
    if let Some(file) = open {
        return Ok(file);
    }
    let new = !path.exists();
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = retried(|| options.open(path))?;
    if new {
        sync_directory(path.parent().unwrap_or(path))?;
    }
    Ok(open.insert(file))
}

fn read_slot(file: &File, start: usize, length: usize) -> io::Result<Bytes> {
    let (mut bytes, mut filled) = (vec![0; length], 0);
    while filled < length {
        match file.read_at(&mut bytes[filled..], (start + filled) as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        if let Some(maker) = self.spare_maker.take() {
            let _ = maker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{
        ClusterId, EpochNumber, GroupId, GroupIndex, ReplicaId, Slot, Write,
        journal::{GroupEpoch, Identity, Journal},
    };

    #[test]
    fn journal_in_files_is_found_again_with_and_without_page_cache() {
        for direct in [true, false] {
            let directory = tempfile::tempdir().expect("a directory");
            fs::create_dir(directory.path().join("journal")).expect("made");
            reserve(directory.path()).expect("made");
            let identity = Identity {
                cluster: ClusterId(1),
                node: ReplicaId(0),
            };
            let groups = [GroupEpoch {
                group: GroupId(0),
                epoch: EpochNumber(1),
            }];
            let open = || {
                let disk = FileDisk::new(directory.path(), direct, directory.path().join("aside"));
                Journal::open(disk, identity, &groups, 64 << 10).map_err(|error| error.to_string())
            };
            let mut journal = open().expect("opens").journal;
            for slot in 1..=100u64 {
                let record = vec![slot as u8; 3000].into();
                journal
                    .append(
                        GroupIndex(0),
                        &Write::Record {
                            slot: Slot(slot),
                            record,
                        },
                    )
                    .expect("room");
                journal.commit().expect("writes");
                journal
                    .trim(GroupIndex(0), Slot(slot.saturating_sub(40)))
                    .expect("removes");
            }
            journal
                .append(GroupIndex(0), &Write::Promise(Bytes::from("mine")))
                .expect("writes");
            journal.commit().expect("writes");
            drop(journal);
            let opened = open().expect("opens");
            let found = &opened.groups[0];
            let slots: Vec<u64> = found.records.iter().map(|(slot, _)| slot.0).collect();
            assert!(slots.ends_with(&(70..=100).collect::<Vec<_>>()));
            assert!(slots.len() < 90);
            assert!(
                found
                    .records
                    .iter()
                    .all(|(slot, bytes)| bytes[2999] == slot.0 as u8)
            );
            assert_eq!(found.promise.as_deref(), Some(&b"mine"[..]));
            assert!(!opened.torn && !opened.promise_repaired);
        }
    }

    #[test]
    fn spare_is_made_when_one_of_another_length_is_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let journal = directory.path().join("journal");
        fs::create_dir(&journal).expect("made");
        fs::write(journal.join("spare-1"), [0; 100]).expect("written");
        let mut disk = FileDisk::new(directory.path(), false, directory.path().join("aside"));
        assert!(!disk.reserve(8192));
        let maker = disk.spare_maker.take().expect("a spare is being made");
        maker.join().expect("no panic").expect("room");
        let lengths: Vec<u64> = (disk.spares().expect("read").iter())
            .map(|spare| fs::metadata(spare).expect("there").len())
            .collect();
        assert_eq!(lengths, [8192]);
        assert!(!disk.reserve(8192));
        assert!(disk.spare_maker.is_none());
    }

    #[test]
    fn segment_of_long_record_does_not_use_spare() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("journal")).expect("made");
        let mut disk = FileDisk::new(directory.path(), false, directory.path().join("aside"));
        assert!(!disk.reserve(8192));
        let maker = disk.spare_maker.take().expect("a spare is being made");
        maker.join().expect("no panic").expect("room");
        let long = 1 << 20;
        disk.create(1, long).expect("room");
        assert!(disk.spare_maker.is_none(), "the spare is there");
        let metadata = fs::metadata(disk.path(1)).expect("there");
        let blocks = std::os::unix::fs::MetadataExt::blocks(&metadata);
        assert!(metadata.len() == long && blocks * 512 >= long, "{blocks}");
        disk.remove(1).expect("removed");
        let lengths = |disk: &FileDisk| -> Vec<u64> {
            let spares = disk.spares().expect("read");
            let length = |spare: &PathBuf| fs::metadata(spare).expect("there").len();
            spares.iter().map(length).collect()
        };
        assert_eq!(lengths(&disk), [8192]);
        disk.create(2, 8192).expect("room");
        assert_eq!(fs::metadata(disk.path(2)).expect("there").len(), 8192);
    }
}
