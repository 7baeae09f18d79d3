//! ZADD, ZRANK and the other commands on single sorted sets; those on ranges and on several sets
//! have files of their own.
//!
//! ```text
//!   ZADD race 9.8 bolt 9.9 blake  ──► race: 0 bolt:9.8 │ 1 blake:9.9     :2
//!   ZRANK race blake              ──► :1
//!   ZPOPMIN race                  ──► bolt 9.8
//! ```

use super::arguments::{
    KEYS_MISSING, MUST_BE_POSITIVE, Scan, check_reply, count_above_zero, count_of, cursor_of, is,
    random_places, reply_nothing_scanned, reply_scanned, scan_options, signed_count,
    signed_count_of_pairs,
};
use super::sorted_set_combinations as combinations;
use super::sorted_set_ranges as ranges;
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Keys;
use crate::numbers::{write_double, write_integer};
use crate::options::StoreOptions;
use crate::reply::Reply;
use crate::request::Args;
use crate::types::pattern::Glob;
use crate::types::score::parse_score;
use crate::types::sorted_set::{AddRule, Added, SortedSet};
use smallvec::SmallVec;

#[inline]
pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Zcard => zcard(context, args),
        Op::Zmscore => each_score(context, args, score_or_null),
        Op::Zrandmember => zrandmember(context, args),
        Op::Zrank => zrank(context, args, false),
        Op::Zrevrank => zrank(context, args, true),
        Op::Zscan => zscan(context, args),
        Op::Zscore => zscore(context, args),
        Op::Zdiff | Op::Zinter | Op::Zintercard | Op::Zunion => {
            combinations::read(op, context, args)
        }
        _ => ranges::read(op, context, args),
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
        Op::Zadd => zadd(keys, args, AddRule::default(), reply),
        Op::Zincrby => {
            let rule = AddRule {
                increment: true,
                ..AddRule::default()
            };
            zadd(keys, args, rule, reply)
        }
        Op::Zmpop => zmpop(keys, args, options, reply),
        Op::Zpopmax => zpop(keys, Extreme::Highest, args, options, reply),
        Op::Zpopmin => zpop(keys, Extreme::Lowest, args, options, reply),
        Op::Zrem => zrem(keys, args, reply),
        Op::Zdiffstore | Op::Zinterstore | Op::Zunionstore => {
            combinations::write(op, keys, args, reply)
        }
        Op::Zrangestore | Op::Zremrangebylex | Op::Zremrangebyrank | Op::Zremrangebyscore => {
            ranges::write(op, keys, args, reply)
        }
        _ => Err(unsupported()),
    }
}

/// The head of an array of `len` members with or without their scores.
pub(super) fn scored_head(reply: &mut Reply<'_>, len: usize, with_scores: bool) {
    let width = if with_scores && !reply.is_resp3() {
        2
    } else {
        1
    };
    reply.array(len.saturating_mul(width));
}

/// One element of an array begun by [`scored_head`].
pub(super) fn scored(reply: &mut Reply<'_>, member: &[u8], score: f64, with_scores: bool) {
    if with_scores && reply.is_resp3() {
        reply.array(2);
    }
    reply.bulk(member);
    if with_scores {
        reply.double(score);
    }
}

