//! The Redis server without its sockets.
//!
//! ```text
//!   on_input ─► ready ─► serve: drain one pipeline ─┬─ replies made here ─► output
//!                                                   ├─ only reads ─► linearizable ─┐ one batch
//!                                                   │   (READONLY)   or stale ─────┤ of each kind
//!                                                   └─ any write ──► ordered ──────┤
//!                                                        (parked until the         │ per collect
//!                                                         owner is registered)     ▼
//!   output ◄── deliver, fail ◄── on_done(batch) ◄──────── the replica ◄──── Submission
//! ```
//!
//! A connection has at most one request in flight, or one in each group that its commands are for
//! (see `parts.rs`); what it sends meanwhile waits in its input, so its commands are executed and
//! answered in order. Large requests, and those of connections whose last reply was large, are
//! `held` and go one by one in batches of their own (see `shares.rs`).

use super::{
    Counters, GatewayConfig, NodeView, ShardLoad,
    active_groups::ActiveGroups,
    admission::Admission,
    batches::{Entry, InFlight, Pending, Window},
    connection::{Connection, Phase},
    group_queue::{BatchKind, GroupQueue},
    operator::Operators,
    output::Output,
    parts::Parts,
    pipeline::Drained,
    resp,
    sessions::Standing,
    shares::{Among, Shares},
};
use crate::{config::time_for, system::growth};
use bytes::{Bytes, BytesMut};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet_replica::{
    BatchId, CommandId, FrontendId, GroupId, Level, RequestKind, Submission, Time, limits,
};
use quintet_store::{CommandSpec, RequestBuilder};
use std::{collections::VecDeque, net::SocketAddr};

/// A connection's number; small, and used again after the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);

/// Between the seeds of two groups' owners.
const SEED_STEP: u64 = 0xd1b5_4a32_d192_ed03;
/// A connection with a request in progress may send this much ahead.
const INPUT_AHEAD_MAX: usize = 256 << 10;
/// Room made at once for an argument that is announced, once some of it has come …
const ANNOUNCED_MAX: usize = 1 << 20;
/// … namely so much.
const ANNOUNCED_BEGUN: usize = 4 << 10;
/// Input that is read in one turn finds so much room, beyond the argument's end, too: a buffer that
/// is short of a few bytes would be copied to one of twice its size.
const ROOM_MIN: usize = INPUT_AHEAD_MAX + (64 << 10);
/// Empty buffers larger than this are given back.
pub(super) const BUFFER_KEPT: usize = 64 << 10;

