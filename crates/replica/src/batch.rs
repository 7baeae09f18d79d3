//! Batches of requests: the replica or proxy that receives them from clients encodes them once;
//! they are then forwarded, journalled and executed as the same bytes.
//!
//! ```text
//!   batch   = version u8 | level u8 | seals and group u16 | count u32 | frontend u64 | batch id u64 | request*
//!   request = owner u64 | number u64 | sequence u64 | kind u8 | zero u8 | open u16 | length u32 | payload
//!   results = count u32 | result*            (one per request, in the batch's order)
//!   result  = status u8 | length u32 | reply
//! ```
//!
//! `open` is how many of the session's sequence numbers below this one still await their reply:
//! replies below `sequence - open` have arrived and need not be kept.
//!
//! `seals`, one bit, says that a [`RequestKind::Seal`] is among the requests: the receiver of a batch,
//! and the executor, see it without walking them. In a batch that does not say so a seal is no
//! request. `group` is the group that executes it; a batch of another group is refused whole.

use crate::{BatchId, CommandId, DecodeError, FrontendId, GroupId, Level, SessionId};
use alloc::vec::Vec;
use bytes::{BufMut, Bytes, BytesMut};

/// Servers take a batch of this many bytes for full unless told otherwise …
pub const FULL_BATCH_BYTES: usize = 1 << 20;
/// … and one of this many requests (whatever models a server needs the same numbers) …
pub const FULL_BATCH_REQUESTS: usize = 128;
/// … of which this many may be in progress at once, whatever may be of those that are not full:
/// over a long way what bounds them is to be their bytes.
pub const FULL_BATCHES_MAX: usize = 4096;
/// The version of the batch format.
pub const BATCH_VERSION: u8 = 1;
const HEADER: usize = 24;
/// Where a batch says, in the lowest bit, that it holds a seal; above that is the group.
const SEALS_AT: usize = 2;
/// The most groups of a process, for which a batch has numbers.
pub const GROUPS_MAX: u32 = 1 << 15;
const REQUEST_HEADER: usize = 32;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestKind {
    /// Execute the payload as a command (or read) of the state machine.
    Command = 0,
    /// Open the session. Payload: the owner's start in command time (u64).
    Open = 1,
    /// End the session.
    Close = 2,
    /// Keep the owner's sessions alive.
    Renew = 3,
    /// Only carry time forward.
    Tick = 4,
    /// End the epoch. Payload: the next one's descriptor. Only a member's node offers it.
    Seal = 5,
    /// Answer a read from the state at an earlier time, see [`crate::past`]. Only in batches that
    /// are not ordered.
    Past = 6,
}

impl RequestKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Command,
            1 => Self::Open,
            2 => Self::Close,
            3 => Self::Renew,
            4 => Self::Tick,
            5 => Self::Seal,
            6 => Self::Past,
            _ => return None,
        })
    }
}

/// One request as it stands in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestView<'a> {
    /// Which session and which place in it.
    pub id: CommandId,
    /// Its kind.
    pub kind: RequestKind,
    /// How many earlier sequence numbers of the session still await their reply.
    pub open: u16,
    /// The command's bytes.
    pub payload: &'a [u8],
}

/// Collects requests into one batch.
#[derive(Debug)]
pub struct BatchBuilder {
    bytes: BytesMut,
    count: u32,
    seals: bool,
    group: GroupId,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// An empty batch of group 0.
    #[must_use]
    pub fn new() -> Self {
        Self::of(GroupId(0))
    }

    /// An empty batch of this group, of which there are below [`GROUPS_MAX`].
    #[must_use]
    pub fn of(group: GroupId) -> Self {
        debug_assert!(group.0 < GROUPS_MAX, "a batch has numbers for its groups");
        let mut bytes = BytesMut::new();
        bytes.put_bytes(0, HEADER);
        Self {
            bytes,
            count: 0,
            seals: false,
            group,
        }
    }

    /// Appends a request whose payload is at hand.
    pub fn push(&mut self, id: CommandId, kind: RequestKind, open: u16, payload: &[u8]) {
        self.push_with(id, kind, open, |out| out.put_slice(payload));
    }

