//! The store: Redis's data model as a deterministic state machine.
//!
//! ```text
//!   apply(at, request) ──► decode ──► each command: limits ──► dispatch ──► reply bytes
//!   query(at, request) ──►    "            "  reads only          "             "
//!   tick(at) ──► delete what has expired
//! ```

use crate::command::{CommandSpec, Flags, Footprint, Kind, Op, key_hash};
use crate::commands::{
    self,
    past::{self, AsOf, NoAnswer},
};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::index::Slot;
use crate::keyspace::{Keys, Keyspace, NEVER, WARM_KEYS};
use crate::options::StoreOptions;
use crate::passing::Passing;
use crate::random::Random;
use crate::reply::Reply;
use crate::request::{Args, ArgsBuffer, Commands, Mode, RequestCommand, next_watched};
use crate::snapshot::{Globals, Read, ReadBack, Restore, malformed};
use crate::steps::{Meter, may_be_long, steps_of, steps_of_queued};
use crate::undo::{Marks, Undo};
use quintet_replica::{
    Access, At, CommandTime, DigestBegun, FootprintVisitor, PastAnswer, RestoreError,
    SnapshotProgress, StateCheck, StateMachine, Terms,
};
use smallvec::SmallVec;
use std::cell::RefCell;

/// A reply of one line is no longer: a number, a status, an error of a fixed text.
const LINE_BYTES_MAX: usize = 128;

/// The version of everything that commands do, of their footprints and of what decides them: raised
/// with each change that a client or another replica could tell.
const SEMANTICS: u32 = 4;

/// How many expired keys one tick deletes at most, so that a tick stays short.
const EXPIRE_PER_TICK_MAX: usize = 1000;

/// The store; see the module.
#[derive(Debug)]
pub struct Store {
    pub(crate) keyspace: Keyspace,
    options: StoreOptions,
    refuse_writes: bool,
    /// The latest time of any command or tick, in nanoseconds.
    time: u64,
    restore: Option<Restore>,
    /// The past that is being restored.
    restored_past: Option<Box<Undo>>,
    /// The steps of long commands in the batch in progress.
    meter: Meter,
    /// Expired keys that the command in progress has come by.
    passed: RefCell<Vec<(u32, Slot)>>,
}

impl Default for Store {
    fn default() -> Self {
        Self::new(StoreOptions::default())
    }
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(options: StoreOptions) -> Self {
        let keyspace = Keyspace::new(options.databases, options.hash_seed);
        Self {
            keyspace,
            options,
            refuse_writes: false,
            time: 0,
            restore: None,
            restored_past: None,
            meter: Meter::default(),
            passed: RefCell::default(),
        }
    }

    /// Its limits.
    #[must_use]
    pub const fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// How many keys each database holds, for status only.
    pub fn keys_per_database(&self) -> impl Iterator<Item = usize> {
        let now = self.now();
        self.keyspace
            .databases
            .iter()
            .map(move |database| database.len(now))
    }

    const fn now(&self) -> u64 {
        CommandTime(self.time).milliseconds()
    }

    fn globals(&self) -> Globals {
        Globals {
            refuse_writes: self.refuse_writes,
            databases: self.options.databases,
            time: self.time,
            past: self.keyspace.past(),
        }
    }

    /// The part of a digest besides the entries and the past.
    fn digest_globals(&self) -> SmallVec<[u8; 64]> {
        let mut globals = SmallVec::new();
        globals.extend_from_slice(&[u8::from(self.refuse_writes), self.options.databases]);
        let past = self.keyspace.past();
        if past != Marks::default() {
            globals.extend_from_slice(&past.to_bytes());
        }
        globals
    }

    fn warm_keys(&self, database: u8, keys: &mut SmallVec<[&[u8]; WARM_KEYS]>) {
        if let Some(database) = self.keyspace.databases.get(usize::from(database)) {
            database.warm(keys);
        }
        keys.clear();
    }

