//! When a group is to be restarted from its logs, and which inspector this replica follows.

use super::{
    inspection::Inspection,
    message::{Ballot, Proposal},
};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time};

/// A proposal that is accepted as soon as everything up to its base is here.
#[derive(Clone, Debug, Hash)]
pub(super) struct Wanted {
    pub inspector: ReplicaId,
    pub proposal: Proposal,
    /// A member that holds what it needs.
    pub source: ReplicaId,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct RestartState {
    pub inspection: Option<Inspection>,
    pub wanted: Option<Wanted>,
    seen: Ballot,
    /// When another inspector last got a promise.
    promised_at: Time,
    /// When this replica was last a member at work, or said that it is out.
    out_since: Time,
    /// When a member at work was last heard, or this one was it.
    active_at: Time,
    /// Since when a majority of the last view has no state.
    lost_since: Option<Time>,
}

impl RestartState {
    /// This replica is out of its view.
    pub const fn out(&mut self, now: Time) {
        self.out_since = now;
        self.active_at = now;
    }

    /// A member is at work.
    pub const fn active(&mut self, now: Time) {
        self.active_at = now;
    }

    /// How long no member is active, while this replica is outside the view.
    pub fn quiet(&self, now: Time) -> Duration {
        now.since(self.active_at.max(self.out_since))
    }

    /// A ballot exists.
    pub fn saw(&mut self, ballot: Ballot) {
        self.seen = self.seen.max(ballot);
    }

    /// Another inspector gets a promise.
    pub const fn promised(&mut self, now: Time) {
        self.promised_at = now;
    }

    /// Whether that was not longer ago than this.
    pub fn is_promised(&self, within: Duration, now: Time) -> bool {
        now.since(self.promised_at) < within
    }

    /// Whether an inspection is to begin: there is none, or nothing comes of it, or a higher ballot
    /// exists.
    pub fn is_due(&self, limit: Duration, now: Time) -> bool {
        let inspection = self.inspection.as_ref();
        inspection.is_none_or(|inspection| inspection.is_stale(limit, self.seen, now))
    }

    /// Begins an inspection above all that were seen.
    pub fn inspect(&mut self, own: ReplicaId, now: Time) {
        let ballot = Ballot {
            round: self.seen.round + 1,
            proposer: u64::from(own.0) + 1,
        };
        self.saw(ballot);
        self.inspection = Some(Inspection::new(ballot, now));
    }

    /// Whether a majority of the last view `lacks` its state for longer than this, and no other
    /// member is active.
    pub fn is_lost(&mut self, lacks: bool, alone: Duration, limit: Duration, now: Time) -> bool {
        if !lacks || now.since(self.active_at) <= alone {
            self.lost_since = None;
            return false;
        }
        now.since(*self.lost_since.get_or_insert(now)) > limit
    }

    /// The view has ended.
    pub fn clear(&mut self) {
        self.inspection = None;
        self.wanted = None;
    }
}
