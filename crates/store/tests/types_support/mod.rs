//! Shared by the tests of the collections: a store as a client sees it, and replies as values.

#[allow(dead_code, reason = "not every test file uses everything here")]
pub mod words;

use quintet_replica::{At, CommandId, CommandTime, Position, SnapshotProgress, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, lookup};

/// A store together with what a connection would keep: the protocol version.
pub struct Session {
    /// The store.
    pub store: Store,
    /// Whether replies are to be in RESP3.
    pub resp3: bool,
    sequence: u64,
}

impl Session {
    /// A connection to an empty store.
    pub fn new() -> Self {
        Self {
            store: Store::default(),
            resp3: false,
            sequence: 0,
        }
    }

    /// Runs a command given with its name, and returns the raw reply.
    pub fn run(&mut self, command: &[&[u8]]) -> Vec<u8> {
        let (name, args) = command.split_first().expect("a command has a name");
        let spec = lookup(name).expect("the command exists");
        if !spec.arity_fits(args.len()) {
            return format!("-{}\r\n", spec.arity_error()).into_bytes();
        }
        let mut request = RequestBuilder::new();
        let mode = Mode {
            resp3: self.resp3,
            database: 0,
        };
        request.command(spec, mode, args);
        self.apply(&request)
    }

    fn apply(&mut self, request: &RequestBuilder) -> Vec<u8> {
        self.sequence += 1;
        let at = At {
            position: Position::default(),
            time: CommandTime(1_700_000_000_000_000_000 + self.sequence),
            id: CommandId {
                sequence: self.sequence,
                ..CommandId::default()
            },
        };
        let mut reply = Vec::new();
        self.store.apply(&at, request.as_bytes(), &mut reply);
        reply
    }

    /// The version that WATCH would keep of a key.
    #[allow(dead_code, reason = "not every test file uses everything here")]
    pub fn version(&mut self, key: &[u8]) -> Vec<u8> {
        let mut request = RequestBuilder::new();
        request.watch_versions(Mode::default(), &[key]);
        self.apply(&request)
    }

    /// A session like this one on a store that was restored from a snapshot of this one's, taken
    /// while `meanwhile` keeps changing it.
    #[allow(dead_code, reason = "not every test file uses everything here")]
    pub fn restored(&mut self, mut meanwhile: impl FnMut(&mut Self)) -> Self {
        let mut copy = Self {
            store: Store::default(),
            ..*self
        };
        self.store.begin_snapshot();
        copy.store.begin_restore();
        loop {
            let mut chunk = Vec::new();
            let progress = self.store.snapshot_chunk(&mut chunk, 200);
            copy.store.restore_chunk(&chunk).unwrap();
            if progress == SnapshotProgress::Done {
                break;
            }
            meanwhile(self);
        }
        copy.store.finish_restore().unwrap();
        copy
    }

    /// Runs a command written in one line, words separated by blanks.
    #[allow(dead_code, reason = "not every test file uses everything here")]
    pub fn line(&mut self, line: &str) -> Reply {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        Reply::parse(&self.run(&words))
    }
}

/// A reply as a value. The order of the variants is that in which unordered replies are sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// A single line, its type first: status, error, number, double, boolean, null.
    Line(String),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// An array, map or set, by its type.
    Many(u8, Vec<Reply>),
}

impl Reply {
    /// Reads a reply that takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let reply = Self::parse_one(&mut rest).expect("the reply is whole");
        assert!(
            rest.is_empty(),
            "bytes behind the reply: {}",
            bytes.escape_ascii()
        );
        reply
    }

    /// Reads the reply at the front of `rest` and moves behind it; `None` if it is cut short.
    pub fn parse_one(rest: &mut &[u8]) -> Option<Self> {
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        *rest = &rest[end + 2..];
        let kind = line.as_bytes()[0];
        let count = line[1..].parse::<i64>().unwrap_or(-1);
        Some(match kind {
            b'$' if count >= 0 => {
                let bytes = rest.get(..count as usize)?.to_vec();
                *rest = rest.get(count as usize + 2..)?;
                Self::Bulk(bytes)
            }
            b'*' | b'~' | b'%' if count >= 0 => {
                let count = if kind == b'%' { 2 * count } else { count };
                let items: Option<Vec<_>> = (0..count).map(|_| Self::parse_one(rest)).collect();
                Self::Many(kind, items?)
            }
            _ => Self::Line(line),
        })
    }

    #[allow(dead_code, reason = "not every test file uses everything here")]
    /// The same with the elements of all arrays, maps and sets in an order of their own, for
    /// replies whose order means nothing.
    pub fn sorted(self) -> Self {
        match self {
            Self::Many(kind, items) => {
                let mut items: Vec<_> = items.into_iter().map(Self::sorted).collect();
                items.sort();
                Self::Many(kind, items)
            }
            single => single,
        }
    }

    /// The elements of an array, map or set.
    #[allow(dead_code, reason = "not every test file uses everything here")]
    pub fn items(self) -> Vec<Self> {
        match self {
            Self::Many(_, items) => items,
            single => panic!("no array: {single:?}"),
        }
    }

    /// The text of a line or string.
    #[allow(dead_code, reason = "not every test file uses everything here")]
    pub fn text(&self) -> String {
        match self {
            Self::Line(line) => line.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Many(..) => panic!("no single value: {self:?}"),
        }
    }
}

/// Whether the order within a command's reply means nothing.
#[allow(dead_code, reason = "not every test file uses everything here")]
pub fn is_unordered(name: &str) -> bool {
    matches!(
        name.to_ascii_lowercase().as_str(),
        "hgetall"
            | "hkeys"
            | "hvals"
            | "hscan"
            | "smembers"
            | "sinter"
            | "sunion"
            | "sdiff"
            | "sscan"
    )
}
