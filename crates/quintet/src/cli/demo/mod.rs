//! `quintet demo`: a whole cluster on this machine, one process per replica.
//!
//! ```text
//!   demo ──spawn──► quintet serve --config DIR/replica-0/quintet.toml   redis 7001 admin 7101 peers 7201
//!     │  ──spawn──► quintet serve --config DIR/replica-1/quintet.toml         7002       7102       7202
//!     │  ──spawn──► …
//!     │  ──spawn──► quintet proxy --config DIR/replica-0/quintet.toml         7004       7104
//!     ├─ GET /readyz until all answer 200, then prints where everything is
//!     ├─ reports deaths and returns
//!     └─ Ctrl-C, SIGTERM: stops all, exit 0
//!   demo --join ──exec──► quintet join --config DIR/replica-3/quintet.toml --dir … --seed …
//! ```
//!
//! A pipe on each replica's standard input ends with the demo, however it dies: no replica of a
//! killed demo stays behind.

mod directory;
mod grow;
mod supervisor;

pub use directory::{Directory, Marker, Prepared};

use crate::cli::layout;
use clap::Args;
use quintet_cli::{Exit, Failure, Outcome, output, protocols, signals, units};
use quintet_replica::{ClusterId, Durability, ReplicaId};
use quintet_runtime::{Config, Member, Threads, Transport};
use serde::Serialize;
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use supervisor::{Supervisor, What, shell_word};

/// Where a demo keeps its data unless told otherwise.
pub const DIRECTORY: &str = "./quintet-demo";
/// The first Redis port unless told otherwise.
pub const BASE_PORT: u16 = 7001;
/// The admin ports begin this far above the Redis ports.
pub const ADMIN_OFFSET: u16 = 100;
/// The peers' ports begin this far above the Redis ports.
pub const PEER_OFFSET: u16 = 200;
const REPLICAS_MAX: u16 = 99;

/// Start a whole cluster on this machine: three replicas, one process each
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet demo                                   three replicas, data in ./quintet-demo
  quintet demo --replicas 5 --base-port 8001     five of them, elsewhere
  quintet demo --durability memory               faster; always starts empty
  quintet demo --protocol nezha --transport udp  small messages in datagrams
  quintet demo --protocol nezha --proxies 2      and two that serve clients and hold no data
  quintet demo --layout layout.toml              keys divided among groups of replicas
  quintet demo --json                            one JSON line per process once all are ready
  quintet demo --join                            one replica more for the demo that runs
  quintet demo --join --replace 2                another one in the place of replica 2

Redis clients connect to base-port, +1, +2 …; admin HTTP is at base-port+100 …, the replicas talk to
each other at base-port+200 …. Proxies have the ports behind the replicas'. Any replica and any
proxy takes any command. Ctrl-C stops all; started again on the same directory, the demo has all its
data. Whatever dies stays dead until it is started again by the line that the demo printed for it.
A replica that joins runs until Ctrl-C; the next demo starts it with the others.")]
pub struct Demo {
    /// How many replicas [default: 3, or as many as the directory has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(REPLICAS_MAX)))]
    replicas: Option<u16>,

    /// How many proxies: processes that serve clients and are no members
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..i64::from(REPLICAS_MAX)))]
    proxies: u16,

    /// The replication protocol, see 'quintet protocols' [default: multipaxos, or the directory's]
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,

    /// An option of the protocol, see 'quintet protocols'; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = protocols::assignment)]
    set: Vec<(String, String)>,

    /// The promise of an acknowledgement: 'disk', fsynced on a majority; 'memory', held by a
    /// majority
    #[arg(long, default_value = "disk", value_parser = ["disk", "memory"])]
    durability: String,

    /// How messages travel between replicas: 'tcp', 'shared-memory', or 'udp' for small ones with a
    /// protocol that stands lost and reordered ones
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "udp", "shared-memory"])]
    transport: String,

    /// One thread for all work of a replica, or 'pipelined': the sockets of peers and those of
    /// clients have threads of their own
    #[arg(long, default_value = "one", value_parser = ["one", "pipelined"])]
    threads: String,

    /// Divide the keys among groups of replicas as this file says (see docs/guide/groups.md)
    #[arg(long, value_name = "FILE", conflicts_with = "proxies")]
    layout: Option<PathBuf>,

    /// Where the replicas keep their data
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    dir: PathBuf,

    /// The first replica's Redis port [default: 7001, or the directory's]
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,

    /// How long to wait until all replicas are ready, such as 2m
    #[arg(
        long,
        alias = "patience",
        value_name = "TIME",
        default_value = "2m",
        value_parser = units::duration
    )]
    timeout: Duration,

    /// Print one JSON line per replica and proxy when all are ready, instead of text
    #[arg(long)]
    json: bool,

    /// Run one replica more, of the demo that runs in the directory
    #[arg(long, conflicts_with_all = ["replicas", "proxies", "protocol", "set", "durability",
        "transport", "threads", "layout", "base_port", "timeout", "json"])]
    join: bool,

    /// It takes the place of this one, which has ended
    #[arg(long, value_name = "ID", requires = "join")]
    replace: Option<u16>,
}

