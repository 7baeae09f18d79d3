//! The shards of a layout in this process: a node of each whose member this replica is, and a client
//! of each other one.
//!
//! ```text
//!   frame, batch, timer, mail ──group──► Shards ─┬─ Member: Node, snapshots ──┐
//!                                                └─ Guest: ClientNode ────────┴─► outputs of that group
//!
//!   writes of all groups ──JournalOrder──► one journal, one fsync ──► Persisted, per group
//! ```
//!
//! The event loop carries the outputs out as it does those of the replica's own node. A shard that
//! cannot continue stops alone.

use super::{
    EventLoop, answer_waiters, known_snapshot,
    peers::DISK_HUNG,
    reach::{Known, Reach},
    snapshot_report,
    storage::Trims,
    world::RuntimeWorld,
};
use crate::{
    ExitReason,
    kept::Kept,
    mail::SnapshotWaiter,
    server::{GroupReport, SnapshotReport},
    snapshots::Snapshots,
    status::GroupView,
};
use quintet_replica::{
    Boot, Bytes, ClientNode, ClockReading, CommandTime, Control, Durability, Effect, EpochNumber,
    Executed, GroupId, GroupIndex, Incarnation, Input, Lane, Level, Link, Node, NodeStatus,
    Outcome, Output, Peer, PersistId, Recipients, RecoveredBytes, ReplicaId, ReplicaSet, Role,
    RoleState, SnapshotInfo, SnapshotLeft, StartError, Submission, Time, TimerKey, ViableIn,
    Voters, Wake, World, group_of, journal::JournalOrder, next_foreign, put_frame,
};
use std::{collections::BTreeMap, time::Duration};

/// A member is told this often at least that nothing happens, as long as something does elsewhere.
const IDLE_EVERY: Duration = Duration::from_millis(50);
/// How often a leader that should not lead asks others to.
const STEP_DOWN_EVERY: Duration = Duration::from_secs(2);
/// The epoch of every shard.
const FIRST: EpochNumber = EpochNumber(1);

/// A shard as a layout has it.
#[derive(Clone, Debug)]
pub(crate) struct ShardAbout {
    pub group: GroupId,
    pub name: String,
    pub protocol: String,
    pub durability: Durability,
    pub members: ReplicaSet,
    pub viable: ViableIn,
}

/// A member's part of a shard, before it starts.
pub(crate) struct MemberParts {
    pub node: Node,
    pub recovered: RecoveredBytes,
    pub snapshots: Snapshots,
    /// The protocol of group 0 serves it.
    pub is_shared: bool,
}

/// How this process takes part in a shard.
pub(crate) enum ShardPart {
    Member(Box<MemberParts>),
    Guest(Box<ClientNode>),
}

struct Member {
    node: Node,
    /// As in its parts: the protocol is lent to the node for the time of a call.
    is_shared: bool,
    snapshots: Snapshots,
    trims: Trims,
    /// It has lost what it may have acknowledged on its disk.
    repairing: bool,
    /// All is here again once this write of the journal is durable.
    repaired_at: Option<PersistId>,
    /// The members that take part, as last agreed.
    route: Vec<(ReplicaId, Incarnation)>,
    /// A leader without room, or with a wrong state, asks others to lead, not before this.
    step_down_at: Time,
    wake: Wake,
    /// It has had input since it was last idle.
    is_awake: bool,
    idle_at: Time,
    halted: Option<String>,
    /// Callers that wait for a snapshot of it.
    waiters: Vec<SnapshotWaiter>,
}

enum Part {
    Member(Box<Member>),
    Guest(Box<ClientNode>),
}

struct Shard {
    about: ShardAbout,
    /// Its place in the journal.
    index: GroupIndex,
    part: Part,
    /// Its batches in flight, and whether its quorum answers.
    reach: Reach,
}

/// See the module.
pub(super) struct Shards {
    /// In the order of their groups: 1, 2, ….
    all: Vec<Shard>,
    pub order: JournalOrder,
    /// The runs that members' processes are in.
    boots: BTreeMap<ReplicaId, Boot>,
    outputs: Vec<Output>,
    effects: Vec<Effect>,
    /// The protocol of group 0 serves some of them.
    shares: bool,
    foreign: Vec<(GroupId, Effect)>,
}

impl Default for Shards {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            order: JournalOrder::new(1),
            boots: BTreeMap::new(),
            outputs: Vec::new(),
            effects: Vec::new(),
            shares: false,
            foreign: Vec::new(),
        }
    }
}

