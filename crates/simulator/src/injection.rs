//! The effects of faults on a running world.
//!
//! ```text
//!   Inject ──► within the budget? ──no──► later, a few times
//!                 │ yes
//!                 ▼
//!              takes effect (counted) ──duration──► InjectionEnds ──► undone
//! ```
//!
//! The budget is the promise of the protocol: those that have lost their data permanently, and in
//! memory durability those that have lost their state and not yet recovered, must leave a set that
//! the protocol calls viable. In disk durability every replica may crash: the disks survive.

use crate::{
    clock::{MILLISECOND, SECOND},
    disk::Damage,
    event::Event,
    faults::Kind,
    heal::Partition,
    network::Weather,
    process::{Armed, Harm, Moment, Process},
    world::{Phase, World},
};
use quintet_replica::{Control, Durability, Input, Link, Node, NodeState, ReplicaId};

const TRIES_MAX: u8 = 12;
/// A crash that waits for its moment waits this long.
const MOMENT_MAX: u64 = 700 * MILLISECOND;

impl World {
    /// The state of each replica if those in `dying` crashed now.
    fn states(&self, dying: &[usize]) -> Vec<NodeState> {
        (self.processes.iter().enumerate())
            .map(|(id, process)| {
                // A learner has its state in memory only.
                let learns = process.node.as_ref().is_some_and(Node::is_learner);
                let dies = dying.contains(&id) || process.is_dying();
                let remembers = match &process.node {
                    None => process.boot == 0,
                    Some(_) if dies => false,
                    // The first run has lost nothing.
                    Some(_) if process.boot == 1 => true,
                    Some(node) => node.protocol_status().voting,
                };
                let memory = self.durability_of(id) == Durability::Memory;
                let state_lost = (memory && !remembers) || (learns && dies) || process.is_damaged();
                NodeState {
                    id: ReplicaId(id as u16),
                    up: !state_lost && !process.is_lost(),
                    state_lost,
                }
            })
            .collect()
    }

    /// The state of each replica now.
    pub fn all_states(&self) -> Vec<NodeState> {
        self.states(&[])
    }

    pub fn may_crash(&self, dying: &[usize]) -> bool {
        self.viable(&self.states(dying))
    }

    /// Whether this replica may lose its data permanently.
    pub fn may_lose(&self, lost: usize) -> bool {
        let mut states = self.states(&[lost]);
        states[lost].up = false;
        self.viable(&states)
    }

    pub fn draw_running(&mut self) -> Option<usize> {
        let running: Vec<usize> = (0..self.replicas_max())
            .filter(|id| {
                let process = &self.processes[*id];
                process.node.is_some() && !process.is_dying() && !process.is_lost()
            })
            .collect();
        if self.random.chance(self.shape.aim)
            && let Some(leader) = self.leader().filter(|leader| running.contains(leader))
        {
            return Some(leader);
        }
        (!running.is_empty()).then(|| running[self.random.index(running.len())])
    }

    /// The replica that reports itself as the leader, in the highest view that has one.
    pub fn leader(&self) -> Option<usize> {
        let leads = |(id, process): (usize, &Process)| {
            let status = process.node.as_ref()?.protocol_status();
            (status.leader?.index() == id).then_some((status.view, id))
        };
        let leader = self.processes.iter().enumerate().filter_map(leads).max();
        leader.map(|(_, id)| id)
    }

    /// The clients invoke what they have, so that a fault finds much in progress.
    fn wake_clients(&mut self) {
        if self.random.chance(self.shape.wake_rate) {
            for client in 0..self.clients.len() {
                let at = self.now + self.random.below(5 * MILLISECOND);
                self.queue.push(
                    at,
                    Event::Turn {
                        client: client as u16,
                    },
                );
            }
        }
    }

    /// A fault of the plan begins.
    pub fn inject(&mut self, index: usize, tries: u8) {
        if self.phase != Phase::Safety {
            // The first phase ended before its time had come: no new fault affects a healed core.
            self.injections_open -= 1;
            return;
        }
        let injection = self.plan.injections[index];
        let (kind, duration) = (injection.kind, injection.duration);
        self.wake_clients();
        match self.try_inject(index, kind, duration) {
            Some(lasts) => {
                self.trace.say(self.now, || {
                    format!("FAULT {} for {} ms", kind.name(), lasts / MILLISECOND)
                });
                self.queue.push(
                    self.now + lasts,
                    Event::InjectionEnds {
                        injection: index as u16,
                    },
                );
            }
            None if tries < TRIES_MAX => {
                let at = self.now + self.random.between(50, 400) * MILLISECOND;
                self.queue.push(
                    at,
                    Event::Injection {
                        injection: index as u16,
                        tries: tries + 1,
                    },
                );
            }
            None => self.injections_open -= 1,
        }
    }

