//! The stage: a small cluster that a scenario or a script holds in its hands.
//!
//! ```text
//!   scenario, script ──► cut, crash, pause, submit, deliver …
//!                              │
//!                              ▼
//!   clients ──► wires ──► hosts (Node, disk, timers) ──► wires ──► …      virtual time
//!      │                      │ after every input
//!      ▼                      ▼
//!   history                agreement, state hashes, exactly once, monotone, invariants
//! ```
//!
//! [`crate::run`] draws the events; here the test chooses them. Everything else is the same: the
//! nodes, the encodings, the machine, the checkers. A stage either runs by itself (frames arrive
//! after their delay, timers fire, disks sync) or by hand, frame by frame.

mod checks;
mod clients;
mod host;
mod neighbour;
mod wires;

pub(crate) use clients::Place;
pub(crate) use host::Host;
pub(crate) use wires::{CAPACITY, Packet};

use crate::{
    checkers::Violation, clock::SECOND, configuration::first_descriptor, history::History,
    random::Random, stored_epoch,
};
use checks::Group;
use clients::Client;
use neighbour::{Asked, BESIDE, Hosts};
use quintet_replica::{
    ClusterId, Descriptor, Durability, Entry, Epoch, EpochNumber, Executed, ExecutorLimits, Link,
    MemberRole, MemberRow, NodeState, PersistId, ReplicaId, ReplicaSet, SealError, Voters,
};
use std::{collections::BTreeMap, time::Duration};
use wires::Wires;

/// Virtual time 0 as nanoseconds since the Unix epoch.
pub(crate) const EPOCH: u64 = 1_700_000_000_000_000_000;
/// Keys of the machine: `key % 3` says whether it is a register, a list or a counter.
pub(crate) const KEYS: u32 = 12;

/// The parts of a stage.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub entry: Entry,
    /// The protocol of another group that all processes have, too.
    pub neighbour: Option<Entry>,
    pub replicas: usize,
    /// How often replicas tell each other how they are; never when zero.
    pub pace_beat: Duration,
    /// Hosts for replicas that become members later.
    pub spare: usize,
    pub durability: Durability,
    pub options: Vec<(String, String)>,
    pub seed: u64,
    /// A snapshot is due after this many bytes of executed batches.
    pub snapshot_bytes_min: u64,
    /// Bytes added to every snapshot, so that its transfer takes several pieces.
    pub snapshot_padding: usize,
    /// This many bytes of a fetched state are restored in a turn of ten microseconds.
    pub restore_step: usize,
    /// Larger states are saved ahead of a change.
    pub bridge_bytes_min: u64,
    /// Frames arrive, disks sync and connections come back only when told to.
    pub by_hand: bool,
}

impl Setting {
    pub fn new(entry: Entry, replicas: usize, durability: Durability) -> Self {
        Self {
            entry,
            neighbour: None,
            replicas,
            pace_beat: Duration::ZERO,
            spare: 0,
            durability,
            options: Vec::new(),
            seed: 1,
            snapshot_bytes_min: 1 << 30,
            snapshot_padding: 0,
            restore_step: ExecutorLimits::default().restore_step,
            bridge_bytes_min: ExecutorLimits::default().bridge_bytes_min,
            by_hand: false,
        }
    }
}

/// The events that come by themselves.
#[derive(Debug)]
enum Event {
    Frame(Packet),
    Synced {
        host: usize,
        boot: u32,
        upto: PersistId,
    },
    /// A part learns of its writes.
    Persisted {
        host: usize,
        boot: u32,
        upto: PersistId,
    },
    SnapshotWritten {
        host: usize,
        boot: u32,
        bytes: u64,
    },
    SnapshotSaved {
        host: usize,
        boot: u32,
        id: Executed,
    },
    /// A connection is tried.
    Connect {
        a: usize,
        b: usize,
    },
    /// A place learns of its link.
    Told {
        at: usize,
        boot: u32,
        peer: usize,
        link: Link,
    },
    /// A client sends again what is unanswered.
    Resend {
        client: usize,
    },
    /// The neighbour is asked again.
    AskNeighbour {
        process: usize,
    },
}

