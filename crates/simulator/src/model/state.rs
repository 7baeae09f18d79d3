//! A key's state, and what an act makes of it.

use super::{Act, Answer, Count, Only};
use foldhash::quality::FixedState;
use quintet_replica::Bytes;
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hash},
    sync::Arc,
};

/// A key's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    #[default]
    Missing,
    Text(Bytes),
    List(Arc<Vec<Bytes>>),
    Fields(Arc<BTreeMap<Bytes, Bytes>>),
    Members(Arc<BTreeSet<Bytes>>),
}

/// A transaction's interest in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Watcher {
    transaction: u32,
    /// The key was missing when it was watched.
    was_missing: bool,
    /// Something changed it since.
    touched: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct KeyState {
    pub value: Value,
    /// It has a deadline: it may be gone at any time.
    pub volatile: bool,
    watchers: SmallVec<[Watcher; 1]>,
}

/// Whether the keys that a transaction watched have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Fresh,
    Changed,
    /// Missing when watched and missing now, although it was there in between: the number of a
    /// version that does not exist may count as a change or not.
    Either,
}

impl KeyState {
    /// A hash of the state as key `key`.
    pub fn hash(&self, key: u32) -> u128 {
        let one = |seed: u64| FixedState::with_seed(seed).hash_one((key, self));
        if *self == Self::default() {
            return 0;
        }
        u128::from(one(3)) << 64 | u128::from(one(17))
    }

    /// About how many bytes its value takes.
    pub fn bytes(&self) -> usize {
        const EACH: usize = 48;
        match &self.value {
            Value::Missing => 0,
            Value::Text(text) => text.len(),
            Value::List(values) => EACH * values.len(),
            Value::Fields(fields) => 2 * EACH * fields.len(),
            Value::Members(members) => EACH * members.len(),
        }
    }

    /// The deadline passes.
    pub fn expire(&mut self) {
        self.value = Value::Missing;
        self.touch();
    }

    fn touch(&mut self) {
        for watcher in &mut self.watchers {
            watcher.touched = true;
        }
        if self.value == Value::Missing {
            self.volatile = false;
        }
    }

    pub fn watch(&mut self, transaction: u32) {
        let was_missing = self.value == Value::Missing;
        self.watchers.push(Watcher {
            transaction,
            was_missing,
            touched: false,
        });
    }

