//! A frontend inside one replica that speaks to all: messages and results of the other replicas
//! find it, and what was meant for an earlier run of its process does not.

mod common;
#[path = "common/outside.rs"]
mod outside;

use bytes::Bytes;
use common::NoTimer;
use outside::Outside;
use quintet_replica::*;
use std::cell::RefCell;

thread_local! {
    /// Messages received by frontends: which frontend, from whom, and what.
    static HEARD: RefCell<Vec<(u64, u16, &'static str)>> = const { RefCell::new(Vec::new()) };
}

fn heard() -> Vec<(u64, u16, &'static str)> {
    HEARD.with_borrow_mut(|heard| {
        heard.sort_unstable();
        std::mem::take(heard)
    })
}

/// Executes what it is asked and says so.
struct Obedient {
    executed: Slot,
}

#[derive(Clone, Debug)]
struct Spoken(Bytes);

impl Wire for Spoken {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.blob(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.blob("spoken")?))
    }
}

impl Protocol for Obedient {
    type Message = Spoken;
    type Promise = ();
    type Record = ();
    type Summary = ();
    type ReplyHeader = ();
    type Timer = NoTimer;
    type Options = ();
    type Frontend = Loud;

    const INFO: Info = Info {
        name: "obedient",
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
    fn on_message(&mut self, _: ReplicaId, _: Spoken, _: &mut Context<'_, Self>) {
        panic!("a frontend's message is a frontend's, wherever it runs");
    }
    fn on_request(&mut self, from: FrontendId, message: Spoken, ctx: &mut Context<'_, Self>) {
        self.executed = self.executed.next();
        let time = CommandTime(self.executed.0);
        ctx.execute(self.executed, time, message.0, Some((from, (), None)));
        ctx.send_frontend(from, Spoken(Bytes::new()));
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
        Status::default()
    }
    fn digest(&self) -> u64 {
        self.executed.0
    }
}

struct Loud(FrontendId);

impl Frontend<Obedient> for Loud {
    fn new(setup: FrontendSetup<()>) -> Self {
        Self(setup.id)
    }
    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, Obedient>) {
        ctx.multicast(ReplicaSet::all(2), Spoken(submission.batch));
    }
    fn on_message(&mut self, from: ReplicaId, _: Spoken, _: &mut FrontendContext<'_, Obedient>) {
        HEARD.with_borrow_mut(|heard| heard.push((self.0.0, from.0, "message")));
    }
    fn on_reply(&mut self, from: ReplicaId, _: Reply<()>, _: &mut FrontendContext<'_, Obedient>) {
        HEARD.with_borrow_mut(|heard| heard.push((self.0.0, from.0, "reply")));
    }
    fn on_timer(&mut self, _: u32, _: &mut FrontendContext<'_, Obedient>) {}
    fn open(&self) -> usize {
        0
    }
    fn take_open(&mut self) -> Vec<Submission> {
        Vec::new()
    }
}

fn epoch() -> Epoch {
    Epoch {
        cluster: ClusterId(7),
        number: EpochNumber(1),
        members: 2,
        options: Vec::new(),
        secret: [0; 32],
        leader_first: ReplicaId(0),
    }
}

/// A replica and the frames that have left it.
struct Place {
    id: u16,
    node: Node,
    out: Vec<Output>,
}

impl Place {
    fn new(id: u16, frontend: u64) -> Self {
        Self::of(GroupId(0), id, frontend)
    }

    fn of(group: GroupId, id: u16, frontend: u64) -> Self {
        let setup = NodeSetup {
            id: ReplicaId(id),
            incarnation: Incarnation(0),
            boot: Boot(1),
            group,
            epoch: epoch(),
            durability: Durability::Memory,
            seed: id.into(),
            frontend: FrontendId(frontend),
            snapshot_bytes_min: u64::MAX,
            limits: ExecutorLimits::default(),
        };
        let mut node =
            Node::new(setup, &Entry::of::<Obedient>(), Box::new(Nothing)).expect("no options");
        let recovered = RecoveredBytes {
            first_boot: true,
            ..RecoveredBytes::default()
        };
        let mut out = Vec::new();
        node.start(recovered, &Outside::default(), &mut out)
            .expect("starts");
        Self { id, node, out }
    }

