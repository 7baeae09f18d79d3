//! A snapshot is a state: it restores under any protocol, and in every later build.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{path::Path, process::Stdio};
use support::{Demo, Guard, base_port, eventually, http_get, quintet, run, stderr};

/// Restores a file into a new directory.
fn restore(file: &Path, dir: &Path, more: &[&str]) {
    let (file, dir) = (file.display().to_string(), dir.display().to_string());
    let mut arguments = vec!["snapshot", "restore", &file, "--dir", &dir];
    arguments.extend(more);
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
}

fn inspect(file: &Path) -> serde_json::Value {
    let output = run(&[
        "snapshot",
        "inspect",
        &file.display().to_string(),
        "-o",
        "json",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts a demo on a restored directory: everything is there at every replica, continues with
/// positions and takes writes, also after a restart.
fn serves(dir: &Path, protocol: &str, position: u64) {
    let base = base_port(3);
    for start in 0..2 {
        let demo = Demo::start(dir, base, &[]);
        for replica in &demo.replicas {
            let mut client = replica.client();
            assert_eq!(client.ask(&["GET", "key:7"]).unwrap(), "value:7");
            assert_eq!(client.ask(&["HGET", "hash", "b"]).unwrap(), "2");
        }
        let mut client = demo.replicas[2].client();
        assert_eq!(
            client.ask(&["INCR", "starts"]).unwrap(),
            (start + 1).to_string()
        );
        let status = demo.replicas[2].status().unwrap();
        assert_eq!(status["protocol"], protocol);
        // The published position may be a little old.
        eventually("positions continue", || {
            let status = demo.replicas[2].status()?;
            (status["position"].as_u64()? > position).then_some(())
        });
        assert_eq!(demo.interrupt(), Some(0));
    }
}

/// A demo of that protocol with a little data, saved to a file.
fn saved(root: &Path, protocol: &str) -> std::path::PathBuf {
    let dir = root.join(protocol);
    let file = root.join(format!("{protocol}.snapshot"));
    let demo = Demo::start(&dir, base_port(3), &["--protocol", protocol]);
    let mut client = demo.replicas[0].client();
    for number in 0..20 {
        let (key, value) = (format!("key:{number}"), format!("value:{number}"));
        assert_eq!(client.ask(&["SET", &key, &value]).unwrap(), "OK");
    }
    client.ask(&["HSET", "hash", "a", "1", "b", "2"]).unwrap();
    let (from, to) = (dir.display().to_string(), file.display().to_string());
    let output = run(&["snapshot", "save", "--dir", &from, &to]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(demo.interrupt(), Some(0));
    file
}

fn restores_into(source: &str, targets: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let file = saved(directory.path(), source);
    let contents = inspect(&file);
    assert_eq!(contents["protocol"], source);
    assert_eq!(contents["limits"]["value_bytes_max"], 64 << 20);
    assert!(contents["options"].as_object().unwrap().len() > 5);
    let position = contents["position"].as_u64().unwrap();
    for target in targets {
        let dir = directory.path().join(format!("to-{target}"));
        restore(&file, &dir, &["--protocol", target]);
        serves(&dir, target, position);
    }
}

#[test]
fn multipaxos_snapshot_restores_into_other_protocols() {
    restores_into("multipaxos", &["multipaxos", "nezha", "chora"]);
}

#[test]
fn nezha_snapshot_restores_into_other_protocols() {
    restores_into("nezha", &["multipaxos", "nezha", "chora"]);
}

#[test]
fn chora_snapshot_restores_into_other_protocols() {
    restores_into("chora", &["multipaxos", "nezha", "chora"]);
}

#[test]
fn snapshot_of_each_other_protocol_restores_into_multipaxos() {
    for source in ["chain_paxos", "derecho", "mencius", "racs"] {
        restores_into(source, &["multipaxos"]);
    }
}

#[test]
fn restored_state_starts_under_each_other_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let file = fixture("format-1-multipaxos.snapshot");
    for target in ["chain_paxos", "derecho", "mencius", "racs"] {
        let dir = directory.path().join(target);
        restore(&file, &dir, &["--protocol", target]);
        serves(&dir, target, 20);
    }
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Made by builds that are gone; each must restore as long as there is a program.
#[test]
fn snapshots_of_earlier_formats_restore() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["format-1-multipaxos", "format-1-nezha"] {
        let file = fixture(&format!("{name}.snapshot"));
        let contents = inspect(&file);
        assert_eq!(contents["entries"], 25);
        let dir = directory.path().join(name);
        restore(&file, &dir, &[]);
        serves(&dir, "multipaxos", contents["position"].as_u64().unwrap());
    }
}

/// Its cluster executes nothing, as the other members are not there.
#[test]
fn restored_state_is_saved_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = fixture("format-1-multipaxos.snapshot");
    let dir = directory.path().join("restored");
    restore(&file, &dir, &[]);
    let base = base_port(1);
    let (redis, admin) = (
        format!("127.0.0.1:{base}"),
        format!("127.0.0.1:{}", base + 100),
    );
    let mut command = quintet();
    command
        .args(["serve", "--redis-listen", &redis, "--admin-listen", &admin])
        .args(["--peer-listen", &format!("127.0.0.1:{}", base + 200)])
        .arg("--config")
        .arg(dir.join("replica-0/quintet.toml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _replica = Guard(command.spawn().unwrap());
    eventually("the replica answers", || http_get(&admin, "/livez"));
    let second = directory.path().join("second.snapshot");
    let output = run(&[
        "snapshot",
        "save",
        "--admin",
        &admin,
        &second.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(inspect(&second)["entries"], inspect(&file)["entries"]);
}

#[test]
fn restore_changes_options_and_keeps_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let file = fixture("format-1-multipaxos.snapshot");
    let dir = directory.path().join("first");
    restore(
        &file,
        &dir,
        &["--set", "window=32", "--set", "heartbeat_ms=90"],
    );
    let demo = Demo::start(&dir, base_port(3), &[]);
    let status = demo.replicas[0].status().unwrap();
    assert_eq!(status["options"]["window"], "32");
    let second = directory.path().join("second.snapshot");
    let (from, to) = (dir.display().to_string(), second.display().to_string());
    let output = run(&["snapshot", "save", "--dir", &from, &to]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(demo.interrupt(), Some(0));
    let refused = run(&["demo", "--dir", &from, "--set", "window=64"]);
    assert_eq!(refused.status.code(), Some(7));
    let text = stderr(&refused);
    assert!(text.contains("window = 32, not 64"), "{text}");
    assert!(!text.contains("[("), "{text}");
    let dir = directory.path().join("again");
    restore(&second, &dir, &["--set", "window=16"]);
    let demo = Demo::start(&dir, base_port(3), &[]);
    let status = demo.replicas[0].status().unwrap();
    assert_eq!(status["options"]["window"], "16");
    assert_eq!(status["options"]["heartbeat_ms"], "90");
    assert_eq!(demo.interrupt(), Some(0));
}
