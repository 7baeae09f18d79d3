//! GEOADD, GEOSEARCH and the other commands on places, which are members of sorted sets.
//!
//! ```text
//!   GEOADD sicily 13.361389 38.115556 palermo ──► ZADD sicily 3479099956230698 palermo
//!   GEOSEARCH sicily FROMLONLAT 15 37 BYRADIUS 200 km
//!      └─ up to nine cells around it ─► ranges of scores ─► members ─► those in the shape
//! ```

use super::arguments::is;
use super::sorted_set_ranges::store;
use super::sorted_sets::{each_score, zadd};
use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Keys;
use crate::numbers::{parse_float, parse_integer, write_integer};
use crate::reply::Reply;
use crate::request::Args;
use crate::types::geohash::{Point, Shape, distance, is_place, point_of, score_of, text_of};
use crate::types::sorted_set::{AddRule, SortedSet};
use crate::value::{Stored, Value};
use std::io::Write as _;

const NO_MEMBER: CommandError = CommandError::Text("ERR could not decode requested zset member");

pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Geodist => geodist(context, args),
        Op::Geohash => each_score(context, args, |reply, score| match score {
            Some(score) => reply.bulk(&text_of(score)),
            None => reply.null(),
        }),
        Op::Geopos => each_score(context, args, |reply, score| match score {
            Some(score) => reply_point(reply, point_of(score)),
            None => reply.null_array(),
        }),
        Op::GeoradiusRo | Op::GeoradiusbymemberRo | Op::Geosearch => {
            let set = context.read::<SortedSet>(args[0])?;
            let search = Search::parse(op, args, set)?;
            search.reply(set, &mut context.reply);
            Ok(())
        }
        _ => Err(unsupported()),
    }
}

pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let WriteContext { keys, reply, .. } = context;
    match op {
        Op::Geoadd => geoadd(keys, args, reply),
        Op::Georadius | Op::Georadiusbymember | Op::Geosearchstore => {
            let source = args[usize::from(op == Op::Geosearchstore)];
            let set = keys.read::<SortedSet>(source)?;
            let search = Search::parse(op, args, set)?;
            let Some(target) = search.target else {
                search.reply(set, reply);
                return Ok(());
            };
            let mut result = SortedSet::default();
            for found in search.found(set) {
                let score = if search.stores_distances {
                    found.away / search.unit
                } else {
                    found.score
                };
                result.set(found.member, score);
            }
            store(keys, target, result, reply);
            Ok(())
        }
        _ => Err(unsupported()),
    }
}

/// How many members a search looks at, which shows in no reply.
pub(crate) fn looked_at<'v>(
    op: Op,
    args: Args<'_>,
    value: impl Fn(&[u8]) -> Option<&'v Value>,
) -> u64 {
    let source = args[usize::from(op == Op::Geosearchstore)];
    let Some(set) = value(source).and_then(SortedSet::of) else {
        return 0;
    };
    // A search that is none says so, and takes no time.
    let Ok(search) = Search::parse(op, args, Some(set)) else {
        return 0;
    };
    let ranges = search.shape.scores(search.center).into_iter();
    ranges
        .map(|range| set.ranks_by_score(&range).len() as u64)
        .sum()
}

/// `GEOADD key [NX|XX] [CH] longitude latitude member …`
fn geoadd(keys: &mut Keys<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let is_option = |argument: &&[u8]| ["nx", "xx", "ch"].iter().any(|name| is(argument, name));
    let options = args[1..].iter().take_while(|arg| is_option(arg)).count();
    let (options, rest) = args[1..].split_at(options);
    let given = |name| options.iter().any(|option| is(option, name));
    let (places, odd) = rest.as_chunks::<3>();
    if !odd.is_empty() || given("nx") && given("xx") {
        return Err(CommandError::Syntax);
    }
    let scores = places
        .iter()
        .map(|[longitude, latitude, _]| {
            let mut digits = Vec::with_capacity(16);
            write_integer(&mut digits, score_of(place_of(longitude, latitude)?) as i64);
            Ok(digits)
        })
        .collect::<Result<Vec<_>, CommandError>>()?;
    let mut as_zadd = vec![args[0]];
    as_zadd.extend(options);
    for (score, [_, _, member]) in scores.iter().zip(places) {
        as_zadd.extend([score.as_slice(), member]);
    }
    zadd(keys, &as_zadd, AddRule::default(), reply)
}

fn place_of(longitude: &[u8], latitude: &[u8]) -> Result<Point, CommandError> {
    let point = (parse_float(longitude)?, parse_float(latitude)?);
    if !is_place(point) {
        let (longitude, latitude) = point;
        return Err(CommandError::Owned(format!(
            "ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}"
        )));
    }
    Ok(point)
}

