//! The second phase: a core is healed and must converge.
//!
//! ```text
//!   safety phase over ──► faults end, a viable core is drawn, the others are down or cut off
//!        │
//!        ▼
//!   new commands commit (20) ──► clients stop ──► all of the core as far as the furthest was
//!        │                                             │
//!        │                                             ▼
//!        │                               every key is read at every replica of the core
//!        ▼ no command within `Protocol::RESUMES_WITHIN`, or not all within 40 s: a stall
//!   described by who leads and how far each came; the core was viable, so it is a bug
//! ```

use crate::{
    checkers::{Violation, bounded, durable, linearizability, replayed},
    clock::{MILLISECOND, SECOND},
    drawing::look,
    event::Event,
    history::Fate,
    process::Process,
    recording::{self, Outcome},
    workload::CONVERGE_MAX,
    world::{Phase, World},
};
use quintet_replica::{Level, Link, Node, NodeState, ReplicaId, ReplicaSet, Slot};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    time::Duration,
};

/// Commits after healing without which a seed does not count.
pub(crate) const COMMITS_MIN: u64 = 20;
/// A change decided so soon after healing was in progress before: it may let a replica in that is
/// outside the core, and gone with the others.
const IN_PROGRESS: u64 = 100 * MILLISECOND;
/// Where writes continue until everybody is near, who has not caught up with where the others were
/// so long ago is behind …
const NEAR: u64 = SECOND;
/// … and must not be any more after so long.
const STEADY_MAX: u64 = 20 * SECOND;
/// One that is to be behind stays down for so long after healing.
const LATE: u64 = 400 * MILLISECOND;
/// The safety phase ends after this, always.
const SAFETY_MAX: u64 = 25 * SECOND;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Commit,
    Settle,
    Read,
}

/// A partition that lasts.
#[derive(Debug)]
pub(crate) struct Partition {
    pub injection: usize,
    /// Frames that had been held back before it began.
    pub frames_blocked: u64,
    /// Directions that are cut, as (from, to).
    pub links: Vec<(usize, usize)>,
}

/// Where the furthest was when replicas were compared first: they are level when all are there. They
/// need not be equally far: they continue by themselves where digests are compared every few
/// milliseconds, and one that executes ahead of its commit is ahead at any moment. Where they are,
/// what that one had may have been undone.
#[derive(Debug, Default)]
struct LevelAt(Cell<Option<Slot>>);

impl LevelAt {
    fn is_reached(&self, slots: &[Slot]) -> bool {
        let (Some(least), Some(most)) = (slots.iter().min(), slots.iter().max()) else {
            return false;
        };
        let level = self.0.get().unwrap_or(*most);
        let reached = least == most || *least >= level;
        // A later request depends on the executions until then.
        self.0.set((!reached).then_some(level));
        reached
    }
}

/// The state of the second phase, and of the faults that it must undo.
#[derive(Debug)]
pub(crate) struct Healing {
    /// Clients continue invoking.
    pub wants_operations: bool,
    /// Operations from this number on were invoked after healing.
    pub first_operation: u32,
    /// Acknowledged since healing, invoked after it.
    pub commits: u64,
    /// From the last fault to the first of them, in nanoseconds.
    pub resumed_after: Option<u64>,
    pub core: Vec<usize>,
    pub partitions: Vec<Partition>,
    /// Slow links that last: injection, from, to.
    pub slowed: Vec<(usize, usize, usize)>,
    /// The protocol promises that the core continues; else a stall is no violation.
    viable: bool,
    /// The replicas' states at healing, until those of operations in progress then are known, too.
    states: Option<Vec<NodeState>>,
    /// The leader that was cut off so that others vote.
    pub silenced: Option<usize>,
    stage: Stage,
    began: u64,
    /// When the last fault is over.
    calm_since: u64,
    /// Since healing some of the core fetched a state without whom the others cannot continue.
    fetch_needed: bool,
    /// The furthest slot of the core, and when it was reached; of the last while.
    furthest: VecDeque<(u64, Slot)>,
    level: LevelAt,
    pub last_reads: Vec<(usize, Range<usize>)>,
}

