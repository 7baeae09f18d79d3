//! Reads of the past: QUINTET.AT, QUINTET.HISTORY, QUINTET.DIFF; and QUINTET.RETAIN.
//!
//! ```text
//!   AT when GET k ──► place in the undo log ──► what k held there, a view of the named keys ──► GET
//!   DIFF t1 t2    ──► places ──► each key with a record between them: before, after ──► differs?
//! ```
//!
//! A key that has expired counts as deleted for DIFF and HISTORY when it is removed, a moment later;
//! AT sees it expire in time.

use crate::command::{CommandSpec, Footprint, Kind, Op, lookup};
use crate::commands::arguments::{count_above_zero, cursor_of, is};
use crate::context::{PastView, ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::{Entry, Keyspace};
use crate::request::Args;
use crate::steps::{BUSY, Meter, REQUEST_STEPS_MAX, STRING_BYTES};
use crate::types::journal::Allowance;
use crate::types::pattern::Glob;
use crate::undo::{Change, KINDS, NotTold, Place, Retain, Then, Undo, length_of};
use crate::value::Value;
use crate::when::{When, microseconds};
use quintet_replica::{
    CommandTime,
    past::{Asking, NEWEST},
};

/// The most bytes of the past where RETAIN names a number of seconds only.
const BYTES_DEFAULT: u64 = 256 << 20;
/// Changes that HISTORY tells, and DIFF, where no LIMIT is given.
const LIMIT_DEFAULT: usize = 1000;
/// The most that either tells at once.
const LIMIT_MAX: usize = 10_000;
/// The keys that AT names at most, and the bytes that they had.
const AT_KEYS_MAX: usize = 1000;
const AT_BYTES_MAX: usize = 64 << 20;
/// For one of two values of a key that DIFF compares.
const COMPARED: Allowance = Allowance {
    bytes: AT_BYTES_MAX,
    steps: REQUEST_STEPS_MAX / 4,
};
/// Looking at a record takes this number of steps.
const RECORD_STEPS: u64 = 4;
/// The steps that HISTORY takes at most.
const HISTORY_STEPS_MAX: u64 = REQUEST_STEPS_MAX / 2;
/// The records that DIFF examines in one call.
const DIFF_RECORDS_MAX: usize = 10_000;
/// The steps that it takes in one call, but for the last key.
const DIFF_STEPS_MAX: u64 = REQUEST_STEPS_MAX / 8;

const NOT_KEPT: &str = "NOHISTORY the past is not kept: QUINTET.RETAIN SECONDS s BYTES b";
const LIMIT: &str = "ERR LIMIT must be between 1 and 10000";

/// Why there is no answer.
pub(crate) enum NoAnswer {
    /// The reply is this error.
    Error(CommandError),
    /// The time has not come yet, as far as this replica knows.
    NotYet,
}

impl From<CommandError> for NoAnswer {
    fn from(error: CommandError) -> Self {
        Self::Error(error)
    }
}

type Answer<T> = Result<T, NoAnswer>;

fn no_history(undo: &Undo) -> NoAnswer {
    let since = microseconds(undo.marks().horizon);
    let text = format!("NOHISTORY the past is kept since us:{since}");
    NoAnswer::Error(CommandError::Owned(text))
}

/// The place and the time of `when`, given the newest time that is closed.
fn place(undo: &Undo, when: When, closed: u64) -> Answer<(Place, u64)> {
    let found = match when {
        When::Time(time) if time > closed => return Err(NoAnswer::NotYet),
        When::Time(time) => undo.at_time(time).map(|place| (place, time)),
        When::Now => undo.at_time(closed).map(|place| (place, closed)),
        When::Version(version) if version > undo.marks().version => return Err(NoAnswer::NotYet),
        When::Version(version) => undo.at_version(version),
    };
    match found {
        Some((_, time)) if time > closed => Err(NoAnswer::NotYet),
        Some(found) => Ok(found),
        None => Err(no_history(undo)),
    }
}

/// How a read of the past is asked for.
///
/// # Errors
/// When it is malformed; nothing need be asked then.
pub fn asking(op: Op, args: Args<'_>) -> Result<Asking, CommandError> {
    let of = |whens: &[&[u8]]| {
        let mut asking = Asking::known();
        let mut latest = 0;
        for when in whens {
            match When::parse(when)? {
                When::Now => return Ok(Asking::new(NEWEST)),
                When::Time(time) => {
                    latest = latest.max(time);
                    asking = Asking::new(CommandTime(latest));
                }
                // A client that names a version was told it.
                When::Version(_) => {}
            }
        }
        Ok(asking)
    };
    match (op, args) {
        (Op::QuintetAt, [when, name, args @ ..]) => {
            inner(name, args)?;
            of(&[when])
        }
        (Op::QuintetDiff, [from, to, options @ ..]) => {
            DiffOptions::read(options)?;
            of(&[from, to])
        }
        (Op::QuintetHistory, [_, options @ ..]) => {
            history_limit(options)?;
            Ok(Asking::new(NEWEST))
        }
        _ => Err(CommandError::Syntax),
    }
}

/// The most bytes that a RETAIN asks for, if it is one and names any.
#[must_use]
pub fn retained_bytes(args: Args<'_>) -> Option<u64> {
    let mut pairs = args.chunks_exact(2);
    let bytes = pairs.find(|pair| is(pair[0], "bytes"))?[1];
    amount(bytes).ok()
}

/// The command within AT.
fn inner(name: &[u8], args: Args<'_>) -> Result<&'static CommandSpec, CommandError> {
    let named = || String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    let spec = lookup(name)
        .ok_or_else(|| CommandError::Owned(format!("ERR unknown command '{}'", named())))?;
    if !spec.arity_fits(args.len()) {
        return Err(CommandError::Owned(spec.arity_error()));
    }
    let names_keys = matches!(
        spec.footprint,
        Footprint::Positions | Footprint::Counted(_) | Footprint::Second
    );
    // The memory of a value differs between replicas.
    let names_keys = names_keys && spec.op != Op::Memory;
    let reads = spec.kind == Kind::Read && (names_keys || spec.op == Op::Time);
    if !reads {
        let text = format!(
            "ERR '{}' cannot be asked of the past: QUINTET.AT takes commands that read named keys",
            spec.name.to_ascii_uppercase()
        );
        return Err(CommandError::Owned(text));
    }
    Ok(spec)
}

/// The past, where it is kept.
///
/// # Errors
/// When it is not.
pub(crate) fn kept(keyspace: &Keyspace) -> Answer<&Undo> {
    Ok(keyspace.undo().ok_or(CommandError::Text(NOT_KEPT))?)
}

/// Answers HISTORY and DIFF. `closed` is the newest time that is closed.
pub(crate) fn read(
    (spec, meter): (&'static CommandSpec, &Meter),
    context: &mut ReadContext<'_>,
    closed: u64,
    args: Args<'_>,
) -> Answer<()> {
    let undo = kept(context.keyspace)?;
    // A page of DIFF, and both values of the last key.
    let left = meter.left();
    if left < DIFF_STEPS_MAX + 2 * COMPARED.steps {
        return Err(BUSY.into());
    }
    let steps = match (spec.op, args) {
        (Op::QuintetHistory, [key, options @ ..]) => {
            history(undo, context, closed, key, history_limit(options)?)
        }
        (Op::QuintetDiff, [from, to, options @ ..]) => {
            let (from, _) = place(undo, When::parse(from)?, closed)?;
            let (to, _) = place(undo, When::parse(to)?, closed)?;
            diff(undo, context, (from, to), &DiffOptions::read(options)?)
        }
        _ => Err(CommandError::Syntax.into()),
    }?;
    Ok(meter.take(spec, steps.min(left))?)
}

/// A command within AT, and what it is to see.
pub(crate) struct AsOf<'a> {
    /// The command.
    pub spec: &'static CommandSpec,
    /// Its arguments.
    pub args: &'a [&'a [u8]],
    /// Its time, in nanoseconds of the log's clock.
    pub time: u64,
    /// The keys that it names, as they were.
    pub view: PastView<'a>,
}

/// Looks up what the command within AT is to see.
pub(crate) fn at<'a>(
    keyspace: &'a Keyspace,
    database: u8,
    closed: u64,
    args: &'a [&'a [u8]],
    meter: &Meter,
) -> Answer<AsOf<'a>> {
    let undo = kept(keyspace)?;
    let [when, name, args @ ..] = args else {
        return Err(CommandError::Syntax.into());
    };
    let spec = inner(name, args)?;
    let (place, time) = place(undo, When::parse(when)?, closed)?;
    let mut view = PastView::default();
    let mut not_told = None;
    let mut keys = 0;
    let steps = meter.left();
    let mut allowance = Allowance {
        bytes: AT_BYTES_MAX,
        steps,
    };
    let fields = fields(spec.op, args);
    spec.keys(args, |index| {
        let key = args[index];
        keys += 1;
        if keys > AT_KEYS_MAX || not_told.is_some() || view.names(key) {
            return;
        }
        let back = undo.look_back(database, key, place, &mut allowance);
        if let Ok(back) = &back
            && let Some(database) = back.present_in()
        {
            return view.add_present(key, keyspace.database(database).held(key));
        }
        let entry = back.and_then(|back| {
            let entry = match fields {
                Some(fields) => back.fields(keyspace, key, fields, &mut allowance),
                None => back.entry(keyspace, key, &mut allowance),
            };
            entry.map_err(|why| back.not_told(why))
        });
        match entry {
            Ok(entry) => view.add(key, entry),
            Err(why) => not_told = Some(why),
        }
    });
    meter.take(spec, steps - allowance.steps)?;
    if not_told.is_some() && allowance.steps == 0 && steps < REQUEST_STEPS_MAX {
        return Err(BUSY.into());
    }
    if keys > AT_KEYS_MAX {
        let text = "ERR QUINTET.AT names at most 1000 keys";
        return Err(CommandError::Text(text).into());
    }
    if let Some(why) = not_told {
        let text = match why {
            NotTold::Large { kind, elements } => {
                let unit = if kind == "string" {
                    "bytes"
                } else {
                    "elements"
                };
                format!(
                    "NOHISTORY a {kind} of {elements} {unit} was too large to be kept when it \
                     changed"
                )
            }
            NotTold::TooMuch { kind, elements } if kind != "string" => format!(
                "NOHISTORY a {kind} of {elements} elements takes too much to be made again: ask \
                 for single fields or members, for a later time, or for fewer keys"
            ),
            NotTold::TooMuch { .. } => {
                "NOHISTORY the keys had more than 64 MiB together: ask for fewer at once".into()
            }
        };
        return Err(CommandError::Owned(text).into());
    }
    Ok(AsOf {
        spec,
        args,
        time,
        view,
    })
}

