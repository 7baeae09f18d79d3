//! A running group, and handles to its shards.
//!
//! ```text
//!   Group::local(3) ──► LocalGroup (settings) ──start──► members, each with threads of its own
//!   group.shard::<Counter>("counter", 0) ──► Shard ──► ordered(), query(), at(when), history(…)
//!                                              └─ call ──► a member that runs ──► Pending
//! ```

use super::{
    CallError, Done, Pending, Retention, Time, Version, When,
    call::{self, Call, Kind, Told},
    courier::{Bag, Courier, Source},
    encoding,
    hand_off::{Destination, Destinations},
    machine::ServiceMachine,
    pending::Answering,
    redis::CallServer,
    service::{FieldOf, HasHistory, JsonCall, Method, MethodKind, Methods, Reply, Versioned},
};
use crate::{
    Cluster, Error,
    cluster::{Local, Own},
};
use quintet_replica::{
    At, CommandTime, GroupId, Level, RestoreError, SnapshotProgress, StateMachine, Terms,
    digest::hash_wide, past::Asking,
};
use quintet_runtime::{
    Handle, StartError, StatusReport, SubmitError,
    layout::{self, Layout, LayoutFile},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    any::TypeId,
    fmt,
    marker::PhantomData,
    net::ToSocketAddrs,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// The settings of a group that is yet to be started.
#[derive(Clone, Debug)]
pub struct LocalGroup {
    local: Local,
    deadline: Duration,
    retention: Retention,
    layout: Option<String>,
    services: Vec<ServiceEntry>,
    /// The name of the one shard where there is no layout.
    one_name: String,
    /// Where this process has one member of several.
    own: Option<Own>,
    secret: Option<String>,
}

/// A service that a group can run.
#[derive(Clone, Copy)]
struct ServiceEntry {
    name: &'static str,
    id: fn() -> TypeId,
    machine: fn(Retention, Destinations) -> Box<dyn StateMachine>,
    methods: &'static [Method],
    is_versioned: bool,
    call_of_json: fn(&str, &str) -> Option<Result<JsonCall, String>>,
    answer_to_json: fn(u32, &[u8]) -> Option<String>,
}

impl fmt::Debug for ServiceEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl ServiceEntry {
    fn of<S: Methods>() -> Self {
        Self {
            name: S::NAME,
            id: TypeId::of::<S>,
            methods: S::METHODS,
            is_versioned: S::VERSIONED,
            call_of_json: S::call_of_json,
            answer_to_json: S::answer_to_json,
            machine: |retention, destinations| {
                Box::new(ServiceMachine::<S>::new(retention).handing_off_to(destinations))
            },
        }
    }
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
    /// included. The default: in memory; with a layout in a temporary directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.local = self.local.directory(directory);
        self
    }

    /// The secret that all members share, 64 hexadecimal digits: needed where a member's address is
    /// not of this machine.
    #[must_use]
    pub fn secret(mut self, digits: impl Into<String>) -> Self {
        self.secret = Some(digits.into());
        self
    }

    /// How long a call may take. The default: 10 seconds.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.local = self.local.deadline(deadline);
        self.deadline = deadline;
        self
    }

    /// How much of the past each shard keeps.
    #[must_use]
    pub const fn retain(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Divides the group into shards: the text of a layout, in TOML, whose subgroups name the
    /// `service` that their shards run.
    #[must_use]
    pub fn layout(mut self, text: impl Into<String>) -> Self {
        self.layout = Some(text.into());
        self
    }

    /// A service that the layout names.
    #[must_use]
    pub fn serve<S: Methods>(mut self) -> Self {
        self.services.push(ServiceEntry::of::<S>());
        self
    }

    /// One shard of this service, called `NAME/0`, of which every member of the group is a member.
    #[must_use]
    pub fn one<S: Methods>(mut self, name: &str) -> Self {
        self.services = vec![ServiceEntry::of::<S>()];
        self.layout = None;
        name.clone_into(&mut self.one_name);
        self
    }

    /// Starts the members.
    ///
    /// # Errors
    /// [`Error::Start`] when a setting is invalid or the directory belongs to other services,
    /// [`Error::System`] when the operating system refuses. Nothing is left running then.
    pub fn start(self) -> Result<Group, Error> {
        let retention = self.retention;
        let wrong = |why: String| Error::Start(StartError::Config(why));
        let mut local = self.local.clone();
        if let Some(own) = &self.own {
            let mut own = own.clone();
            own.secret = self.checked_secret(&own).map_err(wrong)?;
            local = local.own(own);
        }
        let (shards, factories) = match &self.layout {
            None => {
                let [service] = &self.services[..] else {
                    let why = "a group has one service (one), or a layout that names its services";
                    return Err(wrong(why.to_owned()));
                };
                let shard = ShardEntry::new(&self.one_name, 0, 1, GroupId(0), *service);
                (vec![shard], vec![(*service, Destinations::default())])
            }
            Some(text) => {
                let layout: LayoutFile =
                    toml::from_str(text).map_err(|error| wrong(format!("layout: {error}")))?;
                local = local.layout(layout);
                let layout = local.checked_layout()?;
                let shards = self.shards_of(&layout).map_err(wrong)?;
                let factories = shards.iter();
                let factories = factories.map(|it| (it.service, it.destinations.clone()));
                let factories = factories.collect();
                (shards, factories)
            }
        };
        let is_divided = self.layout.is_some();
        let terms = shards.iter().flat_map(|shard| {
            let machine = (shard.service.machine)(retention, Destinations::default());
            let of = shard.name.clone();
            let terms = machine.terms().into_iter();
            terms.map(move |(name, number)| (format!("{of}: {name}"), number))
        });
        let terms: Terms = terms.collect();
        let machines: SharedMachines = Arc::new(move |group| match group.0 {
            0 if is_divided => Box::new(Above(terms.clone())),
            number => {
                let place = (number as usize).saturating_sub(usize::from(is_divided));
                let (service, destinations): &(ServiceEntry, Destinations) = &factories[place];
                (service.machine)(retention, destinations.clone())
            }
        });
        let cluster = local.start_with(&*machines)?;
        let handles = cluster.handles();
        let source = |shard: &ShardEntry| Source {
            name: shard.name.clone(),
            group: shard.group,
        };
        let calls = Arc::new(Calls {
            handles: handles.into_iter().map(RwLock::new).collect(),
            shards: shards.iter().map(source).collect(),
            bag: Bag::default(),
            turn: AtomicUsize::new(0),
            deadline: self.deadline,
            seen: AtomicU64::new(0),
        });
        let sources = shards
            .iter()
            .filter(|shard| !shard.destinations.0.is_empty());
        let courier = Courier::start(&calls, sources.map(source).collect());
        let courier = courier.map_err(|error| Error::System {
            what: "starting a thread".to_owned(),
            error,
        })?;
        Ok(Group {
            shards: shards.into(),
            machines,
            calls,
            cluster: Mutex::new(cluster),
            courier,
        })
    }

    fn checked_secret(&self, own: &Own) -> Result<[u8; 32], String> {
        let Some(digits) = &self.secret else {
            let is_here = |address: &String| {
                let host = address.rsplit_once(':').map_or("", |(host, _)| host);
                host == "localhost" || host.starts_with("127.") || host == "[::1]"
            };
            return match own.addresses.iter().find(|it| !is_here(it)) {
                Some(address) => Err(format!(
                    "member {address} is on another machine: set the same secret at all members, 64 \
                     hexadecimal digits"
                )),
                None => Ok([0; 32]),
            };
        };
        let mut secret = [0; 32];
        let is_hex = digits.len() == 64 && digits.bytes().all(|it| it.is_ascii_hexdigit());
        for (place, byte) in secret.iter_mut().enumerate() {
            let digits = digits.get(2 * place..2 * place + 2).filter(|_| is_hex);
            let read = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
            *byte = read.ok_or("the secret has 64 hexadecimal digits")?;
        }
        Ok(secret)
    }

    /// The shards of a layout, each with its service.
    fn shards_of(&self, layout: &Layout) -> Result<Vec<ShardEntry>, String> {
        let shards = layout.shards().map(|shard| {
            let (of, name) = (shard.subgroup, &shard.subgroup.name);
            let Some(service) = &of.service else {
                return Err(format!("layout: subgroup '{name}' names no service"));
            };
            let mut known = self.services.iter();
            let Some(entry) = known.find(|it| it.name == *service) else {
                let known: Vec<_> = self.services.iter().map(|it| it.name).collect();
                return Err(format!(
                    "layout: subgroup '{name}': this program has no service '{service}'; it has {}",
                    known.join(", ")
                ));
            };
            let count = of.shards.len();
            let mut entry = ShardEntry::new(name, shard.number, count, shard.group, *entry);
            for name in &of.hands_off_to {
                let mut subgroups = layout.subgroups.iter();
                let to = subgroups.find(|it| it.name == *name);
                let to = to.map(|it| (it.service.as_deref().unwrap_or(""), it.shards.len()));
                let (service, shards) = to.unwrap_or(("", 0));
                let service = self.services.iter().find(|it| it.name == service);
                entry
                    .destinations
                    .0
                    .extend(service.map(|service| Destination {
                        subgroup: name.clone(),
                        service: service.name,
                        shards,
                    }));
            }
            Ok(entry)
        });
        shards.collect()
    }
}

