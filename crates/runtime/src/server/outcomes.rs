//! The outcomes of batches: replies to connections, errors, and the effects on the sessions.
//!
//! ```text
//!   Results ──► one status per request ──► Done: copy the reply
//!                                          SessionUnknown, ReplyLost: UNCERTAIN, another session
//!                                          NotExecuted: parked, sent again
//!   NoQuorum ────────► certainly not executed: an error per command
//!   Busy ────────────► certainly not executed: parked, sent again until its deadline
//!   Uncertain ───────► perhaps executed: an error per command, another session
//! ```

use super::{
    batches::{Entry, InFlight},
    connection::{Connection, Phase},
    gateway::{Gateway, Parked},
    group_queue::BatchKind,
    sessions::Standing,
};
use crate::config::time_for;
use bytes::Bytes;
use quintet_replica::{
    BatchId, BatchView, Level, Outcome, RequestKind, RequestStatus, RequestView, Results, Time,
};
use quintet_store::{ArgsBuffer, Commands, Op, Reply};
use std::time::Duration;

const UNCERTAIN: &str = "UNCERTAIN may or may not have been applied";
const APPLIED: &str = "UNCERTAIN was applied, but its reply has been lost";
const BUSY: &str = "BUSY request queue is full; the command was not executed, retry";
const HUNG: &str = "BUSY the disk of this replica does not respond; the command was not executed, retry at another";
const MALFORMED: &str = "ERR the request could not be read";
const SESSIONS: &str = "ERR max number of sessions reached";
/// An error names no more members that do not answer.
const SILENT_SHOWN: usize = 8;
/// A request that found the queue full is offered again after this.
const BUSY_RETRY: Duration = Duration::from_millis(5);

/// Why a request has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    NoQuorum,
    Uncertain,
    Busy,
}