    /// Lets a fault take effect; gives how long it lasts, or nothing when it cannot be now.
    fn try_inject(&mut self, index: usize, kind: Kind, duration: u64) -> Option<u64> {
        match kind {
            Kind::Delay => {
                let late = self.random.between(30, 400);
                let tail = self.random.between(1, 400) * MILLISECOND;
                self.disturb(|weather| (weather.late, weather.tail) = (late, tail));
            }
            Kind::Loss => {
                let loss = self.random.between(10, 300);
                self.disturb(|weather| weather.loss = loss);
            }
            Kind::Duplicate => {
                let duplicate = self.random.between(10, 250);
                self.disturb(|weather| weather.duplicate = duplicate);
            }
            Kind::Reset => {
                let mut broken = 0;
                for _ in 0..self.random.between(1, 6) {
                    let a = self.random.index(self.members);
                    let b = self.random.index(self.network.places());
                    if a != b && self.break_link(a, b, Link::Reset) {
                        broken += 1;
                    }
                }
                if broken == 0 {
                    return None;
                }
                self.effective(kind.name());
                return Some(MILLISECOND);
            }
            Kind::ResetUnsent => {
                let node = self.draw_running()?;
                self.processes[node].resets = self.random.between(1, 4) as u8;
            }
            Kind::PartitionFull
            | Kind::PartitionOneWay
            | Kind::PartitionBridge
            | Kind::PartitionRing
            | Kind::PartitionChained => self.begin_partition(index, kind),
            Kind::SlowLink => {
                let from = self.random.index(self.members);
                let to = self.random.index(self.members);
                if from == to {
                    return None;
                }
                let times = self.random.between(10, 100);
                self.network.slow(from, to, times);
                self.healing.slowed.push((index, from, to));
                self.effective(kind.name());
            }
            Kind::Attack => {
                self.aim_attack();
                let moves = self.random.between(100, 600) * MILLISECOND;
                if self.random.chance(500) {
                    let ends = self.now + duration;
                    self.queue
                        .push(self.now + moves, Event::AttackMoves { moves, ends });
                }
            }
            Kind::Crash
            | Kind::CrashSet
            | Kind::CrashAll
            | Kind::CrashMidStep
            | Kind::CrashBeforePersisted
            | Kind::CrashAfterWrite
            | Kind::CrashVoter
            | Kind::CrashInSnapshot
            | Kind::CrashInTransfer
            | Kind::CrashInRecovery
            | Kind::CrashAtAnswer
            | Kind::CrashNewLeader
            | Kind::Wipe
            | Kind::Stop => return self.inject_process(index, kind, duration),
            Kind::Pause | Kind::PauseLong => {
                let node = self.draw_running()?;
                self.processes[node].paused_until = self.now + duration;
                self.effective(kind.name());
            }
            Kind::SlowReplica => {
                let node = self.draw_running()?;
                self.processes[node].slow = self.random.between(20, 200);
            }
            Kind::LateSync => self.delay_syncs(),
            Kind::HeldSync => return self.hold_syncs(index, duration),
            Kind::OrphanedLeader => return self.orphan_leader(index),
            Kind::SlowDisk
            | Kind::SyncFails
            | Kind::DiskFull
            | Kind::RotJournal
            | Kind::RotPromise
            | Kind::RotSnapshot
            | Kind::LostWrite
            | Kind::MisdirectedWrite => return self.inject_disk(kind, duration),
            Kind::ClockOffset
            | Kind::ClockStep
            | Kind::ClockDrift
            | Kind::ClockStops
            | Kind::ClockFar
            | Kind::ClockLies => self.inject_clock(kind)?,
            Kind::ClientAbandons | Kind::ClientReturns | Kind::ClientReturnsLate => {
                return self.inject_client(kind, duration);
            }
        }
        Some(duration)
    }

