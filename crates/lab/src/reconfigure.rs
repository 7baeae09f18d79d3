//! How long clients wait when a running cluster changes: its protocol, and its members.
//!
//! ```text
//!   clients, closed loops ──► 3 replicas on loopback
//!     a ──switch──► b ──switch──► …   a tour through all ordered pairs, each protocol's own options
//!     │ calm │ asked … done │ calm │          changed where both are one; + join, − remove
//!     p99 of commits │ pause: the longest request that overlaps, per client
//! ```

use crate::{
    cluster::{Cluster, ClusterPlan},
    figures::median,
};
use quintet_cli::{Failure, Outcome, http, protocols};
use quintet_replica::Durability;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const ANSWER: Duration = Duration::from_secs(70);
const KEYS: u64 = 10_000;
const LOOK: Duration = Duration::from_millis(20);

/// The measurement that is asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The `quintet` program.
    pub program: PathBuf,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// Which protocols; all ordered pairs of them.
    pub protocols: Vec<String>,
    /// How often.
    pub rounds: usize,
    /// Clients; they take turns at the replicas.
    pub clients: usize,
    /// Bytes per value.
    pub value_size: usize,
    /// Without a change, before each and after the last.
    pub calm: Duration,
    /// Whether members are added and removed, too.
    pub members: bool,
    /// Where the data lies.
    pub parent: PathBuf,
    /// The first port.
    pub base_port: u16,
}

/// One kind of change as clients saw it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `disk` or `memory`.
    pub durability: &'static str,
    /// `switch`, `add` or `remove`.
    pub change: &'static str,
    /// The protocol before it.
    pub from: String,
    /// And after it.
    pub to: String,
    /// How often it was made.
    pub changes: usize,
    /// From the request to the answer, at most, in milliseconds.
    pub took_max_ms: f64,
    /// The median of the clients' pauses.
    pub pause_median_ms: f64,
    /// The longest.
    pub pause_max_ms: f64,
    /// The 99th percentile of commits before it.
    pub commit_p99_ms: f64,
    /// Commands that failed.
    pub errors: usize,
}

impl Row {
    /// How many commits (their p99) the median pause lasts.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        match self.commit_p99_ms > 0.0 {
            true => self.pause_median_ms / self.commit_p99_ms,
            false => f64::INFINITY,
        }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
struct Request {
    began: Instant,
    ended: Instant,
}

#[derive(Debug, Default)]
struct Seen {
    requests: Vec<Request>,
    errors: usize,
}

/// Clients that write until this is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    seen: Vec<Arc<Mutex<Seen>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(addresses: &[SocketAddr], clients: usize, value_size: usize) -> Outcome<Self> {
        let mut load = Self {
            stop: Arc::default(),
            seen: Vec::new(),
            threads: Vec::new(),
        };
        for client in 0..clients {
            let address = addresses[client % addresses.len()];
            let seen = Arc::<Mutex<Seen>>::default();
            let (stop, own) = (Arc::clone(&load.stop), Arc::clone(&seen));
            load.seen.push(seen);
            let write = move || write(address, client as u64, value_size, &stop, &own);
            let name = format!("client {client}");
            load.threads
                .push(thread::Builder::new().name(name).spawn(write)?);
        }
        Ok(load)
    }

    /// Takes what each client has seen since this was last asked.
    fn take(&self) -> Vec<Seen> {
        let taken = self.seen.iter().map(|seen| {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *seen)
        });
        taken.collect()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Its requests were read already.
            let _ = thread.join();
        }
    }
}

fn write(address: SocketAddr, client: u64, size: usize, stop: &AtomicBool, seen: &Mutex<Seen>) {
    let value = "x".repeat(size);
    let mut open: Option<BufReader<TcpStream>> = None;
    let mut number = client;
    while !stop.load(Ordering::Relaxed) {
        let Some(stream) = &mut open else {
            open = connect(address);
            if open.is_none() {
                thread::sleep(LOOK);
            }
            continue;
        };
        number = number.wrapping_add(7919);
        let key = format!("k{}", number % KEYS);
        let length = key.len();
        let command = format!("*3\r\n$3\r\nSET\r\n${length}\r\n{key}\r\n${size}\r\n{value}\r\n");
        let began = Instant::now();
        let mut line = String::new();
        let asked = stream.get_mut().write_all(command.as_bytes());
        let answered = asked.and_then(|()| stream.read_line(&mut line));
        let ended = Instant::now();
        let fine = answered.is_ok() && line == "+OK\r\n";
        if answered.is_err() || line.is_empty() {
            open = None;
        }
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.errors += usize::from(!fine);
        seen.requests.push(Request { began, ended });
    }
}

