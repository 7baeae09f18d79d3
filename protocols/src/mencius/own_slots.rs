//! The own slots of a replica: suggested in, skipped, or lost to the members that revoke them.
//!
//! ```text
//!   …… suggested, not executed …… next ──► suggest or skip ──► the next turn
//!      └ up to `revoked_until` others may decide
//! ```

use super::{Value, log::Log, turns::Turns};
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{ReplicaId, Slot, parts::Tally};

/// An own suggestion that is not executed.
#[derive(Clone, Debug, Hash)]
struct Suggestion {
    tally: Tally,
    value: Value,
}

/// See the module.
#[derive(Debug, Hash)]
pub(super) struct OwnSlots {
    id: ReplicaId,
    turns: Turns,
    next: Slot,
    /// Own slots up to here may be decided by others.
    revoked_until: Slot,
    /// The highest slot that any member is known to have suggested.
    latest: Slot,
    outstanding: BTreeMap<Slot, Suggestion>,
}

impl OwnSlots {
    pub fn new(id: ReplicaId, turns: Turns) -> Self {
        Self {
            id,
            turns,
            next: turns.slot_of(id, Slot(0)),
            revoked_until: Slot(0),
            latest: Slot(0),
            outstanding: BTreeMap::new(),
        }
    }

    /// Starts behind all own slots up to `used`; others may decide those up to `revoked`.
    pub fn start(&mut self, used: Slot, revoked: Slot) {
        self.revoked_until = revoked;
        self.next = self.turns.slot_of(self.id, used);
    }

    pub const fn next(&self) -> Slot {
        self.next
    }

    pub const fn latest(&self) -> Slot {
        self.latest
    }

    /// This slot is known to be suggested, or needed.
    pub fn learn_latest(&mut self, slot: Slot) {
        self.latest = self.latest.max(slot);
    }

    /// Uses the next own slot, and passes over those that others have decided, or are about to.
    pub fn use_next(&mut self, log: &Log) -> Slot {
        let slot = self.next;
        self.next = self.turns.ahead(slot, 1);
        self.pass_held(log);
        slot
    }

    /// No own slot that others have decided, or are about to, is suggested in. True when the next
    /// one was decided.
    pub fn pass_decided(&mut self, log: &Log) -> bool {
        let passed = self.next <= log.committed();
        if passed {
            self.next = self.turns.slot_of(self.id, log.committed());
        }
        self.pass_held(log);
        passed
    }

    fn pass_held(&mut self, log: &Log) {
        while log.get(self.next).is_some() {
            self.revoked_until = self.revoked_until.max(self.next);
            self.next = self.turns.ahead(self.next, 1);
        }
    }

    /// Own slots up to here are not this replica's any more. True when the next one was among them.
    pub fn pass_revoked(&mut self, until: Slot) -> bool {
        self.revoked_until = self.revoked_until.max(until);
        let passed = until >= self.next;
        if passed {
            self.next = self.turns.slot_of(self.id, until);
        }
        passed
    }

    /// Whether an own slot is not used yet, or a majority may still accept what was suggested there.
    /// Members that promised it to another one never will, and the one that revoked it may have
    /// given up.
    pub fn is_in_progress(&self, own: Slot) -> bool {
        own >= self.next || (own > self.revoked_until && self.outstanding.contains_key(&own))
    }

    /// This is suggested in an own slot.
    pub fn suggest(&mut self, slot: Slot, value: Value) {
        self.learn_latest(slot);
        let tally = Tally::new();
        self.outstanding.insert(slot, Suggestion { tally, value });
    }

    /// How many suggestions are not executed.
    pub fn len(&self) -> usize {
        self.outstanding.len()
    }

    pub fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// The first slot whose suggestion is not executed.
    pub fn lowest(&self) -> Option<Slot> {
        self.outstanding.keys().next().copied()
    }

    /// The last slot whose suggestion is not executed.
    pub fn highest(&self) -> Option<Slot> {
        self.outstanding.keys().next_back().copied()
    }

