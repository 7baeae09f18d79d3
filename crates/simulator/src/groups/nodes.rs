//! The inputs and outputs of nodes.
//!
//! ```text
//!   input ──► node, with the protocol lent to it where group 0's serves it ──► outputs ──► carried out
//!                └─ effects in other groups ──► their nodes, until there are none
//! ```

use super::{
    draw::Part,
    process::{Host, Kept, Order, View},
    services,
    world::{CLUSTER, EPOCH, Event, KEYS, MILLISECOND, World, frontend},
};
use crate::{
    checkers::{Violation, agreement::Applied},
    machine::{self, Recorder, Registers},
};
use quintet::machine::Here;
use quintet_replica::{
    Boot, Bytes, Deadline, Durability, Effect, Epoch, Executed, ExecutorLimits, GroupId,
    GroupIndex, HaltKind, Incarnation, Input, Node, NodeSetup, Output, Recipients, RecoveredBytes,
    ReplicaId, ReplicaSet, SnapshotInfo, StateMachine, Time, Voters, Wake,
    journal::{Found, GroupEpoch},
    next_foreign, put_frame,
};
use std::time::Duration;

impl World {
    pub fn start(&mut self, at: usize) {
        if self.processes[at].up {
            return;
        }
        let groups: Vec<GroupEpoch> = (self.processes[at].hosts.iter())
            .map(|host| GroupEpoch {
                group: self.ids[host.group],
                epoch: EPOCH,
            })
            .collect();
        let node = ReplicaId(at as u16);
        let keeps = self.keeps(at);
        let opened = self.processes[at].open(CLUSTER, node, (&groups, &keeps), self.bug);
        let found = match opened {
            Ok(found) => found,
            Err(error) => {
                let what = format!("process {at}: {error}");
                return self.violate(Violation::new("recovery", what));
            }
        };
        self.processes[at].lending = <_>::default();
        self.say(|| format!("{at} starts"));
        if let Some(lost) = self.processes[at].salvaged.take() {
            let of = |(lost, keeps): (&bool, &bool)| (*lost, *keeps);
            let all = || lost.iter().zip(&keeps).map(of);
            self.count(match all().any(|(lost, keeps)| keeps && !lost) {
                true => "damage set some groups aside",
                false => "damage set all groups aside",
            });
            self.say(|| format!("{at} sets aside what it had of some groups: {lost:?}"));
        }
        for (host, found) in found.into_iter().enumerate() {
            self.start_node(at, host, found);
        }
        for host in 0..self.processes[at].hosts.len() {
            self.idle(at, host);
        }
        for other in (0..self.processes.len()).filter(|other| *other != at) {
            self.connect(at, other);
        }
    }

    /// For each group of a process, whether it is kept on its disk.
    pub fn keeps(&self, at: usize) -> Vec<bool> {
        let hosts = self.processes[at].hosts.iter();
        let groups = hosts.map(|host| &self.groups[host.group]);
        groups.map(|of| of.durability == Durability::Disk).collect()
    }

