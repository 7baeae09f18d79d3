//! The executor: what is ordered becomes state and replies, exactly once.
//!
//! ```text
//!   Execute{slot, time, batch} ──► sessions ──► StateMachine::apply ──► results ──► Answer
//!   Query{at_least, batch} ──(wait for slot)──► StateMachine::query ──► results ──► Answer
//!   Checkpoint ──► header, sessions, state in chunks ──► a snapshot stream
//!   a seal ──► the state stays as it is; all that comes later is answered "sealed"
//! ```
//!
//! The executor alone assigns positions: one per batch that holds anything. The snapshot stream
//! is a row of chunks `length u32 | crc32c u32 | bytes`, ended by a chunk of length 0. The first
//! holds the header, as many as it says the sessions, cut anywhere; the others are the state
//! machine's own bytes. In the first format (`QUINTSN1`) the sessions follow the header in its
//! chunk; it is read, no longer written. In one that a peer gave, batches executed since may follow
//! the state ([`Feed`]): it stands for what they lead to, under the name of the state.
//!
//! The size of a batch's answer is bounded ([`ExecutorLimits`]): once its results have come to
//! `batch_reply_bytes_max`, its further commands are not executed, and their servers send them
//! again.

use crate::{
    At, BatchId, BatchView, ClusterId, CommandId, CommandTime, EpochNumber, Executed, Fingerprint,
    GroupId, ReplyRoute, RequestKind, RequestStatus, RestoreError, ResultsBuilder, Sessions, Slot,
    SnapshotProgress, StateMachine, Verdict, Wire, Writer,
    bug::{Bug, Injected},
    limits,
    past::CLOSING_TICK,
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};

mod bounds;
mod digest;
mod enter;
mod feed;
mod foreign;
mod past;
mod restore;
mod seal;
mod speculation;
mod stream;

pub use bounds::{ExecutorLimits, FEED_BYTES_MAX, TRANSFER_RATE_BUSY};
use digest::Digesting;
pub use digest::{DIGEST_TICK, StateDigest};
pub use feed::{Fed, Feed, FeedEnd};
pub use seal::Seal;
use seal::Sealed;
use speculation::{Speculation, Undo};
pub(crate) use stream::FRAME_HEAD;
pub(crate) use stream::framed_feed;
use stream::{Restoring, SESSIONS_CHUNK, frame_head};
pub use stream::{
    SnapshotChunk, SnapshotHeader, SnapshotReader, SnapshotScan, framed, snapshot_header,
};

/// Room made for a chunk beforehand, at most.
const CHUNK_RESERVED: usize = 1 << 20;

/// CRC-32C of bytes; the checksum of all of Quintet's formats.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Results on their way to the frontend that waits for them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// How far execution had come: a roll-back below it makes the answer void.
    pub slot: Slot,
    /// The frontend, and what must be durable first.
    pub route: ReplyRoute,
    /// The batch that it waits for.
    pub batch: BatchId,
    /// One result per request.
    pub results: Bytes,
}

impl Answer {
    /// Whether it may wait beside these. Large answers that wait are bounded by their bytes, small
    /// ones by the number of batches in flight.
    pub(crate) fn may_be_held(&self, held: &VecDeque<Self>) -> bool {
        self.results.len() <= limits::HELD_SMALL || {
            let bytes: usize = held.iter().map(|answer| answer.results.len()).sum();
            bytes <= limits::HELD_BYTES
        }
    }
}

/// The steps to take once a slot has been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    /// Run the batch's reads; `stable`: and keep the answer until what they saw is final.
    Read { stable: bool },
    /// Answer the batch's requests, ordered at this slot or before it, from their sessions; see
    /// [`Executor::replay`].
    Replay(Slot),
}

struct Waiting {
    batch: Bytes,
    wanted: Wanted,
    route: ReplyRoute,
}

/// Commands are announced to the state machine in groups of about this many bytes: enough for
/// several memory accesses at once, little enough to be still in the cache when their turn comes.
const WARM_BYTES: usize = 8 * 1024;

/// Making and copying this many bytes of results takes as long as a step.
const RESULT_BYTES_PER_STEP: u64 = 64;

/// Announces the commands of a batch to the state machine, a group ahead of their execution.
struct Warm<'a> {
    ahead: crate::Requests<'a>,
    /// Requests announced and not yet executed.
    left: usize,
}

impl<'a> Warm<'a> {
    const fn new(ahead: crate::Requests<'a>) -> Self {
        Self { ahead, left: 0 }
    }

    /// Called before each request.
    #[inline]
    fn before(&mut self, machine: &dyn StateMachine) {
        if self.left == 0 {
            let mut bytes = 0;
            machine.warm(&mut core::iter::from_fn(|| {
                if bytes > WARM_BYTES {
                    return None;
                }
                let request = self.ahead.next()?;
                self.left += 1;
                bytes += request.payload.len();
                Some(request.payload)
            }));
            if self.left == 0 {
                // A machine that looks at nothing need not be asked again.
                self.left = usize::MAX;
            }
        }
        self.left -= 1;
    }
}

