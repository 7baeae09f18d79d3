//! Writing the whole state while commands keep changing it.
//!
//! ```text
//!   slab    [ w w w w | n n n n n ]        w written, n not yet, + new since the beginning
//!                     ▲ cursor
//!   command changes an n ──► its old form is written at once, into the same stream
//!   FLUSHALL ──► the old slab is detached and written from there
//!
//!   stream   header │ entry … entry │ trailer (count, checksum)     cut anywhere into chunks
//! ```
//!
//! Each entry carries the number of the last snapshot that has seen it, so that nothing is
//! written twice. Entries come in no particular order: nothing in the state depends on it.

use crate::key_hash::hash_bytes;
use crate::keyspace::{Database, Detached, Entry, Slab, SnapshotCursor};
use crate::types::wire::{Malformed, Reader, put_bytes};
use crate::undo::{self, Marks, Undo};
use crate::value::Value;
use quintet_replica::{RestoreError, StateCheck};

const MAGIC: &[u8; 8] = b"QTSTORE\n";
/// Of a store that has never kept the past …
const FORMAT: u16 = 1;
/// … and of one that has: the header continues.
const FORMAT_PAST: u16 = 3;
const HEADER_LEN: usize = 8 + 2 + 1 + 1 + 8;
const RECORD_HEAD_LEN: usize = 9;
const RECORD_ENTRY: u8 = 1;
const RECORD_END: u8 = 2;
const RECORD_PAST: u8 = 3;

/// The parts of the state besides the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Globals {
    /// Whether commands that need memory are refused.
    pub(crate) refuse_writes: bool,
    /// How many databases there are.
    pub(crate) databases: u8,
    /// Time of the last command, in nanoseconds.
    pub(crate) time: u64,
    /// The past that is kept; all zero where none ever was.
    pub(crate) past: Marks,
}

impl Globals {
    /// # Errors
    /// When a store of `databases` databases cannot hold such a state.
    pub(crate) fn check(&self, databases: u8) -> Result<(), RestoreError> {
        if self.databases > databases {
            let has = self.databases;
            return Err(refused(format!(
                "it has {has} databases, this store {databases}"
            )));
        }
        Ok(())
    }
}

/// A snapshot in progress.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Its number: the mark of entries that it needs no more.
    pub(crate) id: u32,
    stream: Vec<u8>,
    taken: usize,
    count: u64,
    checksum: u64,
    ended: bool,
}

fn chain(checksum: u64, record: &[u8]) -> u64 {
    hash_bytes(checksum, record)
}

/// Appends a record.
fn put_record(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let length_at = out.len();
    out.extend_from_slice(&[0; 8]);
    let start = out.len();
    write(out);
    let length = (out.len() - start) as u64;
    out[length_at..start].copy_from_slice(&length.to_le_bytes());
}

impl Snapshot {
    pub(crate) fn new(id: u32, globals: Globals) -> Self {
        let mut stream = Vec::new();
        stream.extend_from_slice(MAGIC);
        let past = globals.past != Marks::default();
        let format = if past { FORMAT_PAST } else { FORMAT };
        stream.extend_from_slice(&format.to_le_bytes());
        stream.push(u8::from(globals.refuse_writes));
        stream.push(globals.databases);
        stream.extend_from_slice(&globals.time.to_le_bytes());
        if past {
            stream.extend_from_slice(&globals.past.to_bytes());
        }
        let checksum = chain(0, &stream);
        Self {
            id,
            stream,
            taken: 0,
            count: 0,
            checksum,
            ended: false,
        }
    }

    /// Writes `entry` as it is now, if that has not been done, and marks it.
    pub(crate) fn save(&mut self, origin: u8, entry: &mut Entry) {
        if !entry.mark_for(self.id) {
            return;
        }
        self.put(RECORD_ENTRY, |out| entry.serialize(origin, out));
    }

    fn put(&mut self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.stream.len();
        put_record(&mut self.stream, kind, write);
        self.checksum = chain(self.checksum, &self.stream[start..]);
        self.count += 1;
    }

    /// Writes entries from the cursor on until enough bytes wait to be handed out.
    fn walk(&mut self, cursor: &mut SnapshotCursor, slab: &mut Slab, budget: usize) {
        while self.waiting() < budget && cursor.next < cursor.end {
            if let Some(entry) = slab.get_mut(cursor.next) {
                self.save(cursor.origin, entry);
            }
            cursor.next += 1;
        }
    }

    /// Bytes written but not handed out yet.
    fn waiting(&self) -> usize {
        self.stream.len() - self.taken
    }

