//! Processes that die permanently after the faults, and what the others still promise.
//!
//! ```text
//!   a seed in two ──► some processes die, fewer than the group can do without
//!   fixed members ──► as their protocol says, of those that are left
//!   shard         ──► its log is at one that is left, and enough that may be members are left
//! ```
//!
//! A group that promises nothing is asked nothing, and what it has answered is checked all the same.
//!
//! ```text
//!   shards in memory, once in some seeds: a few processes are cut off, all others die and begin
//!   them again ──► a history of its own from there on; those with the old content come back
//! ```

use super::{
    draw::Part,
    world::{Event, Group, MILLISECOND, SECOND, World},
};
use crate::{checkers::agreement::Agreement, history::Fate, random::Random};
use quintet_replica::{Durability, NodeState, Place, ReplicaId};

/// So long it is waited for the others to be enough.
const WAIT: u64 = 10 * SECOND;

/// The label of the stream that decides whether the contents of memory are given up.
pub(super) const GIVE_UP: u64 = 0x6769_7665;

fn in_memory(group: &Group) -> Option<usize> {
    match group.part {
        Part::Shard(shard) if group.durability == Durability::Memory => Some(shard),
        _ => None,
    }
}

/// The label of the stream that decides whether a member of a shard is cut off meanwhile, for so long
/// that the shard is begun again before it comes back.
const OLD: u64 = 0x6f_6c64;

/// Whether a seed with these groups has that fault.
pub(super) fn gives_up(groups: &[Group], random: &mut Random) -> bool {
    groups.iter().any(|group| in_memory(group).is_some()) && random.chance(500)
}

impl World {
    /// Some processes are cut off, and the operator of all others, which die, gives up what shards had
    /// in memory, while all of these work.
    pub fn give_up_memory(&mut self) {
        if self.calm {
            return;
        }
        let shards: Vec<usize> = self.groups.iter().filter_map(in_memory).collect();
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        self.random.shuffle(&mut order);
        order.truncate(self.random.below(3) as usize);
        let mut apart = self.random.fork(OLD);
        let holds_old = apart.chance(500);
        if holds_old {
            let members = self.views.last_members(shards[apart.index(shards.len())]);
            order = members
                .get(apart.index(members.len().max(1)))
                .into_iter()
                .copied()
                .collect();
        }
        let all_up = self.processes.iter().all(|process| process.up);
        let own = |group: &Group| group.part == Part::Own && group.durability == Durability::Memory;
        let works = all_up
            && !self.groups.iter().any(own)
            && self.majority_is_at_work_without(&order)
            && shards.iter().all(|shard| self.views.is_active(*shard));
        if !works {
            return self.queue.push(self.now + 20 * MILLISECOND, Event::GiveUp);
        }
        self.count("memory given up");
        self.say(|| format!("all but {order:?} give up what they have in memory"));
        let side = (0..self.processes.len()).map(|at| order.contains(&at));
        let side: Vec<bool> = side.collect();
        let pause = match holds_old {
            true => apart.between(600, 1500) * MILLISECOND,
            false => self.random.between(50, 1500) * MILLISECOND,
        };
        self.cut(side.clone(), pause);
        for at in (0..self.processes.len()).filter(|at| !side[*at]) {
            for host in &mut self.processes[at].hosts {
                host.begins_again = in_memory(&self.groups[host.group]).is_some();
            }
            self.crash(at, MILLISECOND);
        }
    }

    /// A group begins with nothing: what was answered before is a history of its own.
    pub fn was_begun_again(&mut self, place: usize) {
        self.count("shard begun again");
        for client in 0..self.clients.len() {
            let Some(number) = self.clients[client].give_up(place) else {
                continue;
            };
            self.groups[place].history.end(number, Fate::Uncertain);
            self.queue.push(self.now, Event::Ask(client));
        }
        let group = &mut self.groups[place];
        let before = group.history.begin_again();
        let order = std::mem::take(&mut group.order);
        group.past.push((before, order));
        group.agreement = Agreement::default();
        for process in &mut self.processes {
            let hosts = process.hosts.iter_mut().filter(|host| host.group == place);
            hosts.for_each(|host| host.begins_again = false);
        }
    }

