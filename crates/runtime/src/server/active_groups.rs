//! The groups with something to do: a turn looks at no others, however many there are.
//!
//! ```text
//!   push ──────────────────────► gathering: a batch in the making ──► submit
//!   done, session ended, parked ► due: the server's own requests ───► push_own
//!   time ───────────────────────► due_at: those of all groups
//! ```

use super::{
    batches::{Pending, Window},
    gateway::Gateway,
    group_queue::{BatchKind, LEVELS},
    sessions::Standing,
};
use quintet_replica::{Submission, Time};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ActiveGroups {
    /// Those with batches in the making, and perhaps some that had.
    gathering: Vec<usize>,
    /// Batches that were full when something was put into them.
    full: Vec<BatchKind>,
    /// A batch in the making is longer than it may grow while others are served.
    is_full: bool,
    /// Those whose owner may have something to order now, or sooner than at `due_at`.
    due: Vec<usize>,
    /// All are looked at by then, or in the next turn.
    due_at: Time,
    all: bool,
}

impl ActiveGroups {
    /// All groups may have something to order.
    pub const fn visit_all(&mut self) {
        self.all = true;
    }
}

impl Gateway {
    /// The server may have something to order in this group.
    pub(super) fn visit(&mut self, group: usize) {
        let queue = &mut self.groups[group];
        if !queue.is_due {
            queue.is_due = true;
            self.active.due.push(group);
        }
    }

    /// Something was put into a batch.
    pub(super) fn on_pushed(&mut self, kind: BatchKind) {
        let window = self.window(kind.level);
        let queue = &mut self.groups[kind.group];
        if !queue.gathers {
            queue.gathers = true;
            self.active.gathering.push(kind.group);
        }
        let pending = queue.pending(kind.level);
        self.active.is_full |= pending.batch.len() >= self.config.batch_bytes_max;
        if pending.is_full(window) {
            self.active.full.push(kind);
        }
    }

    /// A batch has been taken from those in the making.
    pub(super) fn on_submitted(&mut self) {
        if self.active.is_full {
            let bytes_max = self.config.batch_bytes_max;
            let full = |kind: BatchKind| self.pending(kind).batch.len() >= bytes_max;
            let is_full = self.gathering().any(full);
            self.active.is_full = is_full;
        }
    }

    /// Whether no more requests are taken in for now.
    pub(super) const fn is_full(&self) -> bool {
        self.active.is_full
            || self.counters.bytes_in_flight >= self.config.in_flight_bytes_max as u64
    }

    /// The batches in the making, in the order in which they are submitted.
    pub(super) fn gathering(&self) -> impl Iterator<Item = BatchKind> {
        let groups = self.active.gathering.iter();
        let kinds = groups.flat_map(|&group| LEVELS.map(|level| BatchKind { group, level }));
        kinds.filter(move |kind| !self.pending(*kind).entries.is_empty())
    }

    /// Batches that are full go before more is put into them.
    pub(super) fn submit_full(&mut self, now: Time, submissions: &mut Vec<Submission>) {
        for nth in 0..self.active.full.len() {
            let kind = self.active.full[nth];
            if self.pending(kind).is_full(self.window(kind.level)) {
                self.submit(kind, now, submissions);
            }
        }
        self.active.full.clear();
    }

    /// Submits the batches in the making that are to go.
    pub(super) fn submit_if(
        &mut self,
        now: Time,
        submissions: &mut Vec<Submission>,
        goes: impl Fn(&Pending, Window) -> bool,
    ) {
        for nth in 0..self.active.gathering.len() {
            let group = self.active.gathering[nth];
            for level in LEVELS {
                let kind = BatchKind { group, level };
                let (pending, window) = (self.pending(kind), self.window(level));
                if !pending.entries.is_empty() && goes(pending, window) {
                    self.submit(kind, now, submissions);
                }
            }
        }
        let groups = &mut self.groups;
        self.active.gathering.retain(|&group| {
            let queue = &mut groups[group];
            queue.gathers = queue.is_gathering();
            queue.gathers
        });
    }

    /// Another owner takes the place of one that the log may no longer know; before anything is put
    /// into batches.
    pub(super) fn replace_lapsed_owner(&mut self, group: usize) {
        let lifetime = self.config.session_lifetime;
        if self.groups[group].replace_lapsed_owner(self.now, lifetime) {
            self.visit(group);
        }
    }

    /// Orders the server's own requests where there are some.
    pub(super) fn push_own_requests(&mut self, now: Time) {
        if self.active.all || now >= self.active.due_at {
            (self.active.all, self.active.due_at) = (false, Time::NEVER);
            (0..self.groups.len()).for_each(|group| self.visit(group));
        }
        // Sessions that end go with batches in the making.
        for nth in 0..self.active.gathering.len() {
            self.visit(self.active.gathering[nth]);
        }
        let mut due = std::mem::take(&mut self.active.due);
        for group in due.drain(..) {
            self.replace_lapsed_owner(group);
            self.groups[group].is_due = false;
            self.push_own(group, now);
            if self.groups[group].is_gathering() {
                self.on_pushed(BatchKind::ordered(group));
            }
            self.active.due_at = self.active.due_at.min(self.own_deadline(group));
        }
        self.active.due = due;
    }

    /// When the server has something of its own to order in a group at the latest.
    fn own_deadline(&self, group: usize) -> Time {
        let queue = &self.groups[group];
        let mut next = queue.own_deadline(self.config.session_lifetime);
        if queue.owner.standing != Standing::Registering
            && self.memory_limit_due(group, Time::NEVER).is_some()
        {
            next = next.min(queue.memory_limit.not_before);
        }
        next
    }

    /// When batches in the making go, and own requests are to be ordered, at the latest.
    pub(super) fn groups_deadline(&self) -> Time {
        let goes = |kind: BatchKind| self.pending(kind).goes_at(self.window(kind.level));
        let goes = self.gathering().map(goes);
        let own = |group| self.own_deadline(group);
        let next = match self.active.all {
            true => goes.chain((0..self.groups.len()).map(own)).min(),
            false => goes
                .chain(self.active.due.iter().map(|&group| own(group)))
                .min(),
        };
        next.unwrap_or(Time::NEVER).min(self.active.due_at)
    }
}
