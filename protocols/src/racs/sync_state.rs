//! The synchronous mode of a view, at its leader and at those that follow.

use super::{BlockId, leader_state::LeaderState};
use quintet_replica::Time;

/// See the module. All of it begins again with each view.
#[derive(Default, Hash)]
pub(super) struct SyncState {
    pub lead: Option<LeaderState>,
    /// The leader of this view has been heard.
    heard: bool,
    /// It was told that this replica is in its view, and what its clients wait for.
    introduced: bool,
    heard_at: Time,
    /// The highest block of this view that its leader named.
    tip: Option<BlockId>,
    /// The highest block of this view that was voted for, durably.
    voted: Option<BlockId>,
    answer_due: bool,
    stamp_seen: u64,
}

impl SyncState {
    /// Another view begins: its leader is not known to be there.
    pub fn begin_view(&mut self) {
        *self = Self {
            heard_at: self.heard_at,
            ..Self::default()
        };
    }

    /// Whether this replica leads, and may propose.
    pub fn leads(&self) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.open)
    }

    pub const fn is_heard(&self) -> bool {
        self.heard
    }

    /// Whether the leader is to be sent the requests of clients.
    pub const fn knows_leader(&self) -> bool {
        self.heard || self.introduced
    }

    /// The leader is there. True when that is new.
    pub const fn hear(&mut self) -> bool {
        !core::mem::replace(&mut self.heard, true)
    }

    /// The leader is told of this replica. True when that is new.
    pub const fn introduce(&mut self) -> bool {
        !core::mem::replace(&mut self.introduced, true)
    }

    /// The leader may not have been told of this replica.
    pub const fn unintroduce(&mut self) {
        self.introduced = false;
    }

    /// The view has timed out here.
    pub const fn stop(&mut self) {
        self.heard = false;
        self.introduced = false;
    }

    /// When the view last showed progress.
    pub const fn heard_at(&self) -> Time {
        self.heard_at
    }

    pub const fn progressed(&mut self, at: Time) {
        self.heard_at = at;
    }

    pub const fn tip(&self) -> Option<BlockId> {
        self.tip
    }

    /// The leader names its highest block, and a number to be echoed.
    pub fn on_propose(&mut self, tip: BlockId, stamp: u64) {
        self.tip = self.tip.max(Some(tip));
        self.stamp_seen = self.stamp_seen.max(stamp);
    }

    pub const fn stamp_seen(&self) -> u64 {
        self.stamp_seen
    }

    pub const fn voted(&self) -> Option<BlockId> {
        self.voted
    }

    /// All up to this block is voted for, durably.
    pub fn vote(&mut self, id: BlockId) {
        self.voted = self.voted.max(Some(id));
    }

    /// The leader waits for a vote.
    pub const fn want_answer(&mut self) {
        self.answer_due = true;
    }

    pub const fn take_answer_due(&mut self) -> bool {
        core::mem::replace(&mut self.answer_due, false)
    }
}