/// `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member …` and `ZINCRBY key increment member`
pub(super) fn zadd(
    keys: &mut Keys<'_>,
    args: Args<'_>,
    mut rule: AddRule,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let mut count_changed = false;
    let mut rest = &args[1..];
    while let [option, others @ ..] = rest {
        match option {
            _ if is(option, "nx") => rule.only_new = true,
            _ if is(option, "xx") => rule.only_existing = true,
            _ if is(option, "gt") => rule.only_greater = true,
            _ if is(option, "lt") => rule.only_less = true,
            _ if is(option, "ch") => count_changed = true,
            _ if is(option, "incr") => rule.increment = true,
            _ => break,
        }
        rest = others;
    }
    let (pairs, odd) = rest.as_chunks::<2>();
    if pairs.is_empty() || !odd.is_empty() {
        return Err(CommandError::Syntax);
    }
    if rule.only_new && rule.only_existing {
        return Err(CommandError::Text(
            "ERR XX and NX options at the same time are not compatible",
        ));
    }
    if u8::from(rule.only_greater) + u8::from(rule.only_less) + u8::from(rule.only_new) > 1 {
        return Err(CommandError::Text(
            "ERR GT, LT, and/or NX options at the same time are not compatible",
        ));
    }
    if rule.increment && pairs.len() > 1 {
        return Err(CommandError::Text(
            "ERR INCR option supports a single increment-element pair",
        ));
    }
    // All scores are read before anything is changed.
    let scores = pairs
        .iter()
        .map(|[score, _]| parse_score(score).ok_or(CommandError::NotFloat))
        .collect::<Result<SmallVec<[f64; 4]>, _>>()?;
    let elements = || {
        scores
            .iter()
            .zip(pairs)
            .map(|(&score, [_, member])| (score, *member))
    };

    let mut held = keys.open_or_create::<SortedSet>(args[0])?;
    let (mut new, mut changed, mut last) = (0, 0, Added::Refused);
    // Only what gives an element or a score makes this a change of the key.
    let first = elements().position(|(score, member)| {
        last = held.plan(member, score, rule);
        matches!(last, Added::New(_) | Added::Changed(_))
    });
    if let Some(first) = first {
        let set = held.change();
        for (score, member) in elements().skip(first) {
            last = set.add(member, score, rule);
            new += usize::from(matches!(last, Added::New(_)));
            changed += usize::from(matches!(last, Added::Changed(_)));
        }
    }
    if !rule.increment {
        reply.count(if count_changed { new + changed } else { new });
        return Ok(());
    }
    match last {
        Added::New(score) | Added::Changed(score) | Added::Same(score) => reply.double(score),
        Added::Refused => reply.null(),
        Added::NotANumber => {
            return Err(CommandError::Text(
                "ERR resulting score is not a number (NaN)",
            ));
        }
    }
    Ok(())
}

/// `ZREM key member …`
fn zrem(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let mut removed = 0;
    if let Some(mut held) = keys.open::<SortedSet>(args[0])? {
        let members = &args[1..];
        if let Some(first) = members
            .iter()
            .position(|member| held.score(member).is_some())
        {
            let set = held.change();
            removed = members[first..]
                .iter()
                .filter(|member| set.remove(member).is_some())
                .count();
        }
    }
    reply.count(removed);
    Ok(())
}

/// `ZCARD key`
fn zcard(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let set = context.read::<SortedSet>(args[0])?;
    context.reply.count(set.map_or(0, SortedSet::len));
    Ok(())
}

