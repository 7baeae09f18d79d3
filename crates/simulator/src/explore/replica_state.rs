//! One replica as the search sees it: a number per state it can be in, and what each thing that
//! can happen to it leads to.
//!
//! ```text
//!   state 17 ──(frame 4 from r0)──► step: state 23, frames sent, operations ended, executed
//!      │                             ▲ worked out once, by running a Node from its boot along
//!      └── chain of moves to its boot ┘ the chain of moves; then looked up
//! ```
//!
//! Replicas touch one another by frames only, so a step depends on nothing but the state. Worlds
//! are small tuples of states then, and millions of them cost no more than looking up.

use crate::{
    checkers::{
        Violation,
        monotone::Monotone,
        speculated::{Run, Speculated},
    },
    configuration::first_descriptor,
    explore::{Bounds, EPOCH_CLOCK, Tables},
    machine::{self, Executed as Recorded, Operation, Record, Recorder, Registers, Reply, mix},
    panics,
    stored_epoch::{self, StoredEpoch},
};
use quintet_replica::{
    BatchBuilder, BatchId, Boot, Bytes, ClockReading, ClusterId, CommandId, Descriptor, Durability,
    Entry, Epoch, EpochNumber, Executed, ExecutorLimits, FrameError, FrontendId, GroupId,
    Incarnation, Input, Lane, Level, Link, Node, NodeSetup, Outcome, Output, Peer, PersistId,
    Recipients, RecoveredBytes, ReplicaId, RequestKind, RequestStatus, Results, SessionId, Slot,
    SnapshotInfo, Submission, Time, TimerKey, TimerOwner, Wake, World as Outside, Write, put_frame,
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

/// Of this many ways to a state besides the first it is looked whether they have one future.
const OTHER_WAYS_MAX: usize = 3;

/// An event of a replica.
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
    /// The end of the epoch is offered here.
    Seal,
    /// The oldest snapshot that is not durable becomes so.
    Saved,
    /// It dies; of the steps whose writes are not durable this many reached the disk all the same.
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
    pub position: u64,
    /// Over position, time, the commands and the state before them.
    pub hash: u64,
    /// The commands' numbers.
    pub commands: Vec<u64>,
}

/// The durable part: promise and records with their epoch, the newest snapshots, and the epoch that
/// the replica is in, by its descriptor; none of these in the first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DiskImage {
    promise: Option<(EpochNumber, Bytes)>,
    records: Vec<(EpochNumber, Slot, Bytes)>,
    snapshots: Vec<(Executed, Bytes)>,
    epoch: Option<(Bytes, Executed)>,
}

/// How many snapshots are kept.
const SNAPSHOTS_KEPT: usize = 2;

impl DiskImage {
    /// Whether a record holds these bytes, or the newest snapshot covers `position`.
    pub fn holds(&self, bytes: &[u8], position: Option<u64>) -> bool {
        let newest = self.snapshots.last().map(|(id, _)| id.position.0);
        (self.records.iter())
            .any(|(_, _, record)| record.windows(bytes.len()).any(|window| window == bytes))
            || position.is_some_and(|position| newest >= Some(position))
    }

    /// The epoch of a replica that starts from it.
    fn stored_epoch(&self) -> StoredEpoch {
        let decoded = |(descriptor, base): &(Bytes, Executed)| {
            (Descriptor::decode(descriptor.clone()).ok()).map(|descriptor| (descriptor, *base))
        };
        let mut stored = self.epoch.as_ref().and_then(decoded);
        stored_epoch::find_newer(&mut stored, self.snapshots.last().map(|(_, bytes)| bytes));
        stored
    }

    fn save(&mut self, (id, bytes): (Executed, Bytes)) {
        self.snapshots.push((id, bytes));
        let older = self.snapshots.len().saturating_sub(SNAPSHOTS_KEPT);
        self.snapshots.drain(..older);
    }

