//! Not built.

use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::CommandResult;
use crate::request::Args;

pub(crate) fn read(_op: Op, _context: &mut ReadContext<'_>, _args: Args<'_>) -> CommandResult {
    Err(unsupported())
}

pub(crate) fn write(_op: Op, _context: &mut WriteContext<'_>, _args: Args<'_>) -> CommandResult {
    Err(unsupported())
}
