//! The answers to a replica that has lost its state; see `recovery.rs`.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Slot, Time, parts::Member};

/// See the module.
#[derive(Hash)]
pub(super) struct StateLoss {
    nonce: u64,
    answers: Vec<Option<Slot>>,
    /// All up to here is to be decided and executed here.
    upto: Option<Slot>,
    /// Since when too many others report that they have lost their state, too.
    lost_since: Option<Time>,
}

impl StateLoss {
    pub fn new(nonce: u64, members: usize) -> Self {
        Self {
            nonce,
            answers: vec![None; members],
            upto: None,
            lost_since: None,
        }
    }

    /// Tells answers to this question from those to earlier ones.
    pub const fn nonce(&self) -> u64 {
        self.nonce
    }

    pub const fn upto(&self) -> Option<Slot> {
        self.upto
    }

    /// Of these members those that have not answered.
    pub fn unanswered(&self, others: ReplicaSet) -> ReplicaSet {
        let unanswered = |id: &ReplicaId| self.answers[id.index()].is_none();
        others.iter().filter(unanswered).collect()
    }

    /// The last slot that another member holds. True when its answer makes a majority.
    pub fn on_answer(&mut self, from: ReplicaId, last: Slot, majority: usize) -> bool {
        self.answers[from.index()] = Some(last);
        let answers = || self.answers.iter().flatten();
        let complete = answers().count() >= majority && self.upto.is_none();
        if complete {
            self.upto = answers().max().copied();
        }
        complete
    }

    /// For how long this number of members has been too many to have lost their state.
    pub fn too_many_lost(&mut self, lost: usize, me: &Member, now: Time) -> Duration {
        if self.upto.is_some() || !me.are_too_many(lost) {
            self.lost_since = None;
            return Duration::ZERO;
        }
        now.since(*self.lost_since.get_or_insert(now))
    }
}
