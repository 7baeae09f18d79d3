//! The end of an epoch: what the executor does with the command that ends it, and behind it.
//!
//! ```text
//!   slot     7          8               9        10
//!          ┌─────┐ ┌──────────────┐ ┌─────┐ ┌─────┐
//!          │ a b │ │ c  SEAL  d e │ │  f  │ │  g  │      executed: a b c, the state stays so
//!          └─────┘ └──────────────┘ └─────┘ └─────┘      answered "sealed": d e f g
//!                    base = (8, its position)
//! ```
//!
//! A seal is a command like any other to the protocol that orders it. The first valid one ends the
//! epoch: nothing behind it has a position, moves the time or touches a session, whatever the
//! protocol continues to order, and the protocol is told its progress as ever. Where batches are
//! executed before they are final, an end that may still be undone is not reported.

use super::*;
use crate::{Descriptor, Level, SEALS_LEVEL, SuccessorPrefix, public_part};

/// The end of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seal {
    /// The slot of the seal, and the position of its batch: the last of the epoch.
    pub base: Executed,
    /// The next epoch's descriptor, as it was ordered.
    pub successor: Bytes,
}

impl Seal {
    /// Where the next epoch begins: at a position of its own.
    pub(super) const fn next_base(&self) -> Executed {
        Executed {
            slot: self.base.slot,
            position: self.base.position.next(),
        }
    }
}

/// An executor that has executed a seal.
#[derive(Clone, Debug, Hash)]
pub(super) struct Sealed {
    pub(super) seal: Seal,
    /// How far the protocol has come that continues behind it.
    passed: Slot,
}

impl Sealed {
    /// As a snapshot has it.
    pub(super) fn restored(header: &SnapshotHeader) -> Option<Box<Self>> {
        let (seal, passed) = (*header.seal.clone()?, header.executed.slot);
        Some(Box::new(Self { seal, passed }))
    }
}

/// The fingerprint of an epoch that a seal may end.
pub(super) fn sealable(descriptor: &Bytes) -> Option<Fingerprint> {
    let level = Descriptor::decode(descriptor.clone()).ok()?.level;
    let public = public_part(descriptor).filter(|_| level >= SEALS_LEVEL)?;
    Some(Fingerprint::of(public))
}

impl Executor {
    /// How the epoch has ended here, once that cannot be undone any more.
    #[must_use]
    pub fn sealed(&self) -> Option<&Seal> {
        let sealed = match &self.restoring.before {
            Some(before) => before.sealed.as_ref(),
            None => self.sealed.as_ref(),
        };
        let told = self.injected.is(Bug::TellsProvisionalSeal);
        let seal = &sealed?.seal;
        (told || seal.base.slot <= self.stable()).then_some(seal)
    }

    /// Whether the epoch has ended here, be it that this may still be undone.
    #[must_use]
    pub const fn has_seal(&self) -> bool {
        self.sealed.is_some()
    }

    /// How far the protocol has come: it continues behind the end of the epoch, and the state does
    /// not.
    #[must_use]
    pub fn progress(&self) -> Slot {
        match &self.restoring.before {
            Some(before) => match &before.sealed {
                Some(sealed) => sealed.passed,
                None => before.executed.slot,
            },
            None => self.reached(),
        }
    }

    /// The same of the state as it is, whatever everybody is told while it is being restored.
    pub(super) fn reached(&self) -> Slot {
        match &self.sealed {
            Some(sealed) => sealed.passed,
            None => self.executed.slot,
        }
    }

    pub(super) fn set_reached(&mut self, slot: Slot) {
        match &mut self.sealed {
            Some(sealed) => sealed.passed = slot,
            None => self.executed.slot = slot,
        }
    }

    /// Whether nothing that was executed above `slot` has changed the state: it comes behind the
    /// end of the epoch.
    pub(crate) fn keeps_state_at(&self, slot: Slot) -> bool {
        let sealed = self.sealed.as_ref();
        let past = self.injected.is(Bug::ExecutesPastSeal) || self.injected.is(Bug::LastSealWins);
        !past && sealed.is_some_and(|sealed| sealed.seal.base.slot <= slot)
    }

