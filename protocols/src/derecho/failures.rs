//! The silence of the others, as a replica knows it.

use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Time, parts::digest};

/// See the module.
#[derive(Hash)]
pub(super) struct Failures {
    heard: Vec<Time>,
    down: ReplicaSet,
    beat_at: Time,
    beats: u64,
    /// When this member began in the present view, and when it began to end it.
    installed_at: Time,
    ends_at: Time,
}

impl Failures {
    pub fn new(members: usize) -> Self {
        Self {
            heard: vec![Time(0); members],
            down: ReplicaSet::EMPTY,
            beat_at: Time(0),
            beats: 0,
            installed_at: Time(0),
            ends_at: Time(0),
        }
    }

    pub fn start(&mut self, now: Time) {
        self.heard.fill(now);
        self.beat_at = now;
    }

    /// A view begins: no member has been silent in it.
    pub fn begin(&mut self, now: Time) {
        self.heard.fill(now);
        self.installed_at = now;
        self.ends_at = now;
    }

    pub fn heard(&mut self, from: ReplicaId, at: Time) {
        self.heard[from.index()] = at;
    }

    pub const fn link_up(&mut self, peer: ReplicaId) {
        self.down = self.down.without(peer);
    }

    pub const fn link_down(&mut self, peer: ReplicaId) {
        self.down.insert(peer);
    }

    pub const fn is_down(&self, peer: ReplicaId) -> bool {
        self.down.contains(peer)
    }

    /// The timer of heartbeats has fired.
    pub fn on_beat(&mut self, timeout: Duration, now: Time) {
        if now.since(self.beat_at) > timeout {
            // This replica stood still: who spoke meanwhile is not known.
            self.begin(now);
        }
        self.beat_at = now;
    }

    /// The last time that it has fired.
    pub const fn beat_at(&self) -> Time {
        self.beat_at
    }

    /// Whether a member is silent for too long, or for a few beats and cannot be reached.
    pub fn is_silent(
        &self,
        peer: ReplicaId,
        timeout: Duration,
        heartbeat: Duration,
        now: Time,
    ) -> bool {
        let silent = now.since(self.heard[peer.index()]);
        silent > timeout || self.is_down(peer) && silent > heartbeat * 3
    }

    /// Whether members have had this much time to begin in the view.
    pub fn is_late(&self, limit: Duration, now: Time) -> bool {
        now.since(self.installed_at) > limit
    }

    /// The view ends, or more members are left out at its end.
    pub const fn ends(&mut self, now: Time) {
        self.ends_at = now;
    }

    /// Whether members have had this much time to end the view.
    pub fn is_late_at_end(&self, limit: Duration, now: Time) -> bool {
        now.since(self.ends_at) > limit
    }

    /// The number of the next heartbeat.
    pub const fn next_beat(&mut self) -> u64 {
        self.beats += 1;
        self.beats
    }

    pub fn digest(&self) -> u64 {
        digest(self.heard.iter().map(|at| at.0))
    }
}
