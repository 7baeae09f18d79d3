//! One thread of the load generator: its connections, its clock, what it measured.
//!
//! ```text
//!   closed loop: a connection sends `pipeline` requests, waits for all replies, sends again
//!   open loop:   request n is due at n / rate, whatever the server does; it is sent on whichever
//!                connection has room, and its latency counts from when it was due
//! ```

use super::{alarm::Alarm, workload::Workload};
use crate::cli::resp::{self, Scan, Url};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const ALARM: Token = Token(usize::MAX - 1);
const READ_STEP: usize = 64 << 10;
const RECONNECT: Duration = Duration::from_millis(50);
/// How long to wait at the end for what is still under way.
const DRAIN: Duration = Duration::from_secs(3);
/// Requests that are due but find no room on any connection; beyond it they are given up.
const BACKLOG_MAX: usize = 1 << 20;
const LATENCY_MAX: u64 = 120_000_000_000;

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Where to connect, connections taking turns.
    pub targets: Vec<(Url, SocketAddr)>,
    /// How many connections.
    pub clients: usize,
    /// Requests per connection under way at once.
    pub pipeline: usize,
    /// Requests per second of this worker; `None` for a closed loop.
    pub rate: Option<f64>,
    /// When it all begins.
    pub start: Instant,
    /// What is not counted.
    pub warmup: Duration,
    /// What is.
    pub measured: Duration,
}

/// What a worker measured.
#[derive(Debug)]
pub struct Measured {
    /// Nanoseconds from due (open loop) or sent (closed loop) to answered.
    pub latency: Histogram<u64>,
    /// Answers that are not errors, in the measured time.
    pub answered: u64,
    /// Error answers and lost connections by their first word, over the whole run.
    pub errors: BTreeMap<String, u64>,
    /// Requests that nobody answered before the end.
    pub unanswered: u64,
    /// Requests that were due but never sent, for want of room.
    pub unsent: u64,
    /// Connections opened anew.
    pub reconnects: u64,
    /// The longest time without any good answer, in the measured time.
    pub pause_max: Duration,
}

struct Connection {
    stream: Option<TcpStream>,
    target: usize,
    retry_at: Option<Instant>,
    /// Answers of the greeting still to come; they are not requests.
    greeting: usize,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// When the requests under way were due or sent, oldest first.
    under_way: VecDeque<Instant>,
}

/// See the module.
pub struct Worker {
    orders: Orders,
    workload: Workload,
    poll: Poll,
    alarm: Alarm,
    connections: Vec<Connection>,
    backlog: VecDeque<Instant>,
    issued: u64,
    turn: usize,
    done: Arc<AtomicU64>,
    measured: Measured,
    answered_last: Option<Instant>,
    /// Where everything is read into.
    scratch: Vec<u8>,
}

impl Worker {
    /// A worker with its connections under way.
    ///
    /// # Errors
    /// When the operating system has no more sockets.
    pub fn new(orders: Orders, workload: Workload, done: Arc<AtomicU64>) -> io::Result<Self> {
        let latency = Histogram::new_with_bounds(1_000, LATENCY_MAX, 3)
            .map_err(|error| io::Error::other(error.to_string()))?;
        let poll = Poll::new()?;
        let alarm = Alarm::new(poll.registry(), ALARM)?;
        let mut worker = Self {
            workload,
            poll,
            alarm,
            connections: Vec::new(),
            backlog: VecDeque::new(),
            issued: 0,
            turn: 0,
            done,
            measured: Measured {
                latency,
                answered: 0,
                errors: BTreeMap::new(),
                unanswered: 0,
                unsent: 0,
                reconnects: 0,
                pause_max: Duration::ZERO,
            },
            answered_last: None,
            scratch: vec![0; READ_STEP],
            orders,
        };
        for index in 0..worker.orders.clients {
            worker.connections.push(Connection {
                stream: None,
                target: index % worker.orders.targets.len(),
                retry_at: None,
                greeting: 0,
                output: Vec::new(),
                written: 0,
                input: Vec::new(),
                under_way: VecDeque::new(),
            });
            worker.connect(index)?;
        }
        Ok(worker)
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// When the operating system fails; what the servers do is counted instead.
    pub fn run(mut self) -> io::Result<Measured> {
        let counted = self.orders.start + self.orders.warmup;
        let end = counted + self.orders.measured;
        let mut events = Events::with_capacity(1024);
        self.answered_last = Some(counted);
        loop {
            let now = Instant::now();
            if now >= end + DRAIN || (now >= end && self.is_drained()) {
                break;
            }
            self.reconnect(now, end)?;
            self.issue(now, end);
            self.flush();
            let wake = self.wake_at(now, end);
            match self.poll.poll(&mut events, self.alarm.set(now, wake)?) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                match event.token() {
                    ALARM => self.alarm.clear(),
                    Token(index) => self.receive(index, counted, end),
                }
            }
        }
        for connection in &self.connections {
            self.measured.unanswered += connection.under_way.len() as u64;
        }
        self.measured.unsent += self.backlog.len() as u64;
        if let Some(last) = self.answered_last {
            let pause = end.saturating_duration_since(last);
            self.measured.pause_max = self.measured.pause_max.max(pause);
        }
        Ok(self.measured)
    }

