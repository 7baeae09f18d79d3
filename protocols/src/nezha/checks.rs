//! For comparisons: the leader checks quorums, and not who sent a batch (§8.4, No-QC-Offloading).
//!
//! ```text
//!   frontend ──Request──► all ──append──► followers ──Appended{hash}──► leader
//!   frontend ◄───────────────── results, once: a fast quorum, or committed ─┘
//! ```
//!
//! The rules are those of [`super::Frontend`]; only who applies them differs, and what it costs.

use super::{LogHash, Nezha, Part, dom::Name, entry::page, quorum::fast_quorum, replica::Phase};
use quintet_replica::{Context, Lane, ReplicaId, Slot};

impl Nezha {
    pub(super) const fn leader_checks(&self) -> bool {
        self.config.leader_checks && self.me.members() > 1
    }

    pub(super) fn on_appended(
        &mut self,
        from: ReplicaId,
        view: u64,
        name: Name,
        hash: LogHash,
        ctx: &mut Context<'_, Self>,
    ) {
        let slot = self.log.slot_of(name);
        if slot.is_some_and(|slot| slot <= self.log.commit()) {
            return;
        }
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        if view == self.view.number()
            && lead.appended.add(from, name, hash)
            && let Some(slot) = slot
        {
            self.check_quorum(slot, ctx);
        }
    }

    /// Answers a batch that a fast quorum holds.
    pub(super) fn check_quorum(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if !self.leader_checks() {
            return;
        }
        let (Phase::Leader(lead), Some(entry)) = (&mut self.phase, self.log.get(slot)) else {
            return;
        };
        let name = entry.stamp.name;
        let own = LogHash::of(entry.hash, self.incarnations.hash());
        let written = entry.written.max(self.view.ready_after()) <= self.persisted;
        let synced = |id| lead.has_synced(id, slot);
        let holders = lead.appended.holders(name, own, synced);
        if holders.is_some_and(|holders| written && holders + 1 >= fast_quorum(self.me.members())) {
            lead.appended.answered(name);
            self.paths.0.0 += 1;
            self.answer_slot(slot, ctx);
        }
    }

    /// Answers what is committed and was not answered before.
    pub(super) fn answer_committed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if !self.leader_checks() {
            return;
        }
        let (Phase::Leader(lead), Some(entry)) = (&mut self.phase, self.log.get(slot)) else {
            return;
        };
        if !lead.appended.committed(entry.stamp.name) {
            self.paths.0.1 += 1;
            self.answer_slot(slot, ctx);
        }
    }

    fn answer_slot(&self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if let Some(entry) = self.log.get(slot) {
            self.answer(slot, entry, entry.batch.clone(), ctx);
        }
    }

    /// Where senders do not multicast, the leader sends its followers what it placed; what is more
    /// than a page is fetched.
    pub(super) fn forward(&self, first: Slot, count: u64, ctx: &mut Context<'_, Self>) {
        let entries = self.log.iter_from(first).take(count as usize);
        let (batches, _) = page(entries.map(|(_, entry)| entry.batch.clone()), |batch| batch);
        if !batches.is_empty() {
            // On the lane of what names them, so that they come first.
            let message = self.between(Part::Bodies(batches));
            ctx.multicast(self.me.others(), Lane::Control, &message);
        }
    }
}
