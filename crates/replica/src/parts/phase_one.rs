//! Phase 1 of Paxos over all slots behind a commit point, as a candidate sees it.
//!
//! ```text
//!   Asking ──(majority would promise)──► Promising ──(own promise durable)──► Preparing
//!                                                                                │
//!   won ◄── pages of a majority, per slot the entry of the highest ballot ◄──────┘
//! ```

use super::{Ballot, Decisions, Held, Tally};
use crate::{OrZero, ReplicaId, ReplicaSet, Slot, Time, wire};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;

/// How far a candidate has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Asking,
    Promising,
    /// The first leader waits for its own promise; no other one is needed.
    First,
    Preparing,
}

/// The pages of one acceptor.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Pages {
    /// The slot that its next page must begin with.
    next: Slot,
    /// Its commit point, once all pages are here.
    done: Option<Slot>,
}

/// The step of a candidate when its own promise is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promised {
    /// Nothing: it does not wait for that.
    Ignored,
    /// It leads the first ballot, which needs no phase 1.
    First,
    /// It sends `Prepare`, unless its own promise is a majority.
    Prepares,
}

/// A page of an acceptor's log, for a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromisePage<E> {
    /// The slot that it begins with.
    pub from: Slot,
    /// The slot that the next one begins with; none when it is the last.
    pub until: Option<Slot>,
    /// The acceptor's commit point.
    pub committed: Slot,
    /// The first slot from which on the acceptor can tell what it accepted. When it lies above
    /// `from`, the page is empty, and the promise does not count for a candidate that lacks what is
    /// between.
    pub first: Slot,
    /// Which ballots decided how much; nothing unless the page is empty for that reason.
    pub decisions: Decisions,
    /// The entries, ascending.
    pub accepted: Vec<(Slot, Held<E>)>,
}

wire! {
    struct PromisePage<E> { from, until as OrZero, committed, first, decisions, accepted }
    where is_page
}

/// Whether its slots ascend, from the first one of the page on and below the next page.
fn is_page<E>(page: &PromisePage<E>) -> bool {
    let mut next = page.from;
    for (slot, _) in &page.accepted {
        if *slot < next || page.until.is_some_and(|until| *slot >= until) {
            return false;
        }
        next = Slot(slot.0 + 1);
    }
    true
}

/// The effect of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It does not count, for the reason that the mark names.
    Ignored(&'static str),
    /// The acceptor no longer keeps slots that the candidate lacks.
    Behind,
    /// The next page is needed, from this slot on.
    More(Slot),
    /// The acceptor has promised, and all of its entries are here.
    Complete,
}

/// Slots further than this above the commit point are not believed: no leader proposes that far.
const DISTANCE_MAX: u64 = 1 << 24;

/// See the module.
#[derive(Debug, Hash)]
pub struct PhaseOne<E> {
    stage: Stage,
    ballot: Ballot,
    votes: Tally,
    pages: Vec<Pages>,
    gathered: BTreeMap<Slot, Held<E>>,
    progress_at: Option<Time>,
    /// The acceptors that no longer keep slots which the candidate lacks, and the least slot that
    /// one of them keeps.
    behind: ReplicaSet,
    behind_first: Option<Slot>,
}

impl<E> PhaseOne<E> {
    fn new(stage: Stage, ballot: Ballot, members: usize, from: Slot) -> Self {
        let pages = Pages {
            next: from,
            done: None,
        };
        Self {
            stage,
            ballot,
            votes: Tally::new(),
            pages: vec![pages; members],
            gathered: BTreeMap::new(),
            progress_at: None,
            behind: ReplicaSet::EMPTY,
            behind_first: None,
        }
    }

    /// The first leader, before its promise is durable.
    #[must_use]
    pub fn first(members: usize) -> Self {
        Self::new(Stage::First, Ballot::default(), members, Slot(0))
    }

    /// Asks whether the others would promise the ballot, for all slots from `from` on; `own` would.
    #[must_use]
    pub fn asking(ballot: Ballot, members: usize, from: Slot, own: ReplicaId) -> Self {
        let mut phase = Self::new(Stage::Asking, ballot, members, from);
        phase.vote(own);
        phase
    }

    /// Waits until its own promise is durable; it needs all slots from `from` on.
    #[must_use]
    pub fn promising(ballot: Ballot, members: usize, from: Slot) -> Self {
        Self::new(Stage::Promising, ballot, members, from)
    }

    /// Whether it waits for its own promise.
    #[must_use]
    pub fn waits_for_own(&self) -> bool {
        matches!(self.stage, Stage::First | Stage::Promising)
    }

    /// Whether it asks for this ballot.
    #[must_use]
    pub fn asks(&self, ballot: Ballot) -> bool {
        self.stage == Stage::Asking && self.ballot == ballot
    }

