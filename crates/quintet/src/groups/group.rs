//! A running group, and handles to its shards.
//!
//! ```text
//!   Group::local(3) ──► LocalGroup (settings) ──start──► members, each with threads of its own
//!   group.shard::<Counter>("counter", 0) ──► Shard ──► ordered(), query(), at(when), history(…)
//!                                              └─ call ──► a member that runs ──► Pending
//! ```

use super::{
    CallError, Pending, Retention, Time, Version, When,
    call::{Call, Kind, Told},
    machine::ServiceMachine,
    pending::Answering,
    service::{FieldOf, HasHistory, Methods, Reply, Versioned},
};
use crate::{Cluster, Error, cluster::Local, small::Replicated};
use quintet_replica::{CommandTime, Level, StateMachine, past::Asking};
use quintet_runtime::{Handle, Running, StatusReport, SubmitError};
use serde::Serialize;
use std::{
    any::TypeId,
    fmt,
    marker::PhantomData,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;

/// The settings of a group that is yet to be started.
#[derive(Clone, Debug)]
pub struct LocalGroup {
    local: Local,
    deadline: Duration,
    retention: Retention,
}

impl LocalGroup {
    /// The replication protocol, by its name in [`protocols`](crate::protocols). The default:
    /// `derecho`.
    #[must_use]
    pub fn protocol(mut self, name: impl Into<String>) -> Self {
        self.local = self.local.protocol(name);
        self
    }

    /// Sets an option of the protocol.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.local = self.local.option(name, value);
        self
    }

    /// Keeps the data in `directory`, on disk: a group started there again has all of it, its past
    /// included. The default: in memory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.local = self.local.directory(directory);
        self
    }

    /// How long a call may take. The default: 10 seconds.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.local = self.local.deadline(deadline);
        self.deadline = deadline;
        self
    }

    /// How much of the past is kept.
    #[must_use]
    pub const fn retain(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// One shard of this service, of which every member of the group is a member.
    #[must_use]
    pub fn one<S: Methods>(self, name: &str) -> OneService<S> {
        OneService {
            group: self,
            name: name.into(),
            service: PhantomData,
        }
    }
}

/// A group of one shard that is yet to be started.
pub struct OneService<S> {
    group: LocalGroup,
    name: Arc<str>,
    service: PhantomData<fn() -> S>,
}

impl<S: Methods> fmt::Debug for OneService<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut one = formatter.debug_struct("OneService");
        one.field("service", &S::NAME).field("name", &self.name);
        one.finish_non_exhaustive()
    }
}

/// Machines of a service.
struct Machines<S> {
    retention: Retention,
    service: PhantomData<fn() -> S>,
}

impl<S> Clone for Machines<S> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<S: Methods> Replicated<()> for Machines<S> {
    fn machine(&self) -> Box<dyn StateMachine> {
        Box::new(ServiceMachine::<S>::new(self.retention))
    }
}

impl<S: Methods> OneService<S> {
    /// Starts the members.
    ///
    /// # Errors
    /// [`Error::Start`] when a setting is invalid or the directory belongs to another service,
    /// [`Error::System`] when the operating system refuses. Nothing is left running then.
    pub fn start(self) -> Result<Group, Error> {
        let machines = Machines::<S> {
            retention: self.group.retention,
            service: PhantomData,
        };
        let (running, temporary) = self.group.local.start(machines)?.into_parts();
        let handles = running.iter().flatten().map(Running::handle).collect();
        Ok(Group {
            shards: vec![ShardEntry {
                name: self.name.clone(),
                service: TypeId::of::<S>(),
            }],
            members: running.into_iter().map(Mutex::new).collect(),
            calls: Arc::new(Calls {
                handles,
                turn: AtomicUsize::new(0),
                deadline: self.group.deadline,
            }),
            _temporary: temporary,
        })
    }
}

#[derive(Debug)]
struct ShardEntry {
    name: Arc<str>,
    service: TypeId,
}

/// Ways to the members, shared by the handles of shards.
#[derive(Debug)]
struct Calls {
    handles: Vec<Handle>,
    turn: AtomicUsize,
    deadline: Duration,
}

/// A running group in this process. Dropping it stops its members; handles of its shards may be kept
/// and answer [`CallError::Stopped`] then.
#[derive(Debug)]
pub struct Group {
    shards: Vec<ShardEntry>,
    members: Vec<Mutex<Option<Running>>>,
    calls: Arc<Calls>,
    /// Behind the members: removed once they have stopped.
    _temporary: Option<TempDir>,
}

