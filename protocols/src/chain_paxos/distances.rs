//! How far away each replica is, as the leader measures it; see `slow.rs`.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Time};
use smallvec::SmallVec;

/// Slow is who takes that many times as long as the one in the middle of all …
const TIMES: u32 = 8;
/// … and longer than this …
const LEAST: Duration = Duration::from_millis(5);
/// … at that many heartbeats in a row.
const BEATS: u32 = 3;

#[derive(Clone, Copy, Default, Hash)]
struct Distance {
    /// There and back, smoothed.
    trip: Option<Duration>,
    /// When the oldest question without an answer was sent.
    waiting_since: Option<Time>,
    beats: u32,
}

/// The leader's measurements of every member's speed.
#[derive(Hash)]
pub(super) struct Distances {
    of: Vec<Distance>,
    slow: ReplicaSet,
}

impl Distances {
    pub fn new(members: usize) -> Self {
        Self {
            of: vec![Distance::default(); members],
            slow: ReplicaSet::EMPTY,
        }
    }

    /// A reply to the question of `sent` has come.
    pub fn answered(&mut self, from: ReplicaId, sent: Time, now: Time) {
        let distance = &mut self.of[from.index()];
        let sample = now.since(sent);
        if distance.waiting_since.is_some_and(|since| sent >= since) {
            distance.waiting_since = None;
        }
        distance.trip = Some(distance.trip.map_or(sample, |trip| (trip * 3 + sample) / 4));
    }

    pub const fn slow(&self) -> ReplicaSet {
        self.slow
    }

    /// A question goes to this replica.
    pub fn ask(&mut self, id: ReplicaId, now: Time) {
        self.of[id.index()].waiting_since.get_or_insert(now);
    }

    /// Compares all replicas in the route, once a beat.
    pub fn compare(&mut self, route: &[ReplicaId], now: Time) {
        let trip = |distance: &Distance| {
            let waited = distance.waiting_since.map(|since| now.since(since));
            distance.trip.max(waited)
        };
        let others = &route[1..];
        let mut trips: SmallVec<[Duration; 8]> = (others.iter())
            .filter_map(|id| trip(&self.of[id.index()]))
            .collect();
        trips.sort_unstable();
        let typical = trips.get(trips.len().saturating_sub(1) / 2).copied();
        let Some(typical) = typical.filter(|_| trips.len() == others.len() && trips.len() > 1)
        else {
            return;
        };
        for id in others {
            let distance = &mut self.of[id.index()];
            let far = trip(distance).is_some_and(|trip| trip > LEAST && trip > typical * TIMES);
            distance.beats = if far {
                distance.beats.saturating_add(1)
            } else {
                0
            };
            if distance.beats >= BEATS {
                self.slow.insert(*id);
            } else if distance.beats == 0 {
                self.slow = self.slow.without(*id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: [ReplicaId; 4] = [ReplicaId(0), ReplicaId(1), ReplicaId(2), ReplicaId(3)];

    fn slow_after(trips: [u64; 3], beats: u64) -> Vec<u16> {
        let mut distances = Distances::new(4);
        for beat in 0..beats {
            let sent = Time(beat * 1_000_000_000);
            for (id, micros) in (1..).zip(trips) {
                let now = sent + Duration::from_micros(micros);
                distances.answered(ReplicaId(id), sent, now);
            }
            distances.compare(&ROUTE, sent + Duration::from_secs(1));
        }
        distances.slow.iter().map(|id| id.0).collect()
    }

    #[test]
    fn slow_is_who_is_slow_beside_the_others_for_a_while() {
        assert_eq!(slow_after([300, 50_000, 400], 2), [0_u16; 0], "not at once");
        assert_eq!(slow_after([300, 50_000, 400], 3), [2]);
        assert_eq!(slow_after([300, 4_000, 400], 9), [0_u16; 0], "fast enough");
        let around_the_world = [20_000, 150_000, 90_000];
        assert_eq!(slow_after(around_the_world, 9), [0_u16; 0]);
    }

    #[test]
    fn silent_replica_is_slow_until_it_answers_again() {
        let mut distances = Distances::new(4);
        let at = |beat: u64| Time(beat * 100_000_000);
        let answer = |distances: &mut Distances, id: u16, beat: u64| {
            distances.answered(
                ReplicaId(id),
                at(beat),
                at(beat) + Duration::from_micros(300),
            );
        };
        for id in 1..4 {
            answer(&mut distances, id, 0);
        }
        distances.of[2].waiting_since = Some(at(1));
        for beat in 2..6 {
            distances.compare(&ROUTE, at(beat));
        }
        assert!(distances.slow.contains(ReplicaId(2)));
        answer(&mut distances, 2, 6);
        distances.compare(&ROUTE, at(7));
        assert_eq!(distances.slow, ReplicaSet::EMPTY);
    }
}
