//! One seed: its parts, and what happens in which order.

use super::{
    GroupsSeed, GroupsSetup,
    clients::Client,
    draw::{self, Part, Worlds},
    faults::{ROT, Victim},
    gone,
    links::Line,
    process::{Host, Process},
    services::{Actor, Answers},
    views::Views,
};
use crate::{
    checkers::{Violation, agreement::Agreement, cells, durable, exactly_once::ExactlyOnce},
    history::{History, Recorded},
    queue::Queue,
    random::Random,
};
use quintet::Retention;
use quintet_replica::{
    Bytes, ClusterId, Durability, Effect, Entry, EpochNumber, FrontendId, GroupId, Injected, Input,
    Node, Output, Peer, ReplicaId, SnapshotInfo, TimerKey,
};
use std::collections::{BTreeMap, VecDeque};

pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MILLISECOND;
pub(super) const CLUSTER: ClusterId = ClusterId(9);
pub(super) const EPOCH: EpochNumber = EpochNumber(1);
pub(super) const KEYS: u32 = 6;
/// From the end of the faults on the groups have this long to answer, and then to become equal.
const TIMEOUT: u64 = 40 * SECOND;
/// Operations of each client in each of its groups after the last fault.
pub(super) const AFTERWARDS: u64 = 3;

/// A group of the world.
pub(super) struct Group {
    pub id: GroupId,
    pub part: Part,
    pub entry: &'static Entry,
    pub durability: Durability,
    /// The processes that have a node of it.
    pub members: Vec<usize>,
    /// It runs a service, see [`services`](super::services).
    pub service: bool,
    pub history: History,
    pub agreement: Agreement,
    pub order: ExactlyOnce,
    /// By operation: when it was invoked.
    pub invoked: Vec<u64>,
    /// Its operations and order before it was begun again with nothing.
    pub past: Vec<(Vec<Recorded>, ExactlyOnce)>,
}

#[derive(Debug)]
pub(super) enum Event {
    Deliver {
        from: usize,
        to: usize,
        link: u32,
        frame: Bytes,
    },
    Timer {
        at: usize,
        host: usize,
        boot: u64,
        key: TimerKey,
    },
    Idle {
        at: usize,
        host: usize,
        boot: u64,
    },
    Synced {
        at: usize,
        boot: u64,
    },
    Saved {
        at: usize,
        host: usize,
        boot: u64,
        info: SnapshotInfo,
    },
    Connect(usize, usize),
    Start(usize),
    Crash(usize, u64),
    Ask(usize),
    Retry(usize, u64),
    /// Of an actor of the services.
    Act(usize),
    ActAgain(usize, u64),
    Waited(usize, u64),
    Fault,
    /// A disk is damaged.
    Rot,
    /// The contents of memory are given up, see [`gone`](super::gone).
    GiveUp,
    Heal(usize, usize),
    Quick(usize),
}

pub(super) struct World {
    pub random: Random,
    pub bug: Injected,
    pub now: u64,
    pub queue: Queue<Event>,
    /// Shards follow the view of the first group; otherwise all members are fixed.
    pub follows_view: bool,
    pub groups: Vec<Group>,
    pub ids: Vec<GroupId>,
    /// Of the first group, where it serves shards.
    pub options: Vec<(String, String)>,
    /// The option of all protocols that injects one.
    pub bugs: Vec<(String, String)>,
    pub processes: Vec<Process>,
    pub lines: BTreeMap<(usize, usize), Line>,
    pub clients: Vec<Client>,
    pub actors: Vec<Actor>,
    pub answers: Answers,
    /// Of the services.
    pub retention: Retention,
    pub outputs: Vec<Output>,
    pub foreign: Vec<(GroupId, Effect)>,
    pub later: VecDeque<(usize, usize, Input)>,
    pub violation: Option<Violation>,
    counts: BTreeMap<&'static str, u64>,
    lines_told: Option<Vec<String>>,
    pub calm: bool,
    /// The shards, as the checkers know them.
    pub views: Views,
    /// Processes that stay dead, and by group whether it is still to serve.
    pub gone: Vec<usize>,
    pub promised: Vec<bool>,
    /// The stream that damages disks.
    pub rotting: Random,
    /// The place of the next fault: its mark, the fault's name and victims.
    pub trap: Option<(&'static str, &'static str, Victim)>,
}

/// How much of the past the services keep.
fn retention(little: bool) -> Retention {
    let all = Retention::default();
    match little {
        true => Retention {
            versions: 40,
            age: Some(std::time::Duration::from_secs(2)),
            ..all
        },
        false => all,
    }
}