    fn inject_process(&mut self, index: usize, kind: Kind, duration: u64) -> Option<u64> {
        match kind {
            Kind::CrashMidStep => return self.arm(Armed::MidStep, duration),
            Kind::CrashBeforePersisted => return self.arm(Armed::BeforePersisted, duration),
            Kind::CrashAfterWrite => return self.arm(Armed::AfterWrite, duration),
            Kind::CrashVoter => return self.arm_voter(index, duration),
            Kind::CrashAtAnswer => {
                let leader = self.leader().filter(|leader| {
                    !self.processes[*leader].is_dying() && self.may_crash(&[*leader])
                });
                let Some(leader) = leader else {
                    return self.arm(Armed::Answered, duration);
                };
                self.processes[leader].armed = Some((Armed::Answered, duration));
                return Some(MOMENT_MAX + duration);
            }
            Kind::CrashNewLeader => return self.hunt_leader(duration),
            Kind::CrashInSnapshot => {
                let moments = [
                    Moment::Begin,
                    Moment::Written,
                    Moment::Finish,
                    Moment::Saved,
                ];
                let moment = moments[self.random.index(4)];
                let node = self.arm_one(Armed::InSnapshot(moment), duration)?;
                self.ask_for_snapshot(node);
                return Some(MOMENT_MAX + duration);
            }
            Kind::CrashInTransfer => return self.arm_fetcher(duration),
            Kind::CrashAll => {
                let in_memory = |id: &usize| self.durability_of(*id) == Durability::Memory;
                let forget: Vec<usize> = (0..self.replicas_max()).filter(in_memory).collect();
                if !self.may_crash(&forget) {
                    return None;
                }
                self.effective(kind.name());
                for node in 0..self.replicas_max() {
                    let down = duration / 2 + self.random.below(duration / 2 + 1);
                    if self.processes[node].node.is_some() {
                        self.crash_for(node, down);
                    }
                }
            }
            Kind::CrashSet => {
                let mut set: Vec<usize> = (0..self.replicas_max())
                    .filter(|node| self.processes[*node].node.is_some())
                    .collect();
                self.random.shuffle(&mut set);
                let size = self.random.between(2, self.members as u64) as usize;
                set.truncate(size);
                while set.len() > 1 && !self.may_crash(&set) {
                    set.pop();
                }
                if set.len() < 2 {
                    return None;
                }
                self.effective(kind.name());
                for node in set {
                    let down = duration / 2 + self.random.below(duration / 2 + 1);
                    self.crash_for(node, down);
                }
            }
            Kind::Wipe => {
                let node = self.draw_running().filter(|node| self.may_lose(*node))?;
                self.crash(node);
                self.processes[node].wipe();
                self.monotone[node] = Default::default();
                self.trace
                    .say(self.now, || format!("r{node} loses its disk"));
                let at = self.now + duration.max(MILLISECOND);
                self.queue.push(at, Event::Restart { node: node as u16 });
                return Some(duration + SECOND);
            }
            _ => {
                let node = self
                    .draw_running()
                    .filter(|node| self.may_crash(&[*node]))?;
                if kind == Kind::CrashInRecovery {
                    let down = self.random_down();
                    self.crash_for(node, down);
                    self.processes[node].crash_at_boot = Some(duration);
                    return Some(MOMENT_MAX + duration);
                }
                self.effective(kind.name());
                if kind == Kind::Crash {
                    self.crash_for(node, duration);
                    return Some(duration);
                }
                self.input(node, Input::Control(Control::HandOff));
                // In memory durability the budget counts it as down from now on.
                let stops = self.random.between(1, 100) * MILLISECOND;
                let process = &mut self.processes[node];
                process.stopping = true;
                let (node, boot) = (node as u16, process.boot);
                let down = duration.max(MILLISECOND);
                self.queue
                    .push(self.now + stops, Event::Stopped { node, boot, down });
            }
        }
        Some(duration)
    }

    fn random_down(&mut self) -> u64 {
        self.random.between(1, 200) * MILLISECOND
    }

    /// Syncs of one replica, of a drawn set or of all take long now and then.
    fn delay_syncs(&mut self) {
        let way = self.random.below(3);
        let one = self.random.index(self.members);
        let share = [100, 400, 1000][self.random.index(3)];
        let longest = self.random.between(20, 1500) * MILLISECOND;
        for node in 0..self.replicas_max() {
            let chosen = match way {
                0 => node == one,
                1 => self.random.chance(600),
                _ => true,
            };
            if chosen {
                self.processes[node].disk.late = (share, longest);
            }
        }
    }

