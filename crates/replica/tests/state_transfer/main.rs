//! Two nodes with the smallest possible protocol: what a node does when a fetched snapshot cannot
//! be saved, when a newer one is wanted meanwhile, and when a snapshot begins with much to say.

use bytes::Bytes;
use common::NoTimer;
use quintet_replica::*;
use std::cell::{Cell, RefCell};

#[path = "../common/mod.rs"]
mod common;
mod epochs;
mod failures;
mod owed;
mod resumed;
mod undone;

/// Executes what it is told to, ahead of its commit or not, and fetches what it is told to.
struct Puppet<const AHEAD: bool> {
    id: ReplicaId,
    executed: Slot,
    summary: usize,
    /// It takes no checkpoints.
    mute: bool,
    /// It executes so much more when it is asked for one.
    late: u64,
}

/// Takes the name of an injected bug, which is the node's business.
#[derive(Clone, Debug, Default)]
struct Plantable;

impl Options for Plantable {
    const SPECS: &'static [OptionSpec] = &[OptionSpec {
        name: "bug",
        default: "",
        help: "",
    }];
    fn set(&mut self, _: &str, _: &str) -> Result<(), String> {
        Ok(())
    }
}

struct Padding(Bytes);

impl Wire for Padding {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.blob(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.blob("padding")?))
    }
}

impl<const AHEAD: bool> Puppet<AHEAD> {
    fn execute(&mut self, number: u64, ctx: &mut Context<'_, Self>) {
        self.execute_one(number, RequestKind::Tick, &[], ctx);
    }

    fn execute_one(
        &mut self,
        number: u64,
        kind: RequestKind,
        payload: &[u8],
        ctx: &mut Context<'_, Self>,
    ) {
        let mut builder = BatchBuilder::new();
        builder.push(CommandId::default(), kind, 0, payload);
        let batch = builder.finish(FrontendId(1), BatchId(number), Level::Ordered);
        self.executed = Slot(number);
        ctx.execute(self.executed, CommandTime(number), batch, None);
    }
}

impl<const AHEAD: bool> Protocol for Puppet<AHEAD> {
    type Message = ();
    type Promise = ();
    type Record = ();
    type Summary = Padding;
    type ReplyHeader = ();
    type Timer = NoTimer;
    type Options = Plantable;
    type Frontend = Silent;

