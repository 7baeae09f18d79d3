//! When a member that left soon after it had joined may join again.
//!
//! ```text
//!   joins ── stays a minute ──► leaves ─► may join at once
//!     └──── leaves earlier ──► once: at once; then after 500 ms · 1 s · 2 s · … · 32 s
//! ```
//!
//! Every change of the members that take part stops the group, and a member that dies is noticed
//! only by its silence. One that crashes in a loop would stop everybody each time that it comes
//! back. A protocol lets a member in during its pause where it can do without it no longer.

use crate::{ReplicaId, Time};
use alloc::{vec, vec::Vec};
use core::time::Duration;

/// The first pause; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(32);

/// A member that has stayed for so many times its last pause begins with no pause again. A longer
/// stay than `STAY_MAX` is not asked of anybody.
const STAY_FACTOR: u32 = 4;
const STAY_MIN: Duration = Duration::from_secs(10);
const STAY_MAX: Duration = Duration::from_secs(60);

/// The record of one replica.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Stay {
    /// When it was let in, in this process's time; none for those who were there from the start.
    since: Option<Time>,
    /// Whether its last stay was short.
    short: bool,
    pause: Duration,
    until: Time,
}

/// How long each member stayed, and when it may come back.
#[derive(Debug, Hash)]
pub struct Admission {
    stays: Vec<Stay>,
}

impl Admission {
    /// All of them were there from the start.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self {
            stays: vec![Stay::default(); members],
        }
    }

    /// Those who take part have changed, as the replica `own` sees it: what is told of each before
    /// and now is its incarnation, or none for one that does not take part. Another incarnation is
    /// another stay.
    pub fn note(
        &mut self,
        own: ReplicaId,
        now: Time,
        before: impl Fn(ReplicaId) -> Option<u64>,
        after: impl Fn(ReplicaId) -> Option<u64>,
    ) {
        for (index, stay) in self.stays.iter_mut().enumerate() {
            let id = ReplicaId(index as u16);
            let (before, after) = (before(id), after(id));
            if id == own || before == after {
                continue;
            }
            if before.is_some() {
                stay.leave(now);
            }
            if after.is_some() {
                stay.since = Some(now);
            }
        }
    }

    /// A member that stays was started again, which has cost the others as much as if it had left
    /// and come back.
    pub fn restarted(&mut self, id: ReplicaId, now: Time) {
        let stay = &mut self.stays[id.index()];
        stay.leave(now);
        stay.since = Some(now);
    }

    /// Whether it may not join yet.
    #[must_use]
    pub fn pauses(&self, id: ReplicaId, now: Time) -> bool {
        now < self.stays[id.index()].until
    }
}

impl Stay {
    fn leave(&mut self, now: Time) {
        let enough = (self.pause * STAY_FACTOR).clamp(STAY_MIN, STAY_MAX);
        let stayed = self.since.take().map(|since| now.since(since));
        if stayed.is_none_or(|stayed| stayed >= enough) {
            *self = Self::default();
        } else if !self.short {
            // One failure soon after it has joined may be chance.
            self.short = true;
        } else {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            self.until = now + self.pause;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ReplicaId = ReplicaId(1);

    fn change(admission: &mut Admission, before: Option<u64>, after: Option<u64>, now: Time) {
        let of = |incarnation: Option<u64>| move |id| incarnation.filter(|_| id == ID);
        admission.note(ReplicaId(0), now, of(before), of(after));
    }

    #[test]
    fn pause_doubles_for_short_stays_and_ends_with_a_long_one() {
        let mut admission = Admission::new(2);
        let mut now = Time(0);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            change(&mut admission, None, Some(1), now);
            now = now + Duration::from_secs(1);
            change(&mut admission, Some(1), None, now);
            pauses.push(admission.stays[1].until.since(now).as_millis());
            now = now + PAUSE_MAX;
            assert!(!admission.pauses(ID, now));
        }
        assert_eq!(
            pauses,
            [
                0, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000
            ]
        );
        change(&mut admission, None, Some(1), now);
        now = now + STAY_MAX;
        change(&mut admission, Some(1), None, now);
        assert!(!admission.pauses(ID, now), "it stayed long enough");
    }

    #[test]
    fn another_start_of_one_that_stays_counts_as_leaving() {
        for told in [false, true] {
            let mut admission = Admission::new(2);
            let mut now = Time(0);
            for start in 1..4 {
                if told {
                    admission.restarted(ID, now);
                } else {
                    change(&mut admission, Some(start), Some(start + 1), now);
                }
                now = now + Duration::from_secs(1);
            }
            assert!(admission.pauses(ID, now - Duration::from_millis(900)));
        }
    }

    #[test]
    fn nobody_pauses_by_its_own_account() {
        let mut admission = Admission::new(2);
        for second in 0..9 {
            let now = Time(0) + Duration::from_secs(second);
            admission.note(ID, now, |_| Some(second), |_| Some(second + 1));
            assert!(!admission.pauses(ID, now));
        }
    }
}
