//! The systems that can be compared: how each is started, asked for its leader, described.
//!
//! ```text
//!   "etcd/disk" ──parse──► Spec ──start──► System ──targets──► where clients go, in what language
//! ```

use super::{
    Plan,
    processes::{Processes, ask, http},
};
use crate::{
    load::{Language, Target, fill},
    variant::Variant,
};
use quintet_cli::{Exit, Failure, Outcome};
use quintet_replica::Level;
use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
/// How often in a row the same leader must be named before it counts as settled.
const SETTLED: usize = 3;
/// The number of acknowledged writes required after a stop, and the time for them.
const AWAKE_KEYS: u64 = 100;
const AWAKE: Duration = Duration::from_secs(5);
const PEER_OFFSET: u16 = 100;
const ELECTION_OFFSET: u16 = 200;

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Installed {
    /// This project's.
    pub quintet: PathBuf,
    /// etcd's server.
    pub etcd: PathBuf,
    /// Java's virtual machine.
    pub java: PathBuf,
    /// The class path with ZooKeeper's server.
    pub zookeeper: String,
    /// Redis's server.
    pub redis: PathBuf,
    /// The store on openraft, `bench/openraft-store`.
    pub openraft: PathBuf,
}

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On disk, as far as the system's own settings make it so.
    Disk,
    /// In memory; systems that cannot do without files have them on a memory file system.
    Memory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Quintet {
        variant: Variant,
        /// Its members share memory.
        memory: bool,
    },
    Etcd,
    ZooKeeper {
        /// Each read follows a `sync`.
        sync: bool,
    },
    Redis,
    RedisReplica,
    Openraft,
}

/// A system to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    what: What,
    durability: Durability,
}

impl Spec {
    /// All kinds, as examples of what [`Spec::parse`] reads.
    pub const EXAMPLES: [&str; 11] = [
        "quintet/disk",
        "quintet:multipaxos/memory",
        "quintet:multipaxos+stale/memory",
        "quintet:chain_paxos+reads=chain/memory",
        "quintet+shared-memory:derecho/memory",
        "etcd/disk",
        "zookeeper/disk",
        "zookeeper+sync/disk",
        "redis/disk",
        "redis-replica/memory",
        "openraft/disk",
    ];

    /// Reads `SYSTEM/DURABILITY`; `quintet` may name its protocol, `quintet:multipaxos`, or a
    /// [`Variant`].
    ///
    /// # Errors
    /// With what is accepted.
    pub fn parse(text: &str) -> Outcome<Self> {
        let refuse = |what: &str| {
            Failure::usage(format!("'{text}': {what}")).help(format!(
                "accepted are quintet[+shared-memory][:PROTOCOL], etcd, zookeeper, openraft, redis, \
                 redis-replica, each followed by /disk or /memory; before that a protocol may have +stale, \
                 +ordered and +OPTION=VALUE behind it, zookeeper +sync: {}",
                Self::EXAMPLES.join(", ")
            ))
        };
        let (what, durability) = text.split_once('/').unwrap_or((text, "disk"));
        let durability = match durability {
            "disk" => Durability::Disk,
            "memory" => Durability::Memory,
            _ => return Err(refuse("the durability is neither 'disk' nor 'memory'")),
        };
        let what = match what.split_once(':').unwrap_or((what, "")) {
            (system @ ("quintet" | "quintet+shared-memory"), protocol) => {
                let named = if protocol.is_empty() {
                    "multipaxos"
                } else {
                    protocol
                };
                What::Quintet {
                    variant: Variant::parse(named).map_err(|why| refuse(&why))?,
                    memory: system != "quintet",
                }
            }
            ("etcd", "") => What::Etcd,
            ("zookeeper", "") => What::ZooKeeper { sync: false },
            ("zookeeper+sync", "") => What::ZooKeeper { sync: true },
            ("redis", "") => What::Redis,
            ("redis-replica", "") => What::RedisReplica,
            ("openraft", "") => What::Openraft,
            _ => return Err(refuse("no such system")),
        };
        Ok(Self { what, durability })
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        let durability = match self.durability {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        };
        match &self.what {
            What::Quintet { variant, memory } => {
                let memory = if *memory { "+shared-memory" } else { "" };
                format!("quintet{memory}:{variant}/{durability}")
            }
            What::Etcd => format!("etcd/{durability}"),
            What::ZooKeeper { sync: false } => format!("zookeeper/{durability}"),
            What::ZooKeeper { sync: true } => format!("zookeeper+sync/{durability}"),
            What::Redis => format!("redis/{durability}"),
            What::RedisReplica => format!("redis-replica/{durability}"),
            What::Openraft => format!("openraft/{durability}"),
        }
    }
}

