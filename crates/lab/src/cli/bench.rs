//! `quintet bench`: a load generator over the Redis protocol.
//!
//! ```text
//!   check ──► fill the keys ──► warm up ──► measure ──► wait for stragglers ──► report
//! ```

use super::reconfigure::Reconfigure;
use clap::{Args, Subcommand, ValueEnum};
use quintet_cli::{
    Exit, Failure, Outcome, http,
    output::{self, Format, grouped},
    units,
};
use quintet_lab::{
    figures::cpu_of_this_process,
    load::{
        self, Keys, Language, Latency, Measured, Mix, Orders, Summary, Target, Worker, Workload,
        resp::{self, Scan, Url},
    },
};
use quintet_replica::Level;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const TIMEOUT: Duration = Duration::from_secs(5);
const FILL_TIMEOUT: Duration = Duration::from_secs(15);

/// How keys are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Distribution {
    /// All keys alike.
    #[default]
    Uniform,
    /// Few keys often, most keys seldom.
    Zipf,
}

impl From<Distribution> for load::Distribution {
    fn from(distribution: Distribution) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform,
            Distribution::Zipf => Self::Zipf,
        }
    }
}

/// Measure a store's throughput and latency
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet bench                                       50 clients write to the demo's first replica
  quintet bench --clients 50 --pipeline 16 --read-ratio 0.9
  quintet bench --rate 20000 --seconds 30             open loop: 20,000 requests/s whatever happens
  quintet bench redis://127.0.0.1:7001 redis://127.0.0.1:7002 -o json
  quintet bench reconfigure                           how long clients wait when a cluster changes

In a closed loop a client waits for its replies before it asks again; in an open loop (--rate)
requests are due at fixed times, and a request's latency counts from when it was due, so that a
pause of the server is seen by every request that fell into it. Pipelined requests are sent together
and each is timed on its own. Any Redis server can be measured.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    #[command(subcommand)]
    other: Option<Other>,

    /// Where to connect: redis://[:password@]host:port; clients take turns
    #[arg(value_name = "URL", default_value = "redis://127.0.0.1:7001", value_parser = Url::parse)]
    urls: Vec<Url>,

    /// Connections
    #[arg(short, long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,

    /// Requests in progress per connection
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pipeline: u32,

    /// Bytes per value
    #[arg(short = 'd', long, value_name = "BYTES", default_value = "128", value_parser = value_size)]
    value_size: usize,

    /// Which part of the requests are reads, 0 to 1
    #[arg(short, long, value_name = "RATIO", default_value = "0", value_parser = ratio)]
    read_ratio: f64,

    /// How many keys
    #[arg(short, long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,

    /// How keys are drawn
    #[arg(long, value_enum, default_value_t)]
    distribution: Distribution,

    /// Requests per second, all clients together: an open loop [default: a closed loop]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,

    /// How long to measure
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    seconds: Duration,

    /// How long to run before measuring
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    warmup: Duration,

    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,

    /// Do not write every key once before reads are measured
    #[arg(long)]
    no_fill: bool,

    /// Draws the keys; the same seed draws the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn value_size(text: &str) -> Result<usize, String> {
    match units::length(text)? {
        size if size <= 512 << 20 => Ok(size),
        _ => Err("at most 512MiB".to_owned()),
    }
}

/// Reads a part of the whole.
///
/// # Errors
/// With what is accepted.
pub fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text
        .parse()
        .ok()
        .filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| format!("'{text}' is not a number from 0 to 1"))
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').parse().ok();
    let seconds = seconds.filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("'{text}' is not a number of seconds up to 86400"))
}

/// Reads a number of seconds above 0.
///
/// # Errors
/// With what is accepted.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text)? {
        none if none.is_zero() => Err("it must be above 0".to_owned()),
        some => Ok(some),
    }
}

#[derive(Debug, Subcommand)]
enum Other {
    Reconfigure(Reconfigure),
}

