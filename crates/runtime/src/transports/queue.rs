//! Frames on their way out of and into one connection.
//!
//! ```text
//!   frame = length u32 | crc32c u32 (of lane, kind and payload) | lane u8 | kind u8 | zero u16
//!         | payload
//! ```
//!
//! Kind 0 is the node's; kind 1 is the transport's own affair, never handed on. Kind 2 is the node's,
//! too, and comes only through shared memory: it tells where the frame is.

use crate::system::{growth, read_into};
use bytes::{Buf, Bytes, BytesMut};
use quintet_replica::{Frame, Lane};
use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    os::fd::AsFd,
};

pub(super) const HEADER: usize = 12;
/// No frame is longer.
pub(crate) const FRAME_MAX: usize = quintet_replica::limits::FRAME_BYTES_MAX;
/// Longer frames are read into memory of their own.
const LARGE: usize = 64 << 10;
/// Memory reserved for a large frame before its bytes have come.
const LARGE_AHEAD: usize = 1 << 20;
/// The same for frames from memory, whose sender is a process of this machine.
pub(super) const MEMORY_AHEAD: usize = 16 << 20;
const READ: usize = 64 << 10;
/// Shorter parts are copied next to each other, longer ones are shared.
const COPIED_MAX: usize = 4096;
const SLICES: usize = 64;

/// Whose a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Node = 0,
    Own = 1,
    /// Through memory only: the node's, told by where its large parts are.
    Lent = 2,
}

/// The beginning of a frame's checksum.
const fn salt(lane: Lane, kind: Kind) -> u8 {
    lane as u8 | (kind as u8) << 7
}

/// The header of a frame; computed once however many peers it goes to.
pub(super) fn frame_header(lane: Lane, kind: Kind, frame: &Frame) -> [u8; HEADER] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&[salt(lane, kind)]);
    for part in frame.parts() {
        digest.update(part);
    }
    header_with(lane, kind, frame.len(), digest.finalize() as u32)
}

/// The header of a frame that stays in this machine's memory: no checksum is looked at there.
pub(super) fn memory_header(lane: Lane, kind: Kind, length: usize) -> [u8; HEADER] {
    header_with(lane, kind, length, 0)
}

fn header_with(lane: Lane, kind: Kind, length: usize, checksum: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let length = u32::try_from(length).expect("frames are far below 4 GiB");
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..8].copy_from_slice(&checksum.to_le_bytes());
    header[8] = lane as u8;
    header[9] = kind as u8;
    header
}

/// The bytes that wait to be written.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    parts: VecDeque<Bytes>,
    tail: BytesMut,
    bytes: usize,
}

impl Outgoing {
    pub const fn len(&self) -> usize {
        self.bytes
    }

    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn push_slice(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    pub fn push_raw(&mut self, bytes: &[u8]) {
        self.push_slice(bytes);
    }

    /// A frame, or what follows of one whose header has been pushed with its first part.
    pub fn push<'a>(&mut self, header: impl Into<Option<&'a [u8; HEADER]>>, frame: &Frame) {
        if let Some(header) = header.into() {
            self.push_slice(header);
        }
        for part in frame.parts() {
            if part.len() <= COPIED_MAX {
                self.push_slice(part);
            } else {
                if !self.tail.is_empty() {
                    self.parts.push_back(self.tail.split().freeze());
                }
                self.parts.push_back(part.clone());
                self.bytes += part.len();
            }
        }
    }

