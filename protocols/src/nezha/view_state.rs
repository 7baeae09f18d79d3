//! The view that a replica is in, its leader, and who suspects it.

use super::{Incarnations, Promised, quorum::leader_of};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Context, PersistId, Protocol, ReplicaId, Time,
    parts::{Member, random_duration},
};

/// See the module.
#[derive(Hash)]
pub(super) struct ViewState {
    number: u64,
    /// The last view in which it took part.
    number_normal: u64,
    leader_first: ReplicaId,
    members: usize,
    /// Nothing is ordered under this view before this write is durable.
    ready_after: PersistId,
    heard_at: Time,
    timeout: Duration,
    leader_down: bool,
    /// When each replica last said that it does not hear the leader of this view.
    suspects: Vec<Option<Time>>,
}

impl ViewState {
    pub fn new(me: &Member, leader_first: ReplicaId) -> Self {
        Self {
            number: 0,
            number_normal: 0,
            leader_first,
            members: me.members(),
            ready_after: PersistId(0),
            heard_at: Time(0),
            timeout: Duration::ZERO,
            leader_down: false,
            suspects: vec![None; me.members()],
        }
    }

    pub const fn number(&self) -> u64 {
        self.number
    }

    pub const fn number_normal(&self) -> u64 {
        self.number_normal
    }

    pub const fn leader(&self) -> ReplicaId {
        self.leader_of(self.number)
    }

    pub const fn leader_of(&self, view: u64) -> ReplicaId {
        leader_of(view, self.leader_first, self.members)
    }

    /// The promise, together with what is known of the members.
    pub fn promised(&self, incarnations: &Incarnations) -> Promised {
        Promised {
            view: self.number,
            view_normal: self.number_normal,
            incarnations: incarnations.clone(),
        }
    }

    pub const fn enter(&mut self, view: u64) {
        self.number = view;
    }

    /// It takes part in the view.
    pub const fn begin(&mut self) {
        self.number_normal = self.number;
    }

    /// Takes back what the disk holds.
    pub fn restore(&mut self, view: u64, view_normal: u64) {
        self.number = self.number.max(view);
        self.number_normal = self.number_normal.max(view_normal);
    }

    pub const fn ready_after(&self) -> PersistId {
        self.ready_after
    }

    pub const fn wait_for(&mut self, written: PersistId) {
        self.ready_after = written;
    }

    /// Whether what the view rests on is durable when all writes up to `persisted` are.
    pub const fn is_ready(&self, persisted: PersistId) -> bool {
        persisted.0 >= self.ready_after.0
    }

    // ---------------------------------------------------------------------------- suspicion

    /// The leader has all its time again: it is silent from now on, if it is.
    pub fn trust<P: Protocol>(&mut self, suspect_after: Duration, ctx: &mut Context<'_, P>) {
        self.timeout = suspect_after + random_duration(suspect_after / 2, ctx);
        self.heard_at = ctx.now();
        self.leader_down = false;
        self.suspects.fill(None);
    }

    pub const fn heard(&mut self, now: Time) {
        self.heard_at = now;
    }

    /// The leader leads, and no suspicion counts any more.
    pub fn leader_leads(&mut self, now: Time) {
        self.heard_at = now;
        self.suspects.fill(None);
    }

    pub const fn set_leader_down(&mut self, down: bool) {
        self.leader_down = down;
    }

    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether the leader has been silent for longer than this many times the timeout.
    pub fn is_silent(&self, times: u32, now: Time) -> bool {
        now.since(self.heard_at) > self.timeout * times
    }

    /// Whether a follower suspects it: sooner when it cannot be reached.
    pub fn is_suspect(&self, now: Time) -> bool {
        let silence = now.since(self.heard_at);
        silence > self.timeout || (self.leader_down && silence > self.timeout / 4)
    }

    pub fn suspected_by(&mut self, id: ReplicaId, now: Time) {
        self.suspects[id.index()] = Some(now);
    }

    /// A member is in another incarnation: what it said before counts no more.
    pub fn restarted(&mut self, id: ReplicaId) {
        self.suspects[id.index()] = None;
    }

    /// Whether a majority, this replica among it, suspects the leader of late.
    pub fn is_given_up(&self, me: &Member, within: Duration, now: Time) -> bool {
        let recent = |at: &&Time| now.since(**at) < within;
        self.suspects[me.id().index()].is_some()
            && self.suspects.iter().flatten().filter(recent).count() >= me.majority()
    }

    pub fn assert_invariants(&self, takes_part: bool) {
        assert!(self.number_normal <= self.number);
        assert!(!takes_part || self.number_normal == self.number);
    }
}
