//! Members of a running cluster are replaced, by real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::{fs, net::TcpListener, path::Path, process::Stdio};
use support::{Client, Demo, Guard, base_port, eventually, fails, quintet, run, signal, stdout};

/// The value of a setting in a replica's file.
fn setting(file: &Path, name: &str) -> String {
    let text = fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split('"').nth(1).unwrap().to_owned()
}

fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn replica_whose_disk_is_lost_is_replaced_while_clients_work() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let demo = Demo::start(&dir, base_port(3), &[]);
    let first = dir.join("replica-0/quintet.toml");
    let (secret, seed) = (setting(&first, "secret"), setting(&first, "peer_listen"));
    let mut client = demo.replicas[0].client();
    for number in 1..=20 {
        assert_eq!(client.ask(&["INCR", "n"]).unwrap(), number.to_string());
    }
    signal(demo.replicas[2].pid, Signal::KILL);
    let new = directory.path().join("new").display().to_string();
    let (peer, redis, admin) = (free(), free(), free());
    let arguments = |more: &[&str]| {
        let own = ["--dir", &new, "--peer-listen", &peer];
        let listen = ["--redis-listen", &redis, "--admin-listen", &admin];
        let all = [&["join"], &own[..], &listen, more].concat();
        all.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let start = |more: &[&str]| {
        let mut command = quintet();
        command.env("QUINTET_SECRET", &secret);
        command.args(arguments(more)).stdin(Stdio::null());
        let process = Guard(command.stderr(Stdio::null()).spawn().unwrap());
        let mut client = eventually("the new replica serves", || Client::connect(&redis).ok());
        eventually("it has the state", || {
            (client.ask(&["GET", "n"]).ok()?.parse::<u64>().ok()? >= 20).then_some(())
        });
        process
    };
    let process = start(&["--seed", &seed, "--replace", "2"]);
    assert_eq!(client.ask(&["INCR", "n"]).unwrap(), "21");
    let listed = run(&["member", "list", "--admin", &admin, "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(listed[2]["peer"], peer, "{listed}");
    assert_eq!(listed[2]["redis"], redis, "{listed}");
    assert_eq!(listed.as_array().unwrap().len(), 3);

    // It counts: with it, another may be lost. And it is found again by its directory.
    drop(process);
    let _process = start(&[]);
    signal(demo.replicas[1].pid, Signal::KILL);
    let mut other = Client::connect(&redis).unwrap();
    assert_eq!(other.ask(&["INCR", "n"]).unwrap(), "22");

    // Requests that cannot work are refused with the reason.
    let third = directory.path().join("third").display().to_string();
    let own = ["join", "--dir", &third, "--peer-listen", "127.0.0.1:1"];
    fails(&own, 2, &["--seed"]);
    let asked = ["--seed", &seed, "--replace", "1"];
    fails(&[&own[..], &asked].concat(), 2, &["secret"]);
    fails(&own[..3], 2, &["--peer-listen"]);
}
