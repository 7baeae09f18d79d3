//! A sorted set: members with scores, found by name, by rank, by score.
//!
//! ```text
//!   members  [ oak:3 | ash:1 | elm:3 ]        a Table of scores, in dense order
//!                0       1       2
//!   ranking  [ 1→1 | 3→2 | 3→0 ]              score and entry, by score and then by name
//! ```
//!
//! The dense order is what is serialised; the ranking follows from it and is built again when a
//! set is read back. `-0` and `0` are the same score, as in Redis; NaN never gets in.

use super::journal::{IMPOSSIBLE, Journal, Journaled, Step};
use super::ranking::{Item, Ranking};
use super::table::{ENTRY_OVERHEAD, Table, Walk};
use super::wire::{Malformed, Reader, put_bytes, put_float, put_number};
use core::cmp::Ordering;
use core::ops::Range;

/// Beyond this many members, or with one longer than [`COMPACT_BYTES_MAX`], Redis with its default
/// settings stops calling a sorted set a `listpack`.
const COMPACT_MEMBERS_MAX: usize = 128;
const COMPACT_BYTES_MAX: usize = 64;

/// An estimate of the bytes that a member takes in the ranking.
const RANK_OVERHEAD: usize = size_of::<Item>() + ENTRY_OVERHEAD / 8;

/// Scores between two bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The lower bound; not NaN.
    pub min: f64,
    /// Whether `min` itself is left out.
    pub min_open: bool,
    /// The upper bound; not NaN.
    pub max: f64,
    /// Whether `max` itself is left out.
    pub max_open: bool,
}

/// A bound of a range of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameBound<'a> {
    /// Before every name: `-`.
    Lowest,
    /// After every name: `+`.
    Highest,
    /// This name and what is beyond it: `[name`.
    Closed(&'a [u8]),
    /// The names beyond this one, without it: `(name`.
    Open(&'a [u8]),
}

/// Names between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRange<'a> {
    /// The lower bound.
    pub min: NameBound<'a>,
    /// The upper bound.
    pub max: NameBound<'a>,
}

/// Under which conditions ZADD changes something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddRule {
    /// NX: only members that are not there yet.
    pub only_new: bool,
    /// XX: only members that are there.
    pub only_existing: bool,
    /// GT: a member that is there only if its score grows.
    pub only_greater: bool,
    /// LT: a member that is there only if its score falls.
    pub only_less: bool,
    /// INCR: the score is added to the one that is there.
    pub increment: bool,
}

/// The effect of [`SortedSet::add`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Added {
    /// The member is new.
    New(f64),
    /// The member has another score.
    Changed(f64),
    /// The member had that score already.
    Same(f64),
    /// A rule forbade it.
    Refused,
    /// The sum of increment and score is not a number; nothing was changed.
    NotANumber,
}

/// The value of a sorted-set key.
#[derive(Clone, Debug, Default)]
pub struct SortedSet {
    members: Table<f64>,
    ranking: Ranking,
    /// Once large, a set stays so, as in Redis.
    large: bool,
    journal: Option<Box<Journal>>,
}

/// How a member with this score and name compares with an item.
fn item_is_before(members: &Table<f64>, item: &Item, score: f64, member: &[u8]) -> bool {
    item.score < score || (item.score == score && members.at(item.entry as usize).0 < member)
}

impl NameBound<'_> {
    fn compare(&self, name: &[u8]) -> Ordering {
        match self {
            Self::Lowest => Ordering::Less,
            Self::Highest => Ordering::Greater,
            Self::Closed(bound) | Self::Open(bound) => (*bound).cmp(name),
        }
    }
}

