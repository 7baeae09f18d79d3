//! Bad input from outsiders and mistakes of operators: each gets a clear answer, and the server
//! continues. Real processes, real sockets, real files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{fs, net::TcpListener};
use support::{
    eventually, let_go,
    served::{Raw, Served, Setup},
    signal,
};

/// A server of its own for tests that do not disturb one another.
fn one(more: &[&str]) -> (Setup, Served) {
    let setup = Setup::new(1);
    let replica = setup.start(0, more);
    replica.ready();
    (setup, replica)
}

#[test]
fn protocol_error_gets_redis_error_and_closes_connection() {
    let (_setup, replica) = one(&[]);
    let too_big = "x".repeat(70_000);
    let cases: [(&str, &str); 9] = [
        ("*1\r\n$2000000000\r\n", "invalid bulk length"),
        ("*1\r\n$-10\r\n", "invalid bulk length"),
        ("*1\r\n$text\r\n", "invalid bulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("*3000000000\r\n", "invalid multibulk length"),
        ("*1\r\nfoo\r\n", "expected '$', got 'f'"),
        (&too_big, "too big inline request"),
        ("set a \"b\r\n", "unbalanced quotes in request"),
        ("set a 'b'c\r\n", "unbalanced quotes in request"),
    ];
    for (bytes, reason) in cases {
        let mut raw = Raw::connect(&replica.redis);
        raw.send(bytes);
        let expected = format!("-ERR Protocol error: {reason}\r\n");
        assert_eq!(
            raw.read_all(),
            expected,
            "{:?}",
            &bytes[..bytes.len().min(30)]
        );
    }
    assert_eq!(replica.client().ask(&["PING"]).unwrap(), "PONG");
}

#[test]
fn meaningless_command_gets_error_and_connection_continues() {
    let (_setup, replica) = one(&["--limits-value-bytes-max", "1MiB"]);
    let mut client = replica.client();
    let cases: [(&[&str], &str); 12] = [
        (
            &["NOPE"],
            "-ERR unknown command 'NOPE', with args beginning with:",
        ),
        (&["GET"], "-ERR wrong number of arguments for 'get' command"),
        (&["HELLO", "9"], "-NOPROTO unsupported protocol version"),
        (
            &["SET", "k", "v", "EX", "soon"],
            "-ERR value is not an integer or out of range",
        ),
        (
            &["EXPIRE", "k", "soon"],
            "-ERR value is not an integer or out of range",
        ),
        (
            &["DEBUG", "SEGFAULT"],
            "-ERR 'DEBUG' is not supported in a replicated store",
        ),
        (
            &["REPLICAOF", "a", "1"],
            "-ERR 'REPLICAOF' is not supported in a replicated store",
        ),
        (
            &["SAVE"],
            "-ERR 'SAVE' is not supported in a replicated store",
        ),
        (
            &["BGREWRITEAOF"],
            "-ERR 'BGREWRITEAOF' is not supported in a replicated store",
        ),
        (&["EXEC"], "-ERR EXEC without MULTI"),
        (
            &["INCR", "text"],
            "-ERR value is not an integer or out of range",
        ),
        (
            &["LPUSH", "text", "v"],
            "-WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ];
    assert_eq!(client.ask(&["SET", "text", "abc"]).unwrap(), "OK");
    for (words, expected) in cases {
        assert_eq!(client.ask(words).unwrap(), expected, "{words:?}");
    }
    let long = "v".repeat((1 << 20) + 1);
    assert_eq!(
        client.ask(&["SET", "k", &long]).unwrap(),
        "-ERR value exceeds limits.value_bytes_max (1048577 > 1048576)"
    );
    let key = "k".repeat((64 << 10) + 1);
    let answer = client.ask(&["SET", &key, "v"]).unwrap();
    assert!(
        answer.starts_with("-ERR key exceeds limits.key_bytes_max"),
        "{answer}"
    );
    assert_eq!(client.ask(&["GET", "text"]).unwrap(), "abc");
}

#[test]
fn lengths_that_are_only_announced_cost_no_memory() {
    let (_setup, replica) = one(&[]);
    let mut held: Vec<Raw> = (0..8).map(|_| Raw::connect(&replica.redis)).collect();
    for raw in &mut held {
        raw.send("*1\r\n$4\r\nPING\r\n");
        raw.until("+PONG\r\n");
    }
    let before = replica.memory();
    for raw in &mut held {
        raw.send("*1000000000\r\n$500000000\r\n");
    }
    // A client that is served later: these bytes have been read.
    assert_eq!(replica.client().ask(&["PING"]).unwrap(), "PONG");
    eventually("all was read", || {
        (replica.status()?["uptime_seconds"].as_u64()? >= 1).then_some(())
    });
    let after = replica.memory();
    assert!(after < before + (1 << 20), "{before} {after}");
    assert!(held.iter().all(Raw::is_open));
}

#[test]
fn one_client_too_many_is_told_so_and_closed() {
    let (_setup, replica) = one(&["--clients-max", "2"]);
    let mut first = replica.client();
    let mut second = replica.client();
    assert_eq!(first.ask(&["PING"]).unwrap(), "PONG");
    assert_eq!(second.ask(&["PING"]).unwrap(), "PONG");
    let mut third = Raw::connect(&replica.redis);
    assert_eq!(third.read_all(), "-ERR max number of clients reached\r\n");
    drop(first);
    eventually("room for another", || {
        (replica.client().ask(&["PING"]).ok()? == "PONG").then_some(())
    });
    eventually("it is counted", || {
        (replica.metric("connections_rejected_total") >= 1.0).then_some(())
    });
}

#[test]
fn client_without_password_gets_noauth_and_wrong_one_wrongpass() {
    let (_setup, replica) = one(&["--password", "secret"]);
    let mut client = replica.client();
    let noauth = "-NOAUTH Authentication required.";
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), noauth);
    assert_eq!(client.ask(&["SET", "k", "v"]).unwrap(), noauth);
    let answer = client.ask(&["AUTH", "wrong"]).unwrap();
    assert!(answer.starts_with("-WRONGPASS invalid"), "{answer}");
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), noauth);
    assert_eq!(client.ask(&["AUTH", "secret"]).unwrap(), "OK");
    assert_eq!(client.ask(&["SET", "k", "v"]).unwrap(), "OK");
}

