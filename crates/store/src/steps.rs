//! The cost of long commands, counted in steps, and its limits: the same on every replica, whatever
//! its speed.
//!
//! ```text
//!   a command ──► steps_of(op, arguments, sizes of its values) ──► 0: short, always executed
//!                                                              └── n: counted against …
//!     … its request (and the one command alone)   above: ERR, send fewer at once
//!     … its batch, of many clients' requests      above: BUSY, try again
//! ```
//!
//! A step is about what visiting one element costs. Nothing is counted for what only undoes work
//! that was paid for: removing elements costs no more than inserting them did.

use crate::command::{CommandSpec, Op};
use crate::commands::{HYPERLOGLOG_STEPS, is, looked_at, signed_count, signed_count_of_pairs};
use crate::error::{CommandError, CommandResult};
use crate::numbers::parse_integer;
use crate::options::StoreOptions;
use crate::request::Args;
use crate::value::Value;
use std::cell::Cell;

/// The step limit of the commands of one request together, and so of each of them: about 0.1 s.
pub(crate) const REQUEST_STEPS_MAX: u64 = 4 << 20;
/// The step limit of the requests of one batch together.
pub(crate) const BATCH_STEPS_MAX: u64 = 2 * REQUEST_STEPS_MAX;
/// Commands of fewer steps than this may use up the rest when the longer ones may no more.
const SHORT_STEPS: u64 = 4096;
/// That rest.
const KEPT_FOR_SHORT: u64 = BATCH_STEPS_MAX / 8;
/// Bytes of a string that are looked at in one step.
pub(crate) const STRING_BYTES: u64 = 64;
/// Zeros that are written in one step.
const ZEROS_BYTES: u64 = 256;
/// The size limit of a string in Redis.
const STRING_MAX: u64 = 512 << 20;
/// Bytes of a serialized value, or of a transaction's commands, that are read in one step.
const PAYLOAD_BYTES: u64 = 32;
/// A transaction of fewer bytes is short by itself.
const QUEUED_SHORT: usize = 64 << 10;
/// More arguments than this are counted …
const ARGUMENTS_SHORT: usize = 256;
/// … as this number of steps each: an element is added, a key looked up.
const ARGUMENT_STEPS: u64 = 2;
/// No element takes less of a reply.
const ELEMENT_BYTES: u64 = 6;
/// Cells of a table of numbers that are filled in one step.
const TABLE_CELLS: u64 = 8;

/// The answer to a command for which no steps are left in the batch.
pub(crate) const BUSY: CommandError =
    CommandError::Text("BUSY too many long commands at once: not executed; try again");

/// Counts the steps of the batch and the request in progress. Cells, because reads count as well.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    batch: Cell<u64>,
    request: Cell<u64>,
    total: Cell<u64>,
    /// The longest command since this was last taken.
    longest: Cell<Option<(&'static str, u64)>>,
}

impl Meter {
    /// A batch of requests begins.
    pub fn begin_batch(&self) {
        self.batch.set(0);
        self.request.set(0);
    }

    /// A request begins.
    #[inline]
    pub fn begin_request(&self) {
        self.request.set(0);
    }

    /// How many steps a long command may still take.
    pub fn left(&self) -> u64 {
        let batch = (BATCH_STEPS_MAX - KEPT_FOR_SHORT).saturating_sub(self.batch.get());
        batch.min(REQUEST_STEPS_MAX - self.request.get())
    }

