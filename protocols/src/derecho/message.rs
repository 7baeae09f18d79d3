//! What Derecho sends besides puts, and what it writes to disk.
//!
//! ```text
//!   frontend ── Request ──► member           frontend ◄── Taken ── member
//!   member ──── Bulk ─────► members          a message too large for a slot of the ring
//!   member ──── Block ────► member           a part of one that is large even for that
//!   outsider ── Join ─────► all              I am not in the view (or not complete in it)
//!   anyone ──── Views ────► the replica that knows an older view
//!   outsider ── Fetch ────► donor ── Tail, Behind ──► outsider
//!   inspector ─ Prepare, Accept ──► members of the last view ── Promise, Accepted ──► inspector
//! ```

use super::schedule::Schedule;
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, CommandTime, DecodeError, Frame, Incarnation, Level, Reader, ReplicaId,
    ReplicaSet, Slot, Wire, Writer,
    parts::{RequestMessage, Taken},
};

/// One member of a view: which replica, and in which of its starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Which replica.
    pub id: ReplicaId,
    /// The count of its starts: a restarted replica is no member until it is let in again.
    pub life: u64,
    /// Its incarnation, for the route.
    pub incarnation: Incarnation,
}

/// A view: who takes part, and from which slot on. What the end of the view before agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Ascends by one from view to view; the first is 1.
    pub number: u64,
    /// The members, ascending by id: the first is of rank 0.
    pub members: Vec<Member>,
    /// The ragged trim of the view before: all slots up to here are delivered, none above.
    pub base: Slot,
}

impl View {
    /// The rank of a replica, whatever its life.
    #[must_use]
    pub fn rank(&self, id: ReplicaId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// The place in the round-robin order, counted from one, of what a member sends as its
    /// message number `index`.
    pub(super) fn number_of(&self, sender: ReplicaId, index: u64) -> u64 {
        let rank = self.rank(sender).unwrap_or(0) as u64;
        index * self.members.len() as u64 + rank + 1
    }

    /// Who they are.
    #[must_use]
    pub fn set(&self) -> ReplicaSet {
        self.members.iter().map(|member| member.id).collect()
    }

    /// Who they are, in which of their incarnations.
    #[must_use]
    pub fn route(&self) -> Vec<(ReplicaId, Incarnation)> {
        let members = self.members.iter();
        members
            .map(|member| (member.id, member.incarnation))
            .collect()
    }

    /// Whether these of its members may decide for it: a strict majority (D4, D5).
    pub(super) fn has_quorum(&self, set: ReplicaSet) -> bool {
        ReplicaSet(self.set().0 & set.0).len() * 2 > self.members.len()
    }

    /// Whether nothing can be decided for it without one of these members.
    pub(super) fn can_block(&self, set: ReplicaSet) -> bool {
        ReplicaSet(self.set().0 & set.0).len() * 2 >= self.members.len()
    }

    /// The life in which a replica is a member.
    #[must_use]
    pub fn life(&self, id: ReplicaId) -> Option<u64> {
        Some(self.members[self.rank(id)?].life)
    }
}

/// Names a proposal for the end of a view. Those of members that have not left it carry their
/// rank in round 0; an inspector takes higher rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// 0 in the table, ascending among inspectors.
    pub round: u64,
    /// One above the proposer's rank in round 0, else one above its id; 0 for none.
    pub proposer: u64,
}

/// A proposed next view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Under which ballot.
    pub ballot: Ballot,
    /// What is proposed.
    pub view: View,
    /// The view that follows at once, in which nothing of `view` has happened: an inspector's way
    /// around a next view whose majority is not there (`restart.rs`).
    pub then: Option<View>,
}

/// What must never be forgotten: the log of views and ragged trims of B.4, by its tail.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promised {
    /// How often this replica has started.
    pub life: u64,
    /// The newest view that it knows to be agreed.
    pub view: View,
    /// It holds everything up to the view's base, and what it holds above is of this view.
    pub complete: bool,
    /// No proposal for the end of the view below this is accepted any more.
    pub promised: Ballot,
    /// The newest proposal that it has accepted for the end of the view.
    pub accepted: Option<Proposal>,
    /// Everything up to here is delivered.
    pub sure: Slot,
}

/// What one slot holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The view that it was sent in.
    pub view: u64,
    /// The sender's time.
    pub time: CommandTime,
    /// The batch.
    pub batch: Bytes,
}

/// What a snapshot carries for the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The highest time given to commands so far.
    pub time: CommandTime,
}