fn connect(address: SocketAddr) -> Option<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    Some(BufReader::new(stream))
}

/// One change as clients saw it.
#[derive(Debug, Default)]
struct Change {
    took: Duration,
    /// Per client.
    pauses: Vec<f64>,
    commit_p99_ms: f64,
    errors: usize,
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The value below which 99 of 100 lie; 0 of none.
fn p99(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * 99).div_ceil(100);
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The commits before a change, and the pauses during it.
fn observed(seen: &[Seen], asked: Instant, done: Instant, calm: Duration) -> Change {
    let (mut commits, mut pauses) = (Vec::new(), Vec::new());
    for client in seen {
        let mut pause = Duration::ZERO;
        for request in &client.requests {
            let took = request.ended.duration_since(request.began);
            if request.ended <= asked {
                commits.push(milliseconds(took));
            } else if request.began <= done + calm / 2 {
                pause = pause.max(took);
            }
        }
        pauses.push(milliseconds(pause));
    }
    Change {
        took: done.duration_since(asked),
        pauses,
        commit_p99_ms: p99(&mut commits),
        errors: seen.iter().map(|client| client.errors).sum(),
    }
}

/// A tour along every edge of the complete directed graph of `count` nodes with loops, as the nodes
/// that are come to after the first, which is 0.
fn tour(count: usize) -> Vec<usize> {
    // Hierholzer's algorithm: each node's edges are used up in turn.
    let mut next = vec![0; count];
    let (mut path, mut found) = (vec![0], Vec::new());
    while let Some(&node) = path.last() {
        match next[node] < count {
            true => {
                path.push(next[node]);
                next[node] += 1;
            }
            false => found.extend(path.pop()),
        }
    }
    found.reverse();
    found.split_off(1)
}

/// Measures; `told` is called after each change with how many are done and how many there are.
///
/// # Errors
/// When the cluster cannot be started, or refuses a change.
pub fn measure(asked: &Asked, mut told: impl FnMut(usize, usize)) -> Outcome<Vec<Row>> {
    let mut cluster = Cluster::start(ClusterPlan {
        program: asked.program.clone(),
        protocol: asked.protocols[0].clone(),
        options: Vec::new(),
        settings: Vec::new(),
        replicas: 3,
        durability: asked.durability,
        links: None,
        began: Duration::ZERO,
        parent: asked.parent.clone(),
        base_port: asked.base_port,
        namespaces: None,
    })?;
    cluster.settle()?;
    let tour = tour(asked.protocols.len());
    let per_member = if asked.members { 2 } else { 0 };
    let all = asked.rounds * (tour.len() + per_member * asked.protocols.len());
    let mut run = Run {
        load: Load::start(&cluster.redis(), asked.clients, asked.value_size)?,
        asked,
        changes: Vec::new(),
    };
    run.calm();
    let mut at = 0;
    for _ in 0..asked.rounds {
        for next in &tour {
            let (from, to) = (&asked.protocols[at], &asked.protocols[*next]);
            let edge = ("switch", from.as_str(), to.as_str());
            match at == *next {
                true => run.change(edge, || other_option(&cluster, to))?,
                false => {
                    let body = json!({"protocol": to, "options": {}});
                    run.change(edge, || post(&cluster, &body))?;
                }
            }
            told(run.changes.len(), all);
            if asked.members && at == *next {
                run.change(("add", to, to), || cluster.join())?;
                told(run.changes.len(), all);
                let body = json!({"remove": 3});
                run.change(("remove", to, to), || post(&cluster, &body))?;
                cluster.left();
                told(run.changes.len(), all);
            }
            at = *next;
        }
    }
    Ok(run.rows())
}

struct Run<'a> {
    asked: &'a Asked,
    load: Load,
    changes: Vec<((&'static str, String, String), Change)>,
}

impl Run<'_> {
    fn calm(&self) {
        thread::sleep(self.asked.calm);
    }

    fn change(
        &mut self,
        (change, from, to): (&'static str, &str, &str),
        make: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let name = || format!("{change} {from} -> {to}");
        let began = Instant::now();
        make().map_err(|failure| Failure::failed(format!("{}: {failure}", name())))?;
        let done = Instant::now();
        self.calm();
        // Half of the calm belongs to what comes next.
        let seen = self.load.take();
        self.changes.push((
            (change, from.to_owned(), to.to_owned()),
            observed(&seen, began, done, self.asked.calm),
        ));
        self.calm();
        Ok(())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (edge, _) in &self.changes {
            let (change, from, to) = edge;
            let known = |row: &Row| (row.change, &row.from, &row.to) == (*change, from, to);
            if rows.iter().any(known) {
                continue;
            }
            let same = self.changes.iter().filter(|(other, _)| other == edge);
            let same: Vec<&Change> = same.map(|(_, change)| change).collect();
            let pauses: Vec<f64> = same.iter().flat_map(|it| it.pauses.clone()).collect();
            let p99s: Vec<f64> = same.iter().map(|it| it.commit_p99_ms).collect();
            let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
            let took: Vec<f64> = same.iter().map(|it| milliseconds(it.took)).collect();
            rows.push(Row {
                durability: self.asked.durability.name(),
                change,
                from: from.clone(),
                to: to.clone(),
                changes: same.len(),
                took_max_ms: most(&took),
                pause_median_ms: median(&pauses),
                pause_max_ms: most(&pauses),
                commit_p99_ms: median(&p99s),
                errors: same.iter().map(|it| it.errors).sum(),
            });
        }
        rows
    }
}

fn post(cluster: &Cluster, body: &Value) -> Outcome {
    let address = cluster.admin(0);
    let answer = http::request_with("POST", &address, "/change", &body.to_string(), ANSWER)?;
    match answer.code {
        200 => Ok(()),
        _ => Err(Failure::failed(
            String::from_utf8_lossy(&answer.body).trim().to_owned(),
        )),
    }
}

/// Gives an option of the present protocol, whichever takes one, the next number.
fn other_option(cluster: &Cluster, protocol: &str) -> Outcome {
    let answer = http::get(&cluster.admin(0), "/change", ANSWER)?;
    let report: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let entry = protocols::find(protocol)?;
    let options = report["options"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let options: Vec<(String, String)> = options
        .map(|(name, value)| (name.clone(), text(value)))
        .collect();
    // A millisecond more of some time-out changes nothing else.
    let (times, others): (Vec<_>, Vec<_>) = (options.iter()).partition(|it| it.0.ends_with("_ms"));
    for (name, value) in times.into_iter().chain(others) {
        let Ok(number) = value.parse::<u64>() else {
            continue;
        };
        let mut all = options.clone();
        all.push((name.clone(), (number + 1).to_string()));
        if (entry.check)(&all).is_ok() {
            let next = (number + 1).to_string();
            return post(cluster, &json!({"options": {name: next}}));
        }
    }
    Err(Failure::failed("none of its options takes another number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn tour_takes_every_ordered_pair_once() {
        for count in 1..8 {
            let (mut at, mut seen) = (0, BTreeSet::new());
            for next in tour(count) {
                assert!(seen.insert((at, next)), "{count}: {at} -> {next} twice");
                at = next;
            }
            assert_eq!(seen.len(), count * count);
        }
    }

    #[test]
    fn pause_is_the_longest_request_that_overlaps_the_change() {
        let began = Instant::now();
        let at = |ms: u64| began + Duration::from_millis(ms);
        let request = |from: u64, to: u64| Request {
            began: at(from),
            ended: at(to),
        };
        let client = |requests: &[(u64, u64)]| Seen {
            requests: requests.iter().map(|it| request(it.0, it.1)).collect(),
            errors: 1,
        };
        let seen = [
            client(&[(0, 2), (2, 50), (50, 99), (99, 130), (130, 131), (900, 999)]),
            client(&[(0, 100), (100, 102), (102, 140)]),
        ];
        let change = observed(&seen, at(100), at(120), Duration::from_millis(200));
        assert_eq!(change.pauses, [31.0, 38.0]);
        assert_eq!(change.commit_p99_ms, 100.0);
        assert_eq!(change.took, Duration::from_millis(20));
        assert_eq!(change.errors, 2);
    }
}
