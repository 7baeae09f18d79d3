//! HSET, HGET and the other commands on hashes.
//!
//! ```text
//!   HSET user name Ada born 1815   ──► user: { name → Ada, born → 1815 }   :2
//!   HINCRBY user born 1            ──► user: { name → Ada, born → 1816 }   :1816
//!   HDEL user name born            ──► the key is gone with its last field :2
//! ```

use super::arguments::{
    Scan, cursor_of, is, random_places, reply_nothing_scanned, reply_scanned, scan_options,
    signed_count, signed_count_of_pairs,
};
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Keys;
use crate::numbers::{integer_of, parse_integer, write_integer};
use crate::reply::Reply;
use crate::request::Args;
use crate::types::extended::{Extended, NotFinite};
use crate::types::hash::Hash;
use crate::types::pattern::Glob;

#[inline]
pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Hexists => hexists(context, args),
        Op::Hget => hget(context, args),
        Op::Hgetall => hgetall(context, args),
        Op::Hkeys => hkeys(context, args),
        Op::Hlen => hlen(context, args),
        Op::Hmget => hmget(context, args),
        Op::Hrandfield => hrandfield(context, args),
        Op::Hscan => hscan(context, args),
        Op::Hstrlen => hstrlen(context, args),
        Op::Hvals => hvals(context, args),
        _ => Err(unsupported()),
    }
}

#[inline]
pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let WriteContext { keys, reply, .. } = context;
    match op {
        Op::Hdel => hdel(keys, args, reply),
        Op::Hincrby => hincrby(keys, args, reply),
        Op::Hincrbyfloat => hincrbyfloat(keys, args, reply),
        Op::Hmset => hmset(keys, args, reply),
        Op::Hset => hset(keys, args, reply),
        Op::Hsetnx => hsetnx(keys, args, reply),
        _ => Err(unsupported()),
    }
}

/// `HSET key field value …`
fn hset(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let new = set_all(keys, args, "hset")?;
    reply.count(new);
    Ok(())
}

/// `HMSET key field value …`
fn hmset(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    set_all(keys, args, "hmset")?;
    reply.ok();
    Ok(())
}

fn set_all(keys: &mut Keys<'_>, args: Args<'_>, name: &str) -> Result<usize, CommandError> {
    let (pairs, rest) = args[1..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(CommandError::arity(name));
    }
    let mut held = keys.open_or_create::<Hash>(args[0])?;
    let hash = held.change();
    Ok(pairs
        .iter()
        .filter(|[field, value]| hash.set(field, value))
        .count())
}

/// `HSETNX key field value`
fn hsetnx(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut held = keys.open_or_create::<Hash>(args[0])?;
    let new = !held.contains(args[1]);
    if new {
        held.change().set(args[1], args[2]);
    }
    reply.yes(new);
    Ok(())
}

/// `HDEL key field …`
fn hdel(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut removed = 0;
    if let Some(mut held) = keys.open::<Hash>(args[0])? {
        for field in &args[1..] {
            if held.contains(field) {
                held.change().remove(field);
                removed += 1;
            }
        }
    }
    reply.count(removed);
    Ok(())
}

/// `HINCRBY key field increment`
fn hincrby(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let increment = parse_integer(args[2])?;
    let mut held = keys.open_or_create::<Hash>(args[0])?;
    let old = match held.get(args[1]) {
        None => 0,
        Some(value) => {
            integer_of(value).ok_or(CommandError::Text("ERR hash value is not an integer"))?
        }
    };
    let sum = old.checked_add(increment).ok_or(CommandError::Text(
        "ERR increment or decrement would overflow",
    ))?;
    let mut text = Vec::with_capacity(20);
    write_integer(&mut text, sum);
    held.change().set(args[1], &text);
    reply.integer(sum);
    Ok(())
}

/// `HINCRBYFLOAT key field increment`
fn hincrbyfloat(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    const INFINITE: CommandError =
        CommandError::Text("ERR increment would produce NaN or Infinity");
    let increment = Extended::parse(args[2]).map_err(|why| match why {
        NotFinite::Malformed => CommandError::NotFloat,
        NotFinite::Infinite => CommandError::Text("ERR value is NaN or Infinity"),
    })?;
    let mut held = keys.open_or_create::<Hash>(args[0])?;
    let old = match held.get(args[1]) {
        None => Extended::ZERO,
        Some(value) => Extended::parse(value).map_err(|why| match why {
            NotFinite::Malformed => CommandError::Text("ERR hash value is not a float"),
            NotFinite::Infinite => INFINITE,
        })?,
    };
    let sum = old.plus(increment).map_err(|_| INFINITE)?;
    let mut text = Vec::with_capacity(24);
    sum.to_text(&mut text);
    held.change().set(args[1], &text);
    reply.bulk(&text);
    Ok(())
}

