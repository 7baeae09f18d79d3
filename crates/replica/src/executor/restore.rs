//! Restoring a snapshot, in steps.

use super::{Executor, SnapshotChunk, SnapshotHeader, sessions, stream::Restoring};
use crate::{Descriptor, RestoreError, list_differences, plant::Plant};
use alloc::{format, string::ToString};
use bytes::Bytes;

impl Executor {
    /// Replaces state and sessions by a snapshot read piece by piece from `read(offset)`, which
    /// gives an empty piece at the end.
    ///
    /// # Errors
    /// When the snapshot cannot be read, is damaged, or is another cluster's. The state is
    /// undefined then.
    pub fn restore(
        &mut self,
        mut read: impl FnMut(u64) -> Option<Bytes>,
    ) -> Result<SnapshotHeader, RestoreError> {
        self.begin_restore();
        loop {
            if let Some(header) = self.restore_step(&mut read, usize::MAX, u64::MAX)? {
                return Ok(header);
            }
        }
    }

    /// A restore by [`Self::restore_step`] begins, and one that was under way is dropped.
    pub fn begin_restore(&mut self) {
        self.abandon_digest();
        if let Some(before) = core::mem::take(&mut self.restoring).before {
            self.executed = before.executed;
            self.sealed = before.sealed;
        }
    }

    /// Goes on with a restore until it has read `budget` bytes more, or `upto` bytes in all; gives
    /// the header at its end. Until then the state is in pieces: nothing may be executed or read.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_step(
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
                    if self.planted.is(Plant::SessionsNotInSnapshot) {
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
        let header = core::mem::take(&mut self.restoring).header;
        let header = header.ok_or_else(|| RestoreError("no header".to_string()))?;
        self.abandon_digest();
        let reached = self.reached();
        if let Some(speculation) = &mut self.speculation {
            speculation.restored(reached);
        }
        Ok(header)
    }

    fn check_header(&self, header: &SnapshotHeader) -> Result<(), RestoreError> {
        if header.cluster != self.cluster {
            let (theirs, ours) = (header.cluster, self.cluster);
            return Err(RestoreError(format!(
                "cluster id mismatch: ours {ours}, its {theirs}"
            )));
        }
        if header.group != self.group {
            return Err(RestoreError(format!("it is of group {}", header.group)));
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
        let decode = |bytes: &Bytes| {
            Descriptor::decode(bytes.clone())
                .map_err(|error| RestoreError(format!("the descriptor of its epoch: {error}")))
        };
        let differences = decode(&self.descriptor)?.differences(&decode(theirs)?);
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
