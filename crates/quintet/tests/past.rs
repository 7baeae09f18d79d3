//! Reading the past as a person does: every protocol, every replica, before and after all are killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use quintet_replica::StateMachine;
use rustix::process::Signal;
use support::{Demo, base_port, eventually, fails, run, signal, stdout};

/// The answer of a replica, in one line.
fn ask(replica: &support::Replica, words: &[&str]) -> String {
    replica.client().ask(words).unwrap()
}

#[test]
fn past_is_the_same_at_every_replica_and_after_all_were_killed() {
    for protocol in quintet::protocols() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path().join("demo");
        let base = base_port(3);
        let more = ["--protocol", protocol];
        let demo = Demo::start(&dir, base, &more);
        let retain = ["QUINTET.RETAIN", "SECONDS", "3600", "BYTES", "1000000"];
        assert_eq!(ask(&demo.replicas[0], &retain), "OK");
        for (number, replica) in (0..9).zip(demo.replicas.iter().cycle()) {
            ask(replica, &["SET", "k", &number.to_string()]);
            // Long enough that the list is kept by steps.
            ask(replica, &["RPUSH", "list", &number.to_string().repeat(600)]);
        }
        assert_eq!(ask(&demo.replicas[0], &["DEL", "k"]), "1");
        let seen = |demo: &Demo| -> Vec<Vec<String>> {
            let all = demo.replicas.iter().map(|replica| {
                let mut seen = Vec::new();
                for version in 0..=19 {
                    let version = format!("v:{version}");
                    seen.push(ask(replica, &["QUINTET.AT", &version, "EXISTS", "k"]));
                    seen.push(ask(
                        replica,
                        &["QUINTET.AT", &version, "GETRANGE", "k", "0", "-1"],
                    ));
                    seen.push(ask(replica, &["QUINTET.AT", &version, "LLEN", "list"]));
                }
                seen
            });
            all.collect()
        };
        let before = seen(&demo);
        assert!(
            before.iter().all(|seen| *seen == before[0]),
            "{protocol}: {before:?}"
        );
        assert_eq!(before[0][..6], ["0", "", "0", "1", "0", "0"], "{protocol}");
        assert_eq!(before[0][54..], ["1", "8", "9", "0", "", "9"], "{protocol}");
        for replica in &demo.replicas {
            signal(replica.pid, Signal::KILL);
        }
        demo.interrupt();
        let demo = Demo::start(&dir, base, &more);
        for replica in &demo.replicas {
            eventually("the replica is ready", || replica.is_ready().then_some(()));
        }
        assert_eq!(seen(&demo), before, "{protocol}");
        demo.interrupt();
    }
}

#[test]
fn diff_prints_what_changed_between_two_times() {
    let directory = tempfile::tempdir().unwrap();
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &[]);
    let server = demo.replicas[1].redis.clone();
    let server = server.as_str();
    fails(
        &["diff", "--from", "v:0", "--server", server],
        7,
        &["NOHISTORY the past is not kept"],
    );
    ask(&demo.replicas[0], &["QUINTET.RETAIN", "BYTES", "1000000"]);
    for words in [
        &["SET", "user:1", "ada"][..],
        &["SET", "user:2", "alan"],
        &["SET", "job", "1"],
        &["DEL", "user:2"],
        &["SET", "user:1", "grace"],
    ] {
        ask(&demo.replicas[0], words);
    }
    let all = run(&["diff", "--from", "v:2", "--server", server]);
    assert_eq!(
        stdout(&all),
        "created  job\ndeleted  user:2\nchanged  user:1\n"
    );
    let users = [
        "--from", "v:0", "--to", "v:2", "--match", "user:*", "-o", "json",
    ];
    let some = run(&[&["diff", "--server", server], &users[..]].concat());
    let lines = "{\"change\":\"created\",\"key\":\"user:1\"}\n\
                 {\"change\":\"created\",\"key\":\"user:2\"}\n";
    assert_eq!(stdout(&some), lines);
    fails(
        &["diff", "--from", "soon", "--server", server],
        2,
        &["invalid time"],
    );
    let backwards = ["diff", "--from", "v:3", "--to", "v:1", "--server", server];
    fails(&backwards, 2, &["the first time is later than the second"]);
    fails(
        &["diff", "--from", "v:0", "--server", "127.0.0.1:1"],
        3,
        &["refused"],
    );
    demo.interrupt();
}

/// Every value that it ever had, and since when.
#[derive(Clone, Default)]
struct Versioned {
    values: Vec<(u64, u64)>,
}

impl StateMachine for Versioned {
    fn apply(&mut self, at: &quintet::At, _: &[u8], _: &mut Vec<u8>) {
        let value = self.values.len() as u64 + 1;
        self.values.push((at.time.0, value));
    }

    fn query(&self, at: &quintet::At, command: &[u8], reply: &mut Vec<u8>) {
        self.query_at(at, command, reply);
    }

    fn query_at(&self, at: &quintet::At, _: &[u8], reply: &mut Vec<u8>) -> quintet::PastAnswer {
        let count = self
            .values
            .partition_point(|(since, _)| *since <= at.time.0);
        reply.extend_from_slice(count.to_string().as_bytes());
        quintet::PastAnswer::Done
    }

    fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> quintet::SnapshotProgress {
        quintet::SnapshotProgress::Done
    }

    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), quintet::RestoreError> {
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), quintet::RestoreError> {
        Ok(())
    }

    fn digest(&self) -> u128 {
        self.values.len() as u128
    }
}

#[test]
fn library_reads_versions_of_a_state_machine_that_keeps_them() {
    use quintet::{Cluster, Error};
    use std::time::{Duration, SystemTime};
    let cluster = Cluster::local(3)
        .deadline(Duration::from_secs(2))
        .start(Versioned::default())
        .unwrap();
    let mut times = Vec::new();
    for count in 0..5 {
        let now = SystemTime::now();
        // Each replica in turn.
        let seen: Vec<_> = (0..3)
            .map(|_| cluster.query_at(now, b"").unwrap())
            .collect();
        assert!(
            seen.iter()
                .all(|seen| *seen == count.to_string().as_bytes()),
            "{seen:?}"
        );
        times.push((now, count));
        cluster.apply(b"").unwrap();
    }
    for (time, count) in times {
        assert_eq!(
            cluster.query_at(time, b"").unwrap(),
            count.to_string().as_bytes()
        );
    }
    let far = SystemTime::now() + Duration::from_secs(3600);
    assert!(matches!(cluster.query_at(far, b""), Err(Error::NotYet)));
    let soon = SystemTime::now() + Duration::from_millis(200);
    assert_eq!(cluster.query_at(soon, b"").unwrap(), b"5");
}
