//! A store whose keys are divided among groups, as a person uses it: real processes, real kills.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs::{self, OpenOptions},
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};
use support::{
    Client, Demo, Guard, Replica, base_port, eventually, fails, load::Load, quintet, run, signal,
    stderr, stdout,
};

/// Two shards on disk by one protocol and one in memory by another, over four replicas.
const LAYOUT: &str = r#"
[[subgroup]]
name = "ledger"
shards = 2
nodes = [0, 1, 2]

[[subgroup]]
name = "cache"
prefix = "cache:"
pin = [[1, 2, 3]]
protocol = "nezha"
durability = "memory"
"#;

fn start(directory: &Path, layout: &str, replicas: &str) -> Demo {
    let file = directory.join("layout.toml");
    fs::write(&file, layout).unwrap();
    let file = file.display().to_string();
    let more = ["--replicas", replicas, "--layout", &file];
    let base = base_port(replicas.parse().unwrap());
    Demo::start(&directory.join("demo"), base, &more)
}

/// The shards as `quintet groups status` shows them, and its exit code.
fn shards(dir: &str) -> (Vec<Value>, Option<i32>) {
    let output = run(&["groups", "status", "--dir", dir, "-o", "json"]);
    let rows = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (rows, output.status.code())
}

fn served(dir: &str) {
    eventually("all shards are served", || {
        (shards(dir).1 == Some(0)).then_some(())
    });
}

fn set(replica: &Replica, key: &str, value: &str) {
    let reply = replica.client().ask(&["SET", key, value]).unwrap();
    assert_eq!(reply, "OK", "{key} at replica {}", replica.id);
}

