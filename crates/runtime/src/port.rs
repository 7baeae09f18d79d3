//! Commands from inside the process: the same batches and sessions that a server uses, for
//! [`crate::Handle`].
//!
//! ```text
//!   Request ──► ordered queue ──► one batch in progress, one session in sequence ──► Done
//!          │                  └─► a full one beside it, four at most ─────────────► Done
//!          └──► read queue ─────► any number of batches ──────────────────────────► Done
//! ```
//!
//! The next ordered batch takes everything that came while one is in progress. But one that is full
//! waits for none: while large commands are copied and sent, those before them are on their way and
//! those before these are executed. Commands of which none has been answered may then overtake each
//! other.

use crate::{SubmitError, config::time_for, mail::Request};
use quintet_replica::{
    BatchBuilder, BatchId, Bytes, CommandId, FrontendId, GroupId, Level, Outcome, Payload,
    RequestKind, RequestStatus, Results, SessionId, Submission, Time, limits,
};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

/// The port's batches are numbered from here, so that they differ from a gateway's: each group's own
/// with the group's number in these bits.
pub(crate) const PORT_BATCHES: u64 = 1 << 62;
const GROUP_SHIFT: u32 = 44;
/// The session window allows no more requests in one batch.
const BATCH_REQUESTS_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = limits::BATCH_GATHERED;
/// A batch of this many bytes is full.
const BATCH_BYTES_FULL: usize = 1 << 20;
/// This many full ones may be in progress.
const IN_FLIGHT_MAX: usize = 4;
const QUEUE_BYTES_MAX: usize = 256 << 20;
const READS_MAX: usize = 64;
/// The size of a request in the queue besides its payload.
const REQUEST_WEIGHT: usize = 128;

struct Waiting {
    request: Request,
    deadline: Time,
}

impl Waiting {
    /// It was not executed, and there is time for it.
    fn may_go_again(&self, now: Time) -> bool {
        self.request.payload.is_some() && now < self.deadline
    }
}

struct Ordered {
    batch: BatchId,
    session: SessionId,
    opening: bool,
    closing: usize,
    requests: Vec<Waiting>,
}

/// A port for each group: of group 0, and of the shards of a layout in their order.
pub(crate) struct Ports(Vec<Port>);

impl Ports {
    /// For `shards` shards beside group 0. `make` makes a port with an owner of its own.
    pub fn new(shards: usize, make: impl Fn() -> Port) -> Self {
        let groups = (0..=shards as u32).map(GroupId);
        Self(groups.map(|group| make().of_group(group)).collect())
    }

    /// A request for this group.
    pub fn push(&mut self, group: GroupId, request: Request, now: Time) {
        match self.0.get_mut(group.0 as usize) {
            Some(port) => port.push(request, now),
            None => request.finish(Err(SubmitError::Stopped)),
        }
    }

    /// See [`Port::begin_shutdown`].
    pub fn begin_shutdown(&mut self) {
        self.0.iter_mut().for_each(Port::begin_shutdown);
    }

    /// See [`Port::idle`].
    pub fn idle(&self) -> bool {
        self.0.iter().all(Port::idle)
    }

    /// See [`Port::collect`].
    pub fn collect(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        for port in &mut self.0 {
            port.collect(now, submissions);
        }
    }

    /// See [`Port::on_done`].
    pub fn on_done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        let group = (batch.0 - PORT_BATCHES) >> GROUP_SHIFT;
        if let Some(port) = self.0.get_mut(group as usize) {
            port.on_done(batch, outcome, now);
        }
    }

    /// See [`Port::next_deadline`].
    pub fn next_deadline(&self) -> Time {
        let deadlines = self.0.iter().map(Port::next_deadline);
        deadlines.min().unwrap_or(Time::NEVER)
    }

    /// See [`Port::on_time`].
    pub fn on_time(&mut self, now: Time) {
        for port in &mut self.0 {
            port.on_time(now);
        }
    }
}

