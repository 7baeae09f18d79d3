//! What Chora sends and what it writes to disk.
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
    BatchId, Bytes, CommandTime, DecodeError, Incarnation, Level, Reader, ReplicaId, ReplicaSet,
    Slot, Wire, Writer,
    parts::{RequestMessage, Taken},
};
use smallvec::SmallVec;

/// What a view begins with: who initiated it, where it begins, who proposes in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ViewInit {
    /// The view.
    pub view: u64,
    /// Who was elected; its log up to `base` is the view's base log.
    pub initiator: ReplicaId,
    /// The slot that this stands in. Slots behind it are assigned round-robin to `proposers`.
    pub base: Slot,
    /// Who proposes, in the order of the slots.
    pub proposers: Vec<ReplicaId>,
    /// Who takes part in the rounds. The others learn, and their acknowledgements count.
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

/// What stands in a slot.
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

    /// What it takes in memory and on the wire, about.
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

/// What a replica says of its own state in every pulse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fitness {
    /// It can do all that its view assigns to it.
    #[default]
    Fit = 0,
    /// It was restarted in this view: it acknowledges and may not propose before the next one.
    Restarted = 1,
    /// It has forgotten what it acknowledged and waits for a later view than its last one.
    Forgot = 2,
    /// It has forgotten, and takes over the log of a view that will do.
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
    /// Who makes the sender wait.
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
    Request {
        /// What its requests need.
        level: Level,
        /// The batch.
        batch: Bytes,
    },
    /// A replica's word on a request that it could not take.
    Taken {
        /// Which batch.
        batch: BatchId,
        /// Why.
        taken: Taken,
    },
    /// Batches on their way to a proposer.
    Forward {
        /// The batches, in the order in which they came.
        batches: Vec<Bytes>,
    },
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
        /// What it begins with.
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
}

macro_rules! tags {
    ($($name:ident = $value:literal),* $(,)?) => { $(const $name: u8 = $value;)* };
}
tags! {
    REQUEST = 0, TAKEN = 1, FORWARD = 2, PULSE = 3, VIEW_REQUEST = 4, VOTE = 5, INIT = 6,
    FETCH = 7, ENTRIES = 8, TRIMMED = 9, READ_ASK = 10, READ_OK = 11,
}
tags! { NOOP = 0, COMMANDS = 1, VIEW_INIT = 2 }
tags! { HAS_SKIP = 1, HAS_PROPOSAL = 2, HAS_NACK = 4, HAS_RECOVER = 8, IS_LOADED = 16, HAS_SLOW = 32 }

fn get_range(reader: &mut Reader, field: &'static str) -> Result<(Slot, Slot), DecodeError> {
    let range = (reader.slot(field)?, reader.slot(field)?);
    if range.0 <= range.1 {
        Ok(range)
    } else {
        Err(DecodeError::Bad(field))
    }
}

impl Wire for ViewInit {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u16(self.initiator.0);
        writer.u64(self.base.0);
        writer.length(self.proposers.len());
        self.proposers.iter().for_each(|id| writer.u16(id.0));
        writer.u128(self.live.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let view = reader.number("view")?;
        let initiator = reader.replica("initiator")?;
        let base = reader.slot("view base")?;
        let count = reader.length(2, "proposers")?;
        let mut proposers: Vec<ReplicaId> = Vec::with_capacity(count);
        for _ in 0..count {
            let id = reader.replica("proposer")?;
            if proposers.contains(&id) {
                return Err(DecodeError::Bad("proposer"));
            }
            proposers.push(id);
        }
        if proposers.is_empty() {
            return Err(DecodeError::Bad("proposers"));
        }
        let live = reader.replicas("live")?;
        Ok(Self {
            view,
            initiator,
            base,
            proposers,
            live,
        })
    }
}

impl Wire for Value {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Noop => writer.u8(NOOP),
            Self::Commands { time, batches } => {
                writer.u8(COMMANDS);
                writer.u64(time.0);
                writer.length(batches.len());
                batches.iter().for_each(|batch| writer.blob(batch));
            }
            Self::Init(init) => {
                writer.u8(VIEW_INIT);
                init.encode(writer);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("value tag")? {
            NOOP => Self::Noop,
            COMMANDS => {
                let time = CommandTime(reader.u64("command time")?);
                let batches: Batches = get_batches(reader)?;
                if batches.is_empty() {
                    return Err(DecodeError::Bad("batches"));
                }
                Self::Commands { time, batches }
            }
            VIEW_INIT => Self::Init(Box::new(ViewInit::decode(reader)?)),
            _ => return Err(DecodeError::Bad("value tag")),
        })
    }
}

