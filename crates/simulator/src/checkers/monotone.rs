//! Pointers and promises that must not go back.
//!
//! ```text
//!   within one run     committed, stable, executed, view ──► only forward
//!   across a restart   view ≥ the view shown when a promise became durable (disk never forgets)
//!   always             stable ≤ executed ≤ accepted; executed ≤ committed unless it speculates
//! ```

use super::Violation;
use quintet_replica::{EpochNumber, Node, PersistId, Slot, Status};
use std::collections::VecDeque;

/// The pointers and views that one replica has shown so far.
#[derive(Clone, Debug, Default)]
pub struct Monotone {
    /// Views are an epoch's own.
    epoch: EpochNumber,
    view: u64,
    committed: Slot,
    executed: Slot,
    /// The view at the last promise that is durable.
    promised: u64,
    /// Promises on their way to the disk: when they were made, and the view shown then.
    promises: VecDeque<(PersistId, u64, u64)>,
}

const PROPERTY: &str = "monotone";

impl Monotone {
    /// The node of replica `by` after an event.
    ///
    /// # Errors
    /// See [`Self::shows`].
    pub fn shows_node(&mut self, by: u16, node: &Node) -> Result<(), Violation> {
        self.meet(node);
        match node.is_between_epochs() {
            true => Ok(()),
            false => {
                let (executed, status) = (node.executed().slot, node.protocol_status());
                let known = status.accepted.max(status.committed);
                // Executions of one that speculates may wait for being undone.
                let executed = match node.speculates() && node.has_effects_waiting() {
                    true => executed.min(known),
                    false => executed,
                };
                self.shows(by, &status, executed, node.speculates())
            }
        }
    }

    /// The node of replica `by` has started again.
    ///
    /// # Errors
    /// See [`Self::restarted`].
    pub fn restarted_node(&mut self, by: u16, node: &Node) -> Result<(), Violation> {
        self.meet(node);
        let between = node.is_between_epochs();
        let view = match between {
            true => self.promised,
            false => node.protocol_status().view,
        };
        self.restarted(by, view)
    }

    fn meet(&mut self, node: &Node) {
        if node.epoch() != self.epoch {
            *self = Self {
                epoch: node.epoch(),
                ..Self::default()
            };
        }
    }

    /// The replica shows this after an event. `speculates` is the protocol's word.
    ///
    /// # Errors
    /// When a pointer went back or passed another.
    pub fn shows(
        &mut self,
        by: u16,
        status: &Status,
        executed: Slot,
        speculates: bool,
    ) -> Result<(), Violation> {
        let back = |what: &str, from: u64, to: u64| {
            let what = format!("{what} of replica {by} went back from {from} to {to}");
            Err(Violation::new(PROPERTY, what))
        };
        if status.view < self.view {
            return back("view", self.view, status.view);
        }
        if status.committed < self.committed {
            return back("committed", self.committed.0, status.committed.0);
        }
        if executed < self.executed && !speculates {
            return back("executed", self.executed.0, executed.0);
        }
        if executed > status.accepted.max(status.committed) {
            let what = format!(
                "replica {by} executed {executed}, accepted only {}, committed {}",
                status.accepted, status.committed
            );
            return Err(Violation::new(PROPERTY, what));
        }
        if executed > status.committed && !speculates {
            let what = format!(
                "replica {by} executed {executed}, committed {}",
                status.committed
            );
            return Err(Violation::new(PROPERTY, what));
        }
        (self.view, self.committed, self.executed) = (status.view, status.committed, executed);
        Ok(())
    }

    /// A promise is on its way to the disk, made `now` by a turn that ends with this `view`. Of
    /// several in one turn only the last need tell it.
    pub fn promises(&mut self, id: PersistId, now: u64, view: u64) {
        let last = self.promises.back();
        if last.is_some_and(|(_, at, shown)| (*at, *shown) == (now, view)) {
            self.promises.pop_back();
        }
        self.promises.push_back((id, now, view));
    }

    /// All writes up to this one are durable.
    pub fn durable(&mut self, upto: PersistId) {
        while self.promises.front().is_some_and(|(id, ..)| *id <= upto) {
            if let Some((_, _, view)) = self.promises.pop_front() {
                self.promised(view);
            }
        }
    }

    /// A promise made when the replica showed `view` is durable.
    pub fn promised(&mut self, view: u64) {
        self.promised = self.promised.max(view);
    }

    /// The replica has started again and shows `view`.
    ///
    /// # Errors
    /// When it shows less than it had durably promised.
    pub fn restarted(&mut self, by: u16, view: u64) -> Result<(), Violation> {
        let (epoch, promised) = (self.epoch, self.promised);
        *self = Self {
            epoch,
            promised,
            ..Self::default()
        };
        if view < promised {
            let what =
                format!("replica {by} came back in view {view}, durably promised was {promised}");
            return Err(Violation::new(PROPERTY, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(view: u64, committed: u64) -> Status {
        let slot = Slot(committed);
        Status {
            view,
            committed: slot,
            accepted: slot,
            ..Status::default()
        }
    }

    #[test]
    fn forward_is_fine_and_back_is_not() {
        let mut monotone = Monotone::default();
        assert_eq!(monotone.shows(0, &status(1, 5), Slot(4), false), Ok(()));
        assert_eq!(monotone.shows(0, &status(2, 5), Slot(5), false), Ok(()));
        assert!(
            monotone
                .clone()
                .shows(0, &status(1, 5), Slot(5), false)
                .is_err()
        );
        assert!(
            monotone
                .clone()
                .shows(0, &status(2, 4), Slot(4), false)
                .is_err()
        );
        assert!(
            monotone
                .clone()
                .shows(0, &status(2, 5), Slot(4), false)
                .is_err()
        );
        assert!(monotone.shows(0, &status(2, 5), Slot(6), false).is_err());
    }

    #[test]
    fn durable_promise_outlives_a_restart() {
        let mut monotone = Monotone::default();
        monotone.promises(PersistId(1), 5, 3);
        assert_eq!(monotone.clone().restarted(0, 2), Ok(()), "not durable");
        monotone.durable(PersistId(1));
        assert_eq!(monotone.restarted(0, 3), Ok(()));
        assert!(monotone.restarted(0, 2).is_err());
    }

    #[test]
    fn of_promises_in_one_turn_the_last_tells_the_view() {
        let mut monotone = Monotone::default();
        monotone.promises(PersistId(1), 5, 2);
        monotone.promises(PersistId(2), 5, 2);
        monotone.promises(PersistId(3), 6, 2);
        monotone.durable(PersistId(1));
        assert_eq!(monotone.clone().restarted(0, 1), Ok(()));
        monotone.durable(PersistId(2));
        assert!(monotone.restarted(0, 1).is_err());
    }
}
