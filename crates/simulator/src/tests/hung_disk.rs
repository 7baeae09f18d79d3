//! A node whose disk hangs, input by input.

use quintet_replica::{
    BatchBuilder, BatchId, Boot, Bytes, ClockReading, ClusterId, CommandId, DISK_HUNG_AFTER,
    Durability, Epoch, EpochNumber, Executed, ExecutorLimits, FrontendId, GroupId, Incarnation,
    Input, Level, Link, Node, NodeSetup, Outcome, Output, Peer, PersistId, RecoveredBytes,
    ReplicaId, RequestKind, SessionId, SnapshotInfo, Submission, Time, World,
};
use quintet_store::{Store, StoreOptions};
use std::time::Duration;

struct At(Time);

impl World for At {
    fn now(&self) -> Time {
        self.0
    }
    fn clock(&self) -> ClockReading {
        let now = self.0.0;
        ClockReading {
            now,
            earliest: now,
            latest: now,
            deviation: 1,
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

const OTHER: Peer = Peer::Replica(ReplicaId(1));

/// The first of three replicas, which has elected itself as far as it can: its promise waits for
/// the disk.
fn candidate() -> (Node, PersistId, Time) {
    let setup = NodeSetup {
        id: ReplicaId(0),
        incarnation: Incarnation(1),
        boot: Boot(1),
        group: GroupId(0),
        epoch: Epoch {
            cluster: ClusterId(1),
            number: EpochNumber(1),
            members: 3,
            options: Vec::new(),
            secret: [7; 32],
            leader_first: ReplicaId(0),
        },
        durability: Durability::Disk,
        seed: 1,
        frontend: FrontendId(7),
        snapshot_bytes_min: 1 << 20,
        limits: ExecutorLimits::default(),
    };
    let entry = quintet_protocols::find("multipaxos").unwrap();
    let machine = Box::new(Store::new(StoreOptions::default()));
    let mut node = Node::new(setup, entry, machine).unwrap();
    let (mut now, mut out) = (Time(1_000_000_000), Vec::new());
    let recovered = RecoveredBytes {
        first_boot: true,
        ..RecoveredBytes::default()
    };
    node.start(recovered, &At(now), &mut out).unwrap();
    let incarnation = Incarnation(1);
    let up = Input::Link(OTHER, Link::Up { incarnation });
    node.on_input(up, &At(now), &mut out).unwrap();
    let asked = loop {
        node.on_idle(&At(now), &mut out);
        let journal = out.iter().find_map(|output| match output {
            Output::Journal { id, .. } => Some(*id),
            _ => None,
        });
        if let Some(id) = journal {
            break id;
        }
        now = now + Duration::from_millis(100);
        for output in std::mem::take(&mut out) {
            if let Output::SetTimer { key, .. } = output {
                node.on_input(Input::Timer(key), &At(now), &mut out)
                    .unwrap();
            }
        }
    };
    (node, asked, now)
}

fn submission(number: u64, deadline: Time) -> Input {
    let session = SessionId {
        owner: 7,
        number: 1,
    };
    let id = BatchId(number);
    let mut builder = BatchBuilder::new();
    let command = CommandId {
        session,
        sequence: number,
    };
    builder.push(command, RequestKind::Open, 0, &0u64.to_le_bytes());
    Input::Submit(Submission {
        id,
        level: Level::Ordered,
        batch: builder.finish(FrontendId(7), id, Level::Ordered),
        deadline,
    })
}

/// A frame that cannot be read: it is counted where frames are heard.
fn noise() -> Input {
    Input::Frame {
        from: OTHER,
        arrived: Time(1),
        frame: Bytes::from_static(b"?"),
    }
}

fn heard(node: &mut Node, now: Time) -> u64 {
    let before = node.status(&At(now)).frames_malformed;
    let _ = node.on_input(noise(), &At(now), &mut Vec::new());
    node.status(&At(now)).frames_malformed - before
}

#[test]
fn node_is_deaf_and_silent_while_its_disk_hangs() {
    let (mut node, asked, mut now) = candidate();
    let mut out = Vec::new();
    assert_eq!(heard(&mut node, now), 1);
    for _ in 0..2 {
        now = now + DISK_HUNG_AFTER;
        assert!(!node.is_disk_hung());
        node.on_idle(&At(now), &mut out);
    }
    assert!(node.is_disk_hung());
    out.clear();
    assert_eq!(heard(&mut node, now), 0);
    let deadline = now + Duration::from_secs(5);
    node.on_input(submission(1, deadline), &At(now), &mut out)
        .unwrap();
    let [Output::Done { batch, outcome }] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((*batch, outcome), (BatchId(1), &Outcome::Busy));

    // Frames that came in before the links are seen to break have gaps.
    out.clear();
    node.on_input(Input::Persisted(asked), &At(now), &mut out)
        .unwrap();
    assert!(matches!(out.first(), Some(Output::BreakLinks)), "{out:?}");
    assert!(!node.is_disk_hung());
    assert_eq!(heard(&mut node, now), 0);
    let reset = Input::Link(OTHER, Link::Reset);
    node.on_input(reset, &At(now), &mut out).unwrap();
    assert_eq!(heard(&mut node, now), 1);
}
