//! The clients: what they ask, at which replica, and what they make of the answers.
//!
//! ```text
//!   draw ──► one command | a pipeline | MULTI … EXEC | a key written once
//!        ──► send ──► replies ──► recording
//!                 └─ error, silence, broken connection ──► excused by the timeline, or a complaint
//!                                                          then on to another replica
//! ```
//!
//! Keys come in groups of four that are in use for a while and are then replaced by the next, so
//! that every group's history is short enough to be checked exhaustively; a part of the reads and
//! writes goes to old groups. All written values are unique.

use super::{
    client::{Connection, Value, encode},
    cluster::{CLIENT_DEADLINE, PASSWORD},
    record::{Answer, Fate, Operation, Recording, Text, text},
    timeline::{Timeline, Trouble},
};
use quintet_simulator::Random;
use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A server that runs answers before this, or says that it cannot.
const TIMEOUT: Duration = Duration::from_secs(CLIENT_DEADLINE.as_secs() + 5);
/// A server that stands still is left after this.
const CONNECT: Duration = Duration::from_secs(2);
/// Operations per group, on average.
const GROUP: u64 = 130;
/// Groups in use at one time.
const GROUPS: u64 = 8;
const COMPLAINTS_MAX: usize = 50;

/// False observations, to see that the checker detects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Some writes are acknowledged and never sent.
    LoseWrites,
    /// Some increments are sent twice.
    RepeatIncrements,
    /// Some reads are answered with what the client saw there before.
    StaleReads,
}

impl std::str::FromStr for Lie {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "lose-writes" => Ok(Self::LoseWrites),
            "repeat-increments" => Ok(Self::RepeatIncrements),
            "stale-reads" => Ok(Self::StaleReads),
            other => Err(format!(
                "'{other}' is not 'lose-writes', 'repeat-increments' or 'stale-reads'"
            )),
        }
    }
}

/// State shared by all clients.
#[derive(Debug)]
pub struct Shared {
    /// Where the replicas are.
    pub replicas: Vec<SocketAddr>,
    /// The observations.
    pub recording: Recording,
    /// The permitted errors over time.
    pub timeline: Timeline,
    /// Clients leave after what they are doing.
    pub stop: AtomicBool,
    /// Operations begun.
    pub begun: AtomicU64,
    /// Errors that no fault excuses.
    pub complaints: Mutex<Vec<String>>,
    /// How many there were of them.
    pub complained: AtomicU64,
    /// Trouble that was excused, by kind.
    pub excused: AtomicU64,
    /// Connections that clients reset themselves.
    pub client_resets: AtomicU64,
    /// Keys written once and acknowledged: number and value.
    pub once: Mutex<Vec<(u64, u64)>>,
    /// The next value that was never written.
    pub value_next: AtomicU64,
    /// A lie told on purpose.
    pub lie: Option<Lie>,
    /// No fault stops a server: a slow connect is slow, like any answer.
    pub hostile: bool,
}

impl Shared {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(replicas: Vec<SocketAddr>, lie: Option<Lie>, hostile: bool) -> Self {
        Self {
            replicas,
            recording: Recording::default(),
            timeline: Timeline::default(),
            stop: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            complaints: Mutex::default(),
            complained: AtomicU64::new(0),
            excused: AtomicU64::new(0),
            client_resets: AtomicU64::new(0),
            once: Mutex::default(),
            value_next: AtomicU64::new(1),
            lie,
            hostile,
        }
    }

    fn value(&self) -> u64 {
        self.value_next.fetch_add(1, Ordering::Relaxed)
    }

    /// How many groups of keys have been in use.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.begun.load(Ordering::Relaxed) / GROUP + GROUPS
    }

    /// Something went wrong for a client of `replica`.
    pub fn complain(&self, replica: u16, trouble: Trouble, from: u64, what: &str) {
        let to = self.timeline.now();
        if self.timeline.excuses(replica, trouble, from, to) {
            self.excused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.complained.fetch_add(1, Ordering::Relaxed);
        let mut complaints = self
            .complaints
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if complaints.len() < COMPLAINTS_MAX {
            let (from, to) = (from as f64 / 1e9, to as f64 / 1e9);
            complaints.push(format!(
                "a client of replica {replica} saw {trouble:?} between {from:.3} s and {to:.3} s \
                 of the run without a fault that excuses it: {what}"
            ));
        }
    }
}

