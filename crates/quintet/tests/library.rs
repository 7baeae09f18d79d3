//! The library as its users see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use quintet::runtime::MemberReport;
use quintet::{
    At, Cluster, Error, RestoreError, SmallStateMachine, SnapshotProgress, StateMachine,
};
use std::time::{Duration, Instant};
use support::eventually;

#[derive(Clone, Default)]
struct Log(Vec<u8>);

impl SmallStateMachine for Log {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        self.0.extend_from_slice(command);
        self.0.clone()
    }
    fn query(&self, _: &[u8]) -> Vec<u8> {
        self.0.clone()
    }
    fn encode(&self) -> Vec<u8> {
        self.0.clone()
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self(bytes.to_vec()))
    }
}

/// The first test runs the example of the documentation.
#[test]
fn documentation_shows_the_example_as_it_is() {
    let example = include_str!("../../../examples/counter.rs");
    let example: Vec<_> = example
        .lines()
        .skip_while(|line| line.starts_with("//!") || line.is_empty())
        .collect();
    let library = include_str!("../src/lib.rs").lines();
    let shown: Vec<_> = library
        .skip_while(|line| *line != "//! ```")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| {
            line.trim_start_matches("//!")
                .strip_prefix(' ')
                .unwrap_or("")
        })
        .collect();
    assert_eq!(example, shown);
    assert!(example.len() <= 36, "{} lines", example.len());
}

#[test]
fn commands_are_ordered_and_reads_see_them_at_every_replica() {
    let cluster = Cluster::local(3).start(Log::default()).unwrap();
    let mut expected = Vec::new();
    for byte in b"abcdefghi" {
        expected.push(*byte);
        // The replicas take turns, so each of them forwards some.
        assert_eq!(cluster.apply(&[*byte]).unwrap(), expected);
        assert_eq!(cluster.query(b"").unwrap(), expected);
    }
    assert_eq!(cluster.status().count(), 3);
}

#[test]
fn minority_may_stop_and_a_majority_may_not() {
    let deadline = Duration::from_secs(8);
    let mut cluster = Cluster::local(3)
        .deadline(deadline)
        .start(Log::default())
        .unwrap();
    cluster.apply(b"a").unwrap();
    cluster.stop(1);
    assert_eq!(cluster.apply(b"b").unwrap(), b"ab");
    cluster.stop(2);
    match cluster.apply(b"c") {
        Err(Error::NoQuorum | Error::Uncertain) => {}
        other => panic!("without a majority: {other:?}"),
    }
    cluster.stop(0);
    assert!(matches!(cluster.query(b""), Err(Error::Stopped)));
}

#[test]
fn directory_keeps_the_data() {
    let directory = tempfile::tempdir().unwrap();
    let start = || {
        Cluster::local(3)
            .directory(directory.path())
            .start(Log::default())
            .unwrap()
    };
    let cluster = start();
    cluster.apply(b"kept").unwrap();
    drop(cluster);
    assert_eq!(start().query(b"").unwrap(), b"kept");
}

#[test]
fn wrong_settings_are_named() {
    let refusal = |cluster: Result<Cluster, Error>| cluster.unwrap_err().to_string();
    let text = refusal(
        Cluster::local(3)
            .protocol("multi-paxos")
            .start(Log::default()),
    );
    assert!(
        text.contains("'multi-paxos'") && text.contains("'multipaxos'"),
        "{text}"
    );
    let text = refusal(
        Cluster::local(3)
            .option("no_such", "1")
            .start(Log::default()),
    );
    assert!(text.contains("no_such"), "{text}");
    let raw = Cluster::local(3)
        .protocol("derecho")
        .option("delivery", "raw");
    let text = refusal(raw.start(Log::default()));
    assert!(text.contains("without an order"), "{text}");
    let text = refusal(Cluster::local(0).start(Log::default()));
    assert!(text.contains("members"), "{text}");
}

/// A machine that implements the whole trait: the sum of numbers, and how often it was asked.
#[derive(Clone, Default)]
struct Sum {
    total: i64,
    restored: Vec<u8>,
    unordered: bool,
}

impl StateMachine for Sum {
    fn apply(&mut self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        let number = std::str::from_utf8(command)
            .ok()
            .and_then(|text| text.parse::<i64>().ok());
        match number {
            Some(number) => {
                self.total = self.total.wrapping_add(number);
                reply.extend_from_slice(self.total.to_string().as_bytes());
            }
            None => reply.extend_from_slice(b"not a number"),
        }
    }

    fn takes_unordered(&self) -> bool {
        self.unordered
    }

    fn query(&self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(self.total.to_string().as_bytes());
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        out.extend_from_slice(&self.total.to_le_bytes());
        SnapshotProgress::Done
    }