/// What an outsider tells of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Join {
    /// The count of its starts.
    pub life: u64,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The newest view that it knows.
    pub view: u64,
    /// It is a member of it and on its way to be complete; otherwise it has left or never was.
    pub coming: bool,
    /// See [`Promised::complete`].
    pub complete: bool,
    /// It has forgotten what it had acknowledged.
    pub forgot: bool,
    /// It holds everything up to here, delivered for sure.
    pub sure: Slot,
}

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// A message that does not fit a slot of the sender's ring; the slot announces it.
    Bulk {
        /// The view.
        view: u64,
        /// The message's number within the view and sender.
        index: u64,
        /// A [`Body`].
        body: Frame,
    },
    /// A part of a large message, from the replica that the schedule says; the slot announces the
    /// message.
    Block {
        /// The view.
        view: u64,
        /// Ascends by one on each link within the view; what arrived is acknowledged by it.
        number: u64,
        /// Which message, and how it is cut.
        large: Large,
        /// Which part.
        block: u32,
        /// Its bytes.
        bytes: Bytes,
    },
    /// The sender is not in the view, or not complete in it.
    Join(Join),
    /// Views that were agreed, ascending.
    Views {
        /// The newest ones.
        views: Vec<View>,
        /// The sender is active in the last one.
        active: bool,
    },
    /// Send me what follows.
    Fetch {
        /// The newest view that the sender knows.
        view: u64,
        /// The sender holds everything up to here.
        have: Slot,
        /// Also what is not sure yet, up to here.
        upto: Slot,
    },
    /// Consecutive entries.
    Tail {
        /// The newest view that the sender knows.
        view: u64,
        /// The slot of the first.
        first: Slot,
        /// Everything up to here is delivered for sure.
        sure: Slot,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// What was asked for is no longer kept: fetch a state that covers this.
    Behind {
        /// The last slot that is no longer kept.
        at_least: Slot,
    },
    /// Total restart, phase 1: accept nothing lower for the end of this view, and tell.
    Prepare {
        /// The view whose end is inspected.
        view: u64,
        /// The inspector's ballot.
        ballot: Ballot,
    },
    /// The answer.
    Promise {
        /// The view.
        view: u64,
        /// The ballot promised.
        ballot: Ballot,
        /// Who answers, in which life.
        member: Member,
        /// Its log is that of the view.
        complete: bool,
        /// The end of its log.
        end: Slot,
        /// What it had accepted.
        accepted: Option<Proposal>,
    },
    /// Phase 2: accept this end of the view, once you hold everything up to its base.
    Accept {
        /// The view that ends.
        view: u64,
        /// The proposal.
        proposal: Proposal,
        /// Who holds everything up to its base.
        source: ReplicaId,
    },
    /// The answer.
    Accepted {
        /// The view.
        view: u64,
        /// The ballot.
        ballot: Ballot,
    },
}

/// A message in blocks: whose it is, and all that its receivers need to know of it to take each
/// block to its place and pass it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Large {
    /// The message's number within the view and sender.
    pub index: u64,
    /// Whose message it is.
    pub sender: ReplicaId,
    /// Its length in bytes.
    pub length: u32,
    /// The length of its blocks; the last may be shorter.
    pub size: u32,
    /// How it spreads.
    pub schedule: Schedule,
}

/// The most blocks of one message.
pub(super) const BLOCKS_MAX: usize = 1024;

impl Large {
    /// How many blocks it has.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.length.div_ceil(self.size) as usize
    }

    /// Where a block lies in the message.
    #[must_use]
    pub fn place(&self, block: u32) -> core::ops::Range<usize> {
        let start = u64::from(block) * u64::from(self.size);
        let end = (start + u64::from(self.size)).min(u64::from(self.length));
        start as usize..end as usize
    }
}

/// What one multicast carries: the batches that had piled up at its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    /// The sender's time.
    pub time: CommandTime,
    /// The batches.
    pub batches: Vec<Bytes>,
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

impl Wire for Body {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.time.0);
        writer.length(self.batches.len());
        self.batches.iter().for_each(|batch| writer.blob(batch));
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let time = CommandTime(reader.u64("time")?);
        let count = reader.length(4, "batches")?;
        let batches = (0..count)
            .map(|_| reader.blob("batch"))
            .collect::<Result<_, _>>()?;
        Ok(Self { time, batches })
    }
}

impl Wire for Member {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u16(self.id.0);
        writer.u64(self.life);
        writer.u64(self.incarnation.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            id: reader.replica("replica")?,
            life: reader.number("life")?,
            incarnation: Incarnation(reader.u64("incarnation")?),
        })
    }
}