/// The elements that a command asks for, where it looks at no others.
fn fields<'a>(op: Op, args: &'a [&'a [u8]]) -> Option<&'a [&'a [u8]]> {
    matches!(
        op,
        Op::Hget
            | Op::Hmget
            | Op::Hexists
            | Op::Hstrlen
            | Op::Sismember
            | Op::Smismember
            | Op::Zscore
            | Op::Zmscore
    )
    .then(|| args.get(1..).unwrap_or_default())
}

fn history_limit(options: Args<'_>) -> Result<usize, CommandError> {
    match options {
        [] => Ok(LIMIT_DEFAULT),
        [word, count] if is(word, "limit") => limit(count),
        _ => Err(CommandError::Syntax),
    }
}

fn limit(count: &[u8]) -> Result<usize, CommandError> {
    let count = count_above_zero(count, LIMIT)?;
    if count > LIMIT_MAX {
        return Err(CommandError::Text(LIMIT));
    }
    Ok(count)
}

/// The entry of a key as it is now, expired or not.
fn now<'a>(keyspace: &'a Keyspace, database: u8, key: &[u8]) -> Option<&'a Entry> {
    keyspace.database(database).held(key)
}

fn history(
    undo: &Undo,
    context: &mut ReadContext<'_>,
    closed: u64,
    key: &[u8],
    limit: usize,
) -> Answer<u64> {
    let held = now(context.keyspace, context.database, key);
    let mut after = held.map_or(("none", 0), |entry| {
        (entry.value.type_name(), length_of(&entry.value))
    });
    let begun = context.reply.begin_array();
    let mut told = 0;
    // A version may have several records: only the newest is followed by what it led to.
    let mut version = None;
    let mut steps = 0;
    let reply = &mut context.reply;
    undo.changes(context.database, key, |change| {
        steps += RECORD_STEPS;
        if (version != Some(change.version) && told == limit) || steps > HISTORY_STEPS_MAX {
            return false;
        }
        if change.time <= closed && version.replace(change.version) != Some(change.version) {
            let (kind, length) = after;
            reply.array(4);
            reply.integer(change.version as i64);
            reply.integer(microseconds(change.time) as i64);
            reply.bulk(kind.as_bytes());
            reply.integer(length as i64);
            told += 1;
        }
        after = change.before.kind_and_length().unwrap_or(("none", 0));
        true
    });
    if steps > HISTORY_STEPS_MAX {
        let text = "ERR the key has changed too often: ask for a smaller LIMIT";
        return Err(CommandError::Text(text).into());
    }
    context.reply.end_array(begun, told);
    Ok(steps)
}