    const SPECULATES: bool = AHEAD;
    const INFO: Info = Info {
        name: "puppet",
        paper: "",
        best_at: "",
        tolerates: "",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<Plantable>) -> Self {
        Self {
            id: setup.id,
            executed: Slot(0),
            summary: 0,
            mute: false,
            late: 0,
        }
    }
    fn on_start(&mut self, recovered: Recovered<(), (), Padding>, _: &mut Context<'_, Self>) {
        self.executed = recovered.checkpoint.map_or(Slot(0), |(slot, _)| slot);
    }
    fn on_request(&mut self, _: FrontendId, (): (), _: &mut Context<'_, Self>) {}
    fn on_message(&mut self, _: ReplicaId, (): (), _: &mut Context<'_, Self>) {}
    fn on_timer(&mut self, timer: NoTimer, _: &mut Context<'_, Self>) {
        match timer {}
    }
    fn on_persisted(&mut self, _: PersistId, _: &mut Context<'_, Self>) {}
    fn on_installed(&mut self, slot: Slot, _: Padding, _: &mut Context<'_, Self>) {
        self.executed = slot;
    }
    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue if self.mute => {}
            Control::CheckpointDue => {
                for _ in 0..std::mem::take(&mut self.late) {
                    self.execute(self.executed.0 + 1, ctx);
                }
                ctx.checkpoint(self.executed, &Padding(vec![0; self.summary].into()));
            }
            Control::Option { name, value } => {
                let number = value.parse().expect("a number");
                match &name[..] {
                    "execute" => self.execute(number, ctx),
                    "command" => self.execute_one(number, RequestKind::Command, &[], ctx),
                    "end the epoch" => {
                        let next = descriptor().successor().encode();
                        self.execute_one(number, RequestKind::Seal, &next, ctx);
                    }
                    "fetch" => {
                        let others = ReplicaSet::all(2).without(self.id);
                        ctx.fetch_state(others, Slot(number));
                    }
                    "write" => {
                        ctx.persist(Slot(number), &());
                    }
                    "query" => {
                        let mut builder = BatchBuilder::new();
                        builder.push(CommandId::default(), RequestKind::Command, 0, &[]);
                        let batch = builder.finish(FrontendId(9), BatchId(number), Level::Ordered);
                        ctx.query(batch, Slot(0), false, FrontendId(9), &());
                    }
                    "fetch_also" => {
                        let from = ReplicaSet::EMPTY.with(ReplicaId(number as u16));
                        ctx.fetch_state(from, Slot(5));
                    }
                    "stable" => ctx.stable(Slot(number)),
                    "roll back" => {
                        ctx.roll_back(Slot(number));
                        self.executed = Slot(number);
                    }
                    "late" => self.late = number,
                    "mute" => self.mute = number > 0,
                    "summary" => self.summary = number as usize,
                    other => panic!("no such string: {other}"),
                }
            }
            _ => {}
        }
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

struct Silent;

impl<const AHEAD: bool> Frontend<Puppet<AHEAD>> for Silent {
    fn new(_: FrontendSetup<Plantable>) -> Self {
        Self
    }
    fn submit(&mut self, _: Submission, _: &mut FrontendContext<'_, Puppet<AHEAD>>) {}
    fn on_message(&mut self, _: ReplicaId, (): (), _: &mut FrontendContext<'_, Puppet<AHEAD>>) {}
    fn on_reply(&mut self, _: ReplicaId, _: Reply<()>, _: &mut FrontendContext<'_, Puppet<AHEAD>>) {
    }
    fn on_timer(&mut self, _: u32, _: &mut FrontendContext<'_, Puppet<AHEAD>>) {}
    fn open(&self) -> usize {
        0
    }
    fn take_open(&mut self) -> Vec<Submission> {
        Vec::new()
    }
}

/// Counts ordered batches by their ticks; writes its state in the first chunk. Each batch takes this
/// many steps. A wide one writes many chunks behind that.
struct Counter {
    batches: u64,
    steps: u64,
    wide: u8,
    written: u8,
}

const WIDE: usize = 100_000;

impl StateMachine for Counter {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn tick(&mut self, _: &At) {
        self.batches += 1;
    }
    fn begin_snapshot(&mut self) {
        self.written = 0;
    }
    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        match self.written {
            0 => out.extend_from_slice(&self.batches.to_le_bytes()),
            number => out.resize(out.len() + WIDE, number),
        }
        self.written += 1;
        match self.written > self.wide {
            true => SnapshotProgress::Done,
            false => SnapshotProgress::More,
        }
    }
    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        if let Ok(batches) = chunk.try_into() {
            self.batches = u64::from_le_bytes(batches);
            self.written = 0;
        } else {
            self.written += 1;
            assert_eq!(
                chunk,
                vec![self.written; WIDE],
                "each comes once, in its turn"
            );
        }
        Ok(())
    }
    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }
    fn digest(&self) -> u128 {
        self.batches.into()
    }
    fn entries(&self) -> u64 {
        self.batches
    }
    fn steps(&self) -> u64 {
        self.batches * self.steps
    }
}

#[derive(Default)]
struct Outside {
    now: Cell<u64>,
    /// The messages for which its links have no room.
    queued: Cell<usize>,
    saved: RefCell<Option<(SnapshotInfo, Bytes)>>,
    /// A peer's snapshot as far as it has been written.
    coming: RefCell<Option<(Executed, Bytes)>>,
    /// The snapshot that an earlier run of a fetcher left unfinished.
    left: RefCell<Option<(SnapshotLeft, Bytes)>>,
}

impl World for Outside {
    fn now(&self) -> Time {
        Time(self.now.get())
    }
    fn clock(&self) -> ClockReading {
        ClockReading::default()
    }
    fn room(&self, _: ReplicaId) -> usize {
        usize::MAX - self.queued.get()
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.saved.borrow().as_ref().map(|(info, _)| *info)
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let (saved, coming) = (self.saved.borrow(), self.coming.borrow());
        let coming = coming.as_ref().filter(|(known, _)| *known == id);
        let saved = saved.as_ref().filter(|(info, _)| info.id == id);
        let bytes = match (coming, saved) {
            (Some((_, bytes)), _) | (None, Some((_, bytes))) => bytes,
            (None, None) => return None,
        };
        let start = bytes.len().min(offset as usize);
        Some(bytes.slice(start..bytes.len().min(start + length)))
    }
    fn snapshot_left(&self) -> Option<SnapshotLeft> {
        let left = self.left.borrow();
        left.as_ref().map(|(left, _)| left.clone())
    }
}

struct Place {
    node: Node,
    world: Outside,
    out: Vec<Output>,
    writing: Option<(Executed, Vec<u8>)>,
    /// The fetch's timer is set.
    timer: bool,
    /// Answers that were sent to frontends.
    answers: usize,
    /// Why it stopped.
    halts: Vec<String>,
}

const PACE: TimerKey = TimerKey { timer: 5, ..FETCH };
/// The kind of a frame that tells in which epoch its sender is.
const EPOCH_FRAME: u8 = 9;
const FETCH: TimerKey = TimerKey {
    owner: TimerOwner::Node,
    timer: 0,
    generation: 0,
};

/// The descriptor on which the nodes have agreed.
fn descriptor() -> Descriptor {
    Descriptor {
        hash_seed: 5,
        ..Descriptor::first(ClusterId(7), "puppet", Durability::Memory)
    }
}

impl Place {
    fn node(id: u16, durability: Durability, entry: &Entry, bug: &str) -> Node {
        let setup = NodeSetup {
            id: ReplicaId(id),
            incarnation: Incarnation(0),
            boot: Boot(1),
            group: GroupId(0),
            epoch: Epoch {
                cluster: ClusterId(7),
                number: EpochNumber(1),
                members: 3,
                options: match bug {
                    "" | "rate" | "slow" | "small feed" | "few reads" | "own snapshots"
                    | "wide" => Vec::new(),
                    name => vec![("bug".to_owned(), name.to_owned())],
                },
                secret: [0; 32],
                leader_first: ReplicaId(0),
            },
            durability,
            seed: u64::from(id) << 32 | 1,
            frontend: FrontendId(u64::from(id) + 1),
            snapshot_bytes_min: if bug == "own snapshots" { 1 } else { u64::MAX },
            limits: ExecutorLimits {
                queries_max: if bug == "few reads" { 2 } else { 65_536 },
                transfer_rate_max: if bug == "rate" { 1 << 20 } else { 0 },
                feed_bytes_max: if bug == "small feed" {
                    1 << 10
                } else {
                    1 << 30
                },
                ..ExecutorLimits::default()
            },
        };
        let steps = if bug == "slow" { 1 << 20 } else { 0 };
        let machine = Counter {
            batches: 0,
            steps,
            wide: if bug == "wide" { 30 } else { 0 },
            written: 0,
        };
        Node::new(setup, entry, Box::new(machine))
            .expect("no options")
            .with_descriptor(descriptor().encode())
    }

    fn new(id: u16) -> Self {
        Self::with(id, Durability::Memory)
    }

    /// One that executes ahead of its commit.
    fn ahead(id: u16) -> Self {
        Self::of(id, Durability::Memory, &Entry::of::<Puppet<true>>(), "")
    }

    fn with(id: u16, durability: Durability) -> Self {
        Self::of(id, durability, &Entry::of::<Puppet<false>>(), "")
    }

    fn of(id: u16, durability: Durability, entry: &Entry, bug: &str) -> Self {
        let mut place = Self {
            node: Self::node(id, durability, entry, bug),
            world: Outside::default(),
            out: Vec::new(),
            writing: None,
            timer: false,
            answers: 0,
            halts: Vec::new(),
        };
        let recovered = RecoveredBytes {
            first_boot: true,
            ..RecoveredBytes::default()
        };
        place
            .node
            .start(recovered, &place.world, &mut place.out)
            .expect("starts");
        place
    }

    fn input(&mut self, input: Input) {
        self.node
            .on_input(input, &self.world, &mut self.out)
            .expect("no bad frames here");
    }

    /// A frame of a peer arrives.
    fn hear(&mut self, from: u16, frame: Bytes) {
        self.input(Input::Frame {
            from: Peer::Replica(ReplicaId(from)),
            arrived: Time(0),
            frame,
        });
    }

    fn pull(&mut self, string: &str, number: u64) {
        let control = Control::Option {
            name: string.to_owned(),
            value: number.to_string(),
        };
        self.input(Input::Control(control));
    }

    /// Takes the outputs: bytes of snapshots are kept, frames are given back. True when a
    /// snapshot waits to be saved.
    fn take(&mut self) -> (Vec<Bytes>, bool) {
        let (mut frames, mut whole) = (Vec::new(), false);
        for output in self.out.drain(..) {
            match output {
                Output::Send {
                    to: Recipients::Frontend(_),
                    ..
                } => self.answers += 1,
                Output::Halt(_, reason) => self.halts.push(reason),
                Output::Send { frame, .. } => {
                    let frame = frame.into_bytes();
                    // Told of each other's end, both would leave the epoch.
                    if frame[0] != EPOCH_FRAME {
                        frames.push(frame);
                    }
                }
                Output::SnapshotBegin {
                    id, fetched, kept, ..
                } => {
                    let left = self.world.left.take();
                    let kept =
                        left.map_or_else(Bytes::new, |(_, bytes)| bytes.slice(..kept as usize));
                    self.writing = Some((id, kept.to_vec()));
                    *self.world.coming.borrow_mut() = fetched.then_some((id, kept));
                }
                Output::SnapshotTruncate(length) => {
                    let (_, written) = self.writing.as_mut().expect("begun");
                    written.truncate(length as usize);
                }
                Output::SnapshotAppend(bytes) => {
                    let (_, written) = self.writing.as_mut().expect("begun");
                    written.extend_from_slice(&bytes);
                }
                Output::SnapshotFinish => whole = true,
                Output::SnapshotAbandon => self.writing = None,
                Output::SetTimer { key: FETCH, .. } => self.timer = true,
                Output::CancelTimer { key: FETCH } => self.timer = false,
                _ => {}
            }
        }
        if let (Some((_, coming)), Some((_, written))) =
            (self.world.coming.get_mut(), &self.writing)
            && coming.len() != written.len()
        {
            *coming = Bytes::copy_from_slice(written);
        }
        (frames, whole)
    }

    /// The bytes that it appended to the snapshot in progress have been written.
    fn written(&mut self) {
        self.take();
        let written = self.writing.as_ref();
        let written = written.map_or(0, |(_, bytes)| bytes.len() as u64);
        self.input(Input::SnapshotWritten(written));
    }

    /// Only the end of a snapshot is missing.
    fn whole_but_for_its_end(&self) -> bool {
        let Some((_, bytes)) = &self.writing else {
            return false;
        };
        let mut reader = SnapshotReader::default();
        reader.feed(bytes);
        reader.feed(&framed(&[]));
        while let Ok(Some(_)) = reader.next_chunk() {}
        reader.is_whole()
    }

    fn save(&mut self) {
        let (id, bytes) = self.writing.take().expect("a snapshot is whole");
        let info = SnapshotInfo {
            id,
            length: bytes.len() as u64,
        };
        *self.world.saved.borrow_mut() = Some((info, bytes.into()));
        *self.world.coming.borrow_mut() = None;
        self.input(Input::SnapshotSaved(info));
    }

    /// Writes the snapshot that was begun, piece by piece.
    fn finish_snapshot(&mut self) {
        while !self.take().1 {
            let written = self.writing.as_ref();
            let written = written.map_or(0, |(_, bytes)| bytes.len() as u64);
            self.input(Input::SnapshotWritten(written));
            self.node.on_idle(&self.world, &mut self.out);
        }
        self.save();
    }

    /// Lets it work as long as it has something to do by itself; gives how many turns that took.
    fn settle(&mut self) -> usize {
        let mut turns = 1;
        while self.node.on_idle(&self.world, &mut self.out) == Wake::Spin {
            turns += 1;
        }
        turns
    }

    fn fire_fetch_timer(&mut self) {
        self.take();
        assert!(self.timer, "a fetch that waits has its timer set");
        self.timer = false;
        self.world.now.set(self.world.now.get() + 1_000_000_000);
        self.input(Input::Timer(FETCH));
    }
}

/// Carries frames between the two until none is left; true when the fetcher has a whole snapshot
/// to save.
fn exchange(fetcher: &mut Place, donor: &mut Place) -> bool {
    let mut saving = false;
    loop {
        let (whole, answered) = one_round(fetcher, donor);
        saving |= whole;
        if !answered {
            return saving;
        }
    }
}

/// The fetcher's present requests, and the answers: whether it had a whole snapshot to save before,
/// and whether there were any.
fn one_round(fetcher: &mut Place, donor: &mut Place) -> (bool, bool) {
    let (asks, whole) = fetcher.take();
    for frame in asks {
        donor.hear(0, frame);
    }
    let (answers, taken) = donor.take();
    if taken {
        donor.save();
    }
    let answered = !answers.is_empty();
    for frame in answers {
        fetcher.hear(1, frame);
    }
    (whole, answered)
}

/// One question, and its answer.
fn exchange_once(fetcher: &mut Place, donor: &mut Place) -> bool {
    one_round(fetcher, donor);
    // The next request is not delivered.
    fetcher.take().1
}

/// The donor's answer to what the fetcher asks now, not delivered.
fn answer(fetcher: &mut Place, donor: &mut Place) -> Bytes {
    for frame in fetcher.take().0 {
        donor.hear(0, frame);
    }
    donor.take().0.pop().expect("a piece")
}

fn donor(slots: u64) -> Place {
    let mut donor = Place::new(1);
    for slot in 1..=slots {
        donor.pull("execute", slot);
    }
    donor
}

/// Asks until the donor, which takes its snapshot only when asked, has given it whole.
fn fetch(fetcher: &mut Place, donor: &mut Place, at_least: u64) {
    fetcher.pull("fetch", at_least);
    while !exchange(fetcher, donor) {
        fetcher.fire_fetch_timer();
    }
}

#[test]
fn fetched_state_is_installed() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    fetch(&mut fetcher, &mut donor, 5);
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(5));
    assert_eq!(fetcher.node.machine().entries(), 5);
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn busy_donor_gives_what_follows_with_the_first_state() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    // A command in 5 ms.
    donor.pull("command", 6);
    donor.world.now.set(5_000_000);
    donor.input(Input::Timer(PACE));
    donor.take();
    fetcher.pull("fetch", 6);
    // The donor takes a snapshot first.
    exchange_once(&mut fetcher, &mut donor);
    for slot in 7..=9 {
        donor.pull("execute", slot);
    }
    fetcher.fire_fetch_timer();
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(9));
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

/// A fetcher whose second state is wanted, and its donor, which continues while it is fetched.
fn fetched_again(rest: u64) -> (Place, Place) {
    fetched_again_by(Place::new(0), rest)
}

fn fetched_again_by(fetcher: Place, rest: u64) -> (Place, Place) {
    fetched_again_with(fetcher, rest, 1 << 20)
}

fn fetched_again_with(mut fetcher: Place, rest: u64, summary: u64) -> (Place, Place) {
    let mut donor = donor(5);
    fetch(&mut fetcher, &mut donor, 5);
    fetcher.save();
    fetcher.settle();
    for slot in 6..=8 {
        donor.pull("execute", slot);
    }
    donor.pull("summary", summary);
    fetcher.pull("fetch", 7);
    // The donor takes a new snapshot first.
    exchange_once(&mut fetcher, &mut donor);
    fetcher.fire_fetch_timer();
    exchange_once(&mut fetcher, &mut donor);
    for slot in 9..=rest {
        donor.pull("execute", slot);
    }
    (fetcher, donor)
}

#[test]
fn second_state_brings_what_was_executed_meanwhile() {
    let (mut fetcher, mut donor) = fetched_again(12);
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(12));
    assert_eq!(fetcher.node.protocol_digest(), 12, "and it is told so");
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
    assert_eq!(fetcher.node.log_time(), donor.node.log_time());
    // It is the newest snapshot of a replica that starts again.
    let mut again = Place::node(0, Durability::Memory, &Entry::of::<Puppet<false>>(), "");
    again
        .start(RecoveredBytes::default(), &fetcher.world, &mut Vec::new())
        .expect("starts");
    assert_eq!(again.executed().slot, Slot(12));
    assert_eq!(again.state_digest(), donor.node.state_digest());
}