#[test]
fn any_replica_answers_for_all_and_never_sends_client_elsewhere() {
    let setup = Setup::new(3);
    let replicas = setup.start_all(&[]);
    let mut clients: Vec<_> = replicas.iter().map(Served::client).collect();
    for round in 0..30 {
        let value = round.to_string();
        assert_eq!(clients[round % 3].ask(&["SET", "k", &value]).unwrap(), "OK");
        let read = clients[(round + 1) % 3].ask(&["GET", "k"]).unwrap();
        assert_eq!(read, value, "never a stale value");
    }
}

#[test]
fn without_quorum_writes_and_reads_are_refused_within_deadline() {
    let setup = Setup::new(3);
    let mut replicas = setup.start_all(&["--client-deadline", "1s"]);
    let mut client = replicas[0].client();
    eventually("a write", || {
        (client.ask(&["SET", "k", "0"]).unwrap() == "OK").then_some(())
    });
    drop(replicas.drain(1..));
    // The outcome of commands in flight at the crash may be unknown; later commands have a definite
    // one.
    eventually("a definite refusal", || {
        let answer = client.ask(&["SET", "k", "1"]).ok()?;
        let refused = answer.starts_with("-CLUSTERDOWN no quorum (1 of 3 reachable; no answer");
        assert!(refused || answer.starts_with("-UNCERTAIN ") || answer.starts_with("-CLUSTERDOWN"));
        refused.then_some(())
    });
    let read = client.ask(&["GET", "k"]).unwrap();
    let named = read.contains("no answer from replica 1 for ") && read.contains(", 2 for ");
    assert!(named, "{read}");
    assert_eq!(client.ask(&["PING"]).unwrap(), "PONG");
}

