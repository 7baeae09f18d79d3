//! The examples of services run to their ends.

use std::{path::PathBuf, process::Command};

fn run(name: &str, arguments: &[&str]) -> String {
    let tests = std::env::current_exe().expect("this program");
    let built: PathBuf = tests
        .ancestors()
        .nth(2)
        .expect("above deps")
        .join("examples");
    let output = Command::new(built.join(name)).args(arguments).output();
    let output = output.expect("first: cargo build -p quintet --examples");
    let (out, err) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8_lossy(&out).into_owned();
    assert!(output.status.success(), "{name}: {out}{err}");
    out
}

#[test]
fn versioned_counter_prints_its_history() {
    let out = run("versioned_counter", &[]);
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split(' ').collect()).collect();
    let told: Vec<_> = lines.iter().map(|words| (words[0], words[2])).collect();
    assert_eq!(told, [("2", "7"), ("1", "5")]);
}

#[test]
fn sensors_print_sums_of_five_times() {
    assert_eq!(run("sensors", &[]).lines().count(), 5);
}

#[test]
fn warehouse_outlives_members_of_each_kind() {
    let out = run("warehouse", &["--kills", "4"]);
    assert!(out.contains("all acknowledged writes are there"), "{out}");
}
