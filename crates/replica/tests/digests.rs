//! Replicas compare digests of their states: three nodes driven by hand, one of which may be wrong.
//!
//! ```text
//!   node 0 ──batch──► 0, 1, 2 in the same order        frames between nodes: in a queue, or lost
//! ```

mod common;

use bytes::Bytes;
use common::NoTimer;
use quintet_replica::*;
use std::{
    cell::Cell,
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Replica 0 tells the others what to execute, in its order.
struct Simple {
    leader: ReplicaId,
    members: usize,
    id: ReplicaId,
    executed: Slot,
    handed_off: bool,
}

#[derive(Clone, Debug)]
struct Ordered(Bytes);

impl Wire for Ordered {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.blob(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.blob("ordered")?))
    }
}

impl Simple {
    fn execute(
        &mut self,
        message: Ordered,
        reply: Option<(FrontendId, (), Option<PersistId>)>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.executed = self.executed.next();
        let time = CommandTime(self.executed.0);
        ctx.execute(self.executed, time, message.0, reply);
    }
}

impl Protocol for Simple {
    type Message = Ordered;
    type Promise = ();
    type Record = ();
    type Summary = ();
    type ReplyHeader = ();
    type Timer = NoTimer;
    type Options = ();
    type Frontend = Plain;

    const INFO: Info = Info {
        name: "simple",
        paper: "",
        best_at: "",
        tolerates: "",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<()>) -> Self {
        Self {
            leader: setup.epoch.leader_first,
            members: setup.epoch.members,
            id: setup.id,
            executed: Slot(0),
            handed_off: false,
        }
    }
    fn on_start(&mut self, _: Recovered<(), (), ()>, _: &mut Context<'_, Self>) {}
    fn on_request(&mut self, from: FrontendId, message: Ordered, ctx: &mut Context<'_, Self>) {
        let others = ReplicaSet::all(self.members).without(self.id);
        ctx.multicast(others, Lane::Control, &message);
        self.execute(message, Some((from, (), None)), ctx);
    }
    fn on_message(&mut self, _: ReplicaId, message: Ordered, ctx: &mut Context<'_, Self>) {
        self.execute(message, None, ctx);
    }
    fn on_timer(&mut self, timer: NoTimer, _: &mut Context<'_, Self>) {
        match timer {}
    }
    fn on_persisted(&mut self, _: PersistId, _: &mut Context<'_, Self>) {}
    fn on_installed(&mut self, _: Slot, (): (), _: &mut Context<'_, Self>) {}
    fn on_control(&mut self, control: Control, _: &mut Context<'_, Self>) {
        self.handed_off |= control == Control::HandOff;
    }
    fn on_idle(&mut self, _: &mut Context<'_, Self>) -> Wake {
        Wake::Sleep
    }
    fn status(&self) -> Status {
        Status {
            leader: Some(self.leader),
            view: u64::from(self.handed_off),
            ..Status::default()
        }
    }
    fn digest(&self) -> u64 {
        self.executed.0
    }
}

struct Plain;

impl Frontend<Simple> for Plain {
    fn new(_: FrontendSetup<()>) -> Self {
        Self
    }
    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, Simple>) {
        let here = ReplicaSet::EMPTY.with(ReplicaId(0));
        ctx.multicast(here, Ordered(submission.batch));
    }
    fn on_message(&mut self, _: ReplicaId, _: Ordered, _: &mut FrontendContext<'_, Simple>) {}
    fn on_reply(&mut self, _: ReplicaId, reply: Reply<()>, ctx: &mut FrontendContext<'_, Simple>) {
        ctx.done(reply.batch, Outcome::Results(reply.results));
    }
    fn on_timer(&mut self, _: u32, _: &mut FrontendContext<'_, Simple>) {}
    fn open(&self) -> usize {
        0
    }
    fn take_open(&mut self) -> Vec<Submission> {
        Vec::new()
    }
}

/// Counts commands; hashing takes as many steps as it is told.
#[derive(Default)]
struct Counting {
    count: u64,
    steps: u64,
    begun: Option<(u64, u64)>,
}

impl StateMachine for Counting {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {
        self.count += 1;
    }
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn tick(&mut self, _: &At) {
        self.count += 1;
    }
    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        out.extend_from_slice(&self.count.to_le_bytes());
        SnapshotProgress::Done
    }
    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.count = chunk
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok(())
    }
    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }
    fn digest(&self) -> u128 {
        self.count.into()
    }
    fn begin_digest(&mut self) -> DigestBegun {
        self.begun = Some((self.count, self.steps));
        DigestBegun::Steps
    }
    fn digest_step(&mut self, _: usize) -> Option<u128> {
        let (count, left) = self.begun.as_mut()?;
        if *left == 0 {
            return Some((*count).into());
        }
        *left -= 1;
        None
    }
}

#[derive(Default)]
struct Outside(Cell<u64>);

impl World for Outside {
    fn now(&self) -> Time {
        Time(self.0.get())
    }
    fn clock(&self) -> ClockReading {
        ClockReading {
            now: self.0.get(),
            ..ClockReading::default()
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        usize::MAX
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

const INTERVAL: Duration = Duration::from_secs(600);

/// A cluster of nodes whose machines begin with these counts.
struct Cluster {
    nodes: Vec<Node>,
    world: Outside,
    frames: VecDeque<(usize, usize, Bytes)>,
    timers: BTreeMap<(usize, TimerKey), Time>,
    digests: Vec<Vec<StateDigest>>,
    found: Vec<Vec<Divergence>>,
}

impl Cluster {
    fn new(counts: &[u64]) -> Self {
        let world = Outside::default();
        let members = counts.len();
        let nodes = counts.iter().enumerate().map(|(id, count)| {
            let setup = NodeSetup {
                id: ReplicaId(id as u16),
                incarnation: Incarnation(0),
                boot: Boot(1),
                group: GroupId(0),
                epoch: Epoch {
                    cluster: ClusterId(7),
                    number: EpochNumber(1),
                    members,
                    options: Vec::new(),
                    secret: [0; 32],
                    leader_first: ReplicaId(0),
                },
                durability: Durability::Memory,
                seed: id as u64,
                frontend: FrontendId(id as u64 + 1),
                snapshot_bytes_min: u64::MAX,
                limits: ExecutorLimits {
                    digest_interval: INTERVAL,
                    pace_beat: Duration::ZERO,
                    ..ExecutorLimits::default()
                },
            };
            let machine = Counting {
                count: *count,
                steps: 3,
                begun: None,
            };
            Node::new(setup, &Entry::of::<Simple>(), Box::new(machine)).expect("no options")
        });
        let mut cluster = Self {
            nodes: nodes.collect(),
            world,
            frames: VecDeque::new(),
            timers: BTreeMap::new(),
            digests: vec![Vec::new(); members],
            found: vec![Vec::new(); members],
        };
        for at in 0..members {
            let recovered = RecoveredBytes {
                first_boot: true,
                ..RecoveredBytes::default()
            };
            let mut out = Vec::new();
            cluster.nodes[at]
                .start(recovered, &cluster.world, &mut out)
                .expect("starts");
            cluster.nodes[at].on_idle(&cluster.world, &mut out);
            cluster.take(at, out);
        }
        cluster
    }

    fn take(&mut self, at: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send {
                    to: Recipients::Replicas(to),
                    frame,
                    ..
                } => {
                    let frame = frame.into_bytes();
                    let to = to.iter().map(|to| (at, to.index(), frame.clone()));
                    self.frames.extend(to);
                }
                Output::SetTimer {
                    key,
                    at: Deadline::At(time),
                } => {
                    self.timers.insert((at, key), time);
                }
                Output::Digest(digest) => self.digests[at].push(digest),
                Output::Diverged(found) => self.found[at].push(found),
                _ => {}
            }
        }
    }

    fn input(&mut self, at: usize, input: Input) {
        let mut out = Vec::new();
        self.nodes[at]
            .on_input(input, &self.world, &mut out)
            .expect("frames are good");
        self.nodes[at].on_idle(&self.world, &mut out);
        self.take(at, out);
    }

    /// Delivers all frames but those that `lost` says of are lost.
    fn deliver(&mut self, lost: impl Fn(usize, usize, &Bytes) -> bool) {
        while let Some((from, to, frame)) = self.frames.pop_front() {
            if !lost(from, to, &frame) {
                let from = Peer::Replica(ReplicaId(from as u16));
                let arrived = self.world.now();
                let frame = Input::Frame {
                    from,
                    arrived,
                    frame,
                };
                self.input(to, frame);
            }
        }
    }

    /// Time passes until this moment.
    fn run(&mut self, until: Duration, lost: impl Fn(usize, usize, &Bytes) -> bool) {
        let until = Time(0) + until;
        self.deliver(&lost);
        while let Some((at, key)) = (self.timers.iter())
            .filter(|(_, time)| **time <= until)
            .min_by_key(|(_, time)| **time)
            .map(|(key, _)| *key)
        {
            let time = self.timers.remove(&(at, key)).expect("it is there");
            self.world.0.set(self.world.0.get().max(time.0));
            self.input(at, Input::Timer(key));
            self.deliver(&lost);
        }
        self.world.0.set(until.0);
    }

    fn status(&self, at: usize) -> DigestStatus {
        self.nodes[at].status(&self.world).digests
    }

    fn handed_off(&self, at: usize) -> bool {
        self.nodes[at].protocol_status().view == 1
    }
}

const fn never(_: usize, _: usize, _: &Bytes) -> bool {
    false
}

#[test]
fn equal_states_are_compared_once_per_interval() {
    let mut cluster = Cluster::new(&[0, 0, 0]);
    cluster.run(INTERVAL * 3 + Duration::from_secs(30), never);
    for at in 0..3 {
        assert_eq!(cluster.digests[at].len(), 3, "replica {at}");
        assert_eq!(cluster.digests[at], cluster.digests[0]);
        assert_eq!(cluster.found[at], []);
        assert_eq!(cluster.status(at).agreed, Some(Position(3)));
    }
}

#[test]
fn minority_is_told_by_itself_and_by_the_others() {
    let mut cluster = Cluster::new(&[0, 0, 1]);
    cluster.run(INTERVAL * 3 + Duration::from_secs(30), never);
    let found: Vec<_> = cluster.found.iter().map(|found| found.as_slice()).collect();
    let peers = Difference::Peers(ReplicaSet::EMPTY.with(ReplicaId(2)));
    for at in [0, 1] {
        assert_eq!(found[at].len(), 1, "said once");
        assert_eq!(
            (found[at][0].difference, found[at][0].position),
            (peers, Position(1))
        );
        assert!(!cluster.status(at).is_minority());
    }
    assert_eq!(found[2].len(), 1);
    assert_eq!(found[2][0].difference, Difference::Minority);
    assert_eq!(found[2][0].other, cluster.digests[0][0].digest);
    assert_eq!(found[2][0].own, cluster.digests[2][0].digest);
    assert!(found[2][0].to_string().contains("at position 1 "));
    assert!(cluster.status(2).is_minority());
    assert!(!cluster.handed_off(0), "the leader is right");
}

#[test]
fn leader_in_the_minority_hands_leadership_over() {
    let mut cluster = Cluster::new(&[1, 0, 0]);
    cluster.run(INTERVAL + Duration::from_secs(1), never);
    assert!(cluster.status(0).is_minority());
    assert!(cluster.handed_off(0));
}

#[test]
fn alarm_comes_at_all_when_no_majority_agrees() {
    for counts in [&[0, 1, 2][..], &[0, 1], &[0, 0, 1, 1, 2]] {
        let mut cluster = Cluster::new(counts);
        cluster.run(INTERVAL + Duration::from_secs(5), never);
        assert!(
            cluster.found.iter().all(Vec::is_empty),
            "a late one may decide"
        );
        cluster.run(INTERVAL + Duration::from_secs(15), never);
        for at in 0..counts.len() {
            assert_eq!(cluster.found[at].len(), 1, "replica {at} of {counts:?}");
            assert_eq!(cluster.found[at][0].difference, Difference::NoMajority);
            assert!(!cluster.status(at).is_minority());
        }
    }
}

#[test]
fn digest_that_is_late_decides_before_the_alarm() {
    let mut cluster = Cluster::new(&[0, 1, 0]);
    // The third replica gets nothing at first.
    cluster.run(INTERVAL + Duration::from_secs(1), |from, to, _| {
        from == 2 || to == 2
    });
    assert!(cluster.found.iter().all(Vec::is_empty));
    let mut copy = Cluster::new(&[0, 1, 0]);
    copy.run(INTERVAL + Duration::from_secs(1), never);
    assert!(copy.status(1).is_minority());
}

#[test]
fn others_step_in_for_a_leader_that_does_not_ask() {
    let mut cluster = Cluster::new(&[0, 0, 0]);
    let leaders = |cluster: &mut Cluster| cluster.timers.retain(|(at, _), _| *at != 0);
    leaders(&mut cluster);
    // Frames of replica 1's frontend reach replica 0 as those of a client would.
    cluster.run(INTERVAL + Duration::from_secs(1), never);
    assert!(cluster.digests.iter().all(Vec::is_empty));
    cluster.run(INTERVAL + Duration::from_secs(20), never);
    assert_eq!(cluster.digests[1].len(), 1);
    assert_eq!(cluster.digests[0].len(), 1);
}

#[test]
fn lost_digest_is_sent_again_with_the_next() {
    let mut cluster = Cluster::new(&[0, 0, 1]);
    // All that they tell each other of their digests is lost.
    cluster.run(INTERVAL + Duration::from_secs(30), |_, _, frame| {
        frame[0] == 7
    });
    for at in 0..3 {
        assert_eq!(cluster.digests[at].len(), 1, "replica {at}");
        assert_eq!(cluster.status(at).agreed, None);
    }
    cluster.run(INTERVAL * 2 + Duration::from_secs(60), never);
    assert_eq!(cluster.status(0).agreed, Some(Position(2)));
    // The earlier position was compared, too.
    assert_eq!(cluster.found[2][0].position, Position(1));
}
