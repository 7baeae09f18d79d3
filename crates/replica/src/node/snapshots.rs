//! A node's snapshots: taken of its own state without stopping, and installed from a peer's.

use super::*;

impl Node {
    pub(super) fn begin_snapshot(&mut self, slot: Slot, summary: Bytes, out: &mut Vec<Output>) {
        self.checkpoint_asked = false;
        if matches!(
            self.under_way,
            Some(UnderWay {
                kind: Under::Fetched { .. },
                ..
            })
        ) {
            return;
        }
        let (id, first) = self.executor.begin_snapshot(slot, summary);
        out.push(Output::SnapshotBegin { id, fetched: false });
        let appended = first.len() as u64;
        out.push(Output::SnapshotAppend(first));
        self.under_way = Some(UnderWay {
            kind: Under::Own {
                whole: false,
                finished: false,
                after: self.written,
            },
            id,
            appended,
            written: 0,
        });
        // A small state must be copied before the next command, however much has been handed over
        // before it; see `StateMachine::snapshot_chunk`.
        if !self.planted.is(Plant::IndexAndDataNotAtomic) {
            self.append_snapshot_chunk(out);
        }
    }

    /// Hands the next part of the snapshot to the world; true when more could follow at once.
    pub(super) fn step_snapshot(&mut self, out: &mut Vec<Output>) -> bool {
        let Some(under_way) = &mut self.under_way else {
            return false;
        };
        let Under::Own { whole: false, .. } = under_way.kind else {
            return false;
        };
        if under_way.appended - under_way.written > SNAPSHOT_AHEAD_MAX {
            return false;
        }
        self.append_snapshot_chunk(out)
    }

    fn append_snapshot_chunk(&mut self, out: &mut Vec<Output>) -> bool {
        let Some(under_way) = &mut self.under_way else {
            return false;
        };
        let (chunk, progress) = self.executor.snapshot_chunk(SNAPSHOT_STEP);
        under_way.appended += chunk.len() as u64;
        out.push(Output::SnapshotAppend(chunk));
        if progress == SnapshotProgress::Done {
            if let Under::Own { whole, .. } = &mut under_way.kind {
                *whole = true;
            }
            self.maybe_finish_snapshot(out);
            if self.planted.is(Plant::SnapshotCountsEarly)
                && let Some(under_way) = &self.under_way
            {
                let slot = under_way.id.slot;
                self.events.push_back(Event::Checkpointed(slot));
            }
            return false;
        }
        true
    }

    pub(super) fn on_snapshot_saved(
        &mut self,
        info: SnapshotInfo,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let Some(under_way) = self.under_way.take_if(|under_way| under_way.id == info.id) else {
            return;
        };
        self.snapshot_last = info.length;
        self.executor.snapshot_saved(info.id.slot);
        match under_way.kind {
            Under::Own { .. } => self.events.push_back(Event::Checkpointed(info.id.slot)),
            Under::Fetched { .. } => self.install(info, world, out),
        }
    }

    pub(super) fn install(&mut self, info: SnapshotInfo, world: &dyn World, out: &mut Vec<Output>) {
        let reach = self.fetch.as_ref();
        let reach = reach.map_or(info.id.slot, |fetch| fetch.reach(info.id));
        // A newer state may have been asked for while this one was being saved.
        if self
            .fetch
            .take_if(|fetch| fetch.at_least <= reach)
            .is_some()
        {
            out.push(Output::CancelTimer {
                key: node_timer(TIMER_FETCH),
            });
        }
        if let Some(fetch) = &mut self.fetch
            && fetch.snapshot == Some(info.id)
        {
            // The same snapshot would bring no more than it has.
            fetch.begin_above(reach);
        }
        // What a peer has saved is stable, so it ends this replica's speculation, too.
        let coming = (self.installing.as_ref()).map(|installing| installing.reach);
        let overtaken = reach <= self.executor.stable() || coming.is_some_and(|slot| reach <= slot);
        if overtaken && !self.planted.is(Plant::OldSnapshotReplacesState) {
            out.push(Output::Mark("fetched snapshot overtaken by the log"));
            return;
        }
        if self.executor.speculates() {
            let stable = self.executor.stable();
            self.held.retain(|answer| answer.slot <= stable);
        }
        let earlier = self.installing.take();
        let mut deferred = earlier.map_or_else(Vec::new, |earlier| earlier.deferred);
        deferred.extend(self.deferred.drain(..));
        self.executor.begin_restore();
        let begun = world.now();
        self.installing = Some(Installing {
            info,
            reach,
            deferred,
            begun,
        });
        self.step_install(world, out);
    }