#[test]
fn lost_quorum_is_told_at_once_when_a_majority_hangs() {
    let setup = Setup::new(3);
    let replicas = setup.start_all(&["--client-deadline", "1h"]);
    eventually("a write", || {
        let answer = replicas[0].client().ask(&["SET", "k", "0"]);
        (answer.ok()? == "OK").then_some(())
    });
    for hung in &replicas[1..] {
        hung.freeze();
    }
    // Their links stay open: only silence tells.
    eventually("silence", || {
        let status = replicas[0].status()?;
        let silent = |peer: &Value| peer["silent_ms"].as_u64().is_some_and(|ms| ms > 5_000);
        let peers = status["peers"].as_array()?;
        (peers.iter().all(silent) && peers.iter().all(|peer| peer["connected"] == true))
            .then_some(())
    });
    for command in [&["SET", "k", "1"][..], &["GET", "k"]] {
        let answer = replicas[0].client().ask(command).unwrap();
        let known = "-CLUSTERDOWN no quorum (1 of 3 reachable; no answer from replica 1 for ";
        assert!(answer.starts_with(known), "{answer}");
    }
    for hung in &replicas[1..] {
        hung.thaw();
    }
    eventually("a quorum again", || {
        let answer = replicas[0].client().ask(&["GET", "k"]).ok()?;
        (answer == "0").then_some(())
    });
}

#[test]
fn proxy_tells_that_the_quorum_is_lost_when_members_say_so() {
    let setup = Setup::new(3);
    let deadline = ["--client-deadline", "1h"];
    let replicas = setup.start_all(&deadline);
    let proxy = setup.start_proxy_with_descriptors(1024, &deadline);
    proxy.ready();
    eventually("a write", || {
        (proxy.client().ask(&["SET", "k", "0"]).ok()? == "OK").then_some(())
    });
    for hung in &replicas[1..] {
        hung.freeze();
    }
    // One client that asks again and again, as people do: what it asks first may have an open end.
    eventually("a refusal that names who is silent", || {
        let answer = proxy.client().ask(&["SET", "k", "1"]).unwrap();
        let named = "-CLUSTERDOWN no quorum (1 of 3 reachable; no answer from replica 1 for ";
        answer.starts_with(named).then_some(())
    });
    for hung in &replicas[1..] {
        hung.thaw();
    }
    eventually("a quorum again", || {
        (proxy.client().ask(&["SET", "k", "2"]).ok()? == "OK").then_some(())
    });
}

#[test]
fn server_continues_when_its_terminal_hangs_up() {
    let setup = Setup::new(1);
    let mut replica = setup.start(0, &[]);
    replica.ready();
    signal(replica.process.0.id(), Signal::HUP);
    eventually("the signal is logged", || {
        replica.said().contains("SIGHUP is ignored").then_some(())
    });
    assert_eq!(replica.client().ask(&["PING"]).unwrap(), "PONG");
    assert!(replica.process.0.try_wait().unwrap().is_none());
}

#[test]
fn write_whose_outcome_is_open_at_the_deadline_is_uncertain() {
    write_with_an_open_end("2s");
}

#[test]
fn open_write_is_uncertain_once_quorum_is_lost() {
    write_with_an_open_end("1h");
}

