//! Exit codes and messages of the commands that `quintet-lab` carries out, as a person meets them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../quintet/tests/support/mod.rs"]
mod support;

use serde_json::Value;
use std::{fs, process::Stdio};
use support::{Demo, base_port, eventually, fails, run, stderr, stdout};

#[test]
fn quintet_runs_the_lab_and_hands_its_exit_code_on() {
    for command in ["bench", "simulate", "check", "torture"] {
        let output = run(&[command, "--help"]);
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        let help = stdout(&output);
        assert!(help.contains("Example"), "{command}: {help}");
        assert_eq!(stdout(&run(&["help", command])), help);
    }
    assert!(stdout(&run(&["simulate", "--help"])).contains("Usage: quintet simulate "));
    let of_run = stdout(&run(&["help", "lab", "run"]));
    assert!(of_run.contains("Usage: quintet lab run "), "{of_run}");
    let output = run(&["lab", "--help"]);
    assert!(stdout(&output).contains("Exit codes:"));
    assert!(stdout(&run(&["lab", "--version"])).starts_with("quintet-lab "));
    fails(&["lab"], 2, &["Usage:"]);
    fails(&["simulate", "--sed", "1"], 2, &["--seeds"]);
}

#[test]
fn quintet_names_the_remedy_when_the_lab_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("quintet");
    fs::copy(support::program(), &alone).unwrap();
    let output = std::process::Command::new(&alone)
        .args(["simulate", "--seeds", "0..1"])
        .env("PATH", directory.path())
        .env_remove("QUINTET_LAB")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("cargo build --release -p quintet-lab"),
        "{text}"
    );
    let output = support::quintet()
        .args(["lab", "list"])
        .env("QUINTET_LAB", directory.path().join("none"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("QUINTET_LAB"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn mistyped_protocol_or_option_gets_a_suggestion() {
    let wrong = ["simulate", "--protocol", "multipaxso"];
    fails(
        &wrong,
        2,
        &[
            "unknown protocol 'multipaxso'",
            "did you mean 'multipaxos'?",
        ],
    );
    let wrong = ["simulate", "--set", "windwo=3"];
    fails(&wrong, 2, &["no option 'windwo'", "did you mean 'window'?"]);
}

#[test]
fn bench_distinguishes_unreachable_from_wrong_address() {
    let closed = format!("127.0.0.1:{}", base_port(1));
    fails(&["bench", &closed], 3, &["cannot connect", "quintet demo"]);
    fails(&["bench", "http://127.0.0.1:1"], 2, &["redis://"]);
}

#[test]
fn simulate_ends_with_one_json_object() {
    let output = run(&[
        "simulate",
        "--seeds",
        "0..2",
        "--faults",
        "none",
        "--operations",
        "300",
    ]);
    let text = stdout(&output);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["seeds"], 2);
    for field in [
        "rejected",
        "stalls",
        "violations",
        "operations",
        "acknowledged",
    ] {
        assert!(last[field].is_u64(), "{field}: {text}");
    }
    assert!(last["faults"].is_object() && last["branches"].is_object());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    fails(&["simulate", "--seeds", "5..5"], 2, &["no seed"]);
    fails(
        &["simulate", "--seeds", "0..2", "--trace"],
        2,
        &["one seed"],
    );
    fails(
        &["simulate", "--faults", "gremlins"],
        2,
        &["gremlins", "network"],
    );
    fails(
        &["simulate", "--replicas", "500", "--seeds", "0..1"],
        2,
        &["500"],
    );
}

/// One write by one client, and the world ends.
const SCRIPT: &str = r#"format = 1
protocol = "multipaxos"
replicas = 3
seed = 7
durability = "disk"
transport = "stream"
operations = 300
faults = "none"

[expect]
property = ""
trace = ""

[limits]
end = "400ms"

[[turn]]
client = 0
turn = 0
at = "100ms"
"#;

#[test]
fn replayed_script_gives_diagram_and_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("script.toml");
    let path = file.display().to_string();
    let replay = |text: &str| {
        std::fs::write(&file, text).unwrap();
        run(&["simulate", "--replay", &path])
    };
    let output = replay(SCRIPT);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("c0 invokes 0"), "{text}");
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["property"], "");
    assert_eq!(last["as_written"], false);
    let page = std::fs::read_to_string(directory.path().join("script.html")).unwrap();
    assert!(page.contains("<svg") && page.contains(">r2<"));

    // After healing no client sends a request, so the core never shows that it continues.
    let silent = SCRIPT.replace("end = \"400ms\"", "heal = \"200ms\"\ncommits = 20");
    let output = replay(&silent);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(stderr(&output).contains("stall"), "{}", stderr(&output));

    for (from, to, line, word) in [
        ("format = 1", "format = 9", "line 1:", "format 9"),
        ("replicas = 3", "replicas = 0", "line 3:", "0 replicas"),
        ("seed = 7", "sed = 7", "line 4:", "sed"),
        ("\"disk\"", "\"tape\"", "line 5:", "disk"),
        ("\"none\"", "\"gremlins\"", "line 8:", "gremlins"),
        ("\"400ms\"", "\"soon\"", "line 15:", "soon"),
        ("turn = 0", "turn = zero", "line 19:", ""),
    ] {
        std::fs::write(&file, SCRIPT.replacen(from, to, 1)).unwrap();
        fails(&["simulate", "--replay", &path], 2, &[&path, line, word]);
    }
    fails(
        &["simulate", "--replay", "/no/such/file"],
        2,
        &["/no/such/file"],
    );
    fails(
        &["simulate", "--replay", &path, "--seeds", "1..2"],
        2,
        &["--seeds"],
    );
}

