//! The demo as a person uses it: real processes, real files, real kills.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::{
    io::{BufRead, BufReader},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
};
use support::{
    Client, Demo, Guard, Replica, base_port, eventually, fails, http_get, load::Load, quintet, run,
    signal, stderr, stdout,
};

fn redis(replicas: &[Replica]) -> Vec<String> {
    replicas.iter().map(|it| it.redis.clone()).collect()
}

fn all_ready(replicas: &[Replica]) {
    for replica in replicas {
        eventually("the replica is ready", || replica.is_ready().then_some(()));
    }
}

fn gone(replicas: &[Replica]) {
    for replica in replicas {
        eventually("the port is unused", || {
            TcpStream::connect(&replica.redis).is_err().then_some(())
        });
    }
}

#[test]
fn write_at_one_replica_is_at_all_after_second_start() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let base = base_port(3);
    let demo = Demo::start(&dir, base, &[]);
    assert_eq!(demo.replicas.len(), 3);
    for (replica, id) in demo.replicas.iter().zip(0u16..) {
        assert_eq!(replica.redis, format!("127.0.0.1:{}", base + id));
        assert_eq!(replica.admin, format!("127.0.0.1:{}", base + 100 + id));
        assert!(replica.dir.is_absolute() && replica.dir.is_dir());
        assert!(Path::new(&replica.serve[0]).is_absolute());
        let status = replica.status().unwrap();
        assert_eq!(status["pid"].as_u64(), Some(u64::from(replica.pid)));
        assert_eq!(status["durability"], "disk");
    }
    for (replica, word) in demo.replicas.iter().zip(["one", "two", "three"]) {
        assert_eq!(replica.client().ask(&["SET", word, word]).unwrap(), "OK");
        for other in &demo.replicas {
            assert_eq!(other.client().ask(&["GET", word]).unwrap(), word);
        }
    }
    let cluster = demo.replicas[0].status().unwrap()["cluster"].clone();
    // One that gets no processor for a while is not ready for a while.
    eventually("all are well", || {
        let output = run(&["status", "--dir", &dir.display().to_string()]);
        output.status.success().then_some(())
    });
    let replicas = demo.replicas.clone();
    assert_eq!(demo.interrupt(), Some(0));
    gone(&replicas);

    let demo = Demo::start_at_its_ports(&dir, &[]);
    assert_eq!(demo.replicas[1].status().unwrap()["cluster"], cluster);
    assert_eq!(demo.replicas[0].redis, format!("127.0.0.1:{base}"));
    assert!(
        demo.said().contains(&format!("ports from {base}")),
        "{}",
        demo.said()
    );
    // An election may be in progress right after the start.
    eventually("the leader is shown", || {
        let shown = stdout(&run(&["status", "--dir", &dir.display().to_string()]));
        shown.contains("leader: replica ").then_some(())
    });
    let log = eventually("the leader is logged", || {
        let log = std::fs::read_to_string(dir.join("replica-1/quintet.log")).unwrap();
        log.contains("leader is replica ").then_some(log)
    });
    // The log of a replica that stops says so once a start.
    let starts = log.matches(" serves redis://").count();
    assert!(log.matches(" stopping").count() <= starts, "{log}");
    assert_eq!(
        demo.replicas[2].client().ask(&["GET", "two"]).unwrap(),
        "two"
    );
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn acknowledged_writes_survive_kill_of_leader_or_all() {
    let directory = tempfile::tempdir().unwrap();
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &[]);
    let load = Load::default();
    let addresses = redis(&demo.replicas);
    let victim = demo.leader();
    let mut by_hand: Vec<Guard> = Vec::new();
    load.during(4, &addresses, || {
        load.waits_for(200);
        signal(victim.pid, Signal::KILL);
        demo.waits_for(&format!(
            "replica {} (pid {}) was killed",
            victim.id, victim.pid
        ));
        load.waits_for(200);
        assert!(!victim.is_ready(), "what died stays dead");
        let dir = victim.dir.ancestors().nth(2).unwrap().display().to_string();
        let output = run(&["status", "--dir", &dir]);
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        by_hand.push(victim.start_by_hand());
        demo.waits_for(&format!("replica {} is back", victim.id));
        load.waits_for(200);
    });
    all_ready(&demo.replicas);
    load.check(&addresses);

    for replica in demo
        .replicas
        .iter()
        .filter(|replica| replica.id != victim.id)
    {
        signal(replica.pid, Signal::KILL);
    }
    signal(by_hand[0].0.id(), Signal::KILL);
    by_hand[0].wait();
    gone(&demo.replicas);
    for replica in &demo.replicas {
        demo.waits_for(&format!("replica {} (", replica.id));
        by_hand.push(replica.start_by_hand());
    }
    all_ready(&demo.replicas);
    load.check(&addresses);

    // Those were started by hand, so they are not the demo's to stop.
    let replicas = demo.replicas.clone();
    assert_eq!(demo.interrupt(), Some(0));
    all_ready(&replicas);
    for process in by_hand.iter_mut().skip(1) {
        signal(process.0.id(), Signal::TERM);
        assert_eq!(process.wait().code(), Some(0));
    }
}

