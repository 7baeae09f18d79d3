//! One client's part of shared resources: batches, replies, memory for unfinished commands.
//!
//! ```text
//!   ready ──► small ───────────────────► shares a batch with others
//!        └──► large: held, first come ─► after the small ones, alone in its batch, a few at a time
//!
//!   commands of a request:   2 ──replies are short──► 8 ──► 32 … 1024
//!                            1 ◄──replies are long───
//! ```
//!
//! A batch is answered as a whole, and what is ordered is executed in order, so a request of 64 MiB
//! delays whatever stands beside it. A connection tells by its input and by its last reply that its
//! next request is large; what a transaction has queued shows when its EXEC comes.
//!
//! After a large request that took long, the next waits: clients with small requests have an equal
//! share of the time each, and those with large requests one together, or more when they are many.
//!
//! ```text
//!   large ── took 200 ms ──┤ 3 others were served lately: 600 ms for them ├── large
//! ```
//!
//! Those at the other members are taken to be as many as here.

use super::{
    connection::{Connection, Phase},
    gateway::Gateway,
    group_queue::BatchKind,
};
use quintet_replica::{Submission, Time, limits};
use std::{collections::VecDeque, time::Duration};

/// The most commands of a connection's first request.
pub(super) const COMMANDS_FIRST: usize = 2;
/// A request made of more input than this, or a transaction of so much, is large.
pub(super) const INPUT_LARGE: usize = limits::BATCH_GATHERED;
/// A connection is taken for one of large requests after a reply of more than this.
const REPLY_LARGE: usize = 1 << 20;
/// Large requests in flight count for at most this together, unless it is one.
const IN_FLIGHT_MAX: usize = 16 << 20;
/// A large request that takes no longer than this delays no other.
const SHORT: Duration = Duration::from_millis(20);
/// Others are counted for so long, and for as long again.
const PERIOD: Duration = Duration::from_secs(1);
/// More others do not make large requests wait longer …
const OTHERS_MAX: u32 = 16;
/// … and no pause is longer than this.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Connections whose next request is large, in the order in which they came.
    pub held: VecDeque<usize>,
    /// The weight of the large requests in flight.
    pub in_flight: usize,
    /// Bytes that all connections hold.
    pub inputs: usize,
    /// The next large request goes no earlier.
    pub not_before: Time,
    period: Time,
    /// The number of the period.
    nth: u32,
    /// Connections with small requests in this period and in the one before it.
    others: [u32; 2],
}

/// In which periods a connection made requests.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Last counted among those with small ones.
    counted: u32,
    /// The last large one.
    large: u32,
}

/// The weight that shares the time after a large request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Among {
    /// The group's members, each with clients.
    pub members: usize,
    /// How long a client waits.
    pub deadline: Duration,
}

impl Shares {
    /// Whether another large request may go.
    pub const fn takes(&self, weight: usize) -> bool {
        self.in_flight == 0 || self.in_flight + weight <= IN_FLIGHT_MAX
    }

    /// A connection has made a request: one with small requests only is one of the others.
    #[inline]
    pub fn note_request(&mut self, seen: &mut Seen, large: bool, now: Time) {
        if now.since(self.period) >= PERIOD {
            self.begin_period(now);
        }
        if large {
            seen.large = self.nth;
        } else if seen.counted != self.nth {
            seen.counted = self.nth;
            self.others[0] += u32::from(self.nth - seen.large.min(self.nth) > 1);
        }
    }

    fn begin_period(&mut self, now: Time) {
        let before = match now.since(self.period) < PERIOD * 2 {
            true => self.others[0],
            false => 0,
        };
        self.others = [0, before];
        self.period = now;
        // Connections that have made none stand at 0.
        self.nth = self.nth.wrapping_add(1).max(2);
    }

    /// A large request has ended, and took so much longer than small ones take: those of others
    /// have their time before the next. All that are held have their turn within a quarter of the
    /// time that a client waits.
    pub fn note_large(&mut self, weight: usize, took: Duration, among: Among, now: Time) {
        self.in_flight -= weight;
        // Large replies of the past say nothing certain of a request that is small.
        if took < SHORT || weight <= INPUT_LARGE {
            return;
        }
        if now.since(self.period) >= PERIOD {
            self.begin_period(now);
        }
        let members = u32::try_from(among.members).unwrap_or(u32::MAX);
        let others = self.others[0].max(self.others[1]);
        let others = others.saturating_mul(members).min(OTHERS_MAX);
        let held = u32::try_from(self.held.len()).unwrap_or(u32::MAX - 1);
        let most = PAUSE_MAX.min(among.deadline / 4 / (held + 1));
        self.not_before = now + (took * others).min(most);
    }
}

