//! The shards as they are seen from outside: views, members, and who takes part.

use super::{
    draw::Part,
    world::{Group, World},
};
use crate::checkers::{
    lost::Lost,
    roles::{self, Roles, ShardSeen, read},
};
use quintet_replica::{Durability, Layout, Node, ReplicaId, ReplicaSet, Slot, Status};

/// After these a process may see its shards otherwise than before.
const TELLING: [&str; 6] = [
    "view installed",
    "shard begun",
    "state installed",
    "minority halts",
    "suspected by another",
    "restart agreed",
];

/// How a process stands to one shard.
#[derive(Clone, Copy, Debug, Default)]
struct Stand {
    /// The view in which it takes part; 0 for none.
    taking: u64,
    /// It holds a complete log of this view.
    holds: Option<u64>,
}

/// See the module.
pub(super) struct Views {
    layout: Layout,
    roles: Roles,
    lost: Vec<Lost>,
    /// By process and shard.
    stands: Vec<Vec<Stand>>,
    /// The processes to look at.
    pub flagged: Vec<bool>,
    /// By shard: how often it was begun again.
    generations: Vec<u64>,
}

impl Views {
    pub fn new(layout: Layout, processes: usize) -> Self {
        let shards = layout.shards().len();
        Self {
            roles: Roles::new(layout.clone()),
            lost: (0..shards)
                .map(|shard| Lost::new(layout.subgroup(shard).min))
                .collect(),
            stands: vec![vec![Stand::default(); shards]; processes],
            flagged: vec![false; processes],
            generations: vec![0; shards],
            layout,
        }
    }

    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn shards(&self) -> usize {
        self.layout.shards().len()
    }

    /// A process has this mark.
    pub fn note(&mut self, at: usize, mark: &str) {
        self.flagged[at] |= TELLING.contains(&mark);
    }

    /// The members of a shard that is active; none where it is lost.
    pub fn members(&self, shard: usize) -> Option<Vec<usize>> {
        let of = self.roles.present(shard)?;
        let members = of.members.iter().map(ReplicaId::index).collect();
        self.roles.is_active(shard).then_some(members)
    }

    /// The members of a shard when it was last active.
    pub fn last_members(&self, shard: usize) -> Vec<usize> {
        let of = self.roles.present(shard);
        let members = of.map_or(ReplicaSet::EMPTY, |of| of.members);
        members.iter().map(ReplicaId::index).collect()
    }

    /// Those that are to become members of some shard.
    pub fn moving(&self) -> Vec<usize> {
        let moving = (0..self.shards()).filter_map(|shard| self.roles.present(shard));
        let moving = moving.map(|of| of.targets.0 & !of.members.0);
        let moving = ReplicaSet(moving.fold(0, |all, of| all | of));
        moving.iter().map(ReplicaId::index).collect()
    }

    pub fn tell(&self, shard: usize) -> String {
        let newest = self.roles.newest();
        let present = self.roles.present(shard);
        format!("in view {newest}: {present:?}, least {}", self.least(shard))
    }

    fn least(&self, shard: usize) -> usize {
        self.layout.subgroup(shard).min
    }

    /// Whether some process besides these takes part in a shard, or holds the log of one that is
    /// lost.
    pub fn is_held_without(&self, shard: usize, away: &[usize]) -> bool {
        let Some(present) = self.roles.present(shard) else {
            return false;
        };
        let active = self.roles.is_active(shard);
        let stands = self.stands.iter().enumerate();
        let mut others = stands.filter(|(at, _)| !away.contains(at));
        others.any(|(_, stands)| match active {
            true => stands[shard].taking == present.active_in,
            false => stands[shard].holds == Some(present.active_in),
        })
    }

    pub fn is_active(&self, shard: usize) -> bool {
        self.roles.is_active(shard)
    }
}

impl World {
    fn top(&self, at: usize) -> Option<&Node> {
        self.processes[at].hosts.first()?.node.as_ref()
    }

    fn place_of_shard(&self, shard: usize) -> usize {
        let is_it = |group: &Group| group.part == Part::Shard(shard);
        self.groups.iter().position(is_it).unwrap_or(0)
    }

