//! Walking all keys: KEYS, SCAN, RANDOMKEY.
//!
//! ```text
//!   SCAN 0 ──► keys in the order of their hashes ──► cursor = hash of the last one, plus one
//! ```
//!
//! A key keeps its place whatever else comes and goes, so one that is there all the time is
//! returned exactly once.

use crate::commands::arguments::{cursor_of, is};
use crate::context::ReadContext;
use crate::error::{CommandError, CommandResult};
use crate::numbers::parse_integer;
use crate::request::Args;
use crate::types::pattern::Glob;

pub(crate) fn keys(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let begun = context.reply.begin_array();
    let mut glob = Glob::new(args[0]);
    let mut count = 0;
    for entry in context.entries(0) {
        let (_, entry) = entry?;
        if glob.matches(&entry.key) {
            context.reply.bulk(&entry.key);
            count += 1;
        }
    }
    context.reply.end_array(begun, count);
    glob.finish()
}

pub(crate) fn scan(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let cursor = cursor_of(args[0])?;
    let (mut wanted, mut count, mut kind) = (&b"*"[..], 10, None);
    let mut options = &args[1..];
    while let [option, value, rest @ ..] = options {
        options = rest;
        if is(option, "match") {
            wanted = value;
        } else if is(option, "count") {
            count = parse_integer(value)?;
            if count < 1 {
                return Err(CommandError::Syntax);
            }
        } else if is(option, "type") {
            kind = Some(value);
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if !options.is_empty() {
        return Err(CommandError::Syntax);
    }
    let mut glob = Glob::new(wanted);
    let mut found: Vec<&[u8]> = Vec::new();
    let mut next = 0;
    if let Ok(start) = u32::try_from(cursor) {
        let mut last = None;
        for (visited, entry) in (0..).zip(context.entries(start)) {
            let (hash, entry) = entry?;
            // Keys of the same hash share a cursor, so they are returned together.
            if visited >= count && last != Some(hash) {
                next = u64::from(hash);
                break;
            }
            last = Some(hash);
            let fits = kind.is_none_or(|kind| is(kind, entry.value.type_name()));
            if fits && glob.matches(&entry.key) {
                found.push(&entry.key);
            }
        }
    }
    glob.finish()?;
    context.reply.array(2);
    context.reply.bulk(next.to_string().as_bytes());
    context.reply.array(found.len());
    for key in found {
        context.reply.bulk(key);
    }
    Ok(())
}

pub(crate) fn random_key(context: &mut ReadContext<'_>) -> CommandResult {
    let start = context.random.bits() as u32;
    let chosen = match context.entries(start).next() {
        Some(entry) => Some(entry?),
        None => context.entries(0).next().transpose()?,
    };
    let key = chosen.map(|(_, entry)| entry.key.as_slice());
    context.reply.bulk_or_null(key);
    Ok(())
}
