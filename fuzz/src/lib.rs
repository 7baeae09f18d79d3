//! The code that bytes from outside meet, one function each: none may panic, whatever the bytes
//! are.
//!
//! ```text
//!   cargo fuzz run TARGET        coverage-guided, with nightly Rust
//!   cargo run --bin smoke        every target over its corpus and mutations of it, on stable
//! ```

mod cli;
pub mod cluster;
mod configuration;
pub mod replies;

pub use configuration::configuration;

use bytes::Bytes;
use quintet_replica::{
    BatchBuilder, BatchId, BatchView, Boot, ClockReading, ClusterId, CommandId, CommandTime,
    Durability, Epoch, EpochNumber, Executed, Executor, ExecutorLimits, FrontendId, GroupId,
    GroupIndex, Incarnation, Injected, Input, Level, Node, NodeSetup, Peer, RecoveredBytes,
    ReplicaId, RequestKind, SessionId, Slot, SnapshotInfo, SnapshotProgress, Time, World, Write,
    checksum,
    journal::{
        BLOCK, Beginning, Disk, GroupEpoch, Identity, Journal, MARK_SLOT, RECORD_HEADER, inspect,
        salvage,
    },
};
use quintet_runtime::server::{Gateway, GatewayConfig};
use quintet_store::{Store, StoreOptions};
use std::{collections::BTreeMap, convert::Infallible};

/// A target: its name, what it does with bytes, and good bytes to begin from.
pub struct Target {
    /// Also the name of its corpus and of its cargo-fuzz binary.
    pub name: &'static str,
    /// Must not panic.
    pub run: fn(&[u8]),
    /// The input of a well-behaved outsider.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "resp",
        run: resp,
        samples: resp_samples,
    },
    Target {
        name: "replies",
        run: replies::replies,
        samples: replies::samples,
    },
    Target {
        name: "handshake",
        run: handshake,
        samples: quintet_runtime::fuzzing::handshake_samples,
    },
    Target {
        name: "datagram",
        run: datagram,
        samples: || vec![quintet_runtime::fuzzing::datagram_sample()],
    },
    Target {
        name: "packet",
        run: packet,
        samples: || vec![quintet_runtime::fuzzing::packet_sample()],
    },
    Target {
        name: "frames",
        run: frames,
        samples: frame_samples,
    },
    Target {
        name: "messages",
        run: messages,
        samples: message_samples,
    },
    Target {
        name: "handled",
        run: cluster::handled,
        samples: cluster::handled_samples,
    },
    Target {
        name: "recovered",
        run: cluster::recovered,
        samples: cluster::handled_samples,
    },
    Target {
        name: "journal",
        run: journal,
        samples: journal_samples,
    },
    Target {
        name: "framed",
        run: framed,
        samples: journal_samples,
    },
    Target {
        name: "snapshot",
        run: snapshot,
        samples: || vec![snapshot_sample()],
    },
    Target {
        name: "memory",
        run: quintet_runtime::fuzzing::memory,
        samples: quintet_runtime::fuzzing::memory_samples,
    },
    Target {
        name: "directory",
        run: directory,
        samples: directory_samples,
    },
    Target {
        name: "sealed",
        run: sealed,
        samples: || vec![snapshot_sample()],
    },
    Target {
        name: "configuration",
        run: configuration,
        samples: configuration::samples,
    },
    Target {
        name: "batches",
        run: batches,
        samples: || vec![batch().to_vec()],
    },
];

/// The input of a Redis client.
pub fn resp(bytes: &[u8]) {
    let config = GatewayConfig {
        value_bytes_max: 1 << 16,
        ..GatewayConfig::default()
    };
    let mut gateway = Gateway::new(config, FrontendId(7), 1);
    let now = Time(1_000_000_000);
    let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 5000));
    let Ok(id) = gateway.connect(now, peer) else {
        return;
    };
    let mut submissions = Vec::new();
    for piece in bytes.chunks(97) {
        gateway.input(id).extend_from_slice(piece);
        gateway.on_input(id, now);
        gateway.collect(now, 1, &mut submissions);
    }
    for submission in submissions {
        BatchView::checked(&submission.batch).expect("what is submitted is well formed");
    }
    gateway.on_closed(id);
}