type SharedMachines = Arc<dyn Fn(GroupId) -> Box<dyn StateMachine> + Send + Sync>;

/// The machine of group 0 above shards: it has no state, and the terms of all services.
struct Above(Terms);

impl StateMachine for Above {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn terms(&self) -> Terms {
        self.0.clone()
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

#[derive(Debug)]
struct ShardEntry {
    subgroup: Arc<str>,
    number: usize,
    /// How many shards its subgroup has.
    count: usize,
    /// SUBGROUP/NUMBER.
    name: Arc<str>,
    group: GroupId,
    service: ServiceEntry,
    destinations: Destinations,
}

impl ShardEntry {
    fn new(
        subgroup: &str,
        number: usize,
        count: usize,
        group: GroupId,
        service: ServiceEntry,
    ) -> Self {
        Self {
            subgroup: subgroup.into(),
            number,
            count,
            name: format!("{subgroup}/{number}").into(),
            group,
            service,
            destinations: Destinations::default(),
        }
    }
}

impl ShardEntry {
    fn handle<S>(&self, calls: &Arc<Calls>) -> Shard<S> {
        Shard {
            calls: calls.clone(),
            name: self.name.clone(),
            group: self.group,
            route: Route::default(),
            service: PhantomData,
        }
    }
}

/// Ways to the members, shared by the handles of shards.
#[derive(Debug)]
pub(super) struct Calls {
    handles: Vec<RwLock<Option<Handle>>>,
    /// All shards.
    pub shards: Vec<Source>,
    turn: AtomicUsize,
    pub deadline: Duration,
    /// Wakes the courier of this process.
    pub bag: Bag,
    /// The highest time in an answer of any shard: calls that follow have later ones.
    seen: AtomicU64,
}

/// A running group in this process. Dropping it stops its members; handles of its shards may be kept
/// and answer [`CallError::Stopped`] then.
pub struct Group {
    shards: Arc<[ShardEntry]>,
    machines: SharedMachines,
    calls: Arc<Calls>,
    cluster: Mutex<Cluster>,
    /// Behind the members, so that it waits for none.
    courier: Courier,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.courier.stop();
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut group = formatter.debug_struct("Group");
        group.field("shards", &self.shards).finish_non_exhaustive()
    }
}

impl Group {
    /// A group of this many members in threads of this process, which talk over loopback TCP.
    #[must_use]
    pub fn local(members: usize) -> LocalGroup {
        LocalGroup {
            local: Cluster::local(members).protocol("derecho"),
            deadline: Duration::from_secs(10),
            retention: Retention::default(),
            layout: None,
            services: Vec::new(),
            one_name: String::new(),
            own: None,
            secret: None,
        }
    }

