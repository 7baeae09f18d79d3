//! Bytes on the wire and on disk: explicit little-endian fields, shared payloads.
//!
//! ```text
//!   Writer ── u8 u32 u64 … ──►  head ┐
//!          ── blob(≥ 4 KiB) ──► part ├─► Frame: a rope of reference-counted Bytes
//!          ── u32 … ──────────► head ┘
//!   Reader ◄── one contiguous Bytes; blobs come out as slices of it, not as copies
//! ```

mod table;

pub use table::*;

use crate::{ReplicaId, ReplicaSet, Slot};
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};
use core::ops::Range;
use smallvec::SmallVec;

/// Why bytes could not be understood. The text names the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end before the field does.
    #[error("bytes end inside {0}")]
    Short(&'static str),
    /// The field holds a value that it must not hold.
    #[error("bad value of {0}")]
    Bad(&'static str),
    /// More bytes follow than the message has.
    #[error("{0} bytes after the end")]
    Trailing(usize),
}

/// Something with one encoding, defined by us and stable within a format version.
pub trait Wire: Sized {
    /// The least number of bytes that it takes, for lists of it.
    const SIZE_MIN: usize = 1;
    /// Appends the encoding.
    fn encode(&self, writer: &mut Writer<'_>);
    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// On any bytes that `encode` could not have written. Never panics.
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError>;

    /// Reads a value that must fill `bytes` exactly.
    ///
    /// # Errors
    /// As [`Self::decode`], and [`DecodeError::Trailing`].
    fn decode_all(bytes: Bytes) -> Result<Self, DecodeError> {
        Reader::new(bytes).all()
    }

    /// The same within an epoch of this many members: replicas that are not members, and lists with
    /// one element per member of another length, are refused wherever they stand in the value.
    ///
    /// # Errors
    /// As [`Self::decode_all`].
    #[inline]
    fn decode_within(bytes: Bytes, members: usize) -> Result<Self, DecodeError> {
        Reader::within(bytes, members).all()
    }

    /// The encoding as one contiguous buffer; for cold paths and tests.
    fn encode_to_bytes(&self) -> Bytes {
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        self.encode(&mut writer);
        writer.finish().into_bytes()
    }

    /// The encoding with its large payloads shared.
    fn encode_to_frame(&self) -> Frame {
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        self.encode(&mut writer);
        writer.finish()
    }
}

impl Wire for () {
    fn encode(&self, _: &mut Writer<'_>) {}
    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// A message's bytes as a rope: small fields and shared payloads in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    parts: SmallVec<[Bytes; 3]>,
}

/// As its bytes, however they lie in parts.
impl core::hash::Hash for Frame {
    fn hash<H: core::hash::Hasher>(&self, hasher: &mut H) {
        self.len().hash(hasher);
        self.parts.iter().for_each(|part| hasher.write(part));
    }
}

impl Frame {
    /// The parts in order; none is empty.
    #[must_use]
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Total length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The same frame with one more part in front.
    #[must_use]
    pub fn prefixed(mut self, part: Bytes) -> Self {
        self.parts.insert(0, part);
        self
    }

    /// A piece of it as one contiguous buffer; copies only what lies in more than one part.
    ///
    /// # Panics
    /// When it ends before the piece does.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(range.end <= self.len(), "a piece of the frame");
        let mut pieces = Self::default();
        let mut begins = 0;
        for part in &self.parts {
            let ends = begins + part.len();
            let (from, to) = (range.start.max(begins), range.end.min(ends));
            if from < to {
                pieces.parts.push(part.slice(from - begins..to - begins));
            }
            begins = ends;
        }
        pieces.into_bytes()
    }

    /// One contiguous buffer; copies only when there is more than one part.
    #[must_use]
    pub fn into_bytes(mut self) -> Bytes {
        if self.parts.len() <= 1 {
            return self.parts.pop().unwrap_or_default();
        }
        let mut all = BytesMut::with_capacity(self.len());
        for part in &self.parts {
            all.put_slice(part);
        }
        all.freeze()
    }
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Self {
        let mut parts = SmallVec::new();
        if !bytes.is_empty() {
            parts.push(bytes);
        }
        Self { parts }
    }
}

/// Payloads of at least this many bytes are shared, smaller ones copied next to their fields.
const SHARED_MIN: usize = 4096;

/// Builds a [`Frame`]. The scratch buffer belongs to the caller and is reused frame after frame.
#[derive(Debug)]
pub struct Writer<'a> {
    head: &'a mut BytesMut,
    parts: SmallVec<[Bytes; 3]>,
}

impl<'a> Writer<'a> {
    /// Starts a frame in `scratch`, which must be empty.
    #[must_use]
    pub fn new(scratch: &'a mut BytesMut) -> Self {
        debug_assert!(scratch.is_empty());
        Self {
            head: scratch,
            parts: SmallVec::new(),
        }
    }

    /// Appends one byte.
    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.head.put_u8(value);
    }
    /// Appends a bool as one byte, 0 or 1.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.head.put_u8(u8::from(value));
    }
    /// Appends 2 bytes.
    #[inline]
    pub fn u16(&mut self, value: u16) {
        self.head.put_u16_le(value);
    }
    /// Appends 4 bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.head.put_u32_le(value);
    }
    /// Appends 8 bytes.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.head.put_u64_le(value);
    }
    /// Appends 16 bytes.
    #[inline]
    pub fn u128(&mut self, value: u128) {
        self.head.put_u128_le(value);
    }

    /// Appends bytes as they are, without a length.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.head.put_slice(bytes);
    }

    /// Appends a payload with its length (u32). A large one is shared, not copied.
    ///
    /// # Panics
    /// When the payload is 4 GiB or longer.
    pub fn blob(&mut self, bytes: &Bytes) {
        self.length(bytes.len());
        self.shared(bytes);
    }

    fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARED_MIN {
            self.head.put_slice(bytes);
        } else {
            self.cut();
            self.parts.push(bytes.clone());
        }
    }

    /// Appends a payload of several parts with its length (u32), as [`Self::blob`] does one.
    ///
    /// # Panics
    /// When the payload is 4 GiB or longer.
    pub fn rope(&mut self, frame: &Frame) {
        self.length(frame.len());
        for part in frame.parts() {
            self.shared(part);
        }
    }

    /// Appends a slice with its length (u32).
    ///
    /// # Panics
    /// When the slice is 4 GiB or longer.
    pub fn slice(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.head.put_slice(bytes);
    }

    /// Appends the length of a list or payload as u32.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn length(&mut self, length: usize) {
        self.head
            .put_u32_le(u32::try_from(length).expect("payloads are far below 4 GiB"));
    }

    fn cut(&mut self) {
        if !self.head.is_empty() {
            self.parts.push(self.head.split().freeze());
        }
    }

    /// The finished frame.
    #[must_use]
    pub fn finish(mut self) -> Frame {
        self.cut();
        Frame { parts: self.parts }
    }
}

