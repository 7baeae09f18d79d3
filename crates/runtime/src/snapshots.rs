//! Snapshot files: written by a thread of their own, read by the event loop.
//!
//! ```text
//!   Begin, Append …, Finish ──► snapshots/incoming ──fsync, rename, fsync──► SLOT-POSITION.snapshot
//!                               snapshots/arriving                        or SLOT-POSITION.fetched
//!                                                                         or SLOT-POSITION.bridge
//! ```
//!
//! A bridge was begun in the epoch before, is named for where this epoch begins, and leads there. A
//! bridge into an epoch that never began here is deleted.
//!
//! The received part of a peer's snapshot is there for the next process: it is read, and the part
//! with right checksums is used if the state is still wanted then.
//!
//! A snapshot is read back, every checksum and the sessions, before anybody is told that it is saved:
//! the log is trimmed behind it. One that cannot be read is thrown away, and the log stays. So is
//! the state in this replica's own; a peer's is read by the restore that it was fetched for.
//!
//! Two are kept, and the log since the older one. When the newer one is damaged, the older one and
//! the log replace it; unless it came from a peer, because the log has a gap before it then. When
//! the log is damaged and begun again it reaches back to the newest good one only: older ones are
//! set aside with it.

use crate::{
    descriptors::retried,
    directories::sync_directory,
    journal_files::is_full,
    kept::{Kept, Origin},
    mail::{Mail, Mailer, PanicAlarm},
};
use quintet_replica::{
    Bytes, ClusterId, Descriptor, Durability, EpochNumber, Executed, Output, Position,
    SNAPSHOT_OPEN_FOR, SNAPSHOTS_OPEN_MAX, Sessions, Slot, SnapshotChunk, SnapshotHeader,
    SnapshotInfo, SnapshotLeft, SnapshotReader, SnapshotScan, StateCheck, snapshot_header,
};
use std::{
    cell::RefCell,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Another name of the newest snapshot of this replica's own state that was durable, for people:
/// where members have changed to memory and lost it, they begin a new cluster with it. So the first
/// state of an epoch in memory is not saved without it.
const LAST_ON_DISK: &str = "last-on-disk";
const KEPT: usize = 2;
/// Unfinished ones: this replica's own, and one from a peer.
const UNFINISHED: [&str; 2] = ["incoming", "arriving"];

const fn unfinished(fetched: bool) -> &'static str {
    UNFINISHED[fetched as usize]
}

/// Dirty bytes are flushed in portions of this size, so that the journal's syncs never wait
/// behind a whole snapshot.
const FLUSH_EVERY: u64 = 8 << 20;

pub(crate) fn name(id: Executed, origin: Origin) -> String {
    let suffix = origin.suffix();
    format!("{:020}-{:020}.{suffix}", id.slot.0, id.position.0)
}

fn parse(name: &str) -> Option<(Executed, Origin)> {
    let (id, suffix) = name.split_once('.')?;
    let origin = Origin::ALL.into_iter().find(|it| it.suffix() == suffix)?;
    let (slot, position) = id.split_once('-')?;
    let id = Executed {
        slot: Slot(slot.parse().ok()?),
        position: Position(position.parse().ok()?),
    };
    (self::name(id, origin) == name).then_some((id, origin))
}

/// All whole snapshots, oldest first: in the order of their numbers, whatever the files' order is.
pub(crate) fn list(directory: &Path) -> io::Result<Vec<Kept>> {
    let mut found = Vec::new();
    for entry in retried(|| fs::read_dir(directory))? {
        let entry = entry?;
        if let Some((id, origin)) = parse(&entry.file_name().to_string_lossy()) {
            let length = entry.metadata()?.len();
            let info = SnapshotInfo { id, length };
            found.push(Kept { info, origin });
        }
    }
    // The first state of an epoch has the name of the bridge into it, and replaces it.
    found.sort_by_key(|kept| (kept.info.id, kept.origin));
    Ok(found)
}

/// The flaw of a snapshot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It belongs elsewhere.
    Foreign(String),
    /// It cannot be read to its end.
    Damaged(String),
}