impl Group {
    /// A group of this many members in threads of this process, which talk over loopback TCP.
    #[must_use]
    pub fn local(members: usize) -> LocalGroup {
        LocalGroup {
            local: Cluster::local(members).protocol("derecho"),
            deadline: Duration::from_secs(10),
            retention: Retention::default(),
        }
    }

    /// A handle of a shard.
    ///
    /// # Errors
    /// [`CallError::NoSuchShard`].
    pub fn shard<S: Methods>(&self, name: &str, number: usize) -> Result<Shard<S>, CallError> {
        let mut shards = self.shards.iter();
        let is_it = |entry: &&ShardEntry| {
            number == 0 && *entry.name == *name && entry.service == TypeId::of::<S>()
        };
        let entry = shards.find(is_it).ok_or_else(|| CallError::NoSuchShard {
            shard: format!("{name}/{number}"),
            service: S::NAME,
        })?;
        Ok(Shard {
            calls: self.calls.clone(),
            name: entry.name.clone(),
            route: Route::default(),
            service: PhantomData,
        })
    }

    /// Stops one member, as if its process had been told to end; the others continue. One that has
    /// stopped already is ignored.
    pub fn stop_member(&self, member: usize) {
        let running = self.members.get(member).and_then(|slot| {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take()
        });
        // It is waited for with no lock held.
        drop(running);
    }

    /// The status of each running member.
    #[must_use]
    pub fn status(&self) -> Vec<StatusReport> {
        let running = self.members.iter().filter_map(|slot| {
            let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.as_ref().map(|running| running.handle().status())
        });
        running.collect()
    }
}

/// Which member is asked, and for which state.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    when: Option<When>,
    is_stale: bool,
    member: Option<usize>,
}

/// A handle of one shard: cheap to clone, for any thread.
pub struct Shard<S> {
    calls: Arc<Calls>,
    name: Arc<str>,
    route: Route,
    service: PhantomData<fn() -> S>,
}

impl<S> Clone for Shard<S> {
    fn clone(&self) -> Self {
        Self {
            calls: self.calls.clone(),
            name: self.name.clone(),
            route: self.route,
            service: PhantomData,
        }
    }
}

impl<S: Methods> fmt::Debug for Shard<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shard = formatter.debug_struct("Shard");
        shard.field("service", &S::NAME).field("name", &self.name);
        shard.finish_non_exhaustive()
    }
}

/// A value that a field had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<V> {
    /// The version that made it; of the oldest one that is kept, the oldest version.
    pub version: Version,
    /// Its time.
    pub time: Time,
    /// The value from then on; `None` where a map has no such key.
    pub value: V,
}

impl<S: Methods> Shard<S> {
    /// Calls of ordered methods: executed at every member, exactly once.
    #[must_use]
    pub fn ordered(&self) -> S::Ordered {
        self.clone().into()
    }

    /// Calls of queries: executed at one member, on a state that has everything acknowledged before.
    #[must_use]
    pub fn query(&self) -> S::Query {
        self.clone().into()
    }

    /// Queries of the state as it was at a version or a time: permanently the same answer, whichever
    /// member gives it.
    #[must_use]
    pub fn at(&self, when: impl Into<When>) -> S::Query
    where
        S: Versioned,
    {
        let mut shard = self.clone();
        shard.route.when = Some(when.into());
        shard.into()
    }

    /// Queries of whatever state the asked member has, which may be an old one.
    #[must_use]
    pub fn stale(&self) -> S::Query {
        let mut shard = self.clone();
        shard.route.is_stale = true;
        shard.into()
    }

    /// The same shard, asked at this member only, if it runs.
    #[must_use]
    pub fn member(&self, member: usize) -> Self {
        let mut shard = self.clone();
        shard.route.member = Some(member);
        shard
    }

