//! `quintet lab compare`: the same load on several systems in one run.
//!
//! ```text
//!   arguments ──► Plan ──► rounds, with a bar ──► table on standard output; report.html, results.json
//! ```

use clap::{Args, ValueEnum};
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
    programs, signals, units,
};
use quintet_lab::{
    compare::{Cell, Comparison, HEADER, Installed, Plan, Spec, compare, csv, html, row},
    run::commit,
};
use std::{fs, path::PathBuf, time::Duration};

/// Measure Quintet beside etcd, ZooKeeper, openraft and Redis, in interleaved rounds
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab compare --quick
  quintet lab compare quintet:multipaxos/disk etcd/disk zookeeper/disk redis/disk
  quintet lab compare --clients 64,256 --reads 0,1 --rounds 5 --out results
  quintet lab compare quintet:chain_paxos+stale zookeeper+sync zookeeper --at all

A system is quintet[:PROTOCOL], etcd, zookeeper, openraft, redis or redis-replica, with /disk (the
default) or /memory behind it. Behind a protocol, '+OPTION=VALUE' sets an option of it, and '+stale'
reads the state of the replica that is asked, however old (READONLY), '+ordered' orders reads like writes (GETEX); 'zookeeper+sync' sends a sync before
each read. Replicated systems have --members members on loopback; clients are at the leader, or at all
members (--at), each with one request in progress. All start empty; the ones that are not under load are stopped by a
signal. Figures are medians over the rounds, with the smallest and the largest. CPU and memory are
those of all members; wire bytes are all that went over loopback, clients' included; syncs are how
often members waited for the disk (root's rights and a mounted tracefs needed), per thousand
operations. Own CPU is the load generator's, in cores. What is compared must be quiet: nothing else should run on the machine.
'just peers' installs the other systems. With --out, Ctrl-C keeps the rounds that are done, and the
same command continues from there.")]
pub struct Compare {
    /// Systems to compare [default: all, with disk and with memory]
    #[arg(value_name = "SYSTEM", value_parser = spec)]
    systems: Vec<Spec>,

    /// How many clients, one load for each number [default: 64,256, with --quick 64]
    #[arg(short, long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: Vec<u32>,

    /// Which part of the requests are reads, one load for each ratio
    #[arg(short, long, value_name = "RATIO,…", default_value = "0,1", value_delimiter = ',',
        value_parser = super::bench::ratio)]
    reads: Vec<f64>,

    /// Bytes per value
    #[arg(short = 'd', long, value_name = "BYTES", default_value = "128", value_parser = value_size)]
    value_size: usize,

    /// How many keys
    #[arg(short, long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,

    /// Repetitions [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: Option<u32>,

    /// How long to measure each load [default: 2.5, with --quick 1]
    #[arg(short, long, value_name = "SECONDS", value_parser = super::bench::seconds)]
    seconds: Option<Duration>,

    /// How long to run each load before measuring [default: 0.7, with --quick 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = super::bench::seconds)]
    warmup: Option<Duration>,

    /// A quick look: fewer and shorter repetitions
    #[arg(long)]
    quick: bool,

    /// How many of etcd's clients share a connection
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    etcd_sharing: u32,

    /// Members of each replicated system
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    members: u16,

    /// Where clients connect: to the leader, or to all members, taking turns
    #[arg(long, value_enum, default_value_t)]
    at: At,

    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,

    /// Where data lies that is to be durable
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// Where data lies of systems that need files even for /memory: on a memory file system
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory_dir: PathBuf,

    /// The first port; each ten systems use 300
    #[arg(long, value_name = "PORT", default_value_t = 27_000)]
    base_port: u16,

    /// etcd's server
    #[arg(long, value_name = "PROGRAM", default_value = "etcd")]
    etcd: PathBuf,

    /// Java's virtual machine
    #[arg(long, value_name = "PROGRAM", default_value = "java")]
    java: PathBuf,

    /// The class path with ZooKeeper's server, or the directory where its jar files are
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/usr/share/java/zookeeper.jar"
    )]
    zookeeper: String,

    /// Redis's server
    #[arg(long, value_name = "PROGRAM", default_value = "redis-server")]
    redis: PathBuf,

    /// The store on openraft, bench/openraft-store
    #[arg(long, value_name = "PROGRAM", default_value = "openraft-store")]
    openraft: PathBuf,

    /// Draws the keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Where to write report.html, results.json and results.csv
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Where clients connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum At {
    /// To the leader, or to all where there is none.
    #[default]
    Leader,
    /// To all members, taking turns.
    All,
}

const ALL: [&str; 11] = [
    "quintet/disk",
    "etcd/disk",
    "zookeeper/disk",
    "openraft/disk",
    "redis/disk",
    "quintet/memory",
    "etcd/memory",
    "zookeeper/memory",
    "openraft/memory",
    "redis/memory",
    "redis-replica/memory",
];
/// ZooKeeper takes nothing longer by default.
const VALUE_MAX: usize = 1_000_000;