/// A request that waits for the owner's registration, or because the batch that it was in had too
/// much to answer.
#[derive(Debug)]
pub(super) struct Parked {
    pub connection: usize,
    pub kind: BatchKind,
    pub payload: Bytes,
    pub deadline: Time,
    pub not_before: Time,
    /// As [`Connection::weight`] was; 0 for a request that may share a batch.
    pub weight: usize,
    /// The request queue was full.
    pub busy: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Gateway {
    pub(super) config: GatewayConfig,
    pub(super) limits: resp::Limits,
    /// No longer request is made, whatever the limits of its parts come to.
    pub(super) request_bytes_max: usize,
    frontend: FrontendId,
    pub(super) view: NodeView,
    /// The disk is full: writes are refused.
    pub(super) read_only: bool,
    /// The disk hangs: what is refused will not find room soon.
    pub(super) refuses: bool,
    pub(super) counters: Counters,
    pub(super) started: Time,
    pub(super) now: Time,
    pub(super) clock: u64,
    pub(super) connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    client_next: u64,
    ready: VecDeque<usize>,
    /// Connections with commands to serve whose clients do not read their replies.
    stalled: Vec<usize>,
    pub(super) shares: Shares,
    dirty: Vec<ConnectionId>,
    pub(super) builder: RequestBuilder,
    pub(super) parts: Parts,
    pub(super) spec_last: Option<&'static CommandSpec>,
    pub(super) reply: Vec<u8>,
    /// How much the replies made here for the connection being served have cost.
    pub(super) replied: usize,
    /// By group; one unless keys are divided among several.
    pub(super) groups: Vec<GroupQueue>,
    pub(super) active: ActiveGroups,
    pub(super) in_flight: HashMap<u64, InFlight, FixedState>,
    spare_entries: Vec<Vec<Entry>>,
    batch_next: u64,
    pub(super) parked: VecDeque<Parked>,
    /// Connections whose read of the past waits for its time.
    pub(super) past_waits: Vec<usize>,
    /// Those whose read has just ended without a result.
    pub(super) past_ended: Vec<usize>,
    pub(super) scan_at: Time,
    pub(super) admission: Admission,
    /// The bytes owed to all clients at the latest look, and the counter of bytes then.
    outputs: (usize, u64),
    pub(super) operators: Operators,
    pub(super) shutting_down: bool,
}

impl Gateway {
    /// A gateway without connections. `seed` must be different at every start of the process.
    #[must_use]
    pub fn new(mut config: GatewayConfig, frontend: FrontendId, seed: u64) -> Self {
        let limits = resp::Limits {
            argument_bytes_max: config.value_bytes_max,
            command_bytes_max: config.command_bytes_max.max(config.value_bytes_max),
        };
        let longest = limits.command_bytes_max.saturating_mul(2);
        config.inputs_bytes_max = config.inputs_bytes_max.max(longest);
        let ids = (config.shards.as_ref()).map_or_else(|| vec![GroupId(0)], |it| it.groups());
        let seeds = (0..).map(|nth: u64| seed.wrapping_add(nth.wrapping_mul(SEED_STEP)));
        let groups = ids.into_iter().zip(seeds);
        let groups = groups.map(|(id, seed)| GroupQueue::new(id, seed)).collect();
        Self {
            limits,
            request_bytes_max: limits::request_bytes_max(limits::VALUE_BYTES_LIMIT),
            frontend,
            view: NodeView::default(),
            read_only: false,
            refuses: false,
            counters: Counters::default(),
            started: Time::NEVER,
            now: Time(0),
            clock: 0,
            connections: Vec::new(),
            free: Vec::new(),
            client_next: 1,
            ready: VecDeque::new(),
            stalled: Vec::new(),
            shares: Shares::default(),
            dirty: Vec::new(),
            builder: RequestBuilder::new(),
            parts: Parts::default(),
            spec_last: None,
            reply: Vec::new(),
            replied: 0,
            groups,
            active: ActiveGroups::default(),
            in_flight: HashMap::default(),
            spare_entries: Vec::new(),
            batch_next: 1,
            parked: VecDeque::new(),
            past_waits: Vec::new(),
            past_ended: Vec::new(),
            scan_at: Time::NEVER,
            admission: Admission::new(seed),
            outputs: (0, 0),
            operators: Operators::default(),
            shutting_down: false,
            config,
        }
    }

    /// The id that it puts into its batches.
    #[must_use]
    pub const fn frontend(&self) -> FrontendId {
        self.frontend
    }

    /// A client has connected.
    ///
    /// # Errors
    /// The bytes to write to it before closing, when it cannot be served.
    pub fn connect(&mut self, now: Time, peer: SocketAddr) -> Result<ConnectionId, Vec<u8>> {
        self.pass_time(now);
        if let Err(refusal) = self.check_admission(peer) {
            self.counters.connections_rejected += 1;
            return Err(refusal.to_vec());
        }
        self.counters.connections_open += 1;
        self.counters.connections_total += 1;
        let authenticated = self.config.password.is_none();
        let client = self.client_next;
        let connection = Box::new(Connection::new(client, peer, authenticated, now));
        self.client_next += 1;
        if !self.config.idle_max.is_zero() {
            self.scan_at = self.scan_at.min(now + self.config.idle_max);
        }
        let index = match self.free.pop() {
            Some(index) => {
                self.connections[index] = Some(connection);
                index
            }
            None => {
                self.connections.push(Some(connection));
                self.connections.len() - 1
            }
        };
        self.on_admitted(index, client, peer);
        Ok(ConnectionId(index))
    }