    /// Executes one command that is no transaction.
    #[inline]
    fn apply_one(
        &mut self,
        at: &At,
        salt: u64,
        command: RequestCommand,
        args: Args<'_>,
        (out, end): (&mut Vec<u8>, usize),
    ) {
        let RequestCommand { spec, mode } = command;
        if out.len() >= end && !answers_with_a_line(spec.op, args) {
            return self.refuse_reply(mode, out);
        }
        if !spec.is_write() {
            let (now, seed) = (at.time.milliseconds(), at.id.mixed(salt));
            self.read_one(now, at.time.0, seed, command, args, (out, true));
            if !self.passed.get_mut().is_empty() {
                let passed = self.passed.take();
                self.keyspace.lose_expired(mode.database, &passed);
            }
            return;
        }
        let Self {
            keyspace,
            options,
            refuse_writes,
            meter,
            ..
        } = self;
        let mut context = WriteContext {
            keys: Keys {
                keyspace,
                database: mode.database,
                now: at.time.milliseconds(),
                version: at.id.mixed(salt),
            },
            reply: Reply::new(out, mode.resp3, options.max_reply_bytes),
            random: Random::new(at.id.mixed(!salt)),
            options,
        };
        let result = check_database(mode.database, options).and_then(|()| {
            if spec.op == Op::MemoryLimit {
                *refuse_writes = args[0] == b"1";
                context.reply.ok();
                return Ok(());
            }
            check_limits(spec, args, options)?;
            if *refuse_writes && spec.flags.has(Flags::DENYOOM) {
                return Err(CommandError::Text(
                    "OOM command not allowed when used memory > 'maxmemory'.",
                ));
            }
            if may_be_long(spec.op, args) {
                let keys = &context.keys;
                let count = || keys.keyspace.database(mode.database).len(keys.now);
                meter.take(
                    spec,
                    steps_of(spec, args, options, count, |key| keys.peek(key)),
                )?;
            }
            commands::write(spec, &mut context, args)
        });
        finish(&mut context.reply, result);
    }

    /// The replies before this command have used up what its request may be answered.
    #[cold]
    fn refuse_reply(&self, mode: Mode, out: &mut Vec<u8>) {
        let bytes_max = self.options.max_request_reply_bytes;
        Reply::unbounded(out, mode.resp3).error(&format!(
            "ERR replies to commands sent together exceed {bytes_max} bytes: not executed"
        ));
    }

    /// Why a transaction of that many commands is not executed, if so: each of them needs a line at
    /// least. Otherwise the length from which on they get no more.
    fn transaction_end(&self, count: usize, length: usize, end: usize) -> Result<usize, String> {
        let bytes_max = self.options.max_request_reply_bytes;
        let lines = count.saturating_mul(LINE_BYTES_MAX);
        if length >= end || lines > bytes_max {
            return Err(format!(
                "ERR replies of {count} commands may exceed {bytes_max} bytes: nothing of the \
                 transaction was executed"
            ));
        }
        Ok(end.saturating_sub(lines))
    }

    /// Executes one command that changes nothing.
    #[inline]
    fn read_one(
        &self,
        now: u64,
        clock: u64,
        seed: u64,
        command: RequestCommand,
        args: Args<'_>,
        (out, ordered): (&mut Vec<u8>, bool),
    ) {
        let RequestCommand { spec, mode } = command;
        let passing = match ordered {
            true => Passing::Noted(&self.passed),
            false => Passing::Counted(&self.meter, spec),
        };
        let mut context = ReadContext {
            keyspace: &self.keyspace,
            options: &self.options,
            database: mode.database,
            now,
            clock,
            reply: Reply::new(out, mode.resp3, self.options.max_reply_bytes),
            random: Random::new(seed),
            passing,
            past: None,
        };
        let result = check_database(mode.database, &self.options).and_then(|()| {
            if may_be_long(spec.op, args) {
                let count = || self.keyspace.database(mode.database).len(now);
                let steps = steps_of(spec, args, &self.options, count, |key| context.value(key));
                self.meter.take(spec, steps)?;
            }
            commands::read(spec, &mut context, args)
        });
        finish(&mut context.reply, result);
    }

