//! A protocol small enough to be right by looking at it, and ways to break it.
//!
//! ```text
//!   follower ── Forward ──► leader (always replica 0), durable ── Append{slot} ──► followers
//!                              ▲                                             │ durable
//!                              └─────────────── Ack{upto} ◄──────────────────┘
//!                           majority durable: execute, answer, Commit{upto} ──► followers
//! ```
//!
//! The leader never changes, so a set is viable only with replica 0 in it, and only in disk
//! durability. There are no snapshots: a restart executes the journal again.

pub mod sequencer;

use quintet_replica::{
    BatchView, Bytes, CommandTime, Context, Control, DecodeError, FrontendId, Info, Lane, Level,
    NodeState, OptionSpec, Options, PersistId, Protocol, Reader, Recovered, ReplicaId, ReplicaSet,
    Setup, Slot, Status, Wake, Wire, Writer,
    parts::{AttachedFrontend, Receipt, Request, Taken},
    request_message, wire,
};
use std::time::Duration;

/// How the toy is broken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bug {
    /// Not at all.
    #[default]
    None,
    /// The leader executes and answers at once, before anything is durable anywhere.
    EarlyAnswer,
    /// Followers answer reads from what they have.
    StaleRead,
    /// Followers acknowledge before their copy is durable, and the leader counts its own so.
    EarlyAck,
    /// The last replica leaves out every tenth batch.
    LeavesOut,
    /// A follower executes with a time of its own.
    OwnTime,
    /// Requests are forwarded and their clients told that the replica was too busy.
    BusyYetForwards,
    /// The promise is written and not read back.
    ForgetsPromise,
    /// Nothing is committed after the hundredth slot.
    Stalls,
    /// An assertion fails at the fiftieth slot.
    Panics,
    /// The hash of its state leaves out how much is acknowledged.
    PartialHash,
}

const BUGS: [(&str, Bug); 11] = [
    ("none", Bug::None),
    ("early_answer", Bug::EarlyAnswer),
    ("stale_read", Bug::StaleRead),
    ("early_ack", Bug::EarlyAck),
    ("leaves_out", Bug::LeavesOut),
    ("own_time", Bug::OwnTime),
    ("busy_yet_forwards", Bug::BusyYetForwards),
    ("forgets_promise", Bug::ForgetsPromise),
    ("stalls", Bug::Stalls),
    ("panics", Bug::Panics),
    ("partial_hash", Bug::PartialHash),
];

/// Its one option, `bug`: how it is broken.
#[derive(Clone, Debug, Default)]
pub struct ToyOptions {
    bug: Bug,
}

impl Options for ToyOptions {
    const SPECS: &'static [OptionSpec] = &[OptionSpec {
        name: "bug",
        default: "none",
        help: "how it is broken",
    }];
    fn set(&mut self, _: &str, value: &str) -> Result<(), String> {
        let found = BUGS.iter().find(|(name, _)| *name == value);
        self.bug = found.ok_or_else(|| format!("'{value}' is no bug"))?.1;
        Ok(())
    }
}

/// A slot's entry in the log.
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
    /// To a frontend: its request is here.
    Taken(Receipt),
    /// A follower's request, to the leader.
    Forward(Request),
    /// From the leader: the entry of this slot.
    Append(Slot, Entry),
    /// To the leader: all up to this slot is durable here.
    Ack(Slot),
    /// From the leader: all up to this slot is decided.
    Commit(Slot),
}

request_message!(Message);

wire! {
    enum Message {
        0 = Request(request),
        1 = Taken(receipt),
        2 = Forward(request),
        3 = Append(slot, entry),
        4 = Ack(slot),
        5 = Commit(slot),
    }
}

/// The one timer: what may have been lost is sent again.
#[derive(Clone, Copy, Debug)]
pub struct Again;

impl From<Again> for u32 {
    fn from(_: Again) -> Self {
        0
    }
}
impl TryFrom<u32> for Again {
    type Error = ();
    fn try_from(_: u32) -> Result<Self, ()> {
        Ok(Self)
    }
}

/// A number on the wire: what is durable beside the log, and what a snapshot says.
#[derive(Debug)]
pub struct Number(u64);

impl Wire for Number {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(reader.u64("number")?))
    }
}

const LEADER: ReplicaId = ReplicaId(0);