#[test]
fn donor_gives_an_older_state_when_its_newest_is_not_final() {
    let mut donor_ahead = Place::ahead(0);
    fetch(&mut donor_ahead, &mut donor(7), 7);
    donor_ahead.save();
    donor_ahead.settle();
    donor_ahead.pull("execute", 8);
    let mut fetcher = Place::new(0);
    fetch(&mut fetcher, &mut donor(5), 5);
    fetcher.save();
    fetcher.settle();
    // It would like to have what is executed meanwhile, too.
    fetcher.pull("fetch", 7);
    let whole = (0..3).any(|_| {
        let whole = exchange(&mut fetcher, &mut donor_ahead);
        fetcher.fire_fetch_timer();
        whole
    });
    assert!(whole, "it waits for what is not final");
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(7));
}

#[test]
fn feed_is_taken_when_it_exceeds_what_donors_keep() {
    let entry = Entry::of::<Puppet<false>>();
    let fetcher = Place::of(0, Durability::Memory, &entry, "small feed");
    let (mut fetcher, mut donor) = fetched_again_by(fetcher, 60);
    donor.pull("mute", 1);
    fetcher.fire_fetch_timer();
    assert!(!exchange(&mut fetcher, &mut donor), "it continues asking");
    donor.pull("mute", 0);
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(60));
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn state_stands_alone_when_its_donor_falls_silent_behind_it() {
    let (mut fetcher, mut donor) = fetched_again(9);
    // It answers for the snapshot and not for what follows.
    while !exchange_once(&mut fetcher, &mut donor) {
        if fetcher.whole_but_for_its_end() {
            break;
        }
        fetcher.fire_fetch_timer();
    }
    let questions = silent_until_given_up(&mut fetcher);
    assert!(questions < 5, "it has given little: {questions} questions");
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(8));
    assert_eq!(fetcher.node.protocol_digest(), 8);
}

