//! Collections that are kept by the steps that undo their changes.
//!
//! ```text
//!   records of k     patch 1 │ patch 2 │ patch 3 │ value        present: k
//!   k at t before 2  ◄──────── undo 2 ◄─ undo 3 ◄─ copy         else a copy of what it holds now
//!
//!   one field of it  patch 2, patch 3, …: the first that names the field tells its value then
//! ```

use super::{KINDS, Then};
use crate::keyspace::{Entry, Keyspace, NEVER};
use crate::types::hash::Hash;
use crate::types::journal::{Allowance, NotUndone, Step, Steps};
use crate::types::list::List;
use crate::types::set::Set;
use crate::types::sorted_set::{SortedSet, score_of};
use crate::types::wire::{Malformed, Reader, put_number};
use crate::value::{Stored, Value};

/// [`Patch::since`] does not grow further.
pub(super) const SINCE_MAX: u64 = 1 << 48;
/// A field that is told alone takes about this much memory beside its own bytes.
const FIELD_MEMORY: usize = 128;

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
        if empty(self.kind).is_none() || self.since > SINCE_MAX {
            return Err(Malformed("steps of no collection"));
        }
        Steps::new(self.steps).try_for_each(|step| step.map(drop))
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

/// Where steps tell of an element: its value before them, if it was there.
type Told<'a> = Option<Option<&'a [u8]>>;

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

impl<'a> Lookback<'a> {
    /// The database where the value is the present one, if it has not changed since.
    pub const fn present_in(&self) -> Option<u8> {
        match self.base {
            Then::Now { database } if self.patches.is_empty() => Some(database),
            _ => None,
        }
    }

    /// Why it is not told.
    pub fn not_told(&self, why: NotUndone) -> NotTold {
        let first = self.patches.first().map(|patch| Then::Patch(*patch));
        let first = first.as_ref().unwrap_or(&self.base).kind_and_length();
        let (kind, elements) = first.unwrap_or(("none", 0));
        match why {
            NotUndone::Impossible => NotTold::Large { kind, elements },
            NotUndone::TooMuch => NotTold::TooMuch { kind, elements },
        }
    }

    /// The value.
    ///
    /// # Errors
    /// When it is not known, or more is needed than is allowed.
    pub fn entry(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        allowance: &mut Allowance,
    ) -> Result<Option<Entry>, NotUndone> {
        let allowed = allowance.bytes;
        let (mut value, mut expires) = match self.base {
            Then::Absent => return Ok(None),
            Then::Now { database } => match keyspace.database(database).held(key) {
                None => return Ok(None),
                Some(entry) => {
                    let bytes = match &entry.value {
                        Value::String(string) => string.bytes.len(),
                        collection => collection.memory(),
                    };
                    allowance.take_bytes(bytes)?;
                    allowance.take_copy(bytes)?;
                    allowance.take_steps(entry.value.elements() as u64)?;
                    (entry.value.clone(), entry.expire_at)
                }
            },
            Then::Value { expire_at, bytes } => {
                allowance.take_steps(Value::elements_announced(bytes))?;
                allowance.take_copy(bytes.len())?;
                allowance.take_bytes(Value::memory_announced(bytes))?;
                // It was checked when it was kept, or restored.
                (Value::deserialize(bytes)?, expire_at)
            }
            Then::Empty { kind } => (empty(kind).ok_or(NotUndone::Impossible)?, NEVER),
            Then::Large { .. } | Then::Patch(_) => return Err(NotUndone::Impossible),
        };
        // The value itself may take all that it was allowed.
        allowance.bytes = allowed;
        for patch in self.patches.iter().rev() {
            value.undo(patch.steps, patch.flag, allowance)?;
            expires = patch.expire_at;
        }
        allowance.take_bytes(value.memory())?;
        Ok(Some(Entry::past(key, value, expires)))
    }

    /// A collection with these elements only, as far as they were in it: no more is made again.
    ///
    /// # Errors
    /// When that is not known, or more is needed than is allowed.
    pub fn fields(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        fields: &[&[u8]],
        allowance: &mut Allowance,
    ) -> Result<Option<Entry>, NotUndone> {
        let (Some(first), Then::Now { database }) = (self.patches.first(), &self.base) else {
            return self.entry(keyspace, key, allowance);
        };
        let mut then = empty(first.kind).ok_or(NotUndone::Impossible)?;
        let now = keyspace.database(*database).held(key);
        let Some(now) = now.map(|entry| &entry.value) else {
            return Err(NotUndone::Impossible);
        };
        allowance.take_steps(fields.len() as u64)?;
        for (field, told) in self.told_of(fields, allowance)? {
            let mut count =
                |value: &[u8]| allowance.take_bytes(field.len() + value.len() + FIELD_MEMORY);
            match (&mut then, now) {
                (Value::Hash(then), Value::Hash(now)) => {
                    if let Some(value) = told.unwrap_or_else(|| now.get(field)) {
                        count(value)?;
                        then.set(field, value);
                    }
                }
                (Value::Set(then), Value::Set(now)) => {
                    if told.map_or_else(|| now.contains(field), |told| told.is_some()) {
                        count(&[])?;
                        then.add(field);
                    }
                }
                (Value::SortedSet(then), Value::SortedSet(now)) => {
                    let score = match told {
                        Some(value) => value.and_then(score_of),
                        None => now.score(field),
                    };
                    if let Some(score) = score {
                        count(&[])?;
                        then.add_exact(field, score);
                    }
                }
                _ => return self.entry(keyspace, key, allowance),
            }
        }
        Ok(Some(Entry::past(key, then, first.expire_at)))
    }

    /// Each of these elements once; where steps tell of it, its value before them, if it was there.
    fn told_of<'f>(
        &self,
        fields: &[&'f [u8]],
        allowance: &mut Allowance,
    ) -> Result<Vec<(&'f [u8], Told<'a>)>, NotUndone> {
        let mut all: Vec<_> = fields.iter().map(|field| (*field, None)).collect();
        all.sort_unstable_by_key(|(field, _)| *field);
        all.dedup_by_key(|(field, _)| *field);
        let mut left = all.len();
        for patch in &self.patches {
            for step in Steps::new(patch.steps) {
                if left == 0 {
                    return Ok(all);
                }
                allowance.take_steps(1)?;
                let (name, value) = match step? {
                    Step::Added { name } => (name, None),
                    Step::Changed { name, value } | Step::Removed { name, value, .. } => {
                        (name, Some(value))
                    }
                    _ => continue,
                };
                if let Ok(at) = all.binary_search_by_key(&name, |(field, _)| *field)
                    && all[at].1.is_none()
                {
                    all[at].1 = Some(value);
                    left -= 1;
                }
            }
        }
        Ok(all)
    }
}