/// Metres of a unit.
fn unit_of(argument: &[u8]) -> Result<f64, CommandError> {
    [("m", 1.0), ("km", 1000.0), ("ft", 0.3048), ("mi", 1609.34)]
        .into_iter()
        .find(|(name, _)| is(argument, name))
        .map(|(_, meters)| meters)
        .ok_or(CommandError::Text(
            "ERR unsupported unit provided. please use M, KM, FT, MI",
        ))
}

fn number_of(argument: &[u8], text: &'static str) -> Result<f64, CommandError> {
    parse_float(argument).map_err(|_| CommandError::Text(text))
}

/// `radius unit`, with the metres of the unit.
fn circle_of(radius: &[u8], unit: &[u8]) -> Result<(Shape, f64), CommandError> {
    let radius = number_of(radius, "ERR need numeric radius")?;
    if radius < 0.0 {
        return Err(CommandError::Text("ERR radius cannot be negative"));
    }
    let unit = unit_of(unit)?;
    Ok((Shape::Circle(radius * unit), unit))
}

/// `width height unit`, with the metres of the unit.
fn box_of(width: &[u8], height: &[u8], unit: &[u8]) -> Result<(Shape, f64), CommandError> {
    let width = number_of(width, "ERR need numeric width")?;
    let height = number_of(height, "ERR need numeric height")?;
    if width < 0.0 || height < 0.0 {
        return Err(CommandError::Text("ERR height or width cannot be negative"));
    }
    let unit = unit_of(unit)?;
    Ok((Shape::Box(width * unit, height * unit), unit))
}

/// `GEODIST key member member [unit]`
fn geodist(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let unit = match args[3..] {
        [] => 1.0,
        [unit] => unit_of(unit)?,
        _ => return Err(CommandError::Syntax),
    };
    let set = context.read::<SortedSet>(args[0])?;
    let score = |member| set.and_then(|set| set.score(member));
    match (score(args[1]), score(args[2])) {
        (Some(one), Some(other)) => {
            let meters = distance(point_of(one), point_of(other));
            reply_distance(&mut context.reply, meters / unit);
        }
        _ => context.reply.null(),
    }
    Ok(())
}

fn reply_distance(reply: &mut Reply<'_>, distance: f64) {
    let mut digits = Vec::with_capacity(24);
    let _ = write!(digits, "{distance:.4}");
    reply.bulk(&digits);
}

fn reply_point(reply: &mut Reply<'_>, (longitude, latitude): Point) {
    reply.array(2);
    for degrees in [longitude, latitude] {
        let digits = format!("{degrees:.17}");
        let digits = digits.trim_end_matches('0').trim_end_matches('.');
        reply.decimal(digits.as_bytes());
    }
}

/// A member that a search has found.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    member: &'a [u8],
    score: f64,
    point: Point,
    /// Its distance from the centre in metres.
    away: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Nearest,
    Farthest,
}

/// A search: the place, the shape around it, and the form of its reply.
#[derive(Clone, Copy, Debug)]
struct Search<'a> {
    center: Point,
    shape: Shape,
    /// Metres of the unit of distances.
    unit: f64,
    order: Option<Order>,
    count: Option<usize>,
    /// Whichever are found first will do.
    any: bool,
    with_distance: bool,
    with_score: bool,
    with_point: bool,
    /// The key that the result goes to.
    target: Option<&'a [u8]>,
    stores_distances: bool,
}

