//! COMMAND: what commands there are, for clients that look before they send.

use super::answers::{Answer, is, is_answered, text};
use quintet_store::{
    CommandError, CommandSpec, Footprint, Kind, Op, Reply, command::COMMANDS, lookup,
};

/// The commands that a client can use.
fn offered() -> impl Iterator<Item = &'static CommandSpec> {
    COMMANDS.iter().filter(|spec| is_offered(spec))
}

fn is_offered(spec: &CommandSpec) -> bool {
    matches!(
        spec.kind,
        Kind::Read | Kind::Write | Kind::Connection | Kind::Transaction
    ) || is_answered(spec.op)
}

pub(super) fn answer(args: &[&[u8]], reply: &mut Reply<'_>) -> Answer {
    let [subcommand, names @ ..] = args else {
        reply.array(offered().count());
        offered().for_each(|spec| write_spec(spec, reply));
        return Ok(());
    };
    let lower = subcommand.to_ascii_lowercase();
    match (lower.as_slice(), names) {
        (b"count", []) => reply.count(offered().count()),
        (b"list", []) => {
            reply.array(offered().count());
            offered().for_each(|spec| reply.bulk(spec.name.as_bytes()));
        }
        (b"list", [filter, by, wanted]) if is(filter, "filterby") => {
            let found: Vec<_> = if is(by, "pattern") {
                let wanted = text(wanted).to_ascii_lowercase();
                let prefix = wanted.trim_end_matches('*');
                let starts = |spec: &&CommandSpec| match wanted.ends_with('*') {
                    true => spec.name.starts_with(prefix),
                    false => spec.name == wanted,
                };
                offered().filter(starts).collect()
            } else if is(by, "aclcat") {
                let wanted = format!("@{}", text(wanted).to_ascii_lowercase());
                let within =
                    |spec: &&CommandSpec| spec.categories().any(|category| category == wanted);
                offered().filter(within).collect()
            } else if is(by, "module") {
                Vec::new()
            } else {
                return Err(CommandError::Syntax);
            };
            reply.array(found.len());
            found
                .iter()
                .for_each(|spec| reply.bulk(spec.name.as_bytes()));
        }
        (b"info", []) => {
            reply.array(offered().count());
            offered().for_each(|spec| write_spec(spec, reply));
        }
        (b"info", names) => {
            reply.array(names.len());
            for name in names {
                match lookup(name).filter(|spec| is_offered(spec)) {
                    Some(spec) => write_spec(spec, reply),
                    None => reply.null(),
                }
            }
        }
        (b"docs", names) => {
            let found: Vec<_> = match names {
                [] => offered().collect(),
                names => names
                    .iter()
                    .filter_map(|name| lookup(name))
                    .filter(|s| is_offered(s))
                    .collect(),
            };
            reply.map(found.len());
            found.into_iter().for_each(|spec| write_docs(spec, reply));
        }
        (b"getkeys", [name, args @ ..]) if !args.is_empty() => return get_keys(name, args, reply),
        (b"count" | b"list" | b"getkeys", _) => {
            return Err(CommandError::arity(&format!("command|{}", text(&lower))));
        }
        _ => return Err(CommandError::unknown_subcommand(subcommand, "COMMAND")),
    }
    Ok(())
}

fn write_spec(spec: &CommandSpec, reply: &mut Reply<'_>) {
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.integer(i64::from(spec.arity));
    reply.set(spec.flags.names().count());
    spec.flags.names().for_each(|flag| reply.simple(flag));
    reply.integer(i64::from(spec.first_key));
    reply.integer(i64::from(spec.last_key));
    reply.integer(i64::from(spec.key_step));
    reply.set(spec.categories().count());
    spec.categories()
        .for_each(|category| reply.simple(category));
    // Tips, key specifications and subcommands: none are given.
    reply.array(0);
    reply.array(0);
    reply.array(0);
}

fn write_docs(spec: &CommandSpec, reply: &mut Reply<'_>) {
    reply.bulk(spec.name.as_bytes());
    reply.map(3);
    reply.bulk(b"summary");
    let summary = match spec.op {
        Op::Quintet => "Shows and changes members and protocol; see QUINTET HELP.".to_owned(),
        _ => format!("As Redis's {}.", spec.name.to_ascii_uppercase()),
    };
    reply.bulk(summary.as_bytes());
    reply.bulk(b"group");
    reply.bulk(spec.group.name().as_bytes());
    reply.bulk(b"arity");
    reply.integer(i64::from(spec.arity));
}

fn get_keys(name: &[u8], args: &[&[u8]], reply: &mut Reply<'_>) -> Answer {
    let Some(spec) = lookup(name) else {
        return Err(CommandError::Text("ERR Invalid command specified"));
    };
    if spec.first_key == 0 && matches!(spec.footprint, Footprint::None | Footprint::Everything) {
        return Err(CommandError::Text("ERR The command has no key arguments"));
    }
    if !spec.arity_fits(args.len()) {
        return Err(CommandError::Text(
            "ERR Invalid number of arguments specified for command",
        ));
    }
    let mut keys = Vec::new();
    spec.keys(args, |index| keys.push(index));
    if keys.is_empty() {
        return Err(CommandError::Text(
            "ERR Invalid arguments specified for command",
        ));
    }
    reply.array(keys.len());
    keys.into_iter().for_each(|index| reply.bulk(args[index]));
    Ok(())
}
