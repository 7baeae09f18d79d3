//! One replica: its state, and how events reach the parts.

use super::{
    Config, Frontend,
    message::{Ballot, Body, Entry, Join, Member, Message, Promised, Proposal, Summary, View},
    plant::Plant,
    rdmc::Rdmc,
    reads::Reads,
    restart::Inspection,
    sluggish::Waits,
    sst::{Columns, HEARTBEAT, Layout, ON_ALL, ON_RING, ON_SELF, ON_SUSPECTED, ON_VIEW, Table},
    triggers::TRIGGERS,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    Bytes, CommandTime, Context, Control, Durability, Frame, Incarnation, Info, Lane, Link,
    NodeState, Options, Peer, PersistId, Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot,
    Status, Time, Wake,
    parts::{Admission, KeptRequests, RequestQueue, SlotLog, Timing},
};

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// Heartbeats, suspicion, asking again.
        Beat,
        /// Requests and reads under way are looked through.
        Housekeeping,
    }
}

const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// How a replica stands to its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// This start is being counted.
    Starting,
    /// Not active: not a member, on its way to be complete, or it has left.
    Out,
    /// Complete, and the view is being written down.
    Activating,
    /// A member at work.
    Active,
}

/// What follows when a promise is durable.
#[derive(Clone, Debug, Hash)]
pub(super) enum Act {
    /// The start is counted.
    Begin,
    /// Echo a proposal in the own row.
    Echo(Proposal),
    /// Answer an inspector's phase 1.
    Promise { to: ReplicaId, ballot: Ballot },
    /// Answer an inspector's phase 2.
    Accepted { to: ReplicaId, ballot: Ballot },
    /// Take part in this view.
    Activate(u64),
}

/// What came from a sender and has no place in the order yet.
#[derive(Debug, Hash)]
pub(super) enum Item {
    Nulls(u64),
    Body(Body),
}

/// What is received from one sender.
#[derive(Debug, Default, Hash)]
pub(super) struct Stream {
    /// Slots of its ring taken.
    pub slots: u64,
    /// Messages received, nulls included.
    pub received: u64,
    /// Slots with nulls taken since something was said of it.
    pub unsaid: usize,
    pub queue: VecDeque<Item>,
    /// Large messages that came ahead of their slot.
    pub bulk: BTreeMap<u64, Bytes>,
}

/// What was sent and not yet taken by all.
#[derive(Debug, Hash)]
pub(super) struct Sent {
    pub slot: u64,
    pub first: u64,
    pub count: u64,
    pub body: Frame,
    pub path: Path,
}

/// On which way the bytes of a message go to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Path {
    /// In its slot of the ring (SMC).
    Slot,
    /// On the lane for bulk, whole.
    Whole,
    /// On the lane for bulk, in blocks that members pass on (RDMC).
    Blocks,
}

/// A write under way.
#[derive(Debug, Hash)]
pub(super) struct Writing {
    pub id: PersistId,
    pub view: u64,
    /// Everything up to here in the order of the view, once it is durable.
    pub ordered: u64,
    pub slot: Slot,
}

/// One replica of Derecho; see the module.
#[derive(Hash)]
pub struct Derecho {
    pub(super) id: ReplicaId,
    pub(super) incarnation: Incarnation,
    pub(super) members: usize,
    pub(super) others: ReplicaSet,
    pub(super) durability: Durability,
    pub(super) config: Config,

    pub(super) promise: Promised,
    pub(super) acts: VecDeque<(PersistId, Act)>,
    pub(super) phase: Phase,
    /// Has left the view in this life: never acts in it again.
    pub(super) left: bool,
    pub(super) forgot: bool,
    /// The view in which it forgot what it had acknowledged; 0 for none.
    pub(super) forgot_in: u64,
    /// The newest views, ascending, for whoever has missed some.
    pub(super) views: VecDeque<View>,

    pub(super) log: SlotLog<Entry>,
    pub(super) log_bytes: usize,
    /// Everything up to here is durable.
    pub(super) durable: Slot,
    pub(super) writes: VecDeque<Writing>,
    /// Everything up to here is delivered: agreed for ever.
    pub(super) sure: Slot,
    pub(super) executed: Slot,
    pub(super) executed_done: Slot,
    pub(super) time_seen: CommandTime,
    pub(super) time_executed: CommandTime,
    pub(super) fetching: Option<Slot>,

