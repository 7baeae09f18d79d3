//! Starting, talking to and stopping one replica.
//!
//! ```text
//!   Replica::start(config, machine) ──► Running { addresses, handle, stop, join → ExitReason }
//!                                          │ clone
//!                                          ▼
//!   any thread ── submit, status, snapshot_now, stop ──► Handle ──► the event loop's mailbox
//! ```

use crate::{
    Config,
    status::{SnapshotReport, StatusReport},
};
use quintet_replica::{Level, StateMachine};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    time::Duration,
};

/// Why a replica cannot start. Every text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is wrong.
    #[error("{0}")]
    Config(String),
    /// An address cannot be listened on.
    #[error(
        "{setting}: port {port} of {address} is in use by another process; choose another port \
         or stop that process"
    )]
    PortInUse {
        /// The setting that named it.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// Its port.
        port: u16,
    },
    /// An address cannot be listened on for another reason.
    #[error("{setting}: cannot listen on {address}: {error}")]
    Listen {
        /// The setting that named it.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The data directory is not this replica's, is in use, damaged or of a newer format.
    #[error("data directory {path}: {reason}", path = .path.display())]
    DataRefused {
        /// The directory.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The storage failed.
    #[error("storage at {path} failed: {error}", path = .path.display())]
    StorageFailed {
        /// What was touched.
        path: PathBuf,
        /// How.
        error: io::Error,
    },
    /// The operating system refused a thread or a socket.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl StartError {
    /// The process's exit code: 2 for settings, 7 for refused data, 8 for failed storage, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::PortInUse { .. } | Self::Listen { .. } => 2,
            Self::DataRefused { .. } => 7,
            Self::StorageFailed { .. } => 8,
            Self::System(_) => 1,
        }
    }
}

/// Why a replica stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// It was asked to.
    Stopped,
    /// The protocol cannot go on.
    Halted(String),
    /// Its peers, or its own data, do not let it take part.
    DataRefused(String),
    /// The storage failed; what was not acknowledged may be lost, nothing else is.
    StorageFailed(String),
    /// A check inside failed: a bug.
    Panicked(String),
}

impl ExitReason {
    /// The process's exit code: 0 after a stop, 7 for refused data, 8 for failed storage, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Stopped => 0,
            Self::Halted(_) | Self::Panicked(_) => 1,
            Self::DataRefused(_) => 7,
            Self::StorageFailed(_) => 8,
        }
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Halted(why) => write!(f, "halted: {why}"),
            Self::DataRefused(why) => write!(f, "refused: {why}"),
            Self::StorageFailed(why) => write!(f, "storage failed: {why}"),
            Self::Panicked(why) => write!(f, "a check failed, please report this: {why}"),
        }
    }
}

/// Why a submitted command has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Certainly not executed.
    #[error("no quorum within the deadline; the command was not executed")]
    NoQuorum,
    /// Perhaps executed.
    #[error("no answer within the deadline; the command may or may not have been executed")]
    Uncertain,
    /// Certainly not executed: too much is under way.
    #[error("too many commands are under way; try again")]
    Busy,
    /// Certainly not executed: the replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
}

/// Sockets that listen already, for callers that must know the ports before they start replicas.
/// One that is given takes precedence over the address in the configuration.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For Redis clients.
    pub redis: Option<TcpListener>,
    /// For admin HTTP.
    pub admin: Option<TcpListener>,
    /// For peers.
    pub peer: Option<TcpListener>,
}

/// Where a running replica listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Redis clients, if a server runs.
    pub redis: Option<SocketAddr>,
    /// Admin HTTP, if it runs.
    pub admin: Option<SocketAddr>,
    /// Peers.
    pub peer: SocketAddr,
}

/// See the module.
#[derive(Debug)]
pub struct Replica;

impl Replica {
    /// Opens the data directory, binds the sockets and starts the threads. Returns as soon as the
    /// replica serves; whether it has a quorum is told by [`Handle::status`].
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub fn start(config: Config, machine: Box<dyn StateMachine>) -> Result<Running, StartError> {
        Self::start_on(config, machine, Listeners::default())
    }

    /// The same on sockets that listen already.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub fn start_on(
        config: Config,
        machine: Box<dyn StateMachine>,
        listeners: Listeners,
    ) -> Result<Running, StartError> {
        let _ = (machine, listeners);
        config.check()?;
        Err(StartError::Config("not built yet".to_owned()))
    }
}

/// A running replica. Dropping it stops the replica gracefully and waits for that.
#[derive(Debug)]
pub struct Running {
    addresses: Addresses,
    handle: Handle,
}

impl Running {
    /// Where it listens, with the actual ports.
    #[must_use]
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Talks to it from any thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Asks it to stop gracefully; does not wait.
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Waits until it has stopped, for whatever reason.
    #[must_use]
    pub fn join(self) -> ExitReason {
        ExitReason::Stopped
    }

    /// Whether it has stopped; [`Self::join`] does not wait then.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        true
    }
}

/// Talks to a running replica from any thread.
#[derive(Clone, Debug)]
pub struct Handle {}

impl Handle {
    /// Carries out one command and waits for its reply, as long as the configured client deadline
    /// at most. Ordered commands are executed exactly once.
    ///
    /// # Errors
    /// Whether it was executed, see [`SubmitError`].
    pub fn submit(&self, level: Level, payload: &[u8]) -> Result<Vec<u8>, SubmitError> {
        let _ = (level, payload);
        Err(SubmitError::Stopped)
    }

    /// Carries out one command and calls `done` with the reply, on the replica's own thread:
    /// `done` must not block.
    pub fn submit_with(
        &self,
        level: Level,
        payload: Vec<u8>,
        done: impl FnOnce(Result<Vec<u8>, SubmitError>) + Send + 'static,
    ) {
        let _ = (level, payload);
        done(Err(SubmitError::Stopped));
    }

    /// The newest published state; at most about a tenth of a second old while anything happens.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        StatusReport::default()
    }

    /// Asks for a snapshot and waits until it is durable, `deadline` at most.
    ///
    /// # Errors
    /// Why there is none.
    pub fn snapshot_now(&self, deadline: Duration) -> Result<SnapshotReport, String> {
        let _ = deadline;
        Err("the replica has stopped".to_owned())
    }

    /// Asks the replica to stop: hand leadership over, finish what is under way, close. Does not
    /// wait.
    pub fn stop(&self) {}
}
