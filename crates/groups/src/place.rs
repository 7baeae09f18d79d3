//! The place at which a query is answered: which member of which shard, and the states of other shards
//! there.
//!
//! ```text
//!   query of cache/2 at member 9 ──► notice/2 there: what was acknowledged is executed ──► its state, lent
//!                                └─► cache/2 there: the same ──► get(&self, place, key)
//!                                                               place.sibling::<Notice>("notice")
//! ```
//!
//! A state is lent as a fork: it shares storage with the shard, whose commands continue. Loans that no
//! query comes for are given back by it, end with their time, and make room for later ones.

use crate::call::Placed;
use std::{
    any::Any,
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Queries for which states are lent at one time.
const TICKETS_MAX: usize = 256;
/// States for one query, and the length of the names of their subgroups.
const LOANS_MAX: usize = 64;
const NAME_MAX: usize = 64;

/// The states that were lent to one query: subgroup and service.
type Loans = Vec<(String, Box<dyn Any + Send>)>;

/// Those lent to one query, and since when.
#[derive(Debug)]
struct Lent {
    ticket: u64,
    since: Option<Instant>,
    loans: Loans,
}

/// The states that shards of one replica lend each other.
#[derive(Debug, Default)]
pub struct Lending {
    all: Mutex<VecDeque<Lent>>,
    /// Some are lent.
    any: AtomicBool,
    age_max: Option<Duration>,
}

impl Lending {
    /// Loans end after this time, and keep nothing of a state that changes meanwhile. By default they
    /// wait until others need their place.
    #[must_use]
    pub fn ending_after(age_max: Duration) -> Self {
        Self {
            age_max: Some(age_max),
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Lent>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a state; one that the same subgroup has lent to the same query is replaced. False when no
    /// query asks for that many.
    pub fn put(&self, ticket: u64, subgroup: &str, state: Box<dyn Any + Send>) -> bool {
        if subgroup.len() > NAME_MAX {
            return false;
        }
        self.end_old();
        let mut all = self.lock();
        let at = all.iter().position(|it| it.ticket == ticket);
        let at = at.unwrap_or_else(|| {
            if all.len() >= TICKETS_MAX {
                all.pop_front();
            }
            all.push_back(Lent {
                ticket,
                since: self.age_max.map(|_| Instant::now()),
                loans: Vec::new(),
            });
            all.len() - 1
        });
        self.any.store(true, Relaxed);
        let loans = &mut all[at].loans;
        loans.retain(|(it, _)| it != subgroup);
        let has_room = loans.len() < LOANS_MAX;
        if has_room {
            loans.push((subgroup.to_owned(), state));
        }
        has_room
    }

    /// All that was lent to a query.
    pub fn take(&self, ticket: u64) -> Option<Loans> {
        let mut all = self.lock();
        let at = all.iter().position(|it| it.ticket == ticket)?;
        let lent = all.remove(at);
        self.any.store(!all.is_empty(), Relaxed);
        lent.map(|lent| lent.loans)
    }

    /// A state is about to change: loans that are too old must not keep what it was.
    pub fn end_old(&self) {
        let Some(age_max) = self.age_max.filter(|_| self.any.load(Relaxed)) else {
            return;
        };
        let mut all = self.lock();
        let is_old = |lent: &Lent| lent.since.is_some_and(|since| since.elapsed() >= age_max);
        while all.front().is_some_and(is_old) {
            all.pop_front();
        }
        self.any.store(!all.is_empty(), Relaxed);
    }
}

/// The circumstances of a `#[query]` or a `#[gather]`: the member that answers it, and the states of
/// other shards there.
#[derive(Debug)]
pub struct Place {
    rank: usize,
    members: Vec<usize>,
    shard: usize,
    loans: Loans,
}

impl Place {
    /// As the caller knows it; `None` where the one that answers is no member.
    pub fn new(placed: &Placed, loans: Loans) -> Option<Self> {
        let mut members = placed.members.iter();
        let rank = members.position(|member| *member == placed.member)?;
        Some(Self {
            rank,
            members: placed.members.iter().copied().map(usize::from).collect(),
            shard: placed.shard as usize,
            loans,
        })
    }

    /// The rank of this member among [`Self::members`], from 0.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// The number of this member in the group.
    #[must_use]
    pub fn member(&self) -> usize {
        self.members[self.rank]
    }

    /// The members of the shard as the caller knew them, ascending: the same for all replies to one
    /// `#[gather]`.
    #[must_use]
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// The number of the shard in its subgroup.
    #[must_use]
    pub const fn shard(&self) -> usize {
        self.shard
    }

    /// The shard with the same number in another subgroup, as it is at this member: with all that was
    /// acknowledged before the query came, or as of the time that the query asks for. `None` unless the
    /// layout says that this subgroup `reads` that one, and that one is of this service; and in a
    /// `#[gather]`.
    #[must_use]
    pub fn sibling<S: 'static>(&self, subgroup: &str) -> Option<&S> {
        let mut loans = self.loans.iter();
        let (_, state) = loans.find(|(it, _)| it == subgroup)?;
        state.downcast_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loans_without_a_query_make_room_for_later_ones() {
        let lending = Lending::default();
        for ticket in 1..=TICKETS_MAX as u64 + 1 {
            assert!(lending.put(ticket, "a", Box::new(ticket)));
        }
        assert!(lending.take(1).is_none());
        assert!(lending.put(2, "b", Box::new(7u64)));
        assert!(lending.put(2, "a", Box::new(8u64)));
        let loans = lending.take(2).expect("lent");
        let values = loans.iter().map(|(name, it)| {
            let value: &u64 = it.downcast_ref().expect("a number");
            (name.as_str(), *value)
        });
        assert_eq!(values.collect::<Vec<_>>(), [("b", 7), ("a", 8)]);
        assert!(lending.take(2).is_none(), "once");
    }

    #[test]
    fn loans_end_with_their_time() {
        let lasting = Lending::ending_after(Duration::MAX);
        let ended = Lending::ending_after(Duration::ZERO);
        for lending in [&lasting, &ended] {
            assert!(lending.put(1, "a", Box::new(1)));
            assert!(lending.put(2, "a", Box::new(2)));
        }
        assert!(ended.take(1).is_none(), "when another one came");
        for lending in [&lasting, &ended] {
            lending.end_old();
        }
        assert!(ended.take(2).is_none());
        assert!(lasting.take(1).is_some() && lasting.take(2).is_some());
    }

    #[test]
    fn states_for_one_query_are_bounded() {
        let lending = Lending::default();
        for number in 0..LOANS_MAX {
            assert!(lending.put(1, &number.to_string(), Box::new(0)));
        }
        assert!(!lending.put(1, "one more", Box::new(0)));
        assert!(lending.put(1, "7", Box::new(0)), "replaced");
        assert!(!lending.put(2, &"long".repeat(NAME_MAX), Box::new(0)));
        assert_eq!(lending.take(1).expect("lent").len(), LOANS_MAX);
    }

    #[test]
    fn place_is_that_of_a_member() {
        let placed = |member| Placed {
            member,
            members: vec![2, 5, 9],
            shard: 3,
            ticket: 0,
        };
        let place = Place::new(&placed(5), Loans::new()).expect("a member");
        assert_eq!((place.rank(), place.member(), place.shard()), (1, 5, 3));
        assert_eq!(place.members(), [2, 5, 9]);
        assert!(Place::new(&placed(4), Loans::new()).is_none());
    }
}
