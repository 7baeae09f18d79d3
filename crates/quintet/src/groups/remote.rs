//! A connection to a server of calls.
//!
//! ```text
//!   send ──► queue ──► writer thread ──► QUINTET.RAW group wanted call ──► socket
//!                                  └──► waiting: one per call, in order
//!   reader thread ◄── answer or failure ◄── socket ──► the first that waits
//!   it breaks ──► those that wait: uncertain if ordered, else asked elsewhere
//! ```
//!
//! It breaks, too, when its first call has waited for longer than a server may take, and not a byte has come
//! meanwhile: answers come in order, so those behind it would wait for as long.
//!
//! One that breaks with calls, or cannot be opened, rests: others are asked before it until it has answered
//! a probe, which is sent after a pause, each twice as long as the one before.
//!
//! A sender never waits: it may be the event loop of a replica, or the reader of this connection, which
//! has to read on while the server does not.

use super::{CallError, call};
pub(super) use quintet_groups::at_members::Wanted;
use quintet_replica::{CommandTime, GroupId, Level, past::Asking};
use quintet_runtime::{
    SubmitError,
    alarms::alarms,
    pauses::Health,
    resp_client::{Reply, command, read},
};
use std::{
    collections::VecDeque,
    io::{self, BufReader, Read, Write},
    net::{Shutdown, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// The list of shards is no longer, nor has it more elements.
const SHARDS_BYTES_MAX: usize = 1 << 16;
/// More calls do not wait for one server.
const WAITING_MAX: usize = 1 << 16;
/// Nor more bytes of calls for its connection.
const QUEUED_BYTES_MAX: usize = 256 << 20;
/// Calls are written together up to this many bytes.
const WRITTEN_AT_ONCE: usize = 64 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A connection is looked at so often at least, whether its first call has waited for too long.
const LOOKS_EVERY_MAX: Duration = Duration::from_secs(1);
/// A server that does not read for this long has failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

type Answer = Result<Vec<u8>, SubmitError>;
type OnAnswer = Box<dyn FnOnce(Answer) + Send>;

/// It as a word, and the member that is to answer.
fn word_of((wanted, member): (Wanted, Option<usize>)) -> String {
    let word = match wanted {
        Wanted::Level(Level::Ordered) => "ordered".to_owned(),
        Wanted::Level(Level::Linearizable) => "linearizable".to_owned(),
        Wanted::Level(Level::Stale) => "stale".to_owned(),
        Wanted::Past(asking) if asking == Asking::known() => "known".to_owned(),
        Wanted::Past(asking) if asking == Asking::here() => "here".to_owned(),
        Wanted::Past(asking) => asking.time().0.to_string(),
        Wanted::Members => "members".to_owned(),
    };
    member.map_or(word.clone(), |member| format!("{word}@{member}"))
}

/// The meaning of such a word.
pub(super) fn read_wanted(word: &[u8]) -> Option<(Wanted, Option<usize>)> {
    let (word, member) = match word.iter().position(|byte| *byte == b'@') {
        Some(at) => {
            let digits = std::str::from_utf8(&word[at + 1..]).ok()?;
            (&word[..at], Some(digits.parse().ok()?))
        }
        None => (word, None),
    };
    let wanted = match word {
        b"ordered" => Wanted::Level(Level::Ordered),
        b"linearizable" => Wanted::Level(Level::Linearizable),
        b"stale" => Wanted::Level(Level::Stale),
        b"known" => Wanted::Past(Asking::known()),
        b"here" => Wanted::Past(Asking::here()),
        b"members" => Wanted::Members,
        digits => {
            let time = std::str::from_utf8(digits).ok()?.parse().ok()?;
            Wanted::Past(Asking::new(CommandTime(time)))
        }
    };
    Some((wanted, member))
}

/// Why there is no answer, as a word between server and client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure(SubmitError);

const FAILURES: [(SubmitError, &str); 7] = [
    (SubmitError::NoQuorum, "NOQUORUM"),
    (SubmitError::Uncertain, "UNCERTAIN"),
    (SubmitError::Busy, "BUSY"),
    (SubmitError::DiskFull, "DISKFULL"),
    (SubmitError::Stopped, "STOPPED"),
    (SubmitError::NotYet, "NOTYET"),
    (SubmitError::NotKept, "NOTKEPT"),
];

impl Failure {
    pub const fn of(error: &CallError) -> Self {
        Self(match error {
            CallError::NoQuorum { .. } => SubmitError::NoQuorum,
            CallError::Busy | CallError::TooLarge { .. } => SubmitError::Busy,
            CallError::DiskFull => SubmitError::DiskFull,
            // Another server may have a way.
            CallError::Stopped | CallError::NoWay { .. } | CallError::NoSuchMember { .. } => {
                SubmitError::Stopped
            }
            CallError::NotYet => SubmitError::NotYet,
            CallError::NotKept => SubmitError::NotKept,
            _ => SubmitError::Uncertain,
        })
    }

    pub fn code(self) -> &'static str {
        let found = FAILURES.iter().find(|(error, _)| *error == self.0);
        found.map_or("UNCERTAIN", |(_, code)| code)
    }

    fn read(code: &str) -> Option<SubmitError> {
        let found = FAILURES.iter().find(|(_, it)| *it == code);
        found.map(|(error, _)| *error)
    }
}

/// A call that was sent.
struct Waiting {
    is_ordered: bool,
    is_probe: bool,
    since: Instant,
    on_answer: OnAnswer,
}

/// The calls of one connection that wait for answers; `None` once it has ended.
type Queue = Mutex<Option<VecDeque<Waiting>>>;

/// A call for the writer.
struct Outgoing {
    bytes: Vec<u8>,
    waiting: Waiting,
}

/// The part of a connection that its threads share.
struct Shared {
    health: Health,
    /// An alarm will send a probe.
    is_watched: AtomicBool,
    remote: Weak<Remote>,
    /// Calls for the writer, and their bytes.
    queued: AtomicUsize,
    queued_bytes: AtomicUsize,
    /// To end it from elsewhere.
    stream: Mutex<Option<TcpStream>>,
}

/// See the module.
pub(super) struct Remote {
    address: String,
    /// A server answers each call within this.
    answers_within: Duration,
    shared: Arc<Shared>,
    /// The way to the writer, once there is one.
    writer: Mutex<Option<Sender<Outgoing>>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Remote({})", self.address)
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Remote {
    pub fn new(address: &str, answers_within: Duration) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            address: address.to_owned(),
            answers_within,
            shared: Arc::new(Shared {
                health: Health::new(),
                is_watched: AtomicBool::new(false),
                remote: this.clone(),
                queued: AtomicUsize::new(0),
                queued_bytes: AtomicUsize::new(0),
                stream: Mutex::default(),
            }),
            writer: Mutex::default(),
        })
    }

    /// Whether others are to be asked before it: it has failed, and has not answered since.
    pub fn rests(&self) -> bool {
        self.shared.health.has_failed()
    }

    /// Asks whether it answers again.
    fn probe(&self) {
        let shared = self.shared.clone();
        shared.is_watched.store(false, Ordering::Relaxed);
        if !shared.health.has_failed() {
            // It has answered a call meanwhile.
            return;
        }
        let on_answer = move |answer: Answer| match answer {
            Ok(_) => shared.health.can_be_asked(),
            Err(_) => shared.try_after(shared.health.fails()),
        };
        let waiting = Waiting {
            is_ordered: false,
            is_probe: true,
            since: Instant::now(),
            on_answer: Box::new(on_answer),
        };
        let bytes = command(&[b"ECHO", b""]);
        if let Err((waiting, error)) = self.queue(Outgoing { bytes, waiting }) {
            (waiting.on_answer)(Err(error));
        }
    }

    /// Asks for the shards, on a connection of its own.
    pub fn shards(&self) -> io::Result<Vec<String>> {
        let mut stream = connect(&self.address)?;
        stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        stream.write_all(&command(&[b"QUINTET.SHARDS"]))?;
        let broken = || io::Error::other("it is no server of calls");
        let Reply::List(texts) = read(&mut BufReader::new(stream), SHARDS_BYTES_MAX)? else {
            return Err(broken());
        };
        let text = |text| match text {
            Reply::Text(bytes) => String::from_utf8(bytes).map_err(|_| broken()),
            _ => Err(broken()),
        };
        texts.into_iter().map(text).collect()
    }

    /// Sends a call, without waiting; `on_answer` is called on a thread of the connection, or here.
    pub fn send(
        &self,
        group: GroupId,
        wanted: (Wanted, Option<usize>),
        call: &[u8],
        on_answer: OnAnswer,
    ) {
        let group = group.0.to_string();
        let wanted_word = word_of(wanted);
        let bytes = command(&[
            b"QUINTET.RAW",
            group.as_bytes(),
            wanted_word.as_bytes(),
            call,
        ]);
        let waiting = Waiting {
            is_ordered: wanted.0 == Wanted::Level(Level::Ordered),
            is_probe: false,
            since: Instant::now(),
            on_answer,
        };
        if let Err((waiting, error)) = self.queue(Outgoing { bytes, waiting }) {
            (waiting.on_answer)(Err(error));
        }
    }

    fn queue(&self, call: Outgoing) -> Result<(), (Waiting, SubmitError)> {
        let length = call.bytes.len();
        let shared = &self.shared;
        let queued = shared.queued.fetch_add(1, Ordering::Relaxed);
        let bytes = shared.queued_bytes.fetch_add(length, Ordering::Relaxed);
        // One call goes whatever its length.
        let is_full = queued >= WAITING_MAX || bytes > 0 && bytes + length > QUEUED_BYTES_MAX;
        let refused = match self.writer() {
            _ if is_full => (call.waiting, SubmitError::Busy),
            Err(_) => (call.waiting, SubmitError::Stopped),
            Ok(writer) => match writer.send(call) {
                Ok(()) => return Ok(()),
                Err(mpsc::SendError(call)) => (call.waiting, SubmitError::Stopped),
            },
        };
        shared.leave(length);
        Err(refused)
    }

    fn writer(&self) -> io::Result<Sender<Outgoing>> {
        let mut writer = lock(&self.writer);
        if let Some(writer) = &*writer {
            return Ok(writer.clone());
        }
        let (sender, calls) = mpsc::channel();
        let (address, shared) = (self.address.clone(), self.shared.clone());
        let answers_within = self.answers_within;
        thread::Builder::new()
            .name("calls".to_owned())
            .spawn(move || write_calls(&address, answers_within, &shared, &calls))?;
        *writer = Some(sender.clone());
        Ok(sender)
    }
}

