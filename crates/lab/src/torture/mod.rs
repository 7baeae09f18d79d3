//! Torture: a cluster of real processes under real faults, checked against its clients'
//! observations.
//!
//! ```text
//!   Plan ──► files, network ──► quintet serve × N ◄── signals, cuts, resets, full disks, rot
//!                                    ▲                        │ driver
//!                   clients ── RESP ─┘                        ▼
//!                      │                         timeline: which fault, since when, whose clients
//!                      ▼                                      │   may see what
//!                  recording ──────────► check ◄──────────────┘
//!                                          └─► Report: lost, not linearizable, pauses, complaints
//! ```
//!
//! The simulator searches far more worlds; this shows that the sockets, files, processes and clocks
//! around the same code keep the promise, too. Nothing here is inside the replicas: they are the
//! shipped program, configured by files.
//!
//! It checks that every answer fits one order of all operations (linearizability, over keys and
//! transactions), that every acknowledged write is at every replica in the end, that clients see
//! only errors that the fault in force excuses, that processes end with the documented exit codes,
//! and that all replicas reach the same state after the last fault.

mod check;
mod client;
mod cluster;
mod driver;
mod faults;
mod files;
pub mod hostile;
mod members;
pub(crate) mod network;
mod proxy;
mod record;
pub mod sandbox;
mod timeline;
mod workload;

pub use faults::{FaultSet, Kind};
pub use network::{NetworkKind, PORTS, REPLICAS_MAX, free_base};
pub use timeline::{Pause, Window};
pub use workload::Lie;

use cluster::Cluster;
use driver::{Driver, Halt};
use network::Network;
use quintet_replica::Durability;
use quintet_simulator::Random;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};
use workload::{Client, Shared};

/// The room that a replica on a small disk has, in bytes: at first, and for every request that it
/// is to live through. Without the second the data outgrows the disk in a long run, and the replica
/// rightly stays read-only.
const SMALL_DISK: u64 = 24 << 20;
const SMALL_DISK_PER_REQUEST: u64 = 48;
const VIOLATIONS_MAX: usize = 20;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The `quintet` program.
    pub program: PathBuf,
    /// The protocol's name.
    pub protocol: String,
    /// Its options.
    pub options: Vec<(String, String)>,
    /// How many replicas.
    pub replicas: u16,
    /// How many proxies beside them, which have their share of the clients.
    pub proxies: u16,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// For how long faults are injected.
    pub duration: Duration,
    /// The seed of faults and requests. Processes and threads are not repeatable, so the same seed
    /// gives the same plan, not the same run.
    pub seed: u64,
    /// Which faults.
    pub faults: FaultSet,
    /// The network between the replicas.
    pub network: NetworkKind,
    /// How messages travel between them: `tcp`, `udp` or `shared-memory`.
    pub transport: String,
    /// How many clients.
    pub clients: u32,
    /// Requests per second of all clients together, about.
    pub rate: u32,
    /// Where everything is kept; empty or not existing.
    pub directory: PathBuf,
    /// The history that clients recorded, as JSON lines.
    pub history: PathBuf,
    /// The first of [`PORTS`] ports.
    pub base_port: u16,
    /// Whether mounts are private, see [`sandbox`]: small disks can be made.
    pub mounts: bool,
    /// False observations for the checker, to see that it detects them.
    pub lie: Option<Lie>,
    /// The bounds that the replicas must keep while clients are hostile.
    pub bounds: hostile::Bounds,
    /// The attacks of hostile clients; none: everything.
    pub attacks: Vec<hostile::Attack>,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum TortureError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(String),
    /// The operating system refused something to the torture itself.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The cluster did not serve before any fault.
    #[error("the cluster did not come up: {0}")]
    Start(String),
}

/// How far it is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// For how long faults have been injected.
    pub elapsed: Duration,
    /// The current step.
    pub now: String,
    /// Faults so far.
    pub faults: u64,
    /// Answers so far.
    pub acknowledged: u64,
    /// Complaints so far.
    pub complaints: u64,
}

