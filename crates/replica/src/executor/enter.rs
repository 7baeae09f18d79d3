//! The next epoch over the same state, and the state of an epoch that this replica was not in.
//!
//! ```text
//!   … 7  8 SEAL ─► sealed at (8, p) ─► enter ─► (8, p + 1)  9 10 …      slots continue, too
//!     the state, the sessions and the log's clock stay as they are
//!
//!   … 5  6 ─► follow ─► no state, until one of the later epoch has been restored
//! ```
//!
//! The beginning of an epoch is a position of its own: sessions count from there again, so that the
//! state is another one than that of the end.

use super::*;
use crate::{Descriptor, DescriptorError};

impl Executor {
    /// Where its epoch began.
    #[must_use]
    pub const fn base(&self) -> Executed {
        self.base
    }

    /// For an executor without a state: the epoch began here.
    pub const fn set_base(&mut self, base: Executed) {
        self.base = base;
    }

    /// The epoch begins that the seal names, over the state that is here: what is ordered in it is
    /// executed behind the seal's slot. Effects that wait for a slot of the epoch that has ended
    /// are dropped: the protocol that requested them does so again. Execution is final from now on.
    ///
    /// # Errors
    /// When this program cannot read what the next epoch is; all stays as it is then.
    ///
    /// # Panics
    /// When the epoch has not ended permanently, or a state is being restored.
    pub fn enter(&mut self) -> Result<Descriptor, DescriptorError> {
        assert!(self.restoring.is_idle(), "the state is whole");
        let seal = self.sealed().expect("the epoch has ended permanently");
        let next = Descriptor::decode(seal.successor.clone())?;
        let next = next.with_private_part_of(&Descriptor::decode(self.descriptor.clone())?);
        let seal = self.sealed.take().expect("the epoch has ended").seal;
        self.executed = seal.next_base();
        self.begin(&next, self.executed);
        let (lifetime, kept) = (self.limits.session_lifetime, self.limits.kept_replies);
        if self.injected.is(Bug::SessionsEndWithTheEpoch) {
            self.sessions = sessions(&self.limits).with_bug(self.injected);
        }
        self.sessions.enter_epoch(lifetime, kept, self.time);
        Ok(next)
    }

    /// A state of this later epoch will be restored in place of the one that is here, which is not
    /// to be used any more: what is executed before the epoch's beginning is none of it.
    ///
    /// # Panics
    /// When this executor has come as far as the epoch's beginning.
    pub fn follow(&mut self, next: &Descriptor, base: Executed) {
        self.begin_restore();
        self.executed.slot = self.executed.slot.min(self.stable());
        assert!(
            self.executed.slot < base.slot,
            "only who is behind an epoch's beginning follows"
        );
        self.begin(next, base);
        self.give_up_state();
    }

    /// The state of the epoch is given up: that of a peer comes in its place.
    pub fn forget(&mut self) {
        self.begin_restore();
        self.executed.slot = self.base.slot.previous();
        self.give_up_state();
    }

    fn give_up_state(&mut self) {
        self.sealed = None;
        self.drop_reads();
        self.sessions = sessions(&self.limits).with_bug(self.injected);
    }

    fn drop_reads(&mut self) {
        self.waiting.clear();
        self.waiting_count = 0;
    }

    fn begin(&mut self, next: &Descriptor, base: Executed) {
        self.drop_reads();
        self.speculation = None;
        self.base = base;
        self.epoch = next.number;
        self.set_descriptor(next.encode());
        self.abandon_digest();
        self.limits.agree(&next.limits);
    }
}

#[cfg(test)]
mod tests {
    use super::super::seal::tests::{
        built, commands, execute, id, next, ours, seal_of, sealable_executor, stream,
    };
    use super::super::stream::framed_feed;
    use super::super::tests::{executor, no_route};
    use super::*;
    use crate::{KeptReplies, Level, Position};
    use RequestStatus::{Done, Refused, Sealed as Ended};
    use alloc::string::ToString;
    use core::time::Duration;

    fn sealed() -> Executor {
        let mut executor = sealable_executor();
        assert_eq!(execute(&mut executor, 1, &commands(&[1])), [Done, Done]);
        assert_eq!(execute(&mut executor, 2, &seal_of(&next("a"))), [Done]);
        executor
    }