fn score_or_null(reply: &mut Reply<'_>, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

/// `ZSCORE key member`
fn zscore(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let set = context.read::<SortedSet>(args[0])?;
    score_or_null(&mut context.reply, set.and_then(|set| set.score(args[1])));
    Ok(())
}

/// Answers what `emit` makes of the score of each member: `ZMSCORE key member …` and others.
pub(super) fn each_score(
    context: &mut ReadContext<'_>,
    args: Args<'_>,
    emit: impl Fn(&mut Reply<'_>, Option<f64>),
) -> CommandResult {
    let set = context.read::<SortedSet>(args[0])?;
    context.reply.array(args.len() - 1);
    for member in &args[1..] {
        emit(&mut context.reply, set.and_then(|set| set.score(member)));
    }
    Ok(())
}

/// `ZRANK key member` and `ZREVRANK key member`
fn zrank(context: &mut ReadContext<'_>, args: Args<'_>, from_top: bool) -> CommandResult {
    let set = context.read::<SortedSet>(args[0])?;
    match set.and_then(|set| Some((set.rank(args[1])?, set.len()))) {
        Some((rank, len)) => context
            .reply
            .count(if from_top { len - 1 - rank } else { rank }),
        None => context.reply.null(),
    }
    Ok(())
}

/// Which end of a sorted set to take from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extreme {
    Lowest,
    Highest,
}

impl Extreme {
    fn pop(self, set: &mut SortedSet) -> Option<(Box<[u8]>, f64)> {
        match self {
            Self::Lowest => set.pop(0),
            Self::Highest => set.pop(set.len().checked_sub(1)?),
        }
    }

    /// Refuses to take more out than fits into a reply; `count` is at most the length.
    fn check_pop(self, set: &SortedSet, count: usize, options: &StoreOptions) -> CommandResult {
        let ranks = match self {
            Self::Lowest => 0..count,
            Self::Highest => set.len() - count..set.len(),
        };
        check_reply(options, set.range(ranks).map(|(member, _)| member))
    }
}

/// `ZPOPMIN key [count]` and `ZPOPMAX key [count]`
fn zpop(
    keys: &mut Keys<'_>,
    extreme: Extreme,
    args: Args<'_>,
    options: &StoreOptions,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let count = match args[1..] {
        [] => None,
        [count] => Some(count_of(count, MUST_BE_POSITIVE)?),
        _ => return Err(CommandError::Syntax),
    };
    let Some(mut held) = keys
        .open::<SortedSet>(args[0])?
        .filter(|_| count != Some(0))
    else {
        reply.array(0);
        return Ok(());
    };
    let nested = reply.is_resp3() && count.is_some();
    let count = count.unwrap_or(1).min(held.len());
    extreme.check_pop(&held, count, options)?;
    reply.array(if nested { count } else { 2 * count });
    pop_many(held.change(), extreme, count, nested, reply);
    Ok(())
}

fn pop_many(
    set: &mut SortedSet,
    extreme: Extreme,
    count: usize,
    nested: bool,
    reply: &mut Reply<'_>,
) {
    for _ in 0..count {
        if let Some((member, score)) = extreme.pop(set) {
            if nested {
                reply.array(2);
            }
            reply.bulk(&member);
            reply.double(score);
        }
    }
}

/// `ZMPOP numkeys key … MIN|MAX [COUNT count]`
fn zmpop(
    keys: &mut Keys<'_>,
    args: Args<'_>,
    limits: &StoreOptions,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let number = count_above_zero(args[0], KEYS_MISSING)?;
    let Some((names, [extreme, options @ ..])) = args[1..].split_at_checked(number) else {
        return Err(CommandError::Syntax);
    };
    let extreme = if is(extreme, "min") {
        Extreme::Lowest
    } else if is(extreme, "max") {
        Extreme::Highest
    } else {
        return Err(CommandError::Syntax);
    };
    let count = match options {
        [] => 1,
        [name, count, rest @ ..] if is(name, "count") => {
            let count = count_above_zero(count, "ERR count should be greater than 0")?;
            if !rest.is_empty() {
                return Err(CommandError::Syntax);
            }
            count
        }
        _ => return Err(CommandError::Syntax),
    };
    for name in names {
        if let Some(mut held) = keys.open::<SortedSet>(name)? {
            let count = count.min(held.len());
            extreme.check_pop(&held, count, limits)?;
            reply.array(2);
            reply.bulk(name);
            reply.array(count);
            pop_many(held.change(), extreme, count, true, reply);
            return Ok(());
        }
    }
    reply.null_array();
    Ok(())
}

/// `ZRANDMEMBER key [count [WITHSCORES]]`
fn zrandmember(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let (count, with_scores) = match args[1..] {
        [] => {
            let set = context.read::<SortedSet>(args[0])?;
            let chosen = set.map(|set| set.at(context.random.below(set.len())).0);
            context.reply.bulk_or_null(chosen);
            return Ok(());
        }
        [count] => (signed_count(count)?, false),
        [count, option] => {
            // A count that is none is reported before an option that is none.
            signed_count(count)?;
            if !is(option, "withscores") {
                return Err(CommandError::Syntax);
            }
            (signed_count_of_pairs(count)?, true)
        }
        [count, ..] => {
            signed_count(count)?;
            return Err(CommandError::Syntax);
        }
    };
    let Some(set) = context.read::<SortedSet>(args[0])? else {
        context.reply.array(0);
        return Ok(());
    };
    let places = random_places(&mut context.random, set.len(), count);
    scored_head(&mut context.reply, places.len(), with_scores);
    for at in places {
        let (member, score) = set.at(at);
        scored(&mut context.reply, member, score, with_scores);
        if context.reply.is_too_large() {
            break;
        }
    }
    Ok(())
}

/// `ZSCAN key cursor [MATCH pattern] [COUNT count]`
fn zscan(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let cursor = cursor_of(args[1])?;
    context.reply.array(2);
    let Some(set) = context.read::<SortedSet>(args[0])? else {
        reply_nothing_scanned(&mut context.reply);
        return Ok(());
    };
    let Scan { walk, pattern } = scan_options(cursor, &args[2..])?;
    let (members, next) = set.walk(walk);
    let mut digits = Vec::with_capacity(24);
    let mut glob = Glob::new(pattern.unwrap_or(b"*"));
    let shown = members.filter(|(member, _)| glob.matches(member));
    reply_scanned(&mut context.reply, next, shown, |reply, (member, score)| {
        digits.clear();
        // Redis's compact form keeps whole scores as integers, and shows them as such here.
        if set.is_compact() && score.fract() == 0.0 && score.abs() <= (1u64 << 62) as f64 {
            write_integer(&mut digits, score as i64);
        } else {
            write_double(&mut digits, score);
        }
        reply.bulk(member);
        reply.bulk(&digits);
        2
    });
    glob.finish()
}