/// See the module.
pub(crate) struct Port {
    group: GroupId,
    frontend: FrontendId,
    deadline: Duration,
    lifetime: Duration,
    batch_next: u64,
    owner: u64,
    started: u64,
    session: SessionId,
    open: bool,
    sequence_next: u64,
    used_at: Time,
    closes: Vec<SessionId>,
    ordered: VecDeque<Waiting>,
    reads: VecDeque<Waiting>,
    queued_bytes: usize,
    in_flight: Vec<Ordered>,
    reads_in_flight: HashMap<BatchId, Vec<Waiting>>,
    builder: BatchBuilder,
    request_bytes_max: usize,
    stopping: bool,
}

impl Port {
    /// A port without requests. `owner` is drawn at random; `clock` is nanoseconds since the Unix
    /// epoch.
    pub fn new(
        frontend: FrontendId,
        (owner, clock): (u64, u64),
        deadline: Duration,
        lifetime: Duration,
    ) -> Self {
        let owner = owner.max(1);
        Self {
            group: GroupId(0),
            frontend,
            deadline,
            lifetime,
            batch_next: PORT_BATCHES,
            owner,
            started: clock,
            session: SessionId { owner, number: 1 },
            open: false,
            sequence_next: 1,
            used_at: Time(0),
            closes: Vec::new(),
            ordered: VecDeque::new(),
            reads: VecDeque::new(),
            queued_bytes: 0,
            in_flight: Vec::new(),
            reads_in_flight: HashMap::new(),
            builder: BatchBuilder::new(),
            request_bytes_max: limits::request_bytes_max(limits::VALUE_BYTES_MAX),
            stopping: false,
        }
    }

    /// The same for a configuration with values of this many bytes.
    pub const fn with_values(mut self, value_bytes_max: usize) -> Self {
        self.request_bytes_max = limits::request_bytes_max(value_bytes_max);
        self
    }

    /// The same for the batches of this group.
    fn of_group(mut self, group: GroupId) -> Self {
        self.group = group;
        self.batch_next = PORT_BATCHES + (u64::from(group.0) << GROUP_SHIFT);
        self.builder = BatchBuilder::of(group);
        self
    }

    pub fn push(&mut self, request: Request, now: Time) {
        if self.stopping {
            return request.finish(Err(SubmitError::Stopped));
        }
        let length = request.payload.as_ref().map_or(0, |payload| payload.len());
        if length > self.request_bytes_max {
            return request.finish(Err(SubmitError::TooLarge {
                bytes: length,
                bytes_max: self.request_bytes_max,
            }));
        }
        if self.queued_bytes > QUEUE_BYTES_MAX {
            return request.finish(Err(SubmitError::Busy));
        }
        self.queued_bytes += weight(&request);
        let waiting = Waiting {
            deadline: now + self.deadline,
            request,
        };
        match (waiting.request.level, waiting.request.kind) {
            (Level::Ordered, RequestKind::Command) => self.ordered.push_back(waiting),
            _ => self.reads.push_back(waiting),
        }
    }

    /// No more requests from now on; what is there is finished.
    pub const fn begin_shutdown(&mut self) {
        self.stopping = true;
    }

    pub fn idle(&self) -> bool {
        self.ordered.is_empty()
            && self.reads.is_empty()
            && self.in_flight.is_empty()
            && self.reads_in_flight.is_empty()
    }

    /// Builds batches from what has come.
    pub fn collect(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        while self.may_submit() {
            self.submit_ordered(now, submissions);
        }
        while self.reads_in_flight.len() < READS_MAX
            && let Some(first) = self.reads.front()
        {
            let level = first.request.level;
            let mut requests = Vec::new();
            let mut deadline = Time::NEVER;
            while self.builder.len() < BATCH_BYTES_MAX
                && requests.len() < BATCH_REQUESTS_MAX
                && let Some(waiting) = pop_if(&mut self.reads, |w| w.request.level == level)
            {
                self.queued_bytes -= weight(&waiting.request);
                deadline = deadline.min(waiting.deadline);
                // A probe is a batch without requests; several probes share it.
                if let Some(payload) = &waiting.request.payload {
                    let (id, kind) = (CommandId::default(), waiting.request.kind);
                    self.builder.push(id, kind, 0, payload);
                }
                requests.push(waiting);
            }
            let id = self.batch_id();
            let batch = self.builder.finish(self.frontend, id, level);
            submissions.push(Submission {
                id,
                level,
                batch,
                deadline,
            });
            self.reads_in_flight.insert(id, requests);
        }
    }