    /// Appends a request whose payload `write` appends in place.
    ///
    /// # Panics
    /// When the payload is 4 GiB or longer.
    pub fn push_with(
        &mut self,
        id: CommandId,
        kind: RequestKind,
        open: u16,
        write: impl FnOnce(&mut BytesMut),
    ) {
        self.bytes.put_u64_le(id.session.owner);
        self.bytes.put_u64_le(id.session.number);
        self.bytes.put_u64_le(id.sequence);
        self.bytes.put_u8(kind as u8);
        self.seals |= kind == RequestKind::Seal;
        self.bytes.put_u8(0);
        self.bytes.put_u16_le(open);
        let at = self.bytes.len();
        self.bytes.put_u32_le(0);
        write(&mut self.bytes);
        let length = u32::try_from(self.bytes.len() - at - 4).expect("payloads are below 4 GiB");
        self.bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        self.count += 1;
    }

    /// Makes room for this many more bytes at once, for who knows how large batches tend to be.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// How many requests it holds.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Its length in bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it holds no request.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The finished batch; the builder is empty again and reuses its memory.
    pub fn finish(&mut self, frontend: FrontendId, batch: BatchId, level: Level) -> Bytes {
        self.bytes[0] = BATCH_VERSION;
        self.bytes[1] = level as u8;
        let seals = u16::from(core::mem::take(&mut self.seals));
        let marked = (self.group.0 as u16) << 1 | seals;
        self.bytes[SEALS_AT..4].copy_from_slice(&marked.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&frontend.0.to_le_bytes());
        self.bytes[16..24].copy_from_slice(&batch.0.to_le_bytes());
        let done = self.bytes.split().freeze();
        self.bytes.put_bytes(0, HEADER);
        self.count = 0;
        done
    }
}

/// Bytes before the payload of a batch's first request.
const ROOM: usize = HEADER + REQUEST_HEADER;

/// A request's payload. One that is written here has room before it for all else that stands in a
/// batch of it alone, which then is made without copying it ([`Payload::into_batch`]); one that is
/// a vector already stays where it is.
#[derive(Clone, Debug)]
pub struct Payload {
    bytes: Vec<u8>,
    /// Where it begins: behind the room, if there is any.
    start: usize,
}

impl Payload {
    /// An empty one to be written, with space for this many bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(ROOM + capacity);
        bytes.resize(ROOM, 0);
        let start = ROOM;
        Self { bytes, start }
    }

    /// Appends these bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether there is room before it.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.start == ROOM
    }

    /// A batch of this group with a command with this payload and nothing else.
    ///
    /// # Panics
    /// When the payload is 4 GiB or longer.
    #[must_use]
    pub fn into_batch(
        self,
        group: GroupId,
        command: CommandId,
        frontend: FrontendId,
        batch: BatchId,
        level: Level,
    ) -> Bytes {
        let mut head = BatchBuilder::of(group);
        head.push(command, RequestKind::Command, 0, &[]);
        let length = u32::try_from(self.len()).expect("payloads are below 4 GiB");
        head.bytes[ROOM - 4..].copy_from_slice(&length.to_le_bytes());
        let head = head.finish(frontend, batch, level);
        let mut bytes = self.bytes;
        if self.start == ROOM {
            bytes[..ROOM].copy_from_slice(&head);
        } else {
            bytes.splice(..0, head);
        }
        bytes.into()
    }
}

impl core::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        let mut payload = Self::with_capacity(bytes.len());
        payload.extend_from_slice(bytes);
        payload
    }
}

/// Whether a batch says that a request to end the epoch is among the others.
#[inline]
pub(crate) fn holds_seal(batch: &[u8]) -> bool {
    batch.get(SEALS_AT).is_some_and(|byte| byte & 1 == 1)
}