/// See the module.
pub struct Executor {
    cluster: ClusterId,
    group: GroupId,
    epoch: EpochNumber,
    machine: Box<dyn StateMachine>,
    sessions: Sessions,
    executed: Executed,
    time: CommandTime,
    /// The batch in progress has a closing tick.
    closing: bool,
    waiting: BTreeMap<Slot, Vec<Waiting>>,
    waiting_count: usize,
    speculation: Option<Speculation>,
    undo: Option<Undo>,
    restoring: Restoring,
    digesting: Option<Digesting>,
    takes_digests: bool,
    limits: ExecutorLimits,
    results: ResultsBuilder,
    scratch: BytesMut,
    /// Bytes of batches executed since the last snapshot began.
    bytes_since: u64,
    /// Of the state that was restored last.
    state_bytes: u64,
    commands: u64,
    /// Bytes of all results that were built.
    results_bytes: u64,
    injected: Injected,
    /// The epoch's descriptor, encoded, for the headers of snapshots.
    descriptor: Bytes,
    /// Its fingerprint, where a seal may end it.
    fingerprint: Option<Fingerprint>,
    /// The epoch has ended here.
    sealed: Option<Box<Sealed>>,
    /// Where it began.
    base: Executed,
    /// The origin of the last snapshot.
    origin: u64,
    /// The reads that were answered last told of the past.
    told_past: bool,
    /// Of an injected bug: what this replica's clock showed when it was last seen.
    clock_last: CommandTime,
    /// Of an injected bug: the machine's snapshot is yet to begin.
    begins_late: bool,
}

fn sessions(limits: &ExecutorLimits) -> Sessions {
    Sessions::new(limits.session_lifetime).keeping(limits.kept_replies)
}

impl Executor {
    /// An executor with an empty state.
    #[must_use]
    pub fn new(
        cluster: ClusterId,
        group: GroupId,
        epoch: EpochNumber,
        machine: Box<dyn StateMachine>,
        limits: ExecutorLimits,
    ) -> Self {
        Self {
            cluster,
            group,
            epoch,
            machine,
            sessions: sessions(&limits),
            executed: Executed::default(),
            time: CommandTime::default(),
            closing: false,
            waiting: BTreeMap::new(),
            waiting_count: 0,
            speculation: None,
            undo: None,
            restoring: Restoring::default(),
            digesting: None,
            takes_digests: false,
            limits,
            results: ResultsBuilder::default(),
            scratch: BytesMut::new(),
            bytes_since: 0,
            state_bytes: 0,
            commands: 0,
            results_bytes: 0,
            injected: Injected::default(),
            descriptor: Bytes::new(),
            fingerprint: None,
            sealed: None,
            base: Executed::default(),
            origin: 0,
            told_past: false,
            clock_last: CommandTime::default(),
            begins_late: false,
        }
    }

    /// Writes this descriptor into the headers of snapshots; what follows it can end its epoch.
    pub fn set_descriptor(&mut self, descriptor: Bytes) {
        self.fingerprint = seal::sealable(&descriptor);
        self.descriptor = descriptor;
    }

    /// For an executor without a state: its limits are those that the members have agreed on, to the
    /// last digit.
    pub(crate) fn agree(&mut self, terms: &crate::Terms) {
        self.limits.agree(terms);
        self.sessions = sessions(&self.limits).with_bug(self.injected);
    }

    /// The epoch's descriptor, encoded; empty where none was set.
    pub(crate) const fn descriptor(&self) -> &Bytes {
        &self.descriptor
    }

    /// Numbers the snapshots from here: a number that no other process draws.
    pub(crate) const fn number_snapshots(&mut self, from: u64) {
        self.origin = from;
    }

    pub(crate) fn with_bug(mut self, injected: Injected) -> Self {
        self.injected = injected;
        self.sessions = sessions(&self.limits).with_bug(injected);
        self
    }

    /// How far execution has come.
    #[must_use]
    pub const fn executed(&self) -> Executed {
        match &self.restoring.before {
            Some(before) => before.executed,
            None => self.executed,
        }
    }

    /// The log's clock: the time of the last batch.
    #[must_use]
    pub const fn time(&self) -> CommandTime {
        self.time
    }

    /// The state machine.
    #[must_use]
    pub fn machine(&self) -> &dyn StateMachine {
        &*self.machine
    }