    /// Hands out about `budget` bytes; true at the end.
    pub(crate) fn chunk(
        &mut self,
        databases: &mut [Database],
        detached: &mut [Detached],
        undo: Option<&mut Undo>,
        out: &mut Vec<u8>,
        budget: usize,
    ) -> bool {
        let budget = budget.max(1);
        for database in databases.iter_mut() {
            self.walk(&mut database.snapshot, &mut database.slab, budget);
        }
        for detached in detached {
            self.walk(&mut detached.snapshot, &mut detached.slab, budget);
        }
        if let Some(undo) = undo {
            undo.snapshot(|payload| {
                let continues = self.waiting() < budget;
                if continues {
                    self.put(RECORD_PAST, |out| out.extend_from_slice(payload));
                }
                continues
            });
        }
        if self.waiting() < budget && !self.ended {
            self.ended = true;
            self.stream.push(RECORD_END);
            self.stream.extend_from_slice(&16u64.to_le_bytes());
            self.stream.extend_from_slice(&self.count.to_le_bytes());
            self.stream.extend_from_slice(&self.checksum.to_le_bytes());
        }
        let take = self.waiting().min(budget);
        out.extend_from_slice(&self.stream[self.taken..self.taken + take]);
        self.taken += take;
        // Moving what is left costs as much as it is long, so it is done when little is left.
        if self.taken >= self.stream.len() / 2 {
            self.stream.drain(..self.taken);
            self.taken = 0;
        }
        self.ended && self.stream.is_empty()
    }
}

/// A record read back.
#[derive(Debug)]
pub(crate) enum Read<'a> {
    /// An entry.
    Entry(Restored),
    /// A record of the past.
    Past(&'a Globals, &'a [u8]),
}

/// One entry read back.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) database: u8,
    pub(crate) version: u64,
    pub(crate) expire_at: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Value,
}

impl Restored {
    /// # Errors
    /// When no store of `databases` databases has such an entry.
    pub(crate) fn check(&self, databases: usize) -> Result<(), RestoreError> {
        if usize::from(self.database) >= databases {
            return Err(refused(format!(
                "it holds a key of database {}",
                self.database
            )));
        }
        if self.version == 0 {
            return Err(refused("it holds a key that cannot be"));
        }
        Ok(())
    }
}

/// A restore in progress: puts records together from chunks that were cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct Restore {
    partial: Vec<u8>,
    globals: Option<Globals>,
    count: u64,
    checksum: u64,
    ended: bool,
    /// Records above the limit, if there is one, are skipped: no buffer has to hold them.
    longest: Option<usize>,
    /// Bytes left to skip of one.
    skip: usize,
    skipped: bool,
}

fn refused(why: impl Into<String>) -> RestoreError {
    RestoreError(why.into())
}

pub(crate) fn malformed(error: Malformed) -> RestoreError {
    RestoreError(error.to_string())
}

fn eight(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(eight)
}

