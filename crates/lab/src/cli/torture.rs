//! `quintet torture`: real processes under real faults, checked against the clients' observations.
//!
//! ```text
//!   arguments ──► sandbox (when something needs rights) ──► quintet_lab::torture::run
//!                                                             ├─► table, then one JSON line
//!                                                             └─► a violation: what is kept, exit 6
//! ```

use clap::Args;
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
    programs, protocols, signals, units,
};
use quintet_lab::torture::{
    self, FaultSet, Kind, Lie, NetworkKind, Plan, Progress, Report, TortureError,
    hostile::{Attack, Bounds, Outcome as Hostile},
    sandbox,
};
use quintet_replica::Durability;
use std::{
    fs, os::unix::process::CommandExt, path::PathBuf, process::Command, sync::mpsc::TryRecvError,
    time::Duration,
};

/// Run real replicas under real faults, and check what their clients saw
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet torture --seconds 30                     three replicas on this machine, all faults
  quintet torture --replicas 5 --faults kill,partition --network namespaces
  quintet torture --durability memory --faults kill,stop,rolling
  quintet torture --protocol nezha --proxies 2     a part of the clients at proxies, killed, too
  quintet torture --faults kill,members,protocol   members come and go, protocols change
  quintet torture --faults clients --seconds 120   hostile clients beside the honest ones

Replicas are processes of this program. Faults: kill (kill -9 of the leader, of others, of all),
stop (SIGSTOP, SIGCONT), partition (links that carry nothing, in one direction or both), reset
(connections), disk (a full one), slow (a disk that others keep busy), corrupt (corrupt bytes in a
minority's files), rolling (SIGTERM to one after the other); members (killed ones are
replaced, others come and go) and protocol (another one), which 'all' leaves out; and, alone, clients
(hostile ones: giant commands, thousands of connections, garbage, strangers on every port, while honest answers,
their latency and the replicas' memory are checked). Checked are linearizability, that
nothing acknowledged is lost, that clients see no error but those that a fault excuses, exit codes,
and that all replicas come to the same state. What needs rights (disk, network namespaces) runs in a
private sandbox that vanishes with the process; without the rights it is skipped, with the reason.

The last line is one JSON object. Exit code 6 on a violation, with the history, logs and data kept;
5 when the cluster did not come up; 1 when the run proved nothing, or when hostile clients went over
a bound.")]
pub struct Torture {
    /// The replication protocol, see 'quintet protocols'
    #[arg(long, value_name = "NAME", default_value = "multipaxos")]
    protocol: String,

    /// How many replicas
    #[arg(long, value_name = "N", default_value_t = 3)]
    replicas: u16,

    /// How many proxies run next to the replicas: they serve a part of the clients, and 'kill'
    /// kills them, too
    #[arg(long, value_name = "N", default_value_t = 0)]
    proxies: u16,

    /// The promise of an acknowledgement: disk or memory
    #[arg(long, default_value = "disk", value_parser = ["disk", "memory"])]
    durability: String,

    /// For how long faults are injected
    #[arg(long, value_name = "S", default_value_t = 60)]
    seconds: u64,

    /// Seed of faults and requests [default: a new one]
    #[arg(long, value_name = "X")]
    seed: Option<u64>,

    /// Which faults: none, kill, stop, partition, reset, disk, slow, corrupt, rolling, members,
    /// protocol, all (but the last two), or several with commas; or clients, alone: hostile ones
    #[arg(long, value_name = "KINDS", default_value = "all")]
    faults: FaultSet,

    /// The network between the replicas: 'loopback' (a proxy) or 'namespaces' (a network each)
    #[arg(long, value_name = "KIND", default_value = "loopback")]
    network: NetworkKind,

    /// How messages travel between replicas: 'tcp', 'shared-memory' (nothing can be cut then), or
    /// 'udp', in namespaces, for small ones with a protocol that stands lost and reordered ones
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "udp", "shared-memory"])]
    transport: String,

    /// How many clients [default: three per replica and proxy]
    #[arg(long, value_name = "N")]
    clients: Option<u32>,

    /// Requests per second of all clients together, about
    #[arg(long, value_name = "N", default_value_t = 600)]
    rate: u32,

    /// Where to write what the clients saw, as JSON lines for 'quintet check'
    /// [default: history.jsonl in the directory]
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,

    /// Where replicas keep configuration, logs and data; must not exist
    /// [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// The first port of a range [default: a free one above 21000]
    #[arg(long, value_name = "PORT")]
    base_port: Option<u16>,

    /// An option of the protocol, see 'quintet protocols'; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = protocols::assignment)]
    set: Vec<(String, String)>,

    /// Keep the directory although all is well
    #[arg(long)]
    keep: bool,

    /// How to print: 'table' explains before the JSON line, 'json' prints that line alone
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Give the checker false observations: lose-writes, repeat-increments or stale-reads; must end
    /// in exit code 6
    #[arg(long, value_name = "LIE")]
    lie: Option<Lie>,

    /// With '--faults clients', what they do: giants, pipelines, idle, slow, garbage, colliding,
    /// long, transactions, restore, strangers, passwords, admin, or several with commas
    /// [default: everything]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = Attack::named)]
    attacks: Vec<Attack>,

    /// With '--faults clients', the most memory that a replica may take
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = units::bytes)]
    memory_max: u64,

    /// With '--faults clients', how many times as long as before the 99th percentile of honest
    /// answers may be
    #[arg(long, value_name = "N", default_value_t = 5.0)]
    slower_max: f64,

    /// With '--faults clients', the longest that an honest answer may take
    #[arg(long, value_name = "S", default_value_t = 4)]
    pause_max: u64,

    /// Run within the sandbox that this program has made
    #[arg(long, hide = true)]
    inside: bool,
}

