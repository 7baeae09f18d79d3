//! Slots that a follower was told of its leader's log and has not taken over yet.

use super::dom::{Name, Stamp};
use alloc::{collections::BTreeMap, collections::BTreeSet, vec::Vec};
use quintet_replica::{ReplicaId, Slot};

/// How far beyond its sync-point a follower remembers what the leader placed.
const PENDING_MAX: u64 = 65_536;
/// The most batches that are asked for at once.
pub(super) const NAMES_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Placements {
    /// Placed by the leader behind a gap.
    pending: BTreeMap<Slot, Stamp>,
    /// The start of the gap before it that was asked for last.
    gap_asked: Slot,
    /// The leader is to be told how far its log is here.
    status_due: bool,
    round: u64,
    commit: Slot,
    fetch_armed: bool,
    /// How many members were asked, without success, for batches that did not come.
    fetch_from: u16,
}

impl Placements {
    /// The leader told this of its log, which agrees with the one here up to `sync`.
    pub fn told(
        &mut self,
        (first, stamps): (Slot, Vec<Stamp>),
        commit: Slot,
        round: u64,
        sync: Slot,
    ) {
        for (slot, stamp) in (first.0..).map(Slot).zip(stamps) {
            if slot > sync && slot.0 <= sync.0 + PENDING_MAX {
                self.pending.insert(slot, stamp);
            }
        }
        self.round = self.round.max(round);
        self.commit = self.commit.max(commit);
        self.status_due = true;
    }

    /// The batch that the leader placed in this slot.
    pub fn get(&self, slot: Slot) -> Option<Stamp> {
        self.pending.get(&slot).copied()
    }

    pub fn remove(&mut self, slot: Slot) {
        self.pending.remove(&slot);
    }

    pub fn drop_upto(&mut self, sync: Slot) {
        self.pending.retain(|slot, _| *slot > sync);
    }

    /// How far the leader's log is committed.
    pub const fn commit(&self) -> Slot {
        self.commit
    }

    /// The newest round that was heard.
    pub const fn round(&self) -> u64 {
        self.round
    }

    pub const fn want_status(&mut self) {
        self.status_due = true;
    }

    pub const fn take_status(&mut self) -> bool {
        core::mem::replace(&mut self.status_due, false)
    }

    /// The slots that are missing before one that came, unless they were asked for before.
    pub fn gap(&mut self, next: Slot) -> Option<(Slot, Slot)> {
        let first = *self.pending.keys().next()?;
        if first <= next || self.gap_asked == next {
            return None;
        }
        self.gap_asked = next;
        Some((next, first.previous()))
    }

    /// The batches that the leader placed.
    pub fn names(&self) -> BTreeSet<Name> {
        self.pending.values().map(|stamp| stamp.name).collect()
    }

    /// Those of them that are not here, as many as are asked for at once.
    pub fn missing(&self, is_here: impl Fn(&Name) -> bool) -> Vec<Name> {
        let names = self.pending.values().map(|stamp| stamp.name);
        names
            .filter(|name| !is_here(name))
            .take(NAMES_MAX)
            .collect()
    }

    /// Whether the timer is to be set with which batches are asked for.
    pub const fn arm_fetch(&mut self) -> bool {
        !core::mem::replace(&mut self.fetch_armed, true)
    }

    pub const fn fetch_fired(&mut self) {
        self.fetch_armed = false;
    }

    /// The member to ask next. The leader has all of them; the others are asked in turn when it is
    /// silent.
    pub const fn source(&mut self, leader: ReplicaId, members: usize) -> ReplicaId {
        let turn = self.fetch_from % members as u16;
        self.fetch_from = self.fetch_from.wrapping_add(1);
        ReplicaId((leader.0 + turn) % members as u16)
    }

    /// Something that was asked for came.
    pub const fn fetched(&mut self) {
        self.fetch_from = 0;
    }

    /// The view is left: only what is committed still counts of what its leader told.
    pub fn leave(&mut self, commit: Slot) {
        self.pending.clear();
        self.status_due = false;
        self.round = 0;
        self.commit = commit;
    }

    /// Another view begins.
    pub fn begin(&mut self) {
        self.pending.clear();
        self.gap_asked = Slot(0);
    }
}