#[test]
fn memory_demo_starts_empty_and_leaves_disk_cluster_alone() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let base = base_port(3);
    let memory = ["--durability", "memory"];
    let demo = Demo::start(&dir, base, &memory);
    demo.waits_for("a new, empty cluster");
    let first = demo.replicas[0].status().unwrap();
    assert_eq!(first["durability"], "memory");
    assert_eq!(
        demo.replicas[0].client().ask(&["SET", "k", "v"]).unwrap(),
        "OK"
    );
    assert_eq!(demo.interrupt(), Some(0));

    let demo = Demo::start(&dir, base, &memory);
    demo.waits_for("data was removed");
    assert_ne!(
        demo.replicas[0].status().unwrap()["cluster"],
        first["cluster"]
    );
    assert_eq!(demo.replicas[0].client().ask(&["GET", "k"]).unwrap(), "nil");
    assert_eq!(demo.interrupt(), Some(0));

    let dir = directory.path().join("disk");
    let demo = Demo::start(&dir, base, &[]);
    assert_eq!(
        demo.replicas[0].client().ask(&["SET", "k", "v"]).unwrap(),
        "OK"
    );
    assert_eq!(demo.interrupt(), Some(0));
    let path = dir.display().to_string();
    let base = base.to_string();
    let output = run(&[
        "demo",
        "--durability",
        "memory",
        "--dir",
        &path,
        "--base-port",
        &base,
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("durability 'disk'"),
        "{}",
        stderr(&output)
    );
    let demo = Demo::start(&dir, base.parse().unwrap(), &[]);
    assert_eq!(demo.replicas[0].client().ask(&["GET", "k"]).unwrap(), "v");
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn memory_demo_loses_nothing_while_majority_runs() {
    let directory = tempfile::tempdir().unwrap();
    let demo = Demo::start(
        &directory.path().join("demo"),
        base_port(3),
        &["--durability", "memory"],
    );
    let load = Load::default();
    let addresses = redis(&demo.replicas);
    let victim = demo.leader();
    let mut by_hand = None;
    load.during(3, &addresses, || {
        load.waits_for(100);
        signal(victim.pid, Signal::KILL);
        load.waits_for(100);
        by_hand = Some(victim.start_by_hand());
        demo.waits_for(&format!("replica {} is back", victim.id));
        load.waits_for(100);
    });
    all_ready(&demo.replicas);
    load.check(&addresses);
    let incarnation = victim.status().unwrap()["incarnation"].as_u64();
    assert!(
        incarnation > Some(1),
        "it came back in a new incarnation: {incarnation:?}"
    );
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn foreign_directories_are_rejected_untouched() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    let base = base_port(3).to_string();
    let demo = |dir: &Path, more: &[&str]| {
        let dir = dir.display().to_string();
        let mut arguments = vec!["demo", "--dir", &dir, "--base-port", &base];
        arguments.extend_from_slice(more);
        let output = run(&arguments);
        (output.status.code(), stderr(&output))
    };
    for more in [&[][..], &["--durability", "memory"]] {
        let (code, text) = demo(&foreign, more);
        assert_eq!(code, Some(7), "{text}");
        assert!(
            text.contains("thesis.txt") && text.contains("--dir"),
            "{text}"
        );
    }
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);

    let newer = directory.path().join("newer");
    std::fs::create_dir(&newer).unwrap();
    std::fs::write(newer.join("demo.toml"), "format = 99\n").unwrap();
    let (code, text) = demo(&newer, &[]);
    assert_eq!(code, Some(7), "{text}");
    assert!(text.contains("newer quintet"), "{text}");

    let used = directory.path().join("used");
    let running = Demo::start(&used, base.parse().unwrap(), &[]);
    let (code, text) = demo(&used, &[]);
    assert_eq!(code, Some(7), "{text}");
    assert!(text.contains("another demo is running"), "{text}");
    assert_eq!(running.interrupt(), Some(0));
    for (more, part) in [
        (["--replicas", "5"], "3 replicas, not 5"),
        (["--set", "window=7"], "window = 64, not 7"),
    ] {
        let (code, text) = demo(&used, &more);
        assert_eq!(code, Some(7), "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn port_in_use_is_named_with_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo").display().to_string();
    let base = base_port(3);
    let taken = TcpListener::bind(("127.0.0.1", base + 101)).unwrap();
    let output = run(&["demo", "--dir", &dir, "--base-port", &base.to_string()]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(&format!("port {}", base + 101)), "{text}");
    assert!(
        text.contains("admin HTTP of replica 1") && text.contains("--base-port"),
        "{text}"
    );
    drop(taken);
    let output = run(&[
        "demo",
        "--base-port",
        "65500",
        "--replicas",
        "3",
        "--patience",
        "1m",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--base-port"));
}

#[test]
fn replicas_of_a_killed_demo_do_not_stay_behind() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let base = base_port(3);
    let mut demo = Demo::start(&dir, base, &[]);
    assert_eq!(
        demo.replicas[0].client().ask(&["SET", "k", "v"]).unwrap(),
        "OK"
    );
    signal(demo.process.0.id(), Signal::KILL);
    demo.process.wait();
    gone(&demo.replicas);
    let demo = Demo::start(&dir, base, &[]);
    assert_eq!(demo.replicas[0].client().ask(&["GET", "k"]).unwrap(), "v");
    signal(demo.process.0.id(), Signal::TERM);
    let mut process = demo.process;
    assert_eq!(
        process.wait().code(),
        Some(0),
        "SIGTERM stops as Ctrl-C does"
    );
}

#[test]
fn one_replica_is_the_master_and_the_others_name_it() {
    let directory = tempfile::tempdir().unwrap();
    let base = base_port(3);
    let demo = Demo::start(directory.path(), base, &[]);
    let roles = || -> Option<(Vec<u16>, Vec<String>)> {
        let (mut masters, mut told) = (Vec::new(), Vec::new());
        for replica in &demo.replicas {
            let status = replica.status()?;
            let own = status["redis"].as_str()?.to_owned();
            let info = replica.client().ask(&["INFO", "replication"]).ok()?;
            let port: u16 = own.rsplit_once(':')?.1.parse().ok()?;
            if info.contains("role:master") {
                let all = info.contains("connected_slaves:2");
                let others = (demo.replicas.iter()).filter_map(|it| it.status());
                let named = others
                    .filter_map(|it| Some(it["redis"].as_str()?.rsplit_once(':')?.1.to_owned()))
                    .filter(|other| info.contains(&format!("ip=127.0.0.1,port={other},")));
                (all && named.count() == 2).then_some(())?;
                masters.push(port);
            } else {
                let line = info.lines().find(|line| line.starts_with("master_port:"))?;
                info.contains("master_link_status:up").then_some(())?;
                told.push(line.trim_start_matches("master_port:").trim().to_owned());
            }
        }
        (masters.len() == 1 && told.len() == 2).then_some((masters, told))
    };
    let mut seen = None;
    eventually("there is one master", || {
        seen = roles();
        seen.as_ref().map(|_| ())
    });
    let (masters, told) = seen.unwrap();
    assert!(
        told.iter().all(|port| *port == masters[0].to_string()),
        "{masters:?} {told:?}"
    );
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn snapshot_starts_a_new_cluster_with_the_same_data() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let base = base_port(3);
    let demo = Demo::start(Path::new(&path("demo")), base, &[]);
    let mut client = demo.replicas[1].client();
    let (began, early) = (std::time::Instant::now(), path("early.snapshot"));
    let output = run(&["snapshot", "save", "--dir", &path("demo"), &early]);
    let text = stderr(&output);
    assert!(
        output.status.success() || text.contains("nothing has been written yet"),
        "{text}"
    );
    assert!(
        began.elapsed() < std::time::Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    for number in 0..500 {
        let (key, value) = (format!("key:{number}"), format!("value:{number}"));
        assert_eq!(client.ask(&["SET", &key, &value]).unwrap(), "OK");
    }
    let cluster = demo.replicas[0].status().unwrap()["cluster"].clone();
    let save = [
        "snapshot",
        "save",
        "--dir",
        &path("demo"),
        "--replica",
        "1",
        &path("a.snapshot"),
    ];
    let output = run(&save);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = run(&save);
    assert_eq!(
        output.status.code(),
        Some(7),
        "an existing file is kept: {}",
        stderr(&output)
    );
    // The admin address is enough.
    let admin = format!("http://{}", demo.replicas[1].admin);
    let output = run(&["snapshot", "save", "--admin", &admin, &path("b.snapshot")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let saved = |name: &str| std::fs::read(path(name)).unwrap();
    assert_eq!(saved("a.snapshot").len(), saved("b.snapshot").len());
    assert_eq!(client.ask(&["SET", "key:7", "later"]).unwrap(), "OK");
    assert_eq!(demo.interrupt(), Some(0));

    let output = run(&["snapshot", "inspect", &path("a.snapshot"), "-o", "json"]);
    let contents: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(contents["entries"], 500);
    assert_eq!(contents["cluster"], cluster);

    let restore = [
        "snapshot",
        "restore",
        &path("a.snapshot"),
        "--dir",
        &path("new"),
    ];
    let output = run(&restore);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = run(&restore);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let mut bytes = std::fs::read(path("a.snapshot")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path("bad.snapshot"), bytes).unwrap();
    let output = run(&[
        "snapshot",
        "restore",
        &path("bad.snapshot"),
        "--dir",
        &path("bad"),
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        !Path::new(&path("bad")).exists(),
        "nothing is made of a damaged snapshot"
    );

    let demo = Demo::start(Path::new(&path("new")), base, &[]);
    assert_ne!(demo.replicas[0].status().unwrap()["cluster"], cluster);
    for replica in &demo.replicas {
        let mut client = replica.client();
        assert_eq!(client.ask(&["DBSIZE"]).unwrap(), "500");
        assert_eq!(client.ask(&["GET", "key:7"]).unwrap(), "value:7");
    }
    assert_eq!(
        demo.replicas[2]
            .client()
            .ask(&["SET", "key:7", "new"])
            .unwrap(),
        "OK"
    );
    let victim = demo.leader();
    signal(victim.pid, Signal::KILL);
    let living = eventually("a replica is ready", || {
        let mut others = demo.replicas.iter().filter(|other| other.id != victim.id);
        others.find(|replica| replica.is_ready())
    });
    assert_eq!(living.client().ask(&["GET", "key:7"]).unwrap(), "new");
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn replica_started_by_hand_keeps_the_next_demo_off_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("demo");
    let demo = Demo::start(&dir, base_port(3), &["--durability", "memory"]);
    let replica = demo.replicas[2].clone();
    signal(replica.pid, Signal::KILL);
    demo.waits_for("replica 2 (pid");
    let mut by_hand = replica.start_by_hand();
    demo.waits_for("replica 2 is back");
    assert_eq!(demo.interrupt(), Some(0));
    let (path, base) = (dir.display().to_string(), base_port(3).to_string());
    let next = [
        "demo",
        "--durability",
        "memory",
        "--dir",
        &path,
        "--base-port",
        &base,
    ];
    let output = run(&next);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let holder = format!("replica 2 still runs, as process {}", by_hand.0.id());
    assert!(stderr(&output).contains(&holder), "{}", stderr(&output));
    assert!(replica.dir.join("identity").exists(), "nothing was removed");
    signal(by_hand.0.id(), Signal::TERM);
    assert_eq!(by_hand.wait().code(), Some(0));
}

#[test]
fn replica_says_why_it_cannot_serve() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("one.toml");
    let (base, taken) = (base_port(1), TcpListener::bind("127.0.0.1:0").unwrap());
    let members = format!("127.0.0.1:{}", base + 200);
    std::fs::write(&file, run(&["config", "new", "--members", &members]).stdout).unwrap();
    let path = file.display().to_string();
    let taken = taken.local_addr().unwrap().to_string();
    let admin = format!("127.0.0.1:{}", base + 100);
    let serve = [
        "serve",
        "--config",
        &path,
        "--admin-listen",
        &admin,
        "--redis-listen",
        &taken,
    ];
    let output = run(&serve);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("--redis-listen"),
        "{}",
        stderr(&output)
    );
    let port = taken.rsplit(':').next().unwrap();
    assert!(stderr(&output).contains(port), "{}", stderr(&output));

    let foreign = directory.path().join("foreign.toml");
    std::fs::write(
        &foreign,
        run(&["config", "new", "--members", &members]).stdout,
    )
    .unwrap();
    let redis = format!("127.0.0.1:{base}");
    let serve = |file: &Path| {
        let mut command = support::quintet();
        command.arg("serve").arg("--config").arg(file);
        command.args(["--admin-listen", &admin, "--redis-listen", &redis]);
        command
    };
    let mut first = Guard(
        serve(&file)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap(),
    );
    eventually("it is ready", || {
        support::http_get(&admin, "/readyz").filter(|(code, _)| *code == 200)
    });
    signal(first.0.id(), Signal::TERM);
    assert_eq!(first.wait().code(), Some(0));
    let output = serve(&foreign).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("another cluster"),
        "{}",
        stderr(&output)
    );
}

/// The lines that a demo has printed under "Try:".
fn lines_to_try(demo: &mut Guard) -> Vec<String> {
    let printed = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    let lines = printed.map(Result::unwrap);
    let tries = lines.skip_while(|line| line != "Try:").skip(1);
    let tries = tries.take_while(|line| !line.is_empty());
    tries.map(|line| line.trim().to_owned()).collect()
}

/// A line as a person types it in the same directory.
fn typed(line: &str, within: &Path) -> Guard {
    let path = std::env::var("PATH").unwrap();
    let own = support::program().parent().unwrap().display().to_string();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec {}", line.split('#').next().unwrap())]);
    shell
        .current_dir(within)
        .env("PATH", format!("{own}:{path}"));
    shell
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Guard(shell.spawn().unwrap())
}

#[test]
fn demo_replaces_a_dead_replica_and_grows_by_its_printed_lines() {
    let directory = tempfile::tempdir().unwrap();
    let within = directory.path();
    let (base, dir) = (base_port(4), within.join("quintet-demo"));
    let mut command = quintet();
    command
        .args(["demo", "--base-port", &base.to_string()])
        .current_dir(within);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut demo = Guard(command.spawn().unwrap());
    let tries = lines_to_try(&mut demo);
    let [_, _, kills, replaces, grows] = tries.as_slice() else {
        panic!("{tries:?}");
    };
    let of_demo = dir.display().to_string();
    let join = ["demo", "--dir", &of_demo, "--join"];
    let replace = |id: &'static str| [&join[..], &["--replace", id]].concat();
    fails(&replace("3"), 2, &["no replica 3: they are 0, 1, 2"]);
    fails(&replace("1"), 7, &["replica 1 still runs", "stop it first"]);
    let client = |id: u16| Client::connect(&format!("127.0.0.1:{}", base + id));
    assert_eq!(client(0).unwrap().ask(&["SET", "a", "1"]).unwrap(), "OK");
    let ready = |id: u16| {
        eventually("the replica is ready", || {
            let (code, _) = http_get(&format!("127.0.0.1:{}", base + 100 + id), "/readyz")?;
            (code == 200).then_some(())
        });
    };

    assert!(typed(kills, within).wait().success());
    let words: Vec<&str> = replaces.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "--replace").unwrap();
    let killed: u16 = words[at + 1].parse().unwrap();
    eventually("it is dead", || client(killed).is_err().then_some(()));
    let newcomer = typed(replaces, within);
    ready(killed);
    assert_eq!(client(killed).unwrap().ask(&["GET", "a"]).unwrap(), "1");
    let fourth = typed(grows, within);
    ready(3);
    assert_eq!(client(3).unwrap().ask(&["INCR", "a"]).unwrap(), "2");
    let list = ["member", "list", "--dir", &of_demo, "-o", "json"];
    let members: serde_json::Value = serde_json::from_str(&stdout(&run(&list))).unwrap();
    assert_eq!(members.as_array().unwrap().len(), 4);

    // Started again it has the members that it had, all of them its own.
    for process in [&newcomer, &fourth, &demo] {
        signal(process.0.id(), Signal::TERM);
    }
    for mut process in [newcomer, fourth, demo] {
        assert!(process.wait().success());
    }
    fails(&join, 3, &["start it first"]);
    let again = Demo::start_at_its_ports(&dir, &["--replicas", "4"]);
    for replica in &again.replicas {
        assert_eq!(replica.client().ask(&["GET", "a"]).unwrap(), "2");
    }
    assert_eq!(again.interrupt(), Some(0));
    let ports = ["demo", "--dir", &of_demo, "--base-port", "9001"];
    fails(&ports, 7, &["whose ports stay"]);
}
