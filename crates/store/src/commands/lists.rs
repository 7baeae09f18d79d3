//! LPUSH, LRANGE and the other commands on lists.
//!
//! ```text
//!   RPUSH tasks a b c     ──► tasks: [ a b c ]            :3
//!   LMOVE tasks done LEFT RIGHT ──► tasks: [ b c ], done: [ a ]
//!   LPOP tasks 2          ──► the key is gone with its last element
//! ```

use super::arguments::{
    KEYS_MISSING, MUST_BE_POSITIVE, check_reply, count_above_zero, count_of, is, place, places,
};
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Keys;
use crate::numbers::{integer_of, parse_integer};
use crate::options::StoreOptions;
use crate::reply::Reply;
use crate::request::Args;
use crate::types::list::{End, List};

#[inline]
pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Lindex => lindex(context, args),
        Op::Llen => llen(context, args),
        Op::Lpos => lpos(context, args),
        Op::Lrange => lrange(context, args),
        _ => Err(unsupported()),
    }
}

#[inline]
pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let WriteContext {
        keys,
        reply,
        options,
        ..
    } = context;
    match op {
        Op::Linsert => linsert(keys, args, reply),
        Op::Lmove => lmove(keys, args, reply),
        Op::Lmpop => lmpop(keys, args, options, reply),
        Op::Lpop => pop(keys, End::Left, args, options, reply),
        Op::Lpush => push(keys, End::Left, args, reply),
        Op::Lpushx => push_existing(keys, End::Left, args, reply),
        Op::Lrem => lrem(keys, args, reply),
        Op::Lset => lset(keys, args, reply),
        Op::Ltrim => ltrim(keys, args, reply),
        Op::Rpop => pop(keys, End::Right, args, options, reply),
        Op::Rpoplpush => rpoplpush(keys, args, reply),
        Op::Rpush => push(keys, End::Right, args, reply),
        Op::Rpushx => push_existing(keys, End::Right, args, reply),
        _ => Err(unsupported()),
    }
}

fn end_of(argument: &[u8]) -> Result<End, CommandError> {
    if is(argument, "left") {
        Ok(End::Left)
    } else if is(argument, "right") {
        Ok(End::Right)
    } else {
        Err(CommandError::Syntax)
    }
}

/// `LPUSH key element …` and `RPUSH key element …`
fn push(keys: &mut Keys<'_>, end: End, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut held = keys.open_or_create::<List>(args[0])?;
    push_all(held.change(), end, &args[1..], reply);
    Ok(())
}

/// `LPUSHX key element …` and `RPUSHX key element …`
fn push_existing(
    keys: &mut Keys<'_>,
    end: End,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let Some(mut held) = keys.open::<List>(args[0])? else {
        reply.integer(0);
        return Ok(());
    };
    push_all(held.change(), end, &args[1..], reply);
    Ok(())
}

fn push_all(list: &mut List, end: End, elements: Args<'_>, reply: &mut Reply<'_>) {
    for element in elements {
        list.push(end, element);
    }
    reply.count(list.len());
}

/// `LPOP key [count]` and `RPOP key [count]`
fn pop(
    keys: &mut Keys<'_>,
    end: End,
    args: Args<'_>,
    options: &StoreOptions,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let count = match args[1..] {
        [] => None,
        [count] => Some(count_of(count, MUST_BE_POSITIVE)?),
        _ => {
            return Err(CommandError::arity(if end == End::Left {
                "lpop"
            } else {
                "rpop"
            }));
        }
    };
    let held = keys.open::<List>(args[0])?;
    match (held, count) {
        (None, None) => reply.null(),
        (None, Some(_)) => reply.null_array(),
        (Some(mut held), None) => reply.bulk_or_null(held.change().pop(end).as_deref()),
        (Some(_), Some(0)) => reply.array(0),
        (Some(mut held), Some(count)) => {
            check_pop(&held, end, count, options)?;
            pop_many(held.change(), end, count, reply);
        }
    }
    Ok(())
}

fn check_pop(list: &List, end: End, count: usize, options: &StoreOptions) -> CommandResult {
    let count = count.min(list.len());
    let places = match end {
        End::Left => 0..count,
        End::Right => list.len() - count..list.len(),
    };
    check_reply(options, list.range(places))
}

fn pop_many(list: &mut List, end: End, count: usize, reply: &mut Reply<'_>) {
    let count = count.min(list.len());
    reply.array(count);
    for _ in 0..count {
        if let Some(element) = list.pop(end) {
            reply.bulk(&element);
        }
    }
}

/// `LLEN key`
fn llen(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    context
        .reply
        .count(context.read::<List>(args[0])?.map_or(0, List::len));
    Ok(())
}

/// `LRANGE key start stop`
fn lrange(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let (start, end) = (parse_integer(args[1])?, parse_integer(args[2])?);
    let Some(list) = context.read::<List>(args[0])? else {
        context.reply.array(0);
        return Ok(());
    };
    let elements = list.range(places(start, end, list.len()));
    context.reply.array(elements.len());
    for element in elements {
        context.reply.bulk(element);
    }
    Ok(())
}

/// `LINDEX key index`
fn lindex(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let Some(list) = context.read::<List>(args[0])? else {
        context.reply.null();
        return Ok(());
    };
    let index = parse_integer(args[1])?;
    context
        .reply
        .bulk_or_null(place(index, list.len()).and_then(|at| list.get(at)));
    Ok(())
}

