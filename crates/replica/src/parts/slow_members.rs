//! Members that are up and far slower than most, and when the others do without them.
//!
//! ```text
//!   paces of all ──look, at each beat──► a majority is far quicker, at several beats in a row
//!        │                                  └──► slow ──► not for a while, each time a longer one
//!        └── nothing heard of it: neither quicker nor slower than before
//!
//!   slow, who is up ──bypassed──► the slow ones, while a majority is up and not slow; else none
//! ```
//!
//! Where every member's word is needed for progress, one that is up and slow makes all as slow as
//! itself, and no timeout finds it. The others can do without it as they do without one that is
//! down. But a group in which too many are slow needs the slow ones: it continues at their speed,
//! and two members of which each finds the other slow do not stop it. Only speed depends on any of
//! this.

use super::pace::Figures;
use crate::{ReplicaId, ReplicaSet};
use alloc::{vec, vec::Vec};

/// Slow is a member than which a majority is far quicker at this many beats in a row.
const BEATS: u32 = 4;
/// It is no longer slow after this number of beats in a row without that; the next time after
/// twice that number, and so on. A member that has nothing to do may seem quick until it has.
const CALM_MIN: u32 = 8;
const CALM_MAX: u32 = 256;
/// One that was not slow for this many times as long begins with the shortest time again.
const FORGIVEN: u32 = 8;

/// The measurements of one member's pace at a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing was heard of it of late.
    Nothing,
    /// It is heard, and has none: it hears no majority, or takes no part in quorums.
    NoPace,
    /// This.
    Pace(Figures),
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    /// This many beats in a row it was far slower than a majority, or was not.
    slower: u32,
    quick: u32,
    /// After this number that it was not, it is no longer slow.
    calm: u32,
    /// It had no pace.
    apart: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct SlowMembers {
    members: Vec<Standing>,
    slow: ReplicaSet,
}

impl SlowMembers {
    /// Of a group of this size, none of which is slow.
    pub fn new(members: usize) -> Self {
        let standing = Standing {
            slower: 0,
            quick: 0,
            calm: CALM_MIN,
            apart: false,
        };
        Self {
            members: vec![standing; members],
            slow: ReplicaSet::EMPTY,
        }
    }

    /// Whether this one is slow.
    pub const fn contains(&self, member: ReplicaId) -> bool {
        self.slow.contains(member)
    }

    /// A beat, with what is known of every member. Those that are slow, when they are others than
    /// before.
    pub fn look(&mut self, heard: &[Heard]) -> Option<ReplicaSet> {
        let majority = self.members.len() / 2 + 1;
        let before = self.slow;
        for (index, one) in heard.iter().enumerate().take(self.members.len()) {
            let beats = |other: &&Heard| match (one, other) {
                (Heard::Pace(one), Heard::Pace(other)) => one.is_beaten_by(*other),
                (Heard::NoPace, Heard::Pace(_)) => true,
                _ => false,
            };
            if *one == Heard::Nothing {
                continue;
            }
            let id = ReplicaId(index as u16);
            self.members[index].take_part(*one != Heard::NoPace);
            let is_slower = heard.iter().filter(beats).count() >= majority;
            if self.members[index].beat(is_slower, self.slow.contains(id)) {
                self.slow.insert(id);
            } else {
                self.slow = self.slow.without(id);
            }
        }
        (self.slow != before).then_some(self.slow)
    }
}

impl Standing {
    /// One that takes part again begins with the shortest time: it may have been left out for this.
    const fn take_part(&mut self, takes_part: bool) {
        if core::mem::replace(&mut self.apart, !takes_part) && takes_part {
            (self.quick, self.calm) = (0, CALM_MIN);
        }
    }

    /// A beat of a member that was slow, or was not. Whether it is now.
    fn beat(&mut self, is_slower: bool, was_slow: bool) -> bool {
        if is_slower {
            (self.slower, self.quick) = (self.slower.saturating_add(1), 0);
        } else {
            (self.slower, self.quick) = (0, self.quick.saturating_add(1));
        }
        if was_slow {
            let is_slow = self.quick < self.calm;
            if !is_slow {
                self.calm = (self.calm * 2).min(CALM_MAX);
                self.quick = 0;
            }
            return is_slow;
        }
        if self.quick >= self.calm * FORGIVEN {
            self.calm = CALM_MIN;
        }
        self.slower >= BEATS
    }
}