    fn inject_disk(&mut self, kind: Kind, duration: u64) -> Option<u64> {
        let node = self.draw_running()?;
        if self.processes[node].damaged.is_some() {
            return None;
        }
        let damage = match kind {
            Kind::SlowDisk => {
                self.processes[node].disk.slow = self.random.between(5, 50);
                return Some(duration);
            }
            Kind::SyncFails | Kind::DiskFull => {
                if !self.may_crash(&[node]) {
                    return None;
                }
                let disk = &mut self.processes[node].disk;
                if kind == Kind::SyncFails {
                    disk.fail_next();
                    return Some(duration + MOMENT_MAX);
                }
                // Something must come that needs room.
                disk.set_full(true);
                self.ask_for_snapshot(node);
                return Some(duration + MOMENT_MAX);
            }
            Kind::RotPromise => {
                // Both copies in one of four cases: that replica is lost.
                let both = self.random.chance(250) && self.may_lose(node);
                if !self.may_crash(&[node]) {
                    return None;
                }
                let disk = &mut self.processes[node].disk;
                if !disk.damage_promise(both, &mut self.random) {
                    return None;
                }
                let harm = if both { Harm::Permanent } else { Harm::None };
                self.processes[node].damaged = Some((kind, harm));
                let down = self.random_down();
                self.crash_for(node, down);
                return Some(duration + down);
            }
            Kind::RotSnapshot => None,
            Kind::LostWrite => Some(Damage::Lost),
            Kind::MisdirectedWrite => Some(Damage::Misdirected),
            _ => Some(Damage::Rot),
        };
        // A fetched state is restored in pieces, and a replica that finds it damaged half way stops
        // and reports it. So the fault that damages it must come when no replica reads it.
        let reads = |node: &Node| damage.is_none() && node.is_fetching();
        if self.processes[node].node.as_ref().is_some_and(reads) || !self.may_lose(node) {
            return None;
        }
        let (disk, random) = (&mut self.processes[node].disk, &mut self.random);
        let damaged = match damage {
            Some(damage) => disk.damage_journal(damage, random),
            None => disk.damage_snapshot(random),
        };
        if !damaged {
            return None;
        }
        self.trace
            .say(self.now, || format!("r{node} {} on its disk", kind.name()));
        self.processes[node].damaged = Some((kind, Harm::Forgets));
        // No process reads it before the next start.
        let down = self.random_down();
        let stops = self.random.below(300 * MILLISECOND);
        let (node, boot) = (node as u16, self.processes[node].boot);
        self.queue
            .push(self.now + stops, Event::Stopped { node, boot, down });
        Some(duration + stops + down + MILLISECOND)
    }

    fn inject_clock(&mut self, kind: Kind) -> Option<()> {
        self.compare_clocks();
        let node = self.draw_running()?;
        // Protocols that order by clocks wait some milliseconds: errors of about that much let one
        // replica go ahead, where seconds shut it out.
        let scale = [1, 1, 100, 1_000, 10_000][self.random.index(5)];
        let by = (self.random.below(20 * SECOND) as i64 - 10 * SECOND as i64) / scale;
        let drift = self.random.below(100_001) as i64 - 50_000;
        let far = [60, 3_600, 100_000][self.random.index(3)] * SECOND;
        let far = self.random.between(far / 10, far) as i64;
        let far = if self.random.chance(500) { far } else { -far };
        let lies = kind == Kind::ClockLies || kind == Kind::ClockFar && self.random.chance(300);
        let way = self.random.below(3);
        let clock = &mut self.processes[node].clock;
        if lies {
            clock.lie(true);
        }
        match kind {
            Kind::ClockDrift => clock.set_drift(drift, self.now),
            Kind::ClockFar => clock.step(far),
            Kind::ClockStops => clock.stop(true, self.now),
            Kind::ClockLies if way == 0 => clock.set_drift(drift, self.now),
            Kind::ClockLies if way == 1 => clock.stop(true, self.now),
            _ => clock.step(by),
        }
        self.recheck_clock_timers(node);
        self.effective(kind.name());
        Some(())
    }

    fn inject_client(&mut self, kind: Kind, duration: u64) -> Option<u64> {
        let client = self.draw_client(kind != Kind::ClientAbandons)?;
        if self.clients[client].open.is_empty() {
            self.turn(client);
        }
        if self.clients[client].open.is_empty() {
            return None;
        }
        self.trace.say(self.now, || format!("c{client} goes away"));
        self.effective(kind.name());
        if kind == Kind::ClientAbandons {
            self.abandon(client);
            return Some(MILLISECOND);
        }
        let away = match kind {
            Kind::ClientReturnsLate => self.shape.session_lifetime + duration,
            _ => duration,
        };
        self.send_away(client, self.now + away);
        Some(away)
    }

