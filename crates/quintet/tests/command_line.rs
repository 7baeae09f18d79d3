//! Exit codes and messages of every command, as a person or a script meets them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;

use support::{base_port, run, stderr, stdout};

fn fails(arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{arguments:?}: no '{part}' in: {text}");
    }
}

#[test]
fn help_and_version_end_well() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("Exit codes:"));
    for command in [
        "demo",
        "serve",
        "status",
        "protocols",
        "bench",
        "simulate",
        "check",
        "snapshot",
        "journal",
        "config",
    ] {
        let output = run(&[command, "--help"]);
        assert!(output.status.success(), "{command}");
        assert!(stdout(&output).contains("Example"), "{command}");
    }
    assert!(stdout(&run(&["--version"])).starts_with("quintet "));
}

#[test]
fn help_names_a_command_as_an_argument() {
    let output = run(&["help", "demo"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("--base-port"));
}

#[test]
fn protocol_list_fits_a_hundred_columns_when_piped() {
    let text = stdout(&run(&["protocols"]));
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?} columns:\n{text}");
}

#[test]
fn config_new_refuses_what_config_check_refuses() {
    let address = "is not host:port";
    fails(
        &["config", "new", "--members", "a,b"],
        2,
        &["members: 'a'", address],
    );
    fails(
        &["config", "new", "--members", "a:1,a:1"],
        2,
        &["there twice"],
    );
    let members = ["config", "new", "--members", "a:7201,b:7201,c:7201"];
    assert!(run(&members).status.success());
}

#[test]
fn no_command_shows_the_help_and_is_a_usage_error() {
    fails(&[], 2, &["Usage:"]);
}

#[test]
fn a_mistyped_command_or_flag_gets_a_suggestion() {
    fails(&["demos"], 2, &["demo"]);
    fails(&["demo", "--replica", "3"], 2, &["--replicas"]);
    fails(&["serve", "--clients-mx", "3"], 2, &["--clients-max"]);
    fails(&["demo", "--replicas", "many"], 2, &["many"]);
    fails(&["demo", "--durability", "tape"], 2, &["disk", "memory"]);
}

#[test]
fn a_mistyped_protocol_or_option_gets_a_suggestion() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo").display().to_string();
    for command in [vec!["simulate"], vec!["demo", "--dir", &dir]] {
        let with = |more: &[&'static str]| -> Vec<&str> {
            command
                .iter()
                .copied()
                .chain(more.iter().copied())
                .collect()
        };
        let wrong = with(&["--protocol", "multipaxso"]);
        fails(
            &wrong,
            2,
            &[
                "unknown protocol 'multipaxso'",
                "did you mean 'multipaxos'?",
            ],
        );
        let wrong = with(&["--set", "windwo=3"]);
        fails(&wrong, 2, &["no option 'windwo'", "did you mean 'window'?"]);
        fails(&with(&["--set", "window=many"]), 2, &["window", "many"]);
        fails(&with(&["--set", "window"]), 2, &["option=value"]);
        let raw = ["--protocol", "derecho", "--set", "delivery=raw"];
        fails(
            &with(&raw),
            2,
            &["delivers without an order", "leave the option out"],
        );
    }
}

#[test]
fn protocols_are_listed_for_people_and_programs() {
    let text = stdout(&run(&["protocols"]));
    assert!(
        text.contains("NAME") && text.contains("multipaxos"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&stdout(&run(&["protocols", "-o", "json"]))).unwrap();
    let protocol = json
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "multipaxos");
    for field in ["paper", "best_at", "faults_tolerated", "status"] {
        assert!(protocol.unwrap()[field].is_string(), "{field}");
    }
    assert!(protocol.unwrap()["options"][0]["help"].is_string());
    assert!(stdout(&run(&["protocols", "multipaxos"])).contains("--set OPTION=VALUE"));
    fails(
        &["protocols", "multipaxo"],
        2,
        &["did you mean 'multipaxos'?"],
    );
}

#[test]
fn completions_are_scripts_of_the_shell() {
    assert!(stdout(&run(&["completions", "bash"])).contains("complete -F _quintet"));
    assert!(stdout(&run(&["completions", "zsh"])).starts_with("#compdef quintet"));
    assert!(stdout(&run(&["completions", "fish"])).contains("complete -c quintet"));
    fails(&["completions", "dash"], 2, &["bash"]);
}