    /// Executes a transaction, or answers null if a watched key has changed.
    fn apply_transaction(
        &mut self,
        at: &At,
        salt: &mut u64,
        mode: Mode,
        args: Args<'_>,
        (out, end): (&mut Vec<u8>, usize),
    ) {
        let queued = Commands::queued(args[1]);
        let length = out.len();
        let fresh = watched_are_fresh(args[0], |database, key| {
            let keyspace = self.keyspace.databases.get(usize::from(database))?;
            Some(
                keyspace
                    .get(key, at.time.milliseconds())
                    .map_or(0, |entry| entry.version),
            )
        });
        let mut reply = Reply::unbounded(out, mode.resp3);
        match (fresh, queued.count()) {
            (Err(error), _) | (_, Err(error)) => reply.fail(&error.to_string()),
            (Ok(false), _) => reply.null_array(),
            (Ok(true), Ok(count)) => {
                let steps = steps_of_queued(args[1]);
                if let Err(error) = self.meter.take(Op::Exec.spec(), steps) {
                    return reply.error(&error.to_string());
                }
                let end = match self.transaction_end(count, length, end) {
                    Ok(end) => end,
                    Err(text) => return reply.error(&text),
                };
                reply.array(count);
                let mut queued = queued;
                let mut args = ArgsBuffer::new();
                while let Ok(Some(command)) = queued.next(&mut args) {
                    *salt += 1;
                    if command.spec.op == Op::Exec {
                        Reply::unbounded(out, mode.resp3).error("ERR EXEC inside a transaction");
                    } else {
                        self.apply_one(at, *salt, command, &args, (&mut *out, end));
                    }
                }
            }
        }
    }

    fn query_transaction(
        &self,
        clock: u64,
        seed: u64,
        mode: Mode,
        args: Args<'_>,
        (out, end): (&mut Vec<u8>, usize),
    ) {
        let mut queued = Commands::queued(args[1]);
        let length = out.len();
        let fresh = watched_are_fresh(args[0], |database, key| {
            let keyspace = self.keyspace.databases.get(usize::from(database))?;
            Some(
                keyspace
                    .get(key, self.now())
                    .map_or(0, |entry| entry.version),
            )
        });
        let mut reply = Reply::unbounded(out, mode.resp3);
        match (fresh, queued.count()) {
            (Err(error), _) | (_, Err(error)) => reply.fail(&error.to_string()),
            (Ok(false), _) => reply.null_array(),
            (Ok(true), Ok(count)) => {
                let steps = steps_of_queued(args[1]);
                if let Err(error) = self.meter.take(Op::Exec.spec(), steps) {
                    return reply.error(&error.to_string());
                }
                let end = match self.transaction_end(count, length, end) {
                    Ok(end) => end,
                    Err(text) => return reply.error(&text),
                };
                reply.array(count);
                let mut args = ArgsBuffer::new();
                let mut salt = 0;
                while let Ok(Some(command)) = queued.next(&mut args) {
                    salt += 1;
                    self.query_one(clock, seed ^ salt, command, &args, (&mut *out, end));
                }
            }
        }
    }

    /// Answers a read of the past, given the newest time that is closed.
    fn read_past(
        &self,
        closed: u64,
        command: RequestCommand,
        args: Args<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), NoAnswer> {
        let RequestCommand { spec, mode } = command;
        check_database(mode.database, &self.options)?;
        let then = match spec.op {
            Op::QuintetAt => Some(past::at(
                &self.keyspace,
                mode.database,
                closed,
                args,
                &self.meter,
            )?),
            _ => None,
        };
        let clock = then.as_ref().map_or(closed, |then| then.time);
        let mut context = ReadContext {
            keyspace: &self.keyspace,
            options: &self.options,
            database: mode.database,
            now: CommandTime(clock).milliseconds(),
            clock,
            reply: Reply::new(out, mode.resp3, self.options.max_reply_bytes),
            // Permanently equal, chance included.
            random: Random::new(clock),
            passing: Passing::Counted(&self.meter, spec),
            past: then.as_ref().map(|then| &then.view),
        };
        let Some(AsOf { spec, args, .. }) = &then else {
            past::read((spec, &self.meter), &mut context, closed, args)?;
            context.reply.finish();
            return Ok(());
        };
        if may_be_long(spec.op, args) {
            let steps = steps_of(spec, args, &self.options, || 0, |key| context.value(key));
            self.meter.take(spec, steps)?;
        }
        commands::read(spec, &mut context, args)?;
        context.reply.finish();
        Ok(())
    }

    fn query_one(
        &self,
        clock: u64,
        seed: u64,
        command: RequestCommand,
        args: Args<'_>,
        (out, end): (&mut Vec<u8>, usize),
    ) {
        if out.len() >= end && !answers_with_a_line(command.spec.op, args) {
            self.refuse_reply(command.mode, out);
        } else if command.spec.is_write() || command.spec.op == Op::Exec {
            Reply::unbounded(out, command.mode.resp3)
                .error("ERR a command that changes data must be ordered");
        } else {
            self.read_one(self.now(), clock, seed, command, args, (out, false));
        }
    }
}

