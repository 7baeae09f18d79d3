//! Scores in ascending order, with ranks.
//!
//! ```text
//!   chunks   [ 1 2 3 3 ] [ 5 8 8 ] [ 9 ]        sorted, each at most CHUNK_MAX long
//!   sums        4          7         1          Fenwick tree over the chunk lengths:
//!                                               rank → chunk and chunk → rank in O(log chunks)
//! ```
//!
//! Finding a place is two binary searches; inserting and removing moves at most one chunk. Only
//! when a chunk is split or joined, once in many operations, is the list of chunks itself moved.
//!
//! A ranking knows scores and entry numbers; how equal scores are ordered is up to the caller, who
//! passes every search as "does this item come before the place I look for?". That question must
//! be monotone: once it is answered no, it is no for all that follow.

use core::ops::Range;

/// A chunk of this length is split before it grows.
const CHUNK_MAX: usize = 256;
/// A chunk shorter than this is joined with a neighbour where that leaves room for growth.
const CHUNK_MIN: usize = CHUNK_MAX / 4;

/// One member of a sorted set: its score, and where its name is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item {
    /// The score; never NaN.
    pub score: f64,
    /// The place of the member in the table of members.
    pub entry: u32,
}

/// Items in order; see the module.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    /// None of them is empty.
    chunks: Vec<Vec<Item>>,
    sums: Vec<u32>,
    len: usize,
}

/// A place: the chunk and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    chunk: usize,
    offset: usize,
}

impl Ranking {
    /// Items that are already in order.
    #[must_use]
    pub fn from_sorted(items: &[Item]) -> Self {
        let chunks = items
            .chunks(CHUNK_MAX * 3 / 4)
            .map(<[Item]>::to_vec)
            .collect();
        let mut ranking = Self {
            chunks,
            sums: Vec::new(),
            len: items.len(),
        };
        ranking.rebuild_sums();
        ranking
    }

    /// The first place whose item is not before what is looked for; behind the last chunk if
    /// there is none.
    fn find(&self, before: impl Fn(&Item) -> bool) -> Place {
        let chunk = self
            .chunks
            .partition_point(|chunk| chunk.last().is_some_and(&before));
        let offset = self
            .chunks
            .get(chunk)
            .map_or(0, |chunk| chunk.partition_point(&before));
        Place { chunk, offset }
    }

    /// How many items come before what is looked for.
    pub fn rank(&self, before: impl Fn(&Item) -> bool) -> usize {
        let place = self.find(before);
        self.sum_before(place.chunk) + place.offset
    }

