//! From a connection's input to one request: which commands are answered here, which continue.
//!
//! ```text
//!   input: SET a 1 │ PING │ GET a │ INFO │ SET b 2
//!          ───────── one request ── │ cut: INFO is answered when the request is done
//!          ordered    literal  read
//! ```
//!
//! A short reply made here between commands of a request travels with it as a literal, so that the
//! request's reply is the replies of all its commands, in order. A command that has a long reply,
//! or changes how the connection is served, waits for the request to end.

use super::{
    answers::is_answered,
    connection::{Connection, Replies, Transaction, WatchedKey},
    gateway::Gateway,
    resp::{Step, TooLarge},
    shares::INPUT_LARGE,
};
use bytes::Buf;
use quintet_store::{
    ArgsBuffer, CommandSpec, Flags, Kind, Mode, Op, Reply, RequestBuilder, Watched, lookup,
};

/// The longest reply that travels as a literal.
const LITERAL_BYTES_MAX: usize = 1024;
/// The most arguments of a command that the server answers itself.
const LOCAL_ARGUMENTS_MAX: usize = 1024;
/// The weight of a reply made here besides its bytes.
const REPLY_WORK: usize = 64;
/// The weight of a command of a transaction besides its arguments or its reply, at most.
const QUEUED_WORK: usize = 16;
/// The most keys that a connection may watch.
const WATCHED_MAX: usize = 4096;
/// The most bytes that they may have together.
const WATCHED_BYTES_MAX: usize = 1 << 20;

/// The next part of a connection's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// No request; all complete commands have been answered.
    Nothing,
    /// No request yet, but there are more commands to serve.
    More,
    /// A request that only reads.
    Reads,
    /// The question for the versions of the keys to be watched.
    Watch,
    /// A question about the epoch, or a change of it.
    Change,
    /// A read of the past.
    Past,
    /// A request that is to be ordered.
    Writes,
    /// Requests for several groups.
    Parts,
}

/// The step after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Continue with the next.
    Next,
    /// It was the last of the request.
    Last,
    /// The request is a question for versions.
    Watch,
    /// The request concerns the epoch.
    Change,
    /// It is a read of the past.
    Past,
    /// The command must wait until the request before it has ended.
    Cut,
}

impl Gateway {
    /// Takes commands from the input until they make a request of a good size; `self.builder` then
    /// holds it.
    pub(super) fn drain(&mut self, connection: &mut Connection) -> Drained {
        self.builder.clear();
        self.parts.clear();
        self.replied = 0;
        let mut offset = 0;
        let (mut watch, mut change, mut past) = (false, false, false);
        let mut more = false;
        loop {
            let commands = self.builder.commands() + self.parts.commands();
            if commands >= connection.commands_max.min(self.config.request_commands_max)
                || self.builder.len() + self.parts.bytes() >= self.config.request_bytes_max
                || connection.output.len() >= self.config.output_bytes_soft
                // Suppressed replies cost as much to make.
                || self.replied >= self.config.output_bytes_soft
            {
                more = offset < connection.input.len();
                break;
            }
            let input = &connection.input[offset..];
            let authenticated = connection.client.authenticated;
            match connection.parser.step(input, &self.limits, authenticated) {
                Ok(Step::Incomplete) => break,
                Ok(Step::Discard(length)) => offset += length,
                Ok(Step::TooLarge(length, reason)) => {
                    offset += length;
                    self.on_too_large(connection, reason);
                    connection.command_ended();
                }
                Ok(Step::Command(length)) => match self.on_command(connection, offset) {
                    // An unanswered command is a request by itself.
                    Flow::Next if self.builder.is_empty() => {
                        offset += length;
                        connection.command_ended();
                    }
                    Flow::Next if connection.client.replies != Replies::Skip => offset += length,
                    Flow::Next | Flow::Last => {
                        offset += length;
                        break;
                    }
                    Flow::Watch => {
                        offset += length;
                        watch = true;
                        break;
                    }
                    Flow::Change => {
                        offset += length;
                        change = true;
                        break;
                    }
                    Flow::Past => {
                        offset += length;
                        past = true;
                        break;
                    }
                    Flow::Cut => {
                        // Alone it continues as soon as it is its turn.
                        more = self.builder.is_empty();
                        break;
                    }
                },
                Err(error) => {
                    self.counters.errors_protocol += 1;
                    self.reply.clear();
                    let text = format!("ERR Protocol error: {error}");
                    Reply::unbounded(&mut self.reply, false).error(&text);
                    self.emit(connection);
                    connection.closing = true;
                }
            }
            if connection.closing {
                offset = connection.input.len();
                break;
            }
        }
        self.counters.input_bytes += offset as u64;
        connection.input.advance(offset);
        connection.parser.shrink();
        match () {
            () if watch => Drained::Watch,
            () if change => Drained::Change,
            () if past => Drained::Past,
            () if self.parts.are_several() => Drained::Parts,
            () if !self.builder.is_query() => Drained::Writes,
            () if !self.builder.is_empty() => Drained::Reads,
            () if more => Drained::More,
            () => Drained::Nothing,
        }
    }

