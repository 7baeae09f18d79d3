//! Asserts the claims of Appendix A on the logs of all replicas of a group at one time. Claims that
//! one log shows by itself (1, 6, 7, 8) stand among the invariants of every replica.

use crate::chora::{Chora, Value, ViewInit};
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::Slot;

/// Asserts the claims about any two logs.
///
/// # Panics
/// When one does not hold.
pub fn hold(replicas: &[&Chora]) {
    let mut begun: BTreeMap<u64, &ViewInit> = BTreeMap::new();
    for replica in replicas {
        let logged = replica
            .log
            .iter_from(Slot(0))
            .filter_map(|it| match &it.1.value {
                Value::Init(init) => Some(&**init),
                Value::Noop | Value::Commands { .. } => None,
            });
        for init in logged.chain(replica.view.init()) {
            // Claims 2 and 3: a view has one initiator and one VIEW-INIT.
            let known = begun.entry(init.view).or_insert(init);
            assert!(*known == init, "Claim 3: two beginnings of {}", init.view);
        }
    }
    for (at, one) in replicas.iter().enumerate() {
        for other in &replicas[at + 1..] {
            matching(one, other);
            safe(one, other);
        }
        completes(one, replicas, &begun);
    }
}

/// Claims 4, 9, 10 and 11: entries of the same slot and view are the same, and so is all before.
fn matching(one: &Chora, other: &Chora) {
    let mut matched = false;
    let mut slot = one.log.last().min(other.log.last());
    while let (Some(mine), Some(theirs)) = (one.log.get(slot), other.log.get(slot)) {
        let same_view = mine.view == theirs.view;
        assert!(
            same_view || !matched,
            "Claim 10: not the same before {slot}"
        );
        if same_view {
            matched = true;
            assert!(mine.value == theirs.value, "Claim 9: two entries in {slot}");
        }
        slot = slot.previous();
    }
}

/// Theorem 1 and Claim 15: of what two replicas hold as committed, each slot is the same.
fn safe(one: &Chora, other: &Chora) {
    let upto = one.log.committed().min(other.log.committed());
    let first = one.log.first().max(other.log.first());
    for (slot, mine) in one.log.iter_from(first) {
        if slot > upto {
            break;
        }
        let theirs = other.log.get(slot).map(|held| &held.value);
        assert!(
            Some(&mine.value) == theirs,
            "Theorem 1: two commits in {slot}"
        );
    }
}

/// Claims 13 and 14: what is committed in a view stands in the log of every later initiator. A
/// replica with a later view's VIEW-INIT in its log has that initiator's log before it.
fn completes(one: &Chora, replicas: &[&Chora], begun: &BTreeMap<u64, &ViewInit>) {
    let later: Vec<&&ViewInit> = begun
        .range(one.view.number() + 1..)
        .map(|(_, init)| init)
        .collect();
    for init in later {
        assert!(
            one.log.committed() < init.base,
            "Claim 14: {} is committed, and view {} begins at {}",
            one.log.committed(),
            init.view,
            init.base
        );
        for holder in replicas.iter().filter(|it| it.view.init() == Some(*init)) {
            if let (Some(mine), Some(theirs)) = (
                one.log.get(one.log.committed()),
                holder.log.get(one.log.committed()),
            ) {
                assert!(
                    mine.value == theirs.value,
                    "Claim 14: in {}",
                    one.log.committed()
                );
            }
        }
    }
}