    /// Changes the weather of all links, of those of one place, or of a drawn half of them.
    fn disturb(&mut self, change: impl Fn(&mut Weather)) {
        let places = self.network.places();
        let way = self.random.below(3);
        let place = self.random.index(self.members);
        for from in 0..places {
            for to in 0..places {
                let chosen = match way {
                    0 => true,
                    1 => from == place || to == place,
                    _ => self.random.chance(500),
                };
                if chosen {
                    change(self.network.weather(from, to));
                }
            }
        }
    }

    fn calm(&mut self, change: impl Fn(&mut Weather)) {
        let places = self.network.places();
        for from in 0..places {
            for to in 0..places {
                change(self.network.weather(from, to));
            }
        }
    }

    /// Everything from and to a drawn set of replicas is late from now on, and nothing else.
    fn aim_attack(&mut self) {
        let replicas = self.members;
        let late = self.random.between(50, 800) * MILLISECOND;
        let mut order: Vec<usize> = (0..replicas).collect();
        self.random.shuffle(&mut order);
        let leader = self.leader().filter(|_| self.random.chance(400));
        let size = 1 + self.random.index(replicas.div_ceil(2));
        let chosen = match leader {
            Some(leader) => vec![leader],
            None => order[..size].to_vec(),
        };
        self.trace.say(self.now, || {
            format!("attack on {chosen:?}, {} ms", late / MILLISECOND)
        });
        self.calm(|weather| weather.attack = 0);
        for node in chosen {
            for other in (0..self.network.places()).filter(|other| *other != node) {
                self.network.weather(node, other).attack = late;
                self.network.weather(other, node).attack = late;
            }
        }
    }

    /// An attack chooses another set.
    pub fn attack_moves(&mut self, moves: u64, ends: u64) {
        if self.phase == Phase::Safety && self.now < ends {
            self.aim_attack();
            self.queue
                .push(self.now + moves, Event::AttackMoves { moves, ends });
        }
    }

    fn draw_client(&mut self, remote: bool) -> Option<usize> {
        let here: Vec<usize> = (0..self.clients.len())
            .filter(|client| self.clients[*client].is_here())
            .collect();
        let fit: Vec<usize> = here
            .iter()
            .copied()
            .filter(|c| !remote || self.clients[*c].is_remote())
            .collect();
        // Those who stay must be able to continue.
        if here.len() <= 3 || fit.is_empty() {
            return None;
        }
        Some(fit[self.random.index(fit.len())])
    }

    pub fn crash_for(&mut self, node: usize, down: u64) {
        self.crash(node);
        let at = self.now + down.max(MILLISECOND);
        self.queue.push(at, Event::Restart { node: node as u16 });
        if self.phase == Phase::Liveness && !self.is_out(node) {
            self.healing.injected(at);
        }
    }

    fn arm(&mut self, armed: Armed, down: u64) -> Option<u64> {
        self.arm_one(armed, down)?;
        Some(MOMENT_MAX + down)
    }

    fn arm_one(&mut self, armed: Armed, down: u64) -> Option<usize> {
        let node = self
            .draw_running()
            .filter(|node| self.may_crash(&[*node]))?;
        self.processes[node].armed = Some((armed, down));
        Some(node)
    }

    /// Keeps a replica down until the others have trimmed what it misses, and lets it crash when
    /// it fetches their state.
    fn arm_fetcher(&mut self, down: u64) -> Option<u64> {
        let fetches = |process: &Process| process.node.as_ref().is_some_and(|n| n.is_fetching());
        let fetching = (0..self.replicas_max()).find(|id| fetches(&self.processes[*id]));
        if let Some(node) = fetching.filter(|node| self.may_crash(&[*node])) {
            self.effective(Kind::CrashInTransfer.name());
            self.crash_for(node, down);
            return Some(down);
        }
        let node = self
            .draw_running()
            .filter(|node| self.may_crash(&[*node]))?;
        let away = self.random.between(200, 1000) * MILLISECOND;
        self.crash_for(node, away);
        self.processes[node].crash_in_transfer = Some(down);
        for other in (0..self.replicas_max()).filter(|other| *other != node) {
            let at = self.now + self.random.between(away / 2, away);
            let other = other as u16;
            self.queue.push(at, Event::SnapshotWanted { node: other });
        }
        self.wake_clients();
        Some(away + MOMENT_MAX + down)
    }

