//! Large payloads are not copied into the memory: the other side reads them where they are.
//!
//! ```text
//!   writer                                ring                       reader
//!   keeps the payload ── where it is ────► ▒▒ ───► copies it out of the writer's own memory
//!   lets it go ◄────────────────────────────────── counts it
//!   the link ends: withdrawn │ fence │ lets all go   copies │ fence │ withdrawn? then it was nothing
//! ```
//!
//! One copy instead of two, made by who wants it: with several readers by each on a processor of
//! its own. Whether the reader may (Linux asks as for a debugger: the same user, and
//! `kernel.yama.ptrace_scope` 0 where there is that) it finds out before it says that it will.
//!
//! A process that has ended may have left its number to another. So what was read counts only if
//! the process that it was to be read from is alive afterwards.

use super::{
    HOME_AT, LENT_TAKEN_AT, Mad, Memory, READS_AT, Segment, TOKEN_AT, Token, WITHDRAWN_AT, Word,
};
use crate::system::read_process;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use quintet_replica::{Frame, Lane, Reader};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    collections::VecDeque,
    io,
    sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
};

/// Shorter parts of a frame go through the ring: two copies in the cache cost less than asking the
/// kernel for one.
pub(crate) const LENT_MIN: usize = 64 << 10;
/// The room for further parts in such a frame.
const HERE_MAX: usize = 16 << 10;
/// A part that stands in the ring.
const HERE: u8 = 0;
/// A part that is to be read where it is.
const THERE: u8 = 1;

// --- who writes --------------------------------------------------------------------------------

/// The parts lent by one lane.
#[derive(Debug)]
pub(crate) struct Lender<M> {
    memory: M,
    taken_at: usize,
    kept: VecDeque<Bytes>,
    bytes: usize,
    let_go: u64,
}

impl<M: Memory> Lender<M> {
    /// The one of a lane that has lent nothing.
    pub const fn new(memory: M, lane: Lane) -> Self {
        Self {
            memory,
            taken_at: LENT_TAKEN_AT + lane as usize,
            kept: VecDeque::new(),
            bytes: 0,
            let_go: 0,
        }
    }

    /// Bytes that are lent and not yet known to have been read.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A payload stays where it is until it has been read.
    pub fn keep(&mut self, payload: Bytes) {
        self.bytes += payload.len();
        self.kept.push_back(payload);
    }

    /// How many have been read that are still kept.
    ///
    /// # Errors
    /// When the reader says that it has read what was never lent.
    pub fn returned(&self) -> Result<usize, Mad> {
        let taken = self.memory.word(self.taken_at).load(Acquire);
        match taken.checked_sub(self.let_go) {
            Some(count) if count <= self.kept.len() as u64 => Ok(count as usize),
            _ => Err(Mad("a reader has read what was never lent")),
        }
    }

    /// Lets go what has been read.
    ///
    /// # Errors
    /// As [`Self::returned`].
    pub fn let_go(&mut self) -> Result<(), Mad> {
        for _ in 0..self.returned()? {
            self.let_go += 1;
            self.bytes -= self.kept.pop_front().map_or(0, |payload| payload.len());
        }
        Ok(())
    }
}

/// Whether the reader reads this process's memory.
pub(crate) fn reads(memory: &impl Memory) -> bool {
    memory.word(READS_AT).load(Acquire) == 1
}

/// The writer is told so.
pub(crate) fn will_read(memory: &Segment) {
    memory.word(READS_AT).store(1, Release);
}

/// All lent parts are to be released, read or not.
pub(crate) fn withdraw(memory: &impl Memory) {
    memory.word(WITHDRAWN_AT).store(1, Release);
    memory.fence(SeqCst);
}

/// The description of a frame with large parts, which goes through the ring, while the lender keeps
/// the parts. None if it has no such part, or too much besides.
pub(crate) fn describe(frame: &Frame) -> Option<Bytes> {
    let large = |part: &&Bytes| part.len() >= LENT_MIN;
    let there: usize = frame.parts().iter().filter(large).map(Bytes::len).sum();
    if there == 0 || frame.len() - there > HERE_MAX {
        return None;
    }
    let mut told = BytesMut::with_capacity(frame.len() - there + frame.parts().len() * 13);
    for part in frame.parts() {
        let length = u32::try_from(part.len()).expect("frames are far below 4 GiB");
        if large(&part) {
            told.put_u8(THERE);
            told.put_u32_le(length);
            told.put_u64_le(part.as_ptr().expose_provenance() as u64);
        } else {
            told.put_u8(HERE);
            told.put_u32_le(length);
            told.put_slice(part);
        }
    }
    Some(told.freeze())
}

