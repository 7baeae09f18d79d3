//! Whole replicas over real sockets and files, in one process.

mod common;

use common::TIMEOUT;
use common::{Cluster, Counter};
use quintet_replica::{
    Durability, Level,
    links::{Change, Links},
};
use quintet_runtime::{Emulation, Replica, SubmitError, Threads, Transport};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::mpsc,
    time::{Duration, Instant, SystemTime},
};

/// Thirty numbers are added at three replicas in turn, and each shows their sum.
fn adds_up(cluster: &mut Cluster) -> u64 {
    let mut sum = 0;
    for round in 1..=30u64 {
        sum += round;
        assert_eq!(cluster.add((round % 3) as usize, round), sum);
    }
    for id in 0..3 {
        assert_eq!(cluster.read(id), format!("{sum} 30"));
    }
    sum
}

#[test]
fn three_replicas_execute_each_command_once_from_any_member() {
    for (durability, threads) in [
        (Durability::Memory, Threads::One),
        (Durability::Disk, Threads::One),
        (Durability::Memory, Threads::Pipelined),
        (Durability::Disk, Threads::Pipelined),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, durability);
        for config in &mut cluster.configs {
            config.threads = threads;
        }
        cluster.start_on(listeners);
        let sum = adds_up(&mut cluster);
        let (sender, receiver) = mpsc::channel();
        for index in 0..3000u64 {
            let sender = sender.clone();
            cluster.handle((index % 3) as usize).submit_with(
                Level::Ordered,
                b"2".to_vec(),
                move |result| sender.send(result).expect("the test waits"),
            );
        }
        for _ in 0..3000 {
            receiver
                .recv()
                .expect("an answer each")
                .expect("a quorum is there");
        }
        for id in 0..3 {
            assert_eq!(cluster.read(id), format!("{} 3030", sum + 6000));
        }
        for id in 0..3 {
            cluster.stop(id);
        }
    }
}

/// Three replicas of a protocol, linked by a transport, execute what all are asked for; with
/// several threads each when there are to be rings of this many slots.
fn executes_everything_once_over(transport: Transport, protocol: &str, rings: Option<usize>) {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Memory);
    for config in &mut cluster.configs {
        config.protocol = protocol.to_owned();
        config.transport = transport;
        if let Some(slots) = rings {
            config.threads = Threads::Pipelined;
            config.ring_slots = slots;
        }
    }
    cluster.start_on(listeners);
    for id in 0..3 {
        cluster.wait(id, transport.name(), |status| {
            status.peers.iter().all(|peer| match transport {
                Transport::Tcp => peer.connected,
                Transport::Udp | Transport::AfXdp => peer.datagrams,
                Transport::SharedMemory => peer.memory,
            })
        });
    }
    adds_up(&mut cluster);
    for id in 0..3 {
        cluster.stop(id);
    }
}

#[test]
fn every_datagram_protocol_executes_commands_once() {
    for entry in quintet_protocols::PROTOCOLS {
        if !entry.needs_streams {
            executes_everything_once_over(Transport::Udp, entry.info.name, None);
        }
    }
}

/// A full ring stops who fills it; with rings this small each is full most of the time.
#[test]
fn every_protocol_executes_commands_once_with_rings_of_one_slot() {
    for entry in quintet_protocols::PROTOCOLS {
        executes_everything_once_over(Transport::Tcp, entry.info.name, Some(1));
    }
    executes_everything_once_over(Transport::Udp, "nezha", Some(2));
    executes_everything_once_over(Transport::SharedMemory, "derecho", Some(2));
}

#[test]
fn every_protocol_executes_commands_once_over_shared_memory() {
    for entry in quintet_protocols::PROTOCOLS {
        executes_everything_once_over(Transport::SharedMemory, entry.info.name, None);
    }
}

#[test]
fn undisciplined_wrong_clock_is_corrected_to_others() {
    const WRONG: i64 = 3_000_000_000;
    const NEAR: u64 = 500_000_000;
    let directory = tempfile::tempdir().expect("a directory");
    let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Memory);
    cluster.configs[2].clock_skew = WRONG;
    cluster.start_on(listeners);
    if cluster.handle(0).status().clock.disciplined {
        eprintln!("skipped: something disciplines this machine's clock");
        return;
    }
    for id in 0..3 {
        let wanted = if id == 2 { -WRONG } else { 0 };
        cluster.wait(id, "its clock corrected", |status| {
            let seen = |of: u16| {
                let peer = status.peers.iter().find(|peer| peer.id == of);
                peer.and_then(|peer| peer.clock)
                    .map(|clock| clock.offset_ns)
            };
            // The peers' clocks are told as their systems show them.
            let offset = match id {
                2 => seen(0).is_some_and(|offset| offset.abs_diff(-WRONG) < NEAR),
                _ => seen(2).is_some_and(|offset| offset.abs_diff(WRONG) < NEAR),
            };
            offset
                && status.clock.correction_ns.abs_diff(wanted) < NEAR
                && status.clock.deviation_ns.is_some()
        });
    }
}

