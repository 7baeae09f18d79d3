//! `quintet lab` from outside.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::Command;
use support::{base_port, run, stderr, stdout};

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn a_comparison_measures_each_system_in_each_round() {
    if !is_installed("redis-server") {
        println!("skipped: redis-server is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let port = base_port(3).to_string();
    let arguments = [
        "lab",
        "compare",
        "quintet/memory",
        "redis/memory",
        "--quick",
        "--rounds",
        "2",
        "--clients",
        "4",
        "--reads",
        "0.5",
        "--seconds",
        "0.2",
        "--warmup",
        "0.1",
        "--keys",
        "100",
        "--dir",
        out,
        "--memory-dir",
        out,
        "--base-port",
        &port,
        "--out",
        out,
        "-o",
        "json",
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(found["is_complete"], true);
    let lines = found["lines"].as_array().unwrap();
    let systems: Vec<_> = lines.iter().map(|line| line["system"].as_str()).collect();
    assert_eq!(
        systems,
        [Some("quintet:multipaxos/memory"), Some("redis/memory")]
    );
    for line in lines {
        assert!(line["throughput"]["min"].as_f64() > Some(0.0), "{line}");
        assert_eq!(line["failed"], 0, "{line}");
    }
    assert_eq!(found["samples"].as_array().unwrap().len(), 4);
    let written = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).unwrap(),
        found
    );
    // Nothing is left behind but what was asked for.
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 1);
}

#[test]
fn what_cannot_be_compared_is_refused_with_what_can() {
    let output = run(&["lab", "compare", "etcdd/disk"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("accepted are quintet[:PROTOCOL], etcd"),
        "{}",
        stderr(&output)
    );
    let output = run(&["lab", "compare", "quintet:multipaxso"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("multipaxos"),
        "{}",
        stderr(&output)
    );
    let output = run(&["lab", "compare", "redis", "redis/disk"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("named twice"),
        "{}",
        stderr(&output)
    );
    let output = run(&["lab", "compare", "redis", "--redis", "no-such-program"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("not installed"),
        "{}",
        stderr(&output)
    );
}
