//! For comparisons: the leader checks quorums, and not who sent a batch (§8.4, No-QC-Offloading).
//!
//! ```text
//!   frontend ──Request──► all ──append──► followers ──Appended{hash}──► leader
//!   frontend ◄───────────────── results, once: a fast quorum, or committed ─┘
//! ```
//!
//! The rules are those of [`super::Frontend`]; only who applies them differs, and what it costs.

use super::{
    LogHash, Nezha, Part,
    dom::Name,
    quorum::fast_quorum,
    replica::{Phase, Place},
};
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{Bytes, Context, Lane, ReplicaId, Slot};

/// The most batches whose followers are counted; others wait for the commit point.
const CHECKED_MAX: usize = 65_536;
/// About how many bytes of batches are sent ahead of their places; others are fetched.
const AHEAD_BYTES: usize = 1 << 20;

/// What followers said of one batch.
#[derive(Debug, Default, Hash)]
struct Check {
    appended: Vec<(ReplicaId, LogHash)>,
    answered: bool,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Checks(BTreeMap<Name, Check>);

impl Nezha {
    pub(super) const fn leader_checks(&self) -> bool {
        self.config.leader_checks && self.members > 1
    }

    pub(super) fn on_appended(
        &mut self,
        from: ReplicaId,
        view: u64,
        name: Name,
        hash: LogHash,
        ctx: &mut Context<'_, Self>,
    ) {
        let ours = self.view;
        let slot = match self.known.get(&name) {
            Some(Place::Slot(slot)) if *slot <= self.commit => return,
            Some(Place::Slot(slot)) => Some(*slot),
            _ => None,
        };
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        let checks = &mut lead.checks.0;
        let full = checks.len() >= CHECKED_MAX && !checks.contains_key(&name);
        if view != ours || full {
            return;
        }
        let check = checks.entry(name).or_default();
        check.appended.retain(|(known, _)| *known != from);
        check.appended.push((from, hash));
        if let Some(slot) = slot {
            self.check_quorum(slot, ctx);
        }
    }

    /// Answers a batch that a fast quorum holds.
    pub(super) fn check_quorum(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if !self.leader_checks() {
            return;
        }
        let Some(entry) = self.log.get(slot) else {
            return;
        };
        let (name, own) = (entry.stamp.name, self.log_hash(entry));
        let written = entry.written.max(self.ready_after) <= self.persisted;
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        let Some(check) = lead.checks.0.get_mut(&name) else {
            return;
        };
        let synced = |id: &ReplicaId| lead.followers[id.index()].sync >= slot;
        let same = |(id, hash): &&(ReplicaId, LogHash)| (hash.known && *hash == own) || synced(id);
        let fast = 1 + check.appended.iter().filter(same).count();
        if !check.answered && written && fast >= fast_quorum(self.members) {
            check.answered = true;
            self.paths.0.0 += 1;
            self.answer(slot, ctx);
        }
    }

    /// Answers what is committed and was not answered before.
    pub(super) fn answer_committed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if !self.leader_checks() {
            return;
        }
        let Some(entry) = self.log.get(slot) else {
            return;
        };
        let name = entry.stamp.name;
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        let check = lead.checks.0.remove(&name).unwrap_or_default();
        if !check.answered {
            self.paths.0.1 += 1;
            self.answer(slot, ctx);
        }
    }

    fn answer(&self, slot: Slot, ctx: &mut Context<'_, Self>) {
        if let Some(entry) = self.log.get(slot) {
            let header = self.header_of(slot, entry, ctx);
            let after = entry.written.max(self.ready_after);
            let frontend = entry.stamp.name.frontend;
            ctx.replay(entry.batch.clone(), slot, frontend, &header, Some(after));
        }
    }

    /// Where senders do not multicast, the leader sends its followers what it placed.
    pub(super) fn pass_on(&self, first: Slot, count: u64, ctx: &mut Context<'_, Self>) {
        let mut bytes = 0;
        let entries = self.log.iter_from(first).take(count as usize);
        let batches: Vec<Bytes> = entries
            .map(|(_, entry)| entry.batch.clone())
            .take_while(|batch| {
                bytes += batch.len();
                bytes <= AHEAD_BYTES || bytes == batch.len()
            })
            .collect();
        if !batches.is_empty() {
            // On the lane of what names them, so that they come first.
            let message = self.between(Part::Bodies(batches));
            ctx.multicast(self.others, Lane::Control, &message);
        }
    }
}
