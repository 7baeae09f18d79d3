//! Starting: for the first time, from a journal, or without what was acknowledged.
//!
//! ```text
//!   first boot ──► view 1, new-view to its leader
//!   journal ─────► the view and mode of the promise, its blocks, what was voted for
//!   forgot ──────► Recover ──► all
//!                  ◄── RecoverOk{view, high, B_fall} from n-f others that have not forgotten
//!                  highest of all is connected here ──► out of every view up to the highest one
//!                  ──► Recover{above} until a later view begins ──► takes part again
//! ```
//!
//! Why this is enough (R12). Before it forgot, this replica voted only in views up to its durable
//! promise. Let a block have been decided with such a vote: of the other replicas f voted for it,
//! too, and one of them is among the f+1 that answered. If it voted before it answered, its
//! answer shows the block, as its highest one or in its B_fall. If it voted later, it knew the
//! new life, and its vote tells the counter so, who then no longer counts the old vote (`lives`).
//! The same holds of votes for disseminated batches (see [`crate::sadl`]): an answer counts once
//! all that it lists is here; what its sender has executed is decided.
//! So what this replica says in later views covers all that its old votes helped to decide. In
//! the views up to the highest that was told of or promised, it says nothing at all.
//!
//! # A journal whose highest block lost
//!
//! What is decided may lie beside the highest block (see "Deviations" in the module), and a
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
    plant::Plant,
    quotes::completed,
    replica::{Mode, Timer},
    tree::Root,
};
use crate::sadl::{Dissemination, Range};
use alloc::{collections::BTreeMap, sync::Arc, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, Recovered, ReplicaId, Time, parts::too_many_forgot,
};

/// A replica's answer to one that has forgotten.
#[derive(Clone, Debug, Hash)]
pub(super) struct Answer {
    pub forgot: bool,
    pub view: u64,
    pub high: BlockId,
    pub fall: Vec<BlockId>,
    pub held: Vec<Range>,
}

/// A replica that has forgotten.
#[derive(Hash)]
pub(super) struct Recovery {
    nonce: u64,
    answers: Vec<Option<Answer>>,
    /// Since when too many others said that they have forgotten too.
    lost_since: Option<Time>,
}

/// What the journal told of the asynchronous mode.
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

