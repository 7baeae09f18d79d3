//! The others as a replica knows them that has lost its state; see `recovery.rs`.

use super::Standing;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time, parts::Member};

/// See the module.
#[derive(Hash)]
pub(super) struct StateLoss {
    nonce: u64,
    answers: Vec<Option<(u64, Standing)>>,
    /// Since when too many others have lost their state, too.
    lost_since: Option<Time>,
}

impl StateLoss {
    pub fn new(nonce: u64, members: usize) -> Self {
        Self {
            nonce,
            answers: vec![None; members],
            lost_since: None,
        }
    }

    /// Tells answers to this question from those to earlier ones.
    pub const fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Whether too many others have had no state for longer than this.
    pub fn is_lost(&self, limit: Duration, now: Time) -> bool {
        self.lost_since
            .is_some_and(|since| now.since(since) > limit)
    }

    /// How another replica stands, and in which view. Gives the highest view in which any takes
    /// part once a majority of them do.
    pub fn on_answer(
        &mut self,
        from: ReplicaId,
        answer: (u64, Standing),
        me: &Member,
        now: Time,
    ) -> Option<u64> {
        self.answers[from.index()] = Some(answer);
        let of = |standing| {
            let answers = self.answers.iter().flatten();
            answers.filter(move |(_, known)| *known == standing)
        };
        let is_lost = me.are_too_many(1 + of(Standing::Forgot).count());
        let normal = of(Standing::Normal);
        let enough = normal.clone().count() >= me.majority();
        let newest = normal.map(|(view, _)| *view).max();
        self.lost_since = is_lost.then(|| self.lost_since.unwrap_or(now));
        newest.filter(|_| enough)
    }
}
