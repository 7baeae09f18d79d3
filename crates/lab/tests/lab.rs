//! `quintet lab` from outside.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../quintet/tests/support/mod.rs"]
mod support;

use std::process::Command;
use support::{base_port, run, stderr, stdout};

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn synchrony_is_measured_in_virtual_time_and_best_round_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let arguments = [
        "lab",
        "synchrony",
        "--delays-ns",
        "10",
        "--lengths-ns",
        "1000,5000",
        "--measured-ms",
        "2",
        "--out",
        out,
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("ROUND_US"), "{}", stdout(&output));
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("Fig. 9") && page.contains("<svg"), "{page}");
    let silent = run(&["lab", "synchrony", "--admin", "http://127.0.0.1:1"]);
    assert!(!silent.status.success());
    assert!(
        stderr(&silent).contains("127.0.0.1:1"),
        "{}",
        stderr(&silent)
    );
}

#[test]
fn comparison_measures_all_systems_per_round_and_resumes() {
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
        "0.5",
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
        // A busy machine may leave one of the short rounds without an answer, not both.
        assert!(line["throughput"]["max"].as_f64() > Some(0.0), "{line}");
        assert_eq!(line["failed"], 0, "{line}");
    }
    assert_eq!(found["samples"].as_array().unwrap().len(), 4);
    let written = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).unwrap(),
        found
    );
    // Nothing is left behind but what was asked for: the figures, what they are made of, the page.
    let mut left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        ["report.html", "results.csv", "results.json", "rows.jsonl"]
    );
    let csv = std::fs::read_to_string(directory.path().join("results.csv")).unwrap();
    assert_eq!(csv.lines().count(), 5);
    let columns = |line: &str| line.split(',').count();
    assert!(
        csv.lines()
            .all(|line| columns(line) == columns(csv.lines().next().unwrap()))
    );
    // The last round is cut off: the same command measures that one again, and no other.
    let kept = std::fs::read_to_string(directory.path().join("rows.jsonl")).unwrap();
    let whole: Vec<_> = kept.split_inclusive('\n').collect();
    std::fs::write(directory.path().join("rows.jsonl"), whole[..4].concat()).unwrap();
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let again = std::fs::read_to_string(directory.path().join("rows.jsonl")).unwrap();
    assert!(
        again.starts_with(&whole[..3].concat()),
        "the first round stands"
    );
    assert_eq!(again.lines().count(), 5);
    look_at(&directory.path().join("report.html"));
}

