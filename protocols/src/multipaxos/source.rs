//! The view that a replica without its state has of the others; see `recovery.rs`.

use super::Part;
use crate::sadl::Range;
use alloc::{vec, vec::Vec};
use quintet_replica::{
    ReplicaId, Slot, Time,
    parts::{Ballot, Member, StateLoss},
};

/// Answers of the others, until the leader among them is the source to recover from.
#[derive(Hash)]
pub(super) struct Source {
    loss: StateLoss<(Ballot, Part)>,
    /// The disseminated batches of each of the others that have their state.
    inventories: Vec<Option<Vec<Range>>>,
    /// The leader that it takes over from, and the slot before which all must be here.
    found: Option<(Ballot, Slot)>,
}

impl Source {
    pub fn new(nonce: u64, members: usize) -> Self {
        Self {
            loss: StateLoss::new(nonce, members),
            inventories: vec![None; members],
            found: None,
        }
    }

    pub const fn loss(&self) -> &StateLoss<(Ballot, Part)> {
        &self.loss
    }

    pub const fn found(&self) -> Option<(Ballot, Slot)> {
        self.found
    }

    /// The disseminated batches of the others.
    pub fn inventories(&self) -> impl Iterator<Item = (ReplicaId, &[Range])> {
        let all = self.inventories.iter().enumerate();
        all.filter_map(|(from, ranges)| Some((ReplicaId(from as u16), ranges.as_deref()?)))
    }

    /// The batches that another replica holds, by its answer to this question.
    pub fn on_inventory(&mut self, from: ReplicaId, nonce: u64, part: Part, held: Vec<Range>) {
        if nonce == self.loss.nonce() && part != Part::Recovering {
            self.inventories[from.index()] = Some(held);
        }
    }

    /// Whether an answer with this nonce still counts.
    pub const fn asks(&self, nonce: u64) -> bool {
        nonce == self.loss.nonce() && self.found.is_none()
    }

    /// An answer of another replica, which has promised this ballot. Gives the source when the
    /// answers show it: a majority, none of them without its state, none with a higher promise than
    /// the leader among them, whose ballot is not below the own promise.
    pub fn on_answer(
        &mut self,
        from: ReplicaId,
        answer: (Ballot, Part),
        own: Ballot,
        me: &Member,
        now: Time,
    ) -> Option<Ballot> {
        let lost = |(_, part): &(Ballot, Part)| *part == Part::Recovering;
        self.loss.answered(from, answer);
        self.loss.count_lost(lost, me, now);
        let answers = || self.loss.answers().map(|(_, answer)| *answer);
        let intact = || answers().filter(|answer| !lost(answer));
        // A replica that promised more than the leader's ballot may be a candidate that never wins,
        // or is gone permanently. Any majority will do, so its answer may as well not have come.
        let leads = |(promised, part)| match part {
            Part::Leader { end } => Some((promised, end)),
            _ => None,
        };
        let (best, end) = intact().filter_map(leads).max()?;
        let below = intact().filter(|(promised, _)| *promised <= best).count();
        if below < me.majority() || best < own {
            return None;
        }
        self.found = Some((best, end));
        Some(best)
    }
}
