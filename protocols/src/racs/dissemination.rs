//! SADL beneath RACS: batches go out by themselves, blocks name them.
//!
//! ```text
//!   own requests ──► Sadl ──► journal; New ──► all ──► Vote ──► completed
//!   a block is made: ranges_above(parent) ── decided, and all of it here: executed
//!                                                     └─ something missing: Fetch, Found
//! ```
//!
//! A block with ranges is voted for without them: n-f hold what they name. It is executed when
//! they are here; until then what is decided stands above the root.

use super::{
    BlockId, Dissemination, Message, Racs, Record,
    plant::Plant,
    replica::{Due, Timer},
};
use crate::sadl::{self, Heads, Name, Range};
use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;
use quintet_replica::{Context, Lane, ReplicaId, Slot, parts::request_key};

/// The most batches that a block names.
const NAMED_MAX: u64 = 4096;
/// About how many bytes of batches are sent at a time.
const PAGE_BYTES: usize = 1 << 20;
/// The most ranges that are asked for at a time, each of another chain.
const WANTED_MAX: usize = 64;
/// So many decided blocks are looked through for batches to ask for together.
const SCANNED_MAX: u64 = 1024;

/// Batches that are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedBatches {
    range: Range,
    /// Whom last.
    from: ReplicaId,
    tries: u32,
}

impl Racs {
    /// How far the blocks up to this one have come with each member's batches.
    fn heads_at(&self, id: BlockId) -> Heads {
        let mut heads = self.sadl.covered().to_vec();
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
        if self.sadl.is_empty() && self.sadl.idle() {
            return Vec::new();
        }
        self.sadl.ranges(&self.heads_at(parent), NAMED_MAX)
    }

    fn store(&mut self, names: Vec<Name>, ctx: &mut Context<'_, Self>) {
        let slot = self.tree.root().end.next();
        for name in names {
            let Some(batch) = self.sadl.batch(name).cloned() else {
                continue;
            };
            self.sadl.written(name, slot);
            let write = ctx.persist(slot, &Record::Batch { name, batch });
            if self.planted(Plant::BatchVoteNotDurable) {
                self.sadl.on_durable(name);
            } else {
                self.due_after(write, Due::Batch(name));
            }
        }
    }

    /// What is durable is voted for, what waits goes out, what is completed is told.
    pub(super) fn flush_batches(&mut self, ctx: &mut Context<'_, Self>) {
        if self.chain_settled && self.may_create() {
            let before = self.sadl.newest();
            let (window, bytes) = (self.config.sadl_window, self.config.window_bytes);
            let new = self.sadl.extend(window, bytes);
            if !new.is_empty() {
                self.store(new, ctx);
                self.sadl.take_announcement();
                self.show_batches(before, ctx);
            }
        }
        for (creator, chain, round) in self.sadl.take_votes() {
            let vote = sadl::Message::Vote {
                chain,
                round,
                lives: self.lives.clone(),
            };
            ctx.send(creator, Lane::Control, &Message::Sadl(vote));
        }
        self.sadl.complete();
        if self.sadl.take_announcement() {
            self.show_batches(u64::MAX, ctx);
        }
        if self.sadl.unfinished() && !self.show_armed {
            self.show_armed = true;
            let pause = Duration::from_millis(60).max(self.round_trip * 2);
            ctx.set_timer(Timer::Show, pause * (1 << (self.shown / 2).min(4)));
        }
    }

    fn may_create(&self) -> bool {
        self.config.dissemination == Dissemination::Sadl
            && !matches!(self.mode, super::replica::Mode::Recovering(_))
    }

    /// Shows all others the own batches above this round, page by page.
    fn show_batches(&mut self, above: u64, ctx: &mut Context<'_, Self>) {
        let mut above = above;
        loop {
            let message = self.sadl.show(above, PAGE_BYTES);
            let (last, bytes) = message.extent();
            let room = |peer: &ReplicaId| ctx.room(*peer) >= bytes + super::sync::MESSAGE_BYTES;
            let to = self.others.iter().filter(room).collect();
            ctx.multicast(to, Lane::Control, &Message::Sadl(message));
            if last >= self.sadl.newest() || bytes == 0 {
                return;
            }
            above = last;
        }
    }