#[derive(Debug, Serialize)]
struct Report {
    urls: Vec<String>,
    clients: u32,
    pipeline: u32,
    value_size: usize,
    read_ratio: f64,
    keys: u64,
    distribution: &'static str,
    #[serde(rename = "loop")]
    kind: &'static str,
    rate: Option<u32>,
    seconds: f64,
    warmup_seconds: f64,
    threads: u32,
    requests: u64,
    requests_per_second: f64,
    latency_microseconds: Latency,
    pause_max_milliseconds: f64,
    errors: BTreeMap<String, u64>,
    unanswered: u64,
    unsent: u64,
    reconnects: u64,
    /// Cores that the load generator itself used.
    own_cpu: Option<f64>,
}

impl Bench {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        if let Some(Other::Reconfigure(command)) = self.other {
            return command.run();
        }
        if self.rate.is_some_and(|rate| rate < self.threads) {
            return Err(Failure::usage("--rate: must be at least 1 per thread"));
        }
        let mut targets = Vec::new();
        for url in &self.urls {
            targets.push(Target {
                address: check(url)?,
                language: Language::Resp {
                    password: url.password.clone(),
                    wait: None,
                    reads: Level::Linearizable,
                },
            });
        }
        let keys = Keys::new(self.distribution.into(), self.keys);
        let mix = Mix::reads(self.read_ratio);
        let workload = |seed| Workload::new(keys.clone(), mix, self.value_size, seed);
        if self.read_ratio > 0.0 && !self.no_fill {
            self.fill(&targets[0])?;
        }
        let start = Instant::now() + Duration::from_millis(20);
        let done = Arc::new(AtomicU64::new(0));
        let mut workers = Vec::new();
        let threads = self.threads.min(self.clients);
        for thread in 0..threads {
            let share = self.clients / threads + u32::from(thread < self.clients % threads);
            let mut targets = targets.clone();
            targets.rotate_left(thread as usize % self.urls.len());
            let orders = Orders {
                targets,
                clients: share as usize,
                pipeline: self.pipeline as usize,
                sliding: false,
                random_arrivals: false,
                rate: self.rate.map(|rate| f64::from(rate) / f64::from(threads)),
                start,
                warmup: self.warmup,
                measured: self.seconds,
            };
            let seed = self
                .seed
                .wrapping_mul(1_000)
                .wrapping_add(u64::from(thread));
            let worker = Worker::new(orders, workload(seed), Arc::clone(&done))?;
            let builder = thread::Builder::new().name(format!("load-{thread}"));
            workers.push(builder.spawn(move || worker.run())?);
        }
        let own_cpu = self.show_progress(start, &done);
        let mut measured = Vec::new();
        for worker in workers {
            let result = worker.join();
            measured.push(result.map_err(|_| Failure::new(Exit::Failed, "a worker failed"))??);
        }
        let report = self.report(&measured, own_cpu)?;
        match self.output {
            Format::Json => output::print_json(&report)?,
            Format::Table => output::print(&report.shown())?,
        }
        report.verdict()
    }

    /// Writes every key once.
    fn fill(&self, target: &Target) -> Outcome {
        let bar = output::bar(self.keys, "filling   [{bar:40}] {pos}/{len} keys");
        let told = |done| bar.set_position(done);
        let filled = load::fill(target, self.keys, self.value_size, FILL_TIMEOUT, told);
        bar.finish_and_clear();
        let authority = &self.urls[0].authority;
        filled.map_err(|error| {
            let exit = match error.kind() {
                std::io::ErrorKind::Other if error.to_string().contains("CLUSTERDOWN") => {
                    Exit::NoQuorum
                }
                std::io::ErrorKind::Other => Exit::Failed,
                _ => Exit::Unreachable,
            };
            Failure::new(exit, format!("{authority}: {error}"))
        })
    }

    /// Shows how it goes, and measures this process's own use of CPU over the measured time.
    fn show_progress(&self, start: Instant, done: &AtomicU64) -> Option<f64> {
        let begins = start + self.warmup;
        let ends = begins + self.seconds;
        let whole = u64::try_from((self.warmup + self.seconds).as_millis()).unwrap_or(u64::MAX);
        let bar = output::bar(whole, "{prefix:9} [{bar:40}] {msg}");
        let mut seen = (start, 0);
        let mut cpu_before = None;
        loop {
            let now = Instant::now();
            if now >= begins && cpu_before.is_none() {
                cpu_before = cpu_of_this_process().map(|cpu| (now, cpu));
            }
            if now >= ends {
                bar.finish_and_clear();
                let (since, before) = cpu_before?;
                let spent = cpu_of_this_process()?.saturating_sub(before);
                return Some(spent.as_secs_f64() / now.duration_since(since).as_secs_f64());
            }
            if now.saturating_duration_since(seen.0) >= Duration::from_millis(200) {
                let total = done.load(Ordering::Relaxed);
                let rate = (total - seen.1) as f64 / now.duration_since(seen.0).as_secs_f64();
                seen = (now, total);
                bar.set_prefix(if now < begins { "warming" } else { "measuring" });
                bar.set_message(format!("{} requests/s", grouped(rate as u64)));
                let past = now.saturating_duration_since(start).as_millis();
                bar.set_position(u64::try_from(past).unwrap_or(whole));
            }
            let next = if now < begins { begins } else { ends };
            thread::sleep(
                next.saturating_duration_since(now)
                    .min(Duration::from_millis(200)),
            );
        }
    }

    fn report(&self, measured: &[Measured], own_cpu: Option<f64>) -> Outcome<Report> {
        let found = Summary::of(measured, self.seconds)?;
        Ok(Report {
            urls: self
                .urls
                .iter()
                .map(|url| format!("redis://{}", url.authority))
                .collect(),
            clients: self.clients,
            pipeline: self.pipeline,
            value_size: self.value_size,
            read_ratio: self.read_ratio,
            keys: self.keys,
            distribution: match self.distribution {
                Distribution::Uniform => "uniform",
                Distribution::Zipf => "zipf",
            },
            kind: if self.rate.is_some() {
                "open"
            } else {
                "closed"
            },
            rate: self.rate,
            seconds: self.seconds.as_secs_f64(),
            warmup_seconds: self.warmup.as_secs_f64(),
            threads: self.threads,
            requests: found.answered,
            requests_per_second: found.throughput,
            latency_microseconds: found.latency,
            pause_max_milliseconds: found.pause_max_milliseconds,
            errors: found.errors,
            unanswered: found.unanswered,
            unsent: found.unsent,
            reconnects: measured.iter().map(|one| one.reconnects).sum(),
            own_cpu,
        })
    }
}