    /// The reply in `self.reply` takes its place among the replies.
    fn emit(&mut self, connection: &mut Connection) {
        self.replied += self.reply.len() + REPLY_WORK;
        if self.builder.is_empty() {
            connection.answer(&self.reply);
        } else {
            self.builder.literal(&self.reply);
        }
    }

    /// Answers with an error made here.
    pub(super) fn refuse(&mut self, connection: &mut Connection, text: &str) -> Flow {
        self.counters.errors += 1;
        if let Some(transaction) = &mut connection.transaction {
            transaction.refused = true;
            // Nothing of it will be executed.
            transaction.queued = RequestBuilder::new();
        }
        self.answer_error(connection, text)
    }

    fn refuse_arity(&mut self, connection: &mut Connection, spec: &CommandSpec) -> Flow {
        let mut text = spec.arity_error();
        if spec.op == Op::Exec && connection.transaction.take().is_some() {
            connection.transaction_group = None;
            connection.watched.clear();
            let why = text.trim_start_matches("ERR ");
            text = format!("EXECABORT Transaction discarded because of: {why}");
        }
        self.refuse(connection, &text)
    }

    /// The same, but a transaction continues.
    fn answer_error(&mut self, connection: &mut Connection, text: &str) -> Flow {
        self.reply.clear();
        Reply::unbounded(&mut self.reply, connection.client.mode.resp3).error(text);
        self.emit(connection);
        Flow::Next
    }

    fn answer_simple(&mut self, connection: &mut Connection, text: &str) -> Flow {
        self.reply.clear();
        Reply::unbounded(&mut self.reply, false).simple(text);
        self.emit(connection);
        Flow::Next
    }

    fn on_too_large(&mut self, connection: &mut Connection, reason: TooLarge) {
        self.counters.commands += 1;
        let text = match reason {
            TooLarge::Argument(bytes) => {
                let bytes_max = self.limits.argument_bytes_max;
                format!("ERR value exceeds limits.value_bytes_max ({bytes} > {bytes_max})")
            }
            TooLarge::Command(bytes) => {
                let bytes_max = self.limits.command_bytes_max;
                format!(
                    "ERR command exceeds what limits.value_bytes_max allows ({bytes} > {bytes_max})"
                )
            }
        };
        self.refuse(connection, &text);
    }