impl Wire for View {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.number);
        writer.u64(self.base.0);
        writer.length(self.members.len());
        self.members.iter().for_each(|member| member.encode(writer));
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (number, base) = (reader.number("view")?, reader.slot("slot")?);
        let count = reader.length(18, "members")?;
        let members: Vec<Member> = (0..count)
            .map(|_| Member::decode(reader))
            .collect::<Result<_, _>>()?;
        if members.is_empty() || !members.is_sorted_by(|a, b| a.id < b.id) {
            return Err(DecodeError::Bad("members"));
        }
        Ok(Self {
            number,
            members,
            base,
        })
    }
}

impl Wire for Ballot {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.round);
        writer.u64(self.proposer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let round = reader.number("view")?;
        Ok(Self {
            round,
            proposer: reader.u64("proposer")?,
        })
    }
}

impl Wire for Proposal {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.ballot.encode(writer);
        self.view.encode(writer);
        writer.bool(self.then.is_some());
        if let Some(then) = &self.then {
            then.encode(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let proposal = Self::decode_alone(reader)?;
        let then = match reader.bool("a view behind it")? {
            true => Some(View::decode(reader)?),
            false => None,
        };
        let follows = |then: &View| {
            then.number == proposal.view.number + 1 && then.base == proposal.view.base
        };
        if !then.as_ref().is_none_or(follows) {
            return Err(DecodeError::Bad("a view behind it"));
        }
        Ok(Self { then, ..proposal })
    }
}

impl Proposal {
    /// One without a view behind it, as promises of version 1 have them.
    fn decode_alone(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            ballot: Ballot::decode(reader)?,
            view: View::decode(reader)?,
            then: None,
        })
    }
}

fn put_option(writer: &mut Writer<'_>, proposal: Option<&Proposal>) {
    writer.bool(proposal.is_some());
    if let Some(proposal) = proposal {
        proposal.encode(writer);
    }
}

fn get_option(
    reader: &mut Reader,
    decode: fn(&mut Reader) -> Result<Proposal, DecodeError>,
) -> Result<Option<Proposal>, DecodeError> {
    Ok(if reader.bool("proposal")? {
        Some(decode(reader)?)
    } else {
        None
    })
}

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u8(2);
        writer.u64(self.life);
        self.view.encode(writer);
        writer.bool(self.complete);
        self.promised.encode(writer);
        put_option(writer, self.accepted.as_ref());
        writer.u64(self.sure.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let decode = match reader.u8("version of the promise")? {
            1 => Proposal::decode_alone,
            2 => Proposal::decode,
            _ => return Err(DecodeError::Bad("version of the promise")),
        };
        Ok(Self {
            life: reader.number("life")?,
            view: View::decode(reader)?,
            complete: reader.bool("complete")?,
            promised: Ballot::decode(reader)?,
            accepted: get_option(reader, decode)?,
            sure: reader.slot("slot")?,
        })
    }
}

impl Wire for Entry {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u64(self.time.0);
        writer.blob(&self.batch);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            view: reader.number("view")?,
            time: CommandTime(reader.u64("time")?),
            batch: reader.blob("batch")?,
        })
    }
}

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.time.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            time: CommandTime(reader.u64("time")?),
        })
    }
}

impl Wire for Join {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.life);
        writer.u64(self.incarnation.0);
        writer.u64(self.view);
        writer.bool(self.coming);
        writer.bool(self.complete);
        writer.bool(self.forgot);
        writer.u64(self.sure.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            life: reader.number("life")?,
            incarnation: Incarnation(reader.u64("incarnation")?),
            view: reader.number("view")?,
            coming: reader.bool("coming")?,
            complete: reader.bool("complete")?,
            forgot: reader.bool("forgot")?,
            sure: reader.slot("slot")?,
        })
    }
}

