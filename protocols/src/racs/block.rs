//! Blocks: what RACS agrees on.
//!
//! ```text
//!   genesis ◄── (1, sync, 1) ◄── (1, sync, 2) ◄── (1, level 1, 3) ◄── (1, level 2, 4) ◄── (2, sync, 5)
//!                       round = place in the chain; a block names its parent
//! ```

use crate::sadl::{Range, Way, decode_ranges, encode_ranges};
use alloc::{sync::Arc, vec::Vec};
use quintet_replica::{Bytes, CommandTime, DecodeError, Reader, ReplicaId, Slot, Wire, Writer};

/// Names a block, and ranks it: fields in this order make the order of ranks. A block that the
/// coin elected (level 2) ranks above every synchronous block (level 0) of its view, whatever
/// their rounds (R15); blocks of level 1, and those that were not elected, are never ranked
/// against others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    /// The view that it was made in.
    pub view: u64,
    /// 0 in the synchronous mode, 1 or 2 in the asynchronous one.
    pub level: u8,
    /// Its place in the chain: one above its parent's.
    pub round: u64,
    /// Who made it.
    pub owner: ReplicaId,
}

impl BlockId {
    /// Below all blocks; decided from the start.
    pub const GENESIS: Self = Self {
        view: 0,
        level: 0,
        round: 0,
        owner: ReplicaId(0),
    };
    /// How many bytes it takes.
    pub const SIZE: usize = 8 + 1 + 8 + 2;
}

impl core::fmt::Display for BlockId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            view,
            level,
            round,
            owner,
        } = self;
        write!(f, "{round}@{view}.{level}/{}", owner.0)
    }
}

impl Wire for BlockId {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u8(self.level);
        writer.u64(self.round);
        writer.u16(self.owner.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let id = Self {
            view: reader.u64("block view")?,
            level: reader.u8("block level")?,
            round: reader.u64("block round")?,
            owner: reader.replica("block owner")?,
        };
        if id.level > 2 || id.view > NUMBER_MAX || id.round > NUMBER_MAX {
            return Err(DecodeError::Bad("block id"));
        }
        Ok(id)
    }
}

/// No view, round or slot comes near this; what claims to is refused, so that nothing overflows.
pub(super) const NUMBER_MAX: u64 = 1 << 60;

/// A replica's reads up to `sequence` came before the block was made: once it is decided, they
/// may read the state behind it (R17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Whose reads.
    pub replica: ReplicaId,
    /// Which run of that replica, drawn at its start.
    pub life: u64,
    /// Up to which of its rounds of reads.
    pub sequence: u64,
}

impl Wire for Mark {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u16(self.replica.0);
        writer.u64(self.life);
        writer.u64(self.sequence);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            replica: reader.replica("mark replica")?,
            life: reader.u64("mark life")?,
            sequence: reader.u64("mark sequence")?,
        })
    }
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its name and rank.
    pub id: BlockId,
    /// The block that it extends.
    pub parent: BlockId,
    /// The slot of its first batch; a block without batches takes one slot, too.
    pub first: Slot,
    /// The time given to its commands; never before its parent's.
    pub time: CommandTime,
    /// Reads that it lets continue.
    pub marks: Vec<Mark>,
    /// Batches as their frontends encoded them.
    pub batches: Vec<Bytes>,
    /// Batches that were disseminated before, by name: after those above, each in a slot.
    pub ranges: Vec<Range>,
    /// From here on the batches of all replicas' clients go this way (§5.5).
    pub switch: Option<Way>,
}

impl Block {
    /// The last slot that it takes.
    #[must_use]
    pub fn end(&self) -> Slot {
        let named: u64 = self.ranges.iter().map(Range::count).sum();
        let slots = named + self.batches.len() as u64;
        let more = slots.saturating_sub(1);
        Slot(self.first.0 + more)
    }

    /// What it takes in memory and on the wire, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let batches: usize = self.batches.iter().map(|batch| batch.len() + 4).sum();
        BLOCK_BYTES + self.marks.len() * 18 + self.ranges.len() * Range::SIZE + batches
    }
}

/// More than a block takes besides its batches and marks.
pub(super) const BLOCK_BYTES: usize = 2 * BlockId::SIZE + 37;

impl Wire for Block {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.id.encode(writer);
        self.parent.encode(writer);
        writer.u64(self.first.0);
        writer.u64(self.time.0);
        writer.length(self.marks.len());
        for mark in &self.marks {
            mark.encode(writer);
        }
        writer.length(self.batches.len());
        for batch in &self.batches {
            writer.blob(batch);
        }
        encode_ranges(&self.ranges, writer);
        writer.u8(match self.switch {
            None => 0,
            Some(way) => way_code(way),
        });
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let id = BlockId::decode(reader)?;
        let parent = BlockId::decode(reader)?;
        let first = Slot(reader.u64("block slot")?);
        let time = CommandTime(reader.u64("block time")?);
        let marks = (0..reader.length(18, "block marks")?)
            .map(|_| Mark::decode(reader))
            .collect::<Result<_, _>>()?;
        let batches = (0..reader.length(4, "block batches")?)
            .map(|_| reader.blob("block batch"))
            .collect::<Result<_, _>>()?;
        let ranges = decode_ranges(reader)?;
        let switch = match reader.u8("block switch")? {
            0 => None,
            code => Some(way_of(code)?),
        };
        // A parent is of an earlier view, or stands one step before in the same one.
        let fits = parent.round + 1 == id.round
            && match id.level {
                0 => parent.view < id.view || (parent.view == id.view && parent.level == 0),
                1 => parent.view < id.view || (parent.view == id.view && parent.level == 0),
                _ => parent.view == id.view && parent.level == 1,
            };
        if !fits || first.0 == 0 || first.0 > NUMBER_MAX {
            return Err(DecodeError::Bad("block parent"));
        }
        Ok(Self {
            id,
            parent,
            first,
            time,
            marks,
            batches,
            ranges,
            switch,
        })
    }
}

/// A way as it is written.
pub(super) const fn way_code(way: Way) -> u8 {
    match way {
        Way::Direct => 1,
        Way::Sadl => 2,
    }
}

/// Reads what [`way_code`] gave.
pub(super) const fn way_of(code: u8) -> Result<Way, DecodeError> {
    match code {
        1 => Ok(Way::Direct),
        2 => Ok(Way::Sadl),
        _ => Err(DecodeError::Bad("way of batches")),
    }
}

/// Reads a list of blocks; the elements are shared from then on.
pub(super) fn decode_blocks(reader: &mut Reader) -> Result<Vec<Arc<Block>>, DecodeError> {
    (0..reader.length(BLOCK_BYTES - 13, "blocks")?)
        .map(|_| Block::decode(reader).map(Arc::new))
        .collect()
}

/// Writes what [`decode_blocks`] reads.
pub(super) fn encode_blocks(blocks: &[Arc<Block>], writer: &mut Writer<'_>) {
    writer.length(blocks.len());
    for block in blocks {
        block.encode(writer);
    }
}