/// Sends commands to all shards at once.
fn pipeline_is_answered_in_order(address: &str) {
    let keys = ["one", "cache:one", "two", "three"];
    let rounds: String = (0..500)
        .map(|nth| format!("INCR {}\r\n", keys[nth % keys.len()]))
        .collect();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all((rounds + "PING\r\n").as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let replies: Vec<_> = lines.take_while(|line| line != "+PONG").collect();
    let expected: Vec<_> = (0..500).map(|nth| format!(":{}", nth / 4 + 1)).collect();
    assert_eq!(replies, expected);
}

#[test]
fn divided_keys_are_written_and_read_at_every_replica() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start(directory.path(), LAYOUT, "4");
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    let keys = ["a", "b", "cache:a"];
    for (replica, number) in demo.replicas.iter().zip(0..) {
        for key in keys {
            set(replica, key, &format!("{key}{number}"));
            for other in &demo.replicas {
                let read = other.client().ask(&["GET", key]).unwrap();
                assert_eq!(read, format!("{key}{number}"), "at replica {}", other.id);
            }
        }
    }
    // Keys of one request are of one shard; braces keep them together.
    let mut client = demo.replicas[3].client();
    for refused in [&["MSET", "a", "1", "b", "2"][..], &["DEL", "a", "cache:a"]] {
        let error = client.ask(refused).unwrap();
        assert!(error.contains("CROSSSLOT"), "{error}");
    }
    assert_eq!(
        client.ask(&["MSET", "{x}a", "1", "{x}b", "2"]).unwrap(),
        "OK"
    );
    let error = client.ask(&["DBSIZE"]).unwrap();
    assert!(
        error.contains("concerns the keys of all 3 shards"),
        "{error}"
    );

    let (rows, code) = shards(&dir);
    assert_eq!(code, Some(0));
    let names: Vec<_> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["ledger/0", "ledger/1", "cache/0"]);
    assert_eq!(rows[2]["protocol"], "nezha");
    assert_eq!(rows[2]["members"], serde_json::json!([1, 2, 3]));
    eventually("all keys are counted", || {
        let (rows, _) = shards(&dir);
        let kept = rows.iter().filter_map(|row| row["entries"].as_u64());
        (kept.sum::<u64>() == 5).then_some(())
    });
    let shown = stdout(&run(&["groups", "status", "--dir", &dir]));
    assert!(
        shown.contains("cache/0   served  1 2 3    1 2 3"),
        "{shown}"
    );

    pipeline_is_answered_in_order(&demo.replicas[0].redis);

    // A running replica rejects changes of a setting that the layout fixes, and nothing changes.
    for refused in [
        &["member", "remove", "3", "--dir", &dir][..],
        &["protocol", "switch", "racs", "--dir", &dir],
    ] {
        fails(refused, 1, &["a layout divides the keys of this cluster"]);
    }
    let admin = &demo.replicas[0].admin;
    let saved = directory.path().join("saved").display().to_string();
    let save = ["snapshot", "save", "--admin", admin, &saved];
    fails(&save, 1, &["name one of its shards, ledger/0, ledger/1"]);
    let of = |shard| [&save[..], &["--shard", shard]].concat();
    fails(&of("cache/0"), 1, &["nothing of it: ask one of 1, 2, 3"]);
    // The shard's keys, as a cluster of their own.
    let held = rows[0]["entries"].as_u64().unwrap();
    let output = run(&of("ledger/0"));
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = stdout(&run(&["snapshot", "inspect", &saved, "-o", "json"]));
    let contents: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(contents["group"], 1);
    assert!(contents["entries"].as_u64().unwrap() >= held && held > 0);
    let restored = directory.path().join("restored").display().to_string();
    let output = run(&["snapshot", "restore", &saved, "--dir", &restored]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn no_acknowledged_write_of_a_shard_is_lost_by_kills() {
    let directory = tempfile::tempdir().unwrap();
    let layout = LAYOUT.replace("durability = \"memory\"", "");
    let demo = start(directory.path(), &layout, "4");
    let dir = directory.path().join("demo").display().to_string();
    let addresses: Vec<_> = demo.replicas.iter().map(|it| it.redis.clone()).collect();
    let load = Load::default();
    let mut by_hand: Vec<Guard> = Vec::new();
    load.during(4, &addresses, || {
        load.waits_for(200);
        // A member of all shards.
        let victim = &demo.replicas[1];
        signal(victim.pid, Signal::KILL);
        load.waits_for(200);
        by_hand.push(victim.start_by_hand());
        eventually("it is ready", || victim.is_ready().then_some(()));
        load.waits_for(200);
    });
    load.check(&addresses);
    for replica in &demo.replicas {
        if replica.id != 1 {
            signal(replica.pid, Signal::KILL);
        }
    }
    signal(by_hand[0].0.id(), Signal::KILL);
    by_hand[0].wait();
    for replica in &demo.replicas {
        demo.waits_for(&format!("replica {} (", replica.id));
        by_hand.push(replica.start_by_hand());
    }
    served(&dir);
    load.check(&addresses);
}

#[test]
fn shard_is_lost_alone_and_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let layout = "
[[subgroup]]
name = \"store\"
pin = [[0], [1, 2, 3]]
";
    let demo = start(directory.path(), layout, "4");
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    // 'b' is in the first shard, 'a' in the second.
    set(&demo.replicas[3], "b", "kept");
    set(&demo.replicas[3], "a", "1");
    signal(demo.replicas[0].pid, Signal::KILL);
    demo.waits_for("replica 0 (");
    let shown = eventually("the shard is shown as lost", || {
        let (rows, code) = shards(&dir);
        (code == Some(5) && rows[0]["state"] == "no quorum").then_some(rows)
    });
    assert_eq!(shown[1]["state"], "served");
    set(&demo.replicas[2], "a", "2");
    let error = demo.replicas[2].client().ask(&["GET", "b"]).unwrap();
    assert!(
        error.contains("CLUSTERDOWN no agreement in time in shard store/0 (replicas 0)"),
        "{error}"
    );
    let _again = demo.replicas[0].start_by_hand();
    served(&dir);
    for replica in &demo.replicas[1..] {
        eventually("the others see that it is back", || {
            let read = replica.client().ask(&["GET", "b"]).unwrap();
            assert!(read == "kept" || read.contains("CLUSTERDOWN"), "{read}");
            (read == "kept").then_some(())
        });
    }
}