    /// The parser has found a command at `offset` of the input.
    #[inline]
    fn on_command(&mut self, connection: &mut Connection, offset: usize) -> Flow {
        let arguments = connection.parser.len();
        if arguments == 0 {
            return Flow::Next;
        }
        let input = &connection.input[offset..];
        let name = connection.parser.argument(input, 0);
        // Most commands are like the one before them.
        let spec = match self.spec_last {
            Some(spec) if spec.name.as_bytes().eq_ignore_ascii_case(name) => spec,
            _ => match lookup(name) {
                Some(spec) => spec,
                None => return self.on_unknown(connection, offset),
            },
        };
        self.spec_last = Some(spec);
        if !spec.arity_fits(arguments - 1) {
            self.counters.commands += 1;
            return self.refuse_arity(connection, spec);
        }
        if !connection.client.authenticated && !spec.flags.has(Flags::NO_AUTH) {
            self.counters.commands += 1;
            return self.refuse(connection, "NOAUTH Authentication required.");
        }
        if self.read_only && spec.kind == Kind::Write && self.config.shards.is_none() {
            self.counters.commands += 1;
            self.counters.errors_disk_full += 1;
            return self.refuse(connection, DISK_FULL);
        }
        if spec.op == Op::QuintetRetain
            && let Some(text) = self.refuses_retain(connection, offset)
        {
            return self.refuse(connection, &text);
        }
        if self.config.shards.is_some()
            && let Some(flow) = self.choose_group(connection, offset, spec)
        {
            return flow;
        }
        let input = &connection.input[offset..];
        if connection.transaction.is_none() && matches!(spec.kind, Kind::Read | Kind::Write) {
            connection.client.last_command = spec.name;
            let parser = &connection.parser;
            let args = (1..arguments).map(|index| parser.argument(input, index));
            self.builder
                .command_from(spec, connection.client.mode, arguments - 1, args);
            self.counters.commands += 1;
            match spec.kind {
                Kind::Read => self.counters.commands_read += 1,
                _ => self.counters.commands_write += 1,
            }
            return Flow::Next;
        }
        let flow = self.on_other(connection, offset, spec);
        if flow != Flow::Cut {
            connection.client.last_command = spec.name;
            self.counters.commands += 1;
            self.counters.commands_local += 1;
        }
        flow
    }

