//! Strangers and wrong secrets on the port of peers: real processes, real sockets.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use support::{
    eventually,
    served::{Served, Setup},
};

/// The log's messages about peers that are not linked.
fn complaints(replica: &Served) -> Vec<String> {
    let log = replica.said();
    let about = |line: &&str| line.contains("no link to a member") || line.contains("is refused");
    log.lines().filter(about).map(str::to_owned).collect()
}

/// The refusal of format 1 by which a program at a member's address once stopped the others.
fn fatal_refusal() -> Vec<u8> {
    let mut body = vec![1];
    body.extend_from_slice(&4u32.to_le_bytes());
    body.extend_from_slice(b"stop");
    let mut bytes = b"QUINTET\n\x01\0\x02\0".to_vec();
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&quintet_replica::checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

#[test]
fn stranger_at_a_members_address_stops_no_replica() {
    let setup = Setup::new(3);
    let listener = TcpListener::bind(setup.peer(2)).unwrap();
    let impostor = thread::spawn(move || {
        for answer in [
            fatal_refusal(),
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        ] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&answer).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
        // And then as many as come, in silence.
        listener.incoming().take(4).collect::<Vec<_>>()
    });
    let replicas: Vec<_> = (0..2).map(|id| setup.start(id, &[])).collect();
    replicas.iter().for_each(Served::ready);
    assert_eq!(replicas[0].client().ask(&["SET", "k", "v"]).unwrap(), "OK");
    thread::sleep(Duration::from_secs(2));
    for replica in &replicas {
        assert_eq!(replica.client().ask(&["GET", "k"]).unwrap(), "v");
        let said = complaints(replica);
        assert!(said.len() <= 3, "{said:?}");
    }
    drop(impostor);
}

#[test]
fn wrong_secret_is_reported_once_with_the_reason() {
    let setup = Setup::new(3);
    let mut replicas: Vec<_> = (0..2).map(|id| setup.start(id, &[])).collect();
    replicas.push(setup.start(2, &["--secret", &"a5".repeat(32)]));
    let refused = |replica: &Served, member: usize| {
        let status = replica.status()?;
        let peers = status["peers"].as_array()?;
        let why = peers.iter().find(|peer| peer["id"] == member)?["error"].as_str()?;
        why.contains("'secret' must be the same").then_some(())
    };
    for replica in &replicas[..2] {
        eventually("the reason is shown", || refused(replica, 2));
    }
    replicas[..2].iter().for_each(Served::ready);
    thread::sleep(Duration::from_secs(4));
    for replica in &replicas {
        // One line of strangers, and one of each member that does not accept it.
        let said = complaints(replica);
        assert!((1..=3).contains(&said.len()), "{said:?}");
        assert!(said[0].contains("'secret' must be the same"), "{said:?}");
    }
    assert!(replicas[0].metric("handshakes_failed_total{reason=\"proof\"}") >= 1.0);
    assert_eq!(replicas[0].client().ask(&["SET", "k", "v"]).unwrap(), "OK");
}

#[test]
fn other_protocol_is_reported_once_with_both_names() {
    let setup = Setup::new(3);
    let mut replicas: Vec<_> = (0..2).map(|id| setup.start(id, &[])).collect();
    replicas.push(setup.start(2, &["--protocol", "mencius"]));
    replicas[..2].iter().for_each(Served::ready);
    for replica in &replicas {
        eventually("the reason is logged", || complaints(replica).pop());
    }
    thread::sleep(Duration::from_secs(4));
    for replica in &replicas {
        let said = complaints(replica);
        assert!((1..=2).contains(&said.len()), "{said:?}");
        assert!(
            said[0].contains("'mencius'") && said[0].contains("'multipaxos'"),
            "{said:?}"
        );
    }
    assert!(replicas[0].metric("handshakes_failed_total{reason=\"refused\"}") >= 1.0);
    assert_eq!(replicas[0].client().ask(&["SET", "k", "v"]).unwrap(), "OK");
}

#[test]
fn replica_restarts_past_idle_connections_to_the_peer_port() {
    let setup = Setup::new(3);
    let mut replicas = setup.start_all(&[]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut idle = Vec::new();
            while !over.load(Relaxed) {
                for id in 0..3 {
                    idle.extend((0..80).filter_map(|_| TcpStream::connect(setup.peer(id)).ok()));
                }
                let old = idle.len().saturating_sub(600);
                drop(idle.drain(..old));
                thread::sleep(Duration::from_millis(200));
            }
        });
        thread::sleep(Duration::from_millis(500));
        drop(replicas.remove(0));
        let again = setup.start(0, &[]);
        let linked = || {
            let status = again.status()?;
            let peers = status["peers"].as_array()?;
            let others = peers.iter().filter(|peer| peer["id"] != 0);
            (others.clone().count() == 2).then_some(())?;
            others
                .into_iter()
                .all(|peer| peer["connected"] == true)
                .then_some(())
        };
        eventually("its links are there", linked);
        again.ready();
        assert_eq!(again.client().ask(&["SET", "k", "v"]).unwrap(), "OK");
        over.store(true, Relaxed);
    });
    let displaced = replicas[0].metric("handshakes_failed_total{reason=\"displaced\"}");
    assert!(displaced > 0.0);
}