/// The request: words per command, and whether it is a transaction.
#[derive(Clone, Debug)]
struct Request {
    commands: Vec<Vec<Text>>,
    transaction: bool,
    /// The number and value of a key that is written once.
    once: Option<(u64, u64)>,
}

/// A key that is written once.
#[must_use]
pub fn once_key(number: u64) -> String {
    format!("once:{number}")
}

/// The keys of a group: two texts, a counter, a text that grows.
#[must_use]
pub fn group_keys(group: u64) -> [String; 4] {
    ["a", "b", "n", "l"].map(|name| format!("g{group}:{name}"))
}

fn words<const N: usize>(words: [&str; N]) -> Vec<Text> {
    words.into_iter().map(text).collect()
}

/// One client.
#[derive(Debug)]
pub struct Client {
    number: u32,
    /// It never writes: a client whose write waits for a quorum sees nothing of what is there.
    only_reads: bool,
    /// Where it belongs and goes back to, so that every replica keeps clients.
    home: u16,
    replica: u16,
    random: Random,
    shared: Arc<Shared>,
    connection: Option<Connection>,
    /// The time between two requests.
    think: Duration,
    /// When it asked last.
    asked_at: u64,
    /// Values that were read, for false observations.
    stale: BTreeMap<Text, Answer>,
}

impl Client {
    /// A client that begins at `replica` and thinks for about `think` between two requests.
    #[must_use]
    pub fn new(shared: Arc<Shared>, number: u32, replica: u16, seed: u64, think: Duration) -> Self {
        Self {
            number,
            only_reads: (number / shared.replicas.len().max(1) as u32) % 3 == 2,
            home: replica,
            replica,
            random: Random::new(seed).fork(1_000 + u64::from(number)),
            shared,
            connection: None,
            think,
            asked_at: 0,
            stale: BTreeMap::new(),
        }
    }