impl Report {
    fn shown(&self) -> String {
        let milliseconds = |microseconds: f64| format!("{:.3} ms", microseconds / 1e3);
        let mix = match self.read_ratio {
            0.0 => "writes".to_owned(),
            1.0 => "reads".to_owned(),
            ratio => format!("{:.0}% reads", ratio * 100.0),
        };
        let pace = match self.rate {
            Some(rate) => format!("open loop at {}/s", grouped(rate.into())),
            None => "closed loop".to_owned(),
        };
        let latency = &self.latency_microseconds;
        let mut text = format!(
            "{}\n{} clients, pipeline {}, {} B values, {mix}, {} keys {}, {pace}\n\n\
             throughput  {} requests/s ({} in {} s)\n\
             latency     p50 {}, p90 {}, p99 {}, p99.9 {}, max {}\n\
             pause       {:.0} ms at most without an answer\n",
            self.urls.join(" "),
            self.clients,
            self.pipeline,
            self.value_size,
            grouped(self.keys),
            self.distribution,
            grouped(self.requests_per_second as u64),
            grouped(self.requests),
            self.seconds,
            milliseconds(latency.p50),
            milliseconds(latency.p90),
            milliseconds(latency.p99),
            milliseconds(latency.p999),
            milliseconds(latency.max),
            self.pause_max_milliseconds,
        );
        if let Some(cpu) = self.own_cpu {
            text.push_str(&format!(
                "own CPU     {cpu:.2} cores used by this load generator\n"
            ));
        }
        let mut errors: Vec<_> = self
            .errors
            .iter()
            .map(|(word, count)| format!("{} {word}", grouped(*count)))
            .collect();
        if self.unanswered > 0 {
            errors.push(format!("{} unanswered", grouped(self.unanswered)));
        }
        if self.unsent > 0 {
            errors.push(format!(
                "{} never sent: the rate is too high",
                grouped(self.unsent)
            ));
        }
        if !errors.is_empty() {
            text.push_str(&format!("errors      {}\n", errors.join(", ")));
        }
        text
    }