fn resp_samples() -> Vec<Vec<u8>> {
    [
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$5\r\nhello\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
        "SET a 'b c'\r\nMULTI\r\nINCR a\r\nEXEC\r\nHELLO 3 AUTH default x\r\nINFO\r\n",
        "*1\r\n$2000000000\r\n",
        "WATCH a b\r\nCLIENT LIST\r\nCOMMAND DOCS get\r\nCONFIG GET *\r\nRESET\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// The first bytes of a peer.
pub fn handshake(bytes: &[u8]) {
    quintet_runtime::fuzzing::handshake(bytes);
}

/// A frame of Ethernet that an interface received.
pub fn packet(bytes: &[u8]) {
    quintet_runtime::fuzzing::packet(bytes);
}

/// A datagram of a peer, or of anybody.
pub fn datagram(bytes: &[u8]) {
    quintet_runtime::fuzzing::datagram(bytes);
}

/// A file of a data directory.
pub fn directory(bytes: &[u8]) {
    if let Some(place) = empty_place() {
        quintet_runtime::fuzzing::directory(
            place.path(),
            &quintet_protocols::PROTOCOLS[0],
            &*store(),
            bytes,
        );
    }
}

fn directory_samples() -> Vec<Vec<u8>> {
    empty_place().map_or_else(Vec::new, |place| {
        quintet_runtime::fuzzing::directory_samples(
            place.path(),
            &quintet_protocols::PROTOCOLS[0],
            &*store(),
        )
    })
}

/// In memory where there is such a place: every start syncs a dozen times.
fn empty_place() -> Option<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .ok()
}

struct Still;

impl World for Still {
    fn now(&self) -> Time {
        Time(1_000_000)
    }
    fn clock(&self) -> ClockReading {
        ClockReading {
            now: 1_000_000,
            earliest: 999_000,
            latest: 1_001_000,
            deviation: 1_000,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        1 << 20
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

fn node(entry: &'static quintet_replica::Entry, id: u16) -> Node {
    let epoch = Epoch {
        cluster: ClusterId(1),
        number: EpochNumber(1),
        members: 3,
        options: Vec::new(),
        secret: [7; 32],
        leader_first: ReplicaId(0),
    };
    let setup = NodeSetup {
        id: ReplicaId(id),
        incarnation: Incarnation(1),
        boot: Boot(1),
        group: GroupId(0),
        epoch,
        durability: Durability::Disk,
        seed: 1,
        frontend: FrontendId(u64::from(id) + 7),
        snapshot_bytes_min: 1 << 20,
        limits: ExecutorLimits::default(),
    };
    Node::new(setup, entry, store()).expect("the defaults are options")
}

fn store() -> Box<Store> {
    Box::new(Store::new(StoreOptions::default()))
}

fn boot(entry: &'static quintet_replica::Entry, id: u16) -> (Node, Vec<quintet_replica::Output>) {
    let mut node = node(entry, id);
    let mut outputs = Vec::new();
    let recovered = RecoveredBytes {
        first_boot: true,
        ..RecoveredBytes::default()
    };
    node.start(recovered, &Still, &mut outputs)
        .expect("nothing is there");
    (node, outputs)
}

/// A frame of a replica or of a frontend, from its envelope on, at a node of every protocol. The
/// protocols' own messages are read by [`messages`]: a replica that lies within a well-formed one
/// is not survived by protocols that tolerate crashes only.
pub fn frames(bytes: &[u8]) {
    for entry in quintet_protocols::PROTOCOLS {
        let (mut node, mut outputs) = boot(entry, 1);
        let mut frame = bytes.to_vec();
        if frame.first() == Some(&0) {
            frame[0] = 2;
        }
        let input = Input::Frame {
            from: Peer::Replica(ReplicaId(0)),
            arrived: Time(1),
            frame: frame.into(),
        };
        let _ = node.on_input(input, &Still, &mut outputs);
        let input = Input::Frame {
            from: Peer::Frontend(FrontendId(99)),
            arrived: Time(1),
            frame: Bytes::copy_from_slice(bytes),
        };
        let _ = node.on_input(input, &Still, &mut outputs);
        node.on_idle(&Still, &mut outputs);
    }
}

/// Frames that replicas send when they start and their timers fire.
fn frame_samples() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for entry in quintet_protocols::PROTOCOLS {
        for id in 0..3 {
            let (mut node, mut outputs) = boot(entry, id);
            for round in 0..4 {
                node.on_idle(&Still, &mut outputs);
                for output in std::mem::take(&mut outputs) {
                    match output {
                        quintet_replica::Output::Send { frame, .. } => {
                            found.push(frame.into_bytes().to_vec());
                        }
                        quintet_replica::Output::SetTimer { key, .. } if round < 3 => {
                            let _ = node.on_input(Input::Timer(key), &Still, &mut outputs);
                        }
                        quintet_replica::Output::Journal { id, .. } => {
                            let _ = node.on_input(Input::Persisted(id), &Still, &mut outputs);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    // State transfer: a question for a snapshot.
    let mut ask = vec![2, 1, 0, 0];
    ask.extend_from_slice(&[0; 4]);
    ask.extend_from_slice(&1u64.to_le_bytes());
    ask.push(0);
    ask.extend_from_slice(&[0; 33]);
    found.push(ask);
    found.sort();
    found.dedup();
    found
}

/// A message of every protocol.
pub fn messages(bytes: &[u8]) {
    for entry in quintet_protocols::PROTOCOLS {
        (entry.describe)(Bytes::copy_from_slice(bytes));
    }
}

fn message_samples() -> Vec<Vec<u8>> {
    let frames = frame_samples().into_iter();
    frames
        .filter(|frame| frame[0] == 0)
        .map(|frame| frame[16..].to_vec())
        .collect()
}

#[derive(Clone, Default, PartialEq)]
struct Memory {
    segments: BTreeMap<u64, Vec<u8>>,
    promises: [Vec<u8>; 2],
    marks: [Vec<u8>; 2],
}

impl Disk for Memory {
    type Error = Infallible;
    fn segments(&mut self) -> Result<Vec<u64>, Infallible> {
        Ok(self.segments.keys().copied().collect())
    }
    fn read(&mut self, segment: u64) -> Result<Bytes, Infallible> {
        let bytes = self.segments.get(&segment).cloned();
        Ok(bytes.unwrap_or_default().into())
    }
    fn create(&mut self, segment: u64, length: u64) -> Result<(), Infallible> {
        self.segments.insert(segment, vec![0; length as usize]);
        Ok(())
    }
    fn write(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<(), Infallible> {
        let file = self.segments.entry(segment).or_default();
        let end = offset as usize + bytes.len();
        file.resize(file.len().max(end), 0);
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }
    fn remove(&mut self, segment: u64) -> Result<(), Infallible> {
        self.segments.remove(&segment);
        Ok(())
    }
    fn discard(&mut self, segment: u64) -> Result<(), Infallible> {
        self.remove(segment)
    }
    fn read_promise(&mut self, slot: usize) -> Result<Bytes, Infallible> {
        Ok(self.promises[slot].clone().into())
    }
    fn write_promise(&mut self, slot: usize, bytes: &[u8]) -> Result<(), Infallible> {
        self.promises[slot] = bytes.to_vec();
        Ok(())
    }
    fn read_mark(&mut self, slot: usize) -> Result<Option<Bytes>, Infallible> {
        Ok(Some(self.marks[slot].clone().into()))
    }
    fn write_mark(&mut self, slot: usize, bytes: &[u8], _: bool) -> Result<(), Infallible> {
        self.marks[slot] = bytes.to_vec();
        Ok(())
    }
}

const IDENTITY: Identity = Identity {
    cluster: ClusterId(1),
    node: ReplicaId(0),
};
/// Two groups, of which the second may have come later.
const GROUPS: [GroupEpoch; 2] = [
    GroupEpoch {
        group: GroupId(0),
        epoch: EpochNumber(1),
    },
    GroupEpoch {
        group: GroupId(7),
        epoch: EpochNumber(2),
    },
];

/// A journal: marks, promises and segments one after the other in `bytes`.
pub fn journal(bytes: &[u8]) {
    open_journal(disk_of(bytes));
}

/// The same with right checksums: what it says was never written by this program, and was kept well.
pub fn framed(bytes: &[u8]) {
    open_journal(sealed_disk_of(bytes));
}

fn sealed_disk_of(bytes: &[u8]) -> Memory {
    let mut disk = disk_of(bytes);
    for mark in &mut disk.marks {
        seal(mark, MARK_FIELDS);
    }
    for promise in &mut disk.promises {
        seal_promise(promise);
    }
    for (number, segment) in &mut disk.segments {
        seal(segment, SEGMENT_FIELDS);
        seal_records(*number, segment);
    }
    disk
}

/// The fields that the checksum of a mark and of a segment's header covers: magic, version, and …
const MARK_FIELDS: usize = 12 + IDENTITY_LENGTH + 8 + 8 + 8 + 1;
const SEGMENT_FIELDS: usize = 12 + 16 + 2 + 8 + 8;
const IDENTITY_LENGTH: usize = 16 + 2 + 4 + 8;

fn seal(bytes: &mut [u8], fields: usize) {
    let written = bytes.iter().any(|byte| *byte != 0);
    if written
        && let Some((covered, rest)) = bytes.split_at_mut_checked(fields)
        && let Some(sum) = rest.first_chunk_mut()
    {
        *sum = checksum(covered).to_le_bytes();
    }
}

/// Magic, version, checksum, and a body with its length.
fn seal_promise(bytes: &mut [u8]) {
    let Some((head, body)) = bytes.split_at_mut_checked(20) else {
        return;
    };
    let (version, length) = (word(head, 8), word(head, 16));
    if version != 0
        && let Some(body) = body.get(..length as usize)
    {
        let sum = checksum(body) ^ version.wrapping_mul(0x9e37_79b1);
        head[12..16].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Record after record, as far as their lengths lead.
fn seal_records(segment: u64, bytes: &mut [u8]) {
    let mut at = BLOCK;
    while at + RECORD_HEADER <= bytes.len() {
        let head = &bytes[at..at + RECORD_HEADER];
        let end = at + RECORD_HEADER + word(head, 0) as usize;
        if head.iter().all(|byte| *byte == 0) || end > bytes.len() {
            return;
        }
        let covered = [&segment.to_le_bytes(), &bytes[at + 8..end]].concat();
        bytes[at + 4..at + 8].copy_from_slice(&checksum(&covered).to_le_bytes());
        at = end.next_multiple_of(8);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn disk_of(bytes: &[u8]) -> Memory {
    let mut rest = bytes;
    let mut take = |length: usize| {
        let (part, left) = rest.split_at(length.min(rest.len()));
        rest = left;
        part.to_vec()
    };
    let mut disk = Memory {
        marks: [take(MARK_SLOT), take(MARK_SLOT)],
        promises: [take(PROMISE), take(PROMISE)],
        ..Memory::default()
    };
    for number in 1.. {
        let segment = take(SEGMENT);
        if segment.is_empty() {
            break;
        }
        disk.segments.insert(number, segment);
    }
    disk
}

/// One that opens can be written, and opens again with what was in it and what was added.
fn open_journal(mut disk: Memory) {
    let _ = inspect(&mut disk, &IDENTITY, |_| {});
    let open = |disk| Journal::open(disk, IDENTITY, &GROUPS, SEGMENT as u64);
    if let Ok(opened) = open(disk.clone()) {
        let before = opened.groups[1].records.len();
        let mut journal = opened.journal;
        let record = Bytes::from_static(b"one more");
        let write = Write::Record {
            slot: Slot(9),
            record,
        };
        journal.append(GroupIndex(1), &write).expect("room");
        journal.commit().expect("room");
        let again = open(journal.into_disk()).expect("opens again");
        assert_eq!(again.groups[1].records.len(), before + 1);
        // The journal that was read can be brought forward, and is the same then.
        let mut journal = again.journal;
        assert_eq!(journal.bring_forward(GroupIndex(1)), Ok(true));
        let forward = open(journal.into_disk()).expect("opens again");
        assert_eq!(forward.groups[1].records, again.groups[1].records);
    }
    let begin_again = |disk, beginnings| {
        Journal::begin_again(disk, IDENTITY, &GROUPS, SEGMENT as u64, beginnings)
    };
    // The groups that lack nothing keep what they have.
    if let Ok(salvaged) = salvage(&mut disk, &IDENTITY, &GROUPS, Injected::default()) {
        let beginnings = salvaged.groups.into_iter().map(|found| {
            let complete = false;
            found.map_or(Beginning::Empty { complete }, Beginning::Kept)
        });
        if let Ok(begun) = begin_again(disk.clone(), beginnings.collect()) {
            let opened = open(begun.journal.into_disk()).expect("opens");
            for (opened, begun) in opened.groups.iter().zip(&begun.groups) {
                assert_eq!(opened.records, begun.records);
            }
        }
    }
    let empty = [false, true].map(|complete| Beginning::Empty { complete });
    if let Ok(opened) = begin_again(disk, empty.into()) {
        assert!(opened.groups.iter().all(|found| found.records.is_empty()));
    }
}

const PROMISE: usize = 128;
const SEGMENT: usize = 4 * 4096;

fn journal_samples() -> Vec<Vec<u8>> {
    let Ok(opened) = Journal::open(Memory::default(), IDENTITY, &GROUPS, SEGMENT as u64) else {
        unreachable!("nothing is there")
    };
    let mut journal = opened.journal;
    for slot in 1..24 {
        let write = Write::Record {
            slot: Slot(slot),
            record: Bytes::from(vec![slot as u8; 600]),
        };
        let group = GroupIndex::new(slot as usize % 2);
        journal.append(group, &write).expect("room");
        journal.commit().expect("room");
    }
    journal.bring_forward(GroupIndex(1)).expect("room");
    let promise = Write::Promise(Bytes::from_static(b"mine"));
    journal.append(GroupIndex(0), &promise).expect("room");
    journal.commit().expect("room");
    let disk = journal.into_disk();
    let mut bytes = Vec::new();
    let mut put = |part: &[u8], length: usize| {
        let end = bytes.len() + length;
        bytes.extend_from_slice(&part[..part.len().min(length)]);
        bytes.resize(end, 0);
    };
    disk.marks.iter().for_each(|mark| put(mark, MARK_SLOT));
    disk.promises
        .iter()
        .for_each(|promise| put(promise, PROMISE));
    disk.segments
        .values()
        .for_each(|segment| put(segment, SEGMENT));
    assert!(
        sealed_disk_of(&bytes) == disk_of(&bytes),
        "where the checksums are is known"
    );
    vec![bytes]
}

fn executor() -> Executor {
    let limits = ExecutorLimits::default();
    Executor::new(ClusterId(1), GroupId(0), EpochNumber(1), store(), limits)
}

/// A snapshot of the store.
pub fn snapshot(bytes: &[u8]) {
    // The checksums would keep everything out that is not whole: the state's own format is met
    // behind a good one.
    let mut executor = executor();
    let _ = executor.restore(|offset| {
        let from = (offset as usize).min(bytes.len());
        Some(Bytes::copy_from_slice(
            &bytes[from..bytes.len().min(from + 4096)],
        ))
    });
    let mut machine = store();
    let machine: &mut dyn quintet_replica::StateMachine = &mut *machine;
    machine.begin_restore();
    if bytes
        .chunks(4096)
        .all(|chunk| machine.restore_chunk(chunk).is_ok())
    {
        let _ = machine.finish_restore();
    }
}

/// A snapshot stream of these bytes whose chunks have right lengths and checksums, and an end.
pub(crate) fn repaired(bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut out) = (bytes, Vec::with_capacity(bytes.len() + 16));
    while let Some((head, behind)) = rest.split_first_chunk::<8>() {
        let told = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (chunk, behind) = behind.split_at(told.min(behind.len()));
        rest = behind;
        if !chunk.is_empty() {
            out.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
            out.extend_from_slice(&quintet_replica::checksum(chunk).to_le_bytes());
            out.extend_from_slice(chunk);
        }
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&quintet_replica::checksum(&[]).to_le_bytes());
    out
}

/// A snapshot that was changed and sealed again: it is rejected, or it is a state that executes
/// commands and can be written and read again.
pub fn sealed(bytes: &[u8]) {
    let stream = repaired(bytes);
    let mut executor = executor();
    let header = executor.restore(|offset| {
        let from = (offset as usize).min(stream.len());
        Some(Bytes::copy_from_slice(&stream[from..]))
    });
    let Ok(header) = header else { return };
    let next = header.executed.slot.next();
    executor.execute(next, CommandTime(5), &batch(), None);
    executor.execute(next.next(), CommandTime(u64::MAX / 4), &batch(), None);
    let whole = written(&mut executor, next.next());
    let mut again = self::executor();
    let read = again.restore(|offset| Some(Bytes::copy_from_slice(&whole[offset as usize..])));
    read.expect("what was written is read");
    assert!(again.digest() == executor.digest(), "the same state");
}

fn written(executor: &mut Executor, slot: Slot) -> Vec<u8> {
    let (_, first) = executor.begin_snapshot(slot, Bytes::from_static(b"summary"));
    let mut stream = first.to_vec();
    loop {
        let (chunk, progress) = executor.snapshot_chunk(4096);
        stream.extend_from_slice(&chunk);
        if progress == SnapshotProgress::Done {
            return stream;
        }
    }
}

fn batch() -> Bytes {
    let session = SessionId {
        owner: 3,
        number: 1,
    };
    let mut builder = BatchBuilder::new();
    let id = |sequence| CommandId { session, sequence };
    builder.push(id(0), RequestKind::Open, 0, &0u64.to_le_bytes());
    builder.push(id(1), RequestKind::Command, 0, b"\x00\x01\x02payload");
    builder.finish(FrontendId(1), BatchId(1), Level::Ordered)
}

fn snapshot_sample() -> Vec<u8> {
    let mut executor = executor();
    executor.execute(Slot(1), CommandTime(5), &batch(), None);
    written(&mut executor, Slot(1))
}

/// A batch of requests from another encoder: only checked ones are executed.
pub fn batches(bytes: &[u8]) {
    if BatchView::checked(bytes).is_ok() {
        let mut executor = executor();
        executor.execute(
            Slot(1),
            CommandTime(5),
            &Bytes::copy_from_slice(bytes),
            None,
        );
    }
}
