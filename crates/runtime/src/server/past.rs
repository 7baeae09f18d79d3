//! Reads of the past: the steps until their time is closed.
//!
//! ```text
//!   QUINTET.AT t GET k ──► Asking ──► Read ──► closed: the reply
//!                             ▲        └────► not yet ─┐
//!                             └── Tick, Wait ◄─────────┘    until the client's deadline
//! ```
//!
//! A connection has one at a time, alone in its request: see [`quintet_replica::past`].

use super::{
    batches::Entry,
    connection::{Connection, Phase},
    gateway::Gateway,
    group_queue::BatchKind,
    pipeline::{DISK_FULL, Flow},
};
use bytes::Bytes;
use quintet_replica::{
    CommandId, Level, RequestKind, RequestStatus, Submission, Time,
    past::{self, Asking, Step},
};
use quintet_store::{ArgsBuffer, CommandSpec, RequestBuilder, asking, retained_bytes};
use std::time::Duration;

/// When the queue is full, or a reply had no room, the same is tried again after this.
const AGAIN: Duration = Duration::from_millis(5);
const MISSING: &str = "NOTYET that version has not been made yet";
const NOT_KEPT: &str = "NOHISTORY the past is not kept here";
const STOPS: &str = "CLUSTERDOWN this replica stops; ask another one";
const NO_ROOM: &str = "ERR the reply is too long";

/// A read of the past in progress.
#[derive(Debug)]
pub(super) struct PastRead {
    asking: Asking,
    command: Vec<u8>,
    deadline: Time,
    /// When the next step is due, if it waits, and which that is; else the one that follows a wait.
    wakes: Option<Time>,
    next: Option<Step>,
}

/// The arguments of the command that the parser has found.
fn arguments(connection: &Connection, offset: usize) -> ArgsBuffer<'_> {
    let (input, parser) = (&connection.input[offset..], &connection.parser);
    (1..parser.len())
        .map(|index| parser.argument(input, index))
        .collect()
}

impl PastRead {
    /// The bytes that it keeps.
    pub fn bytes(&self) -> usize {
        self.command.len()
    }
}

impl Gateway {
    /// The parser has found a read of the past; it is the only command of its request.
    #[cold]
    pub(super) fn on_past_command(
        &mut self,
        connection: &mut Connection,
        offset: usize,
        spec: &'static CommandSpec,
    ) -> Flow {
        if !self.builder.is_empty() {
            return Flow::Cut;
        }
        let args = arguments(connection, offset);
        let asking = match asking(spec.op, &args) {
            Ok(asking) => asking,
            Err(error) => {
                let text = error.to_string();
                drop(args);
                return self.refuse(connection, &text);
            }
        };
        if self.read_only && asking.begin() == Step::Tick {
            drop(args);
            return self.refuse(connection, DISK_FULL);
        }
        let mut builder = RequestBuilder::new();
        builder.command(spec, connection.client.mode, &args);
        drop(args);
        self.counters.commands_read += 1;
        connection.past = Some(Box::new(PastRead {
            asking,
            command: builder.into_bytes(),
            deadline: self.now + self.config.client_deadline,
            wakes: None,
            next: None,
        }));
        Flow::Past
    }

    /// Why this RETAIN is refused before it is ordered, if it is.
    #[cold]
    pub(super) fn refuses_retain(&self, connection: &Connection, offset: usize) -> Option<String> {
        let args = arguments(connection, offset);
        let (bytes, bytes_max) = (retained_bytes(&args)?, self.config.memory_max);
        (bytes_max > 0 && bytes > bytes_max)
            .then(|| format!("ERR BYTES exceeds limits.memory_max ({bytes} > {bytes_max})"))
    }

    /// A connection's read of the past begins: its first step cannot fail.
    pub(super) fn begin_past(&mut self, index: usize, connection: &mut Connection) {
        connection.phase = Phase::Request;
        if let Some(past) = &connection.past {
            let step = past.asking.begin();
            self.take_past_step(index, connection, step);
        }
    }

    /// A step that follows a result is taken by the next [`Gateway::collect`], where there is room.
    fn queue_past_step(&mut self, index: usize, connection: &mut Connection, step: Step) {
        let Some(past) = &mut connection.past else {
            return;
        };
        if matches!(step, Step::Read(_) | Step::Tick) {
            (past.wakes, past.next) = (Some(self.now), Some(step));
            self.past_waits.push(index);
        } else {
            self.take_past_step(index, connection, step);
        }
    }

    fn take_past_step(&mut self, index: usize, connection: &mut Connection, step: Step) {
        let (now, id) = (self.now, CommandId::default());
        let Some(past) = &mut connection.past else {
            return;
        };
        (past.wakes, past.next) = (None, None);
        match step {
            Step::Tick if self.read_only => self.fail_past(index, connection, DISK_FULL),
            Step::Read(level) => {
                let payload = past::payload(past.asking.time(), &past.command);
                let entry = Entry::Past(index);
                let kind = BatchKind {
                    group: connection.group,
                    level,
                };
                self.pending_mut(kind)
                    .push(entry, id, RequestKind::Past, &payload, now);
                self.on_pushed(kind);
            }
            Step::Tick => {
                let (entry, kind) = (Entry::Tick(index), RequestKind::Tick);
                let group = connection.group;
                self.groups[group]
                    .ordered
                    .push(entry, id, kind, past::CLOSING_TICK, now);
                self.on_pushed(BatchKind::ordered(group));
            }
            Step::Wait(nanoseconds) => {
                let at = now + Duration::from_nanos(nanoseconds);
                if at > past.deadline {
                    let ahead = nanoseconds / 1_000_000;
                    let text = format!("NOTYET that time is {ahead} ms ahead of the log's clock");
                    return self.fail_past(index, connection, &text);
                }
                past.wakes = Some(at);
                self.past_waits.push(index);
            }
            Step::Missing => self.fail_past(index, connection, MISSING),
        }
    }