    fn open_mut(&mut self, id: ConnectionId) -> &mut Connection {
        let connection = self
            .connections
            .get_mut(id.0)
            .and_then(Option::as_deref_mut);
        connection
            .filter(|connection| !connection.gone)
            .expect("the connection is open")
    }

    fn open(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = self.connections.get(id.0)?.as_deref()?;
        (!connection.gone).then_some(connection)
    }

    /// Where to append what the client sent; call [`Self::on_input`] afterwards.
    ///
    /// # Panics
    /// When the connection is not open.
    #[inline]
    pub fn input(&mut self, id: ConnectionId) -> &mut BytesMut {
        &mut self.open_mut(id).input
    }

    /// Bytes were appended to the connection's input.
    #[inline]
    pub fn on_input(&mut self, id: ConnectionId, now: Time) {
        self.pass_time(now);
        let connection = self.open_mut(id);
        connection.client.last_input = now;
        if connection.closing {
            connection.input.clear();
        } else if connection.phase == Phase::Free && !connection.queued {
            connection.queued = true;
            self.ready.push_back(id.0);
        }
        self.count_input(id.0);
    }

    /// The client will send nothing more, but may still read: what it has sent is answered, then
    /// [`Self::should_close`]. Without this call the end of its input is the client's own affair.
    pub fn on_input_ended(&mut self, id: ConnectionId, now: Time) {
        self.on_input(id, now);
        let Some(mut connection) = self.connections[id.0].take() else {
            return;
        };
        connection.ended = true;
        self.connections[id.0] = Some(connection);
    }

    /// The client has gone; its id is not used again before its request in progress has ended.
    ///
    /// # Panics
    /// When the connection is not open.
    pub fn on_closed(&mut self, id: ConnectionId) {
        self.counters.connections_open -= 1;
        let peer = self.open_mut(id).client.peer;
        self.on_left(peer);
        let connection = self.open_mut(id);
        if connection.phase == Phase::Free {
            self.release(id.0);
        } else {
            connection.gone = true;
            connection.forget_unfinished();
            connection.output.clear();
            self.count_input(id.0);
        }
    }

    /// Ends a slot whose client has gone and that waits for nothing.
    pub(super) fn release(&mut self, index: usize) {
        if let Some(mut connection) = self.connections[index].take() {
            self.shares.inputs -= connection.counted;
            while let Some(group) = connection.sessions.groups().last() {
                self.abandon_session(&mut connection, group);
            }
            self.free.push(index);
        }
    }

    /// The connection's session in a group ends; its next write there opens another.
    pub(super) fn abandon_session(&mut self, connection: &mut Connection, group: usize) {
        if let Some(session) = connection.sessions.take(group) {
            self.groups[group].close(session.id, self.now);
            self.visit(group);
        }
    }

    pub(super) fn mark_dirty(&mut self, index: usize, connection: &mut Connection) {
        if !connection.dirty && !connection.gone {
            connection.dirty = true;
            self.dirty.push(ConnectionId(index));
        }
    }

    fn pass_time(&mut self, now: Time) {
        self.started = self.started.min(now);
        self.now = now;
    }

    // --- requests on their way in ------------------------------------------------------------

    /// Builds at most one batch of each level from what clients have sent. Call it when all
    /// readable sockets have been read, and again after [`Self::on_done`]. `clock_ns` is
    /// nanoseconds since the Unix epoch.
    pub fn collect(&mut self, now: Time, clock_ns: u64, submissions: &mut Vec<Submission>) {
        self.pass_time(now);
        self.clock = clock_ns;
        for index in std::mem::take(&mut self.stalled) {
            self.make_ready(index);
        }
        self.push_parked(now, submissions);
        if !self.past_waits.is_empty() {
            self.wake_past(now, submissions);
        }
        // Each connection once: one that is ready again has had its turn.
        for _ in 0..self.ready.len() {
            if self.is_full() {
                break;
            }
            if let Some(index) = self.ready.pop_front() {
                self.serve(index, false);
                self.submit_full(now, submissions);
            }
        }
        self.serve_held(now, submissions);
        self.push_own_requests(now);
        self.submit_if(now, submissions, |pending, window| {
            pending.may_go(now, window)
        });
    }