    /// Says again what has not been voted for, and what is completed and not executed.
    pub(super) fn on_show_timer(&mut self, ctx: &mut Context<'_, Self>) {
        self.show_armed = false;
        if !self.sadl.unfinished() {
            self.shown = 0;
            return;
        }
        self.shown = self.shown.saturating_add(1);
        ctx.mark("batches shown again");
        for peer in self.others.iter() {
            let message = self.sadl.show(self.sadl.vote_of(peer), PAGE_BYTES);
            let (_, bytes) = message.extent();
            if ctx.room(peer) >= bytes + super::sync::MESSAGE_BYTES {
                ctx.send(peer, Lane::Control, &Message::Sadl(message));
            }
        }
    }

    pub(super) fn on_sadl(
        &mut self,
        from: ReplicaId,
        message: sadl::Message,
        ctx: &mut Context<'_, Self>,
    ) {
        match message {
            sadl::Message::New {
                first,
                batches,
                completed,
            } => {
                if first.creator != from {
                    return ctx.mark("ignored: batches of another");
                }
                // Who lags leaves what is new to those who do not, and fetches what it needs.
                let bytes_max = self.config.window_bytes.saturating_mul(4 * self.members);
                let new = self.sadl.on_new(first, batches, completed, bytes_max);
                self.store(new, ctx);
                self.drop_found_batches(ctx);
            }
            sadl::Message::Vote {
                chain,
                round,
                lives,
            } => {
                if self.meet_all(from, &lives, ctx) {
                    self.sadl.on_vote(from, chain, round);
                } else {
                    ctx.mark("ignored: vote of an earlier life");
                }
            }
            sadl::Message::Fetch { range } => self.on_fetch_batches(from, range, ctx),
            sadl::Message::Found { first, batches } => {
                let asked = self.wanted_batches.get(&(first.creator, first.chain));
                let fits = |asked: &AskedBatches| {
                    asked.range.first.round <= first.round
                        && first.round + batches.len() as u64 <= asked.range.last + 1
                };
                if !asked.is_some_and(fits) {
                    return ctx.mark("ignored: batches that were not asked for");
                }
                ctx.mark("batches fetched");
                let new = self.sadl.on_found(first, batches);
                self.store(new, ctx);
                self.drop_found_batches(ctx);
            }
        }
    }

    fn on_fetch_batches(&self, from: ReplicaId, range: Range, ctx: &mut Context<'_, Self>) {
        let room = ctx.room(from).saturating_sub(super::sync::MESSAGE_BYTES);
        match self.sadl.find(range, self.page_bytes().min(room / 2)) {
            Some(batches) if batches.is_empty() => {}
            Some(batches) => {
                let bytes: usize = batches.iter().map(|batch| batch.len() + 4).sum();
                if bytes < room {
                    let first = range.first;
                    let found = sadl::Message::Found { first, batches };
                    ctx.send(from, Lane::Bulk, &Message::Sadl(found));
                }
            }
            None => {
                let slot = self.tree.root().end;
                ctx.send(from, Lane::Control, &Message::Trimmed { slot });
            }
        }
    }

    /// Whether all of these batches are here, or executed. What is missing is asked for: of its
    /// creator first, if it is another one.
    pub(super) fn have_batches(
        &mut self,
        ranges: &[Range],
        from: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if self.planted(Plant::BatchesNotRecovered)
            && matches!(self.mode, super::replica::Mode::Recovering(_))
        {
            return true;
        }
        let mut complete = true;
        for range in ranges {
            if let Some(missing) = self.sadl.missing(*range) {
                complete = false;
                self.want_batches(missing, from, ctx);
            }
        }
        complete
    }

