//! Executions before they are final, kept until they are: only then are they compared with others.
//!
//! ```text
//!   executed ──► held, by slot ──► stable as far as here ──► agreement, state hashes
//!                   └── undone ──► dropped: no replica was to rely on it
//! ```

use crate::machine::{Executed as Recorded, Queried};
use quintet_replica::{EpochNumber, Slot};
use std::collections::VecDeque;

/// The batches executed in one go, and the state after them.
#[derive(Clone, Debug)]
pub struct Run {
    /// The epoch that the replica was in behind it.
    pub epoch: EpochNumber,
    /// The last slot of it.
    pub slot: Slot,
    /// The batches with their commands.
    pub record: Vec<Recorded>,
    /// The hash of the whole state behind it. None where more of a state is yet to come: while what
    /// followed a snapshot is executed, and when a replica boots from such a one.
    pub state: Option<u128>,
    /// The reads there; answered when it is final, and never if it is undone.
    pub queries: Vec<Queried>,
}

/// The runs of one replica that may still be undone, in order.
#[derive(Clone, Debug, Default)]
pub struct Speculated {
    held: VecDeque<Run>,
}

impl Speculated {
    /// A run that ended at its slot. Runs held above it are not there any more, nor those of the
    /// slots that it executed. One that executed nothing, such as the beginning of an epoch, leaves
    /// what ended at its slot.
    pub fn executed(&mut self, run: Run) {
        let first = run.record.iter().find_map(|recorded| match recorded {
            Recorded::Batch { position, .. } => Some(*position),
            Recorded::Command { .. } => None,
        });
        let idle = run.record.is_empty();
        let before = |slot: Slot| slot < run.slot || idle && slot == run.slot;
        self.held.retain(|held| before(held.slot));
        if let Some(first) = first {
            self.held.retain(|held| {
                held.record.iter().all(|recorded| match recorded {
                    Recorded::Batch { position, .. } => *position < first,
                    Recorded::Command { .. } => true,
                })
            });
        }
        self.held.push_back(run);
    }

    /// The replica has begun to undo what is not final. It may install a state before it executes
    /// again, and then says that it has executed up to the same slot as before.
    pub fn undone(&mut self, stable: Slot) {
        self.held.retain(|held| held.slot <= stable);
    }

    /// The reads behind the last run; given back when no run is held any more.
    #[must_use]
    pub fn read(&mut self, queries: Vec<Queried>) -> Vec<Queried> {
        match self.held.back_mut() {
            Some(run) => {
                run.queries.extend(queries);
                Vec::new()
            }
            None => queries,
        }
    }

    /// The next run that is final, when all up to `stable` is.
    pub fn ready(&mut self, stable: Slot) -> Option<Run> {
        let ready = self.held.front().is_some_and(|run| run.slot <= stable);
        ready.then(|| self.held.pop_front()).flatten()
    }

    /// Whether nothing waits to become final.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The replica stopped.
    pub fn clear(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::CommandTime;

    fn run(slot: u64, position: u64) -> Run {
        let batch = Recorded::Batch {
            position,
            time: CommandTime(0),
            digest: 0,
        };
        Run {
            epoch: EpochNumber(1),
            slot: Slot(slot),
            record: vec![batch],
            state: Some(u128::from(slot)),
            queries: Vec::new(),
        }
    }

    #[test]
    fn runs_come_out_when_they_are_final_and_undone_ones_never() {
        let mut speculated = Speculated::default();
        for slot in 1..=3 {
            speculated.executed(run(slot, slot));
        }
        let mut ready = |stable| speculated.ready(Slot(stable)).map(|run| run.slot.0);
        assert_eq!((ready(1), ready(1)), (Some(1), None));
        speculated.executed(run(5, 2));
        let mut ready = |stable| speculated.ready(Slot(stable)).map(|run| run.slot.0);
        assert_eq!((ready(9), ready(9)), (Some(5), None));
    }

    #[test]
    fn undone_runs_never_come_out_whatever_becomes_final() {
        let mut speculated = Speculated::default();
        for slot in 1..=3 {
            speculated.executed(run(slot, slot));
        }
        speculated.undone(Slot(1));
        let mut ready = |stable| speculated.ready(Slot(stable)).map(|run| run.slot.0);
        assert_eq!((ready(9), ready(9)), (Some(1), None));
    }

    #[test]
    fn run_that_executed_nothing_leaves_what_ended_at_its_slot() {
        let mut speculated = Speculated::default();
        speculated.executed(run(1, 1));
        speculated.executed(run(2, 2));
        let record = Vec::new();
        speculated.executed(Run {
            record,
            ..run(1, 1)
        });
        let lengths = std::iter::from_fn(|| speculated.ready(Slot(9))).map(|run| run.record.len());
        assert_eq!(lengths.collect::<Vec<_>>(), [1, 0]);
    }
}
