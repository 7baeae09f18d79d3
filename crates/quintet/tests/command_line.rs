//! Exit codes and messages of every command, as a person or a script meets them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;

use support::{base_port, fails, run, stderr, stdout};

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
fn mistyped_command_or_flag_gets_a_suggestion() {
    fails(&["demos"], 2, &["demo"]);
    fails(&["demo", "--replica", "3"], 2, &["--replicas"]);
    fails(&["serve", "--clients-mx", "3"], 2, &["--clients-max"]);
    fails(&["demo", "--replicas", "many"], 2, &["many"]);
    fails(&["demo", "--durability", "tape"], 2, &["disk", "memory"]);
}

#[test]
fn mistyped_protocol_or_option_gets_a_suggestion() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo").display().to_string();
    let with = |more: &[&'static str]| -> Vec<&str> { [&["demo", "--dir", &dir], more].concat() };
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
fn unreachable_differs_from_unhealthy() {
    let closed = format!("127.0.0.1:{}", base_port(1));
    fails(&["status", "--admin", &closed], 3, &["no replica answers"]);
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
fn demo_over_datagrams_rejects_protocol_that_needs_streams() {
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
fn public_address_without_a_password_is_refused() {
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
fn file_that_is_no_snapshot_is_refused() {
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
