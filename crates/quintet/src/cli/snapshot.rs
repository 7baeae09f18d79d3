//! `quintet snapshot`: take one, look into one, make a new cluster from one.
//!
//! ```text
//!   save     POST /snapshot ──► DATA/snapshots/SLOT-POSITION.snapshot ──copy──► FILE
//!   inspect  FILE ──► every chunk's checksum, header, sessions, entries
//!   restore  FILE ──► a directory for `quintet demo`, of a cluster with a new identity, any protocol
//! ```

use crate::cli::{
    demo::{self, Directory, Plan, Prepared},
    password::Password,
    settings::{self, schema},
    status,
};
use bytes::{Bytes, BytesMut};
use clap::{Args, Subcommand};
use quintet_cli::{
    Exit, Failure, Outcome, http,
    output::{self, Format, grouped},
    protocols, units,
};
use quintet_replica::{
    ClusterId, Descriptor, Durability, Entry, EpochNumber, Executed, GroupId, ReplicaId, Slot,
    SnapshotChunk, SnapshotHeader, SnapshotReader, StateMachine, Wire, Writer, framed,
};
use quintet_runtime::{Config, Threads, Transport, begin_with_state, sync_directory};
use quintet_store::Store;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufReader, Read, Seek, SeekFrom, Write},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// Save, inspect or restore a snapshot of the data
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet snapshot save backup.snapshot               of the demo in ./quintet-demo
  quintet snapshot save --admin http://127.0.0.1:7101 backup.snapshot     of any replica here
  quintet snapshot save --shard store/0 backup.snapshot     of a shard, where a layout divides keys
  quintet snapshot inspect backup.snapshot            whole and undamaged? what is in it?
  quintet snapshot restore backup.snapshot --dir ./restored && quintet demo --dir ./restored
  quintet snapshot restore backup.snapshot --dir ./other --protocol mencius    under any protocol")]
pub struct Snapshot {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Save(Save),
    Inspect(Inspect),
    Restore(Restore),
}

impl Snapshot {
    /// The password to send to the replica.
    pub fn password(&self) -> Option<&str> {
        match &self.command {
            Command::Save(save) => save.password.as_deref(),
            Command::Inspect(_) | Command::Restore(_) => None,
        }
    }

    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        match self.command {
            Command::Save(command) => command.run(),
            Command::Inspect(command) => command.run(),
            Command::Restore(command) => command.run(),
        }
    }
}

/// Ask a replica for a snapshot and copy it
#[derive(Args, Debug)]
struct Save {
    /// Where to write it; must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The replica's admin address
    #[arg(long, value_name = "URL", value_parser = http::authority)]
    admin: Option<String>,

    #[command(flatten)]
    password: Password,

    /// The replica's data directory as it is seen here [default: where the replica says that it is]
    #[arg(long, value_name = "DIR", requires = "admin")]
    data: Option<PathBuf>,

    /// A demo's directory
    #[arg(long, value_name = "DIR", default_value = demo::DIRECTORY, conflicts_with = "admin")]
    dir: PathBuf,

    /// Which of the demo's replicas
    #[arg(long, value_name = "ID", default_value_t = 0)]
    replica: u16,

    /// Of this shard, where a layout divides the keys; the replica must be a member
    #[arg(long, value_name = "NAME")]
    shard: Option<String>,

    /// How long to wait, such as 1m
    #[arg(
        long,
        alias = "patience",
        value_name = "TIME",
        default_value = "1m",
        value_parser = units::duration
    )]
    timeout: Duration,
}

/// Check a snapshot and show what is in it
#[derive(Args, Debug)]
struct Inspect {
    /// The snapshot
    file: PathBuf,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Make a directory for a new cluster that starts with a snapshot's data
#[derive(Args, Debug)]
struct Restore {
    /// The snapshot
    file: PathBuf,

    /// The new cluster's directory; must not exist or be empty
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// How many replicas the new cluster has
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    replicas: u16,

    /// The new cluster's protocol, any [default: the one that the snapshot was taken under]
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,

    /// An option of the new cluster's protocol; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = protocols::assignment)]
    set: Vec<(String, String)>,

