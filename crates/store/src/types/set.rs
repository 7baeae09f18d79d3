//! A set of members.
//!
//! ```text
//!   oak | ash | elm        a Table without values, in dense order
//! ```

use super::journal::{IMPOSSIBLE, Journal, Journaled, Step};
use super::table::{ENTRY_OVERHEAD, Table, Walk};
use super::wire::{Malformed, Reader, put_bytes, put_number};

/// Beyond this many members Redis with its default settings stops calling a set of integers an
/// `intset`.
const INTEGERS_MAX: usize = 512;

/// The value of a set key.
#[derive(Clone, Debug)]
pub struct Set {
    table: Table<()>,
    /// Only integers so far, and few. Once false it stays so, as in Redis.
    integers: bool,
    journal: Option<Box<Journal>>,
}

impl Default for Set {
    fn default() -> Self {
        Self {
            table: Table::default(),
            integers: true,
            journal: None,
        }
    }
}

/// Whether `text` is how an `i64` is written: what Redis would keep in an `intset`.
fn is_integer(text: &[u8]) -> bool {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] => false,
        [b'0'] => !negative,
        [b'0', ..] => false,
        _ if digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) => false,
        _ => {
            let number = digits
                .iter()
                .fold(0u128, |sum, d| sum * 10 + u128::from(d - b'0'));
            number <= i64::MAX as u128 + u128::from(negative)
        }
    }
}

impl Set {
    /// An empty set with room for `capacity` members.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            table: Table::with_capacity(capacity),
            ..Self::default()
        }
    }

    /// How many members there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none. A set that became empty must be deleted by its holder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether `member` is in the set.
    #[must_use]
    pub fn contains(&self, member: &[u8]) -> bool {
        self.table.contains(member)
    }

    /// The member at a place in the order.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    #[must_use]
    pub fn at(&self, at: usize) -> &[u8] {
        self.table.at(at).0
    }

    /// Whether it has only ever held integers.
    pub(crate) const fn is_of_integers(&self) -> bool {
        self.integers
    }

    /// Makes it again what it was.
    pub(crate) const fn set_of_integers(&mut self, integers: bool) {
        self.integers = integers;
    }

    /// All members in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.table.iter().map(|(member, ())| member)
    }

    /// A part of the members, and the cursor of the next part (0 at the end). A collection that
    /// Redis keeps compact is returned whole.
    pub fn walk(
        &self,
        walk: Walk,
    ) -> (
        impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator,
        u64,
    ) {
        let (range, next) = if self.integers {
            (0..self.len(), 0)
        } else {
            walk.piece(self.len())
        };
        (self.table.range(range).map(|(member, ())| member), next)
    }

    /// Adds a member; says whether it is new.
    pub fn add(&mut self, member: &[u8]) -> bool {
        let new = !self.table.contains(member);
        if new {
            self.table.push(member, ());
            if let Some(journal) = &mut self.journal {
                journal.added(member);
            }
            self.integers = self.integers && self.table.len() <= INTEGERS_MAX && is_integer(member);
        }
        new
    }

    /// Removes a member; says whether it was there.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let at = self.table.position(member);
        if let Some(at) = at {
            self.remove_at(at);
        }
        at.is_some()
    }

    /// Takes out the member at a place. The last member, if it is another one, moves there.
    ///
    /// # Panics
    /// When `at` is not below [`Self::len`].
    pub fn remove_at(&mut self, at: usize) -> Box<[u8]> {
        let (member, ()) = self.table.swap_remove(at);
        if let Some(journal) = &mut self.journal {
            journal.removed(at, &member, &[]);
        }
        member
    }

    /// The name that OBJECT ENCODING gives to a set like this.
    #[must_use]
    pub const fn encoding(&self) -> &'static str {
        if self.integers { "intset" } else { "hashtable" }
    }

    /// Estimated bytes. It follows from the content alone, so all replicas agree.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Frees up to `count` elements of a detached value.
    pub(crate) fn free_last(&mut self, count: usize) {
        self.table.free_last(count);
    }

    /// Appends everything, order included, to `out`.
    pub fn serialize(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.integers));
        put_number(out, self.len() as u64);
        for member in self.iter() {
            put_bytes(out, member);
        }
    }

    /// Reads what [`Self::serialize`] wrote.
    ///
    /// # Errors
    /// When the bytes cannot be what it wrote.
    pub fn deserialize(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let integers = match reader.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed("unknown kind of set")),
        };
        let count = reader.count(1)?;
        let mut set = Self {
            table: Table::with_capacity(reader.room_for(count, Table::<()>::ENTRY_BYTES)),
            integers,
            journal: None,
        };
        for _ in 0..count {
            if !set.add(reader.bytes()?) {
                return Err(Malformed("a member stands twice in a set"));
            }
        }
        if set.integers == integers {
            Ok(set)
        } else {
            Err(Malformed("a set is wrongly called one of integers"))
        }
    }
}

