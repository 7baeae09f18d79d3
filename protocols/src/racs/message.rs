//! The messages of RACS and its records on disk.
//!
//! ```text
//!   frontend ─ Request ──────► replica ── Forward ───► leader of the view
//!   leader ─── Propose ──────► all ────── Vote ──────► leader
//!   replica ── Timeout ──────► all
//!   replica ── ProposeAsync ─► all ────── VoteAsync ─► its maker ── Complete ──► all
//!   replica ── NewView ──────► next leader
//!   anybody ── Fetch ────────► anybody ── Blocks, Trimmed, Exit ──► asker
//!   restarted  Recover ──────► all ────── RecoverOk ─► restarted
//! ```

use super::{
    Block, BlockId, Course, Mark,
    block::{BLOCK_BYTES, View},
    quotes::{Quote, fit, shortened},
};
use crate::sadl::{self, Heads, Name, Range};
use alloc::{sync::Arc, vec::Vec};
use quintet_replica::{
    Bytes, Codec, CommandTime, DecodeError, Field, Incarnation, Number, PerMember, Reader,
    ReplicaSet, Slot, Wire, Writer,
    parts::{Receipt, Request},
    request_message, wire,
};

/// More than any message takes besides blocks and batches.
pub(super) const MESSAGE_BYTES: usize = 256 + BLOCK_BYTES;

/// Proof that a view's asynchronous mode is over: who completed it with which block of level 2.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Certificate {
    /// The view that it ends.
    pub view: u64,
    /// The completed blocks of a quorum, one per maker.
    pub completed: Vec<BlockId>,
}

/// The answer of a replica to one that has lost its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// The sender has lost its state, too.
    pub state_lost: bool,
    /// The sender's view.
    pub view: u64,
    /// Its highest block.
    pub high: BlockId,
    /// The blocks of level 2 that it voted for in this view.
    pub fall: Vec<BlockId>,
    /// The last block that it knows to be decided.
    pub decided: BlockId,
    /// Disseminated batches that it holds and has not executed.
    pub held: Vec<Range>,
}