/// The statuses of the shards' nodes, in the order of the shards; nothing where there is no
/// node.
#[derive(Debug, Default)]
pub(super) struct ShardStatuses(Vec<Option<NodeStatus>>);

/// Figures of all shards together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub commands: u64,
    pub entries: u64,
    pub memory: u64,
    pub sessions: usize,
}

impl ShardStatuses {
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for node in self.0.iter().flatten() {
            sums.commands += node.commands;
            sums.entries += node.entries;
            sums.memory += node.memory;
            sums.sessions += node.sessions;
        }
        sums
    }

    /// Whether the state of the shard at this place is not the majority's.
    fn is_minority(&self, at: usize) -> bool {
        let node = self.0.get(at).and_then(Option::as_ref);
        node.is_some_and(|node| node.digests.is_minority())
    }
}

/// The environment of a shard's node.
struct ShardWorld<'a> {
    process: &'a RuntimeWorld,
    snapshots: Option<&'a Snapshots>,
}

impl<'a> ShardWorld<'a> {
    const fn of(process: &'a RuntimeWorld, snapshots: &'a Snapshots) -> Self {
        Self {
            process,
            snapshots: Some(snapshots),
        }
    }
}

impl World for ShardWorld<'_> {
    fn now(&self) -> Time {
        self.process.now()
    }

    fn clock(&self) -> ClockReading {
        self.process.clock()
    }

    fn room(&self, peer: ReplicaId) -> usize {
        self.process.room(peer)
    }

    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.snapshots.and_then(Snapshots::newest)
    }

    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        self.snapshots?.read(id, offset, length)
    }

    fn snapshot_left(&self) -> Option<SnapshotLeft> {
        self.snapshots.and_then(Snapshots::left)
    }
}

/// The outputs of a node that has no replica behind it.
fn outward(effect: Effect) -> Option<Output> {
    Some(match effect {
        Effect::Send { to, frame, .. } => Output::Send {
            to,
            // As a frontend's link has one lane only.
            lane: Lane::Control,
            frame,
        },
        Effect::SetTimer { key, at } => Output::SetTimer { key, at },
        Effect::CancelTimer { key } => Output::CancelTimer { key },
        Effect::Done { batch, outcome } => Output::Done { batch, outcome },
        Effect::Mark(branch) => Output::Mark(branch),
        other => {
            tracing::debug!(?other, "a frontend cannot ask for this");
            return None;
        }
    })
}

impl Shards {
    /// The shards of this process, in the order of their groups; members have the places of the
    /// journal behind group 0's. Their nodes are started.
    ///
    /// # Errors
    /// When snapshot or journal of one are unusable.
    pub fn start(
        parts: Vec<(ShardAbout, ShardPart)>,
        top: &mut Node,
        world: &RuntimeWorld,
        carry_out: &mut Vec<(usize, Vec<Output>)>,
    ) -> Result<Self, String> {
        let mut this = Self::default();
        let mut members = 1;
        for (about, part) in parts {
            let at = this.all.len();
            let part = match part {
                ShardPart::Guest(client) => Part::Guest(client),
                ShardPart::Member(parts) => {
                    let (member, outputs) = Member::start(*parts, top, world)
                        .map_err(|error| format!("shard {}: {error}", about.name))?;
                    carry_out.push((at, outputs));
                    this.shares |= member.is_shared;
                    Part::Member(Box::new(member))
                }
            };
            let index = GroupIndex::new(members);
            members += usize::from(matches!(part, Part::Member(_)));
            let me = match &part {
                Part::Member(member) => Some(member.node.id()),
                Part::Guest(_) => None,
            };
            // Whether the view stands says also whether the shard does.
            let voters = match &part {
                Part::Member(member) if member.is_shared => top.voters(),
                _ => Voters::of(about.members),
            };
            let reach = Reach::new(me, voters, about.viable);
            this.all.push(Shard {
                about,
                index,
                part,
                reach,
            });
        }
        this.order = JournalOrder::new(members);
        Ok(this)
    }

    /// Whether keys are not divided.
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The place of a group's shard.
    pub fn place(&self, group: GroupId) -> Option<usize> {
        let place = (group.0 as usize).checked_sub(1)?;
        (place < self.all.len()).then_some(place)
    }

    /// The place of the shard that has this one of the journal.
    fn place_in_journal(&self, index: GroupIndex) -> Option<usize> {
        let is_it = |shard: &Shard| shard.index == index && matches!(shard.part, Part::Member(_));
        self.all.iter().position(is_it)
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.all.iter().filter_map(|shard| match &shard.part {
            Part::Member(member) => Some(&**member),
            Part::Guest(_) => None,
        })
    }

