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
        out.push(Output::Mark("rolled back"));
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
        let restored = match world.snapshot_newest() {
            Some(info) => {
                let mut read = |offset| world.snapshot_read(info.id, offset, transfer::PIECE);
                self.executor.roll_back(slot, Some(&mut read))
            }
            None => self.executor.roll_back(slot, None),
        };
        if let Err(error) = restored {
            let reason = format!(
                "{NOT_UNDONE}: {error}. Start the replica again; it will recover from what is \
                 durable"
            );
            return self.halt(reason, out);
        }
        self.executed_told = slot;
        self.events.push_back(Event::RolledBack(slot));
    }
}
