//! Tells shards of their members, see [`quintet_groups::view`].
//!
//! ```text
//!   replicas here: group 3 has members 1, 4 in view 7 ──► lowest member is here ──► View, ordered
//!                                                    └──► a later one is        ──► after a while:
//!                                         last view of the shard is earlier? ── yes ──► View, ordered
//! ```
//!
//! Each process of a group has a herald if a service has a `#[view]` method, else none. All may tell the
//! same, and one that is late tells nothing: the shard takes only later views.

use super::{
    CallError, Pending, call,
    calls::{Calls, Source},
    remote::Wanted,
};
use quintet_groups::view::{self, Told};
use quintet_replica::Level;
use quintet_runtime::pauses::Pauses;
use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How often a herald looks.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// Each further member leaves those before it this much time to tell.
const BACKS_UP_AFTER: Duration = Duration::from_millis(500);
/// A shard that takes nothing is tried again after this at the latest.
const TRIES_AGAIN_MAX: Duration = Duration::from_secs(5);
/// It looks after its other shards when one has not answered for this long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// The thread that tells.
#[derive(Debug)]
pub(super) struct Herald {
    stops: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A shard, as far as its herald has come.
struct Shard {
    source: Source,
    /// The newest view that is known here, and since when.
    newest: Told,
    since: Instant,
    /// It has been told of, or the shard cannot be told.
    is_done: bool,
    /// The next attempt comes then.
    again: Instant,
    /// Between attempts, while the shard takes nothing.
    pauses: Pauses,
}

impl Herald {
    /// Tells these shards; none has no thread.
    pub fn start(calls: &Arc<Calls>, sources: Vec<Source>) -> std::io::Result<Self> {
        if sources.is_empty() {
            return Ok(Self {
                stops: None,
                thread: None,
            });
        }
        let shards = sources.into_iter().map(|source| Shard {
            is_done: true,
            ..Shard::new(source, Told::default())
        });
        let (calls, mut shards): (_, Vec<_>) = (calls.clone(), shards.collect());
        let (stops, stopped) = mpsc::channel();
        let run = move || {
            while stopped.recv_timeout(LOOKS_EVERY) == Err(RecvTimeoutError::Timeout) {
                for shard in &mut shards {
                    shard.look(&calls);
                }
            }
        };
        let thread = std::thread::Builder::new().name("herald".to_owned());
        Ok(Self {
            stops: Some(stops),
            thread: Some(thread.spawn(run)?),
        })
    }

    /// It tells no more; does not wait.
    pub fn stop(&mut self) {
        self.stops = None;
    }
}

impl Drop for Herald {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there is no reason for one here.
            let _ = thread.join();
        }
    }
}

impl Shard {
    /// One that is to be told of this view.
    fn new(source: Source, newest: Told) -> Self {
        let now = Instant::now();
        Self {
            source,
            newest,
            since: now,
            is_done: false,
            again: now,
            pauses: Pauses::new(LOOKS_EVERY, TRIES_AGAIN_MAX),
        }
    }

    fn look(&mut self, calls: &Arc<Calls>) {
        // The replicas here that are members of it.
        let (view, here) = calls.view_of(self.source.group);
        let Some(view) = view.filter(|view| view.number >= self.newest.number) else {
            return;
        };
        if view.number > self.newest.number {
            // Also where the members are those of the last one seen here: another herald may have told of
            // one in between.
            *self = Self::new(self.source.clone(), view);
        }
        let ranks = here.iter().filter_map(|member| {
            let mut members = self.newest.members.iter();
            members.position(|it| it == member)
        });
        let Some(rank) = ranks.min().filter(|_| !self.is_done) else {
            return;
        };
        let waits = BACKS_UP_AFTER.saturating_mul(u32::try_from(rank).unwrap_or(u32::MAX));
        if self.since.elapsed() < waits || Instant::now() < self.again {
            return;
        }
        let told = match rank {
            0 => Ok(false),
            _ => self.is_told(calls),
        };
        let told = told.and_then(|told| match told {
            true => Ok(()),
            false => self.tell(calls),
        });
        // Others are tried again.
        self.again = Instant::now() + self.pauses.next();
        self.is_done = matches!(
            told,
            Ok(()) | Err(CallError::Panicked { .. } | CallError::Schema { .. })
        );
    }

    fn is_told(&self, calls: &Arc<Calls>) -> Result<bool, CallError> {
        let wanted = Wanted::Level(Level::Linearizable);
        let to = calls.to(&self.source, None);
        let last: Pending<(u64, u64)> = Pending::send(calls, to, wanted, view::last());
        let last = last.deadline(ANSWERED_WITHIN).wait()?;
        Ok(last >= self.newest.number)
    }

    fn tell(&self, calls: &Arc<Calls>) -> Result<(), CallError> {
        let wanted = Wanted::Level(Level::Ordered);
        let to = calls.to(&self.source, None);
        let told: Pending<call::Anything> =
            Pending::send(calls, to, wanted, view::tell(&self.newest));
        told.deadline(ANSWERED_WITHIN).wait().map(drop)
    }
}
