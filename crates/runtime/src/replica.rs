//! Starting, talking to and stopping one replica.
//!
//! ```text
//!   Replica::start(config, machine) ──► Running { addresses, handle, stop, join → ExitReason }
//!                                          │ clone
//!                                          ▼
//!   any thread ── submit, status, snapshot_now, stop ──► Handle ──► the event loop's mailbox
//! ```

use crate::{
    Config, Member, Published, Snapshot, Transport, announce,
    clock::{Clock, unix_time},
    config::time_for,
    data::{BEGUN_AGAIN_ON_DISK, Data, SecondCopy, random, stored_epoch},
    descriptors,
    event_loop::{
        ASK_EVERY, About, Apart, Epochs, EventLoop, Parts, RuntimeWorld, ShellParts, TOKEN_MAIL,
        TOKEN_PEERS,
    },
    journal_files::{FileDisk, FileError},
    journal_thread::JournalThread,
    mail::{Mail, Mailbox, Mailer, Request, Waiter},
    past_reads::PastRead,
    port::{Port, Ports},
    server::{
        Admin, AdminOptions, ChangeReport, ChangeRequest, Exposition, Gateway, GatewayConfig,
        KeyShards, NodePort, SnapshotReport, StatusReport,
    },
    shards::Plan,
    snapshots::{self, Snapshots},
    survey::Survey,
    terms,
    transports::{
        emulator::Emulator,
        handshake::{PeerIdentity, PeerKey},
        tcp::Tcp,
    },
};
use quintet_protocols::find;
use quintet_replica::{
    CommandTime, Descriptor, Durability, Entry, EpochNumber, Executed, FrontendId, GroupId,
    Injected, Lane, Level, Node, NodeSetup, Payload, Peer, Position, RecoveredBytes, ReplicaId,
    RequestKind, StateMachine, Time,
    journal::{Beginning, GroupEpoch, Identity, Journal, JournalError, Opened, salvage},
    limits, no_member,
    past::{self, Asking},
};
use std::{
    cell::Cell,
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
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
        /// The error and its remedy.
        reason: String,
    },
    /// The storage failed.
    #[error("storage at {path} failed: {error}", path = .path.display())]
    StorageFailed {
        /// The path of the failure.
        path: PathBuf,
        /// How.
        error: io::Error,
    },
    /// The operating system refused a thread or a socket.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl StartError {
    /// A failure of the storage at this path.
    pub(crate) fn failed(path: &Path) -> impl Fn(io::Error) -> Self + Copy {
        |error| Self::StorageFailed {
            path: path.to_path_buf(),
            error,
        }
    }

    /// A refusal of the data at this path, with the reason.
    pub(crate) fn refused(path: &Path) -> impl Fn(String) -> Self + Copy {
        |reason| Self::DataRefused {
            path: path.to_path_buf(),
            reason,
        }
    }

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
    /// The process cannot continue: the operating system denied it something.
    Halted(String),
    /// Its peers, or its own data, do not let it take part.
    DataRefused(String),
    /// It cannot continue with what it has in memory; started again, it does with what is on its
    /// disk.
    StartAgain(String),
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
            Self::Halted(_) | Self::StartAgain(_) | Self::Panicked(_) => 1,
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
            Self::StartAgain(why) => write!(f, "stopped to start again: {why}"),
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
    /// Certainly not executed: too much is in progress.
    #[error("too many commands are in flight; try again")]
    Busy,
    /// Certainly not executed: the command is longer than any may be.
    #[error("the command has {bytes} bytes; accepted are at most {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Certainly not executed: this replica has no room for its journal.
    #[error("the disk of this replica is full; the command was not executed")]
    DiskFull,
    /// Certainly not executed: the replica has stopped.
    #[error("the replica has stopped")]
    Stopped,
    /// The log's clock has not passed the time that is asked for.
    #[error("that time has not come yet, by the log's clock")]
    NotYet,
    /// The state machine keeps no earlier states.
    #[error("the state machine does not keep the past")]
    NotKept,
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

/// Address space for the stack of a replica's thread; memory is taken as it is used.
const REPLICA_STACK: usize = 32 << 20;