    /// Takes the steps of a command.
    ///
    /// # Errors
    /// When that many are not left: it must not be executed.
    pub fn take(&self, spec: &'static CommandSpec, steps: u64) -> CommandResult {
        if steps == 0 {
            return Ok(());
        }
        let (request, batch) = (self.request.get() + steps, self.batch.get() + steps);
        let name = spec.name;
        if steps > REQUEST_STEPS_MAX {
            return Err(CommandError::Owned(format!(
                "ERR '{name}' would take {steps} steps, more than {REQUEST_STEPS_MAX}: not executed"
            )));
        }
        if request > REQUEST_STEPS_MAX {
            return Err(CommandError::Owned(format!(
                "ERR '{name}' and the commands sent together with it would take {request} steps, \
                 more than {REQUEST_STEPS_MAX}: not executed; send fewer at once"
            )));
        }
        let kept = if steps < SHORT_STEPS {
            0
        } else {
            KEPT_FOR_SHORT
        };
        if batch > BATCH_STEPS_MAX - kept {
            return Err(BUSY);
        }
        self.request.set(request);
        self.batch.set(batch);
        self.total.set(self.total.get() + steps);
        if self.longest.get().is_none_or(|(_, most)| steps > most) {
            self.longest.set(Some((name, steps)));
        }
        Ok(())
    }

    /// All steps so far.
    pub fn total(&self) -> u64 {
        self.total.get()
    }

    /// The longest command since this was last asked.
    pub fn take_longest(&self) -> Option<(&'static str, u64)> {
        self.longest.take()
    }
}

/// How much there is in a value.
fn size_of(value: &Value) -> u64 {
    match value {
        Value::String(string) => string_steps(string.bytes.len()),
        collection => collection.elements() as u64,
    }
}

/// Whether a command can take more than a few steps; the others need not be looked at.
#[inline]
pub(crate) const fn may_be_long(op: Op, args: Args<'_>) -> bool {
    args.len() > ARGUMENTS_SHORT || walks(op)
}

const fn walks(op: Op) -> bool {
    matches!(
        op,
        Op::Bitcount
            | Op::Bitfield
            | Op::Bitop
            | Op::Bitpos
            | Op::Copy
            | Op::Dump
            | Op::Georadius
            | Op::GeoradiusRo
            | Op::Georadiusbymember
            | Op::GeoradiusbymemberRo
            | Op::Geosearch
            | Op::Geosearchstore
            | Op::Hgetall
            | Op::Hkeys
            | Op::Hrandfield
            | Op::Hscan
            | Op::Hvals
            | Op::Keys
            | Op::Lcs
            | Op::Linsert
            | Op::Lpos
            | Op::Lrem
            | Op::Pfcount
            | Op::Pfmerge
            | Op::Restore
            | Op::Scan
            | Op::Sdiff
            | Op::Sdiffstore
            | Op::Setbit
            | Op::Setrange
            | Op::Sinter
            | Op::Sintercard
            | Op::Sinterstore
            | Op::Smembers
            | Op::Sort
            | Op::SortRo
            | Op::Srandmember
            | Op::Sscan
            | Op::Sunion
            | Op::Sunionstore
            | Op::Zdiff
            | Op::Zdiffstore
            | Op::Zinter
            | Op::Zintercard
            | Op::Zinterstore
            | Op::Zrandmember
            | Op::Zrangestore
            | Op::Zscan
            | Op::Zunion
            | Op::Zunionstore
    )
}

/// How many steps the commands of a transaction take before any of them is looked at. One of large
/// values is no more than a request may take: it is as long as a request may be.
pub(crate) fn steps_of_queued(commands: &[u8]) -> u64 {
    if commands.len() <= QUEUED_SHORT {
        return 0;
    }
    (commands.len() as u64 / PAYLOAD_BYTES).min(REQUEST_STEPS_MAX)
}

/// How many steps a command takes: 0 for one that is always short, or whose work shows in its
/// reply, which is bounded itself. `keys` gives how many keys the database has.
pub(crate) fn steps_of<'v>(
    spec: &CommandSpec,
    args: Args<'_>,
    limits: &StoreOptions,
    keys: impl Fn() -> usize,
    value: impl Fn(&[u8]) -> Option<&'v Value>,
) -> u64 {
    let arguments = match args.len() {
        0..=ARGUMENTS_SHORT => 0,
        count => (count as u64).saturating_mul(ARGUMENT_STEPS),
    };
    arguments.saturating_add(steps_of_walk(spec, args, limits, keys, value))
}

