//! Looking into a value and taking it elsewhere: OBJECT, MEMORY USAGE, DUMP, RESTORE.
//!
//! ```text
//!   DUMP payload   value │ format u16 │ checksum u64
//! ```

use crate::commands::arguments::is;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::key_hash::hash_bytes;
use crate::keyspace::Expiry;
use crate::numbers::{integer_of, parse_integer};
use crate::request::Args;
use crate::value::{StringValue, Value};

/// Bytes no payload of Redis ends with in this place: its formats are small numbers.
const DUMP_FORMAT: u16 = 0x5101;
const DUMP_SEED: u64 = 0x7175_696e_6475_6d70;
const FOOTER_LEN: usize = 10;

/// Up to this many bytes Redis keeps a string next to its header.
const EMBEDDED_MAX: usize = 44;
/// Numbers below this are shared objects in Redis.
const SHARED_INTEGERS: i64 = 10_000;
/// Up to this many entries, none longer than [`COMPACT_BYTES_MAX`], Redis packs a collection.
const COMPACT_LEN_MAX: usize = 128;
const COMPACT_BYTES_MAX: usize = 64;
/// Up to this many integers Redis keeps a set as sorted integers.
const INTEGERS_LEN_MAX: usize = 512;

fn encoding(value: &Value) -> &'static str {
    let short = |bytes: &[u8]| bytes.len() <= COMPACT_BYTES_MAX;
    match value {
        Value::Free => "none",
        Value::String(StringValue { raw: true, .. }) => "raw",
        Value::String(string) if integer_of(&string.bytes).is_some() => "int",
        Value::String(string) if string.bytes.len() <= EMBEDDED_MAX => "embstr",
        Value::String(_) => "raw",
        Value::List(_) => "quicklist",
        Value::Hash(hash)
            if hash.len() <= COMPACT_LEN_MAX
                && hash
                    .iter()
                    .all(|(field, value)| short(field) && short(value)) =>
        {
            "listpack"
        }
        Value::Set(set)
            if set.len() <= INTEGERS_LEN_MAX
                && set.iter().all(|member| integer_of(member).is_some()) =>
        {
            "intset"
        }
        Value::Hash(_) | Value::Set(_) => "hashtable",
        Value::SortedSet(set)
            if set.len() <= COMPACT_LEN_MAX && set.iter().all(|(member, _)| short(member)) =>
        {
            "listpack"
        }
        Value::SortedSet(_) => "skiplist",
    }
}

fn is_shared(value: &Value) -> bool {
    let number = match value {
        Value::String(string) if !string.raw => integer_of(&string.bytes),
        _ => None,
    };
    number.is_some_and(|number| (0..SHARED_INTEGERS).contains(&number))
}

const HELP: [&str; 5] = [
    "OBJECT <subcommand> <key>. Subcommands are:",
    "ENCODING: how Redis would keep the value",
    "FREQ: not tracked by this store",
    "IDLETIME: not tracked by this store, 0",
    "REFCOUNT: how many references to the value Redis would count",
];

