//! The messages of Chora and its records on disk.
//!
//! ```text
//!   frontend ── Request ───────► replica ── Forward ───────► a proposer
//!   frontend ◄── Taken ───────── replica
//!   replica ─── Pulse ─────────► all others: proposal, acknowledgement, SKIP, NACK, RECOVER
//!   candidate ─ ViewRequest ───► all ──── Vote ────► candidate ──── ViewInit ────► all
//!   replica ─── Fetch ─────────► a peer ─ Entries, Trimmed ─► replica
//!   replica ─── ReadAsk ───────► a proposer ── ReadOk ──────► replica
//! ```

use alloc::{boxed::Box, vec::Vec};
use quintet_replica::{
    Bytes, CommandTime, DecodeError, Each, Field, Incarnation, Number, OrNone, Plain, Reader,
    ReplicaId, ReplicaSet, Slot, Wire, Writer,
    parts::{Receipt, Request},
    request_message, wire,
};
use smallvec::SmallVec;

/// The beginning of a view: its initiator, its first slot, its proposers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewInit {
    /// The view.
    pub view: u64,
    /// The elected replica; its log up to `base` is the view's base log.
    pub initiator: ReplicaId,
    /// The slot that this stands in. Slots behind it are assigned round-robin to `proposers`.
    pub base: Slot,
    /// The proposers, in the order of the slots.
    pub proposers: Vec<ReplicaId>,
    /// The members that take part in the rounds. The others learn, and their acknowledgements
    /// count.
    pub live: ReplicaSet,
}

impl ViewInit {
    /// Whose slot this is; none at or before the base.
    #[must_use]
    pub fn owner(&self, slot: Slot) -> Option<ReplicaId> {
        let offset = slot.0.checked_sub(self.base.0 + 1)?;
        let proposers = self.proposers.len() as u64;
        self.proposers.get((offset % proposers) as usize).copied()
    }

    /// The first slot of `proposer` above `after`; none when it does not propose.
    #[must_use]
    pub fn next_slot(&self, proposer: ReplicaId, after: Slot) -> Option<Slot> {
        let index = self.proposers.iter().position(|id| *id == proposer)? as u64;
        let proposers = self.proposers.len() as u64;
        let first = self.base.0 + 1 + index;
        let turns = (after.0 + 1).saturating_sub(first).div_ceil(proposers);
        Some(Slot(first + turns * proposers))
    }
}

/// The batches of one slot. Most slots hold one, which then takes no allocation of its own.
pub type Batches = SmallVec<[Bytes; 1]>;

/// The value of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Nothing: skipped, or proposed so that something else can be committed.
    Noop,
    /// Batches of requests in their order.
    Commands {
        /// The time given to them.
        time: CommandTime,
        /// As their frontends encoded them.
        batches: Batches,
    },
    /// A view begins. Rare, and kept apart so that it makes no other value larger.
    Init(Box<ViewInit>),
}

impl Value {
    /// How many executions it takes: one for each batch, one for nothing.
    #[must_use]
    pub fn executions(&self) -> u64 {
        match self {
            Self::Noop | Self::Init(_) => 1,
            Self::Commands { batches, .. } => batches.len() as u64,
        }
    }

    /// Its approximate size in memory and on the wire.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Noop => 1,
            Self::Init(init) => 64 + init.proposers.len() * 2,
            Self::Commands { batches, .. } => {
                16 + batches.iter().map(|batch| batch.len() + 4).sum::<usize>()
            }
        }
    }
}

/// A replica's state in every pulse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fitness {
    /// It can do all that its view assigns to it.
    #[default]
    Fit = 0,
    /// It was restarted in this view: it acknowledges and may not propose before the next one.
    Restarted = 1,
    /// It has lost what it acknowledged and waits for a later view than its last one.
    StateLost = 2,
    /// It has lost its state, and takes over the log of a view that will do.
    Recovering = 3,
    /// It is about to stop.
    Leaving = 4,
}