    /// A limit of the new cluster, such as value_bytes_max=4MiB, memory_max or session_lifetime;
    /// may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = protocols::assignment)]
    limit: Vec<(String, String)>,
}

/// Sessions of an old snapshot are written in chunks of this many bytes.
const SESSIONS_CHUNK: usize = 1 << 20;

#[derive(Deserialize)]
struct Taken {
    slot: u64,
    bytes: u64,
    #[serde(default)]
    path: PathBuf,
}

impl Taken {
    /// Where it is, below the replica's data directory.
    fn directory(&self) -> PathBuf {
        let directory = self.path.parent().unwrap_or(Path::new(""));
        let parts: Vec<_> = directory.components().rev().take(3).collect();
        match parts[..] {
            [snapshots, group, groups] if groups.as_os_str() == "groups" => {
                [groups, group, snapshots].iter().collect()
            }
            _ => PathBuf::from("snapshots"),
        }
    }
}

impl Save {
    fn run(self) -> Outcome {
        let (admin, data) = match (&self.admin, &self.data) {
            (Some(admin), data) => (admin.clone(), data.clone()),
            (None, _) => {
                let addresses = status::addresses_of_demo(&self.dir)?;
                let admin = addresses.get(usize::from(self.replica)).cloned();
                let admin = admin.ok_or_else(|| {
                    let last = addresses.len() - 1;
                    Failure::usage(format!("--replica: the demo's replicas are 0 to {last}"))
                })?;
                let data = self.dir.join(format!("replica-{}", self.replica));
                (admin, Some(data.join("data")))
            }
        };
        if self.file.exists() {
            return Err(
                Failure::new(Exit::Refused, format!("{} exists", self.file.display()))
                    .help("choose another file"),
            );
        }
        let shard = self.shard.as_deref().unwrap_or_default();
        let asked = http::request_with("POST", &admin, "/snapshot", shard, self.timeout);
        let answer = asked.map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                format!("no answer from http://{admin}: {error}"),
            )
            .help("is the replica running?")
        })?;
        let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
        if answer.code != 200 {
            let failure = Failure::new(Exit::Failed, format!("no snapshot was taken: {text}"));
            return Err(match answer.code {
                401 => failure.help("give the password with QUINTET_PASSWORD or --password"),
                _ => failure,
            });
        }
        let taken: Taken = serde_json::from_str(&text).map_err(anyhow::Error::from)?;
        let source = match data {
            Some(data) => find(&data.join(taken.directory()), taken.slot)?,
            None if taken.path.is_file() => taken.path,
            None => {
                let path = taken.path.display();
                return Err(Failure::new(
                    Exit::Failed,
                    format!("the snapshot was taken: {path}; no such file can be read here"),
                )
                .help("run this on the replica's machine, or give --data DIR, its data directory as it is mounted here"));
            }
        };
        copy(&source, &self.file)?;
        output::print_line(&format!(
            "saved {} ({} bytes, up to slot {})",
            self.file.display(),
            grouped(taken.bytes),
            grouped(taken.slot)
        ))
    }
}

