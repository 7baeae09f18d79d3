//! A fixed sequencer whose clients count the replies themselves.
//!
//! ```text
//!   frontend ── Request ──► sequencer (replica 0) ── durable ──► Order{slot} ──► followers
//!      ▲                        │ executes                           │ durable: execute
//!      └──── reply{slot} ───────┴──────── reply{slot} ───────────────┘
//!   the same slot from a majority: done
//! ```
//!
//! It stands next to [`Toy`](crate::Toy) for the parts of the boundary that the other has no use
//! for: a frontend of its own that reads reply headers, options declared as a table, and logs that
//! are trimmed behind snapshots, so that a follower which lags fetches the state.
//!
//! An order is on the disk of the sequencer before it is sent, so it never changes. A majority's replies say that the disks of a majority have it. Like the toy, it needs
//! replica 0 and disk durability.

use quintet_replica::{
    BatchId, BatchView, Bytes, CommandTime, Context, Control, DecodeError, Frontend,
    FrontendContext, FrontendId, FrontendSetup, Info, Lane, Level, NodeState, Outcome, PersistId,
    Protocol, Reader, Recovered, ReplicaId, ReplicaSet, Reply, Setup, Slot, Status, Submission,
    Time, Wake, Wire, Writer, outcome_at_deadline,
    parts::{Request, SlotLog, StateFetch},
    wire,
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

const SEQUENCER: ReplicaId = ReplicaId(0);

quintet_replica::options! {
    /// The options.
    #[derive(Clone, Debug)]
    pub struct Config {
        /// how often the sequencer sends again what followers lack, in milliseconds
        repeat: millis(1..=60_000) = 20,
        /// the most orders that are sent again at once
        window: count(1..=4096, "orders") = 64,
        /// whether every replica answers reads from what it has, which may be old
        stale_reads: flag = false,
    }
    impl Options {}
}

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// The sequencer sends again the orders that followers lack.
        Repeat,
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    time: CommandTime,
    batch: Bytes,
}

wire! { struct Entry { time, batch } }

/// The messages: see the picture.
#[derive(Clone, Debug)]
pub enum Message {
    /// From a frontend.
    Request(Request),
    /// From the sequencer: the entry of this slot.
    Order(Slot, Entry),
    /// To the sequencer: all up to this slot is durable here.
    Durable(Slot),
    /// From the sequencer: it keeps nothing below this slot.
    Trimmed(Slot),
}

wire! {
    enum Message {
        0 = Request(request),
        1 = Order(slot, entry),
        2 = Durable(slot),
        3 = Trimmed(slot),
    }
}

/// No promise is ever given: the sequencer never changes.
#[derive(Debug)]
pub struct Promise;

impl Wire for Promise {
    fn encode(&self, _: &mut Writer<'_>) {}
    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

/// The protocol's part of a snapshot: the time of its last command.
#[derive(Debug)]
pub struct Summary {
    time: CommandTime,
}

wire! { struct Summary { time } }

/// The header of a reply: the slot that the batch was executed in; 0 for reads.
#[derive(Debug)]
pub struct Place {
    slot: Slot,
}

wire! { struct Place { slot } }

/// A replica; see the module.
#[derive(Debug)]
pub struct Sequencer {
    id: ReplicaId,
    members: usize,
    config: Config,
    log: SlotLog<Entry>,
    writes: VecDeque<(PersistId, Slot)>,
    durable: Slot,
    executed: Slot,
    time_last: CommandTime,
    time_executed: CommandTime,
    fetching: StateFetch,
    /// Sequencer: what is durable at each member.
    reported: Vec<Slot>,
}

impl Sequencer {
    fn others(&self) -> ReplicaSet {
        ReplicaSet::all(self.members).without(self.id)
    }

    fn append(&mut self, entry: Entry, ctx: &mut Context<'_, Self>) {
        let slot = self.log.end();
        self.time_last = entry.time;
        self.writes.push_back((ctx.persist(slot, &entry), slot));
        self.log.set(slot, entry);
    }

    fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        while self.executed < self.durable {
            let slot = self.executed.next();
            let entry = self.log.get(slot).expect("kept until executed").clone();
            let frontend = BatchView::new(&entry.batch).map(|batch| batch.frontend());
            let reply = frontend.ok().map(|to| (to, Place { slot }, None));
            (self.executed, self.time_executed) = (slot, entry.time);
            ctx.execute(slot, entry.time, entry.batch, reply);
        }
        self.fetching.reached(self.executed);
    }

    fn report(&self, ctx: &mut Context<'_, Self>) {
        if self.id != SEQUENCER {
            ctx.send(SEQUENCER, Lane::Control, &Message::Durable(self.durable));
        }
    }

    /// Everything up to this slot is in the state.
    fn restart_behind(&mut self, slot: Slot, time: CommandTime) {
        self.log.reset(slot.next());
        self.writes.clear();
        (self.durable, self.executed) = (slot, slot);
        (self.time_last, self.time_executed) = (time, time);
    }
}

impl Protocol for Sequencer {
    type Message = Message;
    type Promise = Promise;
    type Record = Entry;
    type Summary = Summary;
    type ReplyHeader = Place;
    type Timer = Timer;
    type Options = Config;
    type Frontend = Counting;

