//! The memory itself: made by the one who writes, opened by the one who reads.
//!
//! ```text
//!   writer: memfd, sealed ──► Token{process, descriptor, number} ── over TCP ──► reader
//!   reader: /proc/PROCESS/fd/DESCRIPTOR ──► is it one, sealed, of this length and number?
//! ```
//!
//! It has no name that could be left behind: when both processes have ended, however, it is gone.
//! It is sealed against shrinking, so that no writer can take it away under a reader (who would die
//! of a bus error). A process that cannot open it, as on another host or in another container, does
//! not report it, and everything continues by TCP.
//!
//! The one place of shared memory where `unsafe` is needed.

use super::{HOME_AT, MAGIC_AT, SEGMENT_BYTES, TOKEN_AT};
use bytes::{BufMut, BytesMut};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{MemfdFlags, Mode, OFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
};
use std::{
    io,
    os::fd::AsRawFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// "quintet" and the format.
const MAGIC: u64 = u64::from_le_bytes(*b"quintet\x01");
const NAME: &str = "quintet-link";

/// Where a segment is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The process that has it open.
    pub process: u32,
    /// As which descriptor.
    pub descriptor: u32,
    /// Its number: both sides have it from the handshake of the link.
    pub number: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Segment {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to the segment until it is dropped, and is only reached through
// atomic words and copies of bytes, from whichever thread.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new one with this number, else all zero, and what must stay open until the other side has opened it.
    ///
    /// # Errors
    /// When the operating system has none to give.
    pub fn create(number: u64) -> io::Result<(Self, OwnedFd, Token)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(NAME, flags)?;
        rustix::fs::ftruncate(&file, SEGMENT_BYTES as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let segment = Self::map(&file)?;
        let token = Token {
            process: std::process::id(),
            descriptor: file.as_raw_fd() as u32,
            number,
        };
        segment.word(TOKEN_AT).store(token.number, Relaxed);
        let home = segment.base.as_ptr().expose_provenance() as u64;
        segment.word(HOME_AT).store(home, Relaxed);
        segment.word(MAGIC_AT).store(MAGIC, Relaxed);
        Ok((segment, file, token))
    }

    /// The one that another process has made.
    ///
    /// # Errors
    /// When there is none to be found there: another host's, or another format's.
    pub fn open(token: Token) -> io::Result<Self> {
        let other = || Err(io::Error::from(io::ErrorKind::InvalidData));
        let path = format!("/proc/{}/fd/{}", token.process, token.descriptor);
        // Opening a file can have consequences; this one has none if it is what it is to be.
        let target = rustix::fs::readlink(&path, Vec::new())?;
        if !target
            .to_bytes()
            .starts_with(format!("/memfd:{NAME}").as_bytes())
        {
            return other();
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&path, flags, Mode::empty())?;
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let length = rustix::fs::fstat(&file)?.st_size;
        if !seals.contains(SealFlags::SHRINK) || length != SEGMENT_BYTES as i64 {
            return other();
        }
        let segment = Self::map(&file)?;
        let known = |at: usize, value: u64| segment.word(at).load(Relaxed) == value;
        if !known(MAGIC_AT, MAGIC) || !known(TOKEN_AT, token.number) {
            return other();
        }
        Ok(segment)
    }

    fn map(file: impl AsFd) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping where the kernel wants it, of a file that cannot become shorter; it is
        // unmapped when the segment is dropped and not before.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                SEGMENT_BYTES,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        match NonNull::new(base.cast()) {
            Some(base) => Ok(Self { base }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// The word with this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < SEGMENT_BYTES / 8, "a word of the segment");
        // SAFETY: within the mapping and aligned, as pages are; others reach words of it only as
        // atomic ones too, whatever process they are in.
        unsafe { &*self.base.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Writes bytes `at` this many from the beginning.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= SEGMENT_BYTES, "bytes of the segment");
        // SAFETY: within the mapping, and `bytes` is memory of this process. Only a faulty process
        // reads or writes there meanwhile, and gets what it asks for.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len());
        }
    }

    /// Appends `length` bytes to `buffer`, from this many after the beginning.
    ///
    /// # Panics
    /// When there are not this many.
    pub fn copy_out(&self, at: usize, length: usize, buffer: &mut BytesMut) {
        assert!(at + length <= SEGMENT_BYTES, "bytes of the segment");
        buffer.reserve(length);
        let spare = buffer.spare_capacity_mut();
        assert!(spare.len() >= length, "just reserved");
        // SAFETY: within the mapping and within the reserved capacity, all of which is written
        // before it counts. A process that has lost its way may change the bytes meanwhile; they
        // are bytes whatever they are, and are checked as such afterwards.
        unsafe {
            let from = self.base.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(from, spare.as_mut_ptr().cast(), length);
            buffer.advance_mut(length);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing that borrows it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), SEGMENT_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
