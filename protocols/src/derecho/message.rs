//! The messages of Derecho besides puts, and its records on disk.
//!
//! ```text
//!   frontend ── Request ──► member           frontend ◄── Taken ── member
//!   member ──── Bulk ─────► members          a message too large for a slot of the ring
//!   member ──── Block ────► member           a part of one that is large even for that
//!   outsider ── Join ─────► all              I am not in the view (or not complete in it)
//!   anyone ──── Views ────► the replica that knows an older view
//!   outsider ── Fetch ────► donor ── Tail, Behind ──► outsider
//!   with shards:
//!   member ──── Holds ────► members          how far its logs of shards go
//!   holder ──── Whole ────► member           a copy up to here is complete
//!   old process  Keep ────► members ─ Kept ─► old process
//!   inspector ─ Prepare, Accept ──► members of the last view ── Promise, Accepted ──► inspector
//! ```

use super::schedule::Schedule;
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Codec, CommandTime, DecodeError, Field, Frame, Incarnation, Number, Reader, ReplicaId,
    ReplicaSet, Slot, Wire, Writer,
    parts::{Receipt, Request},
    request_message, wire,
};

/// One member of a view: which replica, and in which of its starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Which replica.
    pub id: ReplicaId,
    /// The count of its starts: a restarted replica is no member until it is let in again.
    pub starts: u64,
    /// Its incarnation, for the route.
    pub incarnation: Incarnation,
}

/// A view: who takes part, and from which slot on. The end of the view before, as agreed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Ascends by one from view to view; the first is 1.
    pub number: u64,
    /// The members, ascending by id: the first is of rank 0.
    pub members: Vec<Member>,
    /// The ragged trim of the view before: all slots up to here are delivered, none above.
    pub base: Slot,
    /// The shards, in the order of the layout.
    pub shards: Vec<ShardView>,
}

/// A shard in a view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardView {
    /// Its members in the last view in which it was active: its logs are theirs.
    pub members: ReplicaSet,
    /// Those of them that send.
    pub senders: ReplicaSet,
    /// The replicas that should be members, and fetch its log.
    pub targets: ReplicaSet,
    /// The last view in which it is, or was, active; it is lost when that is an earlier one. 0 when
    /// it never was, and its log is empty.
    pub active_in: u64,
    /// The view in which it was active before that one.
    pub before: u64,
    /// The end of the log of `before`: all slots up to here are delivered, and of those above only
    /// what was ordered in `active_in` ever will be.
    pub base: Slot,
    /// How often it was begun again with nothing: logs of earlier generations count no more.
    pub generation: u64,
    /// The members of the whole view in which it was last active. Empty where an earlier version
    /// has written it: not known.
    pub among: ReplicaSet,
}

impl View {
    /// The rank of a replica, whatever its incarnation.
    #[must_use]
    pub fn rank(&self, id: ReplicaId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// Whether a shard is active in the view.
    #[must_use]
    pub fn is_active(&self, shard: usize) -> bool {
        self.shards[shard].active_in == self.number
    }

    /// The members.
    #[must_use]
    pub fn set(&self) -> ReplicaSet {
        self.members.iter().map(|member| member.id).collect()
    }

    /// The members, with their incarnations.
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

    /// The incarnation in which a replica is a member.
    #[must_use]
    pub fn starts(&self, id: ReplicaId) -> Option<u64> {
        Some(self.members[self.rank(id)?].starts)
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
    /// The proposed view.
    pub view: View,
    /// The view that follows at once, in which nothing of `view` has happened: an inspector's way
    /// around a next view whose majority is not there (`restart.rs`).
    pub then: Option<View>,
}

/// State that must never be lost: the log of views and ragged trims of B.4, by its tail.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promised {
    /// How often this replica has started.
    pub starts: u64,
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
    /// The same of each shard.
    pub shards: Vec<Held>,
}

/// How much a replica holds of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// Its log is one of the shard's last active view, with all that was or will be delivered in it.
    pub complete: bool,
    /// Everything up to here is delivered.
    pub sure: Slot,
}

/// A replica's word on its log of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    /// Which shard, by its place in the layout.
    pub shard: u32,
    /// See [`Held::complete`]; durably so.
    pub complete: bool,
    /// Because an operator begins it again with nothing, in the place of what all have lost.
    pub begun_again: bool,
    /// See [`ShardView::generation`]: of this one it is, or in the place of this one.
    pub generation: u64,
    /// It keeps entries from here on.
    pub first: Slot,
    /// Everything up to here is delivered.
    pub sure: Slot,
    /// Everything up to here is durable.
    pub end: Slot,
}