    /// Whether some member waits for a disk that does not answer.
    pub fn is_disk_hung(&self) -> bool {
        self.members()
            .any(|member| member.halted.is_none() && member.node.is_disk_hung())
    }

    /// Whether one leads its shard, and others could.
    pub fn leads(&self) -> bool {
        self.all.iter().any(|shard| match &shard.part {
            Part::Member(member) => {
                let leader = member.node.protocol_status().leader;
                !member.is_shared
                    && leader == Some(member.node.id())
                    && shard.about.members.len() > 1
            }
            Part::Guest(_) => false,
        })
    }

    /// The shards that were lost on the disk and are not here again, with writes up to this one
    /// durable.
    pub fn unrepaired(&self, durable: PersistId) -> impl Iterator<Item = GroupId> {
        let waits = move |shard: &&Shard| match &shard.part {
            // Data in memory does not concern the disk.
            Part::Member(member) if shard.about.durability == Durability::Disk => {
                member.repairing && member.repaired_at.is_none_or(|at| at > durable)
            }
            _ => false,
        };
        self.all.iter().filter(waits).map(|shard| shard.about.group)
    }

    /// The highest time of the shards' logs here.
    pub fn log_time(&self) -> CommandTime {
        let times = self.members().map(|member| member.node.log_time());
        times.max().unwrap_or_default()
    }

    /// The statuses of the nodes here.
    pub fn statuses(&self, world: &RuntimeWorld) -> ShardStatuses {
        let of = |shard: &Shard| match &shard.part {
            Part::Member(member) => {
                let world = ShardWorld::of(world, &member.snapshots);
                Some(member.node.status(&world))
            }
            Part::Guest(_) => None,
        };
        ShardStatuses(self.all.iter().map(of).collect())
    }

    /// The longest command of some shard since this was last asked.
    pub fn take_longest(&self) -> Option<(&'static str, u64)> {
        let longest = self
            .members()
            .filter_map(|member| member.node.take_longest());
        longest.max_by_key(|(_, steps)| *steps)
    }

    /// Whether each takes part in its shard's quorums, but for those that halted.
    pub fn are_ready(&self) -> bool {
        let is_ready = |member: &Member| {
            member.halted.is_some() || member.is_shared || member.node.protocol_status().voting
        };
        self.members().all(is_ready)
    }

    pub fn note_full_disk(&mut self, full: bool) {
        for shard in &mut self.all {
            if let Part::Member(member) = &mut shard.part {
                member.node.note_full_disk(full);
            }
        }
    }

    pub fn finish_snapshots(&mut self) {
        for shard in &mut self.all {
            if let Part::Member(member) = &mut shard.part {
                let stopped = "the replica has stopped".to_owned();
                answer_waiters(&mut member.waiters, &Err(stopped));
                member.snapshots.finish();
            }
        }
    }

    pub fn close_unused(&self, now: std::time::Instant) {
        for member in self.members() {
            member.snapshots.close_unused(now);
        }
    }

    /// The run that a member's process is in.
    pub fn booted(&mut self, id: ReplicaId, boot: Boot) {
        self.boots.insert(id, boot);
    }

    /// A link as a shard sees it: members keep what they have in memory for one run of their process,
    /// and what is on their disk for an incarnation. A protocol of several groups counts the runs
    /// itself.
    fn link_of(&self, at: usize, peer: ReplicaId, link: Link) -> Link {
        let Shard { about, part, .. } = &self.all[at];
        let is_shared = matches!(part, Part::Member(member) if member.is_shared);
        let by_run = about.durability == Durability::Memory && !is_shared;
        match (link, self.boots.get(&peer)) {
            (Link::Up { .. }, Some(boot)) if by_run => Link::Up {
                incarnation: Incarnation(boot.0),
            },
            (link, _) => link,
        }
    }

    fn input(&mut self, at: usize, input: Input, world: &RuntimeWorld) {
        let Some(shard) = self.all.get_mut(at) else {
            return;
        };
        match &mut shard.part {
            Part::Member(member) => member.input(input, world, &mut self.outputs),
            Part::Guest(client) => {
                let world = ShardWorld {
                    process: world,
                    snapshots: None,
                };
                let effects = &mut self.effects;
                match input {
                    Input::Frame {
                        from: Peer::Replica(from),
                        frame,
                        ..
                    } => {
                        if let Err(error) = client.on_frame(from, frame, &world, effects) {
                            tracing::debug!(%error, "frame dropped");
                        }
                    }
                    Input::Submit(submission) => client.submit(submission, &world, effects),
                    Input::Timer(key) => client.on_timer(key, &world, effects),
                    Input::Link(Peer::Replica(to), link) => {
                        client.on_link(to, link, &world, effects);
                    }
                    _ => {}
                }
                self.outputs.extend(effects.drain(..).filter_map(outward));
            }
        }
    }
}