    #[test]
    fn next_epoch_continues_over_same_state_and_can_end() {
        let mut executor = sealed();
        assert_eq!(execute(&mut executor, 3, &commands(&[2])), [Ended; 2]);
        let end = executor.executed();
        assert_eq!(executor.enter(), Ok(next("a")));
        let base = Executed {
            position: end.position.next(),
            ..end
        };
        assert_eq!((executor.base(), executor.executed()), (base, base));
        assert_eq!((executor.progress(), executor.has_seal()), (Slot(2), false));
        assert_eq!(base.slot, Slot(2));
        // An answered command runs no second time; a command that was answered with the end of the
        // epoch runs now.
        assert_eq!(execute(&mut executor, 3, &commands(&[1, 2])), [Done; 3]);
        assert_eq!(executor.executed().position, Position(4));

        assert_eq!(
            execute(&mut executor, 4, &seal_of(&next("b"))),
            [Refused],
            "one that came too late"
        );
        let third = next("a").successor();
        assert_eq!(execute(&mut executor, 5, &seal_of(&third)), [Done]);
        let seal = executor.sealed().cloned().expect("it has ended");
        assert_eq!(seal.base.slot, Slot(5));
        assert_eq!(executor.enter(), Ok(third));
        assert_eq!(executor.base().slot, seal.base.slot);
    }

