//! All replicas of a cluster in this process.
//!
//! ```text
//!   Cluster::local(3) ──► Local (settings) ──start──► 3 replicas, each with threads of its own,
//!                                                    TCP over loopback, a directory
//!   switch, join, replace, remove ──► the next epoch, while commands continue
//!   drop ──► stops them; a temporary directory is removed
//! ```

use crate::small::Replicated;
use quintet_replica::{
    ClusterId, CommandTime, Durability, GroupId, Level, ReplicaId, ReplicaSet, StateMachine,
};
use quintet_runtime::{
    CHANGE_MAX, ChangeReport, ChangeRequest, Config, Handle, Join, Listeners, Member, Replica,
    Running, StartError, StatusReport, SubmitError, has_joined, join,
    layout::{Layout, LayoutFile},
    stored_epoch, sync_directory,
};
use std::{
    fs,
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;

/// Errors of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A replica cannot be started.
    #[error("cannot start a replica: {0}")]
    Start(#[from] StartError),
    /// A file or a socket of the cluster cannot be used.
    #[error("{what}: {error}")]
    System {
        /// The attempted action.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
    /// Certainly not executed: too few replicas are running.
    #[error("no quorum: the command was not executed")]
    NoQuorum,
    /// Perhaps executed: no answer came in time.
    #[error("no answer in time: the command may or may not have been executed")]
    Uncertain,
    /// Certainly not executed: too much is in progress.
    #[error("too many commands are in progress: the command was not executed")]
    Busy,
    /// Certainly not executed: the command is longer than any may be.
    #[error("the command has {bytes} bytes; accepted are at most {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Certainly not executed: the disk is full.
    #[error("the disk is full: the command was not executed")]
    DiskFull,
    /// The members, the protocol or its options were not changed.
    #[error("not changed: {0}")]
    Change(String),
    /// That time has not come, by the log's clock.
    #[error("that time has not come yet, by the log's clock")]
    NotYet,
    /// The state machine does not answer [`StateMachine::query_at`].
    #[error("the state machine does not keep the past")]
    NotKept,
    /// Certainly not executed: all replicas have been stopped.
    #[error("all replicas have stopped")]
    Stopped,
}

impl From<SubmitError> for Error {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::NoQuorum => Self::NoQuorum,
            SubmitError::Uncertain => Self::Uncertain,
            SubmitError::Busy => Self::Busy,
            SubmitError::TooLarge { bytes, bytes_max } => Self::TooLarge { bytes, bytes_max },
            SubmitError::DiskFull => Self::DiskFull,
            SubmitError::Stopped => Self::Stopped,
            SubmitError::NotYet => Self::NotYet,
            SubmitError::NotKept => Self::NotKept,
        }
    }
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    |error| Error::System {
        what: what.into(),
        error,
    }
}

/// The settings of a cluster that is yet to be started.
#[derive(Clone, Debug)]
pub struct Local {
    replicas: usize,
    protocol: String,
    options: Vec<(String, String)>,
    durability: Durability,
    directory: Option<PathBuf>,
    deadline: Duration,
    /// Shards, each with a machine of its own.
    layout: Option<LayoutFile>,
    /// Where this process has one replica of several.
    own: Option<Own>,
}

/// One replica of a cluster whose others run elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub id: u16,
    /// The addresses of all replicas.
    pub addresses: Vec<String>,
    pub identity: u128,
    pub secret: [u8; 32],
}

/// Makes the state machine of a group at a replica; group 0 is all of the cluster, or stands above its
/// shards.
pub(crate) type Machines<'a> = &'a dyn Fn(ReplicaId, GroupId) -> Box<dyn StateMachine>;

impl Local {
    /// Only this replica runs here.
    pub(crate) fn own(mut self, own: Own) -> Self {
        self.replicas = own.addresses.len();
        self.own = Some(own);
        self
    }

    pub(crate) fn layout(mut self, layout: LayoutFile) -> Self {
        self.layout = Some(layout);
        // Members that follow the view keep their shards on disk.
        self.durability = Durability::Disk;
        self
    }

    /// The layout, completed by the other settings.
    pub(crate) fn checked_layout(&self) -> Result<Layout, Error> {
        let anyone = Member {
            peer: "127.0.0.1:1".to_owned(),
        };
        let place = Place {
            settings: self.clone(),
            path: PathBuf::new(),
            identity: ClusterId(1),
        };
        let config = place.config(0, vec![anyone; self.replicas]);
        config.check_layout()?;
        Ok(config.shards()?.unwrap_or(Layout {
            subgroups: Vec::new(),
        }))
    }

