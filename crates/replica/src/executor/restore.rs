//! Restoring a snapshot, in steps.

use super::{Executor, ExecutorLimits, SnapshotChunk, SnapshotHeader, sessions, stream::Restoring};
use crate::{
    Descriptor, EpochNumber, Executed, RestoreError, bug::Bug, list_differences, public_part,
};
use alloc::{boxed::Box, format, string::ToString};
use bytes::Bytes;

/// An executor's part of an epoch besides its state: of its own, while it is in a step of restoring
/// a bridge from the epoch before, and of that one between two steps.
#[derive(Debug)]
pub(super) struct Crossing {
    epoch: EpochNumber,
    descriptor: Bytes,
    base: Executed,
    limits: ExecutorLimits,
}

fn descriptor_of(bytes: &Bytes) -> Result<Descriptor, RestoreError> {
    Descriptor::decode(bytes.clone())
        .map_err(|error| RestoreError(format!("the descriptor of its epoch: {error}")))
}

impl Executor {
    /// Replaces state and sessions by a snapshot read piece by piece from `read(offset)`, which
    /// gives an empty piece at the end. It may be one of the epoch before, with all that was
    /// executed up to that epoch's end behind the state: this epoch's first state.
    ///
    /// # Errors
    /// When the snapshot cannot be read, is damaged, or is another cluster's. The state is
    /// undefined then.
    pub fn restore(
        &mut self,
        mut read: impl FnMut(u64) -> Option<Bytes>,
    ) -> Result<SnapshotHeader, RestoreError> {
        self.begin_restore();
        self.restoring.may_cross = true;
        loop {
            if let Some(header) = self.restore_step(&mut read, usize::MAX, u64::MAX)? {
                return Ok(header);
            }
        }
    }

    /// A restore by [`Self::restore_step`] begins, and one that was in progress is dropped.
    pub fn begin_restore(&mut self) {
        self.abandon_digest();
        self.undo = None;
        let restoring = core::mem::take(&mut self.restoring);
        if let Some(before) = restoring.before {
            self.executed = before.executed;
            self.sealed = before.sealed;
        }
        if restoring.crossing.is_some() {
            self.sessions = sessions(&self.limits).with_bug(self.injected);
        }
    }