    /// As [`Self::rank`], by a search whose steps depend on nothing but the items and their
    /// number: it gives the same result on every replica even where the question is not monotone.
    pub fn rank_stepwise(&self, before: impl Fn(&Item) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(|item| before(&item)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The item with a rank, counted from 0.
    #[must_use]
    pub fn get(&self, rank: usize) -> Option<Item> {
        if rank >= self.len {
            return None;
        }
        let place = self.place_of(rank);
        Some(self.chunks[place.chunk][place.offset])
    }

    /// Adds an item at the place looked for.
    pub fn insert(&mut self, item: Item, before: impl Fn(&Item) -> bool) {
        let mut place = self.find(before);
        if place.chunk == self.chunks.len() {
            match self.chunks.last() {
                None => {
                    self.chunks.push(Vec::new());
                    self.rebuild_sums();
                }
                Some(last) => {
                    place = Place {
                        chunk: place.chunk - 1,
                        offset: last.len(),
                    }
                }
            }
        }
        let chunk = &mut self.chunks[place.chunk];
        if chunk.len() == CHUNK_MAX {
            // Ascending insertion, the common way to fill a set, then leaves full chunks behind.
            let at_end = place.chunk + 1 == self.chunks.len() && place.offset == CHUNK_MAX;
            let cut = if at_end {
                CHUNK_MAX - CHUNK_MIN
            } else {
                CHUNK_MAX / 2
            };
            let chunk = &mut self.chunks[place.chunk];
            let mut right = Vec::with_capacity(CHUNK_MAX);
            right.extend(chunk.drain(cut..));
            self.chunks.insert(place.chunk + 1, right);
            if place.offset > cut {
                place = Place {
                    chunk: place.chunk + 1,
                    offset: place.offset - cut,
                };
            }
            self.chunks[place.chunk].insert(place.offset, item);
            self.rebuild_sums();
        } else {
            chunk.insert(place.offset, item);
            self.add_to_sums(place.chunk, 1);
        }
        self.len += 1;
    }

    /// Removes the item at the place looked for, and returns it.
    pub fn remove(&mut self, before: impl Fn(&Item) -> bool) -> Option<Item> {
        let place = self.find(before);
        let chunk = self.chunks.get_mut(place.chunk)?;
        let item = chunk.remove(place.offset);
        self.len -= 1;
        let left = chunk.len();
        if left >= CHUNK_MIN || (self.chunks.len() == 1 && left > 0) {
            self.add_to_sums(place.chunk, -1);
        } else {
            self.join(place.chunk);
        }
        Some(item)
    }

    /// The item at the place looked for, to be changed in a way that keeps the order.
    pub fn find_mut(&mut self, before: impl Fn(&Item) -> bool) -> Option<&mut Item> {
        let place = self.find(before);
        self.chunks.get_mut(place.chunk)?.get_mut(place.offset)
    }

    /// The items with the ranks `range`, in order.
    ///
    /// # Panics
    /// When the range reaches beyond the number of items.
    #[must_use]
    pub fn range(&self, range: Range<usize>) -> Items<'_> {
        assert!(
            range.end <= self.len,
            "a range of ranks lies within the set"
        );
        if range.start >= range.end {
            let nowhere = Place {
                chunk: 0,
                offset: 0,
            };
            return Items {
                chunks: &self.chunks,
                front: nowhere,
                back: nowhere,
                left: 0,
            };
        }
        let front = self.place_of(range.start);
        let last = self.place_of(range.end - 1);
        let back = Place {
            chunk: last.chunk,
            offset: last.offset + 1,
        };
        Items {
            chunks: &self.chunks,
            front,
            back,
            left: range.end - range.start,
        }
    }

    /// Joins a short chunk with a neighbour, or drops an empty one.
    fn join(&mut self, at: usize) {
        if self.chunks[at].is_empty() {
            self.chunks.remove(at);
            self.rebuild_sums();
            return;
        }
        let room = CHUNK_MAX * 3 / 4;
        let length = |at: usize| self.chunks.get(at).map_or(usize::MAX / 2, Vec::len);
        let into = if at > 0 && length(at - 1) + length(at) <= room {
            at - 1
        } else if length(at) + length(at + 1) <= room {
            at
        } else {
            self.add_to_sums(at, -1);
            return;
        };
        let right = self.chunks.remove(into + 1);
        self.chunks[into].extend_from_slice(&right);
        self.rebuild_sums();
    }

    fn rebuild_sums(&mut self) {
        let count = self.chunks.len();
        self.sums.clear();
        self.sums
            .extend(self.chunks.iter().map(|chunk| chunk.len() as u32));
        for node in 1..=count {
            let parent = node + (node & node.wrapping_neg());
            if parent <= count {
                self.sums[parent - 1] += self.sums[node - 1];
            }
        }
    }

    fn add_to_sums(&mut self, chunk: usize, change: i32) {
        let mut node = chunk + 1;
        while node <= self.sums.len() {
            self.sums[node - 1] = self.sums[node - 1].wrapping_add_signed(change);
            node += node & node.wrapping_neg();
        }
    }

    fn sum_before(&self, chunk: usize) -> usize {
        let (mut node, mut sum) = (chunk, 0usize);
        while node > 0 {
            sum += self.sums[node - 1] as usize;
            node &= node - 1;
        }
        sum
    }

    /// The place of a rank, which is below `len`.
    fn place_of(&self, rank: usize) -> Place {
        let (mut chunk, mut offset) = (0, rank);
        let mut step = (self.sums.len() + 1).next_power_of_two() / 2;
        while step > 0 {
            if let Some(&sum) = self.sums.get(chunk + step - 1)
                && sum as usize <= offset
            {
                offset -= sum as usize;
                chunk += step;
            }
            step /= 2;
        }
        Place { chunk, offset }
    }

    #[cfg(test)]
    fn check(&self) {
        assert_eq!(self.len, self.chunks.iter().map(Vec::len).sum::<usize>());
        assert_eq!(self.sums.len(), self.chunks.len());
        let mut before = 0;
        for (at, chunk) in self.chunks.iter().enumerate() {
            assert!(!chunk.is_empty() && chunk.len() <= CHUNK_MAX);
            assert_eq!(self.sum_before(at), before);
            before += chunk.len();
        }
    }
}

/// Items of a [`Ranking`] from both ends.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    chunks: &'a [Vec<Item>],
    front: Place,
    /// The place behind the last item.
    back: Place,
    left: usize,
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if self.front.offset == self.chunks[self.front.chunk].len() {
            self.front = Place {
                chunk: self.front.chunk + 1,
                offset: 0,
            };
        }
        let item = self.chunks[self.front.chunk][self.front.offset];
        self.front.offset += 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl DoubleEndedIterator for Items<'_> {
    fn next_back(&mut self) -> Option<Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if self.back.offset == 0 {
            let chunk = self.back.chunk - 1;
            self.back = Place {
                chunk,
                offset: self.chunks[chunk].len(),
            };
        }
        self.back.offset -= 1;
        Some(self.chunks[self.back.chunk][self.back.offset])
    }
}