fn steps_of_walk<'v>(
    spec: &CommandSpec,
    args: Args<'_>,
    limits: &StoreOptions,
    keys: impl Fn() -> usize,
    value: impl Fn(&[u8]) -> Option<&'v Value>,
) -> u64 {
    let size = |key: &[u8]| value(key).map_or(0, size_of);
    // Those that are read, not the one that the result goes to.
    let targets = usize::from(matches!(
        spec.op,
        Op::Bitop
            | Op::Sdiffstore
            | Op::Sinterstore
            | Op::Sunionstore
            | Op::Zdiffstore
            | Op::Zinterstore
            | Op::Zunionstore
    ));
    let sources = |visit: &mut dyn FnMut(u64)| {
        let mut place = 0;
        spec.keys(args, |index| {
            if place >= targets {
                visit(size(args[index]));
            }
            place += 1;
        });
    };
    let of_all = || {
        let mut steps = 0u64;
        sources(&mut |size| steps = steps.saturating_add(size));
        steps
    };
    match spec.op {
        Op::Keys => keys() as u64,
        Op::Scan => counted(args, 1).min(keys() as u64),
        Op::Hscan | Op::Sscan | Op::Zscan => counted(args, 2).min(size(args[0])),
        Op::Lcs => {
            let bytes = |key| match value(key) {
                Some(Value::String(string)) => string.bytes.len() as u64 + 1,
                _ => 1,
            };
            bytes(args[0]).saturating_mul(bytes(args[1])) / TABLE_CELLS
        }
        Op::Sort | Op::SortRo => {
            // Each comparison, and each pattern with each element put into it.
            let count = size(args[0]);
            let patterns: u64 = args[1..].iter().map(|arg| string_steps(arg.len())).sum();
            let rounds = u64::from(count.max(1).ilog2()) / 2 + args.len() as u64 + patterns;
            count.saturating_mul(rounds)
        }
        Op::Srandmember | Op::Hrandfield | Op::Zrandmember if args.len() > 1 => {
            let count = match args.len() {
                2 => signed_count(args[1]),
                _ => signed_count_of_pairs(args[1]),
            };
            let (size, count) = (size(args[0]), count.unwrap_or(0));
            match u64::try_from(count) {
                // A sample of different ones.
                Ok(count) => size.min(count.saturating_mul(3)),
                // As many draws as that, whatever there is; no more than the reply has room for.
                Err(_) if size > 0 => count
                    .unsigned_abs()
                    .min(limits.max_reply_bytes as u64 / ELEMENT_BYTES + 1),
                Err(_) => 0,
            }
        }
        // Each member of the smallest is looked for in all others.
        Op::Sinter | Op::Sinterstore | Op::Sintercard => {
            let (mut least, mut sets) = (u64::MAX, 0);
            sources(&mut |size| {
                least = least.min(size);
                sets += 1;
            });
            if sets == 0 {
                0
            } else {
                least.saturating_mul(sets)
            }
        }
        Op::Restore => {
            let announced = Value::elements_announced(args[2]);
            (args[2].len() as u64 / PAYLOAD_BYTES).max(announced.saturating_mul(ARGUMENT_STEPS))
        }
        // Zeros between what is there and what is written.
        Op::Setrange => gap(&value, args[0], parse_integer(args[1]).unwrap_or(0)),
        Op::Setbit => gap(&value, args[0], parse_integer(args[1]).unwrap_or(0) / 8),
        Op::Bitfield => gap(&value, args[0], furthest_bit(&args[1..]) / 8),
        Op::Zrangestore => size(args[1]).min(range_of(args)),
        Op::Georadius
        | Op::GeoradiusRo
        | Op::Georadiusbymember
        | Op::GeoradiusbymemberRo
        | Op::Geosearch
        | Op::Geosearchstore => looked_at(spec.op, args, value),
        Op::Pfcount | Op::Pfmerge => args.len() as u64 * HYPERLOGLOG_STEPS,
        Op::Copy
        | Op::Dump
        | Op::Bitcount
        | Op::Bitop
        | Op::Bitpos
        | Op::Hgetall
        | Op::Hkeys
        | Op::Hvals
        | Op::Linsert
        | Op::Lpos
        | Op::Lrem
        | Op::Sdiff
        | Op::Sdiffstore
        | Op::Smembers
        | Op::Sunion
        | Op::Sunionstore
        | Op::Zdiff
        | Op::Zdiffstore
        | Op::Zinter
        | Op::Zintercard
        | Op::Zinterstore
        | Op::Zunion
        | Op::Zunionstore => of_all(),
        _ => 0,
    }
}

