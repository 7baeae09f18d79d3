//! When a creator shows its batches again, and to which members.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::ReplicaId;

/// The pause before batches are shown again is doubled at most so often.
const SHOWN_MAX: u32 = 4;
/// Batches that nothing was lost of are shown again when a member's vote has not moved so often.
const STUCK_MIN: u32 = 4;

/// See the module.
#[derive(Hash)]
pub(super) struct Showing {
    armed: bool,
    /// How often batches have been shown again since some were executed.
    shown: u32,
    /// When the timer was set: the last own round, and up to where each member had voted.
    upto: u64,
    votes_then: Vec<u64>,
    /// How often in a row each member's vote had not moved when it fired.
    stuck: Vec<u32>,
}

impl Showing {
    pub fn new(members: usize) -> Self {
        Self {
            armed: false,
            shown: 0,
            upto: 0,
            votes_then: vec![0; members],
            stuck: vec![0; members],
        }
    }

    /// The connection to this member broke: what was on its way may be lost.
    pub fn lost(&mut self, peer: ReplicaId) {
        if let Some(stuck) = self.stuck.get_mut(peer.index()) {
            *stuck = (*stuck).max(STUCK_MIN - 1);
        }
    }

    /// Batches were executed.
    pub const fn executed(&mut self) {
        self.shown = 0;
    }

    /// Whether nothing was executed for long.
    pub const fn is_stuck(&self) -> bool {
        self.shown >= STUCK_MIN
    }

    /// The time until the timer fires, if it is to be set: the own chain ends at this round, and
    /// the members have voted up to there.
    pub fn arm(
        &mut self,
        newest: u64,
        votes: impl Iterator<Item = (ReplicaId, u64)>,
        round_trip: Duration,
    ) -> Option<Duration> {
        if self.armed {
            return None;
        }
        self.armed = true;
        self.upto = newest;
        for (peer, vote) in votes {
            self.votes_then[peer.index()] = vote;
        }
        let pause = Duration::from_millis(60).max(round_trip * 2);
        Some(pause * (1 << (self.shown / 2).min(SHOWN_MAX)))
    }

    /// The timer has fired. Gives up to which round batches are shown again, unless all are
    /// finished.
    pub const fn fired(&mut self, unfinished: bool) -> Option<u64> {
        self.armed = false;
        if !unfinished {
            self.shown = 0;
            return None;
        }
        self.shown = self.shown.saturating_add(1);
        Some(self.upto)
    }

    /// A member has voted up to there when the timer fires. True when batches are shown to it
    /// again: those that were just sent are on their way, and a member that is late is late with
    /// its votes.
    pub fn again(&mut self, peer: ReplicaId, vote: u64) -> bool {
        let stuck = &mut self.stuck[peer.index()];
        *stuck = if vote >= self.upto || vote > self.votes_then[peer.index()] {
            0
        } else {
            stuck.saturating_add(1)
        };
        *stuck >= STUCK_MIN && stuck.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_votes_bring_batches_again_ever_more_rarely() {
        let peer = ReplicaId(1);
        let mut showing = Showing::new(2);
        let mut again = Vec::new();
        for round in 1..=16 {
            assert!(
                showing
                    .arm(9, [(peer, 3)].into_iter(), Duration::ZERO)
                    .is_some()
            );
            assert_eq!(showing.arm(9, [].into_iter(), Duration::ZERO), None, "set");
            assert_eq!(showing.fired(true), Some(9));
            if showing.again(peer, 3) {
                again.push(round);
            }
        }
        assert_eq!(again, [4, 8, 16]);
        assert!(!showing.again(peer, 4), "its vote has moved");
        showing.lost(peer);
        assert!(showing.again(peer, 3), "at once when a connection broke");
        assert!(showing.is_stuck());
        assert_eq!(showing.fired(false), None);
        assert!(!showing.is_stuck());
    }
}
