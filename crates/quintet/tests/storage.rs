//! Disks that are full or fail, and damaged data directories, with real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};
use support::{
    eventually, run,
    served::{Served, Setup},
    stderr, stdout,
};

/// The library that makes a process's storage fail, made by the system's C compiler.
fn faults(directory: &Path) -> Option<PathBuf> {
    let library = directory.join("storage_faults.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/storage_faults.c");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output();
    match made {
        Ok(output) if output.status.success() => Some(library),
        Ok(output) => {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            None
        }
    }
}

/// Replicas whose storage fails when the test says so.
struct Faulty {
    setup: Setup,
    library: PathBuf,
    replicas: Vec<Served>,
}

impl Faulty {
    fn start(replicas: u16, more: &[&str]) -> Option<Self> {
        let setup = Setup::new(replicas);
        let library = faults(setup.root())?;
        let mut this = Self {
            setup,
            library,
            replicas: Vec::new(),
        };
        for id in 0..replicas {
            fs::create_dir(this.triggers(id)).unwrap();
            let served = this.start_one(id, more);
            this.replicas.push(served);
        }
        this.replicas.iter().for_each(Served::ready);
        Some(this)
    }

    fn start_one(&self, id: u16, more: &[&str]) -> Served {
        let surroundings = [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("STORAGE_FAULTS", self.triggers(id).display().to_string()),
        ];
        let surroundings: Vec<_> = surroundings.iter().map(|(n, v)| (*n, &v[..])).collect();
        self.setup.start_with(id, more, &surroundings)
    }

    fn triggers(&self, id: u16) -> PathBuf {
        self.setup.root().join(format!("faults-{id}"))
    }

    fn inject(&self, id: u16, name: &str) {
        fs::write(self.triggers(id).join(name), b"").unwrap();
    }

    fn relieve(&self, id: u16, name: &str) {
        fs::remove_file(self.triggers(id).join(name)).unwrap();
    }

    fn leader(&self) -> u16 {
        eventually("a leader", || self.replicas[0].status()?["leader"].as_u64()) as u16
    }

    /// Writes half a megabyte through a replica, again and again, until it says that there is no
    /// room. One that gets no processor for long may miss a deadline before.
    fn fill(&self, id: u16) -> String {
        let mut client = self.replicas[usize::from(id)].client();
        let value = "v".repeat(500_000);
        let mut written = 0;
        eventually("no room", || {
            let answer = client.ask(&["SET", &format!("filler:{}", written % 5), &value]);
            written += 1;
            let answer = answer.unwrap();
            answer.starts_with("-MISCONF").then_some(answer)
        })
    }
}

#[test]
fn leader_without_space_hands_over_serves_reads_and_recovers() {
    let Some(cluster) = Faulty::start(3, &[]) else {
        return;
    };
    let full = cluster.leader();
    let replica = &cluster.replicas[usize::from(full)];
    assert_eq!(replica.client().ask(&["SET", "a", "1"]).unwrap(), "OK");
    assert_eq!(replica.info("disk_state"), "ok");
    cluster.inject(full, "full");
    let answer = cluster.fill(full);
    assert!(
        answer.starts_with("-MISCONF the disk of this replica is full"),
        "{answer}"
    );
    assert_eq!(replica.info("disk_state"), "full");
    assert_eq!(replica.status().unwrap()["disk_state"], "full");
    assert_eq!(replica.metric("disk_full"), 1.0);
    eventually("another leader", || {
        let leader = replica.status()?["leader"].as_u64()?;
        (leader != u64::from(full)).then_some(())
    });
    // Elsewhere nothing is refused, and reads here see it.
    let other = &cluster.replicas[usize::from((full + 1) % 3)];
    assert_eq!(other.client().ask(&["SET", "a", "2"]).unwrap(), "OK");
    assert_eq!(replica.client().ask(&["GET", "a"]).unwrap(), "2");
    let mut client = replica.client();
    assert_eq!(client.ask(&["MULTI"]).unwrap(), "OK");
    assert!(client.ask(&["INCR", "a"]).unwrap().starts_with("-MISCONF"));
    assert!(client.ask(&["EXEC"]).unwrap().starts_with("-EXECABORT"));
    cluster.relieve(full, "full");
    eventually("room again", || {
        (replica.info("disk_state") == "ok").then_some(())
    });
    assert_eq!(client.ask(&["SET", "a", "3"]).unwrap(), "OK");
    assert_eq!(replica.metric("disk_full"), 0.0);
    assert_eq!(other.client().ask(&["GET", "a"]).unwrap(), "3");
}

#[test]
fn single_replica_without_room_refuses_writes_and_loses_none() {
    let Some(mut cluster) = Faulty::start(1, &["--client-deadline", "3s"]) else {
        return;
    };
    let mut client = cluster.replicas[0].client();
    cluster.inject(0, "full");
    let answer = cluster.fill(0);
    assert!(answer.starts_with("-MISCONF"), "{answer}");
    assert_eq!(client.ask(&["STRLEN", "filler:0"]).unwrap(), "500000");
    assert!(
        client
            .ask(&["SET", "a", "1"])
            .unwrap()
            .starts_with("-MISCONF")
    );
    cluster.relieve(0, "full");
    eventually("room again", || {
        (client.ask(&["SET", "a", "1"]).ok()? == "OK").then_some(())
    });
    assert_eq!(cluster.replicas.remove(0).stop(), Some(0));
    let again = cluster.setup.start(0, &[]);
    again.ready();
    assert_eq!(again.client().ask(&["GET", "a"]).unwrap(), "1");
    assert_eq!(
        again.client().ask(&["STRLEN", "filler:0"]).unwrap(),
        "500000"
    );
}

