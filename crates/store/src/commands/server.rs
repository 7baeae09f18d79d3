//! Commands that are mostly the server's, as they appear inside pipelines and transactions, and
//! the server's own questions.

use crate::command::Op;
use crate::commands::arguments::is;
use crate::commands::{keys, past, transfer, unsupported};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::numbers::parse_integer;
use crate::request::Args;

pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Ping => match args {
            [] => context.reply.simple("PONG"),
            [text] => context.reply.bulk(text),
            _ => return Err(CommandError::arity("ping")),
        },
        Op::Echo => context.reply.bulk(args[0]),
        Op::Select => {
            let index = parse_integer(args[0])?;
            if !(0..i64::from(context.options.databases)).contains(&index) {
                return Err(keys::NO_SUCH_DATABASE);
            }
            context.reply.ok();
        }
        Op::Time => {
            let microseconds = context.clock / 1000;
            context.reply.array(2);
            context
                .reply
                .bulk_integer((microseconds / 1_000_000) as i64);
            context
                .reply
                .bulk_integer((microseconds % 1_000_000) as i64);
        }
        Op::Dbsize => {
            let database = context.keyspace.database(context.database);
            context.reply.count(database.len(context.now));
        }
        Op::Memory => return transfer::memory(context, args),
        Op::Literal => context.reply.raw(args[0]),
        Op::WatchVersions => {
            context.reply.array(args.len());
            for key in args {
                let version = context.entry(key).map_or(0, |entry| entry.version);
                context.reply.bulk(format!("{version:016x}").as_bytes());
            }
        }
        _ => return Err(unsupported()),
    }
    Ok(())
}

pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Flushall | Op::Flushdb => {
            match args {
                [] => {}
                [how] if is(how, "sync") || is(how, "async") => {}
                _ => return Err(CommandError::Syntax),
            }
            let selected = context.keys.database;
            for database in 0..context.keys.databases() {
                if op == Op::Flushall || database == selected {
                    context.keys.clear(database);
                }
            }
            context.reply.ok();
            Ok(())
        }
        Op::Swapdb => keys::swap_databases(context, args),
        Op::QuintetRetain => past::retain(context, args),
        _ => Err(unsupported()),
    }
}