    /// An operator asks for a snapshot.
    pub fn ask_for_snapshot(&mut self, node: usize) {
        self.call(node, |node, view, outputs| {
            node.ask_for_checkpoint(view, outputs);
        });
    }

    /// The leader stands still until its successor has crashed, or not much longer. Without a
    /// leader, any replica stands still, and one that promises something meanwhile is taken for the
    /// successor.
    fn hunt_leader(&mut self, duration: u64) -> Option<u64> {
        let leader = match self.led {
            true => self.leader()?,
            false => self.draw_running()?,
        };
        if self.processes[leader].is_dying() {
            return None;
        }
        let shown = |process: &Process| Some(process.node.as_ref()?.protocol_status().view);
        let view = self.processes.iter().filter_map(shown).max()?;
        self.hunted = Some((self.led.then_some(view), duration));
        let still = self.random.between(400, 2000) * MILLISECOND;
        self.processes[leader].paused_until = self.now + still;
        Some(still + MOMENT_MAX + duration)
    }

    /// A replica leads, in this view, or has promised something: if it is the awaited one, it
    /// crashes soon.
    pub fn found_leader(&mut self, index: usize, view: Option<u64>) {
        let Some((before, down)) = self.hunted else {
            return;
        };
        let awaited = match (before, view) {
            (Some(before), Some(view)) => view > before,
            (None, None) => true,
            _ => false,
        };
        if !awaited {
            return;
        }
        self.hunted = None;
        // A successor took over from the one that stands still: that alone is an effect.
        self.effective(Kind::CrashNewLeader.name());
        if !self.may_crash(&[index]) {
            return;
        }
        self.crash_soon(index, Kind::CrashNewLeader, down);
    }

    /// A client was answered: who waited for that crashes before anything that it sent arrives.
    pub fn crash_answered(&mut self) {
        for index in 0..self.replicas_max() {
            let answered = |armed: &mut (Armed, u64)| armed.0 == Armed::Answered;
            let armed = &mut self.processes[index].armed;
            if let Some((_, down)) = armed.take_if(answered) {
                self.crash_at(self.now, index, Kind::CrashAtAnswer, down);
            }
        }
    }

    /// Silences the leader, so that the others vote, and lets one of them crash when it has.
    fn arm_voter(&mut self, index: usize, duration: u64) -> Option<u64> {
        let leader = self.leader()?;
        let voters: Vec<usize> = (0..self.replicas_max())
            .filter(|id| *id != leader && self.processes[*id].node.is_some())
            .collect();
        if voters.is_empty() {
            return None;
        }
        let voter = voters[self.random.index(voters.len())];
        if self.processes[voter].is_dying() || !self.may_crash(&[voter]) {
            return None;
        }
        let down = self.random.between(1, 10) * MILLISECOND;
        self.processes[voter].armed = Some((Armed::Voted, down));
        let links: Vec<_> = (0..self.replicas_max())
            .filter(|other| *other != leader)
            .flat_map(|other| [(leader, other), (other, leader)])
            .collect();
        for (from, to) in &links {
            self.network.block(*from, *to);
        }
        let frames_blocked = self.frames_blocked();
        self.healing.partitions.push(Partition {
            injection: index,
            frames_blocked,
            links,
        });
        self.healing.silenced = Some(leader);
        Some(2 * MOMENT_MAX + duration)
    }

    /// The voter has crashed: whom it voted for stands still soon, and the silenced leader reaches
    /// the voter again. If the vote was lost, both may continue.
    pub fn after_vote(&mut self, voter: usize) {
        let Some(leader) = self.healing.silenced.take() else {
            return;
        };
        for (from, to) in [(leader, voter), (voter, leader)] {
            self.network.unblock(from, to, self.now, &mut self.queue);
        }
        let until = self.now + self.random.between(200, 1500) * MILLISECOND;
        for other in (0..self.replicas_max()).filter(|other| *other != leader && *other != voter) {
            let at = self.now + self.random.between(1, 20) * MILLISECOND;
            self.queue.push(
                at,
                Event::StandStill {
                    node: other as u16,
                    until,
                },
            );
        }
        self.wake_clients();
    }