/// Lets the donor be silent until the fetcher has a whole snapshot to save. How many questions that
/// takes.
fn silent_until_given_up(fetcher: &mut Place) -> u32 {
    for questions in 1..100 {
        fetcher
            .world
            .now
            .set(fetcher.world.now.get() + 1_000_000_000);
        fetcher.input(Input::Timer(FETCH));
        if fetcher.take().1 {
            return questions;
        }
    }
    panic!("it asks a silent donor on and on");
}

/// Gives the fetcher all of the donor's snapshot but its end, and lets it restore that.
fn following(rest: u64) -> (Place, Place) {
    let (mut fetcher, mut donor) = fetched_again(rest);
    while !fetcher.whole_but_for_its_end() {
        exchange_once(&mut fetcher, &mut donor);
        fetcher.fire_fetch_timer();
    }
    fetcher.written();
    fetcher.settle();
    (fetcher, donor)
}

#[test]
fn feed_is_executed_while_snapshot_is_in_progress() {
    let (mut fetcher, mut donor) = following(9);
    assert_eq!(
        fetcher.node.machine().entries(),
        8,
        "it is restored already"
    );
    assert_eq!(
        fetcher.node.executed().slot,
        Slot(5),
        "and no client is told"
    );
    fetcher.fire_fetch_timer();
    assert!(exchange(&mut fetcher, &mut donor), "its end comes, too");
    fetcher.written();
    fetcher.settle();
    assert_eq!(fetcher.node.machine().entries(), 9);
    assert_eq!(fetcher.node.executed().slot, Slot(5), "it is not durable");
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(9));
    assert_eq!(fetcher.node.protocol_digest(), 9);
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
    assert_eq!(fetcher.node.status(&fetcher.world).transfer, None);
}

