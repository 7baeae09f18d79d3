//! Strings.

use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::CommandResult;
use crate::keyspace::Expiry;
use crate::request::Args;
use crate::value::StringValue;

#[inline]
pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Get => {
            let value = context.read::<StringValue>(args[0])?;
            context
                .reply
                .bulk_or_null(value.map(|value| value.bytes.as_slice()));
        }
        _ => return Err(unsupported()),
    }
    Ok(())
}

#[inline]
pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Set => {
            context.keys.set_string(args[0], args[1], Expiry::Never);
            context.reply.ok();
        }
        _ => return Err(unsupported()),
    }
    Ok(())
}