    /// Whether an ordered batch may go now.
    fn may_submit(&self) -> bool {
        if self.ordered.is_empty() || self.in_flight.is_empty() {
            return !self.ordered.is_empty();
        }
        // A session is begun and ended with nothing beside it.
        let full = self.in_flight.len() >= IN_FLIGHT_MAX;
        if !self.open || full || self.queued_bytes < BATCH_BYTES_FULL {
            return false;
        }
        let in_flight: usize = self.in_flight.iter().map(|one| one.requests.len()).sum();
        let (mut bytes, mut count) = (0, in_flight);
        for waiting in &self.ordered {
            bytes += weight(&waiting.request);
            count += 1;
            if count > BATCH_REQUESTS_MAX {
                return false;
            }
            if bytes >= BATCH_BYTES_FULL {
                return true;
            }
        }
        false
    }

    const fn batch_id(&mut self) -> BatchId {
        self.batch_next += 1;
        BatchId(self.batch_next)
    }

    fn submit_ordered(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        let alone = self.in_flight.is_empty();
        if alone && self.open && now.since(self.used_at) > self.lifetime / 2 {
            // It may be about to end; with nothing in progress another one costs nothing.
            self.give_up_session();
        }
        let mut closing = 0;
        for session in self.closes.drain(..) {
            let id = CommandId {
                session,
                sequence: 0,
            };
            self.builder.push(id, RequestKind::Close, 0, &[]);
            closing += 1;
        }
        let opening = !self.open;
        if opening {
            let id = CommandId {
                session: self.session,
                sequence: 0,
            };
            self.builder
                .push(id, RequestKind::Open, 0, &self.started.to_le_bytes());
        }
        if closing == 0 && !opening && self.submit_alone(submissions) {
            return;
        }
        // Payloads are copied once, and not again each time that the batch grows.
        let mut bytes = 0;
        for waiting in self.ordered.iter().take(BATCH_REQUESTS_MAX) {
            if bytes >= BATCH_BYTES_FULL {
                break;
            }
            bytes += weight(&waiting.request);
        }
        self.builder.reserve(bytes);
        let mut requests = Vec::new();
        let mut deadline = Time::NEVER;
        while self.builder.len() < BATCH_BYTES_FULL
            && requests.len() < BATCH_REQUESTS_MAX
            && let Some(waiting) = self.ordered.pop_front()
        {
            self.queued_bytes -= weight(&waiting.request);
            deadline = deadline.min(waiting.deadline);
            let id = CommandId {
                session: self.session,
                sequence: self.sequence_next,
            };
            self.sequence_next += 1;
            let payload = waiting.request.payload.as_deref().unwrap_or_default();
            self.builder
                .push(id, RequestKind::Command, requests.len() as u16, payload);
            requests.push(waiting);
        }
        let batch = self.batch_id();
        let bytes = self.builder.finish(self.frontend, batch, Level::Ordered);
        submissions.push(Submission {
            id: batch,
            level: Level::Ordered,
            deadline: deadline + time_for(bytes.len()),
            batch: bytes,
        });
        self.in_flight.push(Ordered {
            batch,
            session: self.session,
            opening,
            closing,
            requests,
        });
    }