fn spec(text: &str) -> Result<Spec, String> {
    Spec::parse(text).map_err(|error| error.to_string())
}

fn value_size(text: &str) -> Result<usize, String> {
    match units::length(text)? {
        size if size <= VALUE_MAX => Ok(size),
        _ => Err(format!("at most {VALUE_MAX}")),
    }
}

impl Compare {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let plan = self.plan()?;
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        eprintln!(
            "{} systems, {} loads, {} rounds: about {}",
            plan.systems.len(),
            plan.cells.len(),
            plan.rounds,
            output::uptime(plan.duration().as_secs())
        );
        let bar = output::bar(1, "[{bar:30}] {pos}/{len} {msg}, {eta} left");
        let found = compare(&plan, |step| {
            bar.set_length(step.all as u64);
            bar.set_position(step.done as u64);
            bar.set_message(step.now.to_owned());
            stops.try_recv().is_err()
        });
        bar.finish_and_clear();
        let found = found?;
        if let Some(directory) = &self.out {
            fs::create_dir_all(directory)?;
            let text = serde_json::to_string_pretty(&found).map_err(anyhow::Error::from)?;
            fs::write(directory.join("results.json"), text + "\n")?;
            fs::write(directory.join("results.csv"), csv(&found))?;
            let words: Vec<String> = std::env::args().skip(1).collect();
            let command = format!("quintet {}", words.join(" "));
            let page = html(&found, &command, &commit());
            fs::write(directory.join("report.html"), page)?;
        }
        match self.output {
            Format::Json => output::print_json(&found)?,
            Format::Table => show(&found)?,
        }
        if !found.is_complete {
            return Err(
                Failure::new(Exit::Failed, "stopped before all was measured").help(
                    match self.out {
                        Some(_) => "the same command continues from here",
                        None => "with --out DIR the same command would continue from here",
                    },
                ),
            );
        }
        Ok(())
    }

    fn plan(&self) -> Outcome<Plan> {
        let mut systems = self.systems.clone();
        if systems.is_empty() {
            for name in ALL {
                systems.push(Spec::parse(name)?);
            }
        }
        for (index, spec) in systems.iter().enumerate() {
            if systems[..index].contains(spec) {
                return Err(Failure::usage(format!("{} is named twice", spec.name())));
            }
        }
        let clients: &[u32] = match (self.clients.as_slice(), self.quick) {
            ([], true) => &[64],
            ([], false) => &[64, 256],
            (named, _) => named,
        };
        let mut cells = Vec::new();
        for read_ratio in &self.reads {
            for clients in clients {
                cells.push(Cell {
                    clients: *clients as usize,
                    read_ratio: *read_ratio,
                });
            }
        }
        let or =
            |full: f64, quick: f64| Duration::from_secs_f64(if self.quick { quick } else { full });
        Ok(Plan {
            systems,
            cells,
            value_size: self.value_size,
            keys: self.keys,
            rounds: self.rounds.unwrap_or(if self.quick { 3 } else { 5 }) as usize,
            warmup: self.warmup.unwrap_or_else(|| or(0.7, 0.3)),
            measured: self.seconds.unwrap_or_else(|| or(2.5, 1.0)),
            threads: self.threads as usize,
            etcd_sharing: self.etcd_sharing as usize,
            prewarm: or(4.0, 2.0),
            members: self.members,
            at_all: self.at == At::All,
            disk: self.dir.clone(),
            memory: self.memory_dir.clone(),
            base_port: self.base_port,
            seed: self.seed,
            quick: self.quick,
            installed: Installed {
                quintet: programs::find(programs::QUINTET)?,
                etcd: self.etcd.clone(),
                java: self.java.clone(),
                zookeeper: self.zookeeper.clone(),
                redis: self.redis.clone(),
                openraft: self.openraft.clone(),
            },
            out: self.out.clone(),
        })
    }
}

fn show(found: &Comparison) -> Outcome {
    let machine = &found.machine;
    let mut text = format!(
        "{}, {} cores, {} GiB, Linux {}\n{} B values, {} keys; {} rounds of {} s after {} s{}\n\n",
        machine.processor,
        machine.cores,
        machine.memory >> 30,
        machine.kernel,
        found.value_size,
        grouped(found.keys),
        found.rounds,
        found.seconds,
        found.warmup_seconds,
        if found.quick { " (a quick look)" } else { "" },
    );
    for one in &found.systems {
        text.push_str(&format!("{}: {}\n", one.system, one.description));
    }
    text.push('\n');
    output::print(&text)?;
    let mut table = output::table(&HEADER);
    for line in &found.lines {
        let cells = row(found, line).into_iter().enumerate();
        table.add_row(cells.map(|(column, text)| match column {
            0 | 1 | 12 => output::Cell::new(text),
            _ => output::number(text),
        }));
    }
    output::print_table(table)
}