    /// The replication protocol, by its name in [`protocols`](crate::protocols). The default:
    /// `multipaxos`.
    #[must_use]
    pub fn protocol(mut self, name: impl Into<String>) -> Self {
        self.protocol = name.into();
        self
    }

    /// Sets an option of the protocol.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.push((name.into(), value.into()));
        self
    }

    /// Keeps the data in `directory`, on disk: a cluster started there again has all of it. The
    /// default: in memory, with what little must be on disk in a temporary directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self.durability = Durability::Disk;
        self
    }

    /// Where the data is, if it is to stay.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.directory.clone()
    }

    /// How long a command may take. The default: 10 seconds.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Starts the replicas, each with a copy of `machine`.
    ///
    /// # Errors
    /// [`Error::Start`] when a setting is invalid or the directory is not this cluster's,
    /// [`Error::System`] when the operating system refuses. Nothing is left running then.
    pub fn start<Kind>(self, machine: impl Replicated<Kind>) -> Result<Cluster, Error> {
        self.start_with(&|_, _| machine.machine())
    }

    pub(crate) fn start_with(self, machines: Machines<'_>) -> Result<Cluster, Error> {
        if self.replicas == 0 {
            let reason = "members: there are 0, a cluster has at least 1".to_owned();
            return Err(StartError::Config(reason).into());
        }
        if let Some(own) = &self.own
            && usize::from(own.id) >= own.addresses.len()
        {
            let (id, last) = (own.id, own.addresses.len() - 1);
            let reason = format!("member {id}: there are the addresses of members 0 to {last}");
            return Err(StartError::Config(reason).into());
        }
        let (path, temporary) = match &self.directory {
            Some(path) => (path.clone(), None),
            None => {
                let made = tempfile::Builder::new().prefix("quintet-").tempdir();
                let made = made.map_err(system("making a temporary directory"))?;
                (made.path().to_owned(), Some(made))
            }
        };
        let identity = match &self.own {
            Some(own) => {
                fs::create_dir_all(&path).map_err(system(path.display().to_string()))?;
                own.identity
            }
            None => identity(&path)?,
        };
        let identity = ClusterId(identity);
        let mut listeners = Vec::new();
        let mut members = Vec::new();
        for place in self.places_in(&path)? {
            let listening = match place {
                Listens::Nowhere => None,
                Listens::Elsewhere(address) => {
                    members.push(Member { peer: address });
                    listeners.push(None);
                    continue;
                }
                Listens::Anywhere => Some(listen(None)?),
                Listens::At(address) => Some(listen(Some(address))?),
            };
            let address = listening.as_ref().map(|(_, address)| address.to_string());
            // The address of a removed member is not used.
            let vacant = || format!("vacant:{}", members.len() + 1);
            members.push(Member {
                peer: address.unwrap_or_else(vacant),
            });
            listeners.push(listening.map(|(listener, _)| listener));
        }
        let place = Place {
            settings: self,
            path,
            identity,
        };
        let mut replicas = Vec::new();
        for (listener, id) in listeners.into_iter().zip(0..) {
            let Some(listener) = listener else {
                replicas.push(None);
                continue;
            };
            let mut config = place.config(id, members.clone());
            if has_joined(&config.data) {
                config.peer_announce = Some(config.members[usize::from(id)].peer.clone());
                join(&mut config, &*machines(ReplicaId(id), GroupId(0)), None)?;
            }
            replicas.push(Some(start(config, machines, listener)?));
        }
        Ok(Cluster {
            replicas,
            members,
            turn: AtomicUsize::new(0),
            place,
            _temporary: temporary,
        })
    }

    /// Where the replicas listen: as the members have agreed, once they have changed.
    fn places_in(&self, path: &Path) -> Result<Vec<Listens>, Error> {
        if let Some(own) = &self.own {
            let places = own.addresses.iter().zip(0..).map(|(address, id)| {
                let address = address.clone();
                match id == own.id {
                    true => Listens::At(address),
                    false => Listens::Elsewhere(address),
                }
            });
            return Ok(places.collect());
        }
        let stored = (0..ReplicaSet::MEMBERS_MAX).map(|id| path.join(format!("replica-{id}")));
        let stored = stored.filter(|data| data.exists());
        let newest = stored
            .filter_map(|data| stored_epoch(&data))
            .max_by_key(|epoch| epoch.number);
        let newest = newest.filter(|epoch| epoch.number.0 > 1);
        if newest
            .as_ref()
            .is_some_and(|it| it.durability == Durability::Memory)
        {
            let reason = format!(
                "{}: the cluster had changed to durability 'memory' and has lost what was in \
                 memory; begin a new one with replica-*/snapshots/last-on-disk (quintet snapshot \
                 restore)",
                path.display()
            );
            return Err(StartError::Config(reason).into());
        }
        Ok(match newest {
            Some(epoch) => epoch
                .members
                .into_iter()
                .map(|row| match row.is_taken() {
                    true => Listens::At(row.peer),
                    false => Listens::Nowhere,
                })
                .collect(),
            None => (0..self.replicas).map(|_| Listens::Anywhere).collect(),
        })
    }
}

