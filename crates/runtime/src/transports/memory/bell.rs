//! Who sleeps says so, and whoever brings something wakes him.
//!
//! ```text
//!   sleeper: flag up │ fence │ is there something? ── no ──► sleep
//!   other:   bring it │ fence │ flag up? ── yes ──► flag down, ring
//! ```
//!
//! With the fences one of the two sees what the other did, so nobody sleeps over something. Without
//! sleepers a bell costs one load of a line that nobody writes.

use super::{ASLEEP_AT, Memory, WAITS_AT, Word};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The reader sleeps until there is something to read.
pub(crate) const ASLEEP: Bell = Bell(ASLEEP_AT);
/// The writer waits until there is room.
pub(crate) const WAITS: Bell = Bell(WAITS_AT);

/// One of the two flags: the word that it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bell(pub usize);

impl Bell {
    /// Whoever is about to sleep says so, and looks once more afterwards.
    pub fn listen(self, memory: &impl Memory) {
        memory.word(self.0).store(1, Relaxed);
        memory.fence(SeqCst);
    }

    /// He is awake.
    pub fn ignore(self, memory: &impl Memory) {
        memory.word(self.0).store(0, Relaxed);
    }

    /// After something was brought: whether somebody is to be woken.
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
