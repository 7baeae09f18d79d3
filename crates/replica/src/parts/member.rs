//! The replica's own place in its group, which stays as it is while the protocol runs.

use super::too_many_lost_state;
use crate::{Context, Durability, Incarnation, Options, Protocol, ReplicaId, ReplicaSet, Setup};

/// The replica's own place in its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    id: ReplicaId,
    incarnation: Incarnation,
    members: usize,
    majority: usize,
    others: ReplicaSet,
    durability: Durability,
}

impl Member {
    /// The place that a replica starts with.
    #[must_use]
    pub fn new<O: Options>(setup: &Setup<O>) -> Self {
        Self {
            id: setup.id,
            incarnation: setup.incarnation,
            members: setup.epoch.members,
            majority: setup.epoch.majority(),
            others: setup.epoch.others(setup.id),
            durability: setup.durability,
        }
    }

    /// This replica.
    #[must_use]
    pub const fn id(&self) -> ReplicaId {
        self.id
    }

    /// Its incarnation.
    #[must_use]
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The number of members, this one among them.
    #[must_use]
    pub const fn members(&self) -> usize {
        self.members
    }

    /// The smallest number of members that is more than half.
    #[must_use]
    pub const fn majority(&self) -> usize {
        self.majority
    }

    /// All members but this one.
    #[must_use]
    pub const fn others(&self) -> ReplicaSet {
        self.others
    }

    /// Where its votes are kept.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether the others alone are a majority, of which a replica can recover its lost state.
    #[must_use]
    pub const fn can_recover(&self) -> bool {
        self.members > self.majority
    }

    /// Whether a majority may no longer be found among the members that have their state when this
    /// number of them has lost it.
    #[must_use]
    pub const fn are_too_many(&self, lost: usize) -> bool {
        lost > self.members - self.majority
    }

    /// Stops: too many members have lost their state, and an operator must decide.
    pub fn halt_lost<P: Protocol>(&self, ctx: &mut Context<'_, P>) {
        ctx.halt(too_many_lost_state(self.members, self.durability));
    }
}