    const NEEDS_STREAMS: bool = true;
    const INFO: Info = Info {
        name: "sequencer",
        paper: "none",
        best_at: "showing a frontend that counts replies",
        tolerates: "a minority of followers",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<Config>) -> Self {
        Self {
            id: setup.id,
            members: setup.epoch.members,
            config: setup.options,
            log: SlotLog::new(Slot(1)),
            writes: VecDeque::new(),
            durable: Slot(0),
            executed: Slot(0),
            time_last: CommandTime(0),
            time_executed: CommandTime(0),
            fetching: StateFetch::default(),
            reported: vec![Slot(0); setup.epoch.members],
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promise, Entry, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some((slot, summary)) = recovered.checkpoint {
            self.restart_behind(slot, summary.time);
        }
        for (slot, entry) in recovered.records {
            if slot == self.log.end() {
                self.time_last = entry.time;
                self.log.set(slot, entry);
            }
        }
        self.durable = self.log.end().previous();
        self.execute(ctx);
        self.report(ctx);
        ctx.set_timer(Timer::Repeat, self.config.repeat);
    }

    fn on_request(&mut self, _: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        let Message::Request(Request { level, batch }) = message else {
            return;
        };
        let Ok(view) = BatchView::checked(&batch) else {
            return;
        };
        if level != Level::Ordered {
            // A write that a frontend counts as done was durable here before it was sent.
            let place = Place { slot: Slot(0) };
            let to = view.frontend();
            ctx.query(batch, self.durable, false, to, &place);
        } else if self.id == SEQUENCER && ctx.may_order(&view) {
            let time = CommandTime(ctx.clock().now.max(self.time_last.0 + 1));
            self.append(Entry { time, batch }, ctx);
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        match message {
            Message::Order(slot, entry) if from == SEQUENCER => {
                if slot == self.log.end() {
                    self.append(entry, ctx);
                } else if slot <= self.durable {
                    self.report(ctx);
                }
            }
            Message::Durable(slot) if self.id == SEQUENCER => {
                let reported = &mut self.reported[from.index()];
                *reported = slot.min(self.durable).max(*reported);
            }
            Message::Trimmed(first) if from == SEQUENCER && first > self.log.end() => {
                ctx.mark("follower needs trimmed slots");
                let others = self.others();
                self.fetching
                    .ask(first.previous(), self.executed, others, ctx);
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, _: Timer, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Repeat, self.config.repeat);
        if self.id != SEQUENCER {
            return self.report(ctx);
        }
        for id in self.others().iter() {
            let from = self.reported[id.index()].next();
            if from < self.log.first() {
                ctx.send(id, Lane::Control, &Message::Trimmed(self.log.first()));
                continue;
            }
            for (slot, entry) in self.log.iter_from(from).take(self.config.window) {
                if slot <= self.durable {
                    ctx.send(id, Lane::Bulk, &Message::Order(slot, entry.clone()));
                }
            }
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        while let Some((_, slot)) = self.writes.front().copied().filter(|it| it.0 <= upto) {
            self.writes.pop_front();
            if slot <= self.durable {
                continue; // A state that came meanwhile covers it.
            }
            self.durable = slot;
            if self.id == SEQUENCER {
                let entry = self.log.get(slot).expect("kept until executed").clone();
                ctx.multicast(self.others(), Lane::Bulk, &Message::Order(slot, entry));
            }
        }
        self.execute(ctx);
        self.report(ctx);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
        self.log.trim(slot.next().min(self.executed.next()), drop);
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.fetching.reached(slot);
        if slot > self.executed {
            ctx.mark("state installed");
            self.restart_behind(slot, summary.time);
            ctx.trim(slot.next());
            self.report(ctx);
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        if matches!(control, Control::CheckpointDue) && self.executed > Slot(0) {
            let time = self.time_executed;
            ctx.checkpoint(self.executed, &Summary { time });
        }
    }

    fn on_idle(&mut self, _: &mut Context<'_, Self>) -> Wake {
        Wake::Sleep
    }

    fn status(&self) -> Status {
        Status {
            role: match self.id {
                SEQUENCER => "sequencer",
                _ => "follower",
            },
            leader: Some(SEQUENCER),
            accepted: self.log.end().previous(),
            committed: self.durable,
            stable: self.executed,
            voting: !self.fetching.in_progress(),
            ..Status::default()
        }
    }

    fn viable(members: usize, nodes: &[NodeState]) -> bool {
        let up = nodes.iter().filter(|node| node.up && !node.state_lost);
        up.clone().any(|node| node.id == SEQUENCER) && up.count() > members / 2
    }

    fn digest(&self) -> u64 {
        self.log.end().0 ^ self.durable.0 << 20 ^ self.executed.0 << 40
    }

    fn assert_invariants(&self) {
        assert!(self.executed <= self.durable, "executed from disk");
        assert!(self.durable < self.log.end(), "durable in the log");
    }
}

#[derive(Debug)]
struct Open {
    submission: Submission,
    repeat_at: Time,
    /// The replicas that executed it, per slot: one that was sent again may have several.
    replies: BTreeMap<Slot, ReplicaSet>,
}

/// The frontend: a write is done when a majority has executed it in the same slot.
#[derive(Debug)]
pub struct Counting {
    members: usize,
    reads_at: ReplicaId,
    open: BTreeMap<BatchId, Open>,
}

const REPEAT_AFTER: Duration = Duration::from_millis(400);

impl Counting {
    fn send(&self, submission: &Submission, ctx: &mut FrontendContext<'_, Sequencer>) {
        let request = Request {
            level: submission.level,
            batch: submission.batch.clone(),
        };
        let to = match submission.level {
            Level::Ordered => SEQUENCER,
            _ => self.reads_at,
        };
        ctx.send(to, Message::Request(request));
    }

    fn arm(&self, ctx: &mut FrontendContext<'_, Sequencer>) {
        let due = |open: &Open| open.repeat_at.min(open.submission.deadline);
        if let Some(at) = self.open.values().map(due).min() {
            ctx.set_timer(0, at);
        }
    }
}

impl Frontend<Sequencer> for Counting {
    fn new(setup: FrontendSetup<Config>) -> Self {
        let stale = setup.options.stale_reads;
        Self {
            members: setup.epoch.members,
            reads_at: setup.embedded.filter(|_| stale).unwrap_or(SEQUENCER),
            open: BTreeMap::new(),
        }
    }

    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, Sequencer>) {
        self.send(&submission, ctx);
        let open = Open {
            submission,
            repeat_at: ctx.now() + REPEAT_AFTER,
            replies: BTreeMap::new(),
        };
        self.open.insert(open.submission.id, open);
        self.arm(ctx);
    }

    fn on_message(&mut self, _: ReplicaId, _: Message, _: &mut FrontendContext<'_, Sequencer>) {}

    fn on_reply(
        &mut self,
        from: ReplicaId,
        reply: Reply<Place>,
        ctx: &mut FrontendContext<'_, Sequencer>,
    ) {
        let Some(open) = self.open.get_mut(&reply.batch) else {
            return;
        };
        let replies = open.replies.entry(reply.header.slot).or_default();
        replies.insert(from);
        let read = open.submission.level != Level::Ordered;
        if read || replies.len() > self.members / 2 {
            self.open.remove(&reply.batch);
            ctx.done(reply.batch, Outcome::Results(reply.results));
        }
    }

    fn on_timer(&mut self, _: u32, ctx: &mut FrontendContext<'_, Sequencer>) {
        let now = ctx.now();
        let over = |open: &Open| open.submission.deadline <= now;
        for open in self.open.values().filter(|open| over(open)) {
            let outcome = outcome_at_deadline(open.submission.level, true);
            ctx.done(open.submission.id, outcome);
        }
        self.open.retain(|_, open| !over(open));
        for open in self.open.values().filter(|open| open.repeat_at <= now) {
            self.send(&open.submission, ctx);
        }
        for open in self.open.values_mut().filter(|it| it.repeat_at <= now) {
            open.repeat_at = now + REPEAT_AFTER;
        }
        self.arm(ctx);
    }

    fn open(&self) -> usize {
        self.open.len()
    }

    fn take_open(&mut self) -> Vec<Submission> {
        let open = std::mem::take(&mut self.open);
        open.into_values().map(|open| open.submission).collect()
    }
}
