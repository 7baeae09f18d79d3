//! The inputs of a command: the keys, the time, randomness, and a place for its reply.
//!
//! ```text
//!   query  ──► ReadContext  ── &Keyspace ─► value() read() entries()
//!   apply  ─┬► ReadContext                  (commands that change nothing run the same code)
//!           └► WriteContext ── Keys ──────► open() open_or_create() set() remove() …
//! ```

use crate::error::CommandError;
use crate::keyspace::{Entry, Keys, Keyspace};
use crate::options::StoreOptions;
use crate::passing::Passing;
use crate::random::Random;
use crate::reply::Reply;
use crate::value::{Stored, Value};

/// The value of a key in a read of the past.
#[derive(Debug)]
enum Held<'a> {
    /// It has not changed since.
    Present(Option<&'a Entry>),
    /// Its earlier value, or none.
    Then(Option<Box<Entry>>),
}

/// The keys that a read of the past names, as they were.
#[derive(Debug, Default)]
pub(crate) struct PastView<'a> {
    keys: Vec<(&'a [u8], Held<'a>)>,
}

impl<'a> PastView<'a> {
    /// The key held this, or nothing.
    pub fn add(&mut self, key: &'a [u8], entry: Option<Entry>) {
        self.keys.push((key, Held::Then(entry.map(Box::new))));
    }

    /// The key held what it holds now.
    pub fn add_present(&mut self, key: &'a [u8], entry: Option<&'a Entry>) {
        self.keys.push((key, Held::Present(entry)));
    }

    /// Whether the key has been added.
    pub fn names(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|(name, _)| *name == key)
    }

    fn entry(&self, key: &[u8]) -> Option<&Entry> {
        let (_, held) = self.keys.iter().find(|(name, _)| *name == key)?;
        match held {
            Held::Present(entry) => *entry,
            Held::Then(entry) => entry.as_deref(),
        }
    }
}

/// For commands that change nothing.
#[derive(Debug)]
pub struct ReadContext<'a> {
    /// The named keys as they were, in a read of the past.
    pub(crate) past: Option<&'a PastView<'a>>,
    pub(crate) keyspace: &'a Keyspace,
    /// The limits of the store.
    pub options: &'a StoreOptions,
    /// The database that the command works on.
    pub database: u8,
    /// A key exists if it expires after this time, in milliseconds since the Unix epoch.
    pub now: u64,
    /// The time that answers tell, in nanoseconds since the Unix epoch; not before `now`.
    pub clock: u64,
    /// Where the reply goes.
    pub reply: Reply<'a>,
    /// The command's own randomness.
    pub random: Random,
    pub(crate) passing: Passing<'a>,
}

impl<'a> ReadContext<'a> {
    /// The entries that exist and whose hash is `hash` or higher, in the order that all replicas
    /// share; an error when too many that have expired stand in between.
    pub(crate) fn entries(
        &self,
        hash: u32,
    ) -> impl Iterator<Item = Result<(u32, &'a Entry), CommandError>> + use<'a> {
        let (now, passing) = (self.now, self.passing);
        let all = self.keyspace.database(self.database).all_entries(hash);
        all.filter_map(move |(hash, slot, entry)| {
            if entry.expire_at > now {
                return Some(Ok((hash, entry)));
            }
            passing.pass(hash, slot).err().map(Err)
        })
    }

    pub(crate) fn entry(&self, key: &[u8]) -> Option<&'a Entry> {
        match self.past {
            Some(past) => past.entry(key).filter(|entry| entry.expire_at > self.now),
            None => self.keyspace.database(self.database).get(key, self.now),
        }
    }

    /// The value of a key, whatever its type.
    #[must_use]
    pub fn value(&self, key: &[u8]) -> Option<&'a Value> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The value of a key, if it exists.
    ///
    /// # Errors
    /// When the value is of another type.
    pub fn read<T: Stored + 'a>(&self, key: &[u8]) -> Result<Option<&'a T>, CommandError> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => T::of(value).map(Some).ok_or(CommandError::WrongType),
        }
    }
}

/// For commands that may change something.
#[derive(Debug)]
pub struct WriteContext<'a> {
    /// The keys of the selected database.
    pub keys: Keys<'a>,
    /// Where the reply goes. A field of its own, so that a value in hand does not block it.
    pub reply: Reply<'a>,
    /// The command's own randomness.
    pub random: Random,
    /// The limits of the store.
    pub options: &'a StoreOptions,
}

impl WriteContext<'_> {
    /// The command's time in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.keys.now
    }

    /// Refuses a value that would become longer than the store takes.
    ///
    /// # Errors
    /// When `bytes` is above the limit.
    pub fn check_value_len(&self, bytes: usize) -> Result<(), CommandError> {
        self.options.check_value_len(bytes)
    }
}