/// A bug of the journal or the node, or the option that injects one into the first group's protocol.
fn injected(bug: Option<&str>) -> (Injected, Option<(String, String)>) {
    #[cfg(feature = "bugs")]
    return match bug.map(|bug| (bug, Injected::named(bug))) {
        Some((bug, None)) => {
            let option = ("bug".to_owned(), bug.to_owned());
            (<_>::default(), Some(option))
        }
        Some((_, Some(bug))) => (bug, None),
        None => <_>::default(),
    };
    #[cfg(not(feature = "bugs"))]
    {
        assert!(bug.is_none(), "bugs are only in a build with the feature");
        <_>::default()
    }
}

pub(super) fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

pub(super) const fn peer(process: usize) -> Peer {
    Peer::Replica(ReplicaId(process as u16))
}

impl World {
    pub fn new(setup: &GroupsSetup<'_>, seed: u64) -> Self {
        let (worlds, tells) = (setup.worlds, setup.tells);
        let mut random = Random::new(seed);
        let drawn = random.between(5, 9) as usize;
        let count = setup.processes.unwrap_or(drawn);
        let serve = worlds == Worlds::Services;
        let follows_view = match worlds {
            Worlds::Pinned => false,
            Worlds::Shards => true,
            Worlds::Services => random.chance(500),
        };
        let mut drawn = match follows_view {
            true => draw::shards(count, &mut random),
            false => draw::fixed(count, &mut random),
        };
        // A bug of nodes or services is in the options of all protocols.
        let named = setup.bug.map(|name| ("bug".to_owned(), name.to_owned()));
        let (bug, option) = injected(setup.bug);
        let bugs: Vec<(String, String)> = match serve && option.is_none() {
            true => named.into_iter().collect(),
            false => Vec::new(),
        };
        drawn.options.extend(option);
        drawn.options.extend(bugs.iter().cloned());
        let groups: Vec<Group> = (drawn.all.into_iter())
            .map(|of| Group {
                id: of.id,
                part: of.part,
                entry: of.entry,
                durability: of.durability,
                members: of.members,
                service: serve && of.part != Part::Top,
                history: History::default(),
                agreement: Agreement::default(),
                order: ExactlyOnce::default(),
                invoked: Vec::new(),
                past: Vec::new(),
            })
            .collect();
        let processes: Vec<Process> = (0..count)
            .map(|at| {
                let here = groups.iter().enumerate();
                let here = here.filter(|(_, group)| group.members.contains(&at));
                Process::new(here.map(|(place, _)| Host::new(place)).collect())
            })
            .collect();
        // Other seeds stay the worlds that they were.
        let mut rotting = random.fork(ROT);
        let rots = rotting.chance(400);
        let gives_up = !serve && gone::gives_up(&groups, &mut random.fork(gone::GIVE_UP));
        let registers = groups.iter().enumerate().filter(|(_, of)| !of.service);
        let registers: Vec<usize> = registers.map(|(place, _)| place).collect();
        let clients = Client::draw(follows_view, &registers, &mut random);
        let actors = match serve {
            true => Actor::draw(&mut random),
            false => Vec::new(),
        };
        let mut world = Self {
            promised: vec![true; groups.len()],
            bug,
            now: SECOND,
            queue: Queue::new(),
            follows_view,
            ids: groups.iter().map(|group| group.id).collect(),
            clients,
            actors,
            answers: Answers::default(),
            retention: retention(serve && seed.is_multiple_of(3)),
            groups,
            options: drawn.options,
            bugs,
            lines: BTreeMap::new(),
            outputs: Vec::new(),
            foreign: Vec::new(),
            later: VecDeque::new(),
            violation: None,
            counts: BTreeMap::new(),
            lines_told: tells.then(Vec::new),
            calm: false,
            views: Views::new(drawn.layout, processes.len()),
            processes,
            gone: Vec::new(),
            trap: None,
            rotting,
            random,
        };
        for process in &mut world.processes {
            if serve && world.random.chance(600) {
                process.ahead = world.random.below(400 * MILLISECOND);
            }
        }
        for a in 0..count {
            for b in a + 1..count {
                world.lines.insert((a, b), Line::default());
            }
            let at = world.now + world.random.below(5 * MILLISECOND);
            world.queue.push(at, Event::Start(a));
        }
        for actor in 0..world.actors.len() {
            let at = world.now + world.random.below(100 * MILLISECOND);
            world.queue.push(at, Event::Act(actor));
        }
        for client in 0..world.clients.len() {
            let at = world.now + world.random.below(100 * MILLISECOND);
            world.queue.push(at, Event::Ask(client));
        }
        world
            .queue
            .push(world.now + 200 * MILLISECOND, Event::Fault);
        if rots {
            let at = world.now + world.rotting.between(200 * MILLISECOND, SECOND);
            world.queue.push(at, Event::Rot);
        }
        if gives_up {
            world.queue.push(world.now + SECOND, Event::GiveUp);
        }
        world
    }

