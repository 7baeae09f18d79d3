//! Commands on keys of any type: existence, expiry, renaming, copying, inspecting.

use crate::command::Op;
use crate::commands::arguments::is;
use crate::commands::{scan, sort, transfer, unsupported};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::{Expiry, NEVER};
use crate::numbers::{parse_integer, parse_integer_in};
use crate::request::Args;

const NO_SUCH_KEY: CommandError = CommandError::Text("ERR no such key");
pub(crate) const NO_SUCH_DATABASE: CommandError =
    CommandError::Text("ERR DB index is out of range");

pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Exists | Op::Touch => {
            let found = args
                .iter()
                .filter(|key| context.entry(key).is_some())
                .count();
            context.reply.count(found);
        }
        Op::Type => {
            let name = context
                .value(args[0])
                .map_or("none", |value| value.type_name());
            context.reply.simple(name);
        }
        Op::Ttl | Op::Pttl | Op::Expiretime | Op::Pexpiretime => time_to_live(op, context, args[0]),
        Op::Keys => return scan::keys(context, args),
        Op::Scan => return scan::scan(context, args),
        Op::Randomkey => return scan::random_key(context),
        Op::SortRo => return sort::read(context, args),
        Op::Object => return transfer::object(context, args),
        Op::Dump => transfer::dump(context, args),
        _ => return Err(unsupported()),
    }
    Ok(())
}

pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Del | Op::Unlink => {
            let mut removed = 0;
            for key in args {
                removed += usize::from(context.keys.remove(key));
            }
            context.reply.count(removed);
            Ok(())
        }
        Op::Expire => expire(context, args, true, false, "expire"),
        Op::Pexpire => expire(context, args, false, false, "pexpire"),
        Op::Expireat => expire(context, args, true, true, "expireat"),
        Op::Pexpireat => expire(context, args, false, true, "pexpireat"),
        Op::Persist => {
            let expires = context
                .keys
                .expire_at(args[0])
                .is_some_and(|time| time != NEVER);
            if expires {
                context.keys.set_expire_at(args[0], NEVER);
            }
            context.reply.yes(expires);
            Ok(())
        }
        Op::Rename | Op::Renamenx => rename(context, args, op == Op::Renamenx),
        Op::Copy => copy(context, args),
        Op::Move => move_key(context, args),
        Op::Sort => sort::write(context, args),
        Op::Restore => transfer::restore(context, args),
        _ => Err(unsupported()),
    }
}

fn time_to_live(op: Op, context: &mut ReadContext<'_>, key: &[u8]) {
    let seconds = |milliseconds: u64| (milliseconds.saturating_add(500) / 1000) as i64;
    let answer = match context.entry(key).map(|entry| entry.expire_at) {
        None => -2,
        Some(NEVER) => -1,
        Some(time) => {
            let left = time.saturating_sub(context.clock / 1_000_000);
            match op {
                Op::Ttl => seconds(left),
                Op::Pttl => left as i64,
                Op::Expiretime => seconds(time),
                _ => time as i64,
            }
        }
    };
    context.reply.integer(answer);
}

