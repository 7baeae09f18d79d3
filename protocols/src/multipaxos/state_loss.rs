//! What a replica that has lost its state knows of the others; see `recovery.rs`.

use super::Part;
use crate::sadl::Range;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    ReplicaId, Slot, Time,
    parts::{Ballot, Member},
};

/// Answers of the others, until the leader among them is the source to recover from.
#[derive(Hash)]
pub(super) struct StateLoss {
    nonce: u64,
    answers: Vec<Option<(Ballot, Part)>>,
    /// The disseminated batches of each of the others that have their state.
    inventories: Vec<Option<Vec<Range>>>,
    /// The leader that it takes over from, and the slot before which all must be here.
    source: Option<(Ballot, Slot)>,
    /// Since when too many others have lost their state, too.
    lost_since: Option<Time>,
}

impl StateLoss {
    pub fn new(nonce: u64, members: usize) -> Self {
        Self {
            nonce,
            answers: vec![None; members],
            inventories: vec![None; members],
            source: None,
            lost_since: None,
        }
    }

    /// Tells answers to this question from those to earlier ones.
    pub const fn nonce(&self) -> u64 {
        self.nonce
    }

    pub const fn source(&self) -> Option<(Ballot, Slot)> {
        self.source
    }

    /// Whether too many others have had no state for longer than this.
    pub fn is_lost(&self, now: Time, limit: Duration) -> bool {
        self.lost_since
            .is_some_and(|since| now.since(since) > limit)
    }

    /// The disseminated batches of the others.
    pub fn inventories(&self) -> impl Iterator<Item = (ReplicaId, &[Range])> {
        let all = self.inventories.iter().enumerate();
        all.filter_map(|(from, ranges)| Some((ReplicaId(from as u16), ranges.as_deref()?)))
    }

    /// The batches that another replica holds, by its answer to this question.
    pub fn on_inventory(&mut self, from: ReplicaId, nonce: u64, part: Part, held: Vec<Range>) {
        if nonce == self.nonce && part != Part::Recovering {
            self.inventories[from.index()] = Some(held);
        }
    }

    /// Whether an answer with this nonce still counts.
    pub const fn asks(&self, nonce: u64) -> bool {
        nonce == self.nonce && self.source.is_none()
    }

    /// An answer of another replica, which has promised this ballot. Gives the source when the
    /// answers show it: a majority, none of them without its state, none with a higher promise than
    /// the leader among them, whose ballot is not below the own promise.
    pub fn on_answer(
        &mut self,
        from: ReplicaId,
        (promised, part): (Ballot, Part),
        own: Ballot,
        me: &Member,
        now: Time,
    ) -> Option<Ballot> {
        self.answers[from.index()] = Some((promised, part));
        let answers = || self.answers.iter().flatten();
        let lost = 1 + answers()
            .filter(|(_, part)| *part == Part::Recovering)
            .count();
        if me.are_too_many(lost) {
            self.lost_since.get_or_insert(now);
        } else {
            self.lost_since = None;
        }
        let intact = || answers().filter(|(_, part)| *part != Part::Recovering);
        // A replica that promised more than the leader's ballot may be a candidate that never wins,
        // or is gone permanently. Any majority will do, so its answer may as well not have come.
        let leads = |(promised, part): &(Ballot, Part)| match part {
            Part::Leader { end } => Some((*promised, *end)),
            _ => None,
        };
        let (best, end) = intact().filter_map(leads).max()?;
        let below = intact().filter(|(promised, _)| *promised <= best).count();
        if below < me.majority() || best < own {
            return None;
        }
        self.source = Some((best, end));
        Some(best)
    }
}