impl Torture {
    /// Runs the torture.
    pub fn run(self) -> Outcome {
        let entry = protocols::find(&self.protocol)?;
        protocols::check_options(entry, &self.set).map_err(|(_, failure)| failure)?;
        if usize::from(self.replicas) < entry.info.replicas_min {
            return Err(Failure::usage(format!(
                "--replicas: protocol '{}' needs at least {}",
                self.protocol, entry.info.replicas_min
            )));
        }
        if self.transport == "udp" && entry.needs_streams {
            return Err(Failure::usage(format!(
                "--transport: protocol '{}' relies on links that lose and reorder nothing",
                self.protocol
            ))
            .help("leave '--transport udp' out, or choose another protocol"));
        }
        let namespaces = self.network == NetworkKind::Namespaces;
        if namespaces != (self.transport == "udp") && self.transport != "tcp" {
            return Err(Failure::usage(format!(
                "--transport: '{}' needs '--network {}'",
                self.transport,
                if namespaces { "loopback" } else { "namespaces" },
            )));
        }
        let mounts = match self.inside {
            true => sandbox::prepare().map(|()| true)?,
            false => self.enter_sandbox()?,
        };
        let plan = self.plan(mounts)?;
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        let bar = output::bar(
            self.seconds.max(1),
            "{elapsed_precise} [{bar:30}] {msg} {eta} left",
        );
        let result = torture::run(&plan, |progress: &Progress| {
            bar.set_position(progress.elapsed.as_secs().min(self.seconds));
            bar.set_message(format!(
                "{} faults, {} answers, {} complaints; {}",
                progress.faults,
                grouped(progress.acknowledged),
                progress.complaints,
                progress.now
            ));
            matches!(stops.try_recv(), Err(TryRecvError::Empty))
        });
        bar.finish_and_clear();
        let report = match result {
            Ok(report) => report,
            Err(error) => return Err(self.refusal(error, &plan)),
        };
        if self.output == Format::Table {
            output::print(&shown(&report))?;
        }
        output::print_json_line(&report)?;
        let verdict = verdict(&report, &plan);
        let bounded = report
            .hostile
            .as_ref()
            .is_none_or(|it| it.exceeded.is_empty());
        if report.holds() && bounded && !self.keep && self.dir.is_none() {
            fs::remove_dir_all(&plan.directory)?;
        } else {
            eprintln!("kept: {}", plan.directory.display());
        }
        verdict
    }

    /// Becomes the same command inside a sandbox when something needs one; gives whether mounts
    /// are private if it does not.
    fn enter_sandbox(&self) -> Outcome<bool> {
        let network = self.network == NetworkKind::Namespaces;
        if !network && !self.faults.has(Kind::Disk) {
            return Ok(false);
        }
        match sandbox::arguments(sandbox::Private { network }) {
            Ok(arguments) => Err(become_sandboxed(&arguments)),
            Err(reason) if network => Err(no_network(&reason)),
            Err(reason) => {
                eprintln!("skipped: a full disk needs a private mount: {reason}");
                Ok(false)
            }
        }
    }