/// Where a replica listens.
enum Listens {
    At(String),
    /// In another process.
    Elsewhere(String),
    /// At any port on loopback.
    Anywhere,
    /// It was removed.
    Nowhere,
}

/// Opens a port on loopback: this one, or any.
fn listen(at: Option<String>) -> Result<(TcpListener, SocketAddr), Error> {
    let what = at.as_deref().unwrap_or("opening a port on loopback");
    let listener = match &at {
        Some(address) => TcpListener::bind(address),
        None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)),
    };
    let listener = listener.map_err(system(what))?;
    let address = listener.local_addr().map_err(system(what))?;
    Ok((listener, address))
}

fn start(
    config: Config,
    machines: Machines<'_>,
    listener: TcpListener,
) -> Result<Running, StartError> {
    let listeners = Listeners {
        peer: Some(listener),
        ..Listeners::default()
    };
    let id = config.id;
    Replica::start_divided(config, &|group| machines(id, group), listeners)
}

/// The place and the settings of a cluster.
#[derive(Debug)]
struct Place {
    settings: Local,
    path: PathBuf,
    identity: ClusterId,
}

impl Place {
    fn config(&self, id: u16, members: Vec<Member>) -> Config {
        let data = self.path.join(format!("replica-{id}"));
        let mut config = Config::new(self.identity, ReplicaId(id), members, data);
        config.protocol.clone_from(&self.settings.protocol);
        config.options.clone_from(&self.settings.options);
        config.durability = self.settings.durability;
        config.layout.clone_from(&self.settings.layout);
        if let Some(own) = &self.settings.own {
            config.secret = own.secret;
        }
        config.redis_listen = None;
        config.admin_listen = None;
        config.client_deadline = self.settings.deadline;
        config
    }
}