/// The group that a batch is for.
#[must_use]
pub fn group_of(batch: &[u8]) -> GroupId {
    let marked = batch.get(SEALS_AT..4).and_then(|bytes| bytes.first_chunk());
    GroupId(marked.map_or(0, |marked| u32::from(u16::from_le_bytes(*marked) >> 1)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A batch read in place.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    bytes: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// Reads the header; the requests are read as they are walked.
    ///
    /// # Errors
    /// When the header is short, of another version, or counts more than could follow.
    pub fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        if bytes.len() < HEADER {
            return Err(DecodeError::Short("batch header"));
        }
        if bytes[0] != BATCH_VERSION || Level::from_byte(bytes[1]).is_none() {
            return Err(DecodeError::Bad("batch header"));
        }
        let view = Self { bytes };
        if (view.count() as usize).saturating_mul(REQUEST_HEADER) > bytes.len() - HEADER {
            return Err(DecodeError::Bad("batch count"));
        }
        Ok(view)
    }

    /// Like [`Self::new`], and walks all requests too: for bytes from outside.
    ///
    /// # Errors
    /// When any request is malformed or bytes are left over.
    pub fn checked(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let view = Self::new(bytes)?;
        let mut requests = view.requests();
        let walked = requests.by_ref().count();
        if walked != view.count() as usize {
            return Err(DecodeError::Bad("batch request"));
        }
        match bytes.len() - requests.at {
            0 => Ok(view),
            more => Err(DecodeError::Trailing(more)),
        }
    }

    /// The group that it is for.
    #[must_use]
    pub fn group(&self) -> GroupId {
        group_of(self.bytes)
    }

    /// How many requests it holds.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32_at(self.bytes, 4).unwrap_or(0)
    }

    /// The frontend that waits for the replies.
    #[must_use]
    pub fn frontend(&self) -> FrontendId {
        FrontendId(u64_at(self.bytes, 8).unwrap_or(0))
    }

    /// The frontend's number for it.
    #[must_use]
    pub fn id(&self) -> BatchId {
        BatchId(u64_at(self.bytes, 16).unwrap_or(0))
    }

    /// Whether it is to be ordered or only read.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::from_byte(self.bytes[1]).unwrap_or(Level::Ordered)
    }

    /// Whether a request to end the epoch is among the others.
    #[must_use]
    pub fn seals(&self) -> bool {
        holds_seal(self.bytes)
    }

    /// The requests in order; ends early at a malformed one.
    #[must_use]
    pub fn requests(&self) -> Requests<'a> {
        Requests {
            bytes: self.bytes,
            at: HEADER,
            left: self.count(),
        }
    }
}

/// Walks the requests of a batch.
#[derive(Clone, Debug)]
pub struct Requests<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u32,
}

impl Requests<'_> {
    #[inline]
    fn kind(&self, byte: u8) -> Option<RequestKind> {
        match byte < RequestKind::Seal as u8 {
            true => RequestKind::from_byte(byte),
            false => self.rare_kind(byte),
        }
    }

    #[cold]
    fn rare_kind(&self, byte: u8) -> Option<RequestKind> {
        let kind = RequestKind::from_byte(byte)?;
        let may_hold = kind != RequestKind::Seal || holds_seal(self.bytes);
        may_hold.then_some(kind)
    }
}

impl<'a> Iterator for Requests<'a> {
    type Item = RequestView<'a>;

    #[inline]
    fn next(&mut self) -> Option<RequestView<'a>> {
        if self.left == 0 {
            return None;
        }
        let header: &[u8; REQUEST_HEADER] = self.bytes.get(self.at..)?.first_chunk()?;
        let length = u32_at(header, 28)? as usize;
        let start = self.at + REQUEST_HEADER;
        let payload = self.bytes.get(start..start + length)?;
        let view = RequestView {
            id: CommandId {
                session: SessionId {
                    owner: u64_at(header, 0)?,
                    number: u64_at(header, 8)?,
                },
                sequence: u64_at(header, 16)?,
            },
            kind: self.kind(header[24])?,
            open: u16::from_le_bytes([header[26], header[27]]),
            payload,
        };
        self.at = start + length;
        self.left -= 1;
        Some(view)
    }
}

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestStatus {
    /// Executed now or before; the reply is its result.
    Done = 0,
    /// The session is not known (any more). The request was not executed by this batch; whether
    /// an earlier try was, cannot be told.
    SessionUnknown = 1,
    /// It was executed, and its reply was acknowledged and dropped since.
    ReplyLost = 2,
    /// An earlier sequence number of the session is still missing; send it again after that.
    OutOfOrder = 3,
    /// The session was opened too long ago by the log's clock; the reply is that clock (u64), with
    /// which a new owner may try again.
    OpenRefused = 4,
    /// The bytes are invalid to the state machine or the session layer.
    Malformed = 5,
    /// The epoch ended before it; send it again in the next.
    Sealed = 6,
    /// The results of the requests before it in its batch have come to as much as a batch may
    /// have. It was not executed; send it again in another batch.
    NotExecuted = 7,
    /// It would end the epoch, and does not name one that follows this one. Nothing changed.
    Refused = 8,
    /// A read of the past whose time the log has not closed yet, see [`crate::past`].
    NotYet = 9,
    /// A read of the past whose state machine keeps none.
    NotKept = 10,
}