/// The demo's settings, with all defaults filled in.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many replicas, with those that were removed from among them.
    pub replicas: u16,
    /// Those that were removed.
    pub vacant: Vec<u16>,
    /// How many proxies.
    pub proxies: u16,
    /// The protocol's name.
    pub protocol: String,
    /// The protocol's options.
    pub options: Vec<(String, String)>,
    /// Limits that are not the defaults, as settings.
    pub limits: Vec<(String, String)>,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// How small messages travel between replicas.
    pub transport: Transport,
    /// How the work of a process is divided.
    pub threads: Threads,
    /// The first Redis port.
    pub base_port: u16,
    /// How keys are divided, if they are: the text of a layout.
    pub layout: Option<String>,
}

impl Plan {
    /// Whether its members change while it runs: the ports behind them are free then.
    fn can_grow(&self) -> bool {
        self.layout.is_none() && self.proxies == 0 && self.replicas < REPLICAS_MAX
    }

    /// Whether the layout suits the other values.
    fn check_layout(&self, path: Option<&Path>) -> Outcome {
        let Some(text) = &self.layout else {
            return Ok(());
        };
        let path = path.unwrap_or(Path::new(directory::LAYOUT));
        let peer = |id| Member {
            peer: format!("127.0.0.1:{}", Ports::of(self.base_port, id).peer),
        };
        let members = (0..self.replicas).map(peer).collect();
        let config = Config {
            protocol: self.protocol.clone(),
            options: self.options.clone(),
            durability: self.durability,
            transport: self.transport,
            layout: Some(layout::parse(text, path)?),
            ..Config::new(ClusterId(1), ReplicaId(0), members, PathBuf::new())
        };
        config.check_layout().map_err(Failure::usage)
    }

    /// The replicas that are members.
    pub fn ids(&self) -> impl Iterator<Item = u16> {
        (0..self.replicas).filter(|id| !self.vacant.contains(id))
    }
}

/// The ports of one replica, or of a proxy, which has no peers.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// For Redis clients.
    pub redis: u16,
    /// For admin HTTP.
    pub admin: u16,
    /// For the other replicas.
    pub peer: u16,
}

impl Ports {
    /// The ports of a demo's replica; those of proxies are numbered behind the replicas'. The plan
    /// was checked to fit below 65536.
    pub const fn of(base: u16, id: u16) -> Self {
        let redis = base.saturating_add(id);
        Self {
            redis,
            admin: redis.saturating_add(ADMIN_OFFSET),
            peer: redis.saturating_add(PEER_OFFSET),
        }
    }
}

/// Output of `--json` per replica (`id`, `dir`) and per proxy (`proxy`).
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<u16>,
    pid: u32,
    redis: String,
    admin: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<&'a str>,
    serve: &'a [String],
}

