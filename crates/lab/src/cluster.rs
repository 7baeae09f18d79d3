//! A cluster of real replicas for one measurement: started with empty data, exposed to faults,
//! stopped.
//!
//! ```text
//!   start ──► quintet serve --config DIR/0.toml --links DIR/links.toml …   one process per replica
//!     │ settle: who leads?       inject: crash (SIGKILL), start again, pause, resume
//!     └ dropped: all processes end, and the data with them
//! ```

use crate::{
    figures,
    load::{Language, Target},
    scenario::Place,
    torture::network,
};
use quintet_cli::{Exit, Failure, Outcome, http};
use quintet_replica::{Durability, Level};
use quintet_simulator::performance::FaultKind;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, OpenOptions},
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
const SETTLED: usize = 3;
const ADMIN_OFFSET: u16 = 100;
const PEER_OFFSET: u16 = 200;

/// The cluster to start.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The `quintet` program.
    pub program: PathBuf,
    /// The protocol.
    pub protocol: String,
    /// Its options.
    pub options: Vec<(String, String)>,
    /// Other settings of each replica, as its configuration file has them.
    pub settings: Vec<(String, String)>,
    /// How many replicas.
    pub replicas: usize,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// The text of the links' description; `None` for the network as it is.
    pub links: Option<String>,
    /// When the run begins from which changes of links count, since the Unix epoch.
    pub began: Duration,
    /// Where the data lies.
    pub parent: PathBuf,
    /// The first port; 300 are used.
    pub base_port: u16,
    /// Each replica in a network namespace of its own, which sends at most that many bits per
    /// second (0: no limit); `None` for loopback. Only inside a sandbox.
    pub namespaces: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Cluster {
    plan: ClusterPlan,
    children: Vec<Option<Child>>,
    /// The cluster's.
    id: String,
    directory: TempDir,
}

/// Between namespaces replicas listen on addresses that are not loopback.
const PASSWORD: &str = "measured";

/// A string as TOML has it. Paths and options hold no control characters.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

