//! Snapshot files: written by a thread of their own, read by the event loop.
//!
//! ```text
//!   Begin, Append …, Finish ──► snapshots/incoming ──fsync, rename, fsync──► SLOT-POSITION.snapshot
//! ```

use crate::{
    data::sync_directory,
    mail::{Mail, Mailer},
};
use quintet_replica::{Bytes, Durability, Executed, Position, Slot, SnapshotInfo};
use std::{
    cell::RefCell,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

const KEPT: usize = 2;
/// Dirty bytes are flushed in portions of this size, so that the journal's syncs never wait
/// behind a whole snapshot.
const FLUSH_EVERY: u64 = 8 << 20;

fn name(id: Executed) -> String {
    format!("{:020}-{:020}.snapshot", id.slot.0, id.position.0)
}

fn parse(name: &str) -> Option<Executed> {
    let (slot, position) = name.strip_suffix(".snapshot")?.split_once('-')?;
    Some(Executed {
        slot: Slot(slot.parse().ok()?),
        position: Position(position.parse().ok()?),
    })
}

/// All whole snapshots, oldest first.
fn list(directory: &Path) -> io::Result<Vec<SnapshotInfo>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if let Some(id) = parse(&entry.file_name().to_string_lossy()) {
            found.push(SnapshotInfo {
                id,
                length: entry.metadata()?.len(),
            });
        }
    }
    found.sort_by_key(|info| info.id);
    Ok(found)
}

enum Order {
    Begin(Executed),
    Append(Bytes),
    Finish,
    Abandon,
}

/// The event loop's side: hands snapshots over and reads them back.
#[derive(Debug)]
pub(crate) struct Snapshots {
    directory: PathBuf,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    newest: Option<SnapshotInfo>,
    open: RefCell<Option<(Executed, File)>>,
}

impl Snapshots {
    /// Finds what is in `directory` and starts the writing thread. In memory durability what an
    /// earlier life left is deleted: it was not made to outlive the process.
    pub fn start(directory: PathBuf, durability: Durability, mailer: Mailer) -> io::Result<Self> {
        let _ = fs::remove_file(directory.join("incoming"));
        let mut found = list(&directory)?;
        if durability == Durability::Memory {
            for info in found.drain(..) {
                fs::remove_file(directory.join(name(info.id)))?;
            }
        }
        let (orders, queue) = channel();
        let mut writer = Writer {
            directory: directory.clone(),
            durability,
            mailer,
            under_way: None,
        };
        let thread = std::thread::Builder::new()
            .name("snapshots".to_owned())
            .spawn(move || writer.run(&queue))?;
        Ok(Self {
            directory,
            orders: Some(orders),
            thread: Some(thread),
            newest: found.last().copied(),
            open: RefCell::new(None),
        })
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only with this sender.
            let _ = orders.send(order);
        }
    }

    pub fn begin(&self, id: Executed) {
        self.order(Order::Begin(id));
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
    pub fn saved(&mut self, info: SnapshotInfo) {
        if self.newest.is_none_or(|newest| newest.id <= info.id) {
            self.newest = Some(info);
        }
    }

    pub const fn newest(&self) -> Option<SnapshotInfo> {
        self.newest
    }

    pub fn path(&self, id: Executed) -> PathBuf {
        self.directory.join(name(id))
    }

    pub fn read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let mut open = self.open.borrow_mut();
        if open.as_ref().is_none_or(|(open, _)| *open != id) {
            *open = Some((id, File::open(self.path(id)).ok()?));
        }
        let (_, file) = open.as_ref()?;
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
    file: File,
    written: u64,
    flushed: u64,
}

struct Writer {
    directory: PathBuf,
    durability: Durability,
    mailer: Mailer,
    under_way: Option<UnderWay>,
}

impl Writer {
    fn run(&mut self, queue: &Receiver<Order>) {
        while let Ok(order) = queue.recv() {
            if let Err(error) = self.carry_out(order) {
                self.under_way = None;
                self.mailer.send(Mail::SnapshotFailed(error.to_string()));
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Begin(id) => {
                let file = File::create(self.directory.join("incoming"))?;
                self.under_way = Some(UnderWay {
                    id,
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
                    under_way.file.sync_data()?;
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

    fn save(&self, under_way: UnderWay) -> io::Result<()> {
        let UnderWay {
            id, file, written, ..
        } = under_way;
        if self.durability == Durability::Disk {
            file.sync_all()?;
        }
        fs::rename(
            self.directory.join("incoming"),
            self.directory.join(name(id)),
        )?;
        if self.durability == Durability::Disk {
            sync_directory(&self.directory)?;
        }
        self.mailer.send(Mail::SnapshotSaved(SnapshotInfo {
            id,
            length: written,
        }));
        let found = list(&self.directory)?;
        for old in &found[..found.len().saturating_sub(KEPT)] {
            fs::remove_file(self.directory.join(name(old.id)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_slot_and_read_back() {
        let id = |slot| Executed {
            slot: Slot(slot),
            position: Position(3),
        };
        assert!(name(id(9)) < name(id(10)) && name(id(10)) < name(id(u64::MAX)));
        assert_eq!(parse(&name(id(10))), Some(id(10)));
        assert_eq!(parse("incoming"), None);
    }

    #[test]
    fn the_two_newest_snapshots_are_kept_and_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_path_buf();
        let poll = mio::Poll::new().expect("a poll");
        let (mailbox, mailer) =
            crate::mail::Mailbox::new(poll.registry(), mio::Token(0)).expect("a mailbox");
        let start = || Snapshots::start(path.clone(), Durability::Disk, mailer.clone());
        let mut snapshots = start().expect("starts");
        for slot in [8, 9, 10] {
            snapshots.begin(Executed {
                slot: Slot(slot),
                position: Position(slot),
            });
            snapshots.append(Bytes::from(format!("snapshot {slot}")));
            snapshots.finish_file();
        }
        snapshots.begin(Executed {
            slot: Slot(11),
            position: Position(11),
        });
        snapshots.append(Bytes::from("unfinished"));
        snapshots.finish();
        let saved = std::iter::from_fn(|| mailbox.take())
            .filter(|mail| matches!(mail, Mail::SnapshotSaved(_)))
            .count();
        assert_eq!(saved, 3);
        assert_eq!(list(&path).expect("lists").len(), 2);
        let snapshots = start().expect("starts");
        let newest = snapshots.newest().expect("there is one");
        assert_eq!((newest.id.slot, newest.length), (Slot(10), 11));
        assert_eq!(
            snapshots.read(newest.id, 9, 100).as_deref(),
            Some(&b"10"[..])
        );
        assert_eq!(
            snapshots.read(newest.id, 11, 100).as_deref(),
            Some(&b""[..])
        );
        drop(snapshots);
        let snapshots = Snapshots::start(path.clone(), Durability::Memory, mailer.clone());
        assert_eq!(snapshots.expect("starts").newest(), None);
    }
}
