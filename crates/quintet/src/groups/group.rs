//! A running group, and handles to its shards.
//!
//! ```text
//!   Group::local(3) ──► LocalGroup (settings) ──start──► members, each with threads of its own
//!   group.shard::<Counter>("counter", 0) ──► Shard ──► ordered(), query(), at(when), history(…)
//!                                              └─ call ──► a member that runs ──► Pending
//! ```

use super::{
    CallError, Retention,
    archive::Writer,
    calls::{self, Calls, Way},
    courier::Courier,
    entry::{ServiceEntry, ShardEntry},
    hand_off::{Destination, Destinations},
    herald::Herald,
    json::Callers,
    machine::{Here, SEMANTICS},
    redis::CallServer,
    remote::Remote,
    shards::{Known, Shards},
};
use crate::{
    Cluster, Error,
    cluster::{Local, Own},
};
use quintet_groups::{Methods, archive::NoArchive, place::Lending};
use quintet_replica::{
    At, GroupId, ReplicaId, RestoreError, SnapshotProgress, StateMachine, Terms, digest::hash_wide,
};
use quintet_runtime::{
    StartError, StatusReport,
    layout::{Layout, LayoutFile},
};
use std::{
    collections::BTreeMap,
    fmt,
    net::ToSocketAddrs,
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The terms of services are compared one by one up to this many, else per service.
const TERMS_NAMED: usize = 128;
/// A state is lent to a query for so long, which is as long as a call waits unless it says otherwise.
const LOAN_LASTS: Duration = Duration::from_secs(10);

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
    /// Where the members serve calls.
    call_addresses: Vec<String>,
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

    /// The addresses at which the members serve calls ([`Group::serve_calls`]), in the order of the
    /// members: this process serves them at its own, and calls the others there where no other member
    /// can answer ([`Shard::member`](super::Shard::member), a `#[gather]`, a query that is told its
    /// [`Place`](super::Place)). For members of [`Group::member`], on a trusted network.
    #[must_use]
    pub fn calls_at(mut self, addresses: &[impl AsRef<str>]) -> Self {
        let addresses = addresses.iter().map(|it| it.as_ref().to_owned());
        self.call_addresses = addresses.collect();
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
        let members = self.own.as_ref().map(|own| own.addresses.len());
        if !self.call_addresses.is_empty() && members != Some(self.call_addresses.len()) {
            let why = match members {
                Some(members) => format!(
                    "calls_at: {} addresses for {members} members",
                    self.call_addresses.len()
                ),
                None => "calls_at: all members run in this process".to_owned(),
            };
            return Err(wrong(why));
        }
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
                let known = Known::new(&self.one_name, (0, 1), GroupId(0));
                let shard = ShardEntry::new(known, *service);
                (vec![shard], vec![(*service, Destinations::default())])
            }
            Some(text) => {
                let mut names: Vec<_> = self.services.iter().map(|it| it.name).collect();
                names.sort_unstable();
                if let Some(two) = names.windows(2).find(|two| two[0] == two[1]) {
                    let why = format!("two services of this program are called {}", two[0]);
                    return Err(wrong(why));
                }
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
        let mut services: Vec<&ServiceEntry> = Vec::new();
        for shard in &shards {
            (shard.service.check)().map_err(wrong)?;
            if services.iter().all(|it| it.name != shard.service.name) {
                services.push(&shard.service);
            }
        }
        let terms = services.iter().flat_map(|service| {
            let machine = (service.machine)(retention, Destinations::default(), Here::default());
            machine.terms()
        });
        let mut terms: Terms = terms.collect();
        if terms.len() > TERMS_NAMED {
            let term =
                |service: &&ServiceEntry| (service.name.to_owned(), u64::from(service.terms));
            terms = services.iter().map(term).collect();
        }
        let past = local.path().map(Writer::start).transpose();
        let past = past.map_err(|error| Error::System {
            what: "starting a thread".to_owned(),
            error,
        })?;
        let lending: Mutex<BTreeMap<ReplicaId, Arc<Lending>>> = Mutex::default();
        let machines: SharedMachines = Arc::new(move |replica, group| match group.0 {
            0 if is_divided => Box::new(Above(terms.clone())),
            number => {
                let place = (number as usize).saturating_sub(usize::from(is_divided));
                let (service, destinations): &(ServiceEntry, Destinations) = &factories[place];
                let mut lending = lending.lock().unwrap_or_else(PoisonError::into_inner);
                let here = Here {
                    member: replica.0,
                    lending: (lending.entry(replica))
                        .or_insert_with(|| Arc::new(Lending::ending_after(LOAN_LASTS)))
                        .clone(),
                    archive: past
                        .as_ref()
                        .map_or_else(|| Arc::new(NoArchive) as _, Writer::archive),
                };
                (service.machine)(retention, destinations.clone(), here)
            }
        });
        let cluster = local.start_with(&*machines)?;
        let handles = cluster.handles();
        let source = |shard: &ShardEntry| shard.known.source();
        let mut addresses = self.call_addresses.iter();
        let ways = handles.into_iter().map(|handle| {
            let address = addresses.next();
            let remote = |it: &String| Remote::new(it, calls::timeout(self.deadline));
            let elsewhere = || address.map(|it| Way::Elsewhere(remote(it)));
            handle.map(Way::Here).or_else(elsewhere)
        });
        let all = shards.iter().map(source).collect();
        let calls = Calls::new(ways.collect(), all, self.deadline);
        let sources = shards
            .iter()
            .filter(|shard| !shard.destinations.0.is_empty());
        let courier = Courier::start(&calls, sources.map(source).collect());
        let system = |error| Error::System {
            what: "starting a thread".to_owned(),
            error,
        };
        let told = shards.iter().filter(|shard| shard.service.has_view);
        let herald = Herald::start(&calls, told.map(source).collect()).map_err(system)?;
        let courier = courier.map_err(system)?;
        let mut group = Group {
            named: Shards {
                known: shards.iter().map(|it| it.known.clone()).collect(),
                calls,
            },
            shards: shards.into(),
            machines,
            cluster: Mutex::new(cluster),
            courier,
            herald,
            server: None,
        };
        let own = self.own.as_ref().map(|own| usize::from(own.id));
        if let Some(address) = own.and_then(|own| self.call_addresses.get(own)) {
            group.server = Some(group.serve_calls(address)?);
        }
        Ok(group)
    }

    fn checked_secret(&self, own: &Own) -> Result<[u8; 32], String> {
        let Some(digits) = &self.secret else {
            let is_here = |address: &String| {
                let host = address.rsplit_once(':').map_or("", |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let address = host.parse::<std::net::IpAddr>();
                host == "localhost" || address.is_ok_and(|address| address.is_loopback())
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
            let known = Known::new(name, (shard.number, count), shard.group);
            let mut entry = ShardEntry::new(known, *entry);
            entry.known.reads.clone_from(&of.reads);
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

type SharedMachines = Arc<dyn Fn(ReplicaId, GroupId) -> Box<dyn StateMachine> + Send + Sync>;

/// The machine of group 0 above shards: it has no state, and the terms of all services.
struct Above(Terms);

impl StateMachine for Above {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn semantics(&self) -> u32 {
        SEMANTICS
    }
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

/// A running group in this process. Dropping it stops its members; handles of its shards may be kept
/// and answer [`CallError::Stopped`] then.
pub struct Group {
    shards: Arc<[ShardEntry]>,
    named: Shards,
    machines: SharedMachines,
    cluster: Mutex<Cluster>,
    /// Behind the members, so that it waits for none.
    courier: Courier,
    herald: Herald,
    /// At the address that all members know.
    server: Option<CallServer>,
}

/// Handles of shards.
impl Deref for Group {
    type Target = Shards;

    fn deref(&self) -> &Shards {
        &self.named
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.server = None;
        self.courier.stop();
        self.herald.stop();
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
            call_addresses: Vec::new(),
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

    /// Waits until every shard answers.
    ///
    /// # Errors
    /// [`CallError::NotReady`] names those that do not within `timeout`.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), CallError> {
        let ends = super::pending::end_of(timeout);
        let mut missing: Vec<&ShardEntry> = self.shards.iter().collect();
        loop {
            let left = ends.saturating_duration_since(Instant::now());
            let wait = left.min(Duration::from_secs(1));
            missing.retain(|entry| !self.calls.answers(entry.known.group, wait));
            if missing.is_empty() {
                return Ok(());
            }
            if left.is_zero() {
                let names: Vec<_> = missing.iter().map(|entry| &*entry.known.name).collect();
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
        if let Some(handle) = handle {
            self.calls.replace(member, handle);
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
