//! The changes of a collection, as the steps that undo them.
//!
//! ```text
//!   HSET born 1815   ──► hash.set     ──► journal: changed born, it was 1816
//!   HDEL died        ──► hash.remove  ──►          removed died = 1852 from place 2
//!
//!   undo: the steps, the last one first: the same elements in the same order as before
//! ```
//!
//! A collection whose journal is on notes each change of an element in it. So a change of a large
//! collection costs what it changes, not a copy.

use super::wire::{Malformed, Reader, put_bytes, put_number};
use crate::steps::STRING_BYTES;

const ADDED: u8 = 0;
const CHANGED: u8 = 1;
const REMOVED: u8 = 2;
const PUSHED_LEFT: u8 = 3;
const PUSHED_RIGHT: u8 = 4;
const POPPED_LEFT: u8 = 5;
const POPPED_RIGHT: u8 = 6;
const REPLACED: u8 = 7;
const INSERTED: u8 = 8;
const TAKEN: u8 = 9;
/// A length or a place takes no more bytes.
const NUMBER: usize = 5;
/// Moving this number of elements of a list counts as one step.
const MOVED_PER_STEP: usize = 4;

/// One change of a collection, with what is needed to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// Of a hash or a set: the element came, behind all others.
    Added {
        name: &'a [u8],
    },
    /// The element had this value.
    Changed {
        name: &'a [u8],
        value: &'a [u8],
    },
    /// The element was at this place, and the last one moved there.
    Removed {
        place: usize,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Of a list: an element came at this end.
    PushedLeft,
    PushedRight,
    /// This element went from this end.
    PoppedLeft(&'a [u8]),
    PoppedRight(&'a [u8]),
    /// This element was at this place.
    Replaced {
        place: usize,
        element: &'a [u8],
    },
    /// An element came to this place.
    Inserted {
        place: usize,
    },
    /// This element stood at these places, ascending: each is a distance from the one before.
    Taken {
        element: &'a [u8],
        distances: Distances<'a>,
    },
}

/// How much may still be made again, and with how much work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Bytes of memory.
    pub bytes: usize,
    /// Steps, as commands are counted.
    pub steps: u64,
}

impl Allowance {
    /// # Errors
    /// When fewer are left.
    pub fn take_bytes(&mut self, bytes: usize) -> Result<(), NotUndone> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(NotUndone::TooMuch)?;
        Ok(())
    }

    /// # Errors
    /// When fewer are left.
    pub fn take_steps(&mut self, steps: u64) -> Result<(), NotUndone> {
        let left = self.steps.checked_sub(steps);
        self.steps = left.unwrap_or(0);
        left.map(drop).ok_or(NotUndone::TooMuch)
    }

    /// Takes the steps of copying this number of bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn take_copy(&mut self, bytes: usize) -> Result<(), NotUndone> {
        self.take_steps(bytes as u64 / STRING_BYTES)
    }
}

/// Why steps were not undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotUndone {
    /// They are malformed, or the collection cannot have taken them.
    Impossible,
    /// More would be needed than is allowed.
    TooMuch,
}

impl From<Malformed> for NotUndone {
    fn from(_: Malformed) -> Self {
        Self::Impossible
    }
}

impl Step<'_> {
    /// The steps of undoing it in a collection of this length, and the memory it may add, where an
    /// element takes `element` beside its bytes.
    fn cost(&self, length: usize, element: usize) -> (u64, usize) {
        let (moved, added) = match *self {
            Step::Added { .. } | Step::PushedLeft | Step::PushedRight => (0, 0),
            Step::Changed { value, .. } => (0, value.len()),
            Step::Removed { name, value, .. } => (0, name.len() + value.len() + element),
            Step::PoppedLeft(bytes) | Step::PoppedRight(bytes) => (0, bytes.len() + element),
            Step::Replaced { element: bytes, .. } => (0, bytes.len()),
            Step::Inserted { place } => (place.min(length.saturating_sub(place)), 0),
            Step::Taken {
                element: bytes,
                distances,
            } => {
                let count = distances.places().count();
                let each = bytes.len() + element;
                (length + count, count.saturating_mul(each))
            }
        };
        let steps = 1 + (moved / MOVED_PER_STEP) as u64 + added as u64 / STRING_BYTES;
        (steps, added)
    }
}

/// Ascending places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distances<'a>(&'a [u8]);