impl Shared {
    /// It does not answer.
    fn fail(&self) {
        if !self.health.has_failed() {
            self.try_after(self.health.fails());
        }
    }

    fn try_after(&self, pause: Duration) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let remote = self.remote.clone();
        let probe = move || {
            if let Some(remote) = remote.upgrade() {
                remote.probe();
            }
        };
        if let Some(alarms) = alarms() {
            alarms.set(Instant::now() + pause, probe).keep();
        }
    }

    /// A call of this length is not queued any more.
    fn leave(&self, length: usize) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.queued_bytes.fetch_sub(length, Ordering::Relaxed);
    }

    /// Opens a connection and starts its reader.
    fn begin(
        self: &Arc<Self>,
        address: &str,
        answers_within: Duration,
    ) -> io::Result<(TcpStream, Arc<Queue>)> {
        let stream = connect(address)?;
        let looks_every = (answers_within / 8).clamp(Duration::from_millis(1), LOOKS_EVERY_MAX);
        stream.set_read_timeout(Some(looks_every))?;
        let reader = stream.try_clone()?;
        *lock(&self.stream) = Some(stream.try_clone()?);
        let queue = Arc::new(Mutex::new(Some(VecDeque::new())));
        let shared = self.clone();
        let answers = Answers {
            stream: reader,
            queue: queue.clone(),
            answers_within,
            read_last: Instant::now(),
        };
        thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || read_answers(answers, &shared))?;
        Ok((stream, queue))
    }
}

