//! The answers to a replica that has lost its state; see `recovery.rs`.

use super::BlockId;
use crate::sadl::Range;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time, parts::Member};

/// Too many others have lost their state for this long: it does not end by itself.
const LOST_MAX: Duration = Duration::from_secs(5);

/// One answer.
#[derive(Clone, Debug, Hash)]
pub(super) struct Answer {
    pub forgot: bool,
    pub view: u64,
    pub high: BlockId,
    pub fall: Vec<BlockId>,
    pub held: Vec<Range>,
}

/// See the module.
#[derive(Hash)]
pub(super) struct StateLoss {
    nonce: u64,
    answers: Vec<Option<Answer>>,
    /// Since when too many others report that they have lost their state, too.
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

    /// Whether too many others have had no state for long.
    pub fn is_lost(&self, now: Time) -> bool {
        self.lost_since
            .is_some_and(|since| now.since(since) > LOST_MAX)
    }

    pub fn on_answer(&mut self, from: ReplicaId, answer: Answer, me: &Member, now: Time) {
        self.answers[from.index()] = Some(answer);
        let answers = self.answers.iter().flatten();
        let lost = 1 + answers.filter(|answer| answer.forgot).count();
        if me.are_too_many(lost) {
            self.lost_since.get_or_insert(now);
        } else {
            self.lost_since = None;
        }
    }

    /// The answers of members that have their state.
    pub fn intact(&self) -> Vec<(ReplicaId, Answer)> {
        let answers = self.answers.iter().enumerate();
        let answers = answers.filter_map(|(from, answer)| Some((from, answer.as_ref()?)));
        let intact = answers.filter(|(_, answer)| !answer.forgot);
        intact
            .map(|(from, answer)| (ReplicaId(from as u16), answer.clone()))
            .collect()
    }
}