    /// The covered position, under the name that the protocol knows: nothing is executed behind the
    /// end of the epoch, so the state of its progress is that of the end.
    pub(super) fn covered(&self) -> Executed {
        Executed {
            slot: self.reached(),
            position: self.executed.position,
        }
    }

    /// Whether these bytes describe an epoch that follows this one and may begin now. All builds
    /// must agree on it, so it is read from what no build changes. (An epoch that is forced begins
    /// another era, and so does not have the next number.)
    #[must_use]
    pub fn is_successor(&self, descriptor: &[u8]) -> bool {
        let (Some(ours), Some(next)) = (self.fingerprint, SuccessorPrefix::read(descriptor)) else {
            return false;
        };
        next.group == self.group
            && Some(next.number.0) == self.epoch.0.checked_add(1)
            && next.predecessor == ours
            && (self.time <= next.not_after || self.injected.is(Bug::LateSealCounts))
    }

    /// A request to end the epoch is executed.
    pub(super) fn seal(&mut self, descriptor: &[u8]) -> RequestStatus {
        if !self.is_successor(descriptor) {
            return RequestStatus::Refused;
        }
        let successor = Bytes::copy_from_slice(descriptor);
        let (base, passed) = (self.executed, self.executed.slot);
        let seal = Seal { base, successor };
        self.sealed = Some(Box::new(Sealed { seal, passed }));
        RequestStatus::Done
    }

    /// Whether it was these bytes that ended the epoch.
    pub(super) fn is_sealed_by(&self, descriptor: &[u8]) -> bool {
        let sealed = self.sealed.as_ref();
        sealed.is_some_and(|sealed| sealed.seal.successor == descriptor)
    }

    /// Executes a batch with a seal in it, as far as that.
    #[cold]
    pub(super) fn run_to_seal(
        &mut self,
        view: &BatchView<'_>,
        reply: Option<ReplyRoute>,
        ordered: bool,
    ) -> Option<Answer> {
        let past = self.injected.is(Bug::ExecutesPastSeal);
        for request in view.requests() {
            if self.sealed.is_some() && !past {
                self.results.push(RequestStatus::Sealed, &[]);
            } else if request.kind == RequestKind::Seal && !ordered {
                // A batch without an order has no end.
                self.results.push(RequestStatus::Refused, &[]);
            } else {
                self.execute_request(&request);
            }
        }
        let answer = self.finish_answer(view.id(), reply?);
        self.hold_behind_seal(answer)
    }

    /// The protocol continues behind the end of the epoch: nothing is executed.
    #[cold]
    pub(super) fn pass(
        &mut self,
        slot: Slot,
        time: CommandTime,
        batch: &Bytes,
        reply: Option<ReplyRoute>,
    ) -> Option<Answer> {
        let passed = self.reached();
        assert!(slot > passed, "slots ascend: {slot} after {passed}");
        self.set_reached(slot);
        // The protocol keeps its log until there is a snapshot behind it.
        self.bytes_since += batch.len() as u64;
        if self.injected.is(Bug::ExecutesPastSeal) {
            return self.execute_in_order(slot, time, batch, reply);
        }
        let seals = || BatchView::new(batch).is_ok_and(|view| view.seals());
        if self.injected.is(Bug::LastSealWins) && seals() {
            self.sealed = None;
            return self.execute_in_order(slot, time, batch, reply);
        }
        self.answer_sealed(batch, reply?)
    }

    /// Whether a read can no longer be answered, because the epoch has ended. One that may be old
    /// can be.
    pub(super) fn ends_read(&self, batch: &[u8]) -> bool {
        let may_be_old = || BatchView::new(batch).is_ok_and(|view| view.level() == Level::Stale);
        self.sealed.is_some() && !may_be_old()
    }