impl Cluster {
    /// Starts all replicas.
    ///
    /// # Errors
    /// When the data cannot be written or the program not be started.
    pub fn start(plan: ClusterPlan) -> Outcome<Self> {
        let storage = |error| Failure::failed(format!("{}: {error}", plan.parent.display()));
        fs::create_dir_all(&plan.parent).map_err(storage)?;
        let directory = tempfile::Builder::new()
            .prefix("quintet-lab-")
            .tempdir_in(&plan.parent)
            .map_err(storage)?;
        let last = usize::from(plan.base_port) + usize::from(PEER_OFFSET) + plan.replicas;
        if last > usize::from(u16::MAX) || plan.replicas > usize::from(ADMIN_OFFSET) {
            return Err(Failure::usage(
                "the base port leaves no room for that many replicas",
            ));
        }
        let mut cluster = Self {
            children: (0..plan.replicas).map(|_| None).collect(),
            id: format!("{:032x}", u128::from(std::process::id()) + 1),
            plan,
            directory,
        };
        if let Some(links) = &cluster.plan.links {
            fs::write(cluster.path("links.toml"), links)?;
        }
        for id in 0..cluster.plan.replicas {
            let text = cluster.config(id, &cluster.id);
            fs::write(cluster.path(&format!("{id}.toml")), text)?;
        }
        if let Some(rate) = cluster.plan.namespaces {
            if cluster.plan.replicas > usize::from(network::REPLICAS_MAX) {
                let most = network::REPLICAS_MAX;
                return Err(Failure::usage(format!("at most {most} namespaces")));
            }
            // New namespaces have no limit.
            network::lay(cluster.plan.replicas as u16)?;
            for id in (0..cluster.plan.replicas).filter(|_| rate > 0) {
                network::limit(id as u16, rate)?;
            }
        }
        for id in 0..cluster.plan.replicas {
            cluster.begin(id)?;
        }
        Ok(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn address(&self, id: usize, offset: u16) -> SocketAddr {
        let host = match self.plan.namespaces {
            Some(_) => network::host(id as u16),
            None => Ipv4Addr::LOCALHOST,
        };
        SocketAddr::from((host, self.plan.base_port + offset + id as u16))
    }

    /// Where a replica's admin HTTP is.
    #[must_use]
    pub fn admin(&self, id: usize) -> String {
        self.address(id, ADMIN_OFFSET).to_string()
    }

    /// Where the Redis clients of all replicas connect.
    #[must_use]
    pub fn redis(&self) -> Vec<SocketAddr> {
        (0..self.plan.replicas)
            .map(|id| self.address(id, 0))
            .collect()
    }

    /// One replica more, and waits until it is ready. It has the number behind the others'.
    ///
    /// # Errors
    /// When it is not in time.
    pub fn join(&mut self) -> Outcome {
        let id = self.children.len();
        let data = self.path(&format!("data-{id}"));
        // An earlier replica of this number was another one.
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let mut command = Command::new(&self.plan.program);
        command.args(["--log", "warn", "join", "--stop-with-stdin", "--dir"]);
        command.arg(&data).args(["--cluster", &self.id]);
        for other in 0..id {
            let seed = self.address(other, PEER_OFFSET).to_string();
            command.args(["--seed", &seed]);
        }
        let offsets = [
            ("--redis-listen", 0),
            ("--admin-listen", ADMIN_OFFSET),
            ("--peer-listen", PEER_OFFSET),
        ];
        for (flag, offset) in offsets {
            command.args([flag, &self.address(id, offset).to_string()]);
        }
        self.children.push(None);
        self.spawn(id, command)?;
        let deadline = Instant::now() + START;
        let votes = |cluster: &Self| {
            let report = cluster.ask(0, "/change").ok()?;
            let report: serde_json::Value = serde_json::from_str(&report).ok()?;
            let own = &report["members"][id];
            (own["role"] == "voter" && own["has_state"] == true).then_some(())
        };
        while votes(self).is_none() {
            let child = self.children[id].as_mut();
            let ended = child.and_then(|child| child.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                return Err(Failure::failed(format!("replica {id} does not join")));
            }
            thread::sleep(LOOK / 10);
        }
        Ok(())
    }

    /// The replica with the highest number was removed: it ends by itself.
    pub fn left(&mut self) {
        if let Some(Some(mut child)) = self.children.pop() {
            // It is told so by the others; either way it is waited for.
            let _ = child.wait();
        }
    }

    fn config(&self, id: usize, cluster: &str) -> String {
        let plan = &self.plan;
        let members: Vec<_> = (0..plan.replicas)
            .map(|id| quoted(&self.address(id, PEER_OFFSET).to_string()))
            .collect();
        let durability = match plan.durability {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        };
        let mut text = format!(
            "cluster = \"{cluster}\"\nid = {id}\nmembers = [{}]\nprotocol = {}\n\
             durability = \"{durability}\"\ndata = {}\nredis_listen = \"{}\"\n\
             admin_listen = \"{}\"\n",
            members.join(", "),
            quoted(&plan.protocol),
            quoted(&self.path(&format!("data-{id}")).to_string_lossy()),
            self.address(id, 0),
            self.address(id, ADMIN_OFFSET),
        );
        if plan.namespaces.is_some() {
            // Writing to a string does not fail, here and below.
            let secret = format!("{:064x}", std::process::id());
            let _ = writeln!(
                text,
                "secret = \"{secret}\"\npassword = {}",
                quoted(PASSWORD)
            );
        }
        for (name, value) in &plan.settings {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        }
        if !plan.options.is_empty() {
            text.push_str("[options]\n");
        }
        for (name, value) in &plan.options {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        }
        text
    }

    /// Starts a replica, for the first time or again.
    fn begin(&mut self, id: usize) -> Outcome<()> {
        let mut command = match self.plan.namespaces {
            Some(_) => network::inside(id as u16, &self.plan.program),
            None => Command::new(&self.plan.program),
        };
        command
            .args(["--log", "warn", "serve", "--stop-with-stdin", "--config"])
            .arg(self.path(&format!("{id}.toml")));
        if self.plan.links.is_some() {
            command
                .arg("--links")
                .arg(self.path("links.toml"))
                .args(["--links-began", &self.plan.began.as_millis().to_string()]);
        }
        self.spawn(id, command)
    }

    fn spawn(&mut self, id: usize, mut command: Command) -> Outcome<()> {
        let mut options = OpenOptions::new();
        let log = options
            .create(true)
            .append(true)
            .open(self.path(&format!("{id}.log")))?;
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUINTET_") {
                command.env_remove(name);
            }
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Failure::failed(format!("{}: {error}", self.plan.program.display()))
            })?;
        self.children[id] = Some(child);
        Ok(())
    }

    /// The processes that run.
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().flatten().map(Child::id).collect()
    }

    /// The CPU time that all replicas have used.
    pub fn cpu(&self) -> Option<Duration> {
        self.pids().into_iter().map(figures::cpu_of).sum()
    }

    /// The memory that all replicas hold.
    pub fn resident(&self) -> Option<u64> {
        self.pids().into_iter().map(figures::resident_of).sum()
    }

    /// Rare branches that living replicas have taken since then: the first and the last time, in
    /// seconds, and how often since their processes began.
    pub fn moments(&self, since: SystemTime) -> BTreeMap<String, (f64, f64, u64)> {
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut moments = BTreeMap::new();
        for (id, _) in (self.children.iter().enumerate()).filter(|(_, child)| child.is_some()) {
            let status = self.ask(id, "/status");
            let status: serde_json::Value = status
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default();
            let branches = status.get("branches").and_then(|all| all.as_object());
            for (name, branch) in branches.into_iter().flatten() {
                let number = |key| branch.get(key).and_then(serde_json::Value::as_u64);
                let at = |key| {
                    let at = Duration::from_nanos(number(key)?);
                    Some(at.checked_sub(since)?.as_secs_f64())
                };
                let Some(last) = at("last_ns") else {
                    continue;
                };
                // One that was taken before, too, tells no other time.
                let first = at("first_ns").unwrap_or(last);
                let all: &mut (f64, f64, u64) =
                    moments.entry(name.clone()).or_insert((first, last, 0));
                let count = all.2 + number("count").unwrap_or(0);
                *all = (all.0.min(first), all.1.max(last), count);
            }
        }
        moments
    }

    /// The answer of a replica's admin address; replicas between namespaces require the password.
    fn ask(&self, id: usize, path: &str) -> std::io::Result<String> {
        let address = self.address(id, ADMIN_OFFSET).to_string();
        let answer = http::get_with(PASSWORD, &address, path, ANSWER)?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        match answer.code {
            200 => Ok(body),
            code => Err(std::io::Error::other(format!(
                "code {code}: {}",
                body.trim()
            ))),
        }
    }

    fn leader(&self) -> Result<Option<usize>, String> {
        let mut named = None;
        for id in 0..self.plan.replicas {
            let ready = self.ask(id, "/readyz");
            ready.map_err(|error| format!("replica {id}: {error}"))?;
            let status = self.ask(id, "/status");
            let status = status.map_err(|error| format!("replica {id}: {error}"))?;
            let status: serde_json::Value =
                serde_json::from_str(&status).map_err(|error| error.to_string())?;
            if status.get("role").and_then(|role| role.as_str()) == Some("leader") {
                named = named.or(Some(id));
            }
        }
        Ok(named)
    }

    /// Waits until all are ready and agree for a moment on who leads.
    ///
    /// # Errors
    /// When one ends instead, or they need too long.
    pub fn settle(&mut self) -> Outcome<Option<usize>> {
        let deadline = Instant::now() + START;
        let (mut last, mut same) = (None, 0);
        loop {
            for (id, child) in self.children.iter_mut().enumerate() {
                let ended = child
                    .as_mut()
                    .and_then(|child| child.try_wait().ok().flatten());
                if let Some(status) = ended {
                    let log = self.directory.path().join(format!("{id}.log"));
                    return Err(Failure::failed(format!(
                        "replica {id} of {} ended with {status}{}",
                        self.plan.protocol,
                        exit_message(&log)
                    )));
                }
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
                let message = format!("{}: not ready: {reason}", self.plan.protocol);
                return Err(Failure::new(Exit::Unreachable, message));
            }
            thread::sleep(LOOK);
        }
    }

    /// Where clients connect; what their `reads` need.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub fn targets(&mut self, place: &Place, reads: Level) -> Outcome<Vec<Target>> {
        let leader = self.settle()?;
        let all: Vec<usize> = (0..self.plan.replicas).collect();
        let ids = match (place, leader) {
            (Place::Leader, Some(leader)) => vec![leader],
            // Proxies and frontends of their own are for the simulated backend; scenarios say so.
            (Place::Leader, None) | (Place::All | Place::Proxies(_) | Place::Frontends(_), _) => {
                all
            }
            (Place::Half, _) => (0..self.plan.replicas.div_ceil(2)).collect(),
            (Place::Middle, _) => vec![self.plan.replicas / 2],
            (Place::Last, _) => vec![self.plan.replicas - 1],
            (Place::At(ids), _) => ids.iter().map(|id| usize::from(*id)).collect(),
        };
        let target = |id: usize| Target {
            address: self.address(id, 0),
            language: Language::Resp {
                password: self.plan.namespaces.map(|_| PASSWORD.to_owned()),
                wait: None,
                reads,
            },
        };
        Ok(ids.into_iter().map(target).collect())
    }

    fn signal(&self, id: usize, signal: Signal) {
        let child = self.children.get(id).and_then(Option::as_ref);
        let pid = child.and_then(|child| i32::try_from(child.id()).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // One that has ended needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    /// A fault begins.
    pub fn inject(&mut self, id: usize, kind: FaultKind) {
        match kind {
            FaultKind::SlowDisk(_) | FaultKind::HungDisk => unreachable!("{ONLY_SIMULATED}"),
            FaultKind::Pause => self.signal(id, Signal::STOP),
            FaultKind::Crash => {
                self.signal(id, Signal::KILL);
                if let Some(mut child) = self.children.get_mut(id).and_then(Option::take) {
                    // It was killed: this does not wait.
                    let _ = child.wait();
                }
            }
        }
    }

    /// A fault ends.
    ///
    /// # Errors
    /// When a replica cannot be started again.
    pub fn relent(&mut self, id: usize, kind: FaultKind) -> Outcome<()> {
        match kind {
            FaultKind::SlowDisk(_) | FaultKind::HungDisk => unreachable!("{ONLY_SIMULATED}"),
            FaultKind::Pause => self.signal(id, Signal::CONT),
            FaultKind::Crash => self.begin(id)?,
        }
        Ok(())
    }
}

const ONLY_SIMULATED: &str = "no scenario names faults of disks";

fn exit_message(log: &Path) -> String {
    let said = fs::read_to_string(log).unwrap_or_default();
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |last| format!("; it said: {last}"))
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for id in 0..self.children.len() {
            self.signal(id, Signal::CONT);
            // Its data goes too: nothing is to be saved.
            self.signal(id, Signal::KILL);
        }
        for child in self.children.iter_mut().flatten() {
            // Killed: this does not wait.
            let _ = child.wait();
        }
    }
}