/// Reads fields from one contiguous buffer.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    at: usize,
    /// How many members the epoch has that the bytes belong to, if that is known.
    members: Option<usize>,
}

/// Slots, views, rounds and the like stay below this: they count what happens, so that anything
/// near the end of the range comes from bad bytes, and refusing it here keeps additions elsewhere
/// from overflowing.
pub(crate) const NUMBER_END: u64 = 1 << 62;

macro_rules! read {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`DecodeError::Short`] naming `field` when the bytes end before it does.
        #[inline]
        pub fn $name(&mut self, field: &'static str) -> Result<$type, DecodeError> {
            const SIZE: usize = size_of::<$type>();
            let bytes = self.bytes.get(self.at..self.at + SIZE).ok_or(DecodeError::Short(field))?;
            let mut array = [0; SIZE];
            array.copy_from_slice(bytes);
            self.at += SIZE;
            Ok(<$type>::from_le_bytes(array))
        }
    )*};
}

impl Reader {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self {
            bytes,
            at: 0,
            members: None,
        }
    }

    /// Reads bytes that belong to an epoch of this many members.
    #[must_use]
    pub const fn within(bytes: Bytes, members: usize) -> Self {
        Self {
            bytes,
            at: 0,
            members: Some(members),
        }
    }

    #[inline]
    fn all<T: Wire>(&mut self) -> Result<T, DecodeError> {
        let value = T::decode(self)?;
        match self.remaining() {
            0 => Ok(value),
            more => Err(DecodeError::Trailing(more)),
        }
    }

    fn members_max(&self) -> usize {
        let most = ReplicaSet::MEMBERS_MAX;
        self.members.map_or(most, |members| members.min(most))
    }

    read! {
        /// Reads one byte.
        u8: u8;
        /// Reads 2 bytes.
        u16: u16;
        /// Reads 4 bytes.
        u32: u32;
        /// Reads 8 bytes.
        u64: u64;
        /// Reads 16 bytes.
        u128: u128;
    }

    /// Reads a bool.
    ///
    /// # Errors
    /// When the byte is missing or neither 0 nor 1.
    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Bad(field)),
        }
    }

    /// Reads a replica.
    ///
    /// # Errors
    /// When it is not a member.
    #[inline]
    pub fn replica(&mut self, field: &'static str) -> Result<ReplicaId, DecodeError> {
        match ReplicaId(self.u16(field)?) {
            id if id.index() < self.members_max() => Ok(id),
            _ => Err(DecodeError::Bad(field)),
        }
    }

    /// Reads a replica, or none where the encoding of no replica stands.
    ///
    /// # Errors
    /// When it is not a member.
    #[inline]
    pub fn replica_or(
        &mut self,
        none_id: u16,
        field: &'static str,
    ) -> Result<Option<ReplicaId>, DecodeError> {
        match ReplicaId(self.u16(field)?) {
            id if id.index() < self.members_max() => Ok(Some(id)),
            ReplicaId(id) if id == none_id => Ok(None),
            _ => Err(DecodeError::Bad(field)),
        }
    }

    /// Reads a set of replicas.
    ///
    /// # Errors
    /// When not all of them are members.
    #[inline]
    pub fn replicas(&mut self, field: &'static str) -> Result<ReplicaSet, DecodeError> {
        let set = self.u128(field)?;
        if set & !ReplicaSet::all(self.members_max()).0 == 0 {
            Ok(ReplicaSet(set))
        } else {
            Err(DecodeError::Bad(field))
        }
    }

    /// Checks the length of a list that has one element per member, or none at all.
    ///
    /// # Errors
    /// When it has another length.
    #[inline]
    pub fn one_per_member(&self, length: usize, field: &'static str) -> Result<usize, DecodeError> {
        let fits = match self.members {
            Some(members) => length == members,
            None => length <= ReplicaSet::MEMBERS_MAX,
        };
        if length == 0 || fits {
            Ok(length)
        } else {
            Err(DecodeError::Bad(field))
        }
    }

    /// Reads a number that counts something, and so is far from the end of its range.
    ///
    /// # Errors
    /// When it is not.
    #[inline]
    pub fn number(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        match self.u64(field)? {
            number if number < NUMBER_END => Ok(number),
            _ => Err(DecodeError::Bad(field)),
        }
    }

    /// Reads a slot.
    ///
    /// # Errors
    /// As [`Self::number`].
    #[inline]
    pub fn slot(&mut self, field: &'static str) -> Result<Slot, DecodeError> {
        self.number(field).map(Slot)
    }

    /// Reads what [`Writer::blob`] or [`Writer::slice`] wrote, as a slice of the buffer.
    ///
    /// # Errors
    /// When the length reaches beyond the end.
    pub fn blob(&mut self, field: &'static str) -> Result<Bytes, DecodeError> {
        let length = self.u32(field)? as usize;
        self.raw(length, field)
    }

    /// Reads the next `length` bytes, as a slice of the buffer.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn raw(&mut self, length: usize, field: &'static str) -> Result<Bytes, DecodeError> {
        if length > self.remaining() {
            return Err(DecodeError::Short(field));
        }
        let slice = self.bytes.slice(self.at..self.at + length);
        self.at += length;
        Ok(slice)
    }

    /// Reads the length of a list whose elements take at least `size_min` bytes each, so that a
    /// wrong length is found before anything is allocated for it.
    ///
    /// # Errors
    /// When that many elements cannot follow.
    pub fn length(&mut self, size_min: usize, field: &'static str) -> Result<usize, DecodeError> {
        let length = self.u32(field)? as usize;
        if length.saturating_mul(size_min.max(1)) > self.remaining() {
            return Err(DecodeError::Bad(field));
        }
        Ok(length)
    }

    /// How many bytes are left.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// All bytes that are left.
    #[must_use]
    pub fn rest(&mut self) -> Bytes {
        let rest = self.bytes.slice(self.at..);
        self.at = self.bytes.len();
        rest
    }
}
/// Ranges of words for [`crate::Context::put`] as bytes: offset, number of words, words.
#[must_use]
pub fn put_ranges(ranges: &[(u32, &[u64])]) -> Bytes {
    let words: usize = ranges.iter().map(|(_, words)| words.len() + 1).sum();
    let mut bytes = BytesMut::with_capacity(8 * words);
    for (offset, words) in ranges {
        bytes.put_u32_le(*offset);
        bytes.put_u32_le(u32::try_from(words.len()).expect("a row is far below 2^32 words"));
        words.iter().for_each(|word| bytes.put_u64_le(*word));
    }
    bytes.freeze()
}

