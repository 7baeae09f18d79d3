//! Commands that the server answers itself: they concern the connection or this replica, not the
//! replicated data.

use super::{
    answers::{Answer, is, owned, text},
    connection::{Client, Replies},
    gateway::Gateway,
    guesses::same,
};
use quintet_replica::limits;
use quintet_store::{CommandError, CommandSpec, Mode, Op, Reply};
use std::{fmt::Write as _, net::SocketAddr};

/// The Redis version whose behaviour clients may expect.
pub(super) const REDIS_VERSION: &str = "7.0.15";
/// The longest name that a client may give itself, its library or its library's version: CLIENT LIST
/// shows those of all.
const NAME_BYTES_MAX: usize = 1024;
/// An error says no more than this, whatever the client has sent.
const ERROR_BYTES_MAX: usize = 1024;

fn not_supported(what: &str) -> CommandError {
    owned(format!(
        "ERR '{what}' is not supported in a replicated store"
    ))
}

impl Gateway {
    /// Leaves the reply in `self.reply`.
    pub(super) fn answer_locally(
        &mut self,
        client: &mut Client,
        spec: &'static CommandSpec,
        args: &[&[u8]],
    ) {
        let mut out = std::mem::take(&mut self.reply);
        out.clear();
        // HELLO answers in the protocol that it has just switched to.
        let result = if spec.op == Op::Hello {
            self.hello(client, args).map(|()| {
                self.write_hello(client, &mut Reply::unbounded(&mut out, client.mode.resp3));
            })
        } else {
            let bytes_max = limits::reply_bytes_max(self.limits.argument_bytes_max);
            let mut reply = Reply::new(&mut out, client.mode.resp3, bytes_max);
            let result = self.answer(client, spec, args, &mut reply);
            reply.finish();
            result
        };
        if let Err(error) = result {
            self.counters.errors += 1;
            out.clear();
            let mut text = error.to_string();
            let mut end = text.len().min(ERROR_BYTES_MAX);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            Reply::unbounded(&mut out, client.mode.resp3).error(&text);
        }
        self.reply = out;
    }