/// A replica; see the crate.
#[derive(Debug)]
pub struct Toy {
    id: ReplicaId,
    members: usize,
    bug: Bug,
    log: Vec<Entry>,
    /// Slots durable here, in order of their writes.
    durable: u64,
    persisting: Vec<(PersistId, u64)>,
    /// Leader: durable at each member.
    acks: Vec<u64>,
    committed: u64,
    executed: u64,
    boots: u64,
    /// Leader: reads wait for what was in the log when it started.
    recovered: u64,
}

impl Toy {
    fn last(&self) -> u64 {
        self.log.len() as u64
    }

    fn append(&mut self, entry: Entry, ctx: &mut Context<'_, Self>) {
        self.log.push(entry.clone());
        let slot = self.last();
        let id = ctx.persist(Slot(slot), &entry);
        self.persisting.push((id, slot));
        if self.bug == Bug::EarlyAck {
            self.becomes_durable(slot, ctx);
        }
    }

    /// The leader forwards only what it cannot lose, so that a slot has one entry forever.
    fn becomes_durable(&mut self, upto: u64, ctx: &mut Context<'_, Self>) {
        let before = self.durable;
        if upto <= before {
            return;
        }
        self.durable = upto;
        if self.id == LEADER {
            let others = ReplicaSet::all(self.members).without(self.id);
            for slot in before + 1..=upto {
                let entry = self.log[slot as usize - 1].clone();
                ctx.multicast(others, Lane::Control, &Message::Append(Slot(slot), entry));
            }
        }
        self.acknowledge(ctx);
    }

    fn acknowledge(&mut self, ctx: &mut Context<'_, Self>) {
        if self.id == LEADER {
            self.acks[0] = self.durable;
            self.maybe_commit(ctx);
        } else {
            ctx.send(LEADER, Lane::Control, &Message::Ack(Slot(self.durable)));
        }
    }

    fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) {
        let mut acks = self.acks.clone();
        acks.sort_unstable();
        let mut commit = acks[(self.members - 1) / 2];
        if self.bug == Bug::Stalls {
            commit = commit.min(100);
        }
        if self.bug == Bug::EarlyAnswer {
            commit = self.last();
        }
        self.commit(commit, ctx);
    }

    fn commit(&mut self, upto: u64, ctx: &mut Context<'_, Self>) {
        if upto <= self.committed {
            return;
        }
        self.committed = upto;
        self.execute(ctx);
        if self.id == LEADER {
            let others = ReplicaSet::all(self.members).without(self.id);
            ctx.multicast(others, Lane::Control, &Message::Commit(Slot(upto)));
        }
    }

    fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        while self.executed < self.committed.min(self.last()) {
            let mut entry = self.log[self.executed as usize].clone();
            self.executed += 1;
            let slot = self.executed;
            assert!(
                self.bug != Bug::Panics || slot < 50,
                "the fiftieth slot is too much"
            );
            let last = self.id.index() == self.members - 1;
            if self.bug == Bug::LeavesOut && last && slot.is_multiple_of(10) {
                entry.batch = Bytes::new();
            }
            if self.bug == Bug::OwnTime {
                entry.time = CommandTime(ctx.clock().now);
            }
            let frontend = BatchView::new(&entry.batch).map(|batch| batch.frontend());
            let reply = match frontend {
                Ok(frontend) if self.id == LEADER => Some((frontend, (), None)),
                _ => None,
            };
            ctx.execute(Slot(slot), entry.time, entry.batch, reply);
        }
    }

    fn take(&mut self, request: Request, ctx: &mut Context<'_, Self>) {
        let batch = request.batch.clone();
        let Ok(view) = BatchView::checked(&batch) else {
            return;
        };
        let frontend = view.frontend();
        if request.level != Level::Ordered && (self.id == LEADER || self.bug == Bug::StaleRead) {
            let at_least = match self.id {
                LEADER => self.executed.max(self.recovered),
                _ => self.executed,
            };
            ctx.query(batch, Slot(at_least), false, frontend, &());
            return;
        }
        if self.id != LEADER {
            if self.bug == Bug::BusyYetForwards {
                let (batch, taken) = (view.id(), Taken::Busy);
                ctx.send_frontend(frontend, Message::Taken(Receipt { batch, taken }));
            }
            ctx.send(LEADER, Lane::Control, &Message::Forward(request));
            return;
        }
        let time = CommandTime(ctx.clock().now);
        let entry = Entry { time, batch };
        self.append(entry, ctx);
        self.maybe_commit(ctx);
    }
}

