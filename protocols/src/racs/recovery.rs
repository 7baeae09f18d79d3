//! Starting: for the first time, from a journal, or without what was acknowledged.
//!
//! ```text
//!   first boot ──► view 1, new-view to its leader
//!   journal ─────► the view and mode of the promise, its blocks, what was voted for
//!   restarted ───► Recover ──► all
//!                  ◄── RecoverOk{view, high, B_fall} from n-f others that have not lost their state
//!                  highest of all is connected here ──► out of every view up to the highest one
//!                  ──► Recover{above} until a later view begins ──► takes part again
//! ```
//!
//! Why this is enough (R12). Before it lost its state, this replica voted only in views up to its
//! durable promise. Let a block have been decided with such a vote: of the other replicas f voted
//! for it, too, and one of them is among the f+1 that answered. If it voted before it answered, its
//! answer shows the block, as its highest one or in its B_fall. If it voted later, it knew the new
//! incarnation, and its vote says so to the counter, which then no longer counts the old vote
//! (`incarnations`). The same holds of votes for disseminated batches (see [`crate::sadl`]): an
//! answer counts once all that it lists is here; what its sender has executed is decided. So what
//! this replica says in later views covers all that its old votes helped to decide. In the views up
//! to the highest that was told of or promised, it says nothing at all.
//!
//! # A journal whose highest block lost
//!
//! Decided blocks may lie beside the highest block (see "Deviations" in the module), and a
//! checkpoint there trims the journal below its last slot, whichever branch a record is of. So the
//! records of a branch that lost may come back without what leads to them. Let a journal be whole,
//! which the store sees to, and a block that this replica spoke of not be connected to the
//! checkpoint's block after a restart. When it spoke of it, the block was connected to what was
//! decided here by then, and all in between was written. If the block extended the checkpoint's,
//! all in between would have slots above the checkpoint's and be there. So it does not extend what
//! is decided, and never will be: it counts no more. The highest connected block takes its place,
//! in the timeout of this view, too: each of this replica's votes in the view that may be decided
//! leads to what is decided, so that the timeout still carries a block at least as high as those.
//! Only without any checkpoint nothing can have been trimmed: there records are missing.
//!
//! An own block of the asynchronous mode may have lost or been trimmed like any other, and been
//! shown before. Another of its level and view could have its id, so none is made: checkpoints
//! write above their slot that there was one.

use super::{
    Block, BlockId, Message, Promised, Racs, Record, Summary, Why,
    bug::Bug,
    fallback::Fallback,
    message::Answer,
    quotes::completed,
    replica::{Mode, Timer},
    tree::Root,
};
use crate::sadl::Dissemination;
use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};
use core::time::Duration;
use quintet_replica::{Context, Incarnation, Lane, Recovered, ReplicaId, parts::StateLoss};

/// Too many others have lost their state for this long: it does not end by itself.
const LOST_MAX: Duration = Duration::from_secs(5);

/// The journal's records of the asynchronous mode.
#[derive(Debug, Default, Hash)]
pub(super) struct Found {
    asynchronous: bool,
    own: [Option<BlockId>; 2],
    fall: Vec<BlockId>,
    /// The highest block that this replica spoke of is trimmed or lost.
    highest_lost: bool,
    /// Something that this replica spoke of is, maybe own blocks, too.
    lost: bool,
}

