//! ZRANGE and the other commands on ranges of a sorted set.
//!
//! ```text
//!   ranks   0     1     2     3           ZRANGE key 1 2             by rank
//!           a:1   b:2   c:2   d:5         ZRANGE key (1 5 BYSCORE    by score
//!             └──── a range ───┘          ZRANGE key [b (d BYLEX     by name, if scores are equal
//!                                         … REV from the top, LIMIT offset count within
//! ```
//!
//! Every kind of range becomes a range of ranks first.

use super::arguments::{is, places};
use super::sorted_sets::{scored, scored_head};
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::ReadContext;
use crate::error::{CommandError, CommandResult};
use crate::keyspace::{Expiry, Keys};
use crate::numbers::parse_integer;
use crate::reply::Reply;
use crate::request::Args;
use crate::types::score::parse_bound;
use crate::types::sorted_set::{NameBound, NameRange, ScoreRange, SortedSet};
use crate::value::Stored;
use core::ops::Range;

pub(super) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Zcount => {
            let range = Bounds::parse(Kind::Score, args[1], args[2])?;
            reply_count(context, args[0], &range)
        }
        Op::Zlexcount => {
            let range = Bounds::parse(Kind::Name, args[1], args[2])?;
            reply_count(context, args[0], &range)
        }
        Op::Zrange => reply_range(context, args, Syntax::default()),
        Op::Zrangebylex => reply_range(context, args, Syntax::fixed(Kind::Name, false)),
        Op::Zrangebyscore => reply_range(context, args, Syntax::fixed(Kind::Score, false)),
        Op::Zrevrange => reply_range(context, args, Syntax::fixed(Kind::Rank, true)),
        Op::Zrevrangebylex => reply_range(context, args, Syntax::fixed(Kind::Name, true)),
        Op::Zrevrangebyscore => reply_range(context, args, Syntax::fixed(Kind::Score, true)),
        _ => Err(unsupported()),
    }
}

pub(super) fn write(
    op: Op,
    keys: &mut Keys<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    match op {
        Op::Zrangestore => zrangestore(keys, args, reply),
        Op::Zremrangebylex => remove_range(keys, Kind::Name, args, reply),
        Op::Zremrangebyrank => remove_range(keys, Kind::Rank, args, reply),
        Op::Zremrangebyscore => remove_range(keys, Kind::Score, args, reply),
        _ => Err(unsupported()),
    }
}

/// The kind of bounds of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rank,
    Score,
    Name,
}

/// The bounds of a range.
#[derive(Clone, Copy, Debug)]
enum Bounds<'a> {
    Rank(i64, i64),
    Score(ScoreRange),
    Name(NameRange<'a>),
}

fn score_bound(argument: &[u8]) -> Result<(f64, bool), CommandError> {
    let (open, number) = match argument {
        [b'(', number @ ..] => (true, number),
        number => (false, number),
    };
    let bound = parse_bound(number).ok_or(CommandError::Text("ERR min or max is not a float"))?;
    Ok((bound, open))
}

fn name_bound(argument: &[u8]) -> Result<NameBound<'_>, CommandError> {
    match argument {
        b"-" => Ok(NameBound::Lowest),
        b"+" => Ok(NameBound::Highest),
        [b'[', name @ ..] => Ok(NameBound::Closed(name)),
        [b'(', name @ ..] => Ok(NameBound::Open(name)),
        _ => Err(CommandError::Text(
            "ERR min or max not valid string range item",
        )),
    }
}

impl<'a> Bounds<'a> {
    fn parse(kind: Kind, min: &'a [u8], max: &'a [u8]) -> Result<Self, CommandError> {
        Ok(match kind {
            Kind::Rank => Self::Rank(parse_integer(min)?, parse_integer(max)?),
            Kind::Score => {
                let ((min, min_open), (max, max_open)) = (score_bound(min)?, score_bound(max)?);
                Self::Score(ScoreRange {
                    min,
                    min_open,
                    max,
                    max_open,
                })
            }
            Kind::Name => Self::Name(NameRange {
                min: name_bound(min)?,
                max: name_bound(max)?,
            }),
        })
    }

    /// The ranks that the bounds include. Bounds that are ranks count from the top if `from_top`.
    fn ranks(&self, set: &SortedSet, from_top: bool) -> Range<usize> {
        match self {
            Self::Rank(start, end) => {
                let ranks = places(*start, *end, set.len());
                if from_top && !ranks.is_empty() {
                    set.len() - ranks.end..set.len() - ranks.start
                } else {
                    ranks
                }
            }
            Self::Score(range) => set.ranks_by_score(range),
            Self::Name(range) => set.ranks_by_name(range),
        }
    }
}

/// The part of a range that the command fixes, and so leaves no option for.
#[derive(Clone, Copy, Debug, Default)]
struct Syntax {
    kind: Option<Kind>,
    from_top: Option<bool>,
    /// The result is stored, with scores in any case.
    stored: bool,
}

impl Syntax {
    const fn fixed(kind: Kind, from_top: bool) -> Self {
        Self {
            kind: Some(kind),
            from_top: Some(from_top),
            stored: false,
        }
    }

