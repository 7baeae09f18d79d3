//! The demo's directory: what it holds, whether it may be used, what is written into it.
//!
//! ```text
//!   DIR/demo.lock               held while a demo runs
//!   DIR/demo.toml               the marker: which cluster this is
//!   DIR/layout.toml             how its keys are divided, if they are
//!   DIR/replica-0/quintet.toml  what 'quintet serve' is started with
//!   DIR/replica-0/quintet.log   what it logs
//!   DIR/replica-0/data/         what it keeps
//!   DIR/proxy-0.log             what a proxy logs, which keeps nothing
//! ```
//!
//! A directory that holds anything else is never touched.

use super::{Plan, Ports};
use crate::cli::config::quoted;
use quintet_cli::{Exit, Failure, Outcome, protocols, units};
use quintet_replica::{Descriptor, Durability};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File, OpenOptions, TryLockError},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

const FORMAT: u32 = 1;
/// How long replicas of an earlier demo may take to leave.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const LOCK: &str = "demo.lock";
const MARKER: &str = "demo.toml";
/// How its keys are divided, if they are.
pub const LAYOUT: &str = "layout.toml";

/// Which cluster a demo's directory holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marker {
    format: u32,
    /// The cluster's identity.
    pub cluster: String,
    secret: String,
    /// The promise of its acknowledgements.
    pub durability: String,
    /// It was kept on disk once, and in memory at the end.
    #[serde(skip)]
    pub lost_memory: bool,
    /// Its protocol.
    pub protocol: String,
    /// How many replicas it has, with those that were removed from among them.
    pub replicas: u16,
    /// Those that were removed, from among the others.
    #[serde(skip)]
    pub vacant: Vec<u16>,
    /// The first Redis port, as of the last start.
    pub base_port: u16,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
}

impl Marker {
    /// Reads the marker of a demo's directory; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be read or is of a newer format.
    pub fn read(directory: &Path) -> Outcome<Option<Self>> {
        let path = directory.join(MARKER);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(storage(&path, &error)),
        };
        let refuse = |reason: String| {
            Failure::new(Exit::Refused, format!("{}: {reason}", path.display()))
                .help("choose another directory with --dir; this one is left as it is")
        };
        let table: toml::Table = text
            .parse()
            .map_err(|_| refuse("it is not a demo's marker".to_owned()))?;
        match table.get("format").and_then(toml::Value::as_integer) {
            Some(format) if format > i64::from(FORMAT) => Err(refuse(format!(
                "its format is {format}, written by a newer quintet; this one reads {FORMAT}"
            ))),
            _ => table
                .try_into()
                .map(|marker: Self| Some(marker.after_changes(directory)))
                .map_err(|error| refuse(format!("it is damaged: {}", error.to_string().trim()))),
        }
    }

    /// With the protocol, the options and the number of members that it has come to have.
    fn after_changes(mut self, directory: &Path) -> Self {
        let epochs = replicas_in(directory).into_iter();
        let epochs = epochs.filter_map(|id| quintet_runtime::stored_epoch(&data_in(directory, id)));
        let epochs: Vec<_> = epochs.filter(|epoch| epoch.number.0 > 1).collect();
        let on_disk = |epoch: &&Descriptor| epoch.durability == Durability::Disk;
        let mut newest = epochs.iter().max_by_key(|epoch| epoch.number);
        if let Some(epoch) = newest.filter(|epoch| !on_disk(epoch)) {
            let all = epochs.iter().filter(|it| it.number == epoch.number);
            let is_settled = 2 * all.count() > epoch.voters().len();
            // Of three epochs the one in the middle may have been on disk.
            let was_on_disk = !self.is_memory() || epoch.number.0 > 2;
            newest = epochs.iter().filter(on_disk).max_by_key(|it| it.number);
            self.lost_memory = is_settled && (was_on_disk || newest.is_some());
            if is_settled {
                return self;
            }
        }
        if let Some(epoch) = newest.cloned() {
            epoch.durability.name().clone_into(&mut self.durability);
            self.protocol = epoch.protocol;
            self.replicas = epoch.members.len() as u16;
            let rows = epoch.members.iter().zip(0..);
            let vacant = rows.filter(|(row, _)| !row.is_taken());
            self.vacant = vacant.map(|(_, id)| id).collect();
            self.options = epoch.options.into_iter().collect();
        }
        self
    }

    /// The replicas that are members.
    pub fn ids(&self) -> impl Iterator<Item = u16> {
        (0..self.replicas).filter(|id| !self.vacant.contains(id))
    }

    /// Whether its acknowledgements promise memory only.
    pub fn is_memory(&self) -> bool {
        self.durability == "memory"
    }

    /// Limits that are not the defaults, as settings.
    pub fn limits(&self) -> Vec<(String, String)> {
        let limits = self.limits.iter();
        limits
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// The protocol's options.
    pub fn options(&self) -> Vec<(String, String)> {
        self.options
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// Where a replica keeps its data.
pub fn data_in(directory: &Path, id: u16) -> PathBuf {
    directory.join(format!("replica-{id}")).join("data")
}

/// The replicas that have a place in a demo's directory, be they members or not.
fn replicas_in(directory: &Path) -> Vec<u16> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let ids = names.filter_map(|name| name.strip_prefix("replica-")?.parse().ok());
    ids.collect()
}

/// The process that uses a replica's data, if one does.
fn holder(data: &Path) -> Option<String> {
    let file = data.join("lock");
    // A replica that never ran has no lock.
    let lock = File::open(&file).ok()?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&file).unwrap_or_default();
            Some(holder.trim().to_owned())
        }
        _ => None,
    }
}

