//! Members of a running cluster are replaced, by real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::{fs, net::TcpListener, path::Path, process::Stdio};
use support::{
    Client, Demo, Guard, base_port, eventually, fails, load::Load, quintet, run, signal, stdout,
};

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

#[test]
fn cluster_is_changed_by_redis_clients_while_others_work() {
    let directory = tempfile::tempdir().unwrap();
    let options = [
        "--proxies",
        "1",
        "--replicas",
        "4",
        "--threads",
        "pipelined",
    ];
    let demo = Demo::start(&directory.path().join("demo"), base_port(5), &options);
    let load = Load::default();
    let addresses: Vec<String> = demo.replicas[..3]
        .iter()
        .map(|it| it.redis.clone())
        .collect();
    load.during(3, &addresses, || change_by_redis(&demo));
    load.check(&addresses);
}

fn change_by_redis(demo: &Demo) {
    let mut client = demo.replicas[1].client();
    assert_eq!(
        client.ask_all(&["QUINTET", "MEMBERS"]).unwrap().len(),
        4 * 10
    );
    let switched = client.ask_all(&["QUINTET", "SWITCH", "nezha"]).unwrap();
    assert_eq!(switched[..4], ["epoch", "2", "protocol", "nezha"]);
    let again = client.ask_all(&["QUINTET", "SWITCH", "nezha"]).unwrap();
    assert_eq!(again, switched);
    let refused = client.ask(&["QUINTET", "SWITCH", "nope"]).unwrap();
    assert!(refused.contains("no protocol 'nope'"), "{refused}");
    let first = client.ask(&["QUINTET", "MEMBER", "REMOVE", "0"]).unwrap();
    assert!(first.contains("quintet join --replace 0"), "{first}");
    let left = client
        .ask_all(&["QUINTET", "MEMBER", "REMOVE", "3"])
        .unwrap();
    assert_eq!(left.len(), 3 * 10);

    // A proxy shows what it knows, and changes nothing.
    let mut proxy = demo.proxies[0].client();
    eventually("the proxy knows of the change", || {
        let shown = proxy.ask_all(&["QUINTET", "MEMBERS"]).unwrap();
        (shown.len() == 3 * 10).then_some(())
    });
    let refused = proxy.ask(&["QUINTET", "SWITCH", "racs"]).unwrap();
    let asks = format!("ask a replica: {}", demo.replicas[0].redis);
    assert!(refused.contains(&asks), "{refused}");
}
