//! Replicas of any protocol in mid-flight, and one frame that no correct peer sent.
//!
//! ```text
//!   bytes ──► protocol, options, a script of submissions, deliveries, syncs, timers, cuts, crashes
//!         ──► a frame that a replica sent, changed ──► handled, its effects carried out
//! ```
//!
//! A frame must be rejected, or handled like any other, and neither it nor the rest of the same
//! turn may stop the replica. It is the only one of its kind: a replica that lies again and again
//! within well-formed messages is not survived by protocols that tolerate crashes only.

use bytes::Bytes;
use quintet_replica::{
    BatchBuilder, BatchId, Boot, ClockReading, ClusterId, CommandId, Control, Deadline, Descriptor,
    Durability, Entry, Epoch, EpochNumber, Executed, ExecutorLimits, FrontendId, GroupId,
    Incarnation, Input, Level, Link, Node, NodeSetup, Output, Peer, PersistId, Recipients,
    RecoveredBytes, ReplicaId, ReplicaSet, RequestKind, SessionId, Slot, SnapshotInfo, Submission,
    Time, TimerKey, World, Write, put_frame,
};
use quintet_store::{Store, StoreOptions};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

const MEMBERS: u16 = 3;
const FRAMES_MAX: usize = 400;

/// The state that survives a crash.
#[derive(Default)]
struct Disk {
    promise: Option<Bytes>,
    records: Vec<(Slot, Bytes)>,
    unsynced: VecDeque<(PersistId, Write)>,
    snapshot: Option<(Executed, Vec<u8>)>,
    writing: Option<(Executed, Vec<u8>)>,
    used: bool,
}

/// The descriptor on which the replicas have agreed.
fn descriptor() -> Descriptor {
    Descriptor::first(ClusterId(1), "", Durability::Disk)
}

struct View<'a> {
    now: Time,
    disk: &'a Disk,
}

impl World for View<'_> {
    fn now(&self) -> Time {
        self.now
    }
    fn clock(&self) -> ClockReading {
        let now = self.now.0 + 1;
        ClockReading {
            now,
            earliest: now - 1,
            latest: now + 1,
            deviation: 1,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        64 << 20
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        let (id, bytes) = self.disk.snapshot.as_ref()?;
        Some(SnapshotInfo {
            id: *id,
            length: bytes.len() as u64,
        })
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let (have, bytes) = self.disk.snapshot.as_ref()?;
        let from = usize::try_from(offset).ok()?.min(bytes.len());
        let to = from.saturating_add(length).min(bytes.len());
        (*have == id).then(|| Bytes::copy_from_slice(&bytes[from..to]))
    }
}

struct Replica {
    node: Option<Node>,
    disk: Disk,
    timers: BTreeMap<TimerKey, Time>,
    incarnation: u64,
    boots: u64,
}

/// See the module.
pub struct Cluster {
    entry: &'static Entry,
    options: Vec<(String, String)>,
    durability: Durability,
    now: Time,
    replicas: Vec<Replica>,
    network: VecDeque<(u16, u16, Bytes)>,
    /// The newest frames ever sent: a changed frame is one of these.
    sent: VecDeque<(u16, u16, Bytes)>,
    cut: [[bool; MEMBERS as usize]; MEMBERS as usize],
    batch_next: u64,
    halted: bool,
}

/// The bytes that drive it; zeros behind their end.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        let wide = usize::from(self.byte()) << 8 | usize::from(self.byte());
        wide % end.max(1)
    }
}

