//! The terms that members must have in common: compared on links, kept in the data directory.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Cluster, Counter, TIMEOUT};
use quintet_replica::{Durability, StateMachine};
use quintet_runtime::{Config, Listeners, Proxy, Replica, Running};
use quintet_store::{Store, StoreOptions};
use std::{
    fs,
    net::TcpListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

type Change = fn(&mut Config);

fn store(config: &Config) -> Box<dyn StateMachine> {
    Box::new(Store::new(StoreOptions {
        max_key_bytes: config.limits.key_bytes_max,
        max_value_bytes: config.limits.value_bytes_max,
        ..StoreOptions::default()
    }))
}

fn start(config: &Config, listener: TcpListener) -> Running {
    let listeners = Listeners {
        peer: Some(listener),
        ..Listeners::default()
    };
    Replica::start_on(config.clone(), store(config), listeners).expect("starts")
}

/// Two members of which the second is configured otherwise: the reason why the first is not
/// connected to it, or none if it is.
fn between_two(root: &Path, base: Change, change: Change) -> Option<String> {
    let (mut cluster, listeners) = Cluster::prepare(root, 2, Durability::Memory);
    cluster.configs.iter_mut().for_each(base);
    change(&mut cluster.configs[1]);
    let running: Vec<Running> = (cluster.configs.iter().zip(listeners))
        .map(|(config, listener)| start(config, listener))
        .collect();
    let begun = Instant::now();
    loop {
        let status = running[0].handle().status();
        let peer = status.peers.first();
        if peer.is_some_and(|peer| peer.connected) {
            return None;
        }
        if let Some(error) = peer.and_then(|peer| peer.error.clone())
            && error.contains("mismatch")
        {
            return Some(error);
        }
        assert!(begun.elapsed() < TIMEOUT, "{status:#?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn members_with_one_different_value_refuse_each_other() {
    let cases: [(Change, &str); 5] = [
        (
            |config| config.limits.value_bytes_max = 1 << 20,
            "limit 'value_bytes_max'",
        ),
        (
            |config| config.limits.key_bytes_max = 1 << 10,
            "limit 'key_bytes_max'",
        ),
        (
            |config| config.limits.memory_max = 1 << 30,
            "limit 'memory_max'",
        ),
        (
            |config| config.session_lifetime = Duration::from_secs(60),
            "limit 'session_lifetime_ms'",
        ),
        (
            |config| config.options = vec![("window".to_owned(), "65".to_owned())],
            "option 'window'",
        ),
    ];
    for (change, name) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let reason = between_two(directory.path(), |_| {}, change);
        let reason = reason.unwrap_or_else(|| panic!("{name}: they work together"));
        assert!(reason.contains(name), "{reason}");
        assert!(reason.contains("ours ") && reason.contains("theirs "));
    }
}

#[test]
fn every_option_of_every_protocol_is_compared() {
    for entry in quintet_protocols::PROTOCOLS {
        let complete = (entry.complete)(&[]);
        let options = entry.options.iter().filter(|spec| spec.name != "bug");
        assert_eq!(complete.len(), options.count(), "{}", entry.info.name);
        assert!(complete.is_sorted());
        assert_eq!((entry.check)(&complete), Ok(()));
    }
}

#[test]
fn defaults_that_are_written_out_make_no_difference() {
    let directory = tempfile::tempdir().expect("a directory");
    let written: Change = |config| {
        let all = [("window", "064"), ("pre_vote", "true")];
        config.options = all
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
    };
    assert_eq!(between_two(directory.path(), |_| {}, written), None);
}

#[test]
fn proxy_with_other_quorum_checks_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut cluster, mut listeners) = Cluster::prepare(directory.path(), 1, Durability::Memory);
    cluster.configs[0].protocol = "nezha".to_owned();
    let replica = start(&cluster.configs[0], listeners.remove(0));
    let mut config = cluster.configs[0].clone();
    config.options = vec![("quorum_checks".to_owned(), "leader".to_owned())];
    let proxy = Proxy::start(&config, &*store(&config)).expect("starts");
    let begun = Instant::now();
    loop {
        let status = proxy.handle().status();
        let error = status.peers.first().and_then(|peer| peer.error.clone());
        if let Some(error) = error.filter(|error| error.contains("mismatch")) {
            assert!(
                error.contains("option 'quorum_checks': ours sender, theirs leader"),
                "{error}"
            );
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{status:#?}");
        thread::sleep(Duration::from_millis(5));
    }
    drop((proxy, replica));
}

fn alone(root: &Path) -> Config {
    let (cluster, _) = Cluster::prepare(root, 1, Durability::Disk);
    cluster.configs[0].clone()
}

fn refusal(config: &Config) -> String {
    let error = Replica::start(config.clone(), store(config)).expect_err("refused");
    assert_eq!(error.exit_code(), 7, "{error}");
    error.to_string()
}

#[test]
fn changed_configuration_is_refused_with_both_values() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = alone(directory.path());
    drop(Replica::start(config.clone(), store(&config)).expect("starts"));
    let mut changed = config.clone();
    changed.options = vec![("heartbeat_ms".to_owned(), "50".to_owned())];
    changed.limits.value_bytes_max = 1 << 20;
    let text = refusal(&changed);
    for part in [
        "option 'heartbeat_ms': configured 50, agreed on 100",
        "limit 'value_bytes_max': configured 1048576, agreed on 67108864",
        "quintet snapshot save",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let mut other = config.clone();
    other.protocol = "mencius".to_owned();
    assert!(refusal(&other).contains("protocol: configured mencius, agreed on multipaxos"));
    drop(Replica::start(config.clone(), store(&config)).expect("starts as before"));
}

#[test]
fn cluster_in_memory_begins_again_with_other_settings() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut config = alone(directory.path());
    config.durability = Durability::Memory;
    drop(Replica::start(config.clone(), store(&config)).expect("starts"));
    let mut changed = config.clone();
    changed.options = vec![("heartbeat_ms".to_owned(), "50".to_owned())];
    changed.limits.value_bytes_max = 1 << 20;
    let differs = "option 'heartbeat_ms': configured 50, agreed on 100";
    assert!(refusal(&changed).contains(differs));
    changed.bootstrap_again = true;
    drop(Replica::start(changed.clone(), store(&changed)).expect("begins again"));
    let differs = "option 'heartbeat_ms': configured 100, agreed on 50";
    assert!(refusal(&config).contains(differs));
    config.bootstrap_again = true;
    drop(Replica::start(config.clone(), store(&config)).expect("begins again"));
}

/// A machine of another version.
struct Newer(Counter);

impl StateMachine for Newer {
    fn semantics(&self) -> u32 {
        2
    }
    fn apply(&mut self, at: &quintet_replica::At, command: &[u8], reply: &mut Vec<u8>) {
        self.0.apply(at, command, reply);
    }
    fn query(&self, at: &quintet_replica::At, command: &[u8], reply: &mut Vec<u8>) {
        self.0.query(at, command, reply);
    }
    fn snapshot_chunk(
        &mut self,
        out: &mut Vec<u8>,
        budget: usize,
    ) -> quintet_replica::SnapshotProgress {
        self.0.snapshot_chunk(out, budget)
    }
    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), quintet_replica::RestoreError> {
        self.0.restore_chunk(chunk)
    }
    fn finish_restore(&mut self) -> Result<(), quintet_replica::RestoreError> {
        self.0.finish_restore()
    }
    fn digest(&self) -> u128 {
        self.0.digest()
    }
}

