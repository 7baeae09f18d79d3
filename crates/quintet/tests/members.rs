//! Members of a running cluster are replaced, by real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::{fs, net::TcpListener, path::Path, process::Stdio};
use support::{
    Client, Demo, Guard, Replica, base_port, eventually, fails, http_get, load::Load, quintet, run,
    signal, stdout,
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
    let none = client.ask(&["QUINTET", "MEMBER", "REMOVE", "9"]).unwrap();
    assert!(none.contains("no replica 9"), "{none}");
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

/// The numbers of the members, as a demo's directory leads to them.
fn listed(dir: &Path) -> Vec<u64> {
    let listed = run(&[
        "member",
        "list",
        "--dir",
        &dir.display().to_string(),
        "-o",
        "json",
    ]);
    let listed: serde_json::Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let ids = listed.as_array().unwrap().iter();
    ids.map(|it| it["id"].as_u64().unwrap()).collect()
}

fn remove(dir: &Path, id: u64) {
    let (dir, id) = (dir.display().to_string(), id.to_string());
    // Some may still be on their way into the epoch before.
    eventually("the member is removed", || {
        let removed = run(&["member", "remove", &id, "--dir", &dir]);
        let text = String::from_utf8_lossy(&removed.stderr).into_owned();
        let waits = text.contains("there would be no quorum");
        assert!(removed.status.success() || waits, "{id}: {text}");
        removed.status.success().then_some(())
    });
}

#[test]
fn any_member_is_removed_and_the_others_keep_their_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let demo = Demo::start(&dir, base_port(5), &["--replicas", "5"]);
    let load = Load::default();
    // Clients of those that stay.
    let stays = |id: u64| id == 2 || id == 4;
    let of_those = demo.replicas.iter().filter(|it| stays(it.id));
    let addresses: Vec<String> = of_those.map(|it| it.redis.clone()).collect();
    let is_gone = |id: u64| {
        let words = format!("replica {id} ");
        eventually("the removed replica stops by itself", || {
            let said = demo.said();
            let mut lines = said.lines().filter(|line| line.contains(&words));
            lines
                .any(|line| line.contains("exited with code 7"))
                .then_some(())
        });
    };
    load.during(2, &addresses, || {
        // The first one, which leads.
        assert_eq!(demo.leader().id, 0);
        remove(&dir, 0);
        assert_eq!(listed(&dir), [1, 2, 3, 4]);
        is_gone(0);
        // One that is dead.
        signal(demo.replicas[3].pid, Signal::KILL);
        remove(&dir, 3);
        assert_eq!(listed(&dir), [1, 2, 4]);
        remove(&dir, 1);
        assert_eq!(listed(&dir), [2, 4]);
        is_gone(1);
    });
    load.check(&addresses);

    // Those that were removed are refused, the dead one as well.
    for id in [0, 1, 3] {
        let line = &demo.replicas[id].serve;
        let mut command = std::process::Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::null());
        let ended = command.output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(7), "{id}: {text}");
        let why = format!("replica {id} is no member any more");
        assert!(text.contains(&why), "{text}");
    }

    // Those that stay are found again, and one more gets the first number that is free.
    demo.interrupt();
    let demo = Demo::start_at_its_ports(&dir, &["--replicas", "2"]);
    let ids: Vec<u64> = demo.replicas.iter().map(|it| it.id).collect();
    assert_eq!(ids, [2, 4]);
    load.check(&addresses);
    let mut command = quintet();
    command.args(["demo", "--join", "--dir"]).arg(&dir);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let _joined = Guard(command.stderr(Stdio::null()).spawn().unwrap());
    eventually("it votes", || {
        let status = demo.replicas[0].status()?;
        let votes = |row: &serde_json::Value| row["role"] == "voter" && row["has_state"] == true;
        let rows = status["rows"].as_array()?;
        (rows.len() == 3 && rows.iter().all(votes)).then_some(())
    });
    assert_eq!(listed(&dir), [0, 2, 4]);
    load.check(&addresses);
}

#[test]
fn member_that_is_gone_for_long_is_removed_where_that_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let demo = Demo::start(&dir, base_port(4), &["--replicas", "4"]);
    let replicas = demo.replicas.clone();
    assert_eq!(demo.interrupt(), Some(0));
    for id in 0..4 {
        let file = dir.join(format!("replica-{id}/quintet.toml"));
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("evict_after = \"10s\"\n{text}")).unwrap();
    }
    let start = |it: &Replica| it.start_by_hand();
    let mut processes: Vec<Guard> = replicas.iter().map(start).collect();
    eventually("all are ready", || {
        replicas.iter().all(Replica::is_ready).then_some(())
    });
    let members = || {
        let status = replicas[0].status()?;
        let rows = status["rows"].as_array()?.iter();
        Some(
            rows.filter_map(|row| row["id"].as_u64())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(members(), Some(vec![0, 1, 2, 3]));
    let _ = processes[1].0.kill();
    eventually("the cluster continues without it", || {
        (members()? == [0, 2, 3]).then_some(())
    });
    let evictions = || {
        let counts = replicas.iter().filter_map(|it| {
            let (_, text) = http_get(&it.admin, "/metrics")?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("quintet_evictions_total "));
            line?.trim().parse::<f64>().ok()
        });
        counts.sum::<f64>()
    };
    eventually("it is counted once", || (evictions() == 1.0).then_some(()));
    let mut client = replicas[3].client();
    assert_eq!(client.ask(&["SET", "k", "v"]).unwrap(), "OK");
    // It is back too late.
    let mut late = replicas[1].start_by_hand();
    assert_eq!(late.wait().code(), Some(7));
}