/// The result.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Report {
    /// The protocol's name.
    pub protocol: String,
    /// How many replicas.
    pub replicas: u16,
    /// How many proxies.
    pub proxies: u16,
    /// `disk` or `memory`.
    pub durability: String,
    /// `loopback` or `namespaces`.
    pub network: NetworkKind,
    /// `tcp`, `udp` or `shared-memory`.
    pub transport: String,
    /// The seed.
    pub seed: u64,
    /// How long it took before that until all replicas served, in seconds.
    pub set_up_seconds: f64,
    /// For how long faults were injected.
    pub seconds: f64,
    /// Faults by kind, and by kind and variant.
    pub faults: BTreeMap<String, u64>,
    /// Kinds that were asked for and could not be done, with the reason.
    pub skipped: BTreeMap<String, String>,
    /// Operations that clients began.
    pub operations: u64,
    /// Answered ones.
    pub acknowledged: u64,
    /// Ones of unknown outcome.
    pub uncertain: u64,
    /// Ones that certainly were not executed.
    pub failed: u64,
    /// Errors that a fault excused.
    pub excused: u64,
    /// Errors that nothing excused.
    pub complaints: u64,
    /// Connections that clients reset themselves.
    pub client_resets: u64,
    /// Acknowledged writes that were missing in the end.
    pub lost: u64,
    /// Groups of keys whose answers fit no order.
    pub non_linearizable: u64,
    /// Groups of keys for which the search was given up.
    pub undecided: u64,
    /// Groups of keys that have a history.
    pub groups: u64,
    /// Checked groups of keys; after a few violations the rest is left.
    pub checked: u64,
    /// Keys that were read at every replica in the end.
    pub keys: u64,
    /// Where all replicas stood in the end, if they came to stand at the same position.
    pub position: Option<u64>,
    /// How often processes were started.
    pub starts: u64,
    /// How processes ended, by fault.
    pub exits: BTreeMap<String, u64>,
    /// How long clients of replicas that were not hit went unanswered, by fault.
    pub pauses: BTreeMap<String, Pause>,
    /// The result of hostile clients, if there were any.
    pub hostile: Option<hostile::Outcome>,
    /// The user interrupted the run before the time was over.
    pub interrupted: bool,
    /// The violations, in words.
    pub violations: Vec<String>,
    /// The recorded history.
    pub history: String,
    /// Where configuration, logs and data are.
    pub directory: String,
}

impl Report {
    /// Whether nothing was seen that must not be.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    fn violation(&mut self, what: impl Into<String>) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what.into());
        }
    }
}