    /// Whether it collects promises.
    #[must_use]
    pub fn prepares(&self) -> bool {
        self.stage == Stage::Preparing
    }

    /// Whether it collects promises of this ballot.
    #[must_use]
    pub fn prepares_for(&self, ballot: Ballot) -> bool {
        self.prepares() && self.ballot == ballot
    }

    /// Its own promise is durable.
    pub fn on_own_promise(&mut self, own: ReplicaId) -> Promised {
        match self.stage {
            Stage::Asking | Stage::Preparing => Promised::Ignored,
            Stage::First => Promised::First,
            Stage::Promising => {
                self.stage = Stage::Preparing;
                self.vote(own);
                Promised::Prepares
            }
        }
    }

    /// This member votes for it.
    pub const fn vote(&mut self, from: ReplicaId) {
        self.votes.vote(from);
    }

    /// Whether a majority votes for it.
    #[must_use]
    pub const fn has(&self, majority: usize) -> bool {
        self.votes.reached(majority)
    }

    /// The members that vote for it.
    #[must_use]
    pub const fn voters(&self) -> ReplicaSet {
        self.votes.voters()
    }

    /// The peer was started again: its promise no longer counts.
    pub fn replaced(&mut self, peer: ReplicaId) {
        self.votes.forget(peer);
        self.pages[peer.index()].done = None;
    }

    /// The candidate lacks what this acceptor no longer keeps, below `first`. True when a majority
    /// may still vote for it: it needs a majority, not this one.
    pub fn is_behind(&mut self, from: ReplicaId, first: Slot, majority: usize) -> bool {
        self.behind.insert(from);
        self.behind_first = Some(self.behind_first.map_or(first, |least| least.min(first)));
        self.pages.len() - self.behind.len() >= majority
    }

    /// The least slot that any acceptor keeps which the candidate is behind.
    #[must_use]
    pub const fn behind_first(&self) -> Option<Slot> {
        self.behind_first
    }

    /// The candidate needs the pages of this acceptor from slot `from` on.
    pub fn ask_from(&mut self, of: ReplicaId, from: Slot) {
        self.pages[of.index()].next = from;
    }

    /// Whether all pages of this acceptor are here.
    #[must_use]
    pub fn is_complete(&self, from: ReplicaId) -> bool {
        self.pages[from.index()].done.is_some()
    }

    /// Counts an acceptor without its entries; for injected bugs.
    pub fn assume_complete(&mut self, from: ReplicaId) {
        self.vote(from);
        self.pages[from.index()].done = Some(Slot(0));
    }