/// Whether a command answers with [`LINE_BYTES_MAX`] bytes at most, whatever it finds.
fn answers_with_a_line(op: Op, args: Args<'_>) -> bool {
    match op {
        // A reply that the server has made already, and it is short.
        Op::Literal | Op::Select => true,
        Op::Ping => args.is_empty(),
        Op::Set => !args[2..].iter().any(|arg| arg.eq_ignore_ascii_case(b"get")),
        Op::Copy
        | Op::Del
        | Op::Expire
        | Op::Expireat
        | Op::Move
        | Op::Persist
        | Op::Pexpire
        | Op::Pexpireat
        | Op::Rename
        | Op::Renamenx
        | Op::Restore
        | Op::Unlink
        | Op::Append
        | Op::Decr
        | Op::Decrby
        | Op::Incr
        | Op::Incrby
        | Op::Mset
        | Op::Msetnx
        | Op::Psetex
        | Op::Setex
        | Op::Setnx
        | Op::Setrange
        | Op::Bitop
        | Op::Setbit
        | Op::Geoadd
        | Op::Geosearchstore
        | Op::Pfadd
        | Op::Pfmerge
        | Op::Hdel
        | Op::Hincrby
        | Op::Hmset
        | Op::Hset
        | Op::Hsetnx
        | Op::Linsert
        | Op::Lpush
        | Op::Lpushx
        | Op::Lrem
        | Op::Lset
        | Op::Ltrim
        | Op::Rpush
        | Op::Rpushx
        | Op::Sadd
        | Op::Sdiffstore
        | Op::Sinterstore
        | Op::Smove
        | Op::Srem
        | Op::Sunionstore
        | Op::Zadd
        | Op::Zdiffstore
        | Op::Zincrby
        | Op::Zinterstore
        | Op::Zrangestore
        | Op::Zrem
        | Op::Zremrangebylex
        | Op::Zremrangebyrank
        | Op::Zremrangebyscore
        | Op::Zunionstore
        | Op::Flushall
        | Op::Flushdb
        | Op::Swapdb
        | Op::MemoryLimit => true,
        _ => false,
    }
}

fn finish(reply: &mut Reply<'_>, result: CommandResult) {
    match result {
        Ok(()) => reply.finish(),
        Err(CommandError::Text(text)) => reply.fail(text),
        Err(error) => reply.fail(&error.to_string()),
    }
}

#[inline]
fn check_database(database: u8, options: &StoreOptions) -> CommandResult {
    if database >= options.databases {
        return Err(CommandError::Text("ERR DB index is out of range"));
    }
    Ok(())
}

#[inline]
fn check_limits(spec: &CommandSpec, args: Args<'_>, options: &StoreOptions) -> CommandResult {
    let limit = options.max_key_bytes.min(options.max_value_bytes);
    // The places of the keys are looked at only when there is something to complain about.
    if args.iter().all(|arg| arg.len() <= limit) {
        return Ok(());
    }
    let mut result = Ok(());
    let mut keys = vec![false; args.len()];
    spec.keys(args, |index| keys[index] = true);
    for (arg, is_key) in args.iter().zip(keys) {
        let check = if is_key {
            options.check_key_len(arg.len())
        } else {
            options.check_value_len(arg.len())
        };
        result = result.and(check);
    }
    result
}

fn watched_are_fresh(
    mut watched: &[u8],
    version: impl Fn(u8, &[u8]) -> Option<u64>,
) -> Result<bool, crate::request::MalformedRequest> {
    let mut fresh = true;
    while let Some(watched) = next_watched(&mut watched)? {
        fresh &= version(watched.database, watched.key) == Some(watched.version);
    }
    Ok(fresh)
}

fn footprint_of(
    seed: u64,
    spec: &CommandSpec,
    mode: Mode,
    args: Args<'_>,
    visit: &mut dyn FootprintVisitor,
) {
    let access = if spec.is_write() {
        Access::Write
    } else {
        Access::Read
    };
    let elsewhere = spec.op == Op::Copy && args.len() > 2;
    if spec.footprint == Footprint::Everything || elsewhere {
        visit.everything(access);
        return;
    }
    spec.keys(args, |index| {
        visit.key(key_hash(seed, mode.database, args[index]), access)
    });
}