/// The first replica leads where one does.
#[test]
fn clock_far_ahead_at_first_start_does_not_move_logs_time() {
    const HOUR: i64 = 3_600_000_000_000;
    for entry in quintet_protocols::PROTOCOLS {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Memory);
        for config in &mut cluster.configs {
            config.protocol = entry.info.name.to_owned();
        }
        cluster.configs[0].clock_skew = HOUR;
        cluster.start_on(listeners);
        for _ in 0..3 {
            cluster.add(0, 1);
        }
        let time = cluster.handle(0).submit(Level::Linearizable, b"time");
        let time = String::from_utf8(time.expect("a quorum")).expect("text");
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        let ahead = Duration::from_nanos(time.parse().expect("a number")).saturating_sub(now);
        let name = entry.info.name;
        assert!(ahead.as_secs() < 60, "{name} is {ahead:?} ahead");
    }
}

#[test]
fn stopped_disk_cluster_restarts_with_all_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path(), 3, Durability::Disk);
    for _ in 0..50 {
        cluster.add(1, 3);
    }
    for id in 0..3 {
        cluster.stop(id);
    }
    for id in 0..3 {
        cluster.restart(id);
    }
    assert_eq!(cluster.read(2), "150 50");
    assert_eq!(cluster.add(0, 1), 151);
}

#[test]
fn two_of_three_continue_and_third_catches_up() {
    for durability in [Durability::Memory, Durability::Disk] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut cluster = Cluster::start(directory.path(), 3, durability);
        cluster.add(0, 5);
        let leader = cluster.handle(0).status().leader.unwrap_or(0) as usize;
        let other = (leader + 1) % 3;
        cluster.stop(leader);
        for _ in 0..20 {
            cluster.add(other, 1);
        }
        cluster.restart(leader);
        assert_eq!(cluster.read(leader), "25 21");
        assert_eq!(cluster.add(leader, 1), 26);
    }
}

#[test]
fn replica_that_missed_more_than_log_holds_fetches_snapshot() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Disk);
    cluster.padding = 3 << 20;
    for config in &mut cluster.configs {
        config.snapshot_bytes_min = 20_000;
    }
    cluster.start_on(listeners);
    cluster.add(0, 1);
    cluster.stop(2);
    let (sender, receiver) = mpsc::channel();
    let mut sum = 1;
    for _ in 0..40 {
        for _ in 0..1000 {
            let sender = sender.clone();
            sum += 1;
            let done = move |result: Result<Vec<u8>, SubmitError>| {
                sender.send(result.is_ok()).expect("the test waits");
            };
            cluster
                .handle(0)
                .submit_with(Level::Ordered, b"1".to_vec(), done);
        }
        for _ in 0..1000 {
            assert_eq!(receiver.recv(), Ok(true));
        }
    }
    cluster.wait(0, "a snapshot", |status| status.snapshot.is_some());
    cluster.restart(2);
    assert_eq!(cluster.read(2), format!("{sum} {sum}"));
    let report = cluster
        .handle(0)
        .snapshot_now(common::TIMEOUT)
        .expect("a snapshot");
    assert!(report.bytes > 3 << 20);
}

#[test]
fn single_replica_needs_no_peer() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path(), 1, Durability::Disk);
    assert_eq!(cluster.add(0, 4), 4);
    assert_eq!(cluster.read(0), "4 1");
    assert!(cluster.handle(0).probe(common::TIMEOUT));
    let handle = cluster.handle(0);
    cluster.stop(0);
    assert_eq!(
        handle.submit(Level::Ordered, b"1"),
        Err(SubmitError::Stopped)
    );
}

#[test]
fn without_a_quorum_the_answer_is_an_error_within_the_deadline() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Memory);
    for config in &mut cluster.configs {
        config.client_deadline = std::time::Duration::from_millis(500);
    }
    cluster.start_on(listeners);
    cluster.wait(0, "links", |status| {
        status.peers.iter().all(|peer| peer.connected)
    });
    for id in [1, 2] {
        drop(cluster.replicas[id].take());
    }
    let answer = cluster.handle(0).submit(Level::Ordered, b"1");
    assert!(
        matches!(answer, Err(SubmitError::NoQuorum | SubmitError::Uncertain)),
        "{answer:?}"
    );
    let answer = cluster.handle(0).submit(Level::Linearizable, b"");
    assert_eq!(answer, Err(SubmitError::NoQuorum));
    assert!(
        !cluster
            .handle(0)
            .probe(std::time::Duration::from_millis(100))
    );
}