    /// The acceptors among `of` whose pages are not complete, with the slot of the next page.
    pub fn missing(&self, of: ReplicaSet) -> impl Iterator<Item = (ReplicaId, Slot)> + '_ {
        let open = |id: ReplicaId| {
            let pages = &self.pages[id.index()];
            pages.done.is_none().then_some((id, pages.next))
        };
        of.iter().filter_map(open)
    }

    /// Whether a page came within this time.
    #[must_use]
    pub fn progressed(&self, now: Time, within: Duration) -> bool {
        self.progress_at.is_some_and(|at| now.since(at) < within)
    }

    /// A page of the promised `ballot` has come to a candidate that has decided all up to
    /// `committed`. `better` compares the ballots of a new entry and of the one before.
    pub fn on_page(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        page: PromisePage<E>,
        (committed, now): (Slot, Time),
        better: impl Fn(Ballot, Ballot) -> bool,
    ) -> Progress {
        let pages = &mut self.pages[from.index()];
        let empty = page.until.is_some_and(|until| until <= page.from);
        if pages.done.is_some() || page.from != pages.next || empty {
            return Progress::Ignored("ignored: promise counted before");
        }
        if page.first > page.from {
            return Progress::Behind;
        }
        let limit = committed.0 + DISTANCE_MAX;
        let impossible = |(slot, held): &(Slot, Held<E>)| held.ballot >= ballot || slot.0 > limit;
        if page.accepted.iter().any(impossible) {
            return Progress::Ignored("ignored: impossible promise");
        }
        self.progress_at = Some(now);
        for (slot, held) in page.accepted {
            let before = self.gathered.get(&slot);
            if before.is_none_or(|before| better(held.ballot, before.ballot)) {
                self.gathered.insert(slot, held);
            }
        }
        if let Some(until) = page.until {
            pages.next = until;
            return Progress::More(until);
        }
        pages.done = Some(page.committed);
        self.votes.vote(from);
        Progress::Complete
    }

    /// The entries of the highest ballots.
    pub fn take_gathered(&mut self) -> BTreeMap<Slot, Held<E>> {
        core::mem::take(&mut self.gathered)
    }

    /// The commit points of the acceptors whose pages are complete.
    #[must_use]
    pub fn commit_points(&self) -> Vec<Option<Slot>> {
        self.pages.iter().map(|pages| pages.done).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wire;

    const B: Ballot = Ballot {
        round: 5,
        owner: ReplicaId(0),
    };

    fn page(from: u64, until: Option<u64>, entries: &[(u64, u64)]) -> PromisePage<u64> {
        let held = |&(slot, round): &(u64, u64)| {
            let owner = ReplicaId(1);
            let ballot = Ballot { round, owner };
            (
                Slot(slot),
                Held {
                    ballot,
                    entry: round,
                },
            )
        };
        PromisePage {
            from: Slot(from),
            until: until.map(Slot),
            committed: Slot(3),
            first: Slot(1),
            decisions: Decisions::default(),
            accepted: entries.iter().map(held).collect(),
        }
    }

    fn preparing() -> PhaseOne<u64> {
        let mut phase = PhaseOne::promising(B, 3, Slot(4));
        assert!(phase.waits_for_own());
        assert_eq!(phase.on_own_promise(ReplicaId(0)), Promised::Prepares);
        phase
    }

    fn take(phase: &mut PhaseOne<u64>, from: u16, page: PromisePage<u64>) -> Progress {
        let higher = |new, old| new > old;
        phase.on_page(ReplicaId(from), B, page, (Slot(3), Time(1)), higher)
    }

    #[test]
    fn entry_of_the_highest_ballot_wins() {
        let mut phase = preparing();
        let first = page(4, Some(5), &[(4, 2)]);
        assert_eq!(take(&mut phase, 1, first), Progress::More(Slot(5)));
        assert!(!phase.has(2));
        let last = page(5, None, &[(5, 3)]);
        assert_eq!(take(&mut phase, 1, last), Progress::Complete);
        assert!(phase.has(2));
        let other = page(4, None, &[(4, 1), (5, 4)]);
        assert_eq!(take(&mut phase, 2, other), Progress::Complete);
        let entries: Vec<u64> = phase.take_gathered().values().map(|it| it.entry).collect();
        assert_eq!(entries, [2, 4]);
        assert_eq!(phase.commit_points(), [None, Some(Slot(3)), Some(Slot(3))]);
    }

    #[test]
    fn page_out_of_order_or_of_own_ballot_is_ignored() {
        let mut phase = preparing();
        let ignored = |progress| matches!(progress, Progress::Ignored(_));
        assert!(ignored(take(&mut phase, 1, page(5, None, &[]))));
        assert!(ignored(take(&mut phase, 1, page(4, Some(4), &[]))));
        assert!(ignored(take(&mut phase, 1, page(4, None, &[(4, 5)]))));
        assert_eq!(take(&mut phase, 1, page(4, None, &[])), Progress::Complete);
        assert!(ignored(take(&mut phase, 1, page(4, None, &[]))));
        phase.replaced(ReplicaId(1));
        assert!(!phase.has(2));
        assert_eq!(phase.missing(ReplicaSet::all(3)).count(), 3);
    }

    #[test]
    fn page_out_of_order_or_out_of_its_bounds_is_not_read() {
        let read = |from, until: Option<u64>, slots: &[u64]| {
            let held = |slot: &u64| {
                (
                    Slot(*slot),
                    Held {
                        ballot: B,
                        entry: B,
                    },
                )
            };
            let page = PromisePage {
                from: Slot(from),
                until: until.map(Slot),
                committed: Slot(0),
                first: Slot(1),
                decisions: Decisions::default(),
                accepted: slots.iter().map(held).collect(),
            };
            PromisePage::<Ballot>::decode_all(page.encode_to_bytes())
        };
        assert!(read(1, None, &[1, 3]).is_ok());
        assert!(read(1, None, &[3, 1]).is_err());
        assert!(read(1, None, &[2, 2]).is_err());
        assert!(read(2, None, &[1]).is_err());
        assert!(read(1, Some(2), &[2]).is_err());
    }

    #[test]
    fn candidate_behind_two_of_three_logs_needs_a_state() {
        let mut phase = preparing();
        let trimmed = |first| PromisePage {
            first: Slot(first),
            ..page(4, None, &[])
        };
        assert_eq!(take(&mut phase, 1, trimmed(9)), Progress::Behind);
        assert!(phase.is_behind(ReplicaId(1), Slot(9), 2));
        assert!(phase.is_behind(ReplicaId(1), Slot(9), 2), "counted once");
        assert!(!phase.is_behind(ReplicaId(2), Slot(7), 2));
        assert_eq!(phase.behind_first(), Some(Slot(7)));
        phase.ask_from(ReplicaId(1), Slot(9));
        let rest = PromisePage {
            first: Slot(9),
            ..page(9, None, &[(9, 2)])
        };
        assert_eq!(take(&mut phase, 1, rest), Progress::Complete);
    }
}
