//! Following the notifications of shards.
//!
//! ```text
//!   each shard: from 43 on ──► linearizable query ──► 43, 44 ──► to the caller, in order per shard
//!        ▲                                             │ none: a pause, up to 50 ms
//!        └─────────────────── from 45 on ◄─────────────┘
//! ```

use super::{
    CallError, Pending, Time, Version,
    call::{self, Call, Kind},
    calls::{Calls, Source},
    notices::Told,
    pending::end_of,
    remote::Wanted,
};
use quintet_replica::{CommandTime, Level};
use quintet_runtime::pauses::Pauses;
use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// A shard has this long to answer, also where less is left.
const ASKED_FOR: Duration = Duration::from_millis(200);

/// A text that a command has told ([`CallContext::notify`](super::CallContext::notify)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The shard, SUBGROUP/NUMBER.
    pub shard: String,
    /// Its number among all notifications of the shard, from 1.
    pub number: u64,
    /// The newest version of the shard behind the command.
    pub version: Version,
    /// The time of the command.
    pub time: Time,
    /// As the command has it.
    pub text: String,
}

/// The next that a follower is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// A notification.
    Told(Notification),
    /// The shard does not keep the notifications with these numbers any more, of whatever names.
    Missed {
        /// The shard, SUBGROUP/NUMBER.
        shard: String,
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
}

impl Followed {
    /// Its number, or the first of those that were missed.
    const fn number(&self) -> u64 {
        match self {
            Self::Told(told) => told.number,
            Self::Missed { first, .. } => *first,
        }
    }

    /// The shard's name.
    fn shard(&self) -> &str {
        match self {
            Self::Told(told) => &told.shard,
            Self::Missed { shard, .. } => shard,
        }
    }
}

/// One shard, as far as it was followed.
#[derive(Clone, Debug)]
pub(super) struct Following {
    calls: Arc<Calls>,
    source: Source,
    name: Arc<str>,
    next: u64,
}

/// Notifications since the last ones, and the numbers of those that were missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub missed: Option<(u64, u64)>,
    pub told: Vec<Notification>,
}

impl Batch {
    pub const fn is_empty(&self) -> bool {
        self.missed.is_none() && self.told.is_empty()
    }
}

impl Following {
    /// From this number on; 0 is the next one to come.
    pub fn new(calls: &Arc<Calls>, source: &Source, name: &str, from: u64) -> Self {
        Self {
            calls: calls.clone(),
            source: source.clone(),
            name: name.into(),
            next: from,
        }
    }

    /// The number from which on it follows.
    pub const fn next(&self) -> u64 {
        self.next
    }

    fn ask(&self) -> Pending<Told> {
        let payload = Call::encode(Kind::Follow, 0, &(&*self.name, self.next));
        let to = self.calls.to(&self.source, None);
        let wanted = Wanted::Level(Level::Linearizable);
        Pending::send(&self.calls, to, wanted, payload)
    }

    fn take(&mut self, told: Told) -> Batch {
        let from = std::mem::replace(&mut self.next, told.next);
        let missed = from > 0 && from < told.oldest;
        let notices = told.notices.into_iter().map(|it| Notification {
            shard: self.source.name.to_string(),
            number: it.number,
            version: Version(it.version),
            time: Time(CommandTime(it.time)),
            text: it.text,
        });
        Batch {
            missed: missed.then(|| (from, told.oldest - 1)),
            told: notices.collect(),
        }
    }

    /// Waits until `ends` for something that is told.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(&mut self, ends: Instant) -> Result<Batch, CallError> {
        let mut pauses = Pauses::new(PAUSE, PAUSE_MAX);
        loop {
            let told = self.ask().wait()?;
            let batch = self.take(told);
            let left = ends.saturating_duration_since(Instant::now());
            if !batch.is_empty() || left.is_zero() {
                return Ok(batch);
            }
            pauses.make(left);
        }
    }
}

