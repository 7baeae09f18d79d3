//! The snapshot stream: chunks with checksums, written by the executor, read by what restores,
//! verifies or looks into a snapshot.

use super::{Seal, checksum, feed::Feed};
use crate::{
    ClusterId, CommandTime, DecodeError, EpochNumber, Executed, GroupId, Position, Reader,
    RestoreError, Wire, Writer,
};
use alloc::{boxed::Box, format, string::ToString};
use bytes::{Buf, Bytes, BytesMut};

/// The format in which the header carries the epoch's descriptor and the sessions are chunks of
/// their own.
const SNAPSHOT_MAGIC: u64 = u64::from_le_bytes(*b"QUINTSN2");
/// The format in which header and sessions are one chunk.
const SNAPSHOT_MAGIC_1: u64 = u64::from_le_bytes(*b"QUINTSN1");
/// No chunk of a snapshot stream is longer.
const CHUNK_MAX: usize = 1 << 30;
/// Chunks of sessions are no longer.
pub(super) const SESSIONS_CHUNK: usize = 1 << 20;
/// Set in the length of a chunk that holds batches executed after the state before it.
const FEED_FLAG: u32 = 1 << 31;
/// Before each chunk of a snapshot stand its length and its checksum.
pub(crate) const FRAME_HEAD: usize = 8;

/// The first chunk of a snapshot stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// Whose state it is.
    pub cluster: ClusterId,
    /// Which group's.
    pub group: GroupId,
    /// The epoch in which it was taken.
    pub epoch: EpochNumber,
    /// The position that it covers.
    pub executed: Executed,
    /// The log's clock there.
    pub time: CommandTime,
    /// The protocol's state to continue from there; only of use to the same protocol in the same
    /// epoch, and empty at the beginning of one (slot 0).
    pub summary: Bytes,
    /// The epoch's [`Descriptor`](crate::Descriptor), encoded; empty in a snapshot of the first
    /// format, which has no place for it.
    pub descriptor: Bytes,
    /// How many chunks of sessions follow; `None` in the first format, where they follow the
    /// header in its own chunk.
    pub session_chunks: Option<u32>,
    /// Which file this is of all that cover the same: two replicas write the same state down in
    /// other orders. 0 when it is not told.
    pub origin: u64,
    /// Where its epoch began.
    pub base: Executed,
    /// How its epoch has ended, if it has: the state is that of the end, however far the protocol
    /// has gone on.
    pub seal: Option<Box<Seal>>,
}

impl SnapshotHeader {
    /// Bytes of cluster, group, epoch, slot, position and time.
    const NUMBERS: usize = 16 + 4 + 8 + 8 + 8 + 8;

    fn encode_fields(&self, writer: &mut Writer<'_>) {
        writer.u128(self.cluster.0);
        writer.u32(self.group.0);
        writer.u64(self.epoch.0);
        writer.u64(self.executed.slot.0);
        writer.u64(self.executed.position.0);
        writer.u64(self.time.0);
        writer.slice(&self.summary);
    }

    fn decode_fields(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            cluster: ClusterId(reader.u128("cluster")?),
            group: GroupId(reader.u32("group")?),
            epoch: EpochNumber(reader.u64("epoch")?),
            executed: Executed {
                slot: reader.slot("slot")?,
                position: Position(reader.number("position")?),
            },
            time: CommandTime(reader.u64("time")?),
            summary: reader.blob("summary")?,
            descriptor: Bytes::new(),
            session_chunks: None,
            origin: 0,
            base: Executed::default(),
            seal: None,
        })
    }

    /// Reads how the epoch has ended whose state up to `executed` this is.
    fn decode_seal(
        fields: &mut Reader,
        executed: Executed,
    ) -> Result<Option<Box<Seal>>, DecodeError> {
        let successor = fields.blob("next epoch")?;
        if successor.is_empty() {
            return Ok(None);
        }
        // Earlier builds wrote such a state at its end alone.
        let mut base = executed;
        if fields.remaining() > 0 {
            base = Executed {
                slot: fields.slot("end")?,
                position: Position(fields.number("end")?),
            };
        }
        if base.slot > executed.slot || base.position != executed.position {
            return Err(DecodeError::Bad("end"));
        }
        Ok(Some(Box::new(Seal { base, successor })))
    }
}