/// Reads the next of the ranges into `words`; gives its offset.
pub(crate) fn next_range(reader: &mut Reader, words: &mut Vec<u64>) -> Result<u32, DecodeError> {
    words.clear();
    let offset = reader.u32("put offset")?;
    let count = reader.length(8, "put words")?;
    words.reserve(count);
    for _ in 0..count {
        words.push(reader.u64("put word")?);
    }
    Ok(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_of_frame_does_not_depend_on_part_boundaries() {
        let whole: Vec<u8> = (0..20).collect();
        let bytes = Bytes::from(whole.clone());
        let frame = Frame {
            parts: [0..7, 7..8, 8..20].map(|part| bytes.slice(part)).into(),
        };
        for from in 0..=20 {
            for to in from..=20 {
                assert_eq!(frame.slice(from..to), whole[from..to]);
            }
        }
        let inside = frame.slice(9..19);
        assert_eq!(inside.as_ptr(), bytes[9..].as_ptr(), "shared, not copied");
    }

    #[test]
    fn reader_refuses_replicas_that_are_not_members() {
        let bytes = Bytes::from_static(&[3, 0]);
        assert!(Reader::within(bytes.clone(), 3).replica("id").is_err());
        assert_eq!(
            Reader::within(bytes.clone(), 4).replica("id"),
            Ok(ReplicaId(3))
        );
        assert_eq!(Reader::new(bytes).replica("id"), Ok(ReplicaId(3)));
        let none = Bytes::from_static(&[255, 255]);
        assert_eq!(
            Reader::within(none.clone(), 3).replica_or(u16::MAX, "id"),
            Ok(None)
        );
        assert!(Reader::new(none).replica("id").is_err());
        let mut set = [0; 16];
        set[0] = 0b1100;
        let set = Bytes::copy_from_slice(&set);
        assert!(Reader::within(set.clone(), 3).replicas("set").is_err());
        assert_eq!(Reader::within(set, 4).replicas("set"), Ok(ReplicaSet(12)));
        let reader = Reader::within(Bytes::new(), 3);
        let lengths = [0, 1, 3, 4].map(|length| reader.one_per_member(length, "list").is_ok());
        assert_eq!(lengths, [true, false, true, false]);
    }

    #[test]
    fn payload_of_several_parts_is_written_as_one() {
        let large = Bytes::from(alloc::vec![7; SHARED_MIN]);
        let frame = Frame::from(large.clone()).prefixed(Bytes::from_static(b"head"));
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.rope(&frame);
        let written = writer.finish();
        assert_eq!(written.parts()[1].as_ptr(), large.as_ptr(), "shared");
        let mut reader = Reader::new(written.into_bytes());
        assert_eq!(reader.blob("payload"), Ok(frame.into_bytes()));
    }
}