    fn on_unknown(&mut self, connection: &mut Connection, offset: usize) -> Flow {
        let input = &connection.input[offset..];
        let parser = &connection.parser;
        let name = parser.argument(input, 0);
        self.counters.commands += 1;
        if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
            // A browser was made to talk to this port; what follows is not its user's wish.
            self.counters.errors_protocol += 1;
            connection.closing = true;
            return Flow::Next;
        }
        let shown = |bytes: &[u8], most: usize| {
            String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
        };
        let mut args = String::new();
        for index in 1..parser.len() {
            if args.len() >= 128 {
                break;
            }
            let most = 128 - args.len();
            args.push_str(&format!(
                "'{}' ",
                shown(parser.argument(input, index), most)
            ));
        }
        let text = format!(
            "ERR unknown command '{}', with args beginning with: {args}",
            shown(name, 128)
        );
        self.refuse(connection, &text)
    }

    /// Everything but plain reads and writes.
    fn on_other(
        &mut self,
        connection: &mut Connection,
        offset: usize,
        spec: &'static CommandSpec,
    ) -> Flow {
        match spec.op {
            Op::Multi if connection.transaction.is_some() => {
                return self.answer_error(connection, "ERR MULTI calls can not be nested");
            }
            Op::Multi => {
                connection.transaction = Some(Transaction::default());
                return self.answer_simple(connection, "OK");
            }
            Op::Exec => return self.on_exec(connection),
            Op::Discard => {
                if connection.transaction.take().is_none() {
                    return self.refuse(connection, "ERR DISCARD without MULTI");
                }
                connection.watched.clear();
                connection.transaction_group = None;
                return self.answer_simple(connection, "OK");
            }
            Op::Watch if connection.transaction.is_some() => {
                return self.answer_error(connection, "ERR WATCH inside MULTI is not allowed");
            }
            Op::Watch => return self.on_watch(connection, offset),
            Op::Quit => {
                connection.closing = true;
                return self.answer_simple(connection, "OK");
            }
            Op::Reset => {
                connection.reset(self.config.password.is_none());
                self.expect_password();
                return self.answer_simple(connection, "RESET");
            }
            _ => {}
        }
        if connection.transaction.is_some() {
            return self.queue(connection, offset, spec);
        }
        if spec.op == Op::Unwatch {
            connection.watched.clear();
            connection.transaction_group = None;
            return self.answer_simple(connection, "OK");
        }
        if spec.kind == Kind::Past {
            return self.on_past_command(connection, offset, spec);
        }
        if !may_travel(spec.op) && !self.builder.is_empty() {
            return Flow::Cut;
        }
        if connection.parser.len() > LOCAL_ARGUMENTS_MAX {
            let name = spec.name;
            let text = format!("ERR '{name}' takes at most {LOCAL_ARGUMENTS_MAX} arguments");
            return self.refuse(connection, &text);
        }
        let input = &connection.input[offset..];
        let parser = &connection.parser;
        let args: ArgsBuffer<'_> = (1..parser.len())
            .map(|index| parser.argument(input, index))
            .collect();
        if args.iter().map(|arg| arg.len()).sum::<usize>() > LITERAL_BYTES_MAX
            && !self.builder.is_empty()
        {
            return Flow::Cut;
        }
        if spec.op == Op::Quintet && self.asks(&args) {
            return Flow::Change;
        }
        self.answer_locally(&mut connection.client, spec, &args);
        drop(args);
        connection.closing |= connection.client.killed;
        self.emit(connection);
        Flow::Next
    }

    /// A command between MULTI and EXEC.
    fn queue(
        &mut self,
        connection: &mut Connection,
        offset: usize,
        spec: &'static CommandSpec,
    ) -> Flow {
        if let Some(text) = self.refusal(spec) {
            return self.refuse(connection, &text);
        }
        if spec.flags.has(Flags::NO_MULTI) || spec.op == Op::Hello {
            return self.refuse(connection, "ERR Command not allowed inside a transaction");
        }
        // It would not wait for EXEC.
        let input = &connection.input[offset..];
        let is_reply = |parser: &super::resp::Parser| {
            parser.len() > 1 && parser.argument(input, 1).eq_ignore_ascii_case(b"reply")
        };
        if spec.op == Op::Client && is_reply(&connection.parser) {
            return self.refuse(connection, "ERR Command not allowed inside a transaction");
        }
        match self.queue_command(connection, offset, spec) {
            Ok(()) => self.answer_simple(connection, "QUEUED"),
            Err(text) => self.refuse(connection, &text),
        }
    }

    fn queue_command(
        &mut self,
        connection: &mut Connection,
        offset: usize,
        spec: &'static CommandSpec,
    ) -> Result<(), String> {
        let Connection {
            input,
            parser,
            client,
            transaction,
            closing,
            ..
        } = connection;
        let Some(transaction) = transaction.as_mut().filter(|it| !it.refused) else {
            return Ok(());
        };
        let input = &input[offset..];
        let args: ArgsBuffer<'_> = (1..parser.len())
            .map(|index| parser.argument(input, index))
            .collect();
        let bytes_max = self.limits.command_bytes_max;
        let check = |bytes: usize| {
            if bytes <= bytes_max {
                return Ok(());
            }
            Err(format!(
                "ERR transaction exceeds what limits.value_bytes_max allows ({bytes_max})"
            ))
        };
        let bytes = args.iter().map(|arg| arg.len() + 4).sum::<usize>();
        check(transaction.queued.len() + QUEUED_WORK + bytes)?;
        let database = transaction.database.unwrap_or(client.mode.database);
        let mode = Mode {
            database,
            ..client.mode
        };
        match spec.op {
            Op::Unwatch => transaction.queued.literal(b"+OK\r\n"),
            Op::Select => {
                let index = std::str::from_utf8(args[0])
                    .ok()
                    .and_then(|text| text.parse().ok());
                if let Some(index) = index
                    && index < self.config.databases
                {
                    transaction.database = Some(index);
                }
                transaction.queued.command(spec, mode, &args);
            }
            Op::Ping | Op::Echo => transaction.queued.command(spec, mode, &args),
            _ if matches!(spec.kind, Kind::Read | Kind::Write) => {
                transaction.queued.command(spec, mode, &args);
            }
            _ => {
                self.answer_locally(client, spec, &args);
                *closing |= client.killed;
                // A reply made here may be far longer than the command.
                check(transaction.queued.len() + QUEUED_WORK + self.reply.len())?;
                transaction.queued.literal(&self.reply);
            }
        }
        Ok(())
    }

    fn on_exec(&mut self, connection: &mut Connection) -> Flow {
        let Some(transaction) = &mut connection.transaction else {
            return self.refuse(connection, "ERR EXEC without MULTI");
        };
        // Only a request of its own tells whether a SELECT inside has taken effect.
        let alone = transaction.database.is_some();
        if alone && !self.builder.is_empty() {
            return Flow::Cut;
        }
        // A transaction queued bit by bit is executed at once, so it has its turn among large
        // requests.
        if transaction.queued.len() > INPUT_LARGE && connection.weight_in_flight == 0 {
            transaction.exec_waits = true;
            return Flow::Cut;
        }
        if let Some(cut) = self.enter_group_of_transaction(connection) {
            return cut;
        }
        let Some(transaction) = connection.transaction.take() else {
            return Flow::Next;
        };
        let watched = std::mem::take(&mut connection.watched);
        if transaction.refused {
            return self.refuse(
                connection,
                "EXECABORT Transaction discarded because of previous errors.",
            );
        }
        if transaction.queued.is_empty() && watched.is_empty() {
            self.reply.clear();
            Reply::unbounded(&mut self.reply, false).array(0);
            self.emit(connection);
            return Flow::Next;
        }
        let watched: Vec<Watched<'_>> = watched
            .iter()
            .map(
                |WatchedKey {
                     database,
                     key,
                     version,
                 }| Watched {
                    database: *database,
                    version: *version,
                    key,
                },
            )
            .collect();
        self.builder
            .transaction(connection.client.mode, &watched, &transaction.queued);
        match transaction.queued.is_query() {
            true => self.counters.commands_read += 1,
            false => self.counters.commands_write += 1,
        }
        if alone {
            connection.database_after = transaction.database;
            return Flow::Last;
        }
        Flow::Next
    }

    fn on_watch(&mut self, connection: &mut Connection, offset: usize) -> Flow {
        if !self.builder.is_empty() {
            return Flow::Cut;
        }
        let Connection {
            input,
            parser,
            client,
            watched,
            watching,
            ..
        } = connection;
        let input = &input[offset..];
        if watched.len() + parser.len() > WATCHED_MAX {
            let text = format!("ERR more than {WATCHED_MAX} watched keys");
            return self.refuse(connection, &text);
        }
        let keys: ArgsBuffer<'_> = (1..parser.len())
            .map(|index| parser.argument(input, index))
            .collect();
        let bytes = keys.iter().map(|key| key.len());
        let bytes = bytes.chain(watched.iter().map(|watched| watched.key.len()));
        if bytes.sum::<usize>() > WATCHED_BYTES_MAX {
            drop(keys);
            let text = format!("ERR watched keys exceed {WATCHED_BYTES_MAX} bytes");
            return self.refuse(connection, &text);
        }
        let database = client.mode.database;
        watching.clear();
        watching.extend(keys.iter().map(|key| WatchedKey {
            database,
            key: key.to_vec(),
            version: 0,
        }));
        self.builder.watch_versions(
            Mode {
                resp3: false,
                database,
            },
            &keys,
        );
        Flow::Watch
    }

    /// The reason why this command is not supported, if so.
    pub(super) fn refusal(&self, spec: &CommandSpec) -> Option<String> {
        (!is_answered(spec.op)).then(|| spec.refusal()).flatten()
    }
}

/// Redis's word for a server that cannot persist; clients know it.
pub(super) const DISK_FULL: &str = "MISCONF the disk of this replica is full: not executed; write through \
                         another replica, or make room";

/// Whether the reply is short and the command changes nothing that the commands before it in the
/// same request could still need.
const fn may_travel(op: Op) -> bool {
    matches!(op, Op::Ping | Op::Echo | Op::Select)
}
