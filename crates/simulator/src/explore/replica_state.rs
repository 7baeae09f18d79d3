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

use super::live::{Live, Out};
use crate::{
    checkers::{
        Violation,
        monotone::Monotone,
        speculated::{Run, Speculated},
    },
    explore::{Bounds, Tables},
    machine::{self, Executed as Recorded, Operation, Record, Reply, mix},
    panics,
    stored_epoch::{self, StoredEpoch},
};
use quintet_replica::{
    Bytes, Descriptor, Entry, EpochNumber, Executed, FrontendId, GroupId, Lane, Layout, Level,
    Outcome, Output, PersistId, Recipients, RequestStatus, Results, Slot, TimerKey, TimerOwner,
    Write, put_frame,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hasher,
    sync::{Arc, PoisonError},
};

/// Frontends embedded in replicas are numbered from here: by run and replica.
const EMBEDDED: u64 = 1 << 30;
/// Of this many ways to a state besides the first it is looked whether they have one future.
const OTHER_WAYS_MAX: usize = 3;

/// A timer of the node at this place.
pub(super) type Alarm = (u8, TimerKey);

/// An event of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Move {
    Frame {
        from: u16,
        message: u32,
    },
    /// The oldest write that is not durable becomes durable, with those of the same step.
    Persisted,
    Timer(Alarm),
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

/// A batch that was executed, in the order of positions in its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Item {
    /// The place of its group.
    pub place: u8,
    pub position: u64,
    /// Over position, time, the commands and the state before them.
    pub hash: u64,
    /// The commands' numbers.
    pub commands: Vec<u64>,
}

/// The durable part: promises and records with their epoch, by the places of their groups, the newest snapshots, and the epoch that
/// the replica is in, by its descriptor; none of these in the first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct DiskImage {
    promises: BTreeMap<u8, (EpochNumber, Bytes)>,
    records: Vec<(u8, EpochNumber, Slot, Bytes)>,
    pub snapshots: Vec<(Executed, Bytes)>,
    epoch: Option<(Bytes, Executed)>,
}

/// How many snapshots are kept.
const SNAPSHOTS_KEPT: usize = 2;

impl DiskImage {
    /// Whether a record holds these bytes, or the newest snapshot covers `position`.
    pub fn holds(&self, bytes: &[u8], position: Option<u64>) -> bool {
        let newest = self.snapshots.last().map(|(id, _)| id.position.0);
        (self.records.iter())
            .any(|(.., record)| record.windows(bytes.len()).any(|window| window == bytes))
            || position.is_some_and(|position| newest >= Some(position))
    }

    /// The epoch of a replica that starts from it.
    pub fn stored_epoch(&self) -> StoredEpoch {
        let decoded = |(descriptor, base): &(Bytes, Executed)| {
            (Descriptor::decode(descriptor.clone()).ok()).map(|descriptor| (descriptor, *base))
        };
        let mut stored = self.epoch.as_ref().and_then(decoded);
        stored_epoch::find_newer(&mut stored, self.snapshots.last().map(|(_, bytes)| bytes));
        stored
    }

    pub fn save(&mut self, (id, bytes): (Executed, Bytes)) {
        self.snapshots.push((id, bytes));
        let older = self.snapshots.len().saturating_sub(SNAPSHOTS_KEPT);
        self.snapshots.drain(..older);
    }

    /// Promise and records of a group in this epoch.
    pub fn of(&self, place: u8, epoch: EpochNumber) -> (Option<Bytes>, Vec<(Slot, Bytes)>) {
        let promise = (self.promises.get(&place)).filter(|(of, _)| *of == epoch);
        let records = self.records.iter();
        let records = records.filter(|(at, of, ..)| (*at, *of) == (place, epoch));
        (
            promise.map(|(_, promise)| promise.clone()),
            records
                .map(|(.., slot, record)| (*slot, record.clone()))
                .collect(),
        )
    }

    fn keep(&mut self, pending: Pending) {
        let Pending {
            place,
            epoch,
            write,
            ..
        } = pending;
        match write {
            Write::Promise(promise) => {
                self.promises.insert(place, (epoch, promise));
            }
            Write::Record { slot, record } => self.records.push((place, epoch, slot, record)),
        }
    }
}

/// A write that is not durable yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// The step that it was made in.
    pub step: u32,
    /// The place of its group.
    pub place: u8,
    pub id: PersistId,
    epoch: EpochNumber,
    write: Write,
}

/// A state that a replica can be in.
#[derive(Clone, Debug)]
pub(super) struct ReplicaState {
    pub id: u16,
    pub alive: bool,
    pub boot: u32,
    pub parent: Option<(u32, Move)>,
    pub disk: Arc<DiskImage>,
    pub pending: Vec<Pending>,
    /// The snapshot that is being written, and those that are whole and not durable yet.
    unfinished: Option<(Executed, Vec<u8>)>,
    pub saving: Vec<(Executed, Bytes)>,
    pub timers: BTreeSet<Alarm>,
    pub firings: u32,
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
    /// The number of what it shows of its shards, where there are shards.
    pub seen: Option<u32>,
    pub violation: Option<Violation>,
}

#[cfg(test)]
impl Step {
    fn same(&self, other: &Self) -> bool {
        self.next == other.next
            && self.sends == other.sends
            && self.ends == other.ends
            && self.executed == other.executed
            && self.seen == other.seen
            && self.violation == other.violation
    }
}