#[test]
fn shard_that_lost_its_memory_stops_until_it_is_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start(directory.path(), LAYOUT, "4");
    let dir = directory.path().join("demo");
    set(&demo.replicas[0], "a", "kept");
    set(&demo.replicas[0], "cache:a", "lost");
    assert_eq!(demo.interrupt(), Some(0));

    let demo = Demo::start_at_its_ports(&dir, &["--replicas", "4"]);
    let dir = dir.display().to_string();
    eventually("the shard is shown as halted", || {
        let (rows, code) = shards(&dir);
        (code == Some(5) && rows[2]["state"] == "halted").then_some(())
    });
    let shown = stdout(&run(&["groups", "status", "--dir", &dir]));
    assert!(shown.contains("--bootstrap-again"), "{shown}");
    for replica in &demo.replicas {
        let mut client = replica.client();
        assert_eq!(client.ask(&["GET", "a"]).unwrap(), "kept");
        let error = client.ask(&["GET", "cache:a"]).unwrap();
        assert!(error.contains("CLUSTERDOWN"), "{error}");
    }
    let mut again: Vec<Guard> = Vec::new();
    for replica in &demo.replicas {
        signal(replica.pid, Signal::KILL);
        demo.waits_for(&format!("replica {} (", replica.id));
    }
    for replica in &demo.replicas {
        let mut replica = replica.clone();
        replica.serve.push("--bootstrap-again".to_owned());
        again.push(replica.start_by_hand());
    }
    served(&dir);
    let mut client = demo.replicas[3].client();
    assert_eq!(client.ask(&["GET", "a"]).unwrap(), "kept");
    assert_eq!(client.ask(&["SET", "cache:a", "new"]).unwrap(), "OK");
}

/// Two shards of two, whose members follow the views of the cluster's protocol.
const VIEWED: &str = "
[[subgroup]]
name = \"store\"
shards = 2
members = { min = 2, max = 2 }
";

/// Five replicas by the protocol whose views shards follow.
fn start_viewed(directory: &Path, layout: &str) -> Demo {
    let file = directory.join("layout.toml");
    fs::write(&file, layout).unwrap();
    let file = file.display().to_string();
    let more = ["--replicas", "5", "--protocol", "derecho", "--layout"];
    let more = [&more[..], &[&file]].concat();
    Demo::start(&directory.join("demo"), base_port(5), &more)
}

/// The members of each shard.
fn members(dir: &str) -> Vec<Vec<u64>> {
    let of = |row: &Value| serde_json::from_value(row["members"].clone()).unwrap();
    shards(dir).0.iter().map(of).collect()
}

#[test]
fn members_of_a_shard_follow_the_view_and_a_lost_one_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start_viewed(directory.path(), VIEWED);
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    let members = || members(&dir);
    let first = members();
    assert!(first.iter().all(|it| it.len() == 2), "{first:?}");
    let addresses: Vec<_> = demo.replicas.iter().map(|it| it.redis.clone()).collect();
    let load = Load::default();
    let mut again: Vec<Guard> = Vec::new();
    let replica = |id: u64| &demo.replicas[id as usize];
    load.during(3, &addresses, || {
        load.waits_for(100);
        // Another replica takes the place of one that died.
        let victim = first[0][0];
        signal(replica(victim).pid, Signal::KILL);
        eventually("another one is a member", || {
            let (now, code) = (members(), shards(&dir).1);
            let is_replaced = now.len() == 2 && !now[0].contains(&victim) && now[0].len() == 2;
            (is_replaced && code == Some(0)).then_some(())
        });
        load.waits_for(100);
        again.push(replica(victim).start_by_hand());
        load.waits_for(100);
    });
    load.check(&addresses);
    // Both members of a shard die: it is lost alone, until both logs are there again.
    eventually("all are members again", || {
        (shards(&dir).1 == Some(0)).then_some(())
    });
    let lost = members()[0].clone();
    for id in &lost {
        let status = replica(*id).status().unwrap();
        signal(status["pid"].as_u64().unwrap() as u32, Signal::KILL);
    }
    eventually("the shard is lost", || {
        let (rows, _) = shards(&dir);
        (rows.first()?["state"] == "lost").then_some(())
    });
    let other = (0..5).find(|id| !lost.contains(id)).unwrap();
    let served_by = |key: &str| replica(other).client().ask(&["SET", key, "1"]).unwrap();
    // 'a' is in the second shard, 'b' in the first.
    assert_eq!(served_by("a"), "OK");
    assert!(served_by("b").contains("CLUSTERDOWN"));
    for id in &lost {
        again.push(replica(*id).start_by_hand());
    }
    served(&dir);
    load.check(&addresses);
}