    fn begin_restore(&mut self) {
        self.restored.clear();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.restored.extend_from_slice(chunk);
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        let bytes = self.restored.as_slice().try_into();
        self.total = i64::from_le_bytes(bytes.map_err(|_| RestoreError("not 8 bytes".to_owned()))?);
        Ok(())
    }

    fn digest(&self) -> u128 {
        self.total as u128
    }
}

#[test]
fn whole_state_machine_is_replicated_too() {
    let cluster = Cluster::local(3).start(Sum::default()).unwrap();
    assert_eq!(cluster.apply(b"40").unwrap(), b"40");
    assert_eq!(cluster.apply(b"2").unwrap(), b"42");
    assert_eq!(cluster.apply(b"two").unwrap(), b"not a number");
    assert_eq!(cluster.query(b"").unwrap(), b"42");
}

#[test]
fn sender_without_order_may_choose_unordered() {
    let raw = Cluster::local(3)
        .protocol("derecho")
        .option("delivery", "raw");
    let sum = Sum {
        unordered: true,
        ..Sum::default()
    };
    let cluster = raw.start(sum).unwrap();
    // The replicas take turns.
    for number in 1..=30 {
        cluster.apply(number.to_string().as_bytes()).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    for _ in 0..3 {
        while cluster.query(b"").unwrap() != b"465" {
            assert!(Instant::now() < deadline, "each has heard of all");
        }
    }
}

#[test]
fn many_threads_may_use_one_cluster() {
    let cluster = Cluster::local(3).start(Sum::default()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    cluster.apply(b"1").unwrap();
                }
            });
        }
    });
    assert_eq!(cluster.query(b"").unwrap(), b"100");
}

#[test]
fn members_and_protocol_change_while_commands_continue() {
    let directory = tempfile::tempdir().unwrap();
    let at = |replicas| Cluster::local(replicas).directory(directory.path());
    let mut cluster = at(3).start(Log::default()).unwrap();
    assert_eq!(cluster.apply(b"a").unwrap(), b"a");
    let report = cluster.switch("nezha", &[]).unwrap();
    assert_eq!((report.epoch, report.protocol.as_str()), (2, "nezha"));
    assert_eq!(cluster.switch("nezha", &[]).unwrap(), report);
    assert_eq!(cluster.apply(b"b").unwrap(), b"ab");

    cluster.stop(1);
    assert_eq!(cluster.apply(b"c").unwrap(), b"abc");
    cluster.replace(1, Log::default()).unwrap();
    assert_eq!(cluster.join(Log::default()).unwrap(), 3);
    assert_eq!(cluster.report().unwrap().members.len(), 4);
    // The newcomers count: with them, another may stop.
    let has_state = || {
        let members = cluster.report().unwrap().members;
        let counts = |it: &MemberReport| it.role == "voter" && it.has_state == Some(true);
        members.iter().all(counts)
    };
    eventually("all have the state", || has_state().then_some(()));
    cluster.stop(0);
    assert_eq!(cluster.apply(b"d").unwrap(), b"abcd");

    // Invalid changes are refused.
    let refused = |result: Result<(), Error>, part: &str| match result {
        Err(Error::Change(why)) => assert!(why.contains(part), "{why}"),
        other => panic!("{part}: {other:?}"),
    };
    refused(cluster.switch("nope", &[]).map(drop), "no protocol");
    refused(
        cluster.replace(2, Log::default()),
        "only one that has stopped",
    );
    refused(cluster.replace(9, Log::default()), "no replica 9");
    refused(cluster.remove(9).map(drop), "no replica 9");
    drop(cluster);

    // Started again it has the members that it had, and one goes.
    let mut cluster = at(3).start(Log::default()).unwrap();
    assert_eq!(cluster.query(b"").unwrap(), b"abcd");
    assert_eq!(cluster.remove(3).unwrap().members.len(), 3);
    assert_eq!(cluster.apply(b"e").unwrap(), b"abcde");
    assert_eq!(cluster.status().count(), 3);
    assert_eq!(cluster.join(Log::default()).unwrap(), 3);

    // The first one goes, too; the others keep their numbers, and the next one gets its.
    let ids = |cluster: &Cluster| -> Vec<u16> {
        let members = cluster.report().unwrap().members;
        members.iter().map(|it| it.id).collect()
    };
    cluster.remove(0).unwrap();
    assert_eq!(ids(&cluster), [1, 2, 3]);
    assert_eq!(cluster.apply(b"f").unwrap(), b"abcdef");
    drop(cluster);
    let mut cluster = at(3).start(Log::default()).unwrap();
    assert_eq!(cluster.query(b"").unwrap(), b"abcdef");
    assert_eq!(ids(&cluster), [1, 2, 3]);
    assert_eq!(cluster.join(Log::default()).unwrap(), 0);
    assert_eq!(cluster.apply(b"g").unwrap(), b"abcdefg");
}