/// Makes the state machine of a group.
pub(crate) type Machines<'a> = &'a mut dyn FnMut(GroupId) -> Box<dyn StateMachine>;

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
        if config.layout.is_some() {
            let why = "layout: the keys are divided, and there is one state machine";
            return Err(StartError::Config(why.to_owned()));
        }
        let mut machine = Some(machine);
        let mut only = |_| machine.take().expect("group 0 is the only one");
        Self::start_with(config, &mut only, listeners)
    }

    /// The same with a state machine for each group that this replica may take part in: group 0, and
    /// the shards of [`Config::layout`] whose member it is or may become.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub fn start_divided(
        config: Config,
        mut machine: impl FnMut(GroupId) -> Box<dyn StateMachine>,
        listeners: Listeners,
    ) -> Result<Running, StartError> {
        Self::start_with(config, &mut machine, listeners)
    }

    fn start_with(
        mut config: Config,
        machines: Machines<'_>,
        listeners: Listeners,
    ) -> Result<Running, StartError> {
        let entry = config.check()?;
        let mut machine = machines(GroupId(0));
        config.settle_layout()?;
        let is_new = stored_epoch(&config.data).is_none();
        let in_memory = config.durability == Durability::Memory || config.has_shards_in_memory();
        if is_new && config.bootstrap_again && !in_memory {
            return Err(StartError::Config(BEGUN_AGAIN_ON_DISK.to_owned()));
        }
        let peer = listen("peer_listen", config.peer_listen, listeners.peer)?;
        let (redis, admin) = listen_to_clients(&config, listeners.redis, listeners.admin)?;
        let addresses = Addresses {
            redis: redis.as_ref().map(TcpListener::local_addr).transpose()?,
            admin: admin.as_ref().map(TcpListener::local_addr).transpose()?,
            peer: peer.local_addr()?,
        };

        config.clients_max = descriptors::grant(config.clients_max, config.descriptors_reserved());
        let mut data = Data::open(&config)?;
        let saved = match data.keeps {
            true => snapshots::newest_epoch(&data.path().join("snapshots")),
            false => None,
        };
        let configured = terms::first_epoch(&config, entry, &*machine);
        let (descriptor, base) = data.agree(configured.clone(), saved)?;
        let entry = find(&descriptor.protocol).map_err(|error| {
            let reason = format!("its members have changed to another protocol: {error}");
            StartError::refused(&config.data)(reason)
        })?;
        config.protocol.clone_from(&descriptor.protocol);
        config.durability = descriptor.durability;
        let names = terms::addresses(&configured, &descriptor, &data);
        config.members = names.into_iter().map(|peer| Member { peer }).collect();
        if !descriptor.all().contains(config.id) {
            let reason = no_member(config.id, descriptor.number);
            return Err(StartError::refused(&config.data)(reason));
        }
        if config.transport.uses_datagrams() && entry.needs_streams {
            return Err(StartError::Config(format!(
                "transport: the members have changed to protocol '{}', which relies on links that \
                 lose and reorder nothing; accepted is 'tcp'",
                config.protocol
            )));
        }
        machine.set_hash_seed(descriptor.hash_seed);
        let poll = mio::Poll::new()?;
        let (mailbox, mailer) = Mailbox::new(poll.registry(), mio::Token(TOKEN_MAIL))?;
        let published = Arc::new(Published::default());
        let handle = Handle::new(
            mailer.clone(),
            Arc::clone(&published),
            config.client_deadline,
        );
        let event_loop = assemble(
            &config,
            (entry, descriptor, base),
            (machine, machines),
            (data, poll, mailbox, mailer),
            (peer, redis.zip(addresses.redis)),
            published,
        )?;
        let thread = std::thread::Builder::new()
            .name(format!("replica {}", config.id.0))
            // Arguments and values of services may be nested as deeply as their callers' stacks allow.
            .stack_size(REPLICA_STACK)
            .spawn(move || guarded(|| event_loop.run()))?;
        Running::of(addresses, handle, admin, AdminOptions::of(&config), thread)
    }
}

/// Runs a loop to its end, by whatever way.
pub(crate) fn guarded(run: impl FnOnce() -> ExitReason) -> ExitReason {
    // Nothing of the loop is used after a panic but its end: sockets close, the journal's thread
    // finishes what it has.
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    result.unwrap_or_else(|panic| {
        let text = (panic.downcast_ref::<String>().map(String::as_str))
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown");
        ExitReason::Panicked(text.to_owned())
    })
}

/// Opens the sockets for Redis clients and for admin HTTP that the configuration asks for; one
/// that is given takes precedence.
pub(crate) fn listen_to_clients(
    config: &Config,
    redis: Option<TcpListener>,
    admin: Option<TcpListener>,
) -> Result<(Option<TcpListener>, Option<TcpListener>), StartError> {
    let redis = config
        .redis_listen
        .map(|address| listen("redis_listen", address, redis))
        .transpose()?;
    let admin = config
        .admin_listen
        .map(|address| listen("admin_listen", address, admin))
        .transpose()?;
    Ok((redis, admin))
}

