//! Another group in each process of a stage, beside the one that a scenario is about.
//!
//! ```text
//!   process ──┬── group 7, the scenario's ─────┐      one journal,
//!             └── group 3, another protocol's ─┴────► one link to each other process
//!   process outside ── client of group 7, as a guest
//! ```
//!
//! The neighbour shares whatever happens to the process. It gets a command whenever the scenario's
//! group gets a batch, and has to answer all of them in the end.

use super::{Event, Host, Setting, Stage, checks::Group};
use crate::{
    clock::MILLISECOND,
    configuration::first_descriptor,
    machine::{Operation, encode_command},
};
use quintet_protocols::PROTOCOLS;
use quintet_replica::{
    BatchBuilder, BatchId, Bytes, CommandId, Descriptor, Durability, Entry, GroupId, GroupIndex,
    Level, NodeState, Outcome, ReplicaId, RequestKind, SessionId, Submission, Voters, frame_group,
};
use std::{
    ops::{Deref, DerefMut, Index, IndexMut},
    time::Duration,
};

/// The neighbour's part of process `n` has the number `n + BESIDE`.
pub(super) const BESIDE: usize = 1 << 16;

const GROUP: GroupId = GroupId(7);
const NEIGHBOUR: GroupId = GroupId(3);

/// The process of a part.
pub(super) const fn process_of(part: usize) -> usize {
    part % BESIDE
}

const fn is_beside(part: usize) -> bool {
    part >= BESIDE
}

/// The parts of processes: as a slice, those of the scenario's group.
pub(crate) struct Hosts {
    own: Vec<Host>,
    beside: Vec<Host>,
}

impl Hosts {
    pub fn new(replicas: usize, beside: bool) -> Self {
        let empty = |count: usize| (0..count).map(|_| Host::default()).collect();
        Self {
            own: empty(replicas),
            beside: empty(if beside { replicas } else { 0 }),
        }
    }

    /// The parts of the neighbour.
    pub fn beside(&self) -> &[Host] {
        &self.beside
    }
}

impl Deref for Hosts {
    type Target = [Host];
    fn deref(&self) -> &[Host] {
        &self.own
    }
}

impl DerefMut for Hosts {
    fn deref_mut(&mut self) -> &mut [Host] {
        &mut self.own
    }
}

impl Index<usize> for Hosts {
    type Output = Host;
    fn index(&self, part: usize) -> &Host {
        match is_beside(part) {
            true => &self.beside[part - BESIDE],
            false => &self.own[part],
        }
    }
}

impl IndexMut<usize> for Hosts {
    fn index_mut(&mut self, part: usize) -> &mut Host {
        match is_beside(part) {
            true => &mut self.beside[part - BESIDE],
            false => &mut self.own[part],
        }
    }
}

/// The neighbour's requests at one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    wanted: u64,
    answered: u64,
    in_progress: bool,
}

impl Setting {
    /// The same group as number 7 of its processes, which have another group beside it: of the next
    /// protocol that asks no more of a network and may have as few replicas.
    pub fn beside_another(mut self) -> Self {
        let name = self.entry.info.name;
        let at = PROTOCOLS.iter().position(|it| it.info.name == name);
        let mut others = PROTOCOLS.iter().cycle().skip(at.unwrap_or(0) + 1);
        self.neighbour = others
            .by_ref()
            .take(PROTOCOLS.len())
            .find(|it| {
                let asks_more = it.needs_streams && !self.entry.needs_streams;
                !asks_more && it.info.replicas_min <= self.replicas
            })
            .copied();
        self
    }
}

impl Stage {
    /// The parts that a process has.
    pub(super) fn parts_of(&self, process: usize) -> Vec<usize> {
        let beside = self.setting.neighbour.is_some() && process < self.hosts.len();
        let beside = beside.then_some(process + BESIDE);
        // The neighbour's is the first, so that no number of its group's is that of the scenario's.
        beside.into_iter().chain([process]).collect()
    }

    /// All parts of all processes.
    pub(super) fn parts(&self) -> Vec<usize> {
        let own = 0..self.hosts.len();
        let beside = (0..self.hosts.beside().len()).map(|process| process + BESIDE);
        own.chain(beside).collect()
    }

    /// The part of a process that a frame is for.
    pub(super) fn part_for(&self, process: usize, frame: &Bytes) -> usize {
        let beside = self.setting.neighbour.is_some() && frame_group(frame) == Some(NEIGHBOUR);
        if beside { process + BESIDE } else { process }
    }

