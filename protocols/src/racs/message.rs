//! What RACS sends and what it writes to disk.
//!
//! ```text
//!   frontend ─ Request ──────► replica ── Forward ───► leader of the view
//!   leader ─── Propose ──────► all ────── Vote ──────► leader
//!   replica ── Timeout ──────► all
//!   replica ── ProposeAsync ─► all ────── VoteAsync ─► its maker ── Complete ──► all
//!   replica ── NewView ──────► next leader
//!   anybody ── Fetch ────────► anybody ── Blocks, Trimmed, Exit ──► asker
//!   forgetful  Recover ──────► all ────── RecoverOk ─► forgetful
//! ```

use super::{
    Block, BlockId, Course, Mark,
    block::{BLOCK_BYTES, NUMBER_MAX, decode_blocks, encode_blocks, way_code, way_of},
    quotes::{Quote, decode_quotes, encode_quotes, shortened},
};
use crate::sadl::{
    self, Heads, Name, Range, decode_heads, decode_ranges, encode_heads, encode_ranges,
};
use alloc::{sync::Arc, vec::Vec};
use quintet_replica::{
    BatchId, Bytes, CommandTime, DecodeError, Incarnation, Level, Reader, ReplicaSet, Slot, Wire,
    Writer,
    parts::{RequestMessage, Taken},
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
        /// The life of each member as the voter knows it.
        lives: Vec<Incarnation>,
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
        /// The sender is the leader and about to stop: nobody need wait.
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
        /// The life of each member as the voter knows it.
        lives: Vec<Incarnation>,
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
        /// What was asked for.
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
    /// I have forgotten what I acknowledged.
    Recover {
        /// The sender's new life.
        incarnation: Incarnation,
        /// Given back in the answer.
        nonce: u64,
        /// It knows what it needs and waits for a view above this one.
        above: Option<u64>,
    },
    /// What the sender holds, to one that has forgotten.
    RecoverOk {
        /// Of the question.
        nonce: u64,
        /// The sender has forgotten, too.
        forgot: bool,
        /// The sender's view.
        view: u64,
        /// Its highest block.
        high: BlockId,
        /// The blocks of level 2 that it voted for in this view.
        fall: Vec<BlockId>,
        /// The last block that it knows to be decided.
        decided: BlockId,
        /// Disseminated batches that it holds and has not executed.
        held: Vec<Range>,
    },
}

/// The most blocks that a question names as held; their distances double, so that this is more
/// than there can be.
pub(super) const HAVE_MAX: usize = 128;

fn encode_lives(lives: &[Incarnation], writer: &mut Writer<'_>) {
    writer.length(lives.len());
    for life in lives {
        writer.u64(life.0);
    }
}

fn decode_lives(reader: &mut Reader) -> Result<Vec<Incarnation>, DecodeError> {
    let count = reader.length(8, "lives")?;
    (0..reader.one_per_member(count, "lives")?)
        .map(|_| reader.u64("life").map(Incarnation))
        .collect()
}

fn encode_ids(ids: &[BlockId], writer: &mut Writer<'_>) {
    writer.length(ids.len());
    for id in ids {
        id.encode(writer);
    }
}

fn decode_ids(reader: &mut Reader) -> Result<Vec<BlockId>, DecodeError> {
    (0..reader.length(BlockId::SIZE, "block ids")?)
        .map(|_| BlockId::decode(reader))
        .collect()
}

fn encode_option<T: Wire>(value: Option<&T>, writer: &mut Writer<'_>) {
    writer.bool(value.is_some());
    if let Some(value) = value {
        value.encode(writer);
    }
}

fn decode_option<T: Wire>(reader: &mut Reader) -> Result<Option<T>, DecodeError> {
    Ok(if reader.bool("option")? {
        Some(T::decode(reader)?)
    } else {
        None
    })
}

fn view(reader: &mut Reader) -> Result<u64, DecodeError> {
    match reader.u64("view")? {
        view if view <= NUMBER_MAX => Ok(view),
        _ => Err(DecodeError::Bad("view")),
    }
}