/// `LSET key index element`
fn lset(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut held = keys
        .open::<List>(args[0])?
        .ok_or(CommandError::Text("ERR no such key"))?;
    let index = parse_integer(args[1])?;
    let at = place(index, held.len()).ok_or(CommandError::Text("ERR index out of range"))?;
    held.change().set(at, args[2]);
    reply.ok();
    Ok(())
}

/// `LINSERT key BEFORE|AFTER pivot element`
fn linsert(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let offset = if is(args[1], "after") {
        1
    } else if is(args[1], "before") {
        0
    } else {
        return Err(CommandError::Syntax);
    };
    let Some(mut held) = keys.open::<List>(args[0])? else {
        reply.integer(0);
        return Ok(());
    };
    match held.position(args[2]) {
        None => reply.integer(-1),
        Some(at) => {
            let list = held.change();
            list.insert(at + offset, args[3]);
            reply.count(list.len());
        }
    }
    Ok(())
}

/// `LREM key count element`
fn lrem(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let count = parse_integer(args[1])?;
    let removed = match keys.open::<List>(args[0])? {
        Some(mut held) if held.position(args[2]).is_some() => held.change().remove(count, args[2]),
        _ => 0,
    };
    reply.count(removed);
    Ok(())
}

/// `LTRIM key start stop`
fn ltrim(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (start, end) = (parse_integer(args[1])?, parse_integer(args[2])?);
    if let Some(mut held) = keys.open::<List>(args[0])? {
        let kept = places(start, end, held.len());
        held.change().trim(kept);
    }
    reply.ok();
    Ok(())
}

/// `LPOS key element [RANK rank] [COUNT count] [MAXLEN length]`
fn lpos(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let (mut rank, mut count, mut length_max) = (1i64, None, 0);
    for option in args[2..].chunks(2) {
        match option {
            [name, value] if is(name, "rank") => {
                rank = integer_of(value).ok_or(CommandError::NotInteger)?;
                if rank == 0 {
                    return Err(CommandError::Text(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
                         second ... or use negative to start from the end of the list",
                    ));
                }
            }
            [name, value] if is(name, "count") => {
                count = Some(count_of(value, "ERR COUNT can't be negative")?);
            }
            [name, value] if is(name, "maxlen") => {
                length_max = count_of(value, "ERR MAXLEN can't be negative")?;
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    let list = context.read::<List>(args[0])?;
    let length_max = if length_max == 0 {
        usize::MAX
    } else {
        length_max
    };
    // How many matches are passed over.
    let skip = match rank {
        i64::MIN => 0,
        rank => usize::try_from(rank.unsigned_abs() - 1).unwrap_or(usize::MAX),
    };
    let forward = list
        .filter(|_| rank > 0)
        .into_iter()
        .flat_map(|list| list.iter().enumerate().take(length_max));
    let backward = list
        .filter(|_| rank < 0)
        .into_iter()
        .flat_map(|list| list.iter().enumerate().rev().take(length_max));
    let mut found = forward
        .chain(backward)
        .filter(|(_, element)| *element == args[1])
        .map(|(at, _)| at)
        .skip(skip);
    match count {
        None => match found.next() {
            Some(at) => context.reply.count(at),
            None => context.reply.null(),
        },
        Some(count) => {
            let begun = context.reply.begin_array();
            let mut len = 0;
            for at in found.take(if count == 0 { usize::MAX } else { count }) {
                context.reply.count(at);
                len += 1;
            }
            context.reply.end_array(begun, len);
        }
    }
    Ok(())
}

/// `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`
fn lmove(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (from, to) = (end_of(args[2])?, end_of(args[3])?);
    move_element(keys, args[0], args[1], (from, to), reply)
}

/// `RPOPLPUSH source destination`
fn rpoplpush(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    move_element(keys, args[0], args[1], (End::Right, End::Left), reply)
}

fn move_element(
    keys: &mut Keys<'_>,
    source: &[u8],
    destination: &[u8],
    (from, to): (End, End),
    reply: &mut Reply<'_>,
) -> CommandResult {
    if keys.read::<List>(source)?.is_none() {
        reply.null();
        return Ok(());
    }
    keys.read::<List>(destination)?;
    let Some(mut held) = keys.open::<List>(source)? else {
        return Ok(());
    };
    if source == destination {
        // Taken out first, a lone element would take the key and its expiry with it.
        let list = held.change();
        if let Some(element) = list.pop(from) {
            list.push(to, &element);
            reply.bulk(&element);
        }
        return Ok(());
    }
    let element = held.change().pop(from);
    drop(held);
    if let Some(element) = element {
        keys.open_or_create::<List>(destination)?
            .change()
            .push(to, &element);
        reply.bulk(&element);
    }
    Ok(())
}

/// `LMPOP numkeys key … LEFT|RIGHT [COUNT count]`
fn lmpop(
    keys: &mut Keys<'_>,
    args: Args<'_>,
    limits: &StoreOptions,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let number = count_above_zero(args[0], KEYS_MISSING)?;
    let Some((names, [end, options @ ..])) = args[1..].split_at_checked(number) else {
        return Err(CommandError::Syntax);
    };
    let end = end_of(end)?;
    let count = match options {
        [] => 1,
        [name, count] if is(name, "count") => {
            count_above_zero(count, "ERR count should be greater than 0")?
        }
        _ => return Err(CommandError::Syntax),
    };
    for name in names {
        if let Some(mut held) = keys.open::<List>(name)? {
            check_pop(&held, end, count, limits)?;
            reply.array(2);
            reply.bulk(name);
            pop_many(held.change(), end, count, reply);
            return Ok(());
        }
    }
    reply.null_array();
    Ok(())
}
