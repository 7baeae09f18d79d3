//! A small replicated counter and clusters of it in one process.
#![allow(dead_code, reason = "every test file uses a part of it")]

use quintet_replica::{
    At, ClusterId, DigestBegun, Durability, Level, ReplicaId, RestoreError, SnapshotProgress,
    StateMachine,
};
use quintet_runtime::{Config, Handle, Listeners, Member, Replica, Running, StatusReport, Threads};
use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Adds what it is told; the read `time` gives when it last did, any other the sum and how many commands made it.
#[derive(Default)]
pub struct Counter {
    sum: u64,
    commands: u64,
    /// The time of the last command, in nanoseconds since the Unix epoch.
    time: u64,
    incoming: Vec<u8>,
    /// Makes snapshots large.
    pub padding: usize,
    /// Every tenth command counts twice: a fault of the machine that this replica runs on.
    pub wrong: bool,
    /// How much later a version it is.
    pub version: u32,
}

fn number(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

impl StateMachine for Counter {
    fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        self.sum += number(command);
        if self.wrong && self.commands % 10 == 9 {
            self.sum += number(command);
        }
        self.commands += 1;
        self.time = at.time.0;
        reply.extend_from_slice(self.sum.to_string().as_bytes());
    }

    fn query(&self, _: &At, query: &[u8], reply: &mut Vec<u8>) {
        if query == b"time" {
            reply.extend_from_slice(self.time.to_string().as_bytes());
            return;
        }
        reply.extend_from_slice(format!("{} {}", self.sum, self.commands).as_bytes());
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        out.extend_from_slice(&self.sum.to_le_bytes());
        out.extend_from_slice(&self.commands.to_le_bytes());
        out.resize(out.len() + self.padding, 7);
        SnapshotProgress::Done
    }

    /// So much that it is saved ahead of a change.
    fn memory(&self) -> u64 {
        1 << 30
    }

    fn begin_restore(&mut self) {
        self.incoming.clear();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.incoming.extend_from_slice(chunk);
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        let word = |at: usize| {
            let bytes = self
                .incoming
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok());
            bytes
                .map(u64::from_le_bytes)
                .ok_or_else(|| RestoreError("short".to_owned()))
        };
        (self.sum, self.commands) = (word(0)?, word(8)?);
        Ok(())
    }

    fn semantics(&self) -> u32 {
        1 + self.version
    }

    fn digest(&self) -> u128 {
        u128::from(self.sum) << 64 | u128::from(self.commands)
    }

    fn begin_digest(&mut self) -> DigestBegun {
        DigestBegun::Done(self.digest())
    }

    fn entries(&self) -> u64 {
        self.commands
    }
}

/// Replicas in this process, each in its own directory.
pub struct Cluster {
    pub replicas: Vec<Option<Running>>,
    pub configs: Vec<Config>,
    pub padding: usize,
    /// Whose machine counts otherwise.
    pub wrong: Option<usize>,
}

/// Long enough for everything that must happen.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// How replicas of a test divide their work where it is not the test's subject: as the program
/// would be told by its environment.
fn threads() -> Threads {
    std::env::var("QUINTET_THREADS").map_or(Threads::One, |name| name.parse().expect("a mode"))
}

impl Cluster {
    pub fn prepare(root: &Path, count: usize, durability: Durability) -> (Self, Vec<TcpListener>) {
        let listeners: Vec<TcpListener> = (0..count)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"))
            .collect();
        let members: Vec<Member> = listeners
            .iter()
            .map(|l| Member {
                peer: l.local_addr().expect("bound").to_string(),
            })
            .collect();
        let configs = (0..count)
            .map(|id| {
                let data: PathBuf = root.join(format!("r{id}"));
                let mut config =
                    Config::new(ClusterId(42), ReplicaId(id as u16), members.clone(), data);
                config.durability = durability;
                config.threads = threads();
                config.redis_listen = None;
                config.admin_listen = None;
                config.peer_listen = listeners[id].local_addr().expect("bound");
                config.journal.segment_bytes = 1 << 20;
                config
            })
            .collect();
        let replicas = (0..count).map(|_| None).collect();
        (
            Self {
                replicas,
                configs,
                padding: 0,
                wrong: None,
            },
            listeners,
        )
    }

    pub fn start(root: &Path, count: usize, durability: Durability) -> Self {
        let (mut cluster, listeners) = Self::prepare(root, count, durability);
        cluster.start_on(listeners);
        cluster
    }

    pub fn start_on(&mut self, listeners: Vec<TcpListener>) {
        for (id, listener) in listeners.into_iter().enumerate() {
            let listeners = Listeners {
                peer: Some(listener),
                ..Listeners::default()
            };
            let machine = Box::new(Counter {
                padding: self.padding,
                wrong: self.wrong == Some(id),
                ..Counter::default()
            });
            let running = Replica::start_on(self.configs[id].clone(), machine, listeners);
            self.replicas[id] = Some(running.expect("starts"));
        }
    }

    pub fn restart(&mut self, id: usize) {
        let machine = Box::new(Counter {
            padding: self.padding,
            ..Counter::default()
        });
        let running = Replica::start(self.configs[id].clone(), machine).expect("starts again");
        self.replicas[id] = Some(running);
    }

    pub fn handle(&self, id: usize) -> Handle {
        self.replicas[id].as_ref().expect("it runs").handle()
    }

    pub fn stop(&mut self, id: usize) {
        let running = self.replicas[id].take().expect("it runs");
        running.stop();
        assert_eq!(running.join().exit_code(), 0);
    }

    pub fn add(&self, id: usize, amount: u64) -> u64 {
        let reply = self
            .handle(id)
            .submit(Level::Ordered, amount.to_string().as_bytes());
        number(&reply.expect("a quorum is there"))
    }

    pub fn read(&self, id: usize) -> String {
        let reply = self
            .handle(id)
            .submit(Level::Linearizable, b"")
            .expect("a quorum is there");
        String::from_utf8(reply).expect("text")
    }

    /// Waits until a replica's status is as wanted.
    pub fn wait(&self, id: usize, what: &str, wanted: impl Fn(&StatusReport) -> bool) {
        let begun = Instant::now();
        let handle = self.handle(id);
        loop {
            let status = handle.status();
            if wanted(&status) {
                return;
            }
            assert!(
                begun.elapsed() < TIMEOUT,
                "replica {id} never had {what}: {status:#?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