/// A majority stands still right after a write was sent.
fn write_with_an_open_end(client_deadline: &str) {
    let setup = Setup::new(3);
    let replicas = setup.start_all(&["--client-deadline", client_deadline]);
    let mut client = replicas[0].client();
    eventually("a write", || {
        (client.ask(&["SET", "k", "0"]).unwrap() == "OK").then_some(())
    });
    // On a busy machine another may lead by the time the others stand still; then this one may
    // refuse the write permanently, and it is tried again.
    eventually("an open outcome", || {
        let leader = replicas[0].status()?["leader"].as_u64()? as usize;
        let mut client = replicas[leader].client();
        let others = (0..3).filter(|id| *id != leader);
        for id in others.clone() {
            replicas[id].freeze();
        }
        // The leader still believes that it leads, and what it proposes may yet be decided.
        let answer = client.ask(&["SET", "k", "1"]);
        for id in others {
            replicas[id].thaw();
        }
        let answer = answer.unwrap();
        let open = answer == "-UNCERTAIN may or may not have been applied";
        assert!(open || answer.starts_with("-CLUSTERDOWN"), "{answer}");
        open.then_some(())
    });
    let value = eventually("a quorum again", || {
        let value = client.ask(&["GET", "k"]).ok()?;
        (!value.starts_with('-')).then_some(value)
    });
    assert!(value == "0" || value == "1", "{value}");
}

#[test]
fn peers_of_another_cluster_are_refused_with_both_ids() {
    let setup = Setup::new(2);
    let ours = setup.start(0, &[]);
    let other = "000000000000000000000000000000c2";
    let theirs = setup.start(1, &["--cluster", other]);
    let error = |served: &Served| {
        served.status()?["peers"][0]["error"]
            .as_str()
            .map(str::to_owned)
    };
    let text = eventually("a refusal", || {
        error(&ours).filter(|error| error.contains("cluster id"))
    });
    assert!(
        text.contains("mismatch: ours") && text.contains("c1") && text.contains("c2"),
        "{text}"
    );
    drop(theirs);
    eventually("it is counted", || {
        (ours.metric("handshakes_failed_total{reason=\"refused\"}") >= 1.0).then_some(())
    });
}

