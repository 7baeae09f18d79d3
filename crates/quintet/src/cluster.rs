//! All replicas of a cluster in this process.
//!
//! ```text
//!   Cluster::local(3) ──► Local (settings) ──start──► 3 replicas, each with threads of its own,
//!                                                    TCP over loopback, a directory
//!   drop ──► stops them; a temporary directory is removed
//! ```

use crate::small::Replicated;
use quintet_replica::{ClusterId, Durability, Level, ReplicaId};
use quintet_runtime::{
    Config, Listeners, Member, Replica, Running, StartError, StatusReport, SubmitError,
    sync_directory,
};
use std::{
    fs,
    io::{self, Read},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tempfile::TempDir;

/// What can go wrong with a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A replica cannot be started.
    #[error("cannot start a replica: {0}")]
    Start(#[from] StartError),
    /// A file or a socket of the cluster cannot be used.
    #[error("{what}: {error}")]
    System {
        /// What was attempted.
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
}

impl Local {
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
        if self.replicas == 0 {
            let reason = "members: there are 0, a cluster has at least 1".to_owned();
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
        let identity = identity(&path)?;
        let mut listeners = Vec::new();
        let mut members = Vec::new();
        for _ in 0..self.replicas {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            let listener = listener.map_err(system("opening a port on loopback"))?;
            let address = listener
                .local_addr()
                .map_err(system("opening a port on loopback"))?;
            members.push(Member {
                peer: address.to_string(),
            });
            listeners.push(listener);
        }
        let mut replicas = Vec::new();
        for (listener, id) in listeners.into_iter().zip(0..) {
            let data = path.join(format!("replica-{id}"));
            let mut config = Config::new(ClusterId(identity), ReplicaId(id), members.clone(), data);
            config.protocol.clone_from(&self.protocol);
            config.options.clone_from(&self.options);
            config.durability = self.durability;
            config.redis_listen = None;
            config.admin_listen = None;
            config.client_deadline = self.deadline;
            let listeners = Listeners {
                peer: Some(listener),
                ..Listeners::default()
            };
            replicas.push(Some(Replica::start_on(
                config,
                machine.machine(),
                listeners,
            )?));
        }
        Ok(Cluster {
            replicas,
            turn: AtomicUsize::new(0),
            _temporary: temporary,
        })
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
    turn: AtomicUsize,
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

    /// Stops one replica, as if its process had been told to end; the others continue. One that has
    /// stopped already, or never was, is ignored.
    pub fn stop(&mut self, replica: usize) {
        if let Some(running) = self.replicas.get_mut(replica) {
            *running = None;
        }
    }

    /// What each running replica says of itself.
    pub fn status(&self) -> impl Iterator<Item = StatusReport> {
        self.replicas
            .iter()
            .flatten()
            .map(|running| running.handle().status())
    }

    /// Asks the replicas in turn; one that has stopped is passed over.
    fn submit(&self, level: Level, command: &[u8]) -> Result<Vec<u8>, Error> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        for offset in 0..self.replicas.len() {
            let index = first.wrapping_add(offset) % self.replicas.len();
            let Some(running) = &self.replicas[index] else {
                continue;
            };
            match running.handle().submit(level, command) {
                Err(SubmitError::Stopped) => {}
                result => return Ok(result?),
            }
        }
        Err(Error::Stopped)
    }
}