impl Protocol for Toy {
    type Message = Message;
    type Promise = Number;
    type Record = Entry;
    type Summary = Number;
    type ReplyHeader = ();
    type Timer = Again;
    type Options = ToyOptions;
    type Frontend = AttachedFrontend<Self>;

    const NEEDS_STREAMS: bool = true;
    const INFO: Info = Info {
        name: "toy",
        paper: "none",
        best_at: "being broken on purpose",
        tolerates: "a minority of followers",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<ToyOptions>) -> Self {
        Self {
            id: setup.id,
            members: setup.epoch.members,
            bug: setup.options.bug,
            log: Vec::new(),
            durable: 0,
            persisting: Vec::new(),
            acks: vec![0; setup.epoch.members],
            committed: 0,
            executed: 0,
            boots: 0,
            recovered: 0,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Number, Entry, Number>,
        ctx: &mut Context<'_, Self>,
    ) {
        for (slot, entry) in recovered.records {
            if slot.0 == self.last() + 1 {
                self.log.push(entry);
            }
        }
        (self.durable, self.recovered) = (self.last(), self.last());
        self.acks[self.id.index()] = self.durable;
        let promised = recovered.promise.map_or(0, |promise| promise.0);
        self.boots = if self.bug == Bug::ForgetsPromise {
            1
        } else {
            promised + 1
        };
        if self.bug == Bug::ForgetsPromise && promised == 0 {
            self.boots = 5;
        }
        ctx.persist_promise(&Number(self.boots));
        ctx.set_timer(Again, Duration::from_millis(20));
    }

    fn on_request(&mut self, _: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        if let Message::Request(request) = message {
            self.take(request, ctx);
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        match message {
            Message::Forward(request) => self.take(request, ctx),
            Message::Append(slot, entry) if self.id != LEADER => {
                if slot.0 == self.last() + 1 {
                    self.append(entry, ctx);
                    self.execute(ctx);
                } else if slot.0 <= self.durable {
                    self.acknowledge(ctx);
                }
            }
            Message::Ack(slot) if self.id == LEADER => {
                let ack = &mut self.acks[from.index()];
                *ack = slot.0.max(*ack);
                self.maybe_commit(ctx);
            }
            Message::Commit(slot) if self.id != LEADER => {
                let upto = slot.0.min(self.last());
                self.commit(upto, ctx);
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, _: Again, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Again, Duration::from_millis(20));
        if self.id != LEADER {
            return;
        }
        for follower in 1..self.members {
            let to = ReplicaId(follower as u16);
            let from = self.acks[follower];
            for slot in from..self.durable.min(from + 64) {
                let entry = self.log[slot as usize].clone();
                ctx.send(to, Lane::Control, &Message::Append(Slot(slot + 1), entry));
            }
            ctx.send(to, Lane::Control, &Message::Commit(Slot(self.committed)));
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        let mut durable = self.durable;
        self.persisting.retain(|(id, slot)| {
            if *id <= upto {
                durable = durable.max(*slot);
            }
            *id > upto
        });
        self.becomes_durable(durable, ctx);
    }

    fn on_installed(&mut self, _: Slot, _: Number, _: &mut Context<'_, Self>) {}

    fn on_control(&mut self, _: Control, _: &mut Context<'_, Self>) {}

    fn on_idle(&mut self, _: &mut Context<'_, Self>) -> Wake {
        Wake::Sleep
    }

    fn status(&self) -> Status {
        Status {
            role: if self.id == LEADER {
                "leader"
            } else {
                "follower"
            },
            leader: Some(LEADER),
            view: self.boots,
            accepted: Slot(self.last()),
            committed: Slot(self.committed),
            stable: Slot(self.executed),
            voting: true,
            ..Status::default()
        }
    }

    fn viable(members: usize, nodes: &[NodeState]) -> bool {
        let up = |id: ReplicaId| {
            nodes
                .iter()
                .any(|node| node.id == id && node.up && !node.state_lost)
        };
        let count = (0..members).filter(|id| up(ReplicaId(*id as u16))).count();
        up(LEADER) && count > members / 2
    }

    fn digest(&self) -> u64 {
        self.last() ^ self.committed << 20 ^ self.executed << 40
    }

    fn fingerprint(&self, hasher: &mut dyn std::hash::Hasher) -> bool {
        hasher.write_u64(self.last());
        hasher.write_u64(self.durable);
        self.bug == Bug::PartialHash
    }
}
