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
    clock::{MILLISECOND, SECOND},
    decisions::{Scope, Turn},
    event::Event,
    model::Call,
    network::Network,
    process::{Process, epoch},
    random::Random,
    timers::Timers,
    world::{Phase, REMOTE, World},
};
use quintet_replica::{
    BatchBuilder, BatchId, Bytes, ClientNode, ClockReading, CommandId, Executed, FrontendId,
    FrontendSetup, Input, Level, ReplicaId, RequestKind, SessionId, SnapshotInfo, Submission, Time,
    World as Outside,
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
    pub kind: RequestKind,
}

/// The server of one run of a replica.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub owner: u64,
    pub started: u64,
    pub sessions: u64,
    pub batches: u64,
    pub open: BTreeMap<u64, Vec<Request>>,
    pub ordered: Vec<Request>,
    pub reads: Vec<Request>,
    pub stale: Vec<Request>,
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
            Level::Linearizable => self.reads.append(&mut requests),
            Level::Stale => self.stale.append(&mut requests),
        }
    }
}

/// A client's session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub id: SessionId,
    pub started: u64,
    pub opened: bool,
    pub next: u64,
    /// Sequence numbers without an answer, ascending.
    pub unanswered: Vec<u64>,
}

/// A frontend that runs without a replica.
pub(crate) struct Remote {
    pub place: usize,
    pub driver: Option<ClientNode>,
    pub batches: u64,
    pub open: BTreeMap<u64, Vec<Request>>,
    pub timers: Timers,
    pub owner: u64,
    /// When it began, as the log's clock has it: the same for all its sessions, so that an owner
    /// that was outlived cannot come back.
    pub started: u64,
    pub sessions: u64,
}

pub(crate) enum Home {
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
    pub home: Home,
    pub session: Option<Session>,
    /// Operations without an end.
    pub open: Vec<u32>,
    pub pipeline_max: u64,
    pub retries: bool,
    pub gone: bool,
    pub away_until: u64,
    pub turn_queued: bool,
    pub again: Vec<u32>,
    pub again_queued: bool,
    /// Keys that it watches, with their versions.
    pub watching: Vec<(Bytes, u64)>,
    /// Its next transaction depends on them.
    pub sends_watched: bool,
    /// Counts when it stopped watching without a transaction: as if it had connected again.
    pub connection: u32,
}

/// How an operation was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    pub level: Level,
    /// The keys that a transaction depends on.
    pub watched: Vec<(Bytes, u64)>,
    /// The client's connection, see [`Client`].
    pub connection: u32,
    /// The server that it was given to, and its run.
    pub server: Option<(usize, u32)>,
}

/// The environment of a remote frontend.
pub(crate) struct View<'a> {
    pub now: u64,
    pub network: &'a Network,
    pub place: usize,
    /// By how much its clock says that it may be off.
    pub uncertainty: u64,
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
            deviation: self.uncertainty,
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

/// The id of a read that is not ordered: no session, and the operation's number.
pub(crate) fn read_id(number: u32) -> CommandId {
    CommandId {
        session: SessionId::default(),
        sequence: u64::from(number) + 1,
    }
}