/// A place in the directory of a demo that runs, for a replica that is to become a member.
#[derive(Debug)]
pub struct Place {
    /// Its configuration.
    pub file: PathBuf,
    /// Where it keeps its data.
    pub data: PathBuf,
}

impl Place {
    /// Refuses the place of a replica that runs.
    ///
    /// # Errors
    /// With its process.
    pub fn check(directory: &Path, id: u16) -> Outcome {
        match holder(&data_in(directory, id)) {
            None => Ok(()),
            Some(holder) => Err(Failure::new(
                Exit::Refused,
                format!("replica {id} still runs, as process {holder}"),
            )
            .help("only a lost replica is replaced; stop it first")),
        }
    }

    /// Makes room for replica `id`, one more or in the place of a lost one, whose data is set aside.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn prepare(directory: &Path, marker: &Marker, plan: &Plan, id: u16) -> Outcome<Self> {
        let path = directory
            .canonicalize()
            .map_err(|error| storage(directory, &error))?;
        let data = data_in(&path, id);
        // A join that was interrupted continues with its directory.
        if data.join("identity").exists() || !quintet_runtime::has_joined(&data) && data.exists() {
            let aside = (1..).map(|number| data.with_extension(format!("lost-{number}")));
            let aside = aside.into_iter().find(|path| !path.exists());
            let aside = aside.unwrap_or_else(|| data.with_extension("lost"));
            fs::rename(&data, &aside).map_err(|error| storage(&data, &error))?;
            eprintln!(
                "the data of the earlier replica {id} is in {}",
                aside.display()
            );
        }
        let file = path.join(format!("replica-{id}")).join("quintet.toml");
        fs::create_dir_all(&data).map_err(|error| storage(&data, &error))?;
        write_whole(&file, &replica_file(marker, plan, id))?;
        Ok(Self { file, data })
    }
}

/// A demo's directory, locked.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    marker: Option<Marker>,
    lock: File,
}

/// A directory with everything that the replicas need.
#[derive(Debug)]
pub struct Prepared {
    /// Its absolute path.
    pub path: PathBuf,
    /// The plan of the demo.
    pub plan: Plan,
    /// Whether an earlier memory demo's data was removed.
    pub removed: bool,
    /// Keeps other demos out.
    _lock: File,
}

impl Prepared {
    /// The configuration file of a replica.
    pub fn replica_file(&self, id: u16) -> PathBuf {
        self.path.join(format!("replica-{id}")).join("quintet.toml")
    }

    /// Removes all that was prepared.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn undo(&self) -> Outcome {
        let marker = self.path.join(MARKER);
        fs::remove_file(&marker).map_err(|error| storage(&marker, &error))?;
        for id in self.plan.ids() {
            let directory = self.path.join(format!("replica-{id}"));
            fs::remove_dir_all(&directory).map_err(|error| storage(&directory, &error))?;
        }
        Ok(())
    }
}

fn storage(path: &Path, error: &std::io::Error) -> Failure {
    let help = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room on that disk",
        _ => "choose a directory that can be written with --dir",
    };
    Failure::new(Exit::Storage, format!("{}: {error}", path.display())).help(help)
}

