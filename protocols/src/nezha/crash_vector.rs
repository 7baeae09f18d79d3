//! The incarnations that all members are known to be in: the paper's crash vector.

use super::{Incarnations, conflict::mixed_wide};
use quintet_replica::{Incarnation, ReplicaId, ReplicaSet, parts::Member};

/// See the module.
#[derive(Hash)]
pub(super) struct CrashVector {
    own: ReplicaId,
    known: Incarnations,
    hash: u64,
}

impl CrashVector {
    pub fn new(me: &Member) -> Self {
        let mut known: Incarnations = (0..me.members()).map(|_| 0).collect();
        known[me.id().index()] = me.incarnation().0;
        let mut vector = Self {
            own: me.id(),
            known,
            hash: 0,
        };
        vector.rehash();
        vector
    }

    pub const fn known(&self) -> &Incarnations {
        &self.known
    }

    /// The part that a fast quorum compares.
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// It has changed, and replies are about it from now on.
    pub fn rehash(&mut self) {
        self.hash = mixed_wide(&self.known) as u64;
    }

    /// Whether a message that carries this comes from an earlier incarnation of its sender.
    pub fn is_outdated(&self, from: ReplicaId, theirs: &Incarnations) -> bool {
        theirs[from.index()] < self.known[from.index()]
    }

    /// Takes over what a peer knows; gives the members of which it knew a newer one.
    pub fn merge(&mut self, theirs: &Incarnations) -> ReplicaSet {
        let mut newer = ReplicaSet::EMPTY;
        for (id, incarnation) in (0..).map(ReplicaId).zip(theirs) {
            if id != self.own && self.observe(id, Incarnation(*incarnation)) {
                newer.insert(id);
            }
        }
        newer
    }

    /// A member is in this incarnation. True when that is news.
    pub fn observe(&mut self, id: ReplicaId, incarnation: Incarnation) -> bool {
        let known = &mut self.known[id.index()];
        let newer = incarnation.0 > *known;
        *known = incarnation.0.max(*known);
        newer
    }

    /// Takes back what the disk holds.
    pub fn restore(&mut self, known: &Incarnations) {
        for (own, known) in self.known.iter_mut().zip(known) {
            *own = (*own).max(*known);
        }
        self.rehash();
    }
}