fn listen(
    setting: &'static str,
    address: SocketAddr,
    given: Option<TcpListener>,
) -> Result<TcpListener, StartError> {
    if let Some(listener) = given {
        return Ok(listener);
    }
    TcpListener::bind(address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => StartError::PortInUse {
            setting,
            address,
            port: address.port(),
        },
        _ => StartError::Listen {
            setting,
            address,
            error,
        },
    })
}

/// A replica's state of its earlier incarnations.
struct Storage {
    opened: Opened<FileDisk>,
    snapshots: Snapshots,
    /// The lost data.
    repairing: Option<String>,
}

/// Whether the others alone can bring back a replica that has lost its state.
fn others_suffice(id: ReplicaId, descriptor: &Descriptor) -> bool {
    let voters = descriptor.voters();
    // Nothing was ever acknowledged for the sake of a learner.
    !voters.contains(id) || voters.is_majority(voters.set().without(id))
}

/// Names those of these shards whose other members cannot bring them back; `alone`: see
/// [`Plan::others_suffice`].
fn kept_by_too_few<'a>(
    id: ReplicaId,
    shards: impl Iterator<Item = &'a Plan>,
    alone: &[GroupId],
) -> Option<String> {
    let few = shards.filter(|plan| !plan.others_suffice(id, alone));
    let few: Vec<_> = few.map(|plan| &plan.about.name[..]).collect();
    (!few.is_empty()).then(|| {
        let names = few.join(", ");
        format!("The other members cannot bring back what this replica keeps of shard {names}")
    })
}