impl Wire for SnapshotHeader {
    fn encode(&self, writer: &mut Writer<'_>) {
        let Some(chunks) = self.session_chunks else {
            writer.u64(SNAPSHOT_MAGIC_1);
            self.encode_fields(writer);
            return;
        };
        writer.u64(SNAPSHOT_MAGIC);
        // The numbers, three slices with their lengths, the count of chunks, origin and base.
        let successor = self.seal.as_ref().map_or(&[][..], |seal| &seal.successor);
        let slices = self.summary.len() + self.descriptor.len() + successor.len();
        let end = if self.seal.is_some() { 2 * 8 } else { 0 };
        let length = Self::NUMBERS + 3 * 4 + slices + 4 + 3 * 8 + end;
        writer.length(length);
        self.encode_fields(writer);
        writer.slice(&self.descriptor);
        writer.u32(chunks);
        writer.u64(self.origin);
        writer.u64(self.base.slot.0);
        writer.u64(self.base.position.0);
        writer.slice(successor);
        if let Some(seal) = &self.seal {
            writer.u64(seal.base.slot.0);
            writer.u64(seal.base.position.0);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        match reader.u64("snapshot format")? {
            SNAPSHOT_MAGIC_1 => Self::decode_fields(reader),
            SNAPSHOT_MAGIC => {
                // A later build may add fields behind these.
                let mut fields = Reader::new(reader.blob("snapshot header")?);
                let mut header = Self::decode_fields(&mut fields)?;
                header.descriptor = fields.blob("descriptor")?;
                header.session_chunks = Some(fields.u32("session chunks")?);
                // Earlier builds wrote none.
                if fields.remaining() > 0 {
                    header.origin = fields.u64("origin")?;
                }
                if fields.remaining() > 0 {
                    header.base = Executed {
                        slot: fields.slot("base")?,
                        position: Position(fields.number("base")?),
                    };
                    header.seal = Self::decode_seal(&mut fields, header.executed)?;
                }
                Ok(header)
            }
            _ => Err(DecodeError::Bad("snapshot format")),
        }
    }
}

/// Splits a snapshot stream into its chunks, checking each.
#[derive(Debug, Default)]
pub struct SnapshotReader {
    pending: BytesMut,
    header: Option<SnapshotHeader>,
    /// Chunks of sessions that are still to come.
    sessions_left: u32,
    sessions: BytesMut,
    ended: bool,
    /// Batches follow the state up to this slot; whether they may continue.
    fed: Option<(crate::Slot, bool)>,
    /// Sessions that came in the header's chunk.
    rest: Option<Reader>,
}

/// A whole chunk of a snapshot stream.
#[derive(Debug)]
pub enum SnapshotChunk {
    /// The first: the header.
    Header(SnapshotHeader),
    /// All sessions, from however many chunks.
    Sessions(Reader),
    /// Bytes of the state machine.
    State(Bytes),
    /// Batches executed after all of that; only in a snapshot that a peer gave.
    Feed(Feed),
    /// The stream is whole.
    End,
}

impl SnapshotReader {
    /// Appends bytes of the stream, cut anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The bytes so far are a stream from its beginning to its end, with nothing behind it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.ended && self.pending.is_empty()
    }

    /// A reader of what is left of a stream whose beginning has been read up to the end of a chunk of
    /// its state.
    pub(crate) fn within_state(header: SnapshotHeader) -> Self {
        Self {
            header: Some(header),
            ..Self::default()
        }
    }

    /// Bytes that are part of no chunk yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether batches follow the state.
    #[must_use]
    pub const fn is_fed(&self) -> bool {
        self.fed.is_some()
    }

    /// The next whole chunk, if the bytes so far hold one.
    ///
    /// # Errors
    /// When a checksum fails or the header is not one.
    pub fn next_chunk(&mut self) -> Result<Option<SnapshotChunk>, RestoreError> {
        if let Some(rest) = self.rest.take() {
            return Ok(Some(SnapshotChunk::Sessions(rest)));
        }
        loop {
            match self.next_piece()? {
                Some(Piece::Sessions) if self.sessions_left == 0 => {
                    let sessions = core::mem::take(&mut self.sessions).freeze();
                    return Ok(Some(SnapshotChunk::Sessions(Reader::new(sessions))));
                }
                Some(Piece::Sessions) => {}
                Some(Piece::Whole(chunk)) => return Ok(Some(chunk)),
                None => return Ok(None),
            }
        }
    }