impl Member {
    fn start(
        parts: MemberParts,
        top: &mut Node,
        process: &RuntimeWorld,
    ) -> Result<(Self, Vec<Output>), StartError> {
        let MemberParts {
            mut node,
            recovered,
            snapshots,
            is_shared,
        } = parts;
        let mut outputs = Vec::new();
        let repairing = recovered.state_lost;
        let world = ShardWorld::of(process, &snapshots);
        if is_shared {
            top.lend_protocol(&mut node);
        }
        let started = node.start(recovered, &world, &mut outputs);
        if is_shared {
            top.lend_protocol(&mut node);
        }
        started?;
        let this = Self {
            node,
            is_shared,
            snapshots,
            trims: Trims::default(),
            repairing,
            repaired_at: None,
            route: Vec::new(),
            step_down_at: Time(0),
            wake: Wake::Sleep,
            is_awake: true,
            idle_at: Time(0),
            halted: None,
            waiters: Vec::new(),
        };
        Ok((this, outputs))
    }

    fn input(&mut self, input: Input, process: &RuntimeWorld, outputs: &mut Vec<Output>) {
        let world = ShardWorld::of(process, &self.snapshots);
        self.is_awake = true;
        if let Err(error) = self.node.on_input(input, &world, outputs) {
            tracing::debug!(%error, "frame dropped");
        }
    }

    /// Whether it is to be told that nothing more has come.
    fn is_due(&self, now: Time) -> bool {
        let waits = match self.wake {
            Wake::Spin => true,
            Wake::At(at) => at <= now,
            Wake::Sleep => false,
        };
        waits || self.is_awake || now.since(self.idle_at) >= IDLE_EVERY
    }

    fn on_idle(&mut self, process: &RuntimeWorld, now: Time, outputs: &mut Vec<Output>) {
        let world = ShardWorld::of(process, &self.snapshots);
        (self.is_awake, self.idle_at) = (false, now);
        self.wake = self.node.on_idle(&world, outputs);
    }
}

impl EventLoop {
    /// Hands an input to a shard and carries out what it asks for; true when a batch has finished.
    pub(super) fn shard_input(&mut self, at: usize, input: Input) -> bool {
        self.lend_protocol(at);
        self.shards.input(at, input, &self.world);
        self.lend_protocol(at);
        self.carry_out_shard(at) | self.carry_out_foreign()
    }

