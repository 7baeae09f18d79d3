//! Blocks: what RACS agrees on.
//!
//! ```text
//!   genesis ◄── (1, sync, 1) ◄── (1, sync, 2) ◄── (1, level 1, 3) ◄── (1, level 2, 4) ◄── (2, sync, 5)
//!                       round = place in the chain; a block names its parent
//! ```

use crate::sadl::{Range, Way};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Codec, CommandTime, DecodeError, Reader, ReplicaId, Slot, UpTo, Wire, Writer, wire,
};

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
    /// Its creator.
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

wire! {
    struct BlockId [Self::SIZE] { view as View, level, round as View, owner } where has_level
}

const fn has_level(id: &BlockId) -> bool {
    id.level <= 2
}

/// A view or round on the wire.
pub(super) type View = UpTo<NUMBER_MAX>;

/// No view, round or slot comes near this; what claims to is refused, so that nothing overflows.
pub(super) const NUMBER_MAX: u64 = 1 << 60;

/// A replica's reads up to `sequence` came before the block was made: once it is decided, they
/// may read the state behind it (R17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Whose reads.
    pub replica: ReplicaId,
    /// Which run of that replica, drawn at its start.
    pub run: u64,
    /// Up to which of its rounds of reads.
    pub sequence: u64,
}

wire! { struct Mark [18] { replica, run, sequence } }

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

    /// Its approximate size in memory and on the wire.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let batches: usize = self.batches.iter().map(|batch| batch.len() + 4).sum();
        BLOCK_BYTES + self.marks.len() * 18 + self.ranges.len() * Range::SIZE + batches
    }
}

/// More than a block takes besides its batches and marks.
pub(super) const BLOCK_BYTES: usize = 2 * BlockId::SIZE + 37;

wire! {
    struct Block [BLOCK_BYTES - 13] {
        id, parent, first, time, marks, batches, ranges, switch as OrZero,
    } where stands_on_its_parent
}

/// Whether its parent is of an earlier view, or stands one step before in the same one.
fn stands_on_its_parent(block: &Block) -> bool {
    let (id, parent) = (block.id, block.parent);
    let earlier = parent.view < id.view;
    let fits = match id.level {
        0 | 1 => earlier || (parent.view == id.view && parent.level == 0),
        _ => parent.view == id.view && parent.level == 1,
    };
    fits && parent.round + 1 == id.round && (1..=NUMBER_MAX).contains(&block.first.0)
}

/// A way, or 0 for none.
struct OrZero;

impl Codec<Option<Way>> for OrZero {
    fn put(value: &Option<Way>, writer: &mut Writer<'_>) {
        match value {
            None => writer.u8(0),
            Some(way) => way.encode(writer),
        }
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Option<Way>, DecodeError> {
        let mut ahead = reader.clone();
        if ahead.u8(field)? == 0 {
            *reader = ahead;
            return Ok(None);
        }
        Way::decode(reader).map(Some)
    }
}
