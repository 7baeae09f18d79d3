//! The faults of a seed.
//!
//! ```text
//!   a fault every 10 to 250 ms ──► within the limits of all groups
//!   a trap ──► the process that comes to a rare place next dies there, or those that it depends on
//! ```

use super::{
    draw::Part,
    world::{CLUSTER, Event, MILLISECOND, SECOND, World, pair},
};
use quintet_replica::{Durability, ReplicaId, journal::Identity};

/// The label of the stream that damages disks.
pub(super) const ROT: u64 = 0x0072_6f74;

/// The processes that die when one comes to a place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Victim {
    /// That process.
    Itself,
    /// The members of the shard concerned.
    Members,
}

/// Places at which it matters who dies.
const TRAPS: [(&str, &str, Victim); 8] = [
    ("ragged trim computed", "proposer dies", Victim::Itself),
    ("ragged trim adopted", "proposer dies again", Victim::Itself),
    ("entries of a shard fetched", "mover dies", Victim::Itself),
    ("entries of a shard fetched", "donors die", Victim::Members),
    (
        "log of a lost shard copied",
        "holder of a copy dies",
        Victim::Itself,
    ),
    ("shard begun", "member dies as it begins", Victim::Itself),
    ("restart inspected", "inspector dies", Victim::Itself),
    (
        "state installed",
        "process dies with a new state",
        Victim::Itself,
    ),
];

impl World {
    /// A process dies. It starts again after a while.
    pub fn crash(&mut self, at: usize, pause: u64) {
        if !self.processes[at].up {
            return;
        }
        self.say(|| format!("{at} crashes"));
        self.processes[at].crash(&mut self.random);
        self.look_away(at);
        for other in (0..self.processes.len()).filter(|other| *other != at) {
            self.break_line(at, other);
        }
        self.queue.push(self.now + pause, Event::Start(at));
    }

    pub fn maybe_crash(&mut self, at: usize, pause: u64) {
        if !self.calm && self.may_crash(&[at]) {
            self.crash(at, pause);
        }
    }

    /// Whether every group in memory outlives the crash of these processes.
    pub fn may_crash(&mut self, down: &[usize]) -> bool {
        let fixed = self.groups.iter().enumerate().all(|(place, group)| {
            if group.part != Part::Own || group.durability == Durability::Disk {
                return true;
            }
            self.missing(place, down) <= (group.members.len() - 1) / 2
        });
        fixed && self.shards_outlive(down)
    }

    /// How many members of a group have lost its log, or are among these.
    fn missing(&self, place: usize, down: &[usize]) -> usize {
        let group = &self.groups[place];
        let lost = group.members.iter().filter(|at| {
            let mut hosts = self.processes[**at].hosts.iter();
            let repairing = hosts.any(|host| host.group == place && host.repairing);
            let away = group.durability == Durability::Memory && !self.processes[**at].up;
            down.contains(at) || away || repairing
        });
        lost.count()
    }

    /// Whether all that a process has on its disk is on others, too.
    fn may_lose_disk(&mut self, at: usize) -> bool {
        let fixed = (0..self.groups.len()).all(|place| {
            let group = &self.groups[place];
            !group.members.contains(&at)
                || match group.part {
                    Part::Own => self.missing(place, &[at]) <= (group.members.len() - 1) / 2,
                    Part::Top => self.missing(place, &[at]) == 1,
                    Part::Shard(_) => true,
                }
        });
        let shards =
            !self.follows_view || self.shards_outlive(&[at]) && self.shards_outlive_disk(at);
        fixed && shards
    }

    /// A process comes to a place.
    pub fn maybe_spring(&mut self, at: usize, place: usize, mark: &'static str) {
        let Some((_, name, victim)) = self.trap.filter(|(of, ..)| *of == mark) else {
            return;
        };
        self.trap = None;
        self.count(name);
        let group = self.processes[at].hosts[place].group;
        let victims = match (victim, self.groups[group].part) {
            (Victim::Members, Part::Shard(shard)) => self.views.last_members(shard),
            _ => vec![at],
        };
        let soon = self.random.below(3) * self.random.below(MILLISECOND);
        for at in victims {
            let pause = self.pause();
            self.queue.push(self.now + soon, Event::Crash(at, pause));
        }
    }

    fn pause(&mut self) -> u64 {
        let most = match self.follows_view {
            true => [100, 400, 1_200][self.random.index(3)],
            false => 200,
        };
        self.random.between(2 * MILLISECOND, most * MILLISECOND)
    }

    pub fn inject(&mut self) {
        if self.calm {
            return;
        }
        let after = self.random.between(10 * MILLISECOND, 250 * MILLISECOND);
        self.queue.push(self.now + after, Event::Fault);
        let at = self.random.index(self.processes.len());
        let pause = self.pause();
        match self.follows_view {
            true => self.inject_in_shards(at, pause),
            false => self.inject_any(at, pause),
        }
    }

    fn inject_any(&mut self, at: usize, pause: u64) {
        match self.random.index(8) {
            0..=2 => self.crash_several("crash", vec![at]),
            3 => self.crash_all(pause),
            4 | 5 => self.divide(pause),
            6 => self.slow_disk(at, pause),
            _ => self.reset(at),
        }
    }

