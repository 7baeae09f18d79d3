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
    bug::Bug,
    replica::{Mode, Timer},
};
use crate::sadl::{self, Dissemination, Heads, Host, Limits, Name, News, Range, Way};
use alloc::vec::Vec;
use quintet_replica::{Bytes, CommandTime, Context, ReplicaId, parts::RequestKey};

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
            hasty: config.injected.is(Bug::BatchVoteNotDurable),
        }
    }

    /// The way of this replica's own requests.
    pub(super) const fn way(&self) -> Way {
        self.hybrid.way(&self.config)
    }

    /// Whether this replica's requests go out before they are ordered.
    pub(super) fn disseminates(&self) -> bool {
        self.way() == Way::Sadl
    }

    /// The leader looks whether the other way would be the better one.
    pub(super) fn look_at_way(&mut self, ctx: &mut Context<'_, Self>) {
        let (own, clock) = (self.me.id(), ctx.clock().now);
        let wants = (self.hybrid).wants_other(&self.config, own, ctx.now(), clock);
        if let Some(lead) = self.sync.lead.as_mut().filter(|lead| wants && lead.open) {
            ctx.mark("switch proposed");
            lead.switch = Some(self.hybrid.other());
        }
    }

    /// A block that changes the way is decided.
    pub(super) fn on_switch(&mut self, way: Way, at: CommandTime, ctx: &mut Context<'_, Self>) {
        if self.hybrid.switch(way, at, &self.config) && self.config.is_hybrid() {
            self.on_dissemination(ctx);
        }
    }

    /// The way is another one: requests that wait continue that one.
    pub(super) fn on_dissemination(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("dissemination changed");
        let waiting: Vec<(RequestKey, Bytes)> = self
            .relay
            .kept
            .iter()
            .map(|(key, batch)| (key, batch.clone()))
            .collect();
        if self.disseminates() {
            self.relay.kept.forward_nothing();
            for (key, batch) in waiting {
                self.sadl.replicate(key, batch);
            }
            return;
        }
        // A waiting batch without a name will not get one.
        self.sadl.drop_waiting(&|_| true);
        let knows_leader = self.sync.knows_leader();
        match &mut self.sync.lead {
            Some(lead) if lead.open => {
                for (key, batch) in waiting {
                    lead.queue.push(key, batch);
                }
            }
            Some(_) => {}
            None if knows_leader => self.relay.kept.forward_all(),
            None => {}
        }
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

    /// The ranges that a block upon this one may name.
    pub(super) fn ranges_above(&self, parent: BlockId) -> Vec<Range> {
        if self.sadl.silent() {
            return Vec::new();
        }
        self.sadl.completed(&self.heads_at(parent), NAMED_MAX)
    }

    pub(super) fn flush_batches(&mut self, ctx: &mut Context<'_, Self>) {
        self.sadl.measured(self.timing.round_trip());
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
            self.missing
                .state
                .ask(end.next(), end, self.me.others(), ctx);
        }
    }

    /// Whether all of these batches are here, or executed. Missing ones are requested.
    pub(super) fn have_batches(
        &mut self,
        ranges: &[Range],
        from: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if self.injected(Bug::BatchesNotRecovered) && matches!(self.mode, Mode::Recovering(_)) {
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
        if self
            .missing
            .stalled
            .is_some_and(|name| self.sadl.awaits(name))
        {
            // It is asked for, and all else waits for it.
            return None;
        }
        self.missing.stalled = None;
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
        self.missing.stalled = needs.first().map(|range| range.first);
        let from = self.tree.decided_from();
        self.sadl.fetch_causal(&mut needs.into_iter(), from, ctx);
        ready
    }
}
