//! ZUNION, ZINTER, ZDIFF: several sets, sorted or not, become one.
//!
//! ```text
//!   a: { x:1 y:2 }  ×2 ─┐           union   x:2  y:7  z:5      SUM, MIN or MAX where
//!   b: { y:3 z:5 }  ×1 ─┴─ combine  inter   y:7                a member is in several
//!                                   diff    x:1                without weights
//! ```
//!
//! Members of a plain set count as having the score 1.

use super::arguments::{count_of, is, peek_value};
use super::sorted_set_ranges::store;
use super::sorted_sets::{scored, scored_head};
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::ReadContext;
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Keys;
use crate::numbers::parse_integer;
use crate::reply::Reply;
use crate::request::Args;
use crate::types::score::parse_score;
use crate::types::set::Set;
use crate::types::sorted_set::SortedSet;
use crate::types::table::hasher;
use crate::value::Value;
use core::cmp::Ordering;
use hashbrown::HashMap;

pub(super) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let (combination, options) = match op {
        Op::Zdiff => (
            Combination::Difference,
            Options {
                scores: true,
                ..Options::default()
            },
        ),
        Op::Zinter => {
            let options = Options {
                weights: true,
                scores: true,
                limit: false,
            };
            (Combination::Intersection, options)
        }
        Op::Zintercard => (
            Combination::Intersection,
            Options {
                limit: true,
                ..Options::default()
            },
        ),
        Op::Zunion => {
            let options = Options {
                weights: true,
                scores: true,
                limit: false,
            };
            (Combination::Union, options)
        }
        _ => return Err(unsupported()),
    };
    let plan = Plan::parse(op, args, options, |key| Source::of(context.value(key)))?;
    if op == Op::Zintercard {
        let len_max = if plan.len_max == 0 {
            usize::MAX
        } else {
            plan.len_max
        };
        context.reply.count(plan.intersection(len_max).len());
        return Ok(());
    }
    let mut members = plan.combine(combination);
    members.sort_by(|one, other| {
        let by_score = one.1.partial_cmp(&other.1).unwrap_or(Ordering::Equal);
        by_score.then_with(|| one.0.cmp(other.0))
    });
    scored_head(&mut context.reply, members.len(), plan.with_scores);
    for (member, score) in members {
        scored(&mut context.reply, member, score, plan.with_scores);
    }
    Ok(())
}

pub(super) fn write(
    op: Op,
    keys: &mut Keys<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> CommandResult {
    let (combination, weights) = match op {
        Op::Zdiffstore => (Combination::Difference, false),
        Op::Zinterstore => (Combination::Intersection, true),
        Op::Zunionstore => (Combination::Union, true),
        _ => return Err(unsupported()),
    };
    let options = Options {
        weights,
        ..Options::default()
    };
    let plan = Plan::parse(op, &args[1..], options, |key| {
        Source::of(peek_value(keys, key))
    })?;
    let members = plan.combine(combination);
    let mut result = SortedSet::with_capacity(members.len());
    for (member, score) in members {
        result.set(member, score);
    }
    store(keys, args[0], result, reply);
    Ok(())
}

/// One of the sets that are combined.
#[derive(Clone, Copy, Debug)]
enum Source<'s> {
    Missing,
    Plain(&'s Set),
    Sorted(&'s SortedSet),
}

impl<'s> Source<'s> {
    fn of(value: Option<&'s Value>) -> Result<Self, CommandError> {
        match value {
            None => Ok(Self::Missing),
            Some(Value::Set(set)) => Ok(Self::Plain(set)),
            Some(Value::SortedSet(set)) => Ok(Self::Sorted(set)),
            Some(_) => Err(CommandError::WrongType),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Missing => 0,
            Self::Plain(set) => set.len(),
            Self::Sorted(set) => set.len(),
        }
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            Self::Missing => None,
            Self::Plain(set) => set.contains(member).then_some(1.0),
            Self::Sorted(set) => set.score(member),
        }
    }

    /// All members with their scores, in dense order.
    fn iter(self) -> impl Iterator<Item = (&'s [u8], f64)> {
        let (plain, sorted) = match self {
            Self::Missing => (None, None),
            Self::Plain(set) => (Some(set), None),
            Self::Sorted(set) => (None, Some(set)),
        };
        let plain = plain
            .into_iter()
            .flat_map(Set::iter)
            .map(|member| (member, 1.0));
        plain.chain(sorted.into_iter().flat_map(SortedSet::iter))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combination {
    Union,
    Intersection,
    Difference,
}

/// Which options a command takes.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    /// WEIGHTS and AGGREGATE.
    weights: bool,
    /// WITHSCORES.
    scores: bool,
    /// LIMIT.
    limit: bool,
}

/// How a member that is in several sets is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn apply(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Sum => not_a_number_is_zero(one + other),
            Self::Min if other < one => other,
            Self::Max if other > one => other,
            Self::Min | Self::Max => one,
        }
    }
}