#[test]
fn small_scope_is_searched_whole() {
    let told = "commit_notice_us=0";
    let scope = [
        "simulate",
        "--exhaustive",
        "--set",
        "pre_vote=false",
        "--set",
        told,
    ];
    let small = ["--commands", "1", "--crashes", "0", "--timers", "0"];
    let output = run(&[&scope[..], &small[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["complete"], true);
    assert!(last["states"].as_u64().unwrap() > 100, "{text}");
    let output = run(&[&scope[..], &small[..], &["--states", "50"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    fails(
        &[&scope[..], &["--commands", "50"]].concat(),
        2,
        &["50 commands"],
    );
}

#[test]
fn history_gets_its_verdict_by_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.jsonl");
    let file = path.display().to_string();
    let set = r#"{"client":"a","invoked":1,"completed":2,"command":["SET","k","v"],"reply":"OK"}"#;
    let read = |reply: &str| {
        format!(
            r#"{{"client":"b","invoked":3,"completed":4,"command":["GET","k"],"reply":{reply}}}"#
        )
    };
    std::fs::write(&path, format!("{set}\n{}\n", read("\"v\""))).unwrap();
    let output = run(&["check", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("linearizable: 2 operations"));

    std::fs::write(&path, format!("{set}\n\n{}\n", read("null"))).unwrap();
    let parts = [
        "line 1: client a",
        "SET k v -> OK",
        "line 3: client b",
        "GET k -> (nil)",
    ];
    fails(&["check", &file], 6, &parts);
    let output = run(&["check", &file, "--output", "json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["lines"], serde_json::json!([1, 3]));

    std::fs::write(&path, format!("{set}\n{{\"client\":\"a\"\n")).unwrap();
    fails(
        &["check", &file],
        2,
        &["history.jsonl: line 2", "docs/design/histories.md"],
    );
    std::fs::write(&path, "").unwrap();
    fails(&["check", &file], 2, &["no operation"]);
    fails(
        &["check", "/no/such/file"],
        2,
        &["/no/such/file", "No such file"],
    );
}

#[test]
fn demo_of_one_serves_and_its_load_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let demo = Demo::start(
        &dir,
        base_port(1),
        &["--replicas", "1", "--durability", "memory"],
    );
    let url = format!("redis://{}", demo.replicas[0].redis);
    let base = [
        "bench",
        &url,
        "-o",
        "json",
        "--seconds",
        "0.3",
        "--warmup",
        "0.1",
    ];
    let shapes: [&[&str]; 4] = [
        &["--clients", "5"],
        &[
            "--clients",
            "5",
            "--pipeline",
            "8",
            "--read-ratio",
            "0.5",
            "--keys",
            "300",
        ],
        &[
            "--rate",
            "500",
            "--distribution",
            "zipf",
            "--value-size",
            "1KiB",
        ],
        &[
            "--clients",
            "7",
            "--threads",
            "2",
            "--read-ratio",
            "1",
            "--keys",
            "10",
        ],
    ];
    for shape in shapes {
        // On a machine that is busy otherwise a short run may get no answer at all.
        let output = eventually("a measurement", || {
            let output = run(&[&base, shape].concat());
            output.status.success().then_some(output)
        });
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["requests"].as_u64() > Some(0), "{shape:?}: {report}");
        let latency = &report["latency_microseconds"];
        assert!(latency["p50"].as_f64() > Some(0.0), "{report}");
        assert!(
            latency["p50"].as_f64() <= latency["max"].as_f64(),
            "{report}"
        );
        assert_eq!(report["unanswered"], 0, "{report}");
    }
    let keys: u64 = demo.replicas[0]
        .client()
        .ask(&["DBSIZE"])
        .unwrap()
        .parse()
        .unwrap();
    assert!((10..=10_000).contains(&keys), "{keys}");
    assert_eq!(demo.interrupt(), Some(0));
}