/// See the module.
pub(crate) struct Stage {
    pub setting: Setting,
    /// Virtual nanoseconds.
    pub now: u64,
    pub hosts: Hosts,
    pub history: History,
    /// Operations that may be answered by an old state.
    stale: Vec<usize>,
    pub clients: Vec<Client>,
    /// How often each rare branch was taken, anywhere.
    pub marks: BTreeMap<&'static str, u64>,
    /// The log has a line for every event.
    pub log: Option<Vec<String>>,
    /// Remote clients' requests ask for the end of the epoch.
    pub forge_seals: bool,
    /// Commands are this many bytes longer than they need be.
    pub payload_extra: usize,
    wires: Wires,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    random: Random,
    own: Group,
    beside: Group,
    asked: Vec<Asked>,
    asked_of_neighbour: u64,
    violation: Option<Violation>,
    frontend_next: u64,
}

impl Stage {
    /// A stage whose hosts are all empty.
    pub fn empty(setting: Setting) -> Self {
        let replicas = setting.replicas + setting.spare;
        Self {
            now: SECOND,
            hosts: Hosts::new(replicas, setting.neighbour.is_some()),
            history: History::default(),
            stale: Vec::new(),
            clients: Vec::new(),
            marks: BTreeMap::new(),
            log: None,
            forge_seals: false,
            payload_extra: 0,
            wires: Wires::new(),
            events: BTreeMap::new(),
            sequence: 0,
            random: Random::new(setting.seed),
            own: Group::new(replicas),
            beside: Group::new(replicas),
            asked: vec![Asked::default(); replicas],
            asked_of_neighbour: 0,
            violation: None,
            frontend_next: 0,
            setting,
        }
    }

    /// A stage on which all replicas have been started for the first time.
    pub fn new(setting: Setting) -> Self {
        let mut stage = Self::empty(setting);
        for host in 0..stage.setting.replicas {
            stage.start(host);
        }
        stage
    }

    fn first_epoch(&self) -> Epoch {
        Epoch {
            cluster: ClusterId(u128::from(self.setting.seed)),
            number: EpochNumber(1),
            members: self.setting.replicas,
            options: self.setting.options.clone(),
            secret: [7; 32],
            leader_first: ReplicaId(0),
        }
    }

    /// The descriptor on which the replicas agree at first.
    fn first_descriptor(&self) -> Descriptor {
        let Setting {
            entry,
            options,
            durability,
            ..
        } = &self.setting;
        first_descriptor(entry, options, *durability, &self.first_epoch())
    }

    /// The descriptor of the epoch that a replica is in.
    fn descriptor_of(&self, host: usize) -> Descriptor {
        if let Some(descriptor) = self.descriptor_beside(host) {
            return descriptor;
        }
        let stored = self.hosts[host].epoch.as_ref();
        stored.map_or_else(
            || self.first_descriptor(),
            |(descriptor, _)| descriptor.clone(),
        )
    }

    /// A replica's node offers the end of its epoch; what follows is led first by `leader`, which
    /// tells one offer from another.
    pub fn offer_seal(&mut self, host: usize, leader: usize) -> Result<(), SealError> {
        let next = Descriptor {
            leader_first: ReplicaId(leader as u16),
            ..self.descriptor_of(host).successor()
        };
        self.offer_epoch(host, &next)
    }

    /// The same with another protocol, and the options that it has by default.
    pub fn offer_protocol(&mut self, host: usize, entry: &Entry) -> Result<(), SealError> {
        let next = Descriptor {
            protocol: entry.info.name.to_string(),
            options: (entry.complete)(&[]),
            ..self.descriptor_of(host).successor()
        };
        self.offer_epoch(host, &next)
    }

    /// The same with the other durability.
    pub fn offer_durability(&mut self, replica: usize) -> Result<(), SealError> {
        let mut next = self.descriptor_of(replica).successor();
        next.durability = match next.durability {
            Durability::Disk => Durability::Memory,
            Durability::Memory => Durability::Disk,
        };
        self.offer_epoch(replica, &next)
    }

