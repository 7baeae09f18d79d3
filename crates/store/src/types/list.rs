//! A list of elements with two ends.
//!
//! ```text
//!   left ◄─ [ a | b | c | d ] ─► right       a ring of boxed elements
//!             0   1   2   3                  places from the left
//!            -4  -3  -2  -1                  places from the right, as clients may count
//! ```
//!
//! Both ends and any place are reached at once; inserting or removing inside moves only the
//! pointers between that place and the nearer end.

use super::journal::{IMPOSSIBLE, Journal, Journaled, Step};
use super::wire::{Malformed, Reader, put_bytes, put_number};
use core::ops::Range;
use std::collections::VecDeque;

/// Estimated bytes that one element takes beyond its own: pointer, length and what the allocator
/// adds.
const ELEMENT_OVERHEAD: usize = 32;

/// One of the two ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The head.
    Left,
    /// The tail.
    Right,
}

/// The value of a list key.
#[derive(Clone, Debug, Default)]
pub struct List {
    elements: VecDeque<Box<[u8]>>,
    bytes: usize,
    journal: Option<Box<Journal>>,
}

impl List {
    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are none. A list that became empty must be deleted by its holder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The element at a place from the left.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&[u8]> {
        self.elements.get(at).map(|element| &**element)
    }

    /// All elements from left to right.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.elements.iter().map(|element| &**element)
    }

    /// The elements at the places `range`, from left to right.
    ///
    /// # Panics
    /// When the range reaches beyond [`Self::len`].
    pub fn range(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.elements.range(range).map(|element| &**element)
    }

    /// Adds an element at an end.
    pub fn push(&mut self, end: End, element: &[u8]) {
        self.bytes += element.len();
        if let Some(journal) = &mut self.journal {
            journal.pushed(end == End::Left);
        }
        match end {
            End::Left => self.elements.push_front(element.into()),
            End::Right => self.elements.push_back(element.into()),
        }
    }

    /// Takes the element at an end.
    pub fn pop(&mut self, end: End) -> Option<Box<[u8]>> {
        let element = match end {
            End::Left => self.elements.pop_front(),
            End::Right => self.elements.pop_back(),
        }?;
        self.bytes -= element.len();
        if let Some(journal) = &mut self.journal {
            journal.popped(end == End::Left, &element);
        }
        self.maybe_shrink();
        Some(element)
    }

    /// Replaces the element at a place; says whether there is such a place.
    pub fn set(&mut self, at: usize, element: &[u8]) -> bool {
        let Some(place) = self.elements.get_mut(at) else {
            return false;
        };
        self.bytes = self.bytes - place.len() + element.len();
        if let Some(journal) = &mut self.journal {
            journal.replaced(at, place);
        }
        *place = element.into();
        true
    }

    /// Puts an element before the one at place `at`, or at the right end if `at` is the length.
    ///
    /// # Panics
    /// When `at` exceeds [`Self::len`].
    pub fn insert(&mut self, at: usize, element: &[u8]) {
        self.bytes += element.len();
        self.elements.insert(at, element.into());
        if let Some(journal) = &mut self.journal {
            journal.inserted(at);
        }
    }

    /// The place of the first element equal to `element`.
    #[must_use]
    pub fn position(&self, element: &[u8]) -> Option<usize> {
        self.elements.iter().position(|found| **found == *element)
    }

    /// Removes elements equal to `element`: the first `count` from the left, or from the right
    /// when it is negative, or all when it is 0. Returns how many went.
    pub fn remove(&mut self, count: i64, element: &[u8]) -> usize {
        let all = self
            .elements
            .iter()
            .filter(|found| ***found == *element)
            .count();
        let limit = match count {
            0 => all,
            count => usize::try_from(count.unsigned_abs())
                .unwrap_or(usize::MAX)
                .min(all),
        };
        if limit == 0 {
            return 0;
        }
        let mut spare = if count < 0 { all - limit } else { 0 };
        let mut left = limit;
        let mut place = 0;
        let mut taken = Vec::new();
        let noted_max = self
            .journal
            .as_ref()
            .map_or(0, |journal| journal.places_max());
        self.elements.retain(|found| {
            place += 1;
            if left == 0 || **found != *element {
                true
            } else if spare > 0 {
                spare -= 1;
                true
            } else {
                left -= 1;
                if taken.len() < noted_max {
                    taken.push(place - 1);
                }
                false
            }
        });
        if let Some(journal) = &mut self.journal {
            journal.taken(element, &taken);
        }
        self.bytes -= limit * element.len();
        self.maybe_shrink();
        limit
    }

    /// Keeps only the elements at the places `range`.
    ///
    /// # Panics
    /// When the range reaches beyond [`Self::len`].
    pub fn trim(&mut self, range: Range<usize>) {
        if let Some(journal) = &mut self.journal {
            // As they would go from the ends, one behind the other.
            for element in self.elements.range(range.end..).rev() {
                journal.popped(false, element);
            }
            for element in self.elements.range(..range.start) {
                journal.popped(true, element);
            }
        }
        let after = self.elements.drain(range.end..);
        self.bytes -= after.map(|element| element.len()).sum::<usize>();
        let before = self.elements.drain(..range.start);
        self.bytes -= before.map(|element| element.len()).sum::<usize>();
        self.maybe_shrink();
    }

    /// Puts an element at each of these places, which ascend, between those that are there.
    fn put_back(
        &mut self,
        element: &[u8],
        places: impl Iterator<Item = usize>,
    ) -> Result<(), Malformed> {
        let mut all = VecDeque::with_capacity(self.len() + 1);
        let mut rest = core::mem::take(&mut self.elements).into_iter();
        let mut last = None;
        for place in places {
            if last.is_some_and(|last| last >= place) {
                return Err(IMPOSSIBLE);
            }
            last = Some(place);
            while all.len() < place {
                all.push_back(rest.next().ok_or(IMPOSSIBLE)?);
            }
            self.bytes += element.len();
            all.push_back(element.into());
        }
        all.extend(rest);
        self.elements = all;
        Ok(())
    }

    fn maybe_shrink(&mut self) {
        let capacity = self.elements.capacity();
        if capacity > 64 && self.elements.len() * 8 < capacity {
            self.elements.shrink_to(self.elements.len() * 2);
        }
    }

    /// The name that OBJECT ENCODING gives to a list.
    #[must_use]
    pub const fn encoding(&self) -> &'static str {
        "quicklist"
    }

    /// Estimated bytes. It follows from the content alone, so all replicas agree.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes + self.len() * ELEMENT_OVERHEAD
    }

    /// Frees up to `count` elements of a detached value.
    pub(crate) fn free_last(&mut self, count: usize) {
        let left = self.elements.len().saturating_sub(count);
        self.elements.truncate(left);
    }

    /// Appends all elements to `out`.
    pub fn serialize(&self, out: &mut Vec<u8>) {
        put_number(out, self.len() as u64);
        for element in self.iter() {
            put_bytes(out, element);
        }
    }

    /// Reads what [`Self::serialize`] wrote.
    ///
    /// # Errors
    /// When the bytes cannot be what it wrote.
    pub fn deserialize(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = reader.count(1)?;
        let mut list = Self {
            elements: VecDeque::with_capacity(reader.room_for(count, size_of::<Box<[u8]>>())),
            bytes: 0,
            journal: None,
        };
        for _ in 0..count {
            list.push(End::Right, reader.bytes()?);
        }
        Ok(list)
    }
}