impl RequestStatus {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Done,
            1 => Self::SessionUnknown,
            2 => Self::ReplyLost,
            3 => Self::OutOfOrder,
            4 => Self::OpenRefused,
            5 => Self::Malformed,
            6 => Self::Sealed,
            7 => Self::NotExecuted,
            8 => Self::Refused,
            9 => Self::NotYet,
            10 => Self::NotKept,
            _ => return None,
        })
    }
}

/// A results buffer larger than this is handed on or given back instead of being kept for reuse.
const RESULTS_KEPT: usize = 1 << 20;

/// Collects the results of a batch. Writes into a reusable buffer.
#[derive(Debug, Default)]
pub struct ResultsBuilder {
    bytes: Vec<u8>,
    count: u32,
    open: usize,
}

impl ResultsBuilder {
    /// Starts over.
    pub fn clear(&mut self) {
        if self.bytes.capacity() > RESULTS_KEPT {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; 4]);
        self.count = 0;
    }

    /// Starts over with this status, and no reply, for each request of a batch.
    pub fn fill(&mut self, batch: &BatchView<'_>, status: RequestStatus) {
        self.clear();
        for _ in batch.requests() {
            self.push(status, &[]);
        }
    }

    /// Their length in bytes so far.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no result.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Starts a result; append its reply to the returned buffer, then call [`Self::end`].
    pub fn begin(&mut self) -> &mut Vec<u8> {
        self.open = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 5]);
        &mut self.bytes
    }

    /// Ends the result and returns its reply bytes; none and [`RequestStatus::ReplyLost`] when
    /// there are more than `bytes_max`: it was executed, and its reply is lost.
    pub fn end(&mut self, status: RequestStatus, bytes_max: usize) -> Option<&[u8]> {
        let start = self.open + 5;
        let fits = self.bytes.len() - start <= bytes_max.min(u32::MAX as usize);
        if !fits {
            self.bytes.truncate(start);
        }
        let status = if fits {
            status
        } else {
            RequestStatus::ReplyLost
        };
        let length = (self.bytes.len() - start) as u32;
        self.bytes[self.open] = status as u8;
        self.bytes[self.open + 1..start].copy_from_slice(&length.to_le_bytes());
        self.count += 1;
        fits.then_some(&self.bytes[start..])
    }

    /// Appends a whole result.
    pub fn push(&mut self, status: RequestStatus, reply: &[u8]) {
        self.begin().extend_from_slice(reply);
        self.end(status, usize::MAX);
    }

    /// The finished results: copied out, so that the buffer can be reused, or, if they are large,
    /// the buffer itself.
    pub fn finish(&mut self) -> Bytes {
        self.bytes[..4].copy_from_slice(&self.count.to_le_bytes());
        if self.bytes.len() > RESULTS_KEPT {
            return core::mem::take(&mut self.bytes).into();
        }
        Bytes::copy_from_slice(&self.bytes)
    }
}

/// Walks results in the order of the batch's requests; ends early at a malformed one.
#[derive(Clone, Debug)]
pub struct Results<'a> {
    bytes: &'a [u8],
    left: u32,
}

impl<'a> Results<'a> {
    /// Reads results made by [`ResultsBuilder`].
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            left: u32_at(bytes, 0).unwrap_or(0),
            bytes: bytes.get(4..).unwrap_or(&[]),
        }
    }
}