fn get_batches<L: Default + Extend<Bytes>>(reader: &mut Reader) -> Result<L, DecodeError> {
    let count = reader.length(4, "batches")?;
    let mut batches = L::default();
    for _ in 0..count {
        batches.extend([reader.blob("batch")?]);
    }
    Ok(batches)
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
        for (from, until) in self.skip.iter().chain(&self.nack) {
            writer.u64(from.0);
            writer.u64(until.0);
        }
        if !self.slow.is_empty() {
            writer.u128(self.slow.0);
        }
        if let Some((slot, value)) = &self.proposal {
            writer.u64(slot.0);
            value.encode(writer);
        }
        if !self.recover.is_empty() {
            writer.length(self.recover.len());
            for (slot, value) in &self.recover {
                writer.u64(slot.0);
                value.encode(writer);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let parts = reader.u8("parts")?;
        let has = |bit: u8| parts & bit != 0;
        let fitness = match reader.u8("fitness")? {
            0 => Fitness::Fit,
            1 => Fitness::Restarted,
            2 => Fitness::Forgot,
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
            pulse.proposal = Some((reader.slot("slot")?, Value::decode(reader)?));
        }
        if has(HAS_RECOVER) {
            let count = reader.length(9, "recovered")?;
            for _ in 0..count {
                let slot = reader.slot("slot")?;
                pulse.recover.push((slot, Value::decode(reader)?));
            }
        }
        Ok(pulse)
    }
}

impl RequestMessage for Message {
    fn request(level: Level, batch: Bytes) -> Self {
        Self::Request { level, batch }
    }

    fn taken(&self) -> Option<(BatchId, Taken)> {
        match self {
            Self::Taken { batch, taken } => Some((*batch, *taken)),
            _ => None,
        }
    }
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Request { level, batch } => {
                writer.u8(REQUEST);
                writer.u8(*level as u8);
                writer.blob(batch);
            }
            Self::Taken { batch, taken } => {
                writer.u8(TAKEN);
                writer.u64(batch.0);
                writer.u8(match taken {
                    Taken::Accepted => 0,
                    Taken::Refused => 1,
                    Taken::Busy => 2,
                });
            }
            Self::Forward { batches } => {
                writer.u8(FORWARD);
                writer.length(batches.len());
                batches.iter().for_each(|batch| writer.blob(batch));
            }
            Self::Pulse(pulse) => {
                writer.u8(PULSE);
                pulse.encode(writer);
            }
            Self::ViewRequest {
                view,
                incarnation,
                last_slot,
                last_view,
            } => {
                writer.u8(VIEW_REQUEST);
                writer.u64(*view);
                writer.u64(incarnation.0);
                writer.u64(last_slot.0);
                writer.u64(*last_view);
            }
            Self::Vote { view, incarnation } => {
                writer.u8(VOTE);
                writer.u64(*view);
                writer.u64(incarnation.0);
            }
            Self::Init { init, runs } => {
                writer.u8(INIT);
                init.encode(writer);
                writer.length(runs.len());
                for (slot, view) in runs {
                    writer.u64(slot.0);
                    writer.u64(*view);
                }
            }
            Self::Fetch { view, from } => {
                writer.u8(FETCH);
                writer.u64(*view);
                writer.u64(from.0);
            }
            Self::Entries {
                view,
                first,
                before,
                init,
                committed,
                last,
                entries,
            } => {
                writer.u8(ENTRIES);
                writer.u64(*view);
                writer.u64(first.0);
                writer.u64(*before);
                writer.bool(init.is_some());
                if let Some(init) = init {
                    init.encode(writer);
                }
                writer.u64(committed.0);
                writer.u64(last.0);
                writer.length(entries.len());
                for (view, value) in entries {
                    writer.u64(*view);
                    value.encode(writer);
                }
            }
            Self::Trimmed {
                view,
                first,
                executed,
            } => {
                writer.u8(TRIMMED);
                writer.u64(*view);
                writer.u64(first.0);
                writer.u64(executed.0);
            }
            Self::ReadAsk { view, round } => {
                writer.u8(READ_ASK);
                writer.u64(*view);
                writer.u64(*round);
            }
            Self::ReadOk { round, executed } => {
                writer.u8(READ_OK);
                writer.u64(*round);
                writer.u64(executed.0);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("message tag")? {
            REQUEST => Self::Request {
                level: Level::from_byte(reader.u8("level")?).ok_or(DecodeError::Bad("level"))?,
                batch: reader.blob("batch")?,
            },
            TAKEN => Self::Taken {
                batch: BatchId(reader.u64("batch id")?),
                taken: match reader.u8("taken")? {
                    0 => Taken::Accepted,
                    1 => Taken::Refused,
                    2 => Taken::Busy,
                    _ => return Err(DecodeError::Bad("taken")),
                },
            },
            FORWARD => Self::Forward {
                batches: get_batches(reader)?,
            },
            PULSE => Self::Pulse(Pulse::decode(reader)?),
            VIEW_REQUEST => Self::ViewRequest {
                view: reader.number("view")?,
                incarnation: Incarnation(reader.u64("incarnation")?),
                last_slot: reader.slot("last slot")?,
                last_view: reader.number("view")?,
            },
            VOTE => Self::Vote {
                view: reader.number("view")?,
                incarnation: Incarnation(reader.u64("incarnation")?),
            },
            INIT => {
                let init = ViewInit::decode(reader)?;
                let count = reader.length(16, "runs")?;
                let mut runs: Vec<(Slot, u64)> = Vec::with_capacity(count);
                for _ in 0..count {
                    let run = (reader.slot("run")?, reader.number("view")?);
                    if runs.last().is_some_and(|last| *last >= run) {
                        return Err(DecodeError::Bad("run"));
                    }
                    runs.push(run);
                }
                Self::Init { init, runs }
            }
            FETCH => Self::Fetch {
                view: reader.number("view")?,
                from: reader.slot("from slot")?,
            },
            ENTRIES => {
                let view = reader.number("view")?;
                let first = reader.slot("first slot")?;
                let before = reader.number("view")?;
                let init = if reader.bool("VIEW-INIT")? {
                    Some(ViewInit::decode(reader)?)
                } else {
                    None
                };
                let committed = reader.slot("committed slot")?;
                let last = reader.slot("last slot")?;
                let count = reader.length(9, "entries")?;
                let mut entries = Vec::with_capacity(count);
                for _ in 0..count {
                    entries.push((reader.number("view")?, Value::decode(reader)?));
                }
                Self::Entries {
                    view,
                    first,
                    before,
                    init,
                    committed,
                    last,
                    entries,
                }
            }
            TRIMMED => Self::Trimmed {
                view: reader.number("view")?,
                first: reader.slot("first slot")?,
                executed: reader.slot("executed")?,
            },
            READ_ASK => Self::ReadAsk {
                view: reader.number("view")?,
                round: reader.u64("read round")?,
            },
            READ_OK => Self::ReadOk {
                round: reader.u64("read round")?,
                executed: reader.slot("executed")?,
            },
            _ => return Err(DecodeError::Bad("message tag")),
        })
    }
}