/// Writes calls until the last sender has gone.
fn write_calls(
    address: &str,
    answers_within: Duration,
    shared: &Arc<Shared>,
    calls: &Receiver<Outgoing>,
) {
    let mut connection = None;
    while let Ok(first) = calls.recv() {
        let mut batch = Vec::new();
        let mut length = 0;
        let mut next = Some(first);
        while let Some(call) = next {
            shared.leave(call.bytes.len());
            length += call.bytes.len();
            batch.push(call);
            let more = length < WRITTEN_AT_ONCE;
            next = more.then(|| calls.try_recv().ok()).flatten();
        }
        let mut is_unreachable = false;
        // A connection that has ended since is opened again.
        for _ in 0..2 {
            if connection.is_none() {
                connection = shared.begin(address, answers_within).ok();
            }
            let Some((stream, queue)) = &mut connection else {
                is_unreachable = true;
                shared.fail();
                break;
            };
            let Some(bytes) = push(queue, &mut batch) else {
                connection = None;
                continue;
            };
            if stream.write_all(&bytes).is_err() {
                // Its reader answers those that wait.
                shared.fail();
                let _ = stream.shutdown(Shutdown::Both);
                connection = None;
            }
            break;
        }
        let error = match connection {
            Some(_) => SubmitError::Busy,
            None => SubmitError::Stopped,
        };
        for call in batch {
            (call.waiting.on_answer)(Err(error));
        }
        if is_unreachable {
            // Others do not wait for another attempt each.
            while let Ok(call) = calls.try_recv() {
                shared.leave(call.bytes.len());
                (call.waiting.on_answer)(Err(SubmitError::Stopped));
            }
        }
    }
    if let Some((stream, _)) = connection {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Lets calls wait for their answers, as many as may, and takes them out of `batch`; gives their
/// bytes, or `None` if the connection has ended.
fn push(queue: &Queue, batch: &mut Vec<Outgoing>) -> Option<Vec<u8>> {
    let mut queue = lock(queue);
    let queue = queue.as_mut()?;
    let room = WAITING_MAX.saturating_sub(queue.len()).min(batch.len());
    let mut bytes = Vec::new();
    for mut call in batch.drain(..room) {
        call.waiting.since = Instant::now();
        match bytes.is_empty() {
            true => bytes = call.bytes,
            false => bytes.extend_from_slice(&call.bytes),
        }
        queue.push_back(call.waiting);
    }
    Some(bytes)
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The writer ends without a sender, and the reader with the stream.
        *lock(&self.writer) = None;
        if let Some(stream) = lock(&self.shared.stream).take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The answers of a connection, as long as they come.
struct Answers {
    stream: TcpStream,
    queue: Arc<Queue>,
    answers_within: Duration,
    /// When something came last.
    read_last: Instant,
}

impl Answers {
    /// The first call has waited for too long.
    fn are_late(&self) -> bool {
        let queue = lock(&self.queue);
        let first = queue.as_ref().and_then(|queue| queue.front());
        first.is_some_and(|it| it.since.max(self.read_last).elapsed() > self.answers_within)
    }
}

impl Read for Answers {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                // The time to look again.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.are_late() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                read => {
                    self.read_last = Instant::now();
                    return read;
                }
            }
        }
    }
}

