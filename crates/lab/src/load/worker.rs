//! One thread of the load generator: its connections, its clock, what it measured.
//!
//! ```text
//!   closed loop: a connection sends `pipeline` requests, waits for all replies, sends again
//!                (or, sliding, sends one for each reply)
//!   open loop:   request n is due at n / rate, whatever the server does; it is sent on whichever
//!                connection has room, and its latency counts from when it was due
//! ```

use super::{
    alarm::Alarm,
    dialect::{Dialect, Ended},
    language::Language,
    workload::Workload,
};
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
/// How long to wait at the end for what is still in progress.
const DRAIN: Duration = Duration::from_secs(3);
/// Requests that are due but find no room on any connection; beyond it they are given up.
const BACKLOG_MAX: usize = 1 << 20;
const LATENCY_MAX: u64 = 120_000_000_000;

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its protocol.
    pub language: Language,
}

/// The task of a worker.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Where to connect, connections taking turns.
    pub targets: Vec<Target>,
    /// How many connections.
    pub clients: usize,
    /// Requests per connection in progress at once.
    pub pipeline: usize,
    /// In a closed loop: whether each answer is followed by a request, as if `pipeline` clients
    /// shared the connection, rather than all answers by all requests.
    pub sliding: bool,
    /// Requests per second of this worker; `None` for a closed loop.
    pub rate: Option<f64>,
    /// In an open loop: whether requests are due at random moments (Poisson) rather than at equal
    /// distances.
    pub random_arrivals: bool,
    /// When it all begins.
    pub start: Instant,
    /// Duration that is not counted.
    pub warmup: Duration,
    /// Duration that is counted.
    pub measured: Duration,
}

/// The measurements of a worker.
#[derive(Debug)]
pub struct Measured {
    /// Nanoseconds from due (open loop) or sent (closed loop) to answered, of what was due in the
    /// measured time (open loop) or answered in it (closed loop).
    pub latency: Histogram<u64>,
    /// Answers that are not errors, in the measured time.
    pub answered: u64,
    /// Error answers and lost connections by their first word, over the whole run.
    pub errors: BTreeMap<String, u64>,
    /// Requests without an answer before the end.
    pub unanswered: u64,
    /// Requests that were due but never sent, for want of room.
    pub unsent: u64,
    /// Connections opened again.
    pub reconnects: u64,
    /// The longest time without any good answer, in the measured time.
    pub pause_max: Duration,
    /// Latencies in nanoseconds of the good answers in each [`TIMELINE_STEP`] of the measured time.
    pub timeline: Vec<Histogram<u64>>,
}

/// How fine a timeline is.
pub const TIMELINE_STEP: Duration = Duration::from_millis(100);

struct Connection {
    stream: Option<TcpStream>,
    target: usize,
    retry_at: Option<Instant>,
    dialect: Box<dyn Dialect>,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// When the requests from number `first` on were due or sent; `None` for those answered.
    in_flight: VecDeque<Option<Instant>>,
    first: u64,
    /// How many of them are not answered.
    open: usize,
    /// A key that was read and is to be written next.
    modified: Option<[u8; 16]>,
}

impl Connection {
    fn send(&mut self, workload: &mut Workload, since: Instant) {
        let request = workload.draw(&mut self.modified);
        self.dialect
            .request(&request, workload.value(), &mut self.output);
        self.in_flight.push_back(Some(since));
        self.open += 1;
    }

    /// When the request with this number was due or sent.
    fn answered(&mut self, number: u64) -> Option<Instant> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let since = self.in_flight.get_mut(index)?.take()?;
        self.open -= 1;
        while self.in_flight.front().is_some_and(Option::is_none) {
            self.in_flight.pop_front();
            self.first += 1;
        }
        Some(since)
    }
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
    /// When the next request is due, seconds after the start, if that is drawn.
    due: f64,
    turn: usize,
    done: Arc<AtomicU64>,
    measured: Measured,
    answered_last: Option<Instant>,
    /// A step of the timeline before anything is in it.
    step: Histogram<u64>,
    /// Where everything is read into.
    scratch: Vec<u8>,
    ended: Vec<Ended>,
}

