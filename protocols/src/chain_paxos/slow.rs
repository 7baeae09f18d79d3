//! Replicas that are up but slow: they go behind the middle of the chain, and the acknowledgement
//! turns around before them.
//!
//! ```text
//!   leader ── Ping ──► each ── Pong ──► leader          every heartbeat, not through the chain
//!
//!   head ─► slow ─► r2        one before the middle holds everybody up: its RemoveNode and its
//!     ▲               │       AddNode behind the tail are proposed together
//!     └───── Ack ─────┘
//!   head ─► r2 ─► slow        behind the middle it holds nobody up but the leader, who hears of
//!     ▲      │       ┆        decisions from the tail: `turn` names the last one before it, who
//!     ├─ Ack ┘       ┆        answers too
//!     └╌╌╌╌ Ack ╌╌╌╌╌┘
//! ```
//!
//! The paper knows replicas that work and replicas that are removed. One that answers every
//! keep-alive at a hundredth of the others' speed is neither. What is slow is judged beside the
//! others, so that a chain around the world is not torn apart.

use super::{
    Message, Op,
    replica::{ChainPaxos, Role},
};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{Context, Lane, ReplicaId, ReplicaSet, Time};
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

/// What the leader knows about everybody's speed.
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

    fn answered(&mut self, from: ReplicaId, sent: Time, now: Time) {
        let distance = &mut self.of[from.index()];
        let sample = now.since(sent);
        if distance.waiting_since.is_some_and(|since| sent >= since) {
            distance.waiting_since = None;
        }
        distance.trip = Some(distance.trip.map_or(sample, |trip| (trip * 3 + sample) / 4));
    }

    /// Judges everybody in the route, once a beat.
    fn judge(&mut self, route: &[ReplicaId], now: Time) {
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

impl ChainPaxos {
    pub(super) fn on_pong(&mut self, from: ReplicaId, stamp: u64, ctx: &mut Context<'_, Self>) {
        let (sent, now) = (Time(stamp), ctx.arrived());
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: measured by a follower");
        };
        if sent > now {
            return ctx.mark("ignored: answer from the future");
        }
        lead.distances.answered(from, sent, now);
    }

    /// The leader's beat: who is slow, where it stands, and the next question to everybody.
    pub(super) fn watch_distances(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, majority) = (ctx.now(), self.majority);
        let quiet = self.working.slot == self.decided.slot;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        lead.distances.judge(&self.route, now);
        let slow = lead.distances.slow;
        let behind = self.route.get(majority..).unwrap_or_default();
        // The last one before the replica that is slow at the end; the tail itself needs no word.
        let last = self.route.iter().rposition(|id| !slow.contains(*id));
        let turn = last.filter(|at| *at + 1 < self.route.len() && *at + 1 >= majority);
        let turn = turn.map(|at| self.route[at]);
        if turn != self.turn {
            ctx.mark("acknowledged from elsewhere than the tail");
            self.turn = turn;
        }
        let early = self.route.iter().take(majority);
        let early = early.copied().find(|id| slow.contains(*id));
        let tail = self.route.last().copied().unwrap_or(self.id);
        if let Some(id) = early
            && behind.iter().any(|id| !slow.contains(*id))
            && quiet
            && lead.ops.is_empty()
            && lead.leaving.is_none()
            && !lead.avoids(tail, id)
            && self.forgotten[id.index()].is_none()
        {
            ctx.mark("slow replica moved behind the tail");
            let known = self.lives[id.index()];
            let at = self.working.position(id);
            let life = at.map_or(known, |at| self.working.members[at].life.max(known));
            self.propose_op(Op::Remove { id });
            let after = tail;
            self.propose_op(Op::Add { id, life, after });
        }
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        for id in &self.route[1..] {
            let distance = &mut lead.distances.of[id.index()];
            distance.waiting_since.get_or_insert(now);
            let stamp = now.0;
            ctx.send(*id, Lane::Control, &Message::Ping { stamp });
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
            distances.judge(&ROUTE, sent + Duration::from_secs(1));
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
    fn replica_that_no_longer_answers_becomes_slow_and_one_that_does_again_is_not() {
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
            distances.judge(&ROUTE, at(beat));
        }
        assert!(distances.slow.contains(ReplicaId(2)));
        answer(&mut distances, 2, 6);
        distances.judge(&ROUTE, at(7));
        assert_eq!(distances.slow, ReplicaSet::EMPTY);
    }
}