fn check(plan: &Plan) -> Result<(), TortureError> {
    let refuse = |what: String| Err(TortureError::Plan(what));
    if plan.replicas == 0 || plan.replicas > REPLICAS_MAX {
        return refuse(format!("replicas: accepted are 1 to {REPLICAS_MAX}"));
    }
    if plan.proxies > REPLICAS_MAX - plan.replicas {
        return refuse(format!(
            "proxies: accepted are 0 to {}: with the replicas {REPLICAS_MAX}",
            REPLICAS_MAX - plan.replicas
        ));
    }
    if plan.clients == 0 || plan.clients > 1000 || plan.rate == 0 {
        return refuse("clients: accepted are 1 to 1000; rate: at least 1".to_owned());
    }
    if plan.base_port.checked_add(PORTS).is_none() || plan.base_port < 1024 {
        return refuse(format!(
            "base port: accepted are 1024 to {}",
            u16::MAX - PORTS
        ));
    }
    if plan.faults.has(Kind::Clients) && plan.faults.kinds().len() > 1 {
        return refuse("faults: 'clients' stands alone; its bounds hold without others".to_owned());
    }
    if plan.faults.moves() && plan.network == NetworkKind::Loopback {
        let cut = [Kind::Partition, Kind::Reset];
        if cut.into_iter().any(|kind| plan.faults.has(kind)) {
            return refuse(
                "faults: members that change tell each other where they are, so nothing lies between \
                 them that could be cut: partition and reset need --network namespaces then"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// Which of the kinds can be done, and why the others cannot.
fn possible(plan: &Plan) -> (Vec<Kind>, BTreeMap<String, String>) {
    let mut skipped = BTreeMap::new();
    let mut kinds = Vec::new();
    for kind in plan.faults.kinds() {
        let reason = match kind {
            Kind::Disk if !plan.mounts => Some("no right to mount a small file system"),
            Kind::Partition | Kind::Reset if plan.replicas < 2 => Some("there is only one replica"),
            Kind::Partition if plan.transport == "shared-memory" => {
                Some("what goes through shared memory cannot be cut")
            }
            Kind::Members if plan.replicas < 3 => {
                Some("with fewer than three replicas none can be lost and replaced")
            }
            Kind::Corrupt if plan.replicas < 3 => {
                Some("with fewer than three replicas no other has what one loses")
            }
            Kind::Kill | Kind::Rolling
                if plan.replicas < 3 && plan.durability == Durability::Memory =>
            {
                Some("with fewer than three replicas no memory may be lost")
            }
            _ => None,
        };
        match reason {
            Some(reason) => {
                skipped.insert(kind.name().to_owned(), reason.to_owned());
            }
            None => kinds.push(kind),
        }
    }
    (kinds, skipped)
}

/// Small file systems for the data of a minority, at least one replica.
fn mount_small_disks(plan: &Plan) -> io::Result<BTreeSet<u16>> {
    let mut random = Random::new(plan.seed).fork(2);
    let count = usize::from(plan.replicas - 1) / 2;
    let mut chosen = BTreeSet::new();
    while chosen.len() < count.max(1) {
        // Below the number of replicas.
        chosen.insert(random.below(plan.replicas.into()) as u16);
    }
    let requests = u64::from(plan.rate).saturating_mul(plan.duration.as_secs());
    let bytes = SMALL_DISK.saturating_add(requests.saturating_mul(SMALL_DISK_PER_REQUEST));
    for id in &chosen {
        sandbox::mount_small(&data_of(plan, *id), bytes)?;
    }
    Ok(chosen)
}

fn data_of(plan: &Plan, id: u16) -> PathBuf {
    plan.directory.join(format!("replica-{id}")).join("data")
}

/// Carries the plan out. `progress` is called now and then and asks to stop by `false`.
///
/// # Errors
/// When there is nothing to check: the plan is invalid, the cluster did not come up, or the
/// operating system refused something.
pub fn run(
    plan: &Plan,
    mut progress: impl FnMut(&Progress) -> bool,
) -> Result<Report, TortureError> {
    check(plan)?;
    let begun = Instant::now();
    let (kinds, skipped) = possible(plan);
    std::fs::create_dir_all(&plan.directory)?;
    let cables = !plan.faults.moves();
    let network = Network::start(plan.network, plan.base_port, plan.replicas, cables)?;
    let cluster = Cluster::prepare(plan, network)?;
    let small = match kinds.contains(&Kind::Disk) {
        true => mount_small_disks(plan)?,
        false => BTreeSet::new(),
    };
    let is_hostile = kinds.contains(&Kind::Clients);
    let redis = cluster.all().map(|process| process.addresses.redis);
    let shared = Arc::new(Shared::new(redis.collect(), plan.lie, is_hostile));
    let mut report = Report {
        protocol: plan.protocol.clone(),
        replicas: plan.replicas,
        proxies: plan.proxies,
        durability: plan.durability.name().to_owned(),
        network: plan.network,
        transport: plan.transport.clone(),
        seed: plan.seed,
        skipped,
        history: plan.history.display().to_string(),
        directory: plan.directory.display().to_string(),
        ..Report::default()
    };
    let mut driver = Driver::new(plan, cluster, Arc::clone(&shared), small.clone());
    let mut watch = |driver: &Driver<'_>| {
        let faults = Kind::ALL
            .iter()
            .filter_map(|kind| driver.counts.get(kind.name()));
        progress(&Progress {
            elapsed: driver.began.elapsed(),
            now: driver.now.clone(),
            faults: faults.sum(),
            acknowledged: driver.shared.recording.acknowledged(),
            complaints: driver.shared.complained.load(Ordering::Relaxed),
        })
    };
    match driver.start(&mut watch) {
        Ok(()) => {}
        Err(Halt::Asked) => {
            report.interrupted = true;
            return Ok(report);
        }
        Err(Halt::Violation(what)) => return Err(TortureError::Start(what)),
        Err(Halt::Broken(error)) => return Err(error),
    }
    let clients = start_clients(plan, &shared)?;
    report.set_up_seconds = begun.elapsed().as_secs_f64();
    let injected = driver.inject(&kinds, &mut watch);
    report.seconds = driver.began.elapsed().as_secs_f64();
    shared.stop.store(true, Ordering::Relaxed);
    let ended = end(&mut driver, injected, clients, &mut report, &mut watch);
    if let Err(Halt::Broken(error)) = ended {
        return Err(error);
    }
    report.starts = driver.cluster.all().map(|process| process.starts).sum();
    report.faults = std::mem::take(&mut driver.counts);
    report.exits = std::mem::take(&mut driver.exits);
    report.hostile = driver.hostile.take();
    // Processes that still run are killed.
    drop(driver);
    keep_small_disks(plan, &small, report.holds())?;
    let mut asked = Progress {
        elapsed: plan.duration,
        now: "checking".to_owned(),
        faults: 0,
        acknowledged: shared.recording.acknowledged(),
        complaints: report.complaints,
    };
    asked.faults = Kind::ALL
        .iter()
        .filter_map(|kind| report.faults.get(kind.name()))
        .sum();
    // A user who has asked to stop once gets a verdict; asked again, it stops here, too.
    check::check(plan, &shared, &mut report, &mut || progress(&asked))?;
    Ok(report)
}

fn start_clients(
    plan: &Plan,
    shared: &Arc<Shared>,
) -> Result<Vec<thread::JoinHandle<()>>, TortureError> {
    let think = Duration::from_secs(1) * plan.clients / plan.rate;
    let mut clients = Vec::new();
    for number in 0..plan.clients {
        // Below the number of replicas and proxies.
        let replica = (number % u32::from(plan.replicas + plan.proxies)) as u16;
        let client = Client::new(Arc::clone(shared), number, replica, plan.seed, think);
        let builder = thread::Builder::new().name(format!("client {number}"));
        clients.push(builder.spawn(move || client.run())?);
    }
    Ok(clients)
}

/// After the faults: heal, let the clients finish, converge, read everything, stop.
fn end(
    driver: &mut Driver<'_>,
    injected: Result<(), Halt>,
    clients: Vec<thread::JoinHandle<()>>,
    report: &mut Report,
    watch: driver::Watch<'_>,
) -> Result<(), Halt> {
    let mut broken = false;
    let mut note = |outcome: Result<(), Halt>, report: &mut Report| match outcome {
        Ok(()) => Ok(true),
        Err(Halt::Asked) => {
            report.interrupted = true;
            Ok(true)
        }
        Err(Halt::Violation(what)) => {
            report.violation(what);
            broken = true;
            Ok(false)
        }
        Err(broken) => Err(broken),
    };
    let whole = note(injected, report)?;
    // After an interrupt the user wants a verdict on the part that ran, and soon.
    let asked = report.interrupted;
    let shared = Arc::clone(&driver.shared);
    let mut proceed = |driver: &Driver<'_>| watch(driver) || asked;
    let healed = driver.heal();
    note(healed, report)?;
    for client in clients {
        if client.join().is_err() {
            report.violation("a client of the torture panicked; its operations are missing");
        }
    }
    if !whole {
        return Ok(());
    }
    match driver.converge(&mut proceed) {
        Ok(position) => report.position = Some(position),
        Err(halt) => {
            note(Err(halt), report)?;
            return Ok(());
        }
    }
    "reading all".clone_into(&mut driver.now);
    check::read_everything(&shared, driver.plan.replicas + driver.plan.proxies, report);
    let stopped = driver.stop_all(&mut proceed);
    note(stopped, report)?;
    if !driver.cluster.running().is_empty() {
        report.violation("processes were left behind");
    }
    Ok(())
}

/// Small file systems vanish; what is on them is evidence if something was violated.
fn keep_small_disks(plan: &Plan, small: &BTreeSet<u16>, holds: bool) -> io::Result<()> {
    for id in small {
        let data = data_of(plan, *id);
        let kept = data.with_file_name("data-kept");
        if !holds {
            copy(&data, &kept)?;
        }
        sandbox::unmount(&data)?;
        if !holds {
            std::fs::remove_dir(&data)?;
            std::fs::rename(&kept, &data)?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The complaints of all clients, into the report.
fn complaints(shared: &Shared, report: &mut Report) {
    report.complaints = shared.complained.load(Ordering::Relaxed);
    let complaints = shared
        .complaints
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    for complaint in complaints.iter() {
        report.violation(complaint.clone());
    }
}