    fn start_node(&mut self, at: usize, place: usize, found: Found) {
        let seed = self.random.draw();
        let boot = self.processes[at].boot;
        let group = &self.groups[self.processes[at].hosts[place].group];
        let (part, entry, service) = (group.part, group.entry, group.service);
        let destinations = self.destinations_of(self.processes[at].hosts[place].group);
        let disk_lost = self.processes[at].hosts[place].lost_disk();
        let process = &mut self.processes[at];
        let (lending, host) = (&process.lending, &mut process.hosts[place]);
        let memory = group.durability == Durability::Memory;
        let first_boot = std::mem::take(&mut host.fresh);
        let memory_ended = memory && !first_boot;
        let memory_lost = memory_ended && !host.begins_again;
        let lost = memory_lost || disk_lost;
        if memory_ended {
            host.snapshots.clear();
        }
        if memory_lost {
            host.repairing = true;
            // A protocol of several groups counts its starts itself.
            host.incarnation += u64::from(group.part == Part::Own && !disk_lost);
        }
        if !lost && !memory_ended && !found.complete && host.snapshots.is_empty() {
            let what = format!("process {at}, group {}: the log has no beginning", group.id);
            return self.violate(Violation::new("recovery", what));
        }
        let numbers: ReplicaSet = group
            .members
            .iter()
            .map(|at| ReplicaId(*at as u16))
            .collect();
        let voters = Voters::of(numbers);
        let setup = NodeSetup {
            id: ReplicaId(at as u16),
            incarnation: Incarnation(host.incarnation),
            boot: Boot(boot),
            group: group.id,
            epoch: Epoch {
                cluster: CLUSTER,
                number: EPOCH,
                members: voters.len(),
                options: match part {
                    Part::Own => self.bugs.clone(),
                    Part::Top | Part::Shard(_) => self.options.clone(),
                },
                secret: [7; 32],
                leader_first: ReplicaId(0),
            },
            durability: group.durability,
            seed,
            frontend: match part {
                Part::Own => frontend(at, place, boot),
                Part::Top | Part::Shard(_) => frontend(at, 0, boot),
            },
            snapshot_bytes_min: 2 << 10,
            limits: ExecutorLimits {
                session_lifetime: Duration::from_secs(3600),
                disk_hung_after: Duration::ZERO,
                ..ExecutorLimits::default()
            },
        };
        let machine: Box<dyn StateMachine> = match service {
            true => {
                let here = Here {
                    member: at as u16,
                    lending: lending.clone(),
                    ..Here::default()
                };
                services::machine(self.retention, &destinations, self.bug, here)
            }
            false => Box::new(Registers::new(KEYS, 5_000, 1024)),
        };
        let machine = Box::new(Recorder::new(machine, host.record.clone()));
        let made = match part {
            // Makes the protocol count the members by their ranks.
            Part::Own => Node::among(voters, setup, entry, machine)
                .map(|node| node.with_base(Executed::default())),
            Part::Top => Node::new(setup, entry, machine),
            Part::Shard(_) => Node::sharing(setup, entry, machine),
        };
        let node = match made {
            Ok(node) => node,
            Err(error) => return self.violate(Violation::new("options", error.to_string())),
        };
        let recovered = RecoveredBytes {
            first_boot,
            state_lost: lost,
            promise: found.promise,
            checkpoint: None,
            records: if memory { Vec::new() } else { found.records },
        };
        host.node = Some(node);
        let mut started = Ok(());
        self.drive(at, place, |node, view, outputs| {
            started = node.start(recovered, view, outputs);
        });
        self.processes[at].hosts[place].reach();
        if let Err(error) = started {
            let what = format!("process {at}: {error}");
            self.violate(Violation::new("recovery", what));
        }
    }

