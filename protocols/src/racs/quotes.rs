//! Blocks of level 2 that quote: what they took from others' blocks of level 1 is named, because
//! those went to everybody.
//!
//! ```text
//!   maker ── ProposeAsync{block, quotes} ──► the quoted blocks are here: whole again, voted for
//!                                       └──► not yet: kept until they are; asked for when it is
//!                                            time to repeat, and said whole by its maker
//! ```
//!
//! Replicas hold, fetch and vote for the complete block. The message is shorter, and so is the
//! journal's record where the journal holds the quoted blocks: what is quoted may be trimmed
//! earlier, so before each trim `write_quoting` writes such blocks complete.

use super::{Block, BlockId};
use alloc::{sync::Arc, vec::Vec};
use quintet_replica::wire;

/// Batches in a row of a block of level 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quote {
    /// The block.
    pub of: BlockId,
    /// The place of the first of them there, from 0 on.
    pub first: u32,
    /// How many, at least one.
    pub count: u32,
}

impl Quote {
    /// How many bytes it takes.
    pub const SIZE: usize = BlockId::SIZE + 4 + 4;

    /// The position behind it.
    const fn end(&self) -> Option<u32> {
        self.first.checked_add(self.count)
    }
}

wire! { struct Quote [Self::SIZE] { of, first, count } }

/// Whether these can be the quotes of this block. Each batch is quoted once, in order: no message
/// says more than stands in the blocks that it quotes.
pub(super) fn fit(block: &Block, quotes: &[Quote]) -> bool {
    let follows = |last: &Quote, quote: &Quote| {
        last.of < quote.of || (last.of == quote.of && last.end() < Some(quote.first))
    };
    quotes.is_sorted_by(follows)
        && quotes.iter().all(|quote| {
            let beside = quote.of.view == block.id.view && quote.of.level == 1;
            beside && block.id.level == 2 && quote.count > 0 && quote.end().is_some()
        })
}

/// Adds a batch to the quotes: as a part of the last one, if it follows it.
pub(super) fn quote(quotes: &mut Vec<Quote>, of: BlockId, place: u32) {
    match quotes.last_mut() {
        Some(last) if last.of == of && last.end() == Some(place) => last.count += 1,
        _ => quotes.push(Quote {
            of,
            first: place,
            count: 1,
        }),
    }
}

/// The block without its last batches, those that the quotes stand for.
pub(super) fn shortened(block: &Arc<Block>, quotes: &[Quote]) -> Arc<Block> {
    let quoted: usize = quotes.iter().map(|quote| quote.count as usize).sum();
    let said = block.batches.len().saturating_sub(quoted);
    let (id, parent, first) = (block.id, block.parent, block.first);
    Arc::new(Block {
        id,
        parent,
        first,
        time: block.time,
        marks: block.marks.clone(),
        batches: block.batches[..said].to_vec(),
        ranges: block.ranges.clone(),
        switch: block.switch,
    })
}

/// The block with what it quotes, if all of that is found.
pub(super) fn completed<'a>(
    block: &Arc<Block>,
    quotes: &[Quote],
    find: impl Fn(BlockId) -> Option<&'a Arc<Block>>,
) -> Option<Arc<Block>> {
    if quotes.is_empty() {
        return Some(block.clone());
    }
    let mut complete = Block::clone(block);
    for quote in quotes {
        let of = find(quote.of)?;
        let (first, end) = (quote.first as usize, quote.end()? as usize);
        complete
            .batches
            .extend_from_slice(of.batches.get(first..end)?);
    }
    Some(Arc::new(complete))
}
