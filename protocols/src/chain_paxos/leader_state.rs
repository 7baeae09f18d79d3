//! State that only a leader keeps.

use super::{Op, distances::Distances, links::Links, rounds::Rounds, tail::Tail};
use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    ReplicaId, ReplicaSet, Slot, Time,
    parts::{RequestQueue, Transfer, Window, digest},
};

/// The pages already sent to a joiner.
#[derive(Clone, Copy, Debug, Hash)]
struct Pages {
    /// The slot up to which it reports to hold everything.
    held: Slot,
    /// The last slot that it was sent.
    upto: Slot,
    /// Since when it has held no more than that.
    since: Time,
}

/// The pages already sent to joiners. A joiner's report is as old as the way is long: a slow link
/// that is sent the same pages again each time takes nothing else. Only when nothing has arrived
/// for a while do the pages begin again.
#[derive(Default, Hash)]
pub(super) struct Joiners(BTreeMap<ReplicaId, Pages>);

impl Joiners {
    /// Behind which slot the next page begins of a joiner that holds all up to `held`, and since
    /// when it has held no more.
    pub fn next_page(
        &self,
        id: ReplicaId,
        held: Slot,
        now: Time,
        timeout: Duration,
    ) -> (Slot, Time) {
        let known = self.0.get(&id).filter(|pages| {
            held <= pages.upto && (held > pages.held || now.since(pages.since) < timeout)
        });
        let since = known.filter(|pages| pages.held == held);
        (
            known.map_or(held, |pages| pages.upto),
            since.map_or(now, |pages| pages.since),
        )
    }

    /// A joiner that has held no more than `held` since then was sent all up to `upto`.
    pub fn sent(&mut self, id: ReplicaId, (held, since): (Slot, Time), upto: Slot) {
        self.0.insert(id, Pages { held, upto, since });
    }
}

/// See the module.
#[derive(Hash)]
pub(super) struct LeaderState {
    pub queue: RequestQueue,
    /// Undecided Accept messages.
    pub window: Window<Slot>,
    pub rounds: Rounds,
    pub links: Links,
    pub joiners: Joiners,
    pub distances: Distances,
    pub tail: Tail,
    /// Changes of the chain and ordered reads, to be proposed at once.
    ops: Vec<Op>,
    /// The slot up to which the tail reports to hold everything.
    tail_held: Slot,
    /// Replicas to leave the chain as soon as enough others are in it.
    unwanted: ReplicaSet,
    /// Members that report that they could not lead.
    unable: ReplicaSet,
    /// Leadership is being transferred since then.
    pub transfer: Transfer,
}

impl LeaderState {
    pub fn new(queue: RequestQueue, members: usize, now: Time) -> Self {
        Self {
            queue,
            window: Window::default(),
            rounds: Rounds::default(),
            links: Links::new(members, now),
            joiners: Joiners::default(),
            distances: Distances::new(members),
            tail: Tail::default(),
            ops: Vec::new(),
            tail_held: Slot(0),
            unwanted: ReplicaSet::EMPTY,
            unable: ReplicaSet::EMPTY,
            transfer: Transfer::default(),
        }
    }

    /// Proposes an operation in this turn, unless it is to be proposed already.
    pub fn propose(&mut self, op: Op) {
        if !self.ops.contains(&op) {
            self.ops.push(op);
        }
    }

    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub fn take_ops(&mut self) -> Vec<Op> {
        core::mem::take(&mut self.ops)
    }

    /// The tail reports what it holds.
    pub fn on_tail(&mut self, held: Slot) {
        self.tail_held = self.tail_held.max(held);
    }

    pub const fn tail_held(&self) -> Slot {
        self.tail_held
    }

    pub const fn unwanted(&self) -> ReplicaSet {
        self.unwanted
    }

    /// The replica is to leave the chain later, or no longer.
    pub const fn want_removed(&mut self, id: ReplicaId, removed: bool) {
        self.unwanted = self.unwanted.without(id);
        if removed {
            self.unwanted.insert(id);
        }
    }

    pub const fn unable(&self) -> ReplicaSet {
        self.unable
    }

    /// A member reports whether it could lead, and the newest round that it has seen.
    pub fn on_alive(&mut self, id: ReplicaId, able: bool, round: u64, now: Time) {
        self.links.saw(id, round, now);
        self.unable = self.unable.without(id);
        if !able {
            self.unable.insert(id);
        }
    }

    pub const fn is_transferring(&self) -> bool {
        self.transfer.has_begun()
    }

    /// Another replica is asked to lead. The owners of queued requests send them to it.
    pub fn hand_over(&mut self, now: Time) {
        self.transfer.begin(now);
        self.queue.drop_waiting();
    }

    pub fn digest(&self) -> u64 {
        let (looped, _) = self.rounds.looped();
        digest([looped, self.queue.bytes() as u64, self.window.len() as u64])
    }
}
