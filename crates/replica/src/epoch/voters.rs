//! The voters of an epoch: by their numbers, which they keep, and as protocols count them.
//!
//! ```text
//!   number   0   1   2   3   4       1 was removed: its row is vacant, and 2, 3, 4 keep theirs
//!   voters   ●       ●   ●   ●
//!   rank     0       1   2   3       what a protocol knows: dense from 0, new in every epoch
//! ```
//!
//! Links, files, addresses and people know numbers. Only a protocol, which divides slots or orders
//! a chain by dense ids, knows ranks, and only inside of one epoch: the numbers of the voters are
//! part of its descriptor, so that all of its members count alike.

use crate::{ReplicaId, ReplicaSet};
use alloc::string::{String, ToString};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Voters(ReplicaSet);

impl Voters {
    /// Those with these numbers.
    #[must_use]
    pub const fn of(numbers: ReplicaSet) -> Self {
        Self(numbers)
    }

    /// This number of them, without a gap.
    #[must_use]
    pub const fn dense(count: usize) -> Self {
        Self(ReplicaSet::all(count))
    }

    /// Their numbers.
    #[must_use]
    pub const fn set(self) -> ReplicaSet {
        self.0
    }

    /// How many.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Whether these are more than half of them; others do not count.
    #[must_use]
    pub const fn is_majority(self, of: ReplicaSet) -> bool {
        self.among(of).len() > self.len() / 2
    }

    /// Those of `set` that vote.
    #[must_use]
    pub const fn among(self, set: ReplicaSet) -> ReplicaSet {
        ReplicaSet(set.0 & self.0.0)
    }

    /// Whether the member with this number votes.
    #[must_use]
    pub const fn contains(self, number: ReplicaId) -> bool {
        self.0.contains(number)
    }

    /// Whether ranks are numbers, as there is no gap.
    #[must_use]
    pub const fn is_dense(self) -> bool {
        self.0.0 & self.0.0.wrapping_add(1) == 0
    }

    /// How a protocol knows the member with this number; not at all when it does not vote.
    #[must_use]
    pub const fn rank(self, number: ReplicaId) -> Option<ReplicaId> {
        if !self.contains(number) {
            return None;
        }
        let below = (1_u128 << number.0) - 1;
        Some(ReplicaId((self.0.0 & below).count_ones() as u16))
    }

    /// The number of the member that a protocol knows by this rank.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn number(self, rank: ReplicaId) -> ReplicaId {
        if self.is_dense() {
            assert!(rank.index() < self.len(), "a rank is below their number");
            return rank;
        }
        let number = self.0.iter().nth(rank.index());
        number.expect("a rank is below their number")
    }

    /// How a protocol knows these members: those that vote.
    #[must_use]
    pub fn ranks(self, numbers: ReplicaSet) -> ReplicaSet {
        if self.is_dense() {
            return self.among(numbers);
        }
        let voters = numbers.iter().filter_map(|number| self.rank(number));
        voters.collect()
    }

    /// The numbers of members that a protocol knows by these ranks; there are no others.
    #[must_use]
    pub fn numbers(self, ranks: ReplicaSet) -> ReplicaSet {
        if self.is_dense() {
            return self.among(ranks);
        }
        let ranked = (0..).map(ReplicaId).zip(self.0.iter());
        let named = ranked.filter(|(rank, _)| ranks.contains(*rank));
        named.map(|(_, number)| number).collect()
    }

    /// A protocol's words, with the numbers of the members that it names: by `r2` in sentences,
    /// by a mere 2 where it draws who takes part.
    #[must_use]
    pub fn in_text(self, text: &str, prefix: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(|it: char| it.is_ascii_digit()) {
            let (before, from) = rest.split_at(at);
            let end = from.find(|it: char| !it.is_ascii_digit());
            let (digits, behind) = from.split_at(end.unwrap_or(from.len()));
            out.push_str(before);
            let word = out.strip_suffix(prefix);
            let is_name = word.is_some_and(|it| !it.ends_with(|it: char| it.is_alphanumeric()));
            let rank = digits.parse().ok().map(ReplicaId);
            let rank = rank.filter(|rank| is_name && rank.index() < self.len());
            match rank {
                Some(rank) => out.push_str(&self.number(rank).0.to_string()),
                None => out.push_str(digits),
            }
            rest = behind;
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: &[u16]) -> ReplicaSet {
        numbers.iter().map(|number| ReplicaId(*number)).collect()
    }

    #[test]
    fn members_without_a_gap_have_their_numbers_for_ranks() {
        for count in [1, 3, 127, 128] {
            let voters = Voters::dense(count);
            assert!(voters.is_dense(), "{count}");
            let last = ReplicaId(count as u16 - 1);
            assert_eq!((voters.rank(last), voters.number(last)), (Some(last), last));
            assert_eq!(voters.rank(ReplicaId(count as u16)), None);
            assert_eq!(voters.numbers(voters.set()), voters.ranks(voters.set()));
        }
    }

    #[test]
    fn ranks_and_numbers_are_each_others_inverse() {
        let sets = [&[0, 2, 3, 4][..], &[1], &[1, 2], &[0, 127], &[3, 64, 65]];
        for numbers in sets.map(set) {
            let voters = Voters::of(numbers);
            assert!(!voters.is_dense());
            let ranks: ReplicaSet = numbers.iter().filter_map(|it| voters.rank(it)).collect();
            assert_eq!(ranks, ReplicaSet::all(numbers.len()), "dense from 0");
            assert_eq!(voters.ranks(numbers), ranks);
            assert_eq!(voters.numbers(ranks), numbers);
            for number in numbers.iter() {
                let rank = voters.rank(number).expect("it votes");
                assert_eq!(voters.number(rank), number);
                let one = ReplicaSet::EMPTY.with(number);
                assert_eq!(voters.numbers(voters.ranks(one)), one);
            }
        }
        let voters = Voters::of(set(&[0, 2, 3, 4]));
        assert_eq!(voters.rank(ReplicaId(1)), None);
        assert_eq!(voters.ranks(set(&[1, 2, 9])), set(&[1]));
        assert_eq!(voters.numbers(set(&[3, 4])), set(&[4]), "there is no fifth");
    }

    #[test]
    fn majority_is_one_of_those_that_vote() {
        let voters = Voters::of(set(&[0, 2, 3, 4]));
        assert!(!voters.is_majority(set(&[0, 1, 2])));
        assert!(voters.is_majority(set(&[0, 2, 4])));
    }

    #[test]
    fn text_names_members_by_their_numbers() {
        let voters = Voters::of(set(&[0, 2, 3, 4]));
        let renamed = |text| voters.in_text(text, "r");
        assert_eq!(renamed("r0 r1.i2, r3"), "r0 r2.i2, r4");
        assert_eq!(
            renamed("the second from r1: error, slot 1, over1"),
            "the second from r2: error, slot 1, over1"
        );
        assert_eq!(renamed("r9"), "r9");
        let drawn = voters.in_text("0 > +1* > 3 (-2 out)", "");
        assert_eq!(drawn, "0 > +2* > 4 (-3 out)");
    }
}
