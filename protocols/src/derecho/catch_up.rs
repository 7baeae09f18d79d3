//! The part of the log that a replica outside the view fetches, and from which member.

use alloc::collections::VecDeque;
use quintet_replica::{Context, Protocol, ReplicaId, ReplicaSet, Slot};

/// How many beats ago. A replica that catches up tells at a beat what it had at the beat before, and
/// is heard at another one's beat; the rest is for its disk.
const BEATS: usize = 4;

/// How far a log was delivered a few beats ago. A replica that fetches it cannot show more, however
/// little it lacks: that the log grows meanwhile keeps it out of no view.
#[derive(Debug, Default, Hash)]
pub(super) struct Lately(VecDeque<Slot>);

impl Lately {
    /// A beat, with what is delivered by now, if that is known.
    pub fn on_beat(&mut self, sure: Option<Slot>) {
        let Some(sure) = sure else {
            return self.0.clear();
        };
        if self.0.len() == BEATS {
            self.0.pop_front();
        }
        self.0.push_back(sure);
    }

    /// The same some beats ago, of a log of which all up to `sure` is delivered now.
    pub fn before(&self, sure: Slot) -> Slot {
        let first = self.0.front().filter(|_| self.0.len() == BEATS);
        first.map_or(sure, |before| sure.min(*before))
    }
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct CatchUp {
    donor: Option<ReplicaId>,
    /// The end of the log at the last beat.
    end: Slot,
    /// The slot that a state must cover which was asked for.
    fetching: Option<Slot>,
    /// This replica holds a shard's log because its operator begins it again with nothing.
    pub begun_again: bool,
    /// The log on the disk was lost, and nothing shows yet that others have it, or this replica again.
    pub is_lost: bool,
    /// Something of the log, or a state, was requested from others since the start.
    pub has_asked: bool,
    /// The generation of the shard that the log here is of, where that generation counts no more.
    pub old: Option<u64>,
    /// How far the members were, for others that fetch the same log.
    pub lately: Lately,
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
            self.has_asked = true;
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