/// One transmission: what a replica has to tell all the others in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pulse {
    /// The sender's view.
    pub view: u64,
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The sender's round.
    pub round: u64,
    /// The sender's own time: only differences between two of them mean something.
    pub stamp: u64,
    /// The sender holds, durably, all slots of the view's log up to here; 0 before it has the
    /// view's beginning.
    pub ack: Slot,
    /// All slots up to here are committed.
    pub committed: Slot,
    /// The highest slot with something in it that anybody is known to have proposed.
    pub latest: Slot,
    /// The sender's state.
    pub fitness: Fitness,
    /// The sender's clients bring a part of the load.
    pub loaded: bool,
    /// The members that make the sender wait.
    pub slow: ReplicaSet,
    /// The sender proposes nothing in its own slots of this range, both ends included (SKIP).
    pub skip: Option<(Slot, Slot)>,
    /// A proposal for one of the sender's slots (PROPOSE, PROPOSE-NOOP).
    pub proposal: Option<(Slot, Value)>,
    /// The slots of this range, both ends included, may be missing here (PROPOSE-NACK).
    pub nack: Option<(Slot, Slot)>,
    /// Proposals of the sender in this view, again (PROPOSE-RECOVER).
    pub recover: Vec<(Slot, Value)>,
}

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend's batch.
    Request(Request),
    /// A replica's word on a request that it could not take.
    Taken(Receipt),
    /// See [`Pulse`].
    Pulse(Pulse),
    /// Vote for me in this view (VIEW-CHANGE-REQUEST).
    ViewRequest {
        /// The view.
        view: u64,
        /// The candidate's incarnation.
        incarnation: Incarnation,
        /// The last slot of its log.
        last_slot: Slot,
        /// The view attached to what stands there.
        last_view: u64,
    },
    /// The vote (VIEW-CHANGE-REPLY). It is on disk.
    Vote {
        /// The view.
        view: u64,
        /// The voter's incarnation.
        incarnation: Incarnation,
    },
    /// The view begins (VIEW-INIT, proposed for its base).
    Init {
        /// Its beginning.
        init: ViewInit,
        /// Which views the initiator's log holds before the base: from this slot on that view,
        /// ascending. A follower compares its own log with them.
        runs: Vec<(Slot, u64)>,
    },
    /// Send me the view's log from this slot on.
    Fetch {
        /// The asker's view.
        view: u64,
        /// The first slot that it needs.
        from: Slot,
    },
    /// A piece of the view's log, as the sender has it verified.
    Entries {
        /// The view.
        view: u64,
        /// The slot of the first entry.
        first: Slot,
        /// The view of what stands before it: the asker has the same there, or nothing of this is
        /// for it.
        before: u64,
        /// The view's VIEW-INIT, when it stands before the first entry.
        init: Option<ViewInit>,
        /// All slots up to here are committed.
        committed: Slot,
        /// The last slot of the sender's log.
        last: Slot,
        /// Each entry with the view that it was proposed in.
        entries: Vec<(u64, Value)>,
    },
    /// The slots asked for are no longer kept.
    Trimmed {
        /// The view.
        view: u64,
        /// The first slot that is.
        first: Slot,
        /// How many executions lie before it.
        executed: Slot,
    },
    /// How far must a state have come that is as new as all acknowledged so far?
    ReadAsk {
        /// The asker's view.
        view: u64,
        /// The asking replica's number for it, ascending.
        round: u64,
    },
    /// The answer, for this round of the asking replica and all before it.
    ReadOk {
        /// Which round.
        round: u64,
        /// How many executions must have been carried out.
        executed: Slot,
    },
    /// Batches on their way to a proposer.
    Forward {
        /// The batches, in the order in which they came.
        batches: Vec<Bytes>,
    },
}

request_message!(Message);

/// The parts of a pulse that it need not have.
const HAS_SKIP: u8 = 1;
const HAS_PROPOSAL: u8 = 2;
const HAS_NACK: u8 = 4;
const HAS_RECOVER: u8 = 8;
const IS_LOADED: u8 = 16;
const HAS_SLOW: u8 = 32;

fn get_range(reader: &mut Reader, field: &'static str) -> Result<(Slot, Slot), DecodeError> {
    let range = (reader.slot(field)?, reader.slot(field)?);
    if range.0 <= range.1 {
        Ok(range)
    } else {
        Err(DecodeError::Bad(field))
    }
}

wire! {
    struct ViewInit { view as Number, initiator, base, proposers, live } where has_proposers
}

/// Whether there are proposers, and none twice.
fn has_proposers(init: &ViewInit) -> bool {
    let mut seen = ReplicaSet::EMPTY;
    !init.proposers.is_empty() && init.proposers.iter().all(|id| seen.insert(*id))
}

wire! {
    enum Value {
        0 = Noop,
        1 = Commands { time, batches },
        2 = Init(init),
    } where is_filled
}

/// Whether commands are some.
fn is_filled(value: &Value) -> bool {
    !matches!(value, Value::Commands { batches, .. } if batches.is_empty())
}