pub(crate) fn object(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let subcommands = ["encoding", "freq", "idletime", "refcount"];
    let Some(subcommand) = subcommands.iter().find(|name| is(args[0], name)) else {
        if is(args[0], "help") && args.len() == 1 {
            context.reply.array(HELP.len());
            HELP.iter().for_each(|line| context.reply.simple(line));
            return Ok(());
        }
        return Err(CommandError::unknown_subcommand(args[0], "OBJECT"));
    };
    let [_, key] = args else {
        return Err(CommandError::arity(&format!("object|{subcommand}")));
    };
    let Some(value) = context.value(key) else {
        context.reply.null();
        return Ok(());
    };
    match *subcommand {
        "encoding" => context.reply.bulk(encoding(value).as_bytes()),
        "refcount" if is_shared(value) => context.reply.integer(i64::from(i32::MAX)),
        "refcount" => context.reply.integer(1),
        "idletime" => context.reply.integer(0),
        _ => {
            return Err(CommandError::Text(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
                 Please note that when switching between policies at runtime LRU and LFU data \
                 will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

/// MEMORY USAGE; the other subcommands look into an allocator that all replicas have their own of.
pub(crate) fn memory(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    if !is(args[0], "usage") {
        return Err(CommandError::unknown_subcommand(args[0], "MEMORY"));
    }
    match &args[1..] {
        [_] => {}
        [] => return Err(CommandError::arity("memory|usage")),
        [_, option, samples] if is(option, "samples") => {
            if parse_integer(samples)? < 0 {
                return Err(CommandError::Syntax);
            }
        }
        _ => return Err(CommandError::Syntax),
    }
    match context.entry(args[1]) {
        Some(entry) => context.reply.count(entry.memory()),
        None => context.reply.null(),
    }
    Ok(())
}

pub(crate) fn dump(context: &mut ReadContext<'_>, args: Args<'_>) {
    let Some(value) = context.value(args[0]) else {
        context.reply.null();
        return;
    };
    if value.serialized_len_max() > context.options.max_reply_bytes {
        return context.reply.fail_too_large();
    }
    let mut payload = Vec::new();
    value.serialize(&mut payload);
    context.reply.bulk(&sealed_dump(&payload));
}

/// A payload as DUMP gives it, from the bytes of a value: with format and checksum behind them.
/// For tools that make payloads, right or wrong ones.
#[must_use]
pub fn sealed_dump(value: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(value.len() + FOOTER_LEN);
    payload.extend_from_slice(value);
    payload.extend_from_slice(&DUMP_FORMAT.to_le_bytes());
    let checksum = hash_bytes(DUMP_SEED, &payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

/// The value's part of a payload that is whole and of this store.
fn checked_payload(payload: &[u8]) -> Option<&[u8]> {
    let footer_at = payload.len().checked_sub(FOOTER_LEN)?;
    let (value, footer) = payload.split_at(footer_at);
    let (format, checksum) = footer.split_at(2);
    let sum = hash_bytes(DUMP_SEED, &payload[..footer_at + 2]);
    (format == DUMP_FORMAT.to_le_bytes() && checksum == sum.to_le_bytes()).then_some(value)
}

pub(crate) fn restore(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let (key, payload) = (args[0], args[2]);
    let (mut replace, mut absolute) = (false, false);
    let mut options = &args[3..];
    while let [option, rest @ ..] = options {
        options = rest;
        if is(option, "replace") {
            replace = true;
        } else if is(option, "absttl") {
            absolute = true;
        } else if is(option, "idletime")
            && let [number, rest @ ..] = options
        {
            if parse_integer(number)? < 0 {
                return Err(CommandError::Text(
                    "ERR Invalid IDLETIME value, must be >= 0",
                ));
            }
            options = rest;
        } else if is(option, "freq")
            && let [number, rest @ ..] = options
        {
            if !(0..=255).contains(&parse_integer(number)?) {
                return Err(CommandError::Text(
                    "ERR Invalid FREQ value, must be >= 0 and <= 255",
                ));
            }
            options = rest;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if !replace && context.keys.exists(key) {
        return Err(CommandError::Text(
            "BUSYKEY Target key name already exists.",
        ));
    }
    let time = parse_integer(args[1])?;
    let time = u64::try_from(time)
        .map_err(|_| CommandError::Text("ERR Invalid TTL value, must be >= 0"))?;
    let value = checked_payload(payload).ok_or(CommandError::Text(
        "ERR DUMP payload version or checksum are wrong",
    ))?;
    let value = Value::deserialize(value).map_err(|_| CommandError::Text("ERR Bad data format"))?;
    let expiry = match (time, absolute) {
        (0, _) => Expiry::Never,
        (time, true) => Expiry::At(time),
        (time, false) => Expiry::At(context.now().saturating_add(time)),
    };
    match expiry {
        Expiry::At(time) if time <= context.now() => {
            context.keys.remove(key);
        }
        _ => context.keys.set(key, value, expiry),
    }
    context.reply.ok();
    Ok(())
}
