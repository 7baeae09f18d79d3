//! When a member that left soon after it had joined may join again.
//!
//! ```text
//!   joins ── stays a minute ──► leaves ─► may join at once
//!     └──── leaves earlier ──► once: at once; then after 500 ms · 1 s · 2 s · … · 32 s
//! ```
//!
//! Every change of the members that take part stops the group, and a member that dies is noticed
//! only by its silence. One that crashes in a loop would stop everybody each time that it comes
//! back.
//!
//! A pause must not reduce the number of failures that the group tolerates. A waiting member whose
//! vote does not count is one of these failures. So it waits in full only if one more failure leaves
//! a quorum of the group. A group of three has no such margin while one member waits. Then the pause
//! depends on what the waiting member has:
//!
//! | the member has | effect of another failure during its pause | its pause |
//! |---|---|---|
//! | its vote | it is let in, and the group continues | in full |
//! | its state | the group stops until a member returns; no data is lost | 1 s at most |
//! | no state | the group may have to give up acknowledged data | none |
//!
//! A member of three that crashes in a loop and loses its state therefore stops the others each
//! time. The loop costs throughput; a pause could cost data.

use crate::{ReplicaId, Time};
use alloc::{vec, vec::Vec};
use core::time::Duration;

/// The first pause; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// The longest pause during which another failure would stop the group.
const PAUSE_ALONE: Duration = Duration::from_secs(1);

/// A member that has stayed for this many times its last pause begins with no pause again. A longer
/// stay than `STAY_MAX` is not asked of anybody.
const STAY_FACTOR: u32 = 4;
const STAY_MIN: Duration = Duration::from_secs(10);
const STAY_MAX: Duration = Duration::from_secs(60);

/// The contribution of a waiting member before it is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Its vote counts.
    Votes,
    /// It has its state.
    Keeps,
    /// It has lost its state.
    Lost,
}

/// The record of one replica.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Stay {
    /// When it was let in, in this process's time; none for those who were there from the start.
    since: Option<Time>,
    /// Whether its last stay was short.
    short: bool,
    pause: Duration,
    /// When its last stay ended, until it is let in again.
    ended: Option<Time>,
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
    /// another stay. A member that takes part has no pause left, even if it was let in early.
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
            // `restarted` has counted the end of this stay already.
            let restarted = before.is_some() && stay.ended.is_some();
            if id == own || before == after && !restarted {
                continue;
            }
            if before.is_some() && !restarted {
                stay.end(now);
            }
            if after.is_some() {
                stay.since = Some(now);
                stay.ended = None;
            }
        }
    }

    /// A member was started again, which costs the others as much as if it had left and come back.
    /// A later call of `note` says whether it still takes part.
    pub fn restarted(&mut self, id: ReplicaId, now: Time) {
        let stay = &mut self.stays[id.index()];
        if stay.ended.is_none() {
            stay.end(now);
        }
    }

    /// Whether it may not join yet. `others` is the number of members that count without it, `quorum`
    /// the number that the group needs.
    #[must_use]
    pub fn pauses(
        &self,
        id: ReplicaId,
        now: Time,
        (others, quorum): (usize, usize),
        waiting: Waiting,
    ) -> bool {
        let longest = match waiting {
            _ if others < quorum => return false,
            _ if others > quorum => PAUSE_MAX,
            Waiting::Votes => PAUSE_MAX,
            Waiting::Keeps => PAUSE_ALONE,
            Waiting::Lost => return false,
        };
        let stay = &self.stays[id.index()];
        stay.ended
            .is_some_and(|ended| now < ended + stay.pause.min(longest))
    }
}

impl Stay {
    fn end(&mut self, now: Time) {
        let enough = (self.pause * STAY_FACTOR).clamp(STAY_MIN, STAY_MAX);
        let stayed = self.since.take().map(|since| now.since(since));
        if stayed.is_none_or(|stayed| stayed >= enough) {
            *self = Self::default();
        } else if !self.short {
            // One failure soon after it has joined may be chance.
            self.short = true;
        } else {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
        self.ended = Some(now);
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

    /// Whether it waits when the group has a margin.
    fn waits(admission: &Admission, now: Time) -> bool {
        admission.pauses(ID, now, (3, 2), Waiting::Lost)
    }

    /// After nine stays of one second, the last of which has just ended.
    fn failed_often(now: &mut Time) -> Admission {
        let mut admission = Admission::new(2);
        for _ in 0..9 {
            change(&mut admission, None, Some(1), *now);
            *now = *now + Duration::from_secs(1);
            change(&mut admission, Some(1), None, *now);
        }
        admission
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
            pauses.push(admission.stays[1].pause.as_millis());
            assert!(!waits(&admission, now + admission.stays[1].pause));
            now = now + PAUSE_MAX;
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
        assert!(!waits(&admission, now), "it stayed long enough");
    }

    #[test]
    fn another_start_of_one_that_stays_counts_as_leaving() {
        for told in [false, true] {
            let mut admission = Admission::new(2);
            let mut now = Time(0);
            for start in 1..4 {
                if told {
                    admission.restarted(ID, now);
                    assert_eq!(waits(&admission, now), start == 3);
                    change(&mut admission, Some(0), Some(0), now);
                } else {
                    change(&mut admission, Some(start), Some(start + 1), now);
                }
                assert!(!waits(&admission, now), "it takes part");
                now = now + Duration::from_secs(1);
            }
            assert_eq!(admission.stays[1].pause, PAUSE_MIN);
        }
    }

    #[test]
    fn restart_of_a_removed_member_counts_once() {
        let mut admission = Admission::new(2);
        let mut now = Time(0);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            // A second candidacy for the same change reports it again.
            admission.restarted(ID, now);
            admission.restarted(ID, now);
            change(&mut admission, Some(0), None, now);
            pauses.push(admission.stays[1].pause.as_millis());
            now = now + PAUSE_MAX;
            change(&mut admission, None, Some(0), now);
            now = now + Duration::from_secs(1);
        }
        assert_eq!(pauses, [0, 0, 500, 1000]);
    }

    #[test]
    fn early_admission_ends_the_pause() {
        let mut now = Time(0);
        let mut admission = failed_often(&mut now);
        assert!(waits(&admission, now));
        change(&mut admission, None, Some(1), now);
        assert!(!waits(&admission, now));
    }

    #[test]
    fn pause_is_limited_when_the_group_has_no_margin() {
        let mut now = Time(0);
        let admission = failed_often(&mut now);
        let seconds = |quorum, waiting| {
            let waits = |seconds: &u64| {
                let at = now + Duration::from_secs(*seconds);
                admission.pauses(ID, at, quorum, waiting)
            };
            (0..60).filter(waits).count()
        };
        for (quorum, waiting, expected) in [
            ((4, 3), Waiting::Votes, 32),
            ((4, 3), Waiting::Keeps, 32),
            ((4, 3), Waiting::Lost, 32),
            ((2, 2), Waiting::Votes, 32),
            ((2, 2), Waiting::Keeps, 1),
            ((2, 2), Waiting::Lost, 0),
            ((1, 2), Waiting::Votes, 0),
            ((1, 2), Waiting::Keeps, 0),
        ] {
            assert_eq!(seconds(quorum, waiting), expected, "{quorum:?} {waiting:?}");
        }
    }

    #[test]
    fn no_proposer_pauses_by_its_own_measurement() {
        let mut admission = Admission::new(2);
        for second in 0..9 {
            let now = Time(0) + Duration::from_secs(second);
            admission.note(ID, now, |_| Some(second), |_| Some(second + 1));
            assert!(!waits(&admission, now));
        }
    }
}