impl Wire for Certificate {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        encode_ids(&self.completed, writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let view = view(reader)?;
        let completed = decode_ids(reader)?;
        let mut makers = ReplicaSet::EMPTY;
        let fits = |id: &BlockId| id.view == view && id.level == 2;
        if completed
            .iter()
            .all(|id| fits(id) && makers.insert(id.owner))
        {
            Ok(Self { view, completed })
        } else {
            Err(DecodeError::Bad("certificate"))
        }
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
            Self::Forward { mark, batches } => {
                writer.u8(2);
                encode_option(mark.as_ref(), writer);
                writer.length(batches.len());
                for batch in batches {
                    writer.blob(batch);
                }
            }
            Self::Propose {
                view,
                tip,
                decided,
                stamp,
                round_trip,
                answer,
                blocks,
            } => {
                writer.u8(3);
                writer.u64(*view);
                tip.encode(writer);
                decided.encode(writer);
                writer.u64(*stamp);
                writer.u32(*round_trip);
                writer.bool(*answer);
                encode_blocks(blocks, writer);
            }
            Self::Vote {
                view,
                tip,
                stamp,
                lives,
                median,
            } => {
                writer.u8(4);
                writer.u64(*view);
                tip.encode(writer);
                writer.u64(*stamp);
                encode_lives(lives, writer);
                writer.u32(*median);
            }
            Self::Timeout {
                view,
                high,
                decided,
                leaving,
                mark,
            } => {
                writer.u8(5);
                writer.u64(*view);
                high.encode(writer);
                decided.encode(writer);
                writer.bool(*leaving);
                encode_option(mark.as_ref(), writer);
            }
            Self::ProposeAsync { block, quotes } => {
                writer.u8(6);
                block.encode(writer);
                encode_quotes(quotes, writer);
            }
            Self::VoteAsync { block, lives } => {
                writer.u8(7);
                block.encode(writer);
                encode_lives(lives, writer);
            }
            Self::Complete { block } => {
                writer.u8(8);
                block.encode(writer);
            }
            Self::NewView {
                view,
                high,
                certificate,
            } => {
                writer.u8(9);
                writer.u64(*view);
                high.encode(writer);
                encode_option(certificate.as_ref(), writer);
            }
            Self::Exit {
                certificate,
                decided,
            } => {
                writer.u8(10);
                certificate.encode(writer);
                decided.encode(writer);
            }
            Self::Fetch { tip, have } => {
                writer.u8(11);
                tip.encode(writer);
                encode_ids(have, writer);
            }
            Self::Blocks {
                tip,
                blocks,
                decided,
            } => {
                writer.u8(12);
                tip.encode(writer);
                encode_blocks(blocks, writer);
                decided.encode(writer);
            }
            Self::Trimmed { slot } => {
                writer.u8(13);
                writer.u64(slot.0);
            }
            Self::Recover {
                incarnation,
                nonce,
                above,
            } => {
                writer.u8(14);
                writer.u64(incarnation.0);
                writer.u64(*nonce);
                writer.bool(above.is_some());
                writer.u64(above.unwrap_or(0));
            }
            Self::RecoverOk {
                nonce,
                forgot,
                view,
                high,
                fall,
                decided,
                held,
            } => {
                writer.u8(15);
                writer.u64(*nonce);
                writer.bool(*forgot);
                writer.u64(*view);
                high.encode(writer);
                encode_ids(fall, writer);
                decided.encode(writer);
                encode_ranges(held, writer);
            }
            Self::Sadl(message) => {
                writer.u8(16);
                message.encode(writer);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("message kind")? {
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
            2 => Self::Forward {
                mark: decode_option(reader)?,
                batches: (0..reader.length(4, "batches")?)
                    .map(|_| reader.blob("batch"))
                    .collect::<Result<_, _>>()?,
            },
            3 => Self::Propose {
                view: view(reader)?,
                tip: BlockId::decode(reader)?,
                decided: BlockId::decode(reader)?,
                stamp: reader.u64("stamp")?,
                round_trip: reader.u32("round trip")?,
                answer: reader.bool("answer")?,
                blocks: decode_blocks(reader)?,
            },
            4 => Self::Vote {
                view: view(reader)?,
                tip: BlockId::decode(reader)?,
                stamp: reader.u64("stamp")?,
                lives: decode_lives(reader)?,
                median: reader.u32("vote median")?,
            },
            5 => Self::Timeout {
                view: view(reader)?,
                high: BlockId::decode(reader)?,
                decided: BlockId::decode(reader)?,
                leaving: reader.bool("leaving")?,
                mark: decode_option(reader)?,
            },
            6 => {
                let block = Arc::new(Block::decode(reader)?);
                let quotes = decode_quotes(&block, reader)?;
                Self::ProposeAsync { block, quotes }
            }
            7 => Self::VoteAsync {
                block: BlockId::decode(reader)?,
                lives: decode_lives(reader)?,
            },
            8 => Self::Complete {
                block: BlockId::decode(reader)?,
            },
            9 => Self::NewView {
                view: view(reader)?,
                high: BlockId::decode(reader)?,
                certificate: decode_option(reader)?,
            },
            10 => Self::Exit {
                certificate: Certificate::decode(reader)?,
                decided: BlockId::decode(reader)?,
            },
            11 => Self::Fetch {
                tip: BlockId::decode(reader)?,
                have: match decode_ids(reader)? {
                    have if have.len() <= HAVE_MAX => have,
                    _ => return Err(DecodeError::Bad("blocks that are held")),
                },
            },
            12 => Self::Blocks {
                tip: BlockId::decode(reader)?,
                blocks: decode_blocks(reader)?,
                decided: BlockId::decode(reader)?,
            },
            13 => Self::Trimmed {
                slot: reader.slot("slot")?,
            },
            14 => {
                let incarnation = Incarnation(reader.u64("incarnation")?);
                let nonce = reader.u64("nonce")?;
                let knows = reader.bool("knows")?;
                let above = view(reader)?;
                let above = knows.then_some(above);
                Self::Recover {
                    incarnation,
                    nonce,
                    above,
                }
            }
            15 => Self::RecoverOk {
                nonce: reader.u64("nonce")?,
                forgot: reader.bool("forgot")?,
                view: view(reader)?,
                high: BlockId::decode(reader)?,
                fall: decode_ids(reader)?,
                decided: BlockId::decode(reader)?,
                held: decode_ranges(reader)?,
            },
            16 => Self::Sadl(sadl::Message::decode(reader)?),
            _ => return Err(DecodeError::Bad("message kind")),
        })
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

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        encode_option(self.stopped.as_ref(), writer);
        writer.bool(self.asynchronous);
        self.high.encode(writer);
        encode_option(self.certificate.as_ref(), writer);
        writer.u64(self.chain);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            view: view(reader)?,
            stopped: decode_option(reader)?,
            asynchronous: reader.bool("asynchronous")?,
            high: BlockId::decode(reader)?,
            certificate: decode_option(reader)?,
            chain: reader.number("chain")?,
        })
    }
}