    /// Writes as much as `stream` takes: how much, and whether it would take more.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn write(&mut self, stream: &mut impl Write) -> io::Result<(usize, bool)> {
        let mut written = 0;
        while self.bytes > 0 {
            let result = if self.parts.is_empty() {
                stream.write(&self.tail)
            } else {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let mut used = 0;
                let all = self
                    .parts
                    .iter()
                    .map(|part| &part[..])
                    .chain([&self.tail[..]]);
                for (slice, part) in slices.iter_mut().zip(all) {
                    *slice = IoSlice::new(part);
                    used += 1;
                }
                stream.write_vectored(&slices[..used])
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    written += count;
                    self.advance(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((written, false));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok((written, true))
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while let Some(part) = self.parts.front_mut() {
            if count < part.len() {
                part.advance(count);
                return;
            }
            count -= part.len();
            self.parts.pop_front();
        }
        self.tail.advance(count);
    }
}

/// Why a connection's bytes are not frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameBroken {
    #[error("a frame of {0} bytes is longer than any can be")]
    Length(usize),
    #[error("a frame's checksum is wrong")]
    Checksum,
    #[error("a frame of lane {0} on another lane's connection")]
    Lane(u8),
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
}

#[derive(Debug)]
struct Large {
    bytes: BytesMut,
    length: usize,
    checksum: u32,
}

/// The bytes that have been read and not yet been handed on.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    bytes: BytesMut,
    large: Option<Large>,
    /// From memory of this machine: without checksums.
    memory: bool,
}

/// The result of one read.
pub(super) enum Got {
    /// This many bytes; true when more may be there.
    Bytes(usize, bool),
    /// Nothing for now.
    Nothing,
    /// The other side has closed.
    End,
}

impl Incoming {
    /// For frames with [`memory_header`].
    pub fn of_memory() -> Self {
        Self {
            memory: true,
            ..Self::default()
        }
    }

    pub fn peek(&self) -> &[u8] {
        &self.bytes
    }

    pub fn consume(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    /// Reads once.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn read(&mut self, stream: impl AsFd) -> io::Result<Got> {
        let (buffer, length) = self.wants();
        match read_into(stream, buffer, length) {
            Ok(0) => Ok(Got::End),
            Ok(count) => Ok(Got::Bytes(count, count == length)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Got::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Got::Bytes(0, true)),
            Err(error) => Err(error),
        }
    }

    /// A large frame has begun to come. The transport's own are never large.
    pub const fn is_amid_large(&self) -> bool {
        self.large.is_some()
    }