    fn plan(&self, mounts: bool) -> Outcome<Plan> {
        let directory = match &self.dir {
            Some(directory) => directory.clone(),
            None => {
                let name = format!("quintet-torture-{}", std::process::id());
                std::env::temp_dir().join(name)
            }
        };
        if directory.exists() {
            return Err(Failure::usage(format!(
                "{}: it exists already; choose another directory with --dir",
                directory.display()
            )));
        }
        fs::create_dir_all(&directory)?;
        let directory = directory.canonicalize()?;
        let base_port = match self.base_port {
            Some(port) => port,
            None => torture::free_base(21_001).ok_or_else(|| {
                Failure::usage("no free range of ports; name one with --base-port")
            })?,
        };
        let seed = match self.seed {
            Some(seed) => seed,
            None => {
                let bytes = units::random_bytes::<4>()?;
                u64::from(u32::from_le_bytes(bytes))
            }
        };
        let durability: Durability = self.durability.parse().map_err(Failure::usage)?;
        Ok(Plan {
            program: programs::find(programs::QUINTET)?,
            protocol: self.protocol.clone(),
            options: self.set.clone(),
            replicas: self.replicas,
            proxies: self.proxies,
            durability,
            duration: Duration::from_secs(self.seconds),
            seed,
            faults: self.faults,
            network: self.network,
            transport: self.transport.clone(),
            clients: (self.clients).unwrap_or(u32::from(self.replicas + self.proxies) * 3),
            rate: self.rate,
            history: match &self.history {
                Some(file) => file.clone(),
                None => directory.join("history.jsonl"),
            },
            directory,
            base_port,
            mounts,
            lie: self.lie,
            bounds: Bounds {
                memory_max: self.memory_max,
                slower_max: self.slower_max,
                pause_max: Duration::from_secs(self.pause_max),
            },
            attacks: self.attacks.clone(),
        })
    }

    fn refusal(&self, error: TortureError, plan: &Plan) -> Failure {
        match error {
            TortureError::Plan(_) => Failure::usage(error),
            TortureError::System(_) => Failure::new(Exit::Failed, error),
            TortureError::Start(_) => Failure::new(Exit::Unhealthy, error)
                .help(format!("the logs are in {}", plan.directory.display())),
        }
    }
}

fn shown(report: &Report) -> String {
    let mut text = format!(
        "{} with {} replicas{}, durability {}, {}: {:.0} s, seed {}\n\
         {} operations, {} acknowledged, {} of unknown outcome, {} refused; {} errors excused\n\
         {} keys read at every replica, {} lost; {} groups of keys checked, {} not linearizable, \
         {} undecided\n",
        report.protocol,
        report.replicas,
        match report.proxies {
            0 => String::new(),
            count => format!(" and {count} proxies"),
        },
        report.durability,
        match report.network {
            NetworkKind::Loopback => "loopback",
            NetworkKind::Namespaces => "network namespaces",
        },
        report.seconds,
        report.seed,
        grouped(report.operations),
        grouped(report.acknowledged),
        grouped(report.uncertain),
        grouped(report.failed),
        grouped(report.excused),
        grouped(report.keys),
        report.lost,
        report.checked,
        report.non_linearizable,
        report.undecided,
    );
    if let Some(position) = report.position {
        text.push_str(&format!(
            "all replicas came to position {}\n",
            grouped(position)
        ));
    }
    for (kind, reason) in &report.skipped {
        text.push_str(&format!("skipped {kind}: {reason}\n"));
    }
    if !report.pauses.is_empty() {
        text.push_str("\nfault                            times   longest pause   median\n");
    }
    for (name, pause) in &report.pauses {
        text.push_str(&format!(
            "{name:<32} {:>5}   {:>10.1} ms {:>8.1} ms\n",
            pause.faults, pause.longest_ms, pause.median_ms
        ));
    }
    if let Some(hostile) = &report.hostile {
        text.push_str(&shown_hostile(hostile));
    }
    for (name, count) in &report.exits {
        text.push_str(&format!("{count} × {name}\n"));
    }
    for violation in &report.violations {
        text.push_str(&format!("\nVIOLATION: {violation}\n"));
    }
    text
}

fn shown_hostile(hostile: &Hostile) -> String {
    let mut text = format!(
        "\nhonest answers: 99 % within {:.1} ms during the attacks (accepted {:.1} ms); memory of a \
         replica: accepted {} MiB\n{:<11}{:>6}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>7}\n",
        hostile.p99_ms,
        hostile.p99_max_ms,
        hostile.memory_max_mib,
        "attack",
        "times",
        "conns",
        "sent",
        "answered",
        "refused",
        "dropped",
        "honest",
        "p99 ms",
        "by time",
        "longest",
        "MiB"
    );
    let calm = ("calm", &hostile.calm);
    let attacks = hostile
        .attacks
        .iter()
        .map(|(name, row)| (name.as_str(), row));
    for (name, row) in std::iter::once(calm).chain(attacks) {
        text.push_str(&format!(
            "{name:<11}{:>6}{:>8}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9.1}{:>10.1}{:>9.1}{:>7}\n",
            row.times,
            row.connections,
            row.sent,
            row.answered,
            row.refused,
            row.dropped,
            row.honest,
            row.p99_ms,
            row.p99_by_time_ms,
            row.longest_ms,
            row.memory_mib
        ));
    }
    for note in &hostile.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    for what in &hostile.exceeded {
        text.push_str(&format!("EXCEEDED: {what}\n"));
    }
    text
}

