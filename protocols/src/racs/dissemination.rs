//! SADL under RACS: batches go out by themselves, blocks name them.
//!
//! ```text
//!   own requests ──► Sadl ──► journals of a quorum ──► completed
//!   a block is made: ranges_above(parent) ── decided, and all of it here: executed
//!                                                     └─ something missing: Fetch, Found
//! ```
//!
//! A block with ranges is voted for without them: n-f hold what they name. It is executed when
//! they are here; until then what is decided stands above the root.

use super::{
    BlockId, Config, Message, Racs, Record,
    plant::Plant,
    replica::{Mode, Timer},
};
use crate::sadl::{self, Dissemination, Heads, Host, Limits, Name, News, Range, Way};
use alloc::vec::Vec;
use quintet_replica::{Bytes, Context, ReplicaId};

/// The most batches that a block names.
const NAMED_MAX: u64 = 4096;
/// That many decided blocks are looked through for batches to ask for together.
const SCANNED_MAX: u64 = 1024;

impl Host for Racs {
    const SHOW: Timer = Timer::Show;
    const FETCH: Timer = Timer::FetchBatches;

    fn message(message: sadl::Message) -> Message {
        Message::Sadl(message)
    }

    fn record(name: Name, batch: Bytes) -> Record {
        Record::Batch { name, batch }
    }
}

impl Racs {
    pub(super) fn limits(config: &Config) -> Limits {
        Limits {
            window: config.sadl_window,
            spread: config.sadl_spread,
            window_bytes: config.window_bytes,
            page_bytes: config.batch_bytes_max,
            history_bytes: config.log_memory_bytes,
            hasty: config.planted.is(Plant::BatchVoteNotDurable),
        }
    }

    /// Whether this replica's requests go out before they are ordered.
    pub(super) fn disseminates(&self) -> bool {
        self.way() == Way::Sadl
    }

    /// How far the blocks up to this one have come with each member's batches.
    fn heads_at(&self, id: BlockId) -> Heads {
        let mut heads = self.sadl.heads().to_vec();
        for block in self.tree.path(id) {
            for range in &block.ranges {
                if let Some(head) = heads.get_mut(range.first.creator.index()) {
                    *head = (*head).max(range.head());
                }
            }
        }
        heads
    }

    /// What a block upon this one may name.
    pub(super) fn ranges_above(&self, parent: BlockId) -> Vec<Range> {
        if self.sadl.silent() {
            return Vec::new();
        }
        self.sadl.completed(&self.heads_at(parent), NAMED_MAX)
    }

    pub(super) fn flush_batches(&mut self, ctx: &mut Context<'_, Self>) {
        self.sadl.measured(self.round_trip);
        let create = self.disseminates() && !matches!(self.mode, Mode::Recovering(_));
        self.sadl.flush(create, self.tree.root().end.next(), ctx);
    }

    pub(super) fn on_sadl(
        &mut self,
        from: ReplicaId,
        message: sadl::Message,
        ctx: &mut Context<'_, Self>,
    ) {
        let end = self.tree.root().end;
        let news = self.sadl.on_message(from, message, end.next(), ctx);
        if news == News::Behind {
            self.fetching.ask(end.next(), end, self.others, ctx);
        }
    }

    /// Whether all of these batches are here, or executed. What is missing is asked for.
    pub(super) fn have_batches(
        &mut self,
        ranges: &[Range],
        from: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if self.planted(Plant::BatchesNotRecovered) && matches!(self.mode, Mode::Recovering(_)) {
            return true;
        }
        let mut ranges = ranges.iter().copied();
        self.sadl.fetch_causal(&mut ranges, from, ctx)
    }

    /// The last block on the way to a connected one up to which all batches that blocks name are
    /// here; what is missing is asked for.
    pub(super) fn ready(
        &mut self,
        decided: BlockId,
        ctx: &mut Context<'_, Self>,
    ) -> Option<BlockId> {
        if self.stalled.is_some_and(|name| self.sadl.awaits(name)) {
            // It is asked for, and all else waits for it.
            return None;
        }
        self.stalled = None;
        let mut ready = None;
        let mut needs: Vec<Range> = Vec::new();
        let mut scanned = 0;
        for block in self.tree.path(decided) {
            let missing = |range: &Range| self.sadl.missing(*range);
            needs.extend(block.ranges.iter().filter_map(missing));
            if needs.is_empty() {
                ready = Some(block.id);
            } else {
                scanned += 1;
                if scanned > SCANNED_MAX {
                    break;
                }
            }
        }
        self.stalled = needs.first().map(|range| range.first);
        let from = self.decided_from;
        self.sadl.fetch_causal(&mut needs.into_iter(), from, ctx);
        ready
    }
}
