//! The members that answer soonest: batches go to them first, where a quorum is enough.
//!
//! ```text
//!   New{stamp} ──► member ──► journal ──► Vote{stamp}   how long it took; while none has come,
//!                                                       how long ago it was asked
//!   the latest of the quorum is later than twice another ──► that one takes its place
//! ```
//!
//! Members outside learn only how far the chain is completed, which they answer, too, and fetch
//! what they need once it is ordered. A place changes hands reluctantly: the replica that comes in
//! is sent all that it missed.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Time};

/// Two members that differ by less than this are alike.
const ALIKE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Default, Hash)]
struct Health {
    /// How long it took to answer, smoothed; zero: it never has.
    took: Duration,
    /// The oldest question that it has not answered, and the round that its answer must reach.
    asked: Option<(Time, u64)>,
}

impl Health {
    fn late(&self, now: Time) -> Duration {
        let waited = self.asked.map(|(at, _)| now.since(at));
        self.took.max(waited.unwrap_or_default())
    }
}

/// The measured response times of the members.
#[derive(Hash)]
pub(super) struct Healthy {
    of: Vec<Health>,
    others: ReplicaSet,
    /// As many of the others as make a quorum with this replica.
    chosen: ReplicaSet,
}

impl Healthy {
    /// Nothing is known: those that come next after this replica, so that not all choose the same.
    pub fn new(id: ReplicaId, members: usize, quorum: usize) -> Self {
        let after = |step: usize| ReplicaId(((id.index() + step) % members.max(1)) as u16);
        Self {
            of: vec![Health::default(); members],
            others: (1..members).map(after).collect(),
            chosen: (1..quorum).map(after).collect(),
        }
    }

    pub const fn chosen(&self) -> ReplicaSet {
        self.chosen
    }

    /// These are shown the chain up to this round, or told about it: they will answer.
    pub fn asked(&mut self, whom: ReplicaSet, upto: u64, now: Time) {
        for peer in whom.iter() {
            let upto = if self.chosen.contains(peer) { upto } else { 0 };
            self.of[peer.index()].asked.get_or_insert((now, upto));
        }
    }

    /// A vote up to this round, by one that had seen this stamp.
    pub fn answered(&mut self, peer: ReplicaId, stamp: u64, round: u64, now: Time) {
        let Some(health) = self.of.get_mut(peer.index()) else {
            return;
        };
        let Some((at, _)) = health
            .asked
            .filter(|(at, upto)| stamp >= at.0 && stamp <= now.0 && round >= *upto)
        else {
            return;
        };
        let took = now.since(at).max(Duration::from_nanos(1));
        health.took = if health.took.is_zero() {
            took
        } else {
            (health.took * 7 + took) / 8
        };
        health.asked = None;
    }

    /// It came back: what it was asked before is dropped.
    pub fn forget(&mut self, peer: ReplicaId) {
        if let Some(health) = self.of.get_mut(peer.index()) {
            health.asked = None;
        }
    }

    /// Puts a member in another's place, where that is much later. Returns the member that came in.
    pub fn choose(&mut self, now: Time) -> Option<ReplicaId> {
        let late = |peer: &ReplicaId| self.of[peer.index()].late(now);
        let outside = (self.others.iter()).filter(|peer| !self.chosen.contains(*peer));
        let known = outside.filter(|peer| !self.of[peer.index()].took.is_zero());
        let best = known.min_by_key(late)?;
        let worst = self.chosen.iter().max_by_key(late)?;
        if late(&worst) <= late(&best) * 2 + ALIKE {
            return None;
        }
        self.chosen = self.chosen.without(worst).with(best);
        if let Some((_, upto)) = &mut self.of[worst.index()].asked {
            *upto = 0;
        }
        self.of[best.index()].asked = None;
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn silent_member_is_replaced_once_by_responsive_one() {
        let mut healthy = Healthy::new(ReplicaId(3), 5, 3);
        let places = |healthy: &Healthy| healthy.chosen().iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(places(&healthy), [0, 4], "the next two in a ring");
        let others = healthy.others;
        healthy.asked(others, 7, at(10));
        for peer in [0, 1, 2] {
            healthy.answered(ReplicaId(peer), at(10).0, 7, at(30));
        }
        assert_eq!(healthy.choose(at(50)), None, "as late as twice the others");
        assert_eq!(healthy.choose(at(52)), Some(ReplicaId(1)));
        assert_eq!(places(&healthy), [0, 1]);
        assert_eq!(healthy.choose(at(500)), None, "the others are alike");
        // Outside, it answers what it is told without a batch.
        healthy.answered(ReplicaId(4), at(10).0, 0, at(510));
        healthy.asked(others, 9, at(520));
        healthy.answered(ReplicaId(0), at(519).0, 9, at(530));
        healthy.answered(ReplicaId(0), at(520).0, 8, at(530));
        healthy.answered(ReplicaId(2), at(520).0, 0, at(530));
        assert_eq!(
            healthy.choose(at(562)),
            Some(ReplicaId(2)),
            "neither answers that"
        );
    }

    #[test]
    fn member_that_never_answered_is_not_preferred() {
        let mut healthy = Healthy::new(ReplicaId(0), 3, 2);
        let others = healthy.others;
        healthy.asked(others, 1, at(0));
        assert_eq!(healthy.choose(at(60_000)), None);
        healthy.answered(ReplicaId(2), at(0).0, 0, at(60_000));
        healthy.forget(ReplicaId(2));
        assert_eq!(healthy.choose(at(200_000)), Some(ReplicaId(2)));
    }
}