impl Wire for Large {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.index);
        writer.u16(self.sender.0);
        writer.u32(self.length);
        writer.u32(self.size);
        writer.u8(self.schedule as u8);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let large = Self {
            index: reader.number("view")?,
            sender: reader.replica("replica")?,
            length: reader.u32("length")?,
            size: reader.u32("block size")?,
            schedule: Schedule::of(reader.u8("schedule")?).ok_or(DecodeError::Bad("schedule"))?,
        };
        if large.length == 0 || large.size == 0 || large.blocks() > BLOCKS_MAX {
            return Err(DecodeError::Bad("block size"));
        }
        Ok(large)
    }
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Request { level, batch } => {
                writer.u8(0);
                writer.u8(*level as u8);
                writer.blob(batch);
            }
            Self::Taken { batch, taken } => {
                writer.u8(1);
                writer.u64(batch.0);
                writer.u8(match taken {
                    Taken::Accepted => 0,
                    Taken::Refused => 1,
                    Taken::Busy => 2,
                });
            }
            Self::Bulk { view, index, body } => {
                writer.u8(2);
                writer.u64(*view);
                writer.u64(*index);
                writer.rope(body);
            }
            Self::Block {
                view,
                number,
                large,
                block,
                bytes,
            } => {
                writer.u8(12);
                writer.u64(*view);
                writer.u64(*number);
                large.encode(writer);
                writer.u32(*block);
                writer.blob(bytes);
            }
            Self::Join(join) => {
                writer.u8(3);
                join.encode(writer);
            }
            Self::Views { views, active } => {
                writer.u8(4);
                writer.length(views.len());
                views.iter().for_each(|view| view.encode(writer));
                writer.bool(*active);
            }
            Self::Fetch { view, have, upto } => {
                writer.u8(5);
                writer.u64(*view);
                writer.u64(have.0);
                writer.u64(upto.0);
            }
            Self::Tail {
                view,
                first,
                sure,
                entries,
            } => {
                writer.u8(6);
                writer.u64(*view);
                writer.u64(first.0);
                writer.u64(sure.0);
                writer.length(entries.len());
                entries.iter().for_each(|entry| entry.encode(writer));
            }
            Self::Behind { at_least } => {
                writer.u8(7);
                writer.u64(at_least.0);
            }
            Self::Prepare { view, ballot } => {
                writer.u8(8);
                writer.u64(*view);
                ballot.encode(writer);
            }
            Self::Promise {
                view,
                ballot,
                member,
                complete,
                end,
                accepted,
            } => {
                writer.u8(9);
                writer.u64(*view);
                ballot.encode(writer);
                member.encode(writer);
                writer.bool(*complete);
                writer.u64(end.0);
                put_option(writer, accepted.as_ref());
            }
            Self::Accept {
                view,
                proposal,
                source,
            } => {
                writer.u8(10);
                writer.u64(*view);
                proposal.encode(writer);
                writer.u16(source.0);
            }
            Self::Accepted { view, ballot } => {
                writer.u8(11);
                writer.u64(*view);
                ballot.encode(writer);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("message tag")? {
            0 => Self::Request {
                level: Level::from_byte(reader.u8("level")?).ok_or(DecodeError::Bad("level"))?,
                batch: reader.blob("batch")?,
            },
            1 => Self::Taken {
                batch: BatchId(reader.u64("batch id")?),
                taken: match reader.u8("taken")? {
                    0 => Taken::Accepted,
                    1 => Taken::Refused,
                    2 => Taken::Busy,
                    _ => return Err(DecodeError::Bad("taken")),
                },
            },
            2 => Self::Bulk {
                view: reader.number("view")?,
                index: reader.number("view")?,
                body: Frame::from(reader.blob("body")?),
            },
            3 => Self::Join(Join::decode(reader)?),
            4 => {
                let count = reader.length(38, "views")?;
                let views = (0..count)
                    .map(|_| View::decode(reader))
                    .collect::<Result<_, _>>()?;
                Self::Views {
                    views,
                    active: reader.bool("active")?,
                }
            }
            5 => Self::Fetch {
                view: reader.number("view")?,
                have: reader.slot("slot")?,
                upto: reader.slot("slot")?,
            },
            6 => {
                let view = reader.number("view")?;
                let (first, sure) = (reader.slot("slot")?, reader.slot("slot")?);
                let count = reader.length(20, "entries")?;
                let entries = (0..count)
                    .map(|_| Entry::decode(reader))
                    .collect::<Result<_, _>>()?;
                Self::Tail {
                    view,
                    first,
                    sure,
                    entries,
                }
            }
            7 => Self::Behind {
                at_least: reader.slot("slot")?,
            },
            8 => Self::Prepare {
                view: reader.number("view")?,
                ballot: Ballot::decode(reader)?,
            },
            9 => Self::Promise {
                view: reader.number("view")?,
                ballot: Ballot::decode(reader)?,
                member: Member::decode(reader)?,
                complete: reader.bool("complete")?,
                end: reader.slot("slot")?,
                accepted: get_option(reader, Proposal::decode)?,
            },
            10 => Self::Accept {
                view: reader.number("view")?,
                proposal: Proposal::decode(reader)?,
                source: reader.replica("replica")?,
            },
            11 => Self::Accepted {
                view: reader.number("view")?,
                ballot: Ballot::decode(reader)?,
            },
            12 => {
                let (view, number) = (reader.number("view")?, reader.number("view")?);
                let large = Large::decode(reader)?;
                let (block, bytes) = (reader.u32("block")?, reader.blob("bytes")?);
                if block as usize >= large.blocks() || bytes.len() != large.place(block).len() {
                    return Err(DecodeError::Bad("block"));
                }
                Self::Block {
                    view,
                    number,
                    large,
                    block,
                    bytes,
                }
            }
            _ => return Err(DecodeError::Bad("message tag")),
        })
    }
}