/// What a record says of its block.
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
        /// What it says.
        why: Why,
        /// About which block.
        id: BlockId,
        /// The block, unless an earlier record has it.
        block: Option<Arc<Block>>,
        /// What its last batches, which are left out, are in other records.
        quotes: Vec<Quote>,
    },
    /// A disseminated batch.
    Batch {
        /// What it is called.
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
                encode_quotes(quotes, writer);
            }
            Self::Block { why, id, block, .. } => {
                writer.u8(*why as u8);
                id.encode(writer);
                encode_option(block.as_deref(), writer);
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
            (decode_option::<Block>(reader)?, Vec::new())
        } else {
            let block = Block::decode(reader)?;
            let quotes = decode_quotes(&block, reader)?;
            (Some(block), quotes)
        };
        let block = block.map(Arc::new);
        Ok(Self::Block {
            why,
            id,
            block,
            quotes,
        })
    }
}

/// What a snapshot must carry: the block that it ends with.
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

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.decided.encode(writer);
        writer.u64(self.time.0);
        encode_heads(&self.heads, writer);
        writer.u8(way_code(self.course.way));
        writer.u64(self.course.since.0);
        writer.u64(self.course.changes);
        writer.u32(self.course.soon);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            decided: BlockId::decode(reader)?,
            time: CommandTime(reader.u64("time")?),
            heads: decode_heads(reader)?,
            course: Course {
                way: way_of(reader.u8("way of batches")?)?,
                since: CommandTime(reader.u64("way since")?),
                changes: reader.u64("way changes")?,
                soon: reader.u32("way soon")?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use quintet_replica::ReplicaId;

    fn id(view: u64, level: u8, round: u64) -> BlockId {
        BlockId {
            view,
            level,
            round,
            owner: ReplicaId(2),
        }
    }

    fn range() -> Range {
        let first = Name {
            creator: ReplicaId(1),
            chain: 2,
            round: 3,
        };
        Range { first, last: 5 }
    }

    fn block() -> Arc<Block> {
        let mark = Mark {
            replica: ReplicaId(1),
            life: 9,
            sequence: 4,
        };
        Arc::new(Block {
            id: id(3, 1, 8),
            parent: id(3, 0, 7),
            first: Slot(12),
            time: CommandTime(5),
            marks: vec![mark],
            batches: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
            ranges: vec![range()],
            switch: Some(sadl::Way::Sadl),
        })
    }

    #[test]
    fn every_message_is_read_as_it_was_written_and_cut_one_is_refused() {
        let certificate = Certificate {
            view: 3,
            completed: vec![id(3, 2, 9)],
        };
        let mark = block().marks[0];
        let lives = vec![Incarnation(1), Incarnation(7)];
        let messages = [
            Message::Request {
                level: Level::Linearizable,
                batch: Bytes::from_static(b"b"),
            },
            Message::Taken {
                batch: BatchId(4),
                taken: Taken::Busy,
            },
            Message::Forward {
                mark: Some(mark),
                batches: vec![Bytes::from_static(b"x")],
            },
            Message::Propose {
                view: 3,
                tip: id(3, 0, 7),
                decided: id(2, 0, 5),
                stamp: 6,
                round_trip: 7,
                answer: true,
                blocks: vec![block()],
            },
            Message::Vote {
                view: 3,
                tip: id(3, 0, 7),
                stamp: 8,
                lives: lives.clone(),
                median: 9,
            },
            Message::Timeout {
                view: 3,
                high: id(3, 0, 7),
                decided: id(2, 0, 5),
                leaving: true,
                mark: None,
            },
            Message::ProposeAsync {
                block: quoting(),
                quotes: vec![quote(4, 0, 3), quote(4, 5, 1), quote(5, 0, 1)],
            },
            Message::VoteAsync {
                block: id(3, 2, 9),
                lives,
            },
            Message::Complete { block: id(3, 2, 9) },
            Message::NewView {
                view: 4,
                high: id(3, 2, 9),
                certificate: Some(certificate.clone()),
            },
            Message::Exit {
                certificate,
                decided: id(2, 0, 5),
            },
            Message::Fetch {
                tip: id(3, 0, 7),
                have: vec![id(3, 0, 4), id(2, 0, 3)],
            },
            Message::Blocks {
                tip: id(3, 0, 7),
                blocks: vec![block(), block()],
                decided: id(2, 0, 3),
            },
            Message::Trimmed { slot: Slot(3) },
            Message::Recover {
                incarnation: Incarnation(2),
                nonce: 5,
                above: Some(3),
            },
            Message::RecoverOk {
                nonce: 5,
                forgot: false,
                view: 3,
                high: id(3, 0, 7),
                fall: vec![id(3, 2, 9)],
                decided: id(2, 0, 5),
                held: vec![range()],
            },
            Message::Sadl(sadl::Message::Fetch { range: range() }),
        ];
        for message in messages {
            let bytes = message.encode_to_bytes();
            assert_eq!(Message::decode_all(bytes.clone()), Ok(message));
            for cut in 0..bytes.len() {
                assert!(Message::decode_all(bytes.slice(..cut)).is_err());
            }
        }
    }

    fn quoting() -> Arc<Block> {
        Arc::new(Block {
            id: id(3, 2, 9),
            parent: id(3, 1, 8),
            ..(*block()).clone()
        })
    }

    fn quote(round: u64, first: u32, count: u32) -> Quote {
        let of = id(3, 1, round);
        Quote { of, first, count }
    }

    #[test]
    fn quotes_name_each_batch_once_and_stand_in_blocks_of_level_2_only() {
        let refused = |block: Arc<Block>, quotes: Vec<Quote>| {
            let message = Message::ProposeAsync { block, quotes };
            Message::decode_all(message.encode_to_bytes()).is_err()
        };
        assert!(refused(block(), vec![quote(4, 0, 1)]), "in level 1");
        assert!(refused(quoting(), vec![quote(4, 0, 0)]), "nothing");
        assert!(refused(quoting(), vec![quote(4, u32::MAX, 1)]), "too far");
        let again = vec![quote(4, 0, 3), quote(4, 2, 1)];
        assert!(refused(quoting(), again), "one of them twice");
        let backwards = vec![quote(5, 0, 1), quote(4, 0, 1)];
        assert!(refused(quoting(), backwards));
        let mut other = quote(4, 0, 1);
        other.of.view = 2;
        assert!(refused(quoting(), vec![other]), "of another view");
    }

    #[test]
    fn record_of_a_quoting_block_leaves_out_what_it_quotes() {
        let quotes = vec![quote(4, 0, 1)];
        let record = |block: Arc<Block>| Record::Block {
            why: Why::Fall,
            id: block.id,
            block: Some(block),
            quotes: quotes.clone(),
        };
        let bytes = record(quoting()).encode_to_bytes();
        let short = record(shortened(&quoting(), &quotes));
        assert_eq!(Record::decode_all(bytes.clone()), Ok(short));
        for cut in 0..bytes.len() {
            assert!(Record::decode_all(bytes.slice(..cut)).is_err());
        }
    }

    #[test]
    fn blocks_whose_parent_cannot_be_theirs_are_refused() {
        let good = block();
        for bad in [
            Block {
                parent: id(3, 0, 6),
                ..(*good).clone()
            },
            Block {
                parent: id(4, 0, 7),
                ..(*good).clone()
            },
            Block {
                parent: id(3, 2, 7),
                ..(*good).clone()
            },
            Block {
                id: id(3, 2, 8),
                ..(*good).clone()
            },
            Block {
                first: Slot(0),
                ..(*good).clone()
            },
        ] {
            assert!(Block::decode_all(bad.encode_to_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn certificate_names_each_maker_once() {
        let twice = Certificate {
            view: 3,
            completed: vec![id(3, 2, 9), id(3, 2, 10)],
        };
        assert!(Certificate::decode_all(twice.encode_to_bytes()).is_err());
    }
}