    pub(super) fn pending(&self, kind: BatchKind) -> &Pending {
        self.groups[kind.group].pending(kind.level)
    }

    pub(super) fn pending_mut(&mut self, kind: BatchKind) -> &mut Pending {
        self.groups[kind.group].pending_mut(kind.level)
    }

    pub(super) const fn window(&self, level: Level) -> Window {
        let batches_max = match level {
            Level::Ordered => self.config.ordered_batches_max,
            _ => self.config.linearizable_batches_max,
        };
        Window {
            batches_max,
            full_batches_max: self.config.full_batches_max,
            interval: self.config.batch_interval,
            bytes: self.config.batch_bytes,
            requests: self.config.batch_requests,
        }
    }

    fn make_ready(&mut self, index: usize) {
        if let Some(connection) = &mut self.connections[index]
            && !connection.queued
            && connection.phase == Phase::Free
        {
            connection.queued = true;
            self.ready.push_back(index);
        }
    }

    pub(super) fn serve(&mut self, index: usize, held: bool) {
        let Some(mut connection) = self.connections[index].take() else {
            return;
        };
        connection.queued = false;
        connection.weight_in_flight = if held { connection.weight() } else { 0 };
        if connection.phase == Phase::Free && !connection.gone && !connection.closing {
            if !held && connection.weight() > 0 {
                connection.queued = true;
                self.shares.held.push_back(index);
            } else {
                self.serve_connection(index, &mut connection);
            }
        }
        self.connections[index] = Some(connection);
        self.count_input(index);
    }

    fn serve_connection(&mut self, index: usize, connection: &mut Connection) {
        if connection.output.len() >= self.config.output_bytes_soft {
            self.stalled.push(index);
            return;
        }
        let output_before = connection.output.len();
        let drained = self.drain(connection);
        connection.request_since = self.now;
        connection.request_commands = self.builder.commands() + self.parts.commands();
        connection.closing |= connection.ended && drained == Drained::Nothing;
        let payload_bytes = self.builder.len() + self.parts.bytes();
        if payload_bytes > self.request_bytes_max {
            return self.refuse_request(index, connection);
        }
        if payload_bytes > 0 {
            let large = connection.weight_in_flight > 0;
            (self.shares).note_request(&mut connection.seen, large, self.now);
        }
        match drained {
            Drained::Nothing => {}
            Drained::More => {
                connection.queued = true;
                // The EXEC of a large transaction comes next.
                match connection.weight_in_flight == 0 && connection.weight() > 0 {
                    true => self.shares.held.push_back(index),
                    false => self.ready.push_back(index),
                }
            }
            Drained::Change => {
                connection.phase = Phase::Change;
                self.ask_operator(index);
            }
            Drained::Past => self.begin_past(index, connection),
            Drained::Reads | Drained::Watch => {
                connection.phase = if drained == Drained::Reads {
                    Phase::Request
                } else {
                    Phase::Watch
                };
                // A client that watches keys asks about their newest versions.
                let level = match connection.client.stale && drained == Drained::Reads {
                    true => Level::Stale,
                    false => Level::Linearizable,
                };
                self.push_built(index, connection, level);
            }
            Drained::Writes => {
                connection.phase = Phase::Request;
                self.push_built(index, connection, Level::Ordered);
            }
            Drained::Parts => self.push_parts(index, connection),
        }
        if payload_bytes > BUFFER_KEPT * 16 {
            self.builder = RequestBuilder::new();
        }
        if connection.input.is_empty() && connection.input.capacity() > BUFFER_KEPT {
            connection.input = BytesMut::new();
        }
        if connection.phase == Phase::Free && !connection.input.is_empty() {
            let missing = connection.parser.missing(connection.input.len());
            // Announced bytes cost nothing.
            let come = connection.input.len();
            let wanted = missing + (ROOM_MIN - INPUT_AHEAD_MAX);
            if come < ANNOUNCED_BEGUN {
                connection.input.reserve(missing.min(come));
            } else if connection.input.capacity() - come < wanted.min(ROOM_MIN) {
                let room = growth(come, wanted, ANNOUNCED_MAX);
                connection.input.reserve(room);
            }
            let partial_max = self.config.partial_max;
            if !partial_max.is_zero() {
                self.scan_at = self.scan_at.min(self.now + partial_max);
            }
        }
        if connection.output.len() != output_before || connection.closing {
            self.counters.output_bytes += (connection.output.len() - output_before) as u64;
            self.check_output(connection);
            self.mark_dirty(index, connection);
        }
    }