    fn is_drained(&self) -> bool {
        let idle = |connection: &Connection| connection.under_way.is_empty();
        self.backlog.is_empty() && self.connections.iter().all(idle)
    }

    fn wake_at(&self, now: Instant, end: Instant) -> Instant {
        let mut wake = if now < end { end } else { end + DRAIN };
        if now < self.orders.start {
            wake = wake.min(self.orders.start);
        }
        if let Some(due) = self.due_next().filter(|due| *due < end) {
            wake = wake.min(due);
        }
        for connection in &self.connections {
            wake = wake.min(connection.retry_at.unwrap_or(wake));
        }
        wake
    }

    fn due_next(&self) -> Option<Instant> {
        let rate = self.orders.rate?;
        Some(self.orders.start + Duration::from_secs_f64(self.issued as f64 / rate))
    }

    /// Sends what may be sent now.
    fn issue(&mut self, now: Instant, end: Instant) {
        if now < self.orders.start {
            return;
        }
        if self.orders.rate.is_none() {
            if now >= end {
                return;
            }
            for connection in &mut self.connections {
                if connection.stream.is_some() && connection.under_way.is_empty() {
                    for _ in 0..self.orders.pipeline {
                        self.workload.next(&mut connection.output);
                        connection.under_way.push_back(now);
                    }
                }
            }
            return;
        }
        while let Some(due) = self.due_next().filter(|due| *due <= now && *due < end) {
            self.issued += 1;
            if self.backlog.len() < BACKLOG_MAX {
                self.backlog.push_back(due);
            } else {
                self.measured.unsent += 1;
            }
        }
        let mut full = 0;
        while full < self.connections.len() && !self.backlog.is_empty() {
            let count = self.connections.len();
            let connection = &mut self.connections[self.turn];
            self.turn = (self.turn + 1) % count;
            let room =
                connection.stream.is_some() && connection.under_way.len() < self.orders.pipeline;
            match room.then(|| self.backlog.pop_front()).flatten() {
                Some(due) => {
                    self.workload.next(&mut connection.output);
                    connection.under_way.push_back(due);
                    full = 0;
                }
                None => full += 1,
            }
        }
    }