impl SortedSet {
    /// An empty set with room for `capacity` members.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            members: Table::with_capacity(capacity),
            ..Self::default()
        }
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none. A set that became empty must be deleted by its holder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The score of a member.
    #[must_use]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.members.get(member).copied()
    }

    /// How many members come before `member`.
    #[must_use]
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(
            self.ranking
                .rank(|item| item_is_before(&self.members, item, score, member)),
        )
    }

    /// The member and score at a place in the dense order: for a choice by chance.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    #[must_use]
    pub fn at(&self, at: usize) -> (&[u8], f64) {
        let (member, score) = self.members.at(at);
        (member, *score)
    }

    /// Whether Redis would keep it no longer compact.
    pub(crate) const fn is_large(&self) -> bool {
        self.large
    }

    /// Makes it again what it was.
    pub(crate) const fn set_large(&mut self, large: bool) {
        self.large = large;
    }

    /// All members with their scores in dense order: the fastest way to see all.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> + ExactSizeIterator {
        self.members.iter().map(|(member, score)| (member, *score))
    }

    /// The members with the ranks `range` and their scores, by rank.
    ///
    /// # Panics
    /// When the range reaches beyond [`Self::len`].
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], f64)> + ExactSizeIterator {
        self.ranking
            .range(range)
            .map(|item| (self.members.at(item.entry as usize).0, item.score))
    }

    /// The ranks of the scores between two bounds.
    #[must_use]
    pub fn ranks_by_score(&self, range: &ScoreRange) -> Range<usize> {
        let below = |bound: f64, with_it: bool| {
            self.ranking
                .rank(|item| item.score < bound || (with_it && item.score == bound))
        };
        let start = below(range.min, range.min_open);
        start..below(range.max, !range.max_open).max(start)
    }

    /// The ranks of the names between two bounds. It means something only if all scores are
    /// equal; otherwise the result is arbitrary, but the same on every replica.
    #[must_use]
    pub fn ranks_by_name(&self, range: &NameRange<'_>) -> Range<usize> {
        let below = |bound: &NameBound<'_>, with_it: bool| {
            self.ranking.rank_stepwise(|item| {
                match bound.compare(self.members.at(item.entry as usize).0) {
                    Ordering::Greater => true,
                    Ordering::Equal => with_it,
                    Ordering::Less => false,
                }
            })
        };
        let start = below(&range.min, matches!(range.min, NameBound::Open(_)));
        start..below(&range.max, matches!(range.max, NameBound::Closed(_))).max(start)
    }

    /// A part of the members with their scores, and the cursor of the next part (0 at the end). A
    /// collection that Redis keeps compact is returned whole, by rank.
    pub fn walk(&self, walk: Walk) -> (impl Iterator<Item = (&[u8], f64)>, u64) {
        let (ranks, (places, next)) = if self.large {
            (0..0, walk.piece(self.len()))
        } else {
            (0..self.len(), (0..0, 0))
        };
        let dense = self
            .members
            .range(places)
            .map(|(member, score)| (member, *score));
        (self.range(ranks).chain(dense), next)
    }

    /// The effect that [`Self::add`] would have. `score` is not NaN.
    #[must_use]
    pub fn plan(&self, member: &[u8], score: f64, rule: AddRule) -> Added {
        self.plan_at(self.members.position(member), score, rule)
    }

    fn plan_at(&self, at: Option<usize>, score: f64, rule: AddRule) -> Added {
        assert!(
            !score.is_nan(),
            "scores are checked when they are read from a client"
        );
        let Some(at) = at else {
            return if rule.only_existing {
                Added::Refused
            } else {
                Added::New(score)
            };
        };
        if rule.only_new {
            return Added::Refused;
        }
        let old = *self.members.at(at).1;
        let score = if rule.increment { old + score } else { score };
        if score.is_nan() {
            Added::NotANumber
        } else if (rule.only_less && score >= old) || (rule.only_greater && score <= old) {
            Added::Refused
        } else if score == old {
            Added::Same(score)
        } else {
            Added::Changed(score)
        }
    }

    /// Adds a member or changes its score, as `rule` allows. `score` is not NaN.
    pub fn add(&mut self, member: &[u8], score: f64, rule: AddRule) -> Added {
        let at = self.members.position(member);
        let planned = self.plan_at(at, score, rule);
        match (at, planned) {
            (None, Added::New(score)) => self.add_new(member, score),
            (Some(at), Added::Changed(score)) => self.change_score(at, member, score),
            _ => {}
        }
        planned
    }

    fn change_score(&mut self, at: usize, member: &[u8], score: f64) {
        let score = self.stored(score);
        let old = *self.members.at(at).1;
        if let Some(journal) = &mut self.journal {
            journal.changed(member, &old.to_bits().to_le_bytes());
        }
        self.put_score(at, member, score);
    }

    /// Changes a score to exactly this one.
    fn put_score(&mut self, at: usize, member: &[u8], score: f64) {
        let members = &self.members;
        let old = *members.at(at).1;
        let taken = self
            .ranking
            .remove(|item| item_is_before(members, item, old, member));
        assert!(
            taken.is_some_and(|item| item.entry as usize == at),
            "every member is ranked"
        );
        let item = Item {
            score,
            entry: at as u32,
        };
        self.ranking
            .insert(item, |item| item_is_before(members, item, score, member));
        *self.members.value_at_mut(at) = score;
    }

    /// Redis's compact form keeps whole scores as integers, which have no negative zero.
    fn stored(&self, score: f64) -> f64 {
        if score == 0.0 && !self.large {
            0.0
        } else {
            score
        }
    }

    /// Sets the score of a member, whether or not it is there. `score` is not NaN.
    pub fn set(&mut self, member: &[u8], score: f64) {
        self.add(member, score, AddRule::default());
    }

    fn add_new(&mut self, member: &[u8], score: f64) {
        self.note_size(member, self.members.len() + 1);
        let score = self.stored(score);
        if let Some(journal) = &mut self.journal {
            journal.added(member);
        }
        let entry = self.members.push(member, score);
        self.rank_new(entry, member, score);
    }

    fn rank_new(&mut self, entry: usize, member: &[u8], score: f64) {
        let members = &self.members;
        let item = Item {
            score,
            entry: entry as u32,
        };
        self.ranking
            .insert(item, |item| item_is_before(members, item, score, member));
    }

    /// The table is about to move an entry to another place.
    fn rank_moved(&mut self, from: usize, to: usize) {
        let members = &self.members;
        let (member, &score) = members.at(from);
        let moved = self
            .ranking
            .find_mut(|item| item_is_before(members, item, score, member))
            .filter(|item| item.entry as usize == from)
            .expect("every member is ranked");
        moved.entry = to as u32;
    }

    /// Adds a member with exactly this score, if it is not there.
    pub(crate) fn add_exact(&mut self, member: &[u8], score: f64) {
        if !self.members.contains(member) {
            self.put_back(self.len(), member, score);
        }
    }

    /// Puts a member with exactly this score at a place that [`Self::remove_at`] took it from.
    fn put_back(&mut self, at: usize, member: &[u8], score: f64) {
        let len = self.members.len();
        if at < len {
            // The member there moves behind all others.
            self.rank_moved(at, len);
        }
        self.members.swap_insert(at, member, score);
        self.rank_new(at, member, score);
    }

    fn note_size(&mut self, member: &[u8], len: usize) {
        self.large = self.large || len > COMPACT_MEMBERS_MAX || member.len() > COMPACT_BYTES_MAX;
    }

    /// Removes a member; returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let at = self.members.position(member)?;
        Some(self.remove_at(at).1)
    }

    /// Removes the members with the ranks `range`, and returns how many these are.
    ///
    /// # Panics
    /// When the range reaches beyond [`Self::len`].
    pub fn remove_range(&mut self, range: Range<usize>) -> usize {
        let count = range.len();
        for _ in 0..count {
            self.pop(range.start);
        }
        count
    }

    /// Takes out the member with a rank.
    pub fn pop(&mut self, rank: usize) -> Option<(Box<[u8]>, f64)> {
        let at = self.ranking.get(rank)?.entry as usize;
        Some(self.remove_at(at))
    }

    fn remove_at(&mut self, at: usize) -> (Box<[u8]>, f64) {
        let members = &self.members;
        let (member, &score) = members.at(at);
        let taken = self
            .ranking
            .remove(|item| item_is_before(members, item, score, member));
        assert!(
            taken.is_some_and(|item| item.entry as usize == at),
            "every member is ranked"
        );
        let last = members.len() - 1;
        if at != last {
            // The table is about to move its last entry to the gap.
            self.rank_moved(last, at);
        }
        let (member, score) = self.members.swap_remove(at);
        if let Some(journal) = &mut self.journal {
            journal.removed(at, &member, &score.to_bits().to_le_bytes());
        }
        (member, score)
    }

    /// Whether Redis with its default settings would keep a sorted set like this as a `listpack`.
    #[must_use]
    pub const fn is_compact(&self) -> bool {
        !self.large
    }

    /// The name that OBJECT ENCODING gives to a sorted set like this.
    #[must_use]
    pub const fn encoding(&self) -> &'static str {
        if self.large { "skiplist" } else { "listpack" }
    }

    /// Estimated bytes. It follows from the content alone, so all replicas agree.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.members.memory() + self.len() * RANK_OVERHEAD
    }

    /// Frees up to `count` elements of a detached value.
    pub(crate) fn free_last(&mut self, count: usize) {
        self.ranking = Ranking::default();
        self.members.free_last(count);
    }

    /// Appends everything, dense order included, to `out`.
    pub fn serialize(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.large));
        put_number(out, self.len() as u64);
        for (member, score) in self.iter() {
            put_bytes(out, member);
            put_float(out, score);
        }
    }

    /// Reads what [`Self::serialize`] wrote.
    ///
    /// # Errors
    /// When the bytes cannot be what it wrote.
    pub fn deserialize(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let large = match reader.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("unknown kind of sorted set")),
        };
        let count = reader.count(9)?;
        let mut set = Self {
            large,
            ..Self::with_capacity(reader.room_for(count, Table::<f64>::ENTRY_BYTES))
        };
        let mut items = Vec::with_capacity(reader.room_for(count, size_of::<Item>()));
        for _ in 0..count {
            let member = reader.bytes()?;
            let score = reader.float()?;
            if score.is_nan() {
                return Err(Malformed("a score is not a number"));
            }
            if set.members.contains(member) {
                return Err(Malformed("a member stands twice in a sorted set"));
            }
            let entry = set.members.push(member, score) as u32;
            items.push(Item { score, entry });
            set.note_size(member, set.len());
        }
        if set.large != large {
            return Err(Malformed("a large sorted set is called small"));
        }
        let members = &set.members;
        items.sort_unstable_by(|a, b| {
            let by_score = a.score.partial_cmp(&b.score).unwrap_or(Ordering::Equal);
            by_score.then_with(|| {
                members
                    .at(a.entry as usize)
                    .0
                    .cmp(members.at(b.entry as usize).0)
            })
        });
        set.ranking = Ranking::from_sorted(&items);
        Ok(set)
    }
}