    /// Continues with a restore until it has read `budget` bytes more, or `upto` bytes in all;
    /// gives the header at its end. Until then the state is in pieces: nothing may be executed or
    /// read.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_step(
        &mut self,
        read: impl FnMut(u64) -> Option<Bytes>,
        budget: usize,
        upto: u64,
    ) -> Result<Option<SnapshotHeader>, RestoreError> {
        self.swap_crossing();
        let step = self.restore_on(read, budget, upto);
        self.swap_crossing();
        step
    }

    fn restore_on(
        &mut self,
        mut read: impl FnMut(u64) -> Option<Bytes>,
        budget: usize,
        upto: u64,
    ) -> Result<Option<SnapshotHeader>, RestoreError> {
        let mut left = budget;
        loop {
            self.execute_fed(&mut left)?;
            if self.has_fed() {
                return Ok(None);
            }
            match self.restoring.reader.next_chunk()? {
                Some(SnapshotChunk::Header(header)) => {
                    self.check_header(&header)?;
                    self.restoring.header = Some(header);
                }
                Some(SnapshotChunk::Sessions(mut rest)) => {
                    self.sessions
                        .decode(&mut rest)
                        .map_err(|error| RestoreError(format!("its sessions: {error}")))?;
                    if self.injected.is(Bug::SessionsNotInSnapshot) {
                        self.sessions = sessions(&self.limits);
                    }
                    self.machine.begin_restore();
                }
                Some(SnapshotChunk::State(chunk)) => {
                    let Restoring { reader, offset, .. } = &self.restoring;
                    self.restoring.state_end = offset - reader.pending() as u64;
                    self.machine.restore_chunk(&chunk)?;
                }
                Some(SnapshotChunk::Feed(feed)) => self.take_feed(feed)?,
                Some(SnapshotChunk::End) => return self.end_restore().map(Some),
                None if left == 0 || self.restoring.offset >= upto => return Ok(None),
                None => {
                    let offset = self.restoring.offset;
                    let piece =
                        read(offset).ok_or_else(|| RestoreError("it is gone".to_string()))?;
                    if piece.is_empty() {
                        return Err(RestoreError(format!(
                            "it ends after {offset} bytes, unfinished"
                        )));
                    }
                    left = left.saturating_sub(piece.len());
                    self.restoring.offset += piece.len() as u64;
                    self.restoring.reader.feed(&piece);
                }
            }
        }
    }

    fn end_restore(&mut self) -> Result<SnapshotHeader, RestoreError> {
        if self.restoring.before.is_none() {
            self.finish_state()?;
        }
        let restoring = core::mem::take(&mut self.restoring);
        let header = restoring.header;
        let mut header = header.ok_or_else(|| RestoreError("no header".to_string()))?;
        if let Some(mut crossing) = restoring.crossing {
            self.swap_with(&mut crossing);
            self.cross(&mut header)?;
        }
        self.abandon_digest();
        let reached = self.reached();
        if let Some(speculation) = &mut self.speculation
            && self.undo.is_none()
        {
            speculation.restored(reached);
        }
        Ok(header)
    }

    /// The batches are of the epoch before: they are executed as they were there.
    fn begin_crossing(&mut self, header: &SnapshotHeader) -> Result<(), RestoreError> {
        let (theirs, ours) = (
            descriptor_of(&header.descriptor)?,
            descriptor_of(&self.descriptor)?,
        );
        if ours.predecessor != theirs.fingerprint() {
            return Err(RestoreError(format!(
                "it is of another epoch {} than the one before this",
                header.epoch
            )));
        }
        let crossing = Crossing {
            epoch: self.epoch,
            descriptor: self.descriptor.clone(),
            base: self.base,
            limits: self.limits,
        };
        self.restoring.crossing = Some(Box::new(crossing));
        self.epoch = header.epoch;
        self.set_descriptor(header.descriptor.clone());
        self.agree(&theirs.limits);
        Ok(())
    }

    /// Between the steps of a crossing everybody is told of the epoch that this one is.
    fn swap_crossing(&mut self) {
        if let Some(mut crossing) = self.restoring.crossing.take() {
            self.swap_with(&mut crossing);
            self.restoring.crossing = Some(crossing);
        }
    }

    fn swap_with(&mut self, crossing: &mut Crossing) {
        core::mem::swap(&mut self.epoch, &mut crossing.epoch);
        core::mem::swap(&mut self.base, &mut crossing.base);
        core::mem::swap(&mut self.limits, &mut crossing.limits);
        let descriptor = core::mem::take(&mut crossing.descriptor);
        crossing.descriptor = core::mem::take(&mut self.descriptor);
        self.set_descriptor(descriptor);
    }

    /// The earlier epoch has been executed to its end: this one begins there.
    fn cross(&mut self, header: &mut SnapshotHeader) -> Result<(), RestoreError> {
        let sealed = self.sealed.take();
        let seal = sealed.map(|sealed| sealed.seal);
        let leads_here = seal.is_some_and(|seal| {
            seal.next_base() == self.base
                && public_part(&seal.successor) == public_part(&self.descriptor)
        });
        if !leads_here {
            return Err(RestoreError(
                "the batches behind its state do not lead to where this epoch began".to_string(),
            ));
        }
        self.executed = self.base;
        let (lifetime, kept) = (self.limits.session_lifetime, self.limits.kept_replies);
        self.sessions.enter_epoch(lifetime, kept, self.time);
        *header = SnapshotHeader {
            epoch: self.epoch,
            executed: self.base,
            summary: Bytes::new(),
            descriptor: self.descriptor.clone(),
            base: self.base,
            seal: None,
            ..header.clone()
        };
        Ok(())
    }

    fn check_header(&mut self, header: &SnapshotHeader) -> Result<(), RestoreError> {
        if header.cluster != self.cluster {
            let (theirs, ours) = (header.cluster, self.cluster);
            return Err(RestoreError(format!(
                "cluster id mismatch: ours {ours}, its {theirs}"
            )));
        }
        if header.group != self.group {
            return Err(RestoreError(format!("it is of group {}", header.group)));
        }
        if self.restoring.may_cross && header.epoch.0.checked_add(1) == Some(self.epoch.0) {
            return self.begin_crossing(header);
        }
        if header.epoch != self.epoch {
            let (theirs, ours) = (header.epoch, self.epoch);
            return Err(RestoreError(format!(
                "epoch mismatch: ours {ours}, its {theirs}"
            )));
        }
        self.check_descriptor(&header.descriptor)
    }

    /// A snapshot of the same epoch was taken under the same descriptor, unless it is of a build
    /// that had none.
    fn check_descriptor(&self, theirs: &Bytes) -> Result<(), RestoreError> {
        if theirs.is_empty() || self.descriptor.is_empty() || *theirs == self.descriptor {
            return Ok(());
        }
        let differences = descriptor_of(&self.descriptor)?.differences(&descriptor_of(theirs)?);
        if differences.is_empty() {
            // Addresses may differ.
            return Ok(());
        }
        Err(RestoreError(format!(
            "it was taken under another configuration of this cluster: {}",
            list_differences(&differences)
        )))
    }
}