impl Wire for Pulse {
    fn encode(&self, writer: &mut Writer<'_>) {
        let mut parts = 0;
        for (here, bit) in [
            (self.skip.is_some(), HAS_SKIP),
            (self.proposal.is_some(), HAS_PROPOSAL),
            (self.nack.is_some(), HAS_NACK),
            (!self.recover.is_empty(), HAS_RECOVER),
            (self.loaded, IS_LOADED),
            (!self.slow.is_empty(), HAS_SLOW),
        ] {
            parts |= if here { bit } else { 0 };
        }
        writer.u8(parts);
        writer.u8(self.fitness as u8);
        for word in [
            self.view,
            self.incarnation.0,
            self.round,
            self.stamp,
            self.ack.0,
            self.committed.0,
            self.latest.0,
        ] {
            writer.u64(word);
        }
        for range in self.skip.iter().chain(&self.nack) {
            range.put(writer);
        }
        if !self.slow.is_empty() {
            writer.u128(self.slow.0);
        }
        if let Some(proposal) = &self.proposal {
            proposal.put(writer);
        }
        if !self.recover.is_empty() {
            self.recover.put(writer);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let parts = reader.u8("parts")?;
        let has = |bit: u8| parts & bit != 0;
        let fitness = match reader.u8("fitness")? {
            0 => Fitness::Fit,
            1 => Fitness::Restarted,
            2 => Fitness::StateLost,
            3 => Fitness::Recovering,
            4 => Fitness::Leaving,
            _ => return Err(DecodeError::Bad("fitness")),
        };
        let mut pulse = Self {
            view: reader.number("view")?,
            incarnation: Incarnation(reader.u64("incarnation")?),
            round: reader.u64("round")?,
            stamp: reader.u64("stamp")?,
            ack: reader.slot("acknowledged slot")?,
            committed: reader.slot("committed slot")?,
            latest: reader.slot("latest slot")?,
            fitness,
            loaded: has(IS_LOADED),
            ..Self::default()
        };
        if has(HAS_SKIP) {
            pulse.skip = Some(get_range(reader, "skipped slots")?);
        }
        if has(HAS_NACK) {
            pulse.nack = Some(get_range(reader, "missing slots")?);
        }
        if has(HAS_SLOW) {
            pulse.slow = reader.replicas("who is slow")?;
        }
        if has(HAS_PROPOSAL) {
            pulse.proposal = Some(Field::get(reader, "proposal")?);
        }
        if has(HAS_RECOVER) {
            pulse.recover = Field::get(reader, "recovered")?;
        }
        Ok(pulse)
    }
}

wire! {
    enum Message {
        0 = Request(request),
        1 = Taken(receipt),
        2 = Forward { batches },
        3 = Pulse(pulse),
        4 = ViewRequest { view as Number, incarnation, last_slot, last_view as Number },
        5 = Vote { view as Number, incarnation },
        6 = Init { init, runs as Each<(Plain, Number)> },
        7 = Fetch { view as Number, from },
        8 = Entries {
            view as Number, first, before as Number, init, committed, last,
            entries as Each<(Number, Plain)>,
        },
        9 = Trimmed { view as Number, first, executed },
        10 = ReadAsk { view as Number, round },
        11 = ReadOk { round, executed },
    } where is_possible
}

/// Whether runs ascend.
fn is_possible(message: &Message) -> bool {
    !matches!(message, Message::Init { runs, .. } if !runs.is_sorted_by(|a, b| a < b))
}

/// The journal's record of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The view that it was proposed in.
    pub view: u64,
    /// The view of what stood in the slot before when this was written: a later record of that
    /// slot with another view shows that this one was cleared.
    pub before: u64,
    /// All slots up to here were known to be committed when this was written.
    pub committed: Slot,
    /// The appended value.
    pub value: Value,
}

wire! { struct Record { view as Number, before as Number, committed, value } }

/// State that must survive a crash in every durability: the view, and the candidate that got the
/// vote in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// The view; nothing of a lower one is acknowledged any more.
    pub view: u64,
    /// The vote given in it.
    pub voted_for: Option<ReplicaId>,
}

wire! { struct Promised { view as Number, voted_for as OrNone } }

/// The protocol's part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The last slot of the log that it covers.
    pub slot: Slot,
    /// The view of what stands there.
    pub view: u64,
    /// The time of the last command that it covers.
    pub time: CommandTime,
    /// The last view that began at or before that slot.
    pub init: ViewInit,
}

wire! { struct Summary { slot, view as Number, time, init } }
