//! The commands: names, arities, the keys they touch, and the part that answers them.
//!
//! ```text
//!   "SeT" ──lookup──► CommandSpec { op: Set, arity: -3, kind: Write, keys: 1..1 step 1, … }
//!                        │ kind
//!      ┌─────────────────┼───────────────────────────┬──────────────────────────┐
//!   Read, Write       Connection, Transaction     Unreplicated, Later        Internal
//!   the store         the server                  no part: `refusal()`        server ► store
//! ```

pub use crate::command_table::{COMMANDS, Op};
use crate::key_hash::hash_bytes;

/// The part that answers a command, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The store, without changing anything: fit for [`quintet_replica::StateMachine::query`].
    Read,
    /// The store, possibly changing something: must be ordered.
    Write,
    /// The server. `PING`, `ECHO` and `SELECT` the store answers as well, for pipelines and
    /// transactions that hold them.
    Connection,
    /// The server: MULTI, EXEC, DISCARD, WATCH, UNWATCH. EXEC reaches the store as the one
    /// command that holds the whole transaction, see [`crate::RequestBuilder::transaction`].
    Transaction,
    /// No part: the command has no meaning in a replicated store.
    Unreplicated,
    /// No part yet.
    Later,
    /// The store, from what it keeps of earlier times: see [`quintet_replica::past`].
    Past,
    /// The store, when the server asks; never a client, so [`lookup`] does not find it.
    Internal,
}

/// The family a command belongs to, as Redis documents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Group {
    Generic,
    String,
    Bitmap,
    Hash,
    List,
    Set,
    SortedSet,
    Connection,
    Transactions,
    Server,
    Stream,
    PubSub,
    Scripting,
    Geo,
    HyperLogLog,
    Cluster,
}

impl Group {
    /// The access category of Redis's ACLs that the whole group stands for, if there is one.
    #[must_use]
    pub const fn category(self) -> Option<&'static str> {
        match self {
            Self::Generic => Some("@keyspace"),
            Self::String => Some("@string"),
            Self::Bitmap => Some("@bitmap"),
            Self::Hash => Some("@hash"),
            Self::List => Some("@list"),
            Self::Set => Some("@set"),
            Self::SortedSet => Some("@sortedset"),
            Self::Connection => Some("@connection"),
            Self::Transactions => Some("@transaction"),
            Self::Stream => Some("@stream"),
            Self::PubSub => Some("@pubsub"),
            Self::Scripting => Some("@scripting"),
            Self::Geo => Some("@geo"),
            Self::HyperLogLog => Some("@hyperloglog"),
            Self::Server | Self::Cluster => None,
        }
    }

    /// The name as it stands in `COMMAND DOCS`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::String => "string",
            Self::Bitmap => "bitmap",
            Self::Hash => "hash",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "sorted-set",
            Self::Connection => "connection",
            Self::Transactions => "transactions",
            Self::Server => "server",
            Self::Stream => "stream",
            Self::PubSub => "pubsub",
            Self::Scripting => "scripting",
            Self::Geo => "geo",
            Self::HyperLogLog => "hyperloglog",
            Self::Cluster => "cluster",
        }
    }
}

/// Properties of a command, as the `COMMAND` reply names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u32);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Flags {
            /// No property.
            pub const NONE: Self = Self(0);
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
            const NAMES: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

flags! {
    /// It may change data.
    WRITE = 0, "write";
    /// It changes nothing.
    READONLY = 1, "readonly";
    /// It may need more memory: refused while the limit is exceeded.
    DENYOOM = 2, "denyoom";
    /// It is for administrators.
    ADMIN = 3, "admin";
    /// It belongs to publish and subscribe.
    PUBSUB = 4, "pubsub";
    /// Not for scripts.
    NOSCRIPT = 5, "noscript";
    /// It may wait.
    BLOCKING = 6, "blocking";
    /// Allowed while loading.
    LOADING = 7, "loading";
    /// Allowed on a stale replica.
    STALE = 8, "stale";
    /// It is no entry of MONITOR.
    SKIP_MONITOR = 9, "skip_monitor";
    /// It is no entry of SLOWLOG.
    SKIP_SLOWLOG = 10, "skip_slowlog";
    /// Allowed with slots that are being imported.
    ASKING = 11, "asking";
    /// Constant or logarithmic time.
    FAST = 12, "fast";
    /// Allowed before AUTH.
    NO_AUTH = 13, "no_auth";
    /// It may come without keys.
    NO_MANDATORY_KEYS = 14, "no_mandatory_keys";
    /// Its keys have no fixed place.
    MOVABLEKEYS = 15, "movablekeys";
    /// Not inside a transaction.
    NO_MULTI = 16, "no_multi";
    /// Not while loading asynchronously.
    NO_ASYNC_LOADING = 17, "no_async_loading";
    /// Allowed while a script runs.
    ALLOW_BUSY = 18, "allow_busy";
    /// In the ACL category `@dangerous` (no flag of `COMMAND`).
    DANGEROUS = 31, "";
}

