//! Revocations that are in progress, and the replies of an acceptor that wait for its disk.
//!
//! ```text
//!   Prepare ──► promises, and what was accepted ──majority──► Accept ──► votes ──majority──► Learn
//! ```

use super::{Known, Message, Range, Value};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    PersistId, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Ballot, Tally},
};

/// A revocation in progress.
#[derive(Clone, Debug, Hash)]
pub(super) struct Revocation {
    range: Range,
    tally: Tally,
    found: BTreeMap<Slot, (Ballot, Value)>,
    accepting: bool,
}

impl Revocation {
    const fn new(range: Range) -> Self {
        Self {
            range,
            tally: Tally::new(),
            found: BTreeMap::new(),
            accepting: false,
        }
    }

    pub const fn voters(&self) -> ReplicaSet {
        self.tally.voters()
    }

    /// The question that the others are to answer now.
    pub fn message(&self) -> Message {
        let range = self.range;
        if self.accepting {
            let values = self.values();
            Message::Accept { range, values }
        } else {
            Message::Prepare(range)
        }
    }

    /// The values that are proposed, but for slots with nothing in them.
    pub fn values(&self) -> Known {
        let found = self.found.iter();
        let some = found.filter(|(_, (_, value))| *value != Value::Noop);
        some.map(|(slot, (_, value))| (*slot, value.clone()))
            .collect()
    }

    /// A member has promised, and has accepted this.
    fn promised(&mut self, from: ReplicaId, accepted: Vec<(Slot, Ballot, Value)>) {
        for (slot, ballot, value) in accepted {
            let known = self.found.get(&slot);
            if known.is_none_or(|(known, _)| *known < ballot) {
                self.found.insert(slot, (ballot, value));
            }
        }
        self.tally.vote(from);
    }
}

/// A reply that is due when the promise or the votes of a range are durable.
#[derive(Clone, Debug, Hash)]
pub(super) struct Reply {
    write: PersistId,
    pub to: ReplicaId,
    pub range: Range,
    pub is_vote: bool,
}

/// The effect of a promise.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// Others are needed, or none any more.
    Counted,
    /// It belongs to another revocation.
    Stale,
    /// A majority has promised: this is proposed.
    Majority(Known),
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Revocations {
    by_owner: BTreeMap<ReplicaId, Revocation>,
    replies: VecDeque<Reply>,
    /// When a revocation began or ended, or slots were executed, last.
    progress_at: Time,
    /// Slots up to here have been looked at.
    looked_ahead: Slot,
}

impl Revocations {
    pub fn len(&self) -> usize {
        self.by_owner.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }

    /// Whether this owner's slots are being revoked here.
    pub fn has(&self, owner: ReplicaId) -> bool {
        self.by_owner.contains_key(&owner)
    }

    pub fn get(&self, owner: ReplicaId) -> Option<&Revocation> {
        self.by_owner.get(&owner)
    }

    pub const fn progressed(&mut self, now: Time) {
        self.progress_at = now;
    }

    /// For how long nothing has moved.
    pub fn waited(&self, now: Time) -> Duration {
        now.since(self.progress_at)
    }

    /// Whether slots up to this one are to be looked at, and not again before `next`.
    pub fn look_ahead(&mut self, latest: Slot, next: Slot) -> bool {
        let looks = latest > self.looked_ahead;
        if looks {
            self.looked_ahead = next;
        }
        looks
    }

    /// All slots are to be looked at again.
    pub const fn look_again(&mut self) {
        self.looked_ahead = Slot(0);
    }

    pub fn begin(&mut self, range: Range, now: Time) {
        self.progressed(now);
        self.by_owner.insert(range.owner, Revocation::new(range));
    }

    /// Slots of this owner are not revoked here any more.
    pub fn give_up(&mut self, owner: ReplicaId) {
        self.by_owner.remove(&owner);
    }

    /// A higher ballot than this revocation's was promised. True when there was one.
    pub fn outbid(&mut self, owner: ReplicaId, ballot: Ballot) -> bool {
        let lower = self.get(owner).is_some_and(|it| it.range.ballot < ballot);
        if lower {
            self.give_up(owner);
        }
        lower
    }

    /// The revocations that have not ended, but for those whose first slot is decided: what was
    /// decided meanwhile may be trimmed at the others, and less is asked for the next time.
    pub fn repeat(&mut self, settled: Slot) -> impl Iterator<Item = &Revocation> {
        self.by_owner.retain(|_, it| it.range.first > settled);
        self.by_owner.values()
    }

