//! Handles of shards.
//!
//! ```text
//!   Shard ──► ordered(), query(), stale(), at(when), member(n) ──► the macro's methods ──► Pending
//!        └──► gather() ──────────────────────────────────────────────────────────────────► Replies
//! ```

use super::{
    CallError, Pending, Replies, Time, Version, When,
    at_members::Method,
    call::{Around, Call, Kind, Told},
    calls::{Calls, Source},
    encoding,
    look::{Look, Looked},
    remote::Wanted,
};
use quintet_groups::{FieldOf, HasHistory, Methods, Reply, Versioned};
use quintet_replica::{CommandTime, Level, past::Asking};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, marker::PhantomData, sync::Arc};

/// Which member is asked, and for which state.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    when: Option<When>,
    is_stale: bool,
    member: Option<usize>,
}

/// The handles with a service's methods. `#[service]` implements it.
pub trait Handles: Methods {
    /// A handle with the ordered methods.
    type Ordered: From<Shard<Self>>;
    /// A handle with the queries.
    type Query: From<Shard<Self>>;
    /// A handle with the methods that every member answers.
    type Gather: From<Shard<Self>>;
}

/// A handle of one shard: cheap to clone, for any thread.
pub struct Shard<S> {
    calls: Arc<Calls>,
    source: Source,
    route: Route,
    service: PhantomData<fn() -> S>,
}

impl<S> Shard<S> {
    pub(super) fn new(calls: &Arc<Calls>, source: Source) -> Self {
        Self {
            calls: calls.clone(),
            source,
            route: Route::default(),
            service: PhantomData,
        }
    }

    /// The same as of another time.
    pub(super) fn when(mut self, when: Option<When>) -> Self {
        self.route.when = when;
        self
    }
}

impl<S> Clone for Shard<S> {
    fn clone(&self) -> Self {
        Self {
            calls: self.calls.clone(),
            source: self.source.clone(),
            route: self.route,
            service: PhantomData,
        }
    }
}

impl<S: Methods> fmt::Debug for Shard<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shard = formatter.debug_struct("Shard");
        shard
            .field("service", &S::NAME)
            .field("name", &self.source.name);
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

impl<S> Shard<S> {
    /// Calls an ordered method; `write` appends its arguments.
    pub(super) fn order<R: DeserializeOwned>(
        &self,
        method: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Pending<R> {
        let floor = self.calls.seen();
        let payload = Call::encode_with(Kind::Ordered(floor), method, write);
        self.send(Wanted::Level(Level::Ordered), payload)
    }

    /// Calls a query.
    pub(super) fn ask<R: DeserializeOwned>(
        &self,
        method: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Pending<R> {
        let (kind, wanted) = self.state();
        self.send(wanted, Call::encode_with(kind, method, write))
    }

    /// Looks at a field.
    pub(super) fn look(&self, field: u32, look: &Look<'_>) -> Pending<Looked> {
        let (kind, wanted) = self.state();
        let call = Call::encode(kind, field, look);
        self.send(wanted, Around::Look.put(&call))
    }

    /// The state that is asked for.
    fn state(&self) -> (Kind, Wanted) {
        match self.route.when {
            None if self.route.is_stale => (Kind::Query, Wanted::Level(Level::Stale)),
            None => (Kind::Query, Wanted::Level(Level::Linearizable)),
            Some(When::Version(version)) => (
                Kind::QueryAtVersion(version.0),
                Wanted::Past(Asking::known()),
            ),
            Some(When::Time(time)) => (Kind::QueryAtTime, Wanted::Past(Asking::new(time.0))),
        }
    }

    fn no_schema(&self) -> CallError {
        CallError::Schema {
            shard: self.source.name.to_string(),
        }
    }

    fn send<R: DeserializeOwned>(&self, wanted: Wanted, payload: Vec<u8>) -> Pending<R> {
        let to = self.calls.to(&self.source, self.route.member);
        Pending::send(&self.calls, to, wanted, payload)
    }

    /// Calls a query that is told its place.
    pub(super) fn ask_at_place<R: DeserializeOwned>(&self, method: Method) -> Pending<R> {
        let Route {
            when,
            is_stale,
            member,
        } = self.route;
        let wanted = Wanted::Level(Level::Linearizable);
        let (pending, answering) = Pending::of(&self.calls, &self.source, wanted);
        let when = (when, is_stale);
        self.calls
            .ask_at_place(&self.source, member, when, method, answering);
        pending
    }

    /// Has all members answer.
    pub(super) fn ask_all<R>(&self, method: Method) -> Replies<R> {
        let (replies, arrivals) = Replies::new(&self.calls, &self.source);
        self.calls
            .gather(&self.source, self.route.member, method, arrivals);
        replies
    }
}

impl<S: Handles> Shard<S> {
    /// Calls an ordered method. For the macro's code.
    pub fn call_ordered<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        self.order(method, |out| encoding::append(arguments, out))
    }

    /// Calls a query. For the macro's code.
    pub fn call_query<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        self.ask(method, |out| encoding::append(arguments, out))
    }

    /// Calls a query that is told its place. For the macro's code.
    pub fn call_at_place<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        self.ask_at_place(Self::method(method, arguments))
    }

    /// Calls a method that every member answers. For the macro's code.
    pub fn call_gather<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Replies<R> {
        self.ask_all(Self::method(method, arguments))
    }

    fn method(number: u32, arguments: &impl Serialize) -> Method {
        Method {
            number,
            arguments: encoding::encode(arguments),
            is_versioned: S::VERSIONED,
        }
    }

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

    /// Calls that every member of the shard answers, as of one place of the order, on the state that it
    /// has there. A field without versions may show later changes, too.
    #[must_use]
    pub fn gather(&self) -> S::Gather {
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

    /// The same shard, asked at this member only.
    ///
    /// A call is answered with [`CallError::Stopped`] when the member does not run, and with
    /// [`CallError::NoWay`] when it runs in another process that this one cannot reach
    /// ([`LocalGroup::calls_at`](super::LocalGroup::calls_at)). A member that has no part in the shard
    /// sends the call to one that has.
    #[must_use]
    pub fn member(&self, member: usize) -> Self {
        let mut shard = self.clone();
        shard.route.member = Some(member);
        shard
    }

    /// The last values of a field, the newest first, as far back as they are kept; of large ones no more
    /// behind 64 MiB.
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

    /// The last values under a key of a map, the newest first, as [`Self::history`] has them.
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
        let payload = Call::encode(Kind::History, field.number(), &asked);
        let pending: Pending<Vec<Told>> = self.send(Wanted::Level(Level::Linearizable), payload);
        let told = pending.wait()?.into_iter().map(|(version, time, value)| {
            let value = value.map(|bytes| encoding::decode(&bytes).ok_or(()));
            Ok(Change {
                version: Version(version),
                time: Time(CommandTime(time)),
                value: value.transpose()?,
            })
        });
        told.collect::<Result<_, ()>>()
            .map_err(|()| self.no_schema())
    }
}