    fn input(&mut self, input: Input) {
        let world = Outside::default();
        self.node
            .on_input(input, &world, &mut self.out)
            .expect("no bad frames here");
    }

    fn submit(&mut self, frontend: u64) {
        let mut builder = BatchBuilder::new();
        builder.push(CommandId::default(), RequestKind::Tick, 0, &[]);
        let id = BatchId(1);
        let batch = builder.finish(FrontendId(frontend), id, Level::Ordered);
        self.input(Input::Submit(Submission {
            id,
            level: Level::Ordered,
            batch,
            deadline: Time(u64::MAX),
        }));
    }

    fn sent(&mut self) -> Vec<Bytes> {
        let sent = self.out.drain(..).filter_map(|output| match output {
            Output::Send {
                to: Recipients::Replicas(_),
                frame,
                ..
            } => Some(frame.into_bytes()),
            _ => None,
        });
        sent.collect()
    }

    fn receive(&mut self, from: u16, frames: Vec<Bytes>) {
        assert_ne!(from, self.id);
        for frame in frames {
            self.input(Input::Frame {
                from: Peer::Replica(ReplicaId(from)),
                arrived: Time(0),
                frame,
            });
        }
    }
}

#[test]
fn frontend_inside_a_replica_hears_from_all_replicas() {
    let (mut here, mut there) = (Place::new(0, 11), Place::new(1, 12));
    here.submit(11);
    let own = [(11, 0, "message"), (11, 0, "reply")];
    assert_eq!(heard(), own);
    there.receive(0, here.sent());
    assert_eq!(heard(), [], "it is not the other replica's frontend");
    here.receive(1, there.sent());
    assert_eq!(heard(), [(11, 1, "message"), (11, 1, "reply")]);
}

#[test]
fn frames_for_earlier_run_do_not_reach_next() {
    let (mut here, mut there) = (Place::new(0, 11), Place::new(1, 12));
    here.submit(11);
    there.receive(0, here.sent());
    heard();
    let late = there.sent();
    assert!(!late.is_empty());
    let mut again = Place::new(0, 13);
    again.receive(1, late);
    assert_eq!(heard(), [], "its batches have the same numbers");
    again.submit(13);
    heard();
    there.receive(0, again.sent());
    again.receive(1, there.sent());
    assert_eq!(heard(), [(13, 1, "message"), (13, 1, "reply")]);
}

#[test]
fn seal_of_server_or_client_is_rejected_before_frontend() {
    let mut builder = BatchBuilder::new();
    builder.push(CommandId::default(), RequestKind::Tick, 0, &[]);
    builder.push(CommandId::default(), RequestKind::Seal, 0, b"another epoch");
    let (id, level) = (BatchId(1), Level::Ordered);
    let submission = Submission {
        id,
        level,
        batch: builder.finish(FrontendId(11), id, level),
        deadline: Time(u64::MAX),
    };
    let is_refused = |outcome: &Outcome| match outcome {
        Outcome::Results(results) => {
            let statuses: Vec<_> = Results::new(results).map(|(status, _)| status).collect();
            statuses == [RequestStatus::Refused; 2]
        }
        _ => false,
    };
    let mut here = Place::new(0, 11);
    here.input(Input::Submit(submission.clone()));
    let done = here.out.iter().find_map(|output| match output {
        Output::Done { batch, outcome } if *batch == id => Some(outcome),
        _ => None,
    });
    assert!(done.is_some_and(is_refused), "{:?}", here.out);
    let mut client = (Entry::of::<Obedient>().client)(outside(), 1).expect("no options");
    let mut effects = Vec::new();
    client.submit(submission, &Outside::default(), &mut effects);
    assert!(
        matches!(&effects[..], [Effect::Done { outcome, .. }] if is_refused(outcome)),
        "{effects:?}"
    );
    assert_eq!(heard(), []);
}

/// A frontend outside of the members.
fn outside() -> FrontendSetup<()> {
    FrontendSetup {
        id: FrontendId(9),
        embedded: None,
        epoch: epoch(),
        durability: Durability::Memory,
        options: (),
    }
}

/// A frame from a node to a frontend, in this epoch.
fn told(kind: u8, epoch: u64, body: impl FnOnce(&mut Writer<'_>)) -> Bytes {
    let mut scratch = bytes::BytesMut::new();
    let mut writer = Writer::new(&mut scratch);
    writer.u8(kind);
    writer.u8(FRAME_VERSION);
    writer.u16(0);
    writer.u32(0);
    writer.u64(epoch);
    body(&mut writer);
    writer.finish().into_bytes()
}

#[test]
fn frontend_in_a_new_epoch_forgets_who_had_no_quorum() {
    let entry = Entry::of::<Obedient>();
    let find: FindProtocol = |_| Some(const { &Entry::of::<Obedient>() });
    let mut client = ClientNode::new(outside(), &entry, find, 1).expect("no options");
    let world = Outside::default();
    let (mut effects, lost) = (Vec::new(), |writer: &mut Writer<'_>| writer.bool(true));
    let mut hear = |client: &mut ClientNode, from, frame| {
        let heard = client.on_frame(ReplicaId(from), frame, &world, &mut effects);
        heard.expect("it makes sense");
        client.without_quorum(Time(0))
    };
    let said = ReplicaSet::EMPTY.with(ReplicaId(1));
    assert_eq!(hear(&mut client, 1, told(10, 1, lost)), said);
    let next = Descriptor {
        number: EpochNumber(2),
        ..Descriptor::first(ClusterId(7), "obedient", Durability::Memory)
    };
    let entered = told(9, 2, |writer| {
        writer.u64(2);
        writer.bool(false);
        writer.u8(2);
        writer.u64(0);
        writer.u64(0);
        writer.slice(&next.told());
        writer.bool(false);
    });
    assert_eq!(hear(&mut client, 0, entered), ReplicaSet::EMPTY);
    assert_eq!(client.epoch().number, EpochNumber(2));
    // One that is left in the epoch before says nothing of this one.
    assert_eq!(hear(&mut client, 1, told(10, 1, lost)), ReplicaSet::EMPTY);
    assert_eq!(hear(&mut client, 1, told(10, 2, lost)), said);
}

#[test]
fn guest_in_a_replicas_process_is_served_in_its_group() {
    let group = GroupId(3);
    let entry = Entry::of::<Obedient>();
    let find: FindProtocol = |_| Some(const { &Entry::of::<Obedient>() });
    let world = Outside::default();
    let guest = |id| {
        let setup = FrontendSetup {
            id: FrontendId(id),
            ..outside()
        };
        let client = ClientNode::new(setup, &entry, find, 1).expect("no options");
        client.as_guest(group, Voters::dense(2))
    };
    let (mut client, mut there) = (guest(9), Place::of(group, 1, 12));
    let mut builder = BatchBuilder::of(group);
    builder.push(CommandId::default(), RequestKind::Tick, 0, &[]);
    let (id, level) = (BatchId(1), Level::Ordered);
    let submission = Submission {
        id,
        level,
        batch: builder.finish(FrontendId(9), id, level),
        deadline: Time(u64::MAX),
    };
    let mut effects = Vec::new();
    client.submit(submission, &world, &mut effects);
    let sent = effects.drain(..).find_map(|effect| match effect {
        Effect::Send { frame, .. } => Some(frame.into_bytes()),
        _ => None,
    });
    let sent = sent.expect("it sends");
    assert_eq!(frame_group(&sent), Some(group));
    // Replica 7 is no member, and its process has a frontend of the group.
    there.receive(7, vec![sent.clone()]);
    let answers = there.sent();
    assert_eq!(answers.len(), 2, "a message and a reply");
    let mut later = guest(10);
    for answer in answers {
        for client in [&mut later, &mut client] {
            let heard = client.on_frame(ReplicaId(1), answer.clone(), &world, &mut effects);
            heard.expect("it makes sense");
        }
    }
    assert_eq!(heard(), [(9, 1, "message"), (9, 1, "reply")]);
    // In a process with one group there are no guests.
    let mut alone = Place::new(1, 12);
    let frame = |group: u32| {
        let mut bytes = sent.to_vec();
        bytes[4..8].copy_from_slice(&group.to_le_bytes());
        Input::Frame {
            from: Peer::Replica(ReplicaId(7)),
            arrived: Time(0),
            frame: bytes.into(),
        }
    };
    let refused = alone.node.on_input(frame(0), &world, &mut alone.out);
    assert!(
        matches!(refused, Err(FrameError::Malformed(_))),
        "{refused:?}"
    );
}
