//! When this replica becomes a candidate, and which replicas may come back into the view.

use quintet_replica::{
    ReplicaId, ReplicaSet, Time,
    parts::{Admission, Waiting},
};

/// See the module.
#[derive(Hash)]
pub(super) struct Election {
    stand_at: Option<Time>,
    /// The view is to change, although nothing that this replica sees asks for it.
    anyway: Option<&'static str>,
    rejoin_after: Time,
    /// The members of the last view that began here, and when others may come back.
    live_before: ReplicaSet,
    admission: Admission,
    /// When the commit point last moved.
    progress_at: Time,
    leaving_until: Time,
}

impl Election {
    pub fn new(members: usize) -> Self {
        Self {
            stand_at: None,
            anyway: None,
            rejoin_after: Time(0),
            live_before: ReplicaSet::all(members),
            admission: Admission::new(members),
            progress_at: Time(0),
            leaving_until: Time(0),
        }
    }

    pub const fn is_set(&self) -> bool {
        self.stand_at.is_some()
    }

    /// This replica becomes a candidate then, unless the reason ends before.
    pub const fn set(&mut self, at: Time) {
        self.stand_at = Some(at);
    }

    /// There is no reason any more. True when it was to become a candidate.
    pub const fn unset(&mut self) -> bool {
        self.stand_at.take().is_some()
    }

    /// A view was entered: what led to it is over.
    pub const fn reset(&mut self) {
        self.stand_at = None;
        self.anyway = None;
    }

    pub const fn anyway(&self) -> Option<&'static str> {
        self.anyway
    }

    pub const fn force(&mut self, reason: &'static str) {
        self.anyway = Some(reason);
    }

    pub const fn take_forced(&mut self) -> Option<&'static str> {
        self.anyway.take()
    }

    /// A view is established with these members.
    pub fn on_established(
        &mut self,
        own: ReplicaId,
        live: ReplicaSet,
        now: Time,
        rejoin_after: Time,
    ) {
        self.rejoin_after = rejoin_after;
        let counts = |live: ReplicaSet| move |id| live.contains(id).then_some(0);
        self.admission
            .note(own, now, counts(self.live_before), counts(live));
        self.live_before = live;
    }

    /// Whether members that were left out may come back by now.
    pub fn may_rejoin(&self, now: Time) -> bool {
        now >= self.rejoin_after
    }

    pub const fn live_before(&self) -> ReplicaSet {
        self.live_before
    }

    /// A member was started again.
    pub fn restarted(&mut self, id: ReplicaId, now: Time) {
        self.admission.restarted(id, now);
    }

    /// Whether a replica may not come back yet.
    pub fn pauses(&self, id: ReplicaId, now: Time, quorum: (usize, usize)) -> bool {
        self.admission.pauses(id, now, quorum, Waiting::Votes)
    }

    /// The commit point has moved.
    pub const fn progressed(&mut self, at: Time) {
        self.progress_at = at;
    }

    pub const fn progress_at(&self) -> Time {
        self.progress_at
    }

    /// The replica is about to stop.
    pub const fn leave(&mut self, until: Time) {
        self.leaving_until = until;
    }

    pub fn is_leaving(&self, now: Time) -> bool {
        now < self.leaving_until
    }
}
