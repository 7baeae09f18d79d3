//! Rounds of read confirmation, at the leader; see `reads.rs`.

use alloc::{collections::VecDeque, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Slot, Time, Wake};
use smallvec::SmallVec;

/// The most rounds in progress, for new ones and at all.
const OPEN_MAX: usize = 32;
const ROUNDS_MAX: usize = 64;

/// The replicas that asked, each with the number of its question.
type Askers = SmallVec<[(ReplicaId, u64); 4]>;

/// A round in progress.
#[derive(Hash)]
struct Round {
    /// A follower that echoes this number had not promised a higher ballot when the round began.
    number: u64,
    began_at: Time,
    /// The commit point when it began.
    index: Slot,
    asked: Askers,
}

/// All rounds of a leader.
#[derive(Hash)]
pub(super) struct Confirmations {
    number: u64,
    began_at: Time,
    rounds: VecDeque<Round>,
    /// Questions that are not in a round yet, by replica.
    questions: Vec<Option<u64>>,
}

impl Confirmations {
    pub fn new(members: usize) -> Self {
        Self {
            number: 0,
            began_at: Time(0),
            rounds: VecDeque::new(),
            questions: vec![None; members],
        }
    }

    /// The number of the newest round, which followers are to echo.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The newest question of a replica, whatever it asked before.
    pub fn replace(&mut self, from: ReplicaId, question: Option<u64>) {
        self.questions[from.index()] = question;
    }

    /// A question of a replica; it may come late.
    pub fn ask(&mut self, from: ReplicaId, round: u64) {
        let question = &mut self.questions[from.index()];
        *question = Some(question.map_or(round, |before| before.max(round)));
    }

    /// Whether a question waits for a round.
    pub fn are_wanted(&self) -> bool {
        self.questions.iter().any(Option::is_some)
    }

    /// Begins a round for all questions that wait, or says when. One round at a time gathers more
    /// reads; over a long link the next need not wait for the one before.
    pub fn begin(&mut self, index: Slot, gap: Duration, now: Time) -> Wake {
        if !self.rounds.is_empty() && now < self.began_at + gap {
            return Wake::At(self.began_at + gap);
        }
        if self.rounds.len() >= OPEN_MAX {
            return Wake::Sleep;
        }
        self.number += 1;
        self.began_at = now;
        let mut asked = Askers::new();
        for (peer, question) in self.questions.iter_mut().enumerate() {
            if let Some(round) = question.take() {
                asked.push((ReplicaId(peer as u16), round));
            }
        }
        self.rounds.push_back(Round {
            number: self.number,
            began_at: now,
            index,
            asked,
        });
        Wake::Sleep
    }

    /// When the oldest round in progress began.
    pub fn oldest(&self) -> Option<Time> {
        Some(self.rounds.front()?.began_at)
    }

    /// Ends the oldest round if it is confirmed: its index, and the questions that it answers.
    pub fn finish(&mut self, is_confirmed: impl Fn(u64) -> bool) -> Option<(Slot, Askers)> {
        self.rounds
            .front()
            .filter(|round| is_confirmed(round.number))?;
        let Round { index, asked, .. } = self.rounds.pop_front()?;
        Some((index, asked))
    }

    pub fn assert_invariants(&self, members: usize) {
        assert!(self.questions.len() == members);
        let rounds = self.rounds.iter().map(|round| round.number);
        assert!(rounds.is_sorted() && self.rounds.len() <= ROUNDS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_answers_all_questions_that_waited_for_it() {
        let mut rounds = Confirmations::new(3);
        rounds.ask(ReplicaId(1), 7);
        rounds.ask(ReplicaId(1), 5);
        rounds.ask(ReplicaId(2), 9);
        let gap = Duration::from_nanos(10);
        assert_eq!(rounds.begin(Slot(4), gap, Time(1)), Wake::Sleep);
        assert!(!rounds.are_wanted());
        rounds.ask(ReplicaId(0), 1);
        assert_eq!(rounds.begin(Slot(6), gap, Time(2)), Wake::At(Time(11)));
        assert_eq!(rounds.oldest(), Some(Time(1)));
        assert!(rounds.finish(|number| number > 1).is_none());
        let (index, asked) = rounds.finish(|number| number == 1).expect("confirmed");
        let expected = [(ReplicaId(1), 7), (ReplicaId(2), 9)];
        assert_eq!((index, asked.as_slice()), (Slot(4), &expected[..]));
        assert_eq!(rounds.begin(Slot(6), gap, Time(3)), Wake::Sleep);
        assert_eq!(rounds.number(), 2);
        rounds.assert_invariants(3);
    }
}
