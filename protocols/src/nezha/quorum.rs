//! How many replicas are enough.

use quintet_replica::ReplicaId;

/// A majority: a slow quorum, and what a view change needs.
#[must_use]
pub const fn slow_quorum(members: usize) -> usize {
    members / 2 + 1
}

/// A fast quorum: f + ⌈f/2⌉ + 1 of 2f + 1 replicas. For any number: enough that of the logs of
/// every majority, more hold what it holds than replicas outside of it could hold against it.
#[must_use]
pub const fn fast_quorum(members: usize) -> usize {
    members - slow_quorum(members).div_ceil(2) + 1
}

/// How many of a majority's logs must hold an entry beyond the sync-point for it to survive a
/// change of view: as many as any fast quorum shares with any majority, ⌈f/2⌉ + 1.
#[must_use]
pub const fn survivor_quorum(members: usize) -> usize {
    fast_quorum(members) + slow_quorum(members) - members
}

/// The leader of a view.
#[must_use]
pub const fn leader_of(view: u64, first: ReplicaId, members: usize) -> ReplicaId {
    let members = members as u64;
    ReplicaId(((view % members + first.0 as u64) % members) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums_are_the_papers_for_odd_numbers_and_meet_for_all() {
        for f in 0..8usize {
            let members = 2 * f + 1;
            assert_eq!(slow_quorum(members), f + 1);
            assert_eq!(fast_quorum(members), f + f.div_ceil(2) + 1);
            assert_eq!(survivor_quorum(members), f.div_ceil(2) + 1);
        }
        for members in 1..20 {
            let (fast, survivors) = (fast_quorum(members), survivor_quorum(members));
            assert!(fast <= members && survivors >= 1);
            // A replica that is outside of a fast quorum is too few to survive against it.
            assert!(members - fast < survivors, "{members}");
        }
    }

    #[test]
    fn every_replica_leads_in_its_turn() {
        let leaders: alloc::vec::Vec<u16> = (0..4)
            .map(|view| leader_of(view, ReplicaId(1), 3).0)
            .collect();
        assert_eq!(leaders, [1, 2, 0, 1]);
    }
}