/// Messages between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend's batch.
    Request(Request),
    /// A replica's word on a request that it could not take.
    Taken(Receipt),
    /// Batches and reads on their way to the leader.
    Forward {
        /// The sender's newest reads that want a marker.
        mark: Option<Mark>,
        /// The batches, in the order in which they came.
        batches: Vec<Bytes>,
    },
    /// New blocks of the view's leader; none to be heard when idle.
    Propose {
        /// The view.
        view: u64,
        /// Its highest block of this view or before; the blocks of this message lead to it.
        tip: BlockId,
        /// The last block that it knows to be decided.
        decided: BlockId,
        /// The leader's own time, given back in the vote.
        stamp: u64,
        /// The leader's measured round trip to a quorum, in microseconds.
        round_trip: u32,
        /// Whether a vote is wanted although nothing is new.
        answer: bool,
        /// The blocks, oldest first.
        blocks: Vec<Arc<Block>>,
    },
    /// A vote for a block and all before it, durable where it should be.
    Vote {
        /// The view; none of its blocks was voted for when `tip` is of another.
        view: u64,
        /// The block.
        tip: BlockId,
        /// The stamp of the newest proposal seen.
        stamp: u64,
        /// The incarnation of each member as the voter knows it.
        incarnations: Vec<Incarnation>,
        /// How long the voter's own requests take, their median in microseconds; 0: it has none.
        median: u32,
    },
    /// The leader is not heard: no synchronous vote of the sender in this view any more.
    Timeout {
        /// The view.
        view: u64,
        /// The sender's highest block then.
        high: BlockId,
        /// The last block that it knows to be decided.
        decided: BlockId,
        /// The sender is the leader and about to stop: the receivers need not wait.
        leaving: bool,
        /// The sender's newest reads that want a marker.
        mark: Option<Mark>,
    },
    /// A block of level 1 or 2 of its maker.
    ProposeAsync {
        /// The block.
        block: Arc<Block>,
        /// Its last batches, where they are not among those above: they stand in these places.
        quotes: Vec<Quote>,
    },
    /// A vote for such a block, durable where it should be.
    VoteAsync {
        /// The block.
        block: BlockId,
        /// The incarnation of each member as the voter knows it.
        incarnations: Vec<Incarnation>,
    },
    /// The sender's block of level 2 has a quorum.
    Complete {
        /// The block.
        block: BlockId,
    },
    /// The sender is in this view's synchronous mode, to its leader.
    NewView {
        /// The view.
        view: u64,
        /// The sender's highest block.
        high: BlockId,
        /// How the view before ended; none in the first view.
        certificate: Option<Certificate>,
    },
    /// An answer to messages of a view that the sender has left.
    Exit {
        /// How it ended, or a later one.
        certificate: Certificate,
        /// The last block that the sender knows to be decided.
        decided: BlockId,
    },
    /// Which blocks lead to this one?
    Fetch {
        /// The block.
        tip: BlockId,
        /// Blocks that the asker holds with all before them, newest first; the last is the last
        /// that it knows to be decided.
        have: Vec<BlockId>,
    },
    /// An answer to `Fetch`: the oldest of them.
    Blocks {
        /// The requested block.
        tip: BlockId,
        /// The blocks, oldest first.
        blocks: Vec<Arc<Block>>,
        /// Up to here they, and what they stand upon, are decided.
        decided: BlockId,
    },
    /// Of dissemination.
    Sadl(sadl::Message),
    /// Those blocks, or batches, are no longer kept; a state that covers this slot is needed.
    Trimmed {
        /// The slot.
        slot: Slot,
    },
    /// I have lost what I acknowledged.
    Recover {
        /// The sender's new incarnation.
        incarnation: Incarnation,
        /// Given back in the answer.
        nonce: u64,
        /// It knows what it needs and waits for a view above this one.
        above: Option<u64>,
    },
    /// The blocks that the sender holds, to one that has lost its state.
    RecoverOk {
        /// Of the question.
        nonce: u64,
        /// The answer.
        answer: Answer,
    },
}

/// The most blocks that a question names as held; their distances double, so that this is more
/// than there can be.
pub(super) const HAVE_MAX: usize = 128;

wire! { struct Certificate { view as View, completed } where has_each_maker_once }

fn has_each_maker_once(certificate: &Certificate) -> bool {
    let mut makers = ReplicaSet::EMPTY;
    let fits = |id: &BlockId| id.view == certificate.view && id.level == 2;
    let mut completed = certificate.completed.iter();
    completed.all(|id| fits(id) && makers.insert(id.owner))
}

/// A view that takes its place also when there is none.
struct Padded;

impl Codec<Option<u64>> for Padded {
    fn put(value: &Option<u64>, writer: &mut Writer<'_>) {
        writer.bool(value.is_some());
        writer.u64(value.unwrap_or(0));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Option<u64>, DecodeError> {
        let is_some = reader.bool(field)?;
        let view = View::get(reader, field)?;
        Ok(is_some.then_some(view))
    }
}

request_message!(Message);

wire! { struct Answer { state_lost, view as View, high, fall, decided, held } }
wire! {
    enum Message {
        0 = Request(request),
        1 = Taken(receipt),
        2 = Forward { mark, batches },
        3 = Propose { view as View, tip, decided, stamp, round_trip, answer, blocks },
        4 = Vote { view as View, tip, stamp, incarnations as PerMember, median },
        5 = Timeout { view as View, high, decided, leaving, mark },
        6 = ProposeAsync { block, quotes },
        7 = VoteAsync { block, incarnations as PerMember },
        8 = Complete { block },
        9 = NewView { view as View, high, certificate },
        10 = Exit { certificate, decided },
        11 = Fetch { tip, have },
        12 = Blocks { tip, blocks, decided },
        13 = Trimmed { slot },
        14 = Recover { incarnation, nonce, above as Padded },
        15 = RecoverOk { nonce, answer },
        16 = Sadl(message),
    } where is_possible
}

fn is_possible(message: &Message) -> bool {
    match message {
        Message::ProposeAsync { block, quotes } => fit(block, quotes),
        Message::Fetch { have, .. } => have.len() <= HAVE_MAX,
        _ => true,
    }
}

/// Where a replica stands between views; on disk before it says anything in that view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// The view.
    pub view: u64,
    /// The block that its timeout of this view carries, when it sent one.
    pub stopped: Option<BlockId>,
    /// It is in the view's asynchronous mode.
    pub asynchronous: bool,
    /// Its highest block when this was written.
    pub high: BlockId,
    /// The newest certificate that it can hand out.
    pub certificate: Option<Certificate>,
    /// The number of the chain of batches that it began last.
    pub chain: u64,
}