impl Racs {
    /// Takes up what a start found. None when records are missing.
    pub(super) fn restore(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
    ) -> Option<Found> {
        let Recovered {
            promise,
            checkpoint,
            records,
            state_lost,
            ..
        } = recovered;
        let promise = promise.unwrap_or_default();
        let trimmed = checkpoint.is_some();
        let promise = if self.injected(Bug::PromiseLost) {
            Promised::default()
        } else {
            promise
        };
        if let Some((end, summary)) = checkpoint {
            let Summary {
                decided,
                time,
                heads,
                course,
            } = summary;
            self.hybrid.install(course);
            self.sadl.install(&heads);
            self.tree.install(Root {
                id: decided,
                end,
                time,
            });
            self.tree.set_high(decided);
        }
        self.view.restore(promise.view, promise.certificate);
        let chain = promise.chain;
        let mut found = Found {
            asynchronous: promise.asynchronous,
            ..Found::default()
        };
        let mut spoken_of: Vec<BlockId> = promise.stopped.into_iter().collect();
        spoken_of.push(promise.high);
        // Blocks of the asynchronous mode that stand complete in a record.
        let complete: BTreeMap<BlockId, Arc<Block>> = records
            .iter()
            .filter_map(|(_, record)| match record {
                Record::Block {
                    id,
                    block: Some(block),
                    quotes,
                    ..
                } if id.level > 0 && quotes.is_empty() => Some((*id, block.clone())),
                _ => None,
            })
            .collect();
        for (slot, record) in records {
            let (why, id, block, mut quotes) = match record {
                Record::Block {
                    why,
                    id,
                    block,
                    quotes,
                } => (why, id, block, quotes),
                Record::Batch { name, batch } => {
                    self.sadl.restore(name, batch, slot);
                    continue;
                }
            };
            let block = block.and_then(|block| match complete.get(&id) {
                Some(complete) => {
                    quotes = Vec::new();
                    Some(complete.clone())
                }
                // Without what it quotes it is decided or has lost: see `write_quoting`.
                None => completed(&block, &quotes, |id| complete.get(&id)),
            });
            if let Some(block) = block {
                self.take(block);
                self.tree.set_written(id, quotes);
            }
            match why {
                Why::High => spoken_of.push(id),
                Why::Fall if id.view == promise.view => found.fall.push(id),
                Why::Own if id.view == promise.view => {
                    found.own[usize::from(id.level.clamp(1, 2)) - 1] = Some(id);
                }
                Why::Fall | Why::Own | Why::Held => {}
            }
        }
        let reused = self.injected(Bug::ChainReused);
        self.sadl.begin(if reused { 1 } else { chain + 1 });
        self.tree.drop_unconnected(u64::MAX);
        spoken_of.sort_unstable_by_key(|id| self.tree.rank(*id));
        let highest = spoken_of.last().copied().unwrap_or_default();
        let above = self.tree.outranks(highest);
        let missing = above && !self.tree.connected(highest);
        let halts = self.injected(Bug::LostBranchHalts);
        if missing && !state_lost && (halts || !trimmed) {
            return None;
        }
        if let Some(high) = spoken_of
            .into_iter()
            .rfind(|id| self.tree.connected(*id))
            .filter(|id| self.tree.outranks(*id))
        {
            self.tree.set_high(high);
        }
        let here = |id: &BlockId| self.tree.connected(*id);
        let high = self.tree.high();
        if let Some(stopped) = promise.stopped {
            self.view.stop(if here(&stopped) { stopped } else { high });
        }
        found.fall.retain(here);
        found.highest_lost = missing;
        found.lost = !here(&promise.high) || found.own.iter().flatten().any(|own| !here(own));
        Some(found)
    }

    /// A first boot, or a restart that has lost nothing.
    pub(super) fn start(&mut self, first_boot: bool, found: Found, ctx: &mut Context<'_, Self>) {
        if first_boot || self.view.number() == 0 {
            // With a state of the others, if it comes into an epoch late.
            return self.enter_view(Self::view_of(self.tree.root().id).max(1), ctx);
        }
        self.resume(found, ctx);
        // Its highest block may be decided, and its promise of that view not have become durable.
        let decided = Self::view_of(self.tree.root().id);
        self.follow(self.tree.high().view.max(decided), ctx);
    }

