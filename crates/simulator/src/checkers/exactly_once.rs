//! Exactly once and in session order, however often a command was sent.
//!
//! ```text
//!   agreed order   (s1, 1, op 4) (s2, 1, op 5) (s1, 2, op 6) (s1, 2, op 6) ◄─ violation
//! ```
//!
//! A session's sequence numbers ascend by one; no operation stands twice in the order, be it under
//! two ids; and none that its client was told had not been executed stands there at all.

use super::{Violation, agreement::Applied};
use crate::history::{Fate, Recorded};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet_replica::SessionId;
use std::fmt::Debug;

/// The items that the agreed order has executed.
#[derive(Debug, Default)]
pub struct ExactlyOnce {
    /// By operation number: where it was executed, 0 for not yet.
    positions: Vec<u64>,
    /// By operation number: how many had been executed before it, by the first replica.
    ranks: Vec<u32>,
    count: u32,
    sessions: HashMap<SessionId, (u64, u64), FixedState>,
}

const PROPERTY: &str = "exactly_once";

impl ExactlyOnce {
    /// A command enters the agreed order at `position`. Positions are given in the order in which
    /// they are first executed anywhere.
    ///
    /// # Errors
    /// When the operation stands elsewhere in the order, or its session's order is broken.
    pub fn executed(&mut self, position: u64, command: &Applied) -> Result<(), Violation> {
        let number = command.number as usize;
        if command.number > u64::from(u32::MAX) {
            return Err(Violation::new(
                PROPERTY,
                format!("{command:?} is no client's"),
            ));
        }
        if number >= self.positions.len() {
            self.positions.resize(number + 1, 0);
            self.ranks.resize(number + 1, 0);
        }
        self.count += 1;
        self.ranks[number] = self.count;
        let before = std::mem::replace(&mut self.positions[number], position);
        if before != 0 {
            return Err(Violation::new(
                PROPERTY,
                format!("operation {number} was executed at positions {before} and {position}"),
            ));
        }
        // A later part of the order may be executed first by a replica that got a snapshot;
        // then the order within the session is compared by position.
        let (at, sequence) = (position, command.id.sequence);
        let last = self.sessions.entry(command.id.session).or_insert((0, 0));
        let in_order = if at >= last.0 {
            sequence > last.1
        } else {
            sequence < last.1
        };
        if !in_order {
            return Err(Violation::new(
                PROPERTY,
                format!(
                    "{:?} executed number {sequence} at position {at} and {} at {}",
                    command.id.session, last.1, last.0
                ),
            ));
        }
        *last = (*last).max((at, sequence));
        Ok(())
    }

    /// Where an operation was executed.
    #[must_use]
    pub fn position(&self, number: usize) -> Option<u64> {
        self.positions
            .get(number)
            .copied()
            .filter(|position| *position != 0)
    }

    /// The place of an operation in the order of execution, within its batch too.
    #[must_use]
    pub fn place(&self, number: usize) -> Option<u64> {
        let rank = u64::from(*self.ranks.get(number)?);
        Some((self.position(number)? << 32) | rank)
    }

    /// No operation that its client was told had not been executed was executed.
    ///
    /// # Errors
    /// With the first one that was.
    pub fn check_failed<O: Debug, R: Debug>(
        &self,
        history: &[Recorded<O, R>],
    ) -> Result<(), Violation> {
        for (number, recorded) in history.iter().enumerate() {
            if matches!(recorded.fate, Fate::Failed)
                && let Some(position) = self.position(number)
            {
                return Err(Violation::new(
                    PROPERTY,
                    format!(
                        "operation {number} was executed at position {position}, and its client \
                         was told that it had not been: {recorded:?}"
                    ),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{history::History, machine::Operation};
    use quintet_replica::CommandId;

    fn command(number: u64, session: u64, sequence: u64) -> Applied {
        let session = SessionId {
            owner: 1,
            number: session,
        };
        Applied {
            id: CommandId { session, sequence },
            number,
            hash: 0,
        }
    }

    #[test]
    fn each_once_in_session_order_passes() {
        let mut once = ExactlyOnce::default();
        assert_eq!(once.executed(1, &command(0, 1, 1)), Ok(()));
        assert_eq!(once.executed(1, &command(1, 2, 1)), Ok(()));
        assert_eq!(once.executed(2, &command(2, 1, 2)), Ok(()));
        assert_eq!(once.position(2), Some(2));
    }

    #[test]
    fn twice_under_another_id_is_seen() {
        let mut once = ExactlyOnce::default();
        assert_eq!(once.executed(1, &command(0, 1, 1)), Ok(()));
        assert!(once.executed(2, &command(0, 2, 1)).is_err());
    }

    #[test]
    fn session_out_of_order_is_seen() {
        let mut once = ExactlyOnce::default();
        assert_eq!(once.executed(1, &command(0, 1, 2)), Ok(()));
        assert!(once.executed(2, &command(1, 1, 1)).is_err());
    }

    #[test]
    fn failed_operation_must_not_be_executed() {
        let mut history: History = History::default();
        let number = history.invoke(0, 0, Operation::Write(1));
        history.end(number, Fate::Failed);
        let mut once = ExactlyOnce::default();
        assert_eq!(once.check_failed(history.operations()), Ok(()));
        assert_eq!(once.executed(1, &command(number as u64, 1, 1)), Ok(()));
        assert!(once.check_failed(history.operations()).is_err());
    }
}