    /// Restores the next part of a fetched state; true when there is more.
    pub(super) fn step_install(&mut self, world: &dyn World, out: &mut Vec<Output>) -> bool {
        let Some(installing) = &self.installing else {
            return false;
        };
        let id = installing.info.id;
        // What was executed ahead of its commit must not be seen beside what replaces it.
        let budget = if self.executor.speculates() {
            usize::MAX
        } else {
            self.restore_step
        };
        let piece = transfer::PIECE.min(budget);
        let read = |offset| world.snapshot_read(id, offset, piece);
        match self.executor.restore_step(read, budget) {
            Ok(None) => true,
            Ok(Some(header)) => {
                self.installed(header, world, out);
                false
            }
            Err(error) => {
                self.installing = None;
                out.push(Output::Halt(refused_state(id.slot, &error)));
                false
            }
        }
    }

    fn installed(&mut self, header: SnapshotHeader, world: &dyn World, out: &mut Vec<Output>) {
        let slot = header.executed.slot;
        let installing = self.installing.take();
        let deferred = installing.map_or_else(Vec::new, |installing| installing.deferred);
        self.executed_told = slot;
        self.digests.restored();
        self.fetched_at = Some(world.now());
        self.ring = None;
        out.push(Output::Mark("state installed"));
        let is_ahead =
            |effect: &Effect| matches!(effect, Effect::Execute { slot: at, .. } if *at > slot);
        if deferred.iter().any(is_ahead) {
            // The protocol has come further by its log meanwhile, and knows nothing of a state
            // that it has left behind.
            out.push(Output::Mark("fetched snapshot overtaken by the log"));
        } else {
            self.events.push_back(Event::Installed {
                slot,
                summary: header.summary,
            });
        }
        for effect in deferred {
            match effect {
                // It is in the state; who waits for its reply asks again.
                Effect::Execute { slot: at, .. } if at <= slot => {}
                // Of a state that there never was here.
                Effect::Checkpoint { slot: at, .. } if at != self.executor.executed().slot => {}
                other => self.carry_out_effect(other, world, out),
            }
        }
    }

    pub(super) fn maybe_ask_for_checkpoint(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let due =
            self.executor.bytes_since_snapshot() >= self.snapshot_bytes_min.max(self.snapshot_last);
        if due {
            self.ask_for_checkpoint(world, out);
        }
    }

    /// Asks the protocol for a checkpoint unless one is under way. For an operator's order, too.
    pub fn ask_for_checkpoint(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if self.checkpoint_asked || self.under_way.is_some() {
            return;
        }
        self.checkpoint_asked = true;
        self.events
            .push_back(Event::Control(Control::CheckpointDue));
        self.carry_out(world, out);
        // A protocol that cannot take one now is asked again on a later turn.
        self.checkpoint_asked = false;
    }
}

/// Why a replica stops that holds a part of a peer's state which it cannot use.
pub(super) fn refused_state(slot: Slot, error: &dyn core::fmt::Display) -> String {
    format!(
        "the state fetched from a peer (snapshot {slot}) cannot be restored: {error}. Start the \
         replica again; it will fetch another"
    )
}