impl Default for Healing {
    fn default() -> Self {
        Self {
            wants_operations: true,
            first_operation: u32::MAX,
            commits: 0,
            resumed_after: None,
            core: Vec::new(),
            partitions: Vec::new(),
            slowed: Vec::new(),
            viable: true,
            states: None,
            silenced: None,
            stage: Stage::Commit,
            began: 0,
            calm_since: 0,
            fetch_needed: false,
            furthest: VecDeque::new(),
            level: LevelAt::default(),
            last_reads: Vec::new(),
        }
    }
}

impl Healing {
    /// An operation invoked after healing was acknowledged.
    pub fn on_done(&mut self, write: bool, now: u64) {
        if write {
            self.commits += 1;
            let since = now.saturating_sub(self.calm_since);
            self.resumed_after.get_or_insert(since);
        }
    }

    /// A fault armed in the first phase, such as a sync that will fail, takes effect after healing:
    /// a replica is down until then.
    pub fn injected(&mut self, until: u64) {
        self.calm_since = self.calm_since.max(until);
    }

    /// Whether clients still repeat what they are uncertain of.
    pub fn wants_retries(&self) -> bool {
        self.stage == Stage::Commit
    }
}

/// How long a replica that the others cannot do without takes to fetch a state, and another one
/// behind it: each has this number of bytes, and `rate` pass per second, whatever the protocol does.
fn fetches(bytes: u64, rate: u64) -> u64 {
    (2 * SECOND * bytes).checked_div(rate).unwrap_or(0)
}

impl World {
    /// Whether a replica is outside the healed core.
    pub fn is_out(&self, node: usize) -> bool {
        self.phase == Phase::Liveness && !self.healing.core.contains(&node)
    }

    /// Looks whether the phase is over.
    pub fn look(&mut self) {
        match self.phase {
            Phase::Safety => {
                let invoked = self.history.operations().len() as u64;
                let whole = match self.setup.limits.heal_at {
                    Some(at) => self.now >= at,
                    None => invoked >= self.setup.operations && self.injections_open == 0,
                };
                if whole || self.now > SAFETY_MAX {
                    self.heal();
                }
            }
            Phase::Liveness => self.converge(),
            Phase::Over => {}
        }
        self.queue.push(self.now + 10 * MILLISECOND, Event::Look);
    }

    fn draw_core(&mut self) -> Vec<usize> {
        let all: Vec<usize> = self.voters.set().iter().map(ReplicaId::index).collect();
        if self.setup.faults == crate::faults::FaultSet::NONE {
            return all;
        }
        // Those that have lost their data stay down.
        let kept = all.into_iter();
        let all: Vec<usize> = kept
            .filter(|node| !self.processes[*node].is_lost())
            .collect();
        // One that is to be behind is one of several that the others can do without.
        if self.shape.steady || self.random.chance(400) {
            return all;
        }
        for _ in 0..8 {
            let mut core = all.clone();
            self.random.shuffle(&mut core);
            core.truncate(1 + self.random.index(all.len()));
            core.sort_unstable();
            if self.is_viable(&core) {
                return core;
            }
        }
        all
    }

    /// One of the core without which the others continue: it comes back when the logs of the others
    /// no longer reach back to where it was.
    fn draw_late(&mut self, core: &[usize]) -> Option<usize> {
        let mut order = core.to_vec();
        self.random.shuffle(&mut order);
        order.into_iter().find(|node| {
            let others: Vec<usize> = core.iter().copied().filter(|it| it != node).collect();
            let runs = self.processes[*node].node.is_some();
            runs && self.may_crash(&[*node]) && self.is_viable(&others)
        })
    }

    /// A learner that may be among the others: the core does not need it, but it must come as far
    /// as they.
    fn draw_learner(&mut self) -> Option<usize> {
        let learners = ReplicaSet(self.all.0 & !self.voters.set().0);
        let mut learners = learners.iter().map(ReplicaId::index);
        let learner = learners.find(|node| !self.processes[*node].is_lost())?;
        self.ending_random.chance(700).then_some(learner)
    }

