//! The replicas and proxies as processes: their files, their signals, how they ended.
//!
//! ```text
//!   DIR/replica-0/quintet.toml    what it is started with
//!   DIR/replica-0/quintet.log     log of all its incarnations in turn
//!   DIR/replica-0/data/           what it keeps; a small file system of its own for full disks
//!   DIR/proxy-3/                  the same of a proxy, which keeps nothing
//!
//!   Running ──kill, exit──► Ended(status) ──start──► Running
//! ```
//!
//! Every replica holds the end of a pipe as its standard input and leaves when the pipe breaks, so
//! that none outlives the torture, however that ends.

use super::{
    Plan,
    faults::Kind,
    hostile,
    network::{Addresses, Network},
};
use quintet_cli::{http, programs};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use std::{
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    time::Duration,
};

/// How long an admin answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// The clients' password.
pub const PASSWORD: &str = "torture";
/// When a replica gives a request up.
pub const CLIENT_DEADLINE: Duration = Duration::from_secs(8);

/// The fields of `/status` that are needed here.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The leader, if there is one.
    pub leader: Option<u16>,
    /// Whether it takes part in quorums.
    pub voting: bool,
    /// The last slot known to be decided.
    pub committed: u64,
    /// The last slot executed.
    pub executed: u64,
    /// The last position executed.
    pub position: u64,
    /// How many keys it holds.
    pub entries: u64,
    /// `ok`, `full` or `failed`.
    pub disk_state: String,
    /// The epoch that it is in.
    pub epoch: u64,
    /// The protocol of that epoch.
    pub protocol: String,
}

/// One replica, or a proxy.
#[derive(Debug)]
pub struct Replica {
    /// Its place among the members; proxies are numbered behind them.
    pub id: u16,
    /// Whether it serves clients only.
    pub is_proxy: bool,
    /// Where it listens.
    pub addresses: Addresses,
    /// Its directory.
    pub directory: PathBuf,
    /// Its running process.
    child: Option<Child>,
    /// How its last process ended.
    pub ended: Option<ExitStatus>,
    /// It is being killed, stopped or damaged: its end is no surprise.
    pub may_end: bool,
    /// It does not move: SIGSTOP.
    pub paused: bool,
    /// How often it was started.
    pub starts: u64,
    /// It has become a member of the running cluster, or is to.
    pub joins: Option<Joins>,
}

/// How a replica asks to become a member.
#[derive(Clone, Debug)]
pub struct Joins {
    /// Peer addresses of members.
    pub seeds: Vec<String>,
    /// Whose place it takes; it is one more otherwise.
    pub replaces: Option<u16>,
}

impl Replica {
    /// Its data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.join("quintet.log")
    }

    /// Whether its process runs.
    #[must_use]
    pub const fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Its process, if it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Looks whether the process has ended.
    pub fn look(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        self.paused = false;
        self.ended = Some(status);
        Some(status)
    }

    /// Sends a signal to its process, if it runs.
    pub fn signal(&mut self, signal: Signal) {
        if let Some(child) = &self.child
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            // It was not yet waited for, so the id is still its own.
            let _ = kill_process(pid, signal);
            match signal {
                Signal::STOP => self.paused = true,
                Signal::CONT => self.paused = false,
                _ => {}
            }
        }
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        self.may_end = true;
        if let Some(child) = &mut self.child {
            // One that has ended needs no signal.
            let _ = child.kill();
            self.ended = child.wait().ok();
            self.child = None;
            self.paused = false;
        }
    }

    /// Asks for its state.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        if !self.runs() || self.paused {
            return None;
        }
        let admin = self.addresses.admin.to_string();
        let answer = http::get_with(PASSWORD, &admin, "/status", ANSWER).ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// Whether it says that it serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let admin = self.addresses.admin.to_string();
        self.runs()
            && !self.paused
            && http::get(&admin, "/readyz", ANSWER).is_ok_and(|answer| answer.code == 200)
    }

    /// How it ended and what it said last, for a report.
    #[must_use]
    pub fn exit_message(&self) -> String {
        let how = self.ended.map_or_else(|| "runs".to_owned(), shown);
        let kind = if self.is_proxy { "proxy" } else { "replica" };
        let mut text = format!("{kind} {} {how}", self.id);
        if let Some(words) = exit_message(&self.log()) {
            // Writing to a string does not fail.
            let _ = write!(text, "; it said: {words}");
        }
        text
    }
}

