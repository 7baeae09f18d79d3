//! How far one clock is believed: what a majority's clocks show, and a little more.
//!
//! ```text
//!   clocks of the members, as far as they are known ──► the one that a majority has reached
//!        + AHEAD_MAX, and as much as has passed since ──► no clock shows more than this
//! ```
//!
//! The replica that orders commands gives them its clock's time, and the log's time never goes back:
//! one clock that is hours ahead would move it permanently, and everything that expires would expire
//! at once. So whatever surrounds a replica shows it a clock that stays within this limit. Before
//! enough clocks are known, right after its start, that is the time of the log that it has executed
//! (none: the beginning of all time), and continues as fast as this replica's monotonic clock: what
//! is ordered then gets the time of what was ordered before. Clients have to wait meanwhile.

use crate::{ClockReading, CommandTime, Time};
use core::time::Duration;

/// How far ahead of a majority's clocks one is believed, in nanoseconds.
pub const AHEAD_MAX: u64 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockLimit {
    /// The readings of a majority's clocks, and their time. Of a log: as if it were as far ahead as
    /// it may be.
    reached: Option<(Time, u64)>,
    /// It was told by clocks.
    known: bool,
}

impl ClockLimit {
    /// A replica starts whose log stands at `log`. Until clocks are known it continues from there;
    /// one that is alone, whose clock is the majority, believes it.
    pub const fn begin(&mut self, now: Time, log: CommandTime, members: usize) {
        if members > 1 && !self.known {
            self.reached = Some((now, log.0.saturating_sub(AHEAD_MAX)));
        }
    }

    /// Records the present readings of the clocks of `clocks.len()` of the members, this one's
    /// among them. False when they are too few to tell anything; then what was known continues.
    pub fn note(&mut self, now: Time, clocks: &mut [u64], members: usize) -> bool {
        let majority = members / 2 + 1;
        if clocks.len() < majority || members < 2 {
            return false;
        }
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        self.reached = Some((now, clocks[majority - 1]));
        self.known = true;
        true
    }

    /// Whether the members' clocks are still to be learnt, so that the log's time stands where it
    /// stood before the restart.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.reached.is_some() && !self.known
    }

    /// The most that a clock may show now.
    #[must_use]
    pub fn at(&self, now: Time) -> u64 {
        let Some((since, reached)) = self.reached else {
            return u64::MAX;
        };
        let passed = u64::try_from(now.since(since).as_nanos()).unwrap_or(u64::MAX);
        reached.saturating_add(passed).saturating_add(AHEAD_MAX)
    }

    /// When the limit comes to `clock`, if it is not there yet.
    #[must_use]
    pub fn when(&self, clock: u64) -> Time {
        match self.reached {
            Some((since, reached)) => {
                let ahead = clock.saturating_sub(reached.saturating_add(AHEAD_MAX));
                since + Duration::from_nanos(ahead)
            }
            None => Time(0),
        }
    }
}

impl ClockReading {
    /// The same reading, but no later than `limit`.
    #[must_use]
    pub fn at_most(self, limit: u64) -> Self {
        Self {
            earliest: self.earliest.min(limit),
            now: self.now.min(limit),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;
    const NOW: u64 = 1_700_000_000_000_000_000;

    #[test]
    fn clock_far_ahead_shows_little_more_than_a_majority() {
        for (members, mut clocks, reached) in [
            (3, alloc::vec![NOW + HOUR, NOW, NOW - HOUR], NOW),
            (3, alloc::vec![NOW + HOUR, NOW], NOW),
            (2, alloc::vec![NOW, NOW + HOUR], NOW),
            (4, alloc::vec![NOW + 3, NOW + 2, NOW + 1, NOW], NOW + 1),
            (
                5,
                alloc::vec![NOW + HOUR, NOW + HOUR, NOW + 7, NOW, NOW],
                NOW + 7,
            ),
        ] {
            let mut limit = ClockLimit::default();
            assert!(limit.note(Time(5), &mut clocks, members));
            assert_eq!(limit.at(Time(5)), reached + AHEAD_MAX);
            assert_eq!(limit.at(Time(25)), reached + AHEAD_MAX + 20, "it continues");
            assert_eq!(limit.when(reached + AHEAD_MAX + 20), Time(25));
            let reading = ClockReading {
                earliest: NOW + HOUR,
                now: NOW + HOUR,
                latest: NOW + HOUR,
                deviation: 0,
            };
            let shown = reading.at_most(limit.at(Time(5)));
            assert_eq!(shown.now, reached + AHEAD_MAX);
        }
    }

    #[test]
    fn limit_continues_from_log_with_too_few_clocks() {
        let mut limit = ClockLimit::default();
        assert!(!limit.note(Time(0), &mut [NOW + HOUR], 3));
        limit.begin(Time(0), CommandTime(0), 3);
        assert_eq!(limit.at(Time(7)), AHEAD_MAX + 7, "an empty log has no time");
        limit.begin(Time(0), CommandTime(NOW), 3);
        assert_eq!(limit.at(Time(10)), NOW + 10);
        assert!(!limit.note(Time(20), &mut [NOW + HOUR, NOW + HOUR], 5));
        assert_eq!(limit.at(Time(20)), NOW + 20);
        assert!(limit.note(Time(30), &mut [NOW + HOUR, NOW, NOW], 5));
        limit.begin(Time(30), CommandTime(NOW + HOUR), 5);
        assert_eq!(limit.at(Time(30)), NOW + AHEAD_MAX, "clocks count more");
    }

    #[test]
    fn lone_replica_believes_its_own_clock() {
        let mut limit = ClockLimit::default();
        limit.begin(Time(0), CommandTime(NOW), 1);
        assert!(!limit.note(Time(0), &mut [NOW], 1));
        assert_eq!(limit.at(Time(0)), u64::MAX);
    }
}