/// A command that is submitted once in a world.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub at: u16,
    /// The place of its group.
    pub place: u8,
    pub operation: Operation,
    pub level: Level,
}

/// All states, frames and steps known so far.
pub(super) struct Cast {
    pub entry: Entry,
    pub bounds: Bounds,
    pub options: Vec<(String, String)>,
    /// The first group, and those that its protocol serves besides.
    pub groups: Vec<GroupId>,
    pub layout: Layout,
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

impl Cast {
    pub fn new(entry: Entry, bounds: Bounds, options: Vec<(String, String)>) -> Self {
        let layout = layout_of(&options);
        let groups = layout.groups().into_iter().map(|(group, _)| group);
        let groups: Vec<GroupId> = [GroupId(0)].into_iter().chain(groups).collect();
        let shards = groups.len() - 1;
        Self {
            groups,
            layout,
            entry,
            bounds,
            options,
            commands: super::commands(&bounds, shards),
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

    fn crashed(&self, replica_state: u32, kept: u8) -> ReplicaState {
        let mut after = self.replica_states[replica_state as usize].clone();
        let mut groups: Vec<u32> = after.pending.iter().map(|it| it.step).collect();
        groups.dedup();
        groups.truncate(kept.into());
        let mut disk = (*after.disk).clone();
        for it in std::mem::take(&mut after.pending) {
            if groups.contains(&it.step) {
                disk.keep(it);
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
                seen: None,
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
        outputs: Vec<Out>,
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
                let now = live.as_ref().map(|live| live.node().epoch());
                while after.pending.first().map(|it| it.step) == group && !after.pending.is_empty()
                {
                    let pending = after.pending.remove(0);
                    let id = pending.id;
                    disk.keep(pending);
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
            Move::Timer(alarm) => {
                after.firings += 1;
                after.timers.remove(&alarm);
            }
            _ => {}
        }
        let mut step = Step {
            next: 0,
            sends: Vec::new(),
            ends: Vec::new(),
            executed: Vec::new(),
            seen: None,
            violation: None,
        };
        let view = live
            .as_ref()
            .map_or(0, |live| live.node().protocol_status().view);
        for output in outputs {
            self.carry_out(&mut after, &mut step, view, output, &mut violation);
        }
        if let Some(live) = &live {
            let status = live.node().protocol_status();
            let records = live.records.iter().map(take).enumerate();
            for (place, record) in records {
                step.executed.extend(match self.entry.speculates {
                    true => final_items(&mut after.speculated, record, live, status.stable),
                    false => items(place as u8, &record),
                });
            }
            step.seen = self.see(live);
            let mut executed = (*after.executed).clone();
            executed.extend(step.executed.iter().cloned());
            after.executed = Arc::new(executed);
            let shown = match happens {
                Move::Boot { .. } => after.monotone.restarted_node(after.id, live.node()),
                _ => after.monotone.shows_node(after.id, live.node()),
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
        (place, output): Out,
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
                let frame = put_frame(self.groups[usize::from(place)], after.writes_in(), ranges)
                    .into_bytes();
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
                if matches!(write, Write::Promise(_)) && place == 0 {
                    after.promises.push((id, epoch, view));
                }
                after.pending.push(Pending {
                    step: after.steps,
                    place,
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
                    after.timers.insert((place, key));
                }
            }
            Output::CancelTimer { key } => {
                after.timers.remove(&(place, key));
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
            let mut nodes = live.nodes.iter_mut();
            let whole = nodes.all(|node| node.fingerprint(&mut inner));
            whole.then(|| inner.value())
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
                    .map(|it| (it.place, it.epoch, &it.write))
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

pub(super) fn frontend(id: u16, boot: u32) -> FrontendId {
    FrontendId(EMBEDDED + (u64::from(boot) << 8) + u64::from(id))
}

/// The replica and run of a frontend.
fn home(frontend: FrontendId) -> Option<(u16, u32)> {
    let number = frontend.0.checked_sub(EMBEDDED)?;
    Some(((number & 0xff) as u16, (number >> 8) as u32))
}

/// The groups that a protocol is told to serve besides its own.
fn layout_of(options: &[(String, String)]) -> Layout {
    let text = options.iter().find(|(name, _)| name == "layout");
    let layout = text.and_then(|(_, text)| text.parse().ok());
    layout.unwrap_or_default()
}

/// Whether a timer of a node makes replicas tell each other of epochs, or fetch a state again.
fn is_for_epochs(key: TimerKey) -> bool {
    matches!(
        key.timer,
        quintet_replica::TIMER_EPOCH | quintet_replica::TIMER_FETCH
    )
}

pub(super) fn take(record: &Record) -> Vec<Recorded> {
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
            epoch: live.node().epoch(),
            slot: live.node().executed().slot,
            record,
            state: None,
            queries: Vec::new(),
        });
    }
    let mut ready = Vec::new();
    while let Some(run) = speculated.ready(stable) {
        ready.extend(items(0, &run.record));
    }
    ready
}

fn items(place: u8, recorded: &[Recorded]) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for one in recorded {
        match one {
            Recorded::Batch {
                position,
                time,
                digest,
            } => items.push(Item {
                place,
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