impl Cluster {
    /// All replicas of a protocol, started and linked.
    pub fn start(script: &mut Script<'_>) -> Self {
        let entries = quintet_protocols::PROTOCOLS;
        let entry = &entries[usize::from(script.byte()) % entries.len()];
        let flags = script.byte();
        let mut options = Vec::new();
        for (name, values) in entry.drawn {
            let pick = usize::from(script.byte());
            if flags & 2 > 0 {
                options.push(((*name).to_owned(), values[pick % values.len()].to_owned()));
                if (entry.check)(&options).is_err() {
                    options.pop();
                }
            }
        }
        let sadl = ("dissemination".to_owned(), "sadl".to_owned());
        if flags & 4 > 0 && (entry.check)(std::slice::from_ref(&sadl)).is_ok() {
            options.retain(|(name, _)| *name != sadl.0);
            options.push(sadl);
        }
        let replica = |_| Replica {
            node: None,
            disk: Disk::default(),
            timers: BTreeMap::new(),
            incarnation: 1,
            boots: 0,
        };
        let mut cluster = Self {
            entry,
            options,
            durability: match flags & 1 {
                0 => Durability::Disk,
                _ => Durability::Memory,
            },
            now: Time(1_000_000_000),
            replicas: (0..MEMBERS).map(replica).collect(),
            network: VecDeque::new(),
            sent: VecDeque::new(),
            cut: Default::default(),
            batch_next: 1,
            halted: false,
        };
        for id in 0..MEMBERS {
            cluster.boot(id);
        }
        cluster
    }

    fn boot(&mut self, id: u16) {
        let unordered = (self.entry.unordered)(&self.options);
        let replica = &mut self.replicas[usize::from(id)];
        let state_lost = self.durability == Durability::Memory && replica.disk.used;
        replica.boots += 1;
        replica.incarnation += u64::from(state_lost);
        replica.timers.clear();
        replica.disk.unsynced.clear();
        replica.disk.writing = None;
        if state_lost {
            replica.disk.snapshot = None;
            replica.disk.records.clear();
        }
        let setup = NodeSetup {
            id: ReplicaId(id),
            incarnation: Incarnation(replica.incarnation),
            boot: Boot(replica.boots),
            group: GroupId(0),
            epoch: Epoch {
                cluster: ClusterId(1),
                number: EpochNumber(1),
                members: MEMBERS.into(),
                options: self.options.clone(),
                secret: [7; 32],
                leader_first: ReplicaId(0),
            },
            durability: self.durability,
            seed: u64::from(id) + 10 * replica.boots,
            frontend: FrontendId(u64::from(id) + 1 + 10 * replica.boots),
            snapshot_bytes_min: 4 << 10,
            limits: ExecutorLimits::default(),
        };
        let machine = Box::new(Store::new(StoreOptions::default()));
        let Ok(mut node) = Node::new(setup, self.entry, machine) else {
            assert!(unordered, "what was checked is an option");
            self.halted = true;
            return;
        };
        node = node.with_descriptor(descriptor().encode());
        let recovered = RecoveredBytes {
            first_boot: !replica.disk.used,
            state_lost,
            promise: replica.disk.promise.clone(),
            checkpoint: None,
            records: replica.disk.records.clone(),
        };
        replica.disk.used = true;
        let mut outputs = Vec::new();
        let view = View {
            now: self.now,
            disk: &replica.disk,
        };
        if node.start(recovered, &view, &mut outputs).is_err() {
            self.halted = true;
            return;
        }
        replica.node = Some(node);
        let incarnation = Incarnation(self.replicas[usize::from(id)].incarnation);
        self.carry_out(id, outputs);
        for other in (0..MEMBERS).filter(|other| *other != id) {
            let there = Incarnation(self.replicas[usize::from(other)].incarnation);
            let up = |incarnation| Link::Up { incarnation };
            if self.replicas[usize::from(other)].node.is_some() {
                self.input(id, Input::Link(peer(other), up(there)));
                self.input(other, Input::Link(peer(id), up(incarnation)));
            }
        }
    }