impl Distances<'_> {
    /// Whether they can be of a list.
    fn check(self) -> Result<(), Malformed> {
        let mut reader = Reader::new(self.0);
        let mut last = None;
        while !reader.rest().is_empty() {
            let distance = reader.number()?;
            let place = last.map_or(Some(distance), |last: u64| last.checked_add(distance));
            if place.is_none_or(|place| place > u32::MAX.into())
                || (last.is_some() && distance == 0)
            {
                return Err(IMPOSSIBLE);
            }
            last = place;
        }
        Ok(())
    }

    /// The places.
    pub fn places(self) -> impl Iterator<Item = usize> {
        let mut reader = Reader::new(self.0);
        let mut place = 0usize;
        core::iter::from_fn(move || {
            let distance = reader.number().ok()?;
            place = place.saturating_add(usize::try_from(distance).unwrap_or(usize::MAX));
            Some(place)
        })
    }
}

/// The steps that undo the changes of a collection; none are kept beyond `room` bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    /// The length of the bytes before the steps.
    head: usize,
    bytes: Vec<u8>,
    room: usize,
    is_over: bool,
}

impl Journal {
    /// Begins again, with this number of bytes for steps; `write` writes what stands before them.
    pub fn begin(&mut self, room: usize, write: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.clear();
        write(&mut self.bytes);
        self.head = self.bytes.len();
        (self.room, self.is_over) = (room, false);
    }

    /// The bytes before the steps, and the steps; none when there was no room for them.
    pub fn bytes(&self) -> Option<&[u8]> {
        (!self.is_over).then_some(&self.bytes)
    }

    /// The bytes before the steps.
    pub fn head(&self) -> &[u8] {
        &self.bytes[..self.head]
    }

    /// Takes the steps out, and gives back memory beyond this number of bytes.
    pub fn shrink(&mut self, capacity: usize) {
        self.bytes.truncate(self.head);
        self.bytes.shrink_to(capacity);
    }

    /// How many bytes of steps are still kept.
    pub const fn left(&self) -> usize {
        match self.is_over {
            true => 0,
            false => self.room - (self.bytes.len() - self.head),
        }
    }

    /// Notes a step that takes up to this number of bytes.
    fn note(&mut self, kind: u8, bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if self.is_over {
            return;
        }
        if 1 + bytes > self.left() {
            self.is_over = true;
            return self.shrink(0);
        }
        self.bytes.push(kind);
        write(&mut self.bytes);
    }

    pub fn added(&mut self, name: &[u8]) {
        self.note(ADDED, name.len() + NUMBER, |out| put_bytes(out, name));
    }

    pub fn changed(&mut self, name: &[u8], value: &[u8]) {
        self.note(CHANGED, name.len() + value.len() + 2 * NUMBER, |out| {
            put_bytes(out, name);
            put_bytes(out, value);
        });
    }

    pub fn removed(&mut self, place: usize, name: &[u8], value: &[u8]) {
        self.note(REMOVED, name.len() + value.len() + 3 * NUMBER, |out| {
            put_number(out, place as u64);
            put_bytes(out, name);
            put_bytes(out, value);
        });
    }

    pub fn pushed(&mut self, left: bool) {
        self.note(if left { PUSHED_LEFT } else { PUSHED_RIGHT }, 0, |_| {});
    }

    pub fn popped(&mut self, left: bool, element: &[u8]) {
        let kind = if left { POPPED_LEFT } else { POPPED_RIGHT };
        self.note(kind, element.len() + NUMBER, |out| put_bytes(out, element));
    }

    pub fn replaced(&mut self, place: usize, element: &[u8]) {
        self.note(REPLACED, element.len() + 2 * NUMBER, |out| {
            put_number(out, place as u64);
            put_bytes(out, element);
        });
    }

    /// More places than this are never kept.
    pub const fn places_max(&self) -> usize {
        self.left() / NUMBER + 1
    }

    pub fn inserted(&mut self, place: usize) {
        self.note(INSERTED, NUMBER, |out| put_number(out, place as u64));
    }

    /// The element went from these places, which ascend.
    pub fn taken(&mut self, element: &[u8], places: &[usize]) {
        let bytes = element.len() + (2 + places.len()) * NUMBER;
        self.note(TAKEN, bytes, |out| {
            put_bytes(out, element);
            let mut distances = Vec::new();
            let mut before = 0;
            for place in places {
                put_number(&mut distances, (place - before) as u64);
                before = *place;
            }
            put_bytes(out, &distances);
        });
    }
}

/// Reads steps, the first one first.
pub(crate) struct Steps<'a>(Reader<'a>);