    /// The gathered request is longer than the following stages take, though each part was within
    /// its limit: no batch is made of it, because one that no frame takes could never be sent.
    #[cold]
    fn refuse_request(&mut self, index: usize, connection: &mut Connection) {
        let builder = std::mem::take(&mut self.builder);
        let (bytes, bytes_max) = (builder.len(), self.request_bytes_max);
        tracing::error!(client = %connection.client.peer, bytes, bytes_max, "request refused");
        let text = format!("ERR request exceeds {bytes_max} bytes ({bytes}): not executed");
        self.payload_errors(connection, connection.group, builder.as_bytes(), &text);
        connection.closing = true;
        self.mark_dirty(index, connection);
    }

    pub(super) fn push_read(&mut self, kind: BatchKind, index: usize, payload: &[u8]) {
        let (now, id) = (self.now, CommandId::default());
        let (entry, request) = (Entry::Read(index), RequestKind::Command);
        self.pending_mut(kind)
            .push(entry, id, request, payload, now);
        self.on_pushed(kind);
    }

    pub(super) fn push_ordered(
        &mut self,
        index: usize,
        connection: &mut Connection,
        group: usize,
        payload: &[u8],
    ) {
        let queue = &mut self.groups[group];
        queue.push_command(index, connection, (group, payload), self.now);
        self.on_pushed(BatchKind::ordered(group));
    }

    /// The request that has been built is for the connection's group.
    fn push_built(&mut self, index: usize, connection: &mut Connection, level: Level) {
        let builder = std::mem::take(&mut self.builder);
        let weight = connection.weight_in_flight;
        self.push_request(index, connection, level, builder.as_bytes(), weight);
        self.builder = builder;
    }

    fn push_parked(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        for _ in 0..self.parked.len() {
            if self.is_full() {
                return;
            }
            let Some(parked) = self.parked.pop_front() else {
                return;
            };
            if parked.kind.level == Level::Ordered {
                self.replace_lapsed_owner(parked.kind.group);
            }
            if parked.not_before > now
                || !self.takes(parked.kind)
                || parked.weight > 0 && !self.shares.takes(parked.weight)
            {
                self.parked.push_back(parked);
                continue;
            }
            let index = parked.connection;
            let Some(mut connection) = self.connections[index].take() else {
                continue;
            };
            let gone = connection.gone;
            connection.parked -= parked.payload.len();
            if !gone {
                if parked.weight > 0 {
                    self.submit_all(now, submissions);
                }
                match parked.kind.level {
                    Level::Ordered => {
                        let group = parked.kind.group;
                        self.push_ordered(index, &mut connection, group, &parked.payload);
                    }
                    _ => self.push_read(parked.kind, index, &parked.payload),
                }
            }
            if gone {
                self.resume(index, connection);
                continue;
            }
            self.connections[index] = Some(connection);
            self.count_input(index);
            if parked.weight > 0 {
                self.submit_alone(parked.kind, parked.weight, now, submissions);
            }
        }
    }