impl Flags {
    /// Both sets of properties.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names, as `COMMAND` lists them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .iter()
            .filter(move |(flag, name)| !name.is_empty() && self.has(*flag))
            .map(|(_, name)| *name)
    }
}

/// Where a command's keys stand, and so what it conflicts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Footprint {
    /// It touches no key.
    None,
    /// At `first..=last` in steps of `step`.
    Positions,
    /// A number of keys stands at this place, counted as `first` is, the keys behind it; besides
    /// those at `first..=last`.
    Counted(u8),
    /// At place 2: after a subcommand.
    Second,
    /// It conflicts with every other.
    Everything,
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// The name in lower case.
    pub name: &'static str,
    /// Its number in requests.
    pub op: Op,
    /// How many arguments it takes, the name included; a negative one is a minimum.
    pub arity: i8,
    /// The part that answers it.
    pub kind: Kind,
    /// Its family.
    pub group: Group,
    /// Place of the first key, 1 being the first argument; 0 is "no key with a fixed place".
    pub first_key: i8,
    /// Place of the last key; negative counts from the end.
    pub last_key: i8,
    /// Distance between two keys.
    pub key_step: i8,
    /// Where the keys stand.
    pub footprint: Footprint,
    /// Its properties.
    pub flags: Flags,
}

impl CommandSpec {
    /// The command with this number in a request.
    #[must_use]
    pub fn by_id(id: u16) -> Option<&'static Self> {
        COMMANDS.get(usize::from(id).checked_sub(1)?)
    }

    /// Whether `arguments` (the name not counted) are a number that the command takes.
    #[must_use]
    pub const fn arity_fits(&self, arguments: usize) -> bool {
        let given = arguments + 1;
        if self.arity >= 0 {
            given == self.arity as usize
        } else {
            given >= -(self.arity as isize) as usize
        }
    }

    /// Whether it may change something and so must be ordered.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        self.flags.has(Flags::WRITE)
    }

    /// The error of an unsupported command (without the leading `-` and the line end), or `None` if
    /// the command is supported.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let why = match self.kind {
            Kind::Unreplicated => "in a replicated store",
            Kind::Later => "yet",
            _ => return None,
        };
        Some(format!(
            "ERR '{}' is not supported {why}",
            self.name.to_ascii_uppercase()
        ))
    }

    /// Redis's answer to a wrong number of arguments (without the leading `-` and the line end).
    #[must_use]
    pub fn arity_error(&self) -> String {
        format!("ERR wrong number of arguments for '{}' command", self.name)
    }

    /// The categories of Redis's ACLs that the command is in.
    pub fn categories(&self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags;
        let speed = if flags.has(Flags::FAST) {
            "@fast"
        } else {
            "@slow"
        };
        let by_flag = [
            (Flags::WRITE, "@write"),
            (Flags::READONLY, "@read"),
            (Flags::ADMIN, "@admin"),
            (Flags::PUBSUB, "@pubsub"),
            (Flags::BLOCKING, "@blocking"),
            (Flags::DANGEROUS, "@dangerous"),
        ];
        let named = by_flag
            .into_iter()
            .filter(move |(flag, _)| flags.has(*flag));
        self.group
            .category()
            .filter(|category| *category != "@pubsub")
            .into_iter()
            .chain(named.map(|(_, category)| category))
            .chain([speed])
    }

    /// Calls `visit` with the index into `args` (the name not included) of each key.
    pub fn keys(&self, args: &[&[u8]], mut visit: impl FnMut(usize)) {
        if self.footprint == Footprint::Second {
            if args.len() > 1 {
                visit(1);
            }
            return;
        }
        if self.first_key > 0 {
            let count = args.len() as isize;
            let last = match isize::from(self.last_key) {
                last if last < 0 => count + last,
                last => last - 1,
            };
            let mut place = isize::from(self.first_key) - 1;
            while place <= last && place < count {
                visit(place as usize);
                place += isize::from(self.key_step.max(1));
            }
        }
        if let Footprint::Counted(place) = self.footprint {
            let place = usize::from(place);
            let count = args
                .get(place - 1)
                .and_then(|count| core::str::from_utf8(count).ok())
                .and_then(|count| count.parse::<usize>().ok())
                .unwrap_or(0);
            for index in place..place.saturating_add(count).min(args.len()) {
                visit(index);
            }
        }
    }
}