    /// Looks at what a process knows of its shards.
    pub fn look(&mut self, at: usize) {
        self.views.flagged[at] = false;
        let shards = self.views.shards();
        let Some(top) = self.top(at).filter(|_| shards > 0) else {
            return;
        };
        let of = |shard: usize| top.status_in(self.views.layout.shards()[shard].group);
        let statuses: Vec<Status> = (0..shards).map(of).collect();
        let seen: Vec<(ShardSeen, roles::Stand)> = statuses.iter().map(read).collect();
        let view = statuses[0].view;
        let by = at as u16;
        let shown: Vec<ShardSeen> = seen.iter().map(|(seen, _)| seen.clone()).collect();
        if view > self.views.roles.newest() {
            self.say(|| format!("{at} sees view {view}: {shown:?}"));
        }
        let saw = self.views.roles.saw(by, view, &shown);
        self.demand(saw);
        for (shard, (of, _)) in seen.iter().enumerate() {
            if of.generation > self.views.generations[shard] {
                self.views.generations[shard] = of.generation;
                self.was_begun_again(self.place_of_shard(shard));
            }
        }
        for (shard, (of, stands)) in seen.into_iter().enumerate() {
            let taking = match statuses[shard].role {
                "member" => view,
                _ => 0,
            };
            let stand = &mut self.views.stands[at][shard];
            let before = std::mem::replace(&mut stand.taking, taking);
            stand.holds = stands.complete.then_some(of.active_in);
            if before == taking {
                continue;
            }
            if before > 0 {
                self.views.lost[shard].ends(ReplicaId(by), before, self.now);
            }
            self.say(|| format!("{at} takes part in shard {shard} in {taking}, was {before}"));
            if taking == 0 {
                continue;
            }
            self.views.lost[shard].begins(ReplicaId(by), view);
            let place = self.place_of_shard(shard);
            let processes = &self.processes;
            let held = |id: ReplicaId, slot: Slot| {
                let mut hosts = processes[id.index()].hosts.iter();
                hosts.any(|host| host.group == place && host.end >= slot)
            };
            let on_disk = self.groups[place].durability == Durability::Disk;
            let held: Option<&dyn Fn(ReplicaId, Slot) -> bool> = on_disk.then_some(&held);
            let from = stands.ordered_from;
            let begins = self.views.roles.begins(by, shard, view, from, held);
            self.demand(begins);
        }
    }

    /// A process has died.
    pub fn look_away(&mut self, at: usize) {
        for (shard, stand) in self.views.stands[at].iter_mut().enumerate() {
            let stand = std::mem::take(stand);
            if stand.taking > 0 {
                self.views.lost[shard].ends(ReplicaId(at as u16), stand.taking, self.now);
            }
        }
    }

    /// Something was executed at a process, perhaps.
    pub fn account(&mut self, at: usize, place: usize) {
        let Some(host) = self.processes[at].hosts.get(place) else {
            return;
        };
        let (Part::Shard(shard), Some(node)) = (self.groups[host.group].part, &host.node) else {
            return;
        };
        let slot = node.executed().slot;
        let view = self.views.stands[at][shard].taking;
        if view > 0 {
            let delivered = self.views.roles.delivered(at as u16, shard, view, slot);
            self.demand(delivered);
        }
    }

    /// A client has an answer from a shard that is not only of the past.
    pub fn answered(&mut self, place: usize, invoked: u64, is_command: bool) {
        if let Part::Shard(shard) = self.groups[place].part {
            let answered = self.views.lost[shard].answered(invoked, is_command);
            self.demand(answered);
        }
    }

    /// The size of the newest view, if a majority of it is at work in it and no process that runs is
    /// elsewhere: no other view is on its way then.
    fn settled(&mut self) -> Option<usize> {
        self.settled_without(&[])
    }

    /// Whether all of this holds, and holds without these.
    pub fn majority_is_at_work_without(&mut self, gone: &[usize]) -> bool {
        self.settled_without(gone).is_some()
    }

    fn settled_without(&mut self, gone: &[usize]) -> Option<usize> {
        let up = (0..self.processes.len()).filter(|at| self.processes[*at].up);
        let up: Vec<usize> = up.collect();
        up.iter().for_each(|at| self.look(*at));
        let newest = self.views.roles.newest();
        let mut size = None;
        for at in &up {
            let status = self.top(*at)?.protocol_status();
            if status.view != newest || !["leader", "member"].contains(&status.role) {
                return None;
            }
            let members = status.details.iter().find(|(name, _)| *name == "members")?;
            size = Some(members.1.split_whitespace().count());
        }
        let left = up.iter().filter(|at| !gone.contains(at)).count();
        size.filter(|size| left * 2 > *size)
    }

    /// Whether every shard in memory outlives these.
    pub fn shards_outlive(&mut self, down: &[usize]) -> bool {
        let in_memory = |shard: &usize| {
            let of = self.views.layout.subgroup(*shard);
            of.durability == Durability::Memory
        };
        let shards: Vec<usize> = (0..self.views.shards()).filter(in_memory).collect();
        if shards.is_empty() {
            return true;
        }
        let settled = self.settled().is_some();
        let away: Vec<usize> = (0..self.processes.len())
            .filter(|at| down.contains(at) || !self.processes[*at].up)
            .collect();
        settled && (shards.iter()).all(|shard| self.views.is_held_without(*shard, &away))
    }

    /// Whether all that is on the disk of a process is elsewhere, too.
    pub fn shards_outlive_disk(&mut self, at: usize) -> bool {
        let enough = self.settled().is_some_and(|size| size >= 4);
        enough
            && (0..self.views.shards()).all(|shard| {
                self.views.is_active(shard) && self.views.is_held_without(shard, &[at])
            })
    }
}
