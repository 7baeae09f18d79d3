//! State of each peer, whichever ballot is promised.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Incarnation, ReplicaId, ReplicaSet, Time,
    parts::{Incarnations, Member, Observed},
};

/// The replica that this one watches.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Watch {
    of: Option<ReplicaId>,
    since: Time,
}

/// See the module.
#[derive(Hash)]
pub(super) struct Peers {
    incarnations: Incarnations,
    received_at: Vec<Time>,
    /// When each last reported that it has lost its state.
    lost: Vec<Option<Time>>,
    /// Since when too many have.
    lost_since: Option<Time>,
    /// Those that cannot be reached from here.
    down: ReplicaSet,
    /// Those that are up and far slower than most, as the node finds.
    slow: ReplicaSet,
    watch: Watch,
}

impl Peers {
    pub fn new(me: &Member) -> Self {
        let mut incarnations = Incarnations::new(me.members());
        incarnations.observe(me.id(), me.incarnation());
        Self {
            incarnations,
            received_at: vec![Time(0); me.members()],
            lost: vec![None; me.members()],
            lost_since: None,
            down: ReplicaSet::EMPTY,
            slow: ReplicaSet::EMPTY,
            watch: Watch::default(),
        }
    }

    /// All of them count as there.
    pub fn start(&mut self, now: Time) {
        self.received_at.fill(now);
    }

    /// The same, for a new leader; what came before stays.
    pub fn restart(&mut self, now: Time) {
        for at in &mut self.received_at {
            *at = now.max(*at);
        }
    }

    pub const fn slow(&self) -> ReplicaSet {
        self.slow
    }

    pub const fn set_slow(&mut self, slow: ReplicaSet) {
        self.slow = slow;
    }

    pub const fn incarnations(&self) -> &Incarnations {
        &self.incarnations
    }

    pub fn observe(&mut self, id: ReplicaId, incarnation: Incarnation) -> Observed {
        self.incarnations.observe(id, incarnation)
    }

    /// A message of it has come.
    pub fn received(&mut self, id: ReplicaId, at: Time) {
        self.received_at[id.index()] = at;
    }

    /// How long nothing has come from it.
    pub fn silence(&self, id: ReplicaId, now: Time) -> Duration {
        now.since(self.received_at[id.index()])
    }

    pub const fn down(&self) -> ReplicaSet {
        self.down
    }

    pub const fn link_up(&mut self, id: ReplicaId) {
        self.down = self.down.without(id);
    }

    pub const fn link_down(&mut self, id: ReplicaId) {
        self.down.insert(id);
    }

    /// It reports whether it has lost its state.
    pub fn on_report(&mut self, id: ReplicaId, lost: bool, now: Time) {
        self.lost[id.index()] = lost.then_some(now);
    }

    pub fn has_lost_state(&self, id: ReplicaId) -> bool {
        self.lost[id.index()].is_some()
    }

    /// The same, by a report that is newer than this.
    pub fn has_recently_lost_state(&self, id: ReplicaId, now: Time, recent: Duration) -> bool {
        self.lost[id.index()].is_some_and(|at| now.since(at) < recent)
    }

    /// For how long too many have reported that they lost their state, as this replica did.
    pub fn too_many_lost(&mut self, me: &Member, now: Time, recent: Duration) -> Duration {
        let lately = |id: &ReplicaId| self.has_recently_lost_state(*id, now, recent);
        let lost = 1 + ReplicaSet::all(me.members()).iter().filter(lately).count();
        if !me.are_too_many(lost) {
            self.lost_since = None;
            return Duration::ZERO;
        }
        now.since(*self.lost_since.get_or_insert(now))
    }

    /// Watches this replica, if it does not already; gives how long it has been silent meanwhile.
    pub fn watch(&mut self, of: Option<ReplicaId>, now: Time) -> Option<(ReplicaId, Duration)> {
        if of != self.watch.of {
            self.watch = Watch { of, since: now };
        }
        let of = of?;
        let last = self.watch.since.max(self.received_at[of.index()]);
        Some((of, now.since(last)))
    }
}
