//! Whom everybody waits for, and who therefore had better not propose.
//!
//! ```text
//!   a proposal of C comes, one of B before it is missing ──► how much later does that come?
//!     └──(every heartbeat)──► pulse: B is slow ──(half of the others say so)──► a view in which
//!                                               others propose, and B's clients' requests, too
//! ```
//!
//! Slots are executed in their order, so one proposer that is slow, and not dead, makes everybody's
//! commands as slow as its own. It is found by what it costs: how much later its proposals come
//! than those of others that were meant to come after them. Own proposals do not count, as they
//! come to oneself without any way to go. A replica that proposes nothing costs the others nothing;
//! its own clients' requests take the way to a proposer and back.
//!
//! A replica that was found slow may propose again after a while, each time after a longer one. As
//! with the load, only the speed depends on any of this.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Slot, Time};

/// An assessment rests on at least that many waits.
const SAMPLES_MIN: u32 = 16;
/// A proposer with a shorter delay than this is not slow, whatever the others are.
const LATER_MIN: Duration = Duration::from_millis(5);
/// Nor is who is waited for less than that many times as long as the median of the others.
const TIMES: u32 = 8;
/// A proposer that was found slow proposes again after this, the next time after twice as long, and
/// so on.
const AGAIN_FIRST: Duration = Duration::from_secs(10);
const AGAIN_MAX: Duration = Duration::from_secs(320);

/// The measurements of one member.
#[derive(Clone, Debug, Hash)]
struct Waits {
    /// How much later its proposals come, mostly; an average in which the newest counts an eighth.
    usual: Duration,
    samples: u32,
    /// It is called slow until then.
    until: Option<Time>,
    again: Duration,
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Drag {
    members: Vec<Waits>,
    /// One of the slots that came while others before them were missing: of which view, and when.
    waiting: Option<(u64, Slot, Time)>,
    /// The slow members, as seen from here.
    slow: ReplicaSet,
}

impl Drag {
    pub fn new(members: usize) -> Self {
        let waits = Waits {
            usual: Duration::ZERO,
            samples: 0,
            until: None,
            again: AGAIN_FIRST,
        };
        Self {
            members: vec![waits; members],
            waiting: None,
            slow: ReplicaSet::EMPTY,
        }
    }

    /// The proposers that make the others wait, as this replica sees it.
    pub const fn slow(&self) -> ReplicaSet {
        self.slow
    }

    /// A proposal for `slot` is here, in this view, and the log ends before `end`. Gives since when
    /// an earlier slot has waited for it.
    pub fn on_proposal(&mut self, view: u64, slot: Slot, end: Slot, now: Time) -> Option<Time> {
        let mut waited = None;
        if let Some((of, waiting, since)) = self.waiting {
            if of == view && end <= waiting {
                return None;
            }
            self.waiting = None;
            waited = (of == view && slot < waiting).then_some(since);
        }
        if slot > end {
            self.waiting = Some((view, slot, now));
        }
        waited
    }

    pub fn waited(&mut self, id: ReplicaId, wait: Duration) {
        let waits = &mut self.members[id.index()];
        waits.usual = match waits.samples {
            0 => wait,
            _ => (waits.usual * 7 + wait) / 8,
        };
        waits.samples = waits.samples.saturating_add(1);
    }

    /// A heartbeat: who of these proposers, this replica not among them, is slow?
    pub fn assess(&mut self, proposers: ReplicaSet, now: Time) {
        for id in proposers.iter() {
            let waits = &self.members[id.index()];
            if waits.samples < SAMPLES_MIN || waits.usual < LATER_MIN {
                continue;
            }
            let others = proposers.without(id).iter();
            let mut usual: Vec<Duration> = others
                .map(|other| self.members[other.index()].usual)
                .collect();
            usual.sort_unstable();
            // Without another member to compare it with, it may be the network.
            let Some(median) = usual.get(usual.len() / 2) else {
                continue;
            };
            if waits.usual >= *median * TIMES {
                let waits = &mut self.members[id.index()];
                waits.until = Some(now + waits.again);
                waits.again = (waits.again * 2).min(AGAIN_MAX);
                (waits.usual, waits.samples) = (Duration::ZERO, 0);
                self.slow.insert(id);
            }
        }
        for id in self.slow.iter() {
            let waits = &mut self.members[id.index()];
            if waits.until.is_none_or(|until| until <= now) {
                waits.until = None;
                self.slow = self.slow.without(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ALL: ReplicaSet = ReplicaSet(0b1110);

    fn times(drag: &mut Drag, id: u16, wait: Duration, count: u32) {
        (0..count).for_each(|_| drag.waited(ReplicaId(id), wait));
    }

    #[test]
    fn slow_is_who_comes_much_later_than_the_others_and_often() {
        let mut drag = Drag::new(4);
        let mut now = Time(0);
        let mut assessed = |drag: &mut Drag| {
            now = now + MS;
            drag.assess(ALL, now);
            drag.slow
        };
        times(&mut drag, 3, MS * 40, SAMPLES_MIN - 1);
        assert_eq!(assessed(&mut drag), ReplicaSet::EMPTY, "too few to tell");
        times(&mut drag, 1, MS * 6, 20);
        times(&mut drag, 2, MS * 6, 20);
        times(&mut drag, 3, MS * 40, 1);
        assert_eq!(assessed(&mut drag), ReplicaSet::EMPTY, "all are far");
        times(&mut drag, 1, MS, 60);
        assert_eq!(assessed(&mut drag), ReplicaSet::EMPTY, "one other is, too");
        times(&mut drag, 2, MS, 60);
        assert_eq!(assessed(&mut drag), ReplicaSet(0b1000));
        let mut quick = Drag::new(4);
        times(&mut quick, 3, MS * 4, 100);
        assert_eq!(
            assessed(&mut quick),
            ReplicaSet::EMPTY,
            "it is not worth it"
        );
    }

    #[test]
    fn single_member_is_never_slow() {
        let mut drag = Drag::new(4);
        times(&mut drag, 3, MS * 400, 100);
        drag.assess(ReplicaSet(0b1000), Time(0));
        assert_eq!(drag.slow, ReplicaSet::EMPTY);
    }

    #[test]
    fn it_may_propose_again_each_time_after_twice_as_long() {
        let mut drag = Drag::new(4);
        let mut now = Time(0);
        for seconds in [10, 20, 40, 80, 160, 320, 320] {
            times(&mut drag, 3, MS * 40, SAMPLES_MIN);
            drag.assess(ALL, now);
            now = now + MS * (seconds * 1000 - 1);
            drag.assess(ALL, now);
            assert_eq!(drag.slow, ReplicaSet(0b1000), "{seconds}");
            now = now + MS;
            drag.assess(ALL, now);
            assert_eq!(drag.slow, ReplicaSet::EMPTY, "{seconds}");
        }
    }
}
