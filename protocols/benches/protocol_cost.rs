//! What a protocol itself costs: nanoseconds per committed command at the busiest replica and
//! summed over all, with no sockets, no disk and a state machine that does nothing.
//!
//! ```text
//!   client ──► node 0 ──frames──► node 1 … node n-1      one thread, in-memory queues; the time
//!         ◄── Done ◄──frames────                         of each node's turns is added up apart
//! ```
//!
//! `cargo bench -p quintet-protocols` prints a table for every registered protocol, and with
//! ` -- chain_paxos multipaxos` behind it for these. "batching off" gives every command a batch, a
//! slot and a message of its own; "on" puts 64 into a batch.

use bytes::Bytes;
use quintet_protocols::PROTOCOLS;
use quintet_replica::{
    At, BatchBuilder, BatchId, Boot, ClockReading, ClusterId, CommandId, Durability, Entry, Epoch,
    EpochNumber, Executed, ExecutorLimits, FrontendId, GroupId, Incarnation, Input, Level, Link,
    Node, NodeSetup, Outcome, Output, Peer, Recipients, RecoveredBytes, ReplicaId, RequestKind,
    RestoreError, SessionId, SnapshotInfo, SnapshotProgress, StateMachine, Submission, Time,
    TimerKey, World,
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

struct Nothing;

impl StateMachine for Nothing {
    fn apply(&mut self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(b"+OK\r\n");
    }
    fn query(&self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(b"$-1\r\n");
    }
    fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        SnapshotProgress::Done
    }
    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }
    fn digest(&self) -> u128 {
        0
    }
}

struct Clock(Instant);

