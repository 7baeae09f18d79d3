//! Replicas as pods of a StatefulSet: their names stay, their addresses change with every start, and
//! volumes are kept or lost. Namespaces of its own give the test a file of names and a network.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use support::{Client, Guard, eventually, http_get, quintet, run, signal, stderr, stdout};

const REDIS: u16 = 7001;
const ADMIN: u16 = 7101;
const PEER: u16 = 7201;
const SECRET: &str = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e";

/// The name by which all others reach a pod.
fn name(ordinal: usize) -> String {
    format!("quintet-{ordinal}.quintet")
}

#[derive(Default)]
struct Pod {
    process: Option<Guard>,
    starts: usize,
}

struct Set {
    directory: PathBuf,
    pods: Vec<Pod>,
    count: u64,
}

impl Set {
    fn volume(&self, ordinal: usize) -> PathBuf {
        self.directory.join(format!("volume-{ordinal}"))
    }

    /// A new address with each start.
    fn host(&self, ordinal: usize) -> String {
        format!("127.1.{}.{}", self.pods[ordinal].starts, ordinal + 1)
    }

    fn at(&self, ordinal: usize, port: u16) -> String {
        format!("{}:{port}", self.host(ordinal))
    }

    fn tell_names(&self) {
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        for (ordinal, pod) in self.pods.iter().enumerate() {
            if pod.process.is_some() || pod.starts > 0 {
                writeln!(hosts, "{} {}", self.host(ordinal), name(ordinal)).unwrap();
            }
        }
        // It is mounted by this file's inode, so it is not replaced.
        fs::write("/etc/hosts", hosts).unwrap();
    }

    /// Starts a pod at a new address, with these words before the usual ones.
    fn spawn(&mut self, ordinal: usize, words: &[&str]) {
        if self.pods.len() == ordinal {
            self.pods.push(Pod::default());
        }
        self.pods[ordinal].starts += 1;
        let (volume, host) = (self.volume(ordinal), self.host(ordinal));
        self.tell_names();
        let mut command = quintet();
        command
            .args(words)
            .env("QUINTET_SECRET", SECRET)
            .env("QUINTET_PASSWORD", "p");
        for (flag, port) in [("redis", REDIS), ("admin", ADMIN), ("peer", PEER)] {
            command.args([format!("--{flag}-listen"), format!("{host}:{port}")]);
        }
        let log = fs::File::create(volume.with_extension("log")).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.pods[ordinal].process = Some(Guard(command.spawn().unwrap()));
    }

    fn waits_for(&self, ordinal: usize) {
        eventually(&format!("pod {ordinal} is ready"), || {
            let (code, _) = http_get(&self.at(ordinal, ADMIN), "/readyz")?;
            (code == 200).then_some(())
        });
    }

    /// One of the first three, whose volume is empty in a new cluster, or its own.
    fn spawn_served(&mut self, ordinal: usize) {
        let members: Vec<String> = (0..3).map(|it| format!("{}:{PEER}", name(it))).collect();
        let (id, members) = (ordinal.to_string(), members.join(","));
        let volume = self.volume(ordinal).display().to_string();
        let cluster = "00000000000000000000000000000051";
        let words = [
            "serve",
            "--cluster",
            cluster,
            "--id",
            &id,
            "--members",
            &members,
        ];
        self.spawn(ordinal, &[&words[..], &["--data", &volume]].concat());
    }

    fn serve(&mut self, ordinal: usize) {
        self.spawn_served(ordinal);
        self.waits_for(ordinal);
        self.works();
    }

    /// One whose volume is empty in a cluster that works, or that came later.
    fn join(&mut self, ordinal: usize, more: &[&str]) {
        let volume = self.volume(ordinal).display().to_string();
        let own = format!("{}:{PEER}", name(ordinal));
        let others = (0..self.pods.len()).filter(|other| *other != ordinal);
        let seeds: Vec<String> = others.map(|it| format!("{}:{PEER}", name(it))).collect();
        let mut words = vec!["join", "--dir", &volume, "--advertise", &own];
        for seed in &seeds {
            words.extend(["--seed", seed]);
        }
        self.spawn(ordinal, &[&words[..], more].concat());
        self.waits_for(ordinal);
        eventually("it counts", || {
            let status = self.ask(&["member", "list", "-o", "json"], 0);
            let members: serde_json::Value = serde_json::from_str(&status).ok()?;
            let own = &members[ordinal];
            (own["role"] == "voter" && own["has_state"] == true).then_some(())
        });
        self.works();
    }