    fn next_piece(&mut self) -> Result<Option<Piece>, RestoreError> {
        let Some(head) = self.pending.first_chunk::<8>() else {
            return Ok(None);
        };
        if self.ended {
            return Err(RestoreError("bytes after the end".to_string()));
        }
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let is_feed = length & FEED_FLAG != 0;
        let length = (length & !FEED_FLAG) as usize;
        let expected = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        if length > CHUNK_MAX {
            return Err(RestoreError(format!("a chunk of {length} bytes")));
        }
        if self.pending.len() < 8 + length {
            return Ok(None);
        }
        self.pending.advance(8);
        let chunk = self.pending.split_to(length).freeze();
        if checksum(&chunk) != expected {
            return Err(RestoreError("a chunk's checksum is wrong".to_string()));
        }
        if is_feed {
            return self.next_feed(chunk);
        }
        if self.fed.is_some_and(|(_, open)| open || !chunk.is_empty()) {
            return Err(RestoreError(
                "it ends within the batches behind its state".to_string(),
            ));
        }
        if chunk.is_empty() {
            self.ended = true;
            return match self.header {
                Some(_) if self.sessions_left > 0 => {
                    Err(RestoreError("it ends within its sessions".to_string()))
                }
                Some(_) => Ok(Some(Piece::Whole(SnapshotChunk::End))),
                None => Err(RestoreError("it ends before its header".to_string())),
            };
        }
        if self.sessions_left > 0 {
            self.sessions_left -= 1;
            self.sessions.extend_from_slice(&chunk);
            return Ok(Some(Piece::Sessions));
        }
        if self.header.is_some() {
            return Ok(Some(Piece::Whole(SnapshotChunk::State(chunk))));
        }
        let mut reader = Reader::new(chunk);
        let header = SnapshotHeader::decode(&mut reader)
            .map_err(|error| RestoreError(format!("its header: {error}")))?;
        match header.session_chunks {
            None => self.rest = Some(reader),
            Some(0) => return Err(RestoreError("it has no sessions".to_string())),
            Some(chunks) => self.sessions_left = chunks,
        }
        self.header = Some(header.clone());
        Ok(Some(Piece::Whole(SnapshotChunk::Header(header))))
    }

    fn next_feed(&mut self, chunk: Bytes) -> Result<Option<Piece>, RestoreError> {
        let feed = Feed::decode_all(chunk)
            .map_err(|error| RestoreError(format!("batches behind its state: {error}")))?;
        let (covered, open) = match (self.fed, &self.header) {
            (Some(fed), _) => fed,
            (None, Some(header)) => (header.executed.slot, self.sessions_left == 0),
            (None, None) => (crate::Slot(0), false),
        };
        if !open || feed.after != covered {
            return Err(RestoreError(
                "batches behind its state that do not follow it".to_string(),
            ));
        }
        self.fed = Some((feed.upto, feed.end.is_none()));
        Ok(Some(Piece::Whole(SnapshotChunk::Feed(feed))))
    }
}

/// Finds out how much of an unfinished stream can be gone on with.
#[derive(Debug, Default)]
pub struct SnapshotScan {
    reader: SnapshotReader,
    fed: u64,
    header: Option<SnapshotHeader>,
    /// The end of the last chunk of the state.
    end: u64,
}

impl SnapshotScan {
    /// Appends bytes of the stream; false when no more of it is of use.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        self.reader.feed(bytes);
        self.fed += bytes.len() as u64;
        loop {
            match self.reader.next_chunk() {
                Ok(Some(SnapshotChunk::Header(header))) => self.header = Some(header),
                Ok(Some(SnapshotChunk::Sessions(_))) => {}
                Ok(Some(SnapshotChunk::State(_))) => {
                    self.end = self.fed - self.reader.pending() as u64;
                }
                Ok(None) => return true,
                Ok(Some(SnapshotChunk::Feed(_) | SnapshotChunk::End)) | Err(_) => return false,
            }
        }
    }

    /// The part of the state that can be used to continue, if there is any.
    #[must_use]
    pub fn left(self) -> Option<crate::SnapshotLeft> {
        let header = self.header.filter(|_| self.end > 0)?;
        Some(crate::SnapshotLeft {
            header,
            length: self.end,
        })
    }
}

/// The kind of a chunk of the stream.
enum Piece {
    /// A part of the sessions, kept until all of it is there.
    Sessions,
    Whole(SnapshotChunk),
}

