//! The model's world: its events in order, its cores, its links.
//!
//! ```text
//!   Enqueue(task) ──► a core ──► the turn: cost charged ──► Flush: what it causes ──► End(task)
//! ```
//!
//! A turn looks at everything that waits when it begins. Its effects happen when its work is done,
//! one after the other: the client that gets the first reply asks again while others wait for
//! theirs.

use super::{
    Fault, FaultKind, Found, Moment, Placement, Setup,
    card::Card,
    clients::Clients,
    cores::{Cores, Task},
    replica::{Item, Replica, clock},
};
use crate::queue::Queue;
use quintet_replica::{
    Bytes, ClockReading, Incarnation, Lane, Layout, Link, Peer, ReplicaId, Time, TimerKey,
    links::{Change, Departures},
};
use std::{collections::BTreeMap, time::Duration};

/// An event.
#[derive(Debug)]
pub(super) enum Event {
    /// A task that slept wants a core.
    Enqueue(Task),
    /// A task has had its core.
    End(Task),
    /// A replica has done the work of its turn and hands out what came of it.
    Flush {
        replica: usize,
        boot: u32,
    },
    /// A frame arrives.
    Deliver {
        from: usize,
        to: usize,
        session: u32,
        frame: Bytes,
        /// For how many bytes it stands.
        bytes: usize,
    },
    /// It is in the memory of the machine.
    Landed {
        from: usize,
        to: usize,
        session: u32,
        frame: Bytes,
    },
    /// A client's request arrives at its replica.
    Request {
        client: usize,
        number: u64,
    },
    /// A reply arrives at its client.
    Reply {
        client: usize,
        number: u64,
        good: bool,
    },
    Timer {
        replica: usize,
        part: usize,
        boot: u32,
        key: TimerKey,
    },
    Idle {
        replica: usize,
        boot: u32,
        at: u64,
    },
    Synced {
        replica: usize,
        boot: u32,
    },
    SnapshotWritten {
        replica: usize,
        part: usize,
        boot: u32,
        bytes: u64,
    },
    SnapshotSaved {
        replica: usize,
        part: usize,
        boot: u32,
    },
    Connect {
        a: usize,
        b: usize,
    },
    LinkDown {
        at: usize,
        peer: usize,
    },
    /// The next request of an open loop is due.
    Due,
    /// A client whose replica died goes elsewhere.
    Retry {
        client: usize,
    },
    Begin(usize),
    Finish(usize),
    /// The adversary looks who leads.
    Hunt,
}

/// One end-to-end connection between two replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    pub up: bool,
    pub session: u32,
}

/// See the module.
pub(super) struct World {
    pub setup: Setup,
    /// The groups besides the first.
    pub layout: Layout,
    pub now: u64,
    pub queue: Queue<Event>,
    pub replicas: Vec<Replica>,
    pub clients: Clients,
    pub found: Found,
    pools: Vec<Cores>,
    links: Vec<Departures>,
    cards: Vec<Card>,
    pairs: Vec<Pair>,
    random: u64,
    /// When each disk has taken in what was written to it.
    disks: Vec<u64>,
    /// The way between clients and where they ask, if that is a way.
    pub clients_way: Departures,
}

