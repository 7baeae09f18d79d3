//! A node's snapshots: taken of its own state without stopping, and installed from a peer's.

use super::*;
use crate::FRAME_HEAD;

/// Where the state comes from that is being restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A snapshot that is durable here.
    Saved,
    /// The file of the snapshot in progress, as far as it has been written: what follows the state
    /// continues coming in meanwhile.
    Arriving,
    /// There was such a file. Another snapshot must come.
    Lost,
    /// This replica's own snapshot, behind which something is being undone …
    Own,
    /// … or what there is before any snapshot.
    Beginning,
}

impl Source {
    /// Whether this replica's own state is being restored.
    pub(super) const fn undoes(self) -> bool {
        matches!(self, Self::Own | Self::Beginning)
    }
}

impl Node {
    pub(super) fn begin_snapshot(&mut self, slot: Slot, summary: Bytes, out: &mut Vec<Output>) {
        self.checkpoint_asked = false;
        self.give_up_bridge(out);
        if matches!(
            self.unfinished,
            Some(Unfinished {
                kind: Under::Fetched { .. },
                ..
            })
        ) {
            return;
        }
        let kind = Under::Own {
            whole: false,
            finished: false,
            after: self.written,
        };
        self.open_file(kind, slot, summary, out);
        // A small state must be copied before the next command, however much has been handed over
        // before it; see `StateMachine::snapshot_chunk`.
        if !self.injected.is(Bug::IndexAndDataNotAtomic) {
            self.append_snapshot_chunk(out);
        }
    }

    /// Begins a file of this replica's state as it is now.
    pub(super) fn open_file(
        &mut self,
        kind: Under,
        slot: Slot,
        summary: Bytes,
        out: &mut Vec<Output>,
    ) -> &mut Unfinished {
        let (id, first) = self.executor.begin_snapshot(slot, summary);
        let durable = self.saves_durably() || matches!(kind, Under::Bridge);
        out.push(Output::SnapshotBegin {
            id,
            fetched: false,
            kept: 0,
            durable,
        });
        let appended = first.len() as u64;
        out.push(Output::SnapshotAppend(first));
        self.unfinished.insert(Unfinished {
            kind,
            id,
            appended,
            written: 0,
            bridge: None,
        })
    }

    /// Hands the next part of the snapshot to the world; true when more could follow at once.
    pub(super) fn step_snapshot(&mut self, out: &mut Vec<Output>) -> bool {
        let Some(unfinished) = &mut self.unfinished else {
            return false;
        };
        let Under::Own { whole: false, .. } = unfinished.kind else {
            return false;
        };
        if unfinished.appended - unfinished.written > SNAPSHOT_AHEAD_MAX {
            return false;
        }
        self.append_snapshot_chunk(out)
    }