    fn inject_in_shards(&mut self, at: usize, pause: u64) {
        let shard = self.random.index(self.views.shards());
        let members = self.views.last_members(shard);
        match self.random.index(20) {
            0 | 1 => self.crash_several("crash", vec![at]),
            2 | 3 => self.crash_several("whole shard dies", members),
            4 => {
                let mut most = members;
                self.random.shuffle(&mut most);
                most.truncate(most.len() / 2 + 1);
                self.crash_several("majority of a shard dies", most);
            }
            5 => {
                let moving = self.views.moving();
                self.crash_several("those that move die", moving);
            }
            6..=8 => {
                let (mark, name, victim) = TRAPS[self.random.index(TRAPS.len())];
                self.trap = Some((mark, name, victim));
            }
            9 => self.crash_all(pause),
            10 => self.divide(pause),
            11 | 12 => {
                self.count("shard cut off");
                let with = self.random.index(self.processes.len());
                let alone = self.random.chance(500);
                let inside = |at: usize| members.contains(&at) || !alone && at == with;
                let side = (0..self.processes.len()).map(inside).collect();
                self.cut(side, pause);
            }
            13 => self.slow_disk(at, pause),
            14 | 15 => {
                self.count("one-way cut");
                let until = self.now + 2 * pause;
                let other = self.random.index(self.processes.len());
                let all = self.random.chance(500);
                for other in (0..self.processes.len()).filter(|it| all || *it == other) {
                    if let Some(line) = self.lines.get_mut(&pair(at, other)) {
                        line.hold(at < other, until);
                    }
                }
            }
            16 => {
                self.count("slow links");
                let until = self.now + 2 * pause;
                for other in 0..self.processes.len() {
                    if let Some(line) = self.lines.get_mut(&pair(at, other)) {
                        line.slow_down(until);
                    }
                }
            }
            17 | 18 if self.processes[at].up && self.may_lose_disk(at) => {
                self.count("disk lost");
                self.crash(at, pause);
                let keeps = self.keeps(at);
                self.processes[at].lose_disk(&keeps);
            }
            _ => self.reset(at),
        }
    }

    /// A process dies, and records on its disk are damaged, which others have, too.
    pub fn rot(&mut self) {
        if self.calm {
            return;
        }
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        self.rotting.shuffle(&mut order);
        let at = order
            .into_iter()
            .find(|at| self.processes[*at].up && self.may_lose_disk(*at));
        let after = match at {
            Some(_) => self.rotting.between(50 * MILLISECOND, SECOND),
            None => 20 * MILLISECOND,
        };
        self.queue.push(self.now + after, Event::Rot);
        let Some(at) = at else {
            return;
        };
        let pause = self.pause();
        self.crash(at, pause);
        let (cluster, node) = (CLUSTER, ReplicaId(at as u16));
        let identity = Identity { cluster, node };
        if self.processes[at].rot(&identity, &mut self.rotting) {
            self.count("disk damaged");
            // Until the start tells which of them are.
            let keeps = self.keeps(at);
            let hosts = self.processes[at].hosts.iter_mut().zip(keeps);
            hosts.for_each(|(host, keeps)| host.repairing |= keeps);
        }
    }

    fn crash_several(&mut self, name: &'static str, mut those: Vec<usize>) {
        those.retain(|at| self.processes[*at].up);
        if !those.is_empty() && self.may_crash(&those) {
            self.count(name);
            for at in those {
                let pause = self.pause();
                self.crash(at, pause);
            }
        }
    }

    fn crash_all(&mut self, pause: u64) {
        let all: Vec<usize> = (0..self.processes.len()).collect();
        if !self.may_crash(&all) {
            return;
        }
        self.count("crash of all");
        for at in all {
            let pause = match self.follows_view {
                true => self.pause(),
                false => pause,
            };
            self.crash(at, pause);
        }
    }

    fn divide(&mut self, pause: u64) {
        self.count("partition");
        let sides = (0..self.processes.len()).map(|_| self.random.chance(400));
        let sides = sides.collect();
        self.cut(sides, pause);
    }

    /// Nothing passes between those on one side and those on the other.
    pub fn cut(&mut self, side: Vec<bool>, pause: u64) {
        for a in 0..side.len() {
            for b in (a + 1..side.len()).filter(|b| side[a] != side[*b]) {
                if let Some(line) = self.lines.get_mut(&(a, b)) {
                    line.block();
                }
                self.break_line(a, b);
                self.queue.push(self.now + 2 * pause, Event::Heal(a, b));
            }
        }
    }

    fn slow_disk(&mut self, at: usize, pause: u64) {
        self.count("slow disk");
        self.processes[at].slow = self.random.between(5, 50);
        self.queue.push(self.now + pause, Event::Quick(at));
    }

    fn reset(&mut self, at: usize) {
        self.count("reset");
        let other = (at + 1) % self.processes.len();
        self.break_line(at, other);
    }
}