/// How many commands there are; their numbers go from 1 to this.
pub const COMMANDS_COUNT: usize = COMMANDS.len();

const NAME_LEN_MAX: usize = 24;
const TABLE_LEN: usize = 1024;

/// Open addressing over the hash of the name; 0 is "empty", else the number of the command.
static TABLE: [u16; TABLE_LEN] = {
    let mut table = [0u16; TABLE_LEN];
    let mut index = 0;
    while index < COMMANDS.len() {
        let name = COMMANDS[index].name.as_bytes();
        assert!(name.len() <= NAME_LEN_MAX);
        assert!(
            COMMANDS[index].op as usize == index + 1,
            "commands stand in the order of ids"
        );
        let mut place = name_hash(name);
        while table[place] != 0 {
            place = (place + 1) % TABLE_LEN;
        }
        table[place] = index as u16 + 1;
        index += 1;
    }
    table
};

const fn name_hash(name: &[u8]) -> usize {
    let mut hash = 0xcbf2_9ce4u32;
    let mut index = 0;
    while index < name.len() {
        hash = (hash ^ (name[index] | 0x20) as u32).wrapping_mul(0x0100_0193);
        index += 1;
    }
    (hash ^ (hash >> 15)) as usize % TABLE_LEN
}

/// The command with this name, in any mixture of cases.
#[must_use]
pub fn lookup(name: &[u8]) -> Option<&'static CommandSpec> {
    if name.len() > NAME_LEN_MAX {
        return None;
    }
    let mut place = name_hash(name);
    while let Some(spec) = CommandSpec::by_id(TABLE[place]) {
        if spec.name.as_bytes().eq_ignore_ascii_case(name) {
            return (spec.kind != Kind::Internal).then_some(spec);
        }
        place = (place + 1) % TABLE_LEN;
    }
    None
}

/// The hash under which a footprint speaks of a key: the same on every replica, by the cluster's
/// seed.
#[must_use]
pub fn key_hash(seed: u64, database: u8, key: &[u8]) -> u64 {
    hash_bytes(seed.wrapping_add(u64::from(database)), key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_public_name_is_found_in_any_case() {
        for spec in &COMMANDS {
            let found = lookup(spec.name.to_ascii_uppercase().as_bytes());
            assert_eq!(
                found.is_some(),
                spec.kind != Kind::Internal,
                "{}",
                spec.name
            );
            if let Some(found) = found {
                assert_eq!(found.op, spec.op);
            }
        }
        assert!(lookup(b"nosuch").is_none());
        assert!(lookup(b"").is_none());
        assert!(lookup(&[b'x'; 1000]).is_none());
    }

    fn keys_of(name: &str, args: &[&str]) -> Vec<usize> {
        let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let mut keys = Vec::new();
        lookup(name.as_bytes())
            .unwrap()
            .keys(&args, |index| keys.push(index));
        keys
    }

    #[test]
    fn keys_are_found_where_they_stand() {
        assert_eq!(keys_of("get", &["a"]), [0]);
        assert_eq!(keys_of("mset", &["a", "1", "b", "2"]), [0, 2]);
        assert_eq!(keys_of("del", &["a", "b", "c"]), [0, 1, 2]);
        assert_eq!(
            keys_of("zunionstore", &["d", "2", "a", "b", "WEIGHTS", "1", "2"]),
            [0, 2, 3]
        );
        assert_eq!(
            keys_of("sintercard", &["2", "a", "b", "LIMIT", "1"]),
            [1, 2]
        );
        assert_eq!(
            keys_of("sintercard", &["99999999999999999999", "a"]),
            [0usize; 0]
        );
        assert_eq!(keys_of("sintercard", &["18446744073709551615", "a"]), [1]);
        assert_eq!(keys_of("object", &["encoding", "a"]), [1]);
        assert_eq!(keys_of("bitop", &["AND", "d", "a", "b"]), [1, 2, 3]);
        assert_eq!(keys_of("ping", &[]), [0usize; 0]);
    }

    #[test]
    fn arity_counts_the_name() {
        assert!(lookup(b"get").unwrap().arity_fits(1));
        assert!(!lookup(b"get").unwrap().arity_fits(0));
        assert!(!lookup(b"get").unwrap().arity_fits(2));
        assert!(lookup(b"set").unwrap().arity_fits(5));
        assert!(!lookup(b"set").unwrap().arity_fits(1));
        assert!(lookup(b"ping").unwrap().arity_fits(0));
    }
}
