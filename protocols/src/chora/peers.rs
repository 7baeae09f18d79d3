//! The state of each of the other replicas, as this one knows it.

use super::Fitness;
use core::time::Duration;
use quintet_replica::{Incarnation, ReplicaSet, Slot, Time, parts::Contact};

/// The time between two repetitions is doubled at most so often.
const REPEATS_MAX: u32 = 6;

/// How often a replica has been sent again what it lacks.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Repair {
    /// The slot that it acknowledged then.
    acked: Slot,
    tries: u32,
    not_before: Time,
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct PeerState {
    pub contact: Contact,
    incarnation: Incarnation,
    /// The slot that it acknowledged in this view.
    acked: Slot,
    committed: Slot,
    view: u64,
    fitness: Fitness,
    /// Its clients bring a part of the load.
    loaded: bool,
    /// The members that it reports to be slow.
    slow: ReplicaSet,
    repair: Repair,
}

impl Default for PeerState {
    fn default() -> Self {
        Self {
            contact: Contact::default(),
            incarnation: Incarnation(0),
            acked: Slot(0),
            committed: Slot(0),
            view: 0,
            fitness: Fitness::Fit,
            loaded: false,
            slow: ReplicaSet::EMPTY,
            repair: Repair::default(),
        }
    }
}

/// The part of a pulse in which a replica reports on itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub incarnation: Incarnation,
    pub view: u64,
    pub committed: Slot,
    pub fitness: Fitness,
    pub loaded: bool,
    pub slow: ReplicaSet,
}

impl PeerState {
    /// Messages sent before may be lost: they may be sent again at once.
    pub fn link_up(&mut self) {
        self.contact.link_up();
        self.repair = Repair::default();
    }

    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// It was started again. Its journal may know less than it reported before.
    pub const fn replace(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.acked = Slot(0);
        self.committed = Slot(0);
    }

    pub fn on_report(&mut self, report: Report) {
        if report.incarnation == self.incarnation {
            self.committed = self.committed.max(report.committed);
        }
        self.fitness = report.fitness;
        self.loaded = report.loaded;
        self.slow = report.slow;
        self.view = report.view;
    }

    pub const fn acked(&self) -> Slot {
        self.acked
    }

    pub fn acknowledges(&mut self, slot: Slot) {
        self.acked = self.acked.max(slot);
    }

    /// Another view begins: it has acknowledged nothing in it.
    pub const fn unacknowledge(&mut self) {
        self.acked = Slot(0);
    }

    pub const fn committed(&self) -> Slot {
        self.committed
    }

    pub const fn view(&self) -> u64 {
        self.view
    }

    pub const fn fitness(&self) -> Fitness {
        self.fitness
    }

    pub const fn is_fit(&self) -> bool {
        matches!(self.fitness, Fitness::Fit | Fitness::Restarted)
    }

    pub const fn is_loaded(&self) -> bool {
        self.loaded
    }

    pub const fn slow(&self) -> ReplicaSet {
        self.slow
    }

    /// Whether what it lacks may be sent again now, twice as long after each time.
    pub fn may_repeat(&mut self, now: Time) -> bool {
        if self.repair.acked != self.acked {
            self.repair = Repair {
                acked: self.acked,
                ..Repair::default()
            };
        }
        now >= self.repair.not_before
    }

    /// Its missing slots are sent again.
    pub fn repeated(&mut self, now: Time, pause: Duration) {
        let repair = &mut self.repair;
        let pause = pause * (1 << repair.tries.min(REPEATS_MAX));
        repair.tries += 1;
        repair.not_before = now + pause;
    }
}
