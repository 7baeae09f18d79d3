//! One group on a replica's disk in the performance model: a journal with group commit, and the
//! newest snapshot.
//!
//! ```text
//!   write ──► waiting ──begin──► syncing ──done──► kept        a crash loses what is not kept
//! ```

use quintet_replica::{
    Bytes, Durability, Executed, PersistId, RecoveredBytes, Slot, SnapshotInfo, Write,
};
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Journal {
    promise: Option<Bytes>,
    records: VecDeque<(Slot, Bytes)>,
    waiting: VecDeque<(PersistId, Write)>,
    waiting_bytes: usize,
    syncing: Option<PersistId>,
    snapshots: VecDeque<(SnapshotInfo, Bytes)>,
    writing: Option<(Executed, bool, Vec<u8>)>,
}

impl Journal {
    /// Takes a write.
    pub fn write(&mut self, id: PersistId, write: Write) {
        self.waiting_bytes += write.bytes();
        self.waiting.push_back((id, write));
    }

    /// A synchronisation of all that waits begins; gives how many bytes that is.
    pub fn begin(&mut self) -> usize {
        self.syncing = self.waiting.back().map(|(id, _)| *id);
        std::mem::take(&mut self.waiting_bytes)
    }

    /// It is done: up to where all is durable, and whether more waits.
    pub fn done(&mut self) -> (Option<PersistId>, bool) {
        let upto = self.syncing.take();
        while (self.waiting.front()).is_some_and(|(id, _)| Some(*id) <= upto) {
            match self.waiting.pop_front() {
                Some((_, Write::Promise(bytes))) => self.promise = Some(bytes),
                Some((_, Write::Record { slot, record })) => self.records.push_back((slot, record)),
                None => {}
            }
        }
        (upto, !self.waiting.is_empty())
    }

    pub fn trim(&mut self, below: Slot) {
        while self.records.front().is_some_and(|(slot, _)| *slot < below) {
            self.records.pop_front();
        }
    }

    pub fn snapshot_begin(&mut self, id: Executed, fetched: bool) {
        self.writing = Some((id, fetched, Vec::new()));
    }

    /// Appends; gives the length so far.
    pub fn snapshot_append(&mut self, bytes: &[u8]) -> u64 {
        let Some((.., written)) = &mut self.writing else {
            return 0;
        };
        written.extend_from_slice(bytes);
        written.len() as u64
    }

    /// Cuts the snapshot in progress off.
    pub fn snapshot_truncate(&mut self, length: u64) {
        if let Some((.., written)) = &mut self.writing {
            written.truncate(length as usize);
        }
    }

    pub fn snapshot_abandon(&mut self) {
        self.writing = None;
    }

    /// The snapshot in progress is whole and durable.
    pub fn snapshot_finish(&mut self) -> Option<SnapshotInfo> {
        let (id, _, bytes) = self.writing.take()?;
        let info = SnapshotInfo {
            id,
            length: bytes.len() as u64,
        };
        self.snapshots.push_back((info, bytes.into()));
        if self.snapshots.len() > 2 {
            self.snapshots.pop_front();
        }
        Some(info)
    }

    pub fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.snapshots.back().map(|(info, _)| *info)
    }

    pub fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        if let Some((in_progress, true, written)) = &self.writing
            && *in_progress == id
        {
            let from = usize::try_from(offset).ok()?.min(written.len());
            let end = written.len().min(from + length);
            return Some(Bytes::copy_from_slice(&written[from..end]));
        }
        let (_, bytes) = self.snapshots.iter().find(|(info, _)| info.id == id)?;
        let from = usize::try_from(offset).ok()?.min(bytes.len());
        Some(bytes.slice(from..bytes.len().min(from + length)))
    }

    /// The process died, and with it what was not durable.
    pub fn crash(&mut self, durability: Durability) {
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.syncing = None;
        self.writing = None;
        if durability == Durability::Memory {
            self.records.clear();
            self.snapshots.clear();
        }
    }

    pub fn recovered(&self, first_boot: bool, durability: Durability) -> RecoveredBytes {
        RecoveredBytes {
            first_boot,
            state_lost: durability == Durability::Memory && !first_boot,
            promise: self.promise.clone(),
            checkpoint: None,
            records: self.records.iter().cloned().collect(),
        }
    }
}
