//! A replica between two views: what it has promised, and the votes that it collects.

use super::{Vote, dom::Name};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Bytes, PersistId, ReplicaId, Slot, Time,
    parts::{Member, Tally},
};

/// See the module.
#[derive(Hash)]
pub(super) struct Changing {
    since: Time,
    /// The promise of this view.
    promise: PersistId,
    /// Replicas that are known to be in this view or a later one.
    joined: Tally,
    votes: Vec<Option<Vote>>,
    /// The new leader's commit point, as it told it; until then it is taken to be as far as this
    /// replica, so that no vote lists the log that happens to be kept.
    leader_commit: Option<Slot>,
    /// Batches that were fetched for the merge.
    bodies: BTreeMap<Name, Bytes>,
    asked_at: Option<Time>,
}

impl Changing {
    pub fn new(me: &Member, promise: PersistId, now: Time) -> Self {
        let mut joined = Tally::new();
        joined.vote(me.id());
        Self {
            since: now,
            promise,
            joined,
            votes: vec![None; me.members()],
            leader_commit: None,
            bodies: BTreeMap::new(),
            asked_at: None,
        }
    }

    /// Whether the promise is durable when all writes up to `persisted` are.
    pub fn is_promised(&self, persisted: PersistId) -> bool {
        self.promise <= persisted
    }

    /// Another replica is in this view.
    pub const fn joined(&mut self, from: ReplicaId) {
        self.joined.vote(from);
    }

    /// Whether a majority is in this view, and its leader has not begun it for this long.
    pub fn is_late(&self, majority: usize, limit: Duration, now: Time) -> bool {
        now.since(self.since) > limit && self.joined.reached(majority)
    }

    /// The new leader's commit point. True when it is news.
    pub fn leader_told(&mut self, commit: Slot) -> bool {
        let news = self.leader_commit.is_none_or(|known| known < commit);
        if news {
            self.leader_commit = Some(commit);
        }
        news
    }

    pub const fn leader_commit(&self) -> Option<Slot> {
        self.leader_commit
    }

    pub fn vote(&mut self, from: ReplicaId, vote: Vote) {
        self.joined.vote(from);
        self.votes[from.index()] = Some(vote);
    }

    /// Drops all votes. True when there were any: a voter that is still in the incarnation that
    /// voted votes again at its next tick.
    pub fn drop_votes(&mut self) -> bool {
        let any = self.votes.iter().any(Option::is_some);
        self.votes.fill(None);
        any
    }

    /// The votes of the others, behind the own one.
    pub fn votes(&self, own: (ReplicaId, Vote)) -> Vec<(ReplicaId, Vote)> {
        let id = own.0;
        let others = (0..).map(ReplicaId).zip(&self.votes);
        let others = others.filter(|(from, _)| *from != id);
        let others = others.filter_map(|(from, vote)| Some((from, vote.clone()?)));
        core::iter::once(own).chain(others).collect()
    }

    /// A batch that was asked for.
    pub fn keep(&mut self, name: Name, batch: Bytes) {
        self.bodies.insert(name, batch);
    }

    pub fn body(&self, name: Name) -> Option<&Bytes> {
        self.bodies.get(&name)
    }

    /// Whether batches are to be asked for now, and not again for this long.
    pub fn may_ask(&mut self, every: Duration, now: Time) -> bool {
        let may = self.asked_at.is_none_or(|at| now.since(at) >= every);
        if may {
            self.asked_at = Some(now);
        }
        may
    }
}