#[test]
fn bytes_that_are_no_peer_s_cost_their_connection_only() {
    let setup = Setup::new(3);
    let replicas = setup.start_all(&[]);
    let target = setup.peer(0);
    let failed = |why| replicas[0].metric(&format!("handshakes_failed_total{{reason=\"{why}\"}}"));
    let bad = || failed("malformed") + failed("format");
    let before = bad();
    let mut greeting = b"QUINTET\n".to_vec();
    // Format 2, a challenge.
    greeting.extend_from_slice(&[2, 0, 3, 0]);
    let hello = |length: u32, checksum: u32, body: &[u8]| {
        let mut bytes = greeting.clone();
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    };
    let body = vec![3; 90];
    let right = quintet_replica::checksum(&body);
    let mut newer = hello(90, right, &body);
    newer[8] = 9;
    let cases = [
        ("a client", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("bad magic", b"QUINTEX\nxxxxxxxxxxxx".to_vec()),
        ("a bad checksum", hello(90, right ^ 1, &body)),
        ("a length beyond all bounds", hello(u32::MAX, right, &body)),
        ("a body of nonsense", hello(90, right, &body)),
        ("a newer format", newer),
    ];
    for (name, bytes) in &cases {
        let mut raw = Raw::connect(&target);
        raw.send(bytes);
        // Closed, with or without telling the format.
        raw.read_all();
        assert_eq!(
            replicas[0].client().ask(&["PING"]).unwrap(),
            "PONG",
            "{name}"
        );
    }
    eventually("all are counted", || (bad() >= before + 6.0).then_some(()));
    assert_eq!(replicas[0].client().ask(&["SET", "k", "v"]).unwrap(), "OK");
    assert_eq!(replicas[1].client().ask(&["GET", "k"]).unwrap(), "v");
}

#[test]
fn wrong_configuration_ends_with_2_before_anything_is_served() {
    let setup = Setup::new(1);
    let base = "cluster = \"000000000000000000000000000000c1\"\nid = 0\nmembers = \
                [\"127.0.0.1:7201\"]\nredis_listen = \"none\"\nadmin_listen = \"none\"\n";
    let secret = format!("secret = \"{}\"\n", "5a".repeat(32));
    let data = format!("data = \"{}\"\n", setup.data(0).display());
    let path = setup.root().join("replica.toml");
    let file = path.display().to_string();
    let cases: [(&str, &[&str]); 7] = [
        (
            "idd = 1\n",
            &["replica.toml:8: unknown key 'idd'", "did you mean 'id'?"],
        ),
        (
            "client_deadline = \"10 parsecs\"\n",
            &["replica.toml:8: client_deadline", "10s"],
        ),
        (
            "snapshot_bytes_min = \"many\"\n",
            &["replica.toml:8: snapshot_bytes_min", "64MiB"],
        ),
        (
            "durability = \"tape\"\n",
            &["replica.toml:8: durability", "disk", "memory"],
        ),
        (
            "protocol = \"raftish\"\n",
            &[
                "replica.toml:8: ",
                "unknown protocol 'raftish'",
                "multipaxos",
            ],
        ),
        (
            "[options]\nelection_timeout_ms = 200\nheartbeat_ms = 100\n",
            &["election_timeout_ms must be more than twice heartbeat_ms"],
        ),
        (
            "[journal]\nsegment_bytes = \"1KiB\"\n",
            &["segment_bytes", "1 MiB to 1 GiB"],
        ),
    ];
    for (line, parts) in cases {
        fs::write(&path, format!("{base}{secret}{data}{line}")).unwrap();
        let output = support::run(&["serve", "--config", &file]);
        let text = support::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        for part in parts {
            assert!(text.contains(part), "{line}: no '{part}' in {text}");
        }
    }
    let twice = base.replace("7201\"]", "7201\", \"127.0.0.1:7201\"]");
    fs::write(&path, format!("{twice}{secret}{data}")).unwrap();
    let output = support::run(&["serve", "--config", &file]);
    assert_eq!(output.status.code(), Some(2));
    let text = support::stderr(&output);
    assert!(
        text.contains("replica.toml:3") && text.contains("'127.0.0.1:7201' is there twice"),
        "{text}"
    );
    assert!(!setup.data(0).exists());
}

#[test]
fn port_or_a_directory_that_cannot_be_had_is_named() {
    let setup = Setup::new(1);
    let taken = TcpListener::bind(setup.redis(0)).unwrap();
    let (code, text) = setup.refusal(0, &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("is in use") && text.contains("--redis-listen"),
        "{text}"
    );
    let_go(taken);
    let file = setup.root().join("file");
    fs::write(&file, b"").unwrap();
    let below = file.join("data").display().to_string();
    let (code, text) = setup.refusal(0, &["--data", &below]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("data") && text.contains(&below), "{text}");
    let replica = setup.start(0, &[]);
    let second = Setup::new(1);
    let data = setup.data(0).display().to_string();
    let (code, text) = second.refusal(0, &["--data", &data]);
    assert_eq!(code, Some(7), "{text}");
    let pid = replica.process.0.id();
    assert!(text.contains(&format!("in use by process {pid}")), "{text}");
}

#[test]
fn wiped_directory_under_an_old_identity_is_refused() {
    let setup = Setup::new(3);
    let mut replicas = setup.start_all(&[]);
    assert_eq!(replicas[0].client().ask(&["SET", "k", "v"]).unwrap(), "OK");
    assert_eq!(replicas.remove(2).stop(), Some(0));
    fs::remove_dir_all(setup.data(2)).unwrap();
    let mut wiped = setup.start_with(2, &[], &[]);
    assert_eq!(wiped.process.wait().code(), Some(7));
    let text = wiped.said();
    assert!(
        text.contains("this node id has voted before") && text.contains("add it as a new member"),
        "{text}"
    );
    assert_eq!(replicas[1].client().ask(&["GET", "k"]).unwrap(), "v");
}