/// An exit status in words.
#[must_use]
pub fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The last error in a log, or its last line.
fn exit_message(log: &Path) -> Option<String> {
    let mut file = fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(8 << 10)))
        .ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = || text.lines().rev().filter(|line| !line.trim().is_empty());
    let words = lines()
        .find(|line| line.starts_with("error: "))
        .or_else(|| lines().next())?;
    Some(words.trim_start_matches("error: ").to_owned())
}

/// All replicas and proxies; killed when dropped.
#[derive(Debug)]
pub struct Cluster {
    /// By id.
    pub replicas: Vec<Replica>,
    /// By id, which continues behind the replicas.
    pub proxies: Vec<Replica>,
    /// The network between them.
    pub network: Network,
    program: PathBuf,
    /// The soft limit of descriptors that processes begin with, if not this one's.
    descriptors: Option<u32>,
    /// The most memory that a replica shall take while clients are hostile.
    memory_max: u64,
}

impl Cluster {
    /// Writes all files; nothing runs yet.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn prepare(plan: &Plan, network: Network) -> io::Result<Self> {
        let (mut replicas, mut proxies) = (Vec::new(), Vec::new());
        for id in 0..plan.replicas + plan.proxies {
            let is_proxy = id >= plan.replicas;
            let (kind, list) = match is_proxy {
                true => ("proxy", &mut proxies),
                false => ("replica", &mut replicas),
            };
            let directory = plan.directory.join(format!("{kind}-{id}"));
            fs::create_dir_all(directory.join("data"))?;
            let text = configuration(plan, &network, id);
            fs::write(directory.join("quintet.toml"), text)?;
            list.push(Replica {
                id,
                is_proxy,
                addresses: network.addresses(id),
                directory,
                child: None,
                ended: None,
                may_end: false,
                paused: false,
                starts: 0,
                joins: None,
            });
        }
        Ok(Self {
            replicas,
            proxies,
            network,
            program: plan.program.clone(),
            descriptors: (plan.faults.has(Kind::Clients)).then_some(hostile::DESCRIPTORS),
            memory_max: plan.bounds.memory_max,
        })
    }

    /// One more replica, which is no member yet.
    ///
    /// # Errors
    /// When its directory cannot be written.
    pub fn add(&mut self, plan: &Plan, joins: Joins) -> io::Result<u16> {
        let id = self.replicas.len() as u16;
        let directory = plan.directory.join(format!("replica-{id}"));
        fs::create_dir_all(directory.join("data"))?;
        let text = configuration(plan, &self.network, id);
        fs::write(directory.join("quintet.toml"), text)?;
        self.replicas.push(Replica {
            id,
            is_proxy: false,
            addresses: self.network.addresses(id),
            directory,
            child: None,
            ended: None,
            may_end: true,
            paused: false,
            starts: 0,
            joins: Some(joins),
        });
        Ok(id)
    }

    /// All processes, replicas first.
    pub fn all(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().chain(&self.proxies)
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Replica> {
        self.replicas.iter_mut().chain(&mut self.proxies)
    }

    /// Starts a replica or a proxy that does not run.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub fn start(&mut self, id: u16) -> io::Result<()> {
        let index = usize::from(id);
        let replica = match index.checked_sub(self.replicas.len()) {
            Some(number) => &mut self.proxies[number],
            None => &mut self.replicas[index],
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(replica.log())?;
        let mut command = match self.descriptors {
            None => self.network.command(id, &self.program),
            Some(limit) => {
                let mut shell = self.network.command(id, Path::new("/bin/sh"));
                // Far above the bound: a replica that grows on and on ends before the machine.
                let most = 3 * (self.memory_max >> 10);
                let script = format!("ulimit -Sn {limit}; ulimit -v {most}; exec \"$0\" \"$@\"");
                shell.arg("-c").arg(script).arg(&self.program);
                shell
            }
        };
        match &replica.joins {
            None => command.arg(if replica.is_proxy { "proxy" } else { "serve" }),
            Some(joins) => {
                command.arg("join").arg("--dir").arg(replica.data());
                for seed in &joins.seeds {
                    command.arg("--seed").arg(seed);
                }
                let replaced = joins.replaces.map(|id| id.to_string());
                if let Some(id) = replaced {
                    command.arg("--replace").arg(id);
                }
                &mut command
            }
        };
        command
            .arg("--config")
            .arg(replica.directory.join("quintet.toml"))
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C in a terminal reaches the whole process group: the torture alone shall get it.
            .process_group(0);
        programs::without_settings(&mut command);
        replica.child = Some(command.spawn()?);
        replica.ended = None;
        replica.may_end = false;
        replica.starts += 1;
        Ok(())
    }

    /// The replica that reports itself as the leader; of several, the one that ordered last.
    #[must_use]
    pub fn leader(&self) -> Option<u16> {
        let mut found = None;
        for replica in &self.replicas {
            if let Some(status) = replica.status()
                && status.leader == Some(replica.id)
            {
                found = found.max(Some((status.committed, replica.id)));
            }
        }
        found.map(|(_, id)| id)
    }

    /// The processes that run now.
    #[must_use]
    pub fn running(&self) -> Vec<u16> {
        let running = self.all().filter(|replica| replica.runs());
        running.map(|replica| replica.id).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for replica in self.all_mut() {
            replica.kill();
        }
    }
}