    /// Takes part again where the promise says.
    fn resume(&mut self, found: Found, ctx: &mut Context<'_, Self>) {
        // The snapshot that it starts from may have come from a peer just before the crash, and
        // the journal is trimmed for it next.
        self.write_quoting(ctx);
        if found.highest_lost {
            ctx.mark("highest block lost at restart");
        }
        if found.asynchronous {
            ctx.mark("restart in the asynchronous mode");
            let mut own = found.own;
            if found.lost {
                // Which they were does not matter any more.
                for (level, own) in (1..).zip(&mut own) {
                    own.get_or_insert(BlockId {
                        view: self.view.number(),
                        level,
                        round: 0,
                        owner: self.me.id(),
                    });
                }
            }
            let here = |id| self.tree.connected(id);
            let fallback = Fallback::restored(own, &found.fall, self.me.id(), here);
            self.mode = Mode::Asynchronous(Box::new(fallback));
            self.view.ensure_stopped(self.tree.high());
            self.keep_own(ctx);
            if own == [None, None] {
                self.propose_level_1(ctx);
            }
            self.timing.fell_back();
            self.promise(ctx);
            self.outbox.want();
            return self.arm_repeat(ctx);
        }
        if self.tree.high().view == self.view.number() && self.tree.high().level == 0 {
            self.sync.vote(self.tree.high());
        }
        self.promise(ctx);
        self.sync.progressed(ctx.now());
        ctx.set_timer(Timer::View, self.timeout());
        self.arm_repeat(ctx);
        self.outbox.want();
        if self.view.leader() == self.me.id() {
            if self.injected(Bug::LeaderContinues) {
                return self.enter_view(self.view.number(), ctx);
            }
            // It may have proposed blocks that it does not remember: it makes none in this view.
            ctx.mark("restarted leader stands back");
            self.time_out(ctx);
        }
    }

    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.me.can_recover() {
            return self.me.halt_lost(ctx);
        }
        ctx.mark("recovers what it lost");
        self.mode = Mode::Recovering(StateLoss::new(ctx.random(), self.me.members()));
        self.view.unstop();
        self.outbox.want();
        self.arm_repeat(ctx);
    }

    pub(super) fn ask_to_recover(&mut self, ctx: &mut Context<'_, Self>) {
        let Mode::Recovering(recovery) = &self.mode else {
            return;
        };
        if recovery.is_lost(ctx.now(), LOST_MAX) {
            return self.me.halt_lost(ctx);
        }
        let message = Message::Recover {
            incarnation: self.me.incarnation(),
            nonce: recovery.nonce(),
            above: None,
        };
        ctx.multicast(self.me.others(), Lane::Control, &message);
    }

    /// It knows all that it needs, and waits for a view in which it has said nothing yet.
    pub(super) fn ask_to_move_on(&self, ctx: &mut Context<'_, Self>) {
        let message = Message::Recover {
            incarnation: self.me.incarnation(),
            nonce: 0,
            above: Some(self.view.number()),
        };
        ctx.multicast(self.me.others(), Lane::Control, &message);
    }

    pub(super) fn on_recover(
        &mut self,
        from: ReplicaId,
        incarnation: Incarnation,
        nonce: u64,
        above: Option<u64>,
        ctx: &mut Context<'_, Self>,
    ) {
        if incarnation < self.peers.incarnation(from) {
            return ctx.mark("ignored: question of an earlier incarnation");
        }
        if let Some(above) = above {
            if above < self.view.number() {
                return self.send_exit(from, above, ctx);
            }
            return self.time_out_in(above, ctx);
        }
        let fall = match &self.mode {
            Mode::Asynchronous(fallback) => fallback.fall().values().copied().collect(),
            _ => Vec::new(),
        };
        let answer = Answer {
            state_lost: matches!(self.mode, Mode::Recovering(_)),
            view: self.view.number(),
            high: self.tree.high(),
            fall,
            decided: self.tree.root().id,
            held: self.sadl.inventory(),
        };
        ctx.send(from, Lane::Control, &Message::RecoverOk { nonce, answer });
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        nonce: u64,
        answer: Answer,
        ctx: &mut Context<'_, Self>,
    ) {
        let Mode::Recovering(recovery) = &mut self.mode else {
            return;
        };
        if nonce != recovery.nonce() {
            return ctx.mark("ignored: answer to another question");
        }
        let decided = answer.decided;
        recovery.answered(from, answer);
        recovery.count_lost(|answer| answer.state_lost, &self.me, ctx.now());
        self.learn(decided, from, ctx);
    }

    /// Enough have answered, and what they hold is here. True when that has just come about.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let Mode::Recovering(recovery) = &self.mode else {
            return false;
        };
        // Disseminated batches that this replica may have voted for.
        let answers = recovery.answers().filter(|(_, answer)| !answer.state_lost);
        let mut intact: Vec<(ReplicaId, Answer)> = answers
            .map(|(from, answer)| (from, answer.clone()))
            .collect();
        intact.retain(|(from, answer)| self.have_batches(&answer.held, *from, ctx));
        if intact.len() < self.me.majority() {
            return false;
        }
        let mut best = (self.tree.decided(), self.tree.decided_from());
        for (from, answer) in &intact {
            let coin = self.view.elected(answer.view);
            let elected = answer
                .fall
                .iter()
                .filter(|id| id.owner == coin && id.view == answer.view);
            for id in elected.chain([&answer.high]) {
                if self.tree.rank(*id) > self.tree.rank(best.0) {
                    best = (*id, *from);
                }
            }
        }
        let (high, from) = best;
        if high.round > self.tree.root().id.round && !self.tree.connected(high) {
            self.want(high, from, ctx);
            return false;
        }
        if self.tree.decided().round > self.tree.root().id.round {
            return false;
        }
        ctx.mark("recovery quorum");
        let views = intact.iter().map(|(_, answer)| answer.view);
        self.view
            .stand_out(views.chain([Self::view_of(self.tree.decided())]));
        self.mode = Mode::Synchronous;
        self.sadl.ask_no_more();
        self.tree.set_high(if self.tree.connected(high) {
            high
        } else {
            self.tree.root().id
        });
        let high = self.tree.high();
        self.write(high, Why::Held, None, ctx);
        self.promise(ctx);
        self.outbox.want();
        self.arm_repeat(ctx);
        true
    }
}
