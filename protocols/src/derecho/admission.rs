//! When a member that left soon after it had joined may join again.
//!
//! ```text
//!   joins ── stays a minute ──► leaves ─► may join at once
//!     └──── leaves earlier ──► once: at once; then after 500 ms · 1 s · 2 s · … · 32 s
//! ```
//!
//! Every view change stops the group, and a member that dies is noticed only by its silence. One
//! that crashes in a loop would stop everybody each time that it comes back.

use super::message::View;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time};

/// The first pause; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(32);

/// A member that has stayed for so many times its last pause begins with no pause again. A longer
/// stay than `STAY_MAX` is not asked of anybody.
const STAY_FACTOR: u32 = 4;
const STAY_MIN: Duration = Duration::from_secs(10);
const STAY_MAX: Duration = Duration::from_secs(60);

/// The record of one replica.
#[derive(Clone, Copy, Default, Hash)]
struct Stay {
    /// When it was let in, in this process's time; none for those who were there from the start.
    since: Option<Time>,
    /// Whether its last stay was short.
    short: bool,
    pause: Duration,
    until: Time,
}

/// How long each member stayed, and when it may come back.
#[derive(Hash)]
pub(super) struct Admission {
    stays: Vec<Stay>,
}

impl Admission {
    pub fn new(members: usize) -> Self {
        Self {
            stays: vec![Stay::default(); members],
        }
    }

    /// One view follows another, at the replica `own`.
    pub fn note(&mut self, old: &View, new: &View, own: ReplicaId, now: Time) {
        for (index, stay) in self.stays.iter_mut().enumerate() {
            let id = ReplicaId(index as u16);
            let (before, after) = (old.life(id), new.life(id));
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

    /// Whether it may not join yet.
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
    use crate::derecho::Member;
    use quintet_replica::{Incarnation, Slot};

    fn view(number: u64, starts: &[(u16, u64)]) -> View {
        let member = |(id, start): &(u16, u64)| Member {
            id: ReplicaId(*id),
            life: *start,
            incarnation: Incarnation(1),
        };
        View {
            number,
            members: starts.iter().map(member).collect(),
            base: Slot(0),
        }
    }

    #[test]
    fn pause_doubles_for_short_stays_and_ends_with_a_long_one() {
        let (id, mut admission) = (ReplicaId(1), Admission::new(2));
        let (with, without) = (view(1, &[(0, 1), (1, 1)]), view(2, &[(0, 1)]));
        let mut now = Time(0);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            admission.note(&without, &with, ReplicaId(0), now);
            now = now + Duration::from_secs(1);
            admission.note(&with, &without, ReplicaId(0), now);
            pauses.push(admission.stays[1].until.since(now).as_millis());
            now = now + PAUSE_MAX;
            assert!(!admission.pauses(id, now));
        }
        assert_eq!(
            pauses,
            [
                0, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 32_000, 32_000
            ]
        );
        admission.note(&without, &with, ReplicaId(0), now);
        now = now + STAY_MAX;
        admission.note(&with, &without, ReplicaId(0), now);
        assert!(!admission.pauses(id, now), "it stayed long enough");
    }

    #[test]
    fn another_start_in_the_next_view_counts_as_leaving() {
        let mut admission = Admission::new(2);
        let mut now = Time(0);
        for start in 1..4 {
            let (old, new) = (
                view(start, &[(1, start)]),
                view(start + 1, &[(1, start + 1)]),
            );
            admission.note(&old, &new, ReplicaId(0), now);
            now = now + Duration::from_secs(1);
        }
        assert!(admission.pauses(ReplicaId(1), now - Duration::from_millis(900)));
    }
}