/// A shard in memory: whenever a member of it dies another one has all that was acknowledged.
const REMEMBERED: &str = "
[[subgroup]]
name = \"store\"
members = { min = 1, max = 5 }

[[subgroup]]
name = \"cache\"
prefix = \"key:\"
members = { min = 2, max = 2 }
durability = \"memory\"
";

#[test]
fn shard_in_memory_outlives_its_members_one_after_the_other() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start_viewed(directory.path(), REMEMBERED);
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    let members = || members(&dir).pop().unwrap();
    let pid = |id: u64| {
        let status = demo.replicas[id as usize].status().unwrap();
        status["pid"].as_u64().unwrap() as u32
    };
    let addresses: Vec<_> = demo.replicas.iter().map(|it| it.redis.clone()).collect();
    set(&demo.replicas[0], "kept", "1");
    let load = Load::default();
    let mut again: Vec<Guard> = Vec::new();
    load.during(3, &addresses, || {
        // In the end no process runs that had the shard in the beginning.
        for victim in members() {
            load.waits_for(50);
            signal(pid(victim), Signal::KILL);
            eventually("another one is a member", || {
                let now = members();
                let is_replaced = now.len() == 2 && !now.contains(&victim);
                (is_replaced && shards(&dir).1 == Some(0)).then_some(())
            });
            again.push(demo.replicas[victim as usize].start_by_hand());
        }
        load.waits_for(50);
    });
    load.check(&addresses[..1]);
    // Without all its members it is lost, also when they are back. The other shards are not.
    let lost = members();
    lost.iter().for_each(|id| signal(pid(*id), Signal::KILL));
    let is_lost = || (shards(&dir).0.last()?["state"] == "lost").then_some(());
    eventually("the shard is lost", is_lost);
    for id in &lost {
        let replica = &demo.replicas[*id as usize];
        again.push(replica.start_by_hand());
        eventually("it is ready", || replica.is_ready().then_some(()));
    }
    eventually("the shard is lost", is_lost);
    let shown = stdout(&run(&["groups", "status", "--dir", &dir]));
    assert!(
        shown.contains("no replica here has its log, which"),
        "{shown}"
    );
    assert!(shown.contains("--bootstrap-again"), "{shown}");
    let kept = |id: u64| demo.replicas[id as usize].client().ask(&["GET", "kept"]);
    assert_eq!(kept(lost[0]).unwrap(), "1");
    // The operator begins it again, and nothing else.
    for replica in &demo.replicas {
        signal(pid(replica.id), Signal::KILL);
        eventually("it has ended", || replica.status().is_none().then_some(()));
        let mut replica = replica.clone();
        replica.serve.push("--bootstrap-again".to_owned());
        again.push(replica.start_by_hand());
    }
    served(&dir);
    set(&demo.replicas[3], "key:0:0", "new");
    assert_eq!(kept(2).unwrap(), "1");
}

/// A process that stands still until this ends.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

