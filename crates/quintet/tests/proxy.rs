//! Proxies as a person uses them: processes of their own before a cluster of real replicas.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{path::Path, process::Stdio};
use support::{
    Client, Demo, Guard, Replica, base_port, eventually, http_get, load::Load, run, signal, stderr,
};

/// A proxy that runs.
struct Proxy {
    process: Guard,
    redis: String,
    admin: String,
}

impl Proxy {
    fn start(file: &Path) -> Self {
        let base = base_port(1);
        let [redis, admin] = [base, base + 100].map(|port| format!("127.0.0.1:{port}"));
        let mut command = support::quintet();
        command.arg("proxy").arg("--config").arg(file);
        command.args(["--redis-listen", &redis, "--admin-listen", &admin]);
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        let process = Guard(command.spawn().unwrap());
        Self {
            process,
            redis,
            admin,
        }
    }

    fn status(&self) -> Option<Value> {
        serde_json::from_str(&http_get(&self.admin, "/status")?.1).ok()
    }

    fn is_ready(&self) -> bool {
        http_get(&self.admin, "/readyz").is_some_and(|(code, _)| code == 200)
    }
}

/// The configuration that a replica of the demo was started with.
fn file_of(replica: &Replica) -> &Path {
    let at = replica.serve.iter().position(|word| word == "--config");
    Path::new(&replica.serve[at.unwrap() + 1])
}

#[test]
fn acknowledged_writes_survive_kill_of_proxies_and_leader() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["--protocol", "nezha"];
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &options);
    let file = file_of(&demo.replicas[0]).to_owned();
    let mut proxies: Vec<Proxy> = (0..3).map(|_| Proxy::start(&file)).collect();
    for proxy in &proxies {
        eventually("the proxy serves", || proxy.is_ready().then_some(()));
    }
    let addresses: Vec<String> = proxies.iter().map(|proxy| proxy.redis.clone()).collect();
    let load = Load::default();
    let victim = demo.leader();
    load.during(3, &addresses, || {
        load.waits_for(100);
        proxies[0].process.0.kill().unwrap();
        load.waits_for(100);
        // A proxy and the leader at once.
        proxies[1].process.0.kill().unwrap();
        signal(victim.pid, Signal::KILL);
        load.waits_for(100);
    });
    let mut left = vec![addresses[2].clone()];
    let alive = demo.replicas.iter().filter(|it| it.id != victim.id);
    left.extend(alive.map(|replica| replica.redis.clone()));
    load.check(&left);

    let shown = run(&["status", "-o", "json", "--admin", &proxies[2].admin]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown[0]["role"], "proxy");
    let mut client = Client::connect(&proxies[2].redis).unwrap();
    let told = client.ask(&["INFO", "quintet"]).unwrap();
    assert!(told.contains("quintet_role:proxy"), "{told}");
    let paths = &shown[0]["paths"];
    let committed = ["fast", "slow"].map(|path| paths[path].as_u64().unwrap());
    assert!(committed.iter().sum::<u64>() > 0, "{paths}");
    eventually("it knows the clocks of the living", || {
        let status = proxies[2].status()?;
        let peers = status["peers"].as_array()?;
        let known = peers.iter().filter(|peer| !peer["clock"].is_null());
        (known.count() >= 2).then_some(())
    });
    signal(proxies[2].process.0.id(), Signal::TERM);
    assert_eq!(
        proxies[2].process.wait().code(),
        Some(0),
        "it stops when asked"
    );
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn replicas_and_proxies_talk_in_datagrams_when_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["--protocol", "nezha", "--transport", "udp"];
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &options);
    let proxy = Proxy::start(file_of(&demo.replicas[0]));
    eventually("the proxy serves", || proxy.is_ready().then_some(()));
    let frames = |admin: &str, name: &str| -> Option<u64> {
        let text = http_get(admin, "/metrics")?.1;
        let prefix = format!("quintet_{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix))?;
        line.parse().ok()
    };
    let mut addresses: Vec<String> = demo.replicas.iter().map(|it| it.redis.clone()).collect();
    addresses.push(proxy.redis.clone());
    let mut admins: Vec<&str> = demo.replicas.iter().map(|it| &it.admin[..]).collect();
    admins.push(&proxy.admin);
    let load = Load::default();
    load.during(4, &addresses, || {
        load.waits_for(200);
        for admin in &admins {
            for name in [
                "datagram_frames_sent_total",
                "datagram_frames_received_total",
            ] {
                eventually(name, || (frames(admin, name)? > 100).then_some(()));
            }
        }
    });
    load.check(&addresses);
    // A message that fits no datagram goes by the connections.
    let long = "x".repeat(100_000);
    let mut client = support::Client::connect(&proxy.redis).unwrap();
    assert_eq!(client.ask(&["SET", "long", &long]).unwrap(), "OK");
    let mut other = support::Client::connect(&demo.replicas[2].redis).unwrap();
    assert!(other.ask(&["GET", "long"]).unwrap() == long);
    drop(proxy);
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn proxy_continues_when_the_replica_that_it_asks_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["--protocol", "multipaxos"];
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &options);
    let proxy = Proxy::start(file_of(&demo.replicas[0]));
    eventually("the proxy serves", || proxy.is_ready().then_some(()));
    let load = Load::default();
    let victim = demo.leader();
    let address = [proxy.redis.clone()];
    load.during(2, &address, || {
        load.waits_for(100);
        signal(victim.pid, Signal::KILL);
        load.waits_for(100);
    });
    load.check(&address);
}

