//! Empty batches carry time forward where a deadline comes and no command does. The log's time may
//! be behind the clock that saw the deadline come; then they must not follow each other endlessly.

mod common;

use bytes::Bytes;
use common::NoTimer;
use quintet_replica::*;
use std::{cell::Cell, time::Duration};

/// Executes at once what it is asked, at times that are far behind every clock.
struct Lagging {
    leader: ReplicaId,
    executed: Slot,
}

#[derive(Clone, Debug)]
struct Asked(Bytes);

impl Wire for Asked {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.blob(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.blob("asked")?))
    }
}

impl Protocol for Lagging {
    type Message = Asked;
    type Promise = ();
    type Record = ();
    type Summary = ();
    type ReplyHeader = ();
    type Timer = NoTimer;
    type Options = ();
    type Frontend = Plain;

    const INFO: Info = Info {
        name: "lagging",
        paper: "",
        best_at: "",
        tolerates: "",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<()>) -> Self {
        Self {
            leader: setup.epoch.leader_first,
            executed: Slot(0),
        }
    }
    fn on_start(&mut self, _: Recovered<(), (), ()>, _: &mut Context<'_, Self>) {}
    fn on_message(&mut self, _: ReplicaId, _: Asked, _: &mut Context<'_, Self>) {
        panic!("a frontend's message is a frontend's, wherever it runs");
    }
    fn on_request(&mut self, from: FrontendId, message: Asked, ctx: &mut Context<'_, Self>) {
        self.executed = self.executed.next();
        let time = CommandTime(self.executed.0);
        ctx.execute(self.executed, time, message.0, Some((from, (), None)));
    }
    fn on_timer(&mut self, timer: NoTimer, _: &mut Context<'_, Self>) {
        match timer {}
    }
    fn on_persisted(&mut self, _: PersistId, _: &mut Context<'_, Self>) {}
    fn on_installed(&mut self, _: Slot, (): (), _: &mut Context<'_, Self>) {}
    fn on_control(&mut self, _: Control, _: &mut Context<'_, Self>) {}
    fn on_idle(&mut self, _: &mut Context<'_, Self>) -> Wake {
        Wake::Sleep
    }
    fn status(&self) -> Status {
        Status {
            leader: Some(self.leader),
            ..Status::default()
        }
    }
    fn digest(&self) -> u64 {
        self.executed.0
    }
}

struct Plain;

impl Frontend<Lagging> for Plain {
    fn new(_: FrontendSetup<()>) -> Self {
        Self
    }
    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, Lagging>) {
        ctx.multicast(ReplicaSet::all(2), Asked(submission.batch));
    }
    fn on_message(&mut self, _: ReplicaId, _: Asked, _: &mut FrontendContext<'_, Lagging>) {}
    fn on_reply(&mut self, _: ReplicaId, reply: Reply<()>, ctx: &mut FrontendContext<'_, Lagging>) {
        ctx.done(reply.batch, Outcome::Results(reply.results));
    }
    fn on_timer(&mut self, _: u32, _: &mut FrontendContext<'_, Lagging>) {}
    fn open(&self) -> usize {
        0
    }
    fn take_open(&mut self) -> Vec<Submission> {
        Vec::new()
    }
}

/// Things end at a time. When it has come, one is removed at a time.
struct Expiring {
    at: CommandTime,
    left: u64,
}

impl StateMachine for Expiring {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn next_deadline(&self) -> Option<CommandTime> {
        (self.left > 0).then_some(self.at)
    }
    fn tick(&mut self, at: &At) {
        if at.time >= self.at {
            self.left = self.left.saturating_sub(1);
        }
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
    fn entries(&self) -> u64 {
        self.left
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
            now: self.0.get() + 3_600_000_000_000,
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

fn node(id: u16, state: Expiring, world: &Outside) -> Node {
    let setup = NodeSetup {
        id: ReplicaId(id),
        incarnation: Incarnation(0),
        boot: Boot(1),
        group: GroupId(0),
        epoch: Epoch {
            cluster: ClusterId(7),
            number: EpochNumber(1),
            members: 2,
            options: Vec::new(),
            secret: [0; 32],
            leader_first: ReplicaId(0),
        },
        durability: Durability::Memory,
        seed: id.into(),
        frontend: FrontendId(u64::from(id) + 1),
        snapshot_bytes_min: u64::MAX,
        limits: ExecutorLimits::default(),
    };
    let entry = Entry::of::<Lagging>();
    let mut node = Node::new(setup, &entry, Box::new(state)).expect("no options");
    let recovered = RecoveredBytes {
        first_boot: true,
        ..RecoveredBytes::default()
    };
    node.start(recovered, world, &mut Vec::new())
        .expect("starts");
    node
}

/// The timer for empty batches fires, and the node does what follows from it.
fn tick_timer(node: &mut Node, world: &Outside, out: &mut Vec<Output>) {
    let timer = TimerKey {
        owner: TimerOwner::Node,
        timer: 1,
        generation: 0,
    };
    node.on_input(Input::Timer(timer), world, out)
        .expect("no frame is bad");
    for _ in 0..20 {
        node.on_idle(world, out);
    }
}

#[test]
fn remainder_of_empty_batch_goes_with_next_ones() {
    let world = Outside::default();
    let many = Expiring {
        at: CommandTime(1),
        left: 100,
    };
    let mut node = node(0, many, &world);
    let mut out = Vec::new();
    let mut latest = 0;
    for _ in 0..100 {
        world.0.set(latest);
        tick_timer(&mut node, &world, &mut out);
        let timers = out.drain(..).filter_map(|output| match output {
            Output::SetTimer {
                at: Deadline::At(at),
                ..
            } => Some(at.0),
            _ => None,
        });
        latest = timers.max().unwrap_or(latest);
    }
    assert_eq!(node.executed().slot, Slot(100), "one after the other");
    assert!(latest > 0, "with a pause between them");
    assert!(
        Time(latest) < Time(0) + Duration::from_secs(1),
        "and without waiting for each as if it were lost"
    );
}

#[test]
fn deadline_that_log_does_not_reach_is_not_chased_without_pause() {
    // The leader, and one that steps in for it.
    for id in [0, 1] {
        let world = Outside::default();
        let never = Expiring {
            at: CommandTime(1_000_000),
            left: 1,
        };
        let mut node = node(id, never, &world);
        let mut out = Vec::new();
        for seconds in 0..10 {
            world.0.set(seconds * 1_000_000_000);
            tick_timer(&mut node, &world, &mut out);
        }
        // One in two seconds, as often as a lost one would be repeated.
        assert_eq!(node.executed().slot, Slot(5), "replica {id}");
        let waits = |output: &Output| {
            matches!(
                output,
                Output::SetTimer { at: Deadline::At(at), .. }
                    if *at == Time(0) + Duration::from_secs(10)
            )
        };
        assert!(out.iter().any(waits), "it will be tried again");
    }
}