impl ExactSizeIterator for Items<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn before(score: f64) -> impl Fn(&Item) -> bool {
        move |item| item.score < score
    }

    fn item(score: u32) -> Item {
        Item {
            score: f64::from(score),
            entry: score,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn behaves_as_a_sorted_vector(
            seed in 0u32..1000,
            operations in prop::collection::vec((0u8..10, 0u32..3000), 0..3000),
            growing in any::<bool>(),
        ) {
            let mut model: Vec<u32> = (seed..seed + 700).collect();
            let items: Vec<Item> = model.iter().map(|&score| item(score)).collect();
            let mut ranking = Ranking::from_sorted(&items);
            for (kind, score) in operations {
                let at = model.partition_point(|&other| other < score);
                let present = model.get(at) == Some(&score);
                if present && (kind < 3 || !growing) {
                    let removed = ranking.remove(before(f64::from(score)));
                    prop_assert_eq!(removed, Some(item(score)));
                    model.remove(at);
                } else if !present && growing {
                    ranking.insert(item(score), before(f64::from(score)));
                    model.insert(at, score);
                }
                prop_assert_eq!(ranking.rank(before(f64::from(score))), at);
                prop_assert_eq!(ranking.rank_stepwise(before(f64::from(score))), at);
            }
            ranking.check();
            prop_assert_eq!(ranking.len, model.len());
            for (rank, &score) in model.iter().enumerate() {
                prop_assert_eq!(ranking.get(rank), Some(item(score)));
            }
            prop_assert_eq!(ranking.get(model.len()), None);
            for start in (0..=model.len()).step_by(97) {
                for end in (start..=model.len()).step_by(131) {
                    let expected = model[start..end].iter().map(|&score| item(score));
                    prop_assert!(ranking.range(start..end).eq(expected.clone()));
                    prop_assert!(ranking.range(start..end).rev().eq(expected.rev()));
                }
            }
        }
    }

    #[test]
    fn can_be_emptied_and_filled_again() {
        let mut ranking = Ranking::default();
        for round in 0..3 {
            for score in 0..2000 {
                ranking.insert(item(score), before(f64::from(score)));
            }
            ranking.check();
            for score in 0..2000 {
                let score = if round == 1 { 1999 - score } else { score };
                assert_eq!(ranking.remove(before(f64::from(score))), Some(item(score)));
            }
            ranking.check();
            assert_eq!(ranking.len, 0);
            assert_eq!(ranking.range(0..0).next(), None);
        }
    }

    #[test]
    fn both_ends_of_a_range_meet() {
        let items: Vec<Item> = (0..600).map(item).collect();
        let ranking = Ranking::from_sorted(&items);
        let mut range = ranking.range(10..590);
        let mut seen = 0;
        while range.next().is_some() {
            seen += 1;
            if range.next_back().is_some() {
                seen += 1;
            }
        }
        assert_eq!(seen, 580);
    }
}