    /// Calls a member with the protocol lent to it if it is group 0's, and carries out what it asks for
    /// in its group; true when a batch has finished.
    fn with_member(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut Member, &RuntimeWorld, &mut Vec<Output>),
    ) -> bool {
        self.lend_protocol(at);
        if let Part::Member(member) = &mut self.shards.all[at].part {
            act(member, &self.world, &mut self.shards.outputs);
        }
        self.lend_protocol(at);
        self.carry_out_shard(at)
    }

    /// The part of a shard in the newest view, if its members follow the views.
    fn role_of(&self, shard: &Shard) -> Option<&Role> {
        let is_shared = matches!(&shard.part, Part::Member(member) if member.is_shared);
        let mut roles = self.node.roles().iter();
        roles.find(|role| is_shared && role.group == shard.about.group)
    }

    /// Lends the protocol of group 0 to the node of a shard that it serves, or takes it back.
    fn lend_protocol(&mut self, at: usize) {
        if let Some(shard) = self.shards.all.get_mut(at)
            && let Part::Member(member) = &mut shard.part
            && member.is_shared
        {
            self.node.lend_protocol(&mut member.node);
        }
    }

    /// Carries out what the protocol of group 0 asks for in shards that it serves; true when a batch
    /// has finished.
    pub(super) fn carry_out_foreign(&mut self) -> bool {
        let mut finished = false;
        while self.shards.shares {
            let mut foreign = std::mem::take(&mut self.shards.foreign);
            self.node.take_foreign(&mut foreign);
            if foreign.is_empty() {
                self.shards.foreign = foreign;
                break;
            }
            let mut effects = foreign.drain(..).peekable();
            while let Some((group, mut run)) = next_foreign(&mut effects) {
                finished |= self.carry_out_in_group(group, &mut run);
                // A node that is not here, or cannot continue, takes none.
                run.for_each(drop);
            }
            drop(effects);
            self.shards.foreign = foreign;
        }
        finished
    }

    fn carry_out_in_group(
        &mut self,
        group: GroupId,
        effects: impl Iterator<Item = Effect>,
    ) -> bool {
        let Some(at) = self.shards.place(group) else {
            let (world, outputs) = (&self.world, &mut self.outputs);
            self.node.carry_out_foreign(effects, world, outputs);
            return self.carry_out_own();
        };
        self.with_member(at, |member, process, outputs| {
            let world = ShardWorld::of(process, &member.snapshots);
            member.is_awake = true;
            member.node.carry_out_foreign(effects, &world, outputs);
        })
    }

    /// A frame for another group than 0.
    pub(super) fn on_shard_frame(&mut self, group: GroupId, input: Input) {
        match self.shards.place(group) {
            Some(at) => drop(self.shard_input(at, input)),
            None => tracing::debug!(group = group.0, "frame of an unknown group dropped"),
        }
    }

    /// A link has changed.
    pub(super) fn tell_shards_of_link(&mut self, peer: ReplicaId, link: Link) {
        for at in 0..self.shards.all.len() {
            if self.shards.all[at].about.members.contains(peer) {
                let link = self.shards.link_of(at, peer, link);
                self.shard_input(at, Input::Link(Peer::Replica(peer), link));
            }
        }
    }

    pub(super) fn on_shard_timer(&mut self, group: GroupId, key: TimerKey) {
        if let Some(at) = self.shards.place(group) {
            self.shard_input(at, Input::Timer(key));
        }
    }

    /// A batch for the group that its header names; gives it back when that is group 0.
    pub(super) fn submit_to_shard(&mut self, submission: Submission) -> Option<Submission> {
        let Some(at) = self.shards.place(group_of(&submission.batch)) else {
            return Some(submission);
        };
        let now = self.now();
        let shard = &self.shards.all[at];
        let role = self.role_of(shard);
        let is_lost = role.is_some_and(|role| role.state == RoleState::Lost);
        let is_halted = matches!(&shard.part, Part::Member(member) if member.halted.is_some());
        let ends = is_halted || is_lost && submission.level != Level::Stale;
        if !ends
            && self.shards.all[at]
                .reach
                .takes(submission.id, submission.level, now)
        {
            self.shard_input(at, Input::Submit(submission));
        } else {
            self.shell
                .done_by_shard(submission.id, Outcome::NoQuorum, now);
        }
        None
    }

    /// Looks, once in a while, whether the shards have their quorums; what waits for one that is lost
    /// ends.
    pub(super) fn look_at_shards(&mut self, now: Time) {
        let Some(first) = self.shards.all.first() else {
            return;
        };
        if !first.reach.must_look(now) {
            return;
        }
        let figures = self.shell.peers.figures(now);
        for shard in &mut self.shards.all {
            let known = match &shard.part {
                Part::Member(member) if member.is_shared => Known {
                    route: &self.route,
                    quorate: self.node.quorate_peers(now),
                    committed: self.node.status_in(shard.about.group).committed,
                    ..Known::default()
                },
                Part::Member(member) => Known {
                    route: &member.route,
                    quorate: member.node.quorate_peers(now),
                    committed: member.node.protocol_status().committed,
                    ..Known::default()
                },
                Part::Guest(client) => Known {
                    lost: client.without_quorum(now),
                    ..Known::default()
                },
            };
            shard.reach.observe(&figures, known, now);
            for batch in shard.reach.take_hopeless(now) {
                self.shell.done_by_shard(batch, Outcome::Uncertain, now);
                self.shell.changed = true;
            }
        }
    }

    /// A leader that cannot make its own votes durable for long should not lead its shard, and neither
    /// one whose state is not the majority's.
    pub(super) fn step_down_in_shards(
        &mut self,
        statuses: &ShardStatuses,
        is_full: bool,
        now: Time,
    ) {
        for at in 0..self.shards.all.len() {
            let Shard { about, part, .. } = &mut self.shards.all[at];
            let Part::Member(member) = part else {
                continue;
            };
            let leads = member.node.protocol_status().leader == Some(member.node.id());
            if member.is_shared || !leads || now < member.step_down_at {
                continue;
            }
            let is_wrong = statuses.is_minority(at);
            if is_wrong || is_full && about.durability == Durability::Disk {
                member.step_down_at = now + STEP_DOWN_EVERY;
                self.shard_input(at, Input::Control(Control::HandOff));
            }
        }
    }

    /// Writes of the journal up to this one are durable: tells the groups whose they are.
    pub(super) fn tell_durable(&mut self, upto: PersistId) {
        if self.shards.is_empty() {
            return self.input(Input::Persisted(upto));
        }
        for (index, id) in self.shards.order.durable(upto) {
            if index == GroupIndex(0) {
                self.input(Input::Persisted(id));
                continue;
            }
            if let Some(at) = self.shards.place_in_journal(index) {
                self.shard_input(at, Input::Persisted(id));
            }
        }
    }

    /// The journal's number of a write of group 0.
    pub(super) fn numbered(&mut self, id: PersistId) -> PersistId {
        match self.shards.is_empty() {
            true => id,
            false => self.shards.order.assign(GroupIndex(0), id),
        }
    }

    /// Lets the shards work; when to be called again, and whether a batch has finished.
    pub(super) fn idle_shards(&mut self, now: Time) -> (Wake, bool) {
        let (mut wake, mut finished) = (Wake::Sleep, false);
        for at in 0..self.shards.all.len() {
            let is_due = |part: &Part| matches!(part, Part::Member(member) if member.is_due(now));
            if is_due(&self.shards.all[at].part) {
                let idle = |member: &mut Member, process: &_, outputs: &mut _| {
                    member.on_idle(process, now, outputs);
                };
                finished |= self.with_member(at, idle) | self.carry_out_foreign();
            }
            if let Part::Member(member) = &self.shards.all[at].part {
                wake = earlier(wake, member.wake);
            }
        }
        (wake, finished)
    }

    /// An instruction for every shard whose member this replica is.
    pub(super) fn tell_shards(&mut self, control: &Control) {
        for at in 0..self.shards.all.len() {
            if matches!(self.shards.all[at].part, Part::Member(_)) {
                self.shard_input(at, Input::Control(control.clone()));
            }
        }
    }

    pub(super) fn carry_out_started(&mut self, started: Vec<(usize, Vec<Output>)>) {
        for (at, outputs) in started {
            self.shards.outputs.extend(outputs);
            self.carry_out_shard(at);
        }
    }

    fn carry_out_shard(&mut self, at: usize) -> bool {
        if self.shards.outputs.is_empty() {
            return false;
        }
        let now = self.now();
        let (mut finished, mut sent) = (false, false);
        let group = self.shards.all[at].about.group;
        let mut outputs = std::mem::take(&mut self.shards.outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send { to, lane, frame } => {
                    self.shell.peers.send(to, lane, frame, now);
                    sent = true;
                }
                // Its words are group 0's in the memory that peers share.
                Output::Put { to, ranges } => {
                    let (to, frame) = (Recipients::Replicas(to), put_frame(group, FIRST, ranges));
                    self.shell.peers.send(to, Lane::Control, frame, now);
                    sent = true;
                }
                Output::SetTimer { key, at } => self.shell.timers.set((group, key), at),
                Output::CancelTimer { key } => self.shell.timers.cancel((group, key)),
                Output::Done { batch, outcome } => {
                    let results = matches!(outcome, Outcome::Results(_));
                    // One that ended when the quorum was lost has been answered.
                    if self.shards.all[at].reach.finished(batch, results, now) {
                        self.shell.done_by_shard(batch, outcome, now);
                    }
                    finished = true;
                }
                Output::Mark(branch) => self.shell.metrics.mark(branch, now),
                Output::Diverged(found) => {
                    let shard = self.shards.all[at].about.name.clone();
                    self.on_diverged(&found, &shard);
                }
                Output::BreakLinks => self.shell.peers.break_links(DISK_HUNG, now),
                Output::Digest(_) => {}
                other => self.carry_out_for_member(at, other),
            }
        }
        self.shards.outputs = outputs;
        if sent {
            self.update_rooms();
        }
        finished
    }

    /// An output that only a member has.
    fn carry_out_for_member(&mut self, at: usize, output: Output) {
        let now = self.now();
        let Shard {
            about,
            index,
            part,
            reach,
        } = &mut self.shards.all[at];
        let Part::Member(member) = part else {
            return;
        };
        let index = *index;
        match output {
            Output::Journal { id, write } => {
                self.shell.metrics.journal_writes += 1;
                self.written = self.shards.order.assign(index, id);
                self.journal.write(index, self.written, write);
            }
            Output::Trim { below } => {
                if let Some(below) = member.trims.later(below, &member.snapshots) {
                    self.journal.trim(index, below);
                }
            }
            Output::Recovered => {
                member.repaired_at = Some(self.written);
                self.maybe_repaired();
            }
            Output::Route {
                members, agreed, ..
            } => {
                if agreed {
                    member.route = members.to_vec();
                }
            }
            Output::Halt(_, reason) => {
                let shard = &about.name;
                tracing::error!(shard, reason, "the shard cannot continue here");
                if member.is_shared {
                    // The others wait for all that its protocol does here.
                    let reason = format!("shard {shard}: {reason}");
                    self.exit = Some(ExitReason::DataRefused(reason));
                    return;
                }
                member.halted = Some(reason);
                // Its node says nothing more.
                for batch in reach.take_all() {
                    self.shell.done_by_shard(batch, Outcome::Uncertain, now);
                }
                self.shell.changed = true;
            }
            Output::EpochBegins { .. } => {
                let shard = &about.name;
                tracing::error!(shard, "a shard has one epoch, and another begins");
            }
            other => {
                if let Some(other) = member.snapshots.carry_out(other) {
                    tracing::debug!(?other, "carried out for every group");
                }
            }
        }
    }

    /// The group at this place of the journal is to take a snapshot.
    pub(super) fn checkpoint_of(&mut self, group: GroupIndex) {
        let Some(at) = self.shards.place_in_journal(group) else {
            return self.node.ask_for_checkpoint(&self.world, &mut self.outputs);
        };
        self.with_member(at, |member, process, outputs| {
            let world = ShardWorld::of(process, &member.snapshots);
            member.is_awake = true;
            member.node.ask_for_checkpoint(&world, outputs);
        });
        self.carry_out_foreign();
    }

    /// A snapshot is requested of the shard of this name.
    pub(super) fn on_shard_snapshot_now(&mut self, name: &str, waiter: SnapshotWaiter) {
        let refuse = |why: String| {
            // The caller may have given up.
            let _ = waiter.send(Err(why));
        };
        let all = &mut self.shards.all;
        let Some(at) = all.iter().position(|shard| shard.about.name == name) else {
            let names: Vec<_> = all.iter().map(|shard| &shard.about.name[..]).collect();
            return refuse(match names.is_empty() {
                true => "no layout divides the keys: there is one snapshot of them all".to_owned(),
                false => format!(
                    "a layout divides the keys: name one of its shards, {} (--shard NAME)",
                    names.join(", ")
                ),
            });
        };
        let Shard { about, part, .. } = &mut all[at];
        let Part::Member(member) = part else {
            let members: Vec<_> = about.members.iter().map(|id| id.0.to_string()).collect();
            let members = members.join(", ");
            return refuse(format!(
                "this replica has nothing of it: ask one of {members}"
            ));
        };
        if let Some(answer) = known_snapshot(member.node.executed().slot, &member.snapshots) {
            // The caller may have given up.
            let _ = waiter.send(answer);
            return;
        }
        member.waiters.push(waiter);
        let index = all[at].index;
        self.checkpoint_of(index);
    }

    /// Mail about a shard's snapshots.
    pub(super) fn on_shard_snapshot(&mut self, group: GroupId, news: SnapshotNews) {
        let Some(at) = self.shards.place(group) else {
            return;
        };
        let Shard { index, part, .. } = &mut self.shards.all[at];
        let (index, Part::Member(member)) = (*index, part) else {
            return;
        };
        let input = match news {
            SnapshotNews::Written(file, bytes) => {
                let current = member.snapshots.is_current(file);
                current.then_some(Input::SnapshotWritten(bytes))
            }
            SnapshotNews::Saved(kept) => {
                self.shell.metrics.snapshots += 1;
                member.snapshots.saved(kept);
                if kept.is_fetched() {
                    self.journal.skip(index);
                }
                if let Some(below) = member.trims.due(&member.snapshots) {
                    self.journal.trim(index, below);
                }
                let report = snapshot_report(&member.snapshots, kept.info);
                answer_waiters(&mut member.waiters, &Ok(report));
                Some(Input::SnapshotSaved(kept.info))
            }
            SnapshotNews::Failed(file) => {
                self.shell.metrics.snapshots_failed += 1;
                let current = member.snapshots.is_current(file);
                if current {
                    member.snapshots.failed();
                    answer_waiters(
                        &mut member.waiters,
                        &Err("it could not be written".to_owned()),
                    );
                }
                current.then_some(Input::SnapshotFailed)
            }
        };
        if let Some(input) = input {
            self.shard_input(at, input);
        }
    }

    /// The views of all groups of which this replica is a member.
    pub(super) fn views(&self) -> Vec<GroupView> {
        let top = self.node.view().map(|(number, members)| GroupView {
            group: GroupId(0),
            number: (self.node.epoch().0, number),
            members,
        });
        let shards = self.shards.all.iter().filter_map(|shard| {
            let Part::Member(member) = &shard.part else {
                return None;
            };
            let about = &shard.about;
            let (number, members) = match member.is_shared {
                true => self.node.view_in(about.group)?,
                false => member.node.view()?,
            };
            Some(GroupView {
                group: about.group,
                number: (FIRST.0, number),
                members,
            })
        });
        top.into_iter().chain(shards).collect()
    }

    /// The shards, as this process sees them.
    pub(super) fn group_reports(&self, statuses: ShardStatuses, now: Time) -> Vec<GroupReport> {
        let report = |(shard, status): (&Shard, Option<NodeStatus>)| {
            let about = &shard.about;
            let base = GroupReport {
                group: about.group.0,
                name: about.name.clone(),
                protocol: about.protocol.clone(),
                durability: about.durability.name(),
                members: about.members.iter().map(|id| id.0).collect(),
                ..GroupReport::default()
            };
            let (member, mut node) = match (&shard.part, status) {
                (Part::Member(member), Some(node)) => (member, node),
                (Part::Member(_), None) => return base,
                (Part::Guest(client), _) => {
                    return GroupReport {
                        role: "none".to_owned(),
                        open: client.open(),
                        ..base
                    };
                }
            };
            if member.is_shared {
                node.protocol = self.node.status_in(about.group);
            }
            let protocol = &node.protocol;
            let role = self.role_of(shard);
            let members = role.map_or(about.members, |role| role.members);
            let me = member.node.id();
            let is_part = members.contains(me);
            let voting = protocol.voting && is_part && member.halted.is_none();
            let quorate = match member.is_shared {
                true => self.node.quorate_peers(now),
                false => member.node.quorate_peers(now),
            };
            let voters = ReplicaSet(members.0 & quorate.0);
            GroupReport {
                leads: voting && does_for_all(me, protocol.leader, voters),
                role: match member.halted {
                    Some(_) => "halted".to_owned(),
                    None if !is_part => "none".to_owned(),
                    None => protocol.role.to_owned(),
                },
                state: role.map(|role| match role.state {
                    RoleState::Active => "active",
                    RoleState::Lost => "lost",
                }),
                lacks: (protocol.details.iter())
                    .find(|(name, _)| *name == "lacks")
                    .map(|(_, text)| text.clone()),
                view: role.map(|_| self.node.protocol_status().view),
                members: members.iter().map(|id| id.0).collect(),
                halted: member.halted.clone(),
                leader: protocol.leader.map(|leader| leader.0),
                voting,
                committed: protocol.committed.0,
                executed: node.executed.slot.0,
                position: node.executed.position.0,
                entries: node.entries,
                memory: node.memory,
                refuses_writes: node.refuses_writes,
                open: node.open,
                fetching: node.fetching,
                snapshot: node.snapshot.map(|info| SnapshotReport {
                    path: String::new(),
                    slot: info.id.slot.0,
                    bytes: info.length,
                }),
                ..base
            }
        };
        self.shards.all.iter().zip(statuses.0).map(report).collect()
    }
}