/// A donor that gives batches without an end, and nothing more then.
fn broken_off() -> Place {
    let mut fetcher = breaking_off();
    fetcher.settle();
    assert_eq!(fetcher.node.machine().entries(), 9, "that much has come");
    fetcher
}

/// The same, when the last batches have been written and not executed.
fn breaking_off() -> Place {
    let (mut fetcher, mut donor) = following(9);
    // As a donor does whose state is not final where its protocol sums it up.
    donor.pull("mute", 1);
    for _ in 0..3 {
        exchange_once(&mut fetcher, &mut donor);
        fetcher.fire_fetch_timer();
    }
    fetcher.written();
    fetcher
}

#[test]
fn feed_that_breaks_off_leaves_the_state_alone() {
    let mut fetcher = broken_off();
    silent_until_given_up(&mut fetcher);
    fetcher.written();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(5));
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(8));
    assert_eq!(fetcher.node.protocol_digest(), 8);
    assert_eq!(
        fetcher.node.machine().entries(),
        8,
        "what was fed is undone"
    );
}

/// A donor's answer to a peer that asks, out of turn, for the batches behind a slot and for an end.
fn follow(donor: &mut Place, after: u64) -> Bytes {
    let answer = ask_to_follow(donor, after).pop().expect("it answers");
    answer.slice(16..)
}

