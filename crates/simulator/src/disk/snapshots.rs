//! The snapshots of a disk.

use super::*;

impl Disk {
    /// Begins one that comes from a peer or not, and is to outlive the process or not; the first
    /// `kept` bytes of what an earlier run left of it stay.
    pub fn snapshot_begin(&mut self, id: Executed, (fetched, durable): (bool, bool), kept: u64) {
        let left = self.left.take();
        let mut bytes = left.map_or_else(Vec::new, |(_, bytes)| bytes);
        bytes.truncate(kept as usize);
        self.writing = Some((id, fetched, bytes));
        self.finishing = false;
        self.bridging = false;
        self.durable = durable;
    }

    /// The snapshot in progress leads to where an epoch begins.
    pub fn snapshot_bridges(&mut self, base: Executed) {
        if let Some((id, ..)) = &mut self.writing {
            *id = base;
            self.bridging = true;
        }
    }

    /// Appends to the snapshot in progress; gives its length so far.
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

    /// About as long as a snapshot takes to be saved, and another one to be half saved.
    pub fn bridge_time(&self, random: &mut Random) -> u64 {
        let longest = self.profile.sync_max * self.slow;
        random.between(longest, 2 * longest)
    }

    /// The snapshot in progress is whole; gives its name and how long making it durable takes.
    pub fn snapshot_finish(&mut self, random: &mut Random) -> Option<(Executed, u64)> {
        let id = self.writing.as_ref()?.0;
        self.finishing = true;
        Some((id, self.latency(random)))
    }

    pub fn snapshot_abandon(&mut self) {
        self.writing = None;
        self.finishing = false;
    }

    pub fn snapshot_left(&self) -> Option<SnapshotLeft> {
        self.left.as_ref().map(|(left, _)| left.clone())
    }

    /// Whether a snapshot is being written.
    pub const fn snapshot_in_progress(&self) -> bool {
        self.writing.is_some()
    }

    pub(super) fn keep_snapshot(&mut self, id: Executed) -> Option<(SnapshotInfo, bool)> {
        let taken = self
            .writing
            .take_if(|(in_progress, ..)| *in_progress == id)?;
        let (_, fetched, bytes) = taken;
        self.finishing = false;
        let length = bytes.len() as u64;
        let info = SnapshotInfo { id, length };
        let bytes = bytes.into();
        // One that came from a peer may be taken again: the log before it has a gap as before.
        let bridges = self.bridging;
        let same = |kept: &Kept| kept.info.id == id && kept.bridges == bridges;
        let gap = self.snapshots.iter().any(|kept| same(kept) && kept.fetched);
        self.snapshots.retain(|kept| !same(kept));
        self.open.replaced(id);
        self.snapshots.push(Kept {
            info,
            bytes,
            fetched: fetched || gap,
            bridges,
            durable: self.durable,
        });
        // The first state of an epoch stands before the bridge into it.
        self.snapshots
            .sort_by_key(|kept| (kept.info.id, !kept.bridges));
        while self.snapshots.len() > 2 && !bridges {
            self.snapshots.remove(0);
        }
        Some((info, fetched))
    }

    /// The snapshot is durable now, unless another was begun meanwhile. Gives how long a sync
    /// takes that it made necessary.
    pub fn snapshot_saved(
        &mut self,
        id: Executed,
        random: &mut Random,
    ) -> Option<(SnapshotInfo, Option<u64>)> {
        // Of the same name there may have been an earlier one, abandoned since.
        if !self.finishing {
            return None;
        }
        let (info, fetched) = self.keep_snapshot(id)?;
        if fetched {
            self.waiting.push_back(Order::Skip);
        }
        Some((info, self.trim_due(random)))
    }

    /// Whether a state at or behind this position would outlive the process.
    pub fn has_saved(&self, base: Executed) -> bool {
        let mut kept = self.snapshots.iter();
        kept.any(|kept| kept.durable && kept.info.id.position >= base.position)
    }

    pub fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.snapshots.last().map(|kept| kept.info)
    }

    pub fn snapshot_read(
        &self,
        id: Executed,
        offset: u64,
        length: usize,
        now: Time,
    ) -> Option<Bytes> {
        if let Some((in_progress, true, written)) = &self.writing
            && *in_progress == id
        {
            let from = usize::try_from(offset).ok()?.min(written.len());
            let end = written.len().min(from + length);
            return Some(Bytes::copy_from_slice(&written[from..end]));
        }
        let kept = self.snapshots.iter().rfind(|kept| kept.info.id == id);
        let bytes = self.open.read(id, kept.map(|kept| &kept.bytes), now)?;
        let from = usize::try_from(offset).ok()?.min(bytes.len());
        Some(bytes.slice(from..bytes.len().min(from + length)))
    }
}