    /// Lets a replica that runs do something, and carries out what it asks for.
    fn drive(&mut self, id: u16, step: impl FnOnce(&mut Node, &View<'_>, &mut Vec<Output>)) {
        let replica = &mut self.replicas[usize::from(id)];
        let Some(node) = &mut replica.node else {
            return;
        };
        let mut outputs = Vec::new();
        let view = View {
            now: self.now,
            disk: &replica.disk,
        };
        step(node, &view, &mut outputs);
        self.carry_out(id, outputs);
    }

    fn input(&mut self, id: u16, input: Input) {
        // A rejection is a result, too.
        self.drive(id, |node, view, outputs| {
            let _ = node.on_input(input, view, outputs);
        });
    }

    fn idle(&mut self, id: u16) {
        self.drive(id, |node, view, outputs| {
            node.on_idle(view, outputs);
        });
    }

    fn send(&mut self, from: u16, to: ReplicaSet, frame: &Bytes) {
        for to in to.iter().filter(|to| to.0 < MEMBERS) {
            if self.sent.len() == FRAMES_MAX {
                self.sent.pop_front();
            }
            self.sent.push_back((from, to.0, frame.clone()));
            let lost = self.cut[usize::from(from)][to.index()];
            if !lost && self.network.len() < 10 * FRAMES_MAX {
                self.network.push_back((from, to.0, frame.clone()));
            }
        }
    }

    fn carry_out(&mut self, id: u16, outputs: Vec<Output>) {
        let me = usize::from(id);
        for output in outputs {
            match output {
                Output::Send {
                    to: Recipients::Replicas(to),
                    frame,
                    ..
                } => self.send(id, to, &frame.into_bytes()),
                Output::Put { to, ranges } => {
                    let frame = put_frame(GroupId(0), EpochNumber(1), ranges).into_bytes();
                    self.send(id, to, &frame);
                }
                Output::Journal { id, write } => {
                    self.replicas[me].disk.unsynced.push_back((id, write));
                }
                Output::Trim { below } => {
                    let records = &mut self.replicas[me].disk.records;
                    records.retain(|(slot, _)| *slot >= below);
                }
                Output::SetTimer { key, at } => {
                    let at = match at {
                        Deadline::At(at) => at,
                        Deadline::Clock(at) => Time(at),
                    };
                    self.replicas[me].timers.insert(key, at);
                }
                Output::CancelTimer { key } => {
                    self.replicas[me].timers.remove(&key);
                }
                Output::SnapshotBegin { id, .. } => {
                    self.replicas[me].disk.writing = Some((id, Vec::new()));
                }
                Output::SnapshotAppend(bytes) => {
                    let writing = self.replicas[me].disk.writing.as_mut();
                    let length = writing.map(|(_, file)| {
                        file.extend_from_slice(&bytes);
                        file.len() as u64
                    });
                    if let Some(length) = length {
                        self.input(id, Input::SnapshotWritten(length));
                    }
                }
                Output::SnapshotFinish => {
                    let disk = &mut self.replicas[me].disk;
                    if let Some((of, file)) = disk.writing.take() {
                        let length = file.len() as u64;
                        disk.snapshot = Some((of, file));
                        let info = SnapshotInfo { id: of, length };
                        self.input(id, Input::SnapshotSaved(info));
                    }
                }
                Output::SnapshotAbandon => self.replicas[me].disk.writing = None,
                Output::Halt(..) => self.replicas[me].node = None,
                _ => {}
            }
        }
    }

    fn sync(&mut self, id: u16) {
        let disk = &mut self.replicas[usize::from(id)].disk;
        let mut last = None;
        while let Some((number, write)) = disk.unsynced.pop_front() {
            match write {
                Write::Promise(promise) => disk.promise = Some(promise),
                Write::Record { slot, record } => disk.records.push((slot, record)),
            }
            last = Some(number);
        }
        if let Some(last) = last {
            self.input(id, Input::Persisted(last));
        }
    }

    fn deliver(&mut self, (from, to, frame): (u16, u16, Bytes)) {
        let arrived = self.now;
        let from = peer(from);
        let input = Input::Frame {
            from,
            arrived,
            frame,
        };
        self.input(to, input);
    }

    fn fire(&mut self, id: u16) {
        let timers = &mut self.replicas[usize::from(id)].timers;
        let due = timers.iter().min_by_key(|(_, at)| **at);
        if let Some((key, at)) = due.map(|(key, at)| (*key, *at)) {
            timers.remove(&key);
            self.now = self.now.max(at);
            self.input(id, Input::Timer(key));
        }
    }

    /// A replica offers the end of the epoch.
    fn offer_seal(&mut self, id: u16) {
        let replica = &mut self.replicas[usize::from(id)];
        let Some(node) = &mut replica.node else {
            return;
        };
        let next = descriptor().successor().encode();
        let view = View {
            now: self.now,
            disk: &replica.disk,
        };
        let mut outputs = Vec::new();
        // Where the epoch has ended, or nothing has an order, it is refused.
        let _ = node.offer_seal(&next, &view, &mut outputs);
        self.carry_out(id, outputs);
    }

    fn submit(&mut self, id: u16, level: Level, size: usize) {
        let Some(node) = &self.replicas[usize::from(id)].node else {
            return;
        };
        let frontend = node.frontend();
        let batch = BatchId(self.batch_next);
        self.batch_next += 1;
        let session = SessionId {
            owner: frontend.0,
            number: 1,
        };
        let sequence = batch.0;
        let mut builder = BatchBuilder::new();
        let payload = vec![sequence as u8; size];
        let command = CommandId { session, sequence };
        builder.push(command, RequestKind::Command, 0, &payload);
        let submission = Submission {
            id: batch,
            level,
            batch: builder.finish(frontend, batch, level),
            deadline: self.now + Duration::from_secs(5),
        };
        self.input(id, Input::Submit(submission));
    }

    /// Two replicas make their connection again; what was on its way is lost.
    fn reconnect(&mut self, one: u16, other: u16) {
        let pair = |from, to| (from == one && to == other) || (from == other && to == one);
        self.network.retain(|(from, to, _)| !pair(*from, *to));
        for (at, there) in [(one, other), (other, one)] {
            if self.replicas.iter().all(|replica| replica.node.is_some()) {
                let incarnation = Incarnation(self.replicas[usize::from(there)].incarnation);
                self.input(at, Input::Link(peer(there), Link::Reset));
                self.input(at, Input::Link(peer(there), Link::Up { incarnation }));
            }
        }
    }

    /// One step of the script.
    pub fn step(&mut self, script: &mut Script<'_>) {
        if self.halted {
            return;
        }
        let op = script.byte();
        let id = u16::from(script.byte()) % MEMBERS;
        match op % 16 {
            0 | 1 => self.submit(id, Level::Ordered, 40),
            2 => self.submit(id, Level::Linearizable, 20),
            3 => self.submit(id, Level::Ordered, 3000),
            4 => self.sync(id),
            5 => self.fire(id),
            6 => {
                // A network of less than all: out of order, lost, doubled.
                let at = script.below(self.network.len());
                if let Some(frame) = self.network.remove(at) {
                    match op / 16 {
                        0 if !self.entry.needs_streams => {}
                        1 if !self.entry.needs_streams => {
                            self.network.push_back(frame.clone());
                            self.deliver(frame);
                        }
                        _ if self.entry.needs_streams => self.network.insert(at, frame),
                        _ => self.deliver(frame),
                    }
                }
            }
            7 => {
                let other = (id + 1) % MEMBERS;
                let cut = !self.cut[usize::from(id)][usize::from(other)];
                self.cut[usize::from(id)][usize::from(other)] = cut;
                if !cut {
                    self.reconnect(id, other);
                }
            }
            8 => {
                // At most one is down or comes back at a time.
                if self.replicas.iter().all(|replica| replica.node.is_some()) {
                    self.replicas[usize::from(id)].node = None;
                    self.network
                        .retain(|(from, to, _)| *from != id && *to != id);
                    for other in (0..MEMBERS).filter(|other| *other != id) {
                        self.input(other, Input::Link(peer(id), Link::Down));
                    }
                } else if let Some(down) = self.replicas.iter().position(|r| r.node.is_none()) {
                    self.boot(down as u16);
                }
            }
            9 => self.input(id, Input::Control(Control::CheckpointDue)),
            11 if op / 16 == 15 => self.offer_seal(id),
            10 => self.now = self.now + Duration::from_millis(u64::from(op / 16) * 20),
            _ => {
                // Frames in flight arrive, in order; every replica syncs and has a turn.
                for _ in 0..self.network.len().min(60) {
                    if let Some(frame) = self.network.pop_front() {
                        self.deliver(frame);
                    }
                }
                for id in 0..MEMBERS {
                    if op / 16 % 4 > 0 {
                        self.sync(id);
                    }
                    self.idle(id);
                }
            }
        }
    }

    /// Frames of a replica, changed, come to replicas until one is read; the reader has some turns.
    /// Its peers hear nothing of it.
    pub fn send_changed(&mut self, script: &mut Script<'_>) {
        if self.halted || self.sent.is_empty() {
            return;
        }
        for _ in 0..20 {
            if self.send_changed_once(script) {
                return;
            }
        }
    }

    fn send_changed_once(&mut self, script: &mut Script<'_>) -> bool {
        let pick = script.below(self.sent.len());
        let (from, mut to, frame) = self.sent[pick].clone();
        let mut bytes = frame.to_vec();
        let flags = script.byte();
        let mut from = peer(from);
        if flags & 1 > 0 {
            to = u16::from(script.byte()) % MEMBERS;
        }
        match flags >> 1 & 7 {
            0 => from = Peer::Frontend(FrontendId(77)),
            1 => from = peer(u16::from(script.byte()) % MEMBERS),
            2 => from = peer(u16::from(script.byte())),
            _ => {}
        }
        for _ in 0..=flags >> 6 {
            change(&mut bytes, ENVELOPE, script);
        }
        let replica = &mut self.replicas[usize::from(to)];
        // No replica sends to itself.
        let Some(node) = replica.node.as_mut().filter(|_| from != peer(to)) else {
            return false;
        };
        let input = Input::Frame {
            from,
            arrived: self.now,
            frame: bytes.into(),
        };
        let mut outputs = Vec::new();
        let view = View {
            now: self.now,
            disk: &replica.disk,
        };
        if node.on_input(input, &view, &mut outputs).is_err() {
            return false;
        }
        self.carry_out(to, outputs);
        self.idle(to);
        self.sync(to);
        self.idle(to);
        true
    }

    /// A replica starts again from a promise, a record or a summary that was changed, all
    /// checksums being right: it says no, or starts.
    pub fn restart(&mut self, script: &mut Script<'_>) {
        if self.halted {
            return;
        }
        let id = u16::from(script.byte()) % MEMBERS;
        self.sync(id);
        let replica = &mut self.replicas[usize::from(id)];
        replica.node = None;
        let disk = &mut replica.disk;
        for _ in 0..=script.byte() % 2 {
            let records = disk.records.len();
            match script.byte() % 5 {
                4 => {
                    if let Some((_, snapshot)) = &mut disk.snapshot {
                        change(snapshot, 0, script);
                        *snapshot = crate::repaired(snapshot);
                    }
                }
                0 => {
                    if let Some(promise) = &mut disk.promise {
                        let mut bytes = promise.to_vec();
                        change(&mut bytes, 0, script);
                        *promise = bytes.into();
                    }
                }
                1 if records > 1 => {
                    let (one, other) = (script.below(records), script.below(records));
                    disk.records.swap(one, other);
                }
                2 if records > 0 => {
                    let at = script.below(records);
                    disk.records.remove(at);
                }
                _ if records > 0 => {
                    let at = script.below(records);
                    let mut bytes = disk.records[at].1.to_vec();
                    change(&mut bytes, 0, script);
                    disk.records[at].1 = bytes.into();
                }
                _ => {}
            }
        }
        self.boot(id);
        self.idle(id);
        self.sync(id);
        self.idle(id);
    }
}

/// Envelope of a frame: what is changed lies behind it, mostly.
const ENVELOPE: usize = 16;

fn change(bytes: &mut Vec<u8>, envelope: usize, script: &mut Script<'_>) {
    let how = script.byte();
    let from = if how & 0xf0 == 0 {
        0
    } else {
        envelope.min(bytes.len())
    };
    let at = from + script.below(bytes.len() - from);
    let value = script.byte();
    let mut put = |word: &[u8]| {
        let end = (at + word.len()).min(bytes.len());
        let at = at.min(end);
        bytes[at..end].copy_from_slice(&word[..end - at]);
    };
    const WORDS: [u64; 12] = [
        0,
        1,
        2,
        3,
        5,
        100,
        1 << 20,
        (1 << 61) - 1,
        (1 << 62) - 1,
        1 << 62,
        i64::MAX as u64,
        u64::MAX,
    ];
    match how % 8 {
        0 => put(&[value]),
        1 => put(&u16::from(value).to_le_bytes()),
        2 | 3 => put(&WORDS[usize::from(value) % WORDS.len()].to_le_bytes()),
        4 => put(&u32::from(value).to_le_bytes()),
        5 => {
            let old = bytes.get(at).copied().unwrap_or(0);
            let new = old.wrapping_add(value % 5).wrapping_sub(2);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = new;
            }
        }
        6 => bytes.truncate(at),
        _ => {
            // A part of it twice, or away.
            let end = (at + usize::from(value % 48)).min(bytes.len());
            let at = at.min(end);
            if value & 0x80 > 0 {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            } else {
                bytes.drain(at..end);
            }
        }
    }
}