    /// One member of a group whose others run in other processes: number `id` of those that listen at
    /// these addresses, with its data in `directory`. Name, addresses, services, layout and settings are
    /// the same at all members; what is missing of the data at a restart is fetched from the others.
    #[must_use]
    pub fn member(
        name: &str,
        id: u16,
        addresses: &[impl AsRef<str>],
        directory: impl Into<PathBuf>,
    ) -> LocalGroup {
        let addresses = addresses.iter().map(|it| it.as_ref().to_owned());
        LocalGroup {
            own: Some(Own {
                id,
                addresses: addresses.collect(),
                identity: hash_wide(name.as_bytes()).max(1),
                secret: [0; 32],
            }),
            ..Self::local(0)
        }
        .directory(directory)
    }

    /// A handle of the shard `SUBGROUP/NUMBER`.
    ///
    /// # Errors
    /// [`CallError::NoSuchShard`].
    pub fn shard<S: Methods>(&self, subgroup: &str, number: usize) -> Result<Shard<S>, CallError> {
        let mut shards = self.shards_of::<S>(subgroup);
        let entry = shards.find(|entry| entry.number == number);
        let entry = entry.ok_or_else(|| CallError::NoSuchShard {
            shard: format!("{subgroup}/{number}"),
            service: S::NAME,
        })?;
        Ok(entry.handle(&self.calls))
    }