    fn begin_partition(&mut self, index: usize, kind: Kind) {
        let replicas = self.members;
        let mut order: Vec<usize> = (0..replicas).collect();
        self.random.shuffle(&mut order);
        if self.random.chance(self.shape.aim)
            && let Some(leader) = self.leader()
        {
            // To the front: into the first side, to the end of a chain, off the bridge or onto it.
            let to = if self.random.chance(500) {
                0
            } else {
                replicas - 1
            };
            if let Some(at) = order.iter().position(|id| *id == leader) {
                order.swap(at, to);
            }
        }
        let mut reaches = vec![true; replicas * replicas];
        let mut cut = |from: usize, to: usize| reaches[from * replicas + to] = false;
        // The replicas of the first side; remote clients fall on either side below.
        let first = 1 + self.random.index(replicas - 1);
        for (i, a) in order.iter().enumerate() {
            for (j, b) in order.iter().enumerate() {
                let apart = match kind {
                    Kind::PartitionFull => (i < first) != (j < first),
                    Kind::PartitionOneWay => i < first && j >= first,
                    Kind::PartitionBridge => {
                        i != 0 && j != 0 && (i <= replicas / 2) != (j <= replicas / 2)
                    }
                    Kind::PartitionRing => {
                        let distance = i.abs_diff(j);
                        distance > 1 && distance < replicas - 1
                    }
                    _ => i.abs_diff(j) > 1,
                };
                if a != b && apart {
                    cut(*a, *b);
                }
            }
        }
        let mut blocked: Vec<(usize, usize)> = Vec::new();
        for from in 0..replicas {
            for to in 0..replicas {
                if !reaches[from * replicas + to] {
                    blocked.push((from, to));
                }
            }
        }
        if kind == Kind::PartitionFull {
            for place in self.replicas_max()..self.network.places() {
                if self.random.chance(600) {
                    let side = self.random.chance(500);
                    for (i, node) in order.iter().enumerate() {
                        if (i < first) == side {
                            blocked.extend([(place, *node), (*node, place)]);
                        }
                    }
                }
            }
        }
        // Connections time out, or outlast the partition.
        let resets = self.random.chance(400);
        for (from, to) in &blocked {
            self.network.block(*from, *to);
        }
        let mut effective = false;
        for (from, to) in &blocked {
            if resets && self.break_link(*from, *to, Link::Down) {
                effective = true;
            }
        }
        if effective {
            self.effective(kind.name());
        }
        self.trace.say(self.now, || format!("cut off: {blocked:?}"));
        let before = self.frames_blocked();
        self.healing.partitions.push(Partition {
            injection: index,
            frames_blocked: before,
            links: blocked,
        });
    }

    pub fn end_partition(&mut self, index: usize) {
        let open = &mut self.healing.partitions;
        let Some(at) = open
            .iter()
            .position(|partition| partition.injection == index)
        else {
            return;
        };
        let ended = open.remove(at);
        let kind = self.plan.injections[index].kind;
        // The crash counts, or the sync that was held, not the silence that leads to it.
        let silenced = matches!(
            kind,
            Kind::CrashVoter | Kind::HeldSync | Kind::OrphanedLeader
        );
        if !silenced && self.frames_blocked() > ended.frames_blocked {
            self.effective(kind.name());
        }
        for link in ended.links {
            if !self
                .healing
                .partitions
                .iter()
                .any(|other| other.links.contains(&link))
            {
                self.network
                    .unblock(link.0, link.1, self.now, &mut self.queue);
            }
        }
    }

    pub fn frames_blocked(&self) -> u64 {
        self.network
            .counts
            .get("frames_blocked")
            .copied()
            .unwrap_or(0)
    }