    /// Submits the next request without a copy, when it fills a batch and leaves room for its head.
    fn submit_alone(&mut self, submissions: &mut Vec<Submission>) -> bool {
        let fills = |waiting: &Waiting| {
            let payload = waiting.request.payload.as_ref();
            payload.is_some_and(Payload::has_room) && weight(&waiting.request) >= BATCH_BYTES_FULL
        };
        let Some(mut waiting) = pop_if(&mut self.ordered, fills) else {
            return false;
        };
        self.queued_bytes -= weight(&waiting.request);
        let Some(payload) = waiting.request.payload.take() else {
            return false;
        };
        let (session, sequence) = (self.session, self.sequence_next);
        self.sequence_next += 1;
        let command = CommandId { session, sequence };
        let (batch, level) = (self.batch_id(), Level::Ordered);
        let bytes = payload.into_batch(self.group, command, self.frontend, batch, level);
        submissions.push(Submission {
            id: batch,
            level,
            deadline: waiting.deadline + time_for(bytes.len()),
            batch: bytes,
        });
        self.in_flight.push(Ordered {
            batch,
            session,
            opening: false,
            closing: 0,
            requests: vec![waiting],
        });
        true
    }

    fn give_up_session(&mut self) {
        if self.open {
            self.closes.push(self.session);
        }
        self.open = false;
        self.sequence_next = 1;
        self.session.number += 1;
    }

    fn new_owner(&mut self, started: u64) {
        self.owner = crate::data::random().max(1);
        self.started = started;
        self.open = false;
        self.closes.clear();
        self.sequence_next = 1;
        self.session = SessionId {
            owner: self.owner,
            number: 1,
        };
    }