    pub fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines_told {
            lines.push(format!("{:>12} {}", self.now / 1_000, what()));
        }
    }

    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn violate(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    pub fn demand(&mut self, checked: Result<(), Violation>) {
        if let Err(violation) = checked {
            self.violate(violation);
        }
    }

    pub fn run(mut self, found: &mut GroupsSeed) {
        let shape: Vec<String> = (self.groups.iter())
            .map(|group| {
                let (name, members) = (group.entry.info.name, &group.members);
                format!(
                    "{} {name} {} {members:?}",
                    group.id,
                    group.durability.name()
                )
            })
            .collect();
        let options = self.options.clone();
        self.say(|| format!("{} {options:?}", shape.join("; ")));
        let begin = self.now;
        let faults = match self.follows_view {
            true => 5,
            false => 3,
        };
        self.run_until(begin + faults * SECOND, |_| false);
        self.heal();
        self.lose_permanently();
        let healed = self.now;
        let busy = self.run_until(healed + TIMEOUT, |world| {
            let mut clients = world.clients.iter();
            clients.all(|client| client.is_done(&world.promised))
                && world.actors.iter().all(Actor::is_done)
        });
        let calm = self.now;
        let equal = busy && self.run_until(calm + TIMEOUT, Self::is_equal);
        if self.violation.is_none() && !equal {
            found.stall = Some(self.where_it_stands(busy));
        }
        if self.violation.is_none() && equal {
            self.check_groups();
        }
        found.acknowledged = self.groups.iter().map(|g| g.history.acknowledged).sum();
        found.acknowledged += self.answers.acknowledged();
        found.violation = self.violation;
        found.counts = self.counts;
        found.lines = self.lines_told.unwrap_or_default();
    }

    pub fn run_until(&mut self, end: u64, done: impl Fn(&Self) -> bool) -> bool {
        while self.violation.is_none() {
            if done(self) {
                return true;
            }
            let Some((at, event)) = self.queue.pop() else {
                return false;
            };
            if at > end {
                self.queue.push(at, event);
                self.now = end;
                return false;
            }
            self.now = at;
            self.handle(event);
            self.carry_on();
        }
        false
    }

    fn heal(&mut self) {
        self.calm = true;
        self.trap = None;
        self.say(|| "everything heals".to_owned());
        let pairs: Vec<(usize, usize)> = self.lines.keys().copied().collect();
        for (a, b) in pairs {
            if let Some(line) = self.lines.get_mut(&(a, b)) {
                line.heal();
            }
            self.queue.push(self.now, Event::Connect(a, b));
        }
        for process in &mut self.processes {
            process.slow = 1;
        }
    }

    /// The processes that execute what a group orders: all that have a node of it, or the members of a
    /// shard that is active.
    fn executors(&self, place: usize) -> Option<Vec<usize>> {
        match self.groups[place].part {
            Part::Own | Part::Top => {
                let members = self.groups[place].members.iter().copied();
                Some(members.filter(|at| !self.gone.contains(at)).collect())
            }
            Part::Shard(shard) => self.views.members(shard),
        }
    }

    fn is_equal(&self) -> bool {
        let promised = (0..self.groups.len()).filter(|place| self.promised[*place]);
        promised.into_iter().all(|place| {
            let Some(members) = self.executors(place) else {
                return false;
            };
            let nodes = members.iter().map(|at| self.node(*at, place));
            let mut executed = nodes.map(|node| node.map(|node| node.executed().position));
            let first = executed.next().flatten();
            first.is_some() && executed.all(|other| other == first)
        }) && self.views_are_told()
    }

    pub fn node(&self, at: usize, place: usize) -> Option<&Node> {
        let mut hosts = self.processes[at].hosts.iter();
        hosts.find(|host| host.group == place)?.node.as_ref()
    }

    fn where_it_stands(&self, busy: bool) -> String {
        let groups = self.groups.iter().enumerate().map(|(place, group)| {
            let open: u64 = self.clients.iter().map(|client| client.lacks(place)).sum();
            let executed: Vec<String> = (group.members.iter())
                .map(|at| match self.node(*at, place) {
                    Some(node) => format!("{at}:{}", node.executed().position),
                    None => format!("{at}:down"),
                })
                .collect();
            let (id, name) = (group.id, group.entry.info.name);
            let durability = group.durability.name();
            let part = match group.part {
                Part::Shard(shard) => format!(" {}", self.views.tell(shard)),
                Part::Own | Part::Top => String::new(),
            };
            format!(
                "{id} {name} {durability} lacks {open}{}, {}{part}",
                if self.promised[place] {
                    ""
                } else {
                    " (promises nothing)"
                },
                executed.join(" ")
            )
        });
        let what = if busy { "states" } else { "answers" };
        format!("{what}: {}", groups.collect::<Vec<_>>().join("; "))
    }

    fn check_groups(&mut self) {
        for place in 0..self.groups.len() {
            let members = self.executors(place).filter(|_| self.promised[place]);
            let members = members.unwrap_or_default();
            let mut states = Vec::new();
            for at in members {
                let hosts = self.processes[at].hosts.iter_mut();
                for host in hosts.filter(|host| host.group == place) {
                    if let Some(node) = &mut host.node {
                        let position = node.executed().position.0;
                        states.push((at as u16, position, node.state_digest()));
                    }
                }
            }
            if self.groups[place].service {
                let checked = self.check_service(place);
                self.demand(checked);
            }
            let group = &self.groups[place];
            let name = group.entry.info.name;
            let same = states.windows(2).all(|pair| pair[0].2 == pair[1].2);
            let history = group.history.operations();
            let mut checked = match group.entry.speculates {
                true => cells::check(history, |_| None),
                false => cells::check(history, |number| group.order.position(number)),
            };
            if !group.entry.speculates && self.promised[place] {
                let core: Vec<(u16, u64)> = states.iter().map(|s| (s.0, s.1)).collect();
                checked = checked.and_then(|()| durable::check(history, &group.order, &core));
            }
            for (operations, order) in &group.past {
                let before = cells::check(operations, |number| order.position(number));
                checked = checked.and(before);
            }
            if !same {
                let what = format!("group {place} of {name}: {states:?}");
                checked = Err(Violation::new("state_hash", what));
            }
            self.demand(checked);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver {
                from,
                to,
                link,
                frame,
            } => self.deliver(from, to, link, frame),
            Event::Timer {
                at,
                host,
                boot,
                key,
            } => {
                let process = &mut self.processes[at];
                let timers = &mut process.hosts[host].timers;
                let due = timers.get(&key).is_some_and(|due| *due <= self.now);
                if process.up && process.boot == boot && due {
                    timers.remove(&key);
                    self.input(at, host, Input::Timer(key));
                }
            }
            Event::Idle { at, host, boot } => {
                let process = &mut self.processes[at];
                let asked = process.hosts[host].idle_at == self.now;
                if process.up && process.boot == boot && asked {
                    process.hosts[host].idle_at = u64::MAX;
                    self.idle(at, host);
                }
            }
            Event::Synced { at, boot } => self.synced(at, boot),
            Event::Saved {
                at,
                host,
                boot,
                info,
            } => self.saved(at, host, boot, info),
            Event::Connect(a, b) => self.connect(a, b),
            Event::Start(at) if self.gone.contains(&at) => {}
            Event::Start(at) => self.start(at),
            Event::Crash(at, pause) => self.maybe_crash(at, pause),
            Event::Ask(client) => self.ask(client),
            Event::Retry(client, tries) => self.retry(client, tries),
            Event::Act(actor) => self.act(actor),
            Event::ActAgain(actor, tries) => self.act_again(actor, tries),
            Event::Waited(actor, tries) => self.waited(actor, tries),
            Event::Fault => self.inject(),
            Event::Rot => self.rot(),
            Event::GiveUp => self.give_up_memory(),
            Event::Heal(a, b) => {
                if let Some(line) = self.lines.get_mut(&pair(a, b)) {
                    line.unblock();
                }
                self.connect(a, b);
            }
            Event::Quick(at) => self.processes[at].slow = 1,
        }
    }
}

/// Unique per run of a process; names the process in its second byte.
pub(super) fn frontend(at: usize, place: usize, boot: u64) -> FrontendId {
    FrontendId((boot << 16) | ((at as u64) << 8) | (place as u64 + 1))
}
