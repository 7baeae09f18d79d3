//! One replica as the search sees it: a number per state it can be in, and what each thing that
//! can happen to it leads to.
//!
//! ```text
//!   seat 17 ──(frame 4 from r0)──► step: seat 23, frames sent, operations ended, executed
//!      │                             ▲ worked out once, by running a Node from its boot along
//!      └── chain of moves to its boot ┘ the chain of moves; then looked up
//! ```
//!
//! Replicas touch one another by frames only, so a step depends on nothing but the seat. Worlds
//! are small tuples of seats then, and millions of them cost no more than looking up.

use crate::{
    checkers::{
        Violation,
        monotone::Monotone,
        speculated::{Run, Speculated},
    },
    explore::{Bounds, EPOCH_CLOCK, Tables},
    machine::{self, Executed as Recorded, Operation, Record, Recorder, Registers, Reply, mix},
    panics,
};
use quintet_replica::{
    BatchBuilder, BatchId, Boot, Bytes, ClockReading, ClusterId, CommandId, Durability, Entry,
    Epoch, EpochNumber, Executed, ExecutorLimits, FrontendId, GroupId, Incarnation, Input, Lane,
    Level, Link, Node, NodeSetup, Outcome, Output, Peer, PersistId, Recipients, RecoveredBytes,
    ReplicaId, RequestKind, RequestStatus, Results, SessionId, Slot, SnapshotInfo, Submission,
    Time, TimerKey, TimerOwner, Wake, World as Outside, Write, put_frame,
};
use std::{
    collections::{BTreeSet, HashMap},
    hash::Hasher,
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Frontends embedded in replicas are numbered from here: by run and replica.
const EMBEDDED: u64 = 1 << 30;
/// A replica that wants to be called again at once is, so often.
const SPINS_MAX: usize = 16;

/// Of so many ways to a state besides the first it is looked whether they have one future.
const OTHER_WAYS_MAX: usize = 3;

/// What can happen to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Move {
    Frame {
        from: u16,
        message: u32,
    },
    /// The oldest write that is not durable becomes durable, with those of the same step.
    Persisted,
    Timer(TimerKey),
    /// The command is submitted here.
    Submit(u8),
    /// It dies; of the steps whose writes are not durable so many reached the disk all the same.
    Crash {
        kept: u8,
    },
    /// It starts, or starts again, and is linked to these.
    Boot {
        up: u16,
    },
    LinkUp(u16),
    LinkReset(u16),
    LinkDown(u16),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    Done(Reply),
    /// Certainly not executed.
    Failed,
    Uncertain,
}

/// A batch that was executed, in the order of positions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Item {
    /// Over position, time, the commands and the state before them.
    pub hash: u64,
    /// The commands' numbers.
    pub commands: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DiskImage {
    promise: Option<Bytes>,
    records: Vec<(Slot, Bytes)>,
}

impl DiskImage {
    /// Whether a record holds these bytes.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        (self.records.iter())
            .any(|(_, record)| record.windows(bytes.len()).any(|window| window == bytes))
    }
}

/// A state that a replica can be in.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub id: u16,
    pub alive: bool,
    pub boot: u32,
    parent: Option<(u32, Move)>,
    pub disk: Arc<DiskImage>,
    /// Not durable yet, with the step that wrote them.
    pending: Vec<(u32, PersistId, Write)>,
    pub timers: BTreeSet<TimerKey>,
    firings: u32,
    steps: u32,
    /// What it executed in this run, as far as that is final.
    pub executed: Arc<Vec<Item>>,
    /// What it executed and may still undo.
    speculated: Speculated,
    monotone: Monotone,
    promises: Vec<(PersistId, u64)>,
}

impl Seat {
    /// How many steps have writes that are not durable.
    pub fn pending_groups(&self) -> u8 {
        let groups: BTreeSet<u32> = self.pending.iter().map(|(step, ..)| *step).collect();
        groups.len() as u8
    }
}

