//! The clients: some talk to a replica's server, some carry the protocol's frontend themselves.
//!
//! ```text
//!   embedded   client ──requests──► server at a replica ──one batch of what is there──► Submit
//!                                   (sessions die with the replica's run)
//!   remote     client ──own batch──► protocol's frontend ──network──► replicas
//!                                   (session outlives every replica; may go and come back)
//! ```
//!
//! Sessions are opened as a server does: `Open` and the first command in one batch. A client that
//! is left uncertain either gives up (and opens another session) or sends the same sequence
//! numbers again in a new batch. How often a frontend repeats a batch is the frontend's affair.

use crate::{
    checkers::Violation,
    history::Fate,
    machine::{Operation, Reply, decode_reply, encode_command},
    network::Network,
    process::epoch,
    random::Random,
    timers::{Popped, Timers},
    world::{Event, MILLISECOND, Phase, REMOTE, SECOND, World},
};
use quintet_replica::{
    BatchBuilder, BatchId, Bytes, Client as Driver, ClientFrame, ClockReading, CommandId, Deadline,
    Effect, EpochNumber, Executed, FrontendId, FrontendSetup, GroupId, Input, Level, Link, Outcome,
    Recipients, ReplicaId, RequestKind, RequestStatus, Results, SessionId, SnapshotInfo,
    Submission, Time, TimerKey, World as Outside, client_frame, read_client_frame,
};
use std::{collections::BTreeMap, time::Duration};

/// One request on its way through a frontend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub client: u16,
    /// Which operation; `None` for the opening of a session.
    pub number: Option<u32>,
    pub id: CommandId,
    pub open: u16,
    /// For an opening: the owner's start.
    pub started: u64,
}

/// The server of one run of a replica.
#[derive(Debug, Default)]
pub(crate) struct Server {
    owner: u64,
    started: u64,
    sessions: u64,
    batches: u64,
    pub open: BTreeMap<u64, Vec<Request>>,
    ordered: Vec<Request>,
    reads: Vec<Request>,
}

impl Server {
    pub fn new(owner: u64, started: u64) -> Self {
        Self {
            owner,
            started,
            ..Self::default()
        }
    }

    pub fn take(&mut self, level: Level, mut requests: Vec<Request>) {
        match level {
            Level::Ordered => self.ordered.append(&mut requests),
            _ => self.reads.append(&mut requests),
        }
    }
}

/// A client's session.
#[derive(Clone, Debug)]
struct Session {
    id: SessionId,
    started: u64,
    opened: bool,
    next: u64,
    /// Sequence numbers without an answer, ascending.
    unanswered: Vec<u64>,
}

/// A frontend that runs without a replica.
struct Remote {
    place: usize,
    driver: Option<Box<dyn Driver>>,
    batches: u64,
    open: BTreeMap<u64, Vec<Request>>,
    timers: Timers,
    owner: u64,
    /// Its sessions start at this time of the log at least.
    started_min: u64,
    sessions: u64,
}

enum Home {
    /// Connected to the server of this run of a replica.
    Server {
        node: usize,
        boot: u32,
    },
    /// Not connected.
    Nowhere,
    Remote(Box<Remote>),
}

/// See the module.
pub(crate) struct Client {
    home: Home,
    session: Option<Session>,
    /// Operations without an end.
    pub open: Vec<u32>,
    pipeline_max: u64,
    retries: bool,
    gone: bool,
    pub away_until: u64,
    turn_queued: bool,
    again: Vec<u32>,
    again_queued: bool,
}

/// What a remote frontend may look at.
struct View<'a> {
    now: u64,
    network: &'a Network,
    place: usize,
}

