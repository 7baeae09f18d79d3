//! SADD, SINTER and the other commands on sets.
//!
//! ```text
//!   SADD oaks red white  ──► oaks: { red, white }             :2
//!   SINTER oaks woods    ──► what is in both, in the order of the smaller one
//!   SPOP oaks            ──► any one: chance comes with the command, so all replicas agree
//! ```

use super::arguments::{
    KEYS_MISSING, MUST_BE_POSITIVE, Scan, check_reply, count_above_zero, count_of, cursor_of, is,
    peek, random_places, reply_nothing_scanned, reply_scanned, sample, scan_options, signed_count,
};
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::{Expiry, Keys};
use crate::options::StoreOptions;
use crate::random::Random;
use crate::reply::Reply;
use crate::request::Args;
use crate::types::pattern::Glob;
use crate::types::set::Set;
use crate::types::table::hasher;
use crate::value::Stored;
use hashbrown::HashSet;

#[inline]
pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Scard => scard(context, args),
        Op::Sdiff => reply_combined(context, Combination::Difference, args),
        Op::Sinter => reply_combined(context, Combination::Intersection, args),
        Op::Sintercard => sintercard(context, args),
        Op::Sismember => sismember(context, args),
        Op::Smembers => smembers(context, args),
        Op::Smismember => smismember(context, args),
        Op::Srandmember => srandmember(context, args),
        Op::Sscan => sscan(context, args),
        Op::Sunion => reply_combined(context, Combination::Union, args),
        _ => Err(unsupported()),
    }
}

#[inline]
pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let WriteContext {
        keys,
        reply,
        random,
        options,
    } = context;
    match op {
        Op::Sadd => sadd(keys, args, reply),
        Op::Sdiffstore => store_combined(keys, Combination::Difference, args, reply),
        Op::Sinterstore => store_combined(keys, Combination::Intersection, args, reply),
        Op::Smove => smove(keys, args, reply),
        Op::Spop => spop(keys, random, args, options, reply),
        Op::Srem => srem(keys, args, reply),
        Op::Sunionstore => store_combined(keys, Combination::Union, args, reply),
        _ => Err(unsupported()),
    }
}

/// `SADD key member …`
fn sadd(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut held = keys.open_or_create::<Set>(args[0])?;
    let members = &args[1..];
    let mut added = 0;
    // Only a member that is new makes this a change of the key.
    if let Some(first) = members.iter().position(|member| !held.contains(member)) {
        let set = held.change();
        added = members[first..]
            .iter()
            .filter(|member| set.add(member))
            .count();
    }
    reply.count(added);
    Ok(())
}

/// `SREM key member …`
fn srem(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut removed = 0;
    if let Some(mut held) = keys.open::<Set>(args[0])? {
        let members = &args[1..];
        if let Some(first) = members.iter().position(|member| held.contains(member)) {
            let set = held.change();
            removed = members[first..]
                .iter()
                .filter(|member| set.remove(member))
                .count();
        }
    }
    reply.count(removed);
    Ok(())
}

/// `SMOVE source destination member`
fn smove(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let (source, destination, member) = (args[0], args[1], args[2]);
    let Some(set) = peek::<Set>(keys, source)? else {
        reply.yes(false);
        return Ok(());
    };
    let there = set.contains(member);
    peek::<Set>(keys, destination)?;
    if there && source != destination {
        if let Some(mut held) = keys.open::<Set>(source)? {
            held.change().remove(member);
        }
        let mut held = keys.open_or_create::<Set>(destination)?;
        if !held.contains(member) {
            held.change().add(member);
        }
    }
    reply.yes(there);
    Ok(())
}

/// `SPOP key [count]`
fn spop(
    keys: &mut Keys<'_>,
    random: &mut Random,
    args: Args<'_>,
    options: &StoreOptions,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let count = match args[1..] {
        [] => None,
        [count] => Some(count_of(count, MUST_BE_POSITIVE)?),
        _ => return Err(CommandError::Syntax),
    };
    match (keys.open::<Set>(args[0])?, count) {
        (None, None) => reply.null(),
        (None, Some(_)) | (Some(_), Some(0)) => reply.set(0),
        (Some(mut held), None) => {
            let set = held.change();
            let popped = set.remove_at(random.below(set.len()));
            reply.bulk(&popped);
        }
        (Some(mut held), Some(count)) => {
            let mut places = sample(random, held.len(), count);
            check_reply(options, places.iter().map(|&at| held.at(at)))?;
            reply.set(places.len());
            for &at in &places {
                reply.bulk(held.at(at));
            }
            // From the last to the first, so that what moves into a gap is none of the others.
            places.sort_unstable();
            let set = held.change();
            for at in places.into_iter().rev() {
                set.remove_at(at);
            }
        }
    }
    Ok(())
}

/// `SMEMBERS key`
fn smembers(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let set = context.read::<Set>(args[0])?;
    context.reply.set(set.map_or(0, Set::len));
    for member in set.into_iter().flat_map(Set::iter) {
        context.reply.bulk(member);
    }
    Ok(())
}

/// `SISMEMBER key member`
fn sismember(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let set = context.read::<Set>(args[0])?;
    context
        .reply
        .yes(set.is_some_and(|set| set.contains(args[1])));
    Ok(())
}

/// `SMISMEMBER key member …`
fn smismember(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let set = context.read::<Set>(args[0])?;
    context.reply.array(args.len() - 1);
    for member in &args[1..] {
        context
            .reply
            .yes(set.is_some_and(|set| set.contains(member)));
    }
    Ok(())
}