impl<'a> Steps<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(Reader::new(bytes))
    }

    fn place(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.0.number()?).map_err(|_| Malformed("a place beyond all"))
    }

    fn step(&mut self) -> Result<Step<'a>, Malformed> {
        Ok(match self.0.byte()? {
            ADDED => Step::Added {
                name: self.0.bytes()?,
            },
            CHANGED => Step::Changed {
                name: self.0.bytes()?,
                value: self.0.bytes()?,
            },
            REMOVED => Step::Removed {
                place: self.place()?,
                name: self.0.bytes()?,
                value: self.0.bytes()?,
            },
            PUSHED_LEFT => Step::PushedLeft,
            PUSHED_RIGHT => Step::PushedRight,
            POPPED_LEFT => Step::PoppedLeft(self.0.bytes()?),
            POPPED_RIGHT => Step::PoppedRight(self.0.bytes()?),
            REPLACED => Step::Replaced {
                place: self.place()?,
                element: self.0.bytes()?,
            },
            INSERTED => Step::Inserted {
                place: self.place()?,
            },
            TAKEN => {
                let (element, distances) = (self.0.bytes()?, Distances(self.0.bytes()?));
                distances.check()?;
                Step::Taken { element, distances }
            }
            _ => return Err(Malformed("unknown step of a collection")),
        })
    }
}

impl<'a> Iterator for Steps<'a> {
    type Item = Result<Step<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.rest().is_empty()).then(|| self.step())
    }
}

/// A step that cannot have been taken by the collection as it is.
pub(crate) const IMPOSSIBLE: Malformed = Malformed("a step that the collection cannot have taken");

/// A type that can note its changes.
pub(crate) trait Journaled {
    /// The memory that an element takes beside its bytes, as it is counted.
    const ELEMENT_MEMORY: usize;
    /// Where its journal is while it is on.
    fn journal(&mut self) -> &mut Option<Box<Journal>>;
    /// How many elements there are, and the memory that they take.
    fn extent(&self) -> (usize, usize);
    /// Undoes one step, the last that was taken.
    ///
    /// # Errors
    /// When it cannot have been.
    fn undo(&mut self, step: Step<'_>) -> Result<(), Malformed>;
}

/// Undoes steps, the last one first. The collection takes `allowance.bytes` of memory at most.
///
/// # Errors
/// When they cannot have led to what the collection is, or more is not allowed.
pub(crate) fn undo_all<T: Journaled>(
    collection: &mut T,
    bytes: &[u8],
    allowance: &mut Allowance,
) -> Result<(), NotUndone> {
    let mut starts: Vec<u32> = Vec::new();
    let mut steps = Steps::new(bytes);
    while !steps.0.rest().is_empty() {
        let start = bytes.len() - steps.0.rest().len();
        starts.push(u32::try_from(start).map_err(|_| NotUndone::TooMuch)?);
        steps.step()?;
        allowance.take_steps(1)?;
    }
    for start in starts.into_iter().rev() {
        let step = Steps::new(&bytes[start as usize..]).step()?;
        let (length, memory) = collection.extent();
        let (work, added) = step.cost(length, T::ELEMENT_MEMORY);
        allowance.take_steps(work)?;
        if memory.saturating_add(added) > allowance.bytes {
            return Err(NotUndone::TooMuch);
        }
        collection.undo(step)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::hash::Hash;
    use crate::types::list::{End, List};
    use crate::types::set::Set;
    use crate::types::sorted_set::SortedSet;
    use crate::value::{Stored, Value};
    use proptest::prelude::*;

    fn bytes_of(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.serialize(&mut bytes);
        bytes
    }

    fn ample() -> Allowance {
        Allowance {
            bytes: 1 << 30,
            steps: 1 << 30,
        }
    }

    fn empty(kind: usize) -> Value {
        match kind {
            0 => Hash::default().into_value(),
            1 => List::default().into_value(),
            2 => Set::default().into_value(),
            _ => SortedSet::default().into_value(),
        }
    }

    /// One change: its kind, two names, a place.
    type Drawn = (u8, u8, u8, u16);

    fn change(value: &mut Value, (kind, one, other, place): Drawn) {
        let name = vec![b'a' + one % 26; usize::from(one)];
        let text = vec![b'v'; usize::from(other)];
        let within = |len: usize| usize::from(place) % len.max(1);
        match value {
            Value::Hash(hash) if kind < 5 => drop(hash.set(&name, &text)),
            Value::Hash(hash) => drop(hash.remove(&name)),
            Value::Set(set) if kind < 5 => drop(set.add(&[one])),
            Value::Set(set) if kind < 7 => drop(set.add(other.to_string().as_bytes())),
            Value::Set(set) if kind < 8 => drop(set.remove(&[one])),
            Value::Set(set) if !set.is_empty() => drop(set.remove_at(within(set.len()))),
            Value::SortedSet(set) if kind < 5 => {
                set.set(&name, f64::from(i16::from(other) - 9) * 0.0);
            }
            Value::SortedSet(set) if kind < 7 => set.set(&name, f64::from(other)),
            Value::SortedSet(set) if kind < 8 => drop(set.remove(&name)),
            Value::SortedSet(set) => drop(set.pop(within(set.len()))),
            Value::List(list) => {
                let end = if place % 2 == 0 {
                    End::Left
                } else {
                    End::Right
                };
                match kind {
                    0..4 => list.push(end, &name),
                    4 => drop(list.pop(end)),
                    5 => drop(list.set(within(list.len()), &text)),
                    6 => list.insert(within(list.len() + 1), &name),
                    7 => drop(list.remove(i64::from(other) - 9, &name)),
                    _ => {
                        let at = within(list.len());
                        let end = (at + usize::from(other)).min(list.len());
                        list.trim(at.min(end)..end);
                    }
                }
            }
            _ => {}
        }
    }

    fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
        prop::collection::vec((0u8..10, 0u8..70, 0u8..20, any::<u16>()), 1..200)
    }

    proptest! {
        #[test]
        fn collection_is_what_it_was_after_its_steps_are_undone(
            kind in 0usize..4, before in drawn(), after in drawn(),
        ) {
            let mut value = empty(kind);
            for drawn in before {
                change(&mut value, drawn);
            }
            let (bytes, memory, flag) = (bytes_of(&value), value.memory(), value.encoding_flag());
            let mut journal = Box::<Journal>::default();
            journal.begin(usize::MAX, |_| {});
            *value.journal().unwrap() = Some(journal);
            for drawn in after {
                change(&mut value, drawn);
            }
            let journal = value.journal().unwrap().take().unwrap();
            let steps = journal.bytes().unwrap();
            value.undo(steps, flag, &mut ample()).unwrap();
            prop_assert_eq!(bytes_of(&value), bytes.clone());
            prop_assert_eq!(value.memory(), memory);
            if value.elements() > 0 {
                // The same elements are found where they are: what is indexed agrees.
                let again = Value::deserialize(&bytes).unwrap();
                match (&value, &again) {
                    (Value::Hash(one), Value::Hash(_)) => {
                        for (field, its) in one.iter() {
                            prop_assert_eq!(one.get(field), Some(its));
                        }
                    }
                    (Value::SortedSet(one), Value::SortedSet(other)) => {
                        prop_assert!(one.range(0..one.len()).eq(other.range(0..other.len())));
                        for (rank, (member, _)) in one.range(0..one.len()).enumerate() {
                            prop_assert_eq!(one.rank(member), Some(rank));
                        }
                    }
                    (Value::Set(one), Value::Set(_)) => {
                        prop_assert!(one.iter().all(|member| one.contains(member)));
                    }
                    _ => {}
                }
            }
        }

        #[test]
        fn steps_that_were_never_taken_are_refused_without_a_panic(
            kind in 0usize..4,
            before in drawn(),
            steps in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                prop::collection::vec(0u8..10, 0..60),
            ],
        ) {
            let mut value = empty(kind);
            for drawn in before {
                change(&mut value, drawn);
            }
            let _ = value.undo(&steps, true, &mut ample());
        }
    }