    /// Runs a command at a pod's admin address.
    fn ask(&self, words: &[&str], ordinal: usize) -> String {
        let admin = format!("http://{}", self.at(ordinal, ADMIN));
        let output = run(&[words, &["--admin", &admin, "--password", "p"]].concat());
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Ends a pod as its kubelet does, or as a power cut.
    fn stop(&mut self, ordinal: usize, how: Signal) {
        let mut process = self.pods[ordinal].process.take().unwrap();
        signal(process.0.id(), how);
        process.wait();
    }

    /// A command is executed once, and every pod that runs has those before.
    fn works(&mut self) {
        let pods = self.pods.iter().enumerate();
        let pods = pods.filter(|(_, pod)| pod.process.is_some());
        let running: Vec<usize> = pods.map(|(ordinal, _)| ordinal).collect();
        self.count += 1;
        let expected = self.count.to_string();
        let client = |ordinal: usize| {
            let mut client = Client::connect(&self.at(ordinal, REDIS)).unwrap();
            assert_eq!(client.ask(&["AUTH", "p"]).unwrap(), "OK");
            client
        };
        let first = running[self.count as usize % running.len()];
        assert_eq!(client(first).ask(&["INCR", "n"]).unwrap(), expected);
        for ordinal in running {
            assert_eq!(client(ordinal).ask(&["GET", "n"]).unwrap(), expected);
        }
    }

    fn restart_all(&mut self, joined: &[usize]) {
        for ordinal in (0..self.pods.len()).rev() {
            self.stop(ordinal, Signal::TERM);
            match joined.contains(&ordinal) {
                true => self.join(ordinal, &[]),
                false => self.serve(ordinal),
            }
        }
    }

    fn leave(&mut self, ordinal: usize) {
        let id = ordinal.to_string();
        self.ask(&["member", "remove", &id], 0);
        let mut pod = self.pods.pop().unwrap();
        assert_eq!(pod.process.take().unwrap().wait().code(), Some(7));
        fs::remove_dir_all(self.volume(ordinal)).unwrap();
        self.works();
    }
}

/// Set in the namespaces that the test makes for itself.
const INSIDE: &str = "STATEFULSET_INSIDE";

fn inside_namespaces() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    for words in [
        &["ip", "link", "set", "lo", "up"][..],
        &["mount", "--bind", hosts.to_str().unwrap(), "/etc/hosts"],
    ] {
        assert!(
            Command::new(words[0])
                .args(&words[1..])
                .status()
                .unwrap()
                .success()
        );
    }
    let mut set = Set {
        directory: directory.path().to_owned(),
        pods: Vec::new(),
        count: 0,
    };
    // The first three wait for each other.
    for ordinal in 0..3 {
        set.spawn_served(ordinal);
    }
    for ordinal in 0..3 {
        set.waits_for(ordinal);
    }
    set.works();
    set.restart_all(&[]);

    // Its volume is lost with its machine, and its ordinal stays.
    set.stop(1, Signal::KILL);
    fs::remove_dir_all(set.volume(1)).unwrap();
    set.join(1, &["--replace", "1"]);
    set.restart_all(&[1]);

    for ordinal in [3, 4] {
        set.join(ordinal, &[]);
    }
    set.restart_all(&[1, 3, 4]);
    for ordinal in [4, 3] {
        set.leave(ordinal);
    }
    set.restart_all(&[1]);
    set.join(3, &[]);
}

/// The arguments of `unshare` that work here.
fn namespaces() -> Result<Vec<&'static str>, String> {
    let wanted = vec!["--mount", "--net"];
    let as_root = [wanted.as_slice(), &["--user", "--map-root-user"]].concat();
    let mut reason = String::new();
    for arguments in [wanted, as_root] {
        let mut probe = Command::new("unshare");
        probe.args(&arguments).args(["--", "sh", "-c"]);
        probe.arg("ip link set lo up && mount --bind /etc/hosts /etc/hosts");
        match probe.stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(arguments),
            Ok(output) => reason = stderr(&output),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

#[test]
fn statefulset_keeps_its_data_when_restarted_and_scaled() {
    if std::env::var_os(INSIDE).is_some() {
        return inside_namespaces();
    }
    let arguments = match namespaces() {
        Ok(arguments) => arguments,
        Err(reason) => {
            eprintln!("skipped: no namespaces here: {}", reason.trim());
            return;
        }
    };
    let own = std::env::current_exe().unwrap();
    let mut inside = Command::new("unshare");
    inside.args(arguments).arg("--").arg(Path::new(&own));
    let name = "statefulset_keeps_its_data_when_restarted_and_scaled";
    inside
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1");
    let output = inside.stdin(Stdio::null()).output().unwrap();
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}
