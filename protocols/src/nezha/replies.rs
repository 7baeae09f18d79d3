//! Replies of a follower that wait: for the disk, for the end of the turn, for the sync-point.

use super::{LogHash, dom::Stamp};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};
use quintet_replica::{BatchId, FrontendId, PersistId, Slot};

/// The most fast replies in one message.
const FAST_REPLIES_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Replies {
    /// Fast replies that wait until their batch is durable.
    fast_waiting: VecDeque<(PersistId, Stamp)>,
    /// Batches appended in this turn, by sender.
    fast: BTreeMap<FrontendId, Vec<(BatchId, LogHash)>>,
    /// Frontends that wait for slow replies, and for which slot.
    slow_waiting: VecDeque<(Slot, FrontendId)>,
}

impl Replies {
    /// A batch is told to be in the log when this write is durable.
    pub fn fast_after(&mut self, written: PersistId, stamp: Stamp) {
        self.fast_waiting.push_back((written, stamp));
    }

    /// The next batch that waited for no more than these writes.
    pub fn next_durable(&mut self, persisted: PersistId) -> Option<Stamp> {
        let (_, stamp) =
            *(self.fast_waiting.front()).filter(|(written, _)| *written <= persisted)?;
        self.fast_waiting.pop_front();
        Some(stamp)
    }

    /// A batch is told by the end of the turn. True when there are enough for a message.
    pub fn fast(&mut self, stamp: Stamp, hash: LogHash) -> bool {
        let replies = self.fast.entry(stamp.name.frontend).or_default();
        replies.push((stamp.name.batch, hash));
        replies.len() >= FAST_REPLIES_MAX
    }

    /// The replies that are sent now, in one message to each frontend.
    pub fn take_fast(&mut self) -> BTreeMap<FrontendId, Vec<(BatchId, LogHash)>> {
        core::mem::take(&mut self.fast)
    }

    /// A frontend is told when this slot is synced.
    pub fn slow_after(&mut self, slot: Slot, frontend: FrontendId) {
        self.slow_waiting.push_back((slot, frontend));
    }

    /// The frontends that waited for no more than this sync-point.
    pub fn take_slow(&mut self, sync: Slot) -> BTreeSet<FrontendId> {
        let ready = self.slow_waiting.partition_point(|(slot, _)| *slot <= sync);
        let ready = self.slow_waiting.drain(..ready);
        ready.map(|(_, frontend)| frontend).collect()
    }

    /// A peer's state covers these slots.
    pub fn drop_slow_upto(&mut self, slot: Slot) {
        self.slow_waiting.retain(|(at, _)| *at > slot);
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