/// Finds snapshot and journal. Durable data that cannot be read is never cut off: a replica that
/// has enough peers sets it aside and comes back as one that has lost its state, any other refuses
/// to start. Of several groups only those are concerned of which something is missing, or may be.
fn open_storage(
    config: &Config,
    (descriptor, shards): (&Descriptor, &[Plan]),
    data: &mut Data,
    mailer: &Mailer,
) -> Result<Storage, StartError> {
    let refused = StartError::refused(&config.data);
    let failed = StartError::failed(&config.data);
    let unusable = |error: JournalError<FileError>| match error {
        JournalError::Disk(FileError { path, error })
        | JournalError::Full(FileError { path, error }) => {
            StartError::StorageFailed { path, error }
        }
        other => refused(other.to_string()),
    };
    let identity = Identity {
        cluster: config.cluster,
        node: config.id,
    };
    let members = || shards.iter().filter(|plan| plan.is_member());
    let mut groups = vec![GroupEpoch {
        group: descriptor.group,
        epoch: descriptor.number,
    }];
    groups.extend(members().map(Plan::journal_group));
    let directory = data.path().join("snapshots");
    let survey = match data.keeps {
        true => Survey::of(&directory, config.cluster, Some(descriptor.number))
            .map_err(failed)?
            .map_err(refused)?,
        false => Survey::default(),
    };
    let surveys = members().map(|plan| plan.survey(config));
    let surveys = surveys.collect::<Result<Vec<_>, _>>()?;
    let aside = data.aside();
    let disk = || FileDisk::new(&config.data, config.journal.direct, aside.clone());
    let length = config.journal.segment_bytes;
    let all_empty = |complete: bool| {
        let empty = |_: &GroupEpoch| Beginning::Empty { complete };
        groups.iter().map(empty).collect::<Vec<_>>()
    };
    let opened = match data.journal_begins_again {
        true => Journal::begin_again(disk(), identity, &groups, length, all_empty(true)),
        false => Journal::open(disk(), identity, &groups, length),
    };
    let (opened, damage) = match opened {
        Ok(opened) => (Some(opened), None),
        Err(error) if error.is_damage() => (None, Some(error.to_string())),
        Err(error) => return Err(unusable(error)),
    };
    let salvaged = match &damage {
        Some(_) => {
            Some(salvage(&mut disk(), &identity, &groups, Injected::default()).map_err(unusable)?)
        }
        None => None,
    };
    // In memory durability there is nothing that the journal must go back to.
    let keep = core::iter::once(data.keeps).chain(members().map(Plan::keeps));
    let keep: Vec<bool> = keep.collect();
    let all_surveys = || core::iter::once(&survey).chain(&surveys);
    let lost_of = |at: usize, survey: &Survey| {
        let found = match (&opened, &salvaged) {
            (Some(opened), _) => Some(&opened.groups[at]),
            (_, salvaged) => (salvaged.as_ref()).and_then(|salvaged| salvaged.groups[at].as_ref()),
        };
        let goes_back = "and the journal alone does not go back far enough";
        match found {
            Some(found) => (survey.lost(found.complete)).map(|lost| format!("{lost}, {goes_back}")),
            None => damage.clone(),
        }
    };
    let lost = all_surveys().enumerate();
    let lost: Vec<Option<String>> = lost
        .map(|(at, survey)| keep[at].then(|| lost_of(at, survey)).flatten())
        .collect();
    for (_, reason) in surveys.iter().flat_map(|it| &it.bad).chain(&survey.bad) {
        tracing::warn!(reason, "a snapshot cannot be read");
    }
    let first = descriptor.number == EpochNumber(1);
    if first && descriptor.base > Position(0) && survey.good.is_none() {
        // Its log begins with a state that no log leads up to.
        return Err(refused(no_remedy_yet(
            "no snapshot of the state that this cluster began with can be read",
        )));
    }
    // Names those of the groups for which this is so, unless it is so for all.
    let concerns = |those: &[bool]| {
        let names = members().map(|plan| &plan.about.name[..]);
        let names = core::iter::once("the group of all members").chain(names);
        let names = names.zip(those).filter(|(_, it)| **it);
        let names: Vec<_> = names.map(|(name, _)| name).collect();
        match names.len() {
            0 => String::new(),
            count if count == groups.len() => String::new(),
            _ => format!(". This concerns {}", names.join(", ")),
        }
    };
    let mut loss = None;
    let opened = match opened {
        Some(opened) if lost.iter().all(Option::is_none) => opened,
        opened => {
            let (lost, reasons): (Vec<bool>, Vec<_>) = (lost.into_iter())
                .map(|lost| (lost.is_some(), lost))
                .unzip();
            // Nothing durable of any group here: what cannot be read was of no use.
            let reason = reasons.into_iter().flatten().next().or(damage);
            let reason = reason.unwrap_or_default();
            if lost[0] && !others_suffice(config.id, descriptor) {
                return Err(refused(no_remedy_yet(&reason)));
            }
            let promise = match (&opened, &salvaged) {
                (Some(opened), _) => opened.groups[0].promise.as_ref(),
                (_, salvaged) => salvaged.as_ref().and_then(|it| it.promise.as_ref()),
            };
            let alone = Plan::kept_alone(shards, config.id, promise);
            let losers = members().zip(&lost[1..]).filter(|(_, lost)| **lost);
            let losers = losers.map(|(plan, _)| plan);
            if let Some(shards) = kept_by_too_few(config.id, losers, &alone) {
                return Err(refused(no_remedy_yet(&format!("{reason}. {shards}"))));
            }
            if lost.contains(&true) {
                tracing::error!(
                    lost = format!("{reason}{}", concerns(&lost)),
                    "what was durable cannot be read: it is set aside, and this replica neither \
                     votes nor acknowledges anything for it until the others have brought it back"
                );
                let ids = groups.iter().zip(&lost).filter(|(_, lost)| **lost);
                let ids: Vec<_> = ids.map(|(of, _)| of.group).collect();
                data.begin_repair(&ids).map_err(failed)?;
                loss = Some(reason);
            }
            if lost[0] {
                (survey.set_older_aside(&directory, &data.aside())).map_err(failed)?;
            }
            for ((plan, survey), lost) in members().zip(&surveys).zip(&lost[1..]) {
                if *lost {
                    plan.set_aside(survey, data, true).map_err(failed)?;
                }
            }
            let found = match (opened, salvaged) {
                (Some(opened), _) => opened.groups.into_iter().map(Some).collect(),
                (None, salvaged) => salvaged.map_or_else(Vec::new, |salvaged| salvaged.groups),
            };
            let beginnings = found.into_iter().zip(all_surveys()).enumerate();
            let beginnings = beginnings.map(|(at, (found, survey))| match found {
                Some(found) if keep[at] && !lost[at] => Beginning::Kept(found),
                _ => Beginning::Empty {
                    complete: survey.good.is_none(),
                },
            });
            let beginnings = beginnings.collect();
            Journal::begin_again(disk(), identity, &groups, length, beginnings).map_err(unusable)?
        }
    };
    (survey.set_aside(&directory, &data.aside())).map_err(failed)?;
    for (plan, survey) in members().zip(&surveys) {
        plan.set_aside(survey, data, false).map_err(failed)?;
    }
    if opened.torn {
        tracing::warn!("the journal's last write was unfinished and never acknowledged: cut off");
    }
    if opened.promise_repaired {
        tracing::warn!("one copy of the promises was damaged: repaired from the other");
    }
    if !data.repairing() {
        data.drop_damaged_journals();
    }
    let repairing = data.repairing().then(|| {
        let groups = groups.iter().map(|of| data.is_repairing(of.group));
        let groups: Vec<bool> = groups.collect();
        loss.unwrap_or_else(|| "begun at an earlier start".to_owned()) + &concerns(&groups)
    });
    let of = (config.cluster, descriptor.number);
    let snapshots = Snapshots::start(directory, of, data.keeps, mailer.clone()).map_err(failed)?;
    Ok(Storage {
        opened,
        snapshots,
        repairing,
    })
}