    /// Asks until told to stop.
    pub fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.turn();
            let think = self.think.as_micros() as u64;
            let pause = self.random.below(2 * think + 1);
            if pause > 50 {
                thread::sleep(Duration::from_micros(pause));
            }
        }
    }

    fn turn(&mut self) {
        let from = self.shared.timeline.now();
        if self.connection.is_none() {
            let address = self.shared.replicas[usize::from(self.replica)];
            let timeout = if self.shared.hostile {
                TIMEOUT
            } else {
                CONNECT
            };
            match Connection::open(address, PASSWORD, timeout) {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    let what = format!("cannot connect: {error}");
                    self.trouble(from, &error, &what);
                    thread::sleep(Duration::from_millis(20));
                    return;
                }
            }
        }
        let count = match self.random.below(100) {
            0..80 => 1,
            _ => self.random.between(2, 6),
        };
        let requests: Vec<_> = (0..count).map(|_| self.draw()).collect();
        self.ask(&requests);
        // Now and then a client moves, and goes home some time later.
        if self.replica == self.home && self.random.chance(3) {
            self.connection = None;
            self.move_on();
        } else if self.replica != self.home && self.random.chance(30) {
            self.connection = None;
            self.replica = self.home;
        }
    }

    /// The error of a connection, and another replica next time.
    fn trouble(&mut self, from: u64, error: &io::Error, what: &str) {
        let trouble = match error.kind() {
            io::ErrorKind::TimedOut => Trouble::Silence,
            _ => Trouble::Connection,
        };
        self.shared.complain(self.replica, trouble, from, what);
        self.connection = None;
        self.move_on();
    }

    fn move_on(&mut self) {
        let others = self.shared.replicas.len() as u64 - 1;
        if others > 0 {
            let step = self.random.between(1, others);
            let next = (u64::from(self.replica) + step) % (others + 1);
            // Below the number of replicas.
            self.replica = next as u16;
        }
    }

    fn group(&mut self) -> u64 {
        let begun = self.shared.begun.load(Ordering::Relaxed);
        let newest = begun / GROUP;
        if self.random.chance(60) {
            return self.random.below(newest + GROUPS);
        }
        newest + self.random.below(GROUPS)
    }

    fn draw(&mut self) -> Request {
        self.shared.begun.fetch_add(1, Ordering::Relaxed);
        match self.random.below(100) {
            _ if self.only_reads => {
                let group = self.group();
                let keys = group_keys(group);
                let key = &keys[self.random.index(keys.len())];
                Request {
                    commands: vec![words(["GET", key])],
                    transaction: false,
                    once: None,
                }
            }
            0..12 => {
                let number = self.shared.value();
                let value = self.shared.value();
                Request {
                    commands: vec![words(["SET", &once_key(number), &format!("v{value}")])],
                    transaction: false,
                    once: Some((number, value)),
                }
            }
            12..27 => {
                let group = self.group();
                let count = self.random.between(2, 4);
                Request {
                    commands: (0..count).map(|_| self.command(group)).collect(),
                    transaction: true,
                    once: None,
                }
            }
            _ => {
                let group = self.group();
                Request {
                    commands: vec![self.command(group)],
                    transaction: false,
                    once: None,
                }
            }
        }
    }

    fn command(&mut self, group: u64) -> Vec<Text> {
        let [a, b, counter, list] = group_keys(group);
        let value = format!("v{}", self.shared.value());
        let string = if self.random.chance(500) { a } else { b };
        match self.random.below(100) {
            0..20 => words(["SET", &string, &value]),
            20..38 => words(["GET", &string]),
            38..46 => words(["GETSET", &string, &value]),
            46..54 => words(["SETNX", &string, &value]),
            54..60 => words(["DEL", &string]),
            60..74 => words(["INCR", &counter]),
            74..79 => words(["GET", &counter]),
            79..93 => words(["APPEND", &list, &format!(".{value}")]),
            _ => words(["GET", &list]),
        }
    }

    /// Sends all requests at once and waits for all answers.
    fn ask(&mut self, requests: &[Request]) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let from = self.shared.timeline.now();
        self.asked_at = from;
        let mut out = Vec::new();
        let mut pending = Vec::new();
        for request in requests {
            let invoked = self.shared.recording.ordinal();
            let lost = self.lies(Lie::LoseWrites, 20) && !request.transaction;
            let copies = self.lies(Lie::RepeatIncrements, 20)
                && !request.transaction
                && &*request.commands[0][0] == b"INCR";
            if lost && &*request.commands[0][0] == b"SET" {
                self.written(request);
                self.end(request, invoked, Fate::Done(Answer::Text(text("OK"))));
                continue;
            }
            if copies {
                write(request, &mut out);
            }
            write(request, &mut out);
            pending.push((request, invoked, copies));
        }
        if let Err(error) = connection.send(&out) {
            self.give_up(&pending, from, &error);
            return;
        }
        if self.random.chance(4) {
            // A client that does not wait: what it asked may have been done.
            connection.reset();
            self.shared.client_resets.fetch_add(1, Ordering::Relaxed);
            for (request, invoked, _) in &pending {
                self.end(request, *invoked, Fate::Uncertain);
            }
            return;
        }
        let deadline = Instant::now() + TIMEOUT;
        for (answered, (request, invoked, copies)) in pending.iter().enumerate() {
            let reply =
                replies(request, &mut connection, deadline).and_then(|first| match copies {
                    true => replies(request, &mut connection, deadline),
                    false => Ok(first),
                });
            match reply {
                Ok(reply) => self.check(request, *invoked, from, reply),
                Err(error) => {
                    self.give_up(&pending[answered..], from, &error);
                    return;
                }
            }
        }
        self.connection = Some(connection);
    }

    fn give_up(&mut self, pending: &[(&Request, u64, bool)], from: u64, error: &io::Error) {
        for (request, invoked, _) in pending {
            self.end(request, *invoked, Fate::Uncertain);
        }
        let what = match pending.first() {
            Some((request, ..)) => format!("{}: {error}", shown(request)),
            None => error.to_string(),
        };
        self.trouble(from, error, &what);
    }

    /// A reply has come.
    fn check(&mut self, request: &Request, invoked: u64, from: u64, reply: Value) {
        let fate = match reply {
            Value::Error(error) => {
                let trouble = Trouble::of_error(&error);
                let what = format!("{} was answered -{error}", shown(request));
                self.shared.complain(self.replica, trouble, from, &what);
                match trouble.is_definite() {
                    true => Fate::Failed,
                    false => Fate::Uncertain,
                }
            }
            other => Fate::Done(answer(other)),
        };
        let fate = self.lie_about(request, fate);
        if matches!(fate, Fate::Done(_)) {
            self.written(request);
        }
        self.end(request, invoked, fate);
    }

    /// Remembers an acknowledged key that is written once.
    fn written(&self, request: &Request) {
        if let Some(once) = request.once {
            let mut written = self
                .shared
                .once
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            written.push(once);
        }
    }

    fn end(&self, request: &Request, invoked: u64, fate: Fate) {
        self.shared.recording.end(Operation {
            client: self.number,
            replica: self.replica,
            commands: request.commands.clone(),
            transaction: request.transaction,
            invoked,
            ended: self.shared.recording.ordinal(),
            began_at: self.asked_at,
            ended_at: self.shared.timeline.now(),
            fate,
        });
    }

    fn lies(&mut self, lie: Lie, per_mille: u64) -> bool {
        self.shared.lie == Some(lie) && self.random.chance(per_mille)
    }

    /// Now and then what was read before is given for what is there now.
    fn lie_about(&mut self, request: &Request, fate: Fate) -> Fate {
        let reads = !request.transaction && &*request.commands[0][0] == b"GET";
        let (Some(Lie::StaleReads), true, Fate::Done(now)) = (self.shared.lie, reads, &fate) else {
            return fate;
        };
        let key = request.commands[0][1].clone();
        let now = now.clone();
        if self.random.chance(200)
            && let Some(before) = self.stale.get(&key)
        {
            return Fate::Done(before.clone());
        }
        if self.stale.len() > 200 {
            self.stale.clear();
        }
        self.stale.insert(key, now);
        fate
    }
}