    /// The connection's read of the past ends with an error; the caller puts it back.
    fn fail_past(&mut self, index: usize, connection: &mut Connection, text: &str) {
        connection.past = None;
        self.counters.errors += 1;
        connection.answer(format!("-{text}\r\n").as_bytes());
        self.past_ended.push(index);
    }

    /// The result of a read of the past, or of its tick.
    pub(super) fn on_past_result(
        &mut self,
        index: usize,
        mut connection: Box<Connection>,
        (status, results, reply): (RequestStatus, &Bytes, &[u8]),
        (level, ticked): (Level, bool),
    ) {
        let clock = self.groups[connection.group].log_clock(self.clock);
        let Some(past) = connection.past.as_mut().filter(|_| !connection.gone) else {
            return self.resume(index, connection);
        };
        let step = match status {
            RequestStatus::Done if ticked => Some(past.asking.on_tick()),
            _ if ticked => Some(Step::Wait(AGAIN.as_nanos() as u64)),
            // There was no room for it in the batch.
            RequestStatus::NotExecuted => Some(Step::Read(level)),
            status => past.asking.on_read(status, clock),
        };
        match (step, status) {
            (Some(step), _) => self.queue_past_step(index, &mut connection, step),
            (None, RequestStatus::Done) => {
                connection.past = None;
                self.counters.output_bytes += reply.len() as u64;
                connection.note_reply(reply.len(), self.config.output_bytes_soft);
                connection.answer_from(results, reply);
                return self.resume(index, connection);
            }
            (None, RequestStatus::NotKept) => self.fail_past(index, &mut connection, NOT_KEPT),
            (None, RequestStatus::ReplyLost) => self.fail_past(index, &mut connection, NO_ROOM),
            (None, _) => {
                let text = self.no_quorum(connection.group);
                self.fail_past(index, &mut connection, &text);
            }
        }
        self.put_back(index, connection);
    }

    /// The batch of a read of the past, or of its tick, has no results.
    pub(super) fn on_past_failed(
        &mut self,
        index: usize,
        mut connection: Box<Connection>,
        busy: bool,
    ) {
        if connection.gone {
            connection.past = None;
            return self.resume(index, connection);
        }
        if busy && !self.refuses {
            let step = Step::Wait(AGAIN.as_nanos() as u64);
            self.take_past_step(index, &mut connection, step);
        } else {
            let text = self.no_quorum(connection.group);
            self.counters.errors_no_quorum += 1;
            self.fail_past(index, &mut connection, &text);
        }
        self.put_back(index, connection);
    }

    /// Reads that have waited long enough continue, as far as there is room.
    pub(super) fn wake_past(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        for index in std::mem::take(&mut self.past_waits) {
            let Some(mut connection) = self.connections[index].take() else {
                continue;
            };
            let clock = self.groups[connection.group].log_clock(self.clock);
            let is_full = self.is_full();
            let step = match &mut connection.past {
                Some(past) if !is_full && past.wakes.is_some_and(|at| at <= now) => {
                    let next = past.next.take();
                    Some(next.unwrap_or_else(|| past.asking.on_waited(clock)))
                }
                _ => None,
            };
            if connection.gone {
                connection.past = None;
                self.resume(index, connection);
                continue;
            }
            match step {
                Some(step) => self.take_past_step(index, &mut connection, step),
                None => self.past_waits.push(index),
            }
            self.put_back(index, connection);
            self.submit_full(now, submissions);
        }
    }

    /// Reads that wait are given up: the server stops.
    pub(super) fn end_past_waits(&mut self) {
        for index in std::mem::take(&mut self.past_waits) {
            if let Some(mut connection) = self.connections[index].take() {
                self.fail_past(index, &mut connection, STOPS);
                self.put_back(index, connection);
            }
        }
    }

    /// When the next of them continues.
    pub(super) fn past_wakes(&self) -> Time {
        if self.past_waits.is_empty() || self.is_full() {
            return Time::NEVER;
        }
        let waiting = self.past_waits.iter();
        let wakes = waiting.filter_map(|index| {
            let connection = self.connections[*index].as_deref()?;
            match connection.gone {
                true => Some(Time(0)),
                false => connection.past.as_ref()?.wakes,
            }
        });
        wakes.min().unwrap_or(Time::NEVER)
    }

    /// Puts a connection back; one whose read has ended continues.
    fn put_back(&mut self, index: usize, connection: Box<Connection>) {
        if let Some(place) = self.past_ended.iter().position(|ended| *ended == index) {
            self.past_ended.swap_remove(place);
            return self.resume(index, connection);
        }
        self.connections[index] = Some(connection);
    }
}