/// The contents of one slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The view that it was sent in.
    pub view: u64,
    /// The sender's time.
    pub time: CommandTime,
    /// The batch.
    pub batch: Bytes,
}

/// The protocol's part of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The highest time given to commands so far.
    pub time: CommandTime,
}

/// An outsider's report of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Join {
    /// The count of its starts.
    pub starts: u64,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The newest view that it knows.
    pub view: u64,
    /// It is a member of it and on its way to be complete; otherwise it has left or never was.
    pub coming: bool,
    /// See [`Promised::complete`].
    pub complete: bool,
    /// It has lost what it had acknowledged.
    pub state_lost: bool,
    /// It holds everything up to here, delivered for sure.
    pub sure: Slot,
}

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A frontend's batch.
    Request(Request),
    /// A replica's word on a request that it could not take.
    Taken(Receipt),
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
    /// The requested entries are no longer kept: fetch a state that covers this.
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
        /// The ballot promised. A higher one than what was asked for is a refusal.
        ballot: Ballot,
        /// The member that answers, with its incarnation.
        member: Member,
        /// Its log is that of the view.
        complete: bool,
        /// The end of its log.
        end: Slot,
        /// The proposal that it had accepted.
        accepted: Option<Proposal>,
    },
    /// Phase 2: accept this end of the view, once you hold everything up to its base.
    Accept {
        /// The view that ends.
        view: u64,
        /// The proposal.
        proposal: Proposal,
        /// The replica that holds everything up to its base.
        source: ReplicaId,
    },
    /// The answer.
    Accepted {
        /// The view.
        view: u64,
        /// The ballot.
        ballot: Ballot,
    },
    /// Logs of shards that the sender holds or fetches.
    Holds {
        /// The newest view that it knows.
        view: u64,
        /// Its logs.
        logs: Vec<Holding>,
    },
    /// The receiver has asked for more of a lost shard than there is: with everything up to here its
    /// log is complete.
    Whole {
        /// The view.
        view: u64,
        /// The end.
        end: Slot,
    },
    /// The sender holds an old log of some shard, and would start again with an empty memory.
    Keep {
        /// The view.
        view: u64,
        /// Ascends with what it asks for: earlier answers are used no more.
        number: u64,
        /// The shards of which it would end a copy; none where it may not end.
        shards: Vec<u32>,
    },
    /// The sender holds copies, too, and keeps them while the receiver asks the same.
    Kept {
        /// The view.
        view: u64,
        /// Of the question.
        number: u64,
        /// Those of the shards that it holds.
        shards: Vec<u32>,
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

/// The contents of one multicast: the batches that had piled up at its sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    /// The sender's time.
    pub time: CommandTime,
    /// The batches.
    pub batches: Vec<Bytes>,
}

request_message!(Message);

wire! { struct Body { time, batches } }
wire! { struct Member [18] { id, starts as Number, incarnation } }

/// In the number of members: shards follow, with their generations or, in earlier versions, without.
const SHARDED: u32 = 1 << 31;
const GENERATIONS: u32 = 1 << 30;

impl Wire for View {
    const SIZE_MIN: usize = 38;
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.number);
        writer.u64(self.base.0);
        if self.shards.is_empty() {
            return self.members.put(writer);
        }
        writer.u32(self.members.len() as u32 | SHARDED | GENERATIONS);
        self.members.iter().for_each(|member| member.put(writer));
        self.shards.put(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (number, base) = (reader.number("view")?, reader.slot("base")?);
        let count = reader.u32("members")?;
        let (sharded, numbered) = (count & SHARDED != 0, count & GENERATIONS != 0);
        let count = (count & !(SHARDED | GENERATIONS)) as usize;
        if count > ReplicaSet::MEMBERS_MAX {
            return Err(DecodeError::Bad("members"));
        }
        let members = (0..count).map(|_| Member::decode(reader));
        let members = members.collect::<Result<_, _>>()?;
        let shards: Vec<ShardView> = match sharded {
            true if numbered => Field::get(reader, "shards")?,
            true => {
                let shards: Vec<Unnumbered> = Field::get(reader, "shards")?;
                shards.into_iter().map(|Unnumbered(shard)| shard).collect()
            }
            false => Vec::new(),
        };
        let view = Self {
            number,
            members,
            base,
            shards,
        };
        let possible = is_ascending(&view) && has_possible_shards(&view);
        if !possible || sharded && view.shards.is_empty() || numbered && !sharded {
            return Err(DecodeError::Bad("View"));
        }
        Ok(view)
    }
}

fn has_possible_shards(view: &View) -> bool {
    let possible = |shard: &ShardView| {
        let in_order = shard.before < shard.active_in || shard.active_in == 0;
        in_order && shard.active_in <= view.number && shard.senders.0 & !shard.members.0 == 0
    };
    view.shards.iter().all(possible)
}