    #[test]
    fn journal_without_room_keeps_its_head_only() {
        let mut journal = Journal::default();
        journal.begin(15, |out| out.extend_from_slice(b"head"));
        journal.added(b"12345678");
        assert!(journal.bytes().is_some_and(|bytes| bytes.len() == 14));
        journal.pushed(true);
        journal.added(b"more");
        assert_eq!((journal.bytes(), journal.head()), (None, &b"head"[..]));
        journal.begin(10, |_| {});
        assert_eq!(journal.bytes(), Some(&b""[..]));
    }

    #[test]
    fn steps_that_take_too_much_are_not_undone() {
        let mut list = List::default();
        list.push(End::Right, b"x");
        let mut journal = Journal::default();
        journal.begin(usize::MAX, |_| {});
        journal.taken(&[b'y'; 10_000], &(1..1000).collect::<Vec<_>>());
        let steps = journal.bytes().unwrap();
        let undone = |bytes, steps_max| {
            let mut list = list.clone();
            let mut allowance = Allowance {
                bytes,
                steps: steps_max,
            };
            undo_all(&mut list, steps, &mut allowance)
        };
        assert_eq!(undone(20_000_000, 200_000), Ok(()));
        assert_eq!(undone(9_000_000, 200_000), Err(NotUndone::TooMuch));
        assert_eq!(undone(20_000_000, 1000), Err(NotUndone::TooMuch));
    }
}