    /// In a seed of two some die permanently, as soon as the others continue without them.
    pub fn lose_permanently(&mut self) {
        // Services are asked to the end, and hand-offs are to be executed by all.
        if !self.actors.is_empty() || self.random.chance(500) {
            return;
        }
        let count = self.processes.len();
        let mut order: Vec<usize> = (0..count).collect();
        self.random.shuffle(&mut order);
        order.truncate(self.random.between(1, count.div_ceil(2) as u64 - 1) as usize);
        let end = self.now + WAIT;
        while self.now < end && self.violation.is_none() {
            let most = (1..=order.len()).rev();
            let gone = most.map(|most| order[..most].to_vec());
            let gone: Vec<Vec<usize>> = gone.collect();
            if let Some(gone) = gone.into_iter().find(|gone| self.continues_without(gone)) {
                return self.lose(gone);
            }
            self.run_until(self.now + 20 * MILLISECOND, |_| false);
        }
    }

    fn lose(&mut self, gone: Vec<usize>) {
        self.promised = (0..self.groups.len())
            .map(|place| self.promises(place, &gone))
            .collect();
        self.count("some die permanently");
        if self.promised.contains(&false) {
            self.count("a group promises nothing any more");
        }
        self.say(|| format!("{gone:?} die permanently"));
        self.gone.clone_from(&gone);
        for at in gone {
            self.crash(at, 0);
        }
        for client in 0..self.clients.len() {
            self.clients[client].begin_again(&self.promised);
            self.queue.push(self.now, Event::Ask(client));
        }
    }

    /// Whether these may die, and the membership of shards, if there is one, continues.
    fn continues_without(&mut self, gone: &[usize]) -> bool {
        // A process that is down tells no view, and the newest may be its own.
        let outlived = self.processes.iter().all(|it| it.up) && self.may_crash(gone);
        outlived && (!self.follows_view || self.majority_is_at_work_without(gone))
    }

    /// Whether a group is to serve when these are gone and all others run.
    fn promises(&self, place: usize, gone: &[usize]) -> bool {
        let group = &self.groups[place];
        match group.part {
            Part::Own => self.is_viable(place, group, gone) && self.has_a_view(group, place, gone),
            Part::Top => true,
            Part::Shard(shard) => self.serves_without(shard, gone),
        }
    }

    fn is_viable(&self, place: usize, group: &Group, gone: &[usize]) -> bool {
        let memory = group.durability == Durability::Memory;
        let repairing = |at: usize| {
            let mut hosts = self.processes[at].hosts.iter();
            hosts.any(|host| host.group == place && host.repairing)
        };
        let states: Vec<NodeState> = (group.members.iter().enumerate())
            .map(|(rank, at)| NodeState {
                id: ReplicaId(rank as u16),
                up: !gone.contains(at),
                state_lost: repairing(*at) || memory && !self.processes[*at].up,
            })
            .collect();
        (group.entry.viable)(group.members.len(), &states)
    }

    /// Where a protocol has views of its members, whether the newest continues without these.
    fn has_a_view(&self, group: &Group, place: usize, gone: &[usize]) -> bool {
        let there = group.members.iter().filter_map(|at| {
            let status = self.node(*at, place)?.protocol_status();
            let mut details = status.details.iter();
            let (_, ids) = details.find(|(name, _)| *name == "members")?;
            let size = ids.split_whitespace().count();
            let at_work = ["leader", "member"].contains(&status.role);
            Some((status.view, size, at_work && !gone.contains(at)))
        });
        let there: Vec<(u64, usize, bool)> = there.collect();
        let newest = there.iter().map(|(view, size, _)| (*view, *size)).max();
        newest.is_none_or(|(newest, size)| {
            let left = there
                .iter()
                .filter(|(view, _, left)| *view == newest && *left);
            left.count() * 2 > size
        })
    }

    /// Whether a shard's log is at one of the others, and enough of them may be its members.
    fn serves_without(&self, shard: usize, gone: &[usize]) -> bool {
        let of = self.views.layout().subgroup(shard);
        let left = |nodes: quintet_replica::ReplicaSet| {
            let left = nodes.iter().filter(|id| !gone.contains(&id.index()));
            left.count()
        };
        let stays = self.views.members(shard);
        let stays = stays.is_some_and(|members| {
            let left = members.iter().filter(|at| !gone.contains(at));
            left.count() >= of.min
        });
        let candidates = left(self.views.layout().shards()[shard].nodes);
        let enough = match of.place {
            Place::Pinned(_) => candidates >= of.min,
            Place::Among(_) => candidates >= of.min * of.groups.len(),
            // Its members are those of other shards.
            Place::Union(_) => false,
        };
        (stays || enough) && self.views.is_held_without(shard, gone)
    }
}