impl Worker {
    /// A worker with its connections in progress.
    ///
    /// # Errors
    /// When the operating system has no more sockets.
    pub fn new(orders: Orders, workload: Workload, done: Arc<AtomicU64>) -> io::Result<Self> {
        let histogram = |digits| {
            Histogram::new_with_bounds(1_000, LATENCY_MAX, digits)
                .map_err(|error| io::Error::other(error.to_string()))
        };
        let (latency, step) = (histogram(3)?, histogram(2)?);
        let poll = Poll::new()?;
        let alarm = Alarm::new(poll.registry(), ALARM)?;
        let mut worker = Self {
            workload,
            poll,
            alarm,
            connections: Vec::new(),
            backlog: VecDeque::new(),
            issued: 0,
            due: 0.0,
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
                timeline: Vec::new(),
            },
            answered_last: None,
            step,
            scratch: vec![0; READ_STEP],
            ended: Vec::new(),
            orders,
        };
        for index in 0..worker.orders.clients {
            let target = index % worker.orders.targets.len();
            worker.connections.push(Connection {
                stream: None,
                target,
                retry_at: None,
                dialect: worker.orders.targets[target].language.dialect(),
                output: Vec::new(),
                written: 0,
                input: Vec::new(),
                in_flight: VecDeque::new(),
                first: 0,
                open: 0,
                modified: None,
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
            self.measured.unanswered += connection.open as u64;
        }
        self.measured.unsent += self.backlog.len() as u64;
        if let Some(last) = self.answered_last {
            let pause = end.saturating_duration_since(last);
            self.measured.pause_max = self.measured.pause_max.max(pause);
        }
        Ok(self.measured)
    }

    fn is_drained(&self) -> bool {
        let idle = |connection: &Connection| connection.open == 0;
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
        let due = if self.orders.random_arrivals {
            self.due
        } else {
            self.issued as f64 / rate
        };
        Some(self.orders.start + Duration::from_secs_f64(due))
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
                let ready = connection.open == 0 || self.orders.sliding;
                if connection.stream.is_some() && ready {
                    for _ in connection.open..self.orders.pipeline {
                        connection.send(&mut self.workload, now);
                    }
                }
            }
            return;
        }
        while let Some(due) = self.due_next().filter(|due| *due <= now && *due < end) {
            self.issued += 1;
            if self.orders.random_arrivals {
                let rate = self.orders.rate.unwrap_or(1.0);
                self.due -= (1.0 - self.workload.unit()).ln() / rate;
            }
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
            let room = connection.stream.is_some() && connection.open < self.orders.pipeline;
            match room.then(|| self.backlog.pop_front()).flatten() {
                Some(due) => {
                    connection.send(&mut self.workload, due);
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
    /// when they are invalid.
    fn digest(
        &mut self,
        index: usize,
        input: &[u8],
        counted: Instant,
        end: Instant,
    ) -> Option<usize> {
        let now = Instant::now();
        let connection = &mut self.connections[index];
        self.ended.clear();
        let consumed = connection
            .dialect
            .digest(input, &mut connection.output, &mut self.ended)?;
        let mut good = 0;
        for answer in self.ended.drain(..) {
            let since = connection.answered(answer.number)?;
            if let Some(word) = answer.error {
                *self.measured.errors.entry(word).or_default() += 1;
                continue;
            }
            good += 1;
            let nanoseconds = now.duration_since(since).as_nanos();
            let nanoseconds = u64::try_from(nanoseconds).unwrap_or(LATENCY_MAX);
            let is_measured = |when: Instant| when >= counted && when < end;
            if is_measured(now) {
                self.measured.answered += 1;
                let step = now.duration_since(counted).as_millis() / TIMELINE_STEP.as_millis();
                let step = usize::try_from(step).unwrap_or(0);
                while self.measured.timeline.len() <= step {
                    self.measured.timeline.push(self.step.clone());
                }
                self.measured.timeline[step].saturating_record(nanoseconds);
            }
            // The latency of an open loop is that of what was due in the measured time: a late
            // answer must not slip out of it.
            let is_open = self.orders.rate.is_some();
            if is_measured(if is_open { since } else { now }) {
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

    /// A connection is gone, and with it whatever was in progress on it.
    fn lose(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if let Some(mut stream) = connection.stream.take() {
            // It is gone in any case.
            let _ = self.poll.registry().deregister(&mut stream);
        }
        let lost = connection.open.max(1) as u64;
        *self
            .measured
            .errors
            .entry("connection lost".to_owned())
            .or_default() += lost;
        connection.in_flight.clear();
        connection.first = 0;
        connection.open = 0;
        connection.modified = None;
        connection.output.clear();
        connection.written = 0;
        connection.input.clear();
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
        let target = &self.orders.targets[connection.target];
        let mut stream = TcpStream::connect(target.address)?;
        // Small requests must not wait for each other; a refusal only costs speed.
        let _ = stream.set_nodelay(true);
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(index), interest)?;
        connection.dialect = target.language.dialect();
        connection.dialect.greet(&mut connection.output);
        connection.stream = Some(stream);
        Ok(())
    }
}