impl Restore {
    /// Takes the next bytes and gives each entry that they complete to `each`.
    pub(crate) fn chunk(
        &mut self,
        chunk: &[u8],
        mut each: impl FnMut(Read<'_>) -> Result<(), RestoreError>,
    ) -> Result<(), RestoreError> {
        let (passed, chunk) = chunk.split_at(self.skip.min(chunk.len()));
        self.skip -= passed.len();
        if self.partial.is_empty() {
            let used = self.steps(chunk, &mut each)?;
            self.partial.extend_from_slice(&chunk[used..]);
        } else {
            let mut partial = core::mem::take(&mut self.partial);
            partial.extend_from_slice(chunk);
            let used = self.steps(&partial, &mut each)?;
            partial.drain(..used);
            self.partial = partial;
        }
        Ok(())
    }

    /// Reads as many records as `bytes` hold whole, and says how many bytes they took.
    fn steps(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(Read<'_>) -> Result<(), RestoreError>,
    ) -> Result<usize, RestoreError> {
        let mut used = 0;
        while let Some(step) = self.step(&bytes[used..], each)? {
            used += step;
        }
        Ok(used)
    }

    /// Reads the header or one record from the front of `bytes`: how many it took, or `None` if
    /// they do not hold a whole one.
    fn step(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(Read<'_>) -> Result<(), RestoreError>,
    ) -> Result<Option<usize>, RestoreError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if self.ended {
            return Err(refused("bytes after its end"));
        }
        if self.globals.is_none() {
            return self.header(bytes);
        }
        let Some(head) = bytes.get(..RECORD_HEAD_LEN) else {
            return Ok(None);
        };
        let length = usize::try_from(eight(&head[1..]))
            .ok()
            .and_then(|length| length.checked_add(RECORD_HEAD_LEN))
            .ok_or_else(|| refused("record of impossible length"))?;
        if !(RECORD_ENTRY..=RECORD_PAST).contains(&head[0]) {
            return Err(refused(format!("unknown record {}", head[0])));
        }
        if head[0] != RECORD_END && self.longest.is_some_and(|longest| length > longest) {
            let here = length.min(bytes.len());
            self.skip = length - here;
            self.skipped = true;
            self.count += 1;
            return Ok(Some(here));
        }
        let Some(record) = bytes.get(..length) else {
            return Ok(None);
        };
        let body = &record[RECORD_HEAD_LEN..];
        if head[0] == RECORD_END {
            if body.len() != 16
                || eight(body) != self.count
                || (eight(&body[8..]) != self.checksum && !self.skipped)
            {
                return Err(refused("count or checksum is wrong"));
            }
            self.ended = true;
            return Ok(Some(length));
        }
        self.checksum = chain(self.checksum, record);
        self.count += 1;
        match &self.globals {
            Some(globals) if head[0] == RECORD_PAST && globals.past.retain.bytes > 0 => {
                each(Read::Past(globals, body))?;
            }
            _ if head[0] == RECORD_PAST => return Err(refused("it holds a past that is not kept")),
            _ => each(Read::Entry(read_entry(body).map_err(malformed)?))?,
        }
        Ok(Some(length))
    }

    fn header(&mut self, bytes: &[u8]) -> Result<Option<usize>, RestoreError> {
        let Some(header) = bytes.get(..HEADER_LEN) else {
            return Ok(None);
        };
        if &header[..8] != MAGIC {
            return Err(refused("not a snapshot of this store"));
        }
        let length = match u16::from_le_bytes([header[8], header[9]]) {
            FORMAT => HEADER_LEN,
            FORMAT_PAST => HEADER_LEN + Marks::LENGTH,
            format => {
                return Err(refused(format!(
                    "format {format}, this program reads {FORMAT} and {FORMAT_PAST}"
                )));
            }
        };
        let Some(header) = bytes.get(..length) else {
            return Ok(None);
        };
        let past = match length {
            HEADER_LEN => Marks::default(),
            _ => Marks::from_bytes(&header[HEADER_LEN..]),
        };
        if !past.is_possible() {
            return Err(refused("a past that cannot be"));
        }
        self.globals = Some(Globals {
            refuse_writes: header[10] != 0,
            databases: header[11],
            time: eight(&header[12..]),
            past,
        });
        self.checksum = chain(0, header);
        Ok(Some(length))
    }

    /// The parts besides the entries, once everything has been read.
    pub(crate) fn finish(self) -> Result<Globals, RestoreError> {
        match self.globals {
            Some(globals) if self.ended && self.partial.is_empty() => Ok(globals),
            _ => Err(refused("it is cut short")),
        }
    }
}

impl Entry {
    /// Appends everything about the entry that is replicated state.
    pub(crate) fn serialize(&self, database: u8, out: &mut Vec<u8>) {
        out.push(database);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.expire_at.to_le_bytes());
        put_bytes(out, &self.key);
        self.value.serialize(out);
    }
}

fn read_entry(body: &[u8]) -> Result<Restored, Malformed> {
    let mut reader = Reader::new(body);
    let database = reader.byte()?;
    let version = eight(reader.take(8)?);
    let expire_at = eight(reader.take(8)?);
    let key = reader.bytes()?.to_vec();
    let value = Value::deserialize(reader.rest())?;
    Ok(Restored {
        database,
        version,
        expire_at,
        key,
        value,
    })
}

/// Longer records of a state are not read back: reading one takes several times its length in
/// memory. The stream's own checksums cover them.
const READ_BACK_MAX: usize = 16 << 20;

/// Reads a state as a restore does, and keeps none of it.
#[derive(Debug)]
pub(crate) struct ReadBack {
    restore: Restore,
    databases: u8,
}

impl ReadBack {
    pub(crate) fn new(databases: u8) -> Self {
        let restore = Restore::default();
        Self { restore, databases }
    }
}

impl StateCheck for ReadBack {
    fn begin(&mut self) {
        self.restore = Restore {
            longest: Some(READ_BACK_MAX),
            ..Restore::default()
        };
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        let databases = usize::from(self.databases);
        self.restore.chunk(chunk, |read| match read {
            Read::Entry(restored) => restored.check(databases),
            Read::Past(_, payload) => match undo::check(payload, databases) {
                Ok(_) => Ok(()),
                Err(error) => Err(malformed(error)),
            },
        })
    }

    fn finish(&mut self) -> Result<(), RestoreError> {
        let globals = core::mem::take(&mut self.restore).finish()?;
        globals.check(self.databases)
    }
}
