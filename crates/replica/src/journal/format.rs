//! The bytes of a segment.

use super::JournalError;
use crate::{
    Bytes, ClusterId, DecodeError, EpochNumber, GroupId, Reader, ReplicaId, Slot, Wire, Writer,
};
use alloc::{format, string::String, vec::Vec};

/// Everything is written in multiples of this many bytes.
pub const BLOCK: usize = 4096;
/// The length of a record's header in bytes.
pub const RECORD_HEADER: usize = 48;
const MAGIC: u64 = u64::from_le_bytes(*b"QUINTETJ");
/// A segment of group 0 alone.
const VERSION_PLAIN: u32 = 1;
/// A segment of several groups.
const VERSION: u32 = 2;
const KIND_RECORD: u8 = 1;
/// The whole log of a group, as one record; those before it count no more.
const KIND_LOG: u8 = 2;

/// Whose journal it is. Stands in every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The replica.
    pub node: ReplicaId,
}

/// A group that the replica is in, and the epoch that new records of it belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEpoch {
    /// The group.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: EpochNumber,
}

/// The groups that a journal is read for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known<'a> {
    /// These, and those that it has left. Records of others are rejected.
    These {
        groups: &'a [GroupEpoch],
        left: &'a [GroupEpoch],
    },
    /// Any group, in any epoch, and nothing is kept.
    Any,
}

/// The place of a record or promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    At(usize),
    /// It is of an earlier epoch: its slots are other slots, and its promises no longer bind.
    Earlier,
    /// It is of a group that was left.
    Left,
}

impl Known<'_> {
    /// The place of a group.
    pub fn place<E>(
        &self,
        what: impl FnOnce() -> String,
        of: GroupEpoch,
    ) -> Result<Place, JournalError<E>> {
        let Self::These { groups, left } = self else {
            return Ok(Place::Earlier);
        };
        let same = |known: &&GroupEpoch| known.group == of.group;
        if (left.iter().filter(same)).any(|left| of.epoch <= left.epoch) {
            return Ok(Place::Left);
        }
        let Some(at) = groups.iter().position(|known| same(&known)) else {
            return Err(JournalError::UnknownGroup {
                what: what(),
                group: of.group,
            });
        };
        match groups[at].epoch {
            ours if of.epoch > ours => Err(JournalError::LaterEpoch {
                what: what(),
                theirs: of.epoch,
                ours,
            }),
            ours if of.epoch < ours => Ok(Place::Earlier),
            _ => Ok(Place::At(at)),
        }
    }
}

impl Identity {
    fn text(cluster: ClusterId, node: ReplicaId) -> String {
        format!("cluster {cluster}, replica {}", node.0)
    }

    /// Checks a file's owner.
    pub(super) fn check<E>(
        &self,
        what: impl FnOnce() -> String,
        theirs: Self,
    ) -> Result<(), JournalError<E>> {
        if theirs == *self {
            return Ok(());
        }
        Err(JournalError::Foreign {
            what: what(),
            theirs: Self::text(theirs.cluster, theirs.node),
            ours: Self::text(self.cluster, self.node),
        })
    }
}

/// The start of a segment. Takes one block, so that the first record's block never rewrites it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub owner: Identity,
    pub number: u64,
    /// It has records of group 0 alone, as programs that know no other groups read them.
    pub plain: bool,
    /// Sequence of its first record; all before it were durable when this was written.
    pub first: u64,
}

/// The kind of a segment's first block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFound {
    Valid(SegmentHeader),
    Newer(u32),
    /// Zeros, torn, or left from what the file was before.
    None,
}

impl SegmentHeader {
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut scratch = bytes::BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.u64(MAGIC);
        writer.u32(if self.plain { VERSION_PLAIN } else { VERSION });
        self.owner.encode(&mut writer);
        writer.u64(self.number);
        writer.u64(self.first);
        let fields = writer.finish().into_bytes();
        let start = out.len();
        out.extend_from_slice(&fields);
        out.extend_from_slice(&crate::checksum(&fields).to_le_bytes());
        out.resize(start + BLOCK, 0);
    }

    pub fn read(bytes: &Bytes) -> HeaderFound {
        match Self::try_read(bytes) {
            Ok(found) => found,
            Err(_) => HeaderFound::None,
        }
    }

    fn try_read(bytes: &Bytes) -> Result<HeaderFound, DecodeError> {
        if bytes.len() < BLOCK {
            // Cut short: there is no place where records could begin.
            return Ok(HeaderFound::None);
        }
        let mut reader = Reader::new(bytes.slice(..BLOCK));
        let whole = reader.remaining();
        if reader.u64("segment magic")? != MAGIC {
            return Ok(HeaderFound::None);
        }
        let version = reader.u32("segment format")?;
        let header = Self {
            owner: Identity::decode(&mut reader)?,
            number: reader.number("segment number")?,
            plain: version == VERSION_PLAIN,
            first: reader.number("first sequence")?,
        };
        let fields = whole - reader.remaining();
        let valid = reader.u32("checksum")? == crate::checksum(&bytes[..fields]);
        // Every later format keeps these fields and their checksum in their places, so that a
        // header that has gone bad is not taken for one of a newer format.
        Ok(match version {
            _ if !valid || version == 0 => HeaderFound::None,
            newer if newer > VERSION => HeaderFound::Newer(newer),
            _ => HeaderFound::Valid(header),
        })
    }

    pub const fn version() -> u32 {
        VERSION
    }
}

/// A record as it stands in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordView {
    pub sequence: u64,
    pub durable: u64,
    pub slot: Slot,
    pub of: GroupEpoch,
    /// The number of its group's record, see [`next_count`]; 0 where it was not counted.
    pub count: u32,
    pub payload: Bytes,
    /// The payload is a log, see [`unpack`].
    pub is_log: bool,
    /// Length with header and padding.
    pub length: usize,
}

