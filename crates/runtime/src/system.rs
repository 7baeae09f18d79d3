//! The few calls to the operating system that have no safe wrapper.

use bytes::{BufMut, BytesMut};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::BorrowedFd,
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

/// Tells the scheduler that this thread need not preempt others when it wakes: with more threads
/// than cores, batches grow and everything gets cheaper. A refusal changes nothing but speed.
pub(crate) fn prefer_throughput() {
    #[cfg(target_os = "linux")]
    {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the pointer is to a local structure that outlives the call, which only reads
        // it; thread 0 is the calling one.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
        // Sleeps end when they are to end, not up to 50 us later in company of others.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

/// Waits until `poll` has events, or for `timeout`, by the nanosecond: its own waiting counts whole
/// milliseconds.
///
/// # Errors
/// As `poll(2)`.
pub(crate) fn wait(events: &mio::Poll, timeout: Duration) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as `events` is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(events.as_raw_fd()) };
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))?;
    Ok(())
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

/// How much room to make in a buffer that holds `come` of the bytes announced, and lacks `missing`:
/// what is announced costs little before it comes, and few copies when it does. The buffer is not
/// rounded up to twice its size at the end.
pub(crate) fn growth(come: usize, missing: usize, least: usize) -> usize {
    let all = missing <= least || missing / 7 <= come;
    if all { missing } else { least.max(come * 3) }
}

/// Appends up to `length` bytes that another process has at `address` to `buffer`: how many.
///
/// # Errors
/// As `process_vm_readv(2)`: when this process may not, the other one has ended, or has nothing
/// there.
pub(crate) fn read_process(
    process: u32,
    address: u64,
    buffer: &mut BytesMut,
    length: usize,
) -> io::Result<usize> {
    let process = libc::pid_t::try_from(process).map_err(io::Error::other)?;
    let address = usize::try_from(address).map_err(io::Error::other)?;
    buffer.reserve(length);
    let spare = buffer.spare_capacity_mut();
    let length = length.min(spare.len());
    let here = libc::iovec {
        iov_base: spare.as_mut_ptr().cast(),
        iov_len: length,
    };
    let there = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: length,
    };
    // SAFETY: `here` is spare capacity of the buffer, and has no other user; `there` is a place in
    // the other process, which the kernel checks, and nothing is written to it. When the other
    // process is this one, the bytes are copied from wherever they are as they are there.
    let count = unsafe { libc::process_vm_readv(process, &here, 1, &there, 1, 0) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has just written this many bytes at the start of the spare capacity.
    unsafe { buffer.advance_mut(count) };
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn wait_ends_at_its_deadline_or_at_an_event() {
        let events = mio::Poll::new().expect("a poll");
        for wait in [Duration::from_micros(1), Duration::from_micros(1_300)] {
            let begun = Instant::now();
            super::wait(&events, wait).expect("waits");
            assert!(begun.elapsed() >= wait);
        }
        let waker = mio::Waker::new(events.registry(), mio::Token(0)).expect("a waker");
        waker.wake().expect("wakes");
        super::wait(&events, Duration::from_secs(3_600)).expect("does not wait");
    }
}