#[test]
fn replica_started_without_space_serves_reads_and_recovers() {
    let Some(mut cluster) = Faulty::start(1, &["--client-deadline", "3s"]) else {
        return;
    };
    let mut client = cluster.replicas[0].client();
    eventually("a write", || {
        (client.ask(&["SET", "a", "1"]).ok()? == "OK").then_some(())
    });
    cluster.inject(0, "full");
    cluster.fill(0);
    // Killed, so that it had no time to tidy up; and more than once.
    for _ in 0..2 {
        let mut killed = cluster.replicas.remove(0);
        killed.process.0.kill().unwrap();
        killed.process.wait();
        let again = cluster.start_one(0, &["--client-deadline", "3s"]);
        again.ready();
        cluster.replicas.push(again);
    }
    let mut client = cluster.replicas[0].client();
    let mut reads = |words: &[&str], expected: &str| {
        eventually("a read within the deadline", || {
            let answer = client.ask(words).ok()?;
            (!answer.starts_with('-')).then(|| assert_eq!(answer, expected))
        });
    };
    reads(&["GET", "a"], "1");
    reads(&["STRLEN", "filler:0"], "500000");
    eventually("no room is noticed", || {
        let answer = client.ask(&["SET", "a", "2"]).ok()?;
        answer.starts_with("-MISCONF").then_some(())
    });
    assert_eq!(cluster.replicas[0].info("disk_state"), "full");
    cluster.relieve(0, "full");
    eventually("room again", || {
        (client.ask(&["SET", "a", "3"]).ok()? == "OK").then_some(())
    });
    assert_eq!(cluster.replicas.remove(0).stop(), Some(0));
}

/// The second sync would succeed, and the data of the first would be gone.
#[test]
fn fsync_error_then_retry() {
    let Some(mut cluster) = Faulty::start(3, &["--journal-direct", "false"]) else {
        return;
    };
    let target = cluster.leader();
    cluster.inject(target, "sync");
    let mut replica = cluster.replicas.remove(usize::from(target));
    // The answer does not matter: it is not from this replica's disk.
    let _ = replica.client().ask(&["SET", "a", "1"]);
    assert_eq!(replica.process.wait().code(), Some(8));
    assert!(
        replica.said().contains("storage failed"),
        "{}",
        replica.said()
    );
    let mut client = cluster.replicas[0].client();
    eventually("the others continue", || {
        (client.ask(&["SET", "a", "2"]).ok()? == "OK").then_some(())
    });
}

/// One failing task must not leave a replica that still looks alive.
#[test]
fn storage_error_half_stops_node() {
    let Some(mut cluster) = Faulty::start(1, &[]) else {
        return;
    };
    cluster.inject(0, "write");
    let mut replica = cluster.replicas.remove(0);
    let answer = replica.client().ask(&["SET", "a", "1"]);
    assert!(!matches!(answer.as_deref(), Ok("OK")), "{answer:?}");
    assert_eq!(replica.process.wait().code(), Some(8));
    assert!(replica.status().is_none());
}

fn verify(directory: &Path) -> (Option<i32>, String) {
    let output = run(&["journal", "verify", &directory.display().to_string()]);
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[test]
fn journal_inspection_requires_stopped_replica() {
    let setup = Setup::new(1);
    let replica = setup.start(0, &[]);
    replica.ready();
    let mut client = replica.client();
    for number in 0..20 {
        let key = format!("k{number}");
        assert_eq!(client.ask(&["SET", &key, "value"]).unwrap(), "OK");
    }
    let data = replica.data.clone();
    let (code, text) = verify(&data);
    assert_eq!(code, Some(7));
    let pid = replica.process.0.id();
    assert!(text.contains(&format!("in use by process {pid}")), "{text}");
    assert_eq!(replica.stop(), Some(0));
    let before = listing(&data);
    let (code, text) = verify(&data);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("sound"), "{text}");

    let path = data.display().to_string();
    let text = stdout(&run(&["journal", "inspect", "--records", &path]));
    for part in [
        "SEGMENT",
        "SEQUENCE",
        "incarnation  1",
        "promises",
        "durable up to",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    let text = stdout(&run(&[
        "journal",
        "inspect",
        "--records",
        "-o",
        "json",
        &path,
    ]));
    let mut lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let report = lines.pop().unwrap();
    assert_eq!(report["replica"], 0);
    assert_eq!(report["problems"].as_array().unwrap().len(), 0);
    assert!(lines.len() >= 20, "{}", lines.len());
    assert!(
        lines
            .iter()
            .zip(1..)
            .all(|(line, at)| line["sequence"] == at)
    );
    let indented = stdout(&run(&["journal", "inspect", "-o", "json", &path]));
    assert!(serde_json::from_str::<Value>(&indented).unwrap()["segments"][0]["records"].is_u64());
    assert_eq!(listing(&data), before, "looking changes nothing");

    // The journal check and a start both name the position of a corrupted byte.
    let offset = lines[7]["offset"].as_u64().unwrap() + 60;
    let segment = lines[7]["segment"].as_u64().unwrap();
    let file = data.join(format!("journal/{segment:020}.segment"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
    let place = format!(
        "segment {segment} is damaged at offset {}",
        lines[7]["offset"]
    );
    let (code, text) = verify(&data);
    assert_eq!(code, Some(7), "{text}");
    assert!(text.contains(&place) && text.contains("help:"), "{text}");
    let (code, text) = setup.refusal(0, &[]);
    assert_eq!(code, Some(7), "{text}");
    assert!(text.contains(&place) && text.contains("Restore"), "{text}");

    let (code, text) = verify(setup.root());
    assert_eq!(code, Some(7));
    assert!(text.contains("not a replica's data directory"), "{text}");
}

/// Names, lengths and contents of all files.
fn listing(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(listing(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}
