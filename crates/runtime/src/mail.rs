//! The way from other threads to the event loop: a queue, and a waker that ends its sleep.

use crate::{
    SubmitError,
    kept::Kept,
    server::{ChangeReport, ChangeRequest, SnapshotReport},
};
use quintet_replica::{GroupId, GroupIndex, Level, Payload, PersistId, RequestKind};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

/// Called with a command's reply, on the event loop's thread.
pub(crate) type Done = Box<dyn FnOnce(Result<Vec<u8>, SubmitError>) + Send>;

/// A command from inside the process.
pub(crate) struct Request {
    pub level: Level,
    /// The kind of the request; ticks and reads of the past belong to no session.
    pub kind: RequestKind,
    /// `None`: only ask whether a read could be answered.
    pub payload: Option<Payload>,
    done: Option<Done>,
}

/// A caller that waits for a snapshot.
pub type SnapshotWaiter = mpsc::Sender<Result<SnapshotReport, String>>;

impl Request {
    pub fn new(level: Level, payload: Option<Payload>, done: Done) -> Self {
        Self {
            level,
            kind: RequestKind::Command,
            payload,
            done: Some(done),
        }
    }

    /// The same for a tick, or a read of the past.
    pub const fn of_kind(mut self, kind: RequestKind) -> Self {
        self.kind = kind;
        self
    }

    pub fn finish(mut self, result: Result<Vec<u8>, SubmitError>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // The replica has ended with it in some queue.
        if let Some(done) = self.done.take() {
            done(Err(SubmitError::Stopped));
        }
    }
}

/// The asker for a change of the epoch, who is told how it ended.
pub(crate) enum Waiter {
    Caller(mpsc::Sender<Result<ChangeReport, String>>),
    /// A client of the gateway, by the number that this has given the change.
    Client(u64),
}

/// A message of another thread to the event loop.
pub(crate) enum Mail {
    /// Writes up to this one are durable; all bytes and syncs so far.
    Persisted {
        upto: PersistId,
        bytes: u64,
        syncs: u64,
        on_disk: u64,
        taken: usize,
    },
    /// The log of the group at this place of the journal keeps the segments of others: it is to take a
    /// snapshot.
    CheckpointDue(GroupIndex),
    /// There is no room for the next journal segment (why), or there is again.
    DiskFull(Option<String>),
    /// The storage cannot be written any more.
    StorageFailed(String),
    /// Of the snapshot file with this number, this many bytes have been written.
    SnapshotWritten {
        file: u64,
        bytes: u64,
    },
    SnapshotSaved(Kept),
    /// The snapshot file with this number was not saved, and why.
    SnapshotFailed {
        file: u64,
        reason: String,
    },
    Submit(Request),
    SnapshotNow(String, SnapshotWaiter),
    Change(ChangeRequest, Waiter),
    /// This replica is no member any more, and why that is certain.
    NoMember(String),
    /// A peer's name was looked up.
    Resolved {
        peer: usize,
        address: Result<SocketAddr, String>,
    },
    Stop,
}

/// Ends the event loop's sleep. Ringing it again before it was heard costs nothing.
#[derive(Debug)]
struct Wakeup {
    waker: Arc<mio::Waker>,
    rung: AtomicBool,
}

/// The end that other threads hold.
#[derive(Clone, Debug)]
pub(crate) struct Mailer {
    /// The group that its mail is about.
    group: GroupId,
    sender: mpsc::Sender<(GroupId, Mail)>,
    wakeup: Arc<Wakeup>,
}

impl Mailer {
    /// One for mail about this group.
    pub fn of_group(&self, group: GroupId) -> Self {
        Self {
            group,
            ..self.clone()
        }
    }

    /// Hands it to the event loop; false when the loop has ended.
    pub fn send(&self, mail: Mail) -> bool {
        let sent = self.sender.send((self.group, mail)).is_ok();
        if !self.wakeup.rung.swap(true, Ordering::SeqCst) {
            // The loop looks at the queue before it sleeps; a failed wake-up only delays.
            let _ = self.wakeup.waker.wake();
        }
        sent
    }
}

/// Tells the event loop when the thread that holds it panics: a replica whose writes no thread
/// makes durable would wait without end.
pub(crate) struct PanicAlarm<'a> {
    mailer: &'a Mailer,
    thread: &'static str,
}

impl<'a> PanicAlarm<'a> {
    pub const fn new(mailer: &'a Mailer, thread: &'static str) -> Self {
        Self { mailer, thread }
    }
}

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = format!("the {} thread panicked", self.thread);
            self.mailer.send(Mail::StorageFailed(what));
        }
    }
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mail")
    }
}

/// The event loop's end.
#[derive(Debug)]
pub(crate) struct Mailbox {
    receiver: mpsc::Receiver<(GroupId, Mail)>,
    wakeup: Arc<Wakeup>,
}

impl Mailbox {
    pub fn new(registry: &mio::Registry, token: mio::Token) -> io::Result<(Self, Mailer)> {
        let waker = Arc::new(mio::Waker::new(registry, token)?);
        let wakeup = Arc::new(Wakeup {
            waker,
            rung: AtomicBool::new(false),
        });
        let (sender, receiver) = mpsc::channel();
        Ok((
            Self {
                receiver,
                wakeup: Arc::clone(&wakeup),
            },
            Mailer {
                group: GroupId(0),
                sender,
                wakeup,
            },
        ))
    }

    /// The waker that ends the loop's sleep; a poll has only one.
    pub fn waker(&self) -> Arc<mio::Waker> {
        Arc::clone(&self.wakeup.waker)
    }

    /// Whether something may be in the queue.
    pub fn rung(&self) -> bool {
        self.wakeup.rung.load(Ordering::SeqCst)
    }

    /// Gets ready to take mail: whatever is sent from here on rings again.
    pub fn listen(&self) {
        self.wakeup.rung.store(false, Ordering::SeqCst);
    }

    /// Rings itself: there is more than was taken.
    pub fn ring(&self) {
        self.wakeup.rung.store(true, Ordering::SeqCst);
    }

    /// The next mail, where there is one group.
    pub fn take(&self) -> Option<Mail> {
        self.take_of_group().map(|(_, mail)| mail)
    }

    /// The next mail, and the group that it is about.
    pub fn take_of_group(&self) -> Option<(GroupId, Mail)> {
        self.receiver.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_is_told_when_a_thread_panics() {
        let poll = mio::Poll::new().expect("a poll");
        let (mailbox, mailer) = Mailbox::new(poll.registry(), mio::Token(0)).expect("a waker");
        let quiet = std::thread::spawn({
            let mailer = mailer.clone();
            move || drop(PanicAlarm::new(&mailer, "quiet"))
        });
        quiet.join().expect("it ends well");
        assert!(mailbox.take().is_none());
        let failing = std::thread::spawn(move || {
            let _alarm = PanicAlarm::new(&mailer, "journal");
            panic!("of the test");
        });
        assert!(failing.join().is_err());
        let told = mailbox.take();
        assert!(matches!(told, Some(Mail::StorageFailed(why)) if why.contains("journal thread")));
    }
}