/// When an expiry is to be changed: only if there is none, only if there is one, only to a later
/// or only to an earlier time.
#[derive(Clone, Copy, Debug, Default)]
struct ExpireRule {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl ExpireRule {
    fn parse(args: Args<'_>) -> Result<Self, CommandError> {
        let mut rule = Self::default();
        for option in args {
            if is(option, "nx") {
                rule.if_none = true;
            } else if is(option, "xx") {
                rule.if_some = true;
            } else if is(option, "gt") {
                rule.if_later = true;
            } else if is(option, "lt") {
                rule.if_earlier = true;
            } else {
                let shown = String::from_utf8_lossy(option);
                return Err(CommandError::Owned(format!(
                    "ERR Unsupported option {shown}"
                )));
            }
        }
        if rule.if_none && (rule.if_some || rule.if_later || rule.if_earlier) {
            return Err(CommandError::Text(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if rule.if_later && rule.if_earlier {
            return Err(CommandError::Text(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(rule)
    }

    const fn allows(self, before: u64, after: u64) -> bool {
        !((self.if_none && before != NEVER)
            || (self.if_some && before == NEVER)
            || (self.if_later && after <= before)
            || (self.if_earlier && after >= before))
    }
}

fn expire(
    context: &mut WriteContext<'_>,
    args: Args<'_>,
    in_seconds: bool,
    absolute: bool,
    command: &str,
) -> CommandResult {
    let rule = ExpireRule::parse(&args[2..])?;
    let refused = || CommandError::Owned(format!("ERR invalid expire time in '{command}' command"));
    let number = parse_integer(args[1])?;
    let number = if in_seconds {
        number.checked_mul(1000).ok_or_else(refused)?
    } else {
        number
    };
    let base = if absolute { 0 } else { context.now() as i64 };
    let time = number.checked_add(base).ok_or_else(refused)?;
    let time = u64::try_from(time).unwrap_or(0);
    let set = context
        .keys
        .expire_at(args[0])
        .is_some_and(|before| rule.allows(before, time));
    if set {
        context.keys.set_expire_at(args[0], time);
    }
    context.reply.yes(set);
    Ok(())
}

fn expiry_of(expire_at: u64) -> Expiry {
    if expire_at == NEVER {
        Expiry::Never
    } else {
        Expiry::At(expire_at)
    }
}

fn rename(context: &mut WriteContext<'_>, args: Args<'_>, only_if_missing: bool) -> CommandResult {
    let [from, to] = [args[0], args[1]];
    if !context.keys.exists(from) {
        return Err(NO_SUCH_KEY);
    }
    let done = if from == to {
        !only_if_missing
    } else if only_if_missing && context.keys.exists(to) {
        false
    } else {
        if let Some((value, expire_at)) = context.keys.take(from) {
            context.keys.set(to, value, expiry_of(expire_at));
        }
        true
    };
    if only_if_missing {
        context.reply.yes(done);
    } else {
        context.reply.ok();
    }
    Ok(())
}

fn database_of(context: &WriteContext<'_>, argument: &[u8]) -> Result<u8, CommandError> {
    let number = parse_integer_in(argument, i64::from(i32::MIN)..=i64::from(i32::MAX))?;
    u8::try_from(number)
        .ok()
        .filter(|database| *database < context.keys.databases())
        .ok_or(NO_SUCH_DATABASE)
}

const SAME_OBJECT: CommandError =
    CommandError::Text("ERR source and destination objects are the same");

fn copy(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let [from, to] = [args[0], args[1]];
    let source = context.keys.database;
    let (mut target, mut replace) = (source, false);
    let mut options = &args[2..];
    while let [option, rest @ ..] = options {
        options = rest;
        if is(option, "replace") {
            replace = true;
        } else if is(option, "db")
            && let [database, rest @ ..] = options
        {
            target = database_of(context, database)?;
            options = rest;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if source == target && from == to {
        return Err(SAME_OBJECT);
    }
    let expire_at = context.keys.expire_at(from);
    let value = context.keys.value(from).cloned();
    let (Some(value), Some(expire_at)) = (value, expire_at) else {
        context.reply.yes(false);
        return Ok(());
    };
    context.keys.database = target;
    let copied = replace || !context.keys.exists(to);
    if copied {
        context.keys.set(to, value, expiry_of(expire_at));
    }
    context.reply.yes(copied);
    Ok(())
}

fn move_key(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let key = args[0];
    let source = context.keys.database;
    let target = database_of(context, args[1])?;
    if source == target {
        return Err(SAME_OBJECT);
    }
    context.keys.database = target;
    let taken = context.keys.exists(key);
    context.keys.database = source;
    let moved = if taken { None } else { context.keys.take(key) };
    context.reply.yes(moved.is_some());
    if let Some((value, expire_at)) = moved {
        context.keys.database = target;
        context.keys.set(key, value, expiry_of(expire_at));
    }
    Ok(())
}

/// SWAPDB.
pub(crate) fn swap_databases(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let number = |argument, text| {
        parse_integer(argument)
            .ok()
            .filter(|number| i32::try_from(*number).is_ok())
            .ok_or(CommandError::Text(text))
    };
    let one = number(args[0], "ERR invalid first DB index")?;
    let other = number(args[1], "ERR invalid second DB index")?;
    let databases = 0..i64::from(context.keys.databases());
    if !databases.contains(&one) || !databases.contains(&other) {
        return Err(NO_SUCH_DATABASE);
    }
    context.keys.swap(one as u8, other as u8);
    context.reply.ok();
    Ok(())
}
