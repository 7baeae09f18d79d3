//! Snapshot files: written by a thread of their own, read by the event loop.
//!
//! ```text
//!   Begin, Append …, Finish ──► snapshots/incoming ──fsync, rename, fsync──► SLOT-POSITION.snapshot
//!                                                                         or SLOT-POSITION.fetched
//! ```
//!
//! A snapshot is read back, every checksum and the sessions, before anybody is told that it is saved:
//! the log is trimmed behind it. One that cannot be read is thrown away, and the log stays.
//!
//! Two are kept, and the log since the older one. When the newer one is damaged, the older one and
//! the log replace it; unless it came from a peer, because the log has a gap before it then. When
//! the log is damaged and begun again it reaches back to the newest good one only: older ones are
//! set aside with it.

use crate::{
    descriptors::retried,
    directories::sync_directory,
    journal_files::is_full,
    kept::Kept,
    mail::{Mail, Mailer, PanicAlarm},
};
use quintet_replica::{
    Bytes, ClusterId, Durability, Executed, Position, Sessions, Slot, SnapshotChunk, SnapshotInfo,
    SnapshotReader,
};
use std::{
    cell::RefCell,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

const KEPT: usize = 2;
/// A file is kept open for so long after it was read last, as peers that fetch it ask again by then …
const OPEN_FOR: Duration = Duration::from_secs(15);
/// … and of these no more than this: others' disk space is given back.
const OPEN_MAX: usize = 4;
/// Dirty bytes are flushed in portions of this size, so that the journal's syncs never wait
/// behind a whole snapshot.
const FLUSH_EVERY: u64 = 8 << 20;

pub(crate) fn name(id: Executed, fetched: bool) -> String {
    let kind = if fetched { "fetched" } else { "snapshot" };
    format!("{:020}-{:020}.{kind}", id.slot.0, id.position.0)
}

fn parse(name: &str) -> Option<(Executed, bool)> {
    let (id, fetched) = match name.strip_suffix(".snapshot") {
        Some(id) => (id, false),
        None => (name.strip_suffix(".fetched")?, true),
    };
    let (slot, position) = id.split_once('-')?;
    let id = Executed {
        slot: Slot(slot.parse().ok()?),
        position: Position(position.parse().ok()?),
    };
    (self::name(id, fetched) == name).then_some((id, fetched))
}

/// All whole snapshots, oldest first: in the order of their numbers, whatever the files' order is.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<Kept>> {
    let mut found = Vec::new();
    for entry in retried(|| fs::read_dir(directory))? {
        let entry = entry?;
        if let Some((id, fetched)) = parse(&entry.file_name().to_string_lossy()) {
            let length = entry.metadata()?.len();
            let info = SnapshotInfo { id, length };
            found.push(Kept { info, fetched });
        }
    }
    found.sort_by_key(|kept| kept.info.id);
    Ok(found)
}

/// What is wrong with a snapshot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It belongs elsewhere.
    Foreign(String),
    /// It cannot be read to its end.
    Damaged(String),
}