/// How long a batch may take before its frontend gives up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);
/// How often an operation is sent before its client gives up.
pub(crate) const TRIES_MAX: u8 = 5;

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
                        started: 1_700_000_000_000_000_000,
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
                watching: Vec::new(),
                sends_watched: false,
                connection: 0,
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
    /// Starts the clients.
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
                let found = |name: &str| quintet_protocols::find(name).ok();
                match ClientNode::new(setup, &self.setup.entry, found, seed) {
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
        self.ask_about_past(index);
        let outer = self.random.enter(Scope::Client(index as u16));
        let checked = self.phase == Phase::Liveness;
        match self.random.turn(index, self.now, checked) {
            Turn::Now => {}
            Turn::Later(at) => {
                self.random.enter(outer);
                return self.turn_at(index, at);
            }
            Turn::Never => {
                self.random.enter(outer);
                return;
            }
        }
        let ends = self.mix.ends;
        if self.random.chance(ends) {
            self.end_session(index);
        }
        let calls = self.draw_calls(index);
        self.random
            .does(|| calls.iter().map(ToString::to_string).collect());
        self.invoke(index, calls);
        self.random.enter(outer);
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
        // A replica without a vote serves no client.
        let serves = |process: &Process| {
            let node = process.node.as_ref();
            node.is_some_and(|node| !node.is_learner())
        };
        let up: Vec<usize> = (0..self.replicas_max())
            .filter(|node| serves(&self.processes[*node]) && !self.is_out(*node))
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

    /// The client invokes these operations, in one batch.
    pub fn invoke(&mut self, index: usize, calls: Vec<Call>) {
        let reads = calls.iter().all(Call::is_read);
        let watches =
            self.clients[index].sends_watched || calls.iter().any(|call| call.name() == b"WATCH");
        let (stale, ordered) = (self.mix.stale, self.mix.ordered);
        let level = match reads {
            false => Level::Ordered,
            // The version of a watched key may be old, but what is looked at then must not be.
            true if !watches && self.phase == Phase::Safety && self.random.chance(stale) => {
                Level::Stale
            }
            // The last reads must show what each replica has, without putting anything into the order.
            true if self.healing.wants_operations && self.random.chance(ordered) => Level::Ordered,
            true => Level::Linearizable,
        };
        if calls.len() > 1 {
            *self.branches.entry("client: pipeline").or_default() += 1;
        }
        let server = match self.clients[index].home {
            Home::Server { node, boot } => Some((node, boot)),
            _ => None,
        };
        let mut numbers = Vec::with_capacity(calls.len());
        for call in calls {
            let client = &mut self.clients[index];
            let watched = match call.is_transaction() && client.sends_watched {
                true => std::mem::take(&mut client.watching),
                false => Vec::new(),
            };
            let connection = client.connection;
            if !watched.is_empty() {
                client.sends_watched = false;
            }
            let number = self.history.operations().len();
            self.trace.say(self.now, || {
                format!("c{index} invokes {number}: {call} ({level:?})")
            });
            let number = self.history.invoke(index as u16, 0, call) as u32;
            self.tries.push(0);
            self.manners.push(Manner {
                level,
                watched,
                connection,
                server,
            });
            numbers.push(number);
        }
        self.clients[index].open.extend_from_slice(&numbers);
        self.send(index, level, &numbers);
    }

    /// The client ends its session; it opens another when it needs one.
    fn end_session(&mut self, index: usize) {
        let Some(session) = self.clients[index]
            .session
            .take_if(|session| session.opened)
        else {
            return;
        };
        *self.branches.entry("client: session ended").or_default() += 1;
        let id = CommandId {
            session: session.id,
            sequence: 0,
        };
        let kind = match self.random.chance(500) {
            true => RequestKind::Close,
            false => RequestKind::Renew,
        };
        if kind == RequestKind::Renew {
            // It stays after all: its owner says that it is still there.
            self.clients[index].session = Some(session);
        }
        let request = Request {
            client: index as u16,
            number: None,
            id,
            open: 0,
            started: 0,
            kind,
        };
        match self.clients[index].home {
            Home::Server { node, .. } => self.give_requests(node, Level::Ordered, vec![request]),
            Home::Remote(_) => self.submit_remote(index, Level::Ordered, vec![request]),
            Home::Nowhere => {}
        }
    }

    /// Sends operations, for the first time or again, in one batch.
    pub fn send(&mut self, index: usize, level: Level, numbers: &[u32]) {
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
                    kind: RequestKind::Open,
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
                self.numbers.insert(command, (*number).into());
                self.held.sent(command);
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
                    kind: RequestKind::Command,
                });
            }
        } else {
            requests.extend(numbers.iter().map(|number| Request {
                client,
                number: Some(*number),
                id: read_id(*number),
                open: 0,
                started: 0,
                kind: RequestKind::Command,
            }));
        }
        match self.clients[index].home {
            Home::Server { node, .. } => self.give_requests(node, level, requests),
            Home::Remote(_) => self.submit_remote(index, level, requests),
            Home::Nowhere => {}
        }
    }

    pub fn ensure_session(&mut self, index: usize) {
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
                (remote.owner, remote.sessions, remote.started)
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

    /// The bytes of an operation.
    pub fn payload(&self, number: u64) -> Vec<u8> {
        let (call, manner) = (
            &self.history.get(number as usize).operation,
            &self.manners[number as usize],
        );
        let behind = self.mix.retains(number, call);
        let behind = behind.as_ref().map(|words| &words[..]);
        let service = self.mix.service;
        service.encode(number, call, &manner.watched, behind)
    }

    pub fn encode(
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
                    let started = request.started.to_le_bytes();
                    let past: Vec<u8>;
                    let payload: &[u8] = match request.kind {
                        RequestKind::Open => &started,
                        RequestKind::Past | RequestKind::Tick => {
                            past = self.past.payload(request);
                            &past
                        }
                        _ => &[],
                    };
                    batch.push(request.id, request.kind, 0, payload);
                }
                Some(number) => {
                    let payload = self.payload(number.into());
                    batch.push(request.id, RequestKind::Command, request.open, &payload);
                }
            }
        }
        batch.finish(frontend, id, level)
    }

    /// The server hands over what its clients sent since the last time: one batch per level.
    pub fn flush_server(&mut self, index: usize) {
        for level in [Level::Ordered, Level::Linearizable, Level::Stale] {
            let process = &mut self.processes[index];
            let Some(node) = &process.node else { return };
            let frontend = node.frontend();
            let waiting = match level {
                Level::Ordered => &mut process.server.ordered,
                Level::Linearizable => &mut process.server.reads,
                Level::Stale => &mut process.server.stale,
            };
            if waiting.is_empty() {
                continue;
            }
            let requests = std::mem::take(waiting);
            process.server.batches += 1;
            let id = BatchId(process.server.batches);
            let deadline = process.clock.now(self.now) + TIMEOUT;
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

    pub fn submit_remote(&mut self, index: usize, level: Level, requests: Vec<Request>) {
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
        let deadline = Time(self.now) + TIMEOUT;
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
}

pub(crate) fn line(requests: &[Request]) -> String {
    let mut out = String::new();
    for request in requests {
        let id = request.id;
        match request.number {
            None => out.push_str(&format!(
                "{:?} {:x}/{}; ",
                request.kind, id.session.owner, id.session.number
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
/// How long clients think at most where writes continue until everybody is near.
pub(crate) const STEADY_THINK: u64 = 20 * MILLISECOND;