const CONNECT: u64 = 200_000;
const RECONNECT: u64 = 10_000_000;
const DOWN_AFTER: u64 = 250_000_000;
const CLIENT_RETRY: u64 = 50_000_000;
/// How long to wait at the end for what is still in progress.
const DRAIN: Duration = Duration::from_secs(3);
const CONNECTION_QUEUE_MAX: usize = 64 << 20;

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let count = setup.replicas + setup.load.frontends;
        let pools = match setup.profile.placement {
            Placement::Shared => vec![Cores::new(setup.profile.cores.max(1))],
            Placement::Own => vec![Cores::new(1); 2 * count + 1],
        };
        let none = Layout::default();
        let layout = (setup.entry.layout)(&setup.options).unwrap_or_default();
        let links = (0..count)
            .map(|from| setup.links.departures(from as u16))
            .collect();
        Self {
            now: 0,
            queue: Queue::new(),
            replicas: (0..count)
                .map(|machine| {
                    Replica::new(if machine < setup.replicas {
                        &layout
                    } else {
                        &none
                    })
                })
                .collect(),
            clients: Clients::new(&setup, &layout),
            found: Found {
                busy: vec![0; count],
                ..Found::default()
            },
            pools,
            links,
            cards: vec![Card::default(); count],
            pairs: vec![Pair::default(); count * count],
            disks: vec![0; count.max(1)],
            clients_way: setup.links.departures(count as u16),
            layout,
            random: setup.seed ^ 0x5851_f42d_4c95_7f2d,
            setup,
        }
    }

    pub fn draw(&mut self) -> u64 {
        let draw = mixed(self.random);
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        draw
    }

    pub fn begins(&self) -> u64 {
        nanoseconds(self.setup.warmup)
    }

    pub fn ends(&self) -> u64 {
        nanoseconds(self.setup.warmup + self.setup.measured)
    }

    /// Replicas and frontends.
    pub const fn machines(&self) -> usize {
        self.setup.replicas + self.setup.load.frontends
    }

    /// The identity of a machine for its peers.
    fn peer(&self, machine: usize) -> Peer {
        match self.replicas[machine].program() {
            Some(program) if program.node().is_none() => Peer::Frontend(program.frontend()),
            _ => Peer::Replica(ReplicaId(machine as u16)),
        }
    }

    /// When what leaves for a client at that time, or comes from one, arrives.
    pub fn reaches_client(&mut self, leaves: u64, machine: usize, bytes: usize) -> u64 {
        let at = leaves + self.setup.profile.hop;
        if !self.setup.load.remote {
            return at;
        }
        // Each client has a way of its own: nothing waits for what others sent.
        self.clients_way.reset(machine as u16);
        let arrival = self.clients_way.depart(Time(at), machine as u16, 0, bytes);
        arrival.map_or(at, |arrival| arrival.0)
    }

    /// How far a machine's clock is off now, and how far it says that it may be.
    pub fn clock_error(&self, machine: usize) -> (i64, u64) {
        let clocks = &self.setup.clocks;
        let most = nanoseconds(clocks.error);
        let mut off = 0;
        if most > 0 {
            let draw = mixed(self.setup.seed ^ (machine as u64 + 1).wrapping_mul(0x9e37_79b9));
            let wide = u128::from(draw) * (2 * u128::from(most) + 1);
            off = (wide >> 64) as i64 - most as i64;
        }
        let now = Duration::from_nanos(self.now);
        if let Some(step) = &clocks.step
            && usize::from(step.machine) == machine
            && now >= step.at
            && step.until.is_none_or(|until| now < until)
        {
            let by = nanoseconds(step.by) as i64;
            off += if step.forward { by } else { -by };
        }
        (off, most)
    }

    /// The reading of a machine's clock.
    pub fn clock(&self, machine: usize) -> ClockReading {
        let (off, error) = self.clock_error(machine);
        clock(self.now, off, error)
    }

    /// A machine took a rare branch.
    pub fn note(&mut self, branch: &'static str) {
        if !self.is_measured() {
            return;
        }
        let now = self.now - self.begins();
        let first = Moment {
            first: now,
            last: now,
            count: 0,
        };
        let moment = self.found.moments.entry(branch).or_insert(first);
        moment.last = now;
        moment.count += 1;
    }

    fn paths(&self) -> BTreeMap<&'static str, u64> {
        let mut paths = BTreeMap::new();
        for machine in 0..self.machines() {
            for (path, count) in self.paths_of(machine) {
                *paths.entry(path).or_default() += count;
            }
        }
        paths
    }

    pub fn is_measured(&self) -> bool {
        (self.begins()..self.ends()).contains(&self.now)
    }

    pub fn run(mut self) -> Found {
        for replica in 0..self.replicas.len() {
            self.boot(replica);
        }
        for a in 0..self.setup.replicas {
            for b in a + 1..self.replicas.len() {
                self.queue.push(CONNECT, Event::Connect { a, b });
            }
        }
        for (index, fault) in self.setup.faults.clone().iter().enumerate() {
            self.queue.push(nanoseconds(fault.at), Event::Begin(index));
            if let Some(until) = fault.until {
                self.queue.push(nanoseconds(until), Event::Finish(index));
            }
        }
        if let Some(hunt) = self.setup.hunt {
            self.queue.push(nanoseconds(hunt.at), Event::Hunt);
        }
        self.start_clients();
        let last = self.ends() + nanoseconds(DRAIN);
        let mut before = None;
        while self.found.broken.is_none() {
            let Some((at, event)) = self.queue.pop() else {
                break;
            };
            if at > last || (at >= self.ends() && self.clients.in_progress() == 0) {
                break;
            }
            if at >= self.begins() && before.is_none() {
                before = Some(self.paths());
            }
            self.now = at;
            self.on_event(event);
        }
        self.found.unanswered = self.clients.in_progress();
        self.found.paths = self.paths();
        for (path, count) in before.unwrap_or_default() {
            let all = self.found.paths.entry(path).or_default();
            *all = all.saturating_sub(count);
        }
        let leads = |id: usize| Some((self.led_by(id)?, id));
        let leader = (0..self.setup.replicas).filter_map(leads).max();
        self.found.details = leader.map_or_else(Vec::new, |(_, id)| self.details_of(id));
        self.found.frontends = self.found.busy.split_off(self.setup.replicas);
        self.found
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Enqueue(task) => self.ask(task),
            Event::End(task) => self.on_end(task),
            Event::Flush { replica, boot } => self.flush(replica, boot),
            Event::Deliver {
                from,
                to,
                session,
                frame,
                bytes,
            } => {
                let cards = self.setup.cards;
                let at = self.cards[to].arrives(cards, self.now, bytes);
                let landed = Event::Landed {
                    from,
                    to,
                    session,
                    frame,
                };
                if cards.is_plain() {
                    self.on_event(landed);
                } else {
                    self.queue.push(at, landed);
                }
            }
            Event::Landed {
                from,
                to,
                session,
                frame,
            } => {
                if self.pair(from, to).session == session && self.pair(from, to).up {
                    let peer = self.peer(from);
                    self.give(to, Item::Frame(peer, Time(self.now), frame));
                }
            }
            Event::Request { client, number } => self.on_request(client, number),
            Event::Reply {
                client,
                number,
                good,
            } => self.on_reply(client, number, good),
            Event::Timer {
                replica,
                part,
                boot,
                key,
            } => self.on_timer((replica, part), boot, key),
            Event::Idle { replica, boot, at } => {
                let found = &mut self.replicas[replica];
                if found.boot == boot && found.idle_at == at {
                    found.idle_at = u64::MAX;
                    // In the middle of a turn it looks again when that is over.
                    found.overslept = found.is_running();
                    self.want(replica);
                }
            }
            Event::Synced { replica, boot } => {
                if self.replicas[replica].boot == boot && self.replicas[replica].is_up() {
                    self.on_synced(replica);
                }
            }
            Event::SnapshotWritten {
                replica,
                part,
                boot,
                bytes,
            } => {
                if self.replicas[replica].boot == boot {
                    self.give(replica, Item::SnapshotWritten(part, bytes));
                }
            }
            Event::SnapshotSaved {
                replica,
                part,
                boot,
            } => {
                let of = &mut self.replicas[replica];
                if of.boot == boot
                    && let Some(info) = of.parts[part].journal.snapshot_finish()
                {
                    self.give(replica, Item::SnapshotSaved(part, info));
                }
            }
            Event::Connect { a, b } => self.connect(a, b),
            Event::LinkDown { at, peer } => {
                if !self.pair(at, peer).up {
                    let peer = self.peer(peer);
                    self.give(at, Item::Link(peer, Link::Down));
                }
            }
            Event::Due => self.on_due(),
            Event::Retry { client } => self.on_retry(client),
            Event::Begin(index) => self.begin_fault(index),
            Event::Finish(index) => self.end_fault(index),
            Event::Hunt => self.on_hunt(),
        }
    }

    // --- cores -----------------------------------------------------------------------------

    const fn pool(&self, task: Task) -> usize {
        match (self.setup.profile.placement, task) {
            (Placement::Shared, _) => 0,
            (Placement::Own, Task::Replica(index)) => index,
            (Placement::Own, Task::Journal(index)) => self.machines() + index,
            (Placement::Own, Task::Generator) => 2 * self.machines(),
        }
    }

    /// Whether a task that asked now would have to wait for a core.
    pub fn is_crowded(&self, task: Task) -> bool {
        !self.pools[self.pool(task)].has_free()
    }

    /// The task wants a core, now.
    pub fn ask(&mut self, task: Task) {
        let pool = self.pool(task);
        if self.pools[pool].ask(task) {
            self.begin(task);
        }
    }

    fn begin(&mut self, task: Task) {
        let cost = match task {
            Task::Replica(index) => self.turn(index),
            Task::Journal(index) => self.begin_sync(index),
            Task::Generator => self.generate(),
        };
        if self.is_measured() {
            match task {
                Task::Replica(index) | Task::Journal(index) => self.found.busy[index] += cost,
                Task::Generator => self.found.generator += cost,
            }
        }
        self.queue.push(self.now + cost, Event::End(task));
    }

    fn on_end(&mut self, task: Task) {
        match task {
            Task::Replica(index) => self.turn_ends(index),
            Task::Journal(index) => self.sync_begun(index),
            Task::Generator => self.generated(),
        }
        let pool = self.pool(task);
        if let Some(next) = self.pools[pool].release() {
            self.begin(next);
        }
    }

    fn begin_sync(&mut self, index: usize) -> u64 {
        let replica = &mut self.replicas[index];
        // One synchronisation for all groups.
        let parts = replica.parts.iter_mut();
        let bytes = parts.map(|part| part.journal.begin()).sum();
        replica.sync_bytes = bytes;
        let slept = std::mem::take(&mut replica.slept.journal);
        let slept = self.cost_of_sleep(slept);
        let costs = &self.setup.profile.costs;
        slept + costs.sync + kib(costs.sync_kib, bytes)
    }

    fn sync_begun(&mut self, index: usize) {
        let draw = self.draw();
        let profile = &self.setup.profile;
        let replica = &self.replicas[index];
        let boot = replica.boot;
        let transfer = kib(profile.sync_kib, replica.sync_bytes);
        // The journals of one machine share its disk.
        let disk = match profile.placement {
            Placement::Shared => 0,
            Placement::Own => index,
        };
        let begins = self.disks[disk].max(self.now);
        self.disks[disk] = begins + transfer;
        let latency = begins - self.now + transfer + quantile(&profile.sync, draw);
        let latency = latency + self.disk_delay(index, latency);
        if self.is_measured() {
            self.found.syncs += 1;
        }
        let replica = index;
        self.queue
            .push(self.now + latency, Event::Synced { replica, boot });
    }

    fn on_synced(&mut self, replica: usize) {
        let mut more = false;
        for part in 0..self.replicas[replica].parts.len() {
            let (upto, waits) = self.replicas[replica].parts[part].journal.done();
            more |= waits;
            if let Some(upto) = upto {
                self.give(replica, Item::Persisted(part, upto));
            }
        }
        self.replicas[replica].syncing = more;
        if more {
            self.ask(Task::Journal(replica));
        }
    }

    /// How much longer a synchronisation takes that begins now and would take `latency`.
    fn disk_delay(&self, index: usize, latency: u64) -> u64 {
        let now = Duration::from_nanos(self.now);
        let faults = self.setup.faults.iter();
        let faults = faults.filter(|fault| usize::from(fault.replica) == index && fault.at <= now);
        let more = faults.map(|fault| match (fault.kind, fault.until) {
            (_, Some(until)) if until <= now => 0,
            (FaultKind::SlowDisk(more), _) => nanoseconds(more),
            (FaultKind::HungDisk, Some(until)) => {
                nanoseconds(until).saturating_sub(self.now + latency)
            }
            // Longer than any run.
            (FaultKind::HungDisk, None) => u64::MAX / 4,
            (FaultKind::Crash | FaultKind::Pause, _) => 0,
        });
        more.max().unwrap_or(0)
    }

    // --- links -----------------------------------------------------------------------------

    pub fn pair(&mut self, a: usize, b: usize) -> &mut Pair {
        let count = self.machines();
        &mut self.pairs[a.min(b) * count + a.max(b)]
    }

    pub const fn room(&self) -> usize {
        CONNECTION_QUEUE_MAX
    }

    /// A frame leaves one for another at that time, which is not past.
    pub fn transmit(&mut self, at: u64, (from, to): (usize, usize), lane: Lane, frame: Bytes) {
        let pair = *self.pair(from, to);
        if !pair.up {
            return;
        }
        let bytes = self.setup.cards.weight(lane, frame.len());
        if self.is_measured() {
            self.found.frames += 1;
            self.found.bytes += bytes as u64;
        }
        let departs = Time(at);
        let given = self.cards[from].leaves(self.setup.cards, at, bytes);
        let way = &mut self.links[from];
        let arrival = if self.setup.datagrams && lane == Lane::Control {
            way.depart_loose(departs, to as u16, bytes)
        } else {
            way.depart(departs, to as u16, lane as usize, bytes)
        };
        let Some(at) = arrival else { return };
        let session = pair.session;
        let at = at.0.max(given) + self.setup.profile.hop;
        self.queue.push(
            at,
            Event::Deliver {
                from,
                to,
                session,
                frame,
                bytes,
            },
        );
    }

    fn connect(&mut self, a: usize, b: usize) {
        let alive = [a, b].iter().all(|index| self.replicas[*index].is_up());
        let pair = self.pair(a, b);
        if pair.up || !alive {
            return;
        }
        pair.up = true;
        for (at, peer) in [(a, b), (b, a)] {
            let incarnation = Incarnation(self.replicas[peer].incarnation);
            let peer = self.peer(peer);
            self.give(at, Item::Link(peer, Link::Up { incarnation }));
        }
    }

    /// Breaks a link, if there is one, and tells the one at the other end.
    fn break_link(&mut self, index: usize, other: usize) -> bool {
        let pair = self.pair(index, other);
        if !pair.up {
            return false;
        }
        pair.up = false;
        pair.session += 1;
        self.links[other].reset(index as u16);
        self.links[index].reset(other as u16);
        let peer = self.peer(index);
        self.give(other, Item::Link(peer, Link::Reset));
        true
    }

    /// Breaks all links of a machine, and makes them again.
    pub fn renew_links(&mut self, index: usize) {
        for other in (0..self.machines()).filter(|other| *other != index) {
            if self.break_link(index, other) {
                let peer = self.peer(other);
                self.give(index, Item::Link(peer, Link::Reset));
                let (a, b) = (index.min(other), index.max(other));
                self.queue
                    .push(self.now + RECONNECT, Event::Connect { a, b });
            }
        }
    }

    // --- faults ----------------------------------------------------------------------------

    fn begin_fault(&mut self, index: usize) {
        let Fault { replica, kind, .. } = self.setup.faults[index];
        let victim = usize::from(replica);
        match kind {
            // Seen whenever a synchronisation begins.
            FaultKind::SlowDisk(_) | FaultKind::HungDisk => {}
            FaultKind::Pause => self.replicas[victim].paused = true,
            FaultKind::Crash => {
                self.crash(victim);
                for other in (0..self.machines()).filter(|other| *other != victim) {
                    if self.break_link(victim, other) {
                        let down = Event::LinkDown {
                            at: other,
                            peer: victim,
                        };
                        self.queue.push(self.now + DOWN_AFTER, down);
                    }
                }
                for client in self.clients.lost(victim) {
                    self.found.failed += 1;
                    self.queue
                        .push(self.now + CLIENT_RETRY, Event::Retry { client });
                }
            }
        }
    }

    /// The leader by its own word in the newest view sends late until the next look.
    fn on_hunt(&mut self) {
        let Some(hunt) = self.setup.hunt else { return };
        let now = Duration::from_nanos(self.now);
        if now >= hunt.until {
            return;
        }
        let until = (now + hunt.every).min(hunt.until);
        let leads = |id: usize| Some((self.led_by(id)?, id));
        if let Some((_, leader)) = (0..self.setup.replicas).filter_map(leads).max() {
            let change = Change {
                at: now,
                until: Some(until),
                delay_more: hunt.delay_more,
                ..Change::default()
            };
            self.links[leader].change(Time(self.now), change);
        }
        self.queue.push(nanoseconds(until), Event::Hunt);
    }

    fn end_fault(&mut self, index: usize) {
        let Fault { replica, kind, .. } = self.setup.faults[index];
        let victim = usize::from(replica);
        match kind {
            FaultKind::SlowDisk(_) | FaultKind::HungDisk => {}
            FaultKind::Pause => {
                self.replicas[victim].paused = false;
                self.want(victim);
            }
            FaultKind::Crash => {
                self.boot(victim);
                for other in (0..self.machines()).filter(|other| *other != victim) {
                    let (a, b) = (victim.min(other), victim.max(other));
                    self.queue
                        .push(self.now + RECONNECT, Event::Connect { a, b });
                }
            }
        }
    }
}

/// The cost of `bytes` at so much for each KiB.
pub(super) const fn kib(each: u64, bytes: usize) -> u64 {
    each * bytes as u64 / 1024
}

/// 64 bits that depend on all of these.
pub(super) const fn mixed(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A value between quantiles at equal steps, for 64 random bits.
fn quantile(values: &[u64], draw: u64) -> u64 {
    let steps = values.len().saturating_sub(1) as u128;
    let place = u128::from(draw) * steps;
    let (step, part) = ((place >> 64) as usize, place as u64);
    let low = values.get(step).copied().unwrap_or(0);
    let high = values.get(step + 1).copied().unwrap_or(low);
    low + ((u128::from(high.saturating_sub(low)) * u128::from(part)) >> 64) as u64
}