/// `SCARD key`
fn scard(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let set = context.read::<Set>(args[0])?;
    context.reply.count(set.map_or(0, Set::len));
    Ok(())
}

/// `SRANDMEMBER key [count]`
fn srandmember(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let count = match args[1..] {
        [] => None,
        [count] => Some(signed_count(count)?),
        _ => return Err(CommandError::Syntax),
    };
    match (context.read::<Set>(args[0])?, count) {
        (None, None) => context.reply.null(),
        (None, Some(_)) => context.reply.array(0),
        (Some(set), None) => context.reply.bulk(set.at(context.random.below(set.len()))),
        (Some(set), Some(count)) => {
            let places = random_places(&mut context.random, set.len(), count);
            context.reply.array(places.len());
            for at in places {
                context.reply.bulk(set.at(at));
                if context.reply.is_too_large() {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// `SSCAN key cursor [MATCH pattern] [COUNT count]`
fn sscan(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let cursor = cursor_of(args[1])?;
    context.reply.array(2);
    let Some(set) = context.read::<Set>(args[0])? else {
        reply_nothing_scanned(&mut context.reply);
        return Ok(());
    };
    let Scan { walk, pattern } = scan_options(cursor, &args[2..])?;
    let (members, next) = set.walk(walk);
    let mut glob = Glob::new(pattern.unwrap_or(b"*"));
    let shown = members.filter(|member| glob.matches(member));
    reply_scanned(&mut context.reply, next, shown, |reply, member| {
        reply.bulk(member);
        1
    });
    glob.finish()
}

/// How several sets become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combination {
    Intersection,
    Union,
    Difference,
}

impl Combination {
    /// The members of the resulting set, in an order that follows from the sets alone. A key that
    /// does not exist is an empty set.
    fn members<'s>(self, sets: &[Option<&'s Set>]) -> Vec<&'s [u8]> {
        match self {
            Self::Intersection => intersection(sets, usize::MAX).unwrap_or_default(),
            Self::Union => {
                let len = sets
                    .iter()
                    .flatten()
                    .map(|set| set.len())
                    .max()
                    .unwrap_or(0);
                let mut members = Vec::with_capacity(len);
                // Only asked, never iterated: its order cannot reach a reply.
                let mut seen = HashSet::with_capacity_and_hasher(len, hasher());
                for member in sets.iter().flatten().flat_map(|set| set.iter()) {
                    if seen.insert(member) {
                        members.push(member);
                    }
                }
                members
            }
            Self::Difference => {
                let (first, others) = sets.split_first().map_or((None, sets), |(f, o)| (*f, o));
                let elsewhere =
                    |member: &[u8]| others.iter().flatten().any(|set| set.contains(member));
                first
                    .into_iter()
                    .flat_map(Set::iter)
                    .filter(|member| !elsewhere(member))
                    .collect()
            }
        }
    }
}

/// The members that all sets have in common, up to `len_max`; `None` if a set is empty.
fn intersection<'s>(sets: &[Option<&'s Set>], len_max: usize) -> Option<Vec<&'s [u8]>> {
    let mut sets = sets.iter().copied().collect::<Option<Vec<_>>>()?;
    sets.sort_by_key(|set| set.len());
    let (smallest, others) = sets.split_first()?;
    let everywhere = |member: &&[u8]| others.iter().all(|set| set.contains(member));
    Some(smallest.iter().filter(everywhere).take(len_max).collect())
}

/// `SINTER key …`, `SUNION key …` and `SDIFF key …`
fn reply_combined(
    context: &mut ReadContext<'_>,
    combination: Combination,
    args: Args<'_>,
) -> CommandResult {
    let sets = args
        .iter()
        .map(|key| context.read::<Set>(key))
        .collect::<Result<Vec<_>, _>>()?;
    let members = combination.members(&sets);
    context.reply.set(members.len());
    for member in members {
        context.reply.bulk(member);
    }
    Ok(())
}

/// `SINTERSTORE destination key …`, `SUNIONSTORE destination key …`, `SDIFFSTORE destination key …`
fn store_combined(
    keys: &mut Keys<'_>,
    combination: Combination,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let sets = args[1..]
        .iter()
        .map(|key| peek::<Set>(keys, key))
        .collect::<Result<Vec<_>, _>>()?;
    let members = combination.members(&sets);
    let mut result = Set::with_capacity(members.len());
    for member in members {
        result.add(member);
    }
    reply.count(result.len());
    if result.is_empty() {
        keys.remove(args[0]);
    } else {
        keys.set(args[0], result.into_value(), Expiry::Never);
    }
    Ok(())
}

/// `SINTERCARD numkeys key … [LIMIT limit]`
fn sintercard(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let number = count_above_zero(args[0], KEYS_MISSING)?;
    let Some((names, mut options)) = args[1..].split_at_checked(number) else {
        return Err(CommandError::Text(
            "ERR Number of keys can't be greater than number of args",
        ));
    };
    let mut len_max = 0;
    while let [name, rest @ ..] = options {
        let [limit, rest @ ..] = rest else {
            return Err(CommandError::Syntax);
        };
        if !is(name, "limit") {
            return Err(CommandError::Syntax);
        }
        len_max = count_of(limit, "ERR LIMIT can't be negative")?;
        options = rest;
    }
    let sets = names
        .iter()
        .map(|key| context.read::<Set>(key))
        .collect::<Result<Vec<_>, _>>()?;
    let len_max = if len_max == 0 { usize::MAX } else { len_max };
    context
        .reply
        .count(intersection(&sets, len_max).map_or(0, |members| members.len()));
    Ok(())
}