wire! {
    struct Promised { view as View, stopped, asynchronous, high, certificate, chain as Number }
}

/// The kind of a record about its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Why {
    /// It leads to another one.
    Held = 0,
    /// It was voted for, or proposed, in the synchronous mode.
    High = 1,
    /// A block of level 2 that was voted for.
    Fall = 2,
    /// Proposed by this replica in the asynchronous mode.
    Own = 3,
}

/// One record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Of the order.
    Block {
        /// The reason of the record.
        why: Why,
        /// About which block.
        id: BlockId,
        /// The block, unless an earlier record has it.
        block: Option<Arc<Block>>,
        /// The quotes of its last batches, which are left out, from other records.
        quotes: Vec<Quote>,
    },
    /// A disseminated batch.
    Batch {
        /// Its name.
        name: Name,
        /// The batch.
        batch: Bytes,
    },
}

/// The kind of a record with a batch.
const BATCH: u8 = 4;
/// Added to the kind of a record with a block that quotes.
const QUOTING: u8 = 8;

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Block {
                why,
                id,
                block: Some(block),
                quotes,
            } if !quotes.is_empty() => {
                writer.u8(*why as u8 + QUOTING);
                id.encode(writer);
                shortened(block, quotes).encode(writer);
                quotes.put(writer);
            }
            Self::Block { why, id, block, .. } => {
                writer.u8(*why as u8);
                id.encode(writer);
                block.put(writer);
            }
            Self::Batch { name, batch } => {
                writer.u8(BATCH);
                name.encode(writer);
                writer.blob(batch);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let kind = reader.u8("record kind")?;
        let why = match kind & !QUOTING {
            0 => Why::Held,
            1 => Why::High,
            2 => Why::Fall,
            3 => Why::Own,
            BATCH if kind == BATCH => {
                return Ok(Self::Batch {
                    name: Name::decode(reader)?,
                    batch: reader.blob("batch")?,
                });
            }
            _ => return Err(DecodeError::Bad("record kind")),
        };
        let id = BlockId::decode(reader)?;
        let (block, quotes) = if kind & QUOTING == 0 {
            (Field::get(reader, "block")?, Vec::new())
        } else {
            let block = Arc::decode(reader)?;
            let quotes: Vec<Quote> = Field::get(reader, "quotes")?;
            if !fit(&block, &quotes) {
                return Err(DecodeError::Bad("quotes"));
            }
            (Some(block), quotes)
        };
        Ok(Self::Block {
            why,
            id,
            block,
            quotes,
        })
    }
}

/// The protocol's part of a snapshot: the block that it ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The last decided block.
    pub decided: BlockId,
    /// Its time.
    pub time: CommandTime,
    /// How much of each member's batches it covers.
    pub heads: Heads,
    /// Which way batches go behind it.
    pub course: Course,
}

wire! { struct Summary { decided, time, heads as PerMember, course } }
