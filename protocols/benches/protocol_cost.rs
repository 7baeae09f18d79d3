//! The cost of a protocol itself: nanoseconds per committed command at the busiest replica and
//! summed over all, with no sockets, no disk and a state machine that does nothing.
//!
//! ```text
//!   client ──► node 0 ──frames──► node 1 … node n-1      one thread, in-memory queues; the time
//!         ◄── Done ◄──frames────                         of each node's turns is added up apart
//! ```
//!
//! `cargo bench -p quintet-protocols` prints a table for every registered protocol. Behind ` -- `
//! stand protocols, with options of theirs (`multipaxos chora+mode=pulsing+round_us=1`), and values
//! of columns (`replicas=3 turns=one`): then only those rows are measured. Rows that are printed
//! together were measured together, in interleaved rounds.
//!
//! - **batching** `off` gives every command a batch, a slot and a message of its own; `on` puts 64
//!   into a batch, and protocols put as many batches into a message as they like.
//! - **clients** are at the `first` replica or at `all`; as many commands are in flight together.
//! - **turns** take `one` frame and one submission each, so that no two frames are acknowledged
//!   together because they came together, or `all` that wait, as a replica under load does.
//!
//! A replica's time is that of its turns: decoding, handling, executing, encoding, and one copy of
//! each frame into the queues. Making the batches is the clients' time and not counted. Figures are
//! medians over stretches of so few batches that most stretches pass without being interrupted: a
//! machine that does other things, too, makes them less wrong than it would make a mean.

use bytes::Bytes;
use quintet_protocols::PROTOCOLS;
use quintet_replica::{
    BatchBuilder, BatchId, Boot, ClockReading, ClusterId, CommandId, Durability, Entry, Epoch,
    EpochNumber, Executed, ExecutorLimits, FrontendId, GroupId, Incarnation, Input, Level, Link,
    Node, NodeSetup, Nothing, Outcome, Output, Peer, Recipients, RecoveredBytes, ReplicaId,
    RequestKind, SessionId, SnapshotInfo, Submission, Time, TimerKey, Wake, World, put_frame,
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

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

struct Bench {
    clock: Clock,
    nodes: Vec<Node>,
    inboxes: Vec<VecDeque<(ReplicaId, Bytes)>>,
    timers: Vec<BTreeMap<TimerKey, Time>>,
    wakes: Vec<Wake>,
    spent: Vec<Duration>,
    outputs: Vec<Output>,
    /// Batches that are finished, of each replica's clients.
    done: Vec<u64>,
}

/// One row of the table, but for its figures.
#[derive(Clone, Debug)]
struct Case {
    protocol: &'static Entry,
    /// As it was asked for.
    name: String,
    options: Texts,
    members: usize,
    clients: &'static str,
    batching: &'static str,
    turns: &'static str,
}

/// Options by which protocols are told not to put several batches into one message, and what they
/// are set to without batching, unless the row says something else.
const UNBATCHED: [(&str, &str); 2] = [("batches_max", "1"), ("slots_max", "1")];
/// Batches in progress.
const WINDOW: u64 = 64;
/// Batches of a stretch.
const STRETCH: u64 = 256;
const COLUMNS: [&str; 4] = ["replicas", "clients", "batching", "turns"];

impl Bench {
    fn new(case: &Case) -> Self {
        let (protocol, members) = (case.protocol, case.members);
        let clock = Clock(Instant::now());
        let epoch = Epoch {
            cluster: ClusterId(1),
            number: EpochNumber(1),
            members,
            options: case.options.clone(),
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
            Node::new(setup, protocol, Box::new(Nothing)).expect("options were checked")
        };
        let mut bench = Self {
            nodes: (0..members).map(node).collect(),
            inboxes: vec![VecDeque::new(); members],
            timers: vec![BTreeMap::new(); members],
            wakes: vec![Wake::Spin; members],
            spent: vec![Duration::ZERO; members],
            outputs: Vec::new(),
            done: vec![0; members],
            clock,
        };
        for id in 0..members {
            let first = RecoveredBytes {
                first_boot: true,
                ..RecoveredBytes::default()
            };
            bench.nodes[id]
                .start(first, &bench.clock, &mut bench.outputs)
                .expect("a first boot starts");
            bench.carry_out(id);
        }
        for id in 0..members {
            for peer in (0..members).filter(|peer| *peer != id) {
                let up = Link::Up {
                    incarnation: Incarnation(1),
                };
                bench.input(id, Input::Link(Peer::Replica(ReplicaId(peer as u16)), up));
            }
        }
        bench
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
                Output::Put { to, ranges } => {
                    let bytes = put_frame(GroupId(0), EpochNumber(1), ranges).into_bytes();
                    for peer in to.iter() {
                        self.inboxes[peer.index()].push_back((ReplicaId(id as u16), bytes.clone()));
                    }
                }
                Output::Journal { id: write, .. } => {
                    // Promises are rare; their durability is granted with the next turn.
                    let inbox = &mut self.inboxes[id];
                    let granted = |(from, _): &&(ReplicaId, Bytes)| *from == ReplicaId(u16::MAX);
                    let behind = inbox.iter().take_while(granted).count();
                    let write = Bytes::copy_from_slice(&write.0.to_le_bytes());
                    inbox.insert(behind, (ReplicaId(u16::MAX), write));
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
                    self.done[id] += 1;
                }
                Output::Halt(_, reason) => panic!("{reason}"),
                _ => {}
            }
        }
    }

    /// Timers that are due, frames, what clients want, and the flush; one frame and one submission
    /// when `one`. A replica that only a later timer would wake is left alone, as a sleeping
    /// replica is.
    fn turn(&mut self, id: usize, one: bool, submission: &mut dyn FnMut() -> Option<Submission>) {
        let now = self.clock.now();
        let due = self.timers[id].iter().find(|(_, at)| **at <= now);
        let due = due.map(|(key, _)| *key);
        let frames = self.inboxes[id].len().min(if one { 1 } else { usize::MAX });
        let first = submission();
        let sleeps = match self.wakes[id] {
            Wake::Spin => false,
            Wake::At(at) => at > now,
            Wake::Sleep => true,
        };
        if due.is_none() && frames == 0 && first.is_none() && sleeps {
            return;
        }
        let mut submissions = Vec::from_iter(first);
        if !one {
            submissions.extend(std::iter::from_fn(submission));
        }
        let began = Instant::now();
        if let Some(key) = due {
            self.timers[id].remove(&key);
            self.input(id, Input::Timer(key));
        }
        for _ in 0..frames {
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
        for submission in submissions {
            self.input(id, Input::Submit(submission));
        }
        self.wakes[id] = self.nodes[id].on_idle(&self.clock, &mut self.outputs);
        self.carry_out(id);
        self.spent[id] += began.elapsed();
    }
}

