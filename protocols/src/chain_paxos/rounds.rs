//! Rounds that a leader makes, and those that have come back.

use super::Round;
use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Slot, Time, Wake};
use smallvec::SmallVec;

/// Rounds in progress whose time is remembered.
const ROUNDS_MAX: usize = 256;

/// See the module.
#[derive(Hash)]
pub(super) struct Rounds {
    /// Questions since the last round.
    asked: SmallVec<[(ReplicaId, u64); 2]>,
    /// A round is due although nothing is proposed.
    due: bool,
    /// A reader before the middle waits for word that a round came back.
    echo_after: u64,
    made_at: Time,
    open: VecDeque<(u64, Time)>,
    looped: u64,
    looped_by: ReplicaSet,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            asked: SmallVec::new(),
            due: true,
            echo_after: 0,
            made_at: Time(0),
            open: VecDeque::new(),
            looped: 0,
            looped_by: ReplicaSet::EMPTY,
        }
    }
}

impl Rounds {
    /// A replica asks for a round that begins from now on.
    pub fn ask(&mut self, from: ReplicaId, stamp: u64) {
        match self.asked.iter_mut().find(|(by, _)| *by == from) {
            Some((_, before)) => *before = stamp.max(*before),
            None => self.asked.push((from, stamp)),
        }
    }

    /// The next turn makes a round, whether anything is proposed or not.
    pub const fn make_due(&mut self) {
        self.due = true;
    }

    /// The newest round that has come back, and the replicas that have passed it on.
    pub const fn looped(&self) -> (u64, ReplicaSet) {
        (self.looped, self.looped_by)
    }

    fn is_echo_due(&self, majority: usize) -> bool {
        self.echo_after > 0 && self.looped >= self.echo_after && self.looped_by.len() >= majority
    }

    /// Whether a round waits although nothing is proposed: at once, from a time on, or not. Rounds
    /// for reads alone leave each other a little time, so that more reads share one.
    pub fn wanted(&self, reads: bool, gap: Duration, now: Time, majority: usize) -> Option<Wake> {
        if self.due {
            return None;
        }
        if !reads && self.asked.is_empty() && !self.is_echo_due(majority) {
            return Some(Wake::Sleep);
        }
        let at = self.made_at + gap;
        (now < at).then_some(Wake::At(at))
    }

    /// Makes a round with this number; the first replicas of its route are `upstream`.
    pub fn make(
        &mut self,
        (number, end): (u64, Slot),
        own: ReplicaId,
        upstream: &[ReplicaId],
        majority: usize,
        now: Time,
    ) -> Round {
        if self.asked.iter().any(|(by, _)| upstream.contains(by)) {
            self.echo_after = number;
        } else if self.is_echo_due(majority) {
            self.echo_after = 0;
        }
        self.due = false;
        self.made_at = now;
        if self.open.len() < ROUNDS_MAX {
            self.open.push_back((number, now));
        }
        Round {
            number,
            end,
            path: ReplicaSet::EMPTY.with(own),
            looped: self.looped,
            looped_by: self.looped_by,
            asked: core::mem::take(&mut self.asked),
        }
    }

    /// A round of a leader that is alone has come back at once.
    pub const fn loop_alone(&mut self, round: &Round) {
        self.looped = round.number;
        self.looped_by = round.path;
    }

    /// A round has come back; gives how long the newest took.
    pub fn came_round(&mut self, round: &Round, now: Time) -> Option<Duration> {
        if round.number < self.looped {
            return None;
        }
        if round.number > self.looped {
            self.looped = round.number;
            self.looped_by = ReplicaSet::EMPTY;
        }
        self.looped_by.0 |= round.path.0;
        let mut sent_at = None;
        while let Some((number, at)) = self.open.front().copied() {
            if number > round.number {
                break;
            }
            sent_at = Some(at);
            self.open.pop_front();
        }
        sent_at.map(|at| now.since(at))
    }
}