#[test]
fn wiped_directory_under_old_identity_is_refused_by_peers() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path(), 3, Durability::Disk);
    cluster.add(0, 5);
    for id in 0..3 {
        cluster.wait(id, "links", |status| {
            status.peers.iter().all(|peer| peer.connected)
        });
    }
    cluster.stop(0);
    std::fs::remove_dir_all(&cluster.configs[0].data).expect("wiped");
    cluster.restart(0);
    let running = cluster.replicas[0].take().expect("it runs");
    let reason = running.join();
    assert_eq!(reason.exit_code(), 7);
    assert!(reason.to_string().contains("voted before"), "{reason}");
    assert_eq!(cluster.add(1, 1), 6, "the others continue");
}

#[test]
fn port_in_use_names_the_port_and_the_setting() {
    let directory = tempfile::tempdir().expect("a directory");
    let (cluster, listeners) = Cluster::prepare(directory.path(), 1, Durability::Disk);
    let error = Replica::start(cluster.configs[0].clone(), Box::<Counter>::default());
    let error = error.expect_err("the port is taken");
    assert_eq!(error.exit_code(), 2);
    let port = listeners[0].local_addr().expect("bound").port().to_string();
    let text = error.to_string();
    assert!(
        text.contains(&port) && text.contains("peer_listen"),
        "{text}"
    );
    assert!(!cluster.configs[0].data.exists(), "nothing was touched");
}

#[test]
fn replica_whose_journal_cannot_grow_stops_with_storage_s_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path(), 1, Durability::Disk);
    cluster.add(0, 1);
    let journal = cluster.configs[0].data.join("journal");
    std::fs::remove_dir_all(&journal).expect("gone");
    let handle = cluster.handle(0);
    let begun = std::time::Instant::now();
    while handle.submit(Level::Ordered, &[b'1'; 100_000]) != Err(SubmitError::Stopped) {
        assert!(
            begun.elapsed() < common::TIMEOUT,
            "it continues without a journal"
        );
    }
    let reason = cluster.replicas[0].take().expect("it ran").join();
    assert_eq!(reason.exit_code(), 8, "{reason}");
    assert!(reason.to_string().contains("journal"), "{reason}");
}

#[test]
fn clients_of_the_server_are_answered_and_a_half_closed_one_too() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().expect("a directory");
    let (cluster, listeners) = Cluster::prepare(directory.path(), 1, Durability::Memory);
    let mut config = cluster.configs[0].clone();
    config.redis_listen = Some("127.0.0.1:0".parse().expect("an address"));
    let machine = Box::new(quintet_store::Store::default());
    let listeners = quintet_runtime::Listeners {
        peer: listeners.into_iter().next(),
        ..Default::default()
    };
    let running = Replica::start_on(config, machine, listeners).expect("starts");
    let address = running.addresses().redis.expect("it serves");
    let mut client = std::net::TcpStream::connect(address).expect("connects");
    let mut expected = Vec::new();
    for round in 0..200 {
        let value = "x".repeat(round * 40);
        let text = format!("SET key {value}y\r\nSTRLEN key\r\n");
        client.write_all(text.as_bytes()).expect("writes");
        expected.extend_from_slice(format!("+OK\r\n:{}\r\n", value.len() + 1).as_bytes());
    }
    client
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    let mut answers = Vec::new();
    client
        .read_to_end(&mut answers)
        .expect("answers, then the end");
    assert!(
        answers == expected,
        "{}",
        String::from_utf8_lossy(&answers[..200])
    );
    running.stop();
    assert_eq!(running.join().exit_code(), 0);
}

/// Starts three replicas that compare digests every second; one of them counts otherwise.
fn start_with_one_wrong(
    root: &Path,
    durability: Durability,
    wrong: usize,
) -> (Cluster, SocketAddr) {
    let (mut cluster, peers) = Cluster::prepare(root, 3, durability);
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let admin = free.local_addr().expect("bound");
    drop(free);
    cluster.configs[wrong].admin_listen = Some(admin);
    for config in &mut cluster.configs {
        config.digest_interval = Duration::from_secs(1);
    }
    cluster.wrong = Some(wrong);
    cluster.start_on(peers);
    cluster.wrong = None;
    (cluster, admin)
}