    /// The same with another member in the place of one.
    pub fn offer_replacement(&mut self, host: usize, replaced: usize) -> Result<(), SealError> {
        let mut next = self.descriptor_of(host).successor();
        next.leader_first = ReplicaId(host as u16);
        let row = &mut next.members[replaced];
        row.node += 100;
        row.peer = format!("r{replaced} of {}", row.node);
        self.offer_epoch(host, &next)
    }

    /// The same with one more member, or without the last.
    pub fn offer_members(&mut self, host: usize, members: usize) -> Result<(), SealError> {
        let mut next = self.descriptor_of(host).successor();
        next.leader_first = ReplicaId(host as u16);
        let rows = next.members.len() as u64;
        next.members.resize_with(members, || MemberRow {
            node: 200 + rows,
            role: MemberRole::Voter,
            peer: format!("r{rows}"),
        });
        self.offer_epoch(host, &next)
    }

    /// The same without these members.
    pub fn offer_removal(&mut self, replica: usize, gone: &[usize]) -> Result<(), SealError> {
        let mut next = self.descriptor_of(replica).successor();
        next.leader_first = ReplicaId(replica as u16);
        next.vacate(gone.iter().map(|id| ReplicaId(*id as u16)).collect());
        self.offer_epoch(replica, &next)
    }

    /// The same with one more member, in the first vacant row.
    pub fn offer_addition(&mut self, replica: usize) -> Result<(), SealError> {
        let mut next = self.descriptor_of(replica).successor();
        next.leader_first = ReplicaId(replica as u16);
        let row = next.row_for_new();
        let member = MemberRow {
            node: 400 + next.number.0,
            role: MemberRole::Voter,
            peer: format!("r{row}"),
        };
        next.place(row, member);
        self.offer_epoch(replica, &next)
    }

    /// The same with one more member that has no vote yet.
    pub fn offer_learner(&mut self, host: usize) -> Result<(), SealError> {
        let mut next = self.descriptor_of(host).successor();
        next.leader_first = ReplicaId(host as u16);
        let rows = next.members.len() as u64;
        next.members.push(MemberRow {
            node: 300 + rows,
            role: MemberRole::Learner,
            peer: format!("r{rows}"),
        });
        self.offer_epoch(host, &next)
    }

    /// The same with a vote for the learner.
    pub fn offer_vote(&mut self, host: usize) -> Result<(), SealError> {
        let mut next = self.descriptor_of(host).successor();
        next.leader_first = ReplicaId(host as u16);
        if let Some(row) = next.members.last_mut() {
            row.role = MemberRole::Voter;
        }
        self.offer_epoch(host, &next)
    }

    fn offer_epoch(&mut self, host: usize, next: &Descriptor) -> Result<(), SealError> {
        self.say(|| format!("{host}: offers the end of the epoch"));
        self.offer(host, &next.told())
    }

    /// The epoch that a replica serves in; none while it is on its way into one.
    pub fn serves_in(&self, host: usize) -> Option<EpochNumber> {
        let node = self.hosts[host].node.as_ref()?;
        let ended = node.is_between_epochs() || node.sealed().is_some();
        (!ended).then(|| node.epoch())
    }

