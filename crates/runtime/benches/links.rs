//! The throughput of links between replicas on one host, compared with that of the machine.
//!
//! ```text
//!   bench ─┬─ n processes that copy memory ─────────────────► messages/s = copies/s / (n - 1)
//!          ├─ 1 process that writes to n - 1 over TCP ──────► messages/s
//!          └─ n replicas, one of which submits ─────────────► messages/s, latency
//! ```
//!
//! One after the other, several times; each figure of replicas is divided by those of the machine
//! before and after it. `cargo bench -p quintet-runtime --bench links -- [WORDS]`: only rows whose
//! names contain one of the words.

use quintet_replica::{ClusterId, Durability, Level, Nothing, Payload, ReplicaId};
use quintet_runtime::{Config, Handle, Member, Replica, Running, Transport};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LARGE: usize = 1 << 20;
/// This many large messages are eight times the largest cache.
const POOL: usize = 256;
const SMALL: usize = 64;
const SMALL_COUNT: usize = 20_000;
const REPETITIONS: usize = 3;
/// All messages of a row are sent so often, and once before that.
const ROUNDS: usize = 8;
const MACHINE: Duration = Duration::from_millis(500);
const TIMEOUT: Duration = Duration::from_secs(60);

/// A row: replicas that one of them submits to.
struct Row {
    name: &'static str,
    transport: &'static str,
    members: usize,
    /// Bytes of a message; how many; how many are in flight.
    load: (usize, usize, usize),
    spin: Duration,
    options: &'static [&'static str],
}

const BRIEF: Duration = Duration::from_micros(100);
const LONG: Duration = Duration::from_secs(10);
/// Whole messages, each of its own.
const WHOLE: &[&str] = &["rdmc_bytes_min=67108864"];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { name: "large-memory-2", transport: "shared-memory", members: 2, load: (LARGE, POOL, 16), spin: BRIEF, options: WHOLE },
    Row { name: "large-memory-2-spin", transport: "shared-memory", members: 2, load: (LARGE, POOL, 16), spin: LONG, options: WHOLE },
    Row { name: "large-memory-2-single", transport: "shared-memory", members: 2, load: (LARGE, POOL, 1), spin: LONG, options: WHOLE },
    Row { name: "large-memory-3", transport: "shared-memory", members: 3, load: (LARGE, POOL, 16), spin: BRIEF, options: WHOLE },
    Row { name: "blocks-memory-3", transport: "shared-memory", members: 3, load: (LARGE, POOL, 16), spin: BRIEF, options: &[] },
    Row { name: "large-tcp-2", transport: "tcp", members: 2, load: (LARGE, POOL, 16), spin: BRIEF, options: WHOLE },
    Row { name: "large-tcp-3", transport: "tcp", members: 3, load: (LARGE, POOL, 16), spin: BRIEF, options: WHOLE },
    Row { name: "small-memory-2", transport: "shared-memory", members: 2, load: (SMALL, SMALL_COUNT, 1), spin: LONG, options: &[] },
    Row { name: "small-tcp-2", transport: "tcp", members: 2, load: (SMALL, SMALL_COUNT, 1), spin: LONG, options: &[] },
    Row { name: "small-memory-2-brief", transport: "shared-memory", members: 2, load: (SMALL, SMALL_COUNT, 1), spin: BRIEF, options: &[] },
    Row { name: "small-tcp-2-brief", transport: "tcp", members: 2, load: (SMALL, SMALL_COUNT, 1), spin: BRIEF, options: &[] },
];

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["copies"] => copies(),
        ["source", receivers] => source(receivers.parse().expect("a number")),
        ["sink", port] => sink(port.parse().expect("a port")),
        ["replica", row, id, ports, directory] => {
            let row = ROWS.iter().find(|it| it.name == row).expect("a row");
            replica(row, id.parse().expect("an id"), ports, directory);
        }
        _ => bench(&arguments),
    }
}