/// The highest number of a group's record: the next one is 1 again.
pub(super) const COUNT_MAX: u32 = (1 << 24) - 1;

/// The number of a group's record after the one with this number.
pub(super) const fn next_count(count: u32) -> u32 {
    count % COUNT_MAX + 1
}

/// The length of a record with header and padding.
pub(super) const fn record_length(payload: usize) -> usize {
    (RECORD_HEADER + payload).next_multiple_of(8)
}

fn record_checksum(segment: u64, header: &[u8], payload: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&segment.to_le_bytes());
    digest.update(header);
    digest.update(payload);
    digest.finalize() as u32
}

/// Appends the header of a record of `payload`, which is to follow it, and then zeros up to
/// [`record_length`]. `counts`: its sequence, the durable one, and the number of the group's record;
/// `kind`: whether it is a log, see [`unpack`].
pub(super) fn append_record_header(
    out: &mut Vec<u8>,
    (segment, of): (u64, GroupEpoch),
    (sequence, durable, count): (u64, u64, u32),
    (slot, is_log): (Slot, bool),
    payload: &[u8],
) {
    let start = out.len();
    let length = u32::try_from(payload.len()).expect("records are far below 4 GiB");
    let kind = if is_log { KIND_LOG } else { KIND_RECORD };
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&durable.to_le_bytes());
    out.extend_from_slice(&slot.0.to_le_bytes());
    out.extend_from_slice(&of.epoch.0.to_le_bytes());
    out.extend_from_slice(&of.group.0.to_le_bytes());
    let [low, middle, high, _] = count.to_le_bytes();
    out.extend_from_slice(&[kind, low, middle, high]);
    let checksum = record_checksum(segment, &out[start + 8..start + RECORD_HEADER], payload);
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// The records of a group as the payload of one.
pub(super) fn pack(records: &[(Slot, Bytes)]) -> Bytes {
    let mut scratch = bytes::BytesMut::new();
    let mut writer = Writer::new(&mut scratch);
    for (slot, record) in records {
        writer.u64(slot.0);
        writer.slice(record);
    }
    writer.finish().into_bytes()
}

/// The records in the payload of one.
pub(super) fn unpack(payload: Bytes) -> Option<Vec<(Slot, Bytes)>> {
    let mut reader = Reader::new(payload);
    let mut records = Vec::new();
    while reader.remaining() > 0 {
        let slot = Slot(reader.u64("slot").ok()?);
        records.push((slot, reader.blob("record").ok()?));
    }
    Some(records)
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The sequence number that a record at `at` would have; for a quick look.
pub(super) fn sequence_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at + 8).map(u64::from_le_bytes)
}

/// The payload's length of the record at `at`, should there be one.
fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length = u32::from_le_bytes(field(bytes, at)?) as usize;
    let end = at.checked_add(RECORD_HEADER)?.checked_add(length)?;
    let [kind] = field(bytes, at + 44)?;
    (end <= bytes.len() && [KIND_RECORD, KIND_LOG].contains(&kind)).then_some(length)
}

/// Looks for records where there may be anything: computes checksums of a bounded number of bytes.
pub(super) struct Effort(usize);

impl Effort {
    /// This many times the bytes of a segment.
    const TIMES: usize = 16;

    pub const fn in_segment(bytes: &Bytes) -> Self {
        Self(bytes.len().saturating_mul(Self::TIMES))
    }

    /// As [`read_record`]; fails when too much has been tried.
    pub fn read(
        &mut self,
        bytes: &Bytes,
        segment: u64,
        at: usize,
    ) -> Result<Option<RecordView>, Spent> {
        let Some(length) = length_at(bytes, at) else {
            return Ok(None);
        };
        self.0 = self.0.checked_sub(RECORD_HEADER + length).ok_or(Spent)?;
        Ok(read_record(bytes, segment, at))
    }
}

/// Too much has been tried.
#[derive(Debug)]
pub(super) struct Spent;

/// The record at `at` if there is a whole, valid one.
pub(super) fn read_record(bytes: &Bytes, segment: u64, at: usize) -> Option<RecordView> {
    let length = length_at(bytes, at)?;
    let end = at + RECORD_HEADER + length;
    let payload = &bytes[at + RECORD_HEADER..end];
    let header = &bytes[at + 8..at + RECORD_HEADER];
    if u32::from_le_bytes(field(bytes, at + 4)?) != record_checksum(segment, header, payload) {
        return None;
    }
    Some(RecordView {
        sequence: u64::from_le_bytes(field(header, 0)?),
        durable: u64::from_le_bytes(field(header, 8)?),
        slot: Slot(u64::from_le_bytes(field(header, 16)?)),
        of: GroupEpoch {
            group: GroupId(u32::from_le_bytes(field(header, 32)?)),
            epoch: EpochNumber(u64::from_le_bytes(field(header, 24)?)),
        },
        count: u32::from_le_bytes([header[37], header[38], header[39], 0]),
        is_log: header[36] == KIND_LOG,
        payload: bytes.slice(at + RECORD_HEADER..end),
        length: record_length(length),
    })
}

impl Wire for Identity {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u128(self.cluster.0);
        writer.u16(self.node.0);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            cluster: ClusterId(reader.u128("cluster")?),
            node: ReplicaId(reader.u16("node")?),
        })
    }
}

impl Wire for GroupEpoch {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u32(self.group.0);
        writer.u64(self.epoch.0);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            group: GroupId(reader.u32("group")?),
            epoch: EpochNumber(reader.u64("epoch")?),
        })
    }
}