/// Too many others have forgotten for this long: it will not mend itself.
const LOST_MAX: Duration = Duration::from_secs(5);

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
            forgot,
            ..
        } = recovered;
        let promise = promise.unwrap_or_default();
        let trimmed = checkpoint.is_some();
        let promise = if self.planted(Plant::PromiseForgotten) {
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
            self.course = course;
            self.sadl.install(&heads);
            self.tree.reset(Root {
                id: decided,
                end,
                time,
            });
            self.decided = decided;
            self.reached = decided;
            self.high = decided;
        }
        self.view = promise.view;
        self.certificate = promise.certificate;
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
        let reused = self.planted(Plant::ChainReused);
        self.sadl.begin(if reused { 1 } else { chain + 1 });
        self.tree.drop_unconnected(u64::MAX);
        spoken_of.sort_unstable_by_key(|id| self.rank(*id));
        let highest = spoken_of.last().copied().unwrap_or_default();
        let above = self.rank(highest) > self.rank(self.high);
        let missing = above && !self.tree.connected(highest);
        let halts = self.planted(Plant::LostBranchHalts);
        if missing && !forgot && (halts || !trimmed) {
            return None;
        }
        if let Some(high) = spoken_of
            .into_iter()
            .rfind(|id| self.tree.connected(*id))
            .filter(|id| self.rank(*id) > self.rank(self.high))
        {
            self.high = high;
        }
        let here = |id: &BlockId| self.tree.connected(*id);
        self.stopped = promise
            .stopped
            .map(|stopped| if here(&stopped) { stopped } else { self.high });
        found.fall.retain(here);
        found.highest_lost = missing;
        found.lost = !here(&promise.high) || found.own.iter().flatten().any(|own| !here(own));
        Some(found)
    }

    /// A first boot, or a restart that has forgotten nothing.
    pub(super) fn start(&mut self, first_boot: bool, found: Found, ctx: &mut Context<'_, Self>) {
        if first_boot || self.view == 0 {
            return self.enter_view(1, ctx);
        }
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
                        view: self.view,
                        level,
                        round: 0,
                        owner: self.id,
                    });
                }
            }
            self.restore_fallback(own, &found.fall);
            self.stopped.get_or_insert(self.high);
            self.keep_own(ctx);
            if own == [None, None] {
                self.propose_level_1(ctx);
            }
            *self.fallbacks += 1;
            self.promise(ctx);
            self.say_due = true;
            return self.arm_repeat(ctx);
        }
        if self.high.view == self.view && self.high.level == 0 {
            self.voted = Some(self.high);
        }
        self.promise(ctx);
        self.heard_at = ctx.now();
        ctx.set_timer(Timer::View, self.timeout());
        self.arm_repeat(ctx);
        self.say_due = true;
        if self.leader_of(self.view) == self.id {
            if self.planted(Plant::LeaderGoesOn) {
                return self.enter_view(self.view, ctx);
            }
            // It may have proposed blocks that it does not remember: it makes none in this view.
            ctx.mark("restarted leader stands back");
            self.time_out(ctx);
        }
    }

    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if self.members - 1 < self.quorum {
            return self.halt_lost(ctx);
        }
        ctx.mark("recovers what it forgot");
        self.mode = Mode::Recovering(Recovery {
            nonce: ctx.random(),
            answers: vec![None; self.members],
            lost_since: None,
        });
        self.stopped = None;
        self.say_due = true;
        self.arm_repeat(ctx);
    }

    fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        ctx.halt(too_many_forgot(self.members, self.durability));
    }

    pub(super) fn ask_to_recover(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let Mode::Recovering(recovery) = &self.mode else {
            return;
        };
        if recovery
            .lost_since
            .is_some_and(|since| now.since(since) > LOST_MAX)
        {
            return self.halt_lost(ctx);
        }
        let message = Message::Recover {
            incarnation: self.incarnation,
            nonce: recovery.nonce,
            above: None,
        };
        ctx.multicast(self.others, Lane::Control, &message);
    }

    /// It knows all that it needs, and waits for a view in which it has said nothing yet.
    pub(super) fn ask_to_move_on(&self, ctx: &mut Context<'_, Self>) {
        let message = Message::Recover {
            incarnation: self.incarnation,
            nonce: 0,
            above: Some(self.view),
        };
        ctx.multicast(self.others, Lane::Control, &message);
    }

    pub(super) fn on_recover(
        &mut self,
        from: ReplicaId,
        incarnation: Incarnation,
        nonce: u64,
        above: Option<u64>,
        ctx: &mut Context<'_, Self>,
    ) {
        if incarnation < self.lives[from.index()] {
            return ctx.mark("ignored: question of an earlier life");
        }
        if let Some(above) = above {
            if above < self.view {
                self.send_exit(from, above, ctx);
            } else if above == self.view {
                self.time_out(ctx);
            }
            return;
        }
        let fall = match &self.mode {
            Mode::Asynchronous(fallback) => fallback.fall.values().copied().collect(),
            _ => Vec::new(),
        };
        let message = Message::RecoverOk {
            nonce,
            forgot: matches!(self.mode, Mode::Recovering(_)),
            view: self.view,
            high: self.high,
            fall,
            decided: self.tree.root().id,
            held: self.sadl.inventory(),
        };
        ctx.send(from, Lane::Control, &message);
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        nonce: u64,
        answer: Answer,
        decided: BlockId,
        ctx: &mut Context<'_, Self>,
    ) {
        let (now, faults) = (ctx.now(), self.members - self.quorum);
        let Mode::Recovering(recovery) = &mut self.mode else {
            return;
        };
        if nonce != recovery.nonce {
            return ctx.mark("ignored: answer to another question");
        }
        recovery.answers[from.index()] = Some(answer);
        let forgotten = recovery
            .answers
            .iter()
            .flatten()
            .filter(|answer| answer.forgot)
            .count();
        if 1 + forgotten > faults {
            recovery.lost_since.get_or_insert(now);
        } else {
            recovery.lost_since = None;
        }
        self.learn(decided, from, ctx);
    }

    /// Enough have answered, and what they hold is here. True when that has just come about.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let Mode::Recovering(recovery) = &self.mode else {
            return false;
        };
        let intact: BTreeMap<ReplicaId, Answer> = recovery
            .answers
            .iter()
            .enumerate()
            .filter_map(|(from, answer)| Some((ReplicaId(from as u16), answer.clone()?)))
            .filter(|(_, answer)| !answer.forgot)
            .collect();
        // Disseminated batches that this replica may have voted for.
        let intact: BTreeMap<ReplicaId, Answer> = intact
            .into_iter()
            .filter(|(from, answer)| self.have_batches(&answer.held, *from, ctx))
            .collect();
        if intact.len() < self.quorum {
            return false;
        }
        let mut best = (self.decided, self.decided_from);
        for (from, answer) in &intact {
            let coin = self.coin.flip(answer.view);
            let elected = answer
                .fall
                .iter()
                .filter(|id| id.owner == coin && id.view == answer.view);
            for id in elected.chain([&answer.high]) {
                if self.rank(*id) > self.rank(best.0) {
                    best = (*id, *from);
                }
            }
        }
        let (high, from) = best;
        if high.round > self.tree.root().id.round && !self.tree.connected(high) {
            self.want(high, from, ctx);
            return false;
        }
        if self.decided.round > self.tree.root().id.round {
            return false;
        }
        ctx.mark("recovery quorum");
        let views = intact.values().map(|answer| answer.view);
        self.view = views.fold(self.view, u64::max);
        self.mode = Mode::Synchronous;
        self.out = true;
        self.sadl.ask_no_more();
        self.high = if self.tree.connected(high) {
            high
        } else {
            self.tree.root().id
        };
        let high = self.high;
        self.write(high, Why::Held, None, ctx);
        self.promise(ctx);
        self.say_due = true;
        self.arm_repeat(ctx);
        true
    }
}