impl Journaled for List {
    const ELEMENT_MEMORY: usize = ELEMENT_OVERHEAD;

    fn journal(&mut self) -> &mut Option<Box<Journal>> {
        &mut self.journal
    }

    fn extent(&self) -> (usize, usize) {
        (self.len(), self.memory())
    }

    fn undo(&mut self, step: Step<'_>) -> Result<(), Malformed> {
        match step {
            Step::PushedLeft => drop(self.pop(End::Left).ok_or(IMPOSSIBLE)?),
            Step::PushedRight => drop(self.pop(End::Right).ok_or(IMPOSSIBLE)?),
            Step::PoppedLeft(element) => self.push(End::Left, element),
            Step::PoppedRight(element) => self.push(End::Right, element),
            Step::Replaced { place, element } => {
                if !self.set(place, element) {
                    return Err(IMPOSSIBLE);
                }
            }
            Step::Inserted { place } => {
                let element = self.elements.remove(place).ok_or(IMPOSSIBLE)?;
                self.bytes -= element.len();
            }
            Step::Taken { element, distances } => self.put_back(element, distances.places())?,
            _ => return Err(IMPOSSIBLE),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(bool, u8),
        Pop(bool),
        Set(u8, u8),
        Insert(u8, u8),
        Remove(i8, u8),
        Trim(u8, u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (any::<bool>(), 0u8..6).prop_map(|(left, element)| Step::Push(left, element)),
            2 => any::<bool>().prop_map(Step::Pop),
            1 => (any::<u8>(), 0u8..6).prop_map(|(at, element)| Step::Set(at, element)),
            2 => (any::<u8>(), 0u8..6).prop_map(|(at, element)| Step::Insert(at, element)),
            1 => (-3i8..4, 0u8..6).prop_map(|(count, element)| Step::Remove(count, element)),
            1 => (0u8..20, 0u8..60).prop_map(|(start, end)| Step::Trim(start, end)),
        ]
    }

    fn element(number: u8) -> Vec<u8> {
        vec![b'a' + number; usize::from(number)]
    }

    fn model_remove(model: &mut Vec<Vec<u8>>, count: i8, element: &[u8]) -> usize {
        let mut places: Vec<usize> = (0..model.len())
            .filter(|&at| model[at] == element)
            .collect();
        if count < 0 {
            places.reverse();
        }
        if count != 0 {
            places.truncate(usize::from(count.unsigned_abs()));
        }
        places.sort_unstable();
        for &at in places.iter().rev() {
            model.remove(at);
        }
        places.len()
    }

    proptest! {
        #[test]
        fn behaves_as_a_vector_and_comes_back(steps in prop::collection::vec(step(), 1..200)) {
            let mut list = List::default();
            let mut model: Vec<Vec<u8>> = Vec::new();
            for step in steps {
                match step {
                    Step::Push(true, number) => {
                        list.push(End::Left, &element(number));
                        model.insert(0, element(number));
                    }
                    Step::Push(false, number) => {
                        list.push(End::Right, &element(number));
                        model.push(element(number));
                    }
                    Step::Pop(left) => {
                        let end = if left { End::Left } else { End::Right };
                        let expected = match left {
                            true if !model.is_empty() => Some(model.remove(0)),
                            true => None,
                            false => model.pop(),
                        };
                        prop_assert_eq!(list.pop(end).map(Vec::from), expected);
                    }
                    Step::Set(at, number) => {
                        let at = usize::from(at) % (model.len() + 1);
                        prop_assert_eq!(list.set(at, &element(number)), at < model.len());
                        if at < model.len() {
                            model[at] = element(number);
                        }
                    }
                    Step::Insert(at, number) => {
                        let at = usize::from(at) % (model.len() + 1);
                        list.insert(at, &element(number));
                        model.insert(at, element(number));
                    }
                    Step::Remove(count, number) => {
                        let expected = model_remove(&mut model, count, &element(number));
                        prop_assert_eq!(list.remove(count.into(), &element(number)), expected);
                    }
                    Step::Trim(start, end) => {
                        let end = usize::from(end).min(model.len());
                        let start = usize::from(start).min(end);
                        list.trim(start..end);
                        model = model[start..end].to_vec();
                    }
                }
                prop_assert_eq!(list.len(), model.len());
            }
            prop_assert!(list.iter().eq(model.iter().map(Vec::as_slice)));
            let bytes: usize = model.iter().map(Vec::len).sum();
            prop_assert_eq!(list.memory(), bytes + model.len() * ELEMENT_OVERHEAD);
            for (at, expected) in model.iter().enumerate() {
                prop_assert_eq!(list.get(at), Some(expected.as_slice()));
            }
            if !list.is_empty() {
                let mut out = Vec::new();
                list.serialize(&mut out);
                let restored = List::deserialize(&mut Reader::new(&out)).unwrap();
                prop_assert!(restored.iter().eq(list.iter()));
                prop_assert!(List::deserialize(&mut Reader::new(&out[..out.len() - 1])).is_err());
            }
        }
    }

    #[test]
    fn empty_or_boasting_list_is_refused() {
        assert!(List::deserialize(&mut Reader::new(&[0])).is_err());
        assert!(List::deserialize(&mut Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f])).is_err());
    }
}
