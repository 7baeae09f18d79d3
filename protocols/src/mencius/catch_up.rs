//! How far a replica that has lost its state must come before it votes again; see `recovery.rs`.

use quintet_replica::{
    ReplicaId, Slot, Time,
    parts::{Member, StateLoss},
};

/// The last slots that others hold, until a majority has told its own.
#[derive(Hash)]
pub(super) struct CatchUp {
    loss: StateLoss<Slot>,
    /// All up to here is to be decided and executed here.
    upto: Option<Slot>,
}

impl CatchUp {
    pub fn new(nonce: u64, members: usize) -> Self {
        Self {
            loss: StateLoss::new(nonce, members),
            upto: None,
        }
    }

    pub const fn loss(&self) -> &StateLoss<Slot> {
        &self.loss
    }

    pub const fn upto(&self) -> Option<Slot> {
        self.upto
    }

    /// The last slot that another member holds. True when its answer makes a majority.
    pub fn on_answer(&mut self, from: ReplicaId, last: Slot, majority: usize) -> bool {
        self.loss.answered(from, last);
        let answers = || self.loss.answers().map(|(_, last)| *last);
        let complete = answers().count() >= majority && self.upto.is_none();
        if complete {
            self.upto = answers().max();
        }
        complete
    }

    /// This number of members reports that it has lost its state, this one among them. Once a
    /// majority has answered, this is no matter any more.
    pub fn are_lost(&mut self, lost: usize, me: &Member, now: Time) {
        let lost = if self.upto.is_some() { 1 } else { lost };
        self.loss.are_lost(lost, me, now);
    }
}