/// A system that runs.
#[derive(Debug)]
pub struct System {
    spec: Spec,
    processes: Processes,
    clients: Vec<SocketAddr>,
    /// Where members tell how they are.
    admin: Vec<SocketAddr>,
    sharing: usize,
    version: String,
    members: u16,
    /// Clients go to all members.
    at_all: bool,
    log: PathBuf,
    _directory: TempDir,
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn version_of(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|output| {
        let text = if output.stdout.is_empty() {
            output.stderr
        } else {
            output.stdout
        };
        String::from_utf8_lossy(&text).into_owned()
    });
    text.unwrap_or_default()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

impl System {
    /// Starts it with empty data and waits until it has a leader. `index` is its place in the plan
    /// and decides its ports.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(spec: &Spec, plan: &Plan, index: usize) -> Outcome<Self> {
        let parent = match (&spec.what, spec.durability) {
            (What::Etcd | What::ZooKeeper { .. }, Durability::Memory) => &plan.memory,
            _ => &plan.disk,
        };
        fs::create_dir_all(parent)
            .map_err(|error| Failure::failed(format!("{}: {error}", parent.display())))?;
        let directory = tempfile::Builder::new()
            .prefix("quintet-lab-")
            .tempdir_in(parent)
            .map_err(|error| Failure::failed(format!("{}: {error}", parent.display())))?;
        let block = 300 * (index / 10) + 10 * (index % 10);
        let base = u16::try_from(usize::from(plan.base_port) + block)
            .ok()
            .filter(|base| *base < u16::MAX - 300)
            .ok_or_else(|| Failure::usage("the base port leaves no room for that many systems"))?;
        let mut system = Self {
            spec: spec.clone(),
            processes: Processes::default(),
            clients: Vec::new(),
            admin: Vec::new(),
            sharing: match spec.what {
                What::Etcd => plan.etcd_sharing,
                _ => 1,
            },
            version: String::new(),
            members: plan.members,
            at_all: plan.at_all,
            log: directory.path().join("log"),
            _directory: directory,
        };
        let path = system._directory.path().to_owned();
        match &spec.what {
            What::Quintet { variant, memory } => {
                system.start_quintet(plan, variant, *memory, base, &path)?;
            }
            What::Etcd => system.start_etcd(plan, base, &path)?,
            What::ZooKeeper { .. } => system.start_zookeeper(plan, base, &path)?,
            What::Redis => system.start_redis(plan, base, &path, 1)?,
            What::RedisReplica => system.start_redis(plan, base, &path, 2)?,
            What::Openraft => system.start_openraft(plan, base, &path)?,
        }
        system.settle()?;
        if matches!(spec.what, What::ZooKeeper { .. }) {
            // Only a member that serves tells its version.
            let said = ask(system.admin[0], b"srvr").unwrap_or_default();
            let version = said.lines().next().unwrap_or_default();
            let version = version.trim_start_matches("Zookeeper version: ");
            let version = version.split('-').next().unwrap_or_default();
            system.version = format!("ZooKeeper {version}");
        }
        Ok(system)
    }