fn string_steps(bytes: usize) -> u64 {
    bytes as u64 / STRING_BYTES
}

/// By how much a string must grow to reach `end`.
fn gap<'v>(value: &impl Fn(&[u8]) -> Option<&'v Value>, key: &[u8], end: i64) -> u64 {
    let length = match value(key) {
        Some(Value::String(string)) => string.bytes.len() as u64,
        _ => 0,
    };
    match u64::try_from(end) {
        Ok(end) if end <= STRING_MAX => end.saturating_sub(length) / ZEROS_BYTES,
        // No string is so long: the command says so.
        _ => 0,
    }
}

/// The furthest bit that the parts of a BITFIELD write.
fn furthest_bit(mut parts: Args<'_>) -> i64 {
    let mut furthest = 0;
    loop {
        let (place, rest) = match parts {
            [part, _, place, _, rest @ ..] if is(part, "set") || is(part, "incrby") => {
                (*place, rest)
            }
            [part, _, _, rest @ ..] if is(part, "get") => (&b"0"[..], rest),
            [part, _, rest @ ..] if is(part, "overflow") => (&b"0"[..], rest),
            _ => return furthest,
        };
        parts = rest;
        let bit = match place {
            // Counted in fields, of 64 bits at most.
            [b'#', place @ ..] => parse_integer(place).unwrap_or(0).saturating_mul(64),
            place => parse_integer(place).unwrap_or(0),
        };
        furthest = furthest.max(bit);
    }
}

/// How many elements `ZRANGESTORE target source from to …` may take at most, whatever there is.
fn range_of(args: Args<'_>) -> u64 {
    let options = &args[4..];
    for three in options.windows(3) {
        if is(three[0], "limit")
            && let Ok(count) = parse_integer(three[2])
        {
            return u64::try_from(count).unwrap_or(u64::MAX);
        }
    }
    let by_value = |arg: &&[u8]| is(arg, "byscore") || is(arg, "bylex");
    let ends = (parse_integer(args[2]), parse_integer(args[3]));
    match ends {
        (Ok(from), Ok(to)) if !options.iter().any(by_value) && (from < 0) == (to < 0) => {
            u64::try_from(to.saturating_sub(from).saturating_add(1)).unwrap_or(0)
        }
        _ => u64::MAX,
    }
}

