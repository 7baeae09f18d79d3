//! Calls from clients of Redis, in any language.
//!
//! ```text
//!   QUINTET.CALL store/3 get '["pallet"]' AT 2026-11-21T12:00:00Z ──► a thread per client ──► Shard
//!   QUINTET.CALL store:pallet put '["pallet", …]'                                              │
//!   "…" in JSON ◄──────────────────────────────────────────────────────────────────────────────┘
//! ```

use super::{
    CallError, Pending, When,
    call::{self, Around},
    follow::{Batch, Following},
    json::{Callers, JsonError, JsonPending},
    looking::{self, Looking},
    remote::{Failure, Wanted, read_wanted},
};
use crate::Error;
use quintet_runtime::resp::{Limits, Parser, Step};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Commands of one client that are in progress at once.
const IN_FLIGHT_MAX: usize = 1024;
const WRITTEN_AT_ONCE: usize = 64 << 10;
/// More clients are refused.
const CLIENTS_MAX: usize = 256;
const LIMITS: Limits = Limits {
    argument_bytes_max: 64 << 20,
    command_bytes_max: 64 << 20,
};
const FOLLOW_USAGE: &str = "ERR usage: QUINTET.FOLLOW SHARD NAME [FROM NUMBER] [WAIT MILLISECONDS]";
/// A follower waits no longer for one answer, nor unless it says so.
const FOLLOW_MAX: u64 = 10_000;
const FOLLOW_DEFAULT: u64 = 1_000;
const USAGE: &str = "ERR usage: QUINTET.CALL SHARD METHOD [ARGUMENTS IN JSON] [AT WHEN] [DONE]";

