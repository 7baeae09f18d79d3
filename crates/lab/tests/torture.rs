//! `quintet torture` with real processes: an honest run holds, a lie is detected.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../quintet/tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::{path::Path, process::Output};
use support::{quintet, stderr, stdout};

fn torture(directory: &Path, arguments: &[&str]) -> Output {
    quintet()
        .args([
            "torture", "--seed", "5", "--rate", "400", "--output", "json",
        ])
        .arg("--dir")
        .arg(directory.join("run"))
        .args(arguments)
        .output()
        .unwrap()
}

fn report(output: &Output) -> Value {
    let text = stdout(output);
    let line = text
        .lines()
        .last()
        .unwrap_or_else(|| panic!("{}", stderr(output)));
    serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}\n{}", stderr(output)))
}

#[test]
fn killed_replicas_lose_nothing_and_history_rechecks() {
    let directory = tempfile::tempdir().unwrap();
    let output = torture(
        directory.path(),
        &["--seconds", "4", "--faults", "kill,stop,reset"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report["lost"], 0);
    assert_eq!(report["non_linearizable"], 0);
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0));
    assert!(report["checked"].as_u64() > Some(10), "{report}");
    assert!(report["acknowledged"].as_u64() > Some(20), "{report}");
    for kind in ["kill", "stop", "reset"] {
        assert!(report["faults"][kind].as_u64() >= Some(1), "{report}");
    }
    let again = quintet()
        .arg("check")
        .arg(report["history"].as_str().unwrap())
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
}

#[test]
fn members_and_protocol_change_while_clients_work() {
    let directory = tempfile::tempdir().unwrap();
    let output = torture(
        directory.path(),
        &["--seconds", "4", "--faults", "members,protocol"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0));
    for kind in ["members", "protocol"] {
        assert!(report["faults"][kind].as_u64() >= Some(1), "{report}");
    }
}

#[test]
fn acknowledged_write_that_was_never_sent_is_detected() {
    // Lies are told by chance, and the last write of a key must be one for it to be missed in the
    // end: a machine that starves the clients may need longer for that.
    let (_directory, output, report) = ["2", "4", "8", "16", "32"]
        .into_iter()
        .map(|seconds| {
            let directory = tempfile::tempdir().unwrap();
            let arguments = [
                "--seconds",
                seconds,
                "--faults",
                "none",
                "--lie",
                "lose-writes",
            ];
            let output = torture(directory.path(), &arguments);
            let report = report(&output);
            (directory, output, report)
        })
        .find(|(_, _, report)| report["lost"].as_u64() >= Some(1))
        .expect("a write that was never sent is missed");
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    let history = report["history"].as_str().unwrap();
    assert!(stderr(&output).contains(history), "the evidence is named");
    let again = quintet().arg("check").arg(history).output().unwrap();
    assert_eq!(again.status.code(), Some(6), "{}", stderr(&again));
}

#[test]
fn invalid_scenario_is_rejected_before_run() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, word) in [
        (&["--faults", "flood"][..], "partition"),
        (&["--network", "carrier-pigeon"], "loopback"),
        (&["--replicas", "12", "--faults", "none"], "1 to 9"),
        (&["--faults", "members,partition"], "namespaces"),
        (&["--protocol", "multipaxo"], "multipaxos"),
        (&["--clients", "0", "--faults", "none"], "clients"),
    ] {
        let output = torture(directory.path(), arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(word),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(!directory.path().join("run").join("replica-0").exists());
        let _ = std::fs::remove_dir(directory.path().join("run"));
    }
}