#[test]
fn nobody_there_is_told_from_somebody_ill() {
    let closed = format!("127.0.0.1:{}", base_port(1));
    fails(&["status", "--admin", &closed], 3, &["no replica answers"]);
    fails(&["bench", &closed], 3, &["cannot connect", "quintet demo"]);
    fails(&["bench", "http://127.0.0.1:1"], 2, &["redis://"]);
    fails(
        &["status", "--admin", "nowhere"],
        2,
        &["http://127.0.0.1:7101"],
    );
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().display().to_string();
    fails(&["status", "--dir", &empty], 2, &["--admin", "--dir"]);
}

#[test]
fn configurations_are_written_checked_and_explained() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one.toml");
    let output = run(&[
        "config",
        "new",
        "--members",
        "127.0.0.1:7201,127.0.0.1:7202",
        "--id",
        "1",
    ]);
    assert!(output.status.success());
    std::fs::write(&file, &output.stdout).unwrap();
    let path = file.display().to_string();
    let output = run(&["config", "check", "--config", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("replica 1 of 2"));

    // Without a file there is still a list of all keys.
    let output = run(&["config", "show"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let all = stdout(&output);
    let cluster = all.lines().find(|line| line.contains("cluster"));
    assert!(cluster.is_some_and(|line| line.contains("(not set)")));
    assert!(all.contains("limits.batch_requests"), "{all}");
    fails(
        &["config", "check"],
        2,
        &["cluster is not set", "config new"],
    );

    let show = [
        "config",
        "show",
        "--config",
        &path,
        "--clients-max",
        "77",
        "--origin",
    ];
    let output = support::quintet()
        .args(show)
        .args(["-o", "json"])
        .env("QUINTET_SPIN_MAX", "7us")
        .output()
        .unwrap();
    let rows: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let row = |key: &str| {
        rows.as_array()
            .unwrap()
            .iter()
            .find(|row| row["key"] == key)
            .unwrap()
    };
    assert_eq!(row("clients_max")["origin"], "--clients-max");
    assert_eq!(row("clients_max")["value"], "77");
    assert_eq!(row("spin_max")["origin"], "QUINTET_SPIN_MAX");
    assert_eq!(row("protocol")["origin"], "default");
    assert!(row("id")["origin"].as_str().unwrap().contains("one.toml:"));
    assert_eq!(row("secret")["value"], "(hidden)");

    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("\nid = ", "\nidd = ");
    std::fs::write(&file, text).unwrap();
    fails(
        &["config", "check", "--config", &path],
        2,
        &["one.toml:10: unknown key 'idd'", "did you mean 'id'?"],
    );
    fails(&["serve", "--config", &path], 2, &["unknown key 'idd'"]);
    fails(
        &["serve", "--config", "/no/such/file"],
        2,
        &["/no/such/file", "no such file"],
    );
    fails(&["serve"], 2, &["cluster is not set", "QUINTET_CLUSTER"]);
    fails(&["--log", "a=b=c", "serve"], 2, &["--log"]);
}

#[test]
fn a_demo_over_datagrams_of_a_protocol_that_needs_streams_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo").display().to_string();
    let wrong = [
        "demo",
        "--dir",
        &dir,
        "--protocol",
        "derecho",
        "--transport",
        "udp",
    ];
    fails(&wrong, 2, &["--transport", "'derecho'", "another protocol"]);
}

#[test]
fn a_public_address_without_a_password_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one.toml");
    std::fs::write(
        &file,
        run(&["config", "new", "--members", "127.0.0.1:7201"]).stdout,
    )
    .unwrap();
    let path = file.display().to_string();
    let public = ["serve", "--config", &path, "--redis-listen", "0.0.0.0:7001"];
    fails(&public, 2, &["reachable from other machines", "password"]);
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
fn a_script_is_replayed_with_its_picture_and_says_by_its_code_whether_it_still_fails() {
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

    // After healing nobody asks for anything, so the core never shows that it goes on.
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
fn a_small_scope_is_searched_whole() {
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
fn a_file_that_is_no_snapshot_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x.snapshot");
    std::fs::write(
        &file,
        b"not a snapshot at all, but long enough to be looked at",
    )
    .unwrap();
    let path = file.display().to_string();
    fails(&["snapshot", "inspect", &path], 7, &["x.snapshot"]);
    std::fs::write(&file, b"").unwrap();
    fails(&["snapshot", "inspect", &path], 7, &["not whole"]);
    fails(
        &["snapshot", "inspect", "/no/such/file"],
        2,
        &["/no/such/file"],
    );
}

#[test]
fn a_history_gets_its_verdict_by_exit_code() {
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
        &["history.jsonl: line 2", "docs/histories.md"],
    );
    std::fs::write(&path, "").unwrap();
    fails(&["check", &file], 2, &["no operation"]);
    fails(
        &["check", "/no/such/file"],
        2,
        &["/no/such/file", "No such file"],
    );
}