fn bench(words: &[String]) {
    println!("a message to all members, medians of {REPETITIONS} interleaved runs");
    for row in ROWS {
        if !words.is_empty() && !words.iter().any(|word| row.name.contains(word.as_str())) {
            continue;
        }
        let large = row.load.0 == LARGE;
        let machine = |members| match (large, row.transport) {
            (false, _) => 0.0,
            (true, "tcp") => tcp(members),
            (true, _) => memory(members),
        };
        let mut found: Vec<[f64; 4]> = (0..REPETITIONS)
            .map(|_| {
                let before = machine(row.members);
                let [rate, half, most] = replicas(row);
                let possible = (before + machine(row.members)) / 2.0;
                [rate, rate / possible, half, most]
            })
            .collect();
        found.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [rate, share, half, most] = found[REPETITIONS / 2];
        let of = if large {
            format!("{:5.1} % of the machine's", share * 100.0)
        } else {
            String::new()
        };
        let name = row.name;
        println!("{name:22} {rate:8.0} /s {of:26} p50 {half:7.1} us, p99 {most:7.1} us");
    }
}

/// One of the bench's processes, ended when it is dropped.
struct Process(Child, BufReader<ChildStdout>);

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self(child, output)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("a line");
        line
    }

    fn go(&mut self) {
        self.0
            .stdin
            .as_mut()
            .expect("piped")
            .write_all(b"go\n")
            .expect("it listens");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("its own");
        self.0.wait().expect("ends");
    }
}

fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("told");
}

// --- what the machine could ----------------------------------------------------------------

/// Messages a second if all that is done is to copy each n - 1 times, by n processes.
fn memory(members: usize) -> f64 {
    let mut all: Vec<Process> = (0..members).map(|_| Process::start(&["copies"])).collect();
    all.iter_mut().for_each(|it| drop(it.line()));
    all.iter_mut().for_each(Process::go);
    let rates = all
        .iter_mut()
        .map(|it| it.line().trim().parse::<f64>().expect("a rate"));
    rates.sum::<f64>() / (members - 1) as f64
}

fn copies() {
    let from = vec![1u8; LARGE * POOL];
    let mut to = vec![2u8; LARGE * POOL];
    println!("ready");
    wait_for_go();
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < MACHINE {
        let place = count % POOL * LARGE..(count % POOL + 1) * LARGE;
        to[place.clone()].copy_from_slice(&from[place]);
        std::hint::black_box(&mut to);
        count += 1;
    }
    println!("{}", count as f64 / begun.elapsed().as_secs_f64());
}

/// Messages a second if all that is done is to write each to n - 1 sockets.
fn tcp(members: usize) -> f64 {
    let mut source = Process::start(&["source", &(members - 1).to_string()]);
    let port: u16 = source.line().trim().parse().expect("a port");
    let sinks: Vec<Process> = (1..members)
        .map(|_| Process::start(&["sink", &port.to_string()]))
        .collect();
    let rate = source.line().trim().parse().expect("a rate");
    drop(sinks);
    rate
}

fn source(receivers: usize) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    println!("{}", listener.local_addr().expect("bound").port());
    let pool = vec![1u8; LARGE * POOL];
    let mut sinks: Vec<TcpStream> = (0..receivers)
        .map(|_| listener.accept().expect("a sink").0)
        .collect();
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < MACHINE {
        for sink in &mut sinks {
            let at = count % POOL * LARGE;
            sink.write_all(&pool[at..at + LARGE]).expect("it reads");
        }
        count += 1;
    }
    println!("{}", count as f64 / begun.elapsed().as_secs_f64());
}

fn sink(port: u16) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the source");
    let mut buffer = vec![0; LARGE];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
}

// --- replicas ------------------------------------------------------------------------------

/// Messages a second, and the median and the 99th percentile of their latencies in microseconds.
fn replicas(row: &Row) -> [f64; 3] {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path().to_str().expect("plain");
    let free: Vec<TcpListener> = (0..row.members)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"))
        .collect();
    let ports: Vec<String> = (free.iter())
        .map(|it| it.local_addr().expect("bound").port().to_string())
        .collect();
    drop(free);
    let ports = ports.join(",");
    let start = |id: usize| Process::start(&["replica", row.name, &id.to_string(), &ports, root]);
    let mut all: Vec<Process> = (0..row.members).map(start).collect();
    let line = all[0].line();
    let mut figures = line
        .split_whitespace()
        .map(|it| it.parse().expect("a figure"));
    [(); 3].map(|()| figures.next().expect("three figures"))
}