    pub(super) table: Table,
    pub(super) dirty: Columns,
    pub(super) own_dirty: Vec<u32>,
    /// Something in the own row that others wait for has changed.
    pub(super) news: bool,
    /// Whose ring may hold something that was not taken.
    pub(super) fresh: ReplicaSet,
    /// The number in the order of the last message that is known and no null.
    pub(super) newest: u64,
    pub(super) fired: u32,
    pub(super) lagging: ReplicaSet,
    /// The newest view whose members have been told to the world.
    pub(super) route_told: u64,
    pub(super) streams: Vec<Stream>,
    /// Messages in the order of the view: received with all before them, durable, delivered.
    pub(super) ordered: u64,
    pub(super) persisted: u64,
    pub(super) delivered: u64,
    /// The last slot after each message that is ordered and not delivered.
    pub(super) marks: VecDeque<Slot>,
    pub(super) sent: u64,
    pub(super) slots_sent: u64,
    /// Own messages by the way they went.
    pub(super) multicasts: Timing<[u64; 3]>,
    pub(super) slots_put: u64,
    pub(super) unacked: VecDeque<Sent>,
    /// Large messages, and blocks of them, of the next view, whose senders are ahead.
    pub(super) early: VecDeque<(ReplicaId, u64, Message)>,
    pub(super) rdmc: Rdmc,
    pub(super) acked_before: Vec<(u64, u32)>,

    pub(super) suspected: ReplicaSet,
    pub(super) wedging: bool,
    pub(super) proposing: u64,
    pub(super) heard: Vec<Time>,
    pub(super) down: ReplicaSet,
    pub(super) beat_at: Time,
    pub(super) beats: u64,

    pub(super) joins: Vec<Option<(Join, Time)>>,
    pub(super) donor: Option<ReplicaId>,
    pub(super) donor_sure: Slot,
    pub(super) out_since: Time,
    pub(super) active_at: Time,
    pub(super) inspection: Option<Inspection>,
    pub(super) round_seen: u64,
    /// When another inspector last got a promise.
    pub(super) promised_at: Time,
    pub(super) wanted: Option<(ReplicaId, Proposal, ReplicaId)>,
    pub(super) lost_since: Option<Time>,

    pub(super) requests: KeptRequests,
    pub(super) queue: RequestQueue,
    pub(super) reads: Reads,
    pub(super) waits: Waits,
    pub(super) admission: Admission,
    /// When this member began in the present view.
    pub(super) installed_at: Time,
    housekeeping: bool,
}

impl Derecho {
    /// The members of the view.
    pub(super) fn view_set(&self) -> ReplicaSet {
        self.promise.view.set()
    }

    /// The members of the view besides this one.
    pub(super) fn peers(&self) -> ReplicaSet {
        self.view_set().without(self.id)
    }

    /// The members that are not suspected.
    pub(super) fn live(&self) -> ReplicaSet {
        ReplicaSet(self.view_set().0 & !self.suspected.0)
    }

    pub(super) fn end(&self) -> Slot {
        self.log.end().previous()
    }

    /// A member of the view in this life, which it has not left.
    pub(super) fn belongs(&self) -> bool {
        !self.left && self.promise.view.life(self.id) == Some(self.promise.life)
    }

    pub(super) fn member(&self) -> Member {
        Member {
            id: self.id,
            life: self.promise.life,
            incarnation: self.incarnation,
        }
    }

    /// Writes the promise; what `act` says follows when it is durable.
    pub(super) fn save(&mut self, act: Act, ctx: &mut Context<'_, Self>) {
        self.promise.sure = self.sure;
        let id = ctx.persist_promise(&self.promise);
        self.acts.push_back((id, act));
    }

    fn act(&mut self, act: Act, ctx: &mut Context<'_, Self>) {
        match act {
            Act::Begin => self.begin(ctx),
            Act::Echo(proposal) => self.on_echo_durable(&proposal, ctx),
            Act::Promise { to, ballot } => self.send_promise(to, ballot, ctx),
            Act::Accepted { to, ballot } => self.send_accepted(to, ballot, ctx),
            Act::Activate(view) => self.activated(view, ctx),
        }
    }

    fn begin(&mut self, ctx: &mut Context<'_, Self>) {
        if self.phase != Phase::Starting {
            return;
        }
        self.phase = Phase::Out;
        self.out_since = ctx.now();
        self.active_at = ctx.now();
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        if self.promise.complete && self.belongs() {
            self.become_active(ctx);
        } else {
            self.send_join(self.others, ctx);
        }
    }