    fn start_quintet(
        &mut self,
        plan: &Plan,
        variant: &Variant,
        memory: bool,
        base: u16,
        path: &Path,
    ) -> Outcome<()> {
        let durability = match self.spec.durability {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        };
        let mut command = Command::new(&plan.installed.quintet);
        command
            .args(["demo", "--json", "--base-port", &base.to_string()])
            .args(["--durability", durability])
            .args(["--protocol", variant.protocol()])
            .args(["--replicas", &plan.members.to_string()])
            .args(["--transport", if memory { "shared-memory" } else { "tcp" }])
            .arg("--dir")
            .arg(path.join("demo"));
        for (name, value) in &variant.options {
            command.args(["--set", &format!("{name}={value}")]);
        }
        self.version = version_of(&plan.installed.quintet, "--version");
        let log = self.log.clone();
        let child = self.processes.start(command, &log)?;
        let out = child.stdout.take();
        let mut lines = out.map(|out| BufReader::new(out).lines());
        for _ in 0..plan.members {
            let line = lines.as_mut().and_then(Iterator::next);
            let Some(Ok(line)) = line else {
                let name = self.spec.name();
                // It closes its output when it ends; give it the moment to be seen dead.
                thread::sleep(LOOK);
                let ended = self.processes.ended(&name, &self.log);
                return Err(ended.unwrap_or_else(|| Failure::failed(format!("{name}: no start"))));
            };
            let read = |name: &str| -> Option<serde_json::Value> {
                let value: serde_json::Value = serde_json::from_str(&line).ok()?;
                value.get(name).cloned()
            };
            let address = |name: &str| -> Option<SocketAddr> {
                let url = read(name)?;
                url.as_str()?.rsplit('/').next()?.parse().ok()
            };
            let found = read("pid")
                .and_then(|pid| pid.as_u64())
                .and_then(|pid| u32::try_from(pid).ok())
                .zip(address("redis"))
                .zip(address("admin"));
            let Some(((pid, redis), admin)) = found else {
                return Err(Failure::failed(format!("the demo printed: {line}")));
            };
            self.processes.members.push(pid);
            self.processes.others.push(pid);
            self.clients.push(redis);
            self.admin.push(admin);
        }
        Ok(())
    }