/// The score that stands as the value of a step.
pub(crate) fn score_of(value: &[u8]) -> Option<f64> {
    let score = f64::from_le_bytes(value.try_into().ok()?);
    (!score.is_nan()).then_some(score)
}

impl Journaled for SortedSet {
    const ELEMENT_MEMORY: usize = ENTRY_OVERHEAD + size_of::<f64>() + RANK_OVERHEAD;

    fn journal(&mut self) -> &mut Option<Box<Journal>> {
        &mut self.journal
    }

    fn extent(&self) -> (usize, usize) {
        (self.len(), self.memory())
    }

    fn undo(&mut self, step: Step<'_>) -> Result<(), Malformed> {
        match step {
            Step::Added { name } if self.members.last() == Some(name) => {
                self.remove(name);
            }
            Step::Changed { name, value } => {
                let score = score_of(value).ok_or(IMPOSSIBLE)?;
                let at = self.members.position(name).ok_or(IMPOSSIBLE)?;
                self.put_score(at, name, score);
            }
            Step::Removed { place, name, value } => {
                let score = score_of(value).ok_or(IMPOSSIBLE)?;
                if place > self.len() || self.members.contains(name) {
                    return Err(IMPOSSIBLE);
                }
                self.put_back(place, name, score);
            }
            _ => return Err(IMPOSSIBLE),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn bytes_of(set: &SortedSet) -> Vec<u8> {
        let mut out = Vec::new();
        set.serialize(&mut out);
        out
    }

    fn sorted(model: &BTreeMap<Vec<u8>, f64>) -> Vec<(Vec<u8>, f64)> {
        let mut all: Vec<_> = model
            .iter()
            .map(|(member, score)| (member.clone(), *score))
            .collect();
        all.sort_by(|a, b| a.1.partial_cmp(&b.1).unwrap().then_with(|| a.0.cmp(&b.0)));
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn behaves_as_a_map_sorted_by_score_and_comes_back(
            operations in prop::collection::vec((0u8..8, 0u16..500, -6i8..6), 1..1500),
        ) {
            let mut set = SortedSet::default();
            let mut model: BTreeMap<Vec<u8>, f64> = BTreeMap::new();
            for (kind, member, score) in operations {
                let member = member.to_string().into_bytes();
                let score = match score {
                    5 => f64::INFINITY,
                    -6 => f64::NEG_INFINITY,
                    score => f64::from(score) / 2.0,
                };
                match kind {
                    0..4 => {
                        set.set(&member, score);
                        if model.get(&member) != Some(&score) {
                            model.insert(member, score);
                        }
                    }
                    4 => prop_assert_eq!(set.remove(&member), model.remove(&member)),
                    5 => {
                        let rank = usize::from(member[0]) % (model.len() + 1);
                        let expected = sorted(&model).get(rank).cloned();
                        let popped = set.pop(rank).map(|(member, score)| (member.to_vec(), score));
                        prop_assert_eq!(&popped, &expected);
                        if let Some((member, _)) = expected {
                            model.remove(&member);
                        }
                    }
                    _ => prop_assert_eq!(set.score(&member), model.get(&member).copied()),
                }
                prop_assert_eq!(set.len(), model.len());
            }
            let all = sorted(&model);
            let seen: Vec<_> =
                set.range(0..set.len()).map(|(member, score)| (member.to_vec(), score)).collect();
            prop_assert_eq!(&seen, &all);
            for (rank, (member, _)) in all.iter().enumerate() {
                prop_assert_eq!(set.rank(member), Some(rank));
            }
            for min in -6..=6 {
                for max in -6..=6 {
                    for open in 0..4 {
                        let range = ScoreRange {
                            min: f64::from(min) / 2.0,
                            min_open: open & 1 == 1,
                            max: f64::from(max) / 2.0,
                            max_open: open & 2 == 2,
                        };
                        let inside = |score: f64| {
                            (score > range.min || (!range.min_open && score == range.min))
                                && (score < range.max || (!range.max_open && score == range.max))
                        };
                        let ranks = set.ranks_by_score(&range);
                        let expected = all.iter().filter(|(_, score)| inside(*score)).count();
                        prop_assert_eq!(ranks.len(), expected);
                        prop_assert!(all[ranks].iter().all(|(_, score)| inside(*score)));
                    }
                }
            }
            if !set.is_empty() {
                let bytes = bytes_of(&set);
                let restored = SortedSet::deserialize(&mut Reader::new(&bytes)).unwrap();
                prop_assert_eq!(bytes_of(&restored), bytes);
                prop_assert_eq!(restored.memory(), set.memory());
                prop_assert!(restored.range(0..set.len()).eq(set.range(0..set.len())));
                // Scores differ here, so the result is arbitrary; it still must be the same.
                let names = NameRange { min: NameBound::Closed(b"2"), max: NameBound::Open(b"7") };
                prop_assert_eq!(restored.ranks_by_name(&names), set.ranks_by_name(&names));
            }
        }

        #[test]
        fn names_between_bounds(
            members in prop::collection::btree_set("[a-d]{0,3}", 0..60),
            min in "[a-d]{0,3}",
            max in "[a-d]{0,3}",
            open in 0u8..4,
        ) {
            let mut set = SortedSet::default();
            for member in &members {
                set.set(member.as_bytes(), 0.0);
            }
            let bound = |text: &'static str, name, open: bool| match text {
                "" if open => NameBound::Open(name),
                _ => NameBound::Closed(name),
            };
            let range = NameRange {
                min: bound("", min.as_bytes(), open & 1 == 1),
                max: bound("", max.as_bytes(), open & 2 == 2),
            };
            let inside = |name: &String| {
                (*name > min || (open & 1 == 0 && *name == min))
                    && (*name < max || (open & 2 == 0 && *name == max))
            };
            let found: Vec<_> = set
                .range(set.ranks_by_name(&range))
                .map(|(name, _)| String::from_utf8(name.to_vec()).unwrap())
                .collect();
            let expected: Vec<_> = members.iter().filter(|name| inside(name)).cloned().collect();
            prop_assert_eq!(found, expected);
            let all = NameRange { min: NameBound::Lowest, max: NameBound::Highest };
            prop_assert_eq!(set.ranks_by_name(&all), 0..set.len());
            let none = NameRange { min: NameBound::Highest, max: NameBound::Lowest };
            prop_assert!(set.ranks_by_name(&none).is_empty());
        }

        #[test]
        fn bad_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = SortedSet::deserialize(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn rules_of_adding() {
        let mut set = SortedSet::default();
        let plain = AddRule::default();
        let new = AddRule {
            only_new: true,
            ..plain
        };
        let existing = AddRule {
            only_existing: true,
            ..plain
        };
        let greater = AddRule {
            only_greater: true,
            ..plain
        };
        let less = AddRule {
            only_less: true,
            ..plain
        };
        let increment = AddRule {
            increment: true,
            ..plain
        };
        assert_eq!(set.add(b"a", 1.0, existing), Added::Refused);
        assert_eq!(set.add(b"a", 1.0, greater), Added::New(1.0));
        assert_eq!(set.add(b"a", 2.0, new), Added::Refused);
        assert_eq!(set.add(b"a", 1.0, plain), Added::Same(1.0));
        assert_eq!(set.add(b"a", 1.0, greater), Added::Refused);
        assert_eq!(set.add(b"a", 3.0, greater), Added::Changed(3.0));
        assert_eq!(set.add(b"a", 4.0, less), Added::Refused);
        assert_eq!(set.add(b"a", -1.0, less), Added::Changed(-1.0));
        assert_eq!(
            set.add(b"a", f64::INFINITY, increment),
            Added::Changed(f64::INFINITY)
        );
        assert_eq!(
            set.add(b"a", f64::NEG_INFINITY, increment),
            Added::NotANumber
        );
        assert_eq!(set.score(b"a"), Some(f64::INFINITY));
    }

    #[test]
    fn negative_zero_is_zero() {
        let mut set = SortedSet::default();
        set.set(&[b'x'; 65], -0.0);
        set.set(b"b", -0.0);
        set.set(b"a", 0.0);
        let names: Vec<_> = set.range(0..2).map(|(name, _)| name.to_vec()).collect();
        assert_eq!(names, [b"a", b"b"]);
        assert_eq!(set.add(b"b", 0.0, AddRule::default()), Added::Same(0.0));
        assert!(set.score(b"b").unwrap().is_sign_negative());
        let mut small = SortedSet::default();
        small.set(b"b", -0.0);
        assert!(small.score(b"b").unwrap().is_sign_positive());
    }

    #[test]
    fn not_a_number_is_refused() {
        let mut set = SortedSet::default();
        set.set(b"a", 1.0);
        let mut bytes = bytes_of(&set);
        let at = bytes.len() - 8;
        bytes[at..].copy_from_slice(&f64::NAN.to_bits().to_le_bytes());
        assert!(SortedSet::deserialize(&mut Reader::new(&bytes)).is_err());
    }

    #[test]
    fn ranges_of_ranks_are_removed() {
        let mut set = SortedSet::default();
        for number in 0..1000u32 {
            set.set(&number.to_be_bytes(), f64::from(number % 10));
        }
        assert_eq!(set.remove_range(100..900), 800);
        assert_eq!(set.len(), 200);
        let scores: Vec<_> = set.range(0..200).map(|(_, score)| score).collect();
        assert!(scores[..100].iter().all(|&score| score == 0.0));
        assert!(scores[100..].iter().all(|&score| score == 9.0));
        assert_eq!(set.rank(&999u32.to_be_bytes()), Some(199));
    }
}