    /// The last block on the way to a connected one up to which all batches that blocks name are
    /// here; what is missing is asked for.
    pub(super) fn ready(
        &mut self,
        decided: BlockId,
        ctx: &mut Context<'_, Self>,
    ) -> Option<BlockId> {
        let root = self.tree.root().id;
        if let Some((at, name)) = self.stalled
            && at == root
            && self.sadl.missing(name.into()).is_some()
            && self
                .wanted_batches
                .contains_key(&(name.creator, name.chain))
        {
            // It is asked for, and all else waits for it.
            return None;
        }
        self.stalled = None;
        let mut ready = None;
        let mut needs: BTreeMap<(ReplicaId, u64), Range> = BTreeMap::new();
        let mut scanned = 0;
        for block in self.tree.path(decided) {
            for range in &block.ranges {
                let Some(missing) = self.sadl.missing(*range) else {
                    continue;
                };
                self.stalled.get_or_insert((root, missing.first));
                let key = (missing.first.creator, missing.first.chain);
                let need = needs.entry(key).or_insert(missing);
                let follows = need.last + 1 == missing.first.round;
                if follows && need.count() + missing.count() <= NAMED_MAX {
                    need.last = missing.last;
                }
            }
            if self.stalled.is_none() {
                ready = Some(block.id);
            } else {
                scanned += 1;
                if scanned > SCANNED_MAX {
                    break;
                }
            }
        }
        let from = self.decided_from;
        for need in needs.into_values() {
            self.want_batches(need, from, ctx);
        }
        ready
    }

    fn want_batches(&mut self, missing: Range, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let creator = missing.first.creator;
        let key = (creator, missing.first.chain);
        let full = self.wanted_batches.len() >= WANTED_MAX;
        if full || self.wanted_batches.contains_key(&key) || self.others.is_empty() {
            return;
        }
        let asked = AskedBatches {
            range: missing,
            from: [creator, from]
                .into_iter()
                .find(|peer| self.others.contains(*peer))
                .unwrap_or_else(|| self.next_peer(self.id)),
            tries: 0,
        };
        self.wanted_batches.insert(key, asked);
        let fetch = sadl::Message::Fetch { range: missing };
        ctx.send(asked.from, Lane::Control, &Message::Sadl(fetch));
        self.arm_fetch(ctx);
    }

    fn drop_found_batches(&mut self, ctx: &mut Context<'_, Self>) {
        let (sadl, tries_max) = (&self.sadl, 2 * self.members as u32);
        let before = self.wanted_batches.len();
        // Who has asked everybody twice looks anew at what is needed.
        self.wanted_batches.retain(|_, asked| {
            let left = sadl.missing(asked.range);
            asked.tries <= tries_max && left.is_some_and(|left| left == asked.range)
        });
        if self.wanted_batches.len() < before {
            self.fetch_moves(ctx);
        }
    }

    /// Others are asked for what has not come.
    pub(super) fn fetch_batches_again(&mut self, ctx: &mut Context<'_, Self>) {
        self.drop_found_batches(ctx);
        let keys: Vec<(ReplicaId, u64)> = self.wanted_batches.keys().copied().collect();
        for key in keys {
            let Some(asked) = self.wanted_batches.get(&key).copied() else {
                continue;
            };
            let from = self.next_peer(asked.from);
            let tries = asked.tries + 1;
            let range = asked.range;
            let again = AskedBatches { range, from, tries };
            self.wanted_batches.insert(key, again);
            let fetch = sadl::Message::Fetch { range };
            ctx.send(from, Lane::Control, &Message::Sadl(fetch));
        }
    }

    /// A durable state covers everything up to this slot. Batches that it does not cover are
    /// written again before the journal is trimmed.
    pub(super) fn trim(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let mut last = None;
        for name in self.sadl.rewrite(slot) {
            if let Some(batch) = self.sadl.batch(name).cloned() {
                self.sadl.written(name, slot.next());
                last = Some(ctx.persist(slot.next(), &Record::Batch { name, batch }));
            }
        }
        match last {
            Some(write) => self.due_after(write, Due::Trim(slot)),
            None => ctx.trim(self.sadl.trim_below(slot)),
        }
    }

    /// The option was changed: requests that wait go the other way.
    pub(super) fn on_dissemination(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("dissemination changed");
        for (_, batch) in self.requests.iter() {
            if let Some(key) = request_key(batch)
                && self.config.dissemination == Dissemination::Sadl
            {
                self.sadl.submit(key, batch.clone());
            }
        }
        if self.config.dissemination == Dissemination::Direct && self.heard {
            self.requests.pass_on_all();
        }
    }
}