    pub(super) const fn group_of(&self, part: usize) -> GroupId {
        match (self.setting.neighbour.is_some(), is_beside(part)) {
            (false, _) => GroupId(0),
            (true, false) => GROUP,
            (true, true) => NEIGHBOUR,
        }
    }

    /// The place of a part's group among those of the process.
    pub(super) fn index_of(&self, part: usize) -> GroupIndex {
        match self.setting.neighbour.is_some() && !is_beside(part) {
            true => GroupIndex::new(1),
            false => GroupIndex::new(0),
        }
    }

    /// The knowledge of a part's group.
    pub(super) const fn checked(&mut self, part: usize) -> &mut Group {
        match is_beside(part) {
            true => &mut self.beside,
            false => &mut self.own,
        }
    }

    /// The neighbour's protocol, for its parts.
    pub(super) const fn entry_beside(&self, part: usize) -> Option<Entry> {
        match is_beside(part) {
            true => self.setting.neighbour,
            false => None,
        }
    }

    /// The neighbour's descriptor, for its parts.
    pub(super) fn descriptor_beside(&self, part: usize) -> Option<Descriptor> {
        let entry = self.entry_beside(part)?;
        let durability = self.setting.durability;
        Some(first_descriptor(
            &entry,
            &[],
            durability,
            &self.first_epoch(),
        ))
    }

    /// Whether the neighbour can do without these.
    pub(super) fn neighbour_viable_without(&self, down: &[usize]) -> bool {
        let Some(entry) = self.setting.neighbour else {
            return true;
        };
        let memory = self.setting.durability == Durability::Memory;
        let states: Vec<NodeState> = (0..self.setting.replicas)
            .map(|process| NodeState {
                id: ReplicaId(process as u16),
                up: !down.contains(&process),
                state_lost: memory && down.contains(&process),
            })
            .collect();
        (entry.viable)(self.setting.replicas, &states)
    }

    pub(super) fn voters(&self) -> Voters {
        Voters::dense(self.setting.replicas)
    }

    /// The neighbour gets a command at this process, unless it has one in progress there.
    pub(super) fn want_of_neighbour(&mut self, process: usize) {
        if self.setting.neighbour.is_none() {
            return;
        }
        let asked = &mut self.asked[process];
        asked.wanted = asked.answered + 1;
        self.ask_neighbour(process);
    }

    pub(super) fn ask_neighbour(&mut self, process: usize) {
        let part = process + BESIDE;
        let Some(node) = &self.hosts[part].node else {
            return;
        };
        let asked = self.asked[process];
        if asked.in_progress || asked.answered >= asked.wanted {
            return;
        }
        let frontend = node.frontend();
        self.asked[process].in_progress = true;
        self.asked_of_neighbour += 1;
        let number = self.asked_of_neighbour;
        // A session for each, as none is sent again.
        let session = SessionId {
            owner: 900 + process as u64,
            number,
        };
        let mut batch = BatchBuilder::of(NEIGHBOUR);
        let started = (super::EPOCH + self.now).to_le_bytes();
        let id = |sequence| CommandId { session, sequence };
        batch.push(id(0), RequestKind::Open, 0, &started);
        let command = encode_command(number, 2, Operation::Add(1));
        batch.push(id(1), RequestKind::Command, 0, &command);
        let (id, level) = (BatchId(number), Level::Ordered);
        let submission = Submission {
            id,
            level,
            batch: batch.finish(frontend, id, level),
            deadline: self.local_time(part) + Duration::from_secs(4),
        };
        self.hosts[part].open.insert(number, Vec::new());
        self.submit(part, submission);
    }

    /// A request to the neighbour has an outcome, or none because its process has died.
    pub(super) fn neighbour_done(&mut self, part: usize, outcome: Option<&Outcome>) {
        let process = process_of(part);
        let asked = &mut self.asked[process];
        asked.in_progress = false;
        asked.answered += u64::from(matches!(outcome, Some(Outcome::Results(_))));
        if asked.answered < asked.wanted {
            let at = self.now + 20 * MILLISECOND;
            self.at(at, Event::AskNeighbour { process });
        }
    }

    /// The neighbour answers what it was asked, and a new command at every process; all its parts
    /// are level.
    pub(super) fn neighbour_answers(&mut self) {
        if self.setting.neighbour.is_none() {
            return;
        }
        for process in 0..self.hosts.len() {
            self.want_of_neighbour(process);
        }
        self.until("the neighbour answers and its parts are level", |stage| {
            let answered = |asked: &Asked| asked.answered >= asked.wanted;
            stage.asked.iter().all(answered) && stage.level()
        });
    }
}