/// `HGET key field`
fn hget(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context
        .reply
        .bulk_or_null(hash.and_then(|hash| hash.get(args[1])));
    Ok(())
}

/// `HMGET key field …`
fn hmget(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context.reply.array(args.len() - 1);
    for field in &args[1..] {
        context
            .reply
            .bulk_or_null(hash.and_then(|hash| hash.get(field)));
    }
    Ok(())
}

/// `HGETALL key`
fn hgetall(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context.reply.map(hash.map_or(0, Hash::len));
    for (field, value) in hash.into_iter().flat_map(Hash::iter) {
        context.reply.bulk(field);
        context.reply.bulk(value);
    }
    Ok(())
}

/// `HKEYS key`
fn hkeys(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context.reply.array(hash.map_or(0, Hash::len));
    for (field, _) in hash.into_iter().flat_map(Hash::iter) {
        context.reply.bulk(field);
    }
    Ok(())
}

/// `HVALS key`
fn hvals(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context.reply.array(hash.map_or(0, Hash::len));
    for (_, value) in hash.into_iter().flat_map(Hash::iter) {
        context.reply.bulk(value);
    }
    Ok(())
}

/// `HLEN key`
fn hlen(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    context
        .reply
        .count(context.read::<Hash>(args[0])?.map_or(0, Hash::len));
    Ok(())
}

/// `HSTRLEN key field`
fn hstrlen(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context.reply.count(
        hash.and_then(|hash| hash.get(args[1]))
            .map_or(0, <[u8]>::len),
    );
    Ok(())
}

/// `HEXISTS key field`
fn hexists(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let hash = context.read::<Hash>(args[0])?;
    context
        .reply
        .yes(hash.is_some_and(|hash| hash.contains(args[1])));
    Ok(())
}

/// `HRANDFIELD key [count [WITHVALUES]]`
fn hrandfield(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let (count, with_values) = match args[1..] {
        [] => {
            let hash = context.read::<Hash>(args[0])?;
            context
                .reply
                .bulk_or_null(hash.map(|hash| hash.at(context.random.below(hash.len())).0));
            return Ok(());
        }
        [count] => (signed_count(count)?, false),
        [count, option] => {
            // A count that is none is reported before an option that is none.
            signed_count(count)?;
            if !is(option, "withvalues") {
                return Err(CommandError::Syntax);
            }
            (signed_count_of_pairs(count)?, true)
        }
        [count, ..] => {
            signed_count(count)?;
            return Err(CommandError::Syntax);
        }
    };
    let Some(hash) = context.read::<Hash>(args[0])? else {
        context.reply.array(0);
        return Ok(());
    };
    let places = random_places(&mut context.random, hash.len(), count);
    let pairs = with_values && context.reply.is_resp3();
    let width = if with_values && !pairs { 2 } else { 1 };
    context.reply.array(places.len() * width);
    for at in places {
        let (field, value) = hash.at(at);
        if pairs {
            context.reply.array(2);
        }
        context.reply.bulk(field);
        if with_values {
            context.reply.bulk(value);
        }
        if context.reply.is_too_large() {
            break;
        }
    }
    Ok(())
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count]`
fn hscan(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let cursor = cursor_of(args[1])?;
    context.reply.array(2);
    let Some(hash) = context.read::<Hash>(args[0])? else {
        reply_nothing_scanned(&mut context.reply);
        return Ok(());
    };
    let Scan { walk, pattern } = scan_options(cursor, &args[2..])?;
    let (entries, next) = hash.walk(walk);
    let mut glob = Glob::new(pattern.unwrap_or(b"*"));
    let shown = entries.filter(|(field, _)| glob.matches(field));
    reply_scanned(&mut context.reply, next, shown, |reply, (field, value)| {
        reply.bulk(field);
        reply.bulk(value);
        2
    });
    glob.finish()
}
