//! The store as files, with ls, cat and diff; skipped where nothing can be mounted.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::SystemTime,
};
use support::{Demo, Guard, base_port, eventually, fails, signal, stdout};

/// The output of a program in this directory.
fn shell(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output();
    stdout(&output.unwrap())
}

#[test]
fn store_is_a_directory_of_files_now_and_then() {
    let directory = tempfile::tempdir().unwrap();
    let mounted = directory.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &[]);
    let [one, other] = [1, 2].map(|at: usize| demo.replicas[at].redis.clone());
    let mut mount = support::quintet();
    mount
        .arg("mount")
        .arg(&mounted)
        .args(["--server", &one, "--server", &other]);
    let mount = mount.stdin(Stdio::null()).stdout(Stdio::null());
    let log = directory.path().join("log");
    let mount = mount.stderr(fs::File::create(&log).unwrap());
    let mut mount = Guard(mount.spawn().unwrap());
    let db0 = mounted.join("db0");
    let is_mounted = eventually("it is mounted, or says why not", || {
        match mount.0.try_wait().unwrap() {
            Some(_) => Some(false),
            None => db0.exists().then_some(true),
        }
    });
    if !is_mounted {
        return println!("skipped: {}", fs::read_to_string(log).unwrap());
    }
    let ask = |words: &[&str]| demo.replicas[0].client().ask(words).unwrap();
    ask(&["QUINTET.RETAIN", "SECONDS", "3600", "BYTES", "1000000"]);
    ask(&["SET", "greeting", "hello"]);
    ask(&["HSET", "a/b", "y", "2", "x", "1"]);
    ask(&["RPUSH", "list", "one", "two"]);
    ask(&["ZADD", "scores", "1.5", "m"]);
    let time = demo.replicas[0].client().ask_all(&["TIME"]).unwrap();
    let [seconds, micros] = [0, 1].map(|at: usize| time[at].parse::<u64>().unwrap());
    let then = format!("db0@us:{}", seconds * 1_000_000 + micros);
    ask(&["SET", "greeting", "changed"]);
    ask(&["DEL", "list"]);
    ask(&["SET", "new", "1"]);
    assert_eq!(
        shell(&mounted, "ls", &["db0"]),
        "a%2Fb\ngreeting\nnew\nscores\n"
    );
    assert_eq!(
        shell(&mounted, "ls", &[&then]),
        "a%2Fb\ngreeting\nlist\nscores\n"
    );
    let read = |path: &str| fs::read_to_string(mounted.join(path)).unwrap();
    assert_eq!(read("db0/greeting"), "changed");
    assert_eq!(read("db0/a%2Fb"), "x\t1\ny\t2\n");
    assert_eq!(read("db0/scores"), "1.5\tm\n");
    assert_eq!(read(&format!("{then}/greeting")), "hello");
    assert_eq!(read(&format!("{then}/list")), "one\ntwo\n");
    let differs = shell(&mounted, "diff", &["-qr", &then, "db0"]);
    let lines: Vec<_> = differs.lines().collect();
    assert_eq!(lines.len(), 3, "{differs}");
    assert!(differs.contains("Only in db0: new"), "{differs}");
    let changed = fs::metadata(db0.join("new")).unwrap().modified().unwrap();
    assert!(changed.elapsed().unwrap().as_secs() < 600 && changed > SystemTime::UNIX_EPOCH);
    for missing in ["db0/none", "db0@yesterday", "db1", "db0@now", "db0/a%2fb"] {
        assert!(!mounted.join(missing).exists(), "{missing}");
    }
    assert!(fs::write(db0.join("greeting"), "x").is_err(), "read only");
    // An open file keeps what it had; the replica that is asked stops, and comes back.
    let open = fs::File::open(db0.join("greeting")).unwrap();
    ask(&["SET", "greeting", "again"]);
    assert_eq!(std::io::read_to_string(open).unwrap(), "changed");
    assert_eq!(read("db0/greeting"), "again");
    signal(demo.replicas[1].pid, Signal::KILL);
    eventually("the other replica is asked", || {
        fs::read_to_string(db0.join("greeting"))
            .ok()
            .filter(|it| it == "again")
    });
    signal(mount.0.id(), Signal::INT);
    assert!(mount.wait().success());
    assert!(!db0.exists());
}

#[test]
fn mount_without_a_server_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let address = "127.0.0.1:1";
    fails(
        &["mount", path, "--server", address],
        3,
        &[address, "--server HOST:PORT"],
    );
}
