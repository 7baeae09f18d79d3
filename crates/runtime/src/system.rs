//! The few calls to the operating system that have no safe wrapper.

use bytes::{BufMut, BytesMut};
use std::{io, os::fd::AsFd};

/// Tells the scheduler that this thread need not preempt others when it wakes: with more threads
/// than cores, batches grow and everything gets cheaper. A refusal changes nothing but speed.
pub(crate) fn prefer_throughput() {
    #[cfg(target_os = "linux")]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the pointer is to a local structure that outlives the call, which only reads
        // it; thread 0 is the calling one.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
    }
}

/// Reads up to `length` bytes to the end of `buffer` without zeroing its memory first.
///
/// # Errors
/// As `read(2)`.
pub(crate) fn read_into(fd: impl AsFd, buffer: &mut BytesMut, length: usize) -> io::Result<usize> {
    buffer.reserve(length);
    let spare = buffer.spare_capacity_mut();
    let length = length.min(spare.len());
    let (filled, _) = rustix::io::read(fd, &mut spare[..length])?;
    let count = filled.len();
    // SAFETY: the kernel has just written these bytes at the start of the spare capacity.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}