    /// The transaction looks whether the key has changed, and stops watching it.
    pub fn unwatch(&mut self, transaction: u32) -> Watched {
        let mut watched = Watched::Fresh;
        let missing = self.value == Value::Missing;
        self.watchers.retain(|watcher| {
            if watcher.transaction != transaction {
                return true;
            }
            match (watcher.touched, watcher.was_missing && missing) {
                (true, false) => watched = Watched::Changed,
                (true, true) if watched == Watched::Fresh => watched = Watched::Either,
                _ => {}
            }
            false
        });
        watched
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

fn wrong_type() -> Answer {
    Answer::Error(WRONG_TYPE.to_owned())
}

fn not_a_number() -> Answer {
    Answer::Error("ERR value is not an integer or out of range".to_owned())
}

fn number(count: usize) -> Answer {
    Answer::Number(i64::try_from(count).unwrap_or(i64::MAX))
}

fn yes(it_is: bool) -> Answer {
    Answer::Number(i64::from(it_is))
}

/// A number exactly as Redis takes it: no sign but a minus, no leading zero, no blank.
fn integer(text: &[u8]) -> Option<i64> {
    let parsed: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (parsed.to_string().as_bytes() == text).then_some(parsed)
}

fn optional(text: Option<&Bytes>) -> Answer {
    text.map_or(Answer::Nil, |text| Answer::Text(text.clone()))
}

fn list<'a>(texts: impl Iterator<Item = &'a Bytes>) -> Answer {
    Answer::List(texts.map(|text| Answer::Text(text.clone())).collect())
}

/// The half-open range of indices that LRANGE means.
fn range(length: usize, from: i64, to: i64) -> std::ops::Range<usize> {
    let length = length as i64;
    let place = |at: i64| if at < 0 { (length + at).max(0) } else { at };
    let (from, to) = (
        place(from),
        if to < 0 {
            length + to
        } else {
            to.min(length - 1)
        },
    );
    match from <= to {
        true => from as usize..to as usize + 1,
        false => 0..0,
    }
}

/// Carries out `act` and gives the answer. An act that is answered with an error changes nothing.
pub(crate) fn apply(state: &mut KeyState, act: &Act) -> Answer {
    let (answer, changed) = change(state, act);
    if changed {
        state.touch();
    }
    answer
}

/// The answer, and whether the key counts as changed.
fn change(state: &mut KeyState, act: &Act) -> (Answer, bool) {
    match act {
        Act::Get
        | Act::StringLength
        | Act::Set { .. }
        | Act::CompareAndSet { .. }
        | Act::GetDelete
        | Act::Append(_)
        | Act::Add(_) => change_text(state, act),
        Act::Exists => (yes(state.value != Value::Missing), false),
        Act::Kind => {
            let kind: &[u8] = match state.value {
                Value::Missing => b"none",
                Value::Text(_) => b"string",
                Value::List(_) => b"list",
                Value::Fields(_) => b"hash",
                Value::Members(_) => b"set",
            };
            (Answer::text(kind), false)
        }
        // Seconds and milliseconds left are anybody's guess; that there is a deadline is not.
        Act::Ttl => {
            let left = match (&state.value, state.volatile) {
                (Value::Missing, _) => -2,
                (_, false) => -1,
                (_, true) => 0,
            };
            (Answer::Number(left), false)
        }
        Act::Delete => {
            let there = state.value != Value::Missing;
            state.value = Value::Missing;
            (yes(there), there)
        }
        Act::Expire => {
            let there = state.value != Value::Missing;
            state.volatile |= there;
            (yes(there), there)
        }
        Act::Persist => {
            let had = std::mem::take(&mut state.volatile);
            (yes(had), had)
        }
        Act::Watch => (Answer::ok(), false),
        Act::HashSet(_)
        | Act::HashSetMissing(..)
        | Act::HashGet(_)
        | Act::HashDelete(_)
        | Act::HashLength
        | Act::HashExists(_)
        | Act::HashGetAll
        | Act::HashAdd(..) => change_fields(state, act),
        Act::Push { .. }
        | Act::Pop { .. }
        | Act::ListLength
        | Act::ListDigest
        | Act::ListRange(..)
        | Act::ListIndex(_) => change_list(state, act),
        Act::SetAdd(_) | Act::SetRemove(_) | Act::SetMembers | Act::SetHas(_) | Act::SetSize => {
            change_members(state, act)
        }
    }
}

fn change_text(state: &mut KeyState, act: &Act) -> (Answer, bool) {
    if let Act::Set {
        value,
        only,
        count,
        expires,
    } = act
    {
        return set(state, value, *only, *count, *expires);
    }
    let text = match &state.value {
        Value::Missing => None,
        Value::Text(text) => Some(text.clone()),
        _ => return (wrong_type(), false),
    };
    match act {
        Act::Get => (optional(text.as_ref()), false),
        Act::StringLength => (number(text.map_or(0, |text| text.len())), false),
        Act::CompareAndSet { expected, new } => {
            let holds = text.as_ref() == Some(expected);
            if holds {
                state.value = Value::Text(new.clone());
            }
            (yes(holds), holds)
        }
        Act::GetDelete => {
            let there = text.is_some();
            state.value = Value::Missing;
            (optional(text.as_ref()), there)
        }
        Act::Append(more) => {
            let mut whole = text.unwrap_or_default().to_vec();
            whole.extend_from_slice(more);
            let length = whole.len();
            // Appending nothing to nothing makes an empty string, in Redis too.
            state.value = Value::Text(whole.into());
            (number(length), true)
        }
        Act::Add(by) => {
            let before = text.as_ref().map_or(Some(0), |text| integer(text));
            match before.map(|before| before.checked_add(*by)) {
                None => (not_a_number(), false),
                Some(None) => {
                    let text = "ERR increment or decrement would overflow".to_owned();
                    (Answer::Error(text), false)
                }
                Some(Some(sum)) => {
                    state.value = Value::Text(sum.to_string().into());
                    (Answer::Number(sum), true)
                }
            }
        }
        _ => unreachable!("the caller sent texts here"),
    }
}

fn set(
    state: &mut KeyState,
    value: &Bytes,
    only: Only,
    count: Count,
    expires: Option<bool>,
) -> (Answer, bool) {
    let there = state.value != Value::Missing;
    let before = match (&state.value, count) {
        (Value::Text(text), _) => Answer::Text(text.clone()),
        (Value::Missing, _) => Answer::Nil,
        (_, Count::Before) => return (wrong_type(), false),
        _ => Answer::Nil,
    };
    let writes = match only {
        Only::Always => true,
        Only::IfMissing => !there,
        Only::IfPresent => there,
    };
    if writes {
        state.value = Value::Text(value.clone());
        state.volatile = expires.unwrap_or(state.volatile);
    }
    let answer = match count {
        Count::Before => before,
        Count::Done => yes(writes),
        Count::OkOrNil if writes => Answer::ok(),
        Count::OkOrNil => Answer::Nil,
    };
    (answer, writes)
}

fn change_fields(state: &mut KeyState, act: &Act) -> (Answer, bool) {
    let mut fields = match &state.value {
        Value::Missing => Arc::default(),
        Value::Fields(fields) => fields.clone(),
        _ => return (wrong_type(), false),
    };
    let (answer, changed) = match act {
        Act::HashGet(field) => (optional(fields.get(field)), false),
        Act::HashLength => (number(fields.len()), false),
        Act::HashExists(field) => (yes(fields.contains_key(field)), false),
        Act::HashGetAll => {
            // Fields come in no order; the recording sorts them, and so does the parser.
            (
                list(fields.iter().flat_map(|(field, value)| [field, value])),
                false,
            )
        }
        Act::HashSet(pairs) => {
            let fields = Arc::make_mut(&mut fields);
            let mut new = 0;
            for (field, value) in pairs {
                new += usize::from(fields.insert(field.clone(), value.clone()).is_none());
            }
            (number(new), true)
        }
        Act::HashSetMissing(field, value) => {
            let new = !fields.contains_key(field);
            if new {
                Arc::make_mut(&mut fields).insert(field.clone(), value.clone());
            }
            (yes(new), new)
        }
        Act::HashDelete(names) => {
            let fields = Arc::make_mut(&mut fields);
            let gone = names
                .iter()
                .filter(|name| fields.remove(*name).is_some())
                .count();
            (number(gone), gone > 0)
        }
        Act::HashAdd(field, by) => {
            let before = fields.get(field).map_or(Some(0), |text| integer(text));
            let Some(sum) = before.and_then(|before| before.checked_add(*by)) else {
                return (
                    Answer::Error("ERR hash value is not an integer".to_owned()),
                    false,
                );
            };
            Arc::make_mut(&mut fields).insert(field.clone(), sum.to_string().into());
            (Answer::Number(sum), true)
        }
        _ => unreachable!("the caller sent hashes here"),
    };
    if changed {
        state.value = match fields.is_empty() {
            true => Value::Missing,
            false => Value::Fields(fields),
        };
    }
    (answer, changed)
}

fn change_list(state: &mut KeyState, act: &Act) -> (Answer, bool) {
    let mut values = match &state.value {
        Value::Missing => Arc::default(),
        Value::List(values) => values.clone(),
        _ => return (wrong_type(), false),
    };
    let (answer, changed) = match act {
        Act::ListLength => (number(values.len()), false),
        Act::ListDigest => {
            let each = values
                .iter()
                .map(|value| integer(value).unwrap_or_default() as u64);
            let digest = each.fold(0, crate::machine::mix) as i64;
            let answers = vec![number(values.len()), Answer::Number(digest)];
            (Answer::List(answers), false)
        }
        Act::ListRange(from, to) => (list(values[range(values.len(), *from, *to)].iter()), false),
        Act::ListIndex(at) => {
            let at = if *at < 0 {
                *at + values.len() as i64
            } else {
                *at
            };
            let found = usize::try_from(at).ok().and_then(|at| values.get(at));
            (optional(found), false)
        }
        Act::Push { front, values: new } => {
            let values = Arc::make_mut(&mut values);
            match front {
                true => drop(values.splice(0..0, new.iter().rev().cloned())),
                false => values.extend(new.iter().cloned()),
            }
            (number(values.len()), true)
        }
        Act::Pop { front } => {
            if values.is_empty() {
                return (Answer::Nil, false);
            }
            let values = Arc::make_mut(&mut values);
            let popped = if *front {
                Some(values.remove(0))
            } else {
                values.pop()
            };
            (optional(popped.as_ref()), true)
        }
        _ => unreachable!("the caller sent lists here"),
    };
    if changed {
        state.value = match values.is_empty() {
            true => Value::Missing,
            false => Value::List(values),
        };
    }
    (answer, changed)
}

fn change_members(state: &mut KeyState, act: &Act) -> (Answer, bool) {
    let mut members = match &state.value {
        Value::Missing => Arc::default(),
        Value::Members(members) => members.clone(),
        _ => return (wrong_type(), false),
    };
    let (answer, changed) = match act {
        Act::SetMembers => (list(members.iter()), false),
        Act::SetHas(member) => (yes(members.contains(member)), false),
        Act::SetSize => (number(members.len()), false),
        Act::SetAdd(new) => {
            let members = Arc::make_mut(&mut members);
            let added = new
                .iter()
                .filter(|member| members.insert((*member).clone()))
                .count();
            (number(added), added > 0)
        }
        Act::SetRemove(old) => {
            let members = Arc::make_mut(&mut members);
            let removed = old.iter().filter(|member| members.remove(*member)).count();
            (number(removed), removed > 0)
        }
        _ => unreachable!("the caller sent sets here"),
    };
    if changed {
        state.value = match members.is_empty() {
            true => Value::Missing,
            false => Value::Members(members),
        };
    }
    (answer, changed)
}
