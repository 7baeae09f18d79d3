//! The journal on a thread of its own: whatever has come in goes out in one durable write.
//!
//! ```text
//!   event loop ── Write, Write, Trim ──► queue ──► append … commit ──► Mail::Persisted(last)
//!                                                    │ no room: wait, look again
//!                                                    ├──► Mail::DiskFull, and when there is again
//!                                                    └ failed: Mail::StorageFailed, the end
//! ```

use crate::{
    journal_files::{FileDisk, FileError},
    mail::{Mail, Mailer, PanicAlarm},
};
use quintet_replica::{
    EpochNumber, GroupIndex, PersistId, Slot, Write,
    journal::{Journal, JournalError},
};
use std::{
    collections::VecDeque,
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// One durable write takes no more than about this many bytes.
const GROUP_MAX: usize = 4 << 20;

/// A group that needs this number of bytes of segments, and has written little of them, is relieved
/// of them.
const PINNED_MAX: u64 = 256 << 20;
/// Little is less than such a part of them.
const PINNED_SHARE: u64 = 4;

enum Order {
    Write(GroupIndex, PersistId, Write),
    Trim(GroupIndex, Slot),
    /// A snapshot came from a peer.
    Skip(GroupIndex),
    /// Another epoch begins; whether room is to be reserved for its records.
    Enter(GroupIndex, EpochNumber, bool),
}

/// The event loop's side.
#[derive(Debug)]
pub(crate) struct JournalThread {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    /// Bytes handed over and not yet durable.
    queued: usize,
}

/// How many bytes a write counts for in the queue.
fn weight(write: &Write) -> usize {
    match write {
        Write::Promise(bytes) => bytes.len(),
        Write::Record { record, .. } => record.len() + 64,
    }
}

impl JournalThread {
    /// With `reserve`, room for the next segment is made sure of from the start.
    pub fn start(journal: Journal<FileDisk>, mailer: Mailer, reserve: bool) -> io::Result<Self> {
        let (orders, queue) = channel();
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || run(journal, &queue, &mailer, reserve))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            queued: 0,
        })
    }

    /// `id` is the journal's number, not the group's.
    pub fn write(&mut self, group: GroupIndex, id: PersistId, write: Write) {
        self.queued += weight(&write);
        self.order(Order::Write(group, id, write));
    }

    pub fn trim(&self, group: GroupIndex, below: Slot) {
        self.order(Order::Trim(group, below));
    }

    /// A snapshot came from a peer: what it covers was never written here.
    pub fn skip(&self, group: GroupIndex) {
        self.order(Order::Skip(group));
    }

    /// Another epoch begins, with a state that is durable elsewhere; `reserve` as for the start.
    pub fn enter(&self, group: GroupIndex, epoch: EpochNumber, reserve: bool) {
        self.order(Order::Enter(group, epoch, reserve));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // A thread that has ended has said why by mail.
            let _ = orders.send(order);
        }
    }

    pub const fn queued(&self) -> usize {
        self.queued
    }

    /// This many bytes became durable.
    pub const fn taken(&mut self, bytes: usize) {
        self.queued = self.queued.saturating_sub(bytes);
    }

    /// Waits until everything handed over is durable.
    pub fn finish(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How long the last record may be without a durable mark while nothing happens.
const SETTLE: Duration = Duration::from_secs(1);
/// How often a full disk is looked at again.
const RETRY: Duration = Duration::from_millis(200);

struct Worker<'a> {
    journal: Journal<FileDisk>,
    queue: &'a Receiver<Order>,
    mailer: &'a Mailer,
    /// Taken from the queue and not carried out.
    backlog: VecDeque<Order>,
    /// Nothing more will come.
    closed: bool,
    /// Records will be written, so that room must be reserved for them.
    reserve: bool,
    /// A writer was told that there is no room for the next segment.
    full: bool,
    /// The write in front of the backlog found no room.
    stuck: bool,
    syncs: u64,
}

