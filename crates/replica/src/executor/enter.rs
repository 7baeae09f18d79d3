//! The next epoch over the same state.
//!
//! ```text
//!   … 7  8 SEAL ─► sealed at (8, position) ─► enter ─► 9 10 …     slots and positions go on
//!     the state, the sessions and the log's clock stay as they are
//! ```

use super::*;
use crate::{Descriptor, DescriptorError};

impl Executor {
    /// Where its epoch began.
    #[must_use]
    pub const fn base(&self) -> Executed {
        self.base
    }

    /// The epoch begins that the seal names, over the state that is here: what is ordered in it is
    /// executed behind the seal's slot. Whatever waits for a slot of the epoch that has ended is
    /// answered that it has. What is executed from now on is final.
    ///
    /// # Errors
    /// When this program cannot read what the next epoch is; all stays as it is then.
    ///
    /// # Panics
    /// When the epoch has not ended for good, or a state is being restored.
    pub fn enter(
        &mut self,
        clock: u64,
        mut answer: impl FnMut(Answer),
    ) -> Result<Descriptor, DescriptorError> {
        assert!(self.restoring.before.is_none(), "the state is whole");
        let seal = self.sealed().cloned();
        let Seal { base, successor } = seal.expect("the epoch has ended for good");
        let next = Descriptor::decode(successor.clone())?;
        let waiting = core::mem::take(&mut self.waiting);
        self.waiting_count = 0;
        for waiting in waiting.into_values().flatten() {
            let Waiting {
                batch,
                wanted,
                route,
            } = waiting;
            if let Some(done) = self.answer_wanted(&batch, wanted, route, clock) {
                answer(done);
            }
        }
        // All of it depends on nothing that comes behind the seal, which is final.
        if let Some(speculation) = self.speculation.take() {
            speculation.held.into_iter().for_each(&mut answer);
        }
        self.sealed = None;
        self.base = base;
        self.epoch = next.number;
        self.set_descriptor(successor);
        self.abandon_digest();
        self.limits.agree(&next.limits);
        let (lifetime, kept) = (self.limits.session_lifetime, self.limits.kept_replies);
        self.sessions.enter_epoch(lifetime, kept, self.time);
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::seal::tests::{
        built, commands, execute, id, next, ours, seal_of, sealable_executor, stream,
    };
    use super::super::tests::{executor, no_route};
    use super::*;
    use crate::{Level, Position, Results};
    use RequestStatus::{Done, Refused, Sealed as Ended};

    fn sealed() -> Executor {
        let mut executor = sealable_executor();
        assert_eq!(execute(&mut executor, 1, &commands(&[1])), [Done, Done]);
        assert_eq!(execute(&mut executor, 2, &seal_of(&next("a"))), [Done]);
        executor
    }

    fn statuses(answers: &[Answer]) -> Vec<Vec<RequestStatus>> {
        let of = |answer: &Answer| Results::new(&answer.results).map(|it| it.0).collect();
        answers.iter().map(of).collect()
    }

    #[test]
    fn next_epoch_goes_on_over_the_same_state_and_can_end_itself() {
        let mut executor = sealed();
        assert_eq!(execute(&mut executor, 3, &commands(&[2])), [Ended; 2]);
        let base = executor.executed();
        let entered = executor.enter(0, |_| panic!("nobody waits"));
        assert_eq!(entered, Ok(next("a")));
        assert_eq!((executor.base(), executor.executed()), (base, base));
        assert_eq!((executor.progress(), executor.has_seal()), (Slot(2), false));
        // What was answered runs no second time, and what was told that the epoch ended runs now.
        assert_eq!(execute(&mut executor, 3, &commands(&[1, 2])), [Done; 3]);
        let mut model = sealable_executor();
        execute(&mut model, 1, &commands(&[1]));
        execute(
            &mut model,
            2,
            &built(Level::Ordered, |batch| {
                batch.push(CommandId::default(), RequestKind::Tick, 0, &[]);
            }),
        );
        execute(&mut model, 3, &commands(&[1, 2]));
        assert_eq!(executor.digest(), model.digest());
        assert_eq!(executor.executed(), model.executed());
        assert_eq!(executor.executed().position, Position(3));

        assert_eq!(
            execute(&mut executor, 4, &seal_of(&next("b"))),
            [Refused],
            "one that came too late"
        );
        let third = next("a").successor();
        assert_eq!(execute(&mut executor, 5, &seal_of(&third)), [Done]);
        let seal = executor.sealed().cloned().expect("it has ended");
        assert_eq!(seal.base.slot, Slot(5));
        assert_eq!(executor.enter(0, |_| {}), Ok(third));
        assert_eq!(executor.base(), seal.base);
    }

    #[test]
    fn snapshot_of_the_next_epoch_names_it_and_where_it_began() {
        let mut executor = sealed();
        let base = executor.executed();
        executor.enter(0, |_| {}).expect("it can be read");
        execute(&mut executor, 3, &commands(&[2]));
        let stream = stream(&mut executor);
        let read = |offset: u64| Some(stream.slice((offset as usize).min(stream.len())..));
        let mut again = sealed();
        again.enter(0, |_| {}).expect("it can be read");
        let header = again.restore(read).expect("it restores");
        assert_eq!((header.epoch, header.base), (EpochNumber(2), base));
        assert_eq!(
            (header.seal, &header.descriptor),
            (None, &next("a").encode())
        );
        assert_eq!(again.base(), base);
        assert_eq!(again.digest(), executor.digest());
        let refused = sealed().restore(read).expect_err("of another epoch");
        assert!(refused.to_string().contains("epoch mismatch"), "{refused}");
    }

    #[test]
    fn what_waits_for_a_slot_of_the_old_epoch_is_answered_that_it_has_ended() {
        let mut executor = sealed();
        let read = |level| built(level, |b| b.push(id(9), RequestKind::Command, 0, b""));
        for level in [Level::Linearizable, Level::Stale] {
            let waits = executor.query(read(level), Slot(7), false, no_route(), 0);
            assert_eq!(waits, None);
        }
        let waits = executor.replay(commands(&[3]), Slot(7), no_route());
        assert_eq!(waits, None);
        let mut answers = Vec::new();
        let entered = executor.enter(0, |answer| answers.push(answer));
        assert!(entered.is_ok());
        assert_eq!(
            statuses(&answers),
            [alloc::vec![Ended], alloc::vec![Done], alloc::vec![Ended; 2]]
        );
        let slot = executor.progress();
        let answer = executor.query(read(Level::Linearizable), slot, false, no_route(), 0);
        assert_eq!(statuses(&answer.into_iter().collect::<Vec<_>>()), [[Done]]);
    }

    #[test]
    fn agreed_limits_are_those_of_the_epoch_that_begins() {
        let limits = ExecutorLimits {
            session_lifetime: Duration::from_secs(3),
            kept_replies: KeptReplies {
                bytes_max: 77,
                ..KeptReplies::default()
            },
            ..ExecutorLimits::default()
        };
        let after = Descriptor {
            limits: limits.terms(),
            ..next("a")
        };
        let mut executor = sealable_executor();
        execute(&mut executor, 1, &seal_of(&after));
        executor.enter(0, |_| {}).expect("it can be read");
        assert_eq!(executor.limits.terms(), limits.terms());
    }

    #[test]
    fn epoch_that_this_program_cannot_read_does_not_begin() {
        let mut newer = next("a");
        newer.level += 1;
        let mut executor = sealable_executor();
        execute(&mut executor, 1, &seal_of(&newer));
        let executed = executor.executed();
        let refused = executor.enter(0, |_| {});
        assert_eq!(refused, Err(DescriptorError::Level(newer.level)));
        assert_eq!(executor.executed(), executed);
        assert!(executor.has_seal());
    }

    #[test]
    #[should_panic(expected = "the epoch has ended for good")]
    fn epoch_whose_end_may_be_undone_is_not_left() {
        let mut executor = executor();
        executor.set_descriptor(ours().encode());
        executor.speculate();
        execute(&mut executor, 1, &seal_of(&next("a")));
        let _ = executor.enter(0, |_| {});
    }

    #[test]
    fn answers_that_wait_for_a_final_order_are_given_when_the_next_epoch_begins() {
        let mut executor = executor();
        executor.set_descriptor(ours().encode());
        executor.speculate();
        assert_eq!(execute(&mut executor, 1, &seal_of(&next("a"))), []);
        let mut told = Vec::new();
        executor.became_stable(Slot(1), |answer| told.push(answer));
        assert_eq!(statuses(&told), [[Done]]);
        assert_eq!(execute(&mut executor, 2, &commands(&[1])), [Ended; 2]);
        executor
            .enter(0, |_| panic!("nothing waits"))
            .expect("read");
        assert!(!executor.speculates());
        assert_eq!(execute(&mut executor, 2, &commands(&[1])), [Done; 2]);
    }
}