/// Reads a snapshot file whole and checks every checksum.
pub(crate) fn verify(path: &Path, id: Executed, cluster: ClusterId) -> io::Result<Option<Flaw>> {
    let mut file = retried(|| File::open(path))?;
    let (mut reader, mut offset) = (SnapshotReader::default(), 0u64);
    let mut piece = vec![0; 256 << 10];
    let damaged = |offset, what: String| {
        Ok(Some(Flaw::Damaged(format!(
            "snapshot {} is damaged near offset {offset}: {what}",
            path.file_name().unwrap_or_default().to_string_lossy()
        ))))
    };
    loop {
        loop {
            match reader.next_chunk() {
                Ok(Some(SnapshotChunk::Header(header))) => {
                    if header.cluster != cluster {
                        return Ok(Some(Flaw::Foreign(format!(
                            "snapshot {id:?} belongs to another cluster: ours {cluster}, its {}; \
                             it was put into the wrong directory",
                            header.cluster
                        ))));
                    }
                    if header.executed != id {
                        return damaged(offset, format!("it covers {:?}", header.executed));
                    }
                }
                Ok(Some(SnapshotChunk::Sessions(mut sessions))) => {
                    if let Err(error) = Sessions::new(Duration::ZERO).decode(&mut sessions) {
                        return damaged(offset, format!("its sessions: {error}"));
                    }
                }
                Ok(Some(SnapshotChunk::State(_) | SnapshotChunk::Feed(_))) => {}
                Ok(Some(SnapshotChunk::End)) => return Ok(None),
                Ok(None) => break,
                Err(error) => return damaged(offset, error.to_string()),
            }
        }
        match file.read(&mut piece) {
            Ok(0) => return damaged(offset, "it ends early".to_owned()),
            Ok(more) => {
                reader.feed(&piece[..more]);
                offset += more as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What a start can rely on.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The newest one that can be read.
    pub good: Option<Kept>,
    /// Newer ones that cannot, and why.
    pub bad: Vec<(Kept, String)>,
}

impl Survey {
    /// Looks through `directory`, newest first.
    ///
    /// # Errors
    /// The inner error tells of a file that belongs elsewhere.
    pub fn of(directory: &Path, cluster: ClusterId) -> io::Result<Result<Self, String>> {
        let mut survey = Self::default();
        for kept in list(directory)?.into_iter().rev() {
            let path = directory.join(name(kept.info.id, kept.fetched));
            match verify(&path, kept.info.id, cluster)? {
                None => {
                    survey.good = Some(kept);
                    break;
                }
                Some(Flaw::Foreign(reason)) => return Ok(Err(reason)),
                Some(Flaw::Damaged(reason)) => survey.bad.push((kept, reason)),
            }
        }
        Ok(Ok(survey))
    }

    /// Why the good snapshot, or the beginning, and the log are not all that there was. `complete`:
    /// the log goes back to the beginning.
    pub fn lost(&self, complete: bool) -> Option<String> {
        let gap = self.bad.iter().find(|(kept, _)| kept.fetched);
        if let Some((_, reason)) = gap {
            return Some(reason.clone());
        }
        if self.good.is_some() || complete {
            return None;
        }
        Some(match self.bad.first() {
            Some((_, reason)) => reason.clone(),
            None => "the snapshot that the journal goes on from is missing".to_owned(),
        })
    }

    /// Moves the bad ones out of the way.
    pub fn set_aside(&self, directory: &Path, aside: &Path) -> io::Result<()> {
        move_aside(self.bad.iter().map(|(kept, _)| *kept), directory, aside)
    }

    /// Moves those that are older than the good one out of the way, before the journal is begun
    /// again: the log that led from them to the good one goes with it, so that they could never
    /// stand in for it.
    pub fn set_older_aside(&self, directory: &Path, aside: &Path) -> io::Result<()> {
        let Some(good) = self.good else {
            return Ok(());
        };
        let older = list(directory)?.into_iter();
        move_aside(
            older.filter(|kept| kept.info.id < good.info.id),
            directory,
            aside,
        )
    }
}

fn move_aside(kept: impl Iterator<Item = Kept>, directory: &Path, aside: &Path) -> io::Result<()> {
    let mut kept = kept.peekable();
    if kept.peek().is_none() {
        return Ok(());
    }
    fs::create_dir_all(aside)?;
    for kept in kept {
        let name = name(kept.info.id, kept.fetched);
        fs::rename(directory.join(&name), aside.join(&name))?;
    }
    sync_directory(aside)?;
    sync_directory(directory)
}

enum Order {
    Begin(Executed, bool),
    Append(Bytes),
    Finish,
    Abandon,
}

/// A snapshot file that is being read.
#[derive(Debug)]
struct Open {
    id: Executed,
    file: File,
    read_at: Instant,
}

/// The event loop's side: hands snapshots over and reads them back.
#[derive(Debug)]
pub(crate) struct Snapshots {
    directory: PathBuf,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    newest: Option<Kept>,
    /// Files that are being read. One that peers fetch is kept open, and so readable, when newer ones
    /// have taken its place.
    open: RefCell<Vec<Open>>,
}

impl Snapshots {
    /// Finds what is in `directory` and starts the writing thread. In memory durability what an
    /// earlier life left is deleted: it was not made to outlive the process.
    pub fn start(
        directory: PathBuf,
        cluster: ClusterId,
        durability: Durability,
        mailer: Mailer,
    ) -> io::Result<Self> {
        let _ = fs::remove_file(directory.join("incoming"));
        let mut found = list(&directory)?;
        if durability == Durability::Memory {
            for kept in found.drain(..) {
                fs::remove_file(directory.join(name(kept.info.id, kept.fetched)))?;
            }
        }
        let (orders, queue) = channel();
        let mut writer = Writer {
            directory: directory.clone(),
            cluster,
            durability,
            mailer,
            under_way: None,
        };
        let thread = std::thread::Builder::new()
            .name("snapshots".to_owned())
            .spawn(move || {
                let mailer = writer.mailer.clone();
                let _alarm = PanicAlarm::new(&mailer, "snapshots");
                writer.run(&queue);
            })?;
        Ok(Self {
            directory,
            orders: Some(orders),
            thread: Some(thread),
            newest: found.last().copied(),
            open: RefCell::new(Vec::new()),
        })
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only with this sender.
            let _ = orders.send(order);
        }
    }

    pub fn begin(&self, id: Executed, fetched: bool) {
        self.order(Order::Begin(id, fetched));
    }

    pub fn append(&self, bytes: Bytes) {
        self.order(Order::Append(bytes));
    }

    pub fn finish_file(&self) {
        self.order(Order::Finish);
    }

    pub fn abandon(&self) {
        self.order(Order::Abandon);
    }

    /// A snapshot was saved.
    pub fn saved(&mut self, kept: Kept) {
        if self
            .newest
            .is_none_or(|newest| newest.info.id <= kept.info.id)
        {
            self.newest = Some(kept);
        }
    }

    pub fn newest(&self) -> Option<SnapshotInfo> {
        self.newest.map(|kept| kept.info)
    }

    /// Where the newest one is.
    pub fn newest_path(&self) -> String {
        let Some(kept) = self.newest else {
            return String::new();
        };
        let path = self.directory.join(name(kept.info.id, kept.fetched));
        let absolute = std::path::absolute(&path).unwrap_or(path);
        absolute.display().to_string()
    }

    /// Whether the log before this snapshot can go: another can stand in for it, or the log has
    /// a gap there anyway.
    pub fn replaceable(&self, id: Executed) -> bool {
        (self.newest).is_some_and(|newest| newest.info.id > id || newest.fetched)
    }

    fn file(&self, id: Executed) -> io::Result<File> {
        let open = |fetched| File::open(self.directory.join(name(id, fetched)));
        open(false).or_else(|_| open(true))
    }

    pub fn read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let mut open = self.open.borrow_mut();
        let now = Instant::now();
        open.retain(|it| it.id == id || now - it.read_at < OPEN_FOR);
        let at = match open.iter().position(|it| it.id == id) {
            Some(at) => at,
            None => {
                let file = self.file(id).ok()?;
                if open.len() >= OPEN_MAX {
                    open.remove(0);
                }
                open.push(Open {
                    id,
                    file,
                    read_at: now,
                });
                open.len() - 1
            }
        };
        open[at].read_at = now;
        let file = &open[at].file;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
        bytes.truncate(filled);
        Some(bytes.into())
    }

    /// Waits until the thread has ended; what is unfinished is left for the next start to delete.
    pub fn finish(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct UnderWay {
    id: Executed,
    fetched: bool,
    file: File,
    written: u64,
    flushed: u64,
}

struct Writer {
    directory: PathBuf,
    cluster: ClusterId,
    durability: Durability,
    mailer: Mailer,
    under_way: Option<UnderWay>,
}

impl Writer {
    fn run(&mut self, queue: &Receiver<Order>) {
        while let Ok(order) = queue.recv() {
            if let Err(error) = self.carry_out(order) {
                self.under_way = None;
                // A full disk must have back what the unfinished one took.
                let _ = fs::remove_file(self.directory.join("incoming"));
                self.mailer.send(match error {
                    Failed::Soft(error) => Mail::SnapshotFailed(error.to_string()),
                    Failed::Storage(error) => Mail::StorageFailed(format!(
                        "{}: {error}",
                        self.directory.join("incoming").display()
                    )),
                });
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<(), Failed> {
        match order {
            Order::Begin(id, fetched) => {
                let file = retried(|| File::create(self.directory.join("incoming")))?;
                self.under_way = Some(UnderWay {
                    id,
                    fetched,
                    file,
                    written: 0,
                    flushed: 0,
                });
            }
            Order::Append(bytes) => {
                // After a failure the rest of that snapshot still comes.
                let Some(under_way) = &mut self.under_way else {
                    return Ok(());
                };
                under_way.file.write_all(&bytes)?;
                under_way.written += bytes.len() as u64;
                let due = under_way.written - under_way.flushed >= FLUSH_EVERY;
                if due && self.durability == Durability::Disk {
                    under_way.file.sync_data().map_err(not_synced)?;
                    under_way.flushed = under_way.written;
                }
                self.mailer.send(Mail::SnapshotWritten(under_way.written));
            }
            Order::Finish => {
                let Some(under_way) = self.under_way.take() else {
                    return Ok(());
                };
                self.save(under_way)?;
            }
            Order::Abandon => self.under_way = None,
        }
        Ok(())
    }

    fn save(&self, under_way: UnderWay) -> Result<(), Failed> {
        let UnderWay {
            id,
            fetched,
            file,
            written,
            ..
        } = under_way;
        if self.durability == Durability::Disk {
            file.sync_all().map_err(not_synced)?;
        }
        // Its pages are in memory still; what follows this one is not held up.
        if let Some(flaw) = verify(&self.directory.join("incoming"), id, self.cluster)? {
            let (Flaw::Foreign(reason) | Flaw::Damaged(reason)) = flaw;
            return Err(Failed::Soft(io::Error::other(format!(
                "what was written cannot be read back: {reason}"
            ))));
        }
        fs::rename(
            self.directory.join("incoming"),
            self.directory.join(name(id, fetched)),
        )?;
        if self.durability == Durability::Disk {
            sync_directory(&self.directory).map_err(not_synced)?;
        }
        let length = written;
        let info = SnapshotInfo { id, length };
        self.mailer
            .send(Mail::SnapshotSaved(Kept { info, fetched }));
        let found = list(&self.directory)?;
        for old in &found[..found.len().saturating_sub(KEPT)] {
            fs::remove_file(self.directory.join(name(old.info.id, old.fetched)))?;
        }
        Ok(())
    }
}

/// Why an order could not be carried out.
enum Failed {
    /// There is no snapshot; the next may succeed.
    Soft(io::Error),
    /// The disk is failing.
    Storage(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EIO | libc::EROFS) => Self::Storage(error),
            _ => Self::Soft(error),
        }
    }
}

/// After a failed sync nobody knows what the disk holds; only a lack of room is harmless, because
/// the file is thrown away.
fn not_synced(error: io::Error) -> Failed {
    if is_full(&error) {
        Failed::Soft(error)
    } else {
        Failed::Storage(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{CommandTime, EpochNumber, GroupId, SnapshotHeader, Wire, framed};

    #[test]
    fn names_sort_by_slot_and_read_back() {
        let id = |slot| Executed {
            slot: Slot(slot),
            position: Position(3),
        };
        let name = |slot| super::name(id(slot), false);
        assert!(name(9) < name(10) && name(10) < name(u64::MAX));
        assert_eq!(parse(&name(10)), Some((id(10), false)));
        assert_eq!(parse(&super::name(id(10), true)), Some((id(10), true)));
        assert_eq!(parse("incoming"), None);
    }

    /// Also `snapshot_reaping_order`: 10 is newer than 9, whatever the order of the files is.
    #[test]
    fn the_two_newest_snapshots_are_kept_and_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_path_buf();
        let poll = mio::Poll::new().expect("a poll");
        let (mailbox, mailer) =
            crate::mail::Mailbox::new(poll.registry(), mio::Token(0)).expect("a mailbox");
        let start =
            |durability| Snapshots::start(path.clone(), ClusterId(1), durability, mailer.clone());
        let mut snapshots = start(Durability::Disk).expect("starts");
        for slot in [8, 9, 10] {
            let id = Executed {
                slot: Slot(slot),
                position: Position(slot),
            };
            snapshots.begin(id, false);
            snapshots.append(stream(slot, b"state"));
            snapshots.finish_file();
        }
        let id = Executed {
            slot: Slot(11),
            position: Position(11),
        };
        snapshots.begin(id, false);
        snapshots.append(Bytes::from("unfinished"));
        snapshots.finish();
        let saved = std::iter::from_fn(|| mailbox.take())
            .filter(|mail| matches!(mail, Mail::SnapshotSaved(_)))
            .count();
        assert_eq!(saved, 3);
        assert_eq!(list(&path).expect("lists").len(), 2);
        let snapshots = start(Durability::Disk).expect("starts");
        let newest = snapshots.newest().expect("there is one");
        let whole = stream(10, b"state");
        assert_eq!(newest.id.slot, Slot(10));
        assert_eq!(newest.length, whole.len() as u64);
        let tail = snapshots.read(newest.id, newest.length - 13, 100);
        assert_eq!(tail, Some(whole.slice(whole.len() - 13..)));
        let nothing = snapshots.read(newest.id, newest.length, 100);
        assert_eq!(nothing.as_deref(), Some(&b""[..]));
        drop(snapshots);
        let snapshots = start(Durability::Memory);
        assert_eq!(snapshots.expect("starts").newest(), None);
    }

    /// A whole snapshot with no sessions.
    fn stream(slot: u64, state: &[u8]) -> Bytes {
        let header = SnapshotHeader {
            cluster: ClusterId(1),
            group: GroupId(0),
            epoch: EpochNumber(1),
            executed: Executed {
                slot: Slot(slot),
                position: Position(slot),
            },
            time: CommandTime(5),
            summary: Bytes::new(),
            descriptor: Bytes::new(),
            session_chunks: Some(1),
        };
        let header = header.encode_to_bytes();
        [&header, &[0; 4][..], state, b""]
            .map(framed)
            .concat()
            .into()
    }

    #[test]
    fn snapshots_stay_readable_to_two_fetchers_when_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_path_buf();
        let poll = mio::Poll::new().expect("a poll");
        let (_mailbox, mailer) =
            crate::mail::Mailbox::new(poll.registry(), mio::Token(0)).expect("a mailbox");
        let id = |slot| Executed {
            slot: Slot(slot),
            position: Position(slot),
        };
        for slot in [1, 2] {
            fs::write(path.join(name(id(slot), false)), stream(slot, b"state")).expect("written");
        }
        let snapshots =
            Snapshots::start(path.clone(), ClusterId(1), Durability::Disk, mailer).expect("starts");
        let whole = |slot| snapshots.read(id(slot), 0, 1 << 10);
        let given = [whole(1), whole(2)];
        for slot in [1, 2] {
            fs::remove_file(path.join(name(id(slot), false))).expect("removed");
        }
        assert_eq!(given, [1, 2].map(|slot| Some(stream(slot, b"state"))));
        assert_eq!([whole(1), whole(2)], given);
    }

    #[test]
    fn snapshot_that_cannot_be_read_back_is_not_saved() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_path_buf();
        let poll = mio::Poll::new().expect("a poll");
        let (mailbox, mailer) =
            crate::mail::Mailbox::new(poll.registry(), mio::Token(0)).expect("a mailbox");
        let whole = stream(7, b"state");
        let mut damaged = whole.to_vec();
        let middle = damaged.len() - 10;
        damaged[middle] ^= 1;
        // Sessions that are no sessions, with right checksums; and a chunk longer than any.
        let header = whole.slice(..8 + u32::from_le_bytes([whole[0], 0, 0, 0]) as usize);
        let sessions = [&header[..], &framed(&[9; 4]), &framed(b"")].concat();
        let endless = [&header[..], &framed(&[0; 4]), &[255; 8], b"state"].concat();
        for bytes in [
            damaged,
            whole[..whole.len() - 8].to_vec(),
            sessions,
            endless,
        ] {
            let mut snapshots =
                Snapshots::start(path.clone(), ClusterId(1), Durability::Disk, mailer.clone())
                    .expect("starts");
            let id = Executed {
                slot: Slot(7),
                position: Position(7),
            };
            snapshots.begin(id, false);
            snapshots.append(Bytes::from(bytes));
            snapshots.finish_file();
            snapshots.finish();
            let told: Vec<Mail> = std::iter::from_fn(|| mailbox.take()).collect();
            let saved = |mail: &Mail| matches!(mail, Mail::SnapshotSaved(_));
            assert!(!told.iter().any(saved), "{told:?}");
            let reason = told.iter().find_map(|mail| match mail {
                Mail::SnapshotFailed(reason) => Some(reason.as_str()),
                _ => None,
            });
            let reason = reason.expect("it failed");
            assert!(reason.contains("cannot be read back"), "{reason}");
            assert_eq!(fs::read_dir(&path).expect("lists").count(), 0);
        }
    }
}