fn replica(row: &Row, id: u16, ports: &str, root: &str) {
    let addresses: Vec<SocketAddr> = (ports.split(','))
        .map(|port| (Ipv4Addr::LOCALHOST, port.parse().expect("a port")).into())
        .collect();
    let members = addresses
        .iter()
        .map(|it| Member {
            peer: it.to_string(),
        })
        .collect();
    let data = format!("{root}/r{id}").into();
    let mut config = Config::new(ClusterId(77), ReplicaId(id), members, data);
    config.peer_listen = addresses[usize::from(id)];
    (config.redis_listen, config.admin_listen) = (None, None);
    config.durability = Durability::Memory;
    config.protocol = "derecho".to_owned();
    let options = row.options.iter().filter_map(|it| it.split_once('='));
    config.options = options
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    config.transport = row.transport.parse().expect("a transport");
    config.spin_max = row.spin;
    // No snapshot meanwhile.
    config.snapshot_bytes_min = 1 << 40;
    let running = Replica::start(config, Box::new(Nothing)).expect("starts");
    if id == 0 {
        submit(row, &running);
    }
    // Until the bench has ended it, or has ended.
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
}

fn submit(row: &Row, running: &Running) {
    let handle = running.handle();
    let begun = Instant::now();
    let linked = || {
        let peers = handle.status().peers;
        let memory = row.transport == Transport::SharedMemory.name();
        peers.len() + 1 == row.members
            && peers
                .iter()
                .all(|it| it.connected && (it.memory || !memory))
    };
    while !linked() || handle.submit(Level::Ordered, &[1; 64]).is_err() {
        assert!(
            begun.elapsed() < TIMEOUT,
            "never linked: {:?}",
            handle.status()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let (length, count, _) = row.load;
    let mut took = Duration::ZERO;
    let mut latencies = Vec::new();
    for round in 0..=ROUNDS {
        let pool = (0..count).map(|index| message(index as u8, length));
        let (sender, ended) = mpsc::channel();
        let load = Arc::new(Mutex::new(Load {
            pool: pool.collect(),
            latencies: Vec::with_capacity(count),
            count,
            ended: sender,
        }));
        let begun = Instant::now();
        for _ in 0..row.load.2 {
            next(&handle, &load);
        }
        ended.recv_timeout(TIMEOUT).expect("all are answered");
        if round > 0 {
            took += begun.elapsed();
            latencies.append(&mut load.lock().expect("no thread panics").latencies);
        }
    }
    latencies.sort();
    let at = |part: usize| latencies[latencies.len() * part / 100].as_secs_f64() * 1e6;
    let rate = latencies.len() as f64 / took.as_secs_f64();
    println!("{rate} {} {}", at(50), at(99));
}

/// A message as its sender writes it.
fn message(byte: u8, length: usize) -> Payload {
    let mut message = Payload::with_capacity(length);
    message.extend_from_slice(&vec![byte; length]);
    message
}

struct Load {
    pool: Vec<Payload>,
    latencies: Vec<Duration>,
    count: usize,
    ended: mpsc::Sender<()>,
}

/// Submits one message more; when it is answered, the next.
fn next(handle: &Handle, load: &Arc<Mutex<Load>>) {
    let Some(payload) = load.lock().expect("no thread panics").pool.pop() else {
        return;
    };
    let (again, loads, begun) = (handle.clone(), load.clone(), Instant::now());
    handle.submit_with(Level::Ordered, payload, move |result| {
        result.expect("answered");
        let mut load = loads.lock().expect("no thread panics");
        load.latencies.push(begun.elapsed());
        if load.latencies.len() == load.count {
            load.ended.send(()).expect("it waits");
        }
        drop(load);
        next(&again, &loads);
    });
}