impl Directory {
    /// Opens and locks the directory; makes it if it does not exist.
    ///
    /// # Errors
    /// When it cannot be used, holds something else, or another demo runs in it.
    pub fn open(path: &Path) -> Outcome<Self> {
        fs::create_dir_all(path).map_err(|error| storage(path, &error))?;
        let path = path.canonicalize().map_err(|error| storage(path, &error))?;
        let marker = Marker::read(&path)?;
        if marker.is_none() {
            refuse_foreign(&path)?;
        }
        let file = path.join(LOCK);
        let mut options = OpenOptions::new();
        let lock = options.create(true).truncate(false).write(true).open(&file);
        let lock = lock.map_err(|error| storage(&file, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, marker, lock }),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Exit::Refused,
                format!(
                    "{}: another demo is running in this directory",
                    path.display()
                ),
            )
            .help("stop it, or choose another directory with --dir")),
            Err(TryLockError::Error(error)) => Err(storage(&file, &error)),
        }
    }

    /// The text of its layout, if it has one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn layout(&self) -> Outcome<Option<String>> {
        let path = self.path.join(LAYOUT);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(storage(&path, &error)),
        }
    }

    /// The marker that the directory holds.
    pub const fn marker(&self) -> Option<&Marker> {
        self.marker.as_ref()
    }

    /// Waits until no process uses the replicas' data: those of a demo that was killed need a
    /// moment to notice.
    ///
    /// # Errors
    /// When one continues, with its process id.
    pub fn wait_until_unused(&self) -> Outcome {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for id in replicas_in(&self.path) {
            while let Some(holder) = holder(&data_in(&self.path, id)) {
                if Instant::now() > deadline {
                    return Err(Failure::new(
                        Exit::Refused,
                        format!(
                            "{}: replica {id} still runs, as process {holder}",
                            self.path.display()
                        ),
                    )
                    .help("stop it, or choose another directory with --dir"));
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Makes the directory fit for the plan, or refuses: data on disk is never removed.
    ///
    /// # Errors
    /// When it holds a cluster that the plan does not continue.
    pub fn prepare(self, plan: &Plan) -> Outcome<Prepared> {
        let mut removed = false;
        let mut kept = None;
        if let Some(held) = &self.marker {
            if held.is_memory() && !held.lost_memory {
                self.remove()?;
                removed = true;
            } else {
                self.check_continues(held, plan)?;
                kept = Some(held);
            }
        }
        let (cluster, secret) = match kept {
            Some(held) => (held.cluster.clone(), held.secret.clone()),
            None => (
                units::hex_of_bytes(&units::random_bytes::<16>()?),
                units::hex_of_bytes(&units::random_bytes::<32>()?),
            ),
        };
        let marker = Marker {
            format: FORMAT,
            cluster,
            secret,
            durability: plan.durability.name().to_owned(),
            lost_memory: false,
            protocol: plan.protocol.clone(),
            replicas: plan.replicas,
            vacant: plan.vacant.clone(),
            base_port: plan.base_port,
            options: plan.options.iter().cloned().collect(),
            limits: plan.limits.iter().cloned().collect(),
        };
        let text = toml::to_string(&marker).map_err(anyhow::Error::from)?;
        let text =
            format!("# Written by 'quintet demo': which cluster this directory holds.\n{text}");
        write_whole(&self.path.join(MARKER), &text)?;
        let layout = self.path.join(LAYOUT);
        match &plan.layout {
            Some(text) => write_whole(&layout, text)?,
            None if layout.exists() => {
                fs::remove_file(&layout).map_err(|error| storage(&layout, &error))?;
            }
            None => {}
        }
        for id in plan.ids() {
            let directory = self.path.join(format!("replica-{id}"));
            fs::create_dir_all(&directory).map_err(|error| storage(&directory, &error))?;
            write_whole(
                &directory.join("quintet.toml"),
                &replica_file(&marker, plan, id),
            )?;
        }
        Ok(Prepared {
            path: self.path,
            plan: plan.clone(),
            removed,
            _lock: self.lock,
        })
    }

    fn check_continues(&self, held: &Marker, plan: &Plan) -> Outcome {
        let refuse = |reason: String| {
            let path = self.path.display();
            Err(Failure::new(
                Exit::Refused,
                format!("{path}: {reason}; it is left as it is"),
            )
            .help("choose another directory with --dir"))
        };
        if held.lost_memory {
            return refuse(
                "its cluster had changed to durability 'memory', so that it lost what was in \
                 memory when it stopped; the state that it had on disk before is in \
                 replica-*/data/snapshots/last-on-disk (quintet snapshot restore)"
                    .to_owned(),
            );
        }
        if plan.durability.name() != held.durability {
            return refuse(format!(
                "this directory holds a cluster of durability '{}', and a memory demo starts empty",
                held.durability
            ));
        }
        if plan.layout != self.layout()? {
            return refuse(
                "this directory holds a cluster whose keys are divided by another layout, or by \
                 none; a layout is fixed when a cluster begins"
                    .to_owned(),
            );
        }
        if plan.replicas != held.replicas {
            return refuse(format!(
                "this directory holds a cluster of {} replicas, not {}",
                held.ids().count(),
                plan.ids().count()
            ));
        }
        let joined = |id: u16| quintet_runtime::has_joined(&data_in(&self.path, id));
        if plan.base_port != held.base_port && held.ids().any(joined) {
            return refuse(format!(
                "replicas have joined this cluster, whose ports stay: --base-port {}",
                held.base_port
            ));
        }
        if plan.protocol != held.protocol {
            return refuse(format!(
                "this directory holds a cluster of protocol '{}', not '{}'. Start it without that, \
                 and change it while it runs (quintet protocol switch {})",
                held.protocol, plan.protocol, plan.protocol
            ));
        }
        let entry = protocols::find(&plan.protocol)?;
        let held_options = (entry.complete)(&held.options());
        let differing: Vec<String> = (entry.complete)(&plan.options)
            .into_iter()
            .zip(held_options)
            .filter(|(asked, there)| asked != there)
            .map(|((name, asked), (_, there))| format!("{name} = {there}, not {asked}"))
            .collect();
        if !differing.is_empty() {
            return refuse(format!(
                "this directory holds a cluster with {}. Start it without these, and change them \
                 while it runs (quintet protocol switch {} --set OPTION=VALUE)",
                differing.join("; "),
                plan.protocol
            ));
        }
        Ok(())
    }

    /// Removes an earlier memory demo's replicas, and nothing else.
    fn remove(&self) -> Outcome {
        for id in replicas_in(&self.path) {
            let directory = self.path.join(format!("replica-{id}"));
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(storage(&directory, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A directory without a marker must be empty: whatever stands there is not a demo's.
fn refuse_foreign(path: &Path) -> Outcome {
    let entries = fs::read_dir(path).map_err(|error| storage(path, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| storage(path, &error))?;
        if entry.file_name() != LOCK {
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "{}: this directory is not a demo's: it holds {}",
                    path.display(),
                    entry.file_name().to_string_lossy()
                ),
            )
            .help("choose an empty or a new directory with --dir"));
        }
    }
    Ok(())
}

/// Writes a file that only its owner reads, whole or not at all.
fn write_whole(path: &Path, text: &str) -> Outcome {
    // A demo that continues as before continues with a full disk, too.
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let unfinished = path.with_extension("unfinished");
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|error| {
        // A partial file is of no use.
        let _ = fs::remove_file(&unfinished);
        storage(path, &error)
    })
}

fn replica_file(marker: &Marker, plan: &Plan, id: u16) -> String {
    let ports = Ports::of(plan.base_port, id);
    let members: Vec<_> = (0..plan.replicas)
        .map(|id| quoted(&format!("127.0.0.1:{}", Ports::of(plan.base_port, id).peer)))
        .collect();
    let mut text = format!(
        "# Written by 'quintet demo' at every start. All keys: quintet config show\n\
         cluster = \"{}\"\nsecret = \"{}\"\nid = {id}\nmembers = [{}]\nprotocol = {}\n\
         durability = \"{}\"\ntransport = \"{}\"\nthreads = \"{}\"\n\
         data = \"data\"\nredis_listen = \"127.0.0.1:{}\"\n\
         admin_listen = \"127.0.0.1:{}\"\npeer_listen = \"127.0.0.1:{}\"\n",
        marker.cluster,
        marker.secret,
        members.join(", "),
        quoted(&plan.protocol),
        marker.durability,
        plan.transport.name(),
        plan.threads.name(),
        ports.redis,
        ports.admin,
        ports.peer,
    );
    if plan.layout.is_some() {
        // From where the file is.
        text.push_str(&format!("layout = \"../{LAYOUT}\"\n"));
    }
    let limits = plan.limits.iter().map(|(name, value)| {
        let key = name.strip_prefix("limits.");
        (key.is_some(), key.unwrap_or(name), quoted(value))
    });
    // Keys of no section come first.
    let (own, others): (Vec<_>, Vec<_>) = limits.partition(|(in_section, ..)| *in_section);
    for (_, name, value) in others {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = {value}");
    }
    if !own.is_empty() {
        text.push_str("\n[limits]\n");
    }
    for (_, name, value) in own {
        let _ = writeln!(text, "{name} = {value}");
    }
    if !plan.options.is_empty() {
        text.push_str("\n[options]\n");
    }
    for (name, value) in &plan.options {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = {}", quoted(value));
    }
    text
}
