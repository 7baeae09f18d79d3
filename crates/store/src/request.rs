//! One client request: what a connection had sent when it was read, in one binary payload.
//!
//! ```text
//!   request      version │ command │ command │ …
//!   command      op u16 │ flags u8 │ database u8 │ arguments u32 │ (length u32, bytes) …
//!   transaction  a command EXEC with two arguments:
//!                  watched keys:  (database u8, version u64, length u32, bytes) …
//!                  queued:        command │ command │ …
//!   literal      a command with one argument: the finished reply that belongs in its place
//! ```
//!
//! All numbers are little endian. The name of a command is not among its arguments. The reply to a
//! request is the final RESP bytes of its commands' replies, one after the other.

use crate::command::{CommandSpec, Kind, Op};
use smallvec::SmallVec;

/// The version of this format, its first byte.
pub const REQUEST_VERSION: u8 = 1;

const FLAG_RESP3: u8 = 1;
const FLAGS_KNOWN: u8 = FLAG_RESP3;

/// The arguments of a command; the name is not among them.
pub type Args<'a> = &'a [&'a [u8]];

/// Room for the arguments of a command.
pub type ArgsBuffer<'a> = SmallVec<[&'a [u8]; 16]>;

/// A payload that no [`RequestBuilder`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ERR malformed request: {0}")]
pub struct MalformedRequest(pub &'static str);

/// Writes the payload of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestBuilder {
    bytes: Vec<u8>,
    commands: usize,
    writes: usize,
}

/// A key that a transaction depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched<'a> {
    /// The database that was selected when the key was watched.
    pub database: u8,
    /// The key's version then, 0 if it did not exist; see [`RequestBuilder::watch_versions`].
    pub version: u64,
    /// The key.
    pub key: &'a [u8],
}

/// The header of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mode {
    /// Whether the connection speaks RESP3.
    pub resp3: bool,
    /// The selected database.
    pub database: u8,
}

impl RequestBuilder {
    /// A request without commands.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            commands: 0,
            writes: 0,
        }
    }

    /// A request without commands that is written into `buffer`, which is emptied.
    #[must_use]
    pub fn with_buffer(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self {
            bytes: buffer,
            commands: 0,
            writes: 0,
        }
    }

    /// How many commands there are; a transaction counts as one.
    #[must_use]
    pub const fn commands(&self) -> usize {
        self.commands
    }

    /// Whether there is no command.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Whether no command could change anything, so that the request may be a query.
    #[must_use]
    pub const fn is_query(&self) -> bool {
        self.writes == 0
    }

    /// The payload so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The payload.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets all commands and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.commands = 0;
        self.writes = 0;
    }

    fn head(&mut self, op: Op, mode: Mode, arguments: usize) {
        if self.bytes.is_empty() {
            self.bytes.push(REQUEST_VERSION);
        }
        self.commands += 1;
        self.bytes.extend_from_slice(&(op as u16).to_le_bytes());
        self.bytes.push(if mode.resp3 { FLAG_RESP3 } else { 0 });
        self.bytes.push(mode.database);
        self.bytes
            .extend_from_slice(&(arguments as u32).to_le_bytes());
    }

    #[inline]
    fn argument(&mut self, bytes: &[u8]) {
        self.bytes
            .extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds a command; `args` without its name. The server has checked the arity, and that no
    /// argument takes 4 GiB.
    pub fn command(&mut self, spec: &CommandSpec, mode: Mode, args: &[&[u8]]) {
        self.command_from(spec, mode, args.len(), args.iter().copied());
    }

    /// Like [`Self::command`] with `count` arguments from an iterator.
    ///
    /// # Panics
    /// When the iterator does not give `count` arguments.
    pub fn command_from<'a>(
        &mut self,
        spec: &CommandSpec,
        mode: Mode,
        count: usize,
        args: impl Iterator<Item = &'a [u8]>,
    ) {
        self.head(spec.op, mode, count);
        self.writes += usize::from(spec.is_write());
        let mut given = 0;
        for arg in args {
            self.argument(arg);
            given += 1;
        }
        assert!(given == count, "as many arguments as announced");
    }

    /// Adds a finished reply in the place of a command that the server has answered itself.
    pub fn literal(&mut self, reply: &[u8]) {
        self.head(Op::Literal, Mode::default(), 1);
        self.argument(reply);
    }

    /// Adds a transaction: the commands of `queued`, executed together unless a watched key has
    /// changed.
    pub fn transaction(&mut self, mode: Mode, watched: &[Watched<'_>], queued: &Self) {
        self.head(Op::Exec, mode, 2);
        self.writes += queued.writes;
        let length: usize = watched.iter().map(|watched| 13 + watched.key.len()).sum();
        self.bytes.extend_from_slice(&(length as u32).to_le_bytes());
        for watched in watched {
            self.bytes.push(watched.database);
            self.bytes.extend_from_slice(&watched.version.to_le_bytes());
            self.argument(watched.key);
        }
        // Without the version byte, which an empty builder does not have.
        self.argument(queued.bytes.get(1..).unwrap_or(&[]));
    }

    /// Adds the server's question for the versions of keys it is to watch. The reply is an array
    /// with 16 hexadecimal digits for each key.
    pub fn watch_versions(&mut self, mode: Mode, keys: &[&[u8]]) {
        self.command(Op::WatchVersions.spec(), mode, keys);
    }

    /// Adds the order to refuse, or to take again, commands that need memory.
    pub fn memory_limit(&mut self, refuse: bool) {
        self.command(
            Op::MemoryLimit.spec(),
            Mode::default(),
            &[if refuse { b"1" } else { b"0" }],
        );
    }
}

