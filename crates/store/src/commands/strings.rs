//! Strings: GET and SET in all their forms, counters, parts of strings.

use crate::command::Op;
use crate::commands::arguments::is;
use crate::commands::{lcs, unsupported};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::{Expiry, NEVER};
use crate::numbers::{integer_of, parse_integer, push_integer};
use crate::request::Args;
use crate::types::extended::{Extended, NotFinite};
use crate::value::{ShortBytes, StringValue, Value};

#[inline]
pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Get => {
            let value = context.read::<StringValue>(args[0])?;
            context
                .reply
                .bulk_or_null(value.map(|value| value.bytes.as_slice()));
        }
        Op::Mget => {
            context.reply.array(args.len());
            for key in args {
                // A key of another type counts as missing here.
                let value = context.read::<StringValue>(key).ok().flatten();
                context
                    .reply
                    .bulk_or_null(value.map(|value| value.bytes.as_slice()));
            }
        }
        Op::Strlen => {
            let value = context.read::<StringValue>(args[0])?;
            context
                .reply
                .count(value.map_or(0, |value| value.bytes.len()));
        }
        Op::Getrange | Op::Substr => get_range(context, args)?,
        Op::Lcs => lcs::lcs(context, args)?,
        _ => return Err(unsupported()),
    }
    Ok(())
}

#[inline]
pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Set => set(context, args),
        Op::Setnx => {
            let new = !context.keys.exists(args[0]);
            if new {
                context.keys.set_string(args[0], args[1], Expiry::Never);
            }
            context.reply.yes(new);
            Ok(())
        }
        Op::Setex => set_for(context, args, Unit::Seconds, "setex"),
        Op::Psetex => set_for(context, args, Unit::Milliseconds, "psetex"),
        Op::Getset => {
            reply_string(context, args[0])?;
            context.keys.set_string(args[0], args[1], Expiry::Never);
            Ok(())
        }
        Op::Getdel => {
            if reply_string(context, args[0])? {
                context.keys.remove(args[0]);
            }
            Ok(())
        }
        Op::Getex => get_ex(context, args),
        Op::Mset | Op::Msetnx => mset(context, args, op == Op::Msetnx),
        Op::Append => append(context, args),
        Op::Setrange => set_range(context, args),
        Op::Incr => add(context, args[0], 1),
        Op::Decr => add(context, args[0], -1),
        Op::Incrby => add(context, args[0], parse_integer(args[1])?),
        Op::Decrby => match parse_integer(args[1])? {
            i64::MIN => Err(CommandError::Text("ERR decrement would overflow")),
            by => add(context, args[0], -by),
        },
        Op::Incrbyfloat => add_float(context, args),
        _ => Err(unsupported()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Seconds,
    Milliseconds,
}

/// An expiry as it was written.
#[derive(Clone, Copy, Debug)]
struct Expire<'a> {
    number: &'a [u8],
    unit: Unit,
    absolute: bool,
}

impl Expire<'_> {
    /// The time in milliseconds; not necessarily in the future.
    fn time(&self, now: u64, command: &str) -> Result<u64, CommandError> {
        let number = parse_integer(self.number)?;
        let refused =
            || CommandError::Owned(format!("ERR invalid expire time in '{command}' command"));
        if number <= 0 {
            return Err(refused());
        }
        let time = match self.unit {
            Unit::Seconds => number.checked_mul(1000).ok_or_else(refused)?,
            Unit::Milliseconds => number,
        };
        let base = if self.absolute {
            0
        } else {
            i64::try_from(now).unwrap_or(i64::MAX)
        };
        time.checked_add(base)
            .map(|time| time as u64)
            .ok_or_else(refused)
    }
}

/// The options of SET and GETEX.
#[derive(Debug, Default)]
struct Options<'a> {
    if_missing: bool,
    if_exists: bool,
    get: bool,
    keep: bool,
    persist: bool,
    expire: Option<Expire<'a>>,
}