fn ask_to_follow(donor: &mut Place, after: u64) -> Vec<Bytes> {
    let mut asker = Place::new(0);
    asker.pull("fetch", 1);
    let (asks, _) = asker.take();
    // The envelope of a question, and the question for batches in its place.
    let mut frame = asks[0].slice(..16).to_vec();
    frame.extend_from_slice(&[4, 1]);
    frame.extend_from_slice(&after.to_le_bytes());
    donor.hear(0, frame.into());
    let (answers, begun) = donor.take();
    assert!(!begun, "no snapshot is taken for that");
    answers
}

/// The first byte of an answer with batches, and of one without.
const BATCHES: u8 = 5;
const GONE: u8 = 6;

#[test]
fn batches_are_given_without_a_gap_or_not_at_all() {
    let mut donor = Place::of(
        1,
        Durability::Memory,
        &Entry::of::<Puppet<false>>(),
        "small feed",
    );
    // From here on it keeps what it executes.
    assert_eq!(follow(&mut donor, 0)[0], BATCHES);
    for slot in 1..=3 {
        donor.pull("execute", slot);
    }
    // Before it has summed up its state it keeps the first ones no more.
    donor.pull("late", 30);
    let answer = follow(&mut donor, 0);
    let upto = u64::from_le_bytes(*answer[10..].first_chunk().expect("a slot"));
    assert_eq!((answer[0], upto), (BATCHES, 3), "what was there before");
    assert_eq!(follow(&mut donor, 3)[0], GONE);
}

#[test]
fn requested_batches_are_sent_once_when_there_is_room() {
    let mut donor = Place::new(1);
    assert_eq!(follow(&mut donor, 0)[0], BATCHES);
    donor.pull("execute", 1);
    donor.world.queued.set(usize::MAX - 4);
    assert!(ask_to_follow(&mut donor, 0).is_empty());
    donor.world.queued.set(0);
    assert_eq!(follow(&mut donor, 0)[0], BATCHES);
}

#[test]
fn summary_becomes_no_snapshot_when_it_has_to_wait() {
    let mut donor = Place::of(1, Durability::Memory, &Entry::of::<Puppet<false>>(), "slow");
    assert_eq!(follow(&mut donor, 0)[0], BATCHES);
    donor.pull("execute", 1);
    // The turn's time is used up, so that a checkpoint would have to wait for the next.
    assert_eq!(follow(&mut donor, 0)[0], BATCHES);
    donor.settle();
    donor.take();
    assert_eq!(donor.writing, None, "no peer asked for a snapshot");
}

/// A donor of a state in many pieces, of which the fetcher has the first.
fn of_many_pieces(limit: &str) -> (Place, Place) {
    let entry = Entry::of::<Puppet<false>>();
    let mut fetcher = Place::of(0, Durability::Memory, &entry, limit);
    let mut donor = donor(5);
    donor.pull("summary", 3 << 20);
    fetcher.pull("fetch", 5);
    exchange_once(&mut fetcher, &mut donor);
    fetcher.fire_fetch_timer();
    (fetcher, donor)
}

