//! The own slots of a replica in its view, and the requests that they are for.

use super::ViewInit;
use alloc::collections::VecDeque;
use quintet_replica::{
    ReplicaId, Slot,
    parts::{RequestQueue, Timing},
};

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Proposer {
    pub queue: RequestQueue,
    /// The next own slot; none when this replica does not propose.
    next: Option<Slot>,
    /// The last own slot that was used in this view: none is used twice.
    used: Slot,
    /// The last slot of the view that is known to hold something.
    latest: Slot,
    /// Own slots with something in them that are not committed.
    outstanding: VecDeque<Slot>,
    /// How many own slots with something in them were committed since the start.
    committed: Timing<u64>,
    noop_wanted: bool,
    skip_demanded: Slot,
}

impl Proposer {
    /// Another view: what was proposed and cannot be appended any more is lost; its owners keep it.
    pub fn enter_view(&mut self, committed: Slot) {
        self.queue = RequestQueue::default();
        self.next = None;
        self.used = Slot(0);
        self.latest = committed;
        self.outstanding.clear();
        self.noop_wanted = false;
        self.skip_demanded = Slot(0);
    }

    pub const fn next(&self) -> Option<Slot> {
        self.next
    }

    pub const fn proposes(&self) -> bool {
        self.next.is_some()
    }

    /// The view is established: its own slots are those behind its beginning.
    pub fn begin(&mut self, init: &ViewInit, own: ReplicaId) {
        self.next = init.next_slot(own, init.base.max(self.used));
    }

    /// Nothing is proposed.
    pub const fn stop(&mut self) {
        self.next = None;
    }

    pub const fn latest(&self) -> Slot {
        self.latest
    }

    /// This slot is known to hold something.
    pub fn learn_latest(&mut self, slot: Slot) {
        self.latest = self.latest.max(slot);
    }

    /// Own slots are used up to this one; `next` is the one behind.
    pub const fn advance(&mut self, next: Option<Slot>) {
        self.next = next;
    }

    /// An own slot is used.
    pub fn use_slot(&mut self, slot: Slot) {
        assert!(slot > self.used, "a slot is proposed in once");
        self.used = slot;
    }

    /// Something is proposed in an own slot.
    pub fn propose(&mut self, slot: Slot) {
        self.learn_latest(slot);
        self.outstanding.push_back(slot);
        self.noop_wanted = false;
    }

    pub const fn outstanding(&self) -> &VecDeque<Slot> {
        &self.outstanding
    }

    /// All up to here is committed.
    pub fn on_committed(&mut self, upto: Slot) {
        while self.outstanding.front().is_some_and(|slot| *slot <= upto) {
            self.outstanding.pop_front();
            *self.committed += 1;
        }
    }

    /// A state covers all up to here.
    pub fn on_installed(&mut self, upto: Slot) {
        self.outstanding.retain(|own| *own > upto);
    }

    /// How many own slots with something in them were committed since the start.
    pub fn committed(&self) -> u64 {
        *self.committed
    }

    /// A read waits for the next own slot, with or without something in it.
    pub const fn want_noop(&mut self) {
        self.noop_wanted = true;
    }

    /// Whether there is something to propose.
    pub fn is_wanted(&self) -> bool {
        !self.queue.is_empty() || self.noop_wanted
    }

    /// Others ask for an own slot in which nothing was proposed.
    pub fn demand_skip(&mut self, slot: Slot) {
        self.skip_demanded = self.skip_demanded.max(slot);
    }

    pub const fn skip_demanded(&self) -> Slot {
        self.skip_demanded
    }
}
