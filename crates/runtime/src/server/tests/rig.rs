//! ```text
//!   bytes ──► Gateway ──► Submission ──► Executor with a Store, at once or when the test says
//!   bytes ◄── Gateway ◄── Outcome ◄─────────┘
//! ```

use crate::server::{ConnectionId, Gateway, GatewayConfig};
use quintet_replica::{
    BatchView, ClusterId, CommandTime, EpochNumber, Executor, ExecutorLimits, FrontendId, GroupId,
    Level, Outcome, ReplyRoute, RequestKind, Slot, Submission, Time, group_of,
};
use quintet_store::{Store, StoreOptions};
use std::time::Duration;

/// The Unix time at which every rig begins, in nanoseconds.
pub const BEGIN: u64 = 1_700_000_000_000_000_000;

pub struct Rig {
    pub gateway: Gateway,
    pub executor: Executor,
    /// Of further groups, in their order, if keys are divided.
    pub others: Vec<Executor>,
    pub now: Time,
    /// How far this server's clock is behind the log's, or ahead of it, in nanoseconds.
    pub behind: i64,
    slot: Slot,
    /// All that was submitted, as (level, kinds of requests).
    pub submitted: Vec<(Level, Vec<RequestKind>)>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(GatewayConfig::default())
    }

    pub fn with(config: GatewayConfig) -> Self {
        let limits = ExecutorLimits {
            session_lifetime: config.session_lifetime,
            queries_max: 10,
            ..ExecutorLimits::default()
        };
        let databases = config.databases;
        let ids = (config.shards.as_ref()).map_or_else(|| vec![GroupId(0)], |it| it.groups());
        let mut executors = ids.into_iter().map(|group| {
            let store = Store::new(StoreOptions {
                databases,
                ..Default::default()
            });
            let (cluster, epoch) = (ClusterId(1), EpochNumber(1));
            Executor::new(cluster, group, epoch, Box::new(store), limits)
        });
        Self {
            executor: executors.next().expect("a group"),
            others: executors.collect(),
            gateway: Gateway::new(config, FrontendId(7), 1),
            now: Time(1_000_000_000),
            behind: 0,
            slot: Slot(0),
            submitted: Vec::new(),
        }
    }

    pub fn connect(&mut self) -> ConnectionId {
        self.gateway
            .connect(self.now, "127.0.0.1:5000".parse().unwrap())
            .unwrap()
    }

    pub fn log_clock(&self) -> u64 {
        BEGIN + self.now.0
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
    }

    /// Appends to the connection's input.
    pub fn push(&mut self, id: ConnectionId, bytes: impl AsRef<[u8]>) {
        self.gateway.input(id).extend_from_slice(bytes.as_ref());
        self.gateway.on_input(id, self.now);
    }

    pub fn collect(&mut self) -> Vec<Submission> {
        let mut submissions = Vec::new();
        let clock = self.log_clock().wrapping_add_signed(-self.behind);
        self.gateway.collect(self.now, clock, &mut submissions);
        for submission in &submissions {
            let view = BatchView::checked(&submission.batch).unwrap();
            assert_eq!((view.id(), view.level()), (submission.id, submission.level));
            assert_eq!(view.frontend(), FrontendId(7));
            let kinds = view.requests().map(|request| request.kind).collect();
            self.submitted.push((submission.level, kinds));
        }
        submissions
    }

    /// The result of a batch at one replica that is a whole cluster.
    pub fn execute(&mut self, submission: &Submission) -> Outcome {
        let route = ReplyRoute {
            to: FrontendId(7),
            header: Default::default(),
            after: None,
        };
        let clock = self.log_clock();
        let group = group_of(&submission.batch);
        let executor = match group.0 {
            0 | 1 => &mut self.executor,
            group => &mut self.others[group as usize - 2],
        };
        let answer = if submission.level == Level::Ordered {
            self.slot = self.slot.next();
            executor.execute(
                self.slot,
                CommandTime(clock),
                &submission.batch,
                Some(route),
            )
        } else {
            executor.query(submission.batch.clone(), Slot(0), false, route, clock)
        };
        Outcome::Results(answer.expect("it answers at once").results)
    }

    pub fn done(&mut self, submission: &Submission, outcome: Outcome) {
        self.gateway.on_done(submission.id, outcome, self.now);
    }

    /// Collects and executes until nothing more comes.
    pub fn run(&mut self) {
        self.gateway.on_time(self.now);
        for turn in 0.. {
            assert!(turn < 10_000, "it does not come to rest");
            let submissions = self.collect();
            if submissions.is_empty() {
                break;
            }
            for submission in submissions {
                let outcome = self.execute(&submission);
                self.done(&submission, outcome);
            }
        }
    }

    /// Takes what is to be written to the client.
    pub fn output(&mut self, id: ConnectionId) -> String {
        let bytes = self.gateway.output(id).take();
        escape(&bytes)
    }

    /// Sends and gives the reply, with escaped line ends.
    pub fn ask(&mut self, id: ConnectionId, bytes: impl AsRef<[u8]>) -> String {
        self.push(id, bytes);
        self.run();
        self.output(id)
    }

    /// Sends an inline command and gives the reply.
    pub fn say(&mut self, id: ConnectionId, line: &str) -> String {
        self.ask(id, format!("{line}\r\n"))
    }

    pub fn ordered(&self) -> usize {
        self.submitted
            .iter()
            .filter(|(level, _)| *level == Level::Ordered)
            .count()
    }
}

pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(*byte)),
            other => text.push_str(&format!("\\x{other:02x}")),
        }
    }
    text
}

pub fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap() {
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
            other => other,
        });
    }
    bytes
}
