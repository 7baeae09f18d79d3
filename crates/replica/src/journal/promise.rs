//! The two slots that hold a replica's promises, those of all its groups together.
//!
//! ```text
//!   group 0 alone     owner | group | epoch | sequence | promise                     format 1
//!   several groups    owner | sequence | (group | epoch | flags | promise)…          format 2
//! ```
//!
//! A promise waits for the next commit, in memory, so that those of several groups are one write.

use super::{
    Disk, GroupEpoch, Identity, JournalError,
    format::{Known, Place},
};
use crate::{Bytes, DecodeError, GroupId, Reader, Wire, Writer};
use alloc::{string::ToString, vec::Vec};
use bytes::BytesMut;

/// The length of a slot in bytes.
pub const PROMISE_SLOT: usize = 1 << 20;
/// The longest promise in bytes; of several groups, the most of all their promises together.
pub const PROMISE_MAX: usize = PROMISE_SLOT - 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"QUINTETP");
/// Of group 0 alone.
const VERSION_PLAIN: u32 = 1;
/// A table of groups.
const VERSION: u32 = 2;
/// The bytes of an entry of the table beside its promise.
const ENTRY: usize = 32;

/// Records were trimmed, or were never here.
const INCOMPLETE: u8 = 1;
/// The replica left the group in this epoch.
const LEFT: u8 = 2;
/// There is a promise.
const PROMISED: u8 = 4;

/// A group's row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub of: GroupEpoch,
    pub promise: Option<Bytes>,
    /// Its records go back to the replica's first start; of group 0 the mark says it.
    pub complete: bool,
    /// The replica left it since the journal was opened.
    pub left: bool,
}

impl Entry {
    pub const fn new(of: GroupEpoch) -> Self {
        Self {
            of,
            promise: None,
            complete: true,
            left: false,
        }
    }
}

/// All that a slot holds.
#[derive(Debug)]
struct Table {
    owner: Identity,
    sequence: u64,
    entries: Vec<Entry>,
    left: Vec<GroupEpoch>,
}

impl Table {
    fn decode_plain(reader: &mut Reader) -> Result<Self, DecodeError> {
        let owner = Identity::decode(reader)?;
        let of = GroupEpoch::decode(reader)?;
        let sequence = reader.number("sequence")?;
        let entry = Entry {
            promise: Some(reader.blob("promise")?),
            ..Entry::new(of)
        };
        Ok(Self {
            owner,
            sequence,
            entries: [entry].into(),
            left: Vec::new(),
        })
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut table = Self {
            owner: Identity::decode(reader)?,
            sequence: reader.number("sequence")?,
            entries: Vec::new(),
            left: Vec::new(),
        };
        while reader.remaining() > 0 {
            let of = GroupEpoch::decode(reader)?;
            let flags = reader.u8("flags")?;
            let promise = reader.blob("promise")?;
            if flags & LEFT != 0 {
                table.left.push(of);
                continue;
            }
            table.entries.push(Entry {
                of,
                promise: (flags & PROMISED != 0).then_some(promise),
                complete: flags & INCOMPLETE == 0,
                left: false,
            });
        }
        Ok(table)
    }
}

/// The contents of a slot.
enum Slot {
    Empty,
    Valid(Table),
    Newer(u32),
    Bad,
}

/// Covers the version too: every later format keeps magic, version, checksum and body in their
/// places, so that a slot that has gone bad is not taken for one of a newer format.
fn check(version: u32, body: &[u8]) -> u32 {
    crate::checksum(body) ^ version.wrapping_mul(0x9e37_79b1)
}

fn decode(bytes: Bytes) -> Slot {
    if bytes.iter().all(|byte| *byte == 0) {
        return Slot::Empty;
    }
    let read = || -> Result<Slot, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.u64("promise magic")? != MAGIC {
            return Ok(Slot::Bad);
        }
        let version = reader.u32("promise format")?;
        let checksum = reader.u32("checksum")?;
        let body = reader.blob("promise body")?;
        if version == 0 || check(version, &body) != checksum {
            return Ok(Slot::Bad);
        }
        let mut reader = Reader::new(body);
        Ok(match version {
            VERSION_PLAIN => Slot::Valid(Table::decode_plain(&mut reader)?),
            VERSION => Slot::Valid(Table::decode(&mut reader)?),
            newer => Slot::Newer(newer),
        })
    };
    read().unwrap_or(Slot::Bad)
}