/// One command of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestCommand {
    /// Which one.
    pub spec: &'static CommandSpec,
    /// How it is to be answered, and in which database.
    pub mode: Mode,
}

/// Reads the commands of a request, trusting nothing.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    rest: &'a [u8],
}

fn split<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], MalformedRequest> {
    let (head, tail) = rest
        .split_at_checked(length)
        .ok_or(MalformedRequest("cut short"))?;
    *rest = tail;
    Ok(head)
}

fn split_u32(rest: &mut &[u8]) -> Result<usize, MalformedRequest> {
    let bytes = split(rest, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize)
}

impl<'a> Commands<'a> {
    /// The commands of a whole request.
    ///
    /// # Errors
    /// When it is of another version.
    pub fn new(request: &'a [u8]) -> Result<Self, MalformedRequest> {
        match request {
            [] => Ok(Self { rest: &[] }),
            [REQUEST_VERSION, rest @ ..] => Ok(Self { rest }),
            _ => Err(MalformedRequest("unknown version")),
        }
    }

    /// The queued commands of a transaction.
    #[must_use]
    pub const fn queued(argument: &'a [u8]) -> Self {
        Self { rest: argument }
    }

    /// How many commands are left, if all of them are well-formed.
    pub(crate) fn count(&self) -> Result<usize, MalformedRequest> {
        let mut all = self.clone();
        let mut args = ArgsBuffer::new();
        let mut count = 0;
        while all.next(&mut args)?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// The next command; its arguments replace what is in `args`.
    ///
    /// # Errors
    /// When what is left is malformed; there is no sense in going on then.
    #[inline]
    pub fn next(
        &mut self,
        args: &mut ArgsBuffer<'a>,
    ) -> Result<Option<RequestCommand>, MalformedRequest> {
        args.clear();
        if self.rest.is_empty() {
            return Ok(None);
        }
        let head = split(&mut self.rest, 4)?;
        let spec = CommandSpec::by_id(u16::from_le_bytes([head[0], head[1]]))
            .ok_or(MalformedRequest("unknown command"))?;
        if head[2] & !FLAGS_KNOWN != 0 {
            return Err(MalformedRequest("unknown flag"));
        }
        let mode = Mode {
            resp3: head[2] & FLAG_RESP3 != 0,
            database: head[3],
        };
        let count = split_u32(&mut self.rest)?;
        if count > self.rest.len() / 4 {
            return Err(MalformedRequest("cut short"));
        }
        args.reserve(count);
        for _ in 0..count {
            let length = split_u32(&mut self.rest)?;
            args.push(split(&mut self.rest, length)?);
        }
        let arity_fits = if spec.op == Op::Exec {
            count == 2
        } else {
            spec.arity_fits(count)
        };
        if !arity_fits {
            return Err(MalformedRequest("wrong number of arguments"));
        }
        if matches!(spec.kind, Kind::Unreplicated | Kind::Later) {
            return Err(MalformedRequest("command that the store does not execute"));
        }
        Ok(Some(RequestCommand { spec, mode }))
    }
}

impl<'a> Commands<'a> {
    /// The database and first argument of the next command, usually its key, without looking at
    /// anything else. `None` at the end and at whatever is malformed.
    #[inline]
    pub(crate) fn next_first(&mut self) -> Option<(u8, &'a [u8])> {
        let head = split(&mut self.rest, 4).ok()?;
        let count = split_u32(&mut self.rest).ok()?;
        let mut first: &[u8] = &[];
        for number in 0..count {
            let length = split_u32(&mut self.rest).ok()?;
            let argument = split(&mut self.rest, length).ok()?;
            if number == 0 {
                first = argument;
            }
        }
        Some((head[3], first))
    }
}

/// The next of a transaction's watched keys, from the front of what is left of them.
pub(crate) fn next_watched<'a>(
    rest: &mut &'a [u8],
) -> Result<Option<Watched<'a>>, MalformedRequest> {
    if rest.is_empty() {
        return Ok(None);
    }
    let head = split(rest, 9)?;
    let mut version = [0; 8];
    version.copy_from_slice(&head[1..]);
    let length = split_u32(rest)?;
    let key = split(rest, length)?;
    Ok(Some(Watched {
        database: head[0],
        version: u64::from_le_bytes(version),
        key,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::lookup;

    #[test]
    fn commands_come_back() {
        let mut builder = RequestBuilder::new();
        let set = lookup(b"set").unwrap();
        builder.command(
            lookup(b"get").unwrap(),
            Mode {
                resp3: true,
                database: 3,
            },
            &[b"k"],
        );
        assert!(builder.is_query());
        builder.command(set, Mode::default(), &[b"k", b"", b"EX", b"10"]);
        assert!(!builder.is_query());
        assert_eq!(builder.commands(), 2);
        let mut commands = Commands::new(builder.as_bytes()).unwrap();
        let mut args = ArgsBuffer::new();
        let first = commands.next(&mut args).unwrap().unwrap();
        assert_eq!(
            (first.spec.op, first.mode.resp3, first.mode.database),
            (Op::Get, true, 3)
        );
        assert_eq!(args.as_slice(), [b"k"]);
        let second = commands.next(&mut args).unwrap().unwrap();
        assert_eq!(second.spec.op, Op::Set);
        assert_eq!(args.as_slice(), [&b"k"[..], b"", b"EX", b"10"]);
        assert!(commands.next(&mut args).unwrap().is_none());
    }

    #[test]
    fn request_cut_anywhere_is_an_error_or_shorter() {
        let mut queued = RequestBuilder::new();
        queued.command(
            lookup(b"set").unwrap(),
            Mode::default(),
            &[b"key", b"value"],
        );
        let mut builder = RequestBuilder::new();
        builder.command(lookup(b"get").unwrap(), Mode::default(), &[b"key"]);
        let watched = Watched {
            database: 0,
            version: 7,
            key: b"key",
        };
        builder.transaction(Mode::default(), &[watched], &queued);
        for length in 0..builder.len() {
            let commands = Commands::new(&builder.as_bytes()[..length]);
            if let Ok(count) = commands.and_then(|commands| commands.count()) {
                assert!(count < 2, "{length}");
            }
        }
        assert_eq!(Commands::new(builder.as_bytes()).unwrap().count(), Ok(2));
    }
}