/// What the journal keeps per slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The view that it was proposed in.
    pub view: u64,
    /// The view of what stood in the slot before when this was written: a later record of that
    /// slot with another view shows that this one was cleared.
    pub before: u64,
    /// All slots up to here were known to be committed when this was written.
    pub committed: Slot,
    /// What was appended.
    pub value: Value,
}

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u64(self.before);
        writer.u64(self.committed.0);
        self.value.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            view: reader.number("view")?,
            before: reader.number("view")?,
            committed: reader.slot("committed slot")?,
            value: Value::decode(reader)?,
        })
    }
}

/// What must survive a crash in every durability: the view, and who was voted for in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// The view; nothing of a lower one is acknowledged any more.
    pub view: u64,
    /// The vote given in it.
    pub voted_for: Option<ReplicaId>,
}

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u16(self.voted_for.map_or(u16::MAX, |id| id.0));
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let view = reader.number("view")?;
        let voted_for = reader.replica_or(u16::MAX, "voted for")?;
        Ok(Self { view, voted_for })
    }
}

/// What a snapshot carries for the protocol.
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

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.slot.0);
        writer.u64(self.view);
        writer.u64(self.time.0);
        self.init.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            slot: reader.slot("summary slot")?,
            view: reader.number("view")?,
            time: CommandTime(reader.u64("summary time")?),
            init: ViewInit::decode(reader)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init() -> ViewInit {
        ViewInit {
            view: 3,
            initiator: ReplicaId(1),
            base: Slot(10),
            proposers: alloc::vec![ReplicaId(1), ReplicaId(2)],
            live: ReplicaSet(0b110),
        }
    }

    fn every_kind() -> Vec<Message> {
        let batch = Bytes::from_static(b"a batch");
        let commands = Value::Commands {
            time: CommandTime(9),
            batches: smallvec::smallvec![batch.clone(), Bytes::new()],
        };
        let pulse = Pulse {
            view: 3,
            incarnation: Incarnation(2),
            round: 7,
            stamp: 8,
            ack: Slot(11),
            committed: Slot(10),
            latest: Slot(12),
            fitness: Fitness::Recovering,
            loaded: true,
            slow: ReplicaSet(0b101),
            skip: Some((Slot(12), Slot(14))),
            proposal: Some((Slot(11), commands.clone())),
            nack: Some((Slot(12), Slot(12))),
            recover: alloc::vec![(Slot(11), commands.clone()), (Slot(13), Value::Noop)],
        };
        alloc::vec![
            Message::Request {
                level: Level::Linearizable,
                batch: batch.clone()
            },
            Message::Taken {
                batch: BatchId(3),
                taken: Taken::Busy
            },
            Message::Forward {
                batches: alloc::vec![batch.clone(), Bytes::new(), batch]
            },
            Message::Pulse(pulse),
            Message::Pulse(Pulse::default()),
            Message::ViewRequest {
                view: 4,
                incarnation: Incarnation(1),
                last_slot: Slot(11),
                last_view: 3
            },
            Message::Vote {
                view: 4,
                incarnation: Incarnation(1)
            },
            Message::Init {
                init: init(),
                runs: alloc::vec![(Slot(1), 0), (Slot(5), 2)]
            },
            Message::Fetch {
                view: 4,
                from: Slot(2)
            },
            Message::Entries {
                view: 4,
                first: Slot(2),
                before: 0,
                init: Some(init()),
                committed: Slot(1),
                last: Slot(4),
                entries: alloc::vec![
                    (0, Value::Noop),
                    (3, Value::Init(Box::new(init()))),
                    (3, commands)
                ],
            },
            Message::Trimmed {
                view: 4,
                first: Slot(9),
                executed: Slot(5)
            },
            Message::ReadAsk { view: 4, round: 8 },
            Message::ReadOk {
                round: 8,
                executed: Slot(5)
            },
        ]
    }

    #[test]
    fn every_message_reads_back_and_its_prefixes_are_refused() {
        for message in every_kind() {
            let bytes = message.encode_to_bytes();
            assert_eq!(Message::decode_all(bytes.clone()), Ok(message.clone()));
            for cut in 0..bytes.len() {
                assert!(
                    Message::decode_all(bytes.slice(..cut)).is_err(),
                    "{message:?} at {cut}"
                );
            }
        }
    }

    #[test]
    fn flipped_bytes_are_refused_or_read_but_never_panic() {
        for message in every_kind() {
            let bytes = message.encode_to_bytes();
            for at in 0..bytes.len() {
                for flip in [1, 0x80, 0xff] {
                    let mut bad = bytes.to_vec();
                    bad[at] ^= flip;
                    let _ = Message::decode_all(Bytes::from(bad));
                }
            }
        }
    }

    #[test]
    fn slots_are_dealt_out_behind_base_and_every_slot_has_one_owner() {
        let init = init();
        assert_eq!(init.owner(Slot(10)), None, "the base holds VIEW-INIT");
        assert_eq!(init.owner(Slot(11)), Some(ReplicaId(1)));
        assert_eq!(init.owner(Slot(12)), Some(ReplicaId(2)));
        assert_eq!(init.next_slot(ReplicaId(2), Slot(0)), Some(Slot(12)));
        assert_eq!(init.next_slot(ReplicaId(2), Slot(12)), Some(Slot(14)));
        assert_eq!(init.next_slot(ReplicaId(2), Slot(13)), Some(Slot(14)));
        assert_eq!(init.next_slot(ReplicaId(0), Slot(13)), None);
        for slot in 11..40 {
            let owner = init.owner(Slot(slot)).expect("assigned");
            assert_eq!(init.next_slot(owner, Slot(slot - 1)), Some(Slot(slot)));
        }
    }

    #[test]
    fn records_promises_and_summaries_read_back() {
        let record = Record {
            view: 3,
            before: 2,
            committed: Slot(4),
            value: Value::Init(Box::new(init())),
        };
        assert_eq!(Record::decode_all(record.encode_to_bytes()), Ok(record));
        for voted_for in [None, Some(ReplicaId(2))] {
            let promised = Promised { view: 5, voted_for };
            let bytes = promised.encode_to_bytes();
            assert_eq!(Promised::decode_all(bytes), Ok(promised));
        }
        let summary = Summary {
            slot: Slot(11),
            view: 3,
            time: CommandTime(1),
            init: init(),
        };
        assert_eq!(Summary::decode_all(summary.encode_to_bytes()), Ok(summary));
    }
}