fn quoted(text: &str) -> String {
    // A TOML basic string; JSON's escapes are a part of its.
    serde_json::Value::from(text).to_string()
}

fn configuration(plan: &Plan, network: &Network, id: u16) -> String {
    let own = network.addresses(id);
    let members: Vec<_> = network.members(id).iter().map(|at| quoted(at)).collect();
    let data = plan.directory.join(format!("replica-{id}")).join("data");
    // Of a proxy neither it nor the id counts, but it must be a member's.
    let member = if id < plan.replicas { id } else { 0 };
    // Small segments and early snapshots: whatever happens rarely shall happen here.
    let mut text = format!(
        "# Written by 'quintet torture'.\n\
         cluster = \"{:032x}\"\nsecret = \"{:064x}\"\nid = {member}\nmembers = [{}]\n\
         protocol = {}\ndurability = \"{}\"\ntransport = {}\ndata = {}\nredis_listen = \"{}\"\n\
         admin_listen = \"{}\"\npeer_listen = \"{}\"\npassword = \"{PASSWORD}\"\n\
         client_deadline = \"{}s\"\nspin_max = \"0s\"\nsnapshot_bytes_min = \"{}\"\n\
         [journal]\nsegment_bytes = \"2MiB\"\n",
        u128::from(plan.seed) << 64 | 0x7071_7565,
        plan.seed,
        members.join(", "),
        quoted(&plan.protocol),
        plan.durability.name(),
        quoted(&plan.transport),
        quoted(&data.to_string_lossy()),
        own.redis,
        own.admin,
        own.peer,
        CLIENT_DEADLINE.as_secs(),
        // A state of hundreds of mebibytes is not written that often by anybody.
        if plan.faults.has(Kind::Clients) {
            "256MiB"
        } else {
            "512KiB"
        },
    );
    if plan.faults.has(Kind::Clients) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "[limits]\nmemory_max = \"{}\"", hostile::STATE_MAX);
    }
    if !plan.options.is_empty() {
        text.push_str("[options]\n");
    }
    for (name, value) in &plan.options {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} = {}", quoted(value));
    }
    text
}