fn peer(id: u16) -> Peer {
    Peer::Replica(ReplicaId(id))
}

/// The bytes as a script, and as many more as what follows it may need, drawn from them.
fn flight(bytes: &[u8]) -> (Cluster, Vec<u8>) {
    let mut script = Script(bytes);
    let mut cluster = Cluster::start(&mut script);
    while !script.0.is_empty() {
        cluster.step(&mut script);
    }
    let mut state = u64::from(quintet_replica::checksum(bytes)) | 1 << 40;
    let drawn = (0..400).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    });
    (cluster, drawn.collect())
}

/// A cluster in mid-flight meets a changed frame.
pub fn handled(bytes: &[u8]) {
    let (mut cluster, drawn) = flight(bytes);
    cluster.send_changed(&mut Script(&drawn));
}

/// A replica of a cluster in mid-flight starts again from a disk that is not its own.
pub fn recovered(bytes: &[u8]) {
    let (mut cluster, drawn) = flight(bytes);
    cluster.restart(&mut Script(&drawn));
}

/// Scripts of every protocol and durability that bring a cluster to where something happens.
pub fn handled_samples() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    // Turns, writes, turns; then a crash, timers and a come-back; then checkpoints.
    let turn = |count: usize| [0x1f, 0].repeat(count);
    let phases: [Vec<u8>; 5] = [
        turn(12),
        [vec![0, 0, 1, 1, 2, 2], turn(6), vec![3, 1], turn(2)].concat(),
        [vec![8, 0], turn(3), [5, 1, 5, 2, 0x1f, 0].repeat(12)].concat(),
        [vec![0, 1, 8, 0], turn(8), [5, 0, 5, 1, 0x1f, 0].repeat(8)].concat(),
        [[3, 0, 3, 1, 0x1f, 0].repeat(6), vec![9, 0, 9, 1], turn(4)].concat(),
    ];
    for protocol in 0..quintet_protocols::PROTOCOLS.len() {
        for flags in 0..8u8 {
            for last in 1..=phases.len() {
                let mut sample = vec![protocol as u8, flags];
                let drawn = quintet_protocols::PROTOCOLS[protocol].drawn.len();
                sample.extend((0..drawn).map(|at| at as u8 + flags + last as u8));
                // The way to it: turns first, then every phase up to this one.
                phases[..last].iter().for_each(|phase| sample.extend(phase));
                samples.push(sample);
            }
        }
    }
    samples
}
