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

/// A put as a frame, for transports that cannot write into a peer's table. Its ranges are applied
/// in their order, all of them before the replica does anything else.
#[must_use]
pub fn put_frame(group: GroupId, epoch: EpochNumber, ranges: Bytes) -> Frame {
    Frame::from(ranges).prefixed(envelope(FrameKind::Put, group, epoch))
}

/// Reads a frame as a [`crate::Client`] gets it: the protocol's messages and replies.
///
/// # Errors
/// When the bytes make no sense or are of a kind that clients do not get.
pub fn read_client_frame(frame: Bytes) -> Result<ClientFrame, DecodeError> {
    let mut reader = Reader::new(frame);
    let kind = reader.u8("frame kind")?;
    if reader.u8("frame version")? != FRAME_VERSION {
        return Err(DecodeError::Bad("frame version"));
    }
    reader.u16("frame flags")?;
    reader.u32("group")?;
    reader.u64("epoch")?;
    if kind == FrameKind::Message as u8 {
        return Ok(ClientFrame::Message(reader.rest()));
    }
    if kind != FrameKind::Reply as u8 {
        return Err(DecodeError::Bad("frame kind"));
    }
    let batch = BatchId(reader.u64("batch")?);
    Ok(ClientFrame::Reply(
        batch,
        reader.blob("header")?,
        reader.blob("results")?,
    ))
}

/// A message of a [`crate::Client`] in the envelope that a node expects.
#[must_use]
pub fn client_frame(group: GroupId, epoch: EpochNumber, frame: Frame) -> Frame {
    frame.prefixed(envelope(FrameKind::Message, group, epoch))
}

/// See [`read_client_frame`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// A message of the protocol.
    Message(Bytes),
    /// A batch's header and results.
    Reply(BatchId, Bytes, Bytes),
}