    /// Whether what was measured means anything.
    fn verdict(&self) -> Outcome {
        let count = |word: &str| self.errors.get(word).copied().unwrap_or(0);
        let (down, lost) = (count("CLUSTERDOWN"), count("connection lost"));
        let failed = self.errors.values().sum::<u64>() + self.unanswered;
        match (failed, self.requests) {
            (0, 0) => Err(Failure::new(Exit::Failed, "nothing was answered")),
            (0, _) => Ok(()),
            _ if down > 0 && down + lost + self.unanswered == failed => Err(Failure::new(
                Exit::NoQuorum,
                "the store had no quorum for a while",
            )),
            (_, 0) if lost > 0 => Err(Failure::new(Exit::Unreachable, "all connections were lost")),
            _ => Err(Failure::new(
                Exit::Failed,
                format!("{failed} requests failed"),
            )),
        }
    }
}

/// A connection that asks one thing at a time.
struct Line {
    stream: TcpStream,
    authority: String,
    input: Vec<u8>,
}

impl Line {
    fn open(url: &Url, address: SocketAddr) -> Outcome<Self> {
        let unreachable = |error: std::io::Error| {
            Failure::new(
                Exit::Unreachable,
                format!("cannot connect to {}: {error}", url.authority),
            )
            .help("is it running? 'quintet demo' starts a cluster on this machine")
        };
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(unreachable)?;
        // Only speed depends on it.
        let _ = stream.set_nodelay(true);
        let mut line = Self {
            stream,
            authority: url.authority.clone(),
            input: Vec::new(),
        };
        if let Some(password) = &url.password {
            line.ask(&[b"AUTH", password.as_bytes()], TIMEOUT)?;
        }
        Ok(line)
    }

    fn ask(&mut self, words: &[&[u8]], timeout: Duration) -> Outcome {
        let mut bytes = Vec::new();
        resp::encode(&mut bytes, words);
        self.stream
            .write_all(&bytes)
            .map_err(|error| self.lost(&error.to_string()))?;
        self.reply(timeout)
    }

    fn lost(&self, reason: &str) -> Failure {
        Failure::new(Exit::Unreachable, format!("{}: {reason}", self.authority))
    }

    /// Waits for one reply; an error reply is a failure.
    fn reply(&mut self, timeout: Duration) -> Outcome {
        let deadline = Instant::now() + timeout;
        loop {
            match resp::scan(&self.input) {
                Scan::Nonsense => return Err(self.lost("this is no Redis server")),
                Scan::Whole(length, reply) => {
                    let error = match reply {
                        resp::Reply::Value => None,
                        resp::Reply::Error(text) => {
                            Some(String::from_utf8_lossy(text).into_owned())
                        }
                    };
                    self.input.drain(..length);
                    let Some(error) = error else { return Ok(()) };
                    let exit = match error.split(' ').next() {
                        Some("CLUSTERDOWN") => Exit::NoQuorum,
                        _ => Exit::Failed,
                    };
                    let failure =
                        Failure::new(exit, format!("{} answered: {error}", self.authority));
                    return Err(match error.starts_with("NOAUTH") {
                        true => failure.help("give the password: redis://:password@host:port"),
                        false => failure,
                    });
                }
                Scan::Partial => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.lost("no answer in time"));
            }
            let mut bytes = [0; 16 << 10];
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(self.lost("the server closed the connection")),
                Ok(read) => self.input.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(self.lost(&error.to_string())),
            }
        }
    }
}

/// Whether a server answers at `url` as Redis would, and at which address.
fn check(url: &Url) -> Outcome<SocketAddr> {
    let stream = http::connect(&url.authority, TIMEOUT);
    let address = stream
        .and_then(|stream| stream.peer_addr())
        .map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                format!("cannot connect to {}: {error}", url.authority),
            )
            .help("is it running? 'quintet demo' starts a cluster on this machine")
        })?;
    Line::open(url, address)?.ask(&[b"PING"], TIMEOUT)?;
    Ok(address)
}