    fn keep(&mut self, epoch: EpochNumber, write: Write) {
        match write {
            Write::Promise(promise) => self.promise = Some((epoch, promise)),
            Write::Record { slot, record } => self.records.push((epoch, slot, record)),
        }
    }
}

/// A write that is not durable yet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pending {
    /// The step that it was made in.
    step: u32,
    id: PersistId,
    epoch: EpochNumber,
    write: Write,
}

/// A state that a replica can be in.
#[derive(Clone, Debug)]
pub(super) struct ReplicaState {
    pub id: u16,
    pub alive: bool,
    pub boot: u32,
    parent: Option<(u32, Move)>,
    pub disk: Arc<DiskImage>,
    pending: Vec<Pending>,
    /// The snapshot that is being written, and those that are whole and not durable yet.
    unfinished: Option<(Executed, Vec<u8>)>,
    saving: Vec<(Executed, Bytes)>,
    pub timers: BTreeSet<TimerKey>,
    firings: u32,
    steps: u32,
    /// The items that it executed in this run, as far as they are final.
    pub executed: Arc<Vec<Item>>,
    /// The items that it executed and may still undo.
    speculated: Speculated,
    monotone: Monotone,
    promises: Vec<(PersistId, EpochNumber, u64)>,
}

impl ReplicaState {
    /// How many steps have writes that are not durable.
    pub fn pending_groups(&self) -> u8 {
        let groups: BTreeSet<u32> = self.pending.iter().map(|it| it.step).collect();
        groups.len() as u8
    }

    /// Whether a whole snapshot is not durable yet.
    pub fn saves(&self) -> bool {
        !self.saving.is_empty()
    }