/// Follows the notifications of a name in all shards: exactly those of executed commands, in their order
/// in each shard. Iterate over it; the iterator ends when the group has stopped.
pub struct Follower {
    shards: Vec<Following>,
    told: VecDeque<Followed>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.positions()).finish()
    }
}

impl Follower {
    /// From now on: what is told by commands that follow.
    pub(super) fn new(calls: &Arc<Calls>, name: &str) -> Result<Self, CallError> {
        let shards = calls.shards.iter();
        let shards = shards.map(|source| Following::new(calls, source, name, 0));
        let mut this = Self {
            shards: shards.collect(),
            told: VecDeque::new(),
        };
        this.ask(calls.timeout())?;
        // The numbers of a shard without an answer are unknown.
        match this.shards.iter().find(|it| it.next == 0) {
            Some(silent) => Err(CallError::NoQuorum {
                shard: silent.source.name.to_string(),
            }),
            None => Ok(this),
        }
    }

    /// Continues in this shard from this number on, as [`Self::positions`] told it before: also in
    /// another process. Number 1 is the first of all.
    #[must_use]
    pub fn from(mut self, shard: &str, number: u64) -> Self {
        let mut shards = self.shards.iter_mut();
        if let Some(found) = shards.find(|it| *it.source.name == *shard) {
            found.next = number.max(1);
            self.told.retain(|it| it.shard() != shard);
        }
        self
    }

    /// The number of each shard from which on it has been told nothing.
    pub fn positions(&self) -> impl Iterator<Item = (String, u64)> {
        self.shards.iter().map(|shard| {
            let name = shard.source.name.to_string();
            let first = self.told.iter().find(|it| it.shard() == name);
            let first = first.map_or(shard.next, Followed::number);
            (name, first)
        })
    }

    /// Asks all shards once, and waits about so long.
    ///
    /// # Errors
    /// When none answers: that of the first.
    fn ask(&mut self, timeout: Duration) -> Result<(), CallError> {
        let pending: Vec<_> = self.shards.iter().map(Following::ask).collect();
        let (mut failed, mut answered) = (None, false);
        for (shard, pending) in self.shards.iter_mut().zip(pending) {
            // One without a quorum does not delay the others for long, nor keep them back.
            let batch = match pending.deadline(timeout.max(ASKED_FOR)).wait() {
                Ok(told) => shard.take(told),
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            answered = true;
            let missed = batch.missed.map(|(first, last)| Followed::Missed {
                shard: shard.source.name.to_string(),
                first,
                last,
            });
            self.told.extend(missed);
            self.told.extend(batch.told.into_iter().map(Followed::Told));
        }
        failed.filter(|_| !answered).map_or(Ok(()), Err)
    }

    /// Waits for the next that is told; `None` when nothing is within `timeout`.
    ///
    /// # Errors
    /// See [`CallError`]: when no shard answers.
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Followed>, CallError> {
        let ends = end_of(timeout);
        let mut pauses = Pauses::new(PAUSE, PAUSE_MAX);
        loop {
            if let Some(next) = self.told.pop_front() {
                return Ok(Some(next));
            }
            let left = ends.saturating_duration_since(Instant::now());
            self.ask(left)?;
            let left = ends.saturating_duration_since(Instant::now());
            if self.told.is_empty() {
                if left.is_zero() {
                    return Ok(None);
                }
                pauses.make(left);
            }
        }
    }
}

impl Iterator for Follower {
    type Item = Followed;

    fn next(&mut self) -> Option<Followed> {
        let mut pauses = Pauses::new(PAUSE, PAUSE_MAX);
        while !call::is_inside() {
            match self.next_within(PAUSE_MAX) {
                Ok(Some(next)) => return Some(next),
                Ok(None) => pauses = Pauses::new(PAUSE, PAUSE_MAX),
                Err(CallError::Stopped) => return None,
                // It may answer again.
                Err(_) => pauses.make(PAUSE_MAX),
            }
        }
        None
    }
}
