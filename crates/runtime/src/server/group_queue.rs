//! The batches of one group in the making, and the owner of the server's sessions there.
//!
//! ```text
//!   connection ──key──► group ──► GroupQueue { ordered, linearizable, stale; owner } ──► batches of it
//! ```
//!
//! Without a layout there is one, of group 0.

use super::{
    batches::{Entry, Pending},
    connection::Connection,
    sessions::{Owner, Standing},
};
use quintet_replica::{BatchBuilder, CommandId, GroupId, Level, RequestKind, SessionId, Time};
use quintet_store::RequestBuilder;
use std::{collections::VecDeque, time::Duration};

/// The levels of batches, in the order in which they are submitted.
pub(super) const LEVELS: [Level; 3] = [Level::Ordered, Level::Linearizable, Level::Stale];
/// Sessions ended by one batch.
const CLOSES_PER_BATCH_MAX: usize = 1024;
/// Ended sessions wait this long for a batch that goes anyway.
const CLOSES_WAIT_MAX: Duration = Duration::from_secs(1);
/// Ended sessions that are remembered. When there are more, all are given up together with their
/// owner: what no server renews any more lapses by itself.
const CLOSES_MAX: usize = 1 << 16;
/// The server's own requests are tried again after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Which batch a request goes into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchKind {
    /// The group, by its place among the gateway's.
    pub group: usize,
    pub level: Level,
}

impl BatchKind {
    pub const fn ordered(group: usize) -> Self {
        Self {
            group,
            level: Level::Ordered,
        }
    }
}

/// The orders that tell the store of its limit of memory.
#[derive(Debug, Default)]
pub(super) struct MemoryLimit {
    pub in_progress: bool,
    pub not_before: Time,
    pub sequence: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct GroupQueue {
    pub ordered: Pending,
    linearizable: Pending,
    stale: Pending,
    pub owner: Owner,
    pub closes: VecDeque<SessionId>,
    closes_since: Time,
    pub memory_limit: MemoryLimit,
    /// It has a place among those with batches in the making, and among those whose owners may have
    /// something to order.
    pub gathers: bool,
    pub is_due: bool,
    /// How far the log's clock was ahead of this server's when they were last found to differ.
    pub clock_offset: i64,
}

impl GroupQueue {
    /// `seed` must be different at every start of the process and for each group.
    pub fn new(group: GroupId, seed: u64) -> Self {
        let pending = || Pending::of(BatchBuilder::of(group));
        Self {
            ordered: pending(),
            linearizable: pending(),
            stale: pending(),
            owner: Owner::new(seed),
            closes: VecDeque::new(),
            closes_since: Time(0),
            memory_limit: MemoryLimit::default(),
            gathers: false,
            is_due: false,
            clock_offset: 0,
        }
    }

    /// Whether a batch of some level is in the making.
    pub fn is_gathering(&self) -> bool {
        LEVELS
            .iter()
            .any(|level| !self.pending(*level).entries.is_empty())
    }

    pub const fn pending(&self, level: Level) -> &Pending {
        match level {
            Level::Ordered => &self.ordered,
            Level::Linearizable => &self.linearizable,
            Level::Stale => &self.stale,
        }
    }

    pub const fn pending_mut(&mut self, level: Level) -> &mut Pending {
        match level {
            Level::Ordered => &mut self.ordered,
            Level::Linearizable => &mut self.linearizable,
            Level::Stale => &mut self.stale,
        }
    }

    /// All sessions are given up; connections open others with their next write.
    pub fn replace_owner(&mut self) {
        self.owner.replace();
        self.closes.clear();
        self.memory_limit.sequence = 0;
    }

    /// The same when the log may have ended them; whether that was so.
    pub fn replace_lapsed_owner(&mut self, now: Time, lifetime: Duration) -> bool {
        let idle = self.ordered.in_flight == 0 && self.ordered.entries.is_empty();
        let lapsed = idle && self.owner.may_have_lapsed(now, lifetime);
        if lapsed {
            self.replace_owner();
        }
        lapsed
    }

    /// The log's clock is now this, far from this server's.
    pub const fn set_log_clock(&mut self, clock: u64, ours: u64) {
        self.clock_offset = clock.wrapping_sub(ours) as i64;
    }

    /// This server's clock, or the log's where the two were found to differ by far.
    pub const fn log_clock(&self, clock: u64) -> u64 {
        clock.saturating_add_signed(self.clock_offset)
    }

    /// A connection's session ends.
    pub fn close(&mut self, session: SessionId, now: Time) {
        if session.owner != self.owner.id {
            return;
        }
        self.owner.open -= 1;
        if self.closes.is_empty() {
            self.closes_since = now;
        }
        if self.closes.len() < CLOSES_MAX {
            self.closes.push_back(session);
        } else {
            self.replace_owner();
        }
    }

