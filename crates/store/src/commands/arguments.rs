//! Arguments and steps that commands of several collections share.

use crate::error::CommandError;
use crate::keyspace::Keys;
use crate::numbers::integer_of;
use crate::options::StoreOptions;
use crate::random::Random;
use crate::reply::Reply;
use crate::types::table::{Walk, hasher};
use crate::value::{Stored, Value};
use core::ops::Range;
use hashbrown::HashSet;

/// Redis's words for a count that must not be negative.
pub(super) const MUST_BE_POSITIVE: &str = "ERR value is out of range, must be positive";

/// Redis's words for a list of keys that must not be empty.
pub(super) const KEYS_MISSING: &str = "ERR numkeys should be greater than 0";

/// Whether an argument is this word, in any mixture of cases.
pub(crate) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// A whole number in a range; whatever else it is, the answer is `text`.
pub(super) fn integer_in(
    argument: &[u8],
    range: core::ops::RangeInclusive<i64>,
    text: &'static str,
) -> Result<i64, CommandError> {
    integer_of(argument)
        .filter(|number| range.contains(number))
        .ok_or(CommandError::Text(text))
}

/// A count of 0 or more.
pub(super) fn count_of(argument: &[u8], text: &'static str) -> Result<usize, CommandError> {
    let count = integer_in(argument, 0..=i64::MAX, text)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// A count of 1 or more.
pub(super) fn count_above_zero(argument: &[u8], text: &'static str) -> Result<usize, CommandError> {
    let count = integer_in(argument, 1..=i64::MAX, text)?;
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// How many random elements are asked for: a negative number allows repetition.
pub(crate) fn signed_count(argument: &[u8]) -> Result<i64, CommandError> {
    match integer_of(argument) {
        None => Err(CommandError::NotInteger),
        Some(i64::MIN) => Err(CommandError::Owned(format!(
            "ERR value is out of range, value must between {} and {}",
            -i64::MAX,
            i64::MAX
        ))),
        Some(count) => Ok(count),
    }
}

/// As [`signed_count`], for elements that come in pairs.
pub(crate) fn signed_count_of_pairs(argument: &[u8]) -> Result<i64, CommandError> {
    let count = signed_count(argument)?;
    if count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(CommandError::Text("ERR value is out of range"));
    }
    Ok(count)
}

/// The places from `start` to `end`, both included and negative ones counted from the end, in a
/// sequence of `len`.
pub(super) fn places(start: i64, end: i64, len: usize) -> Range<usize> {
    let len = len as i64;
    let from_end = |place: i64| {
        if place < 0 {
            place.saturating_add(len)
        } else {
            place
        }
    };
    let start = from_end(start).max(0);
    let end = from_end(end).min(len - 1);
    if start > end {
        0..0
    } else {
        start as usize..end as usize + 1
    }
}

/// The place `index`, a negative one counted from the end, in a sequence of `len`.
pub(super) fn place(index: i64, len: usize) -> Option<usize> {
    let place = if index < 0 {
        index.checked_add(len as i64)?
    } else {
        index
    };
    usize::try_from(place).ok().filter(|place| *place < len)
}

/// Refuses a reply with `elements` that would be too large, before what it tells of has been taken
/// out: an answer that only says so afterwards would lose them.
pub(super) fn check_reply<'e>(
    options: &StoreOptions,
    elements: impl Iterator<Item = &'e [u8]>,
) -> Result<(), CommandError> {
    // More than the head of a string, and a score behind it, can take.
    const HEAD: usize = 64;
    check_reply_len(options, elements.map(|element| element.len() + HEAD).sum())
}

/// Refuses a reply of that many bytes before it is made, if it would be too large.
pub(super) fn check_reply_len(options: &StoreOptions, bytes: usize) -> Result<(), CommandError> {
    if bytes > options.max_reply_bytes {
        return Err(CommandError::Owned(format!(
            "ERR reply exceeds what limits.value_bytes_max allows ({})",
            options.max_reply_bytes
        )));
    }
    Ok(())
}

/// The value of a key, whatever its type, while other values are looked at as well.
pub(super) fn peek_value<'k>(keys: &'k Keys<'_>, key: &[u8]) -> Option<&'k Value> {
    let database = keys.keyspace.database(keys.database);
    database.get(key, keys.now).map(|entry| &entry.value)
}

/// The value of a key while other values are looked at as well.
pub(super) fn peek<'k, T: Stored>(
    keys: &'k Keys<'_>,
    key: &[u8],
) -> Result<Option<&'k T>, CommandError> {
    match peek_value(keys, key) {
        None => Ok(None),
        Some(value) => T::of(value).map(Some).ok_or(CommandError::WrongType),
    }
}

/// The arguments of SSCAN, HSCAN and ZSCAN.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    /// Where to continue, and how far.
    pub(super) walk: Walk,
    /// Only what matches this.
    pub(super) pattern: Option<&'a [u8]>,
}

/// Reads a cursor as C's `strtoul` does, but without blanks.
pub(super) fn cursor_of(argument: &[u8]) -> Result<u64, CommandError> {
    const INVALID: CommandError = CommandError::Text("ERR invalid cursor");
    let (negative, digits) = match argument {
        [] => return Ok(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return Err(INVALID);
    }
    let mut cursor = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(INVALID);
        }
        cursor = cursor
            .checked_mul(10)
            .and_then(|cursor| cursor.checked_add(u64::from(digit - b'0')))
            .ok_or(INVALID)?;
    }
    Ok(if negative {
        cursor.wrapping_neg()
    } else {
        cursor
    })
}

