//! The marks: how far the journal is known to be durable, told outside of it.
//!
//! ```text
//!   commit ──► mark {durable 17, first segment 4}      alternating between two slots, not synced:
//!   trim, rest ──► the same, synced                    an old mark proves less, but nothing false
//! ```
//!
//! A record proves that those before it were durable; nothing in the journal proves the last one.
//! Without a mark its damage looks like a torn write, and cutting it off would forget a vote.

use super::{Disk, GroupEpoch, Identity, JournalError};
use crate::{Bytes, DecodeError, Reader, Wire, Writer};
use alloc::string::ToString;
use bytes::BytesMut;

/// The length of a mark's slot in bytes.
pub const MARK_SLOT: usize = 512;
const MAGIC: u64 = u64::from_le_bytes(*b"QUINTETM");
const VERSION: u32 = 1;

/// The contents of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Ascends from one mark to the next.
    pub number: u64,
    /// Every record up to this sequence was durable.
    pub durable: u64,
    /// The oldest segment that must still be there.
    pub first: u64,
    /// Nothing of group 0 was ever trimmed: its records go back to the replica's first start.
    pub complete: bool,
    /// The first of the groups; of no meaning.
    pub group: GroupEpoch,
}

/// The combined contents of both slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marks {
    /// This storage keeps none.
    NotKept,
    /// None was written yet.
    None,
    Newest(Mark),
    /// They cannot be read: nothing may be taken for the torn end of an unfinished write.
    Lost,
}

impl Mark {
    /// Whether a segment is missing before this one, the oldest that is there, whose header says that
    /// its first record is this one.
    pub fn misses_before(&self, segment: u64, first: Option<u64>) -> bool {
        // The mark may name a segment that was never made: then there are no records yet.
        segment > self.first && (self.durable > 0 || first.is_none_or(|first| first > 1))
    }

    fn encode(&self, identity: &Identity) -> Bytes {
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.u64(MAGIC);
        writer.u32(VERSION);
        identity.encode(&mut writer);
        self.group.encode(&mut writer);
        writer.u64(self.number);
        writer.u64(self.durable);
        writer.u64(self.first);
        writer.bool(self.complete);
        let fields = writer.finish().into_bytes();
        let mut out = BytesMut::with_capacity(MARK_SLOT);
        out.extend_from_slice(&fields);
        out.extend_from_slice(&crate::checksum(&fields).to_le_bytes());
        out.resize(MARK_SLOT, 0);
        out.freeze()
    }

    fn decode<E>(bytes: &Bytes, identity: &Identity) -> Result<Option<Self>, JournalError<E>> {
        let read = || -> Result<Result<(Self, Identity), u32>, DecodeError> {
            let mut reader = Reader::new(bytes.clone());
            if reader.u64("mark magic")? != MAGIC {
                return Err(DecodeError::Bad("mark magic"));
            }
            let version = reader.u32("mark format")?;
            if version > VERSION {
                return Ok(Err(version));
            }
            let owner = Identity::decode(&mut reader)?;
            let group = GroupEpoch::decode(&mut reader)?;
            let mark = Self {
                number: reader.number("mark number")?,
                durable: reader.number("durable")?,
                first: reader.number("first segment")?,
                complete: reader.bool("complete")?,
                group,
            };
            let fields = bytes.len() - reader.remaining();
            if version == 0 || reader.u32("checksum")? != crate::checksum(&bytes[..fields]) {
                return Err(DecodeError::Bad("mark checksum"));
            }
            Ok(Ok((mark, owner)))
        };
        let what = || "the mark file".to_string();
        match read() {
            Ok(Ok((mark, owner))) => {
                identity.check(what, owner)?;
                Ok(Some(mark))
            }
            Ok(Err(theirs)) => Err(JournalError::Newer {
                what: what(),
                theirs,
                ours: VERSION,
            }),
            Err(_) => Ok(None),
        }
    }

    pub fn write<D: Disk>(
        &self,
        disk: &mut D,
        identity: &Identity,
        durable: bool,
    ) -> Result<(), JournalError<D::Error>> {
        let slot = (self.number % 2) as usize;
        disk.write_mark(slot, &self.encode(identity), durable)
            .map_err(JournalError::Disk)
    }
}

impl Marks {
    pub fn read<D: Disk>(
        disk: &mut D,
        identity: &Identity,
    ) -> Result<Self, JournalError<D::Error>> {
        Self::read_both(disk, identity).map(|(marks, _)| marks)
    }

    /// The same; also says whether a slot cannot be read, which may have been the newest one.
    pub fn read_both<D: Disk>(
        disk: &mut D,
        identity: &Identity,
    ) -> Result<(Self, bool), JournalError<D::Error>> {
        let mut newest: Option<Mark> = None;
        let (mut bad, mut empty) = (false, false);
        for slot in 0..2 {
            let Some(bytes) = disk.read_mark(slot).map_err(JournalError::Disk)? else {
                return Ok((Self::NotKept, false));
            };
            if bytes.iter().all(|byte| *byte == 0) {
                empty = true;
                continue;
            }
            match Mark::decode(&bytes, identity)? {
                Some(mark) if newest.is_none_or(|newest| newest.number < mark.number) => {
                    newest = Some(mark);
                }
                Some(_) => {}
                None => bad = true,
            }
        }
        // From the second mark on both slots have one.
        bad |= empty && newest.is_some_and(|newest| newest.number >= 2);
        let marks = match newest {
            Some(mark) => Self::Newest(mark),
            None if bad => Self::Lost,
            None => Self::None,
        };
        Ok((marks, bad))
    }

    /// The number of the newest mark that could be read.
    pub const fn number(&self) -> u64 {
        match self {
            Self::Newest(mark) => mark.number,
            Self::NotKept | Self::None | Self::Lost => 0,
        }
    }
}
