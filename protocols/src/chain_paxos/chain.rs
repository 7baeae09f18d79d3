//! The chain: who takes part, in which order, and how entries of the log change that.
//!
//! ```text
//!   members   r0 ─ r1 ─ r2 ─ r3 ─┐       a ring: replicas in the order in which they joined
//!             └──────────────────┘
//!   route     r2 ─► r3 ─► r0 ─► r1 ─► (r2)    from the leader once around; the last one, the
//!                                             tail, answers to the leader
//! ```
//!
//! A replica keeps three of them: as executed, as decided, and with every entry that it holds
//! under the promised ballot (*working*). Messages follow the working chain, so that the replica
//! that is to be removed is passed over from the RemoveNode entry on (Alg. 3, l. 1-4: that is the
//! paper's `marked`), and comes back when a new leader's log has no such entry (l. 20-21).

use super::Op;
use quintet_replica::{Incarnation, ReplicaId, ReplicaSet, Slot, wire};
use smallvec::SmallVec;

/// Replicas in some order.
pub(super) type Route = SmallVec<[ReplicaId; 8]>;

/// Where a replica's messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Next {
    /// To this replica.
    Peer(ReplicaId),
    /// Around, to the leader: this is the tail.
    Leader(ReplicaId),
}

/// A replica with the incarnation in which it was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Which replica.
    pub id: ReplicaId,
    /// Its incarnation; 0 for the first members, whichever incarnation they begin with.
    pub incarnation: Incarnation,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Chain {
    /// In the order of the ring.
    pub members: SmallVec<[Member; 8]>,
    /// The last entry that changed it.
    pub slot: Slot,
}

impl Chain {
    /// All members of an epoch, before any change.
    pub(super) fn first(members: usize) -> Self {
        let member = |id| Member {
            id: ReplicaId(id as u16),
            incarnation: Incarnation(0),
        };
        Self {
            members: (0..members).map(member).collect(),
            slot: Slot(0),
        }
    }

    pub(super) fn position(&self, id: ReplicaId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    /// The incarnation in which a replica is a member.
    pub(super) fn incarnation(&self, id: ReplicaId) -> Option<u64> {
        Some(self.members[self.position(id)?].incarnation.0)
    }

    pub(super) fn contains(&self, id: ReplicaId) -> bool {
        self.position(id).is_some()
    }

    pub(super) fn set(&self) -> ReplicaSet {
        self.members.iter().map(|member| member.id).collect()
    }

    /// Applies an entry to the chain; true when it had an effect. A removal that would leave fewer
    /// than `least` members does nothing: its proposer counted on an AddNode before it that a later
    /// leader did not find.
    pub(super) fn apply(&mut self, slot: Slot, op: &Op, least: usize) -> bool {
        match *op {
            Op::Add {
                id,
                incarnation,
                after,
            } => {
                let member = Member { id, incarnation };
                if let Some(at) = self.position(id) {
                    // Its place stays; only the incarnation is another.
                    self.members[at] = member;
                } else {
                    let behind = self.position(after).map(|at| at + 1);
                    let at = behind.unwrap_or(self.members.len());
                    self.members.insert(at, member);
                }
            }
            Op::Remove { id } if self.contains(id) && self.members.len() > least => {
                self.members.retain(|it| it.id != id);
            }
            _ => return false,
        }
        self.slot = slot;
        true
    }

    /// From the leader once around. A leader that is not a member goes first all the same: it
    /// leads, and adds itself.
    pub(super) fn route(&self, leader: ReplicaId) -> Route {
        let at = self.position(leader);
        let members = self.members.iter().map(|member| member.id);
        let behind = members.clone().skip(at.map_or(0, |at| at + 1));
        let before = members.take(at.unwrap_or(0));
        core::iter::once(leader)
            .chain(behind)
            .chain(before)
            .collect()
    }
}

wire! { struct Member [10] { id, incarnation } }
wire! { struct Chain { slot, members } where is_without_doubles }

/// Whether each is a member once.
fn is_without_doubles(chain: &Chain) -> bool {
    let mut ids = ReplicaSet::EMPTY;
    chain.members.iter().all(|member| ids.insert(member.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(route: &[ReplicaId]) -> alloc::vec::Vec<u16> {
        route.iter().map(|id| id.0).collect()
    }

    #[test]
    fn route_begins_at_the_leader_and_goes_once_around() {
        let mut chain = Chain::first(5);
        assert_eq!(ids(&chain.route(ReplicaId(3))), [3, 4, 0, 1, 2]);
        assert!(chain.apply(Slot(7), &Op::Remove { id: ReplicaId(0) }, 3));
        assert!(!chain.apply(Slot(8), &Op::Remove { id: ReplicaId(0) }, 3));
        assert_eq!(ids(&chain.route(ReplicaId(3))), [3, 4, 1, 2]);
        assert_eq!(ids(&chain.route(ReplicaId(0))), [0, 1, 2, 3, 4]);
        assert_eq!(chain.slot, Slot(7));
        assert!(chain.apply(Slot(9), &Op::Remove { id: ReplicaId(1) }, 3));
        assert!(
            !chain.apply(Slot(10), &Op::Remove { id: ReplicaId(2) }, 3),
            "a quorum stays"
        );
    }

    #[test]
    fn joiner_comes_behind_tail_under_any_later_leader() {
        let mut chain = Chain::first(4);
        chain.apply(Slot(1), &Op::Remove { id: ReplicaId(0) }, 3);
        // Leader 2: its route is 2, 3, 1.
        let add = Op::Add {
            id: ReplicaId(0),
            incarnation: Incarnation(2),
            after: ReplicaId(1),
        };
        chain.apply(Slot(2), &add, 3);
        assert_eq!(ids(&chain.route(ReplicaId(2))), [2, 3, 1, 0]);
        assert_eq!(ids(&chain.route(ReplicaId(1))), [1, 0, 2, 3]);
        let again = Op::Add {
            id: ReplicaId(3),
            incarnation: Incarnation(5),
            after: ReplicaId(1),
        };
        chain.apply(Slot(3), &again, 3);
        assert_eq!(
            ids(&chain.route(ReplicaId(2))),
            [2, 3, 1, 0],
            "its place stays"
        );
        assert_eq!(
            chain.members[chain.position(ReplicaId(3)).expect("a member")].incarnation,
            Incarnation(5)
        );
    }
}