/// Reads the options behind the cursor.
pub(super) fn scan_options<'a>(cursor: u64, args: &[&'a [u8]]) -> Result<Scan<'a>, CommandError> {
    let mut scan = Scan {
        walk: Walk { cursor, count: 10 },
        pattern: None,
    };
    for option in args.chunks(2) {
        match option {
            [name, count] if is(name, "count") => {
                let count = integer_of(count).ok_or(CommandError::NotInteger)?;
                if count < 1 {
                    return Err(CommandError::Syntax);
                }
                scan.walk.count = usize::try_from(count).unwrap_or(usize::MAX);
            }
            [name, pattern] if is(name, "match") => {
                scan.pattern = (*pattern != b"*").then_some(pattern);
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    Ok(scan)
}

/// Answers a scan of a collection that is not there.
pub(super) fn reply_nothing_scanned(reply: &mut Reply<'_>) {
    reply.bulk(b"0");
    reply.array(0);
}

/// Answers a scan: where to continue, then what `emit` appends for each item. It says how many
/// elements those were.
pub(super) fn reply_scanned<T>(
    reply: &mut Reply<'_>,
    next: u64,
    items: impl Iterator<Item = T>,
    mut emit: impl FnMut(&mut Reply<'_>, T) -> usize,
) {
    reply.bulk_integer(next as i64);
    let begun = reply.begin_array();
    let mut len = 0;
    for item in items {
        len += emit(reply, item);
    }
    reply.end_array(begun, len);
}

/// `count` different places below `len`, in a random order; all of them when `count` is as much.
pub(super) fn sample(random: &mut Random, len: usize, count: usize) -> Vec<usize> {
    if count.saturating_mul(3) > len {
        let count = count.min(len);
        let mut all: Vec<usize> = (0..len).collect();
        for chosen in 0..count {
            all.swap(chosen, chosen + random.below(len - chosen));
        }
        all.truncate(count);
        return all;
    }
    let mut chosen = Vec::with_capacity(count);
    // Only asked, never iterated: its order cannot reach a reply.
    let mut seen = HashSet::with_capacity_and_hasher(count, hasher());
    while chosen.len() < count {
        let place = random.below(len);
        if seen.insert(place) {
            chosen.push(place);
        }
    }
    chosen
}

/// The places below `len` that a command with a count chooses: that many different ones, or any
/// that many if it is negative.
pub(super) fn random_places(random: &mut Random, len: usize, count: i64) -> RandomPlaces<'_> {
    let left = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 && len > 0 {
        return RandomPlaces::Repeated { random, len, left };
    }
    let chosen = if left >= len {
        (0..len).collect()
    } else {
        sample(random, len, left)
    };
    RandomPlaces::Chosen(chosen.into_iter())
}

/// See [`random_places`].
#[derive(Debug)]
pub(super) enum RandomPlaces<'a> {
    /// Drawn one by one: there may be very many.
    Repeated {
        /// Where they come from.
        random: &'a mut Random,
        /// Their types in the storage below.
        len: usize,
        /// How many are still to come.
        left: usize,
    },
    /// Different ones.
    Chosen(std::vec::IntoIter<usize>),
}

impl Iterator for RandomPlaces<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match self {
            Self::Repeated { random, len, left } => {
                *left = left.checked_sub(1)?;
                Some(random.below(*len))
            }
            Self::Chosen(places) => places.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match self {
            Self::Repeated { left, .. } => *left,
            Self::Chosen(places) => places.len(),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for RandomPlaces<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn places_are_cut_to_the_sequence() {
        assert_eq!(places(0, -1, 5), 0..5);
        assert_eq!(places(-3, -2, 5), 2..4);
        assert_eq!(places(-100, 100, 5), 0..5);
        assert_eq!(places(3, 1, 5), 0..0);
        assert_eq!(places(5, 9, 5), 0..0);
        assert_eq!(places(i64::MIN, i64::MAX, 5), 0..5);
        assert_eq!(places(0, -1, 0), 0..0);
        assert_eq!(places(i64::MAX, i64::MIN, 3), 0..0);
        assert_eq!(place(-1, 3), Some(2));
        assert_eq!(place(-4, 3), None);
        assert_eq!(place(3, 3), None);
        assert_eq!(place(i64::MIN, 3), None);
    }

    #[test]
    fn cursors_are_read_as_redis_reads_them() {
        assert_eq!(cursor_of(b"17"), Ok(17));
        assert_eq!(cursor_of(b"-1"), Ok(u64::MAX));
        assert_eq!(cursor_of(b"18446744073709551615"), Ok(u64::MAX));
        for bad in ["18446744073709551616", "abc", " 1", "1 ", "-", "+"] {
            assert!(cursor_of(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn samples_differ_and_lie_within() {
        let mut random = Random::new(7);
        for len in 0..60 {
            for count in 0..70 {
                let chosen = sample(&mut random, len, count);
                assert_eq!(chosen.len(), count.min(len));
                assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), chosen.len());
                assert!(chosen.iter().all(|place| *place < len));
            }
        }
    }
}
