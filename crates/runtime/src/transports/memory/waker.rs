//! A thread that sleeps sets a flag, and a thread that brings work wakes it.
//!
//! ```text
//!   sleeper: flag up │ fence │ is there something? ── no ──► sleep
//!   other:   bring it │ fence │ flag up? ── yes ──► flag down, ring
//! ```
//!
//! With the fences one of the two sees the step of the other, so no thread sleeps over pending
//! work. Without sleepers the check costs one load of a line that no thread writes.

use super::{ASLEEP_AT, Memory, WAITS_AT, Word};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The reader sleeps until there is something to read.
pub(crate) const ASLEEP: SharedWaker = SharedWaker(ASLEEP_AT);
/// The writer waits until there is room.
pub(crate) const WAITS: SharedWaker = SharedWaker(WAITS_AT);

/// One of the two flags: the word that it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedWaker(pub usize);

impl SharedWaker {
    /// A thread that is about to sleep sets the flag, and checks for work once more afterwards.
    pub fn listen(self, memory: &impl Memory) {
        memory.word(self.0).store(1, Relaxed);
        memory.fence(SeqCst);
    }

    /// He is awake.
    pub fn ignore(self, memory: &impl Memory) {
        memory.word(self.0).store(0, Relaxed);
    }

    /// After new work: whether a sleeping thread must be woken.
    pub fn wanted(self, memory: &impl Memory) -> bool {
        memory.fence(SeqCst);
        let word = memory.word(self.0);
        let wanted = word.load(Relaxed) != 0;
        if wanted {
            word.store(0, Relaxed);
        }
        wanted
    }
}