fn shown(request: &Request) -> String {
    let commands = request.commands.iter().map(|command| {
        let words = command.iter().map(|word| String::from_utf8_lossy(word));
        words.collect::<Vec<_>>().join(" ")
    });
    let text = commands.collect::<Vec<_>>().join("; ");
    match request.transaction {
        true => format!("MULTI {text} EXEC"),
        false => text,
    }
}

fn write(request: &Request, out: &mut Vec<u8>) {
    if request.transaction {
        encode(out, &[b"MULTI"]);
    }
    for command in &request.commands {
        let words: Vec<&[u8]> = command.iter().map(|word| &**word).collect();
        encode(out, &words);
    }
    if request.transaction {
        encode(out, &[b"EXEC"]);
    }
}

/// All replies to one request; what counts is the last. A transaction of which a command was
/// refused is not executed; why it was refused says more than that.
fn replies(request: &Request, connection: &mut Connection, deadline: Instant) -> io::Result<Value> {
    let mut refused = None;
    if request.transaction {
        for _ in 0..=request.commands.len() {
            if let error @ Value::Error(_) = connection.reply(deadline)? {
                refused.get_or_insert(error);
            }
        }
    }
    match (connection.reply(deadline)?, refused) {
        (Value::Error(last), Some(first)) if last.starts_with("EXECABORT") => Ok(first),
        (last, _) => Ok(last),
    }
}

fn answer(value: Value) -> Answer {
    match value {
        Value::Simple(simple) => Answer::Text(text(simple)),
        Value::Error(error) => Answer::Error(error),
        Value::Number(number) => Answer::Number(number),
        Value::Bulk(bytes) => Answer::Text(bytes.into()),
        Value::Array(values) => Answer::List(values.into_iter().map(answer).collect()),
        Value::Nil => Answer::Nil,
    }
}

/// Reads all of `keys` at one replica, many at a time, as client `number`.
///
/// # Errors
/// When the replica does not answer all.
pub fn read_all(
    shared: &Arc<Shared>,
    number: u32,
    replica: u16,
    keys: &[String],
) -> io::Result<Vec<Option<Text>>> {
    const TOGETHER: usize = 200;
    let address = shared.replicas[usize::from(replica)];
    let mut connection = Connection::open(address, PASSWORD, TIMEOUT)?;
    let client = Client::new(Arc::clone(shared), number, replica, 0, Duration::ZERO);
    let mut found = Vec::with_capacity(keys.len());
    for part in keys.chunks(TOGETHER) {
        let requests: Vec<_> = part
            .iter()
            .map(|key| Request {
                commands: vec![words(["GET", key])],
                transaction: false,
                once: None,
            })
            .collect();
        let mut out = Vec::new();
        let mut invoked = Vec::new();
        for request in &requests {
            invoked.push(shared.recording.ordinal());
            write(request, &mut out);
        }
        connection.send(&out)?;
        let deadline = Instant::now() + TIMEOUT;
        for (request, invoked) in requests.iter().zip(invoked) {
            let value = match connection.reply(deadline)? {
                Value::Bulk(bytes) => Some(bytes.into_boxed_slice()),
                Value::Nil => None,
                other => return Err(io::Error::other(format!("GET was answered {other:?}"))),
            };
            let answer = value.clone().map_or(Answer::Nil, Answer::Text);
            client.end(request, invoked, Fate::Done(answer));
            found.push(value);
        }
    }
    Ok(found)
}
