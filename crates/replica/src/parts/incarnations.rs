//! The newest incarnation of each member that a replica knows.

use crate::{Incarnation, ReplicaId};
use alloc::{vec, vec::Vec};

/// The result of [`Incarnations::observe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It is not newer than the known one.
    Known,
    /// It is the first one of this member.
    First,
    /// It replaces another one: the member was started again.
    Restarted,
}

/// The newest known incarnation of each member.
#[derive(Clone, Debug, Hash)]
pub struct Incarnations(Vec<Incarnation>);

impl Incarnations {
    /// None is known.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self(vec![Incarnation(0); members])
    }

    /// The newest one of this member; 0 when none is known.
    #[must_use]
    pub fn of(&self, id: ReplicaId) -> Incarnation {
        self.0[id.index()]
    }

    /// All of them, by member.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaId, Incarnation)> + '_ {
        let id = |index| ReplicaId(index as u16);
        let all = self.0.iter().enumerate();
        all.map(move |(index, incarnation)| (id(index), *incarnation))
    }

    /// A message or a link shows this incarnation of a member.
    pub fn observe(&mut self, id: ReplicaId, incarnation: Incarnation) -> Observed {
        let known = &mut self.0[id.index()];
        if incarnation <= *known {
            return Observed::Known;
        }
        let before = core::mem::replace(known, incarnation);
        if before == Incarnation(0) {
            Observed::First
        } else {
            Observed::Restarted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incarnations_only_rise() {
        let mut known = Incarnations::new(2);
        let id = ReplicaId(1);
        let observed = [3, 3, 2, 5].map(|number| known.observe(id, Incarnation(number)));
        assert_eq!(
            observed,
            [
                Observed::First,
                Observed::Known,
                Observed::Known,
                Observed::Restarted
            ]
        );
        assert_eq!(known.of(id), Incarnation(5));
        assert_eq!(known.of(ReplicaId(0)), Incarnation(0));
    }
}
