//! The end of an epoch: one for all, told when it is final, and nothing is executed behind it.
//!
//! ```text
//!   replica 0   1 2 3 4 seal          base 5, next epoch a
//!   replica 1   1 2 3 4 seal 6 ◄────── violation
//!   replica 2   1 2 3 4 5 6 seal ◄──── violation: another base
//! ```

use super::Violation;
use quintet_replica::{CommandTime, EpochNumber, Node, Seal, Slot, SuccessorPrefix};
use std::collections::BTreeMap;

const PROPERTY: &str = "past_seal";

/// The ends of epochs.
#[derive(Debug, Default)]
pub struct PastSeal {
    epochs: BTreeMap<EpochNumber, OneEpoch>,
}

impl PastSeal {
    /// Checks the report of replica `by` about the end of its epoch.
    ///
    /// # Errors
    /// When that is told too early, or differently elsewhere, or something was executed behind it.
    pub fn shows(&mut self, by: u16, node: &Node) -> Result<(), Violation> {
        let Some(seal) = node.sealed() else {
            return Ok(());
        };
        let stable = match node.speculates() && !node.is_between_epochs() {
            true => node.stable(),
            false => seal.base.slot,
        };
        // Nothing behind the end moves the log's clock.
        if !node.is_fetching() {
            in_time(by, seal, node.log_time())?;
        }
        self.of(node.epoch()).told(by, seal, stable)
    }

    /// The state that the node of replica `by` has once it tells of the end.
    ///
    /// # Errors
    /// When it is not that of the others that tell of the end.
    pub fn shows_state(&mut self, by: u16, node: &mut Node) -> Result<(), Violation> {
        // While another state is being restored, this one is in pieces.
        match node.sealed().is_some() && !node.is_fetching() {
            true => self.of(node.epoch()).stands(by, node.state_digest()),
            false => Ok(()),
        }
    }

    /// Replica `by` has executed this position while in this epoch, and it is final.
    ///
    /// # Errors
    /// When that is behind the end of the epoch.
    pub fn executed(
        &mut self,
        by: u16,
        epoch: EpochNumber,
        position: u64,
    ) -> Result<(), Violation> {
        self.of(epoch).executed(by, position)
    }

    /// The end of an epoch, once a replica has reported it.
    #[must_use]
    pub fn seal(&self, epoch: EpochNumber) -> Option<&Seal> {
        self.epochs.get(&epoch)?.seal()
    }

    fn of(&mut self, epoch: EpochNumber) -> &mut OneEpoch {
        self.epochs.entry(epoch).or_default()
    }
}

/// The epoch has ended at this time of the log, if it has ended in time.
fn in_time(by: u16, seal: &Seal, time: CommandTime) -> Result<(), Violation> {
    let last = SuccessorPrefix::read(&seal.successor).map(|next| next.not_after);
    if last.is_some_and(|last| time <= last) {
        return Ok(());
    }
    let what =
        format!("the epoch has ended at {time:?} for replica {by}, which must be by {last:?}");
    Err(Violation::new(PROPERTY, what))
}

/// The end of the epoch as it was told first, and how far the executions of replicas are final.
#[derive(Debug, Default)]
struct OneEpoch {
    told: Option<(u16, Seal)>,
    /// The last position, and who executed it.
    last: (u64, u16),
    /// The state at the end, as it was seen first.
    state: Option<(u16, u128)>,
}

impl OneEpoch {
    /// The epoch has ended for replica `by`, with a state of this digest: it is the same wherever
    /// that is and whenever one looks.
    ///
    /// # Errors
    /// When it is not.
    fn stands(&mut self, by: u16, state: u128) -> Result<(), Violation> {
        let (first, expected) = *self.state.get_or_insert((by, state));
        if state == expected {
            return Ok(());
        }
        let what = format!(
            "the state of replica {by} behind the end of the epoch is not that of replica {first}"
        );
        Err(Violation::new(PROPERTY, what))
    }

    /// Replica `by` tells that the epoch has ended; what it has executed up to `stable` is final.
    ///
    /// # Errors
    /// When that is told too early, or differently elsewhere, or something was executed behind it.
    fn told(&mut self, by: u16, seal: &Seal, stable: Slot) -> Result<(), Violation> {
        let base = seal.base;
        if base.slot > stable {
            let what = format!(
                "replica {by} tells of an end at slot {} that may still be undone: {stable} is \
                 the last final one",
                base.slot
            );
            return Err(Violation::new(PROPERTY, what));
        }
        match &self.told {
            None => self.told = Some((by, seal.clone())),
            Some((first, told)) if told != seal => {
                let what = format!(
                    "the epoch ends at {:?} at replica {first}, at {base:?} at replica {by}, or \
                     with other successors",
                    told.base
                );
                return Err(Violation::new(PROPERTY, what));
            }
            Some(_) => {}
        }
        self.check()
    }

    /// Replica `by` has executed this position, and it is final.
    ///
    /// # Errors
    /// When that is behind the end of the epoch.
    fn executed(&mut self, by: u16, position: u64) -> Result<(), Violation> {
        self.last = self.last.max((position, by));
        self.check()
    }

    fn seal(&self) -> Option<&Seal> {
        self.told.as_ref().map(|(_, seal)| seal)
    }

    fn check(&self) -> Result<(), Violation> {
        let (last, by) = self.last;
        match self.seal() {
            Some(seal) if last > seal.base.position.0 => Err(Violation::new(
                PROPERTY,
                format!(
                    "replica {by} executed position {last}; the epoch ended at {}",
                    seal.base.position
                ),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{Bytes, Executed, Position};

    fn seal(slot: u64, position: u64, successor: &'static [u8]) -> Seal {
        let (slot, position) = (Slot(slot), Position(position));
        Seal {
            base: Executed { slot, position },
            successor: Bytes::from_static(successor),
        }
    }

    #[test]
    fn single_final_end_passes_and_other_ends_are_violations() {
        let mut checker = OneEpoch::default();
        assert_eq!(checker.executed(0, 4), Ok(()));
        assert!(
            checker.told(1, &seal(7, 5, b"a"), Slot(6)).is_err(),
            "early"
        );
        assert_eq!(checker.told(0, &seal(7, 5, b"a"), Slot(7)), Ok(()));
        assert_eq!(checker.told(1, &seal(7, 5, b"a"), Slot(9)), Ok(()));
        assert_eq!(checker.executed(2, 5), Ok(()));
        assert!(checker.told(2, &seal(7, 5, b"b"), Slot(9)).is_err());
        assert!(checker.told(2, &seal(8, 5, b"a"), Slot(9)).is_err());
        assert!(checker.executed(2, 6).is_err());
        assert!(
            in_time(0, &seal(7, 5, b"a"), CommandTime(1)).is_err(),
            "unread"
        );
        let mut late = OneEpoch::default();
        assert_eq!(late.executed(0, 6), Ok(()));
        assert!(late.told(0, &seal(7, 5, b"a"), Slot(7)).is_err());
        assert_eq!(late.stands(0, 8), Ok(()));
        assert_eq!(late.stands(1, 8), Ok(()));
        assert!(late.stands(0, 9).is_err(), "it changed behind the end");
    }
}