#[test]
fn proxy_with_wrong_secret_serves_no_client() {
    let directory = tempfile::tempdir().unwrap();
    let options = ["--protocol", "multipaxos", "--durability", "memory"];
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &options);
    let proxy = {
        let text = std::fs::read_to_string(file_of(&demo.replicas[0])).unwrap();
        let other = |line: &str| match line.starts_with("secret") {
            true => format!("secret = \"{}\"", "ab".repeat(32)),
            false => line.to_owned(),
        };
        let lines: Vec<String> = text.lines().map(other).collect();
        let file = directory.path().join("other.toml");
        std::fs::write(&file, lines.join("\n")).unwrap();
        assert_ne!(lines.join("\n"), text.trim_end(), "there was a secret");
        Proxy::start(&file)
    };
    eventually("every replica refuses it", || {
        let status = proxy.status()?;
        let peers = status["peers"].as_array()?.clone();
        let refused = |peer: &Value| {
            let why = peer["error"].as_str().unwrap_or_default();
            peer["connected"] == false && why.contains("secret")
        };
        peers.iter().all(refused).then_some(())
    });
    assert!(!proxy.is_ready());
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn proxies_of_demo_serve_and_end_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let base = base_port(5);
    let options = ["--protocol", "nezha", "--proxies", "2"];
    let demo = Demo::start(&directory.path().join("demo"), base, &options);
    let [first, second] = &demo.proxies[..] else {
        panic!("two proxies: {:?}", demo.proxies);
    };
    // Behind those of the three replicas.
    assert_eq!(first.redis, format!("127.0.0.1:{}", base + 3));
    assert_eq!(second.admin, format!("127.0.0.1:{}", base + 104));
    for (proxy, word) in [(first, "one"), (second, "two")] {
        assert_eq!(proxy.status().unwrap()["role"], "proxy");
        assert_eq!(proxy.client().ask(&["SET", word, word]).unwrap(), "OK");
    }
    signal(first.pid, Signal::KILL);
    demo.waits_for(&format!("proxy 0 (pid {}) was killed", first.pid));
    assert_eq!(second.client().ask(&["GET", "one"]).unwrap(), "one");
    let mut by_hand = first.start_by_hand();
    demo.waits_for("proxy 0 is back (started by hand");
    assert_eq!(first.client().ask(&["GET", "two"]).unwrap(), "two");
    let second = second.redis.clone();
    assert_eq!(demo.interrupt(), Some(0));
    assert!(std::net::TcpStream::connect(second).is_err());
    signal(by_hand.0.id(), Signal::TERM);
    assert_eq!(by_hand.wait().code(), Some(0));
}
