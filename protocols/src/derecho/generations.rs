//! Processes that have the content of a shard in memory from before it was begun again.
//!
//! ```text
//!   old process, each beat ─ Keep{number, shards} ─► all: I would end, and with me these copies
//!   holder ───── Kept{number, shards} ─► old process: I hold them, and stay as long as you ask this
//!   the answers of one beat name all of them ──► it starts again
//! ```
//!
//! It cannot take the shard's present log, because log and state in its memory are others. But it may
//! hold the last copies of other shards.
//!
//! # Safety
//!
//! No process ends with the last copy of a shard because it relies on another one that ends, too:
//!
//! 1. It relies on answers of its present view, to the question that it asks at present, which came
//!    since its last beat. Where a round trip takes longer than a beat, such an answer may be to an
//!    earlier beat: its sender held the copy as long ago as a message is on its way.
//! 2. In a view, a replica that has promised to keep copies does not end before it hears that the
//!    other one asks something else. That one no longer uses what was answered before.
//! 3. So a replica that another one relies on ends in a later view only, and relies on one that ends in
//!    a still later view, if at all. The process that ends in the latest view relies on one that stays.
//! 4. It does not end while the view does: its row may be what the base of a copy was taken from.
//!
//! A holder that crashes between its answer and the end of the other process is a failure at the same
//! time as that end, of which a shard in memory with two copies survives one.
//!
//! An end is also one of a member, and a view survives those of less than half only:
//!
//! 1. None ends while a member is suspected, or the view ends.
//! 2. Each member that knows of an old process tells what it has, even if that is nothing. An old
//!    process ends only when all lower members have told so in this view, and none of them is an old
//!    one that could end. So they end one after the other, each in a view of its own, and a view of
//!    three or more continues. (Two may end in one view when the lower one has stayed for a copy, and
//!    another member comes to hold that at the same time.)
//!
//! # Progress
//!
//! Of two that ask, the lower one is answered, and the other one withdraws its question. One asks only
//! while others seem to hold all that it has. So the lowest that asks has its answers after a round
//! trip, or a holder is suspected and the view ends. One that must stay asks nothing, and says so: it delays no
//! other; shards whose log it lacks get other members (`reshape.rs`).

use super::{
    Derecho,
    message::{Holding, Member, Message},
    shards::{Bug, both},
};
use alloc::{format, vec, vec::Vec};
use quintet_replica::{Context, Durability, Lane, ReplicaId};

/// The question of another replica: its view and number, whether it asks for something, and whether it
/// relies on this one's answer.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Asked {
    view: u64,
    number: u64,
    asks: bool,
    relies: bool,
}

/// The questions of this replica and of others.
#[derive(Debug, Hash)]
pub(super) struct Keeping {
    number: u64,
    /// The shards whose copies would end with this process; none while it does not ask.
    shards: Vec<u32>,
    /// Those of them that no replica has said to keep since the last beat.
    lacks: Vec<u32>,
    asked: Vec<Asked>,
}

impl Keeping {
    pub fn new(members: usize) -> Self {
        Self {
            number: 0,
            shards: Vec::new(),
            lacks: Vec::new(),
            asked: vec![Asked::default(); members],
        }
    }

    /// Asks for these, or withdraws what was asked. Gives the number of the question.
    fn ask(&mut self, shards: &[u32]) -> u64 {
        if self.shards != shards {
            self.number += 1;
            self.shards = shards.to_vec();
        }
        self.lacks = shards.to_vec();
        self.number
    }

    const fn asks(&self) -> bool {
        !self.shards.is_empty()
    }

    /// Notes the question of another replica. False for one of before.
    fn note(&mut self, from: ReplicaId, of: Asked) -> bool {
        let asked = &mut self.asked[from.index()];
        if (of.view, of.number) < (asked.view, asked.number) {
            return false;
        }
        *asked = of;
        true
    }

    /// Whether another replica has said in this view that it asks for nothing.
    fn is_silent(&self, from: ReplicaId, view: u64) -> bool {
        let asked = &self.asked[from.index()];
        asked.view == view && !asked.asks
    }

    fn is_relied_on(&self, view: u64) -> bool {
        self.asked.iter().any(|of| of.view == view && of.relies)
    }

    /// Another replica keeps these. True when all that were asked for are kept.
    fn kept(&mut self, number: u64, shards: &[u32]) -> bool {
        if number != self.number || !self.asks() {
            return false;
        }
        self.lacks.retain(|shard| !shards.contains(shard));
        self.lacks.is_empty()
    }
}

impl Derecho {
    /// The shards in memory whose content is here. It ends with the process.
    fn copies(&self) -> Vec<u32> {
        let in_memory = |shard: &usize| self.shards[*shard].durability == Durability::Memory;
        let copies = (0..self.shards.len()).filter(in_memory);
        let copies = copies.filter(|shard| self.holds_content(*shard));
        copies.map(|shard| shard as u32).collect()
    }

    /// Whether another replica seems to hold a shard.
    fn is_held_elsewhere(&self, shard: usize) -> bool {
        let (view, live) = (self.membership.view(), self.membership.live_peers());
        if view.is_active(shard) {
            let members = both(view.shards[shard].members, live);
            return members.iter().any(|id| self.shows_log(id, shard));
        }
        let told = |id| self.told(id, shard);
        let content = |told: Holding| told.complete && !told.begun_again;
        live.iter().filter_map(told).any(content)
    }

    /// Whether the view ends.
    fn is_ending(&self) -> bool {
        let (live, all) = (self.membership.live(), self.membership.set());
        self.membership.wedging() || live != all
    }