    /// Whether requests of this kind can go: ordered ones need the owner's registration.
    fn takes(&self, kind: BatchKind) -> bool {
        let standing = self.groups[kind.group].owner.standing;
        kind.level != Level::Ordered || standing == Standing::Registered
    }

    /// Orders the server's own requests in a group.
    pub(super) fn push_own(&mut self, group: usize, now: Time) {
        let limit = self.memory_limit_due(group, now);
        let waits = |parked: &Parked| parked.kind == BatchKind::ordered(group);
        let waited_for = || self.parked.iter().any(waits);
        let queue = &mut self.groups[group];
        queue.push_own(
            limit,
            waited_for,
            (now, self.clock),
            self.config.session_lifetime,
        );
    }

    /// Whether the store is to be told now that it should refuse (or take again) what needs
    /// memory. Only the leading replica tells, so that not all do.
    pub(super) fn memory_limit_due(&self, group: usize, now: Time) -> Option<bool> {
        let limit = &self.groups[group].memory_limit;
        let ShardLoad {
            leads,
            memory,
            refuses,
        } = self.load(group);
        let max = match &self.config.shards {
            Some(shards) => shards.memory_max(self.config.memory_max),
            None => self.config.memory_max,
        };
        if !leads || limit.in_progress || now < limit.not_before || self.shutting_down {
            return None;
        }
        // The store itself says what was told last: by whichever leader, or before a restart.
        let refuse = match max {
            0 => false,
            max if memory > max => true,
            max if memory <= max - max / 20 => false,
            _ => return None,
        };
        (refuses != refuse).then_some(refuse)
    }

    /// A group, as this replica has it.
    fn load(&self, group: usize) -> ShardLoad {
        if self.config.shards.is_some() {
            return self.view.shards.get(group).copied().unwrap_or_default();
        }
        let node = &self.view.node;
        ShardLoad {
            leads: self.view.leads,
            memory: node.memory,
            refuses: node.refuses_writes,
        }
    }

    pub(super) fn submit(&mut self, kind: BatchKind, now: Time, submissions: &mut Vec<Submission>) {
        let level = kind.level;
        let id = BatchId(self.batch_next);
        self.batch_next += 1;
        let (frontend, spare) = (self.frontend, self.spare_entries.pop());
        let pending = self.pending_mut(kind);
        pending.in_flight += 1;
        let entries = std::mem::replace(&mut pending.entries, spare.unwrap_or_default());
        let batch = pending.batch.finish(frontend, id, level);
        pending.bytes_last = batch.len();
        let since = pending.since;
        let deadline = since + self.config.client_deadline + time_for(batch.len());
        match level {
            Level::Ordered => self.counters.batches_ordered += 1,
            Level::Linearizable => self.counters.batches_linearizable += 1,
            Level::Stale => self.counters.batches_stale += 1,
        }
        self.counters.batches_in_flight += 1;
        self.counters.bytes_in_flight += batch.len() as u64;
        let in_flight = InFlight {
            kind,
            batch: batch.clone(),
            entries,
            submitted: now,
            weight: 0,
        };
        self.in_flight.insert(id.0, in_flight);
        self.on_submitted();
        submissions.push(Submission {
            id,
            level,
            batch,
            deadline,
        });
    }

