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
const VERSION: u32 = 1;
const KIND_RECORD: u8 = 1;

/// Whose journal it is. Stands in every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster: ClusterId,
    /// The replica.
    pub node: ReplicaId,
    /// The group.
    pub group: GroupId,
    /// The epoch that new records belong to.
    pub epoch: EpochNumber,
}

impl Identity {
    fn text(cluster: ClusterId, node: ReplicaId) -> String {
        format!("cluster {cluster}, replica {}", node.0)
    }

    pub(super) const fn later_epoch<E>(
        &self,
        what: String,
        theirs: EpochNumber,
    ) -> JournalError<E> {
        JournalError::LaterEpoch {
            what,
            theirs,
            ours: self.epoch,
        }
    }

    /// Checks a file's owner.
    pub(super) fn check<E>(
        &self,
        what: impl FnOnce() -> String,
        cluster: ClusterId,
        node: ReplicaId,
    ) -> Result<(), JournalError<E>> {
        if (cluster, node) == (self.cluster, self.node) {
            return Ok(());
        }
        Err(JournalError::Foreign {
            what: what(),
            theirs: Self::text(cluster, node),
            ours: Self::text(self.cluster, self.node),
        })
    }
}

/// The start of a segment. Takes one block, so that the first record's block never rewrites it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub cluster: ClusterId,
    pub node: ReplicaId,
    pub number: u64,
    /// Sequence of its first record; all before it were durable when this was written.
    pub first: u64,
}

/// What the first block of a segment turned out to be.
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
        writer.u32(VERSION);
        writer.u128(self.cluster.0);
        writer.u16(self.node.0);
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
            cluster: ClusterId(reader.u128("cluster")?),
            node: ReplicaId(reader.u16("node")?),
            number: reader.number("segment number")?,
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
    pub epoch: EpochNumber,
    pub payload: Bytes,
    /// Length with header and padding.
    pub length: usize,
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
/// [`record_length`].
pub(super) fn append_record_header(
    out: &mut Vec<u8>,
    segment: u64,
    identity: &Identity,
    (sequence, durable): (u64, u64),
    slot: Slot,
    payload: &[u8],
) {
    let start = out.len();
    let length = u32::try_from(payload.len()).expect("records are far below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&durable.to_le_bytes());
    out.extend_from_slice(&slot.0.to_le_bytes());
    out.extend_from_slice(&identity.epoch.0.to_le_bytes());
    out.extend_from_slice(&identity.group.0.to_le_bytes());
    out.extend_from_slice(&[KIND_RECORD, 0, 0, 0]);
    let checksum = record_checksum(segment, &out[start + 8..start + RECORD_HEADER], payload);
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The sequence number that a record at `at` would have; for a quick look.
pub(super) fn sequence_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at + 8).map(u64::from_le_bytes)
}

/// The record at `at` if there is a whole, valid one.
pub(super) fn read_record(bytes: &Bytes, segment: u64, at: usize) -> Option<RecordView> {
    let length = u32::from_le_bytes(field(bytes, at)?) as usize;
    let end = at.checked_add(RECORD_HEADER)?.checked_add(length)?;
    let payload = bytes.get(at + RECORD_HEADER..end)?;
    let header = &bytes[at + 8..at + RECORD_HEADER];
    if header[36] != KIND_RECORD
        || u32::from_le_bytes(field(bytes, at + 4)?) != record_checksum(segment, header, payload)
    {
        return None;
    }
    Some(RecordView {
        sequence: u64::from_le_bytes(field(header, 0)?),
        durable: u64::from_le_bytes(field(header, 8)?),
        slot: Slot(u64::from_le_bytes(field(header, 16)?)),
        epoch: EpochNumber(u64::from_le_bytes(field(header, 24)?)),
        payload: bytes.slice(at + RECORD_HEADER..end),
        length: record_length(length),
    })
}

impl Wire for Identity {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u128(self.cluster.0);
        writer.u16(self.node.0);
        writer.u32(self.group.0);
        writer.u64(self.epoch.0);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            cluster: ClusterId(reader.u128("cluster")?),
            node: ReplicaId(reader.u16("node")?),
            group: GroupId(reader.u32("group")?),
            epoch: EpochNumber(reader.u64("epoch")?),
        })
    }
}