    fn heal(&mut self) {
        self.end_all();
        let mut core = self.draw_core();
        core.extend(self.draw_learner());
        let late = match self.shape.steady {
            true => self.draw_late(&core),
            false => None,
        };
        if let Some(node) = late {
            self.crash(node);
        }
        self.trace.say(self.now, || format!("HEALED core {core:?}"));
        self.phase = Phase::Liveness;
        self.replace_members();
        self.healed_at = self.now;
        self.healing.states = Some(self.core_states(&core));
        self.healing.core = core;
        self.healing.began = self.now;
        self.healing.calm_since = self.now;
        self.healing.first_operation = self.history.operations().len() as u32;
        for node in 0..self.replicas_max() {
            let runs = self.processes[node].node.is_some();
            if !self.all.contains(ReplicaId(node as u16)) {
                // It may become a member still.
                self.crash(node);
                continue;
            }
            if !self.is_out(node) {
                if !runs {
                    let wait = self.random.between(1, 200) * MILLISECOND;
                    let at = self.now + wait + if late == Some(node) { LATE } else { 0 };
                    self.queue.push(at, Event::Restart { node: node as u16 });
                }
                continue;
            }
            if runs && self.random.chance(500) {
                self.crash(node);
            } else {
                self.isolate(node);
            }
        }
        for client in 0..self.clients.len() {
            let at = self.now + self.random.between(1, 50) * MILLISECOND;
            self.turn_at(client, at);
        }
    }

    fn isolate(&mut self, node: usize) {
        for other in 0..self.network.places() {
            if other != node {
                self.break_link(node, other, Link::Down);
                self.network.block(node, other);
                self.network.block(other, node);
            }
        }
        self.disconnect_clients(node);
    }

    /// One of the core that was isolated as it was none.
    pub(crate) fn reach(&mut self, node: usize) {
        let places = (0..self.network.places()).filter(|other| *other != node);
        let is_core = |other: &usize| *other >= self.replicas_max() || !self.is_out(*other);
        let reached: Vec<usize> = places.filter(is_core).collect();
        for other in reached {
            for (from, to) in [(node, other), (other, node)] {
                self.network.unblock(from, to, self.now, &mut self.queue);
            }
        }
    }

    /// Whether all of the core run and are level.
    fn core_is_level(&self) -> bool {
        let slots = self.healing.core.iter().map(|node| {
            let process: &Process = &self.processes[*node];
            process.node.as_ref().map(|node| node.executed().slot)
        });
        let slots = slots.collect::<Option<Vec<Slot>>>();
        slots.is_some_and(|slots| self.healing.level.is_reached(&slots))
    }

    /// Whether all of the core have come as far as the furthest had a while ago.
    fn core_is_near(&mut self) -> bool {
        let executed = self.healing.core.iter().map(|node| {
            let process: &Process = &self.processes[*node];
            let node = process.node.as_ref();
            node.map_or(Slot(0), |node| node.executed().slot)
        });
        let slots: Vec<Slot> = executed.collect();
        let (least, most) = (slots.iter().min(), slots.iter().max());
        let (Some(least), Some(most)) = (least, most) else {
            return true;
        };
        let furthest = &mut self.healing.furthest;
        furthest.push_back((self.now, *most));
        while furthest.len() > 1 && furthest[1].0 + NEAR <= self.now {
            furthest.pop_front();
        }
        let (since, slot) = furthest[0];
        since + NEAR <= self.now && *least >= slot
    }

    /// How long the core may take to the first new command.
    fn resumes_within(&self) -> u64 {
        let promised = self.protocols.iter().map(|entry| entry.resumes_within);
        let promised = promised.max().unwrap_or_default().as_nanos() as u64;
        // Other timeouts than the usual, or a network that stays slow, are held to the wider bound
        // alone; and a shrunk case may have no client left.
        let usual = self.setup.has_usual_times() && !self.setup.faults.asynchrony;
        if !usual || self.setup.limits.commits_min == 0 {
            return u64::MAX / 2;
        }
        match self.healing.fetch_needed {
            true => {
                promised + fetches(self.shape.snapshot_padding as u64, self.shape.transfer_rate)
            }
            false => promised,
        }
    }

    fn look_for_needed_fetch(&mut self) {
        let fetches = |node: &usize| {
            let node = self.processes[*node].node.as_ref();
            node.is_some_and(Node::is_fetching)
        };
        let core = &self.healing.core;
        if self.shape.transfer_rate > 0 && core.iter().any(fetches) {
            let others: Vec<usize> = core.iter().copied().filter(|it| !fetches(it)).collect();
            self.healing.fetch_needed |= !self.is_viable(&others);
        }
    }