    pub fn drive(
        &mut self,
        at: usize,
        place: usize,
        step: impl FnOnce(&mut Node, &View<'_>, &mut Vec<Output>),
    ) {
        self.drive_one(at, place, step);
        self.carry_out_foreign(at);
        if self.views.flagged[at] {
            self.look(at);
        }
        self.account(at, place);
    }

    /// Calls a node, with the protocol lent to it if that is the first group's.
    fn drive_one(
        &mut self,
        at: usize,
        place: usize,
        step: impl FnOnce(&mut Node, &View<'_>, &mut Vec<Output>),
    ) {
        let process = &mut self.processes[at];
        let shares = matches!(self.groups[process.hosts[place].group].part, Part::Shard(_));
        if shares && !process.lend_protocol(place) {
            return;
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        let host = &mut process.hosts[place];
        if let Some(node) = &mut host.node {
            let view = View {
                now: self.now,
                ahead: process.ahead,
                snapshots: &host.snapshots,
                arriving: Host::arriving(host.writing.as_ref(), &host.written),
            };
            step(node, &view, &mut outputs);
        }
        if shares {
            process.lend_protocol(place);
        }
        self.check_executed(at, place);
        self.carry_out(at, place, outputs);
    }

    /// Carries out the effects of the first group's protocol in the shards that it serves.
    fn carry_out_foreign(&mut self, at: usize) {
        while self.follows_view {
            let mut foreign = std::mem::take(&mut self.foreign);
            if let Some(top) = &mut self.processes[at].hosts[0].node {
                top.take_foreign(&mut foreign);
            }
            if foreign.is_empty() {
                self.foreign = foreign;
                return;
            }
            let mut effects = foreign.drain(..).peekable();
            while let Some((group, run)) = next_foreign(&mut effects) {
                self.carry_out_in(at, group, run.collect());
            }
            drop(effects);
            self.foreign = foreign;
        }
    }

    fn carry_out_in(&mut self, at: usize, group: GroupId, effects: Vec<Effect>) {
        let Some(place) = self.processes[at].place(&self.ids, group) else {
            let what = format!("process {at} has effects in {group}");
            return self.violate(Violation::new("frame", what));
        };
        self.drive_one(at, place, |node, view, outputs| {
            node.carry_out_foreign(effects.into_iter(), view, outputs);
        });
        if self.views.flagged[at] {
            self.look(at);
        }
        self.account(at, place);
        // It is told that nothing more has come.
        let process = &mut self.processes[at];
        let (host, boot, when) = (&mut process.hosts[place], process.boot, self.now + 1_000);
        if when < host.idle_at {
            host.idle_at = when;
            let host = place;
            self.queue.push(when, Event::Idle { at, host, boot });
        }
    }

    /// The node gets it when all outputs so far have been carried out.
    pub fn input(&mut self, at: usize, place: usize, input: Input) {
        self.later.push_back((at, place, input));
    }

    pub fn carry_on(&mut self) {
        while let Some((at, place, input)) = self.later.pop_front() {
            self.input_now(at, place, input);
        }
    }

    pub fn input_now(&mut self, at: usize, place: usize, input: Input) {
        let mut refused = None;
        self.drive(at, place, |node, view, outputs| {
            refused = node.on_input(input, view, outputs).err();
        });
        if let Some(error) = refused {
            let what = format!("process {at}: {error}");
            return self.violate(Violation::new("frame", what));
        }
        self.idle(at, place);
    }

    pub fn idle(&mut self, at: usize, place: usize) {
        let mut wake = Wake::Sleep;
        self.drive(at, place, |node, view, outputs| {
            wake = node.on_idle(view, outputs);
        });
        let when = match wake {
            Wake::Spin => self.now + 10_000,
            Wake::At(when) => when.0.max(self.now + 1_000),
            Wake::Sleep => return,
        };
        let process = &mut self.processes[at];
        let (host, boot) = (&mut process.hosts[place], process.boot);
        if when < host.idle_at || host.idle_at <= self.now {
            host.idle_at = when;
            let host = place;
            self.queue.push(when, Event::Idle { at, host, boot });
        }
    }

    fn check_executed(&mut self, at: usize, place: usize) {
        let host = &self.processes[at].hosts[place];
        let group = &mut self.groups[host.group];
        let mut record = host.record.lock().expect("no holder panicked");
        if group.entry.speculates {
            // Executions that are undone would have to be told apart.
            return record.clear();
        }
        let record = std::mem::take(&mut *record);
        let mut rest = &record[..];
        while let Some((machine::Executed::Batch { position, time, .. }, tail)) = rest.split_first()
        {
            let commands = tail.iter().map_while(|executed| match executed {
                machine::Executed::Command { id, number, hash } => Some(Applied {
                    id: *id,
                    number: *number,
                    hash: *hash,
                }),
                machine::Executed::Batch { .. } => None,
            });
            let applied: Vec<Applied> = commands.collect();
            rest = &tail[applied.len()..];
            let by = at as u16;
            let first = group.agreement.executed(by, *position, *time, &applied);
            let checked = first.and_then(|first| match first {
                true if !group.service => {
                    (applied.iter()).try_for_each(|one| group.order.executed(*position, one))
                }
                _ => Ok(()),
            });
            if let Err(violation) = checked {
                self.violation.get_or_insert(violation);
            }
        }
    }

    fn carry_out(&mut self, at: usize, place: usize, mut outputs: Vec<Output>) {
        for output in outputs.drain(..) {
            if self.processes[at].up {
                self.carry_out_one(at, place, output);
            }
        }
        self.outputs = outputs;
    }

    pub fn hand(&mut self, at: usize, order: Order) {
        let process = &mut self.processes[at];
        let boot = process.boot;
        if let Some(latency) = process.hand(order, &mut self.random) {
            let after = self.now + latency;
            self.queue.push(after, Event::Synced { at, boot });
        }
    }

    fn carry_out_one(&mut self, at: usize, place: usize, output: Output) {
        let boot = self.processes[at].boot;
        let index = GroupIndex::new(place);
        let host = &mut self.processes[at].hosts[place];
        match output {
            Output::Send {
                to: Recipients::Replicas(set),
                frame,
                ..
            } => self.send(at, set, &frame.into_bytes()),
            Output::Send {
                to: Recipients::Frontend(frontend),
                frame,
                ..
            } => {
                let to = ReplicaId((frontend.0 >> 8 & 0xff) as u16);
                let to = ReplicaSet::EMPTY.with(to);
                self.send(at, to, &frame.into_bytes());
            }
            Output::Put { to, ranges } => {
                let frame = put_frame(self.ids[host.group], EPOCH, ranges);
                self.send(at, to, &frame.into_bytes());
            }
            Output::Journal { id, write } => self.hand(at, Order::Write(index, id, write)),
            Output::Trim { below } => match host.snapshots.last() {
                Some(newest) => {
                    let of = newest.info.id;
                    host.trims.push((of, below));
                }
                None => self.hand(at, Order::Trim(index, below)),
            },
            Output::SetTimer { key, at: deadline } => {
                let (Deadline::At(Time(due)) | Deadline::Clock(due)) = deadline;
                let due = due.max(self.now + 1_000);
                host.timers.insert(key, due);
                let host = place;
                let event = Event::Timer {
                    at,
                    host,
                    boot,
                    key,
                };
                if due < u64::MAX {
                    self.queue.push(due, event);
                }
            }
            Output::CancelTimer { key } => {
                host.timers.remove(&key);
            }
            Output::SnapshotBegin {
                id,
                fetched,
                durable,
                ..
            } => {
                host.written.clear();
                host.writing = Some(Kept {
                    info: SnapshotInfo { id, length: 0 },
                    bytes: Bytes::new(),
                    fetched,
                    durable,
                });
            }
            Output::SnapshotAppend(bytes) => {
                host.written.extend_from_slice(&bytes);
                let length = host.written.len() as u64;
                self.input(at, place, Input::SnapshotWritten(length));
            }
            Output::SnapshotTruncate(length) => host.written.truncate(length as usize),
            Output::SnapshotFinish => {
                if let Some(kept) = &mut host.writing {
                    kept.bytes = std::mem::take(&mut host.written).into();
                    kept.info.length = kept.bytes.len() as u64;
                    let (info, host) = (kept.info, place);
                    let after = self.now + self.random.between(100_000, 20 * MILLISECOND);
                    let event = Event::Saved {
                        at,
                        host,
                        boot,
                        info,
                    };
                    self.queue.push(after, event);
                }
            }
            Output::SnapshotAbandon => host.writing = None,
            Output::Recovered => self.processes[at].is_repaired(place),
            Output::Done { batch, outcome } => self.done(at, place, batch, outcome),
            Output::Mark(mark) => {
                if mark == "state installed" {
                    host.reach();
                }
                let group = self.ids[host.group];
                self.say(|| format!("{at} {group} {mark}"));
                self.count(mark);
                self.views.note(at, mark);
                self.maybe_spring(at, place, mark);
            }
            Output::BreakLinks => {
                for other in (0..self.processes.len()).filter(|other| *other != at) {
                    self.break_line(at, other);
                }
            }
            Output::Halt(kind, reason) => {
                self.say(|| format!("{at} halts: {reason}"));
                if kind == HaltKind::Refused {
                    let what = format!("process {at}: {reason}");
                    return self.violate(Violation::new("halt", what));
                }
                self.crash(at, 5 * MILLISECOND);
            }
            Output::Diverged(found) => {
                self.violate(Violation::new("digests", format!("process {at}: {found}")));
            }
            Output::SnapshotBridges { .. }
            | Output::Route { .. }
            | Output::EpochBegins { .. }
            | Output::Digest(_) => {}
        }
    }

    pub fn synced(&mut self, at: usize, boot: u64) {
        let process = &mut self.processes[at];
        if !process.up || process.boot != boot {
            return;
        }
        let synced = process.synced(&mut self.random);
        let released = synced.and_then(|synced| Ok((synced, process.release(4)?)));
        let ((told, again), released) = match released {
            Ok(released) => released,
            Err(error) => {
                let what = format!("process {at}: {error}");
                return self.violate(Violation::new("journal", what));
            }
        };
        if released > 0 {
            self.count("brought forward");
        }
        if let Some(latency) = again {
            let after = self.now + latency;
            self.queue.push(after, Event::Synced { at, boot });
        }
        if told.len() > 1 {
            self.count("one sync for several groups");
        }
        for (group, id) in told {
            if !self.processes[at].has_committed(group, id) {
                let what = format!("process {at} tells {group} of {id} before it is on the disk");
                return self.violate(Violation::new("persisted", what));
            }
            if self.processes[at].up {
                self.input(at, group.index(), Input::Persisted(id));
            }
        }
    }

    pub fn saved(&mut self, at: usize, place: usize, boot: u64, info: SnapshotInfo) {
        let process = &mut self.processes[at];
        if !process.up || process.boot != boot {
            return;
        }
        let host = &mut process.hosts[place];
        let Some(kept) = (host.writing).take_if(|writing| writing.info == info) else {
            return;
        };
        let (fetched, index) = (kept.fetched, GroupIndex::new(place));
        // One that came from a peer may be taken again: the log before it has a gap as before.
        let same = |other: &Kept| other.info.id == info.id;
        let gap = (host.snapshots.iter()).any(|other| same(other) && other.fetched);
        host.snapshots.retain(|other| !same(other));
        host.snapshots.push(Kept {
            fetched: fetched || gap,
            ..kept
        });
        host.snapshots.sort_by_key(|kept| kept.info.id);
        host.end = host.end.max(info.id.slot);
        while host.snapshots.len() > 2 {
            host.snapshots.remove(0);
        }
        let trim = host.trim_due();
        if fetched {
            self.hand(at, Order::Skip(index));
        }
        if let Some(below) = trim {
            self.hand(at, Order::Trim(index, below));
        }
        self.count("snapshot saved");
        self.input(at, place, Input::SnapshotSaved(info));
    }
}