    /// Reads the bounds and the options behind them.
    fn parse<'a>(mut self, args: Args<'a>) -> Result<Selection<'a>, CommandError> {
        let mut with_scores = false;
        let (mut offset, mut limit) = (0, -1);
        let mut options = &args[2..];
        loop {
            options = match options {
                [] => break,
                [name, rest @ ..] if !self.stored && is(name, "withscores") => {
                    with_scores = true;
                    rest
                }
                [name, first, second, rest @ ..] if is(name, "limit") => {
                    offset = parse_integer(first)?;
                    limit = parse_integer(second)?;
                    rest
                }
                [name, rest @ ..] if self.from_top.is_none() && is(name, "rev") => {
                    self.from_top = Some(true);
                    rest
                }
                [name, rest @ ..] if self.kind.is_none() && is(name, "bylex") => {
                    self.kind = Some(Kind::Name);
                    rest
                }
                [name, rest @ ..] if self.kind.is_none() && is(name, "byscore") => {
                    self.kind = Some(Kind::Score);
                    rest
                }
                _ => return Err(CommandError::Syntax),
            };
        }
        let kind = self.kind.unwrap_or(Kind::Rank);
        let from_top = self.from_top.unwrap_or(false);
        if limit != -1 && kind == Kind::Rank {
            return Err(CommandError::Text(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or \
                 BYLEX",
            ));
        }
        if with_scores && kind == Kind::Name {
            return Err(CommandError::Text(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let (min, max) = match kind {
            Kind::Score | Kind::Name if from_top => (args[1], args[0]),
            _ => (args[0], args[1]),
        };
        let bounds = Bounds::parse(kind, min, max)?;
        Ok(Selection {
            bounds,
            from_top,
            offset,
            limit,
            with_scores,
        })
    }
}

/// Which members a command asks for, and how it wants them.
#[derive(Clone, Copy, Debug)]
struct Selection<'a> {
    bounds: Bounds<'a>,
    from_top: bool,
    /// How many to pass over; negative: all.
    offset: i64,
    /// How many to take; negative: all.
    limit: i64,
    with_scores: bool,
}

impl Selection<'_> {
    fn ranks(&self, set: &SortedSet) -> Range<usize> {
        let ranks = self.bounds.ranks(set, self.from_top);
        if matches!(self.bounds, Bounds::Rank(..)) {
            return ranks;
        }
        let offset = usize::try_from(self.offset)
            .unwrap_or(usize::MAX)
            .min(ranks.len());
        let limit = usize::try_from(self.limit)
            .unwrap_or(usize::MAX)
            .min(ranks.len() - offset);
        if self.from_top {
            ranks.end - offset - limit..ranks.end - offset
        } else {
            ranks.start + offset..ranks.start + offset + limit
        }
    }
}

fn reply_count(context: &mut ReadContext<'_>, key: &[u8], bounds: &Bounds<'_>) -> CommandResult {
    let set = context.read::<SortedSet>(key)?;
    context
        .reply
        .count(set.map_or(0, |set| bounds.ranks(set, false).len()));
    Ok(())
}

fn reply_range(context: &mut ReadContext<'_>, args: Args<'_>, syntax: Syntax) -> CommandResult {
    let selection = syntax.parse(&args[1..])?;
    let Some(set) = context.read::<SortedSet>(args[0])? else {
        context.reply.array(0);
        return Ok(());
    };
    let mut members = set.range(selection.ranks(set));
    let with_scores = selection.with_scores;
    scored_head(&mut context.reply, members.len(), with_scores);
    while let Some((member, score)) = if selection.from_top {
        members.next_back()
    } else {
        members.next()
    } {
        scored(&mut context.reply, member, score, with_scores);
    }
    Ok(())
}

/// `ZRANGESTORE destination source min max [BYSCORE|BYLEX] [REV] [LIMIT offset count]`
fn zrangestore(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let syntax = Syntax {
        stored: true,
        ..Syntax::default()
    };
    let selection = syntax.parse(&args[2..])?;
    let mut result = SortedSet::default();
    if let Some(set) = keys.read::<SortedSet>(args[1])? {
        for (member, score) in set.range(selection.ranks(set)) {
            result.set(member, score);
        }
    }
    store(keys, args[0], result, reply);
    Ok(())
}

/// Gives `key` a set that was computed, or deletes it if the set is empty.
pub(super) fn store(keys: &mut Keys<'_>, key: &[u8], set: SortedSet, reply: &mut Reply<'_>) {
    reply.count(set.len());
    if set.is_empty() {
        keys.remove(key);
    } else {
        keys.set(key, set.into_value(), Expiry::Never);
    }
}

/// `ZREMRANGEBYRANK key start stop`, `ZREMRANGEBYSCORE key min max`, `ZREMRANGEBYLEX key min max`
fn remove_range(
    keys: &mut Keys<'_>,
    kind: Kind,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let bounds = Bounds::parse(kind, args[1], args[2])?;
    let mut removed = 0;
    if let Some(mut held) = keys.open::<SortedSet>(args[0])? {
        let ranks = bounds.ranks(&held, false);
        if !ranks.is_empty() {
            removed = held.change().remove_range(ranks);
        }
    }
    reply.count(removed);
    Ok(())
}
