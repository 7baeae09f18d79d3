//! One process's disk: a journal with group commit, and the newest two snapshots.
//!
//! ```text
//!   Journal{id, write} ──► pending ──(sync: latency)──► durable ──► Persisted(id)
//!                             │ crash: a prefix drawn per crash survives, the rest is lost
//!   SnapshotBegin, Append, Finish ──(latency)──► saved; of the saved ones two are kept
//! ```
//!
//! The journal is one file in the order of writing, so what survives of the unsynced part is
//! always a prefix: a torn tail is cut off by recovery.

use crate::random::Random;
use quintet_replica::{
    Bytes, Durability, Executed, PersistId, RecoveredBytes, Slot, SnapshotInfo, Write,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How a disk behaves in a seed. Times are nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DiskProfile {
    /// A sync takes from this …
    pub sync_min: u64,
    /// … to this long.
    pub sync_max: u64,
    /// Trimming deletes from the front in runs of this many records, as deleting whole files does.
    pub trim_run: usize,
}

/// See the module.
pub(crate) struct Disk {
    profile: DiskProfile,
    /// Syncs take this many times longer.
    pub slow: u64,
    promise: Option<Bytes>,
    records: VecDeque<(Slot, Bytes)>,
    pending: VecDeque<(PersistId, Write)>,
    /// The last write that the sync under way covers.
    syncing: Option<PersistId>,
    /// Oldest first.
    snapshots: Vec<(SnapshotInfo, Bytes)>,
    writing: Option<(Executed, Vec<u8>)>,
    /// Most records ever held.
    pub records_max: usize,
}

impl Disk {
    pub fn new(profile: DiskProfile) -> Self {
        Self {
            profile,
            slow: 1,
            promise: None,
            records: VecDeque::new(),
            pending: VecDeque::new(),
            syncing: None,
            snapshots: Vec::new(),
            writing: None,
            records_max: 0,
        }
    }

    fn latency(&self, random: &mut Random) -> u64 {
        random.between(self.profile.sync_min, self.profile.sync_max) * self.slow
    }

    /// Appends a write. When no sync is under way one begins; gives how long it takes.
    pub fn append(&mut self, id: PersistId, write: Write, random: &mut Random) -> Option<u64> {
        self.pending.push_back((id, write));
        self.begin_sync(random)
    }

    fn begin_sync(&mut self, random: &mut Random) -> Option<u64> {
        if self.syncing.is_some() {
            return None;
        }
        self.syncing = Some(self.pending.back()?.0);
        Some(self.latency(random))
    }

    /// The sync under way is done: up to which write all is durable, and how long the next sync
    /// takes if more was written meanwhile.
    pub fn synced(&mut self, random: &mut Random) -> (Option<PersistId>, Option<u64>) {
        let upto = self.syncing.take();
        while self
            .pending
            .front()
            .is_some_and(|(id, _)| Some(*id) <= upto)
        {
            if let Some((_, write)) = self.pending.pop_front() {
                self.keep(write);
            }
        }
        (upto, self.begin_sync(random))
    }

    fn keep(&mut self, write: Write) {
        match write {
            Write::Promise(bytes) => self.promise = Some(bytes),
            Write::Record { slot, record } => {
                self.records.push_back((slot, record));
                self.records_max = self.records_max.max(self.records.len());
            }
        }
    }

    /// Records below `below` may go.
    pub fn trim(&mut self, below: Slot) {
        let run = self.profile.trim_run;
        while self.records.len() >= run
            && self.records.iter().take(run).all(|(slot, _)| *slot < below)
        {
            self.records.drain(..run);
        }
    }

    pub fn snapshot_begin(&mut self, id: Executed) {
        self.writing = Some((id, Vec::new()));
    }

    /// Appends to the snapshot under way; gives its length so far.
    pub fn snapshot_append(&mut self, bytes: &[u8]) -> u64 {
        let Some((_, written)) = &mut self.writing else {
            return 0;
        };
        written.extend_from_slice(bytes);
        written.len() as u64
    }

    /// The snapshot under way is whole; gives its name and how long making it durable takes.
    pub fn snapshot_finish(&mut self, random: &mut Random) -> Option<(Executed, u64)> {
        let id = self.writing.as_ref()?.0;
        Some((id, self.latency(random)))
    }

    pub fn snapshot_abandon(&mut self) {
        self.writing = None;
    }

    /// The snapshot is durable now, unless another was begun meanwhile.
    pub fn snapshot_saved(&mut self, id: Executed) -> Option<SnapshotInfo> {
        let (_, bytes) = self.writing.take_if(|(under_way, _)| *under_way == id)?;
        let info = SnapshotInfo {
            id,
            length: bytes.len() as u64,
        };
        self.snapshots.retain(|(kept, _)| kept.id != id);
        self.snapshots.push((info, bytes.into()));
        if self.snapshots.len() > 2 {
            self.snapshots.remove(0);
        }
        Some(info)
    }

    pub fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.snapshots.last().map(|(info, _)| *info)
    }

    pub fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let (_, bytes) = self.snapshots.iter().find(|(info, _)| info.id == id)?;
        let from = usize::try_from(offset).ok()?.min(bytes.len());
        Some(bytes.slice(from..bytes.len().min(from + length)))
    }

    /// The process died: of the writes not yet synced a drawn prefix reached the disk all the
    /// same. Gives how many were lost.
    pub fn crash(&mut self, random: &mut Random) -> usize {
        let survive = random.index(self.pending.len() + 1);
        let lost = self.pending.len() - survive;
        for (_, write) in std::mem::take(&mut self.pending).into_iter().take(survive) {
            self.keep(write);
        }
        self.syncing = None;
        self.writing = None;
        lost
    }

    /// Everything but the promise is gone: a restart in memory durability.
    pub fn forget(&mut self) {
        self.records.clear();
        self.snapshots.clear();
    }

    pub fn recovered(&self, first_boot: bool, durability: Durability) -> RecoveredBytes {
        RecoveredBytes {
            first_boot,
            forgot: durability == Durability::Memory && !first_boot,
            promise: self.promise.clone(),
            checkpoint: None,
            records: self.records.iter().cloned().collect(),
        }
    }

    /// Records on the disk now.
    #[cfg(test)]
    pub fn records(&self) -> usize {
        self.records.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(DiskProfile {
            sync_min: 10,
            sync_max: 10,
            trim_run: 2,
        })
    }

    fn record(slot: u64) -> Write {
        Write::Record {
            slot: Slot(slot),
            record: Bytes::from_static(b"r"),
        }
    }

    #[test]
    fn a_sync_covers_what_was_written_before_it_began() {
        let (mut disk, mut random) = (disk(), Random::new(1));
        assert_eq!(disk.append(PersistId(1), record(1), &mut random), Some(10));
        assert_eq!(disk.append(PersistId(2), record(2), &mut random), None);
        assert_eq!(disk.synced(&mut random), (Some(PersistId(1)), Some(10)));
        assert_eq!(disk.records(), 1);
        assert_eq!(disk.synced(&mut random), (Some(PersistId(2)), None));
        assert_eq!(disk.records(), 2);
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() {
        let mut seen = [false; 3];
        for seed in 0..40 {
            let (mut disk, mut random) = (disk(), Random::new(seed));
            disk.append(PersistId(1), record(1), &mut random);
            disk.synced(&mut random);
            disk.append(PersistId(2), record(2), &mut random);
            disk.append(PersistId(3), record(3), &mut random);
            let lost = disk.crash(&mut random);
            let slots: Vec<u64> = disk
                .recovered(false, Durability::Disk)
                .records
                .iter()
                .map(|r| r.0.0)
                .collect();
            assert_eq!(slots, (1..=(3 - lost as u64)).collect::<Vec<_>>());
            seen[lost] = true;
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn trimming_deletes_whole_runs_below_the_slot() {
        let (mut disk, mut random) = (disk(), Random::new(1));
        for slot in 1..=5 {
            disk.append(PersistId(slot), record(slot), &mut random);
            disk.synced(&mut random);
        }
        disk.trim(Slot(4));
        assert_eq!(disk.records(), 3);
    }

    #[test]
    fn the_newest_two_snapshots_are_kept() {
        let mut disk = disk();
        for slot in 1..=3 {
            let id = Executed {
                slot: Slot(slot),
                ..Executed::default()
            };
            disk.snapshot_begin(id);
            disk.snapshot_append(b"abc");
            assert!(disk.snapshot_saved(id).is_some());
        }
        let id = |slot| Executed {
            slot: Slot(slot),
            ..Executed::default()
        };
        assert_eq!(disk.snapshot_read(id(1), 0, 9), None);
        assert_eq!(
            disk.snapshot_read(id(2), 1, 9),
            Some(Bytes::from_static(b"bc"))
        );
        assert_eq!(disk.snapshot_newest().map(|info| info.id), Some(id(3)));
        disk.snapshot_begin(id(4));
        disk.crash(&mut Random::new(1));
        assert_eq!(disk.snapshot_saved(id(4)), None);
    }
}