impl Demo {
    /// Runs until stopped.
    pub fn run(self) -> Outcome {
        if self.join {
            return grow::run(&self.dir, self.replace);
        }
        self.check()?;
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        let directory = Directory::open(&self.dir)?;
        let plan = self.plan(directory.marker(), directory.layout()?)?;
        let durability = plan.durability;
        // The replicas of a demo that was killed need a moment to notice and leave.
        let earlier_port = directory.marker().map(|held| held.base_port);
        let continued = earlier_port == Some(plan.base_port);
        check_ports(
            &plan,
            if continued {
                directory::ANSWER_TIMEOUT
            } else {
                Duration::ZERO
            },
        )?;
        directory.wait_until_unused()?;
        let prepared = directory.prepare(&plan)?;
        let removed = if prepared.removed {
            " (the earlier memory demo's data was removed)"
        } else {
            ""
        };
        if durability == Durability::Memory || prepared.removed {
            eprintln!(
                "durability {}: a new, empty cluster{removed}",
                durability.name()
            );
        }
        if let (None, Some(port)) = (self.base_port, earlier_port)
            && port != BASE_PORT
        {
            eprintln!("ports from {port}, as at the last start; --base-port chooses others");
        }
        let mut supervisor = Supervisor::start(&prepared, self.dir.clone())?;
        if !supervisor.wait_until_ready(&stops, self.timeout)? {
            return supervisor.stop(&stops);
        }
        self.announce(&plan, &supervisor)?;
        supervisor.watch(&stops);
        supervisor.stop(&stops)
    }

    fn check(&self) -> Outcome {
        if self.base_port == Some(0) {
            return Err(Failure::usage(
                "--base-port: 0 is no port; accepted are 1 to 65335",
            ));
        }
        // Before a directory is made for it.
        match self.base_port {
            Some(base) => check_last_port(base, self.replicas.unwrap_or(1)),
            None => Ok(()),
        }
    }

    /// Fills in what was not said from what the directory holds.
    fn plan(&self, held: Option<&Marker>, held_layout: Option<String>) -> Outcome<Plan> {
        let durability = self.durability.parse().map_err(Failure::usage)?;
        // A memory demo's cluster is never continued, so nothing of it binds the next one.
        let continued = held.filter(|held| durability == Durability::Disk && !held.is_memory());
        let protocol = match (&self.protocol, continued) {
            (Some(name), _) => name.clone(),
            (None, Some(held)) => held.protocol.clone(),
            (None, None) => "multipaxos".to_owned(),
        };
        let entry = protocols::find(&protocol)?;
        let options = match continued {
            Some(held) if self.set.is_empty() && held.protocol == protocol => held.options(),
            _ => self.set.clone(),
        };
        protocols::check_options(entry, &options).map_err(|(_, failure)| failure)?;
        let transport: Transport = self.transport.parse().map_err(Failure::usage)?;
        if transport.uses_datagrams() && entry.needs_streams {
            return Err(Failure::usage(format!(
                "--transport: protocol '{protocol}' relies on links that lose and reorder nothing"
            ))
            .help("leave '--transport udp' out, or choose another protocol"));
        }
        let (replicas, vacant) = match (self.replicas, continued) {
            (asked, Some(held)) if asked.is_none_or(|it| usize::from(it) == held.ids().count()) => {
                (held.replicas, held.vacant.clone())
            }
            (asked, _) => (asked.unwrap_or(3), Vec::new()),
        };
        if usize::from(replicas) - vacant.len() < entry.info.replicas_min {
            return Err(Failure::usage(format!(
                "--replicas: protocol '{protocol}' needs at least {}",
                entry.info.replicas_min
            )));
        }
        let base_port = self
            .base_port
            .or(held.map(|held| held.base_port))
            .unwrap_or(BASE_PORT);
        let layout = match &self.layout {
            Some(path) => Some(read_layout(path)?),
            None => held_layout.filter(|_| continued.is_some()),
        };
        let plan = Plan {
            replicas,
            vacant,
            proxies: self.proxies,
            protocol,
            options,
            limits: continued.map(Marker::limits).unwrap_or_default(),
            durability,
            transport,
            threads: self.threads.parse().map_err(Failure::usage)?,
            base_port,
            layout,
        };
        plan.check_layout(self.layout.as_deref())?;
        check_last_port(base_port, replicas)?;
        if replicas + self.proxies > REPLICAS_MAX {
            return Err(Failure::usage(format!(
                "--proxies: {replicas} replicas and {} proxies are more than {REPLICAS_MAX} \
                 processes",
                self.proxies
            )));
        }
        Ok(plan)
    }