/// A frame that a step sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub to: u16,
    /// Meant for the frontend of this run only.
    pub boot: Option<u32>,
    pub lane: u8,
    pub message: u32,
}

/// What a move leads to.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub next: u32,
    pub sends: Vec<Sent>,
    pub ends: Vec<(u8, End)>,
    pub executed: Vec<Item>,
    pub violation: Option<Violation>,
}

#[cfg(test)]
impl Step {
    fn same(&self, other: &Self) -> bool {
        self.next == other.next
            && self.sends == other.sends
            && self.ends == other.ends
            && self.executed == other.executed
            && self.violation == other.violation
    }
}

/// A command that is submitted once in a world.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub at: u16,
    pub operation: Operation,
    pub level: Level,
}

/// All seats, frames and steps known so far.
pub(super) struct Cast {
    pub entry: Entry,
    pub bounds: Bounds,
    pub options: Vec<(String, String)>,
    pub commands: Vec<Command>,
    pub seats: Vec<Seat>,
    index: HashMap<u128, u32>,
    pub messages: Vec<Bytes>,
    message_index: HashMap<Bytes, u32>,
    steps: HashMap<(u32, Move), Arc<Step>>,
    pub branches: std::collections::BTreeMap<&'static str, u64>,
    pub tables: Tables,
    /// Whether states are told apart by what they are, not by what led to them.
    pub by_state: bool,
    /// Other ways to each seat than the first, where they are wanted; not all of them.
    other_ways: Option<HashMap<u32, Vec<(u32, Move)>>>,
}

struct View {
    now: u64,
}