    /// A handle of the shard of a subgroup that has this key: CRC-32C of the key modulo the number of
    /// shards.
    ///
    /// # Errors
    /// [`CallError::NoSuchShard`].
    pub fn shard_of<S: Methods>(
        &self,
        subgroup: &str,
        key: impl AsRef<[u8]>,
    ) -> Result<Shard<S>, CallError> {
        let count = self
            .shards_of::<S>(subgroup)
            .next()
            .map_or(1, |it| it.count);
        self.shard(subgroup, layout::shard_of(key.as_ref(), count))
    }

    /// Handles of all shards of a subgroup, in their order.
    ///
    /// # Errors
    /// [`CallError::NoSuchShard`].
    pub fn all<S: Methods>(&self, subgroup: &str) -> Result<Vec<Shard<S>>, CallError> {
        self.shard::<S>(subgroup, 0)?;
        let shards = self.shards_of::<S>(subgroup);
        Ok(shards.map(|entry| entry.handle(&self.calls)).collect())
    }

    fn shards_of<S: Methods>(&self, subgroup: &str) -> impl Iterator<Item = &ShardEntry> {
        let is_it = move |entry: &&ShardEntry| {
            *entry.subgroup == *subgroup && (entry.service.id)() == TypeId::of::<S>()
        };
        self.shards.iter().filter(is_it)
    }

    /// A time for queries of several shards: everything that this program was told before is in their
    /// states at it. Queries of one time at all shards are one consistent cut.
    #[must_use]
    pub fn now(&self) -> Time {
        let seen = Time(CommandTime(self.calls.seen.load(Ordering::Relaxed)));
        Time::from(SystemTime::now()).max(seen)
    }

    /// Waits until every shard answers.
    ///
    /// # Errors
    /// [`CallError::NotReady`] names those that do not within `timeout`.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), CallError> {
        let ends = Instant::now() + timeout;
        let mut missing: Vec<&ShardEntry> = self.shards.iter().collect();
        loop {
            let left = ends.saturating_duration_since(Instant::now());
            let wait = left.min(Duration::from_secs(1));
            missing.retain(|entry| !self.calls.answers(entry.group, wait));
            if missing.is_empty() {
                return Ok(());
            }
            if left.is_zero() {
                let names: Vec<_> = missing.iter().map(|entry| &*entry.name).collect();
                return Err(CallError::NotReady {
                    shards: names.join(", "),
                });
            }
        }
    }

    /// Serves calls to clients of Redis at this address: `QUINTET.CALL`, see [`CallServer`].
    ///
    /// # Errors
    /// [`Error::System`] when it cannot listen there.
    pub fn serve_calls(&self, address: impl ToSocketAddrs) -> Result<CallServer, Error> {
        let doors = Callers {
            shards: self.shards.clone(),
            calls: self.calls.clone(),
        };
        CallServer::start(doors, address)
    }

    /// Stops one member, as if its process had been told to end; the others continue. One that has
    /// stopped already is ignored.
    pub fn stop_member(&self, member: usize) {
        let running = self.lock().take(member);
        // It is waited for with no lock held.
        drop(running);
    }