    fn answer(
        &mut self,
        client: &mut Client,
        spec: &'static CommandSpec,
        args: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Answer {
        match (spec.op, args) {
            (Op::Ping, []) => reply.simple("PONG"),
            (Op::Ping, [message]) => reply.bulk(message),
            (Op::Ping, _) => return Err(CommandError::arity("ping")),
            (Op::Echo, [message]) => reply.bulk(message),
            (Op::Select, [index]) => {
                client.mode.database = self.database(index)?;
                reply.ok();
            }
            (Op::Auth, [password]) => {
                if self.config.password.is_none() {
                    return Err(CommandError::Text(
                        "ERR AUTH <password> called without any password configured for the \
                         default user. Are you sure your configuration is correct?",
                    ));
                }
                self.authenticate(client, b"default", password)?;
                reply.ok();
            }
            (Op::Auth, [user, password]) => {
                self.authenticate(client, user, password)?;
                reply.ok();
            }
            (Op::Auth, _) => return Err(CommandError::Syntax),
            (Op::Client, [subcommand, args @ ..]) => {
                return self.client(client, subcommand, args, reply);
            }
            (Op::Quintet, args) => return super::operator::answer(args, reply),
            (Op::Command, args) => return super::catalogue::answer(args, reply),
            (Op::Config, [subcommand, args @ ..]) => return self.config(subcommand, args, reply),
            (Op::Info, sections) => reply.verbatim("txt", self.info(sections).as_bytes()),
            (Op::Role, _) => self.role(reply),
            (Op::Acl, [subcommand, args @ ..]) => return acl(self, subcommand, args, reply),
            (Op::Latency, [subcommand, ..]) => return latency(subcommand, reply),
            (Op::Slowlog, [subcommand, ..]) => return slowlog(subcommand, reply),
            (Op::Module, [subcommand, ..]) if is(subcommand, "list") => reply.array(0),
            (Op::Wait, [replicas, timeout]) => {
                integer(replicas)?;
                if integer(timeout)? < 0 {
                    return Err(CommandError::Text("ERR timeout is negative"));
                }
                // A quorum holds all answered writes, this replica or not.
                reply.count(self.config.members / 2);
            }
            (Op::Readonly | Op::Readwrite, _) => {
                client.stale = spec.op == Op::Readonly;
                reply.ok();
            }
            (Op::Cluster | Op::Asking, _) => {
                return Err(CommandError::Text(
                    "ERR This instance has cluster support disabled",
                ));
            }
            _ => {
                let refused = spec.refusal().unwrap_or_else(|| {
                    format!(
                        "ERR '{}' is not supported here",
                        spec.name.to_ascii_uppercase()
                    )
                });
                return Err(owned(refused));
            }
        }
        Ok(())
    }

    fn database(&self, index: &[u8]) -> Result<u8, CommandError> {
        let index = integer(index)?;
        u8::try_from(index)
            .ok()
            .filter(|index| *index < self.config.databases)
            .ok_or(CommandError::Text("ERR DB index is out of range"))
    }

    fn authenticate(&mut self, client: &mut Client, user: &[u8], password: &[u8]) -> Answer {
        let from = client.peer.ip();
        if let Err(wait) = self.admission.guesses.check(from, self.now) {
            self.counters.auth_throttled += 1;
            let seconds = wait.as_secs_f64().ceil();
            return Err(owned(format!(
                "ERR too many wrong passwords from this address: try again in {seconds} s"
            )));
        }
        let right = match &self.config.password {
            None => true,
            Some(expected) => same(expected.as_bytes(), password),
        };
        if user != b"default" || !right {
            self.counters.auth_failures += 1;
            self.admission.guesses.failed(from, self.now);
            return Err(CommandError::Text(
                "WRONGPASS invalid username-password pair or user is disabled.",
            ));
        }
        client.authenticated = true;
        Ok(())
    }

    fn hello(&mut self, client: &mut Client, args: &[&[u8]]) -> Answer {
        let mut resp3 = client.mode.resp3;
        let mut rest = args;
        if let [version, tail @ ..] = args {
            let version = integer(version).map_err(|_| {
                CommandError::Text("ERR Protocol version is not an integer or out of range")
            })?;
            if !(2..=3).contains(&version) {
                return Err(CommandError::Text("NOPROTO unsupported protocol version"));
            }
            resp3 = version == 3;
            rest = tail;
        }
        let mut credentials = None;
        let mut name = None;
        loop {
            rest = match rest {
                [] => break,
                [option, user, password, tail @ ..] if is(option, "auth") => {
                    credentials = Some((*user, *password));
                    tail
                }
                [option, given, tail @ ..] if is(option, "setname") => {
                    check_name(given)?;
                    name = Some(*given);
                    tail
                }
                [option, ..] => {
                    let option = text(option);
                    return Err(owned(format!(
                        "ERR Syntax error in HELLO option '{option}'"
                    )));
                }
            };
        }
        if let Some((user, password)) = credentials {
            self.authenticate(client, user, password)?;
        }
        if !client.authenticated {
            return Err(CommandError::Text(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                 the HELLO AUTH <user> <pass> option can be used to authenticate the \
                 client and select the RESP protocol version at the same time",
            ));
        }
        if let Some(name) = name {
            client.name = name.to_vec();
        }
        client.mode.resp3 = resp3;
        Ok(())
    }

    fn write_hello(&self, client: &Client, reply: &mut Reply<'_>) {
        reply.map(7);
        reply.bulk(b"server");
        reply.bulk(b"redis");
        reply.bulk(b"version");
        reply.bulk(REDIS_VERSION.as_bytes());
        reply.bulk(b"proto");
        reply.integer(if client.mode.resp3 { 3 } else { 2 });
        reply.bulk(b"id");
        reply.integer(client.id as i64);
        reply.bulk(b"mode");
        reply.bulk(b"standalone");
        reply.bulk(b"role");
        reply.bulk(b"master");
        reply.bulk(b"modules");
        reply.array(0);
    }

    fn client(
        &mut self,
        client: &mut Client,
        subcommand: &[u8],
        args: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Answer {
        let lower = subcommand.to_ascii_lowercase();
        let arity = || CommandError::arity(&format!("client|{}", text(&lower)));
        match (lower.as_slice(), args) {
            (b"id", []) => reply.integer(client.id as i64),
            (b"getname", []) => {
                let name = Some(client.name.as_slice()).filter(|name| !name.is_empty());
                reply.bulk_or_null(name);
            }
            (b"setname", [name]) => {
                check_name(name)?;
                client.name = name.to_vec();
                reply.ok();
            }
            (b"setinfo", [attribute, value]) => {
                let printable = value.iter().all(|byte| (b'!'..=b'~').contains(byte));
                let (field, name) = match () {
                    () if is(attribute, "lib-name") => (&mut client.library, "lib-name"),
                    () if is(attribute, "lib-ver") => (&mut client.library_version, "lib-ver"),
                    () => {
                        let option = text(attribute);
                        return Err(owned(format!("ERR Unrecognized option '{option}'")));
                    }
                };
                if !printable {
                    return Err(owned(format!(
                        "ERR {name} cannot contain spaces, newlines or special characters."
                    )));
                }
                check_length(name, value)?;
                *field = value.to_vec();
                reply.ok();
            }
            (b"info", []) => {
                let mut line = self.client_line(client);
                line.push('\n');
                reply.verbatim("txt", line.as_bytes());
            }
            (b"list", options) => {
                let list = self.client_list(client, options)?;
                reply.verbatim("txt", list.as_bytes());
            }
            (b"kill", [address]) => {
                let address = text(address);
                let found = self.kill(client, |other| other.peer.to_string() == address, false);
                if found == 0 {
                    return Err(CommandError::Text("ERR No such client"));
                }
                reply.ok();
            }
            (b"kill", [_, ..]) => {
                let count = self.kill_matching(client, args)?;
                reply.count(count);
            }
            (b"reply", [mode]) if is(mode, "on") => {
                client.replies = Replies::On;
                reply.ok();
            }
            // These are not answered themselves.
            (b"reply", [mode]) if is(mode, "off") => client.replies = Replies::Off,
            (b"reply", [mode]) if is(mode, "skip") => {
                if client.replies != Replies::Off {
                    client.replies = Replies::SkipNext;
                }
            }
            (b"reply", [_]) => return Err(CommandError::Syntax),
            (b"no-evict" | b"no-touch", [mode]) => {
                if !is(mode, "on") && !is(mode, "off") {
                    return Err(CommandError::Syntax);
                }
                client.no_evict = lower == b"no-evict" && is(mode, "on");
                reply.ok();
            }
            (b"tracking", [mode, ..]) if is(mode, "off") => reply.ok(),
            (b"tracking", [_, ..]) => return Err(not_supported("CLIENT TRACKING")),
            (b"trackinginfo", []) => {
                reply.map(3);
                reply.bulk(b"flags");
                reply.set(1);
                reply.bulk(b"off");
                reply.bulk(b"redirect");
                reply.integer(-1);
                reply.bulk(b"prefixes");
                reply.array(0);
            }
            (b"getredir", []) => reply.integer(-1),
            (b"unpause", []) => reply.ok(),
            (b"pause", [_, ..]) => return Err(not_supported("CLIENT PAUSE")),
            (b"unblock", [id, ..]) => {
                integer(id)?;
                reply.integer(0);
            }
            (b"caching", [_]) => {
                return Err(CommandError::Text(
                    "ERR CLIENT CACHING can be called only when the client is in tracking mode \
                     with OPTIN or OPTOUT mode enabled",
                ));
            }
            (b"help", []) => {
                let lines = [
                    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                    "GETNAME, GETREDIR, ID, INFO, KILL, LIST, NO-EVICT, NO-TOUCH, REPLY,",
                    "SETINFO, SETNAME, TRACKINGINFO, UNBLOCK, UNPAUSE.",
                ];
                reply.array(lines.len());
                for line in lines {
                    reply.simple(line);
                }
            }
            (
                b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"kill" | b"reply"
                | b"no-evict" | b"no-touch" | b"tracking" | b"trackinginfo" | b"getredir"
                | b"unpause" | b"pause" | b"unblock" | b"caching" | b"help",
                _,
            ) => return Err(arity()),
            _ => return Err(CommandError::unknown_subcommand(subcommand, "CLIENT")),
        }
        Ok(())
    }

    fn client_line(&self, client: &Client) -> String {
        let seconds = |since| self.now.since(since).as_secs();
        let mut line = String::with_capacity(200);
        let Mode { resp3, database } = client.mode;
        // Writing to a string cannot fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub=0 psub=0 \
             ssub=0 multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 \
             omem=0 tot-mem=0 events=r cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
            client.id,
            client.peer,
            self.local_address(client.peer),
            text(&client.name),
            seconds(client.connected),
            seconds(client.last_input),
            if client.stale { "r" } else { "N" },
            database,
            if client.last_command.is_empty() {
                "NULL"
            } else {
                client.last_command
            },
            if resp3 { 3 } else { 2 },
            text(&client.library),
            text(&client.library_version),
        );
        line
    }

    fn local_address(&self, peer: SocketAddr) -> SocketAddr {
        let mut local = peer;
        local.set_port(self.config.port);
        local
    }

    fn client_list(&self, this: &Client, options: &[&[u8]]) -> Result<String, CommandError> {
        let mut ids: Option<Vec<i64>> = None;
        let mut normal = true;
        match options {
            [] => {}
            [option, given @ ..] if is(option, "id") && !given.is_empty() => {
                let wrong = |_| CommandError::Text("ERR Invalid client ID");
                let given = given.iter().map(|id| integer(id).map_err(wrong));
                ids = Some(given.collect::<Result<_, _>>()?);
            }
            [option, kind] if is(option, "type") => {
                normal = is_normal(kind)?;
            }
            _ => return Err(CommandError::Syntax),
        }
        let others = self
            .connections
            .iter()
            .flatten()
            .filter(|connection| !connection.gone);
        let mut all: Vec<&Client> = others.map(|connection| &connection.client).collect();
        all.push(this);
        all.sort_by_key(|client| client.id);
        let mut list = String::new();
        let bytes_max = limits::reply_bytes_max(self.limits.argument_bytes_max);
        for client in all {
            if list.len() > bytes_max {
                // The reply says so.
                break;
            }
            let wanted = ids
                .as_ref()
                .is_none_or(|ids| ids.contains(&(client.id as i64)));
            if wanted && normal {
                list.push_str(&self.client_line(client));
                list.push('\n');
            }
        }
        Ok(list)
    }

    fn kill_matching(&mut self, this: &mut Client, args: &[&[u8]]) -> Result<usize, CommandError> {
        let mut skip_this = true;
        let (mut id, mut peer, mut user, mut normal) = (None, None, true, true);
        let mut rest = args;
        loop {
            rest = match rest {
                [] => break,
                [option, value, tail @ ..] => {
                    match () {
                        () if is(option, "id") => {
                            let wrong =
                                || CommandError::Text("ERR client-id should be greater than 0");
                            id = Some(integer(value).ok().filter(|id| *id > 0).ok_or_else(wrong)?);
                        }
                        () if is(option, "addr") => peer = Some(text(value)),
                        () if is(option, "laddr") => peer = Some(String::new()),
                        () if is(option, "type") => normal = is_normal(value)?,
                        () if is(option, "user") => user = is(value, "default"),
                        () if is(option, "skipme") && is(value, "yes") => skip_this = true,
                        () if is(option, "skipme") && is(value, "no") => skip_this = false,
                        () => return Err(CommandError::Syntax),
                    }
                    tail
                }
                _ => return Err(CommandError::Syntax),
            };
        }
        let matches = |client: &Client| {
            id.is_none_or(|id| client.id as i64 == id)
                && peer
                    .as_ref()
                    .is_none_or(|peer| client.peer.to_string() == *peer)
                && user
                && normal
        };
        Ok(self.kill(this, matches, skip_this))
    }

    /// Disconnects the clients that match and gives their number.
    fn kill(
        &mut self,
        this: &mut Client,
        matches: impl Fn(&Client) -> bool,
        skip_this: bool,
    ) -> usize {
        let mut count = 0;
        for index in 0..self.connections.len() {
            let Some(mut connection) = self.connections[index].take() else {
                continue;
            };
            if !connection.gone && matches(&connection.client) {
                count += 1;
                connection.closing = true;
                self.mark_dirty(index, &mut connection);
            }
            self.connections[index] = Some(connection);
        }
        if !skip_this && matches(this) {
            count += 1;
            this.killed = true;
        }
        count
    }
}

fn is_normal(kind: &[u8]) -> Result<bool, CommandError> {
    match () {
        () if is(kind, "normal") => Ok(true),
        () if ["master", "replica", "slave", "pubsub"]
            .iter()
            .any(|other| is(kind, other)) =>
        {
            Ok(false)
        }
        () => Err(owned(format!("ERR Unknown client type '{}'", text(kind)))),
    }
}

pub(super) fn integer(given: &[u8]) -> Result<i64, CommandError> {
    quintet_store::numbers::parse_integer(given)
}

/// `what` the client gives a name to.
fn check_length(what: &str, name: &[u8]) -> Answer {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let bytes = name.len();
    Err(owned(format!(
        "ERR {what} may have at most {NAME_BYTES_MAX} bytes, this one has {bytes}"
    )))
}

fn check_name(name: &[u8]) -> Answer {
    check_length("client names", name)?;
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(());
    }
    Err(CommandError::Text(
        "ERR Client names cannot contain spaces, newlines or special characters.",
    ))
}