impl Journaled for Set {
    const ELEMENT_MEMORY: usize = ENTRY_OVERHEAD;

    fn journal(&mut self) -> &mut Option<Box<Journal>> {
        &mut self.journal
    }

    fn extent(&self) -> (usize, usize) {
        (self.len(), self.memory())
    }

    fn undo(&mut self, step: Step<'_>) -> Result<(), Malformed> {
        match step {
            Step::Added { name } if self.table.last() == Some(name) => {
                self.remove(name);
            }
            Step::Removed { place, name, value } => {
                if place > self.len() || self.contains(name) || !value.is_empty() {
                    return Err(IMPOSSIBLE);
                }
                self.table.swap_insert(place, name, ());
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
    use std::collections::BTreeSet;

    fn bytes_of(set: &Set) -> Vec<u8> {
        let mut out = Vec::new();
        set.serialize(&mut out);
        out
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_and_comes_back(
            operations in prop::collection::vec((0u8..4, 0u16..50, any::<u16>()), 1..300),
        ) {
            let mut set = Set::default();
            let mut model = BTreeSet::new();
            for (kind, member, chance) in operations {
                let member = format!("{member}").into_bytes();
                match kind {
                    0 | 1 => prop_assert_eq!(set.add(&member), model.insert(member)),
                    2 => prop_assert_eq!(set.remove(&member), model.remove(&member)),
                    _ if !set.is_empty() => {
                        let popped = set.remove_at(usize::from(chance) % set.len());
                        prop_assert!(model.remove(&*popped));
                    }
                    _ => {}
                }
                prop_assert_eq!(set.len(), model.len());
            }
            let seen: BTreeSet<Vec<u8>> = set.iter().map(<[u8]>::to_vec).collect();
            prop_assert_eq!(&seen, &model);
            for member in &model {
                prop_assert!(set.contains(member));
            }
            if !set.is_empty() {
                let bytes = bytes_of(&set);
                let restored = Set::deserialize(&mut Reader::new(&bytes)).unwrap();
                prop_assert_eq!(bytes_of(&restored), bytes);
                prop_assert_eq!(restored.memory(), set.memory());
            }
        }

        #[test]
        fn integers_are_told_as_parsing_does(text in "-?[0-9]{1,20}") {
            let expected = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
            prop_assert_eq!(is_integer(text.as_bytes()), expected);
        }

        #[test]
        fn bad_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Set::deserialize(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn integers_at_the_edge() {
        for text in ["0", "-1", "9223372036854775807", "-9223372036854775808"] {
            assert!(is_integer(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "-",
            "-0",
            "01",
            "+1",
            "9223372036854775808",
            "-9223372036854775809",
            "1 ",
        ] {
            assert!(!is_integer(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn encoding_is_that_of_redis_and_stays() {
        let mut set = Set::default();
        for member in 0..512 {
            set.add(member.to_string().as_bytes());
        }
        assert_eq!(set.encoding(), "intset");
        set.add(b"512");
        assert_eq!(set.encoding(), "hashtable");
        set.remove(b"512");
        assert_eq!(set.encoding(), "hashtable");
        let mut words = Set::default();
        words.add(b"word");
        assert_eq!(words.encoding(), "hashtable");
    }

    #[test]
    fn double_member_is_refused() {
        let mut out = vec![0];
        put_number(&mut out, 2);
        put_bytes(&mut out, b"a");
        put_bytes(&mut out, b"a");
        assert!(Set::deserialize(&mut Reader::new(&out)).is_err());
    }
}