impl<'a> Search<'a> {
    /// Reads the arguments of a search in `set`. Without a set nothing is found, but what is
    /// written wrong is named.
    fn parse(op: Op, args: Args<'a>, set: Option<&SortedSet>) -> Result<Self, CommandError> {
        let place_of_member = |member: &[u8]| match set {
            Some(set) => set.score(member).map(point_of).ok_or(NO_MEMBER),
            None => Ok((0.0, 0.0)),
        };
        let stores = matches!(op, Op::Georadius | Op::Georadiusbymember);
        let (mut center, mut shape, mut target) = (None, None, None);
        let mut rest = match op {
            Op::Georadius | Op::GeoradiusRo => {
                center = Some(place_of(args[1], args[2])?);
                shape = Some(circle_of(args[3], args[4])?);
                &args[5..]
            }
            Op::Georadiusbymember | Op::GeoradiusbymemberRo => {
                center = Some(place_of_member(args[1])?);
                shape = match set {
                    Some(_) => Some(circle_of(args[2], args[3])?),
                    None => Some((Shape::Circle(0.0), 1.0)),
                };
                &args[4..]
            }
            Op::Geosearchstore => {
                target = Some(args[0]);
                &args[2..]
            }
            _ => &args[1..],
        };
        let is_search = matches!(op, Op::Geosearch | Op::Geosearchstore);
        let mut search = Self {
            center: (0.0, 0.0),
            shape: Shape::Circle(0.0),
            unit: 1.0,
            order: None,
            count: None,
            any: false,
            with_distance: false,
            with_score: false,
            with_point: false,
            target,
            stores_distances: false,
        };
        let (mut from_member, mut from_place) = (false, false);
        let (mut by_circle, mut by_box) = (false, false);
        while let [option, others @ ..] = rest {
            rest = others;
            match (option, others) {
                _ if is(option, "withdist") => search.with_distance = true,
                _ if is(option, "withhash") => search.with_score = true,
                _ if is(option, "withcoord") => search.with_point = true,
                _ if is(option, "any") => search.any = true,
                _ if is(option, "asc") => search.order = Some(Order::Nearest),
                _ if is(option, "desc") => search.order = Some(Order::Farthest),
                (_, [count, others @ ..]) if is(option, "count") => {
                    let count = parse_integer(count)?;
                    if count <= 0 {
                        return Err(CommandError::Text("ERR COUNT must be > 0"));
                    }
                    search.count = Some(usize::try_from(count).unwrap_or(usize::MAX));
                    rest = others;
                }
                (_, [key, others @ ..]) if stores && is(option, "store") => {
                    search.target = Some(key);
                    search.stores_distances = false;
                    rest = others;
                }
                (_, [key, others @ ..]) if stores && is(option, "storedist") => {
                    search.target = Some(key);
                    search.stores_distances = true;
                    rest = others;
                }
                (_, [member, others @ ..])
                    if is_search && !from_place && is(option, "frommember") =>
                {
                    center = Some(place_of_member(member)?);
                    from_member = true;
                    rest = others;
                }
                (_, [longitude, latitude, others @ ..])
                    if is_search && !from_member && is(option, "fromlonlat") =>
                {
                    center = Some(place_of(longitude, latitude)?);
                    from_place = true;
                    rest = others;
                }
                (_, [radius, unit, others @ ..])
                    if is_search && !by_box && is(option, "byradius") =>
                {
                    shape = Some(circle_of(radius, unit)?);
                    by_circle = true;
                    rest = others;
                }
                (_, [width, height, unit, others @ ..])
                    if is_search && !by_circle && is(option, "bybox") =>
                {
                    shape = Some(box_of(width, height, unit)?);
                    by_box = true;
                    rest = others;
                }
                _ if op == Op::Geosearchstore && is(option, "storedist") => {
                    search.stores_distances = true;
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        let name = op.spec().name.to_ascii_uppercase();
        if search.target.is_some()
            && (search.with_distance || search.with_score || search.with_point)
        {
            let what = if is_search {
                "GEOSEARCHSTORE"
            } else {
                "STORE option in GEORADIUS"
            };
            return Err(CommandError::Owned(format!(
                "ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )));
        }
        search.center = center.ok_or_else(|| one_of("FROMMEMBER or FROMLONLAT", &name))?;
        (search.shape, search.unit) = shape.ok_or_else(|| one_of("BYRADIUS and BYBOX", &name))?;
        if search.any && search.count.is_none() {
            return Err(CommandError::Text(
                "ERR the ANY argument requires COUNT argument",
            ));
        }
        if search.count.is_some() && !search.any {
            search.order.get_or_insert(Order::Nearest);
        }
        Ok(search)
    }

    /// The members in the shape, in the order asked for.
    fn found<'s>(&self, set: Option<&'s SortedSet>) -> Vec<Found<'s>> {
        let enough = self.count.unwrap_or(usize::MAX);
        let mut found = Vec::new();
        'all: for range in self.shape.scores(self.center) {
            let Some(set) = set else { break };
            for (member, score) in set.range(set.ranks_by_score(&range)) {
                if self.any && found.len() >= enough {
                    break 'all;
                }
                let point = point_of(score);
                if let Some(away) = self.shape.distance_in(self.center, point) {
                    found.push(Found {
                        member,
                        score,
                        point,
                        away,
                    });
                }
            }
        }
        match self.order {
            Some(Order::Nearest) => found.sort_by(|one, other| one.away.total_cmp(&other.away)),
            Some(Order::Farthest) => found.sort_by(|one, other| other.away.total_cmp(&one.away)),
            None => {}
        }
        found.truncate(enough);
        found
    }

    fn reply(&self, set: Option<&SortedSet>, reply: &mut Reply<'_>) {
        let found = self.found(set);
        reply.array(found.len());
        let options = [self.with_distance, self.with_score, self.with_point];
        let options = options.into_iter().filter(|option| *option).count();
        for found in found {
            if reply.is_too_large() {
                break;
            }
            if options > 0 {
                reply.array(1 + options);
            }
            reply.bulk(found.member);
            if self.with_distance {
                reply_distance(reply, found.away / self.unit);
            }
            if self.with_score {
                reply.integer(found.score as i64);
            }
            if self.with_point {
                reply_point(reply, found.point);
            }
        }
    }
}

fn one_of(options: &str, name: &str) -> CommandError {
    CommandError::Owned(format!(
        "ERR exactly one of {options} can be specified for {name}"
    ))
}