/// The number and the length of the promises in a slot, if there is one that can be read.
pub(super) fn look<D: Disk>(disk: &mut D, slot: usize) -> Result<Option<(u64, u64)>, D::Error> {
    Ok(match decode(disk.read_promise(slot)?) {
        Slot::Valid(table) => {
            let promises = table.entries.iter().flat_map(|entry| &entry.promise);
            let length: usize = promises.map(Bytes::len).sum();
            Some((table.sequence, length as u64))
        }
        Slot::Empty | Slot::Newer(_) | Slot::Bad => None,
    })
}

/// The groups that the newest table has, and whether the records of each go back to the first start.
pub(super) fn groups<D: Disk>(disk: &mut D) -> Result<Vec<(GroupId, bool)>, D::Error> {
    let mut newest: Option<Table> = None;
    for slot in 0..2 {
        if let Slot::Valid(table) = decode(disk.read_promise(slot)?)
            && newest
                .as_ref()
                .is_none_or(|newest| table.sequence > newest.sequence)
        {
            newest = Some(table);
        }
    }
    let entries = newest.into_iter().flat_map(|table| table.entries);
    Ok(entries
        .map(|entry| (entry.of.group, entry.complete))
        .collect())
}

/// The promises of a journal.
#[derive(Debug, Default)]
pub(super) struct Promises {
    sequence: u64,
    /// The whole copy, where the other one is damaged.
    whole: Option<Bytes>,
    /// One for each group, in the journal's order.
    pub entries: Vec<Entry>,
    /// Groups that were left before the journal was opened, while it has records of them.
    pub left: Vec<GroupEpoch>,
    /// By group: its promise waits for the next commit.
    waiting: Vec<bool>,
    /// One of them does.
    waits: bool,
}

impl Promises {
    /// Reads both slots for these groups; also says whether a copy was damaged.
    pub fn open<D: Disk>(
        disk: &mut D,
        identity: &Identity,
        groups: Option<&[GroupEpoch]>,
    ) -> Result<(Self, bool), JournalError<D::Error>> {
        let what = || "the promise file".to_string();
        let mut newest: Option<Table> = None;
        let mut whole = None;
        let (mut bad, mut empty) = (0, 0);
        for slot in 0..2 {
            let bytes = disk.read_promise(slot).map_err(JournalError::Disk)?;
            match decode(bytes.clone()) {
                Slot::Empty => empty += 1,
                Slot::Bad => bad += 1,
                Slot::Newer(theirs) => {
                    return Err(JournalError::Newer {
                        what: what(),
                        theirs,
                        ours: VERSION,
                    });
                }
                Slot::Valid(table) => {
                    identity.check(what, table.owner)?;
                    if (newest.as_ref()).is_none_or(|newest| table.sequence > newest.sequence) {
                        newest = Some(table);
                        whole = Some(bytes);
                    }
                }
            }
        }
        // The first promise ever, torn in its first slot, was never acknowledged.
        let torn_first = bad == 1 && empty == 1;
        if newest.is_none() && bad > 0 && !torn_first {
            return Err(JournalError::PromisesLost);
        }
        let mut promises = Self {
            sequence: newest.as_ref().map_or(0, |newest| newest.sequence),
            whole: whole.filter(|_| bad > 0),
            ..Self::default()
        };
        (groups.into_iter().flatten()).for_each(|of| promises.push(*of));
        let Some(found) = newest else {
            return Ok((promises, bad > 0));
        };
        for left in found.left {
            match promises.entries.iter().find(|e| e.of.group == left.group) {
                Some(Entry { of, .. }) if of.epoch <= left.epoch => {
                    return Err(JournalError::LaterEpoch {
                        what: what(),
                        theirs: left.epoch,
                        ours: of.epoch,
                    });
                }
                // It came back in a later epoch: earlier ones count no more.
                Some(_) => {}
                None => promises.left.push(left),
            }
        }
        let known = match groups {
            Some(groups) => Known::These {
                groups,
                left: &promises.left,
            },
            None => Known::Any,
        };
        for entry in found.entries {
            let place = known.place(what, entry.of)?;
            let same = |known: &&mut Entry| known.of.group == entry.of.group;
            let Some(into) = promises.entries.iter_mut().find(same) else {
                continue;
            };
            into.complete = entry.complete;
            if let Place::At(_) = place {
                into.promise = entry.promise;
            }
        }
        Ok((promises, bad > 0))
    }

