//! The two slots that hold a replica's promises.

use super::{Disk, Identity, JournalError};
use crate::{Bytes, DecodeError, Reader, Wire, Writer};
use alloc::string::ToString;
use bytes::BytesMut;

/// The length of a slot in bytes.
pub const PROMISE_SLOT: usize = 1 << 20;
/// The longest promise in bytes.
pub const PROMISE_MAX: usize = PROMISE_SLOT - 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"QUINTETP");
const VERSION: u32 = 1;

/// What a slot holds.
enum Slot {
    Empty,
    Valid {
        sequence: u64,
        promise: Bytes,
        identity: Identity,
    },
    Newer(u32),
    Bad,
}

/// Covers the version too: every later format keeps magic, version, checksum and body in their
/// places, so that a slot that has gone bad is not taken for one of a newer format.
fn check(version: u32, body: &[u8]) -> u32 {
    crate::checksum(body) ^ version.wrapping_mul(0x9e37_79b1)
}

fn encode(identity: &Identity, sequence: u64, promise: &Bytes) -> Bytes {
    let mut scratch = BytesMut::new();
    let mut writer = Writer::new(&mut scratch);
    identity.encode(&mut writer);
    writer.u64(sequence);
    writer.slice(promise);
    let body = writer.finish().into_bytes();
    let mut writer = Writer::new(&mut scratch);
    writer.u64(MAGIC);
    writer.u32(VERSION);
    writer.u32(check(VERSION, &body));
    writer.slice(&body);
    writer.finish().into_bytes()
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
        if version > VERSION {
            return Ok(Slot::Newer(version));
        }
        let mut reader = Reader::new(body);
        let identity = Identity::decode(&mut reader)?;
        let (sequence, promise) = (reader.number("sequence")?, reader.blob("promise")?);
        Ok(Slot::Valid {
            sequence,
            promise,
            identity,
        })
    };
    read().unwrap_or(Slot::Bad)
}

/// The number and the length of the promise in a slot, if there is one that can be read.
pub(super) fn look<D: Disk>(disk: &mut D, slot: usize) -> Result<Option<(u64, u64)>, D::Error> {
    Ok(match decode(disk.read_promise(slot)?) {
        Slot::Valid {
            sequence, promise, ..
        } => Some((sequence, promise.len() as u64)),
        Slot::Empty | Slot::Newer(_) | Slot::Bad => None,
    })
}

/// The promises of a journal.
#[derive(Debug, Default)]
pub(super) struct Promises {
    sequence: u64,
    /// The whole copy, where the other one is damaged.
    whole: Option<Bytes>,
}

impl Promises {
    /// Reads both slots: the newest promise, and whether a copy was damaged.
    pub fn open<D: Disk>(
        disk: &mut D,
        identity: &Identity,
    ) -> Result<(Self, Option<Bytes>, bool), JournalError<D::Error>> {
        let mut newest: Option<(u64, Option<Bytes>)> = None;
        let mut whole = None;
        let (mut bad, mut empty) = (0, 0);
        for slot in 0..2 {
            let bytes = disk.read_promise(slot).map_err(JournalError::Disk)?;
            match decode(bytes.clone()) {
                Slot::Empty => empty += 1,
                Slot::Bad => bad += 1,
                Slot::Newer(theirs) => {
                    let what = "the promise file".to_string();
                    return Err(JournalError::Newer {
                        what,
                        theirs,
                        ours: VERSION,
                    });
                }
                Slot::Valid {
                    sequence,
                    promise,
                    identity: owner,
                } => {
                    let what = || "the promise file".to_string();
                    identity.check(what, owner.cluster, owner.node)?;
                    if owner.epoch > identity.epoch {
                        return Err(identity.later_epoch(what(), owner.epoch));
                    }
                    // What was promised in an earlier epoch binds nobody in this one.
                    let promise = (owner.epoch == identity.epoch).then_some(promise);
                    if newest.as_ref().is_none_or(|(newest, _)| sequence > *newest) {
                        newest = Some((sequence, promise));
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
        let sequence = newest.as_ref().map_or(0, |(sequence, _)| *sequence);
        Ok((
            Self {
                sequence,
                whole: whole.filter(|_| bad > 0),
            },
            newest.and_then(|(_, promise)| promise),
            bad > 0,
        ))
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

    pub fn write<D: Disk>(
        &mut self,
        disk: &mut D,
        identity: &Identity,
        promise: &Bytes,
    ) -> Result<u64, JournalError<D::Error>> {
        if promise.len() > PROMISE_MAX {
            return Err(JournalError::PromiseTooLong(promise.len()));
        }
        self.sequence += 1;
        let bytes = encode(identity, self.sequence, promise);
        for slot in 0..2 {
            disk.write_promise(slot, &bytes)
                .map_err(JournalError::Disk)?;
        }
        Ok(2 * bytes.len() as u64)
    }
}