    /// Starts a member again that has stopped. One that runs is ignored.
    ///
    /// # Errors
    /// As [`LocalGroup::start`].
    pub fn restart_member(&self, member: usize) -> Result<(), Error> {
        let handle = self.lock().restart(member, &*self.machines)?;
        if let (Some(slot), Some(handle)) = (self.calls.handles.get(member), handle) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        }
        Ok(())
    }

    /// The status of each running member.
    #[must_use]
    pub fn status(&self) -> Vec<StatusReport> {
        self.lock().status().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls of which the types are known at run time only.
#[derive(Clone, Debug)]
pub(super) struct Callers {
    shards: Arc<[ShardEntry]>,
    calls: Arc<Calls>,
}

/// The answer to such a call, in JSON.
pub(super) type JsonAnswer = Result<Done<String>, JsonError>;

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    #[error("{0}")]
    Wrong(String),
    #[error("{0}")]
    Call(#[from] CallError),
}

impl Callers {
    /// The shard that `SUBGROUP/NUMBER` or `SUBGROUP:KEY` names.
    fn shard(&self, name: &str) -> Result<&ShardEntry, JsonError> {
        let found = match name.split_once(['/', ':']) {
            Some((subgroup, key)) if name.as_bytes()[subgroup.len()] == b':' => {
                let mut of = self.shards.iter().filter(|it| *it.subgroup == *subgroup);
                let first = of.next();
                first.and_then(|first| {
                    let number = layout::shard_of(key.as_bytes(), first.count);
                    std::iter::once(first).chain(of).nth(number)
                })
            }
            _ => self.shards.iter().find(|it| *it.name == *name),
        };
        found.ok_or_else(|| {
            JsonError::Wrong(format!(
                "there is no shard '{name}'; name one SUBGROUP/NUMBER, or SUBGROUP:KEY"
            ))
        })
    }

    /// The methods of a shard's service.
    pub fn methods(&self, shard: &str) -> Result<&'static [Method], JsonError> {
        Ok(self.shard(shard)?.service.methods)
    }

    /// Calls a method by name.
    pub fn call(
        &self,
        shard: &str,
        method: &str,
        arguments: &str,
        when: Option<When>,
    ) -> JsonAnswer {
        let entry = self.shard(shard)?;
        let (service, wrong) = (&entry.service, JsonError::Wrong);
        let read = (service.call_of_json)(method, arguments);
        let read = read.ok_or_else(|| {
            let known: Vec<_> = service.methods.iter().map(|it| it.name).collect();
            let (of, known) = (service.name, known.join(", "));
            wrong(format!(
                "service {of} has no method '{method}'; it has {known}"
            ))
        })?;
        let call = read.map_err(wrong)?;
        let route = Route {
            when,
            ..Route::default()
        };
        let shard: Shard<()> = Shard {
            route,
            ..entry.handle(&self.calls)
        };
        let pending: Pending<call::Anything> = match (call.kind, when) {
            (MethodKind::Ordered, None) => {
                shard.order(call.method, |out| out.extend_from_slice(&call.arguments))
            }
            (MethodKind::Ordered, Some(_)) => {
                let why = format!("'{method}' is ordered: it changes the present only");
                return Err(wrong(why));
            }
            (MethodKind::Query, Some(_)) if !service.is_versioned => {
                return Err(CallError::NotKept.into());
            }
            (MethodKind::Query, _) => {
                shard.ask(call.method, |out| out.extend_from_slice(&call.arguments))
            }
        };
        let bytes = pending.bytes()?;
        let done = call::open_answer(&bytes, &entry.name)?;
        let value = (service.answer_to_json)(call.method, done.value);
        Ok(Done {
            value: value.ok_or_else(|| wrong("the answer cannot be written in JSON".to_owned()))?,
            version: done.version,
            time: done.time,
        })
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
    group: GroupId,
    route: Route,
    service: PhantomData<fn() -> S>,
}

impl<S> Clone for Shard<S> {
    fn clone(&self) -> Self {
        Self {
            calls: self.calls.clone(),
            name: self.name.clone(),
            group: self.group,
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

impl<S> Shard<S> {
    /// Calls an ordered method; `write` appends its arguments.
    fn order<R: DeserializeOwned>(
        &self,
        method: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Pending<R> {
        let (pending, answering) = self.pending(true);
        let source = Source {
            name: self.name.clone(),
            group: self.group,
        };
        let pending = pending.of(self.calls.clone(), source);
        let floor = self.calls.seen.load(Ordering::Relaxed);
        let payload = Call::encode_with(Kind::Ordered(floor), method, write);
        self.send(Level::Ordered, payload, answering);
        pending
    }

    /// Calls a query.
    fn ask<R: DeserializeOwned>(
        &self,
        method: u32,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Pending<R> {
        let (pending, answering) = self.pending(false);
        let (kind, asking) = match self.route.when {
            None => {
                let payload = Call::encode_with(Kind::Query, method, write);
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
        let payload = Call::encode_with(kind, method, write);
        self.calls.ask_past(self.to(), asking, payload, answering);
        pending
    }

    fn no_schema(&self) -> CallError {
        CallError::Schema {
            shard: self.name.to_string(),
        }
    }

    fn pending<R: DeserializeOwned>(&self, is_ordered: bool) -> (Pending<R>, Answering) {
        // The members' own deadline ends first and tells more.
        let timeout = self.calls.deadline + Duration::from_secs(5);
        Pending::new(self.name.clone(), timeout, is_ordered)
    }

    /// The members to be asked, the first one first.
    fn members(&self) -> Vec<usize> {
        match self.route.member {
            Some(member) => (member..self.calls.handles.len()).take(1).collect(),
            None => self.calls.in_turn(),
        }
    }

    fn send(&self, level: Level, payload: Vec<u8>, answering: Answering) {
        self.calls.send(self.to(), level, payload, answering);
    }

    fn to(&self) -> To {
        To {
            shard: self.name.clone(),
            group: self.group,
            members: self.members(),
        }
    }
}

impl<S: Methods> Shard<S> {
    /// Calls an ordered method. For the macro's code.
    pub fn call_ordered<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        self.order(method, |out| encoding::append(arguments, out))
    }

    /// Calls a query. For the macro's code.
    pub fn call_query<R: Reply>(&self, method: u32, arguments: &impl Serialize) -> Pending<R> {
        self.ask(method, |out| encoding::append(arguments, out))
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

/// The shard that is asked, and the members that may be.
pub(super) struct To {
    pub shard: Arc<str>,
    pub group: GroupId,
    pub members: Vec<usize>,
}

impl Calls {
    /// All members, another one first each time.
    pub fn in_turn(&self) -> Vec<usize> {
        let count = self.handles.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let places = (0..count).map(|offset| first.wrapping_add(offset) % count);
        places.collect()
    }

    fn handle(&self, member: usize, group: GroupId) -> Option<Handle> {
        let handle = self.handles.get(member)?.read();
        let handle = handle.unwrap_or_else(PoisonError::into_inner);
        handle.as_ref().map(|handle| handle.in_group(group))
    }

    /// Whether a member could answer a read of this group.
    fn answers(&self, group: GroupId, timeout: Duration) -> bool {
        let mut handles = (0..self.handles.len()).filter_map(|it| self.handle(it, group));
        handles.any(|handle| handle.probe(timeout))
    }

    /// Asks the members in turn, until one has not stopped.
    pub fn send(
        self: &Arc<Self>,
        mut to: To,
        level: Level,
        payload: Vec<u8>,
        answering: Answering,
    ) {
        let Some(handle) = self.next(&mut to) else {
            return answering.answer(Err(CallError::Stopped));
        };
        let calls = self.clone();
        let again = payload.clone();
        handle.submit_with(level, payload, move |answer| match answer {
            Err(SubmitError::Stopped) => calls.send(to, level, again, answering),
            answer => calls.answer(&to, answer, answering),
        });
    }

    /// The same for a read of the past.
    fn ask_past(
        self: &Arc<Self>,
        mut to: To,
        asking: Asking,
        payload: Vec<u8>,
        answering: Answering,
    ) {
        let Some(handle) = self.next(&mut to) else {
            return answering.answer(Err(CallError::Stopped));
        };
        let calls = self.clone();
        handle.query_past_with(asking, &payload.clone(), move |answer| match answer {
            Err(SubmitError::Stopped) => calls.ask_past(to, asking, payload, answering),
            answer => calls.answer(&to, answer, answering),
        });
    }

    fn answer(&self, to: &To, answer: Result<Vec<u8>, SubmitError>, answering: Answering) {
        if let Ok(bytes) = &answer {
            if let Some(time) = call::time_of(bytes) {
                self.seen.fetch_max(time, Ordering::Relaxed);
            }
            if call::has_hand_offs(bytes) {
                self.bag.wake();
            }
        }
        answering.answer(answer.map_err(|error| CallError::of(error, &to.shard)));
    }

    /// The next member that has not been removed.
    fn next(&self, to: &mut To) -> Option<Handle> {
        while !to.members.is_empty() {
            let member = to.members.remove(0);
            if let Some(handle) = self.handle(member, to.group) {
                return Some(handle);
            }
        }
        None
    }
}