    /// How many sessions are open.
    #[must_use]
    pub const fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// An estimate of the memory that state and sessions take, in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.machine.memory() + self.sessions.memory() as u64
    }

    /// The work done so far, in steps of the machine: those of commands that take long, and of the
    /// bytes of all results.
    pub(crate) fn work(&self) -> u64 {
        self.machine.steps() + self.results_bytes / RESULT_BYTES_PER_STEP
    }

    /// How many commands have been executed by this process (a replayed reply counts too).
    #[must_use]
    pub const fn commands(&self) -> u64 {
        self.commands
    }

    /// The most batches of reads that may wait.
    pub(crate) const fn queries_max(&self) -> usize {
        self.limits.queries_max
    }

    /// The last snapshot was given up: these bytes before it are not covered either.
    pub(crate) const fn count_uncovered(&mut self, bytes: u64) {
        self.bytes_since = self.bytes_since.saturating_add(bytes);
    }

    /// Bytes of batches executed since the last snapshot began.
    #[must_use]
    pub const fn bytes_since_snapshot(&self) -> u64 {
        self.bytes_since
    }

    /// A hash of state and sessions, equal on replicas that executed the same slots.
    #[must_use]
    pub fn digest(&mut self) -> u128 {
        let mut writer = Writer::new(&mut self.scratch);
        self.sessions.encode(&mut writer);
        let sessions = writer.finish().into_bytes();
        use core::hash::BuildHasher;
        let state = foldhash::quality::FixedState::with_seed(1);
        let hash = u128::from(state.hash_one(&sessions[..]));
        self.machine.digest() ^ (hash << 64) ^ u128::from(self.executed.position.0)
    }

    /// Feeds the reads that wait, and all that may still be undone, into `hasher`.
    pub(crate) fn hash_waiting(&self, mut hasher: &mut dyn core::hash::Hasher) {
        use core::hash::Hash;
        for (slot, waiting) in &self.waiting {
            slot.hash(&mut hasher);
            for read in waiting {
                (&read.batch, &read.wanted, &read.route).hash(&mut hasher);
            }
        }
        (self.executed.slot, self.time).hash(&mut hasher);
        (&self.speculation, &self.sealed).hash(&mut hasher);
    }

    /// Executes a batch and returns its answer if a frontend waits for it. Where the epoch has
    /// ended, nothing is executed, and the answer says so.
    ///
    /// # Panics
    /// When slots do not ascend.
    pub fn execute(
        &mut self,
        slot: Slot,
        time: CommandTime,
        batch: &Bytes,
        reply: Option<ReplyRoute>,
    ) -> Option<Answer> {
        if self.sealed.is_some() {
            return self.pass(slot, time, batch, reply);
        }
        self.execute_in_order(slot, time, batch, reply)
    }

    fn execute_in_order(
        &mut self,
        slot: Slot,
        time: CommandTime,
        batch: &Bytes,
        reply: Option<ReplyRoute>,
    ) -> Option<Answer> {
        assert!(
            slot > self.executed.slot,
            "slots ascend: {slot} after {}",
            self.executed.slot
        );
        self.executed.slot = slot;
        if let Some(speculation) = &mut self.speculation
            && self.undo.is_none()
        {
            speculation.retain(slot, time, batch);
        }
        if batch.is_empty() {
            return None;
        }
        self.bytes_since += batch.len() as u64;
        self.run(time, batch, reply, true)
    }

    /// The same for a batch that has no slot: it comes behind whatever this replica has executed.
    pub fn execute_unordered(
        &mut self,
        time: CommandTime,
        batch: &Bytes,
        reply: Option<ReplyRoute>,
    ) -> Option<Answer> {
        self.run(time, batch, reply, false)
    }

    fn run(
        &mut self,
        time: CommandTime,
        batch: &Bytes,
        reply: Option<ReplyRoute>,
        ordered: bool,
    ) -> Option<Answer> {
        self.time = self.time.max(time);
        let Ok(view) = BatchView::new(batch) else {
            return None;
        };
        self.executed.position = self.executed.position.next();
        let mut at = At {
            position: self.executed.position,
            time: self.time,
            id: CommandId::default(),
        };
        if self.injected.is(Bug::TicksByLocalClock) {
            at.time = at.time.max(self.clock_last);
        }
        self.machine.tick(&at);
        self.results.clear();
        if view.group() != self.group {
            self.refuse_all(&view);
            return reply.map(|route| self.finish_answer(view.id(), route));
        }
        if view.seals() {
            let answer = self.run_to_seal(&view, reply, ordered);
            self.finish_closing();
            return answer;
        }
        let mut warm = Warm::new(view.requests());
        for request in view.requests() {
            warm.before(&*self.machine);
            self.execute_request(&request);
        }
        self.finish_closing();
        self.results_bytes += self.results.len() as u64;
        reply.map(|route| self.finish_answer(view.id(), route))
    }

    /// The answer to a batch: the results that were built last.
    fn finish_answer(&mut self, batch: BatchId, route: ReplyRoute) -> Answer {
        Answer {
            slot: self.executed.slot,
            route,
            batch,
            results: self.results.finish(),
        }
    }

    #[inline]
    fn execute_request(&mut self, request: &crate::RequestView<'_>) {
        let (id, time) = (request.id, self.time);
        let status = match request.kind {
            RequestKind::Command => {
                if self.results.len() >= self.limits.batch_reply_bytes_max {
                    return self.results.push(RequestStatus::NotExecuted, &[]);
                }
                self.commands += 1;
                let reply_bytes_max = self.limits.request_reply_bytes_max;
                if self.injected.is(Bug::NondeterministicApply) && self.commands.is_multiple_of(64)
                {
                    self.sessions.forget_replies(id.session);
                }
                let at = At {
                    position: self.executed.position,
                    time,
                    id,
                };
                let admitted = (self.sessions).admit(id.session, id.sequence, request.open, time);
                match admitted {
                    Ok(admitted) => {
                        let reply = self.results.begin();
                        self.machine.apply(&at, request.payload, reply);
                        let reply = self.results.end(RequestStatus::Done, reply_bytes_max);
                        if admitted.executed(reply) {
                            self.sessions.drop_largest();
                        }
                    }
                    Err(Verdict::Replay(_)) if self.injected.is(Bug::RetryExecutesTwice) => {
                        let reply = self.results.begin();
                        self.machine.apply(&at, request.payload, reply);
                        self.results.end(RequestStatus::Done, reply_bytes_max);
                    }
                    Err(Verdict::Replay(reply)) => self.results.push(RequestStatus::Done, reply),
                    Err(Verdict::Refuse(status)) => self.results.push(status, &[]),
                }
                return;
            }
            RequestKind::Open => match request.payload.first_chunk() {
                Some(started) => {
                    let started = CommandTime(u64::from_le_bytes(*started));
                    self.sessions.open(id.session, started, time)
                }
                None => RequestStatus::Malformed,
            },
            RequestKind::Close => {
                self.sessions.close(id.session, time);
                RequestStatus::Done
            }
            RequestKind::Renew => self.sessions.renew(id.session.owner, time),
            RequestKind::Tick => {
                if request.payload == DIGEST_TICK {
                    self.begin_digest();
                }
                self.closing |= request.payload == CLOSING_TICK;
                RequestStatus::Done
            }
            // It stands in no order.
            RequestKind::Past => RequestStatus::Malformed,
            RequestKind::Seal => self.seal(request.payload),
        };
        match status {
            RequestStatus::OpenRefused => self.results.push(status, &time.0.to_le_bytes()),
            _ => self.results.push(status, &[]),
        }
    }

    /// Runs reads now if execution has come to `at_least`, keeps them otherwise. With `stable`
    /// the answer is kept until nothing that it saw can be rolled back any more. `clock` is this
    /// replica's clock in nanoseconds since the Unix epoch.
    pub fn query(
        &mut self,
        batch: Bytes,
        at_least: Slot,
        stable: bool,
        route: ReplyRoute,
        clock: u64,
    ) -> Option<Answer> {
        let wanted = Wanted::Read { stable };
        self.when_executed(at_least, batch, wanted, route, clock)
    }

    /// Answers requests that were executed at or before `at_least` again, from their sessions:
    /// nothing is executed. For a protocol that recognises a batch which it has ordered before.
    pub fn replay(&mut self, batch: Bytes, at_least: Slot, route: ReplyRoute) -> Option<Answer> {
        let wanted = Wanted::Replay(at_least);
        self.when_executed(at_least, batch, wanted, route, 0)
    }

    fn when_executed(
        &mut self,
        at_least: Slot,
        batch: Bytes,
        wanted: Wanted,
        route: ReplyRoute,
        clock: u64,
    ) -> Option<Answer> {
        if self.reached() >= at_least || self.injected.is(Bug::EmptyReadsWhileLoading) {
            return self.answer_wanted(&batch, wanted, route, clock);
        }
        if self.waiting_count < self.limits.queries_max {
            self.waiting_count += 1;
            self.waiting.entry(at_least).or_default().push(Waiting {
                batch,
                wanted,
                route,
            });
        }
        None
    }

    fn answer_wanted(
        &mut self,
        batch: &Bytes,
        wanted: Wanted,
        route: ReplyRoute,
        clock: u64,
    ) -> Option<Answer> {
        match wanted {
            Wanted::Read { .. } if self.ends_read(batch) => self.answer_sealed(batch, route),
            Wanted::Read { stable } => {
                let answer = self.read(batch, route, clock);
                // The past is told when it is final, whatever the protocol says of other reads.
                let held = match core::mem::take(&mut self.told_past) {
                    true => !self.injected.is(Bug::UndonePastIsTold),
                    false => stable,
                };
                match &mut self.speculation {
                    Some(speculation) if held => speculation.hold(answer, self.limits.queries_max),
                    _ => Some(answer),
                }
            }
            Wanted::Replay(at) if self.ends_replay(at) => self.answer_sealed(batch, route),
            Wanted::Replay(at) => {
                let answer = self.read_sessions(batch, route, at);
                match self.ends_at(at) {
                    // It tells what of its batch came behind the end.
                    true => self.hold_behind_seal(answer),
                    false => Some(answer),
                }
            }
        }
    }

    /// Whether there are reads whose slot has been executed by now.
    #[must_use]
    pub fn has_released(&self) -> bool {
        let first = self.waiting.first_key_value();
        first.is_some_and(|(slot, _)| *slot <= self.reached())
    }

    /// Answers what waited for slots that have been executed by now, until its work is
    /// `work_max`.
    pub fn released(&mut self, clock: u64, work_max: u64, mut answer: impl FnMut(Answer)) {
        let reached = self.reached();
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() > reached {
                return;
            }
            let (slot, released) = first.remove_entry();
            let mut released = released.into_iter();
            while let Some(waiting) = released.next() {
                let Waiting {
                    batch,
                    wanted,
                    route,
                } = waiting;
                self.waiting_count -= 1;
                if let Some(done) = self.answer_wanted(&batch, wanted, route, clock) {
                    answer(done);
                }
                if self.work() >= work_max {
                    let rest: Vec<Waiting> = released.collect();
                    if !rest.is_empty() {
                        self.waiting.insert(slot, rest);
                    }
                    return;
                }
            }
        }
    }

    fn read_sessions(&mut self, batch: &Bytes, route: ReplyRoute, at_least: Slot) -> Answer {
        self.results.clear();
        // Commands of the seal's own batch that the session does not know came behind the seal.
        let cut = self.ends_at(at_least);
        let view = BatchView::new(batch);
        if let Ok(view) = &view {
            for request in view.requests() {
                let id = request.id;
                match request.kind {
                    _ if self.results.len() >= self.limits.batch_reply_bytes_max => {
                        self.results.push(RequestStatus::NotExecuted, &[]);
                    }
                    RequestKind::Command => match self.sessions.reply(id.session, id.sequence) {
                        Ok(reply) => self.results.push(RequestStatus::Done, reply),
                        Err(RequestStatus::OutOfOrder | RequestStatus::SessionUnknown) if cut => {
                            self.results.push(RequestStatus::Sealed, &[]);
                        }
                        Err(status) => self.results.push(status, &[]),
                    },
                    RequestKind::Open if cut && !self.sessions.contains(id.session) => {
                        self.results.push(RequestStatus::Sealed, &[]);
                    }
                    RequestKind::Seal if !self.is_sealed_by(request.payload) => {
                        self.results.push(RequestStatus::Refused, &[]);
                    }
                    RequestKind::Open if !self.sessions.contains(id.session) => {
                        let time = self.time.0.to_le_bytes();
                        self.results.push(RequestStatus::OpenRefused, &time);
                    }
                    _ => self.results.push(RequestStatus::Done, &[]),
                }
            }
        }
        self.results_bytes += self.results.len() as u64;
        let id = view.map_or(BatchId::default(), |view| view.id());
        self.finish_answer(id, route)
    }

    fn read(&mut self, batch: &Bytes, route: ReplyRoute, clock: u64) -> Answer {
        let time = self.time.max(CommandTime(clock));
        self.clock_last = time;
        let position = self.executed.position;
        self.results.clear();
        self.machine.begin_reads();
        let view = BatchView::new(batch);
        if let Ok(view) = &view
            && view.group() != self.group
        {
            self.refuse_all(view);
        } else if let Ok(view) = &view {
            let mut warm = Warm::new(view.requests());
            for request in view.requests() {
                warm.before(&*self.machine);
                if self.results.len() >= self.limits.batch_reply_bytes_max {
                    self.results.push(RequestStatus::NotExecuted, &[]);
                    continue;
                }
                if request.kind == RequestKind::Past {
                    self.read_past(request.id, request.payload);
                    continue;
                }
                let reply = self.results.begin();
                let status = if request.kind == RequestKind::Command {
                    let at = At {
                        position,
                        time,
                        id: request.id,
                    };
                    self.machine.query(&at, request.payload, reply);
                    RequestStatus::Done
                } else {
                    RequestStatus::Malformed
                };
                self.results
                    .end(status, self.limits.request_reply_bytes_max);
                self.commands += 1;
            }
        }
        self.results_bytes += self.results.len() as u64;
        let id = view.map_or(BatchId::default(), |view| view.id());
        self.finish_answer(id, route)
    }

    /// Begins a snapshot of the state as it is now and gives its first chunks: header and
    /// sessions.
    ///
    /// # Panics
    /// When `slot` is not the protocol's progress.
    pub fn begin_snapshot(&mut self, slot: Slot, summary: Bytes) -> (Executed, Bytes) {
        let covered = self.covered();
        assert_eq!(
            slot, covered.slot,
            "a checkpoint covers exactly what was executed"
        );
        self.begins_late = self.injected.is(Bug::IndexAndDataNotAtomic);
        if !self.begins_late {
            self.machine.begin_snapshot();
        }
        self.bytes_since = 0;
        self.origin = self.origin.wrapping_add(1);
        let mut writer = Writer::new(&mut self.scratch);
        self.sessions.encode(&mut writer);
        let sessions = writer.finish().into_bytes();
        let chunks = sessions.chunks(SESSIONS_CHUNK);
        let header = SnapshotHeader {
            cluster: self.cluster,
            group: self.group,
            epoch: self.epoch,
            executed: covered,
            time: self.time,
            summary,
            descriptor: self.descriptor.clone(),
            session_chunks: Some(chunks.len() as u32),
            origin: self.origin,
            base: self.base,
            seal: (self.sealed.as_ref()).map(|sealed| Box::new(sealed.seal.clone())),
        };
        let mut writer = Writer::new(&mut self.scratch);
        header.encode(&mut writer);
        let head = writer.finish().into_bytes();
        let frames = FRAME_HEAD * (1 + chunks.len());
        let mut first = BytesMut::with_capacity(head.len() + sessions.len() + frames);
        for chunk in core::iter::once(&head[..]).chain(chunks) {
            first.extend_from_slice(&frame_head(chunk));
            first.extend_from_slice(chunk);
        }
        (covered, first.freeze())
    }

    /// The next chunk of the snapshot in progress, about `budget` bytes, and whether it was the
    /// last.
    pub fn snapshot_chunk(&mut self, budget: usize) -> (Bytes, SnapshotProgress) {
        if core::mem::take(&mut self.begins_late) {
            self.machine.begin_snapshot();
        }
        // The chunk continues as it is: its frame's head is written before it, once it is known.
        let mut out = Vec::with_capacity(budget.min(CHUNK_RESERVED) + 2 * FRAME_HEAD);
        out.resize(FRAME_HEAD, 0);
        let progress = self.machine.snapshot_chunk(&mut out, budget);
        if out.len() > FRAME_HEAD {
            let head = frame_head(&out[FRAME_HEAD..]);
            out[..FRAME_HEAD].copy_from_slice(&head);
        } else {
            out.clear();
        }
        if progress == SnapshotProgress::Done {
            out.extend_from_slice(&frame_head(&[]));
        }
        (out.into(), progress)
    }

    /// Forgets the snapshot in progress.
    pub fn abandon_snapshot(&mut self) {
        self.machine.abandon_snapshot();
    }

    /// When the state next changes by itself.
    #[must_use]
    pub fn next_deadline(&self) -> Option<CommandTime> {
        self.machine.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, FrontendId, Level, Position, Results, SessionId};

    /// Appends commands to a log; small enough to be snapshotted in one piece.
    #[derive(Default)]
    struct Log {
        entries: Vec<u8>,
        restoring: Vec<u8>,
    }

    impl StateMachine for Log {
        fn apply(&mut self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
            self.entries.extend_from_slice(command);
            reply.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        }
        fn query(&self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
            reply.extend_from_slice(&self.entries);
        }
        fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
            out.extend_from_slice(&self.entries);
            SnapshotProgress::Done
        }
        fn begin_restore(&mut self) {
            self.restoring.clear();
        }
        fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
            self.restoring.extend_from_slice(chunk);
            Ok(())
        }
        fn finish_restore(&mut self) -> Result<(), RestoreError> {
            self.entries = core::mem::take(&mut self.restoring);
            Ok(())
        }
        fn digest(&self) -> u128 {
            u128::from(checksum(&self.entries))
        }
        fn begin_digest(&mut self) -> crate::DigestBegun {
            crate::DigestBegun::Done(self.digest())
        }
    }

    pub(super) fn no_route() -> ReplyRoute {
        ReplyRoute {
            to: FrontendId(0),
            header: Bytes::new(),
            after: None,
        }
    }

    pub(super) fn executor() -> Executor {
        executor_of(ClusterId(1))
    }

    fn executor_of(cluster: ClusterId) -> Executor {
        let limits = ExecutorLimits::default();
        Executor::new(
            cluster,
            GroupId(0),
            EpochNumber(1),
            Box::<Log>::default(),
            limits,
        )
    }

    pub(super) fn batch_of(requests: &[(u64, &[u8])]) -> Bytes {
        let session = SessionId {
            owner: 3,
            number: 1,
        };
        let mut builder = BatchBuilder::new();
        let open = CommandId {
            session,
            sequence: 0,
        };
        builder.push(open, RequestKind::Open, 0, &0u64.to_le_bytes());
        for (sequence, payload) in requests {
            let id = CommandId {
                session,
                sequence: *sequence,
            };
            builder.push(id, RequestKind::Command, 0, payload);
        }
        builder.finish(FrontendId(1), BatchId(1), Level::Ordered)
    }

    fn statuses(answer: Option<Answer>) -> Vec<RequestStatus> {
        let answer = answer.expect("a client waits");
        Results::new(&answer.results)
            .map(|(status, _)| status)
            .collect()
    }

    #[test]
    fn batch_ordered_twice_is_executed_once_with_the_same_results() {
        let mut executor = executor();
        let bytes = batch_of(&[(1, b"a"), (2, b"b")]);
        let first = executor.execute(Slot(1), CommandTime(5), &bytes, Some(no_route()));
        let again = executor.execute(
            Slot(2),
            CommandTime(6),
            &batch_of(&[(2, b"b")]),
            Some(no_route()),
        );
        assert_eq!(statuses(first), [RequestStatus::Done; 3]);
        assert_eq!(statuses(again), [RequestStatus::Done; 2]);
        assert_eq!(
            executor.executed(),
            Executed {
                slot: Slot(2),
                position: Position(2)
            }
        );
        let answer = executor
            .query(batch_of(&[(9, b"")]), Slot(2), false, no_route(), 0)
            .expect("is there");
        let replies: Vec<_> = Results::new(&answer.results)
            .map(|(_, reply)| reply)
            .collect();
        assert_eq!(replies[1], b"ab");
    }

    #[test]
    fn logs_clock_never_goes_back() {
        let mut executor = executor();
        executor.execute(Slot(1), CommandTime(50), &batch_of(&[]), None);
        executor.execute(Slot(2), CommandTime(40), &batch_of(&[]), None);
        assert_eq!(executor.time(), CommandTime(50));
    }

    #[test]
    fn read_waits_for_its_slot() {
        let mut executor = executor();
        assert!(
            executor
                .query(batch_of(&[(1, b"")]), Slot(2), false, no_route(), 0)
                .is_none()
        );
        executor.execute(Slot(1), CommandTime(1), &Bytes::new(), None);
        let mut released = 0;
        executor.released(0, u64::MAX, |_| released += 1);
        assert_eq!(released, 0);
        executor.execute(Slot(2), CommandTime(1), &Bytes::new(), None);
        executor.released(0, u64::MAX, |_| released += 1);
        assert_eq!(released, 1);
    }

    fn snapshot(executor: &mut Executor) -> Vec<u8> {
        let slot = executor.executed().slot;
        let (_, first) = executor.begin_snapshot(slot, Bytes::from_static(b"sum"));
        let mut stream = first.to_vec();
        loop {
            let (chunk, progress) = executor.snapshot_chunk(1024);
            stream.extend_from_slice(&chunk);
            if progress == SnapshotProgress::Done {
                return stream;
            }
        }
    }

    fn restore_in(stream: &[u8], piece: usize) -> Result<Executor, RestoreError> {
        let mut copy = executor();
        copy.restore(|offset| {
            let from = (offset as usize).min(stream.len());
            let to = (from + piece).min(stream.len());
            Some(Bytes::copy_from_slice(&stream[from..to]))
        })?;
        Ok(copy)
    }

    fn restore(stream: &[u8], cluster: ClusterId) -> Result<Executor, RestoreError> {
        let mut copy = executor_of(cluster);
        let header = copy.restore(|offset| {
            let from = (offset as usize).min(stream.len());
            Some(Bytes::copy_from_slice(
                &stream[from..(from + 7).min(stream.len())],
            ))
        })?;
        assert_eq!(header.summary, &b"sum"[..]);
        Ok(copy)
    }

    #[test]
    fn snapshot_equals_its_state_and_damage_is_rejected() {
        let mut original = executor();
        original.execute(
            Slot(4),
            CommandTime(5),
            &batch_of(&[(1, b"hello"), (2, b"x")]),
            None,
        );
        let stream = snapshot(&mut original);
        let mut copy = restore(&stream, ClusterId(1)).expect("an intact snapshot restores");
        assert_eq!(copy.digest(), original.digest());
        assert_eq!(copy.executed(), original.executed());
        for at in 0..stream.len() {
            let mut damaged = stream.clone();
            damaged[at] ^= 0x10;
            assert!(
                restore(&damaged, ClusterId(1)).is_err(),
                "byte {at} inverted"
            );
            assert!(restore(&stream[..at], ClusterId(1)).is_err(), "cut at {at}");
        }
        let foreign = restore(&stream, ClusterId(2))
            .err()
            .expect("another cluster's is refused");
        assert!(foreign.0.starts_with("cluster id mismatch"), "{foreign}");
    }

    /// Answers with as many bytes as the command's number says.
    struct Talker;

    impl StateMachine for Talker {
        fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
            self.query(at, command, reply);
        }
        fn query(&self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
            reply.resize(reply.len() + usize::from(command[0]), 1);
        }
        fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> SnapshotProgress {
            SnapshotProgress::Done
        }
        fn restore_chunk(&mut self, _: &[u8]) -> Result<(), RestoreError> {
            Ok(())
        }
        fn finish_restore(&mut self) -> Result<(), RestoreError> {
            Ok(())
        }
        fn digest(&self) -> u128 {
            0
        }
    }

    #[test]
    fn results_of_a_batch_are_bounded_however_they_come_about() {
        let limits = ExecutorLimits {
            batch_reply_bytes_max: 100,
            request_reply_bytes_max: 70,
            ..ExecutorLimits::default()
        };
        let (cluster, group, epoch) = (ClusterId(1), GroupId(0), EpochNumber(1));
        let mut executor = Executor::new(cluster, group, epoch, Box::new(Talker), limits);
        let batch = batch_of(&[(1, &[60]), (2, &[71]), (3, &[60]), (4, &[1])]);
        let first = executor.execute(Slot(1), CommandTime(5), &batch, Some(no_route()));
        use RequestStatus::{Done, NotExecuted, ReplyLost};
        assert_eq!(statuses(first), [Done, Done, ReplyLost, Done, NotExecuted]);
        // A command that was not executed is executed when it comes again, a dropped one is not.
        let batch = batch_of(&[(4, &[1])]);
        let again = executor.execute(Slot(2), CommandTime(5), &batch, Some(no_route()));
        assert_eq!(statuses(again), [Done, Done]);
        let batch = batch_of(&[(4, &[1]), (4, &[1])]);
        let answer = executor.replay(batch, Slot(2), no_route());
        assert_eq!(statuses(answer), [Done, Done, Done]);
        let reads = batch_of(&[(0, &[60]), (0, &[60]), (0, &[60])]);
        let answer = executor.query(reads, Slot(2), false, no_route(), 0);
        let statuses = statuses(answer);
        assert_eq!(statuses[1..], [Done, Done, NotExecuted]);
    }

    #[test]
    fn sessions_of_a_snapshot_are_small_chunks_that_come_back() {
        let mut original = executor();
        let long = alloc::vec![7; 600 << 10];
        for number in 1..=6u64 {
            let id = SessionId { owner: 9, number };
            original.sessions.open(id, CommandTime(0), CommandTime(1));
            let sessions = &mut original.sessions;
            assert!(sessions.execute(id, 1, CommandTime(1), Some(&long)));
        }
        original.execute(Slot(4), CommandTime(5), &batch_of(&[(1, b"x")]), None);
        let stream = snapshot(&mut original);
        let (mut at, mut longest) = (0, 0);
        while at < stream.len() {
            let length = u32::from_le_bytes(*stream[at..].first_chunk().expect("a head"));
            longest = longest.max(length as usize);
            at += FRAME_HEAD + length as usize;
        }
        assert!(longest <= SESSIONS_CHUNK, "a chunk of {longest} bytes");
        let copy = restore_in(&stream, 1 << 20).expect("it restores");
        assert_eq!(copy.sessions.kept_bytes(), 6 * long.len() + 8);
        assert_eq!({ copy }.digest(), original.digest());
        let cut = restore_in(&stream[..2 << 20], 1 << 20).err();
        assert!(cut.is_some(), "cut within the sessions");
    }

    #[test]
    fn snapshot_of_the_first_format_is_read() {
        let mut original = executor();
        original.execute(Slot(4), CommandTime(5), &batch_of(&[(1, b"old")]), None);
        let header = SnapshotHeader {
            cluster: ClusterId(1),
            group: GroupId(0),
            epoch: EpochNumber(1),
            executed: original.executed(),
            time: original.time(),
            summary: Bytes::from_static(b"sum"),
            descriptor: Bytes::new(),
            session_chunks: None,
            origin: 0,
            base: Executed::default(),
            seal: None,
        };
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        header.encode(&mut writer);
        original.sessions.encode(&mut writer);
        let mut stream = framed(&writer.finish().into_bytes()).to_vec();
        assert_eq!(&stream[8..16], b"QUINTSN1");
        stream.extend_from_slice(&framed(b"old"));
        stream.extend_from_slice(&framed(b""));
        let mut copy = restore(&stream, ClusterId(1)).expect("it restores");
        assert_eq!(copy.digest(), original.digest());
    }

    /// The headers of builds that know neither the base of an epoch nor the next epoch.
    #[test]
    fn snapshot_without_base_and_next_epoch_is_read() {
        let written = "\
            570000001a2e84ae5155494e54534e324b0000000100000000000000000000000000000000000000\
            01000000000000000400000000000000010000000000000005000000000000000300000073756d00\
            00000001000000090000000000000004000000c74b674800000000030000000401baff6f6c640000\
            000000000000";
        let byte = |at: usize| u8::from_str_radix(&written[at..at + 2], 16).expect("hexadecimal");
        let stream: Vec<u8> = (0..written.len()).step_by(2).map(byte).collect();
        let mut copy = restore(&stream, ClusterId(1)).expect("it restores");
        assert_eq!(
            (copy.executed().slot, copy.time()),
            (Slot(4), CommandTime(5))
        );
        assert!(!copy.has_seal());
        let mut reader = SnapshotReader::default();
        reader.feed(&stream);
        let Ok(Some(SnapshotChunk::Header(header))) = reader.next_chunk() else {
            panic!("the header comes first");
        };
        assert_eq!((header.origin, header.base), (9, Executed::default()));
        assert_eq!(header.seal, None);
        let answer = copy.query(batch_of(&[(1, b"")]), Slot(4), false, no_route(), 0);
        let answer = answer.expect("is there");
        assert_eq!(
            Results::new(&answer.results).nth(1),
            Some((RequestStatus::Done, &b"old"[..]))
        );
    }

    #[test]
    fn large_answers_that_wait_are_bounded_by_their_bytes() {
        let large = Bytes::from(alloc::vec![0; 8 << 20]);
        let answer = |results: Bytes| Answer {
            slot: Slot(1),
            route: no_route(),
            batch: BatchId(1),
            results,
        };
        let mut held = VecDeque::new();
        while answer(large.clone()).may_be_held(&held) {
            held.push_back(answer(large.clone()));
            assert!(held.len() < 100, "there is a bound");
        }
        assert!(held.len() >= 32, "{}", held.len());
        assert!(answer(large.slice(..1000)).may_be_held(&held));
    }
}