/// The value of COUNT among the options from `from` on.
fn counted(args: Args<'_>, from: usize) -> u64 {
    let mut count = 10;
    for pair in args.get(from..).unwrap_or(&[]).windows(2) {
        if is(pair[0], "count")
            && let Ok(given) = parse_integer(pair[1])
        {
            count = given;
        }
    }
    u64::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(op: Op, args: Args<'_>) -> u64 {
        let string = Value::string(&[b'x'; 640]);
        steps_of(
            op.spec(),
            args,
            &StoreOptions::default(),
            || 500,
            |key| (key == b"s").then_some(&string),
        )
    }

    #[test]
    fn growing_a_string_costs_what_is_between() {
        assert_eq!(steps(Op::Setrange, &[b"s", b"639", b"v"]), 0);
        assert_eq!(steps(Op::Setrange, &[b"s", b"6400", b"v"]), 22);
        assert_eq!(steps(Op::Setrange, &[b"s", b"999999999999", b"v"]), 0);
        assert_eq!(steps(Op::Setbit, &[b"n", b"51200", b"1"]), 25);
        let fields: Args<'_> = &[
            b"n",
            b"OVERFLOW",
            b"SAT",
            b"GET",
            b"u8",
            b"999999",
            b"INCRBY",
            b"u32",
            b"0",
            b"4000000000",
            b"SET",
            b"u8",
            b"#800",
            b"1",
        ];
        assert_eq!(steps(Op::Bitfield, fields), 25);
    }

    #[test]
    fn walking_costs_what_is_asked_for() {
        assert_eq!(steps(Op::Keys, &[b"*"]), 500);
        assert_eq!(steps(Op::Scan, &[b"0"]), 10);
        assert_eq!(
            steps(Op::Scan, &[b"0", b"MATCH", b"x", b"COUNT", b"700"]),
            500
        );
        assert_eq!(steps(Op::Bitcount, &[b"s"]), 10);
        assert_eq!(range_of(&[b"a", b"b", b"2", b"5"]), 4);
        assert_eq!(range_of(&[b"a", b"b", b"0", b"-1"]), u64::MAX);
        assert_eq!(range_of(&[b"a", b"b", b"0", b"9", b"BYSCORE"]), u64::MAX);
        let limited: Args<'_> = &[b"a", b"b", b"0", b"9", b"BYSCORE", b"LIMIT", b"3", b"7"];
        assert_eq!(range_of(limited), 7);
    }

    fn keys() -> &'static CommandSpec {
        Op::Keys.spec()
    }

    #[test]
    fn command_is_refused_when_it_alone_is_too_long() {
        let meter = Meter::default();
        assert_eq!(meter.take(keys(), REQUEST_STEPS_MAX), Ok(()));
        meter.begin_batch();
        let refused = meter.take(keys(), REQUEST_STEPS_MAX + 1);
        assert_eq!(
            refused.map_err(|error| error.to_string()),
            Err("ERR 'keys' would take 4194305 steps, more than 4194304: not executed".to_owned())
        );
        assert_eq!(meter.total(), REQUEST_STEPS_MAX);
    }

    #[test]
    fn request_is_cut_when_its_commands_are_too_many() {
        let meter = Meter::default();
        let half = REQUEST_STEPS_MAX / 2;
        assert_eq!(meter.take(keys(), half), Ok(()));
        assert_eq!(meter.take(keys(), half), Ok(()));
        let refused = meter.take(keys(), 1).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.contains("send fewer at once")));
        assert_eq!(meter.take(keys(), 0), Ok(()));
        meter.begin_request();
        assert_eq!(meter.take(keys(), half), Ok(()));
    }

    #[test]
    fn short_commands_continue_when_long_ones_have_used_the_batch() {
        let meter = Meter::default();
        let mut executed = 0;
        while meter.take(keys(), REQUEST_STEPS_MAX / 4).is_ok() {
            executed += 1;
            meter.begin_request();
        }
        assert_eq!(executed, 7);
        let refused = meter.take(keys(), SHORT_STEPS);
        assert!(refused.is_err_and(|error| error.to_string().starts_with("BUSY ")));
        assert_eq!(meter.take(keys(), SHORT_STEPS - 1), Ok(()));
        meter.begin_batch();
        assert_eq!(meter.take(keys(), REQUEST_STEPS_MAX), Ok(()));
        assert_eq!(meter.take_longest(), Some(("keys", REQUEST_STEPS_MAX)));
        assert_eq!(meter.take_longest(), None);
    }
}
