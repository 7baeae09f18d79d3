//! The event loop's handling of its disk: full, lagging, repaired, trimmed.
//!
//! ```text
//!   no room for the next segment ──► writes refused here, leadership handed on; reads continue
//!   journal far behind           ──► peers are not read: they see a slow replica, not this one's memory
//!   votes count again, and all they rest on is durable ──► no longer one that lost its state
//!   Trim ──► kept until another snapshot can stand in ──► journal
//! ```

use super::EventLoop;
use crate::{SubmitError, mail::Request, snapshots::Snapshots};
use quintet_replica::{
    Control, DISK_HUNG_AFTER, Executed, GroupId, GroupIndex, Input, Level, ReplicaId, Slot, Time,
};
use std::{sync::PoisonError, time::Duration};

/// How often a leader without room asks others to lead.
const STEP_DOWN_EVERY: Duration = Duration::from_secs(2);

/// The state of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskState {
    Ok,
    /// There is no room for the next journal segment.
    Full,
    /// It has not answered for seconds, and the node hears and says nothing until it does.
    Hung,
    /// A write or a sync failed; the replica is about to stop.
    Failed,
}

impl DiskState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Full => "full",
            Self::Hung => "hung",
            Self::Failed => "failed",
        }
    }
}

/// The part of a group's log that may be trimmed once another snapshot can stand in for the named
/// one.
#[derive(Debug, Default)]
pub(super) struct Trims(Vec<(Executed, Slot)>);

impl Trims {
    /// The protocol needs nothing below `below`, given its newest snapshot. Should that be damaged,
    /// the one before it needs more. Gives the slot below which the log can be trimmed now.
    pub fn later(&mut self, below: Slot, snapshots: &Snapshots) -> Option<Slot> {
        let Some(newest) = snapshots.newest() else {
            // In memory durability there may be none, and no records either.
            return Some(below);
        };
        self.0.push((newest.id, below));
        self.due(snapshots)
    }

    /// The slot below which the log can be trimmed now, if there is news.
    pub fn due(&mut self, snapshots: &Snapshots) -> Option<Slot> {
        let mut due = None;
        self.0.retain(|(id, below)| {
            let replaceable = snapshots.replaceable(*id);
            if replaceable {
                due = due.max(Some(*below));
            }
            !replaceable
        });
        due
    }

    /// Another log begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl EventLoop {
    pub(super) fn on_disk_full(&mut self, full: Option<String>, now: Time) {
        self.node.note_full_disk(full.is_some());
        self.shards.note_full_disk(full.is_some());
        if let Some(reason) = &full {
            tracing::warn!(
                reason,
                "the disk is full: writes are refused here and leadership is handed on until there \
                 is room again"
            );
            self.disk = DiskState::Full;
            self.step_down_at = now;
        } else {
            tracing::info!("there is room on the disk again");
            self.disk = DiskState::Ok;
        }
        self.publish(now);
        self.shell.changed = true;
    }

    /// A leader that cannot make its own votes durable for long should not lead, and neither one
    /// whose state is not the majority's.
    pub(super) fn maybe_step_down(&mut self, leader: Option<ReplicaId>, wrong: bool, now: Time) {
        let leads = leader == Some(self.node.id());
        if (self.disk == DiskState::Full || wrong) && leads && now >= self.step_down_at {
            self.step_down_at = now + STEP_DOWN_EVERY;
            self.input(Input::Control(Control::HandOff));
            self.carry_out();
        }
    }

    pub(super) fn submit(&mut self, group: GroupId, request: Request, now: Time) {
        if request.payload.is_none() && !self.shards.are_ready() {
            // The question whether this replica is ready.
            request.finish(Err(SubmitError::NoQuorum));
        } else if self.disk == DiskState::Full && request.level == Level::Ordered {
            request.finish(Err(SubmitError::DiskFull));
        } else {
            self.shell.ports.push(group, request, now);
        }
    }

    /// Follows what the node finds of the disk.
    pub(super) fn note_disk(&mut self, hung: bool) {
        match (self.disk, hung) {
            (DiskState::Ok, true) => {
                self.disk = DiskState::Hung;
                self.shell.changed = true;
                tracing::error!(
                    "the disk has finished nothing for {} s: this replica takes no part until it \
                     does, and the others continue without it; look at the disk of the data directory",
                    DISK_HUNG_AFTER.as_secs()
                );
            }
            (DiskState::Hung, false) => {
                self.disk = DiskState::Ok;
                self.shell.changed = true;
                tracing::info!("the disk answers again");
            }
            _ => {}
        }
    }

    pub(super) fn is_disk_hung(&self) -> bool {
        self.node.is_disk_hung() || self.shards.is_disk_hung()
    }

    /// So much waits for the disk that no more may come in.
    pub(super) fn choked(&self) -> bool {
        self.journal.queued() / 2 > self.journal_queue_max && !self.is_disk_hung()
    }

    /// Whether requests are taken: a journal that cannot keep up holds clients back, not memory.
    /// One that hangs does not, since the node refuses what they ask at once.
    pub(super) fn hears_clients(&self) -> bool {
        self.journal.queued() <= self.journal_queue_max || self.is_disk_hung()
    }

    pub(super) fn maybe_repaired(&mut self) {
        if self.about.repairing.is_none() {
            return;
        }
        let Some(data) = &self.shell.data else {
            return;
        };
        let mut data = data.lock().unwrap_or_else(PoisonError::into_inner);
        let top = self.repaired_at.is_none_or(|at| at > self.durable);
        let top = top.then_some(GroupId(0));
        let waiting = top.into_iter().chain(self.shards.unrepaired(self.durable));
        let waiting: Vec<_> = waiting.filter(|of| data.is_repairing(*of)).collect();
        data.repaired_but(&waiting);
        if !waiting.is_empty() {
            return;
        }
        tracing::info!("what was damaged has been repaired from the other replicas");
        self.about.repairing = None;
        self.repaired_at = None;
    }

    pub(super) fn trim_later(&mut self, below: Slot) {
        if let Some(below) = self.trims.later(below, &self.world.snapshots) {
            self.journal.trim(GroupIndex(0), below);
        }
    }

    pub(super) fn trim_due(&mut self) {
        if let Some(below) = self.trims.due(&self.world.snapshots) {
            self.journal.trim(GroupIndex(0), below);
        }
    }
}