    fn converge(&mut self) {
        if self.processes.iter().any(|it| it.replaced_in.is_some()) {
            // Those that have the state may have lost it for a while when their epoch began.
            self.replace_members();
        }
        if self.now > self.healing.began + IN_PROGRESS
            && let Some(states) = self.healing.states.take()
        {
            self.healing.viable = self.viable(&states);
        }
        self.look_for_needed_fetch();
        let most = match self.setup.faults.asynchrony {
            // The cause of the slowness continues.
            true => 10 * CONVERGE_MAX,
            false if self.shape.steady && self.healing.stage == Stage::Commit => STEADY_MAX,
            false => CONVERGE_MAX,
        };
        if self.now > self.healing.began + most {
            if !self.healing.viable {
                // The protocol promises nothing to such a core.
                self.unrecoverable = true;
                self.phase = Phase::Over;
                return;
            }
            let (stage, commits) = (self.healing.stage, self.healing.commits);
            self.stall = Some(format!(
                "the healed core {:?} did not converge in {} s: stage {stage:?}, {commits} commits; \
                 {}",
                self.healing.core,
                most / SECOND,
                self.describe()
            ));
            return;
        }
        let is_late = self.healing.resumed_after.is_none()
            && self.now > self.healing.calm_since + self.resumes_within();
        if is_late && self.healing.viable {
            self.stall = Some(format!(
                "the healed core {:?} acknowledged no new command in {:?}; {}",
                self.healing.core,
                Duration::from_nanos(self.resumes_within()),
                self.describe()
            ));
            return;
        }
        let commits = self.healing.stage == Stage::Commit;
        let is_behind = commits && self.shape.steady && !self.core_is_near();
        let is_content = self.healing.commits >= self.setup.limits.commits_min;
        match self.healing.stage {
            Stage::Commit if is_behind => {}
            Stage::Commit if is_content => {
                self.healing.wants_operations = false;
                self.healing.stage = Stage::Settle;
            }
            Stage::Settle if self.clients_wait() => {}
            Stage::Settle if self.core_is_level() => {
                self.healing.stage = Stage::Read;
                let mut voters = self.healing.core.clone();
                voters.retain(|node| self.voters.contains(ReplicaId(*node as u16)));
                self.read_at(&voters);
            }
            Stage::Read => {
                let fate = |number: usize| &self.history.get(number).fate;
                let done = |reads: &Range<usize>| {
                    let mut fates = reads.clone().map(fate);
                    fates.all(|fate| matches!(fate, Fate::Done(..)))
                };
                let failed = |reads: &Range<usize>| {
                    let mut fates = reads.clone().map(fate);
                    fates.any(|fate| matches!(fate, Fate::Failed | Fate::Uncertain))
                };
                let last = &self.healing.last_reads;
                if last.iter().all(|(_, reads)| done(reads)) {
                    if self.core_is_level() {
                        self.phase = Phase::Over;
                    }
                } else if last.iter().any(|(_, reads)| failed(reads)) && self.core_is_level() {
                    // A fault armed in the first phase, such as a sync that will fail, may take
                    // effect now: a replica that it stops is asked once it is back, as a request to
                    // a replica that does not run would never be answered or fail. A replica that
                    // has answered is not asked again: where answers take long, some would always
                    // fail.
                    let again: Vec<usize> = last
                        .iter()
                        .filter(|(_, reads)| failed(reads))
                        .map(|(node, _)| *node)
                        .collect();
                    self.read_at(&again);
                }
            }
            _ => {}
        }
    }

    /// Reads every key at these replicas, in place of what was read there before.
    fn read_at(&mut self, nodes: &[usize]) {
        for node in nodes {
            let first = self.history.operations().len();
            let client = self.client_at(*node);
            let service = self.mix.service;
            let reads = (0..self.shape.keys).map(|key| look(service, key)).collect();
            self.invoke(client, reads);
            let reads = first..self.history.operations().len();
            self.healing.last_reads.retain(|(before, _)| before != node);
            self.healing.last_reads.push((*node, reads));
        }
    }

    /// The checks that need the whole history.
    pub fn check_end(&mut self) {
        let checked = self
            .check_refused()
            .and_then(|()| self.check_linearizable())
            .and_then(|()| self.check_order())
            .and_then(|()| self.check_replayed())
            .and_then(|()| self.check_past());
        if let Err(violation) = checked {
            self.violate(violation);
        }
    }