impl StateMachine for Store {
    fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        self.time = self.time.max(at.time.0);
        self.meter.begin_request();
        let mut salt = 0;
        let end = reply
            .len()
            .saturating_add(self.options.max_request_reply_bytes);
        let mut args = ArgsBuffer::new();
        let result = Commands::new(command).and_then(|mut commands| {
            while let Some(command) = commands.next(&mut args)? {
                self.keyspace.begin_command(self.time);
                if command.spec.op == Op::Exec {
                    let out = (&mut *reply, end);
                    self.apply_transaction(at, &mut salt, command.mode, &args, out);
                } else {
                    self.apply_one(at, salt, command, &args, (&mut *reply, end));
                }
                salt += 1;
            }
            Ok(())
        });
        if let Err(error) = result {
            Reply::unbounded(reply, false).error(&error.to_string());
        }
    }

    fn query(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        let clock = self.time.max(at.time.0);
        self.meter.begin_request();
        let mut seed = Random::new(at.time.0).bits();
        let end = reply
            .len()
            .saturating_add(self.options.max_request_reply_bytes);
        let mut args = ArgsBuffer::new();
        let result = Commands::new(command).and_then(|mut commands| {
            while let Some(command) = commands.next(&mut args)? {
                if command.spec.op == Op::Exec {
                    let out = (&mut *reply, end);
                    self.query_transaction(clock, seed, command.mode, &args, out);
                } else {
                    self.query_one(clock, seed, command, &args, (&mut *reply, end));
                }
                seed = seed.wrapping_add(0x1_0000_0001);
            }
            Ok(())
        });
        if let Err(error) = result {
            Reply::unbounded(reply, false).error(&error.to_string());
        }
    }

    fn query_at(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) -> PastAnswer {
        self.meter.begin_request();
        let mut args = ArgsBuffer::new();
        let begun = reply.len();
        let command = Commands::new(command).and_then(|mut commands| commands.next(&mut args));
        let (mode, error) = match command {
            Ok(Some(command)) if command.spec.kind == Kind::Past => {
                match self.read_past(at.time.0, command, &args, reply) {
                    Ok(()) => return PastAnswer::Done,
                    Err(NoAnswer::NotYet) => {
                        reply.truncate(begun);
                        return PastAnswer::NotYet;
                    }
                    Err(NoAnswer::Error(error)) => (command.mode, error.to_string()),
                }
            }
            Ok(_) => (Mode::default(), "ERR not a read of the past".to_owned()),
            Err(error) => (Mode::default(), error.to_string()),
        };
        reply.truncate(begun);
        Reply::unbounded(reply, mode.resp3).error(&error);
        PastAnswer::Done
    }

    fn warm(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        let mut keys = SmallVec::<[&[u8]; WARM_KEYS]>::new();
        let mut database = 0;
        for request in commands {
            let Ok(mut commands) = Commands::new(request) else {
                continue;
            };
            while let Some((other, key)) = commands.next_first() {
                if keys.len() == WARM_KEYS || other != database {
                    self.warm_keys(database, &mut keys);
                    database = other;
                }
                keys.push(key);
            }
        }
        self.warm_keys(database, &mut keys);
    }

    fn semantics(&self) -> u32 {
        SEMANTICS
    }

    fn terms(&self) -> Terms {
        self.options.terms()
    }

    fn set_hash_seed(&mut self, seed: u64) {
        *self = Self::new(StoreOptions {
            hash_seed: seed,
            ..self.options.clone()
        });
    }

    fn begin_snapshot(&mut self) {
        let globals = self.globals();
        self.keyspace.begin_snapshot(globals);
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> SnapshotProgress {
        if self.keyspace.snapshot_chunk(out, budget) {
            SnapshotProgress::Done
        } else {
            SnapshotProgress::More
        }
    }

    fn abandon_snapshot(&mut self) {
        self.keyspace.abandon_snapshot();
    }

    fn begin_restore(&mut self) {
        *self = Self::new(self.options.clone());
        self.restore = Some(Restore::default());
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        let Self {
            keyspace,
            restore,
            restored_past,
            options,
            ..
        } = self;
        let restore = restore
            .as_mut()
            .ok_or_else(|| RestoreError("no restore was begun".to_owned()))?;
        restore.chunk(chunk, |read| {
            let restored = match read {
                Read::Entry(restored) => restored,
                Read::Past(globals, payload) => {
                    let past = restored_past.get_or_insert_with(|| {
                        let Globals { past, time, .. } = *globals;
                        Box::new(Undo::new(options.hash_seed, past, time))
                    });
                    return past
                        .restore(payload, keyspace.databases.len())
                        .map_err(malformed);
                }
            };
            restored.check(keyspace.databases.len())?;
            let database = restored.database;
            if keyspace.holds(database, &restored.key) {
                return Err(RestoreError("it holds a key twice".to_owned()));
            }
            keyspace.insert(
                database,
                &restored.key,
                restored.value,
                restored.expire_at,
                restored.version,
            );
            Ok(())
        })
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        let restore = self
            .restore
            .take()
            .ok_or_else(|| RestoreError("no restore was begun".to_owned()))?;
        let globals = restore.finish()?;
        globals.check(self.options.databases)?;
        self.refuse_writes = globals.refuse_writes;
        self.time = globals.time;
        let (seed, past) = (self.options.hash_seed, globals.past);
        let undo = match self.restored_past.take() {
            // It may be empty.
            None if past.retain.bytes > 0 => Some(Box::new(Undo::new(seed, past, globals.time))),
            restored => restored,
        };
        self.keyspace.restore_past(undo, past);
        Ok(())
    }

    fn state_check(&self) -> Option<Box<dyn StateCheck>> {
        Some(Box::new(ReadBack::new(self.options.databases)))
    }

    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        let mut args = ArgsBuffer::new();
        let mut queued_args = ArgsBuffer::new();
        let seed = self.options.hash_seed;
        let result = Commands::new(command).and_then(|mut commands| {
            while let Some(RequestCommand { spec, mode }) = commands.next(&mut args)? {
                if spec.op != Op::Exec {
                    footprint_of(seed, spec, mode, &args, visit);
                    continue;
                }
                let mut watched = args[0];
                while let Some(watched) = next_watched(&mut watched)? {
                    let hash = key_hash(seed, watched.database, watched.key);
                    visit.key(hash, Access::Read);
                }
                let mut queued = Commands::queued(args[1]);
                while let Some(RequestCommand { spec, mode }) = queued.next(&mut queued_args)? {
                    footprint_of(seed, spec, mode, &queued_args, visit);
                }
            }
            Ok(())
        });
        // An unreadable request changes nothing, but callers should not rely on that.
        if result.is_err() {
            visit.everything(Access::Write);
        }
    }

    fn next_deadline(&self) -> Option<CommandTime> {
        let expire_at = self.keyspace.next_expiry()?;
        Some(CommandTime(expire_at.saturating_mul(1_000_000)))
    }

    fn tick(&mut self, at: &At) {
        self.time = self.time.max(at.time.0);
        self.meter.begin_batch();
        self.keyspace.begin_batch();
        self.keyspace.begin_command(self.time);
        self.keyspace
            .expire(at.time.milliseconds(), EXPIRE_PER_TICK_MAX);
        self.keyspace.drop_old(self.time);
        self.keyspace.free_some();
    }

    fn begin_reads(&self) {
        self.meter.begin_batch();
    }

    fn steps(&self) -> u64 {
        self.meter.total()
    }

    fn take_longest(&self) -> Option<(&'static str, u64)> {
        self.meter.take_longest()
    }

    fn digest(&self) -> u128 {
        self.keyspace.digest(self.now(), &self.digest_globals())
    }

    fn begin_digest(&mut self) -> DigestBegun {
        let globals = self.digest_globals();
        self.keyspace.begin_digest(self.now(), &globals);
        DigestBegun::Steps
    }

    fn digest_step(&mut self, budget: usize) -> Option<u128> {
        self.keyspace.digest_step(budget)
    }

    fn abandon_digest(&mut self) {
        self.keyspace.abandon_digest();
    }

    fn memory(&self) -> u64 {
        self.keyspace.memory() as u64
    }

    fn entries(&self) -> u64 {
        self.keys_per_database().sum::<usize>() as u64
    }

    fn refuses_writes(&self) -> bool {
        self.refuse_writes
    }
}

// A key that never expires is no deadline, and a time that high is out of any command's reach.
const _: () = assert!(NEVER == u64::MAX);

// Kinds are told apart by the flags alone while executing; the table must not contradict.
const _: () = {
    let mut index = 0;
    let commands = &crate::command::COMMANDS;
    while index < commands.len() {
        let spec = &commands[index];
        let write = matches!(spec.kind, Kind::Write);
        let read = matches!(spec.kind, Kind::Read);
        assert!(!write || spec.flags.has(Flags::WRITE), "a write says so");
        assert!(!read || !spec.flags.has(Flags::WRITE), "a read is none");
        index += 1;
    }
};