    /// Whether what was ordered at this slot, or before it, may have come behind the seal's.
    pub(super) fn ends_replay(&self, at_least: Slot) -> bool {
        let sealed = self.sealed.as_ref();
        sealed.is_some_and(|sealed| at_least > sealed.seal.base.slot)
    }

    /// Whether the epoch has ended in the batch of this slot.
    pub(super) fn ends_at(&self, slot: Slot) -> bool {
        let sealed = self.sealed.as_ref();
        sealed.is_some_and(|sealed| sealed.seal.base.slot == slot)
    }

    /// Answers each request that the epoch has ended before it.
    pub(super) fn answer_sealed(&mut self, batch: &[u8], route: ReplyRoute) -> Option<Answer> {
        let view = BatchView::new(batch).ok()?;
        self.results.fill(&view, RequestStatus::Sealed);
        let answer = self.finish_answer(view.id(), route);
        self.hold_behind_seal(answer)
    }

    /// An answer that depends on the end of the epoch waits until that cannot be undone any more.
    pub(super) fn hold_behind_seal(&mut self, answer: Answer) -> Option<Answer> {
        let told = self.injected.is(Bug::TellsProvisionalSeal);
        match &mut self.speculation {
            Some(speculation) if self.sealed.is_some() && !told => {
                speculation.hold(answer, self.limits.queries_max)
            }
            _ => Some(answer),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{
        stream::framed_feed,
        tests::{executor, no_route},
    };
    use super::*;
    use crate::{
        BatchBuilder, Durability, FEATURE_LEVEL, FrontendId, MemberRole, MemberRow, Results,
        SessionId,
    };
    use alloc::string::String;
    use proptest::prelude::*;

    /// The epoch of the executors here.
    pub(in super::super) fn ours() -> Descriptor {
        Descriptor {
            members: [7]
                .map(|node| MemberRow {
                    node,
                    role: MemberRole::Voter,
                    peer: String::from("a:1"),
                })
                .to_vec(),
            hash_seed: 5,
            ..Descriptor::first(ClusterId(1), "toy", Durability::Disk)
        }
    }

    /// An epoch that follows it; `protocol` tells two such apart.
    pub(in super::super) fn next(protocol: &str) -> Descriptor {
        Descriptor {
            protocol: String::from(protocol),
            ..ours().successor()
        }
    }

    pub(in super::super) fn sealable_executor() -> Executor {
        let mut executor = executor();
        executor.set_descriptor(ours().encode());
        executor
    }

    const SESSION: SessionId = SessionId {
        owner: 3,
        number: 1,
    };

    pub(in super::super) fn id(sequence: u64) -> CommandId {
        CommandId {
            session: SESSION,
            sequence,
        }
    }

    pub(in super::super) fn built(level: Level, build: impl FnOnce(&mut BatchBuilder)) -> Bytes {
        let mut builder = BatchBuilder::new();
        build(&mut builder);
        builder.finish(FrontendId(1), BatchId(1), level)
    }

    pub(in super::super) fn seal_of(next: &Descriptor) -> Bytes {
        built(Level::Ordered, |builder| {
            builder.push(CommandId::default(), RequestKind::Seal, 0, &next.encode());
        })
    }

    pub(in super::super) fn commands(sequences: &[u64]) -> Bytes {
        built(Level::Ordered, |builder| {
            builder.push(id(0), RequestKind::Open, 0, &0u64.to_le_bytes());
            for sequence in sequences {
                builder.push(id(*sequence), RequestKind::Command, 0, b"x");
            }
        })
    }

    fn statuses(answer: &Answer) -> Vec<RequestStatus> {
        Results::new(&answer.results)
            .map(|(status, _)| status)
            .collect()
    }

    pub(in super::super) fn execute(
        executor: &mut Executor,
        slot: u64,
        batch: &Bytes,
    ) -> Vec<RequestStatus> {
        let answer = executor.execute(Slot(slot), CommandTime(slot), batch, Some(no_route()));
        answer.map_or_else(Vec::new, |answer| statuses(&answer))
    }

    use RequestStatus::{Done, Refused, Sealed as Ended};

    #[test]
    fn first_of_two_ends_counts_and_what_follows_is_answered_sealed() {
        let mut executor = sealable_executor();
        assert_eq!(execute(&mut executor, 1, &commands(&[1])), [Done, Done]);
        assert_eq!(execute(&mut executor, 2, &seal_of(&next("a"))), [Done]);
        let (state, executed) = (executor.digest(), executor.executed());
        let seal = executor.sealed().cloned().expect("it has ended");
        assert_eq!((seal.base, executed.slot), (executed, Slot(2)));
        assert_eq!(seal.successor, next("a").encode());
        assert_eq!(execute(&mut executor, 3, &seal_of(&next("b"))), [Ended]);
        assert_eq!(execute(&mut executor, 7, &commands(&[2])), [Ended; 2]);
        assert_eq!(executor.sealed(), Some(&seal));
        assert_eq!((executor.digest(), executor.executed()), (state, executed));
        assert_eq!(executor.time(), CommandTime(2));
        assert_eq!(executor.progress(), Slot(7));
    }

    #[test]
    fn seal_that_does_not_follow_is_refused_and_nothing_ends() {
        let wrong: [&dyn Fn(&mut Descriptor); 4] = [
            &|next| next.group = GroupId(1),
            &|next| next.number = EpochNumber(3),
            &|next| next.predecessor = Fingerprint(4),
            &|next| next.not_after = CommandTime(0),
        ];
        for change in wrong {
            let mut next = next("a");
            change(&mut next);
            let mut executor = sealable_executor();
            assert_eq!(execute(&mut executor, 1, &seal_of(&next)), [Refused]);
            assert!(executor.sealed().is_none());
            assert_eq!(execute(&mut executor, 2, &commands(&[1])), [Done, Done]);
        }
        let mut late = next("a");
        late.not_after = CommandTime(1);
        let mut executor = sealable_executor();
        assert_eq!(
            execute(&mut executor, 1, &seal_of(&late)),
            [Done],
            "just in time"
        );
    }

    #[test]
    fn build_that_cannot_read_next_epoch_stops_at_same_place() {
        let mut executor = sealable_executor();
        let mut newer = next("a");
        newer.level = FEATURE_LEVEL + 1;
        let mut bytes = newer.public().to_vec();
        bytes.extend_from_slice(b"what only later builds know");
        assert!(Descriptor::decode(Bytes::from(bytes.clone())).is_err());
        let batch = built(Level::Ordered, |builder| {
            builder.push(CommandId::default(), RequestKind::Seal, 0, &bytes);
        });
        assert_eq!(execute(&mut executor, 1, &batch), [Done]);
        assert!(
            executor
                .sealed()
                .is_some_and(|seal| seal.successor == bytes)
        );
    }

    #[test]
    fn epochs_of_earlier_level_and_unordered_deliveries_never_end() {
        let mut old = ours();
        old.level = SEALS_LEVEL - 1;
        let after_old = Descriptor {
            predecessor: old.fingerprint(),
            ..next("a")
        };
        let mut executor = executor();
        executor.set_descriptor(old.encode());
        assert_eq!(execute(&mut executor, 1, &seal_of(&after_old)), [Refused]);
        let mut executor = sealable_executor();
        let batch = seal_of(&next("a"));
        let answer = executor.execute_unordered(CommandTime(1), &batch, Some(no_route()));
        assert_eq!(
            answer.map(|answer| statuses(&answer)),
            Some(alloc::vec![Refused])
        );
        assert!(!executor.has_seal());
    }

    #[test]
    fn reads_behind_end_get_sealed_and_stale_reads_continue() {
        let mut executor = sealable_executor();
        let first = commands(&[1]);
        execute(&mut executor, 1, &first);
        let cut = built(Level::Ordered, |builder| {
            builder.push(id(2), RequestKind::Command, 1, b"y");
            builder.push(
                CommandId::default(),
                RequestKind::Seal,
                0,
                &next("a").encode(),
            );
            builder.push(id(3), RequestKind::Command, 0, b"z");
        });
        assert_eq!(execute(&mut executor, 2, &cut), [Done, Done, Ended]);
        execute(&mut executor, 3, &commands(&[3]));
        let read = |level| built(level, |b| b.push(id(9), RequestKind::Command, 0, b""));
        let mut query = |level| {
            let answer = executor.query(read(level), Slot(3), false, no_route(), 0);
            statuses(&answer.expect("it is there"))
        };
        assert_eq!(query(Level::Linearizable), [Ended]);
        assert_eq!(query(Level::Stale), [Done]);
        let mut replay = |batch: &Bytes, slot| {
            let answer = executor.replay(batch.clone(), Slot(slot), no_route());
            statuses(&answer.expect("it is there"))
        };
        assert_eq!(replay(&first, 1), [Done, Done]);
        assert_eq!(replay(&cut, 2), [Done, Done, Ended], "never out of order");
        assert_eq!(replay(&commands(&[3]), 3), [Ended; 2], "never out of order");
    }

    #[test]
    fn roll_back_to_behind_the_end_restores_no_state() {
        let mut executor = sealable_executor();
        executor.speculate();
        execute(&mut executor, 1, &commands(&[1]));
        execute(&mut executor, 2, &seal_of(&next("a")));
        execute(&mut executor, 3, &commands(&[2]));
        execute(&mut executor, 4, &commands(&[3]));
        let state = executor.digest();
        let mut read = |_: u64| -> Option<Bytes> { panic!("nothing is to be read") };
        executor
            .roll_back(Slot(3), Some(&mut read))
            .expect("it goes back");
        assert_eq!(executor.progress(), Slot(3));
        executor
            .roll_back(Slot(2), Some(&mut read))
            .expect("it goes back");
        assert_eq!((executor.progress(), executor.digest()), (Slot(2), state));
        executor.roll_back(Slot(1), None).expect("it restores");
        assert!(!executor.has_seal());
        assert_eq!(execute(&mut executor, 2, &commands(&[2])), [Done; 2]);
    }

    /// The kind of a batch of the model.
    #[derive(Clone, Debug)]
    enum Step {
        /// Commands, a seal if there is one, commands.
        Execute(u8, Option<Kind>, u8),
        Empty,
        Stable(u64),
        RollBack(u64),
        Snapshot,
        Restart,
        Fetch {
            from: u64,
            behind: u64,
            again: u64,
        },
    }

    pub(in super::super) fn stream(executor: &mut Executor) -> Bytes {
        let (_, first) = executor.begin_snapshot(executor.progress(), Bytes::new());
        let mut stream = BytesMut::from(&first[..]);
        let (rest, progress) = executor.snapshot_chunk(1 << 20);
        assert_eq!(progress, SnapshotProgress::Done);
        stream.extend_from_slice(&rest);
        stream.freeze()
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        Valid(u8),
        Expired,
        Foreign,
    }

    impl Kind {
        fn descriptor(self) -> Descriptor {
            match self {
                Self::Valid(which) => next(&alloc::format!("p{which}")),
                Self::Expired => Descriptor {
                    not_after: CommandTime(0),
                    ..next("late")
                },
                Self::Foreign => Descriptor {
                    predecessor: Fingerprint(9),
                    ..next("foreign")
                },
            }
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        let kind = prop_oneof![
            2 => (0u8..2).prop_map(Kind::Valid),
            1 => Just(Kind::Expired),
            1 => Just(Kind::Foreign),
        ];
        prop_oneof![
            6 => (0u8..3).prop_map(|count| Step::Execute(count, None, 0)),
            2 => (0u8..3, kind, 0u8..3).prop_map(|(a, kind, b)| Step::Execute(a, Some(kind), b)),
            1 => Just(Step::Empty),
            2 => (0u64..8).prop_map(Step::Stable),
            2 => (0u64..8).prop_map(Step::RollBack),
            1 => Just(Step::Snapshot),
            1 => Just(Step::Restart),
            1 => (0u64..8, 0u64..12, 0u64..2000).prop_map(|(from, behind, again)| Step::Fetch {
                from,
                behind,
                again,
            }),
        ]
    }

    /// A batch and what the model makes of it.
    struct Entry {
        slot: Slot,
        time: CommandTime,
        batch: Bytes,
        before: u8,
        kind: Option<Kind>,
    }

    /// Begins with the session's opening unless there is nothing before the seal.
    fn batch_of(sequence: &mut u64, before: u8, kind: Option<Kind>, behind: u8) -> Bytes {
        built(Level::Ordered, |builder| {
            if before > 0 || kind.is_none() {
                builder.push(id(0), RequestKind::Open, 0, &0u64.to_le_bytes());
            }
            for _ in 0..before {
                *sequence += 1;
                builder.push(id(*sequence), RequestKind::Command, 0, &[*sequence as u8]);
            }
            if let Some(kind) = kind {
                let next = kind.descriptor().encode();
                builder.push(CommandId::default(), RequestKind::Seal, 0, &next);
            }
            for nth in 0..behind {
                let sequence = *sequence + 1 + u64::from(nth);
                builder.push(id(sequence), RequestKind::Command, 0, &[sequence as u8]);
            }
        })
    }

    /// An executor that knows no seals: it is given what comes before the end, and where that was.
    fn model(log: &[Entry]) -> (Executor, Option<(Executed, Kind)>) {
        let mut model = executor();
        for entry in log {
            if entry.batch.is_empty() {
                model.execute(entry.slot, entry.time, &entry.batch, None);
                continue;
            }
            let kept = built(Level::Ordered, |builder| {
                for request in BatchView::new(&entry.batch).expect("a batch").requests() {
                    match request.kind {
                        RequestKind::Seal if matches!(entry.kind, Some(Kind::Valid(_))) => break,
                        RequestKind::Seal => {
                            builder.push(request.id, RequestKind::Tick, 0, &[]);
                        }
                        kind => builder.push(request.id, kind, 0, request.payload),
                    }
                }
                if builder.is_empty() {
                    builder.push(CommandId::default(), RequestKind::Tick, 0, &[]);
                }
            });
            model.execute(entry.slot, entry.time, &kept, None);
            if let Some(kind @ Kind::Valid(_)) = entry.kind {
                let base = model.executed();
                return (model, Some((base, kind)));
            }
        }
        (model, None)
    }

    struct Rig {
        executor: Executor,
        speculates: bool,
        log: Vec<Entry>,
        stable: Slot,
        next: u64,
        saved: Option<(Slot, Bytes)>,
    }

    impl Rig {
        fn boot(speculates: bool) -> Executor {
            let mut executor = sealable_executor();
            if speculates {
                executor.speculate();
            }
            executor
        }

        /// The next sequence number of a client that sends again what was undone.
        fn sequence(&self) -> u64 {
            let mut executed = 0;
            for entry in &self.log {
                executed += u64::from(entry.before);
                if let Some(Kind::Expired | Kind::Foreign) = entry.kind {
                    executed += behind(&entry.batch);
                }
            }
            executed
        }

        fn told(&self, statuses: &[RequestStatus]) -> Result<(), TestCaseError> {
            if statuses.contains(&Ended) {
                prop_assert!(self.executor.sealed().is_some(), "told before it is final");
            }
            Ok(())
        }

        fn became_stable(&mut self) -> Result<(), TestCaseError> {
            let mut released = Vec::new();
            self.executor
                .became_stable(self.stable, |answer| released.push(statuses(&answer)));
            for statuses in released {
                self.told(&statuses)?;
            }
            Ok(())
        }

        fn restart(&mut self) -> Result<(), TestCaseError> {
            self.executor = Self::boot(self.speculates);
            let mut from = Slot(0);
            if let Some((slot, saved)) = &self.saved {
                let read = |offset: u64| Some(saved.slice((offset as usize).min(saved.len())..));
                let header = self.executor.restore(read).expect("it restores");
                prop_assert_eq!(header.executed.slot, *slot);
                from = *slot;
            }
            for entry in self.log.iter().filter(|entry| entry.slot > from) {
                self.executor
                    .execute(entry.slot, entry.time, &entry.batch, None);
            }
            self.became_stable()
        }

        fn roll_back(&mut self, slot: Slot) {
            let saved = self.saved.clone();
            let mut read = |offset: u64| {
                let (_, saved) = saved.as_ref()?;
                Some(saved.slice((offset as usize).min(saved.len())..))
            };
            let has = saved.is_some();
            self.executor
                .roll_back(slot, has.then_some(&mut read as _))
                .expect("it restores");
            self.log.retain(|entry| entry.slot <= slot);
            self.next = slot.0 + 1;
        }

        fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
            let last = Slot(self.next - 1);
            match step {
                Step::Execute(before, kind, behind) => {
                    let mut sequence = self.sequence();
                    let batch = batch_of(&mut sequence, before, kind, behind);
                    let (slot, time) = (Slot(self.next), CommandTime(self.next * 10));
                    let answer = (self.executor).execute(slot, time, &batch, Some(no_route()));
                    if let Some(answer) = answer {
                        self.told(&statuses(&answer))?;
                    }
                    self.log.push(Entry {
                        slot,
                        time,
                        batch,
                        before,
                        kind,
                    });
                    self.next += 1;
                }
                Step::Empty => {
                    let (slot, time, batch) = (Slot(self.next), CommandTime(0), Bytes::new());
                    self.executor.execute(slot, time, &batch, None);
                    self.log.push(Entry {
                        slot,
                        time,
                        batch,
                        before: 0,
                        kind: None,
                    });
                    self.next += 1;
                }
                Step::Stable(_) | Step::RollBack(_) if !self.speculates => {}
                Step::Stable(back) => {
                    self.stable = self.stable.max(Slot(last.0.saturating_sub(back)));
                    self.became_stable()?;
                }
                Step::RollBack(back) => {
                    let slot = self.stable.max(Slot(last.0.saturating_sub(back)));
                    self.roll_back(slot);
                }
                Step::Snapshot => {
                    let is_final = !self.speculates || self.stable == last;
                    if is_final {
                        let stream = stream(&mut self.executor);
                        self.saved = Some((last, stream));
                        self.executor.snapshot_saved(last);
                    }
                }
                Step::Restart => self.restart()?,
                Step::Fetch {
                    from,
                    behind,
                    again,
                } => self.fetch(from, behind, again)?,
            }
            Ok(())
        }

        /// A replica that is `behind` takes the state of the slot so far back, and what was executed
        /// since, from one that has executed all of it; after `again` bytes it begins again.
        fn fetch(&mut self, from: u64, behind: u64, again: u64) -> Result<(), TestCaseError> {
            let last = self.next - 1;
            let from = Slot(last.saturating_sub(from));
            let play = |executor: &mut Executor, after: Slot, upto: Slot| {
                let entries = self.log.iter();
                for entry in entries.filter(|it| after < it.slot && it.slot <= upto) {
                    executor.execute(entry.slot, entry.time, &entry.batch, None);
                }
            };
            let mut donor = Self::boot(false);
            play(&mut donor, Slot(0), from);
            let mut given = stream(&mut donor).to_vec();
            // The end comes behind what follows.
            given.truncate(given.len() - FRAME_HEAD);
            play(&mut donor, from, Slot(last));
            let middle = Slot((from.0 + last).div_ceil(2));
            let end = FeedEnd {
                executed: donor.covered(),
                time: donor.time(),
                summary: Bytes::new(),
            };
            for (after, upto, end) in [(from, middle, None), (middle, Slot(last), Some(end))] {
                let entries = self.log.iter().filter(|it| !it.batch.is_empty());
                let batches = entries.filter(|it| after < it.slot && it.slot <= upto);
                let feed = Feed {
                    after,
                    upto,
                    batches: batches
                        .map(|it| Fed {
                            slot: it.slot,
                            time: it.time,
                            batch: it.batch.clone(),
                        })
                        .collect(),
                    end,
                };
                given.extend_from_slice(&framed_feed(&feed));
            }
            given.extend_from_slice(&frame_head(&[]));
            let given = Bytes::from(given);

            let mut fetcher = Self::boot(self.speculates);
            play(&mut fetcher, Slot(0), Slot(last.saturating_sub(behind)));
            let before = (
                fetcher.executed(),
                fetcher.progress(),
                fetcher.sealed().cloned(),
            );
            let read = |offset: u64| {
                let from = (offset as usize).min(given.len());
                Some(given.slice(from..given.len().min(from + 16)))
            };
            let most = given.len() as u64 - 17;
            fetcher.begin_restore();
            let begun = fetcher.restore_step(read, usize::MAX, again.min(most));
            prop_assert!(begun.is_ok_and(|header| header.is_none()));
            let shown = (
                fetcher.executed(),
                fetcher.progress(),
                fetcher.sealed().cloned(),
            );
            prop_assert_eq!(&shown, &before, "no client is told before it is whole");
            let header = fetcher.restore(read).expect("it restores");
            prop_assert_eq!(header.executed, donor.covered());
            self.executor = fetcher;
            self.stable = Slot(last);
            self.saved = Some((Slot(last), given));
            Ok(())
        }

        /// The state is the model's, and so is what is told of the end.
        fn check(&mut self) -> Result<(), TestCaseError> {
            let (mut model, end) = model(&self.log);
            prop_assert_eq!(self.executor.digest(), model.digest());
            prop_assert_eq!(self.executor.executed(), model.executed());
            prop_assert_eq!(self.executor.time(), model.time());
            prop_assert_eq!(self.executor.progress(), Slot(self.next - 1));
            prop_assert_eq!(self.executor.has_seal(), end.is_some());
            let is_final = |base: &Executed| !self.speculates || base.slot <= self.stable;
            let told = end.filter(|(base, _)| is_final(base));
            let told = told.map(|(base, kind)| Seal {
                base,
                successor: kind.descriptor().encode(),
            });
            prop_assert_eq!(self.executor.sealed(), told.as_ref());
            let read = built(Level::Linearizable, |builder| {
                builder.push(id(1), RequestKind::Command, 0, b"");
            });
            let reached = self.executor.progress();
            let answer = (self.executor).query(read, reached, true, no_route(), 0);
            let expected = match (end, told) {
                (Some(_), Some(_)) => Some(alloc::vec![Ended]),
                (None, None) if !self.speculates || self.stable >= reached => {
                    Some(alloc::vec![Done])
                }
                _ => None,
            };
            prop_assert_eq!(answer.map(|answer| statuses(&answer)), expected);
            Ok(())
        }
    }

    /// Commands behind the seal of a batch.
    fn behind(batch: &[u8]) -> u64 {
        let view = BatchView::new(batch).expect("a batch");
        let tail = view
            .requests()
            .skip_while(|request| request.kind != RequestKind::Seal);
        tail.filter(|request| request.kind == RequestKind::Command)
            .count() as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// After any sequence of ordering, undoing, saving and restoring, the state is that of an
        /// executor which was never given the batches behind the first valid seal.
        #[test]
        fn batches_behind_seal_leave_no_trace(
            speculates: bool,
            steps in prop::collection::vec(step(), 1..50),
        ) {
            let mut rig = Rig {
                executor: Rig::boot(speculates),
                speculates,
                log: Vec::new(),
                stable: Slot(0),
                next: 1,
                saved: None,
            };
            for step in steps {
                rig.take(step)?;
                rig.check()?;
            }
        }
    }
}