#[test]
fn pieces_are_asked_for_at_once_and_taken_in_any_order() {
    let (mut fetcher, mut donor) = of_many_pieces("");
    let (mut rounds, mut most, mut whole) = (0, 0, false);
    while !whole {
        let (asks, done) = fetcher.take();
        whole = done;
        most = most.max(asks.len());
        for frame in asks {
            donor.hear(0, frame);
        }
        for frame in donor.take().0.into_iter().rev() {
            fetcher.hear(1, frame);
        }
        rounds += 1;
        assert!(rounds < 8, "13 pieces, four and more at a time");
    }
    assert!(most > 4, "the window grows: {most}");
    let status = fetcher.node.status(&fetcher.world);
    let transfer = status.transfer.expect("it is being saved");
    assert_eq!(transfer.phase, TransferPhase::Saving);
    assert_eq!(status.state_bytes_received, transfer.total);
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
    assert_eq!(fetcher.node.status(&fetcher.world).transfer, None);
}

#[test]
fn state_comes_no_faster_than_the_limit() {
    let (mut fetcher, mut donor) = of_many_pieces("rate");
    let mut tenths = 0;
    while !exchange(&mut fetcher, &mut donor) {
        let status = fetcher.node.status(&fetcher.world);
        assert!(status.state_bytes_received <= (tenths / 10 + 2) << 20);
        fetcher.world.now.set(fetcher.world.now.get() + 100_000_000);
        fetcher.input(Input::Timer(FETCH));
        tenths += 1;
        assert!(tenths < 100, "the limit is no wall");
    }
    let seconds = tenths / 10;
    assert!(
        (2..=4).contains(&seconds),
        "3 MiB at 1 MiB a second: {seconds}"
    );
}

#[test]
fn older_state_in_flight_does_not_end_fetch_of_newer_one() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    fetch(&mut fetcher, &mut donor, 5);
    fetcher.pull("fetch", 8);
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(5));
    for slot in 6..=8 {
        donor.pull("execute", slot);
    }
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(8));
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn unservable_fetch_accepts_less_when_allowed() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    fetcher.pull("fetch", 8);
    assert!(!exchange(&mut fetcher, &mut donor), "no peer has so much");
    fetcher.pull("fetch", 4);
    for _ in 0..10 {
        fetcher.fire_fetch_timer();
        if exchange(&mut fetcher, &mut donor) {
            fetcher.save();
            assert_eq!(fetcher.node.executed().slot, Slot(5));
            return;
        }
    }
    panic!("it continues asking for what it no longer needs");
}

/// Scenario 21, `old_snapshot_truncates_live_log`: how far a replica has come whose log overtook
/// the state that it fetched while that was being saved.
fn overtaken(bug: &str) -> Slot {
    let entry = Entry::of::<Puppet<false>>();
    let mut fetcher = Place::of(0, Durability::Memory, &entry, bug);
    fetch(&mut fetcher, &mut donor(5), 5);
    for slot in 1..=7 {
        fetcher.pull("execute", slot);
    }
    fetcher.save();
    fetcher.node.executed().slot
}

#[test]
fn state_that_the_log_has_overtaken_is_dropped() {
    assert_eq!(overtaken(""), Slot(7));
}

#[cfg(feature = "bugs")]
#[test]
fn injected_bug_goes_back_to_an_overtaken_state() {
    assert_eq!(overtaken("old_snapshot_truncates_live_log"), Slot(5));
}

#[test]
fn speculative_execution_ends_no_fetch() {
    let (mut fetcher, mut donor) = (Place::ahead(0), donor(5));
    for slot in 1..=7 {
        fetcher.pull("execute", slot);
    }
    fetch(&mut fetcher, &mut donor, 5);
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(5));
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn snapshot_with_long_beginning_still_holds_state_of_its_slot() {
    let mut place = donor(5);
    place.pull("summary", 5 << 20);
    place.node.ask_for_checkpoint(&place.world, &mut place.out);
    place.pull("execute", 6);
    place.finish_snapshot();
    let mut restored = Place::new(1);
    restored.world = std::mem::take(&mut place.world);
    let mut node = Place::node(1, Durability::Memory, &Entry::of::<Puppet<false>>(), "");
    let recovered = RecoveredBytes::default();
    node.start(recovered, &restored.world, &mut restored.out)
        .expect("starts");
    assert_eq!(node.executed().slot, Slot(5));
    assert_eq!(node.machine().entries(), 5);
}