/// The clients of one replica, who share a session.
struct Clients {
    at: usize,
    session: SessionId,
    builder: BatchBuilder,
    batch: u64,
    sequence: u64,
    batches: u64,
    window: u64,
    per_batch: u64,
}

impl Clients {
    /// Their next batch, when one may be in progress beside those that are not among the `done`.
    fn next(&mut self, done: u64) -> Option<Submission> {
        // The first opens the session, and nothing goes before it is open.
        let window = if done == 0 { 1 } else { self.window };
        if self.batch == self.batches || self.batch - done >= window {
            return None;
        }
        self.batch += 1;
        let session = self.session;
        if self.batch == 1 {
            let id = CommandId {
                session,
                sequence: 0,
            };
            (self.builder).push(id, RequestKind::Open, 0, &0u64.to_le_bytes());
        }
        for _ in 0..self.per_batch {
            self.sequence += 1;
            let open = (self.window * self.per_batch).min(1000);
            let open = open.min(self.sequence - 1) as u16;
            let sequence = self.sequence;
            let id = CommandId { session, sequence };
            (self.builder).push(id, RequestKind::Command, open, &[0x55; 16]);
        }
        let (id, level) = (BatchId(self.batch), Level::Ordered);
        let frontend = FrontendId(self.at as u64 + 1);
        Some(Submission {
            id,
            level,
            batch: self.builder.finish(frontend, id, level),
            deadline: Time::NEVER,
        })
    }
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Runs one case and gives (busiest, sum) in nanoseconds per command.
fn measure(case: &Case) -> (f64, f64) {
    let (per_batch, commands): (u64, u64) = match case.batching {
        "off" => (1, 120_000),
        _ => (64, 1_920_000),
    };
    let one = case.turns == "one";
    let mut bench = Bench::new(case);
    let groups = if case.clients == "all" {
        case.members
    } else {
        1
    } as u64;
    let warm_up = commands / 10 / per_batch;
    let batches = (commands / per_batch + warm_up).div_ceil(groups);
    let mut clients: Vec<Clients> = (0..groups as usize)
        .map(|at| Clients {
            at,
            session: SessionId {
                owner: 9 + at as u64,
                number: 1,
            },
            builder: BatchBuilder::new(),
            batch: 0,
            sequence: 0,
            batches,
            window: (WINDOW / groups).max(1),
            per_batch,
        })
        .collect();
    let mut stretches = vec![Vec::new(); case.members];
    let mut counted = 0;
    loop {
        let done: u64 = bench.done.iter().sum();
        if done >= counted + STRETCH {
            for (spent, stretches) in bench.spent.iter_mut().zip(&mut stretches) {
                let spent = std::mem::take(spent).as_nanos() as f64;
                if done >= warm_up {
                    stretches.push(spent / ((done - counted) * per_batch) as f64);
                }
            }
            counted = done;
        }
        if done == batches * groups {
            break;
        }
        for id in 0..case.members {
            let done = bench.done[id];
            let clients = clients.get_mut(id);
            match clients {
                Some(clients) => bench.turn(id, one, &mut || clients.next(done)),
                None => bench.turn(id, one, &mut || None),
            }
        }
    }
    let each: Vec<f64> = stretches.iter_mut().map(|all| median(all)).collect();
    let busiest = each.iter().copied().fold(0.0, f64::max);
    (busiest, each.iter().sum())
}

/// Options as they are told to a protocol: name and value.
type Texts = Vec<(String, String)>;

/// `NAME[+OPTION=VALUE]…`, with the options that turn batching off where the protocol has them.
fn asked_for(text: &str, batching: &str) -> Result<(&'static Entry, Texts), String> {
    let mut words = text.split('+');
    let name = words.next().unwrap_or_default();
    let protocol = quintet_protocols::find(name).map_err(|error| error.to_string())?;
    let mut options = Vec::new();
    for word in words {
        let (name, value) =
            (word.split_once('=')).ok_or(format!("'{word}' is not OPTION=VALUE"))?;
        options.push((name.to_owned(), value.to_owned()));
    }
    if batching == "off" {
        for (name, value) in UNBATCHED {
            let given = options.iter().any(|(given, _)| given == name);
            if !given && protocol.options.iter().any(|option| option.name == name) {
                options.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    (protocol.check)(&options).map_err(|error| format!("'{text}': {error}"))?;
    Ok((protocol, options))
}

/// The rows that are wanted.
fn cases(words: &[String]) -> Result<Vec<Case>, String> {
    let column = |word: &str| {
        let (name, value) = word.split_once('=')?;
        let known = COLUMNS.iter().position(|column| *column == name)?;
        Some((known, value.to_owned()))
    };
    let chosen: Vec<(usize, String)> = words.iter().filter_map(|word| column(word)).collect();
    let mut names: Vec<String> = words.to_vec();
    names.retain(|word| column(word).is_none());
    if names.is_empty() {
        names = (PROTOCOLS.iter())
            .map(|protocol| protocol.info.name.to_owned())
            .collect();
    }
    let mut cases = Vec::new();
    for name in &names {
        for members in [3, 5, 7] {
            for clients in ["first", "all"] {
                for (batching, turns) in [("off", "one"), ("off", "all"), ("on", "all")] {
                    let row =
                        [members.to_string().as_str(), clients, batching, turns].map(str::to_owned);
                    if chosen.iter().any(|(column, value)| row[*column] != *value) {
                        continue;
                    }
                    let (protocol, options) = asked_for(name, batching)?;
                    cases.push(Case {
                        protocol,
                        name: name.clone(),
                        options,
                        members,
                        clients,
                        batching,
                        turns,
                    });
                }
            }
        }
    }
    Ok(cases)
}

const ROUNDS: usize = 5;

fn main() -> Result<(), String> {
    let words = std::env::args().skip(1);
    let words: Vec<String> = words.filter(|word| !word.starts_with('-')).collect();
    let cases = cases(&words)?;
    let mut found = vec![Vec::new(); cases.len()];
    for _ in 0..ROUNDS {
        for (case, found) in cases.iter().zip(&mut found) {
            found.push(measure(case));
        }
    }
    println!("ns per committed command, medians of {ROUNDS} rounds (state machine does nothing)");
    println!(
        "{:<40} {:>8} {:>8} {:>8} {:>6} {:>10} {:>10}",
        "protocol", "replicas", "clients", "batching", "turns", "busiest", "sum"
    );
    for (case, found) in cases.iter().zip(&found) {
        let figure = |of: fn(&(f64, f64)) -> f64| {
            let mut figures: Vec<f64> = found.iter().map(of).collect();
            median(&mut figures)
        };
        let (busiest, sum) = (figure(|one| one.0), figure(|one| one.1));
        println!(
            "{:<40} {:>8} {:>8} {:>8} {:>6} {busiest:>10.0} {sum:>10.0}",
            case.name, case.members, case.clients, case.batching, case.turns
        );
    }
    Ok(())
}