#[test]
fn unknown_system_is_rejected_with_list_of_known_ones() {
    let output = run(&["lab", "compare", "etcdd/disk"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("accepted are quintet[+shared-memory][:PROTOCOL], etcd"),
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

const SCENARIO: &str = "name = 'small'\nabout = 'a test'\nbackends = ['simulated', 'processes']\n\
                        protocols = ['multipaxos']\nreplicas = 3\ndurability = 'memory'\n\
                        warmup = '200ms'\nmeasured = '400ms'\nrepetitions = 2\n\
                        [workload]\nclients = 4\n[network]\ndelay = '5ms'\n\
                        [[plot]]\nx = 'time'\ny = 'throughput'\n\
                        [[fault]]\nkind = 'pause'\nreplica = 2\nat = '100ms'\nuntil = '200ms'\n";

fn lab_run(directory: &std::path::Path, out: &str, arguments: &[&str]) -> std::process::Output {
    let file = directory.join("small.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let out = directory.join(out);
    let mut all = vec![
        "lab",
        "run",
        file.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    all.extend(arguments);
    run(&all)
}

#[test]
fn simulated_runs_give_same_csv_and_resume() {
    let directory = tempfile::tempdir().unwrap();
    let read = |out: &str, name: &str| {
        std::fs::read_to_string(directory.path().join(out).join(name)).unwrap()
    };
    for out in ["one", "two"] {
        let output = lab_run(directory.path(), out, &["--backend", "simulated"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(
            stdout(&output).contains("multipaxos"),
            "{}",
            stdout(&output)
        );
    }
    let csv = read("one", "results.csv");
    assert_eq!(csv, read("two", "results.csv"));
    assert_eq!(csv.lines().count(), 3);
    let rows = read("one", "rows.jsonl");
    let output = lab_run(
        directory.path(),
        "one",
        &["--backend", "simulated", "--repetitions", "3"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        read("one", "rows.jsonl").starts_with(&rows),
        "what was done stands"
    );
    assert_eq!(read("one", "results.csv").lines().count(), 4);
    assert!(
        stderr(&output).contains("2 repetitions were measured by an earlier run"),
        "{}",
        stderr(&output)
    );
    let again = ["--backend", "simulated", "--repetitions", "3"];
    let output = lab_run(directory.path(), "one", &again);
    assert!(stderr(&output).contains("--fresh"), "{}", stderr(&output));
    let output = lab_run(
        directory.path(),
        "one",
        &[&again[..], &["--fresh"]].concat(),
    );
    assert!(!stderr(&output).contains("earlier"), "{}", stderr(&output));
    assert_eq!(read("one", "results.csv").lines().count(), 4);
    let page = read("one", "report.html");
    assert!(page.contains("<svg") && page.contains("pause of 2"));
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "it works offline"
    );
    let one = directory.path().join("one");
    let output = run(&["lab", "report", one.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(read("one", "report.html"), page);
    look_at(&one.join("report.html"));
}

/// A real browser draws the page: its plot is there, and it is wider than nothing.
fn look_at(page: &std::path::Path) {
    let Some(browser) = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|browser| is_installed(browser))
    else {
        println!("skipped: no browser is installed");
        return;
    };
    let shot = page.with_extension("png");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1100,900",
        ])
        .arg(format!("--screenshot={}", shot.display()))
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        std::fs::metadata(&shot).unwrap().len() > 10_000,
        "an empty page"
    );
}

/// The row of a run that must get answers; on a machine that is busy otherwise a short run may get
/// none, and is done again.
fn measured(mut run: impl FnMut() -> std::process::Output) -> serde_json::Value {
    support::eventually("answers", || {
        let output = run();
        assert!(output.status.success(), "{}", stderr(&output));
        let found: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let row = found["rows"][0].clone();
        (row["throughput"].as_f64() > Some(0.0)).then_some(row)
    })
}

#[test]
fn real_processes_run_the_same_scenario_over_emulated_links() {
    let directory = tempfile::tempdir().unwrap();
    let port = base_port(3).to_string();
    let data = directory.path().to_str().unwrap().to_owned();
    let arguments = [
        // The name of an earlier version.
        "--bed",
        "processes",
        "--repetitions",
        "1",
        "--base-port",
        &port,
        "--dir",
        &data,
        "--fresh",
        "-o",
        "json",
    ];
    let row = &measured(|| lab_run(directory.path(), "out", &arguments));
    // There and back, 5 ms each: frames never arrive before they would have.
    assert!(row["latency"]["p50"].as_f64() >= Some(10_000.0), "{row}");
    assert_eq!(row["backend"], "processes");
}

#[test]
fn replicas_in_namespaces_send_no_more_than_kernel_lets_them() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().to_str().unwrap().to_owned();
    // A leader sends each value twice: 1 MB/s are 50 values a second, and a burst is let through.
    let scenario = SCENARIO
        .replace("[network]\ndelay = '5ms'", "[network]\negress = '8Mbit'")
        .replace("clients = 4", "clients = 4\nvalue_size = 10000");
    let file = directory.path().join("narrow.toml");
    std::fs::write(&file, scenario).unwrap();
    let out = directory.path().join("out");
    let arguments = [
        "lab",
        "run",
        file.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--backend",
        "processes",
        "--network",
        "namespaces",
        "--repetitions",
        "1",
        "--dir",
        &data,
        "--fresh",
        "-o",
        "json",
    ];
    let output = run(&arguments);
    let said = stderr(&output);
    if said.contains("cannot make a private network") {
        eprintln!("skipped: {}", said.trim());
        return;
    }
    let mut first = Some(output);
    let row = &measured(|| first.take().unwrap_or_else(|| run(&arguments)));
    assert!(row["throughput"].as_f64() < Some(250.0), "{row}");
    // Twice to the others, and once from the client.
    assert!(
        row["bytes_per_operation"].as_f64() >= Some(20_000.0),
        "{row}"
    );
}

#[test]
fn scenarios_are_listed_and_wrong_one_is_refused_with_its_line() {
    let output = run(&["lab", "list", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    for one in listed.as_array().unwrap() {
        for key in ["name", "backends", "protocols", "paper"] {
            assert!(one.get(key).is_some(), "{one}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wrong.toml");
    std::fs::write(&file, SCENARIO.replace("clients", "cleints")).unwrap();
    let output = run(&["lab", "run", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(
        said.contains("wrong.toml:11: unknown key 'cleints'"),
        "{said}"
    );
    assert!(said.contains("did you mean 'clients'?"), "{said}");
    let output = run(&["lab", "run", "replica"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("did you mean 'replicas'?"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn attack_shows_remaining_throughput_and_shaded_periods() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let arguments = [
        "lab",
        "attack",
        "leader",
        "--replicas",
        "3",
        "--clients",
        "8",
        "--seconds",
        "6",
        "--protocol",
        "multipaxos",
        "--protocol",
        "racs/slow",
        "--set",
        "racs/slow:view_timeout_ms=60000",
        "--out",
        out,
        "-o",
        "json",
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let [elected, patient] = found.as_array().unwrap().as_slice() else {
        panic!("two protocols: {found}");
    };
    assert_eq!(patient["protocol"], "racs/slow");
    // The leader is late only once: the caller that waits for it hears it again before losing
    // timeout.
    for one in [elected, patient] {
        assert!(one["calm_p50_ms"].as_f64() < Some(100.0), "{found}");
        assert!(one["attacked_p50_ms"].as_f64() > Some(500.0), "{found}");
    }
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("attack: leader"));
    let output = run(&["lab", "attack", "earthquake"]);
    assert!(stderr(&output).contains("accepted are none, minority"));
    let output = run(&["lab", "attack", "--set", "racs:window"]);
    assert!(stderr(&output).contains("NAME:OPTION=VALUE"));
}