/// The cluster's identity: read from its directory, or drawn and written there.
fn identity(directory: &Path) -> Result<u128, Error> {
    let path = directory.join("cluster");
    let what = || path.display().to_string();
    fs::create_dir_all(directory).map_err(system(directory.display().to_string()))?;
    match fs::read_to_string(&path) {
        Ok(text) => u128::from_str_radix(text.trim(), 16)
            .map_err(|_| system(what())(io::Error::other("it is not a cluster's identity"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut bytes = [0; 16];
            let drawn = fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
            drawn.map_err(system("drawing a cluster's identity"))?;
            let drawn = u128::from_le_bytes(bytes).max(1);
            let unfinished = path.with_extension("unfinished");
            fs::write(&unfinished, format!("{drawn:032x}\n"))
                .and_then(|()| fs::File::open(&unfinished)?.sync_all())
                .and_then(|()| fs::rename(&unfinished, &path))
                .and_then(|()| sync_directory(directory))
                .map_err(system(what()))?;
            Ok(drawn)
        }
        Err(error) => Err(system(what())(error)),
    }
}

/// A running cluster. Dropping it stops all replicas.
#[derive(Debug)]
pub struct Cluster {
    replicas: Vec<Option<Running>>,
    /// As they were when it started.
    members: Vec<Member>,
    turn: AtomicUsize,
    place: Place,
    /// After the replicas: removed once they have stopped.
    _temporary: Option<TempDir>,
}

impl Cluster {
    /// A cluster of this many replicas in threads of this process, which talk over loopback TCP.
    #[must_use]
    pub fn local(replicas: usize) -> Local {
        Local {
            replicas,
            protocol: "multipaxos".to_owned(),
            options: Vec::new(),
            durability: Durability::Memory,
            directory: None,
            deadline: Duration::from_secs(10),
            layout: None,
            own: None,
        }
    }

    /// Executes a command on all replicas and gives its reply: exactly once, however many
    /// replicas fail meanwhile. Commands that several threads have in progress at once are executed
    /// in some order, not always the one in which they were handed over.
    ///
    /// # Errors
    /// Whether the command was executed: see [`Error`].
    pub fn apply(&self, command: &[u8]) -> Result<Vec<u8>, Error> {
        self.submit(Level::Ordered, command)
    }

    /// Answers a read from a state that has every command acknowledged before.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn query(&self, command: &[u8]) -> Result<Vec<u8>, Error> {
        self.submit(Level::Linearizable, command)
    }

    /// Answers a read from the state as it was at `time`: permanently the same, whichever replica
    /// answers and whatever fails. Everything that was acknowledged before `time` is in it, as far as
    /// clocks are right. A time that is to come is waited for, no longer than for a command.
    ///
    /// The state machine must answer [`StateMachine::query_at`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn query_at(&self, time: SystemTime, command: &[u8]) -> Result<Vec<u8>, Error> {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = CommandTime(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1));
        self.in_turn(|handle| handle.query_at(time, command))
    }

    /// Stops one replica, as if its process had been told to end; the others continue. One that has
    /// stopped already, or never was, is ignored.
    pub fn stop(&mut self, replica: usize) {
        if let Some(running) = self.replicas.get_mut(replica) {
            *running = None;
        }
    }

    /// The handles of the replicas; of one that was removed there is none.
    pub(crate) fn handles(&self) -> Vec<Option<Handle>> {
        let replicas = self.replicas.iter();
        replicas
            .map(|running| running.as_ref().map(Running::handle))
            .collect()
    }

    /// Takes a replica out, which stops when it is dropped.
    pub(crate) fn take(&mut self, replica: usize) -> Option<Running> {
        self.replicas.get_mut(replica)?.take()
    }

    /// Starts a replica again that has stopped, where it was; none that runs.
    pub(crate) fn restart(
        &mut self,
        replica: usize,
        machines: Machines<'_>,
    ) -> Result<Option<Handle>, Error> {
        let (Some(None), Some(member)) = (self.replicas.get(replica), self.members.get(replica))
        else {
            return Ok(None);
        };
        let (listener, _) = listen(Some(member.peer.clone()))?;
        let id = u16::try_from(replica).unwrap_or(u16::MAX);
        let config = self.place.config(id, self.members.clone());
        let running = start(config, machines, listener)?;
        let handle = running.handle();
        self.replicas[replica] = Some(running);
        Ok(Some(handle))
    }

    /// The members, the protocol and its options, as a running replica knows them.
    ///
    /// # Errors
    /// [`Error::Stopped`] when none runs.
    pub fn report(&self) -> Result<ChangeReport, Error> {
        self.change(&ChangeRequest::default(), None)
    }

    /// Has the cluster continue with another protocol, or with other options of its own. Commands
    /// wait for a moment and are executed once. If the cluster already runs so, nothing changes.
    ///
    /// # Errors
    /// [`Error::Change`] with the reason; nothing has changed then, unless it says that it may.
    pub fn switch(&self, protocol: &str, options: &[(&str, &str)]) -> Result<ChangeReport, Error> {
        let options = options.iter();
        let request = ChangeRequest {
            protocol: Some(protocol.to_owned()),
            options: options
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..ChangeRequest::default()
        };
        self.change(&request, None)
    }

    /// Has acknowledgements promise this from now on. Before they promise a majority's disks, the
    /// state is on them.
    ///
    /// # Errors
    /// As [`Self::switch`].
    pub fn keep_on(&self, durability: Durability) -> Result<ChangeReport, Error> {
        let request = ChangeRequest {
            durability: Some(durability.name().to_owned()),
            ..ChangeRequest::default()
        };
        self.change(&request, None)
    }

    /// Adds a replica, with a machine as the others were started with, and gives its number: the
    /// first that no member has. It votes when it has fetched the state.
    ///
    /// # Errors
    /// As [`Self::switch`].
    pub fn join<Kind>(&mut self, machine: impl Replicated<Kind>) -> Result<usize, Error> {
        let members = self.report()?.members;
        let is_free = |id: &usize| members.iter().all(|it| usize::from(it.id) != *id);
        let id = (0..).find(is_free).unwrap_or_default();
        self.become_member(id, None, &|_, _| machine.machine())?;
        Ok(id)
    }

    /// Puts another replica into the place of one that has stopped; whose directory is removed.
    ///
    /// # Errors
    /// As [`Self::switch`].
    pub fn replace<Kind>(
        &mut self,
        replica: usize,
        machine: impl Replicated<Kind>,
    ) -> Result<(), Error> {
        match self.replicas.get(replica) {
            None => Err(Error::Change(format!("there is no replica {replica}"))),
            Some(Some(_)) => Err(Error::Change(format!(
                "replica {replica} runs: only one that has stopped is replaced"
            ))),
            Some(None) => self.become_member(replica, Some(replica), &|_, _| machine.machine()),
        }
    }

    /// Removes and stops a replica. The others keep their numbers.
    ///
    /// # Errors
    /// As [`Self::switch`].
    pub fn remove(&mut self, replica: usize) -> Result<ChangeReport, Error> {
        let request = ChangeRequest {
            remove: vec![u16::try_from(replica).unwrap_or(u16::MAX)],
            ..ChangeRequest::default()
        };
        let report = self.change(&request, Some(replica))?;
        if let Some(place) = self.replicas.get_mut(replica) {
            *place = None;
        }
        let rows = report.members.iter().map(|it| usize::from(it.id) + 1);
        self.replicas.truncate(rows.max().unwrap_or_default());
        let data = self.place.path.join(format!("replica-{replica}"));
        // It is of no use any more; one that stays is moved away when its number is given again.
        let _ = fs::remove_dir_all(data);
        Ok(report)
    }

    fn become_member(
        &mut self,
        id: usize,
        replaces: Option<usize>,
        machines: Machines<'_>,
    ) -> Result<(), Error> {
        let seeds = self.report()?.members;
        let seeds = seeds
            .into_iter()
            .filter(|member| usize::from(member.id) != id);
        let id = u16::try_from(id).unwrap_or(u16::MAX);
        let mut config = self.place.config(id, Vec::new());
        // A join that was interrupted continues with its directory.
        if config.data.exists()
            && (!has_joined(&config.data) || stored_epoch(&config.data).is_some())
        {
            fs::remove_dir_all(&config.data).map_err(system(config.data.display().to_string()))?;
        }
        let (listener, address) = listen(None)?;
        let wanted = Join {
            seeds: seeds.map(|member| member.peer).collect(),
            replaces: replaces.map(|_| ReplicaId(id)),
            timeout: CHANGE_MAX,
        };
        config.peer_announce = Some(address.to_string());
        join(
            &mut config,
            &*machines(ReplicaId(id), GroupId(0)),
            Some(&wanted),
        )
        .map_err(|error| Error::Change(error.to_string()))?;
        let running = start(config, machines, listener)?;
        let place = usize::from(id);
        if self.replicas.len() <= place {
            self.replicas.resize_with(place + 1, || None);
        }
        self.replicas[place] = Some(running);
        Ok(())
    }

    /// Asks the first replica that runs and is not `but`.
    fn change(&self, request: &ChangeRequest, but: Option<usize>) -> Result<ChangeReport, Error> {
        let others = self.replicas.iter().enumerate();
        let mut others = others.filter(|(id, _)| Some(*id) != but);
        let running = others.find_map(|(_, running)| running.as_ref());
        let handle = running.ok_or(Error::Stopped)?.handle();
        handle
            .change(request.clone(), CHANGE_MAX)
            .map_err(Error::Change)
    }

    /// The status that each running replica reports.
    pub fn status(&self) -> impl Iterator<Item = StatusReport> {
        self.replicas
            .iter()
            .flatten()
            .map(|running| running.handle().status())
    }

    fn submit(&self, level: Level, command: &[u8]) -> Result<Vec<u8>, Error> {
        self.in_turn(|handle| handle.submit(level, command))
    }

    /// Asks the replicas in turn; one that has stopped is passed over.
    fn in_turn(
        &self,
        ask: impl Fn(&Handle) -> Result<Vec<u8>, SubmitError>,
    ) -> Result<Vec<u8>, Error> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for offset in 0..self.replicas.len() {
            let index = first.wrapping_add(offset) % self.replicas.len();
            let Some(running) = &self.replicas[index] else {
                continue;
            };
            match ask(&running.handle()) {
                Err(SubmitError::Stopped) => {}
                result => return Ok(result?),
            }
        }
        Err(Error::Stopped)
    }
}