    pub(super) fn arm_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.housekeeping {
            self.housekeeping = true;
            ctx.set_timer(Timer::Housekeeping, HOUSEKEEPING);
        }
    }

    /// Keeps an entry at the end of the log and writes it.
    pub(super) fn append(&mut self, entry: Entry, ctx: &mut Context<'_, Self>) -> PersistId {
        let slot = self.log.end();
        let id = ctx.persist(slot, &entry);
        self.keep(slot, entry);
        id
    }

    pub(super) fn keep(&mut self, slot: Slot, entry: Entry) {
        self.log_bytes += entry.batch.len() + size_of::<Entry>();
        self.time_seen = self.time_seen.max(entry.time);
        self.log.set(slot, entry);
    }

    /// Forgets what lies above `last`: it was not delivered, and never will be in these slots.
    pub(super) fn cut(&mut self, last: Slot) {
        for (_, entry) in self.log.iter_from(last.next()) {
            self.log_bytes -= entry.batch.len() + size_of::<Entry>();
        }
        self.log.truncate(last.next());
        self.durable = self.durable.min(last);
        for write in &mut self.writes {
            write.slot = write.slot.min(last);
        }
    }

    /// Forgets entries that are executed when there are too many. While somebody is on its way to be
    /// a member, twice as many may stay: what is delivered while it fetches a state, it needs.
    fn trim_log(&mut self) {
        let most = self.config.log_memory_bytes << u32::from(self.has_joiners());
        while self.log_bytes > most && self.log.first() <= self.executed_done {
            let bytes = &mut self.log_bytes;
            let below = self.log.first().next();
            self.log.trim(below, |entry| {
                *bytes -= entry.batch.len() + size_of::<Entry>()
            });
        }
    }

    /// Asks for the execution of what is sure.
    pub(super) fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        while self.executed < self.sure {
            let slot = self.executed.next();
            let Some(entry) = self.log.get(slot) else {
                return;
            };
            self.time_executed = self.time_executed.max(entry.time);
            let batch = entry.batch.clone();
            self.executed = slot;
            let reply = self.request_done(&batch).map(|to| (to, (), None));
            ctx.execute(slot, self.time_executed, batch, reply);
        }
    }

    /// A batch is being executed: it needs sending no more. Who is answered, if a client of this
    /// replica asked for it.
    pub(super) fn request_done(&mut self, batch: &[u8]) -> Option<quintet_replica::FrontendId> {
        let key = quintet_replica::parts::request_key(batch)?;
        self.queue.finished(key);
        self.requests.executed(key).then_some(key.0)
    }

    /// What was durable before this start.
    fn restore(&mut self, recovered: Recovered<Promised, Entry, Summary>) -> bool {
        let Recovered {
            forgot,
            first_boot,
            promise,
            checkpoint,
            records,
        } = recovered;
        let fresh = promise.is_none();
        if let Some(promise) = promise {
            self.promise = promise;
            self.promise.life += 1;
        }
        self.forgot = forgot && !fresh;
        if let Some((slot, summary)) = checkpoint {
            self.log.reset(slot.next());
            self.executed = slot;
            self.executed_done = slot;
            self.sure = slot;
            self.time_executed = summary.time;
            self.time_seen = summary.time;
        }
        for (slot, entry) in records {
            if slot < self.log.first() {
                continue;
            }
            if slot > self.log.end() && self.forgot {
                // An older snapshot stood in for a damaged one: the others have the rest.
                break;
            }
            if slot > self.log.end() {
                return false;
            }
            self.cut(slot.previous());
            self.keep(slot, entry);
        }
        let view = &self.promise.view;
        let (number, base) = (view.number, view.base);
        if self.forgot {
            self.promise.complete = false;
            self.forgot_in = number;
        } else if self.durability == Durability::Memory && !first_boot && !fresh {
            // The operator begins again, whatever was forgotten.
            self.promise.complete = true;
            self.promise.view.base = base.min(self.end());
        }
        if self.promise.complete {
            // Above the base only what was sent in this view: the trim has dropped the rest.
            let mut above = self.log.iter_from(base.next());
            let stale = above
                .find(|(_, entry)| entry.view < number)
                .map(|(slot, _)| slot);
            drop(above);
            if let Some(slot) = stale {
                self.cut(slot.previous());
            }
            if self.end() < self.promise.view.base {
                return false;
            }
            self.sure = self.sure.max(self.promise.view.base);
        } else {
            let sure = self.promise.sure.min(self.end());
            self.sure = self.sure.max(sure);
            self.cut(self.sure);
        }
        self.durable = self.end();
        if !fresh && !self.planted(Plant::RestartAsMember) {
            self.left = true;
        } else if !fresh {
            self.promise.life -= 1;
        }
        self.views.push_back(self.promise.view.clone());
        true
    }

    fn active_in(&self, view: u64) -> bool {
        self.phase == Phase::Active && self.promise.view.number == view
    }

    pub(super) fn on_replica_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        self.heard[from.index()] = ctx.arrived();
        if self.phase == Phase::Starting {
            return;
        }
        match message {
            Message::Bulk { view, .. } | Message::Block { view, .. } if !self.active_in(view) => {
                self.wait_for_view(from, view, message);
            }
            Message::Bulk { index, body, .. } => self.on_bulk(from, index, body.into_bytes()),
            Message::Block {
                number,
                large,
                block,
                bytes,
                ..
            } => self.on_block(from, number, large, (block, bytes), ctx),
            Message::Join(join) => self.on_join(from, join, ctx),
            Message::Views { views, active } => self.on_views(from, views, active, ctx),
            Message::Fetch { view, have, upto } => self.on_fetch(from, view, have, upto, ctx),
            Message::Tail {
                view,
                first,
                sure,
                entries,
            } => self.on_tail(from, view, (first, sure), entries, ctx),
            Message::Behind { at_least } => self.on_behind(at_least, ctx),
            Message::Prepare { view, ballot } => self.on_prepare(from, view, ballot, ctx),
            Message::Promise {
                view,
                ballot,
                member,
                complete,
                end,
                accepted,
            } => {
                if member.id == from {
                    let state = (complete, end);
                    self.on_promise((view, ballot), member, state, accepted, ctx);
                }
            }
            Message::Accept {
                view,
                proposal,
                source,
            } => self.on_accept(from, view, proposal, source, ctx),
            Message::Accepted { view, ballot } => self.on_accepted(from, view, ballot, ctx),
            Message::Request { .. } | Message::Taken { .. } => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    /// Looks at the predicates whose columns have changed, until nothing changes any more.
    pub(super) fn run_triggers(&mut self, ctx: &mut Context<'_, Self>) {
        while self.dirty != 0 && self.phase == Phase::Active {
            let dirty = core::mem::take(&mut self.dirty);
            for (number, trigger) in TRIGGERS.iter().enumerate() {
                let bit = 1 << number;
                if trigger.columns & (dirty | self.dirty) == 0
                    || trigger.once && self.fired & bit != 0
                    || self.phase != Phase::Active
                    || !(trigger.when)(self)
                {
                    continue;
                }
                self.fired |= bit;
                (trigger.act)(self, ctx);
            }
        }
    }
}