struct DiffOptions<'a> {
    pattern: Option<&'a [u8]>,
    limit: usize,
    cursor: Option<u64>,
}

impl<'a> DiffOptions<'a> {
    fn read(args: &[&'a [u8]]) -> Result<Self, CommandError> {
        let mut options = Self {
            pattern: None,
            limit: LIMIT_DEFAULT,
            cursor: None,
        };
        for pair in args.chunks(2) {
            match *pair {
                [word, pattern] if is(word, "match") => options.pattern = Some(pattern),
                [word, count] if is(word, "limit") => options.limit = limit(count)?,
                [word, cursor] if is(word, "cursor") => {
                    options.cursor = Some(cursor_of(cursor)?).filter(|cursor| *cursor > 0);
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }
}

fn diff(
    undo: &Undo,
    context: &mut ReadContext<'_>,
    (from, to): (Place, Place),
    options: &DiffOptions<'_>,
) -> Answer<u64> {
    if from.number > to.number {
        let text = "ERR the first time is later than the second";
        return Err(CommandError::Text(text).into());
    }
    // The numbers that clients see begin with 1.
    let begin = match options.cursor.map(|cursor| cursor - 1) {
        None => from,
        Some(number) if number < from.number || number > to.number => {
            return Err(CommandError::Text("ERR the cursor is none of these times").into());
        }
        Some(number) => undo.at_number(number).ok_or_else(|| no_history(undo))?,
    };
    let mut found: Vec<(&[u8], &str)> = Vec::new();
    let mut next = None;
    let mut glob = options.pattern.map(Glob::new);
    let mut steps = 0;
    for (looked, (place, change)) in undo.between(begin, to).enumerate() {
        steps += RECORD_STEPS;
        let full = found.len() == options.limit || steps > DIFF_STEPS_MAX;
        if looked == DIFF_RECORDS_MAX || full {
            next = Some(place.number + 1);
            break;
        }
        if change.swapped.is_some() {
            let text = "ERR SWAPDB between the two times: ask for the times before and behind it";
            return Err(CommandError::Text(text).into());
        }
        if change.database != context.database {
            continue;
        }
        if let Some(glob) = &mut glob
            && !glob.matches(change.key)
        {
            continue;
        }
        if undo.is_first(&change, place, from)
            && let Some(how) = difference(undo, context.keyspace, &change, (from, to), &mut steps)
        {
            found.push((change.key, how));
        }
    }
    if let Some(glob) = glob {
        glob.finish()?;
    }
    let reply = &mut context.reply;
    reply.array(2);
    reply.bulk(next.unwrap_or(0).to_string().as_bytes());
    reply.array(found.len());
    for (key, how) in found {
        reply.array(2);
        reply.bulk(key);
        reply.bulk(how.as_bytes());
    }
    Ok(steps)
}

/// How a key differs at a place from what it held before this change, if it does; counts the steps
/// that it takes.
fn difference(
    undo: &Undo,
    keyspace: &Keyspace,
    change: &Change<'_>,
    (from, to): (Place, Place),
    steps: &mut u64,
) -> Option<&'static str> {
    let then = undo.then(change.database, change.key, to);
    let before = outline(keyspace, change.key, &change.before);
    let after = outline(keyspace, change.key, &then);
    let (before, after) = match (before, after) {
        (None, None) => return None,
        (None, _) => return Some("created"),
        (_, None) => return Some("deleted"),
        (Some(before), Some(after)) => (before, after),
    };
    let differ = |one: Option<u64>, other: Option<u64>| {
        one.zip(other).is_some_and(|(one, other)| one != other)
    };
    if before[..2] != after[..2] || differ(before[2], after[2]) {
        return Some("changed");
    }
    let held = match then {
        Then::Now { database } => now(keyspace, database, change.key).map(|entry| &entry.value),
        _ => None,
    };
    let is_same = match (&change.before, &then, held) {
        (Then::Value { bytes, .. }, Then::Value { bytes: after, .. }, _) => {
            *steps += bytes.len() as u64 / STRING_BYTES;
            bytes == after
        }
        (Then::Value { bytes, .. }, _, Some(Value::String(string))) => {
            *steps += bytes.len() as u64 / STRING_BYTES;
            string.is_serialized(bytes)
        }
        _ => {
            let mut serialized = |place| {
                let mut allowance = COMPARED;
                let back = undo.look_back(change.database, change.key, place, &mut allowance);
                let entry = back
                    .ok()
                    .and_then(|back| back.entry(keyspace, change.key, &mut allowance).ok());
                *steps += COMPARED.steps - allowance.steps;
                let mut bytes = Vec::new();
                entry??.value.serialize(&mut bytes);
                Some(bytes)
            };
            match (serialized(from), serialized(to)) {
                (Some(before), Some(after)) => before == after,
                // Not kept, or too large to be made again.
                _ => return Some("unknown"),
            }
        }
    };
    (!is_same).then_some("changed")
}

/// The facts of a value that are told without making it again: its type, its length, and, where it
/// is known, when it expires.
fn outline(keyspace: &Keyspace, key: &[u8], then: &Then<'_>) -> Option<[Option<u64>; 3]> {
    let (outline, expire_at) = match then {
        Then::Now { database } => {
            let entry = now(keyspace, *database, key)?;
            let value = &entry.value;
            let outline = (value.type_name(), length_of(value));
            (Some(outline), Some(entry.expire_at))
        }
        Then::Value { expire_at, .. } => (then.kind_and_length(), Some(*expire_at)),
        Then::Patch(patch) => (then.kind_and_length(), Some(patch.expire_at)),
        _ => (then.kind_and_length(), None),
    };
    let (kind, length) = outline?;
    let kind = KINDS.iter().position(|other| *other == kind)?;
    Some([Some(kind as u64), Some(length), expire_at])
}

/// Carries out QUINTET.RETAIN.
pub(crate) fn retain(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let keyspace = &mut *context.keys.keyspace;
    let before = keyspace.undo().map(|undo| undo.marks().retain);
    if args.is_empty() {
        let marks = keyspace.past();
        let (used, records) =
            (keyspace.undo()).map_or((0, 0), |undo| (undo.bytes(), undo.records()));
        let reply = &mut context.reply;
        reply.map(6);
        for (name, number) in [
            ("seconds", marks.retain.seconds),
            ("bytes", marks.retain.bytes),
            ("used", used),
            ("changes", records),
            ("since", microseconds(marks.horizon)),
            ("version", marks.version),
        ] {
            reply.bulk(name.as_bytes());
            reply.integer(number as i64);
        }
        return Ok(());
    }
    let mut retain = before.unwrap_or(Retain {
        seconds: 0,
        bytes: BYTES_DEFAULT,
    });
    for pair in args.chunks(2) {
        match *pair {
            [word, seconds] if is(word, "seconds") => retain.seconds = amount(seconds)?,
            [word, bytes] if is(word, "bytes") => retain.bytes = amount(bytes)?,
            _ => return Err(CommandError::Syntax),
        }
    }
    keyspace.retain(retain);
    context.reply.ok();
    Ok(())
}

fn amount(argument: &[u8]) -> Result<u64, CommandError> {
    let number = crate::numbers::parse_integer(argument)?;
    u64::try_from(number).map_err(|_| CommandError::Text("ERR a limit is not negative"))
}