impl<'a> Options<'a> {
    fn parse(mut args: Args<'a>, of_set: bool) -> Result<Self, CommandError> {
        let mut options = Self::default();
        while let [option, rest @ ..] = args {
            args = rest;
            let timeless = options.expire.is_none() && !options.keep && !options.persist;
            if of_set && is(option, "nx") && !options.if_exists {
                options.if_missing = true;
            } else if of_set && is(option, "xx") && !options.if_missing {
                options.if_exists = true;
            } else if of_set && is(option, "get") {
                options.get = true;
            } else if of_set
                && is(option, "keepttl")
                && options.expire.is_none()
                && !options.persist
            {
                options.keep = true;
            } else if !of_set && is(option, "persist") && options.expire.is_none() {
                options.persist = true;
            } else if let Some((unit, absolute)) = expire_option(option)
                && timeless
                && let [number, rest @ ..] = args
            {
                options.expire = Some(Expire {
                    number,
                    unit,
                    absolute,
                });
                args = rest;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

fn expire_option(option: &[u8]) -> Option<(Unit, bool)> {
    let known = [
        ("ex", Unit::Seconds, false),
        ("px", Unit::Milliseconds, false),
        ("exat", Unit::Seconds, true),
        ("pxat", Unit::Milliseconds, true),
    ];
    known
        .into_iter()
        .find(|(name, ..)| is(option, name))
        .map(|(_, unit, absolute)| (unit, absolute))
}

#[inline]
fn set(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    if let [key, value] = args {
        context.keys.set_string(key, value, Expiry::Never);
        context.reply.ok();
        return Ok(());
    }
    set_with_options(context, args)
}

fn set_with_options(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let (key, value) = (args[0], args[1]);
    let options = Options::parse(&args[2..], true)?;
    let expiry = match options.expire {
        Some(expire) => Expiry::At(expire.time(context.now(), "set")?),
        None if options.keep => Expiry::Keep,
        None => Expiry::Never,
    };
    if options.get {
        reply_string(context, key)?;
    }
    let conditional = options.if_missing || options.if_exists;
    if conditional && context.keys.exists(key) != options.if_exists {
        if !options.get {
            context.reply.null();
        }
        return Ok(());
    }
    store(context, key, value, expiry);
    if !options.get {
        context.reply.ok();
    }
    Ok(())
}

/// Sets a string; one that has expired already leaves nothing behind.
fn store(context: &mut WriteContext<'_>, key: &[u8], value: &[u8], expiry: Expiry) {
    match expiry {
        Expiry::At(time) if time <= context.now() => {
            context.keys.remove(key);
        }
        _ => context.keys.set_string(key, value, expiry),
    }
}

fn set_for(
    context: &mut WriteContext<'_>,
    args: Args<'_>,
    unit: Unit,
    command: &str,
) -> CommandResult {
    let expire = Expire {
        number: args[1],
        unit,
        absolute: false,
    };
    let time = expire.time(context.now(), command)?;
    store(context, args[0], args[2], Expiry::At(time));
    context.reply.ok();
    Ok(())
}

/// Replies with the string of a key, or null; whether the key exists.
fn reply_string(context: &mut WriteContext<'_>, key: &[u8]) -> Result<bool, CommandError> {
    let value = context.keys.read::<StringValue>(key)?;
    context
        .reply
        .bulk_or_null(value.map(|value| value.bytes.as_slice()));
    Ok(value.is_some())
}

fn get_ex(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let key = args[0];
    let options = Options::parse(&args[1..], false)?;
    if !reply_string(context, key)? {
        return Ok(());
    }
    if let Some(expire) = options.expire {
        let time = expire.time(context.now(), "getex")?;
        context.keys.set_expire_at(key, time);
    } else if options.persist && context.keys.expire_at(key) != Some(NEVER) {
        context.keys.set_expire_at(key, NEVER);
    }
    Ok(())
}

fn mset(context: &mut WriteContext<'_>, args: Args<'_>, only_if_missing: bool) -> CommandResult {
    if !args.len().is_multiple_of(2) {
        return Err(CommandError::arity(if only_if_missing {
            "msetnx"
        } else {
            "mset"
        }));
    }
    if only_if_missing && args.iter().step_by(2).any(|key| context.keys.exists(key)) {
        context.reply.yes(false);
        return Ok(());
    }
    for pair in args.chunks_exact(2) {
        context.keys.set_string(pair[0], pair[1], Expiry::Never);
    }
    if only_if_missing {
        context.reply.yes(true);
    } else {
        context.reply.ok();
    }
    Ok(())
}

fn append(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let [key, more] = [args[0], args[1]];
    let Some(mut value) = context.keys.open::<StringValue>(key)? else {
        context.keys.set_string(key, more, Expiry::Never);
        context.reply.count(more.len());
        return Ok(());
    };
    context
        .options
        .check_value_len(value.bytes.len() + more.len())?;
    let value = value.change();
    value.bytes.extend_from_slice(more);
    value.raw = true;
    context.reply.count(value.bytes.len());
    Ok(())
}

fn get_range(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let (start, end) = (parse_integer(args[1])?, parse_integer(args[2])?);
    let value = context.read::<StringValue>(args[0])?;
    let bytes = value.map_or(&[][..], |value| &value.bytes);
    let len = bytes.len() as i64;
    if (start < 0 && end < 0 && start > end) || len == 0 {
        context.reply.bulk(b"");
        return Ok(());
    }
    let from_end = |place: i64| {
        if place < 0 {
            (place + len).max(0)
        } else {
            place
        }
    };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    let range = if start > end {
        &[][..]
    } else {
        &bytes[start as usize..=end as usize]
    };
    context.reply.bulk(range);
    Ok(())
}

fn set_range(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let (key, offset, patch) = (args[0], parse_integer(args[1])?, args[2]);
    let Ok(offset) = usize::try_from(offset) else {
        return Err(CommandError::Text("ERR offset is out of range"));
    };
    let len = context
        .keys
        .read::<StringValue>(key)?
        .map_or(0, |value| value.bytes.len());
    if patch.is_empty() {
        context.reply.count(len);
        return Ok(());
    }
    let end = offset.saturating_add(patch.len());
    context.options.check_value_len(end)?;
    let mut value = context.keys.open_or_create::<StringValue>(key)?;
    let value = value.change();
    value.raw = true;
    value.grow(end);
    value.bytes[offset..end].copy_from_slice(patch);
    context.reply.count(value.bytes.len());
    Ok(())
}

fn add(context: &mut WriteContext<'_>, key: &[u8], by: i64) -> CommandResult {
    let mut digits = ShortBytes::new();
    let Some(mut value) = context.keys.open::<StringValue>(key)? else {
        push_integer(&mut digits, by);
        let value = StringValue {
            bytes: digits,
            raw: false,
        };
        context.keys.set(key, Value::String(value), Expiry::Never);
        context.reply.integer(by);
        return Ok(());
    };
    let before = integer_of(&value.bytes).ok_or(CommandError::NotInteger)?;
    let after = before.checked_add(by).ok_or(CommandError::Text(
        "ERR increment or decrement would overflow",
    ))?;
    push_integer(&mut digits, after);
    let value = value.change();
    value.bytes.clear();
    value.bytes.extend_from_slice(&digits);
    value.raw = false;
    context.reply.integer(after);
    Ok(())
}

fn add_float(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let key = args[0];
    let value = context.keys.read::<StringValue>(key)?;
    let before = Extended::parse(value.map_or(b"0", |value| &value.bytes));
    let by = Extended::parse(args[1]);
    let infinite = CommandError::Text("ERR increment would produce NaN or Infinity");
    let after = match (before, by) {
        (Err(NotFinite::Malformed), _) | (_, Err(NotFinite::Malformed)) => {
            return Err(CommandError::NotFloat);
        }
        (Err(_), _) | (_, Err(_)) => return Err(infinite),
        (Ok(before), Ok(by)) => before.plus(by).map_err(|_| infinite)?,
    };
    let mut text = Vec::new();
    after.to_text(&mut text);
    context.keys.set(key, Value::string(&text), Expiry::Keep);
    context.reply.bulk(&text);
    Ok(())
}