#[test]
fn process_with_the_old_content_of_a_shard_starts_again() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start_viewed(directory.path(), REMEMBERED);
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    set(&demo.replicas[0], "kept", "1");
    set(&demo.replicas[0], "key:before", "old");
    set(&demo.replicas[0], "key:both", "old");
    let old = members(&dir).pop().unwrap()[1];
    let (mut others, old): (Vec<_>, _) = (
        demo.replicas
            .iter()
            .filter(|it| it.id != old)
            .cloned()
            .collect(),
        &demo.replicas[old as usize],
    );
    let stopped = Stopped::new(old.pid);
    for replica in &others {
        signal(replica.pid, Signal::KILL);
        eventually("it has ended", || replica.status().is_none().then_some(()));
    }
    let mut again: Vec<Guard> = Vec::new();
    for replica in &mut others {
        replica.serve.push("--bootstrap-again".to_owned());
        again.push(replica.start_by_hand());
    }
    let asked = |replica: &Replica, words: &[&str]| {
        let mut client = Client::connect(&replica.redis).ok()?;
        client.ask(words).ok()
    };
    let is_new = |replica: &Replica| {
        let read = |key: &str| asked(replica, &["GET", key]);
        let (before, both) = (read("key:before")?, read("key:both")?);
        assert!(before != "old" && both != "old", "{before}, {both}");
        let kept = read("kept")? == "1";
        (kept && before == "nil" && both == "new").then_some(())
    };
    eventually("the shard is begun again", || {
        let reply = asked(&others[0], &["SET", "key:both", "new"])?;
        (reply == "OK").then_some(())
    });
    others.iter().for_each(|replica| {
        eventually("the others have the new content", || is_new(replica));
    });
    drop(stopped);
    let log = old.dir.with_file_name("quintet.log");
    eventually("the old process starts again", || {
        is_new(old);
        let log = fs::read_to_string(&log).unwrap();
        let begins = log.contains("this process begins again");
        begins.then(|| assert!(log.contains("was begun again (--bootstrap-again)"), "{log}"))
    });
    eventually("it has the new content", || is_new(old));
    served(&dir);
    // The same process, which may be a member of the shard again.
    assert_eq!(old.status().unwrap()["pid"], old.pid);
    for victim in members(&dir).pop().unwrap() {
        let victim = &demo.replicas[victim as usize];
        if victim.id == old.id {
            continue;
        }
        let pid = victim.status().unwrap()["pid"].as_u64().unwrap();
        signal(pid as u32, Signal::KILL);
        eventually("another one is a member", || {
            let now = members(&dir).pop().unwrap_or_default();
            let is_replaced = now.len() == 2 && !now.contains(&victim.id);
            (is_replaced && shards(&dir).1 == Some(0)).then_some(())
        });
        eventually("it has the new content", || is_new(old));
        let replica = others.iter_mut().find(|it| it.id == victim.id).unwrap();
        replica.serve.pop();
        again.push(replica.start_by_hand());
        served(&dir);
    }
    demo.replicas.iter().for_each(|replica| {
        eventually("all answer the new content", || is_new(replica));
    });
}

#[test]
fn layout_with_a_fault_starts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("layout.toml");
    let dir = directory.path().join("demo").display().to_string();
    for (layout, parts) in [
        ("", &["no subgroup"][..]),
        (
            "[[subgroup]]\nname = \"a\"\nshard = 1",
            &["layout.toml:3", "shard", "shards"],
        ),
        (
            "[[subgroup]]\nname = \"a\"\npin = [[0, 7]]",
            &["no replica 7"],
        ),
        (
            "[[subgroup]]\nname = \"a\"\nprotocol = \"paxes\"",
            &["subgroup 'a'", "paxes"],
        ),
        (
            "[[subgroup]]\nname = \"a\"\nprefix = \"x\"",
            &["belong nowhere"],
        ),
        (
            "[[subgroup]]\nname = \"a\"\nmembers = { min = 3, max = 2 }",
            &["1 <= min <= max"],
        ),
        (
            "[[subgroup]]\nname = \"a\"\nmembers = { min = 1, max = 2 }",
            &["protocol 'multipaxos' has no option 'layout'"],
        ),
    ] {
        fs::write(&file, layout).unwrap();
        let file = file.display().to_string();
        let base = base_port(3).to_string();
        let arguments = [
            "demo",
            "--base-port",
            &base,
            "--dir",
            &dir,
            "--layout",
            &file,
        ];
        fails(&arguments, 2, parts);
    }
    let absent = directory.path().join("absent.toml").display().to_string();
    fails(
        &["demo", "--dir", &dir, "--layout", &absent],
        2,
        &["absent.toml"],
    );
    let output = quintet()
        .args(["groups", "status", "--dir", &dir])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// A shard for each of three replicas.
const PINNED: &str = r#"
[[subgroup]]
name = "kept"
shards = 3
pin = [[0], [1], [2]]
"#;

#[test]
fn sole_member_of_a_shard_with_a_wiped_disk_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start(directory.path(), PINNED, "3");
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    let keys: Vec<_> = (0..30).map(|nth| format!("key{nth}")).collect();
    for key in &keys {
        set(&demo.replicas[0], key, "1");
    }
    signal(demo.replicas[1].pid, Signal::KILL);
    eventually("the replica has ended", || {
        demo.replicas[1].status().is_none().then_some(())
    });
    let data = directory.path().join("demo/replica-1/data");
    fs::remove_dir_all(&data).unwrap();
    // It would serve its shard without what was acknowledged there.
    let mut again = demo.replicas[1].start_by_hand();
    assert_eq!(again.wait().code(), Some(7));
    let mut client = demo.replicas[0].client();
    let replies: Vec<_> = keys
        .iter()
        .map(|key| client.ask(&["GET", key]).unwrap())
        .collect();
    let refused = |reply: &&String| reply.contains("CLUSTERDOWN") && reply.contains("kept/1");
    let lost = replies.iter().filter(refused).count();
    let kept = replies.iter().filter(|reply| *reply == "1").count();
    assert!(lost > 0 && lost + kept == keys.len(), "{replies:?}");
}