    /// A group comes in behind the others.
    pub fn push(&mut self, of: GroupEpoch) {
        self.entries.push(Entry::new(of));
        self.waiting.push(false);
    }

    /// The same, perhaps of one that was left.
    pub fn join(&mut self, of: GroupEpoch) {
        let here = self.entries.iter().filter(|entry| entry.left);
        let mut left = self.left.iter().chain(here.map(|entry| &entry.of));
        assert!(
            left.all(|left| left.group != of.group || left.epoch < of.epoch),
            "epochs ascend"
        );
        self.left.retain(|left| left.group != of.group);
        self.push(of);
    }

    /// Whether the group of this place has a promise that is not durable yet.
    pub fn waits(&self, at: usize) -> bool {
        self.waits && self.waiting[at]
    }

    /// Takes a promise over.
    pub fn set<E>(&mut self, at: usize, promise: &Bytes) -> Result<(), JournalError<E>> {
        let others = self.entries.iter().enumerate().filter(|(of, _)| *of != at);
        let others = others.map(|(_, entry)| ENTRY + entry.promise.as_ref().map_or(0, Bytes::len));
        let length = promise.len() + others.sum::<usize>() + ENTRY * self.left.len();
        if length > PROMISE_MAX {
            return Err(JournalError::PromiseTooLong(length));
        }
        self.entries[at].promise = Some(promise.clone());
        (self.waits, self.waiting[at]) = (true, true);
        Ok(())
    }

    /// Writes the whole copy over the damaged one; gives how many bytes were written.
    pub fn repair<D: Disk>(&mut self, disk: &mut D) -> Result<u64, JournalError<D::Error>> {
        let Some(bytes) = self.whole.take() else {
            return Ok(0);
        };
        for slot in 0..2 {
            disk.write_promise(slot, &bytes)
                .map_err(JournalError::Disk)?;
        }
        Ok(2 * bytes.len() as u64)
    }

    /// Only group 0 is there, as programs that know no other groups read it.
    fn plain(&self) -> Option<(GroupEpoch, &Bytes)> {
        match &self.entries[..] {
            [
                Entry {
                    of,
                    promise: Some(promise),
                    ..
                },
            ] if of.group == GroupId(0) && self.left.is_empty() => Some((*of, promise)),
            _ => None,
        }
    }

    fn encode(&self, identity: &Identity) -> Bytes {
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        identity.encode(&mut writer);
        let version = if let Some((of, promise)) = self.plain() {
            of.encode(&mut writer);
            writer.u64(self.sequence);
            writer.slice(promise);
            VERSION_PLAIN
        } else {
            writer.u64(self.sequence);
            for entry in self.entries.iter().filter(|entry| !entry.left) {
                entry.of.encode(&mut writer);
                let incomplete = if entry.complete { 0 } else { INCOMPLETE };
                let promised = entry.promise.as_ref().map_or(0, |_| PROMISED);
                writer.u8(incomplete | promised);
                writer.slice(entry.promise.as_deref().unwrap_or_default());
            }
            let here = |group| (self.entries.iter()).any(|e| !e.left && e.of.group == group);
            let left_here = self.entries.iter().filter(|entry| entry.left);
            let left = self.left.iter().chain(left_here.map(|entry| &entry.of));
            for of in left.filter(|of| !here(of.group)) {
                of.encode(&mut writer);
                writer.u8(LEFT);
                writer.slice(&[]);
            }
            VERSION
        };
        let body = writer.finish().into_bytes();
        let mut writer = Writer::new(&mut scratch);
        writer.u64(MAGIC);
        writer.u32(version);
        writer.u32(check(version, &body));
        writer.slice(&body);
        writer.finish().into_bytes()
    }

    /// Makes those that wait durable; gives how many bytes were written.
    pub fn commit<D: Disk>(
        &mut self,
        disk: &mut D,
        identity: &Identity,
    ) -> Result<u64, JournalError<D::Error>> {
        if !self.waits {
            return Ok(0);
        }
        self.write(disk, identity)
    }

    /// Makes the table durable as it is.
    pub fn write<D: Disk>(
        &mut self,
        disk: &mut D,
        identity: &Identity,
    ) -> Result<u64, JournalError<D::Error>> {
        self.sequence += 1;
        let bytes = self.encode(identity);
        for slot in 0..2 {
            disk.write_promise(slot, &bytes)
                .map_err(JournalError::Disk)?;
        }
        self.whole = None;
        self.waits = false;
        self.waiting.fill(false);
        Ok(2 * bytes.len() as u64)
    }
}