    #[test]
    fn snapshot_of_the_next_epoch_names_it_and_where_it_began() {
        let mut executor = sealed();
        executor.enter().expect("it can be read");
        let base = executor.executed();
        execute(&mut executor, 3, &commands(&[2]));
        let stream = stream(&mut executor);
        let read = |offset: u64| Some(stream.slice((offset as usize).min(stream.len())..));
        let mut again = sealed();
        again.enter().expect("it can be read");
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

    /// A bridge: a state of the first epoch, the batches up to this end of it, and an end.
    fn bridge(next: &Descriptor) -> Bytes {
        let mut executor = sealable_executor();
        execute(&mut executor, 1, &commands(&[1]));
        let state = stream(&mut executor);
        let mut batches = Vec::new();
        for (slot, batch) in [(2, commands(&[2])), (4, seal_of(next))] {
            execute(&mut executor, slot, &batch);
            batches.push(Fed {
                slot: Slot(slot),
                time: CommandTime(slot),
                batch,
            });
        }
        let end = FeedEnd {
            executed: executor.executed(),
            time: executor.time(),
            summary: Bytes::new(),
        };
        let feed = Feed {
            after: Slot(1),
            upto: end.executed.slot,
            batches,
            end: Some(end),
        };
        let mut bytes = BytesMut::from(&state[..state.len() - FRAME_HEAD]);
        bytes.extend_from_slice(&framed_feed(&feed));
        bytes.extend_from_slice(&framed(&[]));
        bytes.freeze()
    }

    /// An executor of the second epoch without its state.
    fn starting(next: &Descriptor, base: Executed) -> Executor {
        let (cluster, group) = (ClusterId(1), GroupId(0));
        let machine = executor().machine;
        let limits = ExecutorLimits::default();
        let mut starting = Executor::new(cluster, group, next.number, machine, limits);
        starting.set_descriptor(next.encode());
        starting.set_base(base);
        starting
    }

    #[test]
    fn state_of_the_epoch_before_leads_here_with_what_follows_it() {
        let mut live = sealable_executor();
        for (slot, batch) in [
            (1, commands(&[1])),
            (2, commands(&[2])),
            (4, seal_of(&next("a"))),
        ] {
            execute(&mut live, slot, &batch);
        }
        live.enter().expect("it can be read");
        let bytes = bridge(&next("a"));
        let read = |offset: u64| Some(bytes.slice((offset as usize).min(bytes.len())..));
        let mut again = starting(&next("a"), live.base());
        let header = again.restore(read).expect("it leads here");
        assert_eq!(
            (header.epoch, header.executed),
            (EpochNumber(2), live.base())
        );
        assert_eq!(again.digest(), live.digest());
        assert_eq!(
            (again.base(), again.executed(), again.limits.terms()),
            (live.base(), live.executed(), live.limits.terms())
        );
        assert_eq!(execute(&mut again, 5, &commands(&[2, 3])), [Done; 3]);

        let elsewhere = Executed {
            slot: Slot(3),
            ..live.base()
        };
        for (next, base) in [(next("b"), live.base()), (next("a"), elsewhere)] {
            let mut other = starting(&next, base);
            let refused = other.restore(read).expect_err("it leads elsewhere");
            assert!(refused.to_string().contains("do not lead"), "{refused}");
            assert_eq!((other.base(), other.epoch), (base, EpochNumber(2)));
        }
        // A peer gives no bridge.
        let mut peer = starting(&next("a"), live.base());
        peer.begin_restore();
        let refused = peer.restore_step(read, usize::MAX, u64::MAX);
        assert!(refused.is_err_and(|it| it.to_string().contains("epoch mismatch")));
    }

    #[test]
    fn speculation_is_undone_behind_a_state_of_the_epoch_before() {
        let agreed = ExecutorLimits {
            session_lifetime: Duration::from_secs(3),
            ..ExecutorLimits::default()
        };
        let after = Descriptor {
            limits: agreed.terms(),
            ..next("a")
        };
        let mut live = sealable_executor();
        for (slot, batch) in [
            (1, commands(&[1])),
            (2, commands(&[2])),
            (4, seal_of(&after)),
        ] {
            execute(&mut live, slot, &batch);
        }
        live.enter().expect("it can be read");
        let bytes = bridge(&after);
        let mut again = starting(&after, live.base());
        again.agree(&after.limits);
        let read = |offset: u64| Some(bytes.slice((offset as usize).min(bytes.len())..));
        again.restore(read).expect("it leads here");
        again.speculate();
        execute(&mut again, 5, &commands(&[3]));
        again.became_stable(Slot(5), |_| {});
        execute(&mut again, 6, &commands(&[4]));
        execute(&mut live, 5, &commands(&[3]));

        let mut little = |offset: u64| {
            let start = (offset as usize).min(bytes.len());
            Some(bytes.slice(start..bytes.len().min(start + 8)))
        };
        let told = |it: &Executor| {
            let terms = it.limits.terms();
            (it.base(), it.epoch, it.descriptor().clone(), terms)
        };
        let before = (told(&again), again.executed(), again.stable());
        assert!(again.begin_undo(Slot(5)));
        let mut steps = 0;
        while !again.undo_step(Some(&mut little), 1).expect("it restores") {
            let now = (told(&again), again.executed(), again.stable());
            assert_eq!((now, again.sealed()), (before.clone(), None));
            steps += 1;
            if steps == bytes.len() / 10 {
                // All but its end had come.
                assert!(again.begin_undo(Slot(5)), "once more");
            }
        }
        assert!(steps > bytes.len() / 8);
        assert_eq!(told(&again), told(&live));
        assert_eq!(again.digest(), live.digest());
        assert_eq!(again.executed(), live.executed());
        assert_eq!(execute(&mut again, 6, &commands(&[4])), [Done; 2]);
    }

    #[test]
    fn waits_for_slot_of_old_epoch_are_dropped() {
        let mut executor = sealed();
        let read = |level| built(level, |b| b.push(id(9), RequestKind::Command, 0, b""));
        for level in [Level::Linearizable, Level::Stale] {
            let waits = executor.query(read(level), Slot(7), false, no_route(), 0);
            assert_eq!(waits, None);
        }
        assert!(executor.enter().is_ok());
        execute(&mut executor, 7, &commands(&[2]));
        assert!(!executor.has_released());
        let slot = executor.progress();
        let answer = executor.query(read(Level::Linearizable), slot, false, no_route(), 0);
        assert!(answer.is_some());
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
        executor.enter().expect("it can be read");
        assert_eq!(executor.limits.terms(), limits.terms());
    }

    #[test]
    fn epoch_that_this_program_cannot_read_does_not_begin() {
        let mut newer = next("a");
        newer.level += 1;
        let mut executor = sealable_executor();
        execute(&mut executor, 1, &seal_of(&newer));
        let executed = executor.executed();
        let refused = executor.enter();
        assert_eq!(refused, Err(DescriptorError::Level(newer.level)));
        assert_eq!(executor.executed(), executed);
        assert!(executor.has_seal());
    }

    #[test]
    #[should_panic(expected = "the epoch has ended permanently")]
    fn epoch_whose_end_may_be_undone_is_not_left() {
        let mut executor = executor();
        executor.set_descriptor(ours().encode());
        executor.speculate();
        execute(&mut executor, 1, &seal_of(&next("a")));
        let _ = executor.enter();
    }

    #[test]
    fn epoch_begins_final_where_the_last_one_was_executed_ahead() {
        let mut executor = executor();
        executor.set_descriptor(ours().encode());
        executor.speculate();
        assert_eq!(execute(&mut executor, 1, &seal_of(&next("a"))), []);
        executor.became_stable(Slot(1), |_| {});
        assert_eq!(execute(&mut executor, 2, &commands(&[1])), [Ended; 2]);
        executor.enter().expect("it can be read");
        assert!(!executor.speculates());
        assert_eq!(executor.stable(), Slot(1));
        assert_eq!(execute(&mut executor, 2, &commands(&[1])), [Done; 2]);
    }

    #[test]
    fn replica_that_was_away_restores_a_state_of_a_later_epoch() {
        let mut ahead = sealed();
        ahead.enter().expect("it can be read");
        execute(&mut ahead, 3, &commands(&[2]));
        let stream = stream(&mut ahead);
        let mut away = sealable_executor();
        execute(&mut away, 1, &commands(&[1]));
        away.follow(&next("a"), ahead.base());
        let read = |offset: u64| Some(stream.slice((offset as usize).min(stream.len())..));
        away.restore(read).expect("it restores");
        assert_eq!(away.digest(), ahead.digest());
        assert_eq!(
            (away.base(), away.executed()),
            (ahead.base(), ahead.executed())
        );
        assert_eq!(execute(&mut away, 4, &commands(&[2, 3])), [Done; 3]);
    }
}