    /// The last values of a field, the newest first, as far back as they are kept.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn history<F: HasHistory<Key = ()>>(
        &self,
        field: FieldOf<S, F>,
        limit: usize,
    ) -> Result<Vec<Change<F::Value>>, CallError> {
        let changes = self.changes(field, &(), limit)?.into_iter();
        let told = changes.map(|change| {
            Some(Change {
                version: change.version,
                time: change.time,
                value: change.value?,
            })
        });
        told.collect::<Option<_>>().ok_or_else(|| self.no_schema())
    }

    /// The last values under a key of a map, the newest first.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn history_of<F: HasHistory>(
        &self,
        field: FieldOf<S, F>,
        key: &F::Key,
        limit: usize,
    ) -> Result<Vec<Change<Option<F::Value>>>, CallError> {
        self.changes(field, key, limit)
    }

    fn changes<F: HasHistory>(
        &self,
        field: FieldOf<S, F>,
        key: &F::Key,
        limit: usize,
    ) -> Result<Vec<Change<Option<F::Value>>>, CallError> {
        let asked = (F::key(key), limit as u64);
        let payload = Call::encode(Kind::History, field.number, &asked);
        let (pending, answering) = self.pending(false);
        self.send(Level::Linearizable, payload, answering);
        let pending: Pending<Vec<Told>> = pending;
        let told = pending.wait()?.into_iter().map(|(version, time, value)| {
            let value = value.map(|bytes| super::encoding::decode(&bytes).ok_or(()));
            Ok(Change {
                version: Version(version),
                time: Time(CommandTime(time)),
                value: value.transpose()?,
            })
        });
        told.collect::<Result<_, ()>>()
            .map_err(|()| self.no_schema())
    }

    fn no_schema(&self) -> CallError {
        CallError::Schema {
            shard: self.name.to_string(),
        }
    }

    fn pending<R: serde::de::DeserializeOwned>(&self, is_ordered: bool) -> (Pending<R>, Answering) {
        // The members' own deadline ends first and tells more.
        let timeout = self.calls.deadline + Duration::from_secs(5);
        Pending::new(self.name.clone(), timeout, is_ordered)
    }

    /// Calls an ordered method. For the macro's code.
    pub fn call_ordered<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        let (pending, answering) = self.pending(true);
        let payload = Call::encode(Kind::Ordered, method, arguments);
        self.send(Level::Ordered, payload, answering);
        pending
    }

    /// Calls a query. For the macro's code.
    pub fn call_query<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        let (pending, answering) = self.pending(false);
        let (kind, asking) = match self.route.when {
            None => {
                let payload = Call::encode(Kind::Query, method, arguments);
                let level = match self.route.is_stale {
                    true => Level::Stale,
                    false => Level::Linearizable,
                };
                self.send(level, payload, answering);
                return pending;
            }
            Some(When::Version(version)) => (Kind::QueryAtVersion(version.0), Asking::known()),
            Some(When::Time(time)) => (Kind::QueryAtTime, Asking::new(time.0)),
        };
        let payload = Call::encode(kind, method, arguments);
        let members = self.members();
        self.calls.ask_past(members, asking, payload, answering);
        pending
    }

    /// The members to be asked, the first one first.
    fn members(&self) -> Vec<usize> {
        let count = self.calls.handles.len();
        match self.route.member {
            Some(member) => (member..count).take(1).collect(),
            None => {
                let first = self.calls.turn.fetch_add(1, Ordering::Relaxed);
                (0..count)
                    .map(|offset| first.wrapping_add(offset) % count)
                    .collect()
            }
        }
    }

    fn send(&self, level: Level, payload: Vec<u8>, answering: Answering) {
        self.calls.send(self.members(), level, payload, answering);
    }
}

impl Calls {
    /// Asks the members in turn, until one has not stopped.
    fn send(
        self: &Arc<Self>,
        mut members: Vec<usize>,
        level: Level,
        payload: Vec<u8>,
        answering: Answering,
    ) {
        if members.is_empty() {
            return answering.answer(Err(CallError::Stopped));
        }
        let handle = &self.handles[members.remove(0)];
        let calls = self.clone();
        let again = payload.clone();
        handle.submit_with(level, payload, move |answer| match answer {
            Err(SubmitError::Stopped) => calls.send(members, level, again, answering),
            answer => answering.answer(answer.map_err(CallError::from)),
        });
    }

    /// The same for a read of the past.
    fn ask_past(
        self: &Arc<Self>,
        mut members: Vec<usize>,
        asking: Asking,
        payload: Vec<u8>,
        answering: Answering,
    ) {
        if members.is_empty() {
            return answering.answer(Err(CallError::Stopped));
        }
        let handle = &self.handles[members.remove(0)];
        let calls = self.clone();
        let again = payload.clone();
        handle.query_past_with(asking, &payload, move |answer| match answer {
            Err(SubmitError::Stopped) => calls.ask_past(members, asking, again, answering),
            answer => answering.answer(answer.map_err(CallError::from)),
        });
    }
}