    /// A promise, with what its sender has accepted.
    pub fn on_promise(
        &mut self,
        from: ReplicaId,
        range: Range,
        accepted: Vec<(Slot, Ballot, Value)>,
        majority: usize,
    ) -> Promise {
        let Some(revocation) = self.by_owner.get_mut(&range.owner) else {
            return Promise::Counted;
        };
        if revocation.range != range || revocation.accepting {
            return Promise::Stale;
        }
        revocation.promised(from, accepted);
        if !revocation.tally.reached(majority) {
            return Promise::Counted;
        }
        revocation.accepting = true;
        revocation.tally = Tally::new();
        Promise::Majority(revocation.values())
    }

    /// A vote; gives what is decided by it, and the revocation has ended.
    pub fn on_vote(
        &mut self,
        from: ReplicaId,
        range: Range,
        majority: usize,
        now: Time,
    ) -> Option<Known> {
        let revocation = self.by_owner.get_mut(&range.owner);
        let revocation = revocation.filter(|it| it.range == range && it.accepting)?;
        revocation.tally.vote(from);
        if !revocation.tally.reached(majority) {
            return None;
        }
        let values = revocation.values();
        self.give_up(range.owner);
        self.progressed(now);
        Some(values)
    }

    /// The member has lost what it voted for.
    pub fn forget_votes(&mut self, of: ReplicaId) {
        for revocation in self.by_owner.values_mut().filter(|it| it.accepting) {
            revocation.tally.forget(of);
        }
    }

    /// A promise, or votes, are told when this write is durable.
    pub fn reply_after(&mut self, write: PersistId, to: ReplicaId, range: Range, is_vote: bool) {
        self.replies.push_back(Reply {
            write,
            to,
            range,
            is_vote,
        });
    }

    /// The next reply that is due when all writes up to this one are durable.
    pub fn pop_reply(&mut self, upto: PersistId) -> Option<Reply> {
        self.replies.front().filter(|reply| reply.write <= upto)?;
        self.replies.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::CommandTime;

    fn ballot(round: u64) -> Ballot {
        let owner = ReplicaId(0);
        Ballot { round, owner }
    }

    #[test]
    fn value_of_highest_ballot_is_proposed_and_decided_by_majority() {
        let range = Range {
            owner: ReplicaId(2),
            ballot: ballot(9),
            first: Slot(3),
            last: Slot(9),
        };
        let command = |time| Value::Command {
            time: CommandTime(time),
            batch: quintet_replica::Bytes::new(),
        };
        let mut all = Revocations::default();
        all.begin(range, Time(1));
        let (a, b) = (ReplicaId(0), ReplicaId(1));
        let low = alloc::vec![(Slot(6), ballot(1), command(1))];
        let high = alloc::vec![
            (Slot(6), ballot(2), command(2)),
            (Slot(9), ballot(2), Value::Noop)
        ];
        assert_eq!(
            all.on_vote(a, range, 2, Time(2)),
            None,
            "nothing is proposed"
        );
        assert_eq!(all.on_promise(a, range, high, 2), Promise::Counted);
        let values: Known = alloc::vec![(Slot(6), command(2))];
        assert_eq!(
            all.on_promise(b, range, low, 2),
            Promise::Majority(values.clone())
        );
        assert_eq!(all.on_promise(b, range, Vec::new(), 2), Promise::Stale);
        assert_eq!(all.on_vote(a, range, 2, Time(2)), None);
        all.forget_votes(a);
        assert_eq!(all.on_vote(b, range, 2, Time(2)), None);
        assert_eq!(all.on_vote(a, range, 2, Time(2)), Some(values));
        assert!(all.is_empty() && all.waited(Time(2)).is_zero());
    }

    #[test]
    fn higher_ballot_ends_revocation_and_reply_waits_for_its_write() {
        let range = Range {
            owner: ReplicaId(2),
            ballot: ballot(3),
            first: Slot(3),
            last: Slot(3),
        };
        let mut all = Revocations::default();
        all.begin(range, Time(1));
        assert!(!all.outbid(ReplicaId(2), ballot(3)) && all.has(ReplicaId(2)));
        assert!(all.outbid(ReplicaId(2), ballot(4)) && all.is_empty());
        all.reply_after(PersistId(5), ReplicaId(1), range, true);
        assert!(all.pop_reply(PersistId(4)).is_none());
        assert!(
            all.pop_reply(PersistId(5))
                .is_some_and(|reply| reply.is_vote)
        );
        assert!(all.look_ahead(Slot(1), Slot(4)) && !all.look_ahead(Slot(4), Slot(7)));
    }
}