    /// A vote in ballot 0; gives the suggestion when this many members have voted for it.
    pub fn vote(&mut self, from: ReplicaId, slot: Slot, majority: usize) -> Option<Value> {
        let own = self.outstanding.get_mut(&slot)?;
        own.tally.vote(from);
        own.tally.reached(majority).then(|| own.value.clone())
    }

    /// The member has lost what it voted for.
    pub fn forget_votes(&mut self, of: ReplicaId) {
        for own in self.outstanding.values_mut() {
            own.tally.forget(of);
        }
    }

    /// Whether a suggestion lacks the vote of this member.
    pub fn lacks_vote_of(&self, of: ReplicaId) -> bool {
        let mut all = self.outstanding.values();
        all.any(|own| !own.tally.voters().contains(of))
    }

    /// As many suggestions from this slot on as fit into a message, one at least, and its length.
    pub fn suggested_from(
        &self,
        first: Slot,
        overhead: usize,
        bytes_max: usize,
    ) -> (Vec<(Slot, Value)>, usize) {
        let (mut entries, mut bytes) = (Vec::new(), overhead);
        for (slot, own) in self.outstanding.range(first..) {
            bytes += own.value.bytes();
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push((*slot, own.value.clone()));
        }
        (entries, bytes)
    }

    /// A slot is executed; gives what was suggested there.
    pub fn executed(&mut self, slot: Slot) -> Option<Value> {
        self.outstanding.remove(&slot).map(|own| own.value)
    }

    /// A state covers all up to this slot; gives what was suggested there.
    pub fn covered(&mut self, upto: Slot) -> impl Iterator<Item = Value> + use<> {
        let behind = self.outstanding.split_off(&upto.next());
        let covered = core::mem::replace(&mut self.outstanding, behind);
        covered.into_values().map(|own| own.value)
    }

    pub fn assert_invariants(&self) {
        let is_own = |slot: Slot| self.turns.owner(slot) == self.id;
        assert!(is_own(self.next), "own slots only");
        for (slot, own) in self.outstanding.iter().take(4) {
            assert!(is_own(*slot) && *slot < self.next, "suggested: {own:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mencius::log::Held;
    use quintet_replica::parts::Ballot;

    #[test]
    fn own_slots_that_others_hold_are_passed_over() {
        let mut log = Log::default();
        let mut own = OwnSlots::new(ReplicaId(1), Turns::new(3));
        let held = Held {
            ballot: Ballot::default(),
            value: Value::Noop,
            decided: true,
            durable: true,
        };
        log.put(Slot(5), held);
        assert_eq!(own.use_next(&log), Slot(2));
        assert_eq!(own.next(), Slot(8), "others hold 5");
        own.suggest(Slot(2), Value::Noop);
        assert!(!own.is_in_progress(Slot(2)), "others may decide up to 5");
        assert!(own.pass_revoked(Slot(9)) && !own.pass_revoked(Slot(9)));
        assert_eq!(own.next(), Slot(11));
        own.assert_invariants();
    }

    #[test]
    fn suggestion_is_given_when_majority_votes_for_it() {
        let mut own = OwnSlots::new(ReplicaId(0), Turns::new(3));
        own.suggest(Slot(1), Value::Noop);
        assert_eq!(own.vote(ReplicaId(0), Slot(1), 2), None);
        assert_eq!(own.vote(ReplicaId(0), Slot(1), 2), None, "the same again");
        own.forget_votes(ReplicaId(0));
        assert_eq!(own.vote(ReplicaId(1), Slot(1), 2), None);
        assert!(own.lacks_vote_of(ReplicaId(0)));
        assert_eq!(own.vote(ReplicaId(2), Slot(1), 2), Some(Value::Noop));
        own.suggest(Slot(4), Value::Noop);
        assert_eq!(own.covered(Slot(3)).count(), 1);
        assert_eq!(
            (own.lowest(), own.highest()),
            (Some(Slot(4)), Some(Slot(4)))
        );
    }
}