impl Gateway {
    /// A batch is finished. One that this gateway did not submit is ignored.
    pub fn on_done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        let Some(in_flight) = self.finish_batch(batch, now) else {
            return;
        };
        match outcome {
            Outcome::Results(results) => self.deliver(&in_flight, &results),
            Outcome::NoQuorum => self.fail(&in_flight, 0, Failure::NoQuorum),
            Outcome::Uncertain => self.fail(&in_flight, 0, Failure::Uncertain),
            Outcome::Busy => self.fail(&in_flight, 0, Failure::Busy),
        }
        self.keep_entries(in_flight.entries);
    }

    /// The error for a request that certainly was not executed.
    const fn busy(&self) -> &'static str {
        if self.refuses { HUNG } else { BUSY }
    }

    /// The error while there is no quorum.
    pub(super) fn no_quorum(&self, group: usize) -> String {
        if let Some(shards) = &self.config.shards {
            return shards.no_quorum(group);
        }
        let (reachable, members) = (self.view.reachable, self.config.members);
        if reachable > members / 2 {
            // Members that answer and cannot agree in time: slow disks, or no leader for long.
            return format!(
                "CLUSTERDOWN no agreement in time ({reachable} of {members} reachable); the command \
                 was not executed, retry"
            );
        }
        let mut text = format!("CLUSTERDOWN no quorum ({reachable} of {members} reachable");
        for (nth, (id, silence)) in self.view.silent.iter().enumerate() {
            text.push_str(if nth == 0 {
                "; no answer from replica "
            } else {
                ", "
            });
            // A cluster may have many members; an error is a line.
            if nth == SILENT_SHOWN {
                text.push_str(&format!("{} more", self.view.silent.len() - nth));
                break;
            }
            text.push_str(&match silence {
                Some(silence) => format!("{} for {} s", id.0, silence.as_secs()),
                None => format!("{} since the start", id.0),
            });
        }
        text.push(')');
        text
    }

    fn deliver(&mut self, in_flight: &InFlight, results: &Bytes) {
        let group = in_flight.kind.group;
        let mut opened = (RequestStatus::Done, &[][..]);
        let mut delivered = 0;
        for (entry, (status, reply)) in in_flight.entries.iter().zip(Results::new(results)) {
            match *entry {
                Entry::Open(_) => opened = (status, reply),
                Entry::Command(index) | Entry::Read(index) => {
                    let opened = std::mem::replace(&mut opened, (RequestStatus::Done, &[]));
                    if let Some(connection) = self.connections[index].take() {
                        let place = (index, delivered, results);
                        self.on_result(in_flight, place, connection, status, reply, opened);
                    }
                }
                Entry::Past(index) | Entry::Tick(index) => {
                    if let Some(connection) = self.connections[index].take() {
                        let asked = (in_flight.kind.level, matches!(entry, Entry::Tick(_)));
                        let result = (status, results, reply);
                        self.on_past_result(index, connection, result, asked);
                    }
                }
                Entry::Close(_) => {}
                Entry::Register => self.on_registered(in_flight, status, reply),
                Entry::Renew if status == RequestStatus::Done => self.confirm(in_flight),
                Entry::Renew => {
                    let queue = &mut self.groups[group];
                    self.counters.sessions_lost += queue.owner.open as u64;
                    queue.replace_owner();
                }
                Entry::MemoryLimit => {
                    let queue = &mut self.groups[group];
                    queue.memory_limit.in_progress = false;
                    if status == RequestStatus::Done {
                        queue.memory_limit_told(self.now);
                        self.confirm(in_flight);
                    } else {
                        queue.replace_owner();
                        queue.postpone_own(self.now);
                    }
                }
            }
            delivered += 1;
        }
        if delivered < in_flight.entries.len() {
            self.fail(in_flight, delivered, Failure::Uncertain);
        }
    }

    fn confirm(&mut self, in_flight: &InFlight) {
        let owner = &mut self.groups[in_flight.kind.group].owner;
        owner.confirmed = owner.confirmed.max(in_flight.submitted);
    }

    /// The result of a connection's request. `place` is its slot, its place in the batch, and the
    /// results that `reply` is a part of.
    fn on_result(
        &mut self,
        in_flight: &InFlight,
        place: (usize, usize, &Bytes),
        mut connection: Box<Connection>,
        status: RequestStatus,
        reply: &[u8],
        opened: (RequestStatus, &[u8]),
    ) {
        let (index, nth, results) = place;
        if status == RequestStatus::Done {
            if in_flight.kind.level == Level::Ordered {
                self.confirm(in_flight);
            }
            if !connection.gone {
                self.counters.output_bytes += reply.len() as u64;
                if let Some(spread) = &mut connection.spread {
                    spread.keep_part(in_flight.kind.group, results, reply);
                    return self.resume(index, connection);
                }
                connection.note_reply(reply.len(), self.config.output_bytes_soft);
                if connection.phase == Phase::Watch {
                    self.on_versions(&mut connection, reply);
                } else {
                    connection.answer_from(results, reply);
                    // A transaction that was not executed has not selected a database either.
                    let executed = !matches!(reply, [b'-' | b'_', ..] | [b'*', b'-', ..]);
                    if let (Some(database), true) = (connection.database_after, executed) {
                        connection.client.mode.database = database;
                    }
                }
            }
            self.resume(index, connection);
            return;
        }
        let request = nth_request(&in_flight.batch, nth);
        let text = match status {
            RequestStatus::Done | RequestStatus::NotExecuted => {
                return self.park_again(in_flight, index, connection, request, Time(0), false);
            }
            RequestStatus::SessionUnknown => {
                self.counters.sessions_lost += 1;
                self.on_session_unknown(&mut connection, in_flight.kind.group, opened)
            }
            RequestStatus::ReplyLost => APPLIED,
            // None can happen while a session has one request in progress, and the node submits
            // again what comes behind the end of an epoch; another session is the way out of
            // whatever it was.
            RequestStatus::OutOfOrder | RequestStatus::OpenRefused | RequestStatus::Sealed => {
                UNCERTAIN
            }
            RequestStatus::Malformed
            | RequestStatus::Refused
            | RequestStatus::NotYet
            | RequestStatus::NotKept => MALFORMED,
        };
        self.abandon_session(&mut connection, in_flight.kind.group);
        let uncertain = [UNCERTAIN, APPLIED].contains(&text);
        let errors = self.error_replies(&mut connection, in_flight.kind.group, request, text);
        self.counters.errors_uncertain += if uncertain { errors } else { 0 };
        self.resume(index, connection);
    }

    /// The log does not know the session of a request that was in progress.
    fn on_session_unknown(
        &mut self,
        connection: &mut Connection,
        group: usize,
        opened: (RequestStatus, &[u8]),
    ) -> &'static str {
        let queue = &mut self.groups[group];
        let session = connection.sessions.get(group);
        let ours = session.is_some_and(|session| session.id.owner == queue.owner.id);
        match opened {
            (RequestStatus::OpenRefused, clock) => {
                let clock = clock
                    .first_chunk()
                    .map_or(self.clock, |clock| u64::from_le_bytes(*clock));
                if queue.owner.fits(clock, self.config.session_lifetime) {
                    // The owner's age is no reason: there are too many sessions. This one never
                    // was, so nothing can have been executed under it.
                    return SESSIONS;
                }
                if ours {
                    queue.set_log_clock(clock, self.clock);
                    queue.replace_owner();
                }
            }
            // The log's clock has leapt over the lifetime, or the log is another: no session of
            // this owner is known any more.
            _ if ours => queue.replace_owner(),
            _ => {}
        }
        UNCERTAIN
    }

    fn deadline_of(&self, connection: &Connection, payload: &[u8]) -> Time {
        connection.request_since + self.config.client_deadline + time_for(payload.len())
    }

    fn park_again(
        &mut self,
        in_flight: &InFlight,
        index: usize,
        mut connection: Box<Connection>,
        request: Option<RequestView<'_>>,
        not_before: Time,
        busy: bool,
    ) {
        let Some(request) = request else {
            let group = in_flight.kind.group;
            self.error_replies(&mut connection, group, None, self.busy());
            self.resume(index, connection);
            return;
        };
        let deadline = self.deadline_of(&connection, request.payload);
        let kind = in_flight.kind;
        if kind.level == Level::Ordered
            && let Some(session) = connection.sessions.get_mut(kind.group)
        {
            session.sequence = session.sequence.saturating_sub(1);
        }
        // One request of many must not keep all of their bytes.
        let payload = match request.payload.len() < in_flight.batch.len() / 2 {
            true => Bytes::copy_from_slice(request.payload),
            false => in_flight.batch.slice_ref(request.payload),
        };
        connection.parked += payload.len();
        self.parked.push_back(Parked {
            connection: index,
            kind,
            payload,
            deadline,
            not_before,
            weight: in_flight.weight,
            busy,
        });
        self.connections[index] = Some(connection);
        self.count_input(index);
    }

    fn on_registered(&mut self, in_flight: &InFlight, status: RequestStatus, reply: &[u8]) {
        let group = in_flight.kind.group;
        let queue = &mut self.groups[group];
        match status {
            RequestStatus::Done => {
                queue.owner.standing = Standing::Registered;
                self.confirm(in_flight);
            }
            RequestStatus::OpenRefused => {
                let clock = reply
                    .first_chunk()
                    .map_or(0, |clock| u64::from_le_bytes(*clock));
                let too_many = queue.owner.fits(clock, self.config.session_lifetime);
                queue.set_log_clock(clock, self.clock);
                queue.replace_owner();
                if too_many {
                    queue.postpone_own(self.now);
                    self.fail_all_parked(group, SESSIONS);
                }
            }
            _ => queue.replace_owner(),
        }
    }

    fn fail_all_parked(&mut self, group: usize, text: &str) {
        for parked in std::mem::take(&mut self.parked) {
            if parked.kind != BatchKind::ordered(group) {
                self.parked.push_back(parked);
                continue;
            }
            if let Some(mut connection) = self.connections[parked.connection].take() {
                self.payload_errors(&mut connection, group, &parked.payload, text);
                self.resume(parked.connection, connection);
            }
        }
    }

    /// The deadline of a request that was never taken has passed.
    pub(super) fn fail_parked(&mut self, mut connection: Box<Connection>, parked: &Parked) {
        let (group, payload) = (parked.kind.group, &parked.payload);
        if parked.busy {
            let text = self.busy();
            self.counters.errors_busy += self.payload_errors(&mut connection, group, payload, text);
        } else {
            let text = self.no_quorum(group);
            self.counters.errors_no_quorum +=
                self.payload_errors(&mut connection, group, payload, &text);
        }
        self.resume(parked.connection, connection);
    }

    /// Answers the requests of a batch from the `first` on that have no results.
    fn fail(&mut self, in_flight: &InFlight, first: usize, failure: Failure) {
        let group = in_flight.kind.group;
        let no_quorum = self.no_quorum(group);
        let Ok(view) = BatchView::new(&in_flight.batch) else {
            return;
        };
        let mut opens = false;
        for (entry, request) in in_flight.entries.iter().zip(view.requests()).skip(first) {
            match *entry {
                Entry::Open(_) => opens = true,
                Entry::Command(index) | Entry::Read(index) => {
                    let opened = std::mem::take(&mut opens);
                    let Some(mut connection) = self.connections[index].take() else {
                        continue;
                    };
                    let shown = match (failure, entry) {
                        // A read leaves no trace: without an answer it just did not happen.
                        (Failure::Uncertain, Entry::Read(_)) => Failure::NoQuorum,
                        _ => failure,
                    };
                    if failure == Failure::Busy
                        && !self.refuses
                        && !connection.gone
                        && self.now < self.deadline_of(&connection, request.payload)
                    {
                        // There may be room soon, and only then does the client have to know.
                        if opened {
                            self.abandon_session(&mut connection, group);
                        }
                        let at = self.now + BUSY_RETRY;
                        self.park_again(in_flight, index, connection, Some(request), at, true);
                        continue;
                    }
                    if *entry == Entry::Command(index) {
                        match connection.sessions.get_mut(group) {
                            Some(session) if failure == Failure::Busy && !opened => {
                                session.sequence -= 1;
                            }
                            // The end of the session also ends whatever of it is still on its
                            // way to a replica.
                            _ => self.abandon_session(&mut connection, group),
                        }
                    }
                    let text = match shown {
                        Failure::NoQuorum => &no_quorum,
                        Failure::Uncertain => UNCERTAIN,
                        Failure::Busy => self.busy(),
                    };
                    let errors = self.error_replies(&mut connection, group, Some(request), text);
                    match shown {
                        Failure::NoQuorum => self.counters.errors_no_quorum += errors,
                        Failure::Uncertain => self.counters.errors_uncertain += errors,
                        Failure::Busy => self.counters.errors_busy += errors,
                    }
                    self.resume(index, connection);
                }
                Entry::Past(index) | Entry::Tick(index) => {
                    if let Some(connection) = self.connections[index].take() {
                        self.on_past_failed(index, connection, failure == Failure::Busy);
                    }
                }
                Entry::Close(session) => self.groups[group].close_again(session),
                Entry::Register => {
                    let queue = &mut self.groups[group];
                    queue.replace_owner();
                    queue.postpone_own(self.now);
                    let text = if failure == Failure::Busy {
                        self.busy()
                    } else {
                        &no_quorum
                    };
                    self.fail_all_parked(group, text);
                }
                Entry::Renew => self.groups[group].postpone_own(self.now),
                Entry::MemoryLimit => {
                    let queue = &mut self.groups[group];
                    queue.memory_limit.in_progress = false;
                    match failure {
                        Failure::Busy => queue.memory_limit.sequence -= 1,
                        _ => queue.replace_owner(),
                    }
                    queue.postpone_own(self.now);
                }
            }
        }
    }

    /// Answers each command of a request with an error, but for those answered already; gives how
    /// many errors there were.
    fn error_replies(
        &mut self,
        connection: &mut Connection,
        group: usize,
        request: Option<RequestView<'_>>,
        text: &str,
    ) -> u64 {
        match request.filter(|request| request.kind == RequestKind::Command) {
            Some(request) => self.payload_errors(connection, group, request.payload, text),
            None => {
                // A reply is owed that cannot be placed: the connection has no future.
                connection.closing = true;
                0
            }
        }
    }

    pub(super) fn payload_errors(
        &mut self,
        connection: &mut Connection,
        group: usize,
        payload: &[u8],
        text: &str,
    ) -> u64 {
        connection.watching.clear();
        if connection.gone {
            return 0;
        }
        let mut out = std::mem::take(&mut self.reply);
        out.clear();
        let mut errors = 0;
        let mut args = ArgsBuffer::new();
        if let Ok(mut commands) = Commands::new(payload) {
            while let Ok(Some(command)) = commands.next(&mut args) {
                if command.spec.op == Op::Literal {
                    out.extend_from_slice(args[0]);
                } else {
                    errors += 1;
                    Reply::unbounded(&mut out, false).error(text);
                }
            }
        }
        self.counters.errors += errors;
        self.counters.output_bytes += out.len() as u64;
        connection.answer_in(group, &out);
        self.reply = out;
        errors
    }

    /// The reply to a question for versions: an array of 16 hexadecimal digits each.
    fn on_versions(&mut self, connection: &mut Connection, reply: &[u8]) {
        let versions: Option<Vec<u64>> = reply.strip_prefix(b"*").and_then(|rest| {
            let mut lines = rest.split(|byte| *byte == b'\n').skip(1);
            let mut versions = Vec::new();
            while let (Some(b"$16\r"), Some(digits)) = (lines.next(), lines.next()) {
                let digits = std::str::from_utf8(digits.strip_suffix(b"\r")?).ok()?;
                versions.push(u64::from_str_radix(digits, 16).ok()?);
            }
            Some(versions)
        });
        let mut watching = std::mem::take(&mut connection.watching);
        match versions {
            Some(versions) if versions.len() == watching.len() => {
                for (key, version) in watching.iter_mut().zip(versions) {
                    key.version = version;
                }
                // The first version seen of a key is the one that counts.
                for key in watching {
                    let known = |other: &&super::connection::WatchedKey| {
                        other.database == key.database && other.key == key.key
                    };
                    if connection.watched.iter().find(known).is_none() {
                        connection.watched.push(key);
                    }
                }
                connection.transaction_group = Some(connection.group);
                connection.answer(b"+OK\r\n");
            }
            _ if reply.first() == Some(&b'-') => connection.answer(reply),
            _ => connection.answer(b"-ERR the keys could not be watched\r\n"),
        }
    }
}

fn nth_request(batch: &[u8], nth: usize) -> Option<RequestView<'_>> {
    BatchView::new(batch).ok()?.requests().nth(nth)
}