/// The error of a replica without peers to repair it.
fn no_remedy_yet(lost: &str) -> String {
    format!(
        "{lost}. Nothing was changed. Restore the data directory from a backup, or save what the \
         other replicas hold (quintet snapshot save) and begin a new cluster with it"
    )
}

fn assemble(
    config: &Config,
    (entry, descriptor, base): (&'static Entry, Descriptor, Executed),
    (machine, machines): (Box<dyn StateMachine>, Machines<'_>),
    (mut data, poll, mailbox, mailer): (Data, mio::Poll, Mailbox, Mailer),
    (peer, redis): (TcpListener, Option<(TcpListener, SocketAddr)>),
    published: Arc<Published>,
) -> Result<EventLoop, StartError> {
    let epochs = Epochs {
        me: config.id,
        path: config.data.clone(),
        secret: config.secret,
        configured: config.options.clone(),
        descriptor: descriptor.clone(),
        second_copy: SecondCopy::default(),
        datagrams: config.transport.uses_datagrams(),
        shares_memory: config.transport == Transport::SharedMemory,
        fixed: config.emulation.as_ref().map(|_| "links are emulated"),
        changing: None,
        directory: data.directory,
        mailer: mailer.clone(),
        ask_at: match descriptor.voters().contains(config.id) {
            true => Time(0) + ASK_EVERY,
            false => Time(0),
        },
        joining: None,
        began_at: Time(0),
        votes_asked: 0,
        asking: Arc::default(),
    };
    let epoch = epochs.epoch(&descriptor);
    let layout = config.shards()?;
    let plans = match &layout {
        Some(layout) => Plan::all(config, layout, &descriptor, machines)?,
        None => Vec::new(),
    };
    let Storage {
        mut opened,
        snapshots,
        repairing,
    } = open_storage(config, (&descriptor, &plans), &mut data, &mailer)?;
    let found = opened.groups.remove(0);
    if let Some(check) = machine.state_check() {
        snapshots.check_states(check);
    }
    let recovered = RecoveredBytes {
        first_boot: data.first_boot,
        state_lost: data.state_lost,
        promise: found.promise,
        checkpoint: None,
        records: match data.keeps {
            true => found.records,
            false => Vec::new(),
        },
    };
    let journal = JournalThread::start(
        opened.journal,
        mailer.clone(),
        descriptor.durability == Durability::Disk || plans.iter().any(Plan::keeps),
    )?;
    let frontend = FrontendId(random().max(1));
    let mut founds = opened.groups.into_iter();
    let shards = plans.into_iter().map(|plan| {
        let found = if plan.is_member() {
            founds.next()
        } else {
            None
        };
        plan.part(config, &data, found, frontend, &mailer)
    });
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    let told = announce::of(config, redis.as_ref().map(|(_, address)| *address));
    let (options, limits) = terms::shown(&descriptor);
    let about = About {
        cluster: config.cluster.to_string(),
        protocol: config.protocol.clone(),
        durability: descriptor.durability.name(),
        threads: config.threads.name(),
        members: epoch.members,
        epoch: epoch.number.0,
        incarnation: data.incarnation.0,
        boot: data.boot.0,
        repairing,
        fingerprint: descriptor.fingerprint().to_string(),
        options,
        limits,
        redis: Some(told.clone()).filter(|told| !told.is_empty()),
    };
    let identity = PeerIdentity {
        cluster: config.cluster,
        epoch: epoch.number,
        groups: 1 + shards.len() as u32,
        members: config.members.len() as u16,
        protocol: config.protocol.clone(),
        from: Peer::Replica(config.id),
        to: config.id,
        incarnation: data.incarnation,
        boot: data.boot,
        directory: data.directory,
        session: 0,
        lane: Lane::Control,
        redis: told,
        address: config.peer_announce.clone().unwrap_or_default(),
        descriptor: descriptor.public(),
    };
    let setup = NodeSetup {
        id: config.id,
        incarnation: data.incarnation,
        boot: data.boot,
        group: GroupId(0),
        epoch,
        durability: config.durability,
        seed: random(),
        frontend,
        snapshot_bytes_min: config.snapshot_bytes_min,
        limits: terms::agreed_limits(config, &descriptor),
    };
    let node = Node::among(descriptor.voters(), setup, entry, machine)
        .map_err(|error| StartError::Config(error.to_string()))?
        .with_descriptor(descriptor.encode())
        .with_base(base);
    let mut names: Vec<String> = config.members.iter().map(|it| it.peer.clone()).collect();
    if let Some(address) = &config.peer_announce {
        names[config.id.index()].clone_from(address);
    }
    let apart = Apart::of(config)?;
    let registry = apart.as_ref().map_or(&poll, |apart| &apart.peers);
    let registry = registry.registry().try_clone()?;
    let key = PeerKey::new(&config.secret, config.cluster);
    if config.secret == [0; 32] && !peer.local_addr()?.ip().is_loopback() {
        tracing::warn!(
            "peers are not authenticated: there is no secret, and peer_listen is reachable from \
             other machines; set 'secret' to the same value at every member"
        );
    }
    let mut tcp = Tcp::new(
        (identity, key),
        data,
        registry,
        peer,
        names,
        TOKEN_PEERS,
        mailer.clone(),
    )?;
    match config.transport {
        Transport::Tcp => {}
        Transport::Udp => tcp.use_datagrams(config.datagram_bytes_max)?,
        Transport::AfXdp => tcp.use_af_xdp(config.datagram_bytes_max)?,
        Transport::SharedMemory => tcp.use_memory(),
    }
    if config.clock_skew != 0 {
        let skew = config.clock_skew;
        tracing::warn!(
            skew,
            "the clock is set wrong on purpose, by this many nanoseconds"
        );
    }
    tcp.set_rows(&descriptor);
    tcp.skew_clock(config.clock_skew);
    let clock = Clock::new(config.clock_skew);
    let (disciplined, error) = clock.discipline();
    tcp.tell_clock(disciplined, error);
    if let Some(emulation) = &config.emulation {
        tracing::warn!("links to peers are emulated: slower or worse than the network is");
        let now = Duration::from_nanos(unix_time());
        let since = now.saturating_sub(emulation.began);
        // A run may begin when all replicas are up.
        let links = emulation
            .links
            .postponed(emulation.began.saturating_sub(now));
        // The event loop's clock begins right after this.
        tcp.emulate(Emulator::new(&links, config.id, Time(0), since));
    }
    let server = redis.map(|(listener, address)| {
        (
            Gateway::new(
                GatewayConfig {
                    shards: layout.as_ref().map(|it| KeyShards::of(it, config.id)),
                    ..gateway_config(config, address)
                },
                frontend,
                random(),
            ),
            listener,
        )
    });
    let ports = Ports::new(shards.len(), || {
        let owner = (random(), unix_time());
        let (deadline, lifetime) = (config.client_deadline, config.session_lifetime);
        Port::new(frontend, owner, deadline, lifetime).with_values(config.limits.value_bytes_max)
    });
    let world = RuntimeWorld {
        clock,
        rooms: vec![Cell::new(0); config.members.len()],
        snapshots,
    };
    let shell = ShellParts {
        poll,
        mailbox,
        mailer,
        tcp,
        server,
        ports,
        published,
        spin_max: config.spin_max,
        apart,
    };
    let parts = Parts {
        shell,
        node,
        shards,
        recovered,
        world,
        journal,
        journal_queue_max: config.journal.queue_bytes_max,
        about,
        epochs,
        evict_after: config.evict_after,
        viable: entry.viable_in,
    };
    EventLoop::new(parts)?.map_err(StartError::refused(&config.data))
}

pub(crate) fn gateway_config(config: &Config, address: SocketAddr) -> GatewayConfig {
    GatewayConfig {
        replica: config.id,
        members: (config.members.iter())
            .filter(|member| !member.peer.is_empty())
            .count(),
        protocol: config.protocol.clone(),
        durability: config.durability,
        threads: config.threads.name(),
        cluster: config.cluster.to_string(),
        port: address.port(),
        directory: config.data.display().to_string(),
        password: config.password.clone(),
        connections_max: config.clients_max,
        idle_max: config.clients.timeout,
        partial_max: config.clients.partial_timeout,
        tcp_keepalive: config.clients.tcp_keepalive,
        auth_deadline: config.clients.auth_deadline,
        unauthenticated_max: config.clients.unauthenticated_max,
        per_address_max: config.clients.per_address_max,
        client_deadline: config.client_deadline,
        value_bytes_max: config.limits.value_bytes_max,
        command_bytes_max: limits::command_bytes_max(config.limits.value_bytes_max),
        session_lifetime: config.session_lifetime,
        memory_max: config.limits.memory_max,
        batch_bytes: config.limits.batch_bytes,
        batch_requests: config.limits.batch_requests,
        ..GatewayConfig::default()
    }
}

/// A running replica. Dropping it stops the replica gracefully and waits for that.
#[derive(Debug)]
pub struct Running {
    addresses: Addresses,
    handle: Handle,
    admin: Option<Admin>,
    thread: Option<JoinHandle<ExitReason>>,
}

impl Running {
    /// Stops what runs when its admin HTTP cannot be served.
    pub(crate) fn of(
        addresses: Addresses,
        handle: Handle,
        admin: Option<TcpListener>,
        options: AdminOptions,
        thread: JoinHandle<ExitReason>,
    ) -> Result<Self, StartError> {
        let mut running = Self {
            addresses,
            handle,
            admin: None,
            thread: Some(thread),
        };
        if let Some(listener) = admin {
            let port = Arc::new(running.handle.clone());
            running.admin = Some(Admin::start(listener, port, options)?);
        }
        Ok(running)
    }

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
    pub fn join(mut self) -> ExitReason {
        let ended = self.thread.take().map(JoinHandle::join);
        // The loop catches its panics, so that a thread that cannot be joined has none to tell.
        ended.and_then(Result::ok).unwrap_or(ExitReason::Stopped)
    }

    /// Whether it has stopped; [`Self::join`] does not wait then.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.admin = None;
        if let Some(thread) = self.thread.take() {
            self.handle.stop();
            // No caller is left for the reason.
            let _ = thread.join();
        }
    }
}

/// Talks to a running replica from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    mailer: Mailer,
    published: Arc<Published>,
    timeout: Duration,
}