    /// Takes a finished batch out of those in progress.
    pub(super) fn finish_batch(&mut self, batch: BatchId, now: Time) -> Option<InFlight> {
        self.pass_time(now);
        let in_flight = self.in_flight.remove(&batch.0)?;
        let took = now.since(in_flight.submitted);
        let counted = match in_flight.kind.level {
            Level::Ordered => &mut self.counters.ordered_nanoseconds,
            Level::Linearizable => &mut self.counters.linearizable_nanoseconds,
            Level::Stale => &mut self.counters.stale_nanoseconds,
        };
        *counted += took.as_nanos() as u64;
        self.pending_mut(in_flight.kind).on_done(took, now);
        self.visit(in_flight.kind.group);
        self.counters.batches_in_flight -= 1;
        self.counters.bytes_in_flight -= in_flight.batch.len() as u64;
        if in_flight.weight > 0 {
            // The time for the network and the disk does not count.
            let shortest = self.pending_mut(in_flight.kind).shortest();
            let took = took.saturating_sub(shortest);
            let among = Among {
                members: self.config.members,
                deadline: self.config.client_deadline,
            };
            (self.shares).note_large(in_flight.weight, took, among, now);
        }
        Some(in_flight)
    }

    pub(super) fn keep_entries(&mut self, mut entries: Vec<Entry>) {
        if self.spare_entries.len() < 4 && entries.capacity() <= 16_384 {
            entries.clear();
            self.spare_entries.push(entries);
        }
    }

    /// The connection's request has ended and its reply stands in the output, or is kept until others
    /// have ended that it made together with it.
    pub(super) fn resume(&mut self, index: usize, mut connection: Box<Connection>) {
        if connection.spread.is_some() && !self.end_part(&mut connection) {
            self.connections[index] = Some(connection);
            self.count_input(index);
            return;
        }
        connection.phase = Phase::Free;
        connection.parked = 0;
        connection.weight_in_flight = 0;
        connection.database_after = None;
        connection.command_ended();
        let gone = connection.gone;
        if !gone {
            self.check_output(&mut connection);
            let more = !connection.input.is_empty() || connection.ended;
            if more && !connection.queued && !connection.closing {
                connection.queued = true;
                self.ready.push_back(index);
            }
            self.mark_dirty(index, &mut connection);
        }
        self.connections[index] = Some(connection);
        if gone {
            self.release(index);
        } else {
            self.count_input(index);
        }
    }

    /// Drops a client that does not read what it asked for; and when all together are owed more
    /// than may be, the one that is owed most.
    fn check_output(&mut self, connection: &mut Connection) {
        let own = connection.output.len();
        if own > self.config.output_bytes_max {
            return self.drop_slow(connection, "one client");
        }
        // The bytes owed to all are no more than at the latest look and those added since.
        let (looked, then) = self.outputs;
        let added = self.counters.output_bytes.saturating_sub(then);
        if looked as u64 + added <= self.config.outputs_bytes_max as u64 {
            return;
        }
        let owed = |(index, other): (usize, &Option<Box<Connection>>)| {
            Some((other.as_ref()?.output.len(), index))
        };
        let others = self.connections.iter().enumerate().filter_map(owed);
        let (mut total, mut most) = (own, None);
        for (bytes, index) in others {
            total += bytes;
            if bytes > own && most.is_none_or(|(other, _)| bytes > other) {
                most = Some((bytes, index));
            }
        }
        self.outputs = (total, self.counters.output_bytes);
        if total <= self.config.outputs_bytes_max {
            return;
        }
        let slowest = most.and_then(|(_, index)| Some((index, self.connections[index].take()?)));
        match slowest {
            Some((index, mut slowest)) => {
                self.drop_slow(&mut slowest, "all clients together");
                self.mark_dirty(index, &mut slowest);
                self.connections[index] = Some(slowest);
            }
            None => self.drop_slow(connection, "all clients together"),
        }
    }

    fn drop_slow(&mut self, connection: &mut Connection, whose: &str) {
        let (client, bytes) = (connection.client.peer, connection.output.len());
        tracing::warn!(
            %client, bytes,
            "disconnected: it does not read its replies, and {whose} may be owed no more"
        );
        connection.output.clear();
        connection.closing = true;
        self.counters.connections_dropped += 1;
    }

    // --- what the event loop asks --------------------------------------------------------------

    /// The bytes to write to the client; the event loop takes from its front.
    ///
    /// # Panics
    /// When the connection is not open.
    #[inline]
    pub fn output(&mut self, id: ConnectionId) -> &mut Output {
        &mut self.open_mut(id).output
    }

