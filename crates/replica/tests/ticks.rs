//! Empty batches carry time forward where a deadline comes and no command does. The log's time may
//! be behind the clock that saw the deadline come; then they must not follow each other endlessly.

use bytes::Bytes;
use quintet_replica::*;
use std::{cell::Cell, time::Duration};

/// Executes at once what it is asked, at times that are far behind every clock.
struct Lagging {
    leader: ReplicaId,
    executed: Slot,
}

#[derive(Clone, Copy, Debug)]
enum NoTimer {}

impl From<NoTimer> for u32 {
    fn from(timer: NoTimer) -> Self {
        match timer {}
    }
}

impl TryFrom<u32> for NoTimer {
    type Error = ();
    fn try_from(_: u32) -> Result<Self, ()> {
        Err(())
    }
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
    fn on_message(&mut self, from: Peer, message: Asked, ctx: &mut Context<'_, Self>) {
        let Peer::Frontend(from) = from else {
            panic!("a frontend's message is a frontend's");
        };
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
}

/// Something ends at a time that the log never reaches.
struct Expiring;

impl StateMachine for Expiring {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn next_deadline(&self) -> Option<CommandTime> {
        Some(CommandTime(1_000_000))
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
        0
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

fn node(id: u16, world: &Outside) -> Node {
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
    let mut node = Node::new(setup, &entry, Box::new(Expiring)).expect("no options");
    let recovered = RecoveredBytes {
        first_boot: true,
        ..RecoveredBytes::default()
    };
    node.start(recovered, world, &mut Vec::new())
        .expect("starts");
    node
}

#[test]
fn a_deadline_that_the_log_does_not_reach_is_not_chased_without_a_pause() {
    // The leader, and one that steps in for it.
    for id in [0, 1] {
        let world = Outside::default();
        let mut node = node(id, &world);
        let mut out = Vec::new();
        for seconds in 0..10 {
            world.0.set(seconds * 1_000_000_000);
            let timer = TimerKey {
                owner: TimerOwner::Node,
                timer: 1,
            };
            node.on_input(Input::Timer(timer), &world, &mut out)
                .expect("no frame is bad");
            for _ in 0..20 {
                node.on_idle(&world, &mut out);
            }
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
