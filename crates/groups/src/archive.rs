//! Where past values go that are not kept in memory: no part of the state.
//!
//! ```text
//!   field: past values, oldest first │ away … away │ in memory … in memory │ present
//!                                      put ◄─────────┘ when those are more than `in_memory`
//!   read of an earlier version, snapshot, digest ──► read, compared with the hash
//! ```
//!
//! An archive ends with the process: a restart reads the past from the snapshot, and puts it away
//! again. So it need not be durable, and nothing of it is ever recovered.

use crate::{Bytes, encoding};
use quintet_replica::digest::hash_wide;
use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Gives the bytes that are put away.
pub type Encode<'a> = &'a mut dyn FnMut() -> Vec<u8>;

/// Keeps bytes outside memory.
pub trait Archive: Send + Sync + fmt::Debug {
    /// Bytes of past values of each field that stay in memory, the newest.
    fn in_memory(&self) -> u64;

    /// Whether a value is put away at all whose encoding has this many bytes.
    fn takes(&self, length: u64) -> bool;

    /// Puts away what `encode` gives, of this length; for [`Put::NotNow`] nothing is encoded. One that
    /// is restored waits a while until there is room.
    fn put(&self, length: u64, encode: Encode<'_>, waits: bool) -> Put;
}

/// The outcome for a value that was to be put away.
#[derive(Debug)]
pub enum Put<T = Arc<dyn Archived>> {
    /// It is there.
    Away(T),
    /// There is no room now.
    NotNow,
    /// Its encoding has another length than it had: it stays in memory.
    Never,
}

/// Bytes that were put away, as long as this is held.
pub trait Archived: Send + Sync + fmt::Debug {
    /// The bytes.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read(&self) -> io::Result<Bytes>;
}

/// Takes nothing: all stays in memory.
#[derive(Debug, Default)]
pub struct NoArchive;

impl Archive for NoArchive {
    fn in_memory(&self) -> u64 {
        u64::MAX
    }

    fn takes(&self, _: u64) -> bool {
        false
    }

    fn put(&self, _: u64, _: Encode<'_>, _: bool) -> Put {
        Put::NotNow
    }
}

/// Takes values of any length, and at times none: for the simulator and tests.
#[derive(Debug, Default)]
pub struct WhimsicalArchive {
    in_memory: u64,
    asked: AtomicU64,
}

impl WhimsicalArchive {
    /// It leaves this many bytes of each field in memory.
    #[must_use]
    pub const fn new(in_memory: u64) -> Self {
        Self {
            in_memory,
            asked: AtomicU64::new(0),
        }
    }
}

#[derive(Debug)]
struct InMemory(Bytes);

impl Archived for InMemory {
    fn read(&self) -> io::Result<Bytes> {
        Ok(self.0.clone())
    }
}

impl Archive for WhimsicalArchive {
    fn in_memory(&self) -> u64 {
        self.in_memory
    }

    fn takes(&self, _: u64) -> bool {
        true
    }

    fn put(&self, _: u64, encode: Encode<'_>, waits: bool) -> Put {
        let is_full = self.asked.fetch_add(1, Relaxed) % 3 == 2;
        match waits || !is_full {
            true => Put::Away(Arc::new(InMemory(encode().into()))),
            false => Put::NotNow,
        }
    }
}

/// The encoding of a value that was put away.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    archived: Arc<dyn Archived>,
    length: u64,
    hash: u128,
}

impl Away {
    /// Puts a value away whose encoding has this length.
    pub fn put(
        value: &impl serde::Serialize,
        length: u64,
        archive: &dyn Archive,
        waits: bool,
    ) -> Put<Self> {
        let mut hash = 0;
        let mut encode = || {
            let bytes = encoding::encode(value);
            hash = hash_wide(&bytes);
            bytes
        };
        match archive.put(length, &mut encode, waits) {
            Put::Away(archived) => Put::Away(Self {
                archived,
                length,
                hash,
            }),
            Put::NotNow => Put::NotNow,
            Put::Never => Put::Never,
        }
    }

    /// The length of the encoding.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The encoding.
    ///
    /// # Panics
    /// When it is not what was put away: a query fails then, a digest differs from all others, and a
    /// snapshot ends the process, so that no wrong value goes anywhere.
    pub fn bytes(&self) -> Bytes {
        match self.archived.read() {
            Ok(bytes) if hash_wide(&bytes) == self.hash => bytes,
            Ok(_) => panic!(
                "a past value on this member's disk is damaged: restart the member, it reads the \
                 past again"
            ),
            Err(error) => panic!(
                "a past value cannot be read from this member's disk ({error}): restart the member, \
                 it reads the past again"
            ),
        }
    }

    /// Which one it is, among those that are held.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.archived).cast::<()>().addr()
    }
}
