//! A connection to a server of calls.
//!
//! ```text
//!   send ──► QUINTET.RAW group wanted call ──► socket        waiting: one per call, in order
//!   reader thread ◄── answer or failure ◄──── socket ──► the first that waits
//!   it breaks ──► those that wait: uncertain if ordered, else asked elsewhere
//! ```

use super::CallError;
use quintet_replica::{CommandTime, GroupId, Level, past::Asking};
use quintet_runtime::{
    SubmitError,
    resp_client::{Reply, command, read},
};
use std::{
    collections::VecDeque,
    io::{self, BufReader, Write},
    net::{Shutdown, TcpStream, ToSocketAddrs},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// An answer is no longer.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// Neither is the list of shards, nor has it more elements.
const SHARDS_BYTES_MAX: usize = 1 << 16;
/// More calls do not wait for one server.
const WAITING_MAX: usize = 1 << 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

type Answer = Result<Vec<u8>, SubmitError>;
type OnAnswer = Box<dyn FnOnce(Answer) + Send>;

/// Which state a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Level(Level),
    Past(Asking),
    /// None of it: its members.
    Members,
}

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
    on_answer: OnAnswer,
}

/// The calls of one connection that wait for answers; `None` once it has ended.
type Queue = Mutex<Option<VecDeque<Waiting>>>;

/// See the module. A sender holds the first lock while it writes, and the reader never takes it: a server
/// that does not read must not keep the reader from reading.
pub(super) struct Remote {
    address: String,
    connection: Mutex<Option<(TcpStream, Arc<Queue>)>>,
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
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

impl Remote {
    pub fn new(address: &str) -> Arc<Self> {
        Arc::new(Self {
            address: address.to_owned(),
            connection: Mutex::default(),
        })
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

    /// Sends a call; `on_answer` is called on the reader's thread, or here.
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
        let mut waiting = Waiting {
            is_ordered: wanted.0 == Wanted::Level(Level::Ordered),
            on_answer,
        };
        let mut connection = lock(&self.connection);
        // One that has ended since is opened again.
        for _ in 0..2 {
            if connection.is_none() {
                *connection = self.begin().ok();
            }
            let Some((stream, queue)) = &mut *connection else {
                break;
            };
            match push(queue, waiting) {
                Ok(()) => {
                    if stream.write_all(&bytes).is_err() {
                        // Its reader answers those that wait.
                        let _ = stream.shutdown(Shutdown::Both);
                        *connection = None;
                    }
                    return;
                }
                Err((error, back)) => {
                    waiting = back;
                    if error == SubmitError::Busy {
                        drop(connection);
                        return (waiting.on_answer)(Err(error));
                    }
                    *connection = None;
                }
            }
        }
        drop(connection);
        (waiting.on_answer)(Err(SubmitError::Stopped));
    }

    /// Opens a connection and starts its reader.
    fn begin(&self) -> io::Result<(TcpStream, Arc<Queue>)> {
        let stream = connect(&self.address)?;
        let reader = stream.try_clone()?;
        let queue = Arc::new(Mutex::new(Some(VecDeque::new())));
        let shared = queue.clone();
        thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || read_answers(reader, &shared))?;
        Ok((stream, queue))
    }
}

fn push(queue: &Queue, waiting: Waiting) -> Result<(), (SubmitError, Waiting)> {
    match &mut *lock(queue) {
        None => Err((SubmitError::Stopped, waiting)),
        Some(queue) if queue.len() >= WAITING_MAX => Err((SubmitError::Busy, waiting)),
        Some(queue) => {
            queue.push_back(waiting);
            Ok(())
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some((stream, _)) = lock(&self.connection).take() {
            // The reader ends with it.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn read_answers(stream: TcpStream, queue: &Queue) {
    let mut reader = BufReader::new(stream);
    while let Ok(reply) = read(&mut reader, ANSWER_BYTES_MAX) {
        let answer = match reply {
            Reply::Text(bytes) => Ok(bytes),
            Reply::Error(code) => match Failure::read(&code) {
                Some(error) => Err(error),
                None => break,
            },
            _ => break,
        };
        let first = lock(queue).as_mut().and_then(VecDeque::pop_front);
        match first {
            Some(waiting) => (waiting.on_answer)(answer),
            None => break,
        }
    }
    let _ = reader.get_ref().shutdown(Shutdown::Both);
    let waiting = lock(queue).take();
    for one in waiting.into_iter().flatten() {
        (one.on_answer)(Err(match one.is_ordered {
            true => SubmitError::Uncertain,
            false => SubmitError::Stopped,
        }));
    }
}
