//! SORT and SORT_RO.
//!
//! ```text
//!   elements ──BY──► weights ──► sorted ──LIMIT──► cut ──GET──► reply, or a list (STORE)
//! ```

use crate::commands::arguments::{check_reply, check_reply_len, is};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Expiry;
use crate::numbers::parse_integer;
use crate::options::StoreOptions;
use crate::reply::Reply;
use crate::request::Args;
use crate::types::list::{End, List};
use crate::types::score::parse_score;
use crate::value::{Stored, Value};
use core::cmp::Ordering;

/// The arguments of SORT.
#[derive(Debug)]
struct Sort<'a> {
    descending: bool,
    alphabetical: bool,
    by: Option<&'a [u8]>,
    limit: (i64, i64),
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> Sort<'a> {
    fn parse(mut args: Args<'a>, may_store: bool) -> Result<Self, CommandError> {
        let mut sort = Self {
            descending: false,
            alphabetical: false,
            by: None,
            limit: (0, -1),
            get: Vec::new(),
            store: None,
        };
        while let [option, rest @ ..] = args {
            args = rest;
            if is(option, "asc") {
                sort.descending = false;
            } else if is(option, "desc") {
                sort.descending = true;
            } else if is(option, "alpha") {
                sort.alphabetical = true;
            } else if is(option, "limit")
                && let [start, count, rest @ ..] = args
            {
                sort.limit = (parse_integer(start)?, parse_integer(count)?);
                args = rest;
            } else if let [value, rest @ ..] = args {
                if is(option, "by") {
                    sort.by = Some(value);
                } else if is(option, "get") {
                    sort.get.push(value);
                } else if is(option, "store") && may_store {
                    sort.store = Some(value);
                } else {
                    return Err(CommandError::Syntax);
                }
                args = rest;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(sort)
    }

    /// The elements in their order, cut to the limit.
    fn run<'v>(
        &self,
        source: Option<&'v Value>,
        look_up: &dyn Fn(&[u8]) -> Option<&'v Value>,
    ) -> Result<Vec<&'v [u8]>, CommandError> {
        let unsorted = self.by.is_some_and(|by| !by.contains(&b'*'));
        let (mut elements, keeps_order): (Vec<&[u8]>, bool) = match source {
            None => return Ok(Vec::new()),
            Some(Value::List(list)) => (list.iter().collect(), true),
            Some(Value::Set(set)) => (set.iter().collect(), self.store.is_none()),
            Some(Value::SortedSet(set)) => (
                set.range(0..set.len()).map(|(member, _)| member).collect(),
                true,
            ),
            Some(_) => return Err(CommandError::WrongType),
        };
        if unsorted && keeps_order {
            if self.descending && matches!(source, Some(Value::SortedSet(_))) {
                elements.reverse();
            }
        } else if unsorted {
            // A list made of a set should not depend on how the set came about.
            elements.sort_unstable();
            if self.descending {
                elements.reverse();
            }
        } else {
            elements = self.sorted(elements, look_up)?;
        }
        let len = elements.len() as i64;
        let (start, count) = self.limit;
        let start = start.clamp(0, len);
        let end = if count < 0 {
            len
        } else {
            start.saturating_add(count).min(len)
        };
        elements.truncate(end as usize);
        elements.drain(..start as usize);
        Ok(elements)
    }

    fn sorted<'v>(
        &self,
        elements: Vec<&'v [u8]>,
        look_up: &dyn Fn(&[u8]) -> Option<&'v Value>,
    ) -> Result<Vec<&'v [u8]>, CommandError> {
        let weight = |element: &'v [u8]| match self.by {
            Some(by) => substitute(by, element, look_up),
            None => Some(element),
        };
        let direct = |order: Ordering| {
            if self.descending {
                order.reverse()
            } else {
                order
            }
        };
        if self.alphabetical {
            let mut weighed: Vec<_> = elements
                .into_iter()
                .map(|element| (weight(element), element))
                .collect();
            weighed.sort_by(|one, other| direct(one.0.cmp(&other.0)));
            return Ok(weighed.into_iter().map(|(_, element)| element).collect());
        }
        let mut weighed = Vec::with_capacity(elements.len());
        for element in elements {
            let number = weight(element)
                .map_or(Some(0.0), weight_of)
                .ok_or(CommandError::Text(
                    "ERR One or more scores can't be converted into double",
                ))?;
            weighed.push((number, element));
        }
        weighed.sort_by(|one, other| {
            let by_number = one.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal);
            direct(by_number.then_with(|| one.1.cmp(other.1)))
        });
        Ok(weighed.into_iter().map(|(_, element)| element).collect())
    }

    /// The values to be returned, in rows of as many as there are GETs.
    fn outputs<'v>(
        &self,
        elements: &[&'v [u8]],
        look_up: &dyn Fn(&[u8]) -> Option<&'v Value>,
        options: &StoreOptions,
    ) -> Result<Vec<Option<&'v [u8]>>, CommandError> {
        if self.get.is_empty() {
            return Ok(elements.iter().map(|element| Some(*element)).collect());
        }
        // Rows may be far more than all of the command and the state together.
        let count = elements.len().saturating_mul(self.get.len());
        check_reply_len(options, count.saturating_mul(OUTPUT_BYTES))?;
        let row = |element: &&'v [u8]| {
            let element = *element;
            self.get.iter().map(move |pattern| match *pattern {
                b"#" => Some(element),
                pattern => substitute(pattern, element, look_up),
            })
        };
        Ok(elements.iter().flat_map(row).collect())
    }
}

