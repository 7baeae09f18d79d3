//! The implementation of each command, one file per family.
//!
//! ```text
//!   read(spec, context, args)  ─┐            ┌─ strings  bits   keys   scan   sort    geo
//!                               ├─ by group ─┤
//!   write(spec, context, args) ─┘            └─ hashes   lists  sets   sorted_sets   hyperloglog
//! ```
//!
//! The number of arguments has been checked against the command's arity, the lengths of arguments
//! against the store's limits. A command that returns an error leaves no reply of its own.

mod arguments;
mod bitfield;
mod bits;
mod geo;
mod hashes;
mod hyperloglog;
mod keys;
mod lcs;
mod lists;
pub(crate) mod past;
mod scan;
mod server;
mod sets;
mod sort;
mod sorted_set_combinations;
mod sorted_set_ranges;
mod sorted_sets;
mod strings;
mod transfer;

pub(crate) use arguments::{is, signed_count, signed_count_of_pairs};
pub(crate) use geo::looked_at;
pub(crate) use hyperloglog::STEPS as HYPERLOGLOG_STEPS;
pub use transfer::sealed_dump;

use crate::command::{CommandSpec, Group, Kind};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::request::Args;

/// Executes a command that changes nothing.
#[inline]
pub(crate) fn read(
    spec: &'static CommandSpec,
    context: &mut ReadContext<'_>,
    args: Args<'_>,
) -> CommandResult {
    match spec.group {
        Group::String => strings::read(spec.op, context, args),
        Group::Bitmap => bits::read(spec.op, context, args),
        Group::Generic => keys::read(spec.op, context, args),
        Group::Hash => hashes::read(spec.op, context, args),
        Group::List => lists::read(spec.op, context, args),
        Group::Set => sets::read(spec.op, context, args),
        Group::SortedSet => sorted_sets::read(spec.op, context, args),
        Group::Geo => geo::read(spec.op, context, args),
        Group::HyperLogLog => hyperloglog::read(spec.op, context, args),
        _ => server::read(spec.op, context, args),
    }
}

/// Executes a command that may change something.
#[inline]
pub(crate) fn write(
    spec: &'static CommandSpec,
    context: &mut WriteContext<'_>,
    args: Args<'_>,
) -> CommandResult {
    if spec.kind != Kind::Write {
        return Err(unsupported());
    }
    match spec.group {
        Group::String => strings::write(spec.op, context, args),
        Group::Bitmap => bits::write(spec.op, context, args),
        Group::Generic => keys::write(spec.op, context, args),
        Group::Hash => hashes::write(spec.op, context, args),
        Group::List => lists::write(spec.op, context, args),
        Group::Set => sets::write(spec.op, context, args),
        Group::SortedSet => sorted_sets::write(spec.op, context, args),
        Group::Geo => geo::write(spec.op, context, args),
        Group::HyperLogLog => hyperloglog::write(spec.op, context, args),
        _ => server::write(spec.op, context, args),
    }
}

/// For an operation that is not the store's to execute: the server sends none.
pub(crate) fn unsupported() -> CommandError {
    CommandError::Text("ERR the store does not execute this command")
}