fn ready(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).expect("the admin server listens");
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn replica_with_another_state_is_not_ready_until_it_has_fetched() {
    for (durability, wrong) in [
        (Durability::Memory, 2),
        (Durability::Disk, 2),
        (Durability::Disk, 0),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut cluster, admin) = start_with_one_wrong(directory.path(), durability, wrong);
        let right = (wrong + 1) % 3;
        for amount in 1..=30 {
            cluster.add(right, amount);
        }
        cluster.wait(wrong, "a state that differs", |status| {
            let differ = status.digests.differ.as_ref();
            differ.is_some_and(|differ| differ.kind == "minority" && differ.own != differ.other)
        });
        let answer = ready(admin);
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(
            answer.contains("differs from that of a majority"),
            "{answer}"
        );
        cluster.wait(right, "a peer that differs", |status| {
            let differ = status.digests.differ.as_ref();
            differ.is_some_and(|differ| differ.kind == "peers")
        });
        cluster.wait(right, "another leader", |status| {
            status
                .leader
                .is_some_and(|leader| usize::from(leader) != wrong)
        });

        // As the log says: without its journal and snapshots it fetches the others' state.
        cluster.stop(wrong);
        let data = cluster.configs[wrong].data.clone();
        for part in ["journal", "snapshots"] {
            let part = data.join(part);
            if part.exists() {
                std::fs::remove_dir_all(part).expect("deleted");
            }
        }
        cluster.restart(wrong);
        cluster.wait(wrong, "an equal state", |status| {
            status.digests.differ.is_none() && status.digests.agreed > 0
        });
        cluster.wait(right, "equal states", |status| {
            status.digests.differ.is_none()
        });
        assert!(ready(admin).starts_with("HTTP/1.1 200"));
        assert_eq!(cluster.add(right, 1), 466);
        assert_eq!(cluster.read(wrong), "466 31");
        for id in 0..3 {
            cluster.stop(id);
        }
    }
}

/// A replica has had the time to take a quorum for lost, and executes a command.
fn continues(cluster: &Cluster, id: usize) {
    assert!(continues_while(cluster, id, || true));
}

/// The same; false when it does not, and what it needs for that is no longer given.
fn continues_while(cluster: &Cluster, id: usize, given: impl Fn() -> bool) -> bool {
    let handle = cluster.handle(id);
    let uptime = handle.status().uptime_seconds;
    cluster.wait(id, "some seconds", |status| {
        status.uptime_seconds >= uptime + 6
    });
    let begun = Instant::now();
    while let Err(error) = handle.submit(Level::Ordered, b"1") {
        if !given() {
            return false;
        }
        assert!(begun.elapsed() < TIMEOUT, "replica {id}: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn view_below_majority_of_epoch_serves_clients() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut cluster, listeners) = Cluster::prepare(directory.path(), 5, Durability::Memory);
    for config in &mut cluster.configs {
        config.protocol = "derecho".to_owned();
    }
    cluster.start_on(listeners);
    assert_eq!(cluster.add(0, 1), 1);
    for gone in [4u16, 3, 2] {
        cluster.stop(usize::from(gone));
        for id in [0, 1] {
            cluster.wait(id, "the next view", |status| {
                status.route.len() == usize::from(gone)
            });
        }
    }
    for id in [0, 1] {
        continues(&cluster, id);
    }
}

/// Nothing gets from any of the first to any of the second, or back.
fn cut(first: &[u16], second: &[u16]) -> Emulation {
    let one_way = |from: &[u16], to: &[u16]| Change {
        from: from.to_vec(),
        to: to.to_vec(),
        cut: true,
        ..Change::default()
    };
    let links = Links {
        changes: vec![one_way(first, second), one_way(second, first)],
        ..Links::default()
    };
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Emulation {
        links,
        began: began.expect("a clock after 1970"),
    }
}

#[test]
fn replica_that_hears_the_leader_only_serves_its_clients() {
    let served = || {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut cluster, listeners) = Cluster::prepare(directory.path(), 5, Durability::Memory);
        let emulation = cut(&[4], &[1, 2, 3]);
        for config in &mut cluster.configs {
            config.emulation = Some(emulation.clone());
            config.client_deadline = Duration::from_secs(5);
            // However busy the machine is, the one that leads is not taken for dead.
            let patient = ("election_timeout_ms", "10000");
            config
                .options
                .push((patient.0.to_owned(), patient.1.to_owned()));
        }
        cluster.start_on(listeners);
        // But it may be found slow, and hand over to one that replica 4 does not hear.
        continues_while(&cluster, 4, || cluster.handle(0).status().leader == Some(0))
    };
    assert!((0..10).any(|_| served()), "replica 0 hands over each time");
}