// --- who reads ---------------------------------------------------------------------------------

/// A process whose memory this one may read.
#[derive(Debug)]
pub(crate) struct Lending {
    process: u32,
    /// Ready to be read when the process has ended.
    ended: OwnedFd,
}

impl Lending {
    /// The process that has made a segment, if its memory can be read.
    pub fn open(token: Token, segment: &Segment) -> io::Result<Self> {
        let home = segment.word(HOME_AT).load(Relaxed);
        let id = i32::try_from(token.process).ok().and_then(Pid::from_raw);
        let (Some(id), true) = (id, home > 0) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let lending = Self {
            process: token.process,
            ended: pidfd_open(id, PidfdFlags::empty())?,
        };
        let mut number = BytesMut::new();
        let place = home.wrapping_add(8 * TOKEN_AT as u64);
        while number.len() < 8 {
            let left = 8 - number.len();
            lending.read(place + number.len() as u64, left, &mut number)?;
        }
        match number.get_u64_le() == token.number && lending.runs() {
            true => Ok(lending),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Appends up to `length` bytes at `address` there to `buffer`, at least one.
    fn read(&self, address: u64, length: usize, buffer: &mut BytesMut) -> io::Result<usize> {
        match read_process(self.process, address, buffer, length)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }

    fn runs(&self) -> bool {
        let mut ended = [PollFd::new(&self.ended, PollFlags::IN)];
        let at_once = Timespec::default();
        poll(&mut ended, Some(&at_once)).is_ok_and(|ready| ready == 0)
    }
}

#[derive(Debug)]
enum Part {
    Here(Bytes),
    There { address: u64, left: usize },
}

/// A frame that is being put together from what stood in the ring and what was lent.
#[derive(Debug)]
pub(crate) struct Loan {
    parts: VecDeque<Part>,
    /// How many of its parts were lent.
    lent: u64,
    frame: BytesMut,
}

impl Loan {
    /// The contents of [`describe`]'s description. Room is made for `ahead` bytes at most before
    /// any is there.
    ///
    /// # Errors
    /// When it is malformed, or the frame would be longer than `most`.
    pub fn new(told: Bytes, most: usize, ahead: usize) -> Result<Self, Mad> {
        const SENSELESS: Mad = Mad("what is lent is not told as it should be");
        let mut reader = Reader::new(told);
        let (mut parts, mut lent, mut length) = (VecDeque::new(), 0, 0);
        while reader.remaining() > 0 {
            let mut part = || {
                let kind = reader.u8("kind of part")?;
                let size = reader.u32("length of part")? as usize;
                length += size;
                Ok(match kind {
                    HERE => Some(Part::Here(reader.raw(size, "part")?)),
                    THERE => {
                        lent += 1;
                        let address = reader.u64("place of part")?;
                        Some(Part::There {
                            address,
                            left: size,
                        })
                    }
                    _ => None,
                })
            };
            match part().map_err(|_: quintet_replica::DecodeError| SENSELESS)? {
                Some(part) => parts.push_back(part),
                None => return Err(SENSELESS),
            }
        }
        if length > most {
            return Err(Mad("more is lent than a frame can hold"));
        }
        Ok(Self {
            parts,
            lent,
            frame: BytesMut::with_capacity(length.min(ahead)),
        })
    }

    /// Continues, for about `budget` bytes at most: how many it took. The frame is whole when no
    /// part is [`left`](Self::is_whole).
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub fn proceed(&mut self, from: &Lending, budget: usize) -> io::Result<usize> {
        let before = self.frame.len();
        while let Some(part) = self.parts.front_mut() {
            let room = budget.saturating_sub(self.frame.len() - before);
            match part {
                Part::Here(bytes) => self.frame.put_slice(bytes),
                Part::There { left: 0, .. } => {}
                Part::There { .. } if room == 0 => break,
                Part::There { address, left } => {
                    let count = from.read(*address, (*left).min(room), &mut self.frame)?;
                    *address = address.wrapping_add(count as u64);
                    *left -= count;
                    continue;
                }
            }
            self.parts.pop_front();
        }
        Ok(self.frame.len() - before)
    }

    /// Whether all of it has been read.
    pub fn is_whole(&self) -> bool {
        self.parts.is_empty()
    }

    /// The frame, if it was lent until now; the writer may let go what it lent for it.
    ///
    /// # Errors
    /// When it was withdrawn meanwhile, or the lender has ended.
    pub fn end(self, memory: &impl Memory, lane: Lane, from: &Lending) -> Result<Bytes, Mad> {
        if !from.runs() {
            return Err(Mad("a writer ended while it was read from"));
        }
        give_back(memory, LENT_TAKEN_AT + lane as usize, self.lent)?;
        Ok(self.frame.freeze())
    }
}

/// After reading: counts what was read, unless it was withdrawn before it had been.
pub(super) fn give_back(memory: &impl Memory, taken_at: usize, lent: u64) -> Result<(), Mad> {
    memory.fence(SeqCst);
    if memory.word(WITHDRAWN_AT).load(Acquire) != 0 {
        return Err(Mad("what was lent has been withdrawn"));
    }
    // The reader alone writes this word; a writer that has lost its way may have done so, too, and
    // would then be told nonsense.
    let taken = memory.word(taken_at);
    taken.store(taken.load(Relaxed).wrapping_add(lent), Release);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_told_by_where_its_large_parts_are() {
        let large = Bytes::from(vec![7; LENT_MIN + 3]);
        let frame = Frame::from(large.clone()).prefixed(Bytes::from_static(b"head"));
        let told = describe(&frame).expect("a large part");
        assert!(told.len() < 100, "{}", told.len());
        let mut loan = Loan::new(told.clone(), usize::MAX, 10).expect("sense");
        let (segment, _file, token) = Segment::create(77).expect("memory");
        let own = Lending::open(token, &segment).expect("a process may read itself");
        let segment = std::sync::Arc::new(segment);
        let mut turns = 0;
        while !loan.is_whole() {
            loan.proceed(&own, 1000).expect("reads");
            turns += 1;
        }
        assert_eq!(turns, (LENT_MIN + 3 + 4).div_ceil(1000));
        let whole = loan.end(&segment, Lane::Bulk, &own).expect("lent");
        assert!(whole == frame.clone().into_bytes());

        withdraw(&segment);
        let mut loan = Loan::new(told.clone(), usize::MAX, 10).expect("sense");
        loan.proceed(&own, usize::MAX).expect("reads");
        loan.end(&segment, Lane::Bulk, &own)
            .expect_err("withdrawn meanwhile");

        Loan::new(told.clone(), 1000, 10).expect_err("too long");
        for length in 1..told.len() {
            let cut = Loan::new(told.slice(..length), usize::MAX, 10);
            assert!(cut.is_err() || length == 9, "{length}");
        }
        assert_eq!(describe(&Frame::from(large.slice(4..))), None, "too small");
    }

    #[test]
    fn another_number_or_an_unknown_place_is_not_read() {
        let (segment, _file, token) = Segment::create(77).expect("memory");
        let wrong = Token {
            number: token.number ^ 1,
            ..token
        };
        Lending::open(wrong, &segment).expect_err("another number");
        let own = Lending::open(token, &segment).expect("a process may read itself");
        let mut told = BytesMut::new();
        told.put_u8(THERE);
        told.put_u32_le(100);
        told.put_u64_le(8);
        let mut loan = Loan::new(told.freeze(), 1000, 1000).expect("sense");
        loan.proceed(&own, 1000)
            .expect_err("nothing is mapped there");
        segment.word(HOME_AT).store(0, Relaxed);
        Lending::open(token, &segment).expect_err("lends nothing");
    }

    #[test]
    fn reader_that_counts_what_was_never_lent_is_mad() {
        let (segment, _file, _token) = Segment::create(77).expect("memory");
        let segment = std::sync::Arc::new(segment);
        let mut lender = Lender::new(segment.clone(), Lane::Bulk);
        lender.keep(Bytes::from_static(b"one"));
        lender.keep(Bytes::from_static(b"three"));
        lender.let_go().expect("sense");
        assert_eq!(lender.bytes(), 8);
        give_back(&segment, lender.taken_at, 1).expect("not withdrawn");
        lender.let_go().expect("sense");
        assert_eq!(lender.bytes(), 5);
        give_back(&segment, lender.taken_at, 2).expect("not withdrawn");
        lender.let_go().expect_err("two of one");
    }
}
