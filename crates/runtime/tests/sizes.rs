//! Every size that is accepted passes through every protocol and transport, and what is longer is
//! refused as it comes, with an error that names the limit.

mod common;

use common::Cluster;
use quintet_replica::{Durability, limits};
use quintet_runtime::{Listeners, Proxy, Replica, Running, Transport};
use quintet_store::{Store, StoreOptions};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Each test moves gigabytes: together they would take from each other what a deadline leaves.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// However busy the machine is, no member takes the leader for dead while it sends the longest
/// values.
const PATIENT: (&str, &str) = ("election_timeout_ms", "60000");

/// The errors for a client while a disk that others keep busy counts as one that hangs. Writing the
/// same value again is right after each of them.
const TRY_AGAIN: [&str; 3] = ["-BUSY", "-CLUSTERDOWN", "-UNCERTAIN"];

/// How long it tries again.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Three replicas with stores that serve Redis clients.
fn start(root: &Path, protocol: &str, transport: Transport, durability: Durability) -> Cluster {
    start_with(root, protocol, transport, durability, &[])
}

fn start_with(
    root: &Path,
    protocol: &str,
    transport: Transport,
    durability: Durability,
    options: &[(&str, &str)],
) -> Cluster {
    let (mut cluster, listeners) = Cluster::prepare(root, 3, durability);
    for (id, listener) in listeners.into_iter().enumerate() {
        let config = &mut cluster.configs[id];
        config.protocol = protocol.to_owned();
        config.transport = transport;
        let options = options.iter();
        config.options = options
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        config.redis_listen = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        config.client_deadline = Duration::from_secs(60);
        let listeners = Listeners {
            peer: Some(listener),
            ..Listeners::default()
        };
        let store = Box::new(Store::new(StoreOptions::default()));
        let running = Replica::start_on(config.clone(), store, listeners);
        cluster.replicas[id] = Some(running.expect("starts"));
    }
    cluster
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(cluster: &Cluster, id: usize) -> Self {
        Self::at(cluster.replicas[id].as_ref().expect("it runs"))
    }

    fn at(running: &Running) -> Self {
        let address = running.addresses().redis.expect("it serves");
        let stream = TcpStream::connect(address).expect("connects");
        let timeout = Some(Duration::from_secs(90));
        stream.set_read_timeout(timeout).expect("a timeout");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, words: &[&[u8]]) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes).expect("is taken");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }

    fn ask(&mut self, words: &[&[u8]]) -> String {
        self.send(words);
        self.line()
    }

    /// The answer to the last of these commands, which may be given more than once.
    fn ask_until_answered(&mut self, commands: &[&[&[u8]]]) -> String {
        let began = Instant::now();
        loop {
            let answers = commands.iter().map(|words| self.ask(words));
            let answer = answers.last().expect("a command");
            let again = TRY_AGAIN.iter().any(|error| answer.starts_with(error));
            if !again || began.elapsed() > TIMEOUT {
                return answer;
            }
        }
    }
}

fn sizes_pass(protocol: &str, transport: Transport) {
    let directory = tempfile::tempdir().expect("a directory");
    let cluster = start(directory.path(), protocol, transport, Durability::Memory);
    let clients = (Client::of(&cluster, 0), Client::of(&cluster, 2));
    let name = format!("{protocol} over {}", transport.name());
    sizes_pass_from(clients, &name, transport == Transport::Tcp);
}

/// The longest commands and transactions as well, if asked.
fn sizes_pass_from((mut leads, mut follows): (Client, Client), name: &str, longest: bool) {
    let limit = limits::VALUE_BYTES_MAX;
    let value = vec![b'v'; limit + 1];
    // Straight before the limit is where a batch was longer than any room.
    for (at_leader, length) in [(true, limit - 214), (false, limit - 1), (true, limit)] {
        let client = if at_leader { &mut leads } else { &mut follows };
        let answer = client.ask_until_answered(&[&[b"SET", b"k", &value[..length]]]);
        assert_eq!(answer, "+OK", "{name}: {length} bytes");
    }
    let refused = follows.ask(&[b"SET", b"k", &value]);
    let expected = format!(
        "-ERR value exceeds limits.value_bytes_max ({} > {limit})",
        limit + 1
    );
    assert_eq!(refused, expected, "{name}");
    if !longest {
        assert_eq!(leads.ask(&[b"SET", b"k", b"small"]), "+OK", "{name}");
        return;
    }
    // The longest command, and behind it what is just as long in a transaction.
    let rest = limits::command_bytes_max(limit) - limit - 200;
    let longest: &[&[u8]] = &[b"MSET", b"a", &value[..limit], b"b", &value[..rest]];
    let answer = follows.ask_until_answered(&[longest]);
    assert_eq!(answer, "+OK", "{name}: the longest command");
    let answer = follows.ask(&[b"MSET", b"a", &value[..limit], b"b", &value[..rest + 400]]);
    assert!(
        answer.starts_with("-ERR command exceeds what limits.value_bytes_max allows"),
        "{name}: {answer}"
    );
    let transaction: [&[&[u8]]; 4] = [
        &[b"MULTI"],
        &[b"SET", b"a", &value[..limit]],
        &[b"SET", b"b", &value[..rest]],
        &[b"EXEC"],
    ];
    let answer = leads.ask_until_answered(&transaction);
    assert_eq!(answer, "*2", "{name}: the longest transaction");
    assert_eq!([leads.line(), leads.line()], ["+OK", "+OK"]);
    // A read of it comes back whole, elsewhere too; and the cluster continues.
    assert_eq!(
        follows.ask_until_answered(&[&[b"GET", b"a"]]),
        format!("${limit}")
    );
    let mut read = vec![0; limit + 2];
    follows.0.read_exact(&mut read).expect("the value");
    assert!(read[..limit] == value[..limit], "{name}: what was written");
    for client in [&mut leads, &mut follows] {
        let answer = client.ask_until_answered(&[&[b"SET", b"k", b"small"]]);
        assert_eq!(answer, "+OK", "{name}");
    }
}