wire! {
    struct ShardView [96] {
        members, senders, targets, active_in as Number, before as Number, base,
        generation as Number, among
    }
}

/// A shard as views of earlier versions have it.
struct Unnumbered(ShardView);

impl Wire for Unnumbered {
    const SIZE_MIN: usize = 72;
    fn encode(&self, writer: &mut Writer<'_>) {
        let Self(shard) = self;
        let sets = [shard.members, shard.senders, shard.targets];
        sets.iter().for_each(|set| set.put(writer));
        let words = [shard.active_in, shard.before, shard.base.0];
        words.iter().for_each(|word| writer.u64(*word));
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self(ShardView {
            members: Field::get(reader, "members")?,
            senders: Field::get(reader, "senders")?,
            targets: Field::get(reader, "targets")?,
            active_in: reader.number("active_in")?,
            before: reader.number("before")?,
            base: reader.slot("base")?,
            generation: 0,
            among: ReplicaSet::EMPTY,
        }))
    }
}

wire! { struct Held [9] { complete, sure } }
wire! { struct Holding [38] { shard, complete, begun_again, generation as Number, first, sure, end } }

fn is_ascending(view: &View) -> bool {
    !view.members.is_empty() && view.members.is_sorted_by(|a, b| a.id < b.id)
}

wire! { struct Ballot { round as Number, proposer } }
wire! { struct Proposal { ballot, view, then } where has_views_in_a_row }

fn has_views_in_a_row(proposal: &Proposal) -> bool {
    let view = &proposal.view;
    let follows = |then: &View| then.number == view.number + 1 && then.base == view.base;
    proposal.then.as_ref().is_none_or(follows)
}

/// A proposal without a view behind it, as promises of version 1 have them.
struct Alone;

impl Codec<Option<Proposal>> for Alone {
    fn put(value: &Option<Proposal>, writer: &mut Writer<'_>) {
        value.put(writer);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Option<Proposal>, DecodeError> {
        Ok(match reader.bool(field)? {
            true => Some(Proposal {
                ballot: Ballot::decode(reader)?,
                view: View::decode(reader)?,
                then: None,
            }),
            false => None,
        })
    }
}

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u8(if self.shards.is_empty() { 2 } else { 3 });
        writer.u64(self.starts);
        self.view.encode(writer);
        writer.bool(self.complete);
        self.promised.encode(writer);
        self.accepted.put(writer);
        writer.u64(self.sure.0);
        if !self.shards.is_empty() {
            self.shards.put(writer);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let version = reader.u8("version of the promise")?;
        let accepted = match version {
            1 => <Alone as Codec<_>>::get,
            2 | 3 => Field::get,
            _ => return Err(DecodeError::Bad("version of the promise")),
        };
        Ok(Self {
            starts: reader.number("starts")?,
            view: View::decode(reader)?,
            complete: reader.bool("complete")?,
            promised: Ballot::decode(reader)?,
            accepted: accepted(reader, "proposal")?,
            sure: reader.slot("slot")?,
            shards: match version {
                3 => Field::get(reader, "shards")?,
                _ => Vec::new(),
            },
        })
    }
}

wire! { struct Entry [20] { view as Number, time, batch } }
wire! { struct Summary { time } }
wire! {
    struct Join { starts as Number, incarnation, view as Number, coming, complete, state_lost, sure }
}
wire! { struct Large { index as Number, sender, length, size, schedule } where has_blocks }

const fn has_blocks(large: &Large) -> bool {
    large.length > 0 && large.size > 0 && large.blocks() <= BLOCKS_MAX
}

wire! {
    enum Message {
        0 = Request(request),
        1 = Taken(receipt),
        2 = Bulk { view as Number, index as Number, body },
        3 = Join(join),
        4 = Views { views, active },
        5 = Fetch { view as Number, have, upto },
        6 = Tail { view as Number, first, sure, entries },
        7 = Behind { at_least },
        8 = Prepare { view as Number, ballot },
        9 = Promise { view as Number, ballot, member, complete, end, accepted },
        10 = Accept { view as Number, proposal, source },
        11 = Accepted { view as Number, ballot },
        12 = Block { view as Number, number as Number, large, block, bytes },
        13 = Holds { view as Number, logs },
        14 = Whole { view as Number, end },
        15 = Keep { view as Number, number as Number, shards },
        16 = Kept { view as Number, number as Number, shards },
    } where is_possible
}

fn is_possible(message: &Message) -> bool {
    match message {
        Message::Block {
            large,
            block,
            bytes,
            ..
        } => (*block as usize) < large.blocks() && bytes.len() == large.place(*block).len(),
        _ => true,
    }
}