    fn announce(&self, plan: &Plan, supervisor: &Supervisor) -> Outcome {
        if self.json {
            for process in supervisor.processes() {
                let (id, proxy) = match process.what {
                    What::Replica(id) => (Some(id), None),
                    What::Proxy(number) => (None, Some(number)),
                };
                let data = process.data.as_ref().map(|data| data.to_string_lossy());
                output::print_json_line(&Line {
                    id,
                    proxy,
                    pid: process.pid,
                    redis: process.redis_url(),
                    admin: process.admin_url(),
                    dir: data.as_deref(),
                    serve: &process.serve,
                })?;
            }
            return Ok(());
        }
        let proxies = match plan.proxies {
            0 => String::new(),
            1 => " and a proxy".to_owned(),
            count => format!(" and {count} proxies"),
        };
        let mut text = format!(
            "\n{} replicas{proxies} are ready: protocol {}, durability {}\n\n",
            plan.ids().count(),
            plan.protocol,
            plan.durability.name()
        );
        for process in supervisor.processes() {
            text.push_str(&format!(
                "{}  {}  {}  pid {}\n",
                process.what,
                process.redis_url(),
                process.admin_url(),
                process.pid,
            ));
            if let Some(data) = &process.data {
                text.push_str(&format!("  data   {}\n", data.display()));
            }
            text.push_str(&format!("  again  {}\n", process.serve_line()));
        }
        let last = plan.base_port + plan.replicas + plan.proxies - 1;
        let first = plan.base_port + plan.ids().next().unwrap_or_default();
        let (victim, what) = supervisor.victim();
        text.push_str(&format!(
            "\nTry:\n  redis-cli -p {first} set greeting hello\n  redis-cli -p {last} get greeting\n  \
             kill -9 {}    # {what}\n",
            victim.pid
        ));
        if plan.can_grow() {
            let dir = match self.dir.as_os_str() == DIRECTORY {
                true => String::new(),
                false => format!(" --dir {}", shell_word(&self.dir.to_string_lossy())),
            };
            if plan.ids().count() > 2
                && let What::Replica(id) = victim.what
            {
                text.push_str(&format!(
                    "  quintet demo{dir} --join --replace {id}    # another one in its place\n"
                ));
            }
            text.push_str(&format!("  quintet demo{dir} --join    # one more\n"));
        }
        text.push_str("\nCtrl-C stops all.\n");
        output::print(&text)
    }
}

fn read_layout(path: &Path) -> Outcome<String> {
    let failure = |error| Failure::usage(format!("--layout: {}: {error}", path.display()));
    std::fs::read_to_string(path).map_err(failure)
}

fn check_last_port(base: u16, replicas: u16) -> Outcome {
    let last = u32::from(base) + u32::from(PEER_OFFSET) + u32::from(replicas) - 1;
    match last > u32::from(u16::MAX) {
        true => Err(Failure::usage(format!(
            "--base-port: {base} is too high: the replicas would need ports up to {last}"
        ))),
        false => Ok(()),
    }
}

/// Asks for every port once, so that a taken one is named before anything is started or removed.
fn check_ports(plan: &Plan, timeout: Duration) -> Outcome {
    let deadline = Instant::now() + timeout;
    for what in What::all(plan) {
        check_ports_of(
            what,
            plan,
            deadline.saturating_duration_since(Instant::now()),
        )?;
    }
    Ok(())
}

fn check_ports_of(what: What, plan: &Plan, timeout: Duration) -> Outcome {
    let deadline = Instant::now() + timeout;
    let ports = what.ports(plan);
    let mut uses = vec![
        (ports.redis, "Redis clients of"),
        (ports.admin, "the admin HTTP of"),
    ];
    if let What::Replica(_) = what {
        uses.push((ports.peer, "the peers of"));
    }
    for (port, purpose) in uses {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        while let Err(error) = TcpListener::bind(address) {
            if Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let reason = match error.kind() {
                std::io::ErrorKind::AddrInUse => "is in use by another process".to_owned(),
                _ => format!("cannot be listened on: {error}"),
            };
            return Err(Failure::new(
                Exit::Usage,
                format!("port {port}, for {purpose} {what}, {reason}"),
            )
            .help("choose other ports with --base-port, or stop that process"));
        }
    }
    Ok(())
}
