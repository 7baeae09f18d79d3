//! A node's side of speculation: what waits until it is stable, and what goes when it is undone.

use super::*;

/// How the reason begins when a replica stops because a snapshot that it needs is damaged.
pub const NOT_UNDONE: &str = "what was executed ahead of its commit cannot be undone";

impl Node {
    pub(super) fn became_stable(&mut self, slot: Slot, world: &dyn World, out: &mut Vec<Output>) {
        let mut answers = SmallVec::<[Answer; 4]>::new();
        self.executor
            .became_stable(slot, |answer| answers.push(answer));
        for answer in answers {
            self.answer(answer, out);
        }
        self.maybe_finish_snapshot(out);
        self.finish_digests(world, out);
    }

    /// A snapshot that may still turn out to be of something that never was must not be taken
    /// for the newest one after a crash, and one that the log does not reach leaves a hole in it.
    pub(super) fn maybe_finish_snapshot(&mut self, out: &mut Vec<Output>) {
        let stable = self.executor.stable();
        if let Some(unfinished) = &mut self.unfinished
            && let Under::Own {
                whole: true,
                finished,
                after,
            } = &mut unfinished.kind
            && !*finished
            && unfinished.id.slot <= stable
            && *after <= self.persisted
        {
            *finished = true;
            out.push(Output::SnapshotFinish);
        }
    }

    pub(super) fn roll_back(&mut self, slot: Slot, world: &dyn World, out: &mut Vec<Output>) {
        if slot >= self.executor.progress() {
            return;
        }
        let keeps_state = self.executor.keeps_state_at(slot);
        let ends = |unfinished: &mut Unfinished| match unfinished.kind {
            Under::Own { whole, .. } => !(whole || keeps_state) || unfinished.id.slot > slot,
            Under::Fetched { .. } | Under::Bridge => false,
        };
        self.roll_back_bridge(slot, keeps_state, out);
        if self.unfinished.take_if(ends).is_some() {
            self.executor.abandon_snapshot();
            out.push(Output::SnapshotAbandon);
            self.checkpoint_asked = false;
        }
        self.held.retain(|answer| answer.slot <= slot);
        self.digests.rolled_back(slot);
        if let Some(ring) = &mut self.ring {
            ring.roll_back(slot);
        }
        if !self.executor.begin_undo(slot) {
            return self.undone(slot, out);
        }
        self.undo_from_newest(slot, world);
        self.step_undo(self.restore_step, world, out);
    }

    /// Whether something is being undone.
    pub fn undoes(&self) -> bool {
        let installing = self.installing.as_ref();
        installing.is_some_and(|installing| installing.source.undoes())
    }

    fn undo_from_newest(&mut self, slot: Slot, world: &dyn World) {
        let (info, source) = match world.snapshot_newest() {
            Some(info) => (info, Source::Own),
            None => {
                let (id, length) = (Executed::default(), 0);
                (SnapshotInfo { id, length }, Source::Beginning)
            }
        };
        self.defer_during(info, slot, source, world);
    }

    /// Undoes the next part of what is being undone; true when there is more.
    pub(super) fn step_undo(
        &mut self,
        budget: usize,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> bool {
        let Some(installing) = self.installing.as_ref() else {
            return false;
        };
        let (id, slot) = (installing.info.id, installing.reach);
        let newer = |newest: Option<SnapshotInfo>| {
            newest.is_some_and(|info| info.id != id && info.id.slot <= slot)
        };
        let piece = transfer::PIECE.min(budget);
        let mut read = |offset| world.snapshot_read(id, offset, piece);
        let step = match installing.source {
            Source::Own => self.executor.undo_step(Some(&mut read), budget),
            _ => self.executor.undo_step(None, budget),
        };
        match step {
            Ok(false) => true,
            Ok(true) => {
                let installing = self.installing.take();
                self.undone(slot, out);
                // One that waits until nothing before it can be undone.
                self.maybe_finish_snapshot(out);
                let mut deferred = installing.map_or_else(Deferred::default, |it| it.deferred);
                while !self.halted
                    && let Some(effect) = deferred.pop()
                {
                    self.carry_out_effect(effect, world, out);
                }
                false
            }
            Err(_) if newer(world.snapshot_newest()) => {
                // It has been replaced meanwhile, and is not kept forever.
                self.undo_again(slot, world);
                true
            }
            Err(error) => {
                let reason = format!(
                    "{NOT_UNDONE}: {error}. Start the replica again; it will recover from what is \
                     durable"
                );
                self.halt(reason, out);
                false
            }
        }
    }

    fn undo_again(&mut self, slot: Slot, world: &dyn World) {
        assert!(self.executor.begin_undo(slot), "none of it is undone yet");
        self.undo_from_newest(slot, world);
    }

    /// A snapshot has been saved. If it has the name of the one that is being read, as the first state
    /// of an epoch has that of a bridge, that is read no further.
    pub(super) fn undo_again_from(&mut self, info: SnapshotInfo, world: &dyn World) {
        let replaced = |it: &&Installing| it.source == Source::Own && it.info.id == info.id;
        if let Some(installing) = self.installing.as_ref().filter(replaced) {
            self.undo_again(installing.reach, world);
        }
    }

    /// A peer's state is here: what is being undone is undone first, so that all that the protocol
    /// has asked for since comes before it.
    pub(super) fn finish_undo(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        while self.undoes() && !self.halted {
            self.step_undo(usize::MAX, world, out);
        }
    }

    fn undone(&mut self, slot: Slot, out: &mut Vec<Output>) {
        out.push(Output::Mark("rolled back"));
        self.executed_told = slot;
        self.events.push_back(Event::RolledBack(slot));
    }
}
