//! The envelope around everything that crosses between nodes, and how clients read it.
//!
//! ```text
//!   kind u8 | version u8 | zero u16 | group u32 | epoch u64 | body
//! ```

use super::*;

pub(super) fn envelope(kind: FrameKind, group: GroupId, epoch: EpochNumber) -> Bytes {
    let mut bytes = BytesMut::with_capacity(ENVELOPE);
    bytes.put_u8(kind as u8);
    bytes.put_u8(FRAME_VERSION);
    bytes.put_u16_le(0);
    bytes.put_u32_le(group.0);
    bytes.put_u64_le(epoch.0);
    bytes.freeze()
}

/// Reads a frame's kind, group and epoch.
pub(super) fn read_envelope(
    reader: &mut Reader,
) -> Result<(u8, GroupId, EpochNumber), DecodeError> {
    let kind = reader.u8("frame kind")?;
    if reader.u8("frame version")? != FRAME_VERSION {
        return Err(DecodeError::Bad("frame version"));
    }
    reader.u16("frame flags")?;
    let group = GroupId(reader.u32("group")?);
    Ok((kind, group, EpochNumber(reader.u64("epoch")?)))
}

/// A put as a frame, for transports that cannot write into a peer's table. Its ranges are applied
/// in their order, all of them before the replica does anything else.
#[must_use]
pub fn put_frame(group: GroupId, epoch: EpochNumber, ranges: Bytes) -> Frame {
    Frame::from(ranges).prefixed(envelope(FrameKind::Put, group, epoch))
}

/// The group of a frame, if it is one.
#[must_use]
pub fn frame_group(frame: &[u8]) -> Option<GroupId> {
    let bytes = frame.get(4..8)?.first_chunk()?;
    Some(GroupId(u32::from_le_bytes(*bytes)))
}

/// Reads a frame as a [`crate::Client`] gets it, and its epoch: the protocol's messages and replies,
/// and what a node tells of itself.
///
/// # Errors
/// When the bytes are malformed or are of a kind that clients do not get.
pub fn read_client_frame(frame: Bytes) -> Result<(EpochNumber, ClientFrame), DecodeError> {
    let mut reader = Reader::new(frame);
    let (kind, _, epoch) = read_envelope(&mut reader)?;
    if kind == FrameKind::Message as u8 {
        return Ok((epoch, ClientFrame::Message(reader.rest())));
    }
    if kind == FrameKind::Epoch as u8 {
        let word = EpochWord::decode_all(reader.rest())?;
        return Ok((epoch, ClientFrame::Epoch(word.into_descriptor())));
    }
    if kind == FrameKind::Quorum as u8 {
        let lost = reader.bool("quorum")?;
        return Ok((epoch, ClientFrame::Quorum { lost }));
    }
    if kind != FrameKind::Reply as u8 {
        return Err(DecodeError::Bad("frame kind"));
    }
    let batch = BatchId(reader.u64("batch")?);
    let (header, results) = (reader.blob("header")?, reader.blob("results")?);
    Ok((epoch, ClientFrame::Reply(batch, header, results)))
}

/// The same as a guest gets it, see [`guest_frame`]. A frame addressed to another guest, of an
/// earlier run of the process, is ignored.
pub(crate) fn read_guest_frame(
    id: FrontendId,
    frame: Bytes,
) -> Result<Option<(EpochNumber, ClientFrame)>, DecodeError> {
    let mut reader = Reader::new(frame.clone());
    let (kind, _, epoch) = read_envelope(&mut reader)?;
    let is_message = kind == FrameKind::ToFrontend as u8;
    if !is_message && kind != FrameKind::ReplyTo as u8 {
        return read_client_frame(frame).map(Some);
    }
    if FrontendId(reader.u64("frontend")?) != id {
        return Ok(None);
    }
    if is_message {
        return Ok(Some((epoch, ClientFrame::Message(reader.rest()))));
    }
    let batch = BatchId(reader.u64("batch")?);
    let (header, results) = (reader.blob("header")?, reader.blob("results")?);
    Ok(Some((epoch, ClientFrame::Reply(batch, header, results))))
}

/// A message of a [`crate::Client`] in the envelope that a node expects.
#[must_use]
pub fn client_frame(group: GroupId, epoch: EpochNumber, frame: Frame) -> Frame {
    frame.prefixed(envelope(FrameKind::Message, group, epoch))
}

/// The same from a client that is part of a replica's process, where the replica is no member of
/// the group: answers come back to the replica.
#[must_use]
pub fn guest_frame(group: GroupId, epoch: EpochNumber, id: FrontendId, frame: Frame) -> Frame {
    let mut bytes = BytesMut::with_capacity(ENVELOPE + 8);
    bytes.put_slice(&envelope(FrameKind::Request, group, epoch));
    bytes.put_u64_le(id.0);
    frame.prefixed(bytes.freeze())
}

/// See [`read_client_frame`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// A message of the protocol.
    Message(Bytes),
    /// A batch's header and results.
    Reply(BatchId, Bytes, Bytes),
    /// The public part of the descriptor of the epoch that the sender serves in.
    Epoch(Bytes),
    /// Whether the sender has lost its quorum.
    Quorum {
        /// It has.
        lost: bool,
    },
}