impl Worker<'_> {
    /// Takes over what is in the queue; waits, not forever if there is something else to do.
    fn take(&mut self) {
        let timeout = match (self.full, self.journal.unsettled()) {
            (true, _) => Some(RETRY),
            (false, true) => Some(SETTLE),
            (false, false) => None,
        };
        // A stuck backlog waits for room, not for orders.
        if self.backlog.is_empty() || self.stuck {
            let first = match timeout {
                _ if self.closed => Err(RecvTimeoutError::Disconnected),
                Some(timeout) => self.queue.recv_timeout(timeout),
                None => self
                    .queue
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match first {
                Ok(order) => self.backlog.push_back(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.closed = true,
            }
        }
        while let Ok(order) = self.queue.try_recv() {
            self.backlog.push_back(order);
        }
    }

    fn run(&mut self) -> Result<(), JournalError<FileError>> {
        let mut retry_at = Instant::now();
        loop {
            self.look_at_room();
            let idle = self.backlog.is_empty();
            self.take();
            if idle && self.backlog.is_empty() {
                self.journal.settle()?;
            }
            // Without room, no thread waits for writes that cannot be done.
            if self.closed && (self.backlog.is_empty() || self.stuck) {
                return self.journal.settle();
            }
            if self.stuck && Instant::now() < retry_at {
                continue;
            }
            retry_at = Instant::now() + RETRY;
            self.write_group()?;
        }
    }

    fn write_group(&mut self) -> Result<(), JournalError<FileError>> {
        let (mut last, mut taken) = (None, 0);
        let mut trims: Vec<(GroupIndex, Slot)> = Vec::new();
        let mut result = Ok(());
        self.stuck = false;
        while let Some(order) = self.backlog.pop_front() {
            match &order {
                Order::Write(group, id, write) => match self.journal.append(*group, write) {
                    Ok(()) => {
                        taken += weight(write);
                        last = Some(*id);
                    }
                    Err(JournalError::Full(error)) => {
                        self.tell_room(Some(&error.to_string()));
                        self.backlog.push_front(order);
                        self.stuck = true;
                        break;
                    }
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                },
                Order::Trim(group, below) => {
                    trims.retain(|(trimmed, _)| trimmed != group);
                    trims.push((*group, *below));
                }
                Order::Skip(group) => result = self.journal.skip(*group),
                Order::Enter(group, epoch, reserve) => {
                    trims.retain(|(trimmed, _)| trimmed != group);
                    self.reserve = *reserve;
                    if !self.reserve {
                        // Nothing waits for room that only records take.
                        self.tell_room(None);
                    }
                    result = self.journal.enter(*group, *epoch);
                }
            }
            if result.is_err() || taken > GROUP_MAX {
                break;
            }
        }
        result.and_then(|()| self.journal.commit())?;
        if let Some(upto) = last {
            self.syncs += 1;
            self.mailer.send(Mail::Persisted {
                upto,
                bytes: self.journal.written(),
                syncs: self.syncs,
                on_disk: self.journal.bytes(),
                taken,
            });
        }
        if trims.is_empty() {
            return Ok(());
        }
        for (group, below) in trims {
            self.journal.trim(group, below)?;
        }
        self.relieve()
    }

    /// A group that hardly writes must not keep the segments in which others have written much: its
    /// few records are written again, or it is to take a snapshot.
    fn relieve(&mut self) -> Result<(), JournalError<FileError>> {
        for group in self.journal.groups() {
            let held = self.journal.held(group);
            if held.bytes > PINNED_MAX
                && held.own < held.bytes / PINNED_SHARE
                && !self.journal.bring_forward(group)?
            {
                self.mailer.send(Mail::CheckpointDue(group));
            }
        }
        Ok(())
    }

    /// Reserves the room of the next segment before it is needed.
    fn look_at_room(&mut self) {
        if !self.reserve {
            return;
        }
        let length = self.journal.segment_length();
        if self.journal.disk().reserve(length) {
            self.tell_room(Some("no room for the next journal segment"));
        } else if self.full {
            self.tell_room(None);
        }
    }

    fn tell_room(&mut self, full: Option<&str>) {
        if self.full == full.is_some() {
            return;
        }
        self.full = full.is_some();
        self.mailer.send(Mail::DiskFull(full.map(str::to_owned)));
    }
}

fn run(journal: Journal<FileDisk>, queue: &Receiver<Order>, mailer: &Mailer, reserve: bool) {
    crate::system::prefer_throughput();
    let mut worker = Worker {
        journal,
        queue,
        mailer,
        backlog: VecDeque::new(),
        closed: false,
        reserve,
        full: false,
        stuck: false,
        syncs: 0,
    };
    let alarm = PanicAlarm::new(mailer, "journal");
    if let Err(error) = worker.run() {
        // Nothing is known of what a failed write has left behind: never tried again.
        mailer.send(Mail::StorageFailed(error.to_string()));
    }
    drop(alarm);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{journal_files::reserve, mail::Mailbox};
    use quintet_replica::{
        ClusterId, GroupId, ReplicaId,
        journal::{BLOCK, GroupEpoch, Identity},
    };

    #[test]
    fn writes_of_several_groups_become_durable_in_one_sync() {
        const GROUPS: u64 = 3;
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("journal")).expect("made");
        reserve(directory.path()).expect("made");
        let identity = Identity {
            cluster: ClusterId(1),
            node: ReplicaId(0),
        };
        let groups: Vec<_> = (0..GROUPS as u32)
            .map(|group| GroupEpoch {
                group: GroupId(group),
                epoch: EpochNumber(1),
            })
            .collect();
        let disk = FileDisk::new(directory.path(), false, directory.path().join("aside"));
        let opened = Journal::open(disk, identity, &groups, 64 << 10);
        let journal = opened
            .map_err(|error| error.to_string())
            .expect("opens")
            .journal;
        let (orders, queue) = channel();
        for id in 1..=GROUPS {
            let (slot, record) = (Slot(1), vec![1; 100].into());
            let write = Write::Record { slot, record };
            let group = GroupIndex::new(id as usize - 1);
            let order = Order::Write(group, PersistId(id), write);
            orders.send(order).expect("there is a queue");
        }
        drop(orders);
        let poll = mio::Poll::new().expect("a poll");
        let (mailbox, mailer) = Mailbox::new(poll.registry(), mio::Token(0)).expect("a mailbox");
        run(journal, &queue, &mailer, false);
        let Some(Mail::Persisted {
            upto, bytes, syncs, ..
        }) = mailbox.take()
        else {
            panic!("nothing became durable");
        };
        // A segment's header, and one block with the records of all.
        assert_eq!(
            (upto, syncs, bytes),
            (PersistId(GROUPS), 1, 2 * BLOCK as u64)
        );
        assert!(mailbox.take().is_none());
    }
}