    /// Where the next bytes go, and how many at most.
    pub fn wants(&mut self) -> (&mut BytesMut, usize) {
        match &mut self.large {
            Some(large) => {
                let (come, capacity) = (large.bytes.len(), large.bytes.capacity());
                let missing = large.length - come;
                // In few steps, and never more than the frame takes.
                if missing > 0 && capacity == come {
                    large.bytes.reserve(growth(come, missing, LARGE_AHEAD));
                }
                let spare = large.bytes.capacity() - come;
                (&mut large.bytes, missing.min(spare).min(LARGE_AHEAD))
            }
            None => {
                let spare = self.bytes.capacity() - self.bytes.len();
                // The rest of a buffer whose front is in use elsewhere is still good.
                (
                    &mut self.bytes,
                    if spare >= COPIED_MAX {
                        spare.min(READ)
                    } else {
                        READ
                    },
                )
            }
        }
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// When the bytes cannot be frames; the connection is useless then.
    pub fn next(&mut self, lane: Lane) -> Result<Option<(Kind, Bytes)>, FrameBroken> {
        if let Some(large) = &self.large {
            if large.bytes.len() < large.length {
                return Ok(None);
            }
            let Some(large) = self.large.take() else {
                return Ok(None);
            };
            let payload = large.bytes.freeze();
            return (self.check(lane, Kind::Node, large.checksum, payload)).map(Some);
        }
        let Some(header) = self.bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let checksum = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if length > FRAME_MAX {
            return Err(FrameBroken::Length(length));
        }
        if header[8] != lane as u8 {
            return Err(FrameBroken::Lane(header[8]));
        }
        let kind = match header[9] {
            0 => Kind::Node,
            1 if length < LARGE => Kind::Own,
            2 if length < LARGE && self.memory => Kind::Lent,
            other => return Err(FrameBroken::Kind(other)),
        };
        if self.bytes.len() - HEADER >= length {
            self.bytes.advance(HEADER);
            let payload = self.bytes.split_to(length).freeze();
            return self.check(lane, kind, checksum, payload).map(Some);
        }
        if length >= LARGE {
            self.bytes.advance(HEADER);
            let ahead = if self.memory {
                MEMORY_AHEAD
            } else {
                LARGE_AHEAD
            };
            let mut bytes = BytesMut::with_capacity(length.min(ahead));
            bytes.extend_from_slice(&self.bytes.split());
            self.large = Some(Large {
                bytes,
                length,
                checksum,
            });
        }
        Ok(None)
    }

    fn check(
        &self,
        lane: Lane,
        kind: Kind,
        expected: u32,
        payload: Bytes,
    ) -> Result<(Kind, Bytes), FrameBroken> {
        if self.memory {
            return Ok((kind, payload));
        }
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&[salt(lane, kind)]);
        digest.update(&payload);
        if digest.finalize() as u32 == expected {
            Ok((kind, payload))
        } else {
            Err(FrameBroken::Checksum)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Takes a few bytes at a time.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1);
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn frames() -> Vec<Frame> {
        [0, 1, 11, 5000, 70_000, 3_000_000, 40]
            .iter()
            .map(|length| {
                let body: Vec<u8> = (0..*length).map(|i: usize| (i * 7) as u8).collect();
                Frame::from(Bytes::from(body)).prefixed(Bytes::from_static(b"head"))
            })
            .collect()
    }

    fn sent() -> Vec<u8> {
        let mut out = Outgoing::default();
        for frame in frames() {
            out.push(&frame_header(Lane::Bulk, Kind::Node, &frame), &frame);
        }
        let mut narrow = Narrow(Vec::new(), 1013);
        let expected = out.len();
        assert_eq!(out.write(&mut narrow).expect("writes"), (expected, true));
        assert!(out.is_empty());
        narrow.0
    }

    #[test]
    fn frames_arrive_as_they_were_sent_however_they_are_cut() {
        let bytes = sent();
        let (mut writer, reader) = UnixStream::pair().expect("a pair");
        reader.set_nonblocking(true).expect("non-blocking");
        let mut incoming = Incoming::default();
        let mut got = Vec::new();
        for chunk in bytes.chunks(30_011) {
            writer.write_all(chunk).expect("writes");
            while let Got::Bytes(..) = incoming.read(&reader).expect("reads") {
                while let Some((kind, frame)) = incoming.next(Lane::Bulk).expect("frames") {
                    assert_eq!(kind, Kind::Node);
                    got.push(frame);
                }
            }
        }
        let expected: Vec<Bytes> = frames().into_iter().map(Frame::into_bytes).collect();
        assert!(got == expected);
    }

    #[test]
    fn memory_of_a_large_frame_is_no_more_than_it_takes() {
        let (mut writer, reader) = UnixStream::pair().expect("a pair");
        reader.set_nonblocking(true).expect("non-blocking");
        let frame = Frame::from(Bytes::from(vec![7; 5_000_000]));
        let mut bytes = frame_header(Lane::Bulk, Kind::Node, &frame).to_vec();
        bytes.extend_from_slice(&frame.clone().into_bytes());
        let mut incoming = Incoming::default();
        let mut capacities = Vec::new();
        let mut got = None;
        for chunk in bytes.chunks(30_011) {
            writer.write_all(chunk).expect("writes");
            while let Got::Bytes(..) = incoming.read(&reader).expect("reads") {
                got = got.or(incoming.next(Lane::Bulk).expect("frames"));
                capacities.extend(incoming.large.as_ref().map(|it| it.bytes.capacity()));
            }
        }
        assert!(got.is_some_and(|(_, payload)| payload.len() == frame.len()));
        capacities.dedup();
        assert!(capacities.len() <= 3, "{capacities:?}");
        assert_eq!(capacities.last(), Some(&frame.len()));
    }

    #[test]
    fn damaged_frames_are_noticed() {
        let bytes = sent();
        for (at, error) in [
            (3, FrameBroken::Length(0x4000_0004)),
            (5, FrameBroken::Checksum),
            (8, FrameBroken::Lane(0x41)),
            (9, FrameBroken::Kind(0x40)),
            (13, FrameBroken::Checksum),
        ] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            let mut incoming = Incoming {
                bytes: BytesMut::from(&damaged[..1000]),
                ..Incoming::default()
            };
            assert_eq!(incoming.next(Lane::Bulk), Err(error));
        }
    }
}