    /// It could not be ended; the next batch tries again.
    pub fn close_again(&mut self, session: SessionId) {
        if session.owner == self.owner.id {
            self.closes.push_back(session);
        }
    }

    /// A command of a connection, in its session in the group at this place, which begins here if it
    /// has none.
    pub fn push_command(
        &mut self,
        index: usize,
        connection: &mut Connection,
        (group, payload): (usize, &[u8]),
        now: Time,
    ) {
        let owner = self.owner.id;
        let known = connection.sessions.get(group);
        if known.is_none_or(|session| session.id.owner != owner) {
            let session = self.owner.next();
            self.owner.open += 1;
            connection.sessions.begin(group, session);
            let id = CommandId {
                session,
                sequence: 0,
            };
            let started = self.owner.started.to_le_bytes();
            self.ordered
                .push(Entry::Open(index), id, RequestKind::Open, &started, now);
        }
        if let Some(session) = connection.sessions.get_mut(group) {
            session.sequence += 1;
            let id = CommandId {
                session: session.id,
                sequence: session.sequence,
            };
            let (entry, kind) = (Entry::Command(index), RequestKind::Command);
            self.ordered.push(entry, id, kind, payload, now);
        }
    }

    fn own_command(&self, sequence: u64) -> CommandId {
        CommandId {
            session: self.owner.own(),
            sequence,
        }
    }

    /// Orders the server's own requests. `limit` is what the store is to be told about its
    /// memory, `waits` whether a command waits for the owner's registration, `clock` this server's.
    pub fn push_own(
        &mut self,
        limit: Option<bool>,
        waits: impl FnOnce() -> bool,
        (now, clock): (Time, u64),
        lifetime: Duration,
    ) {
        match self.owner.standing {
            Standing::Registering => return,
            Standing::New if limit.is_some() || waits() => {
                self.owner.started = self.log_clock(clock);
                self.owner.standing = Standing::Registering;
                let (id, started) = (self.own_command(0), self.owner.started.to_le_bytes());
                self.ordered
                    .push(Entry::Register, id, RequestKind::Open, &started, now);
                return;
            }
            Standing::New => return,
            Standing::Registered => {}
        }
        if let Some(refuse) = limit {
            let mut builder = RequestBuilder::new();
            builder.memory_limit(refuse);
            self.memory_limit.in_progress = true;
            self.memory_limit.sequence += 1;
            let id = self.own_command(self.memory_limit.sequence);
            let (entry, kind) = (Entry::MemoryLimit, RequestKind::Command);
            self.ordered.push(entry, id, kind, builder.as_bytes(), now);
        }
        let goes_anyway = !self.ordered.entries.is_empty();
        if !goes_anyway && self.ordered.in_flight == 0 && now >= self.owner.renew_at(lifetime) {
            let session = SessionId {
                owner: self.owner.id,
                number: 0,
            };
            let id = CommandId {
                session,
                sequence: 0,
            };
            self.ordered
                .push(Entry::Renew, id, RequestKind::Renew, &[], now);
        }
        if goes_anyway || now >= self.closes_at() {
            for _ in 0..self.closes.len().min(CLOSES_PER_BATCH_MAX) {
                let Some(session) = self.closes.pop_front() else {
                    break;
                };
                let id = CommandId {
                    session,
                    sequence: 0,
                };
                self.ordered
                    .push(Entry::Close(session), id, RequestKind::Close, &[], now);
            }
            self.closes_since = now;
        }
    }

    fn closes_at(&self) -> Time {
        if self.closes.is_empty() {
            Time::NEVER
        } else {
            self.closes_since + CLOSES_WAIT_MAX
        }
    }

    /// When the server has something of its own to order at the latest.
    pub fn own_deadline(&self, lifetime: Duration) -> Time {
        if self.owner.standing != Standing::Registered {
            return Time::NEVER;
        }
        let idle = self.ordered.in_flight == 0 && self.ordered.entries.is_empty();
        let renews = match idle {
            true => self.owner.renew_at(lifetime),
            false => Time::NEVER,
        };
        renews.min(self.closes_at())
    }

    /// The server's own requests failed: not again at once.
    pub fn postpone_own(&mut self, now: Time) {
        self.owner.renew_after = now + RETRY_AFTER;
        self.memory_limit.not_before = now + RETRY_AFTER;
    }

    /// The store was told of its limit: the next view that comes may be from before.
    pub fn memory_limit_told(&mut self, now: Time) {
        self.memory_limit.not_before = now + RETRY_AFTER;
    }
}