/// Memory for one gathered output.
const OUTPUT_BYTES: usize = size_of::<Option<&[u8]>>();

/// A weight as a number: blanks before it are skipped, and nothing at all is 0.
fn weight_of(text: &[u8]) -> Option<f64> {
    match text.trim_ascii_start() {
        [] if text.is_empty() => Some(0.0),
        [] => None,
        number => parse_score(number),
    }
}

/// The string under the key, or in the hash's field, that `pattern` names once the element has
/// taken the place of its star.
fn substitute<'v>(
    pattern: &[u8],
    element: &[u8],
    look_up: &dyn Fn(&[u8]) -> Option<&'v Value>,
) -> Option<&'v [u8]> {
    let star = pattern.iter().position(|byte| *byte == b'*')?;
    let (before, behind) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = behind.windows(2).position(|pair| pair == b"->");
    let (behind, field) = match arrow {
        Some(at) if at + 2 < behind.len() => (&behind[..at], Some(&behind[at + 2..])),
        _ => (behind, None),
    };
    let value = look_up(&[before, element, behind].concat())?;
    match (value, field) {
        (Value::Hash(hash), Some(field)) => hash.get(field),
        (Value::String(string), None) => Some(&string.bytes),
        _ => None,
    }
}

fn reply_with(reply: &mut Reply<'_>, outputs: &[Option<&[u8]>]) {
    reply.array(outputs.len());
    for output in outputs {
        reply.bulk_or_null(*output);
    }
}

pub(crate) fn read(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let sort = Sort::parse(&args[1..], false)?;
    let look_up = |key: &[u8]| context.value(key);
    let elements = sort.run(look_up(args[0]), &look_up)?;
    let outputs = sort.outputs(&elements, &look_up, context.options)?;
    reply_with(&mut context.reply, &outputs);
    Ok(())
}

pub(crate) fn write(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let sort = Sort::parse(&args[1..], true)?;
    let keys = &context.keys;
    let look_up = |key: &[u8]| keys.peek(key);
    let elements = sort.run(look_up(args[0]), &look_up)?;
    let outputs = sort.outputs(&elements, &look_up, context.options)?;
    let Some(target) = sort.store else {
        reply_with(&mut context.reply, &outputs);
        return Ok(());
    };
    if !sort.get.is_empty() {
        // Nor may the state grow by values that are named again and again.
        let elements = outputs.iter().map(|output| output.unwrap_or(&[]));
        check_reply(context.options, elements)?;
    }
    context.reply.count(outputs.len());
    let mut list = List::default();
    for output in outputs {
        list.push(End::Right, output.unwrap_or(&[]));
    }
    if list.is_void() {
        context.keys.remove(target);
    } else {
        context.keys.set(target, list.into_value(), Expiry::Never);
    }
    Ok(())
}