    /// A batch is finished.
    pub fn on_done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        if let Some(requests) = self.reads_in_flight.remove(&batch) {
            return self.finish_reads(requests, &outcome, now);
        }
        let mut in_flight = self.in_flight.iter();
        let Some(at) = in_flight.position(|one| one.batch == batch) else {
            return;
        };
        let ordered = self.in_flight.remove(at);
        let failure = match outcome {
            Outcome::Results(results) => return self.on_results(ordered, &results, now),
            Outcome::NoQuorum => SubmitError::NoQuorum,
            Outcome::Uncertain => SubmitError::Uncertain,
            Outcome::Busy => SubmitError::Busy,
        };
        // It is not known which commands the session has executed: it is not used again.
        self.open |= ordered.opening;
        if ordered.session == self.session {
            self.give_up_session();
        }
        for waiting in ordered.requests {
            waiting.request.finish(Err(failure));
        }
    }

    fn on_results(&mut self, ordered: Ordered, results: &Bytes, now: Time) {
        let mut results = Results::new(results).skip(ordered.closing);
        if ordered.opening {
            match results.next() {
                Some((RequestStatus::Done, _)) => self.open = true,
                Some((RequestStatus::OpenRefused, clock)) => {
                    let clock = clock
                        .first_chunk()
                        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    self.new_owner(clock);
                    return self.put_back(ordered.requests);
                }
                _ => {
                    self.new_owner(self.started);
                    return self.put_back(ordered.requests);
                }
            }
        }
        self.used_at = now;
        let (mut lost, mut again) = (false, Vec::new());
        for waiting in ordered.requests {
            let result = match results.next() {
                Some((RequestStatus::Done, reply)) => Ok(reply.to_vec()),
                Some((RequestStatus::NotExecuted, _)) => {
                    lost = true;
                    if waiting.may_go_again(now) {
                        again.push(waiting);
                        continue;
                    }
                    Err(SubmitError::Busy)
                }
                _ => {
                    lost = true;
                    Err(SubmitError::Uncertain)
                }
            };
            waiting.request.finish(result);
        }
        if lost && ordered.session == self.session {
            // There is no such session any more.
            self.open = false;
            self.session.number += 1;
            self.sequence_next = 1;
        }
        self.put_back(again);
    }

    /// None of them was executed: the session did not exist, or their batch had results enough.
    fn put_back(&mut self, requests: Vec<Waiting>) {
        self.queued_bytes += push_front(&mut self.ordered, requests);
    }

    fn finish_reads(&mut self, requests: Vec<Waiting>, outcome: &Outcome, now: Time) {
        let mut results = match outcome {
            Outcome::Results(bytes) => Some(Results::new(bytes)),
            _ => None,
        };
        let mut again = Vec::new();
        for waiting in requests {
            let result = match (&mut results, &waiting.request.payload) {
                (Some(_), None) => Ok(Vec::new()),
                (Some(results), Some(_)) => match results.next() {
                    Some((RequestStatus::Done, reply)) => Ok(reply.to_vec()),
                    Some((RequestStatus::NotExecuted, _)) if waiting.may_go_again(now) => {
                        again.push(waiting);
                        continue;
                    }
                    Some((RequestStatus::NotExecuted, _)) => Err(SubmitError::Busy),
                    Some((RequestStatus::NotYet, _)) => Err(SubmitError::NotYet),
                    Some((RequestStatus::NotKept, _)) => Err(SubmitError::NotKept),
                    _ => Err(SubmitError::NoQuorum),
                },
                // A read that was not answered has changed nothing.
                (None, _) if *outcome == Outcome::Busy => Err(SubmitError::Busy),
                (None, _) => Err(SubmitError::NoQuorum),
            };
            waiting.request.finish(result);
        }
        // A batch executes its first request at least, so that each round has fewer.
        self.queued_bytes += push_front(&mut self.reads, again);
    }

    /// When [`Self::on_time`] has something to do.
    pub fn next_deadline(&self) -> Time {
        let first = |queue: &VecDeque<Waiting>| queue.front().map_or(Time::NEVER, |w| w.deadline);
        first(&self.ordered).min(first(&self.reads))
    }

    /// Gives up what has waited too long to be sent.
    pub fn on_time(&mut self, now: Time) {
        for queue in [&mut self.ordered, &mut self.reads] {
            while let Some(waiting) = pop_if(queue, |waiting| waiting.deadline <= now) {
                self.queued_bytes -= weight(&waiting.request);
                waiting.request.finish(Err(SubmitError::NoQuorum));
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // The replica has ended before it knew what became of them.
        let requests = std::mem::take(&mut self.in_flight).into_iter();
        for waiting in requests.flat_map(|one| one.requests) {
            waiting.request.finish(Err(SubmitError::Uncertain));
        }
    }
}

fn pop_if(queue: &mut VecDeque<Waiting>, wanted: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
    queue.front().filter(|waiting| wanted(waiting))?;
    queue.pop_front()
}

/// Puts requests at the front of a queue again, and gives the bytes that they count for.
fn push_front(queue: &mut VecDeque<Waiting>, requests: Vec<Waiting>) -> usize {
    let mut bytes = 0;
    for waiting in requests.into_iter().rev() {
        bytes += weight(&waiting.request);
        queue.push_front(waiting);
    }
    bytes
}

fn weight(request: &Request) -> usize {
    request.payload.as_ref().map_or(0, |it| it.len()) + REQUEST_WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{BatchView, ResultsBuilder};
    use std::sync::mpsc;

    fn port() -> Port {
        Port::new(
            FrontendId(4),
            (77, 1000),
            Duration::from_secs(5),
            Duration::from_secs(100),
        )
    }

    type Answer = Result<Vec<u8>, SubmitError>;

    fn push(port: &mut Port, level: Level, payload: &[u8]) -> mpsc::Receiver<Answer> {
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| {
            let _ = sender.send(result);
        });
        port.push(Request::new(level, Some(payload.into()), done), Time(0));
        receiver
    }

    fn collect(port: &mut Port, now: Time) -> Vec<Submission> {
        let mut submissions = Vec::new();
        port.collect(now, &mut submissions);
        submissions
    }

    fn kinds(submission: &Submission) -> Vec<(RequestKind, u64, u64)> {
        let view = BatchView::checked(&submission.batch).expect("valid");
        view.requests()
            .map(|r| (r.kind, r.id.session.number, r.id.sequence))
            .collect()
    }

    fn results(statuses: &[(RequestStatus, &[u8])]) -> Outcome {
        let mut builder = ResultsBuilder::default();
        builder.clear();
        for (status, reply) in statuses {
            builder.push(*status, reply);
        }
        Outcome::Results(builder.finish())
    }

    const DONE: RequestStatus = RequestStatus::Done;

    #[test]
    fn one_batch_at_a_time_in_one_session() {
        let mut port = port();
        let first = push(&mut port, Level::Ordered, b"a");
        let batch = collect(&mut port, Time(1));
        assert_eq!(
            kinds(&batch[0]),
            [(RequestKind::Open, 1, 0), (RequestKind::Command, 1, 1)]
        );
        let second = push(&mut port, Level::Ordered, b"b");
        let third = push(&mut port, Level::Ordered, b"c");
        assert!(collect(&mut port, Time(2)).is_empty(), "one at a time");
        port.on_done(batch[0].id, results(&[(DONE, b""), (DONE, b"A")]), Time(3));
        assert_eq!(first.recv(), Ok(Ok(b"A".to_vec())));
        let batch = collect(&mut port, Time(3));
        assert_eq!(
            kinds(&batch[0]),
            [(RequestKind::Command, 1, 2), (RequestKind::Command, 1, 3)]
        );
        port.on_done(batch[0].id, Outcome::Uncertain, Time(4));
        assert_eq!(second.recv(), Ok(Err(SubmitError::Uncertain)));
        assert_eq!(third.recv(), Ok(Err(SubmitError::Uncertain)));
        let _fourth = push(&mut port, Level::Ordered, b"d");
        let batch = collect(&mut port, Time(5));
        assert_eq!(
            kinds(&batch[0]),
            [
                (RequestKind::Close, 1, 0),
                (RequestKind::Open, 2, 0),
                (RequestKind::Command, 2, 1)
            ]
        );
        assert!(!port.idle());
    }

    #[test]
    fn full_batches_wait_for_none_and_each_has_its_own_fate() {
        let mut port = port();
        let large = vec![7; BATCH_BYTES_FULL];
        let mut answers: Vec<_> = (0..7)
            .map(|_| push(&mut port, Level::Ordered, &large))
            .collect();
        let first = collect(&mut port, Time(1));
        assert_eq!(first.len(), 1, "it opens the session");
        port.on_done(first[0].id, results(&[(DONE, b""), (DONE, b"0")]), Time(2));
        let in_flight = collect(&mut port, Time(2));
        let numbers: Vec<_> = in_flight.iter().map(|batch| kinds(batch)[0].2).collect();
        assert_eq!(numbers, [2, 3, 4, 5], "four in one session");
        let small = push(&mut port, Level::Ordered, b"small");
        // Their answers come in any order; one of them is lost, and with it the session.
        port.on_done(in_flight[2].id, results(&[(DONE, b"3")]), Time(3));
        port.on_done(in_flight[0].id, Outcome::Uncertain, Time(3));
        assert!(collect(&mut port, Time(3)).is_empty(), "two are in flight");
        port.on_done(in_flight[1].id, results(&[(DONE, b"2")]), Time(4));
        let ended = results(&[(RequestStatus::SessionUnknown, b"")]);
        port.on_done(in_flight[3].id, ended, Time(5));
        let outcomes: Vec<bool> = answers
            .drain(..5)
            .map(|answer| answer.recv().expect("answered").is_ok())
            .collect();
        assert_eq!(outcomes, [true, false, true, true, false]);
        let next = collect(&mut port, Time(6));
        assert_eq!(
            kinds(&next[0]),
            [
                (RequestKind::Close, 1, 0),
                (RequestKind::Open, 2, 0),
                (RequestKind::Command, 2, 1)
            ],
            "alone, in a session of its own"
        );
        port.on_done(
            next[0].id,
            results(&[(DONE, b""), (DONE, b""), (DONE, b"5")]),
            Time(7),
        );
        let rest = collect(&mut port, Time(7));
        assert_eq!(rest.len(), 1, "what is not full waits for company");
        assert_eq!(kinds(&rest[0]), [(RequestKind::Command, 2, 2)]);
        assert!(small.try_recv().is_err());
    }

    #[test]
    fn refused_owner_tries_again_as_another_and_nothing_is_lost() {
        let mut port = port();
        let answer = push(&mut port, Level::Ordered, b"a");
        let batch = collect(&mut port, Time(1));
        let refused = results(&[
            (RequestStatus::OpenRefused, &9000u64.to_le_bytes()),
            (RequestStatus::SessionUnknown, b""),
        ]);
        port.on_done(batch[0].id, refused, Time(2));
        let batch = collect(&mut port, Time(2));
        let view = BatchView::checked(&batch[0].batch).expect("valid");
        let open = view.requests().next().expect("there is one");
        assert_ne!(open.id.session.owner, 77);
        assert_eq!(open.payload, 9000u64.to_le_bytes());
        port.on_done(batch[0].id, results(&[(DONE, b""), (DONE, b"A")]), Time(3));
        assert_eq!(answer.recv(), Ok(Ok(b"A".to_vec())));
        assert!(port.idle());
    }

    #[test]
    fn requests_behind_a_full_answer_go_again_in_time() {
        const LATER: RequestStatus = RequestStatus::NotExecuted;
        for level in [Level::Linearizable, Level::Stale, Level::Ordered] {
            let mut port = port();
            let answers: Vec<_> = [b"a", b"b", b"c"]
                .map(|payload| push(&mut port, level, payload))
                .into();
            let mut now = Time(1);
            for nth in 0..3 {
                let batch = collect(&mut port, now).pop().expect("the rest");
                let opens = kinds(&batch)[0].0 == RequestKind::Open;
                let mut all = vec![(DONE, &b""[..]); usize::from(opens)];
                all.push((DONE, b"done"));
                // The last one has waited too long.
                all.resize(kinds(&batch).len(), (LATER, &[]));
                now = if nth == 1 { Time::NEVER } else { now };
                port.on_done(batch.id, results(&all), now);
                assert_eq!(answers[nth].recv(), Ok(Ok(b"done".to_vec())));
                if nth == 1 {
                    assert_eq!(answers[2].recv(), Ok(Err(SubmitError::Busy)));
                    break;
                }
            }
            assert!(port.idle() && port.queued_bytes == 0);
        }
    }

    #[test]
    fn reads_do_not_block_each_other_and_session_is_replaced() {
        let mut port = port();
        let write = push(&mut port, Level::Ordered, b"w");
        let read = push(&mut port, Level::Linearizable, b"r");
        let batches = collect(&mut port, Time(1));
        assert_eq!(batches[1].level, Level::Linearizable);
        port.on_done(batches[1].id, results(&[(DONE, b"R")]), Time(2));
        port.on_done(
            batches[0].id,
            results(&[(DONE, b""), (DONE, b"W")]),
            Time(2),
        );
        assert_eq!(
            (read.recv(), write.recv()),
            (Ok(Ok(b"R".to_vec())), Ok(Ok(b"W".to_vec())))
        );
        let later = push(&mut port, Level::Ordered, b"x");
        let batch = collect(&mut port, Time(60_000_000_000));
        assert_eq!(kinds(&batch[0])[1], (RequestKind::Open, 2, 0));
        let queued = push(&mut port, Level::Ordered, b"q");
        port.begin_shutdown();
        let refused = push(&mut port, Level::Ordered, b"y");
        assert_eq!(refused.recv(), Ok(Err(SubmitError::Stopped)));
        drop(port);
        assert_eq!(queued.recv(), Ok(Err(SubmitError::Stopped)));
        assert_eq!(later.recv(), Ok(Err(SubmitError::Uncertain)), "it was sent");
    }
}
