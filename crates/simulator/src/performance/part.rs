//! The groups of a machine in the performance model: a node for each, and one protocol, which is lent
//! to the node that something is for.
//!
//! ```text
//!   frame, request, timer ──group──► Part: node, journal, timers ──► its outputs
//!                                      └ lent the protocol of part 0; effects in other groups: foreign
//! ```
//!
//! A cluster without shards, and a proxy, has part 0 alone.

use super::{
    journal::Journal,
    proxy::Program,
    replica::{Pending, View},
};
use crate::timers::Timers;
use quintet_replica::{
    ClockReading, Effect, GroupId, Layout, Output, ReplicaId, ReplicaSet, Time, Wake,
    World as Outside, next_foreign,
};

/// See the module.
pub(super) struct Part {
    pub group: GroupId,
    /// The replicas that may be members.
    pub nodes: ReplicaSet,
    pub program: Option<Program>,
    pub journal: Journal,
    pub timers: Timers,
    pub ordered: Pending,
    pub reads: Pending,
    /// It has had something to do since its node was last idle, and when that is to look again.
    pub is_awake: bool,
    pub wake_at: u64,
    /// The turn of its machine that was the last to have something to do for it.
    pub turn: u64,
}

impl Part {
    fn new(group: GroupId, nodes: ReplicaSet) -> Self {
        Self {
            group,
            nodes,
            program: None,
            journal: Journal::default(),
            timers: Timers::default(),
            ordered: Pending::default(),
            reads: Pending::default(),
            is_awake: false,
            wake_at: u64::MAX,
            turn: 0,
        }
    }

    /// The first group, and those of the layout.
    pub fn all(layout: &Layout) -> Vec<Self> {
        let shards = layout.shards().iter();
        let shards = shards.map(|shard| Self::new(shard.group, shard.nodes));
        [Self::new(GroupId(0), ReplicaSet(u128::MAX))]
            .into_iter()
            .chain(shards)
            .collect()
    }

    /// Whether its node is to be told that nothing more has come.
    pub const fn is_due(&self, now: u64) -> bool {
        self.is_awake || self.wake_at <= now
    }

    /// Its node is idle until then.
    pub fn sleeps(&mut self, wake: Wake, now: u64) {
        self.is_awake = false;
        self.wake_at = match wake {
            Wake::Spin => now + 10_000,
            Wake::At(at) => at.0.max(now + 1_000),
            Wake::Sleep => u64::MAX,
        };
    }

    /// The process dies.
    pub fn crash(&mut self, durability: quintet_replica::Durability) {
        self.program = None;
        self.timers.clear();
        self.ordered = Pending::default();
        self.reads = Pending::default();
        self.journal.crash(durability);
        (self.is_awake, self.wake_at) = (false, u64::MAX);
    }

    /// Whether links to a replica are a part's of this one.
    pub const fn links(&self, own: ReplicaId, peer: ReplicaId) -> bool {
        self.nodes.contains(own) && self.nodes.contains(peer)
    }
}

/// Lends the protocol to the node of a part, or takes it back.
fn lend(parts: &mut [Part], part: usize) {
    if let Some((first, rest)) = parts.split_first_mut()
        && part > 0
        && let Some(Program::Replica(first)) = &mut first.program
        && let Some(Program::Replica(node)) = &mut rest[part - 1].program
    {
        first.lend_protocol(node);
    }
}

/// Calls a part with the protocol lent to it.
pub(super) fn call<R>(
    parts: &mut [Part],
    part: usize,
    (now, clock, room): (u64, ClockReading, usize),
    call: impl FnOnce(&mut Program, &dyn Outside, &mut Vec<Output>) -> R,
) -> Option<(R, Vec<Output>)> {
    lend(parts, part);
    let of = &mut parts[part];
    let view = View {
        now: Time(now),
        clock,
        room,
        journal: &of.journal,
    };
    let mut outputs = Vec::new();
    let result = (of.program.as_mut()).map(|program| call(program, &view, &mut outputs));
    lend(parts, part);
    Some((result?, outputs))
}

/// Effects that a call has had in other groups than the one of that call, in runs of one group.
pub(super) fn take_foreign(parts: &mut [Part]) -> Vec<(usize, Vec<Effect>)> {
    let mut foreign = Vec::new();
    if parts.len() > 1
        && let Some(Program::Replica(first)) = &mut parts[0].program
    {
        first.take_foreign(&mut foreign);
    }
    let mut foreign = foreign.into_iter().peekable();
    let mut runs = Vec::new();
    while let Some((group, run)) = next_foreign(&mut foreign) {
        let run: Vec<Effect> = run.collect();
        let part = parts.iter().position(|part| part.group == group);
        runs.extend(part.map(|part| (part, run)));
    }
    runs
}