/// Whether a member that votes does what one member has to: the leader, or without one the first of
/// those that vote. `others` are those that this one has heard of late.
fn does_for_all(me: ReplicaId, leader: Option<ReplicaId>, others: ReplicaSet) -> bool {
    leader.or_else(|| others.with(me).iter().next()) == Some(me)
}

/// A report of a shard's snapshot thread.
pub(super) enum SnapshotNews {
    Written(u64, u64),
    Saved(Kept),
    Failed(u64),
}

/// The wake that comes first.
pub(super) fn earlier(one: Wake, other: Wake) -> Wake {
    match (one, other) {
        (Wake::Spin, _) | (_, Wake::Spin) => Wake::Spin,
        (Wake::At(one), Wake::At(other)) => Wake::At(one.min(other)),
        (Wake::Sleep, other) => other,
        (one, Wake::Sleep) => one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_member_heard_does_for_all_without_a_leader() {
        let heard = |ids: &[u16]| ids.iter().copied().map(ReplicaId).collect();
        let one = ReplicaId(1);
        assert!(!does_for_all(one, None, heard(&[0, 2])));
        // Member 0 is dead, halted, or fetches.
        assert!(does_for_all(one, None, heard(&[2])));
        assert!(!does_for_all(one, Some(ReplicaId(2)), heard(&[2])));
        assert!(does_for_all(one, Some(one), heard(&[0, 2])));
    }
}