    fn start_etcd(&mut self, plan: &Plan, base: u16, path: &Path) -> Outcome<()> {
        let members = plan.members;
        let peer = |id: u16| format!("http://{}", local(base + PEER_OFFSET + id));
        let cluster: Vec<_> = (0..members)
            .map(|id| format!("m{id}={}", peer(id)))
            .collect();
        let version = version_of(&plan.installed.etcd, "--version");
        let number = version.rsplit(' ').next().unwrap_or_default();
        self.version = format!("etcd {number}");
        for id in 0..members {
            let client = format!("http://{}", local(base + id));
            let mut command = Command::new(&plan.installed.etcd);
            command
                .args(["--name", &format!("m{id}"), "--data-dir"])
                .arg(path.join(format!("m{id}")))
                .args(["--listen-client-urls", &client])
                .args(["--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer(id)])
                .args(["--initial-advertise-peer-urls", &peer(id)])
                .args(["--initial-cluster", &cluster.join(",")])
                // It keeps all versions of a key: with large values its 2 GiB are full in seconds.
                .args(["--quota-backend-bytes", "8589934592"])
                .args(["--log-level", "error"]);
            let log = self.log.clone();
            self.processes.start(command, &log)?;
            self.processes.count_last();
            self.clients.push(local(base + id));
            self.admin.push(local(base + id));
        }
        Ok(())
    }

    fn start_zookeeper(&mut self, plan: &Plan, base: u16, path: &Path) -> Outcome<()> {
        let mut ensemble = String::new();
        for id in 0..plan.members {
            // Writing to a string cannot fail.
            let _ = writeln!(
                ensemble,
                "server.{}=127.0.0.1:{}:{}",
                id + 1,
                base + PEER_OFFSET + id,
                base + ELECTION_OFFSET + id
            );
        }
        for id in 0..plan.members {
            let own = path.join(format!("m{id}"));
            let data = own.join("data");
            fs::create_dir_all(&data)?;
            fs::write(data.join("myid"), format!("{}\n", id + 1))?;
            // A high syncLimit lets members forgive each other the time in which all were stopped;
            // a short queue of connections makes the kernel drop some, which costs them a second.
            let settings = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=1000\ndataDir={}\nclientPort={}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nclientPortListenBacklog=1024\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=srvr\n{ensemble}",
                data.display(),
                base + id
            );
            let file = own.join("zoo.cfg");
            fs::write(&file, settings)?;
            fs::write(
                own.join("log4j.properties"),
                "log4j.rootLogger=ERROR, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n\
                 log4j.appender.A.layout=org.apache.log4j.SimpleLayout\n",
            )?;
            fs::write(
                own.join("logback.xml"),
                "<configuration><appender name='A' class='ch.qos.logback.core.ConsoleAppender'>\
                 <encoder><pattern>%level %msg%n</pattern></encoder></appender>\
                 <root level='ERROR'><appender-ref ref='A'/></root></configuration>\n",
            )?;
            let mut command = Command::new(&plan.installed.java);
            command
                .args(["-Xmx1000m", "-Dzookeeper.admin.enableServer=false", "-cp"])
                .arg(class_path(&own, &plan.installed.zookeeper))
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(&file);
            let log = self.log.clone();
            self.processes.start(command, &log)?;
            self.processes.count_last();
            self.clients.push(local(base + id));
            self.admin.push(local(base + id));
        }
        Ok(())
    }

    fn start_redis(&mut self, plan: &Plan, base: u16, path: &Path, members: u16) -> Outcome<()> {
        self.members = members;
        let version = version_of(&plan.installed.redis, "--version");
        let number = version.split("v=").nth(1).unwrap_or_default();
        let number = number.split(' ').next().unwrap_or_default();
        self.version = format!("Redis {number}");
        for id in 0..members {
            let own = path.join(format!("m{id}"));
            fs::create_dir_all(&own)?;
            let mut command = Command::new(&plan.installed.redis);
            command
                .args(["--port", &(base + id).to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--repl-timeout", "36000", "--dir"])
                .arg(&own);
            if self.spec.durability == Durability::Disk {
                command.args(["--appendonly", "yes", "--appendfsync", "always"]);
            }
            if id > 0 {
                command.args(["--replicaof", "127.0.0.1", &base.to_string()]);
            }
            let log = self.log.clone();
            self.processes.start(command, &log)?;
            self.processes.count_last();
        }
        // Clients go to the first alone; the second only holds a copy.
        self.clients.push(local(base));
        self.admin.push(local(base));
        Ok(())
    }

    fn start_openraft(&mut self, plan: &Plan, base: u16, path: &Path) -> Outcome<()> {
        let durability = match self.spec.durability {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        };
        let listed = |offset: u16| -> String {
            let all = (0..plan.members).map(|id| local(base + offset + id).to_string());
            all.collect::<Vec<_>>().join(",")
        };
        self.version = version_of(&plan.installed.openraft, "--version");
        for id in 0..plan.members {
            let mut command = Command::new(&plan.installed.openraft);
            command
                .args(["--id", &id.to_string(), "--durability", durability])
                .args(["--clients", &listed(0), "--peers", &listed(PEER_OFFSET)])
                .arg("--dir")
                .arg(path.join(format!("m{id}")));
            let log = self.log.clone();
            self.processes.start(command, &log)?;
            self.processes.count_last();
            self.clients.push(local(base + id));
            self.admin.push(local(base + id));
        }
        Ok(())
    }

    /// Its name in tables.
    pub fn name(&self) -> String {
        self.spec.name()
    }

    /// How many clients share a connection.
    pub const fn sharing(&self) -> usize {
        self.sharing
    }

    fn language(&self) -> Language {
        let resp = |wait, reads| Language::Resp {
            password: None,
            wait,
            reads,
        };
        match &self.spec.what {
            What::Quintet { variant, .. } => resp(None, variant.reads),
            What::Redis | What::Openraft => resp(None, Level::Linearizable),
            What::RedisReplica => resp(Some(1), Level::Linearizable),
            What::Etcd => Language::Etcd { linearizable: true },
            What::ZooKeeper { sync } => Language::ZooKeeper { sync: *sync },
        }
    }

    /// Which member leads; `Ok(None)` when the system has no such thing.
    fn leader(&self) -> Result<Option<usize>, String> {
        match self.spec.what {
            What::Quintet { .. } => {
                let mut named = None;
                for admin in &self.admin {
                    let status = http(*admin, "GET", "/status", "");
                    let status = status.map_err(|error| format!("{admin}: {error}"))?;
                    let status: serde_json::Value =
                        serde_json::from_str(&status).map_err(|error| error.to_string())?;
                    if status.get("role").and_then(|role| role.as_str()) == Some("leader") {
                        let id = status.get("id").and_then(serde_json::Value::as_u64);
                        named = named.or(id.and_then(|id| usize::try_from(id).ok()));
                    }
                }
                Ok(named)
            }
            What::Etcd => {
                for (member, admin) in self.admin.iter().enumerate() {
                    let status = http(*admin, "POST", "/v3/maintenance/status", "{}");
                    let status = status.map_err(|error| format!("{admin}: {error}"))?;
                    let status: serde_json::Value =
                        serde_json::from_str(&status).map_err(|error| error.to_string())?;
                    let own = status.pointer("/header/member_id");
                    if own.is_some() && own == status.get("leader") {
                        return Ok(Some(member));
                    }
                }
                Err("no member leads".to_owned())
            }
            What::ZooKeeper { .. } => {
                for (member, admin) in self.admin.iter().enumerate() {
                    let said = ask(*admin, b"srvr");
                    let said = said.map_err(|error| format!("{admin}: {error}"))?;
                    if said.contains("Mode: leader") {
                        return Ok(Some(member));
                    }
                    if !said.contains("Mode: follower") {
                        return Err(format!("{admin} does not serve yet"));
                    }
                }
                Err("no member leads".to_owned())
            }
            What::Openraft => {
                for (member, admin) in self.admin.iter().enumerate() {
                    let said = ask(*admin, b"INFO replication\r\nQUIT\r\n");
                    let said = said.map_err(|error| format!("{admin}: {error}"))?;
                    if said.contains("role:leader") {
                        return Ok(Some(member));
                    }
                }
                Err("no member leads".to_owned())
            }
            What::Redis | What::RedisReplica => {
                let said = ask(self.admin[0], b"INFO replication\r\nQUIT\r\n");
                let said = said.map_err(|error| error.to_string())?;
                let replicas = usize::from(self.members) - 1;
                let online = said.matches("state=online").count();
                if online < replicas {
                    return Err("the replica is not online yet".to_owned());
                }
                Ok(Some(0))
            }
        }
    }

    /// Waits until the members agree for a moment on who leads.
    fn settle(&mut self) -> Outcome<Option<usize>> {
        let deadline = Instant::now() + START;
        let mut last: Option<Option<usize>> = None;
        let mut same = 0;
        loop {
            let name = self.spec.name();
            if let Some(error) = self.processes.ended(&name, &self.log) {
                return Err(error);
            }
            let leader = self.leader();
            match &leader {
                Ok(leader) if last == Some(*leader) => same += 1,
                Ok(leader) => (last, same) = (Some(*leader), 1),
                Err(_) => (last, same) = (None, 0),
            }
            // Without a leader for long, the cluster needs none.
            let enough = match last {
                Some(None) => SETTLED * 10,
                _ => SETTLED,
            };
            if let Some(leader) = last.filter(|_| same >= enough) {
                return Ok(leader);
            }
            if Instant::now() > deadline {
                let reason = leader.err().unwrap_or_else(|| "no leader".to_owned());
                let message = format!("{name}: not ready within {} s: {reason}", START.as_secs());
                return Err(Failure::new(Exit::Unreachable, message));
            }
            thread::sleep(LOOK);
        }
    }

    /// Where clients shall connect: to the leader, or to all members where there is none, or where
    /// the plan says so.
    ///
    /// # Errors
    /// When the system is not ready.
    pub fn targets(&mut self) -> Outcome<Vec<Target>> {
        let language = self.language();
        let at = |address: &SocketAddr| Target {
            address: *address,
            language: language.clone(),
        };
        match self.settle()? {
            Some(leader) if !self.at_all => self
                .clients
                .get(leader)
                .map(|address| vec![at(address)])
                .ok_or_else(|| Failure::failed("the leader is not a member")),
            _ => Ok(self.clients.iter().map(at).collect()),
        }
    }

    /// Stops it where it is, when its connections are gone.
    ///
    /// # Errors
    /// Never yet.
    pub fn pause(&mut self) -> Outcome<()> {
        self.processes.pause();
        Ok(())
    }

    /// Lets it continue, and waits until it acknowledges writes again: members may have to elect a
    /// leader after such a time.
    ///
    /// # Errors
    /// When it does not.
    pub fn resume(&mut self) -> Outcome<()> {
        self.processes.resume();
        let deadline = Instant::now() + START;
        loop {
            let targets = self.targets()?;
            let written = fill(&targets[0], AWAKE_KEYS, 16, AWAKE, |_| {});
            let error = match written {
                Ok(()) if self.targets()? == targets => return Ok(()),
                Ok(()) => "its leader changes".to_owned(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                let message = format!("{}: does not wake up: {error}", self.name());
                return Err(Failure::failed(message));
            }
        }
    }

    /// Ends its processes and removes its data.
    pub fn stop(self) {}

    /// The members' processes.
    pub fn members(&self) -> &[u32] {
        &self.processes.members
    }

    /// The CPU time that all members have used.
    pub fn cpu(&self) -> Option<Duration> {
        self.processes.cpu()
    }

    /// The memory that all members hold, in bytes.
    pub fn resident(&self) -> Option<u64> {
        self.processes.resident()
    }

    /// Version, settings, durability, and what its reads promise.
    pub fn description(&self) -> String {
        let members = self.members;
        let (system, promise, reads) = match (&self.spec.what, self.spec.durability) {
            (What::Quintet { variant, memory }, durability) => (
                match memory {
                    true => format!("{}, {variant}, shared memory", self.version),
                    false => format!("{}, {variant}", self.version),
                },
                match durability {
                    Durability::Disk => "fsynced on a majority",
                    Durability::Memory => "in a majority's memory; only promises are fsynced",
                },
                match variant.reads {
                    Level::Linearizable => "linearizable",
                    Level::Stale => "of the member's own state, however old",
                    Level::Ordered => "ordered like writes",
                },
            ),
            (What::Etcd, Durability::Disk) => (
                self.version.clone(),
                "fsynced on a majority",
                "linearizable",
            ),
            (What::Etcd, Durability::Memory) => (
                self.version.clone(),
                "as with disk, but the files are on tmpfs",
                "linearizable",
            ),
            (What::ZooKeeper { sync }, durability) => (
                format!("{}, -Xmx1000m", self.version),
                match durability {
                    Durability::Disk => "fsynced on a majority",
                    Durability::Memory => "as with disk, but the files are on tmpfs",
                },
                if *sync {
                    "of the member's own state after a sync, nearly linearizable"
                } else {
                    "of the member's own state, not linearizable"
                },
            ),
            (What::Redis, Durability::Disk) => (
                self.version.clone(),
                "not replicated; appendfsync always",
                "of one process",
            ),
            (What::Redis, Durability::Memory) => (
                self.version.clone(),
                "not replicated, not stored",
                "of one process",
            ),
            (What::RedisReplica, Durability::Disk) => (
                self.version.clone(),
                "appendfsync always, and WAIT 1: the replica has received it",
                "of the first process",
            ),
            (What::RedisReplica, Durability::Memory) => (
                self.version.clone(),
                "not stored; WAIT 1: the replica has received it",
                "of the first process",
            ),
            (What::Openraft, Durability::Disk) => (
                format!("{} on openraft 0.9", self.version),
                "fsynced on a majority",
                "linearizable",
            ),
            (What::Openraft, Durability::Memory) => (
                format!("{} on openraft 0.9", self.version),
                "in a majority's memory",
                "linearizable",
            ),
        };
        format!(
            "{system}; {members} member{}; acknowledged: {promise}; reads: {reads}; {} client{} a \
             connection",
            if members == 1 { "" } else { "s" },
            self.sharing(),
            if self.sharing() == 1 { "" } else { "s" },
        )
    }
}

/// The class path for Java: for a named directory, its contents.
fn class_path(own: &Path, given: &str) -> String {
    let mut all = own.display().to_string();
    for part in given.split(':') {
        // Writing to a string cannot fail.
        let _ = write!(all, ":{part}");
        if Path::new(part).is_dir() {
            all.push_str("/*");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_in_a_class_path_stand_for_what_lies_in_them() {
        let directory = tempfile::tempdir().unwrap();
        let jars = directory.path().display();
        let given = format!("{jars}:/no/such.jar:{jars}/*");
        let all = class_path(Path::new("/own"), &given);
        assert_eq!(all, format!("/own:{jars}/*:/no/such.jar:{jars}/*"));
    }

    #[test]
    fn names_are_read_and_written_alike() {
        for example in Spec::EXAMPLES {
            let name = Spec::parse(example).unwrap().name();
            assert_eq!(Spec::parse(&name).unwrap().name(), name);
        }
        assert_eq!(
            Spec::parse("quintet").unwrap().name(),
            "quintet:multipaxos/disk"
        );
    }

    #[test]
    fn unknown_systems_are_refused_with_what_there_is() {
        for wrong in [
            "mysql",
            "etcd/tape",
            "etcd:raft/disk",
            "quintet:multipaxos+old",
            "",
        ] {
            let error = Spec::parse(wrong).unwrap_err();
            assert!(error.to_string().contains("zookeeper"), "{wrong}");
        }
    }
}