/// Those of the slow members that the others do without, of a group with this majority in which
/// these are up.
#[must_use]
pub const fn bypassed(slow: ReplicaSet, up: ReplicaSet, majority: usize) -> ReplicaSet {
    if ReplicaSet(up.0 & !slow.0).len() >= majority {
        slow
    } else {
        ReplicaSet::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const QUICK: Heard = pace(200, 1_000);
    const SLOW_LINK: Heard = pace(40_000, 1_000);
    const SLOW_DISK: Heard = pace(200, 50_000);

    const fn pace(trip: u64, sync: u64) -> Heard {
        Heard::Pace(Figures {
            trip: Duration::from_micros(trip),
            sync: Some(Duration::from_micros(sync)),
            farthest: None,
        })
    }

    fn set(ids: &[u16]) -> ReplicaSet {
        ids.iter().map(|id| ReplicaId(*id)).collect()
    }

    /// The slow members found last, and after how many heartbeats.
    fn found(members: &mut SlowMembers, heard: &[Heard], beats: u32) -> (ReplicaSet, u32) {
        let changes: Vec<u32> = (1..=beats)
            .filter(|_| members.look(heard).is_some())
            .collect();
        (members.slow, changes.last().copied().unwrap_or(0))
    }

    #[test]
    fn member_with_slow_link_or_disk_is_slow_after_some_heartbeats() {
        for slow in [SLOW_LINK, SLOW_DISK, Heard::NoPace] {
            let mut members = SlowMembers::new(3);
            let heard = [QUICK, slow, QUICK];
            assert_eq!(found(&mut members, &heard, 100), (set(&[1]), BEATS));
            assert_eq!(found(&mut members, &[QUICK; 3], 7), (set(&[1]), 0));
            assert_eq!(found(&mut members, &[QUICK; 3], 9), (set(&[]), 1));
        }
    }

    #[test]
    fn member_behind_narrow_link_is_slow_by_times_and_milliseconds() {
        let narrow = pace(4_000, 100);
        let near = pace(150, 100);
        let slow = |own, other| {
            let mut members = SlowMembers::new(3);
            !found(&mut members, &[other, own, other], 10).0.is_empty()
        };
        assert!(slow(narrow, near));
        assert!(!slow(pace(1_900, 100), near), "in another zone");
        assert!(
            !slow(narrow, pace(600, 100)),
            "less than eight times, and than 5 ms"
        );
        assert!(!slow(pace(5_000, 1_000), QUICK));
    }

    #[test]
    fn member_of_which_nothing_is_heard_stays_what_it_was() {
        let mut members = SlowMembers::new(3);
        let silent = [QUICK, Heard::Nothing, QUICK];
        assert_eq!(found(&mut members, &silent, 100), (set(&[]), 0));
        let _ = found(&mut members, &[QUICK, SLOW_LINK, QUICK], 10);
        assert_eq!(found(&mut members, &silent, 100), (set(&[1]), 0));
    }

    #[test]
    fn members_are_compared_with_a_majority() {
        let mut members = SlowMembers::new(5);
        let two = [QUICK, SLOW_LINK, QUICK, SLOW_DISK, QUICK];
        assert_eq!(found(&mut members, &two, 100).0, set(&[1, 3]));
        let mut members = SlowMembers::new(5);
        let three = [QUICK, SLOW_LINK, SLOW_LINK, SLOW_LINK, QUICK];
        assert_eq!(found(&mut members, &three, 100).0, set(&[]));
        let mut members = SlowMembers::new(3);
        let unknown = [QUICK, SLOW_LINK, Heard::Nothing];
        assert_eq!(found(&mut members, &unknown, 100).0, set(&[]));
        let around_the_world = [76, 105, 140, 170, 105].map(|trip| pace(trip * 1_000, 2_000));
        let mut members = SlowMembers::new(5);
        assert_eq!(found(&mut members, &around_the_world, 100).0, set(&[]));
    }

    #[test]
    fn repeatedly_slow_member_returns_after_longer_pauses() {
        let mut members = SlowMembers::new(3);
        for calm in [8, 16, 32, 64, 128, 256, 256] {
            let _ = found(&mut members, &[QUICK, QUICK, SLOW_LINK], BEATS);
            assert_eq!(found(&mut members, &[QUICK; 3], calm - 1).0, set(&[2]));
            assert_eq!(found(&mut members, &[QUICK; 3], 1).0, set(&[]));
        }
        let _ = found(&mut members, &[QUICK; 3], CALM_MAX * FORGIVEN);
        let _ = found(&mut members, &[QUICK, QUICK, SLOW_LINK], BEATS);
        assert_eq!(found(&mut members, &[QUICK; 3], CALM_MIN).0, set(&[]));
    }

    #[test]
    fn member_that_took_no_part_comes_back_after_the_shortest_time() {
        let mut members = SlowMembers::new(3);
        for _ in 0..6 {
            let _ = found(&mut members, &[QUICK, QUICK, SLOW_LINK], BEATS);
            let _ = found(&mut members, &[QUICK, QUICK, Heard::NoPace], 20);
            assert_eq!(found(&mut members, &[QUICK; 3], CALM_MIN - 1).0, set(&[2]));
            assert_eq!(found(&mut members, &[QUICK; 3], 1).0, set(&[]));
        }
    }

    #[test]
    fn bypass_requires_majority_up_and_not_slow() {
        let all = set(&[0, 1, 2]);
        assert_eq!(bypassed(set(&[1]), all, 2), set(&[1]));
        assert_eq!(bypassed(set(&[1]), set(&[0, 1]), 2), set(&[]));
        assert_eq!(bypassed(set(&[1]), set(&[0, 2]), 2), set(&[1]));
        assert_eq!(bypassed(set(&[1, 2]), all, 2), set(&[]));
    }
}