    /// Whether this process may ask to end with these copies.
    fn may_ask(&self, copies: &[u32]) -> bool {
        let relied_on = self.keeping.is_relied_on(self.membership.number());
        let mut copies = copies.iter().map(|shard| *shard as usize);
        !relied_on && copies.all(|shard| self.is_held_elsewhere(shard))
    }

    /// Whether another member has the content of a shard in memory, or a word on one that is begun
    /// again.
    fn holds_something(&self, id: ReplicaId) -> bool {
        let view = self.membership.view();
        let holds = |shard: usize| {
            if view.is_active(shard) {
                return view.shards[shard].members.contains(id) && self.shows_log(id, shard);
            }
            self.told(id, shard).is_some_and(|told| told.complete)
        };
        let in_memory = |shard: &usize| self.shards[*shard].durability == Durability::Memory;
        (0..self.shards.len()).filter(in_memory).any(holds)
    }

    /// Whether a lower member could end at the same time, as far as is known: it has an old log, and
    /// asks whether it may end, or has nothing to ask for.
    fn waits_for_lower(&self) -> bool {
        let (view, own) = (self.membership.view(), self.me.id());
        let mut lower = view.members.iter().filter(|member| member.id < own);
        lower.any(|member| {
            let stays =
                self.holds_something(member.id) && self.keeping.is_silent(member.id, view.number);
            let old = self.has_an_old_log(*member);
            !self.holdings.is_heard(member.id, view.number) || old && !stays
        })
    }

    /// Whether some other member has an old log: then all tell what they have.
    pub(super) fn knows_old(&self) -> bool {
        let members = self.membership.view().members.iter();
        let mut others = members.filter(|member| member.id != self.me.id());
        others.any(|member| self.has_an_old_log(*member))
    }

    /// A beat of a member at work. A process with an old log starts again as soon as nothing else
    /// ends with it.
    pub(super) fn give_up_old(&mut self, ctx: &mut Context<'_, Self>) {
        if self.old_shard().is_none() {
            return;
        }
        // A shard that is begun again at the same time needs the word of this process.
        let begins = |shard: usize| {
            self.membership.is_held(shard) && self.shards[shard].catch_up.begun_again
        };
        let begins = (0..self.shards.len()).any(begins);
        let mut copies = self.copies();
        let waits = begins || self.is_ending() || self.waits_for_lower();
        if !waits && (copies.is_empty() || self.injected(Bug::OldEndsUnasked)) {
            return self.start_again(ctx);
        }
        if waits || !self.may_ask(&copies) {
            ctx.mark("an earlier generation is kept for now");
            copies.clear();
        }
        let number = self.keeping.ask(&copies);
        let message = Message::Keep {
            view: self.membership.number(),
            number,
            shards: copies,
        };
        let to = self.membership.live_peers();
        ctx.in_group(self.stream.group, |ctx| {
            ctx.multicast(to, Lane::Control, &message);
        });
    }

    pub(super) fn on_keep(
        &mut self,
        from: ReplicaId,
        (view, number): (u64, u64),
        mut shards: Vec<u32>,
        ctx: &mut Context<'_, Self>,
    ) {
        let active = self.membership.is_active() && view == self.membership.number();
        if !active || !self.membership.live().contains(from) {
            return;
        }
        let asks = !shards.is_empty();
        let keeps = |shard: &u32| {
            let shard = *shard as usize;
            let stream = self.shards.get(shard);
            stream.is_some_and(|stream| stream.holds && self.holds_content(shard))
        };
        shards.retain(keeps);
        // The lower one of two that would end does so first.
        let refuses = self.keeping.asks() && self.me.id() < from;
        let relies = !shards.is_empty() && !refuses;
        let asked = Asked {
            view,
            number,
            asks,
            relies,
        };
        if !self.keeping.note(from, asked) || !relies {
            return;
        }
        self.keeping.ask(&[]);
        let message = Message::Kept {
            view,
            number,
            shards,
        };
        ctx.send(from, Lane::Control, &message);
    }

    pub(super) fn on_kept(
        &mut self,
        (view, number): (u64, u64),
        shards: &[u32],
        ctx: &mut Context<'_, Self>,
    ) {
        let active = self.membership.is_active() && view == self.membership.number();
        if !active || self.is_ending() || !self.keeping.kept(number, shards) {
            return;
        }
        if self.waits_for_lower() {
            return;
        }
        let asked = |shard: &u32| self.keeping.shards.contains(shard);
        if self.copies().iter().all(asked) {
            self.start_again(ctx);
        }
    }

    fn start_again(&self, ctx: &mut Context<'_, Self>) {
        let Some(shard) = self.old_shard() else {
            return;
        };
        ctx.start_again(format!(
            "group {} was begun again (--bootstrap-again), and this process holds what was in it \
             before",
            self.shards[shard].group
        ));
    }

    /// Whether a process has a shard's log from before the shard was, or is now, begun again. It
    /// cannot become a member of it.
    pub(super) fn has_old_log(&self, of: Member, shard: usize) -> bool {
        let old = match of.id == self.me.id() {
            true => self.shards[shard].catch_up.old.is_some(),
            false => self.holdings.is_old(of, shard),
        };
        old || self.has_useless_part(of.id, shard)
    }

    fn has_an_old_log(&self, of: Member) -> bool {
        (0..self.shards.len()).any(|shard| self.has_old_log(of, shard))
    }

    /// The shard whose log here is such a one.
    fn old_shard(&self) -> Option<usize> {
        let own = self.membership.member();
        (0..self.shards.len()).find(|shard| self.has_old_log(own, *shard))
    }
}