impl Connection {
    /// The weight of its next request among the large ones; 0 when it is none of them.
    pub fn weight(&self) -> usize {
        let input = self.input.len();
        // One that is still arriving has nothing to wait for.
        let complete = self.parser.missing(input) == 0;
        let input = if complete && input > INPUT_LARGE {
            input
        } else {
            0
        };
        let reply = if self.reply_last > REPLY_LARGE {
            self.reply_last
        } else {
            0
        };
        let exec = match &self.transaction {
            Some(transaction) if transaction.exec_waits => transaction.queued.len(),
            _ => 0,
        };
        input.max(reply).max(exec)
    }

    /// A request was answered with this many bytes: the next has as many commands as fit `good`.
    pub fn note_reply(&mut self, bytes: usize, good: usize) {
        self.reply_last = bytes;
        let commands = self.request_commands.max(1);
        if bytes > good {
            self.commands_max = (commands.saturating_mul(good) / bytes).max(1);
        } else if commands >= self.commands_max && bytes <= good / 4 {
            self.commands_max = self.commands_max.saturating_mul(4).min(1 << 20);
        }
    }
}

impl Gateway {
    /// Whether a connection that is held would be served now.
    pub(super) fn may_serve_held(&self, now: Time) -> bool {
        if now < self.shares.not_before {
            return false;
        }
        // One that waits for the owner's registration, or for room, comes first.
        if self.parked.iter().any(|parked| parked.weight > 0) {
            return false;
        }
        let first = self.shares.held.front();
        let first = first.and_then(|index| self.connections[*index].as_deref());
        match first {
            Some(connection) => self.shares.takes(connection.weight()),
            None => !self.shares.held.is_empty(),
        }
    }

    /// Serves connections whose requests are large, each in a batch of its own.
    pub(super) fn serve_held(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        while !self.shares.held.is_empty() && self.may_serve_held(now) && !self.is_full() {
            let Some(index) = self.shares.held.pop_front() else {
                return;
            };
            let Some(connection) = &self.connections[index] else {
                continue;
            };
            let weight = connection.weight();
            self.submit_all(now, submissions);
            self.serve(index, true);
            let kinds: Vec<_> = self.gathering().collect();
            for kind in &kinds {
                let part = weight.div_ceil(kinds.len());
                self.submit_alone(*kind, part, now, submissions);
            }
        }
    }

    /// Submits what has gathered, so that what comes next is alone in its batch.
    pub(super) fn submit_all(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        self.submit_if(now, submissions, |_, _| true);
    }

    /// Submits a large request.
    pub(super) fn submit_alone(
        &mut self,
        kind: BatchKind,
        weight: usize,
        now: Time,
        submissions: &mut Vec<Submission>,
    ) {
        self.submit(kind, now, submissions);
        if let Some(submission) = submissions.last()
            && let Some(in_flight) = self.in_flight.get_mut(&submission.id.0)
        {
            in_flight.weight = weight;
            self.shares.in_flight += weight;
        }
    }

    /// The bytes that a connection holds have changed: counts them, and drops the connection that
    /// holds most when all together hold more than they may.
    pub(super) fn count_input(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        let bytes = connection.holds();
        self.shares.inputs = self.shares.inputs + bytes - connection.counted;
        connection.counted = bytes;
        while self.shares.inputs > self.config.inputs_bytes_max {
            let all = self.connections.iter().enumerate();
            let counted = all.filter_map(|(index, it)| Some((it.as_ref()?.counted, index)));
            let Some((bytes @ 1.., most)) = counted.max() else {
                return;
            };
            self.drop_input(most, bytes);
        }
    }

    #[cold]
    fn drop_input(&mut self, index: usize, bytes: usize) {
        let Some(mut connection) = self.connections[index].take() else {
            return;
        };
        self.shares.inputs -= std::mem::take(&mut connection.counted);
        connection.forget_unfinished();
        if connection.parked > 0 {
            self.drop_parked(index, &mut connection);
        }
        let gone = connection.gone;
        if !gone {
            let client = connection.client.peer;
            tracing::warn!(
                %client, bytes,
                "disconnected: all clients together may have sent no more of commands that are \
                 not executed yet, and this one has sent most"
            );
            if connection.phase == Phase::Free {
                connection.answer(INPUTS_FULL);
            }
            connection.closing = true;
            self.counters.connections_dropped += 1;
            self.mark_dirty(index, &mut connection);
        }
        let free = connection.phase == Phase::Free;
        self.connections[index] = Some(connection);
        if gone && free {
            self.release(index);
        }
    }

    /// The requests that wait to be sent will not be.
    fn drop_parked(&mut self, index: usize, connection: &mut Connection) {
        while let Some(nth) = self.parked.iter().position(|it| it.connection == index) {
            self.parked.remove(nth);
            let have_ended = match &mut connection.spread {
                Some(spread) => spread.ended(),
                None => true,
            };
            if have_ended {
                connection.spread = None;
                connection.phase = Phase::Free;
            }
        }
        connection.parked = 0;
    }
}

/// Said before a connection is closed.
const INPUTS_FULL: &[u8] = b"-BUSY memory for unfinished commands is full; the command was not \
    executed, retry\r\n";