/// Infinity minus infinity, and zero times infinity, count as 0 here.
const fn not_a_number_is_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// Everything that a command says.
#[derive(Debug)]
struct Plan<'s> {
    sources: Vec<(Source<'s>, f64)>,
    aggregate: Aggregate,
    with_scores: bool,
    len_max: usize,
}

impl<'s> Plan<'s> {
    /// Reads `numkeys key … [WEIGHTS …] [AGGREGATE …] [WITHSCORES] [LIMIT …]`.
    fn parse(
        op: Op,
        args: Args<'_>,
        allowed: Options,
        source: impl Fn(&[u8]) -> Result<Source<'s>, CommandError>,
    ) -> Result<Self, CommandError> {
        let number = parse_integer(args[0])?;
        if number < 1 {
            return Err(CommandError::Owned(format!(
                "ERR at least 1 input key is needed for '{}' command",
                op.spec().name
            )));
        }
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        let (names, mut options) = args[1..]
            .split_at_checked(number)
            .ok_or(CommandError::Syntax)?;
        let mut plan = Self {
            sources: names
                .iter()
                .map(|key| Ok((source(key)?, 1.0)))
                .collect::<Result<_, CommandError>>()?,
            aggregate: Aggregate::Sum,
            with_scores: false,
            len_max: 0,
        };
        loop {
            options = match options {
                [] => return Ok(plan),
                [name, rest @ ..]
                    if allowed.weights && rest.len() >= number && is(name, "weights") =>
                {
                    let (weights, rest) = rest.split_at(number);
                    for ((_, weight), text) in plan.sources.iter_mut().zip(weights) {
                        *weight = parse_score(text)
                            .ok_or(CommandError::Text("ERR weight value is not a float"))?;
                    }
                    rest
                }
                [name, kind, rest @ ..] if allowed.weights && is(name, "aggregate") => {
                    plan.aggregate = match kind {
                        kind if is(kind, "sum") => Aggregate::Sum,
                        kind if is(kind, "min") => Aggregate::Min,
                        kind if is(kind, "max") => Aggregate::Max,
                        _ => return Err(CommandError::Syntax),
                    };
                    rest
                }
                [name, rest @ ..] if allowed.scores && is(name, "withscores") => {
                    plan.with_scores = true;
                    rest
                }
                [name, limit, rest @ ..] if allowed.limit && is(name, "limit") => {
                    plan.len_max = count_of(limit, "ERR LIMIT can't be negative")?;
                    rest
                }
                _ => return Err(CommandError::Syntax),
            };
        }
    }

    /// The members of the result with their scores. Their order follows from the sets alone.
    fn combine(&self, combination: Combination) -> Vec<(&'s [u8], f64)> {
        match combination {
            Combination::Union => self.union(),
            Combination::Intersection => self.intersection(usize::MAX),
            Combination::Difference => self.difference(),
        }
    }

    /// From the smallest to the largest, as Redis adds them up: sums of floats depend on it.
    fn ascending(&self) -> Vec<(Source<'s>, f64)> {
        let mut sources = self.sources.clone();
        sources.sort_by_key(|(source, _)| source.len());
        sources
    }

    fn union(&self) -> Vec<(&'s [u8], f64)> {
        let sources = self.ascending();
        let len = sources.last().map_or(0, |(source, _)| source.len());
        let mut members: Vec<(&'s [u8], f64)> = Vec::with_capacity(len);
        // Only asked, never iterated: its order cannot reach a reply.
        let mut places = HashMap::with_capacity_and_hasher(len, hasher());
        for (source, weight) in sources {
            for (member, score) in source.iter() {
                let score = not_a_number_is_zero(score * weight);
                let at = *places.entry(member).or_insert(members.len());
                match members.get_mut(at) {
                    Some((_, sum)) => *sum = self.aggregate.apply(*sum, score),
                    None => members.push((member, score)),
                }
            }
        }
        members
    }

    fn intersection(&self, len_max: usize) -> Vec<(&'s [u8], f64)> {
        let sources = self.ascending();
        let Some(((smallest, weight), others)) = sources.split_first() else {
            return Vec::new();
        };
        let combined = smallest.iter().filter_map(|(member, score)| {
            let mut sum = not_a_number_is_zero(score * weight);
            for (other, weight) in others {
                sum = self.aggregate.apply(sum, other.score(member)? * weight);
            }
            Some((member, sum))
        });
        combined.take(len_max).collect()
    }

    fn difference(&self) -> Vec<(&'s [u8], f64)> {
        let Some(((first, _), others)) = self.sources.split_first() else {
            return Vec::new();
        };
        let elsewhere = |member: &[u8]| {
            others
                .iter()
                .any(|(other, _)| other.score(member).is_some())
        };
        first
            .iter()
            .filter(|(member, _)| !elsewhere(member))
            .collect()
    }
}
