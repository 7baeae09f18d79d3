//! A node whose commands take long does what else is due between two batches.

mod common;
#[path = "common/outside.rs"]
mod outside;

use bytes::Bytes;
use common::NoTimer;
use outside::Outside;
use quintet_replica::*;
use std::cell::Cell;

/// Executes each batch ten times, all in one turn, then asks about the last of them; reads what is
/// to be read.
struct Bursts {
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

impl Protocol for Bursts {
    type Message = Asked;
    type Promise = ();
    type Record = ();
    type Summary = ();
    type ReplyHeader = ();
    type Timer = NoTimer;
    type Options = ();
    type Frontend = Plain;

    const INFO: Info = Info {
        name: "bursts",
        paper: "",
        best_at: "",
        tolerates: "",
        stable: false,
        replicas_min: 1,
    };

    fn new(_: Setup<()>) -> Self {
        Self { executed: Slot(0) }
    }
    fn on_start(&mut self, _: Recovered<(), (), ()>, _: &mut Context<'_, Self>) {}
    fn on_message(&mut self, _: ReplicaId, _: Asked, _: &mut Context<'_, Self>) {
        panic!("a frontend's message is a frontend's, wherever it runs");
    }
    fn on_request(&mut self, from: FrontendId, message: Asked, ctx: &mut Context<'_, Self>) {
        let view = BatchView::new(&message.0).expect("a batch");
        if view.level() == Level::Stale {
            return ctx.query(message.0, Slot(0), false, from, &());
        }
        for place in 1..=10 {
            self.executed = self.executed.next();
            let time = CommandTime(self.executed.0);
            let reply = (place == 10).then_some((from, (), None));
            ctx.execute(self.executed, time, message.0.clone(), reply);
        }
    }
    fn on_timer(&mut self, timer: NoTimer, _: &mut Context<'_, Self>) {
        match timer {}
    }
    fn on_persisted(&mut self, _: PersistId, _: &mut Context<'_, Self>) {}
    fn on_installed(&mut self, _: Slot, (): (), _: &mut Context<'_, Self>) {}
    fn on_control(&mut self, _: Control, ctx: &mut Context<'_, Self>) {
        ctx.mark("before");
        ctx.contradicted(format_args!("two values for slot s1"));
        ctx.mark("after");
    }
    fn on_idle(&mut self, _: &mut Context<'_, Self>) -> Wake {
        Wake::Sleep
    }
    fn status(&self) -> Status {
        Status::default()
    }
    fn digest(&self) -> u64 {
        self.executed.0
    }
}

struct Plain;

impl Frontend<Bursts> for Plain {
    fn new(_: FrontendSetup<()>) -> Self {
        Self
    }
    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, Bursts>) {
        ctx.multicast(ReplicaSet::all(1), Asked(submission.batch));
    }
    fn on_message(&mut self, _: ReplicaId, _: Asked, _: &mut FrontendContext<'_, Bursts>) {}
    fn on_reply(&mut self, _: ReplicaId, reply: Reply<()>, ctx: &mut FrontendContext<'_, Bursts>) {
        ctx.done(reply.batch, Outcome::Results(reply.results));
    }
    fn on_timer(&mut self, _: u32, _: &mut FrontendContext<'_, Bursts>) {}
    fn open(&self) -> usize {
        0
    }
    fn take_open(&mut self) -> Vec<Submission> {
        Vec::new()
    }
}

/// Every batch takes that many steps, and every read gives a long result.
struct Slow {
    per_batch: u64,
    steps: Cell<u64>,
}

impl StateMachine for Slow {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
        reply.resize(reply.len() + RESULT_BYTES, 0);
    }
    fn tick(&mut self, _: &At) {
        self.steps.set(self.steps.get() + self.per_batch);
    }
    fn steps(&self) -> u64 {
        self.steps.get()
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

const RESULT_BYTES: usize = 16 << 20;

const FRONTEND: FrontendId = FrontendId(1);

fn node(per_batch: u64) -> Node {
    let setup = NodeSetup {
        id: ReplicaId(0),
        incarnation: Incarnation(0),
        boot: Boot(1),
        group: GroupId(0),
        epoch: Epoch {
            cluster: ClusterId(7),
            number: EpochNumber(1),
            members: 1,
            options: Vec::new(),
            secret: [0; 32],
            leader_first: ReplicaId(0),
        },
        durability: Durability::Memory,
        seed: 1,
        frontend: FRONTEND,
        snapshot_bytes_min: u64::MAX,
        limits: ExecutorLimits::default(),
    };
    let machine = Slow {
        per_batch,
        steps: Cell::new(0),
    };
    let entry = Entry::of::<Bursts>();
    let mut node = Node::new(setup, &entry, Box::new(machine)).expect("no options");
    let recovered = RecoveredBytes {
        first_boot: true,
        ..RecoveredBytes::default()
    };
    node.start(recovered, &Outside::default(), &mut Vec::new())
        .expect("starts");
    node
}

/// A client's batch comes: what the node did, and whether the client has its answer.
fn submit(node: &mut Node, id: u64, out: &mut Vec<Output>) {
    submit_at(node, id, (Level::Ordered, RequestKind::Tick), out);
}

fn submit_at(node: &mut Node, id: u64, (level, kind): (Level, RequestKind), out: &mut Vec<Output>) {
    let mut builder = BatchBuilder::new();
    builder.push(CommandId::default(), kind, 0, &[]);
    let batch = builder.finish(FRONTEND, BatchId(id), level);
    let submission = Submission {
        id: BatchId(id),
        level,
        batch,
        deadline: Time(u64::MAX),
    };
    node.on_input(Input::Submit(submission), &Outside::default(), out)
        .expect("no frame is bad");
}

fn answered(out: &[Output]) -> usize {
    let done = |output: &&Output| matches!(output, Output::Done { .. });
    out.iter().filter(done).count()
}

#[test]
fn batches_wait_for_later_turns_when_commands_take_long() {
    let mut node = node(1 << 20);
    let mut out = Vec::new();
    submit(&mut node, 1, &mut out);
    assert_eq!(node.executed().slot, Slot(1), "one takes the whole turn");
    // A batch that comes meanwhile comes behind it.
    submit(&mut node, 2, &mut out);
    assert_eq!(node.executed().slot, Slot(1));
    for turn in 2..20 {
        assert_eq!(node.on_idle(&Outside::default(), &mut out), Wake::Spin);
        assert_eq!(node.executed().slot, Slot(turn), "one in each turn");
        assert_eq!(answered(&out), usize::from(turn >= 10));
    }
    assert_eq!(node.on_idle(&Outside::default(), &mut out), Wake::Sleep);
    assert_eq!((node.executed().slot, answered(&out)), (Slot(20), 2));
}

#[test]
fn reads_wait_for_later_turns_when_their_results_are_long() {
    let mut node = node(0);
    let mut out = Vec::new();
    for id in 1..=10 {
        submit_at(
            &mut node,
            id,
            (Level::Stale, RequestKind::Command),
            &mut out,
        );
    }
    assert_eq!(answered(&out), 4, "64 MiB take the whole turn");
    assert_eq!(node.on_idle(&Outside::default(), &mut out), Wake::Spin);
    assert_eq!(answered(&out), 8);
    assert_eq!(node.on_idle(&Outside::default(), &mut out), Wake::Sleep);
    assert_eq!(answered(&out), 10);
}

#[test]
fn batch_that_no_frame_takes_is_refused() {
    let mut node = node(0);
    let mut out = Vec::new();
    let submission = Submission {
        id: BatchId(1),
        level: Level::Ordered,
        batch: vec![0; limits::BATCH_BYTES_LIMIT + 1].into(),
        deadline: Time(u64::MAX),
    };
    let taken = node.on_input(Input::Submit(submission), &Outside::default(), &mut out);
    taken.expect("no frame is bad");
    let [Output::Done { batch, outcome }] = &out[..] else {
        panic!("it goes further: {out:?}");
    };
    assert_eq!((*batch, outcome), (BatchId(1), &Outcome::NoQuorum));
    assert_eq!(node.executed().slot, Slot(0));
}

#[test]
fn batches_are_executed_at_once_when_no_command_takes_long() {
    let mut node = node(0);
    let mut out = Vec::new();
    submit(&mut node, 1, &mut out);
    assert_eq!((node.executed().slot, answered(&out)), (Slot(10), 1));
    assert_eq!(node.on_idle(&Outside::default(), &mut out), Wake::Sleep);
}

#[test]
fn node_does_nothing_more_when_members_contradict_each_other() {
    let mut node = node(0);
    let mut out = Vec::new();
    let control = Input::Control(Control::HandOff);
    node.on_input(control, &Outside::default(), &mut out)
        .expect("no frame");
    let [Output::Mark("before"), Output::Halt(_, reason)] = &out[..] else {
        panic!("nothing is carried out behind a halt: {out:?}");
    };
    let told = "members contradict each other: two values for slot s1.";
    assert!(reason.starts_with(told), "{reason}");
    assert!(reason.starts_with(parts::CONTRADICTION));
    out.clear();
    submit(&mut node, 1, &mut out);
    assert_eq!(node.on_idle(&Outside::default(), &mut out), Wake::Sleep);
    assert!(out.is_empty(), "it hears nothing more");
}
