//! The others as a replica knows them that has lost its state and asks for theirs.
//!
//! ```text
//!   nonce ──► question ──► all ──► answers ──► enough of them: the protocol takes part again
//!                                     └── too many have lost their state, too, for long: it halts
//! ```

use super::Member;
use crate::{ReplicaId, ReplicaSet, Time};
use alloc::vec::Vec;
use core::time::Duration;

/// See the module.
#[derive(Debug, Hash)]
pub struct StateLoss<A> {
    nonce: u64,
    answers: Vec<Option<A>>,
    /// Since when too many others have lost their state, too.
    lost_since: Option<Time>,
}

impl<A> StateLoss<A> {
    /// No member has answered yet.
    #[must_use]
    pub fn new(nonce: u64, members: usize) -> Self {
        Self {
            nonce,
            answers: (0..members).map(|_| None).collect(),
            lost_since: None,
        }
    }

    /// Tells answers to this question from those to earlier ones.
    #[must_use]
    pub const fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Another member has answered.
    pub fn answered(&mut self, from: ReplicaId, answer: A) {
        self.answers[from.index()] = Some(answer);
    }

    /// The senders of these answers have no state either: are they too many?
    pub fn count_lost(&mut self, lost: impl Fn(&A) -> bool, me: &Member, now: Time) {
        let others = self.answers().filter(|(_, answer)| lost(answer)).count();
        self.are_lost(1 + others, me, now);
    }

    /// This number of members has no state, this one among them: are they too many?
    pub fn are_lost(&mut self, lost: usize, me: &Member, now: Time) {
        let since = self.lost_since.unwrap_or(now);
        self.lost_since = me.are_too_many(lost).then_some(since);
    }

    /// Whether too many others have had no state for longer than this.
    #[must_use]
    pub fn is_lost(&self, now: Time, limit: Duration) -> bool {
        self.lost_since
            .is_some_and(|since| now.since(since) > limit)
    }

    /// The newest answer of each member that has answered.
    pub fn answers(&self) -> impl Iterator<Item = (ReplicaId, &A)> {
        let answers = self.answers.iter().enumerate();
        answers.filter_map(|(from, answer)| Some((ReplicaId(from as u16), answer.as_ref()?)))
    }

    /// Of these members those that have not answered.
    #[must_use]
    pub fn unanswered(&self, of: ReplicaSet) -> ReplicaSet {
        let unanswered = |id: &ReplicaId| self.answers[id.index()].is_none();
        of.iter().filter(unanswered).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterId, Durability, Epoch, EpochNumber, GroupId, Incarnation, Setup};

    fn member(members: usize) -> Member {
        Member::new(&Setup {
            id: ReplicaId(0),
            incarnation: Incarnation(1),
            group: GroupId(0),
            epoch: Epoch {
                cluster: ClusterId(1),
                number: EpochNumber(1),
                members,
                options: Vec::new(),
                secret: [0; 32],
                leader_first: ReplicaId(0),
            },
            durability: Durability::Memory,
            seed: 1,
            options: (),
        })
    }

    #[test]
    fn replica_is_lost_while_too_many_have_no_state() {
        let (me, second) = (member(3), Duration::from_secs(1));
        let mut loss = StateLoss::new(7, 3);
        let mut answered = |from, lost, at| {
            loss.answered(ReplicaId(from), lost);
            loss.count_lost(|lost| *lost, &me, Time(at));
            loss.lost_since
        };
        assert_eq!(answered(1, true, 5), Some(Time(5)));
        assert_eq!(answered(2, false, 9), Some(Time(5)), "two of three still");
        assert_eq!(answered(1, false, 9), None, "it has its state again");
        assert_eq!(answered(1, true, 5), Some(Time(5)));
        assert!(!loss.is_lost(Time(5) + second, second), "as long as it may");
        assert!(loss.is_lost(Time(6) + second, second));
        let all = ReplicaSet::all(3);
        assert_eq!(loss.unanswered(all), ReplicaSet::EMPTY.with(ReplicaId(0)));
        assert_eq!(loss.answers().count(), 2);
    }
}