fn sizes_pass_with(transport: Transport) {
    let _alone = alone();
    for entry in quintet_protocols::PROTOCOLS {
        if !(transport.uses_datagrams() && entry.needs_streams) {
            sizes_pass(entry.info.name, transport);
        }
    }
}

#[test]
fn accepted_sizes_pass_every_protocol_over_tcp() {
    sizes_pass_with(Transport::Tcp);
}

#[test]
fn accepted_sizes_pass_every_protocol_over_shared_memory() {
    sizes_pass_with(Transport::SharedMemory);
}

#[test]
fn accepted_sizes_pass_every_protocol_over_datagrams() {
    sizes_pass_with(Transport::Udp);
}

#[test]
fn accepted_sizes_pass_from_the_disk() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (tcp, disk) = (Transport::Tcp, Durability::Disk);
    let cluster = start_with(directory.path(), "multipaxos", tcp, disk, &[PATIENT]);
    let clients = (Client::of(&cluster, 0), Client::of(&cluster, 2));
    sizes_pass_from(clients, "on disk", true);
}

#[test]
fn accepted_sizes_pass_with_dissemination() {
    let _alone = alone();
    let sadl = ("dissemination", "sadl");
    for (protocol, options) in [("multipaxos", &[sadl, PATIENT][..]), ("racs", &[sadl])] {
        let directory = tempfile::tempdir().expect("a directory");
        let (tcp, memory) = (Transport::Tcp, Durability::Memory);
        let cluster = start_with(directory.path(), protocol, tcp, memory, options);
        let clients = (Client::of(&cluster, 0), Client::of(&cluster, 2));
        sizes_pass_from(clients, &format!("{protocol} with SADL"), true);
    }
}

#[test]
fn accepted_sizes_pass_through_proxies() {
    let _alone = alone();
    let (tcp, memory) = (Transport::Tcp, Durability::Memory);
    let patient = ("suspect_timeout_ms", "60000");
    for (protocol, option) in [("multipaxos", PATIENT), ("nezha", patient)] {
        let directory = tempfile::tempdir().expect("a directory");
        let cluster = start_with(directory.path(), protocol, tcp, memory, &[option]);
        let proxies = [0, 1].map(|_| {
            let machine = Store::new(StoreOptions::default());
            Proxy::start(&cluster.configs[0], &machine).expect("starts")
        });
        let clients = (Client::at(&proxies[0]), Client::at(&proxies[1]));
        sizes_pass_from(clients, &format!("{protocol} behind proxies"), true);
    }
}

#[test]
fn replies_that_exceed_request_are_errors_also_after_restart() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (tcp, disk) = (Transport::Tcp, Durability::Disk);
    let mut cluster = start(directory.path(), "multipaxos", tcp, disk);
    let mut client = Client::of(&cluster, 0);
    client.send(&[b"SETRANGE", b"big", b"67108800", b"x"]);
    for _ in 0..5 {
        client.send(&[b"GET", b"big"]);
    }
    client.send(&[b"SET", b"after", b"1"]);
    assert_eq!(client.line(), ":67108801");
    let (mut values, mut errors) = (0, 0);
    for _ in 0..5 {
        let line = client.line();
        if line == "$67108801" {
            values += 1;
            let mut value = vec![0; 67_108_801 + 2];
            client.0.read_exact(&mut value).expect("the value");
        } else {
            assert!(line.starts_with("-ERR replies to commands sent together exceed"));
            errors += 1;
        }
    }
    assert_eq!(client.line(), "+OK");
    assert!(values >= 1 && values + errors == 5, "{values} and {errors}");
    for id in 0..3 {
        cluster.stop(id);
    }
    for id in 0..3 {
        let store = Box::new(Store::new(StoreOptions::default()));
        let running = Replica::start(cluster.configs[id].clone(), store);
        cluster.replicas[id] = Some(running.expect("starts again"));
    }
    assert_eq!(Client::of(&cluster, 1).ask(&[b"GET", b"after"]), "$1");
}