    /// The epoch that its journal writes are of.
    fn writes_in(&self) -> EpochNumber {
        let number = |(descriptor, _): &(Bytes, Executed)| {
            Descriptor::decode(descriptor.clone()).map(|it| it.number)
        };
        let stored = self.disk.epoch.as_ref().map(number);
        stored.and_then(Result::ok).unwrap_or(EpochNumber(1))
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

/// The result of a move.
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

/// All states, frames and steps known so far.
pub(super) struct Cast {
    pub entry: Entry,
    pub bounds: Bounds,
    pub options: Vec<(String, String)>,
    pub commands: Vec<Command>,
    pub replica_states: Vec<ReplicaState>,
    index: HashMap<u128, u32>,
    pub messages: Vec<Bytes>,
    message_index: HashMap<Bytes, u32>,
    steps: HashMap<(u32, Move), Arc<Step>>,
    pub branches: std::collections::BTreeMap<&'static str, u64>,
    pub tables: Tables,
    /// Whether states are told apart by what they are, not by what led to them.
    pub by_state: bool,
    /// Other ways to each state than the first, where they are wanted; not all of them.
    other_ways: Option<HashMap<u32, Vec<(u32, Move)>>>,
}

struct View {
    now: u64,
    disk: Arc<DiskImage>,
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
        let newest = self.disk.snapshots.last();
        newest.map(|(id, bytes)| SnapshotInfo {
            id: *id,
            length: bytes.len() as u64,
        })
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let mut kept = self.disk.snapshots.iter();
        let (_, bytes) = kept.find(|(kept, _)| *kept == id)?;
        let begin = (offset as usize).min(bytes.len());
        let end = begin.saturating_add(length).min(bytes.len());
        Some(bytes.slice(begin..end))
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
    /// Bytes of the snapshot that is being written.
    written: u64,
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
            replica_states: Vec::new(),
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
            .map(|((replica_state, happens), step)| (*replica_state, *happens, step.clone()))
            .filter(|(_, happens, _)| !matches!(happens, Move::Crash { .. } | Move::Boot { .. }))
            .collect();
        steps.sort_by_key(|(replica_state, happens, _)| (*replica_state, hash_of(happens)));
        for (replica_state, happens, step) in steps {
            for way in ways.get(&replica_state).into_iter().flatten() {
                let other = self.work_out(replica_state, happens, Some(*way));
                compared += 1;
                if !step.same(&other) {
                    let first = self.replica_states[replica_state as usize].parent;
                    let what = format!(
                        "state {replica_state} reached by {first:?} and by {way:?}, then {happens:?}: \
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
        self.replica_states.push(ReplicaState {
            id,
            alive: false,
            boot: 0,
            parent: None,
            disk: Arc::default(),
            pending: Vec::new(),
            unfinished: None,
            saving: Vec::new(),
            timers: BTreeSet::new(),
            firings: 0,
            steps: 0,
            executed: Arc::default(),
            speculated: Speculated::default(),
            monotone: Monotone::default(),
            promises: Vec::new(),
        });
        (self.replica_states.len() - 1) as u32
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

    /// The result of a move.
    pub fn step(&mut self, replica_state: u32, happens: Move) -> Arc<Step> {
        if let Some(known) = self.steps.get(&(replica_state, happens)) {
            return known.clone();
        }
        let step = Arc::new(self.work_out(
            replica_state,
            happens,
            self.replica_states[replica_state as usize].parent,
        ));
        self.steps.insert((replica_state, happens), step.clone());
        step
    }

    fn first_epoch(&self) -> Epoch {
        Epoch {
            cluster: ClusterId(1),
            number: EpochNumber(1),
            members: self.bounds.replicas,
            options: self.options.clone(),
            secret: [7; 32],
            leader_first: ReplicaId(0),
        }
    }

    /// The descriptor of the first epoch, and that of the epoch on a disk with its base.
    fn descriptor_on(&self, disk: &DiskImage) -> (Descriptor, Executed) {
        let first = || {
            let epoch = self.first_epoch();
            first_descriptor(&self.entry, &self.options, Durability::Disk, &epoch)
        };
        disk.stored_epoch()
            .unwrap_or_else(|| (first(), Executed::default()))
    }

    fn epoch_of(&self, descriptor: &Descriptor) -> Epoch {
        match descriptor.number {
            EpochNumber(1) => self.first_epoch(),
            _ => stored_epoch::later(descriptor, &self.first_epoch()),
        }
    }

    fn node_with(&self, before: &ReplicaState, boot: u32, record: Record) -> Option<Node> {
        let id = before.id;
        let (descriptor, base) = self.descriptor_on(&before.disk);
        let setup = NodeSetup {
            id: ReplicaId(id),
            incarnation: Incarnation(1),
            boot: Boot(boot.into()),
            group: GroupId(0),
            epoch: self.epoch_of(&descriptor),
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
        let node = Node::new(setup, &self.entry, machine).ok()?;
        // Without a descriptor an epoch cannot end, and nodes do not speak of it.
        Some(match self.bounds.seals {
            0 => node,
            _ => node.with_descriptor(descriptor.encode()).with_base(base),
        })
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
            next = self.replica_states[parent as usize].parent;
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
        replica_state: u32,
        happens: Move,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Violation> {
        let before = &self.replica_states[replica_state as usize];
        if let Move::Boot { up } = happens {
            let record = Record::default();
            let boot = before.boot + 1;
            let node = self.node_with(before, boot, record.clone());
            let node = node.ok_or_else(|| Violation::new("options", "cannot be made"))?;
            let mut started = Live {
                node,
                record,
                view: View {
                    now: u64::from(before.firings) * self.leap(),
                    disk: before.disk.clone(),
                },
                written: 0,
            };
            let of = started.node.epoch();
            let promise = before.disk.promise.iter();
            let records = before.disk.records.iter();
            let recovered = RecoveredBytes {
                first_boot: before.boot == 0,
                state_lost: false,
                promise: (promise.filter(|(epoch, _)| *epoch == of))
                    .map(|(_, promise)| promise.clone())
                    .next(),
                checkpoint: None,
                records: (records.filter(|(epoch, ..)| *epoch == of))
                    .map(|(_, slot, record)| (*slot, record.clone()))
                    .collect(),
            };
            (started.node.start(recovered, &started.view, outputs))
                .map_err(|error| Violation::new("recovery", error.to_string()))?;
            self.settle(&mut started, outputs, 0)?;
            for peer in (0..self.bounds.replicas as u16).filter(|peer| up & (1 << peer) != 0) {
                let incarnation = Incarnation(1);
                let link = Input::Link(Peer::Replica(ReplicaId(peer)), Link::Up { incarnation });
                // Only frames can be refused.
                let begun = outputs.len();
                let _ = started.node.on_input(link, &started.view, outputs);
                self.settle(&mut started, outputs, begun)?;
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
        running.view.disk = before.disk.clone();
        let begun = outputs.len();
        let input = match happens {
            Move::Seal => {
                let (descriptor, _) = self.descriptor_on(&before.disk);
                let next = descriptor.successor().encode();
                // Where it cannot end, nothing is offered.
                let _ = running.node.offer_seal(&next, &running.view, outputs);
                return self.settle(running, outputs, begun);
            }
            Move::Saved => {
                let Some((id, bytes)) = before.saving.first().cloned() else {
                    return Err(Violation::new("rig", "no snapshot to become durable"));
                };
                let length = bytes.len() as u64;
                let mut disk = (*before.disk).clone();
                disk.save((id, bytes));
                running.view.disk = Arc::new(disk);
                Input::SnapshotSaved(SnapshotInfo { id, length })
            }
            Move::Frame { from, message } => Input::Frame {
                from: Peer::Replica(ReplicaId(from)),
                arrived: Time(running.view.now),
                frame: self.messages[message as usize].clone(),
            },
            Move::Persisted => {
                let group = before.pending.first().map(|it| it.step);
                let last = (before.pending.iter())
                    .take_while(|it| Some(it.step) == group)
                    .last();
                let Some(last) = last else {
                    return Err(Violation::new("rig", "nothing to become durable"));
                };
                Input::Persisted(last.id)
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
        match running.node.on_input(input, &running.view, outputs) {
            Ok(()) | Err(FrameError::Epoch { .. }) => {}
            Err(error) => return Err(Violation::new("codec", error.to_string())),
        }
        running.node.assert_invariants();
        self.settle(running, outputs, begun)
    }

    /// The node works until it has nothing to do; what it asked for from output `begun` on and the
    /// world does at once, is done.
    fn settle(
        &self,
        live: &mut Live,
        outputs: &mut Vec<Output>,
        mut begun: usize,
    ) -> Result<(), Violation> {
        loop {
            for _ in 0..SPINS_MAX {
                if live.node.on_idle(&live.view, outputs) != Wake::Spin {
                    break;
                }
            }
            let mut is_done = true;
            while let Some(output) = outputs.get(begun).cloned() {
                begun += 1;
                is_done &= !self.do_at_once(live, output, outputs)?;
            }
            if is_done {
                break;
            }
        }
        live.node.assert_invariants();
        Ok(())
    }

    /// True when the node has been told of it.
    fn do_at_once(
        &self,
        live: &mut Live,
        output: Output,
        outputs: &mut Vec<Output>,
    ) -> Result<bool, Violation> {
        match output {
            Output::SnapshotBegin { .. } => {
                live.written = 0;
                return Ok(false);
            }
            Output::SnapshotAppend(chunk) => {
                live.written += chunk.len() as u64;
                let written = Input::SnapshotWritten(live.written);
                // Only frames can be refused.
                let _ = live.node.on_input(written, &live.view, outputs);
            }
            Output::SnapshotTruncate(length) => {
                live.written = length;
                return Ok(false);
            }
            Output::EpochBegins { descriptor, .. } => {
                let unreadable = |error: &dyn std::fmt::Display| {
                    Violation::new("epochs", format!("an epoch that cannot begin: {error}"))
                };
                let next = Descriptor::decode(descriptor).map_err(|error| unreadable(&error))?;
                let (epoch, seed) = (self.epoch_of(&next), next.number.0);
                (live.node)
                    .begin_epoch(&self.entry, epoch, seed, &live.view, outputs)
                    .map_err(|error| unreadable(&error))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn submission(&self, command: u8, replica_state: &ReplicaState) -> Submission {
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
            batch: batch.finish(
                frontend(replica_state.id, replica_state.boot),
                number,
                level,
            ),
            deadline: Time(u64::MAX / 2),
        }
    }

    fn crashed(&self, replica_state: u32, kept: u8) -> ReplicaState {
        let mut after = self.replica_states[replica_state as usize].clone();
        let mut groups: Vec<u32> = after.pending.iter().map(|it| it.step).collect();
        groups.dedup();
        groups.truncate(kept.into());
        let mut disk = (*after.disk).clone();
        for it in std::mem::take(&mut after.pending) {
            if groups.contains(&it.step) {
                disk.keep(it.epoch, it.write);
            }
        }
        (after.unfinished, after.saving) = (None, Vec::new());
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

    fn work_out(&mut self, replica_state: u32, happens: Move, last: Option<(u32, Move)>) -> Step {
        if let Move::Crash { kept } = happens {
            let after = self.crashed(replica_state, kept);
            let next = self.intern(after, None, replica_state, happens);
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
            failed = self
                .happen(&mut live, replica_state, happens, &mut outputs)
                .err();
        });
        let violation = match panicked {
            Err(what) => Some(Violation::new("panic", what)),
            Ok(()) => failed,
        };
        self.finish(replica_state, happens, live, outputs, violation)
    }

    /// Carries out what the node asked for.
    fn finish(
        &mut self,
        replica_state: u32,
        happens: Move,
        mut live: Option<Live>,
        outputs: Vec<Output>,
        mut violation: Option<Violation>,
    ) -> Step {
        let mut after = self.replica_states[replica_state as usize].clone();
        after.parent = Some((replica_state, happens));
        after.steps += 1;
        match happens {
            Move::Boot { .. } => {
                (after.alive, after.boot) = (true, after.boot + 1);
            }
            Move::Persisted => {
                let group = after.pending.first().map(|it| it.step);
                let mut disk = (*after.disk).clone();
                // Views are an epoch's own.
                let now = live.as_ref().map(|live| live.node.epoch());
                while after.pending.first().map(|it| it.step) == group && !after.pending.is_empty()
                {
                    let Pending {
                        id, epoch, write, ..
                    } = after.pending.remove(0);
                    disk.keep(epoch, write);
                    let mut promises = after.promises.iter();
                    if let Some((_, of, view)) = promises.find(|(promise, ..)| *promise == id)
                        && Some(*of) == now
                    {
                        after.monotone.promised(*view);
                    }
                }
                after.disk = Arc::new(disk);
            }
            Move::Saved => {
                let mut disk = (*after.disk).clone();
                disk.save(after.saving.remove(0));
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
                Move::Boot { .. } => after.monotone.restarted_node(after.id, &live.node),
                _ => after.monotone.shows_node(after.id, &live.node),
            };
            violation = violation.or(shown.err());
        }
        step.next = self.intern(after, live.as_mut(), replica_state, happens);
        step.violation = violation;
        step
    }

    fn carry_out(
        &mut self,
        after: &mut ReplicaState,
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
                let frame = put_frame(GroupId(0), after.writes_in(), ranges).into_bytes();
                let message = self.message(frame);
                step.sends.extend(to.iter().map(|to| Sent {
                    to: to.0,
                    boot: None,
                    lane: 0,
                    message,
                }));
            }
            Output::Journal { id, write } => {
                let epoch = after.writes_in();
                if matches!(write, Write::Promise(_)) {
                    after.promises.push((id, epoch, view));
                }
                after.pending.push(Pending {
                    step: after.steps,
                    id,
                    epoch,
                    write,
                });
            }
            Output::SetTimer { key, .. } => {
                // Frontends repeat themselves and nodes tick: neither belongs to the search, but
                // for what leads to another epoch.
                let node = key.owner == TimerOwner::Node && self.bounds.seals > 0;
                if key.owner == TimerOwner::Replica || node && is_for_epochs(key) {
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
            Output::EpochBegins {
                descriptor, base, ..
            } => {
                let mut disk = (*after.disk).clone();
                disk.epoch = Some((descriptor, base));
                after.disk = Arc::new(disk);
            }
            Output::SnapshotBegin { id, .. } => after.unfinished = Some((id, Vec::new())),
            Output::SnapshotAppend(chunk) => {
                if let Some((_, bytes)) = &mut after.unfinished {
                    bytes.extend_from_slice(&chunk);
                }
            }
            Output::SnapshotTruncate(length) => {
                if let Some((_, bytes)) = &mut after.unfinished {
                    bytes.truncate(length as usize);
                }
            }
            Output::SnapshotFinish => {
                let whole = after.unfinished.take();
                let whole = whole.map(|(id, bytes)| (id, Bytes::from(bytes)));
                after.saving.extend(whole);
            }
            Output::SnapshotAbandon => after.unfinished = None,
            Output::SnapshotBridges { .. } => unreachable!("nothing is saved ahead here"),
            Output::Halt(_, reason) => {
                let what = format!("replica {}: {reason}", after.id);
                violation.get_or_insert(Violation::new("halt", what));
            }
            Output::Trim { .. }
            | Output::Route { .. }
            | Output::Recovered
            | Output::Digest(_)
            | Output::Diverged(_) => {}
        }
    }

    /// The number of a state: the same for the same state, if the protocol can tell, else for the
    /// same history.
    fn intern(
        &mut self,
        after: ReplicaState,
        live: Option<&mut Live>,
        from: u32,
        happened: Move,
    ) -> u32 {
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
                let writes: Vec<_> = (after.pending.iter())
                    .map(|it| (it.epoch, &it.write))
                    .collect();
                let groups: Vec<u32> = (after.pending.iter())
                    .map(|it| it.step - after.pending[0].step)
                    .collect();
                let first = after.pending.first().map(|it| it.id);
                let rest = format!(
                    "{writes:?} {first:?} {:?} {:?}",
                    after.monotone, after.speculated
                );
                let (rest, rest2) = (
                    hash_of(&(rest, groups, &after.timers, after.firings)),
                    hash_of(&(
                        &*after.disk,
                        &*after.executed,
                        &after.unfinished,
                        &after.saving,
                    )),
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
                && self.replica_states[*known as usize].parent != Some((from, happened))
            {
                let ways = ways.entry(*known).or_default();
                if ways.len() < OTHER_WAYS_MAX {
                    ways.push((from, happened));
                }
            }
            return *known;
        }
        let number = self.replica_states.len() as u32;
        self.replica_states.push(after);
        self.index.insert(key, number);
        number
    }
}

/// All commands are about this key: a counter, whose replies show the order.
pub(super) const KEY: u32 = 2;

fn frontend(id: u16, boot: u32) -> FrontendId {
    FrontendId(EMBEDDED + (u64::from(boot) << 8) + u64::from(id))
}

/// The replica and run of a frontend.
fn home(frontend: FrontendId) -> Option<(u16, u32)> {
    let number = frontend.0.checked_sub(EMBEDDED)?;
    Some(((number & 0xff) as u16, (number >> 8) as u32))
}

/// Whether a timer of a node makes replicas tell each other of epochs, or fetch a state again.
fn is_for_epochs(key: TimerKey) -> bool {
    matches!(
        key.timer,
        quintet_replica::TIMER_EPOCH | quintet_replica::TIMER_FETCH
    )
}

fn take(record: &Record) -> Vec<Recorded> {
    std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The items that became final, of those executed now and before.
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
                position: *position,
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
        return wrong(format!("a batch that no client submitted: {command}"));
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
