//! QUINTET: operators ask and change the cluster from any Redis client.
//!
//! ```text
//!   QUINTET SWITCH nezha ──► Phase::Change ──► take_change ──► the replica orders it
//!   reply ◄── resume ◄────── on_changed ◄─────────────────────── continues in the next epoch
//!                 ▲── a minute has passed, or the server stops
//! ```
//!
//! Only the client that asked waits. A client that may write may ask: with a password set, one that has given it.

use super::{
    ChangeReport, ChangeRequest,
    answers::{Answer, is, owned, text},
    change::CHANGE_MAX,
    gateway::Gateway,
};
use quintet_replica::Time;
use quintet_store::{CommandError, Reply};
use std::collections::{BTreeMap, VecDeque};

const HELP: [&str; 16] = [
    "QUINTET <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "MEMBERS",
    "    Return the members of the cluster.",
    "PROTOCOL",
    "    Return the epoch with its protocol and options.",
    "CHANGE",
    "    Return whether a change is in progress: none, ordering or sealed.",
    "SWITCH <protocol> [<option> <value> ...]",
    "    Continue with this protocol and these options; answered when it does. The option",
    "    'durability' is 'disk' or 'memory', whatever the protocol.",
    "MEMBER REMOVE <id> [<id> ...]",
    "    Remove members; answered when they are removed. The others keep their numbers.",
    "MEMBER ADD, MEMBER REPLACE <id>",
    "    Return the command line that starts the new replica.",
    "HELP",
    "    Print this help.",
];

/// The answer that a client gets in the end.
#[derive(Clone, Debug)]
enum Shows {
    Members,
    Protocol,
    Change,
    /// How the replica is started that takes the place of this member, or is one more.
    Join(Option<u16>),
}

/// A client that waits.
#[derive(Debug)]
struct Waiting {
    number: u64,
    connection: usize,
    shows: Shows,
    until: Time,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Operators {
    /// Of the connection that is being served.
    asked: Option<(Shows, ChangeRequest)>,
    number_last: u64,
    to_ask: VecDeque<(u64, ChangeRequest)>,
    waiting: Vec<Waiting>,
}

impl Operators {
    /// When the first client has waited long enough.
    pub fn next_deadline(&self) -> Time {
        let untils = self.waiting.iter().map(|waiting| waiting.until);
        untils.min().unwrap_or(Time::NEVER)
    }
}

impl Gateway {
    /// Whether these arguments of QUINTET are a question for the replica; it is kept until
    /// [`Self::ask_operator`].
    pub(super) fn asks(&mut self, args: &[&[u8]]) -> bool {
        self.operators.asked = parse(args).ok().flatten();
        self.operators.asked.is_some()
    }

    /// The connection waits for the answer to its question.
    pub(super) fn ask_operator(&mut self, connection: usize) {
        let operators = &mut self.operators;
        let Some((shows, request)) = operators.asked.take() else {
            return;
        };
        operators.number_last += 1;
        let number = operators.number_last;
        operators.to_ask.push_back((number, request));
        operators.waiting.push(Waiting {
            number,
            connection,
            shows,
            until: self.now + CHANGE_MAX,
        });
    }

    /// Takes a request to the replica, with the number to answer to.
    pub fn take_change(&mut self) -> Option<(u64, ChangeRequest)> {
        self.operators.to_ask.pop_front()
    }

    /// The request with this number has ended so. An unknown number is ignored.
    pub fn on_changed(&mut self, number: u64, report: &Result<ChangeReport, String>) {
        let waiting = &mut self.operators.waiting;
        if let Some(at) = waiting.iter().position(|it| it.number == number) {
            let waiting = waiting.swap_remove(at);
            self.answer_operator(&waiting, report);
        }
    }

    pub(super) fn end_late_changes(&mut self, now: Time) {
        let late = |waiting: &mut Waiting| waiting.until <= now;
        let late: Vec<_> = self.operators.waiting.extract_if(.., late).collect();
        if !late.is_empty() {
            let why = format!("not done within {} s", CHANGE_MAX.as_secs());
            self.end_changes(&late, &why);
        }
    }

    pub(super) fn end_changes_to_stop(&mut self) {
        let all = std::mem::take(&mut self.operators.waiting);
        self.end_changes(&all, "this replica is stopping");
    }

    fn end_changes(&mut self, ended: &[Waiting], why: &str) {
        let why = format!("{why}; it may still come: look at QUINTET PROTOCOL, and ask again");
        let report = Err(why);
        for waiting in ended {
            self.answer_operator(waiting, &report);
        }
    }