impl Outside for View<'_> {
    fn now(&self) -> Time {
        Time(self.now)
    }
    fn clock(&self) -> ClockReading {
        let now = 1_700_000_000_000_000_000 + self.now;
        ClockReading {
            earliest: now,
            now,
            latest: now,
            deviation: 1_000_000,
        }
    }
    fn room(&self, peer: ReplicaId) -> usize {
        self.network.room(self.place, peer.index())
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

/// How long a batch may take before its frontend gives up.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often an operation is sent before its client gives up.
const TRIES_MAX: u8 = 5;

impl Client {
    /// The clients of a seed; at least two of each sort.
    pub fn draw_all(random: &mut Random) -> Vec<Self> {
        let remote = 2 + random.below(3);
        let embedded = 3 + random.below(4);
        (0..remote + embedded)
            .map(|index| Self {
                home: if index < remote {
                    Home::Remote(Box::new(Remote {
                        place: 0,
                        driver: None,
                        batches: 0,
                        open: BTreeMap::new(),
                        timers: Timers::default(),
                        owner: random.draw() | 1,
                        started_min: 0,
                        sessions: 0,
                    }))
                } else {
                    Home::Nowhere
                },
                session: None,
                open: Vec::new(),
                pipeline_max: [1, 1, 2, 6][random.index(4)],
                retries: random.chance(600),
                gone: false,
                away_until: 0,
                turn_queued: false,
                again: Vec::new(),
                again_queued: false,
            })
            .collect()
    }

    /// Gives a remote client its place after the replicas.
    pub fn place_remote(&mut self, replicas: usize, index: u16, remotes: &mut Vec<u16>) {
        if let Home::Remote(remote) = &mut self.home {
            remote.place = replicas + remotes.len();
            remotes.push(index);
        }
    }

    /// Whether it takes part now.
    pub fn is_here(&self) -> bool {
        !self.gone && self.away_until == 0
    }

    pub const fn is_remote(&self) -> bool {
        matches!(self.home, Home::Remote(_))
    }

    /// The place of a remote client.
    pub fn place(&self) -> Option<usize> {
        match &self.home {
            Home::Remote(remote) => Some(remote.place),
            _ => None,
        }
    }
}

impl World {
    /// Brings the clients to life.
    pub fn start_clients(&mut self) {
        let epoch = epoch(self);
        for index in 0..self.clients.len() {
            let seed = self.random.draw();
            if let Home::Remote(remote) = &mut self.clients[index].home {
                let setup = FrontendSetup {
                    id: FrontendId(REMOTE + remote.place as u64),
                    embedded: None,
                    epoch: epoch.clone(),
                    durability: self.setup.durability,
                    options: (),
                };
                match (self.setup.entry.client)(setup, seed) {
                    Ok(driver) => remote.driver = Some(driver),
                    Err(error) => {
                        return self.violate(Violation::new("options", error.to_string()));
                    }
                }
            }
            let at = 30 * MILLISECOND + self.random.below(100 * MILLISECOND);
            self.turn_at(index, at);
        }
    }

    /// The place of a remote frontend, if it is one of this world's.
    pub fn remote_place(&self, frontend: FrontendId) -> Option<usize> {
        let place = usize::try_from(frontend.0.checked_sub(REMOTE)?).ok()?;
        (place < self.network.places()).then_some(place)
    }

    pub fn turn_at(&mut self, index: usize, at: u64) {
        let client = &mut self.clients[index];
        if !client.turn_queued && !client.gone {
            client.turn_queued = true;
            self.queue.push(
                at,
                Event::Turn {
                    client: index as u16,
                },
            );
        }
    }

    /// A client may invoke operations.
    pub fn turn(&mut self, index: usize) {
        self.clients[index].turn_queued = false;
        if !self.healing.wants_operations || !self.clients[index].is_here() {
            return;
        }
        if !self.clients[index].open.is_empty() {
            return;
        }
        if !self.connect_client(index) {
            let again = self.now + self.random.between(5, 50) * MILLISECOND;
            return self.turn_at(index, again);
        }
        let count = self.random.between(1, self.clients[index].pipeline_max);
        let operations: Vec<_> = (0..count).map(|_| self.draw_operation()).collect();
        self.invoke(index, &operations);
    }

    /// Finds the client a server that runs.
    fn connect_client(&mut self, index: usize) -> bool {
        match self.clients[index].home {
            Home::Remote(_) => return true,
            Home::Server { node, boot } => {
                let process = &self.processes[node];
                if process.node.is_some() && process.boot == boot && !self.is_out(node) {
                    return true;
                }
            }
            Home::Nowhere => {}
        }
        let up: Vec<usize> = (0..self.setup.replicas)
            .filter(|node| self.processes[*node].node.is_some() && !self.is_out(*node))
            .collect();
        if up.is_empty() {
            return false;
        }
        let node = up[self.random.index(up.len())];
        let boot = self.processes[node].boot;
        self.clients[index].home = Home::Server { node, boot };
        self.clients[index].session = None;
        true
    }

    fn draw_operation(&mut self) -> (u32, Operation) {
        let key = self.random.below(self.shape.keys.into()) as u32;
        let number = self.history.operations().len() as u64;
        let value = number << 8 | 1;
        let operation = match (key % 3, self.random.below(10)) {
            (_, 0..=3) => Operation::Read,
            (0, 4..=5) => Operation::CompareAndSet {
                expected: self.hints[key as usize],
                new: value,
            },
            (0, _) => Operation::Write(value),
            (1, _) => Operation::Append(value),
            _ => Operation::Add(1 + self.random.below(3)),
        };
        (key, operation)
    }

    /// The client invokes these operations, in one batch.
    pub fn invoke(&mut self, index: usize, operations: &[(u32, Operation)]) {
        let numbers: Vec<u32> = operations
            .iter()
            .map(|(key, operation)| {
                let number = self.history.invoke(index as u16, *key, *operation) as u32;
                self.tries.push(0);
                self.trace.say(self.now, || {
                    format!("c{index} invokes {number}: {operation:?} {key}")
                });
                number
            })
            .collect();
        self.clients[index].open.extend_from_slice(&numbers);
        let reads = operations
            .iter()
            .all(|(_, operation)| *operation == Operation::Read);
        let level = match reads && self.random.chance(800) {
            true => Level::Linearizable,
            false => Level::Ordered,
        };
        self.send(index, level, &numbers);
    }

    /// Sends operations, for the first time or again, in one batch.
    fn send(&mut self, index: usize, level: Level, numbers: &[u32]) {
        let mut requests = Vec::with_capacity(numbers.len() + 1);
        for number in numbers {
            self.tries[*number as usize] += 1;
        }
        let client = index as u16;
        if level == Level::Ordered {
            self.ensure_session(index);
            let Some(session) = &mut self.clients[index].session else {
                return;
            };
            let (id, started) = (session.id, session.started);
            if !session.opened {
                let id = CommandId {
                    session: id,
                    sequence: 0,
                };
                requests.push(Request {
                    client,
                    number: None,
                    id,
                    open: 0,
                    started,
                });
            }
            for number in numbers {
                let known = self.history.get(*number as usize).id;
                let command = known
                    .filter(|known| known.session == id)
                    .unwrap_or_else(|| {
                        session.next += 1;
                        session.unanswered.push(session.next);
                        CommandId {
                            session: id,
                            sequence: session.next,
                        }
                    });
                self.history.sent(*number as usize, command);
                let first = session
                    .unanswered
                    .first()
                    .copied()
                    .unwrap_or(command.sequence);
                let open = command.sequence.saturating_sub(first) as u16;
                let number = Some(*number);
                requests.push(Request {
                    client,
                    number,
                    id: command,
                    open,
                    started: 0,
                });
            }
        } else {
            requests.extend(numbers.iter().map(|number| Request {
                client,
                number: Some(*number),
                id: CommandId::default(),
                open: 0,
                started: 0,
            }));
        }
        match self.clients[index].home {
            Home::Server { node, .. } => self.give_requests(node, level, requests),
            Home::Remote(_) => self.submit_remote(index, level, requests),
            Home::Nowhere => {}
        }
    }

    fn ensure_session(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if client.session.is_some() {
            return;
        }
        let (owner, number, started) = match &mut client.home {
            Home::Server { node, .. } => {
                let server = &mut self.processes[*node].server;
                server.sessions += 1;
                (server.owner, server.sessions, server.started)
            }
            Home::Remote(remote) => {
                remote.sessions += 1;
                let started = (1_700_000_000_000_000_000 + self.now).max(remote.started_min);
                (remote.owner, remote.sessions, started)
            }
            Home::Nowhere => return,
        };
        let id = SessionId { owner, number };
        client.session = Some(Session {
            id,
            started,
            opened: false,
            next: 0,
            unanswered: Vec::new(),
        });
    }

    fn encode(
        &self,
        requests: &[Request],
        frontend: FrontendId,
        id: BatchId,
        level: Level,
    ) -> Bytes {
        let mut batch = BatchBuilder::new();
        for request in requests {
            match request.number {
                None => {
                    batch.push(
                        request.id,
                        RequestKind::Open,
                        0,
                        &request.started.to_le_bytes(),
                    );
                }
                Some(number) => {
                    let recorded = self.history.get(number as usize);
                    let payload = encode_command(number.into(), recorded.key, recorded.operation);
                    batch.push(request.id, RequestKind::Command, request.open, &payload);
                }
            }
        }
        batch.finish(frontend, id, level)
    }

    /// The server hands over what its clients sent since the last time: one batch per level.
    pub fn flush_server(&mut self, index: usize) {
        for level in [Level::Ordered, Level::Linearizable] {
            let process = &mut self.processes[index];
            let Some(node) = &process.node else { return };
            let frontend = node.frontend();
            let waiting = match level {
                Level::Ordered => &mut process.server.ordered,
                _ => &mut process.server.reads,
            };
            if waiting.is_empty() {
                continue;
            }
            let requests = std::mem::take(waiting);
            process.server.batches += 1;
            let id = BatchId(process.server.batches);
            let deadline = process.clock.now(self.now) + PATIENCE;
            let batch = self.encode(&requests, frontend, id, level);
            self.trace.say(self.now, || {
                format!("r{index} submits {id}: {}", line(&requests))
            });
            self.processes[index].server.open.insert(id.0, requests);
            self.input(
                index,
                Input::Submit(Submission {
                    id,
                    level,
                    batch,
                    deadline,
                }),
            );
        }
    }

    fn submit_remote(&mut self, index: usize, level: Level, requests: Vec<Request>) {
        let Home::Remote(remote) = &mut self.clients[index].home else {
            return;
        };
        remote.batches += 1;
        let id = BatchId(remote.batches);
        let frontend = FrontendId(REMOTE + remote.place as u64);
        let batch = self.encode(&requests, frontend, id, level);
        self.trace.say(self.now, || {
            format!("c{index} submits {id}: {}", line(&requests))
        });
        if let Home::Remote(remote) = &mut self.clients[index].home {
            remote.open.insert(id.0, requests);
        }
        let deadline = Time(self.now) + PATIENCE;
        let submission = Submission {
            id,
            level,
            batch,
            deadline,
        };
        self.drive(index, |driver, view, effects| {
            driver.submit(submission, view, effects)
        });
    }

    // --- remote frontends ------------------------------------------------------------------

    fn drive(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut dyn Driver, &dyn Outside, &mut Vec<Effect>),
    ) {
        let Home::Remote(remote) = &mut self.clients[index].home else {
            return;
        };
        let Some(driver) = &mut remote.driver else {
            return;
        };
        let place = remote.place;
        let view = View {
            now: self.now,
            network: &self.network,
            place,
        };
        let mut effects = Vec::new();
        call(driver.as_mut(), &view, &mut effects);
        for effect in effects {
            self.carry_out_remote(index, place, effect);
        }
    }

    fn carry_out_remote(&mut self, index: usize, place: usize, effect: Effect) {
        match effect {
            Effect::Send {
                to: Recipients::Replicas(set),
                lane,
                frame,
            } => {
                let frame = client_frame(GroupId(0), EpochNumber(1), frame).into_bytes();
                for to in set.iter() {
                    self.transmit(place, to.index(), lane, frame.clone());
                }
            }
            Effect::SetTimer { key, at } => {
                let Home::Remote(remote) = &mut self.clients[index].home else {
                    return;
                };
                let due = match at {
                    Deadline::At(at) => at.0.max(self.now),
                    Deadline::Clock(at) => {
                        at.saturating_sub(1_700_000_000_000_000_000).max(self.now)
                    }
                };
                if let Some(at) = remote.timers.set(key, at, due) {
                    self.queue.push(
                        at,
                        Event::Timer {
                            place: place as u16,
                            boot: 0,
                            key,
                        },
                    );
                }
            }
            Effect::CancelTimer { key } => {
                if let Home::Remote(remote) = &mut self.clients[index].home {
                    remote.timers.cancel(key);
                }
            }
            Effect::Done { batch, outcome } => {
                let Home::Remote(remote) = &mut self.clients[index].home else {
                    return;
                };
                match remote.open.remove(&batch.0) {
                    Some(requests) => self.finish(requests, outcome),
                    None => self.violate(Violation::new(
                        "frontend",
                        format!("client {index} was told twice how batch {batch} ended"),
                    )),
                }
            }
            Effect::Mark(branch) => *self.branches.entry(branch).or_default() += 1,
            other => self.violate(Violation::new(
                "frontend",
                format!("a frontend cannot ask for {other:?}"),
            )),
        }
    }

    pub fn client_frame(&mut self, index: usize, from: usize, frame: Bytes) {
        if !self.clients[index].is_here() {
            return;
        }
        let from = ReplicaId(from as u16);
        self.trace.say(self.now, || {
            format!("c{index} ◄ {from} {}", self.setup.describe_frame(&frame))
        });
        let mut refused = None;
        match read_client_frame(frame) {
            Ok(ClientFrame::Message(message)) => self.drive(index, |driver, view, effects| {
                refused = driver.on_message(from, message, view, effects).err();
            }),
            Ok(ClientFrame::Reply(batch, header, results)) => {
                self.drive(index, |driver, view, effects| {
                    refused = driver
                        .on_reply(from, batch, (header, results), view, effects)
                        .err();
                });
            }
            Err(error) => {
                let what = format!("client {index} cannot read a frame: {error}");
                self.violate(Violation::new("codec", what));
            }
        }
        if let Some(error) = refused {
            let what = format!("client {index} refused a frame: {error}");
            self.violate(Violation::new("codec", what));
        }
    }

    pub fn client_link(&mut self, index: usize, peer: usize, link: Link) {
        if self.clients[index].is_here() {
            let peer = ReplicaId(peer as u16);
            self.drive(index, |driver, view, effects| {
                driver.on_link(peer, link, view, effects)
            });
        }
    }

    pub fn client_timer(&mut self, index: usize, place: u16, key: TimerKey) {
        let client = &mut self.clients[index];
        if client.gone {
            return;
        }
        let Home::Remote(remote) = &mut client.home else {
            return;
        };
        match remote.timers.popped(key, self.now) {
            Popped::Fired if client.away_until > self.now => {
                let due = client.away_until;
                if let Some(at) = remote.timers.set(key, Deadline::At(Time(due)), due) {
                    self.queue.push(
                        at,
                        Event::Timer {
                            place,
                            boot: 0,
                            key,
                        },
                    );
                }
            }
            Popped::Fired => {
                remote.timers.take_fired(key);
                let timer = key.timer;
                self.drive(index, |driver, view, effects| {
                    driver.on_timer(timer, view, effects)
                });
            }
            Popped::Later(at) => self.queue.push(
                at,
                Event::Timer {
                    place,
                    boot: 0,
                    key,
                },
            ),
            Popped::Nothing => {}
        }
    }

    // --- endings ---------------------------------------------------------------------------

    /// A batch is finished.
    pub fn finish(&mut self, requests: Vec<Request>, outcome: Outcome) {
        match outcome {
            Outcome::Results(bytes) => {
                let mut results = Results::new(&bytes);
                for request in &requests {
                    let Some((status, reply)) = results.next() else {
                        let what =
                            format!("a batch of {} requests got fewer results", requests.len());
                        return self.violate(Violation::new("results", what));
                    };
                    self.on_result(request, status, reply);
                }
            }
            Outcome::NoQuorum | Outcome::Busy => {
                for request in &requests {
                    self.give_up(request, true);
                }
            }
            Outcome::Uncertain => {
                for request in &requests {
                    self.give_up(request, false);
                }
            }
        }
    }

    fn session_of(&mut self, request: &Request) -> Option<&mut Session> {
        let session = self.clients[usize::from(request.client)].session.as_mut()?;
        (session.id == request.id.session).then_some(session)
    }

    fn on_result(&mut self, request: &Request, status: RequestStatus, reply: &[u8]) {
        let index = usize::from(request.client);
        if self.clients[index].gone {
            return;
        }
        let Some(number) = request.number else {
            if status == RequestStatus::Done {
                if let Some(session) = self.session_of(request) {
                    session.opened = true;
                }
                return;
            }
            *self.branches.entry("session not opened").or_default() += 1;
            if self.session_of(request).is_some() {
                self.clients[index].session = None;
            }
            if let (RequestStatus::OpenRefused, Some(clock)) = (status, reply.first_chunk()) {
                self.renew_owner(index, u64::from_le_bytes(*clock));
            }
            return;
        };
        match status {
            RequestStatus::Done => match decode_reply(reply) {
                Some(reply) => self.complete(request, number, reply),
                None => self.violate(Violation::new(
                    "results",
                    format!("operation {number} got {reply:02x?} for a reply"),
                )),
            },
            RequestStatus::OutOfOrder => {
                *self.branches.entry("request out of order").or_default() += 1;
                self.give_up(request, false);
            }
            RequestStatus::SessionUnknown | RequestStatus::Forgotten | RequestStatus::Sealed => {
                *self.branches.entry("session lost").or_default() += 1;
                if self.session_of(request).is_some() {
                    self.clients[index].session = None;
                }
                self.end(request, number, Fate::Uncertain);
            }
            RequestStatus::Malformed | RequestStatus::OpenRefused => self.violate(Violation::new(
                "results",
                format!("operation {number} was answered {status:?}"),
            )),
        }
    }

    /// An owner that the log's clock has outlived starts over under another id.
    fn renew_owner(&mut self, index: usize, clock: u64) {
        let owner = self.random.draw() | 1;
        match &mut self.clients[index].home {
            Home::Server { node, .. } => {
                let server = &mut self.processes[*node].server;
                (server.owner, server.started, server.sessions) = (owner, clock, 0);
                let node = *node;
                for client in &mut self.clients {
                    if matches!(client.home, Home::Server { node: at, .. } if at == node)
                        && client.open.is_empty()
                    {
                        client.session = None;
                    }
                }
            }
            Home::Remote(remote) => {
                (remote.owner, remote.sessions, remote.started_min) = (owner, 0, clock);
            }
            Home::Nowhere => {}
        }
    }

    fn complete(&mut self, request: &Request, number: u32, reply: Reply) {
        let reply = self.planted(number, reply);
        if let Some(session) = self.session_of(request) {
            session
                .unanswered
                .retain(|sequence| *sequence != request.id.sequence);
        }
        let recorded = *self.history.get(number as usize);
        if !self.history.done(number as usize, reply) {
            return;
        }
        self.trace.feed(u64::from(number));
        self.trace.say(self.now, || {
            format!("c{} got {number}: {reply:?}", request.client)
        });
        match (recorded.operation, reply) {
            (Operation::Write(value), _) => self.hints[recorded.key as usize] = value,
            (Operation::CompareAndSet { new, .. }, Reply::Swapped(true)) => {
                self.hints[recorded.key as usize] = new;
            }
            (Operation::Read, Reply::Value(0, value)) => {
                self.hints[recorded.key as usize] = value;
            }
            _ => {}
        }
        if self.phase == Phase::Liveness && number >= self.healing.first_operation {
            self.healing.on_done(recorded.operation != Operation::Read);
        }
        self.ended(request.client.into(), number);
    }

    fn planted(&self, _number: u32, reply: Reply) -> Reply {
        #[cfg(any(test, feature = "plant"))]
        if self.setup.plant.as_deref() == Some("canary") && self.history.acknowledged == 50 {
            return Reply::Sum(u64::MAX);
        }
        reply
    }

    fn end(&mut self, request: &Request, number: u32, fate: Fate) {
        if self.history.end(number as usize, fate) {
            self.trace.say(self.now, || {
                format!("c{} gives {number} up: {fate:?}", request.client)
            });
            self.ended(request.client.into(), number);
        }
    }

    fn ended(&mut self, index: usize, number: u32) {
        let client = &mut self.clients[index];
        client.open.retain(|open| *open != number);
        if client.open.is_empty() {
            let at = self.now + self.random.below(self.shape.think + 1) + 1000;
            self.turn_at(index, at);
        }
    }

    /// The frontend gave up on a request; `certain` when it says that it was not executed.
    fn give_up(&mut self, request: &Request, certain: bool) {
        let index = usize::from(request.client);
        if self.clients[index].gone {
            return;
        }
        let Some(number) = request.number else { return };
        let tries = self.tries[number as usize];
        if certain && tries == 1 {
            if self.session_of(request).is_some() {
                self.clients[index].session = None;
            }
            *self.branches.entry("told not executed").or_default() += 1;
            return self.end(request, number, Fate::Failed);
        }
        let client = &self.clients[index];
        let same = client
            .session
            .as_ref()
            .is_some_and(|s| s.id == request.id.session);
        if same && client.retries && tries < TRIES_MAX && self.healing.wants_retries() {
            let client = &mut self.clients[index];
            client.again.push(number);
            if !client.again_queued {
                client.again_queued = true;
                let at = self.now + self.random.between(1, 100) * MILLISECOND;
                self.queue.push(
                    at,
                    Event::Resubmit {
                        client: index as u16,
                    },
                );
            }
            return;
        }
        if same {
            self.clients[index].session = None;
        }
        *self.branches.entry("left uncertain").or_default() += 1;
        self.end(request, number, Fate::Uncertain);
    }

    /// The client sends what it is uncertain of again, under the same sequence numbers.
    pub fn resubmit(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.again_queued = false;
        if client.gone {
            return;
        }
        if client.away_until > self.now {
            client.again_queued = true;
            let at = client.away_until;
            return self.queue.push(
                at,
                Event::Resubmit {
                    client: index as u16,
                },
            );
        }
        let mut again = std::mem::take(&mut client.again);
        again.retain(|number| self.history.get(*number as usize).fate == Fate::Open);
        again.sort_by_key(|number| self.history.get(*number as usize).id.map(|id| id.sequence));
        again.dedup();
        // The session may have been lost, or replaced, since.
        let session = client.session.as_ref().map(|session| session.id);
        let planted = self.plant_is("retry_under_new_session");
        for number in &again {
            let id = self.history.get(*number as usize).id;
            if id.map(|id| id.session) != session {
                let request = Request {
                    client: index as u16,
                    number: Some(*number),
                    id: id.unwrap_or_default(),
                    open: 0,
                    started: 0,
                };
                self.end(&request, *number, Fate::Uncertain);
            }
        }
        again.retain(|number| self.history.get(*number as usize).fate == Fate::Open);
        if again.is_empty() {
            return;
        }
        if planted {
            self.clients[index].session = None;
        }
        *self.branches.entry("client retry").or_default() += 1;
        self.send(index, Level::Ordered, &again);
    }

    /// Whether a bug of the rig's own is switched on.
    pub fn plant_is(&self, _name: &str) -> bool {
        #[cfg(any(test, feature = "plant"))]
        return self.setup.plant.as_deref() == Some(_name);
        #[cfg(not(any(test, feature = "plant")))]
        false
    }

    /// The server of a replica is gone, and with it the sessions of its clients.
    pub fn disconnect_clients(&mut self, node: usize) {
        for index in 0..self.clients.len() {
            if !matches!(self.clients[index].home, Home::Server { node: at, .. } if at == node) {
                continue;
            }
            let client = &mut self.clients[index];
            client.home = Home::Nowhere;
            client.session = None;
            client.again.clear();
            for number in std::mem::take(&mut client.open) {
                self.history.end(number as usize, Fate::Uncertain);
            }
            let at = self.now + self.random.between(1, 100) * MILLISECOND;
            self.turn_at(index, at);
        }
    }

    /// A client goes away for good.
    pub fn abandon(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.gone = true;
        client.open.clear();
    }

    /// A remote client goes away until `until`.
    pub fn send_away(&mut self, index: usize, until: u64) {
        self.clients[index].away_until = until;
        if let Some(place) = self.clients[index].place() {
            for node in 0..self.setup.replicas {
                self.break_link(node, place, Link::Down);
            }
        }
    }

    /// It comes back.
    pub fn come_back(&mut self, index: usize) {
        if self.clients[index].away_until == 0 {
            return;
        }
        self.clients[index].away_until = 0;
        if let Some(place) = self.clients[index].place() {
            for node in 0..self.setup.replicas {
                let at = self.now + self.random.between(1, 20) * MILLISECOND;
                self.network.connect_at(node, place, at, &mut self.queue);
            }
        }
        let at = self.now + MILLISECOND;
        self.turn_at(index, at);
    }

    /// A client for the last reads, at the server of `node`.
    pub fn client_at(&mut self, node: usize) -> usize {
        let boot = self.processes[node].boot;
        self.clients.push(Client {
            home: Home::Server { node, boot },
            session: None,
            open: Vec::new(),
            pipeline_max: 1,
            retries: true,
            gone: false,
            away_until: 0,
            turn_queued: true,
            again: Vec::new(),
            again_queued: false,
        });
        self.clients.len() - 1
    }

    /// Whether a client that is still here waits for an answer.
    pub fn clients_wait(&self) -> bool {
        self.clients
            .iter()
            .any(|client| !client.gone && !client.open.is_empty())
    }
}

fn line(requests: &[Request]) -> String {
    let mut out = String::new();
    for request in requests {
        let id = request.id;
        match request.number {
            None => out.push_str(&format!(
                "open {:x}/{}; ",
                id.session.owner, id.session.number
            )),
            Some(number) => out.push_str(&format!(
                "c{} {number} as {:x}/{}#{}; ",
                request.client, id.session.owner, id.session.number, id.sequence
            )),
        }
    }
    out
}

/// How long a healed world may take to converge.
pub(crate) const CONVERGE_MAX: u64 = 40 * SECOND;