fn read_answers(answers: Answers, shared: &Shared) {
    let queue = answers.queue.clone();
    let mut reader = BufReader::new(answers);
    while let Ok(reply) = read(&mut reader, call::ANSWER_BYTES_MAX) {
        let answer = match reply {
            Reply::Text(bytes) => Ok(bytes),
            Reply::Error(code) => match Failure::read(&code) {
                Some(error) => Err(error),
                None => break,
            },
            _ => break,
        };
        let first = lock(&queue).as_mut().and_then(VecDeque::pop_front);
        match first {
            Some(waiting) => {
                // A probe reaches no member.
                match answer {
                    _ if waiting.is_probe => {}
                    Err(SubmitError::NoQuorum) => shared.fail(),
                    _ => shared.health.answers(),
                }
                (waiting.on_answer)(answer);
            }
            None => break,
        }
    }
    let _ = reader.get_ref().stream.shutdown(Shutdown::Both);
    let waiting = lock(&queue).take();
    if waiting.as_ref().is_some_and(|it| !it.is_empty()) {
        // Before those are asked elsewhere.
        shared.fail();
    }
    for one in waiting.into_iter().flatten() {
        (one.on_answer)(Err(match one.is_ordered {
            true => SubmitError::Uncertain,
            false => SubmitError::Stopped,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const LONG: Duration = Duration::from_secs(30);

    fn send(remote: &Remote, level: Level, call: &[u8], answers: &Sender<Answer>) {
        let answers = answers.clone();
        let on_answer = move |answer| drop(answers.send(answer));
        let wanted = (Wanted::Level(level), None);
        remote.send(GroupId(1), wanted, call, Box::new(on_answer));
    }

    /// A server that answers nothing, and a connection to it.
    fn server() -> (TcpListener, Arc<Remote>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        (listener, Remote::new(&address, LONG))
    }

    #[test]
    fn calls_behind_a_late_one_do_not_wait_for_it() {
        let (listener, _) = server();
        let address = listener.local_addr().expect("bound").to_string();
        let remote = Remote::new(&address, Duration::from_millis(50));
        let (answers, told) = mpsc::channel();
        for level in [Level::Ordered, Level::Linearizable, Level::Stale] {
            send(&remote, level, b"call", &answers);
        }
        for error in [
            SubmitError::Uncertain,
            SubmitError::Stopped,
            SubmitError::Stopped,
        ] {
            assert_eq!(told.recv_timeout(LONG), Ok(Err(error)));
        }
        let first = listener.accept().expect("the writer connects");
        // The next call has a new connection.
        send(&remote, Level::Stale, b"call", &answers);
        let next = listener.accept().expect("the writer connects");
        assert_ne!(first.1, next.1);
        assert_eq!(told.recv_timeout(LONG), Ok(Err(SubmitError::Stopped)));
    }

    #[test]
    fn sender_never_waits_for_a_server_that_does_not_read() {
        let (listener, remote) = server();
        let (answers, told) = mpsc::channel();
        let call = vec![7; 1 << 20];
        // Far more than the kernel takes.
        for _ in 0..100 {
            send(&remote, Level::Linearizable, &call, &answers);
        }
        let (server, _) = listener.accept().expect("the writer connects");
        drop((server, listener));
        drop(remote);
        for _ in 0..100 {
            assert_eq!(told.recv(), Ok(Err(SubmitError::Stopped)));
        }
    }

    #[test]
    fn more_bytes_than_may_wait_are_refused_at_once() {
        let (listener, remote) = server();
        let (answers, told) = mpsc::channel();
        let call = vec![7; 64 << 20];
        for _ in 0..8 {
            send(&remote, Level::Ordered, &call, &answers);
        }
        // Of those that are not refused, one may be with the writer already.
        for _ in 0..3 {
            assert_eq!(told.recv(), Ok(Err(SubmitError::Busy)));
        }
        drop((listener, remote));
        for _ in 3..8 {
            assert!(told.recv().expect("an answer").is_err());
        }
    }

    #[test]
    fn server_that_is_not_there_has_executed_nothing() {
        let (listener, remote) = server();
        drop(listener);
        let (answers, told) = mpsc::channel();
        for _ in 0..5 {
            send(&remote, Level::Ordered, b"call", &answers);
        }
        for _ in 0..5 {
            assert_eq!(told.recv(), Ok(Err(SubmitError::Stopped)));
        }
    }

    /// Answers each command with the same text, once it may.
    fn serve(listener: &TcpListener, answers: &Receiver<&'static [u8]>) {
        let (mut stream, _) = listener.accept().expect("the writer connects");
        let mut commands = BufReader::new(stream.try_clone().expect("a copy"));
        while let Ok(answer) = answers.recv() {
            if read(&mut commands, 1 << 10).is_err() {
                return;
            }
            // A client may have gone.
            let _ = stream.write_all(answer);
        }
    }

    #[test]
    fn server_that_is_silent_rests_until_it_answers_again() {
        let (listener, _) = server();
        let address = listener.local_addr().expect("bound").to_string();
        let remote = Remote::new(&address, Duration::from_millis(50));
        let (answers, told) = mpsc::channel();
        assert!(!remote.rests());
        send(&remote, Level::Stale, b"call", &answers);
        assert_eq!(told.recv_timeout(LONG), Ok(Err(SubmitError::Stopped)));
        assert!(remote.rests(), "told before others are asked");
        // The connection that was late.
        drop(listener.accept().expect("the writer connects"));
        // That of the first probe, which is not answered either.
        drop(listener.accept().expect("the writer connects"));
        assert!(remote.rests());
        let (give, given) = mpsc::channel();
        let server = thread::spawn(move || serve(&listener, &given));
        // To the next probe, and to a call.
        give.send(b"$0\r\n\r\n").expect("it serves");
        while remote.rests() {
            thread::yield_now();
        }
        give.send(b"-NOTYET\r\n").expect("it serves");
        send(&remote, Level::Stale, b"call", &answers);
        assert_eq!(told.recv_timeout(LONG), Ok(Err(SubmitError::NotYet)));
        assert!(!remote.rests());
        drop((give, remote));
        server.join().expect("it has served");
    }
}