/// The header of a snapshot that `read(offset)` gives piece by piece, an empty piece at its end;
/// none when it cannot be read.
#[must_use]
pub fn snapshot_header(mut read: impl FnMut(u64) -> Option<Bytes>) -> Option<SnapshotHeader> {
    let (mut reader, mut offset) = (SnapshotReader::default(), 0);
    loop {
        match reader.next_chunk().ok()? {
            Some(SnapshotChunk::Header(header)) => return Some(header),
            Some(_) => return None,
            None => {}
        }
        let bytes = read(offset).filter(|bytes| !bytes.is_empty())?;
        offset += bytes.len() as u64;
        reader.feed(&bytes);
    }
}

/// A restore in progress.
#[derive(Debug, Default)]
pub(super) struct Restoring {
    pub(super) reader: SnapshotReader,
    pub(super) header: Option<SnapshotHeader>,
    pub(super) offset: u64,
    /// The end of the last chunk of the state.
    pub(super) state_end: u64,
    /// The state is there, and what follows is being executed: where execution was before, which
    /// is what everybody is told until all has been executed.
    pub(super) before: Option<Before>,
    /// Batches of what follows that have been taken.
    pub(super) fed: Option<super::feed::FedPart>,
    /// It may lead here from the epoch before.
    pub(super) may_cross: bool,
    /// It does.
    pub(super) crossing: Option<Box<super::restore::Crossing>>,
}

impl Restoring {
    /// Whether nothing is being restored.
    pub(super) const fn is_idle(&self) -> bool {
        self.offset == 0 && self.header.is_none() && self.before.is_none()
    }
}

/// Where execution was before a restore.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) executed: Executed,
    pub(super) sealed: Option<alloc::boxed::Box<super::Sealed>>,
}

/// A chunk of a snapshot stream around `bytes`.
///
/// # Panics
/// When there are 4 GiB or more.
#[must_use]
pub fn framed(bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(bytes.len() + FRAME_HEAD);
    out.extend_from_slice(&frame_head(bytes));
    out.extend_from_slice(bytes);
    out.freeze()
}

/// A part of a feed as a chunk of a snapshot stream.
pub(crate) fn framed_feed(feed: &Feed) -> Bytes {
    let bytes = feed.encode_to_bytes();
    let mut head = frame_head(&bytes);
    head[3] |= (FEED_FLAG >> 24) as u8;
    let mut out = BytesMut::with_capacity(bytes.len() + FRAME_HEAD);
    out.extend_from_slice(&head);
    out.extend_from_slice(&bytes);
    out.freeze()
}

/// The length of a chunk and its checksum.
pub(super) fn frame_head(chunk: &[u8]) -> [u8; FRAME_HEAD] {
    let length = u32::try_from(chunk.len()).expect("chunks are far below 4 GiB");
    let mut head = [0; FRAME_HEAD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..].copy_from_slice(&checksum(chunk).to_le_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    #[test]
    fn header_of_ended_epoch_reads_back_and_bad_end_is_rejected() {
        let at = |slot, position| Executed {
            slot: Slot(slot),
            position: Position(position),
        };
        let header = |base| SnapshotHeader {
            cluster: ClusterId(1),
            group: GroupId(0),
            epoch: EpochNumber(1),
            executed: at(9, 4),
            time: CommandTime(5),
            summary: Bytes::from_static(b"sum"),
            descriptor: Bytes::from_static(b"this"),
            session_chunks: Some(1),
            origin: 3,
            base: Executed::default(),
            seal: Some(Box::new(Seal {
                base,
                successor: Bytes::from_static(b"next"),
            })),
        };
        let (ours, last) = (header(at(7, 4)), header(at(9, 4)));
        let read = SnapshotHeader::decode_all(ours.encode_to_bytes());
        assert_eq!(read, Ok(ours));
        for base in [at(10, 4), at(7, 3)] {
            let read = SnapshotHeader::decode_all(header(base).encode_to_bytes());
            assert!(read.is_err(), "{base:?}");
        }
        // As builds wrote it that saved nothing behind an end.
        let mut bytes = last.encode_to_bytes().to_vec();
        bytes.truncate(bytes.len() - 16);
        let length = bytes.len() as u32 - 12;
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        assert_eq!(SnapshotHeader::decode_all(bytes.into()), Ok(last));
    }
}
