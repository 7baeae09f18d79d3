//! Executing before an order is final, and undoing what was wrong.
//!
//! ```text
//!   snapshot ──► batches kept ────────────────────────► executed
//!      │            │                      │
//!    slot 40     41 … 47 stable      48 … 52 speculated
//!      ▲                                   │
//!      └────── RollBack(47): restore 40, execute 41 … 47 again ◄──┘
//! ```
//!
//! Only for protocols that speculate; others pay one branch per batch. Undoing is as dear as it is
//! rare (a deposed leader): the state goes back to the newest snapshot, which is never newer than
//! what is stable, and the batches since then are executed again. That is done in parts, as a fetched
//! state is restored: others wait for votes of a deposed leader, which need no state.

use super::{feed::FedPart, stream::Before, *};
use crate::Fed;

/// The records needed to undo execution.
#[derive(Hash)]
pub(super) struct Speculation {
    stable: Slot,
    /// The state before the first slot, as a snapshot stream: what there is before any snapshot.
    base: Bytes,
    /// The batches executed since the newest snapshot.
    kept: VecDeque<(Slot, CommandTime, Bytes)>,
    /// Answers that wait until what they saw is stable, in the order of their slots.
    held: VecDeque<Answer>,
}

/// Undoing is in progress.
#[derive(Debug)]
pub(super) struct Undo {
    /// All above this slot.
    slot: Slot,
    /// Where execution was, which is what everybody is told meanwhile; taken when the snapshot has
    /// been restored.
    before: Option<Before>,
}