    fn flush(&mut self) {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            let Some(stream) = &mut connection.stream else {
                continue;
            };
            while connection.written < connection.output.len() {
                match stream.write(&connection.output[connection.written..]) {
                    Ok(written) => connection.written += written,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // Not yet connected reads as this too.
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::WouldBlock | ErrorKind::NotConnected
                        ) =>
                    {
                        break;
                    }
                    Err(_) => {
                        self.lose(index);
                        break;
                    }
                }
            }
            let connection = &mut self.connections[index];
            if connection.written == connection.output.len() {
                connection.output.clear();
                connection.written = 0;
            }
        }
    }

    fn receive(&mut self, index: usize, counted: Instant, end: Instant) {
        let mut scratch = std::mem::take(&mut self.scratch);
        while self.receive_once(index, &mut scratch, counted, end) {}
        self.scratch = scratch;
    }

    /// Reads what is there, at most a buffer full; `true` when there may be more.
    fn receive_once(
        &mut self,
        index: usize,
        scratch: &mut [u8],
        counted: Instant,
        end: Instant,
    ) -> bool {
        let connection = &mut self.connections[index];
        let Some(stream) = &mut connection.stream else {
            return false;
        };
        let read = match stream.read(scratch) {
            Ok(read) if read > 0 => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => return true,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::NotConnected
                ) =>
            {
                return false;
            }
            _ => {
                self.lose(index);
                return false;
            }
        };
        let sane = if connection.input.is_empty() {
            let digested = self.digest(index, &scratch[..read], counted, end);
            digested.inspect(|consumed| {
                self.connections[index]
                    .input
                    .extend_from_slice(&scratch[*consumed..read]);
            })
        } else {
            let mut input = std::mem::take(&mut connection.input);
            input.extend_from_slice(&scratch[..read]);
            let digested = self.digest(index, &input, counted, end);
            input.drain(..digested.unwrap_or(0));
            self.connections[index].input = input;
            digested
        };
        if sane.is_none() {
            self.lose(index);
            return false;
        }
        read == scratch.len()
    }

    /// Takes the whole replies out of what a connection received and gives their length; `None`
    /// when they make no sense.
    fn digest(
        &mut self,
        index: usize,
        input: &[u8],
        counted: Instant,
        end: Instant,
    ) -> Option<usize> {
        let now = Instant::now();
        let connection = &mut self.connections[index];
        let mut consumed = 0;
        let mut good = 0;
        loop {
            let (length, reply) = match resp::scan(&input[consumed..]) {
                Scan::Partial => break,
                Scan::Nonsense => return None,
                Scan::Whole(length, reply) => (length, reply),
            };
            consumed += length;
            if let resp::Reply::Error(text) = reply {
                let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
                let word = String::from_utf8_lossy(word).into_owned();
                *self.measured.errors.entry(word).or_default() += 1;
            }
            if connection.greeting > 0 {
                connection.greeting -= 1;
                continue;
            }
            let since = connection.under_way.pop_front()?;
            if reply != resp::Reply::Value {
                continue;
            }
            good += 1;
            // A closed loop counts by when it was answered, an open loop by when it was due:
            // there a late answer must not slip out of the measured time.
            let when = if self.orders.rate.is_some() {
                since
            } else {
                now
            };
            if when >= counted && when < end {
                self.measured.answered += 1;
                let nanoseconds = now.duration_since(since).as_nanos();
                let nanoseconds = u64::try_from(nanoseconds).unwrap_or(LATENCY_MAX);
                self.measured.latency.saturating_record(nanoseconds);
            }
        }
        if good > 0 {
            self.done.fetch_add(good, Ordering::Relaxed);
            if now >= counted
                && let Some(last) = self.answered_last.replace(now)
            {
                let pause = now.min(end).saturating_duration_since(last.max(counted));
                self.measured.pause_max = self.measured.pause_max.max(pause);
            }
        }
        Some(consumed)
    }

    /// A connection is gone, and with it whatever was under way on it.
    fn lose(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if let Some(mut stream) = connection.stream.take() {
            // It is gone in any case.
            let _ = self.poll.registry().deregister(&mut stream);
        }
        let lost = connection.under_way.len().max(1) as u64;
        *self
            .measured
            .errors
            .entry("connection lost".to_owned())
            .or_default() += lost;
        connection.under_way.clear();
        connection.output.clear();
        connection.written = 0;
        connection.input.clear();
        connection.greeting = 0;
        connection.retry_at = Some(Instant::now() + RECONNECT);
        connection.target = (connection.target + 1) % self.orders.targets.len();
    }

    fn reconnect(&mut self, now: Instant, end: Instant) -> io::Result<()> {
        for index in 0..self.connections.len() {
            if self.connections[index].retry_at.is_some_and(|at| at <= now) {
                self.connections[index].retry_at = None;
                if now < end {
                    self.measured.reconnects += 1;
                    self.connect(index)?;
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let (url, address) = &self.orders.targets[connection.target];
        let mut stream = TcpStream::connect(*address)?;
        // Small requests must not wait for each other; a refusal only costs speed.
        let _ = stream.set_nodelay(true);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(index), interest)?;
        if let Some(password) = &url.password {
            resp::encode(&mut connection.output, &[b"AUTH", password.as_bytes()]);
            connection.greeting = 1;
        }
        connection.stream = Some(stream);
        Ok(())
    }
}