fn verdict(report: &Report, plan: &Plan) -> Outcome {
    if let Some(first) = report.violations.first() {
        let message = format!(
            "{} violations, {} lost, {} not linearizable; first: {first}",
            report.violations.len(),
            report.lost,
            report.non_linearizable
        );
        return Err(Failure::new(Exit::Violated, message).help(format!(
            "the history is {}, logs and data are in {}",
            report.history, report.directory
        )));
    }
    if report.interrupted && report.checked == report.groups {
        return Ok(());
    }
    let nothing = |what: String| Err(Failure::new(Exit::Failed, what));
    if let Some(first) = report.hostile.as_ref().and_then(|it| it.exceeded.first()) {
        return nothing(format!("hostile clients went over a bound: {first}"));
    }
    if report.acknowledged == 0 {
        return nothing("nothing was acknowledged, so nothing was proved".to_owned());
    }
    if report.checked < report.groups {
        return nothing("not all that was recorded was checked".to_owned());
    }
    if report.undecided > 0 {
        return nothing(format!(
            "{} groups of keys could not be checked within the limits",
            report.undecided
        ));
    }
    let never = plan
        .faults
        .kinds()
        .into_iter()
        .map(Kind::name)
        .find(|kind| !report.faults.contains_key(*kind) && !report.skipped.contains_key(*kind));
    match never {
        Some(kind) => nothing(format!("the fault '{kind}' was never injected"))
            .map_err(|failure: Failure| failure.help("a longer run, by --seconds, has all faults")),
        None => Ok(()),
    }
}

/// Becomes the same command inside a sandbox; comes back only with why not.
fn become_sandboxed(arguments: &[&str]) -> Failure {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return error.into(),
    };
    let error = Command::new("unshare")
        .args(arguments)
        .arg("--")
        .arg(own)
        .args(std::env::args_os().skip(1))
        .arg("--inside")
        .exec();
    Failure::new(Exit::Failed, format!("unshare: {error}"))
}

fn no_network(reason: &str) -> Failure {
    let reason = format!("--network namespaces: cannot make a private network: {reason}");
    Failure::new(Exit::Failed, reason).help("run it as root, or use --network loopback")
}

/// Becomes the same command inside a sandbox with a network of its own; comes back only with why
/// not.
pub(super) fn sandboxed() -> Failure {
    match sandbox::arguments(sandbox::Private { network: true }) {
        Ok(arguments) => become_sandboxed(&arguments),
        Err(reason) => no_network(&reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(faults: &str) -> Plan {
        Plan {
            program: "quintet".into(),
            protocol: "multipaxos".to_owned(),
            options: Vec::new(),
            replicas: 3,
            proxies: 0,
            durability: Durability::Disk,
            duration: Duration::from_secs(1),
            seed: 1,
            faults: faults.parse().unwrap(),
            network: NetworkKind::Loopback,
            transport: "tcp".to_owned(),
            clients: 1,
            rate: 1,
            directory: "d".into(),
            history: "h".into(),
            base_port: 21_000,
            mounts: false,
            lie: None,
            bounds: Bounds::default(),
            attacks: Vec::new(),
        }
    }

    #[test]
    fn violation_ends_with_its_code_and_where_the_evidence_is() {
        let report = Report {
            acknowledged: 5,
            history: "h.jsonl".to_owned(),
            violations: vec!["lost: x".to_owned()],
            ..Report::default()
        };
        let failure = verdict(&report, &plan("none")).unwrap_err();
        assert_eq!(failure.exit, Exit::Violated);
        assert!(failure.to_string().contains("h.jsonl"));
        assert!(shown(&report).contains("VIOLATION: lost: x"));
    }

    #[test]
    fn run_without_answers_faults_or_decisions_proves_nothing() {
        let exit = |report: &Report, faults| verdict(report, &plan(faults)).err().map(|f| f.exit);
        let mut report = Report::default();
        assert_eq!(exit(&report, "none"), Some(Exit::Failed));
        report.acknowledged = 5;
        assert_eq!(exit(&report, "none"), None);
        assert_eq!(exit(&report, "kill"), Some(Exit::Failed));
        report.skipped.insert("kill".to_owned(), "why".to_owned());
        assert_eq!(exit(&report, "kill"), None);
        report.undecided = 1;
        assert_eq!(exit(&report, "kill"), Some(Exit::Failed));
    }
}
