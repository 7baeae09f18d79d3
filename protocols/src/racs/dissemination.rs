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
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{Context, Lane, ReplicaId, Slot, parts::request_key};

/// The most batches that a block names.
const NAMED_MAX: u64 = 4096;
/// About how many bytes of batches are sent at a time.
const PAGE_BYTES: usize = 1 << 20;
/// The most ranges that are asked for at a time.
const WANTED_MAX: usize = 64;

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
                let new = self.sadl.on_new(first, batches, completed);
                self.store(new, ctx);
                self.drop_found_batches();
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
                let asked = |(name, (_, last)): (&Name, &(ReplicaId, u64))| {
                    (name.creator, name.chain) == (first.creator, first.chain)
                        && name.round <= first.round
                        && first.round + batches.len() as u64 <= last + 1
                };
                if !self.wanted_batches.iter().any(asked) {
                    return ctx.mark("ignored: batches that were not asked for");
                }
                ctx.mark("batches fetched");
                let new = self.sadl.on_found(first, batches);
                self.store(new, ctx);
                self.drop_found_batches();
            }
        }
    }

    fn on_fetch_batches(&self, from: ReplicaId, range: Range, ctx: &mut Context<'_, Self>) {
        let room = ctx.room(from).saturating_sub(super::sync::MESSAGE_BYTES);
        match self.sadl.find(range, PAGE_BYTES.min(room / 2)) {
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
            let Some(missing) = self.sadl.missing(*range) else {
                continue;
            };
            complete = false;
            if self.wanted_batches.contains_key(&missing.first)
                || self.wanted_batches.len() >= WANTED_MAX
            {
                continue;
            }
            let creator = missing.first.creator;
            let asked = [creator, from]
                .into_iter()
                .find(|peer| self.others.contains(*peer))
                .unwrap_or_else(|| self.next_peer(self.id));
            if self.others.is_empty() {
                continue;
            }
            self.wanted_batches
                .insert(missing.first, (asked, missing.last));
            let fetch = sadl::Message::Fetch { range: missing };
            ctx.send(asked, Lane::Control, &Message::Sadl(fetch));
            if !self.fetch_armed {
                self.fetch_armed = true;
                ctx.set_timer(Timer::Fetch, self.fetch_patience());
            }
        }
        complete
    }

    fn drop_found_batches(&mut self) {
        let sadl = &self.sadl;
        self.wanted_batches.retain(|first, (_, last)| {
            let range = Range {
                first: *first,
                last: *last,
            };
            sadl.missing(range).is_some_and(|left| left == range)
        });
    }

    /// Others are asked for what has not come.
    pub(super) fn fetch_batches_again(&mut self, ctx: &mut Context<'_, Self>) {
        self.drop_found_batches();
        let wanted: Vec<(Name, (ReplicaId, u64))> = self
            .wanted_batches
            .iter()
            .map(|(first, asked)| (*first, *asked))
            .collect();
        for (first, (asked, last)) in wanted {
            let next = self.next_peer(asked);
            self.wanted_batches.insert(first, (next, last));
            let range = Range { first, last };
            let fetch = sadl::Message::Fetch { range };
            ctx.send(next, Lane::Control, &Message::Sadl(fetch));
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