/// Reads a snapshot file, from its beginning as far as there is any, and checks every checksum.
struct Check {
    name: String,
    id: Executed,
    /// It is named for where it leads.
    bridges: bool,
    /// Where it leads.
    fed: Option<Executed>,
    /// Its epoch is in memory.
    in_memory: bool,
    cluster: ClusterId,
    reader: SnapshotReader,
    offset: u64,
    piece: Vec<u8>,
    ended: bool,
}

impl Check {
    fn new(name: String, id: Executed, bridges: bool, cluster: ClusterId) -> Self {
        Self {
            name,
            id,
            bridges,
            fed: None,
            in_memory: false,
            cluster,
            reader: SnapshotReader::default(),
            offset: 0,
            piece: vec![0; 256 << 10],
            ended: false,
        }
    }

    fn damaged(&self, what: String) -> io::Result<Option<Flaw>> {
        Ok(Some(Flaw::Damaged(format!(
            "snapshot {} is damaged near offset {}: {what}",
            self.name, self.offset
        ))))
    }

    /// Continues up to the file's present end; `state` reads the state, if it is given.
    fn proceed(
        &mut self,
        file: &File,
        mut state: Option<&mut Box<dyn StateCheck>>,
    ) -> io::Result<Option<Flaw>> {
        loop {
            loop {
                match self.reader.next_chunk() {
                    Ok(Some(SnapshotChunk::Header(header))) => {
                        if header.cluster != self.cluster {
                            return Ok(Some(Flaw::Foreign(format!(
                                "snapshot {:?} belongs to another cluster: ours {}, its {}; it \
                                 was put into the wrong directory",
                                self.id, self.cluster, header.cluster
                            ))));
                        }
                        if header.executed != self.id && !self.bridges {
                            return self.damaged(format!("it covers {:?}", header.executed));
                        }
                        let descriptor = Descriptor::decode(header.descriptor);
                        self.in_memory =
                            descriptor.is_ok_and(|it| it.durability == Durability::Memory);
                    }
                    Ok(Some(SnapshotChunk::Sessions(mut sessions))) => {
                        if let Err(error) = Sessions::new(Duration::ZERO).decode(&mut sessions) {
                            return self.damaged(format!("its sessions: {error}"));
                        }
                    }
                    Ok(Some(SnapshotChunk::State(chunk))) => {
                        let read = state.as_mut().map_or(Ok(()), |it| it.chunk(&chunk));
                        if let Err(error) = read {
                            return self.damaged(format!("its state: {error}"));
                        }
                    }
                    Ok(Some(SnapshotChunk::Feed(feed))) => {
                        self.fed = feed.end.map(|end| end.executed);
                    }
                    Ok(Some(SnapshotChunk::End)) => {
                        self.ended = true;
                        let begins = self.fed.map(|end| Executed {
                            position: end.position.next(),
                            ..end
                        });
                        if self.bridges && begins != Some(self.id) {
                            return self.damaged(format!("it leads to {:?}", self.fed));
                        }
                        let read = state.as_mut().map_or(Ok(()), |it| it.finish());
                        return match read {
                            Ok(()) => Ok(None),
                            Err(error) => self.damaged(format!("its state: {error}")),
                        };
                    }
                    Ok(None) => break,
                    Err(error) => return self.damaged(error.to_string()),
                }
            }
            match file.read_at(&mut self.piece, self.offset) {
                Ok(0) => return Ok(None),
                Ok(more) => {
                    self.reader.feed(&self.piece[..more]);
                    self.offset += more as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The same for a file that is whole.
    fn finish(
        &mut self,
        file: &File,
        state: Option<&mut Box<dyn StateCheck>>,
    ) -> io::Result<Option<Flaw>> {
        match self.proceed(file, state)? {
            None if !self.ended => self.damaged("it ends early".to_owned()),
            flaw => Ok(flaw),
        }
    }
}

/// Reads a snapshot file whole and checks every checksum.
pub(crate) fn verify(
    directory: &Path,
    kept: &Kept,
    cluster: ClusterId,
) -> io::Result<Option<Flaw>> {
    let name = name(kept.info.id, kept.origin);
    let file = retried(|| File::open(directory.join(&name)))?;
    let bridges = kept.origin == Origin::Bridge;
    Check::new(name, kept.info.id, bridges, cluster).finish(&file, None)
}

/// The epoch to which a snapshot belongs; none when its header cannot be read.
pub(crate) fn epoch_of(directory: &Path, kept: &Kept) -> Option<EpochNumber> {
    let header = header_of(&directory.join(name(kept.info.id, kept.origin)))?;
    match kept.origin {
        Origin::Bridge => header.epoch.0.checked_add(1).map(EpochNumber),
        Origin::Own | Origin::Fetched => Some(header.epoch),
    }
}

/// The header of a whole snapshot; none when it cannot be read.
fn header_of(path: &Path) -> Option<SnapshotHeader> {
    let file = retried(|| File::open(path)).ok()?;
    snapshot_header(|offset| {
        let mut piece = vec![0; 256 << 10];
        let read = file.read_at(&mut piece, offset).ok()?;
        piece.truncate(read);
        Some(piece.into())
    })
}

/// The epoch of the newest snapshot in `directory`, and where it began.
pub(crate) fn newest_epoch(directory: &Path) -> Option<(Descriptor, Executed)> {
    let newest = list(directory).ok()?.pop()?;
    let header = header_of(&directory.join(name(newest.info.id, newest.origin)))?;
    let descriptor = Descriptor::decode(header.descriptor).ok()?;
    Some((descriptor, header.base))
}

/// The usable part of a peer's snapshot that an earlier run did not finish.
fn left(path: &Path, cluster: ClusterId) -> Option<SnapshotLeft> {
    let file = retried(|| File::open(path)).ok()?;
    let mut scan = SnapshotScan::default();
    let mut piece = vec![0; 256 << 10];
    let mut offset = 0;
    loop {
        match file.read_at(&mut piece, offset) {
            Ok(0) => break,
            Ok(more) if scan.feed(&piece[..more]) => offset += more as u64,
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let left = scan.left().filter(|left| left.header.cluster == cluster);
    if left.is_none() {
        let _ = fs::remove_file(path);
    }
    left
}

enum Order {
    Check(Box<dyn StateCheck>),
    Begin {
        file: u64,
        id: Executed,
        fetched: bool,
        durable: bool,
        kept: u64,
    },
    Append(Bytes),
    Truncate(u64),
    Bridges(Executed),
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
    /// The number of the file that was begun last; one that was abandoned has none any more.
    begun: u64,
    /// The position that the latest begun one covers, if it comes from a peer and is not saved: it
    /// can be read as far as it has been written.
    incoming: Option<Executed>,
    /// The part that an earlier run left of one.
    left: Option<SnapshotLeft>,
    /// Files that are being read, the one read longest ago first. One that peers fetch is kept open,
    /// and so readable, when newer ones have taken its place.
    open: RefCell<Vec<Open>>,
}

impl Snapshots {
    /// Finds what is in `directory` and starts the writing thread. Unless an earlier run's files
    /// count, they are deleted: they were not made to outlive the process.
    pub fn start(
        directory: PathBuf,
        (cluster, epoch): (ClusterId, EpochNumber),
        counts: bool,
        mailer: Mailer,
    ) -> io::Result<Self> {
        let _ = fs::remove_file(directory.join(unfinished(false)));
        let left = left(&directory.join(unfinished(true)), cluster);
        let mut found = Vec::new();
        for kept in list(&directory)? {
            let leads_away = || {
                let of = epoch_of(&directory, &kept);
                kept.origin == Origin::Bridge && of.is_none_or(|of| of > epoch)
            };
            if !counts || leads_away() {
                fs::remove_file(directory.join(name(kept.info.id, kept.origin)))?;
            } else {
                found.push(kept);
            }
        }
        let (orders, queue) = channel();
        let mut writer = Writer {
            directory: directory.clone(),
            cluster,
            mailer,
            begun: 0,
            in_progress: None,
            state: None,
            link: |file, name| fs::hard_link(file, name),
            warned: false,
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
            begun: 0,
            incoming: None,
            left,
            open: RefCell::new(Vec::new()),
        })
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only with this sender.
            let _ = orders.send(order);
        }
    }

    /// Carries out an output of the node that concerns its snapshots; gives back any other.
    pub fn carry_out(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::SnapshotBegin {
                id,
                fetched,
                kept,
                durable,
            } => self.begin(id, (fetched, durable), kept),
            Output::SnapshotAppend(bytes) => self.append(bytes),
            Output::SnapshotTruncate(length) => self.truncate(length),
            Output::SnapshotBridges { base } => self.bridges(base),
            Output::SnapshotFinish => self.finish_file(),
            Output::SnapshotAbandon => self.abandon(),
            other => return Some(other),
        }
        None
    }

    /// From now on the state in this replica's own snapshots is read back by `check`.
    pub fn check_states(&self, check: Box<dyn StateCheck>) {
        self.order(Order::Check(check));
    }

    /// Begins a file that comes from a peer or not, and is to outlive the process or not; the first
    /// `kept` bytes of what an earlier run left of it stay.
    pub fn begin(&mut self, id: Executed, (fetched, durable): (bool, bool), kept: u64) {
        self.begun += 1;
        self.left = None;
        self.close_incoming();
        self.incoming = fetched.then_some(id);
        if fetched {
            self.open.borrow_mut().retain(|it| it.id != id);
        }
        let file = self.begun;
        self.order(Order::Begin {
            file,
            id,
            fetched,
            durable,
            kept,
        });
    }

    /// The part that an earlier run left of a peer's snapshot, unless one has been begun since.
    pub fn left(&self) -> Option<SnapshotLeft> {
        self.left.clone()
    }

    /// Whether this is the number of the file that was begun last and not abandoned.
    pub const fn is_current(&self, file: u64) -> bool {
        self.begun == file
    }

    /// The file that is being written is a bridge to where an epoch begins.
    pub fn bridges(&self, base: Executed) {
        self.order(Order::Bridges(base));
    }

    pub fn truncate(&self, length: u64) {
        self.order(Order::Truncate(length));
    }

    pub fn append(&self, bytes: Bytes) {
        self.order(Order::Append(bytes));
    }

    pub fn finish_file(&self) {
        self.order(Order::Finish);
    }

    pub fn abandon(&mut self) {
        // Later reports about it are ignored.
        self.begun += 1;
        self.close_incoming();
        self.order(Order::Abandon);
    }

    /// The snapshot in progress could not be saved.
    pub fn failed(&mut self) {
        self.close_incoming();
    }

    /// A deleted file gives its space back when no process has it open any more.
    fn close_incoming(&mut self) {
        if let Some(id) = self.incoming.take() {
            self.open.borrow_mut().retain(|it| it.id != id);
        }
    }

    /// A snapshot was saved.
    pub fn saved(&mut self, kept: Kept) {
        self.incoming.take_if(|id| *id == kept.info.id);
        // Of the same name there may have been another file.
        self.open.borrow_mut().retain(|it| it.id != kept.info.id);
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

    pub const fn newest_kept(&self) -> Option<Kept> {
        self.newest
    }

    /// Where the newest one is.
    pub fn newest_path(&self) -> String {
        let Some(kept) = self.newest else {
            return String::new();
        };
        let path = self.directory.join(name(kept.info.id, kept.origin));
        let absolute = std::path::absolute(&path).unwrap_or(path);
        absolute.display().to_string()
    }

    /// Whether the log before this snapshot can go: another can stand in for it, or the log has
    /// a gap there anyway.
    pub fn replaceable(&self, id: Executed) -> bool {
        // Until its epoch has begun, a bridge stands in for nothing.
        let newest = self.newest.filter(|it| it.origin != Origin::Bridge);
        newest.is_some_and(|newest| newest.info.id > id || newest.is_fetched())
    }

    fn file(&self, id: Executed) -> io::Result<File> {
        if self.incoming == Some(id)
            && let Ok(file) = File::open(self.directory.join(unfinished(true)))
        {
            return Ok(file);
        }
        let open = |origin| File::open(self.directory.join(name(id, origin)));
        open(Origin::Own)
            .or_else(|_| open(Origin::Fetched))
            .or_else(|_| open(Origin::Bridge))
    }

    /// Closes the files that no reader uses any more: the disk gets the space of replaced ones back
    /// then.
    pub fn close_unused(&self, now: Instant) {
        let used = |it: &Open| now.saturating_duration_since(it.read_at) < SNAPSHOT_OPEN_FOR;
        self.open.borrow_mut().retain(used);
    }

    pub fn read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let mut open = self.open.borrow_mut();
        let file = match open.iter().position(|it| it.id == id) {
            Some(at) => open.remove(at).file,
            None => self.file(id).ok()?,
        };
        if open.len() >= SNAPSHOTS_OPEN_MAX {
            open.remove(0);
        }
        open.push(Open {
            id,
            file,
            read_at: Instant::now(),
        });
        let file = &open.last()?.file;
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

    /// Waits until the thread has ended; what is unfinished is left for the next start.
    pub fn finish(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct InProgress {
    number: u64,
    id: Executed,
    origin: Origin,
    file: File,
    /// It must outlive the process.
    durable: bool,
    written: u64,
    flushed: u64,
    check: Check,
}

struct Writer {
    directory: PathBuf,
    cluster: ClusterId,
    mailer: Mailer,
    /// The number of the file that was begun last.
    begun: u64,
    in_progress: Option<InProgress>,
    state: Option<Box<dyn StateCheck>>,
    /// Gives a file another name.
    link: fn(&Path, &Path) -> io::Result<()>,
    /// It was said that this is not possible.
    warned: bool,
}

impl Writer {
    fn run(&mut self, queue: &Receiver<Order>) {
        while let Ok(order) = queue.recv() {
            if let Err(error) = self.carry_out(order) {
                self.in_progress = None;
                // A full disk must have back what the unfinished one took.
                self.remove_unfinished();
                self.mailer.send(match error {
                    Failed::Soft(error) => Mail::SnapshotFailed {
                        file: self.begun,
                        reason: error.to_string(),
                    },
                    Failed::Storage(error) => {
                        Mail::StorageFailed(format!("{}: {error}", self.directory.display()))
                    }
                });
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<(), Failed> {
        match order {
            Order::Check(state) => self.state = Some(state),
            Order::Begin {
                file: number,
                id,
                fetched,
                durable,
                kept,
            } => {
                self.begun = number;
                self.in_progress = None;
                if kept == 0 {
                    self.remove_unfinished();
                }
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(kept == 0);
                let name = unfinished(fetched);
                let mut file = retried(|| options.open(self.directory.join(name)))?;
                file.set_len(kept)?;
                file.seek(SeekFrom::Start(kept))?;
                if let Some(state) = &mut self.state {
                    state.begin();
                }
                self.in_progress = Some(InProgress {
                    number,
                    id,
                    origin: match fetched {
                        true => Origin::Fetched,
                        false => Origin::Own,
                    },
                    file,
                    durable,
                    written: kept,
                    flushed: kept,
                    check: Check::new(name.to_owned(), id, false, self.cluster),
                });
            }
            Order::Append(bytes) => {
                // After a failure the rest of that snapshot still comes.
                let Some(begun) = &mut self.in_progress else {
                    return Ok(());
                };
                begun.file.write_all(&bytes)?;
                begun.written += bytes.len() as u64;
                if begun.written - begun.flushed >= FLUSH_EVERY {
                    if begun.durable {
                        begun.file.sync_data().map_err(not_synced)?;
                    }
                    begun.flushed = begun.written;
                }
                if begun.origin == Origin::Own {
                    // Its pages are in memory still; and at the end there is little left to read,
                    // so that an epoch's first state is saved as soon as it is written.
                    let flaw = (begun.check).proceed(&begun.file, self.state.as_mut())?;
                    unreadable(flaw)?;
                }
                let (file, bytes) = (begun.number, begun.written);
                self.mailer.send(Mail::SnapshotWritten { file, bytes });
            }
            Order::Truncate(length) => {
                let Some(in_progress) = &mut self.in_progress else {
                    return Ok(());
                };
                in_progress.file.set_len(length)?;
                in_progress.file.seek(SeekFrom::Start(length))?;
                in_progress.written = length;
                in_progress.flushed = in_progress.flushed.min(length);
                let name = unfinished(in_progress.origin == Origin::Fetched).to_owned();
                in_progress.check = Check::new(name, in_progress.id, false, self.cluster);
            }
            Order::Bridges(base) => {
                if let Some(in_progress) = &mut self.in_progress {
                    (in_progress.id, in_progress.origin) = (base, Origin::Bridge);
                    (in_progress.check.id, in_progress.check.bridges) = (base, true);
                }
            }
            Order::Finish => {
                let Some(in_progress) = self.in_progress.take() else {
                    return Ok(());
                };
                self.save(in_progress)?;
            }
            Order::Abandon => {
                if self.in_progress.take().is_some() {
                    self.remove_unfinished();
                }
            }
        }
        Ok(())
    }

    fn remove_unfinished(&self) {
        for name in UNFINISHED {
            // There is one at most; what cannot be deleted is written over.
            let _ = fs::remove_file(self.directory.join(name));
        }
    }

    /// Gives the file a second name, of which replicas know nothing. When that is not possible, a
    /// file that is `needed` is copied, and any other has no second name.
    fn keep_for_people(&mut self, path: &Path, needed: bool) -> io::Result<()> {
        let new = self.directory.join(format!("{LAST_ON_DISK}.new"));
        // It may be another name of a snapshot: no copy is written into it.
        let gone = match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let copy = || {
            fs::copy(path, &new)?;
            File::open(&new)?.sync_all()
        };
        let link = || match (self.link)(path, &new) {
            Err(_) if needed => copy(),
            linked => linked,
        };
        let kept = gone
            .and_then(|()| link())
            .and_then(|()| fs::rename(&new, self.directory.join(LAST_ON_DISK)));
        if let Err(error) = &kept
            && !needed
        {
            if !self.warned {
                let directory = self.directory.display();
                tracing::warn!(%error, %directory, "no snapshot is kept as {LAST_ON_DISK}");
            }
            self.warned = true;
            return Ok(());
        }
        kept
    }

    fn save(&mut self, in_progress: InProgress) -> Result<(), Failed> {
        let InProgress {
            id,
            origin,
            file,
            durable,
            written,
            mut check,
            ..
        } = in_progress;
        if durable {
            file.sync_all().map_err(not_synced)?;
        }
        let fetched = origin == Origin::Fetched;
        let state = self.state.as_mut().filter(|_| !fetched);
        unreadable(check.finish(&file, state)?)?;
        let path = self.directory.join(unfinished(fetched));
        if durable && origin == Origin::Own {
            self.keep_for_people(&path, check.in_memory)?;
        }
        fs::rename(path, self.directory.join(name(id, origin)))?;
        if durable {
            sync_directory(&self.directory).map_err(not_synced)?;
        }
        let length = written;
        let info = SnapshotInfo { id, length };
        self.mailer.send(Mail::SnapshotSaved(Kept { info, origin }));
        if origin == Origin::Bridge {
            // Should the process die before its epoch has begun, it counts for nothing.
            return Ok(());
        }
        let found = list(&self.directory)?;
        for old in &found[..found.len().saturating_sub(KEPT)] {
            fs::remove_file(self.directory.join(name(old.info.id, old.origin)))?;
        }
        Ok(())
    }
}

/// A file with a flaw cannot be read back.
fn unreadable(flaw: Option<Flaw>) -> Result<(), Failed> {
    let Some(Flaw::Foreign(reason) | Flaw::Damaged(reason)) = flaw else {
        return Ok(());
    };
    Err(Failed::Soft(io::Error::other(format!(
        "what was written cannot be read back: {reason}"
    ))))
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

/// After a failed sync the contents of the disk are unknown; only a lack of room is harmless,
/// because the file is thrown away.
fn not_synced(error: io::Error) -> Failed {
    if is_full(&error) {
        Failed::Soft(error)
    } else {
        Failed::Storage(error)
    }
}

#[cfg(test)]
mod tests;