    /// The history as clients would have recorded it. Stale reads promise less, and are left out.
    fn recorded(&self) -> Vec<recording::Operation> {
        let all = self.history.operations().iter().zip(&self.manners);
        all.map(|(recorded, manner)| recording::Operation {
            client: format!("{}.{}", recorded.client, manner.connection).into(),
            call: recorded.operation.clone(),
            invoked: recorded.invoked,
            outcome: match &recorded.fate {
                _ if manner.level == Level::Stale => Outcome::Failed,
                Fate::Done(at, answer) => Outcome::Answered {
                    at: *at,
                    answer: answer.clone(),
                },
                Fate::Failed => Outcome::Failed,
                Fate::Open | Fate::Uncertain => Outcome::Unknown,
            },
        })
        .collect()
    }

    fn check_linearizable(&mut self) -> Result<(), Violation> {
        let operations = self.recorded();
        // The order in which the replicas executed; reads come after all of their position.
        let mut ranks = BTreeMap::new();
        for position in 1.. {
            let Some((_, commands)) = self.agreement.at(position) else {
                break;
            };
            for (place, command) in commands.iter().enumerate() {
                ranks.insert(command.number, position << 20 | place as u64);
            }
        }
        for (_, queried) in &self.queries {
            let number = queried.id.sequence.wrapping_sub(1);
            ranks
                .entry(number)
                .or_insert(queried.position << 20 | 0xf_ffff);
        }
        let hint = |number: usize| ranks.get(&(number as u64)).copied();
        let limits = linearizability::Limits {
            steps: 200_000,
            memory: 64 << 20,
            evidence: 30_000,
        };
        let report = linearizability::check_with(&operations, &limits, &hint);
        match report.verdict {
            linearizability::Verdict::Linearizable => Ok(()),
            // Neither right nor wrong: the seed proves nothing, and does not count.
            linearizability::Verdict::Unknown(_) => {
                self.undecided = true;
                Ok(())
            }
            linearizability::Verdict::Impossible(evidence) => Err(Violation::new(
                "linearizability",
                evidence.describe(&operations, |number| format!("operation {number}")),
            )),
        }
    }