    /// Whether a replica runs and its protocol counts its vote, that of the neighbour's group, too.
    #[must_use]
    pub fn votes(&self, replica: usize) -> bool {
        self.parts_of(replica).into_iter().all(|part| {
            let node = self.hosts[part].node.as_ref();
            node.is_some_and(|node| node.protocol_status().voting)
        })
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    /// A line for the log.
    fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(line());
        }
    }

    /// Counts a rare branch.
    fn mark(&mut self, branch: &'static str) {
        *self.marks.entry(branch).or_default() += 1;
    }

    /// How often a rare branch was taken.
    pub fn marked(&self, branch: &str) -> u64 {
        self.marks.get(branch).copied().unwrap_or(0)
    }

    fn violate(&mut self, property: &'static str, what: impl Into<String>) {
        let violation = Violation::new(property, what);
        self.say(|| format!("VIOLATION {violation}"));
        self.violation.get_or_insert(violation);
    }

    fn demand(&mut self, checked: Result<(), Violation>) {
        if let Err(violation) = checked {
            self.violate(violation.property, violation.what);
        }
    }

    /// Fails when something was seen that must not be.
    ///
    /// # Panics
    /// Then.
    pub fn assert_sound(&self) {
        if let Some(violation) = &self.violation {
            panic!("{violation}; {}", self.describe());
        }
    }

    // --- time ------------------------------------------------------------------------------

    /// The next thing that comes by itself: when, and which host's timer if it is one.
    fn next(&self) -> Option<u64> {
        let event = self.events.keys().next().map(|(at, _)| *at);
        let hosts = self.hosts.iter().chain(self.hosts.beside());
        let hosts = hosts.filter_map(Host::next);
        let clients = self.clients.iter().filter_map(Client::next);
        event.into_iter().chain(hosts).chain(clients).min()
    }

    /// Does what is due now; false when nothing is.
    fn step(&mut self) -> bool {
        let due = |at: Option<u64>, now: u64| at.is_some_and(|at| at <= now);
        if due(self.events.keys().next().map(|(at, _)| *at), self.now) {
            if let Some((_, event)) = self.events.pop_first() {
                self.on_event(event);
            }
            return true;
        }
        for host in self.parts() {
            if due(self.hosts[host].timer_due(), self.now) {
                self.fire_due(host);
                return true;
            }
        }
        for client in 0..self.clients.len() {
            if due(self.clients[client].next(), self.now) {
                self.fire_client(client);
                return true;
            }
        }
        // The inboxes are empty.
        for host in self.parts() {
            if self.hosts[host].wants_idle(self.now) {
                self.idle(host);
                return true;
            }
        }
        false
    }

    /// Lets time pass until `holds`, or until `end`; tells whether it holds.
    fn pass(&mut self, end: u64, mut holds: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if holds(self) {
                return true;
            }
            if self.violation.is_some() {
                return false;
            }
            if self.step() {
                continue;
            }
            match self.next() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => {
                    self.now = self.now.max(end);
                    return holds(self);
                }
            }
        }
    }

    /// Lets this much virtual time pass.
    pub fn run(&mut self, nanoseconds: u64) {
        self.pass(self.now + nanoseconds, |_| false);
    }

    /// Lets virtual time pass until the condition holds.
    ///
    /// # Panics
    /// When it does not within a virtual minute, or something was seen that must not be.
    pub fn until(&mut self, what: &str, holds: impl FnMut(&Self) -> bool) {
        let came = self.pass(self.now + 60 * SECOND, holds);
        self.assert_sound();
        assert!(came, "not within a minute: {what}; {}", self.describe());
    }

    /// Everything that needs no time happens: frames arrive, disks sync, nodes idle; timers wait.
    pub fn stabilize(&mut self) {
        for _ in 0..100_000 {
            let frame = self
                .events
                .iter()
                .find(|(_, event)| !matches!(event, Event::Connect { .. } | Event::Resend { .. }));
            if let Some(key) = frame.map(|(key, _)| *key) {
                if let Some(event) = self.events.remove(&key) {
                    self.on_event(event);
                }
                continue;
            }
            let idle = (0..self.hosts.len()).find(|host| self.hosts[*host].wants_idle(self.now));
            match idle {
                Some(host) => self.idle(host),
                None => return,
            }
        }
        self.violate("rest", "the cluster does not come to rest");
    }

    /// By hand: every event happens that is no frame and due, and each replica that had an input
    /// idles.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let due = self.events.iter().find(|((at, _), event)| {
                *at <= self.now && !matches!(event, Event::Frame(_) | Event::Connect { .. })
            });
            if let Some(key) = due.map(|(key, _)| *key) {
                if let Some(event) = self.events.remove(&key) {
                    self.on_event(event);
                }
                continue;
            }
            let idle = (0..self.hosts.len()).find(|host| self.hosts[*host].wants_idle(self.now));
            match idle {
                Some(host) => self.idle(host),
                None => return,
            }
        }
        self.violate("rest", "a replica does not come to rest");
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Frame(packet) => self.arrive(packet),
            Event::Synced { host, boot, upto } => self.on_synced(host, boot, upto),
            Event::Persisted { host, boot, upto } => self.on_persisted(host, boot, upto),
            Event::SnapshotWritten { host, boot, bytes } => {
                self.on_snapshot_written(host, boot, bytes);
            }
            Event::SnapshotSaved { host, boot, id } => self.on_snapshot_saved(host, boot, id),
            Event::Connect { a, b } => self.connect(a, b),
            Event::Told {
                at,
                boot,
                peer,
                link,
            } => self.tell(at, boot, peer, link),
            Event::Resend { client } => self.resend(client),
            Event::AskNeighbour { process } => self.ask_neighbour(process),
        }
    }

    // --- who is who ------------------------------------------------------------------------

    /// The replicas that run.
    pub fn up(&self) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|host| self.hosts[*host].node.is_some())
            .collect()
    }

    /// Those of them that answer clients: not a learner.
    pub fn answering(&self) -> Vec<usize> {
        let is_learner = |host: &usize| {
            let node = self.hosts[*host].node.as_ref();
            node.is_some_and(quintet_replica::Node::is_learner)
        };
        let up = self.up().into_iter();
        up.filter(|host| !is_learner(host)).collect()
    }

    /// The orderer, by its own word: in the field's words a leader, head, or initiator, else the
    /// replica that is the only one named as the leader. In the highest view that has one.
    pub fn leader(&self) -> Option<usize> {
        let leads = |host: usize| {
            let status = self.hosts[host].node.as_ref()?.protocol_status();
            let named = status.leader == Some(ReplicaId(host as u16));
            let role = matches!(status.role, "leader" | "head" | "initiator" | "primary");
            (named || role).then_some((status.view, host))
        };
        self.up()
            .into_iter()
            .filter_map(leads)
            .max()
            .map(|(_, host)| host)
    }

    /// The participants in the protocol's order as the newest route has them; all in order of
    /// their ids when the protocol has no route.
    pub fn route(&self) -> Vec<usize> {
        let newest = self
            .up()
            .into_iter()
            .map(|host| &self.hosts[host].route)
            .max_by_key(|(slot, _)| *slot);
        match newest {
            Some((_, members)) if !members.is_empty() => members.clone(),
            _ => self.members(),
        }
    }

    /// The members of the latest epoch of any replica, and those of them that vote.
    fn newest_members(&self) -> (ReplicaSet, Voters) {
        let stored = self.hosts.iter().filter_map(|host| host.epoch.as_ref());
        let newest = stored.max_by_key(|(descriptor, _)| descriptor.number);
        let first = Voters::dense(self.setting.replicas);
        newest.map_or((first.set(), first), |(it, _)| (it.all(), it.voters()))
    }

    /// The members of the latest epoch of any replica.
    pub fn members(&self) -> Vec<usize> {
        let (all, _) = self.newest_members();
        all.iter().map(ReplicaId::index).collect()
    }

    /// The protocol that runs, in the latest epoch of any replica.
    fn entry(&self) -> &Entry {
        let replicas = self.hosts.iter();
        let newest = replicas.max_by_key(|replica| stored_epoch::number(&replica.epoch));
        newest
            .and_then(|host| host.entry.as_ref())
            .unwrap_or(&self.setting.entry)
    }

    /// The protocol's input when `down` do not run and `state_lost` have lost their memories.
    fn viable_without(&self, down: &[usize]) -> bool {
        let (_, voters) = self.newest_members();
        let mut kept = (voters.set().iter()).map(|it| self.descriptor_of(it.index()).durability);
        let memory = kept.any(|it| it == Durability::Memory);
        let ranked = (0..).map(ReplicaId).zip(voters.set().iter());
        let states: Vec<NodeState> = ranked
            .map(|(id, number)| NodeState {
                id,
                up: !down.contains(&number.index()),
                state_lost: memory && down.contains(&number.index()),
            })
            .collect();
        (self.entry().viable)(voters.len(), &states) && self.neighbour_viable_without(down)
    }

    /// The largest part of `wish`, from its front, that the protocol can lose at once.
    pub fn expendable(&self, wish: &[usize]) -> Vec<usize> {
        let mut lost = Vec::new();
        for host in wish {
            lost.push(*host);
            if !self.viable_without(&lost) {
                lost.pop();
            }
        }
        lost
    }

    /// One line per replica.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        for host in 0..self.hosts.len() {
            out.push_str(&self.describe_host(host));
            out.push_str("; ");
        }
        out
    }
}