    /// A fault ends and is undone.
    pub fn injection_ends(&mut self, index: usize) {
        let kind = self.plan.injections[index].kind;
        self.trace
            .say(self.now, || format!("FAULT {} ends", kind.name()));
        match kind {
            Kind::Delay => self.calm(|weather| (weather.late, weather.tail) = (0, 0)),
            Kind::Loss => self.calm(|weather| weather.loss = 0),
            Kind::Duplicate => self.calm(|weather| weather.duplicate = 0),
            Kind::Attack => self.calm(|weather| weather.attack = 0),
            Kind::ResetUnsent => self
                .processes
                .iter_mut()
                .for_each(|process| process.resets = 0),
            Kind::PartitionFull
            | Kind::PartitionOneWay
            | Kind::PartitionBridge
            | Kind::PartitionRing
            | Kind::PartitionChained => self.end_partition(index),
            Kind::CrashVoter => {
                self.end_partition(index);
                self.healing.silenced = None;
                self.processes
                    .iter_mut()
                    .for_each(|process| process.armed = None);
            }
            Kind::SlowLink => {
                for (_, from, to) in self.healing.slowed.extract_if(.., |(of, ..)| *of == index) {
                    self.network.slow(from, to, 1);
                }
            }
            Kind::SlowReplica => self
                .processes
                .iter_mut()
                .for_each(|process| process.slow = 1),
            Kind::SlowDisk => self
                .processes
                .iter_mut()
                .for_each(|process| process.disk.slow = 1),
            Kind::LateSync => self
                .processes
                .iter_mut()
                .for_each(|process| process.disk.late = (0, 0)),
            Kind::DiskFull => self
                .processes
                .iter_mut()
                .for_each(|process| process.disk.set_full(false)),
            Kind::ClockStops => {
                for node in 0..self.replicas_max() {
                    self.processes[node].clock.stop(false, self.now);
                    self.recheck_clock_timers(node);
                }
            }
            Kind::ClockLies => self
                .processes
                .iter_mut()
                .for_each(|process| process.clock.lie(false)),
            Kind::CrashNewLeader => self.hunted = None,
            Kind::OrphanedLeader => self.orphan_ends(index),
            Kind::HeldSync => {
                self.release_all();
                self.end_partition(index);
            }
            Kind::ClientReturns | Kind::ClientReturnsLate => self.clients_come_back(),
            Kind::CrashMidStep
            | Kind::CrashBeforePersisted
            | Kind::CrashAfterWrite
            | Kind::CrashInSnapshot
            | Kind::CrashAtAnswer
            | Kind::CrashInTransfer => {
                for process in &mut self.processes {
                    process.armed = None;
                    process.crash_in_transfer = None;
                }
            }
            _ => {}
        }
        // A fault without effect is injected once more.
        let noticed =
            self.effects.contains_key(kind.name()) || self.network.counts.contains_key(kind.name());
        let again = &mut self.plan.injections[index].again;
        if noticed || *again == 0 {
            self.injections_open -= 1;
        } else {
            *again -= 1;
            let at = self.now + self.random.between(1, 50) * MILLISECOND;
            self.queue.push(
                at,
                Event::Injection {
                    injection: index as u16,
                    tries: 0,
                },
            );
        }
    }

    fn clients_come_back(&mut self) {
        for client in 0..self.clients.len() {
            let until = self.clients[client].away_until;
            if until != 0 && until <= self.now {
                self.come_back(client);
            }
        }
    }

    /// A crash for which a moment was waited.
    pub fn crash_now(&mut self, node: usize, kind: Kind, down: u64) {
        let in_time = match (&self.processes[node].node, kind) {
            (Some(node), Kind::CrashInTransfer) => node.is_fetching(),
            _ => true,
        };
        if in_time && self.phase == Phase::Safety && self.may_crash(&[node]) {
            self.effective(kind.name());
            self.crash_for(node, down);
        }
    }

    /// Ends every fault that still lasts.
    pub fn end_all(&mut self) {
        self.calm(|weather| *weather = Weather::default());
        for partition in std::mem::take(&mut self.healing.partitions) {
            for (from, to) in partition.links {
                self.network.unblock(from, to, self.now, &mut self.queue);
            }
        }
        for (_, from, to) in std::mem::take(&mut self.healing.slowed) {
            self.network.slow(from, to, 1);
        }
        (self.hunted, self.orphan) = (None, None);
        self.release_all();
        for process in &mut self.processes {
            (process.slow, process.disk.slow, process.armed) = (1, 1, None);
            (process.resets, process.crash_at_boot) = (0, None);
            process.disk.late = (0, 0);
            process.crash_in_transfer = None;
            process.disk.set_full(false);
            process.paused_until = process.paused_until.min(self.now);
            process.clock.set_drift(0, self.now);
            process.clock.synchronise();
        }
        for node in 0..self.replicas_max() {
            self.recheck_clock_timers(node);
        }
        for client in 0..self.clients.len() {
            self.come_back(client);
        }
    }

    /// The protocol's input about `core` when all others are out of reach.
    pub fn is_viable(&self, core: &[usize]) -> bool {
        self.viable(&self.core_states(core))
    }

    /// The state of each replica when all outside `core` are out of reach.
    pub fn core_states(&self, core: &[usize]) -> Vec<NodeState> {
        let mut states = self.states(&[]);
        for state in &mut states {
            state.up &= core.contains(&state.id.index());
        }
        states
    }
}