impl Handle {
    pub(crate) fn new(mailer: Mailer, published: Arc<Published>, deadline: Duration) -> Self {
        Self {
            mailer,
            published,
            timeout: deadline + Duration::from_secs(5),
        }
    }

    /// The same for the commands of this group: a shard of [`Config::layout`].
    #[must_use]
    pub fn in_group(&self, group: GroupId) -> Self {
        Self {
            mailer: self.mailer.of_group(group),
            ..self.clone()
        }
    }

    /// Carries out one command and waits for its reply, hardly longer than the configured client
    /// deadline. Ordered commands are executed exactly once.
    ///
    /// # Errors
    /// Whether it was executed, see [`SubmitError`].
    pub fn submit(&self, level: Level, payload: &[u8]) -> Result<Vec<u8>, SubmitError> {
        let timeout = self.timeout + time_for(payload.len());
        self.ask(level, Some(payload.into()), timeout)
    }

    /// Answers a read from the state as it was at `time`, or from the newest one: permanently the same,
    /// at every replica. Waits for a time that is to come, no longer than for a command.
    ///
    /// # Errors
    /// [`SubmitError::NotYet`], [`SubmitError::NotKept`], or why there was no answer.
    pub fn query_at(&self, time: CommandTime, payload: &[u8]) -> Result<Vec<u8>, SubmitError> {
        let (sender, receiver) = mpsc::channel();
        self.query_past_with(Asking::new(time), payload, move |answer| {
            // The caller may have given up.
            let _ = sender.send(answer);
        });
        match receiver.recv_timeout(self.timeout) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => Err(SubmitError::Stopped),
            Err(RecvTimeoutError::Timeout) => Err(SubmitError::NoQuorum),
        }
    }

    /// Answers such a read and calls `done` with the reply, which must not block: as a rule on the
    /// replica's own thread, else on the one of all reads that wait until their time is closed.
    pub fn query_past_with(
        &self,
        asking: Asking,
        payload: &[u8],
        done: impl FnOnce(Result<Vec<u8>, SubmitError>) + Send + 'static,
    ) {
        let read = past::payload(asking.time(), payload).into();
        let ends = Instant::now() + self.timeout;
        PastRead::begin(self.clone(), asking, read, ends, Box::new(done));
    }

    /// Carries out a step of such a read.
    pub(crate) fn request(
        &self,
        level: Level,
        kind: RequestKind,
        payload: &[u8],
        done: impl FnOnce(Result<Vec<u8>, SubmitError>) + Send + 'static,
    ) {
        let request = Request::new(level, Some(payload.into()), Box::new(done));
        self.mailer.send(Mail::Submit(request.of_kind(kind)));
    }

    fn ask(
        &self,
        level: Level,
        payload: Option<Payload>,
        timeout: Duration,
    ) -> Result<Vec<u8>, SubmitError> {
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| {
            // The caller may have given up.
            let _ = sender.send(result);
        });
        let request = Request::new(level, payload, done);
        self.mailer.send(Mail::Submit(request));
        match receiver.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(SubmitError::Stopped),
            Err(RecvTimeoutError::Timeout) if level == Level::Ordered => {
                Err(SubmitError::Uncertain)
            }
            Err(RecvTimeoutError::Timeout) => Err(SubmitError::NoQuorum),
        }
    }

    /// Carries out one command and calls `done` with the reply, as a rule on the replica's own
    /// thread: `done` must not block. A large payload that was written as a [`Payload`] is not
    /// copied here. Large commands of which none has been answered may overtake each other; a
    /// caller that needs an order waits for the reply.
    pub fn submit_with(
        &self,
        level: Level,
        payload: impl Into<Payload>,
        done: impl FnOnce(Result<Vec<u8>, SubmitError>) + Send + 'static,
    ) {
        self.mailer.send(Mail::Submit(Request::new(
            level,
            Some(payload.into()),
            Box::new(done),
        )));
    }

    /// The newest published state; at most about a tenth of a second old while anything happens.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        self.published.newest().report.clone()
    }

    /// The same with all that was counted.
    #[must_use]
    pub fn newest(&self) -> Arc<Snapshot> {
        self.published.newest()
    }

    /// Whether a linearizable read could be answered within `deadline`; waits that long at most.
    #[must_use]
    pub fn probe(&self, deadline: Duration) -> bool {
        self.ask(Level::Linearizable, None, deadline).is_ok()
    }

    /// Asks for a snapshot and waits until it is durable, `deadline` at most.
    ///
    /// # Errors
    /// Why there is none.
    pub fn snapshot_now(&self, deadline: Duration) -> Result<SnapshotReport, String> {
        self.snapshot_of("", deadline)
    }

    /// The same of the shard of this name, where a layout divides the keys.
    ///
    /// # Errors
    /// Why there is none.
    pub fn snapshot_of(&self, shard: &str, deadline: Duration) -> Result<SnapshotReport, String> {
        let (sender, receiver) = mpsc::channel();
        self.mailer
            .send(Mail::SnapshotNow(shard.to_owned(), sender));
        receiver
            .recv_timeout(deadline)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Disconnected => Err("the replica has stopped".to_owned()),
                RecvTimeoutError::Timeout => Err(format!("no snapshot within {deadline:?}")),
            })
    }

    /// Has the cluster continue with another protocol or other options, and waits until this
    /// replica does, `deadline` at most. Asked for again what is so already, it changes nothing.
    ///
    /// # Errors
    /// Why it does not. Nothing has changed then, unless the text says that it may.
    pub fn change(
        &self,
        request: ChangeRequest,
        deadline: Duration,
    ) -> Result<ChangeReport, String> {
        let (sender, receiver) = mpsc::channel();
        self.mailer
            .send(Mail::Change(request, Waiter::Caller(sender)));
        receiver
            .recv_timeout(deadline)
            .unwrap_or_else(|error| match error {
                RecvTimeoutError::Disconnected => Err("the replica has stopped".to_owned()),
                RecvTimeoutError::Timeout => Err(format!(
                    "not done within {deadline:?}; it may still come: look at the status, and ask \
                     again"
                )),
            })
    }

    /// Asks the replica to stop: hand leadership over, finish what is in progress, close. Does not
    /// wait.
    pub fn stop(&self) {
        self.mailer.send(Mail::Stop);
    }
}

impl NodePort for Handle {
    fn status(&self) -> StatusReport {
        Self::status(self)
    }

    fn probe(&self, deadline: Duration) -> bool {
        Self::probe(self, deadline)
    }

    fn metrics(&self) -> Exposition {
        let newest = self.published.newest();
        let mut exposition = Exposition::default();
        newest.metrics.render_into(&mut exposition);
        newest.counters.render_into(&mut exposition);
        exposition
    }

    fn snapshot(&self, shard: &str, deadline: Duration) -> Result<SnapshotReport, String> {
        self.snapshot_of(shard, deadline)
    }

    fn change(&self, request: ChangeRequest, deadline: Duration) -> Result<ChangeReport, String> {
        Self::change(self, request, deadline)
    }
}