#[test]
fn other_version_of_the_state_machine_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = alone(directory.path());
    drop(Replica::start(config.clone(), Box::<Counter>::default()).expect("starts"));
    let newer = Box::new(Newer(Counter::default()));
    let error = Replica::start(config, newer).expect_err("refused");
    assert_eq!(error.exit_code(), 7);
    let text = error.to_string();
    assert!(
        text.contains("version of the state machine: configured 2, agreed on 1"),
        "{text}"
    );
}

#[test]
fn one_copy_of_the_epoch_is_enough_and_none_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = alone(directory.path());
    let open = || drop(Replica::start(config.clone(), store(&config)).expect("starts"));
    open();
    let files = ["epoch", "epoch-2"].map(|name| config.data.join(name));
    let text = fs::read_to_string(&files[0]).unwrap();
    assert_eq!(text, fs::read_to_string(&files[1]).unwrap());
    for file in &files {
        fs::write(file, &text[..40]).unwrap();
        open();
        assert_eq!(fs::read_to_string(file).unwrap(), text, "repaired");
        fs::remove_file(file).unwrap();
        open();
        assert_eq!(fs::read_to_string(file).unwrap(), text, "repaired");
    }
    for file in &files {
        fs::write(file, text.replace("descriptor", "descripter")).unwrap();
    }
    let refused = refusal(&config);
    assert!(
        refused.contains("Copy the file 'epoch' of the member with the highest epoch"),
        "{refused}"
    );
    for file in &files {
        fs::remove_file(file).unwrap();
    }
    assert!(refusal(&config).contains("missing"));
}

#[test]
fn status_shows_options_and_limits_but_never_the_seed() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = alone(directory.path());
    let running = Replica::start(config.clone(), store(&config)).expect("starts");
    let status = running.handle().status();
    assert_eq!(status.options["window"], "64");
    assert_eq!(status.limits["value_bytes_max"], 64 << 20);
    assert_eq!(status.limits["session_lifetime_ms"], 120_000);
    assert_eq!(status.limits["databases"], 16);
    assert_eq!(status.fingerprint.len(), 32);
    let names: Vec<_> = status.limits.keys().chain(status.options.keys()).collect();
    assert!(!names.iter().any(|name| name.contains("seed")), "{names:?}");
}