    fn append_snapshot_chunk(&mut self, out: &mut Vec<Output>) -> bool {
        let Some(unfinished) = &mut self.unfinished else {
            return false;
        };
        let (chunk, progress) = self.executor.snapshot_chunk(SNAPSHOT_STEP);
        unfinished.appended += chunk.len() as u64;
        out.push(Output::SnapshotAppend(chunk));
        if progress == SnapshotProgress::Done {
            if let Under::Own { whole, .. } = &mut unfinished.kind {
                *whole = true;
            }
            self.maybe_finish_snapshot(out);
            if self.injected.is(Bug::SnapshotCountsEarly)
                && let Some(unfinished) = &self.unfinished
            {
                let slot = unfinished.id.slot;
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
        let Some(unfinished) = self
            .unfinished
            .take_if(|unfinished| unfinished.id == info.id)
        else {
            return;
        };
        self.executor.snapshot_saved(info.id.slot);
        self.given.retain(|(file, _)| file.id != info.id);
        match unfinished.kind {
            Under::Own { .. } => {
                self.owes_state = false;
                self.snapshot_last = info.length;
                self.undo_again_from(info, world);
                if self.first_state_saved(info.id.slot, out) {
                    return;
                }
                self.events.push_back(Event::Checkpointed(info.id.slot));
            }
            Under::Fetched { .. } => self.on_fetched_saved(info, world, out),
            Under::Bridge => self.bridge_saved(out),
        }
    }

    fn on_fetched_saved(&mut self, info: SnapshotInfo, world: &dyn World, out: &mut Vec<Output>) {
        self.succession.bridged = false;
        let arrived = |installing: &&mut Installing| {
            installing.info.id == info.id && installing.source == Source::Arriving
        };
        let Some(installing) = self.installing.as_mut().filter(arrived) else {
            return self.install(info, world, out);
        };
        installing.info = info;
        installing.source = Source::Saved;
        let reach = installing.reach;
        self.settle_fetch(info.id, reach, out);
        self.step_install(world, out);
    }

    /// Whether a state is in pieces that stays so unless the fetch continues.
    pub(super) fn installs_arriving(&self) -> bool {
        let installing = self.installing.as_ref();
        installing.is_some_and(|it| matches!(it.source, Source::Arriving | Source::Lost))
    }

    /// Up to where a saved state brings this replica that is being restored.
    pub(super) fn saved_reach(&self) -> Option<Slot> {
        let installing = self.installing.as_ref();
        let saved = installing.filter(|it| it.source == Source::Saved);
        saved.map(|installing| installing.reach)
    }

    /// Up to where the state is final here, or will be when what is saved of it has been restored.
    /// Nothing up to there is fetched: a file of the same name would hide the one that is read.
    pub(super) fn comes_to(&self) -> Slot {
        let stable = self.executor.stable();
        self.saved_reach().map_or(stable, |reach| reach.max(stable))
    }

    /// The messages for the state that was being restored will not come.
    pub(super) fn lose_source(&mut self) {
        let installing = self.installing.as_mut();
        if let Some(installing) = installing.filter(|it| it.source == Source::Arriving) {
            installing.source = Source::Lost;
            installing.reach = Slot(0);
        }
    }

    pub(super) fn install(&mut self, info: SnapshotInfo, world: &dyn World, out: &mut Vec<Output>) {
        let reach = self.fetch.as_ref();
        let reach = reach.map_or(info.id.slot, |fetch| fetch.reach(info.id));
        self.settle_fetch(info.id, reach, out);
        self.finish_undo(world, out);
        // A state that a peer has saved is stable, so it ends this replica's speculation, too.
        let coming = (self.installing.as_ref()).map(|installing| installing.reach);
        let overtaken = reach <= self.executor.stable() || coming.is_some_and(|slot| reach <= slot);
        if overtaken && !self.injected.is(Bug::OldSnapshotReplacesState) {
            out.push(Output::Mark("fetched snapshot overtaken by the log"));
            return;
        }
        if self.executor.speculates() {
            let stable = self.executor.stable();
            self.held.retain(|answer| answer.slot <= stable);
        }
        self.begin_install(info, reach, Source::Saved, world);
        self.step_install(world, out);
    }

    /// Begins to restore a state, in place of one that is being restored.
    pub(super) fn begin_install(
        &mut self,
        info: SnapshotInfo,
        reach: Slot,
        source: Source,
        world: &dyn World,
    ) {
        self.executor.begin_restore();
        self.defer_during(info, reach, source, world);
    }

    /// Until a state is restored, what concerns it waits.
    pub(super) fn defer_during(
        &mut self,
        info: SnapshotInfo,
        reach: Slot,
        source: Source,
        world: &dyn World,
    ) {
        let earlier = self.installing.take();
        let mut deferred = earlier.map_or_else(Deferred::default, |earlier| earlier.deferred);
        let reads_max = self.executor.queries_max();
        while let Some(effect) = self.deferred.pop() {
            deferred.push(effect, reads_max);
        }
        self.installing = Some(Installing {
            info,
            reach,
            source,
            deferred,
            begun: world.now(),
        });
    }

    /// A fetched state is saved that reaches up to this slot: is that all that was wanted?
    fn settle_fetch(&mut self, id: Executed, reach: Slot, out: &mut Vec<Output>) {
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
            && fetch.snapshot.is_some_and(|file| file.id == id)
        {
            // The same snapshot would bring no more than it has.
            fetch.begin_above(reach);
        }
    }

    /// Restores the next part of a fetched state; true when there is more.
    pub(super) fn step_install(&mut self, world: &dyn World, out: &mut Vec<Output>) -> bool {
        let Some(installing) = &self.installing else {
            return false;
        };
        if installing.source.undoes() {
            return self.step_undo(self.restore_step, world, out);
        }
        let id = installing.info.id;
        let upto = match (installing.source, &self.unfinished) {
            (Source::Saved | Source::Own | Source::Beginning, _) => u64::MAX,
            // Its end makes it this replica's state, which only what is durable can be.
            (Source::Arriving, Some(file)) => match file.kind {
                Under::Fetched { whole: true } => {
                    let end = file.appended.saturating_sub(FRAME_HEAD as u64);
                    file.written.min(end)
                }
                _ => file.written,
            },
            (Source::Arriving, None) | (Source::Lost, _) => return false,
        };
        let more = |executor: &Executor| executor.has_fed() || executor.restored_bytes() < upto;
        if !more(&self.executor) {
            return false;
        }
        // Batches executed ahead of their commit must not be seen beside those that replace them.
        let budget = if self.executor.speculates() {
            usize::MAX
        } else {
            self.restore_step
        };
        let piece = transfer::PIECE.min(budget) as u64;
        let arriving = installing.source == Source::Arriving;
        let mut gone = false;
        let read = |offset| {
            let length = piece.min(upto.saturating_sub(offset));
            let read = world.snapshot_read(id, offset, length as usize);
            gone = read.is_none();
            read
        };
        match self.executor.restore_step(read, budget, upto) {
            Ok(None) => more(&self.executor),
            Ok(Some(header)) => {
                self.installed(header, world, out);
                false
            }
            Err(_) if gone && arriving => {
                // It could not be written on, which is told to this replica next.
                self.lose_source();
                false
            }
            Err(error) => {
                self.halt(refused_state(id.slot, &error), out);
                false
            }
        }
    }

    fn installed(&mut self, header: SnapshotHeader, world: &dyn World, out: &mut Vec<Output>) {
        let slot = header.executed.slot;
        let installing = self.installing.take();
        let named_for = installing.as_ref().map(|it| it.info.id.slot);
        self.owes_state = self.speculates() && named_for.is_some_and(|named| named < slot);
        let mut deferred = installing.map_or_else(Deferred::default, |it| it.deferred);
        self.executed_told = slot;
        self.snapshot_last = self.executor.state_bytes();
        self.digests.restored();
        self.fetched_at = Some(world.now());
        self.ring = None;
        out.push(Output::Mark("state installed"));
        if self.followed(slot, header.summary.clone(), out) {
            return;
        }
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
        while !self.halted
            && let Some(effect) = deferred.pop()
        {
            match effect {
                // It is in the state; who waits for its reply asks again.
                Effect::Execute { slot: at, .. } if at <= slot => {}
                // Of a state that there never was here.
                Effect::Checkpoint { slot: at, .. } if at != self.executor.progress() => {}
                other => self.carry_out_effect(other, world, out),
            }
        }
    }

    pub(super) fn maybe_ask_for_checkpoint(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let bytes_min = self.snapshot_bytes_min.max(self.snapshot_last);
        let is_due =
            self.executor.bytes_since_snapshot() >= bytes_min || self.is_young() || self.owes_state;
        if is_due && self.unfinished.is_none() {
            self.ask_for_checkpoint(world, out);
        }
    }

    /// Asks the protocol for a checkpoint unless one is in progress. For an operator's order, too.
    pub fn ask_for_checkpoint(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        // A peer's need for a state is more urgent than saving one ahead of a change, and behind
        // the end of the epoch, too: the others may not come there without it.
        self.give_up_bridge(out);
        if self.checkpoint_asked || self.unfinished.is_some() {
            return;
        }
        self.checkpoint_asked = true;
        self.events
            .push_back(Event::Control(Control::CheckpointDue));
        self.carry_out(world, out);
        // A protocol that cannot take one now is asked again on a later turn.
        self.checkpoint_asked = false;
        if self.disk.is_hung() {
            fall_silent(out);
        }
    }
}

/// Why a replica stops that holds a part of a peer's state which it cannot use.
pub(super) fn refused_state(slot: Slot, error: &dyn core::fmt::Display) -> String {
    format!(
        "the state fetched from a peer (snapshot {slot}) cannot be restored: {error}. Start the \
         replica again; it will fetch another"
    )
}