    fn answer_operator(&mut self, waiting: &Waiting, report: &Result<ChangeReport, String>) {
        let Some(mut connection) = self.connections[waiting.connection].take() else {
            return;
        };
        let mut out = std::mem::take(&mut self.reply);
        out.clear();
        let mut reply = Reply::unbounded(&mut out, connection.client.mode.resp3);
        match report {
            Ok(report) => write(report, &waiting.shows, &mut reply),
            Err(why) => {
                self.counters.errors += 1;
                reply.error(&format!("ERR {why}"));
            }
        }
        let before = connection.output.len();
        connection.answer(&out);
        self.reply = out;
        self.counters.output_bytes += (connection.output.len() - before) as u64;
        self.resume(waiting.connection, connection);
    }
}

/// Help, and errors: answered without the replica.
pub(super) fn answer(args: &[&[u8]], reply: &mut Reply<'_>) -> Answer {
    parse(args)?;
    reply.array(HELP.len());
    HELP.iter().for_each(|line| reply.simple(line));
    Ok(())
}

/// The request that the arguments make; none when it is help.
fn parse(args: &[&[u8]]) -> Result<Option<(Shows, ChangeRequest)>, CommandError> {
    let (subcommand, args) = args.split_first().ok_or(CommandError::Syntax)?;
    let lower = text(&subcommand.to_ascii_lowercase());
    let arity = |name: &str| Err(CommandError::arity(&format!("quintet|{name}")));
    let nothing = ChangeRequest::default();
    let asked = match (lower.as_str(), args) {
        ("help", []) => return Ok(None),
        ("members", []) => (Shows::Members, nothing),
        ("protocol", []) => (Shows::Protocol, nothing),
        ("change", []) => (Shows::Change, nothing),
        ("switch", [name, options @ ..]) if options.len() % 2 == 0 => {
            let pairs = options.chunks_exact(2);
            let pairs = pairs.map(|pair| (text(pair[0]), text(pair[1])));
            let mut options: BTreeMap<String, String> = pairs.collect();
            let request = ChangeRequest {
                protocol: Some(text(name)),
                durability: options.remove("durability"),
                options,
                ..nothing
            };
            (Shows::Protocol, request)
        }
        ("member", [what, ids @ ..]) if is(what, "remove") && !ids.is_empty() => {
            let remove = ids.iter().map(|id| member(id)).collect::<Result<_, _>>()?;
            (Shows::Members, ChangeRequest { remove, ..nothing })
        }
        ("member", [what]) if is(what, "add") => (Shows::Join(None), nothing),
        ("member", [what, id]) if is(what, "replace") => (Shows::Join(Some(member(id)?)), nothing),
        ("member", [what, ..]) if !["add", "remove", "replace"].iter().any(|it| is(what, it)) => {
            return Err(CommandError::unknown_subcommand(what, "QUINTET"));
        }
        ("help" | "members" | "protocol" | "change" | "switch" | "member", _) => {
            return arity(&lower);
        }
        _ => return Err(CommandError::unknown_subcommand(subcommand, "QUINTET")),
    };
    Ok(Some(asked))
}

fn member(id: &[u8]) -> Result<u16, CommandError> {
    let number = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
    number.ok_or_else(|| owned("ERR a member's number is expected, see QUINTET MEMBERS"))
}

fn write(report: &ChangeReport, shows: &Shows, reply: &mut Reply<'_>) {
    let field = |reply: &mut Reply<'_>, name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    let number = |reply: &mut Reply<'_>, name: &str, value: u64| {
        reply.bulk(name.as_bytes());
        reply.integer(i64::try_from(value).unwrap_or(i64::MAX));
    };
    match shows {
        Shows::Members => {
            reply.array(report.members.len());
            for member in &report.members {
                reply.map(5);
                number(reply, "id", member.id.into());
                field(reply, "node", &member.node);
                field(reply, "role", &member.role);
                field(reply, "peer", &member.peer);
                field(reply, "redis", member.redis.as_deref().unwrap_or_default());
            }
        }
        Shows::Protocol => {
            reply.map(5);
            number(reply, "epoch", report.epoch);
            field(reply, "protocol", &report.protocol);
            field(reply, "durability", &report.durability);
            field(reply, "fingerprint", &report.fingerprint);
            reply.bulk(b"options");
            reply.map(report.options.len());
            for (name, value) in &report.options {
                field(reply, name, value);
            }
        }
        Shows::Change => {
            reply.map(2);
            number(reply, "epoch", report.epoch);
            field(reply, "change", &report.change);
        }
        Shows::Join(place) => match report.join_line(*place) {
            Ok(line) => reply.bulk(line.as_bytes()),
            Err(why) => reply.error(&format!("ERR {why}")),
        },
    }
}
