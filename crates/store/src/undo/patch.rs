//! Collections that are kept by the steps that undo their changes.
//!
//! ```text
//!   records of k     patch 1 │ patch 2 │ patch 3 │ value        present: k
//!   k at t before 2  ◄──────── undo 2 ◄─ undo 3 ◄─ copy         else a copy of what it holds now
//!
//!   one field of it  patch 2, patch 3, …: the first that names the field tells its value then
//! ```

use super::{KINDS, Then, kind_name};
use crate::keyspace::{Entry, Keyspace, NEVER};
use crate::types::hash::Hash;
use crate::types::journal::{Step, Steps};
use crate::types::list::List;
use crate::types::set::Set;
use crate::types::sorted_set::{SortedSet, score_of};
use crate::types::wire::{Malformed, Reader, put_number};
use crate::value::{Stored, Value};

/// One change of a collection in steps, and the collection before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Patch<'a> {
    /// When it would have expired.
    pub expire_at: u64,
    /// Its type.
    pub kind: u8,
    /// How OBJECT ENCODING called it.
    pub flag: bool,
    /// How many there were.
    pub elements: u64,
    /// Bytes of earlier records of the key since its last copy.
    pub since: u64,
    /// The steps that were taken.
    pub steps: &'a [u8],
}

impl<'a> Patch<'a> {
    /// Appends all but the steps.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.expire_at.to_le_bytes());
        out.extend_from_slice(&[self.kind, u8::from(self.flag)]);
        put_number(out, self.elements);
        put_number(out, self.since);
    }

    pub fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            expire_at: super::eight(reader.take(8)?, 0),
            kind: reader.byte()?,
            flag: reader.byte()? != 0,
            elements: reader.number()?,
            since: reader.number()?,
            steps: reader.rest(),
        })
    }

    /// # Errors
    /// When it cannot be of any collection.
    pub fn check(&self) -> Result<(), Malformed> {
        if empty(self.kind).is_none() || self.since >= 1 << 62 {
            return Err(Malformed("steps of no collection"));
        }
        self.steps().try_for_each(|step| step.map(drop))
    }

    fn steps(&self) -> Steps<'a> {
        Steps::new(self.steps)
    }

    /// Whether the steps tell of this element: then its value before them, if it was there.
    fn value_of(&self, field: &[u8]) -> Option<Option<&'a [u8]>> {
        self.steps()
            .map_while(Result::ok)
            .find_map(|step| match step {
                Step::Added { name } if name == field => Some(None),
                Step::Changed { name, value } | Step::Removed { name, value, .. }
                    if name == field =>
                {
                    Some(Some(value))
                }
                _ => None,
            })
    }
}

/// An empty collection of this type.
fn empty(kind: u8) -> Option<Value> {
    Some(match *KINDS.get(usize::from(kind))? {
        "hash" => Hash::default().into_value(),
        "list" => List::default().into_value(),
        "set" => Set::default().into_value(),
        "zset" => SortedSet::default().into_value(),
        _ => return None,
    })
}

/// Why a value cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTold {
    /// It was not kept: of this type, with this number of elements, or bytes.
    Large { kind: &'static str, elements: u64 },
    /// It takes too much to make it again.
    TooMuch { kind: &'static str, elements: u64 },
}

/// The means to make the value of a key again: its changes in steps from then on, the oldest
/// first, and the value behind them.
#[derive(Debug)]
pub(crate) struct Lookback<'a> {
    pub patches: Vec<Patch<'a>>,
    pub base: Then<'a>,
}

impl Lookback<'_> {
    fn not_told(&self, is_large: bool) -> NotTold {
        let (kind, elements) = match (self.patches.first(), &self.base) {
            (Some(patch), _) => (kind_name(patch.kind), patch.elements),
            (None, Then::Large { kind, elements }) => (kind_name(*kind), *elements),
            (None, Then::Value { bytes, .. }) => Value::serialized_kind(bytes),
            _ => ("none", 0),
        };
        match is_large {
            true => NotTold::Large { kind, elements },
            false => NotTold::TooMuch { kind, elements },
        }
    }

    /// The value, of up to this number of bytes about.
    ///
    /// # Errors
    /// When it is not known, or has more.
    pub fn entry(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        bytes_left: &mut usize,
    ) -> Result<Option<Entry>, NotTold> {
        let mut count = |bytes: usize| {
            let left = bytes_left.checked_sub(bytes);
            *bytes_left = left.unwrap_or(0);
            left.map(drop).ok_or_else(|| self.not_told(false))
        };
        let steps = self.patches.iter().map(|patch| patch.steps.len());
        count(steps.sum())?;
        let mut expires = NEVER;
        let mut value = match self.base {
            Then::Absent => return Ok(None),
            Then::Now { database } => match keyspace.database(database).held(key) {
                None => return Ok(None),
                Some(entry) => {
                    count(entry.value.memory())?;
                    expires = entry.expire_at;
                    entry.value.clone()
                }
            },
            Then::Value { expire_at, bytes } => {
                count(bytes.len())?;
                expires = expire_at;
                // It was checked when it was kept, or restored.
                Value::deserialize(bytes).map_err(|_| self.not_told(true))?
            }
            Then::Empty { kind } => empty(kind).ok_or_else(|| self.not_told(true))?,
            Then::Large { .. } | Then::Patch(_) => return Err(self.not_told(true)),
        };
        for patch in self.patches.iter().rev() {
            let undone = value.undo(patch.steps(), patch.flag);
            undone.map_err(|_| self.not_told(true))?;
            expires = patch.expire_at;
        }
        Ok(Some(Entry::past(key, value, expires)))
    }

    /// A collection with these elements only, as far as they were in it: no more is made again.
    ///
    /// # Errors
    /// When that is not known.
    pub fn fields(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        fields: &[&[u8]],
        bytes_left: &mut usize,
    ) -> Result<Option<Entry>, NotTold> {
        let (Some(first), Then::Now { database }) = (self.patches.first(), &self.base) else {
            return self.entry(keyspace, key, bytes_left);
        };
        let mut value = empty(first.kind).ok_or_else(|| self.not_told(true))?;
        let now = keyspace.database(*database).held(key);
        for field in fields {
            let told = self.patches.iter().find_map(|patch| patch.value_of(field));
            match (&mut value, now.map(|entry| &entry.value)) {
                (Value::Hash(then), Some(Value::Hash(now))) => {
                    if let Some(value) = told.unwrap_or_else(|| now.get(field)) {
                        then.set(field, value);
                    }
                }
                (Value::Set(then), Some(Value::Set(now))) => {
                    if told.map_or_else(|| now.contains(field), |told| told.is_some()) {
                        then.add(field);
                    }
                }
                (Value::SortedSet(then), Some(Value::SortedSet(now))) => {
                    let score = match told {
                        Some(value) => value.and_then(score_of),
                        None => now.score(field),
                    };
                    if let Some(score) = score {
                        then.add_exact(field, score);
                    }
                }
                _ => return self.entry(keyspace, key, bytes_left),
            }
        }
        Ok(Some(Entry::past(key, value, first.expire_at)))
    }
}