impl Protocol for Derecho {
    type Message = Message;
    type Promise = Promised;
    type Record = Entry;
    type Summary = Summary;
    type ReplyHeader = ();
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const INFO: Info = Info {
        name: "derecho",
        paper: "Jha, Behrens, Gkountouvas, Milano, Song, Tremel, van Renesse, Zink, Birman, \
                Derecho: Fast State Machine Replication for Cloud Services, ACM TOCS 36(2), 2019",
        best_at: "steady streams from several replicas at once: every member multicasts what its \
                  clients ask for, and nobody waits for a leader",
        tolerates: "crashes and partitions of a minority of the present view; views shrink and \
                    grow",
        stable: true,
        replicas_min: 1,
    };

    const NEEDS_STREAMS: bool = true;

    #[cfg(feature = "plant")]
    const PLANTS: &'static [quintet_replica::PlantSpec] = Plant::SPECS;

    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "member suspected",
        "sluggish member removed",
        "restart without an incomplete log",
        "ragged trim computed",
        "ragged trim adopted",
        "view installed",
        "minority halts",
        "suspected by another",
        "member admitted",
        "restart inspected",
        "restart agreed",
        "restart around a view",
        "state installed",
        "nulls sent",
        "multicast by rdmc",
        "read waits for the next view",
    ];

    fn new(setup: Setup<Config>) -> Self {
        let Setup {
            id,
            incarnation,
            epoch,
            options,
            durability,
            ..
        } = setup;
        let members = epoch.members;
        let layout = Layout::new(members, options.window, options.smc_bytes_max);
        let first = View {
            number: 1,
            members: (epoch.all().iter())
                .map(|id| Member {
                    id,
                    life: 1,
                    incarnation: Incarnation(1),
                })
                .collect(),
            base: Slot(0),
        };
        Self {
            id,
            incarnation,
            members,
            others: epoch.others(id),
            durability,
            config: options,
            promise: Promised {
                life: 1,
                view: first,
                complete: true,
                promised: Ballot::default(),
                accepted: None,
                sure: Slot(0),
            },
            acts: VecDeque::new(),
            phase: Phase::Starting,
            left: false,
            forgot: false,
            forgot_in: 0,
            views: VecDeque::new(),
            log: SlotLog::default(),
            log_bytes: 0,
            durable: Slot(0),
            writes: VecDeque::new(),
            sure: Slot(0),
            executed: Slot(0),
            executed_done: Slot(0),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
            fetching: None,
            table: Table::new(members, layout),
            dirty: 0,
            own_dirty: Vec::new(),
            news: false,
            fresh: ReplicaSet::EMPTY,
            newest: 0,
            fired: 0,
            lagging: ReplicaSet::EMPTY,
            route_told: 0,
            streams: (0..members).map(|_| Stream::default()).collect(),
            ordered: 0,
            persisted: 0,
            delivered: 0,
            marks: VecDeque::new(),
            sent: 0,
            slots_sent: 0,
            multicasts: Timing([0; 3]),
            slots_put: 0,
            unacked: VecDeque::new(),
            early: VecDeque::new(),
            rdmc: Rdmc::default(),
            acked_before: vec![(0, 0); members],
            suspected: ReplicaSet::EMPTY,
            wedging: false,
            proposing: 0,
            heard: vec![Time(0); members],
            down: ReplicaSet::EMPTY,
            beat_at: Time(0),
            beats: 0,
            joins: vec![None; members],
            donor: None,
            donor_sure: Slot(0),
            out_since: Time(0),
            active_at: Time(0),
            inspection: None,
            round_seen: 0,
            promised_at: Time(0),
            wanted: None,
            lost_since: None,
            requests: KeptRequests::new(),
            queue: RequestQueue::default(),
            reads: Reads::default(),
            waits: Waits::new(members),
            admission: Admission::new(members),
            installed_at: Time(0),
            housekeeping: false,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Entry, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.heard.fill(ctx.now());
        self.beat_at = ctx.now();
        if !self.restore(recovered) {
            return ctx.halt(
                "the journal has records missing in its middle; restore this replica's data \
                 directory from a backup or replace it by a new member"
                    .to_string(),
            );
        }
        if self.forgot {
            ctx.mark("forgot what it had acknowledged");
            if self.members == 1 {
                return self.halt_lost(ctx);
            }
        }
        self.execute(ctx);
        self.save(Act::Begin, ctx);
    }

    fn on_message(&mut self, from: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        match from {
            Peer::Frontend(frontend) => match message {
                Message::Request { level, batch } => self.on_request(frontend, level, batch, ctx),
                _ => ctx.mark("ignored: not a frontend's message"),
            },
            Peer::Replica(id) if self.others.contains(id) => {
                self.on_replica_message(id, message, ctx);
            }
            Peer::Replica(_) => ctx.mark("ignored: not a member of the epoch"),
        }
    }

    fn on_put(&mut self, from: ReplicaId, offset: u32, words: &[u64], ctx: &mut Context<'_, Self>) {
        if !self.others.contains(from) {
            return;
        }
        self.heard[from.index()] = ctx.arrived();
        // A suspected member's row is frozen (§3.5).
        if self.phase == Phase::Active && self.suspected.contains(from) {
            return;
        }
        let merged = self.table.merge(from, offset, words);
        self.dirty |= merged.dirty;
        if merged.dirty & (ON_RING | ON_VIEW) != 0 {
            self.fresh.insert(from);
        }
        if merged.dirty & ON_VIEW != 0 {
            self.tell_route(ctx);
        }
        if merged.refused > 0 {
            ctx.mark("ignored: a column went back");
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Beat => self.on_beat(ctx),
            Timer::Housekeeping => {
                self.housekeeping = false;
                self.requests.expire(ctx.now());
                self.reads.expire(ctx.now());
                if !self.requests.is_empty() || !self.reads.is_empty() {
                    self.arm_housekeeping(ctx);
                }
            }
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        while self.writes.front().is_some_and(|write| write.id <= upto) {
            let Some(write) = self.writes.pop_front() else {
                break;
            };
            self.durable = self.durable.max(write.slot);
            if write.view == self.promise.view.number && self.phase == Phase::Active {
                self.persisted = self.persisted.max(write.ordered);
                self.dirty |= ON_SELF;
            }
        }
        while self.acts.front().is_some_and(|(id, _)| *id <= upto) {
            if let Some((_, act)) = self.acts.pop_front() {
                self.act(act, ctx);
            }
        }
        if self.phase == Phase::Out {
            self.maybe_accept(ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.executed_done = self.executed_done.max(slot);
        self.trim_log();
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        if self.fetching.is_some_and(|at_least| slot >= at_least) {
            self.fetching = None;
        }
        self.executed_done = self.executed_done.max(slot);
        if slot <= self.executed {
            return;
        }
        self.time_executed = self.time_executed.max(summary.time);
        self.time_seen = self.time_seen.max(summary.time);
        self.executed = slot;
        if slot > self.end() {
            self.log.reset(slot.next());
            self.log_bytes = 0;
            self.durable = slot;
            for write in &mut self.writes {
                write.slot = slot;
            }
        }
        self.sure = self.sure.max(slot);
        ctx.trim(slot.next());
        self.execute(ctx);
        self.after_catching_up(ctx);
    }

    fn on_link(&mut self, peer: Peer, link: Link, ctx: &mut Context<'_, Self>) {
        let Peer::Replica(peer) = peer else { return };
        if !self.others.contains(peer) {
            return;
        }
        match link {
            Link::Up { .. } => {
                self.down = self.down.without(peer);
                self.lagging.insert(peer);
                self.acked_before[peer.index()].1 = 0;
                self.rdmc.on_link_up(peer);
                if self.phase == Phase::Out {
                    self.send_join(ReplicaSet::EMPTY.with(peer), ctx);
                }
            }
            Link::Reset => {
                self.lagging.insert(peer);
            }
            Link::Down => {
                self.down.insert(peer);
            }
            Link::Arriving => self.heard[peer.index()] = ctx.now(),
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            // Who is slow is found out by who waits for it.
            Control::Slow(_) | Control::SlowMembers(_) | Control::EpochEnded => {}
            Control::CheckpointDue => {
                if self.executed > Slot(0) {
                    let time = self.time_executed;
                    ctx.checkpoint(self.executed, &Summary { time });
                }
            }
            Control::HandOff => self.hand_off(ctx),
            Control::ReportFailure(peer) => {
                if self.phase == Phase::Active && self.peers().contains(peer) {
                    self.suspect(peer, ctx);
                }
            }
            Control::Option { name, value } => {
                let mut changed = self.config.clone();
                let fixed = ["window", "smc_bytes_max"].contains(&name.as_str());
                match changed.set(&name, &value).and_then(|()| changed.check()) {
                    Ok(()) if !fixed => self.config = changed,
                    _ => ctx.mark("ignored: option value"),
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        if self.phase == Phase::Active {
            self.dirty |= ON_SELF | ON_RING;
            self.run_triggers(ctx);
        }
        if self.phase == Phase::Active {
            self.send_messages(ctx);
            self.raise_barrier();
            self.run_triggers(ctx);
        }
        if self.phase == Phase::Active {
            self.push(ctx);
            self.note_waiting(ctx.now());
        }
        Wake::Sleep
    }

    fn takes_requests(&self, _now: Time) -> bool {
        self.phase == Phase::Active
    }

    fn status(&self) -> Status {
        let leader = (self.phase == Phase::Active)
            .then(|| self.live().iter().next())
            .flatten();
        let role = match self.phase {
            Phase::Starting => "starting",
            Phase::Active if self.wedging => "wedged",
            Phase::Active if leader == Some(self.id) => "leader",
            Phase::Active => "member",
            Phase::Activating => "joining",
            Phase::Out if self.forgot && !self.promise.complete => "forgot",
            Phase::Out if self.belongs() => "joining",
            Phase::Out => "out",
        };
        let details = vec![
            ("members", self.picture()),
            ("life", self.promise.life.to_string()),
            ("base", self.promise.view.base.to_string()),
            ("ordered", self.ordered.to_string()),
            ("persisted", self.persisted.to_string()),
            ("delivered", self.delivered.to_string()),
            ("log_first", self.log.first().to_string()),
            ("log_bytes", self.log_bytes.to_string()),
            ("requests", self.requests.len().to_string()),
            ("reads", self.reads.len().to_string()),
            ("unacknowledged", self.unacked.len().to_string()),
            ("block_bytes", self.rdmc.bytes().to_string()),
        ];
        let [slot, whole, blocks] = *self.multicasts;
        Status {
            role,
            leader,
            paths: vec![("smc", slot), ("whole", whole), ("rdmc", blocks)],
            multicasts: vec![("smc", slot), ("whole", whole), ("rdmc", blocks)],
            view: self.promise.view.number,
            accepted: self.end(),
            committed: self.sure,
            stable: self.executed,
            voting: self.phase == Phase::Active,
            details,
        }
    }

    fn viable_in(members: usize, nodes: &[NodeState], route: &[(ReplicaId, Incarnation)]) -> bool {
        if route.is_empty() {
            return Self::viable(members, nodes);
        }
        let there = |node: &&NodeState| {
            node.up && !node.forgot && route.iter().any(|(id, _)| *id == node.id)
        };
        nodes.iter().filter(there).count() > route.len() / 2
    }

    fn digest(&self) -> u64 {
        let mut hash = self.table.digest(self.id);
        for word in [
            self.phase as u64,
            self.promise.view.number,
            self.promise.life,
            self.promise.promised.round,
            self.log.first().0,
            self.log.end().0,
            self.log_bytes as u64,
            self.durable.0,
            self.sure.0,
            self.executed.0,
            self.ordered,
            self.persisted,
            self.delivered,
            self.sent,
            self.suspected.0 as u64,
            self.time_seen.0,
            self.requests.len() as u64,
            self.requests.bytes() as u64,
            self.reads.len() as u64,
            self.heard.iter().fold(0, |sum, at| sum ^ at.0),
        ] {
            hash = (hash ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
        hash
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }

    fn assert_invariants(&self) {
        assert!(self.executed <= self.sure, "only what is sure is executed");
        assert!(self.sure <= self.end(), "what is sure is held");
        assert!(
            self.executed_done <= self.executed,
            "executions were asked for"
        );
        assert!(self.durable <= self.end(), "what is durable is held");
        assert!(
            self.log.first() <= self.executed.next(),
            "what is not executed is kept"
        );
        if self.phase == Phase::Active {
            assert!(
                self.promise.complete,
                "a member at work holds everything up to the base"
            );
            assert!(self.belongs(), "it is a member in this life");
            assert!(
                self.delivered <= self.persisted || self.planted(Plant::DeliverBeforeAll),
                "delivered by all means persisted here"
            );
            assert!(self.persisted <= self.ordered, "persisted in order");
            let next = self.promise.view.number + 1;
            let unlogged = self.acts.iter().any(|(_, act)| match act {
                Act::Echo(proposal) if proposal.view.number == next => {
                    self.table.valid(self.id)
                        && self.table.proposed(self.id) >= proposal.ballot.proposer
                }
                _ => false,
            });
            assert!(!unlogged, "a trim is echoed when it is on disk");
            assert!(
                self.unacked.len() <= self.config.window,
                "the window bounds what is sent"
            );
            assert_eq!(
                self.marks.len() as u64,
                self.ordered - self.delivered,
                "every ordered message has its last slot"
            );
            assert!(
                self.live().len() * 2 > self.promise.view.members.len()
                    || self.planted(Plant::MinorityContinues),
                "a minority halts"
            );
        }
    }
}

impl Derecho {
    fn picture(&self) -> String {
        let mut picture = String::new();
        for member in &self.promise.view.members {
            let (open, close) = if self.suspected.contains(member.id) {
                ("(", ")")
            } else {
                ("", "")
            };
            let here = if member.id == self.id { "*" } else { "" };
            let space = if picture.is_empty() { "" } else { " " };
            picture += &format!("{space}{open}{}{here}{close}", member.id.0);
        }
        picture
    }

    /// Pushes what has changed in the own row, and the new slots of the ring; everything to whom
    /// puts were lost or had no room.
    pub(super) fn push(&mut self, ctx: &mut Context<'_, Self>) {
        let live = ReplicaSet(self.live().without(self.id).0);
        self.lagging = ReplicaSet(self.lagging.0 & live.0);
        for peer in self.lagging.iter() {
            let bytes = self.row_bytes() + self.bodies_missing(peer);
            if ctx.takes(peer, bytes) && !self.down.contains(peer) {
                self.lagging = self.lagging.without(peer);
                self.push_all(peer, ctx);
            }
        }
        if !self.news && self.slots_put == self.slots_sent {
            // What nobody waits for goes with the next put, with a heartbeat at the latest.
            if self.own_dirty.len() > 8 * self.members {
                self.own_dirty.sort_unstable();
                self.own_dirty.dedup();
            }
            return;
        }
        self.news = false;
        let mut to = ReplicaSet(live.0 & !self.lagging.0);
        for peer in to.iter() {
            if ctx.room(peer) < self.row_bytes() {
                self.lagging.insert(peer);
                to = to.without(peer);
            }
        }
        let mut words = Vec::new();
        for sent in self
            .unacked
            .iter()
            .filter(|sent| sent.slot >= self.slots_put)
        {
            words.push((sent.slot, self.slot_words(sent)));
            if sent.path == Path::Whole {
                let message = Message::Bulk {
                    view: self.promise.view.number,
                    index: sent.first,
                    body: sent.body.clone(),
                };
                ctx.multicast(to, Lane::Bulk, &message);
            }
        }
        let layout = self.table.layout;
        let mut dirty = core::mem::take(&mut self.own_dirty);
        dirty.sort_unstable_by_key(|column| (layout.concerns(*column), *column));
        dirty.dedup();
        let common = dirty.partition_point(|column| layout.concerns(*column).is_none());
        let mut ranges = self.ring_ranges(&words);
        if self.planted(Plant::PutTorn) {
            let single = ranges.iter().filter(|range| range.1.len() == 1);
            ctx.put(to, &single.copied().collect::<Vec<_>>());
        }
        // What one member alone looks at goes to that one alone.
        let (common, single) = dirty.split_at(common);
        let changed = self.table.dirty_ranges(self.id, common);
        let mut rest = to;
        for of_it in single.chunk_by(|a, b| layout.concerns(*a) == layout.concerns(*b)) {
            let peer = of_it.first().and_then(|column| layout.concerns(*column));
            let Some(peer) = peer.filter(|peer| to.contains(*peer)) else {
                continue;
            };
            let own = self.table.dirty_ranges(self.id, of_it);
            let all: Vec<_> = [&ranges[..], &own, &changed].concat();
            ctx.put(ReplicaSet::EMPTY.with(peer), &all);
            rest = rest.without(peer);
        }
        let news = !words.is_empty() || !changed.is_empty();
        if news && !rest.is_empty() {
            ranges.extend(changed);
            ctx.put(rest, &ranges);
        }
        dirty.clear();
        self.own_dirty = dirty;
        self.slots_put = self.slots_sent;
    }

    /// The whole row, and what the peer has not taken of the ring.
    fn push_all(&mut self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        let view = self.promise.view.number;
        let mut words = Vec::new();
        for sent in self.missing(peer) {
            words.push((sent.slot, self.slot_words(sent)));
            if sent.path == Path::Whole {
                let (index, body) = (sent.first, sent.body.clone());
                ctx.send(peer, Lane::Bulk, &Message::Bulk { view, index, body });
            }
        }
        let mut ranges = self.ring_ranges(&words);
        ranges.extend(self.table.own_ranges(self.id));
        ranges.push(self.table.own_range(self.id, super::sst::VIEW));
        ctx.put(ReplicaSet::EMPTY.with(peer), &ranges);
    }

    /// What a peer has not said that it has received.
    fn missing(&self, peer: ReplicaId) -> impl Iterator<Item = &Sent> {
        let taken = self.table.read(peer, self.table.layout.received(self.id));
        (self.unacked.iter()).filter(move |sent| sent.first + sent.count > taken)
    }

    /// What it takes to send a peer all of that which goes as a whole: to some of it, nothing would
    /// bring the rest.
    fn bodies_missing(&self, peer: ReplicaId) -> usize {
        let whole = self.missing(peer).filter(|sent| sent.path == Path::Whole);
        whole.map(|sent| sent.body.len() + 1024).sum()
    }

    /// More than a push of the row and the ring takes.
    fn row_bytes(&self) -> usize {
        let small = self.unacked.iter().filter(|sent| sent.path == Path::Slot);
        let ring: usize = small.map(|sent| sent.body.len() + 64).sum();
        self.table.layout.ring() as usize * 8 + ring + 4096
    }

    pub(super) fn set_own(&mut self, column: u32, word: u64) {
        self.news |= self.set_own_quietly(column, word);
    }

    /// For what nobody waits for: it goes with the next put. Gives whether it was new.
    pub(super) fn set_own_quietly(&mut self, column: u32, word: u64) -> bool {
        let new = self.table.set(self.id, column, word);
        if new {
            self.own_dirty.push(column);
            self.dirty |= self.table.layout.kind(column);
        }
        new
    }

    pub(super) fn set_own_suspected(&mut self) {
        self.table.set_suspected(self.id, self.suspected);
        self.own_dirty.push(super::sst::SUSPECTED);
        self.news = true;
        self.dirty |= ON_SUSPECTED;
    }

    pub(super) fn set_own_proposal(&mut self, proposal: &Proposal) {
        self.table.set_proposal(self.id, proposal);
        self.own_dirty.push(self.table.layout.proposed());
        self.news = true;
        self.dirty |= ON_ALL;
    }

    pub(super) fn beat_heart(&mut self) {
        self.beats += 1;
        self.set_own(HEARTBEAT, self.beats);
    }
}