/// A server of calls for clients of Redis; dropping it closes their connections.
///
/// | command | answer |
/// |---|---|
/// | `QUINTET.CALL shard method [arguments] [AT when] [DONE]` | the answer in JSON; with `DONE` also version and time in nanoseconds |
/// | `QUINTET.FOLLOW shard name [FROM n] [WAIT milliseconds]` | the next number to ask from, how many were missed, and the [notifications](super::CallContext::notify): number, version, time, text of each |
/// | `QUINTET.METHODS shard` | the signatures of the methods |
/// | `QUINTET.FIELDS shard` | the fields: `map` or `value`, and the name of each |
/// | `QUINTET.VERSION shard [AT when]` | the version, and its time in nanoseconds |
/// | `QUINTET.KEYS shard field [FROM key] [COUNT n] [AT when]` | the key to continue from, or nothing; up to n keys of a map (1,000) |
/// | `QUINTET.VALUE shard field [KEY key] [AT when]` | text, version and time in nanoseconds of a value; nothing where there is no such key |
/// | `QUINTET.SHARDS` | group, name, number of shards, service of each shard, and a number of its signatures |
///
/// A shard is `SUBGROUP/NUMBER`, or `SUBGROUP:KEY` for that of a key. Arguments are an array in JSON;
/// bytes are a string, or an array of numbers. `when` is a time such as `2026-11-21T12:00:00Z`, `now`, or
/// `v:VERSION`. A key or a value that is a `String` or [`Bytes`](super::Bytes) is its own text; anything
/// else is JSON. Without `FROM` a follower is told from now on, so the first answer is empty and has the
/// number for the next request. Each waits for something to tell, a second unless it says otherwise, and
/// ten at most; one that has others behind it in a pipeline does not wait.
#[derive(Debug)]
pub struct CallServer {
    address: SocketAddr,
    clients: Arc<Clients>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Clients {
    stops: AtomicBool,
    next: AtomicU64,
    open: Mutex<Vec<(u64, TcpStream)>>,
}

impl Clients {
    fn open(&self) -> MutexGuard<'_, Vec<(u64, TcpStream)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a client in, if there is room.
    fn add(&self, stream: &TcpStream) -> Option<u64> {
        let copy = stream.try_clone().ok()?;
        let mut open = self.open();
        if open.len() >= CLIENTS_MAX || self.stops.load(Ordering::SeqCst) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        open.push((number, copy));
        Some(number)
    }
}

impl CallServer {
    pub(super) fn start(callers: Callers, address: impl ToSocketAddrs) -> Result<Self, Error> {
        let system = |error| Error::System {
            what: "serving calls".to_owned(),
            error,
        };
        let listener = TcpListener::bind(address).map_err(system)?;
        let address = listener.local_addr().map_err(system)?;
        let clients = Arc::new(Clients::default());
        let accepted = clients.clone();
        let accept = move || {
            for stream in listener.incoming() {
                if accepted.stops.load(Ordering::SeqCst) {
                    return;
                }
                match stream {
                    Ok(stream) => welcome(stream, &callers, &accepted),
                    // Too many descriptors, as a rule: some will be closed.
                    Err(_) => thread::sleep(Duration::from_millis(50)),
                }
            }
        };
        let thread = thread::Builder::new().name("calls".to_owned());
        Ok(Self {
            address,
            clients,
            thread: Some(thread.spawn(accept).map_err(system)?),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for CallServer {
    fn drop(&mut self) {
        self.clients.stops.store(true, Ordering::SeqCst);
        // Ends the wait for the next client.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok();
        for (_, stream) in self.clients.open().drain(..) {
            // One that has gone already is closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // A panic there is no reason for one here.
            let _ = thread.join();
        }
    }
}

fn welcome(mut stream: TcpStream, callers: &Callers, clients: &Arc<Clients>) {
    let Some(number) = clients.add(&stream) else {
        // Nothing more can be done for it.
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
        return;
    };
    let (callers, ours) = (callers.clone(), clients.clone());
    let serve = move || {
        // A client that leaves is no fault.
        let _ = serve(&mut stream, &callers);
        ours.open().retain(|(it, _)| *it != number);
    };
    let thread = thread::Builder::new().name("calls of a client".to_owned());
    if thread.spawn(serve).is_err() {
        clients.open().retain(|(it, _)| *it != number);
    }
}

fn serve(stream: &mut TcpStream, callers: &Callers) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut parser) = (Vec::new(), Parser::default());
    let mut chunk = vec![0; 16 << 10];
    let mut replies: Vec<Reply> = Vec::new();
    loop {
        let step = match parser.step(&input, &LIMITS, true) {
            Ok(step) => step,
            Err(error) => {
                replies.push(Reply::error(&format!("ERR Protocol error: {error}")));
                return write(stream, replies, true);
            }
        };
        let (taken, goes) = match step {
            Step::Incomplete => {
                write(stream, std::mem::take(&mut replies), !input.is_empty())?;
                let length = stream.read(&mut chunk)?;
                if length == 0 {
                    return Ok(());
                }
                input.extend_from_slice(&chunk[..length]);
                continue;
            }
            Step::Discard(length) => (length, true),
            Step::TooLarge(length, _) => {
                replies.push(Reply::error("ERR the command is too large"));
                (length, true)
            }
            Step::Command(length) => {
                let arguments = (0..parser.len()).map(|index| parser.argument(&input, index));
                let arguments: Vec<&[u8]> = arguments.collect();
                if asks_for_its_place(&arguments) {
                    // Behind all that was sent before it.
                    write(stream, std::mem::take(&mut replies), true)?;
                }
                (length, answer(&arguments, callers, &mut replies))
            }
        };
        input.drain(..taken);
        if !goes {
            return write(stream, replies, true);
        }
        if replies.len() >= IN_FLIGHT_MAX {
            write(stream, std::mem::take(&mut replies), !input.is_empty())?;
        }
    }
}

/// A reply that is ready, or on its way.
pub(super) enum Reply {
    Ready(Vec<u8>),
    Json(JsonPending, bool),
    Raw(Pending<call::Anything>),
    Follow(Following, Duration),
    Look(Looking),
}

impl Reply {
    pub(super) fn error(text: &str) -> Self {
        let mut out = Vec::new();
        writer(&mut out).error(text);
        Self::Ready(out)
    }

    /// Waits for it.
    fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::Ready(bytes) => out.extend_from_slice(&bytes),
            Self::Json(pending, tells_done) => match pending.wait() {
                Ok(done) if tells_done => {
                    let mut out = writer(out);
                    out.array(3);
                    out.bulk(done.value.as_bytes());
                    out.integer(done.version.0 as i64);
                    out.integer(done.time.0.0 as i64);
                }
                Ok(done) => writer(out).bulk(done.value.as_bytes()),
                Err(error) => writer(out).error(&text_of(&error)),
            },
            Self::Follow(mut following, wait) => match following.wait(Instant::now() + wait) {
                Ok(batch) => put_batch(following.next(), &batch, &mut writer(out)),
                Err(error) => writer(out).error(&text_of(&error.into())),
            },
            Self::Look(looking) => looking.put(&mut writer(out)),
            Self::Raw(pending) => match pending.bytes() {
                Ok(bytes) => writer(out).bulk(&bytes),
                Err(error) => writer(out).error(Failure::of(&error).code()),
            },
        }
    }
}

fn put_batch(next: u64, batch: &Batch, out: &mut quintet_store::Reply<'_>) {
    out.array(3);
    out.integer(next as i64);
    let missed = batch.missed.map_or(0, |(first, last)| last + 1 - first);
    out.integer(missed as i64);
    out.array(batch.told.len());
    for told in &batch.told {
        out.array(4);
        out.integer(told.number as i64);
        out.integer(told.version.0 as i64);
        out.integer(told.time.0.0 as i64);
        out.bulk(told.text.as_bytes());
    }
}

/// Whether the client has sent more.
fn has_sent_more(stream: &TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let more = stream.peek(&mut [0]).is_ok_and(|length| length > 0);
    stream.set_nonblocking(false)?;
    Ok(more)
}

/// Writes replies in their order, as they come. `more`: others follow.
fn write(stream: &mut TcpStream, replies: Vec<Reply>, more: bool) -> io::Result<()> {
    let mut out = Vec::new();
    let mut replies = replies.into_iter().peekable();
    while let Some(mut reply) = replies.next() {
        if let Reply::Follow(_, wait) = &mut reply
            && (more || replies.peek().is_some() || has_sent_more(stream)?)
        {
            // It does not keep the others back.
            *wait = Duration::ZERO;
        }
        if matches!(reply, Reply::Follow(_, wait) if !wait.is_zero()) {
            // Those before it do not wait with it.
            stream.write_all(&out)?;
            out.clear();
        }
        reply.put(&mut out);
        if out.len() >= WRITTEN_AT_ONCE {
            stream.write_all(&out)?;
            out.clear();
        }
    }
    stream.write_all(&out)
}

/// Submits a call of a client that has the types.
fn raw(callers: &Callers, arguments: &[&[u8]]) -> Reply {
    let [group, wanted, payload] = arguments else {
        return Reply::error("ERR usage: QUINTET.RAW GROUP WANTED CALL");
    };
    let group = std::str::from_utf8(group)
        .ok()
        .and_then(|it| it.parse().ok());
    let mut shards = callers.shards.iter();
    let entry = group.and_then(|group: u32| shards.find(|it| it.known.group.0 == group));
    let (Some(entry), Some((wanted, member))) = (entry, read_wanted(wanted)) else {
        return Reply::error("ERR no such group, or nothing to be wanted of it");
    };
    let is_of_client = Around::take(payload).is_some_and(|(_, call)| !call.kind.is_of_members());
    if !is_of_client && wanted != Wanted::Members {
        return Reply::error("ERR it is no call of a client");
    }
    let to = callers.calls.to(&entry.known.source(), member);
    Reply::Raw(Pending::send(&callers.calls, to, wanted, payload.to_vec()))
}

/// Answers a command; false at the end of the connection.
fn answer(arguments: &[&[u8]], callers: &Callers, replies: &mut Vec<Reply>) -> bool {
    let Some((name, rest)) = arguments.split_first() else {
        return true;
    };
    if name.eq_ignore_ascii_case(b"QUINTET.RAW") {
        replies.push(raw(callers, rest));
        return true;
    }
    if let Some(reply) = looking::answer(name, rest, callers) {
        replies.push(reply);
        return true;
    }
    let mut out = Vec::new();
    let goes = answer_text(name, rest, callers, replies, &mut writer(&mut out));
    if !out.is_empty() {
        replies.push(Reply::Ready(out));
    }
    goes
}

fn answer_text(
    name: &[u8],
    rest: &[&[u8]],
    callers: &Callers,
    replies: &mut Vec<Reply>,
    out: &mut quintet_store::Reply<'_>,
) -> bool {
    let texts = rest.iter().map(|it| std::str::from_utf8(it));
    let Ok(texts) = texts.collect::<Result<Vec<_>, _>>() else {
        out.error("ERR the arguments are not UTF-8");
        return true;
    };
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    match (&*name, &texts[..]) {
        ("QUINTET.CALL", [shard, method, options @ ..]) => {
            replies.push(call(callers, shard, method, options));
        }
        ("QUINTET.CALL", _) => out.error(USAGE),
        ("QUINTET.FOLLOW", [shard, name, options @ ..]) => {
            replies.push(follow(callers, shard, name, options));
        }
        ("QUINTET.FOLLOW", _) => out.error(FOLLOW_USAGE),
        ("QUINTET.METHODS", [shard]) => match callers.methods(shard) {
            Ok(methods) => {
                out.array(methods.len());
                for method in methods {
                    out.bulk(method.signature.as_bytes());
                }
            }
            Err(error) => out.error(&text_of(&error)),
        },
        ("QUINTET.SHARDS", []) => {
            out.array(callers.shards.len());
            for entry in &*callers.shards {
                out.bulk(entry.known.to_text().as_bytes());
            }
        }
        ("PING", []) => out.simple("PONG"),
        ("PING" | "ECHO", [text]) => out.bulk(text.as_bytes()),
        // Clients ask and tell this when they connect.
        ("CLIENT", _) | ("SELECT", ["0"]) => out.ok(),
        ("COMMAND", _) => out.array(0),
        ("HELLO", ["2", ..] | []) => replies.push(hello(false)),
        ("HELLO", ["3", ..]) => replies.push(hello(true)),
        ("HELLO", _) => out.error("NOPROTO unsupported protocol version"),
        ("QUIT", _) => {
            out.ok();
            return false;
        }
        _ => out.error(
            "ERR unknown command; this server has QUINTET.CALL, FOLLOW, METHODS, SHARDS, FIELDS, \
             VERSION, KEYS and VALUE",
        ),
    }
    true
}

fn call(callers: &Callers, shard: &str, method: &str, options: &[&str]) -> Reply {
    let (arguments, mut options) = match options.split_first() {
        Some((first, rest)) if first.trim_start().starts_with('[') => (*first, rest),
        _ => ("[]", options),
    };
    let (mut when, mut tells_done) = (None, false);
    while let Some((option, rest)) = options.split_first() {
        options = rest;
        match &*option.to_ascii_uppercase() {
            "DONE" => tells_done = true,
            "AT" if !rest.is_empty() => {
                options = &rest[1..];
                match When::read(rest[0]) {
                    Ok(read) => when = Some(read),
                    Err(error) => return Reply::error(&format!("ERR {error}")),
                }
            }
            _ => return Reply::error(USAGE),
        }
    }
    match callers.call(shard, method, arguments, when) {
        Ok(pending) => Reply::Json(pending, tells_done),
        Err(error) => Reply::error(&text_of(&error)),
    }
}

/// Whether it follows from the next notification on. Which that is depends on the commands of this
/// connection that are executed: all before it, none behind it.
fn asks_for_its_place(arguments: &[&[u8]]) -> bool {
    let is = |word: &&[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    let follows = arguments
        .first()
        .is_some_and(|it| is(it, b"QUINTET.FOLLOW"));
    let mut options = arguments.iter().skip(3).step_by(2);
    follows && !options.any(|it| is(it, b"FROM"))
}

fn follow(callers: &Callers, shard: &str, name: &str, options: &[&str]) -> Reply {
    let (mut from, mut wait) = (None, FOLLOW_DEFAULT);
    for option in options.chunks(2) {
        let [word, number] = option else {
            return Reply::error(FOLLOW_USAGE);
        };
        let Ok(number) = number.parse::<u64>() else {
            return Reply::error(FOLLOW_USAGE);
        };
        match &*word.to_ascii_uppercase() {
            "FROM" if number > 0 => from = Some(number),
            "WAIT" => wait = number.min(FOLLOW_MAX),
            _ => return Reply::error(FOLLOW_USAGE),
        }
    }
    let following = callers.follow(shard, name, from.unwrap_or(0));
    match (following, from) {
        (Ok(following), Some(_)) => Reply::Follow(following, Duration::from_millis(wait)),
        (Ok(following), None) => {
            let mut out = Vec::new();
            Reply::Follow(following, Duration::ZERO).put(&mut out);
            Reply::Ready(out)
        }
        (Err(error), _) => Reply::error(&text_of(&error)),
    }
}

pub(super) fn text_of(error: &JsonError) -> String {
    let code = match error {
        JsonError::Call(CallError::Uncertain) => "UNCERTAIN",
        JsonError::Call(CallError::Busy | CallError::ClockSkew { .. }) => "BUSY",
        JsonError::Call(CallError::NoQuorum { .. } | CallError::Stopped) => "CLUSTERDOWN",
        JsonError::Call(CallError::Trimmed { .. } | CallError::NotKept) => "NOHISTORY",
        JsonError::Call(CallError::NotYet) => "NOTYET",
        JsonError::Call(CallError::LongAnswer { .. }) => "TOOLARGE",
        _ => "ERR",
    };
    format!("{code} {error}")
}

/// The only answer that differs between versions of the protocol.
fn hello(resp3: bool) -> Reply {
    let mut bytes = Vec::new();
    let mut out = quintet_store::Reply::unbounded(&mut bytes, resp3);
    out.map(6);
    for (name, value) in [
        ("server", "quintet"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("mode", "standalone"),
        ("role", "master"),
    ] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.integer(if resp3 { 3 } else { 2 });
    out.bulk(b"modules");
    out.array(0);
    Reply::Ready(bytes)
}

/// Appends a reply; all but [`hello`] are the same in both versions of the protocol.
const fn writer(out: &mut Vec<u8>) -> quintet_store::Reply<'_> {
    quintet_store::Reply::unbounded(out, false)
}