#[test]
fn two_snapshots_quickly() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    donor.pull("summary", 1 << 20);
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    donor.finish_snapshot();
    fetcher.pull("fetch", 5);
    assert!(
        !exchange_once(&mut fetcher, &mut donor),
        "one piece of many"
    );
    assert!(fetcher.writing.is_some(), "and the first is being written");
    // The donor's next snapshot replaces the one that is on its way.
    donor.pull("execute", 6);
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    donor.finish_snapshot();
    fetcher.fire_fetch_timer();
    while !exchange(&mut fetcher, &mut donor) {
        fetcher.fire_fetch_timer();
    }
    let (id, _) = fetcher.writing.as_ref().expect("whole");
    assert_eq!(id.slot, Slot(6));
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(6));
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn snapshot_being_given_is_not_dropped_for_newer_ones() {
    let (mut fetcher, mut donor) = (Place::new(0), donor(5));
    donor.pull("summary", 8 << 20);
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    donor.finish_snapshot();
    let (info, bytes) = donor.world.saved.borrow().clone().expect("it was saved");
    fetcher.pull("fetch", 5);
    exchange_once(&mut fetcher, &mut donor);
    for slot in 6..6 + SNAPSHOTS_OPEN_MAX as u64 {
        donor.pull("execute", slot);
        donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
        donor.finish_snapshot();
        // The one that was replaced can be read still.
        *donor.world.coming.borrow_mut() = Some((info.id, bytes.clone()));
        let mut other = Place::new(0);
        other.pull("fetch", slot);
        exchange_once(&mut other, &mut donor);
        assert!(other.writing.is_some(), "slot {slot} is given");
        let before = fetcher.node.status(&fetcher.world).state_bytes_received;
        fetcher.fire_fetch_timer();
        exchange_once(&mut fetcher, &mut donor);
        let after = fetcher.node.status(&fetcher.world).state_bytes_received;
        assert!(after > before, "slot 5 is given beside {slot}");
    }
    assert_eq!(fetcher.writing.as_ref().expect("a part").0, info.id);
}

/// A fetcher that has begun to restore slot 5 of a state that takes many turns.
fn restoring() -> (Place, Place) {
    restoring_by(Place::new(0))
}

fn restoring_by(mut fetcher: Place) -> (Place, Place) {
    let mut donor = donor(5);
    donor.pull("summary", 5 << 20);
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    donor.finish_snapshot();
    fetch(&mut fetcher, &mut donor, 5);
    fetcher.save();
    assert_eq!(fetcher.node.executed().slot, Slot(0), "not in one go");
    assert!(fetcher.node.is_fetching());
    (fetcher, donor)
}

#[test]
fn large_state_is_restored_in_turns_while_inputs_wait() {
    let (mut fetcher, donor) = restoring();
    for slot in 1..=3 {
        fetcher.pull("execute", slot);
        fetcher.node.on_idle(&fetcher.world, &mut fetcher.out);
    }
    assert_eq!(fetcher.node.executed().slot, Slot(0));
    assert!(fetcher.settle() > 3);
    // It covers what came meanwhile, and the protocol is told of it.
    assert_eq!(fetcher.node.executed().slot, Slot(5));
    assert_eq!(fetcher.node.protocol_digest(), 5);
    assert_eq!(
        fetcher.node.machine().entries(),
        donor.node.machine().entries()
    );
    assert!(!fetcher.node.is_fetching());
    fetcher.pull("execute", 6);
    assert_eq!(fetcher.node.machine().entries(), 6);
}

#[test]
fn log_that_advances_during_restore_continues_from_state() {
    let (mut fetcher, mut donor) = restoring();
    for slot in 1..=7 {
        fetcher.pull("execute", slot);
    }
    fetcher.input(Input::Control(Control::CheckpointDue));
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(7));
    assert_eq!(
        fetcher.node.protocol_digest(),
        7,
        "it has left slot 5 behind"
    );
    for slot in 6..=7 {
        donor.pull("execute", slot);
    }
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
    assert!(fetcher.take().1, "and its checkpoint is taken");
}

#[test]
fn newer_state_that_comes_while_one_is_restored_takes_its_place() {
    let (mut fetcher, mut donor) = restoring();
    donor.pull("execute", 6);
    donor.node.ask_for_checkpoint(&donor.world, &mut donor.out);
    donor.finish_snapshot();
    fetch(&mut fetcher, &mut donor, 6);
    fetcher.save();
    fetcher.settle();
    assert_eq!(fetcher.node.executed().slot, Slot(6));
    assert_eq!(fetcher.node.state_digest(), donor.node.state_digest());
}

#[test]
fn snapshot_is_finished_when_the_log_that_led_to_it_is_durable() {
    let mut place = Place::with(0, Durability::Disk);
    place.pull("write", 1);
    place.pull("execute", 1);
    let written = |output: &Output| match output {
        Output::Journal { id, .. } => Some(*id),
        _ => None,
    };
    let id = place.out.iter().find_map(written).expect("a write");
    place.input(Input::Control(Control::CheckpointDue));
    for _ in 0..10 {
        place.node.on_idle(&place.world, &mut place.out);
    }
    assert!(!place.take().1, "the write before it is in flight");
    place.pull("write", 2);
    place.input(Input::Persisted(id));
    assert!(place.take().1, "what is written later does not matter");
}
