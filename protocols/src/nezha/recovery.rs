//! Coming back: from the disk, or without what was acknowledged.
//!
//! ```text
//!   Recover{nonce} ──► all                     the question names the new life
//!   ◄── RecoverOk{view} from a majority of others that take part in a view
//!   GetLog ──► leader of the highest view ◄── its log up to its end ──► a follower again
//! ```
//!
//! Why this is enough. Every majority that changes the view meets the recovery quorum in a
//! replica that knows the new life: it either answered before it voted, and then the new leader
//! learns from its vote that what the old life said counts no more, or it voted before it
//! answered, and then the answer names that view or none. The leader of the highest view learns
//! of the new life before it gives its log, so no fast reply of the old one can meet its own later
//! answers; and what it had committed with the old one's help stands in the log that it gives.

use super::{
    Nezha, Part, Promised, Record, Summary,
    conflict::SetHash,
    dom::Name,
    replica::{Phase, Place, name_of},
    view::Changing,
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use quintet_replica::{
    Bytes, Context, Recovered, ReplicaId, Slot, Time,
    parts::{SlotLog, too_many_forgot},
};

pub use super::message::Standing;

/// A replica that has forgotten.
#[derive(Hash)]
pub(super) struct Recovering {
    nonce: u64,
    answers: Vec<Option<(u64, Standing)>>,
    /// Since when too many others said that they have forgotten too.
    lost_since: Option<Time>,
}

impl Nezha {
    /// Takes back what the disk holds.
    pub(super) fn restore(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some(promise) = recovered.promise {
            self.view = promise.view;
            self.view_normal = promise.view_normal;
            for (own, known) in self.lives.iter_mut().zip(promise.lives) {
                *own = (*own).max(known);
            }
            self.hash_lives();
        }
        let mut hash = SetHash::default();
        if let Some((slot, summary)) = recovered.checkpoint {
            hash = summary.hash;
            self.log = SlotLog::new(slot.next());
            self.sync = slot;
            self.commit = slot;
            self.executed = slot;
            self.checkpointed = slot;
            self.marks = summary.marks.clone();
            self.marks_trimmed = summary.marks;
        }
        let mut bodies: BTreeMap<Name, Bytes> = BTreeMap::new();
        for (journal, record) in recovered.records {
            match record {
                Record::Entry(slot, placed) => {
                    let Some(name) = name_of(&placed.batch) else {
                        continue;
                    };
                    bodies.insert(name, placed.batch.clone());
                    let Some(mut entry) = self.entry_of(placed.deadline, placed.batch, ctx) else {
                        continue;
                    };
                    entry.journal = journal;
                    if slot > Slot(0) {
                        self.restore_slot(slot, entry, ctx);
                    } else if !self.known.contains_key(&name) {
                        self.known.insert(name, Place::Unsynced(entry.stamp));
                        self.unsynced.insert(entry.stamp, entry);
                    }
                }
                Record::Moved(slot, stamp) => {
                    let batch = bodies.get(&stamp.name).cloned();
                    let Some(batch) = batch else {
                        continue;
                    };
                    let before = match self.known.get(&stamp.name) {
                        Some(Place::Unsynced(before)) => self.unsynced.get(before),
                        _ => None,
                    };
                    let journal = before.map_or(journal, |before| before.journal);
                    if let Some(mut entry) = self.entry_of(stamp.deadline, batch, ctx) {
                        entry.journal = journal;
                        self.restore_slot(slot, entry, ctx);
                    }
                }
                Record::Begin {
                    view,
                    keep,
                    entries,
                } => {
                    self.view_normal = self.view_normal.max(view);
                    self.view = self.view.max(view);
                    let kept = keep.max(self.checkpointed);
                    if kept > self.sync {
                        continue;
                    }
                    self.unsynced.clear();
                    self.known.clear();
                    self.log.truncate(kept.next());
                    self.sync = kept;
                    for (slot, held) in self.log.iter_from(self.log.first()) {
                        self.known.insert(held.stamp.name, Place::Slot(slot));
                    }
                    for (slot, placed) in (keep.next().0..).map(Slot).zip(entries) {
                        if let Some(mut entry) = self.entry_of(placed.deadline, placed.batch, ctx) {
                            entry.journal = journal;
                            bodies.insert(entry.stamp.name, entry.batch.clone());
                            self.restore_slot(slot, entry, ctx);
                        }
                    }
                }
            }
        }
        self.sync_durable = self.sync;
        self.slow_waiting.clear();
        self.recount(hash);
    }

    fn restore_slot(
        &mut self,
        slot: Slot,
        entry: super::replica::Entry,
        ctx: &mut Context<'_, Self>,
    ) {
        if slot > self.sync.next() {
            return;
        }
        let (stamp, footprint) = (entry.stamp, entry.footprint.clone());
        if let Some(Place::Unsynced(before)) = self.known.get(&stamp.name) {
            self.unsynced.remove(before);
            self.known.remove(&stamp.name);
        }
        if slot < self.sync.next() {
            // The snapshot covers it.
            return;
        }
        self.put(slot, entry, ctx);
        let _ = self.take_barred(stamp, &footprint);
    }

    /// Makes watermarks and hashes again from the log and from the hashes of what lies before it.
    fn recount(&mut self, before: SetHash) {
        self.marks = self.marks_trimmed.clone();
        for (_, entry) in self.log.iter_from(self.log.first()) {
            self.marks.note(entry.stamp, &entry.footprint);
        }
        for (stamp, entry) in &self.unsynced {
            self.marks.note(*stamp, &entry.footprint);
        }
        self.hash_from(before, self.commit);
    }

    // ---------------------------------------------------------------- without its memory

    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if self.members - 1 < self.majority() {
            return self.halt_lost(ctx);
        }
        self.draw_patience(ctx);
        self.phase = Phase::Recovering(Recovering {
            nonce: ctx.random(),
            answers: vec![None; self.members],
            lost_since: None,
        });
        self.ask_to_recover(ctx);
    }

    fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        ctx.halt(too_many_forgot(self.members, self.durability));
    }

    /// By every tick.
    pub(super) fn ask_to_recover(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, patience) = (ctx.now(), self.patience);
        let Phase::Recovering(recovering) = &mut self.phase else {
            return;
        };
        if recovering
            .lost_since
            .is_some_and(|since| now.since(since) > patience * 4)
        {
            return self.halt_lost(ctx);
        }
        let nonce = recovering.nonce;
        self.tell_others(Part::Recover(nonce), ctx);
    }

    pub(super) fn on_recover(
        &mut self,
        from: ReplicaId,
        view: u64,
        nonce: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let standing = match &self.phase {
            Phase::Follower | Phase::Leader(_) => Standing::Normal,
            Phase::Changing(Changing { .. }) => Standing::Changing,
            Phase::Joining(joining) if joining.forgot => Standing::Forgot,
            Phase::Joining(_) => Standing::Changing,
            Phase::Recovering(_) => Standing::Forgot,
        };
        self.send(from, Part::RecoverOk(nonce, standing), ctx);
        let leads_next = super::quorum::leader_of(view, self.leader_first, self.members);
        if self.is_leader() && view > self.view {
            // It once promised a view that came to nothing, and may not go below it.
            ctx.mark("view raised for a recovering replica");
            let next = if leads_next == from { view + 1 } else { view };
            self.start_view_change(next, ctx);
        } else if self.leader() == from && matches!(self.phase, Phase::Follower) {
            // The leader itself has forgotten: it cannot lead before the next view.
            self.leader_down = true;
        }
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        view: u64,
        nonce: u64,
        standing: Standing,
        ctx: &mut Context<'_, Self>,
    ) {
        let (majority, members, own) = (self.majority(), self.members, self.view);
        let now = ctx.now();
        let Phase::Recovering(recovering) = &mut self.phase else {
            return;
        };
        if nonce != recovering.nonce {
            return ctx.mark("ignored: answer to another question");
        }
        recovering.answers[from.index()] = Some((view, standing));
        let answers = || recovering.answers.iter().flatten();
        let forgotten = 1 + answers()
            .filter(|(_, standing)| *standing == Standing::Forgot)
            .count();
        if forgotten > members - majority {
            recovering.lost_since.get_or_insert(now);
        } else {
            recovering.lost_since = None;
        }
        let normal = || answers().filter(|(_, standing)| *standing == Standing::Normal);
        let Some(best) = normal().map(|(view, _)| *view).max() else {
            return;
        };
        let leads = super::quorum::leader_of(best, self.leader_first, members);
        if normal().count() < majority || best < own || leads == self.id {
            return;
        }
        ctx.mark("recovery quorum");
        self.become_joining(best, true, ctx);
    }
}
