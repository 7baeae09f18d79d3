//! Hashing the replicated state as of a position while later batches are executed.
//!
//! ```text
//!   ordered tick that asks for it ──► begin: position, time, sessions, machine as they are
//!   digest_step … between batches ──► sessions, then the machine ──► StateDigest
//!   restore, roll-back            ──► dropped
//! ```

use super::*;
use crate::digest::{DigestBegun, StateSum};

/// The payload of a [`RequestKind::Tick`] that asks every replica for a digest of its state there.
pub const DIGEST_TICK: &[u8] = b"digest";

/// The digest of a replicated state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateDigest {
    /// As of here.
    pub executed: Executed,
    /// Of sessions, state machine, position and time of the log.
    pub digest: u128,
}

/// A digest in progress.
#[derive(Debug)]
pub(super) struct Digesting {
    executed: Executed,
    time: CommandTime,
    sessions: Option<u128>,
    machine: Option<u128>,
}

impl Executor {
    /// From now on ordered ticks that ask for it begin a digest.
    pub fn take_digests(&mut self) {
        self.takes_digests = true;
    }

    /// Begins a digest of the state as it is now, unless one is in progress: that one would
    /// otherwise never end where ticks come faster than the state can be hashed.
    pub fn begin_digest(&mut self) {
        if !self.takes_digests || self.digesting.is_some() {
            return;
        }
        let machine = match self.machine.begin_digest() {
            DigestBegun::Unsupported => return self.takes_digests = false,
            DigestBegun::Done(digest) => Some(digest),
            DigestBegun::Steps => None,
        };
        self.sessions.begin_digest();
        self.digesting = Some(Digesting {
            executed: self.executed,
            time: self.time,
            sessions: None,
            machine,
        });
    }

    /// Where the digest in progress was begun.
    #[must_use]
    pub fn digesting(&self) -> Option<Executed> {
        self.digesting.as_ref().map(|digesting| digesting.executed)
    }

    /// Continues with the digest in progress for about `budget` bytes; gives it at the end.
    pub fn digest_step(&mut self, budget: usize) -> Option<StateDigest> {
        let digesting = self.digesting.as_mut()?;
        if digesting.sessions.is_none() {
            digesting.sessions = self.sessions.digest_step(budget);
        } else if digesting.machine.is_none() {
            digesting.machine = self.machine.digest_step(budget);
        }
        let (sessions, machine) = (digesting.sessions?, digesting.machine?);
        let mut sum = StateSum::default();
        let part = sum.begin_part();
        part.extend_from_slice(&sessions.to_le_bytes());
        part.extend_from_slice(&machine.to_le_bytes());
        part.extend_from_slice(&digesting.executed.position.0.to_le_bytes());
        part.extend_from_slice(&digesting.time.0.to_le_bytes());
        sum.end_part();
        let executed = digesting.executed;
        self.digesting = None;
        Some(StateDigest {
            executed,
            digest: sum.finish(),
        })
    }

    /// Drops the digest in progress.
    pub fn abandon_digest(&mut self) {
        if self.digesting.take().is_some() {
            self.sessions.abandon_digest();
            self.machine.abandon_digest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{batch_of, executor, no_route};
    use super::*;
    use crate::Position;
    use crate::{BatchBuilder, FrontendId, Level};

    fn tick() -> Bytes {
        let mut builder = BatchBuilder::new();
        builder.push(CommandId::default(), RequestKind::Tick, 0, DIGEST_TICK);
        builder.finish(FrontendId(1), BatchId(9), Level::Ordered)
    }

    fn taking() -> Executor {
        let mut executor = executor();
        executor.take_digests();
        executor
    }

    fn finish(executor: &mut Executor) -> StateDigest {
        (0..9)
            .find_map(|_| executor.digest_step(1 << 20))
            .expect("it ends")
    }

    #[test]
    fn digest_is_of_the_ticks_position_whatever_is_executed_later() {
        let (mut one, mut other) = (taking(), taking());
        for executor in [&mut one, &mut other] {
            executor.execute(Slot(1), CommandTime(5), &batch_of(&[(1, b"a")]), None);
            executor.execute(Slot(3), CommandTime(6), &tick(), None);
        }
        one.execute(Slot(4), CommandTime(7), &batch_of(&[(2, b"b")]), None);
        let digest = finish(&mut one);
        assert_eq!(digest.executed.position, Position(2));
        assert_eq!(digest.executed.slot, Slot(3));
        assert_eq!(finish(&mut other), digest);
        one.execute(Slot(5), CommandTime(8), &tick(), None);
        assert_ne!(finish(&mut one).digest, digest.digest);
    }

    #[test]
    fn tick_changes_nothing_where_digests_are_not_taken() {
        let mut executor = executor();
        executor.execute(Slot(1), CommandTime(5), &tick(), Some(no_route()));
        assert_eq!(executor.digesting(), None);
        assert_eq!(executor.executed().position, Position(1));
    }

    #[test]
    fn second_tick_waits_for_nothing_and_starts_nothing() {
        let mut executor = taking();
        executor.execute(Slot(1), CommandTime(5), &tick(), None);
        executor.execute(Slot(2), CommandTime(6), &tick(), None);
        assert_eq!(finish(&mut executor).executed.slot, Slot(1));
        assert_eq!(executor.digesting(), None);
    }

    #[test]
    fn digest_is_dropped_when_the_state_is_replaced() {
        let mut executor = taking();
        executor.speculate();
        executor.execute(Slot(1), CommandTime(5), &batch_of(&[(1, b"a")]), None);
        executor.execute(Slot(2), CommandTime(6), &tick(), None);
        executor.roll_back(Slot(1), None).expect("it rolls back");
        assert_eq!(executor.digesting(), None);
        executor.execute(Slot(2), CommandTime(6), &tick(), None);
        assert_eq!(executor.digesting().map(|at| at.slot), Some(Slot(2)));
    }
}