    /// Executes the agreed order again, and compares all that anybody was answered.
    fn check_replayed(&self) -> Result<(), Violation> {
        let history = self.history.operations();
        let service = self.mix.service;
        let mut queries = self.queries.clone();
        queries.sort_by_key(|(_, queried)| queried.position);
        let answer = |number: u64| match &history.get(number as usize)?.fate {
            Fate::Done(_, answer) => Some(answer),
            _ => None,
        };
        // Reads whose answer is that of a replica at some position.
        let mut explained: BTreeMap<u64, Vec<(u16, u64)>> = BTreeMap::new();
        let mut at = 0;
        let replied = |replayed: replayed::Replayed<'_>| {
            let (number, position) = (
                replayed.number,
                queries.get(at).map_or(0, |(_, q)| q.position),
            );
            at += usize::from(replayed.read_at.is_some());
            let Some(got) = answer(number) else {
                return Ok(());
            };
            let given = service.decode(&history[number as usize].operation, replayed.reply);
            let same = given.as_ref() == Some(got);
            match replayed.read_at {
                Some(by) if same => explained.entry(number).or_default().push((by, position)),
                None if !same => {
                    let given = given.map_or_else(String::new, |given| given.to_string());
                    return Err(Violation::new(
                        "replayed",
                        format!(
                            "operation {number} was answered {got}, a fresh machine answers \
                             {given}: {}",
                            history[number as usize].operation
                        ),
                    ));
                }
                _ => {}
            }
            Ok(())
        };
        let options = quintet_store::StoreOptions::default();
        let mut machine = self.mix.machine_with(&self.shape, options);
        let (order, states) = (&self.agreement, &self.states);
        let payload = |number: u64| self.payload(number);
        let end = replayed::check(order, states, &queries, &mut *machine, payload, replied)?;
        // Behind a hole in the order nothing can explain an answer.
        let unknown = queries.iter().filter(|(_, queried)| queried.position > end);
        let unknown = unknown.map(|(_, queried)| queried.id.sequence.wrapping_sub(1));
        self.check_reads(&explained, &unknown.collect())
    }

    /// Every read out of order was answered by some replica's state; and of one connection to one
    /// run of a replica, a later read never from an older state than an earlier one.
    fn check_reads(
        &self,
        explained: &BTreeMap<u64, Vec<(u16, u64)>>,
        unknown: &BTreeSet<u64>,
    ) -> Result<(), Violation> {
        let mut newest: BTreeMap<(u16, usize, u32), Vec<(u64, u64)>> = BTreeMap::new();
        for (number, recorded) in self.history.operations().iter().enumerate() {
            let manner = &self.manners[number];
            let (Fate::Done(done, answer), false) =
                (&recorded.fate, manner.level == Level::Ordered)
            else {
                continue;
            };
            // A read that was sent again in the order is no query.
            if self.once.position(number).is_some() {
                continue;
            }
            let Some(places) = explained.get(&(number as u64)) else {
                if unknown.contains(&(number as u64)) {
                    continue;
                }
                return Err(Violation::new(
                    "reads",
                    format!(
                        "read {number} was answered {answer}, which no replica's state said: {}",
                        recorded.operation
                    ),
                ));
            };
            let Some((node, boot)) = manner.server else {
                continue;
            };
            // A read that was asked again is answered by several states, of which the client saw
            // one: as the earlier it may have been the oldest, as the later the newest.
            let here = places.iter().filter(|(by, _)| usize::from(*by) == node);
            let here = || here.clone().map(|(_, position)| *position);
            let (Some(oldest), Some(position)) = (here().min(), here().max()) else {
                continue;
            };
            let earlier = newest.entry((recorded.client, node, boot)).or_default();
            let before = earlier.iter().filter(|(done, _)| *done < recorded.invoked);
            if let Some(before) = before.map(|(_, position)| *position).max()
                && position < before
            {
                return Err(Violation::new(
                    "reads",
                    format!(
                        "read {number} at replica {node} saw position {position}; the same \
                         connection had seen {before}"
                    ),
                ));
            }
            earlier.push((*done, oldest));
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), Violation> {
        let history = self.history.operations();
        self.once.check_failed(history)?;
        if self.stall.is_none() && !self.unrecoverable && self.phase == Phase::Over {
            let core: Vec<(u16, u64)> = (self.healing.core.iter())
                .filter_map(|node| {
                    let running = self.processes[*node].node.as_ref()?;
                    Some((*node as u16, running.executed().position.0))
                })
                .collect();
            durable::check(history, &self.once, &core)?;
        }
        bounded::check(self.seen_largest(), self.bounds())
    }

    fn seen_largest(&self) -> bounded::Largest {
        let records = self
            .processes
            .iter()
            .map(|process| process.disk.records_max)
            .max();
        bounded::Largest {
            link_bytes: self.network.in_flight_max,
            journal_records: records.unwrap_or(0),
            batches_open: self.largest.batches_open,
        }
    }

    fn bounds(&self) -> bounded::Bounds {
        // Every operation may be sent a few times and stand in every journal a few times.
        let operations = self.history.operations().len() * 16 + 4096;
        bounded::Bounds {
            link_bytes: self.network.capacity(),
            journal_records: operations * 4,
            batches_open: operations,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_level_though_one_is_ahead_at_any_moment() {
        let level = LevelAt::default();
        let compared = |executed: [u64; 3]| level.is_reached(&executed.map(Slot));
        assert!(!compared([7, 5, 5]));
        assert!(!compared([8, 6, 7]));
        assert!(compared([9, 7, 8]));
        assert!(!compared([9, 8, 8]), "of what has been executed since");
        assert!(compared([8, 8, 8]), "what one had was undone");
        assert!(!level.is_reached(&[]));
    }

    #[test]
    fn time_to_resume_begins_when_the_last_replica_is_back() {
        let mut healing = Healing::default();
        healing.injected(5 * SECOND);
        healing.injected(4 * SECOND);
        healing.on_done(false, 6 * SECOND);
        assert_eq!(healing.resumed_after, None, "no write");
        healing.on_done(true, 7 * SECOND);
        healing.on_done(true, 8 * SECOND);
        assert_eq!(healing.resumed_after, Some(2 * SECOND));
    }

    #[test]
    fn states_that_come_slowly_are_waited_for() {
        assert_eq!(fetches(6 << 20, 3 << 20), 4 * SECOND);
        assert_eq!(fetches(6 << 20, 0), 0, "as fast as they can");
    }
}