impl Speculation {
    const fn new(stable: Slot, base: Bytes) -> Self {
        Self {
            stable,
            base,
            kept: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    pub(super) fn retain(&mut self, slot: Slot, time: CommandTime, batch: &Bytes) {
        if !batch.is_empty() {
            self.kept.push_back((slot, time, batch.clone()));
        }
    }

    /// The answer if it is final; keeps it otherwise, unless too many are kept already.
    pub(super) fn hold(&mut self, answer: Answer, count_max: usize) -> Option<Answer> {
        if answer.slot <= self.stable {
            return Some(answer);
        }
        if self.held.len() < count_max && answer.may_be_held(&self.held) {
            self.held.push_back(answer);
        }
        None
    }

    /// The state is now a snapshot's, up to `slot`.
    pub(super) fn restored(&mut self, slot: Slot) {
        self.stable = self.stable.max(slot);
        self.kept.clear();
        self.held.clear();
    }
}

impl Executor {
    /// From now on batches are executed before they are final. Everything executed so far is final,
    /// and there is a snapshot of it if anything was executed.
    pub fn speculate(&mut self) {
        let stable = self.executed.slot;
        if stable > Slot(0) {
            self.speculation = Some(Speculation::new(stable, Bytes::new()));
            return;
        }
        let (_, first) = self.begin_snapshot(Slot(0), Bytes::new());
        let mut base = BytesMut::from(&first[..]);
        loop {
            let (chunk, progress) = self.snapshot_chunk(usize::MAX / 8);
            base.extend_from_slice(&chunk);
            if progress == SnapshotProgress::Done {
                break;
            }
        }
        self.speculation = Some(Speculation::new(stable, base.freeze()));
    }

    /// Whether batches are executed before they are final.
    #[must_use]
    pub const fn speculates(&self) -> bool {
        self.speculation.is_some()
    }

    /// The last slot whose execution is final.
    #[must_use]
    pub fn stable(&self) -> Slot {
        match &self.speculation {
            Some(speculation) => speculation.stable.min(self.progress()),
            None => self.progress(),
        }
    }

    /// Everything executed up to this slot, now or later, is final.
    pub fn became_stable(&mut self, slot: Slot, mut answer: impl FnMut(Answer)) {
        let Some(speculation) = &mut self.speculation else {
            return;
        };
        speculation.stable = speculation.stable.max(slot);
        let ready = speculation
            .held
            .partition_point(|answer| answer.slot <= speculation.stable);
        speculation.held.drain(..ready).for_each(&mut answer);
    }

    /// A snapshot up to this slot is safe: what it covers need not be executed again.
    pub fn snapshot_saved(&mut self, slot: Slot) {
        // While something is undone, it may begin with an older one.
        if let Some(speculation) = &mut self.speculation
            && self.undo.is_none()
        {
            let covered = speculation.kept.partition_point(|(at, ..)| *at <= slot);
            speculation.kept.drain(..covered);
        }
    }

    /// Undoes what was executed above `slot`: state, sessions, time and positions are as they
    /// were after it. `read` gives the newest snapshot piece by piece, an empty piece at its end;
    /// `None` when there is no snapshot.
    ///
    /// # Errors
    /// When the snapshot cannot be read. The state is undefined then.
    ///
    /// # Panics
    /// When something stable would be undone, or this executor does not speculate.
    #[cfg(test)]
    pub fn roll_back(
        &mut self,
        slot: Slot,
        mut read: Option<&mut dyn FnMut(u64) -> Option<Bytes>>,
    ) -> Result<(), RestoreError> {
        let mut done = !self.begin_undo(slot);
        while !done {
            // Each call reads a piece or executes a batch.
            done = match &mut read {
                Some(read) => self.undo_step(Some(&mut **read), 1)?,
                None => self.undo_step(None, 1)?,
            };
        }
        Ok(())
    }

    /// Begins to undo all that was executed above `slot`; true when that takes calls of
    /// [`Self::undo_step`], until the last of which the state is in pieces. One that is in progress
    /// begins again. Answers and reads that depended on what is undone are dropped: frontends ask
    /// for them again.
    ///
    /// # Panics
    /// When something stable would be undone, or this executor does not speculate.
    pub fn begin_undo(&mut self, slot: Slot) -> bool {
        if self.undo.is_some() {
            self.begin_restore();
        }
        if slot >= self.reached() {
            return false;
        }
        let speculation = self.speculation.as_mut();
        let speculation = speculation.expect("only protocols that speculate roll back");
        assert!(slot >= speculation.stable, "what is stable stays");
        let (kept, held) = (&mut speculation.kept, &mut speculation.held);
        kept.truncate(kept.partition_point(|(at, ..)| *at <= slot));
        held.truncate(held.partition_point(|answer| answer.slot <= slot));
        for (_, dropped) in self.waiting.split_off(&slot.next()) {
            self.waiting_count -= dropped.len();
        }
        if self.keeps_state_at(slot) {
            self.set_reached(slot);
            return false;
        }
        self.machine.abandon_snapshot();
        self.begin_restore();
        // The first state of this epoch may be a state of the one before, and the batches that
        // followed it there.
        self.restoring.may_cross = true;
        let before = Before {
            executed: self.executed,
            sealed: self.sealed.clone(),
        };
        self.undo = Some(Undo {
            slot,
            before: Some(before),
        });
        true
    }

    /// Continues to undo until about `budget` bytes have been read or executed; true at its end.
    /// `read` is of one snapshot from the first call to the last; see [`Self::restore_step`].
    ///
    /// # Errors
    /// When the snapshot cannot be read. The state is undefined then.
    ///
    /// # Panics
    /// When nothing is being undone, or the snapshot holds what is to be undone.
    pub fn undo_step(
        &mut self,
        read: Option<&mut dyn FnMut(u64) -> Option<Bytes>>,
        budget: usize,
    ) -> Result<bool, RestoreError> {
        let undo = self.undo.as_ref().expect("something is being undone");
        let (slot, restores) = (undo.slot, undo.before.is_some());
        let mut left = budget;
        if restores {
            let base = self.speculation.as_ref().map(|it| it.base.clone());
            let base = base.unwrap_or_default();
            let mut from_base = |offset| Some(base.slice((offset as usize).min(base.len())..));
            let header = match read {
                Some(read) => self.restore_step(read, budget, u64::MAX)?,
                None => self.restore_step(&mut from_base, budget, u64::MAX)?,
            };
            let Some(header) = header else {
                return Ok(false);
            };
            self.execute_kept(header.executed.slot, slot);
        }
        self.execute_fed(&mut left)?;
        if self.has_fed() {
            return Ok(false);
        }
        self.restoring = Restoring::default();
        self.undo = None;
        Ok(true)
    }

    /// The state of a snapshot is here: what was executed from there up to `slot` is executed again.
    fn execute_kept(&mut self, restored: Slot, slot: Slot) {
        assert!(restored <= slot, "a snapshot holds only what is stable");
        let kept = self.speculation.iter().flat_map(|it| &it.kept);
        let again = kept.filter(|(at, ..)| *at > restored);
        let batches: Vec<Fed> = again
            .map(|(slot, time, batch)| Fed {
                slot: *slot,
                time: *time,
                batch: batch.clone(),
            })
            .collect();
        self.restoring.before = self.undo.as_mut().and_then(|undo| undo.before.take());
        self.restoring.fed = Some(FedPart::new(batches, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{batch_of, executor, no_route};
    use super::*;
    use crate::Position;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Execute(u8),
        Empty,
        Stable(u64),
        RollBack(u64),
        Snapshot,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => any::<u8>().prop_map(Step::Execute),
            1 => Just(Step::Empty),
            2 => (0u64..8).prop_map(Step::Stable),
            2 => (0u64..8).prop_map(Step::RollBack),
            1 => Just(Step::Snapshot),
        ]
    }

    fn stream(executor: &mut Executor, slot: Slot) -> Bytes {
        let (_, first) = executor.begin_snapshot(slot, Bytes::new());
        let mut stream = BytesMut::from(&first[..]);
        loop {
            let (chunk, progress) = executor.snapshot_chunk(1 << 20);
            stream.extend_from_slice(&chunk);
            if progress == SnapshotProgress::Done {
                return stream.freeze();
            }
        }
    }

    proptest! {
        /// After any speculation and undoing, the state is that of an executor which has only ever
        /// executed the remaining batches.
        #[test]
        fn undone_execution_leaves_no_trace(steps in prop::collection::vec(step(), 1..60)) {
            let mut executor = executor();
            executor.speculate();
            let (mut log, mut sequence) = (Vec::<(Slot, CommandTime, Bytes)>::new(), 0);
            let (mut stable, mut next) = (Slot(0), 1u64);
            let mut saved: Option<Bytes> = None;
            for step in steps {
                match step {
                    Step::Execute(byte) => {
                        sequence += 1;
                        let bytes = batch_of(&[(sequence, &[byte])]);
                        let (slot, time) = (Slot(next), CommandTime(next * 10));
                        executor.execute(slot, time, &bytes, None);
                        log.push((slot, time, bytes));
                        next += 1;
                    }
                    Step::Empty => {
                        executor.execute(Slot(next), CommandTime(0), &Bytes::new(), None);
                        log.push((Slot(next), CommandTime(0), Bytes::new()));
                        next += 1;
                    }
                    Step::Stable(back) => {
                        stable = stable.max(Slot((next - 1).saturating_sub(back)));
                        executor.became_stable(stable, |_| {});
                    }
                    Step::RollBack(back) => {
                        let slot = stable.max(Slot((next - 1).saturating_sub(back)));
                        let mut read = |offset: u64| {
                            let saved = saved.as_ref()?;
                            Some(saved.slice((offset as usize).min(saved.len())..))
                        };
                        let has = saved.is_some();
                        executor
                            .roll_back(slot, has.then_some(&mut read as _))
                            .expect("it restores");
                        log.retain(|(at, ..)| *at <= slot);
                        next = slot.0 + 1;
                        // Clients send again what was undone, under the same numbers.
                        sequence = log.iter().filter(|(.., bytes)| !bytes.is_empty()).count() as u64;
                    }
                    Step::Snapshot if stable == executor.executed().slot => {
                        saved = Some(stream(&mut executor, stable));
                        executor.snapshot_saved(stable);
                    }
                    Step::Snapshot => {}
                }
                let mut model = super::super::tests::executor();
                for (slot, time, bytes) in &log {
                    model.execute(*slot, *time, bytes, None);
                }
                prop_assert_eq!(executor.digest(), model.digest());
                prop_assert_eq!(executor.executed(), model.executed());
                prop_assert_eq!(executor.time(), model.time());
            }
        }
    }

    #[test]
    fn read_of_speculated_state_waits_until_it_is_stable() {
        let mut executor = executor();
        executor.speculate();
        executor.execute(Slot(1), CommandTime(1), &batch_of(&[(1, b"a")]), None);
        let read = batch_of(&[(9, b"")]);
        let ask =
            |executor: &mut Executor| executor.query(read.clone(), Slot(1), true, no_route(), 0);
        assert!(ask(&mut executor).is_none(), "nothing is stable yet");
        let mut answered = 0;
        executor.became_stable(Slot(1), |_| answered += 1);
        assert_eq!(answered, 1);
        executor.execute(Slot(2), CommandTime(2), &batch_of(&[(2, b"b")]), None);
        assert!(ask(&mut executor).is_none(), "it saw slot 2");
        executor
            .roll_back(Slot(1), None)
            .expect("the base restores");
        executor.became_stable(Slot(5), |_| answered += 1);
        assert_eq!(answered, 1, "what it saw is gone");
        assert!(ask(&mut executor).is_some());
    }

    #[test]
    #[should_panic(expected = "what is stable stays")]
    fn stable_execution_is_never_undone() {
        let mut executor = executor();
        executor.speculate();
        executor.execute(Slot(1), CommandTime(1), &batch_of(&[]), None);
        executor.execute(Slot(2), CommandTime(1), &batch_of(&[]), None);
        executor.became_stable(Slot(2), |_| {});
        let _ = executor.roll_back(Slot(1), None);
    }

    #[test]
    fn batch_is_answered_again_from_its_sessions() {
        let mut executor = executor();
        let bytes = batch_of(&[(1, b"a")]);
        assert!(
            executor
                .replay(bytes.clone(), Slot(1), no_route())
                .is_none()
        );
        let first = executor.execute(Slot(1), CommandTime(5), &bytes, Some(no_route()));
        let mut again = Vec::new();
        executor.released(0, u64::MAX, |answer| again.push(answer));
        assert_eq!(
            first.map(|answer| answer.results),
            Some(again.remove(0).results)
        );
        assert_eq!(executor.executed().position, Position(1));
    }
}
