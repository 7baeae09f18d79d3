//! The members that bring the load, and those that propose for that reason (§6.7.2).
//!
//! ```text
//!   executed here: of whose clients ──(every heartbeat)──► own part of all ──► pulse: loaded, or not
//!   everybody's pulses ──► who is loaded ──(the same for some heartbeats)──► a view with these proposers
//! ```
//!
//! A proposer that has nothing to propose only costs: its slots are skipped, and everybody waits
//! until they are. A replica that does not propose costs its clients the way to one that does. So
//! those propose who bring a part of the load: where all of it comes from one replica that is a
//! single leader, whose commands take one round trip to the nearest majority.
//!
//! Only the speed depends on any of this: any proposers make a correct view.

use quintet_replica::ReplicaSet;

/// An assessment rests on at least that many batches: without load nothing changes.
const BATCHES_MIN: u64 = 16;
/// With n members, a replica with a part of `1 / (BEGINS · n)` of all batches, twice in a row,
/// begins to count as loaded, and with less than `1 / (ENDS · n)`, twice in a row, it no longer
/// does. An even load is `1 / n` each.
const BEGINS: u64 = 4;
const ENDS: u64 = 16;
/// For that many heartbeats in a row the same others must have been the better proposers: a view
/// change costs everybody's commands a few round trips.
const TIMEOUT: u32 = 5;

/// See the module.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Demand {
    /// Batches executed since the last assessment: all, and those of the own clients.
    all: u64,
    own: u64,
    /// The result that the last assessment by itself would give; none between the two bounds.
    leaning: Option<bool>,
    /// Whether this replica brings a part of the load.
    loaded: bool,
    /// The wanted proposers, and for how many heartbeats in a row they were wanted.
    wanted: ReplicaSet,
    since: u32,
}

impl Demand {
    /// Whether a part of the load comes from here.
    pub const fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// A batch was executed, perhaps one of the own clients.
    pub fn executed(&mut self, own: bool) {
        self.all += 1;
        self.own += u64::from(own);
    }

    /// A heartbeat: is this one of `members` that bring a part of the load?
    pub fn assess(&mut self, members: usize) {
        if self.all < BATCHES_MIN {
            return;
        }
        let members = members as u64;
        let leaning = if self.own * BEGINS * members >= self.all {
            Some(true)
        } else if self.own * ENDS * members < self.all {
            Some(false)
        } else {
            None
        };
        if leaning == self.leaning {
            self.loaded = leaning.unwrap_or(self.loaded);
        }
        self.leaning = leaning;
        (self.all, self.own) = (0, 0);
    }

    /// A heartbeat: these are live and loaded, and these propose now.
    pub fn compare(&mut self, loaded: ReplicaSet, now: ReplicaSet) {
        if loaded.is_empty() || loaded == now {
            self.since = 0;
        } else if loaded == self.wanted {
            self.since = self.since.saturating_add(1);
        } else {
            self.since = 1;
        }
        self.wanted = loaded;
    }

    /// Whether others should propose, and have been the better ones for long enough.
    pub const fn is_due(&self) -> bool {
        self.since >= TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_share_counts_until_it_falls_far_below_start() {
        let mut demand = Demand::default();
        let mut window = |own: u64, all: u64| {
            (0..all).for_each(|batch| demand.executed(batch < own));
            demand.assess(3);
            demand.loaded
        };
        assert!(!window(15, 15), "too few to tell");
        assert!(!window(1, 1), "with those before enough, but once");
        assert!(!window(0, 15), "too few again");
        assert!(window(16, 16), "twice in a row");
        assert!(
            window(3, 100) && window(3, 100),
            "less than began, more than ends"
        );
        assert!(window(2, 100), "once");
        assert!(window(3, 100) && window(2, 100), "and not in a row");
        assert!(!window(2, 100));
        assert!(
            !window(8, 100) && !window(8, 100),
            "more than ends, less than begins"
        );
        assert!(!window(9, 100));
        assert!(window(9, 100));
    }

    #[test]
    fn others_must_be_better_proposers_for_some_heartbeats_in_row() {
        let [one, two, all] = [0b1, 0b11, 0b111].map(ReplicaSet);
        let mut demand = Demand::default();
        let mut due = |loaded: ReplicaSet, times: u32| {
            (0..times).for_each(|_| demand.compare(loaded, all));
            demand.is_due()
        };
        assert!(!due(ReplicaSet::EMPTY, 100), "no member brings load");
        assert!(!due(one, TIMEOUT - 1));
        assert!(!due(two, TIMEOUT - 1), "others than before");
        assert!(!due(all, 1), "as it is");
        assert!(!due(two, TIMEOUT - 1));
        assert!(due(two, 1));
    }
}
