//! The part of the log that a replica outside the view fetches, and from which member.

use quintet_replica::{Context, Protocol, ReplicaId, ReplicaSet, Slot};

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct CatchUp {
    donor: Option<ReplicaId>,
    /// The end of the log at the last beat.
    end: Slot,
    /// The slot that a state must cover which was asked for.
    fetching: Option<Slot>,
}

impl CatchUp {
    pub const fn donor(&self) -> Option<ReplicaId> {
        self.donor
    }

    pub const fn set_donor(&mut self, donor: Option<ReplicaId>) {
        self.donor = donor;
    }

    /// A beat: without progress since the last one another member is asked.
    pub fn on_beat(&mut self, end: Slot, own: ReplicaId, members: usize, view: ReplicaSet) {
        if end <= self.end && self.donor.is_some() {
            self.next_donor(own, members, view);
        }
        self.end = end;
    }

    pub fn next_donor(&mut self, own: ReplicaId, members: usize, view: ReplicaSet) {
        let after = self.donor.map_or(0, |donor| donor.index() + 1);
        let mut all = (after..members).chain(0..after);
        let fits = |id: &ReplicaId| *id != own && view.contains(*id);
        self.donor = all.find_map(|id| Some(ReplicaId(id as u16)).filter(fits));
    }

    pub const fn is_fetching(&self) -> bool {
        self.fetching.is_some()
    }

    /// Asks for a state that covers `at_least`, unless one that covers as much is waited for.
    pub fn fetch<P: Protocol>(
        &mut self,
        at_least: Slot,
        from: ReplicaSet,
        ctx: &mut Context<'_, P>,
    ) {
        if self.fetching.is_none_or(|fetching| fetching < at_least) {
            self.fetching = Some(at_least);
            ctx.fetch_state(from, at_least);
        }
    }

    /// Everything up to here came, as a state or by the log.
    pub fn reached(&mut self, slot: Slot) {
        self.fetching.take_if(|at_least| *at_least <= slot);
    }

    /// A view begins.
    pub fn begin(&mut self) {
        self.fetching = None;
        self.donor = None;
    }
}