fn acl(gateway: &Gateway, subcommand: &[u8], args: &[&[u8]], reply: &mut Reply<'_>) -> Answer {
    match (subcommand.to_ascii_lowercase().as_slice(), args) {
        (b"whoami", []) => reply.bulk(b"default"),
        (b"users", []) => {
            reply.array(1);
            reply.bulk(b"default");
        }
        (b"list", []) => {
            let secret = if gateway.config.password.is_some() {
                ">***"
            } else {
                "nopass"
            };
            reply.array(1);
            reply.bulk(format!("user default on {secret} ~* &* +@all").as_bytes());
        }
        _ => {
            return Err(not_supported(&format!(
                "ACL {}",
                text(subcommand).to_ascii_uppercase()
            )));
        }
    }
    Ok(())
}

fn latency(subcommand: &[u8], reply: &mut Reply<'_>) -> Answer {
    match subcommand.to_ascii_lowercase().as_slice() {
        b"latest" | b"history" => reply.array(0),
        b"histogram" => reply.map(0),
        b"reset" => reply.integer(0),
        b"doctor" => reply.verbatim(
            "txt",
            b"Latencies are shown by the metrics of the admin port.\n",
        ),
        _ => return Err(CommandError::unknown_subcommand(subcommand, "LATENCY")),
    }
    Ok(())
}

fn slowlog(subcommand: &[u8], reply: &mut Reply<'_>) -> Answer {
    match subcommand.to_ascii_lowercase().as_slice() {
        b"get" => reply.array(0),
        b"len" => reply.integer(0),
        b"reset" => reply.ok(),
        _ => return Err(CommandError::unknown_subcommand(subcommand, "SLOWLOG")),
    }
    Ok(())
}