/// The snapshot of that slot. Its name begins with the slot.
fn find(directory: &Path, slot: u64) -> Outcome<PathBuf> {
    let refuse = |reason: String| {
        Failure::new(Exit::Failed, format!("{}: {reason}", directory.display()))
            .help("--data must be the data directory of the replica at --admin")
    };
    let entries = fs::read_dir(directory).map_err(|error| refuse(error.to_string()))?;
    for entry in entries {
        let entry = entry.map_err(|error| refuse(error.to_string()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name
            .strip_suffix(".snapshot")
            .or_else(|| name.strip_suffix(".fetched"))
            .and_then(|name| name.split('-').next());
        if number.and_then(|number| number.parse().ok()) == Some(slot) {
            return Ok(entry.path());
        }
    }
    Err(refuse(format!("no snapshot of slot {slot}")))
}

/// Copies a file so that the copy is whole and durable, or not there.
fn copy(from: &Path, to: &Path) -> Outcome {
    let unfinished = to.with_extension("unfinished");
    let copied = fs::copy(from, &unfinished)
        .and_then(|_| File::open(&unfinished)?.sync_all())
        .and_then(|()| fs::rename(&unfinished, to))
        .and_then(|()| to.parent().map_or(Ok(()), sync_directory));
    copied.map_err(|error| {
        // The rest of a failed attempt is of no use.
        let _ = fs::remove_file(&unfinished);
        Failure::new(Exit::Storage, format!("{}: {error}", to.display()))
    })
}

/// The contents of a snapshot.
#[derive(Serialize)]
struct Contents {
    file: String,
    bytes: u64,
    cluster: String,
    group: u32,
    epoch: u64,
    /// The protocol that it was taken under; none in a snapshot of an old format, as what follows.
    protocol: Option<String>,
    durability: Option<&'static str>,
    options: BTreeMap<String, String>,
    limits: BTreeMap<String, u64>,
    fingerprint: Option<String>,
    slot: u64,
    position: u64,
    time_milliseconds: u64,
    session_bytes: u64,
    entries: u64,
    memory: u64,
    digest: String,
}

/// The options of a descriptor that this build has and that are not its defaults.
fn changed(entry: &Entry, descriptor: &Descriptor) -> Vec<(String, String)> {
    let defaults = (entry.complete)(&[]);
    let options = descriptor.options.iter().filter(|(name, value)| {
        let default = defaults.iter().find(|(known, _)| known == name);
        default.is_some_and(|(_, default)| default != value)
    });
    options.cloned().collect()
}

/// A snapshot file, chunk by chunk.
struct Chunks {
    path: PathBuf,
    file: BufReader<File>,
    reader: SnapshotReader,
}

impl Chunks {
    fn open(path: &Path) -> Outcome<Self> {
        let file = File::open(path).map_err(|error| {
            let exit = match error.kind() {
                std::io::ErrorKind::NotFound => Exit::Usage,
                _ => Exit::Storage,
            };
            Failure::new(exit, format!("{}: {error}", path.display()))
        })?;
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(Self {
            path: path.to_owned(),
            file,
            reader: SnapshotReader::default(),
        })
    }

    fn refuse(&self, reason: impl std::fmt::Display) -> Failure {
        Failure::new(Exit::Refused, format!("{}: {reason}", self.path.display()))
    }

    fn next(&mut self) -> Outcome<SnapshotChunk> {
        loop {
            if let Some(chunk) = self
                .reader
                .next_chunk()
                .map_err(|error| self.refuse(error))?
            {
                if matches!(chunk, SnapshotChunk::Feed(_)) {
                    return Err(self.refuse(
                        "it holds a state fetched from a peer and commands executed after it, \
                         which only a replica can execute: save a snapshot of a running replica \
                         (quintet snapshot save)",
                    ));
                }
                return Ok(chunk);
            }
            let mut bytes = [0; 64 << 10];
            match self.file.read(&mut bytes) {
                Ok(0) => return Err(self.refuse("it ends before its end: not whole")),
                Ok(read) => self.reader.feed(&bytes[..read]),
                Err(error) => {
                    let text = format!("{}: {error}", self.path.display());
                    return Err(Failure::new(Exit::Storage, text));
                }
            }
        }
    }

    /// The header, and the bytes of the sessions.
    fn header(&mut self) -> Outcome<(SnapshotHeader, Bytes)> {
        let SnapshotChunk::Header(header) = self.next()? else {
            return Err(self.refuse("it has no header"));
        };
        match self.next()? {
            SnapshotChunk::Sessions(mut sessions) => Ok((header, sessions.rest())),
            _ => Err(self.refuse("it has no sessions")),
        }
    }

    /// The descriptor that the members had agreed on; none in a snapshot of an old format.
    fn descriptor(&self, header: &SnapshotHeader) -> Outcome<Option<Descriptor>> {
        if header.descriptor.is_empty() {
            return Ok(None);
        }
        Descriptor::decode(header.descriptor.clone())
            .map(Some)
            .map_err(|error| self.refuse(format!("the description of its cluster: {error}")))
    }

    /// Reads the state that follows the header.
    fn load(&mut self) -> Outcome<Store> {
        let mut store = Store::default();
        store.begin_restore();
        while let SnapshotChunk::State(bytes) = self.next()? {
            store
                .restore_chunk(&bytes)
                .map_err(|error| self.refuse(error))?;
        }
        store.finish_restore().map_err(|error| self.refuse(error))?;
        Ok(store)
    }
}

impl Inspect {
    fn run(self) -> Outcome {
        let mut chunks = Chunks::open(&self.file)?;
        let (header, sessions) = chunks.header()?;
        let session_bytes = sessions.len() as u64;
        let descriptor = chunks.descriptor(&header)?;
        let mut store = Store::default();
        store.begin_restore();
        while let SnapshotChunk::State(bytes) = chunks.next()? {
            store
                .restore_chunk(&bytes)
                .map_err(|error| chunks.refuse(error))?;
        }
        store
            .finish_restore()
            .map_err(|error| chunks.refuse(error))?;
        let contents = Contents {
            file: self.file.display().to_string(),
            bytes: fs::metadata(&self.file)?.len(),
            cluster: header.cluster.to_string(),
            group: header.group.0,
            epoch: header.epoch.0,
            protocol: descriptor.as_ref().map(|it| it.protocol.clone()),
            durability: descriptor.as_ref().map(|it| it.durability.name()),
            options: (descriptor.iter())
                .flat_map(|it| it.options.iter().cloned())
                .collect(),
            limits: (descriptor.iter())
                .flat_map(|it| it.limits.iter().chain(&it.terms).cloned())
                .collect(),
            fingerprint: descriptor.as_ref().map(|it| it.fingerprint().to_string()),
            slot: header.executed.slot.0,
            position: header.executed.position.0,
            time_milliseconds: header.time.milliseconds(),
            session_bytes,
            entries: store.entries(),
            memory: store.memory(),
            digest: format!("{:032x}", store.digest()),
        };
        match self.output {
            Format::Json => output::print_json(&contents),
            Format::Table => output::print(&contents.shown()),
        }
    }
}

impl Contents {
    fn shown(&self) -> String {
        let time = std::time::UNIX_EPOCH + Duration::from_millis(self.time_milliseconds);
        let mut agreed = String::new();
        if let (Some(protocol), Some(durability)) = (&self.protocol, self.durability) {
            agreed = format!("  protocol  {protocol}, durability {durability}\n");
            let mut line = |kind: &str, name: &str, value: String| {
                agreed.push_str(&format!("  {kind:<8}  {name} {value}\n"));
            };
            for (name, value) in &self.options {
                line("option", name, value.clone());
            }
            for (name, value) in &self.limits {
                line("limit", name, grouped(*value));
            }
        }
        format!(
            "{}: whole and undamaged\n\n  \
             cluster   {}\n  epoch     {}, group {}\n  covers    slot {}, position {}\n  \
             as of     {}\n  keys      {}\n  memory    {} bytes\n  file      {} bytes, of which \
             sessions {}\n  digest    {}\n{agreed}",
            self.file,
            self.cluster,
            self.epoch,
            self.group,
            grouped(self.slot),
            grouped(self.position),
            humantime::format_rfc3339_millis(time),
            grouped(self.entries),
            grouped(self.memory),
            grouped(self.bytes),
            grouped(self.session_bytes),
            self.digest
        )
    }
}

impl Restore {
    fn run(self) -> Outcome {
        // All of it is checked before anything is made of it.
        let mut chunks = Chunks::open(&self.file)?;
        let (header, sessions) = chunks.header()?;
        let descriptor = chunks.descriptor(&header)?;
        let store = chunks.load()?;
        let (entries, digest) = (store.entries(), store.digest());
        drop(store);
        let protocol = match (&self.protocol, &descriptor) {
            (Some(name), _) => name.clone(),
            (None, Some(descriptor)) => descriptor.protocol.clone(),
            (None, None) => "multipaxos".to_owned(),
        };
        let entry = protocols::find(&protocol)?;
        // The options are the snapshot's where they fit: same protocol, and not given otherwise.
        let mut options = match &descriptor {
            Some(descriptor) if descriptor.protocol == protocol => changed(entry, descriptor),
            _ => Vec::new(),
        };
        options.retain(|(name, _)| !self.set.iter().any(|(given, _)| given == name));
        options.extend(self.set.iter().cloned());
        protocols::check_options(entry, &options).map_err(|(_, failure)| failure)?;
        let limits = self.limits(descriptor.as_ref())?;
        let directory = Directory::open(&self.dir)?;
        if directory.marker().is_some() {
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "{}: this directory holds a cluster already",
                    self.dir.display()
                ),
            )
            .help("choose an empty or a new directory with --dir"));
        }
        let prepared = directory.prepare(&Plan {
            replicas: self.replicas,
            vacant: Vec::new(),
            proxies: 0,
            protocol,
            options,
            limits,
            durability: Durability::Disk,
            transport: Transport::Tcp,
            threads: Threads::One,
            base_port: demo::BASE_PORT,
            layout: None,
        })?;
        let made = self.fill(&prepared, header, &sessions, digest);
        if made.is_err() {
            // It was empty before; a demo must not take what is unfinished for a cluster.
            prepared.undo()?;
        }
        let cluster = made?;
        output::print_line(&format!(
            "restored {} keys for a new cluster, {cluster}; start it: quintet demo --dir {}",
            grouped(entries),
            self.dir.display()
        ))
    }

    /// The new cluster's limits as settings: the snapshot's, but for those given.
    fn limits(&self, descriptor: Option<&Descriptor>) -> Outcome<Vec<(String, String)>> {
        let mut limits: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in descriptor
            .iter()
            .flat_map(|it| it.limits.iter().chain(&it.terms))
        {
            match name.strip_suffix("_ms") {
                Some(name) => limits.insert(name.to_owned(), format!("{value}ms")),
                None => limits.insert(format!("limits.{name}"), value.to_string()),
            };
        }
        // The build fixes the limits that no setting decides.
        limits.retain(|name, _| schema::find(name).is_some());
        for (name, value) in &self.limit {
            let key = [format!("limits.{name}"), name.clone()]
                .into_iter()
                .filter(|name| name.starts_with("limits.") || name == "session_lifetime")
                .find_map(|name| schema::find(&name));
            let Some(key) = key else {
                return Err(
                    Failure::usage(format!("--limit: there is no limit '{name}'"))
                        .help("those that 'quintet snapshot inspect' shows may be given"),
                );
            };
            limits.insert(key.name.to_owned(), value.clone());
        }
        let any = ClusterId(1);
        let mut config = Config::new(any, ReplicaId(0), Vec::new(), self.dir.clone());
        for (name, value) in &limits {
            if let Some(key) = schema::find(name) {
                (key.set)(&mut config, value)
                    .map_err(|reason| Failure::usage(format!("{name}: {reason}")))?;
            }
        }
        Ok(limits.into_iter().collect())
    }

    /// Makes every replica's data directory and puts the snapshot there.
    fn fill(
        &self,
        prepared: &Prepared,
        header: SnapshotHeader,
        sessions: &[u8],
        digest: u128,
    ) -> Outcome<String> {
        let mut cluster = String::new();
        let format_1 = header.session_chunks.is_none();
        for id in 0..self.replicas {
            let mut config = settings::load_own(&prepared.replica_file(id))?.config;
            config.peer_listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            cluster = config.cluster.to_string();
            let machine = crate::cli::store(&config);
            let position = header.executed.position;
            let descriptor = begin_with_state(&config, &*machine, position, digest);
            let descriptor = descriptor.map_err(|error| {
                Failure::new(Exit::from_code(i32::from(error.exit_code())), error)
            })?;
            // The state that the new cluster begins with: positions continue, its log is empty.
            let header = SnapshotHeader {
                cluster: config.cluster,
                group: GroupId(0),
                epoch: EpochNumber(1),
                executed: Executed {
                    slot: Slot(0),
                    position,
                },
                time: header.time,
                summary: Bytes::new(),
                descriptor,
                session_chunks: Some(match header.session_chunks {
                    Some(chunks) => chunks,
                    None => sessions.chunks(SESSIONS_CHUNK).count() as u32,
                }),
                // Every member begins with a file of its own.
                origin: 0,
                base: Executed::default(),
                seal: None,
            };
            // Sessions of the first format stand in the header's chunk, which is left out.
            let sessions = match format_1 {
                true => sessions,
                false => &[],
            };
            // As one from a peer: there is no log that leads up to it.
            let name = format!(
                "{:020}-{:020}.fetched",
                header.executed.slot.0, header.executed.position.0
            );
            let path = config.data.join("snapshots").join(name);
            self.write(&path, &header, sessions).map_err(|error| {
                Failure::new(Exit::Storage, format!("{}: {error}", path.display()))
            })?;
        }
        Ok(cluster)
    }

    /// Writes the snapshot with another header, and these sessions behind it as chunks.
    fn write(&self, path: &Path, header: &SnapshotHeader, sessions: &[u8]) -> std::io::Result<()> {
        let mut source = File::open(&self.file)?;
        let mut length = [0; 4];
        source.read_exact(&mut length)?;
        source.seek(SeekFrom::Start(8 + u64::from(u32::from_le_bytes(length))))?;
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        header.encode(&mut writer);
        let first = writer.finish().into_bytes();
        let mut out = File::create(path)?;
        out.write_all(&framed(&first))?;
        for chunk in sessions.chunks(SESSIONS_CHUNK) {
            out.write_all(&framed(chunk))?;
        }
        std::io::copy(&mut source, &mut out)?;
        out.sync_all()?;
        path.parent().map_or(Ok(()), sync_directory)
    }
}