impl Outside for View {
    fn now(&self) -> Time {
        Time(self.now)
    }
    fn clock(&self) -> ClockReading {
        // Sessions would expire by the leaps of the other clock.
        ClockReading {
            earliest: EPOCH_CLOCK,
            now: EPOCH_CLOCK,
            latest: EPOCH_CLOCK,
            deviation: 1,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        1 << 30
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

/// 128 bits of hash from two differently begun chains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide(u64, u64);

impl Wide {
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15, seed ^ 0xc2b2_ae3d_27d4_eb4f)
    }

    pub fn word(&mut self, word: u64) {
        self.0 = mix(self.0, word);
        self.1 = mix(self.1.rotate_left(17), word ^ 0x5555_5555_5555_5555);
    }

    pub const fn value(self) -> u128 {
        (self.0 as u128) << 64 | self.1 as u128
    }
}

impl Hasher for Wide {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
        self.word(bytes.len() as u64);
    }
    fn write_u64(&mut self, word: u64) {
        self.word(word);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

fn hash_of(value: &impl std::hash::Hash) -> u128 {
    let mut wide = Wide::new(1);
    value.hash(&mut wide);
    wide.value()
}

/// A node that runs.
struct Live {
    node: Node,
    record: Record,
    view: View,
}

impl Cast {
    pub fn new(
        entry: Entry,
        bounds: Bounds,
        options: Vec<(String, String)>,
        commands: Vec<Command>,
    ) -> Self {
        Self {
            entry,
            bounds,
            options,
            commands,
            seats: Vec::new(),
            index: HashMap::new(),
            messages: Vec::new(),
            message_index: HashMap::new(),
            steps: HashMap::new(),
            branches: std::collections::BTreeMap::new(),
            tables: Tables::default(),
            by_state: false,
            other_ways: None,
        }
    }

    /// From now on it is remembered how states were reached besides the first way.
    #[cfg(test)]
    pub fn remember_ways(&mut self) {
        self.other_ways = Some(HashMap::new());
    }

    /// Works every step from a state that was reached in several ways out along the others, too:
    /// they must agree, else the hash of the state leaves out something that matters. Gives how
    /// many steps were compared, and the first that differs.
    #[cfg(test)]
    pub fn compare_ways(&mut self) -> (u64, Option<String>) {
        let ways = self.other_ways.take().unwrap_or_default();
        let mut compared = 0;
        let mut steps: Vec<_> = (self.steps.iter())
            .map(|((seat, happens), step)| (*seat, *happens, step.clone()))
            .filter(|(_, happens, _)| !matches!(happens, Move::Crash { .. } | Move::Boot { .. }))
            .collect();
        steps.sort_by_key(|(seat, happens, _)| (*seat, hash_of(happens)));
        for (seat, happens, step) in steps {
            for way in ways.get(&seat).into_iter().flatten() {
                let other = self.work_out(seat, happens, Some(*way));
                compared += 1;
                if !step.same(&other) {
                    let first = self.seats[seat as usize].parent;
                    let what = format!(
                        "state {seat} reached by {first:?} and by {way:?}, then {happens:?}: \
                         {step:?} and {other:?}"
                    );
                    return (compared, Some(what));
                }
            }
        }
        (compared, None)
    }

    /// A replica that was never started.
    pub fn unborn(&mut self, id: u16) -> u32 {
        self.seats.push(Seat {
            id,
            alive: false,
            boot: 0,
            parent: None,
            disk: Arc::default(),
            pending: Vec::new(),
            timers: BTreeSet::new(),
            firings: 0,
            steps: 0,
            executed: Arc::default(),
            speculated: Speculated::default(),
            monotone: Monotone::default(),
            promises: Vec::new(),
        });
        (self.seats.len() - 1) as u32
    }

    pub fn message(&mut self, frame: Bytes) -> u32 {
        if let Some(known) = self.message_index.get(&frame) {
            return *known;
        }
        let number = self.messages.len() as u32;
        self.messages.push(frame.clone());
        self.message_index.insert(frame, number);
        number
    }

    /// The bytes by which the command is known in batches and records.
    pub fn payload(&self, command: u8) -> [u8; machine::COMMAND_BYTES] {
        let operation = self.commands[usize::from(command)].operation;
        machine::encode_command(command.into(), KEY, operation)
    }

    /// What a move leads to.
    pub fn step(&mut self, seat: u32, happens: Move) -> Arc<Step> {
        if let Some(known) = self.steps.get(&(seat, happens)) {
            return known.clone();
        }
        let step = Arc::new(self.work_out(seat, happens, self.seats[seat as usize].parent));
        self.steps.insert((seat, happens), step.clone());
        step
    }

    fn node_with(&self, id: u16, boot: u32, record: Record) -> Option<Node> {
        let setup = NodeSetup {
            id: ReplicaId(id),
            incarnation: Incarnation(1),
            boot: Boot(boot.into()),
            group: GroupId(0),
            epoch: Epoch {
                cluster: ClusterId(1),
                number: EpochNumber(1),
                members: self.bounds.replicas,
                options: self.options.clone(),
                secret: [7; 32],
                leader_first: ReplicaId(0),
            },
            durability: Durability::Disk,
            seed: u64::from(id) << 32 | u64::from(boot),
            frontend: frontend(id, boot),
            snapshot_bytes_min: 1 << 40,
            limits: ExecutorLimits {
                disk_hung_after: Duration::ZERO,
                pace_beat: Duration::ZERO,
                ..ExecutorLimits::default()
            },
        };
        let machine = Box::new(Recorder::new(
            Box::new(Registers::new(3, 0, 1 << 20)),
            record,
        ));
        Node::new(setup, &self.entry, machine).ok()
    }

    /// A timer that fires moves its replica's clock on by so much.
    const fn leap(&self) -> u64 {
        self.bounds.leap_ms * 1_000_000
    }

    /// A node in the state that the last move led to, by everything that happened since its boot.
    fn revive(&self, last: Option<(u32, Move)>) -> Option<Live> {
        let mut chain = Vec::new();
        let mut next = last;
        while let Some((parent, happened)) = next {
            chain.push((parent, happened));
            if matches!(happened, Move::Boot { .. }) {
                break;
            }
            next = self.seats[parent as usize].parent;
        }
        let mut live: Option<Live> = None;
        let mut outputs = Vec::new();
        for (from, happened) in chain.into_iter().rev() {
            outputs.clear();
            self.happen(&mut live, from, happened, &mut outputs).ok()?;
        }
        if let Some(live) = &live {
            take(&live.record);
        }
        live
    }

    /// Lets a move happen to a running node.
    fn happen(
        &self,
        live: &mut Option<Live>,
        seat: u32,
        happens: Move,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Violation> {
        let before = &self.seats[seat as usize];
        if let Move::Boot { up } = happens {
            let record = Record::default();
            let boot = before.boot + 1;
            let node = self.node_with(before.id, boot, record.clone());
            let node = node.ok_or_else(|| Violation::new("options", "cannot be made"))?;
            let mut started = Live {
                node,
                record,
                view: View {
                    now: u64::from(before.firings) * self.leap(),
                },
            };
            let recovered = RecoveredBytes {
                first_boot: before.boot == 0,
                forgot: false,
                promise: before.disk.promise.clone(),
                checkpoint: None,
                records: before.disk.records.clone(),
            };
            (started.node.start(recovered, &started.view, outputs))
                .map_err(|error| Violation::new("recovery", error.to_string()))?;
            settle(&mut started, outputs);
            for peer in (0..self.bounds.replicas as u16).filter(|peer| up & (1 << peer) != 0) {
                let incarnation = Incarnation(1);
                let link = Input::Link(Peer::Replica(ReplicaId(peer)), Link::Up { incarnation });
                // Only frames can be refused.
                let _ = started.node.on_input(link, &started.view, outputs);
                settle(&mut started, outputs);
            }
            *live = Some(started);
            return Ok(());
        }
        let Some(running) = live else {
            return Err(Violation::new(
                "rig",
                "a node that is down was to do something",
            ));
        };
        let input = match happens {
            Move::Frame { from, message } => Input::Frame {
                from: Peer::Replica(ReplicaId(from)),
                arrived: Time(running.view.now),
                frame: self.messages[message as usize].clone(),
            },
            Move::Persisted => {
                let group = before.pending.first().map(|(step, ..)| *step);
                let last = (before.pending.iter())
                    .take_while(|(step, ..)| Some(*step) == group)
                    .last();
                let Some((_, upto, _)) = last else {
                    return Err(Violation::new("rig", "nothing to become durable"));
                };
                Input::Persisted(*upto)
            }
            Move::Timer(key) => {
                running.view.now = u64::from(before.firings + 1) * self.leap();
                Input::Timer(key)
            }
            Move::Submit(command) => Input::Submit(self.submission(command, before)),
            Move::LinkUp(peer) => Input::Link(
                Peer::Replica(ReplicaId(peer)),
                Link::Up {
                    incarnation: Incarnation(1),
                },
            ),
            Move::LinkReset(peer) => Input::Link(Peer::Replica(ReplicaId(peer)), Link::Reset),
            Move::LinkDown(peer) => Input::Link(Peer::Replica(ReplicaId(peer)), Link::Down),
            Move::Crash { .. } | Move::Boot { .. } => {
                return Err(Violation::new("rig", "handled elsewhere"));
            }
        };
        (running.node.on_input(input, &running.view, outputs))
            .map_err(|error| Violation::new("codec", error.to_string()))?;
        running.node.assert_invariants();
        settle(running, outputs);
        Ok(())
    }

    fn submission(&self, command: u8, seat: &Seat) -> Submission {
        let session = SessionId {
            owner: u64::from(command) + 1,
            number: 1,
        };
        let level = self.commands[usize::from(command)].level;
        let mut batch = BatchBuilder::new();
        let mut id = CommandId {
            session,
            sequence: 0,
        };
        if level == Level::Ordered {
            batch.push(id, RequestKind::Open, 0, &EPOCH_CLOCK.to_le_bytes());
            id.sequence = 1;
        }
        batch.push(id, RequestKind::Command, 0, &self.payload(command));
        let number = BatchId(u64::from(command) + 1);
        Submission {
            id: number,
            level,
            batch: batch.finish(frontend(seat.id, seat.boot), number, level),
            deadline: Time(u64::MAX / 2),
        }
    }

    fn crashed(&self, seat: u32, kept: u8) -> Seat {
        let mut after = self.seats[seat as usize].clone();
        let mut groups: Vec<u32> = after.pending.iter().map(|(step, ..)| *step).collect();
        groups.dedup();
        groups.truncate(kept.into());
        let mut disk = (*after.disk).clone();
        for (step, _, write) in std::mem::take(&mut after.pending) {
            if groups.contains(&step) {
                keep(&mut disk, write);
            }
        }
        after.disk = Arc::new(disk);
        after.alive = false;
        after.parent = None;
        after.timers.clear();
        after.executed = Arc::default();
        after.speculated.clear();
        after.promises.clear();
        after.steps = 0;
        after
    }

    fn work_out(&mut self, seat: u32, happens: Move, last: Option<(u32, Move)>) -> Step {
        if let Move::Crash { kept } = happens {
            let after = self.crashed(seat, kept);
            let next = self.intern(after, None, seat, happens);
            return Step {
                next,
                sends: Vec::new(),
                ends: Vec::new(),
                executed: Vec::new(),
                violation: None,
            };
        }
        let mut outputs = Vec::new();
        let mut live = None;
        let mut failed = None;
        let panicked = panics::catch(|| {
            if !matches!(happens, Move::Boot { .. }) {
                live = self.revive(last);
            }
            failed = self.happen(&mut live, seat, happens, &mut outputs).err();
        });
        let violation = match panicked {
            Err(what) => Some(Violation::new("panic", what)),
            Ok(()) => failed,
        };
        self.finish(seat, happens, live, outputs, violation)
    }

    /// Carries out what the node asked for.
    fn finish(
        &mut self,
        seat: u32,
        happens: Move,
        mut live: Option<Live>,
        outputs: Vec<Output>,
        mut violation: Option<Violation>,
    ) -> Step {
        let mut after = self.seats[seat as usize].clone();
        after.parent = Some((seat, happens));
        after.steps += 1;
        match happens {
            Move::Boot { .. } => {
                (after.alive, after.boot) = (true, after.boot + 1);
            }
            Move::Persisted => {
                let group = after.pending.first().map(|(step, ..)| *step);
                let mut disk = (*after.disk).clone();
                while after.pending.first().map(|(step, ..)| *step) == group
                    && !after.pending.is_empty()
                {
                    let (_, id, write) = after.pending.remove(0);
                    keep(&mut disk, write);
                    let promised = after.promises.iter().find(|(promise, _)| *promise == id);
                    if let Some((_, view)) = promised {
                        after.monotone.promised(*view);
                    }
                }
                after.disk = Arc::new(disk);
            }
            Move::Timer(key) => {
                after.firings += 1;
                after.timers.remove(&key);
            }
            _ => {}
        }
        let mut step = Step {
            next: 0,
            sends: Vec::new(),
            ends: Vec::new(),
            executed: Vec::new(),
            violation: None,
        };
        let view = live
            .as_ref()
            .map_or(0, |live| live.node.protocol_status().view);
        for output in outputs {
            self.carry_out(&mut after, &mut step, view, output, &mut violation);
        }
        if let Some(live) = &live {
            let status = live.node.protocol_status();
            let record = take(&live.record);
            step.executed = match self.entry.speculates {
                true => final_items(&mut after.speculated, record, live, status.stable),
                false => items(&record),
            };
            let mut executed = (*after.executed).clone();
            executed.extend(step.executed.iter().cloned());
            after.executed = Arc::new(executed);
            let shown = match happens {
                Move::Boot { .. } => after.monotone.restarted(after.id, status.view),
                _ => after.monotone.shows(
                    after.id,
                    &status,
                    live.node.executed().slot,
                    self.entry.speculates,
                ),
            };
            violation = violation.or(shown.err());
        }
        step.next = self.intern(after, live.as_mut(), seat, happens);
        step.violation = violation;
        step
    }

    fn carry_out(
        &mut self,
        after: &mut Seat,
        step: &mut Step,
        view: u64,
        output: Output,
        violation: &mut Option<Violation>,
    ) {
        match output {
            Output::Send { to, lane, frame } => {
                let message = self.message(frame.into_bytes());
                let lane = u8::from(lane != Lane::Control);
                match to {
                    Recipients::Replicas(set) => {
                        step.sends.extend(set.iter().map(|to| Sent {
                            to: to.0,
                            boot: None,
                            lane,
                            message,
                        }));
                    }
                    Recipients::Frontend(to) => {
                        if let Some((to, boot)) = home(to) {
                            step.sends.push(Sent {
                                to,
                                boot: Some(boot),
                                lane,
                                message,
                            });
                        }
                    }
                }
            }
            Output::Put { to, ranges } => {
                let frame = put_frame(GroupId(0), EpochNumber(1), ranges).into_bytes();
                let message = self.message(frame);
                step.sends.extend(to.iter().map(|to| Sent {
                    to: to.0,
                    boot: None,
                    lane: 0,
                    message,
                }));
            }
            Output::Journal { id, write } => {
                if matches!(write, Write::Promise(_)) {
                    after.promises.push((id, view));
                }
                after.pending.push((after.steps, id, write));
            }
            Output::SetTimer { key, .. } => {
                // Frontends repeat themselves and nodes tick: neither belongs to the search.
                if key.owner == TimerOwner::Replica {
                    after.timers.insert(key);
                }
            }
            Output::CancelTimer { key } => {
                after.timers.remove(&key);
            }
            Output::Done { batch, outcome } => {
                let command = (batch.0.saturating_sub(1)) as u8;
                match end(command, &self.commands, outcome) {
                    Ok(end) => step.ends.push((command, end)),
                    Err(wrong) => {
                        violation.get_or_insert(wrong);
                    }
                }
            }
            Output::Mark(branch) => *self.branches.entry(branch).or_default() += 1,
            // No disk hangs here.
            Output::BreakLinks => {}
            Output::EpochBegins { .. } | Output::SnapshotBridges { .. } => {
                unreachable!("nobody ends an epoch here")
            }
            Output::Halt(_, reason) => {
                let what = format!("replica {}: {reason}", after.id);
                violation.get_or_insert(Violation::new("halt", what));
            }
            Output::Trim { .. }
            | Output::Route { .. }
            | Output::SnapshotBegin { .. }
            | Output::Recovered
            | Output::Digest(_)
            | Output::Diverged(_)
            | Output::SnapshotAppend(_)
            | Output::SnapshotTruncate(_)
            | Output::SnapshotFinish
            | Output::SnapshotAbandon => {}
        }
    }

    /// The number of a seat: the same for the same state, if the protocol can tell, else for the
    /// same history.
    fn intern(&mut self, after: Seat, live: Option<&mut Live>, from: u32, happened: Move) -> u32 {
        let mut wide = Wide::new(2);
        let state = live.and_then(|live| {
            let mut inner = Wide::new(3);
            live.node.fingerprint(&mut inner).then(|| inner.value())
        });
        wide.word(u64::from(after.id) << 32 | u64::from(after.boot));
        match (state, after.alive) {
            (None, true) => {
                wide.word(u64::from(from));
                let happened = hash_of(&happened);
                wide.word(happened as u64);
                wide.word((happened >> 64) as u64);
            }
            (state, _) => {
                self.by_state |= after.alive;
                let state = state.unwrap_or(0);
                let writes: Vec<&Write> = after.pending.iter().map(|(.., write)| write).collect();
                let groups: Vec<u32> = (after.pending.iter())
                    .map(|(step, ..)| step - after.pending[0].0)
                    .collect();
                let first = after.pending.first().map(|(_, id, _)| *id);
                let rest = format!(
                    "{writes:?} {first:?} {:?} {:?}",
                    after.monotone, after.speculated
                );
                let (rest, rest2) = (
                    hash_of(&(rest, groups, &after.timers, after.firings)),
                    hash_of(&(&*after.disk, &*after.executed)),
                );
                for part in [state, rest, rest2] {
                    wide.word(part as u64);
                    wide.word((part >> 64) as u64);
                }
            }
        }
        let key = wide.value();
        if let Some(known) = self.index.get(&key) {
            if let Some(ways) = &mut self.other_ways
                && state.is_some()
                && self.seats[*known as usize].parent != Some((from, happened))
            {
                let ways = ways.entry(*known).or_default();
                if ways.len() < OTHER_WAYS_MAX {
                    ways.push((from, happened));
                }
            }
            return *known;
        }
        let number = self.seats.len() as u32;
        self.seats.push(after);
        self.index.insert(key, number);
        number
    }
}

/// All commands are about this key: a counter, whose replies show the order.
pub(super) const KEY: u32 = 2;

fn frontend(id: u16, boot: u32) -> FrontendId {
    FrontendId(EMBEDDED + (u64::from(boot) << 8) + u64::from(id))
}

/// The replica and run that a frontend lives in.
fn home(frontend: FrontendId) -> Option<(u16, u32)> {
    let number = frontend.0.checked_sub(EMBEDDED)?;
    Some(((number & 0xff) as u16, (number >> 8) as u32))
}

fn keep(disk: &mut DiskImage, write: Write) {
    match write {
        Write::Promise(promise) => disk.promise = Some(promise),
        Write::Record { slot, record } => disk.records.push((slot, record)),
    }
}

fn settle(live: &mut Live, outputs: &mut Vec<Output>) {
    for _ in 0..SPINS_MAX {
        if live.node.on_idle(&live.view, outputs) != Wake::Spin {
            break;
        }
    }
    live.node.assert_invariants();
}

fn take(record: &Record) -> Vec<Recorded> {
    std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What became final, of what was executed now and before.
fn final_items(
    speculated: &mut Speculated,
    record: Vec<Recorded>,
    live: &Live,
    stable: Slot,
) -> Vec<Item> {
    if !record.is_empty() {
        speculated.executed(Run {
            epoch: live.node.epoch(),
            slot: live.node.executed().slot,
            record,
            state: None,
            queries: Vec::new(),
        });
    }
    let mut ready = Vec::new();
    while let Some(run) = speculated.ready(stable) {
        ready.extend(items(&run.record));
    }
    ready
}

fn items(recorded: &[Recorded]) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for one in recorded {
        match one {
            Recorded::Batch {
                position,
                time,
                digest,
            } => items.push(Item {
                hash: mix(mix(*position, time.0), *digest as u64),
                commands: Vec::new(),
            }),
            Recorded::Command { number, hash, .. } => {
                if let Some(item) = items.last_mut() {
                    item.hash = mix(item.hash, *hash);
                    item.commands.push(*number);
                }
            }
        }
    }
    items
}

fn end(command: u8, commands: &[Command], outcome: Outcome) -> Result<End, Violation> {
    let wrong = |what: String| Err(Violation::new("results", what));
    let Some(asked) = commands.get(usize::from(command)) else {
        return wrong(format!("a batch nobody submitted: {command}"));
    };
    let bytes = match outcome {
        Outcome::Results(bytes) => bytes,
        Outcome::NoQuorum | Outcome::Busy => return Ok(End::Failed),
        Outcome::Uncertain => return Ok(End::Uncertain),
    };
    let mut results = Results::new(&bytes);
    let mut last = None;
    let count = if asked.level == Level::Ordered { 2 } else { 1 };
    for _ in 0..count {
        match results.next() {
            Some((RequestStatus::Done, reply)) => last = Some(reply),
            Some((status, _)) => return wrong(format!("operation {command} got {status:?}")),
            None => return wrong(format!("operation {command} got too few results")),
        }
    }
    match last.and_then(machine::decode_reply) {
        Some(reply) => Ok(End::Done(reply)),
        None => wrong(format!("operation {command} got no reply")),
    }
}