    /// Takes the connections whose output or state ([`Self::should_close`],
    /// [`Self::wants_read`]) has changed since the last call. All of them are open.
    pub fn take_dirty(&mut self, dirty: &mut Vec<ConnectionId>) {
        for id in self.dirty.drain(..) {
            if let Some(connection) = &mut self.connections[id.0]
                && connection.dirty
                && !connection.gone
            {
                connection.dirty = false;
                dirty.push(id);
            }
        }
    }

    /// Whether the connection is to be closed as soon as its output has been written.
    #[must_use]
    pub fn should_close(&self, id: ConnectionId) -> bool {
        self.open(id).is_some_and(Connection::is_finished)
    }

    /// Whether more input of this connection is welcome now. When it was not and is again, the
    /// connection is among [`Self::take_dirty`], unless that is because its output was written.
    #[must_use]
    pub fn wants_read(&self, id: ConnectionId) -> bool {
        let Some(connection) = self.open(id) else {
            return false;
        };
        let full = connection.output.len() >= self.config.output_bytes_soft;
        if connection.closing || connection.ended || full {
            return false;
        }
        // A command that is longer than that must be let in while nothing else can continue.
        let waits = connection.phase != Phase::Free || connection.queued;
        !waits || connection.input.len() < INPUT_AHEAD_MAX
    }

    /// When [`Self::on_time`] and [`Self::collect`] have something to do at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Time {
        let mut next = self.scan_at.min(self.operators.next_deadline());
        next = next.min(self.past_wakes());
        if !self.is_full() {
            if !self.ready.is_empty() {
                next = Time(0);
            } else if self.may_serve_held(Time::NEVER) {
                next = next.min(self.shares.not_before);
            }
        }
        next = next.min(self.groups_deadline());
        for parked in &self.parked {
            next = next.min(parked.deadline);
            if self.takes(parked.kind)
                && !self.is_full()
                && (parked.weight == 0 || self.shares.takes(parked.weight))
            {
                next = next.min(parked.not_before);
            }
        }
        next
    }

    /// Time has come; call [`Self::collect`] and [`Self::take_dirty`] afterwards.
    pub fn on_time(&mut self, now: Time) {
        self.pass_time(now);
        for _ in 0..self.parked.len() {
            let Some(parked) = self.parked.pop_front() else {
                break;
            };
            if parked.deadline > now {
                self.parked.push_back(parked);
                continue;
            }
            if let Some(connection) = self.connections[parked.connection].take() {
                self.fail_parked(connection, &parked);
            }
        }
        self.end_late_changes(now);
        if now >= self.scan_at {
            self.close_silent(now);
        }
    }

    /// The node's state has changed.
    pub fn set_view(&mut self, view: NodeView) {
        if view.members > 0 {
            self.config.members = view.members;
        }
        self.read_only = view.disk_state == "full";
        self.refuses = view.disk_state == "hung";
        self.view = view;
        self.active.visit_all();
    }

    /// No new commands from now on; what is in progress is finished, then connections are closed.
    pub fn begin_shutdown(&mut self) {
        self.shutting_down = true;
        self.end_changes_to_stop();
        self.end_past_waits();
        for index in 0..self.connections.len() {
            if let Some(mut connection) = self.connections[index].take() {
                connection.closing = true;
                self.mark_dirty(index, &mut connection);
                self.connections[index] = Some(connection);
            }
        }
    }

    /// Whether nothing is in progress and no reply waits to be written.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.in_flight.is_empty()
            && self.gathering().next().is_none()
            && self.parked.is_empty()
            && self.past_waits.is_empty()
            && self
                .connections
                .iter()
                .flatten()
                .all(|connection| connection.output.is_empty())
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            sessions_open: self.groups.iter().map(|it| it.owner.open as u64).sum(),
            ..self.counters
        }
    }
}