impl<'a> Iterator for Results<'a> {
    type Item = (RequestStatus, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let status = RequestStatus::from_byte(*self.bytes.first()?)?;
        let length = u32_at(self.bytes, 1)? as usize;
        let reply = self.bytes.get(5..5 + length)?;
        self.bytes = &self.bytes[5 + length..];
        self.left -= 1;
        Some((status, reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_becomes_the_batch_that_a_builder_makes_of_it() {
        let command = CommandId {
            session: SessionId {
                owner: 7,
                number: 8,
            },
            sequence: 9,
        };
        let (frontend, batch, level) = (FrontendId(10), BatchId(11), Level::Ordered);
        for payload in [&b""[..], b"payload"] {
            let mut builder = BatchBuilder::new();
            builder.push(command, RequestKind::Command, 0, payload);
            let expected = builder.finish(frontend, batch, level);
            let (copied, kept) = (Payload::from(payload), Payload::from(payload.to_vec()));
            assert!(copied.has_room() && !kept.has_room());
            for one in [copied, kept] {
                assert_eq!(*one, *payload);
                assert_eq!(
                    one.into_batch(GroupId(0), command, frontend, batch, level),
                    expected
                );
            }
        }
    }

    #[test]
    fn batch_reads_back_and_its_prefixes_are_refused() {
        let mut builder = BatchBuilder::new();
        let id = |sequence| CommandId {
            session: SessionId {
                owner: 7,
                number: 1,
            },
            sequence,
        };
        builder.push(id(1), RequestKind::Open, 0, &5u64.to_le_bytes());
        builder.push(id(2), RequestKind::Command, 3, b"hello");
        let bytes = builder.finish(FrontendId(9), BatchId(4), Level::Ordered);
        let view = BatchView::checked(&bytes).expect("what was built is valid");
        assert_eq!(
            (view.frontend(), view.id(), view.count()),
            (FrontendId(9), BatchId(4), 2)
        );
        let requests: Vec<_> = view.requests().collect();
        assert_eq!(requests[1].payload, b"hello");
        assert_eq!((requests[1].id, requests[1].open), (id(2), 3));
        for cut in 0..bytes.len() {
            assert!(BatchView::checked(&bytes[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn batch_names_its_group_beside_a_seal() {
        for group in [GroupId(0), GroupId(7), GroupId(GROUPS_MAX - 1)] {
            for kind in [RequestKind::Command, RequestKind::Seal] {
                let mut builder = BatchBuilder::of(group);
                for _ in 0..2 {
                    builder.push(CommandId::default(), kind, 0, b"");
                    let bytes = builder.finish(FrontendId(9), BatchId(4), Level::Ordered);
                    let view = BatchView::checked(&bytes).expect("what was built is valid");
                    assert_eq!((view.group(), group_of(&bytes)), (group, group));
                    assert_eq!(view.seals(), kind == RequestKind::Seal);
                }
            }
        }
        assert_eq!(group_of(b"x"), GroupId(0));
    }

    #[test]
    fn reply_is_dropped_when_it_exceeds_its_bound() {
        let mut builder = ResultsBuilder::default();
        builder.clear();
        builder.begin().extend_from_slice(b"12345678");
        assert_eq!(builder.end(RequestStatus::Done, 7), None);
        builder.push(RequestStatus::Done, b"next");
        let results = builder.finish();
        let expected = [
            (RequestStatus::ReplyLost, &b""[..]),
            (RequestStatus::Done, b"next"),
        ];
        assert!(Results::new(&results).eq(expected));
        // A large buffer is handed on, not kept beside its copy.
        builder.clear();
        builder.push(RequestStatus::Done, &alloc::vec![1; RESULTS_KEPT]);
        assert_eq!(builder.finish().len(), 4 + 5 + RESULTS_KEPT);
        assert_eq!(builder.bytes.capacity(), 0);
    }

    #[test]
    fn results_read_back() {
        let mut builder = ResultsBuilder::default();
        builder.clear();
        builder.push(RequestStatus::Done, b"+OK\r\n");
        builder.push(RequestStatus::SessionUnknown, b"");
        let bytes = builder.finish();
        let all: Vec<_> = Results::new(&bytes).collect();
        assert_eq!(
            all,
            [
                (RequestStatus::Done, &b"+OK\r\n"[..]),
                (RequestStatus::SessionUnknown, &b""[..])
            ]
        );
    }
}