impl World for Clock {
    fn now(&self) -> Time {
        Time(self.0.elapsed().as_nanos() as u64)
    }
    fn clock(&self) -> ClockReading {
        let now = self.now().0 + 1;
        ClockReading {
            earliest: now,
            now,
            latest: now,
            deviation: 0,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        64 << 20
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

struct Bed {
    clock: Clock,
    nodes: Vec<Node>,
    inboxes: Vec<VecDeque<(ReplicaId, Bytes)>>,
    timers: Vec<BTreeMap<TimerKey, Time>>,
    spent: Vec<Duration>,
    outputs: Vec<Output>,
    done: u64,
}

impl Bed {
    fn new(protocol: &Entry, members: usize) -> Self {
        let clock = Clock(Instant::now());
        let epoch = Epoch {
            cluster: ClusterId(1),
            number: EpochNumber(1),
            members,
            options: Vec::new(),
            secret: [7; 32],
            leader_first: ReplicaId(0),
        };
        let node = |id: usize| {
            let setup = NodeSetup {
                id: ReplicaId(id as u16),
                incarnation: Incarnation(1),
                boot: Boot(1),
                group: GroupId(0),
                epoch: epoch.clone(),
                durability: Durability::Memory,
                seed: id as u64,
                frontend: FrontendId(id as u64 + 1),
                snapshot_bytes_min: u64::MAX,
                limits: ExecutorLimits::default(),
            };
            Node::new(setup, protocol, Box::new(Nothing)).expect("default options are valid")
        };
        let mut bed = Self {
            nodes: (0..members).map(node).collect(),
            inboxes: vec![VecDeque::new(); members],
            timers: vec![BTreeMap::new(); members],
            spent: vec![Duration::ZERO; members],
            outputs: Vec::new(),
            done: 0,
            clock,
        };
        for id in 0..members {
            let first = RecoveredBytes {
                first_boot: true,
                ..RecoveredBytes::default()
            };
            bed.nodes[id]
                .start(first, &bed.clock, &mut bed.outputs)
                .expect("a first boot starts");
            bed.carry_out(id);
        }
        for id in 0..members {
            for peer in (0..members).filter(|peer| *peer != id) {
                let up = Link::Up {
                    incarnation: Incarnation(1),
                };
                bed.input(id, Input::Link(Peer::Replica(ReplicaId(peer as u16)), up));
            }
        }
        bed
    }

    fn input(&mut self, id: usize, input: Input) {
        self.nodes[id]
            .on_input(input, &self.clock, &mut self.outputs)
            .expect("nodes understand each other");
        self.carry_out(id);
    }

    fn carry_out(&mut self, id: usize) {
        for output in self.outputs.drain(..) {
            match output {
                Output::Send {
                    to: Recipients::Replicas(to),
                    frame,
                    ..
                } => {
                    let bytes = frame.into_bytes();
                    for peer in to.iter() {
                        self.inboxes[peer.index()].push_back((ReplicaId(id as u16), bytes.clone()));
                    }
                }
                Output::Journal { id: write, .. } => {
                    // Promises are rare; their durability is granted with the next turn.
                    self.inboxes[id].push_front((
                        ReplicaId(u16::MAX),
                        Bytes::copy_from_slice(&write.0.to_le_bytes()),
                    ));
                }
                Output::SetTimer {
                    key,
                    at: quintet_replica::Deadline::At(at),
                } => {
                    self.timers[id].insert(key, at);
                }
                Output::CancelTimer { key } => {
                    self.timers[id].remove(&key);
                }
                Output::Done { outcome, .. } => {
                    assert!(matches!(outcome, Outcome::Results(_)), "{outcome:?}");
                    self.done += 1;
                }
                Output::Halt(reason) => panic!("{reason}"),
                _ => {}
            }
        }
    }

    fn turn(&mut self, id: usize, submission: &mut dyn FnMut() -> Option<Submission>) {
        let now = self.clock.now();
        let due = self.timers[id]
            .iter()
            .find(|(_, at)| **at <= now)
            .map(|(key, _)| *key);
        if let Some(key) = due {
            self.timers[id].remove(&key);
            self.input(id, Input::Timer(key));
        }
        let began = Instant::now();
        for _ in 0..self.inboxes[id].len() {
            let Some((from, frame)) = self.inboxes[id].pop_front() else {
                break;
            };
            let input = match frame.first_chunk() {
                Some(write) if from == ReplicaId(u16::MAX) => {
                    Input::Persisted(quintet_replica::PersistId(u64::from_le_bytes(*write)))
                }
                _ => Input::Frame {
                    from: Peer::Replica(from),
                    arrived: now,
                    frame,
                },
            };
            self.input(id, input);
        }
        while let Some(submission) = submission() {
            self.input(id, Input::Submit(submission));
        }
        self.nodes[id].on_idle(&self.clock, &mut self.outputs);
        self.carry_out(id);
        self.spent[id] += began.elapsed();
    }
}

/// Runs `commands` commands in batches of `per_batch` and gives (busiest, sum) in nanoseconds.
fn measure(protocol: &Entry, members: usize, per_batch: u64, commands: u64) -> (f64, f64) {
    const WINDOW: u64 = 64;
    let mut bed = Bed::new(protocol, members);
    let session = SessionId {
        owner: 9,
        number: 1,
    };
    let mut builder = BatchBuilder::new();
    let (mut batch, mut sequence, mut warm) = (0, 0, false);
    let warm_up = commands / 10 / per_batch;
    let batches = commands / per_batch + warm_up;
    while bed.done < batches {
        if !warm && bed.done >= warm_up {
            warm = true;
            bed.spent.fill(Duration::ZERO);
        }
        for id in 0..members {
            let open = batch - bed.done;
            let mut left = if id == 0 {
                WINDOW.saturating_sub(open).min(batches - batch)
            } else {
                0
            };
            if batch == 0 && id == 0 {
                left = 1;
            }
            bed.turn(id, &mut || {
                left = left.checked_sub(1)?;
                batch += 1;
                if batch == 1 {
                    let id = CommandId {
                        session,
                        sequence: 0,
                    };
                    builder.push(id, RequestKind::Open, 0, &0u64.to_le_bytes());
                }
                for _ in 0..per_batch {
                    sequence += 1;
                    let open = (WINDOW * per_batch).min(1000).min(sequence - 1) as u16;
                    let id = CommandId { session, sequence };
                    builder.push(id, RequestKind::Command, open, &[0x55; 16]);
                }
                let (id, level) = (BatchId(batch), Level::Ordered);
                let batch = builder.finish(FrontendId(1), id, level);
                Some(Submission {
                    id,
                    level,
                    batch,
                    deadline: Time::NEVER,
                })
            });
        }
    }
    let counted = (batches - warm_up) as f64 * per_batch as f64;
    let each = bed
        .spent
        .iter()
        .map(|spent| spent.as_nanos() as f64 / counted);
    (each.clone().fold(0.0, f64::max), each.sum())
}

fn main() {
    println!("ns per committed command, medians of 5 rounds (state machine does nothing)");
    println!(
        "{:<14} {:>8} {:>14} {:>10} {:>10}",
        "protocol", "replicas", "batching", "busiest", "sum"
    );
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let wanted =
        |protocol: &&Entry| named.is_empty() || named.iter().any(|name| name == protocol.info.name);
    for protocol in PROTOCOLS.iter().filter(wanted) {
        for members in [3, 5, 7] {
            for (name, per_batch, commands) in [("off", 1, 200_000), ("on (64)", 64, 3_200_000)] {
                let mut rounds: Vec<_> = (0..5)
                    .map(|_| measure(protocol, members, per_batch, commands))
                    .collect();
                rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (busiest, sum) = rounds[2];
                let label = protocol.info.name;
                println!("{label:<14} {members:>8} {name:>14} {busiest:>10.0} {sum:>10.0}");
            }
        }
    }
}