#[test]
fn sole_member_of_a_shard_with_a_damaged_journal_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start(directory.path(), PINNED, "3");
    let dir = directory.path().join("demo").display().to_string();
    served(&dir);
    for nth in 0..30 {
        set(&demo.replicas[0], &format!("key{nth}"), "1");
    }
    let serve = demo.replicas[1].serve.clone();
    assert_eq!(demo.interrupt(), Some(0));
    let data = directory.path().join("demo/replica-1/data");
    let shown = run(&[
        "journal",
        "inspect",
        "--records",
        "-o",
        "json",
        &data.display().to_string(),
    ]);
    let shown = stdout(&shown);
    let record: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
    let offset = record["offset"].as_u64().unwrap() + 60;
    let segment = record["segment"].as_u64().unwrap();
    let path = data.join(format!("journal/{segment:020}.segment"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
    let output = Command::new(&serve[0]).args(&serve[1..]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    let reason = "cannot bring back what this replica keeps of shard kept/1";
    assert!(
        text.contains("is damaged") && text.contains(reason),
        "{text}"
    );
}

/// Three shards on the disks of the same three replicas.
const TOGETHER: &str = r#"
[[subgroup]]
name = "ledger"
shards = 3
"#;

/// The records of a stopped replica's journal: group, segment, offset and length.
fn records(data: &Path) -> Vec<[u64; 4]> {
    let data = data.display().to_string();
    let shown = run(&["journal", "inspect", "--records", "-o", "json", &data]);
    let shown = stdout(&shown);
    let lines = shown.lines().map(serde_json::from_str::<Value>);
    let record = |line: Value| {
        let fields = ["group", "segment", "offset", "bytes"].map(|name| line[name].as_u64());
        let [Some(group), Some(segment), Some(offset), Some(length)] = fields else {
            return None;
        };
        Some([group, segment, offset, length])
    };
    lines.filter_map(|line| record(line.ok()?)).collect()
}

/// Damages one of a group's records in a stopped replica's journal.
fn damage(data: &Path, group: u64) {
    let mut those = records(data);
    those.retain(|record| record[0] == group);
    let [_, segment, offset, length] = those[those.len() / 2];
    let file = data.join(format!("journal/{segment:020}.segment"));
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(file).unwrap();
    let (at, mut byte) = (offset + 48 + length / 2, [0]);
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// A shard that one of two replicas can keep alone.
const EITHER: &str = r#"
[[subgroup]]
name = "kept"
pin = [[0, 1]]
members = { min = 1, max = 2 }
"#;

fn start_either(directory: &Path) -> (Demo, String) {
    let file = directory.join("layout.toml");
    fs::write(&file, EITHER).unwrap();
    let file = file.display().to_string();
    let more = [
        "--replicas",
        "3",
        "--protocol",
        "derecho",
        "--layout",
        &file,
    ];
    let demo = Demo::start(&directory.join("demo"), base_port(3), &more);
    let dir = directory.join("demo").display().to_string();
    served(&dir);
    for nth in 0..30 {
        set(&demo.replicas[0], &format!("key{nth}"), "1");
    }
    (demo, dir)
}

#[test]
fn sole_holder_by_its_last_view_is_refused_when_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (demo, dir) = start_either(directory.path());
    signal(demo.replicas[1].pid, Signal::KILL);
    eventually("the other one is the only member", || {
        (members(&dir) == [[0]] && shards(&dir).1 == Some(0)).then_some(())
    });
    set(&demo.replicas[0], "key0", "2");
    let serve = demo.replicas[0].serve.clone();
    drop(demo);
    let data = directory.path().join("demo/replica-0/data");
    damage(&data, 1);
    let before = records(&data);
    let output = Command::new(&serve[0]).args(&serve[1..]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(7), "{text}");
    let parts = [
        "is damaged",
        "cannot bring back what this replica keeps of shard kept/0",
        "Nothing was changed. Restore the data directory from a backup",
    ];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(records(&data), before);
}

#[test]
fn damaged_shard_is_kept_aside_until_another_holder_is_heard() {
    let directory = tempfile::tempdir().unwrap();
    let (demo, dir) = start_either(directory.path());
    for replica in &demo.replicas {
        signal(replica.pid, Signal::KILL);
    }
    let alone = demo.replicas[0].clone();
    drop(demo);
    let data = directory.path().join("demo/replica-0/data");
    damage(&data, 1);
    let is_aside = || {
        let entries = fs::read_dir(&data).unwrap().map(Result::unwrap);
        let names = entries.map(|it| it.file_name().to_string_lossy().into_owned());
        let mut damaged = names.filter(|name| name.starts_with("damaged-"));
        damaged.next().is_some()
    };
    // No other replica is there to be heard, at two starts.
    for said in ["is damaged", "begun at an earlier start"] {
        let mut process = alone.start_by_hand();
        let status = eventually("its start is counted", || {
            let status = alone.status()?;
            (status["role"].as_str()? != "starting").then_some(status)
        });
        let repairing = status["repairing"].as_str().unwrap_or_default();
        assert!(repairing.contains(said), "{status}");
        assert!(repairing.ends_with(". This concerns kept/0"), "{repairing}");
        signal(process.0.id(), Signal::INT);
        process.wait();
        assert!(is_aside());
    }
    let demo = Demo::start_at_its_ports(&directory.path().join("demo"), &[]);
    served(&dir);
    eventually("the shard is repaired", || {
        alone.status()?["repairing"].is_null().then_some(())
    });
    eventually("what was set aside is deleted", || {
        (!is_aside()).then_some(())
    });
    assert_eq!(alone.client().ask(&["GET", "key7"]).unwrap(), "1");
    assert_eq!(demo.interrupt(), Some(0));
}

#[test]
fn damaged_record_costs_a_replica_its_shard_alone() {
    let directory = tempfile::tempdir().unwrap();
    let demo = start(directory.path(), TOGETHER, "3");
    let path = directory.path().join("demo");
    let dir = path.display().to_string();
    served(&dir);
    let keys: Vec<_> = (0..90).map(|nth| format!("key{nth}")).collect();
    for key in &keys {
        set(&demo.replicas[0], key, "1");
    }
    let alone = demo.replicas[1].clone();
    assert_eq!(demo.interrupt(), Some(0));
    let data = path.join("replica-1/data");
    let before = records(&data);
    let of = |all: &[[u64; 4]], group| all.iter().filter(|it| it[0] == group).count();
    assert!((1..=3).all(|group| of(&before, group) > 5), "{before:?}");
    damage(&data, 2);
    let said = run(&["journal", "verify", &data.display().to_string()]);
    assert_eq!(said.status.code(), Some(7));
    let said = stdout(&said) + &stderr(&said);
    assert!(said.contains("2 lack records"), "{said}");

    // No other replica runs that could give it anything.
    let mut process = alone.start_by_hand();
    let repairing = eventually("the replica is up", || {
        alone.status()?["repairing"].as_str().map(ToOwned::to_owned)
    });
    assert!(repairing.contains("This concerns ledger/1"), "{repairing}");
    signal(process.0.id(), Signal::INT);
    process.wait();
    let after = records(&data);
    let counts = |all: &[[u64; 4]]| [1, 2, 3].map(|group| of(all, group));
    let [first, _, third] = counts(&before);
    let [one, two, three] = counts(&after);
    assert!(
        one >= first && two == 0 && three >= third,
        "{before:?} {after:?}"
    );

    let demo = Demo::start_at_its_ports(&path, &[]);
    served(&dir);
    eventually("the shard is repaired", || {
        alone.status()?["repairing"].is_null().then_some(())
    });
    for key in &keys {
        assert_eq!(alone.client().ask(&["GET", key]).unwrap(), "1", "{key}");
    }
    assert_eq!(demo.interrupt(), Some(0));
}
